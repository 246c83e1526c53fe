//! A response as a tree of members, with the names that each protocol has for them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{Batch, Changed, MoveStatus, MoveTask, Received, Response, Sent, SentEntry};
use crate::sqs::wire::error::{Fault, SqsError};
use crate::sqs::wire::message::{AttributeValue, MessageAttribute};
use crate::sqs::wire::protocol::{Format, Protocol};

/// A member that is there.
pub(super) struct Member {
    /// In JSON, and in XML where it is no list.
    pub(super) name: &'static str,
    pub(super) content: Content,
}

pub(super) enum Content {
    One(Value),
    List {
        /// The name of each item in XML, which has no lists.
        element: &'static str,
        items: Vec<Value>,
    },
    /// Pairs with texts as keys.
    Map {
        element: &'static str,
        key: &'static str,
        value: &'static str,
        pairs: Vec<(String, Value)>,
    },
}

pub(super) enum Value {
    Text(String),
    Number(u64),
    Flag(bool),
    Structure(Vec<Member>),
}

fn one(name: &'static str, value: Value) -> Member {
    Member { name, content: Content::One(value) }
}

fn text(name: &'static str, value: impl Into<String>) -> Member {
    one(name, Value::Text(value.into()))
}

fn number(name: &'static str, value: impl Into<u64>) -> Member {
    one(name, Value::Number(value.into()))
}

/// Lists that are empty are left out, where nothing else is said.
fn list(name: &'static str, element: &'static str, items: Vec<Value>) -> Option<Member> {
    let is_there = !items.is_empty();
    is_there.then_some(Member { name, content: Content::List { element, items } })
}

fn pairs(
    name: &'static str,
    element: &'static str,
    (key, value): (&'static str, &'static str),
    pairs: impl Iterator<Item = (String, Value)>,
) -> Option<Member> {
    let pairs: Vec<(String, Value)> = pairs.collect();
    let is_there = !pairs.is_empty();
    is_there.then_some(Member { name, content: Content::Map { element, key, value, pairs } })
}

fn texts(texts: Vec<String>) -> Vec<Value> {
    texts.into_iter().map(Value::Text).collect()
}

const NAME_VALUE: (&str, &str) = ("Name", "Value");

/// `None` for an action that has no result at all.
pub(super) fn members(response: Response) -> Option<Vec<Member>> {
    let members: Vec<Option<Member>> = match response {
        Response::AddPermission
        | Response::ChangeMessageVisibility
        | Response::DeleteMessage
        | Response::DeleteQueue
        | Response::PurgeQueue
        | Response::RemovePermission
        | Response::SetQueueAttributes
        | Response::TagQueue
        | Response::UntagQueue => return None,
        Response::CancelMessageMoveTask { moved } => {
            vec![Some(number("ApproximateNumberOfMessagesMoved", moved))]
        }
        Response::ChangeMessageVisibilityBatch(batch) => {
            batch_members(batch, "ChangeMessageVisibilityBatchResultEntry", changed)
        }
        Response::DeleteMessageBatch(batch) => batch_members(batch, "DeleteMessageBatchResultEntry", changed),
        Response::SendMessageBatch(batch) => batch_members(batch, "SendMessageBatchResultEntry", sent_entry),
        Response::CreateQueue { queue_url } | Response::GetQueueUrl { queue_url } => {
            vec![Some(text("QueueUrl", queue_url))]
        }
        Response::GetQueueAttributes { attributes } => {
            let values = attributes.into_iter().map(|(name, value)| (name.to_owned(), Value::Text(value)));
            vec![pairs("Attributes", "Attribute", NAME_VALUE, values)]
        }
        Response::ListDeadLetterSourceQueues { queue_urls, next_token } => {
            // Required by the model, so it is there also when it is empty.
            let content = Content::List { element: "QueueUrl", items: texts(queue_urls) };
            vec![
                Some(Member { name: "queueUrls", content }),
                next_token.map(|token| text("NextToken", token)),
            ]
        }
        Response::ListQueues { queue_urls, next_token } => vec![
            list("QueueUrls", "QueueUrl", texts(queue_urls)),
            next_token.map(|token| text("NextToken", token)),
        ],
        Response::ListMessageMoveTasks { tasks } => {
            let tasks = tasks.into_iter().map(move_task).collect();
            vec![list("Results", "ListMessageMoveTasksResultEntry", tasks)]
        }
        Response::ListQueueTags { tags } => {
            let tags = tags.into_iter().map(|(key, value)| (key, Value::Text(value)));
            vec![pairs("Tags", "Tag", ("Key", "Value"), tags)]
        }
        Response::ReceiveMessage { messages } => {
            vec![list("Messages", "Message", messages.into_iter().map(received).collect())]
        }
        Response::SendMessage(sent) => sent_members(sent),
        Response::StartMessageMoveTask { task_handle } => vec![Some(text("TaskHandle", task_handle))],
    };
    Some(members.into_iter().flatten().collect())
}

fn structure(members: Vec<Option<Member>>) -> Value {
    Value::Structure(members.into_iter().flatten().collect())
}

fn batch_members<T>(batch: Batch<T>, element: &'static str, one: fn(T) -> Value) -> Vec<Option<Member>> {
    vec![
        list("Successful", element, batch.successful.into_iter().map(one).collect()),
        list("Failed", "BatchResultErrorEntry", batch.failed.into_iter().map(failed).collect()),
    ]
}

fn changed(entry: Changed) -> Value {
    structure(vec![Some(text("Id", entry.id))])
}

fn sent_entry(entry: SentEntry) -> Value {
    let mut members = vec![Some(text("Id", entry.id))];
    members.extend(sent_members(entry.sent));
    structure(members)
}

/// A failed entry has the Query code in both protocols.
fn failed((id, error): (String, SqsError)) -> Value {
    structure(vec![
        Some(text("Id", id)),
        Some(text("Code", error.code())),
        Some(text("Message", error.message(Protocol::Query(Format::Xml)))),
        Some(one("SenderFault", Value::Flag(error.fault() == Fault::Sender))),
    ])
}

fn sent_members(sent: Sent) -> Vec<Option<Member>> {
    vec![
        Some(text("MessageId", sent.message_id)),
        Some(text("MD5OfMessageBody", sent.md5_of_body)),
        sent.md5_of_attributes.map(|md5| text("MD5OfMessageAttributes", md5)),
        sent.md5_of_system_attributes.map(|md5| text("MD5OfMessageSystemAttributes", md5)),
        sent.sequence_number.map(|number| text("SequenceNumber", number)),
    ]
}

fn received(message: Received) -> Value {
    let system = message.system_attributes.into_iter();
    let system = system.map(|(name, value)| (name.to_owned(), Value::Text(value)));
    let attributes = message.attributes.into_iter().map(|(name, value)| (name, attribute(value)));
    structure(vec![
        Some(text("MessageId", message.message_id)),
        Some(text("ReceiptHandle", message.receipt_handle)),
        Some(text("MD5OfBody", message.md5_of_body)),
        Some(text("Body", message.body)),
        pairs("Attributes", "Attribute", NAME_VALUE, system),
        message.md5_of_attributes.map(|md5| text("MD5OfMessageAttributes", md5)),
        pairs("MessageAttributes", "MessageAttribute", NAME_VALUE, attributes),
    ])
}

fn attribute(attribute: MessageAttribute) -> Value {
    let value = match attribute.value {
        AttributeValue::Text(value) => text("StringValue", value),
        AttributeValue::Bytes(bytes) => text("BinaryValue", BASE64.encode(bytes)),
    };
    structure(vec![Some(value), Some(text("DataType", attribute.data_type))])
}

fn move_task(task: MoveTask) -> Value {
    let handle = (task.status == MoveStatus::Running).then_some(task.task_handle);
    structure(vec![
        handle.map(|handle| text("TaskHandle", handle)),
        Some(text("Status", task.status.name())),
        Some(text("SourceArn", task.source_arn)),
        task.destination_arn.map(|arn| text("DestinationArn", arn)),
        task.rate.map(|rate| number("MaxNumberOfMessagesPerSecond", rate)),
        Some(number("ApproximateNumberOfMessagesMoved", task.moved)),
        Some(number("ApproximateNumberOfMessagesToMove", task.to_move)),
        task.failure.map(|reason| text("FailureReason", reason)),
        Some(number("StartedTimestamp", task.started)),
    ])
}
