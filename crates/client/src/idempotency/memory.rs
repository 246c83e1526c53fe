//! The idempotency store in memory.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::{Begun, BoxFuture, Claim, DURATION_MAX, IdempotencyStore, StoreError};
use crate::clock::{self, Instant};

/// An idempotency store in the memory of this process: for tests, and for a single worker whose duplicates come soon.
///
/// It is not shared with other processes, and a restart forgets everything. An entry takes about 200 bytes and the
/// key. When the store is full and no entry has expired, no more work begins: [`StoreError::Full`].
///
/// ```
/// # tokio_test(async {
/// use std::time::Duration;
/// use forebay_client::idempotency::{Begun, IdempotencyStore, MemoryStore};
///
/// let store = MemoryStore::new().entries_max(10_000);
/// let minute = Duration::from_secs(60);
/// let Begun::New(claim) = store.begin("order-7", minute).await? else { panic!("the key is new") };
/// assert!(matches!(store.begin("order-7", minute).await?, Begun::Busy(_)));
/// store.finish(&claim, 60 * minute).await?;
/// assert_eq!(store.begin("order-7", minute).await?, Begun::Done);
/// # Ok(())
/// # });
/// # fn tokio_test(body: impl Future<Output = Result<(), forebay_client::idempotency::StoreError>>) {
/// #     tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(body).unwrap();
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    /// Locked for the length of one look-up; never while waiting.
    entries: Arc<Mutex<Entries>>,
}

/// How many claims and marks a store holds by default.
const ENTRIES_MAX: usize = 1_000_000;
/// Expired entries that one call removes: more than one call adds, so that they do not pile up.
const SWEPT_AT_ONCE: usize = 4;

impl MemoryStore {
    /// An empty store for up to a million claims and marks.
    pub fn new() -> MemoryStore {
        MemoryStore { entries: Arc::new(Mutex::new(Entries::new(ENTRIES_MAX))) }
    }

    /// Sets how many claims and marks it holds at most. The default is a million.
    #[must_use]
    pub fn entries_max(self, entries_max: usize) -> MemoryStore {
        self.entries().entries_max = entries_max;
        self
    }

    /// How many claims and marks it holds now.
    pub fn len(&self) -> usize {
        self.entries().by_key.len()
    }

    /// Whether it holds no claims and no marks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all expired entries, and returns how many there were.
    pub fn sweep(&self) -> usize {
        self.entries().sweep(clock::now(), usize::MAX)
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        // Nothing panics while it holds the lock, and the entries would be sound if it did.
        self.entries.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries();
        f.debug_struct("MemoryStore")
            .field("entries", &entries.by_key.len())
            .field("entries_max", &entries.entries_max)
            .finish()
    }
}

impl IdempotencyStore for MemoryStore {
    fn begin<'a>(&'a self, key: &'a str, lasts: Duration) -> BoxFuture<'a, Result<Begun, StoreError>> {
        Box::pin(async move { self.entries().begin(clock::now(), key, lasts) })
    }

    fn renew<'a>(&'a self, claims: &'a [Claim], lasts: Duration) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let mut entries = self.entries();
            let now = clock::now();
            claims.iter().for_each(|claim| entries.renew(now, claim, lasts));
            Ok(())
        })
    }

    fn finish<'a>(&'a self, claim: &'a Claim, keep: Duration) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move { self.entries().finish(clock::now(), claim, keep) })
    }

    fn abandon<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.entries().abandon(claim);
            Ok(())
        })
    }
}

/// The store without its lock and its clock.
struct Entries {
    by_key: HashMap<Arc<str>, Entry>,
    /// The same entries, those first that expire first.
    by_expiry: BTreeSet<(Instant, Arc<str>)>,
    entries_max: usize,
    last_token: u64,
}

#[derive(Clone, Copy)]
struct Entry {
    token: u64,
    is_done: bool,
    expires: Instant,
}

impl Entries {
    fn new(entries_max: usize) -> Entries {
        Entries { by_key: HashMap::new(), by_expiry: BTreeSet::new(), entries_max, last_token: 0 }
    }

    fn begin(&mut self, now: Instant, key: &str, lasts: Duration) -> Result<Begun, StoreError> {
        match self.by_key.get(key) {
            Some(entry) if entry.expires > now && entry.is_done => return Ok(Begun::Done),
            Some(entry) if entry.expires > now => return Ok(Begun::Busy(entry.expires - now)),
            Some(_) | None => {}
        }
        self.sweep(now, SWEPT_AT_ONCE);
        if !self.by_key.contains_key(key) && self.by_key.len() >= self.entries_max {
            return Err(StoreError::Full { entries: self.entries_max });
        }
        self.last_token += 1;
        let claim = Claim::new(key, self.last_token);
        self.put(&claim, Entry { token: claim.token, is_done: false, expires: until(now, lasts) });
        Ok(Begun::New(claim))
    }

    fn renew(&mut self, now: Instant, claim: &Claim, lasts: Duration) {
        if let Some(entry) = self.by_key.get(claim.key()).copied()
            && entry.token == claim.token
            && !entry.is_done
        {
            self.put(claim, Entry { expires: until(now, lasts), ..entry });
        }
    }

    fn finish(&mut self, now: Instant, claim: &Claim, keep: Duration) -> Result<(), StoreError> {
        match self.by_key.get(claim.key()) {
            Some(entry) if entry.token != claim.token => return Err(StoreError::taken(claim)),
            // The work is done all the same, and a mark that finds no room would let it be done again.
            Some(_) | None => {}
        }
        self.put(claim, Entry { token: claim.token, is_done: true, expires: until(now, keep) });
        Ok(())
    }

    fn abandon(&mut self, claim: &Claim) {
        if self.by_key.get(claim.key()).is_some_and(|entry| entry.token == claim.token && !entry.is_done) {
            self.remove(claim.key());
        }
    }

    fn put(&mut self, claim: &Claim, entry: Entry) {
        self.remove(claim.key());
        self.by_expiry.insert((entry.expires, Arc::clone(&claim.key)));
        self.by_key.insert(Arc::clone(&claim.key), entry);
    }

    fn remove(&mut self, key: &str) {
        if let Some((key, entry)) = self.by_key.remove_entry(key) {
            let known = self.by_expiry.remove(&(entry.expires, key));
            assert!(known, "every entry is in both tables");
        }
    }

    fn sweep(&mut self, now: Instant, at_most: usize) -> usize {
        let mut swept = 0;
        while swept < at_most
            && let Some((expires, key)) = self.by_expiry.first().cloned()
            && expires <= now
        {
            self.remove(&key);
            swept += 1;
        }
        swept
    }
}

fn until(now: Instant, after: Duration) -> Instant {
    now + after.min(DURATION_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn claim(begun: Result<Begun, StoreError>) -> Claim {
        match begun {
            Ok(Begun::New(claim)) => claim,
            other => panic!("not new: {other:?}"),
        }
    }

    #[test]
    fn it_is_full_only_when_nothing_has_expired() {
        let mut entries = Entries::new(2);
        let start = Instant::now();
        let first = claim(entries.begin(start, "a", 5 * SECOND));
        claim(entries.begin(start, "b", 9 * SECOND));
        assert!(matches!(entries.begin(start, "c", SECOND), Err(StoreError::Full { entries: 2 })));
        assert_eq!(entries.begin(start + SECOND, "a", SECOND).ok(), Some(Begun::Busy(4 * SECOND)));
        entries.finish(start + SECOND, &first, 6 * SECOND).expect("it is ours");
        assert!(matches!(entries.begin(start + 6 * SECOND, "c", SECOND), Err(StoreError::Full { .. })));
        assert_eq!(entries.begin(start + 6 * SECOND, "a", SECOND).ok(), Some(Begun::Done));
        claim(entries.begin(start + 7 * SECOND, "c", SECOND));
        assert_eq!(entries.by_key.len(), 2);
    }

    #[test]
    fn what_has_expired_does_not_pile_up() {
        let mut entries = Entries::new(1_000);
        let start = Instant::now();
        for n in 0..500 {
            claim(entries.begin(start, &n.to_string(), SECOND));
        }
        for n in 0..200 {
            claim(entries.begin(start + 2 * SECOND, &format!("later {n}"), SECOND));
        }
        assert_eq!((entries.by_key.len(), entries.by_expiry.len()), (200, 200));
        assert_eq!(entries.sweep(start + 9 * SECOND, usize::MAX), 200);
    }

    #[test]
    fn times_beyond_all_bounds_are_cut() {
        let mut entries = Entries::new(10);
        let start = Instant::now();
        let first = claim(entries.begin(start, "a", Duration::MAX));
        entries.finish(start, &first, Duration::MAX).expect("it is ours");
        assert_eq!(entries.begin(start + 1_000_000 * SECOND, "a", SECOND).ok(), Some(Begun::Done));
    }
}
