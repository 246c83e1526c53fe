//! What streams do to groups: delays, expiry, limits, retention, dedupe, where a group begins.

use super::{check, check_both_ways, expect};

#[test]
fn a_delayed_message_does_not_go_before_its_time() {
    check(
        "A joins 9 / publish .+10s . / figures / stream / wait 9999ms / wait 1ms / A acks 1-2 \
         / figures",
        expect![[r#"
            0s    deliver 2#1 to A
            0s    append handed 2
            0s    floor 0, lag 2, in flight 1, ready 0, waiting 0, parked 0
            0s    stream 1 to 2, holds 2 of 200 bytes, delayed 1
            10s   deliver 1#1 to A
            10s   append handed 1
            10s   A: acked, acked
            10s   append acked 1-2
            10s   floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "A joins 9 / publish .+10s . / crash / B joins 9 / figures / wait 9999ms / wait 1ms \
         / figures",
        expect![[r#"
            0s    deliver 2#1 to A
            0s    append handed 2
            0s    append opened 2
            0s    deliver 2#2 to B
            0s    append handed 2
            0s    floor 0, lag 2, in flight 1, ready 0, waiting 0, parked 0
            10s   deliver 1#1 to B
            10s   append handed 1
            10s   floor 0, lag 2, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_delay_that_is_over_while_the_server_is_down_is_over() {
    check_both_ways(
        "publish .+10s .+20s . / crash / figures / +15s / A joins 9 / figures",
        expect![[r#"
        0s    append opened 2
        0s    floor 0, lag 3, in flight 0, ready 1, waiting 0, parked 0
        15s   deliver 1#1 to A
        15s   deliver 3#1 to A
        15s   append handed 1, 3
        15s   floor 0, lag 3, in flight 2, ready 0, waiting 0, parked 0
    "#]],
    );
    check_both_ways(
        "publish .+10s .+20s . / +15s / crash / A joins 9 / stream / wait 5s",
        expect![[r#"
        15s   append opened 2
        15s   deliver 1#1 to A
        15s   deliver 3#1 to A
        15s   append handed 1, 3
        15s   stream 1 to 3, holds 3 of 300 bytes, delayed 1
        20s   deliver 2#1 to A
        20s   append handed 2
    "#]],
    );
}

#[test]
fn delayed_messages_go_in_order_of_position_among_what_is_due() {
    check(
        "publish .+5s . .+3s . / wait 6s / A joins 2 / A acks 1-2 / figures",
        expect![[r#"
        6s    deliver 1-2#1 to A
        6s    append handed 1-2
        6s    A: acked, acked
        6s    deliver 3-4#1 to A
        6s    append acked 1-2
        6s    append handed 3-4
        6s    floor 2, lag 2, in flight 2, ready 0, waiting 0, parked 0
    "#]],
    );
}

#[test]
fn a_nacked_delayed_message_waits_by_the_backoff_only() {
    check_both_ways(
        "publish .+5s / A joins 1 / wait 5s / A nacks 1 / wait 100ms / crash / B joins 1",
        expect![[r#"
            5s    deliver 1#1 to A
            5s    append handed 1
            5s    A: retrying
            5s    append failed 1 until 5.1s
            5.1s  deliver 1#2 to A
            5.1s  append handed 1
            5.1s  append opened 2
            5.1s  deliver 1#3 to B
            5.1s  append handed 1
        "#]],
    );
}

#[test]
fn an_expired_message_that_is_ready_goes() {
    check_both_ways(
        "publish .-5s . / wait 5s / figures / A joins 9 / crash / figures",
        expect![[r#"
        5s    append expired 1
        5s    floor 1, lag 1, in flight 0, ready 1, waiting 0, parked 0
        5s    deliver 2#1 to A
        5s    append handed 2
        5s    append opened 2
        5s    floor 1, lag 1, in flight 0, ready 1, waiting 0, parked 0
    "#]],
    );
}

#[test]
fn an_expired_message_that_waits_goes() {
    check_both_ways(
        "publish .-5s / A joins 1 / A nacks 1 in 10s / wait 5s / figures / crash / figures \
         / B joins 1",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    append failed 1 until 10s
            5s    append expired 1
            5s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
            5s    append opened 2
            5s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn an_expired_message_that_is_delayed_goes() {
    check_both_ways(
        "publish .+10s-5s . / A joins 9 / wait 5s / figures / stream / wait 10s / crash / wait 10s \
         / figures",
        expect![[r#"
            0s    deliver 2#1 to A
            0s    append handed 2
            5s    append expired 1
            5s    floor 1, lag 1, in flight 1, ready 0, waiting 0, parked 0
            5s    stream 1 to 2, holds 1 of 100 bytes, delayed 0
            9s    checkpoint 1
            15s   append opened 2
            25s   floor 1, lag 1, in flight 0, ready 1, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_leased_message_that_expires_is_not_offered_again() {
    check(
        "publish .-5s .-5s .-5s / A joins 3 / wait 6s / figures / A acks 1 / A nacks 2 / figures \
         / A lost / figures",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            6s    floor 0, lag 3, in flight 3, ready 0, waiting 0, parked 0
            6s    A: acked
            6s    append acked 1
            6s    A: expired
            6s    append expired 2
            6s    floor 2, lag 1, in flight 1, ready 0, waiting 0, parked 0
            6s    append expired 3
            6s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "publish .-5s .-5s / A joins 1 / B joins 1 / wait 6s / A goodbye / wait 30s / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    deliver 2#1 to B
            0s    append handed 2
            6s    append returned 1
            6s    append expired 1
            10s   checkpoint 1
            30s   append expired 2
            34s   checkpoint 2
            36s   floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "publish .-5s / P polls 1 / +6s / crash / figures / P acks 1 / figures",
        expect![[r#"
        0s    deliver 1#1 to P when durable
        0s    append leased 1 for 30s
        6s    append opened 2
        6s    floor 0, lag 1, in flight 1, ready 0, waiting 0, parked 0
        6s    P: acked
        6s    append acked 1
        6s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
    "#]],
    );
    check_both_ways(
        "publish .-5s / P polls 1 / +6s / crash / wait 30s / figures",
        expect![[r#"
        0s    deliver 1#1 to P when durable
        0s    append leased 1 for 30s
        6s    append opened 2
        30s   append expired 1
        34s   checkpoint 1
        36s   floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
    "#]],
    );
    check_both_ways(
        "publish .-5s / A joins 1 / +6s / crash / figures / B joins 1",
        expect![[r#"
        0s    deliver 1#1 to A
        0s    append handed 1
        6s    append opened 2
        6s    append expired 1
        6s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
    "#]],
    );
}

#[test]
fn a_parked_message_does_not_expire() {
    check(
        "publish .-5s .-5s / A joins 2 / A parks 1 because bad / wait 10s / parked / replay 1 \
         / wait 10s / A nacks 1 / wait 1s / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: parked
            0s    append parked 1 by Nack
            4s    checkpoint 1
            10s   parked 1 after 1: #1 A bad
            10s   reasons: 1 bad
            10s   job 1 matches 1
            10s   deliver 1#1 to A
            10s   append job 1 started
            10s   append replayed 1 by job 1
            10s   append handed 1
            10s   append job 1 done
            20s   A: retrying
            20s   append failed 1 until 20.1s
            20.1s deliver 1#2 to A
            20.1s append handed 1
            21s   floor 1, lag 2, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "publish .-5s / A joins 1 / A parks 1 because bad / crash / wait 10s / parked / replay 1 \
         / B joins 1",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: parked
            0s    append parked 1 by Nack
            0s    append opened 2
            10s   parked 1 after 1: #1 A bad
            10s   reasons: 1 bad
            10s   job 1 matches 1
            10s   append job 1 started
            10s   append replayed 1 by job 1
            10s   append job 1 done
            10s   deliver 1#1 to B
            10s   append handed 1
        "#]],
    );
}

#[test]
fn a_message_that_is_being_moved_does_not_expire() {
    check(
        "publish .-5s / A joins 1 / moves wait / A moves 1 / wait 10s / moves go / figures",
        expect![[r#"
        0s    deliver 1#1 to A
        0s    append handed 1
        0s    A: moving
        0s    append moving 1 to elsewhere
        0s    asks for 1 to go to elsewhere
        10s   move 1 to elsewhere as 1
        10s   append stream elsewhere created
        10s   append moved 1
        10s   append published 1 and 0 more in stream 2
        10s   floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
    "#]],
    );
}

#[test]
fn nothing_expired_is_handed_out_in_the_turn_it_expires() {
    check(
        "publish .-5s . / +5s & A joins 9 / figures",
        expect![[r#"
        5s    deliver 2#1 to A
        5s    append expired 1
        5s    append handed 2
        5s    floor 1, lag 1, in flight 1, ready 0, waiting 0, parked 0
    "#]],
    );
}

#[test]
fn what_expired_before_a_group_was_created_is_not_for_it() {
    check(
        "start 1 / publish .-5s . / wait 6s / A joins 9 / figures",
        expect![[r#"
        0s    append opened 1
        0s    append stream jobs created
        6s    read 1-2
        6s    deliver 2#1 to A
        6s    append handed 2
        6s    floor 1, lag 1, in flight 1, ready 0, waiting 0, parked 0
    "#]],
    );
    check_both_ways(
        "start 1 / publish .-5s . / wait 6s / A joins 9 / crash / figures",
        expect![[r#"
        0s    append opened 1
        0s    append stream jobs created
        6s    read 1-2
        6s    deliver 2#1 to A
        6s    append handed 2
        6s    append opened 2
        6s    floor 1, lag 1, in flight 0, ready 1, waiting 0, parked 0
    "#]],
    );
}

#[test]
fn what_has_expired_is_not_offered_again_after_a_reset() {
    check(
        "publish .-5s . / wait 6s / A joins 9 / A acks 2 / reset beginning / figures",
        expect![[r#"
        5s    append expired 1
        6s    deliver 2#1 to A
        6s    append handed 2
        6s    A: acked
        6s    append acked 2
        6s    append reset to 0
        6s    append expired 1
        6s    read 1-2
        6s    deliver 2#1 to A
        6s    append handed 2
        6s    floor 1, lag 1, in flight 1, ready 0, waiting 0, parked 0
    "#]],
    );
    check_both_ways(
        "set strategy ordered / publish a-5s a / wait 6s / A joins 9 / A acks 2 / reset beginning \
         / crash / figures / B joins 9",
        expect![[r#"
            5s    append expired 1
            6s    deliver 2#1 to A
            6s    append handed 2
            6s    A: acked
            6s    append acked 2
            6s    append reset to 0
            6s    append expired 1
            6s    read 2
            6s    deliver 2#1 to A
            6s    append handed 2
            6s    append opened 2
            6s    floor 1, lag 1, in flight 0, ready 1, waiting 0, parked 0
            6s    deliver 2#2 to B
            6s    append handed 2
        "#]],
    );
}

#[test]
fn a_full_stream_refuses() {
    check_both_ways(
        "set limit 3 reject / publish 2 / publish 2 / publish 1 / publish 1 / stream / A joins 1 \
         / A acks 1 / publish 1 / A parks 2 / publish 1 / stream / crash / publish 1",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    refused: the stream is full. messages=`2` bytes=`200`
            0s    refused: the stream is full. messages=`3` bytes=`300`
            0s    stream 1 to 3, holds 3 of 300 bytes, delayed 0
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: acked
            0s    deliver 2#1 to A
            0s    append acked 1
            0s    append handed 2
            0s    A: parked
            0s    deliver 3#1 to A
            0s    append parked 2 by Nack
            0s    append handed 3
            0s    refused: the stream is full. messages=`3` bytes=`300`
            0s    stream 1 to 4, holds 3 of 300 bytes, delayed 0
            0s    append opened 2
            0s    refused: the stream is full. messages=`3` bytes=`300`
        "#]],
    );
}

#[test]
fn a_stream_is_full_by_bytes() {
    check(
        "set bytes 250 / publish 2 / publish 1 / stream / A joins 2 / A acks 1 / publish 1",
        expect![[r#"
        0s    append opened 1
        0s    append stream jobs created
        0s    append stream changed
        0s    refused: the stream is full. messages=`2` bytes=`200`
        0s    stream 1 to 2, holds 2 of 200 bytes, delayed 0
        0s    deliver 1-2#1 to A
        0s    append handed 1-2
        0s    A: acked
        0s    append acked 1
        0s    deliver 3#1 to A
        0s    append handed 3
    "#]],
    );
}

#[test]
fn a_full_stream_drops_its_oldest() {
    check_both_ways(
        "set limit 3 drop / publish 3 / publish 2 / figures / stream / A joins 9 / crash / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    append dropped 1-2
            0s    floor 2, lag 3, in flight 0, ready 3, waiting 0, parked 0
            0s    stream 1 to 5, holds 3 of 300 bytes, delayed 0
            0s    deliver 3-5#1 to A
            0s    append handed 3-5
            0s    append opened 2
            0s    floor 2, lag 3, in flight 0, ready 3, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn what_is_leased_moving_or_parked_is_not_dropped() {
    check(
        "set limit 3 drop / publish 3 / A joins 2 / A parks 1 / publish 1 / figures / publish 1 \
         / figures / stream",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: parked
            0s    deliver 3#1 to A
            0s    append parked 1 by Nack
            0s    append handed 3
            0s    refused: the stream is full. messages=`3` bytes=`300`
            0s    floor 1, lag 2, in flight 2, ready 0, waiting 0, parked 1
            0s    refused: the stream is full. messages=`3` bytes=`300`
            0s    floor 1, lag 2, in flight 2, ready 0, waiting 0, parked 1
            0s    stream 1 to 3, holds 3 of 300 bytes, delayed 0
        "#]],
    );
    check(
        "set limit 2 drop / publish 2 / A joins 2 / publish 1 / A nacks 1 / publish 1 / wait 1s \
         / figures / stream",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    refused: the stream is full. messages=`2` bytes=`200`
            0s    A: retrying
            0s    append failed 1 until 0.1s
            0s    deliver 3#1 to A
            0s    append dropped 1
            0s    append handed 3
            1s    floor 1, lag 2, in flight 2, ready 0, waiting 0, parked 0
            1s    stream 1 to 3, holds 2 of 200 bytes, delayed 0
        "#]],
    );
}

#[test]
fn a_batch_that_could_never_fit_is_refused() {
    check(
        "set limit 3 drop / publish 2 / publish 4 / stream",
        expect![[r#"
        0s    append opened 1
        0s    append stream jobs created
        0s    append stream changed
        0s    refused: the stream is full. messages=`2` bytes=`200`
        0s    stream 1 to 2, holds 2 of 200 bytes, delayed 0
    "#]],
    );
}

#[test]
fn dropping_is_for_every_group() {
    check(
        "set limit 2 drop / publish 2 / a joins 1 / A joins 0 / publish 1 / figures \
         / figures of others / A credit 9",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    read 1-2
            0s    deliver 1#1 to a
            0s    append others handed 1
            0s    append others dropped 2
            0s    append dropped 2
            0s    floor 0, lag 2, in flight 0, ready 2, waiting 0, parked 0
            0s    floor 0, lag 2, in flight 1, ready 1, waiting 0, parked 0
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1, 3
        "#]],
    );
}

#[test]
fn dropping_from_an_ordered_group_does_not_stick() {
    check(
        "set strategy ordered / set limit 3 drop / publish a a a / A joins 1 / publish a / A acks 1 \
         / figures / A acks 3 / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    append dropped 2
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 1
            0s    append handed 3
            0s    floor 2, lag 2, in flight 1, ready 0, waiting 0, parked 0
            0s    A: acked
            0s    deliver 4#1 to A
            0s    append acked 3
            0s    append handed 4
            0s    floor 3, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn duplicates_take_no_room() {
    check(
        "set limit 2 reject / publish id:x id:y / publish id:x / publish id:z / stream",
        expect![[r#"
        0s    append opened 1
        0s    append stream jobs created
        0s    append stream changed
        0s    duplicate of 1
        0s    refused: the stream is full. messages=`2` bytes=`200`
        0s    stream 1 to 2, holds 2 of 200 bytes, delayed 0
    "#]],
    );
}

#[test]
fn messages_that_are_too_old_go() {
    check_both_ways(
        "set age 10s / publish 2 / +5s / publish 1 / A joins 1 / wait 6s / figures / stream \
         / A acks 1 / wait 20s / crash / figures / stream",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            5s    deliver 1#1 to A
            5s    append handed 1
            10.000001s append expired 2
            11s   floor 0, lag 2, in flight 1, ready 1, waiting 0, parked 0
            11s   stream 1 to 3, holds 2 of 200 bytes, delayed 0
            11s   A: acked
            11s   deliver 3#1 to A
            11s   append acked 1
            11s   append handed 3
            14.000001s checkpoint 2
            31s   append opened 2
            31s   append expired 3
            31s   floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
            31s   stream 1 to 3, holds 0 of 0 bytes, delayed 0
        "#]],
    );
    check_both_ways(
        "set age 10s / publish 1 / A joins 1 / A parks 1 / wait 20s / parked / stream / crash \
         / parked / replay all / B joins 1",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: parked
            0s    append parked 1 by Nack
            4s    checkpoint 1
            20s   parked 1 after 1: #1 A (no reason given)
            20s   reasons: 1 (no reason given)
            20s   stream 1 to 1, holds 1 of 100 bytes, delayed 0
            20s   append opened 2
            20s   parked 1 after 1: #1 A (no reason given)
            20s   reasons: 1 (no reason given)
            20s   job 1 matches 1
            20s   append job 1 started
            20s   append replayed 1 by job 1
            20s   append job 1 done
            20s   deliver 1#1 to B
            20s   append handed 1
        "#]],
    );
}

#[test]
fn an_age_limit_reaches_an_ordered_group() {
    check(
        "set strategy ordered / set age 10s / publish a a a / A joins 1 / +6s / publish a / wait 6s \
         / A acks 1 / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    deliver 1#1 to A
            0s    append handed 1
            10.000001s append expired 2-3
            12s   A: acked
            12s   deliver 4#1 to A
            12s   append acked 1
            12s   append handed 4
            12s   floor 3, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_stream_that_is_a_log_keeps_what_is_settled() {
    check_both_ways(
        "set log 4 / publish 3 / A joins 9 / A acks 1-3 / release / stream / reset beginning \
         / A acks 1-3 / crash / stream",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: acked, acked, acked
            0s    append acked 1-3
            0s    stream 1 to 3, holds 3 of 300 bytes, delayed 0
            0s    append reset to 0
            0s    read 1-3
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: acked, acked, acked
            0s    append acked 1-3
            0s    append opened 2
            0s    stream 1 to 3, holds 3 of 300 bytes, delayed 0
        "#]],
    );
}

#[test]
fn what_is_beyond_a_log_is_gone_for_slow_groups() {
    check_both_ways(
        "set log 4 / publish 3 / A joins 1 / publish 3 / figures / stream / A acks 1 / A acks 3 \
         / crash / figures / stream",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    append released before 3
            0s    append expired 2
            0s    floor 0, lag 5, in flight 1, ready 4, waiting 0, parked 0
            0s    stream 3 to 6, holds 4 of 400 bytes, delayed 0
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 1
            0s    append handed 3
            0s    A: acked
            0s    deliver 4#1 to A
            0s    append acked 3
            0s    append handed 4
            0s    append opened 2
            0s    floor 3, lag 3, in flight 0, ready 3, waiting 0, parked 0
            0s    stream 3 to 6, holds 4 of 400 bytes, delayed 0
        "#]],
    );
    check(
        "set log 4 / publish 6 / A joins 9 / start 1 / a joins 9 / figures of others",
        expect![[r#"
        0s    append opened 1
        0s    append stream jobs created
        0s    append stream changed
        0s    append released before 3
        0s    append expired 1-2
        0s    deliver 3-6#1 to A
        0s    append handed 3-6
        0s    read 3-6
        0s    deliver 3-6#1 to a
        0s    append others handed 3-6
        0s    floor 2, lag 4, in flight 4, ready 0, waiting 0, parked 0
    "#]],
    );
}

#[test]
fn a_message_beyond_the_log_that_is_parked_stays() {
    check_both_ways(
        "set log 2 / publish 2 / A joins 2 / A parks 1 / publish 2 / stream / parked / replay all \
         / figures / crash / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: parked
            0s    append parked 1 by Nack
            0s    deliver 3#1 to A
            0s    append released before 3
            0s    append handed 3
            0s    stream 3 to 4, holds 2 of 200 bytes, delayed 0
            0s    parked 1 after 1: #1 A (no reason given)
            0s    reasons: 1 (no reason given)
            0s    job 1 matches 1
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append job 1 done
            0s    floor 1, lag 4, in flight 2, ready 2, waiting 0, parked 0
            0s    append opened 2
            0s    append expired 2
            0s    floor 2, lag 3, in flight 0, ready 3, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn producers_are_held_to_a_rate() {
    check(
        "set ingress 2 2 / publish 1 / +500ms / publish 1 / publish 1 / +2s / publish 3 / publish 1 \
         / +1s / publish 1",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            2.5s  refused: the stream's ingress_rate is exceeded
        "#]],
    );
    check_both_ways(
        "set ingress 2 2 / +10s / publish 2 / crash / publish 1 / +500ms / publish 1",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            10s   append opened 2
            10s   refused: the stream's ingress_rate is exceeded
        "#]],
    );
}

#[test]
fn an_id_is_stored_once() {
    check_both_ways(
        "publish id:x id:y / publish id:x / publish id:z id:x id:z / A joins 9 / crash \
         / publish id:x / publish id:z / figures",
        expect![[r#"
            0s    duplicate of 1
            0s    duplicate of 1
            0s    duplicate of 3
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    append opened 2
            0s    duplicate of 1
            0s    duplicate of 3
            0s    floor 0, lag 3, in flight 0, ready 3, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn an_id_is_forgotten_after_the_window() {
    check_both_ways(
        "publish id:x / +599s / publish id:x / +1s / publish id:x / +1s / publish id:x / crash \
         / publish id:x",
        expect![[r#"
            599s  duplicate of 1
            601s  duplicate of 2
            601s  append opened 2
            601s  duplicate of 2
        "#]],
    );
}

#[test]
fn a_producers_batch_is_stored_once() {
    check_both_ways(
        "publish 2 by 7.1.0 / publish 2 by 7.1.0 / publish 1 by 7.1.2 / publish 1 by 7.1.9 \
         / publish 1 by 7.0.3 / crash / publish 2 by 7.1.0 / publish 1 by 7.1.2 / publish 1 by 7.1.3 \
         / publish 1 by 7.2.0 / publish 1 by 7.1.4",
        expect![[r#"
            0s    duplicate of 1
            0s    duplicate of 2
            0s    refused: the batch does not follow the one before it. expected=`3`
            0s    refused: a later instance of this producer has taken over. epoch=`1`
            0s    append opened 2
            0s    duplicate of 1
            0s    duplicate of 2
            0s    duplicate of 3
            0s    refused: a later instance of this producer has taken over. epoch=`2`
        "#]],
    );
}

#[test]
fn two_producers_do_not_know_of_each_other() {
    check(
        "publish 1 by 7.1.0 / publish 1 by 8.1.0 / publish 1 by 8.1.0 / stream",
        expect![[r#"
        0s    duplicate of 2
        0s    stream 1 to 2, holds 2 of 200 bytes, delayed 0
    "#]],
    );
}

#[test]
fn a_batch_is_stored_only_where_it_was_expected_to_be() {
    check_both_ways(
        "publish 1 after 0 / publish 1 after 0 / publish 1 after 1 / A joins 9 / A acks 1-2 / crash \
         / publish 1 after 1 / publish 1 after 2",
        expect![[r#"
            0s    refused: the stream does not end at expect_last_seq. last=`1`
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: acked, acked
            0s    append acked 1-2
            0s    append opened 2
            0s    refused: the stream does not end at expect_last_seq. last=`2`
        "#]],
    );
}

#[test]
fn a_group_that_begins_at_the_end_gets_what_comes() {
    check_both_ways(
        "start end / publish 3 / A joins 9 / figures / publish 1 / crash / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
            0s    deliver 4#1 to A
            0s    append handed 4
            0s    append opened 2
            0s    floor 3, lag 1, in flight 0, ready 1, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_group_that_begins_at_a_position_gets_that_and_what_follows() {
    check(
        "start 3 / publish 4 / A joins 9 / figures / reset beginning / figures",
        expect![[r#"
        0s    append opened 1
        0s    append stream jobs created
        0s    read 3-4
        0s    deliver 3-4#1 to A
        0s    append handed 3-4
        0s    floor 2, lag 2, in flight 2, ready 0, waiting 0, parked 0
        0s    append reset to 0
        0s    read 1-4
        0s    deliver 1-4#1 to A
        0s    append handed 1-4
        0s    floor 0, lag 4, in flight 4, ready 0, waiting 0, parked 0
    "#]],
    );
    check(
        "start 9 / publish 4 / A joins 9 / publish 1",
        expect![[r#"
        0s    append opened 1
        0s    append stream jobs created
        0s    deliver 5#1 to A
        0s    append handed 5
    "#]],
    );
}

#[test]
fn a_group_that_begins_at_a_time_gets_what_was_published_since() {
    check(
        "start at 5s / publish 2 / +4s / publish 1 / +1s / publish 1 / +1s / publish 1 / A joins 9 \
         / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            6s    read 4-5
            6s    deliver 4-5#1 to A
            6s    append handed 4-5
            6s    floor 3, lag 2, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_work_stream_keeps_what_no_group_has_settled() {
    check(
        "start 1 / publish 2 / release / stream / A joins 9 / A acks 1-2 / release / stream \
         / a joins 9 / publish 1",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    stream 1 to 2, holds 2 of 200 bytes, delayed 0
            0s    read 1-2
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: acked, acked
            0s    append acked 1-2
            0s    append released before 3
            0s    stream 3 to 2, holds 0 of 0 bytes, delayed 0
            0s    deliver 3#1 to a
            0s    deliver 3#1 to A
            0s    append others handed 3
            0s    append handed 3
        "#]],
    );
}

#[test]
fn what_was_dropped_from_a_log_is_not_offered_after_a_crash() {
    check_both_ways(
        "set log 100 / set limit 3 drop / publish 3 / publish 2 / figures / crash / figures \
         / A joins 9 / stream",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    append stream changed
            0s    append released before 3
            0s    append expired 1-2
            0s    floor 2, lag 3, in flight 0, ready 3, waiting 0, parked 0
            0s    append opened 2
            0s    floor 2, lag 3, in flight 0, ready 3, waiting 0, parked 0
            0s    deliver 3-5#1 to A
            0s    append handed 3-5
            0s    stream 3 to 5, holds 3 of 300 bytes, delayed 0
        "#]],
    );
    check_both_ways(
        "set log 100 / set limit 3 drop / publish 3 / A joins 1 / publish 2 / crash / figures \
         / B joins 9 / stream",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    append stream changed
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    append released before 3
            0s    append expired 2
            0s    append opened 2
            0s    append expired 1
            0s    floor 2, lag 3, in flight 0, ready 3, waiting 0, parked 0
            0s    deliver 3-5#1 to B
            0s    append handed 3-5
            0s    stream 3 to 5, holds 3 of 300 bytes, delayed 0
        "#]],
    );
}

#[test]
fn an_id_is_remembered_when_its_message_is_gone() {
    check_both_ways(
        "publish id:x / A joins 1 / A acks 1 / release / publish id:x / crash / publish id:x \
         / stream",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: acked
            0s    append acked 1
            0s    append released before 2
            0s    duplicate of 1
            0s    append opened 2
            0s    duplicate of 1
            0s    stream 2 to 1, holds 0 of 0 bytes, delayed 0
        "#]],
    );
}
