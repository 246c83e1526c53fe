//! Tokens of an issuer, through the native door: recognised, with the rights of their claims, and refused in every way
//! in which they can be wrong.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{Request, StatusCode};
use bytes::Bytes;
use forebay_broker::api::CredentialKind;
use http_body_util::Full;
use serde_json::json;

use super::client::over_http1;
use super::{Needs, Stage, native};
use crate::kit::jwt::Jwt;
use crate::kit::jwt::tests::{AUDIENCE, ISSUER, Signer, claims, key_set, wrong_tokens};

#[tokio::test]
async fn tokens_of_an_issuer_have_the_rights_of_their_claims() {
    let of = Stage::open(CredentialKind::Token, Needs::Nothing).await;
    let address = native::prepare(&of).await;
    let (clock, signer) = (of.broker.clock(), Signer::ed25519());
    let (keys, rights) = (key_set(&[signer.published("a")]), "sub=billing view:work\n");
    let status = async |token: &str, path: &str| {
        let request = Request::get(path).header("host", "localhost");
        let request = request.header("authorization", format!("Bearer {token}"));
        over_http1(address, request.body(Full::new(Bytes::new())).expect("a request")).await.status
    };
    let good = signer.token("a", &claims(clock, json!({})));
    assert_eq!(status(&good, "/streams/work").await, StatusCode::UNAUTHORIZED, "there is no issuer");
    let jwt = Jwt::new(clock, ISSUER, AUDIENCE, &keys, rights).expect("an issuer");
    of.broker.credentials().set_issuer(Arc::new(jwt.clone()));
    assert_eq!(status(&good, "/streams/work").await, StatusCode::OK);
    assert_eq!(status(&good, "/streams/other").await, StatusCode::FORBIDDEN);
    let kinds = wrong_tokens(clock, &signer, "a").len();
    for kind in 0..kinds {
        // Wrong credentials in a row would slow each other down.
        of.broker.advance(Duration::from_secs(120)).await;
        let (what, token) = wrong_tokens(clock, &signer, "a").swap_remove(kind);
        assert_eq!(status(&token, "/streams/work").await, StatusCode::UNAUTHORIZED, "{what}");
    }
    let good = signer.token("a", &claims(clock, json!({})));
    assert_eq!(status(&good, "/streams/work").await, StatusCode::OK);
    // The clocks may differ by a minute, and then the token ends.
    of.broker.advance(Duration::from_secs(655)).await;
    assert_eq!(status(&good, "/streams/work").await, StatusCode::OK);
    of.broker.advance(Duration::from_secs(10)).await;
    assert_eq!(status(&good, "/streams/work").await, StatusCode::UNAUTHORIZED);
    let good = signer.token("a", &claims(clock, json!({})));
    assert_eq!(status(&good, "/streams/work").await, StatusCode::OK);
    jwt.replace_rights("sub=another view:work\n").expect("they are good");
    assert_eq!(status(&good, "/streams/work").await, StatusCode::UNAUTHORIZED);
    // Tokens of the server itself are recognised beside them.
    let (_, own) = of.credential(super::Credential::Right).expect("a token");
    assert_eq!(status(&own, "/streams/work").await, StatusCode::OK);
    of.broker.stop();
}
