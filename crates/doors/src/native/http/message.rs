//! Messages between the words of the wire and those of the broker.
//!
//! `forebay_wire::json::body` has the rules by which a body is `body`, `body_text` or `body_base64`.

use std::collections::BTreeMap;

use axum::http::HeaderMap;
use bytes::Bytes;
use forebay_broker::api::{
    Batch, BatchBuilder, ContentType, CopiedFrom, Delivered, Found, LogMessage, Message, Moment, Published,
    parse_content,
};
use forebay_core::types::Timestamp;
use forebay_wire::json::body::{BadField, Body, from_base64, text_or_base64};
use forebay_wire::json::{self, Headers, Time};

use crate::native::problem::Refusal;
use crate::native::service::{Answer, Edits, MessageTerms, NewBody, Placed, placed};
use crate::native::trace::Trace;

/// What a stored message has beside its body, by rough count, so that a batch is built without growing.
const CONTENT_OVERHEAD: usize = 64;

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
        + message.body_text.as_ref().map_or(0, String::len)
        + message.body_base64.as_ref().map_or(0, |text| text.len() / 4 * 3)
}

fn push(batch: &mut BatchBuilder, moment: Moment, message: &json::Message, trace: &Trace) -> Answer<()> {
    let terms = terms(message).check(moment)?;
    let json::Message { id, kind, schema, key, key_base64, headers, headers_base64, .. } = message;
    let key_base64 = key_base64.as_deref().map(|text| bytes("key_base64", text)).transpose()?;
    if key.is_some() && key_base64.is_some() {
        return Err(Refusal::field("key_base64", "must not be given together with `key`"));
    }
    let key = key.as_ref().map(String::as_bytes).or(key_base64.as_deref());
    let binary = binary_headers(headers, headers_base64)?;
    let own = headers.keys().chain(headers_base64.keys()).map(|name| &name[..]);
    let traced = trace.headers_beside(own).iter().map(|(name, value)| (*name, value.as_bytes()));
    let text = headers.iter().map(|(name, value)| (&name[..], value.as_bytes()));
    let binary = binary.iter().map(|(name, value)| (&name[..], &value[..]));
    let content = message.content().map_err(refused)?;
    let (bytes, content_type) = match &content {
        Some(content) => (content.bytes.as_deref(), ContentType::named(content.content_type)),
        None => (Some(&b"null"[..]), ContentType::Json),
    };
    batch.push(&Message {
        id: id.as_deref().filter(|id| !id.is_empty()),
        key: key.filter(|key| !key.is_empty()),
        kind: kind.as_deref().filter(|kind| !kind.is_empty()),
        schema: *schema,
        headers: text.chain(binary).chain(traced).collect(),
        body: bytes.unwrap_or_default(),
        no_body: bytes.is_none(),
        content_type,
        priority: terms.priority,
        not_before: terms.not_before,
        expires: terms.expires,
        ..Message::default()
    });
    Ok(())
}

fn refused(bad: BadField) -> Refusal {
    Refusal::field(bad.field, bad.rule)
}

fn bytes(field: &'static str, text: &str) -> Answer<Vec<u8>> {
    from_base64(field, text).map_err(refused)
}

/// Headers whose values are bytes. A name is in one of the two lists.
fn binary_headers(text: &Headers, binary: &Headers) -> Answer<Vec<(String, Vec<u8>)>> {
    let decoded = |(name, value): (&String, &String)| {
        if text.contains_key(name) {
            let rule = "must not have a name that is in `headers` as well";
            return Err(Refusal::value("headers_base64", rule, name));
        }
        Ok((name.clone(), bytes("headers_base64", value)?))
    };
    binary.iter().map(decoded).collect()
}

fn terms(message: &json::Message) -> MessageTerms {
    MessageTerms {
        priority: message.priority.unwrap_or(0).into(),
        delay: message.delay.map(|span| span.0),
        deliver_at: message.deliver_at.map(|at| Timestamp(at.0)),
        ttl: message.ttl.map(|span| span.0),
    }
}

/// The edits of a copy. A field that is left out stays as it was.
pub(super) fn edits(message: json::Message) -> Answer<Edits> {
    let MessageTerms { delay, deliver_at, ttl, .. } = terms(&message);
    let body = message.content().map_err(refused)?.map(|content| NewBody {
        bytes: content.bytes.map(|bytes| Bytes::from(bytes.into_owned())),
        content_type: content.content_type.to_owned(),
    });
    let key_base64 = message.key_base64.as_deref().map(|text| bytes("key_base64", text)).transpose()?;
    let binary = binary_headers(&message.headers, &message.headers_base64)?;
    let text = message.headers.into_iter().map(|(name, value)| (name, value.into_bytes()));
    let headers: Vec<(String, Vec<u8>)> = text.chain(binary).collect();
    Ok(Edits {
        id: message.id,
        key: message.key.map(String::into_bytes).or(key_base64),
        kind: message.kind,
        schema: message.schema.map(Some),
        headers: Some(headers).filter(|headers| !headers.is_empty()),
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
    key_base64: Option<String>,
    headers: Headers,
    headers_base64: Headers,
    body: Body,
    source: Option<json::SourceMessage>,
}

impl Parts {
    /// A content that cannot be decoded is given as it is, in base64, so that its reader sees it.
    fn of(content: &Bytes) -> Parts {
        let message = parse_content(content).unwrap_or_else(|_| Message {
            body: content,
            content_type: ContentType::Bytes,
            ..Message::default()
        });
        let (key, key_base64) = message.key.map(text_or_base64).unwrap_or_default();
        let (mut headers, mut headers_base64) = (BTreeMap::new(), BTreeMap::new());
        for (name, value) in message.headers {
            match text_or_base64(value) {
                (Some(text), _) => headers.insert(name.to_owned(), text),
                (None, base64) => headers_base64.insert(name.to_owned(), base64.unwrap_or_default()),
            };
        }
        let bytes = (!message.no_body).then_some(message.body);
        Parts {
            id: message.id.map(str::to_owned),
            kind: message.kind.map(str::to_owned),
            schema: message.schema,
            key,
            key_base64,
            headers,
            headers_base64,
            body: Body::of(bytes, message.content_type.name().unwrap_or_default()),
            source: message.copied_from.map(|CopiedFrom { stream, seq }| json::SourceMessage {
                stream: stream.to_owned(),
                seq: seq.0,
            }),
        }
    }
}

pub(super) fn delivery(lease: String, delivered: &Delivered) -> json::Delivery {
    let Parts { id, kind, schema, key, key_base64, headers, headers_base64, body, source } =
        Parts::of(&delivered.content);
    let Body { body, body_text, body_base64, no_body, content_type } = body;
    json::Delivery {
        lease,
        seq: delivered.lease.seq.0,
        attempt: delivered.attempt.0,
        redelivered: delivered.redelivered,
        deadline: Time(delivered.deadline.0),
        published_at: Time(delivered.published.0),
        id,
        kind,
        schema,
        key,
        key_base64,
        headers,
        headers_base64,
        body,
        body_text,
        body_base64,
        no_body,
        content_type,
        priority: delivered.priority,
        source,
    }
}

pub(super) fn logged(logged: &LogMessage) -> json::StoredMessage {
    json::StoredMessage { stream: Some(logged.stream.to_string()), ..stored(&logged.message) }
}

pub(super) fn stored(found: &Found) -> json::StoredMessage {
    let Parts { id, kind, schema, key, key_base64, headers, headers_base64, body, source } =
        Parts::of(&found.content);
    let Body { body, body_text, body_base64, no_body, content_type } = body;
    json::StoredMessage {
        stream: None,
        seq: found.seq.0,
        log_position: found.ordinal.0,
        published_at: Time(found.published().0),
        id,
        kind,
        schema,
        key,
        key_base64,
        headers,
        headers_base64,
        body,
        body_text,
        body_base64,
        no_body,
        content_type,
        priority: found.extra.priority,
        expires_at: found.extra.expires.map(|at| Time(at.0)),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(text: &str) -> String {
        let message: json::Message = serde_json::from_str(text).expect("a message");
        let batch = batch(Moment::plain(Timestamp(1_000_000)), &[message], &Trace::default())
            .expect("it can be stored");
        let Parts { id, kind, schema, key, key_base64, headers, headers_base64, body, source } =
            Parts::of(batch.contents());
        assert_eq!(source, None, "only the server copies messages");
        let Body { body, body_text, body_base64, no_body, content_type } = body;
        let back = json::Message {
            id,
            kind,
            schema,
            key,
            key_base64,
            headers,
            headers_base64,
            body,
            body_text,
            body_base64,
            no_body,
            content_type,
            ..Default::default()
        };
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
            r#"{"body_text":"hello"}"#,
            r#"{"body_text":"{}"}"#,
            r#"{"body_text":""}"#,
            r#"{"no_body":true}"#,
            r#"{"body":{},"content_type":"application/cloudevents+json"}"#,
            r#"{"body_text":"a,b","content_type":"text/csv"}"#,
            r#"{"body_base64":"AAEC","content_type":"image/png"}"#,
            r#"{"key_base64":"/w==","headers":{"a":"b"},"headers_base64":{"c":"/w=="},"body":1}"#,
        ] {
            assert_eq!(there_and_back(text), text);
        }
        assert_eq!(there_and_back("{}"), r#"{"body":null}"#);
        assert_eq!(there_and_back(r#"{"body_base64":"MQ"}"#), r#"{"body_base64":"MQ=="}"#);
    }

    #[test]
    fn bytes_that_are_text_are_shown_as_text_however_they_were_written() {
        let text = r#"{"key_base64":"aw==","headers_base64":{"a":"Yg=="},"body":1}"#;
        assert_eq!(there_and_back(text), r#"{"key":"k","headers":{"a":"b"},"body":1}"#);
    }

    #[test]
    fn a_content_that_cannot_be_read_is_shown_as_it_is() {
        let broken = Parts::of(&Bytes::from_static(&[0xff, 1]));
        assert_eq!(broken.body.body_base64.as_deref(), Some("/wE="));
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
        assert_eq!(first.headers, [("traceparent", PARENT.as_bytes()), ("tracestate", b"s=1")]);
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
            (r#"{"body":1,"body_text":"a"}"#, "body_text"),
            (r#"{"body":1,"no_body":true}"#, "no_body"),
            (r#"{"body":1,"content_type":"text/plain"}"#, "content_type"),
            (r#"{"content_type":"text/plain"}"#, "content_type"),
            (r#"{"key":"a","key_base64":"AA=="}"#, "key_base64"),
            (r#"{"key_base64":"?"}"#, "key_base64"),
            (r#"{"headers":{"a":"b"},"headers_base64":{"a":"AA=="}}"#, "headers_base64"),
            (r#"{"headers_base64":{"a":"?"}}"#, "headers_base64"),
            (r#"{"ttl":"0s"}"#, "ttl"),
            (r#"{"delay":"400d"}"#, "delay"),
        ] {
            let message: json::Message = serde_json::from_str(text).expect("a message");
            let refused = batch(Moment::plain(Timestamp(1)), &[message], &Trace::default()).expect_err(text);
            assert_eq!(refused.field, Some(format!("messages[0].{field}").into()), "{text}");
        }
    }
}
