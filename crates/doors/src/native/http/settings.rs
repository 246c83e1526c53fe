//! Settings of streams and groups, from their wire form and back. What is absent is left as it is; what cannot
//! be is refused first, by the name of its field.

use std::ops::RangeInclusive;
use std::time::Duration;

use forebay_broker::api::{
    Acks, Backoff, CheckpointPolicy, Fairness, GroupSettings, OnExhausted, OnFull, OnParkedKey, Rate,
    Retention, Start, Strategy, StreamLimits, StreamSettings,
};
use forebay_core::types::{StreamName, Timestamp};
use forebay_wire::json::{self, Span};
use serde::Serialize;
use serde_json::Value;

use super::failure::Failure;
use crate::native::service::position;

/// Nothing that is waited for takes longer.
pub(super) const YEAR: Duration = Duration::from_secs(366 * 86_400);
/// Slower and faster than anything.
const PER_SECOND: RangeInclusive<f64> = 0.001..=10_000_000.0;
const FACTOR: RangeInclusive<f64> = 1.0..=100.0;
const JITTER: RangeInclusive<f64> = 0.0..=1.0;

type Checked = Result<(), Failure>;

/// Whether settings could be a stream's, each for itself.
pub(super) fn check_stream(wire: &json::StreamSettings) -> Checked {
    within_a_year("dedupe_window", wire.dedupe_window)?;
    if let Some(json::Retention::Kept(kept)) = &wire.retention {
        some_time("retention.max_age", kept.max_age)?;
        above_zero("retention.max_bytes", kept.max_bytes)?;
        above_zero("retention.max_messages", kept.max_messages)?;
    }
    if let Some(limits) = &wire.limits {
        some_time("limits.max_age", limits.max_age.flatten())?;
        above_zero("limits.max_bytes", limits.max_bytes.flatten())?;
        above_zero("limits.max_messages", limits.max_messages.flatten())?;
    }
    check_rate("ingress_rate", wire.ingress_rate.flatten().as_ref())
}

/// Puts in what is given. It has been checked.
pub(super) fn set_stream(wire: &json::StreamSettings, settings: &mut StreamSettings) {
    set(&mut settings.dedupe_window, wire.dedupe_window.map(|span| span.0));
    set(&mut settings.dedupe_max, wire.dedupe_max);
    set(
        &mut settings.retention,
        wire.retention.as_ref().map(|retention| match retention {
            json::Retention::Work => Retention::Work,
            json::Retention::Kept(kept) => Retention::Log {
                age_max: kept.max_age.map(|span| span.0),
                bytes_max: kept.max_bytes,
                messages_max: kept.max_messages,
            },
        }),
    );
    if let Some(wire) = &wire.limits {
        let limits = &mut settings.limits;
        set(&mut limits.messages_max, wire.max_messages);
        set(&mut limits.bytes_max, wire.max_bytes);
        set(&mut limits.age_max, wire.max_age.map(|age| age.map(|span| span.0)));
        set(
            &mut limits.on_full,
            wire.on_full.map(|on_full| match on_full {
                json::OnFull::Reject => OnFull::Reject,
                json::OnFull::DropOldest => OnFull::DropOldest,
            }),
        );
    }
    set(&mut settings.ingress, wire.ingress_rate.as_ref().map(|wire| wire.as_ref().map(rate)));
}

pub(in crate::native) fn of_stream(settings: &StreamSettings) -> json::StreamSettings {
    let StreamSettings { retention, dedupe_window, dedupe_max, limits, ingress, delay: _ } = settings;
    // Only the SQS door sets a delay, and shows it there.
    let StreamLimits { messages_max, bytes_max, age_max, on_full } = limits;
    json::StreamSettings {
        retention: Some(match retention {
            Retention::Work => json::Retention::Work,
            Retention::Log { age_max, bytes_max, messages_max } => {
                json::Retention::Kept(json::RetentionLimits {
                    max_age: age_max.map(Span),
                    max_bytes: *bytes_max,
                    max_messages: *messages_max,
                })
            }
        }),
        dedupe_window: Some(Span(*dedupe_window)),
        dedupe_max: Some(*dedupe_max),
        limits: Some(json::StreamLimits {
            max_messages: Some(*messages_max),
            max_bytes: Some(*bytes_max),
            max_age: Some(age_max.map(Span)),
            on_full: Some(match on_full {
                OnFull::Reject => json::OnFull::Reject,
                OnFull::DropOldest => json::OnFull::DropOldest,
            }),
        }),
        ingress_rate: Some(ingress.map(of_rate)),
    }
}

/// Whether settings could be a group's, each for itself.
pub(super) fn check_group(wire: &json::GroupSettings) -> Checked {
    some_time("message_timeout", wire.message_timeout)?;
    if let Some(json::OnExhausted::Move(to)) = &wire.on_exhausted {
        StreamName::parse(to).map_err(|error| Failure::field("on_exhausted.move", error.to_string()))?;
    }
    if let Some(backoff) = &wire.backoff {
        within_a_year("backoff.min", backoff.min)?;
        within_a_year("backoff.max", backoff.max)?;
        within("backoff.factor", backoff.factor, &FACTOR)?;
        within("backoff.jitter", backoff.jitter, &JITTER)?;
    }
    within_a_year("priority_age_step", wire.priority_age_step)?;
    some_time("parked_max_age", wire.parked_max_age.flatten())?;
    for (field, number) in [
        ("key_batch", wire.key_batch),
        ("window_max", wire.window_max),
        ("parked_max", wire.parked_max),
        ("max_in_flight", wire.max_in_flight),
        ("buffer", wire.buffer),
        ("checkpoint.max", wire.checkpoint.as_ref().and_then(|checkpoint| checkpoint.max)),
    ] {
        above_zero(field, number)?;
    }
    some_time("checkpoint.interval", wire.checkpoint.as_ref().and_then(|checkpoint| checkpoint.interval))?;
    check_rate("rate", wire.rate.flatten().as_ref())
}

/// Puts in what is given. It has been checked.
pub(super) fn set_group(wire: &json::GroupSettings, settings: &mut GroupSettings) {
    set(
        &mut settings.strategy,
        wire.strategy.map(|strategy| match strategy {
            json::Strategy::RoundRobin => Strategy::RoundRobin,
            json::Strategy::Single => Strategy::Single,
            json::Strategy::Pinned => Strategy::Pinned,
            json::Strategy::Ordered => Strategy::Ordered,
        }),
    );
    set(&mut settings.message_timeout, wire.message_timeout.map(|span| span.0));
    set(
        &mut settings.retries_max,
        wire.max_retries.map(|retries| match retries {
            json::Retries::AtMost(retries) => Some(retries),
            json::Retries::Unlimited => None,
        }),
    );
    set(
        &mut settings.on_exhausted,
        wire.on_exhausted.as_ref().map(|then| match then {
            json::OnExhausted::Park => OnExhausted::Park,
            json::OnExhausted::Skip => OnExhausted::Skip,
            json::OnExhausted::Move(to) => OnExhausted::Move(StreamName::parse(to).expect("it was checked")),
        }),
    );
    if let Some(wire) = &wire.backoff {
        let backoff = &mut settings.backoff;
        set(&mut backoff.delay_min, wire.min.map(|span| span.0));
        set(&mut backoff.delay_max, wire.max.map(|span| span.0));
        set(&mut backoff.factor, wire.factor);
        set(&mut backoff.jitter, wire.jitter);
    }
    set(&mut settings.key_batch, wire.key_batch);
    set(
        &mut settings.on_parked_key,
        wire.on_parked_key.map(|on| match on {
            json::OnParkedKey::Continue => OnParkedKey::Continue,
            json::OnParkedKey::Hold => OnParkedKey::Hold,
        }),
    );
    set(
        &mut settings.fairness,
        wire.fairness.map(|fairness| match fairness {
            json::Fairness::None => Fairness::None,
            json::Fairness::Key => Fairness::Key,
        }),
    );
    set(&mut settings.priority_age_step, wire.priority_age_step.map(|span| span.0));
    set(&mut settings.window_max, wire.window_max);
    set(&mut settings.parked_max, wire.parked_max);
    set(&mut settings.parked_age_max, wire.parked_max_age.map(|age| age.map(|span| span.0)));
    set(&mut settings.in_flight_max, wire.max_in_flight);
    set(&mut settings.consumers_max, wire.max_consumers);
    set(&mut settings.rate, wire.rate.as_ref().map(|wire| wire.as_ref().map(rate)));
    set(
        &mut settings.acks,
        wire.acks.map(|acks| match acks {
            json::Acks::Journal => Acks::Journal,
            json::Acks::Durable => Acks::Durable,
            json::Acks::Checkpoint => Acks::Checkpoint,
        }),
    );
    if let Some(wire) = &wire.checkpoint {
        let checkpoint = &mut settings.checkpoint;
        set(&mut checkpoint.interval, wire.interval.map(|span| span.0));
        set(&mut checkpoint.messages_min, wire.min);
        set(&mut checkpoint.messages_max, wire.max);
    }
    set(&mut settings.buffer, wire.buffer);
    set(&mut settings.extra_statistics, wire.extra_statistics);
    set(&mut settings.start, wire.start.map(start));
}

pub(in crate::native) fn of_group(settings: &GroupSettings) -> json::GroupSettings {
    let Backoff { delay_min, delay_max, factor, jitter } = settings.backoff;
    let CheckpointPolicy { interval, messages_min, messages_max } = settings.checkpoint;
    json::GroupSettings {
        start: Some(match settings.start {
            Start::Beginning => json::Start::Beginning,
            Start::End => json::Start::End,
            Start::At(seq) => json::Start::Seq(seq.0),
            Start::Time(time) => json::Start::Time(json::Time(time.0)),
        }),
        strategy: Some(match settings.strategy {
            Strategy::RoundRobin => json::Strategy::RoundRobin,
            Strategy::Single => json::Strategy::Single,
            Strategy::Pinned => json::Strategy::Pinned,
            Strategy::Ordered => json::Strategy::Ordered,
        }),
        message_timeout: Some(Span(settings.message_timeout)),
        max_retries: Some(settings.retries_max.map_or(json::Retries::Unlimited, json::Retries::AtMost)),
        on_exhausted: Some(match &settings.on_exhausted {
            OnExhausted::Park => json::OnExhausted::Park,
            OnExhausted::Skip => json::OnExhausted::Skip,
            OnExhausted::Move(to) => json::OnExhausted::Move(to.to_string()),
        }),
        backoff: Some(json::Backoff {
            min: Some(Span(delay_min)),
            max: Some(Span(delay_max)),
            factor: Some(factor),
            jitter: Some(jitter),
        }),
        key_batch: Some(settings.key_batch),
        on_parked_key: Some(match settings.on_parked_key {
            OnParkedKey::Continue => json::OnParkedKey::Continue,
            OnParkedKey::Hold => json::OnParkedKey::Hold,
        }),
        fairness: Some(match settings.fairness {
            Fairness::None => json::Fairness::None,
            Fairness::Key => json::Fairness::Key,
        }),
        priority_age_step: Some(Span(settings.priority_age_step)),
        window_max: Some(settings.window_max),
        parked_max: Some(settings.parked_max),
        parked_max_age: Some(settings.parked_age_max.map(Span)),
        max_in_flight: Some(settings.in_flight_max),
        max_consumers: Some(settings.consumers_max),
        rate: Some(settings.rate.map(of_rate)),
        acks: Some(match settings.acks {
            Acks::Journal => json::Acks::Journal,
            Acks::Durable => json::Acks::Durable,
            Acks::Checkpoint => json::Acks::Checkpoint,
        }),
        checkpoint: Some(json::Checkpoint {
            interval: Some(Span(interval)),
            min: Some(messages_min),
            max: Some(messages_max),
        }),
        buffer: Some(settings.buffer),
        extra_statistics: Some(settings.extra_statistics),
    }
}

pub(super) fn start(wire: json::Start) -> Start {
    match wire {
        json::Start::Beginning => Start::Beginning,
        json::Start::End => Start::End,
        json::Start::Seq(seq) => Start::At(position(seq)),
        json::Start::Time(time) => Start::Time(Timestamp(time.0)),
    }
}

/// A rate without a burst has one of 1.
pub(super) fn rate(wire: &json::Rate) -> Rate {
    Rate { per_second: wire.per_second, burst: wire.burst.unwrap_or(1) }
}

pub(super) fn of_rate(rate: Rate) -> json::Rate {
    json::Rate { per_second: rate.per_second, burst: Some(rate.burst) }
}

pub(super) fn check_rate(field: &str, wire: Option<&json::Rate>) -> Checked {
    let Some(wire) = wire else { return Ok(()) };
    within(&format!("{field}.per_second"), Some(wire.per_second), &PER_SECOND)?;
    above_zero(&format!("{field}.burst"), wire.burst)
}

/// The first setting that was asked for and is not so.
pub(in crate::native) fn difference(asked: &impl Serialize, is: &impl Serialize) -> Option<String> {
    let asked = serde_json::to_value(asked).expect("settings can be written");
    differs(&asked, &serde_json::to_value(is).expect("settings can be written"))
}

fn differs(asked: &Value, is: &Value) -> Option<String> {
    let (Value::Object(asked), Value::Object(is)) = (asked, is) else { return None };
    // A rate without a burst has one of 1.
    if asked.contains_key("per_second") && !asked.contains_key("burst") && is["burst"] != 1 {
        return Some("burst".to_owned());
    }
    asked.iter().find_map(|(name, asked)| {
        let is = is.get(name).unwrap_or(&Value::Null);
        match (asked, is) {
            _ if asked == is => None,
            (Value::Object(_), Value::Object(_)) => differs(asked, is).map(|inner| format!("{name}.{inner}")),
            _ => Some(name.clone()),
        }
    })
}

/// A length of time that may be none at all.
fn within_a_year(field: &str, span: Option<Span>) -> Checked {
    if span.is_some_and(|span| span.0 > YEAR) {
        return Err(Failure::field(field, "at most \"366d\""));
    }
    Ok(())
}

/// A length of time.
pub(super) fn some_time(field: &str, span: Option<Span>) -> Checked {
    if span.is_some_and(|span| span.0.is_zero()) {
        return Err(Failure::field(field, "above zero, as in \"30s\""));
    }
    within_a_year(field, span)
}

fn above_zero<T: Default + PartialEq>(field: &str, value: Option<T>) -> Checked {
    if value.is_some_and(|value| value == T::default()) {
        return Err(Failure::field(field, "above zero"));
    }
    Ok(())
}

fn within(field: &str, value: Option<f64>, range: &RangeInclusive<f64>) -> Checked {
    if value.is_some_and(|value| !range.contains(&value)) {
        return Err(Failure::field(field, format!("from {} to {}", range.start(), range.end())));
    }
    Ok(())
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(text: &str) -> json::GroupSettings {
        serde_json::from_str(text).expect("settings")
    }

    #[test]
    fn what_a_group_says_of_its_settings_makes_the_same_group() {
        let mut settings = GroupSettings {
            strategy: Strategy::Ordered,
            retries_max: None,
            on_exhausted: OnExhausted::Move(StreamName::parse("other").expect("a name")),
            parked_age_max: Some(YEAR),
            rate: Some(Rate { per_second: 0.5, burst: 7 }),
            acks: Acks::Durable,
            ..GroupSettings::default()
        };
        settings.backoff.jitter = 0.25;
        settings.checkpoint.messages_min = 3;
        let wire = of_group(&settings);
        assert!(check_group(&wire).is_ok());
        let mut again = GroupSettings::default();
        set_group(&wire, &mut again);
        assert_eq!(again, settings);
        let mut reset = settings.clone();
        set_group(&group(r#"{"rate":null,"parked_max_age":null,"max_retries":3}"#), &mut reset);
        assert_eq!((reset.rate, reset.parked_age_max, reset.retries_max), (None, None, Some(3)));
        assert_eq!(reset.acks, Acks::Durable, "what is absent is left as it is");
        let terms = forebay_broker::api::MoveTerms { create: false, keep_age: true };
        let mut moves = GroupSettings { move_terms: terms, ..settings };
        set_group(&group(r#"{"on_exhausted":{"move":"another"}}"#), &mut moves);
        assert_eq!(moves.move_terms, terms, "so is what another door has set");
    }

    #[test]
    fn what_a_stream_says_of_its_settings_makes_the_same_stream() {
        let settings = StreamSettings {
            retention: Retention::Log { age_max: Some(YEAR), bytes_max: None, messages_max: Some(5) },
            dedupe_window: Duration::from_secs(5),
            dedupe_max: 9,
            limits: StreamLimits {
                bytes_max: Some(7),
                on_full: OnFull::DropOldest,
                ..StreamLimits::default()
            },
            ingress: Some(Rate { per_second: 2.0, burst: 3 }),
            // The native API does not know it.
            delay: Duration::ZERO,
        };
        let wire = of_stream(&settings);
        assert!(check_stream(&wire).is_ok());
        let mut again = StreamSettings::default();
        set_stream(&wire, &mut again);
        assert_eq!(again, settings);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (text, field) in [
            (r#"{"message_timeout":"0s"}"#, "message_timeout"),
            (r#"{"backoff":{"max":"367d"}}"#, "backoff.max"),
            (r#"{"backoff":{"jitter":1.5}}"#, "backoff.jitter"),
            (r#"{"window_max":0}"#, "window_max"),
            (r#"{"rate":{"per_second":0}}"#, "rate.per_second"),
            (r#"{"rate":{"per_second":1,"burst":0}}"#, "rate.burst"),
            (r#"{"on_exhausted":{"move":"$x"}}"#, "on_exhausted.move"),
            (r#"{"checkpoint":{"max":0}}"#, "checkpoint.max"),
        ] {
            let refused = check_group(&group(text)).expect_err(text);
            assert_eq!(refused.problem().field.as_deref(), Some(field), "{text}");
        }
    }

    #[test]
    fn the_setting_that_differs_is_found() {
        let is = of_group(&GroupSettings::default());
        let found = |text: &str| difference(&group(text), &is);
        assert_eq!(found(r#"{"message_timeout":"30s","max_retries":10,"rate":null}"#), None);
        assert_eq!(found(r#"{"message_timeout":"30s","max_retries":9}"#).as_deref(), Some("max_retries"));
        assert_eq!(found(r#"{"backoff":{"min":"100ms","max":"5s"}}"#).as_deref(), Some("backoff.max"));
        assert_eq!(found(r#"{"rate":{"per_second":5}}"#).as_deref(), Some("rate"));
        assert_eq!(found(r#"{"start":"beginning","priority_age_step":"1m"}"#), None);
        assert_eq!(found(r#"{"start":"end"}"#).as_deref(), Some("start"));
    }
}
