//! Planted histories: one that is good, and for each promise some that break it and nothing else.
//!
//! Times are milliseconds here. Every message is published in a stream of the same name as its group's, gets its
//! number as its position, and comes with a lease of ten seconds.

use super::record::{Record, RecordError};
use super::{Promise, Reason, Report, check};

const LEASE: u64 = 10_000;

/// A history in the making.
#[derive(Clone, Default)]
struct Tale {
    lines: Vec<(u64, String)>,
    /// What the groups say in the end, where it is not that all is done.
    figures: Vec<(String, String)>,
}

impl Tale {
    /// A server in its first run.
    fn new() -> Tale {
        Tale::default().line(0, "0 invoke start run=1")
    }

    fn line(mut self, at: u64, line: &str) -> Tale {
        self.lines.push((at, line.to_owned()));
        self
    }

    /// Published and confirmed.
    fn publish(self, at: u64, stream: &str, n: u64) -> Tale {
        self.sent(at, stream, n, "").confirmed(at + 1, n, n)
    }

    fn sent(self, at: u64, stream: &str, n: u64, more: &str) -> Tale {
        self.line(at, &format!("1 invoke publish stream={stream} n={n} content={n} {more}"))
    }

    fn confirmed(self, at: u64, n: u64, seq: u64) -> Tale {
        self.line(at, &format!("1 ok publish n={n} seq={seq}"))
    }

    fn open(self, at: u64, session: u64, stream: &str) -> Tale {
        self.line(at, &format!("{session} invoke open session={session} group={stream}/g run=1 credit=2"))
    }

    fn close(self, at: u64, session: u64, why: &str) -> Tale {
        self.line(at, &format!("{session} info close session={session} why={why} heard={}", at * 1_000))
    }

    /// A delivery to a session, or to a client without one if that is 0.
    fn deliver(self, at: u64, delivery: u64, to: u64, stream: &str, n: u64, attempt: u32) -> Tale {
        self.deliver_in(1, at, delivery, to, stream, n, attempt)
    }

    #[allow(clippy::too_many_arguments, reason = "a line of a history is what it is")]
    fn deliver_in(
        self,
        run: u32,
        at: u64,
        delivery: u64,
        to: u64,
        stream: &str,
        n: u64,
        attempt: u32,
    ) -> Tale {
        let session = if to == 0 { String::new() } else { format!("session={to}") };
        let deadline = (at + LEASE) * 1_000;
        self.line(
            at,
            &format!(
                "{to} ok deliver delivery={delivery} group={stream}/g seq={n} n={n} content={n} \
                 attempt={attempt} deadline={deadline} published={n} run={run} {session}"
            ),
        )
    }

    /// Asked, and answered a millisecond later.
    fn settle(self, at: u64, delivery: u64, action: &str, outcome: &str) -> Tale {
        self.asked(1, at, delivery, action)
            .line(at + 1, &format!("9 ok settle delivery={delivery} outcome={outcome}"))
    }

    fn asked(self, run: u32, at: u64, delivery: u64, action: &str) -> Tale {
        self.line(at, &format!("9 invoke settle delivery={delivery} run={run} action={action}"))
    }

    fn ack(self, at: u64, delivery: u64) -> Tale {
        self.settle(at, delivery, "ack", "acked")
    }

    /// The run ends, and the next begins.
    fn restart(self, at: u64, how: &str, run: u32) -> Tale {
        let next = run + 1;
        self.line(at, &format!("0 invoke {how} run={run}"))
            .line(at + 1, &format!("0 invoke start run={next}"))
    }

    fn figures(mut self, stream: &str, figures: &str) -> Tale {
        self.figures.push((stream.to_owned(), figures.to_owned()));
        self
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (stream, more) in [
            ("plain", ""),
            ("sure", "acks=durable"),
            ("keys", "strategy=ordered"),
            ("paced", "rate=10 burst=2"),
            ("fussy", "retries=1"),
        ] {
            text.push_str(&format!("0 0 info stream name={stream}\n"));
            text.push_str(&format!(
                "0 0 info group name={stream}/g stream={stream} timeout_ms={LEASE} {more}\n"
            ));
        }
        let mut lines = self.lines.clone();
        lines.sort_by_key(|(at, _)| *at);
        let end = lines.last().map_or(0, |(at, _)| at + 1);
        for (at, line) in lines {
            text.push_str(&format!("{} {line}\n", at * 1_000));
        }
        for stream in ["plain", "sure", "keys", "paced", "fussy"] {
            let own = self.figures.iter().find(|(of, _)| of == stream);
            let figures = own.map_or("lag=0 parked=0", |(_, figures)| figures);
            text.push_str(&format!("{} 0 ok figures group={stream}/g {figures}\n", end * 1_000));
        }
        text
    }

    fn report(&self) -> Report {
        let text = self.text();
        let record = Record::read(text.lines()).unwrap_or_else(|error| panic!("{error}\n{text}"));
        check(&record)
    }

    #[track_caller]
    fn is_good(&self) -> Report {
        let report = self.report();
        assert!(report.violations.is_empty(), "{report}\n{}", self.text());
        report
    }

    /// Shows that one promise is broken, and no other.
    #[track_caller]
    fn breaks(&self, promise: Promise) {
        let report = self.report();
        let mut broken: Vec<Promise> = report.violations.iter().map(|violation| violation.promise).collect();
        broken.dedup();
        assert_eq!(broken, [promise], "{report}\n{}", self.text());
    }
}

/// One message in one group, delivered to one session, not yet settled.
fn delivered(stream: &str) -> Tale {
    Tale::new().publish(1, stream, 1).open(2, 21, stream).deliver(10, 1, 21, stream, 1, 1)
}

#[test]
fn a_message_that_is_published_delivered_and_acked_breaks_nothing() {
    for stream in ["plain", "sure", "keys", "paced", "fussy"] {
        let report = delivered(stream).ack(20, 1).is_good();
        assert_eq!((report.counts.confirmed, report.counts.deliveries), (1, 1));
    }
}

#[test]
fn i1_a_confirmed_message_that_is_never_delivered_is_lost() {
    let tale = delivered("plain").ack(20, 1).publish(30, "plain", 2);
    tale.breaks(Promise::Lost);
    // A message that is not confirmed may be lost.
    delivered("plain").ack(20, 1).sent(30, "plain", 2, "").line(31, "1 info publish n=2").is_good();
}

#[test]
fn i1_a_message_that_was_delivered_and_never_finished_is_lost_if_the_group_is_done() {
    delivered("plain").close(20, 21, "dropped").breaks(Promise::Lost);
    // An ack without an answer may have counted.
    delivered("plain").asked(1, 20, 1, "ack").close(21, 21, "dropped").is_good();
}

#[test]
fn i1_what_is_parked_is_not_lost_and_what_is_not_among_it_is() {
    let tale = delivered("fussy").settle(20, 1, "park", "parked").publish(30, "fussy", 2);
    tale.clone().figures("fussy", "lag=0 parked=2").is_good();
    tale.clone().figures("fussy", "lag=0 parked=2 seqs=1,2").is_good();
    tale.figures("fussy", "lag=0 parked=1").breaks(Promise::Lost);
    let tale = delivered("fussy").settle(20, 1, "park", "parked");
    tale.figures("fussy", "lag=0 parked=1 seqs=5").breaks(Promise::Lost);
}

#[test]
fn a_message_whose_publish_is_unknown_and_that_is_delivered_is_recovered() {
    let tale = Tale::new().sent(1, "plain", 1, "").line(2, "1 info publish n=1").open(2, 21, "plain");
    let report = tale.deliver(10, 1, 21, "plain", 1, 1).ack(20, 1).is_good();
    assert_eq!((report.counts.unknown, report.counts.recovered), (1, 1));
}

#[test]
fn i2_what_nobody_published_is_unexpected() {
    let tale = Tale::new().open(2, 21, "plain").deliver(10, 1, 21, "plain", 1, 1).ack(20, 1);
    tale.breaks(Promise::Unexpected);
    let elsewhere =
        Tale::new().publish(1, "plain", 1).publish(1, "sure", 2).open(2, 21, "plain").open(2, 22, "sure");
    let elsewhere =
        elsewhere.deliver(10, 1, 21, "plain", 1, 1).ack(20, 1).deliver(10, 2, 22, "sure", 2, 1).ack(20, 2);
    elsewhere.clone().is_good();
    elsewhere.open(24, 23, "plain").deliver(25, 3, 23, "plain", 2, 1).ack(26, 3).breaks(Promise::Unexpected);
}

#[test]
fn i2_what_was_refused_is_unexpected() {
    let tale = Tale::new().sent(1, "plain", 1, "").line(2, "1 fail publish n=1").open(2, 21, "plain");
    let tale = tale.deliver(10, 1, 21, "plain", 1, 1).ack(20, 1);
    tale.breaks(Promise::Unexpected);
    // Unless it was sent again.
    tale.sent(3, "plain", 1, "").line(4, "1 info publish n=1").is_good();
}

#[test]
fn i2_a_content_that_differs_is_noticed() {
    let mut tale = delivered("plain").ack(20, 1);
    let line = &mut tale.lines.iter_mut().find(|(_, line)| line.contains("deliver ")).expect("a delivery").1;
    *line = line.replace("content=1", "content=2");
    tale.breaks(Promise::Content);
}

#[test]
fn i3_two_consumers_hold_a_message_at_once() {
    let tale = delivered("plain").open(2, 22, "plain").deliver(15, 2, 22, "plain", 1, 2).ack(30, 2);
    let report = tale.settle(40, 1, "ack", "not_yours").report();
    let broken: Vec<Promise> = report.violations.iter().map(|violation| violation.promise).collect();
    // It was not returned, two consumers held it, and the first was told that it did not.
    assert!(broken.contains(&Promise::Overlap) && broken.contains(&Promise::Duplicate), "{report}");
}

#[test]
fn i3_a_lease_on_the_clock_outlives_the_server_and_one_on_a_connection_does_not() {
    let tale = |to| {
        let tale = Tale::new().publish(1, "plain", 1).open(2, 21, "plain").open(60, 22, "plain");
        tale.deliver(10, 1, to, "plain", 1, 1).restart(50, "kill", 1).deliver_in(2, 100, 2, 22, "plain", 1, 2)
    };
    let report = tale(21).ack(110, 2).is_good();
    assert_eq!(report.counts.duplicates.get(&Reason::Crash), Some(&1));
    let broken = tale(0).ack(110, 2).report();
    assert!(broken.violations.iter().any(|violation| violation.promise == Promise::Overlap), "{broken}");
    // Its deadline ends it.
    let tale = Tale::new().publish(1, "plain", 1).open(2, 22, "plain").deliver(10, 1, 0, "plain", 1, 1);
    let tale = tale.restart(50, "kill", 1).deliver_in(2, LEASE + 20, 2, 22, "plain", 1, 2);
    let report = tale.ack(LEASE + 30, 2).is_good();
    assert_eq!(report.counts.duplicates.get(&Reason::Expiry), Some(&1));
}

#[test]
fn i3_a_delivery_that_is_read_after_its_server_was_killed_is_held_by_nobody() {
    let tale = Tale::new().publish(1, "plain", 1).open(2, 21, "plain").open(60, 22, "plain");
    let tale = tale.restart(50, "kill", 1).deliver_in(2, 100, 2, 22, "plain", 1, 1);
    tale.deliver(101, 1, 21, "plain", 1, 1).ack(110, 2).is_good();
}

#[test]
fn i3_an_extension_that_was_answered_counts() {
    let again = |at| {
        let tale = delivered("plain").open(2, 22, "plain");
        tale.settle(20, 1, "extend delay_ms=30000", "extended")
            .deliver(at, 2, 22, "plain", 1, 2)
            .ack(at + 5, 2)
    };
    again(30_100).is_good();
    let report = again(LEASE + 100).report();
    assert!(report.violations.iter().any(|violation| violation.promise == Promise::Overlap), "{report}");
}

#[test]
fn i4_a_group_that_does_not_finish_is_noticed() {
    delivered("plain").figures("plain", "lag=1 parked=0").breaks(Promise::Unfinished);
    let listed = delivered("fussy").settle(20, 1, "park", "parked");
    listed.figures("fussy", "lag=0 parked=2 seqs=1").breaks(Promise::Unfinished);
}

#[test]
fn i5_what_was_acked_comes_back_only_after_a_kill_that_came_at_once() {
    let tale = |how, at| {
        let tale = delivered("plain").ack(20, 1).restart(at, how, 1).open(at + 10, 22, "plain");
        tale.deliver_in(2, at + 20, 2, 22, "plain", 1, 2).ack(at + 30, 2)
    };
    assert_eq!(tale("kill", 500).is_good().counts.duplicates.get(&Reason::Crash), Some(&1));
    tale("kill", 5_000).breaks(Promise::CameBack);
    tale("stop", 500).breaks(Promise::CameBack);
    let same_run = delivered("plain").ack(20, 1).open(2, 22, "plain").deliver(30, 2, 22, "plain", 1, 2);
    same_run.ack(40, 2).breaks(Promise::CameBack);
}

#[test]
fn i5_a_server_that_was_held_still_had_no_time_to_write() {
    let tale = delivered("plain").ack(20, 1).line(30, "0 info pause run=1").restart(5_000, "kill", 1);
    let tale = tale.line(5_001, "0 info resume run=1").open(5_010, 22, "plain");
    tale.deliver_in(2, 5_020, 2, 22, "plain", 1, 2).ack(5_030, 2).is_good();
}

#[test]
fn i5_a_durable_ack_is_never_forgotten() {
    let tale = delivered("sure").ack(20, 1).restart(22, "kill", 1).open(30, 22, "sure");
    tale.deliver_in(2, 40, 2, 22, "sure", 1, 2).ack(50, 2).breaks(Promise::DurableAck);
    // One that was not answered may be.
    let tale = delivered("sure").asked(1, 20, 1, "ack").restart(22, "kill", 1).open(30, 22, "sure");
    tale.deliver_in(2, 40, 2, 22, "sure", 1, 2).asked(2, 50, 2, "ack").is_good();
}

#[test]
fn i5_what_is_parked_was_not_acked() {
    let tale = delivered("fussy").ack(20, 1).line(5_000, "0 info stage");
    tale.figures("fussy", "lag=0 parked=1 seqs=1").breaks(Promise::CameBack);
}

#[test]
fn a_second_delivery_has_a_reason() {
    let again = |tale: Tale, at: u64, attempt| {
        tale.open(2, 22, "plain").deliver(at, 2, 22, "plain", 1, attempt).ack(at + 5, 2)
    };
    let cases = [
        (Reason::Nack, again(delivered("plain").settle(20, 1, "retry", "retrying"), 30, 2)),
        (Reason::Nack, again(delivered("plain").asked(1, 20, 1, "retry"), 30, 2)),
        (Reason::Expiry, again(delivered("plain"), LEASE + 30, 2)),
        (Reason::Disconnect, again(delivered("plain").close(20, 21, "dropped"), 30, 2)),
        (Reason::Disconnect, again(delivered("plain").close(20, 21, "lost"), 30, 2)),
        (Reason::Goodbye, again(delivered("plain").close(20, 21, "goodbye"), 30, 1)),
    ];
    for (reason, tale) in cases {
        let report = tale.is_good();
        assert_eq!(report.counts.duplicates.into_iter().collect::<Vec<_>>(), [(reason, 1)]);
    }
    let stopped = delivered("plain").restart(20, "stop", 1).open(25, 22, "plain");
    let report = stopped.deliver_in(2, 30, 2, 22, "plain", 1, 2).ack(35, 2).is_good();
    assert_eq!(report.counts.duplicates.get(&Reason::Stop), Some(&1));
    // An ack that may not have counted is no reason, and neither is one that the server did not take.
    let tale = again(delivered("plain").asked(1, 20, 1, "ack"), 30, 2);
    tale.breaks(Promise::Duplicate);
}

#[test]
fn what_was_parked_comes_back_when_it_is_replayed() {
    let tale = delivered("fussy").settle(20, 1, "park", "parked").open(2, 22, "fussy");
    let back = |tale: Tale| tale.deliver(40, 2, 22, "fussy", 1, 1).ack(50, 2);
    let replayed = tale.clone().line(30, "0 invoke replay group=fussy/g");
    assert_eq!(back(replayed).is_good().counts.duplicates.get(&Reason::Replay), Some(&1));
    let report = back(tale).report();
    assert!(report.violations.iter().any(|violation| violation.promise == Promise::CameBack), "{report}");
}

/// Two messages of one key, and what happens to the first before the second comes.
fn of_one_key(before: impl Fn(Tale) -> Tale) -> Tale {
    let tale = Tale::new().sent(1, "keys", 1, "key=k").confirmed(2, 1, 1);
    let tale = tale.sent(3, "keys", 2, "key=k").confirmed(4, 2, 2).open(5, 21, "keys").open(5, 22, "keys");
    before(tale).deliver(100, 2, 22, "keys", 2, 1).ack(110, 2)
}

#[test]
fn i6_the_next_message_of_a_key_waits() {
    of_one_key(|tale| tale.deliver(10, 1, 21, "keys", 1, 1).ack(20, 1)).is_good();
    of_one_key(|tale| tale.deliver(10, 1, 21, "keys", 1, 1).asked(1, 20, 1, "ack")).is_good();
    let held = of_one_key(|tale| tale.deliver(10, 1, 21, "keys", 1, 1));
    held.ack(120, 1).breaks(Promise::KeyOrder);
    let retried = |tale: Tale| tale.deliver(10, 1, 21, "keys", 1, 1).settle(20, 1, "retry", "retrying");
    of_one_key(retried).deliver(200, 3, 21, "keys", 1, 2).ack(210, 3).breaks(Promise::KeyOrder);
    let never = of_one_key(|tale| tale);
    never.deliver(200, 1, 21, "keys", 1, 1).ack(210, 1).breaks(Promise::KeyOrder);
}

#[test]
fn i6_what_a_crash_brings_back_goes_first_again() {
    let crashed = |tale: Tale| tale.deliver(10, 1, 21, "keys", 1, 1).ack(20, 1).restart(30, "kill", 1);
    let tale = |ack_at| {
        let tale = Tale::new().sent(1, "keys", 1, "key=k").confirmed(2, 1, 1);
        let tale =
            tale.sent(3, "keys", 2, "key=k").confirmed(4, 2, 2).open(5, 21, "keys").open(40, 22, "keys");
        let tale =
            crashed(tale).deliver_in(2, 50, 2, 22, "keys", 1, 2).deliver_in(2, 80, 3, 22, "keys", 2, 1);
        tale.asked(2, ack_at, 2, "ack").asked(2, 95, 3, "ack")
    };
    tale(60).is_good();
    tale(90).breaks(Promise::KeyOrder);
}

#[test]
fn i7_a_consumer_holds_no_more_than_its_credit() {
    let three = |ack_at| {
        let tale = Tale::new().publish(1, "plain", 1).publish(1, "plain", 2).publish(1, "plain", 3);
        let tale =
            tale.open(2, 21, "plain").deliver(10, 1, 21, "plain", 1, 1).deliver(11, 2, 21, "plain", 2, 1);
        tale.ack(ack_at, 1).deliver(30, 3, 21, "plain", 3, 1).ack(40, 2).ack(40, 3)
    };
    three(20).is_good();
    three(35).breaks(Promise::Credit);
}

#[test]
fn i8_attempts_count_what_went_before() {
    let second = |attempt| {
        let tale = delivered("plain").settle(20, 1, "retry", "retrying").open(2, 22, "plain");
        tale.deliver(30, 2, 22, "plain", 1, attempt).ack(40, 2)
    };
    second(2).is_good();
    second(1).breaks(Promise::Attempts);
    second(3).breaks(Promise::Attempts);
    // No client saw a delivery that was in flight to a consumer that left.
    second(3).open(22, 23, "plain").close(28, 23, "dropped").is_good();
    let first = Tale::new().publish(1, "plain", 1).open(2, 21, "plain").deliver(10, 1, 21, "plain", 1, 2);
    first.ack(20, 1).breaks(Promise::Attempts);
}

#[test]
fn i8_a_kill_may_undo_the_last_count_and_a_stop_may_not() {
    let tale = |how, at, attempt| {
        let tale = delivered("plain").restart(at, how, 1).open(at + 10, 22, "plain");
        tale.deliver_in(2, at + 20, 2, 22, "plain", 1, attempt).asked(2, at + 30, 2, "ack")
    };
    tale("kill", 50, 1).is_good();
    tale("kill", 50, 2).is_good();
    tale("kill", 9_000, 1).breaks(Promise::Attempts);
    tale("stop", 50, 1).breaks(Promise::Attempts);
    // A lease on the clock was written down before it was given.
    let clock = Tale::new().publish(1, "plain", 1).open(2, 22, "plain").deliver(10, 1, 0, "plain", 1, 1);
    let clock = clock.settle(20, 1, "retry", "retrying").restart(25, "kill", 1);
    clock.deliver_in(2, 50, 2, 22, "plain", 1, 1).asked(2, 60, 2, "ack").breaks(Promise::Attempts);
}

#[test]
fn i8_a_message_is_parked_when_its_retries_are_used_up_and_not_before() {
    let tale = |first, second| {
        let tale = delivered("fussy").settle(20, 1, "retry", first).open(2, 22, "fussy");
        let tale = tale.line(25, "0 invoke replay group=fussy/g");
        let tale = if first == "parked" {
            tale.deliver(30, 2, 22, "fussy", 1, 1)
        } else {
            tale.deliver(30, 2, 22, "fussy", 1, 2)
        };
        tale.settle(40, 2, "retry", second).figures("fussy", "lag=0 parked=1")
    };
    tale("retrying", "parked").is_good();
    tale("retrying", "retrying").breaks(Promise::Attempts);
    tale("parked", "retrying").breaks(Promise::Attempts);
}

#[test]
fn i8_there_are_no_more_attempts_than_the_group_allows() {
    let tale =
        delivered("fussy").close(20, 21, "dropped").open(2, 22, "fussy").deliver(30, 2, 22, "fussy", 1, 2);
    let tale =
        tale.close(40, 22, "dropped").open(2, 23, "fussy").deliver(50, 3, 23, "fussy", 1, 3).ack(60, 3);
    tale.breaks(Promise::Attempts);
}

#[test]
fn i9_progress_does_not_go_back() {
    let tale = |floor| {
        let tale = all_present(1, "new", 5).restart(100, "stop", 1);
        Tale { lines: [tale.lines, all_present(2, "same", floor).lines].concat(), figures: Vec::new() }
    };
    tale(5).is_good();
    tale(4).breaks(Promise::Progress);
}

/// A client looks for everything in this run.
fn all_present(run: u32, found: &str, floor: u64) -> Tale {
    let mut tale = if run == 1 { Tale::new() } else { Tale::default() };
    let at = u64::from(run) * 100 + 50;
    for name in ["plain", "sure", "keys", "paced", "fussy"] {
        tale = tale.line(at, &format!("0 ok present name={name} run={run} found={found}"));
        tale = tale.line(at, &format!("0 ok present name={name}/g run={run} found={found} floor={floor}"));
    }
    tale
}

#[test]
fn streams_and_groups_are_there_after_every_start() {
    let tale = |found: &str| {
        let tale = all_present(1, "new", 5).restart(200, "kill", 1);
        let mut next = all_present(2, "same", 5);
        let line = &mut next.lines.iter_mut().find(|(_, line)| line.contains("sure/g")).expect("a group").1;
        *line = line.replace("found=same", &format!("found={found}"));
        Tale { lines: [tale.lines, next.lines].concat(), figures: Vec::new() }
    };
    tale("same").is_good();
    tale("new").breaks(Promise::Present);
    tale("different").breaks(Promise::Present);
    let mut one_less = tale("same");
    one_less.lines.retain(|(_, line)| !line.contains("keys run=2"));
    one_less.breaks(Promise::Present);
}

#[test]
fn i10_what_comes_again_was_published_when_it_was() {
    let mut tale = delivered("plain").settle(20, 1, "retry", "retrying").open(2, 22, "plain");
    tale = tale.deliver(30, 2, 22, "plain", 1, 2).ack(40, 2);
    tale.clone().is_good();
    let line =
        &mut tale.lines.iter_mut().find(|(_, line)| line.contains("delivery=2 ")).expect("a delivery").1;
    *line = line.replace("published=1", "published=2");
    tale.breaks(Promise::Kept);
}

#[test]
fn i11_one_publish_has_one_position() {
    let again = |seq| {
        let tale = Tale::new().sent(1, "plain", 1, "").line(2, "1 info publish n=1").restart(3, "kill", 1);
        let tale = tale.sent(10, "plain", 1, "").confirmed(11, 1, seq).open(12, 21, "plain");
        tale.deliver_in(2, 20, 1, 21, "plain", 1, 1).asked(2, 30, 1, "ack")
    };
    let report = again(1).is_good();
    assert_eq!((report.counts.confirmed, report.counts.confirmed_again), (1, 1));
    again(2).breaks(Promise::StoredTwice);
    let both = delivered("plain").ack(20, 1).sent(30, "plain", 2, "").confirmed(31, 2, 1);
    both.breaks(Promise::StoredTwice);
}

#[test]
fn i11_what_is_sent_again_is_not_refused_for_good() {
    let tale = delivered("plain").ack(20, 1).sent(30, "plain", 2, "").line(31, "1 info publish n=2");
    let refused = tale.sent(40, "plain", 2, "").line(41, "1 fail publish n=2 retry=never why=gap");
    refused.breaks(Promise::Refused);
}

#[test]
fn i12_nothing_comes_before_its_delay_is_over() {
    let tale = |at| {
        let tale = Tale::new().sent(1, "plain", 1, "delay_ms=500").confirmed(2, 1, 1).open(2, 21, "plain");
        tale.deliver(at, 1, 21, "plain", 1, 1).ack(at + 10, 1)
    };
    tale(505).is_good();
    tale(400).breaks(Promise::Early);
}

#[test]
fn i12_what_is_given_back_for_later_does_not_come_sooner() {
    let tale = |at| {
        let tale = delivered("plain").settle(20, 1, "retry delay_ms=300", "retrying").open(2, 22, "plain");
        tale.deliver(at, 2, 22, "plain", 1, 2).ack(at + 10, 2)
    };
    tale(325).is_good();
    tale(200).breaks(Promise::Early);
    // A kill may forget that it was given back, and how.
    let tale = delivered("plain").settle(20, 1, "retry delay_ms=300", "retrying").restart(30, "kill", 1);
    let tale = tale.open(40, 22, "plain").deliver_in(2, 50, 2, 22, "plain", 1, 2);
    tale.asked(2, 60, 2, "ack").is_good();
}

#[test]
fn i13_no_stretch_of_time_has_more_than_the_pace_allows() {
    let tale = |gap: u64| {
        let mut tale = Tale::new().open(1, 21, "paced");
        for n in 1..=5 {
            let at = 10 + (n - 1) * gap;
            tale = tale.publish(1, "paced", n).deliver(at, n, 21, "paced", n, 1).ack(at + 1, n);
        }
        tale
    };
    tale(100).is_good();
    tale(80).is_good();
    tale(30).breaks(Promise::Pace);
}

#[test]
fn i15_a_late_answer_changes_nothing() {
    let tale = |outcome| {
        let tale = delivered("plain").open(2, 22, "plain").deliver(LEASE + 30, 2, 22, "plain", 1, 2);
        tale.settle(LEASE + 40, 1, "ack", outcome).ack(LEASE + 50, 2)
    };
    tale("not_yours").is_good();
    tale("acked").breaks(Promise::Stale);
}

#[test]
fn an_answer_to_a_lease_that_is_held_counts() {
    let tale = |at: u64| {
        let tale = delivered("plain").settle(at, 1, "ack", "not_yours").open(2, 22, "plain");
        tale.deliver(LEASE + 30, 2, 22, "plain", 1, 2).ack(LEASE + 40, 2)
    };
    tale(LEASE + 15).is_good();
    tale(100).breaks(Promise::LeaseForgotten);
}

#[test]
fn a_lease_on_the_clock_is_settled_after_a_restart() {
    let tale = |outcome: &str| {
        let tale = Tale::new().publish(1, "plain", 1).deliver(10, 1, 0, "plain", 1, 1).restart(50, "kill", 1);
        tale.asked(2, 100, 1, "ack").line(101, &format!("9 ok settle delivery=1 outcome={outcome}"))
    };
    assert_eq!(tale("acked").is_good().counts.clock_leases_settled_after_a_crash, 1);
    let report = tale("not_yours").report();
    assert!(report.violations.iter().any(|it| it.promise == Promise::LeaseForgotten), "{report}");
    // Asked a second time: the outcome of the first request is unknown.
    let tale = Tale::new().publish(1, "plain", 1).deliver(10, 1, 0, "plain", 1, 1).asked(1, 40, 1, "ack");
    let tale = tale.line(41, "9 info settle delivery=1").restart(50, "kill", 1).asked(2, 100, 1, "ack");
    tale.line(101, "9 ok settle delivery=1 outcome=not_yours").is_good();
}

#[test]
fn an_answer_answers_the_question() {
    delivered("plain").settle(20, 1, "skip", "acked").breaks(Promise::Answer);
    delivered("plain").settle(20, 1, "ack", "moving").ack(30, 1).breaks(Promise::Answer);
    delivered("plain")
        .asked(1, 20, 1, "ack")
        .line(21, "9 fail settle delivery=1")
        .ack(30, 1)
        .breaks(Promise::Answer);
}

#[test]
fn a_server_that_ends_by_itself_is_noticed() {
    delivered("plain").ack(20, 1).line(30, "0 info trouble what=it%20is%20gone").breaks(Promise::Server);
}

#[test]
fn a_group_that_nobody_asked_in_the_end_is_not_taken_for_finished() {
    let text = delivered("plain").ack(20, 1).text();
    let lines = text.lines().filter(|line| !line.contains("figures group=plain/g"));
    let report = check(&Record::read(lines).expect("a history"));
    let broken: Vec<Promise> = report.violations.iter().map(|violation| violation.promise).collect();
    assert_eq!(broken, [Promise::Unfinished]);
}

#[test]
fn a_history_that_makes_no_sense_is_refused() {
    let read = |text: &str| Record::read(text.lines()).err();
    assert!(matches!(read("5 1 info stage\n4 1 info stage"), Some(RecordError::Order { line: 2 })));
    assert!(matches!(read("5 1 ok dance"), Some(RecordError::Operation { line: 1, .. })));
    assert!(matches!(read("5 1 ok publish n=1 seq=1"), Some(RecordError::Unknown { line: 1, .. })));
    assert!(matches!(read("5 1 ok settle delivery=1 outcome=acked"), Some(RecordError::Unknown { .. })));
    assert!(matches!(read("5 1 ok deliver group=a/b"), Some(RecordError::Unknown { .. })));
    assert!(matches!(read("nonsense"), Some(RecordError::Line { line: 1, .. })));
}

/// A cluster whose owner is done something to in term 1, and the next owner of which delivers one message.
fn taken_over(by: &str) -> Tale {
    let how = if by == "owner-stopped" { "stop" } else { "kill" };
    delivered("plain")
        .ack(20, 1)
        .publish(25, "plain", 2)
        .publish(25, "plain", 3)
        .line(30, &format!("0 invoke fault fault={by} run=1"))
        .line(30, &format!("0 invoke {how} run=1 by={by}"))
        .line(5_000, "0 invoke start run=2")
        .line(5_000, &format!("0 info term run=2 cause={by}"))
        .open(5_000, 22, "plain")
        .deliver_in(2, 5_001, 2, 22, "plain", 2, 1)
        .ack(5_010, 2)
}

#[test]
fn i3_an_owner_that_delivers_after_its_successor_is_noticed() {
    // A client of the former owner got one of its last messages late.
    let late =
        |by: &str| taken_over(by).open(31, 23, "plain").deliver(5_500, 3, 23, "plain", 3, 1).ack(5_510, 3);
    late("owner-cut").breaks(Promise::TwoOwners);
    late("owner-killed").breaks(Promise::TwoOwners);
    // It may have been stopped just before it wrote to the socket.
    assert_eq!(late("owner-suspended").is_good().counts.late_deliveries, 1);
    late("owner-stopped").is_good();
}

#[test]
fn an_owner_that_changes_without_a_fault_of_its_own_is_noticed() {
    let report = taken_over("owner-killed").open(31, 23, "plain");
    let report = report.deliver_in(2, 5_500, 3, 23, "plain", 3, 1).ack(5_510, 3).is_good();
    assert_eq!(report.counts.changes.get("owner-killed"), Some(&1));
    delivered("plain")
        .ack(20, 1)
        .line(30, "0 invoke fault fault=nats-leader-killed run=1")
        .line(9_000, "0 info term run=2 cause=none")
        .breaks(Promise::Owner);
}
