//! What doors keep for themselves: small values under keys of their own. They are written with
//! [`Caller::arrange`](super::Caller::arrange).

use forebay_core::notes::Note;

use super::Caller;
use crate::access::{Action, Denied, Resource};
use crate::error::CallError;
use crate::report::Page;

/// Whose notes the broker's own are. What receipts are sealed with is among them, so no door sees or changes any.
pub(crate) const OWN_NOTES: u8 = 0;
/// Notes that one page has at most, and bytes of keys and values.
const PAGE_MAX: usize = 1_000;
const PAGE_BYTES_MAX: usize = 4 << 20;

impl Caller {
    /// One note of a door.
    pub async fn note(&self, door: u8, key: Vec<u8>) -> Result<Option<Note>, CallError> {
        self.may_use_notes(Action::Look, door)?;
        self.look(move |task| Ok(task.shard().note(task.now(), door, &key).cloned())).await
    }

    /// Notes of a door whose keys begin with `prefix`, by key, after `after`. At most `limit` of them, and no more
    /// than a page has.
    pub async fn notes(
        &self,
        door: u8,
        prefix: Vec<u8>,
        after: Option<Vec<u8>>,
        limit: usize,
    ) -> Result<Page<(Vec<u8>, Note), Vec<u8>>, CallError> {
        self.may_use_notes(Action::Look, door)?;
        let limit = limit.min(PAGE_MAX);
        self.look(move |task| {
            // One more than is asked for tells whether there are more.
            let mut found = task.shard().notes(task.now(), door, &prefix, after.as_deref(), limit + 1);
            let mut sum = 0;
            let fits = |(key, note): &&(&[u8], &Note)| {
                sum += key.len() + note.value.len();
                sum <= PAGE_BYTES_MAX
            };
            let count = found.iter().take(limit).take_while(fits).count();
            let has_more = found.len() > count;
            found.truncate(count);
            let items: Vec<_> = found.into_iter().map(|(key, note)| (key.to_vec(), note.clone())).collect();
            let next = items.last().filter(|_| has_more).map(|(key, _)| key.clone());
            Ok(Page { items, next })
        })
        .await
    }

    pub(super) fn may_use_notes(&self, action: Action, door: u8) -> Result<(), CallError> {
        let what = Resource::Notes(door);
        if door == OWN_NOTES {
            let who = self.principal.name().into();
            return Err(Denied { who, action, what: what.to_string() }.into());
        }
        Ok(self.may(action, what)?)
    }
}
