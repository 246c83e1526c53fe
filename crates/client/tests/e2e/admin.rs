//! Administration, against a real server.

use std::time::Duration;

use forebay_client::admin::Created;
use forebay_client::admin::groups::{GroupStatus, ScalingTarget};
use forebay_client::admin::log::{LogMessage, LogQuery};
use forebay_client::admin::parked::{Cause, JobState, ParkedFilter, Selection};
use forebay_client::admin::settings::{OnFull, Rate, Retention, Retries, Start, Strategy, StreamLimits};
use forebay_client::admin::streams::ReadQuery;
use forebay_client::consumer::Outcome;
use forebay_client::error::ProblemKind;
use forebay_client::{Advice, Client, GroupSettings, Message, StoredMessage, StreamSettings};

use crate::rig::{Server, bodies, drain};

fn limits(settings: &StreamSettings) -> (Option<u64>, Option<OnFull>) {
    let limits = settings.limits.clone().expect("a report has limits");
    (limits.max_messages.flatten(), limits.on_full)
}

#[tokio::test]
async fn a_stream_is_created_seen_changed_and_deleted() {
    let server = Server::start().await;
    let client = server.client().await;
    let settings = StreamSettings::new()
        .retention(Retention::Log { max_age: None, max_bytes: None, max_messages: Some(1_000) })
        .limits(StreamLimits::new().max_messages(500).on_full(OnFull::DropOldest))
        .ingress_rate(Rate::per_second(1_000.0).burst(100));
    assert_eq!(client.create_stream("s", settings.clone()).await.expect("it is created"), Created::New);
    let again = client.create_stream("s", settings.clone()).await.expect("it agrees");
    assert_eq!(again, Created::AlreadyThere);
    let differs = client
        .create_stream("s", StreamSettings::new().limits(StreamLimits::new().max_messages(7)))
        .await
        .expect_err("it differs");
    assert!(differs.is(ProblemKind::SettingsDiffer), "{differs:?}");
    assert_eq!(differs.advice(), Advice::FixRequest);

    client.publish_batch("s", ["a", "b", "c"].map(Message::new)).await.expect("they are stored");
    let report = client.stream("s").await.expect("it exists");
    assert_eq!((report.first_seq, report.last_seq, report.messages), (1, 3, 3));
    assert_eq!(limits(&report.settings), (Some(500), Some(OnFull::DropOldest)));
    assert_eq!(report.settings.retention, settings.retention);

    let changed = StreamSettings::new().dedupe_window(Duration::from_secs(5));
    client.update_stream("s", changed, &["ingress_rate"]).await.expect("it is changed");
    let report = client.stream("s").await.expect("it exists");
    assert_eq!(report.settings.dedupe_window, Some(Duration::from_secs(5)));
    assert_eq!((report.settings.ingress_rate, limits(&report.settings).0), (None, Some(500)));

    client.create_stream("t", StreamSettings::new()).await.expect("it is created");
    let page = client.streams_after(None).await.expect("they are listed");
    assert_eq!(page.items.iter().map(|report| &*report.stream).collect::<Vec<_>>(), ["s", "t"]);
    assert!(page.next.is_none());
    assert_eq!(client.streams_after(Some("s")).await.expect("they are listed").items.len(), 1);
    let mut streams = client.streams();
    let first = streams.next().await.expect("there is one").expect("it is listed");
    let second = streams.next().await.expect("there is another").expect("it is listed");
    assert_eq!((&*first.stream, &*second.stream), ("s", "t"));
    assert!(streams.next().await.is_none());
    for (newest_first, expected) in [(false, [1, 2, 3]), (true, [3, 2, 1])] {
        // A message on each page.
        let query = ReadQuery { limit: 1, newest_first, ..ReadQuery::default() };
        let mut messages = client.messages("s", query);
        let mut seqs = Vec::new();
        while let Some(message) = messages.next().await {
            seqs.push(message.expect("it is read").seq());
        }
        assert_eq!(seqs, expected);
    }

    let query = ReadQuery { from: 2, limit: 1, ..ReadQuery::default() };
    let page = client.read_messages("s", query).await.expect("it is read");
    assert_eq!((page.messages[0].seq(), &page.messages[0].body()[..]), (2, &b"b"[..]));
    assert_eq!((page.next, page.last_seq), (3, 3));

    client.delete_stream("s", false).await.expect("it is deleted");
    assert!(client.stream("s").await.expect_err("it is gone").is(ProblemKind::NoSuchStream));
}

#[tokio::test]
async fn a_group_is_created_seen_changed_and_deleted() {
    let server = Server::start().await;
    let client = server.client().await;
    client.publish_batch("s", ["a", "b", "c"].map(Message::new)).await.expect("they are stored");
    let settings =
        GroupSettings::new().start(Start::seq(2)).strategy(Strategy::Single).max_retries(Retries::Unlimited);
    assert_eq!(client.create_group("s", "g", settings).await.expect("it is created"), Created::New);
    let report = client.group("s", "g").await.expect("it exists");
    assert_eq!((report.lag, report.status, report.last_known_seq), (2, GroupStatus::Idle, 3));
    assert_eq!(report.settings.strategy, Some(Strategy::Single));
    assert_eq!(report.settings.max_retries, Some(Retries::Unlimited));

    let faster = GroupSettings::new().max_in_flight(50).message_timeout(Duration::from_secs(5));
    client.update_group("s", "g", faster, &["max_retries"]).await.expect("it is changed");
    let report = client.group("s", "g").await.expect("it exists");
    assert_eq!(report.settings.max_in_flight, Some(50));
    assert_eq!(report.settings.max_retries, Some(Retries::AtMost(10)));
    let moved = client.update_group("s", "g", GroupSettings::new().start(Start::End), &[]).await;
    assert!(moved.expect_err("only a new group begins").is(ProblemKind::InvalidField));

    client.pause_group("s", "g").await.expect("it pauses");
    assert_eq!(client.group("s", "g").await.expect("it exists").status, GroupStatus::Paused);
    client.resume_group("s", "g").await.expect("it goes on");
    drain(&client, "s", "g", 2).await;
    assert_eq!(client.group("s", "g").await.expect("it exists").counters.acked, 2);
    assert_eq!(client.reset_group("s", "g", Start::Beginning, false).await.expect("it is reset"), 0);
    let scaling = client.scaling("s", "g", ScalingTarget { min: 2, ..ScalingTarget::default() }).await;
    let scaling = scaling.expect("it is told");
    assert_eq!(scaling.backlog, 3);
    assert!(scaling.desired_consumers >= 2, "{scaling:?}");

    client.create_group("s", "h", GroupSettings::new()).await.expect("it is created");
    let page = client.groups_after(Some("s"), None).await.expect("they are listed");
    assert_eq!(page.items.iter().map(|report| &*report.group).collect::<Vec<_>>(), ["g", "h"]);
    let page = client.groups_after(None, Some(("s", "g"))).await.expect("they are listed");
    assert_eq!(page.items.len(), 1);
    assert_eq!(client.purge_stream("s", false).await.expect("it is purged"), 3);
    client.delete_group("s", "g").await.expect("it is deleted");
    assert!(client.group("s", "g").await.expect_err("it is gone").is(ProblemKind::NoSuchGroup));
}

/// Parks the next messages, for these reasons.
async fn park(client: &Client, reasons: &[&str]) {
    let mut consumer = client.consumer("s", "g").name("worker").credit(1).open().await.expect("it is there");
    for reason in reasons {
        let delivery = consumer.next().await.expect("the call goes on").expect("the call goes on");
        assert_eq!(delivery.park(*reason).await.expect("an answer"), Outcome::Parked);
    }
    consumer.close().await.expect("it leaves well");
}

#[tokio::test]
async fn parked_messages_are_seen_brought_back_and_let_go() {
    let server = Server::start().await;
    let client = server.client().await;
    client.create_group("s", "g", GroupSettings::new()).await.expect("it is created");
    let messages = ["a", "b", "c", "d"].map(|body| Message::new(body).key(format!("key {body}")));
    client.publish_batch("s", messages).await.expect("they are stored");
    park(&client, &["broken", "odd", "broken", "broken"]).await;

    let page = client.parked_after("s", "g", 0, ParkedFilter::default()).await.expect("they are listed");
    assert_eq!(page.items.iter().map(|parked| parked.seq).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let odd = ParkedFilter { reason: Some("odd".into()), ..ParkedFilter::default() };
    let page = client.parked_after("s", "g", 0, odd.clone()).await.expect("they are listed");
    let parked = &page.items[0];
    let message = parked.message.as_ref().expect("it can be read");
    assert_eq!((parked.seq, &*parked.reason, message.key()), (2, "odd", Some("key b")));
    assert_eq!((parked.consumer.as_deref(), parked.attempts), (Some("worker"), 1));
    assert_eq!(parked.history[0].cause, Cause::Nack);
    assert_eq!(client.parked("s", "g", 3).await.expect("it is parked").reason, "broken");
    let reasons = client.parked_reasons("s", "g").await.expect("they are counted");
    assert_eq!(reasons, [("broken".to_owned(), 3), ("odd".to_owned(), 1)]);

    let would = client.replay_parked("s", "g", Selection::all().dry_run()).await.expect("it is told");
    assert_eq!((would.matched, would.job), (4, None));
    let started = client.replay_parked("s", "g", Selection::matching(odd)).await.expect("it is started");
    assert_eq!(started.matched, 1);
    drain(&client, "s", "g", 1).await;
    let job = started.job.expect("there was something to do");
    let job = client.parked_job("s", "g", job).await.expect("it is known");
    assert_eq!((job.state, job.done, job.failed), (JobState::Done, 1, 0));

    let edited =
        client.resubmit_parked("s", "g", 1, Message::new("a, mended")).await.expect("it is published");
    assert_eq!(edited, 5);
    let slow = Selection::seqs([3, 4]).rate(Rate::per_second(0.001));
    let started = client.discard_parked("s", "g", slow).await.expect("it is started");
    let job = started.job.expect("there is something to do");
    client.cancel_parked_job("s", "g", job).await.expect("it is cancelled");
    let job = client.parked_job("s", "g", job).await.expect("it is known");
    assert_eq!((started.matched, job.state), (2, JobState::Cancelled));
    assert!(client.parked_jobs("s", "g").await.expect("they are listed").contains(&job));
    client.create_stream("other", StreamSettings::default()).await.expect("it is created");
    let nowhere =
        client.move_parked("s", "g", Selection::all(), "nowhere").await.expect_err("no such stream");
    assert!(nowhere.is(ProblemKind::NoSuchStream), "{nowhere:?}");
    let moved = client.move_parked("s", "g", Selection::seqs([3]), "other").await.expect("it is started");
    assert_eq!(moved.matched, 1);
    let job = moved.job.expect("there is something to do");
    while client.parked_job("s", "g", job).await.expect("it is known").state == JobState::Running {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(bodies(&client, "other").await.len(), 1);
    client.discard_parked("s", "g", Selection::all()).await.expect("it is started");
    let nothing = client.replay_parked("s", "g", Selection::seqs([])).await.expect_err("nothing is selected");
    assert!(nothing.is(ProblemKind::EmptySelection), "{nothing:?}");
    assert_eq!(bodies(&client, "s").await.last().map(String::as_str), Some("a, mended"));
}

#[tokio::test]
async fn the_messages_of_all_streams_are_read_and_followed_in_their_order() {
    let server = Server::start().await;
    let client = server.client().await;
    for (stream, body) in [("orders-eu", "a"), ("mail", "b"), ("orders-us", "c"), ("orders-eu", "d")] {
        client.publish(stream, Message::new(body)).await.expect("it is stored");
    }
    let shown = |messages: &[LogMessage]| -> Vec<(String, u64, String)> {
        let body = |message: &StoredMessage| String::from_utf8_lossy(message.body()).into_owned();
        messages.iter().map(|of| (of.stream.clone(), of.message.seq(), body(&of.message))).collect()
    };
    let of = |stream: &str, seq, body: &str| (stream.to_owned(), seq, body.to_owned());
    let orders = LogQuery { stream_prefix: "orders-".into(), ..LogQuery::default() };
    let page = client.read_log(orders.clone()).await.expect("it is read");
    assert_eq!(
        shown(&page.messages),
        [of("orders-eu", 1, "a"), of("orders-us", 1, "c"), of("orders-eu", 2, "d")]
    );
    assert_eq!((page.next, page.last_log_position), (5, 4));
    let newest = LogQuery { newest_first: true, limit: 2, ..LogQuery::default() };
    let page = client.read_log(newest.clone()).await.expect("it is read");
    assert_eq!(shown(&page.messages), [of("orders-eu", 2, "d"), of("orders-us", 1, "c")]);
    let page = client.read_log(LogQuery { from: page.next, ..newest }).await.expect("it is read");
    assert_eq!((shown(&page.messages), page.next), (vec![of("mail", 1, "b"), of("orders-eu", 1, "a")], 0));

    let mut follower = client.follow_log(LogQuery { from: 2, ..orders.clone() }).await.expect("it follows");
    let mut latest = client.follow_log_from_end(orders).await.expect("it follows");
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.extend(shown(&follower.next().await.expect("it goes on").expect("some messages")));
    }
    assert_eq!((seen, follower.position()), (vec![of("orders-us", 1, "c"), of("orders-eu", 2, "d")], 5));
    client.publish("other", Message::new("e")).await.expect("it is stored");
    client.publish("orders-new", Message::new("f")).await.expect("it is stored");
    for follower in [&mut follower, &mut latest] {
        let seen = follower.next().await.expect("it goes on").expect("some messages");
        assert_eq!((shown(&seen), follower.position()), (vec![of("orders-new", 1, "f")], 7));
    }
}
