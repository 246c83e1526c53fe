//! No bytes in a request make the door panic.

use axum::http::{HeaderMap, HeaderValue, Method};
use forebay_core::types::Timestamp;
use proptest::prelude::*;

use super::{Queue, by_query, checked, corpus, flatten};
use crate::sqs::wire::address::{Arn, QueueAddress};
use crate::sqs::wire::attributes::{RedriveAllowPolicy, RedrivePolicy};
use crate::sqs::wire::error::SqsError;
use crate::sqs::wire::message::is_allowed;
use crate::sqs::wire::protocol::{Action, Format, Head, Protocol};
use crate::sqs::wire::request::{TaskHandle, understand};
use crate::sqs::wire::response::Response;
use crate::sqs::wire::signature::{Trust, authenticate};

const JSON: &str = "application/x-amz-json-1.0";
const FORM: &str = "application/x-www-form-urlencoded";
const QUEUES: [Queue; 4] = [Queue::Standard, Queue::Fifo, Queue::ContentBased, Queue::Small];

/// Reads a request, and runs its checks for every kind of queue.
fn read(content_type: &str, target: &str, path: &str, query: &str, body: &[u8]) {
    let mut headers = HeaderMap::new();
    for (name, value) in
        [("content-type", content_type), ("x-amz-target", target), ("x-amzn-trace-id", target)]
    {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    }
    for method in [Method::GET, Method::POST] {
        let head = Head { method: &method, path, query, headers: &headers };
        match understand(&head, body) {
            Ok((_, request)) => {
                for queue in QUEUES {
                    let _ = checked(request.clone(), queue);
                }
            }
            Err(refused) => drop(refused.render("id")),
        }
    }
}

fn action() -> impl Strategy<Value = &'static str> {
    prop::sample::select(Action::ALL).prop_map(Action::name)
}

/// What a request is made of, in any order: closer to one than random bytes ever come.
fn form() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "QueueUrl",
        "QueueName",
        "Attribute",
        "AttributeName",
        "MessageAttribute",
        "MessageBody",
        "Tag",
        "TagKey",
        "SendMessageBatchRequestEntry",
        "DeleteMessageBatchRequestEntry",
        "Id",
        "Name",
        "Key",
        "Value",
        "DataType",
        "StringValue",
        "BinaryValue",
        "1",
        "2",
        "99999999999",
        "-1",
        "",
        "String",
        "Number",
        "1e5",
        "All",
        "Policy",
        "FifoQueue",
        "true",
        "{}",
        "[",
        "%ff",
        "%",
        "+",
        "MaxResults",
        "VisibilityTimeout",
        "SourceArn",
        "é",
    ]);
    let pair = (prop::collection::vec(word.clone(), 1..5), word)
        .prop_map(|(name, value)| format!("{}={value}", name.join(".")));
    prop::collection::vec(pair, 0..12).prop_map(|pairs| pairs.join("&"))
}

proptest! {
    #[test]
    fn any_bytes_are_read(body: Vec<u8>, path in "(/[a-z0-9%.]{0,12}){0,4}", query in ".{0,40}", action in action()) {
        let target = format!("AmazonSQS.{action}");
        read(JSON, &target, &path, &query, &body);
        read(FORM, "", &path, &format!("Action={action}&{query}"), &body);
        read("", "", &path, &query, &body);
    }

    #[test]
    fn anything_like_a_form_is_read(action in action(), form in form()) {
        read(FORM, "", "/", "", format!("Action={action}&{form}").as_bytes());
    }

    /// A real request with some of it cut out or doubled.
    #[test]
    fn anything_like_json_is_read(n in 0..corpus::ROWS.len(), from: prop::sample::Index, to: prop::sample::Index) {
        let (action, json, form) = corpus::ROWS[n];
        let target = format!("AmazonSQS.{action}");
        for text in [json, form] {
            let bytes = text.as_bytes();
            let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
            let altered: Vec<u8> = [&bytes[..from], &bytes[to..]].concat();
            read(JSON, &target, "/", "", &altered);
            read(FORM, "", "/000000000000/q", "", &altered);
        }
    }

    #[test]
    fn any_body_comes_through_a_form_as_it_was(body in "\\PC{1,40}") {
        let json = serde_json::json!({ "QueueUrl": "q", "MessageBody": body }).to_string();
        let request = by_query("/", &flatten("SendMessage", &json));
        prop_assert_eq!(request, super::by_json("SendMessage", &json));
    }

    #[test]
    fn any_text_can_be_written(text: String) {
        let json = Response::CreateQueue { queue_url: text.clone() }.render(Protocol::Json, "id");
        let back: serde_json::Value = serde_json::from_slice(json.body()).expect("JSON");
        prop_assert_eq!(back["QueueUrl"].as_str(), Some(&text[..]));
        let error = SqsError::bad_receipt(&text).render(Protocol::Query(Format::Json), "id");
        prop_assert!(serde_json::from_slice::<serde_json::Value>(error.body()).is_ok());
        let xml = SqsError::bad_receipt(&text).render(Protocol::Query(Format::Xml), "id");
        let xml = std::str::from_utf8(xml.body()).expect("UTF-8");
        prop_assert!(xml.chars().all(is_allowed) && !xml.contains('\r'));
    }

    #[test]
    fn any_signature_is_read(
        authorization in "(AWS4-HMAC-SHA256 )?(Credential=[a-z0-9/]{0,40}, )?(SignedHeaders=[a-z;-]{0,20}, )?.{0,30}",
        date in "([0-9]{8}T[0-9]{6}Z)|.{0,20}",
        query in "(X-Amz-(Credential|Date|Expires|SignedHeaders|Signature|Algorithm)=[A-Za-z0-9/%-]{0,30}&){0,7}",
        now: u64,
    ) {
        let secret = |_: &str| Some("secret".to_owned());
        for with_header in [true, false] {
            let mut headers = HeaderMap::new();
            for (name, value) in [("authorization", &authorization), ("x-amz-date", &date), ("date", &date)] {
                if let Some(value) = HeaderValue::from_str(value).ok().filter(|_| with_header) {
                    headers.insert(name, value);
                }
            }
            let head = Head { method: &Method::GET, path: "/é/%/..", query: &query, headers: &headers };
            let verified = authenticate(Timestamp(now), &Trust::Verify(&secret), &head, b"body");
            prop_assert!(verified.is_err());
            let _ = authenticate(Timestamp(now), &Trust::Anybody, &head, b"body");
        }
    }

    #[test]
    fn any_name_is_read(text: String, shape in "(arn:aws:sqs:|http://|/|:|\\{|\"){0,5}.{0,20}") {
        for text in [text, shape] {
            let _ = (QueueAddress::parse(&text), Arn::parse(&text), TaskHandle::parse(&text));
            let _ = (RedrivePolicy::parse(&text), RedriveAllowPolicy::parse(&text));
        }
    }
}

/// The words of a request before its signature is verified: header, date, query and body, with spaces of their own
/// between them.
#[test]
fn a_signed_request_is_read() {
    let rows: String = corpus::ROWS.iter().map(|(_, json, form)| format!("||{form}|{json}\n")).collect();
    let signed = include_str!("anything/signed.txt");
    let secret = |_: &str| Some("secret".to_owned());
    crate::kit::tests::fuzz::fuzz("sqs", &format!("{signed}{rows}"), |input| {
        let mut parts = input.splitn(4, |byte| *byte == b'|');
        let mut part = || parts.next().unwrap_or_default();
        let (authorization, date, query, body) = (part(), part(), String::from_utf8_lossy(part()), part());
        let mut headers = HeaderMap::new();
        for (name, value) in [("authorization", authorization), ("x-amz-date", date), ("host", b"localhost")]
        {
            if let Some(value) = HeaderValue::from_bytes(value).ok().filter(|value| !value.is_empty()) {
                headers.insert(name, value);
            }
        }
        let head = Head { method: &Method::POST, path: "/", query: &query, headers: &headers };
        let now = Timestamp(1_763_164_800_000_000);
        assert!(authenticate(now, &Trust::Verify(&secret), &head, body).is_err(), "it is not signed");
        let _ = authenticate(now, &Trust::Anybody, &head, body);
        for (content_type, target) in [(JSON, "AmazonSQS.SendMessage"), (FORM, "")] {
            read(content_type, target, "/", &query, body);
        }
    });
}
