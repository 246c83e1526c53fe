//! Receiving messages and settling them.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use forebay_broker::api::Outcome;
use forebay_core::types::{GroupName, StreamName};
use forebay_wire::json;
use forebay_wire::problem::Kind;

use super::failure::Failure;
use super::live::{Reply, held_body};
use super::message;
use super::request::{Entered, InGroup, Json, NoQuery};
use crate::native::limits::HTTP_REPLY_BYTES_MAX;
use crate::native::service::{Action, Service, Terms, Wish};

type Answer<T> = Result<Reply<T>, Failure>;

pub(super) async fn receive(
    Entered(service): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
    Json(request): Json<json::ReceiveRequest>,
) -> Result<Response, Failure> {
    let wish = Wish {
        consumer: request.consumer.unwrap_or_default(),
        max: request.max,
        bytes: HTTP_REPLY_BYTES_MAX,
        wait: request.wait.map_or(Duration::ZERO, |span| span.0),
        timeout: request.timeout.map(|span| span.0),
    };
    // If the client leaves, this is dropped, and messages that were handed out meanwhile go back.
    let (taken, hold) = service.receive(stream, group, wish).await?;
    // One message after the other, so that no second copy of all of them is made.
    let mut body = Vec::with_capacity(hold.bytes());
    body.extend_from_slice(b"{\"messages\":[");
    for (n, (lease, delivered)) in taken.into_iter().enumerate() {
        if n > 0 {
            body.push(b',');
        }
        serde_json::to_writer(&mut body, &message::delivery(lease, &delivered))
            .map_err(|error| Failure::new(Kind::Internal, error.to_string()))?;
    }
    body.extend_from_slice(b"]}\n");
    Ok(held_body(body, hold))
}

pub(super) async fn ack(
    Entered(service): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
    Json(request): Json<json::AckRequest>,
) -> Answer<json::SettleReply> {
    settle(&service, stream, group, request.leases, Terms::of(Action::Ack)).await
}

pub(super) async fn nack(
    Entered(service): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
    Json(request): Json<json::NackRequest>,
) -> Answer<json::SettleReply> {
    let wanted = json::SettleAction::from(request.action);
    let (delay, rest) = (request.delay.map(|span| span.0), request.rest.map(|span| span.0));
    let terms = Terms { action: action(&wanted), delay, reason: request.reason, rest };
    settle(&service, stream, group, request.leases, terms).await
}

pub(super) async fn extend(
    Entered(service): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
    Json(request): Json<json::ExtendRequest>,
) -> Answer<json::SettleReply> {
    let terms = Terms { delay: Some(request.by.0), ..Terms::of(Action::Extend) };
    settle(&service, stream, group, request.leases, terms).await
}

async fn settle(
    service: &Service,
    stream: StreamName,
    group: GroupName,
    leases: Vec<String>,
    terms: Terms<'_>,
) -> Answer<json::SettleReply> {
    let settled = service.settle(stream, group, &leases, terms).await?;
    let result = |(lease, settled)| json::SettleResult { lease, outcome: outcome(settled) };
    let results = leases.into_iter().zip(settled).map(result).collect();
    Ok(Reply(StatusCode::OK, json::SettleReply { results }))
}

pub(super) fn action(action: &json::SettleAction) -> Action<'_> {
    match action {
        json::SettleAction::Ack => Action::Ack,
        json::SettleAction::Auto | json::SettleAction::Retry => Action::Retry,
        json::SettleAction::Park => Action::Park,
        json::SettleAction::Skip => Action::Skip,
        json::SettleAction::Return => Action::Return,
        json::SettleAction::Move(to) => Action::Move(to),
    }
}

pub(super) fn outcome(outcome: Outcome) -> json::Outcome {
    match outcome {
        Outcome::Acked => json::Outcome::Acked,
        Outcome::Retrying => json::Outcome::Retrying,
        Outcome::Parked => json::Outcome::Parked,
        Outcome::Skipped => json::Outcome::Skipped,
        Outcome::Moving => json::Outcome::Moving,
        Outcome::Expired => json::Outcome::Expired,
        Outcome::Extended => json::Outcome::Extended,
        Outcome::Returned => json::Outcome::Returned,
        // This API has no limit for a lease altogether.
        Outcome::NotYours(_) | Outcome::TooLong => json::Outcome::NotYours,
    }
}
