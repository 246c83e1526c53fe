//! `Delete`, after which a stream can be written again, and `Tombstone`, after which it cannot.

use std::sync::Arc;

use forebay_broker::api::{
    Bundle, CallError, Caller, Committed, Door, Expected as NoteExpected, NoteRefusal, NoteWish,
    PublishOptions, Published,
};
use forebay_core::types::{Ordinal, Seq, StreamName};
use forebay_wire::kurrent::client::Empty;
use forebay_wire::kurrent::streams::delete_resp::PositionOption;
use forebay_wire::kurrent::streams::{DeleteReq, DeleteResp};
use tonic::Status;

use super::expected::Expected;
use super::metadata::{self, Metadata};
use super::write::{end_of, metadata_batch};
use crate::kurrent::marks::{self, Mark};
use crate::kurrent::{KurrentDoor, event, links, places, status};

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

/// Refuses streams that are not deleted by themselves.
fn check_deletable(stream: &StreamName) -> Result<(), Status> {
    let of_all = stream.as_str() == "$all" || stream.as_str().starts_with(links::OF_ALL);
    if metadata::is_metadata(stream) || of_all {
        return Err(status::invalid(format!("this stream cannot be deleted. stream=`{stream}`")));
    }
    Ok(())
}

/// Commits a deletion if the stream still ends at `last`. `None` if it has grown meanwhile, so that it is looked at
/// again.
async fn commit(
    caller: &Caller,
    stream: &StreamName,
    last: Seq,
    bundle: Bundle,
) -> Result<Option<Committed>, CallError> {
    match caller.commit(bundle.expect_end(stream.clone(), last)).await {
        Ok(committed) => Ok(Some(committed)),
        Err(CallError::WrongEnd { .. }) => Ok(None),
        Err(error) => Err(error),
    }
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
    check_deletable(&stream)?;
    let of_call = |error: CallError| status::of_call(&error);
    let Some(of_metadata) = metadata::stream_of(&stream) else {
        return Err(status::invalid(format!("the name of the stream is too long. stream=`{stream}`")));
    };
    loop {
        let last = end_if_expected(door, caller, &stream, expected).await?;
        if last == Seq::START {
            return Err(conflict(&stream, expected, last));
        }
        if links::is_named(&stream) {
            return delete_links(door, caller, &stream).await;
        }
        let current = Metadata::of(caller, &stream).await.map_err(of_call)?;
        let metadata = current.with_truncate_before(metadata::DELETED);
        match caller.create_stream(of_metadata.clone(), metadata::settings).await {
            Ok(_) | Err(CallError::Different) => {}
            Err(error) => return Err(of_call(error)),
        }
        let bundle = Bundle::beside(stream.clone())
            .publish(Arc::new(of_metadata.clone()), metadata_batch(&metadata), PublishOptions::default())
            .note(marks::note(&stream, Some(Mark::Deleted)));
        let Some(committed) = commit(caller, &stream, last, bundle).await.map_err(of_call)? else { continue };
        door.marks.set(&stream, Some(Mark::Deleted));
        // From here on the stream reads as absent. If the server stops before the cut, the next write makes it.
        caller.truncate(stream.clone(), last.next()).await.map_err(of_call)?;
        let version = committed.versions.first().copied().flatten();
        written_meanwhile(door, &stream, last, version).await.map_err(of_call)?;
        let position = committed.published.first().and_then(|published| match published {
            Published::Stored { ordinal, .. } => Some(*ordinal),
            Published::Mixed { .. } => None,
        });
        return Ok(answer(position));
    }
}

/// An event that was stored after the deletion, and before the door knew of it, has brought the stream back: the mark
/// goes, if it is still the one of this deletion.
async fn written_meanwhile(
    door: &KurrentDoor,
    stream: &StreamName,
    last: Seq,
    version: Option<u64>,
) -> Result<(), CallError> {
    let (Some(version), Some(of_metadata)) = (version, metadata::stream_of(stream)) else { return Ok(()) };
    if end_of(&door.own, stream).await? == last {
        return Ok(());
    }
    let first = places::revision(last.next()).unwrap_or_default();
    let metadata = Metadata::of(&door.own, stream).await?.with_truncate_before(first);
    let mark = NoteWish { expected: NoteExpected::Version(version), ..marks::note(stream, None) };
    let bundle = Bundle::beside(stream.clone())
        .publish(Arc::new(of_metadata), metadata_batch(&metadata), PublishOptions::default())
        .note(mark);
    match door.own.commit(bundle).await {
        Ok(_) => door.marks.set(stream, None),
        // The next write brought it back, or it was deleted again.
        Err(CallError::Note(NoteRefusal::Mismatch { .. })) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Deletes the links of a category or a type. They come about again when they are next read.
async fn delete_links(
    door: &KurrentDoor,
    caller: &Caller,
    stream: &StreamName,
) -> Result<DeleteResp, Status> {
    let of_call = |error: CallError| status::of_call(&error);
    caller.commit(links::deletion(stream)).await.map_err(of_call)?;
    door.own.stop_links(stream).await.map_err(of_call)?;
    Ok(answer(None))
}

/// Deletes a stream, its groups and its metadata, and keeps its name from being used again.
pub(in crate::kurrent) async fn tombstone_stream(
    door: &KurrentDoor,
    caller: &Caller,
    stream: StreamName,
    expected: Expected,
) -> Result<DeleteResp, Status> {
    check_deletable(&stream)?;
    loop {
        let last = end_if_expected(door, caller, &stream, expected).await?;
        let mut bundle = Bundle::beside(stream.clone()).note(marks::note(&stream, Some(Mark::Tombstone)));
        if links::is_named(&stream) {
            bundle = bundle.no_links(Door::KURRENT, &stream);
        }
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
        match commit(caller, &stream, last, bundle).await {
            Ok(Some(_)) => break,
            Ok(None) => door.marks.set(&stream, before),
            Err(error) => {
                // An outcome that is not known may be a tombstone in the log, and then there is one after a restart.
                if !matches!(error, CallError::Unknown | CallError::Stopping) {
                    door.marks.set(&stream, before);
                }
                return Err(status::of_call(&error));
            }
        }
    }
    door.own.stop_links(&stream).await.map_err(|error| status::of_call(&error))?;
    Ok(answer(None))
}
