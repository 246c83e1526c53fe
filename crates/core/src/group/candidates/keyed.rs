//! Candidates of a group that looks at keys: in order of each key, with keys in turn, or by the consumer that a key
//! belongs to.

use crate::group::candidates::{Offered, View, Wish};
use crate::group::keys::Keys;
use crate::group::members::Members;
use crate::group::offer::{NO_KEY, Offer};
use crate::group::scan::KeyRun;
use crate::group::standing::State;
use crate::settings::{GroupSettings, OnParkedKey, Strategy};
use crate::types::{ConsumerId, KeyHash, Seq, SeqRange, Timestamp};

/// Messages that are looked at in one go when most of them cannot go.
const STRIDE: u64 = 1_024;

#[derive(Debug)]
pub(in crate::group) struct Keyed {
    /// Messages up to here have been looked at.
    pub(super) arrived: Seq,
    pub(in crate::group) keys: Keys,
    pub(super) offer: Offer,
    /// New messages that were taken off the offer until the turn ends, since the window is full.
    deferred: Vec<(u8, KeyHash, Seq)>,
    /// Of the messages looked at last, how many could not go, in percent.
    passed_by: u32,
}

impl Keyed {
    pub(super) fn new(settings: &GroupSettings, members: &Members, floor: Seq) -> Keyed {
        let lock = (settings.strategy == Strategy::Ordered).then_some(settings.key_lock);
        let consumers = members.iter().map(|(consumer, _)| consumer);
        Keyed {
            arrived: floor,
            keys: Keys::new(lock),
            offer: Offer::new(settings, consumers),
            deferred: Vec::new(),
            passed_by: 0,
        }
    }

    pub(super) fn begin(&mut self, view: View<'_>) {
        if holds_keys(view.settings) {
            for (seq, parked) in view.ledger.parked().iter_after(Seq::START) {
                self.keys.parked(seq, parked.key);
            }
        }
        // Replayed messages lie below the floor, where the group does not look.
        for (&seq, &key) in view.ledger.replayed().range(..=view.ledger.progress().floor()) {
            self.replayed(view, seq, key);
        }
    }

    pub(super) fn next(
        &mut self,
        view: View<'_>,
        now: Timestamp,
        consumer: ConsumerId,
        max: u64,
    ) -> Option<Offered> {
        loop {
            let (lane, first) = self.best(view, now, consumer)?;
            if view.ledger.is_settled(first) {
                self.offer.drop_first(lane, consumer);
                continue;
            }
            // At its limit the window takes nothing new, but messages in it go on.
            let is_new = view.ledger.standing().run_at(first).is_none();
            let max = if is_new { max.min(view.window_room()) } else { max };
            if max == 0 {
                if view.ledger.standing().ready() == 0 {
                    return None;
                }
                let key = self.keys.key(first).unwrap_or(NO_KEY);
                self.offer.remove(lane, key, first);
                self.deferred.push((lane, key, first));
                continue;
            }
            if !view.fits(consumer, first) {
                return None;
            }
            return Some(self.take(view, now, consumer, lane, first, max));
        }
    }

    /// Takes messages off the offer, from `first` on.
    fn take(
        &mut self,
        view: View<'_>,
        now: Timestamp,
        consumer: ConsumerId,
        lane: u8,
        first: Seq,
        max: u64,
    ) -> Offered {
        let Offered { seqs: run, attempts, again } = view.alike_from(first);
        let goes_alone = view.settings.key_batch > 1;
        if let Offer::Position(lanes) = &mut self.offer
            && !goes_alone
        {
            let offered = lanes.lane(lane).run_from(first).expect("a message that is first is on offer");
            let last = run.last.min(offered.last).min(first.plus(max - 1));
            let is_alone = lanes.count() == lanes.lane(lane).count();
            let last = if is_alone { last } else { view.last_of_rank(now, lane, first, last) };
            let seqs = view.cut_to_bytes(consumer, SeqRange::new(first, last));
            lanes.remove(lane, seqs);
            return Offered { seqs, attempts, again };
        }
        let key = self.keys.key(first).unwrap_or(NO_KEY);
        self.offer.remove(lane, key, first);
        if let Offer::Fair(fair) = &mut self.offer {
            fair.served(lane, key);
        }
        Offered { seqs: SeqRange::one(first), attempts, again }
    }

    /// The lane to take from, and the message that is first in it.
    fn best(&self, view: View<'_>, now: Timestamp, consumer: ConsumerId) -> Option<(u8, Seq)> {
        let first = |lane: u8| self.offer.first(lane, consumer);
        if view.stream.lanes.is_empty() && !matches!(self.offer, Offer::Pinned(_)) {
            let lane_zero = first(0);
            if lane_zero.is_some() || self.offer.count() == 0 {
                return lane_zero.map(|seq| (0, seq));
            }
        }
        view.best(now, first)
    }

    /// Keys whose turn is remembered although they have nothing to offer.
    #[cfg(test)]
    pub(in crate::group) fn remembered(&self) -> usize {
        let Offer::Fair(fair) = &self.offer else { return 0 };
        fair.remembered()
    }

    pub(super) fn end_dispatch(&mut self) {
        while let Some((lane, key, seq)) = self.deferred.pop() {
            self.offer.insert(lane, key, seq);
        }
    }

    /// Looks at messages that have arrived or been read. `found` collects parked messages whose keys were looked up.
    pub(in crate::group) fn look_at_all(
        &mut self,
        view: View<'_>,
        range: SeqRange,
        keys: KeyRun<'_>,
        found: &mut Vec<(Seq, KeyHash)>,
    ) {
        let before = self.offer.count();
        let mut looked_at = 0;
        for seq in range.seqs() {
            let key = keys.key((seq.0 - range.first.0) as usize);
            let is_unreadable = self.keys.is_ordered() && keys.is_unreadable(seq);
            if self.keys.parked_unseen.remove(SeqRange::one(seq)) > 0 {
                let parked = view.ledger.parked().get(seq);
                // An unknown key holds up no other message. It is looked up again when the message is replayed.
                if parked.is_some_and(|parked| parked.key.is_none()) && !is_unreadable {
                    found.push((seq, key));
                    self.parked(view, seq, Some(key));
                    self.refresh(view, key);
                }
                continue;
            }
            let again = self.keys.again.remove(SeqRange::one(seq)) > 0;
            if seq <= self.arrived && !again {
                continue;
            }
            // The rest is read again when there is room for it.
            if !again && self.is_window_taken(view) {
                break;
            }
            // Reads always ask for the next messages; any other message was asked for before a reset.
            if seq > self.arrived {
                let is_next = view.ledger.unsettled_from(self.arrived.next()) >= seq;
                if seq > self.arrived.next() && !is_next {
                    break;
                }
                self.arrived = seq;
            }
            looked_at += 1;
            if is_unreadable || self.keys.unreadable.contains(seq) {
                self.pass_by_unreadable(view, seq);
            } else {
                self.look_at(view, seq, key);
            }
        }
        let offered = self.offer.count().saturating_sub(before);
        self.passed_by = (100 - (offered * 100).checked_div(looked_at).unwrap_or(100).min(100)) as u32;
    }

    /// A message of an ordered group whose key cannot be read.
    fn pass_by_unreadable(&mut self, view: View<'_>, seq: Seq) {
        if view.ledger.is_settled(seq) {
            return;
        }
        self.keys.unreadable.insert(SeqRange::one(seq));
        self.give_up(view, seq);
    }

    /// A message whose key cannot be read is parked, unless it is with a consumer or on its way to another stream.
    fn give_up(&mut self, view: View<'_>, seq: Seq) {
        let state = view.ledger.standing().run_at(seq).map(|(_, state)| state);
        if !matches!(state, Some(State::Leased(_) | State::Moving { .. })) {
            self.keys.unfit.insert(SeqRange::one(seq));
        }
    }

    /// A message that may have to be offered, with its key.
    fn look_at(&mut self, view: View<'_>, seq: Seq, key: KeyHash) {
        if view.ledger.is_settled(seq) {
            return;
        }
        let state = view.ledger.standing().run_at(seq).map(|(_, state)| state);
        let is_undue = state.is_none() && view.stream.undue.contains(seq);
        if is_undue && !self.keys.is_ordered() {
            // When its time comes its key is looked up again.
            return;
        }
        self.keys.enter(seq, key, matches!(state, Some(State::Leased(_))));
        if self.keys.is_ordered() && key != NO_KEY {
            self.refresh(view, key);
        } else if !is_undue && matches!(state, None | Some(State::Ready { .. })) {
            self.offer.insert(view.stream.priority(seq), key, seq);
        }
    }

    fn refresh(&mut self, view: View<'_>, key: KeyHash) {
        let Keyed { keys, offer, .. } = self;
        keys.refresh(key, offer, |seq| view.fate(seq), |seq| view.stream.priority(seq));
    }

    pub(super) fn refresh_key_of(&mut self, view: View<'_>, seq: Seq) {
        let key = Some(&self.keys).filter(|keys| keys.is_ordered()).and_then(|keys| keys.key(seq));
        if let Some(key) = key.filter(|&key| key != NO_KEY) {
            self.refresh(view, key);
        }
    }

    pub(super) fn gone(&mut self, view: View<'_>, seqs: SeqRange) {
        if seqs.first == seqs.last {
            self.one_gone(view, seqs.first);
        } else {
            for seq in self.known_among(seqs) {
                self.one_gone(view, seq);
            }
            self.keys.again.remove(seqs);
            self.keys.forget_unreadable(seqs);
        }
        // Messages that had not been looked at when they went need not be.
        if seqs.contains(self.arrived.next()) {
            self.arrived = seqs.last;
        }
    }

    fn one_gone(&mut self, view: View<'_>, seq: Seq) {
        let is_ordered = self.keys.is_ordered();
        if let Some(key) = self.keys.gone(seq).filter(|&key| is_ordered && key != NO_KEY) {
            self.refresh(view, key);
        }
    }

    /// Messages whose keys are known, out of a range that may be far longer.
    fn known_among(&self, seqs: SeqRange) -> Vec<Seq> {
        if seqs.first > self.arrived {
            return Vec::new();
        }
        self.keys.known_in(SeqRange::new(seqs.first, seqs.last.min(self.arrived)))
    }

    pub(super) fn withdraw_all(&mut self, view: View<'_>, seqs: SeqRange) {
        self.keys.again.remove(seqs);
        for seq in self.known_among(seqs) {
            self.withdraw(view, seq);
        }
    }

    pub(super) fn withdraw(&mut self, view: View<'_>, seq: Seq) {
        match self.keys.key(seq) {
            // Whatever happens to it next refreshes its key.
            Some(key) if self.keys.is_ordered() && key != NO_KEY => {}
            Some(key) => self.offer.remove(view.stream.priority(seq), key, seq),
            None => {
                self.keys.again.remove(SeqRange::one(seq));
            }
        }
    }

    pub(super) fn parked(&mut self, view: View<'_>, seq: Seq, key: Option<KeyHash>) {
        if holds_keys(view.settings) {
            self.keys.parked(seq, key);
        }
    }

    pub(super) fn unparked(&mut self, view: View<'_>, seq: Seq, key: Option<KeyHash>) {
        if !holds_keys(view.settings) {
            return;
        }
        match key {
            Some(key) if key != NO_KEY => {
                self.keys.let_go(key);
                self.refresh(view, key);
            }
            Some(_) => {}
            None => {
                self.keys.parked_unseen.remove(SeqRange::one(seq));
            }
        }
    }

    pub(super) fn replayed(&mut self, view: View<'_>, seq: Seq, key: Option<KeyHash>) {
        match key {
            // Messages ahead are looked at when the time comes, after those before them.
            _ if seq > self.arrived => {}
            Some(key) => self.look_at(view, seq, key),
            // It has none, or was parked when the group did not look at keys.
            None => {
                self.keys.again.insert(SeqRange::one(seq));
            }
        }
    }

    pub(super) fn ready(&mut self, view: View<'_>, seqs: SeqRange) {
        let is_ordered = self.keys.is_ordered();
        for seq in seqs.seqs() {
            match self.keys.key(seq) {
                Some(key) if is_ordered && key != NO_KEY => self.refresh(view, key),
                Some(key) => self.offer.insert(view.stream.priority(seq), key, seq),
                None if !is_ordered => self.look_again_if_unknown(seq),
                None if self.keys.unreadable.contains(seq) => self.give_up(view, seq),
                None => {}
            }
        }
    }

    /// A message whose key is not known is looked at again: the group would not come across it otherwise.
    pub(super) fn look_again_if_unknown(&mut self, seq: Seq) {
        if self.keys.key(seq).is_none() && !self.keys.unreadable.contains(seq) && seq <= self.arrived {
            self.keys.again.insert(SeqRange::one(seq));
        }
    }

    pub(super) fn takes_more(&self, view: View<'_>, scan_max: usize) -> bool {
        let buffer = u64::from(view.settings.buffer);
        self.wanted_on_offer(view, buffer) < buffer
            && !self.is_window_taken(view)
            && self.keys.bytes() < scan_max
    }

    /// Whether something in process has not been looked at since the group began anew.
    fn is_some_unseen(&self, view: View<'_>) -> bool {
        view.ledger.standing().run_from(self.arrived.next()).is_some()
    }

    pub(super) fn is_order_unknown(&self, view: View<'_>) -> bool {
        // Replayed and parked messages whose keys are being looked up may come before any other.
        let looks_up = !self.keys.again.is_empty() || !self.keys.parked_unseen.is_empty();
        self.keys.is_ordered() && (looks_up || self.is_some_unseen(view))
    }

    /// Messages on offer for consumers with room. Those that belong to a consumer without room are no reason not to
    /// look for more: a key that is stuck holds up only itself. Counted only where it may be as much as `enough`.
    fn wanted_on_offer(&self, view: View<'_>, enough: u64) -> u64 {
        let count = self.offer.count();
        if count < enough || !view.members.any_hungry() {
            return count;
        }
        self.offer.count_for_all(view.members.all_hungry())
    }

    /// Whether messages in process and on offer fill the window.
    ///
    /// After a restart messages in process have to be looked at again, however many there are: they could not be
    /// handed out otherwise, and the window would stay full.
    fn is_window_taken(&self, view: View<'_>) -> bool {
        let taken = view.ledger.standing().messages() + self.offer.count();
        !self.is_some_unseen(view) && taken >= u64::from(view.settings.window_max)
    }

    pub(super) fn wants_read(&self, view: View<'_>, scan_max: usize) -> Option<Wish> {
        let buffer = u64::from(view.settings.buffer);
        let keys = &self.keys;
        let looked_up =
            [&keys.again, &keys.parked_unseen].into_iter().find_map(|seqs| seqs.run_from(Seq::START));
        if let Some(run) = looked_up {
            let seqs = SeqRange::starting(run.first, run.count().min(buffer));
            // Parked messages are not handed out, and only their keys are wanted.
            return Some(Wish { seqs, keys: true, contents: !keys.again.is_empty() });
        }
        let first = view.ledger.unsettled_from(self.arrived.next());
        let is_enough = self.wanted_on_offer(view, buffer / 2 + 1) > buffer / 2;
        let waits = is_enough || !self.takes_more(view, scan_max);
        // Messages that fill the window may be all that can go, and further ahead after a restart.
        let must = self.is_order_unknown(view) || view.window_room() == 0 && self.is_some_unseen(view);
        if first > view.stream.durable || waits && !must {
            return None;
        }
        let passes_by = self.passed_by > 50;
        let count = if passes_by { STRIDE } else { buffer.min(STRIDE) };
        let last = first.plus(count - 1).min(view.stream.durable);
        Some(Wish { seqs: SeqRange::new(first, last), keys: true, contents: !passes_by })
    }
}

/// Whether a parked message holds up the rest of its key.
fn holds_keys(settings: &GroupSettings) -> bool {
    settings.strategy == Strategy::Ordered && settings.on_parked_key == OnParkedKey::Hold
}
