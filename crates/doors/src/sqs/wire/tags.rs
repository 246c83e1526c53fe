//! The tags of a queue.

use std::collections::BTreeMap;

use super::error::SqsError;

const TAGS_MAX: usize = 50;
const KEY_CHARS_MAX: usize = 128;
const VALUE_CHARS_MAX: usize = 256;

/// The tags that a queue has after these were given to it: a key that it had has a new value.
pub fn added(
    present: &BTreeMap<String, String>,
    more: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, SqsError> {
    for (key, value) in more {
        check(key, value)?;
    }
    let mut tags = present.clone();
    tags.extend(more.iter().map(|(key, value)| (key.clone(), value.clone())));
    if tags.len() > TAGS_MAX {
        let message = format!("Too many tags added for queue. A queue can have at most {TAGS_MAX} tags.");
        return Err(SqsError::parameter(message));
    }
    Ok(tags)
}

fn check(key: &str, value: &str) -> Result<(), SqsError> {
    let allowed = "letters, digits, spaces and _ . : / = + - @";
    if !(1..=KEY_CHARS_MAX).contains(&key.chars().count()) || !key.chars().all(may_be_in_tag) {
        let reason = format!("A tag key has 1 to {KEY_CHARS_MAX} characters: {allowed}.");
        return Err(SqsError::value(key, "TagKey", reason));
    }
    if key.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("aws:")) {
        return Err(SqsError::value(key, "TagKey", "A tag key cannot start with aws:."));
    }
    if value.chars().count() > VALUE_CHARS_MAX || !value.chars().all(may_be_in_tag) {
        let reason = format!("A tag value has at most {VALUE_CHARS_MAX} characters: {allowed}.");
        return Err(SqsError::value(value, "TagValue", reason));
    }
    Ok(())
}

fn may_be_in_tag(c: char) -> bool {
    c.is_alphanumeric() || c == ' ' || "_.:/=+-@".contains(c)
}
