//! Every way to answer, and every way to say when a message goes and to whom.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_wire::v1;
use forebay_wire::v1::group_settings::{Acks, Strategy};
use forebay_wire::v1::outcome_run::Outcome;
use forebay_wire::v1::problem::Code;
use forebay_wire::v1::settlement::Action;

use crate::grpc::rig::{Server, Session, publish, publish_one, send};
use crate::rig::Folder;

fn message(body: &str) -> v1::Message {
    v1::Message { body: body.to_owned().into(), ..v1::Message::default() }
}

fn keyed(key: &str) -> v1::Message {
    v1::Message { key: key.to_owned(), ..message(key) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_parked_skipped_or_given_more_time() {
    let folder = Folder::new("verbs");
    let server = Server::start(&folder).await;
    server.create_group_with_timeout("work", "team", 800).await.expect("a new group");
    publish(&server, "work", ["a", "b", "c", "d", "e"], 5).await;
    let mut consumer = Session::open(&server, "work", "team", 5).await;
    let got = consumer.receive(5).await;
    assert_eq!(consumer.settle_one(&got, 3, Action::Extend, Some(60_000)).await, Outcome::Extended);
    assert_eq!(consumer.settle_one(&got, 1, Action::Park, None).await, Outcome::Parked);
    assert_eq!(consumer.settle_one(&got, 2, Action::Skip, None).await, Outcome::Skipped);
    assert_eq!(consumer.settle_one(&got, 4, Action::Auto, Some(10)).await, Outcome::Retrying);
    let retried = consumer.receive(1).await;
    assert_eq!((retried.seqs(), retried.attempts()), (vec![4], vec![2]));
    assert_eq!(consumer.ack(&retried, 4..=4).await, [(Outcome::Acked, 1)]);
    let figures = server.figures("work", "team").await.expect("the group is there");
    assert_eq!((figures.parked, figures.in_flight, figures.lag), (1, 2, 2));
    let counters = figures.counters.expect("counters are there");
    assert_eq!((counters.parked, counters.skipped, counters.retried, counters.acked), (1, 1, 1, 1));
    assert_eq!(figures.status(), v1::get_group_reply::Status::Live);
    assert!(figures.oldest_age_ms.is_some());

    // The one that was given more time is still held when the other has lapsed.
    let lapsed = consumer.receive(1).await;
    assert_eq!((lapsed.seqs(), lapsed.attempts()), (vec![5], vec![2]));
    assert_eq!(consumer.ack(&lapsed, 5..=5).await, [(Outcome::Acked, 1)]);
    assert_eq!(consumer.ack(&got, 3..=3).await, [(Outcome::Acked, 1)]);
    tokio::time::sleep(Duration::from_millis(250)).await;
    server.kill();

    let server = Server::start(&folder).await;
    let figures = server.figures("work", "team").await.expect("the group is there");
    assert_eq!((figures.parked, figures.lag, figures.checkpoint_seq), (1, 0, 5));
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_cannot_be_changes_nothing() {
    let server = Server::start_in_memory().await;
    server.create_group("work", "team").await;
    publish(&server, "work", ["a"], 1).await;
    let mut consumer = Session::open(&server, "work", "team", 5).await;
    let got = consumer.receive(1).await;
    let problem = consumer.refused(&got, 1, 99, None).await;
    assert!(problem.detail.ends_with("value=`99`"), "{}", problem.detail);
    let problem = consumer.refused(&got, 1, Action::Extend.into(), None).await;
    assert!(problem.detail.contains("delay_ms"), "{}", problem.detail);
    let figures = server.figures("work", "team").await.expect("the group is there");
    assert_eq!(figures.in_flight, 1, "an unknown action is no ack");
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_message_does_not_go_before_its_time_and_one_that_expired_never() {
    let folder = Folder::new("delay");
    let server = Server::start(&folder).await;
    server.create_group("work", "team").await;
    let begun = Instant::now();
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let messages = vec![
        v1::Message { delay_ms: 600, ..message("later") },
        v1::Message { deliver_at_us: unix.as_micros() as u64 + 1_200_000, ..message("last") },
        message("now"),
        v1::Message { ttl_ms: 800, delay_ms: 700, ..message("never") },
    ];
    publish_one(&server, "work", messages).await;
    // Both of its credits are in use while the third message is due.
    let mut consumer = Session::open(&server, "work", "team", 2).await;
    let first = consumer.receive(1).await;
    assert_eq!(first.messages[0].body, "now");
    let later = consumer.receive(1).await;
    assert_eq!(later.messages[0].body, "later");
    assert!(begun.elapsed() >= Duration::from_millis(600), "{:?}", begun.elapsed());
    tokio::time::sleep_until((begun + Duration::from_millis(1_000)).into()).await;
    consumer.ack(&first, 3..=3).await;
    consumer.ack(&later, 1..=1).await;
    assert_eq!(consumer.receive(1).await.messages[0].body, "last");
    assert!(begun.elapsed() >= Duration::from_millis(1_150), "{:?}", begun.elapsed());
    assert!(consumer.nothing_comes().await);
    let counters = server.figures("work", "team").await.expect("the group is there").counters;
    assert_eq!(counters.map(|counters| counters.expired), Some(1));
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_higher_priority_goes_first() {
    let server = Server::start_in_memory().await;
    server.create_group("work", "team").await;
    let of = |priority| v1::Message { priority, ..message("x") };
    publish_one(&server, "work", vec![of(0), of(5), of(9), of(0), of(9)]).await;
    let mut consumer = Session::open(&server, "work", "team", 5).await;
    let got = consumer.receive(5).await;
    assert_eq!(got.seqs(), [3, 5, 2, 1, 4]);
    assert_eq!(got.raw.iter().map(|message| message.priority).collect::<Vec<_>>(), [9, 9, 5, 0, 0]);
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_that_cannot_be_says_why_and_what_to_do() {
    let server = Server::start_in_memory().await;
    let limits = v1::StreamLimits { max_messages: Some(2), ..Default::default() };
    let settings = v1::StreamSettings { limits: Some(limits), ..Default::default() };
    let request = v1::CreateStreamRequest { stream: "small".to_owned(), settings: Some(settings) };
    server.client().create_stream(request).await.expect("a new stream");
    let rate = v1::Rate { per_second: 0.001, burst: 1 };
    let settings = v1::StreamSettings { ingress_rate: Some(rate), ..Default::default() };
    let request = v1::CreateStreamRequest { stream: "slow".to_owned(), settings: Some(settings) };
    server.client().create_stream(request).await.expect("a new stream");

    let request = |stream: &str| v1::PublishRequest {
        stream: stream.to_owned(),
        messages: vec![message("x")],
        ..Default::default()
    };
    let by = |epoch, counter| v1::PublishRequest {
        producer: Some(v1::Producer { id: 7, epoch, counter }),
        ..request("numbered")
    };
    let expecting = |seq| v1::PublishRequest { expect_last_seq: Some(seq), ..request("checked") };
    let mut requests = vec![request("small"), request("small"), request("small")];
    requests.extend([request("slow"), request("slow")]);
    requests.extend([expecting(0), expecting(0), expecting(1)]);
    requests.extend([by(1, 0), by(1, 0), by(1, 5), by(2, 0), by(1, 1)]);
    let confirmations = send(&server, requests).await;
    let problems: Vec<_> = confirmations
        .iter()
        .map(|confirmation| confirmation.problem.as_ref().map(|problem| (problem.code(), problem.retry())))
        .collect();
    use v1::Retry::{Later, Never};
    assert_eq!(problems[..3], [None, None, Some((Code::StreamFull, Later))]);
    assert_eq!(problems[3..5], [None, Some((Code::TooFast, Later))], "a new rate begins with its burst");
    assert_eq!(problems[5..8], [None, Some((Code::WrongLastSeq, Never)), None]);
    assert_eq!(problems[8..11], [None, None, Some((Code::ProducerGap, Never))]);
    assert_eq!(problems[11..], [None, Some((Code::ProducerFenced, Never))]);
    assert_eq!(confirmations[9].duplicates, [v1::Duplicate { index: 0, seq: 1 }], "a batch that came again");
    let problem = |n: usize| confirmations[n].problem.clone().unwrap_or_default();
    assert_eq!(problem(6).last_seq, Some(1));
    assert!(problem(4).retry_after_ms.is_some_and(|millis| millis > 1_000));

    let wrong = v1::GroupSettings { window_max: Some(0), ..Default::default() };
    let refused = server.create_group_as("small", "team", wrong).await.expect_err("no room for anything");
    assert_eq!(
        (refused.code(), refused.message()),
        (tonic::Code::InvalidArgument, "window_max must be at least 1. value=`0`")
    );
    server.stop();
}

/// What two consumers saw.
#[derive(Default)]
struct Seen {
    /// Deliveries of each key by the present server, in order.
    deliveries: BTreeMap<String, Vec<u64>>,
    /// Everything that came, from any server.
    all: BTreeSet<u64>,
    in_hand: BTreeMap<String, u64>,
    acked: BTreeSet<u64>,
}

impl Seen {
    fn came(&mut self, seq: u64, key: &str) {
        assert!(!self.acked.contains(&seq), "{seq} was acked durably and came again");
        let other = self.in_hand.insert(key.to_owned(), seq);
        assert_eq!(other, None, "{seq} came while another of its key was in hand");
        self.deliveries.entry(key.to_owned()).or_default().push(seq);
    }
}

/// Two consumers work until `enough` acks are answered, or until all is done, and then the server is killed.
async fn work_and_kill(server: Server, seen: &Arc<Mutex<Seen>>, enough: Option<usize>) {
    let mut workers = Vec::new();
    for _ in 0..2 {
        let session = Session::open(&server, "work", "team", 4).await;
        let (one, two, three) = (seen.clone(), seen.clone(), seen.clone());
        workers.push(tokio::spawn(session.work(
            move |message, raw| one.lock().expect("no panic").came(message.seq, &raw.key),
            move |raw| {
                two.lock().expect("no panic").in_hand.remove(&raw.key);
            },
            move |seq| {
                three.lock().expect("no panic").acked.insert(seq);
            },
        )));
    }
    let begun = Instant::now();
    loop {
        let is_enough = match enough {
            Some(enough) => seen.lock().expect("no panic").acked.len() >= enough,
            // Acks that were durable when the server was killed are not all answered.
            None => server.figures("work", "team").await.expect("the group is there").lag == 0,
        };
        if is_enough {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "the work stands still");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.kill();
    for worker in workers {
        worker.await.expect("the consumers saw what they should");
    }
    let mut seen = seen.lock().expect("no panic");
    seen.in_hand.clear();
    for (key, seqs) in std::mem::take(&mut seen.deliveries) {
        // A restarted server repeats messages whose settlement was not durable, in the same order.
        assert!(seqs.is_sorted_by(|a, b| a < b), "{key}: {seqs:?}");
        seen.all.extend(seqs);
    }
}

fn five_keys(seq: u64) -> String {
    format!("key-{}", seq % 5)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordered_group_keeps_the_order_of_each_key_whatever_happens_to_the_server() {
    const MESSAGES: u64 = 400;
    let folder = Folder::new("ordered");
    let server = Server::start(&folder).await;
    let settings = v1::GroupSettings {
        strategy: Strategy::Ordered.into(),
        acks: Acks::Durable.into(),
        ..Default::default()
    };
    server.create_group_as("work", "team", settings).await.expect("a new group");
    let messages = (1..=MESSAGES).map(|seq| keyed(&five_keys(seq))).collect();
    publish_one(&server, "work", messages).await;
    let seen = Arc::new(Mutex::new(Seen::default()));
    work_and_kill(server, &seen, Some(150)).await;
    let server = Server::start(&folder).await;
    work_and_kill(server, &seen, None).await;
    assert_eq!(seen.lock().expect("no panic").all.len() as u64, MESSAGES, "every message was handed out");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_was_acked_durably_comes_back_after_a_kill() {
    const ROUNDS: u64 = 5;
    const EACH: u64 = 100;
    let folder = Folder::new("durable");
    let mut server = Server::start(&folder).await;
    let settings = v1::GroupSettings { acks: Acks::Durable.into(), ..Default::default() };
    server.create_group_as("work", "team", settings).await.expect("a new group");
    let seen = Arc::new(Mutex::new(Seen::default()));
    for round in 0..ROUNDS {
        let seqs = round * EACH + 1..=(round + 1) * EACH;
        publish_one(&server, "work", seqs.map(|seq| keyed(&seq.to_string())).collect()).await;
        // Killed somewhere in the middle of the round's work.
        let enough = seen.lock().expect("no panic").acked.len() + 10 + 17 * round as usize;
        work_and_kill(server, &seen, Some(enough)).await;
        server = Server::start(&folder).await;
    }
    work_and_kill(server, &seen, None).await;
}
