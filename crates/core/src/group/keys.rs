//! Keys: which messages of which key a group has looked at, and in an ordered group what may go next.
//!
//! A group that cares for keys looks at messages one by one, in order of position, and remembers those that are
//! not settled by key. In an ordered group the first message of a key may go if no consumer holds it, its own
//! time has come and, where a delivery locks the key, no message of the key is leased; all others wait in their
//! key's queue, which is small whether it holds one position or five million. After a restart the group looks
//! at them again.

use crate::fault::{Fault, planted};
use crate::group::gradual::GradualMap;
use crate::group::offer::{NO_KEY, Offer};
use crate::queue::Queue;
use crate::seqset::SeqSet;
use crate::settings::KeyLock;
use crate::types::{KeyHash, Seq, SeqRange};

#[derive(Debug)]
pub(crate) struct Keys {
    /// The rule that keeps a key waiting, if order matters.
    lock: Option<KeyLock>,
    /// Keys of messages that are on offer, in process, or first of their key.
    known: GradualMap<Seq, KeyHash>,
    /// Ordered: the waiting messages of each key.
    table: GradualMap<KeyHash, Key>,
    /// About how much memory the queues take, and which takes the most.
    bytes: usize,
    longest: Option<(KeyHash, u64)>,
    /// Messages whose key has to be looked up again: replayed, or not remembered while their time had not
    /// come.
    pub(crate) again: SeqSet,
    /// Parked messages whose key has to be looked up, since it may hold up others.
    pub(crate) parked_unseen: SeqSet,
    /// Ordered: messages whose keys cannot be read. Later messages of these keys may have gone, so these never go,
    /// even if they can be read another time.
    pub(crate) unreadable: SeqSet,
    /// Messages out of `unreadable` that are in no consumer's hands, and are to be parked.
    pub(crate) unfit: SeqSet,
}

#[derive(Debug, Default)]
struct Key {
    /// Looked at and not settled, in order; leased ones among them.
    queue: Queue,
    leased: u32,
    /// Parked messages of the key that hold up the rest.
    held: u32,
    offered: Option<Seq>,
    /// The estimated memory of the queue.
    cost: usize,
    newest: Seq,
}

/// The estimated memory of a key, and of a chunk of its waiting positions.
const KEY_COST: usize = 120;
const CHUNK_COST: usize = 640;

impl Keys {
    pub(crate) fn new(lock: Option<KeyLock>) -> Keys {
        Keys {
            lock,
            known: GradualMap::default(),
            table: GradualMap::default(),
            bytes: 0,
            longest: None,
            again: SeqSet::new(),
            parked_unseen: SeqSet::new(),
            unreadable: SeqSet::new(),
            unfit: SeqSet::new(),
        }
    }

    pub(crate) fn is_ordered(&self) -> bool {
        self.lock.is_some()
    }

    pub(crate) fn key(&self, seq: Seq) -> Option<KeyHash> {
        self.known.get(&seq).copied()
    }

    /// The messages of the range whose keys are known, in order. Looks at the fewer: all that are known, or all
    /// in the range.
    pub(crate) fn known_in(&self, range: SeqRange) -> Vec<Seq> {
        if range.count() <= self.known.len() as u64 {
            let mut known = Vec::with_capacity(range.count() as usize);
            known.extend(range.seqs().filter(|seq| self.known.contains_key(seq)));
            return known;
        }
        let mut known: Vec<Seq> = self.known.keys().copied().filter(|&seq| range.contains(seq)).collect();
        known.sort_unstable();
        known
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.known.len() * 24
    }

    /// The key with the most messages waiting.
    pub(crate) fn longest(&self) -> Option<(KeyHash, u64)> {
        self.longest.filter(|(key, _)| self.table.contains_key(key))
    }

    /// A message that is not settled was looked at. `leased`: it is with a consumer.
    pub(crate) fn enter(&mut self, seq: Seq, key: KeyHash, leased: bool) {
        if !self.is_ordered() || key == NO_KEY {
            self.known.insert(seq, key);
            return;
        }
        if leased {
            self.known.insert(seq, key);
        }
        let of = self.table.get_or_insert_with(key, || {
            self.bytes += KEY_COST;
            Key::default()
        });
        if !of.queue.insert(seq) {
            return;
        }
        of.leased += u32::from(leased);
        if of.queue.len() > 4 && (of.cost == 0 || of.newest.0 >> 12 != seq.0 >> 12) {
            of.cost += CHUNK_COST;
            self.bytes += CHUNK_COST;
        }
        of.newest = of.newest.max(seq);
        if self.longest.is_none_or(|(_, most)| of.queue.len() > most) {
            self.longest = Some((key, of.queue.len()));
        }
    }

    /// It has been handed out.
    pub(crate) fn given(&mut self, seq: Seq) {
        if self.is_ordered()
            && let Some(&key) = self.known.get(&seq)
            && let Some(of) = self.table.get_mut(&key)
        {
            of.leased += 1;
            of.offered = None;
        }
    }

    /// Handed out together with the one before it of its key, which is how it is known.
    pub(crate) fn given_along(&mut self, seq: Seq, key: KeyHash) {
        self.known.insert(seq, key);
        self.given(seq);
    }

    /// The one of the same key that comes after it.
    pub(crate) fn next_of_key(&self, seq: Seq) -> Option<(Seq, KeyHash)> {
        let &key = self.known.get(&seq)?;
        let next = self.table.get(&key)?.queue.next_after(seq)?;
        Some((next, key))
    }

    /// Its lease is over, but not it.
    pub(crate) fn back(&mut self, seq: Seq) {
        if self.is_ordered()
            && let Some(&key) = self.known.get(&seq)
            && let Some(of) = self.table.get_mut(&key)
        {
            of.leased -= 1;
        }
    }

    /// It is settled or parked. Returns its key.
    pub(crate) fn gone(&mut self, seq: Seq) -> Option<KeyHash> {
        self.again.remove(SeqRange::one(seq));
        self.forget_unreadable(SeqRange::one(seq));
        let key = self.known.remove(&seq)?;
        self.drop_from_queue(seq, key);
        Some(key)
    }

    /// The group is done with these messages.
    pub(crate) fn forget_unreadable(&mut self, seqs: SeqRange) {
        if !self.unreadable.is_empty() {
            self.unreadable.remove(seqs);
            self.unfit.remove(seqs);
        }
    }

    /// As `gone`, for one whose key the caller knows.
    pub(crate) fn drop_from_queue(&mut self, seq: Seq, key: KeyHash) {
        if !self.is_ordered() {
            return;
        }
        let Some(of) = self.table.get_mut(&key) else { return };
        of.queue.remove(seq);
        if of.queue.len() <= 4 && of.cost > 0 {
            self.bytes -= of.cost;
            of.cost = 0;
        }
        self.forget_if_idle(key);
    }

    fn forget_if_idle(&mut self, key: KeyHash) {
        if let Some(of) = self.table.get(&key)
            && of.queue.is_empty()
            && of.held == 0
            // A message on offer has to be taken off first.
            && of.offered.is_none()
        {
            self.bytes -= KEY_COST + of.cost;
            self.table.remove(&key);
        }
    }

    /// A message was parked, and the rest of its key has to wait for it. Without a key, that is looked up.
    pub(crate) fn parked(&mut self, seq: Seq, key: Option<KeyHash>) {
        let Some(key) = key else {
            self.parked_unseen.insert(SeqRange::one(seq));
            return;
        };
        if key == NO_KEY {
            return;
        }
        let of = self.table.get_or_insert_with(key, || {
            self.bytes += KEY_COST;
            Key::default()
        });
        of.held += 1;
    }

    pub(crate) fn let_go(&mut self, key: KeyHash) {
        if let Some(of) = self.table.get_mut(&key) {
            of.held = of.held.saturating_sub(1);
            self.forget_if_idle(key);
        }
    }

    /// Puts the first message of the key on offer if it may go, and takes all others of the key off offer.
    pub(crate) fn refresh(
        &mut self,
        key: KeyHash,
        offer: &mut Offer,
        fate: impl Fn(Seq) -> KeyFate,
        lane: impl Fn(Seq) -> u8,
    ) {
        let Some(of) = self.table.get_mut(&key) else { return };
        let mut wanted = None;
        let is_locked = of.leased > 0 && self.lock == Some(KeyLock::Delivery);
        let skips = planted(Fault::PositionLockSkips) && self.lock == Some(KeyLock::Position);
        let twice = planted(Fault::KeyLockedTwice) || skips;
        while let Some(first) = of.queue.first() {
            match fate(first) {
                // It expired, for example, while it waited behind others and its key was not known.
                KeyFate::Gone { before } => {
                    of.queue.remove_before(before);
                    self.known.remove(&first);
                    continue;
                }
                KeyFate::Ready => wanted = Some(first).filter(|_| of.held == 0 && !is_locked),
                KeyFate::Waits if twice || (planted(Fault::KeyOrderBroken) && of.leased == 0) => {
                    wanted = of.queue.next_after(first).filter(|&next| fate(next) == KeyFate::Ready);
                    if let Some(next) = wanted {
                        self.known.insert(next, key);
                    }
                }
                KeyFate::Waits => {}
            }
            // Whatever happens to the first of a key must be known to have happened to that key.
            self.known.insert(first, key);
            break;
        }
        let offered = std::mem::replace(&mut of.offered, wanted);
        if offered != wanted {
            if let Some(before) = offered {
                offer.remove(lane(before), key, before);
            }
            if let Some(seq) = wanted {
                offer.insert(lane(seq), key, seq);
            }
        }
        self.forget_if_idle(key);
    }
}

/// Whether a message may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyFate {
    Ready,
    /// With a consumer, or its time has not come.
    Waits,
    /// Settled, and so is everything from it on up to, but not including, this one.
    Gone {
        before: Seq,
    },
}
