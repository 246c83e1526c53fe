//! Streams and groups: creating, changing, looking at them, and what operators do to them.

use forebay_core::group::GroupFigures;
use forebay_core::settings::{GroupSettings, StreamSettings};
use forebay_core::shard::{DeleteIf, Purge, ResetTo, StreamFigures};
use forebay_core::types::{GroupName, Seq, StreamId, StreamName};

use super::Caller;
use crate::access::{Resource, Right};
use crate::error::CallError;
use crate::report::{GroupReport, Page, ScalingReport, ServerReport, StreamReport};
use crate::shard_task::{CONSUMERS_PER_LIST, find_group, find_stream};
use crate::stats::ScalingTarget;

/// Reports that the task makes in one turn. Lists are made of as many turns as they need.
const REPORTS_PER_TURN: usize = 50;

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
    /// Creates a stream. If it exists and agrees with `change`, the call succeeds too.
    pub async fn create_stream(
        &self,
        name: StreamName,
        change: impl Fn(&mut StreamSettings) + Send + 'static,
    ) -> Result<Created, CallError> {
        self.may(Right::Create, Resource::Stream(&name))?;
        self.shard_of(&name).ask(move |task, reply| task.create_stream(&name, &change, reply)).await
    }

    /// Creates a group, and its stream if that is absent. If the group exists and agrees with `change`, the
    /// call succeeds too.
    pub async fn create_group(
        &self,
        stream: StreamName,
        name: GroupName,
        change: impl Fn(&mut GroupSettings) + Send + 'static,
    ) -> Result<Created, CallError> {
        self.may_in(Right::Create, &stream, &name)?;
        self.shard_of(&stream).ask(move |task, reply| task.create_group(&stream, &name, &change, reply)).await
    }

    pub async fn change_stream(
        &self,
        name: StreamName,
        change: impl FnOnce(&mut StreamSettings) + Send + 'static,
    ) -> Result<(), CallError> {
        self.may(Right::Change, Resource::Stream(&name))?;
        self.shard_of(&name)
            .decide(move |shard, now| {
                let stream = find_stream(shard, &name)?;
                let mut settings = shard.stream_settings(stream).expect("it was found").clone();
                change(&mut settings);
                Ok(shard.change_stream(now, stream, &settings)?)
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
        self.may_in(Right::Change, &stream, &group)?;
        self.shard_of(&stream)
            .decide(move |shard, now| {
                let group = find_group(shard, &stream, &group)?;
                let mut settings = shard.group_settings(group).expect("it was found").clone();
                change(&mut settings);
                Ok(shard.change_group(now, group, &settings)?)
            })
            .await
    }

    /// Deletes a stream with its groups. While they have consumers, only if forced.
    pub async fn delete_stream(&self, name: StreamName, force: bool) -> Result<(), CallError> {
        self.delete_stream_if(name, DeleteIf { unused: !force, empty: false }).await
    }

    /// Deletes a stream with its groups, under conditions.
    pub async fn delete_stream_if(&self, name: StreamName, condition: DeleteIf) -> Result<(), CallError> {
        self.may(Right::Delete, Resource::Stream(&name))?;
        self.shard_of(&name).ask(move |task, reply| task.delete_stream(&name, condition, reply)).await
    }

    pub async fn delete_group(&self, stream: StreamName, group: GroupName) -> Result<(), CallError> {
        self.may_in(Right::Delete, &stream, &group)?;
        self.shard_of(&stream).ask(move |task, reply| task.delete_group(&stream, &group, reply)).await
    }

    /// Drops everything ready, delayed and leased, and the rest that `purge` names. Returns how many messages
    /// were dropped.
    pub async fn purge(&self, name: StreamName, purge: Purge) -> Result<u64, CallError> {
        self.may(Right::Operate, Resource::Stream(&name))?;
        self.shard_of(&name)
            .decide(move |shard, now| Ok(shard.purge(now, find_stream(shard, &name)?, purge)?))
            .await
    }

    /// Drops the messages that no consumer holds. Leased and parked ones stay. Returns how many messages were dropped.
    pub async fn purge_ready(&self, name: StreamName) -> Result<u64, CallError> {
        self.may(Right::Operate, Resource::Stream(&name))?;
        self.shard_of(&name)
            .decide(move |shard, now| Ok(shard.purge_ready(now, find_stream(shard, &name)?)?))
            .await
    }

    /// Drops every message before this position. Parked ones stay. Returns how many messages were dropped.
    pub async fn truncate(&self, name: StreamName, before: Seq) -> Result<u64, CallError> {
        self.may(Right::Operate, Resource::Stream(&name))?;
        self.shard_of(&name)
            .decide(move |shard, now| Ok(shard.truncate(now, find_stream(shard, &name)?, before)?))
            .await
    }

    /// Stops handing out, or goes on with it.
    pub async fn pause(&self, stream: StreamName, group: GroupName, paused: bool) -> Result<(), CallError> {
        self.may_in(Right::Operate, &stream, &group)?;
        self.shard_of(&stream)
            .decide(move |shard, now| Ok(shard.pause(now, find_group(shard, &stream, &group)?, paused)?))
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
        self.may_in(Right::Operate, &stream, &group)?;
        self.shard_of(&stream)
            .decide(move |shard, now| {
                let group = find_group(shard, &stream, &group)?;
                Ok(shard.reset(now, group, to, drop_parked)?)
            })
            .await
    }

    pub async fn stream(&self, name: StreamName) -> Result<StreamReport, CallError> {
        self.may(Right::Look, Resource::Stream(&name))?;
        self.shard_of(&name).query(move |task| Ok(task.report_stream(task.find_stream(&name)?))).await
    }

    /// Streams by name, after `after`.
    pub async fn streams(
        &self,
        after: Option<StreamName>,
        limit: usize,
    ) -> Result<Page<StreamReport, StreamName>, CallError> {
        self.may(Right::Look, Resource::Server)?;
        let shard = self.broker.whole();
        let mut page = Page { items: Vec::new(), next: after };
        loop {
            let (after, count) = (page.next.take(), (limit - page.items.len()).min(REPORTS_PER_TURN));
            let slice = {
                let _permit = shard.report_permit().await;
                shard.query(move |task| Ok(task.report_streams(after.as_ref(), count))).await?
            };
            page.items.extend(slice.items);
            page.next = slice.next;
            if page.next.is_none() || page.items.len() >= limit {
                return Ok(page);
            }
        }
    }

    pub async fn group(&self, stream: StreamName, group: GroupName) -> Result<GroupReport, CallError> {
        self.may_in(Right::Look, &stream, &group)?;
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
        self.may_in(Right::Look, &stream, &group)?;
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
        self.may(Right::Look, what)?;
        let shard = self.broker.whole();
        let mut page = Page { items: Vec::new(), next: after };
        let mut consumers = 0;
        loop {
            let (after, count) = (page.next.take(), (limit - page.items.len()).min(REPORTS_PER_TURN));
            let of = stream.clone();
            let slice = {
                let _permit = shard.report_permit().await;
                shard.query(move |task| task.report_groups(of.as_ref(), after.as_ref(), count)).await?
            };
            consumers += slice.items.iter().map(|group| group.consumers.len()).sum::<usize>();
            page.items.extend(slice.items);
            page.next = slice.next;
            if page.next.is_none() || page.items.len() >= limit || consumers > CONSUMERS_PER_LIST {
                return Ok(page);
            }
        }
    }

    pub async fn scaling(
        &self,
        stream: StreamName,
        group: GroupName,
        target: ScalingTarget,
    ) -> Result<ScalingReport, CallError> {
        self.may_in(Right::Look, &stream, &group)?;
        self.shard_of(&stream)
            .query(move |task| Ok(task.report_scaling(task.find_group(&stream, &group)?, &target)))
            .await
    }

    pub async fn server(&self) -> Result<ServerReport, CallError> {
        self.may(Right::Look, Resource::Server)?;
        self.broker.whole().query(|task| Ok(task.report_server())).await
    }
}
