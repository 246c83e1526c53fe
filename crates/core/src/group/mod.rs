//! The heart: one group of competing consumers. Facts and the time go in, effects come out.
//!
//! A turn is: any number of facts (`arrived`, `join`, `settle` and so on), then
//! one `finish_turn`, which expires what is due, shares out what can go, and writes down in one
//! entry of each kind what the turn has changed. Nothing is handed out between facts, so a burst of acks
//! costs one pass.
//!
//! | module | holds |
//! | --- | --- |
//! | `ledger` | what the log remembers: progress, standing, parked; one method per kind of entry |
//! | `members` | who takes part, with how much credit, and whose turn it is |
//! | `dispatch` | sharing out what is ready |
//! | `expiry` | what time does: leases that lapse, retries that are due, consumers that leave |

mod dispatch;
mod expiry;
pub(crate) mod ledger;
mod members;
pub(crate) mod progress;
pub(crate) mod standing;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::entry::{self, Cause, FailedMessage, LeasedRun, ParkedMessage};
use crate::seqset::SeqSet;
use crate::settings::GroupSettings;
use crate::types::{
    Attempt, ConsumerId, Epoch, Grant, GroupId, GroupName, Position, Seq, SeqRange, StreamId, Timestamp,
    push_range,
};
use ledger::{Ledger, Terms};
use members::Members;
use standing::{Leased, State};

pub use ledger::Parked;
pub use members::Credit;
pub use standing::Bound;

/// One delivery of one message to one consumer. The epoch and the grant make it unlike any other, so a
/// late answer is never taken for the present holder's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    pub epoch: Epoch,
    pub seq: Seq,
    pub grant: Grant,
}

/// How a consumer ends a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Ack,
    /// Offer it again: after `delay`, or as the group's backoff says.
    Retry {
        delay: Option<Duration>,
    },
}

/// What became of a lease that a consumer wanted to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    Acked,
    Retrying,
    /// Its retries were used up.
    Parked,
    /// The lease has lapsed, was given to another, or its message is no longer in process. Nothing was
    /// changed.
    NotYours,
}

/// How a consumer left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// The connection broke. What it held has been tried.
    Lost,
    /// It said goodbye and gives back what it holds; those attempts do not count.
    Goodbye,
}

/// Consecutive messages for one consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deliver {
    pub group: GroupId,
    pub stream: StreamId,
    pub consumer: ConsumerId,
    pub seqs: SeqRange,
    /// Of the first; the others follow.
    pub grant: Grant,
    pub attempt: Attempt,
    pub deadline: Timestamp,
    /// `Clock`: may leave only once the entry is durable, so that the lease is still good, and still
    /// exclusive, after a restart.
    pub bound: Bound,
}

/// A wish for messages that were not seen when they arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadAhead {
    pub group: GroupId,
    pub stream: StreamId,
    pub seqs: SeqRange,
}

/// What the shell must now do.
#[derive(Debug, Default)]
pub struct Effects {
    pub deliveries: Vec<Deliver>,
    pub reads: Vec<ReadAhead>,
}

/// How much one turn does. What is left over is done in the next, which follows at once, so that nobody
/// waits long for anything however much there is to do.
#[derive(Debug)]
pub(crate) struct Budget(u64);

impl Budget {
    /// About as much as a few hundred microseconds allow.
    pub(crate) fn of_a_turn() -> Budget {
        Budget(500)
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.0 == 0
    }

    /// One thing that was done to a run of messages. Long runs cost little more than short ones.
    fn spend_run(&mut self, messages: u64) {
        self.0 = self.0.saturating_sub(1 + messages / 256);
    }

    /// Things that are done to each message by itself.
    fn spend_each(&mut self, messages: u64) {
        self.0 = self.0.saturating_sub(messages);
    }
}

/// What a group needs to know of its shard to finish a turn.
pub(crate) struct Turn<'a> {
    pub(crate) now: Timestamp,
    pub(crate) epoch: Epoch,
    /// The grant that the next lease gets.
    pub(crate) grant: &'a mut Grant,
    /// The last durable position of the group's stream.
    pub(crate) durable: Seq,
    /// What is left of the work that a turn may do, over all groups.
    pub(crate) budget: &'a mut Budget,
    /// Entries of the frame being filled.
    pub(crate) entries: &'a mut Vec<u8>,
    pub(crate) effects: &'a mut Effects,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) stream: StreamId,
    pub(crate) name: GroupName,
    pub(crate) settings: GroupSettings,
    pub(crate) created: Timestamp,
    pub(crate) ledger: Ledger,
    /// Recovery: the ledger as loaded has every entry up to here.
    pub(crate) through: Position,
    /// When the shard will call next, so that it is not told the same twice.
    pub(crate) scheduled: Option<Timestamp>,
    /// Whether the shard has this group on its list for the end of the turn.
    pub(crate) touched: bool,

    members: Members,
    /// Messages past this one have not been looked at for handing out.
    cursor: Seq,
    /// Messages up to here may be handed out: they were seen arriving or have been read ahead.
    arrived: Seq,
    reading: bool,
    /// Positions whose state is `Ready`: handed out before, and to be offered again.
    again: SeqSet,
    /// When each waiting message may go out again.
    due: BTreeSet<(Timestamp, Seq)>,
    lapses: BTreeMap<Lapse, Outstanding>,
    in_flight: u64,
    waiting: u64,
    pending: Pending,
}

/// When a delivery ends if nobody answers. The epoch and grant tell deliveries of one instant apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Lapse {
    deadline: Timestamp,
    epoch: Epoch,
    delivery: Grant,
}

impl Lapse {
    fn of(lease: &Leased) -> Lapse {
        Lapse { deadline: lease.deadline, epoch: lease.epoch, delivery: lease.delivery }
    }
}

/// What a delivery covered, and how much of it is still leased.
#[derive(Debug, Clone, Copy)]
struct Outstanding {
    seqs: SeqRange,
    count: u64,
}

/// What a turn has changed, to be written as one entry of each kind.
#[derive(Debug, Default)]
struct Pending {
    acked: Vec<SeqRange>,
    returned: Vec<SeqRange>,
    failed: Vec<FailedMessage>,
    parked: Vec<ParkedMessage>,
    handed: Vec<SeqRange>,
    leased: Vec<(Duration, LeasedRun)>,
}

impl Pending {
    /// Keeps the room for the next turn.
    fn clear(&mut self) {
        self.acked.clear();
        self.returned.clear();
        self.failed.clear();
        self.parked.clear();
        self.handed.clear();
        self.leased.clear();
    }
}

/// Items in one entry at most, so that an entry fits in the smallest frame that an engine takes.
const ENTRY_ITEMS_MAX: usize = 1_000;

impl Group {
    pub(crate) fn new(
        id: GroupId,
        stream: StreamId,
        name: GroupName,
        settings: GroupSettings,
        floor: Seq,
        created: Timestamp,
    ) -> Group {
        Group {
            id,
            stream,
            name,
            settings,
            created,
            ledger: Ledger::starting_at(floor),
            through: Position::START,
            scheduled: None,
            touched: false,
            members: Members::default(),
            cursor: floor,
            arrived: floor,
            reading: false,
            again: SeqSet::new(),
            due: BTreeSet::new(),
            lapses: BTreeMap::new(),
            in_flight: 0,
            waiting: 0,
            pending: Pending::default(),
        }
    }

    /// Recovery is over: builds what is not in the log from what is.
    pub(crate) fn reopened(&mut self) {
        self.ledger.reopened();
        self.cursor = Seq(self.untouched_from(self.ledger.progress.floor().next()).0 - 1);
        self.arrived = self.cursor;
        for (range, state) in self.ledger.standing.runs() {
            match state {
                State::Ready { .. } => {
                    self.again.insert(range);
                }
                State::Waiting { until, .. } => {
                    self.due.extend(range.seqs().map(|seq| (until, seq)));
                    self.waiting += range.count();
                }
                State::Leased(lease) => {
                    self.in_flight += range.count();
                    let outstanding =
                        self.lapses.entry(Lapse::of(&lease)).or_insert(Outstanding { seqs: range, count: 0 });
                    outstanding.count += range.count();
                    outstanding.seqs.first = outstanding.seqs.first.min(range.first);
                    outstanding.seqs.last = outstanding.seqs.last.max(range.last);
                }
            }
        }
    }

    /// Messages have become durable. A group that has kept up takes them as they come; one that has not
    /// will read them when it gets there.
    pub(crate) fn arrived(&mut self, range: SeqRange) -> bool {
        let ahead = self.arrived.0 - self.cursor.0;
        if self.arrived.next() != range.first || ahead >= u64::from(self.settings.buffer) {
            return self.members.any();
        }
        self.arrived = range.last;
        self.members.any_hungry()
    }

    /// What was asked for with [`ReadAhead`] has been read, up to and including `through`.
    pub(crate) fn read_ahead(&mut self, through: Seq) {
        self.reading = false;
        self.arrived = self.arrived.max(through);
    }

    pub(crate) fn join(&mut self, consumer: ConsumerId, bound: Bound) {
        self.members.join(consumer, bound);
    }

    pub(crate) fn consumers(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn has_member(&self, consumer: ConsumerId) -> bool {
        self.members.get(consumer).is_some()
    }

    pub(crate) fn set_credit(&mut self, consumer: ConsumerId, credit: Credit) {
        self.members.set_credit(consumer, credit);
    }

    pub(crate) fn leave(&mut self, consumer: ConsumerId, departure: Departure) {
        self.members.leave(consumer, departure);
    }

    /// Ends leases. One that is no longer current changes nothing: after a timeout the message may be
    /// with another consumer, and a late answer from the first is ordinary.
    pub(crate) fn settle(
        &mut self,
        now: Timestamp,
        leases: &[Lease],
        outcome: Outcome,
        results: &mut Vec<Settled>,
    ) {
        let mut rest = leases;
        while let Some(first) = rest.first() {
            let alike = rest
                .iter()
                .zip(0..)
                .take_while(|(lease, n)| {
                    lease.epoch == first.epoch
                        && lease.seq == first.seq.plus(*n)
                        && lease.grant == first.grant.plus(*n)
                })
                .count();
            let answered = self.settle_run(now, *first, alike as u64, outcome, results);
            rest = &rest[answered..];
        }
    }

    /// Ends up to `count` leases that follow each other, as many as are in one run, and returns how many.
    fn settle_run(
        &mut self,
        now: Timestamp,
        first: Lease,
        count: u64,
        outcome: Outcome,
        results: &mut Vec<Settled>,
    ) -> usize {
        let Some((run, lease)) = self.lease_at(first) else {
            results.push(Settled::NotYours);
            return 1;
        };
        let seqs = SeqRange::starting(run.first, run.count().min(count));
        let count = seqs.count() as usize;
        self.end_lease(seqs, &lease);
        match outcome {
            Outcome::Ack => {
                self.ledger.acked(seqs);
                push_range(&mut self.pending.acked, seqs);
                results.resize(results.len() + count, Settled::Acked);
            }
            Outcome::Retry { delay } => {
                for seq in seqs.seqs() {
                    results.push(self.fail(now, seq, lease.attempt, delay, Cause::Nack));
                }
            }
        }
        count
    }

    /// Takes the messages out of their holder's hands and off the clock. What they are next is up to the
    /// caller.
    fn end_lease(&mut self, seqs: SeqRange, lease: &Leased) {
        self.in_flight -= seqs.count();
        if let Some(holder) = lease.holder {
            self.members.took_back(holder, seqs);
        }
        let key = Lapse::of(lease);
        let outstanding = self.lapses.get_mut(&key).expect("a leased message has a deadline");
        outstanding.count -= seqs.count();
        if outstanding.count == 0 {
            self.lapses.remove(&key);
        }
    }

    /// A message was not finished: offers it again later, or parks it when its retries are used up.
    fn fail(
        &mut self,
        now: Timestamp,
        seq: Seq,
        attempt: Attempt,
        delay: Option<Duration>,
        cause: Cause,
    ) -> Settled {
        if self.settings.is_exhausted(attempt) {
            self.ledger.parked(seq, now, cause);
            self.pending.parked.push(ParkedMessage { seq, at: now, cause });
            return Settled::Parked;
        }
        let until = match delay {
            Some(delay) => now + delay,
            None => self.settings.backoff.ready_at(now, seq, attempt),
        };
        self.ledger.failed(seq, until);
        self.pending.failed.push(FailedMessage { seq, until, cause });
        self.due.insert((until, seq));
        self.waiting += 1;
        Settled::Retrying
    }

    /// Does what time and credit allow, and writes down what the turn has changed.
    pub(crate) fn finish_turn(&mut self, mut turn: Turn<'_>) {
        self.expire(turn.now, turn.budget);
        self.dispatch(&mut turn);
        self.write_down(turn.now, turn.entries);
        self.read_on(turn.durable, turn.effects);
    }

    /// When the group next has something to do by itself. What is late is late already.
    pub(crate) fn wake_at(&self) -> Option<Timestamp> {
        if self.members.are_leaving() {
            return Some(Timestamp::ZERO);
        }
        let due = self.due.first().map(|&(at, _)| at);
        let lapse = self.lapses.first_key_value().map(|(lapse, _)| lapse.deadline);
        [due, lapse].into_iter().flatten().min()
    }

    /// The order matters where a message appears twice: it ends one lease before it begins another.
    fn write_down(&mut self, now: Timestamp, out: &mut Vec<u8>) {
        let pending = &mut self.pending;
        for ranges in pending.acked.chunks(ENTRY_ITEMS_MAX) {
            entry::put_acked(out, self.id, ranges);
        }
        for ranges in pending.returned.chunks(ENTRY_ITEMS_MAX) {
            entry::put_returned(out, self.id, ranges);
        }
        for messages in pending.failed.chunks(ENTRY_ITEMS_MAX) {
            entry::put_failed(out, self.id, now, messages);
        }
        for messages in pending.parked.chunks(ENTRY_ITEMS_MAX) {
            entry::put_parked(out, self.id, now, messages);
        }
        for ranges in pending.handed.chunks(ENTRY_ITEMS_MAX) {
            entry::put_handed(out, self.id, ranges);
        }
        for alike in pending.leased.chunk_by(|a, b| a.0 == b.0) {
            for runs in alike.chunks(ENTRY_ITEMS_MAX) {
                let runs: Vec<LeasedRun> = runs.iter().map(|(_, run)| *run).collect();
                entry::put_leased(out, self.id, now, alike[0].0, &runs);
            }
        }
        pending.clear();
    }

    /// Asks for more when what may be handed out runs low and there is somebody to hand it to.
    fn read_on(&mut self, durable: Seq, effects: &mut Effects) {
        let ahead = self.arrived.0 - self.cursor.0;
        let buffer = u64::from(self.settings.buffer.max(1));
        if self.reading || self.arrived >= durable || ahead > buffer / 2 || !self.members.any() {
            return;
        }
        self.reading = true;
        let last = self.arrived.plus(buffer).min(durable);
        let seqs = SeqRange::new(self.arrived.next(), last);
        effects.reads.push(ReadAhead { group: self.id, stream: self.stream, seqs });
    }

    pub(crate) fn figures(&self, durable: Seq) -> GroupFigures {
        let progress = &self.ledger.progress;
        GroupFigures {
            floor: progress.floor(),
            last_known: durable,
            lag: durable.0.saturating_sub(progress.floor().0) - progress.above().count(),
            in_flight: self.in_flight,
            ready: self.again.count() + (self.arrived.0 - self.cursor.0),
            waiting: self.waiting,
            parked: self.ledger.parked.len() as u64,
            consumers: self.members.len(),
        }
    }

    pub(crate) fn is_current(&self, lease: Lease) -> bool {
        self.lease_at(lease).is_some()
    }

    /// What the lease is part of, if it is the one that its message is held on now: the messages from its
    /// own to the end of the run.
    fn lease_at(&self, lease: Lease) -> Option<(SeqRange, Leased)> {
        let (run, state) = self.ledger.standing.run_at(lease.seq)?;
        match state {
            State::Leased(held) if held.epoch == lease.epoch && held.grant == lease.grant => {
                Some((run, held))
            }
            _ => None,
        }
    }

    /// How often a message has been handed out, if it is in process.
    pub(crate) fn attempts(&self, seq: Seq) -> Option<u32> {
        self.ledger.standing.run_at(seq).map(|(_, state)| state.attempts())
    }

    /// The terms of leases that are granted now.
    fn terms(&self, turn: &Turn<'_>, consumer: ConsumerId, bound: Bound, timeout: Duration) -> Terms {
        Terms {
            epoch: turn.epoch,
            grant: *turn.grant,
            bound,
            granted: turn.now,
            deadline: turn.now + timeout,
            holder: Some(consumer),
        }
    }
}

/// What a group says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupFigures {
    /// Everything up to here is settled or parked.
    pub floor: Seq,
    pub last_known: Seq,
    /// Messages not yet settled.
    pub lag: u64,
    pub in_flight: u64,
    /// Messages that could go out now.
    pub ready: u64,
    pub waiting: u64,
    pub parked: u64,
    pub consumers: usize,
}

#[cfg(test)]
mod tests;
