//! Reports of the broker as JSON, field by field.

use std::time::Duration;

use forebay_broker::api::{
    Bound, Cause, ConsumerReport, Counters, Failure, GroupReport, JobReport, JobState, Life, LifeState,
    ParkedReport, Rates, ScalingReport, ServerReport, Stage, Status, StreamReport, Summary, Work,
};
use forebay_core::types::{GroupName, Timestamp};
use forebay_wire::json::{self, Time};

use super::message;

pub(super) fn stream(report: &StreamReport) -> json::StreamReport {
    let figures = &report.figures;
    json::StreamReport {
        stream: report.name.to_string(),
        settings: (&report.settings).into(),
        created_at: Time(figures.created.0),
        first_seq: figures.first.0,
        last_seq: figures.last.0,
        messages: figures.messages,
        bytes: figures.bytes,
        delayed: figures.delayed,
        oldest_age: seconds(figures.oldest_age),
        groups: figures.groups as u64,
        group_names: report.groups.iter().map(ToString::to_string).collect(),
        rates: json::StreamRates { published: rates(report.published) },
    }
}

pub(super) fn group(report: &GroupReport) -> json::GroupReport {
    let figures = &report.figures;
    let of = &report.throughput;
    json::GroupReport {
        stream: report.stream.to_string(),
        group: report.name.to_string(),
        status: match figures.status {
            Status::Live => json::GroupStatus::Live,
            Status::CatchingUp => json::GroupStatus::CatchingUp,
            Status::Paused => json::GroupStatus::Paused,
            Status::Idle => json::GroupStatus::Idle,
            Status::WindowFull => json::GroupStatus::WindowFull,
            Status::ParkedFull => json::GroupStatus::ParkedFull,
            Status::KeyScanFull => json::GroupStatus::KeyScanFull,
        },
        settings: (&report.settings).into(),
        last_known_seq: figures.last_known.0,
        last_processed_seq: figures.counters.last_processed.0,
        last_checkpointed_seq: figures.checkpoint.0,
        checkpoint_seq: figures.floor.0,
        lag: figures.lag,
        delayed: figures.delayed,
        oldest_age: seconds(figures.oldest_age),
        in_flight: figures.in_flight,
        ready: figures.ready,
        waiting: figures.waiting,
        parked: figures.parked,
        oldest_parked_age: seconds(figures.oldest_parked_age),
        moving: figures.moving,
        resting_for: seconds(figures.resting_for),
        stuck_key_messages: figures.stuck_key.map_or(0, |(_, messages)| messages),
        counters: counters(&figures.counters),
        throughput: json::Throughput {
            settled: rates(of.settled),
            acked: rates(of.acked),
            retried: rates(of.retried),
            parked: rates(of.parked),
            timed_out: rates(of.timed_out),
            expired: rates(of.expired),
            moved: rates(of.moved),
            dropped: rates(of.dropped),
            skipped: rates(of.skipped),
            delivered: rates(of.delivered),
            arrived: rates(report.arrivals),
        },
        catch_up_time: report.catch_up,
        processing_time: report.processing.as_ref().map(processing_time),
        consumer_count: figures.consumers as u64,
        consumers: report.consumers.iter().map(consumer).collect(),
    }
}

fn counters(of: &Counters) -> json::Counters {
    json::Counters {
        delivered: of.delivered,
        acked: of.acked,
        retried: of.retried,
        parked: of.parked,
        timed_out: of.timed_out,
        skipped: of.skipped,
        expired: of.expired,
        moved: of.moved,
        dropped: of.dropped,
        returned: of.returned,
        replayed: of.replayed,
        discarded: of.discarded,
    }
}

fn consumer(report: &ConsumerReport) -> json::Consumer {
    json::Consumer {
        name: report.name.to_string(),
        address: report.address.map(|address| address.to_string()),
        kind: match report.bound {
            Bound::Connection => json::ConsumerKind::Connected,
            Bound::Clock => json::ConsumerKind::Polling,
        },
        connected_at: Time(report.joined.0),
        in_flight: report.in_flight,
        credit: report.credit,
        acked: report.acked,
        failed: report.failed,
        processing_time: report.processing.as_ref().map(processing_time),
    }
}

fn processing_time(summary: &Summary) -> json::ProcessingTime {
    json::ProcessingTime {
        count: summary.count,
        mean: summary.mean.as_secs_f64(),
        stddev: summary.stddev.as_secs_f64(),
        p50: summary.p50.as_secs_f64(),
        p90: summary.p90.as_secs_f64(),
        p95: summary.p95.as_secs_f64(),
        p99: summary.p99.as_secs_f64(),
        p999: summary.p999.as_secs_f64(),
        max: summary.max.as_secs_f64(),
    }
}

fn rates(rates: Rates) -> json::Rates {
    json::Rates { second: rates.second, minute: rates.minute, quarter_hour: rates.quarter_hour }
}

fn seconds(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| duration.as_secs_f64())
}

pub(super) fn scaling(report: &ScalingReport) -> json::Scaling {
    json::Scaling {
        backlog: report.backlog,
        oldest_age: report.oldest_age,
        in_flight: report.in_flight,
        consumers: report.consumers,
        arrival_rate: report.arrival_rate,
        service_rate: report.service_rate,
        drain_time: report.advice.drain_time,
        desired_consumers: report.advice.desired_consumers,
    }
}

pub(super) fn parked(report: &ParkedReport) -> json::Parked {
    let of = &report.parked;
    json::Parked {
        seq: report.seq.0,
        message: report.message.as_ref().map(message::stored),
        attempts: of.attempts,
        reason: of.reason().to_owned(),
        parked_at: Time(of.at().0),
        consumer: of.failure().consumer.as_ref().map(ToString::to_string),
        history: of.failures.iter().map(failure).collect(),
    }
}

pub(super) fn life(group: &GroupName, of: &Life) -> json::GroupLife {
    let at = |at: Timestamp| Some(Time(at.0));
    let mut life = json::GroupLife {
        group: group.to_string(),
        state: json::MessageState::Pending,
        attempts: Some(of.attempts),
        first_delivered_at: of.first.and_then(at),
        consumer: None,
        leased_at: None,
        lease_until: None,
        retry_at: None,
        parked_at: None,
        history: of.failures.iter().map(failure).collect(),
    };
    life.state = match &of.state {
        LifeState::Untouched => json::MessageState::Pending,
        LifeState::Ready => json::MessageState::Ready,
        LifeState::Waiting { until } => {
            life.retry_at = at(*until);
            json::MessageState::Waiting
        }
        LifeState::Leased { consumer, granted, deadline, .. } => {
            life.consumer = consumer.as_ref().map(ToString::to_string);
            (life.leased_at, life.lease_until) = (at(*granted), at(*deadline));
            json::MessageState::Leased
        }
        LifeState::Moving => json::MessageState::Moving,
        LifeState::Parked { at: parked } => {
            life.parked_at = at(*parked);
            json::MessageState::Parked
        }
        LifeState::Settled => {
            life.attempts = None;
            json::MessageState::Settled
        }
    };
    life
}

fn failure(failure: &Failure) -> json::Failure {
    json::Failure {
        at: Time(failure.at.0),
        attempt: failure.attempt,
        cause: match failure.cause {
            Cause::Nack => json::FailureCause::Nack,
            Cause::Timeout => json::FailureCause::Timeout,
            Cause::Lost => json::FailureCause::Lost,
            Cause::Damaged => json::FailureCause::Damaged,
        },
        reason: failure.reason.as_deref().unwrap_or(failure.cause.as_str()).to_owned(),
        consumer: failure.consumer.as_ref().map(ToString::to_string),
    }
}

pub(super) fn job(report: &JobReport) -> json::Job {
    let (state, ended) = match report.state {
        JobState::Running => (json::JobState::Running, None),
        JobState::Done { at } => (json::JobState::Done, Some(at)),
        JobState::Cancelled { at } => (json::JobState::Cancelled, Some(at)),
        JobState::Failed { at, .. } => (json::JobState::Failed, Some(at)),
    };
    json::Job {
        job: report.id.0,
        work: match report.work {
            Work::Replay => json::JobWork::Replay,
            Work::Discard => json::JobWork::Discard,
            Work::Move { .. } => json::JobWork::Move,
            Work::MoveParked { .. } => json::JobWork::MoveParked,
        },
        state,
        started_at: Time(report.started.0),
        ended_at: ended.map(|at| Time(at.0)),
        rate: report.rate,
        matched: report.matched,
        done: report.done,
        failed: report.failed,
        to: report.work.to().map(ToString::to_string),
    }
}

pub(super) fn server(report: &ServerReport, stage: Stage) -> json::ServerReport {
    json::ServerReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        stage: match stage {
            Stage::Running => json::ServerStage::Running,
            Stage::Draining => json::ServerStage::Draining,
            Stage::Stopping => json::ServerStage::Stopping,
        },
        streams: report.streams as u64,
        groups: report.groups as u64,
        connected: report.connected as u64,
        polling: report.polling as u64,
        waiting: report.waiting as u64,
        storage_full: report.storage_full,
        window_bytes: report.window_bytes as u64,
        epoch: report.epoch,
    }
}
