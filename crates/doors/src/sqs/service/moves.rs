//! Message move tasks. A task is a job of the dead-letter queue's group, so it is in the log, goes on after a restart
//! and is seen by every other door.

use std::sync::Arc;

use forebay_broker::api::{CallError, JobFailure, JobRefusal, JobReport, JobState, Rate, Work};
use forebay_core::types::{JobId, Seq};

use super::queues::sends_dead_letters_to;
use super::{Asker, Service};
use crate::sqs::failure;
use crate::sqs::queue::{Queue, QueueId};
use crate::sqs::wire::address::Arn;
use crate::sqs::wire::error::SqsError;
use crate::sqs::wire::protocol::Action;
use crate::sqs::wire::request::{
    CancelMessageMoveTask, ListMessageMoveTasks, StartMessageMoveTask, TaskHandle,
};
use crate::sqs::wire::response::{MoveStatus, MoveTask, Response, uuid};

/// Why tasks fail, in the words of SQS.
const NO_DESTINATION: &str = "AWS.SimpleQueueService.NonExistentQueue";
const NO_ORIGIN: &str = "CouldNotDetermineMessageSource";

impl Service {
    pub(super) async fn start_move(
        &self,
        asker: &Asker,
        request: &StartMessageMoveTask,
    ) -> Result<Response, SqsError> {
        let terms = request.terms()?;
        let source = self.find_by_arn(asker, &terms.source, "SourceArn", Action::StartMessageMoveTask)?;
        if !self.registry.any(|queue| sends_dead_letters_to(queue, &source.id)) {
            return Err(SqsError::parameter("Source queue must be configured as a Dead Letter Queue."));
        }
        let to = match &terms.destination {
            Some(arn) => {
                let queue = self.find_by_arn(asker, arn, "DestinationArn", Action::SendMessage)?;
                if queue.is_fifo() != source.is_fifo() {
                    let reason = "Source and destination must be queues of the same type.";
                    return Err(SqsError::value(arn, "DestinationArn", reason));
                }
                if queue.id == source.id {
                    let reason = "Source and destination must not be the same queue.";
                    return Err(SqsError::value(arn, "DestinationArn", reason));
                }
                Some(queue.stream())
            }
            None => None,
        };
        // A tenth of a second at a time.
        let rate = terms.rate.map(|rate| Rate { per_second: rate.into(), burst: (rate / 10).max(1) });
        let started = asker.caller.move_waiting(source.stream(), source.group(), to, rate).await;
        let job = match started {
            Ok(job) => job,
            Err(CallError::Job(JobRefusal::Moving { .. })) => {
                return Err(SqsError::parameter(
                    "There is already a task running. Only one active task is allowed for a source queue arn at a \
                     given time.",
                ));
            }
            Err(CallError::Job(JobRefusal::NoDestination)) => {
                return Err(SqsError::no_such_resource("DestinationArn"));
            }
            Err(error) => return Err(self.failed(&source, &error).await),
        };
        Ok(Response::StartMessageMoveTask { task_handle: self.handle(asker, &source, job).encode() })
    }

    pub(super) async fn list_moves(
        &self,
        asker: &Asker,
        request: &ListMessageMoveTasks,
    ) -> Result<Response, SqsError> {
        let source =
            self.find_by_arn(asker, &request.source()?, "SourceArn", Action::ListMessageMoveTasks)?;
        let limit = request.max_results()? as usize;
        let jobs = self.moves(asker, &source).await?;
        let tasks = jobs.iter().rev().take(limit).map(|job| self.task(asker, &source, job)).collect();
        Ok(Response::ListMessageMoveTasks { tasks })
    }

    pub(super) async fn cancel_move(
        &self,
        asker: &Asker,
        request: &CancelMessageMoveTask,
    ) -> Result<Response, SqsError> {
        let handle = request.task()?;
        let arn = Arn::parse(&handle.source_arn).ok_or_else(|| SqsError::no_such_resource("SourceArn"))?;
        let source = self.find_by_arn(asker, &arn, "SourceArn", Action::CancelMessageMoveTask)?;
        let is_meant = |job: &&JobReport| self.task_id(&source, job.id) == handle.task_id;
        let jobs = self.moves(asker, &source).await?;
        let job =
            jobs.iter().find(is_meant).filter(|job| job.is_moving()).ok_or_else(TaskHandle::no_such_task)?;
        match asker.caller.cancel_job(source.stream(), source.group(), job.id).await {
            Ok(()) => {}
            // It has come to its end meanwhile.
            Err(CallError::Job(JobRefusal::NoSuchJob { .. })) => return Err(TaskHandle::no_such_task()),
            Err(error) => return Err(self.failed(&source, &error).await),
        }
        let jobs = self.moves(asker, &source).await?;
        let moved = jobs.iter().find(is_meant).map_or(job.done, |job| job.done);
        Ok(Response::CancelMessageMoveTask { moved })
    }

    fn find_by_arn(
        &self,
        asker: &Asker,
        arn: &Arn,
        parameter: &str,
        action: Action,
    ) -> Result<Arc<Queue>, SqsError> {
        let queue = self.registry.get(&QueueId::new(&arn.account, &arn.queue));
        let queue = queue.filter(|queue| asker.sees(queue));
        let queue = queue.ok_or_else(|| SqsError::no_such_resource(parameter))?;
        self.admit(asker, &queue, action)?;
        Ok(queue)
    }

    /// The tasks of a queue that are remembered, the oldest first.
    async fn moves(&self, asker: &Asker, source: &Queue) -> Result<Vec<JobReport>, SqsError> {
        let jobs = asker.caller.jobs(source.stream(), source.group()).await;
        let mut jobs = jobs.map_err(|error| failure::of_call(&error))?;
        jobs.retain(|job| matches!(job.work, Work::Move { .. }));
        Ok(jobs)
    }

    /// Jobs are numbered from one, and messages are not as many as to meet them from the other end.
    fn task_id(&self, source: &Queue, job: JobId) -> String {
        uuid(self.broker.message_name(&source.stream, source.stream_id, Seq(u64::MAX - u64::from(job.0))))
    }

    fn handle(&self, asker: &Asker, source: &Queue, job: JobId) -> TaskHandle {
        let source_arn = source.id.arn(&asker.locality.region).to_string();
        TaskHandle { task_id: self.task_id(source, job), source_arn }
    }

    fn task(&self, asker: &Asker, source: &Queue, job: &JobReport) -> MoveTask {
        let region = &asker.locality.region;
        let destination = match &job.work {
            Work::Move { to: Some(to) } => Some(QueueId::of_stream(to.as_str()).arn(region).to_string()),
            _ => None,
        };
        let (status, failure) = match &job.state {
            JobState::Running => (MoveStatus::Running, None),
            JobState::Done { .. } => (MoveStatus::Completed, None),
            JobState::Cancelled { .. } => (MoveStatus::Cancelled, None),
            JobState::Failed { why, .. } => (MoveStatus::Failed, Some(reason(why))),
        };
        MoveTask {
            task_handle: self.handle(asker, source, job.id).encode(),
            status,
            source_arn: source.id.arn(region).to_string(),
            destination_arn: destination,
            rate: job.rate.map(|rate| rate.per_second as u32),
            moved: job.done,
            to_move: job.matched,
            failure,
            started: job.started.0 / 1_000,
        }
    }
}

fn reason(why: &JobFailure) -> String {
    match why {
        JobFailure::NoDestination => NO_DESTINATION.to_owned(),
        JobFailure::NoOrigin => NO_ORIGIN.to_owned(),
        JobFailure::Refused(_) => why.to_string(),
    }
}
