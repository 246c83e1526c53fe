//! Requests about messages: sections 2.7 to 2.13.

use serde_json::{Map, Value, json};

use super::Queue::{ContentBased, Fifo, Small, Standard};
use super::{Queue, Row, ask, by_json, play, row};
use crate::sqs::wire::message::{AttributeValue, SystemAttribute, TRACE_HEADER};
use crate::sqs::wire::request::{ReceiveTerms, Request};

pub(super) fn rows() -> Vec<Row> {
    [sends(), attributes(), send_batches(), receives(), deletes(), visibilities()]
        .into_iter()
        .flatten()
        .collect()
}

fn missing(name: &str) -> String {
    format!("MissingParameter: The request must contain the parameter {name}.")
}

fn value(value: &str, name: &str, reason: &str) -> String {
    format!("InvalidParameterValue: Value {value} for parameter {name} is invalid. Reason: {reason}")
}

fn token(text: &str, name: &str) -> String {
    let reason =
        format!("{name} can only include alphanumeric and punctuation characters. 1 to 128 in length.");
    value(text, name, &reason)
}

/// A send with these members beside what it needs.
fn send(what: &'static str, queue: Queue, more: Value, expected: impl Into<String>) -> Row {
    row(
        "2.7",
        what,
        queue,
        "SendMessage",
        with(json!({ "QueueUrl": "q", "MessageBody": "b" }), more),
        expected,
    )
}

fn with(base: Value, more: Value) -> String {
    let (Value::Object(mut base), Value::Object(more)) = (base, more) else { panic!("objects") };
    base.extend(more);
    Value::Object(base).to_string()
}

const NOT_FOR_TYPE: &str = "The request include parameter that is not valid for this queue type.";
const NO_DEDUPLICATION: &str = "InvalidParameterValue: The queue should either have ContentBasedDeduplication \
                                enabled or MessageDeduplicationId provided explicitly";
const TOO_LONG: &str = "InvalidParameterValue: One or more parameters are invalid. Reason: Message must be shorter \
                        than 1024 bytes.";
const ALL_PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~aZ9";

fn sends() -> Vec<Row> {
    let range = |given: &str| value(given, "DelaySeconds", "DelaySeconds must be >= 0 and <= 900.");
    let (fits, long) = ("x".repeat(128), "x".repeat(129));
    let mut rows = vec![
        row("2.7", "no queue", Standard, "SendMessage", r#"{"MessageBody":"b"}"#, missing("QueueUrl")),
        row("2.7", "no body", Standard, "SendMessage", r#"{"QueueUrl":"q"}"#, missing("MessageBody")),
        send("an empty body", Standard, json!({ "MessageBody": "" }), missing("MessageBody")),
        send("as many bytes as may be", Small, json!({ "MessageBody": "b".repeat(1024) }), "ok"),
        send("a byte more", Small, json!({ "MessageBody": "b".repeat(1025) }), TOO_LONG),
        send("bytes, not characters", Small, json!({ "MessageBody": "é".repeat(513) }), TOO_LONG),
        send(
            "attributes count: name, type and value",
            Small,
            json!({
                "MessageBody": "b".repeat(1014),
                "MessageAttributes": { "abc": { "DataType": "String", "StringValue": "v" } },
            }),
            "ok",
        ),
        send(
            "attributes count: a byte more",
            Small,
            json!({
                "MessageBody": "b".repeat(1014),
                "MessageAttributes": { "abc": { "DataType": "String", "StringValue": "vv" } },
            }),
            TOO_LONG,
        ),
        send(
            "system attributes do not count",
            Small,
            json!({
                "MessageBody": "b".repeat(1024),
                "MessageSystemAttributes": { "AWSTraceHeader": { "DataType": "String", "StringValue": "v" } },
            }),
            "ok",
        ),
        send("no delay", Standard, json!({ "DelaySeconds": 0 }), "ok"),
        send("the longest delay", Standard, json!({ "DelaySeconds": 900 }), "ok"),
        send("longer", Standard, json!({ "DelaySeconds": 901 }), range("901")),
        send("into the past", Standard, json!({ "DelaySeconds": -1 }), range("-1")),
        send("no number", Standard, json!({ "DelaySeconds": "soon" }), range("soon")),
        send("no delay on FIFO", ContentBased, json!({ "DelaySeconds": 0, "MessageGroupId": "g" }), "ok"),
        send(
            "a delay on FIFO",
            ContentBased,
            json!({ "DelaySeconds": 5, "MessageGroupId": "g" }),
            value("5", "DelaySeconds", NOT_FOR_TYPE),
        ),
        send("no group", Fifo, json!({ "MessageDeduplicationId": "d" }), missing("MessageGroupId")),
        send("no deduplication", Fifo, json!({ "MessageGroupId": "g" }), NO_DEDUPLICATION),
        send("deduplication by contents", ContentBased, json!({ "MessageGroupId": "g" }), "ok"),
        send("both", Fifo, json!({ "MessageGroupId": "g", "MessageDeduplicationId": "d" }), "ok"),
        send("a group on standard", Standard, json!({ "MessageGroupId": "g" }), "ok"),
        send(
            "deduplication on standard",
            Standard,
            json!({ "MessageDeduplicationId": "d" }),
            value("d", "MessageDeduplicationId", NOT_FOR_TYPE),
        ),
        send(
            "the longest ids",
            Fifo,
            json!({ "MessageGroupId": fits, "MessageDeduplicationId": fits }),
            "ok",
        ),
        send(
            "all punctuation",
            Fifo,
            json!({ "MessageGroupId": ALL_PUNCTUATION, "MessageDeduplicationId": ALL_PUNCTUATION }),
            "ok",
        ),
        send(
            "deduplication too long",
            Fifo,
            json!({ "MessageGroupId": "g", "MessageDeduplicationId": long }),
            token(&long, "MessageDeduplicationId"),
        ),
        send(
            "deduplication with a space",
            Fifo,
            json!({ "MessageGroupId": "g", "MessageDeduplicationId": "a b" }),
            token("a b", "MessageDeduplicationId"),
        ),
        send(
            "empty deduplication",
            Fifo,
            json!({ "MessageGroupId": "g", "MessageDeduplicationId": "" }),
            token("", "MessageDeduplicationId"),
        ),
    ];
    for queue in [Standard, ContentBased] {
        for wrong in [&long[..], "", "a b", "é", "a\n"] {
            rows.push(send(
                "a group that cannot be",
                queue,
                json!({ "MessageGroupId": wrong }),
                token(wrong, "MessageGroupId"),
            ));
        }
    }
    let contents = "InvalidMessageContents: …";
    for wrong in ["\u{0}", "\u{8}", "\u{b}", "\u{c}", "\u{e}", "\u{1f}", "\u{fffe}", "\u{ffff}"] {
        rows.push(send("what XML cannot carry", Standard, json!({ "MessageBody": wrong }), contents));
    }
    for right in
        ["\t", "\n", "\r", " ", "\u{7f}", "\u{d7ff}", "\u{e000}", "\u{fffd}", "\u{10000}", "\u{10ffff}"]
    {
        rows.push(send("what it can", Standard, json!({ "MessageBody": right }), "ok"));
    }
    rows
}

fn attributes() -> Vec<Row> {
    let attribute = |what, name: &str, attribute: Value, expected: &str| {
        let mut named = Map::new();
        named.insert(name.to_owned(), attribute);
        send(what, Standard, json!({ "MessageAttributes": named }), expected)
    };
    let text = || json!({ "DataType": "String", "StringValue": "v" });
    let many = |count| (0..count).map(|n| (format!("a{n}"), text())).collect::<Map<_, _>>();
    let refused = "InvalidParameterValue: …";
    let empty = |data_type: &str| {
        format!(
            "InvalidParameterValue: Message (user) attribute 'a' must contain a non-empty value of type \
             '{data_type}'."
        )
    };
    let no_number =
        "InvalidParameterValue: Can't cast the value of message (user) attribute 'a' to a number.";
    let mut rows = vec![
        send("ten attributes", Standard, json!({ "MessageAttributes": many(10) }), "ok"),
        send(
            "eleven attributes",
            Standard,
            json!({ "MessageAttributes": many(11) }),
            "InvalidParameterValue: Number of message attributes [11] exceeds the allowed maximum [10].",
        ),
        attribute("no type", "a", json!({ "StringValue": "v" }), refused),
        attribute(
            "a type of 256",
            "a",
            json!({ "DataType": format!("String.{}", "x".repeat(249)), "StringValue": "v" }),
            "ok",
        ),
        attribute(
            "a type of 257",
            "a",
            json!({ "DataType": format!("String.{}", "x".repeat(250)), "StringValue": "v" }),
            refused,
        ),
        attribute("no text", "a", json!({ "DataType": "String" }), &empty("String")),
        attribute("an empty text", "a", json!({ "DataType": "String", "StringValue": "" }), &empty("String")),
        attribute("no number", "a", json!({ "DataType": "Number", "StringValue": "" }), &empty("Number")),
        attribute("no bytes", "a", json!({ "DataType": "Binary", "BinaryValue": "" }), &empty("Binary")),
        attribute(
            "text for bytes",
            "a",
            json!({ "DataType": "Binary", "StringValue": "v" }),
            &empty("Binary"),
        ),
        attribute("a label and no text", "a", json!({ "DataType": "String.x" }), &empty("String.x")),
        attribute(
            "a control character",
            "a",
            json!({ "DataType": "String", "StringValue": "\u{1}" }),
            refused,
        ),
        attribute(
            "a list of texts",
            "a",
            json!({ "DataType": "String", "StringListValues": ["v"] }),
            "AWS.SimpleQueueService.UnsupportedOperation: …",
        ),
        attribute(
            "a list of bytes",
            "a",
            json!({ "DataType": "Binary", "BinaryListValues": ["AA=="] }),
            "AWS.SimpleQueueService.UnsupportedOperation: …",
        ),
        attribute(
            "not base64",
            "a",
            json!({ "DataType": "Binary", "BinaryValue": "?" }),
            "MalformedInput: …",
        ),
        send(
            "another system attribute",
            Standard,
            json!({ "MessageSystemAttributes": { "SenderId": text() } }),
            refused,
        ),
        send(
            "the system attribute",
            Standard,
            json!({ "MessageSystemAttributes": { TRACE_HEADER: text() } }),
            "ok",
        ),
        send(
            "the system attribute, in bytes",
            Standard,
            json!({ "MessageSystemAttributes": { TRACE_HEADER: { "DataType": "Binary", "BinaryValue": "AA==" } } }),
            refused,
        ),
    ];
    let long = "a".repeat(257);
    for wrong in ["", &long, "a b", "a$", "AWS.a", "aws.a", "Amazon.a", "AMAZON.a", ".a", "a.", "a..b"] {
        rows.push(attribute("a name that cannot be", wrong, text(), refused));
    }
    let long = "a".repeat(256);
    for right in ["a", &long, "a-b_c.D9", "AWS", "awsa", "Amazona", "é", "Ünï"] {
        rows.push(attribute("a name that can", right, text(), "ok"));
    }
    for wrong in ["", "string", "Text", "String.", "Number,x", "Binaryx", ".String"] {
        let draft = json!({ "DataType": wrong, "StringValue": "1", "BinaryValue": "AA==" });
        rows.push(attribute("a type that cannot be", "a", draft, refused));
    }
    for right in ["String", "Number", "Binary", "String.x", "Number.int.32", "Binary.png"] {
        let draft = json!({ "DataType": right, "StringValue": "1", "BinaryValue": "AA==" });
        rows.push(attribute("a type that can", "a", draft, "ok"));
    }
    let digits = "9".repeat(39);
    for wrong in ["one", "1,5", "1.2.3", "-", ".", "1e", "e1", " 1", "0x1", "NaN", "1e127", "1e-129", &digits]
    {
        let draft = json!({ "DataType": "Number", "StringValue": wrong });
        rows.push(attribute("a number that cannot be", "a", draft, no_number));
    }
    let digits = "9".repeat(38);
    let zeros = format!("1{}", "0".repeat(100));
    for right in ["0", "-0.0", "1", "+1", "-1.50", ".5", "1.", "1e126", "1E-128", &digits, &zeros, "00.10"] {
        let draft = json!({ "DataType": "Number", "StringValue": right });
        rows.push(attribute("a number that can", "a", draft, "ok"));
    }
    rows
}

/// Batches that are invalid whatever their entries are.
fn whole_batches(section: &'static str, action: &'static str, entry: fn(&str) -> Value) -> Vec<Row> {
    let batch = |what, ids: &[&str], expected: &str| {
        let entries: Vec<Value> = ids.iter().map(|id| entry(id)).collect();
        row(
            section,
            what,
            Standard,
            action,
            json!({ "QueueUrl": "q", "Entries": entries }).to_string(),
            expected,
        )
    };
    let empty = format!(
        "AWS.SimpleQueueService.EmptyBatchRequest: There should be at least one {action}RequestEntry in the request."
    );
    let bad_id = "AWS.SimpleQueueService.InvalidBatchEntryId: A batch entry id can only contain alphanumeric \
                  characters, hyphens and underscores. It can be at most 80 letters long.";
    let ids: Vec<String> = (0..11).map(|n| n.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let no_id = {
        let mut entry = entry("1");
        entry.as_object_mut().expect("an object").remove("Id");
        json!({ "QueueUrl": "q", "Entries": [entry] }).to_string()
    };
    vec![
        row(section, "no queue", Standard, action, "{}", missing("QueueUrl")),
        row(section, "no entries", Standard, action, r#"{"QueueUrl":"q"}"#, &empty[..]),
        batch("an empty list", &[], &empty),
        batch(
            "eleven",
            &ids,
            "AWS.SimpleQueueService.TooManyEntriesInBatchRequest: Maximum number of entries per request are 10. You \
             have sent 11.",
        ),
        batch("an empty id", &[""], bad_id),
        batch("an id of 81", &[&"i".repeat(81)], bad_id),
        batch("an id with a dot", &["1", "a.b"], bad_id),
        batch(
            "an id twice",
            &["a", "b", "a"],
            "AWS.SimpleQueueService.BatchEntryIdsNotDistinct: Id a repeated.",
        ),
        batch("a bad id before one twice", &["a", "a", "?"], bad_id),
        row(section, "no id", Standard, action, no_id, missing(&format!("{action}RequestEntry.1.Id"))),
    ]
}

fn send_batches() -> Vec<Row> {
    let mut rows = whole_batches("2.8", "SendMessageBatch", |id| json!({ "Id": id, "MessageBody": "b" }));
    let batch = |what, queue, entries: Value, expected: &str| {
        let json = json!({ "QueueUrl": "q", "Entries": entries }).to_string();
        row("2.8", what, queue, "SendMessageBatch", json, expected)
    };
    let (half, long) = ("b".repeat(524_288), "i".repeat(80));
    let ids: Vec<String> = (0..10).map(|n| n.to_string()).collect();
    let ten: Vec<Value> = ids.iter().map(|id| json!({ "Id": id, "MessageBody": "b" })).collect();
    let all: Vec<String> = ids.iter().map(|id| format!("{id}=ok")).collect();
    rows.extend([
        batch("ten", Standard, json!(ten), &all.join(" ")),
        batch(
            "an id of 80",
            Standard,
            json!([{ "Id": long, "MessageBody": "b" }]),
            &format!("{long}=ok"),
        ),
        batch(
            "a mebibyte",
            Standard,
            json!([{ "Id": "1", "MessageBody": half }, { "Id": "2", "MessageBody": half }]),
            "1=ok 2=ok",
        ),
        batch(
            "a byte more",
            Small,
            json!([{ "Id": "1", "MessageBody": half }, { "Id": "2", "MessageBody": format!("{half}b") }]),
            "AWS.SimpleQueueService.BatchRequestTooLong: Batch requests cannot be longer than 1048576 bytes. You \
             have sent 1048577 bytes.",
        ),
        batch(
            "no group on FIFO",
            Fifo,
            json!([
                { "Id": "1", "MessageBody": "b", "MessageGroupId": "g", "MessageDeduplicationId": "d" },
                { "Id": "2", "MessageBody": "b", "MessageDeduplicationId": "e" },
            ]),
            "InvalidParameterValue: The request must contain the parameter MessageGroupId.",
        ),
        batch(
            "no deduplication on FIFO",
            Fifo,
            json!([{ "Id": "1", "MessageBody": "b", "MessageGroupId": "g" }]),
            NO_DEDUPLICATION,
        ),
        batch(
            "a body that XML cannot carry",
            Standard,
            json!([{ "Id": "1", "MessageBody": "\u{1}" }, { "Id": "2", "MessageBody": "b" }]),
            "1=InvalidMessageContents: …",
        ),
        batch(
            "longer than the queue takes",
            Small,
            json!([{ "Id": "1", "MessageBody": "b" }, { "Id": "2", "MessageBody": "b".repeat(1025) }]),
            "1=ok 2=InvalidParameterValue: One or more parameters cannot be validated. Reason: Message must be \
             shorter than 1024 bytes.",
        ),
        batch(
            "a delay that cannot be",
            Standard,
            json!([{ "Id": "1", "MessageBody": "b", "DelaySeconds": 901 }, { "Id": "2", "MessageBody": "b" }]),
            "1=InvalidParameterValue: Value 901 for parameter DelaySeconds is invalid. Reason: DelaySeconds must be \
             >= 0 and <= 900. 2=ok",
        ),
        batch(
            "an empty body",
            Standard,
            json!([{ "Id": "1", "MessageBody": "" }, { "Id": "2", "MessageBody": "b" }]),
            "1=MissingParameter: The request must contain the parameter MessageBody. 2=ok",
        ),
        batch(
            "no body",
            Standard,
            json!([{ "Id": "1", "MessageBody": "b" }, { "Id": "2" }]),
            &missing("SendMessageBatchRequestEntry.2.MessageBody"),
        ),
    ]);
    rows
}

fn receives() -> Vec<Row> {
    let receive = |what, queue, more: Value, expected: &str| {
        row("2.9", what, queue, "ReceiveMessage", with(json!({ "QueueUrl": "q" }), more), expected)
    };
    let max = |given: &str| value(given, "MaxNumberOfMessages", "Must be between 1 and 10, if provided.");
    let wait = |given: &str| value(given, "WaitTimeSeconds", "Must be >= 0 and <= 20, if provided.");
    let long = "r".repeat(129);
    let attempt = "ReceiveRequestAttemptId";
    let mut rows = vec![
        row("2.9", "no queue", Standard, "ReceiveMessage", "{}", missing("QueueUrl")),
        receive("nothing said", Standard, json!({}), "ok"),
        receive(
            "an attempt on standard",
            Standard,
            json!({ attempt: "r" }),
            &value("r", attempt, NOT_FOR_TYPE),
        ),
        receive("an attempt", Fifo, json!({ attempt: "r" }), "ok"),
        receive("the longest attempt", Fifo, json!({ attempt: "r".repeat(128) }), "ok"),
        receive("a longer one", Fifo, json!({ attempt: long }), &token(&long, attempt)),
        receive("an unknown system attribute", Standard, json!({ "AttributeNames": ["Nothing"] }), "ok"),
        receive(
            "an illegal attribute name",
            Standard,
            json!({ "MessageAttributeNames": ["AWS.", "a b", ""] }),
            "ok",
        ),
    ];
    for right in ["1", "10"] {
        rows.push(receive("how many", Standard, json!({ "MaxNumberOfMessages": right }), "ok"));
    }
    for wrong in ["0", "11", "-1", "x"] {
        let expected = max(wrong);
        rows.push(receive("not so many", Standard, json!({ "MaxNumberOfMessages": wrong }), &expected));
    }
    for right in ["0", "20"] {
        rows.push(receive("how long to wait", Standard, json!({ "WaitTimeSeconds": right }), "ok"));
    }
    for wrong in ["-1", "21", "x"] {
        rows.push(receive("not so long", Standard, json!({ "WaitTimeSeconds": wrong }), &wait(wrong)));
    }
    for right in ["0", "43200"] {
        rows.push(receive("out of sight", Standard, json!({ "VisibilityTimeout": right }), "ok"));
    }
    for wrong in ["-1", "43201", "x"] {
        let expected =
            format!("InvalidParameterValue: Value {wrong} for parameter VisibilityTimeout is invalid.…");
        rows.push(receive(
            "not so long out of sight",
            Standard,
            json!({ "VisibilityTimeout": wrong }),
            &expected,
        ));
    }
    rows
}

fn deletes() -> Vec<Row> {
    let mut rows =
        whole_batches("2.11", "DeleteMessageBatch", |id| json!({ "Id": id, "ReceiptHandle": "r" }));
    rows.extend([
        row("2.10", "no queue", Standard, "DeleteMessage", r#"{"ReceiptHandle":"r"}"#, missing("QueueUrl")),
        row("2.10", "no receipt", Standard, "DeleteMessage", r#"{"QueueUrl":"q"}"#, missing("ReceiptHandle")),
        row("2.10", "a receipt", Standard, "DeleteMessage", r#"{"QueueUrl":"q","ReceiptHandle":"r"}"#, "ok"),
        row(
            "2.11",
            "no receipt",
            Standard,
            "DeleteMessageBatch",
            r#"{"QueueUrl":"q","Entries":[{"Id":"1"}]}"#,
            missing("DeleteMessageBatchRequestEntry.1.ReceiptHandle"),
        ),
        row(
            "2.11",
            "a receipt",
            Standard,
            "DeleteMessageBatch",
            r#"{"QueueUrl":"q","Entries":[{"Id":"1","ReceiptHandle":"r"}]}"#,
            "ok",
        ),
    ]);
    rows
}

fn visibilities() -> Vec<Row> {
    let range = |given: &str| {
        value(given, "VisibilityTimeout", "VisibilityTimeout must be an integer between 0 and 43200.")
    };
    let action = "ChangeMessageVisibility";
    let mut rows = whole_batches(
        "2.13",
        "ChangeMessageVisibilityBatch",
        |id| json!({ "Id": id, "ReceiptHandle": "r", "VisibilityTimeout": 1 }),
    );
    rows.extend([
        row("2.12", "no queue", Standard, action, "{}", missing("QueueUrl")),
        row("2.12", "no receipt", Standard, action, r#"{"QueueUrl":"q"}"#, missing("ReceiptHandle")),
        row(
            "2.12",
            "no timeout",
            Standard,
            action,
            r#"{"QueueUrl":"q","ReceiptHandle":"r"}"#,
            missing("VisibilityTimeout"),
        ),
        row(
            "2.13",
            "entries for themselves",
            Standard,
            "ChangeMessageVisibilityBatch",
            json!({ "QueueUrl": "q", "Entries": [
                { "Id": "1", "ReceiptHandle": "r", "VisibilityTimeout": 0 },
                { "Id": "2", "ReceiptHandle": "r", "VisibilityTimeout": 43_201 },
                { "Id": "3", "ReceiptHandle": "r" },
            ] })
            .to_string(),
            format!("1=ok 2={} 3={}", range("43201"), missing("VisibilityTimeout")),
        ),
    ]);
    for (given, expected) in [
        ("0", "ok".to_owned()),
        ("43200", "ok".to_owned()),
        ("-1", range("-1")),
        ("43201", range("43201")),
        ("x", range("x")),
    ] {
        let json = json!({ "QueueUrl": "q", "ReceiptHandle": "r", "VisibilityTimeout": given }).to_string();
        rows.push(row("2.12", "a timeout", Standard, action, json, expected));
    }
    rows
}

#[test]
fn requests_about_messages() {
    play(&rows());
}

#[test]
fn a_message_is_as_it_was_sent() {
    let json = r#"{"QueueUrl":"q","MessageBody":"b\r\n","DelaySeconds":0,"MessageGroupId":"g","MessageAttributes":
        {"b":{"DataType":"Binary.x","BinaryValue":"AAH/"},"n":{"DataType":"Number","StringValue":"1"}}}"#;
    let Ok(Request::SendMessage(send)) = by_json("SendMessage", json) else { panic!("a request") };
    let on_fifo = send.clone().message(&ContentBased.settings().rules()).expect("a message");
    assert_eq!(on_fifo.delay, None, "as long as the queue says");
    let message = send.message(&Standard.settings().rules()).expect("a message");
    assert_eq!((&message.body[..], message.delay), ("b\r\n", Some(0)));
    assert_eq!(message.group_id.as_deref(), Some("g"));
    assert_eq!(message.attributes["b"].value, AttributeValue::Bytes(vec![0, 1, 255]));
    assert_eq!(message.attributes["b"].data_type, "Binary.x");
    assert_eq!(message.attributes["n"].value, AttributeValue::Text("1".to_owned()));
}

#[test]
fn a_send_joins_the_trace_of_its_request_unless_it_has_one() {
    let trace_of = |body: &str| {
        let headers = [
            ("content-type", "application/x-amz-json-1.0"),
            ("x-amz-target", "AmazonSQS.SendMessage"),
            ("x-amzn-trace-id", "Root=1"),
        ];
        let Ok(Request::SendMessage(send)) = ask("/", "", &headers, body) else { panic!("a request") };
        let message = send.message(&Standard.settings().rules()).expect("a message");
        message.system_attributes[TRACE_HEADER].value.clone()
    };
    let text = |text: &str| AttributeValue::Text(text.to_owned());
    assert_eq!(trace_of(r#"{"QueueUrl":"q","MessageBody":"b"}"#), text("Root=1"));
    let own = r#"{"QueueUrl":"q","MessageBody":"b","MessageSystemAttributes":
        {"AWSTraceHeader":{"DataType":"String","StringValue":"own"}}}"#;
    assert_eq!(trace_of(own), text("own"));
}

#[test]
fn a_receiver_sees_the_attributes_it_asks_for() {
    let asks = |names: &[&str]| {
        let json = json!({ "QueueUrl": "q", "MessageAttributeNames": names }).to_string();
        let Ok(Request::ReceiveMessage(receive)) = by_json("ReceiveMessage", &json) else {
            panic!("a request")
        };
        let names = ["a", "ab", "a.b", "b"];
        names.into_iter().filter(|name| receive.attributes.wants(name)).collect::<Vec<_>>().join(" ")
    };
    for (names, seen) in [
        (&[][..], ""),
        (&["a"], "a"),
        (&["a", "b", "c"], "a b"),
        (&["All"], "a ab a.b b"),
        (&[".*"], "a ab a.b b"),
        (&["*"], "a ab a.b b"),
        (&["a.*"], "a ab a.b"),
        (&["a.b"], "a.b"),
        (&["all", "A", "AWS.*"], ""),
    ] {
        assert_eq!(asks(names), seen, "{names:?}");
    }
}

#[test]
fn a_receiver_sees_the_system_attributes_of_either_list() {
    let asks = |json: &str| {
        let Ok(Request::ReceiveMessage(receive)) = by_json("ReceiveMessage", json) else {
            panic!("a request")
        };
        let all = SystemAttribute::ALL.iter().filter(|it| receive.system_attributes.wants(**it));
        all.map(|it| it.name()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(asks(r#"{"QueueUrl":"q"}"#), "");
    assert_eq!(
        asks(
            r#"{"QueueUrl":"q","AttributeNames":["SenderId"],"MessageSystemAttributeNames":["SentTimestamp"]}"#
        ),
        "SenderId SentTimestamp"
    );
    assert_eq!(
        asks(r#"{"QueueUrl":"q","AttributeNames":["All","Nothing"]}"#),
        "AWSTraceHeader ApproximateFirstReceiveTimestamp ApproximateReceiveCount DeadLetterQueueSourceArn \
         MessageDeduplicationId MessageGroupId SenderId SentTimestamp SequenceNumber"
    );
}

#[test]
fn a_receive_takes_one_message_as_the_queue_says_unless_told_otherwise() {
    let terms = |json: &str| {
        let Ok(Request::ReceiveMessage(receive)) = by_json("ReceiveMessage", json) else {
            panic!("a request")
        };
        receive.terms(&Fifo.settings().rules()).expect("terms")
    };
    assert_eq!(
        terms(r#"{"QueueUrl":"q"}"#),
        ReceiveTerms { max: 1, visibility: None, wait: None, attempt_id: None }
    );
    let json = r#"{"QueueUrl":"q","MaxNumberOfMessages":10,"VisibilityTimeout":0,"WaitTimeSeconds":"20",
        "ReceiveRequestAttemptId":"r"}"#;
    assert_eq!(
        terms(json),
        ReceiveTerms { max: 10, visibility: Some(0), wait: Some(20), attempt_id: Some("r".to_owned()) }
    );
}
