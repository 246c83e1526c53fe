//! The behaviour of the wire, as tables of rows. A row with a refused request is played through both
//! protocols.
//!
//! | Module | Rows of the tables |
//! | --- | --- |
//! | `corpus` | What botocore sends, for every action. |
//! | `errors` | Every error, in both protocols. |
//! | `protocols` | How a request is recognised, and what both protocols tolerate. |
//! | `queues`, `messages`, `moves` | Refused and accepted requests, for every action. |
//! | `attributes` | A queue's attributes. |
//! | `responses` | Every response, in its three forms. |
//! | `digests`, `signatures`, `addresses` | As the modules of these names. |
//! | `page` | The page in the docs says something of everything. |
//! | `anything` | No bytes are a reason to panic. |

mod addresses;
mod anything;
mod attributes;
mod corpus;
mod digests;
mod errors;
mod messages;
mod moves;
mod page;
mod protocols;
mod queues;
mod responses;
mod signatures;

use std::collections::BTreeMap;

use axum::http::{HeaderMap, HeaderValue, Method};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::attributes::{QueueSettings, Wanted};
use super::batch::Entry;
use super::error::SqsError;
use super::protocol::{Head, NoCall};
use super::request::{Request, understand};
use super::tags;

/// The queue that a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queue {
    Standard,
    Fifo,
    /// FIFO, and duplicates are known by their contents.
    ContentBased,
    /// Takes messages of 1024 bytes.
    Small,
}

impl Queue {
    fn settings(self) -> QueueSettings {
        let (name, attributes): (_, &[(&str, &str)]) = match self {
            Queue::Standard => ("q", &[]),
            Queue::Fifo => ("q.fifo", &[("FifoQueue", "true")]),
            Queue::ContentBased => {
                ("q.fifo", &[("FifoQueue", "true"), ("ContentBasedDeduplication", "true")])
            }
            Queue::Small => ("q", &[("MaximumMessageSize", "1024")]),
        };
        QueueSettings::create(name, &map(attributes)).expect("a queue").1
    }
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// A request and what becomes of it.
struct Row {
    /// Of the fact sheet.
    section: &'static str,
    what: &'static str,
    queue: Queue,
    action: &'static str,
    json: String,
    /// `ok`, or the code and the message. A message that ends with an ellipsis may go on.
    expected: String,
}

fn row(
    section: &'static str,
    what: &'static str,
    queue: Queue,
    action: &'static str,
    json: impl Into<String>,
    expected: impl Into<String>,
) -> Row {
    Row { section, what, queue, action, json: json.into(), expected: expected.into() }
}

/// Plays every row through both protocols.
#[track_caller]
fn play(rows: &[Row]) {
    for row in rows {
        let asked = [
            ("JSON", by_json(row.action, &row.json)),
            ("Query", by_query("/", &flatten(row.action, &row.json))),
        ];
        for (protocol, request) in asked {
            let became = request.and_then(|request| checked(request, row.queue));
            let became = became.unwrap_or_else(|error| error.to_string());
            let as_expected = match row.expected.strip_suffix('…') {
                Some(start) => became.starts_with(start),
                None => became == row.expected,
            };
            let Row { section, what, expected, .. } = row;
            assert!(as_expected, "{section}, {what}, {protocol}:\n  {became}\nexpected\n  {expected}");
        }
    }
}

/// The checks that follow once the queue is found: `ok`, or the result of each entry of a batch.
fn checked(request: Request, queue: Queue) -> Result<String, SqsError> {
    let settings = queue.settings();
    let rules = settings.rules();
    let none = BTreeMap::new();
    match request {
        Request::CreateQueue(create) => {
            QueueSettings::create(&create.queue_name, &create.attributes)?;
            tags::added(&none, &create.tags)?;
        }
        Request::SetQueueAttributes(set) => drop(settings.changed(&set.attributes)?),
        Request::GetQueueAttributes(get) => drop(Wanted::of(&get.names)?),
        Request::ListQueues(list) => drop(list.page.size()?),
        Request::ListDeadLetterSourceQueues(list) => drop(list.page.size()?),
        Request::TagQueue(tag) => drop(tag.added_to(&none)?),
        Request::UntagQueue(untag) => drop(untag.keys()?),
        Request::AddPermission(add) => drop(add.permission()?),
        Request::RemovePermission(remove) => drop(remove.label()?),
        Request::SendMessage(send) => drop(send.message(&rules)?),
        Request::SendMessageBatch(batch) => return Ok(entries(batch.messages(&rules)?)),
        Request::ReceiveMessage(receive) => drop(receive.terms(&rules)?),
        Request::ChangeMessageVisibility(change) => drop(change.visibility()?),
        Request::ChangeMessageVisibilityBatch(batch) => return Ok(entries(batch.visibilities()?)),
        Request::DeleteMessageBatch(batch) => drop(batch.receipt_handles()?),
        Request::StartMessageMoveTask(start) => drop(start.terms()?),
        Request::ListMessageMoveTasks(list) => {
            list.source()?;
            list.max_results()?;
        }
        Request::CancelMessageMoveTask(cancel) => drop(cancel.task()?),
        Request::DeleteMessage(_)
        | Request::DeleteQueue(_)
        | Request::GetQueueUrl(_)
        | Request::ListQueueTags(_)
        | Request::PurgeQueue(_) => {}
    }
    Ok("ok".to_owned())
}

fn entries<T>(entries: Vec<Entry<Result<T, SqsError>>>) -> String {
    let one = |entry: Entry<Result<T, SqsError>>| match entry.content {
        Ok(_) => format!("{}=ok", entry.id),
        Err(error) => format!("{}={error}", entry.id),
    };
    entries.into_iter().map(one).collect::<Vec<_>>().join(" ")
}

fn ask(path: &str, query: &str, headers: &[(&'static str, &str)], body: &str) -> Result<Request, NoCall> {
    let method = if body.is_empty() && !query.is_empty() { Method::GET } else { Method::POST };
    let headers: HeaderMap = headers
        .iter()
        .map(|(name, value)| {
            ((*name).parse().expect("a name"), HeaderValue::from_str(value).expect("a value"))
        })
        .collect();
    let head = Head { method: &method, path, query, headers: &headers };
    understand(&head, body.as_bytes()).map(|(_, request)| request)
}

fn refused(error: NoCall) -> SqsError {
    match error {
        NoCall::Refused(_, error) => error,
        NoCall::UnknownOperation => panic!("the request names an action"),
    }
}

fn by_json(action: &str, body: &str) -> Result<Request, SqsError> {
    let target = format!("AmazonSQS.{action}");
    let headers = [("content-type", "application/x-amz-json-1.0"), ("x-amz-target", &target[..])];
    ask("/", "", &headers, body).map_err(refused)
}

fn by_query(path: &str, form: &str) -> Result<Request, SqsError> {
    let headers = [("content-type", "application/x-www-form-urlencoded; charset=utf-8")];
    ask(path, "", &headers, form).map_err(refused)
}

/// What a Query client would send for the same parameters.
fn flatten(action: &str, json: &str) -> String {
    let parameters: Value = serde_json::from_str(json).expect(json);
    let mut pairs = vec![("Action".to_owned(), action.to_owned())];
    for (name, value) in parameters.as_object().expect("an object") {
        flatten_member(action, name, name, value, &mut pairs);
    }
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let pairs: Vec<String> =
        pairs.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value))).collect();
    pairs.join("&")
}

fn flatten_member(action: &str, name: &str, path: &str, value: &Value, pairs: &mut Vec<(String, String)>) {
    let stem = path.strip_suffix(name).expect("a path ends with its name");
    let flat = match (name, action) {
        ("Entries", _) => format!("{action}RequestEntry"),
        ("Actions", _) => "ActionName".to_owned(),
        ("tags" | "Tags", _) => "Tag".to_owned(),
        _ => name.strip_suffix('s').unwrap_or(name).to_owned(),
    };
    match value {
        Value::Null => {}
        Value::String(text) => pairs.push((path.to_owned(), text.clone())),
        Value::Number(_) | Value::Bool(_) => pairs.push((path.to_owned(), value.to_string())),
        Value::Array(items) if items.is_empty() => pairs.push((path.to_owned(), String::new())),
        Value::Array(items) => {
            for (n, item) in items.iter().enumerate() {
                flatten_structure(action, &format!("{stem}{flat}.{}", n + 1), item, pairs);
            }
        }
        Value::Object(members) => {
            let key = if flat == "Tag" { "Key" } else { "Name" };
            for (n, (left, right)) in members.iter().enumerate() {
                let start = format!("{stem}{flat}.{}", n + 1);
                pairs.push((format!("{start}.{key}"), left.clone()));
                flatten_structure(action, &format!("{start}.Value"), right, pairs);
            }
        }
    }
}

fn flatten_structure(action: &str, path: &str, value: &Value, pairs: &mut Vec<(String, String)>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                flatten_member(action, name, &format!("{path}.{name}"), value, pairs);
            }
        }
        Value::String(text) => pairs.push((path.to_owned(), text.clone())),
        other => pairs.push((path.to_owned(), other.to_string())),
    }
}

/// The compatibility tests add theirs to these, so that every row of the fact sheet is a row somewhere.
#[test]
fn so_many_rows_are_played() {
    let requests = [queues::rows(), messages::rows(), moves::rows(), attributes::rows()];
    let tables = [
        ("corpus", corpus::ROWS.len()),
        ("errors", errors::ROWS.len()),
        ("protocols", protocols::TOLERATED.len() + protocols::RECOGNISED.len()),
        ("requests", requests.iter().map(Vec::len).sum()),
        ("attributes", attributes::TABLE.len() + attributes::LISTED.len()),
        ("responses", responses::rows().len()),
        ("digests", digests::VECTORS.len()),
        (
            "signatures",
            signatures::VECTORS.len() + signatures::REFUSALS.len() + signatures::URL_REFUSALS.len(),
        ),
        ("addresses", addresses::URLS.len() + addresses::ARNS.len() + addresses::BASES.len()),
    ];
    for (table, rows) in tables {
        assert!(rows > 0, "{table}");
    }
    let total: usize = tables.iter().map(|(_, rows)| rows).sum();
    assert_eq!(total, ROWS_IN_ALL, "{tables:?}");
}

/// Says how many there are, and that none went missing unnoticed.
const ROWS_IN_ALL: usize = 671;
