//! Messages that may go next.
//!
//! A plain group hands out by position and need not look at messages: the range between its cursor and the messages
//! that have arrived is on offer as it is. A group that cares for keys looks at every message, in order.
//!
//! [`Candidates::next`] says which messages a consumer gets next. The other methods tell what happened to messages.

mod keyed;
mod plain;

use crate::fault::{Fault, planted};
use crate::group::Budget;
use crate::group::keys::KeyFate;
use crate::group::ledger::Ledger;
use crate::group::members::{Member, Members};
use crate::group::standing::State;
use crate::lanes::LANES;
use crate::settings::GroupSettings;
use crate::stream::Stream;
use crate::types::{ConsumerId, KeyHash, Seq, SeqRange, Timestamp};
pub(super) use keyed::Keyed;
pub(super) use plain::Plain;

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a group has one, and nearly always the large one")]
pub(super) enum Candidates {
    Plain(Plain),
    Keyed(Box<Keyed>),
}

/// The state by which candidates are chosen.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) settings: &'a GroupSettings,
    pub(super) members: &'a Members,
    pub(super) stream: &'a Stream,
}

/// Messages that follow each other and have been handed out equally often.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offered {
    pub(super) seqs: SeqRange,
    /// How often they were handed out before, as far as that counts.
    pub(super) attempts: u32,
    /// They were handed out before, whether it counts or not.
    pub(super) again: bool,
}

/// A wish to read messages that have not been looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) seqs: SeqRange,
    pub(super) keys: bool,
    pub(super) contents: bool,
}

impl Candidates {
    /// No candidates yet, in the order that the settings ask for.
    pub(super) fn new(settings: &GroupSettings, members: &Members, floor: Seq) -> Candidates {
        if settings.is_keyed() {
            Candidates::Keyed(Box::new(Keyed::new(settings, members, floor)))
        } else {
            Candidates::Plain(Plain::starting_at(floor))
        }
    }

    /// Begins from the floor, as after a restart.
    pub(super) fn begin_anew(&mut self, view: View<'_>) {
        let floor = view.ledger.progress().floor();
        let before = std::mem::replace(self, Candidates::new(view.settings, view.members, floor));
        match self {
            Candidates::Plain(plain) => plain.begin(view),
            Candidates::Keyed(keyed) => {
                if let Candidates::Keyed(before) = before {
                    // Later messages of their keys may have gone already.
                    keyed.keys.unreadable = before.keys.unreadable;
                    if floor > Seq::START {
                        keyed.keys.unreadable.remove(SeqRange::new(Seq(1), floor));
                    }
                }
                keyed.begin(view);
            }
        }
    }

    /// Messages whose keys could not be read get another chance.
    pub(super) fn forget_unreadable(&mut self) {
        if let Candidates::Keyed(keyed) = self {
            keyed.keys.unreadable.clear();
            keyed.keys.unfit.clear();
        }
    }

    /// Takes a message that is to be parked because its key cannot be read.
    pub(super) fn pop_unfit(&mut self) -> Option<Seq> {
        match self {
            Candidates::Plain(_) => None,
            Candidates::Keyed(keyed) => keyed.keys.unfit.pop_run(1).map(|run| run.first),
        }
    }

    /// Messages up to here may be handed out: they were seen arriving, or have been read.
    pub(super) fn arrived(&self) -> Seq {
        match self {
            Candidates::Plain(plain) => plain.arrived,
            Candidates::Keyed(keyed) => keyed.arrived,
        }
    }

    /// Messages that could go if there were credit for them.
    pub(super) fn count(&self, view: View<'_>) -> u64 {
        match self {
            Candidates::Plain(plain) => plain.lanes.count() + plain.ahead().min(view.window_room()),
            Candidates::Keyed(keyed) => keyed.offer.count(),
        }
    }

    /// Messages that could go to this consumer.
    pub(super) fn count_for(&self, consumer: ConsumerId) -> u64 {
        match self {
            Candidates::Plain(plain) => plain.lanes.count(),
            Candidates::Keyed(keyed) => keyed.offer.count_for(consumer),
        }
    }

    /// Whether a message could go, if the window has room for it.
    pub(super) fn is_any(&self) -> bool {
        match self {
            Candidates::Plain(plain) => plain.lanes.count() > 0 || plain.ahead() > 0,
            Candidates::Keyed(keyed) => keyed.offer.count() > 0,
        }
    }

    /// Whether a message is on offer by itself.
    pub(super) fn contains(&self, stream: &Stream, seq: Seq) -> bool {
        match self {
            Candidates::Plain(plain) => plain.lanes.lane_of(seq).is_some(),
            Candidates::Keyed(keyed) => keyed.offer.contains(stream.priority(seq), seq, &keyed.keys),
        }
    }

    /// Looks for more where that has to be done, and counts what could go.
    pub(super) fn refill(&mut self, view: View<'_>, budget: &mut Budget) -> u64 {
        if let Candidates::Plain(plain) = self
            && view.is_mixed()
        {
            plain.pull(view, budget);
            return plain.lanes.count();
        }
        self.count(view)
    }

    /// Takes the next messages for a consumer.
    pub(super) fn next(
        &mut self,
        view: View<'_>,
        now: Timestamp,
        budget: &mut Budget,
        consumer: ConsumerId,
        max: u64,
    ) -> Option<Offered> {
        match self {
            Candidates::Plain(plain) => plain.next(view, now, budget, consumer, max),
            Candidates::Keyed(keyed) => keyed.next(view, now, consumer, max),
        }
    }

    /// The message of the same key that may go together with this one, which goes before it.
    pub(super) fn follower(&self, seq: Seq) -> Option<(Seq, KeyHash)> {
        match self {
            Candidates::Plain(_) => None,
            Candidates::Keyed(keyed) => keyed.keys.next_of_key(seq),
        }
    }

    /// A follower is handed out.
    pub(super) fn take_follower(&mut self, seq: Seq, key: KeyHash) {
        if let Candidates::Keyed(keyed) = self {
            keyed.keys.given_along(seq, key);
        }
    }

    /// The turn has handed out what it could.
    pub(super) fn end_dispatch(&mut self) {
        if let Candidates::Keyed(keyed) = self {
            keyed.end_dispatch();
        }
    }

    /// Messages are leased.
    pub(super) fn leased(&mut self, seqs: SeqRange) {
        if let Candidates::Keyed(keyed) = self {
            seqs.seqs().for_each(|seq| keyed.keys.given(seq));
        }
    }

    /// Leases are over.
    pub(super) fn released(&mut self, seqs: SeqRange) {
        if let Candidates::Keyed(keyed) = self {
            seqs.seqs().for_each(|seq| keyed.keys.back(seq));
        }
    }

    /// Messages may go now: they were handed out before and are ready again, or are due for the first time.
    pub(super) fn ready(&mut self, view: View<'_>, seqs: SeqRange) {
        match self {
            Candidates::Plain(plain) => plain.ready(view, seqs),
            Candidates::Keyed(keyed) => keyed.ready(view, seqs),
        }
    }

    /// A message that was on its way to another stream is ready again.
    pub(super) fn stayed(&mut self, view: View<'_>, seq: Seq) {
        self.ready(view, SeqRange::one(seq));
        if let Candidates::Keyed(keyed) = self {
            keyed.look_again_if_unknown(seq);
        }
    }

    /// The delay of a new message is over.
    pub(super) fn came_due(&mut self, view: View<'_>, seq: Seq) {
        let is_passed = match self {
            Candidates::Plain(plain) => plain.is_passed(view, seq),
            Candidates::Keyed(keyed) => seq <= keyed.arrived,
        };
        if is_passed {
            self.ready(view, SeqRange::one(seq));
        }
    }

    /// A message on offer is not to go after all.
    pub(super) fn withdraw(&mut self, view: View<'_>, seq: Seq) {
        match self {
            Candidates::Plain(plain) => plain.withdraw(SeqRange::one(seq)),
            Candidates::Keyed(keyed) => keyed.withdraw(view, seq),
        }
    }

    /// None of these messages is to go after all. They have not been handed out, or were given back.
    pub(super) fn withdraw_all(&mut self, view: View<'_>, seqs: SeqRange) {
        match self {
            Candidates::Plain(plain) => plain.withdraw(seqs),
            Candidates::Keyed(keyed) => keyed.withdraw_all(view, seqs),
        }
    }

    /// Whether a plain group has not come to a message, so that it need not be withdrawn.
    pub(super) fn is_ahead(&self, stream: &Stream, seq: Seq) -> bool {
        matches!(self, Candidates::Plain(plain) if stream.lanes.is_empty() && seq > plain.cursor)
    }

    /// Messages are settled or parked.
    pub(super) fn gone(&mut self, view: View<'_>, seqs: SeqRange) {
        if let Candidates::Keyed(keyed) = self {
            keyed.gone(view, seqs);
        }
    }

    /// Something happened to a message: another one may be the first of its key now.
    pub(super) fn changed(&mut self, view: View<'_>, seq: Seq) {
        if let Candidates::Keyed(keyed) = self {
            keyed.refresh_key_of(view, seq);
        }
    }

    /// The key of a message, if the group looks at keys and knows it.
    pub(super) fn key(&self, seq: Seq) -> Option<KeyHash> {
        match self {
            Candidates::Plain(_) => None,
            Candidates::Keyed(keyed) => keyed.keys.key(seq),
        }
    }

    /// A message was parked, and the rest of its key may have to wait for it.
    pub(super) fn parked(&mut self, view: View<'_>, seq: Seq, key: Option<KeyHash>) {
        if let Candidates::Keyed(keyed) = self {
            keyed.parked(view, seq, key);
        }
    }

    /// A message is parked no longer, and does not hold up the rest of its key.
    pub(super) fn unparked(&mut self, view: View<'_>, seq: Seq, key: Option<KeyHash>) {
        if let Candidates::Keyed(keyed) = self {
            keyed.unparked(view, seq, key);
        }
    }

    /// A parked message is ready again, and takes its place in its key.
    pub(super) fn replayed(&mut self, view: View<'_>, seq: Seq, key: Option<KeyHash>) {
        match self {
            Candidates::Plain(plain) => plain.ready(view, SeqRange::one(seq)),
            Candidates::Keyed(keyed) => keyed.replayed(view, seq, key),
        }
    }

    /// A consumer has joined.
    pub(super) fn joined(&mut self, consumer: ConsumerId) {
        if let Candidates::Keyed(keyed) = self {
            keyed.offer.joined(consumer);
        }
    }

    /// A consumer has left.
    pub(super) fn left(&mut self, consumer: ConsumerId) {
        if let Candidates::Keyed(keyed) = self {
            keyed.offer.left(consumer);
        }
    }

    /// Whether there is room for more messages that could be offered.
    pub(super) fn takes_more(&self, view: View<'_>, scan_max: usize) -> bool {
        match self {
            Candidates::Plain(plain) => plain.ahead() < u64::from(view.settings.buffer),
            Candidates::Keyed(keyed) => keyed.takes_more(view, scan_max),
        }
    }

    /// The next read that is needed, if any.
    pub(super) fn wants_read(&self, view: View<'_>, scan_max: usize) -> Option<Wish> {
        match self {
            Candidates::Plain(plain) => plain.wants_read(view),
            Candidates::Keyed(keyed) => keyed.wants_read(view, scan_max),
        }
    }

    /// Whether a key may be locked by a message that has not been looked at since the group began anew. Until it has
    /// been, nothing can be handed out in order.
    pub(super) fn is_order_unknown(&self, view: View<'_>) -> bool {
        matches!(self, Candidates::Keyed(keyed) if keyed.is_order_unknown(view))
    }
}

impl View<'_> {
    /// How many more messages may be in process.
    pub(super) fn window_room(&self) -> u64 {
        u64::from(self.settings.window_max).saturating_sub(self.ledger.standing().messages())
    }

    /// Whether some messages of the stream have a priority or are not due, so that a plain group has to look for
    /// those that may go.
    pub(super) fn is_mixed(&self) -> bool {
        !(self.stream.lanes.is_empty() && self.stream.undue.is_empty())
    }

    /// The first position at `seq` or after it that has never been handed out nor settled.
    pub(super) fn untouched_from(&self, mut seq: Seq) -> Seq {
        loop {
            let unsettled = self.ledger.progress().unsettled_from(seq);
            match self.ledger.standing().run_at(unsettled) {
                Some((run, _)) => seq = run.last.next(),
                None => return unsettled,
            }
        }
    }

    /// Whether a message that is first of its key may go.
    fn fate(&self, seq: Seq) -> KeyFate {
        if self.ledger.is_settled(seq) {
            return KeyFate::Gone { before: self.ledger.unsettled_from(seq).max(seq.next()) };
        }
        match self.ledger.standing().run_at(seq) {
            None if self.stream.undue.contains(seq) => KeyFate::Waits,
            None | Some((_, State::Ready { .. })) => KeyFate::Ready,
            Some(_) => KeyFate::Waits,
        }
    }

    /// Whether the consumer has bytes for this message. A consumer that has nothing yet has bytes for any.
    pub(super) fn fits(&self, consumer: ConsumerId, seq: Seq) -> bool {
        let Some(member) = self.members.get(consumer) else { return false };
        let too_large = |room| self.stream.timeline.bytes(SeqRange::one(seq)) > room;
        member.takes_any() || !member.room_bytes().is_some_and(too_large)
    }

    /// As many of the messages as fit into the bytes that the consumer has room for, and one at least.
    fn cut_to_bytes(&self, consumer: ConsumerId, seqs: SeqRange) -> SeqRange {
        let Some(room) = self.members.get(consumer).and_then(Member::room_bytes) else { return seqs };
        let (mut low, mut high) = (1, seqs.count());
        while low < high {
            let middle = (low + high).div_ceil(2);
            let fits = self.stream.timeline.bytes(SeqRange::starting(seqs.first, middle)) <= room;
            if fits { low = middle } else { high = middle - 1 }
        }
        SeqRange::starting(seqs.first, low)
    }

    /// The priority that a message has by now: one more for every step it has waited.
    fn rank(&self, now: Timestamp, lane: u8, seq: Seq) -> u64 {
        let step = self.settings.priority_age_step;
        if step.as_micros() == 0 || planted(Fault::PriorityStarves) {
            return lane.into();
        }
        // Messages that the stream has let go of are at least as old as those it keeps.
        let timeline = &self.stream.timeline;
        let known = timeline.range().map(|kept| seq.max(kept.first));
        let published = known.and_then(|seq| timeline.at(seq)).unwrap_or(now);
        let steps = now.since(published).as_micros() / step.as_micros();
        (u64::from(lane) + u64::try_from(steps).unwrap_or(u64::MAX)).min(LANES as u64 - 1)
    }

    /// The lane to take from, and the message that is first in it. `first` says so of each lane.
    fn best(&self, now: Timestamp, mut first: impl FnMut(u8) -> Option<Seq>) -> Option<(u8, Seq)> {
        let mut best: Option<(u64, Seq, u8)> = None;
        for lane in 0..LANES as u8 {
            let Some(seq) = first(lane) else { continue };
            let rank = self.rank(now, lane, seq);
            let is_better = best.is_none_or(|(other, at, _)| rank > other || (rank == other && seq < at));
            if is_better {
                best = Some((rank, seq, lane));
            }
        }
        best.map(|(_, seq, lane)| (lane, seq))
    }

    /// Messages from `first` on that were handed out equally often. `first` is on offer.
    fn alike_from(&self, first: Seq) -> Offered {
        let last = match self.ledger.standing().run_from(first) {
            Some((run, state)) if run.first == first => {
                assert!(matches!(state, State::Ready { .. }), "a message on offer is ready");
                return Offered { seqs: run, attempts: state.attempts(), again: state.was_handed_out() };
            }
            Some((next, _)) => Seq(next.first.0 - 1),
            None => Seq(u64::MAX - 1),
        };
        Offered { seqs: SeqRange::new(first, last), attempts: 0, again: false }
    }

    /// The last message from `first` on that goes together with it: no later than `last`, and before messages of
    /// another lane that have waited longer by then.
    fn last_of_rank(&self, now: Timestamp, lane: u8, first: Seq, mut last: Seq) -> Seq {
        while last > first && self.rank(now, lane, last) < self.rank(now, lane, first) {
            last = Seq(first.0 + (last.0 - first.0) / 2);
        }
        last
    }
}
