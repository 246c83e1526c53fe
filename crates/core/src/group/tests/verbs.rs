//! Answers: how leases end, one by one.

use super::{check, check_both_ways, expect};

#[test]
fn a_parked_message_keeps_its_reason_its_consumer_and_its_history() {
    check_both_ways(
        "publish 3 / A joins 3 / A nacks 1 because slow / A parks 2 because bad / +100ms \
         / A parks 1 because bad / A parks 3 / parked / crash / parked / figures",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: retrying
            0s    append failed 1 until 0.1s
            0s    A: parked
            0s    append parked 2 by Nack
            0.1s  deliver 1#2 to A
            0.1s  append handed 1
            0.1s  A: parked
            0.1s  append parked 1 by Nack
            0.1s  A: parked
            0.1s  append parked 3 by Nack
            0.1s  parked 1 after 2: #1 A slow; #2 A bad
            0.1s  parked 2 after 1: #1 A bad
            0.1s  parked 3 after 1: #1 A (no reason given)
            0.1s  reasons: 1 (no reason given), 2 bad
            0.1s  append opened 2
            0.1s  parked 1 after 2: #1 A slow; #2 A bad
            0.1s  parked 2 after 1: #1 A bad
            0.1s  parked 3 after 1: #1 A (no reason given)
            0.1s  reasons: 1 (no reason given), 2 bad
            0.1s  floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 3
        "#]],
    );
}

#[test]
fn what_is_given_back_was_never_tried() {
    check_both_ways(
        "set retries 0 / publish 2 / P polls 2 / P returns 1 / P polls 1 / P returns 1 / P acks 1 / figures \
         / crash / P polls 1 / P nacks 1 / parked",
        expect![[r#"
            0s    deliver 1-2#1 to P when durable
            0s    append leased 1-2 for 30s
            0s    P: returned
            0s    append returned 1
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 30s
            0s    P: returned
            0s    append returned 1
            0s    P: not yours (superseded)
            0s    floor 0, lag 2, in flight 1, ready 1, waiting 0, parked 0
            0s    append opened 2
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 30s
            0s    P: parked
            0s    append parked 1 by Nack
            0s    parked 1 after 1: #1 P (no reason given)
            0s    reasons: 1 (no reason given)
        "#]],
    );
}

#[test]
fn what_is_given_back_for_a_while_was_never_tried_and_comes_when_that_is_over() {
    check_both_ways(
        "set retries 0 / publish 3 / P polls 3 / P returns 1-2 for 10s / P acks late 1 / figures / wait 9s \
         / crash / figures / P polls 5 / wait 1s / P nacks 1 / parked / P acks 2-3 / figures",
        expect![[r#"
            0s    deliver 1-3#1 to P when durable
            0s    append leased 1-3 for 30s
            0s    P: returned, returned
            0s    append snoozed 1-2 until 10s
            0s    P: not yours (superseded)
            0s    floor 0, lag 3, in flight 1, ready 0, waiting 2, parked 0
            9s    append opened 2
            9s    floor 0, lag 3, in flight 1, ready 0, waiting 2, parked 0
            10s   deliver 1#1 to P when durable
            10s   deliver 2#1 to P when durable
            10s   append leased 1, 2 for 30s
            10s   P: parked
            10s   append parked 1 by Nack
            10s   parked 1 after 1: #1 P (no reason given)
            10s   reasons: 1 (no reason given)
            10s   P: acked, acked
            10s   append acked 2-3
            10s   floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 1
        "#]],
    );
}

#[test]
fn giving_back_for_a_while_keeps_earlier_failures_and_their_count() {
    check_both_ways(
        "set retries 1 / publish 1 / A joins 1 / A nacks 1 in 1s / wait 1s / A returns 1 for 5s / wait 5s \
         / A returns 1 for 0s / A nacks 1 / parked",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    append failed 1 until 1s
            1s    deliver 1#2 to A
            1s    append handed 1
            1s    A: returned
            1s    append snoozed 1 until 6s
            6s    deliver 1#2 to A
            6s    append handed 1
            6s    A: returned
            6s    deliver 1#2 to A
            6s    append snoozed 1 until 6s
            6s    append handed 1
            6s    A: parked
            6s    append parked 1 by Nack
            6s    parked 1 after 2: #1 A (no reason given); #2 A (no reason given)
            6s    reasons: 1 (no reason given)
        "#]],
    );
}

#[test]
fn nothing_is_given_back_for_longer_than_a_year_and_a_message_may_expire_meanwhile() {
    check(
        "publish . .-60s / A joins 2 / A returns 1-2 for 100000000s / wait 60s / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: returned, returned
            0s    append snoozed 1-2 until 31622400s
            60s   append expired 2
            60s   floor 0, lag 1, in flight 0, ready 0, waiting 1, parked 0
        "#]],
    );
}

#[test]
fn a_group_that_rests_hands_out_nothing_and_is_settled_all_the_same() {
    check(
        "publish 4 / A joins 2 / B joins 1 / A rests 1 for 10s / resting / A acks 2 / publish 1 / P polls 9 / wait 9s \
         / resting / wait 1s / resting / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    deliver 3#1 to B
            0s    append handed 3
            0s    A: returned
            0s    append returned 1
            0s    resting for 10s
            0s    A: acked
            0s    append acked 2
            4s    checkpoint 0
            9s    resting for 1s
            10s   deliver 1#1 to P when durable
            10s   deliver 4#1 to P when durable
            10s   deliver 5#1 to A
            10s   append leased 1, 4 for 30s
            10s   append handed 5
            10s   not resting
            10s   floor 0, lag 4, in flight 4, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_rest_is_made_longer_and_never_shorter_and_lasts_five_minutes_at_most() {
    check(
        "publish 4 / A joins 4 / A rests 1 for 10s / A rests 2 for 2s / resting / A rests 3 for 20s / resting \
         / A rests 4 for 3600s / resting / wait 300s",
        expect![[r#"
            0s    deliver 1-4#1 to A
            0s    append handed 1-4
            0s    A: returned
            0s    append returned 1
            0s    A: returned
            0s    append returned 2
            0s    resting for 10s
            0s    A: returned
            0s    append returned 3
            0s    resting for 20s
            0s    A: returned
            0s    append returned 4
            0s    resting for 300s
            300s  deliver 1#1 to A
            300s  deliver 2#1 to A
            300s  deliver 3#1 to A
            300s  deliver 4#1 to A
            300s  append handed 1-4
        "#]],
    );
}

#[test]
fn only_one_who_holds_a_message_can_ask_for_a_rest() {
    check(
        "publish 2 / A joins 1 / A acks 1 / A rests 1 for 10s / resting / publish 1 / A rests 1-2 for 10s / resting",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: acked
            0s    deliver 2#1 to A
            0s    append acked 1
            0s    append handed 2
            0s    A: not yours (gone)
            0s    not resting
            0s    A: not yours (gone), returned
            0s    append returned 2
            0s    resting for 10s
        "#]],
    );
}

#[test]
fn a_restart_ends_a_rest() {
    check(
        "publish 2 / A joins 2 / A rests 1 for 60s / crash / resting / A joins 1",
        expect![[r#"
        0s    deliver 1-2#1 to A
        0s    append handed 1-2
        0s    A: returned
        0s    append returned 1
        0s    append opened 2
        0s    not resting
        0s    deliver 1#1 to A
        0s    append handed 1
    "#]],
    );
}

#[test]
fn no_more_than_the_newest_failures_are_remembered() {
    check(
        "set retries none / publish 1 / A joins 1 / A nacks 1 because one / wait 1s \
         / A nacks 1 because two / wait 1s / A nacks 1 because three / wait 1s \
         / A nacks 1 because four / wait 1s / A nacks 1 because five / wait 2s \
         / A nacks 1 because six / wait 4s / A parks 1 because seven / parked",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    append failed 1 until 0.1s
            0.1s  deliver 1#2 to A
            0.1s  append handed 1
            1s    A: retrying
            1s    append failed 1 until 1.2s
            1.2s  deliver 1#3 to A
            1.2s  append handed 1
            2s    A: retrying
            2s    append failed 1 until 2.4s
            2.4s  deliver 1#4 to A
            2.4s  append handed 1
            3s    A: retrying
            3s    append failed 1 until 3.8s
            3.8s  deliver 1#5 to A
            3.8s  append handed 1
            4s    A: retrying
            4s    append failed 1 until 5.6s
            5.6s  deliver 1#6 to A
            5.6s  append handed 1
            6s    A: retrying
            6s    append failed 1 until 9.2s
            9.2s  deliver 1#7 to A
            9.2s  append handed 1
            10s   A: parked
            10s   append parked 1 by Nack
            10s   parked 1 after 7: #3 A three; #4 A four; #5 A five; #6 A six; #7 A seven
            10s   reasons: 1 seven
        "#]],
    );
}

#[test]
fn a_skipped_message_is_done_with() {
    check_both_ways(
        "publish 3 / A joins 3 / A skips 2 / A skips 1 / figures / crash / figures / B joins 9",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: skipped
            0s    append skipped 2
            0s    A: skipped
            0s    append skipped 1
            0s    floor 2, lag 1, in flight 1, ready 0, waiting 0, parked 0
            0s    append opened 2
            0s    floor 2, lag 1, in flight 0, ready 1, waiting 0, parked 0
            0s    deliver 3#2 to B
            0s    append handed 3
        "#]],
    );
}

#[test]
fn a_moved_message_is_settled_here_and_published_there_in_one_go() {
    check_both_ways(
        "publish 2 / A joins 2 / A moves 1 / figures / crash / figures / B joins 9",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: moving
            0s    append moving 1 to elsewhere
            0s    move 1 to elsewhere as 1
            0s    append stream elsewhere created
            0s    append moved 1
            0s    append published 1 and 0 more in stream 2
            0s    floor 1, lag 1, in flight 1, ready 0, waiting 0, parked 0
            0s    append opened 2
            0s    floor 1, lag 1, in flight 0, ready 1, waiting 0, parked 0
            0s    deliver 2#2 to B
            0s    append handed 2
        "#]],
    );
}

#[test]
fn a_move_that_a_crash_interrupts_is_resumed() {
    check_both_ways(
        "publish 2 / A joins 2 / moves wait / A moves 1 / figures / crash / figures / B joins 9 \
         / B acks 2 / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: moving
            0s    append moving 1 to elsewhere
            0s    asks for 1 to go to elsewhere
            0s    floor 0, lag 2, in flight 1, ready 0, waiting 0, parked 0
            0s    append opened 2
            0s    move 1 to elsewhere as 1
            0s    append stream elsewhere created
            0s    append moved 1
            0s    append published 1 and 0 more in stream 2
            0s    floor 1, lag 1, in flight 0, ready 1, waiting 0, parked 0
            0s    deliver 2#2 to B
            0s    append handed 2
            0s    B: acked
            0s    append acked 2
            0s    floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_message_is_moved_once_however_often_the_group_is_asked() {
    check(
        "publish 2 / A joins 2 / moves wait / A moves 1 / A acks 2 / +10s / moves go / moves go \
         / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: moving
            0s    append moving 1 to elsewhere
            0s    asks for 1 to go to elsewhere
            0s    A: acked
            0s    append acked 2
            10s   move 1 to elsewhere as 1
            10s   append stream elsewhere created
            10s   append moved 1
            10s   append published 1 and 0 more in stream 2
            10s   floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_message_waits_for_room_where_it_is_moved_to() {
    check(
        "elsewhere 1 / publish 2 / A joins 2 / A moves 1 / A moves 2 / figures / wait 3s \
         / elsewhere purge / wait 5s / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: moving
            0s    append moving 1 to elsewhere
            0s    move 1 to elsewhere as 1
            0s    append moved 1
            0s    append published 1 and 0 more in stream 2
            0s    A: moving
            0s    append moving 2 to elsewhere
            0s    cannot move 2: the stream has no room just now
            0s    floor 1, lag 1, in flight 0, ready 0, waiting 0, parked 0
            1s    cannot move 2: the stream has no room just now
            2s    cannot move 2: the stream has no room just now
            3s    cannot move 2: the stream has no room just now
            3s    append purged through 1
            3s    append released before 2
            4s    checkpoint 1
            4s    move 2 to elsewhere as 2
            4s    append moved 2
            4s    append published 2 and 0 more in stream 2
            8s    checkpoint 2
            8s    floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "elsewhere 1 / publish 2 / A joins 2 / A moves 1 / A moves 2 / crash / figures \
         / elsewhere purge / wait 5s / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: moving
            0s    append moving 1 to elsewhere
            0s    move 1 to elsewhere as 1
            0s    append moved 1
            0s    append published 1 and 0 more in stream 2
            0s    A: moving
            0s    append moving 2 to elsewhere
            0s    cannot move 2: the stream has no room just now
            0s    append opened 2
            0s    cannot move 2: the stream has no room just now
            0s    floor 1, lag 1, in flight 0, ready 0, waiting 0, parked 0
            0s    append purged through 1
            0s    append released before 2
            1s    move 2 to elsewhere as 2
            1s    append moved 2
            1s    append published 2 and 0 more in stream 2
            5s    checkpoint 2
            5s    floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn what_cannot_be_moved_is_parked_with_the_reason() {
    check_both_ways(
        "limit streams 1 / publish 1 / A joins 1 / A moves 1 / parked / figures / crash / parked",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: moving
            0s    append moving 1 to elsewhere
            0s    cannot move 1: the stream cannot take the message
            0s    append parked 1 by Nack
            0s    parked 1 after 1: #1 ? cannot be moved to elsewhere: too many streams or groups. limit=`1`
            0s    reasons: 1 cannot be moved to elsewhere: too many streams or groups. limit=`1`
            0s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 1
            0s    append opened 2
            0s    parked 1 after 1: #1 ? cannot be moved to elsewhere: too many streams or groups. limit=`1`
            0s    reasons: 1 cannot be moved to elsewhere: too many streams or groups. limit=`1`
        "#]],
    );
}

#[test]
fn a_moving_message_is_nobodys_until_it_is_there() {
    check(
        "publish 2 / A joins 2 / moves wait / A moves 1 / A acks 1 / A acks late 1 / B joins 1 \
         / A lost / moves go / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: moving
            0s    append moving 1 to elsewhere
            0s    asks for 1 to go to elsewhere
            0s    A: not yours (gone)
            0s    A: not yours (gone)
            0s    deliver 2#2 to B
            0s    append handed 2
            0s    move 1 to elsewhere as 1
            0s    append stream elsewhere created
            0s    append moved 1
            0s    append published 1 and 0 more in stream 2
            0s    floor 1, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn retries_back_off_by_the_policy() {
    check(
        "publish 1 / A joins 1 / A nacks 1 / wait 100ms / A nacks 1 / wait 200ms / A nacks 1 \
         / wait 399ms / wait 1ms",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    append failed 1 until 0.1s
            0.1s  deliver 1#2 to A
            0.1s  append handed 1
            0.1s  A: retrying
            0.1s  append failed 1 until 0.3s
            0.3s  deliver 1#3 to A
            0.3s  append handed 1
            0.3s  A: retrying
            0.3s  append failed 1 until 0.7s
            0.7s  deliver 1#4 to A
            0.7s  append handed 1
        "#]],
    );
}

#[test]
fn a_delay_of_the_consumers_own_replaces_the_policy() {
    check(
        "publish 1 / A joins 1 / A nacks 1 in 0s / A nacks 1 in 60s / wait 60s",
        expect![[r#"
        0s    deliver 1#1 to A
        0s    append handed 1
        0s    A: retrying
        0s    deliver 1#2 to A
        0s    append failed 1 until 0s
        0s    append handed 1
        0s    A: retrying
        0s    append failed 1 until 60s
        60s   deliver 1#3 to A
        60s   append handed 1
    "#]],
    );
}

#[test]
fn what_is_used_up_is_parked_skipped_or_moved() {
    check(
        "retries 0 / publish 1 / A joins 1 / A nacks 1 because bad / figures",
        expect![[r#"
        0s    deliver 1#1 to A
        0s    append handed 1
        0s    A: parked
        0s    append parked 1 by Nack
        0s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 1
    "#]],
    );
    check(
        "retries 0 / set exhausted skip / publish 1 / A joins 1 / A nacks 1 because bad / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: skipped
            0s    append skipped 1
            0s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "retries 0 / set exhausted move / publish 1 / A joins 1 / A nacks 1 because bad / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: moving
            0s    append moving 1 to elsewhere
            0s    move 1 to elsewhere as 1
            0s    append stream elsewhere created
            0s    append moved 1
            0s    append published 1 and 0 more in stream 2
            0s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "retries 1 / set exhausted move / publish 1 / A joins 1 / A lost / B joins 1 / B lost \
         / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    deliver 1#2 to B
            0s    append handed 1
            0s    append moving 1 to elsewhere
            0s    move 1 to elsewhere as 1
            0s    append stream elsewhere created
            0s    append moved 1
            0s    append published 1 and 0 more in stream 2
            0s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "retries 0 / set exhausted skip / publish 1 / A joins 1 / wait 30s / figures",
        expect![[r#"
        0s    deliver 1#1 to A
        0s    append handed 1
        30s   append skipped 1
        30s   floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
    "#]],
    );
}

#[test]
fn unlimited_retries_never_end_and_the_wait_has_a_limit() {
    check(
        "set retries none / publish 1 / A joins 1 / A nacks 1 in 0s / A nacks 1 in 0s \
         / A nacks 1 in 0s / A nacks 1 in 0s / A nacks 1 in 0s / A nacks 1 in 0s / A nacks 1 in 0s \
         / A nacks 1 in 0s / A nacks 1 in 0s / A nacks 1 in 0s / A nacks 1 in 0s / A nacks 1 \
         / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    deliver 1#2 to A
            0s    append failed 1 until 0s
            0s    append handed 1
            0s    A: retrying
            0s    deliver 1#3 to A
            0s    append failed 1 until 0s
            0s    append handed 1
            0s    A: retrying
            0s    deliver 1#4 to A
            0s    append failed 1 until 0s
            0s    append handed 1
            0s    A: retrying
            0s    deliver 1#5 to A
            0s    append failed 1 until 0s
            0s    append handed 1
            0s    A: retrying
            0s    deliver 1#6 to A
            0s    append failed 1 until 0s
            0s    append handed 1
            0s    A: retrying
            0s    deliver 1#7 to A
            0s    append failed 1 until 0s
            0s    append handed 1
            0s    A: retrying
            0s    deliver 1#8 to A
            0s    append failed 1 until 0s
            0s    append handed 1
            0s    A: retrying
            0s    deliver 1#9 to A
            0s    append failed 1 until 0s
            0s    append handed 1
            0s    A: retrying
            0s    deliver 1#10 to A
            0s    append failed 1 until 0s
            0s    append handed 1
            0s    A: retrying
            0s    deliver 1#11 to A
            0s    append failed 1 until 0s
            0s    append handed 1
            0s    A: retrying
            0s    deliver 1#12 to A
            0s    append failed 1 until 0s
            0s    append handed 1
            0s    A: retrying
            0s    append failed 1 until 30s
            0s    floor 0, lag 1, in flight 0, ready 0, waiting 1, parked 0
        "#]],
    );
}

#[test]
fn an_extended_lease_ends_later() {
    check(
        "publish 2 / A joins 2 / +20s / A extends 1 by 30s / wait 29s / wait 1s / wait 19s / wait 1s",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            20s   A: extended
            30s   append failed 2 until 30.1s
            30.1s deliver 2#2 to A
            30.1s append handed 2
            50s   append failed 1 until 50.1s
            50.1s deliver 1#2 to A
            50.1s append handed 1
            60.1s append failed 2 until 60.3s
            60.3s deliver 2#3 to A
            60.3s append handed 2
        "#]],
    );
}

#[test]
fn an_extension_counts_from_now_and_may_shorten_a_lease() {
    check(
        "publish 1 / A joins 1 / A extends 1 by 5s / wait 5s",
        expect![[r#"
        0s    deliver 1#1 to A
        0s    append handed 1
        0s    A: extended
        5s    append failed 1 until 5.1s
    "#]],
    );
}

#[test]
fn an_extended_lease_on_the_clock_is_still_good_after_a_restart() {
    check_both_ways(
        "publish 2 / P polls 2 / +20s / P extends 1 by 30s / crash / wait 10s / P acks 1 / P acks 2 \
         / figures",
        expect![[r#"
            0s    deliver 1-2#1 to P when durable
            0s    append leased 1-2 for 30s
            20s   P: extended
            20s   append extended 1 to 50s
            20s   append opened 2
            30s   append failed 2 until 30.1s
            30s   P: acked
            30s   append acked 1
            30s   P: not yours (lapsed)
            30s   floor 1, lag 1, in flight 0, ready 0, waiting 1, parked 0
        "#]],
    );
    check_both_ways(
        "publish 1 / P polls 1 / +20s / P extends 1 by 30s / crash / +25s / P extends 1 by 10s \
         / wait 10s",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 30s
            20s   P: extended
            20s   append extended 1 to 50s
            20s   append opened 2
            45s   P: extended
            45s   append extended 1 to 55s
            55s   append failed 1 until 55.1s
        "#]],
    );
}

#[test]
fn an_extension_by_nothing_ends_the_lease() {
    check(
        "publish 2 / A joins 1 / A extends 1 by 0s / wait 100ms / A acks 1 / A acks 2 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: extended
            0s    deliver 2#1 to A
            0s    append failed 1 until 0.1s
            0s    append handed 2
            0.1s  A: not yours (superseded)
            0.1s  A: acked
            0.1s  deliver 1#2 to A
            0.1s  append acked 2
            0.1s  append handed 1
            0.1s  floor 0, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "publish 1 / P polls 1 / P extends 1 by 0s / P acks 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 30s
            0s    P: extended
            0s    append extended 1 to 0s
            0s    append failed 1 until 0.1s
            0s    P: not yours (lapsed)
            0s    floor 0, lag 1, in flight 0, ready 0, waiting 1, parked 0
        "#]],
    );
}

#[test]
fn a_lapsed_lease_cannot_be_extended() {
    check(
        "publish 1 / A joins 1 / wait 30s / A extends 1 by 30s / wait 100ms / A extends 1 by 40s \
         / wait 40s",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            30s   append failed 1 until 30.1s
            30s   A: not yours (superseded)
            30.1s deliver 1#2 to A
            30.1s append handed 1
            30.1s A: extended
            70.1s append failed 1 until 70.3s
        "#]],
    );
}

#[test]
fn part_of_a_delivery_can_be_extended_and_the_rest_lapses() {
    check(
        "publish 4 / A joins 4 / A extends 2-3 by 60s / wait 30s / figures / A acks 2-3 / figures",
        expect![[r#"
            0s    deliver 1-4#1 to A
            0s    append handed 1-4
            0s    A: extended, extended
            30s   append failed 1 until 30.1s, 4 until 30.1s
            30s   floor 0, lag 4, in flight 2, ready 0, waiting 2, parked 0
            30s   A: acked, acked
            30s   append acked 2-3
            30s   floor 0, lag 2, in flight 0, ready 0, waiting 2, parked 0
        "#]],
    );
}

#[test]
fn a_late_ack_counts_while_nobody_has_the_message() {
    check(
        "publish 1 / P polls 1 for 5s / wait 5s / P acks 1 / P acks late 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 5s
            5s    append failed 1 until 5.1s
            5s    P: not yours (lapsed)
            5s    P: acked
            5s    append acked 1
            5s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "publish 1 / P polls 1 for 5s / wait 6s / figures / P acks late 1 / figures / Q polls 1",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 5s
            5s    append failed 1 until 5.1s
            6s    floor 0, lag 1, in flight 0, ready 1, waiting 0, parked 0
            6s    P: acked
            6s    append acked 1
            6s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "publish 1 / P polls 1 for 5s / wait 6s / crash / P acks late 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 5s
            5s    append failed 1 until 5.1s
            6s    append opened 2
            6s    P: acked
            6s    append acked 1
            6s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_late_ack_is_refused_once_another_has_the_message() {
    check(
        "publish 1 / P polls 1 for 5s / Q polls 1 / wait 6s / P acks late 1 / Q acks 1 \
         / P acks late 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 5s
            5s    append failed 1 until 5.1s
            5.1s  deliver 1#2 to Q when durable
            5.1s  append leased 1 for 30s
            6s    P: not yours (superseded)
            6s    Q: acked
            6s    append acked 1
            6s    P: not yours (gone)
            6s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn only_an_ack_may_be_late() {
    check(
        "publish 1 / P polls 1 for 5s / wait 5s / P parks 1 / P nacks 1 / P extends 1 by 5s \
         / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 5s
            5s    append failed 1 until 5.1s
            5s    P: not yours (lapsed)
            5s    P: not yours (lapsed)
            5s    P: not yours (lapsed)
            5s    floor 0, lag 1, in flight 0, ready 0, waiting 1, parked 0
        "#]],
    );
}

#[test]
fn a_late_ack_of_a_message_that_was_given_back_is_refused() {
    check(
        "publish 1 / P polls 1 / P goodbye / P acks late 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 30s
            0s    append returned 1
            0s    P: not yours (superseded)
            0s    floor 0, lag 1, in flight 0, ready 1, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn an_answer_from_before_a_replay_is_stale() {
    check(
        "publish 1 / P polls 1 / P parks 1 because bad / replay all / P acks late 1 / P acks 1 \
         / Q polls 1 / P acks late 1 / Q acks 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 30s
            0s    P: parked
            0s    append parked 1 by Nack
            0s    job 1 matches 1
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append job 1 done
            0s    P: not yours (superseded)
            0s    P: not yours (superseded)
            0s    deliver 1#1 to Q when durable
            0s    append leased 1 for 30s
            0s    P: not yours (superseded)
            0s    Q: acked
            0s    append acked 1
            0s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn an_answer_from_before_a_reset_is_stale() {
    check(
        "publish 1 / P polls 1 / reset beginning / P acks late 1 / P acks 1 / Q polls 1 / P acks 1 \
         / Q acks 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 30s
            0s    append reset to 0
            0s    read 1
            0s    P: not yours (superseded)
            0s    P: not yours (superseded)
            0s    deliver 1#1 to Q when durable
            0s    append leased 1 for 30s
            0s    P: not yours (superseded)
            0s    Q: acked
            0s    append acked 1
            0s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn an_answer_from_before_a_crash_is_stale_unless_its_lease_hangs_on_the_clock() {
    check_both_ways(
        "publish 2 / A joins 1 / P polls 1 / crash / A acks 1 / B joins 1 / A acks 1 / P acks 2 \
         / B acks 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    deliver 2#1 to P when durable
            0s    append leased 2 for 30s
            0s    append opened 2
            0s    A: not yours (superseded)
            0s    deliver 1#2 to B
            0s    append handed 1
            0s    A: not yours (superseded)
            0s    P: acked
            0s    append acked 2
            0s    B: acked
            0s    append acked 1
            0s    floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn two_answers_in_one_turn_settle_once() {
    check(
        "publish 1 / A joins 1 / A acks 1 & A nacks 1 & A parks 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: acked
            0s    A: not yours (gone)
            0s    A: not yours (gone)
            0s    append acked 1
            0s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn every_verb_gives_its_slot_back() {
    check(
        "publish 9 / A joins 1 / A acks 1 / A skips 2 / A parks 3 / A nacks 4 / A moves 5 \
         / A extends 6 by 0s / members",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: acked
            0s    deliver 2#1 to A
            0s    append acked 1
            0s    append handed 2
            0s    A: skipped
            0s    deliver 3#1 to A
            0s    append skipped 2
            0s    append handed 3
            0s    A: parked
            0s    deliver 4#1 to A
            0s    append parked 3 by Nack
            0s    append handed 4
            0s    A: retrying
            0s    deliver 5#1 to A
            0s    append failed 4 until 0.1s
            0s    append handed 5
            0s    A: moving
            0s    deliver 6#1 to A
            0s    append moving 5 to elsewhere
            0s    append handed 6
            0s    move 5 to elsewhere as 1
            0s    append stream elsewhere created
            0s    append moved 5
            0s    append published 1 and 0 more in stream 2
            0s    A: extended
            0s    deliver 7#1 to A
            0s    append failed 6 until 0.1s
            0s    append handed 7
            0s    A holds 1 of 1, acked 1, failed 5
        "#]],
    );
}
