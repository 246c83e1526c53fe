//! Streams and groups: creating, changing, looking at them, and what operators do to them.

use forebay_core::group::{GroupFigures, Life};
use forebay_core::settings::{GroupSettings, StreamSettings};
use forebay_core::shard::{DeleteIf, Purge, ResetTo, StreamFigures};
use forebay_core::types::{GroupName, Seq, StreamId, StreamName};

use super::{Caller, Reply, may_feed, may_move};
use crate::access::{Resource, Right, authorize_list, sees};
use crate::error::CallError;
use crate::report::{GroupReport, Page, ScalingReport, ServerReport, StreamReport};
use crate::shard_task::{CONSUMERS_PER_LIST, ShardTask, find_group, find_stream};
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
        let record = self.record(Right::Create, Resource::Stream(&name))?;
        if let Err(over) = self.broker.tenants().may_create(&name) {
            return record.close(Err(over.into()));
        }
        let mut settings = StreamSettings::default();
        change(&mut settings);
        if let Err(denied) = may_feed(&self.principal, None, settings.source.as_ref()) {
            return record.close(Err(denied.into()));
        }
        let changed = settings.source.is_some().then(|| self.broker.feeders().changed());
        let shard = self.shard_of(&name);
        let create = move |task: &mut ShardTask, reply: Reply<Created>| {
            task.create_stream(&name, &change, reply);
            changed.iter().for_each(|changed| changed.notify_one());
        };
        record.close(shard.ask(create).await)
    }

    /// Creates a group, and its stream if that is absent. If the group exists and agrees with `change`, the
    /// call succeeds too.
    pub async fn create_group(
        &self,
        stream: StreamName,
        name: GroupName,
        change: impl Fn(&mut GroupSettings) + Send + 'static,
    ) -> Result<Created, CallError> {
        let record = self.record_in(Right::Create, &stream, &name)?;
        let mut settings = GroupSettings::default();
        change(&mut settings);
        if let Err(denied) = may_move(&self.principal, None, &settings) {
            return record.close(Err(denied.into()));
        }
        if let Err(denied) = self.may(Right::Create, Resource::Stream(&stream)) {
            // The group may be created in a stream that is there; a stream may not be created with it.
            let name = stream.clone();
            let found = self.shard_of(&stream).query(move |task| task.find_stream(&name)).await;
            match found {
                Ok(_) => {}
                Err(CallError::NoSuchStream { .. }) => return record.close(Err(denied.into())),
                Err(error) => return record.close(Err(error)),
            }
        }
        // A stream that is there is known to its tenant.
        if let Err(over) = self.broker.tenants().may_create(&stream) {
            return record.close(Err(over.into()));
        }
        let shard = self.shard_of(&stream);
        record.close(shard.ask(move |task, reply| task.create_group(&stream, &name, &change, reply)).await)
    }

    pub async fn change_stream(
        &self,
        name: StreamName,
        change: impl FnOnce(&mut StreamSettings) + Send + 'static,
    ) -> Result<(), CallError> {
        let record = self.record(Right::Change, Resource::Stream(&name))?;
        let (who, changed) = (self.principal.clone(), self.broker.feeders().changed());
        let done = self
            .shard_of(&name)
            .decide(move |shard, now| {
                let stream = find_stream(shard, &name)?;
                let present = shard.stream_settings(stream).expect("it was found");
                let mut settings = present.clone();
                change(&mut settings);
                may_feed(&who, present.source.as_ref(), settings.source.as_ref())?;
                let is_fed_otherwise = present.source != settings.source;
                shard.change_stream(now, stream, &settings)?;
                if is_fed_otherwise {
                    changed.notify_one();
                }
                Ok(())
            })
            .await;
        record.close(done)
    }

    /// Changes settings while consumers stay connected.
    pub async fn change_group(
        &self,
        stream: StreamName,
        group: GroupName,
        change: impl FnOnce(&mut GroupSettings) + Send + 'static,
    ) -> Result<(), CallError> {
        let record = self.record_in(Right::Change, &stream, &group)?;
        let who = self.principal.clone();
        let done = self
            .shard_of(&stream)
            .decide(move |shard, now| {
                let group = find_group(shard, &stream, &group)?;
                let present = shard.group_settings(group).expect("it was found");
                let mut settings = present.clone();
                change(&mut settings);
                may_move(&who, Some(present), &settings)?;
                Ok(shard.change_group(now, group, &settings)?)
            })
            .await;
        record.close(done)
    }

    /// Deletes a stream with its groups. While they have consumers, only if forced.
    pub async fn delete_stream(&self, name: StreamName, force: bool) -> Result<(), CallError> {
        self.delete_stream_if(name, DeleteIf { unused: !force, empty: false }).await
    }

    /// Deletes a stream with its groups, under conditions.
    pub async fn delete_stream_if(&self, name: StreamName, condition: DeleteIf) -> Result<(), CallError> {
        let record = self.record(Right::Delete, Resource::Stream(&name))?;
        let (shard, feeders) = (self.shard_of(&name), self.broker.feeders().clone());
        let delete = move |task: &mut ShardTask, reply: Reply<()>| {
            let is_fed = task.source_of(&name).is_some();
            task.delete_stream(&name, condition, reply);
            if is_fed && task.source_of(&name).is_none() {
                feeders.end(&name);
            }
        };
        record.close(shard.ask(delete).await)
    }

    pub async fn delete_group(&self, stream: StreamName, group: GroupName) -> Result<(), CallError> {
        let record = self.record_in(Right::Delete, &stream, &group)?;
        let shard = self.shard_of(&stream);
        record.close(shard.ask(move |task, reply| task.delete_group(&stream, &group, reply)).await)
    }

    /// Drops everything ready, delayed and leased, and the rest that `purge` names. Returns how many messages
    /// were dropped.
    pub async fn purge(&self, name: StreamName, purge: Purge) -> Result<u64, CallError> {
        let record = self.record(Right::Operate, Resource::Stream(&name))?.doing("purge");
        let done = self
            .shard_of(&name)
            .decide(move |shard, now| Ok(shard.purge(now, find_stream(shard, &name)?, purge)?))
            .await;
        record.close(done)
    }

    /// Drops the messages that no consumer holds. Leased and parked ones stay. Returns how many messages were dropped.
    pub async fn purge_ready(&self, name: StreamName) -> Result<u64, CallError> {
        let record = self.record(Right::Operate, Resource::Stream(&name))?.doing("purge");
        let done = self
            .shard_of(&name)
            .decide(move |shard, now| Ok(shard.purge_ready(now, find_stream(shard, &name)?)?))
            .await;
        record.close(done)
    }

    /// Drops every message before this position. Parked ones stay. Returns how many messages were dropped.
    pub async fn truncate(&self, name: StreamName, before: Seq) -> Result<u64, CallError> {
        let record = self.record(Right::Operate, Resource::Stream(&name))?.doing("truncate");
        let done = self
            .shard_of(&name)
            .decide(move |shard, now| Ok(shard.truncate(now, find_stream(shard, &name)?, before)?))
            .await;
        record.close(done)
    }

    /// Stops handing out, or goes on with it.
    pub async fn pause(&self, stream: StreamName, group: GroupName, paused: bool) -> Result<(), CallError> {
        let record =
            self.record_in(Right::Operate, &stream, &group)?.doing(if paused { "pause" } else { "resume" });
        let done = self
            .shard_of(&stream)
            .decide(move |shard, now| Ok(shard.pause(now, find_group(shard, &stream, &group)?, paused)?))
            .await;
        record.close(done)
    }

    /// Moves a group's progress. Answers the position below which everything now counts as settled.
    pub async fn reset(
        &self,
        stream: StreamName,
        group: GroupName,
        to: ResetTo,
        drop_parked: bool,
    ) -> Result<Seq, CallError> {
        let record = self.record_in(Right::Operate, &stream, &group)?.doing("reset");
        let done = self
            .shard_of(&stream)
            .decide(move |shard, now| {
                let group = find_group(shard, &stream, &group)?;
                Ok(shard.reset(now, group, to, drop_parked)?)
            })
            .await;
        record.close(done)
    }

    pub async fn stream(&self, name: StreamName) -> Result<StreamReport, CallError> {
        self.may(Right::Look, Resource::Stream(&name))?;
        let mut report =
            self.shard_of(&name).query(move |task| Ok(task.report_stream(task.find_stream(&name)?))).await?;
        self.hide(&mut report);
        Ok(report)
    }

    /// What became of a message in each group of its stream that the caller may see. Failures are left out where
    /// the caller may not see parked messages.
    pub async fn lives(&self, stream: StreamName, seq: Seq) -> Result<Vec<(GroupName, Life)>, CallError> {
        self.may(Right::Look, Resource::Stream(&stream))?;
        let name = stream.clone();
        let found = self.shard_of(&stream).query(move |task| {
            let id = task.find_stream(&name)?;
            let shard = task.shard();
            let lives =
                shard.groups_of(id).filter_map(|(name, group)| Some((name.clone(), shard.life(group, seq)?)));
            Ok(lives.collect::<Vec<_>>())
        });
        let mut lives = found.await?;
        lives.retain(|(group, _)| self.sees_group(&stream, group));
        for (group, life) in &mut lives {
            if !self.inspects(&stream, group) {
                life.failures.clear();
            }
        }
        Ok(lives)
    }

    /// Streams by name, after `after`.
    pub async fn streams(
        &self,
        after: Option<StreamName>,
        limit: usize,
    ) -> Result<Page<StreamReport, StreamName>, CallError> {
        authorize_list(&self.principal, Resource::Server)?;
        let shard = self.broker.whole();
        let mut page = Page { items: Vec::new(), next: after };
        loop {
            let (after, count) = (page.next.take(), (limit - page.items.len()).min(REPORTS_PER_TURN));
            let slice = {
                let _permit = shard.report_permit().await;
                let who = self.principal.clone();
                let seen = move |stream: &StreamName| sees(&who, Resource::Stream(stream));
                shard.query(move |task| Ok(task.report_streams(after.as_ref(), count, seen))).await?
            };
            page.items.extend(slice.items.into_iter().map(|mut report| {
                self.hide(&mut report);
                report
            }));
            page.next = slice.next;
            if page.next.is_none() || page.items.len() >= limit {
                // The cursor is a stream that the caller sees.
                let last = page.items.last().map(|last| last.name.clone());
                page.next = page.next.and(last);
                return Ok(page);
            }
        }
    }

    /// Leaves out groups that the caller must not know of.
    fn hide(&self, report: &mut StreamReport) {
        if !self.principal.sees_all() {
            let StreamReport { name, groups, .. } = report;
            groups.retain(|group| self.sees_group(name, group));
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
        match &stream {
            Some(stream) => self.may(Right::Look, Resource::Stream(stream))?,
            None => authorize_list(&self.principal, Resource::Server)?,
        }
        let shard = self.broker.whole();
        let mut page = Page { items: Vec::new(), next: after };
        let mut consumers = 0;
        loop {
            let (after, count) = (page.next.take(), (limit - page.items.len()).min(REPORTS_PER_TURN));
            let of = stream.clone();
            let slice = {
                let _permit = shard.report_permit().await;
                let who = self.principal.clone();
                let seen =
                    move |stream: &StreamName, group: &GroupName| sees(&who, Resource::Group(stream, group));
                shard.query(move |task| task.report_groups(of.as_ref(), after.as_ref(), count, seen)).await?
            };
            consumers += slice.items.iter().map(|group| group.consumers.len()).sum::<usize>();
            page.items.extend(slice.items);
            page.next = slice.next;
            if page.next.is_none() || page.items.len() >= limit || consumers > CONSUMERS_PER_LIST {
                let last = page.items.last().map(|last| (last.stream.clone(), last.name.clone()));
                page.next = page.next.and(last);
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
