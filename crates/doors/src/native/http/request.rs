//! The parts of requests that handlers read: the client, names, parameters, bodies.

use std::str::FromStr;
use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use forebay_broker::api::{Hold, Share};
use forebay_core::types::{GroupName, StreamName};
use forebay_wire::json::{self, Span};
use forebay_wire::problem::{Kind, Problem};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;

use super::failure::Failure;
use super::{BodyShares, Client, Door, Peer, unknown_client};
use crate::http::body::{self, BodyError};
use crate::kit::tenants::Meter;
use crate::native::service::{Service, group_name, stream_name, stream_to_read};

/// The largest body but for one with messages in it.
const BODY_BYTES_MAX: usize = 1 << 20;
/// What a body of messages may have for each byte of a batch: base64 takes four for three, and JSON adds to it.
const TEXT_PER_BATCH: (usize, usize) = (3, 2);

/// The API, in the name of the client.
pub(super) struct Entered(pub(super) Service);

impl FromRequestParts<Door> for Entered {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Entered, Self::Rejection> {
        let (peer, share) = (parts.extensions.get::<Peer>(), parts.extensions.get::<Share>());
        let who = parts.extensions.get::<Client>().map_or_else(unknown_client, |client| client.0.clone());
        Ok(Entered(door.enter(who, peer.map(|peer| peer.0), share.cloned())))
    }
}

/// The values of the path's variables, in order.
async fn variables(parts: &mut Parts, door: &Door) -> Result<Vec<String>, Failure> {
    let params = RawPathParams::from_request_parts(parts, door).await;
    let params =
        params.map_err(|_| Failure::new(Kind::MalformedRequest, "a name in the path is not UTF-8"))?;
    Ok(params.iter().map(|(_, value)| value.to_owned()).collect())
}

/// A call on something with a name of its own.
pub(super) struct InPath(pub(super) String);

impl FromRequestParts<Door> for InPath {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<InPath, Failure> {
        let variables = variables(parts, door).await?;
        let [name, ..] = &variables[..] else { unreachable!("the path has a name") };
        Ok(InPath(name.clone()))
    }
}

/// A call on a stream.
pub(super) struct InStream(pub(super) StreamName);

impl FromRequestParts<Door> for InStream {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<InStream, Failure> {
        let variables = variables(parts, door).await?;
        let [stream, ..] = &variables[..] else { unreachable!("the path has a stream") };
        Ok(InStream(stream_name(stream)?))
    }
}

/// A call that only looks at a stream, which may be one of the system.
pub(super) struct OfStream(pub(super) StreamName);

impl FromRequestParts<Door> for OfStream {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<OfStream, Failure> {
        let variables = variables(parts, door).await?;
        let [stream, ..] = &variables[..] else { unreachable!("the path has a stream") };
        Ok(OfStream(stream_to_read(stream)?))
    }
}

/// A call on a group.
pub(super) struct InGroup(pub(super) StreamName, pub(super) GroupName);

impl FromRequestParts<Door> for InGroup {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<InGroup, Failure> {
        let variables = variables(parts, door).await?;
        let [stream, group, ..] = &variables[..] else { unreachable!("the path has a stream and a group") };
        Ok(InGroup(stream_name(stream)?, group_name(group)?))
    }
}

/// A call on a message of a stream.
pub(super) struct InMessage(pub(super) StreamName, pub(super) u64);

impl FromRequestParts<Door> for InMessage {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<InMessage, Failure> {
        let variables = variables(parts, door).await?;
        let [stream, seq] = &variables[..] else { unreachable!("the path has a position") };
        let refuse =
            |_| Failure::new(Kind::NoSuchPath, format!("a position is a whole number. position=`{seq}`"));
        Ok(InMessage(stream_name(stream)?, seq.parse().map_err(refuse)?))
    }
}

/// A call on something with a number, in a group.
pub(super) struct Numbered<T>(pub(super) StreamName, pub(super) GroupName, pub(super) T);

impl<T: FromStr> FromRequestParts<Door> for Numbered<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Numbered<T>, Failure> {
        let variables = variables(parts, door).await?;
        let [stream, group, number] = &variables[..] else { unreachable!("the path has a number") };
        let refuse = |_| {
            Failure::new(
                Kind::NoSuchPath,
                format!("the last part of the path must be a number. value=`{number}`"),
            )
        };
        Ok(Numbered(stream_name(stream)?, group_name(group)?, number.parse().map_err(refuse)?))
    }
}

/// Query parameters. Each is taken by name, and parameters left over are refused.
#[derive(Debug)]
pub(super) struct Query {
    given: Vec<(String, String)>,
    /// The parameters that the call has asked for, to be named in a refusal.
    known: Vec<String>,
}

impl FromRequestParts<Door> for Query {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &Door) -> Result<Query, Failure> {
        Query::parse(parts.uri.query().unwrap_or_default())
    }
}

impl Query {
    fn parse(text: &str) -> Result<Query, Failure> {
        let mut parameters: Vec<(String, String)> = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name)?;
            if parameters.iter().any(|(other, _)| *other == name) {
                return Err(bad_parameter(&name, "must not be given twice"));
            }
            parameters.push((name, decode(value)?));
        }
        Ok(Query { given: parameters, known: Vec::new() })
    }

    /// An empty value is as good as none.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        self.known.push(name.to_owned());
        let at = self.given.iter().position(|(other, _)| other == name)?;
        Some(self.given.swap_remove(at).1).filter(|value| !value.is_empty())
    }

    fn parsed<T: FromStr>(&mut self, name: &str, expected: &str) -> Result<Option<T>, Failure> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| bad_parameter(name, &format!("{expected}. value=`{text}`")))
    }

    pub(super) fn number<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, Failure> {
        self.parsed(name, "must be a whole number")
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<bool, Failure> {
        Ok(self.parsed(name, "must be true or false")?.unwrap_or(false))
    }

    pub(super) fn span(&mut self, name: &str) -> Result<Option<Duration>, Failure> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let span = text.parse::<Span>();
        let span = span.map_err(|error| bad_parameter(name, &format!("{error}. value=`{text}`")))?;
        Ok(Some(span.0))
    }

    pub(super) fn end(self) -> Result<(), Failure> {
        match self.given.into_iter().next() {
            None => Ok(()),
            Some((name, _)) => {
                let detail = match &self.known[..] {
                    [] => format!("this call takes no query parameters. parameter=`{name}`"),
                    known => {
                        format!("unknown query parameter `{name}`; expected one of `{}`", known.join("`, `"))
                    }
                };
                Err(Problem::new(Kind::UnknownParameter, detail).with_field(name).into())
            }
        }
    }
}

pub(super) fn bad_parameter(name: &str, rule: &str) -> Failure {
    let detail = format!("{name} {rule}");
    Problem::new(Kind::InvalidParameter, detail).with_field(name).into()
}

fn decode(text: &str) -> Result<String, Failure> {
    let text = text.replace('+', " ");
    let decoded = percent_decode_str(&text).decode_utf8();
    let decoded =
        decoded.map_err(|_| Failure::new(Kind::MalformedRequest, "a query parameter is not UTF-8"))?;
    Ok(decoded.into_owned())
}

/// No parameters at all.
pub(super) struct NoQuery;

impl FromRequestParts<Door> for NoQuery {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<NoQuery, Failure> {
        Query::from_request_parts(parts, door).await?.end().map(|()| NoQuery)
    }
}

/// A body of JSON. An empty one is like `{}`.
pub(super) struct Json<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Door> for Json<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, door: &Door) -> Result<Json<T>, Failure> {
        let (body, _room) = read_body(request, |shares| &shares.small, door, BODY_BYTES_MAX).await?;
        parse(&body).map(Json)
    }
}

/// A body of JSON with messages in it. Holds on to its part of the budget.
pub(super) struct Messages<T>(pub(super) T, pub(super) Hold);

impl<T: DeserializeOwned> FromRequest<Door> for Messages<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, door: &Door) -> Result<Messages<T>, Failure> {
        let (n, of) = TEXT_PER_BATCH;
        let most = door.broker().limits().batch_bytes_max as usize / of * n;
        let (body, room) = read_body(request, |shares| &shares.messages, door, most).await?;
        parse(&body).map(|read| Messages(read, room))
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    json::read(body).map_err(|problem| Failure::from(*problem))
}

/// The content types that a body may declare: JSON, or curl's default; it may also declare none. Pages of other
/// sites, which can send that too, are kept away by their `Origin`.
const CONTENT_TYPES: [&str; 2] = ["application/json", "application/x-www-form-urlencoded"];

fn check_content_type(headers: &HeaderMap) -> Result<(), Failure> {
    let Some(content_type) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let text = String::from_utf8_lossy(content_type.as_bytes()).to_ascii_lowercase();
    let media_type = text.split(';').next().unwrap_or_default().trim();
    if CONTENT_TYPES.contains(&media_type) {
        return Ok(());
    }
    let detail = format!("a body is application/json, or has no content type. content type=`{media_type}`");
    Err(Failure::new(Kind::UnsupportedMediaType, detail))
}

async fn read_body(
    request: Request,
    share: fn(&BodyShares) -> &Share,
    door: &Door,
    most: usize,
) -> Result<(Bytes, Hold), Failure> {
    let (parts, body) = request.into_parts();
    let shares = parts.extensions.get::<BodyShares>().cloned().unwrap_or_else(|| door.body_shares());
    // An empty body needs no content type.
    if http_body::Body::size_hint(&body).exact() != Some(0) {
        check_content_type(&parts.headers).map_err(Failure::closing)?;
    }
    let read = body::read(body, share(&shares), most).await;
    if let (Ok((bytes, _)), Some(meter)) = (&read, parts.extensions.get::<Meter>()) {
        meter.charge(bytes.len());
    }
    read.map_err(|error| {
        let kind = match error {
            BodyError::TooLarge { .. } => Kind::BodyTooLarge,
            BodyError::Busy => Kind::Busy,
            BodyError::TooSlow => Kind::SlowRequest,
            BodyError::Broken => Kind::MalformedRequest,
        };
        Failure::new(kind, error.to_string()).closing()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn parameters_are_taken_by_name_and_the_rest_is_refused() {
        let mut query = Query::parse("limit=5&key=a%20b+c&type=").expect("a query");
        assert_eq!(query.number::<u64>("limit").ok(), Some(Some(5)));
        assert_eq!(query.text("key").as_deref(), Some("a b c"));
        assert_eq!(query.text("type"), None);
        assert!(query.end().is_ok());
        let rest = Query::parse("limt=5").expect("a query").end().expect_err("it is unknown");
        assert_eq!(rest.problem().kind(), Some(Kind::UnknownParameter));
        for wrong in ["limit=x", "limit=-1", "limit=1.5"] {
            let mut query = Query::parse(wrong).expect("a query");
            assert!(query.number::<u64>("limit").is_err(), "{wrong}");
        }
        assert!(Query::parse("a=1&a=2").is_err());
        assert!(Query::parse("a=%ff").is_err());
    }
}
