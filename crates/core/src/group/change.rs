//! Operations on a group: change of settings, pause, reset, purge.

use crate::group::ages::Ages;
use crate::group::checkpoint::Checkpoint;
use crate::group::moves::Moves;
use crate::group::standing::State;
use crate::group::{Group, Turn};
use crate::pace::Pace;
use crate::settings::{GroupSettings, Strategy};
use crate::stream::Stream;
use crate::types::{Seq, SeqRange, Timestamp};

/// Messages that are let go of at a time.
const SLICE: u64 = 64;

impl Group {
    /// Takes on other settings, with consumers connected. Leases stay, on the terms they were granted on.
    pub(crate) fn change(&mut self, now: Timestamp, stream: &Stream, settings: GroupSettings) {
        let before = std::mem::replace(&mut self.settings, settings);
        self.paces.group = match (self.paces.group.take(), self.settings.rate) {
            (Some(mut pace), Some(rate)) => {
                pace.change(now, rate);
                Some(pace)
            }
            (None, Some(rate)) => Some(Pace::new(now, rate)),
            (_, None) => None,
        };
        // Acks that were kept back are written, whatever is done with the next ones.
        if before.acks != self.settings.acks {
            self.make_checkpoint();
        }
        let settings = &self.settings;
        let same_keys =
            before.on_parked_key == settings.on_parked_key && before.key_lock == settings.key_lock;
        let same_order = before.strategy == settings.strategy
            && before.fairness == settings.fairness
            && (same_keys || settings.strategy != Strategy::Ordered);
        if !same_order {
            self.begin_anew(stream);
        }
    }

    /// Entry `Reset` or `Purged` was decided: what it is about goes a slice a turn.
    pub(crate) fn begin_sweep(&mut self) {
        self.moves = Moves::default();
        self.sends = Moves::default();
        self.parked_moves = Moves::default();
        // Progress is another now, and acks that were kept back have been written.
        self.checkpoint = Checkpoint::at(self.ledger.progress().floor());
    }

    /// Lets go of what a reset or a purge has ended, as far as the budget goes. True when nothing is left
    /// of it; until then the group does nothing else.
    pub(super) fn sweep(&mut self, turn: &mut Turn<'_>) -> bool {
        let Some(through) = self.ledger.sweeps_through() else {
            // Parked messages that were let go of are in no other message's way.
            if self.ledger.has_dead() && !turn.budget.is_spent() {
                turn.budget.spend_each(SLICE);
                self.ledger.drop_dead(SLICE as usize);
            }
            return true;
        };
        while !turn.budget.is_spent() {
            let Some((run, state)) = self.ledger.standing().run_from(Seq(1)) else { break };
            if run.first > through {
                break;
            }
            let seqs = SeqRange::new(run.first, run.last.min(through));
            let seqs = SeqRange::starting(seqs.first, seqs.count().min(SLICE));
            turn.budget.spend_run(seqs.count());
            match state {
                State::Leased(lease) => self.end_lease(turn.now, turn.stream, seqs, &lease),
                State::Waiting { until, .. } => {
                    seqs.seqs().for_each(|seq| self.timers.stop_waiting(until, seq));
                }
                State::Ready { .. } | State::Moving { .. } => {}
            }
            self.ledger.sweep_standing(seqs);
        }
        while !turn.budget.is_spent() && self.ledger.sweep_aside(SLICE as usize) {
            turn.budget.spend_each(SLICE);
        }
        if turn.budget.is_spent() {
            return false;
        }
        self.ledger.end_sweep();
        self.expired = self.ledger.progress().floor().min(turn.stream.gone);
        self.reading = false;
        if through > turn.stream.last {
            // A reset: the group begins with every key anew.
            self.candidates.forget_unreadable();
            self.ages = Ages::default();
        }
        self.begin_anew(turn.stream);
        true
    }

    /// Lets go of some of what a deleted group has left. False when that is all.
    pub(crate) fn decay(&mut self, count: usize) -> bool {
        let has_times = self.timers.decay(count);
        self.ledger.decay(count) || has_times
    }
}
