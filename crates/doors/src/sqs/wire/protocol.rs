//! Which protocol a request speaks, and which action it asks for. Chosen for each request: both protocols are
//! spoken on the same paths.

use axum::http::{HeaderMap, Method, header};

use super::error::SqsError;
use super::request::form::Params;

/// How a request was asked, which is how it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Json,
    Query(Format),
}

/// The format that a Query client wants to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Xml,
    /// Shaped like the XML. For the few who ask for it with `Accept`.
    Json,
}

macro_rules! actions {
    ($($name:ident)*) => {
        /// The actions of SQS.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Action {
            $($name,)*
        }

        impl Action {
            pub const ALL: &'static [Action] = &[$(Action::$name,)*];

            pub fn name(self) -> &'static str {
                match self {
                    $(Action::$name => stringify!($name),)*
                }
            }

            /// By its exact name.
            pub fn named(name: &str) -> Option<Action> {
                match name {
                    $(stringify!($name) => Some(Action::$name),)*
                    _ => None,
                }
            }
        }
    };
}

actions! {
    AddPermission
    CancelMessageMoveTask
    ChangeMessageVisibility
    ChangeMessageVisibilityBatch
    CreateQueue
    DeleteMessage
    DeleteMessageBatch
    DeleteQueue
    GetQueueAttributes
    GetQueueUrl
    ListDeadLetterSourceQueues
    ListMessageMoveTasks
    ListQueueTags
    ListQueues
    PurgeQueue
    ReceiveMessage
    RemovePermission
    SendMessage
    SendMessageBatch
    SetQueueAttributes
    StartMessageMoveTask
    TagQueue
    UntagQueue
}

impl Action {
    /// Whether it makes queues, or makes them other than they are. Messages are not part of a queue here.
    pub fn changes_queues(self) -> bool {
        matches!(
            self,
            Action::AddPermission
                | Action::CreateQueue
                | Action::DeleteQueue
                | Action::PurgeQueue
                | Action::RemovePermission
                | Action::SetQueueAttributes
                | Action::TagQueue
                | Action::UntagQueue
        )
    }
}

/// The head of an HTTP request, as it came.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    pub method: &'a Method,
    /// Still encoded.
    pub path: &'a str,
    /// The query string after the question mark, still encoded.
    pub query: &'a str,
    pub headers: &'a HeaderMap,
}

impl Head<'_> {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// A request in one of the two protocols, not yet understood.
#[derive(Debug)]
pub enum Call<'a> {
    Json { action: String, body: &'a [u8] },
    Query { action: String, params: Params, format: Format },
}

impl Call<'_> {
    pub fn protocol(&self) -> Protocol {
        match self {
            Call::Json { .. } => Protocol::Json,
            Call::Query { format, .. } => Protocol::Query(*format),
        }
    }
}

/// Why a request is in neither protocol.
#[derive(Debug, PartialEq, Eq)]
pub enum NoCall {
    /// It names no action. Answered with a small XML body, whatever the client would like to read.
    UnknownOperation,
    Refused(Protocol, SqsError),
}

const JSON_TYPE: &str = "application/x-amz-json-1.";
const FORM_TYPE: &str = "application/x-www-form-urlencoded";
const TARGET_PREFIX: &str = "AmazonSQS.";

impl<'a> Call<'a> {
    pub fn of(head: &Head<'_>, body: &'a [u8]) -> Result<Call<'a>, NoCall> {
        let content_type = head.header(header::CONTENT_TYPE.as_str()).unwrap_or_default();
        if starts_with_ignoring_case(content_type, JSON_TYPE) {
            let target = head.header("x-amz-target").ok_or(NoCall::UnknownOperation)?;
            let Some(action) = target.strip_prefix(TARGET_PREFIX) else {
                return Err(NoCall::Refused(Protocol::Json, SqsError::invalid_action(target)));
            };
            return Ok(Call::Json { action: action.to_owned(), body });
        }
        let format = match head.header(header::ACCEPT.as_str()) {
            Some(accept) if wants_json(accept) => Format::Json,
            _ => Format::Xml,
        };
        // Only a form has parameters in its body. A body without a content type could be a form.
        let is_form = content_type.is_empty() || starts_with_ignoring_case(content_type, FORM_TYPE);
        let form = if is_form && head.method == Method::POST { body } else { b"" };
        let params = Params::parse(head.query.as_bytes(), form);
        let params = params.map_err(|error| NoCall::Refused(Protocol::Query(format), error))?;
        match params.get("Action") {
            None | Some("") => Err(NoCall::UnknownOperation),
            Some(action) => Ok(Call::Query { action: action.to_owned(), params, format }),
        }
    }
}

fn starts_with_ignoring_case(text: &str, start: &str) -> bool {
    text.as_bytes().get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start.as_bytes()))
}

fn wants_json(accept: &str) -> bool {
    let mut wanted = accept.split(',').map(|range| range.split(';').next().unwrap_or_default().trim());
    wanted.any(|range| range.eq_ignore_ascii_case("application/json"))
}
