//! Signing in to the dashboard with a token, and out again. A server that asks for no credential has no use for it.

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use forebay_broker::api::Secret;
use forebay_wire::problem::Kind;
use maud::html;
use percent_encoding::percent_decode_str;

use super::super::failure::Failure;
use super::super::{Door, Peer};
use super::view::View;
use super::{html as page_of, layout};

/// A token with the address of a page, in a form.
const FORM_BYTES_MAX: usize = 8 << 10;
/// The paths, for the router and for the requests that need no credential.
pub(super) const SIGN_IN: &str = "/ui/sign-in";
pub(super) const SIGN_OUT: &str = "/ui/sign-out";

/// `GET /ui/sign-in`.
pub(super) async fn show(State(door): State<Door>) -> Response {
    asks(&door, SIGN_IN, StatusCode::OK, None)
}

/// The page that asks for a token, in place of the one at this path.
pub(in crate::native::http) fn asks(
    door: &Door,
    path: &str,
    status: StatusCode,
    wrong: Option<&str>,
) -> Response {
    let view = View::new(path, door.broker().clock().now().0);
    let to = if is_page(path) { path } else { "/" };
    let content = html! {
        h1 { "Sign in" }
        p { "This server asks for a token. An administrator makes one with " code { "forebay token create" } "." }
        form method="post" action=(view.to(&SIGN_IN[1..])) {
            @if let Some(wrong) = wrong {
                p.error role="alert" { "The token was not accepted: " (wrong) "." }
            }
            div.field {
                label for="token" { "Token" }
                input #token name="token" type="password" autocomplete="current-password" spellcheck="false" required
                    autofocus;
            }
            input type="hidden" name="to" value=(to);
            button.primary type="submit" { "Sign in" }
        }
    };
    page_of(status, layout::bare(&view, "Sign in", &content))
}

/// Whether a path is one of the pages, so that a person may be sent there.
fn is_page(path: &str) -> bool {
    let is_ours = path == "/" || path == "/ui" || path.starts_with("/ui/");
    is_ours && ![SIGN_IN, SIGN_OUT].contains(&path) && !path.contains("//") && !path.contains("..")
}

/// `POST /ui/sign-in`: a form with a token.
pub(super) async fn sign_in(State(door): State<Door>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Some((token, to)) = read_form(&parts.headers, body).await else {
        let rule = "the form must have a token, and at most 8 KiB";
        return Failure::new(Kind::MalformedRequest, rule).into_response();
    };
    let Some(Peer(from)) = parts.extensions.get().copied() else {
        return Failure::new(Kind::Internal, "the request has no address").into_response();
    };
    let is_tls = door.is_tls(&parts.headers);
    match door.gate().sign_in(from, token, is_tls).await {
        Ok(cookie) => going_to(&to, cookie),
        Err(refused) => asks(&door, SIGN_IN, StatusCode::UNAUTHORIZED, Some(&refused.to_string())),
    }
}

/// `POST /ui/sign-out`.
pub(super) async fn sign_out(State(door): State<Door>, headers: HeaderMap) -> Response {
    going_to(SIGN_IN, door.gate().sign_out(&headers, door.is_tls(&headers)))
}

/// Sends the browser to a path, relative to the one of this request, so that a prefix of a proxy stays.
fn going_to(path: &str, cookie: Option<HeaderValue>) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    let place = HeaderValue::try_from(format!("..{path}")).unwrap_or(HeaderValue::from_static("../"));
    headers.insert(header::LOCATION, place);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(cookie) = cookie {
        headers.insert(header::SET_COOKIE, cookie);
    }
    response
}

/// The token, and the path of the page to go to.
async fn read_form(headers: &HeaderMap, body: Body) -> Option<(Secret, String)> {
    let kind = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    if !kind.starts_with("application/x-www-form-urlencoded") {
        return None;
    }
    let body = to_bytes(body, FORM_BYTES_MAX).await.ok()?;
    let text = std::str::from_utf8(&body).ok()?;
    let field = |name: &str| {
        let (_, value) =
            text.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name)?;
        let value = value.replace('+', " ");
        percent_decode_str(&value).decode_utf8().ok().map(|value| value.trim().to_owned())
    };
    let to = field("to").filter(|to| is_page(to) && to.is_ascii() && !to.contains(char::is_whitespace));
    let token = field("token").filter(|token| !token.is_empty())?;
    Some((Secret::new(&token), to.unwrap_or_else(|| "/".to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_is_sent_to_pages_of_this_server_only() {
        for page in ["/", "/ui", "/ui/streams/a%20b/groups/c"] {
            assert!(is_page(page), "{page}");
        }
        for other in
            ["", "//evil.example", "/ui//evil.example", "/ui/../metrics", "/streams", "/uix", SIGN_OUT]
        {
            assert!(!is_page(other), "{other}");
        }
    }
}
