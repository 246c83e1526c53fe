//! Calls on streams.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use forebay_broker::api::{Caller, Filter};
use forebay_broker::api::{PublishOptions, Purge};
use forebay_core::types::{Seq, StreamName};
use forebay_wire::json;
use forebay_wire::problem::Kind;

use super::failure::{Failure, of_publish};
use super::request::{Entered, InStream, Json, Messages, NoQuery, Query, bad_parameter, position};
use super::{Door, live::Reply, message, report, settings, sse};

/// How many a list shows if nobody says, and at most.
pub(super) const LIST_USUAL: usize = 100;
pub(super) const LIST_MAX: usize = 1_000;

type Answer<T> = Result<Reply<T>, Failure>;

pub(super) async fn create(
    Entered(caller): Entered,
    InStream(stream): InStream,
    _: NoQuery,
    Json(wire): Json<json::StreamSettings>,
) -> Answer<json::StreamReport> {
    settings::check_stream(&wire)?;
    let asked = wire.clone();
    let change = move |settings: &mut _| settings::set_stream(&asked, settings);
    let created = match caller.create_stream(stream.clone(), change).await.map_err(Failure::from) {
        Ok(created) => created,
        Err(failure) if failure.is(Kind::SettingsDiffer) => {
            let is = caller.stream(stream).await?;
            let field = settings::difference(&wire, &settings::of_stream(&is.settings));
            return Err(field.map_or(failure.clone(), |field| failure.with_field(field)));
        }
        Err(failure) => return Err(failure),
    };
    let status = if created.new { StatusCode::CREATED } else { StatusCode::OK };
    Ok(Reply(status, report_of(&caller, stream).await?))
}

async fn report_of(caller: &Caller, stream: StreamName) -> Result<json::StreamReport, Failure> {
    Ok(report::stream(&caller.stream(stream).await?))
}

pub(super) async fn change(
    Entered(caller): Entered,
    InStream(stream): InStream,
    _: NoQuery,
    Json(wire): Json<json::StreamSettings>,
) -> Answer<json::StreamReport> {
    settings::check_stream(&wire)?;
    caller.change_stream(stream.clone(), move |settings| settings::set_stream(&wire, settings)).await?;
    Ok(Reply(StatusCode::OK, report_of(&caller, stream).await?))
}

pub(super) async fn get(
    Entered(caller): Entered,
    InStream(stream): InStream,
    _: NoQuery,
) -> Answer<json::StreamReport> {
    Ok(Reply(StatusCode::OK, report_of(&caller, stream).await?))
}

pub(super) async fn list(Entered(caller): Entered, mut query: Query) -> Answer<json::StreamList> {
    let limit = query.limit(LIST_USUAL, LIST_MAX)?;
    let after = query.text("after").map(|after| StreamName::parse(&after));
    query.end()?;
    let after =
        after.transpose().map_err(|error| bad_parameter("after", &format!("is a stream: {error}")))?;
    let page = caller.streams(after, limit).await?;
    let streams = page.items.iter().map(report::stream).collect();
    Ok(Reply(StatusCode::OK, json::StreamList { streams, next: page.next.map(|next| next.to_string()) }))
}

pub(super) async fn delete(
    Entered(caller): Entered,
    InStream(stream): InStream,
    mut query: Query,
) -> Result<StatusCode, Failure> {
    let force = query.flag("force")?;
    query.end()?;
    caller.delete_stream(stream, force).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn publish(
    State(door): State<Door>,
    Entered(caller): Entered,
    InStream(stream): InStream,
    _: NoQuery,
    headers: HeaderMap,
    Messages(request, _room): Messages<json::PublishRequest>,
) -> Answer<json::PublishReply> {
    let batch = message::batch(door.now(), &request.messages, &message::trace(&headers))?;
    let options =
        PublishOptions { expect_last: request.expect_last_seq.map(position), ..PublishOptions::default() };
    let room = door.broker().room(&stream, &batch).await;
    let published = caller.publish(room, Arc::new(stream), batch, options).await;
    let published = published.map_err(|error| of_publish(door.now(), &error))?;
    let results = message::results(request.messages, &published.get());
    Ok(Reply(StatusCode::CREATED, json::PublishReply { results }))
}

pub(super) async fn browse(
    Entered(caller): Entered,
    InStream(stream): InStream,
    mut query: Query,
) -> Answer<json::MessageList> {
    let from = query.number("from")?.unwrap_or(1);
    let limit = query.limit(LIST_USUAL, LIST_MAX)?;
    let filter = Filter { key: query.text("key"), kind: query.text("type") };
    query.end()?;
    let page = caller.browse(stream, position(from), limit as u64, &filter).await?;
    let messages = page.messages.iter().map(message::stored).collect();
    let next = (page.next <= page.last).then(|| page.next.to_string());
    Ok(Reply(StatusCode::OK, json::MessageList { messages, next, last_seq: page.last.0 }))
}

pub(super) async fn purge(
    Entered(caller): Entered,
    InStream(stream): InStream,
    _: NoQuery,
    Json(request): Json<json::PurgeRequest>,
) -> Answer<json::PurgeReply> {
    let purged = caller.purge(stream, Purge { parked: request.parked, ids: false }).await?;
    Ok(Reply(StatusCode::OK, json::PurgeReply { purged }))
}

pub(super) async fn follow(
    State(door): State<Door>,
    Entered(caller): Entered,
    InStream(stream): InStream,
    mut query: Query,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let from = query.text("from");
    query.end()?;
    // What exists is looked at first, so that a stream that does not is an answer and not an event.
    let figures = caller.stream(stream.clone()).await?.figures;
    let resumed = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse::<u64>().ok());
    let from = match (resumed, from.as_deref()) {
        (Some(last), _) => position(last.saturating_add(1)),
        (None, None | Some("beginning")) => Seq(1),
        (None, Some("end")) => figures.last.next(),
        (None, Some(number)) => position(
            number.parse().map_err(|_| bad_parameter("from", "is `beginning`, `end` or a position"))?,
        ),
    };
    Ok(sse::follow(&door, caller, stream, from))
}
