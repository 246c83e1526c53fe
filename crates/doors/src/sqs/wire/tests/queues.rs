//! Requests about queues: sections 2.1 to 2.6 and 2.14 to 2.17.

use std::collections::BTreeMap;

use serde_json::json;

use super::Queue::{Fifo, Standard};
use super::{Row, by_json, map, play, row};
use crate::sqs::wire::address::Arn;
use crate::sqs::wire::attributes::{QueueAttribute, QueueSettings};
use crate::sqs::wire::policy;
use crate::sqs::wire::request::Request;

const BAD_NAME: &str = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length";
const BAD_FIFO_NAME: &str = "The name of a FIFO queue can only include alphanumeric characters, hyphens, or \
                             underscores, must end with .fifo suffix and be 1 to 80 in length";

fn bad_name(name: &str, reason: &str) -> String {
    format!("InvalidParameterValue: Value {name} for parameter QueueName is invalid. Reason: {reason}")
}

fn missing(name: &str) -> String {
    format!("MissingParameter: The request must contain the parameter {name}.")
}

pub(super) fn rows() -> Vec<Row> {
    [creations(), lists(), changes(), tags(), permissions()].into_iter().flatten().collect()
}

fn creations() -> Vec<Row> {
    let create = |what, json: serde_json::Value, expected: String| {
        row("2.1", what, Standard, "CreateQueue", json.to_string(), expected)
    };
    let unknown = |name: &str| format!("InvalidAttributeName: Unknown Attribute {name}.");
    let (fits, too_long) = ("a".repeat(80), "a".repeat(81));
    let (fifo_fits, fifo_too_long) = (format!("{}.fifo", "a".repeat(75)), format!("{}.fifo", "a".repeat(76)));
    let fifo = json!({ "FifoQueue": "true" });
    let mut rows = vec![
        create("no name", json!({}), missing("QueueName")),
        create("a name of 80", json!({ "QueueName": fits }), "ok".into()),
        create("a name of 81", json!({ "QueueName": too_long }), bad_name(&too_long, BAD_NAME)),
        create("an empty name", json!({ "QueueName": "" }), bad_name("", BAD_NAME)),
        create("a name with a dot", json!({ "QueueName": "a.b" }), bad_name("a.b", BAD_NAME)),
        create("a name with a space", json!({ "QueueName": "a b" }), bad_name("a b", BAD_NAME)),
        create("a name with an accent", json!({ "QueueName": "é" }), bad_name("é", BAD_NAME)),
        create("FIFO", json!({ "QueueName": "q.fifo", "Attributes": fifo }), "ok".into()),
        create("FIFO, of 80", json!({ "QueueName": fifo_fits, "Attributes": fifo }), "ok".into()),
        create(
            "FIFO, of 81",
            json!({ "QueueName": fifo_too_long, "Attributes": fifo }),
            bad_name(&fifo_too_long, BAD_FIFO_NAME),
        ),
        create("FIFO by name only", json!({ "QueueName": "q.fifo" }), bad_name("q.fifo", BAD_NAME)),
        create(
            "FIFO by attribute only",
            json!({ "QueueName": "q", "Attributes": fifo }),
            bad_name("q", BAD_FIFO_NAME),
        ),
        create(
            "nothing but the suffix",
            json!({ "QueueName": ".fifo", "Attributes": fifo }),
            bad_name(".fifo", BAD_FIFO_NAME),
        ),
        create(
            "not FIFO, said by an attribute",
            json!({ "QueueName": "q", "Attributes": { "FifoQueue": "false" } }),
            unknown("FifoQueue"),
        ),
        create(
            "not FIFO, said by an attribute, with the suffix",
            json!({ "QueueName": "q.fifo", "Attributes": { "FifoQueue": "false" } }),
            unknown("FifoQueue"),
        ),
        create(
            "deduplication by contents on standard",
            json!({ "QueueName": "q", "Attributes": { "ContentBasedDeduplication": "true" } }),
            unknown("ContentBasedDeduplication"),
        ),
        create(
            "an unknown attribute",
            json!({ "QueueName": "q", "Attributes": { "Nothing": "1" } }),
            unknown("Nothing"),
        ),
        create("tags", json!({ "QueueName": "q", "tags": { "a": "1" } }), "ok".into()),
        create(
            "a tag of AWS",
            json!({ "QueueName": "q", "tags": { "aws:a": "1" } }),
            "InvalidParameterValue: Value aws:a for parameter TagKey is invalid.…".into(),
        ),
    ];
    for (name, value) in [("DeduplicationScope", "queue"), ("FifoThroughputLimit", "perQueue")] {
        rows.push(create(
            "for FIFO only",
            json!({ "QueueName": "q", "Attributes": { name: value } }),
            format!("InvalidAttributeName: You can specify the {name} only when FifoQueue is set to true."),
        ));
    }
    for name in [
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
        "CreatedTimestamp",
        "LastModifiedTimestamp",
        "QueueArn",
    ] {
        let json = json!({ "QueueName": "q", "Attributes": { name: "1" } });
        rows.push(create("read-only on creation", json, unknown(name)));
        let json = json!({ "QueueUrl": "q", "Attributes": { name: "1" } }).to_string();
        rows.push(row("2.6", "read-only on a change", Standard, "SetQueueAttributes", json, unknown(name)));
    }
    rows
}

fn lists() -> Vec<Row> {
    let range = |value: &str| {
        format!(
            "InvalidParameterValue: Value {value} for parameter MaxResults is invalid. Reason: Must be between 1 \
             and 1000, if provided."
        )
    };
    vec![
        row("2.2", "no name", Standard, "GetQueueUrl", "{}", missing("QueueName")),
        row("2.2", "a name", Standard, "GetQueueUrl", r#"{"QueueName":"q"}"#, "ok"),
        row("2.3", "nothing said", Standard, "ListQueues", "{}", "ok"),
        row("2.3", "one", Standard, "ListQueues", r#"{"MaxResults":1}"#, "ok"),
        row("2.3", "the most", Standard, "ListQueues", r#"{"MaxResults":1000}"#, "ok"),
        row("2.3", "a number as text", Standard, "ListQueues", r#"{"MaxResults":"7"}"#, "ok"),
        row("2.3", "none", Standard, "ListQueues", r#"{"MaxResults":0}"#, range("0")),
        row("2.3", "too many", Standard, "ListQueues", r#"{"MaxResults":1001}"#, range("1001")),
        row("2.3", "less than none", Standard, "ListQueues", r#"{"MaxResults":-1}"#, range("-1")),
        row("2.3", "no number", Standard, "ListQueues", r#"{"MaxResults":"many"}"#, range("many")),
        row("2.3", "half a queue", Standard, "ListQueues", r#"{"MaxResults":1.5}"#, range("1.5")),
        row("2.4", "no queue", Standard, "DeleteQueue", "{}", missing("QueueUrl")),
        row("2.5", "no queue", Standard, "GetQueueAttributes", "{}", missing("QueueUrl")),
        row("2.5", "no names", Standard, "GetQueueAttributes", r#"{"QueueUrl":"q"}"#, "ok"),
        row(
            "2.5",
            "an unknown name",
            Standard,
            "GetQueueAttributes",
            r#"{"QueueUrl":"q","AttributeNames":["All","Nothing"]}"#,
            "InvalidAttributeName: Unknown Attribute Nothing.",
        ),
        row(
            "2.5",
            "a name in another case",
            Standard,
            "GetQueueAttributes",
            r#"{"QueueUrl":"q","AttributeNames":["queuearn"]}"#,
            "InvalidAttributeName: Unknown Attribute queuearn.",
        ),
        row("2.14", "no queue", Standard, "PurgeQueue", "{}", missing("QueueUrl")),
        row("2.14", "an empty queue URL", Standard, "PurgeQueue", r#"{"QueueUrl":""}"#, missing("QueueUrl")),
        row("2.15", "no queue", Standard, "ListDeadLetterSourceQueues", "{}", missing("QueueUrl")),
        row(
            "2.15",
            "too many",
            Standard,
            "ListDeadLetterSourceQueues",
            r#"{"QueueUrl":"q","MaxResults":1001}"#,
            range("1001"),
        ),
    ]
}

fn changes() -> Vec<Row> {
    let set = |what, queue, attributes: serde_json::Value, expected: &str| {
        let json = json!({ "QueueUrl": "q", "Attributes": attributes }).to_string();
        row("2.6", what, queue, "SetQueueAttributes", json, expected)
    };
    let two_encryptions = "InvalidAttributeName: You can use one type of server-side encryption (SSE) at one time. \
                           You can either enable KMS SSE or SQS SSE.";
    vec![
        row(
            "2.6",
            "no queue",
            Standard,
            "SetQueueAttributes",
            r#"{"Attributes":{"a":"b"}}"#,
            missing("QueueUrl"),
        ),
        row(
            "2.6",
            "no attributes",
            Standard,
            "SetQueueAttributes",
            r#"{"QueueUrl":"q"}"#,
            missing("Attributes"),
        ),
        set("an empty map", Standard, json!({}), &missing("Attributes")),
        set("unknown", Standard, json!({ "X": "1" }), "InvalidAttributeName: Unknown Attribute X."),
        set("FIFO on FIFO", Fifo, json!({ "FifoQueue": "true" }), "ok"),
        set(
            "FIFO no more",
            Fifo,
            json!({ "FifoQueue": "false" }),
            "InvalidAttributeValue: Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not \
             supported.",
        ),
        set(
            "FIFO from now on",
            Standard,
            json!({ "FifoQueue": "true" }),
            "InvalidAttributeName: Unknown Attribute FifoQueue.",
        ),
        set(
            "not FIFO, as it is",
            Standard,
            json!({ "FifoQueue": "false" }),
            "InvalidAttributeName: Unknown Attribute FifoQueue.",
        ),
        set(
            "cleared",
            Standard,
            json!({ "Policy": "", "RedrivePolicy": "", "RedriveAllowPolicy": "" }),
            "ok",
        ),
        set("a key cleared", Standard, json!({ "KmsMasterKeyId": "" }), "ok"),
        set(
            "both encryptions",
            Standard,
            json!({ "KmsMasterKeyId": "k", "SqsManagedSseEnabled": "true" }),
            two_encryptions,
        ),
        set(
            "one encryption",
            Standard,
            json!({ "KmsMasterKeyId": "k", "SqsManagedSseEnabled": "false" }),
            "ok",
        ),
    ]
}

fn tags() -> Vec<Row> {
    let tag = |what, tags: serde_json::Value, expected: &str| {
        row(
            "2.16",
            what,
            Standard,
            "TagQueue",
            json!({ "QueueUrl": "q", "Tags": tags }).to_string(),
            expected,
        )
    };
    let pairs =
        |count: usize| (0..count).map(|n| (n.to_string(), json!("v"))).collect::<serde_json::Map<_, _>>();
    let refused = "InvalidParameterValue: …";
    vec![
        row("2.16", "no queue", Standard, "TagQueue", r#"{"Tags":{"a":"b"}}"#, missing("QueueUrl")),
        row("2.16", "no tags", Standard, "TagQueue", r#"{"QueueUrl":"q"}"#, missing("Tags")),
        tag("an empty map", json!({}), &missing("Tags")),
        tag("a key of 128", json!({ "k".repeat(128): "v" }), "ok"),
        tag("a key of 129", json!({ "k".repeat(129): "v" }), refused),
        tag("an empty key", json!({ "": "v" }), refused),
        tag("a key of AWS", json!({ "aws:k": "v" }), refused),
        tag("an empty value", json!({ "k": "" }), "ok"),
        tag("a value of 256", json!({ "k": "v".repeat(256) }), "ok"),
        tag("a value of 257", json!({ "k": "v".repeat(257) }), refused),
        tag("all that is allowed", json!({ "Ünï 0_.:/=+-@": "Ünï 0_.:/=+-@" }), "ok"),
        tag("what is not", json!({ "a#": "v" }), refused),
        tag("50", json!(pairs(50)), "ok"),
        tag("51", json!(pairs(51)), refused),
        row("2.16", "no keys", Standard, "UntagQueue", r#"{"QueueUrl":"q"}"#, missing("TagKeys")),
        row("2.16", "an empty list", Standard, "UntagQueue", r#"{"QueueUrl":"q","TagKeys":[]}"#, refused),
        row("2.16", "a key", Standard, "UntagQueue", r#"{"QueueUrl":"q","TagKeys":["a"]}"#, "ok"),
        row("2.16", "no queue", Standard, "UntagQueue", r#"{"TagKeys":["a"]}"#, missing("QueueUrl")),
        row("2.16", "no queue", Standard, "ListQueueTags", "{}", missing("QueueUrl")),
    ]
}

fn permissions() -> Vec<Row> {
    let add = |what, label: &str, accounts: &[&str], actions: &[&str], expected: &str| {
        let json = json!({ "QueueUrl": "q", "Label": label, "AWSAccountIds": accounts, "Actions": actions });
        row("2.17", what, Standard, "AddPermission", json.to_string(), expected)
    };
    let account = &["123456789012"][..];
    let send = &["SendMessage"][..];
    let bad_label = "InvalidParameterValue: Value …";
    let bad_action = |name: &str, reason: &str| {
        format!(
            "InvalidParameterValue: Value SQS:{name} for parameter ActionName is invalid. Reason: {reason}"
        )
    };
    let owner = "Only the queue owner is allowed to invoke this action.";
    vec![
        add("one of each", "l", account, send, "ok"),
        add("everything", "l", account, &["*"], "ok"),
        add("a label of 80", &"l".repeat(80), account, send, "ok"),
        add("a label of 81", &"l".repeat(81), account, send, bad_label),
        add("an empty label", "", account, send, bad_label),
        add("a label with a space", "a b", account, send, bad_label),
        add("seven actions", "l", account, &["SendMessage"; 7], "ok"),
        add(
            "eight actions",
            "l",
            account,
            &["SendMessage"; 8],
            "OverLimit: 8 Actions were found, maximum allowed is 7.",
        ),
        add(
            "an unknown action",
            "l",
            account,
            &["Nothing"],
            &bad_action("Nothing", "Please refer to the appropriate WSDL for a list of valid actions."),
        ),
        add("an owner's action", "l", account, &["RemovePermission"], &bad_action("RemovePermission", owner)),
        add("another one", "l", account, &["CreateQueue"], &bad_action("CreateQueue", owner)),
        add(
            "no account",
            "l",
            &[],
            send,
            "InvalidParameterValue: Value [] for parameter PrincipalId is invalid. Reason: Unable to verify.",
        ),
        add(
            "no account by its looks",
            "l",
            &["me"],
            send,
            "InvalidParameterValue: Value [me] for parameter PrincipalId is invalid. Reason: Unable to verify.",
        ),
        add("an empty list of actions", "l", account, &[], &missing("Actions")),
        row(
            "2.17",
            "no label",
            Standard,
            "AddPermission",
            r#"{"QueueUrl":"q","AWSAccountIds":["123456789012"],"Actions":["SendMessage"]}"#,
            missing("Label"),
        ),
        row(
            "2.17",
            "no accounts",
            Standard,
            "AddPermission",
            r#"{"QueueUrl":"q","Label":"l","Actions":["SendMessage"]}"#,
            missing("AWSAccountIds"),
        ),
        row(
            "2.17",
            "no actions",
            Standard,
            "AddPermission",
            r#"{"QueueUrl":"q","Label":"l","AWSAccountIds":["123456789012"]}"#,
            missing("Actions"),
        ),
        row("2.17", "no queue", Standard, "AddPermission", r#"{"Label":"l"}"#, missing("QueueUrl")),
        row("2.17", "no queue", Standard, "RemovePermission", r#"{"Label":"l"}"#, missing("QueueUrl")),
        row("2.17", "no label", Standard, "RemovePermission", r#"{"QueueUrl":"q"}"#, missing("Label")),
        row("2.17", "a label", Standard, "RemovePermission", r#"{"QueueUrl":"q","Label":"l"}"#, "ok"),
        row(
            "2.17",
            "a bad label",
            Standard,
            "RemovePermission",
            r#"{"QueueUrl":"q","Label":"a b"}"#,
            bad_label,
        ),
    ]
}

#[test]
fn requests_about_queues() {
    play(&rows());
}

#[test]
fn a_queue_can_be_created_again_with_what_means_the_same() {
    let create =
        |attributes: &[(&str, &str)]| QueueSettings::create("q", &map(attributes)).expect("a queue").1;
    let redrive = r#"{"deadLetterTargetArn":"arn:aws:sqs:r:000000000000:d","maxReceiveCount":5}"#;
    let policy = r#"{"Version":"2008-10-17","Statement":[]}"#;
    let queue = create(&[("VisibilityTimeout", "60"), ("RedrivePolicy", redrive), ("Policy", policy)]);
    let same = r#"{ "maxReceiveCount": "5", "deadLetterTargetArn": "arn:aws:sqs:r:000000000000:d" }"#;
    let same_policy = r#"{ "Statement": [], "Version": "2008-10-17" }"#;
    for (name, value, differs) in [
        ("VisibilityTimeout", "60", false),
        ("VisibilityTimeout", "060", false),
        ("VisibilityTimeout", "30", true),
        ("DelaySeconds", "0", false),
        ("DelaySeconds", "1", true),
        ("RedrivePolicy", same, false),
        ("RedrivePolicy", "", true),
        ("Policy", same_policy, false),
        ("Policy", "{}", true),
        ("SqsManagedSseEnabled", "True", false),
        ("SqsManagedSseEnabled", "false", true),
    ] {
        let difference = queue.difference(&map(&[(name, value)])).expect("it can be compared");
        assert_eq!(
            difference,
            differs.then(|| QueueAttribute::named(name).expect("a name")),
            "{name} {value}"
        );
    }
    assert_eq!(queue.difference(&BTreeMap::new()), Ok(None), "what is not said is not compared");
    assert_eq!(
        QueueSettings::exists_with_another(QueueAttribute::DelaySeconds).to_string(),
        "QueueAlreadyExists: A queue already exists with the same name and a different value for attribute \
         DelaySeconds"
    );
}

#[test]
fn encryption_with_a_key_takes_the_place_of_the_other() {
    let (_, queue) = QueueSettings::create("q", &BTreeMap::new()).expect("a queue");
    assert!(queue.managed_encryption);
    let keyed = queue.changed(&map(&[("KmsMasterKeyId", "k")])).expect("a key");
    assert!(!keyed.managed_encryption);
    assert!(keyed.changed(&map(&[("SqsManagedSseEnabled", "true")])).is_err());
    let cleared = keyed.changed(&map(&[("KmsMasterKeyId", "")])).expect("no key");
    assert!(!cleared.managed_encryption, "it does not come back by itself");
    assert!(cleared.changed(&map(&[("SqsManagedSseEnabled", "true")])).is_ok());
}

#[test]
fn a_change_is_made_whole_or_not_at_all() {
    let (_, queue) = QueueSettings::create("q", &BTreeMap::new()).expect("a queue");
    let before = queue.clone();
    assert!(queue.changed(&map(&[("DelaySeconds", "5"), ("VisibilityTimeout", "x")])).is_err());
    assert_eq!(queue, before);
}

#[test]
fn a_policy_is_built_from_permissions() {
    let arn = Arn::new("us-east-1", "000000000000", "q");
    let permission = |label: &str, accounts: &[&str], actions: &[&str]| {
        let json = json!({ "QueueUrl": "q", "Label": label, "AWSAccountIds": accounts, "Actions": actions });
        let Ok(Request::AddPermission(add)) = by_json("AddPermission", &json.to_string()) else {
            panic!("a permission")
        };
        add.permission().expect("it may be").clone()
    };
    let one = permission("one", &["123456789012"], &["SendMessage"]);
    let first = policy::with(None, &arn, &one).expect("a policy");
    let expected = json!({
        "Version": "2008-10-17",
        "Id": "arn:aws:sqs:us-east-1:000000000000:q/SQSDefaultPolicy",
        "Statement": [{
            "Sid": "one",
            "Effect": "Allow",
            "Principal": { "AWS": "arn:aws:iam::123456789012:root" },
            "Action": "SQS:SendMessage",
            "Resource": "arn:aws:sqs:us-east-1:000000000000:q",
        }],
    });
    assert_eq!(serde_json::from_str::<serde_json::Value>(&first).expect("JSON"), expected);

    let two = permission("two", &["123456789012", "210987654321"], &["SendMessage", "ReceiveMessage"]);
    let second = policy::with(Some(&first), &arn, &two).expect("a policy");
    let statements = serde_json::from_str::<serde_json::Value>(&second).expect("JSON")["Statement"].clone();
    assert_eq!(statements[1]["Action"], json!(["SQS:SendMessage", "SQS:ReceiveMessage"]));
    assert_eq!(
        statements[1]["Principal"]["AWS"],
        json!(["arn:aws:iam::123456789012:root", "arn:aws:iam::210987654321:root"])
    );

    assert_eq!(
        policy::with(Some(&second), &arn, &one).expect_err("it is there").to_string(),
        "InvalidParameterValue: Value one for parameter Label is invalid. Reason: Already exists."
    );
    assert_eq!(
        policy::without(Some(&second), "none").expect_err("it is not there").to_string(),
        "InvalidParameterValue: Value none for parameter Label is invalid. Reason: can't find label."
    );
    assert_eq!(policy::without(Some(&second), "two"), Ok(Some(first.clone())));
    assert_eq!(policy::without(Some(&first), "one"), Ok(None), "the last one takes the policy with it");
    assert!(policy::without(None, "one").is_err());
}

#[test]
fn tags_join_those_that_are_there() {
    let Ok(Request::TagQueue(tag)) = by_json("TagQueue", r#"{"QueueUrl":"q","Tags":{"a":"2","b":"3"}}"#)
    else {
        panic!("a request")
    };
    let tags = tag.added_to(&map(&[("a", "1"), ("c", "1")])).expect("tags");
    assert_eq!(tags, map(&[("a", "2"), ("b", "3"), ("c", "1")]));
    let many: BTreeMap<String, String> = (0..49).map(|n| (format!("k{n}"), String::new())).collect();
    assert!(tag.added_to(&many).is_err(), "fifty are the most, together");
}

#[test]
fn names_come_from_lists_in_order_of_their_numbers() {
    let request =
        super::by_query("/", "Action=GetQueueAttributes&QueueUrl=q&AttributeName.10=c&AttributeName.9=b");
    let Ok(Request::GetQueueAttributes(get)) = request else { panic!("a request") };
    assert_eq!(get.names, ["b", "c"]);
}
