//! The driver on a log that becomes durable when the test says so.

mod ahead;
mod bundles;
mod damage;
mod readers;
mod reclaim;
mod verbs;
mod whole;

use std::time::Duration;

use bytes::Bytes;
use forebay_core::group::{Outcome, Verb, each_outcome};
use forebay_core::notes::{NoteChange, NoteRefusal};
use forebay_core::settings::{GroupSettings, StreamSettings};
use forebay_core::shard::{BundleRefusal, ResubmitRefusal, Start, Target};
use forebay_core::types::{Attempt, Epoch, Grant, GroupName, Limits, Ordinal, Seq, StreamName};
use forebay_storage::engine::{Frame, Image, ReadBudget, SavedPart};
use forebay_storage::memory::MemoryLog;

use super::*;
use crate::batch::{BatchBuilder, Message};
use crate::recovery::Recovery;
use crate::window::Found;

const NOW: Timestamp = Timestamp(1_000_000);
const WORKER: ConsumerId = ConsumerId(1);

/// Settles leases, and says of each what became of it.
fn settle(driver: &mut Driver, now: Timestamp, group: GroupId, leases: &[Lease], verb: Verb) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    let leases = LeaseRun::join(leases.iter().copied());
    driver.settle(now, group, &leases, &verb.into(), &mut outcomes);
    each_outcome(&outcomes).collect()
}

/// The messages of a delivery, each with its lease.
fn each(delivery: &Delivery) -> Vec<Delivered> {
    delivery.clone().into_each().collect()
}

#[test]
fn a_delivery_without_some_of_its_messages_is_several() {
    let message = |n: u8| {
        let (ordinal, content) = (Ordinal(n.into()), Bytes::copy_from_slice(&[n]));
        RunMessage { ordinal, published: NOW, priority: 0, past: None, content }
    };
    let lease = |n: u64| Lease { epoch: Epoch(1), seq: Seq(10 + n), grant: Grant(100 + n) };
    let delivery = Delivery {
        group: GroupId(1),
        consumer: WORKER,
        lease: lease(0),
        attempt: Attempt(1),
        redelivered: false,
        first_received: NOW,
        deadline: NOW,
        messages: (0..5).map(message).collect(),
    };
    let kept = |gone: &[u64]| -> Vec<(Lease, Vec<u8>)> {
        let mut runs = Vec::new();
        let keep = |of: Lease| !gone.iter().any(|n| lease(*n) == of);
        delivery.clone().keep(keep, |run| {
            runs.push((run.lease, run.messages.iter().map(|message| message.content[0]).collect()));
        });
        runs
    };
    assert_eq!(kept(&[]), [(lease(0), vec![0, 1, 2, 3, 4])]);
    assert_eq!(kept(&[2]), [(lease(0), vec![0, 1]), (lease(3), vec![3, 4])]);
    assert_eq!(kept(&[0, 1, 4]), [(lease(2), vec![2, 3])]);
    assert_eq!(kept(&[0, 1, 2, 3, 4]), []);
}

/// A driver, its log, and the frames that the log has not been given yet.
struct Rig {
    driver: Driver,
    log: MemoryLog,
    waiting: Vec<Frame>,
    deliveries: Vec<Delivery>,
    answers: Vec<Ticket>,
    images: Vec<Image>,
    trims: Vec<Position>,
    stream: StreamId,
    group: GroupId,
}

impl Rig {
    fn new(config: DriverConfig) -> Rig {
        Rig::with_frames(config, 1_024, 16 << 20)
    }

    /// On an engine that takes this many frames at once, of this size at most.
    fn with_frames(config: DriverConfig, frames_max: usize, frame_bytes_max: usize) -> Rig {
        let mut log = MemoryLog::new(ShardId(0), frame_bytes_max);
        let mut claim = log.claim();
        claim.frames_max = frames_max;
        let recovery = Recovery::begin(&mut claim, Limits::DEFAULT).expect("nothing to recover");
        let mut rig = Rig {
            driver: recovery.finish(NOW, config),
            log,
            waiting: Vec::new(),
            deliveries: Vec::new(),
            answers: Vec::new(),
            images: Vec::new(),
            trims: Vec::new(),
            stream: StreamId(1),
            group: GroupId(1),
        };
        let stream = StreamName::parse("jobs").expect("a good name");
        let group = GroupName::parse("workers").expect("a good name");
        rig.driver
            .decide(|shard| shard.create_stream(NOW, &stream, &StreamSettings::default()))
            .expect("a new stream");
        rig.driver.confirm(Ticket(0));
        let settings = GroupSettings { buffer: 10_000, ..GroupSettings::default() };
        rig.driver
            .decide(|shard| shard.create_group(NOW, rig.stream, &group, &settings, Start::Beginning))
            .expect("a new group");
        rig.driver.confirm(Ticket(0));
        rig.turn();
        rig.sync();
        rig
    }

    fn publish(&mut self, count: usize, ticket: u64) {
        let mut batch = BatchBuilder::default();
        for n in 0..count {
            let body = format!("{ticket}-{n}-{}", "x".repeat(90));
            batch.push(&Message { body: body.as_bytes(), ..Message::default() });
        }
        self.driver
            .publish(NOW, self.stream, &batch.build(), PublishOptions::default(), Ticket(ticket))
            .expect("a good batch");
    }

    fn create_group(&mut self, name: &str) -> GroupId {
        let name = GroupName::parse(name).expect("a good name");
        let settings = GroupSettings::default();
        self.driver
            .decide(|shard| shard.create_group(NOW, self.stream, &name, &settings, Start::Beginning))
            .expect("a new group");
        self.driver.confirm(Ticket(0));
        self.driver.shard().group_named(self.stream, &name).expect("it was created just now")
    }

    /// Saves what there is to save, as often as it takes for two images to be kept.
    fn save_images(&mut self) {
        for image in std::mem::take(&mut self.images) {
            let saved = self.log.save(image).expect("the log keeps it");
            self.driver.on_saved(saved);
        }
        self.gather();
        for through in std::mem::take(&mut self.trims) {
            self.log.trim(through);
        }
    }

    fn join(&mut self, slots: u32) {
        self.driver.join(NOW, self.group, WORKER, "worker", Bound::Connection).expect("a new member");
        self.driver.credit(NOW, self.group, WORKER, Credit::slots(slots)).expect("a member");
    }

    fn ack(&mut self, delivery: &Delivery) {
        let leases = delivery.leases();
        let mut outcomes = Vec::new();
        self.driver.settle(NOW, self.group, &[leases], &Verb::Ack.into(), &mut outcomes);
        assert_eq!(outcomes, [(Outcome::Acked, leases.count)]);
    }

    fn turn(&mut self) {
        self.driver.finish_turn(NOW);
        self.gather();
    }

    fn gather(&mut self) {
        let outbox = self.driver.outbox();
        self.waiting.append(&mut outbox.frames);
        self.deliveries.append(&mut outbox.deliveries);
        self.answers.extend(outbox.durable.drain(..).map(|(ticket, _)| ticket));
        self.images.extend(outbox.image.take());
        self.trims.extend(outbox.trim.take());
    }

    /// Makes what waits durable, without ending a turn.
    fn sync(&mut self) {
        let mut durable = Vec::new();
        while !self.waiting.is_empty() {
            self.log.commit(&mut self.waiting, &mut durable).expect("the log takes it");
            for position in durable.drain(..) {
                self.driver.on_durable(position);
            }
            self.gather();
        }
    }

    fn read(&mut self) {
        let reads: Vec<Read> = self.driver.outbox().reads.drain(..).collect();
        for read in reads {
            let frames = self.log.read(read.from, read.budget);
            self.driver.on_read(read.id, &frames).expect("what was written can be read");
        }
        self.gather();
    }

    /// The state that an image and the log after it give.
    fn recovered(&mut self, image: &Image) -> Shard {
        let mut claim = self.log.claim();
        let part = |part: &forebay_storage::engine::ImagePart| SavedPart {
            key: part.key,
            through: part.through,
            bytes: part.bytes.clone().expect("the first image has every part"),
        };
        claim.parts = image.parts.iter().map(part).collect();
        let mut recovery = Recovery::begin(&mut claim, Limits::DEFAULT).expect("a good image");
        while let Some((from, budget)) = recovery.next_read() {
            let frames = self.log.read(from, budget);
            recovery.feed(&frames).expect("the image and the log fit together");
        }
        recovery.finish(self.driver.shard().latest(), DriverConfig::default()).shard
    }
}

#[test]
fn a_producer_is_answered_when_its_frame_is_durable_and_not_before() {
    let mut rig = Rig::new(DriverConfig::default());
    rig.join(10);
    rig.answers.clear();
    rig.publish(3, 7);
    rig.turn();
    assert_eq!((rig.answers.len(), rig.deliveries.len()), (0, 0));
    rig.sync();
    assert_eq!(rig.answers, [Ticket(7)]);
    rig.turn();
    let seqs: Vec<u64> = each(&rig.deliveries[0]).iter().map(|message| message.lease.seq.0).collect();
    assert_eq!(seqs, [1, 2, 3]);
}

/// While the log cannot be written, messages that come back again and again must not fill the memory.
#[test]
fn nothing_is_handed_out_while_the_engine_does_not_write() {
    let config = DriverConfig { unwritten_bytes_max: 4 << 10, ..DriverConfig::default() };
    let mut rig = Rig::with_frames(config, 2, 16 << 10);
    rig.join(10);
    rig.publish(10, 1);
    rig.turn();
    rig.sync();
    let mut most = 0;
    let mut now = NOW;
    for _ in 0..1_000 {
        now = now + Duration::from_secs(60);
        rig.driver.finish_turn(now);
        rig.gather();
        for delivery in std::mem::take(&mut rig.deliveries) {
            let leases: Vec<Lease> = each(&delivery).iter().map(|message| message.lease).collect();
            settle(&mut rig.driver, now, rig.group, &leases, Verb::Return { delay: None });
        }
        most = most.max(rig.driver.frames.unwritten());
    }
    assert!(rig.driver.shard().is_withheld(), "the engine has not written for long");
    assert!(most < 8 << 10, "{most} bytes wait to be written");
    for _ in 0..3 {
        rig.sync();
        now = now + Duration::from_secs(60);
        rig.driver.finish_turn(now);
        rig.gather();
    }
    assert!(!rig.driver.shard().is_withheld());
    assert!(!rig.deliveries.is_empty(), "delivery goes on");
}

#[test]
fn a_duplicate_is_answered_no_earlier_than_the_first() {
    let mut rig = Rig::new(DriverConfig::default());
    rig.answers.clear();
    for ticket in [1, 2] {
        let mut batch = BatchBuilder::default();
        batch.push(&Message { id: Some("once"), body: b"x", ..Message::default() });
        rig.driver
            .publish(NOW, rig.stream, &batch.build(), PublishOptions::default(), Ticket(ticket))
            .expect("a good batch");
        rig.turn();
    }
    assert_eq!(rig.waiting.len(), 1, "the second stores nothing");
    assert_eq!(rig.answers, []);
    rig.sync();
    assert_eq!(rig.answers, [Ticket(1), Ticket(2)]);
    assert_eq!(rig.driver.shard().last_seq(rig.stream), Some(Seq(1)));
}

/// Positions in the log count over all streams, and are the same in the answer, in a delivery and for a reader.
#[test]
fn every_answer_names_the_same_position_in_the_log() {
    let mut rig = Rig::new(DriverConfig { window_bytes_max: 1, ..DriverConfig::default() });
    let other = StreamName::parse("others").expect("a good name");
    let other = rig.driver.decide(|shard| shard.create_stream(NOW, &other, &StreamSettings::default()));
    let other = other.expect("a new stream");
    let publish = |rig: &mut Rig, stream, ids: &[&str]| -> Vec<(u64, Option<u64>)> {
        let mut batch = BatchBuilder::default();
        for id in ids {
            batch.push(&Message { id: Some(id), body: b"x", ..Message::default() });
        }
        let options = PublishOptions::default();
        let published = rig.driver.publish(NOW, stream, &batch.build(), options, Ticket(0));
        rig.turn();
        rig.sync();
        let each = published.expect("a good batch");
        each.each().map(|(of, ordinal)| (of.seq.0, ordinal.map(|ordinal| ordinal.0))).collect()
    };
    let stream = rig.stream;
    assert_eq!(publish(&mut rig, stream, &["a", "b"]), [(1, Some(1)), (2, Some(2))]);
    assert_eq!(publish(&mut rig, other, &["a", "b"]), [(1, Some(3)), (2, Some(4))]);
    let mixed = publish(&mut rig, stream, &["c", "a", "d"]);
    assert_eq!(mixed, [(3, Some(5)), (1, None), (4, Some(6))], "a duplicate is where it was");
    assert_eq!(publish(&mut rig, stream, &["a"]), [(1, None)]);
    assert_eq!(publish(&mut rig, other, &["c"]), [(3, Some(7))]);
    rig.join(10);
    rig.driver.fetch(stream, &[SeqRange::new(Seq(2), Seq(4))], Ticket(9));
    for _ in 0..8 {
        rig.turn();
        rig.read();
        rig.sync();
    }
    let delivered = rig.deliveries.iter().flat_map(each);
    let delivered: Vec<_> = delivered.map(|message| (message.lease.seq.0, message.ordinal.0)).collect();
    assert_eq!(delivered, [(1, 1), (2, 2), (3, 5), (4, 6)]);
    let (_, found) = rig.driver.outbox().fetched.pop().expect("the messages were found");
    let found: Vec<_> = found.iter().map(|message| (message.seq.0, message.ordinal.0)).collect();
    assert_eq!(found, [(2, 2), (3, 5), (4, 6)]);
}

#[test]
fn acks_that_nobody_waits_for_share_a_frame() {
    let mut rig = Rig::new(DriverConfig::default());
    rig.join(100);
    rig.publish(4, 1);
    rig.turn();
    rig.sync();
    rig.turn();
    let delivery = rig.deliveries.pop().expect("four messages");
    rig.ack(&delivery);
    rig.turn();
    assert!(rig.waiting.is_empty(), "the leases and the acks wait for company");
    let wake_at = rig.driver.wake_at().expect("but not for long");
    assert_eq!(wake_at, NOW + Duration::from_millis(5));
    rig.driver.finish_turn(wake_at);
    rig.gather();
    assert_eq!(rig.waiting.len(), 1);
}

#[test]
fn a_full_disk_refuses_messages_and_nothing_else() {
    let mut rig = Rig::new(DriverConfig::default());
    rig.join(10);
    rig.publish(1, 1);
    rig.turn();
    rig.sync();
    rig.turn();
    rig.driver.set_storage_full(true);
    let mut batch = BatchBuilder::default();
    batch.push(&Message { body: b"x", ..Message::default() });
    let batch = batch.build();
    let refused = rig.driver.publish(NOW, rig.stream, &batch, PublishOptions::default(), Ticket(2));
    assert_eq!(refused, Err(PublishRefusal::StorageFull));
    let delivery = rig.deliveries.pop().expect("the message was delivered");
    rig.ack(&delivery);
    rig.driver.set_storage_full(false);
    rig.driver
        .publish(NOW, rig.stream, &batch, PublishOptions::default(), Ticket(3))
        .expect("there is room again");
}

#[test]
fn a_part_has_all_of_a_frame_or_nothing() {
    // The engine takes one frame at a time, so the next one goes on filling over several turns, and parts
    // of the image, one a turn, are taken in the middle of that.
    let config = DriverConfig { image_frames: 4, image_slice_bytes: 1, ..DriverConfig::default() };
    let mut rig = Rig::with_frames(config, 1, 16 << 20);
    rig.join(100);
    for ticket in 1..40 {
        rig.publish(2, ticket);
        rig.turn();
        if ticket % 5 == 0 {
            rig.sync();
        }
        if let Some(image) = rig.images.pop() {
            let last = rig.driver.shard().last_seq(rig.stream);
            assert!(last > Some(Seq(2)), "something is durable by then");
            assert_eq!(rig.recovered(&image).last_seq(rig.stream), last);
            return;
        }
    }
    panic!("an image is made before long");
}

#[test]
fn contents_are_kept_as_long_as_a_crash_could_ask_for_them() {
    // Every message is acked, but the acks are not durable when the image is kept.
    let config = DriverConfig { image_frames: 4, ..DriverConfig::default() };
    let mut rig = Rig::new(config);
    rig.join(1_000);
    for ticket in 1..6 {
        rig.publish(10, ticket);
        rig.turn();
        rig.sync();
        rig.turn();
    }
    rig.sync();
    let image = rig.images.pop().expect("an image was begun");
    for delivery in std::mem::take(&mut rig.deliveries) {
        rig.ack(&delivery);
    }
    let newest = image.parts.iter().map(|part| part.through).max().expect("an image has parts");
    rig.driver.on_saved(Saved { covered: newest });
    rig.gather();
    let first = rig.driver.index().find(rig.stream, Seq(1)).expect("the first message is indexed");
    assert!(
        rig.trims.iter().all(|through| *through < first),
        "trimmed to {:?}, wanted from {first:?}",
        rig.trims
    );
}

#[test]
fn a_delivery_larger_than_the_window_is_read_back_in_pieces() {
    let config = DriverConfig { window_bytes_max: 1_000, read_bytes_max: 4_000, ..DriverConfig::default() };
    let mut rig = Rig::new(config);
    for ticket in 1..30 {
        rig.publish(5, ticket);
        rig.turn();
        rig.sync();
    }
    rig.join(100);
    for _ in 0..200 {
        rig.turn();
        rig.read();
    }
    let mut seqs: Vec<u64> =
        rig.deliveries.iter().flat_map(each).map(|message| message.lease.seq.0).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=100).collect::<Vec<_>>());
    for message in rig.deliveries.iter().flat_map(each) {
        let (ticket, n) = ((message.lease.seq.0 - 1) / 5 + 1, (message.lease.seq.0 - 1) % 5);
        let body = crate::batch::parse_content(&message.content).expect("a good content").body;
        assert!(body.starts_with(format!("{ticket}-{n}-").as_bytes()));
    }
}

#[test]
fn a_group_that_comes_late_begins_with_what_is_kept() {
    let config = DriverConfig { image_frames: 5, ..DriverConfig::default() };
    let mut rig = Rig::new(config);
    rig.join(1_000);
    for ticket in 1..60 {
        rig.publish(10, ticket);
        rig.turn();
        rig.sync();
        rig.turn();
        for delivery in std::mem::take(&mut rig.deliveries) {
            rig.ack(&delivery);
        }
        rig.turn();
        rig.sync();
        rig.save_images();
    }
    let first = rig.driver.shard().oldest_kept().next().expect("there is a stream").1;
    assert!(first > Seq(300), "most of the log was let go, up to {first}");
    let late = rig.create_group("late");
    rig.group = late;
    rig.driver.join(NOW, late, ConsumerId(2), "worker", Bound::Connection).expect("a new member");
    rig.driver.credit(NOW, late, ConsumerId(2), Credit::slots(1_000)).expect("a member");
    for _ in 0..20 {
        rig.turn();
        rig.sync();
        rig.read();
    }
    let seqs: Vec<Seq> = rig
        .deliveries
        .iter()
        .filter(|delivery| delivery.group == late)
        .flat_map(each)
        .map(|message| message.lease.seq)
        .collect();
    assert_eq!(seqs.first(), Some(&first));
    assert_eq!(seqs.last(), Some(&Seq(590)));
}

#[test]
fn ids_are_remembered_whenever_the_image_was_taken() {
    // Ids keep coming, and open new generations, while an image is made a part at a time.
    let config = DriverConfig { image_frames: 3, image_slice_bytes: 1, ..DriverConfig::default() };
    let mut rig = Rig::new(config);
    let mut next = 0;
    for ticket in 1..200 {
        let mut batch = BatchBuilder::default();
        for _ in 0..300 {
            next += 1;
            batch.push(&Message { id: Some(&format!("id-{next}")), body: b"x", ..Message::default() });
        }
        rig.driver
            .publish(NOW, rig.stream, &batch.build(), PublishOptions::default(), Ticket(ticket))
            .expect("a good batch");
        rig.turn();
        rig.sync();
        let done = ticket > 12 && !rig.images.is_empty();
        rig.save_images();
        if !done {
            continue;
        }
        let mut claim = rig.log.claim();
        let mut recovery = Recovery::begin(&mut claim, Limits::DEFAULT).expect("a good image");
        while let Some((from, budget)) = recovery.next_read() {
            recovery.feed(&rig.log.read(from, budget)).expect("the image and the log fit together");
        }
        let mut driver = recovery.finish(NOW, DriverConfig::default());
        for known in 1..=next {
            let mut batch = BatchBuilder::default();
            batch.push(&Message { id: Some(&format!("id-{known}")), body: b"x", ..Message::default() });
            driver
                .publish(NOW, rig.stream, &batch.build(), PublishOptions::default(), Ticket(known))
                .expect("a good batch");
        }
        driver.finish_turn(NOW);
        let frames = &driver.outbox().frames;
        assert!(frames.iter().all(|frame| frame.runs.is_empty()), "something was stored twice");
        return;
    }
    panic!("an image is made before long");
}

#[test]
fn a_slow_engine_is_given_frames_that_it_can_take() {
    let limit = 16 << 10;
    let mut rig = Rig::with_frames(DriverConfig::default(), 2, limit);
    rig.join(10_000);
    for ticket in 1..400 {
        rig.publish(20, ticket);
        rig.turn();
        rig.sync();
    }
    rig.turn();
    // Nothing becomes durable any more, and every second message is acked by itself.
    let leases: Vec<Lease> = rig.deliveries.iter().flat_map(|delivery| delivery.leases().leases()).collect();
    assert!(leases.len() > 5_000);
    for pair in leases.chunks(2) {
        assert_eq!(settle(&mut rig.driver, NOW, rig.group, &pair[..1], Verb::Ack), [Outcome::Acked]);
        rig.turn();
    }
    assert!(rig.waiting.len() <= 2, "no more are on their way than the engine wants");
    rig.driver.flush(NOW);
    rig.gather();
    for _ in 0..1_000 {
        rig.sync();
        rig.turn();
        rig.driver.flush(NOW);
        rig.gather();
    }
    assert!(rig.driver.is_settled());
    let (settled, group) = (rig.driver.shard().figures(NOW, rig.group).expect("the group exists"), rig.group);
    let recovered = rig.recovered(&Image::default());
    assert_eq!(recovered.figures(NOW, group).map(|figures| figures.lag), Some(settled.lag));
}

#[test]
fn messages_far_apart_are_read_back_by_way_of_the_index() {
    let config = DriverConfig { window_bytes_max: 2_000, ..DriverConfig::default() };
    let mut rig = Rig::new(config);
    let busy = StreamName::parse("busy").expect("a good name");
    rig.driver
        .decide(|shard| shard.create_stream(NOW, &busy, &StreamSettings::default()))
        .expect("a new stream");
    rig.driver.confirm(Ticket(0));
    let busy = rig.driver.shard().stream_named(&busy).expect("it was created just now");
    for ticket in 1..=20 {
        rig.publish(1, ticket);
        rig.turn();
        rig.sync();
        for n in 0..100 {
            let mut batch = BatchBuilder::default();
            batch.push(&Message { body: &[7; 90], ..Message::default() });
            rig.driver
                .publish(NOW, busy, &batch.build(), PublishOptions::default(), Ticket(1_000 + n))
                .expect("a good batch");
            rig.turn();
            rig.sync();
        }
    }
    rig.join(100);
    let mut reads = 0;
    let mut frames_read = 0;
    for _ in 0..200 {
        rig.turn();
        for read in std::mem::take(&mut rig.driver.outbox().reads) {
            let budget = ReadBudget { frames_max: 20, ..read.budget };
            let frames = rig.log.read(read.from, budget);
            reads += 1;
            frames_read += frames.len();
            rig.driver.on_read(read.id, &frames).expect("what was written can be read");
        }
        rig.gather();
    }
    let got: usize = rig.deliveries.iter().map(|delivery| delivery.messages.len()).sum();
    assert_eq!(got, 20);
    assert!(frames_read < 1_200, "{frames_read} frames of 2,000 were read in {reads} reads");
}

#[test]
fn many_retries_share_a_few_reads() {
    let config = DriverConfig { window_bytes_max: 1, ..DriverConfig::default() };
    let mut rig = Rig::new(config);
    for ticket in 1..=40 {
        rig.publish(50, ticket);
        rig.turn();
        rig.sync();
    }
    rig.join(2_000);
    let mut most = 0;
    let mut all = 0;
    for _ in 0..400 {
        rig.turn();
        most = most.max(rig.driver.outbox().reads.len());
        all += rig.driver.outbox().reads.len();
        rig.read();
        for delivery in std::mem::take(&mut rig.deliveries) {
            // Every other one fails, and comes again by itself.
            for message in delivery.into_each() {
                let again = message.attempt.0 == 1 && message.lease.seq.0 % 2 == 0;
                let verb = if again { Verb::Retry { delay: Some(Duration::ZERO) } } else { Verb::Ack };
                settle(&mut rig.driver, NOW, rig.group, &[message.lease], verb);
            }
        }
    }
    let figures = rig.driver.shard().figures(NOW, rig.group).expect("the group exists");
    assert_eq!(figures.lag, 0, "every message is done: {figures:?}");
    assert!(most <= 4, "{most} reads at once");
    assert!(all < 400, "{all} reads for 1,000 retries");
}

#[test]
fn what_cannot_be_read_holds_up_nobody_else() {
    let config = DriverConfig { window_bytes_max: 1, ..DriverConfig::default() };
    let mut rig = Rig::new(config);
    let other = StreamName::parse("other").expect("a good name");
    rig.driver
        .decide(|shard| shard.create_stream(NOW, &other, &StreamSettings::default()))
        .expect("a new stream");
    rig.driver.confirm(Ticket(0));
    for ticket in 1..=3 {
        rig.publish(2, ticket);
        rig.turn();
        rig.sync();
    }
    rig.join(100);
    rig.turn();
    // The group wants to look ahead, and is told that it cannot.
    let reads: Vec<Read> = rig.driver.outbox().reads.drain(..).collect();
    assert_eq!(reads.len(), 1);
    rig.driver.on_unreadable(reads[0].id);
    rig.turn();
    assert!(rig.driver.outbox().reads.is_empty(), "it does not try again and again");
    // Only the messages that are still in memory go out.
    let delivered: Vec<u64> =
        rig.deliveries.iter().flat_map(each).map(|message| message.lease.seq.0).collect();
    assert_eq!(delivered, [5, 6]);
    rig.deliveries.clear();
    // Publishing, and groups of other streams, go on.
    let other = rig.driver.shard().stream_named(&other).expect("it was created just now");
    rig.stream = other;
    let group = rig.create_group("others");
    rig.publish(2, 9);
    rig.driver.join(NOW, group, ConsumerId(9), "worker", Bound::Connection).expect("a new member");
    rig.driver.credit(NOW, group, ConsumerId(9), Credit::slots(9)).expect("a member");
    for _ in 0..5 {
        rig.turn();
        rig.sync();
        rig.read();
    }
    let got: usize = rig.deliveries.iter().map(|delivery| delivery.messages.len()).sum();
    assert_eq!(got, 2);
}
