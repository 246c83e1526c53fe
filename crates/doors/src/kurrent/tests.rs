//! The door on a broker in memory: writes, reads and deletes as stories.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_broker::api::{Broker, BrokerConfig, Caller, Clock, Principal};
use forebay_core::types::{Seq, StreamName};
use forebay_storage::memory::{MemoryEngine, MemoryLog};
use forebay_wire::kurrent::client::stream_options::RevisionOption;
use forebay_wire::kurrent::client::uuid_option::Content as UuidForm;
use forebay_wire::kurrent::client::{Empty, StreamOptions, UuidOption};
use forebay_wire::kurrent::streams::read_req::Options;
use forebay_wire::kurrent::streams::read_req::options::{
    ControlOption, CountOption, ReadDirection, StreamOption,
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
        let door =
            KurrentDoor::open(&broker.entrance(), &[], [9; 16], false).await.expect("a new log has no notes");
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
        let request = Request::new(ReadReq { options: Some(options) });
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
        Request::new(DeleteReq { options: Some(options) })
    }
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
    let later = KurrentDoor::open(&stage.broker.entrance(), &[], [8; 16], false).await.expect("notes");
    let stage = Stage { door: later, ..stage };
    assert_eq!(stage.read_all().await, "missing");
    assert_eq!(last(stage.write(Expected::NoStream, &[3]).await), Ok(3));
    assert_eq!(stage.read_all().await, "2 last=2");
    assert_eq!(last(stage.write(Expected::NoStream, &[4]).await), Err(3));
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
