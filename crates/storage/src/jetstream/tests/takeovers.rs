//! Several owners of one log, on a model of JetStream that loses and delays what it can: messages, acknowledgements
//! and, after a change of its leader, the check of the expected sequence.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use forebay_core::types::{Epoch, Position};

use crate::engine::Frame;
use crate::jetstream::pipeline::{Counted, Pipeline, Sending, State, Token, Window};
use crate::jetstream::record::{self, Claimant, Ending, Header, Kind, Scribe, Term, put_frame};
use crate::jetstream::walk::{Step, Stored, Walk};

/// Random numbers from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % below
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.roll(of) == 0
    }
}

/// The stream: sequences count from 1.
#[derive(Default)]
struct Model {
    log: Vec<Bytes>,
    /// So many messages are stored without a look at their expectation.
    unchecked: u64,
}

impl Model {
    fn arrive(&mut self, sending: &Sending) -> Option<u64> {
        let is_unchecked = self.unchecked > 0;
        self.unchecked = self.unchecked.saturating_sub(1);
        (is_unchecked || sending.after == self.log.len() as u64)
            .then(|| self.store(sending.message.bytes.clone()))
    }

    fn store(&mut self, bytes: Bytes) -> u64 {
        self.log.push(bytes);
        self.log.len() as u64
    }

    fn stored(&self) -> impl Iterator<Item = Stored> + '_ {
        (1..).zip(&self.log).map(|(sequence, bytes)| Stored { sequence, stamp: None, bytes: bytes.clone() })
    }
}

struct Owner {
    epoch: Epoch,
    scribe: Scribe,
    pipeline: Pipeline,
    /// On the way to the stream, and back.
    line: VecDeque<Sending>,
    answers: VecDeque<(Token, Option<u64>)>,
    appended: BTreeMap<u64, Bytes>,
    reported: Vec<u64>,
}

impl Owner {
    /// Claims the log, then reads it up to the own claim.
    fn claim(model: &mut Model, believes_every_answer: bool) -> Owner {
        let before = walk(model).0;
        let epoch = Epoch(before.epoch.0 + 1);
        let (header, message) = record::claim(epoch, &Claimant::default());
        let sequence = model.store(message.bytes);
        let mut scribe = Scribe { epoch, number: 0, chain: header.hash(), end: before.end, part_bytes: 64 };
        let mut pipeline = Pipeline::new(epoch, sequence, Window { messages: 32, bytes: 1 << 20 });
        pipeline.believes_every_answer = believes_every_answer;
        let term = Term { owner: Claimant::default(), before: before.ending() };
        pipeline.push(scribe.write(Kind::Term, &term.encode()));
        Owner {
            epoch,
            scribe,
            pipeline,
            line: VecDeque::new(),
            answers: VecDeque::new(),
            appended: BTreeMap::new(),
            reported: Vec::new(),
        }
    }

    fn append(&mut self, dice: &mut Dice) {
        let length = if dice.one_in(4) { 40 + dice.roll(300) } else { dice.roll(20) };
        let entries = Bytes::from(vec![dice.roll(256) as u8; length as usize]);
        let frame = Frame { entries: entries.clone(), ..Frame::default() };
        self.pipeline.push(self.scribe.write(Kind::Frame, &put_frame(&frame)));
        self.appended.insert(self.scribe.number, entries);
    }

    fn report(&mut self, counted: Vec<Counted>) {
        self.reported.extend(counted.iter().map(|counted| counted.number));
    }

    fn read(&mut self, model: &Model, end: u64) {
        let from = self.pipeline.known() as usize;
        let found = model.stored().skip(from).take((end as usize).saturating_sub(from));
        let found: Vec<_> = found.map(|stored| (stored.sequence, Header::decode(&stored.bytes))).collect();
        let counted = self.pipeline.on_read(found, end).expect("the stream never goes back here");
        self.report(counted);
    }
}

fn walk(model: &Model) -> (Walk, BTreeMap<(Epoch, u64), Bytes>) {
    let mut walk = Walk::new("model");
    let mut frames = BTreeMap::new();
    for stored in model.stored() {
        if let Step::Frame(frame) = walk.step(&stored).expect("nothing is damaged") {
            let before = frames.insert((frame.epoch, walk.number), frame.entries);
            assert!(before.is_none(), "a frame is read once");
        }
    }
    (walk, frames)
}

/// One history. Returns how many frames were reported, and how many messages of the log are void.
fn run(seed: u64, believes_every_answer: bool) -> Result<(usize, u64), String> {
    let mut dice = Dice(seed);
    let mut model = Model::default();
    let mut owners = vec![Owner::claim(&mut model, believes_every_answer)];
    for _ in 0..400 {
        let newest = owners.len() - 1;
        if owners.len() < 5 && dice.one_in(60) {
            owners.push(Owner::claim(&mut model, believes_every_answer));
            continue;
        }
        // The former owner is as busy as the present one.
        let index = newest.saturating_sub(dice.roll(2) as usize);
        let owner = &mut owners[index];
        match dice.roll(100) {
            0..25 => owner.append(&mut dice),
            25..50 => {
                while let Some(sending) = owner.pipeline.next_send() {
                    owner.line.push_back(sending);
                }
            }
            50..75 => {
                for _ in 0..=dice.roll(8) {
                    let Some(sending) = owner.line.pop_front() else { break };
                    if dice.one_in(40) {
                        continue;
                    }
                    let answer = model.arrive(&sending);
                    if !dice.one_in(40) {
                        owner.answers.push_back((sending.token, answer));
                    }
                }
            }
            75..90 => {
                for _ in 0..=dice.roll(8) {
                    let Some((token, answer)) = owner.answers.pop_front() else { break };
                    let counted = owner.pipeline.answered(token, answer);
                    owner.report(counted);
                }
            }
            90..92 => {
                if owner.pipeline.is_waiting() {
                    owner.pipeline.interrupt();
                }
            }
            92..99 => {
                if owner.pipeline.state() == State::Reading {
                    let known = owner.pipeline.known();
                    let end = known + dice.roll(model.log.len() as u64 - known + 1);
                    let end = if dice.one_in(4) { end } else { model.log.len() as u64 };
                    owner.read(&model, end);
                }
            }
            _ => model.unchecked = dice.roll(6),
        }
    }
    let (walk, frames) = walk(&model);
    for owner in &owners {
        for number in &owner.reported {
            let Some(appended) = owner.appended.get(number) else { continue };
            match frames.get(&(owner.epoch, *number)) {
                None => return Err(format!("seed {seed}: a reported frame is void")),
                Some(found) if found != appended => return Err(format!("seed {seed}: other bytes")),
                Some(_) => {}
            }
        }
        if !believes_every_answer && !owner.reported.is_sorted_by(|one, next| one + 1 == *next) {
            return Err(format!("seed {seed}: reports are out of order"));
        }
    }
    Ok((owners.iter().map(|owner| owner.reported.len()).sum(), walk.void))
}

#[test]
fn a_reported_frame_is_found_by_every_later_owner() {
    let (mut reported, mut void) = (0, 0);
    for seed in 0..2_000 {
        let (some, strays) = run(seed, false).expect("the rules hold");
        reported += some;
        void += strays;
    }
    assert!(reported > 20_000, "the histories do something: {reported}");
    assert!(void > 2_000, "former owners leave records behind claims: {void}");
}

#[test]
fn without_the_writers_rule_reported_frames_are_lost() {
    assert!((0..100).any(|seed| run(seed, true).is_err()));
}

/// The way in which an expectation alone fails: the claim takes the place of the first refused frame.
#[test]
fn frames_behind_a_claim_are_acknowledged_and_never_reported() {
    let mut model = Model::default();
    let mut old = Owner::claim(&mut model, false);
    let mut dice = Dice(1);
    for _ in 0..7 {
        old.append(&mut dice);
    }
    while let Some(sending) = old.pipeline.next_send() {
        old.line.push_back(sending);
    }
    let new = Owner::claim(&mut model, false);
    let answers: Vec<_> = old.line.drain(..).map(|sending| (sending.token, model.arrive(&sending))).collect();
    assert_eq!(answers[0].1, None, "its place is taken");
    assert!(answers[1..].iter().all(|(_, stored)| stored.is_some()), "the others are stored");
    for (token, stored) in answers {
        assert_eq!(old.pipeline.answered(token, stored), []);
    }
    old.read(&model, model.log.len() as u64);
    assert_eq!(old.pipeline.state(), State::Fenced(new.epoch));
    assert!(old.reported.is_empty());
    assert_eq!(walk(&model).1.len(), 0);
}

#[test]
fn a_stream_that_ends_earlier_than_it_did_is_noticed() {
    let mut pipeline = Pipeline::new(Epoch(1), 10, Window { messages: 8, bytes: 1 << 20 });
    pipeline.interrupt();
    assert!(pipeline.on_read([], 9).is_err());
    assert_eq!(pipeline.state(), State::Reading, "nothing is sent");
    assert_eq!(pipeline.on_read([], 10), Ok(Vec::new()));
    assert_eq!(pipeline.state(), State::Flowing);
}

#[test]
fn a_missing_record_breaks_the_chain() {
    let mut scribe = Scribe { epoch: Epoch(1), number: 0, chain: [0; 16], end: Position(1), part_bytes: 64 };
    let (header, claim) = record::claim(Epoch(1), &Claimant::default());
    scribe.chain = header.hash();
    let first = scribe.write(Kind::Beat, b"");
    // The same number again: a record whose predecessor is another one.
    let mut other = Scribe { chain: [7; 16], ..scribe.clone() };
    let second = other.write(Kind::Beat, b"");
    let mut walk = Walk::new("model");
    let mut feed = |bytes: &Bytes| walk.step(&Stored { sequence: 1, stamp: None, bytes: bytes.clone() });
    feed(&claim.bytes).expect("valid");
    feed(&first[0].bytes).expect("valid");
    let error = feed(&second[0].bytes).expect_err("the chain is broken");
    assert!(error.to_string().contains("chain"), "{error}");
    let mut lost = Walk::new("model");
    let (header, claim) = record::claim(Epoch(1), &Claimant::default());
    let before = Ending { epoch: Epoch(0), number: 3, chain: [0; 16] };
    let mut scribe = Scribe { number: 0, chain: header.hash(), ..scribe };
    let term = scribe.write(Kind::Term, &Term { owner: Claimant::default(), before }.encode());
    lost.step(&Stored { sequence: 1, stamp: None, bytes: claim.bytes }).expect("valid");
    let error = lost
        .step(&Stored { sequence: 2, stamp: None, bytes: term[0].bytes.clone() })
        .expect_err("records are gone");
    assert!(error.to_string().contains("missing"), "{error}");
}

#[test]
fn the_first_claim_of_a_log_may_have_any_epoch_and_later_ones_may_not() {
    let mut walk = Walk::new("log");
    let mut step = |sequence, epoch| {
        let (_, claim) = record::claim(Epoch(epoch), &Claimant::default());
        let step = walk.step(&Stored { sequence, stamp: None, bytes: claim.bytes });
        (matches!(step, Ok(Step::Claim)), walk.epoch.0)
    };
    // A copy goes on above the epochs of its source.
    assert_eq!(step(1, 70_000), (true, 70_000));
    for (sequence, void) in [(2, 1), (3, 70_000), (4, 70_002), (5, 90_000)] {
        assert_eq!(step(sequence, void), (false, 70_000), "{void}");
    }
    assert_eq!(step(6, 70_001), (true, 70_001));
}
