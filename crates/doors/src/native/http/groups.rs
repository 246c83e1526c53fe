//! Calls on groups, by those who look after them.

use std::time::Duration;

use axum::http::StatusCode;
use forebay_broker::caller::{Caller, GroupCursor};
use forebay_broker::stats::ScalingTarget;
use forebay_core::types::{GroupName, StreamName};
use forebay_wire::json;
use forebay_wire::problem::Kind;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::failure::Failure;
use super::live::Reply;
use super::report;
use super::request::{Entered, InGroup, InStream, Json, NoQuery, Query, bad_parameter};
use super::streams::{LIST_MAX, LIST_USUAL};

/// What an autoscaler wants if it does not say.
const TARGET_DRAIN: Duration = Duration::from_secs(300);
const TARGET_MAX: u32 = 1_000;

type Answer<T> = Result<Reply<T>, Failure>;

pub(super) async fn create(
    Entered(caller): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
    Json(wire): Json<json::GroupSettings>,
) -> Answer<json::GroupReport> {
    wire.check()?;
    let asked = wire.clone();
    let change = move |settings: &mut _| asked.apply(settings);
    let created = caller.create_group(stream.clone(), group.clone(), change).await;
    let created = match created.map_err(Failure::from) {
        Ok(created) => created,
        Err(failure) if failure.is(Kind::SettingsDiffer) => {
            let is = caller.group(stream, group).await?;
            let field = wire.difference(&is.settings);
            return Err(field.map_or(failure.clone(), |field| failure.with_field(field)));
        }
        Err(failure) => return Err(failure),
    };
    let status = if created.new { StatusCode::CREATED } else { StatusCode::OK };
    Ok(Reply(status, report_of(&caller, stream, group).await?))
}

async fn report_of(
    caller: &Caller,
    stream: StreamName,
    group: GroupName,
) -> Result<json::GroupReport, Failure> {
    Ok(report::group(&caller.group(stream, group).await?))
}

pub(super) async fn change(
    Entered(caller): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
    Json(wire): Json<json::GroupSettings>,
) -> Answer<json::GroupReport> {
    wire.check()?;
    // What is told can be sent back as it is.
    let is = caller.group(stream.clone(), group.clone()).await?.settings.start;
    if wire.start.is_some_and(|start| start != is) {
        return Err(Failure::field("start", "a group that is there has started; a reset moves it"));
    }
    let change = move |settings: &mut _| wire.apply(settings);
    caller.change_group(stream.clone(), group.clone(), change).await?;
    Ok(Reply(StatusCode::OK, report_of(&caller, stream, group).await?))
}

pub(super) async fn get(
    Entered(caller): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
) -> Answer<json::GroupReport> {
    Ok(Reply(StatusCode::OK, report_of(&caller, stream, group).await?))
}

pub(super) async fn delete(
    Entered(caller): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
) -> Result<StatusCode, Failure> {
    caller.delete_group(stream, group).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn list(Entered(caller): Entered, query: Query) -> Answer<json::GroupList> {
    list_some(&caller, None, query).await
}

pub(super) async fn list_of_stream(
    Entered(caller): Entered,
    InStream(stream): InStream,
    query: Query,
) -> Answer<json::GroupList> {
    list_some(&caller, Some(stream), query).await
}

async fn list_some(caller: &Caller, stream: Option<StreamName>, mut query: Query) -> Answer<json::GroupList> {
    let limit = query.limit(LIST_USUAL, LIST_MAX)?;
    let after = query.text("after");
    query.end()?;
    let after = match after {
        None => None,
        Some(text) => {
            let cursor = read_cursor(&text);
            Some(cursor.ok_or_else(|| bad_parameter("after", "is the `next` of a page before"))?)
        }
    };
    let page = caller.groups(stream, after, limit).await?;
    let subscriptions = page.items.iter().map(report::group).collect();
    let next = page.next.as_ref().map(write_cursor);
    Ok(Reply(StatusCode::OK, json::GroupList { subscriptions, next }))
}

/// What would be taken for something else in `stream/group`.
const IN_CURSOR: &AsciiSet = &CONTROLS.add(b'/').add(b'%');

fn write_cursor((stream, group): &GroupCursor) -> String {
    let part = |text| utf8_percent_encode(text, IN_CURSOR);
    format!("{}/{}", part(stream.as_str()), part(group.as_str()))
}

fn read_cursor(text: &str) -> Option<GroupCursor> {
    let (stream, group) = text.split_once('/')?;
    let part = |text| percent_decode_str(text).decode_utf8().ok();
    let (stream, group) = (part(stream)?, part(group)?);
    Some((StreamName::parse(&stream).ok()?, GroupName::parse(&group).ok()?))
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

/// A body that has nothing to say.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

async fn set_paused(
    Entered(caller): Entered,
    InGroup(stream, group): InGroup,
    paused: bool,
) -> Answer<json::PausedReply> {
    caller.pause(stream, group, paused).await?;
    Ok(Reply(StatusCode::OK, json::PausedReply { paused }))
}

pub(super) async fn reset(
    Entered(caller): Entered,
    InGroup(stream, group): InGroup,
    _: NoQuery,
    Json(request): Json<json::ResetRequest>,
) -> Answer<json::ResetReply> {
    let drop_parked = request.parked == json::ParkedOnReset::Drop;
    let floor = caller.reset(stream, group, request.to, drop_parked).await?;
    Ok(Reply(StatusCode::OK, json::ResetReply { settled_through: floor.0 }))
}

pub(super) async fn scaling(
    Entered(caller): Entered,
    InGroup(stream, group): InGroup,
    mut query: Query,
) -> Answer<json::Scaling> {
    let target = ScalingTarget {
        drain: query.span("target_drain")?.unwrap_or(TARGET_DRAIN),
        min: query.number("min")?.unwrap_or(0),
        max: query.number("max")?.unwrap_or(TARGET_MAX),
    };
    query.end()?;
    if target.min > target.max {
        return Err(bad_parameter("min", "is not above `max`"));
    }
    Ok(Reply(StatusCode::OK, report::scaling(&caller.scaling(stream, group, target).await?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_the_round_trip() {
        for (stream, group) in [("a", "b"), ("a/b%2F", "c/d%"), ("ü", "😀 x")] {
            let cursor =
                (StreamName::parse(stream).expect("a name"), GroupName::parse(group).expect("a name"));
            assert_eq!(read_cursor(&write_cursor(&cursor)), Some(cursor));
        }
        for wrong in ["", "a", "a/", "/b", "%ff/b", "$a/b"] {
            assert_eq!(read_cursor(wrong), None, "{wrong}");
        }
    }
}
