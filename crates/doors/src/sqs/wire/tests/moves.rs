//! Message move tasks: section 2.18.

use serde_json::json;

use super::Queue::Standard;
use super::{Row, by_json, play, row};
use crate::sqs::wire::request::{Request, TaskHandle};

const SOURCE: &str = "arn:aws:sqs:us-east-1:000000000000:d";

pub(super) fn rows() -> Vec<Row> {
    let missing = |name: &str| format!("MissingParameter: The request must contain the parameter {name}.");
    let start = |what, json: serde_json::Value, expected: &str| {
        row("2.18", what, Standard, "StartMessageMoveTask", json.to_string(), expected)
    };
    let list = |what, json: serde_json::Value, expected: &str| {
        row("2.18", what, Standard, "ListMessageMoveTasks", json.to_string(), expected)
    };
    let cancel = |what, json: serde_json::Value, expected: &str| {
        row("2.18", what, Standard, "CancelMessageMoveTask", json.to_string(), expected)
    };
    let bad_handle = "InvalidParameterValue: Value for parameter TaskHandle is invalid.";
    let bad_source =
        "InvalidParameterValue: Value d for parameter SourceArn is invalid. Reason: An ARN has the form …";
    let rate = "InvalidParameterValue: Value … for parameter MaxNumberOfMessagesPerSecond is invalid.";
    let rate = |value: &str| format!("{}…", rate.replace('…', value));
    let good = TaskHandle { task_id: "t".to_owned(), source_arn: SOURCE.to_owned() }.encode();
    vec![
        start("no source", json!({}), &missing("SourceArn")),
        start("a source", json!({ "SourceArn": SOURCE }), "ok"),
        start("no ARN", json!({ "SourceArn": "d" }), bad_source),
        start(
            "no ARN to go to",
            json!({ "SourceArn": SOURCE, "DestinationArn": "d" }),
            "InvalidParameterValue: Value d for parameter DestinationArn is invalid.…",
        ),
        start("the slowest", json!({ "SourceArn": SOURCE, "MaxNumberOfMessagesPerSecond": 1 }), "ok"),
        start("the fastest", json!({ "SourceArn": SOURCE, "MaxNumberOfMessagesPerSecond": 500 }), "ok"),
        start("slower", json!({ "SourceArn": SOURCE, "MaxNumberOfMessagesPerSecond": 0 }), &rate("0")),
        start("faster", json!({ "SourceArn": SOURCE, "MaxNumberOfMessagesPerSecond": 501 }), &rate("501")),
        list("no source", json!({}), &missing("SourceArn")),
        list("no ARN", json!({ "SourceArn": "d" }), bad_source),
        list("the most", json!({ "SourceArn": SOURCE, "MaxResults": 10 }), "ok"),
        list("none", json!({ "SourceArn": SOURCE, "MaxResults": 0 }), "InvalidParameterValue: Value 0 for …"),
        list(
            "too many",
            json!({ "SourceArn": SOURCE, "MaxResults": 11 }),
            "InvalidParameterValue: Value 11 for …",
        ),
        cancel("no handle", json!({}), &missing("TaskHandle")),
        cancel("not base64", json!({ "TaskHandle": "?" }), bad_handle),
        cancel("not JSON", json!({ "TaskHandle": "aGVsbG8=" }), bad_handle),
        cancel("another JSON", json!({ "TaskHandle": "e30=" }), bad_handle),
        cancel("a handle", json!({ "TaskHandle": good }), "ok"),
    ]
}

#[test]
fn requests_about_moves() {
    play(&rows());
}

#[test]
fn a_move_is_as_it_was_asked_for() {
    let json = json!({ "SourceArn": SOURCE, "MaxNumberOfMessagesPerSecond": 5 }).to_string();
    let Ok(Request::StartMessageMoveTask(start)) = by_json("StartMessageMoveTask", &json) else {
        panic!("a request")
    };
    let terms = start.terms().expect("terms");
    assert_eq!((terms.source.to_string(), terms.destination, terms.rate), (SOURCE.to_owned(), None, Some(5)));
    let json = json!({ "SourceArn": SOURCE }).to_string();
    let Ok(Request::ListMessageMoveTasks(list)) = by_json("ListMessageMoveTasks", &json) else {
        panic!("a request")
    };
    assert_eq!(list.max_results(), Ok(1), "one, unless more are asked for");
}

#[test]
fn a_handle_is_base64_of_json() {
    let handle = TaskHandle { task_id: "t".to_owned(), source_arn: SOURCE.to_owned() };
    assert_eq!(
        handle.encode(),
        "eyJ0YXNrSWQiOiJ0Iiwic291cmNlQXJuIjoiYXJuOmF3czpzcXM6dXMtZWFzdC0xOjAwMDAwMDAwMDAwMDpkIn0="
    );
    assert_eq!(TaskHandle::parse(&handle.encode()), Some(handle));
    assert_eq!(TaskHandle::no_such_task().to_string(), "ResourceNotFoundException: Task does not exist.");
}
