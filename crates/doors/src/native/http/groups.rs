//! Calls on groups, by operators.

use axum::http::StatusCode;
use forebay_broker::api::GroupCursor;
use forebay_core::types::{GroupName, StreamName};
use forebay_wire::json;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::failure::{Failure, in_query};
use super::live::Reply;
use super::report;
use super::request::{Entered, InGroup, InStream, Json, NoQuery, Query, bad_parameter};
use crate::native::service::Service;

type Answer<T> = Result<Reply<T>, Failure>;

pub(super) async fn create(
    Entered(service): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
    Json(patch): Json<json::GroupSettings>,
) -> Answer<json::GroupReport> {
    let is_new = service.create_group(stream.clone(), group.clone(), patch).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    report_of(&service, status, stream, group).await
}

async fn report_of(
    service: &Service,
    status: StatusCode,
    stream: StreamName,
    group: GroupName,
) -> Answer<json::GroupReport> {
    Ok(Reply(status, report::group(&service.group(stream, group).await?)))
}

pub(super) async fn change(
    Entered(service): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
    Json(patch): Json<json::GroupSettings>,
) -> Answer<json::GroupReport> {
    service.change_group(stream.clone(), group.clone(), Vec::new(), patch).await?;
    report_of(&service, StatusCode::OK, stream, group).await
}

pub(super) async fn get(
    Entered(service): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
) -> Answer<json::GroupReport> {
    report_of(&service, StatusCode::OK, stream, group).await
}

pub(super) async fn delete(
    Entered(service): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
) -> Result<StatusCode, Failure> {
    service.delete_group(stream, group).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn list(Entered(service): Entered, query: Query) -> Answer<json::GroupList> {
    list_some(&service, None, query).await
}

pub(super) async fn list_of_stream(
    Entered(service): Entered,
    InStream(stream): InStream,
    query: Query,
) -> Answer<json::GroupList> {
    list_some(&service, Some(stream), query).await
}

/// The same as [`list`], in the words of the other path.
pub(super) async fn list_subscriptions(entered: Entered, query: Query) -> Answer<json::SubscriptionList> {
    Ok(as_subscriptions(list(entered, query).await?))
}

pub(super) async fn list_subscriptions_of_stream(
    entered: Entered,
    stream: InStream,
    query: Query,
) -> Answer<json::SubscriptionList> {
    Ok(as_subscriptions(list_of_stream(entered, stream, query).await?))
}

fn as_subscriptions(
    Reply(status, json::GroupList { groups, next }): Reply<json::GroupList>,
) -> Reply<json::SubscriptionList> {
    Reply(status, json::SubscriptionList { subscriptions: groups, next })
}

async fn list_some(
    service: &Service,
    stream: Option<StreamName>,
    mut query: Query,
) -> Answer<json::GroupList> {
    let limit = query.number("limit")?;
    let after = query.text("after");
    query.end()?;
    let after = match after {
        None => None,
        Some(text) => {
            let cursor = read_cursor(&text);
            Some(cursor.ok_or_else(|| bad_parameter("after", "must be the `next` of the page before"))?)
        }
    };
    let page = service.groups(stream, after, limit).await.map_err(in_query)?;
    let groups = page.items.iter().map(report::group).collect();
    let next = page.next.as_ref().map(write_cursor);
    Ok(Reply(StatusCode::OK, json::GroupList { groups, next }))
}

/// Bytes that have a meaning of their own in `stream/group`.
const IN_CURSOR: &AsciiSet = &CONTROLS.add(b'/').add(b'%');

fn write_cursor((stream, group): &GroupCursor) -> String {
    let part = |text| utf8_percent_encode(text, IN_CURSOR);
    format!("{}/{}", part(stream.as_str()), part(group.as_str()))
}

fn read_cursor(text: &str) -> Option<GroupCursor> {
    let (stream, group) = text.split_once('/')?;
    let part = |text| percent_decode_str(text).decode_utf8().ok();
    let (stream, group) = (part(stream)?, part(group)?);
    Some((StreamName::of_any(&stream).ok()?, GroupName::parse(&group).ok()?))
}

pub(super) async fn pause(
    entered: Entered,
    group: InGroup,
    _: NoQuery,
    _: Json<Nothing>,
) -> Answer<json::PausedReply> {
    set_paused(entered, group, true).await
}

pub(super) async fn resume(
    entered: Entered,
    group: InGroup,
    _: NoQuery,
    _: Json<Nothing>,
) -> Answer<json::PausedReply> {
    set_paused(entered, group, false).await
}

/// A body without fields.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

async fn set_paused(
    Entered(service): Entered,
    InGroup(stream, group): InGroup,
    paused: bool,
) -> Answer<json::PausedReply> {
    service.pause_group(stream, group, paused).await?;
    Ok(Reply(StatusCode::OK, json::PausedReply { paused }))
}

pub(super) async fn reset(
    Entered(service): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
    Json(request): Json<json::ResetRequest>,
) -> Answer<json::ResetReply> {
    let drop_parked = request.parked == json::ParkedOnReset::Drop;
    let to = Some(request.to);
    let floor = service.reset_group(stream, group, to, drop_parked).await?;
    Ok(Reply(StatusCode::OK, json::ResetReply { settled_through: floor.0 }))
}

pub(super) async fn scaling(
    Entered(service): Entered,
    InGroup(stream, group): InGroup,
    mut query: Query,
) -> Answer<json::Scaling> {
    let drain = query.span("target_drain")?;
    let (min, max) = (query.number("min")?.unwrap_or(0), query.number("max")?);
    query.end()?;
    let scaling = service.scaling(stream, group, drain, min, max).await.map_err(in_query)?;
    Ok(Reply(StatusCode::OK, report::scaling(&scaling)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_the_round_trip() {
        for (stream, group) in [("a", "b"), ("a/b%2F", "c d%"), ("ü", "😀 x"), ("$a", "b")] {
            let cursor =
                (StreamName::of_any(stream).expect("a name"), GroupName::parse(group).expect("a name"));
            assert_eq!(read_cursor(&write_cursor(&cursor)), Some(cursor));
        }
        for wrong in ["", "a", "a/", "/b", "%ff/b", "$/b"] {
            assert_eq!(read_cursor(wrong), None, "{wrong}");
        }
    }
}
