//! Memory that requests and contents of messages take, and how clients share it.
//!
//! A [`Pool`] is a number of bytes that clients share: bodies of requests that are being read, replies that are being
//! sent. [`Memory`] is the memory of contents on their way out:
//!
//! | Sum | Contents that |
//! | --- | --- |
//! | replies | are being encoded, or are encoded and wait for a socket or for a window of HTTP/2 |
//! | handed out | were handed to a consumer, and no door has encoded them yet: queues of consumers, receives |
//! | read ahead | a log reader has read, or is reading, and its caller has not taken yet |
//!
//! Each connection has a [`Share`] of a pool. A share has no fixed size: it may grow up to a part of the bytes that
//! are free. One client on an idle server gets a large share, each of a thousand clients that do not read gets a small
//! one, and there is always room for the next client. Small requests and replies always find room, so that publishing,
//! settling and small messages go on however large the replies of others are.
//!
//! Contents that were handed out have the same rule with a limit of their own. The shard holds back further messages
//! from a consumer whose queue is longer than its share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// A request or reply of this size always finds room.
const SMALL: usize = 16 << 10;
/// A share of the replies may grow up to the free bytes divided by this.
const REPLY_PART: usize = 2;
/// Contents that may be handed out, for each byte of replies. An answer to a receive counts as handed out until it has
/// found room as a reply.
const HANDED_OUT_FACTOR: usize = 2;
/// A queue may grow up to the free bytes divided by this, and always up to `SMALL_QUEUE`.
const QUEUE_PART: usize = 4;
const SMALL_QUEUE: usize = 64 << 10;
/// Contents that readers may have read ahead: the bytes of replies divided by this. A reader's share of them may grow
/// up to the free bytes divided by `READER_PART`.
const READ_AHEAD_PART: usize = 2;
const READER_PART: usize = 4;
/// How long a request waits for room.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Room that was refused is asked for again after this time, and then after twice as long each time. A client that
/// does not read gives nothing back, so a queue of waiting requests would only be woken in vain.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(250);

/// Bytes that clients share.
#[derive(Debug)]
pub struct Pool {
    max: usize,
    /// A share may grow up to the free bytes divided by this.
    part: usize,
    used: AtomicUsize,
    refused: AtomicU64,
}

impl Pool {
    /// A pool in which a client may take all that is free.
    pub fn new(max: usize) -> Arc<Pool> {
        Pool::parted(max, 1)
    }

    fn parted(max: usize, part: usize) -> Arc<Pool> {
        Arc::new(Pool { max, part, used: AtomicUsize::new(0), refused: AtomicU64::new(0) })
    }

    /// The share of one connection.
    pub fn share(self: &Arc<Pool>) -> Share {
        Share { pool: self.clone(), held: Arc::default() }
    }

    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// The contents on their way out of a server.
#[derive(Debug)]
pub struct Memory {
    replies: Arc<Pool>,
    read_ahead: Arc<Pool>,
    handed_out: AtomicUsize,
    held_back: AtomicU64,
}

/// Figures of [`Memory`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryFigures {
    pub replies: usize,
    pub replies_max: usize,
    pub handed_out: usize,
    /// Contents that readers of logs have read and no caller has taken yet.
    pub read_ahead: usize,
    /// Requests that found no room for their reply in time.
    pub refused: u64,
    /// How often a consumer's queue grew beyond its share.
    pub held_back: u64,
}

impl Memory {
    pub fn new(replies_max: usize) -> Arc<Memory> {
        Arc::new(Memory {
            replies: Pool::parted(replies_max, REPLY_PART),
            read_ahead: Pool::parted(replies_max / READ_AHEAD_PART, READER_PART),
            handed_out: AtomicUsize::new(0),
            held_back: AtomicU64::new(0),
        })
    }

    /// The replies of one connection.
    pub fn share(&self) -> Share {
        self.replies.share()
    }

    /// The contents that one reader of logs has read ahead.
    pub(crate) fn reader(&self) -> Share {
        self.read_ahead.share()
    }

    pub fn figures(&self) -> MemoryFigures {
        MemoryFigures {
            read_ahead: self.read_ahead.used(),
            replies: self.replies.used(),
            replies_max: self.replies.max,
            handed_out: self.handed_out.load(Ordering::Relaxed),
            refused: self.replies.refused.load(Ordering::Relaxed),
            held_back: self.held_back.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn hand_out(&self, bytes: usize) {
        self.handed_out.fetch_add(bytes, Ordering::Relaxed);
    }

    /// They were encoded, given back or dropped.
    pub(crate) fn hand_in(&self, bytes: usize) {
        self.handed_out.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn handed_out_max(&self) -> usize {
        self.replies.max * HANDED_OUT_FACTOR
    }

    /// How long the queue of a consumer may be.
    pub(crate) fn queue_max(&self) -> usize {
        let free = self.handed_out_max().saturating_sub(self.handed_out.load(Ordering::Relaxed));
        (free / QUEUE_PART).max(SMALL_QUEUE)
    }

    pub(crate) fn count_held_back(&self) {
        self.held_back.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether so many bytes may be handed out now.
    pub(crate) fn may_hand_out(&self, bytes: usize) -> bool {
        let handed_out = self.handed_out.load(Ordering::Relaxed);
        bytes <= SMALL || handed_out == 0 || handed_out + bytes <= self.handed_out_max()
    }

    pub(crate) fn count_refused(&self) {
        self.replies.count_refused();
    }
}

/// The part of a pool that one connection holds. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Share {
    pool: Arc<Pool>,
    held: Arc<AtomicUsize>,
}

impl Share {
    /// How much more it may hold now.
    fn room(&self) -> usize {
        let used = self.pool.used();
        if used == 0 {
            // Nothing is gained by refusing a reply that is larger than all of it.
            return usize::MAX;
        }
        let most = self.pool.max.saturating_sub(used) / self.pool.part;
        most.saturating_sub(self.held.load(Ordering::Relaxed))
    }

    /// Room for so many bytes, if there is some now.
    pub fn try_take(&self, bytes: usize) -> Option<Hold> {
        (bytes <= SMALL || bytes <= self.room()).then(|| self.count(bytes))
    }

    /// As much room as there is now, up to this. There is always room for a small reply.
    pub fn take_up_to(&self, most: usize) -> Hold {
        self.count(most.min(self.room().max(SMALL)))
    }

    /// Room for so many bytes. `None` if there was none for a while; the client should be told that the server is
    /// busy.
    pub async fn take(&self, bytes: usize) -> Option<Hold> {
        self.take_soon(bytes, WAIT_MAX).await
    }

    async fn take_soon(&self, bytes: usize, most: Duration) -> Option<Hold> {
        let taken = tokio::time::timeout(most, self.wait(bytes)).await.ok();
        if taken.is_none() {
            self.pool.count_refused();
        }
        taken
    }

    /// As [`Share::take`], for as long as it takes.
    pub async fn wait(&self, bytes: usize) -> Hold {
        let mut pause = LOOK_AGAIN;
        loop {
            if let Some(hold) = self.try_take(bytes) {
                return hold;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK_AGAIN_MAX);
        }
    }

    /// Counts bytes that are there already.
    pub fn count(&self, bytes: usize) -> Hold {
        self.add(bytes);
        Hold { share: self.clone(), bytes }
    }

    fn add(&self, bytes: usize) {
        self.pool.used.fetch_add(bytes, Ordering::Relaxed);
        self.held.fetch_add(bytes, Ordering::Relaxed);
    }

    fn remove(&self, bytes: usize) {
        self.pool.used.fetch_sub(bytes, Ordering::Relaxed);
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Room that a request or a reply has. Given back when it is dropped.
#[derive(Debug)]
pub struct Hold {
    share: Share,
    bytes: usize,
}

impl Hold {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// It turned out to have this size.
    pub fn set(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.share.add(bytes - self.bytes);
        } else {
            self.share.remove(self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// Waits until there is room for all of so many bytes. False if there was none for a while.
    pub async fn grow(&mut self, bytes: usize) -> bool {
        if self.try_grow(bytes) {
            return true;
        }
        let wait = async {
            let mut pause = LOOK_AGAIN;
            while !self.try_grow(bytes) {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LOOK_AGAIN_MAX);
            }
        };
        let has_grown = tokio::time::timeout(WAIT_MAX, wait).await.is_ok();
        if !has_grown {
            self.share.pool.count_refused();
        }
        has_grown
    }

    /// Whether there is room for all of so many bytes now. If so, the room is that large from then on.
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        // A hold that has all of a pool that is too small for it goes on alone.
        let is_alone = self.bytes > 0 && self.share.pool.used() == self.bytes;
        let fits = more == 0 || bytes <= SMALL || is_alone || more <= self.share.room();
        if fits && more > 0 {
            self.set(bytes);
        }
        fits
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.share.remove(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn however_many_do_not_read_there_is_room_for_the_next_client() {
        let memory = Memory::new(64 * MIB);
        for clients in [1, 50, 1_000] {
            let shares: Vec<Share> = (0..clients).map(|_| memory.share()).collect();
            let mut holds = Vec::new();
            // Each takes all that it can get, again and again.
            for _ in 0..20 {
                holds.extend(shares.iter().filter_map(|share| share.try_take(64 << 10)));
            }
            let figures = memory.figures();
            assert!(figures.replies <= 64 * MIB, "{figures:?}");
            let next = memory.share();
            let room = next.take_up_to(MIB).bytes();
            assert!(room >= if clients == 1_000 { SMALL } else { MIB / 2 }, "{clients}: {room}");
            assert!(next.try_take(SMALL).is_some(), "a small reply always finds room");
            drop(holds);
            assert_eq!(memory.figures().replies, 0);
        }
    }

    #[test]
    fn one_client_cannot_take_everything_and_a_large_reply_leaves_alone() {
        let memory = Memory::new(8 * MIB);
        let (one, two) = (memory.share(), memory.share());
        let alone = one.try_take(20 * MIB).expect("nothing else is there");
        assert!(two.try_take(MIB).is_none() && two.try_take(1_000).is_some());
        drop(alone);
        let first = one.try_take(2 * MIB).expect("room");
        assert!(one.try_take(2 * MIB).is_none(), "its share is used up");
        let second = two.try_take(2 * MIB).expect("another client has its own");
        drop((first, second));
        assert_eq!(memory.figures().replies, 0);
    }

    #[test]
    fn a_hold_takes_the_size_of_its_reply() {
        let memory = Memory::new(8 * MIB);
        let share = memory.share();
        let other = memory.share().count(MIB);
        let mut hold = share.take_up_to(MIB);
        assert_eq!(hold.bytes(), MIB);
        hold.set(10);
        assert_eq!(memory.figures().replies, MIB + 10);
        assert!(hold.try_grow(100) && hold.bytes() == 100);
        assert!(!hold.try_grow(7 * MIB) && hold.bytes() == 100);
        drop((other, hold));
        assert_eq!(memory.figures().replies, 0);
    }

    #[tokio::test]
    async fn a_request_waits_for_room_for_a_while() {
        let memory = Memory::new(MIB);
        let (slow, other) = (memory.share(), memory.share());
        let held = slow.try_take(MIB).expect("room");
        assert!(other.take_soon(MIB / 4, Duration::from_millis(50)).await.is_none());
        assert_eq!(memory.figures().refused, 1);
        let (taken, ()) = tokio::join!(other.take(MIB / 4), async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            drop(held);
        });
        assert!(taken.is_some());
    }

    #[test]
    fn a_queue_grows_up_to_a_part_of_the_free_bytes() {
        let memory = Memory::new(64 * MIB);
        assert_eq!(memory.queue_max(), 32 * MIB);
        memory.hand_out(96 * MIB);
        assert_eq!(memory.queue_max(), 8 * MIB);
        assert!(memory.may_hand_out(16 * MIB) && !memory.may_hand_out(33 * MIB));
        memory.hand_out(32 * MIB);
        assert_eq!(memory.queue_max(), SMALL_QUEUE);
        assert!(memory.may_hand_out(100) && !memory.may_hand_out(MIB));
        memory.hand_in(128 * MIB);
        assert!(memory.may_hand_out(500 * MIB), "one answer may always be made");
    }
}
