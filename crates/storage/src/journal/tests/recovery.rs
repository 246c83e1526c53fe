//! The decision table, one rule at a time, on files that were changed by hand.

use forebay_core::types::PartKey;

use super::*;
use crate::engine::{Image, ImagePart};
use crate::journal::mark::{NAME as MARK, Slot};

const TAIL: &str = "segment-0000000001";

/// A journal with five small blocks in one segment, each in a page of its own: the first at offset 4096.
/// It was not stopped cleanly, and MARK says that `durable` of its blocks are durable.
fn five_blocks(durable: u64) -> TempFolder {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    bench.puts(5, 1000);
    drop(bench);
    set_mark(&folder, SEGMENT + 4096 * (1 + durable), 1 + durable);
    folder
}

fn set_mark(folder: &TempFolder, durable_end: u64, sequence: u64) {
    let id = crate::journal::block::JournalId::new(ID);
    folder.change(MARK, |bytes| {
        for at in [0, 4096] {
            let slot = Slot::decode(&bytes[at..at + 512], id).expect("the slot is valid");
            bytes[at..at + 512].copy_from_slice(&Slot { durable_end, sequence, ..slot }.encode(id));
        }
    });
}

#[cfg(unix)]
#[test]
fn r1_what_cannot_be_read_is_not_taken_for_absent() {
    let folder = five_blocks(5);
    std::fs::remove_file(folder.file(TAIL)).expect("it can be removed");
    std::fs::create_dir(folder.file(TAIL)).expect("a folder takes its place");
    let text = refused_by("R1", &folder);
    assert!(text.contains(TAIL), "{text}");
}

#[test]
fn r2_a_broken_block_below_the_durable_end_is_damage() {
    let folder = five_blocks(5);
    folder.change(TAIL, |bytes| bytes[5 * 4096 + 200] ^= 4);
    let text = refused_by("R2", &folder);
    for fact in [TAIL, "offset=`20480`", "sequence=`6-6`", "Restore a backup", "salvage"] {
        assert!(text.contains(fact), "{fact} in {text}");
    }
}

#[test]
fn r3_a_broken_block_before_a_segment_that_goes_on_is_damage() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    bench.puts(10, 5000);
    drop(bench);
    assert_eq!(folder.names("segment-").len(), 2);
    set_mark(&folder, 0, 0);
    folder.change(TAIL, |bytes| bytes[4096 + 130] ^= 4);
    refused_by("R3", &folder);
}

#[test]
fn r4_a_broken_block_before_a_good_one_is_damage() {
    let folder = five_blocks(0);
    folder.change(TAIL, |bytes| bytes[4 * 4096] ^= 4);
    refused_by("R4", &folder);
}

#[test]
fn r5_more_than_one_block_beyond_the_end_is_damage() {
    let folder = five_blocks(5);
    folder.change(TAIL, |bytes| bytes[6 * 4096 + (16 << 10) + 5] = 1);
    refused_by("R5", &folder);
}

#[test]
fn r6_a_journal_without_a_valid_mark_is_refused() {
    let folder = five_blocks(5);
    folder.change(MARK, |bytes| bytes[40] ^= 1);
    let bench = open(&folder);
    assert_eq!(bench.next, 6, "one slot is enough");
    drop(bench);
    folder.change(MARK, |bytes| {
        bytes[40] ^= 1;
        bytes[4096 + 40] ^= 1;
    });
    refused_by("R6", &folder);
    std::fs::remove_file(folder.file(MARK)).expect("it can be removed");
    refused_by("R6", &folder);
}

#[test]
fn r7_a_missing_or_an_unknown_segment_is_refused() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    bench.puts(30, 5000);
    drop(bench);
    for missing in ["segment-0000000001", "segment-0000000002"] {
        let copy = folder.copy();
        std::fs::remove_file(copy.file(missing)).expect("it can be removed");
        let text = refused_by("R7", &copy);
        assert!(text.contains(missing), "{text}");
    }
    for unknown in ["segment-0000000009", "segment-x"] {
        let copy = folder.copy();
        std::fs::write(copy.file(unknown), b"").expect("it can be written");
        refused_by("R7", &copy);
    }
    let copy = folder.copy();
    std::fs::write(copy.file("segment-0000000006"), b"").expect("it can be written");
    open(&copy).check_all();
}

#[test]
fn r8_a_good_block_that_does_not_follow_the_one_before_is_damage() {
    // Two journals of the same id whose second blocks differ, so that the third of one does not follow
    // the second of the other.
    let folder = five_blocks(0);
    let other = TempFolder::new();
    let mut bench = open(&other);
    bench.puts(1, 1000);
    bench.next = 77;
    bench.puts(4, 1000);
    drop(bench);
    let foreign = std::fs::read(other.file(TAIL)).expect("it can be read");
    folder.change(TAIL, |bytes| bytes[3 * 4096..6 * 4096].copy_from_slice(&foreign[3 * 4096..6 * 4096]));
    refused_by("R8", &folder);
}

#[test]
fn r9_a_log_that_ends_below_its_durable_end_is_damage() {
    let folder = five_blocks(5);
    folder.change(TAIL, |bytes| bytes.truncate(5 * 4096));
    let text = refused_by("R9", &folder);
    assert!(text.contains("offset=`20480`"), "{text}");

    let folder = TempFolder::new();
    let mut bench = open(&folder);
    bench.puts(10, 5000);
    drop(bench);
    std::fs::remove_file(folder.file("segment-0000000002")).expect("it can be removed");
    refused_by("R9", &folder);
}

#[test]
fn r10_a_torn_tail_is_kept_aside_and_cut() {
    let folder = five_blocks(4);
    let whole = std::fs::read(folder.file(TAIL)).expect("it can be read");
    folder.change(TAIL, |bytes| bytes[5 * 4096 + 512..5 * 4096 + 1024].fill(0));
    let bench = open(&folder);
    assert_eq!(bench.next, 5, "the last message was never acknowledged");
    bench.check_all();
    assert_eq!(bench.journal.claim.remarks.len(), 1, "{:?}", bench.journal.claim.remarks);
    let kept = folder.names("quarantine-");
    assert_eq!(kept, ["quarantine-segment-0000000001-20480"]);
    let kept = std::fs::read(folder.file(&kept[0])).expect("it can be read");
    assert_eq!(kept[..512], whole[5 * 4096..5 * 4096 + 512]);
    drop(bench);
    let bench = open(&folder);
    bench.check_all();
    assert!(bench.journal.claim.remarks.is_empty(), "what was cut is not reported twice");
}

#[test]
fn r10_a_segment_header_that_never_got_there_is_cut_too() {
    let folder = five_blocks(5);
    let mut torn = vec![0; SEGMENT as usize];
    torn[100..600].fill(7);
    std::fs::write(folder.file("segment-0000000002"), torn).expect("it can be written");
    let bench = open(&folder);
    bench.check_all();
    assert_eq!(bench.journal.claim.remarks.len(), 1);
}

#[test]
fn a_last_block_that_is_whole_is_kept_though_nobody_was_told() {
    let folder = five_blocks(4);
    let bench = open(&folder);
    assert_eq!(bench.next, 6);
    bench.check_all();
}

#[test]
fn a_footer_that_was_cut_short_is_written_again() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    bench.puts(15, 5000);
    bench.journal.chores.tidy().expect("the chores are done");
    drop(bench);
    folder.change(TAIL, |bytes| {
        let footer = bytes.len() - 4096;
        bytes[footer + 60] ^= 1;
    });
    let mut bench = open(&folder);
    bench.check_all();
    assert!(bench.journal.chores.seal_next().expect("it is sealed again"));
    bench.check_all();
}

#[test]
fn what_an_interrupted_trim_left_behind_is_deleted() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    let at = bench.puts(30, 5000);
    let key = PartKey { kind: 1, id: 1, sub: 1 };
    let parts = || vec![ImagePart { key, through: at[25], bytes: Some(Bytes::from_static(b"state")) }];
    bench.journal.chores.save(Image { parts: parts() }).expect("it is saved");
    let old = std::fs::read(folder.file(TAIL)).expect("it can be read");
    bench.journal.chores.trim(at[25]).expect("it is trimmed");
    drop(bench);
    std::fs::write(folder.file(TAIL), old).expect("it can be written");
    let bench = open(&folder);
    bench.check_all();
    assert!(!folder.names("segment-").contains(&TAIL.to_owned()));
}

/// Two images and a trimmed log.
fn with_images(trim: bool) -> TempFolder {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    let at = bench.puts(30, 5000);
    for (through, text) in [(at[14], "older"), (at[25], "newer")] {
        let key = PartKey { kind: 1, id: 1, sub: 1 };
        let part = ImagePart { key, through, bytes: Some(Bytes::from_static(text.as_bytes())) };
        let saved = bench.journal.chores.save(Image { parts: vec![part] }).expect("it is saved");
        if trim {
            bench.journal.chores.trim(saved.covered).expect("it is trimmed");
        }
    }
    folder
}

fn spoil(folder: &TempFolder, image: &str) {
    folder.change(image, |bytes| *bytes.last_mut().expect("it is not empty") ^= 1);
}

#[test]
fn a_bad_image_gives_way_to_the_older_one() {
    let folder = with_images(true);
    spoil(&folder, "image-0000000002");
    let bench = open(&folder);
    assert_eq!(bench.journal.claim.parts[0].bytes, "older");
    assert_eq!(bench.journal.claim.covered, Position::START);
    assert_eq!(bench.journal.claim.remarks.len(), 1);
    assert_eq!(folder.names("quarantine-"), ["quarantine-image-0000000002"]);
}

#[test]
fn a_newest_image_that_was_deleted_is_missed() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    let at = bench.puts(30, 5000);
    for (through, text) in [(at[5], "oldest"), (at[14], "older"), (at[25], "newer")] {
        let key = PartKey { kind: 1, id: 1, sub: 1 };
        let part = ImagePart { key, through, bytes: Some(Bytes::from_static(text.as_bytes())) };
        let saved = bench.journal.chores.save(Image { parts: vec![part] }).expect("it is saved");
        bench.journal.chores.trim(saved.covered).expect("it is trimmed");
    }
    drop(bench);
    assert_eq!(open(&folder).journal.claim.remarks, Vec::<String>::new());
    let set_aside = folder.copy();

    std::fs::remove_file(folder.file("image-0000000003")).expect("it can be removed");
    let bench = open(&folder);
    assert_eq!(bench.journal.claim.parts[0].bytes, "older");
    let remarks = &bench.journal.claim.remarks;
    assert!(remarks.len() == 1 && remarks[0].contains("beside=`image-0000000001`"), "{remarks:?}");

    spoil(&set_aside, "image-0000000003");
    assert_eq!(open(&set_aside).journal.claim.remarks.len(), 1);
    assert_eq!(open(&set_aside).journal.claim.remarks, Vec::<String>::new(), "it is not said twice");
}

#[test]
fn without_a_good_image_the_whole_log_is_replayed_if_it_is_there() {
    for trim in [false, true] {
        let folder = with_images(trim);
        spoil(&folder, "image-0000000001");
        spoil(&folder, "image-0000000002");
        if trim {
            refused_by("image", &folder);
        } else {
            let bench = open(&folder);
            assert!(bench.journal.claim.parts.is_empty());
            bench.check_all();
        }
    }
}

#[test]
fn a_file_that_holds_parts_of_later_images_is_not_itself_one_to_fall_back_to() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    let at = bench.puts(30, 5000);
    let part = |id, through, text: Option<String>| {
        let key = PartKey { kind: 1, id, sub: 1 };
        ImagePart { key, through, bytes: text.map(Bytes::from) }
    };
    let mut save = |parts| bench.journal.chores.save(Image { parts }).expect("it is saved");
    let long = "state".repeat(1000);
    save(vec![part(1, at[20], Some(long.clone()))]);
    save(vec![part(1, at[21], None), part(2, at[21], Some(long))]);
    save(vec![part(1, at[22], None), part(2, at[22], None)]);
    save(vec![part(1, at[23], None), part(2, at[23], None)]);
    bench.journal.chores.trim(at[20]).expect("it is trimmed");
    drop(bench);
    assert_eq!(folder.names("image-").len(), 4, "the two newest, and the files of their parts");
    let copy = folder.copy();
    spoil(&copy, "image-0000000002");
    assert_eq!(open(&copy).journal.claim.parts.len(), 2, "the image beside it has copies of its own");
    for gone in ["image-0000000002", "image-0000000003"] {
        std::fs::remove_file(folder.file(gone)).expect("it can be removed");
    }
    refused_by("image", &folder);
}

#[test]
fn an_image_that_knows_more_than_the_log_is_proof_of_a_loss() {
    let folder = with_images(false);
    std::fs::remove_file(folder.file("segment-0000000005")).expect("it can be removed");
    folder.change("segment-0000000004", |bytes| bytes.truncate(3 * 4096));
    set_mark(&folder, 0, 0);
    refused_by("R9", &folder);
}

#[test]
fn a_folder_of_a_newer_release_or_a_damaged_format_is_refused() {
    let folder = five_blocks(5);
    let copy = folder.copy();
    copy.change("FORMAT", |bytes| bytes[8] = 2);
    assert!(matches!(try_open(&copy), Err(OpenError::TooNew { version: 2, known: 1 })));
    let copy = folder.copy();
    copy.change("FORMAT", |bytes| {
        bytes[33] = 1;
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    });
    assert!(matches!(try_open(&copy), Err(OpenError::UnknownFeatures { features: 0x100 })));
    let copy = folder.copy();
    copy.change("FORMAT", |bytes| bytes[40] ^= 1);
    refused_by("FORMAT", &copy);
    let copy = folder.copy();
    std::fs::remove_file(copy.file("FORMAT")).expect("it can be removed");
    refused_by("FORMAT", &copy);
}

#[test]
fn every_way_of_tearing_the_last_block_is_found() {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    bench.puts(3, 1000);
    let end = bench.journal.reader.end();
    bench.put(9000);
    drop(bench);
    set_mark(&folder, end.0, 4);
    let offset = (end.0 - SEGMENT) as usize;
    let sectors = 12288 / 512;
    // Cut at each sector, and each single sector missing.
    for sector in 0..sectors {
        for missing in [sector..sectors, sector..sector + 1] {
            let copy = folder.copy();
            let range = offset + missing.start * 512..offset + missing.end * 512;
            let mut changed = false;
            copy.change(TAIL, |bytes| {
                changed = bytes[range.clone()].iter().any(|&byte| byte != 0);
                bytes[range].fill(0);
            });
            let bench = open(&copy);
            assert_eq!(bench.next, if changed { 4 } else { 5 }, "sector {sector}, {missing:?}");
            bench.check_all();
        }
    }
}
