//! The calls about groups.

use std::time::Duration;

use forebay_broker::caller::{Caller, GroupCursor};
use forebay_broker::stats::ScalingTarget;
use forebay_core::settings::GroupSettings;
use forebay_wire::v1;
use tonic::Status;

use super::request::{Budget, limit, names, refused, stream_name};
use super::{report, settings, status};

/// What an autoscaler gets that does not say what it wants.
const TARGET_DRAIN: Duration = Duration::from_secs(300);
const CONSUMERS_MAX: u32 = 1_000;

pub(super) async fn create(
    caller: Caller,
    request: v1::CreateGroupRequest,
) -> Result<v1::CreateGroupReply, Status> {
    let (stream, group) = names(&request.stream, &request.group)?;
    let start = forebay_wire::settings::start(request.start.as_ref());
    let patch = settings::group(request.settings)?;
    let change = move |group: &mut GroupSettings| {
        patch.apply(group);
        group.start = start.unwrap_or(group.start);
    };
    let created = caller.create_group(stream, group, change).await.map_err(refused)?;
    Ok(v1::CreateGroupReply { created: created.new })
}

pub(super) async fn update(
    caller: Caller,
    request: v1::UpdateGroupRequest,
) -> Result<v1::UpdateGroupReply, Status> {
    let (stream, group) = names(&request.stream, &request.group)?;
    let change = settings::group_change(request.settings, request.clear)?;
    caller.change_group(stream, group, change).await.map_err(refused)?;
    Ok(v1::UpdateGroupReply {})
}

pub(super) async fn get(caller: Caller, request: v1::GetGroupRequest) -> Result<v1::GetGroupReply, Status> {
    let (stream, group) = names(&request.stream, &request.group)?;
    Ok(report::group(&caller.group(stream, group).await.map_err(refused)?))
}

pub(super) async fn list(
    caller: Caller,
    request: v1::ListGroupsRequest,
) -> Result<v1::ListGroupsReply, Status> {
    let limit = limit(request.limit)? as usize;
    let stream = match &request.stream[..] {
        "" => None,
        name => Some(stream_name(name)?),
    };
    let after = request.after.as_ref().map(cursor).transpose()?;
    let page = caller.groups(stream, after, limit).await.map_err(refused)?;
    let mut reply = v1::ListGroupsReply::default();
    let mut budget = Budget::new();
    for report in &page.items {
        let report = report::group(report);
        if !budget.take(&report) {
            reply.next = reply
                .groups
                .last()
                .map(|last| v1::GroupCursor { stream: last.stream.clone(), group: last.group.clone() });
            return Ok(reply);
        }
        reply.groups.push(report);
    }
    reply.next = page
        .next
        .map(|(stream, group)| v1::GroupCursor { stream: stream.to_string(), group: group.to_string() });
    Ok(reply)
}

fn cursor(wire: &v1::GroupCursor) -> Result<GroupCursor, Status> {
    names(&wire.stream, &wire.group)
        .map_err(|error| status::invalid_name(format!("after.{}", error.message())))
}

pub(super) async fn delete(
    caller: Caller,
    request: v1::DeleteGroupRequest,
) -> Result<v1::DeleteGroupReply, Status> {
    let (stream, group) = names(&request.stream, &request.group)?;
    caller.delete_group(stream, group).await.map_err(refused)?;
    Ok(v1::DeleteGroupReply {})
}

pub(super) async fn pause(
    caller: Caller,
    request: v1::PauseGroupRequest,
) -> Result<v1::PauseGroupReply, Status> {
    let (stream, group) = names(&request.stream, &request.group)?;
    caller.pause(stream, group, true).await.map_err(refused)?;
    Ok(v1::PauseGroupReply {})
}

pub(super) async fn resume(
    caller: Caller,
    request: v1::ResumeGroupRequest,
) -> Result<v1::ResumeGroupReply, Status> {
    let (stream, group) = names(&request.stream, &request.group)?;
    caller.pause(stream, group, false).await.map_err(refused)?;
    Ok(v1::ResumeGroupReply {})
}

pub(super) async fn reset(
    caller: Caller,
    request: v1::ResetGroupRequest,
) -> Result<v1::ResetGroupReply, Status> {
    let (stream, group) = names(&request.stream, &request.group)?;
    // A reset that says nothing would begin at the beginning, which nobody wants by mistake.
    let to = forebay_wire::settings::start(request.to.as_ref())
        .ok_or_else(|| status::invalid("to: a reset says where to".to_owned()))?;
    let floor = caller.reset(stream, group, to, request.drop_parked).await.map_err(refused)?;
    Ok(v1::ResetGroupReply { checkpoint_seq: floor.0 })
}

pub(super) async fn scaling(
    caller: Caller,
    request: v1::GetScalingRequest,
) -> Result<v1::GetScalingReply, Status> {
    let (stream, group) = names(&request.stream, &request.group)?;
    let asked = Some(request.target_drain_ms).filter(|millis| *millis > 0);
    let drain = settings::duration("target_drain_ms", asked)?.unwrap_or(TARGET_DRAIN);
    let (min, max) = (request.min, request.max.unwrap_or(CONSUMERS_MAX.max(request.min)));
    if min > max {
        return Err(status::invalid(format!("min: above max. min=`{min}` max=`{max}`")));
    }
    let target = ScalingTarget { drain, min, max };
    Ok(report::scaling(&caller.scaling(stream, group, target).await.map_err(refused)?))
}
