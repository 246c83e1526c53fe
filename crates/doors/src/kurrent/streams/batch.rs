//! `BatchAppend`: many writes on one call, each with an answer of its own, which names the write. A write may come in
//! several requests.

use std::collections::HashMap;
use std::time::Duration;

use forebay_broker::api::Caller;
use forebay_core::types::{Seq, Timestamp};
use forebay_wire::kurrent::Any;
use forebay_wire::kurrent::client::uuid::Value;
use forebay_wire::kurrent::client::wrong_expected_version::{
    CurrentStreamRevisionOption, ExpectedStreamPositionOption,
};
use forebay_wire::kurrent::client::{
    AccessDenied, BadRequest, Empty, MaximumAppendEventSizeExceeded, MaximumAppendSizeExceeded,
    StreamDeleted, Timeout, Unknown, Uuid, WrongExpectedVersion,
};
use forebay_wire::kurrent::google::rpc;
use forebay_wire::kurrent::streams::batch_append_resp::Result as Answer;
use forebay_wire::kurrent::streams::write_options::DeadlineOption;
use forebay_wire::kurrent::streams::{BatchAppendReq, BatchAppendResp, ProposedMessage, WriteOptions};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use prost::Message;
use tonic::{Code, Status, Streaming};

use super::append::success;
use super::expected::Expected;
use super::write::{self, Refused, Written};
use crate::kurrent::event::{self, Proposed};
use crate::kurrent::ids::{EventId, Form};
use crate::kurrent::{KurrentDoor, Replies, places, status};

/// Writes of one call that are being stored at a time. Further requests wait.
const WRITES_MAX: usize = 256;
/// Writes of one call whose last request has not come.
const OPEN_MAX: usize = 64;
/// A longer time is as good as none. Clients send times beyond any date if they want to wait for ever.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3_600);

pub(super) fn batch_append(
    door: KurrentDoor,
    caller: Caller,
    requests: Streaming<BatchAppendReq>,
) -> Replies<BatchAppendResp> {
    let call = BatchCall {
        door,
        caller,
        requests,
        open: HashMap::new(),
        writes: FuturesUnordered::new(),
        has_more: true,
    };
    Box::pin(futures_util::stream::unfold(call, |mut call| async move {
        let reply = call.next().await?;
        Some((reply, call))
    }))
}

struct BatchCall {
    door: KurrentDoor,
    caller: Caller,
    requests: Streaming<BatchAppendReq>,
    /// Writes whose last request has not come.
    open: HashMap<EventId, Collected>,
    writes: FuturesUnordered<BoxFuture<'static, BatchAppendResp>>,
    /// The client may send more.
    has_more: bool,
}

/// A write, as far as it has come.
struct Collected {
    name: Name,
    options: WriteOptions,
    messages: Vec<ProposedMessage>,
    bytes: usize,
}

/// The name of a write, in the form of its client, and its stream.
#[derive(Clone)]
struct Name {
    id: EventId,
    form: Form,
    stream: Option<forebay_wire::kurrent::client::StreamIdentifier>,
}

impl BatchCall {
    async fn next(&mut self) -> Option<Result<BatchAppendResp, Status>> {
        loop {
            if !self.has_more && self.writes.is_empty() {
                return None;
            }
            let may_read = self.has_more && self.writes.len() < WRITES_MAX;
            tokio::select! {
                // Every write that has come is begun before the first answer, so that they share a commit.
                biased;
                request = self.requests.message(), if may_read => match request {
                    Ok(Some(request)) => {
                        if let Some(answer) = self.take(request).await {
                            return Some(Ok(answer));
                        }
                    }
                    Ok(None) => self.has_more = false,
                    Err(status) => {
                        self.has_more = false;
                        self.writes.clear();
                        return Some(Err(status));
                    }
                },
                Some(answer) = self.writes.next(), if !self.writes.is_empty() => return Some(Ok(answer)),
            }
        }
    }

    /// Takes a request. Answers a write that cannot be begun.
    async fn take(&mut self, request: BatchAppendReq) -> Option<BatchAppendResp> {
        let BatchAppendReq { correlation_id, options, proposed_messages, is_final } = request;
        let form = match correlation_id.as_ref().and_then(|id| id.value.as_ref()) {
            Some(Value::Structured(_)) => Form::Structured,
            _ => Form::Text,
        };
        let Some(id) = EventId::read(correlation_id.as_ref()) else {
            let name = Name { id: EventId::default(), form, stream: None };
            return Some(
                name.refused(status::invalid("correlation_id must be a UUID").into(), correlation_id),
            );
        };
        if let Some(options) = options {
            let name = Name { id, form, stream: options.stream_identifier.clone() };
            if self.open.len() >= OPEN_MAX {
                let message = format!("at most {OPEN_MAX} writes of a call may be incomplete");
                return Some(name.refused(status::invalid(message).into(), None));
            }
            self.open.insert(id, Collected { name, options, messages: Vec::new(), bytes: 0 });
        }
        // Requests of a write that was refused already, or never begun, say nothing.
        let collected = self.open.get_mut(&id)?;
        let limits = self.door.broker.limits();
        for message in proposed_messages {
            collected.bytes += message.data.len() + message.custom_metadata.len() + event::ENVELOPE_BYTES;
            collected.messages.push(message);
        }
        let is_full = collected.messages.len() > limits.batch_messages_max as usize;
        if is_full || collected.bytes > limits.batch_bytes_max as usize {
            let limit = limits.batch_bytes_max.into();
            let collected = self.open.remove(&id)?;
            return Some(collected.name.refused(Refused::AppendTooLarge { limit }, None));
        }
        if !is_final {
            return None;
        }
        let collected = self.open.remove(&id)?;
        let name = collected.name.clone();
        match begin(self.door.clone(), self.caller.clone(), collected).await {
            Ok(write) => {
                self.writes.push(write);
                None
            }
            Err(refused) => Some(name.refused(refused, None)),
        }
    }
}

async fn begin(
    door: KurrentDoor,
    caller: Caller,
    collected: Collected,
) -> Result<BoxFuture<'static, BatchAppendResp>, Refused> {
    let Collected { name, options, messages, .. } = collected;
    let stream = event::stream_name(options.stream_identifier.as_ref())?;
    let expected = Expected::read(options.expected)?;
    let wait = wait(options.deadline_option.as_ref(), door.broker.clock().date())?;
    let events = messages.into_iter().map(Proposed::read).collect::<Result<Vec<_>, _>>()?;
    let begun = write::begin(&door, &caller, stream.clone(), expected, events);
    let rest = match wait {
        Some(wait) => tokio::time::timeout(wait, begun).await.map_err(|_| Refused::Timeout)??,
        None => begun.await?,
    };
    Ok(Box::pin(async move {
        let written = match wait {
            Some(wait) => tokio::time::timeout(wait, rest).await.unwrap_or(Err(Refused::Timeout)),
            None => rest.await,
        };
        match written {
            Ok(Written::Done { last, position }) => {
                name.answer(Answer::Success(success(last, position)), None)
            }
            Ok(Written::Conflict { last }) => name.answer(Answer::Error(conflict(last, expected)), None),
            Err(refused) => name.refused(refused, None),
        }
    }))
}

/// The time that a write may take. `None` if it may take any.
fn wait(deadline: Option<&DeadlineOption>, now: Timestamp) -> Result<Option<Duration>, Refused> {
    let micros = |seconds: i64, nanos: i32| i128::from(seconds) * 1_000_000 + i128::from(nanos) / 1_000;
    let left = match deadline {
        None => return Ok(None),
        Some(DeadlineOption::Deadline(lasts)) => micros(lasts.seconds, lasts.nanos),
        Some(DeadlineOption::Deadline21100(at)) => micros(at.seconds, at.nanos) - i128::from(now.0),
    };
    if left <= 0 {
        return Err(Refused::Timeout);
    }
    let left = Duration::from_micros(u64::try_from(left).unwrap_or(u64::MAX));
    Ok(Some(left).filter(|left| *left < LONGEST))
}

impl Name {
    fn answer(self, result: Answer, id: Option<Uuid>) -> BatchAppendResp {
        BatchAppendResp {
            correlation_id: Some(id.unwrap_or_else(|| self.form.write(self.id))),
            result: Some(result),
            stream_identifier: Some(self.stream.unwrap_or_default()),
            expected_stream_position: None,
        }
    }

    fn refused(self, refused: Refused, id: Option<Uuid>) -> BatchAppendResp {
        let stream = self.stream.clone();
        self.answer(Answer::Error(in_band(refused, stream)), id)
    }
}

fn detail<M: Message>(code: Code, name: &str, message: &M) -> rpc::Status {
    let type_url = format!("type.googleapis.com/event_store.client.{name}");
    rpc::Status {
        code: code as i32,
        message: name.to_owned(),
        details: Some(Any { type_url, value: message.encode_to_vec() }),
    }
}

fn conflict(last: Seq, expected: Expected) -> rpc::Status {
    let none = Empty {};
    let current = places::revision(last).map_or(
        CurrentStreamRevisionOption::CurrentNoStream(none),
        CurrentStreamRevisionOption::CurrentStreamRevision,
    );
    let expected = match expected {
        Expected::Any => ExpectedStreamPositionOption::ExpectedAny(none),
        Expected::NoStream => ExpectedStreamPositionOption::ExpectedNoStream(none),
        Expected::Exists => ExpectedStreamPositionOption::ExpectedStreamExists(none),
        Expected::Revision(revision) => ExpectedStreamPositionOption::ExpectedStreamPosition(revision),
    };
    let message = WrongExpectedVersion {
        current_stream_revision_option: Some(current),
        expected_stream_position_option: Some(expected),
    };
    detail(Code::AlreadyExists, "WrongExpectedVersion", &message)
}

/// A refusal inside of an answer. Node and Python go by the type of its detail, Rust by code and message.
fn in_band(
    refused: Refused,
    stream_identifier: Option<forebay_wire::kurrent::client::StreamIdentifier>,
) -> rpc::Status {
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    match refused {
        Refused::Deleted(_) => detail(Code::NotFound, "StreamDeleted", &StreamDeleted { stream_identifier }),
        Refused::AppendTooLarge { limit } => detail(
            Code::InvalidArgument,
            "MaximumAppendSizeExceeded",
            &MaximumAppendSizeExceeded { max_append_size: small(limit) },
        ),
        Refused::EventTooLarge { id, bytes, limit } => detail(
            Code::InvalidArgument,
            "MaximumAppendEventSizeExceeded",
            &MaximumAppendEventSizeExceeded {
                event_id: id.to_string(),
                proposed_event_size: small(bytes),
                max_append_event_size: small(limit),
            },
        ),
        Refused::Timeout => detail(Code::DeadlineExceeded, "Timeout", &Timeout {}),
        Refused::Other(status) => match status.code() {
            Code::PermissionDenied => detail(Code::PermissionDenied, "AccessDenied", &AccessDenied {}),
            Code::InvalidArgument => {
                let message = status.message().to_owned();
                detail(Code::InvalidArgument, "BadRequest", &BadRequest { message })
            }
            Code::Aborted => detail(Code::DeadlineExceeded, "Timeout", &Timeout {}),
            Code::Unknown => detail(Code::Unknown, "Unknown", &Unknown {}),
            code => rpc::Status { message: status.message().to_owned(), ..detail(code, "Empty", &Empty {}) },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::types::StreamName;
    use forebay_wire::kurrent::{Duration as Lasts, Timestamp as At};

    #[test]
    fn deadlines_of_every_client_are_understood() {
        let now = Timestamp(1_700_000_000_000_000);
        let lasts = |seconds| Some(DeadlineOption::Deadline(Lasts { seconds, nanos: 0 }));
        let at = |seconds| Some(DeadlineOption::Deadline21100(At { seconds, nanos: 0 }));
        let wait = |deadline: Option<DeadlineOption>| wait(deadline.as_ref(), now);
        assert_eq!(wait(None).expect("a time"), None);
        assert_eq!(wait(lasts(10)).expect("a time"), Some(Duration::from_secs(10)));
        assert_eq!(wait(at(1_700_000_005)).expect("a time"), Some(Duration::from_secs(5)));
        for forever in [lasts(315_576_000_000), lasts(1_700_000_000), lasts(i64::MAX), at(i64::MAX)] {
            assert_eq!(wait(forever).expect("a time"), None);
        }
        for past in [lasts(0), lasts(-1), at(1_600_000_000), at(i64::MIN)] {
            assert!(matches!(wait(past), Err(Refused::Timeout)));
        }
    }

    #[test]
    fn a_refusal_names_the_type_that_clients_know() {
        let stream = StreamName::parse("orders").expect("a name");
        let deleted = in_band(Refused::Deleted(stream), None);
        let detail = deleted.details.expect("a detail");
        assert_eq!(detail.type_url, "type.googleapis.com/event_store.client.StreamDeleted");
        assert_eq!((deleted.code, deleted.message.as_str()), (5, "StreamDeleted"));
        let other = in_band(Refused::Other(status::busy()), None);
        assert_eq!((other.code, other.message.as_str()), (14, "Server Is Too Busy"));
        for (status, code, name) in [
            (status::access_denied(), 7, "AccessDenied"),
            (status::unknown_outcome(), 4, "Timeout"),
            (Status::unknown("why"), 2, "Unknown"),
            (status::invalid("why"), 3, "BadRequest"),
        ] {
            let refused = in_band(Refused::Other(status), None);
            assert_eq!((refused.code, refused.message.as_str()), (code, name));
            let type_url = refused.details.map(|detail| detail.type_url);
            assert_eq!(type_url, Some(format!("type.googleapis.com/event_store.client.{name}")));
        }
        let conflict = conflict(Seq(3), Expected::Revision(7));
        assert_eq!((conflict.code, conflict.message.as_str()), (6, "WrongExpectedVersion"));
    }
}
