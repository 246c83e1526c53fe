//! Leases that are settled with messages that are stored: in one frame, or not at all.

use forebay_core::entry::{Entry, entries};
use forebay_core::group::{NotYours, Settlement};
use forebay_core::settings::{Acks, OnFull, StreamLimits};
use forebay_core::shard::{Arrangement, BUNDLE_LEASES_MAX, BUNDLE_PARTS_MAX, Settling};

use super::*;

const ACK: Settlement = Settlement { verb: Verb::Ack, reason: None, late: false, rest: None };

fn batch(id: Option<&str>, body: &str) -> Batch {
    let mut batch = BatchBuilder::default();
    batch.push(&Message { id, body: body.as_bytes(), ..Message::default() });
    batch.build()
}

fn name(text: &str) -> StreamName {
    StreamName::parse(text).expect("a good name")
}

/// What each frame that waits has of a bundle: published, acked, and others.
fn kinds(rig: &Rig) -> Vec<Vec<&'static str>> {
    let kind = |entry: Entry| match entry {
        Entry::Published { .. } => "published",
        Entry::Acked { .. } => "acked",
        Entry::Parked { .. } => "parked",
        Entry::StreamCreated { .. } => "stream",
        Entry::GroupCreated { .. } => "group",
        Entry::NotePut { .. } => "note",
        Entry::Handed { .. } | Entry::Leased { .. } => "handed",
        _ => "other",
    };
    let of =
        |frame: &Frame| entries(&frame.entries).map(|entry| kind(entry.expect("it can be read"))).collect();
    rig.waiting.iter().map(of).collect()
}

/// A rig whose worker holds this many messages, with `acks` for its group, and a second stream for outputs.
fn holding(count: usize, acks: Acks, bound: Bound) -> (Rig, StreamId, Vec<Lease>) {
    let mut rig = Rig::new(DriverConfig::default());
    let settings = GroupSettings { acks, buffer: 10_000, ..GroupSettings::default() };
    rig.driver.decide(|shard| shard.change_group(NOW, rig.group, &settings)).expect("good settings");
    let made = rig.driver.decide(|shard| shard.create_stream(NOW, &name("out"), &StreamSettings::default()));
    let out = made.expect("a new stream");
    rig.driver.join(NOW, rig.group, WORKER, "worker", bound).expect("a new member");
    let credit = match bound {
        Bound::Connection => Credit::slots(count as u32),
        Bound::Clock => Credit::Once { messages: count as u32, bytes: None, timeout: None },
    };
    rig.driver.credit(NOW, rig.group, WORKER, credit).expect("a member");
    rig.publish(count, 1);
    for _ in 0..3 {
        rig.turn();
        rig.sync();
    }
    let leases: Vec<Lease> = rig.deliveries.iter().flat_map(|delivery| delivery.leases().leases()).collect();
    assert_eq!(leases.len(), count);
    rig.driver.flush(NOW);
    rig.gather();
    rig.sync();
    (rig, out, leases)
}

fn settling(group: GroupId, leases: &[LeaseRun]) -> Settling<'_> {
    Settling { group, leases, settlement: &ACK }
}

#[test]
fn leases_of_both_kinds_are_settled_in_the_frame_of_the_messages_however_acks_are_written() {
    for bound in [Bound::Connection, Bound::Clock] {
        for acks in [Acks::Journal, Acks::Durable, Acks::Checkpoint] {
            let (mut rig, out, leases) = holding(3, acks, bound);
            // An ack before the bundle, which may wait for a checkpoint.
            settle(&mut rig.driver, NOW, rig.group, &leases[..1], Verb::Ack);
            let runs = LeaseRun::join(leases[1..].iter().copied());
            let output = batch(None, "made of two");
            let bundle = Bundle::default()
                .publish(Target::Id(out), &output, PublishOptions::default())
                .settle(settling(rig.group, &runs));
            let done = rig.driver.commit(NOW, &bundle).expect("the leases are current");
            assert_eq!(done.outcomes, [[(Outcome::Acked, 2)]]);
            rig.answers.clear();
            rig.driver.confirm(Ticket(9));
            rig.turn();
            let kinds = kinds(&rig);
            let whole = kinds.iter().filter(|frame| frame.ends_with(&["published", "acked"])).count();
            assert_eq!(whole, 1, "{bound:?} {acks:?}: {kinds:?}");
            assert_eq!(rig.driver.shard().last_seq(out), Some(Seq::START), "it is not visible before");
            assert_eq!(rig.answers, []);
            rig.sync();
            assert_eq!(rig.driver.shard().last_seq(out), Some(Seq(1)));
            assert_eq!(rig.answers, [Ticket(9)]);
            let figures = rig.driver.shard().figures(NOW, rig.group).expect("the group exists");
            assert_eq!((figures.lag, figures.in_flight), (0, 0));
        }
    }
}

#[test]
fn a_lease_that_is_over_refuses_the_whole_bundle_and_is_named() {
    let (mut rig, out, leases) = holding(3, Acks::Journal, Bound::Connection);
    settle(&mut rig.driver, NOW, rig.group, &leases[1..2], Verb::Retry { delay: None });
    rig.turn();
    let output = batch(None, "x");
    let runs = [LeaseRun { first: leases[0], count: 3 }];
    let publish = || Bundle::default().publish(Target::Id(out), &output, PublishOptions::default());
    let refused = rig.driver.commit(NOW, &publish().settle(settling(rig.group, &runs)));
    let (lease, why) = (leases[1], NotYours::Superseded);
    assert_eq!(refused, Err(BundleRefusal::NotYours { nth: 0, lease, why }));
    let unknown = [LeaseRun::one(Lease { seq: Seq(99), ..leases[0] })];
    let other = publish().settle(settling(rig.group, &runs[..0])).settle(settling(GroupId(77), &unknown));
    let refused = rig.driver.commit(NOW, &other);
    let (lease, why) = (unknown[0].first, NotYours::Unknown);
    assert_eq!(refused, Err(BundleRefusal::NotYours { nth: 1, lease, why }));
    assert!(rig.driver.shard().is_current(rig.group, leases[0]), "nothing was settled");
    assert_eq!(rig.driver.shard().last_given(out), Some(Seq::START), "nothing was stored");
}

#[test]
fn a_bundle_is_refused_if_a_stream_does_not_end_where_it_should() {
    let (mut rig, out, _) = holding(2, Acks::Journal, Bound::Connection);
    let (jobs, absent, output) = (name("jobs"), name("absent"), batch(None, "x"));
    let publish = || Bundle::default().publish(Target::Id(out), &output, PublishOptions::default());
    for (stream, expected, last) in
        [(&jobs, Seq(1), Seq(2)), (&jobs, Seq(3), Seq(2)), (&absent, Seq(1), Seq::START)]
    {
        let refused = rig.driver.commit(NOW, &publish().expect_end(stream, expected));
        assert_eq!(refused, Err(BundleRefusal::WrongEnd { stream: stream.clone(), last }));
        assert_eq!(rig.driver.shard().last_given(out), Some(Seq::START), "nothing was stored");
    }
    let nothing = Bundle::default().expect_end(&jobs, Seq(2));
    assert_eq!(rig.driver.commit(NOW, &nothing), Err(BundleRefusal::Empty));
    let both = publish().expect_end(&jobs, Seq(2)).expect_end(&absent, Seq::START);
    rig.driver.commit(NOW, &both).expect("both are as expected");
    // A message counts from the moment that it was given its place, durable or not.
    let refused = rig.driver.commit(NOW, &publish().expect_end(&name("out"), Seq::START));
    assert!(matches!(refused, Err(BundleRefusal::WrongEnd { last: Seq(1), .. })), "{refused:?}");
}

#[test]
fn what_cannot_go_together_is_refused_before_anything_is_done() {
    let (mut rig, out, leases) = holding(2, Acks::Journal, Bound::Connection);
    let output = batch(None, "x");
    let plain = PublishOptions::default();
    let run = [LeaseRun::one(leases[0])];
    let (own, settings) = (name("jobs"), StreamSettings::default());
    let extend = Settlement::from(Verb::Extend { by: Duration::from_secs(1), total_max: None });
    let many = [LeaseRun { first: leases[0], count: BUNDLE_LEASES_MAX as u32 + 1 }];
    let settle = || Bundle::default().settle(settling(rig.group, &run));
    let arrangement = || Arrangement { stream: (&own, &settings), groups: Vec::new() };
    let twice = BundleRefusal::Twice { what: "a lease" };
    let limit = BUNDLE_PARTS_MAX;
    let parts = (0..=limit).fold(Bundle::default(), |bundle, _| bundle.delete(out));
    for (bundle, refusal) in [
        (Bundle::default(), BundleRefusal::Empty),
        (settle().settle(settling(rig.group, &run)), twice),
        (settle().arrange(arrangement()), BundleRefusal::Mixed),
        (settle().delete(rig.stream), BundleRefusal::Mixed),
        (Bundle::default().delete(out).publish(Target::Id(out), &output, plain), BundleRefusal::Mixed),
        (
            Bundle::default().settle(Settling { settlement: &extend, ..settling(rig.group, &run) }),
            BundleRefusal::Extends,
        ),
        (
            Bundle::default().settle(settling(rig.group, &many)),
            BundleRefusal::TooMany { what: "leases", count: BUNDLE_LEASES_MAX + 1, limit: BUNDLE_LEASES_MAX },
        ),
        (parts, BundleRefusal::TooMany { what: "streams to delete", count: limit + 1, limit }),
        (
            Bundle::default().publish(Target::Name(&name("missing"), None), &output, plain),
            BundleRefusal::Publish { nth: 0, refusal: PublishRefusal::NoSuchStream },
        ),
    ] {
        assert_eq!(rig.driver.commit(NOW, &bundle), Err(refusal));
    }
    rig.driver.set_storage_full(true);
    let refused = rig.driver.commit(NOW, &settle().publish(Target::Id(out), &output, plain));
    let refusal = PublishRefusal::StorageFull;
    assert_eq!(refused, Err(BundleRefusal::Publish { nth: 0, refusal }));
    rig.driver.commit(NOW, &settle()).expect("settling goes on while storage is full");
    rig.turn();
    assert!(
        kinds(&rig).iter().flatten().all(|kind| *kind == "acked" || *kind == "handed"),
        "{:?}",
        kinds(&rig)
    );
}

#[test]
fn streams_and_groups_are_created_with_the_messages_for_them() {
    let (mut rig, _, leases) = holding(1, Acks::Journal, Bound::Connection);
    let (one, two) = (name("one"), name("two"));
    let group = GroupName::parse("all").expect("a good name");
    let (settings, of_group) = (StreamSettings::default(), GroupSettings::default());
    let small = StreamLimits { max_messages: Some(1), on_full: OnFull::Reject, ..StreamLimits::default() };
    let small = StreamSettings { limits: small, ..StreamSettings::default() };
    let run = [LeaseRun::one(leases[0])];
    let (first, second) = (batch(None, "a"), batch(None, "b"));
    let mut both = BatchBuilder::default();
    both.push(&Message { body: b"a", ..Message::default() });
    both.push(&Message { body: b"b", ..Message::default() });
    let both = both.build();
    let plain = PublishOptions::default();
    let arranged = || {
        Bundle::default()
            .arrange(Arrangement { stream: (&one, &settings), groups: vec![(&group, &of_group)] })
    };
    // The second stream is checked as it would be created.
    let full = arranged().publish(Target::Name(&two, Some(&small)), &both, plain);
    let refused = rig.driver.commit(NOW, &full);
    assert!(matches!(refused, Err(BundleRefusal::Publish { refusal: PublishRefusal::Full { .. }, .. })));
    let wrong = PublishOptions { expect_last: Some(Seq(3)), ..plain };
    let refused = rig.driver.commit(NOW, &arranged().publish(Target::Name(&one, None), &first, wrong));
    assert!(matches!(refused, Err(BundleRefusal::Publish { nth: 0, .. })));
    assert_eq!(rig.driver.shard().stream_named(&one), None, "nothing was created");
    let bundle = arranged()
        .publish(Target::Name(&one, None), &first, plain)
        .publish(Target::Name(&two, Some(&small)), &second, plain)
        .settle(settling(rig.group, &run));
    let done = rig.driver.commit(NOW, &bundle).expect("all of it is good");
    assert_eq!((done.streams.len(), done.published.len()), (1, 2));
    rig.driver.confirm(Ticket(5));
    rig.turn();
    let expected = ["stream", "group", "published", "stream", "published", "acked"];
    assert_eq!(kinds(&rig).last().map(Vec::as_slice), Some(&expected[..]));
}

#[test]
fn a_bundle_that_comes_again_is_answered_as_the_first_time() {
    let (mut rig, out, leases) = holding(2, Acks::Journal, Bound::Clock);
    let output = batch(Some("out-of-1"), "x");
    let run = [LeaseRun::one(leases[0])];
    let bundle = |batch| {
        let first = Bundle::default().publish(Target::Id(out), batch, PublishOptions::default());
        first.settle(settling(rig.group, &run))
    };
    let first = rig.driver.commit(NOW, &bundle(&output)).expect("the lease is current");
    let stored = |published: &[Published]| -> Vec<Admission> {
        published.iter().flat_map(|published| published.each().map(|(admission, _)| admission)).collect()
    };
    let new = Admission { seq: Seq(1), duplicate: false };
    assert_eq!((stored(&first.published), first.again), (vec![new], false));
    let again = rig.driver.commit(NOW, &bundle(&output)).expect("it was done before");
    let known = Admission { seq: Seq(1), duplicate: true };
    assert_eq!(stored(&again.published), [known]);
    assert!(again.again && again.outcomes == first.outcomes);
    assert_eq!(rig.driver.shard().last_given(out), Some(Seq(1)), "it is stored once");
    let others = [batch(Some("of-another"), "x"), batch(None, "x")];
    for other in &others {
        let refused = rig.driver.commit(NOW, &bundle(other));
        assert!(matches!(refused, Err(BundleRefusal::NotYours { why: NotYours::Gone, .. })), "{refused:?}");
    }
    // A message that is known by its id is a duplicate in a bundle that is new, too.
    let next = [LeaseRun::one(leases[1])];
    let new = Bundle::default().publish(Target::Id(out), &output, PublishOptions::default());
    let done = rig.driver.commit(NOW, &new.settle(settling(rig.group, &next))).expect("the lease is current");
    assert_eq!((stored(&done.published), done.again), (vec![known], false));
}

#[test]
fn a_bundle_fits_in_its_frame_while_a_full_stream_drops_messages_for_it() {
    let (mut rig, _, leases) = holding(600, Acks::Journal, Bound::Connection);
    let limits =
        StreamLimits { max_messages: Some(600), on_full: OnFull::DropOldest, ..StreamLimits::default() };
    let settings = StreamSettings { limits, ..StreamSettings::default() };
    rig.driver.decide(|shard| shard.change_stream(NOW, rig.stream, &settings)).expect("good settings");
    // Every other message may be dropped, so there are as many stretches as messages.
    let (given_back, kept): (Vec<Lease>, Vec<Lease>) =
        leases.iter().partition(|lease| lease.seq.0.is_multiple_of(2));
    settle(&mut rig.driver, NOW, rig.group, &given_back, Verb::Retry { delay: Some(Duration::from_secs(9)) });
    rig.turn();
    let mut output = BatchBuilder::default();
    for _ in 0..250 {
        output.push(&Message { body: b"x", ..Message::default() });
    }
    let output = output.build();
    let runs = LeaseRun::join(kept);
    let bundle = Bundle::default()
        .publish(Target::Id(rig.stream), &output, PublishOptions::default())
        .settle(settling(rig.group, &runs));
    rig.driver.commit(NOW, &bundle).expect("there is room for it");
    let figures = rig.driver.shard().figures(NOW, rig.group).expect("the group exists");
    assert_eq!(figures.counters.dropped, 250);
}
