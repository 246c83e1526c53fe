//! Looking at folders that are damaged, and copying folders that are in use.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use forebay_core::types::{PartKey, Position};

use super::faults::FaultyDisk;
use super::{FLIP_STEP, SEGMENT, TempFolder, config, look_into, open};
use crate::engine::{Image, ImagePart};
use crate::journal::disk::{Disk, FolderDisk};
use crate::journal::inspect::{CopyError, Damage, DamageKind, Found, back_up, restore};
use crate::journal::{Journal, OpenError, Opened};

/// What a frame says: its entries, its contents, and whether all of those are good.
type Seen = BTreeMap<Position, (Vec<u8>, Vec<u8>, bool)>;

fn look(folder: &TempFolder) -> (Seen, Vec<Damage>) {
    let (seen, damages, _) = look_closely(folder);
    (seen, damages)
}

fn look_closely(folder: &TempFolder) -> (Seen, Vec<Damage>, Vec<String>) {
    look_at(FolderDisk::read_only(folder.path()).expect("the folder is there"))
}

fn look_at(disk: impl Disk) -> (Seen, Vec<Damage>, Vec<String>) {
    let inspection = look_into(disk).expect("nobody uses the folder");
    let mut seen = Seen::new();
    let (_, mut damages) = inspection.images();
    damages.extend(inspection.flaws().iter().cloned());
    let Ok(scanned) = inspection.scan::<Infallible>(&mut |found| {
        match found {
            Found::Frame(frame) => {
                let mut payload = frame.payload.to_vec();
                for damaged in &frame.damaged {
                    let end = damaged.end.min(payload.len());
                    payload[damaged.start.min(end)..end].fill(0);
                }
                seen.insert(frame.position, (frame.entries.to_vec(), payload, frame.damaged.is_empty()));
            }
            Found::Damage(damage) => damages.push(damage),
            Found::Passed(_) => {}
        }
        Ok(())
    });
    (seen, damages, scanned.remarks)
}

fn image(through: Position) -> Image {
    let key = PartKey { kind: 1, id: 0, sub: 0 };
    Image { parts: vec![ImagePart { key, through, bytes: Some(Bytes::from_static(b"state")) }] }
}

/// Five segments, all but the last sealed, blocks of one frame and of many, and two images.
fn busy_folder() -> TempFolder {
    let folder = TempFolder::new();
    let mut bench = open(&folder);
    for round in 0..5 {
        let at = bench.puts(4, 10_000);
        bench.puts(30, 10 + round);
        bench.journal.chores.tidy().expect("chores are done");
        if round > 2 {
            bench.journal.chores.save(image(at[3])).expect("an image is saved");
        }
    }
    bench.journal.chores.stop().expect("it stops");
    drop(bench);
    folder
}

#[test]
fn a_sound_folder_has_no_damage() {
    let folder = busy_folder();
    let (seen, damages) = look(&folder);
    assert_eq!(damages, []);
    assert_eq!(seen.len(), 5 * 34);
    assert!(seen.values().all(|(_, _, good)| *good));
}

/// Any flipped byte is found and costs one frame at most, and all frames that are handed out are as they were
/// written.
#[test]
fn a_flipped_byte_is_found_and_costs_what_it_lies_in() {
    let folder = busy_folder();
    let (whole, _) = look(&folder);
    let mut costs = [0; 3];
    for name in folder.names("segment-") {
        let sound = std::fs::read(folder.file(&name)).expect("the file can be read");
        let Some(last) = sound.iter().rposition(|&byte| byte != 0) else { continue };
        for at in (0..=last).step_by(FLIP_STEP) {
            let mut bytes = sound.clone();
            bytes[at] ^= 0x40;
            std::fs::write(folder.file(&name), &bytes).expect("the file can be written");
            let (seen, damages, remarks) = look_closely(&folder);
            // A footer may have been cut short by a crash, and is not needed.
            let footer = remarks.iter().any(|remark| remark.contains(&name));
            // The last segment has no checksum over its padding, which is never read.
            let padding = sound[at] == 0 && damages.is_empty();
            assert!(padding || footer || damages.iter().any(|damage| damage.file == name), "{name} {at}");
            for (position, (entries, payload, good)) in &seen {
                let (expected, contents, _) = &whole[position];
                assert_eq!(entries, expected, "{name} {at}");
                assert!(!good || payload == contents, "{name} {at}");
            }
            let lost = whole.len() - seen.values().filter(|(_, _, good)| *good).count();
            assert!(lost <= 1, "{name} {at}: {lost} frames are lost: {damages:?}");
            costs[lost] += 1;
        }
        std::fs::write(folder.file(&name), &sound).expect("the file can be written");
    }
    let looked_at = costs.map(|count: usize| count * FLIP_STEP);
    assert!(looked_at[0] > 10_000 && looked_at[1] > 100_000, "both kinds are met: {costs:?}");
}

/// The operator is told which page of which file the disk cannot read, and only the frames there are lost.
#[test]
fn a_page_that_cannot_be_read_is_named_and_costs_what_lies_there() {
    let folder = busy_folder();
    let (whole, _) = look(&folder);
    let disk = FaultyDisk::new(&folder);
    for name in folder.names("segment-") {
        let sound = std::fs::read(folder.file(&name)).expect("the file can be read");
        let Some(last) = sound.iter().rposition(|&byte| byte != 0) else { continue };
        for page in (0..=last as u64).step_by(4096) {
            disk.break_page(&name, page);
            let (seen, damages, remarks) = look_at(disk.clone());
            let is_here = |damage: &&Damage| damage.offset <= page && page < damage.offset + damage.len;
            let named = damages.iter().filter(|damage| damage.file == name).find(is_here);
            let footer = remarks.iter().any(|remark| remark.contains(&name) && remark.contains("os error 5"));
            assert!(footer || named.is_some_and(|damage| damage.what.contains("os error 5")), "{damages:?}");
            for (position, (entries, payload, good)) in &seen {
                let (expected, contents, _) = &whole[position];
                assert_eq!(entries, expected, "{name} {page}");
                assert!(!good || payload == contents, "{name} {page}");
            }
            let lost = whole.len() - seen.values().filter(|(_, _, good)| *good).count();
            assert!(lost <= 31, "{name} {page}: {lost} frames are lost: {damages:?}");
        }
    }
}

#[test]
fn looking_changes_nothing_and_keeps_others_out() {
    let folder = busy_folder();
    let disk = FolderDisk::read_only(folder.path()).expect("the folder is there");
    let inspection = look_into(disk).expect("nobody uses the folder");
    assert!(matches!(super::try_open(&folder), Err(OpenError::InUse)));
    assert!(inspection.claim().is_ok());
    drop(inspection);
    let bench = open(&folder);
    let disk = FolderDisk::read_only(folder.path()).expect("the folder is there");
    assert!(matches!(look_into(disk), Err(OpenError::InUse)));
    bench.check_all();
}

#[test]
fn a_cut_file_is_damage_and_a_torn_block_is_not() {
    let folder = busy_folder();
    let names = folder.names("segment-");
    folder.change(&names[1], |bytes| bytes.truncate(30_000));
    let (_, damages) = look(&folder);
    assert!(damages.iter().any(|damage| damage.file == names[1] && !damage.kind.is_harmless()));

    let folder = busy_folder();
    let disk = FolderDisk::read_only(folder.path()).expect("the folder is there");
    let end = look_into(disk).expect("nobody uses it").claim().expect("it is sound").end.0;
    let name = crate::journal::segment::name(end / SEGMENT);
    let at = (end % SEGMENT) as usize;
    folder.change(&name, |bytes| bytes[at..at + 600].fill(9));
    let (_, damages) = look(&folder);
    assert_eq!(damages.iter().map(|damage| damage.kind).collect::<Vec<_>>(), [DamageKind::TornTail]);
    // Below the durable end the same is damage.
    folder.change(&name, |bytes| bytes[at - 4096..at].fill(9));
    let (_, damages) = look(&folder);
    assert!(damages.iter().any(|damage| !damage.kind.is_harmless()), "{damages:?}");
}

/// Ends the writer, also where a check fails before.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A writer goes as fast as it can, saves images and trims behind them, while copies are made. Whatever was
/// durable when a copy began is in it, or was trimmed.
#[test]
fn a_copy_of_a_busy_folder_is_whole() {
    let folder = TempFolder::new();
    let disk = FolderDisk::new(folder.path()).expect("the folder is there");
    let Opened { mut writer, mut chores, .. } = Journal::open(disk, &config()).expect("a new journal");
    let stop = AtomicBool::new(false);
    let durable = AtomicU64::new(0);
    let trims = AtomicU64::new(0);
    // Microseconds between commits: the more, the more often a copy has been overtaken. How fast a journal is
    // depends on the machine.
    let pause = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut out = Vec::new();
            let mut seq = 0;
            while !stop.load(Ordering::Relaxed) {
                seq += 1;
                let mut frames = vec![super::frame(seq, 3_000)];
                writer.commit(&mut frames, &mut out).expect("the commit succeeds");
                durable.store(seq, Ordering::Release);
                std::thread::sleep(std::time::Duration::from_micros(pause.load(Ordering::Relaxed)));
                if writer.take_rotated() {
                    chores.tidy().expect("chores are done");
                }
                if seq % 16 == 0 {
                    let through = out.last().expect("it was committed").get();
                    let saved = chores.save(image(through)).expect("an image is saved");
                    chores.trim(saved.covered).expect("the front goes");
                    trims.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let _ends = Ends(&stop);
        let from = FolderDisk::read_only(folder.path()).expect("the folder is there");
        while durable.load(Ordering::Acquire) < 200 {
            std::thread::yield_now();
        }
        // So slow that the front goes on several times while one copy is made.
        let mut slowly = |_| std::thread::sleep(std::time::Duration::from_millis(3));
        let mut copies = 0;
        for _ in 0..200 {
            if copies == 8 {
                break;
            }
            let before = durable.load(Ordering::Acquire);
            let copy = TempFolder::new();
            let to = FolderDisk::new(copy.path()).expect("the folder is there");
            let copied = match back_up(&from, &to, &mut slowly) {
                Ok(copied) => copied,
                Err(CopyError::TooBusy) => {
                    pause.fetch_add(100, Ordering::Relaxed);
                    continue;
                }
                Err(error) => panic!("the copy fails: {error}"),
            };
            assert!(copied.online);
            copies += 1;
            assert!(matches!(back_up(&from, &to, &mut |_| {}), Err(CopyError::NotEmpty)));
            let (_, damages) = look(&copy);
            assert_eq!(damages, [], "the copy is sound");
            assert!(matches!(super::try_open(&copy), Err(OpenError::Backup)), "a server does not change it");
            let restored = TempFolder::new();
            let (backup, to) = (FolderDisk::read_only(copy.path()), FolderDisk::new(restored.path()));
            let (backup, to) = (backup.expect("it is there"), to.expect("it is there"));
            restore(&backup, &to, 1 << 16, &mut |_| {}).expect("a copy can be restored");
            let bench = open(&restored);
            assert!(bench.journal.claim.epoch.0 > 1 << 16);
            assert_eq!(bench.journal.claim.end, Position(bench.journal.reader.end().0));
            let frames = bench.read_all();
            super::check_frames(&frames);
            let last = frames.last().map_or(0, |frame| frame.runs[0].first.0);
            assert!(last >= before, "{last} is there, and {before} was durable before");
            let first = frames.first().expect("there are frames").position;
            let covered = bench.journal.claim.parts.iter().map(|part| part.through).min();
            assert!(covered.is_some_and(|covered| covered >= first || first.0 < 2 * SEGMENT));
        }
        assert!(copies > 0, "some copies come along");
    });
    assert!(trims.load(Ordering::Relaxed) > 5, "the front went meanwhile");
}

#[test]
fn a_folder_that_was_begun_is_opened_by_nothing_until_it_is_finished() {
    let folder = TempFolder::new();
    let disk = FolderDisk::new(folder.path()).expect("the folder is there");
    let mut made = Journal::begin(disk.clone(), &config()).expect("a journal can be begun");
    made.chores.stop().expect("it stops");
    drop(made);
    assert!(matches!(
        super::try_open(&folder),
        Err(OpenError::Unfinished { maker: "forebay doctor --salvage", .. })
    ));
    let read_only = || FolderDisk::read_only(folder.path()).expect("the folder is there");
    assert!(matches!(look_into(read_only()), Err(OpenError::Unfinished { .. })));
    let target = TempFolder::new();
    let to = FolderDisk::new(target.path()).expect("the folder is there");
    for copied in [back_up(&read_only(), &to, &mut |_| {}), restore(&read_only(), &to, 1, &mut |_| {})] {
        assert!(matches!(copied, Err(CopyError::Open(OpenError::Unfinished { .. }))));
    }
    assert!(Journal::begin(disk.clone(), &config()).is_err(), "it is not begun twice");
    Journal::finish(&disk).expect("it is whole");
    open(&folder).check_all();
    assert!(look_into(read_only()).is_ok());
}

#[test]
fn a_copy_goes_on_in_its_own_folder_and_in_no_other() {
    let folder = TempFolder::new();
    let disk = FolderDisk::new(folder.path()).expect("the folder is there");
    let begin = |of| Journal::begin_copy(disk.clone(), &config(), of);
    drop(begin("log a").expect("an empty folder is taken"));
    assert!(matches!(begin("log b"), Err(OpenError::NotEmpty)), "it is a copy of another log");
    let refused = super::try_open(&folder).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused.contains("`forebay copy`") && refused.contains("it goes on"), "{refused}");
    let mut again = begin("log a").expect("the same copy goes on");
    again.chores.stop().expect("it stops");
    drop(again);
    Journal::finish(&disk).expect("it is whole");
    assert!(matches!(begin("log a"), Err(OpenError::NotEmpty)), "it is finished");
    open(&folder).check_all();
    // A loss of power may leave the mark without its text.
    let other = TempFolder::new();
    std::fs::write(other.path().join("UNFINISHED"), "").expect("a file");
    let disk = FolderDisk::new(other.path()).expect("the folder is there");
    drop(Journal::begin_copy(disk, &config(), "log a").expect("nothing else was written"));
}
