//! Messages on their way to another stream: for a job, for a consumer, because their retries are used up, or because
//! they have expired or were dropped.
//!
//! The messages of a job are fixed when it starts: all that are not settled then. It goes from the oldest on and
//! puts ready messages on their way. A message that a consumer holds, or whose time has not come, is passed over and
//! stays; messages that were settled meanwhile are passed over too. As with every move, a message is settled here
//! and published there by entries of one frame, so a crash leaves it in one of the two streams.
//!
//! A job that moves parked messages leaves each of them parked until it has arrived, and only then takes it off the
//! list. So nothing about messages on their way is written, and one that an operator replays or discards meanwhile, or
//! that cannot go, needs no way back.

use std::time::Duration;

use crate::entry::{Ending, Route, Work};
use crate::group::decision::Decision;
use crate::group::standing::State;
use crate::group::triage::{COST, SLICE};
use crate::group::{Budget, Effects, Group, Job, MoveOut, Turn};
use crate::seqset::SeqSet;
use crate::settings::Strategy;
use crate::stream::Stream;
use crate::types::{JobId, Seq, SeqRange, Timestamp};

/// Messages that the shell has been asked to bring to another stream.
#[derive(Debug, Default)]
pub(super) struct Moves {
    asked: SeqSet,
    /// The message that was asked for last.
    asked_last: Seq,
    /// Messages among `asked` that found no room, and when they are asked for again.
    put_off: SeqSet,
    again_at: Option<Timestamp>,
}

impl Moves {
    /// A message has arrived, or does not go after all.
    pub(super) fn ended(&mut self, seq: Seq) {
        self.asked.remove(SeqRange::one(seq));
        self.put_off.remove(SeqRange::one(seq));
    }

    /// There is no room for a message just now.
    pub(super) fn put_off(&mut self, now: Timestamp, seq: Seq) {
        self.put_off.insert(SeqRange::one(seq));
        self.again_at.get_or_insert(now + MOVE_AGAIN);
    }

    /// When messages that found no room are asked for again.
    pub(super) fn again_at(&self) -> Option<Timestamp> {
        self.again_at
    }

    /// Whether a message is on its way, or is about to set out. Messages that found no room do not count.
    fn are_under_way(&self, moving: u64, most: u64) -> bool {
        let asked = self.asked.count();
        asked > self.put_off.count() || asked < most.min(moving)
    }

    /// Messages that found no room, when it is time to ask for them again.
    fn due_again(&mut self, now: Timestamp) -> SeqSet {
        match self.again_at.take_if(|at| *at <= now) {
            Some(_) => std::mem::take(&mut self.put_off),
            None => SeqSet::new(),
        }
    }

    /// Up to `most` messages of `count` are asked for at a time. Calls `ask` for each that has not been asked for.
    fn ask<'a>(
        &mut self,
        now: Timestamp,
        count: u64,
        most: u64,
        next_from: impl Fn(Seq) -> Option<(Seq, &'a Route)>,
        mut ask: impl FnMut(Seq, &Route),
    ) {
        for run in self.due_again(now).runs() {
            self.asked.remove(run);
        }
        let mut lap = count + 1;
        let mut is_second = false;
        while lap > 0 && self.asked.count() < most.min(count) {
            lap -= 1;
            let Some((seq, route)) = next_from(self.asked_last.next()) else {
                if std::mem::replace(&mut is_second, true) {
                    break;
                }
                self.asked_last = Seq::START;
                continue;
            };
            self.asked_last = seq;
            if self.asked.insert(SeqRange::one(seq)) > 0 {
                ask(seq, route);
            }
        }
    }
}

/// How long a message waits that found no room in the stream that it is moved to.
const MOVE_AGAIN: Duration = Duration::from_secs(1);
/// Messages that are being moved at a time, with those among them that found no room.
const MOVES_MAX: u64 = 256;
/// Messages that one job has on their way at a time. Less than all that may be, so that others find a place as well.
const ON_WAY_MAX: u64 = 128;

/// How many messages are asked for at a time.
fn asked_max(strategy: Strategy) -> u64 {
    if strategy == Strategy::Ordered { 1 } else { MOVES_MAX }
}

impl Group {
    /// Whether messages are being brought to another stream just now.
    pub(crate) fn is_moving(&self) -> bool {
        let moving = self.ledger.moving().len() as u64;
        moving > 0 && self.moves.are_under_way(moving, asked_max(self.settings.strategy))
    }

    /// Asks for the contents of messages that are to be moved, once.
    pub(super) fn ask_for_moves(&mut self, now: Timestamp, durable: Seq, effects: &mut Effects) {
        let Group { id, stream, moves, sends, ledger, .. } = self;
        // One after the other, so that messages without room do not keep back others that go elsewhere. An ordered
        // group asks for one at a time, and always for the first.
        if self.settings.strategy == Strategy::Ordered {
            moves.asked_last = Seq::START;
            sends.asked_last = Seq::START;
        }
        let most = asked_max(self.settings.strategy);
        let mut ask = |seq, route: &Route| {
            effects.moves.push(MoveOut { group: *id, stream: *stream, seq, to: route.to().cloned() });
        };
        let moving = ledger.moving();
        let next_moving = |from| moving.range(from..).next().map(|(&seq, route)| (seq, route));
        moves.ask(now, moving.len() as u64, most, next_moving, &mut ask);
        let outgoing = ledger.outgoing();
        if !outgoing.is_empty() {
            // A full stream may drop messages before they can be read.
            let next_outgoing = |from| outgoing.first_from(from).filter(|(seq, _)| *seq <= durable);
            sends.ask(now, outgoing.count(), most, next_outgoing, &mut ask);
        }
    }

    /// Keeps account of a message that is brought to another stream.
    pub(super) fn moves_of(&mut self, seq: Seq) -> &mut Moves {
        if self.parked_route(seq).is_some() {
            &mut self.parked_moves
        } else if self.ledger.outgoing().contains(seq) {
            &mut self.sends
        } else {
            &mut self.moves
        }
    }

    /// How many messages a job may have on their way at a time. Contents come when they come, so where order matters
    /// the next one sets out when the one before has arrived.
    fn on_way_max(&self) -> u64 {
        if self.settings.strategy == Strategy::Ordered { 1 } else { ON_WAY_MAX }
    }

    /// Whether a job waits for messages that are on their way. It is called when one of them arrives, or comes back.
    pub(super) fn waits_for_moves(&self, job: &Job) -> bool {
        match &job.work {
            Work::Replay | Work::Discard => false,
            Work::Move { .. } => job.left.is_empty() || job.on_way >= self.on_way_max(),
            Work::MoveParked { .. } => {
                let next = self.parked_moves.asked_last.next();
                job.left.first_from(next).is_none() || self.parked_moves.asked.count() >= self.on_way_max()
            }
        }
    }

    /// Asks for the contents of the next parked messages of a job, as many as may be on their way at a time. Messages
    /// that are not parked any more, or were parked again since, are passed over.
    pub(super) fn run_parked_move(&mut self, turn: &mut Turn<'_>, id: JobId) {
        let to = self.ledger.jobs()[&id].work.to().cloned();
        let (group, stream) = (self.id, self.stream);
        let mut ask = |seq: Seq| turn.effects.moves.push(MoveOut { group, stream, seq, to: to.clone() });
        let asked = self.parked_moves.asked.runs().flat_map(|run| run.seqs());
        let over: Vec<Seq> = asked.filter(|&seq| !self.ledger.is_meant(seq, id)).collect();
        for seq in over {
            self.parked_moves.ended(seq);
            self.pass_over(id, SeqRange::one(seq));
        }
        self.parked_moves.due_again(turn.now).runs().flat_map(|run| run.seqs()).for_each(&mut ask);
        while !turn.budget.is_spent() {
            let next = self.parked_moves.asked_last.next();
            let Some(seq) = self.ledger.jobs()[&id].left.first_from(next) else { return };
            if self.ledger.is_meant(seq, id) {
                let paced = self.paces.jobs.get(&id).map_or(u64::MAX, |pace| pace.available(turn.now));
                if paced == 0 || self.parked_moves.asked.count() >= self.on_way_max() {
                    return;
                }
                if let Some(pace) = self.paces.jobs.get_mut(&id) {
                    pace.spend(turn.now, 1);
                }
                self.parked_moves.asked.insert(SeqRange::one(seq));
                ask(seq);
            } else {
                self.pass_over(id, SeqRange::one(seq));
            }
            self.parked_moves.asked_last = seq;
            turn.budget.spend_each(COST);
        }
    }

    /// The job that moves a parked message to another stream now.
    pub(super) fn parked_route(&self, seq: Seq) -> Option<Route> {
        let mut running = self.ledger.jobs().values().filter(|job| job.is_running());
        let job = running.find(|job| matches!(job.work, Work::MoveParked { .. }))?;
        let is_meant = job.left.contains(seq) && self.ledger.is_meant(seq, job.id);
        is_meant.then(|| Route::Job { job: job.id, to: job.work.to().cloned() })
    }

    /// Puts the next messages of a job on their way, as many as may be there at a time.
    pub(super) fn run_move(&mut self, now: Timestamp, stream: &Stream, id: JobId, budget: &mut Budget) {
        while !budget.is_spent() {
            let job = &self.ledger.jobs()[&id];
            let Work::Move { to } = &job.work else { unreachable!("a job that moves messages") };
            let route = Route::Job { job: id, to: to.clone() };
            let Some(first) = job.left.first() else { return };
            let (last, is_ready) = self.alike_from(stream, first);
            if !is_ready {
                budget.spend_run(0);
                self.pass_over(id, SeqRange::new(first, last));
                continue;
            }
            let paced = self.paces.jobs.get(&id).map_or(SLICE, |pace| pace.available(now));
            let allowed = self.on_way_max().saturating_sub(job.on_way).min(paced).min(SLICE);
            if allowed == 0 {
                return;
            }
            let some = SeqRange::new(first, last.min(first.plus(allowed - 1)));
            let meant: Vec<Seq> = some.seqs().filter(|&seq| job.left.contains(seq)).collect();
            let count = meant.len() as u64;
            budget.spend_each(COST * count);
            if let Some(pace) = self.paces.jobs.get_mut(&id) {
                pace.spend(now, count);
            }
            for seq in meant {
                self.set_out(stream, seq, &route, id);
            }
        }
    }

    /// Whether a message is ready, and up to which one that is so likewise.
    fn alike_from(&self, stream: &Stream, seq: Seq) -> (Seq, bool) {
        let before = |next: Option<Seq>| next.map_or(stream.last, |next| Seq(next.0 - 1));
        if self.ledger.is_settled(seq) {
            return (before(Some(self.ledger.unsettled_from(seq))), false);
        }
        let run = self.ledger.standing().run_from(seq);
        match run {
            Some((run, state)) if run.first == seq => (run.last, matches!(state, State::Ready { .. })),
            _ if stream.undue.contains(seq) => {
                let due = stream.undue.gap_from(seq);
                (before(run.map(|(run, _)| run.first)).min(Seq(due.0 - 1)), false)
            }
            _ => {
                let settled = self.ledger.progress().above().first_from(seq);
                let other = [run.map(|(run, _)| run.first), settled, stream.undue.first_from(seq)];
                (before(other.into_iter().flatten().min()), true)
            }
        }
    }

    fn pass_over(&mut self, job: JobId, seqs: SeqRange) {
        self.decide(Decision::JobPassed { seqs, job });
    }

    /// Takes a message that is ready off the offer and puts it on its way.
    fn set_out(&mut self, stream: &Stream, seq: Seq, route: &Route, job: JobId) {
        // It is let go of here, as soon as there is time for that.
        if self.is_expired(stream, seq) {
            return self.pass_over(job, SeqRange::one(seq));
        }
        match self.ledger.standing().run_at(seq) {
            Some((_, state)) => self.withdraw(stream, seq, state),
            // Messages that a plain group has not looked at are not on offer.
            None if self.candidates.is_ahead(stream, seq) => {}
            None => self.take_off_offer(stream, seq),
        }
        self.decide(Decision::Moving { seqs: SeqRange::one(seq), route: route.clone() });
        self.key_changed(stream, seq);
    }

    /// A message that a job has put on its way cannot go where it should. It is ready again, as it was, or stays
    /// parked.
    pub(crate) fn stay(&mut self, now: Timestamp, stream: &Stream, seq: Seq) {
        let seqs = SeqRange::one(seq);
        if let Some(job) = self.parked_route(seq).and_then(|route| route.job()) {
            self.parked_moves.ended(seq);
            return self.pass_over(job, seqs);
        }
        if self.moving(seq).is_none() {
            return;
        }
        self.moves.ended(seq);
        self.decide(Decision::Stayed(seqs));
        if self.is_expired(stream, seq) {
            self.let_go(now, stream, seqs, Ending::Expired);
        } else {
            let (candidates, view) = self.candidates(stream);
            candidates.stayed(view, seq);
        }
    }
}
