//! Settings of streams and groups from their wire form. What is absent is left as it is; a value that cannot
//! be is refused here, by the name of its field. Values that do not go together are the core's to refuse,
//! since it knows those that were there before.

mod clear;
pub(super) mod write;

use std::ops::RangeInclusive;
use std::time::Duration;

use forebay_broker::api::{
    Acks, Fairness, GroupSettings, OnExhausted, OnFull, OnParkedKey, Rate, Retention, Strategy,
    StreamSettings,
};
use forebay_core::types::StreamName;
use forebay_wire::problem::Kind;
use forebay_wire::v1;

use crate::native::problem::Refusal;

/// Nothing that is waited for takes longer.
pub(super) const YEAR: Duration = Duration::from_secs(366 * 86_400);
/// Slower and faster than anything.
const PER_SECOND: RangeInclusive<f64> = 0.001..=10_000_000.0;
const FACTOR: RangeInclusive<f64> = 1.0..=100.0;
const JITTER: RangeInclusive<f64> = 0.0..=1.0;

type Checked<T> = Result<Option<T>, Refusal>;

fn refuse(field: &str, what: &str) -> Refusal {
    Refusal::new(Kind::InvalidField, format!("{field}: {what}"))
}

/// A change of a stream's settings: first what goes back to its default, then what is supplied.
pub(super) fn stream_change(
    wire: v1::StreamSettings,
    cleared: Vec<String>,
) -> Result<impl FnOnce(&mut StreamSettings) + Send + 'static, Refusal> {
    let mut scratch = StreamSettings::default();
    if let Some(unknown) = cleared.iter().find(|field| !clear::stream(field, &mut scratch)) {
        return Err(refuse("clear", &format!("no such field. field=`{unknown}`")));
    }
    stream(&wire, &mut scratch)?;
    // What was checked above cannot be refused.
    Ok(move |settings: &mut StreamSettings| {
        for field in &cleared {
            clear::stream(field, settings);
        }
        drop(stream(&wire, settings));
    })
}

/// As [`stream_change`], of a group.
pub(super) fn group_change(
    wire: v1::GroupSettings,
    cleared: Vec<String>,
) -> Result<impl FnOnce(&mut GroupSettings) + Send + 'static, Refusal> {
    let mut scratch = GroupSettings::default();
    if let Some(unknown) = cleared.iter().find(|field| !clear::group(field, &mut scratch)) {
        return Err(refuse("clear", &format!("no such field. field=`{unknown}`")));
    }
    group(&wire, &mut scratch)?;
    Ok(move |settings: &mut GroupSettings| {
        for field in &cleared {
            clear::group(field, settings);
        }
        drop(group(&wire, settings));
    })
}

pub(in crate::native) fn stream(
    wire: &v1::StreamSettings,
    settings: &mut StreamSettings,
) -> Result<(), Refusal> {
    set(&mut settings.dedupe_window, duration("dedupe_window_ms", wire.dedupe_window_ms)?);
    set(&mut settings.dedupe_max, wire.dedupe_max);
    set(&mut settings.retention, retention(wire.retention.as_ref())?);
    if let Some(wire) = &wire.limits {
        let limits = &mut settings.limits;
        some(&mut limits.messages_max, above_zero("limits.max_messages", wire.max_messages)?);
        some(&mut limits.bytes_max, above_zero("limits.max_bytes", wire.max_bytes)?);
        some(&mut limits.age_max, some_duration("limits.max_age_ms", wire.max_age_ms)?);
        set(&mut limits.on_full, on_full(wire.on_full)?);
    }
    some(&mut settings.ingress, rate("ingress_rate", wire.ingress_rate.as_ref())?);
    Ok(())
}

fn retention(wire: Option<&v1::Retention>) -> Checked<Retention> {
    use v1::retention::Kept;
    Ok(match wire.and_then(|wire| wire.kept.as_ref()) {
        None => None,
        Some(Kept::Work(_)) => Some(Retention::Work),
        Some(Kept::Log(log)) => Some(Retention::Log {
            age_max: some_duration("retention.log.max_age_ms", log.max_age_ms)?,
            bytes_max: above_zero("retention.log.max_bytes", log.max_bytes)?,
            messages_max: above_zero("retention.log.max_messages", log.max_messages)?,
        }),
    })
}

fn on_full(number: i32) -> Checked<OnFull> {
    use v1::stream_limits::OnFull as Wire;
    match Wire::try_from(number) {
        Ok(Wire::Unspecified) => Ok(None),
        Ok(Wire::Reject) => Ok(Some(OnFull::Reject)),
        Ok(Wire::DropOldest) => Ok(Some(OnFull::DropOldest)),
        Err(_) => Err(unknown("limits.on_full", number)),
    }
}

pub(in crate::native) fn group(
    wire: &v1::GroupSettings,
    settings: &mut GroupSettings,
) -> Result<(), Refusal> {
    use v1::retries::Retries;
    set(&mut settings.strategy, strategy(wire.strategy)?);
    set(&mut settings.message_timeout, some_duration("message_timeout_ms", wire.message_timeout_ms)?);
    match wire.max_retries.and_then(|retries| retries.retries) {
        Some(Retries::AtMost(retries)) => settings.retries_max = Some(retries),
        Some(Retries::Unlimited(_)) => settings.retries_max = None,
        None => {}
    }
    set(&mut settings.on_exhausted, on_exhausted(wire.on_exhausted.as_ref())?);
    backoff(&wire.backoff.unwrap_or_default(), settings)?;
    set(&mut settings.key_batch, above_zero("key_batch", wire.key_batch)?);
    set(&mut settings.on_parked_key, on_parked_key(wire.on_parked_key)?);
    set(&mut settings.fairness, fairness(wire.fairness)?);
    set(&mut settings.priority_age_step, duration("priority_age_step_ms", wire.priority_age_step_ms)?);
    set(&mut settings.window_max, above_zero("window_max", wire.window_max)?);
    set(&mut settings.parked_max, above_zero("parked_max", wire.parked_max)?);
    some(&mut settings.parked_age_max, some_duration("parked_max_age_ms", wire.parked_max_age_ms)?);
    set(&mut settings.in_flight_max, above_zero("max_in_flight", wire.max_in_flight)?);
    set(&mut settings.consumers_max, wire.max_consumers);
    some(&mut settings.rate, rate("rate", wire.rate.as_ref())?);
    set(&mut settings.acks, acks(wire.acks)?);
    checkpoint(&wire.checkpoint.unwrap_or_default(), settings)?;
    set(&mut settings.buffer, above_zero("buffer", wire.buffer)?);
    set(&mut settings.extra_statistics, wire.extra_statistics);
    Ok(())
}

fn strategy(number: i32) -> Checked<Strategy> {
    use v1::group_settings::Strategy as Wire;
    match Wire::try_from(number) {
        Ok(Wire::Unspecified) => Ok(None),
        Ok(Wire::RoundRobin) => Ok(Some(Strategy::RoundRobin)),
        Ok(Wire::Single) => Ok(Some(Strategy::Single)),
        Ok(Wire::Pinned) => Ok(Some(Strategy::Pinned)),
        Ok(Wire::Ordered) => Ok(Some(Strategy::Ordered)),
        Err(_) => Err(unknown("strategy", number)),
    }
}

fn on_exhausted(wire: Option<&v1::OnExhausted>) -> Checked<OnExhausted> {
    use v1::on_exhausted::Then;
    Ok(match wire.and_then(|wire| wire.then.as_ref()) {
        None => None,
        Some(Then::Park(_)) => Some(OnExhausted::Park),
        Some(Then::Skip(_)) => Some(OnExhausted::Skip),
        Some(Then::MoveTo(stream)) => {
            let to = StreamName::parse(stream);
            Some(OnExhausted::Move(to.map_err(|error| refuse("on_exhausted.move_to", &error.to_string()))?))
        }
    })
}

fn backoff(wire: &v1::Backoff, settings: &mut GroupSettings) -> Result<(), Refusal> {
    let backoff = &mut settings.backoff;
    set(&mut backoff.delay_min, duration("backoff.min_ms", wire.min_ms)?);
    set(&mut backoff.delay_max, duration("backoff.max_ms", wire.max_ms)?);
    set(&mut backoff.factor, within("backoff.factor", wire.factor, &FACTOR)?);
    set(&mut backoff.jitter, within("backoff.jitter", wire.jitter, &JITTER)?);
    Ok(())
}

fn on_parked_key(number: i32) -> Checked<OnParkedKey> {
    use v1::group_settings::OnParkedKey as Wire;
    match Wire::try_from(number) {
        Ok(Wire::Unspecified) => Ok(None),
        Ok(Wire::Continue) => Ok(Some(OnParkedKey::Continue)),
        Ok(Wire::Hold) => Ok(Some(OnParkedKey::Hold)),
        Err(_) => Err(unknown("on_parked_key", number)),
    }
}

fn fairness(number: i32) -> Checked<Fairness> {
    use v1::group_settings::Fairness as Wire;
    match Wire::try_from(number) {
        Ok(Wire::Unspecified) => Ok(None),
        Ok(Wire::None) => Ok(Some(Fairness::None)),
        Ok(Wire::Key) => Ok(Some(Fairness::Key)),
        Err(_) => Err(unknown("fairness", number)),
    }
}

fn acks(number: i32) -> Checked<Acks> {
    use v1::group_settings::Acks as Wire;
    match Wire::try_from(number) {
        Ok(Wire::Unspecified) => Ok(None),
        Ok(Wire::Journal) => Ok(Some(Acks::Journal)),
        Ok(Wire::Durable) => Ok(Some(Acks::Durable)),
        Ok(Wire::Checkpoint) => Ok(Some(Acks::Checkpoint)),
        Err(_) => Err(unknown("acks", number)),
    }
}

fn checkpoint(wire: &v1::Checkpoint, settings: &mut GroupSettings) -> Result<(), Refusal> {
    let checkpoint = &mut settings.checkpoint;
    set(&mut checkpoint.interval, some_duration("checkpoint.interval_ms", wire.interval_ms)?);
    set(&mut checkpoint.messages_min, wire.min);
    set(&mut checkpoint.messages_max, above_zero("checkpoint.max", wire.max)?);
    Ok(())
}

pub(super) fn rate(field: &str, wire: Option<&v1::Rate>) -> Checked<Rate> {
    let Some(wire) = wire else { return Ok(None) };
    let per_second = within(&format!("{field}.per_second"), Some(wire.per_second), &PER_SECOND)?;
    Ok(per_second.map(|per_second| Rate { per_second, burst: wire.burst.max(1) }))
}

/// A length of time that may be none at all.
pub(super) fn duration(field: &str, millis: Option<u64>) -> Checked<Duration> {
    match millis.map(Duration::from_millis) {
        Some(duration) if duration > YEAR => Err(refuse(field, "at most 366d")),
        duration => Ok(duration),
    }
}

/// A length of time.
pub(super) fn some_duration(field: &str, millis: Option<u64>) -> Checked<Duration> {
    duration(field, above_zero(field, millis)?)
}

fn above_zero<T: Default + PartialEq>(field: &str, value: Option<T>) -> Checked<T> {
    if value.as_ref().is_some_and(|value| *value == T::default()) {
        return Err(refuse(field, "must be above zero"));
    }
    Ok(value)
}

fn within(field: &str, value: Option<f64>, range: &RangeInclusive<f64>) -> Checked<f64> {
    if value.is_some_and(|value| !range.contains(&value)) {
        return Err(refuse(field, &format!("from {} to {}", range.start(), range.end())));
    }
    Ok(value)
}

fn unknown(field: &str, number: i32) -> Refusal {
    refuse(field, &format!("no such choice. number=`{number}`"))
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

fn some<T>(field: &mut Option<T>, value: Option<T>) {
    if value.is_some() {
        *field = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(wire: &v1::GroupSettings) -> String {
        let refused = group(wire, &mut GroupSettings::default());
        refused.err().map(|refusal| refusal.sentence(None)).unwrap_or_default()
    }

    #[test]
    fn what_is_absent_is_left_as_it_is() {
        let key_lock = forebay_broker::api::KeyLock::Position;
        let before = GroupSettings { key_batch: 7, key_lock, ..GroupSettings::default() };
        let mut settings = before.clone();
        group(&v1::GroupSettings::default(), &mut settings).expect("nothing is wrong with nothing");
        assert_eq!(settings, before);
        group(&write::group(&before), &mut settings).expect("what is written can be read");
        assert_eq!(settings, before, "also what this API does not show");
        let mut settings = StreamSettings::default();
        stream(&v1::StreamSettings::default(), &mut settings).expect("nothing is wrong with nothing");
        assert_eq!(settings, StreamSettings::default());
    }

    #[test]
    fn what_cannot_be_is_named() {
        let wire = v1::GroupSettings::default;
        assert_eq!(
            refused(&v1::GroupSettings { strategy: 9, ..wire() }),
            "strategy: no such choice. number=`9`"
        );
        assert_eq!(
            refused(&v1::GroupSettings { window_max: Some(0), ..wire() }),
            "window_max: must be above zero"
        );
        let rate = Some(v1::Rate { per_second: f64::NAN, burst: 1 });
        assert_eq!(refused(&v1::GroupSettings { rate, ..wire() }), "rate.per_second: from 0.001 to 10000000");
        let timeout = v1::GroupSettings { message_timeout_ms: Some(u64::MAX), ..wire() };
        assert_eq!(refused(&timeout), "message_timeout_ms: at most 366d");
    }

    /// Nothing that can be set is forgotten where settings are written, read or cleared.
    #[test]
    fn settings_come_back_as_they_went_and_every_field_can_be_cleared() {
        let settings = GroupSettings {
            // Said apart from the settings, when a group is created.
            start: forebay_broker::api::Start::Beginning,
            strategy: Strategy::Ordered,
            message_timeout: Duration::from_secs(5),
            retries_max: None,
            on_exhausted: OnExhausted::Move(StreamName::parse("dead").expect("a name")),
            // Not of this API, and left alone by it.
            move_terms: forebay_broker::api::MoveTerms::default(),
            backoff: forebay_broker::api::Backoff {
                delay_min: Duration::from_millis(1),
                delay_max: Duration::from_millis(2),
                factor: 3.0,
                jitter: 0.25,
            },
            key_batch: 2,
            // Not shown by this API, and so neither written nor cleared.
            key_lock: forebay_broker::api::KeyLock::Delivery,
            on_parked_key: OnParkedKey::Hold,
            fairness: Fairness::Key,
            priority_age_step: Duration::from_secs(1),
            window_max: 3,
            parked_max: 4,
            parked_age_max: Some(Duration::from_secs(6)),
            in_flight_max: 5,
            consumers_max: 6,
            rate: Some(Rate { per_second: 7.0, burst: 8 }),
            acks: Acks::Durable,
            checkpoint: forebay_broker::api::CheckpointPolicy {
                interval: Duration::from_secs(9),
                messages_min: 11,
                messages_max: 12,
            },
            buffer: 13,
            extra_statistics: false,
        };
        let mut read = GroupSettings::default();
        group(&write::group(&settings), &mut read).expect("what is written can be read");
        assert_eq!(read, settings);
        let terms = forebay_broker::api::MoveTerms { create: false, keep_age: true };
        let mut others = GroupSettings { move_terms: terms, ..GroupSettings::default() };
        group(&write::group(&settings), &mut others).expect("what is written can be read");
        assert_eq!(others.move_terms, terms, "what another door has set is left alone");
        let fields = [
            "strategy",
            "message_timeout_ms",
            "max_retries",
            "on_exhausted",
            "backoff.min_ms",
            "backoff.max_ms",
            "backoff.factor",
            "backoff.jitter",
            "key_batch",
            "on_parked_key",
            "fairness",
            "priority_age_step_ms",
            "window_max",
            "parked_max",
            "parked_max_age_ms",
            "max_in_flight",
            "max_consumers",
            "rate",
            "acks",
            "checkpoint.interval_ms",
            "checkpoint.min",
            "checkpoint.max",
            "buffer",
            "extra_statistics",
        ];
        let change = group_change(v1::GroupSettings::default(), fields.map(str::to_owned).to_vec());
        change.expect("these are fields")(&mut read);
        assert_eq!(read, GroupSettings::default());

        let settings = StreamSettings {
            retention: Retention::Log {
                age_max: Some(Duration::from_secs(1)),
                bytes_max: Some(2),
                messages_max: Some(3),
            },
            dedupe_window: Duration::from_secs(4),
            dedupe_max: 5,
            limits: forebay_broker::api::StreamLimits {
                messages_max: Some(6),
                bytes_max: Some(7),
                age_max: Some(Duration::from_secs(8)),
                on_full: OnFull::DropOldest,
            },
            ingress: Some(Rate { per_second: 9.0, burst: 10 }),
            // The native API does not know it.
            delay: Duration::ZERO,
        };
        let mut read = StreamSettings::default();
        stream(&write::stream(&settings), &mut read).expect("what is written can be read");
        assert_eq!(read, settings);
        let fields = [
            "retention",
            "dedupe_window_ms",
            "dedupe_max",
            "limits.max_messages",
            "limits.max_bytes",
            "limits.max_age_ms",
            "limits.on_full",
            "ingress_rate",
        ];
        let change = stream_change(v1::StreamSettings::default(), fields.map(str::to_owned).to_vec());
        change.expect("these are fields")(&mut read);
        assert_eq!(read, StreamSettings::default());
    }

    #[test]
    fn what_is_supplied_comes_after_what_is_cleared_and_no_field_is_made_up() {
        let rate = Some(v1::Rate { per_second: 5.0, burst: 1 });
        let wire = v1::GroupSettings { rate, ..v1::GroupSettings::default() };
        let mut settings = GroupSettings { buffer: 7, ..GroupSettings::default() };
        group_change(wire, vec!["rate".to_owned(), "buffer".to_owned()]).expect("these are fields")(
            &mut settings,
        );
        assert_eq!((settings.rate.map(|rate| rate.per_second), settings.buffer), (Some(5.0), 500));
        let refused = stream_change(v1::StreamSettings::default(), vec!["limit".to_owned()]).err();
        assert_eq!(
            refused.map(|refusal| refusal.sentence(None)).as_deref(),
            Some("clear: no such field. field=`limit`")
        );
    }
}
