use super::*;
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

fn cause() -> impl Strategy<Value = Cause> {
    prop_oneof![Just(Cause::Nack), Just(Cause::Timeout), Just(Cause::Lost)]
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
            settings: StreamSettings::default(),
            at
        }),
        (group(), stream(), "[a-z]{1,9}", any::<u64>(), time()).prop_map(
            |(group, stream, name, floor, at)| {
                Entry::GroupCreated {
                    group,
                    stream,
                    name: GroupName::stored(&name),
                    settings: GroupSettings::default(),
                    floor: Seq(floor),
                    at,
                }
            }
        ),
        (stream(), 1u64..1 << 50, any::<u64>(), time(), messages()).prop_map(
            |(stream, first, ordinal, at, messages)| Entry::Published {
                stream,
                first: Seq(first),
                ordinal: Ordinal(ordinal),
                at,
                messages
            }
        ),
        (stream(), any::<u64>()).prop_map(|(stream, first)| Entry::Released { stream, first: Seq(first) }),
        (stream(), copied()).prop_map(|(stream, messages)| Entry::Copied { stream, messages }),
        (group(), ranges()).prop_map(|(group, ranges)| Entry::Handed { group, ranges }),
        (group(), ranges()).prop_map(|(group, ranges)| Entry::Acked { group, ranges }),
        (group(), ranges()).prop_map(|(group, ranges)| Entry::Returned { group, ranges }),
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
        (group(), time(), prop::collection::vec((1u64..1 << 40, 0u64..1 << 40, cause()), 0..9)).prop_map(
            |(group, at, messages)| Entry::Failed {
                group,
                at,
                messages: messages
                    .into_iter()
                    .map(|(seq, wait, cause)| FailedMessage {
                        seq: Seq(seq),
                        until: at + Duration::from_micros(wait),
                        cause
                    })
                    .collect(),
            }
        ),
        (group(), time(), prop::collection::vec((1u64..1 << 40, cause()), 0..9)).prop_map(
            |(group, at, messages)| Entry::Parked {
                group,
                at,
                messages: messages
                    .into_iter()
                    .map(|(seq, cause)| ParkedMessage { seq: Seq(seq), at: Timestamp(at.0 / 2), cause })
                    .collect(),
            }
        ),
    ]
}

/// Equal sizes of plain messages are written as such, so compare what readers see.
fn seen(entry: Entry) -> Entry {
    match entry {
        Entry::Published { stream, first, ordinal, at, messages } => {
            let messages = Messages::Each(messages.iter().take(100).collect());
            Entry::Published { stream, first, ordinal, at, messages }
        }
        other => other,
    }
}

proptest! {
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
    put_acked(&mut bytes, GroupId(1), &[SeqRange::new(Seq(10_000_001), Seq(10_000_064))]);
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
            put_published(&mut published, StreamId(3), first, ordinal, at, metas);
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
        out.push(UNIFORM);
        put_varint(out, COPIED_MAX as u64 + 1);
        [2, 2, 2, 0].iter().for_each(|&value| put_varint(out, value));
    });
    assert_eq!(entries(&bytes).next(), Some(Err(DecodeError::OutOfRange("number of copies"))));
}
