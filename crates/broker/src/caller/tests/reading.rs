//! Readers, on an engine in memory.

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
