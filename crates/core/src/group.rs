//! The heart: one group of competing consumers. Facts and the time go in, effects come out.
//!
//! A turn is: any number of facts (`arrived`, `join`, `settle` and so on), then one `finish_turn`, which
//! expires due leases, shares out the messages that can go, and writes down the turn's decisions. Nothing
//! is handed out between facts, so a burst of acks costs one pass.
//!
//! | module | holds |
//! | --- | --- |
//! | `decision` | the one way in which durable state changes, and the entries that a turn's decisions become |
//! | `ledger` | durable state: progress, standing, parked, jobs |
//! | `members` | who takes part, with how much credit, and whose turn it is |
//! | `settle` | how leases end |
//! | `candidates` | which messages may go next: by position, or with `offer` and `keys` by key or consumer |
//! | `scan` | how the group comes to know of messages: as they arrive, or by reading them |
//! | `dispatch` | who gets how many of the candidates |
//! | `timers` | deadlines of leases, and times of retries |
//! | `check` | what must agree whenever a turn is over |
//! | `expiry` | what time does: leases that lapse, retries that are due, consumers that leave |
//! | `jobs`, `triage` | parked messages: listing, replaying, discarding |
//! | `moves` | messages on their way to another stream, and jobs that move waiting messages |
//! | `checkpoint` | progress as users see it, and acks that are written only with it |
//! | `change` | settings, pause, reset, purge |
//! | `stats` | what a group reports about itself |
//! | `ages` | for how long messages have been due |

mod ages;
mod candidates;
mod change;
mod check;
mod checkpoint;
mod damaged;
pub(crate) mod decision;
mod dispatch;
mod expiry;
mod gradual;
pub(crate) mod jobs;
mod keys;
pub(crate) mod ledger;
mod life;
mod members;
mod moves;
mod offer;
pub(crate) mod parked;
pub(crate) mod progress;
pub(crate) mod scan;
mod settle;
pub(crate) mod standing;
mod stats;
mod timers;
mod triage;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::fault::{Fault, planted};
use crate::pace::Pace;
use crate::seqset::SeqSet;
use crate::settings::GroupSettings;
use crate::stream::Stream;
use crate::texts::Texts;
use crate::types::{
    Attempt, ConsumerId, Epoch, Grant, GroupId, GroupName, JobId, Position, Seq, SeqRange, StreamId,
    StreamName, Timestamp,
};
use ages::Ages;
use candidates::{Candidates, View};
use checkpoint::Checkpoint;
use decision::Unwritten;
use ledger::Ledger;
use members::Members;
use moves::Moves;
use standing::{Leased, State};
use timers::Timers;

pub use jobs::{Job, JobState};
pub use life::{Life, LifeState};
pub use members::{ConsumerTerms, Credit, POLLER_IDLE_MAX};
pub use parked::Parked;
pub use settle::{
    LeaseRun, NotYours, Outcome, OutcomeRun, REST_MAX, Settlement, Verb, each_outcome, with_outcomes,
};
pub use standing::Bound;
pub use stats::{ConsumerFigures, Counters, GroupFigures, Status};
pub(crate) use triage::Hold;
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
    /// The connection broke. Messages it held count as tried.
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
    /// These were handed out before, also if that does not count as an attempt.
    pub redelivered: bool,
    /// When these were first handed out in this group, to any consumer. Deliveries that were given back untouched
    /// do not count.
    pub first_received: Timestamp,
    pub granted: Timestamp,
    pub deadline: Timestamp,
    /// `Clock`: may leave only once the entry is durable, so that the lease is still good, and still
    /// exclusive, after a restart.
    pub bound: Bound,
    /// Earlier deliveries to the same consumer, over its connection, leave first: they may have messages of the same
    /// keys.
    pub in_order: bool,
}

impl Deliver {
    /// Leased for no time at all. The lease is over before the delivery leaves, and it leaves all the same: a
    /// consumer that asks for this wants to see messages without keeping others from them.
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
    /// The messages will be handed out soon, so their contents are worth reading too.
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

/// The work that the shell must now do.
#[derive(Debug, Default)]
pub struct Effects {
    pub deliveries: Vec<Deliver>,
    pub reads: Vec<ReadAhead>,
    pub moves: Vec<MoveOut>,
    /// Consumers that are members no longer, although they have not left.
    pub departed: Vec<(GroupId, ConsumerId)>,
    /// Progress was published, or written down.
    pub checkpoints: Vec<(GroupId, Seq)>,
    /// Messages that were parked because their keys cannot be read.
    pub damaged: u64,
}

/// How much one turn does. The remaining work is done in the next turn, which follows at once, so that no
/// call waits long however much work there is.
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

/// The parts of its shard that a group needs to finish a turn.
pub(crate) struct Turn<'a> {
    pub(crate) now: Timestamp,
    pub(crate) epoch: Epoch,
    /// Nothing is handed out, in any group.
    pub(crate) withheld: bool,
    /// The grant that the next lease gets.
    pub(crate) grant: &'a mut Grant,
    pub(crate) stream: &'a Stream,
    /// How many bytes a group may use to remember messages that it had to read past.
    pub(crate) key_scan_bytes_max: usize,
    /// The work that this turn may still do, over all groups.
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
    pub(crate) texts: Texts,
    candidates: Candidates,
    /// The shell has been asked to read messages, and has not answered.
    reading: bool,
    ages: Ages,
    timers: Timers,
    /// Everything up to here that is too old has been seen to.
    expired: Seq,
    /// Beginning anew: messages from here on may have expired before, when the group was not told.
    recheck: Option<Seq>,
    paces: Paces,
    moves: Moves,
    /// The same for messages that the group is done with.
    sends: Moves,
    /// Of the job that moves parked messages. Nothing about them is in the log until they have arrived.
    parked_moves: Moves,
    checkpoint: Checkpoint,
    pub(crate) counters: Counters,
    unwritten: Unwritten,
}

/// How fast a group and its jobs may go.
#[derive(Debug)]
struct Paces {
    group: Option<Pace>,
    /// Nothing is handed out before, because consumers asked for a rest. Not in the log.
    rest_until: Timestamp,
    jobs: BTreeMap<JobId, Pace>,
}

impl Default for Paces {
    fn default() -> Paces {
        Paces { group: None, rest_until: Timestamp::ZERO, jobs: BTreeMap::new() }
    }
}

impl Group {
    pub(crate) fn new(
        id: GroupId,
        stream: StreamId,
        name: GroupName,
        settings: GroupSettings,
        floor: Seq,
        created: Timestamp,
    ) -> Group {
        let members = Members::default();
        let candidates = Candidates::new(&settings, &members, floor);
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
            listed: false,
            members,
            texts: Texts::default(),
            candidates,
            reading: false,
            ages: Ages::default(),
            timers: Timers::default(),
            expired: Seq::START,
            recheck: None,
            paces: Paces::default(),
            moves: Moves::default(),
            sends: Moves::default(),
            parked_moves: Moves::default(),
            checkpoint: Checkpoint::at(floor),
            counters: Counters::default(),
            unwritten: Unwritten::default(),
        }
    }

    /// The candidates, and what they are chosen by.
    fn candidates<'a>(&'a mut self, stream: &'a Stream) -> (&'a mut Candidates, View<'a>) {
        let Group { candidates, ledger, settings, members, .. } = self;
        (candidates, View { ledger, settings, members, stream })
    }

    fn view<'a>(&'a self, stream: &'a Stream) -> View<'a> {
        let Group { ledger, settings, members, .. } = self;
        View { ledger, settings, members, stream }
    }

    /// The group was created just now.
    pub(crate) fn created(&mut self, now: Timestamp, stream: &Stream) {
        self.reopened(now, stream);
        self.paces.group = self.settings.rate.map(|rate| Pace::new(now, rate));
    }

    /// Recovery is over: builds the derived state that is not in the log.
    pub(crate) fn reopened(&mut self, now: Timestamp, stream: &Stream) {
        self.ledger.reopened();
        for (range, state) in self.ledger.standing().runs() {
            match state {
                State::Ready { .. } | State::Moving { .. } => {}
                State::Waiting { until, .. } => {
                    range.seqs().for_each(|seq| self.timers.wait(until, seq));
                }
                State::Leased(lease) => self.timers.lease(&lease, range),
            }
        }
        self.members.orphan(self.ledger.standing().leased());
        self.checkpoint = Checkpoint::at(self.ledger.progress().floor());
        self.paces.group = self.settings.rate.map(|rate| Pace::reopened(now, rate));
        self.start_job_paces(now);
        self.begin_anew(stream);
    }

    pub(crate) fn join(
        &mut self,
        now: Timestamp,
        consumer: ConsumerId,
        name: &str,
        bound: Bound,
        terms: ConsumerTerms,
    ) {
        let name = self.texts.intern(name);
        self.members.join(now, consumer, name, bound, terms);
        self.candidates.joined(consumer);
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
        // Bytes are counted only while the credit asks for them, so they are counted now.
        if counts && !self.members.counts_bytes(consumer) {
            let held = self.members.get(consumer).map(|member| &member.held);
            let runs = held.into_iter().flat_map(SeqSet::runs);
            let bytes = runs.map(|run| stream.timeline.bytes(run)).sum();
            self.members.set_held_bytes(consumer, bytes);
        }
        self.members.set_credit(now, consumer, credit);
    }

    /// All messages that were leased to a consumer without a connection have left the server, or never will.
    pub(crate) fn served(&mut self, now: Timestamp, consumer: ConsumerId) {
        self.members.served(now, consumer);
    }

    pub(crate) fn leave(&mut self, consumer: ConsumerId, departure: Departure) {
        if self.members.leave(consumer, departure) {
            self.candidates.left(consumer);
        }
    }

    /// Does what time and credit allow, and writes down what the turn has changed.
    pub(crate) fn finish_turn(&mut self, mut turn: Turn<'_>) {
        if self.sweep(&mut turn) {
            self.expire(&mut turn);
            self.run_jobs(&mut turn);
            self.park_unreadable(&mut turn);
            self.dispatch(&mut turn);
            self.ask_for_moves(turn.now, turn.stream.durable, turn.effects);
            self.read_on(&mut turn);
        }
        self.ages.pass(&self.ledger, turn.stream);
        self.check_point(turn.now, turn.effects);
        self.write_down(turn.entries);
        self.check();
    }

    /// When the group next has something to do by itself. A time in the past means at once.
    pub(crate) fn wake_at(&self, now: Timestamp) -> Option<Timestamp> {
        if self.members.are_leaving() || self.ledger.sweeps_through().is_some() || self.ledger.has_dead() {
            return Some(Timestamp::ZERO);
        }
        let own = [self.timers.next_at(), self.parked_age_at(), self.checkpoint.at_next()];
        let others = [self.members.idle_at(), self.jobs_at(now)];
        let moves = [self.moves.again_at(), self.sends.again_at(), self.parked_moves.again_at()];
        let paces = [self.pace_at(now), self.rests_until(now)];
        own.into_iter().chain(others).chain(moves).chain(paces).flatten().min()
    }

    /// Writes down the decisions.
    pub(crate) fn write_down(&mut self, out: &mut Vec<u8>) {
        self.unwritten.write(out);
    }

    /// Keys whose turn is remembered although they have nothing to offer.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        let Candidates::Keyed(keyed) = &self.candidates else { return 0 };
        keyed.remembered()
    }

    /// Whether something was decided that [`Group::write_down`] would write.
    pub(crate) fn is_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
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
        (self.in_flight() >= u64::from(most)).then_some(most)
    }

    pub(crate) fn is_reading(&self) -> bool {
        self.reading
    }

    /// The run that the lease is part of, if its message is held on this lease now: the messages from its
    /// own to the end of the run.
    fn lease_at(&self, lease: Lease) -> Option<(SeqRange, Leased)> {
        if self.ledger.is_swept(lease.seq) {
            return None;
        }
        let (run, state) = self.ledger.standing().run_at(lease.seq)?;
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
        self.ledger.standing().run_at(seq).map(|(_, state)| state.attempts())
    }

    /// How many messages are leased.
    pub(crate) fn in_flight(&self) -> u64 {
        self.ledger.standing().leased()
    }

    /// Interned, so that a million messages that fail alike share one text.
    fn reason(&mut self, reason: Option<&str>) -> Option<Arc<str>> {
        reason.filter(|reason| !reason.is_empty()).map(|reason| self.texts.intern(reason))
    }
}

#[cfg(test)]
mod tests;
