//! Stories of a group: text in, text out. Adding a case is adding a paragraph.
//!
//! | step | means |
//! | --- | --- |
//! | `publish 7` | seven messages are published, and durable at once |
//! | `publish a b .` | messages with the keys a and b, and one with none |
//! | `publish a!9 .+5s .-10s .@300` | with a priority, a delay, a time to live, a size (100 bytes otherwise) |
//! | `publish id:x id:y` | messages with ids; groups are not told of those that are there already |
//! | `publish 3 unsynced`, `sync` | they are durable only then |
//! | `publish 2 by 7.1.0`, `publish 2 after 5` | as producer 7's number 0 in epoch 1; only if the stream ends at 5 |
//! | `A joins 2`, `A joins 2 of 300B` | A connects with two slots, or with bytes to go with them |
//! | `A joins 2 with rank 5 lease 9s` | A is served before those of a lower rank, on leases of its own length |
//! | `P polls 3`, `P polls 3 for 5s` | P asks once for up to three messages, on leases of its own length |
//! | `A credit 4` | A now has four slots |
//! | `A acks 1-3`, `A nacks 2`, `A nacks 2 in 5s` | A answers with the last leases it got for these |
//! | `A parks 1`, `A skips 1`, `A returns 1`, `A moves 1`, `A extends 1 by 5s`, `A acks late 1` | the other answers |
//! | `A extends 1 by 5s within 9s` | only if the lease lasts no longer than nine seconds altogether |
//! | `A parks 1 because bad` | with a reason |
//! | `A lost`, `A goodbye` | A's connection breaks, or A leaves |
//! | `a joins 2` | small letters are consumers of a second group, with the settings of the first |
//! | `+30s`, `+100ms` | time passes, and then there is a turn |
//! | `wait 30s` | time passes, with a turn whenever the shard asks for one, and none at the end |
//! | `pause`, `resume`, `reset 3`, `purge`, `replay all`, `discard bad`, `cancel 1` | what operators do |
//! | `purge parked`, `purge ids` | parked messages are dropped too, or the known ids |
//! | `source`, `source delete` | messages came from another stream; that one is there no more |
//! | `move all to elsewhere at 10`, `move all to origin` | what waits goes there, or back to where it came from |
//! | `replay all limit 3 at 10` | no more than three, ten a second |
//! | `crash`, `crash after image` | the shard is rebuilt from its log, or from an image of now and nothing else |
//! | `stop` | entries that are kept back are written, and then as `crash` |
//! | `start end`, `start 3`, `start at 5s` | where the group begins; it is then created by its first consumer |
//! | `moves wait`, `moves go` | messages to be moved are not brought over until then, or until a crash |
//! | `elsewhere 1`, `elsewhere aged:5s` | what messages are moved to is there: it holds only one, or keeps for 5 s |
//! | `elsewhere purge`, `elsewhere delete` | it is emptied, or is there no more |
//! | `limit streams 1`, `limit scan 500` | limits of the server: streams, bytes for messages that were read past |
//! | `unreadable 2-3`, `unreadable` | their keys cannot be read back, or all keys can again |
//! | `release` | messages that are not wanted are released |
//! | `say first` | from here on deliveries say when their messages were first handed out |
//! | `say again` | from here on deliveries say whether their messages were handed out before |
//! | `A goodbye & +30s` | both in one turn |
//! | `figures`, `status`, `jobs`, `parked`, `members`, `moving` | what the group says about itself |
//! | `ages` | how many messages are to do, how many of them are delayed, and how old the oldest of the others is |
//! | `life 3` | what became of a message |
//! | `figures of others`, `stream` | what the second group says, and the stream |
//! | `set …` | settings, before anything else or while it goes on |

mod ages;
mod changes;
mod checkpoints;
mod damaged;
mod ends;
mod found;
mod keys;
mod leases;
mod lives;
mod locks;
mod members;
mod moves;
mod operators;
mod parked;
mod sharing;
mod skeleton;
mod stories;
mod streams;
mod together;
mod verbs;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use expect_test::Expect;
pub(super) use expect_test::expect;

use super::*;
use crate::entry::{Entry, MessageMeta, MoveReason, MoveTrail, Origin, Selection, Work, entries};
use crate::image::Taking;
use crate::pace::Rate;
use crate::producers::ProducerStamp;
use crate::settings::{
    Acks, Backoff, Checkpoint, Fairness, KeyLock, MoveTerms, OnEnd, OnExhausted, OnFull, OnParkedKey,
    Retention, Retries, Strategy, StreamSettings,
};
use crate::shard::{KeyRun, Moved, PublishOptions, Purge, Shard, Start, StreamFigures};
use crate::types::{IdHash, KeyHash, Limits, PartKey, StreamName};

#[track_caller]
fn check(script: &str, expected: Expect) {
    expected.assert_eq(&trace(script));
}

fn trace(script: &str) -> String {
    let mut stage = Stage::new();
    for turn in script.split(" / ") {
        let steps: Vec<&str> = turn.trim().split(" & ").collect();
        for (n, step) in steps.iter().enumerate() {
            stage.turn_goes_on = n + 1 < steps.len();
            stage.play(step);
        }
    }
    stage.trace
}

/// As `check`, for stories with a `crash`: with an image of then they are the same.
#[track_caller]
fn check_both_ways(script: &str, expected: Expect) {
    let trace = trace(script);
    let after_image = self::trace(&script.replace("/ crash ", "/ crash after image "));
    assert_eq!(trace, after_image, "an image is as good as the log");
    expected.assert_eq(&trace);
}

struct Stage {
    shard: Shard,
    limits: Limits,
    now: Timestamp,
    stream: StreamId,
    group: Option<GroupId>,
    /// The second group.
    others: Option<GroupId>,
    start: Option<Start>,
    settings: GroupSettings,
    stream_settings: StreamSettings,
    /// Keys of the messages, by position.
    keys: Vec<KeyHash>,
    /// Messages whose keys cannot be read.
    unreadable: Vec<SeqRange>,
    /// Every frame so far, as its entries.
    log: Vec<Vec<u8>>,
    /// The parts of the last image.
    image: BTreeMap<PartKey, Vec<u8>>,
    /// The leases each consumer last got, by message.
    leases: BTreeMap<(char, Seq), Lease>,
    trace: String,
    /// More is to come before the turn ends.
    turn_goes_on: bool,
    moves_wait: bool,
    says_first: bool,
    says_again: bool,
    /// The stream that messages came from.
    source: Option<StreamId>,
    /// Moves that the group has asked for and that are not brought over.
    moves: Vec<MoveOut>,
    /// Messages that are not durable yet, with their keys.
    unsynced: Vec<(SeqRange, Vec<KeyHash>)>,
}

impl Stage {
    fn new() -> Stage {
        let mut shard = Shard::new(Limits::DEFAULT);
        shard.open(Timestamp::ZERO, Epoch(1));
        let name = StreamName::parse("jobs").expect("a good name");
        let settings = StreamSettings::default();
        let stream = shard.create_stream(Timestamp::ZERO, &name, &settings).expect("a new stream");
        let backoff = Backoff { jitter: 0.0, ..Backoff::default() };
        Stage {
            shard,
            limits: Limits::DEFAULT,
            now: Timestamp::ZERO,
            stream,
            group: None,
            others: None,
            start: None,
            settings: GroupSettings { backoff, ..GroupSettings::default() },
            stream_settings: settings,
            keys: Vec::new(),
            unreadable: Vec::new(),
            log: Vec::new(),
            image: BTreeMap::new(),
            leases: BTreeMap::new(),
            trace: String::new(),
            turn_goes_on: false,
            moves_wait: false,
            says_first: false,
            says_again: false,
            source: None,
            moves: Vec::new(),
            unsynced: Vec::new(),
        }
    }

    fn say(&mut self, line: &str) {
        let at = format!("{}s", self.now.0 as f64 / 1e6);
        writeln!(self.trace, "{at:<5} {line}").expect("a string takes any text");
    }

    /// The group is created by the first step that needs it, with the settings the script began with.
    fn group(&mut self) -> GroupId {
        if self.group.is_none() {
            self.group = Some(self.create_group("workers"));
        }
        self.group.expect("it is there now")
    }

    fn others(&mut self) -> GroupId {
        if self.others.is_none() {
            self.others = Some(self.create_group("others"));
        }
        self.others.expect("it is there now")
    }

    fn create_group(&mut self, name: &str) -> GroupId {
        let name = GroupName::parse(name).expect("a good name");
        let start = self.start.unwrap_or(Start::Beginning);
        let created = self.shard.create_group(self.now, self.stream, &name, &self.settings, start);
        let mut effects = Effects::default();
        self.shard.finish_turn(self.now, &mut effects);
        self.shard.check();
        self.log.push(std::mem::take(self.shard.entries()));
        created.expect("a new group")
    }

    fn play(&mut self, step: &str) {
        let words: Vec<&str> = step.split(' ').collect();
        match words[..] {
            ["retries", n] => self.settings.max_retries = Retries::AtMost(number(n) as u32),
            ["buffer", n] => self.settings.buffer = number(n) as u32,
            ["in", "flight", n] => self.settings.max_in_flight = number(n) as u32,
            ["set", ref what @ ..] => self.set(what),
            ["publish", ref what @ ..] => self.publish(what),
            ["sync"] => {
                for (stored, keys) in std::mem::take(&mut self.unsynced) {
                    self.shard.arrived(self.stream, stored, KeyRun::Each(&keys));
                }
                self.finish_turn();
            }
            ["crash"] => self.crash(false),
            ["crash", "after", "image"] => self.crash(true),
            ["stop"] => {
                self.shard.check_point_all(self.now);
                self.say_entries();
                self.crash(false);
            }
            ["start", "end"] => self.start = Some(Start::End),
            ["start", "at", time] => self.start = Some(Start::Time(Timestamp::ZERO + duration(time))),
            ["start", seq] => self.start = Some(Start::Seq(Seq(number(seq)))),
            ["unreadable"] => self.unreadable.clear(),
            ["unreadable", what] => self.unreadable.push(range(what)),
            ["limit", what, n] => self.limit(what, number(n)),
            ["elsewhere", what] => self.elsewhere(what),
            ["source"] => {
                let name = StreamName::parse("source").expect("a good name");
                let source = self.shard.create_stream(self.now, &name, &StreamSettings::default());
                self.source = Some(source.expect("a new stream"));
                self.finish_turn();
            }
            ["source", "delete"] => {
                let source = self.source.expect("there is one");
                self.shard.delete_stream(source, true).expect("the stream exists");
                self.finish_turn();
            }
            ["moving"] => {
                let group = self.group();
                let figures = self.shard.figures(self.now, group).expect("the group exists");
                self.say(&format!("moving {}", figures.moving));
            }
            ["moves", how] => {
                self.moves_wait = how == "wait";
                if how == "go" {
                    let moves = std::mem::take(&mut self.moves);
                    moves.iter().for_each(|moved| self.bring_over(moved));
                    self.finish_turn();
                }
            }
            ["say", "first"] => self.says_first = true,
            ["say", "again"] => self.says_again = true,
            ["release"] => {
                self.shard.release();
                self.finish_turn();
            }
            ["wait", time] => self.wait(duration(time)),
            ["figures"] => self.say_figures(),
            ["figures", "of", "others"] => {
                let group = self.others();
                self.say_figures_of(group);
            }
            ["members"] => self.say_members(),
            ["stream"] => self.say_stream(),
            ["status"] => self.say_status(),
            ["ages"] => self.say_ages(),
            ["resting"] => self.say_resting(),
            ["jobs"] => self.say_jobs(),
            ["parked"] => self.say_parked(),
            ["life", seq] => self.say_life(Seq(number(seq))),
            [step] if step.starts_with('+') => {
                self.now = self.now + duration(&step[1..]);
                self.finish_turn();
            }
            [who, ref what @ ..] if who.len() == 1 => self.act(who.chars().next().expect("a name"), what),
            ref what => self.operate(what),
        }
    }

    fn limit(&mut self, what: &str, most: u64) {
        match what {
            "streams" => self.limits.streams_max = most as u32,
            "scan" => self.limits.key_scan_bytes_max = most as usize,
            _ => panic!("no such limit: {what}"),
        }
        self.shard.limits = self.limits.clone();
    }

    fn elsewhere(&mut self, what: &str) {
        let there = self.shard.stream_named(&elsewhere());
        match (what, there) {
            ("purge", Some(there)) => {
                self.shard
                    .purge(self.now, there, Purge { parked: true, ids: false })
                    .expect("the stream exists");
            }
            ("delete", Some(there)) => self.shard.delete_stream(there, true).expect("the stream exists"),
            (limit, None) => {
                let mut settings = StreamSettings::default();
                match limit.strip_prefix("aged:") {
                    Some(age) => settings.limits.max_age = Some(duration(age)),
                    None => settings.limits.max_messages = Some(number(limit)),
                }
                self.shard.create_stream(self.now, &elsewhere(), &settings).expect("a new stream");
            }
            _ => panic!("no such step: elsewhere {what}"),
        }
        self.finish_turn();
    }

    /// Calls the shard whenever it asks for it.
    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..10_000 {
            let Some(at) = self.shard.wake_at().filter(|&at| at <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(at);
            self.finish_turn();
        }
        panic!("the shard does not come to rest");
    }

    fn set(&mut self, what: &[&str]) {
        let before = self.settings.clone();
        let settings = &mut self.settings;
        let stream = &mut self.stream_settings;
        let mut of_stream = false;
        match *what {
            ["strategy", "single"] => settings.strategy = Strategy::Single,
            ["strategy", "pinned"] => settings.strategy = Strategy::Pinned,
            ["strategy", "sole"] => settings.strategy = Strategy::Sole,
            ["strategy", "ordered"] => settings.strategy = Strategy::Ordered,
            ["strategy", "round", "robin"] => settings.strategy = Strategy::RoundRobin,
            ["batch", n] => settings.key_batch = number(n) as u32,
            ["lock", "position"] => settings.key_lock = KeyLock::Position,
            ["lock", "delivery"] => settings.key_lock = KeyLock::Delivery,
            ["hold"] => settings.on_parked_key = OnParkedKey::Hold,
            ["continue"] => settings.on_parked_key = OnParkedKey::Continue,
            ["in", "flight", n] => settings.max_in_flight = number(n) as u32,
            ["buffer", n] => settings.buffer = number(n) as u32,
            ["rate", "none"] => settings.rate = None,
            ["fair"] => settings.fairness = Fairness::Key,
            ["window", n] => settings.window_max = number(n) as u32,
            ["parked", n] => settings.parked_max = number(n) as u32,
            ["parked", "age", age] => settings.parked_max_age = Some(duration(age)),
            ["consumers", n] => settings.max_consumers = number(n) as u32,
            ["retries", n] => settings.max_retries = n.parse().map_or(Retries::Unlimited, Retries::AtMost),
            ["timeout", time] => settings.message_timeout = duration(time),
            ["backoff", least, most] => {
                settings.backoff.min = duration(least);
                settings.backoff.max = duration(most);
            }
            ["exhausted", "skip"] => settings.on_exhausted = OnExhausted::Skip,
            ["exhausted", "move", ref terms @ ..] => {
                settings.on_exhausted = OnExhausted::Move(elsewhere());
                let (create, keep_age) = (!terms.contains(&"existing"), terms.contains(&"aged"));
                settings.move_terms = MoveTerms { create, keep_age };
            }
            ["expired", "move"] => settings.on_expired = OnEnd::Move(elsewhere()),
            ["dropped", "move"] => settings.on_dropped = OnEnd::Move(elsewhere()),
            ["step", time] => settings.priority_age_step = duration(time),
            ["rate", n, burst] => {
                settings.rate = Some(Rate { per_second: number(n) as f64, burst: number(burst) as u32 });
            }
            ["acks", "checkpoint"] => settings.acks = Acks::Checkpoint,
            ["acks", "journal"] => settings.acks = Acks::Journal,
            ["checkpoint", interval, least, most] => {
                settings.checkpoint = Checkpoint {
                    interval: duration(interval),
                    min: number(least) as u32,
                    max: number(most) as u32,
                };
            }
            _ => of_stream = true,
        }
        if let Err(refusal) = settings.check() {
            *settings = before;
            self.say(&format!("refused: {refusal}"));
        } else if of_stream {
            match *what {
                ["limit", n, on_full] => {
                    stream.limits.max_messages = Some(number(n));
                    stream.limits.on_full =
                        if on_full == "drop" { OnFull::DropOldest } else { OnFull::Reject };
                }
                ["bytes", n] => stream.limits.max_bytes = Some(number(n)),
                ["age", age] => stream.limits.max_age = Some(duration(age)),
                ["log", n] => {
                    stream.retention =
                        Retention::Log { max_age: None, max_bytes: None, max_messages: Some(number(n)) };
                }
                ["ingress", n, burst] => {
                    let rate = Rate { per_second: number(n) as f64, burst: number(burst) as u32 };
                    stream.ingress_rate = Some(rate);
                }
                _ => panic!("no such setting: {what:?}"),
            }
            self.shard.change_stream(self.now, self.stream, &self.stream_settings).expect("good settings");
            self.finish_turn();
        } else if let Some(group) = self.group {
            self.shard.change_group(self.now, group, &self.settings).expect("good settings");
            self.finish_turn();
        }
    }

    fn publish(&mut self, what: &[&str]) {
        if self.start.is_none() {
            self.group();
        }
        let mut options = PublishOptions::default();
        let mut is_synced = true;
        let what = match *what {
            [ref what @ .., "unsynced"] => {
                is_synced = false;
                what
            }
            [ref what @ .., "by", stamp] => {
                let numbers: Vec<u64> = stamp.split('.').map(number).collect();
                let (producer, epoch, number) = (numbers[0], numbers[1] as u32, numbers[2]);
                options.stamp = Some(ProducerStamp { producer, epoch, number });
                what
            }
            [ref what @ .., "after", seq] => {
                options.expect_last = Some(Seq(number(seq)));
                what
            }
            ref what => what,
        };
        let messages: Vec<MessageMeta> = match what {
            [count] if count.parse::<u64>().is_ok() => {
                vec![MessageMeta::plain(100); number(count) as usize]
            }
            tokens => tokens.iter().map(|token| self.message(token)).collect(),
        };
        let mut admissions = Vec::new();
        let stored = match self.shard.publish(self.now, self.stream, &messages, options, &mut admissions) {
            Ok(stored) => stored,
            Err(refusal) => {
                self.say(&format!("refused: {refusal}"));
                self.finish_turn();
                return;
            }
        };
        for admission in admissions.iter().filter(|admission| admission.duplicate) {
            self.say(&format!("duplicate of {}", admission.seq));
        }
        let fresh = messages.iter().zip(&admissions).filter(|(_, admission)| !admission.duplicate);
        let keys: Vec<KeyHash> = fresh.map(|(message, _)| message.key.unwrap_or(KeyHash(0))).collect();
        if let Some(stored) = stored {
            self.say_entries_but_published();
            self.keys.extend(&keys);
            if is_synced {
                self.shard.arrived(self.stream, stored, KeyRun::Each(&keys));
            } else {
                self.unsynced.push((stored, keys));
            }
        }
        self.finish_turn();
    }

    /// `key!priority+delay-ttl@size`, all but the first optional, or `id:` and an id.
    fn message(&self, token: &str) -> MessageMeta {
        let (token, size) = token.split_once('@').map_or((token, 100), |(token, size)| (token, number(size)));
        let mut meta = MessageMeta::plain(size as u32);
        if let Some(id) = token.strip_prefix("id:") {
            meta.id = Some(IdHash(id.bytes().fold(1, |hash, byte| hash << 8 | u128::from(byte))));
            return meta;
        }
        let (token, ttl) = token.split_once('-').map_or((token, None), |(token, ttl)| (token, Some(ttl)));
        let (token, delay) =
            token.split_once('+').map_or((token, None), |(token, delay)| (token, Some(delay)));
        let (key, priority) = token.split_once('!').unwrap_or((token, "0"));
        meta.key = (key != ".").then(|| KeyHash(u64::from(key.as_bytes()[0])));
        meta.priority = number(priority) as u8;
        meta.not_before = delay.map(|delay| self.now + duration(delay));
        meta.expires = ttl.map(|ttl| self.now + duration(ttl));
        meta
    }

    /// The group that a consumer belongs to.
    fn group_of(&mut self, who: char) -> GroupId {
        if who.is_lowercase() { self.others() } else { self.group() }
    }

    fn act(&mut self, who: char, what: &[&str]) {
        let group = self.group_of(who);
        let now = self.now;
        let consumer = ConsumerId(who.into());
        let (what, reason) = match what.iter().position(|&word| word == "because") {
            Some(at) => (&what[..at], Some(what[at + 1..].join(" "))),
            None => (what, None),
        };
        let with = |verb| Settlement { verb, reason: reason.clone(), late: false, rest: None };
        let to = elsewhere();
        match *what {
            ["joins", slots, "with", ref rest @ ..] => {
                let after = |word| rest.iter().position(|other| *other == word).map(|at| rest[at + 1]);
                let rank = after("rank").map_or(0, |rank| rank.parse().expect("a rank"));
                let terms = ConsumerTerms { lease: after("lease").map(duration), rank };
                let name = who.to_string();
                let joined = self.shard.join_on(now, group, consumer, &name, Bound::Connection, terms);
                joined.expect("a new member");
                let credit = Credit::slots(number(slots) as u32);
                self.shard.credit(now, group, consumer, credit).expect("a member");
            }
            ["joins", slots, ref rest @ ..] => {
                let name = who.to_string();
                if let Err(refusal) = self.shard.join(now, group, consumer, &name, Bound::Connection) {
                    self.say(&format!("{who}: {refusal}"));
                    return;
                }
                let bytes = rest.get(1).map(|text| number(text.trim_end_matches('B')));
                let credit = Credit::Slots { messages: number(slots) as u32, bytes };
                self.shard.credit(now, group, consumer, credit).expect("a member");
            }
            ["credit", slots] => {
                let credit = Credit::slots(number(slots) as u32);
                self.shard.credit(now, group, consumer, credit).expect("a member");
            }
            ["polls", messages, "within", bytes] => {
                let _ = self.shard.join(now, group, consumer, &who.to_string(), Bound::Clock);
                let bytes = Some(number(bytes.trim_end_matches('B')));
                let credit = Credit::Once { messages: number(messages) as u32, bytes, timeout: None };
                self.shard.credit(now, group, consumer, credit).expect("a member");
            }
            ["polls", messages, ref rest @ ..] => {
                let _ = self.shard.join(now, group, consumer, &who.to_string(), Bound::Clock);
                let timeout = rest.get(1).map(|text| duration(text));
                let credit = Credit::Once { messages: number(messages) as u32, bytes: None, timeout };
                self.shard.credit(now, group, consumer, credit).expect("a member");
            }
            ["acks", seqs] => self.settle(who, seqs, with(Verb::Ack)),
            ["acks", "late", seqs] => {
                self.settle(who, seqs, Settlement { late: true, ..Verb::Ack.into() });
            }
            ["nacks", seqs] => self.settle(who, seqs, with(Verb::Retry { delay: None })),
            ["nacks", seqs, "in", delay] => {
                self.settle(who, seqs, with(Verb::Retry { delay: Some(duration(delay)) }));
            }
            ["parks", seqs] => self.settle(who, seqs, with(Verb::Park)),
            ["returns", seqs] => self.settle(who, seqs, with(Verb::Return { delay: None })),
            ["returns", seqs, "for", delay] => {
                self.settle(who, seqs, with(Verb::Return { delay: Some(duration(delay)) }));
            }
            ["rests", seqs, "for", rest] => {
                let rest = Some(duration(rest));
                self.settle(who, seqs, Settlement { rest, ..Verb::Return { delay: None }.into() });
            }
            ["skips", seqs] => self.settle(who, seqs, with(Verb::Skip)),
            ["moves", seqs] => self.settle(who, seqs, with(Verb::Move(to))),
            ["extends", seqs, "by", by, ref rest @ ..] => {
                let leases = range(seqs).seqs().filter_map(|seq| self.leases.get(&(who, seq)).copied());
                let leases = LeaseRun::join(leases);
                let total_max = rest.get(1).map(|text| duration(text));
                let settlement = Settlement::from(Verb::Extend { by: duration(by), total_max });
                let mut outcomes = Vec::new();
                self.shard.settle(now, group, &leases, &settlement, &mut outcomes);
                let answers: Vec<String> = each_outcome(&outcomes).map(say_outcome).collect();
                self.say(&format!("{who}: {}", answers.join(", ")));
            }
            ["lost"] => self.shard.leave(group, consumer, Departure::Lost),
            ["goodbye"] => self.shard.leave(group, consumer, Departure::Goodbye),
            _ => panic!("no such step: {what:?}"),
        }
        self.finish_turn();
    }

    fn operate(&mut self, what: &[&str]) {
        let group = self.group();
        let now = self.now;
        match *what {
            ["pause"] => self.shard.pause(now, group, true).expect("the group exists"),
            ["resume"] => self.shard.pause(now, group, false).expect("the group exists"),
            ["reset", to, ref parked @ ..] => {
                let to = match to {
                    "beginning" => Start::Beginning,
                    "end" => Start::End,
                    seq => Start::Seq(Seq(number(seq))),
                };
                if let Err(refusal) = self.shard.reset(now, group, to, parked == ["parked"]) {
                    self.say(&format!("refused: {refusal}"));
                }
            }
            ["purge", ref what @ ..] => {
                let purge = Purge { parked: what.contains(&"parked"), ids: what.contains(&"ids") };
                let count = self.shard.purge(now, self.stream, purge).expect("the stream exists");
                self.say(&format!("purged {count}"));
            }
            ["move", "all", "to", to, ref rest @ ..] => {
                let to = (to != "origin").then(elsewhere);
                let rate = rest.get(1).map(|n| Rate { per_second: number(n) as f64, burst: 1 });
                match self.shard.start_job(now, group, Work::Move { to }, Selection::All, None, rate) {
                    Ok((job, matched)) => self.say(&format!("job {} matches {matched}", job.0)),
                    Err(refusal) => self.say(&format!("refused: {refusal}")),
                }
            }
            [work @ ("replay" | "discard" | "rescue"), which, ref rest @ ..] => {
                let work = match work {
                    "replay" => Work::Replay,
                    "discard" => Work::Discard,
                    _ => Work::MoveParked { to: elsewhere() },
                };
                let selection = match which {
                    "all" => Selection::All,
                    seqs if seqs.starts_with(|c: char| c.is_ascii_digit()) => {
                        Selection::Seqs(vec![range(seqs)])
                    }
                    reason => Selection::Reason(reason.into()),
                };
                let value =
                    |name: &str| rest.iter().position(|&word| word == name).map(|at| number(rest[at + 1]));
                let rate = value("at").map(|n| Rate { per_second: n as f64, burst: 1 });
                match self.shard.start_job(now, group, work, selection, value("limit"), rate) {
                    Ok((job, matched)) => self.say(&format!("job {} matches {matched}", job.0)),
                    Err(refusal) => self.say(&format!("refused: {refusal}")),
                }
            }
            ["cancel", job] => {
                let cancelled = self.shard.cancel_job(now, group, JobId(number(job) as u32));
                if let Err(refusal) = cancelled {
                    self.say(&format!("refused: {refusal}"));
                }
            }
            _ => panic!("no such step: {what:?}"),
        }
        self.finish_turn();
    }

    fn settle(&mut self, who: char, seqs: &str, settlement: Settlement) {
        let group = self.group_of(who);
        let answers: Vec<String> = range(seqs)
            .seqs()
            .map(|seq| {
                let Some(&lease) = self.leases.get(&(who, seq)) else {
                    return "has no such lease".to_owned();
                };
                let mut outcomes = Vec::new();
                self.shard.settle(self.now, group, &[LeaseRun::one(lease)], &settlement, &mut outcomes);
                let [(outcome, 1)] = outcomes[..] else { panic!("one lease has one outcome") };
                say_outcome(outcome)
            })
            .collect();
        self.say(&format!("{who}: {}", answers.join(", ")));
    }

    /// Ends the turn, and does what the group asks for.
    fn finish_turn(&mut self) {
        if self.turn_goes_on {
            return;
        }
        let mut effects = Effects::default();
        self.shard.finish_turn(self.now, &mut effects);
        self.shard.check();
        for deliver in &effects.deliveries {
            let who = letter(deliver.consumer);
            let when = if deliver.bound == Bound::Clock { " when durable" } else { "" };
            let first = deliver.first_received.0 as f64 / 1e6;
            let first = if self.says_first { format!(", first at {first}s") } else { String::new() };
            let again = if self.says_again && deliver.redelivered { " again" } else { "" };
            self.say(&format!("deliver {}#{}{again} to {who}{when}{first}", deliver.seqs, deliver.attempt.0));
            for (n, seq) in deliver.seqs.seqs().enumerate() {
                let lease = Lease { epoch: self.shard.epoch(), seq, grant: deliver.grant.plus(n as u64) };
                self.leases.insert((who, seq), lease);
            }
            self.shard.served(deliver.group, deliver.consumer);
        }
        for (_, consumer) in &effects.departed {
            self.say(&format!("{} is a member no longer", letter(*consumer)));
        }
        for (_, seq) in &effects.checkpoints {
            self.say(&format!("checkpoint {seq}"));
        }
        self.say_entries();
        for read in &effects.reads {
            self.say(&format!("read {}", read.seqs));
            self.read(read.group, read.seqs);
        }
        for moved in &effects.moves {
            if self.moves_wait {
                self.say(&format!("asks for {} to go to {}", moved.seq, say_way(moved.to.as_ref())));
                self.moves.push(moved.clone());
            } else {
                self.bring_over(moved);
            }
        }
        if !effects.reads.is_empty() || !effects.moves.is_empty() || self.shard.is_touched() {
            self.finish_turn();
        }
    }

    fn bring_over(&mut self, moved: &MoveOut) {
        let origin = self.source.map(|source| {
            let trail = Some(MoveTrail { home: source, seq: Seq(77), from: source, why: MoveReason::Asked });
            Origin { published: Timestamp::ZERO, receives: 3, trail }
        });
        let meta = MessageMeta { origin, ..MessageMeta::plain(100) };
        let published = self.shard.streams[&self.stream].timeline.at(moved.seq).unwrap_or(self.now);
        let result = self.shard.complete_move(self.now, moved.group, moved.seq, &meta, published);
        match result {
            Ok(Moved { seq, meta, .. }) => {
                let until =
                    meta.expires.map(|at| format!(" until {}s", at.0 as f64 / 1e6)).unwrap_or_default();
                let origin = meta.origin.expect("it was moved");
                let anew = if origin.receives == 0 { " anew" } else { "" };
                let to = say_way(moved.to.as_ref());
                self.say(&format!("move {} to {to} as {seq}{until}{anew}", moved.seq));
            }
            Err(refusal) => self.say(&format!("cannot move {}: {refusal}", moved.seq)),
        }
    }

    /// Leaves out published messages, which every story names itself.
    fn say_entries_but_published(&mut self) {
        let frame = std::mem::take(self.shard.entries());
        for entry in entries(&frame) {
            let entry = entry.expect("what was written can be read");
            if !matches!(entry, Entry::Published { .. }) {
                self.say_entry(&entry);
            }
        }
        self.log.push(frame);
    }

    fn say_entry(&mut self, entry: &Entry) {
        let whose = if entry.group().is_some() && entry.group() == self.others { "others " } else { "" };
        self.say(&format!("append {whose}{}", describe(entry)));
    }

    fn say_entries(&mut self) {
        let frame = std::mem::take(self.shard.entries());
        for entry in entries(&frame) {
            self.say_entry(&entry.expect("what was written can be read"));
        }
        if !frame.is_empty() {
            self.log.push(frame);
        }
    }

    fn read(&mut self, group: GroupId, seqs: SeqRange) {
        let keys = &self.keys[seqs.first.0 as usize - 1..seqs.last.0 as usize];
        let keys = match &self.unreadable[..] {
            [] => KeyRun::Each(keys),
            unreadable => KeyRun::Partly { keys, unreadable },
        };
        self.shard.read_ahead(group, seqs, keys);
    }

    fn crash(&mut self, after_image: bool) {
        let mut shard = Shard::new(self.limits.clone());
        let through = Position(self.log.len() as u64);
        if after_image {
            let before = std::mem::take(&mut self.image);
            let mut left = self.shard.parts();
            while let Some(key) = left.pop() {
                let mut bytes = Vec::new();
                match self.shard.take_part(key, &mut bytes) {
                    Taking::Taken => self.image.insert(key, bytes),
                    // What never held anything was never taken.
                    Taking::Unchanged => {
                        before.get(&key).and_then(|bytes| self.image.insert(key, bytes.clone()))
                    }
                    Taking::Gone => continue,
                };
                left.extend(self.shard.parts_of(key));
            }
            let parts = self.image.iter().map(|(key, bytes)| (*key, through, &bytes[..]));
            shard.load(parts).expect("a good image");
        }
        for (n, frame) in self.log.iter().enumerate() {
            for entry in entries(frame) {
                let entry = entry.expect("what was written can be read");
                shard.apply(Position(n as u64 + 1), &entry).expect("entries fit each other");
            }
        }
        shard.open(self.now, Epoch(self.shard.epoch().0 + 1));
        self.shard = shard;
        self.moves_wait = false;
        self.moves.clear();
        self.finish_turn();
        // These stories do not test the reading of missed messages.
        let last = self.shard.last_seq(self.stream).expect("the stream exists");
        for group in self.group.into_iter().chain(self.others).filter(|_| last > Seq::START) {
            self.read(group, SeqRange::new(Seq(1), last));
        }
        self.finish_turn();
    }

    fn say_figures(&mut self) {
        let group = self.group();
        self.say_figures_of(group);
    }

    fn say_members(&mut self) {
        let group = self.group();
        let members: Vec<ConsumerFigures> = self.shard.consumers(group).collect();
        for member in members {
            let ConsumerFigures { name, in_flight, credit, acked, failed, .. } = member;
            self.say(&format!("{name} holds {in_flight} of {credit}, acked {acked}, failed {failed}"));
        }
    }

    fn say_stream(&mut self) {
        let figures = self.shard.stream_figures(self.now, self.stream).expect("the stream exists");
        let StreamFigures { first, last, messages, bytes, delayed, .. } = figures;
        self.say(&format!("stream {first} to {last}, holds {messages} of {bytes} bytes, delayed {delayed}"));
    }

    fn say_figures_of(&mut self, group: GroupId) {
        let figures = self.shard.figures(self.now, group).expect("the group exists");
        self.say(&format!(
            "floor {}, lag {}, in flight {}, ready {}, waiting {}, parked {}",
            figures.floor, figures.lag, figures.in_flight, figures.ready, figures.waiting, figures.parked
        ));
    }

    fn say_ages(&mut self) {
        let group = self.group();
        let GroupFigures { lag, delayed, oldest_age, .. } =
            self.shard.figures(self.now, group).expect("the group exists");
        let oldest = oldest_age.map_or("none is due".to_owned(), |age| format!("oldest {age:?}"));
        self.say(&format!("lag {lag}, delayed {delayed}, {oldest}"));
    }

    fn say_resting(&mut self) {
        let group = self.group();
        let figures = self.shard.figures(self.now, group).expect("the group exists");
        let rest =
            figures.resting_for.map_or("not resting".to_owned(), |rest| format!("resting for {rest:?}"));
        self.say(&rest);
    }

    fn say_status(&mut self) {
        let group = self.group();
        let figures = self.shard.figures(self.now, group).expect("the group exists");
        self.say(&format!("{:?}", figures.status));
    }

    fn say_jobs(&mut self) {
        let group = self.group();
        let jobs: Vec<String> = self
            .shard
            .jobs(group)
            .map(|job| {
                let Job { matched, done, failed, .. } = job;
                let state = match &job.state {
                    JobState::Running => "running".to_owned(),
                    JobState::Done { .. } => "done".to_owned(),
                    JobState::Cancelled { .. } => "cancelled".to_owned(),
                    JobState::Failed { why, .. } => format!("{why:?}").to_lowercase(),
                };
                let work = match &job.work {
                    Work::Move { to } => format!("Move to {}", say_way(to.as_ref())),
                    Work::MoveParked { to } => format!("Move parked to {to}"),
                    parked => format!("{parked:?}"),
                };
                format!("job {}: {work} {done} of {matched}, {failed} failed, {state}", job.id.0)
            })
            .collect();
        for job in jobs {
            self.say(&job);
        }
    }

    fn say_life(&mut self, seq: Seq) {
        let group = self.group();
        let life = self.shard.life(group, seq).expect("the group is there");
        let (start, failures) = (Timestamp::ZERO, life.failures.iter());
        let state = match life.state {
            LifeState::Untouched => "untouched".to_owned(),
            LifeState::Ready => "ready".to_owned(),
            LifeState::Waiting { until } => format!("waiting until {:?}", until.since(start)),
            LifeState::Leased { consumer, granted, deadline, bound } => {
                let (who, from) = (consumer.as_deref().unwrap_or("?"), granted.since(start));
                format!("leased to {who} from {from:?} to {:?} by {bound:?}", deadline.since(start))
            }
            LifeState::Moving => "moving".to_owned(),
            LifeState::Parked { at } => format!("parked at {:?}", at.since(start)),
            LifeState::Settled => "settled".to_owned(),
        };
        let why = |failure: &crate::entry::Failure| {
            let reason = failure.reason.as_deref().unwrap_or(failure.cause.as_str());
            format!("#{} {} {reason}", failure.attempt, failure.consumer.as_deref().unwrap_or("?"))
        };
        let failures: Vec<String> = failures.map(why).collect();
        self.say(&format!("{seq}: {state}, {} attempts, failed [{}]", life.attempts, failures.join("; ")));
    }

    fn say_parked(&mut self) {
        let group = self.group();
        let lines: Vec<String> = self
            .shard
            .parked_after(group, Seq::START)
            .map(|(seq, parked)| {
                let history: Vec<String> = parked
                    .failures
                    .iter()
                    .map(|failure| {
                        let who = failure.consumer.as_deref().unwrap_or("?");
                        let why = failure.reason.as_deref().unwrap_or(failure.cause.as_str());
                        format!("#{} {who} {why}", failure.attempt)
                    })
                    .collect();
                format!("parked {seq} after {}: {}", parked.attempts, history.join("; "))
            })
            .collect();
        for line in lines {
            self.say(&line);
        }
        let reasons: Vec<String> =
            self.shard.parked_reasons(group).map(|(reason, count)| format!("{count} {reason}")).collect();
        self.say(&format!("reasons: {}", reasons.join(", ")));
    }
}

fn letter(consumer: ConsumerId) -> char {
    char::from_u32(consumer.0 as u32).expect("consumers are named by letters")
}

fn elsewhere() -> StreamName {
    StreamName::parse("elsewhere").expect("a good name")
}

fn say_way(to: Option<&StreamName>) -> &str {
    to.map_or("where it came from", StreamName::as_str)
}

fn say_outcome(outcome: Outcome) -> String {
    match outcome {
        Outcome::NotYours(why) => format!("not yours ({why:?})").to_lowercase(),
        other => format!("{other:?}").to_lowercase(),
    }
}

fn describe(entry: &Entry) -> String {
    let seconds = |at: Timestamp| format!("{}s", at.0 as f64 / 1e6);
    let list = |ranges: &[SeqRange]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match entry {
        Entry::Opened { epoch, .. } => format!("opened {}", epoch.0),
        Entry::Handed { ranges, .. } => format!("handed {}", list(ranges)),
        Entry::Acked { ranges, .. } => format!("acked {}", list(ranges)),
        Entry::Returned { ranges, .. } => format!("returned {}", list(ranges)),
        Entry::Snoozed { until, ranges, .. } => format!("snoozed {} until {}", list(ranges), seconds(*until)),
        Entry::Skipped { how, ranges, .. } => format!("{how:?} {}", list(ranges)).to_lowercase(),
        Entry::Moving { route, seqs, .. } => {
            let by = route.job().map(|job| format!(" by job {}", job.0)).unwrap_or_default();
            format!("moving {} to {}{by}", list(seqs), say_way(route.to()))
        }
        Entry::Sent { route, ranges, .. } => {
            format!("{:?} {}, sent to {}", route.why(), list(ranges), say_way(route.to())).to_lowercase()
        }
        Entry::Stayed { ranges, .. } => format!("stayed {}", list(ranges)),
        Entry::JobPassed { job, ranges, .. } => format!("job {} passes {}", job.0, list(ranges)),
        Entry::Replayed { job, ranges, .. } => format!("replayed {} by job {}", list(ranges), job.0),
        Entry::Discarded { job, ranges, .. } => format!("discarded {} by job {}", list(ranges), job.0),
        Entry::JobStarted { job, .. } => format!("job {} started", job.0),
        Entry::JobEnded { job, how, .. } => format!("job {} {}", job.0, format!("{how:?}").to_lowercase()),
        Entry::Extended { deadline, ranges, .. } => {
            format!("extended {} to {}", list(ranges), seconds(*deadline))
        }
        Entry::Published { stream, first, messages, .. } => {
            format!("published {first} and {} more in stream {}", messages.count() - 1, stream.0)
        }
        Entry::GroupChanged { .. } => "group changed".to_owned(),
        Entry::StreamChanged { .. } => "stream changed".to_owned(),
        Entry::StreamCreated { name, .. } => format!("stream {name} created"),
        Entry::GroupPaused { paused, .. } => if *paused { "paused" } else { "resumed" }.to_owned(),
        Entry::Reset { floor, .. } => format!("reset to {floor}"),
        Entry::Purged { through, ids, .. } => {
            format!("purged through {through}{}", if *ids { " with ids" } else { "" })
        }
        Entry::Released { first, .. } => format!("released before {first}"),
        Entry::Leased { runs, duration, .. } => {
            let ranges: Vec<SeqRange> = runs.iter().map(|run| run.range).collect();
            format!("leased {} for {}s", list(&ranges), duration.as_secs_f64())
        }
        Entry::Failed { messages, .. } => {
            let texts: Vec<String> =
                messages.iter().map(|m| format!("{} until {}", m.seq, seconds(m.until))).collect();
            format!("failed {}", texts.join(", "))
        }
        Entry::Parked { messages, .. } => {
            let texts: Vec<String> =
                messages.iter().map(|m| format!("{} by {:?}", m.seq, m.failure.cause)).collect();
            format!("parked {}", texts.join(", "))
        }
        Entry::KeysFound { keys, .. } => {
            let name = |key: KeyHash| if key.0 == 0 { '.' } else { char::from(key.0 as u8) };
            let texts: Vec<String> =
                keys.iter().map(|(seq, key)| format!("{seq} is of {}", name(*key))).collect();
            format!("found {}", texts.join(", "))
        }
        other => format!("{other:?}"),
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text}"))
}

fn range(text: &str) -> SeqRange {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    SeqRange::new(Seq(number(first)), Seq(number(last)))
}

fn duration(text: &str) -> Duration {
    match text.strip_suffix("ms") {
        Some(millis) => Duration::from_millis(number(millis)),
        None => Duration::from_secs(number(text.strip_suffix('s').expect("a duration in s or ms"))),
    }
}
