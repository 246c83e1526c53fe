//! Calls on the messages of all streams.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use forebay_broker::api::{Direction, LogFilter};
use forebay_core::types::Ordinal;
use forebay_wire::json;

use super::failure::{Failure, in_query};
use super::live::HeldReply;
use super::request::{Entered, Query};
use super::streams::{direction, follow_from};
use super::{Door, message, sse};
use crate::native::service::log_filter;

fn filter(query: &mut Query) -> LogFilter {
    log_filter(query.text("prefix"), query.text("type_prefix"), query.text("key"), query.text("type"))
}

pub(super) async fn read(
    Entered(service): Entered,
    mut query: Query,
) -> Result<HeldReply<json::LogList>, Failure> {
    let (from, limit) = (query.number("from")?, query.number("limit")?);
    let filter = filter(&mut query);
    let direction = direction(&mut query)?;
    query.end()?;
    let (page, hold) = service.read_log(from, direction, limit, filter).await.map_err(in_query)?;
    let messages = page.messages.iter().map(message::logged).collect();
    let has_more = match direction {
        Direction::Forwards => page.next <= page.last,
        Direction::Backwards => page.next > Ordinal(0),
    };
    let next = has_more.then(|| page.next.0.to_string());
    Ok(HeldReply(json::LogList { messages, next, last_log_position: page.last.0 }, hold))
}

pub(super) async fn follow(
    State(door): State<Door>,
    Entered(service): Entered,
    mut query: Query,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let from = follow_from(&mut query, &headers);
    let filter = filter(&mut query);
    query.end()?;
    Ok(sse::follow(&door, sse::Followed::Log(Box::new(service.follow_log(from?, filter).await?))))
}
