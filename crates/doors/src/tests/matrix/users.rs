//! Users with passwords, through the native door and the Kurrent door: recognised, refused in every way in which they
//! can be wrong, and never a burden on others.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::{Request, StatusCode};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use forebay_broker::api::{CredentialKind, CredentialTerms, Secret};
use http_body_util::Full;

use super::client::over_http1;
use super::{Credential, Needs, Stage, kurrent, native};

const PASSWORD: &str = "correct horse: battery";

async fn status(address: SocketAddr, path: &str, user: &str, password: &str) -> StatusCode {
    let basic = BASE64_STANDARD.encode(format!("{user}:{password}"));
    let request = Request::get(path).header("host", "localhost");
    let request = request.header("authorization", format!("Basic {basic}"));
    over_http1(address, request.body(Full::new(Bytes::new())).expect("a request")).await.status
}

async fn with_user(expires: Option<Duration>) -> (Stage, SocketAddr) {
    let of = Stage::open(CredentialKind::Token, Needs::Grants("view:work")).await;
    let address = native::prepare(&of).await;
    let terms = CredentialTerms {
        kind: CredentialKind::User,
        name: "alice".to_owned(),
        grants: "view:work".parse().expect("grants"),
        expires: expires.map(|time| of.broker.clock().now() + time),
        limits: None,
        account: None,
        password: Some(Secret::new(PASSWORD)),
    };
    of.owner.create_credential(terms).await.expect("it is created");
    (of, address)
}

#[tokio::test]
async fn a_user_has_the_rights_of_its_grants() {
    let (of, address) = with_user(None).await;
    for _ in 0..2 {
        assert_eq!(status(address, "/streams/work", "alice", PASSWORD).await, StatusCode::OK);
        assert_eq!(status(address, "/streams/other", "alice", PASSWORD).await, StatusCode::FORBIDDEN);
    }
    for (user, password) in
        [("alice", "correct horse"), ("alice", ""), ("bob", PASSWORD), ("", PASSWORD), ("alice", "fby_x")]
    {
        // Wrong credentials in a row would slow each other down.
        of.broker.advance(Duration::from_secs(120)).await;
        let status = status(address, "/streams/work", user, password).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{user} {password}");
    }
    // A token as the password is taken with any name.
    let (_, token) = of.credential(Credential::Right).expect("a token");
    assert_eq!(status(address, "/streams/work", "any", &token).await, StatusCode::OK);
    // The same on the port for KurrentDB.
    let kurrent = kurrent::prepare(&of).await;
    of.broker.advance(Duration::from_secs(120)).await;
    assert_eq!(status(kurrent, "/health/live", "alice", PASSWORD).await, StatusCode::NO_CONTENT);
    assert_eq!(status(kurrent, "/health/live", "admin", &token).await, StatusCode::NO_CONTENT);
    assert_eq!(status(kurrent, "/health/live", "alice", "changeit").await, StatusCode::UNAUTHORIZED);
    of.broker.stop();
}

#[tokio::test]
async fn a_user_ends_with_its_password_its_time_and_its_revocation() {
    let (of, address) = with_user(Some(Duration::from_secs(3_600))).await;
    let look = async |password: &str| {
        of.broker.advance(Duration::from_secs(120)).await;
        status(address, "/streams/work", "alice", password).await
    };
    assert_eq!(look(PASSWORD).await, StatusCode::OK);
    let new = of.owner.change_password("usr_alice", Some(Secret::new("another password"))).await;
    assert_eq!(new.expect("it is a user").secret.reveal(), "");
    assert_eq!(look(PASSWORD).await, StatusCode::UNAUTHORIZED);
    assert_eq!(look("another password").await, StatusCode::OK);
    let drawn = of.owner.change_password("usr_alice", None).await.expect("it is a user").secret;
    assert_eq!(look(drawn.reveal()).await, StatusCode::OK);
    of.broker.advance(Duration::from_secs(3_600)).await;
    assert_eq!(look(drawn.reveal()).await, StatusCode::UNAUTHORIZED, "it has expired");
    of.owner.revoke_credential("usr_alice").await.expect("it is revoked");
    assert_eq!(look(drawn.reveal()).await, StatusCode::UNAUTHORIZED);
    of.broker.stop();
}

#[tokio::test]
async fn a_flood_of_wrong_passwords_does_not_hold_up_a_client_that_is_known() {
    let (of, address) = with_user(None).await;
    assert_eq!(status(address, "/streams/work", "alice", PASSWORD).await, StatusCode::OK);
    let guess = |n: usize| async move {
        status(address, "/streams/work", "alice", &format!("guess number {n}")).await
    };
    let mut guesses = tokio::task::JoinSet::new();
    for n in 0..32 {
        guesses.spawn(guess(n));
    }
    // Its password is not checked anew, so it does not wait for the guesses.
    for _ in 0..20 {
        assert_eq!(status(address, "/streams/work", "alice", PASSWORD).await, StatusCode::OK);
    }
    let answers = guesses.join_all().await;
    let count = |status| answers.iter().filter(|answer| **answer == status).count();
    let (wrong, busy) = (count(StatusCode::UNAUTHORIZED), count(StatusCode::SERVICE_UNAVAILABLE));
    assert_eq!(wrong + busy, answers.len(), "{answers:?}");
    assert!(wrong >= 4 && busy > 0, "few are checked, and the others refused: {wrong} and {busy}");
    of.broker.stop();
}
