//! Properties of the encodings: a value that is written is read back, and no bytes whatsoever make a
//! decoder panic or reserve more than they could hold.

use forebay_core::types::Epoch;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::engine::IndexRun;
use crate::journal::block::{
    BlockHeader, Encoder, FrameHeader, JournalId, Kind, PAGE, Tag, append_word, frame_len,
};
use crate::journal::format::{Format, Layout};
use crate::journal::mark::Slot;
use crate::journal::segment::{Footer, Head, Link, RunJoiner, Stop, Walk, Window};

const LAYOUT: Layout = Layout { segment_bytes: 1 << 20, block_bytes_max: 512 << 10 };

fn any_frame() -> impl Strategy<Value = Frame> {
    let run = (any::<u32>(), any::<u64>(), 0..=Run::COUNT_MAX, any::<bool>());
    let run = run.prop_map(|(stream, first, count, copied)| Run {
        stream: StreamId(stream),
        first: Seq(first),
        count,
        copied,
    });
    // Small sections are copied into the block and large ones are not, so there are plenty of both.
    let entries = prop_oneof![0..300usize, 2_040..2_060usize];
    let payload = prop_oneof![0..300usize, 2_040..2_060usize, 0..150_000usize];
    (entries, payload, any::<u8>(), vec(run, 0..5)).prop_map(|(entries, payload, seed, runs)| {
        let bytes = |len| -> Bytes {
            (0..len).map(|index: usize| (index as u8).wrapping_mul(31) ^ seed).collect::<Vec<_>>().into()
        };
        Frame { shard: ShardId(7), entries: bytes(entries), payload: bytes(payload), runs }
    })
}

fn id() -> JournalId {
    JournalId::new(ID)
}

fn header(position: u64, previous: Link) -> BlockHeader {
    BlockHeader {
        kind: Kind::Commit,
        position,
        sequence: previous.sequence + 1,
        durable_end: position,
        previous: previous.tag,
        epoch: previous.epoch,
        frames: 0,
        body_len: 0,
        body_crc: 0,
        key: 0,
    }
}

/// A file in memory, as far as reading goes.
struct Memory(Vec<u8>);

impl crate::journal::disk::DiskFile for Memory {
    fn write_at(&self, _: &[std::io::IoSlice<'_>], _: u64) -> std::io::Result<()> {
        unreachable!("a walk only reads")
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let rest = self.0.get(offset as usize..).unwrap_or(&[]);
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn size(&self) -> std::io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn allocate(&self, _: u64, _: u64) -> std::io::Result<()> {
        unreachable!("a walk only reads")
    }

    fn truncate(&self, _: u64) -> std::io::Result<()> {
        unreachable!("a walk only reads")
    }

    fn sync_data(&self) -> std::io::Result<()> {
        unreachable!("a walk only reads")
    }

    fn sync_all(&self) -> std::io::Result<()> {
        unreachable!("a walk only reads")
    }
}

/// A segment with one header block and one commit block with these frames.
fn segment_with(frames: &[Frame]) -> (Memory, Head, Link, Vec<Position>) {
    let base = LAYOUT.base(3);
    let (bytes, link) = Head::encode(id(), base, Link { end: 5, ..Link::default() }, Epoch(4), 99, None);
    let head = Head::decode(&bytes, id(), base).expect("the header is good");
    assert_eq!(head.link, link);
    let mut file = bytes.to_vec();
    let mut encoder = Encoder::default();
    let mut positions = Vec::new();
    let (tag, len) = encoder.encode(id(), header(link.end, link), frames, &mut positions);
    encoder.slices(frames).iter().for_each(|slice| file.extend_from_slice(slice));
    assert_eq!(file.len() as u64, PAGE + len, "a block ends on a page");
    file.resize(LAYOUT.segment_bytes as usize, 0);
    let last = Link { sequence: link.sequence + 1, tag, epoch: link.epoch, end: link.end + len };
    (Memory(file), head, last, positions)
}

fn walk(file: &Memory, head: &Head, payloads: bool) -> (Link, Stop, Vec<IndexRun>) {
    let mut runs = RunJoiner::default();
    let mut window = Window::new(file, file.0.len() as u64, 4096);
    let walk = Walk { id: id(), layout: &LAYOUT, segment: 3, until: None, payloads };
    let walked = walk.run(&mut window, head, &mut runs).expect("memory can be read");
    (walked.last, walked.stop, runs.runs)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_word_changes_a_checksum_as_its_bytes_do(crc: u32, word: u32) {
        prop_assert_eq!(append_word(crc, word), crc32c::crc32c_append(crc, &word.to_le_bytes()));
    }

    #[test]
    fn a_block_survives_the_round_trip(frames in vec(any_frame(), 1..4)) {
        let (file, head, last, positions) = segment_with(&frames);
        let base = LAYOUT.base(3);
        for payloads in [false, true] {
            let (found, stop, _) = walk(&file, &head, payloads);
            prop_assert_eq!((found, stop), (last, Stop::Clean));
        }
        for (frame, position) in frames.iter().zip(positions) {
            let at = (position.0 - base) as usize;
            let head = FrameHeader::decode(&file.0[at..], id(), position.0, 1 << 20).expect("it is good");
            prop_assert_eq!(head.len(), frame_len(frame));
            let payload = at + head.payload_offset() as usize;
            let front = head.front(&file.0[at + 48..payload], id(), position.0).expect("it is good");
            let rest = &file.0[at + 48 + head.table_len() as usize..payload];
            let (_, entries) = head.runs_and_entries(rest, id(), position.0).expect("it is good");
            prop_assert_eq!(entries, &frame.entries[..]);
            prop_assert_eq!(front.runs().collect::<Vec<_>>(), frame.runs.clone());
            let bytes = &file.0[payload..payload + frame.payload.len()];
            prop_assert_eq!(bytes, &frame.payload[..]);
            prop_assert!(front.table.check(bytes, 0, id(), position.0).is_ok());
        }
    }

    #[test]
    fn any_changed_bit_of_a_block_is_found(
        frames in vec(any_frame(), 1..3), at in any::<prop::sample::Index>(), bit in 0..8
    ) {
        let (mut file, head, last, _) = segment_with(&frames);
        let used: u64 = 128 + frames.iter().map(frame_len).sum::<u64>();
        let at = PAGE as usize + at.index(used as usize);
        file.0[at] ^= 1u8 << bit;
        let (found, stop, runs) = walk(&file, &head, true);
        prop_assert!(matches!(stop, Stop::Broken(_)));
        prop_assert_eq!((found, runs.len()), (head.link, 0));
        prop_assert_ne!(found, last);
    }

    #[test]
    fn any_lost_sectors_of_a_block_are_found(
        frames in vec(any_frame(), 1..3), lost in vec(any::<prop::sample::Index>(), 1..6)
    ) {
        let (mut file, head, last, _) = segment_with(&frames);
        let sectors = (last.end - LAYOUT.base(3) - PAGE) as usize / 512;
        let whole = file.0.clone();
        for sector in lost {
            let at = PAGE as usize + sector.index(sectors) * 512;
            file.0[at..at + 512].fill(0);
        }
        let (found, stop, _) = walk(&file, &head, true);
        if file.0 == whole {
            prop_assert_eq!((found, stop), (last, Stop::Clean));
        } else {
            prop_assert_eq!(found, head.link);
        }
    }

    #[test]
    fn a_frame_that_was_moved_does_not_verify(frame in any_frame(), by in 1u64..1000) {
        let (file, _, _, positions) = segment_with(&[frame]);
        let at = (positions[0].0 - LAYOUT.base(3)) as usize;
        prop_assert!(FrameHeader::decode(&file.0[at..], id(), positions[0].0 + by, 1 << 20).is_err());
        let other = JournalId::new(ID + u128::from(by));
        prop_assert!(FrameHeader::decode(&file.0[at..], other, positions[0].0, 1 << 20).is_err());
        let elsewhere = LAYOUT.base(3) + PAGE * (by + 1);
        prop_assert!(BlockHeader::decode(&file.0[PAGE as usize..], id(), elsewhere, 1 << 20).is_err());
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(mut bytes in vec(any::<u8>(), 0..9000), position in any::<u64>(), fix in 0..4) {
        // Some of them with a right magic and checksum, so that what lies behind those is reached.
        if bytes.len() >= 128 && fix > 0 {
            if fix < 3 {
                bytes[..8].copy_from_slice(b"FBYBLOCK");
                bytes[8..16].copy_from_slice(&[1, 0, (fix + 1) as u8, 0, 0, 0, 128, 0]);
                bytes[16..32].copy_from_slice(&ID.to_le_bytes());
                bytes[32..40].copy_from_slice(&position.to_le_bytes());
                bytes[76..80].fill(0);
                let crc = crc32c::crc32c(&bytes[..124]);
                bytes[124..128].copy_from_slice(&crc.to_le_bytes());
            } else {
                bytes[..8].copy_from_slice(b"FRAM\0\0\x30\0");
                let crc = crc32c::crc32c_append(id().seed_at(position), &bytes[..44]);
                bytes[44..48].copy_from_slice(&crc.to_le_bytes());
            }
        }
        if let Ok((header, _)) = BlockHeader::decode(&bytes, id(), position, 4096) {
            prop_assert!(header.block_len() <= 4096);
        }
        if let Ok(header) = FrameHeader::decode(&bytes, id(), position, 4096) {
            prop_assert!(header.len() <= 4096);
        }
        let _ = Head::decode(&bytes, id(), position);
        let _ = Slot::decode(&bytes, id());
        let _ = Format::decode(&bytes);
        let base = LAYOUT.base(3);
        let head = Head { previous: Link::default(), link: Link { end: base, ..Link::default() }, key: None };
        let memory = Memory(bytes);
        walk(&memory, &head, true);
        let mut window = Window::new(&memory, memory.0.len() as u64, 512);
        let footer = Footer::read(&mut window, id(), &LAYOUT, 3, head.link).expect("memory can be read");
        prop_assert!(footer.is_none());
    }

    #[test]
    fn a_footer_survives_the_round_trip(
        runs in vec((0u32..5, 1u64..100, 1u64..4, any::<bool>()), 0..400)
    ) {
        let base = LAYOUT.base(3);
        let mut joiner = RunJoiner::default();
        let mut total = 0;
        let mut copies = Vec::new();
        for (index, &(stream, first, count, copied)) in runs.iter().enumerate() {
            total += count;
            let position = Position(base + 4096 + 100 * index as u64);
            let run = IndexRun { stream: StreamId(stream), first: Seq(first), count, position, copied };
            joiner.push(run);
            copies.extend(copied.then_some(run));
        }
        let runs = joiner.within(Footer::runs_max(&LAYOUT), &LAYOUT);
        if let Some(runs) = &runs {
            prop_assert_eq!(runs.iter().map(|run| run.count).sum::<u64>(), total);
            let found: Vec<IndexRun> = runs.iter().filter(|run| run.copied).copied().collect();
            prop_assert_eq!(found, copies, "copies are named one by one");
        }
        let footer = Footer { last_frame: 77, hash: [5; 32], runs };
        let last = Link { sequence: 9, tag: Tag(8), epoch: Epoch(2), end: base };
        let file = Memory(footer.encode(id(), &LAYOUT, last).to_vec());
        prop_assert!(file.0.len() as u64 <= LAYOUT.footer_room());
        let mut window = Window::new(&file, file.0.len() as u64, 512);
        let found = Footer::read(&mut window, id(), &LAYOUT, 3, last).expect("memory can be read");
        prop_assert_eq!(found, Some(footer));
    }

    #[test]
    fn format_and_mark_survive_the_round_trip(
        number in any::<u128>(), durable_end in any::<u64>(), clean in any::<bool>(),
        is_backup in any::<bool>(), is_encrypted in any::<bool>()
    ) {
        let id = JournalId::new(number);
        let format = Format { id, shard: ShardId(3), layout: LAYOUT, epoch_floor: Epoch(7), is_backup, is_encrypted };
        prop_assert!(Format::decode(&format.encode()).is_ok_and(|found| found == format));
        let slot = Slot { counter: 1, durable_end, sequence: 2, first: 3, trimmed: 4, clean };
        prop_assert_eq!(Slot::decode(&slot.encode(id), id), Some(slot));
    }
}

#[test]
fn an_index_that_does_not_fit_is_made_coarser_and_at_last_left_out() {
    let small = Layout { segment_bytes: 1 << 20, block_bytes_max: 64 << 10 };
    let run = |stream, index: u64| IndexRun {
        stream: StreamId(stream),
        first: Seq(index + 1),
        count: 1,
        position: Position(small.base(1) + 200 * index),
        copied: false,
    };
    let mut joiner = RunJoiner::default();
    (0..5000).for_each(|index| joiner.push(run(1, index)));
    assert_eq!(joiner.runs.len(), 16, "one for each 64 KiB");
    let coarse = joiner.within(4, &small).expect("coarser runs fit");
    assert_eq!((coarse.len(), coarse.iter().map(|run| run.count).sum::<u64>()), (4, 5000));

    let mut joiner = RunJoiner::default();
    (0..100).for_each(|index| joiner.push(run(index as u32, index)));
    assert_eq!(joiner.within(50, &small), None, "a hundred streams cannot have fifty runs");
}
