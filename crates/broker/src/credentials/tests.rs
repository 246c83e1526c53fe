use std::net::IpAddr;
use std::time::Duration;

use super::*;
use crate::access::{Resource, Right, authorize};
use crate::clock::Clock;

const DAY: Duration = Duration::from_secs(86_400);

fn none(clock: Clock) -> Credentials {
    Credentials::load(clock, std::iter::empty())
}

fn terms(kind: CredentialKind, grants: &str) -> CredentialTerms {
    let grants = grants.parse().expect("grants");
    CredentialTerms {
        kind,
        name: "ci".to_owned(),
        grants,
        expires: None,
        limits: None,
        account: None,
        password: None,
    }
}

fn made(credentials: &Credentials, terms: CredentialTerms) -> NewCredential {
    let draft = credentials.draft("admin", terms).expect("it can be made");
    credentials.add(Timestamp(1), draft)
}

#[test]
fn a_token_is_recognised_by_all_of_its_text() {
    let credentials = none(Clock::still());
    assert!(!credentials.has_tokens());
    let new = made(&credentials, terms(CredentialKind::Token, "publish:orders-*"));
    let token = new.secret.reveal();
    assert_eq!((token.len(), &token[..4]), (4 + 16 + 1 + 43, "fby_"));
    let principal = credentials.recognise(token).expect("it is known");
    assert_eq!((principal.name(), principal.grants().map(Grants::as_str)), ("ci", Some("publish:orders-*")));
    assert!(credentials.has_tokens());
    for n in 0..token.len() {
        let mut wrong = token.to_owned().into_bytes();
        wrong[n] = if wrong[n] == b'a' { b'b' } else { b'a' };
        let wrong = String::from_utf8(wrong).expect("text");
        assert_eq!(credentials.recognise(&wrong).err(), Some(NotRecognised::Unknown), "{n}");
    }
    for wrong in ["", "fby_", &token[..token.len() - 1], &format!("{token}x"), "fby_é", "Bearer"] {
        assert_eq!(credentials.recognise(wrong).err(), Some(NotRecognised::Unknown), "{wrong}");
    }
    let key = made(&credentials, terms(CredentialKind::AccessKey, "worker:*"));
    assert!(credentials.recognise(&format!("fby_{}_{}", key.report.id, key.secret.reveal())).is_err());
}

#[test]
fn credentials_come_back_from_their_notes_without_the_token() {
    let clock = Clock::still();
    let credentials = none(clock);
    let expires = Some(clock.now() + DAY);
    let mut notes = Vec::new();
    let mut secrets = Vec::new();
    for terms in [
        CredentialTerms { expires, ..terms(CredentialKind::Token, "consume:orders/*") },
        CredentialTerms {
            limits: Some("requests=5,bytes=1MiB".parse().expect("limits")),
            ..terms(CredentialKind::Token, "consume:orders/*")
        },
        CredentialTerms {
            account: Some("123456789012".to_owned()),
            ..terms(CredentialKind::AccessKey, "worker:*")
        },
        terms(CredentialKind::AccessKey, "admin:*"),
        terms(CredentialKind::User, "worker:*"),
    ] {
        let draft = credentials.draft("admin", terms).expect("it can be made");
        let note = Note { version: 1, value: draft.value(), expires: draft.forgotten() };
        notes.push((draft.key(), note));
        secrets.push(credentials.add(clock.now(), draft).secret);
    }
    let again = Credentials::load(clock, notes.iter().map(|(key, note)| (&key[..], note)));
    assert_eq!(again.list(None), credentials.list(None));
    assert_eq!(again.list(Some(CredentialKind::Token)).len(), 2);
    assert_eq!(notes.iter().map(|(_, note)| note.value[0]).collect::<Vec<_>>(), [1, 2, 1, 1, 1]);
    let limited = again.recognise(secrets[1].reveal()).expect("it is known");
    assert!(limited.tenant().is_some(), "it has its limits again");
    assert!(again.recognise(secrets[0].reveal()).is_ok());
    // The secret may have an underscore of its own.
    let secret = secrets[0].reveal().splitn(3, '_').last().expect("a secret").as_bytes();
    for (key, note) in &notes {
        assert!(!note.value.windows(8).any(|part| part == &secret[..8]), "the log has no token: {key:?}");
    }
    let list = again.list(Some(CredentialKind::AccessKey));
    let keys: Vec<_> = list.iter().map(|one| again.access_key(&one.id).expect("a key")).collect();
    assert!(
        keys.iter().any(|key| key.account.as_deref() == Some("123456789012") && key.secret == secrets[2])
    );
    assert!(keys.iter().any(|key| key.account.is_none() && key.secret == secrets[3]));
    for (key, note) in &notes {
        for length in 0..note.value.len() {
            assert!(
                Known::read(key, &note.value[..length]).is_err(),
                "a note that is cut off recognises no client"
            );
        }
    }
}

#[test]
fn an_expired_credential_is_not_accepted() {
    let clock = Clock::still();
    let credentials = none(clock);
    let expires = Some(clock.now() + DAY);
    let token = made(&credentials, CredentialTerms { expires, ..terms(CredentialKind::Token, "admin:*") });
    let key = made(&credentials, CredentialTerms { expires, ..terms(CredentialKind::AccessKey, "admin:*") });
    clock.advance(DAY - Duration::from_secs(1));
    assert!(credentials.recognise(token.secret.reveal()).is_ok());
    assert!(credentials.access_key(&key.report.id).is_some());
    clock.advance(Duration::from_secs(1));
    assert_eq!(credentials.recognise(token.secret.reveal()).err(), Some(NotRecognised::Expired));
    assert!(credentials.access_key(&key.report.id).is_none() && !credentials.has_tokens());
    assert_eq!(credentials.list(None).len(), 2, "an administrator still sees them");
}

#[tokio::test]
async fn everything_ends_with_a_credential_that_is_revoked() {
    let clock = Clock::still();
    let credentials = none(clock);
    let new = made(&credentials, terms(CredentialKind::Token, "admin:*"));
    let principal = credentials.recognise(new.secret.reveal()).expect("it is known");
    assert!(authorize(&principal, Right::Administer, Resource::Server).is_ok());
    let ended = tokio::spawn(principal.ended(clock));
    tokio::task::yield_now().await;
    assert!(!ended.is_finished());
    credentials.end(&new.report.id);
    ended.await.expect("it ended");
    principal.ended(clock).await;
    assert!(authorize(&principal, Right::Administer, Resource::Server).is_err());
    assert_eq!(credentials.recognise(new.secret.reveal()).err(), Some(NotRecognised::Unknown));
}

#[tokio::test]
async fn everything_ends_with_a_credential_that_expires() {
    let clock = Clock::still();
    let credentials = none(clock);
    let expires = Some(clock.now() + DAY);
    let new = made(&credentials, CredentialTerms { expires, ..terms(CredentialKind::Token, "admin:*") });
    let principal = credentials.recognise(new.secret.reveal()).expect("it is known");
    let ended = tokio::spawn(principal.ended(clock));
    tokio::task::yield_now().await;
    assert!(!ended.is_finished());
    clock.advance(DAY);
    clock.tell();
    ended.await.expect("it ended");
}

#[test]
fn the_admin_token_is_replaced_and_not_kept() {
    let credentials = none(Clock::still());
    let (one, two) = (Secret::new("one of thirty-two characters at least"), Secret::new("another one"));
    credentials.set_admin_token(&one);
    let principal = credentials.recognise(one.reveal()).expect("it is known");
    assert!(authorize(&principal, Right::Administer, Resource::Server).is_ok() && credentials.has_tokens());
    credentials.set_admin_token(&two);
    assert!(authorize(&principal, Right::Administer, Resource::Server).is_err(), "the first has ended");
    assert!(credentials.recognise(one.reveal()).is_err() && credentials.recognise(two.reveal()).is_ok());
    assert!(credentials.list(None).is_empty(), "it is not in the log");
}

#[test]
fn terms_that_cannot_be_are_named() {
    let clock = Clock::still();
    let credentials = none(clock);
    let refused = |terms| credentials.draft("admin", terms).err().map(|error| error.to_string());
    let token = || terms(CredentialKind::Token, "admin:*");
    let key = || terms(CredentialKind::AccessKey, "admin:*");
    let name = |name: &str| refused(CredentialTerms { name: name.to_owned(), ..token() });
    let rule = "name must have 1 to 128 bytes and no control characters";
    assert_eq!(name(""), Some(format!("{rule}. bytes=`0`")));
    assert_eq!(name(&"x".repeat(129)), Some(format!("{rule}. bytes=`129`")));
    assert!(name("a\nb").is_some() && name("a b").is_none());
    let past = refused(CredentialTerms { expires: Some(clock.now()), ..token() });
    assert_eq!(past.as_deref(), Some("expires must be in the future"));
    let account = |terms| refused(CredentialTerms { account: Some("12".to_owned()), ..terms });
    assert_eq!(account(key()).as_deref(), Some("account must be twelve digits. value=`12`"));
    assert_eq!(account(token()).as_deref(), Some("only an access key has an account"));
}

#[test]
fn a_secret_is_not_shown_by_accident() {
    let credentials = none(Clock::still());
    let new = made(&credentials, terms(CredentialKind::AccessKey, "admin:*"));
    let key = credentials.access_key(&new.report.id).expect("a key");
    for shown in [format!("{new:?}"), format!("{key:?}")] {
        assert!(!shown.contains(new.secret.reveal()), "{shown}");
    }
}

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn user(name: &str, password: Option<&str>) -> CredentialTerms {
    let password = password.map(Secret::new);
    CredentialTerms { name: name.to_owned(), password, ..terms(CredentialKind::User, "publish:orders-*") }
}

#[tokio::test]
async fn a_user_is_recognised_by_name_and_password() {
    let credentials = none(Clock::start());
    let no_user = credentials.recognise_user(HERE, "alice", "a good password", true).await;
    assert_eq!(no_user.err(), Some(NotRecognised::Password));
    let alice = made(&credentials, user("alice", Some("a good password")));
    assert_eq!((&*alice.report.id, alice.secret.reveal()), ("usr_alice", ""), "it is not told again");
    assert!(credentials.has_tokens());
    for _ in 0..2 {
        let who =
            credentials.recognise_user(HERE, "alice", "a good password", true).await.expect("it is right");
        assert_eq!((who.name(), who.grants().map(Grants::as_str)), ("alice", Some("publish:orders-*")));
        for (name, password) in [
            ("alice", "a good passwore"),
            ("alice", ""),
            ("bob", "a good password"),
            ("", ""),
            ("usr_alice", "x"),
        ] {
            let wrong = credentials.recognise_user(HERE, name, password, true).await;
            assert_eq!(wrong.err(), Some(NotRecognised::Password), "{name} {password}");
        }
    }
    let bob = made(&credentials, user("bob", None));
    assert_eq!(bob.secret.reveal().len(), 32);
    assert!(credentials.recognise_user(HERE, "bob", bob.secret.reveal(), true).await.is_ok());
    assert!(credentials.recognise("a good password").is_err(), "it is no token");
    assert!(credentials.list(Some(CredentialKind::User)).iter().all(|one| one.last_used.is_some()));
    let again = credentials.draft("admin", user("alice", None)).err();
    assert_eq!(again.map(|error| error.to_string()).as_deref(), Some("user alice already exists"));
    let key = made(&credentials, terms(CredentialKind::AccessKey, "admin:*"));
    let other = credentials.draft_password(&key.report.id, None).err();
    assert_eq!(other, Some(CredentialRefusal::PasswordOfOther));
}

#[tokio::test]
async fn a_new_password_replaces_the_old_one_at_once() {
    let clock = Clock::start();
    let credentials = none(clock);
    made(&credentials, user("alice", Some("the first one")));
    let who = credentials.recognise_user(HERE, "alice", "the first one", true).await.expect("it is right");
    assert!(credentials.recognise_user(HERE, "alice", "the second one", true).await.is_err());
    let draft = credentials.draft_password("usr_alice", Some(Secret::new("the second one"))).expect("a user");
    let report = credentials.add(clock.now(), draft).report;
    assert_eq!(report.grants.as_str(), "publish:orders-*", "the rights stay");
    who.ended(clock).await;
    assert!(credentials.recognise_user(HERE, "alice", "the first one", true).await.is_err());
    assert!(credentials.recognise_user(HERE, "alice", "the second one", true).await.is_ok());
    credentials.end("usr_alice");
    assert!(credentials.recognise_user(HERE, "alice", "the second one", true).await.is_err());
    let absent = credentials.draft_password("usr_alice", None).err();
    assert_eq!(absent, Some(CredentialRefusal::NoSuchCredential { id: "usr_alice".to_owned() }));
}

#[tokio::test]
async fn an_expired_user_is_not_accepted() {
    let clock = Clock::still();
    let credentials = none(clock);
    let expires = Some(clock.now() + DAY);
    made(&credentials, CredentialTerms { expires, ..user("alice", Some("a good password")) });
    assert!(credentials.known_user("alice").principal.is_some());
    clock.advance(DAY);
    let expired = credentials.recognise_user(HERE, "alice", "a good password", true).await;
    assert_eq!(expired.err(), Some(NotRecognised::ExpiredUser));
    assert!(credentials.known_user("alice").principal.is_none() && !credentials.has_tokens());
}

#[test]
fn a_name_that_no_user_has_looks_like_any_other() {
    let credentials = none(Clock::still()).with_secret([9; 32]);
    made(&credentials, user("alice", Some("a good password")));
    let (alice, bob) = (credentials.known_user("alice"), credentials.known_user("bob"));
    assert!(alice.principal.is_some() && bob.principal.is_none());
    assert_eq!(alice.verifier.iterations, bob.verifier.iterations);
    assert_eq!(bob.verifier, credentials.known_user("bob").verifier, "it is the same each time");
    assert_ne!(bob.verifier.salt, credentials.known_user("carol").verifier.salt);
    let other = none(Clock::still()).with_secret([8; 32]);
    assert_ne!(bob.verifier.salt, other.known_user("bob").verifier.salt, "others cannot work it out");
}

#[test]
fn users_that_cannot_be_are_named() {
    let credentials = none(Clock::still());
    let refused = |terms| credentials.draft("admin", terms).err().map(|error| error.to_string());
    let rule = "name of a user must be of visible ASCII characters, and have no colon";
    assert_eq!(refused(user("a:b", None)), Some(format!("{rule}. value=`a:b`")));
    let rule = "password must have 8 to 256 characters of printable ASCII";
    assert_eq!(refused(user("alice", Some("short"))), Some(format!("{rule}. bytes=`5`")));
    let password = Some(Secret::new("a good password"));
    let of_token = CredentialTerms { password, ..terms(CredentialKind::Token, "admin:*") };
    assert_eq!(refused(of_token).as_deref(), Some("only a user has a password"));
}
