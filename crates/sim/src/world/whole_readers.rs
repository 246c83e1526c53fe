//! Clients that read the whole log, forwards or backwards: the messages of all streams by their positions in the log.
//! As readers of one stream do, each does one step at a time, and has dice of its own.

use std::collections::{BTreeMap, BTreeSet};

use forebay_broker::index::Copies;
use forebay_broker::reader::{Direction, Step, Stretch, WholeCursor, WholeSpot};
use forebay_core::entry::{CopiedMessage, MessageMeta};
use forebay_core::types::{Epoch, Ordinal, Seq, StreamId};

use crate::dice::Dice;
use crate::situation::Situation;
use crate::tale::tell;
use crate::world::{World, clients};

const READERS_MAX: usize = 2;
/// What one read may bring. Small, so that reading takes several steps.
const BYTES: usize = 2 << 10;

pub(super) struct WholeReaders {
    dice: Dice,
    readers: Vec<WholeReader>,
}

struct WholeReader {
    cursor: WholeCursor,
    step: Step,
    /// The last message that it was shown, and the first and the last of each stream.
    at: Option<Ordinal>,
    seen: BTreeMap<StreamId, (Seq, Seq)>,
    /// The last message of each stream that could not be read any more when the reader came to it, before `at`. If a
    /// crash brings that message back, because the ack that let it go was not durable, the reader has passed it.
    passed: BTreeMap<StreamId, Seq>,
    /// The same after `at`. A reader that connects again comes to these once more.
    passed_since: BTreeMap<StreamId, Seq>,
    /// The server that it talks to.
    epoch: Epoch,
    has_ended: bool,
}

impl WholeReaders {
    pub(super) fn new(seed: u64) -> WholeReaders {
        WholeReaders { dice: Dice::from(seed ^ 0x7768_6f6c_6521_2121), readers: Vec::new() }
    }
}

impl WholeReader {
    fn new(next: Ordinal, direction: Direction, epoch: Epoch) -> WholeReader {
        let cursor = WholeCursor::new(next, direction);
        WholeReader {
            cursor,
            step: Step::Ask,
            at: None,
            seen: BTreeMap::new(),
            passed: BTreeMap::new(),
            passed_since: BTreeMap::new(),
            epoch,
            has_ended: false,
        }
    }

    /// How far it has come in a stream: messages that it was shown, and messages that it passed.
    fn reached(&self, stream: StreamId) -> Option<Seq> {
        let seen = self.seen.get(&stream).map(|(_, last)| last);
        let all = [seen, self.passed.get(&stream), self.passed_since.get(&stream)];
        let all = all.into_iter().flatten().copied();
        match self.cursor.direction() {
            Direction::Forwards => all.max(),
            Direction::Backwards => all.min(),
        }
    }

    /// Whether this message of a stream may follow now. None is left out that can be read.
    fn may_follow(&self, stream: StreamId, seq: Seq, first: Seq) -> bool {
        self.reached(stream).is_none_or(|before| match self.cursor.direction() {
            Direction::Forwards => seq == before.next() || before < seq && seq == first,
            Direction::Backwards => seq.next() == before,
        })
    }

    fn is_shown(&mut self, stream: StreamId, seq: Seq, ordinal: Ordinal) {
        self.at = Some(ordinal);
        self.seen.entry(stream).or_insert((seq, seq)).1 = seq;
        self.passed.append(&mut self.passed_since);
    }
}

impl World {
    /// Perhaps a reader of the whole log does something.
    pub(super) fn read_whole_log(&mut self) {
        if self.server.is_none() || !self.whole_readers.dice.chance(1, 4) {
            return;
        }
        let epoch = self.epoch();
        let dice = &mut self.whole_readers.dice;
        let count = self.whole_readers.readers.len();
        if count < READERS_MAX || dice.chance(1, 100) {
            let (forwards, at) = (dice.chance(2, 3), dice.roll(300));
            let reader = match forwards {
                true => WholeReader::new(
                    Ordinal(if dice.chance(1, 2) { 0 } else { at }),
                    Direction::Forwards,
                    epoch,
                ),
                false => WholeReader::new(Ordinal(u64::MAX), Direction::Backwards, epoch),
            };
            let slot = dice.roll(READERS_MAX as u64) as usize;
            match self.whole_readers.readers.get_mut(slot) {
                Some(place) => *place = reader,
                None => self.whole_readers.readers.push(reader),
            }
        }
        let count = self.whole_readers.readers.len() as u64;
        let n = self.whole_readers.dice.roll(count) as usize;
        let mut reader = self.whole_readers.readers.remove(n);
        self.read_whole_on(&mut reader);
        if !(reader.has_ended && reader.cursor.direction() == Direction::Backwards) {
            self.whole_readers.readers.push(reader);
        }
    }

    /// One step of a reader.
    fn read_whole_on(&mut self, reader: &mut WholeReader) {
        let epoch = self.epoch();
        if reader.epoch != epoch {
            // It connects again, and names the message after the last one that it was shown.
            reader.cursor.seek(match (reader.cursor.direction(), reader.at) {
                (_, None) => reader.cursor.next(),
                (Direction::Forwards, Some(at)) => at.plus(1),
                (Direction::Backwards, Some(at)) => Ordinal(at.0 - 1),
            });
            reader.passed_since.clear();
            (reader.epoch, reader.step) = (epoch, Step::Ask);
        }
        reader.has_ended = false;
        let server = self.server.as_ref().expect("the server is up between steps");
        let step = match std::mem::replace(&mut reader.step, Step::Ask) {
            Step::Ask => {
                let located = server.driver.locate_whole(&reader.cursor.wish(BYTES));
                tell(|| format!("  a reader of the whole log is at {:?}: {located:?}", reader.cursor));
                if let WholeSpot::Copies(Copies { frames, .. }) = &located.spot
                    && !frames.is_empty()
                {
                    self.situations.reached(Situation::WholeLogReadFromCopies);
                }
                reader.cursor.plan(located, BYTES)
            }
            Step::Read(from, budget) => match server.read_beside(from, budget) {
                Ok(readout) => reader.cursor.take(&readout).expect("frames can be decoded"),
                // The process is about to notice that it has crashed.
                Err(_) => Step::Read(from, budget),
            },
            other => other,
        };
        assert_eq!(reader.cursor.lost(), 0, "I1: a reader of the whole log cannot find messages");
        match step {
            Step::Found(stretches) => {
                self.show_whole(reader, &stretches);
                reader.step = reader.cursor.go_on(BYTES);
            }
            Step::End => {
                reader.has_ended = true;
                self.situations.reached(Situation::WholeLogReadToItsEnd);
            }
            step => reader.step = step,
        }
    }

    /// A reader is shown messages: durable ones, as they were published, in the order of the log, and of no stream one
    /// is left out. Messages that cannot be read any more are passed over, as the broker does it.
    fn show_whole(&mut self, reader: &mut WholeReader, stretches: &[Stretch]) {
        let direction = reader.cursor.direction();
        let shard = self.server.as_ref().expect("the server is up between steps").driver.shard();
        for stretch in stretches {
            let stream = stretch.stream;
            let kept = shard.readable(stream);
            let mut messages: Vec<_> = stretch.messages().collect();
            if direction == Direction::Backwards {
                messages.reverse();
            }
            for message in messages {
                let (seq, ordinal, at) = (message.seq, message.ordinal, message.published);
                let Some(kept) = kept.filter(|kept| kept.first <= seq) else {
                    reader.passed_since.insert(stream, seq);
                    continue;
                };
                tell(|| format!("  {stream:?} {seq} is shown to a reader of the whole log, {ordinal:?}"));
                assert!(
                    seq <= kept.last,
                    "I1: a reader of the whole log is shown {seq}, which is not durable"
                );
                let is_in_order = reader.at.is_none_or(|before| match direction {
                    Direction::Forwards => before < ordinal,
                    Direction::Backwards => before > ordinal,
                });
                assert!(is_in_order, "I21: a reader is shown {ordinal:?} after {:?}", reader.at);
                assert!(
                    reader.may_follow(stream, seq, kept.first),
                    "I21: of {stream:?} {seq} is shown to a reader after {:?}",
                    reader.reached(stream)
                );
                reader.is_shown(stream, seq, ordinal);
                let meta = MessageMeta::plain(message.content.len() as u32);
                let Some(model) = self.streams.get_mut(&stream) else { continue };
                let uid = clients::identify(&message.content);
                model.stored_as(uid, &message.content, &CopiedMessage { seq, ordinal, at, meta });
            }
        }
    }

    /// At the end: readers see the rest, and new readers see all that is there, in both directions.
    pub(super) fn read_whole_log_to_the_end(&mut self) {
        let mut readers = std::mem::take(&mut self.whole_readers.readers);
        let epoch = self.epoch();
        let old = readers.len();
        readers.push(WholeReader::new(Ordinal(0), Direction::Forwards, epoch));
        readers.push(WholeReader::new(Ordinal(u64::MAX), Direction::Backwards, epoch));
        for (n, mut reader) in readers.into_iter().enumerate() {
            let mut steps = 0;
            reader.has_ended = false;
            while !reader.has_ended {
                self.read_whole_on(&mut reader);
                steps += 1;
                assert!(steps < 100_000, "I4: a reader of the whole log does not come to an end");
            }
            if n < old && reader.cursor.direction() == Direction::Backwards {
                continue;
            }
            let shard = self.server().driver.shard();
            let streams: BTreeSet<StreamId> = shard.stream_ids().collect();
            for stream in streams {
                let Some(kept) = shard.readable(stream) else { continue };
                let (begin, end) = match reader.cursor.direction() {
                    Direction::Forwards => (kept.first, kept.last),
                    Direction::Backwards => (kept.last, kept.first),
                };
                let seen = reader.seen.get(&stream).copied();
                let is_all = match seen {
                    // An older reader may have begun later.
                    _ if n < old => seen.is_none() || reader.reached(stream) == Some(end),
                    seen => seen == Some((begin, end)),
                };
                assert!(
                    is_all,
                    "I21: of {stream:?} {kept:?} is there, and a reader of the whole log saw {seen:?}"
                );
            }
        }
    }
}
