//! Keys that are locked by position: what comes before all that is leased of a key may go, what comes after it may
//! not. And the order in which keys are served when they take turns.

use super::{check, check_both_ways, expect};

const START: &str = "set strategy ordered / set lock position / set batch 10 / set backoff 0s 0s";

#[track_caller]
fn check_locked(script: &str, expected: super::Expect) {
    check(&format!("{START} / {script}"), expected);
}

#[track_caller]
fn check_locked_both_ways(script: &str, expected: super::Expect) {
    check_both_ways(&format!("{START} / {script}"), expected);
}

#[test]
fn the_first_of_three_goes_again_while_the_others_are_held() {
    check_locked_both_ways(
        "publish a a a a / P polls 3 / Q polls 9 / P nacks 1 / crash / Q polls 9 / R polls 9 / Q acks 1 / P acks 2 \
         / P nacks 3 / wait 1s / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    deliver 2#1 to P when durable
            0s    deliver 3#1 to P when durable
            0s    append leased 1, 2, 3 for 30s
            0s    P: retrying
            0s    deliver 1#2 to Q when durable
            0s    append failed 1 until 0s
            0s    append leased 1 for 30s
            0s    append opened 2
            0s    Q: acked
            0s    append acked 1
            0s    P: acked
            0s    append acked 2
            0s    P: retrying
            0s    deliver 3#2 to Q when durable
            0s    deliver 4#1 to Q when durable
            0s    append failed 3 until 0s
            0s    append leased 3, 4 for 30s
            1s    floor 2, lag 2, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn settling_some_of_a_delivery_unlocks_nothing_behind_it() {
    check_locked(
        "publish a a a a / P polls 3 / Q polls 9 / P acks 1 / P acks 3 / P acks 2",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    deliver 2#1 to P when durable
            0s    deliver 3#1 to P when durable
            0s    append leased 1, 2, 3 for 30s
            0s    P: acked
            0s    append acked 1
            0s    P: acked
            0s    append acked 3
            0s    P: acked
            0s    deliver 4#1 to Q when durable
            0s    append acked 2
            0s    append leased 4 for 30s
        "#]],
    );
}

#[test]
fn what_was_given_back_behind_a_leased_one_waits_for_it() {
    check_locked_both_ways(
        "publish a a a a / P polls 3 / Q polls 9 / P nacks 2 / crash / Q polls 9 / P acks 1 / Q acks 2 / P acks 3",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    deliver 2#1 to P when durable
            0s    deliver 3#1 to P when durable
            0s    append leased 1, 2, 3 for 30s
            0s    P: retrying
            0s    append failed 2 until 0s
            0s    append opened 2
            0s    P: acked
            0s    deliver 2#2 to Q when durable
            0s    append acked 1
            0s    append leased 2 for 30s
            0s    Q: acked
            0s    append acked 2
            0s    P: acked
            0s    append acked 3
        "#]],
    );
}

#[test]
fn nothing_goes_along_past_one_that_is_leased_or_waits() {
    check_locked(
        "publish a a a a a / P polls 4 / P nacks 1 / P nacks 2 / P nacks 4 in 9s / Q polls 9 / Q acks 1-2 / P acks 3 \
         / Q polls 9 / wait 9s",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    deliver 2#1 to P when durable
            0s    deliver 3#1 to P when durable
            0s    deliver 4#1 to P when durable
            0s    append leased 1, 2, 3, 4 for 30s
            0s    P: retrying
            0s    append failed 1 until 0s
            0s    P: retrying
            0s    append failed 2 until 0s
            0s    P: retrying
            0s    append failed 4 until 9s
            0s    deliver 1#2 to Q when durable
            0s    deliver 2#2 to Q when durable
            0s    append leased 1, 2 for 30s
            0s    Q: acked, acked
            0s    append acked 1-2
            0s    P: acked
            0s    append acked 3
            4s    checkpoint 3
            9s    deliver 4#2 to Q when durable
            9s    deliver 5#1 to Q when durable
            9s    append leased 4, 5 for 30s
        "#]],
    );
}

#[test]
fn what_comes_after_a_delayed_one_waits_and_what_comes_before_it_does_not() {
    check_locked(
        "publish a a+5s a / P polls 9 / Q polls 9 / P nacks 1 / Q acks 1 / Q polls 9 / wait 5s",
        expect![[r#"
        0s    deliver 1#1 to P when durable
        0s    append leased 1 for 30s
        0s    P: retrying
        0s    deliver 1#2 to Q when durable
        0s    append failed 1 until 0s
        0s    append leased 1 for 30s
        0s    Q: acked
        0s    append acked 1
        4s    checkpoint 1
        5s    deliver 2#1 to Q when durable
        5s    deliver 3#1 to Q when durable
        5s    append leased 2, 3 for 30s
    "#]],
    );
}

#[test]
fn a_parked_one_that_holds_its_key_holds_all_of_it() {
    check_locked_both_ways(
        "set hold / publish a a a / P polls 2 / P parks 2 / P nacks 1 / crash / Q polls 9 / replay all / wait 1s",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    deliver 2#1 to P when durable
            0s    append leased 1, 2 for 30s
            0s    P: parked
            0s    append parked 2 by Nack
            0s    P: retrying
            0s    append failed 1 until 0s
            0s    append opened 2
            0s    job 1 matches 1
            0s    deliver 1#2 to Q when durable
            0s    deliver 2#1 to Q when durable
            0s    deliver 3#1 to Q when durable
            0s    append job 1 started
            0s    append replayed 2 by job 1
            0s    append leased 1, 2, 3 for 30s
            0s    append job 1 done
        "#]],
    );
}

#[test]
fn the_lock_can_be_changed_while_messages_are_held() {
    check_both_ways(
        "set strategy ordered / set batch 3 / set backoff 0s 0s / publish a a a b / P polls 3 / P nacks 1 / \
         set lock position / crash / P polls 1 / set lock delivery / P nacks 1 / P polls 9 / P acks 2-3",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    deliver 2#1 to P when durable
            0s    deliver 3#1 to P when durable
            0s    append leased 1, 2, 3 for 30s
            0s    P: retrying
            0s    append failed 1 until 0s
            0s    append group changed
            0s    read 1-4
            0s    append opened 2
            0s    deliver 1#2 to P when durable
            0s    append leased 1 for 30s
            0s    append group changed
            0s    read 1-4
            0s    P: retrying
            0s    append failed 1 until 0s
            0s    deliver 4#1 to P when durable
            0s    append leased 4 for 30s
            0s    P: acked, acked
            0s    append acked 2-3
        "#]],
    );
}

const TURNS: &str = "set strategy ordered / set lock position / set batch 10 / set backoff 0s 0s / set fair";

/// A receive takes as many as it may of the key at the head, then of the next. A key that was served goes to the
/// tail, also when its messages come back at once.
#[test]
fn keys_rotate_when_what_was_served_comes_back_at_once() {
    check(
        &format!(
            "{TURNS} / publish c b a c b c / P polls 2 for 0s / +1s / P polls 2 for 0s / +1s / P polls 2 for 0s / \
             +1s / \
             P polls 4 for 0s / +1s / publish d / P polls 9 for 0s"
        ),
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    deliver 4#1 to P when durable
            0s    append leased 1, 4 for 0s
            1s    append failed 1 until 1s, 4 until 1s
            1s    deliver 2#1 to P when durable
            1s    deliver 5#1 to P when durable
            1s    append leased 2, 5 for 0s
            2s    append failed 2 until 2s, 5 until 2s
            2s    deliver 3#1 to P when durable
            2s    deliver 1#2 to P when durable
            2s    append leased 3, 1 for 0s
            3s    append failed 3 until 3s, 1 until 3s
            3s    deliver 2#2 to P when durable
            3s    deliver 5#2 to P when durable
            3s    deliver 3#2 to P when durable
            3s    deliver 1#3 to P when durable
            3s    append leased 2, 5, 3, 1 for 0s
            4s    append failed 2 until 4s, 5 until 4s, 3 until 4s, 1 until 4s
            4s    deliver 2#3 to P when durable
            4s    deliver 5#3 to P when durable
            4s    deliver 3#3 to P when durable
            4s    deliver 1#4 to P when durable
            4s    deliver 4#2 to P when durable
            4s    deliver 6#1 to P when durable
            4s    deliver 7#1 to P when durable
            4s    append leased 2, 5, 3, 1, 4, 6, 7 for 0s
        "#]],
    );
}
