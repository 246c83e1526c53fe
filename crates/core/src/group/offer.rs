//! The messages that may go out now, and their order: by position, or so that keys take turns, or by the
//! consumer that a key belongs to. Within each, by priority.

use std::collections::{BTreeMap, BTreeSet};

use crate::group::keys::Keys;
use crate::lanes::{LANES, Lanes};
use crate::queue::Queue;
use crate::settings::{Fairness, GroupSettings, Strategy};
use crate::types::{ConsumerId, KeyHash, Seq, SeqRange};

/// Stands for messages without a key.
pub(crate) const NO_KEY: KeyHash = KeyHash(0);

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a group has one, and nearly always the large one")]
pub(crate) enum Offer {
    Position(Lanes),
    Fair(Box<Fair>),
    Pinned(Box<Pinned>),
}

impl Offer {
    /// Nothing on offer, in the order that the settings ask for.
    pub(crate) fn new(settings: &GroupSettings, consumers: impl Iterator<Item = ConsumerId>) -> Offer {
        if settings.strategy == Strategy::Pinned {
            let mut pinned = Pinned::default();
            consumers.for_each(|consumer| pinned.joined(consumer));
            Offer::Pinned(Box::new(pinned))
        } else if settings.fairness == Fairness::Key {
            Offer::Fair(Box::default())
        } else {
            Offer::Position(Lanes::default())
        }
    }

    pub(crate) fn joined(&mut self, consumer: ConsumerId) {
        if let Offer::Pinned(pinned) = self {
            pinned.joined(consumer);
        }
    }

    pub(crate) fn left(&mut self, consumer: ConsumerId) {
        if let Offer::Pinned(pinned) = self {
            pinned.left(consumer);
        }
    }

    pub(crate) fn count(&self) -> u64 {
        match self {
            Offer::Position(lanes) => lanes.count(),
            Offer::Fair(fair) => fair.count,
            Offer::Pinned(pinned) => pinned.count,
        }
    }

    pub(crate) fn insert(&mut self, lane: u8, key: KeyHash, seq: Seq) {
        match self {
            Offer::Position(lanes) => lanes.insert(lane, SeqRange::one(seq)),
            Offer::Fair(fair) => fair.insert(lane, key, seq),
            Offer::Pinned(pinned) => pinned.insert(lane, key, seq),
        }
    }

    /// Takes a message off. It is in another lane than `lane` if its stream has forgotten its priority since.
    pub(crate) fn remove(&mut self, lane: u8, key: KeyHash, seq: Seq) {
        let before = self.count();
        self.remove_from(lane, key, seq);
        for other in (0..LANES as u8).filter(|&other| other != lane) {
            if self.count() < before {
                break;
            }
            self.remove_from(other, key, seq);
        }
    }

    fn remove_from(&mut self, lane: u8, key: KeyHash, seq: Seq) {
        match self {
            Offer::Position(lanes) => {
                lanes.remove(lane, SeqRange::one(seq));
            }
            Offer::Fair(fair) => fair.remove(lane, key, seq),
            Offer::Pinned(pinned) => pinned.remove(lane, key, seq),
        }
    }

    /// Whether a message is on offer. `lane` and `keys` say where it would be.
    pub(crate) fn contains(&self, lane: u8, seq: Seq, keys: &Keys) -> bool {
        let key = keys.key(seq).unwrap_or(NO_KEY);
        match self {
            Offer::Position(lanes) => lanes.lane_of(seq).is_some(),
            Offer::Fair(fair) => fair.keys.get(&(lane, key)).is_some_and(|line| line.queue.contains(seq)),
            Offer::Pinned(pinned) if key == NO_KEY => pinned.free.lane_of(seq).is_some(),
            Offer::Pinned(pinned) => {
                let bucket = pinned.buckets.get(&bucket_of(key));
                bucket.is_some_and(|bucket| bucket.lanes.lane_of(seq).is_some())
            }
        }
    }

    /// The first message of a lane for this consumer.
    pub(crate) fn first(&self, lane: u8, consumer: ConsumerId) -> Option<Seq> {
        match self {
            Offer::Position(lanes) => lanes.lane(lane).first(),
            Offer::Fair(fair) => fair.first(lane).map(|(_, seq)| seq),
            Offer::Pinned(pinned) => pinned.first(lane, consumer),
        }
    }

    /// How many there are for any of these consumers.
    pub(crate) fn count_for_all(&self, consumers: impl Iterator<Item = ConsumerId>) -> u64 {
        match self {
            Offer::Pinned(pinned) => {
                let owned = consumers.filter_map(|consumer| pinned.consumers.get(&consumer));
                owned.map(|owned| owned.count).sum::<u64>() + pinned.free.count()
            }
            other => other.count(),
        }
    }

    /// Takes off what `first` says, whatever is known of it by now: its key and its priority are forgotten
    /// when it is settled.
    pub(crate) fn drop_first(&mut self, lane: u8, consumer: ConsumerId) {
        let Some(seq) = self.first(lane, consumer) else { return };
        match self {
            Offer::Position(lanes) => drop(lanes.remove(lane, SeqRange::one(seq))),
            Offer::Fair(fair) => {
                if let Some((key, seq)) = fair.first(lane) {
                    fair.remove(lane, key, seq);
                }
            }
            Offer::Pinned(pinned) => pinned.drop_first(lane, consumer, seq),
        }
    }

    /// How many there are for this consumer.
    pub(crate) fn count_for(&self, consumer: ConsumerId) -> u64 {
        match self {
            Offer::Pinned(pinned) => pinned.count_for(consumer),
            other => other.count(),
        }
    }
}

/// Keys take turns: the one that was served longest ago is next, and among those that were served equally long
/// ago the one that has been on offer for longer.
#[derive(Debug, Default)]
pub(crate) struct Fair {
    count: u64,
    clock: u64,
    /// How often a key got into line.
    entered: u64,
    keys: BTreeMap<(u8, KeyHash), Line>,
    turns: [BTreeSet<(Turn, KeyHash)>; LANES],
    /// The turns of keys that have nothing to offer just now, so that coming back is no way to be first. As many
    /// as are worth remembering.
    absent: BTreeMap<(u8, KeyHash), Turn>,
    /// The same, longest ago first.
    longest_ago: BTreeSet<(Turn, u8, KeyHash)>,
}

/// When a key is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    /// The clock when the key was last served, or, for one never served, when it got into line.
    served: u64,
    /// When it got into line, if it has not been served since.
    entered: Option<u64>,
}

/// Keys without messages whose turn is remembered.
const SERVED_MAX: usize = 4_096;

#[derive(Debug)]
struct Line {
    turn: Turn,
    queue: Queue,
}

impl Fair {
    fn insert(&mut self, lane: u8, key: KeyHash, seq: Seq) {
        let clock = self.clock;
        let (absent, longest_ago, entered) = (&mut self.absent, &mut self.longest_ago, &mut self.entered);
        let line = self.keys.entry((lane, key)).or_insert_with(|| {
            let known = absent.remove(&(lane, key));
            if let Some(turn) = known {
                longest_ago.remove(&(turn, lane, key));
            }
            // One that has never been served, or long ago, goes before all that have been since. One that was
            // only taken off the offer has its place still.
            let mut turn = known.unwrap_or(Turn { served: clock, entered: None });
            turn.entered.get_or_insert_with(|| {
                *entered += 1;
                *entered
            });
            Line { turn, queue: Queue::default() }
        });
        if line.queue.is_empty() {
            self.turns[usize::from(lane)].insert((line.turn, key));
        }
        if line.queue.insert(seq) {
            self.count += 1;
        }
    }

    fn remove(&mut self, lane: u8, key: KeyHash, seq: Seq) {
        let Some(line) = self.keys.get_mut(&(lane, key)) else { return };
        if !line.queue.remove(seq) {
            return;
        }
        self.count -= 1;
        if line.queue.is_empty() {
            let turn = line.turn;
            self.turns[usize::from(lane)].remove(&(turn, key));
            self.keys.remove(&(lane, key));
            self.remember(lane, key, turn);
        }
    }

    fn first(&self, lane: u8) -> Option<(KeyHash, Seq)> {
        let &(_, key) = self.turns[usize::from(lane)].first()?;
        Some((key, self.keys[&(lane, key)].queue.first().expect("a key in turn has something")))
    }

    /// The key that is first has been served, and is last now.
    pub(crate) fn served(&mut self, lane: u8, key: KeyHash) {
        self.clock += 1;
        let mut turn = Turn { served: self.clock, entered: None };
        match self.keys.get_mut(&(lane, key)) {
            Some(line) => {
                self.entered += 1;
                turn.entered = Some(self.entered);
                self.turns[usize::from(lane)].remove(&(line.turn, key));
                line.turn = turn;
                self.turns[usize::from(lane)].insert((turn, key));
            }
            None => self.remember(lane, key, turn),
        }
    }

    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        assert_eq!(self.absent.len(), self.longest_ago.len());
        self.absent.len()
    }

    fn remember(&mut self, lane: u8, key: KeyHash, turn: Turn) {
        if let Some(before) = self.absent.insert((lane, key), turn) {
            self.longest_ago.remove(&(before, lane, key));
        }
        self.longest_ago.insert((turn, lane, key));
        if self.absent.len() > SERVED_MAX {
            let (_, lane, key) = self.longest_ago.pop_first().expect("a remembered key is in both maps");
            self.absent.remove(&(lane, key));
        }
    }
}

/// Keys are spread over this many buckets, and a bucket belongs to one consumer.
const BUCKETS: u64 = 1_024;

/// Each key stays with one consumer until that one leaves or has to share with a newcomer.
#[derive(Debug, Default)]
pub(crate) struct Pinned {
    count: u64,
    /// Messages without a key go to any consumer.
    free: Lanes,
    buckets: BTreeMap<u16, Bucket>,
    consumers: BTreeMap<ConsumerId, Owned>,
}

#[derive(Debug, Default)]
struct Bucket {
    owner: Option<ConsumerId>,
    lanes: Lanes,
}

#[derive(Debug, Default)]
struct Owned {
    buckets: BTreeSet<u16>,
    /// The first message of each of its buckets.
    heads: [BTreeSet<(Seq, u16)>; LANES],
    count: u64,
}

fn bucket_of(key: KeyHash) -> u16 {
    // Hashes of keys are even, but whatever makes them need not be.
    (key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u16 % BUCKETS as u16
}

impl Pinned {
    fn joined(&mut self, consumer: ConsumerId) {
        self.consumers.insert(consumer, Owned::default());
        let assigned = self.buckets.values().filter(|bucket| bucket.owner.is_some()).count();
        let fair = assigned.div_ceil(self.consumers.len());
        let owned: Vec<(ConsumerId, u16)> = self
            .consumers
            .iter()
            .flat_map(|(&owner, owned)| owned.buckets.iter().skip(fair).map(move |&bucket| (owner, bucket)))
            .collect();
        for (_, bucket) in owned {
            self.give(bucket, Some(consumer));
        }
        let orphans: Vec<u16> =
            self.buckets.iter().filter(|(_, bucket)| bucket.owner.is_none()).map(|(&n, _)| n).collect();
        for bucket in orphans {
            let least = self.least_loaded();
            self.give(bucket, least);
        }
    }

    fn left(&mut self, consumer: ConsumerId) {
        let Some(owned) = self.consumers.get(&consumer) else { return };
        let buckets: Vec<u16> = owned.buckets.iter().copied().collect();
        for &bucket in &buckets {
            self.give(bucket, None);
        }
        self.consumers.remove(&consumer);
        for bucket in buckets {
            let least = self.least_loaded();
            self.give(bucket, least);
        }
    }

    fn least_loaded(&self) -> Option<ConsumerId> {
        let loads = self.consumers.iter().map(|(&consumer, owned)| (owned.buckets.len(), consumer));
        loads.min().map(|(_, consumer)| consumer)
    }

    /// Puts a bucket, with all that is in it, into other hands.
    fn give(&mut self, number: u16, to: Option<ConsumerId>) {
        let bucket = self.buckets.entry(number).or_default();
        let from = std::mem::replace(&mut bucket.owner, to);
        let count = bucket.lanes.count();
        let heads: Vec<(usize, Seq)> = (0..LANES as u8)
            .filter_map(|lane| bucket.lanes.lane(lane).first().map(|seq| (usize::from(lane), seq)))
            .collect();
        if let Some(owned) = from.and_then(|from| self.consumers.get_mut(&from)) {
            owned.buckets.remove(&number);
            owned.count -= count;
            for &(lane, seq) in &heads {
                owned.heads[lane].remove(&(seq, number));
            }
        }
        if let Some(owned) = to.and_then(|to| self.consumers.get_mut(&to)) {
            owned.buckets.insert(number);
            owned.count += count;
            for &(lane, seq) in &heads {
                owned.heads[lane].insert((seq, number));
            }
        }
    }

    fn insert(&mut self, lane: u8, key: KeyHash, seq: Seq) {
        if key == NO_KEY {
            let before = self.free.count();
            self.free.insert(lane, SeqRange::one(seq));
            self.count += self.free.count() - before;
            return;
        }
        let number = bucket_of(key);
        if self.buckets.get(&number).is_none_or(|bucket| bucket.owner.is_none()) {
            let least = self.least_loaded();
            self.give(number, least);
        }
        self.change(number, lane, |lanes| {
            let before = lanes.count();
            lanes.insert(lane, SeqRange::one(seq));
            (lanes.count() - before) as i64
        });
    }

    fn remove(&mut self, lane: u8, key: KeyHash, seq: Seq) {
        if key == NO_KEY {
            self.count -= self.free.remove(lane, SeqRange::one(seq));
            return;
        }
        self.change(bucket_of(key), lane, |lanes| -(lanes.remove(lane, SeqRange::one(seq)) as i64));
    }

    /// Changes the messages of a bucket, and updates its owner's first message of it.
    fn change(&mut self, number: u16, lane: u8, change: impl FnOnce(&mut Lanes) -> i64) {
        let bucket = self.buckets.entry(number).or_default();
        let before = bucket.lanes.lane(lane).first();
        let by = change(&mut bucket.lanes);
        let after = bucket.lanes.lane(lane).first();
        self.count = self.count.wrapping_add_signed(by);
        if let Some(owned) = bucket.owner.and_then(|owner| self.consumers.get_mut(&owner)) {
            owned.count = owned.count.wrapping_add_signed(by);
            let heads = &mut owned.heads[usize::from(lane)];
            if before != after {
                before.map(|seq| heads.remove(&(seq, number)));
                after.map(|seq| heads.insert((seq, number)));
            }
        }
    }

    fn first(&self, lane: u8, consumer: ConsumerId) -> Option<Seq> {
        let owned = self.consumers.get(&consumer)?;
        let own = owned.heads[usize::from(lane)].first().map(|&(seq, _)| seq);
        own.into_iter().chain(self.free.lane(lane).first()).min()
    }

    fn drop_first(&mut self, lane: u8, consumer: ConsumerId, seq: Seq) {
        let owned = self.consumers.get(&consumer);
        let own = owned.and_then(|owned| owned.heads[usize::from(lane)].first()).copied();
        match own.filter(|&(own, _)| own == seq) {
            Some((_, number)) => {
                self.change(number, lane, |lanes| -(lanes.remove(lane, SeqRange::one(seq)) as i64));
            }
            None => self.count -= self.free.remove(lane, SeqRange::one(seq)),
        }
    }

    fn count_for(&self, consumer: ConsumerId) -> u64 {
        self.consumers.get(&consumer).map_or(0, |owned| owned.count) + self.free.count()
    }
}
