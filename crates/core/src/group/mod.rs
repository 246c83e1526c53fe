//! The heart: one group of competing consumers. Facts and the time go in, effects come out.
//!
//! A turn is: any number of facts (`arrived`, `join`, `settle` and so on), then
//! one `finish_turn`, which expires what is due, shares out what can go, and writes down in one
//! entry of each kind what the turn has changed. Nothing is handed out between facts, so a burst of acks
//! costs one pass.
//!
//! | module | holds |
//! | --- | --- |
//! | `ledger` | what the log remembers: progress, standing, parked, jobs; one method per kind of entry |
//! | `members` | who takes part, with how much credit, and whose turn it is |
//! | `settle` | how leases end |
//! | `offer`, `keys` | what may go next, by position, key or consumer |
//! | `scan` | looking at messages before they can be offered |
//! | `dispatch` | sharing out what is on offer |
//! | `expiry` | what time does: leases that lapse, retries that are due, consumers that leave |
//! | `jobs`, `triage` | parked messages: listing, replaying, discarding |
//! | `moves` | jobs that bring what is waiting to another stream |
//! | `checkpoint` | progress as users see it, and acks that are written only with it |
//! | `change` | settings, pause, reset, purge |
//! | `figures` | what a group says about itself |

mod change;
mod checkpoint;
mod dispatch;
mod expiry;
mod figures;
pub(crate) mod jobs;
mod keys;
pub(crate) mod ledger;
mod members;
mod moves;
mod offer;
pub(crate) mod parked;
pub(crate) mod progress;
pub(crate) mod scan;
mod scatter;
mod settle;
pub(crate) mod standing;
mod triage;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::entry::{self, Ending, FailedMessage, LeasedRun, ParkedMessage, Route};
use crate::fault::{Fault, planted};
use crate::lanes::{LANES, Lanes};
use crate::pace::Pace;
use crate::seqset::SeqSet;
use crate::settings::{Acks, GroupSettings, Strategy};
use crate::stream::Stream;
use crate::texts::Texts;
use crate::types::{
    Attempt, ConsumerId, Epoch, Grant, GroupId, GroupName, JobId, KeyHash, Position, Seq, SeqRange, StreamId,
    StreamName, Timestamp, push_range,
};
use checkpoint::Checkpoint;
use keys::Keys;
use ledger::Ledger;
use members::Members;
use offer::Offer;
use standing::{Leased, State};

pub use figures::{ConsumerFigures, Counters, GroupFigures, Status};
pub use jobs::{Job, JobState};
pub use members::{Credit, POLLER_IDLE_MAX};
pub use parked::Parked;
pub use settle::{Extension, NotYours, Outcome, REST_MAX, Settled, Settlement};
pub use standing::Bound;
pub(crate) use triage::Grip;
pub use triage::JobRefusal;

/// One delivery of one message to one consumer. The epoch and the grant make it unlike any other, so a
/// late answer is never taken for the present holder's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    pub epoch: Epoch,
    pub seq: Seq,
    pub grant: Grant,
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
    /// When these were first handed out in this group, whoever had them then. What was given back untouched does
    /// not count.
    pub first_received: Timestamp,
    pub granted: Timestamp,
    pub deadline: Timestamp,
    /// `Clock`: may leave only once the entry is durable, so that the lease is still good, and still
    /// exclusive, after a restart.
    pub bound: Bound,
}

impl Deliver {
    /// Leased for no time at all. It is over before it can leave, and leaves all the same: whoever asks for that
    /// wants to see messages without keeping others from them.
    pub fn is_fleeting(&self) -> bool {
        self.deadline <= self.granted
    }
}

/// A wish for messages that were not seen when they arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadAhead {
    pub group: GroupId,
    pub stream: StreamId,
    pub seqs: SeqRange,
    /// The group looks at keys, and has to be told them.
    pub keys: bool,
    /// What is read will be handed out soon, so its content is worth reading too.
    pub contents: bool,
}

/// A message whose content has to be brought to another stream. [`crate::shard::Shard::complete_move`]
/// follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveOut {
    pub group: GroupId,
    pub stream: StreamId,
    pub seq: Seq,
    /// None: to the stream that it was moved from last.
    pub to: Option<StreamName>,
}

/// What the shell must now do.
#[derive(Debug, Default)]
pub struct Effects {
    pub deliveries: Vec<Deliver>,
    pub reads: Vec<ReadAhead>,
    pub moves: Vec<MoveOut>,
    /// Consumers that are members no longer, although they have not left.
    pub departed: Vec<(GroupId, ConsumerId)>,
    /// Progress was published, or written down.
    pub checkpoints: Vec<(GroupId, Seq)>,
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
    pub(crate) fn spend_each(&mut self, messages: u64) {
        self.0 = self.0.saturating_sub(messages);
    }
}

/// What a group needs to know of its shard to finish a turn.
pub(crate) struct Turn<'a> {
    pub(crate) now: Timestamp,
    pub(crate) epoch: Epoch,
    /// The grant that the next lease gets.
    pub(crate) grant: &'a mut Grant,
    pub(crate) stream: &'a Stream,
    /// What a group may remember of messages that it had to read past.
    pub(crate) key_scan_bytes_max: usize,
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
    /// Whether the shard has it on its list of those that have something to write down.
    pub(crate) listed: bool,
    members: Members,
    texts: Texts,
    /// Messages past this one have not been looked at for handing out.
    cursor: Seq,
    /// Messages up to here may be handed out: they were seen arriving or have been read ahead.
    arrived: Seq,
    reading: bool,
    /// How far each lane of the stream above 0 has been put on offer.
    lane_cursors: Vec<Seq>,
    /// Positions that may go out, except those between `cursor` and `arrived` of a plain group.
    offer: Offer,
    /// Of a plain group: nothing that was handed out before is on offer before these, by priority.
    again_from: [Seq; LANES],
    /// New messages that were taken off the offer until the turn ends, since the window is full.
    set_aside: Vec<(u8, KeyHash, Seq)>,
    /// What a group that looks at keys knows of them.
    keys: Option<Box<Keys>>,
    /// Of the messages looked at last, how many could not go, in percent.
    passed_by: u32,
    /// When each waiting message may go out again.
    due: BTreeSet<(Timestamp, Seq)>,
    lapses: BTreeMap<Lapse, Outstanding>,
    in_flight: u64,
    waiting: u64,
    /// Everything up to here that is too old has been seen to.
    expired: Seq,
    /// Beginning anew: messages from here on may have expired before, when the group was not told.
    recheck: Option<Seq>,
    pace: Option<Pace>,
    /// Nothing is handed out before. A word of consumers about how things are now, and so not in the log.
    rest_until: Timestamp,
    job_paces: BTreeMap<JobId, Pace>,
    /// Moving messages that the shell has been asked to bring over.
    asked: SeqSet,
    /// The one that was asked for last.
    asked_last: Seq,
    /// Those among them that found no room, and when they are asked for again.
    put_off: SeqSet,
    moves_at: Option<Timestamp>,
    checkpoint: Checkpoint,
    pub(crate) counters: Counters,
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
    snoozed: Vec<(Timestamp, SeqRange)>,
    failed: Vec<FailedMessage>,
    parked: Vec<ParkedMessage>,
    found: Vec<(Seq, KeyHash)>,
    moving: Vec<(Route, Seq)>,
    /// By jobs, which may have found them ready because another job replayed them.
    set_out: Vec<(Route, Seq)>,
    stayed: Vec<SeqRange>,
    passed: Vec<(JobId, SeqRange)>,
    skipped: Vec<(Ending, SeqRange)>,
    /// Replayed if true, else discarded. In one list, since it matters which came first.
    taken_out: Vec<((bool, JobId), SeqRange)>,
    extended: Vec<(Timestamp, SeqRange)>,
    handed: Vec<SeqRange>,
    leased: Vec<(Duration, LeasedRun)>,
}

impl Pending {
    fn is_empty(&self) -> bool {
        let Pending {
            acked,
            returned,
            snoozed,
            failed,
            parked,
            found,
            moving,
            set_out,
            stayed,
            passed,
            skipped,
            taken_out,
            extended,
            handed,
            leased,
        } = self;
        let ranges = [acked, returned, stayed, handed].into_iter().all(Vec::is_empty);
        let messages = failed.is_empty() && parked.is_empty() && found.is_empty() && moving.is_empty();
        let others = skipped.is_empty() && taken_out.is_empty() && extended.is_empty() && leased.is_empty();
        let by_jobs = set_out.is_empty() && passed.is_empty();
        ranges && messages && others && by_jobs && snoozed.is_empty()
    }

    /// Keeps the room for the next turn.
    fn clear(&mut self) {
        self.acked.clear();
        self.returned.clear();
        self.snoozed.clear();
        self.failed.clear();
        self.parked.clear();
        self.found.clear();
        self.moving.clear();
        self.set_out.clear();
        self.stayed.clear();
        self.passed.clear();
        self.skipped.clear();
        self.taken_out.clear();
        self.extended.clear();
        self.handed.clear();
        self.leased.clear();
    }
}

/// How long a message waits that found no room where it is moved to.
const MOVE_AGAIN: Duration = Duration::from_secs(1);
/// Messages that are being moved at a time, with those among them that found no room.
const MOVES_MAX: u64 = 256;
/// Items in one entry at most, so that an entry fits in the smallest frame that an engine takes.
const ENTRY_ITEMS_MAX: usize = 1_000;
/// The same for items that bring texts along.
const ENTRY_TEXTS_MAX: usize = 64;

impl Group {
    pub(crate) fn new(
        id: GroupId,
        stream: StreamId,
        name: GroupName,
        settings: GroupSettings,
        floor: Seq,
        created: Timestamp,
    ) -> Group {
        let mut group = Group {
            id,
            stream,
            name,
            settings,
            created,
            ledger: Ledger::starting_at(floor),
            through: Position::START,
            scheduled: None,
            touched: false,
            listed: false,
            members: Members::default(),
            texts: Texts::default(),
            cursor: floor,
            arrived: floor,
            reading: false,
            lane_cursors: Vec::new(),
            offer: Offer::Position(Lanes::default()),
            again_from: [Seq::START; LANES],
            set_aside: Vec::new(),
            keys: None,
            passed_by: 0,
            due: BTreeSet::new(),
            lapses: BTreeMap::new(),
            in_flight: 0,
            waiting: 0,
            expired: Seq::START,
            recheck: None,
            pace: None,
            rest_until: Timestamp::ZERO,
            job_paces: BTreeMap::new(),
            asked: SeqSet::new(),
            asked_last: Seq::START,
            put_off: SeqSet::new(),
            moves_at: None,
            checkpoint: Checkpoint::at(floor),
            counters: Counters::default(),
            pending: Pending::default(),
        };
        group.lay_out_offer();
        group
    }

    /// Recovery is over: builds what is not in the log from what is.
    pub(crate) fn reopened(&mut self, now: Timestamp, stream: &Stream) {
        self.ledger.reopened();
        for (range, state) in self.ledger.standing.runs() {
            match state {
                State::Ready { .. } | State::Moving { .. } => {}
                State::Waiting { until, .. } => {
                    self.due.extend(range.seqs().map(|seq| (until, seq)));
                    self.waiting += range.count();
                }
                State::Leased(lease) => {
                    self.in_flight += range.count();
                    outstanding(&mut self.lapses, Lapse::of(&lease), range);
                }
            }
        }
        self.checkpoint = Checkpoint::at(self.ledger.progress.floor());
        self.pace = self.settings.rate.map(|rate| Pace::starting(now, rate));
        self.start_job_paces(now);
        self.begin_anew(stream);
    }

    pub(crate) fn join(&mut self, now: Timestamp, consumer: ConsumerId, name: &str, bound: Bound) {
        let name = self.texts.intern(name);
        self.members.join(now, consumer, name, bound);
        if let Offer::Pinned(pinned) = &mut self.offer {
            pinned.joined(consumer);
        }
    }

    pub(crate) fn consumers(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn has_member(&self, consumer: ConsumerId) -> bool {
        self.members.get(consumer).is_some()
    }

    pub(crate) fn set_credit(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        consumer: ConsumerId,
        credit: Credit,
    ) {
        let counts = matches!(credit, Credit::Slots { bytes: Some(_), .. });
        // Bytes are not counted while nobody asks for them, so they are now.
        if counts && !self.members.counts_bytes(consumer) {
            let held = self.members.get(consumer).map(|member| &member.held);
            let runs = held.into_iter().flat_map(SeqSet::runs);
            let bytes = runs.map(|run| stream.timeline.bytes(run)).sum();
            self.members.set_held_bytes(consumer, bytes);
        }
        self.members.set_credit(now, consumer, credit);
    }

    pub(crate) fn leave(&mut self, consumer: ConsumerId, departure: Departure) {
        if self.members.leave(consumer, departure)
            && let Offer::Pinned(pinned) = &mut self.offer
        {
            pinned.left(consumer);
        }
    }

    /// Does what time and credit allow, and writes down what the turn has changed.
    pub(crate) fn finish_turn(&mut self, mut turn: Turn<'_>) {
        if self.sweep(&mut turn) {
            self.expire(&mut turn);
            self.run_jobs(turn.now, turn.stream, turn.budget);
            self.dispatch(&mut turn);
            self.ask_for_moves(turn.now, turn.effects);
            self.read_on(&mut turn);
        }
        self.check_point(turn.now, turn.effects);
        self.write_down(turn.now, turn.entries);
    }

    /// When the group next has something to do by itself. What is late is late already.
    pub(crate) fn wake_at(&self, now: Timestamp) -> Option<Timestamp> {
        if self.members.are_leaving() || self.ledger.sweep.is_some() || !self.ledger.dead.is_empty() {
            return Some(Timestamp::ZERO);
        }
        let due = self.due.first().map(|&(at, _)| at);
        let lapse = self.lapses.first_key_value().map(|(lapse, _)| lapse.deadline);
        let parked = self.parked_age_at();
        let times =
            [due, lapse, parked, self.members.idle_at(), self.checkpoint.at_next(), self.jobs_at(now)];
        times.into_iter().chain([self.pace_at(now), self.rests_until(now), self.moves_at]).flatten().min()
    }

    /// Writes down what was changed. The order matters where a message appears twice: it ends one lease
    /// before it begins another, and is parked before it is replayed.
    pub(crate) fn write_down(&mut self, now: Timestamp, out: &mut Vec<u8>) {
        let id = self.id;
        if self.settings.acks != Acks::Checkpoint {
            let pending = &self.pending;
            for ranges in pending.acked.chunks(ENTRY_ITEMS_MAX) {
                entry::put_acked(out, id, ranges);
            }
        } else {
            self.checkpoint.keep_back(&self.pending.acked);
        }
        // Also what was kept back before the settings changed.
        self.checkpoint.write(id, out);
        let pending = &mut self.pending;
        for ranges in pending.returned.chunks(ENTRY_ITEMS_MAX) {
            entry::put_returned(out, id, ranges);
        }
        each_alike(&pending.snoozed, |until, ranges| entry::put_snoozed(out, id, now, until, ranges));
        for messages in pending.failed.chunks(ENTRY_TEXTS_MAX) {
            entry::put_failed(out, id, now, messages);
        }
        for messages in pending.parked.chunks(ENTRY_TEXTS_MAX) {
            entry::put_parked(out, id, now, messages);
        }
        for keys in pending.found.chunks(ENTRY_ITEMS_MAX) {
            entry::Entry::KeysFound { group: id, keys: keys.to_vec() }.encode(out);
        }
        put_moving(out, id, &pending.moving);
        for ranges in pending.stayed.chunks(ENTRY_ITEMS_MAX) {
            entry::Entry::Stayed { group: id, ranges: ranges.to_vec() }.encode(out);
        }
        each_alike(&pending.skipped, |how, ranges| entry::put_skipped(out, id, how, ranges));
        each_alike(&pending.taken_out, |(replayed, job), ranges| {
            entry::put_taken_out(out, id, replayed, job, ranges);
        });
        put_moving(out, id, &pending.set_out);
        each_alike(&pending.passed, |job, ranges| {
            entry::Entry::JobPassed { group: id, job, ranges: ranges.to_vec() }.encode(out);
        });
        each_alike(&pending.extended, |deadline, ranges| entry::put_extended(out, id, now, deadline, ranges));
        for ranges in pending.handed.chunks(ENTRY_ITEMS_MAX) {
            entry::put_handed(out, id, now, ranges);
        }
        each_alike(&pending.leased, |duration, runs| entry::put_leased(out, id, now, duration, runs));
        pending.clear();
    }

    /// Keys whose turn is remembered although they have nothing to offer.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        let Offer::Fair(fair) = &self.offer else { return 0 };
        fair.remembered()
    }

    /// Whether something was changed that [`Group::write_down`] would write.
    pub(crate) fn is_unwritten(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(crate) fn is_current(&self, lease: Lease) -> bool {
        self.lease_at(lease).is_some()
    }

    pub(crate) fn held_by(&self, consumer: ConsumerId) -> u64 {
        self.members.get(consumer).map_or(0, |member| member.held.count())
    }

    pub(crate) fn holder(&self, lease: Lease) -> Option<ConsumerId> {
        self.lease_at(lease)?.1.holder
    }

    /// The limit of leases, if it is reached.
    pub(crate) fn in_flight_full(&self) -> Option<u32> {
        let most = self.settings.max_in_flight;
        (self.in_flight >= u64::from(most)).then_some(most)
    }

    pub(crate) fn is_reading(&self) -> bool {
        self.reading
    }

    /// What the lease is part of, if it is the one that its message is held on now: the messages from its
    /// own to the end of the run.
    fn lease_at(&self, lease: Lease) -> Option<(SeqRange, Leased)> {
        if self.ledger.is_swept(lease.seq) {
            return None;
        }
        let (run, state) = self.ledger.standing.run_at(lease.seq)?;
        match state {
            State::Leased(held) if held.epoch == lease.epoch && held.grant == lease.grant => {
                Some((run, held))
            }
            State::Leased(held) if planted(Fault::StaleAckCounts) && held.grant > lease.grant => {
                Some((SeqRange::one(run.first), held))
            }
            _ => None,
        }
    }

    /// How often a message has been handed out, if it is in process.
    pub(crate) fn attempts(&self, seq: Seq) -> Option<u32> {
        self.ledger.standing.run_at(seq).map(|(_, state)| state.attempts())
    }

    /// Asks for the contents of messages that are to be moved, once.
    fn ask_for_moves(&mut self, now: Timestamp, effects: &mut Effects) {
        if self.moves_at.take_if(|at| *at <= now).is_some() {
            for run in std::mem::take(&mut self.put_off).runs() {
                self.asked.remove(run);
            }
        }
        // One after the other from where it was, so that those which find no room do not keep others back
        // that go elsewhere. Where order counts, it counts there too: one at a time, the first of all.
        let is_ordered = self.settings.strategy == Strategy::Ordered;
        let most = if is_ordered { 1 } else { MOVES_MAX };
        if is_ordered {
            self.asked_last = Seq::START;
        }
        let mut lap = self.ledger.moving.len() as u64 + 1;
        while lap > 0 && self.asked.count() < self.ledger.moving.len() as u64 && self.asked.count() < most {
            lap -= 1;
            let next = self.ledger.moving.range(self.asked_last.next()..).next();
            let Some((&seq, route)) = next else {
                self.asked_last = Seq::START;
                continue;
            };
            self.asked_last = seq;
            if self.asked.insert(SeqRange::one(seq)) > 0 {
                effects.moves.push(MoveOut {
                    group: self.id,
                    stream: self.stream,
                    seq,
                    to: route.to().cloned(),
                });
            }
        }
    }

    /// Interned, so that a million messages that fail alike share one text.
    fn reason(&mut self, reason: Option<&str>) -> Option<Arc<str>> {
        reason.filter(|reason| !reason.is_empty()).map(|reason| self.texts.intern(reason))
    }
}

/// Adds messages to what a deadline is about.
fn outstanding(lapses: &mut BTreeMap<Lapse, Outstanding>, lapse: Lapse, seqs: SeqRange) {
    let of = lapses.entry(lapse).or_insert(Outstanding { seqs, count: 0 });
    of.count += seqs.count();
    of.seqs.first = of.seqs.first.min(seqs.first);
    of.seqs.last = of.seqs.last.max(seqs.last);
}

/// Messages that set out for other streams, with those in one entry that follow each other and go the same way.
fn put_moving(out: &mut Vec<u8>, group: GroupId, moving: &[(Route, Seq)]) {
    for alike in moving.chunk_by(|a, b| a.0 == b.0) {
        for some in alike.chunks(ENTRY_ITEMS_MAX) {
            let mut seqs = Vec::new();
            for (_, seq) in some {
                push_range(&mut seqs, SeqRange::one(*seq));
            }
            entry::Entry::Moving { group, route: alike[0].0.clone(), seqs }.encode(out);
        }
    }
}

/// Calls `put` with those in a row that have the same first part, a bounded number at a time.
fn each_alike<K: Copy + PartialEq, T: Copy>(items: &[(K, T)], mut put: impl FnMut(K, &[T])) {
    for alike in items.chunk_by(|a, b| a.0 == b.0) {
        for some in alike.chunks(ENTRY_ITEMS_MAX) {
            let some: Vec<T> = some.iter().map(|(_, item)| *item).collect();
            put(alike[0].0, &some);
        }
    }
}

#[cfg(test)]
mod tests;
