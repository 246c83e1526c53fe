//! Streams and groups: creating, changing, looking at them, and what operators do to them.

use std::sync::Arc;

use forebay_core::group::GroupFigures;
use forebay_core::settings::{GroupSettings, StreamSettings};
use forebay_core::shard::{Purge, ResetTo, StreamFigures};
use forebay_core::types::{GroupName, Seq, StreamId, StreamName};

use super::{Caller, Reply};
use crate::access::{Action, Resource};
use crate::driver::Answer;
use crate::error::CallError;
use crate::report::{GroupReport, Page, ScalingReport, ServerReport, StreamReport};
use crate::shard_task::ShardTask;
use crate::stats::ScalingTarget;

/// Something that exists now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Created {
    /// The stream itself, or the group's.
    pub stream: StreamId,
    /// False if it was there already.
    pub new: bool,
}

/// Where a list of groups goes on.
pub type GroupCursor = (StreamName, GroupName);

impl Caller {
    /// Creates a stream. One that is there already and agrees with `change` will do.
    pub async fn create_stream(
        &self,
        name: StreamName,
        change: impl Fn(&mut StreamSettings) + Send + 'static,
    ) -> Result<Created, CallError> {
        self.may(Action::Create, Resource::Stream(&name))?;
        self.shard_of(&name).ask(move |task, reply| task.create_stream(&name, &change, reply)).await
    }

    /// Creates a group, and its stream if that is absent. One that is there already and agrees with `change`
    /// will do.
    pub async fn create_group(
        &self,
        stream: StreamName,
        name: GroupName,
        change: impl Fn(&mut GroupSettings) + Send + 'static,
    ) -> Result<Created, CallError> {
        self.may_in(Action::Create, &stream, &name)?;
        self.shard_of(&stream).ask(move |task, reply| task.create_group(&stream, &name, &change, reply)).await
    }

    pub async fn change_stream(
        &self,
        name: StreamName,
        change: impl FnOnce(&mut StreamSettings) + Send + 'static,
    ) -> Result<(), CallError> {
        self.may(Action::Change, Resource::Stream(&name))?;
        self.shard_of(&name)
            .ask(move |task, reply| {
                let found = task.find_stream(&name);
                task.decide(reply, found, done, |driver, now, stream, ticket| {
                    let mut settings = driver.shard().stream_settings(stream).expect("it was found").clone();
                    change(&mut settings);
                    Ok(driver.change_stream(now, stream, &settings, ticket)?)
                });
            })
            .await
    }

    /// Changes settings while consumers stay connected.
    pub async fn change_group(
        &self,
        stream: StreamName,
        group: GroupName,
        change: impl FnOnce(&mut GroupSettings) + Send + 'static,
    ) -> Result<(), CallError> {
        self.may_in(Action::Change, &stream, &group)?;
        self.shard_of(&stream)
            .ask(move |task, reply| {
                let found = task.find_group(&stream, &group);
                task.decide(reply, found, done, |driver, now, group, ticket| {
                    let mut settings = driver.shard().group_settings(group).expect("it was found").clone();
                    change(&mut settings);
                    Ok(driver.change_group(now, group, &settings, ticket)?)
                });
            })
            .await
    }

    /// Deletes a stream with its groups. While they have consumers, only if forced.
    pub async fn delete_stream(&self, name: StreamName, force: bool) -> Result<(), CallError> {
        self.may(Action::Delete, Resource::Stream(&name))?;
        self.shard_of(&name).ask(move |task, reply| task.delete_stream(&name, force, reply)).await
    }

    pub async fn delete_group(&self, stream: StreamName, group: GroupName) -> Result<(), CallError> {
        self.may_in(Action::Delete, &stream, &group)?;
        self.shard_of(&stream).ask(move |task, reply| task.delete_group(&stream, &group, reply)).await
    }

    /// Drops everything ready, delayed and leased, and what it is asked to take along. Answers how many.
    pub async fn purge(&self, name: StreamName, purge: Purge) -> Result<u64, CallError> {
        self.may(Action::Operate, Resource::Stream(&name))?;
        self.shard_of(&name)
            .ask(move |task, reply| {
                let found = task.find_stream(&name);
                let count = |answer| match answer {
                    Answer::Purged { messages } => messages,
                    other => unreachable!("a purge is answered as one, not with {other:?}"),
                };
                task.decide(reply, found, count, |driver, now, stream, ticket| {
                    Ok(driver.purge(now, stream, purge, ticket)?)
                });
            })
            .await
    }

    /// Stops handing out, or goes on with it.
    pub async fn pause(&self, stream: StreamName, group: GroupName, paused: bool) -> Result<(), CallError> {
        self.may_in(Action::Operate, &stream, &group)?;
        self.shard_of(&stream)
            .ask(move |task, reply| {
                let found = task.find_group(&stream, &group);
                task.decide(reply, found, done, |driver, now, group, ticket| {
                    Ok(driver.pause(now, group, paused, ticket)?)
                });
            })
            .await
    }

    /// Moves a group's progress. Answers the position below which everything now counts as settled.
    pub async fn reset(
        &self,
        stream: StreamName,
        group: GroupName,
        to: ResetTo,
        drop_parked: bool,
    ) -> Result<Seq, CallError> {
        self.may_in(Action::Operate, &stream, &group)?;
        self.shard_of(&stream)
            .ask(move |task, reply| {
                let found = task.find_group(&stream, &group);
                let floor = |answer| match answer {
                    Answer::Reset { floor } => floor,
                    other => unreachable!("a reset is answered as one, not with {other:?}"),
                };
                task.decide(reply, found, floor, |driver, now, group, ticket| {
                    Ok(driver.reset(now, group, to, drop_parked, ticket)?)
                });
            })
            .await
    }

    pub async fn stream(&self, name: StreamName) -> Result<StreamReport, CallError> {
        self.may(Action::Look, Resource::Stream(&name))?;
        self.shard_of(&name).query(move |task| Ok(task.report_stream(task.find_stream(&name)?))).await
    }

    /// Streams by name, after `after`.
    pub async fn streams(
        &self,
        after: Option<StreamName>,
        limit: usize,
    ) -> Result<Page<StreamReport, StreamName>, CallError> {
        self.may(Action::Look, Resource::Server)?;
        self.broker.whole().query(move |task| Ok(task.report_streams(after.as_ref(), limit))).await
    }

    pub async fn group(&self, stream: StreamName, group: GroupName) -> Result<GroupReport, CallError> {
        self.may_in(Action::Look, &stream, &group)?;
        self.shard_of(&stream)
            .query(move |task| Ok(task.report_group(task.find_group(&stream, &group)?)))
            .await
    }

    /// The figures of a group and of its stream, of one moment. Unlike a whole report they cost the same however many
    /// consumers there are.
    pub async fn figures(
        &self,
        stream: StreamName,
        group: GroupName,
    ) -> Result<(StreamFigures, GroupFigures), CallError> {
        self.may_in(Action::Look, &stream, &group)?;
        self.shard_of(&stream).query(move |task| task.figures(&stream, &group)).await
    }

    /// Groups by stream and name, of one stream or of all, after `after`.
    pub async fn groups(
        &self,
        stream: Option<StreamName>,
        after: Option<GroupCursor>,
        limit: usize,
    ) -> Result<Page<GroupReport, GroupCursor>, CallError> {
        let what = stream.as_ref().map_or(Resource::Server, Resource::Stream);
        self.may(Action::Look, what)?;
        self.broker
            .whole()
            .query(move |task| task.report_groups(stream.as_ref(), after.as_ref(), limit))
            .await
    }

    pub async fn scaling(
        &self,
        stream: StreamName,
        group: GroupName,
        target: ScalingTarget,
    ) -> Result<ScalingReport, CallError> {
        self.may_in(Action::Look, &stream, &group)?;
        self.shard_of(&stream)
            .query(move |task| Ok(task.report_scaling(task.find_group(&stream, &group)?, &target)))
            .await
    }

    pub async fn server(&self) -> Result<ServerReport, CallError> {
        self.may(Action::Look, Resource::Server)?;
        self.broker.whole().query(|task| Ok(task.report_server())).await
    }

    /// Resolves when a stream has a message after `seen`, with the last one that it has then.
    pub async fn grown(&self, stream: StreamName, seen: Seq) -> Result<Seq, CallError> {
        self.may(Action::Read, Resource::Stream(&stream))?;
        let name = Arc::new(stream);
        let mut tail = self
            .shard_of(&name)
            .ask(move |task: &mut ShardTask, reply: Reply<_>| task.watch(&name, reply))
            .await?;
        // The sender goes with the stream, or with the server.
        let last = *tail.wait_for(|last| *last > seen).await.map_err(|_| CallError::NoSuchStream)?;
        Ok(last)
    }
}

pub(super) fn done(_: Answer) {}
