//! Settings that change while consumers stay connected.

use super::{check, check_both_ways, expect};

#[test]
fn a_group_becomes_ordered_and_plain_again_with_leases_out() {
    check(
        "publish a a b a / A joins 2 / set strategy ordered / A acks 1 / figures / A acks 2 \
         / set strategy round robin / figures / A acks 3-4 / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    append group changed
            0s    read 1-4
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 1
            0s    append handed 3
            0s    floor 1, lag 3, in flight 2, ready 0, waiting 0, parked 0
            0s    A: acked
            0s    deliver 4#1 to A
            0s    append acked 2
            0s    append handed 4
            0s    append group changed
            0s    floor 2, lag 2, in flight 2, ready 0, waiting 0, parked 0
            0s    A: acked, acked
            0s    append acked 3-4
            0s    floor 4, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "publish a a a / A joins 2 / set strategy ordered / A acks 2 / figures / A nacks 1 in 1s \
         / wait 1s / figures / crash / B joins 9 / B acks 1 / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    append group changed
            0s    read 1-3
            0s    A: acked
            0s    append acked 2
            0s    floor 0, lag 2, in flight 1, ready 0, waiting 0, parked 0
            0s    A: retrying
            0s    append failed 1 until 1s
            1s    deliver 1#2 to A
            1s    append handed 1
            1s    floor 0, lag 2, in flight 1, ready 0, waiting 0, parked 0
            1s    append opened 2
            1s    deliver 1#3 to B
            1s    append handed 1
            1s    B: acked
            1s    deliver 3#1 to B
            1s    append acked 1
            1s    append handed 3
            1s    floor 2, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_group_becomes_pinned_single_and_fair_with_leases_out() {
    check(
        "publish a b a b / A joins 1 / B joins 1 / set strategy pinned / A acks 1 / B acks 2 \
         / set strategy single / A acks 3 / B acks 3 / set fair / publish a b / members / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    deliver 2#1 to B
            0s    append handed 2
            0s    append group changed
            0s    read 1-4
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 1
            0s    append handed 3
            0s    B: acked
            0s    deliver 4#1 to B
            0s    append acked 2
            0s    append handed 4
            0s    append group changed
            0s    A: acked
            0s    append acked 3
            0s    B: has no such lease
            0s    append group changed
            0s    read 4
            0s    deliver 5#1 to A
            0s    append handed 5
            0s    A holds 1 of 1, acked 2, failed 0
            0s    B holds 1 of 1, acked 1, failed 0
            0s    floor 3, lag 3, in flight 2, ready 1, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_waiting_message_survives_a_change_of_strategy() {
    check(
        "publish a a b / A joins 1 / A nacks 1 in 5s / set strategy ordered / figures / A acks 2 \
         / wait 5s / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    deliver 2#1 to A
            0s    append failed 1 until 5s
            0s    append handed 2
            0s    append group changed
            0s    read 1-3
            0s    floor 0, lag 3, in flight 1, ready 1, waiting 1, parked 0
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 2
            0s    append handed 3
            4s    checkpoint 0
            5s    floor 0, lag 2, in flight 1, ready 1, waiting 0, parked 0
        "#]],
    );
    check(
        "publish a a / A joins 9 / A parks 1 / set strategy ordered / replay all / figures \
         / A acks 2 / A acks 1 / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: parked
            0s    append parked 1 by Nack
            0s    append group changed
            0s    read 2
            0s    job 1 matches 1
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append job 1 done
            0s    read 1
            0s    floor 1, lag 2, in flight 1, ready 0, waiting 0, parked 0
            0s    A: acked
            0s    deliver 1#1 to A
            0s    append acked 2
            0s    append handed 1
            0s    A: acked
            0s    append acked 1
            0s    floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn parked_messages_know_their_key_in_an_ordered_group_only() {
    check_both_ways(
        "set strategy ordered / set hold / publish a a / A joins 9 / A parks 1 / crash \
         / set strategy round robin / B joins 9 / B acks 2 / set strategy ordered / publish a \
         / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: parked
            0s    append parked 1 by Nack
            0s    append opened 2
            0s    append group changed
            0s    read 2
            0s    deliver 2#1 to B
            0s    append handed 2
            0s    B: acked
            0s    append acked 2
            0s    append group changed
            0s    floor 2, lag 1, in flight 0, ready 0, waiting 0, parked 1
        "#]],
    );
}

#[test]
fn the_limit_on_what_is_in_flight_can_be_lowered_and_raised() {
    check(
        "publish 9 / A joins 9 / set in flight 2 / A acks 1-6 / A acks 7 / publish 3 / A acks 8 \
         / set in flight 9 / figures",
        expect![[r#"
            0s    deliver 1-9#1 to A
            0s    append handed 1-9
            0s    append group changed
            0s    A: acked, acked, acked, acked, acked, acked
            0s    append acked 1-6
            0s    A: acked
            0s    append acked 7
            0s    A: acked
            0s    deliver 10#1 to A
            0s    append acked 8
            0s    append handed 10
            0s    deliver 11-12#1 to A
            0s    append group changed
            0s    append handed 11-12
            0s    floor 8, lag 4, in flight 4, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn another_timeout_holds_for_new_leases_only() {
    check(
        "publish 2 / A joins 1 / set timeout 5s / B joins 1 / wait 5s / wait 25s / figures",
        expect![[r#"
        0s    deliver 1#1 to A
        0s    append handed 1
        0s    append group changed
        0s    deliver 2#1 to B
        0s    append handed 2
        5s    append failed 2 until 5.1s
        5.1s  deliver 2#2 to B
        5.1s  append handed 2
        10.1s append failed 2 until 10.3s
        10.3s deliver 2#3 to B
        10.3s append handed 2
        15.3s append failed 2 until 15.7s
        15.7s deliver 2#4 to B
        15.7s append handed 2
        20.7s append failed 2 until 21.5s
        21.5s deliver 2#5 to B
        21.5s append handed 2
        26.5s append failed 2 until 28.1s
        28.1s deliver 2#6 to B
        28.1s append handed 2
        30s   append failed 1 until 30.1s
        30s   floor 0, lag 2, in flight 1, ready 0, waiting 1, parked 0
    "#]],
    );
}

#[test]
fn retries_that_were_lowered_hold_for_the_next_failure() {
    check(
        "publish 2 / A joins 2 / A nacks 1-2 / wait 100ms / set retries 0 / figures / A nacks 1 \
         / A acks 2 / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: retrying, retrying
            0s    append failed 1 until 0.1s, 2 until 0.1s
            0.1s  deliver 1#2 to A
            0.1s  deliver 2#2 to A
            0.1s  append handed 1-2
            0.1s  append group changed
            0.1s  floor 0, lag 2, in flight 2, ready 0, waiting 0, parked 0
            0.1s  A: parked
            0.1s  append parked 1 by Nack
            0.1s  A: acked
            0.1s  append acked 2
            0.1s  floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 1
        "#]],
    );
}

#[test]
fn a_message_that_waits_is_not_parked_by_fewer_retries_until_it_fails_again() {
    check(
        "publish 1 / A joins 1 / A nacks 1 in 5s / set retries 0 / wait 5s / A nacks 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    append failed 1 until 5s
            0s    append group changed
            5s    deliver 1#2 to A
            5s    append handed 1
            5s    A: parked
            5s    append parked 1 by Nack
            5s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 1
        "#]],
    );
}

#[test]
fn changed_settings_survive_a_crash() {
    check_both_ways(
        "publish 2 / A joins 1 / set timeout 5s / set retries 0 / crash / B joins 2 / wait 5s \
         / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    append group changed
            0s    append group changed
            0s    append opened 2
            0s    deliver 1#2 to B
            0s    deliver 2#1 to B
            0s    append handed 1-2
            5s    append parked 1 by Timeout, 2 by Timeout
            5s    floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 2
        "#]],
    );
}

#[test]
fn fewer_consumers_than_there_are() {
    check(
        "publish 2 / A joins 1 / B joins 1 / set consumers 1 / A acks 1 / C joins 1 / A goodbye \
         / C joins 1 / B goodbye / C joins 1 / members",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    deliver 2#1 to B
            0s    append handed 2
            0s    append group changed
            0s    A: acked
            0s    append acked 1
            0s    C: the limit of consumers of a group is reached. limit=`1`
            0s    C: the limit of consumers of a group is reached. limit=`1`
            0s    append returned 2
            0s    deliver 2#1 to C
            0s    append handed 2
            0s    C holds 1 of 1, acked 0, failed 0
        "#]],
    );
}

#[test]
fn another_backoff_holds_for_the_next_failure() {
    check_both_ways(
        "publish 1 / A joins 1 / A nacks 1 / set backoff 1s 3s / wait 100ms / A nacks 1 / wait 2s \
         / A nacks 1 / wait 3s / crash / B joins 1 / B nacks 1 / wait 3s",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    append failed 1 until 0.1s
            0s    append group changed
            0.1s  deliver 1#2 to A
            0.1s  append handed 1
            0.1s  A: retrying
            0.1s  append failed 1 until 2.1s
            2.1s  deliver 1#3 to A
            2.1s  append handed 1
            2.1s  A: retrying
            2.1s  append failed 1 until 5.1s
            5.1s  deliver 1#4 to A
            5.1s  append handed 1
            5.1s  append opened 2
            5.1s  deliver 1#5 to B
            5.1s  append handed 1
            5.1s  B: retrying
            5.1s  append failed 1 until 8.1s
            8.1s  deliver 1#6 to B
            8.1s  append handed 1
        "#]],
    );
}
