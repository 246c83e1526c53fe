//! Readers, on an engine in memory.

use forebay_core::types::Ordinal;

use super::*;
use crate::driver::DriverConfig;
use crate::reader::{Direction, Most, Stretch};

const ALL: Most = Most { messages: u64::MAX, bytes: usize::MAX };

fn named(name: &str) -> StreamName {
    StreamName::parse(name).expect("a name")
}

async fn publish_to(caller: &Caller, stream: &StreamName, bodies: impl IntoIterator<Item = String>) {
    let bodies: Vec<String> = bodies.into_iter().collect();
    let batch = batch(bodies.iter().map(|body| plain(body)));
    let room = caller.broker().room(stream, &batch).await;
    let done = caller.publish(room, Arc::new(stream.clone()), batch, PublishOptions::default()).await;
    done.expect("there is room");
}

fn shown(stretches: &[Stretch]) -> Vec<u64> {
    stretches.iter().flat_map(|stretch| stretch.seqs().seqs()).map(|seq| seq.0).collect()
}

/// A broker that keeps next to nothing in memory, so that messages are read back.
async fn open_forgetful(reply_bytes: usize) -> (Caller, Running) {
    let driver = DriverConfig { window_bytes_max: 1, read_bytes_max: 4_000, ..DriverConfig::default() };
    let config = BrokerConfig { driver, reply_bytes, ..BrokerConfig::new([7; 32]) };
    open_with(engine(), config).await
}

/// Reads to the end, in pages.
async fn read_all(reader: &mut Reader, most: Most) -> Vec<u64> {
    let mut seqs = Vec::new();
    loop {
        let page = reader.next(most).await.expect("the stream is there");
        if page.is_empty() {
            return seqs;
        }
        assert!(page.iter().map(Stretch::len).sum::<usize>() as u64 <= most.messages);
        let bytes: usize = page.iter().map(Stretch::bytes).sum();
        assert!(bytes <= most.bytes || shown(&page).len() == 1, "{bytes} bytes");
        for stretch in &page {
            let mut of: Vec<u64> = stretch.seqs().seqs().map(|seq| seq.0).collect();
            if reader.direction() == Direction::Backwards {
                of.reverse();
            }
            seqs.extend(of);
        }
    }
}

#[tokio::test]
async fn a_log_is_read_in_both_directions_in_pages_of_any_size() {
    for reply_bytes in [64 << 20, 1] {
        let (caller, _running) = open_forgetful(reply_bytes).await;
        for n in 0..40u64 {
            publish_to(&caller, &stream(), (0..5).map(|m| "x".repeat((n * 7 + m) as usize % 90))).await;
        }
        let whole: Vec<u64> = (1..=200).collect();
        for most in [Most { messages: 1, bytes: 1 }, Most { messages: 7, bytes: 300 }, ALL] {
            let mut reader = caller.reader(stream(), Seq(0), Direction::Forwards).await.expect("a reader");
            assert_eq!(read_all(&mut reader, most).await, whole);
            assert_eq!((reader.position(), reader.last(), reader.lost()), (Seq(201), Seq(200), 0));
            let end = Seq(u64::MAX);
            let mut reader = caller.reader(stream(), end, Direction::Backwards).await.expect("a reader");
            let back: Vec<u64> = whole.iter().rev().copied().collect();
            assert_eq!(read_all(&mut reader, most).await, back);
        }
        let figures = caller.broker().memory().figures();
        assert_eq!(figures.read_ahead, 0, "readers that are gone hold nothing");
    }
}

#[tokio::test]
async fn a_page_back_from_the_end_has_the_newest_messages() {
    let (caller, _running) = open().await;
    publish_some(&caller, 30).await;
    let most = Most { messages: 10, bytes: usize::MAX };
    let filter = Filter::default();
    let (mut next, mut pages) = (Seq(u64::MAX), Vec::new());
    while next > Seq::START {
        let page = caller.browse_within(stream(), next, Direction::Backwards, most, &filter).await;
        let page = page.expect("the stream is there");
        pages.push(page.messages.iter().map(|message| message.seq.0).collect::<Vec<_>>());
        next = page.next;
    }
    let expected =
        [(21..=30).rev().collect::<Vec<u64>>(), (11..=20).rev().collect(), (1..=10).rev().collect()];
    assert_eq!(pages, expected);
    let page = caller.browse_within(stream(), Seq(0), Direction::Backwards, most, &filter).await;
    assert!(page.expect("the stream is there").messages.is_empty());
}

#[tokio::test]
async fn a_reader_of_several_streams_gets_a_page_of_all_and_waits_for_any() {
    let (caller, _running) = open().await;
    let names = ["a", "b", "c"].map(named);
    for (n, name) in names.iter().enumerate() {
        publish_to(&caller, name, (0..=n).map(|m| m.to_string())).await;
    }
    let streams = names.iter().map(|name| (name.clone(), Seq(1))).collect();
    let mut reader = caller.reader_of(streams, Direction::Forwards).await.expect("a reader");
    let page = reader.next(ALL).await.expect("the streams are there");
    let mut counts: Vec<(u32, usize)> =
        page.iter().map(|stretch| (stretch.stream.0, stretch.len())).collect();
    counts.sort_unstable();
    assert_eq!(counts.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(reader.next(ALL).await.expect("the streams are there").is_empty());
    let reading = tokio::spawn(async move {
        loop {
            let page = reader.next(ALL).await?;
            if !page.is_empty() {
                return Ok::<_, CallError>((shown(&page), reader));
            }
            reader.grown().await?;
        }
    });
    tokio::task::yield_now().await;
    publish_to(&caller, &names[1], ["new".to_owned()]).await;
    let (seqs, mut reader) = reading.await.expect("no panic").expect("the streams are there");
    assert_eq!(seqs, [3]);
    // A stream that is deleted is left out; without any other one the reader ends.
    caller.delete_stream(names[0].clone(), true).await.expect("it is deleted");
    publish_to(&caller, &names[2], ["more".to_owned()]).await;
    assert_eq!(shown(&reader.next(ALL).await.expect("two streams are there")), [4]);
    for name in &names[1..] {
        caller.delete_stream(name.clone(), true).await.expect("it is deleted");
    }
    assert_eq!(reader.next(ALL).await.err(), Some(CallError::StreamGone));
}

#[tokio::test]
async fn a_reader_does_not_go_on_in_a_stream_that_was_created_again() {
    let (caller, _running) = open().await;
    publish_some(&caller, 3).await;
    let mut reader = caller.reader(stream(), Seq(1), Direction::Forwards).await.expect("a reader");
    assert_eq!(shown(&reader.next(Most { messages: 2, bytes: 99 }).await.expect("it is there")), [1, 2]);
    caller.delete_stream(stream(), true).await.expect("it is deleted");
    publish_some(&caller, 5).await;
    assert_eq!(reader.next(ALL).await.err(), Some(CallError::StreamGone));
    assert_eq!(
        caller.reader(named("other"), Seq(1), Direction::Forwards).await.err(),
        Some(CallError::NoSuchStream { stream: named("other") })
    );
}

#[tokio::test]
async fn a_reader_that_was_dropped_in_the_middle_goes_on_where_it_was() {
    let (caller, _running) = open_forgetful(64 << 20).await;
    for _ in 0..20 {
        publish_some(&caller, 10).await;
    }
    let mut reader = caller.reader(stream(), Seq(1), Direction::Forwards).await.expect("a reader");
    let mut seen = Vec::new();
    for polls in 0.. {
        let most = Most { messages: 7, bytes: 400 };
        let mut polled = 0;
        let page = {
            let mut next = std::pin::pin!(reader.next(most));
            poll_fn(|cx| {
                polled += 1;
                match next.as_mut().poll(cx) {
                    std::task::Poll::Pending if polled > polls % 4 => std::task::Poll::Ready(None),
                    other => other.map(Some),
                }
            })
            .await
        };
        if let Some(page) = page {
            let page = page.expect("the stream is there");
            if page.is_empty() {
                break;
            }
            seen.extend(shown(&page));
        }
    }
    assert_eq!(seen, (1..=200).collect::<Vec<u64>>());
}

fn all_of(page: &LogPage) -> Vec<(u64, &str, u64)> {
    page.messages.iter().map(|of| (of.message.ordinal.0, of.stream.as_str(), of.message.seq.0)).collect()
}

/// Reads to the end, in pages.
async fn whole_log(reader: &mut LogReader, most: Most) -> Vec<(u64, String, u64)> {
    let mut seen = Vec::new();
    loop {
        let page = reader.next(most).await.expect("the log is there");
        assert!(page.messages.len() as u64 <= most.messages);
        seen.extend(
            all_of(&page).into_iter().map(|(ordinal, stream, seq)| (ordinal, stream.to_owned(), seq)),
        );
        if page.is_end {
            return seen;
        }
    }
}

#[tokio::test]
async fn the_whole_log_is_read_in_the_order_of_publishing() {
    for reply_bytes in [64 << 20, 1] {
        let (caller, _running) = open_forgetful(reply_bytes).await;
        let mut expected = Vec::new();
        for n in 0..60u64 {
            let name = ["orders-eu", "mail", "orders-us"][(n * n % 3) as usize];
            publish_to(&caller, &named(name), (0..3).map(|m| "x".repeat((n * 7 + m) as usize % 90))).await;
            for _ in 0..3 {
                let seq = 1 + expected.iter().filter(|(_, of, _)| of == name).count() as u64;
                expected.push((expected.len() as u64 + 1, name.to_owned(), seq));
            }
        }
        for most in [ALL, Most { messages: 7, bytes: 100 }, Most { messages: 1, bytes: 1 }] {
            let all = LogFilter::default();
            let mut reader =
                caller.log_reader(Ordinal(0), Direction::Forwards, all.clone()).expect("it may read");
            assert_eq!(whole_log(&mut reader, most).await, expected);
            assert_eq!((reader.position(), reader.last()), (Ordinal(181), Ordinal(180)));
            let mut reader =
                caller.log_reader(Ordinal(u64::MAX), Direction::Backwards, all).expect("it may read");
            let mut back = whole_log(&mut reader, most).await;
            back.reverse();
            assert_eq!(back, expected);
            assert_eq!(reader.position(), Ordinal(0));
            let orders = LogFilter { streams: Choice::prefix("orders-"), ..LogFilter::default() };
            let mut reader =
                caller.log_reader(Ordinal(50), Direction::Forwards, orders).expect("it may read");
            let of_orders = expected.iter().filter(|(at, of, _)| *at >= 50 && of.starts_with("orders-"));
            assert_eq!(whole_log(&mut reader, most).await, of_orders.cloned().collect::<Vec<_>>());
        }
        caller.delete_stream(named("mail"), true).await.expect("it is there");
        let mut reader =
            caller.log_reader(Ordinal(1), Direction::Forwards, LogFilter::default()).expect("it may read");
        let kept = expected.iter().filter(|(_, of, _)| of != "mail");
        assert_eq!(whole_log(&mut reader, ALL).await, kept.cloned().collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_reader_of_the_whole_log_is_woken_by_any_stream() {
    let (caller, _running) = open_forgetful(64 << 20).await;
    publish_to(&caller, &named("one"), ["a".to_owned()]).await;
    let mut reader =
        caller.log_reader(Ordinal(1), Direction::Forwards, LogFilter::default()).expect("it may read");
    let page = reader.next(ALL).await.expect("the log is there");
    assert_eq!(all_of(&page), [(1, "one", 1)]);
    for n in 2..20 {
        let page = reader.next(ALL).await.expect("the log is there");
        assert!(page.messages.is_empty() && page.is_end);
        let name = named(&format!("new-{n}"));
        let (woken, ()) = tokio::join!(
            async {
                loop {
                    reader.grown().await.expect("the broker runs");
                    let page = reader.next(ALL).await.expect("the log is there");
                    if !page.messages.is_empty() {
                        return page;
                    }
                }
            },
            publish_to(&caller, &name, ["b".to_owned()])
        );
        assert_eq!(all_of(&woken), [(n, name.as_str(), 1)]);
    }
    assert_eq!(caller.log_end().await.expect("the broker runs"), Ordinal(19));
}

#[tokio::test]
async fn messages_of_the_whole_log_are_chosen_by_their_type() {
    let (caller, _running) = open_forgetful(64 << 20).await;
    for (name, kinds) in [("a", ["order.new", "mail"]), ("b", ["order.paid", "order.new"])] {
        let messages = kinds.map(|kind| Message { kind: Some(kind), ..plain("x") });
        let (name, batch) = (named(name), batch(messages));
        let room = caller.broker().room(&name, &batch).await;
        caller.publish(room, Arc::new(name), batch, PublishOptions::default()).await.expect("there is room");
    }
    let test: Arc<dyn Fn(&str) -> bool + Send + Sync> = Arc::new(|kind| kind.ends_with("new"));
    let exact = Filter { kind: Some("order.new".to_owned()), ..Filter::default() };
    for (filter, expected) in [
        (LogFilter { kinds: Choice::prefix("order."), ..LogFilter::default() }, vec![1, 3, 4]),
        (LogFilter { kinds: Choice::Test(test), ..LogFilter::default() }, vec![1, 4]),
        (LogFilter { messages: exact, streams: Choice::prefix("b"), ..LogFilter::default() }, vec![4]),
        (LogFilter { streams: Choice::prefix("c"), ..LogFilter::default() }, vec![]),
    ] {
        let mut reader =
            caller.log_reader(Ordinal(1), Direction::Forwards, filter.clone()).expect("it may read");
        let seen = whole_log(&mut reader, ALL).await;
        assert_eq!(seen.iter().map(|(ordinal, ..)| *ordinal).collect::<Vec<_>>(), expected, "{filter:?}");
        assert_eq!(reader.position(), Ordinal(5), "it has looked at all of them");
    }
}
