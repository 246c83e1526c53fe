//! Checks of a batch as a whole, whatever its entries are.

use std::collections::HashSet;

use super::error::{ErrorKind, SqsError};

const ENTRIES_MAX: usize = 10;
const ID_CHARS_MAX: usize = 80;

/// One of a batch, with the name that its sender gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<T> {
    pub id: String,
    pub content: T,
}

impl<T> Entry<T> {
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Entry<U> {
        Entry { id: self.id, content: change(self.content) }
    }
}

/// `of` is what the entries are called in Query.
pub(super) fn check<T>(entries: &[Entry<T>], of: &str) -> Result<(), SqsError> {
    if entries.is_empty() {
        let message = format!("There should be at least one {of} in the request.");
        return Err(SqsError::new(ErrorKind::EmptyBatchRequest, message));
    }
    if entries.len() > ENTRIES_MAX {
        let sent = entries.len();
        let message =
            format!("Maximum number of entries per request are {ENTRIES_MAX}. You have sent {sent}.");
        return Err(SqsError::new(ErrorKind::TooManyEntriesInBatchRequest, message));
    }
    if !entries.iter().all(|entry| is_id(&entry.id)) {
        let message = "A batch entry id can only contain alphanumeric characters, hyphens and underscores. \
                       It can be at most 80 letters long.";
        return Err(SqsError::new(ErrorKind::InvalidBatchEntryId, message));
    }
    let mut seen = HashSet::new();
    if let Some(twice) = entries.iter().find(|entry| !seen.insert(&entry.id)) {
        return Err(SqsError::new(ErrorKind::BatchEntryIdsNotDistinct, format!("Id {} repeated.", twice.id)));
    }
    Ok(())
}

fn is_id(text: &str) -> bool {
    (1..=ID_CHARS_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}
