//! Groups that go through a stream, when nothing but the driver itself causes the next turn.

use forebay_core::settings::Strategy;

use super::*;
use crate::driver::payloads::Context;
use crate::driver::reads::{ReadRequest, Reads};

impl Rig {
    fn publish_key(&mut self, key: &str, ticket: u64) {
        let mut batch = BatchBuilder::default();
        batch.push(&Message { key: Some(key.as_bytes()), body: b"x", ..Message::default() });
        self.driver
            .publish(NOW, self.stream, &batch.build(), PublishOptions::default(), Ticket(ticket))
            .expect("a good batch");
    }

    fn change_group(&mut self, settings: &GroupSettings) {
        let group = self.group;
        self.driver.decide(|shard| shard.change_group(NOW, group, settings)).expect("good settings");
    }

    /// Ends a turn only when the shell would, because the driver asked for it.
    fn turns_that_are_due(&mut self) {
        for _ in 0..1_000 {
            if self.driver.wake_at().is_none_or(|at| at > NOW) {
                return;
            }
            self.turn();
        }
        panic!("the driver asks for one turn after another");
    }

    fn delivered(&self) -> Vec<u64> {
        self.deliveries.iter().flat_map(each).map(|message| message.lease.seq.0).collect()
    }
}

#[test]
fn a_group_goes_on_as_long_as_there_is_something_to_look_at() {
    let mut rig = Rig::new(DriverConfig::default());
    rig.publish(100, 1);
    rig.turn();
    rig.sync();
    rig.group = rig.create_group("late");
    rig.change_group(&GroupSettings { buffer: 4, ..GroupSettings::default() });
    rig.turn();
    rig.sync();
    rig.join(200);
    rig.turn();
    rig.turns_that_are_due();
    assert_eq!(rig.delivered().len(), 100);
}

#[test]
fn a_message_of_a_key_does_not_overtake_an_earlier_one_that_has_to_be_read() {
    for leaves in [false, true] {
        // Only the last message is in memory.
        let mut rig = Rig::new(DriverConfig { window_bytes_max: 1, ..DriverConfig::default() });
        rig.change_group(&GroupSettings {
            strategy: Strategy::Ordered,
            key_batch: 3,
            ..GroupSettings::default()
        });
        rig.publish_key("a", 1);
        rig.turn();
        rig.sync();
        // Between the two, so that they are not one delivery.
        let mut later = BatchBuilder::default();
        let not_before = Some(NOW + Duration::from_secs(60));
        later.push(&Message { key: Some(b"b"), body: b"x", not_before, ..Message::default() });
        rig.driver
            .publish(NOW, rig.stream, &later.build(), PublishOptions::default(), Ticket(2))
            .expect("a good batch");
        rig.turn();
        rig.sync();
        rig.publish_key("a", 3);
        rig.turn();
        rig.sync();
        rig.join(10);
        rig.turn();
        rig.turns_that_are_due();
        let leased: Vec<u64> = rig.driver.undelivered(rig.group).map(|(_, lease)| lease.seq.0).collect();
        assert_eq!((rig.delivered(), leased.len()), (vec![], 2), "both are leased, and wait: {leased:?}");
        if leaves {
            rig.driver.leave(rig.group, WORKER, Departure::Goodbye);
        }
        rig.read();
        rig.turns_that_are_due();
        assert_eq!(rig.delivered(), if leaves { vec![] } else { vec![1, 3] });
        assert_eq!(rig.driver.undelivered(rig.group).count(), 0);
    }
}

#[test]
fn a_key_that_is_free_is_found_behind_one_that_is_stuck() {
    let mut rig = Rig::new(DriverConfig::default());
    for ticket in 1..=20 {
        rig.publish_key("a", ticket);
        rig.turn();
        rig.sync();
    }
    rig.publish_key("b", 21);
    rig.turn();
    rig.sync();
    let ordered = GroupSettings { strategy: Strategy::Ordered, buffer: 2, ..GroupSettings::default() };
    rig.change_group(&ordered);
    rig.turn();
    rig.sync();
    rig.join(2);
    rig.turn();
    rig.turns_that_are_due();
    assert_eq!(rig.delivered(), [1, 21]);
}

#[test]
fn messages_that_no_group_wants_are_passed_over_without_a_read() {
    let config = DriverConfig { window_bytes_max: 64 << 10, ..DriverConfig::default() };
    let mut rig = Rig::new(config);
    for ticket in 1..=80 {
        rig.publish_key("a", ticket);
        rig.turn();
        rig.sync();
    }
    rig.join(100);
    rig.turns_that_are_due();
    let leases: Vec<Lease> = rig.deliveries.iter().flat_map(|delivery| delivery.leases().leases()).collect();
    let (odd, even): (Vec<Lease>, Vec<Lease>) = leases.iter().partition(|lease| lease.seq.0 % 2 == 1);
    settle(&mut rig.driver, NOW, rig.group, &even, Verb::Ack);
    settle(&mut rig.driver, NOW, rig.group, &odd, Verb::Return { delay: None });
    rig.driver.leave(rig.group, WORKER, Departure::Lost);
    rig.turn();
    rig.sync();
    // Other messages push these out of the window, and a reader brings back the odd ones alone.
    let other = StreamName::parse("other").expect("a good name");
    rig.driver
        .decide(|shard| shard.create_stream(NOW, &other, &StreamSettings::default()))
        .expect("a new stream");
    let (stream, other) = (rig.stream, rig.driver.shard().stream_named(&other).expect("it was just created"));
    rig.stream = other;
    for ticket in 100..200 {
        rig.publish(10, ticket);
        rig.turn();
        rig.sync();
    }
    rig.stream = stream;
    let wanted: Vec<SeqRange> = odd.iter().map(|lease| SeqRange::one(lease.seq)).collect();
    rig.driver.fetch(stream, &wanted, Ticket(900));
    while rig.driver.outbox().fetched.is_empty() {
        rig.turn();
        rig.read();
    }
    rig.change_group(&GroupSettings { strategy: Strategy::Ordered, ..GroupSettings::default() });
    rig.turn();
    rig.sync();
    rig.deliveries.clear();
    let before = rig.driver.figures().reads;
    rig.driver.join(NOW, rig.group, ConsumerId(2), "worker", Bound::Connection).expect("a new member");
    rig.driver.credit(NOW, rig.group, ConsumerId(2), Credit::slots(1)).expect("a member");
    rig.turn();
    assert_eq!(rig.delivered(), [1]);
    assert_eq!(rig.driver.shard().looked_at(rig.group), Some(Seq(80)), "one turn has seen all of them");
    assert_eq!(rig.driver.figures().reads, before);
}

impl Rig {
    /// Publishes messages of 100 KB, each in a frame of its own.
    fn publish_large(&mut self, count: usize) {
        for n in 0..count {
            let mut batch = BatchBuilder::default();
            batch.push(&Message { body: &[n as u8; 100_000], ..Message::default() });
            self.driver
                .publish(NOW, self.stream, &batch.build(), PublishOptions::default(), Ticket(1_000))
                .expect("a good batch");
            self.turn();
            self.sync();
        }
    }
}

#[test]
fn a_large_delivery_that_has_to_be_read_leaves_in_pieces() {
    let mut rig = Rig::new(DriverConfig { window_bytes_max: 1, ..DriverConfig::default() });
    rig.publish_large(100);
    rig.join(100);
    for _ in 0..100 {
        rig.turn();
        rig.read();
    }
    assert_eq!(rig.delivered(), (1..=100).collect::<Vec<_>>());
    let bytes = |delivery: &Delivery| delivery.messages.iter().map(|one| one.content.len()).sum::<usize>();
    let largest = rig.deliveries.iter().map(bytes).max();
    assert!(largest < Some(6 << 20), "{largest:?} of 10 MB at once");
    // The pieces have the leases that the group knows.
    for delivery in std::mem::take(&mut rig.deliveries) {
        rig.ack(&delivery);
    }
}

#[test]
fn large_requests_do_not_keep_a_small_one_waiting() {
    let mut rig = Rig::new(DriverConfig { window_bytes_max: 1, ..DriverConfig::default() });
    rig.publish_large(201);
    for n in 0..4 {
        let range = SeqRange::new(Seq(n * 50 + 1), Seq(n * 50 + 50));
        rig.driver.fetch(rig.stream, &[range], Ticket(n));
    }
    rig.driver.fetch(rig.stream, &[SeqRange::one(Seq(201))], Ticket(9));
    let mut reads = 0;
    while rig.driver.outbox().fetched.is_empty() {
        let read = rig.driver.outbox().reads.remove(0);
        let frames = rig.log.read(read.from, read.budget);
        rig.driver.on_read(read.id, &frames).expect("what was written can be read");
        reads += 1;
    }
    let (ticket, found) = rig.driver.outbox().fetched.remove(0);
    assert_eq!((ticket, found.len()), (Ticket(9), 1));
    assert!(reads <= 6, "it had to wait for {reads} reads");
}

#[test]
fn a_guess_is_read_when_no_other_request_waits() {
    let mut rig = Rig::new(DriverConfig { window_bytes_max: 1, ..DriverConfig::default() });
    rig.publish_large(70);
    let mut outbox = Outbox::default();
    let mut reads = Reads::new();
    let mut context =
        Context { index: rig.driver.index(), read_bytes_max: 1 << 20, durable: 0, outbox: &mut outbox };
    // Reads without contents, since no other request waits for the same frames.
    let request = |seq| ReadRequest::new(rig.stream, SeqRange::one(Seq(seq)), false, ());
    for seq in [10, 20, 30, 40] {
        reads.request(request(seq), &mut context);
    }
    reads.request_later(request(50), &mut context);
    reads.request(request(60), &mut context);
    reads.request(request(70), &mut context);
    assert_eq!(context.outbox.reads.len(), 4, "as many as may be in flight");
    for n in 0..3 {
        let id = context.outbox.reads[n].id;
        assert!(reads.ended(id).is_some());
        reads.remove(id);
        reads.start_reads(&mut context);
    }
    let place = |seq| rig.driver.index().find(rig.stream, Seq(seq)).expect("it is in the log");
    let from: Vec<Position> = context.outbox.reads[4..].iter().map(|read| read.from).collect();
    assert_eq!(from, [place(60), place(70), place(50)]);
}
