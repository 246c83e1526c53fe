//! Planted histories of KurrentDB clients: good ones, and for each promise one that breaks it and nothing else.
//!
//! Times are milliseconds here. One log, `book`, with one writer; a subscription with a timeout of ten seconds and
//! three retries, and a reader. Event n has the content n. What a reader sees and what the log has in the end follows
//! from the appends, unless a test says otherwise.

use super::super::record::Record;
use super::super::{Promise, Reason, Report, check};

#[derive(Clone, Default)]
struct Tale {
    lines: Vec<(u64, String)>,
    /// The numbers of all events of the log, in order.
    log: Vec<u64>,
    /// What the reader sees of it.
    seen: Option<Vec<u64>>,
    /// What the log has in the end.
    kept: Option<Vec<u64>>,
    stood: Option<&'static str>,
}

impl Tale {
    fn line(mut self, at: u64, line: &str) -> Tale {
        self.lines.push((at, line.to_owned()));
        self
    }

    /// An append of these events where the log ends, and its answer.
    fn append(self, at: u64, append: u64, events: &[u64]) -> Tale {
        let end = self.log.len();
        self.sent(at, append, &end_of(end), events)
            .confirmed(at + 1, append, end + events.len() - 1)
            .stored(events)
    }

    fn sent(self, at: u64, append: u64, expected: &str, events: &[u64]) -> Tale {
        let events: Vec<String> = events.iter().map(|n| format!("{n}:{n}")).collect();
        let events = events.join(",");
        self.line(
            at,
            &format!("1 invoke append append={append} log=book run=1 expected={expected} events={events}"),
        )
    }

    fn confirmed(self, at: u64, append: u64, revision: usize) -> Tale {
        self.line(at, &format!("1 ok append append={append} revision={revision}"))
    }

    fn stored(mut self, events: &[u64]) -> Tale {
        self.log.extend(events);
        self
    }

    fn join(self, at: u64, call: u64, buffer: usize, run: u32) -> Tale {
        self.line(at, &format!("2 invoke join call={call} subscription=book::g buffer={buffer} run={run}"))
    }

    fn event(self, at: u64, delivery: u64, call: u64, n: u64) -> Tale {
        self.event_after(at, (delivery, call), n, 0)
    }

    fn event_after(self, at: u64, (delivery, call): (u64, u64), n: u64, retries: u32) -> Tale {
        let revision = self.log.iter().position(|event| *event == n).unwrap_or(99);
        self.line(
            at,
            &format!(
                "2 ok event delivery={delivery} call={call} log=book revision={revision} n={n} content={n} \
                 retries={retries}"
            ),
        )
    }

    fn answer(self, at: u64, delivery: u64, action: &str) -> Tale {
        self.line(at, &format!("2 invoke answer delivery={delivery} action={action}"))
    }

    fn leave(self, at: u64, call: u64) -> Tale {
        self.line(at, &format!("2 info leave call={call} why=dropped heard=0"))
    }

    fn restart(self, at: u64, how: &str) -> Tale {
        self.line(at, &format!("0 invoke {how} run=1")).line(at + 1, "0 invoke start run=2")
    }

    fn report(&self) -> Report {
        let mut lines = self.lines.clone();
        lines.sort_by_key(|(at, _)| *at);
        let mut text = vec![
            "0 0 invoke start run=1".to_owned(),
            "0 0 info log name=book style=exclusive".to_owned(),
            "0 0 info reader name=r source=book".to_owned(),
            "0 0 info subscription name=book::g source=book timeout_ms=10000 retries=3".to_owned(),
        ];
        text.extend(lines.iter().map(|(at, line)| format!("{} {line}", at * 1_000)));
        let end = (lines.last().map_or(0, |(at, _)| *at) + 1) * 1_000;
        let place = |revision: usize, n: u64| {
            format!("log=book revision={revision} position={} n={n} content={n}", revision + 1)
        };
        for (revision, n) in self.seen.as_ref().unwrap_or(&self.log).iter().enumerate() {
            text.push(format!("{end} 3 ok saw reader=r {} run=1", place(revision, *n)));
        }
        text.push(format!(
            "{end} 0 ok stood subscription=book::g {}",
            self.stood.unwrap_or("open=0 parked=0")
        ));
        let kept = self.kept.as_ref().unwrap_or(&self.log);
        for (revision, n) in kept.iter().enumerate() {
            text.push(format!("{end} 0 ok kept {}", place(revision, *n)));
        }
        text.push(format!("{end} 0 ok read log=book count={}", kept.len()));
        check(&Record::read(text.iter()).expect("a history"))
    }

    #[track_caller]
    fn is_good(&self) -> Report {
        let report = self.report();
        assert!(report.violations.is_empty(), "{report}");
        report
    }

    #[track_caller]
    fn breaks(&self, promise: Promise) {
        let report = self.report();
        let mut broken: Vec<Promise> = report.violations.iter().map(|violation| violation.promise).collect();
        broken.dedup();
        assert_eq!(broken, [promise], "{report}");
    }
}

fn end_of(length: usize) -> String {
    if length == 0 { "none".to_owned() } else { (length - 1).to_string() }
}

/// One event, on a call with room for one, and not answered.
fn delivered() -> Tale {
    Tale::default().append(1, 1, &[1]).join(2, 21, 1, 1).event(10, 1, 21, 1)
}

/// The same, acked.
fn whole() -> Tale {
    delivered().answer(20, 1, "ack")
}

#[test]
fn an_event_that_is_appended_read_and_acked_breaks_nothing() {
    let counts = whole().is_good().counts;
    assert_eq!((counts.kurrent_appended, counts.kurrent_read, counts.kurrent_delivered), (1, 1, 1));
}

#[test]
fn i1_a_confirmed_append_that_is_gone_is_lost() {
    let tale = whole().sent(30, 2, "0", &[2]).confirmed(31, 2, 1);
    tale.breaks(Promise::Lost);
    // An append that is not confirmed may be lost.
    whole().sent(30, 2, "0", &[2]).line(31, "1 info append append=2").is_good();
}

#[test]
fn i1_an_event_that_a_reader_saw_is_not_gone() {
    let mut tale = whole().sent(30, 2, "0", &[2]);
    tale.seen = Some(vec![1, 2]);
    tale.breaks(Promise::Lost);
}

#[test]
fn i1_an_event_that_no_consumer_is_done_with_is_lost() {
    whole().append(30, 2, &[2]).breaks(Promise::Lost);
    delivered().breaks(Promise::Lost);
    delivered().answer(20, 1, "park").breaks(Promise::Lost);
    delivered().answer(20, 1, "skip").is_good();
}

#[test]
fn i2_an_event_that_no_client_appended_or_is_another_is_noticed() {
    let mut tale = whole();
    tale.log.push(7);
    tale.join(30, 22, 1, 1).event(40, 2, 22, 7).answer(50, 2, "ack").breaks(Promise::Unexpected);
    let other = "2 ok event delivery=2 call=21 log=book revision=1 n=2 content=9 retries=0";
    whole().append(30, 2, &[2]).line(40, other).answer(50, 2, "ack").breaks(Promise::Content);
    let elsewhere = "2 ok event delivery=2 call=21 log=book revision=0 n=2 content=2 retries=0";
    whole().append(30, 2, &[2]).line(40, elsewhere).answer(50, 2, "ack").breaks(Promise::Unexpected);
}

#[test]
fn i2_an_append_that_was_refused_is_not_there() {
    let refused = |tale: Tale| tale.sent(30, 2, "0", &[2]).line(31, "1 fail append append=2 why=full");
    refused(whole()).is_good();
    let tale = refused(whole()).stored(&[2]).event(40, 2, 21, 2).answer(50, 2, "ack");
    tale.breaks(Promise::Unexpected);
}

#[test]
fn i3_an_event_is_with_one_consumer() {
    let second = |at| delivered().join(3, 22, 1, 1).event_after(at, (2, 22), 1, 1).answer(at + 10, 2, "ack");
    second(5_000).breaks(Promise::Overlap);
    let report = second(10_100).is_good();
    assert_eq!(report.counts.kurrent_again.get(&Reason::Expiry), Some(&1));
    // A server that was held still may have let it go.
    second(5_000).line(4_000, "0 info pause run=1").line(4_500, "0 info resume run=1").is_good();
}

#[test]
fn i4_a_subscription_that_is_not_done_in_the_end_is_unfinished() {
    Tale { stood: Some("open=1 parked=0"), ..whole() }.breaks(Promise::Unfinished);
    Tale { stood: Some("open=0 parked=1"), ..whole() }.breaks(Promise::Unfinished);
}

#[test]
fn i5_an_event_whose_ack_was_taken_does_not_come_again() {
    // The next event on a call with room for one shows that the ack was taken.
    let shown = whole().append(25, 2, &[2]).event(30, 2, 21, 2).answer(40, 2, "ack");
    assert_eq!(shown.is_good().counts.kurrent_acks_taken, 1);
    let again = |tale: Tale, at| tale.join(50, 22, 1, 1).event(at, 3, 22, 1).answer(at + 10, 3, "ack");
    again(shown.clone(), 60).breaks(Promise::CameBack);
    // Also after its call has ended.
    again(shown.leave(45, 21), 60).breaks(Promise::CameBack);
    // The call went on for so long that the ack was taken.
    again(whole(), 3_000).breaks(Promise::CameBack);
    // Nothing shows that it was, and the call ended: it may have been lost on its way.
    again(whole().leave(45, 21), 60).is_good();
    // It may not come while its call goes on, taken or not.
    again(whole(), 60).breaks(Promise::Duplicate);
}

#[test]
fn i5_a_skipped_or_parked_event_does_not_come_again_by_itself() {
    let again = |action, unparked: Option<u64>| {
        let tale = delivered().answer(20, 1, action);
        let tale = match unparked {
            Some(at) => tale.line(at, "0 invoke unpark subscription=book::g"),
            None => tale,
        };
        tale.join(50, 22, 1, 1).event(3_000, 2, 22, 1).answer(3_010, 2, "ack")
    };
    again("skip", None).breaks(Promise::CameBack);
    again("park", None).breaks(Promise::CameBack);
    let report = again("park", Some(2_000)).is_good();
    assert_eq!(report.counts.kurrent_again.get(&Reason::Replay), Some(&1));
}

#[test]
fn i5_a_restart_does_not_bring_back_an_event_whose_ack_was_in_the_log() {
    let shown = whole().append(25, 2, &[2]).event(30, 2, 21, 2).answer(40, 2, "ack");
    let again = |how, at: u64| {
        let tale = shown.clone().restart(at, how).join(at + 2, 22, 1, 2);
        tale.event(at + 10, 3, 22, 1).answer(at + 20, 3, "ack")
    };
    again("stop", 100).breaks(Promise::CameBack);
    again("kill", 5_000).breaks(Promise::CameBack);
    // A kill may take an ack that was taken a moment before.
    again("kill", 100).is_good();
}

#[test]
fn an_event_that_comes_again_has_a_reason() {
    let again = |tale: Tale| tale.join(3, 22, 1, 1).event_after(40, (2, 22), 1, 1).answer(50, 2, "ack");
    let report = again(delivered().answer(20, 1, "retry")).is_good();
    assert_eq!(report.counts.kurrent_again.get(&Reason::Nack), Some(&1));
    let report = again(delivered().leave(20, 21)).is_good();
    assert_eq!(report.counts.kurrent_again.get(&Reason::Disconnect), Some(&1));
}

#[test]
fn i7_a_call_holds_no_more_events_than_its_buffer() {
    let two = |ack_at| {
        let tale = delivered().append(5, 2, &[2]).event(30, 2, 21, 2);
        tale.answer(ack_at, 1, "ack").answer(50, 2, "ack")
    };
    two(20).is_good();
    two(40).breaks(Promise::Credit);
}

#[test]
fn i8_retries_are_counted_and_come_to_an_end() {
    let second = |first, retries| {
        let tale = Tale::default().append(1, 1, &[1]).join(2, 21, 1, 1).event_after(10, (1, 21), 1, first);
        let tale = tale.answer(20, 1, "retry").event_after(40, (2, 21), 1, retries);
        tale.answer(50, 2, "ack")
    };
    second(0, 1).is_good();
    second(2, 1).breaks(Promise::Attempts);
    second(3, 4).breaks(Promise::Attempts);
}

#[test]
fn i11_an_append_that_is_repeated_is_stored_once() {
    let again = |revision| {
        let tale = Tale::default().sent(1, 1, "none", &[1]).line(2, "1 info append append=1");
        let tale = tale.sent(3, 1, "none", &[1]).confirmed(4, 1, revision).stored(&[1]);
        tale.join(5, 21, 1, 1).event(10, 1, 21, 1).answer(20, 1, "ack")
    };
    assert_eq!(again(0).is_good().counts.kurrent_repeated, 1);
    again(1).breaks(Promise::StoredTwice);
    let mut twice = again(0);
    twice.kept = Some(vec![1, 1]);
    twice.seen = Some(vec![1, 1]);
    twice.breaks(Promise::StoredTwice);
}

#[test]
fn i11_an_append_without_another_writer_is_no_conflict() {
    let conflict = "1 fail append append=2 why=conflict last=0";
    whole().sent(30, 2, "0", &[2]).line(31, conflict).breaks(Promise::Refused);
}

#[test]
fn i19_an_append_is_stored_whole_or_not_at_all() {
    let mut part = whole().sent(30, 2, "0", &[2, 3]).line(31, "1 info append append=2").stored(&[2]);
    part = part.event(40, 2, 21, 2).answer(50, 2, "ack");
    part.breaks(Promise::Torn);
}

#[test]
fn i20_a_reader_sees_every_event_once_and_in_order() {
    let two = || whole().append(30, 2, &[2]).event(40, 2, 21, 2).answer(50, 2, "ack");
    Tale { seen: Some(vec![1]), ..two() }.breaks(Promise::Lost);
    let gap = "3 ok saw reader=r log=book revision=1 position=2 n=2 content=2 run=1";
    two().line(45, gap).breaks(Promise::ReadOrder);
    let other = "3 ok saw reader=r log=book revision=0 position=1 n=2 content=2 run=1";
    let mut tale = two().line(45, other);
    tale.seen = Some(Vec::new());
    let tale = tale.line(46, gap);
    tale.breaks(Promise::Unexpected);
}

#[test]
fn i20_an_append_that_is_sent_after_another_was_confirmed_is_behind_it() {
    let both = |sent| {
        let tale = Tale::default().sent(10, 2, "any", &[2]).confirmed(15, 2, 1).sent(sent, 1, "any", &[1]);
        let tale = tale.confirmed(40, 1, 0).stored(&[1, 2]).join(2, 21, 5, 1);
        tale.event(50, 1, 21, 1).event(51, 2, 21, 2).answer(60, 1, "ack").answer(61, 2, "ack")
    };
    both(12).is_good();
    both(20).breaks(Promise::ReadOrder);
}

#[test]
fn i22_an_append_is_stored_where_its_writer_expected() {
    let tale = |expected| {
        let tale = whole().sent(30, 2, expected, &[2]).confirmed(31, 2, 1).stored(&[2]);
        tale.event(40, 2, 21, 2).answer(50, 2, "ack")
    };
    tale("0").is_good();
    tale("any").is_good();
    tale("3").breaks(Promise::Expected);
    tale("none").breaks(Promise::Expected);
}

#[test]
fn a_log_that_no_client_read_in_the_end_is_not_taken_for_whole() {
    let text = "0 0 info log name=book style=any";
    let report = check(&Record::read([text].iter()).expect("a history"));
    assert_eq!(report.violations.iter().map(|it| it.promise).collect::<Vec<_>>(), [Promise::Unfinished]);
}

#[test]
fn a_history_that_makes_no_sense_is_refused() {
    for line in [
        "5 1 ok append append=1 revision=3",
        "5 2 ok event delivery=1 call=9 log=book revision=0 n=1 content=1 retries=0",
        "5 2 invoke answer delivery=1 action=ack",
        "5 2 invoke join call=1 subscription=none buffer=1 run=1",
        "5 1 invoke append append=1 log=book run=1 expected=none events=x",
    ] {
        assert!(Record::read([line].iter()).is_err(), "{line}");
    }
}
