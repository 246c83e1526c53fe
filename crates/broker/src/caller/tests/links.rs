//! Link streams, with a server that is killed while they are fed.

use forebay_core::types::Ordinal;

use super::*;
use crate::batch::parse_content;
use crate::reader::{Direction, Most};

fn links() -> StreamName {
    StreamName::of_system("$links").expect("a name")
}

fn feed(filter: LogFilter) -> LinkFeed {
    let write = |of: &LogMessage, builder: &mut BatchBuilder| {
        let body = format!("{}@{}", of.message.seq, of.stream);
        builder.push(&plain(&body));
    };
    LinkFeed { filter, write: Arc::new(write) }
}

fn of_category(category: &str) -> LogFilter {
    LogFilter { streams: Choice::Category(category.to_owned()), ..LogFilter::default() }
}

async fn make(caller: &Caller, seen: Ordinal) {
    let log = |settings: &mut StreamSettings| {
        settings.retention = Retention::Log { max_age: None, max_bytes: None, max_messages: None };
    };
    let bundle =
        Bundle::beside(links()).stream(links(), log).links(Door::TEST, &links(), seen, b"terms", None);
    caller.commit(bundle).await.expect("it is made");
}

async fn publish_to(caller: &Caller, stream: &str, kind: Option<&str>) -> Result<Published, PublishError> {
    let stream = Arc::new(StreamName::parse(stream).expect("a name"));
    let batch = batch([Message { kind, ..plain("x") }]);
    let room = caller.broker().room(&stream, &batch).await;
    caller.publish(room, stream, batch, PublishOptions::default()).await.map(Durable::get)
}

/// The links that should be there, in the order of the log.
async fn expected(caller: &Caller, filter: LogFilter) -> Vec<String> {
    let mut reader = caller.log_reader(Ordinal(0), Direction::Forwards, filter).expect("it may read");
    let mut all = Vec::new();
    loop {
        let page = reader.next(Most { messages: 100, bytes: 1 << 20 }).await.expect("it is read");
        all.extend(page.messages.iter().map(|of| format!("{}@{}", of.message.seq, of.stream)));
        if page.is_end {
            return all;
        }
    }
}

async fn linked(caller: &Caller) -> Vec<String> {
    let end = caller.log_end().await.expect("it answers");
    caller.links_reach(&links(), end).await;
    let mut all = Vec::new();
    loop {
        let next = Seq(all.len() as u64 + 1);
        let page = caller.read(links(), next, 1_000).await.expect("it is read");
        if page.messages.is_empty() {
            return all;
        }
        all.extend(page.messages.iter().map(|found| {
            let message = parse_content(&found.content).expect("a content");
            String::from_utf8(message.body.to_vec()).expect("a text")
        }));
    }
}

/// A number below `n` that follows from the ones before.
fn draw(state: &mut u64, n: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % n
}

#[tokio::test]
async fn links_are_the_filtered_log_each_once_and_in_order_though_the_server_is_killed() {
    for seed in 0..8 {
        let mut state = seed;
        let mut engine = engine();
        let mut is_made = false;
        for _ in 0..12 {
            let again = engine.another();
            let (caller, running) = open_with(engine, BrokerConfig::new([1; 32])).await;
            if !is_made && draw(&mut state, 2) == 0 {
                make(&caller, Ordinal(0)).await;
                is_made = true;
            }
            caller.feed_links(Door::TEST, links(), feed(of_category("order"))).expect("it may");
            for _ in 0..draw(&mut state, 40) {
                let stream = ["order-1", "order-2", "bill-1", "order"][draw(&mut state, 4) as usize];
                let kind = [None, Some("Placed")][draw(&mut state, 2) as usize];
                publish_to(&caller, stream, kind).await.expect("there is room");
            }
            // The feeder is anywhere when the server ends: reading, before, within or after a commit.
            for _ in 0..draw(&mut state, 60) {
                tokio::task::yield_now().await;
            }
            running.abort();
            let _ = running.await;
            engine = again;
        }
        let (caller, _running) = open_with(engine, BrokerConfig::new([1; 32])).await;
        if !is_made {
            make(&caller, Ordinal(0)).await;
        }
        caller.feed_links(Door::TEST, links(), feed(of_category("order"))).expect("it may");
        let found = linked(&caller).await;
        assert!(found.len() > 20, "seed {seed}: there is something to lose");
        assert_eq!(found, expected(&caller, of_category("order")).await, "seed {seed}");
    }
}

#[tokio::test]
async fn messages_are_chosen_by_prefix_type_or_category() {
    for (filter, count) in [
        (LogFilter { streams: Choice::prefix("order-"), ..LogFilter::default() }, 3),
        (of_category("order"), 3),
        (of_category("orders"), 0),
        (
            LogFilter {
                streams: Choice::prefix("o"),
                kinds: Choice::Prefixes(vec!["Pl".to_owned()]),
                ..LogFilter::default()
            },
            2,
        ),
    ] {
        let (caller, _running) = open().await;
        for (stream, kind) in
            [("order-1", "Placed"), ("order-1", "Billed"), ("order-2-3", "Placed"), ("bill-1", "Placed")]
        {
            publish_to(&caller, stream, Some(kind)).await.expect("there is room");
        }
        make(&caller, Ordinal(0)).await;
        caller.feed_links(Door::TEST, links(), feed(filter.clone())).expect("it may");
        let found = linked(&caller).await;
        assert_eq!((found.len(), &found), (count, &expected(&caller, filter).await));
    }
}

#[tokio::test]
async fn a_link_stream_begins_after_the_place_that_it_was_made_with() {
    let (caller, _running) = open().await;
    for _ in 0..3 {
        publish_to(&caller, "order-1", None).await.expect("there is room");
    }
    make(&caller, Ordinal(2)).await;
    let made = caller.link_stream(Door::TEST, &links()).await.expect("it answers").expect("it is there");
    assert_eq!((&made.stream, made.place, &made.terms[..]), (&links(), Ordinal(2), &b"terms"[..]));
    assert_eq!(caller.link_streams(Door::TEST).await, Ok(vec![made.clone()]));
    let again = Bundle::beside(links()).links(Door::TEST, &links(), Ordinal(0), b"", None);
    let mismatch = caller.commit(again).await;
    assert!(matches!(mismatch, Err(CallError::Note(_))), "another caller has made it: {mismatch:?}");
    assert_eq!(caller.link_streams(Door::KURRENT).await, Ok(Vec::new()), "another door has none");
    caller.feed_links(Door::TEST, links(), feed(of_category("order"))).expect("it may");
    assert_eq!(linked(&caller).await, ["3@order-1"]);
    let now = caller.link_stream(Door::TEST, &links()).await.expect("it answers").expect("it is there");
    assert_eq!((now.place >= Ordinal(3), &now.terms), (true, &made.terms));
    let late = Bundle::beside(links()).links(Door::TEST, &links(), Ordinal(0), b"", Some(&made));
    assert!(caller.commit(late).await.is_err(), "it was fed meanwhile");

    caller.stop_links(&links()).await.expect("it may");
    publish_to(&caller, "order-1", None).await.expect("there is room");
    assert_eq!(caller.links_fed(&links()), None);
    assert_eq!(linked(&caller).await, ["3@order-1"], "nothing comes after the end of its feeder");
    caller.feed_links(Door::TEST, links(), feed(of_category("order"))).expect("it may");
    assert_eq!(linked(&caller).await, ["3@order-1", "4@order-1"]);
}

#[tokio::test]
async fn a_link_stream_that_is_deleted_is_not_made_again() {
    let (caller, _running) = open().await;
    make(&caller, Ordinal(0)).await;
    caller.feed_links(Door::TEST, links(), feed(of_category("order"))).expect("it may");
    publish_to(&caller, "order-1", None).await.expect("there is room");
    assert_eq!(linked(&caller).await, ["1@order-1"]);
    caller.delete_stream(links(), true).await.expect("it may");
    publish_to(&caller, "order-1", None).await.expect("there is room");
    // Resolves when the feeder has ended.
    caller.links_reach(&links(), Ordinal(u64::MAX)).await;
    assert_eq!(caller.link_streams(Door::TEST).await, Ok(Vec::new()));
    let missing = CallError::NoSuchStream { stream: links() };
    assert_eq!(caller.stream(links()).await.map(|_| ()), Err(missing));
}

#[tokio::test]
async fn the_log_does_not_grow_while_nothing_is_published() {
    let (caller, _running) = open().await;
    make(&caller, Ordinal(0)).await;
    caller.feed_links(Door::TEST, links(), feed(of_category("order"))).expect("it may");
    publish_to(&caller, "order-1", None).await.expect("there is room");
    publish_to(&caller, "bill-1", None).await.expect("there is room");
    assert_eq!(linked(&caller).await.len(), 1);
    let version = |note: Option<forebay_core::notes::Note>| note.map(|note| note.version);
    let key = [&[255], links().as_str().as_bytes()].concat();
    let first = version(caller.note(&links(), Door::LINKS, key.clone()).await.expect("it answers"));
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
    let end = caller.log_end().await.expect("it answers");
    assert_eq!(end, Ordinal(3), "two messages and a link");
    caller.links_reach(&links(), end).await;
    assert_eq!(version(caller.note(&links(), Door::LINKS, key).await.expect("it answers")), first);
}
