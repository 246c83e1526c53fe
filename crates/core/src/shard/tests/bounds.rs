//! No turn is long and no table grows without bound, whatever there is to do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::rig::Rig;
use super::*;
use crate::group::Verb;
use crate::image::{STREAM, Taking};
use crate::notes::Expected;
use crate::pace::Rate;
use crate::settings::{Fairness, OnFull, Retention, StreamLimits};
use crate::types::{IdHash, PartKey};

#[test]
fn an_image_may_be_taken_in_the_middle_of_a_reset() {
    let mut rig = Rig::new(StreamSettings::default());
    let group = rig.group(GroupSettings { buffer: 10_000, ..GroupSettings::default() });
    rig.join(group, 1, 100_000, Bound::Connection);
    // Each lease is a delivery and a run of its own, so that sweeping them takes several turns.
    for _ in 0..2_000 {
        rig.publish_plain(1);
        rig.turn();
    }
    rig.shard.reset(rig.now, group, Start::Beginning, false).expect("the group exists");
    rig.turn();
    assert!(rig.shard.groups[&group].ledger.sweeps_through().is_some(), "it is not done yet");
    let mut image = Recorder { shard: rig.shard, frames: Vec::new(), parts: Vec::new() };
    for key in image.shard.parts() {
        image.take(key);
    }
    let mut again = image.recover().expect("a good image");
    again.open(rig.now, Epoch(2));
    let figures = again.figures(rig.now, group).expect("the group exists");
    assert_eq!((figures.floor, figures.in_flight, figures.lag), (Seq::START, 0, 2_000));
}

#[test]
fn what_is_ready_again_is_found_behind_any_number_of_leases_when_the_window_is_full() {
    let mut rig = Rig::new(StreamSettings::default());
    let timeout = Duration::from_secs(3_600);
    let settings = GroupSettings { window_max: 200, message_timeout: timeout, ..GroupSettings::default() };
    let group = rig.group(settings);
    rig.join(group, 1, 100, Bound::Connection);
    for _ in 0..100 {
        rig.publish_plain(1);
        rig.turn();
    }
    rig.join(group, 2, 100, Bound::Connection);
    rig.publish_plain(100);
    rig.turn();
    rig.shard.leave(group, ConsumerId(2), Departure::Lost);
    rig.turn();
    rig.delivered.clear();
    rig.join(group, 3, 100, Bound::Connection);
    rig.turns(3);
    let seqs: Vec<u64> =
        rig.delivered.iter().flat_map(|deliver| deliver.seqs.seqs()).map(|seq| seq.0).collect();
    assert_eq!(seqs, (101..=200).collect::<Vec<u64>>());
}

fn dropping(messages: u64) -> StreamSettings {
    let limits =
        StreamLimits { max_messages: Some(messages), on_full: OnFull::DropOldest, ..StreamLimits::default() };
    StreamSettings { limits, ..StreamSettings::default() }
}

#[test]
fn the_oldest_is_found_behind_a_parked_message_and_all_that_was_settled_since() {
    let mut rig = Rig::new(dropping(10));
    let group = rig.group(GroupSettings { buffer: 10_000, ..GroupSettings::default() });
    rig.join(group, 1, 1_000, Bound::Connection);
    rig.publish_plain(1);
    rig.turn();
    rig.settle(group, 1..=1, Verb::Park);
    for n in 0..20_000 {
        rig.publish_plain(1);
        rig.turn();
        rig.settle(group, n + 2..=n + 2, Verb::Ack);
    }
    rig.shard.leave(group, ConsumerId(1), Departure::Goodbye);
    rig.turn();
    for _ in 0..20 {
        rig.publish(&[MessageMeta::plain(1)]).expect("the oldest that waits goes");
        rig.turn();
    }
    let figures = rig.shard.figures(rig.now, group).expect("the group exists");
    assert_eq!((figures.counters.dropped, figures.lag, figures.parked), (11, 9, 1));
}

#[test]
fn a_full_stream_makes_room_in_the_group_that_has_most_to_do() {
    let mut rig = Rig::new(dropping(10));
    let busy = rig.group(GroupSettings::default());
    rig.join(busy, 1, 5, Bound::Connection);
    rig.publish_plain(5);
    rig.turn();
    rig.settle(busy, 1..=5, Verb::Ack);
    rig.shard.leave(busy, ConsumerId(1), Departure::Goodbye);
    rig.turn();
    let name = GroupName::parse("patient").expect("a good name");
    let patient =
        rig.shard.create_group(rig.now, rig.stream, &name, &GroupSettings::default(), Start::Beginning);
    let patient = patient.expect("a new group");
    rig.join(patient, 2, 100, Bound::Connection);
    rig.turns(3);
    // The second group holds the oldest messages, and the first one most of them.
    rig.settle(patient, 1..=5, Verb::Return { delay: Some(Duration::from_secs(3_600)) });
    for seq in 6..=15 {
        rig.publish_plain(1);
        rig.turn();
        rig.settle(patient, seq..=seq, Verb::Ack);
    }
    let figures = |rig: &Rig, group| {
        let figures = rig.shard.figures(rig.now, group).expect("the group exists");
        (figures.lag, figures.counters.dropped)
    };
    rig.shard.leave(patient, ConsumerId(2), Departure::Goodbye);
    rig.turn();
    assert_eq!((figures(&rig, busy), figures(&rig, patient)), ((10, 0), (5, 0)));
    rig.publish_plain(3);
    rig.turn();
    assert_eq!(figures(&rig, busy), (10, 3), "it holds as many as it may");
    assert_eq!(figures(&rig, patient), (8, 0), "it has room for all");
    // Once both are full, each message that goes makes room in both, or more than one has to.
    for _ in 0..20 {
        rig.publish_plain(1);
        rig.turn();
        assert!(figures(&rig, busy).0 <= 10 && figures(&rig, patient).0 <= 10);
    }
}

/// Ends turns only as long as the shard asks for them.
fn settle_down(rig: &mut Rig) {
    while rig.shard.wake_at().is_some_and(|at| at <= rig.now) {
        rig.turn();
    }
}

#[test]
fn a_quiet_log_keeps_no_more_than_it_should() {
    let retention = Retention::Log { max_age: None, max_bytes: None, max_messages: Some(10) };
    let mut rig = Rig::new(StreamSettings { retention, ..StreamSettings::default() });
    let batch = vec![MessageMeta::plain(1); 25];
    let stored = rig.shard.publish(rig.now, rig.stream, &batch, PublishOptions::default(), &mut Vec::new());
    let stored = stored.expect("a good batch").expect("it is new");
    settle_down(&mut rig);
    rig.shard.arrived(rig.stream, stored, KeyRun::Plain);
    settle_down(&mut rig);
    assert_eq!(rig.shard.readable(rig.stream), Some(SeqRange::new(Seq(16), Seq(25))));
}

#[test]
fn the_only_message_of_a_stream_grows_old() {
    let age = Duration::from_secs(60);
    let limits = StreamLimits { max_age: Some(age), ..StreamLimits::default() };
    let mut rig = Rig::new(StreamSettings { limits, ..StreamSettings::default() });
    let batch = [MessageMeta::plain(1)];
    let stored = rig.shard.publish(rig.now, rig.stream, &batch, PublishOptions::default(), &mut Vec::new());
    let stored = stored.expect("a good batch").expect("it is new");
    settle_down(&mut rig);
    rig.shard.arrived(rig.stream, stored, KeyRun::Plain);
    settle_down(&mut rig);
    rig.pass(age + Duration::from_secs(1));
    settle_down(&mut rig);
    assert_eq!(rig.shard.readable(rig.stream), None);
}

#[test]
fn a_large_batch_makes_room_for_itself_by_stretches() {
    for strategy in [Choice::RoundRobin, Choice::Ordered] {
        let mut rig = Rig::new(dropping(10_000));
        let group = rig.group(GroupSettings { strategy, ..GroupSettings::default() });
        rig.join(group, 1, 3, Bound::Connection);
        let keyed: Vec<MessageMeta> = (0..10_000)
            .map(|n| MessageMeta { key: Some(KeyHash(n % 100 + 1)), ..MessageMeta::plain(1) })
            .collect();
        rig.publish(&keyed).expect("there is room");
        rig.turns(2);
        assert_eq!(rig.delivered[0].seqs, SeqRange::new(Seq(1), Seq(3)));
        rig.log.clear();
        rig.publish(&keyed[..9_000]).expect("the oldest go");
        rig.turn();
        let skipped = crate::entry::entries(&rig.log).filter_map(|entry| match entry {
            Ok(Entry::Skipped { how: Ending::Dropped, ranges, .. }) => Some(ranges),
            _ => None,
        });
        let dropped: Vec<SeqRange> = skipped.flatten().collect();
        assert_eq!(dropped, [SeqRange::new(Seq(4), Seq(9_003))], "one stretch, behind what is leased");
        // The remaining messages go out in order, and no dropped one does.
        rig.settle(group, 1..=3, Verb::Ack);
        rig.delivered.clear();
        rig.turns(3);
        assert!(rig.delivered.iter().all(|deliver| deliver.seqs.first > Seq(9_003)), "{:?}", rig.delivered);
        assert!(!rig.delivered.is_empty());
    }
}

#[test]
fn messages_that_were_looked_at_expire_a_slice_a_turn() {
    let limits = StreamLimits { max_age: Some(Duration::from_secs(60)), ..StreamLimits::default() };
    let mut rig = Rig::new(StreamSettings { limits, ..StreamSettings::default() });
    rig.key = KeyHash(7);
    let group = rig.group(GroupSettings { strategy: Choice::Ordered, ..GroupSettings::default() });
    rig.join(group, 1, 1, Bound::Connection);
    // One is leased, and all the others wait behind it.
    let keyed = vec![MessageMeta { key: Some(rig.key), ..MessageMeta::plain(1) }; 10_000];
    rig.publish(&keyed).expect("a good batch");
    rig.publish(&keyed).expect("a good batch");
    rig.turns(40);
    assert_eq!(rig.shard.looked_at(group), Some(Seq(20_000)));
    // No consumer is there to look at these.
    rig.shard.leave(group, ConsumerId(1), Departure::Goodbye);
    rig.turn();
    for _ in 0..3 {
        rig.publish(&keyed).expect("a good batch");
    }
    rig.pass(Duration::from_secs(600));
    let mut expired = vec![0];
    for _ in 0..40 {
        rig.turn();
        expired.push(rig.shard.counters(group).expect("the group exists").expired);
    }
    assert_eq!(expired.last(), Some(&50_000));
    let slices = expired.windows(2).filter(|pair| pair[0] < 20_000).map(|pair| pair[1].min(20_000) - pair[0]);
    assert!(slices.clone().all(|slice| slice <= 4_096), "{:?}", slices.collect::<Vec<_>>());
    rig.check_log();
}

#[test]
fn messages_are_moved_some_at_a_time() {
    let mut rig = Rig::new(StreamSettings::default());
    let to = StreamName::parse("dead").expect("a good name");
    let limits = StreamLimits { max_messages: Some(5_000), ..StreamLimits::default() };
    let full = StreamSettings { limits, ..StreamSettings::default() };
    rig.shard.create_stream(rig.now, &to, &full).expect("a new stream");
    let settings = GroupSettings { buffer: 100_000, max_in_flight: 100_000, ..GroupSettings::default() };
    let group = rig.group(settings);
    rig.join(group, 1, 100_000, Bound::Connection);
    rig.publish_plain(10_000);
    rig.turn();
    rig.settle(group, 1..=10_000, Verb::Move(to.clone()));
    let mut moved = 0;
    let mut refused = 0;
    for n in 0..200 {
        let effects = rig.turn();
        assert!(effects.moves.len() <= 256, "{} in one turn", effects.moves.len());
        for one in effects.moves {
            match rig.shard.complete_move(rig.now, group, one.seq, &MessageMeta::plain(1), rig.now) {
                Ok(_) => moved += 1,
                Err(refusal) => {
                    assert_eq!(refusal, MoveRefusal::Later);
                    refused += 1;
                }
            }
        }
        if n == 100 {
            assert_eq!((moved, refused), (5_000, 256), "there is no room, and nobody asks again and again");
            let elsewhere = rig.shard.stream_named(&to).expect("it was created");
            rig.shard.change_stream(rig.now, elsewhere, &StreamSettings::default()).expect("good settings");
            rig.pass(Duration::from_secs(2));
        }
    }
    assert_eq!(moved, 10_000, "all of them arrive in the end");
}

#[test]
fn a_fair_group_forgets_whose_turn_it_was_of_the_keys_that_were_served_longest_ago() {
    let mut rig = Rig::new(StreamSettings::default());
    let group = rig.group(GroupSettings { fairness: Fairness::Key, ..GroupSettings::default() });
    rig.join(group, 1, 0, Bound::Connection);
    for round in 0..30 {
        // They expire before anybody could be served.
        let expires = Some(rig.now + Duration::from_secs(1));
        let message = |n| MessageMeta { key: Some(KeyHash(n)), expires, ..MessageMeta::plain(1) };
        let messages: Vec<MessageMeta> = (1..=400).map(|n| message(round * 400 + n)).collect();
        rig.publish(&messages).expect("a good batch");
        rig.turn();
        rig.pass(Duration::from_secs(20));
        rig.turns(6);
    }
    assert_eq!(rig.shard.counters(group).expect("the group exists").expired, 12_000);
    assert!(rig.shard.groups[&group].remembered() <= 4_096, "{}", rig.shard.groups[&group].remembered());
}

#[test]
fn a_note_that_is_renewed_again_and_again_is_waited_for_once() {
    let mut rig = Rig::new(StreamSettings::default());
    for _ in 0..1_000 {
        rig.pass(Duration::from_millis(1));
        let expires = Some(rig.now + Duration::from_secs(3_600));
        rig.shard.put_note(rig.now, 1, b"session", b"x", Expected::Any, expires).expect("there is room");
        rig.turn();
    }
    assert!(rig.shard.wakeups.len() < 5, "{}", rig.shard.wakeups.len());
    rig.shard.remove_note(rig.now, 1, b"session", Expected::Any).expect("it is there");
    rig.turn();
    assert_eq!(rig.shard.wake_at(), None);
    rig.shard.put_note(rig.now, 1, b"session", b"x", Expected::Any, Some(rig.now)).expect("there is room");
    rig.turn();
    assert!(rig.shard.note(rig.now, 1, b"session").is_none());
    assert_eq!(rig.shard.wake_at(), None);
}

#[test]
fn nothing_is_left_of_the_pace_of_a_job_that_is_over() {
    let mut rig = Rig::new(StreamSettings::default());
    let group = rig.group(GroupSettings::default());
    rig.join(group, 1, 10, Bound::Connection);
    rig.publish_plain(1);
    rig.turn();
    for n in 0..100 {
        rig.settle(group, 1..=1, Verb::Park);
        rig.turn();
        let rate = Some(Rate { per_second: 100.0, burst: 10 });
        let started = rig.shard.start_job(rig.now, group, Work::Replay, Selection::All, None, rate);
        let (job, _) = started.expect("one is parked");
        if n % 2 == 0 {
            rig.shard.cancel_job(rig.now, group, job).expect("it has not come to it");
            rig.shard
                .start_job(rig.now, group, Work::Replay, Selection::All, None, rate)
                .expect("one is parked");
        }
        rig.pass(Duration::from_secs(1));
        rig.turns(3);
    }
    assert_eq!(rig.shard.groups[&group].paced_jobs(), 0);
}

#[test]
fn ids_of_a_stream_that_has_become_quiet_are_forgotten() {
    let window = Duration::from_secs(60);
    let mut rig = Rig::new(StreamSettings { dedupe_window: window, ..StreamSettings::default() });
    let ids = 10_000;
    for n in 0..ids {
        let meta = MessageMeta { id: Some(IdHash(n)), ..MessageMeta::plain(1) };
        let options = PublishOptions::default();
        rig.shard.publish(rig.now, rig.stream, &[meta], options, &mut Vec::new()).expect("a good batch");
        rig.turn();
    }
    let stream = rig.stream;
    let parts = |shard: &Shard| shard.streams[&stream].dedupe.generations().count();
    assert!(parts(&rig.shard) > 1);
    let published = rig.now;
    rig.now = published + window - Duration::from_millis(1);
    rig.turn();
    assert!(parts(&rig.shard) > 1, "the window is not over");
    let wake_at = rig.shard.wake_at().expect("the end of the window is a timer");
    assert!(wake_at <= published + window, "{wake_at:?}");
    // A turn takes place only when the shard asks for it.
    rig.now = published + window;
    for _ in 0..1_000 {
        if rig.shard.wake_at().is_some_and(|at| at <= rig.now) {
            rig.turn();
        }
    }
    assert_eq!(parts(&rig.shard), 0);
    // After a restart the timer is set again.
    let meta = MessageMeta { id: Some(IdHash(7)), ..MessageMeta::plain(1) };
    let stored = rig.shard.publish(rig.now, rig.stream, &[meta], PublishOptions::default(), &mut Vec::new());
    assert!(stored.expect("a good batch").is_some(), "the id is new again");
    rig.turn();
    rig.shard.open(rig.now, Epoch(2));
    rig.turn();
    assert_eq!(rig.shard.wake_at(), Some(rig.now + window));
}

#[test]
fn an_image_without_forgotten_ids_knows_that_their_window_is_over() {
    let window = Duration::from_secs(60);
    // They are forgotten before an image, or after the stream's own part was taken.
    for in_the_middle in [false, true] {
        let mut rig = Rig::new(StreamSettings { dedupe_window: window, ..StreamSettings::default() });
        let meta = MessageMeta { id: Some(IdHash(7)), ..MessageMeta::plain(1) };
        rig.publish(&[meta]).expect("a good batch");
        rig.turn();
        let late = rig.now + window;
        let mut image = BTreeMap::new();
        take_image(&mut rig, &mut image, |_| {});
        match in_the_middle {
            false => {
                rig.now = late;
                rig.turn();
                take_image(&mut rig, &mut image, |_| {});
            }
            true => take_image(&mut rig, &mut image, |rig| {
                rig.now = late;
                rig.turn();
            }),
        }
        assert_eq!(rig.shard.streams[&rig.stream].dedupe.generations().count(), 0);
        let mut again = Shard::new(Limits::DEFAULT);
        again.load(image.iter().map(|(key, bytes)| (*key, Position(1), &bytes[..]))).expect("good parts");
        assert_eq!(again.latest(), late, "in the middle: {in_the_middle}");
    }
}

/// Takes all parts, in their order, and does something after the part of the stream. A part that has not changed
/// stays as it was.
fn take_image(rig: &mut Rig, image: &mut BTreeMap<PartKey, Vec<u8>>, after_stream: impl Fn(&mut Rig)) {
    let (mut left, mut listed) = (VecDeque::from(rig.shard.parts()), BTreeSet::new());
    let stream = PartKey { kind: STREAM, id: rig.stream.0, sub: 0 };
    while let Some(key) = left.pop_front() {
        let mut bytes = Vec::new();
        let taken = rig.shard.take_part(key, &mut bytes);
        for part in rig.shard.parts_of(key).into_iter().rev() {
            left.push_front(part);
        }
        if key == stream {
            after_stream(rig);
        }
        if taken == Taking::Taken {
            image.insert(key, bytes);
        }
        if taken != Taking::Gone {
            listed.insert(key);
        }
    }
    image.retain(|key, _| listed.contains(key));
}

#[test]
fn a_shorter_window_ends_at_its_own_time() {
    let hours = |hours: u64| Duration::from_secs(3_600 * hours);
    let mut rig = Rig::new(StreamSettings { dedupe_window: hours(24), ..StreamSettings::default() });
    let meta = MessageMeta { id: Some(IdHash(7)), ..MessageMeta::plain(1) };
    let published = rig.now;
    rig.shard
        .publish(rig.now, rig.stream, &[meta], PublishOptions::default(), &mut Vec::new())
        .expect("good");
    rig.turn();
    assert_eq!(rig.shard.wake_at(), Some(published + hours(24)));
    rig.now = published + hours(1);
    let settings = StreamSettings { dedupe_window: hours(2), ..StreamSettings::default() };
    rig.shard.change_stream(rig.now, rig.stream, &settings).expect("good settings");
    rig.turn();
    assert_eq!(rig.shard.wake_at(), Some(published + hours(2)));
    rig.now = published + hours(2);
    rig.turn();
    assert_eq!(rig.shard.streams[&rig.stream].dedupe.generations().count(), 0);
    assert_eq!(rig.shard.wake_at(), None);
}
