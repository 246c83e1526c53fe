//! Stories about one server on a disk of a given size.

use forebay_broker::batch::{BatchBuilder, Message};
use forebay_broker::driver::{Published, Ticket};
use forebay_core::group::{Bound, Credit, Lease, LeaseRun, Verb};
use forebay_core::settings::{GroupSettings, Retries, StreamSettings};
use forebay_core::shard::{PublishOptions, PublishRefusal, Start};
use forebay_core::types::{ConsumerId, GroupId, GroupName, SeqRange, StreamName};

use super::*;

const SEGMENT: u64 = 256 << 10;
const WORKER: ConsumerId = ConsumerId(1);

struct Rig {
    server: Server,
    disk: SimDisk,
    now: Timestamp,
    stream: StreamId,
    group: GroupId,
    /// What the worker holds.
    held: Vec<Lease>,
}

impl Rig {
    /// A server whose reserve is as small as it may be.
    fn new() -> Rig {
        let (disk, now) = (SimDisk::new(), Timestamp(1_000_000));
        let config = JournalConfig {
            segment_bytes: SEGMENT,
            block_bytes_max: 64 << 10,
            frame_bytes_max: 48 << 10,
            hurried_bytes: 64 << 10,
            reserve_bytes: 0,
            free_bytes_min: 2 * SEGMENT,
            ..journal_config(1, now)
        };
        let driver_config = DriverConfig {
            window_bytes_max: 64 << 20,
            image_log_bytes: SEGMENT,
            reclaim_dead_bytes_min: u64::MAX,
            reclaim_stretch_bytes: SEGMENT,
            reclaim_slice_bytes: 24 << 10,
            ..driver_config()
        };
        let mut server = Server::open_with(&disk, &config, driver_config, now).expect("it opens");
        let stream = StreamName::parse("jobs").expect("a good name");
        let group = GroupName::parse("workers").expect("a good name");
        let driver = &mut server.driver;
        driver
            .decide(|shard| shard.create_stream(now, &stream, &StreamSettings::default()))
            .expect("a new stream");
        let stream = driver.shard().stream_named(&stream).expect("it was created just now");
        let settings = GroupSettings {
            message_timeout: Duration::from_secs(3_600),
            max_in_flight: 100_000,
            max_retries: Retries::Unlimited,
            ..GroupSettings::default()
        };
        driver
            .decide(|shard| shard.create_group(now, stream, &group, &settings, Start::Beginning))
            .expect("a new group");
        driver.confirm(Ticket(0));
        let group = driver.shard().group_named(stream, &group).expect("it was created just now");
        driver.join(now, group, WORKER, "worker", Bound::Connection).expect("a new member");
        driver.credit(now, group, WORKER, Credit::slots(100_000)).expect("a member");
        Rig { server, disk, now, stream, group, held: Vec::new() }
    }

    fn credit(&mut self, messages: u32) {
        let credit = Credit::slots(messages);
        self.server.driver.credit(self.now, self.group, WORKER, credit).expect("a member");
    }

    fn publish(&mut self) -> Result<Published, PublishRefusal> {
        let mut batch = BatchBuilder::default();
        for _ in 0..4 {
            batch.push(&Message { body: &[7; 1_900], ..Message::default() });
        }
        self.server.driver.publish(
            self.now,
            self.stream,
            &batch.build(),
            PublishOptions::default(),
            Ticket(0),
        )
    }

    /// One round of everything, some milliseconds later. Nothing may fail.
    fn round(&mut self) {
        self.now = self.now + Duration::from_millis(25);
        self.server.finish_turn(self.now);
        for work in [Server::commit, Server::read, Server::save, Server::trim, Server::tidy] {
            work(&mut self.server).expect("running out of space is no failure");
        }
        let outbox = self.server.driver.outbox();
        outbox.durable.clear();
        for delivery in outbox.deliveries.drain(..) {
            self.held.extend(delivery.leases().leases());
        }
    }

    fn ack(&mut self, leases: &[Lease]) {
        self.settle(leases, Verb::Ack);
    }

    fn settle(&mut self, leases: &[Lease], verb: Verb) {
        let leases = LeaseRun::join(leases.iter().copied());
        self.server.driver.settle(self.now, self.group, &leases, &verb.into(), &mut Vec::new());
    }

    /// Publishes until the disk is full, and then another process takes the space that was left beside the reserve.
    fn fill(&mut self) -> u64 {
        self.disk.set_capacity(24 * SEGMENT);
        let mut published = 0;
        for _ in 0..2_000 {
            match self.publish() {
                Ok(_) => published += 4,
                Err(PublishRefusal::StorageFull) => break,
                Err(error) => panic!("{error}"),
            }
            self.round();
        }
        assert!(self.server.space.is_full() && published > 1_000, "{published} messages");
        assert_eq!(self.server.driver.reclaimed().stretches, 0, "everything is wanted so far");
        self.disk.set_capacity(self.disk.used());
        for _ in 0..20 {
            self.round();
        }
        assert!(self.server.space.is_full());
        published
    }

    fn wanted(&self) -> Vec<Seq> {
        let mut ranges = Vec::new();
        let all = SeqRange::new(Seq(1), Seq(u64::MAX));
        self.server.driver.shard().wanted(self.stream, all, &mut ranges);
        ranges.iter().flat_map(SeqRange::seqs).collect()
    }
}

/// A log that is full, of which the front is wanted and the rest is not, and a disk on which nothing is free
/// but the reserve, which is as small as it may be.
#[test]
fn the_reserve_is_enough_to_reclaim_from_a_full_disk() {
    // How much of the front is stuck: a message, most of a segment, more than two segments.
    for stuck in [1, 100, 300] {
        let mut rig = Rig::new();
        let published = rig.fill();
        let done: Vec<Lease> = rig.held.iter().filter(|lease| lease.seq.0 > stuck).copied().collect();
        assert_eq!(done.len() as u64 + stuck, published, "everything was delivered");
        for leases in done.chunks(20) {
            rig.ack(leases);
            rig.round();
        }
        let rounds = (0..2_000).find(|_| {
            rig.round();
            !rig.server.space.is_full()
        });
        let figures = rig.server.driver.reclaimed();
        assert!(rounds.is_some(), "it resumes by itself: {figures:?}, {} bytes used", rig.disk.used());
        rig.round();
        rig.publish().expect("there is room again");
        rig.round();
        assert!(figures.messages >= stuck, "what was stuck was copied: {figures:?}");
        let stored = rig.server.stored().expect("the log can be read");
        assert_eq!(rig.wanted().iter().filter(|seq| seq.0 <= stuck).count() as u64, stuck);
        for seq in rig.wanted() {
            assert!(stored.contains_key(&(rig.stream, seq)), "{seq} is still there");
        }
    }
}

/// A retry takes space and frees none, and a consumer that only retries never stops. The reserve must not be used up by
/// it, whether most of the log is wanted or only a little.
#[test]
fn consumers_that_only_retry_do_not_use_up_the_reserve() {
    for keep in [40, u64::MAX] {
        let mut rig = Rig::new();
        rig.credit(100);
        let published = rig.fill();
        // Some are settled for good, if only some are to be kept.
        while rig.wanted().len() as u64 > keep {
            let some: Vec<Lease> = rig.held.extract_if(.., |lease| lease.seq.0 > keep).collect();
            rig.ack(&some);
            rig.round();
        }
        let (mut retries, mut pauses, mut full) = (0_u64, 0, 0);
        for _ in 0..4_000 {
            // Another process takes whatever is free beside the reserve.
            if !rig.server.space.is_full() {
                rig.disk.set_capacity(rig.disk.used());
            }
            full += u64::from(rig.server.space.is_full());
            let some = rig.held.len().min(10);
            let leases: Vec<Lease> = rig.held.drain(..some).collect();
            retries += some as u64;
            rig.settle(&leases, Verb::Retry { delay: Some(Duration::ZERO) });
            rig.round();
            pauses += u64::from(rig.server.driver.shard().is_withheld());
        }
        assert!(full > 2_000, "the disk is full most of the time: {full} rounds");
        // Many times as many as the reserve has room for, at a page for each ten.
        let room = 10 * 4 * SEGMENT / 4_096;
        assert!(retries > 4 * room, "{retries} retries were settled, {pauses} rounds delivered nothing");
        for _ in 0..4_000 {
            let leases = std::mem::take(&mut rig.held);
            rig.ack(&leases);
            rig.round();
        }
        let figures = rig.server.driver.shard().figures(rig.now, rig.group).expect("the group is there");
        assert_eq!(figures.lag, 0, "all of {published} messages are drained");
    }
}
