//! `Append`: options, then events, then one answer.

use forebay_broker::api::Caller;
use forebay_core::types::Seq;
use forebay_wire::kurrent::client::Empty;
use forebay_wire::kurrent::streams::append_req::Content;
use forebay_wire::kurrent::streams::append_resp::wrong_expected_version::{
    CurrentRevisionOption, CurrentRevisionOption2060, ExpectedRevisionOption, ExpectedRevisionOption2060,
};
use forebay_wire::kurrent::streams::append_resp::{Result as Answer, WrongExpectedVersion};
use forebay_wire::kurrent::streams::success::{CurrentRevisionOption as Current, PositionOption};
use forebay_wire::kurrent::streams::{AppendReq, AppendResp, Success};
use tonic::{Status, Streaming};

use super::expected::Expected;
use super::write::{self, Written};
use crate::kurrent::event::{self, Proposed};
use crate::kurrent::{KurrentDoor, places, status};

pub(super) async fn append(
    door: &KurrentDoor,
    caller: &Caller,
    mut requests: Streaming<AppendReq>,
) -> Result<AppendResp, Status> {
    let first = requests.message().await?.and_then(|request| request.content);
    let Some(Content::Options(options)) = first else {
        return Err(status::invalid("the first message of an append must have options"));
    };
    let stream = event::stream_name(options.stream_identifier.as_ref())?;
    let expected = Expected::read(options.expected)?;
    let limits = door.broker.limits();
    let (mut events, mut bytes) = (Vec::new(), 0);
    while let Some(request) = requests.message().await? {
        let Some(Content::ProposedMessage(message)) = request.content else {
            return Err(status::invalid("after its options an append must have events"));
        };
        let event = Proposed::read(message)?;
        bytes += event.bytes();
        // What cannot be stored is not collected.
        let is_full = events.len() >= limits.batch_messages_max as usize;
        if is_full || bytes > limits.batch_bytes_max as usize {
            return Err(status::append_too_large(limits.batch_bytes_max.into()));
        }
        events.push(event);
    }
    let written = write::write(door, caller, stream, expected, events).await;
    let result = match written.map_err(write::Refused::status)? {
        Written::Done { last, position } => Answer::Success(success(last, position)),
        Written::Conflict { last } => Answer::WrongExpectedVersion(conflict(last, expected)),
    };
    Ok(AppendResp { result: Some(result) })
}

pub(super) fn success(last: Seq, position: Option<forebay_core::types::Ordinal>) -> Success {
    let current = places::revision(last);
    let position = position.map(|ordinal| PositionOption::Position(places::position(ordinal)));
    Success {
        current_revision_option: Some(current.map_or(Current::NoStream(Empty {}), Current::CurrentRevision)),
        position_option: Some(position.unwrap_or(PositionOption::NoPosition(Empty {}))),
    }
}

fn conflict(last: Seq, expected: Expected) -> WrongExpectedVersion {
    let (current, none) = (places::revision(last), Empty {});
    let old_current = current.map_or(
        CurrentRevisionOption2060::NoStream2060(none),
        CurrentRevisionOption2060::CurrentRevision2060,
    );
    let (new, old) = match expected {
        Expected::Any => {
            (ExpectedRevisionOption::ExpectedAny(none), Some(ExpectedRevisionOption2060::Any2060(none)))
        }
        Expected::Exists => (
            ExpectedRevisionOption::ExpectedStreamExists(none),
            Some(ExpectedRevisionOption2060::StreamExists2060(none)),
        ),
        Expected::NoStream => (ExpectedRevisionOption::ExpectedNoStream(none), None),
        Expected::Revision(revision) => (
            ExpectedRevisionOption::ExpectedRevision(revision),
            Some(ExpectedRevisionOption2060::ExpectedRevision2060(revision)),
        ),
    };
    WrongExpectedVersion {
        current_revision_option_20_6_0: Some(old_current),
        expected_revision_option_20_6_0: old,
        current_revision_option: Some(
            current
                .map_or(CurrentRevisionOption::CurrentNoStream(none), CurrentRevisionOption::CurrentRevision),
        ),
        expected_revision_option: Some(new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_without_events_to_no_stream_is_answered_so() {
        let Success { current_revision_option, position_option } = success(Seq::START, None);
        assert_eq!(current_revision_option, Some(Current::NoStream(Empty {})));
        assert_eq!(position_option, Some(PositionOption::NoPosition(Empty {})));
        let there = success(Seq(3), None);
        assert_eq!(there.current_revision_option, Some(Current::CurrentRevision(2)));
    }
}
