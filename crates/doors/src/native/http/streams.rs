//! Calls on streams.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use forebay_broker::api::{Direction, PublishOptions};
use forebay_core::types::{Seq, StreamName};
use forebay_wire::json;

use super::failure::{Failure, in_query};
use super::live::{HeldReply, Reply};
use super::request::{Entered, InMessage, InStream, Json, Messages, NoQuery, OfStream, Query, bad_parameter};
use super::{Door, message, report, sse};
use crate::native::service::{From, Service, filter, position};

type Answer<T> = Result<Reply<T>, Failure>;

pub(super) async fn create(
    Entered(service): Entered,
    InStream(stream): InStream,
    _: NoQuery,
    Json(patch): Json<json::StreamSettings>,
) -> Answer<json::StreamReport> {
    let is_new = service.create_stream(stream.clone(), patch).await?;
    report_of(&service, if is_new { StatusCode::CREATED } else { StatusCode::OK }, stream).await
}

/// What became of a message in each group.
pub(super) async fn life(
    Entered(service): Entered,
    InMessage(stream, seq): InMessage,
    _: NoQuery,
) -> Answer<json::MessageLife> {
    let lives = service.lives(stream.clone(), seq).await?;
    let groups = lives.iter().map(|(group, life)| report::life(group, life)).collect();
    Ok(Reply(StatusCode::OK, json::MessageLife { stream: stream.to_string(), seq, groups }))
}

async fn report_of(service: &Service, status: StatusCode, stream: StreamName) -> Answer<json::StreamReport> {
    Ok(Reply(status, report::stream(&service.stream(stream).await?)))
}

pub(super) async fn change(
    Entered(service): Entered,
    InStream(stream): InStream,
    _: NoQuery,
    Json(patch): Json<json::StreamSettings>,
) -> Answer<json::StreamReport> {
    service.change_stream(stream.clone(), Vec::new(), patch).await?;
    report_of(&service, StatusCode::OK, stream).await
}

pub(super) async fn get(
    Entered(service): Entered,
    OfStream(stream): OfStream,
    _: NoQuery,
) -> Answer<json::StreamReport> {
    report_of(&service, StatusCode::OK, stream).await
}

pub(super) async fn list(Entered(service): Entered, mut query: Query) -> Answer<json::StreamList> {
    let (limit, after) = (query.number("limit")?, query.text("after"));
    query.end()?;
    let page = service.streams(after.as_deref(), limit).await.map_err(in_query)?;
    let streams = page.items.iter().map(report::stream).collect();
    Ok(Reply(StatusCode::OK, json::StreamList { streams, next: page.next.map(|next| next.to_string()) }))
}

pub(super) async fn delete(
    Entered(service): Entered,
    InStream(stream): InStream,
    mut query: Query,
) -> Result<StatusCode, Failure> {
    let (force, if_empty) = (query.flag("force")?, query.flag("if_empty")?);
    query.end()?;
    service.delete_stream(stream, force, if_empty).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn publish(
    Entered(service): Entered,
    InStream(stream): InStream,
    _: NoQuery,
    headers: HeaderMap,
    Messages(request, _room): Messages<json::PublishRequest>,
) -> Answer<json::PublishReply> {
    let batch =
        message::batch(service.broker().clock().moment(), &request.messages, &message::trace(&headers))?;
    let expect_last = request.expect_last_seq.map(position);
    let options = PublishOptions { expect_last, ..PublishOptions::default() };
    let published = service.publish(stream, batch, options).await?;
    let results = message::results(request.messages, &published);
    Ok(Reply(StatusCode::CREATED, json::PublishReply { results }))
}

/// The way of reading that a request asks for.
pub(super) fn direction(query: &mut Query) -> Result<Direction, Failure> {
    match query.text("order").as_deref() {
        None | Some("asc") => Ok(Direction::Forwards),
        Some("desc") => Ok(Direction::Backwards),
        Some(_) => Err(bad_parameter("order", "must be `asc` or `desc`")),
    }
}

pub(super) async fn browse(
    Entered(service): Entered,
    OfStream(stream): OfStream,
    mut query: Query,
) -> Result<HeldReply<json::MessageList>, Failure> {
    let from = query.number("from")?;
    let limit = query.number("limit")?;
    let filter = filter(query.text("key"), query.text("type"));
    let direction = direction(&mut query)?;
    query.end()?;
    let (page, hold) = service.read(stream, from, direction, limit, &filter).await.map_err(in_query)?;
    let messages = page.messages.iter().map(message::stored).collect();
    let has_more = match direction {
        Direction::Forwards => page.next <= page.last,
        Direction::Backwards => page.next > Seq::START,
    };
    let next = has_more.then(|| page.next.to_string());
    Ok(HeldReply(json::MessageList { messages, next, last_seq: page.last.0 }, hold))
}

pub(super) async fn purge(
    Entered(service): Entered,
    InStream(stream): InStream,
    _: NoQuery,
    Json(request): Json<json::PurgeRequest>,
) -> Answer<json::PurgeReply> {
    let purged = service.purge_stream(stream, request.parked, request.ready_only).await?;
    Ok(Reply(StatusCode::OK, json::PurgeReply { purged }))
}

pub(super) async fn truncate(
    Entered(service): Entered,
    InStream(stream): InStream,
    _: NoQuery,
    Json(request): Json<json::TruncateRequest>,
) -> Answer<json::TruncateReply> {
    let truncated = service.truncate_stream(stream, request.before).await?;
    Ok(Reply(StatusCode::OK, json::TruncateReply { truncated }))
}

pub(super) async fn follow(
    State(door): State<Door>,
    Entered(service): Entered,
    OfStream(stream): OfStream,
    mut query: Query,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let from = follow_from(&mut query, &headers);
    let filter = filter(query.text("key"), query.text("type"));
    query.end()?;
    // Before the first event, so that a stream that does not exist is a refusal and not an event.
    let from = service.follow_from(stream.clone(), from?).await?;
    Ok(sse::follow(&door, sse::Followed::Stream(Box::new(service.follow(stream, from, filter).await?))))
}

/// Where a listener wants to begin, or goes on after a break.
pub(super) fn follow_from(query: &mut Query, headers: &HeaderMap) -> Result<From, Failure> {
    let from = query.text("from");
    let resumed = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse::<u64>().ok());
    Ok(match (resumed, from.as_deref()) {
        (Some(last), _) => From::Seq(last.saturating_add(1)),
        (None, None | Some("beginning")) => From::Seq(1),
        (None, Some("end")) => From::End,
        (None, Some(number)) => {
            let rule = "must be `beginning`, `end` or a position";
            From::Seq(number.parse().map_err(|_| bad_parameter("from", rule))?)
        }
    })
}
