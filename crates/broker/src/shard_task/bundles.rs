//! Changes that are made together: names become numbers, and the driver does the rest.

use forebay_core::group::{Lease, LeaseRun, NotYours, Settlement, Verb};
use forebay_core::settings::{GroupSettings, StreamSettings};
use forebay_core::shard::{Arrangement, BundleRefusal, MemberRefusal, Settling, Target};
use forebay_core::types::{ConsumerId, GroupId, GroupName, StreamId, StreamName};

use super::commands::Event;
use super::requests::keeps_times;
use super::{ShardTask, Stage};
use crate::access::Principal;
use crate::audit::Recordings;
use crate::caller::{Parts, SettledLeases, StreamPart, may_feed, may_move};
use crate::driver::{Bundle, Committed};
use crate::error::CallError;
use crate::shard_handle::Room;

/// A stream with its settings as they are to be, and groups of it.
type Arranged = (StreamName, StreamSettings, Vec<(GroupName, GroupSettings)>);

/// Leases of a group, by number.
struct Settled {
    group: GroupId,
    leases: Vec<LeaseRun>,
    settlement: Settlement,
    /// Who holds each lease, where the group keeps times.
    holders: Option<Vec<Option<ConsumerId>>>,
}

impl ShardTask {
    /// Makes changes together. The answer may be told when everything that was decided until now is durable.
    pub(crate) fn commit(&mut self, parts: Parts) -> Result<Committed, CallError> {
        let Parts { who, ends, streams, batches, settlements, deletions, notes } = parts;
        let may_commit = match self.stage {
            Stage::Running => true,
            // Consumers may finish what they hold.
            Stage::Draining => !settlements.is_empty(),
            Stage::Stopping => false,
        };
        if !may_commit {
            return Err(CallError::Stopping);
        }
        let arranged =
            streams.into_iter().map(|part| self.arranged(&who, part)).collect::<Result<Vec<_>, _>>()?;
        let settled = settlements.into_iter().enumerate();
        let settled = settled.map(|(nth, (leases, settlement))| self.settled(nth, leases, settlement));
        let settled = settled.collect::<Result<Vec<Settled>, _>>()?;
        let deleted = deletions.iter().map(|name| self.find_stream(name)).collect::<Result<Vec<_>, _>>()?;
        let gone: Vec<(StreamId, Vec<GroupId>)> =
            deleted.iter().map(|&stream| (stream, self.groups_of(stream))).collect();
        let mut bundle =
            ends.iter().fold(Bundle::default(), |bundle, (stream, last)| bundle.expect_end(stream, *last));
        for (name, settings, groups) in &arranged {
            let groups = groups.iter().map(|(name, settings)| (name, settings)).collect();
            bundle = bundle.arrange(Arrangement { stream: (name, settings), groups });
        }
        let create = self.config.stream_of_first_publish.as_ref();
        for part in &batches {
            let create = create.filter(|_| !part.must_exist);
            bundle = bundle.publish(Target::Name(&part.stream, create), &part.batch, part.options);
        }
        for Settled { group, leases, settlement, .. } in &settled {
            bundle = bundle.settle(Settling { group: *group, leases, settlement });
        }
        bundle = deleted.into_iter().fold(bundle, Bundle::delete);
        bundle = notes.iter().fold(bundle, |bundle, note| bundle.note(note.change()));
        let committed =
            self.driver.commit(self.now, &bundle).map_err(|refusal| refused(refusal, &settled))?;
        for (part, published) in batches.iter().zip(&committed.published).filter(|_| !committed.again) {
            let shard = self.driver.shard();
            let stream = shard.stream_named(&part.stream);
            let told =
                stream.and_then(|id| self.traces.published(self.now, shard, id, &part.batch, published));
            self.trace_when_durable(told);
        }
        for (of, outcomes) in settled.iter().zip(&committed.outcomes).filter(|_| !committed.again) {
            self.traces.settled(self.now, self.driver.shard(), of.group, &of.leases, outcomes);
            if let Some(holders) = &of.holders {
                let leases: Vec<Lease> = of.leases.iter().flat_map(|run| run.leases()).collect();
                self.keep_times(of.group, &leases, holders, outcomes);
            }
        }
        for (stream, groups) in gone {
            self.stream_deleted(stream, &groups);
        }
        Ok(committed)
    }

    /// The same for a connected consumer, whose event the answer is. One that has left meanwhile is not answered.
    pub(crate) fn commit_for(
        &mut self,
        consumer: ConsumerId,
        ticket: u64,
        parts: Parts,
        room: Room,
        records: Recordings,
    ) {
        let Some(member) = self.members.get(&consumer) else { return };
        let events = member.session.events.clone();
        let committed = records.close(self.commit(parts));
        self.when_durable(move || {
            drop(room);
            let _ = events.send(Event::Committed(ticket, Box::new(committed)));
        });
    }

    /// What the stream of a part and its groups should be like.
    fn arranged(&self, who: &Principal, part: StreamPart) -> Result<Arranged, CallError> {
        let shard = self.driver.shard();
        let StreamPart { name, change, groups } = part;
        let id = shard.stream_named(&name);
        let known = id.and_then(|id| shard.stream_settings(id)).cloned();
        let settings = match change {
            None => known.ok_or_else(|| CallError::NoSuchStream { stream: name.clone() })?,
            Some(change) => {
                let before = known.as_ref().and_then(|settings| settings.source.clone());
                let mut settings = known.unwrap_or_default();
                change(&mut settings);
                may_feed(who, before.as_ref(), settings.source.as_ref())?;
                settings
            }
        };
        let groups = groups.into_iter().map(|(name, change)| {
            let group = id.and_then(|id| shard.group_named(id, &name));
            let mut settings = group.and_then(|id| shard.group_settings(id)).cloned().unwrap_or_default();
            let before = group.map(|_| settings.clone());
            change(&mut settings);
            may_move(who, before.as_ref(), &settings)?;
            Ok((name, settings))
        });
        let groups = groups.collect::<Result<_, CallError>>()?;
        Ok((name, settings, groups))
    }

    /// The group and the leases of the n-th settlement.
    fn settled(
        &self,
        nth: usize,
        leases: SettledLeases,
        settlement: Settlement,
    ) -> Result<Settled, CallError> {
        let (group, leases) = match leases {
            SettledLeases::Held { consumer, leases } => {
                let member = self.members.get(&consumer).ok_or(MemberRefusal::NotAMember)?;
                (member.group, leases)
            }
            SettledLeases::Receipts { stream, group, leases } => {
                let group = self.find_group(&stream, &group)?;
                let lease = |(at, receipt): (usize, Option<(GroupId, Lease)>)| match receipt {
                    Some((of, lease)) if of == group => Ok(lease),
                    _ => Err(CallError::NotCurrent { nth, at, seq: None, why: NotYours::Unknown }),
                };
                let leases: Result<Vec<Lease>, _> = leases.into_iter().enumerate().map(lease).collect();
                (group, LeaseRun::join(leases?))
            }
        };
        let keeps = keeps_times(&self.driver, group) && !matches!(settlement.verb, Verb::Extend { .. });
        let holder = |lease| self.driver.shard().holder(group, lease);
        let holders = keeps.then(|| leases.iter().flat_map(|run| run.leases()).map(holder).collect());
        Ok(Settled { group, leases, settlement, holders })
    }
}

/// A refusal, with the place of a lease in its settlement.
fn refused(refusal: BundleRefusal, settled: &[Settled]) -> CallError {
    let BundleRefusal::NotYours { nth, lease, why } = refusal else { return refusal.into() };
    let mut leases = settled[nth].leases.iter().flat_map(|run| run.leases());
    let at = leases.position(|other| other == lease).unwrap_or(0);
    CallError::NotCurrent { nth, at, seq: Some(lease.seq), why }
}
