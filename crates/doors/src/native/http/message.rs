//! Messages between the words of the wire and those of the broker.
//!
//! A body of JSON is kept as it is written, and one of bytes as bytes, with a mark of which it was: what comes in
//! as `body` goes out as `body`, and what comes in as `body_base64` goes out so, whatever the bytes look like. A
//! message that came without a mark, over gRPC, goes out as `body` if it happens to be JSON.

use std::borrow::Cow;
use std::time::Duration;

use axum::http::HeaderMap;
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use forebay_broker::batch::{Batch, BatchBuilder, BodyForm, Message, after, parse_content};
use forebay_broker::driver::{Delivered, Published};
use forebay_broker::report::Found;
use forebay_core::types::Timestamp;
use forebay_model::limits::{PRIORITY_MAX, YEAR};
use forebay_wire::json::{self, Headers, Time};
use serde_json::value::RawValue;

use super::failure::Failure;

/// What a stored message has beside its body, by rough count, so that a batch is built without growing.
const CONTENT_OVERHEAD: usize = 64;
/// Headers of a request that go with its messages, so that a trace can be followed through the server.
const TRACE_HEADERS: [&str; 2] = ["traceparent", "tracestate"];
const TRACE_BYTES_MAX: usize = 512;

/// With padding or without: either is unmistakable.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What a request says of the trace that its messages belong to.
pub(super) fn trace(headers: &HeaderMap) -> Vec<(&'static str, String)> {
    let value = |name: &str| {
        let value = headers.get(name)?.to_str().ok()?;
        (value.len() <= TRACE_BYTES_MAX).then(|| value.to_owned())
    };
    let Some(parent) = value(TRACE_HEADERS[0]) else { return Vec::new() };
    let state = value(TRACE_HEADERS[1]).map(|state| (TRACE_HEADERS[1], state));
    [(TRACE_HEADERS[0], parent)].into_iter().chain(state).collect()
}

/// A batch from its wire form. Hashing and copying happen here, on the connection's task, and not on the shard's.
pub(super) fn batch(
    now: Timestamp,
    messages: &[json::Message],
    trace: &[(&'static str, String)],
) -> Result<Batch, Failure> {
    let bytes = messages.iter().map(|message| body_bytes(message) + CONTENT_OVERHEAD).sum();
    let mut batch = BatchBuilder::with_capacity(messages.len(), bytes);
    for (n, message) in messages.iter().enumerate() {
        let named = |field: &str| format!("messages[{n}].{field}");
        push(&mut batch, now, message, trace, &named)?;
    }
    Ok(batch.build())
}

/// A batch of one.
pub(super) fn batch_of_one(now: Timestamp, message: &json::Message) -> Result<Batch, Failure> {
    let mut batch = BatchBuilder::with_capacity(1, body_bytes(message) + CONTENT_OVERHEAD);
    push(&mut batch, now, message, &[], &str::to_owned)?;
    Ok(batch.build())
}

fn body_bytes(message: &json::Message) -> usize {
    message.body.as_ref().map_or(4, |body| body.get().len())
        + message.body_base64.as_ref().map_or(0, |text| text.len() / 4 * 3)
}

fn push(
    batch: &mut BatchBuilder,
    now: Timestamp,
    message: &json::Message,
    trace: &[(&'static str, String)],
    named: &dyn Fn(&str) -> String,
) -> Result<(), Failure> {
    let priority = message.priority.unwrap_or(0);
    if priority > PRIORITY_MAX {
        return Err(Failure::field(named("priority"), format!("from 0 to {PRIORITY_MAX}")));
    }
    if message.delay.is_some() && message.deliver_at.is_some() {
        return Err(Failure::field(named("deliver_at"), "one of `delay` and `deliver_at`"));
    }
    for (field, span) in [("delay", message.delay), ("ttl", message.ttl)] {
        if span.is_some_and(|span| span.0 > YEAR) {
            return Err(Failure::field(named(field), "at most \"366d\""));
        }
    }
    if message.ttl.is_some_and(|ttl| ttl.0 == Duration::ZERO) {
        return Err(Failure::field(named("ttl"), "above zero, as in \"1h\""));
    }
    let deliver_at = message.deliver_at.map(|at| Timestamp(at.0));
    if deliver_at.is_some_and(|at| at.since(now) > YEAR) {
        return Err(Failure::field(named("deliver_at"), "at most a year ahead"));
    }
    let (body, form): (Cow<'_, [u8]>, _) = match (&message.body, &message.body_base64) {
        (Some(_), Some(_)) => {
            return Err(Failure::field(named("body_base64"), "one of `body` and `body_base64`"));
        }
        (None, Some(text)) => {
            let bytes = BASE64.decode(text);
            let bytes = bytes.map_err(|error| Failure::field(named("body_base64"), error.to_string()))?;
            (bytes.into(), BodyForm::Bytes)
        }
        (Some(body), None) => (body.get().as_bytes().into(), BodyForm::Json),
        (None, None) => (b"null"[..].into(), BodyForm::Json),
    };
    let mut headers: Vec<(&str, &str)> =
        message.headers.iter().map(|(name, value)| (&name[..], &value[..])).collect();
    if !message.headers.contains_key(TRACE_HEADERS[0]) {
        headers.extend(trace.iter().map(|(name, value)| (*name, &value[..])));
    }
    batch.push(&Message {
        id: message.id.as_deref().filter(|id| !id.is_empty()),
        dedupe: None,
        key: message.key.as_deref().filter(|key| !key.is_empty()),
        kind: message.kind.as_deref().filter(|kind| !kind.is_empty()),
        schema: message.schema,
        headers,
        body: &body,
        form,
        priority,
        not_before: after(now, message.delay.map(|span| span.0)).or(deliver_at.filter(|at| *at > now)),
        expires: after(now, message.ttl.map(|span| span.0)),
    });
    Ok(())
}

/// One result for each message.
pub(super) fn results(messages: Vec<json::Message>, published: &Published) -> Vec<json::PublishResult> {
    let result = |(n, message): (usize, json::Message)| {
        let (seq, duplicate) = match published {
            Published::Stored(range) => (range.first.plus(n as u64), false),
            Published::Mixed(admissions) => (admissions[n].seq, admissions[n].duplicate),
        };
        json::PublishResult { seq: seq.0, id: message.id, duplicate }
    };
    messages.into_iter().enumerate().map(result).collect()
}

/// What a content says, in text.
pub(super) struct Parts {
    pub(super) id: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) schema: Option<u64>,
    pub(super) key: Option<String>,
    pub(super) headers: Headers,
    pub(super) body: Option<Box<RawValue>>,
    pub(super) body_base64: Option<String>,
}

impl Parts {
    /// A content that cannot be understood is given as it is, in base64: whoever gets it should see it.
    pub(super) fn of(content: &Bytes) -> Parts {
        let message = parse_content(content).unwrap_or_else(|_| Message {
            body: content,
            form: BodyForm::Bytes,
            ..Message::default()
        });
        let body = match message.form {
            BodyForm::Bytes => None,
            BodyForm::Json | BodyForm::Unsaid => serde_json::from_slice::<Box<RawValue>>(message.body).ok(),
        };
        Parts {
            id: message.id.map(str::to_owned),
            kind: message.kind.map(str::to_owned),
            schema: message.schema,
            key: message.key.map(str::to_owned),
            headers: message
                .headers
                .iter()
                .map(|&(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            body_base64: body.is_none().then(|| BASE64.encode(message.body)),
            body,
        }
    }
}

pub(super) fn delivery(lease: String, delivered: &Delivered) -> json::Delivery {
    let Parts { id, kind, schema, key, headers, body, body_base64 } = Parts::of(&delivered.content);
    json::Delivery {
        lease,
        seq: delivered.lease.seq.0,
        attempt: delivered.attempt.0,
        deadline: Time(delivered.deadline.0),
        published_at: Time(delivered.published.0),
        id,
        kind,
        schema,
        key,
        headers,
        body,
        body_base64,
        priority: delivered.priority,
    }
}

pub(super) fn stored(found: &Found) -> json::StoredMessage {
    let Parts { id, kind, schema, key, headers, body, body_base64 } = Parts::of(&found.content);
    json::StoredMessage {
        seq: found.seq.0,
        published_at: Time(found.published().0),
        id,
        kind,
        schema,
        key,
        headers,
        body,
        body_base64,
        priority: found.extra.priority,
        expires_at: found.extra.expires.map(|at| Time(at.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(text: &str) -> String {
        let message: json::Message = serde_json::from_str(text).expect("a message");
        let batch = batch_of_one(Timestamp(1_000_000), &message).expect("it can be stored");
        let Parts { id, kind, schema, key, headers, body, body_base64 } = Parts::of(batch.contents());
        let back = json::Message { id, kind, schema, key, headers, body, body_base64, ..Default::default() };
        serde_json::to_string(&back).expect("it is written")
    }

    #[test]
    fn a_message_comes_back_as_it_went() {
        for text in [
            r#"{"id":"a","type":"t","schema":3,"key":"k","headers":{"x":"1"},"body":{ "to" : 1.0 }}"#,
            r#"{"body":null}"#,
            r#"{"body":"text"}"#,
            r#"{"body_base64":"AAEC"}"#,
            // These bytes are JSON, but were not given as such.
            r#"{"body_base64":"MTIz"}"#,
            r#"{"body_base64":""}"#,
        ] {
            assert_eq!(there_and_back(text), text);
        }
        assert_eq!(there_and_back("{}"), r#"{"body":null}"#);
        assert_eq!(there_and_back(r#"{"body_base64":"MQ"}"#), r#"{"body_base64":"MQ=="}"#);
    }

    #[test]
    fn what_came_without_a_mark_is_json_if_it_looks_so() {
        let parts = |body: &[u8]| {
            let mut batch = BatchBuilder::default();
            batch.push(&Message { body, ..Message::default() });
            let parts = Parts::of(batch.build().contents());
            (parts.body.map(|body| body.get().to_owned()), parts.body_base64)
        };
        assert_eq!(parts(b"{\"a\":1}"), (Some("{\"a\":1}".to_owned()), None));
        assert_eq!(parts(b"hello"), (None, Some("aGVsbG8=".to_owned())));
        assert_eq!(parts(b"\"\xff\""), (None, Some("Iv8i".to_owned())));
        assert_eq!(parts(b""), (None, Some(String::new())));
        let broken = Parts::of(&Bytes::from_static(&[0xff, 1]));
        assert_eq!(broken.body_base64.as_deref(), Some("/wE="));
    }

    #[test]
    fn a_message_joins_the_trace_of_its_request_unless_it_has_one() {
        let mut headers = HeaderMap::new();
        headers.insert("tracestate", "s=1".parse().expect("a value"));
        assert!(trace(&headers).is_empty(), "a state without a parent says nothing");
        headers.insert("traceparent", "00-a-b-01".parse().expect("a value"));
        let trace = trace(&headers);
        let own: json::Message =
            serde_json::from_str(r#"{"headers":{"traceparent":"own"}}"#).expect("a message");
        let batch = batch(Timestamp(1), &[json::Message::default(), own], &trace).expect("a batch");
        let contents = batch.contents();
        let first = parse_content(contents).expect("a content");
        assert_eq!(first.headers, [("traceparent", "00-a-b-01"), ("tracestate", "s=1")]);
        assert!(String::from_utf8_lossy(contents).contains("own"));
        assert_eq!(String::from_utf8_lossy(contents).matches("00-a-b-01").count(), 1);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (text, field) in [
            (r#"{"priority":10}"#, "priority"),
            (r#"{"delay":"1s","deliver_at":"2026-11-15T10:30:00Z"}"#, "deliver_at"),
            (r#"{"body":1,"body_base64":"AA=="}"#, "body_base64"),
            (r#"{"body_base64":"?"}"#, "body_base64"),
            (r#"{"ttl":"0s"}"#, "ttl"),
            (r#"{"delay":"400d"}"#, "delay"),
        ] {
            let message: json::Message = serde_json::from_str(text).expect("a message");
            let refused = batch(Timestamp(1), &[message], &[]).expect_err(text);
            assert_eq!(refused.problem().field, Some(format!("messages[0].{field}")), "{text}");
        }
    }
}
