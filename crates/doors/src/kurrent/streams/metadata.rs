//! Metadata of a stream `s`: the last event of the stream `$$s`, as JSON. Limits in it become settings of the stream
//! `s`, in the frame of the event; everything else, as `$acl` and `$cacheControl`, is kept and has no effect.

use std::time::Duration;

use forebay_broker::api::{CallError, Caller, Retention, StreamSettings};
use forebay_core::types::{Seq, StreamName};
use serde_json::{Map, Value};

use crate::kurrent::places;

pub(in crate::kurrent) const TYPE: &str = "$metadata";
const MAX_COUNT: &str = "$maxCount";
const MAX_AGE: &str = "$maxAge";
const TRUNCATE_BEFORE: &str = "$tb";
/// The revision before which a deleted stream is truncated. No event can have it.
pub(in crate::kurrent) const DELETED: u64 = i64::MAX as u64;

/// The stream that a metadata stream speaks of. `None` if it is not a metadata stream.
pub(in crate::kurrent) fn subject(stream: &StreamName) -> Option<StreamName> {
    StreamName::of_any(stream.as_str().strip_prefix("$$")?).ok().filter(|name| !is_metadata(name))
}

pub(in crate::kurrent) fn is_metadata(stream: &StreamName) -> bool {
    stream.as_str().starts_with("$$")
}

/// The metadata stream of a stream. `None` if its name would be too long.
pub(in crate::kurrent) fn stream_of(stream: &StreamName) -> Option<StreamName> {
    StreamName::of_system(&format!("$${stream}")).ok()
}

/// The settings of a metadata stream.
pub(in crate::kurrent) fn settings(settings: &mut StreamSettings) {
    settings.retention = Retention::Log { max_age: None, max_bytes: None, max_messages: Some(1) };
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::kurrent) struct Metadata(Map<String, Value>);

impl Metadata {
    /// Data that is not an object says nothing.
    pub(in crate::kurrent) fn parse(data: &[u8]) -> Metadata {
        Metadata(serde_json::from_slice(data).unwrap_or_default())
    }

    /// The metadata of a stream, as it is now.
    pub(in crate::kurrent) async fn of(caller: &Caller, stream: &StreamName) -> Result<Metadata, CallError> {
        let Some(name) = stream_of(stream) else { return Ok(Metadata::default()) };
        let last = match caller.stream(name.clone()).await {
            Ok(report) => report.figures.last,
            Err(CallError::NoSuchStream { .. }) => return Ok(Metadata::default()),
            Err(error) => return Err(error),
        };
        if last == Seq::START {
            return Ok(Metadata::default());
        }
        let page = caller.read(name, last, 1).await?;
        let content = page.messages.first().map(|found| &found.content);
        let message = content.and_then(|content| forebay_broker::api::parse_content(content).ok());
        Ok(message.map(|message| Metadata::parse(message.body)).unwrap_or_default())
    }

    /// A number that is at least one.
    fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name).and_then(Value::as_u64).filter(|number| *number > 0)
    }

    /// The revision before which events are dropped.
    pub(in crate::kurrent) fn truncate_before(&self) -> Option<u64> {
        self.number(TRUNCATE_BEFORE)
    }

    pub(in crate::kurrent) fn is_deleted(&self) -> bool {
        self.truncate_before().is_some_and(|revision| revision >= DELETED)
    }

    pub(in crate::kurrent) fn with_truncate_before(mut self, revision: u64) -> Metadata {
        self.0.insert(TRUNCATE_BEFORE.to_owned(), revision.into());
        self
    }

    pub(in crate::kurrent) fn to_vec(&self) -> Vec<u8> {
        serde_json::to_vec(&self.0).unwrap_or_default()
    }

    /// Puts the limits into the settings of the stream, in one that keeps messages as a log.
    pub(in crate::kurrent) fn apply(&self, settings: &mut StreamSettings) {
        if let Retention::Log { max_bytes, .. } = settings.retention {
            let max_age = self.number(MAX_AGE).map(Duration::from_secs);
            // The longest time that a stream's settings can have. No event is that old.
            let max_age = max_age.filter(|age| *age <= Duration::from_secs(100 * 365 * 24 * 3_600));
            let max_messages = self.number(MAX_COUNT);
            settings.retention = Retention::Log { max_age, max_bytes, max_messages };
        }
    }
}

/// The first position that `$tb` keeps, in a stream that ends at `last`.
pub(in crate::kurrent) fn first_kept(revision: u64, last: Seq) -> Seq {
    places::seq(revision).min(last.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_become_settings_and_everything_else_is_kept() {
        let text = br#"{"$maxCount":5,"$maxAge":60,"$tb":7,"$cacheControl":9,"$acl":{"$r":"all"},"own":1}"#;
        let metadata = Metadata::parse(text);
        let mut of_log = StreamSettings::default();
        metadata.apply(&mut of_log);
        assert_eq!(of_log.retention, StreamSettings::default().retention, "a queue keeps its retention");
        of_log.retention = Retention::Log { max_age: None, max_bytes: Some(1), max_messages: None };
        metadata.apply(&mut of_log);
        let max_age = Some(Duration::from_secs(60));
        assert_eq!(of_log.retention, Retention::Log { max_age, max_bytes: Some(1), max_messages: Some(5) });
        assert_eq!((metadata.truncate_before(), metadata.is_deleted()), (Some(7), false));
        let deleted = metadata.with_truncate_before(DELETED);
        assert!(deleted.is_deleted());
        let again = Metadata::parse(&deleted.to_vec());
        assert_eq!(again, deleted);
        assert!(again.0.contains_key("$acl") && again.0.contains_key("own"));
    }

    #[test]
    fn metadata_that_makes_no_sense_has_no_effect() {
        for text in ["", "[]", "{\"$maxCount\":0,\"$tb\":-1}", "{\"$maxAge\":\"x\"}", "{\"$maxCount\":1.5}"] {
            let mut settings = StreamSettings {
                retention: Retention::Log { max_age: None, max_bytes: None, max_messages: Some(2) },
                ..StreamSettings::default()
            };
            let metadata = Metadata::parse(text.as_bytes());
            metadata.apply(&mut settings);
            let unlimited = Retention::Log { max_age: None, max_bytes: None, max_messages: None };
            assert_eq!((settings.retention, metadata.truncate_before()), (unlimited, None), "{text}");
        }
    }

    #[test]
    fn a_metadata_stream_speaks_of_one_stream() {
        let name = |text| StreamName::of_any(text).expect("a name");
        assert_eq!(subject(&name("$$orders")), Some(name("orders")));
        assert_eq!(subject(&name("$$$ce-orders")), Some(name("$ce-orders")));
        assert_eq!((subject(&name("orders")), subject(&name("$$$$orders"))), (None, None));
        assert_eq!(stream_of(&name("orders")), Some(name("$$orders")));
        assert_eq!(first_kept(3, Seq(10)), Seq(4));
        assert_eq!(first_kept(DELETED, Seq(10)), Seq(11));
    }
}
