//! `Delete`, after which a stream can be written again, and `Tombstone`, after which it cannot.

use std::sync::Arc;

use forebay_broker::api::{Bundle, CallError, Caller, PublishOptions, Published, Right};
use forebay_core::types::{Ordinal, Seq, StreamName};
use forebay_wire::kurrent::client::Empty;
use forebay_wire::kurrent::streams::delete_resp::PositionOption;
use forebay_wire::kurrent::streams::{DeleteReq, DeleteResp};
use tonic::Status;

use super::expected::Expected;
use super::metadata::{self, Metadata};
use super::write::{end_of, metadata_batch};
use crate::kurrent::marks::{self, Mark};
use crate::kurrent::{KurrentDoor, event, places, status};

/// The stream of a request, and the state that the client expects.
fn asked(request: DeleteReq) -> Result<(StreamName, Expected), Status> {
    let options = request.options.ok_or_else(|| status::invalid("options must be set"))?;
    Ok((event::stream_name(options.stream_identifier.as_ref())?, Expected::read(options.expected)?))
}

/// Where the stream ends, if it is in the state that the client expects.
async fn end_if_expected(
    door: &KurrentDoor,
    caller: &Caller,
    stream: &StreamName,
    expected: Expected,
) -> Result<Seq, Status> {
    if metadata::is_metadata(stream) || stream.as_str() == "$all" {
        return Err(status::invalid(format!("this stream cannot be deleted. stream=`{stream}`")));
    }
    // Before anything is said of the stream.
    caller.check_stream(Right::Delete, stream).map_err(|error| status::of_call(&error))?;
    let mark = door.marks.of(stream);
    if mark == Some(Mark::Tombstone) {
        return Err(status::stream_deleted(stream.as_str()));
    }
    let last = end_of(caller, stream).await.map_err(|error| status::of_call(&error))?;
    let is_expected = match expected {
        Expected::Any => true,
        Expected::NoStream => last == Seq::START,
        Expected::Exists => last > Seq::START && mark.is_none(),
        Expected::Revision(_) => expected.last() == Some(last),
    };
    if !is_expected {
        return Err(conflict(stream, expected, last));
    }
    Ok(last)
}

fn conflict(stream: &StreamName, expected: Expected, last: Seq) -> Status {
    status::wrong_expected_version(stream.as_str(), expected.number(), places::revision_text(last))
}

fn answer(position: Option<Ordinal>) -> DeleteResp {
    let position = position.map(|ordinal| PositionOption::Position(places::position(ordinal)));
    DeleteResp { position_option: Some(position.unwrap_or(PositionOption::NoPosition(Empty {}))) }
}

pub(super) async fn delete(
    door: &KurrentDoor,
    caller: &Caller,
    request: DeleteReq,
) -> Result<DeleteResp, Status> {
    let (stream, expected) = asked(request)?;
    delete_stream(door, caller, stream, expected).await
}

pub(super) async fn tombstone(
    door: &KurrentDoor,
    caller: &Caller,
    request: DeleteReq,
) -> Result<DeleteResp, Status> {
    let (stream, expected) = asked(request)?;
    tombstone_stream(door, caller, stream, expected).await
}

/// Deletes the events of a stream. The stream keeps its numbers, and its metadata says that it is deleted.
pub(in crate::kurrent) async fn delete_stream(
    door: &KurrentDoor,
    caller: &Caller,
    stream: StreamName,
    expected: Expected,
) -> Result<DeleteResp, Status> {
    let last = end_if_expected(door, caller, &stream, expected).await?;
    if last == Seq::START {
        return Err(conflict(&stream, expected, last));
    }
    let of_call = |error: CallError| status::of_call(&error);
    // Of everything that follows, before the first of it is done.
    caller.check_stream(Right::Operate, &stream).map_err(of_call)?;
    let Some(of_metadata) = metadata::stream_of(&stream) else {
        return Err(status::invalid(format!("the name of the stream is too long. stream=`{stream}`")));
    };
    let current = Metadata::of(caller, &stream).await.map_err(of_call)?;
    let metadata = current.with_truncate_before(metadata::DELETED);
    match caller.create_stream(of_metadata.clone(), metadata::settings).await {
        Ok(_) | Err(CallError::Different) => {}
        Err(error) => return Err(of_call(error)),
    }
    let bundle = Bundle::beside(stream.clone())
        .publish(Arc::new(of_metadata), metadata_batch(&metadata), PublishOptions::default())
        .note(marks::note(&stream, Some(Mark::Deleted)));
    let committed = caller.commit(bundle).await.map_err(of_call)?;
    door.marks.set(&stream, Some(Mark::Deleted));
    // From here on the stream reads as absent. If the server stops before the cut, the next write makes it.
    caller.truncate(stream, last.next()).await.map_err(of_call)?;
    let position = committed.published.first().and_then(|published| match published {
        Published::Stored { ordinal, .. } => Some(*ordinal),
        Published::Mixed { .. } => None,
    });
    Ok(answer(position))
}

/// Deletes a stream, its groups and its metadata, and keeps its name from being used again.
pub(in crate::kurrent) async fn tombstone_stream(
    door: &KurrentDoor,
    caller: &Caller,
    stream: StreamName,
    expected: Expected,
) -> Result<DeleteResp, Status> {
    end_if_expected(door, caller, &stream, expected).await?;
    let mut bundle = Bundle::beside(stream.clone()).note(marks::note(&stream, Some(Mark::Tombstone)));
    for name in [Some(stream.clone()), metadata::stream_of(&stream)].into_iter().flatten() {
        match caller.stream(name.clone()).await {
            Ok(_) => bundle = bundle.delete(name),
            Err(CallError::NoSuchStream { .. }) => {}
            Err(error) => return Err(status::of_call(&error)),
        }
    }
    // Writes are refused from now on, and subscriptions that find the stream gone know why.
    let before = door.marks.of(&stream);
    door.marks.set(&stream, Some(Mark::Tombstone));
    if let Err(error) = caller.commit(bundle).await {
        // An outcome that is not known may be a tombstone in the log, and then there is one after a restart.
        if !matches!(error, CallError::Unknown | CallError::Stopping) {
            door.marks.set(&stream, before);
        }
        return Err(status::of_call(&error));
    }
    Ok(answer(None))
}
