//! Encrypted folders: their contents, the keys that open them, and that no nonce is used twice.

use std::collections::BTreeSet;
use std::sync::Mutex;

use forebay_core::types::PartKey;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::engine::{Image, ImagePart};
use crate::journal::block::{JournalId, PAGE, frame_len};
use crate::journal::crypt::{
    DataKey, FramePlace, KeyId, KeyedFile, Keyring, KeyringError, MasterKey, Sealer, TAG, WRAPPED,
    WrappedKey, frame_growth,
};
use crate::journal::inspect::{DamageKind, Found, back_up, restore};
use crate::journal::segment::{self, Head};

/// Keys from these numbers, the first one for new files, with random numbers that can be told beforehand.
pub(crate) fn keyring(keys: &[u8]) -> Keyring {
    static NEXT: Mutex<u64> = Mutex::new(0);
    let keys = keys.iter().map(|key| MasterKey::new(&[*key; 32])).collect();
    let entropy = |bytes: &mut [u8]| {
        let mut next = NEXT.lock().expect("a test does not break it");
        *next += 1;
        blake3::Hasher::new().update(&next.to_le_bytes()).finalize_xof().fill(bytes);
        Ok(())
    };
    Keyring::new(keys, entropy).expect("the keys differ")
}

fn open_with(folder: &TempFolder, keys: Option<Keyring>) -> Result<Bench, OpenError> {
    let disk = FolderDisk::new(folder.path()).expect("the folder is there");
    Bench::open(disk, &JournalConfig { keys, ..config() })
}

fn opened(folder: &TempFolder, keys: &[u8]) -> Bench {
    open_with(folder, Some(keyring(keys))).unwrap_or_else(|error| panic!("the journal opens: {error}"))
}

fn id() -> JournalId {
    JournalId::new(ID)
}

fn part(text: &'static str, through: Position) -> Image {
    let key = PartKey { kind: 1, id: 2, sub: 3 };
    let bytes = Some(Bytes::from_static(text.as_bytes()));
    Image { parts: vec![ImagePart { key, through, bytes }] }
}

/// Many segments, two images, a torn tail.
fn filled(keys: &[u8]) -> (TempFolder, u64) {
    let folder = TempFolder::new();
    let mut bench = opened(&folder, keys);
    let positions = bench.puts(60, 3_000);
    bench.journal.chores.tidy().expect("the chores are done");
    bench.journal.chores.save(part("planted state one", positions[10])).expect("it is saved");
    bench.journal.chores.save(part("planted state two", positions[20])).expect("it is saved");
    let (next, end) = (bench.next, bench.journal.reader.end().0);
    drop(bench);
    folder.change(&segment::name(end / SEGMENT), |bytes| {
        bytes[(end % SEGMENT) as usize..][..300].fill(0x5a);
    });
    (folder, next)
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

#[test]
fn no_file_shows_entries_payloads_or_state() {
    let (folder, next) = filled(&[1]);
    let mut bench = opened(&folder, &[1]);
    assert_eq!(bench.next, next);
    bench.put(100);
    bench.check_all();
    assert_eq!(bench.journal.claim.parts[0].bytes, "planted state two");
    drop(bench);
    assert!(!folder.names("quarantine-").is_empty(), "the torn tail is kept");
    for name in folder.names("") {
        let bytes = std::fs::read(folder.file(&name)).expect("it can be read");
        let piece = payload(next - 1, 64);
        for text in [&b"entry "[..], b"planted", &piece] {
            assert!(!contains(&bytes, text), "{name} shows {:?}", String::from_utf8_lossy(text));
        }
    }
    let plain = TempFolder::new();
    open(&plain).put(100);
    let bytes = std::fs::read(plain.file("segment-0000000001")).expect("it can be read");
    assert!(contains(&bytes, b"entry "), "the search finds what is there");
}

#[test]
fn a_wrong_key_a_missing_key_and_a_key_too_many_are_refused_by_name() {
    let (folder, _) = filled(&[1]);
    let (one, two) = (MasterKey::new(&[1; 32]).id(), MasterKey::new(&[2; 32]).id());
    match open_with(&folder, Some(keyring(&[2]))).err() {
        Some(error @ OpenError::WrongKey { .. }) => {
            let text = error.to_string();
            for part in ["image-0000000001", &one.to_string(), &two.to_string()] {
                assert!(text.contains(part), "{text}");
            }
        }
        other => panic!("another answer: {other:?}"),
    }
    match open_with(&folder, None).err() {
        Some(OpenError::NoKey { keys }) => assert_eq!(keys, [one]),
        other => panic!("another answer: {other:?}"),
    }
    let plain = TempFolder::new();
    open(&plain).put(100);
    match open_with(&plain, Some(keyring(&[1]))).err() {
        Some(OpenError::NotEncrypted { given }) => assert_eq!(given, [one]),
        other => panic!("another answer: {other:?}"),
    }
    // None of it changed anything.
    opened(&folder, &[1]).check_all();
    open(&plain).check_all();
}

#[test]
fn new_files_use_the_first_key_and_old_ones_are_read_with_theirs() {
    let (folder, _) = filled(&[1]);
    let mut bench = opened(&folder, &[2, 1]);
    let positions = bench.puts(40, 3_000);
    bench.journal.chores.tidy().expect("the chores are done");
    bench.check_all();
    drop(bench);
    let (one, two) = (MasterKey::new(&[1; 32]).id(), MasterKey::new(&[2; 32]).id());
    let disk = || FolderDisk::read_only(folder.path()).expect("the folder is there");
    let used = Inspection::open(disk()).expect("it is free").keys_used();
    let of = |key: KeyId| {
        used.iter().find(|used| used.key == key).map_or((0, 0), |used| (used.segments, used.images))
    };
    assert!(of(one).0 > 1 && of(one).1 == 2, "{used:?}");
    assert!(of(two).0 > 1 && of(two).1 == 0, "{used:?}");
    assert!(matches!(open_with(&folder, Some(keyring(&[2]))), Err(OpenError::WrongKey { .. })));

    // Once the files of the old key are gone, the new key is enough.
    let mut bench = opened(&folder, &[2, 1]);
    for text in ["three", "four"] {
        let saved = bench.journal.chores.save(part(text, positions[39])).expect("it is saved");
        bench.journal.chores.trim(saved.covered).expect("it is trimmed");
    }
    drop(bench);
    let used = Inspection::open(disk()).expect("it is free").keys_used();
    assert_eq!(used.iter().map(|used| used.key).collect::<Vec<_>>(), [two]);
    opened(&folder, &[2]).check_all();
}

/// The header of each segment that has begun.
fn heads(folder: &TempFolder) -> Vec<(u64, Head)> {
    let head = |name: String| {
        let number = segment::number(&name)?;
        let bytes = std::fs::read(folder.file(&name)).expect("it can be read");
        Some((number, Head::decode(&bytes[..PAGE as usize], id(), number * SEGMENT).ok()?))
    };
    folder.names("segment-").into_iter().filter_map(head).collect()
}

#[test]
fn after_every_stop_the_log_goes_on_under_a_new_key_and_old_segments_stay_as_they_are() {
    let folder = TempFolder::new();
    let mut seen: BTreeSet<[u8; WRAPPED]> = BTreeSet::new();
    let mut last = 0;
    for round in 0..6 {
        let mut bench = opened(&folder, &[1]);
        let new: Vec<(u64, Head)> = heads(&folder).into_iter().filter(|(number, _)| *number > last).collect();
        assert_eq!(new.len(), 1, "a start begins one segment");
        bench.puts(7 + round, 3_000);
        let end = bench.journal.reader.end().0;
        drop(bench);
        for (number, head) in heads(&folder).into_iter().filter(|(number, _)| *number > last) {
            let key = head.key.expect("it is encrypted");
            assert!(seen.insert(*key.bytes()), "segment {number} has a key of its own");
        }
        last = end / SEGMENT;
        // A block that was being written when the power failed: the next start cuts it, and does not write over it
        // with the same key.
        if round % 2 == 0 {
            folder.change(&segment::name(last), |bytes| {
                bytes[(end % SEGMENT) as usize + 100..][..700].fill(0xa5);
            });
        }
    }
    opened(&folder, &[1]).check_all();
}

#[test]
#[should_panic(expected = "no position is encrypted twice under one key")]
fn a_position_is_not_encrypted_twice_under_one_key() {
    let (key, _) = keyring(&[1]).make(id(), KeyedFile::Segment(1)).expect("there is entropy");
    let mut sealer = Sealer::new(key.into());
    sealer.seal(id(), 5_000, &[frame(1, 10)]);
    sealer.seal(id(), 5_000, &[frame(2, 10)]);
}

#[test]
fn the_frames_of_a_block_are_encrypted_one_after_the_other_and_the_room_is_used_again() {
    let (key, wrapped) = keyring(&[1]).make(id(), KeyedFile::Segment(1)).expect("there is entropy");
    let mut sealer = Sealer::new(key.into());
    let key = keyring(&[1]).unwrap(&wrapped, id(), KeyedFile::Segment(1)).expect("it is its key");
    let mut position = 5_000;
    for round in 0..20u64 {
        let frames: Vec<Frame> =
            (0..1 + round % 4).map(|n| frame(round * 10 + n, 70_000 * n as usize)).collect();
        let sealed = sealer.seal(id(), position, &frames);
        assert_eq!(sealed.len(), frames.len());
        for (sealed, frame) in sealed.iter().zip(&frames) {
            let (entries, payload) = open_all(&key, position, sealed).expect("it decrypts");
            assert_eq!((&entries, &payload[..]), (&frame.entries, &frame.payload[..]));
            assert_eq!((sealed.shard, &sealed.runs), (frame.shard, &frame.runs));
            position += frame_len(sealed);
        }
    }
}

#[test]
fn a_wrapped_key_is_good_for_its_file_only() {
    let keys = keyring(&[1]);
    let (_, wrapped) = keys.make(id(), KeyedFile::Segment(7)).expect("there is entropy");
    assert!(keys.unwrap(&wrapped, id(), KeyedFile::Segment(7)).is_ok());
    assert!(keys.unwrap(&wrapped, id(), KeyedFile::Segment(8)).is_err());
    assert!(keys.unwrap(&wrapped, id(), KeyedFile::Image(7)).is_err());
    assert!(keys.unwrap(&wrapped, JournalId::new(1), KeyedFile::Segment(7)).is_err());
    assert!(keyring(&[2]).unwrap(&wrapped, id(), KeyedFile::Segment(7)).is_err());
    for at in 0..WRAPPED {
        let mut bytes = *wrapped.bytes();
        bytes[at] ^= 0x10;
        assert!(WrappedKey::decode(&bytes).is_err(), "byte {at}");
    }
}

#[test]
fn keys_make_a_ring_once_each_and_are_not_shown() {
    let none = |_: &mut [u8]| Ok(());
    assert_eq!(Keyring::new(Vec::new(), none).err(), Some(KeyringError::Empty));
    let key = MasterKey::new(&[9; 32]);
    let twice = Keyring::new(vec![key.clone(), key.clone()], none).err();
    assert_eq!(twice, Some(KeyringError::Twice(key.id())));
    let shown = format!("{:?}", JournalConfig { keys: Some(keyring(&[9])), ..config() });
    assert!(shown.contains("Keyring") && !shown.contains("9, 9"), "{shown}");
}

#[test]
fn a_frame_that_is_not_encrypted_is_no_part_of_an_encrypted_segment() {
    let (folder, plain) = (TempFolder::new(), TempFolder::new());
    let at = opened(&folder, &[1]).put(100).0 % SEGMENT;
    open(&plain).put(100);
    // Anyone who can write to the folder can make checksums that are right.
    let name = segment::name(1);
    let other = std::fs::read(plain.file(&name)).expect("it can be read");
    folder.change(&name, |bytes| bytes[at as usize..][..150].copy_from_slice(&other[at as usize..][..150]));
    let bench = open_with(&folder, Some(keyring(&[1])));
    let read = bench.map(|bench| bench.journal.reader.read(Position::START, ALL));
    assert!(!matches!(read, Ok(Ok(_))), "it is refused when it is opened, or when it is read: {read:?}");
}

#[test]
fn a_backup_is_encrypted_too_and_made_without_a_key() {
    let (folder, next) = filled(&[1]);
    let (backup, restored) = (TempFolder::new(), TempFolder::new());
    let disk = |folder: &TempFolder| FolderDisk::new(folder.path()).expect("the folder is there");
    back_up(&disk(&folder), &disk(&backup), &mut |_| {}).expect("it is copied");
    for name in backup.names("") {
        let bytes = std::fs::read(backup.file(&name)).expect("it can be read");
        assert!(!contains(&bytes, b"entry ") && !contains(&bytes, b"planted"), "{name}");
    }
    restore(&disk(&backup), &disk(&restored), 1000, &mut |_| {}).expect("it is restored");
    assert!(matches!(open_with(&restored, None), Err(OpenError::NoKey { .. })));
    let bench = opened(&restored, &[1]);
    assert_eq!(bench.next, next);
    bench.check_all();
}

#[test]
fn without_its_key_a_folder_is_verified_but_not_read() {
    let (folder, next) = filled(&[1]);
    let scan = |keys: Option<Keyring>| {
        let disk = FolderDisk::read_only(folder.path()).expect("the folder is there");
        let inspection = Inspection::open_with(disk, keys.as_ref()).expect("it is free");
        let (mut frames, mut damages) = (0, Vec::new());
        let scanned = inspection.scan::<()>(&mut |found| {
            match found {
                Found::Frame(frame) => {
                    frames += 1;
                    assert_eq!(frame.entries, format!("entry {frames}").as_bytes());
                    assert_eq!(frame.payload, payload(frames, 3_000));
                }
                Found::Damage(damage) => damages.push(damage.kind),
                Found::Passed(_) => {}
            }
            Ok(())
        });
        let scanned = scanned.expect("nothing stops it");
        let (images, image_damages) = inspection.images();
        assert!(image_damages.is_empty() && images.len() == 2, "{image_damages:?}");
        (frames, scanned.locked, damages, inspection.locked().map(|error| error.to_string()))
    };
    let (frames, locked, damages, why) = scan(Some(keyring(&[1])));
    assert_eq!((frames, locked, why), (next - 1, 0, None));
    assert_eq!(damages, [DamageKind::TornTail]);
    for keys in [None, Some(keyring(&[2]))] {
        let (frames, locked, damages, why) = scan(keys);
        assert_eq!((frames, locked), (0, next - 1));
        assert_eq!(damages, [DamageKind::TornTail]);
        assert!(why.is_some_and(|why| why.contains(&MasterKey::new(&[1; 32]).id().to_string())));
    }
    // A place that is damaged is found without the key.
    folder.change("segment-0000000002", |bytes| bytes[9_000] ^= 1);
    assert_eq!(scan(None).2.len(), 2);
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let sizes = prop_oneof![0..300usize, 65_500..65_540usize, 131_000..131_100usize, 0..300_000usize];
    (0..5_000usize, sizes, any::<u8>(), vec((any::<u32>(), any::<u64>(), 0..9u32), 0..4)).prop_map(
        |(entries, payload, seed, runs)| {
            let bytes = |len: usize| -> Bytes {
                (0..len).map(|index| (index as u8).wrapping_mul(31) ^ seed).collect::<Vec<_>>().into()
            };
            let run = |(stream, first, count)| Run {
                stream: StreamId(stream),
                first: Seq(first),
                count,
                copied: count % 2 == 1,
            };
            let runs = runs.into_iter().map(run).collect();
            Frame { shard: ShardId(7), entries: bytes(entries), payload: bytes(payload), runs }
        },
    )
}

fn place(position: u64, sealed: &Frame) -> FramePlace {
    FramePlace {
        journal: id(),
        position,
        shard: sealed.shard.0,
        entries_len: sealed.entries.len() as u32,
        payload_len: sealed.payload.len() as u32,
    }
}

fn open_all(key: &DataKey, position: u64, sealed: &Frame) -> Result<(Bytes, Vec<u8>), &'static str> {
    let mut runs = Vec::new();
    crate::journal::block::encode_runs(&sealed.runs, &mut runs);
    let entries = key.open_entries(&place(position, sealed), &runs, &sealed.entries)?;
    let mut payload = sealed.payload.to_vec();
    let flaws = key.open_payload(&place(position, sealed), &mut payload, |_| false);
    flaws.first().map_or(Ok((entries, payload)), |(_, flaw)| Err(flaw))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_frame_survives_encryption_and_no_change_to_it_does(
        frame in any_frame(), position in 0..u64::MAX - 1, flip in any::<proptest::sample::Index>()
    ) {
        let (key, wrapped) = keyring(&[3]).make(id(), KeyedFile::Segment(1)).expect("there is entropy");
        let mut sealer = Sealer::new(key.into());
        let sealed = sealer.seal(id(), position, std::slice::from_ref(&frame))[0].clone();
        prop_assert_eq!(frame_len(&sealed), frame_len(&frame) + frame_growth(&frame));
        let key = keyring(&[3]).unwrap(&wrapped, id(), KeyedFile::Segment(1)).expect("it is its key");
        let (entries, payload) = open_all(&key, position, &sealed).expect("it decrypts");
        prop_assert_eq!(&entries, &frame.entries);
        prop_assert_eq!(&payload[..], &frame.payload[..]);

        prop_assert!(open_all(&key, position + 1, &sealed).is_err(), "it is bound to its place");
        let cut = sealed.payload.len().saturating_sub(TAG + 1);
        let shorter = Frame { payload: sealed.payload.slice(..cut), ..sealed.clone() };
        prop_assert!(sealed.payload.is_empty() || open_all(&key, position, &shorter).is_err());
        let mut runs = sealed.clone();
        runs.runs.push(Run { stream: StreamId(1), first: Seq(1), count: 1, copied: false });
        prop_assert!(open_all(&key, position, &runs).is_err(), "its runs are part of it");
        let mut bytes = [&sealed.entries[..], &sealed.payload].concat();
        let at = flip.index(bytes.len());
        bytes[at] ^= 1 << (at % 8);
        let mut entries = Bytes::from(bytes);
        let payload = entries.split_off(sealed.entries.len());
        let changed = Frame { entries, payload, ..sealed };
        prop_assert!(open_all(&key, position, &changed).is_err());
    }

    #[test]
    fn no_bytes_make_a_wrapped_key_panic(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(wrapped) = WrappedKey::decode(&bytes) {
            let _ = keyring(&[3]).unwrap(&wrapped, id(), KeyedFile::Segment(1));
        }
    }
}
