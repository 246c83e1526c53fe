//! Parked messages: seeing them, bringing them back, letting them go; and the jobs that do so.

use axum::extract::State;
use axum::http::StatusCode;
use forebay_broker::caller::{Caller, Filter, JobTerms, Select};
use forebay_core::entry::Work;
use forebay_core::types::{GroupName, JobId, Seq, StreamName};
use forebay_wire::json;
use forebay_wire::problem::Kind;

use super::failure::Failure;
use super::live::Reply;
use super::request::{Entered, InGroup, Json, Messages, NoQuery, Numbered, Query, position};
use super::streams::{LIST_MAX, LIST_USUAL};
use super::{Door, message, report};

type Answer<T> = Result<Reply<T>, Failure>;

pub(super) async fn list(
    Entered(caller): Entered,
    InGroup(stream, group): InGroup,
    mut query: Query,
) -> Answer<json::ParkedList> {
    let limit = query.limit(LIST_USUAL, LIST_MAX)?;
    let after = query.number("after")?.unwrap_or(0);
    let reason = query.text("reason");
    let filter = Filter { key: query.text("key"), kind: query.text("type") };
    query.end()?;
    let page = caller.parked(stream, group, position(after), limit, reason, &filter).await?;
    let parked = page.items.iter().map(report::parked).collect();
    Ok(Reply(StatusCode::OK, json::ParkedList { parked, next: page.next.map(|next| next.to_string()) }))
}

pub(super) async fn get(
    Entered(caller): Entered,
    Numbered(stream, group, seq): Numbered<u64>,
    _: NoQuery,
) -> Answer<json::Parked> {
    Ok(Reply(StatusCode::OK, report::parked(&caller.parked_one(stream, group, position(seq)).await?)))
}

pub(super) async fn reasons(
    Entered(caller): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
) -> Answer<json::ReasonList> {
    let reasons = caller.parked_reasons(stream, group).await?;
    let reason =
        |(reason, count): (std::sync::Arc<str>, u64)| json::Reason { reason: reason.to_string(), count };
    Ok(Reply(StatusCode::OK, json::ReasonList { reasons: reasons.into_iter().map(reason).collect() }))
}

pub(super) async fn replay(
    Entered(caller): Entered,
    group: InGroup,
    _: NoQuery,
    Json(request): Json<json::SelectRequest>,
) -> Answer<json::SelectReply> {
    start(&caller, group, Work::Replay, request).await
}

pub(super) async fn discard(
    Entered(caller): Entered,
    group: InGroup,
    _: NoQuery,
    Json(request): Json<json::SelectRequest>,
) -> Answer<json::SelectReply> {
    start(&caller, group, Work::Discard, request).await
}

async fn start(
    caller: &Caller,
    InGroup(stream, group): InGroup,
    work: Work,
    request: json::SelectRequest,
) -> Answer<json::SelectReply> {
    request.rate.map_or(Ok(()), |rate| rate.check("rate"))?;
    let terms = JobTerms { limit: request.limit, rate: request.rate, dry_run: request.dry_run };
    let selected = caller.start_job(stream, group, work, select(request)?, terms).await?;
    let job = selected.job.map(|job| job.0);
    Ok(Reply(StatusCode::OK, json::SelectReply { matched: selected.matched, job }))
}

/// Nothing is ever taken for everything.
fn select(request: json::SelectRequest) -> Result<Select, Failure> {
    let empty = |detail: &str| Failure::new(Kind::EmptySelection, detail);
    match (request.seqs, request.filter, request.all) {
        (None, None, true) => Ok(Select::All),
        (None, None, false) => Err(empty("say which messages: `seqs`, `filter`, or `all` for all of them")),
        (Some(seqs), None, false) if seqs.is_empty() => Err(empty("there are no positions in `seqs`")),
        (Some(seqs), None, false) => Ok(Select::Seqs(seqs.into_iter().map(position).collect())),
        (None, Some(filter), false) if filter == json::SelectFilter::default() => {
            Err(empty("there is nothing in `filter`; `all` means all of them"))
        }
        (None, Some(filter), false) => Ok(Select::Filter {
            reason: filter.reason,
            filter: Filter { key: filter.key, kind: filter.kind },
        }),
        _ => Err(Failure::field("all", "one of `seqs`, `filter` and `all`")),
    }
}

pub(super) async fn resubmit(
    State(door): State<Door>,
    Entered(caller): Entered,
    Numbered(stream, group, seq): Numbered<u64>,
    _: NoQuery,
    Messages(edited, _room): Messages<json::Message>,
) -> Answer<json::PublishResult> {
    let copy = edited_copy(&caller, stream.clone(), group.clone(), position(seq), edited).await?;
    let batch = message::batch_of_one(door.now(), &copy)?;
    let published = caller.resubmit(stream, group, position(seq), batch).await?;
    let result = message::results(vec![copy], &published).pop().expect("one message has one result");
    Ok(Reply(StatusCode::CREATED, result))
}

/// What was left out is as it was, but for the id: with its old one it would be taken for the message itself.
async fn edited_copy(
    caller: &Caller,
    stream: StreamName,
    group: GroupName,
    seq: Seq,
    edited: json::Message,
) -> Result<json::Message, Failure> {
    let parked = caller.parked_one(stream, group, seq).await?;
    let Some(found) = parked.message else { return Ok(edited) };
    let was = message::Parts::of(&found.content);
    let keeps_body = edited.body.is_none() && edited.body_base64.is_none();
    Ok(json::Message {
        kind: edited.kind.or(was.kind),
        schema: edited.schema.or(was.schema),
        key: edited.key.or(was.key),
        headers: if edited.headers.is_empty() { was.headers } else { edited.headers },
        body: if keeps_body { was.body } else { edited.body },
        body_base64: if keeps_body { was.body_base64 } else { edited.body_base64 },
        priority: edited.priority.or(Some(found.extra.priority)),
        ..edited
    })
}

pub(super) async fn jobs(
    Entered(caller): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
) -> Answer<json::JobList> {
    let jobs = caller.jobs(stream, group).await?;
    Ok(Reply(StatusCode::OK, json::JobList { jobs: jobs.iter().map(report::job).collect() }))
}

pub(super) async fn job(
    Entered(caller): Entered,
    Numbered(stream, group, job): Numbered<u32>,
    _: NoQuery,
) -> Answer<json::Job> {
    Ok(Reply(StatusCode::OK, report::job(&caller.job(stream, group, JobId(job)).await?)))
}

pub(super) async fn cancel(
    Entered(caller): Entered,
    Numbered(stream, group, job): Numbered<u32>,
    _: NoQuery,
) -> Result<StatusCode, Failure> {
    caller.cancel_job(stream, group, JobId(job)).await?;
    Ok(StatusCode::NO_CONTENT)
}
