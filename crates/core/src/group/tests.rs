//! Stories of a group: text in, text out. Adding a case is adding a paragraph.
//!
//! | step | means |
//! | --- | --- |
//! | `publish 7` | seven messages are published, and durable at once |
//! | `A joins 2` | A connects with two slots |
//! | `P polls 3`, `P polls 3 for 5s` | P asks once for up to three messages, on leases of its own length |
//! | `A credit 4` | A now has four slots |
//! | `A acks 1-3`, `A nacks 2`, `A nacks 2 in 5s` | A answers with the last leases it got for these |
//! | `A lost`, `A goodbye` | A's connection breaks, or A leaves |
//! | `+30s`, `+100ms` | time passes |
//! | `crash`, `crash after image` | the shard is rebuilt from its log, or from an image of now and nothing else |
//! | `A goodbye & +30s` | both in one turn |
//! | `figures` | what the group says about itself |

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use expect_test::{Expect, expect};

use super::*;
use crate::entry::{Entry, MessageMeta, entries};
use crate::settings::{Backoff, StreamSettings};
use crate::shard::{Shard, Start};
use crate::snapshot::Taking;
use crate::types::{Limits, StreamName};

#[test]
fn slots_are_filled_in_the_order_of_joining() {
    check(
        "publish 7 / A joins 2 / B joins 3 / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    deliver 3-5#1 to B
            0s    append handed 3-5
            0s    floor 0, lag 7, in flight 5, ready 2, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn an_ack_opens_a_slot() {
    check(
        "publish 7 / A joins 2 / B joins 3 / B acks 4",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    deliver 3-5#1 to B
            0s    append handed 3-5
            0s    B: acked
            0s    deliver 6#1 to B
            0s    append acked 4
            0s    append handed 6
        "#]],
    );
}

#[test]
fn a_nack_opens_a_slot_and_the_message_waits_out_its_backoff() {
    check(
        "publish 7 / A joins 2 / B joins 3 / A nacks 1 / +99ms / +1ms / A acks 2",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    deliver 3-5#1 to B
            0s    append handed 3-5
            0s    A: retrying
            0s    deliver 6#1 to A
            0s    append failed 1 until 0.1s
            0s    append handed 6
            0.1s  A: acked
            0.1s  deliver 1#2 to A
            0.1s  append acked 2
            0.1s  append handed 1
        "#]],
    );
}

#[test]
fn a_timeout_opens_a_slot() {
    check(
        "publish 7 / A joins 2 / +1s / B joins 3 / +28999ms / +1ms",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            1s    deliver 3-5#1 to B
            1s    append handed 3-5
            30s   deliver 6-7#1 to A
            30s   append failed 1 until 30.1s, 2 until 30.1s
            30s   append handed 6-7
        "#]],
    );
}

#[test]
fn messages_that_arrive_together_are_shared_out_evenly() {
    check(
        "A joins 9 / B joins 9 / C joins 9 / D joins 9 / publish 10 / publish 6",
        expect![[r#"
        0s    deliver 1-3#1 to A
        0s    deliver 4-6#1 to B
        0s    deliver 7-8#1 to C
        0s    deliver 9-10#1 to D
        0s    append handed 1-10
        0s    deliver 11-12#1 to A
        0s    deliver 13-14#1 to B
        0s    deliver 15#1 to C
        0s    deliver 16#1 to D
        0s    append handed 11-16
    "#]],
    );
    check(
        "A joins 10 / B joins 10 / C joins 1 / publish 7 / publish 1 / publish 1",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    deliver 4-5#1 to B
            0s    deliver 6#1 to C
            0s    deliver 7#1 to A
            0s    append handed 1-7
            0s    deliver 8#1 to B
            0s    append handed 8
            0s    deliver 9#1 to A
            0s    append handed 9
        "#]],
    );
}

#[test]
fn a_retried_message_goes_before_newer_ones() {
    check(
        "publish 3 / A joins 1 / A nacks 1 / +100ms / A acks 2 / A acks 1 / A acks 3 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    deliver 2#1 to A
            0s    append failed 1 until 0.1s
            0s    append handed 2
            0.1s  A: acked
            0.1s  deliver 1#2 to A
            0.1s  append acked 2
            0.1s  append handed 1
            0.1s  A: acked
            0.1s  deliver 3#1 to A
            0.1s  append acked 1
            0.1s  append handed 3
            0.1s  A: acked
            0.1s  append acked 3
            0.1s  floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn the_consumer_says_how_long_to_wait() {
    check(
        "publish 1 / A joins 1 / A nacks 1 in 5s / +4999ms / +1ms",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    append failed 1 until 5s
            5s    deliver 1#2 to A
            5s    append handed 1
        "#]],
    );
}

#[test]
fn a_message_is_parked_when_its_retries_are_used_up() {
    check(
        "retries 1 / publish 2 / A joins 1 / A nacks 1 / A acks 2 / +100ms / +30s / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    deliver 2#1 to A
            0s    append failed 1 until 0.1s
            0s    append handed 2
            0s    A: acked
            0s    append acked 2
            0.1s  deliver 1#2 to A
            0.1s  append handed 1
            30.1s append parked 1 by Timeout
            30.1s floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 1
        "#]],
    );
}

#[test]
fn a_late_answer_changes_nothing() {
    check(
        "publish 1 / A joins 1 / +30s / B joins 1 / +100ms / A acks 1 / B acks 1",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            30s   append failed 1 until 30.1s
            30.1s deliver 1#2 to B
            30.1s append handed 1
            30.1s A: not yours
            30.1s B: acked
            30.1s append acked 1
        "#]],
    );
    check(
        "publish 1 / A joins 1 / +30s / A credit 0 / B joins 1 / +100ms / A acks 1 / B acks 1",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            30s   append failed 1 until 30.1s
            30.1s deliver 1#2 to B
            30.1s append handed 1
            30.1s A: not yours
            30.1s B: acked
            30.1s append acked 1
        "#]],
    );
}

#[test]
fn a_lost_consumer_has_tried_and_a_goodbye_has_not() {
    check(
        "publish 3 / A joins 3 / A lost / B joins 3 / B goodbye / C joins 3",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    deliver 1-3#2 to B
            0s    append handed 1-3
            0s    append returned 1-3
            0s    deliver 1-3#2 to C
            0s    append handed 1-3
        "#]],
    );
}

#[test]
fn a_goodbye_that_came_in_time_is_no_timeout() {
    check(
        "publish 1 / A joins 1 / A goodbye & +30s / B joins 1",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            30s   append returned 1
            30s   deliver 1#1 to B
            30s   append handed 1
        "#]],
    );
}

#[test]
fn an_ack_in_the_turn_of_the_timeout_still_counts() {
    check(
        "publish 2 / A joins 2 / +30s & A acks 1",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            30s   A: acked
            30s   append acked 1
            30s   append failed 2 until 30.1s
        "#]],
    );
}

#[test]
fn a_message_that_kills_its_consumers_is_parked() {
    check(
        "retries 1 / publish 1 / A joins 1 / A lost / B joins 1 / B lost / C joins 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    deliver 1#2 to B
            0s    append handed 1
            0s    append parked 1 by Lost
            0s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 1
        "#]],
    );
}

#[test]
fn a_poller_gets_one_delivery_for_each_time_it_asks() {
    check(
        "P polls 3 / publish 2 / publish 2 / P polls 3 for 5s / +5s",
        expect![[r#"
            0s    deliver 1-2#1 to P when durable
            0s    append leased 1-2 for 30s
            0s    deliver 3-4#1 to P when durable
            0s    append leased 3-4 for 5s
            5s    append failed 3 until 5.1s, 4 until 5.1s
        "#]],
    );
}

#[test]
fn a_crash_ends_leases_over_connections_and_keeps_their_count() {
    for how in ["crash", "crash after image"] {
        check(
            &format!("publish 4 / A joins 3 / A acks 2 / {how} / figures / B joins 9 / B acks 1-4 / figures"),
            expect![[r#"
                0s    deliver 1-3#1 to A
                0s    append handed 1-3
                0s    A: acked
                0s    deliver 4#1 to A
                0s    append acked 2
                0s    append handed 4
                0s    append opened 2
                0s    floor 0, lag 3, in flight 0, ready 3, waiting 0, parked 0
                0s    deliver 1#2 to B
                0s    deliver 3#2 to B
                0s    deliver 4#2 to B
                0s    append handed 1, 3-4
                0s    B: acked, has no such lease, acked, acked
                0s    append acked 1, 3-4
                0s    floor 4, lag 0, in flight 0, ready 0, waiting 0, parked 0
            "#]],
        );
    }
}

#[test]
fn a_crash_leaves_leases_on_the_clock_their_remaining_time() {
    for how in ["crash", "crash after image"] {
        check(
            &format!(
                "publish 3 / P polls 2 / +10s / {how} / Q polls 3 / P acks 1 / +19999ms / +1ms / +100ms / Q polls 1"
            ),
            expect![[r#"
                0s    deliver 1-2#1 to P when durable
                0s    append leased 1-2 for 30s
                10s   append opened 2
                10s   deliver 3#1 to Q when durable
                10s   append leased 3 for 30s
                10s   P: acked
                10s   append acked 1
                30s   append failed 2 until 30.1s
                30.1s deliver 2#2 to Q when durable
                30.1s append leased 2 for 30s
            "#]],
        );
    }
}

#[test]
fn a_crash_keeps_waiting_and_parked_messages_as_they_were() {
    for how in ["crash", "crash after image"] {
        check(
            &format!(
                "retries 1 / publish 2 / A joins 2 / A nacks 1 / A nacks 2 in 1s / +100ms / A nacks 1 / {how} \
                 / figures / B joins 2 / +900ms / figures"
            ),
            expect![[r#"
                0s    deliver 1-2#1 to A
                0s    append handed 1-2
                0s    A: retrying
                0s    append failed 1 until 0.1s
                0s    A: retrying
                0s    append failed 2 until 1s
                0.1s  deliver 1#2 to A
                0.1s  append handed 1
                0.1s  A: parked
                0.1s  append parked 1 by Nack
                0.1s  append opened 2
                0.1s  floor 1, lag 1, in flight 0, ready 0, waiting 1, parked 1
                1s    deliver 2#2 to B
                1s    append handed 2
                1s    floor 1, lag 1, in flight 1, ready 0, waiting 0, parked 1
            "#]],
        );
    }
}

#[test]
fn settled_messages_above_the_floor_are_remembered() {
    for how in ["crash", "crash after image"] {
        check(
            &format!(
                "publish 9 / A joins 9 / A acks 2-4 / A acks 6 / A acks 9 / {how} / figures / B joins 9"
            ),
            expect![[r#"
                0s    deliver 1-9#1 to A
                0s    append handed 1-9
                0s    A: acked, acked, acked
                0s    append acked 2-4
                0s    A: acked
                0s    append acked 6
                0s    A: acked
                0s    append acked 9
                0s    append opened 2
                0s    floor 0, lag 4, in flight 0, ready 4, waiting 0, parked 0
                0s    deliver 1#2 to B
                0s    deliver 5#2 to B
                0s    deliver 7-8#2 to B
                0s    append handed 1, 5, 7-8
            "#]],
        );
    }
}

#[test]
fn a_group_that_has_fallen_behind_reads_what_it_missed() {
    check(
        "buffer 4 / publish 3 / publish 3 / publish 3 / A joins 4 / A acks 1-4 / A acks 5-8",
        expect![[r#"
            0s    deliver 1-4#1 to A
            0s    append handed 1-4
            0s    read 7-9
            0s    A: acked, acked, acked, acked
            0s    deliver 5-8#1 to A
            0s    append acked 1-4
            0s    append handed 5-8
            0s    A: acked, acked, acked, acked
            0s    deliver 9#1 to A
            0s    append acked 5-8
            0s    append handed 9
        "#]],
    );
}

#[test]
fn the_group_as_a_whole_has_a_limit() {
    check(
        "in flight 3 / publish 9 / A joins 2 / B joins 9 / A acks 1",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    deliver 3#1 to B
            0s    append handed 3
            0s    A: acked
            0s    deliver 4#1 to A
            0s    append acked 1
            0s    append handed 4
        "#]],
    );
}

/// The one place that knows the API. The tests above are only text.
#[track_caller]
fn check(script: &str, expected: Expect) {
    let mut stage = Stage::new();
    for turn in script.split(" / ") {
        let steps: Vec<&str> = turn.split(" & ").collect();
        for (n, step) in steps.iter().enumerate() {
            stage.turn_goes_on = n + 1 < steps.len();
            stage.play(step);
        }
    }
    expected.assert_eq(&stage.trace);
}

struct Stage {
    shard: Shard,
    now: Timestamp,
    stream: StreamId,
    group: Option<GroupId>,
    settings: GroupSettings,
    /// Every frame so far, as its entries.
    log: Vec<Vec<u8>>,
    /// The leases each consumer last got, by message.
    leases: BTreeMap<(char, Seq), Lease>,
    trace: String,
    /// More is to come before the turn ends.
    turn_goes_on: bool,
}

impl Stage {
    fn new() -> Stage {
        let mut shard = Shard::new(Limits::DEFAULT);
        shard.open(Timestamp::ZERO, Epoch(1));
        let name = StreamName::parse("jobs").expect("a good name");
        let stream =
            shard.create_stream(Timestamp::ZERO, &name, &StreamSettings::default()).expect("a new stream");
        let backoff = Backoff { jitter: 0.0, ..Backoff::default() };
        Stage {
            shard,
            now: Timestamp::ZERO,
            stream,
            group: None,
            settings: GroupSettings { backoff, ..GroupSettings::default() },
            log: Vec::new(),
            leases: BTreeMap::new(),
            trace: String::new(),
            turn_goes_on: false,
        }
    }

    fn say(&mut self, line: &str) {
        let at = format!("{}s", self.now.0 as f64 / 1e6);
        writeln!(self.trace, "{at:<5} {line}").expect("a string takes any text");
    }

    /// The group is created by the first step that needs it, with the settings the script began with.
    fn group(&mut self) -> GroupId {
        *self.group.get_or_insert_with(|| {
            let name = GroupName::parse("workers").expect("a good name");
            let created =
                self.shard.create_group(self.now, self.stream, &name, &self.settings, Start::Beginning);
            let mut effects = Effects::default();
            self.shard.finish_turn(self.now, &mut effects);
            self.log.push(std::mem::take(self.shard.entries()));
            created.expect("a new group")
        })
    }

    fn play(&mut self, step: &str) {
        let words: Vec<&str> = step.split(' ').collect();
        match words[..] {
            ["retries", n] => self.settings.retries_max = Some(number(n) as u32),
            ["buffer", n] => self.settings.buffer = number(n) as u32,
            ["in", "flight", n] => self.settings.in_flight_max = number(n) as u32,
            ["publish", n] => self.publish(number(n)),
            ["crash"] => self.crash(false),
            ["crash", "after", "image"] => self.crash(true),
            ["figures"] => self.say_figures(),
            [step] if step.starts_with('+') => {
                self.now = self.now + duration(&step[1..]);
                self.finish_turn();
            }
            [who, ref what @ ..] => self.act(who.chars().next().expect("a name"), what),
            [] => {}
        }
    }

    fn publish(&mut self, count: u64) {
        self.group();
        let messages = vec![MessageMeta::plain(100); count as usize];
        let mut admissions = Vec::new();
        let stored = self.shard.publish(self.now, self.stream, &messages, &mut admissions);
        let stored = stored.expect("a good batch").expect("messages without ids are new");
        self.log.push(std::mem::take(self.shard.entries()));
        self.shard.arrived(self.stream, stored);
        self.finish_turn();
    }

    fn act(&mut self, who: char, what: &[&str]) {
        let group = self.group();
        let consumer = ConsumerId(who.into());
        match *what {
            ["joins", slots] => {
                self.shard.join(group, consumer, Bound::Connection).expect("a new member");
                let credit = Credit::Slots(number(slots) as u32);
                self.shard.credit(group, consumer, credit).expect("a member");
            }
            ["credit", slots] => {
                self.shard.credit(group, consumer, Credit::Slots(number(slots) as u32)).expect("a member");
            }
            ["polls", messages, ref rest @ ..] => {
                let _ = self.shard.join(group, consumer, Bound::Clock);
                let timeout = rest.get(1).map(|text| duration(text));
                let credit = Credit::Once { messages: number(messages) as u32, timeout };
                self.shard.credit(group, consumer, credit).expect("a member");
            }
            ["acks", seqs] => self.settle(who, seqs, Outcome::Ack),
            ["nacks", seqs] => self.settle(who, seqs, Outcome::Retry { delay: None }),
            ["nacks", seqs, "in", delay] => {
                self.settle(who, seqs, Outcome::Retry { delay: Some(duration(delay)) });
            }
            ["lost"] => self.shard.leave(group, consumer, Departure::Lost),
            ["goodbye"] => self.shard.leave(group, consumer, Departure::Goodbye),
            _ => panic!("no such step: {what:?}"),
        }
        self.finish_turn();
    }

    fn settle(&mut self, who: char, seqs: &str, outcome: Outcome) {
        let group = self.group();
        let (first, last) = seqs.split_once('-').unwrap_or((seqs, seqs));
        let answers: Vec<String> = (number(first)..=number(last))
            .map(|seq| {
                let Some(&lease) = self.leases.get(&(who, Seq(seq))) else {
                    return "has no such lease".to_owned();
                };
                let mut results = Vec::new();
                self.shard.settle(self.now, group, &[lease], outcome, &mut results);
                match results[..] {
                    [Settled::Acked] => "acked".to_owned(),
                    [Settled::Retrying] => "retrying".to_owned(),
                    [Settled::Parked] => "parked".to_owned(),
                    [Settled::NotYours] => "not yours".to_owned(),
                    _ => panic!("one lease has one result"),
                }
            })
            .collect();
        self.say(&format!("{who}: {}", answers.join(", ")));
    }

    /// Ends the turn, and feeds what the group asks to read back to it.
    fn finish_turn(&mut self) {
        if self.turn_goes_on {
            return;
        }
        let mut effects = Effects::default();
        self.shard.finish_turn(self.now, &mut effects);
        for deliver in &effects.deliveries {
            let who = char::from_u32(deliver.consumer.0 as u32).expect("consumers are named by letters");
            let when = if deliver.bound == Bound::Clock { " when durable" } else { "" };
            self.say(&format!("deliver {}#{} to {who}{when}", deliver.seqs, deliver.attempt.0));
            for (n, seq) in deliver.seqs.seqs().enumerate() {
                let lease = Lease { epoch: self.shard.epoch(), seq, grant: deliver.grant.plus(n as u64) };
                self.leases.insert((who, seq), lease);
            }
        }
        let frame = std::mem::take(self.shard.entries());
        for entry in entries(&frame) {
            let text = describe(&entry.expect("what was written can be read"));
            self.say(&format!("append {text}"));
        }
        if !frame.is_empty() {
            self.log.push(frame);
        }
        for read in &effects.reads {
            self.say(&format!("read {}", read.seqs));
            self.shard.read_ahead(read.group, read.seqs.last);
        }
        if !effects.reads.is_empty() {
            self.finish_turn();
        }
    }

    fn crash(&mut self, after_image: bool) {
        let mut shard = Shard::new(Limits::DEFAULT);
        let through = Position(self.log.len() as u64);
        if after_image {
            let mut parts = Vec::new();
            let mut left = self.shard.parts();
            while let Some(key) = left.pop() {
                let mut bytes = Vec::new();
                assert_eq!(self.shard.take_part(key, &mut bytes), Taking::Taken);
                left.extend(self.shard.parts_of(key));
                parts.push((key, bytes));
            }
            shard.load(parts.iter().map(|(key, bytes)| (*key, through, &bytes[..]))).expect("a good image");
        }
        for (n, frame) in self.log.iter().enumerate() {
            for entry in entries(frame) {
                let entry = entry.expect("what was written can be read");
                shard.apply(Position(n as u64 + 1), &entry).expect("entries fit each other");
            }
        }
        shard.open(self.now, Epoch(self.shard.epoch().0 + 1));
        self.shard = shard;
        // Who reads what was missed is not what these stories are about.
        let group = self.group();
        let last = self.shard.last_seq(self.stream).expect("the stream exists");
        self.shard.read_ahead(group, last);
        self.finish_turn();
    }

    fn say_figures(&mut self) {
        let group = self.group();
        let figures = self.shard.figures(group).expect("the group exists");
        self.say(&format!(
            "floor {}, lag {}, in flight {}, ready {}, waiting {}, parked {}",
            figures.floor, figures.lag, figures.in_flight, figures.ready, figures.waiting, figures.parked
        ));
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
            let texts: Vec<String> = messages.iter().map(|m| format!("{} by {:?}", m.seq, m.cause)).collect();
            format!("parked {}", texts.join(", "))
        }
        other => format!("{other:?}"),
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text}"))
}

fn duration(text: &str) -> Duration {
    match text.strip_suffix("ms") {
        Some(millis) => Duration::from_millis(number(millis)),
        None => Duration::from_secs(number(text.strip_suffix('s').expect("a duration in s or ms"))),
    }
}
