//! Requests about messages: send, receive, delete, visibility, and their batches.

use std::collections::BTreeMap;

use super::members::{Given, Halves, Members, Name};
use super::queues::queue_url;
use crate::sqs::wire::batch::{self, Entry};
use crate::sqs::wire::error::SqsError;
use crate::sqs::wire::message::{
    self, AttributeDraft, AttributeFilter, Draft, Message, QueueRules, SystemFilter, check_token,
};

const ATTRIBUTES: Name = Name { json: "MessageAttributes", query: "MessageAttribute" };
const SYSTEM_ATTRIBUTES: Name = Name { json: "MessageSystemAttributes", query: "MessageSystemAttribute" };
const ATTRIBUTE: Halves = Halves { key: "Name", value: "Value" };
const TEXT_LIST: Name = Name { json: "StringListValues", query: "StringListValue" };
const BINARY_LIST: Name = Name { json: "BinaryListValues", query: "BinaryListValue" };
const SYSTEM_NAMES: Name = Name { json: "MessageSystemAttributeNames", query: "MessageSystemAttributeName" };
/// The former name of `SYSTEM_NAMES`, which many clients still use.
const SYSTEM_NAMES_OLD: Name = Name { json: "AttributeNames", query: "AttributeName" };
const NAMES: Name = Name { json: "MessageAttributeNames", query: "MessageAttributeName" };

const SEND_ENTRIES: Name = Name { json: "Entries", query: "SendMessageBatchRequestEntry" };
const DELETE_ENTRIES: Name = Name { json: "Entries", query: "DeleteMessageBatchRequestEntry" };
const VISIBILITY_ENTRIES: Name = Name { json: "Entries", query: "ChangeMessageVisibilityBatchRequestEntry" };

/// The longest that a message may be out of sight: twelve hours.
pub const VISIBILITY_MAX: u32 = 43_200;
const WAIT_MAX: u32 = 20;
const RECEIVE_MAX: u32 = 10;

impl Draft {
    fn read(members: &Members<'_>, body: String) -> Result<Draft, SqsError> {
        Ok(Draft {
            body,
            delay: members.number("DelaySeconds")?,
            attributes: attributes(members, ATTRIBUTES)?,
            system_attributes: attributes(members, SYSTEM_ATTRIBUTES)?,
            deduplication_id: members.text("MessageDeduplicationId")?,
            group_id: members.text("MessageGroupId")?,
        })
    }
}

fn attributes(members: &Members<'_>, name: Name) -> Result<BTreeMap<String, AttributeDraft>, SqsError> {
    let drafts = members.structure_map(name, ATTRIBUTE)?.into_iter();
    drafts.map(|(name, members)| Ok((name, AttributeDraft::read(&members)?))).collect()
}

impl AttributeDraft {
    fn read(members: &Members<'_>) -> Result<AttributeDraft, SqsError> {
        let has_list = |name| Ok::<_, SqsError>(members.texts(name)?.is_some_and(|items| !items.is_empty()));
        Ok(AttributeDraft {
            data_type: members.text("DataType")?,
            text: members.text("StringValue")?,
            bytes: members.bytes("BinaryValue")?,
            has_list: has_list(TEXT_LIST)? || has_list(BINARY_LIST)?,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendMessage {
    pub queue_url: String,
    pub(super) draft: Draft,
}

impl SendMessage {
    pub(super) fn read(members: &Members<'_>) -> Result<SendMessage, SqsError> {
        let queue_url = queue_url(members)?;
        let body = members.text("MessageBody")?.filter(|body| !body.is_empty());
        let body = body.ok_or_else(|| SqsError::missing("MessageBody"))?;
        Ok(SendMessage { queue_url, draft: Draft::read(members, body)? })
    }

    /// The message, where this queue may have it.
    pub fn message(self, rules: &QueueRules) -> Result<Message, SqsError> {
        self.draft.message(rules)
    }
}

/// The entries of a batch. Query clients leave out a list that is empty, so that none is the same as no entry.
fn entries<'a>(members: &Members<'a>, name: Name) -> Result<Vec<(String, Members<'a>)>, SqsError> {
    let entries = members.structures(name)?.unwrap_or_default().into_iter().enumerate();
    entries.map(|(n, entry)| Ok((entry_member(&entry, name, n, "Id")?, entry))).collect()
}

fn entry_member(entry: &Members<'_>, of: Name, n: usize, name: &str) -> Result<String, SqsError> {
    entry.text(name)?.ok_or_else(|| SqsError::missing(&format!("{}.{}.{name}", of.query, n + 1)))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendMessageBatch {
    pub queue_url: String,
    entries: Vec<Entry<Draft>>,
}

impl SendMessageBatch {
    pub(super) fn read(members: &Members<'_>) -> Result<SendMessageBatch, SqsError> {
        let queue_url = queue_url(members)?;
        let read = |(n, (id, entry)): (usize, (String, Members<'_>))| {
            let body = entry_member(&entry, SEND_ENTRIES, n, "MessageBody")?;
            Ok(Entry { id, content: Draft::read(&entry, body)? })
        };
        let entries = entries(members, SEND_ENTRIES)?.into_iter().enumerate().map(read);
        Ok(SendMessageBatch { queue_url, entries: entries.collect::<Result<_, _>>()? })
    }

    pub(super) fn join_trace(&mut self, trace: &str) {
        for entry in &mut self.entries {
            entry.content.join_trace(trace);
        }
    }

    /// The messages, each with why this queue may not have it, unless the batch as a whole is wrong.
    pub fn messages(self, rules: &QueueRules) -> Result<Vec<Entry<Result<Message, SqsError>>>, SqsError> {
        batch::check(&self.entries, SEND_ENTRIES.query)?;
        message::check_together(self.entries.iter().map(|entry| &entry.content), rules)?;
        let checked = |entry: Entry<Draft>| entry.map(|draft| draft.message_of_batch(rules));
        Ok(self.entries.into_iter().map(checked).collect())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiveMessage {
    pub queue_url: String,
    pub system_attributes: SystemFilter,
    pub attributes: AttributeFilter,
    max: Option<Given>,
    visibility: Option<Given>,
    wait: Option<Given>,
    attempt_id: Option<String>,
}

/// How to receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiveTerms {
    /// From 1 to 10.
    pub max: u32,
    /// In seconds; the queue's own, if not said.
    pub visibility: Option<u32>,
    /// In seconds; the queue's own, if not said.
    pub wait: Option<u32>,
    pub attempt_id: Option<String>,
}

impl ReceiveMessage {
    pub(super) fn read(members: &Members<'_>) -> Result<ReceiveMessage, SqsError> {
        let mut system = members.texts(SYSTEM_NAMES)?.unwrap_or_default();
        system.extend(members.texts(SYSTEM_NAMES_OLD)?.unwrap_or_default());
        Ok(ReceiveMessage {
            queue_url: queue_url(members)?,
            system_attributes: SystemFilter::of(&system),
            attributes: AttributeFilter::of(members.texts(NAMES)?.unwrap_or_default()),
            max: members.number("MaxNumberOfMessages")?,
            visibility: members.number("VisibilityTimeout")?,
            wait: members.number("WaitTimeSeconds")?,
            attempt_id: members.text("ReceiveRequestAttemptId")?,
        })
    }

    pub fn terms(&self, rules: &QueueRules) -> Result<ReceiveTerms, SqsError> {
        let within = |given: &Option<Given>, name, min, max, reason| {
            given.as_ref().map(|given| given.within(name, min, max, reason)).transpose()
        };
        let reason = "Must be between 1 and 10, if provided.";
        let max = within(&self.max, "MaxNumberOfMessages", 1, RECEIVE_MAX, reason)?.unwrap_or(1);
        let reason = "Must be >= 0 and <= 20, if provided.";
        let wait = within(&self.wait, "WaitTimeSeconds", 0, WAIT_MAX, reason)?;
        let reason = "Must be >= 0 and <= 43200, if provided.";
        let visibility = within(&self.visibility, "VisibilityTimeout", 0, VISIBILITY_MAX, reason)?;
        if let Some(id) = &self.attempt_id {
            let name = "ReceiveRequestAttemptId";
            if !rules.is_fifo {
                return Err(SqsError::value(id, name, message::NOT_FOR_THIS_TYPE));
            }
            check_token(id, name)?;
        }
        Ok(ReceiveTerms { max, visibility, wait, attempt_id: self.attempt_id.clone() })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeleteMessage {
    pub queue_url: String,
    pub receipt_handle: String,
}

impl DeleteMessage {
    pub(super) fn read(members: &Members<'_>) -> Result<DeleteMessage, SqsError> {
        let queue_url = queue_url(members)?;
        Ok(DeleteMessage { queue_url, receipt_handle: members.required("ReceiptHandle")? })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeleteMessageBatch {
    pub queue_url: String,
    entries: Vec<Entry<String>>,
}

impl DeleteMessageBatch {
    pub(super) fn read(members: &Members<'_>) -> Result<DeleteMessageBatch, SqsError> {
        let queue_url = queue_url(members)?;
        let read = |(n, (id, entry)): (usize, (String, Members<'_>))| {
            Ok(Entry { id, content: entry_member(&entry, DELETE_ENTRIES, n, "ReceiptHandle")? })
        };
        let entries = entries(members, DELETE_ENTRIES)?.into_iter().enumerate().map(read);
        Ok(DeleteMessageBatch { queue_url, entries: entries.collect::<Result<_, _>>()? })
    }

    /// The receipt handles, unless the batch as a whole is wrong.
    pub fn receipt_handles(self) -> Result<Vec<Entry<String>>, SqsError> {
        batch::check(&self.entries, DELETE_ENTRIES.query)?;
        Ok(self.entries)
    }
}

/// A request to keep a message invisible for a time from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct VisibilityWish {
    receipt_handle: String,
    timeout: Option<Given>,
}

/// How long a message stays out of sight from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visibility {
    pub receipt_handle: String,
    /// In seconds. Zero is back in sight at once.
    pub timeout: u32,
}

impl VisibilityWish {
    fn check(self) -> Result<Visibility, SqsError> {
        let given = self.timeout.ok_or_else(|| SqsError::missing("VisibilityTimeout"))?;
        let reason = "VisibilityTimeout must be an integer between 0 and 43200.";
        let timeout = given.within("VisibilityTimeout", 0, VISIBILITY_MAX, reason)?;
        Ok(Visibility { receipt_handle: self.receipt_handle, timeout })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeMessageVisibility {
    pub queue_url: String,
    wish: VisibilityWish,
}

impl ChangeMessageVisibility {
    pub(super) fn read(members: &Members<'_>) -> Result<ChangeMessageVisibility, SqsError> {
        let queue_url = queue_url(members)?;
        let receipt_handle = members.required("ReceiptHandle")?;
        let timeout = members.number("VisibilityTimeout")?;
        let timeout = Some(timeout.ok_or_else(|| SqsError::missing("VisibilityTimeout"))?);
        Ok(ChangeMessageVisibility { queue_url, wish: VisibilityWish { receipt_handle, timeout } })
    }

    pub fn visibility(self) -> Result<Visibility, SqsError> {
        self.wish.check()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeMessageVisibilityBatch {
    pub queue_url: String,
    entries: Vec<Entry<VisibilityWish>>,
}

impl ChangeMessageVisibilityBatch {
    pub(super) fn read(members: &Members<'_>) -> Result<ChangeMessageVisibilityBatch, SqsError> {
        let queue_url = queue_url(members)?;
        let read = |(n, (id, entry)): (usize, (String, Members<'_>))| {
            let receipt_handle = entry_member(&entry, VISIBILITY_ENTRIES, n, "ReceiptHandle")?;
            let timeout = entry.number("VisibilityTimeout")?;
            Ok(Entry { id, content: VisibilityWish { receipt_handle, timeout } })
        };
        let entries = entries(members, VISIBILITY_ENTRIES)?.into_iter().enumerate().map(read);
        Ok(ChangeMessageVisibilityBatch { queue_url, entries: entries.collect::<Result<_, _>>()? })
    }

    /// The visibility requested for each message, unless the batch as a whole is invalid.
    pub fn visibilities(self) -> Result<Vec<Entry<Result<Visibility, SqsError>>>, SqsError> {
        batch::check(&self.entries, VISIBILITY_ENTRIES.query)?;
        Ok(self.entries.into_iter().map(|entry| entry.map(VisibilityWish::check)).collect())
    }
}
