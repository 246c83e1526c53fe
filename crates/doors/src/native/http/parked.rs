//! Parked messages and jobs.

use axum::http::{HeaderMap, StatusCode};
use forebay_broker::api::JobTerms;
use forebay_wire::json;

use super::failure::{Failure, in_query};
use super::live::{HeldReply, Reply};
use super::request::{Entered, InGroup, Json, Messages, NoQuery, Numbered, Query};
use super::{message, report};
use crate::native::service::{ParkedFilter, Selection, Service, Triage, check_rate};

type Answer<T> = Result<Reply<T>, Failure>;

pub(super) async fn list(
    Entered(service): Entered,
    InGroup(stream, group): InGroup,
    mut query: Query,
) -> Result<HeldReply<json::ParkedList>, Failure> {
    let limit = query.number("limit")?;
    let after = query.number("after")?.unwrap_or(0);
    let filter =
        ParkedFilter { reason: query.text("reason"), key: query.text("key"), kind: query.text("type") };
    query.end()?;
    let (page, hold) = service.parked(stream, group, after, limit, filter).await.map_err(in_query)?;
    let parked = page.items.iter().map(report::parked).collect();
    Ok(HeldReply(json::ParkedList { parked, next: page.next.map(|next| next.to_string()) }, hold))
}

pub(super) async fn get(
    Entered(service): Entered,
    Numbered(stream, group, seq): Numbered<u64>,
    _: NoQuery,
) -> Answer<json::Parked> {
    Ok(Reply(StatusCode::OK, report::parked(&service.parked_one(stream, group, seq).await?)))
}

pub(super) async fn reasons(
    Entered(service): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
) -> Answer<json::ReasonList> {
    let reasons = service.parked_reasons(stream, group).await?;
    let reasons =
        reasons.iter().map(|(reason, count)| json::Reason { reason: reason.to_string(), count: *count });
    Ok(Reply(StatusCode::OK, json::ReasonList { reasons: reasons.collect() }))
}

pub(super) async fn replay(
    Entered(service): Entered,
    group: InGroup,
    _: NoQuery,
    Json(request): Json<json::SelectRequest>,
) -> Answer<json::SelectReply> {
    start(&service, group, Triage::Replay, request).await
}

pub(super) async fn discard(
    Entered(service): Entered,
    group: InGroup,
    _: NoQuery,
    Json(request): Json<json::SelectRequest>,
) -> Answer<json::SelectReply> {
    start(&service, group, Triage::Discard, request).await
}

pub(super) async fn relocate(
    Entered(service): Entered,
    group: InGroup,
    _: NoQuery,
    Json(request): Json<json::SelectRequest>,
) -> Answer<json::SelectReply> {
    start(&service, group, Triage::Move, request).await
}

async fn start(
    service: &Service,
    InGroup(stream, group): InGroup,
    triage: Triage,
    request: json::SelectRequest,
) -> Answer<json::SelectReply> {
    let terms = JobTerms { limit: request.limit, rate: check_rate(request.rate)?, dry_run: request.dry_run };
    let filter = |json::SelectFilter { reason, key, kind }| ParkedFilter { reason, key, kind };
    let selection = Selection { seqs: request.seqs, filter: request.filter.map(filter), all: request.all };
    let selected = service.start_job(stream, group, (triage, request.to), selection, terms).await?;
    let job = selected.job.map(|job| job.0);
    Ok(Reply(StatusCode::OK, json::SelectReply { matched: selected.matched, job }))
}

pub(super) async fn resubmit(
    Entered(service): Entered,
    Numbered(stream, group, seq): Numbered<u64>,
    _: NoQuery,
    headers: HeaderMap,
    Messages(message, _room): Messages<json::Message>,
) -> Answer<json::PublishResult> {
    let edits = message::edits(message)?;
    let placed = service.resubmit(stream, group, seq, &edits, &message::trace(&headers)).await?;
    Ok(Reply(StatusCode::CREATED, message::result(placed, edits.id)))
}

pub(super) async fn jobs(
    Entered(service): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
) -> Answer<json::JobList> {
    let jobs = service.jobs(stream, group).await?;
    Ok(Reply(StatusCode::OK, json::JobList { jobs: jobs.iter().map(report::job).collect() }))
}

pub(super) async fn job(
    Entered(service): Entered,
    Numbered(stream, group, job): Numbered<u32>,
    _: NoQuery,
) -> Answer<json::Job> {
    Ok(Reply(StatusCode::OK, report::job(&service.job(stream, group, job).await?)))
}

pub(super) async fn cancel(
    Entered(service): Entered,
    Numbered(stream, group, job): Numbered<u32>,
    _: NoQuery,
) -> Result<StatusCode, Failure> {
    service.cancel_job(stream, group, job).await?;
    Ok(StatusCode::NO_CONTENT)
}
