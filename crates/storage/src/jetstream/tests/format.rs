//! Records keep their meaning from one release to the next, and survive any bytes.

use bytes::Bytes;
use expect_test::expect;
use forebay_core::types::{Epoch, PartKey, Position, Seq, StreamId};
use proptest::prelude::*;

use crate::engine::{Frame, IndexRun, Run};
use crate::jetstream::record::{
    Claimant, Ending, FileId, Header, IndexBody, Kind, Manifest, Place, Scribe, StoredPart, Term, put_frame,
    take_frame,
};

fn place(at: u64) -> Place {
    Place {
        position: Position(at + 1),
        before: Position(at),
        sequence: at * 2,
        epoch: Epoch(3),
        number: at + 5,
        chain: [at as u8; 16],
    }
}

fn index() -> IndexBody {
    let run = IndexRun { stream: StreamId(2), first: Seq(9), count: 4, position: Position(7), copied: true };
    IndexBody { from: Position(1), until: Some(place(9)), places: vec![place(1), place(5)], runs: vec![run] }
}

fn manifest() -> Manifest {
    let file = FileId { epoch: Epoch(2), number: 1 };
    let key = PartKey { kind: 1, id: 2, sub: 3 };
    let part = StoredPart { key, through: Position(40), file, offset: 5, length: 6, crc: 7 };
    Manifest { parts: vec![part], covered: Position(30), before: vec![file] }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_bytes_of_a_frame_do_not_change() {
    let mut scribe =
        Scribe { epoch: Epoch(2), number: 6, chain: [9; 16], end: Position(100), part_bytes: 64 };
    let runs = vec![Run { stream: StreamId(3), first: Seq(4), count: 5, copied: false }];
    let frame =
        Frame { runs, entries: Bytes::from("entries"), payload: Bytes::from("payload"), ..Frame::default() };
    let messages = scribe.write(Kind::Frame, &put_frame(&frame));
    assert_eq!(messages.len(), 1);
    let rows: Vec<String> = messages[0].bytes.chunks(16).map(hex).collect();
    expect![[r#"
        46424a3103000000020000008645db4d
        07000000000000006400000000000000
        26000000000000000909090909090909
        09090909090909090000000047dfd222
        01000000030000000400000000000000
        0a00000007000000656e747269657370
        61796c6f6164"#]]
    .assert_eq(&rows.join("\n"));
}

#[test]
fn bodies_come_back_as_they_were() {
    assert_eq!(IndexBody::decode(&index().encode()), Some(index()));
    assert_eq!(Manifest::decode(&manifest().encode()), Some(manifest()));
    let others = vec![("sqs".to_owned(), "10.0.0.1:9324".to_owned())];
    let owner = Claimant { node: "a".to_owned(), address: "10.0.0.1:7070".to_owned(), others, start: 8 };
    let term = Term { owner, before: Ending { epoch: Epoch(4), number: 5, chain: [6; 16] } };
    assert_eq!(Term::decode(&term.encode()), Some(term));
}

#[test]
fn a_body_is_divided_and_its_record_comes_last() {
    let mut scribe = Scribe { epoch: Epoch(1), number: 0, chain: [0; 16], end: Position(1), part_bytes: 64 };
    for (length, messages) in [(0, 1), (64, 1), (65, 2), (128, 2), (129, 3)] {
        let written = scribe.write(Kind::Beat, &vec![1; length]);
        assert_eq!(written.len(), messages, "{length}");
        assert_eq!(written.last().map(|last| last.kind), Some(Kind::Beat));
        assert!(written.iter().all(|message| message.bytes.len() <= 128));
    }
}

proptest! {
    #[test]
    fn no_bytes_are_a_reason_to_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Header::decode(&bytes);
        let _ = Term::decode(&bytes);
        let _ = IndexBody::decode(&bytes);
        let _ = Manifest::decode(&bytes);
        let _ = take_frame(&Bytes::from(bytes));
    }

    #[test]
    fn a_cut_body_is_refused(cut in 0usize..60) {
        let whole = index().encode();
        let cut = cut.min(whole.len() - 1);
        prop_assert_eq!(IndexBody::decode(&whole[..cut]), None);
    }
}
