//! Settings as they are, in their wire form: every field that has a value is there.

use std::time::Duration;

use forebay_broker::api::{
    Acks, Fairness, GroupSettings, OnExhausted, OnFull, OnParkedKey, Rate, Retention, Strategy,
    StreamSettings,
};
use forebay_wire::v1;

use crate::native::grpc::report::millis;

pub(in crate::native::grpc) fn stream(settings: &StreamSettings) -> v1::StreamSettings {
    let limits = &settings.limits;
    let on_full = match limits.on_full {
        OnFull::Reject => v1::stream_limits::OnFull::Reject,
        OnFull::DropOldest => v1::stream_limits::OnFull::DropOldest,
    };
    v1::StreamSettings {
        dedupe_window_ms: Some(millis(settings.dedupe_window)),
        dedupe_max: Some(settings.dedupe_max),
        retention: Some(retention(&settings.retention)),
        limits: Some(v1::StreamLimits {
            max_messages: limits.messages_max,
            max_bytes: limits.bytes_max,
            max_age_ms: limits.age_max.map(millis),
            on_full: on_full.into(),
        }),
        ingress_rate: settings.ingress.map(rate),
    }
}

fn retention(of: &Retention) -> v1::Retention {
    use v1::retention::Kept;
    let kept = match of {
        Retention::Work => Kept::Work(true),
        Retention::Log { age_max, bytes_max, messages_max } => Kept::Log(v1::LogRetention {
            max_age_ms: age_max.map(millis),
            max_bytes: *bytes_max,
            max_messages: *messages_max,
        }),
    };
    v1::Retention { kept: Some(kept) }
}

pub(in crate::native::grpc) fn rate(of: Rate) -> v1::Rate {
    v1::Rate { per_second: of.per_second, burst: of.burst }
}

pub(in crate::native::grpc) fn group(settings: &GroupSettings) -> v1::GroupSettings {
    use v1::group_settings as wire;
    let strategy = match settings.strategy {
        Strategy::RoundRobin => wire::Strategy::RoundRobin,
        Strategy::Single => wire::Strategy::Single,
        Strategy::Pinned => wire::Strategy::Pinned,
        Strategy::Ordered => wire::Strategy::Ordered,
    };
    let on_parked_key = match settings.on_parked_key {
        OnParkedKey::Continue => wire::OnParkedKey::Continue,
        OnParkedKey::Hold => wire::OnParkedKey::Hold,
    };
    let fairness = match settings.fairness {
        Fairness::None => wire::Fairness::None,
        Fairness::Key => wire::Fairness::Key,
    };
    let acks = match settings.acks {
        Acks::Journal => wire::Acks::Journal,
        Acks::Durable => wire::Acks::Durable,
        Acks::Checkpoint => wire::Acks::Checkpoint,
    };
    let duration = |duration: Duration| Some(millis(duration));
    v1::GroupSettings {
        message_timeout_ms: duration(settings.message_timeout),
        max_retries: Some(retries(settings.retries_max)),
        backoff: Some(v1::Backoff {
            min_ms: duration(settings.backoff.delay_min),
            max_ms: duration(settings.backoff.delay_max),
            factor: Some(settings.backoff.factor),
            jitter: Some(settings.backoff.jitter),
        }),
        max_in_flight: Some(settings.in_flight_max),
        buffer: Some(settings.buffer),
        strategy: strategy.into(),
        on_exhausted: Some(on_exhausted(&settings.on_exhausted)),
        key_batch: Some(settings.key_batch),
        on_parked_key: on_parked_key.into(),
        fairness: fairness.into(),
        priority_age_step_ms: duration(settings.priority_age_step),
        window_max: Some(settings.window_max),
        parked_max: Some(settings.parked_max),
        parked_max_age_ms: settings.parked_age_max.map(millis),
        max_consumers: Some(settings.consumers_max),
        rate: settings.rate.map(rate),
        acks: acks.into(),
        checkpoint: Some(v1::Checkpoint {
            interval_ms: duration(settings.checkpoint.interval),
            min: Some(settings.checkpoint.messages_min),
            max: Some(settings.checkpoint.messages_max),
        }),
        extra_statistics: Some(settings.extra_statistics),
    }
}

fn retries(of: Option<u32>) -> v1::Retries {
    use v1::retries::Retries;
    v1::Retries { retries: Some(of.map_or(Retries::Unlimited(true), Retries::AtMost)) }
}

fn on_exhausted(of: &OnExhausted) -> v1::OnExhausted {
    use v1::on_exhausted::Then;
    let then = match of {
        OnExhausted::Park => Then::Park(true),
        OnExhausted::Skip => Then::Skip(true),
        OnExhausted::Move(to) => Then::MoveTo(to.to_string()),
    };
    v1::OnExhausted { then: Some(then) }
}
