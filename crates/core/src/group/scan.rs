//! Looking at messages before they can be offered.
//!
//! A plain group need not look at all: what lies between its cursor and what has arrived is on offer, a range
//! at a time. Where the stream has priorities or delays, the next few are put on offer one range after the
//! other. A group that cares for keys looks at every message, in order.

use crate::group::decision::Decision;
use crate::group::keys::{Fate, Keys};
use crate::group::ledger::Ledger;
use crate::group::offer::{NO_KEY, Offer, Pinned};
use crate::group::standing::State;
use crate::group::{Group, ReadAhead, Turn};
use crate::lanes::{LANES, Lanes};
use crate::settings::{Fairness, OnParkedKey, Strategy};
use crate::stream::Stream;
use crate::types::{KeyHash, Seq, SeqRange};

/// Messages that are put on offer at a time where they have to be looked for.
const PULL: u64 = 256;
/// The same for each priority.
const PULL_LANE: u64 = 64;
/// Messages that are looked at in one go when most of them cannot go.
const STRIDE: u64 = 1_024;
/// Messages that are looked at, one by one, as they come.
const LOOK: u64 = 512;

/// Keys of messages that follow each other; zero is none.
#[derive(Debug, Clone, Copy)]
pub enum KeyRun<'a> {
    /// None of them has a key.
    Plain,
    Each(&'a [KeyHash]),
}

impl KeyRun<'_> {
    fn key(&self, n: usize) -> KeyHash {
        match self {
            KeyRun::Plain => NO_KEY,
            KeyRun::Each(keys) => keys.get(n).copied().unwrap_or(NO_KEY),
        }
    }
}

/// Whether a message that is first of its key may go.
fn fate(ledger: &Ledger, stream: &Stream, seq: Seq) -> Fate {
    if ledger.is_settled(seq) {
        return Fate::Gone { before: ledger.unsettled_from(seq).max(seq.next()) };
    }
    match ledger.standing().run_at(seq) {
        None if stream.undue.contains(seq) => Fate::Waits,
        None | Some((_, State::Ready { .. })) => Fate::Ready,
        Some(_) => Fate::Waits,
    }
}

impl Group {
    /// Makes what is on offer empty, and of the form that the settings ask for.
    pub(super) fn lay_out_offer(&mut self) {
        let ordered = self.settings.strategy == Strategy::Ordered;
        let lock = ordered.then_some(self.settings.key_lock);
        self.again_from = [Seq::START; LANES];
        self.keys = self.settings.is_keyed().then(|| Box::new(Keys::new(lock)));
        self.offer = if self.settings.strategy == Strategy::Pinned {
            let mut pinned = Pinned::default();
            for (consumer, _) in self.members.iter() {
                pinned.joined(consumer);
            }
            Offer::Pinned(Box::new(pinned))
        } else if self.settings.fairness == Fairness::Key {
            Offer::Fair(Box::default())
        } else {
            Offer::Position(Lanes::default())
        };
    }

    /// Begins to look for what can be offered from the floor on, as after a restart.
    pub(super) fn begin_anew(&mut self, stream: &Stream) {
        self.lay_out_offer();
        self.lane_cursors.clear();
        let floor = self.ledger.progress().floor();
        self.recheck = (!stream.expired.is_empty()).then(|| floor.next());
        if self.keys.is_none() {
            self.cursor = Seq(self.untouched_from(floor.next()).0 - 1);
            self.arrived = self.cursor;
            let ready: Vec<SeqRange> = self
                .ledger
                .standing()
                .runs()
                .filter(|(_, state)| matches!(state, State::Ready { .. }))
                .map(|(range, _)| range)
                .collect();
            for range in ready {
                self.put_on_offer(stream, range);
            }
            return;
        }
        self.cursor = floor;
        self.arrived = floor;
        if self.holds_keys() {
            let keys = self.keys.as_mut().expect("an ordered group looks at keys");
            for (seq, parked) in self.ledger.parked().iter_after(Seq::START) {
                keys.parked(seq, parked.key);
            }
        }
        // What was replayed lies below the floor, where nobody will look for it.
        let replayed: Vec<(Seq, Option<KeyHash>)> =
            self.ledger.replayed().range(..=floor).map(|(&seq, &key)| (seq, key)).collect();
        for (seq, key) in replayed {
            self.enter_replayed(stream, seq, key);
        }
    }

    /// Whether a parked message holds up the rest of its key.
    fn holds_keys(&self) -> bool {
        self.settings.strategy == Strategy::Ordered && self.settings.on_parked_key == OnParkedKey::Hold
    }

    /// A message was parked, and what follows it may have to wait for it.
    pub(super) fn hold_key_of(&mut self, seq: Seq, key: Option<KeyHash>) {
        if self.holds_keys()
            && let Some(keys) = &mut self.keys
        {
            keys.parked(seq, key);
        }
    }

    /// The key of a parked message has been looked up: the rest of it waits from now on.
    fn found_parked(&mut self, stream: &Stream, seq: Seq, key: KeyHash) {
        let is_unknown = self.ledger.parked().get(seq).is_some_and(|parked| parked.key.is_none());
        if is_unknown {
            self.decide(Decision::KeyFound { seq, key });
            self.hold_key_of(seq, Some(key));
            self.refresh(stream, key);
        }
    }

    /// Messages have become durable. A group that has kept up takes them as they come; one that has not
    /// will read them when it gets there. Says whether there is something to do.
    pub(crate) fn arrived(
        &mut self,
        stream: &Stream,
        range: SeqRange,
        keys: KeyRun<'_>,
        scan_max: usize,
    ) -> bool {
        if self.arrived.next() != range.first || !self.takes_more(scan_max) {
            return self.members.any();
        }
        if self.keys.is_none() {
            self.arrived = range.last;
            return self.members.any_with_room();
        }
        // The rest of a large batch is read when there is time, so that no turn is long.
        let some = SeqRange::starting(range.first, range.count().min(LOOK));
        self.look_at_all(stream, some, keys);
        if some == range { self.members.any_with_room() } else { self.members.any() }
    }

    /// What was asked for with [`ReadAhead`] has been read, from `first` on. More may have been asked for.
    pub(crate) fn read_ahead(&mut self, stream: &Stream, range: SeqRange, keys: KeyRun<'_>) {
        self.reading = false;
        // It was asked for when the group did not look at keys, and says nothing about them.
        if self.keys.is_some() && matches!(keys, KeyRun::Plain) {
            return;
        }
        if self.keys.is_some() {
            self.look_at_all(stream, range, keys);
        } else {
            self.arrived = self.arrived.max(range.last);
        }
    }

    pub(crate) fn looked_at(&self) -> Seq {
        self.arrived
    }

    pub(crate) fn read_nothing(&mut self) {
        self.reading = false;
    }

    /// Whether there is room for more that could be offered.
    fn takes_more(&self, scan_max: usize) -> bool {
        let buffer = u64::from(self.settings.buffer);
        match &self.keys {
            None => self.arrived.0 - self.cursor.0 < buffer,
            Some(keys) => {
                self.wanted_on_offer(buffer) < buffer && !self.is_window_taken() && keys.bytes() < scan_max
            }
        }
    }

    /// Whether something in process has not been looked at since the group began anew.
    fn is_some_unseen(&self) -> bool {
        self.ledger.standing().run_from(self.arrived.next()).is_some()
    }

    /// Whether a key may be locked by a message that has not been looked at since the group began anew. Until
    /// it has been, nothing can be handed out in order.
    pub(super) fn is_order_unknown(&self) -> bool {
        let ordered = self.keys.as_ref().filter(|keys| keys.is_ordered());
        // What was replayed or parked and whose key is being looked up may come before anything.
        let looks_up = |keys: &Keys| !keys.again.is_empty() || !keys.parked_unseen.is_empty();
        ordered.is_some_and(|keys| looks_up(keys) || self.is_some_unseen())
    }

    /// What is on offer for those with room. What belongs to one without is no reason not to look for more:
    /// a key that is stuck holds up only itself. Counted only where it may be as much as `enough`.
    fn wanted_on_offer(&self, enough: u64) -> u64 {
        let count = self.offer.count();
        if count < enough || !self.members.any_hungry() {
            return count;
        }
        self.offer.count_for_all(self.members.all_hungry())
    }

    /// Whether what is in process and what is on offer fill the window of a group that looks at messages.
    ///
    /// After a restart what is in process has to be looked at again, however much it is: nobody could have
    /// it otherwise, and the window would stay full.
    fn is_window_taken(&self) -> bool {
        !self.is_some_unseen()
            && self.ledger.standing().messages() + self.offer.count() >= u64::from(self.settings.window_max)
    }

    /// Whether reading on has stopped because too much had to be read past.
    pub(super) fn is_key_scan_full(&self, scan_max: usize) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.bytes() >= scan_max)
    }

    fn look_at_all(&mut self, stream: &Stream, range: SeqRange, keys: KeyRun<'_>) {
        let before = self.offer.count();
        let mut looked_at = 0;
        for seq in range.seqs() {
            let known = self.keys.as_mut().expect("a group that looks at keys");
            if known.parked_unseen.remove(SeqRange::one(seq)) > 0 {
                self.found_parked(stream, seq, keys.key((seq.0 - range.first.0) as usize));
                continue;
            }
            let again = known.again.remove(SeqRange::one(seq)) > 0;
            if seq <= self.arrived && !again {
                continue;
            }
            // The rest is read again when there is room for it.
            if !again && self.is_window_taken() {
                break;
            }
            // What is asked for is always the next; anything else was asked for before a reset.
            if seq > self.arrived {
                if seq > self.arrived.next() && !self.is_settled_between(self.arrived.next(), seq) {
                    break;
                }
                self.arrived = seq;
                self.cursor = seq;
            }
            looked_at += 1;
            self.look_at(stream, seq, keys.key((seq.0 - range.first.0) as usize));
        }
        let offered = self.offer.count().saturating_sub(before);
        self.passed_by = (100 - (offered * 100).checked_div(looked_at).unwrap_or(100).min(100)) as u32;
    }

    /// Whether everything from `first` up to, but not including, `end` is settled.
    fn is_settled_between(&self, first: Seq, end: Seq) -> bool {
        self.ledger.unsettled_from(first) >= end
    }

    /// A message that may have to be offered, with its key.
    fn look_at(&mut self, stream: &Stream, seq: Seq, key: KeyHash) {
        if self.ledger.is_settled(seq) {
            return;
        }
        let state = self.ledger.standing().run_at(seq).map(|(_, state)| state);
        let keys = self.keys.as_mut().expect("a group that looks at keys");
        let undue = state.is_none() && stream.undue.contains(seq);
        if undue && !keys.is_ordered() {
            // When its time comes its key is looked up again.
            return;
        }
        keys.enter(seq, key, matches!(state, Some(State::Leased(_))));
        if keys.is_ordered() && key != NO_KEY {
            self.refresh(stream, key);
        } else if !undue && matches!(state, None | Some(State::Ready { .. })) {
            self.offer.insert(stream.priority(seq), key, seq);
        }
    }

    fn refresh(&mut self, stream: &Stream, key: KeyHash) {
        let Group { keys, offer, ledger, .. } = self;
        if let Some(keys) = keys {
            keys.refresh(key, offer, |seq| fate(ledger, stream, seq), |seq| stream.priority(seq));
        }
    }

    /// Something has happened to a message: what is first of its key may be another now.
    pub(super) fn refresh_key_of(&mut self, stream: &Stream, seq: Seq) {
        let key = self.keys.as_ref().filter(|keys| keys.is_ordered()).and_then(|keys| keys.key(seq));
        if let Some(key) = key.filter(|&key| key != NO_KEY) {
            self.refresh(stream, key);
        }
    }

    /// Messages are settled or parked.
    pub(super) fn keys_gone(&mut self, stream: &Stream, seqs: SeqRange) {
        if self.keys.is_none() {
            return;
        }
        if seqs.first == seqs.last {
            self.key_gone(stream, seqs.first);
        } else {
            for seq in self.known_among(seqs) {
                self.key_gone(stream, seq);
            }
            self.keys.as_mut().expect("a group that looks at keys").again.remove(seqs);
        }
        // What had not been looked at when it went need not be.
        if seqs.contains(self.arrived.next()) {
            self.arrived = seqs.last;
            self.cursor = seqs.last;
        }
    }

    fn key_gone(&mut self, stream: &Stream, seq: Seq) {
        let keys = self.keys.as_mut().expect("a group that looks at keys");
        let ordered = keys.is_ordered();
        if let Some(key) = keys.gone(seq).filter(|&key| ordered && key != NO_KEY) {
            self.refresh(stream, key);
        }
    }

    /// Those whose keys are known, for whoever does something to a range that may be far longer.
    fn known_among(&self, seqs: SeqRange) -> Vec<Seq> {
        let Some(keys) = self.keys.as_ref().filter(|_| seqs.first <= self.arrived) else { return Vec::new() };
        keys.known_in(SeqRange::new(seqs.first, seqs.last.min(self.arrived)))
    }

    /// None of these is to go after all. They have not been handed out, or were given back.
    pub(super) fn take_all_off_offer(&mut self, stream: &Stream, seqs: SeqRange) {
        let Some(keys) = &mut self.keys else {
            let Offer::Position(lanes) = &mut self.offer else { unreachable!("a plain group's order") };
            lanes.remove_all(seqs);
            return;
        };
        keys.again.remove(seqs);
        for seq in self.known_among(seqs) {
            self.take_off_offer(stream, seq);
        }
    }

    /// A message is parked no longer, and does not hold up the rest of its key.
    pub(super) fn let_go_of_key(&mut self, stream: &Stream, seq: Seq, key: Option<KeyHash>) {
        if !self.holds_keys() {
            return;
        }
        let keys = self.keys.as_mut().expect("an ordered group looks at keys");
        match key {
            Some(key) if key != NO_KEY => {
                keys.let_go(key);
                self.refresh(stream, key);
            }
            Some(_) => {}
            None => {
                keys.parked_unseen.remove(SeqRange::one(seq));
            }
        }
    }

    /// A parked message is ready again, and takes its place in its key.
    pub(super) fn enter_replayed(&mut self, stream: &Stream, seq: Seq, key: Option<KeyHash>) {
        match (&mut self.keys, key) {
            (None, _) => self.put_on_offer(stream, SeqRange::one(seq)),
            // What is ahead is looked at when the time comes, after what is before it.
            (Some(_), _) if seq > self.arrived => {}
            (Some(_), Some(key)) => self.look_at(stream, seq, key),
            // It has none, or was parked when nobody looked at keys.
            (Some(keys), None) => {
                keys.again.insert(SeqRange::one(seq));
            }
        }
    }

    /// Messages that may go now: offered before and ready again, or due for the first time.
    pub(super) fn put_on_offer(&mut self, stream: &Stream, seqs: SeqRange) {
        let Some(keys) = &mut self.keys else {
            let Offer::Position(lanes) = &mut self.offer else { unreachable!("a plain group's order") };
            for again_from in &mut self.again_from {
                *again_from = seqs.first.min(*again_from);
            }
            if stream.lanes.is_empty() {
                lanes.insert(0, seqs);
            } else {
                for seq in seqs.seqs() {
                    lanes.insert(stream.priority(seq), SeqRange::one(seq));
                }
            }
            return;
        };
        if keys.is_ordered() {
            for seq in seqs.seqs() {
                match self.keys.as_ref().and_then(|keys| keys.key(seq)) {
                    Some(NO_KEY) => self.offer.insert(stream.priority(seq), NO_KEY, seq),
                    Some(key) => self.refresh(stream, key),
                    None => {}
                }
            }
            return;
        }
        for seq in seqs.seqs() {
            match keys.key(seq) {
                Some(key) => self.offer.insert(stream.priority(seq), key, seq),
                None if seq <= self.arrived => {
                    keys.again.insert(SeqRange::one(seq));
                }
                None => {}
            }
        }
    }

    /// A message on offer is not to go after all.
    pub(super) fn take_off_offer(&mut self, stream: &Stream, seq: Seq) {
        let lane = stream.priority(seq);
        match &mut self.keys {
            None => self.offer.remove(lane, NO_KEY, seq),
            Some(keys) => {
                let ordered = keys.is_ordered();
                match keys.key(seq) {
                    // Whatever happens to it next refreshes its key.
                    Some(key) if ordered && key != NO_KEY => {}
                    Some(key) => self.offer.remove(lane, key, seq),
                    None => {
                        keys.again.remove(SeqRange::one(seq));
                    }
                }
            }
        }
    }

    /// The time of these has come.
    pub(crate) fn came_due(&mut self, stream: &Stream, seq: Seq) {
        if self.ledger.is_settled(seq) || self.ledger.standing().run_at(seq).is_some() {
            return;
        }
        let lane = stream.priority(seq);
        let passed = match &self.keys {
            None if lane > 0 => seq <= self.lane_cursor(lane),
            _ => seq <= self.arrived && seq <= self.cursor,
        };
        if passed {
            self.put_on_offer(stream, SeqRange::one(seq));
        }
    }

    fn lane_cursor(&self, lane: u8) -> Seq {
        self.lane_cursors.get(usize::from(lane)).copied().unwrap_or(Seq::START)
    }

    /// Whether what lies ahead of a plain group has to be looked for, because some of it has a priority or
    /// is not due.
    pub(super) fn must_pull(&self, stream: &Stream) -> bool {
        self.keys.is_none() && !(stream.lanes.is_empty() && stream.undue.is_empty())
    }

    /// Puts the next few of what lies ahead on offer.
    pub(super) fn pull(&mut self, turn: &mut Turn<'_>) {
        let stream = turn.stream;
        let room = self.window_room();
        if !stream.lanes.is_empty() {
            self.lane_cursors.resize(LANES, Seq::START);
            for lane in 1..LANES as u8 {
                let Offer::Position(lanes) = &self.offer else { return };
                // One that is offered again may be all there is of a lane, with new ones right behind it.
                if lanes.lane(lane).count() < PULL_LANE && room > 0 {
                    self.pull_lane(turn, lane);
                }
            }
        }
        let Offer::Position(lanes) = &self.offer else { return };
        let wanted = PULL.min(room).saturating_sub(lanes.lane(0).count());
        self.pull_plain(turn, wanted);
    }

    /// Puts more on offer of those priorities of which nothing is left there, so that none of a lower one
    /// goes before it.
    pub(super) fn pull_what_ran_out(&mut self, turn: &mut Turn<'_>) {
        let room = self.window_room();
        if room == 0 {
            return;
        }
        if !turn.stream.lanes.is_empty() {
            self.lane_cursors.resize(LANES, Seq::START);
        }
        for lane in 0..LANES as u8 {
            let Offer::Position(lanes) = &self.offer else { return };
            if !lanes.lane(lane).is_empty() {
                continue;
            }
            if lane == 0 {
                self.pull_plain(turn, PULL.min(room));
            } else if !turn.stream.lanes.lane(lane).is_empty() {
                self.pull_lane(turn, lane);
            }
        }
    }

    fn pull_plain(&mut self, turn: &mut Turn<'_>, mut wanted: u64) {
        while wanted > 0 && self.cursor < self.arrived && !turn.budget.is_spent() {
            turn.budget.spend_run(0);
            // Where much has to be passed over, the next may be further ahead.
            let Some(seqs) = self.next_plain(turn.stream, wanted) else { continue };
            wanted -= seqs.count();
            let Offer::Position(lanes) = &mut self.offer else { return };
            lanes.insert(0, seqs);
        }
    }

    fn pull_lane(&mut self, turn: &mut Turn<'_>, lane: u8) {
        let stream = turn.stream;
        let floor = self.ledger.progress().floor();
        let mut next = self.lane_cursor(lane).max(floor).next();
        let mut wanted = PULL_LANE;
        while wanted > 0
            && !turn.budget.is_spent()
            && let Some(seq) = stream.lanes.lane(lane).first_from(next).filter(|&seq| seq <= stream.durable)
        {
            turn.budget.spend_run(0);
            next = seq.next();
            let is_new = !self.ledger.is_settled(seq) && self.ledger.standing().run_at(seq).is_none();
            if is_new && !stream.undue.contains(seq) {
                let Offer::Position(lanes) = &mut self.offer else { return };
                lanes.insert(lane, SeqRange::one(seq));
                wanted -= 1;
            }
        }
        self.lane_cursors[usize::from(lane)] = Seq(next.0 - 1);
    }

    /// The next messages ahead of the cursor that have no priority, are due, and have never been handed out
    /// nor settled. Moves the cursor past them.
    pub(super) fn next_plain(&mut self, stream: &Stream, max: u64) -> Option<SeqRange> {
        if self.cursor >= self.arrived || max == 0 {
            return None;
        }
        let special = !(stream.lanes.is_empty() && stream.undue.is_empty());
        let mut first = self.untouched_from(self.cursor.next());
        if special {
            let mut tries = 0;
            while first <= self.arrived
                && (stream.undue.contains(first) || stream.lanes.lane_of(first).is_some())
                && tries < PULL
            {
                let after = stream.undue.gap_from(first).max(first.next());
                first = self.untouched_from(after);
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
        // After a restart what lies ahead may have been handed out or settled before.
        if let Some((run, _)) = self.ledger.standing().run_from(first) {
            last = last.min(Seq(run.first.0 - 1));
        }
        if let Some(run) = self.ledger.progress().above().run_from(first) {
            last = last.min(Seq(run.first.0 - 1));
        }
        if special {
            let undue = stream.undue.first_from(first);
            let other = undue.into_iter().chain(stream.lanes.next_from(first)).min();
            last = other.map_or(last, |other| last.min(Seq(other.0 - 1)));
        }
        self.cursor = last;
        Some(SeqRange::new(first, last))
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

    /// How many more messages may be in process.
    pub(super) fn window_room(&self) -> u64 {
        u64::from(self.settings.window_max).saturating_sub(self.ledger.standing().messages())
    }

    /// Asks for more when what may be handed out runs low and there is somebody to hand it to.
    pub(super) fn read_on(&mut self, turn: &mut Turn<'_>) {
        let durable = turn.stream.durable;
        if self.reading || !self.members.any() || self.ledger.is_paused() {
            return;
        }
        let buffer = u64::from(self.settings.buffer);
        let read =
            |seqs, keys, contents| ReadAhead { group: self.id, stream: self.stream, seqs, keys, contents };
        let Some(keys) = &self.keys else {
            if self.arrived < durable && self.arrived.0 - self.cursor.0 <= buffer / 2 {
                let last = self.arrived.plus(buffer).min(durable);
                turn.effects.reads.push(read(SeqRange::new(self.arrived.next(), last), false, true));
                self.reading = true;
            }
            return;
        };
        let looked_up =
            [&keys.again, &keys.parked_unseen].into_iter().find_map(|seqs| seqs.run_from(Seq::START));
        if let Some(run) = looked_up {
            let seqs = SeqRange::starting(run.first, run.count().min(buffer));
            // What is parked is not handed out, and only its key is wanted.
            let contents = !keys.again.is_empty();
            turn.effects.reads.push(read(seqs, true, contents));
            self.reading = true;
            return;
        }
        let first = self.ledger.unsettled_from(self.arrived.next());
        let is_enough = self.wanted_on_offer(buffer / 2 + 1) > buffer / 2;
        let waits = is_enough || !self.takes_more(turn.key_scan_bytes_max);
        // What fills the window may be all that can go, and further ahead after a restart.
        let must = self.is_order_unknown() || self.window_room() == 0 && self.is_some_unseen();
        if first > durable || waits && !must {
            return;
        }
        let passes_by = self.passed_by > 50;
        let count = if passes_by { STRIDE } else { buffer.min(STRIDE) };
        let last = first.plus(count - 1).min(durable);
        turn.effects.reads.push(read(SeqRange::new(first, last), true, !passes_by));
        self.reading = true;
    }
}
