//! Slots, retries, timeouts, parking, departures, restarts.

use super::{check, expect};

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
            30.1s A: not yours (superseded)
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
            30.1s A: not yours (superseded)
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
