//! What users may choose about a stream and a group, and how the log writes it down.
//!
//! On disk settings are a list of `field | length | value`, so that a field added later is simply
//! absent from what was written before, and then has its default.

use std::time::Duration;

use crate::codec::{Cursor, DecodeError, put_bytes, put_varint};
use crate::types::{Attempt, Seq, Timestamp, micros};

/// What users may choose about a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamSettings {
    /// How long a message id is remembered, so that a second publish with it stores nothing.
    pub dedupe_window: Duration,
    /// How many ids are remembered at most; beyond, the window shortens.
    pub dedupe_max: u32,
}

impl Default for StreamSettings {
    fn default() -> StreamSettings {
        StreamSettings { dedupe_window: Duration::from_secs(600), dedupe_max: 1_000_000 }
    }
}

/// What users may choose about a group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupSettings {
    /// Length of a lease when the consumer asks for none.
    pub message_timeout: Duration,
    /// Attempts after the first; `None` is unlimited.
    pub retries_max: Option<u32>,
    pub backoff: Backoff,
    /// Leases that the whole group may hold at once.
    pub in_flight_max: u32,
    /// Messages read ahead of dispatch.
    pub buffer: u32,
}

impl Default for GroupSettings {
    fn default() -> GroupSettings {
        GroupSettings {
            message_timeout: Duration::from_secs(30),
            retries_max: Some(10),
            backoff: Backoff::default(),
            in_flight_max: 10_000,
            buffer: 500,
        }
    }
}

/// Why settings were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    #[error("the factor of a backoff is between 1 and 100")]
    Factor,
    #[error("the jitter of a backoff is between 0 and 1")]
    Jitter,
    #[error("a duration is longer than a year")]
    TooLong,
    #[error("the least wait of a backoff is longer than the most")]
    DelayOrder,
    #[error("a lease lasts for some time")]
    NoTimeout,
}

/// Nothing that is waited for takes longer.
const YEAR: Duration = Duration::from_secs(366 * 86_400);

impl GroupSettings {
    /// Whether everything is within its range. Past this point nobody checks again.
    pub fn check(&self) -> Result<(), SettingsError> {
        let backoff = &self.backoff;
        match () {
            () if !(1.0..=100.0).contains(&backoff.factor) => Err(SettingsError::Factor),
            () if !(0.0..=1.0).contains(&backoff.jitter) => Err(SettingsError::Jitter),
            () if backoff.delay_max > YEAR || self.message_timeout > YEAR => Err(SettingsError::TooLong),
            () if backoff.delay_min > backoff.delay_max => Err(SettingsError::DelayOrder),
            () if self.message_timeout.is_zero() => Err(SettingsError::NoTimeout),
            () => Ok(()),
        }
    }

    /// Whether a message that failed this attempt has used up its retries.
    pub fn is_exhausted(&self, attempt: Attempt) -> bool {
        self.retries_max.is_some_and(|retries| attempt.0 > retries)
    }
}

/// How long to wait before a message that failed is offered again.
#[derive(Debug, Clone, PartialEq)]
pub struct Backoff {
    pub delay_min: Duration,
    pub delay_max: Duration,
    pub factor: f64,
    /// 0 is none; 1 spreads a retry over the whole wait.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff {
            delay_min: Duration::from_millis(100),
            delay_max: Duration::from_secs(30),
            factor: 2.0,
            jitter: 0.5,
        }
    }
}

impl Backoff {
    /// When a message that failed `attempt` at `now` may be offered again.
    ///
    /// The jitter is a function of the message and the attempt rather than of a random source, so that
    /// a re-run simulation arrives at the same schedule.
    pub fn ready_at(&self, now: Timestamp, seq: Seq, attempt: Attempt) -> Timestamp {
        let doublings = attempt.0.saturating_sub(1).min(64);
        let full = self.delay_min.as_secs_f64() * self.factor.powi(doublings as i32);
        let full = full.min(self.delay_max.as_secs_f64());
        let spread = 1.0 - self.jitter * unit_hash(seq, attempt);
        now + Duration::from_secs_f64(full * spread)
    }
}

/// A number in 0..1 that looks random and is always the same for the same message and attempt.
fn unit_hash(seq: Seq, attempt: Attempt) -> f64 {
    let mut x = seq.0 ^ (u64::from(attempt.0) << 48) ^ 0x9e37_79b9_7f4a_7c15;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Collects `field | length | value`.
struct Fields<'a>(&'a mut Vec<u8>);

impl Fields<'_> {
    fn number(&mut self, field: u64, value: u64) {
        let mut bytes = Vec::with_capacity(10);
        put_varint(&mut bytes, value);
        put_varint(self.0, field);
        put_bytes(self.0, &bytes);
    }

    fn duration(&mut self, field: u64, value: Duration) {
        self.number(field, micros(value));
    }

    fn float(&mut self, field: u64, value: f64) {
        self.number(field, value.to_bits());
    }
}

/// Reads `field | length | value` until the end and hands each number to `set`, which says whether it
/// knows the field.
fn read_fields(bytes: &[u8], mut set: impl FnMut(u64, u64) -> bool) -> Result<(), DecodeError> {
    let mut cursor = Cursor::new(bytes);
    while !cursor.is_at_end() {
        let field = cursor.varint()?;
        let value = Cursor::new(cursor.bytes()?).varint()?;
        if !set(field, value) {
            return Err(DecodeError::UnknownField { field });
        }
    }
    Ok(())
}

fn as_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

impl StreamSettings {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut fields = Fields(out);
        fields.duration(1, self.dedupe_window);
        fields.number(2, self.dedupe_max.into());
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<StreamSettings, DecodeError> {
        let mut settings = StreamSettings::default();
        read_fields(bytes, |field, value| {
            match field {
                1 => settings.dedupe_window = Duration::from_micros(value),
                2 => settings.dedupe_max = as_u32(value),
                _ => return false,
            }
            true
        })?;
        Ok(settings)
    }
}

impl GroupSettings {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut fields = Fields(out);
        fields.duration(1, self.message_timeout);
        // Zero is unlimited, so that the number itself is never special.
        fields.number(2, self.retries_max.map_or(0, |retries| u64::from(retries) + 1));
        fields.duration(3, self.backoff.delay_min);
        fields.duration(4, self.backoff.delay_max);
        fields.float(5, self.backoff.factor);
        fields.float(6, self.backoff.jitter);
        fields.number(7, self.in_flight_max.into());
        fields.number(8, self.buffer.into());
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<GroupSettings, DecodeError> {
        let mut settings = GroupSettings::default();
        read_fields(bytes, |field, value| {
            match field {
                1 => settings.message_timeout = Duration::from_micros(value),
                2 => settings.retries_max = value.checked_sub(1).map(as_u32),
                3 => settings.backoff.delay_min = Duration::from_micros(value),
                4 => settings.backoff.delay_max = Duration::from_micros(value),
                5 => settings.backoff.factor = f64::from_bits(value),
                6 => settings.backoff.jitter = f64::from_bits(value),
                7 => settings.in_flight_max = as_u32(value),
                8 => settings.buffer = as_u32(value),
                _ => return false,
            }
            true
        })?;
        settings.check().map_err(|_| DecodeError::OutOfRange("settings of a group"))?;
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_the_round_trip() {
        let group = GroupSettings {
            retries_max: None,
            backoff: Backoff { jitter: 0.25, ..Backoff::default() },
            buffer: 7,
            ..GroupSettings::default()
        };
        let mut bytes = Vec::new();
        group.encode(&mut bytes);
        assert_eq!(GroupSettings::decode(&bytes), Ok(group));

        let stream = StreamSettings { dedupe_max: 3, ..StreamSettings::default() };
        let mut bytes = Vec::new();
        stream.encode(&mut bytes);
        assert_eq!(StreamSettings::decode(&bytes), Ok(stream));
    }

    #[test]
    fn a_field_of_a_later_release_is_named() {
        let mut bytes = Vec::new();
        Fields(&mut bytes).number(99, 1);
        assert_eq!(GroupSettings::decode(&bytes), Err(DecodeError::UnknownField { field: 99 }));
    }

    #[test]
    fn settings_that_cannot_be_are_refused() {
        let with = |backoff: Backoff| GroupSettings { backoff, ..GroupSettings::default() }.check();
        let default = Backoff::default;
        assert_eq!(with(default()), Ok(()));
        assert_eq!(with(Backoff { jitter: 1.5, ..default() }), Err(SettingsError::Jitter));
        assert_eq!(with(Backoff { jitter: f64::NAN, ..default() }), Err(SettingsError::Jitter));
        assert_eq!(with(Backoff { factor: -1.0, ..default() }), Err(SettingsError::Factor));
        assert_eq!(with(Backoff { delay_max: YEAR * 2, ..default() }), Err(SettingsError::TooLong));
        assert_eq!(with(Backoff { delay_min: YEAR, ..default() }), Err(SettingsError::DelayOrder));
        let none = GroupSettings { message_timeout: Duration::ZERO, ..GroupSettings::default() };
        assert_eq!(none.check(), Err(SettingsError::NoTimeout));
    }

    #[test]
    fn backoff_grows_to_its_cap_and_stays_within_its_jitter() {
        let backoff = Backoff::default();
        for (attempt, full_ms) in [(1, 100), (2, 200), (5, 1_600), (9, 25_600), (10, 30_000), (400, 30_000)] {
            for seq in 1..200 {
                let at = backoff.ready_at(Timestamp::ZERO, Seq(seq), Attempt(attempt)).0;
                assert!((full_ms * 500..=full_ms * 1_000).contains(&at), "attempt {attempt} waits {at} µs");
            }
        }
    }
}
