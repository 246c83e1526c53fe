//! A journal at work: commits, rotation, reading, images, trimming, stopping.

use forebay_core::types::{Epoch, PartKey, Position, Seq};

use super::*;
use crate::engine::{Image, ImagePart};
use crate::journal::Scrubbed;
use crate::journal::block::JournalId;
use crate::journal::image::{self, Manifest};

#[test]
fn what_was_committed_is_read_back_before_and_after_a_restart() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    assert_eq!(bench.journal.claim.epoch, Epoch(1));
    bench.puts(50, 3000);
    bench.check_all();
    drop(bench);

    let bench = open(&folder);
    assert_eq!(bench.journal.claim.epoch, Epoch(2));
    assert_eq!(bench.next, 51);
    bench.check_all();
    assert!(bench.read_all().iter().all(|frame| frame.epoch == Epoch(1)));
}

#[test]
fn a_clean_stop_takes_no_more_frames_and_leaves_nothing_to_remark() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    bench.puts(3, 100);
    bench.journal.chores.stop().expect("it stops");
    assert!(matches!(bench.try_put(1), Err(StorageError::Stopped)));
    drop(bench);
    let bench = open(&folder);
    assert_eq!(bench.journal.claim.remarks, Vec::<String>::new());
    bench.check_all();
}

#[test]
fn a_second_process_is_told_that_the_folder_is_in_use() {
    let folder = TempFolder::new();
    let bench = open(&folder);
    assert!(matches!(try_open(&folder), Err(OpenError::InUse)));
    drop(bench);
    open(&folder);
}

#[test]
fn many_frames_go_into_one_block_and_the_rest_into_the_next() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    let mut frames: Vec<_> = (1..=10).map(|seq| frame(seq, 4000)).collect();
    let mut out = Vec::new();
    let mut counts = Vec::new();
    while !frames.is_empty() {
        counts.push(bench.journal.writer.commit(&mut frames, &mut out).expect("it commits"));
    }
    assert_eq!(counts, [3, 3, 3, 1], "a block has room for three frames of 4000 bytes and their headers");
    assert!(out.is_sorted_by_key(|position| position.get()));
    bench.next = 11;
    bench.check_all();
}

#[test]
fn a_frame_that_is_too_large_is_refused_and_those_before_it_are_not() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    let mut frames = vec![frame(1, 10), frame(2, 15 << 10), frame(3, 10)];
    let mut out = Vec::new();
    assert_eq!(bench.journal.writer.commit(&mut frames, &mut out).expect("the first one fits"), 1);
    let error = bench.journal.writer.commit(&mut frames, &mut out);
    assert!(matches!(error, Err(StorageError::FrameTooLarge { limit: 12288, .. })), "{error:?}");
    assert_eq!((frames.len(), out.len()), (2, 1), "nothing was taken");
    frames.remove(0);
    assert_eq!(bench.journal.writer.commit(&mut frames, &mut out).expect("the log goes on"), 1);
}

#[test]
fn a_read_begins_at_the_first_frame_at_or_after_the_position_and_keeps_to_its_budget() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    let positions = bench.puts(60, 2000);
    let reader = &bench.journal.reader;
    for (index, &position) in positions.iter().enumerate() {
        let one = ReadBudget { frames_max: 1, ..ALL };
        let frames = reader.read(position, one).expect("it reads");
        assert_eq!((frames.len(), frames[0].position), (1, position));
        let frames = reader.read(Position(position.0 + 1), one).expect("it reads");
        assert_eq!(frames.first().map(|frame| frame.position), positions.get(index + 1).copied());
    }
    let tight = ReadBudget { bytes_max: 1, ..ALL };
    assert_eq!(reader.read(Position::START, tight).expect("it reads").len(), 1, "at least one");
    let some = ReadBudget { bytes_max: 5000, ..ALL };
    assert_eq!(reader.read(Position::START, some).expect("it reads").len(), 3, "the third one passes 5000");
    let bare = ReadBudget { payloads: false, ..ALL };
    let frames = reader.read(Position::START, bare).expect("it reads");
    assert_eq!(frames.len(), 60);
    assert!(frames.iter().all(|frame| frame.payload.is_empty() && !frame.entries.is_empty()));
}

#[test]
fn finished_segments_are_sealed_and_opened_by_their_footers() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    for _ in 0..40 {
        bench.put(5000);
        if bench.journal.writer.take_rotated() {
            bench.journal.chores.tidy().expect("the chores are done");
        }
    }
    let mut good = 0;
    while let Scrubbed::Good { .. } = bench.journal.chores.scrub_next().expect("segments are good") {
        good += 1;
    }
    let sealed = folder.names("segment-").len() - 2;
    assert_eq!(good, sealed, "all but the active one and the one made ready");
    bench.check_all();
    drop(bench);
    let bench = open(&folder);
    bench.check_all();
    let runs = &bench.journal.claim.runs;
    let total: u64 = runs.iter().map(|run| run.count).sum();
    assert_eq!(total, 40, "every message is indexed");
    assert!(runs.len() < 10, "runs that lie close together are joined: {}", runs.len());
    assert_eq!(bench.journal.claim.indexed, bench.journal.claim.end);
    assert_eq!(runs[0].first, Seq(1));
}

#[test]
fn the_newest_finished_segments_are_sealed_when_there_is_time() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    let scrub = |bench: &mut Bench| {
        let mut good = 0;
        while let Scrubbed::Good { .. } = bench.journal.chores.scrub_next().expect("segments are good") {
            good += 1;
        }
        good
    };
    for _ in 0..40 {
        bench.put(5000);
        if bench.journal.writer.take_rotated() {
            bench.journal.chores.prepare_next().expect("the next segment is made");
            bench.journal.chores.keep_up().expect("the chores are done");
        }
    }
    let finished = folder.names("segment-").len() - 2;
    assert_eq!(scrub(&mut bench), finished - 2, "all but the newest two");
    drop(bench);
    // As after a crash: a segment without a footer is read and verified, and gets one.
    let mut bench = open(&folder);
    bench.check_all();
    assert_eq!(bench.journal.claim.indexed, bench.journal.claim.end);
    let before = scrub(&mut bench);
    bench.journal.chores.tidy().expect("the chores are done");
    assert!(scrub(&mut bench) > before);
    bench.check_all();
}

#[test]
fn a_journal_that_takes_nothing_more_makes_nothing_ready() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    bench.puts(9, 5000);
    bench.journal.chores.keep_up().expect("the chores are done");
    assert!(bench.journal.chores.filling().is_some());
    bench.journal.reader.shared().poison(std::io::Error::other("a sync failed"));
    let error = bench.journal.chores.fill_next();
    assert!(matches!(error, Err(StorageError::Poisoned(_))), "{error:?}");
    // Or its thread would try for ever.
    assert!(bench.journal.chores.filling().is_none());
    drop(bench);
    assert_eq!(folder.names("segment.tmp").len(), 1);
    drop(open(&folder));
    assert!(folder.names("segment.tmp").is_empty(), "what a crash left is deleted");
}

#[test]
fn scrubbing_finds_a_sealed_segment_that_has_changed() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    bench.puts(40, 5000);
    bench.journal.chores.tidy().expect("the chores are done");
    folder.change("segment-0000000002", |bytes| bytes[9000] ^= 1);
    assert_eq!(bench.journal.chores.scrub_next().expect("it is good"), Scrubbed::Good { segment: 1 });
    let error = bench.journal.chores.scrub_next();
    assert!(matches!(error, Err(StorageError::Damaged { .. })), "{error:?}");
}

#[test]
fn a_broken_frame_costs_what_its_checksums_cover_and_nothing_behind_it() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    let positions = bench.puts(40, 5000);
    let second = |n: usize| (positions[n].0 - 2 * SEGMENT) as usize;
    let in_second: Vec<usize> = (0..40).filter(|n| positions[*n].0 / SEGMENT == 2).collect();
    let [header, entries, payload, block] = [in_second[1], in_second[2], in_second[3], in_second[4]];
    folder.change("segment-0000000002", |bytes| {
        bytes[second(header) + 20] ^= 1;
        bytes[second(entries) + 48 + 4 + 16 + 3] ^= 1;
        bytes[second(payload) + 2000] ^= 1;
        bytes[second(block) - 100] ^= 1;
    });
    let found = bench.journal.reader.read_around(Position::START, ALL).expect("it reads around");
    let seqs: Vec<u64> = found.frames.iter().map(|frame| frame.runs[0].first.0).collect();
    let expected: Vec<u64> =
        (0..40).filter(|n| ![header, entries].contains(n)).map(|n| n as u64 + 1).collect();
    assert_eq!(seqs, expected);
    let places: Vec<_> = found.damage.iter().map(|place| (place.from, place.payload.clone())).collect();
    let header_of = |n: usize| Position(positions[n].0 - 128);
    assert_eq!(
        places,
        [
            (positions[header], None),
            (positions[entries], None),
            (positions[payload], Some(0..5000)),
            (header_of(block), None)
        ]
    );
    for frame in &found.frames {
        let seq = frame.runs[0].first.0;
        let is_good = frame.payload == payload_of(seq);
        assert_eq!(is_good, seq != payload as u64 + 1, "{seq}");
    }
    assert!(found.damage.iter().all(|place| place.is_new && place.file == "segment-0000000002"));
    let again = bench.journal.reader.read_around(Position::START, ALL).expect("it reads around");
    assert!(again.damage.iter().all(|place| !place.is_new), "each place is news once");
    assert_eq!(bench.journal.reader.shared().figures().damaged_places, 4);
}

fn payload_of(seq: u64) -> Bytes {
    payload(seq, 5000)
}

#[test]
fn a_flipped_bit_costs_one_chunk_of_a_large_frame() {
    let folder = TempFolder::new();
    let config = JournalConfig {
        segment_bytes: 1 << 20,
        block_bytes_max: 512 << 10,
        frame_bytes_max: 400 << 10,
        hurried_bytes: 1 << 20,
        keys: config().keys,
        ..JournalConfig::small(ID)
    };
    let mut bench = open_with(&folder, &config);
    let at = bench.put(300 << 10);
    let start = (at.0 % (1 << 20)) as usize;
    folder.change("segment-0000000001", |bytes| bytes[start + 100_000] ^= 1);
    let found = bench.journal.reader.read_around(Position::START, ALL).expect("it reads around");
    let [place] = &found.damage[..] else { panic!("one place: {:?}", found.damage) };
    let chunk = if config.keys.is_some() { (64 << 10) - 16 } else { 64 << 10 };
    assert_eq!(place.payload, Some(chunk..2 * chunk));
    let good = payload(1, 300 << 10);
    assert_eq!(found.frames[0].payload[..chunk], good[..chunk]);
    assert_eq!(found.frames[0].payload[2 * chunk..], good[2 * chunk..]);
}

#[test]
fn what_lies_before_damage_can_be_read() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    let positions = bench.puts(40, 5000);
    folder.change("segment-0000000002", |bytes| bytes[30_000] ^= 1);
    let budget = ReadBudget { bytes_max: usize::MAX, frames_max: usize::MAX, payloads: true };
    let frames = bench.journal.reader.read(Position::START, budget).expect("the first ones are good");
    assert!(!frames.is_empty() && frames.len() < positions.len());
    check_frames(&frames);
    let next = Position(frames[frames.len() - 1].position.0 + 1);
    let error = bench.journal.reader.read(next, budget);
    assert!(matches!(error, Err(StorageError::Damaged { .. })), "{error:?}");
}

fn part(kind: u8, through: Position, bytes: Option<&str>) -> ImagePart {
    let bytes = bytes.map(|bytes| Bytes::copy_from_slice(bytes.as_bytes()));
    ImagePart { key: PartKey { kind, id: 7, sub: 9 }, through, bytes }
}

fn parts_of(bench: &Bench) -> Vec<(u8, Position, String)> {
    let parts = bench.journal.claim.parts.iter();
    parts.map(|part| (part.key.kind, part.through, String::from_utf8_lossy(&part.bytes).into())).collect()
}

#[test]
fn an_image_keeps_what_did_not_change_and_the_one_before_it_says_what_may_go() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    let at = bench.puts(30, 5000);
    let one = "one".repeat(1000);
    let chores = &mut bench.journal.chores;
    let mut save = |parts| chores.save(Image { parts }).expect("it is saved").covered;
    assert_eq!(save(vec![part(1, at[4], Some(&one)), part(2, at[4], Some("two"))]), Position::START);
    assert_eq!(save(vec![part(1, at[9], None), part(2, at[8], Some("two again"))]), at[4]);
    assert_eq!(save(vec![part(1, at[20], None), part(2, at[20], None)]), at[8]);
    drop(bench);

    let bench = open(&folder);
    assert_eq!(parts_of(&bench), [(1, at[20], one.clone()), (2, at[20], "two again".into())]);
    assert_eq!(bench.journal.claim.covered, at[8]);
    assert_eq!(folder.names("image-").len(), 3, "the two newest and the one that holds their first part");
}

#[test]
fn the_two_images_share_no_part_and_one_damaged_byte_costs_nothing() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    let at = bench.puts(30, 5000);
    let idle = "idle".repeat(500);
    bench.save(vec![part(1, at[2], Some(&idle)), part(2, at[2], Some("busy"))]);
    for (n, &position) in at.iter().enumerate().take(12).skip(3) {
        bench.save(vec![part(1, position, None), part(2, position, Some(&format!("busy {n}")))]);
    }
    drop(bench);
    let disk = FolderDisk::new(folder.path()).expect("the folder is there");
    let mut images = folder.names("image-").into_iter().filter_map(|name| image::number(&name)).rev();
    let newest = images.next().expect("there are images");
    let manifest = |number| {
        let read = Manifest::read(&disk, JournalId::new(ID), number).expect("it can be read");
        read.expect("it is good")
    };
    let newest = manifest(newest);
    let idle_part = |manifest: &Manifest| {
        let held = manifest.parts.iter().find(|held| held.key.kind == 1).expect("it has the part");
        (image::name(held.file), held.offset)
    };
    let copies = [idle_part(&newest), idle_part(&manifest(newest.previous))];
    assert_ne!(copies[0].0, copies[1].0, "two copies of the idle part");
    for (name, offset) in &copies {
        let copy = folder.copy();
        copy.change(name, |bytes| bytes[*offset as usize + 7] ^= 1);
        let bench = open(&copy);
        assert_eq!(parts_of(&bench)[0].2, idle, "the other image is whole");
    }
}

#[test]
fn a_damaged_part_is_found_by_the_scrub_and_written_again_from_its_other_copy() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    let at = bench.puts(30, 5000);
    let idle = "idle".repeat(500);
    bench.save(vec![part(1, at[2], Some(&idle))]);
    bench.save(vec![part(1, at[3], None)]);
    let scrub = |bench: &mut Bench| {
        let mut found = Vec::new();
        loop {
            match bench.journal.chores.scrub_next() {
                Ok(Scrubbed::Done) => return found,
                Ok(_) => {}
                Err(StorageError::Damaged { file, .. }) => found.push(file),
                Err(error) => panic!("{error}"),
            }
        }
    };
    assert_eq!(scrub(&mut bench), Vec::<String>::new());
    folder.change("image-0000000001", |bytes| *bytes.last_mut().expect("it has bytes") ^= 1);
    assert_eq!(scrub(&mut bench), ["image-0000000001"]);
    for &position in &at[4..8] {
        bench.save(vec![part(1, position, None)]);
    }
    assert_eq!(scrub(&mut bench), Vec::<String>::new(), "both images are whole again");
    // If no copy is good, only memory has the part.
    for name in folder.names("image-") {
        folder.change(&name, |bytes| {
            let len = bytes.len();
            bytes[len - 1..].fill(b'?');
        });
    }
    assert_eq!(scrub(&mut bench), folder.names("image-"), "every file of both images is damaged");
    let error = bench.journal.chores.save(Image { parts: vec![part(1, at[9], None)] });
    assert!(
        matches!(&error, Err(StorageError::Damaged { file, .. }) if file.starts_with("image-")),
        "{error:?}"
    );
    bench.save(vec![part(1, at[9], Some(&idle))]);
    drop(bench);
    assert_eq!(parts_of(&open(&folder))[0].2, idle);
}

#[test]
fn a_part_that_was_never_saved_cannot_be_unchanged() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    let at = bench.put(10);
    let error = bench.journal.chores.save(Image { parts: vec![part(1, at, None)] });
    assert!(matches!(error, Err(StorageError::NoSuchPart { .. })), "{error:?}");
    let beyond = bench.journal.reader.end();
    let error = bench.journal.chores.save(Image { parts: vec![part(1, beyond, Some("one"))] });
    assert!(matches!(error, Err(StorageError::NoSuchFrame { .. })), "{error:?}");
}

#[test]
fn old_image_files_do_not_pile_up() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    let at = bench.put(10);
    for round in 0..200u32 {
        let mut parts: Vec<ImagePart> = (0..50).map(|kind| part(kind, at, None)).collect();
        for part in &mut parts {
            if round == 0 || round % 50 == u32::from(part.key.kind) {
                part.bytes = Some(Bytes::from(vec![part.key.kind; 100]));
            }
        }
        bench.journal.chores.save(Image { parts }).expect("it is saved");
    }
    assert!(folder.names("image-").len() <= 20, "{:?}", folder.names("image-"));
    drop(bench);
    assert_eq!(open(&folder).journal.claim.parts.len(), 50);
}

#[test]
fn trimming_deletes_whole_segments_and_a_restart_knows() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    let at = bench.puts(40, 5000);
    bench.journal.chores.trim(at[30]).expect("nothing goes without an image");
    assert_eq!(folder.names("segment-").len(), 6);
    for _ in 0..2 {
        bench.journal.chores.save(Image { parts: vec![part(1, at[30], Some("one"))] }).expect("it is saved");
    }
    let before = bench.read_all();
    bench.journal.chores.trim(at[30]).expect("it is trimmed");
    assert_eq!(folder.names("segment-"), ["segment-0000000005", "segment-0000000006"]);
    let kept = bench.read_all();
    assert!(kept[0].position <= at[31] && kept[0].position.0 >= 5 * SEGMENT);
    assert_eq!(before.last().map(|frame| frame.position), kept.last().map(|frame| frame.position));
    drop(bench);
    let bench = open(&folder);
    assert_eq!(bench.journal.claim.start, Position(5 * SEGMENT));
    bench.check_all();
}

#[test]
fn the_sizes_in_the_folder_win_over_the_configuration() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    bench.puts(30, 5000);
    drop(bench);
    let mut bench = open_with(&folder, &JournalConfig { segment_bytes: 1 << 20, new_id: 5, ..config() });
    bench.puts(30, 5000);
    bench.check_all();
    assert!(folder.names("segment-").len() >= 6);
}

/// Room for the header of a segment and two blocks of 8 KiB.
fn short() -> JournalConfig {
    JournalConfig { hurried_bytes: 24 << 10, keys: config().keys, ..JournalConfig::small(ID) }
}

fn open_with(folder: &TempFolder, config: &JournalConfig) -> Bench {
    let disk = FolderDisk::new(folder.path()).expect("the folder is there");
    Bench::open(disk, config).expect("it opens")
}

#[test]
fn a_segment_made_in_a_hurry_is_short_and_the_log_goes_on_in_a_whole_one() {
    let folder = TempFolder::new();
    let size = |name: &str| std::fs::metadata(folder.file(name)).expect("it is there").len();
    let mut bench = open_with(&folder, &short());
    assert_eq!(size("segment-0000000001"), 24 << 10);
    bench.journal.chores.prepare_next().expect("the chores are done");
    assert_eq!(size("segment-0000000002"), SEGMENT);
    let at = bench.puts(4, 5000);
    assert!(at[1].0 < 2 * SEGMENT && at[2].0 >= 2 * SEGMENT, "two blocks of 8 KiB after the header: {at:?}");
    assert_eq!(size("segment-0000000001"), 24 << 10, "nothing is written beyond what was filled");
    bench.puts(5, 5000);
    assert_eq!(bench.puts(1, 5000)[0].0 / SEGMENT, 3, "the next one was needed before it was ready");
    assert_eq!(size("segment-0000000003"), 24 << 10);
    bench.journal.chores.tidy().expect("the chores are done");
    assert_eq!(bench.journal.chores.scrub_next().expect("it is good"), Scrubbed::Good { segment: 1 });
    bench.check_all();
    drop(bench);
    open_with(&folder, &short()).check_all();
}

#[test]
fn a_segment_made_in_a_hurry_has_room_for_the_block_that_needs_it() {
    let folder = TempFolder::new();
    let config = JournalConfig { hurried_bytes: 1, keys: config().keys, ..JournalConfig::small(ID) };
    let mut bench = open_with(&folder, &config);
    let at = bench.puts(3, 12_000);
    assert_eq!(at.iter().map(|position| position.0 / SEGMENT).collect::<Vec<_>>(), [2, 3, 4]);
    bench.check_all();
    drop(bench);
    open_with(&folder, &config).check_all();
}

#[test]
fn a_short_segment_that_was_never_begun_is_used_as_far_as_it_is_filled() {
    let folder = TempFolder::new();
    let config = short();
    open_with(&folder, &config).puts(1, 100);
    for (size, grown) in [(0, 24 << 10), (8 << 10, 24 << 10), (32 << 10, 32 << 10)] {
        let copy = folder.copy();
        std::fs::write(copy.file("segment-0000000002"), vec![0; size]).expect("it can be written");
        let mut bench = open_with(&copy, &config);
        bench.puts(3, 5000);
        let size = std::fs::metadata(copy.file("segment-0000000002")).expect("it is there").len();
        assert_eq!(size, grown);
        bench.check_all();
    }
}

#[test]
fn the_reserve_is_never_less_than_four_segments() {
    let folder = TempFolder::new();
    let config = JournalConfig { reserve_bytes: 4096, keys: config().keys, ..JournalConfig::small(ID) };
    open_with(&folder, &config);
    assert_eq!(std::fs::metadata(folder.file("RESERVE")).expect("it is there").len(), 4 * SEGMENT);
}

#[test]
fn opening_again_and_again_uses_the_segment_that_was_made_ready() {
    let folder = TempFolder::new();
    for round in 1..=5 {
        let mut bench = open(&folder);
        bench.put(100);
        bench.journal.chores.tidy().expect("the chores are done");
        assert_eq!(bench.journal.claim.epoch, Epoch(round));
        assert_eq!(folder.names("segment-").len(), round as usize + 1);
        bench.check_all();
    }
}

#[test]
fn the_lock_holds_when_its_file_is_deleted() {
    let folder = TempFolder::new();
    let bench = open(&folder);
    std::fs::remove_file(folder.file("LOCK")).expect("a file can be deleted");
    assert!(matches!(try_open(&folder), Err(OpenError::InUse)));
    let disk = FolderDisk::read_only(folder.path()).expect("the folder is there");
    assert!(matches!(look_into(disk), Err(OpenError::InUse)));
    drop(bench);
    open(&folder).check_all();
}
