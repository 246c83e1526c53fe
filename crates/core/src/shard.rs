//! The root of the core: one log's streams and groups. The unit that a task owns and the simulator
//! drives.
//!
//! Commands change state at once and add entries to the frame being filled; the shell appends the frame
//! and tells the shard when it is durable. After any number of commands comes one [`Shard::finish_turn`].
//!
//! State is applied when decided and visible when durable: an answer that states a durable fact leaves
//! no earlier than the receipt of the last frame that was filled when it was decided. Holding answers
//! back is the shell's part.
//!
//! | module | holds |
//! | --- | --- |
//! | `publish` | admission: sizes, rates, limits, expectations, producers' numbers, moves |
//! | `consume` | members, credit, settling, extending |
//! | `bundle` | changes that are made together or not at all |
//! | `admin` | creating, changing, deleting, reset, purge, jobs, notes, readers |
//! | `turn` | the end of a turn, and what time does to streams |
//! | `apply` | entries from the log, and decisions on their way into it |
//! | `query` | reading without changing |

mod admin;
mod apply;
mod bundle;
mod consume;
pub(crate) mod publish;
mod query;
mod turn;

use std::collections::{BTreeMap, BTreeSet};

use crate::dedupe::Dedupe;
use crate::entry::{Entry, MessageMeta};
use crate::fault::{Fault, planted};
use crate::group::Group;
use crate::notes::Notes;
use crate::stream::Stream;
use crate::types::{
    Epoch, Grant, GroupId, JobId, Limits, Ordinal, Position, StreamId, StreamName, Timestamp,
};

pub use crate::group::scan::KeyRun;
pub use admin::{ChangeRefusal, CreateRefusal, DeleteIf, Purge, ResetTo, ResubmitRefusal};
pub use bundle::{
    Arrangement, BUNDLE_LEASES_MAX, BUNDLE_PARTS_MAX, Bundle, BundleRefusal, Publication, Replacement,
    Settling, Target,
};
pub use consume::MemberRefusal;
pub use forebay_model::Start;
pub use publish::{MoveRefusal, Moved, PublishOptions, PublishRefusal};
pub use query::StreamFigures;

/// Who wants to be called at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Stream(StreamId),
    Group(GroupId),
    Notes,
}

#[derive(Debug)]
pub struct Shard {
    pub(crate) limits: Limits,
    pub(crate) epoch: Epoch,
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    pub(crate) groups: BTreeMap<GroupId, Group>,
    pub(crate) streams_by_name: BTreeMap<StreamName, StreamId>,
    pub(crate) notes: Notes,
    pub(crate) next_stream: StreamId,
    pub(crate) next_group: GroupId,
    /// The position over all streams that the next message gets.
    pub(crate) next_ordinal: Ordinal,
    /// Jobs that ended and that the shell has not been told of.
    pub(crate) ended_jobs: Vec<(GroupId, JobId)>,
    /// Whether the registry changed since an image took it.
    pub(crate) changed: bool,
    /// Recovery: the registry as loaded has every entry up to here.
    pub(crate) through: Position,
    /// Recovery: listed in the registry, but deleted before their part of the image was taken. Entries
    /// about them do not matter.
    pub(crate) doomed_streams: BTreeSet<StreamId>,
    pub(crate) doomed_groups: BTreeSet<GroupId>,
    /// Parked messages as they were when their group's part was taken, until they are taken themselves.
    pub(crate) frozen: BTreeMap<crate::types::PartKey, crate::image::FrozenChunk>,
    next_grant: Grant,
    /// When each stream and group next has something to do by itself.
    wakeups: BTreeSet<(Timestamp, Owner)>,
    /// When it wants to be called for its notes.
    notes_at: Option<Timestamp>,
    /// Nothing is handed out, in any group.
    withheld: bool,
    /// Those that have something to do at the end of this turn.
    touched: Vec<GroupId>,
    touched_streams: Vec<StreamId>,
    /// Groups that have changed something which is not an entry yet.
    unwritten: Vec<GroupId>,
    /// Groups that were deleted, let go of a slice a turn.
    dead: Vec<Group>,
    entries: Vec<u8>,
    fresh: Vec<MessageMeta>,
    /// The latest time that anything was decided at, in this run or before.
    latest: Timestamp,
}

impl Shard {
    /// A shard with nothing in it yet. Parts of an image and entries follow, then [`Shard::open`].
    pub fn new(limits: Limits) -> Shard {
        Shard {
            limits,
            epoch: Epoch(0),
            streams: BTreeMap::new(),
            groups: BTreeMap::new(),
            streams_by_name: BTreeMap::new(),
            notes: Notes::default(),
            next_stream: StreamId(1),
            next_group: GroupId(1),
            next_ordinal: Ordinal(1),
            ended_jobs: Vec::new(),
            changed: true,
            through: Position::START,
            doomed_streams: BTreeSet::new(),
            doomed_groups: BTreeSet::new(),
            frozen: BTreeMap::new(),
            next_grant: Grant(1),
            wakeups: BTreeSet::new(),
            notes_at: None,
            withheld: false,
            touched: Vec::new(),
            touched_streams: Vec::new(),
            unwritten: Vec::new(),
            dead: Vec::new(),
            entries: Vec::new(),
            fresh: Vec::new(),
            latest: Timestamp::ZERO,
        }
    }

    /// Begins to serve as the owner of this epoch. Everything that was loaded and applied is durable.
    pub fn open(&mut self, now: Timestamp, epoch: Epoch) {
        assert!(epoch > self.epoch, "every owner's epoch is above the one before");
        assert!(now >= self.latest, "time does not go back from one owner to the next");
        self.doomed_streams.clear();
        self.doomed_groups.clear();
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in streams {
            let stream = self.streams.get_mut(&id).expect("the stream was listed just now");
            stream.durable = stream.last;
            stream.reopened(now);
            if planted(Fault::DedupeForgotten) {
                stream.dedupe = Dedupe::default();
            }
            self.next_ordinal = self.next_ordinal.max(Ordinal(stream.ordinal.0 + 1));
            self.touch_stream(id);
        }
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        for id in groups {
            let group = self.groups.get_mut(&id).expect("the group was listed just now");
            let stream = self.streams.get(&group.stream).expect("a group's stream exists");
            group.reopened(now, stream);
            self.touch(id);
        }
        self.schedule_notes();
        self.commit(&Entry::Opened { epoch, at: now });
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn happened_at(&mut self, at: Timestamp) {
        self.latest = self.latest.max(at);
    }

    /// The entries that were written since the last call, to go into the next frame.
    pub fn entries(&mut self) -> &mut Vec<u8> {
        &mut self.entries
    }

    fn touch(&mut self, group: GroupId) {
        let of = self.groups.get_mut(&group).expect("only a group that exists is touched");
        if !of.touched {
            of.touched = true;
            self.touched.push(group);
        }
        if of.is_unwritten() && !std::mem::replace(&mut of.listed, true) {
            self.unwritten.push(group);
        }
    }

    /// Writes down the changes of all groups, also of those that the turn's budget did not reach: a caller
    /// that is told that its change is durable may rely on all earlier decisions being durable too.
    pub fn write_down_all(&mut self, now: Timestamp) {
        self.happened_at(now);
        for group in std::mem::take(&mut self.unwritten) {
            if let Some(of) = self.groups.get_mut(&group) {
                of.listed = false;
                of.write_down(&mut self.entries);
            }
        }
    }

    fn touch_stream(&mut self, stream: StreamId) {
        let of = self.streams.get_mut(&stream).expect("only a stream that exists is touched");
        if !of.touched {
            of.touched = true;
            self.touched_streams.push(stream);
        }
    }
}

#[cfg(test)]
mod tests;
