use std::sync::Arc;

use super::*;
use crate::worker::breaker::BreakerPolicy;
use forebay_wire::v1;

const SECOND: Duration = Duration::from_secs(1);

fn plain() -> RouteTerms {
    RouteTerms { bulkhead: None, batch: None }
}

fn parcel(seq: u64, key: &str, route: usize) -> Parcel {
    let message = v1::Message { key: key.to_owned(), ..Default::default() };
    let name: Arc<str> = "s".into();
    let info = JobInfo::new(name.clone(), name, seq, 1, message);
    Parcel { lease: Lease { epoch: 1, seq, grant: seq }, route, info }
}

/// A desk with this many messages on it, and the time.
fn desk(limit: usize, messages: u64) -> (Desk, Instant) {
    let (mut desk, now) = (Desk::new(vec![plain()], Vec::new(), limit), Instant::now());
    for seq in 1..=messages {
        desk.arrive(now, parcel(seq, "", 0));
    }
    (desk, now)
}

#[track_caller]
fn take(desk: &mut Desk, now: Instant) -> Work {
    match desk.take(now) {
        Taken::Work(work) => work,
        Taken::Later(at) => panic!("nothing to do until {at:?}"),
    }
}

fn seqs(work: &Work) -> Vec<u64> {
    work.parcels.iter().map(|parcel| parcel.lease.seq).collect()
}

/// The next message's position; nothing if none may begin.
fn next(desk: &mut Desk, now: Instant) -> Option<Work> {
    match desk.take(now) {
        Taken::Work(work) => Some(work),
        Taken::Later(_) => None,
    }
}

fn finish(desk: &mut Desk, now: Instant, work: Work, verdict: Verdict) {
    let verdicts = vec![verdict; work.parcels.len()];
    desk.finish(now, work, verdicts, Duration::from_millis(10));
}

fn done(desk: &mut Desk) -> Vec<(u64, Verdict)> {
    let mut done = Vec::new();
    desk.take_done(&mut done);
    done.into_iter().map(|done| (done.lease.seq, done.verdict)).collect()
}

fn retry() -> Verdict {
    Verdict::Retry { after: None, reason: "no".to_owned() }
}

const GIVEN_BACK: Verdict = Verdict::Return { after: None };

#[test]
fn no_more_run_than_may_and_in_the_order_in_which_they_came() {
    let (mut desk, now) = desk(2, 3);
    let first = take(&mut desk, now);
    let second = take(&mut desk, now);
    assert_eq!((seqs(&first), seqs(&second)), (vec![1], vec![2]));
    assert!(!desk.may_take() && next(&mut desk, now).is_none());
    finish(&mut desk, now, second, Verdict::Ack);
    assert!(desk.may_take());
    assert_eq!(seqs(&take(&mut desk, now)), [3]);
    assert_eq!(done(&mut desk), [(2, Verdict::Ack)]);
    assert_eq!((desk.running(), desk.waiting()), (2, 0));
    drop(first);
}

#[test]
fn messages_of_a_key_go_one_after_the_other_and_other_keys_pass() {
    let (mut desk, now) = desk(8, 0);
    desk.keep_keys_in_order(true);
    for (seq, key) in [(1, "a"), (2, "a"), (3, "b"), (4, "a"), (5, "")] {
        desk.arrive(now, parcel(seq, key, 0));
    }
    let first = take(&mut desk, now);
    assert_eq!(seqs(&first), [1]);
    assert_eq!(seqs(&take(&mut desk, now)), [3]);
    assert_eq!(seqs(&take(&mut desk, now)), [5]);
    assert!(next(&mut desk, now).is_none(), "the rest waits for the first of its key");
    finish(&mut desk, now, first, Verdict::Ack);
    let second = take(&mut desk, now);
    assert_eq!(seqs(&second), [2]);
    finish(&mut desk, now, second, Verdict::Skip { reason: String::new() });
    assert_eq!(seqs(&take(&mut desk, now)), [4]);
}

#[test]
fn what_follows_a_failure_of_its_key_goes_back() {
    let (mut desk, now) = desk(8, 0);
    desk.keep_keys_in_order(true);
    for seq in 1..=3 {
        desk.arrive(now, parcel(seq, "a", 0));
    }
    let first = take(&mut desk, now);
    finish(&mut desk, now, first, retry());
    assert_eq!(done(&mut desk), [(2, GIVEN_BACK), (3, GIVEN_BACK), (1, retry())]);
    desk.arrive(now, parcel(1, "a", 0));
    assert_eq!(seqs(&take(&mut desk, now)), [1], "the key is free again");
}

#[test]
fn without_order_a_key_means_nothing() {
    let (mut desk, now) = desk(8, 0);
    desk.arrive(now, parcel(1, "a", 0));
    desk.arrive(now, parcel(2, "a", 0));
    take(&mut desk, now);
    assert_eq!(seqs(&take(&mut desk, now)), [2]);
}

#[test]
fn a_full_bulkhead_holds_up_its_own_route_alone() {
    let routes = vec![RouteTerms { bulkhead: Some(0), batch: None }, plain()];
    let (mut desk, now) = (Desk::new(routes, vec![1], 8), Instant::now());
    for (seq, route) in [(1, 0), (2, 0), (3, 1), (4, 0)] {
        desk.arrive(now, parcel(seq, "", route));
    }
    let first = take(&mut desk, now);
    assert_eq!(seqs(&first), [1]);
    assert_eq!(seqs(&take(&mut desk, now)), [3]);
    assert!(next(&mut desk, now).is_none());
    assert!(!desk.may_take());
    assert_eq!(desk.waiting(), 2);
    finish(&mut desk, now, first, Verdict::Ack);
    assert!(desk.may_take());
    assert_eq!(seqs(&take(&mut desk, now)), [2]);
    assert!(next(&mut desk, now).is_none());
}

#[test]
fn a_batch_goes_when_it_is_full_or_has_waited() {
    let routes = vec![RouteTerms { bulkhead: None, batch: Some((3, SECOND)) }];
    let (mut desk, now) = (Desk::new(routes, Vec::new(), 8), Instant::now());
    for seq in 1..=4 {
        desk.arrive(now, parcel(seq, "", 0));
    }
    let full = take(&mut desk, now);
    assert_eq!(seqs(&full), [1, 2, 3]);
    let Taken::Later(Some(at)) = desk.take(now) else { panic!("the fourth waits for others") };
    assert_eq!(at, now + SECOND);
    desk.arrive(now, parcel(5, "", 0));
    assert_eq!(seqs(&take(&mut desk, at)), [4, 5]);
    assert_eq!((desk.running(), desk.with_runners()), (2, 5));
    let verdicts = vec![Verdict::Ack, retry(), Verdict::Ack];
    desk.finish(now, full, verdicts, SECOND);
    assert_eq!(done(&mut desk), [(1, Verdict::Ack), (2, retry()), (3, Verdict::Ack)]);
}

#[test]
fn throttling_makes_everyone_pause_and_then_go_on_with_half_as_many() {
    let (mut desk, now) = desk(8, 30);
    let mut work: Vec<Work> = (0..8).map(|_| take(&mut desk, now)).collect();
    let throttled = Verdict::Throttled { after: SECOND, reason: String::new() };
    for _ in 0..3 {
        let one = work.pop().expect("eight run");
        finish(&mut desk, now, one, throttled.clone());
    }
    assert_eq!(desk.limit(), 4, "three that were told at once are told once");
    assert!(matches!(desk.take(now), Taken::Later(None)), "five run, and four may");
    for one in work {
        finish(&mut desk, now, one, GIVEN_BACK);
    }
    assert!(matches!(desk.take(now), Taken::Later(Some(at)) if at == now + SECOND));
    let now = now + SECOND;
    let mut rounds = 0;
    while desk.limit() < 8 {
        let one = take(&mut desk, now);
        finish(&mut desk, now, one, Verdict::Ack);
        desk.arrive(now, parcel(100, "", 0));
        rounds += 1;
        assert!(rounds < 100);
    }
    assert!(rounds > 10, "it grows with every round of successes, and not with every one: {rounds}");
}

#[test]
fn an_open_breaker_lets_nothing_begin_and_then_a_probe() {
    let (mut desk, now) = desk(8, 10);
    desk.set_breaker(Breaker::new(BreakerPolicy { results: 2, ..BreakerPolicy::default() }));
    for _ in 0..2 {
        let one = take(&mut desk, now);
        finish(&mut desk, now, one, retry());
    }
    assert_eq!((desk.breaker_state(), desk.credit_max(now)), (BreakerState::Open, 0));
    assert!(matches!(desk.take(now), Taken::Later(Some(at)) if at == now + 5 * SECOND));
    desk.give_back_waiting();
    assert_eq!(done(&mut desk).len(), 10);
    let now = now + 5 * SECOND;
    assert_eq!(desk.credit_max(now), 1, "one message is wanted, for the probe");
    desk.arrive(now, parcel(11, "", 0));
    let probe = take(&mut desk, now);
    desk.arrive(now, parcel(12, "", 0));
    assert!(next(&mut desk, now).is_none());
    finish(&mut desk, now, probe, Verdict::Ack);
    assert_eq!((desk.breaker_state(), desk.credit_max(now)), (BreakerState::Closed, usize::MAX));
    assert_eq!(seqs(&take(&mut desk, now)), [12]);
}

#[test]
fn what_was_parked_for_good_reason_is_no_failure_of_what_it_depends_on() {
    let (mut desk, now) = desk(8, 10);
    desk.set_breaker(Breaker::new(BreakerPolicy { results: 2, ..BreakerPolicy::default() }));
    for _ in 0..4 {
        let one = take(&mut desk, now);
        finish(&mut desk, now, one, Verdict::Park { reason: String::new() });
    }
    assert_eq!(desk.breaker_state(), BreakerState::Closed);
}

#[test]
fn a_pace_says_when_the_next_may_begin() {
    let (mut desk, now) = desk(8, 3);
    desk.set_pace(Pace::new(now, 1.0, 1));
    take(&mut desk, now);
    let Taken::Later(Some(at)) = desk.take(now) else { panic!("one a second") };
    assert!(at >= now + SECOND && at < now + 2 * SECOND);
    assert_eq!(seqs(&take(&mut desk, at)), [2]);
}

#[test]
fn closing_gives_back_what_has_not_begun_and_begins_nothing() {
    let routes = vec![
        RouteTerms { bulkhead: Some(0), batch: None },
        RouteTerms { bulkhead: None, batch: Some((9, SECOND)) },
    ];
    let (mut desk, now) = (Desk::new(routes, vec![1], 8), Instant::now());
    desk.keep_keys_in_order(true);
    for (seq, key, route) in [(1, "a", 0), (2, "a", 0), (3, "b", 0), (4, "c", 1), (5, "d", 0), (6, "d", 0)] {
        desk.arrive(now, parcel(seq, key, route));
    }
    let running = take(&mut desk, now);
    assert_eq!(seqs(&running), [1]);
    assert!(next(&mut desk, now).is_none());
    desk.close();
    let mut back = done(&mut desk);
    back.sort_by_key(|(seq, _)| *seq);
    assert_eq!(back, [2, 3, 4, 5, 6].map(|seq| (seq, GIVEN_BACK)));
    assert_eq!((desk.waiting(), desk.running()), (0, 1));
    finish(&mut desk, now, running, Verdict::Ack);
    assert_eq!(done(&mut desk), [(1, Verdict::Ack)]);
    desk.arrive(now, parcel(7, "", 0));
    assert!(next(&mut desk, now).is_none());
}

#[test]
fn a_lost_connection_forgets_what_has_not_begun_and_keys_in_work_stay_taken() {
    let (mut desk, now) = desk(8, 0);
    desk.keep_keys_in_order(true);
    for (seq, key) in [(1, "a"), (2, "a"), (3, "b")] {
        desk.arrive(now, parcel(seq, key, 0));
    }
    let running = take(&mut desk, now);
    desk.forget_waiting();
    assert!(!desk.has_done() && desk.waiting() == 0);
    desk.arrive(now, parcel(1, "a", 0));
    desk.arrive(now, parcel(3, "b", 0));
    assert_eq!(seqs(&take(&mut desk, now)), [3]);
    assert!(next(&mut desk, now).is_none(), "the first is still being worked on in here");
    finish(&mut desk, now, running, Verdict::Ack);
    assert_eq!(seqs(&take(&mut desk, now)), [1]);
}
