//! Between the words of this crate and those of the wire.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_wire::v1;
use v1::group_settings as wire;

use super::settings::{
    Acks, Backoff, Checkpoint, Fairness, GroupSettings, OnExhausted, OnFull, OnParkedKey, Rate, Retention,
    Retries, Start, Strategy, StreamSettings,
};
use crate::message::millis;

pub(super) fn duration(millis: Option<u64>) -> Option<Duration> {
    millis.map(Duration::from_millis)
}

pub(super) fn seconds(seconds: Option<f64>) -> Option<Duration> {
    seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

pub(super) fn time(micros: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros)
}

fn micros(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// A text that may be empty, and then says nothing.
pub(super) fn some_text(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

impl From<Rate> for v1::Rate {
    fn from(rate: Rate) -> v1::Rate {
        v1::Rate { per_second: rate.per_second, burst: rate.burst }
    }
}

impl From<v1::Rate> for Rate {
    fn from(rate: v1::Rate) -> Rate {
        Rate { per_second: rate.per_second, burst: rate.burst }
    }
}

impl From<&StreamSettings> for v1::StreamSettings {
    fn from(of: &StreamSettings) -> v1::StreamSettings {
        use v1::retention::Kept;
        let kept = of.retention.map(|retention| match retention {
            Retention::Work => Kept::Work(true),
            Retention::Log { max_age, max_bytes, max_messages } => {
                Kept::Log(v1::LogRetention { max_age_ms: max_age.map(millis), max_bytes, max_messages })
            }
        });
        let on_full = match of.on_full {
            None => v1::stream_limits::OnFull::Unspecified,
            Some(OnFull::Reject) => v1::stream_limits::OnFull::Reject,
            Some(OnFull::DropOldest) => v1::stream_limits::OnFull::DropOldest,
        };
        let limits = v1::StreamLimits {
            max_messages: of.max_messages,
            max_bytes: of.max_bytes,
            max_age_ms: of.max_age.map(millis),
            on_full: on_full.into(),
        };
        v1::StreamSettings {
            dedupe_window_ms: of.dedupe_window.map(millis),
            dedupe_max: of.dedupe_max,
            retention: kept.map(|kept| v1::Retention { kept: Some(kept) }),
            limits: Some(limits).filter(|limits| *limits != v1::StreamLimits::default()),
            ingress_rate: of.ingress_rate.map(v1::Rate::from),
        }
    }
}

impl From<v1::StreamSettings> for StreamSettings {
    fn from(of: v1::StreamSettings) -> StreamSettings {
        use v1::retention::Kept;
        let limits = of.limits.unwrap_or_default();
        StreamSettings {
            dedupe_window: duration(of.dedupe_window_ms),
            dedupe_max: of.dedupe_max,
            retention: of.retention.and_then(|retention| retention.kept).map(|kept| match kept {
                Kept::Work(_) => Retention::Work,
                Kept::Log(log) => Retention::Log {
                    max_age: duration(log.max_age_ms),
                    max_bytes: log.max_bytes,
                    max_messages: log.max_messages,
                },
            }),
            max_messages: limits.max_messages,
            max_bytes: limits.max_bytes,
            max_age: duration(limits.max_age_ms),
            on_full: match limits.on_full() {
                v1::stream_limits::OnFull::Unspecified => None,
                v1::stream_limits::OnFull::Reject => Some(OnFull::Reject),
                v1::stream_limits::OnFull::DropOldest => Some(OnFull::DropOldest),
            },
            ingress_rate: of.ingress_rate.map(Rate::from),
        }
    }
}

impl From<Start> for v1::Start {
    fn from(start: Start) -> v1::Start {
        use v1::start::At;
        let at = match start {
            Start::Beginning => At::Beginning(true),
            Start::End => At::End(true),
            Start::Seq(seq) => At::Seq(seq),
            Start::Time(at) => At::TimeUs(micros(at)),
        };
        v1::Start { at: Some(at) }
    }
}

/// Where the group begins is not one of its settings on the wire.
impl From<&GroupSettings> for v1::GroupSettings {
    fn from(of: &GroupSettings) -> v1::GroupSettings {
        use v1::on_exhausted::Then;
        let mut to = v1::GroupSettings {
            message_timeout_ms: of.message_timeout.map(millis),
            max_retries: of.max_retries.map(|retries| {
                let retries = match retries {
                    Retries::AtMost(most) => v1::retries::Retries::AtMost(most),
                    Retries::Unlimited => v1::retries::Retries::Unlimited(true),
                };
                v1::Retries { retries: Some(retries) }
            }),
            backoff: of.backoff.as_ref().map(|backoff| v1::Backoff {
                min_ms: backoff.min.map(millis),
                max_ms: backoff.max.map(millis),
                factor: backoff.factor,
                jitter: backoff.jitter,
            }),
            max_in_flight: of.max_in_flight,
            buffer: of.buffer,
            on_exhausted: of.on_exhausted.as_ref().map(|on_exhausted| {
                let then = match on_exhausted {
                    OnExhausted::Park => Then::Park(true),
                    OnExhausted::Skip => Then::Skip(true),
                    OnExhausted::Move(to) => Then::MoveTo(to.clone()),
                };
                v1::OnExhausted { then: Some(then) }
            }),
            key_batch: of.key_batch,
            priority_age_step_ms: of.priority_age_step.map(millis),
            window_max: of.window_max,
            parked_max: of.parked_max,
            parked_max_age_ms: of.parked_max_age.map(millis),
            max_consumers: of.max_consumers,
            rate: of.rate.map(v1::Rate::from),
            checkpoint: of.checkpoint.as_ref().map(|checkpoint| v1::Checkpoint {
                interval_ms: checkpoint.interval.map(millis),
                min: checkpoint.min,
                max: checkpoint.max,
            }),
            extra_statistics: of.extra_statistics,
            ..v1::GroupSettings::default()
        };
        to.set_strategy(match of.strategy {
            None => wire::Strategy::Unspecified,
            Some(Strategy::RoundRobin) => wire::Strategy::RoundRobin,
            Some(Strategy::Single) => wire::Strategy::Single,
            Some(Strategy::Pinned) => wire::Strategy::Pinned,
            Some(Strategy::Ordered) => wire::Strategy::Ordered,
        });
        to.set_on_parked_key(match of.on_parked_key {
            None => wire::OnParkedKey::Unspecified,
            Some(OnParkedKey::Continue) => wire::OnParkedKey::Continue,
            Some(OnParkedKey::Hold) => wire::OnParkedKey::Hold,
        });
        to.set_fairness(match of.fairness {
            None => wire::Fairness::Unspecified,
            Some(Fairness::None) => wire::Fairness::None,
            Some(Fairness::Key) => wire::Fairness::Key,
        });
        to.set_acks(match of.acks {
            None => wire::Acks::Unspecified,
            Some(Acks::Journal) => wire::Acks::Journal,
            Some(Acks::Durable) => wire::Acks::Durable,
            Some(Acks::Checkpoint) => wire::Acks::Checkpoint,
        });
        to
    }
}

impl From<v1::GroupSettings> for GroupSettings {
    fn from(of: v1::GroupSettings) -> GroupSettings {
        use v1::on_exhausted::Then;
        GroupSettings {
            start: None,
            strategy: match of.strategy() {
                wire::Strategy::Unspecified => None,
                wire::Strategy::RoundRobin => Some(Strategy::RoundRobin),
                wire::Strategy::Single => Some(Strategy::Single),
                wire::Strategy::Pinned => Some(Strategy::Pinned),
                wire::Strategy::Ordered => Some(Strategy::Ordered),
            },
            message_timeout: duration(of.message_timeout_ms),
            max_retries: of.max_retries.and_then(|of| of.retries).map(|retries| match retries {
                v1::retries::Retries::AtMost(most) => Retries::AtMost(most),
                v1::retries::Retries::Unlimited(_) => Retries::Unlimited,
            }),
            on_parked_key: match of.on_parked_key() {
                wire::OnParkedKey::Unspecified => None,
                wire::OnParkedKey::Continue => Some(OnParkedKey::Continue),
                wire::OnParkedKey::Hold => Some(OnParkedKey::Hold),
            },
            fairness: match of.fairness() {
                wire::Fairness::Unspecified => None,
                wire::Fairness::None => Some(Fairness::None),
                wire::Fairness::Key => Some(Fairness::Key),
            },
            acks: match of.acks() {
                wire::Acks::Unspecified => None,
                wire::Acks::Journal => Some(Acks::Journal),
                wire::Acks::Durable => Some(Acks::Durable),
                wire::Acks::Checkpoint => Some(Acks::Checkpoint),
            },
            on_exhausted: of.on_exhausted.and_then(|of| of.then).map(|then| match then {
                Then::Park(_) => OnExhausted::Park,
                Then::Skip(_) => OnExhausted::Skip,
                Then::MoveTo(to) => OnExhausted::Move(to),
            }),
            backoff: of.backoff.map(|backoff| Backoff {
                min: duration(backoff.min_ms),
                max: duration(backoff.max_ms),
                factor: backoff.factor,
                jitter: backoff.jitter,
            }),
            key_batch: of.key_batch,
            priority_age_step: duration(of.priority_age_step_ms),
            window_max: of.window_max,
            parked_max: of.parked_max,
            parked_max_age: duration(of.parked_max_age_ms),
            max_in_flight: of.max_in_flight,
            max_consumers: of.max_consumers,
            rate: of.rate.map(Rate::from),
            checkpoint: of.checkpoint.map(|checkpoint| Checkpoint {
                interval: duration(checkpoint.interval_ms),
                min: checkpoint.min,
                max: checkpoint.max,
            }),
            buffer: of.buffer,
            extra_statistics: of.extra_statistics,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_group_survives_the_round_trip() {
        let second = Duration::from_secs(1);
        let settings = GroupSettings::new()
            .strategy(Strategy::Pinned)
            .message_timeout(second)
            .max_retries(Retries::Unlimited)
            .on_exhausted(OnExhausted::Move("graveyard".to_owned()))
            .backoff(Backoff::new().min(second).max(2 * second).factor(1.5).jitter(0.25))
            .key_batch(3)
            .on_parked_key(OnParkedKey::Hold)
            .fairness(Fairness::Key)
            .priority_age_step(Duration::ZERO)
            .window_max(4)
            .parked_max(5)
            .parked_max_age(6 * second)
            .max_in_flight(7)
            .max_consumers(8)
            .rate(Rate::per_second(9.0).burst(10))
            .acks(Acks::Durable)
            .checkpoint(Checkpoint::new().interval(second).min(11).max(12))
            .buffer(13)
            .extra_statistics(false);
        assert_eq!(GroupSettings::from(v1::GroupSettings::from(&settings)), settings);
        assert_eq!(v1::GroupSettings::from(&GroupSettings::new()), v1::GroupSettings::default());
    }

    #[test]
    fn what_is_said_of_a_stream_survives_the_round_trip() {
        let second = Duration::from_secs(1);
        let settings = StreamSettings::new()
            .dedupe_window(second)
            .dedupe_max(2)
            .retention(Retention::Log { max_age: Some(second), max_bytes: None, max_messages: Some(3) })
            .max_messages(4)
            .max_bytes(5)
            .max_age(6 * second)
            .on_full(OnFull::DropOldest)
            .ingress_rate(Rate::per_second(0.5));
        assert_eq!(StreamSettings::from(v1::StreamSettings::from(&settings)), settings);
        assert_eq!(v1::StreamSettings::from(&StreamSettings::new()), v1::StreamSettings::default());
    }
}
