//! Readers of streams, compared with plain lists, while messages are published, let go, copied forward and trimmed away
//! between any two of their steps.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use forebay_core::settings::Retention;
use forebay_storage::engine::Readout;
use proptest::prelude::*;

use super::*;
use crate::reader::{Cursor, Direction, Most, Step, WholeCursor};

/// When frames that no reply waits for are written.
const LATER: Timestamp = Timestamp(NOW.0 + 10_000);
/// The streams of a history: one whose group settles messages, and two that keep theirs.
const NAMES: [&str; 3] = ["worked", "kept", "kept-too"];

/// A reader, with the steps of a cursor in slow motion.
struct Slow {
    cursor: Cursor,
    step: Step,
    most: Most,
    read_bytes: usize,
    /// The positions that it has shown.
    seen: Vec<Seq>,
    ended: bool,
}

impl Slow {
    fn new(stream: StreamId, next: Seq, direction: Direction, most: Most) -> Slow {
        let cursor = Cursor::new(stream, next, direction);
        Slow { cursor, step: Step::Ask, most, read_bytes: 200, seen: Vec::new(), ended: false }
    }

    /// Does one thing. `damage` is what cannot be read of a frame.
    fn step(
        &mut self,
        rig: &Rig,
        plain: &BTreeMap<(StreamId, Seq), Vec<u8>>,
        damage: &dyn Fn(&StoredFrame) -> Option<Damage>,
    ) {
        let found = match std::mem::replace(&mut self.step, Step::Ask) {
            Step::Ask => match rig.driver.locate(&self.cursor.wish(self.most)) {
                None => {
                    self.ended = true;
                    return;
                }
                Some(located) => self.cursor.plan(located, self.read_bytes),
            },
            Step::Read(from, budget) => {
                let mut readout = Readout::default();
                for frame in rig.log.read(from, budget) {
                    let place = damage(&frame);
                    if place.as_ref().is_none_or(|place| place.payload.is_some()) {
                        readout.frames.push(frame);
                    }
                    readout.damage.extend(place);
                }
                self.cursor.take(&readout).expect("frames can be decoded")
            }
            other => other,
        };
        match found {
            Step::Found(stretches) => {
                for stretch in &stretches {
                    let mut messages: Vec<Found> = stretch.messages().collect();
                    if self.cursor.direction() == Direction::Backwards {
                        messages.reverse();
                    }
                    for message in messages {
                        let key = (stretch.stream, message.seq);
                        assert_eq!(plain.get(&key).map(Vec::as_slice), Some(&message.content[..]), "{key:?}");
                        self.see(message.seq, rig);
                    }
                }
            }
            Step::End => self.ended = true,
            step => self.step = step,
        }
    }

    /// Messages come in order and none is left out, unless it is let go.
    fn see(&mut self, seq: Seq, rig: &Rig) {
        if let Some(&before) = self.seen.last() {
            let first = rig.driver.shard().readable(self.cursor.stream()).map(|range| range.first);
            match self.cursor.direction() {
                Direction::Forwards => {
                    let is_let_go = first.is_some_and(|first| before < seq && seq <= first);
                    let is_lost = self.cursor.lost() > 0 && seq > before;
                    assert!(seq == before.next() || is_let_go || is_lost, "{seq} after {before}");
                }
                Direction::Backwards => {
                    let is_lost = self.cursor.lost() > 0 && seq < before;
                    assert!(seq.next() == before || is_lost, "{seq} after {before}, backwards");
                }
            }
        }
        self.seen.push(seq);
    }

    fn run(
        &mut self,
        rig: &Rig,
        plain: &BTreeMap<(StreamId, Seq), Vec<u8>>,
        damage: &dyn Fn(&StoredFrame) -> Option<Damage>,
    ) {
        self.ended = false;
        for _ in 0..10_000 {
            if self.ended {
                return;
            }
            self.step(rig, plain, damage);
        }
        panic!("the reader does not come to an end");
    }
}

/// A reader of the whole log, in slow motion.
struct SlowWhole {
    cursor: WholeCursor,
    step: Step,
    bytes: usize,
    /// The messages that it has shown: those that could be read then.
    seen: Vec<(Ordinal, StreamId, Seq)>,
    ended: bool,
}

impl SlowWhole {
    fn new(next: Ordinal, direction: Direction, bytes: usize) -> SlowWhole {
        let cursor = WholeCursor::new(next, direction);
        SlowWhole { cursor, step: Step::Ask, bytes, seen: Vec::new(), ended: false }
    }

    fn step(&mut self, rig: &Rig, plain: &BTreeMap<(StreamId, Seq), Vec<u8>>) {
        let step = match std::mem::replace(&mut self.step, Step::Ask) {
            Step::Ask => {
                let located = rig.driver.locate_whole(&self.cursor.wish(self.bytes));
                self.cursor.plan(located, self.bytes)
            }
            Step::Read(from, budget) => {
                let readout = Readout { frames: rig.log.read(from, budget), damage: Vec::new() };
                self.cursor.take(&readout).expect("frames can be decoded")
            }
            other => other,
        };
        match step {
            Step::Found(stretches) => {
                for stretch in &stretches {
                    let mut messages: Vec<Found> = stretch.messages().collect();
                    if self.cursor.direction() == Direction::Backwards {
                        messages.reverse();
                    }
                    for message in messages {
                        let key = (stretch.stream, message.seq);
                        assert_eq!(plain.get(&key).map(Vec::as_slice), Some(&message.content[..]), "{key:?}");
                        self.see(message.ordinal, key, rig);
                    }
                }
                self.step = self.cursor.go_on(self.bytes);
            }
            Step::End => self.ended = true,
            step => self.step = step,
        }
    }

    fn see(&mut self, ordinal: Ordinal, (stream, seq): (StreamId, Seq), rig: &Rig) {
        let kept = rig.driver.shard().readable(stream);
        if kept.is_none_or(|kept| seq < kept.first) {
            return;
        }
        assert!(kept.is_some_and(|kept| seq <= kept.last), "{seq} of {stream:?} is not durable");
        let before = self.seen.last().copied();
        let is_in_order = before.is_none_or(|(before, ..)| match self.cursor.direction() {
            Direction::Forwards => before < ordinal,
            Direction::Backwards => before > ordinal,
        });
        assert!(is_in_order, "{ordinal:?} after {before:?}");
        self.seen.push((ordinal, stream, seq));
    }

    fn run(&mut self, rig: &Rig, plain: &BTreeMap<(StreamId, Seq), Vec<u8>>) {
        self.ended = false;
        for _ in 0..10_000 {
            if self.ended {
                return;
            }
            self.step(rig, plain);
        }
        panic!("the reader of the whole log does not come to an end");
    }
}

fn sound(_: &StoredFrame) -> Option<Damage> {
    None
}

/// A history: the rig, and the published messages.
struct Story {
    rig: Rig,
    streams: Vec<StreamId>,
    plain: BTreeMap<(StreamId, Seq), Vec<u8>>,
    /// The position in the log of each message.
    ordinals: BTreeMap<(StreamId, Seq), Ordinal>,
    tickets: u64,
    readers: Vec<Slow>,
    whole: Vec<SlowWhole>,
}

impl Story {
    fn new(window_bytes_max: usize) -> Story {
        let config = DriverConfig {
            image_frames: 6,
            window_bytes_max,
            reclaim_dead_bytes_min: 10,
            reclaim_stretch_bytes: 10,
            reclaim_slice_bytes: 400,
            ..DriverConfig::default()
        };
        let mut story = Story {
            rig: Rig::new(config),
            streams: Vec::new(),
            plain: BTreeMap::new(),
            ordinals: BTreeMap::new(),
            tickets: 100,
            readers: Vec::new(),
            whole: Vec::new(),
        };
        for name in NAMES {
            let stream = story.create(name);
            story.streams.push(stream);
        }
        let group = GroupName::parse("workers").expect("a good name");
        let settings = GroupSettings { buffer: 10_000, ..GroupSettings::default() };
        let stream = story.streams[0];
        let driver = &mut story.rig.driver;
        driver
            .decide(|shard| shard.create_group(NOW, stream, &group, &settings, Start::Beginning))
            .expect("a new group");
        story.rig.group = driver.shard().group_named(stream, &group).expect("it was created just now");
        story.rig.join(1_000);
        story
    }

    fn create(&mut self, name: &str) -> StreamId {
        let name = StreamName::parse(name).expect("a good name");
        let shard = &mut self.rig.driver;
        shard
            .decide(|shard| shard.create_stream(NOW, &name, &StreamSettings::default()))
            .expect("a new stream")
    }

    fn publish(&mut self, of: usize, bodies: &[u8]) {
        let mut batch = BatchBuilder::default();
        self.tickets += 1;
        for (n, &size) in bodies.iter().enumerate() {
            let body = format!("{}-{n}-{}", self.tickets, "x".repeat(size.into()));
            batch.push(&Message { body: body.as_bytes(), ..Message::default() });
        }
        let (stream, batch) = (self.streams[of], batch.build());
        let first = self.rig.driver.shard().last_given(stream).expect("the stream is there").next();
        let ticket = Ticket(self.tickets);
        let ordinal = self.rig.driver.shard().next_ordinal();
        self.rig
            .driver
            .publish(NOW, stream, &batch, PublishOptions::default(), ticket)
            .expect("a good batch");
        let mut contents = batch.contents.clone();
        for (n, meta) in (0..).zip(&batch.metas) {
            self.plain.insert((stream, first.plus(n)), contents.split_to(meta.size as usize).to_vec());
            self.ordinals.insert((stream, first.plus(n)), ordinal.plus(n));
        }
    }

    fn play(&mut self, event: &Event) {
        match event {
            Event::Publish(of, bodies) => self.publish(*of, bodies),
            Event::Turn => {
                for now in [NOW, LATER, LATER + Duration::from_millis(10)] {
                    self.rig.driver.finish_turn(now);
                    self.rig.gather();
                }
            }
            Event::Sync => self.rig.sync(),
            Event::Save => {
                self.rig.read();
                self.rig.save_images();
            }
            Event::Ack => {
                for delivery in std::mem::take(&mut self.rig.deliveries) {
                    self.rig.ack(&delivery);
                }
            }
            Event::Keep(of, messages) => {
                let retention =
                    Retention::Log { max_age: None, max_bytes: None, max_messages: Some(*messages) };
                let settings = StreamSettings { retention, ..StreamSettings::default() };
                let stream = self.streams[*of];
                self.rig
                    .driver
                    .decide(|shard| shard.change_stream(NOW, stream, &settings))
                    .expect("good settings");
            }
            Event::Recreate(of) => {
                self.rig.driver.delete_stream(self.streams[*of], true).expect("the stream is there");
                self.streams[*of] = self.create(NAMES[*of]);
            }
            Event::Read { of, next, back, most } => {
                let direction = if *back { Direction::Backwards } else { Direction::Forwards };
                let most = Most { messages: *most, bytes: 300 };
                let reader = Slow::new(self.streams[*of], Seq(*next), direction, most);
                if self.readers.len() < 8 {
                    self.readers.push(reader);
                } else {
                    self.readers[(*next % 8) as usize] = reader;
                }
            }
            Event::ReadAll { next, back, bytes } => {
                let direction = if *back { Direction::Backwards } else { Direction::Forwards };
                let reader = SlowWhole::new(Ordinal(*next), direction, *bytes);
                if self.whole.len() < 4 {
                    self.whole.push(reader);
                } else {
                    self.whole[(*next % 4) as usize] = reader;
                }
            }
            Event::StepAll(n, steps) => {
                if let Some(reader) = self.whole.get_mut(*n) {
                    for _ in 0..*steps {
                        reader.step(&self.rig, &self.plain);
                    }
                }
            }
            Event::Step(n, steps) => {
                if let Some(reader) = self.readers.get_mut(*n) {
                    for _ in 0..*steps {
                        reader.step(&self.rig, &self.plain, &sound);
                    }
                }
            }
        }
    }

    /// Readers of the whole log come to the end. New ones have seen every message that can be read, in the order of the
    /// log, and others all of it from the first message that they have seen on.
    fn finish_whole(&mut self) {
        let shard = self.rig.driver.shard();
        let mut there: Vec<(Ordinal, StreamId, Seq)> = self
            .ordinals
            .iter()
            .filter(|((stream, seq), _)| shard.readable(*stream).is_some_and(|kept| kept.first <= *seq))
            .map(|(&(stream, seq), &ordinal)| (ordinal, stream, seq))
            .collect();
        there.sort();
        let mut readers = std::mem::take(&mut self.whole);
        let old = readers.len();
        for (direction, bytes) in
            [(Direction::Forwards, 90), (Direction::Backwards, 90), (Direction::Forwards, 5_000)]
        {
            let next = if direction == Direction::Forwards { 0 } else { u64::MAX };
            readers.push(SlowWhole::new(Ordinal(next), direction, bytes));
        }
        for (n, mut reader) in readers.into_iter().enumerate() {
            reader.run(&self.rig, &self.plain);
            let mut expected = there.clone();
            if reader.cursor.direction() == Direction::Backwards {
                expected.reverse();
            }
            if n < old {
                // It has seen messages that went since, and none that were published after it began, if it goes back.
                let begun = reader.seen.iter().position(|seen| there.contains(seen));
                reader.seen.retain(|seen| there.contains(seen));
                let first = begun.and_then(|_| reader.seen.first().copied());
                let at = expected.iter().position(|one| Some(*one) == first);
                expected = at.map(|at| expected[at..].to_vec()).unwrap_or_default();
            }
            assert_eq!(reader.seen, expected, "{:?} {n}", reader.cursor.direction());
        }
    }

    /// Readers come to the end, having seen everything that is there.
    fn finish(&mut self) {
        let mut readers = std::mem::take(&mut self.readers);
        for reader in &mut readers {
            reader.run(&self.rig, &self.plain, &sound);
            assert_eq!(reader.cursor.lost(), 0, "every message can be read");
            let Some(kept) = self.rig.driver.shard().readable(reader.cursor.stream()) else { continue };
            let last = reader.seen.last().copied();
            match reader.cursor.direction() {
                Direction::Forwards if reader.cursor.next() <= kept.last => panic!("there is more: {last:?}"),
                Direction::Backwards if reader.cursor.next() >= kept.first => {
                    panic!("there is more: {last:?}")
                }
                _ => {}
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Event {
    Publish(usize, Vec<u8>),
    Turn,
    Sync,
    /// What reclaim waits for is read, images are saved, and the log is trimmed.
    Save,
    /// The group settles what it was handed out.
    Ack,
    Keep(usize, u64),
    Recreate(usize),
    Read {
        of: usize,
        next: u64,
        back: bool,
        most: u64,
    },
    Step(usize, usize),
    ReadAll {
        next: u64,
        back: bool,
        bytes: usize,
    },
    StepAll(usize, usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0usize..3, prop::collection::vec(0u8..60, 1..6)).prop_map(|(of, bodies)| Event::Publish(of, bodies)),
        8 => Just(Event::Turn),
        6 => Just(Event::Sync),
        4 => Just(Event::Save),
        4 => Just(Event::Ack),
        1 => (0usize..3, 1u64..30).prop_map(|(of, messages)| Event::Keep(of, messages)),
        1 => (1usize..3).prop_map(Event::Recreate),
        3 => (0usize..3, 0u64..60, any::<bool>(), 1u64..40)
            .prop_map(|(of, next, back, most)| Event::Read { of, next, back, most }),
        10 => (0usize..8, 1usize..4).prop_map(|(reader, steps)| Event::Step(reader, steps)),
        2 => (0u64..90, any::<bool>(), 50usize..900)
            .prop_map(|(next, back, bytes)| Event::ReadAll { next, back, bytes }),
        6 => (0usize..4, 1usize..4).prop_map(|(reader, steps)| Event::StepAll(reader, steps)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn readers_see_every_message_once_and_in_order(
        events in prop::collection::vec(event(), 20..160),
        window in prop_oneof![Just(1usize), Just(2_000), Just(1 << 20)],
    ) {
        let mut story = Story::new(window);
        for event in &events {
            story.play(event);
        }
        for event in [Event::Turn, Event::Sync, Event::Turn, Event::Sync] {
            story.play(&event);
        }
        for of in 0..3 {
            for back in [false, true] {
                let (next, most) = (if back { u64::MAX } else { 0 }, 7);
                story.readers.push(Slow::new(
                    story.streams[of],
                    Seq(next),
                    if back { Direction::Backwards } else { Direction::Forwards },
                    Most { messages: most, bytes: 500 },
                ));
            }
        }
        story.finish();
        story.finish_whole();
    }

    #[test]
    fn readers_leave_out_what_cannot_be_read_and_say_so(
        batches in prop::collection::vec((0usize..2, prop::collection::vec(0u8..60, 1..6)), 5..40),
        broken in prop::collection::btree_set(0u64..60, 0..12),
        torn in prop::collection::btree_map(0u64..60, 0usize..200, 0..8),
    ) {
        let mut story = Story::new(1);
        for (of, bodies) in &batches {
            story.play(&Event::Publish(*of + 1, bodies.clone()));
            story.play(&Event::Turn);
            story.play(&Event::Sync);
        }
        // The newest messages stay in memory, and are of another stream.
        for event in [Event::Publish(0, vec![1]), Event::Turn, Event::Sync] {
            story.play(&event);
        }
        let damage = |frame: &StoredFrame| {
            let at = frame.position.0;
            let place = |payload: Option<Range<usize>>| {
                let (from, until) = (frame.position, Position(at + 1));
                let (what, file) = ("it is broken".to_owned(), "segment-0000000001".to_owned());
                Damage { from, until, payload, what, file, offset: 0, is_new: true }
            };
            if broken.contains(&at) {
                return Some(place(None));
            }
            let from = *torn.get(&at)?;
            let end = frame.payload.len().min(from + 40);
            (from < end).then(|| place(Some(from..end)))
        };
        // The messages whose frames and bytes are whole.
        let all = ReadBudget { bytes_max: usize::MAX, frames_max: usize::MAX, payloads: true };
        let mut whole: BTreeSet<(StreamId, Seq)> = BTreeSet::new();
        for frame in story.rig.log.read(Position::START, all) {
            let missing = match damage(&frame) {
                Some(Damage { payload: None, .. }) => continue,
                Some(place) => place.payload,
                None => None,
            };
            let mut offset = 0;
            for entry in forebay_core::entry::entries(&frame.entries) {
                if let forebay_core::entry::Entry::Published { stream, first, messages, .. } = entry.expect("good") {
                    for (n, meta) in (0..).zip(messages.iter()) {
                        let bytes = offset..offset + meta.size as usize;
                        offset = bytes.end;
                        let is_torn = |gap: &Range<usize>| gap.start < bytes.end && bytes.start < gap.end;
                        if !missing.as_ref().is_some_and(is_torn) {
                            whole.insert((stream, first.plus(n)));
                        }
                    }
                }
            }
        }
        for stream in &story.streams[1..] {
            let expected: Vec<Seq> =
                whole.iter().filter(|(of, _)| of == stream).map(|(_, seq)| *seq).collect();
            let published = story.plain.keys().filter(|(of, _)| of == stream).count();
            for direction in [Direction::Forwards, Direction::Backwards] {
                let next = if direction == Direction::Forwards { Seq::START } else { Seq(u64::MAX) };
                let mut reader = Slow::new(*stream, next, direction, Most { messages: 9, bytes: 400 });
                reader.run(&story.rig, &story.plain, &damage);
                let mut seen = reader.seen.clone();
                if direction == Direction::Backwards {
                    seen.reverse();
                }
                prop_assert_eq!(&seen, &expected, "{:?}", direction);
                prop_assert_eq!(reader.cursor.lost() as usize, published - expected.len(), "{:?}", direction);
            }
        }
    }
}
