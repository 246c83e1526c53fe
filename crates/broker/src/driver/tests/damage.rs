//! Places of the log that cannot be read: they cost the messages in them, which are parked, and no others.

use forebay_core::entry::Cause;
use forebay_core::settings::OnExhausted;

use super::*;

/// Reads frames, except for what `damage` takes away from them.
fn read_around(rig: &mut Rig, damage: &dyn Fn(&StoredFrame) -> Option<Damage>) {
    let reads: Vec<Read> = rig.driver.outbox().reads.drain(..).collect();
    for read in reads {
        let (mut frames, mut places) = (Vec::new(), Vec::new());
        for frame in rig.log.read(read.from, read.budget) {
            let place = damage(&frame);
            if place.as_ref().is_none_or(|place| place.payload.is_some()) {
                frames.push(frame);
            }
            places.extend(place);
        }
        rig.driver.on_read_around(read.id, &frames, &places).expect("the rest can be read");
    }
    rig.gather();
}

/// The frame, or a part of its payload, cannot be read.
fn broken(frame: &StoredFrame, payload: Option<std::ops::Range<usize>>) -> Damage {
    let (from, until) = (frame.position, Position(frame.position.0 + 1));
    let (what, file) = ("it is broken".to_owned(), "segment-0000000001".to_owned());
    Damage { from, until, payload, what, file, offset: 0, is_new: true }
}

fn first_seq(frame: &StoredFrame) -> Option<u64> {
    frame.runs.first().map(|run| run.first.0)
}

/// A group that skips messages after their first failure, in place of the usual one. No content stays in memory.
fn rig() -> Rig {
    let mut rig = Rig::new(DriverConfig { window_bytes_max: 1, ..DriverConfig::default() });
    let name = GroupName::parse("skippers").expect("a good name");
    let settings = GroupSettings { on_exhausted: OnExhausted::Skip, ..GroupSettings::default() };
    rig.driver
        .decide(|shard| shard.create_group(NOW, rig.stream, &name, &settings, Start::Beginning))
        .expect("a new group");
    rig.group = rig.driver.shard().group_named(rig.stream, &name).expect("it was created just now");
    rig
}

/// Goes on until nothing happens any more, and returns the positions that were delivered.
fn deliver_all(rig: &mut Rig, damage: &dyn Fn(&StoredFrame) -> Option<Damage>) -> Vec<u64> {
    rig.join(100);
    for _ in 0..20 {
        rig.turn();
        rig.sync();
        read_around(rig, damage);
    }
    let mut seqs: Vec<u64> =
        rig.deliveries.iter().flat_map(each).map(|message| message.lease.seq.0).collect();
    seqs.sort_unstable();
    seqs
}

/// Positions that are parked, with the cause and the attempts.
fn parked(rig: &Rig) -> Vec<(u64, Cause, u32)> {
    let parked = rig.driver.shard().parked_after(rig.group, Seq::START);
    parked.map(|(seq, parked)| (seq.0, parked.failure().cause, parked.attempts)).collect()
}

#[test]
fn a_broken_stretch_of_a_payload_costs_the_messages_in_it() {
    let mut rig = rig();
    // The second batch takes the place of the first in memory.
    for (count, ticket) in [(5, 7), (1, 8)] {
        rig.publish(count, ticket);
        rig.turn();
        rig.sync();
    }
    // A byte of the third message of five that are equally large.
    let damage = |frame: &StoredFrame| {
        let size = frame.payload.len() / 5;
        (first_seq(frame) == Some(1)).then(|| broken(frame, Some(2 * size + 10..2 * size + 11)))
    };
    assert_eq!(deliver_all(&mut rig, &damage), [1, 2, 4, 5, 6]);
    assert_eq!(parked(&rig), [(3, Cause::Damaged, 0)]);
    assert_eq!(rig.driver.figures().damaged, 1);
}

#[test]
fn a_frame_that_cannot_be_read_costs_its_messages_and_none_behind_them() {
    for last in [3, 4] {
        let mut rig = rig();
        for ticket in 1..=last {
            rig.publish(2, ticket);
            rig.turn();
            rig.sync();
        }
        let damage = |frame: &StoredFrame| (first_seq(frame) == Some(5)).then(|| broken(frame, None));
        let expected: Vec<u64> = (1..=2 * last).filter(|seq| ![5, 6].contains(seq)).collect();
        assert_eq!(deliver_all(&mut rig, &damage), expected);
        assert_eq!(parked(&rig), [(5, Cause::Damaged, 0), (6, Cause::Damaged, 0)]);
    }
}

#[test]
fn an_image_that_is_not_kept_is_made_anew_with_every_part() {
    let mut rig = Rig::new(DriverConfig { image_frames: 3, ..DriverConfig::default() });
    let next_image = |rig: &mut Rig| {
        for ticket in 1..20 {
            if let Some(image) = rig.images.pop() {
                return image;
            }
            rig.publish(1, ticket);
            rig.turn();
            rig.sync();
        }
        panic!("an image is made");
    };
    let first = next_image(&mut rig);
    rig.driver.on_image_damaged();
    let again = next_image(&mut rig);
    assert!(again.parts.len() >= first.parts.len());
    assert!(again.parts.iter().all(|part| part.bytes.is_some()), "nothing relies on an earlier image");
}
