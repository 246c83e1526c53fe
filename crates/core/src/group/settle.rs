//! How leases end: by the consumer's word, and what follows from a failure.

use std::sync::Arc;
use std::time::Duration;

use crate::entry::{Cause, Ending, FailedMessage, Failure, MoveReason, ParkedMessage, Route};
use crate::fault::{Fault, planted};
use crate::group::decision::Decision;
use crate::group::standing::{LastLease, Leased, State};
use crate::group::{Group, Lease};
use crate::settings::{MoveTerms, OnExhausted, YEAR, is_exhausted, ready_at};
use crate::stream::Stream;
use crate::types::{Attempt, Seq, SeqRange, StreamName, Timestamp};

/// Leases that follow each other: of one epoch, with consecutive positions and grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseRun {
    pub first: Lease,
    pub count: u32,
}

impl LeaseRun {
    pub fn one(lease: Lease) -> LeaseRun {
        LeaseRun { first: lease, count: 1 }
    }

    /// The lease that follows the first after `n`.
    pub fn nth(&self, n: u64) -> Lease {
        let Lease { epoch, seq, grant } = self.first;
        Lease { epoch, seq: seq.plus(n), grant: grant.plus(n) }
    }

    pub fn leases(self) -> impl Iterator<Item = Lease> {
        (0..u64::from(self.count)).map(move |n| self.nth(n))
    }

    /// The run without its first `count` leases.
    fn after(&self, count: u32) -> LeaseRun {
        LeaseRun { first: self.nth(count.into()), count: self.count - count }
    }

    /// Joins leases that follow each other.
    pub fn join(leases: impl IntoIterator<Item = Lease>) -> Vec<LeaseRun> {
        let mut runs: Vec<LeaseRun> = Vec::new();
        for lease in leases {
            match runs.last_mut() {
                Some(run) if run.nth(run.count.into()) == lease => run.count += 1,
                _ => runs.push(LeaseRun::one(lease)),
            }
        }
        runs
    }
}

/// What a consumer wants done with messages that it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verb {
    Ack,
    /// Offer it again: after `delay`, or as the group's backoff says. Once its retries are used up, it is parked,
    /// skipped or moved, as the group's settings say.
    Retry {
        delay: Option<Duration>,
    },
    Park,
    Skip,
    /// Settled here and published there, in one step.
    Move(StreamName),
    /// Given back untouched: the attempt does not count, and nothing has failed. The message goes out again at
    /// once, or after `delay`.
    Return {
        delay: Option<Duration>,
    },
    /// More time, or less, counted from now; none at all ends the lease. With `total_max` a lease that would last
    /// longer than that altogether, from when its message was handed out, is left as it is: [`Outcome::TooLong`].
    /// Settles nothing.
    Extend {
        by: Duration,
        total_max: Option<Duration>,
    },
}

/// A consumer's request about some leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    pub verb: Verb,
    /// Shown with the failure.
    pub reason: Option<String>,
    /// An ack for a lapsed lease counts as long as the message has not been leased again.
    pub late: bool,
    /// For how long the whole group should hand out nothing, at most [`REST_MAX`]. Counts only if one of the
    /// leases is held, so that a consumer cannot stop a group in which it holds nothing. Not with [`Verb::Extend`].
    pub rest: Option<Duration>,
}

/// The longest that one word of a consumer keeps its group from handing out.
pub const REST_MAX: Duration = Duration::from_secs(300);

impl From<Verb> for Settlement {
    fn from(verb: Verb) -> Settlement {
        Settlement { verb, reason: None, late: false, rest: None }
    }
}

/// The outcome of a consumer's request to end or prolong a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Acked,
    Retrying,
    /// As asked, or because its retries were used up.
    Parked,
    Skipped,
    /// On its way to another stream.
    Moving,
    /// It will not be offered again, since its time is over.
    Expired,
    Extended,
    /// It would last longer than it may altogether. Nothing was changed.
    TooLong,
    /// Given back, as if it had never been handed out.
    Returned,
    /// The lease is not the one that its message is held on. Nothing was changed.
    NotYours(NotYours),
}

/// The outcome of some leases that follow each other in a settlement, with how many they are.
pub type OutcomeRun = (Outcome, u32);

/// Adds an outcome. It joins the last run if it is the same.
fn push_outcome(outcomes: &mut Vec<OutcomeRun>, outcome: Outcome, more: u32) {
    match outcomes.last_mut() {
        Some((last, count)) if *last == outcome => *count += more,
        _ => outcomes.push((outcome, more)),
    }
}

/// Outcomes one by one, for answers that list them so.
pub fn each_outcome(outcomes: &[OutcomeRun]) -> impl Iterator<Item = Outcome> + '_ {
    outcomes.iter().flat_map(|&(outcome, count)| (0..count).map(move |_| outcome))
}

/// Goes through the leases of a settlement by the longest runs that have one outcome each.
pub fn with_outcomes(leases: &[LeaseRun], outcomes: &[OutcomeRun], mut each: impl FnMut(LeaseRun, Outcome)) {
    let mut outcomes = outcomes.iter().copied();
    let mut left = 0;
    let mut outcome = None;
    for run in leases {
        let mut rest = *run;
        while rest.count > 0 {
            if left == 0 {
                let Some((next, count)) = outcomes.next() else { return };
                (outcome, left) = (Some(next), count);
            }
            let count = rest.count.min(left);
            if let Some(outcome) = outcome.filter(|_| count > 0) {
                each(LeaseRun { count, ..rest }, outcome);
            }
            rest = rest.after(count);
            left -= count;
        }
    }
}

/// Why an answer changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotYours {
    /// The group does not know a lease with these numbers.
    Unknown,
    /// It was the last lease of its message, which no consumer holds now. A late ack would count.
    Lapsed,
    /// It is over, and the message goes on without it: handed out again since, given back, or begun anew. A
    /// lease that hung on a connection leaves no trace, and is said to be this also where it only lapsed.
    Superseded,
    /// The group is done with the message, or it is on its way to another stream.
    Gone,
}

/// Whose failure it was, and why.
#[derive(Debug, Clone)]
pub(super) struct FailureSource {
    pub(super) cause: Cause,
    pub(super) reason: Option<Arc<str>>,
    pub(super) consumer: Option<Arc<str>>,
}

impl FailureSource {
    /// A consumer need not have a name, and then the record has none.
    fn failure(self, at: Timestamp, attempt: Attempt) -> Failure {
        let FailureSource { cause, reason, consumer } = self;
        let consumer = consumer.filter(|name| !name.is_empty());
        Failure { at, attempt: attempt.0, cause, reason, consumer }
    }
}

impl Group {
    /// Ends leases, or prolongs them. One that is no longer current changes nothing: after a timeout the message may
    /// be with another consumer, and a late answer from the first is ordinary.
    pub(crate) fn settle(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        leases: &[LeaseRun],
        settlement: &Settlement,
        outcomes: &mut Vec<OutcomeRun>,
    ) {
        if let Verb::Extend { by, total_max } = settlement.verb {
            return self.extend(now, stream, leases, by, total_max, outcomes);
        }
        let reason = self.reason(settlement.reason.as_deref());
        for run in leases {
            let mut rest = *run;
            while rest.count > 0 {
                let Some((held, lease)) = self.lease_at(rest.first) else {
                    push_outcome(outcomes, self.settle_late(now, stream, rest.first, settlement), 1);
                    rest = rest.after(1);
                    continue;
                };
                if let Some(time) = settlement.rest {
                    self.rest(now, time);
                }
                let seqs = SeqRange::starting(held.first, held.count().min(rest.count.into()));
                let count = seqs.count() as u32;
                self.settle_held(now, stream, seqs, &lease, settlement, &reason, outcomes);
                rest = rest.after(count);
            }
        }
    }

    /// Ends leases that are held together.
    #[expect(clippy::too_many_arguments, reason = "the parts of one loop")]
    fn settle_held(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        seqs: SeqRange,
        lease: &Leased,
        settlement: &Settlement,
        reason: &Option<Arc<str>>,
        outcomes: &mut Vec<OutcomeRun>,
    ) {
        let count = seqs.count() as u32;
        // A consumer that has left is forgotten with the last message that it held.
        let holder = lease.holder.filter(|_| settlement.verb != Verb::Ack);
        let consumer = holder.and_then(|holder| self.members.name(holder));
        self.end_lease(now, stream, seqs, lease);
        match &settlement.verb {
            Verb::Ack => {
                if let Some(holder) = lease.holder {
                    self.members.count_acked(holder, seqs.count());
                }
                self.acked(now, stream, seqs);
                push_outcome(outcomes, Outcome::Acked, count);
            }
            Verb::Return { delay: Some(delay) } => {
                self.snooze(now, stream, seqs, *delay);
                push_outcome(outcomes, Outcome::Returned, count);
            }
            Verb::Return { delay: None } => {
                self.decide(Decision::Returned(seqs));
                self.counters.returned += seqs.count();
                self.offer_returned(now, stream, seqs);
                push_outcome(outcomes, Outcome::Returned, count);
            }
            other => {
                let source = FailureSource { cause: Cause::Nack, reason: reason.clone(), consumer };
                if let Some(holder) = lease.holder {
                    self.members.count_failed(holder, seqs.count());
                }
                for seq in seqs.seqs() {
                    let outcome = self.end(now, stream, seq, lease.attempt, other, source.clone());
                    push_outcome(outcomes, outcome, 1);
                }
            }
        }
    }

    /// Hands out nothing for a while. A later request for a shorter rest does not cut it: a rest is only ever
    /// made longer.
    fn rest(&mut self, now: Timestamp, time: Duration) {
        self.paces.rest_until = self.paces.rest_until.max(now + time.min(REST_MAX));
    }

    /// Settles one message in another way than by an ack.
    fn end(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        seq: Seq,
        attempt: Attempt,
        verb: &Verb,
        source: FailureSource,
    ) -> Outcome {
        match verb {
            Verb::Ack | Verb::Return { .. } | Verb::Extend { .. } => unreachable!("these are done by runs"),
            Verb::Retry { delay } => self.fail(now, stream, seq, attempt, *delay, source),
            Verb::Park => self.park(now, stream, seq, attempt, source),
            Verb::Skip => {
                self.done(now, stream, SeqRange::one(seq), Ending::Skipped);
                Outcome::Skipped
            }
            Verb::Move(to) => {
                let (to, terms, why) = (to.clone(), MoveTerms::default(), MoveReason::Asked);
                self.start_move(stream, seq, Route::Alone { to, terms, why })
            }
        }
    }

    /// An answer to a lease that is over. It may still count, if no other consumer holds the message.
    fn settle_late(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        lease: Lease,
        settlement: &Settlement,
    ) -> Outcome {
        let why = self.why_not(stream, lease);
        let wanted = settlement.late && settlement.verb == Verb::Ack;
        if !wanted || why != NotYours::Lapsed {
            return Outcome::NotYours(why);
        }
        let (_, state) = self.ledger.standing().run_at(lease.seq).expect("a lapsed lease is in the ledger");
        self.withdraw(stream, lease.seq, state);
        self.acked(now, stream, SeqRange::one(lease.seq));
        Outcome::Acked
    }

    /// Why a lease is not the one that its message is held on.
    pub(crate) fn why_not(&self, stream: &Stream, lease: Lease) -> NotYours {
        let seq = lease.seq;
        if seq == Seq::START || seq > stream.last {
            return NotYours::Unknown;
        }
        if self.ledger.is_settled(seq) {
            return NotYours::Gone;
        }
        // Entries that a sweep has not come to yet are over all the same.
        let run = self.ledger.standing().run_at(seq).filter(|_| !self.ledger.is_swept(seq));
        match run.map(|(_, state)| state) {
            Some(State::Moving { .. }) => NotYours::Gone,
            Some(state @ (State::Ready { .. } | State::Waiting { .. }))
                if state.last() == Some(LastLease { epoch: lease.epoch, grant: lease.grant }) =>
            {
                NotYours::Lapsed
            }
            _ => NotYours::Superseded,
        }
    }

    fn extend(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        leases: &[LeaseRun],
        by: Duration,
        total_max: Option<Duration>,
        outcomes: &mut Vec<OutcomeRun>,
    ) {
        let deadline = now + by.min(YEAR);
        for run in leases {
            let mut rest = *run;
            while rest.count > 0 {
                let Some((held, lease)) = self.lease_at(rest.first) else {
                    push_outcome(outcomes, Outcome::NotYours(self.why_not(stream, rest.first)), 1);
                    rest = rest.after(1);
                    continue;
                };
                let seqs = SeqRange::starting(held.first, held.count().min(rest.count.into()));
                let count = seqs.count() as u32;
                rest = rest.after(count);
                if total_max.is_some_and(|most| deadline > lease.granted + most) {
                    push_outcome(outcomes, Outcome::TooLong, count);
                    continue;
                }
                self.timers.end_lease(&lease, seqs);
                self.decide(Decision::Extended { seqs, at: now, deadline, bound: lease.bound });
                self.timers.lease(&Leased { deadline, ..lease }, seqs);
                push_outcome(outcomes, Outcome::Extended, count);
            }
        }
    }

    fn acked(&mut self, now: Timestamp, stream: &Stream, seqs: SeqRange) {
        self.decide(Decision::Acked(seqs));
        self.counters.acked += seqs.count();
        self.counters.last_processed = self.counters.last_processed.max(seqs.last);
        self.checkpoint.settled(now, seqs.count(), &self.settings.checkpoint);
        let (candidates, view) = self.candidates(stream);
        candidates.gone(view, seqs);
    }

    /// The group is done with messages that were not acked. No consumer may hold them.
    pub(super) fn done(&mut self, now: Timestamp, stream: &Stream, seqs: SeqRange, how: Ending) {
        self.decide(Decision::Ended { seqs, how });
        self.ended(now, stream, seqs, how);
    }

    /// The time of messages is over, or there is no room for them. The group is done with them, and they go to another
    /// stream if its settings say so. No consumer may hold them.
    pub(super) fn let_go(&mut self, now: Timestamp, stream: &Stream, seqs: SeqRange, how: Ending) {
        let (then, why) = match how {
            Ending::Dropped => (&self.settings.on_dropped, MoveReason::Dropped),
            _ => (&self.settings.on_expired, MoveReason::Expired),
        };
        let Some(to) = then.destination().filter(|_| !planted(Fault::EndsVanish)) else {
            return self.done(now, stream, seqs, how);
        };
        let route = Route::Alone { to: to.clone(), terms: MoveTerms::default(), why };
        self.decide(Decision::Sent { seqs, route });
        self.ended(now, stream, seqs, how);
    }

    fn ended(&mut self, now: Timestamp, stream: &Stream, seqs: SeqRange, how: Ending) {
        let counter = match how {
            Ending::Skipped => &mut self.counters.skipped,
            Ending::Expired => &mut self.counters.expired,
            Ending::Dropped => &mut self.counters.dropped,
            Ending::Moved => &mut self.counters.moved,
        };
        *counter += seqs.count();
        self.counters.last_processed = self.counters.last_processed.max(seqs.last);
        self.checkpoint.settled(now, seqs.count(), &self.settings.checkpoint);
        let (candidates, view) = self.candidates(stream);
        candidates.gone(view, seqs);
    }

    /// Takes the messages out of their holder's hands and off the clock. The caller decides their next
    /// state.
    pub(super) fn end_lease(&mut self, now: Timestamp, stream: &Stream, seqs: SeqRange, lease: &Leased) {
        let counts_bytes = lease.holder.is_some_and(|holder| self.members.counts_bytes(holder));
        let bytes = if counts_bytes { stream.timeline.bytes(seqs) } else { 0 };
        self.members.took_back(now, lease.holder, seqs, bytes);
        self.timers.end_lease(lease, seqs);
        self.candidates.released(seqs);
    }

    /// A message was not finished: offers it again later, or does with it what the group does with those
    /// whose retries are used up.
    pub(super) fn fail(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        seq: Seq,
        attempt: Attempt,
        delay: Option<Duration>,
        source: FailureSource,
    ) -> Outcome {
        if self.is_expired(stream, seq) {
            self.let_go(now, stream, SeqRange::one(seq), Ending::Expired);
            return Outcome::Expired;
        }
        if is_exhausted(self.settings.max_retries, attempt) {
            return match self.settings.on_exhausted.clone() {
                OnExhausted::Park => self.park(now, stream, seq, attempt, source),
                OnExhausted::Skip => {
                    self.done(now, stream, SeqRange::one(seq), Ending::Skipped);
                    Outcome::Skipped
                }
                OnExhausted::Move(to) => {
                    let (terms, why) = (self.settings.move_terms, MoveReason::Exhausted);
                    self.start_move(stream, seq, Route::Alone { to, terms, why })
                }
            };
        }
        let until = match delay {
            Some(delay) => now + delay.min(YEAR),
            None => ready_at(&self.settings.backoff, now, seq, attempt),
        };
        self.try_again(now, stream, seq, attempt, until, source)
    }

    /// Offers a message again that was not finished, from `until` on.
    fn try_again(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        seq: Seq,
        attempt: Attempt,
        until: Timestamp,
        source: FailureSource,
    ) -> Outcome {
        let failure = source.failure(now, attempt);
        self.decide(Decision::Failed(FailedMessage { seq, until, failure }));
        self.timers.wait(until, seq);
        self.counters.retried += 1;
        self.key_changed(stream, seq);
        Outcome::Retrying
    }

    /// Messages are given back for later. They wait like failed messages, but no failure is counted.
    fn snooze(&mut self, now: Timestamp, stream: &Stream, seqs: SeqRange, delay: Duration) {
        let until = now + delay.min(YEAR);
        self.counters.returned += seqs.count();
        for seq in seqs.seqs() {
            if self.is_expired(stream, seq) {
                // The count of its attempts goes with it, as with all that is given back too late.
                self.let_go(now, stream, SeqRange::one(seq), Ending::Expired);
                continue;
            }
            self.decide(Decision::Snoozed { seqs: SeqRange::one(seq), at: now, until });
            self.timers.wait(until, seq);
            self.key_changed(stream, seq);
        }
    }

    /// Sets a message aside.
    pub(super) fn park(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        seq: Seq,
        attempt: Attempt,
        source: FailureSource,
    ) -> Outcome {
        let failure = source.failure(now, attempt);
        let key = self.candidates.key(seq);
        self.decide(Decision::Parked(ParkedMessage { seq, key, failure }));
        self.counters.parked += 1;
        self.counters.last_processed = self.counters.last_processed.max(seq);
        self.checkpoint.settled(now, 1, &self.settings.checkpoint);
        let (candidates, view) = self.candidates(stream);
        candidates.parked(view, seq, key);
        candidates.gone(view, SeqRange::one(seq));
        Outcome::Parked
    }

    fn start_move(&mut self, stream: &Stream, seq: Seq, route: Route) -> Outcome {
        self.decide(Decision::Moving { seqs: SeqRange::one(seq), route });
        self.key_changed(stream, seq);
        Outcome::Moving
    }

    /// Where a message that is to be moved goes, and how often it was handed out.
    pub(crate) fn moving(&self, seq: Seq) -> Option<(Route, u32)> {
        if let Some(parked) = self.ledger.parked().get(seq) {
            return Some((self.parked_route(seq)?, parked.attempts));
        }
        match self.ledger.moving().get(&seq).filter(|_| !self.ledger.is_swept(seq)) {
            Some(route) => Some((route.clone(), self.attempts(seq).unwrap_or(0))),
            None => self.ledger.outgoing().get(seq).map(|(route, attempts)| (route.clone(), attempts)),
        }
    }

    /// The message is in its new stream.
    pub(crate) fn moved(&mut self, now: Timestamp, stream: &Stream, seq: Seq) {
        if let Some(job) = self.parked_route(seq).and_then(|route| route.job()) {
            self.parked_moves.ended(seq);
            self.counters.moved += self.take_out(stream, SeqRange::one(seq), job);
            return;
        }
        self.moves_of(seq).ended(seq);
        if self.ledger.outgoing().contains(seq) {
            // It was counted when its time was over, or when it was dropped.
            self.decide(Decision::Ended { seqs: SeqRange::one(seq), how: Ending::Moved });
        } else {
            self.done(now, stream, SeqRange::one(seq), Ending::Moved);
        }
    }

    /// There is no room for the message just now. It is asked for again later.
    pub(crate) fn put_off_move(&mut self, now: Timestamp, seq: Seq) {
        if self.moving(seq).is_some() {
            self.moves_of(seq).put_off(now, seq);
        }
    }

    /// The message cannot be moved, and is set aside.
    pub(crate) fn park_instead(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        seq: Seq,
        cause: Cause,
        why: &str,
    ) {
        let Some((_, attempts)) = self.moving(seq) else { return };
        let source = FailureSource { cause, ..self.not_moved(seq, why) };
        self.park(now, stream, seq, Attempt(attempts), source);
    }

    /// The message cannot be moved, and stays: it is offered again, and goes when it fails again and can go then.
    pub(crate) fn keep_instead(&mut self, now: Timestamp, stream: &Stream, seq: Seq, why: &str) {
        let Some((_, attempts)) = self.moving(seq) else { return };
        let (attempt, source) = (Attempt(attempts), self.not_moved(seq, why));
        if self.is_expired(stream, seq) {
            self.let_go(now, stream, SeqRange::one(seq), Ending::Expired);
            return;
        }
        let until = ready_at(&self.settings.backoff, now, seq, attempt);
        self.try_again(now, stream, seq, attempt, until, source);
    }

    fn not_moved(&mut self, seq: Seq, why: &str) -> FailureSource {
        self.moves_of(seq).ended(seq);
        FailureSource { cause: Cause::Nack, reason: self.reason(Some(why)), consumer: None }
    }

    /// Another message may be the first of its key now.
    pub(super) fn key_changed(&mut self, stream: &Stream, seq: Seq) {
        let (candidates, view) = self.candidates(stream);
        candidates.changed(view, seq);
    }

    /// Messages may go now.
    pub(super) fn put_on_offer(&mut self, stream: &Stream, seqs: SeqRange) {
        let (candidates, view) = self.candidates(stream);
        candidates.ready(view, seqs);
    }

    /// A message is not to go after all.
    pub(super) fn take_off_offer(&mut self, stream: &Stream, seq: Seq) {
        let (candidates, view) = self.candidates(stream);
        candidates.withdraw(view, seq);
    }

    /// Takes back a ready or waiting message, because it is not to be offered.
    pub(super) fn withdraw(&mut self, stream: &Stream, seq: Seq, state: State) {
        match state {
            State::Waiting { until, .. } => self.timers.stop_waiting(until, seq),
            State::Ready { .. } => self.take_off_offer(stream, seq),
            State::Leased(_) | State::Moving { .. } => unreachable!("the message is leased or moving"),
        }
    }

    /// Whether a message may not be offered any more. A replayed message may, since an operator asked for it.
    pub(super) fn is_expired(&self, stream: &Stream, seq: Seq) -> bool {
        stream.is_expired(seq) && !self.ledger.replayed().contains_key(&seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Epoch, Grant};

    fn lease(seq: u64, grant: u64) -> Lease {
        Lease { epoch: Epoch(1), seq: Seq(seq), grant: Grant(grant) }
    }

    fn run(seq: u64, grant: u64, count: u32) -> LeaseRun {
        LeaseRun { first: lease(seq, grant), count }
    }

    #[test]
    fn leases_that_follow_each_other_are_joined() {
        let leases = [lease(5, 9), lease(6, 10), lease(7, 20), lease(9, 21), lease(10, 22)];
        let runs = LeaseRun::join(leases);
        assert_eq!(runs, [run(5, 9, 2), run(7, 20, 1), run(9, 21, 2)]);
        assert_eq!(runs.into_iter().flat_map(LeaseRun::leases).collect::<Vec<_>>(), leases);
    }

    #[test]
    fn runs_of_leases_and_of_outcomes_need_not_end_together() {
        let leases = [run(1, 1, 3), run(7, 20, 2)];
        let outcomes = [(Outcome::Acked, 1), (Outcome::Parked, 3), (Outcome::Acked, 1)];
        let mut seen = Vec::new();
        with_outcomes(&leases, &outcomes, |run, outcome| seen.push((run, outcome)));
        let expected = [
            (run(1, 1, 1), Outcome::Acked),
            (run(2, 2, 2), Outcome::Parked),
            (run(7, 20, 1), Outcome::Parked),
            (run(8, 21, 1), Outcome::Acked),
        ];
        assert_eq!(seen, expected);
        assert_eq!(each_outcome(&outcomes).count(), 5);
    }
}
