//! The figures of a group that sentences and alerts are made of.

use std::time::Duration;

use forebay_broker::api::{GroupReport, Status};
use forebay_wire::attention::GroupFacts;
use forebay_wire::json::GroupStatus;

/// The figures of a report. It does not have the reasons of parked messages.
pub(super) fn group_facts(report: &GroupReport, parked_reason: Option<String>) -> GroupFacts {
    let GroupReport { settings, figures, throughput, .. } = report;
    let seconds = |age: Option<Duration>| age.map_or(0.0, |age| age.as_secs_f64());
    GroupFacts {
        parked_reason,
        stream: report.stream.to_string(),
        group: report.name.to_string(),
        status: status(figures.status),
        due: figures.due(),
        oldest_age: seconds(figures.oldest_age),
        in_flight: figures.in_flight,
        consumers: report.consumers.len().max(figures.consumers) as u64,
        arrived: report.arrivals.minute,
        settled: throughput.settled.minute,
        delivered: throughput.delivered.minute,
        retried: throughput.retried.minute,
        timed_out: throughput.timed_out.minute,
        parking: throughput.parked.minute,
        parked: figures.parked,
        parked_max: settings.parked_max.into(),
        oldest_parked_age: seconds(figures.oldest_parked_age),
        pace: settings.rate.map(|rate| rate.per_second),
        window_max: settings.window_max.into(),
        resting_for: figures.resting_for.map(|rest| rest.as_secs_f64()),
        stuck_key_messages: figures.stuck_key.map_or(0, |(_, messages)| messages),
        catch_up_time: report.catch_up,
    }
}

/// A status as the API names it.
pub(super) fn status(status: Status) -> GroupStatus {
    match status {
        Status::Live => GroupStatus::Live,
        Status::CatchingUp => GroupStatus::CatchingUp,
        Status::Paused => GroupStatus::Paused,
        Status::Idle => GroupStatus::Idle,
        Status::WindowFull => GroupStatus::WindowFull,
        Status::ParkedFull => GroupStatus::ParkedFull,
        Status::KeyScanFull => GroupStatus::KeyScanFull,
    }
}
