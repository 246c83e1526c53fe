//! Reclaim: the log is trimmed past parked and stuck messages, and none is lost. In this log a position is
//! a frame.

use std::collections::BTreeMap;

use bytes::BytesMut;
use forebay_core::entry::{CopiedMessage, Entry, Messages, entries, put_copied};
use forebay_core::types::Ordinal;
use forebay_storage::engine::Run;
use forebay_storage::journal::JournalConfig;

use super::*;

/// When frames that no reply waits for are written.
const LATER: Timestamp = Timestamp(NOW.0 + 10_000);

fn config() -> DriverConfig {
    DriverConfig {
        image_frames: 8,
        window_bytes_max: 1,
        reclaim_dead_bytes_min: 10,
        reclaim_stretch_bytes: 10,
        reclaim_slice_bytes: 1_000,
        ..DriverConfig::default()
    }
}

/// A rig whose group parks at the first failure, with one worker.
fn rig(config: DriverConfig) -> Rig {
    let mut rig = Rig::new(config);
    rig.group = parking_group(&mut rig, "strict");
    let first =
        rig.driver.shard().group_named(rig.stream, &GroupName::parse("workers").expect("a good name"));
    assert_ne!(first, Some(rig.group));
    rig
}

fn parking_group(rig: &mut Rig, name: &str) -> GroupId {
    let stream = StreamName::parse(&format!("stream-of-{name}")).expect("a good name");
    rig.driver
        .decide(|shard| shard.create_stream(NOW, &stream, &StreamSettings::default()))
        .expect("a new stream");
    rig.driver.confirm(Ticket(0));
    rig.stream = rig.driver.shard().stream_named(&stream).expect("it was created just now");
    let name = GroupName::parse(name).expect("a good name");
    let settings = GroupSettings { max_retries: 0.into(), buffer: 1_000, ..GroupSettings::default() };
    rig.driver
        .decide(|shard| shard.create_group(NOW, rig.stream, &name, &settings, Start::Beginning))
        .expect("a new group");
    rig.driver.confirm(Ticket(0));
    rig.driver.shard().group_named(rig.stream, &name).expect("it was created just now")
}

/// Lets everything happen that can, a few times over.
fn settle_down(rig: &mut Rig) {
    for _ in 0..6 {
        for now in [NOW, LATER, LATER + Duration::from_millis(10)] {
            rig.driver.finish_turn(now);
            rig.gather();
        }
        rig.sync();
        rig.read();
        rig.save_images();
    }
}

/// Settles the delivered messages: the named ones are parked, the others acked.
fn answer(rig: &mut Rig, parked: impl Fn(u64) -> bool) {
    for delivery in std::mem::take(&mut rig.deliveries) {
        let group = delivery.group;
        for message in delivery.into_each() {
            let park = parked(message.lease.seq.0);
            let verb = if park { Verb::Retry { delay: None } } else { Verb::Ack };
            let outcomes = settle(&mut rig.driver, NOW, group, &[message.lease], verb);
            assert_eq!(outcomes, [if park { Outcome::Parked } else { Outcome::Acked }]);
        }
    }
}

/// Publishes and works through messages, so that the log grows and most of it is dead.
fn work(rig: &mut Rig, rounds: u64, parked: impl Fn(u64) -> bool + Copy) {
    for ticket in 0..rounds {
        rig.publish(3, ticket);
        rig.turn();
        rig.sync();
        rig.turn();
        rig.read();
        rig.turn();
        answer(rig, parked);
        rig.driver.finish_turn(LATER);
        rig.gather();
        rig.sync();
        rig.read();
        rig.save_images();
    }
    settle_down(rig);
}

/// Where a message was published, then where its copies are, with all that belongs to it.
type Stored = Vec<(Position, CopiedMessage, Bytes)>;

/// Every message that the log has.
fn contents(log: &MemoryLog) -> BTreeMap<(StreamId, Seq), Stored> {
    let all = ReadBudget { bytes_max: usize::MAX, frames_max: usize::MAX, payloads: true };
    let mut found: BTreeMap<_, Stored> = BTreeMap::new();
    for frame in log.read(Position::START, all) {
        let mut payload = frame.payload.clone();
        for entry in entries(&frame.entries) {
            let (stream, messages) = match entry.expect("a good entry") {
                Entry::Published { stream, first, ordinal, at, messages, .. } => {
                    (stream, each(first, ordinal, at, &messages))
                }
                Entry::Copied { stream, messages, .. } => (stream, messages),
                _ => continue,
            };
            for message in messages {
                let content = payload.split_to(message.meta.size as usize);
                found.entry((stream, message.seq)).or_default().push((frame.position, message, content));
            }
        }
        assert!(payload.is_empty(), "every content belongs to a message");
    }
    found
}

fn each(first: Seq, ordinal: Ordinal, at: Timestamp, messages: &Messages) -> Vec<CopiedMessage> {
    let one = |(meta, n)| CopiedMessage { seq: first.plus(n), ordinal: Ordinal(ordinal.0 + n), at, meta };
    messages.iter().zip(0..).map(one).collect()
}

#[test]
fn one_parked_message_does_not_hold_on_to_the_log() {
    let mut rig = rig(config());
    rig.join(100);
    rig.publish(3, 77);
    rig.turn();
    rig.sync();
    let before = contents(&rig.log)[&(rig.stream, Seq(2))][0].clone();
    work(&mut rig, 100, |seq| seq == 2);
    assert_eq!(rig.driver.shard().parked_after(rig.group, Seq::START).count(), 1);
    let claim = rig.log.claim();
    assert!(
        claim.start > Position(100),
        "the front of the log is gone: {:?} to {:?}",
        claim.start,
        claim.end
    );
    assert!(claim.end.0 - claim.start.0 < 60, "what is left is short: {:?} to {:?}", claim.start, claim.end);
    let found = contents(&rig.log);
    let (position, message, content) = found[&(rig.stream, Seq(2))].last().expect("it is there").clone();
    assert_eq!(rig.driver.index().find(rig.stream, Seq(2)), Some(position));
    assert_eq!((message, content), (before.1, before.2), "it is what it was");
    let figures = rig.driver.reclaimed();
    assert!(
        figures.stretches > 3 && figures.messages < 100,
        "copies of copies, and little else: {figures:?}"
    );
}

#[test]
fn what_is_stuck_is_delivered_from_its_copy() {
    let mut rig = rig(config());
    rig.publish(3, 0);
    rig.turn();
    rig.sync();
    // A consumer takes the first three and does nothing with them, while others work.
    rig.join(3);
    rig.turn();
    rig.read();
    let stuck = rig.deliveries.pop().expect("three messages");
    rig.driver.join(NOW, rig.group, ConsumerId(2), "worker", Bound::Connection).expect("a new member");
    rig.driver.credit(NOW, rig.group, ConsumerId(2), Credit::slots(100)).expect("a member");
    work(&mut rig, 60, |_| false);
    assert!(rig.log.claim().start > Position(50));
    let copies_read = rig.driver.copies_read();
    rig.driver.leave(rig.group, WORKER, Departure::Goodbye);
    rig.turn();
    rig.read();
    let again: Vec<Delivered> = rig.deliveries.drain(..).flat_map(Delivery::into_each).collect();
    for (before, after) in stuck.into_each().zip(&again) {
        assert_eq!(
            (before.lease.seq, before.published, &before.content),
            (after.lease.seq, after.published, &after.content)
        );
    }
    assert_eq!((again.len(), rig.driver.copies_read() - copies_read), (3, 3));
}

#[test]
fn a_group_that_comes_late_is_promised_nothing_that_is_gone() {
    let mut rig = rig(config());
    rig.join(100);
    work(&mut rig, 60, |seq| seq % 50 == 2);
    let late = {
        let stream = rig.stream;
        let name = GroupName::parse("late").expect("a good name");
        let settings = GroupSettings::default();
        rig.driver
            .decide(|shard| shard.create_group(NOW, stream, &name, &settings, Start::Beginning))
            .expect("a new group");
        rig.driver.confirm(Ticket(0));
        rig.driver.shard().group_named(stream, &name).expect("it was created just now")
    };
    let floor = rig.driver.shard().figures(NOW, late).expect("the group exists").floor;
    assert!(floor > Seq(100), "it begins after {floor}");
    rig.driver.join(NOW, late, ConsumerId(9), "worker", Bound::Connection).expect("a new member");
    rig.driver.credit(NOW, late, ConsumerId(9), Credit::slots(1_000)).expect("a member");
    work(&mut rig, 20, |_| false);
    let figures = rig.driver.shard().figures(NOW, late).expect("the group exists");
    assert_eq!((figures.lag, figures.floor), (0, Seq(240)));
}

#[test]
fn a_restart_at_any_frame_finds_every_message_that_is_wanted() {
    let mut rig = rig(config());
    rig.join(100);
    for round in 0..30 {
        work(&mut rig, 4, |seq| seq % 17 == 3);
        // As many frames as there are at this moment survive, whatever reclaim is at.
        let mut claim = rig.log.claim();
        let mut recovery = Recovery::begin(&mut claim, Limits::DEFAULT).expect("a good image");
        while let Some((from, budget)) = recovery.next_read() {
            recovery.feed(&rig.log.read(from, budget)).expect("the image and the log fit together");
        }
        let driver = recovery.finish(rig.driver.shard().latest(), config());
        let found = contents(&rig.log);
        for driver in [&driver, &rig.driver] {
            for (seq, _) in driver.shard().parked_after(rig.group, Seq::START) {
                let place = driver.index().find(rig.stream, seq).expect("it is in the index");
                let known = &found[&(rig.stream, seq)];
                assert!(
                    known.iter().any(|(position, ..)| *position >= place),
                    "round {round}: {seq} at {place:?}"
                );
            }
        }
    }
    assert!(rig.driver.shard().parked_after(rig.group, Seq::START).count() > 15);
    assert!(rig.driver.reclaimed().stretches > 10);
}

#[test]
fn reclaim_goes_on_while_publishing_is_refused() {
    // Nothing is due by itself, so it is the full disk that makes it so.
    let mut rig = rig(DriverConfig { reclaim_dead_bytes_min: u64::MAX, ..config() });
    rig.join(100);
    work(&mut rig, 60, |seq| seq == 2);
    assert_eq!(rig.driver.reclaimed().stretches, 0);
    assert!(rig.log.claim().start < Position(10));
    rig.driver.set_storage_full(true);
    assert_eq!(rig.driver.wake_at(), Some(Timestamp::ZERO));
    for _ in 0..10 {
        settle_down(&mut rig);
    }
    let claim = rig.log.claim();
    assert!(claim.end.0 - claim.start.0 < 30, "what is left is short: {:?} to {:?}", claim.start, claim.end);
    let wake_at = rig.driver.wake_at().expect("the disk is still full");
    assert!(wake_at > LATER, "it looks again later");
}

#[test]
fn a_log_that_is_wanted_is_left_as_it_is() {
    let mut rig = rig(config());
    for ticket in 0..200 {
        rig.publish(3, ticket);
        rig.turn();
        rig.sync();
        rig.read();
        rig.save_images();
    }
    rig.driver.set_storage_full(true);
    for _ in 0..10 {
        settle_down(&mut rig);
    }
    assert_eq!(rig.driver.reclaimed(), ReclaimFigures::default(), "there is nothing to gain");
}

#[test]
fn copies_go_in_slices_that_fit_in_a_frame() {
    let limit = 4 << 10;
    let config = DriverConfig { reclaim_slice_bytes: 1 << 20, image_frames: 4, ..config() };
    let mut rig = Rig::with_frames(config, 2, limit);
    rig.group = parking_group(&mut rig, "strict");
    rig.join(1_000);
    // Half of the messages are parked, and reclaim copies them all.
    work(&mut rig, 100, |seq| seq % 2 == 0 && seq < 100);
    let figures = rig.driver.reclaimed();
    assert!(figures.messages >= 49, "{figures:?}");
    let parked: Vec<Seq> =
        rig.driver.shard().parked_after(rig.group, Seq::START).map(|(seq, _)| seq).collect();
    let found = contents(&rig.log);
    for seq in parked {
        let (position, ..) = found[&(rig.stream, seq)].last().expect("it is there");
        assert!(rig.driver.index().find(rig.stream, seq) <= Some(*position));
    }
    assert!(rig.log.claim().start > Position(100));
}

#[test]
fn what_cannot_be_read_stays() {
    let mut rig = rig(config());
    rig.join(100);
    for ticket in 0..60 {
        rig.publish(3, ticket);
        rig.turn();
        rig.sync();
        rig.turn();
        for read in std::mem::take(&mut rig.driver.outbox().reads) {
            match read.id {
                0 => rig.driver.on_unreadable(read.id),
                id => {
                    let frames = rig.log.read(read.from, read.budget);
                    rig.driver.on_read(id, &frames).expect("what was written can be read");
                }
            }
        }
        rig.turn();
        answer(&mut rig, |seq| seq == 2);
        rig.driver.finish_turn(LATER);
        rig.gather();
        rig.sync();
        rig.save_images();
    }
    assert_eq!(rig.driver.reclaimed(), ReclaimFigures::default());
    assert!(contents(&rig.log).contains_key(&(rig.stream, Seq(2))), "what was parked is where it was");
}

#[test]
fn what_reclaim_writes_fits_in_the_reserve() {
    let (driver, journal) = (DriverConfig::default(), JournalConfig::new(0));
    assert_eq!(driver.reclaim_stretch_bytes, journal.segment_bytes, "a stretch is what a trim frees");
    // At most the bytes of the stretch, and for each slice the headers and the padding of a block. A slice
    // ends when it is full, or when no more of the read messages are wanted.
    let slice = driver.reclaim_slice_bytes.min(journal.frame_bytes_max / 2) as u64;
    let slices = 2 * driver.reclaim_stretch_bytes / slice;
    let copies = driver.reclaim_stretch_bytes + slices * (4_096 + 256);
    // They may begin at the very end of a segment. For each one that is begun another is made ready.
    let data = journal.segment_bytes - journal.segment_bytes / 32;
    let begun = 1 + copies / data;
    // Settling has the other half.
    assert!(begun <= 2 && (2 + begun) * journal.segment_bytes <= journal.reserve_bytes, "{begun} segments");
}

/// A worker takes these messages, does nothing with them, and says goodbye once `meanwhile` has happened.
/// Returns the messages delivered then, in order, with their contents.
fn delivered_again(rig: &mut Rig, meanwhile: impl FnOnce(&mut Rig)) -> (Vec<Seq>, Vec<Seq>) {
    rig.join(1_000);
    for _ in 0..40 {
        rig.turn();
        rig.read();
    }
    let seqs = |rig: &mut Rig| {
        let messages = rig.deliveries.drain(..).flat_map(Delivery::into_each);
        let found = contents(&rig.log);
        let mut seqs: Vec<Seq> = messages
            .map(|message| {
                let (_, stored, content) = &found[&(rig.stream, message.lease.seq)][0];
                assert_eq!((message.published, &message.content), (stored.at, content));
                message.lease.seq
            })
            .collect();
        seqs.sort_unstable();
        seqs
    };
    let before = seqs(rig);
    meanwhile(rig);
    rig.driver.join(NOW, rig.group, ConsumerId(3), "worker", Bound::Connection).expect("a new member");
    rig.driver.leave(rig.group, WORKER, Departure::Goodbye);
    rig.turn();
    rig.driver.credit(NOW, rig.group, ConsumerId(3), Credit::slots(1_000)).expect("a member");
    for _ in 0..200 {
        rig.turn();
        rig.sync();
        // One frame at a time, so that nothing is found by the way.
        for read in std::mem::take(&mut rig.driver.outbox().reads) {
            let frames = rig.log.read(read.from, ReadBudget { frames_max: 1, ..read.budget });
            rig.driver.on_read(read.id, &frames).expect("what was written can be read");
        }
        rig.gather();
    }
    (before, seqs(rig))
}

#[test]
fn a_delivery_may_be_copies_in_part() {
    let mut rig = rig(config());
    for ticket in 0..20 {
        rig.publish(3, ticket);
        rig.turn();
        rig.sync();
    }
    let (before, after) = delivered_again(&mut rig, |rig| {
        rig.driver.join(NOW, rig.group, ConsumerId(2), "worker", Bound::Connection).expect("a new member");
        rig.driver.credit(NOW, rig.group, ConsumerId(2), Credit::slots(1_000)).expect("a member");
        while rig.driver.reclaimed().messages == 0 {
            work(rig, 1, |_| false);
        }
        rig.driver.leave(rig.group, ConsumerId(2), Departure::Goodbye);
        let moved = (1..=60).filter(|&seq| rig.driver.index().moved(rig.stream, Seq(seq)).is_some()).count();
        assert!(moved > 0 && moved < 60, "some are copied and some are not: {moved}");
    });
    assert_eq!((before.len(), &after), (60, &before));
    assert!(rig.driver.copies_read() > 0);
}

#[test]
fn copies_are_found_in_whatever_order_they_lie() {
    let mut rig = rig(config());
    for ticket in 0..4 {
        rig.publish(5, ticket);
        rig.turn();
        rig.sync();
    }
    let (before, after) = delivered_again(&mut rig, |rig| {
        // Copies of all but 7 and 8: two frames, and in them later messages before earlier ones.
        let stored = contents(&rig.log);
        for runs in [&[(15, 20), (9, 10), (12, 14)][..], &[(11, 11), (4, 6), (1, 3)]] {
            let mut frame = Frame { shard: ShardId(0), ..Frame::default() };
            let (mut entries, mut payload) = (Vec::new(), BytesMut::new());
            for &(first, last) in runs {
                let range = SeqRange::new(Seq(first), Seq(last));
                let messages: Vec<_> = range.seqs().map(|seq| &stored[&(rig.stream, seq)][0]).collect();
                messages.iter().for_each(|(.., content)| payload.extend_from_slice(content));
                let messages: Vec<CopiedMessage> = messages.iter().map(|(_, message, _)| *message).collect();
                put_copied(&mut entries, rig.stream, &messages);
                let (stream, count) = (rig.stream, range.count() as u32);
                frame.runs.push(Run { stream, first: range.first, count, copied: true });
            }
            (frame.entries, frame.payload) = (entries.into(), payload.freeze());
            let runs = frame.runs.clone();
            let mut durable = Vec::new();
            rig.log.commit(&mut vec![frame], &mut durable).expect("the log takes it");
            rig.driver.index.frame(durable[0].get(), &runs);
        }
    });
    assert_eq!((before.len(), &after), (20, &before));
    assert_eq!(rig.driver.copies_read(), 16, "all but 7 to 10, which lie in one frame");
}

#[test]
fn a_clean_stop_does_not_wait_for_reclaim() {
    let mut rig = rig(DriverConfig { reclaim_stretch_bytes: 100, ..config() });
    rig.join(100);
    for ticket in 0..2_000 {
        rig.publish(3, ticket);
        rig.turn();
        rig.sync();
        rig.turn();
        rig.read();
        answer(&mut rig, |seq| seq % 3 == 0);
        rig.turn();
        rig.save_images();
        if rig.driver.is_reclaiming() {
            break;
        }
    }
    assert!(rig.driver.is_reclaiming());
    rig.driver.flush(NOW);
    rig.gather();
    rig.sync();
    rig.read();
    rig.turn();
    assert!(rig.driver.is_settled() && rig.driver.outbox().reads.is_empty());
    assert!(!rig.driver.is_reclaiming());
}
