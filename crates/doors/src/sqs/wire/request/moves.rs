//! Requests about message move tasks.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

use super::members::{Given, Members};
use crate::sqs::wire::address::Arn;
use crate::sqs::wire::error::{ErrorKind, SqsError};

/// Tasks that a list may show.
const TASKS_MAX: u32 = 10;
/// Messages that a task may be asked to move in a second.
const RATE_MAX: u32 = 500;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartMessageMoveTask {
    source_arn: String,
    destination_arn: Option<String>,
    rate: Option<Given>,
}

/// From where to where, and how fast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    pub source: Arn,
    /// Each message goes back to where it came from, if this is not said.
    pub destination: Option<Arn>,
    /// Messages a second.
    pub rate: Option<u32>,
}

impl StartMessageMoveTask {
    pub(super) fn read(members: &Members<'_>) -> Result<StartMessageMoveTask, SqsError> {
        Ok(StartMessageMoveTask {
            source_arn: members.required("SourceArn")?,
            destination_arn: members.text("DestinationArn")?,
            rate: members.number("MaxNumberOfMessagesPerSecond")?,
        })
    }

    pub fn terms(&self) -> Result<Move, SqsError> {
        let rate = |given: &Given| {
            let reason = "Must be between 1 and 500, if provided.";
            given.within("MaxNumberOfMessagesPerSecond", 1, RATE_MAX, reason)
        };
        Ok(Move {
            source: arn("SourceArn", &self.source_arn)?,
            destination: self
                .destination_arn
                .as_deref()
                .map(|text| arn("DestinationArn", text))
                .transpose()?,
            rate: self.rate.as_ref().map(rate).transpose()?,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListMessageMoveTasks {
    source_arn: String,
    max_results: Option<Given>,
}

impl ListMessageMoveTasks {
    pub(super) fn read(members: &Members<'_>) -> Result<ListMessageMoveTasks, SqsError> {
        Ok(ListMessageMoveTasks {
            source_arn: members.required("SourceArn")?,
            max_results: members.number("MaxResults")?,
        })
    }

    pub fn source(&self) -> Result<Arn, SqsError> {
        arn("SourceArn", &self.source_arn)
    }

    /// One, unless more are asked for.
    pub fn max_results(&self) -> Result<u32, SqsError> {
        let Some(given) = &self.max_results else { return Ok(1) };
        given.within("MaxResults", 1, TASKS_MAX, "Must be between 1 and 10, if provided.")
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelMessageMoveTask {
    task_handle: String,
}

impl CancelMessageMoveTask {
    pub(super) fn read(members: &Members<'_>) -> Result<CancelMessageMoveTask, SqsError> {
        Ok(CancelMessageMoveTask { task_handle: members.required("TaskHandle")? })
    }

    pub fn task(&self) -> Result<TaskHandle, SqsError> {
        let wrong = || SqsError::parameter("Value for parameter TaskHandle is invalid.");
        TaskHandle::parse(&self.task_handle).ok_or_else(wrong)
    }
}

/// The handle of a task: its id and the queue that it empties, in JSON, in base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskHandle {
    #[serde(rename = "taskId")]
    pub task_id: String,
    #[serde(rename = "sourceArn")]
    pub source_arn: String,
}

impl TaskHandle {
    pub fn parse(text: &str) -> Option<TaskHandle> {
        let json = BASE64.decode(text).ok()?;
        serde_json::from_slice(&json).ok()
    }

    pub fn encode(&self) -> String {
        // Two texts can always be written.
        BASE64.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    /// The error for a handle of an unknown task.
    pub fn no_such_task() -> SqsError {
        SqsError::new(ErrorKind::ResourceNotFound, "Task does not exist.")
    }
}

fn arn(parameter: &str, text: &str) -> Result<Arn, SqsError> {
    let reason = "An ARN has the form arn:<partition>:sqs:<region>:<account-id>:<queue-name>.";
    Arn::parse(text).ok_or_else(|| SqsError::value(text, parameter, reason))
}
