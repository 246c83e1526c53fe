//! The largest and the strangest numbers that a caller may name.

use super::rig::{BEGIN, Rig};
use super::*;
use crate::entry::{MoveReason, MoveTrail, Origin};
use crate::group::{JobRefusal, LeaseRun, Outcome, Verb};
use crate::producers::ProducerStamp;
use crate::settings::{OnEnd, OnParkedKey, Retention, StreamLimits, UNASKED_BYTES_MAX};
use crate::types::IdHash;

const YEARS: Duration = Duration::from_secs(10 * 366 * 86_400);

fn with_id(id: u128) -> MessageMeta {
    MessageMeta { id: Some(IdHash(id)), ..MessageMeta::plain(1) }
}

#[test]
fn an_edited_copy_may_keep_the_id_of_what_it_replaces() {
    let mut rig = Rig::new(StreamSettings::default());
    let group = rig.group(GroupSettings::default());
    rig.join(group, 1, 10, Bound::Connection);
    rig.publish(&[with_id(5), with_id(6)]).expect("a good batch");
    rig.turn();
    rig.settle(group, 1..=1, Verb::Park);
    rig.turn();
    let mut admissions = Vec::new();
    let taken = rig.shard.resubmit(rig.now, group, Seq(1), &with_id(6), &mut admissions);
    assert_eq!(taken, Err(JobRefusal::IdTaken { seq: Seq(2) }.into()), "that one is another's");
    assert!(rig.shard.parked(group, Seq(1)).is_some() && admissions.is_empty());
    let stored = rig.shard.resubmit(rig.now, group, Seq(1), &with_id(5), &mut admissions);
    assert_eq!(stored, Ok(Some(SeqRange::one(Seq(3)))));
    assert_eq!(admissions, [crate::Admission { seq: Seq(3), duplicate: false }]);
    assert!(rig.shard.parked(group, Seq(1)).is_none());
    // From now on the id is the copy's, also after a restart.
    let mut again = rig.recovered();
    for shard in [&mut rig.shard, &mut again] {
        admissions.clear();
        let options = PublishOptions::default();
        let stored = shard.publish(rig.now, rig.stream, &[with_id(5)], options, &mut admissions);
        assert_eq!(stored, Ok(None));
        assert_eq!(admissions, [crate::Admission { seq: Seq(3), duplicate: true }]);
    }
}

#[test]
fn the_delay_of_a_stream_counts_for_what_waits_already() {
    let delayed =
        |seconds| StreamSettings { delay: Duration::from_secs(seconds), ..StreamSettings::default() };
    let mut rig = Rig::new(delayed(900));
    let group = rig.group(GroupSettings::default());
    rig.join(group, 1, 10, Bound::Connection);
    rig.publish_plain(2);
    let own = MessageMeta { not_before: Some(rig.now + Duration::from_secs(1_000)), ..MessageMeta::plain(1) };
    rig.publish(&[own]).expect("a good batch");
    rig.pass(Duration::from_secs(10));
    rig.turn();
    assert!(rig.delivered.is_empty());
    rig.shard.change_stream(rig.now, rig.stream, &delayed(20)).expect("good settings");
    let delayed_now = |shard: &Shard, now| shard.stream_figures(now, rig_stream(shard)).map(|of| of.delayed);
    assert_eq!(delayed_now(&rig.recovered(), rig.now), Some(3));
    rig.turn();
    assert!(rig.delivered.is_empty(), "ten seconds are not over");
    rig.pass(Duration::from_secs(10));
    rig.turn();
    let delivered = |rig: &Rig| rig.shard.counters(group).map(|of| of.delivered);
    assert_eq!(delivered(&rig), Some(2), "what had a time of its own has it shifted too, and waits for it");
    rig.pass(Duration::from_secs(100));
    rig.turn();
    assert_eq!(delivered(&rig), Some(3));
    rig.check_log();
    // A due message is not hidden again by a longer delay, neither now nor after a restart.
    rig.shard.leave(group, ConsumerId(1), Departure::Goodbye);
    rig.publish_plain(1);
    rig.pass(Duration::from_secs(60));
    rig.shard.change_stream(rig.now, rig.stream, &delayed(900)).expect("good settings");
    let mut again = rig.recovered();
    again.finish_turn(rig.now, &mut Effects::default());
    assert_eq!(delayed_now(&again, rig.now), Some(0));
    rig.turn();
    assert_eq!(delayed_now(&rig.shard, rig.now), Some(0));
}

fn rig_stream(shard: &Shard) -> StreamId {
    shard.streams_after(None).next().expect("there is one").1
}

/// The messages of a slow disk may be on their way for longer than an idle poller is remembered.
#[test]
fn a_poller_is_a_member_until_its_messages_have_left() {
    for timeout in [Duration::ZERO, Duration::from_secs(5)] {
        let mut rig = Rig::new(StreamSettings::default());
        let group = rig.group(GroupSettings::default());
        let poller = ConsumerId(1);
        rig.shard.join(rig.now, group, poller, "poller", Bound::Clock).expect("a new member");
        let credit = Credit::Once { messages: 3, bytes: None, timeout: Some(timeout) };
        rig.shard.credit(rig.now, group, poller, credit).expect("a member");
        rig.publish_plain(3);
        let mut effects = Effects::default();
        rig.shard.finish_turn(rig.now, &mut effects);
        assert_eq!(effects.deliveries.len(), 1);
        for _ in 0..10 {
            rig.pass(Duration::from_secs(20));
            rig.shard.finish_turn(rig.now, &mut effects);
        }
        assert_eq!(effects.departed, [], "its receive is not answered");
        rig.shard.served(group, poller);
        rig.pass(Duration::from_secs(29));
        rig.shard.finish_turn(rig.now, &mut effects);
        assert_eq!(effects.departed, [], "it may ask again");
        rig.pass(Duration::from_secs(31));
        rig.shard.finish_turn(rig.now, &mut effects);
        assert_eq!(effects.departed, [(group, poller)]);
    }
}

#[test]
fn waits_of_centuries_are_cut_to_a_year() {
    let mut rig = Rig::new(StreamSettings::default());
    let group = rig.group(GroupSettings::default());
    rig.shard.join(rig.now, group, ConsumerId(1), "poller", Bound::Clock).expect("a new member");
    let credit = Credit::Once { messages: 3, bytes: None, timeout: Some(Duration::MAX) };
    rig.shard.credit(rig.now, group, ConsumerId(1), credit).expect("a member");
    rig.publish_plain(3);
    rig.turn();
    let deadline = rig.delivered[0].deadline;
    assert!(deadline > rig.now && deadline < rig.now + YEARS);
    rig.settle(group, 1..=1, Verb::Retry { delay: Some(Duration::MAX) });
    let mut outcomes = Vec::new();
    let lease = LeaseRun::one(rig.lease(2));
    let longer = Verb::Extend { by: Duration::MAX, total_max: None };
    rig.shard.settle(rig.now, group, &[lease], &longer.into(), &mut outcomes);
    assert_eq!(outcomes, [(Outcome::Extended, 1)]);
    rig.turn();
    rig.check_log();
    let mut again = rig.recovered();
    rig.pass(YEARS);
    let mut effects = Effects::default();
    again.finish_turn(rig.now, &mut effects);
    let figures = again.figures(rig.now, group).expect("the group exists");
    assert_eq!((figures.in_flight, figures.counters.timed_out), (0, 2), "those with a lease lapsed");
}

#[test]
fn a_message_neither_waits_nor_lives_longer_than_a_year() {
    let mut rig = Rig::new(StreamSettings::default());
    let far = Some(rig.now + YEARS);
    let waits = MessageMeta { not_before: far, ..MessageMeta::plain(1) };
    let lives = MessageMeta { expires: Some(Timestamp(u64::MAX)), ..MessageMeta::plain(1) };
    assert_eq!(rig.publish(&[waits]), Err(PublishRefusal::TooFar));
    assert_eq!(rig.publish(&[lives]), Err(PublishRefusal::TooFar));
}

#[test]
fn a_job_may_name_more_positions_than_there_are() {
    let mut rig = Rig::new(StreamSettings::default());
    let group = rig.group(GroupSettings::default());
    rig.join(group, 1, 10, Bound::Connection);
    rig.publish_plain(2);
    rig.turn();
    rig.settle(group, 1..=2, Verb::Park);
    rig.turn();
    let start = |shard: &mut Shard, ranges| {
        shard.start_job(BEGIN, group, Work::Replay, Selection::Seqs(ranges), None, None)
    };
    let scattered = (1..=1_000_000).map(|n| SeqRange::one(Seq(n * 2))).collect();
    assert_eq!(start(&mut rig.shard, scattered).map(|(_, matched)| matched), Ok(1));
    rig.turn();
    let all = SeqRange { first: Seq(0), last: Seq(u64::MAX) };
    assert_eq!(start(&mut rig.shard, vec![all, all]).map(|(_, matched)| matched), Ok(1));
    rig.turn();
    rig.check_log();
    assert_eq!(rig.shard.parked_after(group, Seq::START).count(), 0);
}

#[test]
fn a_job_that_names_too_many_separate_positions_is_refused() {
    let mut rig = Rig::new(StreamSettings::default());
    let group = rig.group(GroupSettings::default());
    for _ in 0..4 {
        rig.publish_plain(10_000);
    }
    let scattered = (1..=20_000).map(|n| SeqRange::one(Seq(n * 2))).collect();
    let refused = rig.shard.start_job(BEGIN, group, Work::Replay, Selection::Seqs(scattered), None, None);
    assert_eq!(refused, Err(JobRefusal::TooManyRanges { ranges: 20_000, limit: 10_000 }));
}

#[test]
fn messages_may_be_kept_for_long_and_not_for_ever() {
    let limits = |age| StreamLimits { max_age: Some(age), ..StreamLimits::default() };
    let settings = |limits| StreamSettings { limits, ..StreamSettings::default() };
    let kept = |max_age| Retention::Log { max_age, max_bytes: None, max_messages: None };
    assert_eq!(settings(limits(YEARS)).check(), Ok(()));
    let refused = |settings: StreamSettings| settings.check().map_err(|error| error.field);
    assert_eq!(refused(settings(limits(Duration::MAX))), Err("limits.max_age".to_owned()));
    // As it is written down, that is nothing.
    assert_eq!(refused(settings(limits(Duration::from_nanos(1)))), Err("limits.max_age".to_owned()));
    // The longer of the two is looked at as well.
    let log = StreamSettings { retention: kept(Some(Duration::MAX)), ..settings(limits(YEARS)) };
    assert_eq!(refused(log), Err("retention.max_age".to_owned()));
    // What an earlier release has let in does no harm.
    let mut rig = Rig::new(StreamSettings::default());
    let entry = Entry::StreamChanged {
        stream: rig.stream,
        settings: settings(limits(Duration::MAX)).into(),
        at: BEGIN,
    };
    entry.encode(rig.shard.entries());
    let mut again = rig.recovered();
    let stored = again.publish(
        rig.now,
        rig.stream,
        &[MessageMeta::plain(1)],
        PublishOptions::default(),
        &mut Vec::new(),
    );
    again.arrived(rig.stream, stored.expect("a good batch").expect("it is new"), KeyRun::Plain);
    again.finish_turn(rig.now, &mut Effects::default());
    assert_eq!(again.last_seq(rig.stream), Some(Seq(1)));
}

#[test]
fn what_is_moved_does_not_expire_there_and_the_stream_it_makes_has_a_limit() {
    let mut rig = Rig::new(StreamSettings::default());
    let group = rig.group(GroupSettings::default());
    rig.join(group, 1, 10, Bound::Connection);
    let expires = Some(rig.now + Duration::from_secs(60));
    let message = MessageMeta { expires, ..MessageMeta::plain(1) };
    rig.publish(&[message]).expect("a good batch");
    rig.turn();
    let to = StreamName::parse("dead").expect("a good name");
    rig.settle(group, 1..=1, Verb::Move(to.clone()));
    rig.turn();
    let moved = rig.shard.complete_move(rig.now, group, Seq(1), &message, rig.now).expect("it goes");
    assert_eq!(moved.meta.expires, None);
    assert_eq!(moved.meta.origin.map(|origin| origin.receives), Some(1));
    let trail = moved.meta.origin.and_then(|origin| origin.trail);
    assert_eq!(
        trail,
        Some(MoveTrail { home: rig.stream, seq: Seq(1), from: rig.stream, why: MoveReason::Asked })
    );
    let limits = &rig.shard.stream_settings(moved.stream).expect("it was made for the message").limits;
    assert_eq!(limits.max_bytes, Some(UNASKED_BYTES_MAX));
}

#[test]
fn a_message_that_is_parked_before_its_key_was_looked_up_holds_up_the_rest_of_it() {
    let mut rig = Rig::new(StreamSettings::default());
    rig.key = KeyHash(9);
    let on_parked_key = OnParkedKey::Hold;
    let settings = GroupSettings { strategy: Choice::Ordered, on_parked_key, ..GroupSettings::default() };
    let group = rig.group(settings);
    rig.join(group, 1, 1, Bound::Clock);
    rig.publish(&[MessageMeta { key: Some(rig.key), ..MessageMeta::plain(1) }; 3]).expect("a good batch");
    rig.turn();
    let lease = rig.lease(1);
    // The lease outlives a restart, and is answered before anybody has joined, when no key is known.
    rig.shard = rig.recovered();
    rig.delivered.clear();
    let mut outcomes = Vec::new();
    rig.shard.settle(rig.now, group, &[LeaseRun::one(lease)], &Verb::Park.into(), &mut outcomes);
    assert_eq!(outcomes, [(Outcome::Parked, 1)]);
    rig.join(group, 2, 10, Bound::Connection);
    rig.turns(5);
    assert_eq!(rig.delivered, [], "the first of the key is parked, and the rest waits for it");
    // The key was written down, and is known after the next restart.
    rig.shard = rig.recovered();
    assert_eq!(rig.shard.parked(group, Seq(1)).and_then(|parked| parked.key), Some(rig.key));
    rig.join(group, 3, 10, Bound::Connection);
    rig.turns(5);
    assert_eq!(rig.delivered, []);
    rig.shard.start_job(rig.now, group, Work::Discard, Selection::All, None, None).expect("one is parked");
    rig.turns(5);
    let seqs: Vec<SeqRange> = rig.delivered.iter().map(|deliver| deliver.seqs).collect();
    assert_eq!(seqs, [SeqRange::one(Seq(2))]);
}

#[test]
fn a_numbered_batch_counts_whole_although_some_of_it_was_known_by_its_ids() {
    let mut rig = Rig::new(StreamSettings::default());
    rig.publish(&[with_id(1)]).expect("a good batch");
    let numbered = |shard: &mut Shard, number, messages: &[MessageMeta]| {
        let stamp = Some(ProducerStamp { producer: 7, epoch: 0, number });
        let mut admissions = Vec::new();
        let options = PublishOptions { stamp, ..PublishOptions::default() };
        shard.publish(BEGIN, StreamId(1), messages, options, &mut admissions)?;
        Ok::<_, PublishRefusal>(admissions.iter().map(|one| (one.seq.0, one.duplicate)).collect::<Vec<_>>())
    };
    let mixed = [with_id(1), with_id(2), MessageMeta::plain(1)];
    assert_eq!(numbered(&mut rig.shard, 0, &mixed), Ok(vec![(1, true), (2, false), (3, false)]));
    assert_eq!(numbered(&mut rig.shard, 3, &[with_id(1)]), Ok(vec![(1, true)]), "none of it is new");
    let mut again = rig.recovered();
    for shard in [&mut rig.shard, &mut again] {
        assert_eq!(numbered(shard, 0, &mixed), Ok(vec![(1, true), (2, true), (3, true)]), "it is sent again");
        assert_eq!(numbered(shard, 3, &[with_id(1)]), Ok(vec![(1, true)]));
        assert_eq!(numbered(shard, 4, &[with_id(3)]), Ok(vec![(4, false)]), "the next one follows");
    }
}

#[test]
fn a_step_of_less_than_a_microsecond_is_none() {
    let mut rig = Rig::new(StreamSettings::default());
    let priority_age_step = Duration::from_nanos(1);
    let group = rig.group(GroupSettings { priority_age_step, ..GroupSettings::default() });
    rig.join(group, 1, 10, Bound::Connection);
    let urgent = MessageMeta { priority: 3, ..MessageMeta::plain(1) };
    rig.publish(&[MessageMeta::plain(1), urgent]).expect("a good batch");
    rig.turn();
    let seqs: Vec<SeqRange> = rig.delivered.iter().map(|deliver| deliver.seqs).collect();
    assert_eq!(seqs, [SeqRange::one(Seq(2)), SeqRange::one(Seq(1))]);
}

#[test]
fn a_stream_is_cut_before_a_position_and_not_beyond_its_end() {
    let mut rig = Rig::new(StreamSettings::default());
    let group = rig.group(GroupSettings::default());
    rig.join(group, 1, 3, Bound::Connection);
    rig.publish_plain(10);
    rig.turns(2);
    rig.settle(group, 1..=1, Verb::Park);
    let (now, stream) = (rig.now, rig.stream);
    assert_eq!(rig.shard.truncate(now, stream, Seq(1)), Ok(0), "there is nothing before the first");
    let refused = rig.shard.truncate(now, stream, Seq(12));
    assert_eq!(refused, Err(ChangeRefusal::Beyond { seq: Seq(12), last: Seq(10) }));
    assert_eq!(rig.shard.truncate(now, stream, Seq(6)), Ok(4), "2 to 5: the first is parked");
    rig.turn();
    assert!(!rig.shard.is_current(group, rig.lease(2)), "its lease is over");
    let recovered = rig.recovered();
    for shard in [&rig.shard, &recovered] {
        let settled: Vec<u64> = (1..=10).filter(|seq| shard.is_settled(group, Seq(*seq))).collect();
        assert_eq!(settled, [1, 2, 3, 4, 5]);
        assert!(shard.parked(group, Seq(1)).is_some());
        assert_eq!(shard.stream_figures(now, stream).map(|figures| figures.messages), Some(6));
    }
    assert_eq!(rig.shard.truncate(now, stream, Seq(11)), Ok(5), "all of it may go");
}

#[test]
fn a_purge_of_what_is_ready_leaves_leased_messages_with_their_consumers() {
    let mut rig = Rig::new(StreamSettings::default());
    let group = rig.group(GroupSettings::default());
    rig.join(group, 1, 4, Bound::Connection);
    rig.publish_plain(10);
    rig.turns(2);
    rig.settle(group, 1..=1, Verb::Park);
    rig.settle(group, 2..=2, Verb::Retry { delay: Some(Duration::from_secs(60)) });
    assert_eq!(rig.shard.purge_ready(rig.now, rig.stream), Ok(7), "2 waits, 5 to 10 are ready");
    assert_eq!(rig.shard.purge_ready(rig.now, rig.stream), Ok(0));
    let condition = DeleteIf { unused: false, empty: true };
    let refused = rig.shard.delete_stream_if(rig.stream, condition);
    assert_eq!(refused, Err(ChangeRefusal::NotEmpty { messages: 3 }), "two are leased, one is parked");
    // The consumer settles its leases as ever, and a message that it gives up comes again.
    rig.settle(group, 3..=3, Verb::Ack);
    rig.settle(group, 4..=4, Verb::Retry { delay: Some(Duration::from_secs(60)) });
    rig.turn();
    let recovered = rig.recovered();
    let open: Vec<u64> = (1..=10).filter(|seq| !recovered.is_settled(group, Seq(*seq))).collect();
    assert_eq!(open, [4]);
    rig.shard.purge(rig.now, rig.stream, Purge { parked: true, ids: false }).expect("the stream exists");
    let unused = DeleteIf { unused: true, empty: true };
    let refused = rig.shard.delete_stream_if(rig.stream, unused);
    assert_eq!(refused, Err(ChangeRefusal::InUse { consumers: 1 }));
    assert_eq!(rig.shard.delete_stream_if(rig.stream, condition), Ok(()), "it is empty");
}

#[test]
fn a_message_that_ended_does_not_go_back_where_it_ended_before() {
    let to = StreamName::parse("dead").expect("a good name");
    for (why, is_parked) in [(MoveReason::Dropped, true), (MoveReason::Exhausted, false)] {
        let mut rig = Rig::new(StreamSettings::default());
        let from = rig.shard.create_stream(rig.now, &to, &StreamSettings::default()).expect("a new stream");
        let on_expired = OnEnd::Move(to.clone());
        let group = rig.group(GroupSettings { on_expired, ..GroupSettings::default() });
        let expires = Some(rig.now + Duration::from_secs(60));
        let trail = Some(MoveTrail { home: from, seq: Seq(9), from, why });
        let origin = Some(Origin { published: rig.now, receives: 0, trail });
        let message = MessageMeta { expires, origin, ..MessageMeta::plain(1) };
        rig.publish(&[message]).expect("a good batch");
        rig.pass(Duration::from_secs(61));
        rig.turn();
        let moved = rig.shard.complete_move(rig.now, group, Seq(1), &message, rig.now);
        assert_eq!(moved.is_err(), is_parked);
        assert_eq!(rig.shard.parked(group, Seq(1)).is_some(), is_parked);
    }
}
