//! Three NATS servers with JetStream, as far as the engine uses them: streams with a leader and two more replicas, the
//! calls of the API as letters and JSON, and the network between them and the nodes.
//!
//! The leader checks what a message expects against all messages that it has proposed, and acknowledges a message when
//! it is committed. A message that was acknowledged is never lost. Everything else happens: a letter or an answer is
//! late or lost, an answer comes twice or after one that was sent later, a new leader drops messages that were proposed
//! and not committed, or commits them without a word, or stores one without a look at its expectation; a replica that
//! is behind answers a read; and a node is left on the side of a leader that has lost its majority, which goes on
//! answering questions, from what it knew.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use forebay_core::types::Timestamp;
use forebay_storage::engine::BoxFuture;
use forebay_storage::jetstream::wire::{
    About, EXPECTED_LAST, EXPECTED_LAST_OF_SUBJECT, EXPECTED_STREAM, Letter, Letters, SEQUENCE, STAMP, Wire,
};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::world::BEGINS;
use crate::dice::Dice;
use crate::tale::tell;

/// A request waits for its answer as long as the client of NATS does.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
const REPLICAS: usize = 3;
pub(super) const NODES: usize = 2;

/// The present, by the time of the runtime, which the history moves.
pub(super) fn moment() -> Instant {
    Instant::now()
}

/// How letters fare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Weather {
    /// A letter takes up to so much.
    pub(super) latency: Duration,
    /// One in so many letters takes up to a second and a half.
    pub(super) late: u64,
    /// One in so many letters and answers is lost, and one in so many answers comes twice.
    pub(super) lost: u64,
    /// A replica is behind by up to so much.
    pub(super) lag: Duration,
}

/// Everything that happened, to tell whether histories have any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) stored: u64,
    /// Stored by a former owner behind the claim of its successor, or twice.
    pub(super) void: u64,
    pub(super) refused: u64,
    pub(super) lost: u64,
    pub(super) dropped: u64,
    pub(super) unchecked: u64,
    pub(super) elections: u64,
    pub(super) purges: u64,
    pub(super) chunks: u64,
}

pub(super) struct Servers {
    /// Held for the length of one event, during which nothing waits.
    state: Mutex<State>,
    /// There may be something to do earlier than it was.
    bell: Notify,
}

struct State {
    dice: Dice,
    began: Instant,
    weather: Weather,
    streams: BTreeMap<String, Stream>,
    leader: Option<usize>,
    /// By how much the clock of each server is wrong, in microseconds.
    clocks: [i64; REPLICAS],
    /// So many messages are stored without a look at their expectation.
    unchecked: u64,
    /// Votes are over.
    election: Option<Instant>,
    /// A node that talks to a former leader, which answers from what it knew then.
    left_behind: Option<LeftBehind>,
    events: BTreeMap<(Instant, u64), Event>,
    next: u64,
    links: [LinkState; NODES],
    listeners: BTreeMap<(usize, String), mpsc::UnboundedSender<Letter>>,
    /// The epoch of the last claim that was valid.
    epoch: u32,
    counts: Counts,
}

struct LeftBehind {
    node: usize,
    ends: BTreeMap<String, u64>,
}

#[derive(Default)]
struct LinkState {
    /// Nothing comes through.
    is_cut: bool,
    /// The process stands still, so that nothing leaves it.
    is_paused: bool,
    /// Letters that wait for the connection.
    kept: Vec<Letter>,
    /// Letters of a connection stay in order.
    last_arrival: Option<Instant>,
}

enum Event {
    Arrives(usize, Letter),
    Answers(usize, Vec<Letter>),
    Commits(String),
}

struct Proposal {
    from: usize,
    subject: String,
    reply: Option<String>,
    stamp: i64,
    bytes: Bytes,
}

struct Message {
    sequence: u64,
    subject: String,
    stamp: i64,
    bytes: Bytes,
    /// From then on each replica has it.
    replicated: [Instant; REPLICAS],
    /// It was let go, and from then on each replica has done so. The leader has at once.
    gone: Option<[Instant; REPLICAS]>,
}

#[derive(Default)]
struct Stream {
    config: Value,
    messages: VecDeque<Message>,
    last: u64,
    proposed: VecDeque<Proposal>,
    last_commit: Option<Instant>,
}

impl Stream {
    fn first(&self) -> u64 {
        self.kept().next().map_or(self.last + 1, |message| message.sequence)
    }

    /// As the leader has them.
    fn kept(&self) -> impl DoubleEndedIterator<Item = &Message> {
        self.messages.iter().filter(|message| message.gone.is_none())
    }

    fn takes(&self, subject: &str) -> bool {
        self.config["subjects"][0].as_str().is_some_and(|filter| matches(filter, subject))
    }

    fn last_of(&self, subject: &str) -> u64 {
        let last = self.kept().rev().find(|message| message.subject == subject);
        last.map_or(0, |message| message.sequence)
    }
}

/// Whether a subject passes a filter, which may end with `>`.
fn matches(filter: &str, subject: &str) -> bool {
    match filter.strip_suffix('>') {
        Some(prefix) => subject.starts_with(prefix),
        None => filter == subject,
    }
}

impl Servers {
    pub(super) fn new(dice: Dice, weather: Weather, clocks: [i64; REPLICAS]) -> Arc<Servers> {
        let state = State {
            dice,
            began: moment(),
            weather,
            streams: BTreeMap::new(),
            leader: Some(0),
            clocks,
            unchecked: 0,
            election: None,
            left_behind: None,
            events: BTreeMap::new(),
            next: 0,
            links: Default::default(),
            listeners: BTreeMap::new(),
            epoch: 0,
            counts: Counts::default(),
        };
        Arc::new(Servers { state: Mutex::new(state), bell: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> Counts {
        self.state().counts
    }

    /// Does all work that is due, for ever.
    pub(super) async fn work(self: Arc<Servers>) {
        loop {
            let next = self.state().next_due();
            let rings = self.bell.notified();
            match next {
                Some(at) if at <= moment() => self.state().do_next(),
                Some(at) => drop(tokio::time::timeout_at(at, rings).await),
                None => rings.await,
            }
        }
    }

    pub(super) fn set_weather(&self, weather: Weather) {
        self.state().weather = weather;
    }

    /// The connection of a node is cut. Letters on their way may arrive or not.
    pub(super) fn cut(&self, node: usize) {
        let mut state = self.state();
        state.links[node].is_cut = true;
        let on_their_way: Vec<_> = state
            .events
            .iter()
            .filter(|(_, event)| match event {
                Event::Arrives(of, _) | Event::Answers(of, _) => *of == node,
                Event::Commits(_) => false,
            })
            .map(|(at, _)| *at)
            .collect();
        for at in on_their_way {
            if state.dice.chance(1, 2) {
                state.events.remove(&at);
                state.counts.lost += 1;
            }
        }
    }

    /// The connection is there again. Most of the letters that waited for it are sent.
    pub(super) fn mend(&self, node: usize) {
        let mut state = self.state();
        state.links[node].is_cut = false;
        state.release(node);
        drop(state);
        self.bell.notify_one();
    }

    pub(super) fn pause(&self, node: usize, is_paused: bool) {
        let mut state = self.state();
        state.links[node].is_paused = is_paused;
        state.release(node);
        drop(state);
        self.bell.notify_one();
    }

    /// The process has died. Letters that have left it stay on their way.
    pub(super) fn kill(&self, node: usize) {
        let mut state = self.state();
        state.links[node].kept.clear();
        state.links[node].is_paused = false;
        state.listeners.retain(|(of, _), _| *of != node);
    }

    /// The leader is gone, and there is another one after a while.
    pub(super) fn elect(&self, takes: Duration, left_behind: Option<usize>) {
        let mut state = self.state();
        state.depose(left_behind);
        state.election = Some(moment() + takes);
        drop(state);
        self.bell.notify_one();
    }

    /// The network between the servers is whole again.
    pub(super) fn rejoin(&self) {
        self.state().left_behind = None;
    }

    /// A node that talks to a former leader connects to another server.
    fn find_leader(&self, node: usize) {
        let mut state = self.state();
        if state.is_left_behind(node) {
            state.left_behind = None;
        }
    }

    fn hand_over(&self, node: usize, letter: Letter) {
        let mut state = self.state();
        let link = &mut state.links[node];
        if link.is_cut || link.is_paused {
            link.kept.push(letter);
        } else {
            state.post(node, letter);
        }
        drop(state);
        self.bell.notify_one();
    }

    fn listen(&self, node: usize, subject: &str) -> mpsc::UnboundedReceiver<Letter> {
        let (sender, heard) = mpsc::unbounded_channel();
        let mut state = self.state();
        state.listeners.retain(|_, sender| !sender.is_closed());
        state.listeners.insert((node, subject.to_owned()), sender);
        heard
    }

    fn inbox(&self, node: usize) -> String {
        let mut state = self.state();
        state.next += 1;
        format!("_INBOX.{node}-{}", state.next)
    }
}

impl State {
    fn next_due(&self) -> Option<Instant> {
        let event = self.events.keys().next().map(|(at, _)| *at);
        [event, self.election].into_iter().flatten().min()
    }

    fn do_next(&mut self) {
        let now = moment();
        if self.election.is_some_and(|at| at <= now) {
            self.election = None;
            self.leader = Some(self.dice.roll(REPLICAS as u64) as usize);
            if self.dice.chance(1, 2) {
                self.unchecked = 1 + self.dice.roll(3);
            }
            tell(|| format!("server {:?} leads", self.leader));
            return;
        }
        let Some((_, event)) = self.events.pop_first() else { return };
        match event {
            Event::Arrives(node, letter) => self.on_letter(node, letter),
            Event::Answers(node, letters) => self.on_answers(node, letters),
            Event::Commits(stream) => self.commit(&stream, true),
        }
    }

    fn at(&mut self, at: Instant, event: Event) {
        self.next += 1;
        self.events.insert((at, self.next), event);
    }

    fn latency(&mut self) -> Duration {
        let Weather { latency, late, .. } = self.weather;
        let most = if self.dice.chance(1, late) { 1_500_000 } else { latency.as_micros() as u64 };
        Duration::from_micros(100 + self.dice.roll(most.max(1)))
    }

    fn is_lost(&mut self) -> bool {
        let is_lost = self.dice.chance(1, self.weather.lost);
        self.counts.lost += u64::from(is_lost);
        is_lost
    }

    /// A letter leaves a node.
    fn post(&mut self, node: usize, letter: Letter) {
        if self.is_lost() {
            return;
        }
        let at = moment() + self.latency();
        let last = self.links[node].last_arrival.get_or_insert(at);
        *last = at.max(*last);
        let at = *last;
        self.at(at, Event::Arrives(node, letter));
    }

    fn release(&mut self, node: usize) {
        let link = &mut self.links[node];
        if link.is_cut || link.is_paused {
            return;
        }
        for letter in std::mem::take(&mut link.kept) {
            self.post(node, letter);
        }
    }

    fn answer(&mut self, node: usize, letters: Vec<Letter>) {
        if self.is_lost() {
            return;
        }
        let at = moment() + self.latency();
        if self.dice.chance(1, self.weather.lost) {
            let again = at + self.latency();
            self.at(again, Event::Answers(node, letters.clone()));
        }
        self.at(at, Event::Answers(node, letters));
    }

    fn on_answers(&mut self, node: usize, letters: Vec<Letter>) {
        if self.links[node].is_cut {
            self.counts.lost += 1;
            return;
        }
        for letter in letters {
            let listener = self.listeners.get(&(node, letter.subject.clone())).or_else(|| {
                // Answers to a keeper end with two numbers.
                let inbox = letter.subject.rsplitn(3, '.').nth(2)?;
                self.listeners.get(&(node, format!("{inbox}.*.*")))
            });
            if let Some(sender) = listener {
                let _ = sender.send(letter);
            }
        }
    }

    fn is_left_behind(&self, node: usize) -> bool {
        self.left_behind.as_ref().is_some_and(|left| left.node == node)
    }

    fn on_letter(&mut self, node: usize, letter: Letter) {
        let Letter { subject, reply, payload, .. } = &letter;
        let Some(call) = subject.strip_prefix("$JS.API.") else {
            let stream = self.streams.iter().find(|(_, stream)| stream.takes(subject));
            if let Some(name) = stream.map(|(name, _)| name.clone()) {
                self.on_publish(node, &name, letter);
            }
            return;
        };
        let Some(reply) = reply.clone() else { return };
        let asked: Value = serde_json::from_slice(payload).unwrap_or(Value::Null);
        if let Some(stream) = call.strip_prefix("DIRECT.GET.") {
            return self.on_get(node, stream, &asked, &reply);
        }
        let (call, stream) = call.rsplit_once('.').unwrap_or((call, ""));
        let answer = self.on_call(node, call, stream, asked);
        if let Some(answer) = answer {
            self.answer(node, vec![Letter::new(reply, answer.to_string())]);
        }
    }

    /// A call of the API, which the leader answers. `None`: no server does.
    fn on_call(&mut self, node: usize, call: &str, stream: &str, asked: Value) -> Option<Value> {
        let refusal = |code: u64, err_code: u64, text: &str| {
            let error = json!({ "code": code, "err_code": err_code, "description": text });
            json!({ "error": error })
        };
        let is_left_behind = self.is_left_behind(node);
        if !is_left_behind && self.leader.is_none() {
            return self.dice.chance(1, 2).then(|| refusal(503, 10_008, "no leader"));
        }
        let known = self.left_behind.as_ref().filter(|left| left.node == node);
        let known = known.and_then(|left| left.ends.get(stream)).copied();
        match call {
            "STREAM.CREATE" if self.streams.contains_key(stream) => {
                Some(refusal(400, 10_058, "the name is in use"))
            }
            "STREAM.CREATE" => {
                self.streams.insert(stream.to_owned(), Stream { config: asked.clone(), ..Stream::default() });
                Some(json!({ "config": asked }))
            }
            "STREAM.INFO" => {
                let Some(found) = self.streams.get(stream) else {
                    return Some(refusal(404, 10_059, "stream not found"));
                };
                let last = if is_left_behind { known.unwrap_or_default() } else { found.last };
                let mut subjects = serde_json::Map::new();
                if let Some(filter) = asked["subjects_filter"].as_str() {
                    for message in found.kept().filter(|message| matches(filter, &message.subject)) {
                        subjects.insert(message.subject.clone(), json!(1));
                    }
                }
                Some(json!({
                    "config": found.config,
                    "state": { "first_seq": found.first(), "last_seq": last, "subjects": subjects },
                }))
            }
            "STREAM.PURGE" if !is_left_behind => {
                self.counts.purges += 1;
                let found = self.streams.get_mut(stream)?;
                let (seq, filter) = (asked["seq"].as_u64(), asked["filter"].as_str());
                let now = moment();
                found
                    .messages
                    .retain(|message| !message.gone.is_some_and(|gone| gone.iter().all(|at| *at <= now)));
                // A replica lets go of messages in its turn, when it has all that was stored before.
                let turn = found
                    .messages
                    .back()
                    .map_or([now; REPLICAS], |last| last.replicated.map(|at| at.max(now)));
                for message in &mut found.messages {
                    let is_old = seq.is_none_or(|seq| message.sequence < seq);
                    let is_meant = filter.is_none_or(|filter| matches(filter, &message.subject));
                    if is_old && is_meant {
                        message.gone.get_or_insert(turn);
                    }
                }
                tell(|| format!("node {node} purges {stream}: {asked}"));
                Some(json!({ "success": true }))
            }
            _ => None,
        }
    }

    fn on_get(&mut self, node: usize, stream: &str, asked: &Value, reply: &str) {
        let replica = self.dice.roll(REPLICAS as u64) as usize;
        let end = match &self.left_behind {
            Some(left) if left.node == node => left.ends.get(stream).copied().unwrap_or_default(),
            _ => u64::MAX,
        };
        let is_leader = self.leader == Some(replica);
        let now = moment();
        let status = |status: u16| Letter { status: Some(status), ..Letter::new(reply, "") };
        let Some(found) = self.streams.get(stream) else { return };
        let is_there =
            |message: &&Message| message.sequence <= end && (is_leader || message.replicated[replica] <= now);
        let is_kept = |message: &&Message| match message.gone {
            Some(gone) => !is_leader && gone[replica] > now,
            None => true,
        };
        let letter = |message: &Message| Letter {
            headers: vec![(SEQUENCE, message.sequence.to_string()), (STAMP, stamp_text(message.stamp))],
            ..Letter::new(reply, message.bytes.clone())
        };
        let mut letters: Vec<Letter> = if let Some(subject) = asked["last_by_subj"].as_str() {
            let all = found.messages.iter().rev().filter(is_there).filter(is_kept);
            all.filter(|message| message.subject == subject).take(1).map(letter).collect()
        } else {
            let from = asked["seq"].as_u64().unwrap_or(1);
            let filter = asked["next_by_subj"].as_str().unwrap_or(">");
            let most = asked["batch"].as_u64().unwrap_or(1) as usize;
            let first = found.messages.partition_point(|message| message.sequence < from);
            // Replicas have messages in order.
            let all = found.messages.range(first..).take_while(is_there).filter(is_kept);
            let mut found: Vec<Letter> =
                all.filter(|message| matches(filter, &message.subject)).take(most).map(letter).collect();
            if !found.is_empty() {
                found.push(status(204));
            }
            found
        };
        if letters.is_empty() {
            letters.push(status(404));
        }
        self.answer(node, letters);
    }

    fn on_publish(&mut self, node: usize, name: &str, letter: Letter) {
        let Letter { reply, payload, .. } = &letter;
        if self.is_left_behind(node) {
            // Proposed by a leader without a majority, and never committed.
            self.counts.dropped += 1;
            return;
        }
        let Some(leader) = self.leader else {
            self.counts.dropped += 1;
            if let Some(reply) = reply.clone().filter(|_| self.dice.chance(1, 2)) {
                let letter = Letter { status: Some(503), ..Letter::new(reply, "") };
                self.answer(node, vec![letter]);
            }
            return;
        };
        let is_log = name.ends_with("_0");
        let found = self.streams.get(name).expect("it was found");
        let number = |header: &str| letter.header(header).and_then(|value| value.parse::<u64>().ok());
        let is_other = letter.header(EXPECTED_STREAM).is_some_and(|stream| stream != name);
        let end = found.last + found.proposed.len() as u64;
        let is_wrong = number(EXPECTED_LAST).is_some_and(|expected| expected != end)
            || number(EXPECTED_LAST_OF_SUBJECT).is_some_and(|expected| {
                let is_proposed = found.proposed.iter().any(|proposal| proposal.subject == letter.subject);
                is_proposed || expected != found.last_of(&letter.subject)
            });
        let is_unchecked = is_wrong && is_log && self.unchecked > 0;
        if is_log {
            self.unchecked = self.unchecked.saturating_sub(1);
        }
        self.counts.unchecked += u64::from(is_unchecked);
        if is_other || (is_wrong && !is_unchecked) {
            self.counts.refused += 1;
            tell(|| format!("a message of node {node} is refused: {} {end}", describe(&letter)));
            if let Some(reply) = reply.clone() {
                let text = json!({ "error": { "code": 400, "err_code": 10_071,
                    "description": format!("wrong last sequence: {end}") } });
                self.answer(node, vec![Letter::new(reply, text.to_string())]);
            }
            return;
        }
        let stamp = self.now().0 as i64 + self.clocks[leader];
        let (reply, bytes, subject) = (reply.clone(), payload.clone(), letter.subject.clone());
        let takes = self.latency();
        let found = self.streams.get_mut(name).expect("it was found");
        found.proposed.push_back(Proposal { from: node, subject, reply, stamp, bytes });
        let at = found.last_commit.map_or(moment(), |last| last.max(moment())) + takes;
        found.last_commit = Some(at);
        self.at(at, Event::Commits(name.to_owned()));
    }

    fn now(&self) -> Timestamp {
        BEGINS + self.began.elapsed()
    }

    /// The oldest proposal is committed.
    fn commit(&mut self, name: &str, is_answered: bool) {
        let now = moment();
        let lag = self.weather.lag.as_micros() as u64 + 1;
        let found = self.streams.get_mut(name).expect("a stream stays");
        let before = found.messages.back().map_or([now; REPLICAS], |message| message.replicated);
        let replicated = before.map(|before| before.max(now + Duration::from_micros(self.dice.roll(lag))));
        // A new leader may have dropped it.
        let Some(Proposal { from, subject, reply, stamp, bytes }) = found.proposed.pop_front() else {
            return;
        };
        found.last += 1;
        let sequence = found.last;
        self.counts.stored += 1;
        if name.ends_with("_0") {
            let epoch =
                bytes.get(8..12).and_then(|epoch| epoch.try_into().ok()).map_or(0, u32::from_le_bytes);
            let is_claim = subject.ends_with(".own");
            if is_claim && epoch == self.epoch + 1 {
                self.epoch = epoch;
            } else if is_claim || epoch != self.epoch {
                self.counts.void += 1;
            }
            tell(|| format!("{sequence}: {subject} of node {from}, epoch {epoch}"));
        } else {
            self.counts.chunks += 1;
        }
        found.messages.push_back(Message { sequence, subject, stamp, bytes, replicated, gone: None });
        if let Some(reply) = reply.filter(|_| is_answered) {
            let text = format!("{{\"stream\":\"{name}\",\"seq\":{sequence}}}");
            self.answer(from, vec![Letter::new(reply, text)]);
        }
    }

    /// The leader is gone. Of the messages that it proposed, the first few survive, with or without an answer.
    fn depose(&mut self, left_behind: Option<usize>) {
        self.counts.elections += 1;
        self.leader = None;
        let names: Vec<String> = self.streams.keys().cloned().collect();
        let mut ends = BTreeMap::new();
        for name in names {
            // As the former leader knew it.
            ends.insert(name.clone(), self.streams[&name].last);
            let proposed = self.streams[&name].proposed.len() as u64;
            let kept = self.dice.roll(proposed + 1);
            let is_answered = self.dice.chance(1, 2);
            for _ in 0..kept {
                self.commit(&name, is_answered);
            }
            self.counts.dropped += proposed - kept;
            self.streams.get_mut(&name).expect("it is there").proposed.clear();
        }
        self.left_behind = left_behind.map(|node| LeftBehind { node, ends });
        self.events.retain(|_, event| !matches!(event, Event::Commits(_)));
    }
}

fn describe(letter: &Letter) -> String {
    let expected = letter.headers.iter().map(|(name, value)| format!("{name}={value}"));
    format!("{} {}", letter.subject, expected.collect::<Vec<_>>().join(" "))
}

/// A time as JetStream writes it.
fn stamp_text(micros: i64) -> String {
    let (seconds, micros) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since the first of March of the year 0, so that the day that some years have is their last.
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    let year = year + era * 400;
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// The connection of one node.
pub(super) struct SimWire {
    pub(super) servers: Arc<Servers>,
    pub(super) node: usize,
}

impl Wire for SimWire {
    fn send(&self, letter: Letter) -> BoxFuture<'_, Result<(), String>> {
        self.servers.hand_over(self.node, letter);
        Box::pin(async { Ok(()) })
    }

    fn request(&self, letter: Letter) -> BoxFuture<'_, Result<Letter, String>> {
        Box::pin(async move {
            let inbox = self.inbox();
            let mut heard = self.servers.listen(self.node, &inbox);
            self.servers.hand_over(self.node, Letter { reply: Some(inbox), ..letter });
            match tokio::time::timeout(ANSWERS_WITHIN, heard.recv()).await {
                Ok(Some(Letter { status: Some(503), .. })) => Err("no responders".to_owned()),
                Ok(Some(answer)) => Ok(answer),
                _ => Err("a request was not answered".to_owned()),
            }
        })
    }

    fn listen(&self, subject: String) -> BoxFuture<'_, Result<Box<dyn Letters>, String>> {
        let heard = self.servers.listen(self.node, &subject);
        Box::pin(async move { Ok(Box::new(Heard(heard)) as Box<dyn Letters>) })
    }

    fn inbox(&self) -> String {
        self.servers.inbox(self.node)
    }

    fn flush(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn change_server(&self) -> BoxFuture<'_, ()> {
        self.servers.find_leader(self.node);
        Box::pin(async {})
    }

    fn about(&self) -> About {
        About {
            name: "n1".to_owned(),
            version: "2.15.1".to_owned(),
            has_jetstream: true,
            payload_max: 1 << 20,
        }
    }
}

struct Heard(mpsc::UnboundedReceiver<Letter>);

impl Letters for Heard {
    fn next(&mut self) -> BoxFuture<'_, Option<Letter>> {
        Box::pin(self.0.recv())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_written_as_jetstream_does() {
        assert_eq!(stamp_text(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(stamp_text(951_825_600_000_000), "2000-02-29T12:00:00.000000Z");
        assert_eq!(stamp_text(1_794_849_120_123_456), "2026-11-16T17:12:00.123456Z");
    }
}
