//! The dashboard with credentials: signing in and out, and pages that show what the person may see.

use std::net::SocketAddr;

use axum::http::{Request, StatusCode};
use bytes::Bytes;
use forebay_broker::api::{CredentialKind, Status};
use http_body_util::Full;

use super::client::{Answer, over_http1};
use super::native::prepare;
use super::{Credential, Needs, Stage, group, stream};

const HTML: (&str, &str) = ("accept", "text/html,*/*");
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// A server that asks for a token, and a browser.
struct Visit {
    of: Stage,
    address: SocketAddr,
    cookie: Option<String>,
}

impl Visit {
    async fn open(grants: &'static str) -> Visit {
        let of = Stage::open(CredentialKind::Token, Needs::Grants(grants)).await;
        let address = prepare(&of).await;
        Visit { of, address, cookie: None }
    }

    fn token(&self, credential: Credential) -> String {
        self.of.credential(credential).expect("a credential").1
    }

    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        // Not a name that the server was told of.
        let mut request = Request::builder().method(method).uri(path).header("host", "queue.example");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(cookie) = &self.cookie {
            request = request.header("cookie", format!("theme=dark; {cookie}"));
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).expect("a request");
        over_http1(self.address, request).await
    }

    async fn page(&self, path: &str) -> (StatusCode, String) {
        let answer = self.ask("GET", path, &[HTML], "").await;
        (answer.status, text(&answer))
    }

    /// Signs in as the form of the page does.
    async fn sign_in(&mut self, token: &str, to: &str) -> Answer {
        let own = ("origin", "http://queue.example");
        let body = format!("token={token}&to={}", to.replace('/', "%2F"));
        let answer = self.ask("POST", "/ui/sign-in", &[FORM, own], &body).await;
        if let Some(cookie) = answer.headers.get("set-cookie") {
            let text = cookie.to_str().expect("text");
            assert!(text.contains("HttpOnly") && text.contains("SameSite=Strict"), "{text}");
            assert!(!text.contains(token), "the cookie is not the token");
            self.cookie = text.split(';').next().map(str::to_owned);
        }
        answer
    }
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

#[tokio::test]
async fn a_person_signs_in_with_a_token_and_out_again() {
    let mut visit = Visit::open("operate:work").await;
    for path in ["/", "/ui/streams"] {
        let (status, page) = visit.page(path).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        assert!(page.contains("name=\"token\"") && !page.contains("work"), "{page}");
    }
    let updates = visit.ask("GET", "/", &[("accept", "text/event-stream")], "").await;
    assert_eq!(updates.status, StatusCode::UNAUTHORIZED);
    assert_eq!(updates.headers["content-type"], "application/problem+json");
    assert_eq!(visit.page("/ui/sign-in").await.0, StatusCode::OK);
    for wrong in [Credential::Wrong, Credential::Expired, Credential::Revoked] {
        let refused = visit.sign_in(&visit.token(wrong), "/").await;
        assert_eq!((refused.status, visit.cookie.as_deref()), (StatusCode::UNAUTHORIZED, None));
        assert!(text(&refused).contains("not accepted"), "{}", text(&refused));
        assert!(!text(&refused).contains(&visit.token(wrong)), "the page does not repeat the token");
    }
    let token = visit.token(Credential::Right);
    let signed_in = visit.sign_in(&token, "/ui/streams").await;
    assert_eq!(signed_in.status, StatusCode::SEE_OTHER);
    assert_eq!(signed_in.headers["location"], "../ui/streams");
    let (status, page) = visit.page("/ui/streams").await;
    assert_eq!(status, StatusCode::OK);
    assert!(page.contains("Signed in as") && page.contains(">ci<"), "{page}");
    let before = visit.cookie.clone();
    let out = visit.ask("POST", "/ui/sign-out", &[("origin", "http://queue.example")], "").await;
    assert_eq!(out.headers["location"], "../ui/sign-in");
    assert!(out.headers["set-cookie"].to_str().expect("text").contains("Max-Age=0"));
    visit.cookie = before;
    assert_eq!(visit.page("/").await.0, StatusCode::UNAUTHORIZED, "the session has ended on the server");
    for elsewhere in ["//evil.example", "https://evil.example", "/streams"] {
        let signed_in = visit.sign_in(&token, elsewhere).await;
        assert_eq!(signed_in.headers["location"], "../", "{elsewhere}");
    }
    assert_eq!(visit.page("/").await.0, StatusCode::OK);
    visit.of.owner.revoke_credential(&visit.of.right.report.id).await.expect("it is revoked");
    assert_eq!(visit.page("/").await.0, StatusCode::UNAUTHORIZED, "the session ends with its token");
}

#[tokio::test]
async fn pages_show_what_the_person_may_see() {
    let mut visit = Visit::open("view:work/team").await;
    let token = visit.token(Credential::Right);
    visit.sign_in(&token, "/").await;
    for path in ["/", "/ui/streams", "/ui/groups", "/ui/parked", "/ui/delayed", "/ui/clients"] {
        let (status, page) = visit.page(path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {page}");
        assert!(!page.contains("streams/other"), "{path} shows a stream that is hidden");
        assert!(!page.contains("Connections by API") && !page.contains("<svg class=\"chart"), "{path}");
    }
    for (path, shown) in [("/ui/streams", "streams/work"), ("/ui/groups", "streams/work/groups/team")] {
        assert!(visit.page(path).await.1.contains(shown), "{path}");
    }
    assert_eq!(visit.page("/ui/streams/work").await.0, StatusCode::FORBIDDEN, "messages need a right");
    for path in ["/ui/node", "/ui/streams/other", "/ui/streams/none", "/ui/streams/other/groups/team"] {
        assert_eq!(visit.page(path).await.0, StatusCode::FORBIDDEN, "{path}");
    }
    let mut visit = Visit::open("monitor:*").await;
    let token = visit.token(Credential::Right);
    visit.sign_in(&token, "/").await;
    assert_eq!(visit.page("/ui/node").await.0, StatusCode::OK);
    assert!(visit.page("/ui/streams").await.1.contains("streams/other"));
}

#[tokio::test]
async fn a_page_of_another_site_changes_nothing_in_the_name_of_a_session() {
    let mut visit = Visit::open("operate:work").await;
    let token = visit.token(Credential::Right);
    visit.sign_in(&token, "/").await;
    let path = "/streams/work/groups/team/pause";
    let is_paused = async || {
        let report = visit.of.owner.group(stream("work"), group("team")).await.expect("it is there");
        report.figures.status == Status::Paused
    };
    for (headers, status) in [
        (&[][..], StatusCode::UNAUTHORIZED),
        (&[("origin", "https://evil.example")], StatusCode::FORBIDDEN),
        (&[("origin", "null")], StatusCode::FORBIDDEN),
        (&[("sec-fetch-site", "cross-site")], StatusCode::FORBIDDEN),
        (&[("sec-fetch-site", "same-site")], StatusCode::FORBIDDEN),
    ] {
        assert_eq!(visit.ask("POST", path, headers, "").await.status, status, "{headers:?}");
        assert!(!is_paused().await, "{headers:?}");
    }
    let own = [("origin", "http://queue.example"), ("sec-fetch-site", "same-origin")];
    assert!(visit.ask("POST", path, &own, "").await.status.is_success());
    assert!(is_paused().await);
    // Another site cannot sign a person in either.
    let other = [FORM, ("origin", "https://evil.example")];
    let refused = visit.ask("POST", "/ui/sign-in", &other, &format!("token={token}")).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
}
