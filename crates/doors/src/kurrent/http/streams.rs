//! `POST` and `DELETE` of a stream.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use forebay_core::types::StreamName;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::value::RawValue;
use tonic::Status;

use super::{HttpCall, refused, text};
use crate::kurrent::event::Proposed;
use crate::kurrent::ids::EventId;
use crate::kurrent::streams::delete;
use crate::kurrent::streams::expected::Expected;
use crate::kurrent::streams::write::{self, Written};
use crate::kurrent::{places, status};

const EVENTS_JSON: &str = "application/vnd.eventstore.events+json";
const JSON: &str = "application/json";

/// An event in a body with several.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listed<'a> {
    event_id: String,
    event_type: String,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    /// Data that is not JSON.
    data_base64: Option<String>,
}

/// `POST /streams/{stream}`: one event, described by headers, or several in a list.
pub(super) async fn append(call: &HttpCall<'_>, stream: &str) -> Response<Body> {
    match try_append(call, stream).await {
        Ok(answer) => answer,
        Err(status) => refused(&status),
    }
}

async fn try_append(call: &HttpCall<'_>, stream: &str) -> Result<Response<Body>, Status> {
    let stream = name(stream)?;
    let expected = expected(call)?;
    let events = events(call)?;
    let written = write::write(call.door, &call.caller, stream.clone(), expected, events).await;
    let mut answer;
    match written.map_err(write::Refused::status)? {
        Written::Done { last, .. } => {
            let revision = places::revision(last).unwrap_or_default();
            let name = utf8_percent_encode(stream.as_str(), NON_ALPHANUMERIC);
            let location = format!("{}/streams/{name}/{revision}", call.base());
            answer = text(StatusCode::CREATED, "");
            answer
                .headers_mut()
                .extend(HeaderValue::try_from(location).ok().map(|location| (header::LOCATION, location)));
        }
        Written::Conflict { last } => {
            let current = places::revision_text(last);
            answer = text(StatusCode::BAD_REQUEST, "Wrong expected EventNumber");
            answer.headers_mut().insert("es-currentversion", HeaderValue::from(current));
        }
    }
    Ok(answer)
}

/// `DELETE /streams/{stream}`, for ever with `ES-HardDelete: true`.
pub(super) async fn delete(call: &HttpCall<'_>, stream: &str) -> Response<Body> {
    let deleted = async {
        let (stream, expected) = (name(stream)?, expected(call)?);
        let is_hard = call.header("es-harddelete").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        match is_hard {
            true => delete::tombstone_stream(call.door, &call.caller, stream, expected).await,
            false => delete::delete_stream(call.door, &call.caller, stream, expected).await,
        }
    };
    match deleted.await {
        Ok(_) => text(StatusCode::NO_CONTENT, ""),
        Err(status) => refused(&status),
    }
}

fn name(text: &str) -> Result<StreamName, Status> {
    StreamName::of_any(text).map_err(|error| status::invalid(format!("stream {error}. stream=`{text}`")))
}

/// `ES-ExpectedVersion`: -1 no stream, -2 any, -4 a stream that exists, or a revision. Any if it is not given.
fn expected(call: &HttpCall<'_>) -> Result<Expected, Status> {
    let Some(text) = call.header("es-expectedversion") else { return Ok(Expected::Any) };
    let number = text.trim().parse().ok().and_then(Expected::of_number);
    number.ok_or_else(|| {
        status::invalid(format!(
            "ES-ExpectedVersion must be -1 (no stream), -2 (any), -4 (stream exists) or a revision. value=`{text}`"
        ))
    })
}

fn events(call: &HttpCall<'_>) -> Result<Vec<Proposed>, Status> {
    let content_type = call.header("content-type").unwrap_or_default();
    let content_type = content_type.split(';').next().unwrap_or_default().trim();
    if content_type.eq_ignore_ascii_case(EVENTS_JSON) {
        return listed(&call.body);
    }
    let Some(id) = call.header("es-eventid") else {
        return Err(status::invalid("the header ES-EventId must name the event by a UUID"));
    };
    let Some(id) = EventId::parse(id) else {
        return Err(status::invalid(format!("ES-EventId must be a UUID. value=`{id}`")));
    };
    let kind = call.header("es-eventtype").filter(|kind| !kind.is_empty());
    let Some(kind) = kind else {
        return Err(status::invalid("the header ES-EventType must name the type of the event"));
    };
    let is_json = content_type.eq_ignore_ascii_case(JSON);
    if is_json && serde_json::from_slice::<&RawValue>(&call.body).is_err() {
        return Err(status::invalid("the body must be JSON, as its content type says"));
    }
    let event =
        Proposed { id, kind: kind.to_owned(), is_json, metadata: Bytes::new(), data: call.body.clone() };
    Ok(vec![event])
}

/// The events of a list in JSON.
fn listed(body: &[u8]) -> Result<Vec<Proposed>, Status> {
    let list: Vec<Listed<'_>> = serde_json::from_slice(body)
        .map_err(|error| status::invalid(format!("the body must be a list of events in JSON: {error}")))?;
    if list.is_empty() {
        return Err(status::invalid("the body must have at least one event"));
    }
    let bytes = |raw: Option<&RawValue>| raw.map(|raw| Bytes::copy_from_slice(raw.get().as_bytes()));
    list.into_iter()
        .map(|event| {
            let Some(id) = EventId::parse(&event.event_id) else {
                return Err(status::invalid(format!("eventId must be a UUID. value=`{}`", event.event_id)));
            };
            let (is_json, data) = match &event.data_base64 {
                None => (true, bytes(event.data).unwrap_or_default()),
                Some(text) => {
                    let data = STANDARD.decode(text);
                    (false, data.map_err(|_| status::invalid("dataBase64 must be base64"))?.into())
                }
            };
            let metadata = bytes(event.metadata).unwrap_or_default();
            Ok(Proposed { id, kind: event.event_type, is_json, metadata, data })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_events_is_read() {
        let id = "11111111-2222-3333-4444-555555555555";
        let body = format!(
            r#"[{{"eventId":"{id}","eventType":"A","data":{{"a": 1}},"metadata":{{"m":2}}}},
                {{"eventId":"{id}","eventType":"B","dataBase64":"AP8="}}]"#
        );
        let events = listed(body.as_bytes()).expect("two events");
        assert_eq!((&events[0].data[..], &events[0].metadata[..]), (&b"{\"a\": 1}"[..], &b"{\"m\":2}"[..]));
        assert_eq!(
            (events[0].is_json, events[1].is_json, &events[1].data[..]),
            (true, false, &b"\0\xff"[..])
        );
        for wrong in [
            "[]",
            "{}",
            "[{}]",
            r#"[{"eventId":"x","eventType":"A"}]"#,
            &format!(r#"[{{"eventId":"{id}","eventType":"A","dataBase64":"*"}}]"#),
        ] {
            assert!(listed(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
