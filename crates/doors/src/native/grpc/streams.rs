//! The calls about streams.

use forebay_broker::caller::Caller;
use forebay_broker::report::ReadPage;
use forebay_core::settings::StreamSettings;
use forebay_core::shard::Purge;
use forebay_core::types::{Seq, StreamName};
use forebay_wire::v1;
use tonic::Status;

use super::request::{Budget, filter, limit, position, refused, stream_name};
use super::{convert, report, settings, status};

pub(super) async fn create(
    caller: Caller,
    request: v1::CreateStreamRequest,
) -> Result<v1::CreateStreamReply, Status> {
    let name = stream_name(&request.stream)?;
    let patch = settings::stream(request.settings)?;
    let change = move |stream: &mut StreamSettings| patch.apply(stream);
    let created = caller.create_stream(name, change).await.map_err(refused)?;
    Ok(v1::CreateStreamReply { created: created.new })
}

pub(super) async fn update(
    caller: Caller,
    request: v1::UpdateStreamRequest,
) -> Result<v1::UpdateStreamReply, Status> {
    let name = stream_name(&request.stream)?;
    let change = settings::stream_change(request.settings, request.clear)?;
    caller.change_stream(name, change).await.map_err(refused)?;
    Ok(v1::UpdateStreamReply {})
}

pub(super) async fn get(caller: Caller, request: v1::GetStreamRequest) -> Result<v1::StreamReport, Status> {
    let report = caller.stream(stream_name(&request.stream)?).await.map_err(refused)?;
    Ok(report::stream(&report))
}

pub(super) async fn list(
    caller: Caller,
    request: v1::ListStreamsRequest,
) -> Result<v1::ListStreamsReply, Status> {
    let limit = limit(request.limit)? as usize;
    let after = match &request.after[..] {
        "" => None,
        after => Some(after_name(after)?),
    };
    let page = caller.streams(after, limit).await.map_err(refused)?;
    let mut reply = v1::ListStreamsReply::default();
    let mut budget = Budget::new();
    for report in &page.items {
        let report = report::stream(report);
        if !budget.take(&report) {
            reply.next = reply.streams.last().map(|last| last.stream.clone()).unwrap_or_default();
            return Ok(reply);
        }
        reply.streams.push(report);
    }
    reply.next = page.next.map(|next| next.to_string()).unwrap_or_default();
    Ok(reply)
}

fn after_name(text: &str) -> Result<StreamName, Status> {
    StreamName::parse(text).map_err(|error| status::invalid_name(format!("after: {error}")))
}

pub(super) async fn delete(
    caller: Caller,
    request: v1::DeleteStreamRequest,
) -> Result<v1::DeleteStreamReply, Status> {
    caller.delete_stream(stream_name(&request.stream)?, request.force).await.map_err(refused)?;
    Ok(v1::DeleteStreamReply {})
}

pub(super) async fn purge(
    caller: Caller,
    request: v1::PurgeStreamRequest,
) -> Result<v1::PurgeStreamReply, Status> {
    let purge = Purge { parked: request.parked, ids: false };
    let messages = caller.purge(stream_name(&request.stream)?, purge).await.map_err(refused)?;
    Ok(v1::PurgeStreamReply { messages })
}

pub(super) async fn read(
    caller: Caller,
    request: v1::ReadMessagesRequest,
) -> Result<v1::ReadMessagesReply, Status> {
    let stream = stream_name(&request.stream)?;
    let limit = limit(request.limit)?.into();
    let filter = filter(request.key, request.r#type);
    let page = caller.browse(stream, position(request.from), limit, &filter).await.map_err(refused)?;
    let (messages, next) = stored(&page)?;
    Ok(v1::ReadMessagesReply { messages, next: next.0, last_seq: page.last.0 })
}

/// As many messages of a page as fit into a reply, and where to read on.
pub(super) fn stored(page: &ReadPage) -> Result<(Vec<v1::StoredMessage>, Seq), Status> {
    let mut messages = Vec::with_capacity(page.messages.len());
    let mut budget = Budget::new();
    for found in &page.messages {
        let stored = v1::StoredMessage { seq: found.seq.0, message: Some(convert::found(found)?) };
        if !budget.take(&stored) {
            return Ok((messages, found.seq));
        }
        messages.push(stored);
    }
    Ok((messages, page.next))
}
