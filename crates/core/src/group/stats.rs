//! The figures of a group.

use std::sync::Arc;
use std::time::Duration;

use crate::group::candidates::Candidates;
use crate::group::standing::State;
use crate::group::{Bound, Group};
use crate::stream::Stream;
use crate::types::{ConsumerId, KeyHash, Seq, SeqRange, Timestamp};

/// The counts of a group since its owner opened it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    pub delivered: u64,
    pub acked: u64,
    pub retried: u64,
    pub parked: u64,
    pub timed_out: u64,
    pub skipped: u64,
    pub expired: u64,
    pub moved: u64,
    pub dropped: u64,
    pub returned: u64,
    pub replayed: u64,
    pub discarded: u64,
    /// The highest position that was settled or parked.
    pub last_processed: Seq,
}

impl Counters {
    /// Messages that the group has come to an end with.
    pub fn settled(&self) -> u64 {
        self.acked + self.skipped + self.expired + self.moved + self.dropped
    }
}

/// The activity of a group, or the reason that it is not active. The first that applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Paused,
    ParkedFull,
    WindowFull,
    KeyScanFull,
    /// There is no consumer.
    Idle,
    CatchingUp,
    Live,
}

#[derive(Debug, Clone, PartialEq)]
pub struct GroupFigures {
    pub status: Status,
    /// Everything up to here is settled or parked.
    pub floor: Seq,
    pub checkpoint: Seq,
    pub last_known: Seq,
    /// Messages not yet settled.
    pub lag: u64,
    /// Those of them whose time has not come.
    pub delayed: u64,
    /// How long the oldest of the others has been due.
    pub oldest_age: Option<Duration>,
    pub in_flight: u64,
    /// Messages that could go out now.
    pub ready: u64,
    pub waiting: u64,
    pub moving: u64,
    pub parked: u64,
    pub oldest_parked_age: Option<Duration>,
    pub consumers: usize,
    /// For how long nothing is handed out because a consumer asked for that.
    pub resting_for: Option<Duration>,
    /// The key that most messages are waiting for, where that has stopped the group from reading on, and
    /// how many they are.
    pub stuck_key: Option<(KeyHash, u64)>,
    pub counters: Counters,
}

/// The figures of one consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerFigures {
    pub consumer: ConsumerId,
    pub name: Arc<str>,
    pub bound: Bound,
    pub joined: Timestamp,
    pub in_flight: u64,
    /// The first message that it holds, and since when.
    pub holds: Option<(Seq, Timestamp)>,
    pub credit: u32,
    pub acked: u64,
    pub failed: u64,
}

impl GroupFigures {
    /// Messages that are due and not settled: what there is to do.
    pub fn due(&self) -> u64 {
        self.lag.saturating_sub(self.delayed)
    }
}

impl Group {
    pub(crate) fn figures(&self, now: Timestamp, stream: &Stream, scan_max: usize) -> GroupFigures {
        let (progress, standing) = (self.ledger.progress(), self.ledger.standing());
        let unsettled = progress.unsettled_through(stream.durable);
        let scan_full = self.is_key_scan_full(scan_max);
        let stuck = match &self.candidates {
            Candidates::Keyed(keyed) if scan_full => keyed.keys.longest(),
            _ => None,
        };
        let lag = unsettled + self.ledger.replayed_count();
        let moving = self.ledger.moving().len() as u64;
        let ahead = SeqRange::new(progress.floor().next(), stream.durable.max(progress.floor().next()));
        let delayed = stream.undue.count_in(ahead).min(unsettled);
        // Among what lies ahead are messages that went before for their priority, or are not due.
        let open = lag.saturating_sub(standing.leased() + standing.waiting() + moving + delayed);
        let oldest = if lag > delayed { self.ages.oldest(&self.ledger, stream) } else { None };
        GroupFigures {
            status: self.status(stream, scan_full),
            floor: progress.floor(),
            checkpoint: self.checkpoint.seq(),
            last_known: stream.durable,
            lag,
            delayed,
            oldest_age: oldest.map(|at| now.since(at)),
            in_flight: standing.leased(),
            ready: self.candidates.count(self.view(stream)).min(open),
            waiting: standing.waiting(),
            moving: moving + self.ledger.outgoing().count(),
            parked: self.ledger.parked().count(),
            oldest_parked_age: self.ledger.parked().oldest().map(|(at, _)| now.since(at)),
            consumers: self.members.len(),
            resting_for: self.rests_until(now).map(|until| until.since(now)),
            stuck_key: stuck,
            counters: self.counters,
        }
    }

    /// Since when a consumer holds a message.
    fn granted(&self, seq: Seq) -> Option<Timestamp> {
        match self.ledger.standing().run_at(seq)?.1 {
            State::Leased(lease) => Some(lease.granted),
            _ => None,
        }
    }

    fn status(&self, stream: &Stream, scan_full: bool) -> Status {
        match () {
            () if self.ledger.is_paused() => Status::Paused,
            () if self.is_parked_full() => Status::ParkedFull,
            () if self.view(stream).window_room() == 0 => Status::WindowFull,
            () if scan_full => Status::KeyScanFull,
            () if !self.members.any() => Status::Idle,
            () if self.candidates.arrived() < stream.durable => Status::CatchingUp,
            () => Status::Live,
        }
    }

    pub(crate) fn consumer_figures(&self) -> impl Iterator<Item = ConsumerFigures> + '_ {
        self.members.iter().map(|(consumer, member)| ConsumerFigures {
            consumer,
            name: member.name.clone(),
            bound: member.bound,
            joined: member.joined,
            in_flight: member.held.count(),
            holds: member.held.first().and_then(|seq| Some((seq, self.granted(seq)?))),
            credit: member.credit.messages(),
            acked: member.acked,
            failed: member.failed,
        })
    }
}
