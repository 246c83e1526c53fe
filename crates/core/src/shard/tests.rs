//! A log that no server wrote is at worst refused.

mod bounds;
mod edges;
mod rig;

use proptest::prelude::*;

use super::*;
use crate::entry::{
    Cause, Ending, FailedMessage, Failure, JobEnd, LeasedRun, Messages, ParkedMessage, Route, Selection, Work,
};
use crate::group::{Bound, Credit, Departure, Effects};
use crate::settings::{Backoff, GroupSettings, SettingsError, Strategy as Choice, StreamSettings};
use crate::types::{ConsumerId, GroupName, JobId, KeyHash, Seq, SeqRange};
use std::time::Duration;

fn failure(at: Timestamp) -> Failure {
    Failure { at, attempt: 1, cause: Cause::Nack, reason: None, consumer: None }
}

fn range() -> impl Strategy<Value = SeqRange> {
    let near = (1u64..40, 0u64..20);
    let far = (1u64..u64::MAX / 2, 0u64..1 << 60);
    prop_oneof![9 => near, 1 => far].prop_map(|(first, more)| SeqRange::new(Seq(first), Seq(first + more)))
}

fn near() -> impl Strategy<Value = SeqRange> {
    (1u64..40, 0u64..20).prop_map(|(first, more)| SeqRange::new(Seq(first), Seq(first + more)))
}

fn entry() -> impl Strategy<Value = Entry> {
    let group = || (1u32..4).prop_map(GroupId);
    let stream = || (1u32..3).prop_map(StreamId);
    let ranges = || prop::collection::vec(range(), 1..4);
    let at = || (0u64..1 << 40).prop_map(Timestamp);
    prop_oneof![
        (0u32..5, at()).prop_map(|(epoch, at)| Entry::Opened { epoch: Epoch(epoch), at }),
        (prop_oneof![Just(1u32), Just(2), Just(u32::MAX)], "[ab]", at()).prop_map(|(stream, name, at)| {
            let settings = Box::default();
            Entry::StreamCreated { stream: StreamId(stream), name: StreamName::stored(&name), settings, at }
        }),
        (group(), stream(), "[ab]", 0u64..9, at()).prop_map(|(group, stream, name, floor, at)| {
            let strategy = if floor % 2 == 0 { Choice::Ordered } else { Choice::RoundRobin };
            let settings = Box::new(GroupSettings { strategy, ..GroupSettings::default() });
            Entry::GroupCreated {
                group,
                stream,
                name: GroupName::stored(&name),
                settings,
                floor: Seq(floor),
                at,
            }
        }),
        (stream(), 1u64..30, 1u32..20, at()).prop_map(|(stream, first, count, at)| Entry::Published {
            stream,
            first: Seq(first),
            ordinal: Ordinal(u64::MAX - u64::from(count) * 3),
            at,
            stamp: None,
            messages: Messages::Uniform { count, size: 10 },
        }),
        (group(), at(), ranges()).prop_map(|(group, at, ranges)| Entry::Handed { group, at, ranges }),
        (group(), ranges()).prop_map(|(group, ranges)| Entry::Acked { group, ranges }),
        (group(), ranges()).prop_map(|(group, ranges)| Entry::Returned { group, ranges }),
        (group(), at(), at(), ranges()).prop_map(|(group, at, until, ranges)| Entry::Snoozed {
            group,
            at,
            until,
            ranges
        }),
        (group(), at(), range(), any::<u32>()).prop_map(|(group, at, range, grant)| Entry::Leased {
            group,
            at,
            duration: Duration::from_secs(30),
            runs: vec![LeasedRun { range, grant: Grant(grant.into()) }],
        }),
        (group(), at(), range()).prop_map(|(group, at, range)| Entry::Failed {
            group,
            at,
            messages: vec![FailedMessage { seq: range.first, until: at, failure: failure(at) }],
        }),
        (group(), at(), range()).prop_map(|(group, at, range)| Entry::Parked {
            group,
            at,
            messages: vec![ParkedMessage { seq: range.first, key: Some(KeyHash(7)), failure: failure(at) }],
        }),
        (stream(), any::<u64>()).prop_map(|(stream, first)| Entry::Released { stream, first: Seq(first) }),
        (group(), ranges()).prop_map(|(group, ranges)| Entry::Skipped {
            group,
            how: Ending::Expired,
            ranges
        }),
        (group(), range()).prop_map(|(group, range)| Entry::Moving {
            group,
            route: Route::usual("b"),
            seqs: vec![SeqRange::one(range.first)]
        }),
        (group(), ranges()).prop_map(|(group, ranges)| Entry::Sent {
            group,
            route: Route::usual("b"),
            ranges
        }),
        (group(), near()).prop_map(|(group, range)| Entry::Replayed {
            group,
            job: JobId(1),
            ranges: vec![range]
        }),
        (group(), near()).prop_map(|(group, range)| Entry::Discarded {
            group,
            job: JobId(1),
            ranges: vec![range]
        }),
        (group(), at(), ranges()).prop_map(|(group, at, ranges)| Entry::JobStarted {
            group,
            job: JobId(1),
            at,
            work: Work::Replay,
            selection: Selection::Seqs(ranges),
            limit: None,
            rate: None
        }),
        (group(), at(), ranges()).prop_map(|(group, at, ranges)| Entry::JobStarted {
            group,
            job: JobId(2),
            at,
            work: Work::Move { to: None },
            selection: Selection::Seqs(ranges),
            limit: None,
            rate: None
        }),
        (group(), range()).prop_map(|(group, range)| Entry::Moving {
            group,
            route: Route::Job { job: JobId(2), to: None },
            seqs: vec![SeqRange::one(range.first)]
        }),
        (group(), ranges()).prop_map(|(group, ranges)| Entry::Stayed { group, ranges }),
        (group(), ranges()).prop_map(|(group, ranges)| Entry::JobPassed { group, job: JobId(2), ranges }),
        (group(), at()).prop_map(|(group, at)| Entry::JobEnded {
            group,
            job: JobId(1),
            at,
            how: JobEnd::Cancelled
        }),
        (group(), at(), ranges()).prop_map(|(group, at, ranges)| Entry::Extended {
            group,
            at,
            deadline: at,
            ranges
        }),
        (group(), 0u64..50, any::<bool>()).prop_map(|(group, floor, parked)| Entry::Reset {
            group,
            floor: Seq(floor),
            parked
        }),
        (stream(), 0u64..50, any::<bool>(), any::<bool>()).prop_map(|(stream, through, parked, ids)| {
            Entry::Purged { stream, through: Seq(through), parked, ids }
        }),
        group().prop_map(|group| Entry::GroupDeleted { group }),
        (stream(), 0..u64::MAX)
            .prop_map(|(stream, last)| Entry::StreamDeleted { stream, last: Ordinal(last) }),
    ]
}

proptest! {
    #[test]
    fn any_entries_are_applied_or_refused_but_never_worse(entries in prop::collection::vec(entry(), 0..60)) {
        let mut shard = Shard::new(Limits::DEFAULT);
        for (n, entry) in entries.iter().enumerate() {
            let _ = shard.apply(Position(n as u64 + 1), entry);
        }
        let (now, epoch) = (shard.latest(), Epoch(shard.epoch().0 + 1));
        shard.open(now, epoch);
        let mut effects = Effects::default();
        shard.finish_turn(now, &mut effects);
        let mut left = shard.parts();
        while let Some(key) = left.pop() {
            shard.take_part(key, &mut Vec::new());
            left.extend(shard.parts_of(key));
        }
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let mut shard = Shard::new(Limits::DEFAULT);
    shard.open(Timestamp::ZERO, Epoch(1));
    let name = StreamName::parse("jobs").expect("a good name");
    let stream =
        shard.create_stream(Timestamp::ZERO, &name, &StreamSettings::default()).expect("a new stream");
    let backoff = Backoff { jitter: 2.0, ..Backoff::default() };
    let settings = GroupSettings { backoff, ..GroupSettings::default() };
    let group = GroupName::parse("workers").expect("a good name");
    let refused = shard.create_group(Timestamp::ZERO, stream, &group, &settings, Start::Beginning);
    let wrong = SettingsError::new("backoff.jitter", "between 0 and 1", "2");
    assert_eq!(refused, Err(CreateRefusal::Settings(wrong)));
}

/// A shard with one stream and one group, and the messages durable in it.
fn with_messages(settings: &GroupSettings, messages: &[MessageMeta]) -> (Shard, StreamId, GroupId) {
    let mut shard = Shard::new(Limits::DEFAULT);
    shard.open(Timestamp::ZERO, Epoch(1));
    let name = StreamName::parse("jobs").expect("a good name");
    let stream =
        shard.create_stream(Timestamp::ZERO, &name, &StreamSettings::default()).expect("a new stream");
    let options = PublishOptions::default();
    let stored = shard.publish(Timestamp::ZERO, stream, messages, options, &mut Vec::new());
    let stored = stored.expect("a good batch").expect("they are new");
    shard.arrived(stream, stored, KeyRun::Plain);
    let name = GroupName::parse("workers").expect("a good name");
    let group = shard.create_group(Timestamp::ZERO, stream, &name, settings, Start::Beginning);
    (shard, stream, group.expect("a new group"))
}

fn join(shard: &mut Shard, group: GroupId, consumer: ConsumerId) {
    shard.join(Timestamp::ZERO, group, consumer, "worker", Bound::Connection).expect("a new member");
    shard.credit(Timestamp::ZERO, group, consumer, Credit::slots(10)).expect("a member");
}

#[test]
fn a_read_from_before_a_change_to_ordered_says_nothing_about_keys() {
    let keyed = MessageMeta { key: Some(KeyHash(7)), ..MessageMeta::plain(1) };
    let (mut shard, _, group) = with_messages(&GroupSettings::default(), &[keyed; 4]);
    join(&mut shard, group, ConsumerId(1));
    let mut effects = Effects::default();
    shard.finish_turn(Timestamp::ZERO, &mut effects);
    let asked = effects.reads.pop().expect("the group was not there when they came");
    assert!(!asked.keys);
    let ordered = GroupSettings { strategy: Choice::Ordered, ..GroupSettings::default() };
    shard.change_group(Timestamp::ZERO, group, &ordered).expect("good settings");
    shard.read_ahead(group, asked.seqs, KeyRun::Plain);
    shard.finish_turn(Timestamp::ZERO, &mut effects);
    assert!(effects.deliveries.is_empty(), "their order is not known: {:?}", effects.deliveries);
    let asked = effects.reads.pop().expect("it asks again");
    assert!(asked.keys);
    shard.read_ahead(group, asked.seqs, KeyRun::Each(&[KeyHash(7); 4]));
    shard.finish_turn(Timestamp::ZERO, &mut effects);
    let seqs: Vec<SeqRange> = effects.deliveries.iter().map(|deliver| deliver.seqs).collect();
    assert_eq!(seqs, [SeqRange::one(Seq(1))], "one of a key at a time");
}

#[test]
fn a_leased_message_expires_even_where_the_stream_promises_it_to_nobody_else() {
    let expires = Some(Timestamp(1_000_000));
    let message = MessageMeta { expires, ..MessageMeta::plain(1) };
    let (mut shard, stream, group) = with_messages(&GroupSettings::default(), &[message; 2]);
    join(&mut shard, group, ConsumerId(1));
    shard.read_ahead(group, SeqRange::new(Seq(1), Seq(2)), KeyRun::Plain);
    let mut effects = Effects::default();
    shard.finish_turn(Timestamp::ZERO, &mut effects);
    assert_eq!(effects.deliveries.len(), 1);
    shard.let_go(stream, Seq(3));
    let later = Timestamp(2_000_000);
    shard.finish_turn(later, &mut effects);
    shard.leave(group, ConsumerId(1), Departure::Lost);
    effects = Effects::default();
    shard.join(later, group, ConsumerId(2), "worker", Bound::Connection).expect("a new member");
    shard.credit(later, group, ConsumerId(2), Credit::slots(10)).expect("a member");
    shard.finish_turn(later, &mut effects);
    assert!(effects.deliveries.is_empty(), "its time is over: {:?}", effects.deliveries);
    let figures = shard.figures(later, group).expect("the group exists");
    assert_eq!((figures.lag, figures.counters.expired), (0, 2));
}

/// Everything that was written, one frame for each call, and the parts of an image as they are taken.
struct Recorder {
    shard: Shard,
    frames: Vec<Vec<u8>>,
    parts: Vec<(crate::types::PartKey, Position, Vec<u8>)>,
}

impl Recorder {
    fn commit(&mut self) {
        let mut effects = Effects::default();
        self.shard.finish_turn(Timestamp(5), &mut effects);
        self.frames.push(std::mem::take(self.shard.entries()));
    }

    fn take(&mut self, key: crate::types::PartKey) {
        let mut bytes = Vec::new();
        let through = Position(self.frames.len() as u64);
        if self.shard.take_part(key, &mut bytes) == crate::image::Taking::Taken {
            self.parts.push((key, through, bytes));
        }
    }

    /// What comes back from the image and all of the log, as if nothing had been trimmed.
    fn recover(&self) -> Result<Shard, crate::codec::DecodeError> {
        let mut shard = Shard::new(Limits::DEFAULT);
        shard.load(self.parts.iter().map(|(key, through, bytes)| (*key, *through, &bytes[..])))?;
        for (n, frame) in self.frames.iter().enumerate() {
            for entry in crate::entry::entries(frame) {
                shard.apply(Position(n as u64 + 1), &entry?)?;
            }
        }
        Ok(shard)
    }
}

#[test]
fn what_was_purged_and_deleted_before_an_image_or_in_the_middle_of_one_does_not_stop_recovery() {
    for registry_after in [true, false] {
        let plain = [MessageMeta::plain(1); 3];
        let (mut shard, stream, _) = with_messages(&GroupSettings::default(), &plain);
        let frames = vec![std::mem::take(shard.entries())];
        let mut log = Recorder { shard, frames, parts: Vec::new() };
        let registry = log.shard.parts()[0];
        if !registry_after {
            log.take(registry);
        }
        let late = GroupName::parse("late").expect("a good name");
        let late =
            log.shard.create_group(Timestamp(1), stream, &late, &GroupSettings::default(), Start::Beginning);
        let late = late.expect("a new group");
        join(&mut log.shard, late, ConsumerId(9));
        log.shard.read_ahead(late, SeqRange::new(Seq(1), Seq(3)), KeyRun::Plain);
        log.commit();
        log.shard.purge(Timestamp(2), stream, Purge::default()).expect("the stream exists");
        log.commit();
        log.shard.delete_stream(stream, true).expect("the stream exists");
        log.commit();
        let left = log.shard.parts();
        for key in left {
            if registry_after || key != registry {
                log.take(key);
            }
        }
        let recovered = log.recover().expect("the stream is gone, and so is all that was said of it");
        assert_eq!(recovered.streams.len() + recovered.groups.len(), 0, "registry after: {registry_after}");
    }
}

#[test]
fn a_position_in_the_log_is_not_given_again_if_its_stream_is_deleted_while_an_image_is_made() {
    let (mut shard, stream, _) = with_messages(&GroupSettings::default(), &[MessageMeta::plain(1)]);
    let frames = vec![std::mem::take(shard.entries())];
    let mut log = Recorder { shard, frames, parts: Vec::new() };
    let registry = log.shard.parts()[0];
    log.take(registry);
    let plain = [MessageMeta::plain(1); 3];
    let options = PublishOptions::default();
    let stored = log.shard.publish(Timestamp(1), stream, &plain, options, &mut Vec::new());
    stored.expect("a good batch");
    log.commit();
    let next = log.shard.next_ordinal();
    // The next image begins here. The registry has not changed, so it is not written again, and the stream is gone when
    // its turn comes.
    log.parts[0].1 = Position(log.frames.len() as u64);
    log.shard.delete_stream(stream, true).expect("the stream is there");
    log.commit();
    let mut recovered = Shard::new(Limits::DEFAULT);
    let parts = log.parts.iter().map(|(key, through, bytes)| (*key, *through, &bytes[..]));
    recovered.load(parts).expect("a good image");
    // The log before the image was trimmed.
    let last = Position(log.frames.len() as u64);
    for entry in crate::entry::entries(&log.frames[log.frames.len() - 1]) {
        recovered.apply(last, &entry.expect("an entry")).expect("it fits the image");
    }
    recovered.open(Timestamp(9), Epoch(2));
    assert_eq!(recovered.next_ordinal(), next);
}

#[test]
fn a_position_in_the_log_is_not_given_again_after_the_last_stream_is_deleted() {
    let plain = [MessageMeta::plain(1); 3];
    for deleted_after_image in [false, true] {
        let (mut shard, stream, _) = with_messages(&GroupSettings::default(), &plain);
        let next = shard.next_ordinal();
        let frames = vec![std::mem::take(shard.entries())];
        let mut log = Recorder { shard, frames, parts: Vec::new() };
        if deleted_after_image {
            for key in log.shard.parts() {
                log.take(key);
            }
        }
        log.shard.delete_stream(stream, true).expect("the stream is there");
        log.commit();
        let mut recovered = log.recover().expect("the log can be recovered");
        recovered.open(Timestamp(2), Epoch(2));
        assert_eq!(recovered.next_ordinal(), next, "deleted after an image: {deleted_after_image}");
    }
}
