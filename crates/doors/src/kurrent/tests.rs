//! The door on a broker in memory: writes, reads and deletes as stories.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_broker::api::{Broker, BrokerConfig, Caller, Clock, Grants, Principal};
use forebay_core::types::{Seq, StreamName};
use forebay_storage::memory::{MemoryEngine, MemoryLog};
use forebay_wire::kurrent::client::filter_options::{Expression, Filter, Window};
use forebay_wire::kurrent::client::stream_options::RevisionOption;
use forebay_wire::kurrent::client::uuid_option::Content as UuidForm;
use forebay_wire::kurrent::client::{AllStreamPosition, Empty, FilterOptions, StreamOptions, UuidOption};
use forebay_wire::kurrent::streams::read_req::Options;
use forebay_wire::kurrent::streams::read_req::options::all_options::AllOption;
use forebay_wire::kurrent::streams::read_req::options::{
    AllOptions, ControlOption, CountOption, FilterOption, ReadDirection, StreamOption,
};
use forebay_wire::kurrent::streams::read_resp::Content;
use forebay_wire::kurrent::streams::streams_server::Streams as _;
use forebay_wire::kurrent::streams::write_options::Expected as WireExpected;
use forebay_wire::kurrent::streams::{DeleteReq, ReadReq, ReadResp, WriteOptions};
use tokio_stream::StreamExt as _;
use tonic::{Code, Request, Status};

use super::event::{self, Proposed};
use super::ids::EventId;
use super::streams::expected::Expected;
use super::streams::write::{self, Written};
use super::{KurrentDoor, Replies};
use crate::http::hosts::Hosts;
use crate::kit::identity::Client;

const FRAME_BYTES_MAX: usize = 12 << 20;

struct Stage {
    broker: Broker,
    door: KurrentDoor,
    caller: Caller,
    stream: StreamName,
}

impl Stage {
    async fn new() -> Stage {
        let config = BrokerConfig::new([7; 32]);
        let engine = MemoryEngine::new(MemoryLog::new(config.driver.shard, FRAME_BYTES_MAX));
        let opened = Broker::open(Arc::new(engine), Clock::still(), config).await;
        let broker = opened.expect("a new log opens").0;
        let door = KurrentDoor::open(&broker.entrance(), Hosts::any(), "http", [9; 16])
            .await
            .expect("a new log has no notes");
        let caller = broker.enter(Principal::owner(), None);
        Stage { broker, door, caller, stream: StreamName::parse("orders").expect("a name") }
    }

    async fn write_to(&self, stream: &StreamName, expected: Expected, events: Vec<Proposed>) -> Written {
        let written = write::write(&self.door, &self.caller, stream.clone(), expected, events).await;
        written.map_err(write::Refused::status).expect("it is not refused")
    }

    async fn write(&self, expected: Expected, ids: &[u8]) -> Written {
        let stream = self.stream.clone();
        self.write_to(&stream, expected, ids.iter().map(|&id| proposed(id, b"{}")).collect()).await
    }

    /// Sets metadata, whatever it is now.
    async fn describe(&self, text: &'static str) {
        let stream = StreamName::of_system(&format!("$${}", self.stream)).expect("a name");
        self.write_to(&stream, Expected::Any, vec![proposed(200, text.as_bytes())]).await;
    }

    async fn open(
        &self,
        direction: ReadDirection,
        from: RevisionOption,
        count: CountOption,
    ) -> Replies<ReadResp> {
        let of = StreamOptions {
            stream_identifier: Some(event::identifier(&self.stream)),
            revision_option: Some(from),
        };
        let options = Options {
            read_direction: direction.into(),
            stream_option: Some(StreamOption::Stream(of)),
            count_option: Some(count),
            uuid_option: Some(UuidOption { content: Some(UuidForm::String(Empty {})) }),
            control_option: Some(ControlOption { compatibility: 1 }),
            ..Options::default()
        };
        let request = by_owner(ReadReq { options: Some(options) });
        self.door.read(request).await.expect("it is not refused").into_inner()
    }

    /// What a read answers, as words.
    async fn read(&self, direction: ReadDirection, from: RevisionOption, count: u64) -> String {
        let replies = self.open(direction, from, CountOption::Count(count)).await;
        let words: Vec<String> = replies.map(|reply| word(reply.expect("a reply"))).collect().await;
        words.join(" ")
    }

    async fn read_all(&self) -> String {
        self.read(ReadDirection::Forwards, RevisionOption::Start(Empty {}), u64::MAX).await
    }

    fn delete_request(&self, expected: WireExpected) -> Request<DeleteReq> {
        let options = WriteOptions {
            stream_identifier: Some(event::identifier(&self.stream)),
            expected: Some(expected),
            deadline_option: None,
        };
        by_owner(DeleteReq { options: Some(options) })
    }
}

/// A request of a client that was let in.
fn by_owner<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(Client(Principal::owner()));
    request
}

fn proposed(id: u8, data: &'static [u8]) -> Proposed {
    let (id, kind) = (EventId([id; 16]), "Tested".to_owned());
    Proposed { id, kind, is_json: true, metadata: Bytes::new(), data: Bytes::from_static(data) }
}

fn word(reply: ReadResp) -> String {
    match reply.content.expect("a content") {
        Content::Event(event) => event.event.expect("an event").stream_revision.to_string(),
        Content::Confirmation(_) => "confirmed".to_owned(),
        Content::Checkpoint(_) => "checkpoint".to_owned(),
        Content::StreamNotFound(_) => "missing".to_owned(),
        Content::FirstStreamPosition(revision) => format!("first={revision}"),
        Content::LastStreamPosition(revision) => format!("last={revision}"),
        Content::LastAllStreamPosition(_) => "last".to_owned(),
        Content::CaughtUp(caught_up) => format!("caught-up={:?}", caught_up.stream_revision),
    }
}

fn last(written: Written) -> Result<u64, u64> {
    match written {
        Written::Done { last, .. } => Ok(last.0),
        Written::Conflict { last } => Err(last.0),
    }
}

fn exception(status: &Status) -> &str {
    status.metadata().get("exception").and_then(|value| value.to_str().ok()).unwrap_or_default()
}

#[tokio::test]
async fn every_expectation_is_checked() {
    let stage = Stage::new().await;
    assert_eq!(last(stage.write(Expected::Revision(0), &[1]).await), Err(0));
    assert_eq!(last(stage.write(Expected::Exists, &[1]).await), Err(0));
    assert_eq!(last(stage.write(Expected::NoStream, &[1, 2]).await), Ok(2));
    assert_eq!(last(stage.write(Expected::NoStream, &[3]).await), Err(2));
    assert_eq!(last(stage.write(Expected::Revision(1), &[3]).await), Ok(3));
    assert_eq!(last(stage.write(Expected::Revision(1), &[4]).await), Err(3));
    assert_eq!(last(stage.write(Expected::Exists, &[5]).await), Ok(4));
    assert_eq!(last(stage.write(Expected::Any, &[6]).await), Ok(5));
    assert_eq!(last(stage.write(Expected::Any, &[]).await), Ok(5));
    assert_eq!(last(stage.write(Expected::Revision(9), &[]).await), Err(5));
    assert_eq!(stage.read_all().await, "0 1 2 3 4 last=4");
}

#[tokio::test]
async fn a_write_is_stored_once_if_it_is_repeated_before_its_outcome_is_known() {
    let stage = Stage::new().await;
    let begin = || {
        let events = vec![proposed(1, b"{}"), proposed(2, b"{}")];
        write::begin(&stage.door, &stage.caller, stage.stream.clone(), Expected::Any, events)
    };
    let first = begin().await.map_err(write::Refused::status).expect("it is begun");
    let second = begin().await.map_err(write::Refused::status).expect("it is begun");
    // Its client goes away, and it is stored all the same.
    drop(first);
    assert_eq!(last(second.await.map_err(write::Refused::status).expect("an outcome")), Ok(2));
    assert_eq!(last(stage.write(Expected::Any, &[1, 2]).await), Ok(2));
    assert_eq!(last(stage.write(Expected::Revision(1), &[3]).await), Ok(3), "nothing is there twice");
}

#[tokio::test]
async fn a_repeated_write_is_answered_as_the_first_time() {
    let stage = Stage::new().await;
    let first = stage.write(Expected::NoStream, &[1, 2]).await;
    let second = stage.write(Expected::Revision(1), &[3]).await;
    let third = stage.write(Expected::Any, &[4, 5]).await;
    assert_eq!(stage.write(Expected::NoStream, &[1, 2]).await, first, "its events are where they would be");
    assert_eq!(stage.write(Expected::Revision(1), &[3]).await, second);
    assert_eq!(stage.write(Expected::Any, &[4, 5]).await, third);
    for (expected, ids) in [
        (Expected::NoStream, &[1, 9][..]),
        (Expected::NoStream, &[2]),
        (Expected::Revision(1), &[4]),
        (Expected::Any, &[5, 6]),
    ] {
        assert_eq!(last(stage.write(expected, ids).await), Err(5), "{expected:?} {ids:?}");
    }
    assert_eq!(
        last(stage.write(Expected::Revision(4), &[1]).await),
        Ok(6),
        "elsewhere an id is no duplicate"
    );
}

#[tokio::test]
async fn a_client_that_may_only_publish_writes_to_streams_that_exist() {
    let stage = Stage::new().await;
    let grants: Grants = "publish:orders".parse().expect("a grant");
    let publisher = stage.broker.enter(Principal::new("publisher", grants), None);
    let write = async |expected, id| {
        let events = vec![proposed(id, b"{}")];
        let written = write::write(&stage.door, &publisher, stage.stream.clone(), expected, events).await;
        written.map_err(write::Refused::status)
    };
    let denied = write(Expected::Any, 1).await.expect_err("it may not create the stream");
    assert_eq!((exception(&denied), denied.code()), ("access-denied", Code::PermissionDenied));
    stage.write(Expected::NoStream, &[2]).await;
    assert_eq!(write(Expected::Any, 3).await.map(last).expect("it may publish"), Ok(2));
    assert_eq!(write(Expected::Revision(0), 4).await.map(last).expect("an answer"), Err(2));
}

#[tokio::test]
async fn a_stream_is_read_in_both_directions() {
    let stage = Stage::new().await;
    use ReadDirection::{Backwards, Forwards};
    let start = || RevisionOption::Start(Empty {});
    let end = || RevisionOption::End(Empty {});
    assert_eq!(stage.read_all().await, "missing");
    stage.write(Expected::NoStream, &[1, 2, 3, 4]).await;
    assert_eq!(stage.read(Forwards, RevisionOption::Revision(2), 9).await, "2 3 last=3");
    assert_eq!(stage.read(Forwards, start(), 2).await, "0 1 last=3");
    assert_eq!(stage.read(Forwards, end(), 9).await, "last=3");
    assert_eq!(stage.read(Forwards, RevisionOption::Revision(u64::MAX), 9).await, "last=3");
    assert_eq!(stage.read(Backwards, end(), u64::MAX).await, "3 2 1 0 last=3");
    assert_eq!(stage.read(Backwards, RevisionOption::Revision(1), 9).await, "1 0 last=3");
    assert_eq!(stage.read(Backwards, RevisionOption::Revision(u64::MAX), 1).await, "3 last=3");
    assert_eq!(stage.read(Backwards, start(), 9).await, "0 last=3");
    assert_eq!(stage.read(Forwards, start(), 0).await, "last=3");
}

#[tokio::test]
async fn metadata_limits_a_stream_and_is_one_event() {
    let stage = Stage::new().await;
    stage.describe(r#"{"$maxCount":2}"#).await;
    assert_eq!(stage.read_all().await, "missing", "metadata alone is not a stream");
    assert_eq!(last(stage.write(Expected::NoStream, &[1, 2, 3, 4]).await), Ok(4));
    assert_eq!(stage.read_all().await, "2 3 last=3");
    stage.describe(r#"{"$tb":3}"#).await;
    assert_eq!(stage.read_all().await, "3 last=3");
    let of_metadata = StreamName::of_system("$$orders").expect("a name");
    let report = stage.caller.stream(of_metadata).await.expect("it is there");
    assert_eq!((report.figures.first, report.figures.last), (Seq(2), Seq(2)), "the last one counts");
}

#[tokio::test]
async fn a_read_of_dropped_events_says_where_the_stream_begins() {
    let stage = Stage::new().await;
    stage.write(Expected::NoStream, &[1, 2, 3, 4]).await;
    stage.describe(r#"{"$tb":100}"#).await;
    assert_eq!(stage.read_all().await, "first=4 last=3");
    let end = RevisionOption::End(Empty {});
    assert_eq!(stage.read(ReadDirection::Backwards, end, 9).await, "last=3");
}

#[tokio::test]
async fn an_append_without_events_says_where_the_stream_ends() {
    let stage = Stage::new().await;
    for (expected, answer) in [
        (Expected::Any, Ok(0)),
        (Expected::NoStream, Ok(0)),
        (Expected::Exists, Err(0)),
        (Expected::Revision(0), Err(0)),
    ] {
        assert_eq!(last(stage.write(expected, &[]).await), answer, "{expected:?}");
    }
    stage.write(Expected::NoStream, &[1, 2]).await;
    for (expected, answer) in [
        (Expected::Any, Ok(2)),
        (Expected::NoStream, Err(2)),
        (Expected::Exists, Ok(2)),
        (Expected::Revision(1), Ok(2)),
    ] {
        assert_eq!(last(stage.write(expected, &[]).await), answer, "{expected:?}");
    }
}

#[tokio::test]
async fn a_stream_with_metadata_alone_exists_and_a_deleted_one_does_not() {
    let stage = Stage::new().await;
    assert_eq!(last(stage.write(Expected::Exists, &[1]).await), Err(0));
    stage.describe(r#"{"own":1}"#).await;
    assert_eq!(last(stage.write(Expected::Exists, &[1]).await), Ok(1));
    stage.door.delete(stage.delete_request(WireExpected::Any(Empty {}))).await.expect("it is there");
    assert_eq!(last(stage.write(Expected::Exists, &[2]).await), Err(1));
    assert_eq!(last(stage.write(Expected::NoStream, &[2]).await), Ok(2));
}

#[tokio::test]
async fn a_read_that_makes_no_sense_is_refused() {
    let stage = Stage::new().await;
    stage.write(Expected::NoStream, &[1]).await;
    let whole = || {
        let of = StreamOptions {
            stream_identifier: Some(event::identifier(&stage.stream)),
            revision_option: Some(RevisionOption::Start(Empty {})),
        };
        Options {
            stream_option: Some(StreamOption::Stream(of)),
            count_option: Some(CountOption::Count(1)),
            uuid_option: Some(UuidOption { content: Some(UuidForm::String(Empty {})) }),
            ..Options::default()
        }
    };
    let filter = |checkpoint_interval_multiplier| {
        let expression = Expression { regex: String::new(), prefix: vec!["o".to_owned()] };
        Some(FilterOption::Filter(FilterOptions {
            filter: Some(Filter::StreamIdentifier(expression)),
            window: Some(Window::Max(1)),
            checkpoint_interval_multiplier,
        }))
    };
    let all = || Some(StreamOption::All(AllOptions { all_option: Some(AllOption::Start(Empty {})) }));
    let follow = || Some(CountOption::Subscription(Empty {}));
    assert!(stage.door.read(by_owner(ReadReq { options: Some(whole()) })).await.is_ok());
    for (what, options) in [
        ("no form of ids", Options { uuid_option: None, ..whole() }),
        ("no stream", Options { stream_option: None, ..whole() }),
        ("no count", Options { count_option: None, ..whole() }),
        ("a filter of one stream", Options { filter_option: filter(1), ..whole() }),
        (
            "a subscription backwards",
            Options { count_option: follow(), read_direction: ReadDirection::Backwards.into(), ..whole() },
        ),
        (
            "no events between two checkpoints",
            Options { stream_option: all(), count_option: follow(), filter_option: filter(0), ..whole() },
        ),
    ] {
        let refused = stage.door.read(by_owner(ReadReq { options: Some(options) })).await;
        assert_eq!(refused.err().map(|status| status.code()), Some(Code::InvalidArgument), "{what}");
    }
}

#[tokio::test]
async fn a_deleted_stream_goes_on_with_its_numbers() {
    let stage = Stage::new().await;
    let any = || WireExpected::Any(Empty {});
    let missing = stage.door.delete(stage.delete_request(any())).await.expect_err("there is none");
    assert_eq!(exception(&missing), "wrong-expected-version");
    assert!(missing.message().ends_with("Actual version: -1"), "{}", missing.message());
    stage.write(Expected::NoStream, &[1, 2]).await;
    let wrong = stage.door.delete(stage.delete_request(WireExpected::Revision(0))).await;
    assert_eq!(exception(&wrong.expect_err("it is not at 0")), "wrong-expected-version");
    stage.door.delete(stage.delete_request(WireExpected::Revision(1))).await.expect("it is at 1");
    assert_eq!(stage.read_all().await, "missing");
    assert_eq!(last(stage.write(Expected::Exists, &[3]).await), Err(2));
    // A door that is opened later knows of it from the log.
    let later =
        KurrentDoor::open(&stage.broker.entrance(), Hosts::any(), "http", [8; 16]).await.expect("notes");
    let stage = Stage { door: later, ..stage };
    assert_eq!(stage.read_all().await, "missing");
    assert_eq!(last(stage.write(Expected::NoStream, &[3]).await), Ok(3));
    assert_eq!(stage.read_all().await, "2 last=2");
    assert_eq!(last(stage.write(Expected::NoStream, &[4]).await), Err(3));
}

#[tokio::test]
async fn an_event_that_is_appended_during_a_deletion_is_there_or_was_refused() {
    for _ in 0..30 {
        let stage = Stage::new().await;
        stage.write(Expected::NoStream, &[1, 2]).await;
        let deletion = stage.door.delete(stage.delete_request(WireExpected::Revision(1)));
        let (deleted, written) = tokio::join!(deletion, stage.write(Expected::Any, &[3]));
        assert_eq!(last(written), Ok(3));
        let read = stage.read_all().await;
        match deleted {
            Ok(_) => assert_eq!(read, "2 last=2", "it came after the deletion"),
            Err(status) => {
                assert_eq!(exception(&status), "wrong-expected-version");
                assert_eq!(read, "0 1 2 last=2", "it came before");
            }
        }
    }
}

#[tokio::test]
async fn categories_and_types_come_about_when_they_are_read() {
    let mut stage = Stage::new().await;
    let [one, two, other] = ["order-1", "order-2", "bill-1"].map(StreamName::stored);
    stage.write_to(&one, Expected::Any, vec![proposed(1, b"{}"), proposed(2, b"{}")]).await;
    stage.write_to(&other, Expected::Any, vec![proposed(3, b"{}")]).await;
    for (name, expected) in [
        ("$ce-order", "0 1 last=1"),
        ("$ce-bill", "0 last=0"),
        ("$ce-none", "missing"),
        ("$ce-", "missing"),
        ("$et-Tested", "0 1 2 last=2"),
        ("$et-$>", "missing"),
    ] {
        stage.stream = StreamName::stored(name);
        assert_eq!(stage.read_all().await, expected, "{name}");
    }
    stage.stream = StreamName::stored("$ce-order");
    stage.write_to(&two, Expected::Any, vec![proposed(4, b"{}")]).await;
    assert_eq!(stage.read_all().await, "0 1 2 last=2", "a read has everything that was written before");
    let written = write::write(
        &stage.door,
        &stage.caller,
        stage.stream.clone(),
        Expected::Any,
        vec![proposed(5, b"{}")],
    );
    let refused = written.await.map_err(write::Refused::status).expect_err("it is the server's");
    assert_eq!(refused.code(), Code::InvalidArgument);
    // Made anew, also if another door has deleted it.
    stage.caller.delete_stream(stage.stream.clone(), true).await.expect("it may");
    assert_eq!(stage.read_all().await, "0 1 2 last=2");
    stage.door.delete(stage.delete_request(WireExpected::Revision(2))).await.expect("it is as expected");
    assert_eq!(stage.read_all().await, "0 1 2 last=2");
    stage.door.tombstone(stage.delete_request(WireExpected::Any(Empty {}))).await.expect("any");
    stage.write_to(&two, Expected::Any, vec![proposed(6, b"{}")]).await;
    let gone = stage.caller.stream(stage.stream.clone()).await;
    assert!(gone.is_err(), "a tombstone stays");
}

#[tokio::test]
async fn a_tombstone_is_for_ever_and_ends_subscriptions() {
    let stage = Stage::new().await;
    stage.write(Expected::NoStream, &[1]).await;
    let subscription = CountOption::Subscription(Empty {});
    let mut replies =
        stage.open(ReadDirection::Forwards, RevisionOption::Start(Empty {}), subscription).await;
    for expected in ["confirmed", "0", "caught-up=Some(0)"] {
        assert_eq!(word(replies.next().await.expect("a reply").expect("a reply")), expected);
    }
    stage.write(Expected::Revision(0), &[2]).await;
    assert_eq!(word(replies.next().await.expect("a reply").expect("a reply")), "1");
    let any = WireExpected::Any(Empty {});
    stage.door.tombstone(stage.delete_request(any)).await.expect("it is there");
    let ended = replies.next().await.expect("an end").expect_err("an error");
    assert_eq!((exception(&ended), ended.code()), ("stream-deleted", Code::FailedPrecondition));
    assert!(replies.next().await.is_none());
    let written =
        write::write(&stage.door, &stage.caller, stage.stream.clone(), Expected::Any, vec![proposed(3, b"")])
            .await;
    assert_eq!(exception(&written.expect_err("it is deleted").status()), "stream-deleted");
    let again = stage.door.tombstone(stage.delete_request(any)).await;
    assert_eq!(exception(&again.expect_err("it is deleted")), "stream-deleted");
}

#[tokio::test]
async fn a_subscription_waits_for_a_stream_and_ends_when_the_server_stops() {
    let stage = Stage::new().await;
    let subscription = CountOption::Subscription(Empty {});
    let mut replies = stage.open(ReadDirection::Forwards, RevisionOption::End(Empty {}), subscription).await;
    for expected in ["confirmed", "caught-up=None"] {
        assert_eq!(word(replies.next().await.expect("a reply").expect("a reply")), expected);
    }
    assert_eq!(stage.read_all().await, "missing");
    stage.write(Expected::NoStream, &[1]).await;
    assert_eq!(word(replies.next().await.expect("a reply").expect("a reply")), "0");
    stage.broker.drain();
    let ended = tokio::time::timeout(Duration::from_secs(10), replies.next()).await.expect("it ends");
    assert_eq!(ended.expect("an end").expect_err("an error").code(), Code::Unavailable);
}

/// What a read of all streams answers: events as `stream@position`.
async fn all(
    stage: &Stage,
    direction: ReadDirection,
    from: AllOption,
    count: CountOption,
    regex: &str,
) -> Vec<String> {
    let expression = Expression { regex: regex.to_owned(), prefix: Vec::new() };
    let filter = FilterOptions {
        filter: Some(Filter::EventType(expression)),
        window: Some(Window::Max(2)),
        checkpoint_interval_multiplier: 1,
    };
    let is_endless = matches!(count, CountOption::Subscription(_));
    let options = Options {
        read_direction: direction.into(),
        stream_option: Some(StreamOption::All(AllOptions { all_option: Some(from) })),
        count_option: Some(count),
        filter_option: (!regex.is_empty()).then_some(FilterOption::Filter(filter)),
        uuid_option: Some(UuidOption { content: Some(UuidForm::Structured(Empty {})) }),
        ..Options::default()
    };
    let request = by_owner(ReadReq { options: Some(options) });
    let mut replies = stage.door.read(request).await.expect("it is not refused").into_inner();
    let mut words = Vec::new();
    while let Some(reply) = replies.next().await {
        words.push(match reply.expect("a reply").content.expect("a content") {
            Content::Event(event) => {
                let event = event.event.expect("an event");
                let stream = event.stream_identifier.expect("a stream").stream_name;
                format!("{}@{}", String::from_utf8_lossy(&stream), event.commit_position)
            }
            Content::Checkpoint(checkpoint) => format!("checkpoint@{}", checkpoint.commit_position),
            Content::CaughtUp(caught_up) => {
                format!("caught-up@{}", caught_up.position.expect("a position").commit_position)
            }
            content => word(ReadResp { content: Some(content) }),
        });
        if is_endless && words.last().is_some_and(|word| word.starts_with("caught-up")) {
            break;
        }
    }
    words
}

#[tokio::test]
async fn all_streams_are_read_in_the_order_of_the_log() {
    let stage = Stage::new().await;
    use ReadDirection::{Backwards, Forwards};
    let at = |commit_position| {
        AllOption::Position(AllStreamPosition { commit_position, prepare_position: commit_position })
    };
    let (start, end) = (AllOption::Start(Empty {}), AllOption::End(Empty {}));
    let every = || CountOption::Count(u64::MAX);
    let follow = || CountOption::Subscription(Empty {});
    assert!(all(&stage, Forwards, start, every(), "").await.is_empty());
    let other = StreamName::parse("others").expect("a name");
    stage.write(Expected::Any, &[1]).await;
    stage.write_to(&other, Expected::Any, vec![proposed(2, b"{}")]).await;
    stage.write(Expected::Any, &[3]).await;
    let whole = ["orders@1", "others@2", "orders@3"];
    assert_eq!(all(&stage, Forwards, start, every(), "").await, whole);
    assert_eq!(all(&stage, Forwards, at(2), every(), "").await, whole[1..]);
    assert_eq!(all(&stage, Forwards, start, CountOption::Count(1), "").await, whole[..1]);
    assert!(all(&stage, Forwards, end, every(), "").await.is_empty());
    assert_eq!(all(&stage, Backwards, end, every(), "").await, ["orders@3", "others@2", "orders@1"]);
    assert_eq!(all(&stage, Backwards, at(2), every(), "").await, ["orders@1"]);
    assert!(all(&stage, Backwards, start, every(), "").await.is_empty());
    assert_eq!(all(&stage, Forwards, start, every(), "^(?!Tested)").await, [""; 0]);
    let followed = all(&stage, Forwards, at(1), follow(), "").await;
    assert_eq!(followed, ["confirmed", "others@2", "orders@3", "caught-up@3"]);
    let filtered = all(&stage, Forwards, start, follow(), "^(?!Tested)").await;
    assert_eq!(filtered, ["confirmed", "checkpoint@3", "caught-up@3"]);
}
