//! Callers with some rights: what they may do, and what they see.

use forebay_core::settings::{OnEnd, OnExhausted};

use super::*;
use crate::access::AUDIT_STREAM;

fn named(name: &str) -> StreamName {
    StreamName::parse(name).expect("a name")
}

fn with(owner: &Caller, grants: &str) -> Caller {
    owner.broker().enter(Principal::new("ci", grants.parse().expect("grants")), None)
}

async fn some_streams(owner: &Caller) {
    for (stream, of) in
        [("mail", "team"), ("orders-eu", "emails"), ("orders-eu", "invoices"), ("orders-us", "emails")]
    {
        let of = GroupName::parse(of).expect("a name");
        owner.create_group(named(stream), of, |_| {}).await.expect("it is created");
    }
}

async fn streams_of(caller: &Caller, page: usize) -> Vec<String> {
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let list = caller.streams(after, page).await.expect("a list");
        assert!(list.items.len() <= page);
        names.extend(list.items.iter().map(|stream| stream.name.to_string()));
        after = list.next;
        if after.is_none() {
            return names;
        }
    }
}

async fn groups_of(caller: &Caller, page: usize) -> Vec<String> {
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let list = caller.groups(None, after, page).await.expect("a list");
        names.extend(list.items.iter().map(|group| format!("{}/{}", group.stream, group.name)));
        after = list.next;
        if after.is_none() {
            return names;
        }
    }
}

#[tokio::test]
async fn lists_show_only_what_may_be_seen() {
    let (owner, _running) = open().await;
    some_streams(&owner).await;
    for page in [1, 2, 100] {
        assert_eq!(streams_of(&owner, page).await, ["mail", "orders-eu", "orders-us"]);
        assert_eq!(streams_of(&with(&owner, "publish:orders-*"), page).await, ["orders-eu", "orders-us"]);
        assert_eq!(
            streams_of(&with(&owner, "consume:*/team"), page).await,
            ["mail", "orders-eu", "orders-us"]
        );
        assert_eq!(streams_of(&with(&owner, "read:nothing"), page).await, [""; 0]);
        let emails = with(&owner, "consume:orders-*/emails");
        assert_eq!(groups_of(&emails, page).await, ["orders-eu/emails", "orders-us/emails"]);
        assert_eq!(groups_of(&with(&owner, "view:mail"), page).await, ["mail/team"]);
    }
    let emails = with(&owner, "consume:orders-*/emails");
    let report = emails.stream(named("orders-eu")).await.expect("it is seen");
    assert_eq!(report.groups, [GroupName::parse("emails").expect("a name")], "other groups are hidden");
    let listed = emails.streams(None, 9).await.expect("a list").items;
    assert!(listed.iter().all(|stream| stream.groups.len() == 1));
    let of_stream = emails.groups(Some(named("orders-eu")), None, 9).await.expect("a list").items;
    assert_eq!(of_stream.len(), 1);
}

/// More names than the task looks at in one turn.
#[tokio::test]
async fn a_list_goes_on_after_many_names_that_are_hidden() {
    let (owner, _running) = open().await;
    for n in 0..2_100 {
        owner.create_stream(named(&format!("hidden-{n:04}")), |_| {}).await.expect("it is created");
    }
    owner.create_group(named("seen"), group(), |_| {}).await.expect("it is created");
    let caller = with(&owner, "view:seen");
    assert_eq!(streams_of(&caller, 5).await, ["seen"]);
    assert_eq!(groups_of(&caller, 5).await, ["seen/team"]);
    assert_eq!(groups_of(&owner, 5).await, ["seen/team"]);
}

#[tokio::test]
async fn without_a_right_a_thing_is_the_same_whether_it_exists_or_not() {
    let (owner, _running) = open().await;
    some_streams(&owner).await;
    let caller = with(&owner, "worker:orders-*");
    for exists in ["mail", "nowhere"] {
        let denied = |right, what: &str| {
            CallError::Denied(Denied { who: "ci".into(), action: right, what: what.to_owned() })
        };
        let both = format!("{exists}/team");
        assert_eq!(caller.stream(named(exists)).await.err(), Some(denied(Right::Look, exists)));
        assert_eq!(caller.group(named(exists), group()).await.err(), Some(denied(Right::Look, &both)));
        let received = caller.receive(named(exists), group(), Receive::default()).await;
        assert_eq!(received.err(), Some(denied(Right::Consume, &both)));
        let deleted = caller.delete_stream(named(exists), true).await;
        assert_eq!(deleted, Err(denied(Right::Delete, exists)));
        assert_eq!(
            caller.groups(Some(named(exists)), None, 1).await.err(),
            Some(denied(Right::Look, exists))
        );
    }
}

#[tokio::test]
async fn a_caller_does_what_its_grants_say_and_nothing_else() {
    let (owner, _running) = open().await;
    create(&owner, |_| {}).await;
    let producer = with(&owner, "publish:work");
    for _ in 0..2 {
        publish(&producer, [plain("x")]).await.expect("it may publish, and go on publishing");
    }
    let name = Arc::new(stream());
    for _ in 0..3 {
        let batch = batch([plain("y")]);
        let room = producer.broker().room(&name, &batch).await;
        producer
            .publish(room, name.clone(), batch, PublishOptions::default())
            .await
            .expect("the same handle");
    }
    let other = Arc::new(named("other"));
    let of_other = batch([plain("z")]);
    let room = producer.broker().room(&other, &of_other).await;
    let refused = producer.publish(room, other, of_other, PublishOptions::default()).await;
    assert!(matches!(refused, Err(PublishError::Denied(_))), "{refused:?}");
    assert!(producer.read(stream(), Seq(1), 1).await.is_err(), "publishing is not reading");
    let consumer = with(&owner, "consume:work/team");
    assert_eq!(receive(&consumer, 2, SOON).await.len(), 2);
    assert!(publish(&consumer, [plain("x")]).await.is_err());
    assert!(consumer.pause(stream(), group(), true).await.is_err());
    let operator = with(&owner, "operator:work");
    operator.pause(stream(), group(), true).await.expect("it may");
    assert!(operator.server().await.is_err(), "the server is more than one stream");
    let resubmitted = operator.resubmit(stream(), group(), Seq(1), batch([plain("x")])).await;
    assert!(matches!(resubmitted, Err(CallError::Denied(denied)) if denied.action == Right::Publish));
    assert!(with(&owner, "monitor:*").server().await.is_ok());
}

fn is_theirs_denied(result: Result<(), CallError>) -> bool {
    matches!(result, Err(CallError::Denied(denied)) if denied.what == "theirs")
}

#[tokio::test]
async fn settings_cannot_send_messages_where_the_caller_may_not_publish() {
    let (owner, _running) = open().await;
    create(&owner, |_| {}).await;
    let caller = with(&owner, "configure:*,publish:mine");
    let to = |name: &str| {
        let to = OnExhausted::Move(named(name));
        move |settings: &mut GroupSettings| settings.on_exhausted = to.clone()
    };
    owner.create_stream(named("theirs"), |_| {}).await.expect("it is created");
    owner.create_stream(named("mine"), |_| {}).await.expect("it is created");
    assert!(is_theirs_denied(caller.change_group(stream(), group(), to("theirs")).await));
    let second = GroupName::parse("second").expect("a name");
    assert!(is_theirs_denied(caller.create_group(stream(), second.clone(), to("theirs")).await.map(drop)));
    let bundle = Bundle::beside(stream()).group(stream(), second.clone(), to("theirs"));
    assert!(is_theirs_denied(caller.commit(bundle).await.map(drop)));
    caller.create_group(stream(), second, to("mine")).await.expect("it may publish there");
    caller.change_group(stream(), group(), to("mine")).await.expect("it may publish there");
    owner.change_group(stream(), group(), to("theirs")).await.expect("the owner may");
    let other = caller.change_group(stream(), group(), |settings| settings.key_batch = 7).await;
    assert_eq!(other, Ok(()), "a target that stays is not asked about");
    let ends: [fn(&mut GroupSettings) -> &mut OnEnd; 2] =
        [|settings| &mut settings.on_expired, |settings| &mut settings.on_dropped];
    for end in ends {
        let to = |name: &str| {
            let to = OnEnd::Move(named(name));
            move |settings: &mut GroupSettings| *end(settings) = to.clone()
        };
        assert!(is_theirs_denied(caller.change_group(stream(), group(), to("theirs")).await));
        caller.change_group(stream(), group(), to("mine")).await.expect("it may publish there");
    }
}

#[tokio::test]
async fn every_part_of_changes_that_are_made_together_needs_its_right() {
    let (owner, _running) = open().await;
    create(&owner, |_| {}).await;
    publish_some(&owner, 1).await;
    let receipt = receive(&owner, 1, SOON).await.remove(0).0;
    let settle =
        |verb: Verb| Bundle::beside(stream()).settle(stream(), group(), vec![receipt.clone()], verb.into());
    let publish = |bundle: Bundle, to: &str| {
        bundle.publish(Arc::new(named(to)), batch([plain("x")]), PublishOptions::default())
    };
    let what = |result: Result<Committed, CallError>| match result {
        Err(CallError::Denied(denied)) => format!("{} {}", denied.action, denied.what),
        other => panic!("it is denied: {other:?}"),
    };
    let caller = with(&owner, "consume:work/team,publish:out");
    let both = publish(publish(settle(Verb::Ack), "out"), "theirs");
    assert_eq!(what(caller.commit(both).await), "publish theirs");
    assert_eq!(what(caller.commit(settle(Verb::Move(named("theirs")))).await), "publish theirs");
    let other = with(&owner, "consume:work/others,publish:*");
    assert_eq!(what(other.commit(publish(settle(Verb::Ack), "out")).await), "consume work/team");
    let delete = Bundle::beside(stream()).delete(stream());
    assert_eq!(what(caller.commit(publish(delete, "out")).await), "delete work");
    assert!(owner.stream(named("out")).await.is_err(), "nothing was done");
    assert_eq!(in_flight(&owner).await, 1);
    caller.commit(publish(settle(Verb::Ack), "out")).await.expect("it has both rights");
}

#[tokio::test]
async fn a_message_cannot_be_moved_where_the_caller_may_not_publish() {
    let (owner, _running) = open().await;
    create(&owner, |_| {}).await;
    owner.create_stream(named("theirs"), |_| {}).await.expect("it is created");
    publish_some(&owner, 1).await;
    let receipt = receive(&owner, 1, SOON).await.remove(0).0;
    let caller = with(&owner, "consume:work/team");
    let moved = Verb::Move(named("theirs"));
    let settled = caller.settle(stream(), group(), &[receipt], moved.clone().into()).await;
    assert!(is_theirs_denied(settled.map(drop)));
    let mut consumer = caller.subscribe(stream(), group(), "worker", 1).await.expect("it may");
    assert!(is_theirs_denied(consumer.check(&moved.clone().into())));
    let request = SettleRequest { ticket: 1, leases: Vec::new(), settlement: moved.into() };
    assert!(is_theirs_denied(consumer.settle(vec![request])));
    assert_eq!(in_flight(&owner).await, 1, "it is held still");
}

#[tokio::test]
async fn a_right_on_groups_creates_no_stream() {
    let (owner, _running) = open().await;
    let caller = with(&owner, "configure:work/*");
    let refused = caller.create_group(stream(), group(), |_| {}).await;
    assert!(matches!(&refused, Err(CallError::Denied(denied)) if denied.what == "work"), "{refused:?}");
    assert!(owner.stream(stream()).await.is_err(), "there is no stream");
    owner.create_stream(stream(), |_| {}).await.expect("it is created");
    caller.create_group(stream(), group(), |_| {}).await.expect("now it may");
}

#[tokio::test]
async fn notes_are_a_part_of_the_stream_beside_which_they_are_kept() {
    let (owner, _running) = open().await;
    let caller = with(&owner, "configure:work");
    let note = || arranging::wish(b"k", Some(b"v"));
    caller.commit(Bundle::beside(stream()).note(note())).await.expect("it may");
    let refused = caller.commit(Bundle::beside(named("other")).note(note())).await;
    assert!(matches!(refused, Err(CallError::Denied(_))), "{refused:?}");
    assert!(caller.notes(Door::TEST, Vec::new(), None, 9).await.is_err(), "all notes are the door's own");
}

#[tokio::test]
async fn credentials_outlive_the_server_until_they_are_revoked() {
    use crate::credentials::{CredentialKind, CredentialTerms};
    let engine = engine();
    let config = || BrokerConfig::new([7; 32]);
    let (owner, running) = open_with(engine.another(), config()).await;
    let terms = |grants: &str| CredentialTerms {
        kind: CredentialKind::Token,
        name: "ci".to_owned(),
        grants: grants.parse().expect("grants"),
        expires: None,
        limits: None,
        account: None,
        password: None,
    };
    let new = owner.create_credential(terms("worker:work")).await.expect("it is created");
    let other = owner.create_credential(terms("admin:*")).await.expect("it is created");
    owner.revoke_credential(&other.report.id).await.expect("it is revoked");
    let again = owner.revoke_credential(&other.report.id).await;
    assert!(matches!(again, Err(CallError::Credential(_))), "{again:?}");
    owner.broker().owner().stop();
    running.await.expect("it ends").expect("in peace");

    let (owner, _running) = open_with(engine.another(), config()).await;
    let credentials = owner.broker().credentials().clone();
    let principal = credentials.recognise(new.secret.reveal()).expect("it is known");
    assert!(credentials.recognise(other.secret.reveal()).is_err());
    let caller = owner.broker().enter(principal, None);
    assert!(caller.create_credential(terms("admin:*")).await.is_err(), "only administrators may");
    assert!(caller.credentials(None).is_err() && caller.revoke_credential(&new.report.id).await.is_err());
    let listed = owner.credentials(Some(CredentialKind::Token)).expect("a list");
    assert_eq!(listed.iter().map(|one| &*one.id).collect::<Vec<_>>(), [&*new.report.id]);
    assert!(listed[0].last_used.is_some());
    let (name, stream) = (Arc::new(stream()), batch([plain("x")]));
    let room = caller.broker().room(&name, &stream).await;
    caller.publish(room, name.clone(), stream, PublishOptions::default()).await.expect("it may");
    owner.revoke_credential(&new.report.id).await.expect("it is revoked");
    let more = batch([plain("x")]);
    let room = caller.broker().room(&name, &more).await;
    let refused = caller.publish(room, name.clone(), more, PublishOptions::default()).await;
    assert!(matches!(refused, Err(PublishError::Denied(_))), "also on a handle that has published before");
}

#[tokio::test]
async fn administrative_calls_are_recorded_with_their_outcome() {
    use crate::audit::AuditOutcome;
    use crate::credentials::{CredentialKind, CredentialTerms};
    let (owner, _running) = open().await;
    let mut queue = owner.broker().audit().begin().expect("the first writer");
    let second = owner.broker().audit().begin().expect("the second writer");
    assert!(owner.broker().audit().begin().is_none(), "there are two writers");
    let from = Some(([10, 0, 0, 7], 4_711).into());
    let principal = Principal::new("alice", "operator:work,publish:work".parse().expect("grants"));
    let alice = owner.broker().enter(principal, from);
    let mut recorded = || {
        let record = queue.try_recv().expect("a record");
        assert!(queue.try_recv().is_err(), "one record for each call");
        assert_eq!((&*record.who, record.from), ("alice", from));
        (record.action, record.what, record.outcome)
    };
    let done = |right, what: &str| (right, what.to_owned(), AuditOutcome::Done);
    let denied = |right, what: &str| (right, what.to_owned(), AuditOutcome::Denied);
    alice.create_group(stream(), group(), |_| {}).await.expect("it may");
    assert_eq!(recorded(), done(Right::Create, "work/team"));
    alice.pause(stream(), group(), true).await.expect("it may");
    assert_eq!(recorded(), done(Right::Operate, "work/team"));
    assert!(alice.delete_stream(named("other"), true).await.is_err());
    assert_eq!(recorded(), denied(Right::Delete, "other"));
    let to = OnExhausted::Move(named("other"));
    let moved = alice.change_group(stream(), group(), move |settings| settings.on_exhausted = to).await;
    assert!(moved.is_err());
    assert_eq!(recorded(), denied(Right::Change, "work/team"));
    assert!(alice.resubmit(stream(), group(), Seq(1), batch([plain("x")])).await.is_err());
    let (right, what, outcome) = recorded();
    assert_eq!((right, &*what), (Right::Triage, "work/team"));
    assert!(matches!(&outcome, AuditOutcome::Refused(why) if why.contains("parked")), "{outcome:?}");
    let terms = CredentialTerms {
        kind: CredentialKind::Token,
        name: "ci".to_owned(),
        grants: "publish:a".parse().expect("grants"),
        expires: None,
        limits: None,
        account: None,
        password: None,
    };
    assert!(alice.create_credential(terms.clone()).await.is_err());
    assert_eq!(recorded(), denied(Right::Administer, "the server"));
    // Looking, publishing and consuming leave no record.
    publish(&alice, [plain("x")]).await.expect("it may");
    alice.group(stream(), group()).await.expect("it may");
    assert!(alice.receive(stream(), group(), Receive::default()).await.is_err());
    assert!(queue.try_recv().is_err());
    let new = owner.create_credential(terms).await.expect("it is created");
    let record = queue.recv().await.expect("a record");
    assert_eq!(record.what, format!("create token {} ci publish:a", new.report.id));
    assert!(!format!("{record:?}").contains(new.secret.reveal()));
    // A caller that goes away leaves its outcome open.
    let mut going = Box::pin(owner.delete_stream(stream(), true));
    let polled = poll_fn(|cx| std::task::Poll::Ready(going.as_mut().poll(cx).is_pending())).await;
    assert!(polled, "it waits for the disk");
    drop(going);
    assert_eq!(queue.recv().await.map(|record| record.outcome), Some(AuditOutcome::Unknown));
    assert_eq!(second.len(), 8, "every record goes to both");
    assert_eq!(owner.broker().audit().lost(), 0);
}

#[tokio::test]
async fn the_audit_is_written_by_the_server_and_read_by_administrators() {
    let (owner, _running) = open().await;
    let audit = StreamName::of_system(AUDIT_STREAM).expect("a name");
    let server = owner.broker().enter(Principal::server(), None);
    server.create_stream(audit.clone(), |_| {}).await.expect("it is created");
    let mut batch = BatchBuilder::with_capacity(1, 10);
    batch.push(&Message { body: b"{}", ..Message::default() });
    let batch = batch.build();
    let publish = async |caller: &Caller| {
        let stream = Arc::new(audit.clone());
        let room = caller.broker().room(&stream, &batch).await;
        caller.publish(room, stream, batch.clone(), PublishOptions::default()).await
    };
    publish(&server).await.expect("it is stored");
    for (caller, reads) in [
        (owner.clone(), true),
        (with(&owner, "admin:*"), true),
        (with(&owner, "admin:$*"), false),
        (with(&owner, "read+publish+configure+operate:$*,operator:*"), false),
    ] {
        let who = caller.principal().clone();
        assert_eq!(caller.read(audit.clone(), Seq(1), 1).await.is_ok(), reads, "{who:?}");
        assert_eq!(caller.stream(audit.clone()).await.is_ok(), reads, "{who:?}");
        assert_eq!(caller.sees_stream(&audit), reads, "{who:?}");
        assert!(matches!(publish(&caller).await, Err(PublishError::Denied(_))), "{who:?}");
        let denied = |done: Result<(), CallError>| matches!(done, Err(CallError::Denied(_)));
        assert!(denied(caller.delete_stream(audit.clone(), true).await), "{who:?}");
        assert!(denied(caller.change_stream(audit.clone(), |_| {}).await), "{who:?}");
        assert!(denied(caller.purge_ready(audit.clone()).await.map(drop)), "{who:?}");
        assert!(denied(caller.create_group(audit.clone(), group(), |_| {}).await.map(drop)), "{who:?}");
    }
}
