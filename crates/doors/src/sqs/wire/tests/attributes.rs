//! A queue's attributes: section 3.

use std::collections::BTreeMap;

use serde_json::json;

use super::Queue::{Fifo, Standard};
use super::{Queue, Row, map, play, row};
use crate::sqs::wire::address::Arn;
use crate::sqs::wire::attributes::{QueueAttribute, QueueFacts, QueueSettings, RedriveAllowPolicy, Wanted};

type Values = &'static [&'static str];

/// Name, on which queue, what a fresh one shows, what can be set, what cannot.
pub(super) const TABLE: &[(&str, Queue, Option<&str>, Values, Values)] = &[
    ("VisibilityTimeout", Standard, Some("30"), &["0", "43200"], &["-1", "43201", "x", ""]),
    ("DelaySeconds", Standard, Some("0"), &["0", "900"], &["-1", "901", "x", ""]),
    ("ReceiveMessageWaitTimeSeconds", Standard, Some("0"), &["0", "20"], &["-1", "21", "x", ""]),
    ("MessageRetentionPeriod", Standard, Some("345600"), &["60", "1209600"], &["59", "1209601", "x", ""]),
    (
        "MaximumMessageSize",
        Standard,
        Some("1048576"),
        &["1024", "262144", "1048576"],
        &["1023", "1048577", "x", ""],
    ),
    ("Policy", Standard, None, &["", "{}", r#"{"Statement":[]}"#], &["x", "[]", "1"]),
    ("RedrivePolicy", Standard, None, &[""], &[]),
    ("RedriveAllowPolicy", Standard, None, &["", r#"{"redrivePermission":"denyAll"}"#], &[]),
    ("FifoQueue", Fifo, Some("true"), &["true", "True"], &["x", "", "false"]),
    ("ContentBasedDeduplication", Fifo, Some("false"), &["true", "FALSE", "True"], &["x", "", "1"]),
    ("DeduplicationScope", Fifo, Some("queue"), &["queue", "messageGroup"], &["Queue", "x", ""]),
    ("FifoThroughputLimit", Fifo, Some("perQueue"), &["perQueue"], &["perMessageGroupId", "x", ""]),
    ("KmsMasterKeyId", Standard, None, &["", "alias/anything"], &[]),
    ("KmsDataKeyReusePeriodSeconds", Standard, None, &["60", "300", "86400"], &["59", "86401", "x", ""]),
    ("SqsManagedSseEnabled", Standard, Some("true"), &["true", "False"], &["x", ""]),
    ("ApproximateNumberOfMessages", Standard, Some("1"), &[], &[]),
    ("ApproximateNumberOfMessagesNotVisible", Standard, Some("2"), &[], &[]),
    ("ApproximateNumberOfMessagesDelayed", Standard, Some("3"), &[], &[]),
    ("CreatedTimestamp", Standard, Some("1700000000"), &[], &[]),
    ("LastModifiedTimestamp", Standard, Some("1700000001"), &[], &[]),
    ("QueueArn", Standard, Some("arn:aws:sqs:us-east-1:000000000000:q"), &[], &[]),
];

fn facts() -> QueueFacts {
    QueueFacts {
        arn: Arn::new("us-east-1", "000000000000", "q"),
        created: 1_700_000_000,
        modified: 1_700_000_001,
        visible: 1,
        not_visible: 2,
        delayed: 3,
    }
}

fn listed(settings: &QueueSettings, names: &[&str]) -> Vec<(&'static str, String)> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    Wanted::of(&names).expect("names").list(settings, &facts())
}

/// What each kind of queue shows when all is asked for.
pub(super) const LISTED: &[(Queue, &str)] = &[
    (
        Standard,
        "ApproximateNumberOfMessages ApproximateNumberOfMessagesDelayed ApproximateNumberOfMessagesNotVisible \
         CreatedTimestamp DelaySeconds LastModifiedTimestamp MaximumMessageSize MessageRetentionPeriod QueueArn \
         ReceiveMessageWaitTimeSeconds SqsManagedSseEnabled VisibilityTimeout",
    ),
    (
        Fifo,
        "ApproximateNumberOfMessages ApproximateNumberOfMessagesDelayed ApproximateNumberOfMessagesNotVisible \
         ContentBasedDeduplication CreatedTimestamp DeduplicationScope DelaySeconds FifoQueue FifoThroughputLimit \
         LastModifiedTimestamp MaximumMessageSize MessageRetentionPeriod QueueArn ReceiveMessageWaitTimeSeconds \
         SqsManagedSseEnabled VisibilityTimeout",
    ),
];

#[test]
fn a_fresh_queue_shows_what_it_should() {
    for (queue, expected) in LISTED {
        let names: Vec<&str> =
            listed(&queue.settings(), &["All"]).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.join(" "), *expected, "{queue:?}");
    }
    assert_eq!(listed(&Standard.settings(), &[]), [], "nothing asked, nothing shown");
}

#[test]
fn every_attribute_has_its_default_and_its_range() {
    for (name, queue, usual, right, wrong) in TABLE {
        let settings = queue.settings();
        let shown = |settings: &QueueSettings| listed(settings, &[name]).pop().map(|(_, value)| value);
        assert_eq!(shown(&settings).as_deref(), *usual, "{name}");
        for value in *right {
            let changed = settings.changed(&map(&[(name, value)])).expect(name);
            let hidden = value.is_empty() || *name == "KmsDataKeyReusePeriodSeconds" && *value == "300";
            let lower = if value.starts_with('{') { (*value).to_owned() } else { value.to_lowercase() };
            let expected =
                (!hidden).then_some(if *name == "DeduplicationScope" || *name == "FifoThroughputLimit" {
                    (*value).to_owned()
                } else {
                    lower
                });
            assert_eq!(shown(&changed), expected, "{name} {value}");
        }
        for value in *wrong {
            let refused = settings.changed(&map(&[(name, value)])).expect_err(name).to_string();
            let expected = format!("InvalidAttributeValue: Invalid value for the parameter {name}.");
            assert!(refused.starts_with(&expected), "{name} {value}: {refused}");
        }
    }
    assert_eq!(TABLE.len(), QueueAttribute::ALL.len(), "every attribute is a row");
}

const TARGET: &str = "arn:aws:sqs:us-east-1:000000000000:d";

/// The same through both protocols, and what redrive policies may say.
pub(super) fn rows() -> Vec<Row> {
    let set = |what, queue, name: &str, value: &str, expected: String| {
        let json = json!({ "QueueUrl": "q", "Attributes": { name: value } }).to_string();
        row("3", what, queue, "SetQueueAttributes", json, expected)
    };
    let mut rows = Vec::new();
    for (name, queue, _, right, wrong) in TABLE {
        for value in *right {
            rows.push(set("in range", *queue, name, value, "ok".to_owned()));
        }
        for value in *wrong {
            let expected = format!("InvalidAttributeValue: Invalid value for the parameter {name}.…");
            rows.push(set("out of range", *queue, name, value, expected));
        }
    }
    let mut redrive = |what, value: serde_json::Value, reason: Option<&str>| {
        let value = value.to_string();
        let refused = |reason| {
            format!(
                "InvalidParameterValue: Value {value} for parameter RedrivePolicy is invalid. Reason: {reason}"
            )
        };
        let expected = reason.map_or("ok".to_owned(), refused);
        rows.push(set(what, Standard, "RedrivePolicy", &value, expected));
    };
    let count = |count: &str| {
        format!("Invalid value for maxReceiveCount: {count}, valid values are from 1 to 1000 both inclusive.")
    };
    let policy =
        |count: serde_json::Value| json!({ "deadLetterTargetArn": TARGET, "maxReceiveCount": count });
    redrive("once", policy(json!(1)), None);
    redrive("a thousand times", policy(json!(1000)), None);
    redrive("a number as text", policy(json!("5")), None);
    redrive("no number", json!({ "deadLetterTargetArn": TARGET }), None);
    redrive("never", policy(json!(0)), Some(&count("0")));
    redrive("too often", policy(json!(1001)), Some(&count("1001")));
    redrive("too often, as text", policy(json!("1001")), Some(&count("1001")));
    redrive("half", policy(json!(1.5)), Some(&count("1.5")));
    redrive("no number at all", policy(json!("x")), Some(&count("x")));
    redrive("nowhere", json!({ "maxReceiveCount": 1 }), Some("Redrive policy does not contain …"));
    redrive(
        "no ARN",
        json!({ "deadLetterTargetArn": "d", "maxReceiveCount": 1 }),
        Some("Invalid value for …"),
    );
    redrive("no object", json!([1]), Some("The policy is not in a supported format."));
    let mut allow = |what, value: serde_json::Value, is_right: bool| {
        let value = value.to_string();
        let refused =
            || format!("InvalidParameterValue: Value {value} for parameter RedriveAllowPolicy is invalid.…");
        let expected = if is_right { "ok".to_owned() } else { refused() };
        rows.push(set(what, Standard, "RedriveAllowPolicy", &value, expected));
    };
    allow("everybody", json!({ "redrivePermission": "allowAll" }), true);
    allow("nobody", json!({ "redrivePermission": "denyAll" }), true);
    allow("somebody", json!({ "redrivePermission": "byQueue", "sourceQueueArns": [TARGET] }), true);
    allow("ten", json!({ "redrivePermission": "byQueue", "sourceQueueArns": vec![TARGET; 10] }), true);
    allow("eleven", json!({ "redrivePermission": "byQueue", "sourceQueueArns": vec![TARGET; 11] }), false);
    allow("somebody, but nobody", json!({ "redrivePermission": "byQueue" }), false);
    allow(
        "everybody, and somebody",
        json!({ "redrivePermission": "allowAll", "sourceQueueArns": [TARGET] }),
        false,
    );
    allow("no ARN", json!({ "redrivePermission": "byQueue", "sourceQueueArns": ["d"] }), false);
    allow("another word", json!({ "redrivePermission": "some" }), false);
    allow("no word", json!({}), false);
    allow("no object", json!("allowAll"), false);
    rows
}

#[test]
fn attributes_through_both_protocols() {
    play(&rows());
}

#[test]
fn a_limit_per_group_needs_deduplication_per_group() {
    let queue = Fifo.settings();
    let (scope, limit) =
        (("DeduplicationScope", "messageGroup"), ("FifoThroughputLimit", "perMessageGroupId"));
    assert!(queue.changed(&map(&[limit])).is_err());
    let scoped = queue.changed(&map(&[scope])).expect("without the limit too");
    assert!(scoped.changed(&map(&[limit])).is_ok());
    assert!(queue.changed(&map(&[scope, limit])).is_ok());
}

#[test]
fn a_redrive_policy_comes_back_with_a_number() {
    let set = |value: &str| {
        let settings = Standard.settings().changed(&map(&[("RedrivePolicy", value)])).expect("a policy");
        listed(&settings, &["RedrivePolicy"])[0].1.clone()
    };
    let expected = |count: u32| format!(r#"{{"deadLetterTargetArn":"{TARGET}","maxReceiveCount":{count}}}"#);
    assert_eq!(set(&format!(r#"{{"maxReceiveCount":3,"deadLetterTargetArn":"{TARGET}"}}"#)), expected(3));
    assert_eq!(set(&format!(r#"{{"maxReceiveCount":"3","deadLetterTargetArn":"{TARGET}"}}"#)), expected(3));
    assert_eq!(set(&format!(r#"{{"deadLetterTargetArn":"{TARGET}"}}"#)), expected(10));
    let settings = Standard.settings();
    let policy = settings.changed(&map(&[("RedrivePolicy", &expected(3))])).expect("a policy").redrive;
    assert_eq!(
        policy.expect("a policy").no_target().to_string(),
        format!(
            "InvalidParameterValue: Value {} for parameter RedrivePolicy is invalid. Reason: Dead letter target does \
             not exist.",
            expected(3)
        )
    );
}

#[test]
fn a_queue_says_whose_messages_it_takes() {
    let admits = |policy: serde_json::Value| {
        let policy = RedriveAllowPolicy::parse(&policy.to_string()).expect("a policy");
        assert_eq!(
            RedriveAllowPolicy::parse(&policy.render()).as_ref(),
            Ok(&policy),
            "it comes back as it went"
        );
        let arn = |text: &str| Arn::parse(text).expect("an ARN");
        [policy.admits(&arn(TARGET)), policy.admits(&arn("arn:aws:sqs:us-east-1:000000000000:x"))]
    };
    assert_eq!(admits(json!({ "redrivePermission": "allowAll" })), [true, true]);
    assert_eq!(admits(json!({ "redrivePermission": "denyAll" })), [false, false]);
    assert_eq!(admits(json!({ "redrivePermission": "byQueue", "sourceQueueArns": [TARGET] })), [true, false]);
}

#[test]
fn what_is_cleared_is_shown_no_more() {
    let set = [("KmsMasterKeyId", "k"), ("KmsDataKeyReusePeriodSeconds", "60"), ("Policy", "{}")];
    let settings = Standard.settings().changed(&map(&set)).expect("attributes");
    let names = ["KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "Policy"];
    assert_eq!(listed(&settings, &names).len(), 3);
    let cleared = [("KmsMasterKeyId", ""), ("KmsDataKeyReusePeriodSeconds", "300"), ("Policy", "")];
    let settings = settings.changed(&map(&cleared)).expect("attributes");
    assert_eq!(listed(&settings, &names), []);
    assert_eq!(settings.changed(&BTreeMap::new()), Ok(settings));
}
