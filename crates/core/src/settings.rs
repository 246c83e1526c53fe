//! How the core acts by the settings of streams and groups, and how the log writes them down. The settings
//! themselves are declared in `forebay-model`.
//!
//! On disk settings are a list of `field | length | value`, so that a field added later is simply absent
//! from settings that were written before, and then has its default.

use std::time::Duration;

pub(crate) use forebay_model::limits::YEAR;
pub use forebay_model::settings::UNASKED_BYTES_MAX;
use forebay_model::value::{Raw, Setting, Stored};
pub use forebay_model::{
    Acks, Backoff, Checkpoint, Fairness, GroupSettings, KeyLock, MoveTerms, OnEnd, OnExhausted, OnFull,
    OnParkedKey, Rate, Retention, Retries, SettingsError, Source, Start, Strategy, StreamLimits,
    StreamSettings,
};

use crate::codec::{Cursor, DecodeError, put_bytes, put_varint};
use crate::types::{Attempt, Seq, Timestamp};

/// Whether a message that failed this attempt has used up its retries.
pub(crate) fn is_exhausted(retries: Retries, attempt: Attempt) -> bool {
    retries.at_most().is_some_and(|retries| attempt.0 > retries)
}

/// When a message that failed `attempt` at `now` may be offered again.
///
/// The jitter is a function of the message and the attempt rather than of a random source, so that
/// a re-run simulation arrives at the same schedule.
pub fn ready_at(backoff: &Backoff, now: Timestamp, seq: Seq, attempt: Attempt) -> Timestamp {
    let doublings = attempt.0.saturating_sub(1).min(64);
    let full = backoff.min.as_secs_f64() * backoff.factor.powi(doublings as i32);
    let full = full.min(backoff.max.as_secs_f64());
    let spread = 1.0 - backoff.jitter * unit_hash(seq, attempt);
    now + Duration::from_secs_f64(full * spread)
}

/// A number in 0..1 that looks random and is always the same for the same message and attempt.
fn unit_hash(seq: Seq, attempt: Attempt) -> f64 {
    let mut x = seq.0 ^ (u64::from(attempt.0) << 48) ^ 0x9e37_79b9_7f4a_7c15;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Settings as the log has them.
pub(crate) trait Logged: Sized {
    fn encode(&self, out: &mut Vec<u8>);
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError>;
}

impl<T: Setting + Default> Logged for T {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut number = Vec::with_capacity(10);
        self.store(0, &mut |field, value| {
            put_varint(out, field);
            match value {
                Stored::Bytes(bytes) => put_bytes(out, bytes),
                Stored::Number(value) => {
                    number.clear();
                    put_varint(&mut number, value);
                    put_bytes(out, &number);
                }
            }
        });
    }

    fn decode(bytes: &[u8]) -> Result<T, DecodeError> {
        let mut settings = T::default();
        let mut cursor = Cursor::new(bytes);
        while !cursor.is_at_end() {
            let field = cursor.varint()?;
            let bytes = cursor.bytes()?;
            let raw = Raw { bytes, number: Cursor::new(bytes).varint().ok() };
            match settings.load(field, raw) {
                Ok(true) => {}
                Ok(false) => return Err(DecodeError::UnknownField { field }),
                Err(_) => return Err(DecodeError::OutOfRange("value of a setting")),
            }
        }
        settings
            .check("", forebay_model::Limit::None)
            .map_err(|_| DecodeError::OutOfRange("settings of a stream or a group"))?;
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::StreamName;

    #[test]
    fn settings_survive_the_round_trip() {
        let group = GroupSettings {
            start: Start::Time(Timestamp(21)),
            max_retries: Retries::Unlimited,
            on_exhausted: OnExhausted::Move(StreamName::stored("elsewhere")),
            backoff: Backoff { jitter: 0.25, ..Backoff::default() },
            rate: Some(Rate { per_second: 0.5, burst: 16 }),
            ..GroupSettings::default()
        };
        let mut bytes = Vec::new();
        group.encode(&mut bytes);
        assert_eq!(GroupSettings::decode(&bytes), Ok(group));

        let skip = GroupSettings { on_exhausted: OnExhausted::Skip, ..GroupSettings::default() };
        let mut bytes = Vec::new();
        skip.encode(&mut bytes);
        assert_eq!(GroupSettings::decode(&bytes), Ok(skip));

        let retention =
            Retention::Log { max_age: Some(Duration::from_secs(1)), max_bytes: None, max_messages: Some(2) };
        let stream = StreamSettings { retention, ..StreamSettings::default() };
        let mut bytes = Vec::new();
        stream.encode(&mut bytes);
        assert_eq!(StreamSettings::decode(&bytes), Ok(stream));
    }

    #[test]
    fn a_field_of_a_later_release_is_named() {
        let bytes = [99, 1, 1];
        assert_eq!(GroupSettings::decode(&bytes), Err(DecodeError::UnknownField { field: 99 }));
    }

    #[test]
    fn settings_out_of_range_are_not_read() {
        let mut bytes = Vec::new();
        GroupSettings { buffer: 0, ..GroupSettings::default() }.encode(&mut bytes);
        assert!(matches!(GroupSettings::decode(&bytes), Err(DecodeError::OutOfRange(_))));
    }

    #[test]
    fn backoff_grows_to_its_cap_and_stays_within_its_jitter() {
        let backoff = Backoff::default();
        for (attempt, full_ms) in [(1, 100), (2, 200), (5, 1_600), (9, 25_600), (10, 30_000), (400, 30_000)] {
            for seq in 1..200 {
                let at = ready_at(&backoff, Timestamp::ZERO, Seq(seq), Attempt(attempt)).0;
                assert!((full_ms * 500..=full_ms * 1_000).contains(&at), "attempt {attempt} waits {at} µs");
            }
        }
    }
}
