//! The calls about groups.

use std::time::Duration;

use forebay_broker::api::GroupCursor;
use forebay_model::GroupPatch;
use forebay_wire::v1;

use super::request::{Budget, names, some};
use super::{report, settings};
use crate::native::service::{Answer, Service, stream_name};

pub(super) async fn create(
    service: Service,
    request: v1::CreateGroupRequest,
) -> Answer<v1::CreateGroupReply> {
    let (stream, group) = names(&request.stream, &request.group)?;
    let start = forebay_wire::settings::start(request.start.as_ref());
    let mut patch: GroupPatch = settings::patch(request.settings)?;
    patch.start = start;
    let created = service.create_group(stream, group, patch).await?;
    Ok(v1::CreateGroupReply { created })
}

pub(super) async fn update(
    service: Service,
    request: v1::UpdateGroupRequest,
) -> Answer<v1::UpdateGroupReply> {
    let (stream, group) = names(&request.stream, &request.group)?;
    let clear = settings::cleared(request.clear, GroupPatch::FIELDS);
    service.change_group(stream, group, clear, settings::patch(request.settings)?).await?;
    Ok(v1::UpdateGroupReply {})
}

pub(super) async fn get(service: Service, request: v1::GetGroupRequest) -> Answer<v1::GetGroupReply> {
    let (stream, group) = names(&request.stream, &request.group)?;
    Ok(report::group(&service.group(stream, group).await?))
}

pub(super) async fn list(service: Service, request: v1::ListGroupsRequest) -> Answer<v1::ListGroupsReply> {
    let stream = Some(&request.stream[..]).filter(|stream| !stream.is_empty());
    let stream = stream.map(stream_name).transpose()?;
    let after = request.after.as_ref().map(cursor).transpose()?;
    let page = service.groups(stream, after, some(request.limit.into())).await?;
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

fn cursor(wire: &v1::GroupCursor) -> Answer<GroupCursor> {
    names(&wire.stream, &wire.group).map_err(|refusal| refusal.within("after"))
}

pub(super) async fn delete(
    service: Service,
    request: v1::DeleteGroupRequest,
) -> Answer<v1::DeleteGroupReply> {
    let (stream, group) = names(&request.stream, &request.group)?;
    service.delete_group(stream, group).await?;
    Ok(v1::DeleteGroupReply {})
}

pub(super) async fn pause(service: Service, request: v1::PauseGroupRequest) -> Answer<v1::PauseGroupReply> {
    let (stream, group) = names(&request.stream, &request.group)?;
    service.pause_group(stream, group, true).await?;
    Ok(v1::PauseGroupReply {})
}

pub(super) async fn resume(
    service: Service,
    request: v1::ResumeGroupRequest,
) -> Answer<v1::ResumeGroupReply> {
    let (stream, group) = names(&request.stream, &request.group)?;
    service.pause_group(stream, group, false).await?;
    Ok(v1::ResumeGroupReply {})
}

pub(super) async fn reset(service: Service, request: v1::ResetGroupRequest) -> Answer<v1::ResetGroupReply> {
    let (stream, group) = names(&request.stream, &request.group)?;
    let to = forebay_wire::settings::start(request.to.as_ref());
    let floor = service.reset_group(stream, group, to, request.drop_parked).await?;
    Ok(v1::ResetGroupReply { checkpoint_seq: floor.0 })
}

pub(super) async fn scaling(service: Service, request: v1::GetScalingRequest) -> Answer<v1::GetScalingReply> {
    let (stream, group) = names(&request.stream, &request.group)?;
    let drain = some(request.target_drain_ms).map(Duration::from_millis);
    Ok(report::scaling(&service.scaling(stream, group, drain, request.min, request.max).await?))
}
