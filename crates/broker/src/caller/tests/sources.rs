//! Streams that are fed with messages of others, with a server that is killed while they are fed.

use std::collections::BTreeMap;

use forebay_core::settings::Source;
use forebay_core::types::Ordinal;
use tokio::task::JoinHandle;

use super::*;
use crate::batch::parse_content;

fn named(name: &str) -> StreamName {
    StreamName::parse(name).expect("a name")
}

fn all() -> StreamName {
    named("orders-all")
}

/// With feeders, which end with the handle.
fn feeding(caller: &Caller) -> JoinHandle<()> {
    tokio::spawn(caller.broker().clone().feed_sources())
}

async fn create_fed(caller: &Caller, name: StreamName, source: Source) {
    let change = move |settings: &mut StreamSettings| settings.source = Some(source.clone());
    caller.create_stream(name, change).await.expect("it is created");
}

async fn send(caller: &Caller, stream: &str, message: Message<'_>) {
    let stream = Arc::new(named(stream));
    let batch = batch([message]);
    let room = caller.broker().room(&stream, &batch).await;
    caller.publish(room, stream, batch, PublishOptions::default()).await.expect("there is room");
}

/// Where the messages of a fed stream come from, in its order, once it has so many.
async fn copies(caller: &Caller, of: StreamName, count: usize) -> Vec<(String, u64)> {
    let mut reader =
        caller.reader(of, Seq(1), crate::reader::Direction::Forwards).await.expect("it is there");
    let mut found = Vec::new();
    while found.len() < count {
        let most = crate::reader::Most { messages: 1_000, bytes: 1 << 20 };
        let stretches = reader.next(most).await.expect("it is read");
        if stretches.is_empty() {
            reader.grown().await.expect("the server runs");
        }
        for stretch in &stretches {
            for n in 0..stretch.len() {
                let message = parse_content(stretch.content_bytes(n)).expect("a content");
                let from = message.copied_from.expect("a copy");
                found.push((from.stream.to_owned(), from.seq.0));
            }
        }
    }
    found
}

/// Waits until the feeder has looked at all messages that are there.
async fn fed(caller: &Caller, of: &StreamName) {
    let end = caller.log_end().await.expect("it answers");
    while caller.links_fed(of).is_none() {
        tokio::task::yield_now().await;
    }
    caller.links_reach(of, end).await;
}

fn draw(state: &mut u64, n: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % n
}

#[tokio::test]
async fn each_message_is_copied_once_and_in_order_though_the_server_is_killed() {
    for seed in 0..8 {
        let mut state = seed;
        let mut engine = engine();
        let mut sent: BTreeMap<String, u64> = BTreeMap::new();
        for round in 0..12 {
            let again = engine.another();
            let (caller, running) = open_with(engine, BrokerConfig::new([1; 32])).await;
            let feeding = feeding(&caller);
            if round == 2 {
                create_fed(&caller, all(), Source::prefix("orders-")).await;
            }
            for _ in 0..draw(&mut state, 40) {
                // Streams appear one after the other.
                let stream = format!("orders-{}", draw(&mut state, round + 2));
                send(&caller, &stream, plain("x")).await;
                *sent.entry(stream).or_default() += 1;
                send(&caller, "bills-1", plain("x")).await;
            }
            for _ in 0..draw(&mut state, 60) {
                tokio::task::yield_now().await;
            }
            feeding.abort();
            running.abort();
            let _ = running.await;
            engine = again;
        }
        let (caller, _running) = open_with(engine, BrokerConfig::new([1; 32])).await;
        let _feeding = feeding(&caller);
        fed(&caller, &all()).await;
        let total: u64 = sent.values().sum();
        assert!(total > 50, "seed {seed}: there is something to lose");
        let mut seen: BTreeMap<String, u64> = BTreeMap::new();
        for (stream, seq) in copies(&caller, all(), total as usize).await {
            let last = seen.entry(stream).or_default();
            *last += 1;
            assert_eq!(*last, seq, "seed {seed}: in order, none left out, none twice");
        }
        assert_eq!(seen, sent, "seed {seed}");
        let report = caller.stream(all()).await.expect("it is there");
        assert_eq!(report.figures.last, Seq(total), "seed {seed}: and nothing else");
    }
}

#[tokio::test]
async fn messages_are_chosen_by_prefix_type_and_header_and_keep_what_they_are() {
    let (caller, _running) = open().await;
    let _feeding = feeding(&caller);
    create_fed(&caller, all(), Source::prefix("orders-").kind("Placed").header("region", "eu")).await;
    let eu = vec![("region", &b"eu"[..])];
    let placed = Message { kind: Some("Placed"), headers: eu.clone(), ..plain("x") };
    let urgent = Message { id: Some("1"), key: Some(b"k"), priority: 7, ..placed.clone() };
    send(&caller, "orders-1", urgent).await;
    send(&caller, "orders-1", Message { kind: Some("Billed"), headers: eu, ..plain("x") }).await;
    send(&caller, "orders-2", Message { kind: Some("Placed"), ..plain("x") }).await;
    send(&caller, "order-3", placed.clone()).await;
    send(&caller, "orders-2", placed).await;
    fed(&caller, &all()).await;
    let found = copies(&caller, all(), 2).await;
    assert_eq!(found, [("orders-1".to_owned(), 1), ("orders-2".to_owned(), 2)]);
    let page = caller.read(all(), Seq(1), 10).await.expect("it is read");
    assert_eq!(page.messages.len(), 2, "and nothing else");
    let message = parse_content(&page.messages[0].content).expect("a content");
    assert_eq!((message.id, message.key, message.body), (Some("1"), Some(&b"k"[..]), &b"x"[..]));
    assert_eq!(page.messages[0].extra.priority, 7);
}

#[tokio::test]
async fn copies_are_not_copied_again() {
    let (caller, _running) = open().await;
    let _feeding = feeding(&caller);
    // Each would feed the other, and itself.
    create_fed(&caller, named("a-1"), Source::prefix("")).await;
    create_fed(&caller, named("a-2"), Source::prefix("a-")).await;
    send(&caller, "a-3", plain("x")).await;
    send(&caller, "b", plain("x")).await;
    for (stream, expected) in [("a-1", &[("a-3", 1), ("b", 1)][..]), ("a-2", &[("a-3", 1)])] {
        fed(&caller, &named(stream)).await;
        let expected: Vec<_> = expected.iter().map(|(of, seq)| ((*of).to_owned(), *seq)).collect();
        assert_eq!(copies(&caller, named(stream), expected.len()).await, expected);
    }
    // The copies themselves are behind the end that the feeders have reached.
    fed(&caller, &named("a-1")).await;
    fed(&caller, &named("a-2")).await;
    assert_eq!(caller.log_end().await, Ok(Ordinal(5)), "two messages and three copies");
}

#[tokio::test]
async fn a_source_that_is_removed_and_set_again_goes_on_and_a_new_stream_begins_anew() {
    let (caller, _running) = open().await;
    let _feeding = feeding(&caller);
    create_fed(&caller, all(), Source::prefix("orders-")).await;
    send(&caller, "orders-1", plain("x")).await;
    assert_eq!(copies(&caller, all(), 1).await.len(), 1);
    caller.change_stream(all(), |settings| settings.source = None).await.expect("it may");
    while caller.links_fed(&all()).is_some() {
        tokio::task::yield_now().await;
    }
    send(&caller, "orders-1", plain("x")).await;
    let again = |settings: &mut StreamSettings| settings.source = Some(Source::prefix("orders-"));
    caller.change_stream(all(), again).await.expect("it may");
    let both = [("orders-1".to_owned(), 1), ("orders-1".to_owned(), 2)];
    assert_eq!(copies(&caller, all(), 2).await, both);

    caller.delete_stream(all(), true).await.expect("it may");
    create_fed(&caller, all(), Source::prefix("orders-")).await;
    fed(&caller, &all()).await;
    assert_eq!(copies(&caller, all(), 2).await, both, "the messages that are there come first");
    caller.delete_stream(all(), true).await.expect("it may");
    while !caller.link_streams(Door::SOURCES).await.expect("it answers").is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_stream_with_little_room_is_fed_as_room_comes() {
    let (caller, _running) = open().await;
    for _ in 0..8 {
        send(&caller, "orders-1", plain("x")).await;
    }
    let narrow = |settings: &mut StreamSettings| {
        settings.source = Some(Source::prefix("orders-"));
        settings.limits.max_messages = Some(2);
    };
    caller.create_stream(all(), narrow).await.expect("it is created");
    caller.create_group(all(), group(), |_| {}).await.expect("it is created");
    let _feeding = feeding(&caller);
    let mut seqs = Vec::new();
    while seqs.len() < 8 {
        let received = caller.receive(all(), group(), wish(1, SOON)).await.expect("it is answered").take();
        for (receipt, message) in received {
            seqs.push(parse_content(&message.content).expect("a content").copied_from.expect("a copy").seq.0);
            let settled = caller.settle(all(), group(), &[receipt], Verb::Ack.into()).await;
            assert_eq!(settled, Ok(vec![Outcome::Acked]));
        }
    }
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[tokio::test]
async fn a_source_needs_the_right_to_read_every_stream_that_it_may_name() {
    let (owner, _running) = open().await;
    let with =
        |grants: &str| owner.broker().enter(Principal::new("ci", grants.parse().expect("grants")), None);
    let fed_by = |prefix: &'static str| {
        move |settings: &mut StreamSettings| settings.source = Some(Source::prefix(prefix))
    };
    for (grants, prefix, allowed) in [
        ("configure:*,read:orders-*", "orders-", true),
        ("configure:*,read:orders-*", "orders-eu-", true),
        ("configure:*,read:orders-*", "orders", false),
        ("configure:*,read:orders-*", "", false),
        ("configure:*,read:orders-1", "orders-1", false),
        ("configure:*,read:*-eu", "orders-", false),
        ("configure:*,read:orders-*/team", "orders-", false),
        ("configure:*,consume:orders-*", "orders-", false),
        ("configure+read:*", "", true),
        ("configure:fed,admin:o*", "orders-", true),
    ] {
        let caller = with(grants);
        let created = caller.create_stream(named("fed"), fed_by(prefix)).await;
        assert_eq!(created.is_ok(), allowed, "{grants} {prefix}: {created:?}");
        if !allowed {
            assert!(matches!(created, Err(CallError::Denied(_))), "{created:?}");
            assert!(owner.stream(named("fed")).await.is_err(), "nothing was made");
            owner.create_stream(named("fed"), |_| {}).await.expect("it is created");
            let changed = caller.change_stream(named("fed"), fed_by(prefix)).await;
            assert!(matches!(changed, Err(CallError::Denied(_))), "{changed:?}");
        }
        owner.delete_stream(named("fed"), true).await.expect("it may");
    }
    // A setting that stays as it is needs no further right.
    owner.create_stream(named("fed"), fed_by("")).await.expect("it is created");
    let caller = with("configure:fed");
    caller.change_stream(named("fed"), |settings| settings.dedupe_max = 1).await.expect("it may");
}
