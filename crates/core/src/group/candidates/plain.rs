//! Candidates of a group that does not look at keys: by priority, then by position.

use crate::group::Budget;
use crate::group::candidates::{Offered, View, Wish};
use crate::group::standing::State;
use crate::lanes::{LANES, Lanes};
use crate::stream::Stream;
use crate::types::{ConsumerId, Seq, SeqRange, Timestamp};

/// Messages that are put on offer at a time where they have to be looked for.
const PULL: u64 = 256;
/// The same for each priority.
const PULL_LANE: u64 = 64;

#[derive(Debug)]
pub(in crate::group) struct Plain {
    /// Messages past this one have not been looked at for handing out.
    pub(super) cursor: Seq,
    /// Messages up to here may be handed out. Those past the cursor are on offer as they are, unless the stream has
    /// priorities or delays.
    pub(super) arrived: Seq,
    /// Messages on offer up to the cursor.
    pub(super) lanes: Lanes,
    /// How far each lane of the stream above 0 has been put on offer.
    lane_cursors: [Seq; LANES],
    /// No message that was handed out before is on offer before these positions, by priority.
    again_from: [Seq; LANES],
}

impl Plain {
    pub(super) fn starting_at(floor: Seq) -> Plain {
        Plain {
            cursor: floor,
            arrived: floor,
            lanes: Lanes::default(),
            lane_cursors: [Seq::START; LANES],
            again_from: [Seq::START; LANES],
        }
    }

    pub(super) fn begin(&mut self, view: View<'_>) {
        self.cursor = Seq(view.untouched_from(view.ledger.progress().floor().next()).0 - 1);
        self.arrived = self.cursor;
        let runs = view.ledger.standing().runs();
        for (run, _) in runs.filter(|(_, state)| matches!(state, State::Ready { .. })) {
            self.ready(view, run);
        }
    }

    /// Messages have arrived or been read.
    pub(in crate::group) fn arrive(&mut self, last: Seq) {
        self.arrived = self.arrived.max(last);
    }

    /// Messages between the cursor and the last that has arrived.
    pub(super) fn ahead(&self) -> u64 {
        self.arrived.0 - self.cursor.0
    }

    pub(super) fn next(
        &mut self,
        view: View<'_>,
        now: Timestamp,
        budget: &mut Budget,
        consumer: ConsumerId,
        max: u64,
    ) -> Option<Offered> {
        let is_mixed = view.is_mixed();
        if is_mixed {
            self.pull_what_ran_out(view, budget);
            if budget.is_spent() {
                return None;
            }
        }
        loop {
            let Some((lane, first)) = self.best(view, now, budget) else {
                return if is_mixed { None } else { self.next_ahead(view, consumer, max) };
            };
            // Messages ahead are newer than nearly all that are on offer, but not than delayed ones.
            if !is_mixed && lane == 0 && first > self.cursor && view.window_room() > 0 {
                let ahead = view.untouched_from(self.cursor.next());
                if ahead < first && ahead <= self.arrived {
                    return self.next_ahead(view, consumer, max.min(first.0 - ahead.0));
                }
            }
            if view.ledger.is_settled(first) {
                self.lanes.remove(lane, SeqRange::one(first));
                continue;
            }
            // At its limit the window takes nothing new, but messages in it go on.
            let is_new = view.ledger.standing().run_at(first).is_none();
            let max = if is_new { max.min(view.window_room()) } else { max };
            if max == 0 || !view.fits(consumer, first) {
                return None;
            }
            let Offered { seqs: run, attempts, again } = view.alike_from(first);
            let offered = self.lanes.lane(lane).run_from(first).expect("a message that is first is on offer");
            let last = run.last.min(offered.last).min(first.plus(max - 1));
            let is_alone = self.lanes.count() == self.lanes.lane(lane).count();
            let last = if is_alone { last } else { view.last_of_rank(now, lane, first, last) };
            let seqs = view.cut_to_bytes(consumer, SeqRange::new(first, last));
            self.lanes.remove(lane, seqs);
            return Some(Offered { seqs, attempts, again });
        }
    }

    /// The next messages past the cursor.
    fn next_ahead(&mut self, view: View<'_>, consumer: ConsumerId, max: u64) -> Option<Offered> {
        let seqs = self.pass(view, max.min(view.window_room()))?;
        if !view.fits(consumer, seqs.first) {
            self.cursor = Seq(seqs.first.0 - 1);
            return None;
        }
        let seqs = view.cut_to_bytes(consumer, seqs);
        self.cursor = seqs.last;
        Some(Offered { seqs, attempts: 0, again: false })
    }

    /// The lane to take from, and the message that is first in it.
    fn best(&mut self, view: View<'_>, now: Timestamp, budget: &mut Budget) -> Option<(u8, Seq)> {
        let is_full = view.window_room() == 0;
        let mut first = |lane: u8| {
            if is_full { self.first_standing(view, budget, lane) } else { self.lanes.lane(lane).first() }
        };
        if view.stream.lanes.is_empty() {
            let lane_zero = first(0);
            if lane_zero.is_some() || self.lanes.count() == 0 {
                return lane_zero.map(|seq| (0, seq));
            }
        }
        let mut first = |lane: u8| {
            if is_full { self.first_standing(view, budget, lane) } else { self.lanes.lane(lane).first() }
        };
        view.best(now, &mut first)
    }

    /// The first message of a lane that was handed out before: when the window is full, nothing new is taken in. Goes
    /// on where it was the last time, since many new messages may lie before it.
    fn first_standing(&mut self, view: View<'_>, budget: &mut Budget, lane: u8) -> Option<Seq> {
        let again_from = &mut self.again_from[usize::from(lane)];
        while !budget.is_spent() {
            let offered = self.lanes.lane(lane).first_from(*again_from)?;
            *again_from = offered;
            let (run, _) = view.ledger.standing().run_from(offered)?;
            if run.first == offered {
                return Some(offered);
            }
            budget.spend_run(0);
            *again_from = run.first;
        }
        None
    }

    pub(super) fn ready(&mut self, view: View<'_>, seqs: SeqRange) {
        for again_from in &mut self.again_from {
            *again_from = seqs.first.min(*again_from);
        }
        if view.stream.lanes.is_empty() {
            self.lanes.insert(0, seqs);
        } else {
            for seq in seqs.seqs() {
                self.lanes.insert(view.stream.priority(seq), SeqRange::one(seq));
            }
        }
    }

    pub(super) fn withdraw(&mut self, seqs: SeqRange) {
        self.lanes.remove_all(seqs);
    }

    /// Whether the group has come past a message, so that it has to be put on offer when it is due.
    pub(super) fn is_passed(&self, view: View<'_>, seq: Seq) -> bool {
        match view.stream.priority(seq) {
            0 => seq <= self.arrived && seq <= self.cursor,
            lane => seq <= self.lane_cursors[usize::from(lane)],
        }
    }

    /// Puts the next few messages ahead on offer.
    pub(super) fn pull(&mut self, view: View<'_>, budget: &mut Budget) {
        let room = view.window_room();
        if !view.stream.lanes.is_empty() {
            for lane in 1..LANES as u8 {
                // One that is offered again may be all there is of a lane, with new ones right behind it.
                if self.lanes.lane(lane).count() < PULL_LANE && room > 0 {
                    self.pull_lane(view, budget, lane);
                }
            }
        }
        let wanted = PULL.min(room).saturating_sub(self.lanes.lane(0).count());
        self.pull_plain(view, budget, wanted);
    }

    /// Puts more on offer of those priorities of which nothing is left there, so that none of a lower one goes before
    /// it.
    fn pull_what_ran_out(&mut self, view: View<'_>, budget: &mut Budget) {
        let room = view.window_room();
        if room == 0 {
            return;
        }
        for lane in 0..LANES as u8 {
            if !self.lanes.lane(lane).is_empty() {
                continue;
            }
            if lane == 0 {
                self.pull_plain(view, budget, PULL.min(room));
            } else if !view.stream.lanes.lane(lane).is_empty() {
                self.pull_lane(view, budget, lane);
            }
        }
    }

    fn pull_plain(&mut self, view: View<'_>, budget: &mut Budget, mut wanted: u64) {
        while wanted > 0 && self.cursor < self.arrived && !budget.is_spent() {
            budget.spend_run(0);
            // Where much has to be passed over, the next may be further ahead.
            let Some(seqs) = self.pass(view, wanted) else { continue };
            wanted -= seqs.count();
            self.lanes.insert(0, seqs);
        }
    }

    fn pull_lane(&mut self, view: View<'_>, budget: &mut Budget, lane: u8) {
        let View { ledger, stream, .. } = view;
        let cursor = &mut self.lane_cursors[usize::from(lane)];
        let mut next = (*cursor).max(ledger.progress().floor()).next();
        let mut wanted = PULL_LANE;
        while wanted > 0
            && !budget.is_spent()
            && let Some(seq) = stream.lanes.lane(lane).first_from(next).filter(|&seq| seq <= stream.durable)
        {
            budget.spend_run(0);
            next = seq.next();
            let is_new = !ledger.is_settled(seq) && ledger.standing().run_at(seq).is_none();
            if is_new && !stream.undue.contains(seq) {
                self.lanes.insert(lane, SeqRange::one(seq));
                wanted -= 1;
            }
        }
        *cursor = Seq(next.0 - 1);
    }

    /// The next messages ahead of the cursor that have no priority, are due, and have never been handed out nor
    /// settled. Moves the cursor past them.
    fn pass(&mut self, view: View<'_>, max: u64) -> Option<SeqRange> {
        if self.cursor >= self.arrived || max == 0 {
            return None;
        }
        let View { ledger, stream, .. } = view;
        let mut first = view.untouched_from(self.cursor.next());
        if view.is_mixed() {
            let mut tries = 0;
            while first <= self.arrived && is_special(stream, first) && tries < PULL {
                let after = stream.undue.gap_from(first).max(first.next());
                first = view.untouched_from(after);
                tries += 1;
            }
            if tries == PULL {
                self.cursor = Seq(first.0 - 1).min(self.arrived);
                return None;
            }
        }
        self.cursor = Seq(first.0 - 1).min(self.arrived);
        if first > self.arrived {
            return None;
        }
        let mut last = self.arrived.min(self.cursor.plus(max));
        // After a restart messages ahead may have been handed out or settled before.
        if let Some((run, _)) = ledger.standing().run_from(first) {
            last = last.min(Seq(run.first.0 - 1));
        }
        if let Some(run) = ledger.progress().above().run_from(first) {
            last = last.min(Seq(run.first.0 - 1));
        }
        if view.is_mixed() {
            let undue = stream.undue.first_from(first);
            let other = undue.into_iter().chain(stream.lanes.next_from(first)).min();
            last = other.map_or(last, |other| last.min(Seq(other.0 - 1)));
        }
        self.cursor = last;
        Some(SeqRange::new(first, last))
    }

    pub(super) fn wants_read(&self, view: View<'_>) -> Option<Wish> {
        let buffer = u64::from(view.settings.buffer);
        if self.arrived >= view.stream.durable || self.ahead() > buffer / 2 {
            return None;
        }
        let last = self.arrived.plus(buffer).min(view.stream.durable);
        Some(Wish { seqs: SeqRange::new(self.arrived.next(), last), keys: false, contents: true })
    }
}

/// Whether a message has a priority or is not due.
fn is_special(stream: &Stream, seq: Seq) -> bool {
    stream.undue.contains(seq) || stream.lanes.lane_of(seq).is_some()
}
