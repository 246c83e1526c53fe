//! Notes: small values that doors keep under keys of their own. They are written with
//! [`Caller::commit`](super::Caller::commit), each in the shard of a stream, beside which it is found again.

use forebay_core::notes::Note;
use forebay_core::types::StreamName;

use super::Caller;
use crate::access::{Resource, Right};
use crate::door::Door;
use crate::error::CallError;
use crate::report::Page;

/// Notes that one page has at most, and bytes of keys and values.
const PAGE_MAX: usize = 1_000;
const PAGE_BYTES_MAX: usize = 4 << 20;

impl Caller {
    /// One note of a door, of those that are kept beside a stream.
    pub async fn note(
        &self,
        beside: &StreamName,
        door: Door,
        key: Vec<u8>,
    ) -> Result<Option<Note>, CallError> {
        self.may(Right::Look, Resource::Stream(beside))?;
        self.shard_of(beside)
            .query(move |task| Ok(task.shard().note(task.now(), door.number(), &key).cloned()))
            .await
    }

    /// Notes of a door whose keys begin with `prefix`, beside any stream, by key, after `after`. At most `limit` of
    /// them, and no more than a page has.
    pub async fn notes(
        &self,
        door: Door,
        prefix: Vec<u8>,
        after: Option<Vec<u8>>,
        limit: usize,
    ) -> Result<Page<(Vec<u8>, Note), Vec<u8>>, CallError> {
        self.may(Right::Look, Resource::Notes(door))?;
        let limit = limit.min(PAGE_MAX);
        self.broker
            .whole()
            .query(move |task| {
                // One more than is asked for tells whether there are more.
                let mut found =
                    task.shard().notes(task.now(), door.number(), &prefix, after.as_deref(), limit + 1);
                let mut sum = 0;
                let fits = |(key, note): &&(&[u8], &Note)| {
                    sum += key.len() + note.value.len();
                    sum <= PAGE_BYTES_MAX
                };
                let count = found.iter().take(limit).take_while(fits).count();
                let has_more = found.len() > count;
                found.truncate(count);
                let items: Vec<_> =
                    found.into_iter().map(|(key, note)| (key.to_vec(), note.clone())).collect();
                let next = items.last().filter(|_| has_more).map(|(key, _)| key.clone());
                Ok(Page { items, next })
            })
            .await
    }
}
