//! The calls about streams.

use forebay_broker::api::{Direction, Found, Hold, LogMessage, LogPage, ReadPage};
use forebay_core::types::{Ordinal, Seq};
use forebay_model::StreamPatch;
use forebay_wire::encoded::{Encoded, Field};
use forebay_wire::v1;

use super::encode::Shown;
use super::request::{Budget, some};
use super::{convert, report, settings};
use crate::native::service::{Answer, Service, filter, log_filter, stream_name, stream_to_read};

pub(super) async fn create(
    service: Service,
    request: v1::CreateStreamRequest,
) -> Answer<v1::CreateStreamReply> {
    let stream = stream_name(&request.stream)?;
    let created = service.create_stream(stream, settings::patch(request.settings)?).await?;
    Ok(v1::CreateStreamReply { created })
}

pub(super) async fn update(
    service: Service,
    request: v1::UpdateStreamRequest,
) -> Answer<v1::UpdateStreamReply> {
    let stream = stream_name(&request.stream)?;
    let clear = settings::cleared(request.clear, StreamPatch::FIELDS);
    service.change_stream(stream, clear, settings::patch(request.settings)?).await?;
    Ok(v1::UpdateStreamReply {})
}

pub(super) async fn get(service: Service, request: v1::GetStreamRequest) -> Answer<v1::StreamReport> {
    Ok(report::stream(&service.stream(stream_to_read(&request.stream)?).await?))
}

pub(super) async fn list(service: Service, request: v1::ListStreamsRequest) -> Answer<v1::ListStreamsReply> {
    let after = Some(&request.after[..]).filter(|after| !after.is_empty());
    let page = service.streams(after, some(request.limit.into())).await?;
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

pub(super) async fn delete(
    service: Service,
    request: v1::DeleteStreamRequest,
) -> Answer<v1::DeleteStreamReply> {
    service.delete_stream(stream_name(&request.stream)?, request.force, request.if_empty).await?;
    Ok(v1::DeleteStreamReply {})
}

pub(super) async fn purge(service: Service, request: v1::PurgeStreamRequest) -> Answer<v1::PurgeStreamReply> {
    let (parked, ready_only) = (request.parked, request.ready_only);
    let messages = service.purge_stream(stream_name(&request.stream)?, parked, ready_only).await?;
    Ok(v1::PurgeStreamReply { messages })
}

pub(super) async fn truncate(
    service: Service,
    request: v1::TruncateStreamRequest,
) -> Answer<v1::TruncateStreamReply> {
    let messages = service.truncate_stream(stream_name(&request.stream)?, request.before).await?;
    Ok(v1::TruncateStreamReply { messages })
}

pub(super) async fn read(
    service: Service,
    request: v1::ReadMessagesRequest,
) -> Answer<(v1::ReadMessagesReply, Hold)> {
    let stream = stream_to_read(&request.stream)?;
    let filter = filter(Some(request.key), Some(request.r#type));
    let direction = if request.newest_first { Direction::Backwards } else { Direction::Forwards };
    let (from, limit) = (some(request.from), some(request.limit.into()));
    let (page, hold) = service.read(stream, from, direction, limit, &filter).await?;
    let (messages, next) = stored(&page)?;
    Ok((v1::ReadMessagesReply { messages, next: next.0, last_seq: page.last.0 }, hold))
}

/// As many messages of a page as fit into a reply, and where to read on.
fn stored(page: &ReadPage) -> Answer<(Vec<v1::StoredMessage>, Seq)> {
    let mut messages = Vec::with_capacity(page.messages.len());
    let mut budget = Budget::new();
    for found in &page.messages {
        let (seq, stream) = (found.seq.0, String::new());
        let stored = v1::StoredMessage { seq, message: Some(convert::found(found)?), stream };
        if !budget.take(&stored) {
            return Ok((messages, found.seq));
        }
        messages.push(stored);
    }
    Ok((messages, page.next))
}

pub(super) async fn read_log(
    service: Service,
    request: v1::ReadLogRequest,
) -> Answer<(v1::ReadLogReply, Hold)> {
    let v1::ReadLogRequest { from, limit, stream_prefix, type_prefix, key, r#type, newest_first } = request;
    let filter = log_filter(Some(stream_prefix), Some(type_prefix), Some(key), Some(r#type));
    let direction = if newest_first { Direction::Backwards } else { Direction::Forwards };
    let (page, hold) = service.read_log(some(from), direction, some(limit.into()), filter).await?;
    let (messages, next) = logged(&page)?;
    Ok((v1::ReadLogReply { messages, next: next.0, last_log_position: page.last.0 }, hold))
}

/// As many messages of a page as fit into a reply of a streaming call, each with the name of its stream if that is
/// told, and the first one that does not.
pub(super) fn followed<'a>(
    messages: impl Iterator<Item = (&'a str, &'a Found)>,
) -> Answer<(Encoded, Option<&'a Found>)> {
    let (mut encoded, mut budget) = (Encoded::default(), Budget::new());
    for (stream, found) in messages {
        let shown = Shown::found(found)?;
        let (seq, stream) = (Field::Number(found.seq.0), Field::Bytes(stream.as_bytes()));
        let len = seq.len_with(1) + shown.len_with(2) + stream.len_with(3);
        if !budget.take_bytes(len) {
            return Ok((encoded, Some(found)));
        }
        encoded.begin(v1::FollowStreamReply::MESSAGES, len);
        encoded.field(1, seq);
        shown.put(2, &mut encoded);
        encoded.field(3, stream);
    }
    Ok((encoded, None))
}

/// As many messages of a page of all streams as fit into a reply, and where to read on.
fn logged(page: &LogPage) -> Answer<(Vec<v1::StoredMessage>, Ordinal)> {
    let mut messages = Vec::with_capacity(page.messages.len());
    let mut budget = Budget::new();
    for LogMessage { stream, message, .. } in &page.messages {
        let (seq, stream) = (message.seq.0, stream.to_string());
        let stored = v1::StoredMessage { seq, message: Some(convert::found(message)?), stream };
        if !budget.take(&stored) {
            return Ok((messages, message.ordinal));
        }
        messages.push(stored);
    }
    Ok((messages, page.next))
}
