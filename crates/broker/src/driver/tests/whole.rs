//! Confirmed changes are in the log, entries that belong together are in one frame, and a turn keeps to its
//! budget.

use forebay_core::entry::{Entry, entries};
use forebay_core::notes::Expected;
use forebay_core::settings::Acks;
use forebay_core::shard::Purge;

use super::*;

/// A second group of the stream, with one message for its consumer.
fn careful(rig: &mut Rig, acks: Acks, bound: Bound) -> GroupId {
    let name = GroupName::parse("careful").expect("a good name");
    let settings = GroupSettings { acks, ..GroupSettings::default() };
    let created =
        rig.driver.decide(|shard| shard.create_group(NOW, rig.stream, &name, &settings, Start::Beginning));
    rig.driver.confirm(Ticket(0));
    created.expect("a new group");
    let careful = rig.driver.shard().group_named(rig.stream, &name).expect("it was created just now");
    rig.driver.join(NOW, careful, ConsumerId(2), "careful", bound).expect("a new member");
    rig.driver.credit(NOW, careful, ConsumerId(2), Credit::slots(1)).expect("a member");
    careful
}

fn lease_in(rig: &Rig, group: GroupId) -> Lease {
    let delivery = rig.deliveries.iter().rfind(|delivery| delivery.group == group);
    delivery.expect("it was delivered").lease
}

/// Three thousand leases of the busy group lapse a minute later, which takes more than a turn.
fn with_much_to_do(rig: &mut Rig) -> Timestamp {
    rig.join(10_000);
    rig.publish(3_000, 1);
    for _ in 0..10 {
        rig.turn();
        rig.sync();
        rig.read();
    }
    NOW + Duration::from_secs(60)
}

#[test]
fn a_durable_ack_is_answered_when_it_is_durable_also_in_a_turn_that_had_no_time_for_its_group() {
    let mut rig = Rig::new(DriverConfig::default());
    let careful = careful(&mut rig, Acks::Durable, Bound::Connection);
    let later = with_much_to_do(&mut rig);
    let lease = lease_in(&rig, careful);
    let longer = Verb::Extend { by: Duration::from_secs(600), total_max: None };
    settle(&mut rig.driver, NOW, careful, &[lease], longer);
    rig.turn();
    // The busy group is first from now on, and is not done with the first turn.
    rig.driver.finish_turn(later);
    rig.gather();
    rig.sync();
    rig.answers.clear();
    assert_eq!(settle(&mut rig.driver, later, careful, &[lease], Verb::Ack), [Outcome::Acked]);
    rig.driver.confirm(Ticket(77));
    let mut acked = false;
    for _ in 0..20 {
        rig.driver.finish_turn(later);
        rig.gather();
        let is_acked = |entry| matches!(entry, Ok(Entry::Acked { group, .. }) if group == careful);
        acked |= rig.waiting.iter().any(|frame| entries(&frame.entries).any(is_acked));
        rig.sync();
        if rig.answers.contains(&Ticket(77)) {
            assert!(acked, "it was answered, and the ack is in no durable frame");
            return;
        }
    }
    panic!("it was not answered");
}

/// What a message was tried so far in the second group, and what recovery makes of that, if it is given back
/// before this turn of those that an image is made in.
fn given_back_before(turn: usize) -> (Option<u32>, Option<u32>) {
    // One part a turn.
    let mut rig = Rig::new(DriverConfig { image_slice_bytes: 1, ..DriverConfig::default() });
    let careful = careful(&mut rig, Acks::Journal, Bound::Connection);
    let later = with_much_to_do(&mut rig);
    for _ in 0..3 {
        rig.driver.leave(careful, ConsumerId(2), Departure::Lost);
        rig.turn();
        rig.driver.join(NOW, careful, ConsumerId(2), "careful", Bound::Connection).expect("a new member");
        rig.driver.credit(NOW, careful, ConsumerId(2), Credit::slots(1)).expect("a member");
        rig.turn();
        rig.read();
    }
    let lease = lease_in(&rig, careful);
    let longer = Verb::Extend { by: Duration::from_secs(600), total_max: None };
    settle(&mut rig.driver, NOW, careful, &[lease], longer);
    rig.turn();
    rig.sync();
    rig.driver.images.want();
    for n in 0..40 {
        if n == turn {
            let outcomes = settle(&mut rig.driver, later, careful, &[lease], Verb::Return { delay: None });
            assert_eq!(outcomes, [Outcome::Returned]);
        }
        rig.driver.finish_turn(later);
        rig.gather();
        rig.sync();
    }
    rig.driver.flush(later);
    rig.gather();
    rig.sync();
    let live = rig.driver.shard().attempts(careful, Seq(1));
    let image = rig.images.pop().expect("an image was made");
    (live, rig.recovered(&image).attempts(careful, Seq(1)))
}

#[test]
fn what_was_given_back_before_a_part_is_taken_is_not_given_back_once_more_by_recovery() {
    for turn in 0..8 {
        let (live, recovered) = given_back_before(turn);
        assert!(live.is_some_and(|attempts| attempts >= 3), "it was tried again and again");
        assert_eq!(recovered, live, "given back before turn {turn}");
    }
}

fn ided(count: usize) -> Batch {
    let mut batch = BatchBuilder::default();
    for n in 0..count {
        let id = format!("id{n}");
        batch.push(&Message { id: Some(&id), key: Some(b"k"), body: b"", ..Message::default() });
    }
    batch.build()
}

#[test]
fn batches_for_many_streams_are_in_one_frame_or_refused() {
    let mut rig = Rig::new(DriverConfig::default());
    let mut streams = Vec::new();
    for n in 0..60 {
        let name = StreamName::parse(&format!("s{n}")).expect("a good name");
        rig.driver
            .decide(|shard| shard.create_stream(NOW, &name, &StreamSettings::default()))
            .expect("a new stream");
        rig.driver.confirm(Ticket(0));
        streams.push(rig.driver.shard().stream_named(&name).expect("it was created just now"));
    }
    rig.turn();
    rig.sync();
    // Their entries take more than their contents.
    let batch = ided(10_000);
    let plain = PublishOptions::default();
    let most = ((8 << 20) / batch.contents.len()).min(60);
    let mut stored = 0;
    for count in [most, most / 2, 3] {
        let before = rig.driver.shard().last_given(streams[0]);
        let bundle = streams[..count]
            .iter()
            .fold(Bundle::default(), |bundle, &stream| bundle.publish(Target::Id(stream), &batch, plain));
        match rig.driver.commit(NOW, &bundle) {
            Ok(_) => stored += 1,
            Err(refusal) => {
                assert!(matches!(refusal, BundleRefusal::TooLarge { .. }), "{refusal}");
                assert_eq!(rig.driver.shard().last_given(streams[0]), before, "nothing was stored");
                continue;
            }
        }
        rig.driver.confirm(Ticket(2));
        rig.turn();
        let published = |frame: &&Frame| {
            entries(&frame.entries).any(|entry| matches!(entry, Ok(Entry::Published { .. })))
        };
        assert_eq!(rig.waiting.iter().filter(published).count(), 1, "all {count} or nothing");
        rig.sync();
        break;
    }
    assert_eq!(stored, 1);
}

#[test]
fn notes_are_in_the_frame_of_the_batch_or_refused_with_it() {
    let mut rig = Rig::new(DriverConfig::default());
    let batch = ided(1);
    let value = vec![7u8; 60 << 10];
    let keys: Vec<Vec<u8>> = (0..400u32).map(|n| n.to_le_bytes().to_vec()).collect();
    let note = |key| NoteChange { door: 7, key, value: Some(&value), expected: Expected::Any, expires: None };
    let notes: Vec<NoteChange<'_>> = keys.iter().map(|key| note(key)).collect();
    let with = |count: usize| {
        let first = Bundle::default().publish(Target::Id(rig.stream), &batch, PublishOptions::default());
        notes[..count].iter().fold(first, |bundle, note| bundle.note(*note))
    };
    let refused = rig.driver.commit(NOW, &with(400));
    assert!(matches!(refused, Err(BundleRefusal::TooLarge { .. })), "{refused:?}");
    assert_eq!(rig.driver.shard().last_given(rig.stream), Some(Seq::START), "nothing was stored");
    // Earlier entries do not take the room of entries that have to be in one frame.
    let others: Vec<Vec<u8>> = (0..200u32).map(|n| [n.to_le_bytes(), [9; 4]].concat()).collect();
    for key in &others {
        rig.driver.put_note(NOW, note(key)).expect("there is room");
        rig.driver.confirm(Ticket(3));
    }
    rig.driver.commit(NOW, &with(200)).expect("it fits in a frame");
    rig.driver.confirm(Ticket(4));
    rig.turn();
    let of_frame = |frame: &Frame| -> (usize, usize) {
        let each: Vec<Entry> = entries(&frame.entries).map(|entry| entry.expect("it can be read")).collect();
        let is_note = |entry: &&Entry| matches!(entry, Entry::NotePut { key, .. } if key.len() == 4);
        let published = each.iter().filter(|entry| matches!(entry, Entry::Published { .. })).count();
        (published, each.iter().filter(is_note).count())
    };
    let together: Vec<_> = rig.waiting.iter().map(of_frame).filter(|counts| *counts != (0, 0)).collect();
    assert_eq!(together, [(1, 200)]);
}

#[test]
fn a_turn_brings_over_some_of_what_is_to_be_moved() {
    let mut rig = Rig::new(DriverConfig::default());
    rig.join(1_000);
    rig.publish(300, 1);
    rig.turn();
    rig.sync();
    rig.turn();
    let leases: Vec<Lease> = rig.deliveries.iter().flat_map(|delivery| delivery.leases().leases()).collect();
    let to = StreamName::parse("elsewhere").expect("a good name");
    settle(&mut rig.driver, NOW, rig.group, &leases, Verb::Move(to.clone()));
    let mut before = 0;
    for _ in 0..40 {
        rig.turn();
        let shard = rig.driver.shard();
        let elsewhere = shard.stream_named(&to).expect("it is made with the first");
        let moved = shard.last_given(elsewhere).expect("the stream exists").0;
        assert!(moved - before <= 32, "{} in one turn", moved - before);
        assert!(moved == 300 || rig.driver.wake_at() == Some(Timestamp::ZERO), "the rest follows at once");
        before = moved;
        rig.sync();
    }
    assert_eq!(before, 300);
}

#[test]
fn messages_behind_a_gap_are_shown_and_the_gap_is_not_read() {
    let config = DriverConfig { window_bytes_max: 400, image_frames: 4, ..DriverConfig::default() };
    let mut rig = Rig::new(config);
    rig.join(1_000);
    for n in 0..30 {
        rig.publish(3, n);
        for _ in 0..5 {
            rig.turn();
            rig.sync();
            rig.read();
        }
    }
    // One of those before is parked, and the rest of them is settled and trimmed away.
    for delivery in std::mem::take(&mut rig.deliveries) {
        for message in delivery.into_each().filter(|message| message.lease.seq.0 <= 60) {
            let verb = if message.lease.seq.0 == 40 { Verb::Park } else { Verb::Ack };
            settle(&mut rig.driver, NOW, rig.group, &[message.lease], verb);
        }
    }
    for _ in 0..20 {
        rig.turn();
        rig.sync();
        rig.save_images();
        rig.publish(1, 99);
        rig.turn();
        rig.sync();
    }
    let range = |first, last| SeqRange::new(Seq(first), Seq(last));
    let asked = [range(1, 30), range(35, 63), range(100, 1 << 50), range(u64::MAX, u64::MAX)];
    let (seqs, reads) = shown(&mut rig, &asked);
    // From the parked one on everything is kept.
    assert_eq!(seqs, (40..=63).chain(100..=110).collect::<Vec<u64>>());
    assert!(reads <= 30, "{reads} reads");
    // Now only that one is.
    rig.driver.decide(|shard| shard.purge(NOW, rig.stream, Purge::default())).expect("the stream exists");
    rig.driver.confirm(Ticket(6));
    rig.turn();
    rig.sync();
    rig.publish(1, 100);
    rig.turn();
    rig.sync();
    let (seqs, reads) = shown(&mut rig, &[range(1, 200)]);
    assert_eq!(seqs, [40, 111]);
    assert!(reads <= 4, "{reads} reads");
}

/// The positions of the fetched messages among these, and how many reads that took.
fn shown(rig: &mut Rig, asked: &[SeqRange]) -> (Vec<u64>, usize) {
    rig.driver.fetch(rig.stream, asked, Ticket(5));
    let mut reads = 0;
    for _ in 0..60 {
        reads += rig.driver.outbox().reads.len();
        rig.read();
        rig.turn();
    }
    let fetched = std::mem::take(&mut rig.driver.outbox().fetched);
    let [(Ticket(5), found)] = &fetched[..] else { panic!("one answer: {fetched:?}") };
    (found.iter().map(|found| found.seq.0).collect(), reads)
}
