//! Changes that are made together or not at all: streams and groups, messages, settled leases, deleted streams, and
//! what a door notes about them.

use std::future::Future;
use std::sync::Arc;

use forebay_core::group::{Lease, LeaseRun, Settlement};
use forebay_core::notes::{Expected, NoteChange};
use forebay_core::settings::{GroupSettings, StreamSettings};
use forebay_core::shard::PublishOptions;
use forebay_core::types::{ConsumerId, GroupId, GroupName, Seq, StreamName, Timestamp};

use super::{Caller, Consumer, may_settle};
use crate::access::{Denied, Principal, Resource, Right};
use crate::audit::Recordings;
use crate::batch::Batch;
use crate::broker::{Entrance, Room};
use crate::door::Door;
use crate::driver::Committed;
use crate::error::CallError;
use crate::shard_handle::ShardHandle;
use crate::shard_task::Command;

/// A change of settings: of the defaults if the stream or group is created, otherwise of its present
/// settings.
pub type Change<S> = Box<dyn FnOnce(&mut S) + Send>;

/// A note that is to be written or, without a value, removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteWish {
    pub door: Door,
    pub key: Vec<u8>,
    pub value: Option<Vec<u8>>,
    /// The state that the note has to have now.
    pub expected: Expected,
    /// From this time on the note is absent.
    pub expires: Option<Timestamp>,
}

impl NoteWish {
    pub(crate) fn change(&self) -> NoteChange<'_> {
        let NoteWish { door, key, value, expected, expires } = self;
        NoteChange {
            door: door.number(),
            key,
            value: value.as_deref(),
            expected: *expected,
            expires: *expires,
        }
    }
}

/// Changes that are made together, all of them in the shard of one stream. No stream may be in two parts, except that
/// leases of a stream may be settled and messages be published to it.
pub struct Bundle {
    beside: StreamName,
    ends: Vec<(StreamName, Seq)>,
    streams: Vec<StreamPart>,
    batches: Vec<BatchPart>,
    settlements: Vec<(Leases, Settlement)>,
    deletions: Vec<StreamName>,
    notes: Vec<NoteWish>,
}

/// A stream that is created or changed, with groups of it.
pub(crate) struct StreamPart {
    pub(crate) name: StreamName,
    /// None: it stays as it is, and has to be there.
    pub(crate) change: Option<Change<StreamSettings>>,
    pub(crate) groups: Vec<(GroupName, Change<GroupSettings>)>,
}

/// Messages for one stream. A missing stream is created, where the server is configured so.
pub(crate) struct BatchPart {
    pub(crate) stream: Arc<StreamName>,
    pub(crate) batch: Batch,
    pub(crate) options: PublishOptions,
    /// A missing stream is not created: the bundle is refused.
    pub(crate) must_exist: bool,
}

/// Leases, as a caller names them.
enum Leases {
    Receipts { stream: StreamName, group: GroupName, receipts: Vec<String> },
    Held { consumer: ConsumerId, leases: Vec<LeaseRun> },
}

/// Leases, as the task knows them. Receipts that were not written here are none.
pub(crate) enum SettledLeases {
    Receipts { stream: StreamName, group: GroupName, leases: Vec<Option<(GroupId, Lease)>> },
    Held { consumer: ConsumerId, leases: Vec<LeaseRun> },
}

/// A bundle that may be committed.
pub(crate) struct Parts {
    pub(crate) who: Arc<Principal>,
    pub(crate) ends: Vec<(StreamName, Seq)>,
    pub(crate) streams: Vec<StreamPart>,
    pub(crate) batches: Vec<BatchPart>,
    pub(crate) settlements: Vec<(SettledLeases, Settlement)>,
    pub(crate) deletions: Vec<StreamName>,
    pub(crate) notes: Vec<NoteWish>,
}

impl Bundle {
    /// Of nothing so far, in the shard of this stream. Notes are kept beside the stream, which need not exist for that.
    pub fn beside(stream: StreamName) -> Bundle {
        Bundle {
            beside: stream,
            ends: Vec::new(),
            streams: Vec::new(),
            batches: Vec::new(),
            settlements: Vec::new(),
            deletions: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Nothing is done unless the stream ends here. One that is not there ends before its first message.
    pub fn expect_end(mut self, stream: StreamName, last: Seq) -> Bundle {
        self.ends.push((stream, last));
        self
    }

    /// The stream is created, or changed if it is there.
    pub fn stream(
        mut self,
        name: StreamName,
        change: impl FnOnce(&mut StreamSettings) + Send + 'static,
    ) -> Bundle {
        self.streams.push(StreamPart { name, change: Some(Box::new(change)), groups: Vec::new() });
        self
    }

    /// A group is created, or changed if it is there. Its stream has to be there, or to be created by
    /// [`Bundle::stream`] before.
    pub fn group(
        mut self,
        stream: StreamName,
        name: GroupName,
        change: impl FnOnce(&mut GroupSettings) + Send + 'static,
    ) -> Bundle {
        let group = (name, Box::new(change) as Change<GroupSettings>);
        match self.streams.iter_mut().find(|part| part.name == stream) {
            Some(part) => part.groups.push(group),
            None => self.streams.push(StreamPart { name: stream, change: None, groups: vec![group] }),
        }
        self
    }

    /// Stores a batch. A stream that is not there is created, where the server is configured so.
    pub fn publish(mut self, stream: Arc<StreamName>, batch: Batch, options: PublishOptions) -> Bundle {
        self.batches.push(BatchPart { stream, batch, options, must_exist: false });
        self
    }

    /// Stores a batch in a stream that has to be there.
    pub fn publish_to_existing(
        mut self,
        stream: Arc<StreamName>,
        batch: Batch,
        options: PublishOptions,
    ) -> Bundle {
        self.batches.push(BatchPart { stream, batch, options, must_exist: true });
        self
    }

    /// Ends leases on the clock, by their receipts. Every one of them has to be current.
    pub fn settle(
        mut self,
        stream: StreamName,
        group: GroupName,
        receipts: Vec<String>,
        settlement: Settlement,
    ) -> Bundle {
        self.settlements.push((Leases::Receipts { stream, group, receipts }, settlement));
        self
    }

    /// Ends leases of the group of a connected consumer. Every one of them has to be current.
    pub fn settle_held(
        mut self,
        consumer: &Consumer,
        leases: Vec<LeaseRun>,
        settlement: Settlement,
    ) -> Bundle {
        self.settlements.push((Leases::Held { consumer: consumer.id(), leases }, settlement));
        self
    }

    /// Deletes a stream with its groups, even if they have consumers.
    pub fn delete(mut self, stream: StreamName) -> Bundle {
        self.deletions.push(stream);
        self
    }

    pub fn note(mut self, note: NoteWish) -> Bundle {
        self.notes.push(note);
        self
    }

    /// The contents of all messages.
    pub fn bytes(&self) -> usize {
        self.batches().map(Batch::bytes).sum()
    }

    fn batches(&self) -> impl Iterator<Item = &Batch> {
        self.batches.iter().map(|part| &part.batch)
    }
}

impl Entrance {
    /// Room for the messages of a bundle, if there is some now. A bundle without messages needs none.
    pub fn try_bundle_room(&self, bundle: &Bundle) -> Option<Room> {
        let shard = self.shard_of(&bundle.beside);
        shard.try_room(shard.cost(bundle.batches()))
    }

    /// Room for the messages of a bundle, as soon as there is some.
    pub fn bundle_room(&self, bundle: &Bundle) -> impl Future<Output = Room> + Send + use<> {
        let shard = self.shard_of(&bundle.beside);
        shard.room(shard.cost(bundle.batches()))
    }
}

impl Caller {
    /// Makes changes together: all of them or, if one is refused, none. The answer comes when they are durable, and a
    /// crash leaves all of them or none as well. Waits for room first.
    pub async fn commit(&self, bundle: Bundle) -> Result<Committed, CallError> {
        // Asked before anything waits.
        let records = self.may_commit(&bundle)?;
        let room = self.broker.bundle_room(&bundle).await;
        records.close(self.commit_allowed(room, bundle).await)
    }

    /// As [`Caller::commit`], for a caller that has room.
    pub async fn commit_with(&self, room: Room, bundle: Bundle) -> Result<Committed, CallError> {
        let records = self.may_commit(&bundle)?;
        records.close(self.commit_allowed(room, bundle).await)
    }

    /// As [`Caller::commit_with`], for changes that the broker makes by itself. They need no right and are not
    /// recorded.
    pub(super) async fn commit_allowed(&self, room: Room, bundle: Bundle) -> Result<Committed, CallError> {
        let shard = self.shard_of(&bundle.beside);
        let parts = bundle.into_parts(shard, self.principal.clone());
        shard
            .ask_at_once(move |task, reply| {
                let committed = task.commit(parts);
                // The room is given back after the sync.
                task.when_durable(move || {
                    drop(room);
                    let _ = reply.send(committed);
                });
            })
            .await
    }

    /// As [`Caller::commit_with`], in the order of the consumer's other requests; the answer is an event of it. The
    /// consumer must be able to settle ([`Consumer::may_settle`]).
    pub fn commit_for(
        &self,
        consumer: &mut Consumer,
        ticket: u64,
        room: Room,
        bundle: Bundle,
    ) -> Result<(), CallError> {
        let records = self.may_commit(&bundle)?;
        let shard = self.shard_of(&bundle.beside);
        let parts = bundle.into_parts(shard, self.principal.clone());
        consumer
            .ask(|id| Command::Call(Box::new(move |task| task.commit_for(id, ticket, parts, room, records))));
        Ok(())
    }

    /// Every part needs its own right. The audit has a record for each stream and group that is arranged, deleted or
    /// noted about, and none for messages and leases.
    fn may_commit(&self, bundle: &Bundle) -> Result<Recordings, CallError> {
        let mut records = Recordings::default();
        match self.may_make(bundle, &mut records) {
            Ok(()) => Ok(records),
            Err(denied) => records.close(Err(denied.into())),
        }
    }

    fn may_make(&self, bundle: &Bundle, records: &mut Recordings) -> Result<(), Denied> {
        for StreamPart { name, change, groups } in &bundle.streams {
            if change.is_some() {
                records.begin(self.record(Right::Change, Resource::Stream(name))?);
                self.may(Right::Create, Resource::Stream(name))?;
            }
            for (group, _) in groups {
                records.begin(self.record_in(Right::Change, name, group)?);
                self.may_in(Right::Create, name, group)?;
            }
        }
        for part in &bundle.batches {
            self.may(Right::Publish, Resource::Stream(&part.stream))?;
        }
        for (leases, settlement) in &bundle.settlements {
            may_settle(&self.principal, settlement)?;
            // A connected consumer was let into its group.
            if let Leases::Receipts { stream, group, .. } = leases {
                self.may_in(Right::Consume, stream, group)?;
            }
        }
        // A refusal tells where the stream ends.
        for (stream, _) in &bundle.ends {
            self.may(Right::Look, Resource::Stream(stream))?;
        }
        for stream in &bundle.deletions {
            records.begin(self.record(Right::Delete, Resource::Stream(stream))?);
        }
        // Notes are a part of the stream that they are kept beside.
        let beside = Resource::Stream(&bundle.beside);
        match &bundle.notes[..] {
            [] => {}
            _ if records.is_empty() => records.begin(self.record(Right::Change, beside)?),
            _ => self.may(Right::Change, beside)?,
        }
        Ok(())
    }
}

impl Bundle {
    fn into_parts(self, shard: &ShardHandle, who: Arc<Principal>) -> Parts {
        let Bundle { ends, streams, batches, settlements, deletions, notes, .. } = self;
        let known = |(leases, settlement): (Leases, Settlement)| {
            let leases = match leases {
                Leases::Receipts { stream, group, receipts } => {
                    let leases = receipts.iter().map(|text| shard.receipts.read(text)).collect();
                    SettledLeases::Receipts { stream, group, leases }
                }
                Leases::Held { consumer, leases } => SettledLeases::Held { consumer, leases },
            };
            (leases, settlement)
        };
        let settlements = settlements.into_iter().map(known).collect();
        Parts { who, ends, streams, batches, settlements, deletions, notes }
    }
}
