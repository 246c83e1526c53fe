//! Values that are written are read back, and errors name the wrong field.

use forebay_model::{OnExhausted, Retention, Retries};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

use super::*;

/// Reads and writes back; both texts must say the same.
#[track_caller]
fn same<T: DeserializeOwned + Serialize>(text: &str) {
    let read: T = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(serde_json::to_string(&read).expect("it is written"), text);
}

#[track_caller]
fn refused<T: DeserializeOwned + Debug>(text: &str, why: &str) {
    let error = serde_json::from_str::<T>(text).expect_err(text).to_string();
    assert!(error.contains(why), "{text}: {error}");
}

#[test]
fn settings_survive_the_round_trip() {
    same::<GroupSettings>("{}");
    same::<GroupSettings>(concat!(
        r#"{"start":{"time":"2026-11-15T10:30:00.000000Z"},"strategy":"ordered","message_timeout":"30s","#,
        r#""max_retries":"unlimited","on_exhausted":{"move":"other"},"#,
        r#""backoff":{"min":"100ms","max":"30s","factor":2.0,"jitter":0.5},"key_batch":1,"#,
        r#""on_parked_key":"hold","fairness":"key","priority_age_step":"1m","window_max":1,"parked_max":2,"#,
        r#""parked_max_age":null,"max_in_flight":3,"max_consumers":0,"rate":{"per_second":100.0,"burst":20},"#,
        r#""acks":"durable","checkpoint":{"interval":"2s","min":10,"max":1000},"buffer":500,"#,
        r#""extra_statistics":true}"#,
    ));
    same::<StreamSettings>(concat!(
        r#"{"retention":{"max_age":"7d","max_bytes":null,"max_messages":5},"dedupe_window":"10m","dedupe_max":7,"#,
        r#""limits":{"max_messages":null,"max_bytes":9,"max_age":"1h","on_full":"drop_oldest"},"#,
        r#""ingress_rate":null,"source":{"prefix":"orders-","type":"Placed","header":"region=eu"}}"#,
    ));
    for start in [r#""beginning""#, r#""end""#, r#"{"seq":100}"#] {
        same::<Start>(start);
    }
    for exhausted in [r#""park""#, r#""skip""#] {
        same::<OnExhausted>(exhausted);
    }
    same::<Retries>("0");
    same::<Retention>(r#""work""#);
}

#[test]
fn what_cannot_be_is_refused_with_what_was_expected() {
    refused::<GroupSettings>(r#"{"max_retrys":1}"#, "unknown field `max_retrys`");
    refused::<GroupSettings>(r#"{"backoff":{"mim":"1s"}}"#, "unknown field `mim`");
    refused::<GroupSettings>(r#"{"message_timeout":30}"#, "\"30s\"");
    refused::<GroupSettings>(r#"{"message_timeout":"30"}"#, "\"30s\"");
    refused::<GroupSettings>(r#"{"message_timeout":null}"#, "\"30s\"");
    refused::<GroupSettings>(r#"{"max_retries":-1}"#, "or \"unlimited\"");
    refused::<GroupSettings>(r#"{"max_retries":5000000000}"#, "or \"unlimited\"");
    refused::<GroupSettings>(r#"{"max_retries":"many"}"#, "or \"unlimited\"");
    refused::<GroupSettings>(r#"{"strategy":"random"}"#, "unknown variant `random`");
    refused::<GroupSettings>(r#"{"start":"middle"}"#, "\"beginning\"");
    refused::<GroupSettings>(r#"{"start":{"time":"today"}}"#, "RFC 3339");
    refused::<GroupSettings>(r#"{"start":{"seq":1,"time":"2026-11-15T10:30:00Z"}}"#, "");
    refused::<GroupSettings>(r#"{"on_exhausted":{"mové":"x"}}"#, "unknown variant `mové`");
    refused::<StreamSettings>(r#"{"retention":"forever"}"#, "\"work\"");
    refused::<PublishRequest>(r#"{"messages":[{"body":1,"prio":2}]}"#, "unknown field `prio`");
    refused::<SelectRequest>(r#"{"filter":{"reasn":"x"}}"#, "unknown field `reasn`");
    refused::<ReceiveRequest>(r#"{"max":1,"max":2}"#, "duplicate field `max`");
}

#[test]
fn null_resets_where_there_is_something_to_reset() {
    let patch: GroupSettings =
        serde_json::from_str(r#"{"rate":null,"parked_max_age":null}"#).expect("a patch");
    assert_eq!((patch.rate, patch.parked_max_age), (Some(None), Some(None)));
    let patch: GroupSettings = serde_json::from_str("{}").expect("a patch");
    assert_eq!((patch.rate, patch.parked_max_age), (None, None));
}

#[test]
fn a_body_is_kept_as_it_is_written() {
    for body in [r#"{ "b" : 1.50, "a":[ ] }"#, "null", "\"x\\u00e9\"", "123456789012345678901234567890"] {
        let text = format!(r#"{{"messages":[{{"body":{body}}}]}}"#);
        let request: PublishRequest = serde_json::from_str(&text).expect("a batch");
        let kept = request.messages[0].body.as_ref().expect("there is a body");
        assert_eq!(kept.get(), body);
        assert_eq!(serde_json::to_string(&request).expect("it is written"), text);
    }
    let none: Message = serde_json::from_str("{}").expect("a message");
    assert!(none.body.is_none());
}

#[test]
fn a_reply_of_a_newer_server_is_read() {
    let text = r#"{"results":[{"seq":12,"id":"email-17","duplicate":false,"more":1}],"else":2}"#;
    let reply: PublishReply = serde_json::from_str(text).expect("a reply");
    assert_eq!(reply.results[0].seq, 12);
}
