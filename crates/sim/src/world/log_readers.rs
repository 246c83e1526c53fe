//! Clients that read streams without taking anything, forwards or backwards. Each does one step at a time, so the log
//! may be trimmed, copied forward or lost in a crash between asking for messages and reading them.
//!
//! They have dice of their own: what they do changes nothing about the rest of the history.

use forebay_broker::reader::{Cursor, Direction, Most, Step, Stretch};
use forebay_core::entry::{CopiedMessage, MessageMeta};
use forebay_core::types::{Epoch, Seq, StreamId};

use crate::dice::Dice;
use crate::situation::Situation;
use crate::tale::tell;
use crate::world::{World, clients};

const READERS_MAX: usize = 4;

pub(super) struct LogReaders {
    dice: Dice,
    readers: Vec<LogReader>,
}

struct LogReader {
    cursor: Cursor,
    step: Step,
    most: Most,
    /// The last message that it was shown.
    seen: Option<Seq>,
    /// The server that it talks to.
    epoch: Epoch,
    has_ended: bool,
}

impl LogReaders {
    pub(super) fn new(seed: u64) -> LogReaders {
        LogReaders { dice: Dice::from(seed ^ 0x7265_6164_6572_7321), readers: Vec::new() }
    }
}

impl LogReader {
    fn new(stream: StreamId, next: Seq, direction: Direction, epoch: Epoch) -> LogReader {
        let cursor = Cursor::new(stream, next, direction);
        let most = Most { messages: 20, bytes: 2_000 };
        LogReader { cursor, step: Step::Ask, most, seen: None, epoch, has_ended: false }
    }
}

impl World {
    /// Perhaps a reader does something.
    pub(super) fn read_logs(&mut self) {
        if self.server.is_none() || !self.log_readers.dice.chance(1, 3) {
            return;
        }
        let dice = &mut self.log_readers.dice;
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        if self.log_readers.readers.len() < READERS_MAX || dice.chance(1, 100) {
            let stream = *dice.pick(&streams);
            let (forwards, at) = (dice.chance(3, 4), dice.roll(200));
            let (next, direction) = match forwards {
                true => (Seq(if dice.chance(1, 2) { 0 } else { at }), Direction::Forwards),
                false => (Seq(u64::MAX), Direction::Backwards),
            };
            let slot = dice.roll(READERS_MAX as u64) as usize;
            let epoch = self.epoch();
            let reader = LogReader::new(stream, next, direction, epoch);
            match self.log_readers.readers.get_mut(slot) {
                Some(place) => *place = reader,
                None => self.log_readers.readers.push(reader),
            }
        }
        let count = self.log_readers.readers.len() as u64;
        let n = self.log_readers.dice.roll(count) as usize;
        let mut reader = self.log_readers.readers.remove(n);
        if self.read_on(&mut reader)
            && !(reader.has_ended && reader.cursor.direction() == Direction::Backwards)
        {
            self.log_readers.readers.push(reader);
        }
    }

    /// One step of a reader. False if its stream is gone.
    fn read_on(&mut self, reader: &mut LogReader) -> bool {
        let epoch = self.epoch();
        if reader.epoch != epoch {
            // It connects again, and names the message after the last one that it was shown: the crash may have brought
            // back messages that were let go, and that the cursor has passed by then.
            reader.cursor.seek(match (reader.cursor.direction(), reader.seen) {
                (_, None) => reader.cursor.next(),
                (Direction::Forwards, Some(seen)) => seen.next(),
                (Direction::Backwards, Some(seen)) => Seq(seen.0 - 1),
            });
            (reader.epoch, reader.step) = (epoch, Step::Ask);
        }
        reader.has_ended = false;
        let server = self.server.as_ref().expect("the server is up between steps");
        let step = match std::mem::replace(&mut reader.step, Step::Ask) {
            Step::Ask => match server.driver.locate(&reader.cursor.wish(reader.most)) {
                None => return false,
                Some(located) => {
                    tell(|| format!("  a reader is at {:?}: {located:?}", reader.cursor));
                    reader.cursor.plan(located, 4 << 10)
                }
            },
            Step::Read(from, budget) => match server.read_beside(from, budget) {
                Ok(readout) => reader.cursor.take(&readout).expect("frames can be decoded"),
                // The process is about to notice that it has crashed.
                Err(_) => Step::Read(from, budget),
            },
            other => other,
        };
        assert_eq!(
            reader.cursor.lost(),
            0,
            "I1: a reader cannot find messages of {:?}",
            reader.cursor.stream()
        );
        match step {
            Step::Found(stretches) => self.show(reader, &stretches),
            Step::End => {
                reader.has_ended = true;
                self.situations.reached(Situation::LogReadToItsEnd);
            }
            step => reader.step = step,
        }
        true
    }

    /// A reader is shown messages: durable ones, as they were published, in order, and none is left out.
    fn show(&mut self, reader: &mut LogReader, stretches: &[Stretch]) {
        let (stream, direction) = (reader.cursor.stream(), reader.cursor.direction());
        let shard = self.server.as_ref().expect("the server is up between steps").driver.shard();
        // It may have been deleted since it was asked about.
        let Some(last) = shard.last_seq(stream) else { return };
        let first = shard.readable(stream).map_or(last.next(), |kept| kept.first);
        for stretch in stretches {
            let mut messages: Vec<_> = stretch.messages().collect();
            if direction == Direction::Backwards {
                messages.reverse();
            }
            for message in messages {
                let seq = message.seq;
                tell(|| format!("  {stream:?} {seq} is shown to a reader"));
                assert!(seq <= last, "I1: a reader of {stream:?} is shown {seq}, which is not durable");
                let (next, is_gone) = match (direction, reader.seen) {
                    (_, None) => (seq, false),
                    (Direction::Forwards, Some(seen)) => (seen.next(), seen < seq && seq <= first),
                    (Direction::Backwards, Some(seen)) => (Seq(seen.0 - 1), false),
                };
                assert!(
                    seq == next || is_gone,
                    "I20: a reader of {stream:?} is shown {seq} instead of {next}"
                );
                if seq != next {
                    self.situations.reached(Situation::LogReaderSkippedGone);
                }
                reader.seen = Some(seq);
                let meta = MessageMeta::plain(message.content.len() as u32);
                let (ordinal, at) = (message.ordinal, message.published);
                let Some(model) = self.streams.get_mut(&stream) else { continue };
                let uid = clients::identify(&message.content);
                model.stored_as(uid, &message.content, &CopiedMessage { seq, ordinal, at, meta });
            }
        }
    }

    /// At the end: readers see the rest, and a new reader sees all that is there, in both directions.
    pub(super) fn read_logs_to_the_end(&mut self) {
        let mut readers = std::mem::take(&mut self.log_readers.readers);
        let epoch = self.epoch();
        for &stream in &self.streams.keys().copied().collect::<Vec<_>>() {
            readers.push(LogReader::new(stream, Seq::START, Direction::Forwards, epoch));
            readers.push(LogReader::new(stream, Seq(u64::MAX), Direction::Backwards, epoch));
        }
        for mut reader in readers {
            let stream = reader.cursor.stream();
            let mut steps = 0;
            while self.read_on(&mut reader) && !reader.has_ended {
                steps += 1;
                assert!(steps < 100_000, "I4: a reader of {stream:?} does not come to an end");
            }
            let kept = self.server().driver.shard().readable(stream);
            let Some(kept) = kept.filter(|_| reader.has_ended) else { continue };
            let (next, is_done) = match reader.cursor.direction() {
                Direction::Forwards => (reader.cursor.next(), reader.cursor.next() > kept.last),
                Direction::Backwards => (reader.cursor.next(), reader.cursor.next() < kept.first),
            };
            assert!(is_done, "I1: a reader of {stream:?} stops at {next} and {kept:?} is there");
        }
    }
}
