//! Decisions: the only way in which the durable state of a group changes.
//!
//! [`Group::decide`] applies a decision to the ledger and adds it to the entries of the turn. Recovery turns the
//! entries back into decisions and applies the same ones, so it arrives at the state that was decided.
//!
//! Decisions of one kind become one entry, as long as no other decision about the same message lies between them: a
//! turn's acks take a dozen bytes however many there are. Decisions about one message keep their order.

use crate::entry::{Ending, Entry, FailedMessage, JobEnd, LeasedRun, ParkedMessage, Route, Selection, Work};
use crate::group::Group;
use crate::group::standing::Bound;
use crate::pace::Rate;
use crate::settings::Acks;
use crate::types::{
    Attempt, ConsumerId, Epoch, Grant, GroupId, JobId, KeyHash, Seq, SeqRange, Timestamp, push_range,
};

/// One change of the durable state of a group.
#[derive(Debug, Clone)]
pub(crate) enum Decision {
    /// Entry `Handed` or `Leased`. The attempt is counted now, so that a message that kills its consumers is counted
    /// even if none of them ever answers.
    Leased { seqs: SeqRange, attempt: Attempt, terms: Terms },
    /// No entry: a message is ready again because its delay is over or its connection is gone, and recovery finds
    /// both out by itself.
    Ready(SeqRange),
    /// Entry `Acked`.
    Acked(SeqRange),
    /// Entry `Skipped`: the group is done with messages that no consumer acked.
    Ended { seqs: SeqRange, how: Ending },
    /// Entry `Failed`.
    Failed(FailedMessage),
    /// Entry `Returned`: as if the messages had not been handed out.
    Returned(SeqRange),
    /// Entry `Snoozed`: as if the messages had not been handed out, but not before `until`.
    Snoozed { seqs: SeqRange, at: Timestamp, until: Timestamp },
    /// Entry `Parked`. A parked message counts as settled.
    Parked(ParkedMessage),
    /// Entry `KeysFound`: the key of a parked message.
    KeyFound { seq: Seq, key: KeyHash },
    /// Entry `Moving`.
    Moving { seqs: SeqRange, route: Route },
    /// Entry `Sent`: the group is done with messages that have expired or were dropped, and they go to another stream.
    Sent { seqs: SeqRange, route: Route },
    /// Entry `Stayed`: messages on their way to another stream are ready again.
    Stayed(SeqRange),
    /// Entry `Replayed`: parked messages are ready again, with their attempts counted anew and their history kept.
    Replayed { seqs: SeqRange, job: JobId },
    /// Entry `Discarded`.
    Discarded { seqs: SeqRange, job: JobId },
    /// Entry `JobPassed`.
    JobPassed { seqs: SeqRange, job: JobId },
    /// Entry `Extended` for leases on the clock; leases on a connection are not written. Messages that are not leased
    /// any more are left as they are.
    Extended { seqs: SeqRange, at: Timestamp, deadline: Timestamp, bound: Bound },
    /// Entry `JobStarted`.
    JobStarted {
        job: JobId,
        at: Timestamp,
        work: Work,
        selection: Selection,
        limit: Option<u64>,
        rate: Option<Rate>,
    },
    /// Entry `JobEnded`.
    JobEnded { job: JobId, at: Timestamp, how: JobEnd },
    /// Entry `GroupPaused`.
    Paused(bool),
    /// Entry `Reset`.
    Reset { floor: Seq, parked: bool },
    /// Entry `Purged`, for one group of the stream.
    Purged { through: Seq, parked: bool },
}

/// The terms on which messages are handed out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) epoch: Epoch,
    /// Of the first message; the grants of the others follow.
    pub(crate) grant: Grant,
    pub(crate) bound: Bound,
    pub(crate) granted: Timestamp,
    pub(crate) deadline: Timestamp,
    pub(crate) holder: Option<ConsumerId>,
}

impl Group {
    /// Changes the durable state of the group, and sees to it that the change is written.
    pub(super) fn decide(&mut self, decision: Decision) {
        self.ledger.apply(&decision);
        let acks_wait = self.settings.acks == Acks::Checkpoint;
        match &decision {
            Decision::Acked(seqs) if acks_wait => self.checkpoint.keep_back(*seqs),
            // If acks wait for a checkpoint, so do the leases that nearly always lead to them.
            Decision::Leased { attempt: Attempt::FIRST, terms, .. }
                if acks_wait && terms.bound == Bound::Connection => {}
            written => self.unwritten.add(self.id, written),
        }
    }
}

/// Items in one entry at most, so that an entry fits in the smallest frame that an engine takes.
const ITEMS_MAX: usize = 1_000;
/// The same for items that bring texts along.
const TEXTS_MAX: usize = 64;
/// Entries that are tried, from the last one back, for one that a decision can be added to.
const TRIES: usize = 8;
/// Items of an entry that are compared with a decision. A longer entry counts as being about the same message.
const COMPARED_MAX: usize = 64;

/// Entries that the turn has decided and that are not written, in the order of the decisions.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    batches: Vec<Batch>,
    /// Empty lists whose memory is used again.
    spare: Vec<Vec<SeqRange>>,
}

/// Decisions of one kind, which become one entry.
#[derive(Debug)]
struct Batch {
    /// From the lowest to the highest position that the entry is about.
    span: SeqRange,
    entry: Entry,
}

impl Unwritten {
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(super) fn write(&mut self, out: &mut Vec<u8>) {
        for Batch { entry, .. } in &mut self.batches {
            entry.encode(out);
            if let Some(ranges) = ranges_of(entry).filter(|_| self.spare.len() < TRIES) {
                ranges.clear();
                self.spare.push(std::mem::take(ranges));
            }
        }
        self.batches.clear();
    }

    /// Adds a decision to the latest entry of its kind, or begins an entry if a decision about the same message
    /// came after that one.
    pub(super) fn add(&mut self, group: GroupId, decision: &Decision) {
        let seqs = seqs_of(decision);
        for batch in self.batches.iter_mut().rev().take(TRIES) {
            if batch.add(decision, seqs) {
                return;
            }
            if batch.is_about(seqs) {
                break;
            }
        }
        let ranges = || {
            let mut ranges = self.spare.pop().unwrap_or_default();
            ranges.push(seqs);
            ranges
        };
        if let Some(entry) = entry_of(group, decision, ranges) {
            self.batches.push(Batch { span: seqs, entry });
        }
    }
}

impl Batch {
    /// Adds the decision if the entry is of its kind and not full.
    fn add(&mut self, decision: &Decision, seqs: SeqRange) -> bool {
        let added = match (&mut self.entry, decision) {
            (Entry::Acked { ranges, .. }, Decision::Acked(_))
            | (Entry::Returned { ranges, .. }, Decision::Returned(_))
            | (Entry::Stayed { ranges, .. }, Decision::Stayed(_)) => add_range(ranges, seqs),
            (Entry::Handed { at, ranges, .. }, Decision::Leased { terms, .. }) => {
                terms.bound == Bound::Connection && *at == terms.granted && add_range(ranges, seqs)
            }
            (Entry::Leased { at, duration, runs, .. }, Decision::Leased { terms, .. }) => {
                terms.bound == Bound::Clock
                    && *at == terms.granted
                    && *duration == terms.deadline.since(terms.granted)
                    && add_item(runs, ITEMS_MAX, || LeasedRun { range: seqs, grant: terms.grant })
            }
            (Entry::Skipped { how, ranges, .. }, Decision::Ended { how: same, .. }) => {
                how == same && add_range(ranges, seqs)
            }
            (Entry::Failed { at, messages, .. }, Decision::Failed(message)) => {
                *at = message.failure.at.max(*at);
                add_item(messages, TEXTS_MAX, || message.clone())
            }
            (Entry::Parked { at, messages, .. }, Decision::Parked(message)) => {
                *at = message.failure.at.max(*at);
                add_item(messages, TEXTS_MAX, || message.clone())
            }
            (Entry::Snoozed { until, ranges, .. }, Decision::Snoozed { until: same, .. }) => {
                until == same && add_range(ranges, seqs)
            }
            (Entry::Extended { deadline, ranges, .. }, Decision::Extended { deadline: same, bound, .. }) => {
                *bound == Bound::Clock && deadline == same && add_range(ranges, seqs)
            }
            (Entry::KeysFound { keys, .. }, Decision::KeyFound { seq, key }) => {
                add_item(keys, ITEMS_MAX, || (*seq, *key))
            }
            (Entry::Moving { route, seqs: ranges, .. }, Decision::Moving { route: same, .. })
            | (Entry::Sent { route, ranges, .. }, Decision::Sent { route: same, .. }) => {
                route == same && add_range(ranges, seqs)
            }
            (Entry::Replayed { job, ranges, .. }, Decision::Replayed { job: same, .. })
            | (Entry::Discarded { job, ranges, .. }, Decision::Discarded { job: same, .. })
            | (Entry::JobPassed { job, ranges, .. }, Decision::JobPassed { job: same, .. }) => {
                job == same && add_range(ranges, seqs)
            }
            // Named one by one, so that a new decision says here whether it joins others of its kind.
            (
                _,
                Decision::Acked(_)
                | Decision::Returned(_)
                | Decision::Stayed(_)
                | Decision::Leased { .. }
                | Decision::Ended { .. }
                | Decision::Failed(_)
                | Decision::Parked(_)
                | Decision::Snoozed { .. }
                | Decision::Extended { .. }
                | Decision::KeyFound { .. }
                | Decision::Moving { .. }
                | Decision::Sent { .. }
                | Decision::Replayed { .. }
                | Decision::Discarded { .. }
                | Decision::JobPassed { .. }
                | Decision::Ready(_)
                | Decision::JobStarted { .. }
                | Decision::JobEnded { .. }
                | Decision::Paused(_)
                | Decision::Reset { .. }
                | Decision::Purged { .. },
            ) => false,
        };
        if added {
            self.span.first = self.span.first.min(seqs.first);
            self.span.last = self.span.last.max(seqs.last);
        }
        added
    }

    /// Whether the entry is about one of these messages.
    fn is_about(&mut self, seqs: SeqRange) -> bool {
        if self.span.overlap(seqs).is_none() {
            return false;
        }
        let meets = |range: SeqRange| range.overlap(seqs).is_some();
        match &self.entry {
            Entry::Failed { messages, .. } => messages.iter().any(|message| seqs.contains(message.seq)),
            Entry::Parked { messages, .. } => messages.iter().any(|message| seqs.contains(message.seq)),
            Entry::Leased { runs, .. } if runs.len() <= COMPARED_MAX => {
                runs.iter().any(|run| meets(run.range))
            }
            _ => ranges_of(&mut self.entry)
                .filter(|ranges| ranges.len() <= COMPARED_MAX)
                .is_none_or(|ranges| ranges.iter().any(|&range| meets(range))),
        }
    }
}

fn add_range(ranges: &mut Vec<SeqRange>, seqs: SeqRange) -> bool {
    let has_room = ranges.len() < ITEMS_MAX;
    if has_room {
        push_range(ranges, seqs);
    }
    has_room
}

fn add_item<T>(items: &mut Vec<T>, most: usize, item: impl FnOnce() -> T) -> bool {
    let has_room = items.len() < most;
    if has_room {
        items.push(item());
    }
    has_room
}

/// The positions of an entry that is a list of ranges.
fn ranges_of(entry: &mut Entry) -> Option<&mut Vec<SeqRange>> {
    match entry {
        Entry::Acked { ranges, .. }
        | Entry::Handed { ranges, .. }
        | Entry::Skipped { ranges, .. }
        | Entry::Returned { ranges, .. }
        | Entry::Snoozed { ranges, .. }
        | Entry::Extended { ranges, .. }
        | Entry::Stayed { ranges, .. }
        | Entry::Replayed { ranges, .. }
        | Entry::Discarded { ranges, .. }
        | Entry::JobPassed { ranges, .. }
        | Entry::Sent { ranges, .. }
        | Entry::Moving { seqs: ranges, .. } => Some(ranges),
        Entry::Opened { .. }
        | Entry::StreamCreated { .. }
        | Entry::GroupCreated { .. }
        | Entry::Published { .. }
        | Entry::Numbered { .. }
        | Entry::Leased { .. }
        | Entry::Failed { .. }
        | Entry::Parked { .. }
        | Entry::KeysFound { .. }
        | Entry::Released { .. }
        | Entry::Copied { .. }
        | Entry::JobStarted { .. }
        | Entry::JobEnded { .. }
        | Entry::GroupChanged { .. }
        | Entry::StreamChanged { .. }
        | Entry::GroupPaused { .. }
        | Entry::Reset { .. }
        | Entry::Purged { .. }
        | Entry::GroupDeleted { .. }
        | Entry::StreamDeleted { .. }
        | Entry::NotePut { .. }
        | Entry::NoteRemoved { .. }
        | Entry::Redelayed { .. }
        | Entry::ReaderMoved { .. } => None,
    }
}

/// The messages that a decision is about. A decision about a whole group is about all of them.
fn seqs_of(decision: &Decision) -> SeqRange {
    match decision {
        Decision::Acked(seqs)
        | Decision::Ready(seqs)
        | Decision::Returned(seqs)
        | Decision::Stayed(seqs)
        | Decision::Leased { seqs, .. }
        | Decision::Ended { seqs, .. }
        | Decision::Snoozed { seqs, .. }
        | Decision::Moving { seqs, .. }
        | Decision::Sent { seqs, .. }
        | Decision::Replayed { seqs, .. }
        | Decision::Discarded { seqs, .. }
        | Decision::JobPassed { seqs, .. }
        | Decision::Extended { seqs, .. } => *seqs,
        Decision::Failed(message) => SeqRange::one(message.seq),
        Decision::Parked(message) => SeqRange::one(message.seq),
        Decision::KeyFound { seq, .. } => SeqRange::one(*seq),
        Decision::JobStarted { .. }
        | Decision::JobEnded { .. }
        | Decision::Paused(_)
        | Decision::Reset { .. }
        | Decision::Purged { .. } => SeqRange { first: Seq::START, last: Seq(u64::MAX - 1) },
    }
}

/// The entry that a decision begins. `None` for a decision that is not written, and for one about a whole group:
/// the shard writes those itself, after the entries of the turn.
fn entry_of(group: GroupId, decision: &Decision, ranges: impl FnOnce() -> Vec<SeqRange>) -> Option<Entry> {
    Some(match decision {
        Decision::Leased { seqs, terms, .. } => {
            let Terms { granted: at, deadline, bound, grant, .. } = *terms;
            match bound {
                Bound::Connection => Entry::Handed { group, at, ranges: ranges() },
                Bound::Clock => {
                    let runs = vec![LeasedRun { range: *seqs, grant }];
                    Entry::Leased { group, at, duration: deadline.since(at), runs }
                }
            }
        }
        Decision::Acked(_) => Entry::Acked { group, ranges: ranges() },
        Decision::Ended { how, .. } => Entry::Skipped { group, how: *how, ranges: ranges() },
        Decision::Failed(message) => {
            Entry::Failed { group, at: message.failure.at, messages: vec![message.clone()] }
        }
        Decision::Parked(message) => {
            Entry::Parked { group, at: message.failure.at, messages: vec![message.clone()] }
        }
        Decision::Returned(_) => Entry::Returned { group, ranges: ranges() },
        Decision::Snoozed { at, until, .. } => {
            Entry::Snoozed { group, at: *at, until: *until, ranges: ranges() }
        }
        Decision::KeyFound { seq, key } => Entry::KeysFound { group, keys: vec![(*seq, *key)] },
        Decision::Moving { route, .. } => Entry::Moving { group, route: route.clone(), seqs: ranges() },
        Decision::Sent { route, .. } => Entry::Sent { group, route: route.clone(), ranges: ranges() },
        Decision::Stayed(_) => Entry::Stayed { group, ranges: ranges() },
        Decision::Replayed { job, .. } => Entry::Replayed { group, job: *job, ranges: ranges() },
        Decision::Discarded { job, .. } => Entry::Discarded { group, job: *job, ranges: ranges() },
        Decision::JobPassed { job, .. } => Entry::JobPassed { group, job: *job, ranges: ranges() },
        Decision::Extended { at, deadline, bound: Bound::Clock, .. } => {
            Entry::Extended { group, at: *at, deadline: *deadline, ranges: ranges() }
        }
        Decision::Extended { bound: Bound::Connection, .. }
        | Decision::Ready(_)
        | Decision::JobStarted { .. }
        | Decision::JobEnded { .. }
        | Decision::Paused(_)
        | Decision::Reset { .. }
        | Decision::Purged { .. } => return None,
    })
}
