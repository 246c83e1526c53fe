//! Settings that go back to their defaults, by the names of their fields on the wire.

use forebay_broker::api::{Backoff, CheckpointPolicy, GroupSettings, StreamLimits, StreamSettings};

/// Whether there is such a field.
pub(super) fn stream(field: &str, settings: &mut StreamSettings) -> bool {
    let default = StreamSettings::default();
    let limits = &mut settings.limits;
    match field {
        "dedupe_window_ms" => settings.dedupe_window = default.dedupe_window,
        "dedupe_max" => settings.dedupe_max = default.dedupe_max,
        "retention" => settings.retention = default.retention,
        "limits" => *limits = StreamLimits::default(),
        "limits.max_messages" => limits.messages_max = None,
        "limits.max_bytes" => limits.bytes_max = None,
        "limits.max_age_ms" => limits.age_max = None,
        "limits.on_full" => limits.on_full = default.limits.on_full,
        "ingress_rate" => settings.ingress = None,
        _ => return false,
    }
    true
}

/// Whether there is such a field.
pub(super) fn group(field: &str, settings: &mut GroupSettings) -> bool {
    let default = GroupSettings::default();
    let (backoff, checkpoint) = (&mut settings.backoff, &mut settings.checkpoint);
    match field {
        "message_timeout_ms" => settings.message_timeout = default.message_timeout,
        "max_retries" => settings.retries_max = default.retries_max,
        "backoff" => *backoff = Backoff::default(),
        "backoff.min_ms" => backoff.delay_min = default.backoff.delay_min,
        "backoff.max_ms" => backoff.delay_max = default.backoff.delay_max,
        "backoff.factor" => backoff.factor = default.backoff.factor,
        "backoff.jitter" => backoff.jitter = default.backoff.jitter,
        "max_in_flight" => settings.in_flight_max = default.in_flight_max,
        "buffer" => settings.buffer = default.buffer,
        "strategy" => settings.strategy = default.strategy,
        "on_exhausted" => settings.on_exhausted = default.on_exhausted,
        "key_batch" => settings.key_batch = default.key_batch,
        "on_parked_key" => settings.on_parked_key = default.on_parked_key,
        "fairness" => settings.fairness = default.fairness,
        "priority_age_step_ms" => settings.priority_age_step = default.priority_age_step,
        "window_max" => settings.window_max = default.window_max,
        "parked_max" => settings.parked_max = default.parked_max,
        "parked_max_age_ms" => settings.parked_age_max = None,
        "max_consumers" => settings.consumers_max = default.consumers_max,
        "rate" => settings.rate = None,
        "acks" => settings.acks = default.acks,
        "checkpoint" => *checkpoint = CheckpointPolicy::default(),
        "checkpoint.interval_ms" => checkpoint.interval = default.checkpoint.interval,
        "checkpoint.min" => checkpoint.messages_min = default.checkpoint.messages_min,
        "checkpoint.max" => checkpoint.messages_max = default.checkpoint.messages_max,
        "extra_statistics" => settings.extra_statistics = default.extra_statistics,
        _ => return false,
    }
    true
}
