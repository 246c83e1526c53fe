//! Every setting of streams and groups, in the order in which the API shows them. `table.rs` explains an entry.

use std::time::Duration;

use crate::choices::{
    Acks, Fairness, KeyLock, MoveTerms, OnEnd, OnExhausted, OnFull, OnParkedKey, Rate, Retention, Retries,
    Source, Start, Strategy,
};
use crate::describe::{Field, Kind};
use crate::limits::{AGE_MAX, INSTANT, YEAR};
use crate::table::{limit, max, overlap, part, setter, settings};
use crate::types::StreamName;
use crate::value::{
    BadRaw, Change, Limit, Raw, Setting, SettingsError, Store, at_least, between, join, lasting,
};

settings! {
    /// Settings of a group.
    GroupSettings, patched by GroupPatch {
        /// Where a new group begins. It cannot be changed; a reset moves a group.
        [26] start: Start = Start::Beginning;
        /// To which consumer a message goes.
        [9] strategy: Strategy = Strategy::RoundRobin;
        /// How long a lease lasts if the consumer does not say.
        [1] message_timeout: Duration = Duration::from_secs(30), lasting(INSTANT, YEAR);
        /// Attempts after the first.
        [2] max_retries: Retries = Retries::AtMost(10);
        /// What happens to a message whose retries are used up.
        [10] on_exhausted: OnExhausted = OnExhausted::Park;
        /// What happens to a message that expires before the group is done with it: by its own time to live, by the
        /// stream's `max_age`, or because the stream keeps no more.
        [31] on_expired: OnEnd = OnEnd::Discard;
        /// What happens to a message that a full stream drops (`on_full`: `drop_oldest`) before the group is done with
        /// it.
        [32] on_dropped: OnEnd = OnEnd::Discard;
        /// The wait before a retry, after a nack or a timeout.
        [3] backoff: Backoff by BackoffPatch = Backoff::default();
        /// Strategy `ordered`: how many messages of one key may go out together, to one consumer.
        [11] key_batch: u32 = 1, at_least(1);
        /// Strategy `ordered`: what happens to the messages that follow a parked one of their key.
        [12] on_parked_key: OnParkedKey = OnParkedKey::Continue;
        /// Whether keys take turns. Not with the strategy `pinned`.
        [13] fairness: Fairness = Fairness::None;
        /// Waiting this long raises a message by one priority. Zero: never.
        [14] priority_age_step: Duration = Duration::from_secs(60), lasting(Duration::ZERO, YEAR);
        /// How many messages may be ready, waiting or leased, together.
        [15] window_max: u32 = 100_000, at_least(1);
        /// How many messages may be parked.
        [16] parked_max: u32 = 1_000_000, at_least(1);
        /// How long a message stays parked. `null`: until it is replayed or discarded.
        [17] parked_max_age: Option<Duration> = None, lasting(INSTANT, YEAR);
        /// How many leases all consumers together may hold.
        [7] max_in_flight: u32 = 10_000, at_least(1);
        /// How many consumers the group may have. 0: as many as the server allows.
        [18] max_consumers: u32 = 0;
        /// The pace at which messages go out. `null`: no limit.
        [19] rate: Option<Rate> = None;
        /// When an ack is written to the log.
        [21] acks: Acks = Acks::Journal;
        /// How often the group writes its progress to the log.
        [22] checkpoint: Checkpoint by CheckpointPatch = Checkpoint::default();
        /// How many messages are read ahead of delivery.
        [8] buffer: u32 = 500, at_least(1);
        /// Whether a histogram of processing times is kept.
        [25] extra_statistics: bool = true;
    }
    internal {
        /// Strategy `ordered`: which messages of a key wait while others of it are leased.
        [30] key_lock: KeyLock = KeyLock::Delivery;
        /// How messages whose retries are used up are moved to another stream.
        [40] move_terms: MoveTerms = MoveTerms::default();
    }
}

impl GroupSettings {
    fn check_together(&self) -> Result<(), SettingsError> {
        if self.strategy == Strategy::Pinned && self.fairness == Fairness::Key {
            return Err(SettingsError::new("fairness", "`none` with the strategy `pinned`", "key"));
        }
        Ok(())
    }

    /// The streams that the group moves messages to, each with the name of its setting.
    pub fn destinations(&self) -> impl Iterator<Item = (&'static str, &StreamName)> {
        let all = [
            ("on_exhausted", self.on_exhausted.destination()),
            ("on_expired", self.on_expired.destination()),
            ("on_dropped", self.on_dropped.destination()),
        ];
        all.into_iter().filter_map(|(name, to)| to.map(|to| (name, to)))
    }

    /// A message cannot be moved to the stream that it is in.
    pub fn check_source(&self, source: &StreamName) -> Result<(), SettingsError> {
        match self.destinations().find(|(_, to)| *to == source) {
            Some((name, to)) => {
                let rule = "another stream than the group's own";
                Err(SettingsError::new(&format!("{name}.move"), rule, to.as_str()))
            }
            None => Ok(()),
        }
    }

    /// Whether the group looks at the keys of messages.
    pub fn is_keyed(&self) -> bool {
        matches!(self.strategy, Strategy::Ordered | Strategy::Pinned) || self.fairness == Fairness::Key
    }
}

settings! {
    /// The wait before a retry: `min`, times `factor` for each further attempt, up to `max`; of that, a part between
    /// all of it and all of it times one less `jitter`.
    Backoff, patched by BackoffPatch {
        /// The wait before the first retry.
        [0] min: Duration = Duration::from_millis(100), lasting(Duration::ZERO, YEAR);
        /// The longest wait.
        [1] max: Duration = Duration::from_secs(30), lasting(Duration::ZERO, YEAR);
        /// By how much the wait grows from one retry to the next.
        [2] factor: f64 = 2.0, between(1.0, 100.0);
        /// How far waits are spread. 0: not at all; 1: over the whole wait.
        [3] jitter: f64 = 0.5, between(0.0, 1.0);
    }
}

impl Backoff {
    fn check_together(&self) -> Result<(), SettingsError> {
        not_above("min", &self.min, "backoff.max", &self.max)
    }
}

settings! {
    /// How often a group writes its progress to the log.
    Checkpoint, patched by CheckpointPatch {
        /// How often, if at least `min` messages were settled since the last time.
        [0] interval: Duration = Duration::from_secs(2), lasting(INSTANT, YEAR);
        /// With fewer settled messages the group waits until it is idle.
        [1] min: u32 = 10;
        /// With so many settled messages it is written at once.
        [2] max: u32 = 1_000, at_least(1);
    }
}

impl Checkpoint {
    fn check_together(&self) -> Result<(), SettingsError> {
        not_above("min", &self.min, "checkpoint.max", &self.max)
    }
}

settings! {
    /// Settings of a stream.
    StreamSettings, patched by StreamPatch {
        /// How long messages are kept. `work`: until every group has settled them.
        [3] retention: Retention = Retention::Work;
        /// How long a message id is remembered, so that a second publish with it stores nothing.
        [1] dedupe_window: Duration = Duration::from_secs(600), lasting(Duration::ZERO, YEAR);
        /// How many ids are remembered; with more of them, the window is shorter.
        [2] dedupe_max: u32 = 1_000_000;
        /// What the stream may hold.
        [7] limits: StreamLimits by StreamLimitsPatch = StreamLimits::default();
        /// What all producers together may publish. `null`: no limit.
        [11] ingress_rate: Option<Rate> = None;
        /// The messages of other streams that are copied to this one, as they are published. `null`: none.
        [14] source: Option<Source> = None;
    }
    internal {
        /// How long messages wait that do not say so themselves. A change moves all messages that already wait.
        [13] delay: Duration = Duration::ZERO, lasting(Duration::ZERO, YEAR);
    }
}

/// What a stream may hold that was created by its first message, so that a typing mistake cannot fill the disk.
pub const UNASKED_BYTES_MAX: u64 = 10 << 30;

impl StreamSettings {
    fn check_together(&self) -> Result<(), SettingsError> {
        Ok(())
    }

    /// For a stream that is created by its first message: published to it, or moved there.
    pub fn unasked() -> StreamSettings {
        let limits = StreamLimits { max_bytes: Some(UNASKED_BYTES_MAX), ..StreamLimits::default() };
        StreamSettings { limits, ..StreamSettings::default() }
    }

    /// The age at which a message is dropped.
    pub fn max_age(&self) -> Option<Duration> {
        let kept = match self.retention {
            Retention::Log { max_age, .. } => max_age,
            Retention::Work => None,
        };
        kept.into_iter().chain(self.limits.max_age).min()
    }
}

settings! {
    /// What a stream may hold. `null` is no limit.
    StreamLimits, patched by StreamLimitsPatch {
        /// How many messages the stream may hold.
        [0] max_messages: Option<u64> = None, at_least(1);
        /// How many bytes the stream may hold.
        [1] max_bytes: Option<u64> = None, at_least(1);
        /// Older messages are dropped.
        [2] max_age: Option<Duration> = None, lasting(INSTANT, AGE_MAX);
        /// What happens to a message that a full stream has no room for.
        [3] on_full: OnFull = OnFull::Reject;
    }
}

impl StreamLimits {
    fn check_together(&self) -> Result<(), SettingsError> {
        Ok(())
    }
}

/// `field` is no more than `other`, whose full name is given.
fn not_above<T: Setting + PartialOrd>(
    field: &str,
    value: &T,
    other: &str,
    most: &T,
) -> Result<(), SettingsError> {
    if value <= most {
        return Ok(());
    }
    let text = |value: &T| value.text().unwrap_or_default();
    Err(SettingsError::new(field, format!("at most {other} ({})", text(most)), text(value)))
}

#[cfg(test)]
mod tests;
