//! How a request is recognised, and what both protocols tolerate: sections 1.1 to 1.3.

use axum::http::{HeaderMap, HeaderValue, Method};

use super::{ask, by_json, by_query};
use crate::sqs::wire::protocol::{Format, Head, NoCall, Protocol};
use crate::sqs::wire::request::{Request, understand};

const JSON: &str = "application/x-amz-json-1.0";
const FORM: &str = "application/x-www-form-urlencoded";

pub(super) struct Recognised {
    method: Method,
    path: &'static str,
    query: &'static str,
    headers: &'static [(&'static str, &'static str)],
    body: &'static str,
    /// `None` is an unknown operation.
    expected: Option<Result<(Protocol, &'static str), &'static str>>,
}

const fn recognised(
    method: Method,
    path: &'static str,
    query: &'static str,
    headers: &'static [(&'static str, &'static str)],
    body: &'static str,
    expected: Option<Result<(Protocol, &'static str), &'static str>>,
) -> Recognised {
    Recognised { method, path, query, headers, body, expected }
}

const LIST: (&str, &str) = ("x-amz-target", "AmazonSQS.ListQueues");
const PURGE: (&str, &str) = ("x-amz-target", "AmazonSQS.PurgeQueue");
const BY_JSON: Option<Result<(Protocol, &str), &str>> = Some(Ok((Protocol::Json, "ListQueues")));
const XML: Protocol = Protocol::Query(Format::Xml);
const BY_QUERY: Option<Result<(Protocol, &str), &str>> = Some(Ok((XML, "ListQueues")));
const QUEUE: &str = "/000000000000/q";

pub(super) const RECOGNISED: &[Recognised] = &[
    recognised(Method::POST, "/", "", &[("content-type", JSON), LIST], "{}", BY_JSON),
    recognised(Method::POST, "/", "", &[("content-type", JSON), LIST], "", BY_JSON),
    recognised(Method::POST, "/", "", &[("content-type", "application/x-amz-json-1.1"), LIST], "{}", BY_JSON),
    recognised(
        Method::POST,
        "/",
        "",
        &[("content-type", "Application/X-Amz-Json-1.0; charset=utf-8"), LIST],
        "{}",
        BY_JSON,
    ),
    recognised(Method::POST, QUEUE, "", &[("content-type", JSON), LIST], "{}", BY_JSON),
    recognised(
        Method::POST,
        QUEUE,
        "",
        &[("content-type", JSON), PURGE],
        r#"{"QueueUrl":"q"}"#,
        Some(Ok((Protocol::Json, "PurgeQueue"))),
    ),
    recognised(Method::POST, "/", "", &[("content-type", FORM)], "Action=ListQueues", BY_QUERY),
    recognised(
        Method::POST,
        "/",
        "",
        &[("content-type", "application/x-www-form-urlencoded; charset=utf-8")],
        "Action=ListQueues&Version=2012-11-05",
        BY_QUERY,
    ),
    recognised(Method::POST, "/", "", &[], "Action=ListQueues", BY_QUERY),
    recognised(Method::GET, "/", "Action=ListQueues", &[], "", BY_QUERY),
    recognised(Method::POST, "/", "Action=ListQueues", &[("content-type", FORM)], "MaxResults=1", BY_QUERY),
    recognised(
        Method::GET,
        "/",
        "Action=ListQueues",
        &[("accept", "text/html, application/json;q=0.9")],
        "",
        Some(Ok((Protocol::Query(Format::Json), "ListQueues"))),
    ),
    recognised(Method::GET, QUEUE, "Action=PurgeQueue", &[], "", Some(Ok((XML, "PurgeQueue")))),
    recognised(
        Method::GET,
        QUEUE,
        "Action=ListQueues",
        &[],
        "",
        Some(Err("InvalidAction: The action ListQueues is not valid for this endpoint.")),
    ),
    recognised(
        Method::POST,
        QUEUE,
        "",
        &[("content-type", FORM)],
        "Action=CreateQueue&QueueName=q",
        Some(Err("InvalidAction: The action CreateQueue is not valid for this endpoint.")),
    ),
    recognised(
        Method::GET,
        "/",
        "Action=Nothing",
        &[],
        "",
        Some(Err("InvalidAction: The action Nothing is not valid for this endpoint.")),
    ),
    recognised(
        Method::GET,
        "/",
        "Action=listqueues",
        &[],
        "",
        Some(Err("InvalidAction: The action listqueues is not valid for this endpoint.")),
    ),
    recognised(
        Method::POST,
        "/",
        "",
        &[("content-type", JSON), ("x-amz-target", "AmazonSQS.Nothing")],
        "{}",
        Some(Err("InvalidAction: The action Nothing is not valid for this endpoint.")),
    ),
    recognised(
        Method::POST,
        "/",
        "",
        &[("content-type", JSON), ("x-amz-target", "AmazonSNS.Publish")],
        "{}",
        Some(Err("InvalidAction: The action AmazonSNS.Publish is not valid for this endpoint.")),
    ),
    recognised(Method::POST, "/", "", &[("content-type", JSON)], "{}", None),
    recognised(Method::GET, "/", "", &[], "", None),
    recognised(Method::GET, "/", "", &[("accept", "application/json")], "", None),
    recognised(Method::GET, QUEUE, "", &[], "", None),
    recognised(Method::POST, "/", "", &[("content-type", FORM)], "QueueName=q", None),
    recognised(Method::POST, "/", "", &[("content-type", FORM)], "Action=", None),
];

#[test]
fn a_request_says_itself_which_protocol_it_speaks() {
    for (n, it) in RECOGNISED.iter().enumerate() {
        let header = |(name, value): &(&'static str, &'static str)| {
            ((*name).parse().expect("a name"), HeaderValue::from_static(value))
        };
        let headers: HeaderMap = it.headers.iter().map(header).collect();
        let head = Head { method: &it.method, path: it.path, query: it.query, headers: &headers };
        let found = match understand(&head, it.body.as_bytes()) {
            Ok((protocol, request)) => Some(Ok((protocol, request.action().name()))),
            Err(NoCall::UnknownOperation) => None,
            Err(NoCall::Refused(_, error)) => Some(Err(error.to_string())),
        };
        let expected = it.expected.map(|it| it.map_err(str::to_owned));
        assert_eq!(found, expected, "row {n}");
    }
}

#[test]
fn an_operation_that_nobody_knows_is_answered_in_xml() {
    let reply = NoCall::UnknownOperation.render("id-1");
    assert_eq!(reply.status().as_u16(), 404);
    assert_eq!(reply.headers()["content-type"], "text/xml");
    assert_eq!(reply.body(), "<UnknownOperationException/>");
}

/// Two ways to say the same: an action, then JSON or a form, twice. JSON begins with a brace.
pub(super) const TOLERATED: &[(&str, &str, &str, &str)] = &[
    ("null is absent", "ListQueues", r#"{"QueueNamePrefix":null,"MaxResults":null}"#, "{}"),
    ("unknown members are ignored", "ListQueues", r#"{"Nothing":{"a":[1]}}"#, "{}"),
    ("numbers may be texts", "ListQueues", r#"{"MaxResults":"5"}"#, r#"{"MaxResults":5}"#),
    ("no body is an empty object", "ListQueues", " \n", "{}"),
    ("unknown parameters are ignored", "ListQueues", "Nothing=1&Nothing.1.A=2", "{}"),
    ("a version is not needed", "ListQueues", "Version=2012-11-05", ""),
    ("a plus is a space", "ListQueues", "QueueNamePrefix=a+b", "QueueNamePrefix=a%20b"),
    (
        "gaps mean nothing",
        "UntagQueue",
        "QueueUrl=q&TagKey.3=a&TagKey.17=b",
        r#"{"QueueUrl":"q","TagKeys":["a","b"]}"#,
    ),
    (
        "numbers order, not places",
        "UntagQueue",
        "QueueUrl=q&TagKey.10=b&TagKey.2=a",
        r#"{"QueueUrl":"q","TagKeys":["a","b"]}"#,
    ),
    (
        "an attribute without a number",
        "SetQueueAttributes",
        "QueueUrl=q&Attribute.Name=DelaySeconds&Attribute.Value=5",
        r#"{"QueueUrl":"q","Attributes":{"DelaySeconds":"5"}}"#,
    ),
    ("a bare name is an empty list", "UntagQueue", "QueueUrl=q&TagKey=", r#"{"QueueUrl":"q","TagKeys":[]}"#),
    (
        "a bare name is an empty list of entries",
        "SendMessageBatch",
        "QueueUrl=q&SendMessageBatchRequestEntry=",
        r#"{"QueueUrl":"q","Entries":[]}"#,
    ),
    (
        "the name of the member will do",
        "UntagQueue",
        "QueueUrl=q&TagKeys=",
        r#"{"QueueUrl":"q","TagKeys":[]}"#,
    ),
    (
        "null in a list is not there",
        "UntagQueue",
        r#"{"QueueUrl":"q","TagKeys":["a",null]}"#,
        r#"{"QueueUrl":"q","TagKeys":["a"]}"#,
    ),
    (
        "null in a map is not there",
        "TagQueue",
        r#"{"QueueUrl":"q","Tags":{"a":"1","b":null}}"#,
        r#"{"QueueUrl":"q","Tags":{"a":"1"}}"#,
    ),
    (
        "a tag without a value has an empty one",
        "TagQueue",
        "QueueUrl=q&Tag.1.Key=a",
        r#"{"QueueUrl":"q","Tags":{"a":""}}"#,
    ),
    (
        "a number for a text",
        "SetQueueAttributes",
        r#"{"QueueUrl":"q","Attributes":{"DelaySeconds":5}}"#,
        r#"{"QueueUrl":"q","Attributes":{"DelaySeconds":"5"}}"#,
    ),
    (
        "base64 without its end",
        "SendMessage",
        r#"{"QueueUrl":"q","MessageBody":"b","MessageAttributes":{"a":{"DataType":"Binary","BinaryValue":"AA"}}}"#,
        r#"{"QueueUrl":"q","MessageBody":"b","MessageAttributes":{"a":{"DataType":"Binary","BinaryValue":"AA=="}}}"#,
    ),
    ("an empty token is none", "ListQueues", "NextToken=", "{}"),
];

fn said(action: &str, text: &str) -> Request {
    let is_json = text.trim_start().starts_with('{') || text.trim().is_empty() && !text.is_empty();
    let request =
        if is_json { by_json(action, text) } else { by_query("/", &format!("Action={action}&{text}")) };
    request.expect(text)
}

#[test]
fn the_same_can_be_said_in_several_ways() {
    for (what, action, one, other) in TOLERATED {
        assert_eq!(said(action, one), said(action, other), "{what}");
    }
}

#[test]
fn a_queue_is_named_by_the_path_unless_it_is_named() {
    let queue = |path: &str, query: &str, form: &str| {
        let request = ask(path, query, &[("content-type", FORM)], form);
        let Ok(Request::PurgeQueue(purge)) = request else { panic!("a request") };
        purge.queue_url
    };
    let action = "Action=PurgeQueue";
    assert_eq!(queue("/000000000000/q", "", action), "/000000000000/q");
    assert_eq!(queue("/000000000000/q", action, ""), "/000000000000/q");
    assert_eq!(queue("/queue/us-east-1/000000000000/q/", "", action), "/000000000000/q");
    assert_eq!(queue("/queue/q", "", action), "/q");
    assert_eq!(queue("/000000000000/q", "", "Action=PurgeQueue&QueueUrl=other"), "other");
    assert_eq!(queue("/000000000000/q", "QueueUrl=other", action), "other");
    assert_eq!(queue("/000000000000/q", "", "Action=PurgeQueue&QueueUrl="), "/000000000000/q");
}

#[test]
fn json_does_not_take_the_queue_from_the_path() {
    let headers = [("content-type", JSON), PURGE];
    assert!(ask(QUEUE, "", &headers, "{}").is_err());
}

#[test]
fn what_is_no_request_is_refused_as_such() {
    for body in
        ["[]", "1", "{", "{}x", "\"\\ud800\"", r#"{"MaxResults":[1]}"#, r#"{"MaxResults":{}}"#, "\u{feff}{}"]
    {
        let refused = by_json("ListQueues", body).expect_err(body).to_string();
        assert!(refused.starts_with("MalformedInput: "), "{refused}");
    }
    for body in [r#"{"QueueUrl":"q","TagKeys":"a"}"#, r#"{"QueueUrl":"q","TagKeys":[["a"]]}"#] {
        let refused = by_json("UntagQueue", body).expect_err(body).to_string();
        assert!(refused.starts_with("MalformedInput: "), "{refused}");
    }
    let refused = by_query("/", "Action=ListQueues&QueueNamePrefix=%ff").expect_err("no UTF-8").to_string();
    assert!(refused.starts_with("MalformedInput: "), "{refused}");
}

#[test]
fn a_request_has_so_many_values_at_most() {
    let body = format!("{{\"a\":[{}0]}}", "0,".repeat(30_000));
    assert!(by_json("ListQueues", &body).is_err());
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(1_000), "]".repeat(1_000));
    assert!(by_json("ListQueues", &deep).is_err());
    let form: String = (0..20_000).map(|n| format!("&a.{n}=")).collect();
    assert!(by_query("/", &format!("Action=ListQueues{form}")).is_err());
}
