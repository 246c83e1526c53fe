//! How leases end: by the consumer's word, and what follows from a failure.

use std::sync::Arc;
use std::time::Duration;

use crate::entry::{Cause, Ending, FailedMessage, Failure, ParkedMessage, Route};
use crate::group::decision::Decision;
use crate::group::standing::{Last, Leased, State};
use crate::group::{Group, Lease};
use crate::settings::{MoveTerms, OnExhausted, YEAR};
use crate::stream::Stream;
use crate::types::{Attempt, Seq, SeqRange, StreamName, Timestamp};

/// How a consumer ends a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'a> {
    Ack,
    /// Offer it again: after `delay`, or as the group's backoff says. When its retries are used up, what
    /// the group does with such messages is done.
    Retry {
        delay: Option<Duration>,
    },
    Park,
    Skip,
    /// Settled here and published there, in one step.
    Move(&'a StreamName),
    /// Given back untouched: the attempt does not count, and nothing has failed. The message goes out again at
    /// once, or after `delay`.
    Return {
        delay: Option<Duration>,
    },
}

/// What a consumer says about some leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settlement<'a> {
    pub outcome: Outcome<'a>,
    pub reason: Option<&'a str>,
    /// An ack for a lapsed lease counts while nobody has leased the message since.
    pub late: bool,
    /// For how long the whole group should hand out nothing, at most [`REST_MAX`]. Counts only if one of the
    /// leases is held, so that nobody stops a group in which he holds nothing.
    pub rest: Option<Duration>,
}

/// The longest that one word of a consumer keeps its group from handing out.
pub const REST_MAX: Duration = Duration::from_secs(300);

impl<'a> From<Outcome<'a>> for Settlement<'a> {
    fn from(outcome: Outcome<'a>) -> Settlement<'a> {
        Settlement { outcome, reason: None, late: false, rest: None }
    }
}

/// More time for leases, or less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extension {
    /// Counted from now. None at all ends them.
    pub by: Duration,
    /// How long a lease may last altogether, from when its message was handed out.
    pub total_max: Option<Duration>,
}

impl From<Duration> for Extension {
    fn from(by: Duration) -> Extension {
        Extension { by, total_max: None }
    }
}

/// What became of a lease that a consumer wanted to end, or to prolong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
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

/// Why an answer changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotYours {
    /// There never was such a lease in this group, as far as anybody knows.
    Unknown,
    /// It was the last lease of its message, and nobody holds that now. A late ack would count.
    Lapsed,
    /// It is over, and the message goes on without it: handed out again since, given back, or begun anew. A
    /// lease that hung on a connection leaves no trace, and is said to be this also where it only lapsed.
    Superseded,
    /// The group is done with the message, or it is on its way to another stream.
    Gone,
}

/// Whose failure it was, and why.
#[derive(Debug, Clone)]
pub(super) struct Blame {
    pub(super) cause: Cause,
    pub(super) reason: Option<Arc<str>>,
    pub(super) consumer: Option<Arc<str>>,
}

/// How many leases at the front follow each other.
fn alike(leases: &[Lease]) -> u64 {
    let first = leases[0];
    let follows = |(lease, n): &(&Lease, u64)| {
        lease.epoch == first.epoch && lease.seq == first.seq.plus(*n) && lease.grant == first.grant.plus(*n)
    };
    leases.iter().zip(0..).take_while(follows).count() as u64
}

impl Group {
    /// Ends leases. One that is no longer current changes nothing: after a timeout the message may be
    /// with another consumer, and a late answer from the first is ordinary.
    pub(crate) fn settle(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        leases: &[Lease],
        settlement: Settlement<'_>,
        results: &mut Vec<Settled>,
    ) {
        let reason = self.reason(settlement.reason);
        let mut rest = leases;
        while let Some(first) = rest.first() {
            let Some((run, lease)) = self.lease_at(*first) else {
                results.push(self.settle_late(now, stream, *first, settlement));
                rest = &rest[1..];
                continue;
            };
            if let Some(time) = settlement.rest {
                self.rest(now, time);
            }
            let seqs = SeqRange::starting(run.first, run.count().min(alike(rest)));
            let count = seqs.count() as usize;
            // One who has left is forgotten with the last of what it held.
            let holder = lease.holder.filter(|_| settlement.outcome != Outcome::Ack);
            let consumer = holder.and_then(|holder| self.members.name(holder));
            self.end_lease(now, stream, seqs, &lease);
            match settlement.outcome {
                Outcome::Ack => {
                    if let Some(holder) = lease.holder {
                        self.members.count_acked(holder, seqs.count());
                    }
                    self.acked(now, stream, seqs);
                    results.resize(results.len() + count, Settled::Acked);
                }
                Outcome::Return { delay: Some(delay) } => {
                    self.snooze(now, stream, seqs, delay);
                    results.resize(results.len() + count, Settled::Returned);
                }
                Outcome::Return { delay: None } => {
                    self.decide(Decision::Returned(seqs));
                    self.counters.returned += seqs.count();
                    self.offer_returned(now, stream, seqs);
                    results.resize(results.len() + count, Settled::Returned);
                }
                other => {
                    let blame = Blame { cause: Cause::Nack, reason: reason.clone(), consumer };
                    if let Some(holder) = lease.holder {
                        self.members.count_failed(holder, seqs.count());
                    }
                    for seq in seqs.seqs() {
                        let settled = self.end(now, stream, seq, lease.attempt, other, blame.clone());
                        results.push(settled);
                    }
                }
            }
            rest = &rest[count..];
        }
    }

    /// Hands out nothing for a while. Whoever asks for it knows what is wrong now, and another who asks for less
    /// does not know better: a rest is only ever made longer.
    fn rest(&mut self, now: Timestamp, time: Duration) {
        self.paces.rest_until = self.paces.rest_until.max(now + time.min(REST_MAX));
    }

    /// What a consumer wants for one message that it does not ack.
    fn end(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        seq: Seq,
        attempt: Attempt,
        outcome: Outcome<'_>,
        blame: Blame,
    ) -> Settled {
        match outcome {
            Outcome::Ack | Outcome::Return { .. } => unreachable!("these are settled by runs"),
            Outcome::Retry { delay } => self.fail(now, stream, seq, attempt, delay, blame),
            Outcome::Park => self.park(now, stream, seq, attempt, blame),
            Outcome::Skip => {
                self.done(now, stream, SeqRange::one(seq), Ending::Skipped);
                Settled::Skipped
            }
            Outcome::Move(to) => self.start_move(stream, seq, to, MoveTerms::default()),
        }
    }

    /// An answer to a lease that is over. It may still count, if the message is nobody else's.
    fn settle_late(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        lease: Lease,
        settlement: Settlement<'_>,
    ) -> Settled {
        let why = self.why_not(stream, lease);
        let wanted = settlement.late && settlement.outcome == Outcome::Ack;
        if !wanted || why != NotYours::Lapsed {
            return Settled::NotYours(why);
        }
        let (_, state) = self.ledger.standing().run_at(lease.seq).expect("what has lapsed is in process");
        self.withdraw(stream, lease.seq, state);
        self.acked(now, stream, SeqRange::one(lease.seq));
        Settled::Acked
    }

    /// Why a lease is not the one that its message is held on.
    fn why_not(&self, stream: &Stream, lease: Lease) -> NotYours {
        let seq = lease.seq;
        if seq == Seq::START || seq > stream.last {
            return NotYours::Unknown;
        }
        if self.ledger.is_settled(seq) {
            return NotYours::Gone;
        }
        // What a sweep has not come to yet is over all the same.
        let run = self.ledger.standing().run_at(seq).filter(|_| !self.ledger.is_swept(seq));
        match run.map(|(_, state)| state) {
            Some(State::Moving { .. }) => NotYours::Gone,
            Some(state @ (State::Ready { .. } | State::Waiting { .. }))
                if state.last() == Some(Last { epoch: lease.epoch, grant: lease.grant }) =>
            {
                NotYours::Lapsed
            }
            _ => NotYours::Superseded,
        }
    }

    pub(crate) fn extend(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        leases: &[Lease],
        extension: Extension,
        results: &mut Vec<Settled>,
    ) {
        let deadline = now + extension.by.min(YEAR);
        let mut rest = leases;
        while let Some(first) = rest.first() {
            let Some((run, lease)) = self.lease_at(*first) else {
                results.push(Settled::NotYours(self.why_not(stream, *first)));
                rest = &rest[1..];
                continue;
            };
            let seqs = SeqRange::starting(run.first, run.count().min(alike(rest)));
            if extension.total_max.is_some_and(|most| deadline > lease.granted + most) {
                results.resize(results.len() + seqs.count() as usize, Settled::TooLong);
                rest = &rest[seqs.count() as usize..];
                continue;
            }
            self.timers.end_lease(&lease, seqs);
            self.decide(Decision::Extended { seqs, at: now, deadline, bound: lease.bound });
            self.timers.lease(&Leased { deadline, ..lease }, seqs);
            results.resize(results.len() + seqs.count() as usize, Settled::Extended);
            rest = &rest[seqs.count() as usize..];
        }
    }

    fn acked(&mut self, now: Timestamp, stream: &Stream, seqs: SeqRange) {
        self.decide(Decision::Acked(seqs));
        self.counters.acked += seqs.count();
        self.counters.last_processed = self.counters.last_processed.max(seqs.last);
        self.checkpoint.settled(now, seqs.count(), &self.settings.checkpoint);
        self.keys_gone(stream, seqs);
    }

    /// The group is done with messages that nobody acked. They are with nobody.
    pub(super) fn done(&mut self, now: Timestamp, stream: &Stream, seqs: SeqRange, how: Ending) {
        self.decide(Decision::Ended { seqs, how });
        let counter = match how {
            Ending::Skipped => &mut self.counters.skipped,
            Ending::Expired => &mut self.counters.expired,
            Ending::Dropped => &mut self.counters.dropped,
            Ending::Moved => &mut self.counters.moved,
        };
        *counter += seqs.count();
        self.counters.last_processed = self.counters.last_processed.max(seqs.last);
        self.checkpoint.settled(now, seqs.count(), &self.settings.checkpoint);
        self.keys_gone(stream, seqs);
    }

    /// Takes the messages out of their holder's hands and off the clock. What they are next is up to the
    /// caller.
    pub(super) fn end_lease(&mut self, now: Timestamp, stream: &Stream, seqs: SeqRange, lease: &Leased) {
        let counts_bytes = lease.holder.is_some_and(|holder| self.members.counts_bytes(holder));
        let bytes = if counts_bytes { stream.timeline.bytes(seqs) } else { 0 };
        self.members.took_back(now, lease.holder, seqs, bytes);
        self.timers.end_lease(lease, seqs);
        if let Some(keys) = &mut self.keys {
            for seq in seqs.seqs() {
                keys.back(seq);
            }
        }
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
        blame: Blame,
    ) -> Settled {
        if self.is_expired(stream, seq) {
            self.done(now, stream, SeqRange::one(seq), Ending::Expired);
            return Settled::Expired;
        }
        if self.settings.is_exhausted(attempt) {
            return match self.settings.on_exhausted.clone() {
                OnExhausted::Park => self.park(now, stream, seq, attempt, blame),
                OnExhausted::Skip => {
                    self.done(now, stream, SeqRange::one(seq), Ending::Skipped);
                    Settled::Skipped
                }
                OnExhausted::Move(to) => self.start_move(stream, seq, &to, self.settings.move_terms),
            };
        }
        let until = match delay {
            Some(delay) => now + delay.min(YEAR),
            None => self.settings.backoff.ready_at(now, seq, attempt),
        };
        self.try_again(now, stream, seq, attempt, until, blame)
    }

    /// Offers a message again that was not finished, from `until` on.
    fn try_again(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        seq: Seq,
        attempt: Attempt,
        until: Timestamp,
        blame: Blame,
    ) -> Settled {
        let Blame { cause, reason, consumer } = blame;
        let failure = Failure { at: now, attempt: attempt.0, cause, reason, consumer };
        self.decide(Decision::Failed(FailedMessage { seq, until, failure }));
        self.timers.wait(until, seq);
        self.counters.retried += 1;
        self.refresh_key_of(stream, seq);
        Settled::Retrying
    }

    /// Messages are given back for later. They wait like such that have failed, but nothing is held against them.
    fn snooze(&mut self, now: Timestamp, stream: &Stream, seqs: SeqRange, delay: Duration) {
        let until = now + delay.min(YEAR);
        self.counters.returned += seqs.count();
        for seq in seqs.seqs() {
            if self.is_expired(stream, seq) {
                // The count of its attempts goes with it, as with all that is given back too late.
                self.done(now, stream, SeqRange::one(seq), Ending::Expired);
                continue;
            }
            self.decide(Decision::Snoozed { seqs: SeqRange::one(seq), at: now, until });
            self.timers.wait(until, seq);
            self.refresh_key_of(stream, seq);
        }
    }

    /// Sets a message aside.
    pub(super) fn park(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        seq: Seq,
        attempt: Attempt,
        blame: Blame,
    ) -> Settled {
        let Blame { cause, reason, consumer } = blame;
        let failure = Failure { at: now, attempt: attempt.0, cause, reason, consumer };
        let key = self.keys.as_ref().and_then(|keys| keys.key(seq));
        self.decide(Decision::Parked(ParkedMessage { seq, key, failure }));
        self.counters.parked += 1;
        self.counters.last_processed = self.counters.last_processed.max(seq);
        self.checkpoint.settled(now, 1, &self.settings.checkpoint);
        self.hold_key_of(seq, key);
        self.keys_gone(stream, SeqRange::one(seq));
        Settled::Parked
    }

    fn start_move(&mut self, stream: &Stream, seq: Seq, to: &StreamName, terms: MoveTerms) -> Settled {
        let route = Route::Alone { to: to.clone(), terms };
        self.decide(Decision::Moving { seqs: SeqRange::one(seq), route });
        self.refresh_key_of(stream, seq);
        Settled::Moving
    }

    /// Where a message that is to be moved goes, and how often it was handed out.
    pub(crate) fn moving(&self, seq: Seq) -> Option<(&Route, u32)> {
        let route = self.ledger.moving().get(&seq).filter(|_| !self.ledger.is_swept(seq))?;
        Some((route, self.attempts(seq).unwrap_or(0)))
    }

    /// The message is in its new stream.
    pub(crate) fn moved(&mut self, now: Timestamp, stream: &Stream, seq: Seq) {
        self.moves.ended(seq);
        self.done(now, stream, SeqRange::one(seq), Ending::Moved);
    }

    /// There is no room for the message just now. It is asked for again later.
    pub(crate) fn put_off_move(&mut self, now: Timestamp, seq: Seq) {
        if self.moving(seq).is_some() {
            self.moves.put_off(now, seq);
        }
    }

    /// The message cannot be moved, and is set aside.
    pub(crate) fn park_instead(&mut self, now: Timestamp, stream: &Stream, seq: Seq, why: &str) {
        let Some((_, attempts)) = self.moving(seq) else { return };
        let blame = self.not_moved(seq, why);
        self.park(now, stream, seq, Attempt(attempts), blame);
    }

    /// The message cannot be moved, and stays: it is offered again, and goes when it fails again and can go then.
    pub(crate) fn keep_instead(&mut self, now: Timestamp, stream: &Stream, seq: Seq, why: &str) {
        let Some((_, attempts)) = self.moving(seq) else { return };
        let (attempt, blame) = (Attempt(attempts), self.not_moved(seq, why));
        if self.is_expired(stream, seq) {
            self.done(now, stream, SeqRange::one(seq), Ending::Expired);
            return;
        }
        let until = self.settings.backoff.ready_at(now, seq, attempt);
        self.try_again(now, stream, seq, attempt, until, blame);
    }

    fn not_moved(&mut self, seq: Seq, why: &str) -> Blame {
        self.moves.ended(seq);
        Blame { cause: Cause::Nack, reason: self.reason(Some(why)), consumer: None }
    }

    /// Takes back what is ready or waiting, because it is not to be offered.
    pub(super) fn withdraw(&mut self, stream: &Stream, seq: Seq, state: State) {
        match state {
            State::Waiting { until, .. } => self.timers.stop_waiting(until, seq),
            State::Ready { .. } => self.take_off_offer(stream, seq),
            State::Leased(_) | State::Moving { .. } => unreachable!("it is with somebody"),
        }
    }

    /// Whether a message may not be offered any more. One that was replayed is what somebody asked for.
    pub(super) fn is_expired(&self, stream: &Stream, seq: Seq) -> bool {
        stream.is_expired(seq) && !self.ledger.replayed().contains_key(&seq)
    }
}
