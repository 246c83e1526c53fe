//! The witness itself: histories that cannot be, one for each thing that it watches.

use forebay_storage::engine::{ImagePart, IndexRun, Run, SpaceGauge, Tenure};

use super::*;

const KEY: PartKey = PartKey { kind: 1, id: 0, sub: 0 };

fn frame(number: u8) -> Frame {
    let run = Run { stream: StreamId(1), first: Seq(u64::from(number)), count: 1, copied: false };
    let entries = Bytes::from(vec![number; 3]);
    Frame { shard: SHARD, entries, payload: Bytes::from(vec![number; 9]), runs: vec![run] }
}

fn image(content: u8) -> Image {
    let bytes = Some(Bytes::from(vec![content]));
    Image { parts: vec![ImagePart { key: KEY, through: Position(10), bytes }] }
}

/// Frames 1 to 3 are acknowledged at 10, 20 and 30, the fourth is on its way; two images are saved.
fn witness() -> Witness {
    let mut witness = Witness::default();
    (1..=4).for_each(|number| witness.sending(&frame(number)));
    witness.acknowledged(&[Position(10), Position(20), Position(30)]);
    for content in [1, 2] {
        witness.saving(&image(content));
        witness.saved();
    }
    witness
}

/// A journal that shows the first `count` of these frames, and the last image.
fn found(count: u8) -> Found {
    let frames = (1..=count).map(|number| {
        let Frame { entries, payload, runs, .. } = frame(number);
        StoredFrame { position: Position(u64::from(number) * 10), epoch: Epoch(1), entries, payload, runs }
    });
    let claim = Claim {
        index_stride: 1,
        trim_unit: 1,
        epoch: Epoch(2),
        start: Position::START,
        end: Position(50),
        parts: vec![SavedPart { key: KEY, through: Position(10), bytes: Bytes::from_static(&[2]) }],
        covered: Position(10),
        runs: vec![IndexRun {
            stream: StreamId(1),
            first: Seq(1),
            count: 4,
            position: Position(10),
            copied: false,
        }],
        indexed: Position(50),
        frames_max: 1,
        frame_bytes_max: 100,
        space: SpaceGauge::default(),
        tenure: Tenure::default(),
        elapsed: None,
        remarks: Vec::new(),
    };
    Found { shard: SHARD, claim, frames: frames.collect() }
}

/// What the witness objects to after `change`.
#[track_caller]
fn objection(count: u8, change: impl FnOnce(&mut Found)) -> String {
    let mut found = found(count);
    change(&mut found);
    witness().check(&found, Fallback::Never).expect_err("this cannot be")
}

#[test]
fn what_was_acknowledged_must_be_there_and_what_was_on_its_way_may_be() {
    let with_all = witness().check(&found(4), Fallback::Never);
    assert_eq!(with_all, Ok(Outcome { kept: 1, lost: 0, fell_back: false }));
    let without_the_last = witness().check(&found(3), Fallback::Never);
    assert_eq!(without_the_last, Ok(Outcome { kept: 0, lost: 1, fell_back: false }));
}

#[test]
fn a_lost_frame_is_noticed_wherever_it_was() {
    assert!(objection(0, |_| {}).starts_with("all frames are lost"));
    assert!(objection(2, |_| {}).starts_with("the end is lost"));
    assert!(objection(4, |found| drop(found.frames.remove(0))).starts_with("the beginning is lost"));
    assert!(objection(4, |found| drop(found.frames.remove(1))).starts_with("found at 30 instead"));
}

#[test]
fn a_frame_that_was_let_go_may_be_there_or_not() {
    let mut witness = witness();
    witness.trimming(Position(20));
    assert!(witness.check(&found(4), Fallback::Never).is_ok());
    let mut trimmed = found(4);
    trimmed.frames.drain(..2);
    assert!(witness.check(&trimmed, Fallback::Never).is_ok());
    trimmed.frames.remove(0);
    assert!(witness.check(&trimmed, Fallback::Never).is_err());
}

#[test]
fn a_frame_that_is_not_what_was_sent_is_noticed() {
    let changed = |found: &mut Found| found.frames[1].payload = Bytes::from_static(b"else");
    assert!(objection(4, changed).starts_with("not what was sent"));
    let extra = |found: &mut Found| {
        let last = found.frames[3].clone();
        found.frames.push(StoredFrame { position: Position(45), ..last });
    };
    assert!(objection(4, extra).starts_with("a frame too many"));
    assert!(objection(4, |found| found.frames[2].epoch = Epoch(0)).starts_with("frames out of order"));
    assert!(objection(4, |found| found.claim.end = Position(40)).starts_with("a frame lies outside"));
}

#[test]
fn an_epoch_an_index_and_a_shard_are_watched_too() {
    let mut settled = witness();
    settled.settle(&found(4));
    assert!(settled.check(&found(4), Fallback::Never).is_err(), "the same epoch is claimed twice");
    assert!(objection(4, |found| found.claim.runs[0].count = 2).starts_with("the index misses"));
    assert!(objection(4, |found| found.shard = ShardId(9)).starts_with("the log is that of another"));
}

#[test]
fn an_older_image_is_accepted_only_where_one_was_damaged() {
    let mut older = found(4);
    older.claim.parts[0].bytes = Bytes::from_static(&[1]);
    assert!(witness().check(&older, Fallback::Never).is_err());
    assert!(witness().check(&older, Fallback::WithRemark).is_err());
    assert!(witness().check(&older, Fallback::Silently).is_ok_and(|outcome| outcome.fell_back));
    older.claim.remarks.push("an image cannot be used".to_string());
    assert!(witness().check(&older, Fallback::WithRemark).is_ok_and(|outcome| outcome.fell_back));
    older.claim.parts[0].bytes = Bytes::from_static(&[9]);
    assert!(witness().check(&older, Fallback::Silently).is_err());
}

#[test]
fn an_older_image_is_of_no_use_without_the_log_after_it() {
    let mut witness = witness();
    witness.trimming(Position(20));
    let mut older = found(4);
    older.claim.parts[0].bytes = Bytes::from_static(&[1]);
    older.frames.remove(0);
    assert!(witness.check(&older, Fallback::Silently).is_ok(), "the image covers the first frame");
    older.frames.remove(0);
    assert!(witness.check(&older, Fallback::Silently).is_err());
    let mut without = found(4);
    without.claim.parts.clear();
    assert!(witness.check(&without, Fallback::Silently).is_ok(), "the whole log is there");
    without.frames.remove(0);
    assert!(witness.check(&without, Fallback::Silently).is_err());
}

#[test]
fn what_was_found_once_is_owed_from_then_on() {
    let mut witness = witness();
    witness.settle(&found(4));
    let mut later = found(3);
    later.claim.epoch = Epoch(3);
    assert!(witness.check(&later, Fallback::Never).is_err());
}
