//! The protocol of two owners, explored in every order of its steps by the model checker `stateright`.
//!
//! The product's own:
//!
//! - [`Pipeline`]: which acknowledgements count (R1), and reading again after a refusal (R3).
//! - [`Walk`]: which records are valid (R2). [`Scribe`] and the records, to the byte.
//! - [`SentTimes`], [`Watched`]: how long an owner may serve, and how long its successor waits.
//! - [`Tenure`]: the gate before anything is handed out, stall included.
//!
//! Modelled:
//!
//! - The stream: the check of the expected sequence, which a new leader forgets once.
//! - The connections: messages and acknowledgements that are late or lost, and reads that lag.
//! - The claim: a check of the last claim, then a record (R4).
//! - The clocks: one may run ahead by a tick.
//! - The order in which the engine and its keeper call the parts above.
//!
//! A node that takes no step for a while is a process that was stopped; one that takes none any more was killed. The
//! window is larger than the number of records, so all of them are on their way at once.
//!
//! The fence and the tenure are explored apart: without time and with mishaps, and with time.
//! `FOREBAY_MODEL_FRAMES` sets how many frames each owner appends beside the record that begins its term (1),
//! `FOREBAY_MODEL_MISHAPS` how many messages and answers are lost or late, leaders change and reads lag in one history
//! (1; half of it with time). `FOREBAY_MODEL_TICKS` sets how much time passes, in quarters of the tenure (6). Owners
//! read the log again as often as they have a reason to. That the exploration comes to an end shows that they do not do
//! so for ever.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use forebay_core::types::{Epoch, Timestamp};
use stateright::{Checker as _, HasDiscoveries, Model, Property};

use crate::engine::{Frame, Tenure};
use crate::jetstream::pipeline::{Counted, Pipeline, State, Token, Window};
use crate::jetstream::record::{self, Claimant, Header, Kind, Scribe, Term, put_frame};
use crate::jetstream::tenure::{SentTimes, Watched};
use crate::jetstream::walk::{Step, Stored, Walk};

const TICK: Duration = Duration::from_millis(250);
/// The successor waits for five ticks, so one that is gained by a fast clock does no harm.
const TENURE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_millis(500);
/// More reads than any history of two owners has reason for.
const READS_MAX: u8 = 6;
const WINDOW: Window = Window { messages: 32, bytes: 1 << 20 };

const KEPT: &str = "every frame that was reported is read by every later owner";
const VOID: &str = "no void frame is read";
const READABLE: &str = "a takeover leaves a log that can be read";
const ALONE: &str = "two owners never serve at the same time";
const STALLED: &str = "nothing is handed out while a frame waits for too long";
const ENDS: &str = "reading the log again comes to an end";
const REPORTED: &str = "a frame of each owner is reported";
const STRAY: &str = "a frame is stored behind the claim of the next owner";
const TAKEN_OVER: &str = "the second owner serves";

/// A rule that is left out, to show that the model notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// R1: acknowledgements are believed as they come.
    OrderOfAcks,
    /// R2: frames of a former owner behind a newer claim are read.
    Voiding,
    /// The fence before these rules: the expected sequence alone, acknowledgements that are believed as they come, and
    /// a reader that takes a frame of an older epoch behind a claim for damage.
    AllRules,
    /// R3: after a read all messages are sent again at once.
    Probing,
    Tenure,
    /// The successor serves at once.
    Waiting,
    Stall,
}

/// How far the model goes.
#[derive(Debug, Clone)]
struct Protocol {
    without: Without,
    /// Without time a successor begins at once. Waiting only takes orders of steps away, so promises about the log that
    /// hold then hold with any tenure and any clock.
    is_timed: bool,
    frames: u8,
    ticks: u8,
    /// So many ticks the clock of the second node may be ahead.
    drift: u8,
    budget: Budget,
}

/// Events that may still happen in this history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Budget {
    claims: u8,
    /// Messages and answers that are lost, answers that are given up, changes of the leader, and reads that lag.
    mishaps: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    log: Vec<Bytes>,
    /// A new leader stores the next message without a look at its expectation.
    unchecked: bool,
    nodes: [Node; 2],
    reported: BTreeSet<(Epoch, u64)>,
    budget: Budget,
    /// How often an owner has read the log again.
    reads: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Node {
    clock: u8,
    watched: Watched,
    role: Role,
    /// On the way to the stream, and back.
    line: VecDeque<Letter>,
    answers: VecDeque<(Epoch, Token, Option<u64>)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Letter {
    epoch: Epoch,
    token: Token,
    after: u64,
    bytes: Bytes,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
enum Role {
    #[default]
    Standby,
    /// It knows the last claim, and sends its own.
    Claiming {
        claim: u64,
        epoch: Epoch,
    },
    /// It has claimed the log, and waits until the former owner does not serve any more.
    Waiting {
        until: Timestamp,
        owner: Box<Owner>,
    },
    Owner(Box<Owner>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Owner {
    scribe: Scribe,
    pipeline: Pipeline,
    sent: SentTimes,
    until: Timestamp,
    /// Records that are not durable, and since when they wait.
    pending: VecDeque<(u64, Timestamp)>,
    frames_left: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Tick,
    /// The clock of the second node gains a tick.
    Drift,
    ChangeLeader,
    Look(usize),
    PrepareClaim(usize),
    Claim(usize),
    Begin(usize),
    Append(usize),
    Arrive(usize),
    LoseMessage(usize),
    Answer(usize),
    LoseAnswer(usize),
    Interrupt(usize),
    Read(usize),
    /// A replica that lags answers.
    ReadNothing(usize),
}

impl Node {
    fn now(&self) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(10) + TICK * u32::from(self.clock)
    }

    fn owner(&self) -> Option<&Owner> {
        if let Role::Owner(owner) = &self.role { Some(owner) } else { None }
    }
}

impl Owner {
    /// Sends whatever the window has room for.
    fn send(&mut self, now: Timestamp, line: &mut VecDeque<Letter>) {
        while let Some(sending) = self.pipeline.next_send() {
            self.sent.sent(sending.token.nth, now);
            let (epoch, token, after) = (self.scribe.epoch, sending.token, sending.after);
            line.push_back(Letter { epoch, token, after, bytes: sending.message.bytes });
        }
    }

    fn write(&mut self, now: Timestamp, kind: Kind, body: &[u8]) {
        self.pipeline.push(self.scribe.write(kind, body));
        self.pending.push_back((self.scribe.number, now));
    }

    /// The product's gate.
    fn may_serve(&self, now: Timestamp, without: Without) -> bool {
        let tenure = Tenure::limited(PATIENCE, TENURE / 2, move || now);
        let until = if without == Without::Tenure { now + TENURE } else { self.until };
        tenure.extend(until);
        if without != Without::Stall {
            tenure.set_waits_since(self.pending.front().map(|(_, since)| *since));
        }
        tenure.may_serve()
    }
}

fn stored(log: &[Bytes]) -> impl Iterator<Item = Stored> + '_ {
    (1..).zip(log).map(|(sequence, bytes)| Stored { sequence, stamp: None, bytes: bytes.clone() })
}

fn headers(log: &[Bytes]) -> impl Iterator<Item = (u64, Header)> + '_ {
    (1..).zip(log).filter_map(|(sequence, bytes)| Some((sequence, Header::decode(bytes)?)))
}

/// The sequence and the epoch of the last claim.
fn last_claim(log: &[Bytes]) -> (u64, Epoch) {
    let claims = headers(log).filter(|(_, header)| header.kind == Kind::Claim);
    claims.last().map_or((0, Epoch(0)), |(sequence, header)| (sequence, header.epoch))
}

/// Whether a claim of a newer epoch lies before the record. Said without the reader's help.
fn is_void(log: &[Bytes], sequence: u64, epoch: Epoch) -> bool {
    headers(log).any(|(at, header)| at < sequence && header.kind == Kind::Claim && header.epoch > epoch)
}

/// The frames that a reader finds: where, of which owner, and their numbers.
fn read(log: &[Bytes], without: Without) -> Result<Vec<(u64, Epoch, u64)>, String> {
    let mut walk = Walk::new("model");
    let mut found = Vec::new();
    for stored in stored(log) {
        let header = Header::decode(&stored.bytes).filter(|header| header.kind == Kind::Frame);
        match (walk.step(&stored).map_err(|error| error.to_string())?, header) {
            (Step::Frame(frame), _) => found.push((stored.sequence, frame.epoch, walk.number)),
            (Step::Void, Some(header)) if header.epoch < walk.epoch => match without {
                Without::Voiding => found.push((stored.sequence, header.epoch, header.number)),
                Without::AllRules => return Err("a frame of an older epoch".to_owned()),
                _ => {}
            },
            _ => {}
        }
    }
    Ok(found)
}

fn bound(name: &str, default: u8) -> u8 {
    let given = std::env::var(format!("FOREBAY_MODEL_{name}"));
    given.ok().and_then(|given| given.parse().ok()).unwrap_or(default)
}

impl Protocol {
    /// The fence: which records count, and which are read.
    fn fence(without: Without) -> Protocol {
        let budget = Budget { claims: 2, mishaps: bound("MISHAPS", 1) };
        Protocol { without, is_timed: false, frames: bound("FRAMES", 1), ticks: 0, drift: 0, budget }
    }

    /// The tenure: who serves at which time. A frame extends it as any other record does.
    fn tenure(without: Without) -> Protocol {
        let budget = Budget { claims: 2, mishaps: bound("MISHAPS", 1) / 2 };
        let frames = bound("FRAMES", 1);
        Protocol { without, is_timed: true, frames, ticks: bound("TICKS", 6), drift: 1, budget }
    }

    /// The claim is in the log. Reads it as the product does.
    fn take(&self, world: &mut World, at: usize, epoch: Epoch) {
        let (header, message) = record::claim(epoch, &Claimant { start: at as u64, ..Claimant::default() });
        world.log.push(message.bytes);
        let sequence = world.log.len() as u64;
        let mut walk = Walk::new("model");
        let (mut ending, mut last_of_others, mut is_own) = (walk.ending(), 0, false);
        for stored in stored(&world.log) {
            let before = walk.ending();
            match walk.step(&stored) {
                Ok(Step::Claim) if stored.sequence == sequence => (ending, is_own) = (before, true),
                Ok(Step::Claim | Step::Record | Step::Image | Step::Frame(_)) => {
                    last_of_others = stored.sequence;
                }
                Ok(Step::Part | Step::Void) => {}
                // A property says so.
                Err(_) => break,
            }
        }
        let node = &mut world.nodes[at];
        if !is_own {
            node.role = Role::Standby;
            return;
        }
        let scribe = Scribe { epoch, number: 0, chain: header.hash(), end: walk.end, part_bytes: 1 << 20 };
        let mut pipeline = Pipeline::new(epoch, sequence, WINDOW);
        pipeline.believes_every_answer = matches!(self.without, Without::OrderOfAcks | Without::AllRules);
        pipeline.never_probes = self.without == Without::Probing;
        let mut owner = Owner {
            scribe,
            pipeline,
            sent: SentTimes::default(),
            until: Timestamp::ZERO,
            pending: VecDeque::new(),
            frames_left: self.frames,
        };
        let now = node.now();
        let is_first = ending.epoch == Epoch(0) || self.without == Without::Waiting || !self.is_timed;
        let rest = if is_first { Duration::ZERO } else { node.watched.rest(now, last_of_others, TENURE) };
        let term = Term { owner: Claimant::default(), before: ending };
        let body = term.encode();
        owner.pipeline.push(owner.scribe.write(Kind::Term, &body));
        node.role = Role::Waiting { until: now + rest, owner: Box::new(owner) };
    }

    fn count(world: &mut World, at: usize, counted: &[Counted]) {
        let Role::Owner(owner) = &mut world.nodes[at].role else { return };
        for Counted { number, .. } in counted {
            owner.pending.retain(|(waiting, _)| waiting != number);
            // The first record states the term.
            if *number > 1 {
                world.reported.insert((owner.scribe.epoch, *number));
            }
        }
    }

    /// Does one step. `false` if nothing changes.
    fn step(&self, world: &mut World, action: Action) -> bool {
        let end = world.log.len() as u64;
        match action {
            Action::Tick => world.nodes.iter_mut().for_each(|node| node.clock += 1),
            Action::Drift => world.nodes[1].clock += 1,
            Action::ChangeLeader => {
                world.budget.mishaps -= 1;
                world.unchecked = true;
            }
            Action::Look(at) => {
                let node = &mut world.nodes[at];
                let before = node.watched;
                let now = node.now();
                node.watched.look(now, end);
                return node.watched != before;
            }
            Action::PrepareClaim(at) => {
                let (claim, epoch) = last_claim(&world.log);
                world.budget.claims -= 1;
                world.nodes[at].role = Role::Claiming { claim, epoch: Epoch(epoch.0 + 1) };
                if self.is_timed {
                    return self.step(world, Action::Claim(at));
                }
            }
            Action::Claim(at) => {
                let Role::Claiming { claim, epoch } = world.nodes[at].role else { return false };
                let is_unchecked = std::mem::take(&mut world.unchecked);
                if is_unchecked || last_claim(&world.log).0 == claim {
                    self.take(world, at, epoch);
                } else {
                    world.nodes[at].role = Role::Standby;
                    world.budget.claims += 1;
                }
            }
            Action::Begin(at) => {
                let node = &mut world.nodes[at];
                let now = node.now();
                let Role::Waiting { owner, .. } = std::mem::take(&mut node.role) else { return false };
                let mut owner = owner;
                owner.pending.push_back((owner.scribe.number, now));
                owner.send(now, &mut node.line);
                node.role = Role::Owner(owner);
            }
            Action::Append(at) => {
                let node = &mut world.nodes[at];
                let now = node.now();
                let Role::Owner(owner) = &mut node.role else { return false };
                owner.frames_left -= 1;
                owner.write(now, Kind::Frame, &put_frame(&Frame::default()));
                owner.send(now, &mut node.line);
            }
            Action::Arrive(at) => {
                let Some(letter) = world.nodes[at].line.pop_front() else { return false };
                let is_unchecked = std::mem::take(&mut world.unchecked);
                let answer = (is_unchecked || letter.after == end).then(|| {
                    world.log.push(letter.bytes);
                    end + 1
                });
                // Each claim has an inbox of its own.
                let node = &mut world.nodes[at];
                if node.owner().is_some_and(|owner| owner.scribe.epoch == letter.epoch) {
                    node.answers.push_back((letter.epoch, letter.token, answer));
                }
            }
            Action::LoseMessage(at) => {
                world.budget.mishaps -= 1;
                world.nodes[at].line.pop_front();
            }
            Action::LoseAnswer(at) => {
                world.budget.mishaps -= 1;
                world.nodes[at].answers.pop_front();
            }
            Action::Answer(at) => {
                let node = &mut world.nodes[at];
                let Some((epoch, token, answer)) = node.answers.pop_front() else { return false };
                let Role::Owner(owner) = &mut node.role else { return true };
                if owner.scribe.epoch != epoch {
                    return true;
                }
                let counted = owner.pipeline.answered(token, answer);
                if owner.pipeline.state() != State::Flowing {
                    owner.sent.clear();
                }
                if !counted.is_empty()
                    && let Some(sent_at) = owner.sent.counted(token.nth)
                {
                    owner.until = owner.until.max(sent_at + TENURE);
                }
                Protocol::count(world, at, &counted);
            }
            Action::Interrupt(at) => {
                world.budget.mishaps -= 1;
                let Role::Owner(owner) = &mut world.nodes[at].role else { return false };
                owner.pipeline.interrupt();
                owner.sent.clear();
            }
            Action::Read(at) => self.read_again(world, at, end),
            Action::ReadNothing(at) => {
                world.budget.mishaps -= 1;
                let known = world.nodes[at].owner().map_or(0, |owner| owner.pipeline.known());
                self.read_again(world, at, known);
            }
        }
        true
    }

    fn read_again(&self, world: &mut World, at: usize, end: u64) {
        world.reads += 1;
        let Role::Owner(owner) = &mut world.nodes[at].role else { return };
        let known = owner.pipeline.known();
        let found = stored(&world.log).filter(|stored| stored.sequence > known && stored.sequence <= end);
        let found: Vec<_> = found.map(|stored| (stored.sequence, Header::decode(&stored.bytes))).collect();
        let counted = owner.pipeline.on_read(found, end).expect("the stream never goes back here");
        Protocol::count(world, at, &counted);
        let node = &mut world.nodes[at];
        let now = node.now();
        let Role::Owner(owner) = &mut node.role else { return };
        match owner.pipeline.state() {
            State::Fenced(_) => {
                node.role = Role::Standby;
                node.answers.clear();
            }
            _ => owner.send(now, &mut node.line),
        }
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let nodes = [Node::default(), Node::default()];
        let (log, reported, budget) = (Vec::new(), BTreeSet::new(), self.budget);
        vec![World { log, unchecked: false, nodes, reported, budget, reads: 0 }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let [first, second] = &world.nodes;
        let is_begun = !world.log.is_empty();
        if is_begun && first.clock < self.ticks {
            actions.push(Action::Tick);
        }
        if is_begun && second.clock - first.clock < self.drift {
            actions.push(Action::Drift);
        }
        if is_begun && world.budget.mishaps > 0 && !world.unchecked {
            actions.push(Action::ChangeLeader);
        }
        for (at, node) in world.nodes.iter().enumerate() {
            match &node.role {
                Role::Standby if world.budget.claims > 0 => {
                    // Nodes differ by their clocks alone, and the clock of the first owner is the slower one.
                    if at == 0 || is_begun || first.role != Role::Standby {
                        actions.push(Action::PrepareClaim(at));
                    }
                    if is_begun && self.is_timed {
                        actions.push(Action::Look(at));
                    }
                }
                Role::Standby => {}
                Role::Claiming { .. } => actions.push(Action::Claim(at)),
                Role::Waiting { until, .. } if node.now() >= *until => actions.push(Action::Begin(at)),
                Role::Waiting { .. } => {}
                Role::Owner(owner) => {
                    if owner.frames_left > 0 {
                        actions.push(Action::Append(at));
                    }
                    if owner.pipeline.is_waiting() && world.budget.mishaps > 0 {
                        actions.push(Action::Interrupt(at));
                    }
                    if owner.pipeline.state() == State::Reading {
                        actions.push(Action::Read(at));
                        if world.budget.mishaps > 0 && (world.log.len() as u64) > owner.pipeline.known() {
                            actions.push(Action::ReadNothing(at));
                        }
                    }
                }
            }
            if !node.line.is_empty() {
                actions.push(Action::Arrive(at));
                if world.budget.mishaps > 0 {
                    actions.push(Action::LoseMessage(at));
                }
            }
            if !node.answers.is_empty() {
                actions.push(Action::Answer(at));
                if world.budget.mishaps > 0 {
                    actions.push(Action::LoseAnswer(at));
                }
            }
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        self.step(&mut world, action).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Protocol>> {
        fn serves(model: &Protocol, node: &Node) -> bool {
            node.owner().is_some_and(|owner| owner.may_serve(node.now(), model.without))
        }
        fn of(world: &World, epoch: u32) -> bool {
            world.reported.iter().any(|(owner, _)| owner.0 == epoch)
        }
        let fence = vec![
            Property::always(KEPT, |model: &Protocol, world: &World| {
                let found =
                    if world.reported.is_empty() { Ok(Vec::new()) } else { read(&world.log, model.without) };
                let found = found.unwrap_or_default();
                world.reported.iter().all(|(epoch, number)| {
                    found.iter().any(|(sequence, of, found)| {
                        (of, found) == (epoch, number) && !is_void(&world.log, *sequence, *of)
                    })
                })
            }),
            Property::always(VOID, |model: &Protocol, world: &World| {
                let found = read(&world.log, model.without).unwrap_or_default();
                !found.iter().any(|(sequence, epoch, _)| is_void(&world.log, *sequence, *epoch))
            }),
            Property::always(READABLE, |model: &Protocol, world: &World| {
                read(&world.log, model.without).is_ok()
            }),
            Property::always(ENDS, |_: &Protocol, world: &World| world.reads <= READS_MAX),
            Property::sometimes(REPORTED, |_: &Protocol, world: &World| of(world, 1) && of(world, 2)),
            Property::sometimes(STRAY, |_: &Protocol, world: &World| {
                let mut frames = headers(&world.log).filter(|(_, header)| header.kind == Kind::Frame);
                frames.any(|(sequence, header)| is_void(&world.log, sequence, header.epoch))
            }),
        ];
        let tenure = vec![
            Property::always(ALONE, |model: &Protocol, world: &World| {
                !world.nodes.iter().all(|node| serves(model, node))
            }),
            Property::always(STALLED, |model: &Protocol, world: &World| {
                world.nodes.iter().all(|node| {
                    let oldest = node.owner().and_then(|owner| owner.pending.front());
                    oldest.is_none_or(|(_, since)| node.now().since(*since) < PATIENCE)
                        || !serves(model, node)
                })
            }),
            Property::sometimes(TAKEN_OVER, |model: &Protocol, world: &World| {
                world.nodes.iter().any(|node| {
                    serves(model, node) && node.owner().is_some_and(|owner| owner.scribe.epoch == Epoch(2))
                })
            }),
        ];
        if self.is_timed { tenure } else { fence }
    }
}

/// Explores until one of these is found.
fn is_found(model: Protocol, name: &'static str) -> bool {
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyOf([name].into()));
    checker.spawn_bfs().join().discovery(name).is_some()
}

/// Each owner has three records on their way.
fn three_records(without: Without) -> Protocol {
    Protocol { frames: 2, ..Protocol::fence(without) }
}

fn explore(model: Protocol) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    report(checker.state_count(), checker.unique_state_count());
    checker.assert_properties();
    assert!(checker.is_done(), "every state was reached");
}

#[allow(clippy::print_stderr)]
fn report(all: usize, different: usize) {
    eprintln!("{all} states, {different} different ones");
}

#[test]
fn no_order_of_steps_of_two_owners_loses_a_reported_frame_or_reads_a_void_one() {
    explore(Protocol::fence(Without::Nothing));
}

#[test]
fn at_no_time_two_owners_serve() {
    explore(Protocol::tenure(Without::Nothing));
}

#[test]
fn acknowledgements_that_are_believed_as_they_come_lose_reported_frames() {
    assert!(is_found(three_records(Without::OrderOfAcks), KEPT));
}

#[test]
fn messages_that_are_all_sent_again_at_once_may_be_refused_for_ever() {
    assert!(is_found(Protocol::fence(Without::Probing), ENDS));
}

#[test]
fn frames_of_a_former_owner_are_read_where_they_are_not_void() {
    assert!(is_found(three_records(Without::Voiding), VOID));
}

/// The expected sequence alone is no fence: a claim takes the place of the first refused frame, and the expectations of
/// the frames behind it are true again.
#[test]
fn the_fence_by_expected_sequences_alone_is_broken() {
    assert!(
        is_found(three_records(Without::AllRules), READABLE),
        "frames of a live owner stop its successor"
    );
    assert!(is_found(three_records(Without::AllRules), KEPT), "and they were reported");
}

#[test]
fn without_a_tenure_two_owners_serve() {
    assert!(is_found(Protocol::tenure(Without::Tenure), ALONE));
}

#[test]
fn a_successor_that_does_not_wait_serves_beside_the_former_owner() {
    assert!(is_found(Protocol::tenure(Without::Waiting), ALONE));
}

#[test]
fn a_clock_that_gains_more_than_a_quarter_is_not_covered() {
    assert!(is_found(Protocol { drift: 2, ..Protocol::tenure(Without::Nothing) }, ALONE));
}

#[test]
fn without_the_stall_deliveries_go_on_while_frames_wait() {
    assert!(is_found(Protocol::tenure(Without::Stall), STALLED));
}
