//! Histories from seeds: a pipeline against a plain server, with calls that break at any moment and copies of
//! batches that arrive late.

use std::collections::BTreeMap;

use super::*;
use crate::clock;

const RULES: Rules = Rules {
    batch_max: BatchMax { messages: 8, bytes: 1 << 20 },
    stops_at_failure: false,
    stall_timeout: None,
};

/// A number from a seed, again and again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mixed(self.0, 0x5eed) % sides
    }
}

/// What the server does about producers, in plain words, and what else it may find wrong.
#[derive(Default)]
struct Server {
    stored: Vec<String>,
    ids: BTreeMap<String, u64>,
    producers: BTreeMap<u64, (u32, Vec<StoredBatch>)>,
    /// More than this it does not hold.
    room: usize,
    /// Answers to so many batches are that it is too early.
    busy: u64,
}

struct StoredBatch {
    number: u64,
    count: u64,
    places: Vec<(u64, bool)>,
}

impl Server {
    fn publish(&mut self, request: &v1::PublishRequest) -> v1::Confirmation {
        let answer =
            |problem| v1::Confirmation { ticket: request.ticket, problem, ..v1::Confirmation::default() };
        if request.messages.iter().any(|message| message.body.starts_with(b"bad")) {
            return answer(Some(problem(Code::Invalid, v1::Retry::Never)));
        }
        let of = request.producer.expect("every batch is numbered");
        let count = request.messages.len() as u64;
        let known = self.producers.get(&of.id).filter(|(epoch, _)| *epoch >= of.epoch);
        if let Some((epoch, batches)) = known {
            let last = batches.last().expect("a producer is known by a batch");
            if *epoch > of.epoch {
                return answer(Some(problem(Code::ProducerFenced, v1::Retry::Never)));
            }
            if of.counter != last.number + last.count {
                let found = batches.iter().find(|it| it.number == of.counter && it.count == count);
                let code = match found {
                    Some(batch) => return self.confirm(request.ticket, &batch.places, true),
                    None if of.counter < batches[0].number => Code::ProducerTooOld,
                    None => Code::ProducerGap,
                };
                return answer(Some(problem(code, v1::Retry::Never)));
            }
        }
        if self.busy > 0 {
            self.busy -= 1;
            return answer(Some(problem(Code::TooFast, v1::Retry::Later)));
        }
        if request.messages.len() > self.room {
            return answer(Some(problem(Code::StreamFull, v1::Retry::Later)));
        }
        if request.expect_last_seq.is_some_and(|expected| expected != self.stored.len() as u64) {
            return answer(Some(problem(Code::WrongLastSeq, v1::Retry::Never)));
        }
        self.room -= request.messages.len();
        let mut places = Vec::new();
        for message in &request.messages {
            if let Some(&seq) = self.ids.get(&message.id) {
                places.push((seq, true));
                continue;
            }
            self.stored.push(String::from_utf8(message.body.to_vec()).expect("the test writes text"));
            let seq = self.stored.len() as u64;
            if !message.id.is_empty() {
                self.ids.insert(message.id.clone(), seq);
            }
            places.push((seq, false));
        }
        let confirmation = self.confirm(request.ticket, &places, false);
        let (epoch, batches) = self.producers.entry(of.id).or_default();
        if *epoch < of.epoch {
            *epoch = of.epoch;
            batches.clear();
        }
        batches.push(StoredBatch { number: of.counter, count, places });
        if batches.len() > 5 {
            batches.remove(0);
        }
        confirmation
    }

    fn confirm(&self, ticket: u64, places: &[(u64, bool)], again: bool) -> v1::Confirmation {
        let mut confirmation = v1::Confirmation { ticket, ..v1::Confirmation::default() };
        for (&(seq, duplicate), index) in places.iter().zip(0..) {
            if duplicate || again {
                confirmation.duplicates.push(v1::Duplicate { index, seq });
            } else {
                confirmation.first_seq = if confirmation.count == 0 { seq } else { confirmation.first_seq };
                confirmation.count += 1;
            }
        }
        confirmation
    }
}

fn problem(code: Code, retry: v1::Retry) -> v1::Problem {
    v1::Problem {
        code: code.into(),
        retry: retry.into(),
        detail: format!("{code:?}"),
        ..v1::Problem::default()
    }
}

type Requests = VecDeque<Arc<v1::PublishRequest>>;

struct World {
    now: Instant,
    retry_for: Duration,
    pipeline: Pipeline,
    server: Server,
    /// The requests under way to the server and the confirmations under way back, while a call is open.
    call: Option<(Requests, VecDeque<v1::Confirmation>)>,
    /// Something has come through on the present call.
    connected: bool,
    /// Unread requests of calls that broke. The server may still read them.
    left_over: Vec<Requests>,
    sent: Vec<Sent>,
    in_window: usize,
}

struct Sent {
    bodies: Vec<String>,
    answer: Answer,
}

enum Answer {
    One(oneshot::Receiver<Result<Published, PublishError>>),
    Whole(oneshot::Receiver<Result<Vec<Published>, PublishError>>),
}

impl World {
    fn new(retry_for: Duration) -> World {
        World {
            now: clock::now(),
            retry_for,
            pipeline: Pipeline::new("s".to_owned(), Arc::new(Identity::new(7)), RULES),
            server: Server { room: 100, ..Server::default() },
            call: None,
            connected: false,
            left_over: Vec::new(),
            sent: Vec::new(),
            in_window: 0,
        }
    }

    fn message(&self, dice: &mut Dice, part: u64) -> v1::Message {
        let n = self.sent.len();
        let bad = if dice.roll(40) == 0 { "bad " } else { "" };
        let id = match dice.roll(8) {
            0 => format!("id {}", dice.roll(20)),
            1 => format!("own id {n} {part}"),
            _ => String::new(),
        };
        v1::Message { body: format!("{bad}{n:05}.{part}").into(), id, ..v1::Message::default() }
    }

    fn send(&mut self, dice: &mut Dice) {
        let whole = dice.roll(12) == 0;
        let count = if whole { 1 + dice.roll(4) } else { 1 };
        let messages: Vec<_> = (0..count).map(|part| self.message(dice, part)).collect();
        let bodies = messages.iter().map(|it| String::from_utf8(it.body.to_vec()).expect("text")).collect();
        let room = Room { messages: messages.len(), bytes: 10 };
        self.in_window += room.messages;
        let (content, reply, answer) = if whole {
            let (reply, answer) = oneshot::channel();
            let expect_last_seq = (dice.roll(6) == 0).then_some(self.server.stored.len() as u64);
            (Content::Whole { messages, expect_last_seq }, Reply::Whole(reply), Answer::Whole(answer))
        } else {
            let (reply, answer) = oneshot::channel();
            let message = messages.into_iter().next().expect("one");
            (Content::One(message), Reply::One(reply), Answer::One(answer))
        };
        let deadline = self.now + self.retry_for;
        self.pipeline.accept(Item { content, deadline, room, reply });
        self.sent.push(Sent { bodies, answer });
    }

    /// Sends what may go, now or after a call is there.
    fn pump(&mut self) {
        if self.call.is_none() && self.pipeline.wants_call(self.now) {
            self.call = Some(Default::default());
        }
        if let Some((requests, answers)) = &mut self.call {
            while let Some(request) = self.pipeline.next_request(self.now) {
                requests.push_back(request);
            }
            assert!(requests.len() + answers.len() <= IN_FLIGHT_MAX);
        }
        self.in_window -= self.pipeline.take_released().messages;
    }

    fn serve(&mut self, dice: &mut Dice) {
        let Some((requests, answers)) = &mut self.call else { return };
        let Some(request) = requests.pop_front() else { return };
        self.connected = true;
        // The disk fails, before or after.
        if dice.roll(60) == 0 {
            if dice.roll(2) == 0 {
                self.server.publish(&request);
            }
            let unknown = Some(problem(Code::OutcomeUnknown, v1::Retry::SameId));
            let ticket = request.ticket;
            answers.push_back(v1::Confirmation { ticket, problem: unknown, ..v1::Confirmation::default() });
            return self.break_off(dice, true);
        }
        answers.push_back(self.server.publish(&request));
    }

    fn hear(&mut self) {
        let Some((_, answers)) = &mut self.call else { return };
        let Some(answer) = answers.pop_front() else { return };
        self.pipeline.on_confirmation(self.now, answer).expect("the server answers in order");
        self.in_window -= self.pipeline.take_released().messages;
    }

    fn break_off(&mut self, dice: &mut Dice, hear_first: bool) {
        while hear_first && self.call.as_ref().is_some_and(|(_, answers)| !answers.is_empty()) {
            self.hear();
        }
        let Some((requests, _)) = self.call.take() else { return };
        let was_sent = std::mem::take(&mut self.connected) || dice.roll(2) == 0;
        // Requests that were sent may be lost, or may be read late.
        if was_sent && dice.roll(2) == 0 {
            self.left_over.push(requests);
        }
        self.pipeline.on_call_ended(self.now, was_sent, "it broke".to_owned());
    }

    /// The server reads something that was sent on a call that is no more.
    fn haunt(&mut self, dice: &mut Dice) {
        if self.left_over.is_empty() {
            return;
        }
        let which = dice.roll(self.left_over.len() as u64) as usize;
        match self.left_over[which].pop_front() {
            Some(request) => drop(self.server.publish(&request)),
            None => drop(self.left_over.swap_remove(which)),
        }
    }

    fn step(&mut self, dice: &mut Dice) {
        match dice.roll(100) {
            0..30 => self.send(dice),
            30..45 => self.pump(),
            45..60 => self.serve(dice),
            60..75 => self.hear(),
            75..80 => self.haunt(dice),
            80..84 => self.break_off(dice, false),
            84..86 => self.server.busy = dice.roll(4),
            86..92 => self.server.room += dice.roll(12) as usize,
            92..94 => self.server.room = self.server.room.min(3),
            _ => {
                self.now += Duration::from_millis(dice.roll(120));
                self.pipeline.on_time(self.now);
            }
        }
    }

    fn heal(&mut self, dice: &mut Dice) {
        for _ in 0..20_000 {
            self.server.room = 100;
            self.server.busy = 0;
            self.pump();
            while let Some((requests, answers)) = &mut self.call
                && let Some(request) = requests.pop_front()
            {
                answers.push_back(self.server.publish(&request));
            }
            self.hear();
            self.now += Duration::from_millis(10);
            if self.pipeline.wake_at().is_some_and(|at| at <= self.now) {
                self.pipeline.on_time(self.now);
            }
            if self.pipeline.is_idle() {
                break;
            }
        }
        assert!(self.pipeline.is_idle(), "everything comes to an end");
        self.pump();
        assert_eq!(self.in_window, 0, "the whole window is given back");
        while !self.left_over.is_empty() {
            self.haunt(dice);
        }
    }

    /// Everybody was told the truth.
    fn check(mut self, may_give_up: bool) -> Tally {
        let mut tally = Tally::default();
        let mut stored: BTreeMap<String, u64> = BTreeMap::new();
        for (body, seq) in self.server.stored.iter().zip(1..) {
            assert!(stored.insert(body.clone(), seq).is_none(), "{body} is stored twice");
        }
        assert!(self.server.stored.is_sorted(), "{:?}", self.server.stored);
        for sent in &mut self.sent {
            let result = match &mut sent.answer {
                Answer::One(answer) => answer.try_recv().expect("an answer").map(|published| vec![published]),
                Answer::Whole(answer) => answer.try_recv().expect("an answer"),
            };
            let is_bad = sent.bodies.iter().any(|body| body.starts_with("bad"));
            match result {
                Ok(published) => {
                    assert!(!is_bad, "{:?}", sent.bodies);
                    assert_eq!(published.len(), sent.bodies.len());
                    for (published, body) in published.iter().zip(&sent.bodies) {
                        if published.duplicate {
                            let id = published.id.as_ref().expect("only ids make duplicates");
                            assert_eq!(self.server.ids.get(id), Some(&published.seq));
                            tally.duplicates += 1;
                        } else {
                            assert_eq!(stored.get(body), Some(&published.seq), "{body}");
                        }
                    }
                    tally.stored += 1;
                }
                Err(PublishError::Unknown { .. }) => {
                    assert!(may_give_up);
                    tally.unknown += 1;
                }
                Err(error) => {
                    match &error {
                        PublishError::NotInTime { .. } => assert!(may_give_up, "{:?}", sent.bodies),
                        PublishError::WrongLastSeq { .. } => {}
                        error => assert!(is_bad, "{:?}: {error}", sent.bodies),
                    }
                    for body in &sent.bodies {
                        assert!(!stored.contains_key(body), "{body} is stored: {error}");
                    }
                    tally.refused += 1;
                }
            }
        }
        tally
    }
}

#[derive(Debug, Default)]
struct Tally {
    stored: u64,
    duplicates: u64,
    refused: u64,
    unknown: u64,
}

fn run(seed: u64, retry_for: Duration, may_give_up: bool) -> Tally {
    let mut dice = Dice(seed << 20);
    let mut world = World::new(retry_for);
    for _ in 0..400 {
        world.step(&mut dice);
    }
    world.heal(&mut dice);
    world.check(may_give_up)
}

fn run_all(seeds: u64, retry_for: Duration, may_give_up: bool) -> Tally {
    let mut all = Tally::default();
    for seed in 0..seeds {
        let result = std::panic::catch_unwind(|| run(seed, retry_for, may_give_up));
        let tally = result.unwrap_or_else(|_| panic!("seed {seed}"));
        all.stored += tally.stored;
        all.duplicates += tally.duplicates;
        all.refused += tally.refused;
        all.unknown += tally.unknown;
    }
    all
}

#[test]
fn every_message_is_stored_once_and_in_order_whatever_breaks() {
    let all = run_all(2_000, Duration::from_secs(3_600), false);
    assert!(all.stored > 100_000 && all.duplicates > 1_000 && all.refused > 1_000, "{all:?}");
}

#[test]
fn who_is_told_that_nothing_was_stored_was_told_the_truth() {
    let all = run_all(2_000, Duration::from_millis(400), true);
    assert!(all.stored > 20_000 && all.unknown > 1_000 && all.refused > 1_000, "{all:?}");
}

/// Nothing happens here that is not said.
fn calm() -> World {
    World::new(Duration::from_secs(60))
}

impl World {
    fn say(&mut self, body: &str) -> oneshot::Receiver<Result<Published, PublishError>> {
        let (reply, answer) = oneshot::channel();
        let message = v1::Message { body: body.to_owned().into(), ..v1::Message::default() };
        let (content, reply) = (Content::One(message), Reply::One(reply));
        let (deadline, room) = (self.now + self.retry_for, Room { messages: 1, bytes: 1 });
        self.in_window += 1;
        self.pipeline.accept(Item { content, deadline, room, reply });
        answer
    }

    fn settle(&mut self) {
        self.heal(&mut Dice(0));
    }
}

fn seq(mut answer: oneshot::Receiver<Result<Published, PublishError>>) -> u64 {
    answer.try_recv().expect("an answer").expect("it is stored").seq
}

#[test]
fn a_server_that_went_back_to_a_copy_of_itself_is_told_again() {
    let mut world = calm();
    let before = world.say("a");
    world.settle();
    assert_eq!(seq(before), 1);
    for body in ["b", "c"] {
        drop(world.say(body));
        world.settle();
    }
    // An operator has restored a backup from when there was only the first message.
    world.server.stored.truncate(1);
    for (_, batches) in world.server.producers.values_mut() {
        batches.truncate(1);
    }
    let after = world.say("d");
    world.settle();
    assert_eq!(seq(after), 2);
    assert_eq!(world.server.stored, ["a", "d"]);
}

#[test]
fn a_refused_call_fails_everything_and_the_next_one_goes_on() {
    let mut world = calm();
    let stored = world.say("a");
    world.settle();
    let (mut sent, mut waiting) = (world.say("b"), world.say("c"));
    world.pump();
    let third = world.say("d");
    drop(third);
    let denied = PublishError::Refused { refusal: Refusal::Denied, detail: "not you".to_owned() };
    world.call = None;
    world.pipeline.on_call_refused(&denied);
    // The call may have come some way before it was refused.
    assert!(matches!(sent.try_recv().expect("an answer"), Err(PublishError::Unknown { .. })));
    assert!(matches!(waiting.try_recv().expect("an answer"), Err(PublishError::Unknown { .. })));
    let (reply, mut flushed) = oneshot::channel();
    world.pipeline.flush(reply);
    flushed.try_recv().expect("all is answered").expect_err("three failed");
    let (reply, mut flushed) = oneshot::channel();
    world.pipeline.flush(reply);
    flushed.try_recv().expect("all is answered").expect("nothing failed since");
    let next = world.say("e");
    world.settle();
    assert_eq!((seq(stored), seq(next)), (1, 2));
}

#[test]
fn a_wait_is_as_long_as_the_server_says_and_the_order_stays() {
    let mut world = calm();
    let first = world.say("a");
    world.pump();
    let (requests, answers) = world.call.as_mut().expect("it wants a call");
    let ticket = requests.pop_front().expect("the first goes alone").ticket;
    let too_fast = v1::Problem { retry_after_ms: Some(5_000), ..problem(Code::TooFast, v1::Retry::Later) };
    answers.push_back(v1::Confirmation { ticket, problem: Some(too_fast), ..v1::Confirmation::default() });
    world.hear();
    let second = world.say("b");
    world.now += Duration::from_millis(4_999);
    assert!(world.pipeline.next_request(world.now).is_none(), "it is too early");
    world.now += Duration::from_millis(100);
    assert_eq!(world.pipeline.wake_at().map(|at| at <= world.now), Some(true));
    world.settle();
    assert_eq!((seq(first), seq(second)), (1, 2));
}

#[test]
fn a_pipeline_that_stops_at_a_failure_stores_nothing_behind_it() {
    let mut world = calm();
    world.pipeline.rules.stops_at_failure = true;
    let before: Vec<_> = ["a", "b"].map(|body| world.say(body)).into();
    let mut bad = world.say("bad one");
    let behind: Vec<_> = ["c", "d"].map(|body| world.say(body)).into();
    world.settle();
    let later = world.say("e");
    world.settle();
    assert_eq!(before.into_iter().map(seq).collect::<Vec<_>>(), [1, 2]);
    assert!(matches!(bad.try_recv().expect("an answer"), Err(PublishError::Refused { .. })));
    for mut aborted in behind.into_iter().chain([later]) {
        assert!(matches!(aborted.try_recv().expect("an answer"), Err(PublishError::Aborted)));
    }
    assert_eq!(world.server.stored, ["a", "b"]);
}

#[test]
fn with_a_stall_timeout_a_message_waits_while_others_are_stored() {
    let mut world = calm();
    world.pipeline.rules.stall_timeout = Some(world.retry_for);
    let first = world.say("a");
    world.settle();
    assert_eq!(seq(first), 1);
    let stored_at = world.now;
    let mut waiting = world.say("b");
    // The message's own time is over, but the last one was stored less than the timeout ago.
    world.pipeline.patient_until = Some(stored_at + 2 * world.retry_for);
    world.now = stored_at + world.retry_for + Duration::from_secs(1);
    world.pipeline.on_time(world.now);
    assert!(waiting.try_recv().is_err(), "it is not given up");
    assert_eq!(world.pipeline.wake_at(), Some(stored_at + 2 * world.retry_for));
    world.now = stored_at + 2 * world.retry_for;
    world.pipeline.on_time(world.now);
    let error = waiting.try_recv().expect("an answer").expect_err("its time is over");
    assert!(matches!(error, PublishError::NotInTime { .. }), "{error:?}");
}

#[test]
fn epochs_are_never_used_again() {
    let identity = Identity::new(7);
    assert_eq!([identity.next(), identity.next()], [(7, 0), (7, 1)]);
    identity.used.store(u64::from(u32::MAX), Ordering::Relaxed);
    assert_eq!(identity.next(), (7, u32::MAX));
    let (id, epoch) = identity.next();
    assert!(id != 7 && epoch == 0);
}
