use super::*;
use crate::codec::put_varint;
use crate::entry::encode::put_entry;
use crate::settings::MoveTerms;
use crate::types::IdHash;
use proptest::prelude::*;

fn range() -> impl Strategy<Value = SeqRange> {
    (1u64..1 << 40, 0u64..1000).prop_map(|(first, more)| SeqRange::new(Seq(first), Seq(first + more)))
}

fn ranges() -> impl Strategy<Value = Vec<SeqRange>> {
    prop::collection::vec(range(), 0..20)
}

fn time() -> impl Strategy<Value = Timestamp> {
    (0u64..1 << 55).prop_map(Timestamp)
}

fn text() -> impl Strategy<Value = Option<Arc<str>>> {
    prop_oneof![Just(None), "[a-c]{1,3}".prop_map(|text| Some(Arc::from(text)))]
}

fn failure() -> impl Strategy<Value = Failure> {
    let cause = prop_oneof![Just(Cause::Nack), Just(Cause::Timeout), Just(Cause::Lost), Just(Cause::Damaged)];
    (time(), any::<u32>(), cause, text(), text()).prop_map(|(at, attempt, cause, reason, consumer)| Failure {
        at,
        attempt,
        cause,
        reason,
        consumer,
    })
}

fn stamp() -> impl Strategy<Value = Option<ProducerStamp>> {
    let stamp = (any::<u64>(), any::<u32>(), any::<u64>());
    prop::option::of(stamp.prop_map(|(producer, epoch, number)| ProducerStamp { producer, epoch, number }))
}

fn selection() -> impl Strategy<Value = Selection> {
    prop_oneof![
        Just(Selection::All),
        "[a-z]{0,9}".prop_map(|reason| Selection::Reason(Arc::from(reason))),
        ranges().prop_map(Selection::Seqs),
    ]
}

fn stream_name() -> impl Strategy<Value = Option<StreamName>> {
    prop::option::of("[a-z]{1,9}".prop_map(|name| StreamName::stored(&name)))
}

fn work() -> impl Strategy<Value = Work> {
    let name = "[a-z]{1,9}".prop_map(|name| StreamName::stored(&name));
    prop_oneof![
        Just(Work::Replay),
        Just(Work::Discard),
        stream_name().prop_map(|to| Work::Move { to }),
        name.prop_map(|to| Work::MoveParked { to }),
    ]
}

fn job_end() -> impl Strategy<Value = JobEnd> {
    prop_oneof![
        Just(JobEnd::Done),
        Just(JobEnd::Cancelled),
        Just(JobEnd::Failed(JobFailure::NoDestination)),
        Just(JobEnd::Failed(JobFailure::NoOrigin)),
        "[a-z]{0,9}".prop_map(|why| JobEnd::Failed(JobFailure::Refused(Arc::from(why)))),
    ]
}

fn rate() -> impl Strategy<Value = Option<Rate>> {
    prop::option::of((0.001f64..1e7, 1u32..9).prop_map(|(per_second, burst)| Rate { per_second, burst }))
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..40)
}

fn message() -> impl Strategy<Value = MessageMeta> {
    (any::<u32>(), any::<Option<u128>>(), any::<Option<u64>>(), 0u8..10, any::<bool>(), time()).prop_map(
        |(size, id, key, priority, timed, at)| MessageMeta {
            size,
            id: id.map(IdHash),
            key: key.map(KeyHash),
            priority,
            not_before: timed.then_some(at),
            expires: (!timed).then_some(at),
            origin: (timed && priority > 4).then_some(Origin {
                published: at,
                receives: size,
                trail: (priority > 6).then_some(MoveTrail {
                    home: StreamId(size),
                    seq: Seq(at.0),
                    from: StreamId(7),
                    why: MoveReason::decode(priority % 4).expect("a reason"),
                }),
            }),
        },
    )
}

fn messages() -> impl Strategy<Value = Messages> {
    prop_oneof![
        (1u32..100_000, any::<u32>()).prop_map(|(count, size)| Messages::Uniform { count, size }),
        prop::collection::vec(message(), 1..20).prop_map(Messages::Each),
    ]
}

fn copied() -> impl Strategy<Value = Vec<CopiedMessage>> {
    let plain = (any::<u32>(), 1usize..9).prop_map(|(size, count)| vec![MessageMeta::plain(size); count]);
    let metas = prop_oneof![plain, prop::collection::vec(message(), 1..4)];
    let run = (1u64..1 << 50, 0u64..1 << 60, time(), metas).prop_map(|(seq, ordinal, at, metas)| {
        let one =
            move |(n, meta)| CopiedMessage { seq: Seq(seq + n), ordinal: Ordinal(ordinal + n), at, meta };
        (0..).zip(metas).map(one).collect::<Vec<_>>()
    });
    prop::collection::vec(run, 1..6).prop_map(|runs| runs.concat())
}

fn entry() -> impl Strategy<Value = Entry> {
    let group = || any::<u32>().prop_map(GroupId);
    let stream = || any::<u32>().prop_map(StreamId);
    prop_oneof![
        (any::<u32>(), time()).prop_map(|(epoch, at)| Entry::Opened { epoch: Epoch(epoch), at }),
        (stream(), "[a-z]{1,9}", time()).prop_map(|(stream, name, at)| Entry::StreamCreated {
            stream,
            name: StreamName::stored(&name),
            settings: Box::default(),
            at
        }),
        (group(), stream(), "[a-z]{1,9}", any::<u64>(), time()).prop_map(
            |(group, stream, name, floor, at)| {
                Entry::GroupCreated {
                    group,
                    stream,
                    name: GroupName::stored(&name),
                    settings: Box::default(),
                    floor: Seq(floor),
                    at,
                }
            }
        ),
        (stream(), 1u64..1 << 50, any::<u64>(), time(), stamp(), messages()).prop_map(
            |(stream, first, ordinal, at, stamp, messages)| Entry::Published {
                stream,
                first: Seq(first),
                ordinal: Ordinal(ordinal),
                at,
                stamp,
                messages
            }
        ),
        (stream(), any::<u64>()).prop_map(|(stream, first)| Entry::Released { stream, first: Seq(first) }),
        (stream(), copied()).prop_map(|(stream, messages)| Entry::Copied { stream, messages }),
        (group(), time(), ranges()).prop_map(|(group, at, ranges)| Entry::Handed { group, at, ranges }),
        (group(), ranges()).prop_map(|(group, ranges)| Entry::Acked { group, ranges }),
        (group(), ranges()).prop_map(|(group, ranges)| Entry::Returned { group, ranges }),
        (group(), time(), time(), ranges()).prop_map(|(group, at, until, ranges)| Entry::Snoozed {
            group,
            at,
            until,
            ranges
        }),
        (group(), time(), 0u64..1 << 40, prop::collection::vec((range(), any::<u64>()), 0..9)).prop_map(
            |(group, at, duration, runs)| Entry::Leased {
                group,
                at,
                duration: Duration::from_micros(duration),
                runs: runs
                    .into_iter()
                    .map(|(range, grant)| LeasedRun { range, grant: Grant(grant) })
                    .collect(),
            }
        ),
        (group(), time(), prop::collection::vec((1u64..1 << 40, 0u64..1 << 40, failure()), 0..9)).prop_map(
            |(group, at, messages)| Entry::Failed {
                group,
                at,
                messages: messages
                    .into_iter()
                    .map(|(seq, wait, failure)| FailedMessage {
                        seq: Seq(seq),
                        until: at + Duration::from_micros(wait),
                        failure
                    })
                    .collect(),
            }
        ),
        (group(), time(), prop::collection::vec((1u64..1 << 40, any::<Option<u64>>(), failure()), 0..9))
            .prop_map(|(group, at, messages)| Entry::Parked {
                group,
                at,
                messages: messages
                    .into_iter()
                    .map(|(seq, key, failure)| ParkedMessage {
                        seq: Seq(seq),
                        key: key.map(KeyHash),
                        failure
                    })
                    .collect(),
            }),
        rare(),
    ]
}

fn route() -> impl Strategy<Value = Route> {
    ("[a-z]{1,9}", any::<bool>(), any::<bool>(), 0u8..4).prop_map(|(to, create, keep_age, why)| {
        let why = MoveReason::decode(why).expect("a reason");
        Route::Alone { to: StreamName::stored(&to), terms: MoveTerms { create, keep_age }, why }
    })
}

fn rare() -> impl Strategy<Value = Entry> {
    let group = || any::<u32>().prop_map(GroupId);
    let stream = || any::<u32>().prop_map(StreamId);
    let job = || any::<u32>().prop_map(JobId);
    let how =
        prop_oneof![Just(Ending::Skipped), Just(Ending::Expired), Just(Ending::Dropped), Just(Ending::Moved)];
    let copied = (1u64..1 << 40, any::<u32>(), time(), message()).prop_map(|(seq, ordinal, at, meta)| {
        CopiedMessage { seq: Seq(seq), ordinal: Ordinal(ordinal.into()), at, meta }
    });
    prop_oneof![
        (stream(), prop::collection::vec(copied, 1..9))
            .prop_map(|(stream, messages)| Entry::Copied { stream, messages }),
        (group(), how, ranges()).prop_map(|(group, how, ranges)| Entry::Skipped { group, how, ranges }),
        (group(), route(), ranges()).prop_map(|(group, route, seqs)| Entry::Moving { group, route, seqs }),
        (group(), route(), ranges()).prop_map(|(group, route, ranges)| Entry::Sent { group, route, ranges }),
        (group(), job(), ranges()).prop_map(|(group, job, ranges)| Entry::Replayed { group, job, ranges }),
        (group(), job(), ranges()).prop_map(|(group, job, ranges)| Entry::Discarded { group, job, ranges }),
        (group(), job(), time(), work(), selection(), any::<Option<u32>>(), rate()).prop_map(
            |(group, job, at, work, selection, limit, rate)| Entry::JobStarted {
                group,
                job,
                at,
                work,
                selection,
                limit: limit.map(u64::from),
                rate
            }
        ),
        (group(), job(), time(), job_end()).prop_map(|(group, job, at, how)| Entry::JobEnded {
            group,
            job,
            at,
            how
        }),
        (group(), job(), ranges()).prop_map(|(group, job, ranges)| Entry::JobPassed { group, job, ranges }),
        (group(), ranges()).prop_map(|(group, ranges)| Entry::Stayed { group, ranges }),
        (group(), job(), stream_name(), ranges()).prop_map(|(group, job, to, seqs)| Entry::Moving {
            group,
            route: Route::Job { job, to },
            seqs
        }),
        (group(), time(), time(), ranges()).prop_map(|(group, at, deadline, ranges)| Entry::Extended {
            group,
            at,
            deadline,
            ranges
        }),
        (group(), time()).prop_map(|(group, at)| Entry::GroupChanged { group, settings: Box::default(), at }),
        (stream(), time()).prop_map(|(stream, at)| Entry::StreamChanged {
            stream,
            settings: Box::default(),
            at
        }),
        (group(), any::<bool>()).prop_map(|(group, paused)| Entry::GroupPaused { group, paused }),
        (group(), any::<u64>(), any::<bool>()).prop_map(|(group, floor, parked)| Entry::Reset {
            group,
            floor: Seq(floor),
            parked
        }),
        (stream(), any::<u64>(), any::<bool>(), any::<bool>()).prop_map(|(stream, through, parked, ids)| {
            Entry::Purged { stream, through: Seq(through), parked, ids }
        }),
        group().prop_map(|group| Entry::GroupDeleted { group }),
        (stream(), 0..u64::MAX)
            .prop_map(|(stream, last)| Entry::StreamDeleted { stream, last: Ordinal(last) }),
        (any::<u8>(), bytes(), any::<u64>(), bytes(), prop::option::of(time())).prop_map(
            |(door, key, version, value, expires)| Entry::NotePut { door, key, version, value, expires }
        ),
        (any::<u8>(), bytes()).prop_map(|(door, key)| Entry::NoteRemoved { door, key }),
        (group(), prop::collection::vec((1u64..1 << 50, any::<u64>()), 1..9)).prop_map(|(group, keys)| {
            let keys = keys.into_iter().map(|(seq, key)| (Seq(seq), KeyHash(key))).collect();
            Entry::KeysFound { group, keys }
        }),
        (stream(), time(), stamp(), 1u64..10_000, any::<bool>()).prop_map(
            |(stream, at, stamp, count, stored)| {
                let stamp = stamp.unwrap_or(ProducerStamp { producer: 1, epoch: 2, number: 3 });
                let seqs = stored.then(|| SeqRange::starting(Seq(count), count.div_ceil(2)));
                Entry::Numbered { stream, at, stamp, count, seqs }
            }
        ),
        (stream(), time(), any::<u32>(), any::<u32>()).prop_map(|(stream, at, from, to)| {
            let of = |millis: u32| Duration::from_millis(millis.into());
            Entry::Redelayed { stream, at, from: of(from), to: of(to) }
        }),
        (stream(), "[a-z]{1,9}", any::<Option<u32>>()).prop_map(|(stream, name, seq)| {
            Entry::ReaderMoved { stream, name: GroupName::stored(&name), seq: seq.map(|seq| Seq(seq.into())) }
        }),
    ]
}

/// Equal sizes of plain messages are written once, so compare the entries as readers see them.
fn seen(entry: Entry) -> Entry {
    match entry {
        Entry::Published { stream, first, ordinal, at, stamp, messages } => {
            let messages = Messages::Each(messages.iter().take(100).collect());
            Entry::Published { stream, first, ordinal, at, stamp, messages }
        }
        other => other,
    }
}

proptest! {
    #[test]
    fn a_batch_and_a_note_take_no_more_than_is_reckoned(
        messages in prop::collection::vec(message(), 1..40), stamp in stamp(), numbers in any::<[u64; 4]>(),
        key in bytes(), value in bytes(),
    ) {
        let mut out = Vec::new();
        let (first, ordinal, at) = (Seq(numbers[0]), Ordinal(numbers[1]), Timestamp(numbers[2]));
        put_published(&mut out, StreamId(u32::MAX), first, ordinal, at, stamp, &messages);
        let most = ProducerStamp { producer: u64::MAX, epoch: u32::MAX, number: u64::MAX };
        let seqs = Some(SeqRange::starting(Seq(u64::MAX / 2), 1 << 40));
        Entry::Numbered { stream: StreamId(u32::MAX), at, stamp: most, count: u64::MAX, seqs }.encode(&mut out);
        Entry::Released { stream: StreamId(u32::MAX), first }.encode(&mut out);
        prop_assert!(out.len() <= published_bytes_max(&messages), "{} bytes", out.len());
        let most = note_bytes_max(&key, Some(&value));
        let mut out = Vec::new();
        let (version, expires) = (numbers[3], Some(at));
        Entry::NotePut { door: 1, key, version, value, expires }.encode(&mut out);
        prop_assert!(out.len() <= most, "{} bytes", out.len());
    }

    #[test]
    fn every_entry_survives_the_round_trip(written in prop::collection::vec(entry(), 0..6)) {
        let mut bytes = Vec::new();
        for entry in &written {
            entry.encode(&mut bytes);
        }
        let read: Vec<Entry> = entries(&bytes).collect::<Result<_, _>>().expect("what was written can be read");
        let read: Vec<Entry> = read.into_iter().map(seen).collect();
        prop_assert_eq!(read, written.into_iter().map(seen).collect::<Vec<_>>());
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_read_but_never_worse(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for entry in entries(&bytes) {
            let _ = entry;
        }
    }

    #[test]
    fn damaged_entries_are_refused_or_read_but_never_worse(entry in entry(), at: prop::sample::Index, byte: u8) {
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        for entry in entries(&bytes) {
            let _ = entry;
        }
    }
}

#[test]
fn an_unknown_kind_stops_unless_it_is_optional() {
    let known = Entry::Acked { group: GroupId(1), ranges: vec![SeqRange::one(Seq(1))] };
    let mut bytes = vec![kind::OPTIONAL | 70, 2, 0, 0, 9, 9];
    known.encode(&mut bytes);
    assert_eq!(entries(&bytes).collect::<Vec<_>>(), vec![Ok(known)]);

    let bytes = [70, 0, 0, 0];
    assert_eq!(entries(&bytes).collect::<Vec<_>>(), vec![Err(DecodeError::UnknownKind { kind: 70 })]);
}

#[test]
fn a_turn_of_a_busy_group_takes_a_dozen_bytes() {
    let mut bytes = Vec::new();
    let ranges = vec![SeqRange::new(Seq(10_000_001), Seq(10_000_064))];
    Entry::Acked { group: GroupId(1), ranges }.encode(&mut bytes);
    assert!(bytes.len() <= 12, "{} bytes", bytes.len());
}

#[test]
fn copies_take_no_more_than_what_they_are_copies_of() {
    let at = Timestamp(1_800_000_000_000_000);
    let meta = MessageMeta { id: Some(IdHash(7)), ..MessageMeta::plain(100) };
    for metas in [vec![MessageMeta::plain(100); 500], vec![meta; 500]] {
        let (mut published, mut copied) = (Vec::new(), Vec::new());
        let mut messages = Vec::new();
        for (batch, metas) in metas.chunks(50).enumerate() {
            let (first, ordinal) =
                (Seq(1_000_000 + batch as u64 * 50), Ordinal(5_000_000 + batch as u64 * 90));
            let at = at + Duration::from_millis(batch as u64);
            put_published(&mut published, StreamId(3), first, ordinal, at, None, metas);
            messages.extend(metas.iter().zip(0..).map(|(&meta, n)| CopiedMessage {
                seq: first.plus(n),
                ordinal: Ordinal(ordinal.0 + n),
                at,
                meta,
            }));
        }
        put_copied(&mut copied, StreamId(3), &messages);
        assert!(copied.len() <= published.len(), "{} bytes for {}", copied.len(), published.len());
    }
}

#[test]
fn a_few_bytes_cannot_claim_to_be_very_many_copies() {
    let mut bytes = Vec::new();
    put_entry(&mut bytes, kind::COPIED, |out| {
        put_varint(out, 1);
        out.push(form::UNIFORM);
        put_varint(out, COPIED_MAX as u64 + 1);
        [2, 2, 2, 0].iter().for_each(|&value| put_varint(out, value));
    });
    assert_eq!(entries(&bytes).next(), Some(Err(DecodeError::OutOfRange("number of copies"))));
}

/// What a release wrote that knew less must mean the same for ever.
#[test]
fn what_was_written_before_there_was_more_to_say_means_what_it_meant() {
    let mut before = Vec::new();
    put_entry(&mut before, kind::PURGED, |out| out.extend_from_slice(&[7, 9, 1]));
    let purged = Entry::Purged { stream: StreamId(7), through: Seq(9), parked: true, ids: false };
    assert_eq!(entries(&before).collect::<Vec<_>>(), [Ok(purged.clone())]);
    let mut now = Vec::new();
    purged.encode(&mut now);
    assert_eq!(now, before, "and is written as it was");

    let mut before = Vec::new();
    put_entry(&mut before, kind::STREAM_DELETED, |out| out.push(7));
    let deleted = Entry::StreamDeleted { stream: StreamId(7), last: Ordinal(0) };
    assert_eq!(entries(&before).collect::<Vec<_>>(), [Ok(deleted)]);

    let mut before = Vec::new();
    put_entry(&mut before, kind::MOVING, |out| out.extend_from_slice(&[3, 1, b'x', 1, 8, 0]));
    let (to, terms) = (StreamName::stored("x"), MoveTerms::default());
    let route = Route::Alone { to, terms, why: MoveReason::Asked };
    let moving = Entry::Moving { group: GroupId(3), route, seqs: vec![SeqRange::one(Seq(4))] };
    assert_eq!(entries(&before).collect::<Vec<_>>(), [Ok(moving.clone())]);
    let mut now = Vec::new();
    moving.encode(&mut now);
    assert_eq!(now, before, "and is written as it was");

    let mut before = Vec::new();
    put_entry(&mut before, kind::JOB_STARTED, |out| out.extend_from_slice(&[3, 4, 5, 2, 0, 0, 0]));
    put_entry(&mut before, kind::JOB_ENDED, |out| out.extend_from_slice(&[3, 4, 6, 1]));
    let (group, job) = (GroupId(3), JobId(4));
    let (work, selection) = (Work::Discard, Selection::All);
    let at = Timestamp(5);
    let started = Entry::JobStarted { group, job, at, work, selection, limit: None, rate: None };
    let ended = Entry::JobEnded { group, job, at: Timestamp(6), how: JobEnd::Cancelled };
    assert_eq!(entries(&before).collect::<Vec<_>>(), [Ok(started.clone()), Ok(ended.clone())]);
    let mut now = Vec::new();
    started.encode(&mut now);
    ended.encode(&mut now);
    assert_eq!(now, before, "and is written as it was");

    let mut before = Vec::new();
    // Not uniform; stream 1, position 2, position 3 of the shard, at 4; one message, with an origin.
    put_entry(&mut before, kind::PUBLISHED, |out| {
        out.extend_from_slice(&[0, 1, 2, 3, 4, 1]);
        out.extend_from_slice(&[flag::ORIGIN, 100, 5, 6]);
    });
    let origin = Some(Origin { published: Timestamp(5), receives: 6, trail: None });
    let published = Entry::Published {
        stream: StreamId(1),
        first: Seq(2),
        ordinal: Ordinal(3),
        at: Timestamp(4),
        stamp: None,
        messages: Messages::Each(vec![MessageMeta { origin, ..MessageMeta::plain(100) }]),
    };
    assert_eq!(entries(&before).collect::<Vec<_>>(), [Ok(published.clone())]);
    let mut now = Vec::new();
    published.encode(&mut now);
    assert_eq!(now, before, "and is written as it was");
}

#[test]
fn an_entry_is_small() {
    assert!(size_of::<Entry>() <= 120, "{}", size_of::<Entry>());
}
