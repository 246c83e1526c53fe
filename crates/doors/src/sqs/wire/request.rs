//! From the bytes of either protocol to a typed request.
//!
//! A request that is read here is complete (no required member is missing) and its members have the right types.
//! Its values are checked later, once the queue is found: each request has a method for that.
//!
//! | Module | What it does |
//! | --- | --- |
//! | `form`, `tree` | The bytes of Query and of JSON, within limits. |
//! | `members` | The members of a structure, whichever protocol they came by. |
//! | `queues`, `messages`, `moves` | The requests. |

pub mod form;
mod members;
mod messages;
mod moves;
mod queues;
mod tree;

pub use members::Given;
pub use messages::*;
pub use moves::*;
pub use queues::*;

use super::address;
use super::error::SqsError;
use super::protocol::{Action, Call, Head, NoCall, Protocol};
use form::Params;
use members::Members;

macro_rules! requests {
    ($($name:ident)*) => {
        /// A request of any action.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Request {
            $($name($name),)*
        }

        impl Request {
            pub fn action(&self) -> Action {
                match self {
                    $(Request::$name(_) => Action::$name,)*
                }
            }

            fn read(action: Action, members: &Members<'_>) -> Result<Request, SqsError> {
                match action {
                    $(Action::$name => $name::read(members).map(Request::$name),)*
                }
            }
        }
    };
}

requests! {
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

impl Request {
    /// A request out of a call.
    pub fn parse(head: &Head<'_>, call: Call<'_>) -> Result<Request, SqsError> {
        let mut request = match call {
            Call::Json { action, body } => {
                let action = Action::named(&action).ok_or_else(|| SqsError::invalid_action(&action))?;
                Request::read(action, &Members::Json(&tree::parse(body)?))?
            }
            Call::Query { action, mut params, .. } => {
                let action = action_at(head, &action, &mut params)?;
                Request::read(action, &Members::of_query(&params))?
            }
        };
        // A send joins the trace of its request, unless it says otherwise.
        if let Some(trace) = head.header("x-amzn-trace-id") {
            match &mut request {
                Request::SendMessage(send) => send.draft.join_trace(trace),
                Request::SendMessageBatch(batch) => batch.join_trace(trace),
                _ => {}
            }
        }
        Ok(request)
    }
}

/// The action that Query asks for. On the path of a queue, that queue is meant where no other is named, and
/// actions that are for no queue cannot be asked for.
fn action_at(head: &Head<'_>, name: &str, params: &mut Params) -> Result<Action, SqsError> {
    let action = Action::named(name).ok_or_else(|| SqsError::invalid_action(name))?;
    let Some(queue) = address::queue_in_path(head.path) else { return Ok(action) };
    if matches!(action, Action::CreateQueue | Action::ListQueues) {
        return Err(SqsError::invalid_action(name));
    }
    if params.get("QueueUrl").is_none_or(str::is_empty) {
        params.set("QueueUrl", queue.path());
    }
    Ok(action)
}

/// A request, or why it cannot be understood, in the protocol in which to answer.
pub fn understand(head: &Head<'_>, body: &[u8]) -> Result<(Protocol, Request), NoCall> {
    let call = Call::of(head, body)?;
    let protocol = call.protocol();
    let request = Request::parse(head, call);
    request.map(|request| (protocol, request)).map_err(|error| NoCall::Refused(protocol, error))
}
