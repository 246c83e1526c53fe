//! From a typed response to the bytes of either protocol.
//!
//! A response is described once, as a tree of members (`shape`), and written by one of three writers: JSON, XML,
//! and the JSON that few Query clients ask for, which is shaped like the XML.

mod json;
mod negotiated;
mod shape;
mod xml;

use std::collections::BTreeMap;

use axum::http::{HeaderName, HeaderValue, Response as HttpResponse, StatusCode, header};
use bytes::Bytes;

use super::error::SqsError;
use super::message::MessageAttribute;
use super::protocol::{Action, Format, NoCall, Protocol};

const JSON: &str = "application/x-amz-json-1.0";
const XML: &str = "text/xml";
const PLAIN_JSON: &str = "application/json";
const NAMESPACE: &str = "http://queue.amazonaws.com/doc/2012-11-05/";

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amzn-requestid");
const QUERY_ERROR: HeaderName = HeaderName::from_static("x-amzn-query-error");
const ERROR_TYPE: HeaderName = HeaderName::from_static("x-amzn-errortype");

/// A response of any action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    AddPermission,
    CancelMessageMoveTask { moved: u64 },
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch(Batch<Changed>),
    CreateQueue { queue_url: String },
    DeleteMessage,
    DeleteMessageBatch(Batch<Changed>),
    DeleteQueue,
    GetQueueAttributes { attributes: Vec<(&'static str, String)> },
    GetQueueUrl { queue_url: String },
    ListDeadLetterSourceQueues { queue_urls: Vec<String>, next_token: Option<String> },
    ListMessageMoveTasks { tasks: Vec<MoveTask> },
    ListQueueTags { tags: BTreeMap<String, String> },
    ListQueues { queue_urls: Vec<String>, next_token: Option<String> },
    PurgeQueue,
    ReceiveMessage { messages: Vec<Received> },
    RemovePermission,
    SendMessage(Sent),
    SendMessageBatch(Batch<SentEntry>),
    SetQueueAttributes,
    StartMessageMoveTask { task_handle: String },
    TagQueue,
    UntagQueue,
}

/// A message that was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    pub message_id: String,
    pub md5_of_body: String,
    pub md5_of_attributes: Option<String>,
    pub md5_of_system_attributes: Option<String>,
    /// On FIFO queues.
    pub sequence_number: Option<String>,
}

/// The results of the entries of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch<T> {
    pub successful: Vec<T>,
    pub failed: Vec<(String, SqsError)>,
}

/// An entry that did what it should, and of which nothing else is to be said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    pub id: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentEntry {
    pub id: String,
    pub sent: Sent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    pub message_id: String,
    pub receipt_handle: String,
    pub md5_of_body: String,
    pub body: String,
    /// Those of the system that were asked for.
    pub system_attributes: Vec<(&'static str, String)>,
    /// Of the attributes below.
    pub md5_of_attributes: Option<String>,
    /// Those that were asked for.
    pub attributes: BTreeMap<String, MessageAttribute>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveStatus {
    Running,
    Completed,
    Cancelling,
    Cancelled,
    Failed,
}

impl MoveStatus {
    pub fn name(self) -> &'static str {
        match self {
            MoveStatus::Running => "RUNNING",
            MoveStatus::Completed => "COMPLETED",
            MoveStatus::Cancelling => "CANCELLING",
            MoveStatus::Cancelled => "CANCELLED",
            MoveStatus::Failed => "FAILED",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveTask {
    /// Shown only while the task is running.
    pub task_handle: String,
    pub status: MoveStatus,
    pub source_arn: String,
    /// As the task was given it.
    pub destination_arn: Option<String>,
    pub rate: Option<u32>,
    pub moved: u64,
    pub to_move: u64,
    pub failure: Option<String>,
    /// Milliseconds since 1970.
    pub started: u64,
}

impl Response {
    pub fn action(&self) -> Action {
        match self {
            Response::AddPermission => Action::AddPermission,
            Response::CancelMessageMoveTask { .. } => Action::CancelMessageMoveTask,
            Response::ChangeMessageVisibility => Action::ChangeMessageVisibility,
            Response::ChangeMessageVisibilityBatch(_) => Action::ChangeMessageVisibilityBatch,
            Response::CreateQueue { .. } => Action::CreateQueue,
            Response::DeleteMessage => Action::DeleteMessage,
            Response::DeleteMessageBatch(_) => Action::DeleteMessageBatch,
            Response::DeleteQueue => Action::DeleteQueue,
            Response::GetQueueAttributes { .. } => Action::GetQueueAttributes,
            Response::GetQueueUrl { .. } => Action::GetQueueUrl,
            Response::ListDeadLetterSourceQueues { .. } => Action::ListDeadLetterSourceQueues,
            Response::ListMessageMoveTasks { .. } => Action::ListMessageMoveTasks,
            Response::ListQueueTags { .. } => Action::ListQueueTags,
            Response::ListQueues { .. } => Action::ListQueues,
            Response::PurgeQueue => Action::PurgeQueue,
            Response::ReceiveMessage { .. } => Action::ReceiveMessage,
            Response::RemovePermission => Action::RemovePermission,
            Response::SendMessage(_) => Action::SendMessage,
            Response::SendMessageBatch(_) => Action::SendMessageBatch,
            Response::SetQueueAttributes => Action::SetQueueAttributes,
            Response::StartMessageMoveTask { .. } => Action::StartMessageMoveTask,
            Response::TagQueue => Action::TagQueue,
            Response::UntagQueue => Action::UntagQueue,
        }
    }

    /// As HTTP, with the id that the request was given.
    pub fn render(self, protocol: Protocol, request_id: &str) -> HttpResponse<Bytes> {
        let action = self.action();
        let members = shape::members(self);
        let (content_type, body) = match protocol {
            // Nothing to say is an empty body, which every client takes for an empty object.
            Protocol::Json => (JSON, members.as_deref().map(json::object).unwrap_or_default()),
            Protocol::Query(Format::Xml) => (XML, xml::response(action, members.as_deref(), request_id)),
            Protocol::Query(Format::Json) => {
                (PLAIN_JSON, negotiated::response(action, members.as_deref(), request_id))
            }
        };
        http(StatusCode::OK, content_type, body, request_id)
    }
}

impl SqsError {
    /// As HTTP, with the id that the request was given.
    pub fn render(&self, protocol: Protocol, request_id: &str) -> HttpResponse<Bytes> {
        let (content_type, body) = match protocol {
            Protocol::Json => (JSON, json::error(self)),
            Protocol::Query(Format::Xml) => (XML, xml::error(self, request_id)),
            Protocol::Query(Format::Json) => (PLAIN_JSON, negotiated::error(self, request_id)),
        };
        let mut response = http(self.status(), content_type, body, request_id);
        if protocol == Protocol::Json {
            let code = format!("{};{}", self.code(), self.fault().name());
            let headers = response.headers_mut();
            if let Ok(code) = HeaderValue::from_str(&code) {
                headers.insert(QUERY_ERROR, code);
            }
            headers.insert(ERROR_TYPE, HeaderValue::from_static(self.kind().row().shape));
        }
        response
    }
}

impl NoCall {
    pub fn render(&self, request_id: &str) -> HttpResponse<Bytes> {
        match self {
            NoCall::UnknownOperation => {
                let body = "<UnknownOperationException/>".to_owned();
                http(StatusCode::NOT_FOUND, XML, body, request_id)
            }
            NoCall::Refused(protocol, error) => error.render(*protocol, request_id),
        }
    }
}

fn http(
    status: StatusCode,
    content_type: &'static str,
    body: String,
    request_id: &str,
) -> HttpResponse<Bytes> {
    let mut response = HttpResponse::new(Bytes::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let Ok(id) = HeaderValue::from_str(request_id) {
        headers.insert(REQUEST_ID, id);
    }
    response
}

/// Makes a request id, or a message id, out of random bytes: a version 4 UUID.
pub fn uuid(mut random: [u8; 16]) -> String {
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    let digits = super::digest::hex(&random);
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    parts.join("-")
}
