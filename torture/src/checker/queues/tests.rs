//! Planted histories of SQS queues: good ones, and for each promise one that breaks it and nothing else.
//!
//! Times are milliseconds here. The queue `plain` is a standard queue and `fifo` is not; a message is invisible for ten
//! seconds. Message 1 is the first of its group.

use super::super::record::Record;
use super::super::{Promise, Report, check};

#[derive(Clone, Default)]
struct Tale {
    lines: Vec<(u64, String)>,
    left: u64,
}

impl Tale {
    fn line(mut self, at: u64, line: &str) -> Tale {
        self.lines.push((at, line.to_owned()));
        self
    }

    /// Sent and confirmed. In a FIFO queue all messages are of one group.
    fn send(self, at: u64, queue: &str, n: u64) -> Tale {
        let (key, seq) = if queue == "fifo" { (" key=k", format!(" seq={n}")) } else { ("", String::new()) };
        self.line(at, &format!("1 invoke send queue={queue} n={n} content={n}{key}"))
            .line(at + 1, &format!("1 ok send n={n} id=m{n}{seq}"))
    }

    /// Received for the first time by a receive of its own, which was sent a millisecond before.
    fn got(self, at: u64, delivery: u64, queue: &str, n: u64) -> Tale {
        self.got_by(at, (delivery, delivery), queue, n, 1)
    }

    fn got_by(self, at: u64, (delivery, receive): (u64, u64), queue: &str, n: u64, count: u64) -> Tale {
        let seq = if queue == "fifo" { format!(" seq={n}") } else { String::new() };
        let asked = (at - 1) * 1_000;
        self.line(
            at,
            &format!(
                "2 ok got delivery={delivery} queue={queue} n={n} content={n} id=m{n} count={count} \
                 receive={receive} asked={asked}{seq}"
            ),
        )
    }

    fn delete(self, at: u64, delivery: u64) -> Tale {
        self.line(at, &format!("2 invoke delete delivery={delivery}"))
            .line(at + 1, &format!("2 ok delete delivery={delivery}"))
    }

    fn hide(self, at: u64, delivery: u64, seconds: u64) -> Tale {
        self.line(at, &format!("2 invoke hide delivery={delivery} seconds={seconds}"))
            .line(at + 1, &format!("2 ok hide delivery={delivery}"))
    }

    fn report(&self) -> Report {
        let mut lines = self.lines.clone();
        lines.sort_by_key(|(at, _)| *at);
        let mut text = vec![
            "0 0 invoke start run=1".to_owned(),
            "0 0 info queue name=plain fifo=false timeout_ms=10000".to_owned(),
            "0 0 info queue name=fifo fifo=true timeout_ms=10000".to_owned(),
        ];
        text.extend(lines.iter().map(|(at, line)| format!("{} {line}", at * 1_000)));
        let end = lines.last().map_or(0, |(at, _)| *at + 1) * 1_000;
        text.push(format!("{end} 0 ok left queue=plain count={}", self.left));
        text.push(format!("{end} 0 ok left queue=fifo count=0"));
        check(&Record::read(text.iter()).expect("a history"))
    }

    #[track_caller]
    fn is_good(&self) {
        let report = self.report();
        assert!(report.violations.is_empty(), "{report}");
    }

    #[track_caller]
    fn breaks(&self, promise: Promise) {
        let report = self.report();
        let mut broken: Vec<Promise> = report.violations.iter().map(|violation| violation.promise).collect();
        broken.dedup();
        assert_eq!(broken, [promise], "{report}");
    }
}

/// One message that was received and deleted.
fn whole(queue: &str) -> Tale {
    Tale::default().send(1, queue, 1).got(10, 1, queue, 1).delete(20, 1)
}

#[test]
fn a_message_that_is_sent_received_and_deleted_breaks_nothing() {
    for queue in ["plain", "fifo"] {
        whole(queue).is_good();
        let counts = whole(queue).report().counts;
        assert_eq!((counts.sqs_sent, counts.sqs_received, counts.sqs_deleted), (1, 1, 1));
    }
}

#[test]
fn i1_a_confirmed_message_that_no_client_receives_is_lost() {
    whole("plain").send(30, "plain", 2).breaks(Promise::Lost);
    // A message that is not confirmed may be lost.
    let unknown =
        whole("plain").line(30, "1 invoke send queue=plain n=2 content=2").line(31, "1 info send n=2");
    unknown.is_good();
}

#[test]
fn i1_a_message_that_is_gone_without_a_delete_is_lost() {
    let received = whole("plain").send(30, "plain", 2).got(40, 2, "plain", 2);
    received.breaks(Promise::Lost);
    // A delete without an answer may have counted.
    received.line(50, "2 invoke delete delivery=2").line(51, "2 info delete delivery=2").is_good();
}

#[test]
fn i2_a_message_that_was_never_sent_or_is_another_is_noticed() {
    whole("plain").got(30, 2, "plain", 9).breaks(Promise::Unexpected);
    let other = "2 ok got delivery=2 queue=plain n=2 content=7 id=m2 count=1 receive=2 asked=39000";
    whole("plain").send(30, "plain", 2).line(40, other).delete(50, 2).breaks(Promise::Content);
}

#[test]
fn i3_a_message_does_not_come_again_while_it_is_invisible() {
    let again =
        |at| Tale::default().send(1, "plain", 1).got(10, 1, "plain", 1).got_by(at, (2, 2), "plain", 1, 2);
    again(9_000).delete(9_010, 2).breaks(Promise::Overlap);
    again(10_100).delete(10_110, 2).is_good();
    // It may as soon as it was made visible, and not before its new time is over.
    let hidden = |seconds| {
        let first = Tale::default().send(1, "plain", 1).got(10, 1, "plain", 1).hide(20, 1, seconds);
        first.got_by(12_000, (2, 2), "plain", 1, 2).delete(12_010, 2)
    };
    hidden(0).is_good();
    hidden(30).breaks(Promise::Overlap);
}

#[test]
fn i4_a_queue_that_is_not_empty_in_the_end_is_unfinished() {
    Tale { left: 1, ..whole("plain") }.breaks(Promise::Unfinished);
}

#[test]
fn i5_a_deleted_message_does_not_come_back() {
    whole("plain").got_by(20_000, (2, 2), "plain", 1, 2).delete(20_010, 2).breaks(Promise::CameBack);
    // The delete came after the message had become visible, so it may have been received before.
    let late = Tale::default().send(1, "plain", 1).got(10, 1, "plain", 1).delete(11_000, 1);
    late.got_by(11_500, (2, 2), "plain", 1, 2).delete(11_510, 2).is_good();
}

#[test]
fn i6_a_message_of_a_group_waits_for_those_before_it() {
    let both = |second: u64, receive: u64| {
        let sent = Tale::default().send(1, "fifo", 1).send(5, "fifo", 2).got(10, 1, "fifo", 1);
        sent.got_by(second, (2, receive), "fifo", 2, 1)
    };
    both(15, 2).delete(20, 1).delete(30, 2).breaks(Promise::KeyOrder);
    both(25, 2).delete(20, 1).delete(30, 2).is_good();
    // They may come together in one answer.
    both(10, 1).delete(20, 1).delete(30, 2).is_good();
}

#[test]
fn i8_receives_are_counted() {
    let first = Tale::default().send(1, "plain", 1).got(10, 1, "plain", 1);
    first.got_by(12_000, (2, 2), "plain", 1, 1).delete(12_010, 2).breaks(Promise::Attempts);
}

#[test]
fn i11_a_message_that_is_sent_again_is_stored_once() {
    let again = |id: &str| {
        let sent = Tale::default()
            .line(1, "1 invoke send queue=fifo n=1 content=1 key=k")
            .line(2, "1 info send n=1");
        let sent = sent.line(3, "1 invoke send queue=fifo n=1 content=1 key=k");
        sent.line(4, &format!("1 ok send n=1 id={id} seq=1")).got(10, 1, "fifo", 1).delete(20, 1)
    };
    again("m1").is_good();
    again("m7").breaks(Promise::StoredTwice);
}
