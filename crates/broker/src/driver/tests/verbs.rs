//! Entries that belong together are in one frame, and fetched messages are found wherever they lie.

use forebay_core::entry::{Entry, entries};
use forebay_core::notes::Expected;
use forebay_core::shard::Arrangement;

use super::*;

const TINY: usize = 400;

/// A window that holds nearly nothing, so that contents have to be read back.
fn forgetful() -> Rig {
    Rig::new(DriverConfig { window_bytes_max: TINY, ..DriverConfig::default() })
}

fn batch(bodies: &[&str]) -> Batch {
    let mut batch = BatchBuilder::default();
    for body in bodies {
        batch.push(&Message { key: Some(b"k"), body: body.as_bytes(), ..Message::default() });
    }
    batch.build()
}

fn kinds(frame: &Frame) -> Vec<&'static str> {
    let name = |entry: Entry| match entry {
        Entry::Published { .. } => "published",
        Entry::Skipped { .. } => "skipped",
        Entry::Discarded { .. } => "discarded",
        Entry::NotePut { .. } => "note",
        Entry::NoteRemoved { .. } => "unnote",
        Entry::StreamCreated { .. } => "stream",
        Entry::StreamChanged { .. } => "other stream",
        Entry::StreamDeleted { .. } => "no stream",
        Entry::GroupCreated { .. } => "group",
        Entry::GroupChanged { .. } => "other group",
        _ => "other",
    };
    entries(&frame.entries).map(|entry| name(entry.expect("what was written can be read"))).collect()
}

/// The bodies of the fetched messages.
fn bodies(rig: &mut Rig) -> Vec<String> {
    let fetched = std::mem::take(&mut rig.driver.outbox().fetched);
    let found = fetched.into_iter().flat_map(|(_, found)| found);
    found.map(|found| String::from_utf8_lossy(&found.content).chars().rev().take(3).collect()).collect()
}

#[test]
fn messages_are_shown_wherever_they_lie() {
    let mut rig = forgetful();
    for n in 0..20 {
        rig.publish(3, n);
        rig.turn();
        rig.sync();
    }
    let range = |first: u64, last: u64| SeqRange::new(Seq(first), Seq(last));
    rig.driver.fetch(rig.stream, &[range(2, 4), range(40, 40)], Ticket(5));
    assert!(rig.driver.outbox().fetched.is_empty(), "they have to be read back");
    for _ in 0..8 {
        rig.read();
        rig.turn();
    }
    let fetched = std::mem::take(&mut rig.driver.outbox().fetched);
    let [(Ticket(5), found)] = &fetched[..] else { panic!("one answer: {fetched:?}") };
    assert_eq!(found.iter().map(|found| found.seq.0).collect::<Vec<_>>(), [2, 3, 4, 40]);
    assert!(found.iter().all(|found| found.published == NOW && found.content.len() > 90));
}

#[test]
fn a_move_ends_here_and_begins_there_in_one_frame() {
    let mut rig = forgetful();
    rig.join(10);
    let message = batch(&["moved"]);
    rig.driver
        .publish(NOW, rig.stream, &message, PublishOptions::default(), Ticket(1))
        .expect("a good batch");
    rig.turn();
    rig.sync();
    rig.turn();
    let lease = rig.deliveries[0].lease;
    // The window forgets it, so its content has to be read back to be moved.
    rig.publish(9, 2);
    rig.turn();
    rig.sync();
    let to = StreamName::parse("elsewhere").expect("a good name");
    let outcomes = settle(&mut rig.driver, NOW, rig.group, &[lease], Verb::Move(to.clone()));
    assert_eq!(outcomes, [Outcome::Moving]);
    for _ in 0..4 {
        rig.turn();
        rig.read();
    }
    rig.driver.flush(NOW);
    rig.gather();
    let together = rig.waiting.iter().any(|frame| {
        let kinds = kinds(frame);
        kinds.contains(&"skipped") && kinds.contains(&"published")
    });
    assert!(together, "{:?}", rig.waiting.iter().map(kinds).collect::<Vec<_>>());
    rig.sync();
    let elsewhere = rig.driver.shard().stream_named(&to).expect("it was made for the message");
    rig.driver.fetch(elsewhere, &[SeqRange::one(Seq(1))], Ticket(9));
    rig.read();
    rig.turn();
    assert_eq!(bodies(&mut rig), ["dev"], "the end of the body, from behind");
}

#[test]
fn several_streams_and_a_note_are_stored_together_or_not_at_all() {
    let mut rig = Rig::new(DriverConfig::default());
    let other = StreamName::parse("other").expect("a good name");
    rig.driver
        .decide(|shard| shard.create_stream(NOW, &other, &StreamSettings::default()))
        .expect("a new stream");
    rig.driver.confirm(Ticket(0));
    let other = rig.driver.shard().stream_named(&other).expect("it was created just now");
    rig.turn();
    rig.sync();
    let (one, two) = (batch(&["a", "b"]), batch(&["c"]));
    let plain = PublishOptions::default();
    let note = |expected| NoteChange { door: 7, key: b"place", value: Some(b"3"), expected, expires: None };

    let wrong = PublishOptions { expect_last: Some(Seq(9)), ..plain };
    let first = || Bundle::default().publish(Target::Id(rig.stream), &one, plain);
    let refused = rig.driver.commit(NOW, &first().publish(Target::Id(other), &two, wrong));
    let last = Seq::START;
    assert_eq!(
        refused,
        Err(BundleRefusal::Publish { nth: 1, refusal: PublishRefusal::WrongLastSeq { last } })
    );
    assert!(rig.driver.commit(NOW, &first().note(note(Expected::Version(4)))).is_err());
    assert_eq!(rig.driver.shard().last_given(rig.stream), Some(Seq::START), "nothing of it was stored");

    let both = first().publish(Target::Id(other), &two, plain).note(note(Expected::Absent));
    rig.driver.commit(NOW, &both).expect("all of it is good");
    rig.driver.confirm(Ticket(4));
    rig.turn();
    assert_eq!(rig.waiting.len(), 1);
    assert_eq!(kinds(&rig.waiting[0]), ["published", "published", "note"]);
    rig.sync();
    assert_eq!(rig.driver.shard().last_seq(rig.stream), Some(Seq(2)));
    assert_eq!(rig.driver.shard().last_seq(other), Some(Seq(1)));
    assert_eq!(rig.driver.shard().note(NOW, 7, b"place").map(|note| &note.value[..]), Some(&b"3"[..]));
}

#[test]
fn an_edited_copy_takes_the_place_of_a_parked_message_in_one_frame() {
    let mut rig = Rig::new(DriverConfig::default());
    rig.join(10);
    rig.publish(1, 1);
    rig.turn();
    rig.sync();
    rig.turn();
    let lease = rig.deliveries[0].lease;
    settle(&mut rig.driver, NOW, rig.group, &[lease], Verb::Park);
    rig.turn();
    rig.driver.flush(NOW);
    rig.gather();
    rig.sync();
    let edited = batch(&["better"]);
    let copy = Bundle::default().resubmit(rig.group, Seq(1), &edited);
    rig.driver.commit(NOW, &copy).expect("it is parked");
    rig.driver.confirm(Ticket(5));
    rig.turn();
    let kinds = kinds(rig.waiting.last().expect("there is a frame"));
    assert!(kinds.contains(&"published") && kinds.contains(&"discarded"), "{kinds:?}");
    assert!(rig.driver.commit(NOW, &copy).is_err(), "it is parked no more");
    rig.sync();
    rig.turn();
    let last = rig.deliveries.last().expect("the copy is delivered");
    assert!(last.messages[0].content.ends_with(b"better"));
    assert_eq!(rig.driver.shard().parked_after(rig.group, Seq::START).count(), 0);
}

#[test]
fn a_full_disk_puts_moves_off_and_refuses_copies_and_notes() {
    let mut rig = Rig::new(DriverConfig::default());
    rig.join(10);
    rig.publish(2, 1);
    rig.turn();
    rig.sync();
    rig.turn();
    let leases: Vec<Lease> = rig.deliveries[0].leases().leases().collect();
    let to = StreamName::parse("elsewhere").expect("a good name");
    rig.driver.set_storage_full(true);
    settle(&mut rig.driver, NOW, rig.group, &leases[..1], Verb::Move(to.clone()));
    settle(&mut rig.driver, NOW, rig.group, &leases[1..], Verb::Park);
    rig.turn();
    assert_eq!(rig.driver.shard().stream_named(&to), None, "nothing is stored for it");
    assert_eq!(rig.driver.shard().figures(NOW, rig.group).map(|figures| figures.moving), Some(1));
    let edited = batch(&["better"]);
    let refused = rig.driver.commit(NOW, &Bundle::default().resubmit(rig.group, Seq(2), &edited));
    assert_eq!(refused, Err(ResubmitRefusal::Publish(PublishRefusal::StorageFull).into()));
    let note = NoteChange { door: 1, key: b"k", value: Some(b"v"), expected: Expected::Any, expires: None };
    assert_eq!(rig.driver.put_note(NOW, note), Err(NoteRefusal::Full));

    rig.driver.set_storage_full(false);
    let later = NOW + Duration::from_secs(2);
    rig.driver.finish_turn(later);
    rig.gather();
    let elsewhere = rig.driver.shard().stream_named(&to).expect("there is room again");
    assert_eq!(rig.driver.shard().last_given(elsewhere), Some(Seq(1)));
}

#[test]
fn nothing_is_let_go_for_a_batch_that_is_refused_beside_it() {
    let mut rig = Rig::new(DriverConfig::default());
    let limits = forebay_core::settings::StreamLimits {
        max_messages: Some(2),
        on_full: forebay_core::settings::OnFull::DropOldest,
        ..Default::default()
    };
    let settings = StreamSettings { limits, ..StreamSettings::default() };
    rig.driver.decide(|shard| shard.change_stream(NOW, rig.stream, &settings)).expect("good settings");
    rig.driver.confirm(Ticket(0));
    rig.publish(2, 1);
    rig.turn();
    rig.sync();
    let (one, two) = (batch(&["a"]), batch(&["b"]));
    let plain = PublishOptions::default();
    let first = || Bundle::default().publish(Target::Id(rig.stream), &one, plain);
    assert!(rig.driver.commit(NOW, &first().publish(Target::Id(StreamId(99)), &two, plain)).is_err());
    let twice = first().publish(Target::Id(rig.stream), &two, plain);
    assert_eq!(rig.driver.commit(NOW, &twice), Err(BundleRefusal::Twice { what: "a stream" }));
    let dropped = rig.driver.shard().figures(NOW, rig.group).map(|figures| figures.counters.dropped);
    assert_eq!(dropped, Some(0));
    rig.driver.commit(NOW, &first()).expect("the oldest makes room");
    rig.driver.confirm(Ticket(4));
    let dropped = rig.driver.shard().figures(NOW, rig.group).map(|figures| figures.counters.dropped);
    assert_eq!(dropped, Some(1));
}

/// What the frames hold that were closed since the last call.
fn closed(rig: &mut Rig) -> Vec<Vec<&'static str>> {
    rig.turn();
    let kinds = rig.waiting.iter().map(kinds).collect();
    rig.sync();
    kinds
}

#[test]
fn a_stream_a_group_and_notes_are_arranged_in_one_frame_however_full_the_one_before_is() {
    let frame_max = 64 << 10;
    let mut rig = Rig::with_frames(DriverConfig::default(), 1_024, frame_max);
    let (name, group) = (StreamName::parse("q").expect("a name"), GroupName::parse("all").expect("a name"));
    let value = vec![7; 12 << 10];
    let note =
        |key| NoteChange { door: 3, key, value: Some(&value), expected: Expected::Absent, expires: None };
    let (stream_settings, group_settings) = (StreamSettings::default(), GroupSettings::default());
    let arrangement =
        Arrangement { stream: (&name, &stream_settings), groups: vec![(&group, &group_settings)] };
    // Another note of that size would fit beside this one, but not all that follows.
    let before = vec![1; 40 << 10];
    let large = NoteChange { door: 9, key: b"large", value: Some(&before), ..note(b"") };
    rig.driver.put_note(NOW, large).expect("a good note");
    rig.driver.confirm(Ticket(1));
    let bundle = Bundle::default().arrange(arrangement.clone()).note(note(b"one")).note(note(b"two"));
    rig.driver.commit(NOW, &bundle).expect("all good");
    rig.driver.confirm(Ticket(2));
    assert_eq!(closed(&mut rig), [vec!["note"], vec!["stream", "group", "note", "note"]]);
    assert_eq!(rig.answers, [Ticket(0), Ticket(0), Ticket(1), Ticket(2)]);

    let other = StreamSettings { dedupe_max: 7, ..StreamSettings::default() };
    let arrangement = Arrangement { stream: (&name, &other), ..arrangement };
    let gone = NoteChange { value: None, expected: Expected::Any, ..note(b"one") };
    rig.driver.commit(NOW, &Bundle::default().arrange(arrangement).note(gone)).expect("all good");
    rig.driver.confirm(Ticket(3));
    assert_eq!(closed(&mut rig), [["other stream", "unnote"]], "what is as it should be is left alone");

    let stream = rig.driver.shard().stream_named(&name).expect("it was created");
    rig.driver.commit(NOW, &Bundle::default().delete(stream).note(note(b"grave"))).expect("all good");
    rig.driver.confirm(Ticket(4));
    assert_eq!(closed(&mut rig), [["no stream", "note"]]);
    assert_eq!(rig.driver.shard().stream_named(&name), None);
}

#[test]
fn of_what_belongs_together_nothing_is_done_if_one_thing_is_refused() {
    let mut rig = Rig::with_frames(DriverConfig::default(), 1_024, 64 << 10);
    let (name, group) = (StreamName::parse("q").expect("a name"), GroupName::parse("all").expect("a name"));
    let (stream_settings, good) = (StreamSettings::default(), GroupSettings::default());
    let value = vec![0; 30 << 10];
    let note =
        |key| NoteChange { door: 3, key, value: Some(&value), expected: Expected::Absent, expires: None };
    let arrangement = Arrangement { stream: (&name, &stream_settings), groups: vec![(&group, &good)] };
    let bad = GroupSettings { buffer: 0, ..GroupSettings::default() };
    let wrong = Arrangement { groups: vec![(&group, &bad)], ..arrangement };
    let itself = GroupSettings {
        on_exhausted: forebay_core::settings::OnExhausted::Move(name.clone()),
        ..GroupSettings::default()
    };
    let circle = Arrangement { groups: vec![(&group, &itself)], ..arrangement };
    let missing = NoteChange { expected: Expected::Version(9), ..note(b"missing") };
    let many = [note(b"1"), note(b"2"), note(b"3")];
    let twice = [note(b"1"), NoteChange { value: None, ..note(b"1") }];
    for (arrangement, notes) in [
        (wrong, &[note(b"1")][..]),
        (circle, &[]),
        (arrangement.clone(), &[note(b"1"), missing]),
        (arrangement.clone(), &many),
        (arrangement.clone(), &twice),
    ] {
        let bundle = Bundle::default().arrange(arrangement);
        let bundle = notes.iter().fold(bundle, |bundle, note| bundle.note(*note));
        assert!(rig.driver.commit(NOW, &bundle).is_err(), "{bundle:?}");
    }
    assert!(rig.driver.commit(NOW, &Bundle::default().delete(rig.stream).note(missing)).is_err());
    assert!(rig.driver.commit(NOW, &Bundle::default().delete(StreamId(77))).is_err());
    rig.driver.set_storage_full(true);
    let full = rig.driver.commit(NOW, &Bundle::default().arrange(arrangement).note(note(b"1")));
    assert_eq!(full, Err(NoteRefusal::Full.into()));
    assert_eq!(closed(&mut rig), Vec::<Vec<&str>>::new(), "nothing of it is in the log");
    assert_eq!(rig.driver.shard().stream_named(&name), None);
    assert!(rig.driver.shard().stream_name(rig.stream).is_some());
}

/// Whatever the disk takes for the entry of the leases, or to bring the contents.
#[test]
fn what_is_leased_for_no_time_leaves_although_it_is_over_by_then() {
    let slow = DriverConfig { window_bytes_max: TINY, read_bytes_max: TINY, ..DriverConfig::default() };
    for mut rig in [Rig::new(DriverConfig::default()), Rig::new(slow)] {
        for n in 0..10 {
            rig.publish(3, n);
            rig.turn();
            rig.sync();
        }
        let poller = ConsumerId(5);
        rig.driver.join(NOW, rig.group, poller, "poller", Bound::Clock).expect("a new member");
        let credit = Credit::Once { messages: 99, bytes: None, timeout: Some(Duration::ZERO) };
        rig.driver.credit(NOW, rig.group, poller, credit).expect("a member");
        rig.turn();
        rig.turn();
        assert_eq!(rig.driver.shard().figures(NOW, rig.group).map(|figures| figures.in_flight), Some(0));
        assert!(rig.deliveries.is_empty(), "their leases are over, and not durable yet");
        assert!(rig.driver.is_owed(poller));
        for _ in 0..40 {
            rig.sync();
            rig.read();
            rig.turn();
        }
        let messages = rig.deliveries.iter().flat_map(each);
        let mut seen: Vec<u64> = messages.map(|message| message.lease.seq.0).collect();
        seen.sort_unstable();
        assert_eq!(seen, (1..=30).collect::<Vec<u64>>(), "each of them, once");
        assert_eq!(rig.driver.outbox().served, [poller]);
    }
}
