//! Reports of the broker as messages of `forebay.v1`, field by field.

use std::time::Duration;

use forebay_broker::api::{
    Bound, Cause, ConsumerReport, Counters, Failure, GroupReport, JobReport, JobState, ParkedReport, Rates,
    ScalingReport, Status, StreamReport, Summary, Throughput, Work,
};
use forebay_model::{GroupPatch, StreamPatch};
use forebay_wire::v1;

pub(super) fn stream(of: &StreamReport) -> v1::StreamReport {
    let figures = &of.figures;
    v1::StreamReport {
        stream: of.name.to_string(),
        settings: Some((&StreamPatch::from(&of.settings)).into()),
        created_at_us: figures.created.0,
        first_seq: figures.first.0,
        last_seq: figures.last.0,
        messages: figures.messages,
        bytes: figures.bytes,
        delayed: figures.delayed,
        oldest_age_ms: figures.oldest_age.map(millis),
        published: Some(rates(&of.published)),
        groups: of.groups.iter().map(ToString::to_string).collect(),
    }
}

pub(super) fn group(of: &GroupReport) -> v1::GetGroupReply {
    let figures = &of.figures;
    v1::GetGroupReply {
        stream: of.stream.to_string(),
        group: of.name.to_string(),
        last_known_seq: figures.last_known.0,
        checkpoint_seq: figures.floor.0,
        lag: figures.lag,
        ready: figures.ready,
        waiting: figures.waiting,
        in_flight: figures.in_flight,
        parked: figures.parked,
        consumers: figures.consumers as u32,
        status: status(figures.status).into(),
        last_processed_seq: figures.counters.last_processed.0,
        last_checkpointed_seq: figures.checkpoint.0,
        oldest_age_ms: figures.oldest_age.map(millis),
        moving: figures.moving,
        oldest_parked_age_ms: figures.oldest_parked_age.map(millis),
        counters: Some(counters(&figures.counters)),
        stuck_key_messages: figures.stuck_key.map_or(0, |(_, messages)| messages),
        settings: Some((&GroupPatch::from(&of.settings)).into()),
        throughput: Some(throughput(&of.throughput)),
        arrivals: Some(rates(&of.arrivals)),
        catch_up_seconds: of.catch_up,
        processing_time: of.processing.as_ref().map(processing_time),
        resting_ms: figures.resting_for.map(millis),
        members: of.consumers.iter().map(consumer).collect(),
        start: Some(of.settings.start.into()),
        delayed: figures.delayed,
    }
}

fn status(of: Status) -> v1::get_group_reply::Status {
    use v1::get_group_reply::Status as Wire;
    match of {
        Status::Live => Wire::Live,
        Status::CatchingUp => Wire::CatchingUp,
        Status::Paused => Wire::Paused,
        Status::Idle => Wire::Idle,
        Status::WindowFull => Wire::WindowFull,
        Status::ParkedFull => Wire::ParkedFull,
        Status::KeyScanFull => Wire::KeyScanFull,
    }
}

fn counters(of: &Counters) -> v1::Counters {
    v1::Counters {
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

fn throughput(of: &Throughput) -> v1::Throughput {
    let rates = |of: &Rates| Some(rates(of));
    v1::Throughput {
        delivered: rates(&of.delivered),
        settled: rates(&of.settled),
        acked: rates(&of.acked),
        retried: rates(&of.retried),
        parked: rates(&of.parked),
        timed_out: rates(&of.timed_out),
        skipped: rates(&of.skipped),
        expired: rates(&of.expired),
        moved: rates(&of.moved),
        dropped: rates(&of.dropped),
    }
}

fn rates(of: &Rates) -> v1::Rates {
    v1::Rates { second: of.second, minute: of.minute, quarter_hour: of.quarter_hour }
}

fn processing_time(of: &Summary) -> v1::ProcessingTime {
    v1::ProcessingTime {
        count: of.count,
        mean_us: micros(of.mean),
        stddev_us: micros(of.stddev),
        p50_us: micros(of.p50),
        p90_us: micros(of.p90),
        p95_us: micros(of.p95),
        p99_us: micros(of.p99),
        p999_us: micros(of.p999),
        max_us: micros(of.max),
    }
}

fn consumer(of: &ConsumerReport) -> v1::Consumer {
    v1::Consumer {
        name: of.name.to_string(),
        address: of.address.map(|address| address.to_string()).unwrap_or_default(),
        connected: of.bound == Bound::Connection,
        joined_at_us: of.joined.0,
        in_flight: of.in_flight,
        credit: of.credit,
        acked: of.acked,
        failed: of.failed,
        processing_time: of.processing.as_ref().map(processing_time),
    }
}

pub(super) fn scaling(of: &ScalingReport) -> v1::GetScalingReply {
    v1::GetScalingReply {
        backlog: of.backlog,
        oldest_age_ms: (of.oldest_age * 1_000.0) as u64,
        in_flight: of.in_flight,
        consumers: of.consumers,
        arrival_rate: of.arrival_rate,
        service_rate: of.service_rate,
        drain_seconds: of.advice.drain_time,
        desired_consumers: of.advice.desired_consumers,
    }
}

pub(super) fn parked(of: &ParkedReport, message: Option<v1::Message>) -> v1::Parked {
    let parked = &of.parked;
    v1::Parked {
        seq: of.seq.0,
        message,
        attempts: parked.attempts,
        reason: parked.reason().to_owned(),
        parked_at_us: parked.at().0,
        consumer: parked.failure().consumer.as_deref().unwrap_or_default().to_owned(),
        history: parked.failures.iter().map(failure).collect(),
    }
}

fn failure(of: &Failure) -> v1::Failure {
    use v1::failure::Cause as Wire;
    let cause = match of.cause {
        Cause::Nack => Wire::Nack,
        Cause::Timeout => Wire::Timeout,
        Cause::Lost => Wire::Lost,
        Cause::Damaged => Wire::Damaged,
    };
    v1::Failure {
        at_us: of.at.0,
        attempt: of.attempt,
        cause: cause.into(),
        reason: of.reason.as_deref().unwrap_or_default().to_owned(),
        consumer: of.consumer.as_deref().unwrap_or_default().to_owned(),
    }
}

pub(super) fn job(of: &JobReport) -> v1::Job {
    use v1::job::State;
    let (state, ended) = match &of.state {
        JobState::Running => (State::Running, 0),
        JobState::Done { at } => (State::Done, at.0),
        JobState::Cancelled { at } => (State::Cancelled, at.0),
        JobState::Failed { at, .. } => (State::Failed, at.0),
    };
    let work = match of.work {
        Work::Replay => v1::job::Work::Replay,
        Work::Discard => v1::job::Work::Discard,
        Work::Move { .. } => v1::job::Work::Move,
        Work::MoveParked { .. } => v1::job::Work::MoveParked,
    };
    v1::Job {
        job: of.id.0,
        work: work.into(),
        state: state.into(),
        started_at_us: of.started.0,
        ended_at_us: ended,
        rate: of.rate.map(v1::Rate::from),
        matched: of.matched,
        done: of.done,
        failed: of.failed,
        to: of.work.to().map(ToString::to_string).unwrap_or_default(),
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
