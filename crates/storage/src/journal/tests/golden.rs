//! A folder from each release, which every later one opens.
//!
//! `FOREBAY_FIXTURES=write cargo test -p forebay-storage golden` makes the folder of the present format
//! anew; see the README beside it.

use forebay_core::types::{Epoch, PartKey};

use super::*;
use crate::engine::{Image, ImagePart, IndexRun};
use crate::journal::crypt::Keyring;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// Blocks of one and of three frames.
const MESSAGES: u64 = 40;

fn length(seq: u64) -> usize {
    (seq as usize * 137) % 3000
}

/// Now and then a frame holds copies of earlier messages too.
fn runs(seq: u64) -> Vec<Run> {
    let own = Run { stream: StreamId(1), first: Seq(seq), count: 1, copied: false };
    let copies = Run { first: Seq(seq.saturating_sub(9)), count: 2, copied: true, ..own };
    if seq > 10 && seq.is_multiple_of(5) { vec![own, copies] } else { vec![own] }
}

fn golden_frame(seq: u64) -> Frame {
    Frame { runs: runs(seq), ..frame(seq, length(seq)) }
}

/// Several segments, the first ones sealed and trimmed, two images, and a torn tail.
fn make(keys: Option<Keyring>) -> TempFolder {
    let folder = TempFolder::new();
    let mut config = JournalConfig { keys, ..config() };
    config.segment_bytes = 32 << 10;
    config.block_bytes_max = 16 << 10;
    let disk = FolderDisk::new(folder.path()).expect("the folder is there");
    let mut bench = Bench::open(disk, &config).expect("it opens");
    let mut out = Vec::new();
    while bench.next <= MESSAGES {
        let count = if bench.next.is_multiple_of(4) { 3 } else { 1 };
        let mut frames = (bench.next..bench.next + count).map(golden_frame).collect();
        bench.journal.writer.commit(&mut frames, &mut out).expect("it commits");
        bench.next += count;
        if bench.journal.writer.take_rotated() {
            bench.journal.chores.tidy().expect("the chores are done");
        }
    }
    for (through, text) in [(9, "as it was at ten"), (19, "as it was at twenty")] {
        let key = PartKey { kind: 1, id: 2, sub: 3 };
        let bytes = Some(Bytes::from_static(text.as_bytes()));
        let parts = vec![ImagePart { key, through: out[through].get(), bytes }];
        let saved = bench.journal.chores.save(Image { parts }).expect("it is saved");
        bench.journal.chores.trim(saved.covered).expect("it is trimmed");
    }
    let end = bench.journal.reader.end().0;
    drop(bench);
    let tail = format!("segment-{:010}", end / (32 << 10));
    folder.change(&tail, |bytes| bytes[(end % (32 << 10)) as usize + 600..][..300].fill(0x5a));
    folder
}

#[test]
fn a_folder_of_format_1_is_opened() {
    is_opened(&fixture("v1"), None);
}

#[test]
fn an_encrypted_folder_of_format_1_is_opened() {
    is_opened(&fixture("v1-encrypted"), Some(crypt::keyring(&[1])));
}

fn is_opened(fixture: &Path, keys: Option<Keyring>) {
    if std::env::var("FOREBAY_FIXTURES").is_ok_and(|wish| wish == "write") {
        let made = make(keys.clone());
        std::fs::create_dir_all(fixture).expect("the folder can be made");
        for entry in std::fs::read_dir(made.path()).expect("it can be listed") {
            let entry = entry.expect("it can be listed");
            std::fs::copy(entry.path(), fixture.join(entry.file_name())).expect("it can be copied");
        }
    }
    let folder = TempFolder::new();
    for entry in std::fs::read_dir(fixture).expect("the fixture is there") {
        let entry = entry.expect("it can be listed");
        std::fs::copy(entry.path(), folder.file(&entry.file_name().to_string_lossy()))
            .expect("it can be copied");
    }
    let disk = FolderDisk::new(folder.path()).expect("the folder is there");
    let mut bench = Bench::open(disk, &JournalConfig { keys, ..config() }).expect("it opens");
    let claim = &bench.journal.claim;
    assert_eq!(claim.epoch, Epoch(2));
    assert_eq!(claim.parts.len(), 1);
    assert_eq!(claim.parts[0].bytes, "as it was at twenty");
    assert_eq!(claim.parts[0].key, PartKey { kind: 1, id: 2, sub: 3 });
    assert_eq!(claim.remarks.len(), 1, "the torn tail: {:?}", claim.remarks);
    assert_eq!(bench.next, MESSAGES + 3, "the last block holds three");
    let frames = bench.read_all();
    let first = frames[0].runs[0].first.0;
    assert!(first > 1 && first <= 11, "the first segment was trimmed, and nothing after the tenth message");
    for (frame, seq) in frames.iter().zip(first..) {
        assert_eq!(frame.entries, format!("entry {seq}"));
        assert_eq!(frame.payload, payload(seq, length(seq)));
        assert_eq!(frame.runs, runs(seq));
        assert_eq!(frame.epoch, Epoch(1));
    }
    let indexed: u64 = claim_runs(&bench).iter().filter(|run| !run.copied).map(|run| run.count).sum();
    assert_eq!(indexed, frames.len() as u64);
    let copies: Vec<_> =
        claim_runs(&bench).iter().filter(|run| run.copied).map(|run| (run.position, run.first)).collect();
    let expected: Vec<_> = frames
        .iter()
        .flat_map(|frame| frame.runs.iter().skip(1).map(|run| (frame.position, run.first)))
        .collect();
    assert_eq!(copies, expected, "copies are named one by one");
    assert!(copies.len() > 3);
    bench.put(100);
    bench.check_last();
}

fn claim_runs(bench: &Bench) -> &[IndexRun] {
    &bench.journal.claim.runs
}

impl Bench {
    fn check_last(&self) {
        let frames = self.read_all();
        assert_eq!(frames.last().map(|frame| frame.runs[0].first.0), Some(self.next - 1));
    }
}
