//! Taking messages and settling them.

use std::time::Duration;

use axum::http::StatusCode;
use forebay_broker::broker::Action;
use forebay_broker::caller::{Caller, Receive, Verdict};
use forebay_core::group::{REST_MAX, Settled};
use forebay_core::types::{GroupName, StreamName};
use forebay_model::limits::{NAME_BYTES_MAX, REASON_BYTES_MAX, YEAR};
use forebay_wire::json;

use super::failure::Failure;
use super::live::Reply;
use super::request::{Entered, InGroup, Json, NoQuery};
use super::{message, settings};

/// Messages of one receive.
const RECEIVE_MAX: u32 = 1_000;
/// How long a receive may wait.
const WAIT_MAX: Duration = Duration::from_secs(600);
/// Contents of one reply. What would not fit is given back as if it had never been handed out.
const REPLY_BYTES_MAX: usize = 16 << 20;
/// Leases that are settled in one call.
const LEASES_MAX: usize = 10_000;

type Answer<T> = Result<Reply<T>, Failure>;

pub(super) async fn receive(
    Entered(caller): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
    Json(request): Json<json::ReceiveRequest>,
) -> Answer<json::ReceiveReply> {
    let max = request.max.unwrap_or(1);
    if !(1..=RECEIVE_MAX).contains(&max) {
        return Err(Failure::field("max", format!("from 1 to {RECEIVE_MAX}")));
    }
    let wait = request.wait.map_or(Duration::ZERO, |span| span.0);
    if wait > WAIT_MAX {
        return Err(Failure::field("wait", "at most \"10m\""));
    }
    settings::some_time("timeout", request.timeout)?;
    let consumer = request.consumer.unwrap_or_default();
    check_length("consumer", &consumer, NAME_BYTES_MAX)?;
    let timeout = request.timeout.map(|span| span.0);
    let wish = Receive { consumer, max, wait, timeout, refuse_when_full: false };
    // Dropped with the request if the client goes: then what was handed out meanwhile goes back.
    let received = caller.receive(stream, group, wish).await?;
    // What is too much for one answer goes back as well.
    let taken = received.take_within(REPLY_BYTES_MAX);
    let messages = taken.into_iter().map(|(lease, delivered)| message::delivery(lease, &delivered)).collect();
    Ok(Reply(StatusCode::OK, json::ReceiveReply { messages }))
}

pub(super) async fn ack(
    Entered(caller): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
    Json(request): Json<json::AckRequest>,
) -> Answer<json::SettleReply> {
    settle(&caller, stream, group, request.leases, Action::Ack.into()).await
}

pub(super) async fn nack(
    Entered(caller): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
    Json(request): Json<json::NackRequest>,
) -> Answer<json::SettleReply> {
    let delay = request.delay.map(|span| span.0);
    if delay.is_some_and(|delay| delay > YEAR) {
        return Err(Failure::field("delay", "at most \"366d\""));
    }
    let action = match request.action {
        // What the group's policy says is what a retry comes to when it has no retries left.
        json::NackAction::Retry | json::NackAction::Auto => Action::Retry { delay },
        json::NackAction::Return => Action::Return { delay },
        _ if delay.is_some() => {
            return Err(Failure::field("delay", "only for \"auto\", \"retry\" and \"return\""));
        }
        json::NackAction::Park => Action::Park,
        json::NackAction::Skip => Action::Skip,
    };
    check_length("reason", request.reason.as_deref().unwrap_or_default(), REASON_BYTES_MAX)?;
    let reason = request.reason.filter(|reason| !reason.is_empty());
    let rest = request.rest.map(|span| span.0);
    if rest.is_some_and(|rest| rest > REST_MAX) {
        return Err(Failure::field("rest", format!("at most \"{}m\"", REST_MAX.as_secs() / 60)));
    }
    settle(&caller, stream, group, request.leases, Verdict { action, reason, late: false, rest }).await
}

pub(super) async fn extend(
    Entered(caller): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
    Json(request): Json<json::ExtendRequest>,
) -> Answer<json::SettleReply> {
    settings::some_time("by", Some(request.by))?;
    let action = Action::Extend { by: request.by.0, total_max: None };
    settle(&caller, stream, group, request.leases, action.into()).await
}

async fn settle(
    caller: &Caller,
    stream: StreamName,
    group: GroupName,
    leases: Vec<String>,
    verdict: Verdict,
) -> Answer<json::SettleReply> {
    if leases.is_empty() || leases.len() > LEASES_MAX {
        return Err(Failure::field("leases", format!("from 1 to {LEASES_MAX} of them")));
    }
    let settled = caller.settle(stream, group, &leases, verdict).await?;
    let result = |(lease, settled)| json::SettleResult { lease, outcome: outcome(settled) };
    let results = leases.into_iter().zip(settled).map(result).collect();
    Ok(Reply(StatusCode::OK, json::SettleReply { results }))
}

fn outcome(settled: Settled) -> json::Outcome {
    match settled {
        Settled::Acked => json::Outcome::Acked,
        Settled::Retrying => json::Outcome::Retrying,
        Settled::Parked => json::Outcome::Parked,
        Settled::Skipped => json::Outcome::Skipped,
        Settled::Moving => json::Outcome::Moving,
        Settled::Expired => json::Outcome::Expired,
        Settled::Extended => json::Outcome::Extended,
        Settled::Returned => json::Outcome::Returned,
        // Nobody says how long a lease may be altogether.
        Settled::NotYours(_) | Settled::TooLong => json::Outcome::NotYours,
    }
}

fn check_length(field: &str, text: &str, most: usize) -> Result<(), Failure> {
    if text.len() > most {
        return Err(Failure::field(field, format!("at most {most} bytes")));
    }
    Ok(())
}
