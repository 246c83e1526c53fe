//! The verbs of a caller, on an engine in memory.

mod arranging;
mod bundles;
mod damaged;
mod held_back;
mod leases;
mod links;
mod moving;
mod reading;
mod rights;
mod sources;
mod times;

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::entry::Work;
use forebay_core::group::{JobState, LeaseRun, NotYours, Outcome, Settlement, Verb};
use forebay_core::settings::{Acks, GroupSettings, Retention, StreamSettings};
use forebay_core::shard::{PublishOptions, Purge, ResetTo};
use forebay_core::types::{GroupName, JobId, Seq, ShardId, StreamName};
use forebay_storage::engine::Durable;
use forebay_storage::memory::{MemoryEngine, MemoryLog};

use super::*;
use crate::access::Grants;
use crate::batch::{Batch, BatchBuilder, Message};
use crate::broker::{Broker, BrokerConfig, Event, Running, SettleRequest, Stage};
use crate::clock::Clock;
use crate::door::Door;
use crate::driver::{Delivered, Published};
use crate::error::PublishError;
use crate::stats::ScalingTarget;

fn engine() -> MemoryEngine {
    MemoryEngine::new(MemoryLog::new(ShardId(0), 12 << 20))
}

async fn open_with(engine: MemoryEngine, config: BrokerConfig) -> (Caller, Running) {
    open_at(engine, Clock::start(), config).await
}

async fn open_at(engine: MemoryEngine, clock: Clock, config: BrokerConfig) -> (Caller, Running) {
    let opened = Broker::open(Arc::new(engine), clock, config).await;
    let (broker, running) = opened.expect("the log opens");
    (broker.enter(Principal::owner(), None), running)
}

async fn open() -> (Caller, Running) {
    open_with(engine(), BrokerConfig::new([7; 32])).await
}

fn stream() -> StreamName {
    StreamName::parse("work").expect("a name")
}

fn group() -> GroupName {
    GroupName::parse("team").expect("a name")
}

async fn create(caller: &Caller, change: impl Fn(&mut GroupSettings) + Send + 'static) {
    caller.create_group(stream(), group(), change).await.expect("the group is created");
}

fn batch<'a>(messages: impl IntoIterator<Item = Message<'a>>) -> Batch {
    let mut builder = BatchBuilder::default();
    for message in messages {
        builder.push(&message);
    }
    builder.build()
}

fn plain(body: &str) -> Message<'_> {
    Message { body: body.as_bytes(), ..Message::default() }
}

async fn publish<'a>(
    caller: &Caller,
    messages: impl IntoIterator<Item = Message<'a>>,
) -> Result<Published, PublishError> {
    let batch = batch(messages);
    let room = caller.broker().room(&stream(), &batch).await;
    caller.publish(room, Arc::new(stream()), batch, PublishOptions::default()).await.map(Durable::get)
}

async fn publish_some(caller: &Caller, count: usize) {
    publish(caller, std::iter::repeat_n(plain("x"), count)).await.expect("there is room");
}

fn wish(max: u32, wait: Duration) -> Receive {
    Receive { consumer: "worker".to_owned(), max, wait, ..Receive::default() }
}

const SOON: Duration = Duration::from_secs(10);

async fn receive(caller: &Caller, max: u32, wait: Duration) -> Vec<(String, Delivered)> {
    caller.receive(stream(), group(), wish(max, wait)).await.expect("it is answered").take()
}

async fn settle(caller: &Caller, receipts: &[String], action: Verb) -> Vec<Outcome> {
    let verdict = Settlement { reason: Some("because".to_owned()), ..action.into() };
    let settled = caller.settle(stream(), group(), receipts, verdict).await;
    settled.expect("it is answered")
}

fn seqs(received: &[(String, Delivered)]) -> Vec<u64> {
    received.iter().map(|(_, message)| message.lease.seq.0).collect()
}

async fn in_flight(caller: &Caller) -> u64 {
    caller.group(stream(), group()).await.expect("the group is there").figures.in_flight
}

#[tokio::test]
async fn one_who_asks_gets_what_is_there_and_settles_it_by_its_receipts() {
    let (caller, _running) = open().await;
    create(&caller, |_| {}).await;
    publish_some(&caller, 5).await;
    let first = receive(&caller, 3, SOON).await;
    assert_eq!(seqs(&first), [1, 2, 3]);
    let rest = receive(&caller, 10, Duration::ZERO).await;
    assert_eq!(seqs(&rest), [4, 5], "whoever does not want to wait gets what is there");
    assert!(receive(&caller, 10, Duration::ZERO).await.is_empty());

    let receipts: Vec<String> = first.iter().map(|(receipt, _)| receipt.clone()).collect();
    assert_eq!(settle(&caller, &receipts[..2], Verb::Ack).await, [Outcome::Acked; 2]);
    let again = settle(&caller, &receipts, Verb::Ack).await;
    let gone = Outcome::NotYours(NotYours::Gone);
    assert_eq!(again, [gone, gone, Outcome::Acked], "each of them ends once");
    let forged = settle(&caller, &["forged".to_owned()], Verb::Ack).await;
    assert_eq!(forged, [Outcome::NotYours(NotYours::Unknown)]);
    let parked = settle(&caller, &[rest[0].0.clone()], Verb::Park).await;
    assert_eq!(parked, [Outcome::Parked]);
    let report = caller.group(stream(), group()).await.expect("the group is there");
    assert_eq!((report.figures.lag, report.figures.parked, report.figures.in_flight), (1, 1, 1));
    assert_eq!(report.processing.expect("times are kept").count, 4);
    assert_eq!(report.consumers.len(), 1, "however often it asked");
    assert_eq!((report.consumers[0].acked, report.consumers[0].failed), (3, 1));
    assert_eq!(report.consumers[0].processing.expect("its own times, too").count, 4);
}

#[tokio::test]
async fn one_who_waits_is_told_as_soon_as_there_is_something() {
    let (caller, _running) = open().await;
    create(&caller, |_| {}).await;
    let waiting = tokio::spawn({
        let caller = caller.clone();
        async move { receive(&caller, 10, Duration::from_secs(60)).await }
    });
    while caller.server().await.expect("it answers").waiting == 0 {
        tokio::task::yield_now().await;
    }
    publish_some(&caller, 2).await;
    let received = tokio::time::timeout(SOON, waiting).await.expect("in time").expect("no panic");
    assert_eq!(seqs(&received), [1, 2]);
    let nothing = receive(&caller, 10, Duration::from_millis(20)).await;
    assert!(nothing.is_empty(), "and no longer than it wants to wait");
}

#[tokio::test]
async fn many_may_wait_under_one_name_and_each_message_goes_to_one_of_them() {
    let (caller, _running) = open().await;
    create(&caller, |_| {}).await;
    let ask = |n: u32| {
        let caller = caller.clone();
        tokio::spawn(async move { receive(&caller, n, SOON).await.len() })
    };
    let waiting: Vec<_> = (0..20).map(|_| ask(1)).collect();
    while caller.server().await.expect("it answers").waiting < 20 {
        tokio::task::yield_now().await;
    }
    publish_some(&caller, 20).await;
    for one in waiting {
        assert_eq!(one.await.expect("no panic"), 1);
    }
    let report = caller.group(stream(), group()).await.expect("the group is there");
    assert_eq!((report.figures.in_flight, report.consumers.len()), (20, 1));
    assert_eq!(report.consumers[0].in_flight, 20);
}

#[tokio::test]
async fn what_nobody_takes_goes_back_and_was_never_tried() {
    let (caller, _running) = open().await;
    create(&caller, |settings| settings.max_retries = 0.into()).await;
    publish_some(&caller, 3).await;
    let untaken = caller.receive(stream(), group(), wish(3, SOON)).await.expect("it is answered");
    assert_eq!(untaken.len(), 3);
    drop(untaken);
    while in_flight(&caller).await > 0 {
        tokio::task::yield_now().await;
    }
    // A client that goes away while it waits.
    let gone = tokio::time::timeout(Duration::from_millis(5), {
        let filler = receive(&caller, 3, SOON).await;
        assert!(filler.iter().all(|(_, message)| message.attempt.0 == 1), "the attempt did not count");
        let receipts: Vec<String> = filler.into_iter().map(|(receipt, _)| receipt).collect();
        assert_eq!(settle(&caller, &receipts, Verb::Return { delay: None }).await, [Outcome::Returned; 3]);
        let filler = receive(&caller, 3, SOON).await;
        assert_eq!(filler.len(), 3);
        caller.receive(stream(), group(), wish(1, SOON))
    });
    assert!(gone.await.is_err());
    publish_some(&caller, 1).await;
    let next = receive(&caller, 10, SOON).await;
    assert_eq!(seqs(&next), [4], "nothing went to the one who is gone");
}

#[tokio::test]
async fn a_receipt_is_good_after_a_restart() {
    let engine = engine();
    let again = engine.another();
    let (caller, running) = open_with(engine, BrokerConfig::new([1; 32])).await;
    create(&caller, |_| {}).await;
    publish_some(&caller, 2).await;
    let received = receive(&caller, 1, SOON).await;
    caller.broker().owner().stop();
    running.await.expect("no panic").expect("it stopped as asked");

    let (caller, _running) = open_with(again, BrokerConfig::new([2; 32])).await;
    assert_eq!(seqs(&receive(&caller, 10, SOON).await), [2], "the first is still leased");
    assert_eq!(settle(&caller, &[received[0].0.clone()], Verb::Ack).await, [Outcome::Acked]);
}

#[tokio::test]
async fn a_group_that_is_deleted_says_so_to_everybody_in_it() {
    let (caller, _running) = open().await;
    create(&caller, |_| {}).await;
    let mut consumer = caller.subscribe(stream(), group(), "worker", 1).await.expect("it is let in");
    let waiting = caller.receive(stream(), group(), wish(1, SOON));
    let delete = async {
        while caller.server().await.expect("it answers").waiting == 0 {
            tokio::task::yield_now().await;
        }
        let refused = caller.delete_stream(stream(), false).await;
        assert!(matches!(refused, Err(CallError::NotChanged(_))), "it has consumers");
        caller.delete_stream(stream(), true).await
    };
    let (received, deleted) = tokio::join!(waiting, delete);
    deleted.expect("it is deleted");
    assert!(matches!(received, Err(CallError::GroupGone)));
    let mut events = Vec::new();
    poll_fn(|cx| consumer.poll_events(cx, &mut events, 4)).await;
    assert!(matches!(events[..], [Event::GroupGone]), "{events:?}");
    let gone = caller.receive(stream(), group(), wish(1, SOON)).await;
    assert!(matches!(gone, Err(CallError::NoSuchStream { .. })));
}

#[tokio::test]
async fn a_draining_server_lets_consumers_finish_what_they_hold() {
    let (caller, mut running) = open().await;
    create(&caller, |settings| settings.acks = Acks::Durable).await;
    publish_some(&caller, 3).await;
    let mut consumer = caller.subscribe(stream(), group(), "worker", 2).await.expect("it is let in");
    let mut events = Vec::new();
    poll_fn(|cx| consumer.poll_events(cx, &mut events, 4)).await;
    let Event::Delivery(delivery) = &events[0] else { panic!("a delivery comes first") };
    let waiting = tokio::spawn({
        let caller = caller.clone();
        // Two of three are held, and the third goes to this one.
        async move {
            assert_eq!(receive(&caller, 1, SOON).await.len(), 1);
            receive(&caller, 1, SOON).await.len()
        }
    });
    while caller.group(stream(), group()).await.expect("the group is there").figures.in_flight < 3 {
        tokio::task::yield_now().await;
    }
    caller.broker().owner().drain();
    caller.broker().reached(Stage::Draining).await;
    let refused = waiting.await;
    assert!(refused.is_err() || refused.is_ok_and(|count| count == 0), "nothing more is handed out");
    assert_eq!(publish(&caller, [plain("late")]).await, Err(PublishError::Stopping));
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut running).await.is_err(), "it waits");
    let leases = vec![delivery.leases()];
    consumer.settle(vec![SettleRequest { ticket: 1, leases, settlement: Verb::Ack.into() }]).expect("it may");
    events.clear();
    poll_fn(|cx| consumer.poll_events(cx, &mut events, 4)).await;
    assert!(matches!(&events[0], Event::Settled(settled) if settled[0].outcomes == [(Outcome::Acked, 2)]));
    running.await.expect("no panic").expect("what is leased on the clock does not keep it");
}

#[tokio::test]
async fn a_draining_server_does_not_wait_for_ever() {
    let config = BrokerConfig { drain_max: Duration::from_millis(50), ..BrokerConfig::new([7; 32]) };
    let (caller, running) = open_with(engine(), config).await;
    create(&caller, |_| {}).await;
    publish_some(&caller, 1).await;
    let mut consumer = caller.subscribe(stream(), group(), "worker", 2).await.expect("it is let in");
    poll_fn(|cx| consumer.poll_events(cx, &mut Vec::new(), 4)).await;
    caller.broker().owner().drain();
    tokio::time::timeout(SOON, running).await.expect("in time").expect("no panic").expect("it stopped");
}

#[tokio::test]
async fn a_first_publish_creates_its_stream_where_that_is_wanted() {
    let (caller, _running) = open().await;
    publish_some(&caller, 1).await;
    let report = caller.stream(stream()).await.expect("it was created");
    assert_eq!(report.settings.limits.max_bytes, Some(crate::broker::FIRST_PUBLISH_BYTES_MAX));
    assert_eq!((report.figures.first, report.figures.last), (Seq(1), Seq(1)));

    let other = StreamName::parse("other").expect("a name");
    let empty = batch([]);
    let room = caller.broker().room(&stream(), &empty).await;
    let refused = caller.publish(room, Arc::new(other.clone()), empty, PublishOptions::default()).await;
    assert!(refused.is_err());
    assert!(caller.stream(other).await.is_err(), "a batch that is refused leaves no stream behind");

    let config = BrokerConfig { stream_of_first_publish: None, ..BrokerConfig::new([7; 32]) };
    let (caller, _running) = open_with(engine(), config).await;
    let refused = publish(&caller, [plain("x")]).await.expect_err("there is no such stream");
    assert_eq!(refused.to_string(), "no such stream");

    // A publish may bring the settings of a stream that it creates, whatever the server is configured with.
    let log = Retention::Log { max_messages: Some(5), max_bytes: None, max_age: None };
    let settings = Arc::new(StreamSettings { retention: log, ..StreamSettings::default() });
    let own = Arc::new(StreamName::of_system("$own").expect("a name"));
    for (settings, expected) in [(&settings, Seq(1)), (&Arc::default(), Seq(2))] {
        let batch = batch([plain("x")]);
        let room = caller.broker().room(&own, &batch).await;
        let absent = Absent::Create(Arc::clone(settings));
        let stored = caller.publish_or(room, own.clone(), batch, PublishOptions::default(), absent).await;
        let (admission, _) = stored.expect("it is stored").get().each().next().expect("one message");
        assert_eq!(admission.seq, expected);
    }
    let report = caller.stream(StreamName::clone(&own)).await.expect("it exists");
    assert_eq!(report.settings.retention, log, "later settings change nothing");
    let wrong = StreamSettings { dedupe_window: Duration::MAX, ..StreamSettings::default() };
    let one = batch([plain("x")]);
    let room = caller.broker().room(&stream(), &one).await;
    let absent = Absent::Create(Arc::new(wrong));
    let refused = caller.publish_or(room, Arc::new(stream()), one, PublishOptions::default(), absent).await;
    assert!(matches!(refused, Err(PublishError::NotCreated(_))), "settings are checked: {refused:?}");
    assert!(caller.stream(stream()).await.is_err(), "and leave no stream behind");
}

#[tokio::test]
async fn messages_are_read_in_order_and_by_what_is_said_of_them() {
    let (caller, _running) =
        open_with(engine(), BrokerConfig { read_bytes_max: 64, ..BrokerConfig::new([7; 32]) }).await;
    let keyed = |n: usize| Message {
        key: Some(if n.is_multiple_of(3) { b"a" } else { b"b" }),
        ..plain("0123456789")
    };
    publish(&caller, (1..=20).map(keyed)).await.expect("there is room");
    let page = caller.read(stream(), Seq(3), 100).await.expect("it is read");
    assert_eq!(page.messages[0].seq, Seq(3));
    assert!(page.messages.len() < 10, "no more than fits: {}", page.messages.len());
    assert_eq!(page.next, page.messages.last().expect("there are some").seq.next());

    let filter = Filter { key: Some("a".to_owned()), kind: None };
    let (mut found, mut next) = (Vec::new(), Seq(1));
    while next <= Seq(20) {
        let page = caller.browse(stream(), next, 2, &filter).await.expect("it is read");
        assert!(page.messages.len() <= 2);
        found.extend(page.messages.iter().map(|message| message.seq.0));
        next = page.next;
    }
    assert_eq!(found, [3, 6, 9, 12, 15, 18]);
    let beyond = caller.read(stream(), Seq(21), 10).await.expect("it is read");
    assert!(beyond.messages.is_empty());
    assert_eq!(beyond.next, Seq(21));

    let grown = tokio::spawn({
        let caller = caller.clone();
        async move { caller.grown(stream(), Seq(20)).await }
    });
    tokio::task::yield_now().await;
    publish(&caller, [keyed(21)]).await.expect("there is room");
    assert_eq!(grown.await.expect("no panic"), Ok(Seq(21)));
}

async fn park(caller: &Caller, count: usize) {
    for (receipt, message) in receive(caller, count as u32, SOON).await {
        let reason = if message.lease.seq.0.is_multiple_of(2) { "even" } else { "odd" };
        let reason = Some(reason.to_owned());
        let parked =
            caller.settle(stream(), group(), &[receipt], Settlement { reason, ..Verb::Park.into() }).await;
        assert_eq!(parked, Ok(vec![Outcome::Parked]));
    }
}

async fn finished(caller: &Caller, job: JobId) -> crate::report::JobReport {
    loop {
        let report = caller.job(stream(), group(), job).await.expect("it is remembered");
        if report.state != JobState::Running {
            return report;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn parked_messages_are_listed_chosen_replayed_and_discarded() {
    let (caller, _running) = open().await;
    create(&caller, |_| {}).await;
    let keyed = |n: usize| Message { key: Some(if n <= 5 { b"a" } else { b"b" }), ..plain("body") };
    publish(&caller, (1..=10).map(keyed)).await.expect("there is room");
    park(&caller, 10).await;
    let list = |after, limit, reason: Option<&str>, filter: Filter| {
        let (caller, reason) = (caller.clone(), reason.map(str::to_owned));
        async move {
            let page = caller.parked(stream(), group(), after, limit, reason, &filter).await;
            let page = page.expect("it is listed");
            (page.items.iter().map(|parked| parked.seq.0).collect::<Vec<_>>(), page.next)
        }
    };
    let everything = Filter::default();
    assert_eq!(list(Seq(0), 4, None, everything.clone()).await, (vec![1, 2, 3, 4], Some(Seq(4))));
    assert_eq!(list(Seq(4), 100, None, everything.clone()).await, (vec![5, 6, 7, 8, 9, 10], None));
    assert_eq!(list(Seq(0), 100, Some("even"), everything).await.0, [2, 4, 6, 8, 10]);
    let of_b = Filter { key: Some("b".to_owned()), kind: None };
    assert_eq!(list(Seq(0), 100, Some("even"), of_b.clone()).await.0, [6, 8, 10]);
    let one = caller.parked_one(stream(), group(), Seq(7)).await.expect("it is parked");
    assert_eq!((one.parked.reason(), one.message.map(|found| found.seq)), ("odd", Some(Seq(7))));
    let reasons = caller.parked_reasons(stream(), group()).await.expect("they are counted");
    assert_eq!(reasons, [("even".into(), 5), ("odd".into(), 5)]);

    let select = Select::Filter { reason: Some("even".to_owned()), filter: of_b };
    let dry = JobTerms { dry_run: true, ..JobTerms::default() };
    let counted = caller.start_job(stream(), group(), Work::Replay, select.clone(), dry).await;
    assert_eq!(counted, Ok(crate::report::Selected { matched: 3, job: None }));
    let limited = JobTerms { limit: Some(2), ..JobTerms::default() };
    let started =
        caller.start_job(stream(), group(), Work::Replay, select, limited).await.expect("it starts");
    let report = finished(&caller, started.job.expect("a job")).await;
    assert_eq!((started.matched, report.done, report.failed), (2, 2, 0));
    assert_eq!(seqs(&receive(&caller, 10, SOON).await), [6, 8]);

    let some = Select::Seqs(vec![Seq(10), Seq(9), Seq(9), Seq(77)]);
    let discarded = caller.start_job(stream(), group(), Work::Discard, some, JobTerms::default()).await;
    assert_eq!(discarded.expect("it starts").matched, 2);
    let nothing = Select::Seqs(vec![Seq(77)]);
    let nothing = caller.start_job(stream(), group(), Work::Discard, nothing, JobTerms::default()).await;
    assert_eq!(nothing, Ok(crate::report::Selected { matched: 0, job: None }));

    let edited = batch([plain("mended")]);
    caller.resubmit(stream(), group(), Seq(1), edited.clone()).await.expect("it is published");
    let twice = caller.resubmit(stream(), group(), Seq(1), edited).await;
    assert!(matches!(twice, Err(CallError::Job(_))), "{twice:?}");
    assert_eq!(seqs(&receive(&caller, 10, SOON).await), [11]);
}

#[tokio::test]
async fn lists_of_groups_go_on_where_they_stopped() {
    let (caller, _running) = open().await;
    let name = |text: &str| StreamName::parse(text).expect("a name");
    for stream in ["a", "b", "c"] {
        for group in ["z", "x", "y"] {
            let group = GroupName::parse(group).expect("a name");
            caller.create_group(name(stream), group, |_| {}).await.expect("it is created");
        }
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = caller.groups(None, after, 2).await.expect("they are listed");
        seen.extend(page.items.iter().map(|report| format!("{}/{}", report.stream, report.name)));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen.join(" "), "a/x a/y a/z b/x b/y b/z c/x c/y c/z");
    let of_b = caller.groups(Some(name("b")), None, 10).await.expect("they are listed");
    assert_eq!(of_b.items.len(), 3);
    let streams = caller.streams(Some(name("a")), 1).await.expect("they are listed");
    assert_eq!((streams.items[0].name.as_str(), streams.next), ("b", Some(name("b"))));
}

/// Every verb of a caller, with a principal that has no rights.
#[tokio::test]
async fn one_without_rights_can_do_nothing() {
    let (owner, _running) = open().await;
    create(&owner, |_| {}).await;
    publish_some(&owner, 1).await;
    let nobody = owner.broker().enter(Principal::new("nobody", Grants::none()), None);
    let mut denied = Vec::new();
    macro_rules! refused {
        ($call:expr) => {
            match $call.await {
                Err(CallError::Denied(refusal)) => denied.push(refusal.action),
                Err(other) => panic!("{}: {other}", stringify!($call)),
                Ok(_) => panic!("{} was allowed", stringify!($call)),
            }
        };
    }
    let target = ScalingTarget { drain: SOON, min: 0, max: 1 };
    let filter = Filter::default();
    refused!(nobody.create_stream(stream(), |_| {}));
    refused!(nobody.change_stream(stream(), |_| {}));
    refused!(nobody.delete_stream(stream(), true));
    refused!(nobody.purge(stream(), Purge::default()));
    refused!(nobody.stream(stream()));
    refused!(nobody.streams(None, 1));
    refused!(nobody.grown(stream(), Seq(0)));
    refused!(nobody.read(stream(), Seq(1), 1));
    refused!(nobody.browse(stream(), Seq(1), 1, &filter));
    refused!(nobody.log_end());
    let from = forebay_core::types::Ordinal(1);
    let reader = nobody.log_reader(from, crate::reader::Direction::Forwards, LogFilter::default());
    assert!(matches!(reader, Err(CallError::Denied(_))), "a reader of all streams was allowed");
    refused!(nobody.server());
    refused!(nobody.create_group(stream(), group(), |_| {}));
    refused!(nobody.change_group(stream(), group(), |_| {}));
    refused!(nobody.delete_group(stream(), group()));
    refused!(nobody.pause(stream(), group(), true));
    refused!(nobody.reset(stream(), group(), ResetTo::End, true));
    refused!(nobody.group(stream(), group()));
    refused!(nobody.groups(None, None, 1));
    refused!(nobody.scaling(stream(), group(), target));
    refused!(nobody.subscribe(stream(), group(), "worker", 1));
    refused!(nobody.receive(stream(), group(), wish(1, SOON)));
    refused!(nobody.settle(stream(), group(), &[], Verb::Ack.into()));
    refused!(nobody.parked(stream(), group(), Seq(0), 1, None, &filter));
    refused!(nobody.parked_one(stream(), group(), Seq(1)));
    refused!(nobody.parked_reasons(stream(), group()));
    refused!(nobody.start_job(stream(), group(), Work::Discard, Select::All, JobTerms::default()));
    refused!(nobody.move_waiting(stream(), group(), None, None));
    refused!(nobody.jobs(stream(), group()));
    refused!(nobody.job(stream(), group(), JobId(1)));
    refused!(nobody.cancel_job(stream(), group(), JobId(1)));
    refused!(nobody.resubmit(stream(), group(), Seq(1), batch([plain("x")])));
    refused!(nobody.note(&stream(), Door::SQS, b"k".to_vec()));
    refused!(nobody.notes(Door::SQS, Vec::new(), None, 1));
    let beside = || Bundle::beside(stream());
    refused!(nobody.commit(beside().stream(stream(), |_| {})));
    refused!(nobody.commit(beside().group(stream(), group(), |_| {})));
    refused!(nobody.commit(beside().note(arranging::wish(b"k", Some(b"v")))));
    refused!(nobody.commit(beside().delete(stream())));
    refused!(nobody.commit(beside().settle(stream(), group(), vec!["x".to_owned()], Verb::Ack.into())));
    let sent = (Arc::new(stream()), batch([plain("x")]), PublishOptions::default());
    refused!(nobody.commit(beside().publish(sent.0, sent.1, sent.2)));
    let published = publish(&nobody, [plain("x")]).await;
    assert!(matches!(published, Err(PublishError::Denied(_))), "{published:?}");
    for action in [Right::Create, Right::Change, Right::Delete, Right::Operate, Right::Triage, Right::Consume]
    {
        assert!(denied.contains(&action), "{action}");
    }
    let report = owner.group(stream(), group()).await.expect("it is still there");
    assert_eq!((report.figures.lag, report.figures.in_flight), (1, 0));
}

#[tokio::test]
async fn what_an_operator_does_is_seen_at_once() {
    let (caller, _running) = open().await;
    create(&caller, |_| {}).await;
    publish_some(&caller, 4).await;
    caller.pause(stream(), group(), true).await.expect("it is paused");
    assert!(receive(&caller, 4, Duration::ZERO).await.is_empty());
    caller.pause(stream(), group(), false).await.expect("it goes on");
    assert_eq!(receive(&caller, 2, SOON).await.len(), 2);
    assert_eq!(caller.reset(stream(), group(), ResetTo::Seq(Seq(4)), false).await, Ok(Seq(3)));
    assert_eq!(seqs(&receive(&caller, 9, SOON).await), [4]);
    caller.change_group(stream(), group(), |settings| settings.key_batch = 7).await.expect("it is changed");
    assert_eq!(caller.group(stream(), group()).await.expect("it is there").settings.key_batch, 7);
    let wrong = caller.change_group(stream(), group(), |settings| settings.buffer = 0).await;
    assert!(matches!(wrong, Err(CallError::NotChanged(_))), "{wrong:?}");
    let other = caller.create_group(stream(), group(), |settings| settings.buffer = 9).await;
    assert_eq!(other, Err(CallError::Different));
    let late = |settings: &mut GroupSettings| settings.start = forebay_core::shard::Start::End;
    let other = caller.create_group(stream(), group(), late).await;
    assert_eq!(other, Err(CallError::Different), "it began at the beginning");
    assert_eq!(caller.purge(stream(), Purge::default()).await, Ok(1));
    let missing = StreamName::parse("missing").expect("a name");
    let absent = CallError::NoSuchStream { stream: missing.clone() };
    assert_eq!(caller.purge(missing.clone(), Purge::default()).await, Err(absent));
    let refused = caller.create_group(missing.clone(), group(), |settings| settings.window_max = 0).await;
    assert!(matches!(refused, Err(CallError::NotCreated(_))), "{refused:?}");
    assert!(caller.stream(missing).await.is_err(), "a group that cannot be leaves no stream behind");
}
