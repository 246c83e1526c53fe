//! Messages between the words of the wire and those of the broker.
//!
//! A body of JSON is kept as it is written, and one of bytes as bytes, with a mark of which it was: what comes in
//! as `body` goes out as `body`, and what comes in as `body_base64` goes out so, whatever the bytes look like. A
//! message that came without a mark, over gRPC, goes out as `body` if it happens to be JSON.

use std::borrow::Cow;

use axum::http::HeaderMap;
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use forebay_broker::api::{
    Batch, BatchBuilder, BodyForm, Delivered, Found, Message, Moment, Published, parse_content,
};
use forebay_core::types::Timestamp;
use forebay_wire::json::{self, Headers, Time};
use serde_json::value::RawValue;

use crate::native::problem::Refusal;
use crate::native::service::{Answer, Edits, MessageTerms, Placed, placed};
use crate::native::trace::Trace;

/// What a stored message has beside its body, by rough count, so that a batch is built without growing.
const CONTENT_OVERHEAD: usize = 64;

/// With padding or without: either is unmistakable.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The trace of a request.
pub(super) fn trace(headers: &HeaderMap) -> Trace {
    Trace::read(|name| headers.get(name).and_then(|value| value.to_str().ok()))
}

/// A batch from its wire form. Hashing and copying happen here, on the connection's task, and not on the shard's.
pub(super) fn batch(moment: Moment, messages: &[json::Message], trace: &Trace) -> Answer<Batch> {
    let bytes = messages.iter().map(|message| body_bytes(message) + CONTENT_OVERHEAD).sum();
    let mut batch = BatchBuilder::with_capacity(messages.len(), bytes);
    for (n, message) in messages.iter().enumerate() {
        let pushed = push(&mut batch, moment, message, trace);
        pushed.map_err(|refusal| refusal.within(format_args!("messages[{n}]")))?;
    }
    Ok(batch.build())
}

fn body_bytes(message: &json::Message) -> usize {
    message.body.as_ref().map_or(4, |body| body.get().len())
        + message.body_base64.as_ref().map_or(0, |text| text.len() / 4 * 3)
}

fn push(batch: &mut BatchBuilder, moment: Moment, message: &json::Message, trace: &Trace) -> Answer<()> {
    let terms = terms(message).check(moment)?;
    let (body, form) = body(message)?.unwrap_or((Cow::Borrowed(b"null"), BodyForm::Json));
    let own = message.headers.keys().map(|name| &name[..]);
    let traced = trace.headers_beside(own).iter().map(|(name, value)| (*name, &value[..]));
    batch.push(&Message {
        id: message.id.as_deref().filter(|id| !id.is_empty()),
        dedupe: None,
        key: message.key.as_deref().filter(|key| !key.is_empty()),
        kind: message.kind.as_deref().filter(|kind| !kind.is_empty()),
        schema: message.schema,
        headers: message.headers.iter().map(|(name, value)| (&name[..], &value[..])).chain(traced).collect(),
        body: &body,
        form,
        priority: terms.priority,
        not_before: terms.not_before,
        expires: terms.expires,
    });
    Ok(())
}

fn terms(message: &json::Message) -> MessageTerms {
    MessageTerms {
        priority: message.priority.unwrap_or(0).into(),
        delay: message.delay.map(|span| span.0),
        deliver_at: message.deliver_at.map(|at| Timestamp(at.0)),
        ttl: message.ttl.map(|span| span.0),
    }
}

/// The body of a message, if it has one.
fn body(message: &json::Message) -> Answer<Option<(Cow<'_, [u8]>, BodyForm)>> {
    match (&message.body, &message.body_base64) {
        (None, None) => Ok(None),
        (Some(body), None) => Ok(Some((body.get().as_bytes().into(), BodyForm::Json))),
        (None, Some(text)) => {
            let bytes = BASE64.decode(text);
            let bytes = bytes.map_err(|_| {
                Refusal::field("body_base64", "must be base64 with padding, as in RFC 4648, such as \"aGk=\"")
            })?;
            Ok(Some((bytes.into(), BodyForm::Bytes)))
        }
        (Some(_), Some(_)) => Err(Refusal::field("body_base64", "must not be given together with `body`")),
    }
}

/// The edits of a copy. A field that is left out stays as it was.
pub(super) fn edits(message: json::Message) -> Answer<Edits> {
    let MessageTerms { delay, deliver_at, ttl, .. } = terms(&message);
    let body = body(&message)?.map(|(body, form)| (Bytes::from(body.into_owned()), form));
    Ok(Edits {
        id: message.id,
        key: message.key,
        kind: message.kind,
        schema: message.schema.map(Some),
        headers: (!message.headers.is_empty()).then(|| message.headers.into_iter().collect()),
        body,
        priority: message.priority.map(Into::into),
        delay,
        deliver_at,
        ttl,
    })
}

/// One result for each message.
pub(super) fn results(messages: Vec<json::Message>, published: &Published) -> Vec<json::PublishResult> {
    messages.into_iter().zip(placed(published)).map(|(message, placed)| result(placed, message.id)).collect()
}

pub(super) fn result(placed: Placed, id: Option<String>) -> json::PublishResult {
    let Placed { seq, duplicate, log_position } = placed;
    json::PublishResult { seq, id, duplicate, log_position }
}

/// What a content says, in text.
struct Parts {
    id: Option<String>,
    kind: Option<String>,
    schema: Option<u64>,
    key: Option<String>,
    headers: Headers,
    body: Option<Box<RawValue>>,
    body_base64: Option<String>,
}

impl Parts {
    /// A content that cannot be decoded is given as it is, in base64, so that its reader sees it.
    fn of(content: &Bytes) -> Parts {
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
        log_position: found.ordinal.0,
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
        let batch = batch(Moment::plain(Timestamp(1_000_000)), &[message], &Trace::default())
            .expect("it can be stored");
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
            // These bytes are JSON, but were given as base64.
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
        const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let mut headers = HeaderMap::new();
        headers.insert("tracestate", "s=1".parse().expect("a value"));
        headers.insert("traceparent", PARENT.parse().expect("a value"));
        let trace = trace(&headers);
        let own: json::Message =
            serde_json::from_str(r#"{"headers":{"traceparent":"own"}}"#).expect("a message");
        let batch =
            batch(Moment::plain(Timestamp(1)), &[json::Message::default(), own], &trace).expect("a batch");
        let contents = batch.contents();
        let first = parse_content(contents).expect("a content");
        assert_eq!(first.headers, [("traceparent", PARENT), ("tracestate", "s=1")]);
        assert!(String::from_utf8_lossy(contents).contains("own"));
        assert_eq!(String::from_utf8_lossy(contents).matches(PARENT).count(), 1);
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
            let refused = batch(Moment::plain(Timestamp(1)), &[message], &Trace::default()).expect_err(text);
            assert_eq!(refused.field, Some(format!("messages[0].{field}").into()), "{text}");
        }
    }
}
