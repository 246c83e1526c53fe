//! The threads around the journal: what an owner sees when things go wrong or come to an end.

use forebay_core::types::Timestamp;

use super::faults::FaultyDisk;
use super::*;
use crate::engine::{Appended, Engine, Image};
use crate::journal::disk::DiskFile as _;
use crate::journal::{JournalEngine, Scrubbed, Stopwatch};

/// Segments that are made in a hurry are short.
fn hurried() -> JournalConfig {
    JournalConfig { keys: config().keys, ..JournalConfig::small(ID) }
}

#[test]
fn everything_that_was_appended_before_the_end_is_answered_and_there() {
    let folder = TempFolder::new();
    let disk = FolderDisk::new(folder.path()).expect("the folder is there");
    let engine = JournalEngine::open(disk, &hurried()).expect("it opens");
    let appended: Vec<_> = (1..=50).map(|seq| engine.append(frame(seq, 2000))).collect();
    engine.close().expect("it stops cleanly");
    for answer in appended {
        answer.wait().expect("it became durable");
    }
    let bench = open(&folder);
    assert_eq!(bench.next, 51);
    bench.check_all();
}

#[test]
fn after_a_failure_every_answer_is_unknown() {
    let folder = TempFolder::new();
    let disk = FaultyDisk::new(&folder);
    let engine = JournalEngine::open(disk.clone(), &hurried()).expect("it opens");
    engine.append(frame(1, 100)).wait().expect("it becomes durable");
    disk.state.changes.store(0, Ordering::Relaxed);
    let appended: Vec<_> = (2..=20).map(|seq| engine.append(frame(seq, 100))).collect();
    for answer in appended {
        let answer = answer.wait();
        assert!(matches!(answer, Err(StorageError::Poisoned(_))), "{answer:?}");
    }
    assert_eq!(engine.reader().read(Position::START, ALL).expect("it can be read").len(), 1);
    disk.state.changes.store(-1, Ordering::Relaxed);
    assert!(matches!(engine.close(), Err(StorageError::Poisoned(_))));
    open(&folder).check_all();
}

#[test]
fn a_commit_waits_until_the_next_segment_finds_a_descriptor() {
    let folder = TempFolder::new();
    let disk = FaultyDisk::new(&folder);
    let engine = JournalEngine::open(disk.clone(), &hurried()).expect("it opens");
    engine.append(frame(1, 100)).wait().expect("it becomes durable");
    disk.state.no_descriptors.store(true, Ordering::Relaxed);
    // More than the active segment and one that may be ready have room for.
    let appended: Vec<_> = (2..=60).map(|seq| engine.append(frame(seq, 5000))).collect();
    while engine.figures().segment_retries < 2 {
        std::thread::yield_now();
    }
    disk.state.no_descriptors.store(false, Ordering::Relaxed);
    for answer in appended {
        answer.wait().expect("it becomes durable once there is a descriptor");
    }
    engine.close().expect("it stops cleanly");
    let bench = open(&folder);
    assert_eq!(bench.next, 61);
    bench.check_all();
}

#[test]
fn more_frames_than_agreed_are_refused_at_once() {
    let folder = TempFolder::new();
    let disk = FolderDisk::new(folder.path()).expect("the folder is there");
    let config = JournalConfig { frames_max: 2, ..hurried() };
    let engine = JournalEngine::open(disk, &config).expect("it opens");
    let appended: Vec<_> = (1..=200).map(|seq| engine.append(frame(seq, 10))).collect();
    let answers: Vec<_> = appended.into_iter().map(Appended::wait).collect();
    let refused =
        answers.iter().filter(|answer| matches!(answer, Err(StorageError::TooManyFrames { limit: 2 })));
    let (refused, kept) = (refused.count(), answers.iter().filter(|answer| answer.is_ok()).count());
    assert!(refused > 0 && kept >= 2, "refused {refused}, kept {kept}");
    assert_eq!(refused + kept, 200);
    let found = engine.reader().read(Position::START, ALL).expect("it can be read");
    assert_eq!(found.len(), kept, "what was refused is not there");
}

#[test]
fn the_chores_are_done_in_the_background() {
    let folder = TempFolder::new();
    let disk = FolderDisk::new(folder.path()).expect("the folder is there");
    let engine = JournalEngine::open(disk, &hurried()).expect("it opens");
    for seq in 1..=30 {
        engine.append(frame(seq, 5000)).wait().expect("it becomes durable");
    }
    engine.close().expect("it stops cleanly");
    let mut bench = open(&folder);
    let mut sealed = 0;
    while let Scrubbed::Good { .. } = bench.journal.chores.scrub_next().expect("segments are good") {
        sealed += 1;
    }
    // Seven of these frames fill a segment, and all but the last one have a footer. On a busy machine the
    // next one may not be ready in time, and a short one is begun instead.
    assert!(sealed >= 4, "{sealed} are sealed");
    bench.check_all();
}

#[test]
fn figures_tell_of_syncs_frames_reads_and_images() {
    let folder = TempFolder::new();
    let disk = FolderDisk::new(folder.path()).expect("the folder is there");
    let time = AtomicU64::new(0);
    let stopwatch = Stopwatch::new(move || Timestamp(time.fetch_add(300, Ordering::Relaxed)));
    let config = JournalConfig { stopwatch, ..hurried() };
    let engine = JournalEngine::open(disk, &config).expect("it opens");
    for seq in 1..=30 {
        engine.append(frame(seq, 5000)).wait().expect("it becomes durable");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(engine.read(ShardId(0), Position::START, ALL)).expect("it can be read");
    runtime.block_on(engine.save(ShardId(0), Image::default())).expect("it is saved");
    let figures = engine.figures();
    assert_eq!((figures.syncs, figures.synced_frames, figures.frames_waiting), (30, 30, 0));
    assert!(figures.synced_bytes >= 30 * 5000, "{}", figures.synced_bytes);
    assert_eq!((figures.sync_times.count(), figures.sync_times.sum().as_micros()), (30, 30 * 300));
    assert!(figures.segments >= 4 && figures.free_bytes.is_some(), "{figures:?}");
    assert_eq!((figures.reads, figures.images), (1, 1));
    assert!(figures.read_bytes >= 30 * 5000 && figures.image_bytes > 0, "{figures:?}");
}

#[test]
fn a_stretch_of_a_file_is_read_as_far_as_the_file_goes() {
    let folder = TempFolder::new();
    let disk = FolderDisk::new(folder.path()).expect("the folder is there");
    let file = disk.create("some").expect("a file");
    file.write_at(&[std::io::IoSlice::new(b"0123456789")], 0).expect("room");
    let read = |len, offset| file.read_vec(len, offset).expect("a stretch");
    assert_eq!(read(4, 3), b"3456");
    assert_eq!(read(20, 5), b"56789");
    assert_eq!((read(3, 10), read(0, 0)), (vec![], vec![]));
    // As a disk reads that has no way of its own.
    let mut bytes = [0; 20];
    assert_eq!(file.read_at(&mut bytes, 5).expect("a stretch"), 5);
    assert_eq!(bytes[..5], b"56789"[..]);
}
