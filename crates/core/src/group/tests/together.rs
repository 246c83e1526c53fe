//! Features that meet.

use super::{check, check_both_ways, expect};

#[test]
fn a_thousand_leases_of_a_lost_consumer_are_released_in_slices() {
    check_both_ways(
        "publish 500 / A joins 500 / A lost / figures / B joins 200 / B goodbye / figures / crash \
         / figures",
        expect![[r#"
            0s    deliver 1-500#1 to A
            0s    append handed 1-500
            0s    floor 0, lag 500, in flight 0, ready 500, waiting 0, parked 0
            0s    deliver 1-64#2 to B
            0s    deliver 65-128#2 to B
            0s    deliver 129-192#2 to B
            0s    deliver 193-200#2 to B
            0s    append handed 1-200
            0s    append returned 1-200
            0s    floor 0, lag 500, in flight 0, ready 500, waiting 0, parked 0
            0s    append opened 2
            0s    floor 0, lag 500, in flight 0, ready 500, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_thousand_leases_are_purged_or_reset_in_slices() {
    check_both_ways(
        "publish 2000 / A joins 2000 / purge / figures / members / crash / figures",
        expect![[r#"
            0s    deliver 1-2000#1 to A
            0s    append handed 1-2000
            0s    purged 2000
            0s    append purged through 2000
            0s    append released before 2001
            0s    floor 2000, lag 0, in flight 0, ready 0, waiting 0, parked 0
            0s    A holds 0 of 2000, acked 0, failed 0
            0s    append opened 2
            0s    floor 2000, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "publish 2000 / A joins 2000 / A credit 0 / reset 1001 / figures / members / A acks 1500 \
         / crash / figures",
        expect![[r#"
            0s    deliver 1-2000#1 to A
            0s    append handed 1-2000
            0s    append reset to 1000
            0s    read 1001-1500
            0s    floor 1000, lag 1000, in flight 0, ready 500, waiting 0, parked 0
            0s    A holds 0 of 0, acked 0, failed 0
            0s    A: not yours (superseded)
            0s    append opened 2
            0s    floor 1000, lag 1000, in flight 0, ready 1000, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn what_comes_after_a_reset_to_the_end_has_its_time_too() {
    check(
        "publish 9 / reset end / publish .+5s .-5s / wait 5s / A joins 9 / figures",
        expect![[r#"
        0s    append reset to 9
        5s    append expired 11
        5s    deliver 10#1 to A
        5s    append handed 10
        5s    floor 9, lag 1, in flight 1, ready 0, waiting 0, parked 0
    "#]],
    );
}

#[test]
fn an_ordered_batch_times_out_in_part() {
    check(
        "set strategy ordered / set batch 3 / publish a a a a / A joins 9 / +20s \
         / A extends 2 by 20s / wait 10s / figures / wait 10s / figures / wait 100ms / figures \
         / A acks 1-3 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1-3
            20s   A: extended
            30s   append failed 1 until 30.1s, 3 until 30.1s
            30s   floor 0, lag 4, in flight 1, ready 0, waiting 2, parked 0
            40s   deliver 1#2 to A
            40s   append failed 2 until 40.1s
            40s   append handed 1
            40s   floor 0, lag 4, in flight 1, ready 0, waiting 1, parked 0
            40.1s floor 0, lag 4, in flight 1, ready 0, waiting 0, parked 0
            40.1s A: acked, not yours (superseded), not yours (superseded)
            40.1s deliver 2#2 to A
            40.1s deliver 3#2 to A
            40.1s deliver 4#1 to A
            40.1s append acked 1
            40.1s append handed 2-4
            40.1s floor 1, lag 3, in flight 3, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn an_ordered_batch_that_is_lost_goes_again_in_order() {
    check(
        "set strategy ordered / set batch 3 / publish a a a a b / A joins 9 / A acks 2 / A lost \
         / B joins 9 / B acks 1 / B acks 3-4 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    deliver 3#1 to A
            0s    deliver 5#1 to A
            0s    append handed 1-3, 5
            0s    A: acked
            0s    append acked 2
            0s    deliver 1#2 to B
            0s    deliver 3#2 to B
            0s    deliver 4#1 to B
            0s    deliver 5#2 to B
            0s    append handed 1, 3-5
            0s    B: acked
            0s    append acked 1
            0s    B: acked, acked
            0s    append acked 3-4
            0s    floor 4, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn an_ordered_batch_that_exceeds_its_retries_parks_and_goes_on() {
    check(
        "retries 0 / set strategy ordered / set batch 2 / publish a a a / A joins 9 / wait 30s \
         / figures / A acks 3 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    append handed 1-2
            30s   deliver 3#1 to A
            30s   append parked 1 by Timeout, 2 by Timeout
            30s   append handed 3
            30s   floor 2, lag 1, in flight 1, ready 0, waiting 0, parked 2
            30s   A: acked
            30s   append acked 3
            30s   floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 2
        "#]],
    );
}

#[test]
fn an_ordered_batch_with_one_parked_and_hold() {
    check_both_ways(
        "set strategy ordered / set hold / set batch 3 / publish a a a a / A joins 9 \
         / A parks 2 because bad / A acks 1 / A acks 3 / figures / crash / B joins 9 / figures \
         / replay all / B acks 2 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1-3
            0s    A: parked
            0s    append parked 2 by Nack
            0s    A: acked
            0s    append acked 1
            0s    A: acked
            0s    append acked 3
            0s    floor 3, lag 1, in flight 0, ready 0, waiting 0, parked 1
            0s    append opened 2
            0s    floor 3, lag 1, in flight 0, ready 0, waiting 0, parked 1
            0s    job 1 matches 1
            0s    deliver 2#1 to B
            0s    deliver 4#1 to B
            0s    append job 1 started
            0s    append replayed 2 by job 1
            0s    append handed 2, 4
            0s    append job 1 done
            0s    B: acked
            0s    append acked 2
            0s    floor 3, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "set strategy ordered / set hold / set batch 3 / publish a a a a / A joins 9 \
         / A parks 2 because bad / A nacks 1 in 1s / A acks 3 / wait 1s / figures / discard all \
         / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1-3
            0s    A: parked
            0s    append parked 2 by Nack
            0s    A: retrying
            0s    append failed 1 until 1s
            0s    A: acked
            0s    append acked 3
            1s    floor 0, lag 2, in flight 0, ready 0, waiting 0, parked 1
            1s    job 1 matches 1
            1s    deliver 1#2 to A
            1s    deliver 4#1 to A
            1s    append job 1 started
            1s    append discarded 2 by job 1
            1s    append handed 1, 4
            1s    append job 1 done
            1s    floor 0, lag 2, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn the_batch_of_a_key_can_be_changed_while_it_goes_on() {
    check(
        "set strategy ordered / publish a a a a a / A joins 9 / set batch 3 / A acks 1 / set batch 1 \
         / A acks 2-3 / A acks 4 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    append group changed
            0s    A: acked
            0s    deliver 2#1 to A
            0s    deliver 3#1 to A
            0s    deliver 4#1 to A
            0s    append acked 1
            0s    append handed 2-4
            0s    append group changed
            0s    A: acked, acked
            0s    append acked 2-3
            0s    A: acked
            0s    deliver 5#1 to A
            0s    append acked 4
            0s    append handed 5
            0s    floor 4, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_held_key_is_let_go_when_its_parked_message_is_too_old() {
    check(
        "set strategy ordered / set hold / set parked age 10s / publish a a / A joins 9 / A parks 1 \
         / wait 10s / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: parked
            0s    append parked 1 by Nack
            4s    checkpoint 1
            10s   deliver 2#1 to A
            10s   append discarded 1 by job 0
            10s   append handed 2
            10s   floor 1, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "set strategy ordered / set hold / set parked age 10s / publish a a / A joins 9 / A parks 1 \
         / crash / B joins 9 / wait 10s / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: parked
            0s    append parked 1 by Nack
            0s    append opened 2
            10s   deliver 2#1 to B
            10s   append discarded 1 by job 0
            10s   append handed 2
            10s   floor 1, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_held_key_stays_held_when_its_parked_message_is_replayed_and_parked_again() {
    check_both_ways(
        "set strategy ordered / set hold / publish a a / A joins 9 / A parks 1 / replay all \
         / A parks 1 / figures / crash / B joins 9 / figures / discard all",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: parked
            0s    append parked 1 by Nack
            0s    job 1 matches 1
            0s    deliver 1#1 to A
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append handed 1
            0s    append job 1 done
            0s    A: parked
            0s    append parked 1 by Nack
            0s    floor 1, lag 1, in flight 0, ready 0, waiting 0, parked 1
            0s    append opened 2
            0s    floor 1, lag 1, in flight 0, ready 0, waiting 0, parked 1
            0s    job 2 matches 1
            0s    deliver 2#1 to B
            0s    append job 2 started
            0s    append discarded 1 by job 2
            0s    append handed 2
            0s    append job 2 done
        "#]],
    );
}

#[test]
fn a_replayed_message_that_is_lost_keeps_its_place() {
    check_both_ways(
        "set strategy ordered / publish a a / A joins 9 / A parks 1 / A acks 2 / replay all / A lost \
         / figures / crash / B joins 9 / publish a / B acks 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: parked
            0s    deliver 2#1 to A
            0s    append parked 1 by Nack
            0s    append handed 2
            0s    A: acked
            0s    append acked 2
            0s    job 1 matches 1
            0s    deliver 1#1 to A
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append handed 1
            0s    append job 1 done
            0s    floor 2, lag 1, in flight 0, ready 1, waiting 0, parked 0
            0s    append opened 2
            0s    deliver 1#2 to B
            0s    append handed 1
            0s    B: acked
            0s    deliver 3#1 to B
            0s    append acked 1
            0s    append handed 3
            0s    floor 2, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "publish 3 / A joins 3 / A parks 1 / A acks 2-3 / replay all / A nacks 1 in 5s / crash \
         / B joins 1 / publish 1 / B acks 4 / wait 5s / figures",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked
            0s    append parked 1 by Nack
            0s    A: acked, acked
            0s    append acked 2-3
            0s    job 1 matches 1
            0s    deliver 1#1 to A
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append handed 1
            0s    append job 1 done
            0s    A: retrying
            0s    append failed 1 until 5s
            0s    append opened 2
            0s    deliver 4#1 to B
            0s    append handed 4
            0s    B: acked
            0s    append acked 4
            4s    checkpoint 4
            5s    deliver 1#2 to B
            5s    append handed 1
            5s    floor 4, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_replayed_message_on_the_clock_survives_a_restart() {
    check_both_ways(
        "publish 2 / A joins 2 / A parks 1 / A acks 2 / A goodbye / replay all / P polls 1 / crash \
         / P acks 1 / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: parked
            0s    append parked 1 by Nack
            0s    A: acked
            0s    append acked 2
            0s    job 1 matches 1
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append job 1 done
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 30s
            0s    append opened 2
            0s    P: acked
            0s    append acked 1
            0s    floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "set strategy ordered / publish a a / A joins 2 / A parks 1 / A acks 2 / A goodbye \
         / replay all / P polls 1 / publish a / crash / Q polls 1 / P acks 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: parked
            0s    deliver 2#1 to A
            0s    append parked 1 by Nack
            0s    append handed 2
            0s    A: acked
            0s    append acked 2
            0s    job 1 matches 1
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append job 1 done
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 30s
            0s    append opened 2
            0s    P: acked
            0s    deliver 3#1 to Q when durable
            0s    append acked 1
            0s    append leased 3 for 30s
            0s    floor 2, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_replayed_message_can_be_skipped_moved_or_used_up() {
    check_both_ways(
        "retries 0 / publish 3 / A joins 3 / A parks 1-3 / replay all / A skips 1 / A moves 2 \
         / A nacks 3 because bad / parked / crash / parked / figures",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked, parked, parked
            0s    append parked 1 by Nack, 2 by Nack, 3 by Nack
            0s    job 1 matches 3
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    deliver 3#1 to A
            0s    append job 1 started
            0s    append replayed 1-3 by job 1
            0s    append handed 1-3
            0s    append job 1 done
            0s    A: skipped
            0s    append skipped 1
            0s    A: moving
            0s    append moving 2 to elsewhere
            0s    move 2 to elsewhere as 1
            0s    append stream elsewhere created
            0s    append moved 2
            0s    append published 1 and 0 more in stream 2
            0s    A: parked
            0s    append parked 3 by Nack
            0s    parked 3 after 1: #1 A (no reason given); #1 A bad
            0s    reasons: 1 bad
            0s    append opened 2
            0s    parked 3 after 1: #1 A (no reason given); #1 A bad
            0s    reasons: 1 bad
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 1
        "#]],
    );
}

#[test]
fn pinned_messages_expire_are_dropped_parked_and_replayed() {
    check_both_ways(
        "set strategy pinned / A joins 1 / B joins 1 / publish a a-5s b b-5s / wait 5s / figures \
         / A parks 1 / B acks 3 / replay all / crash / figures / C joins 9",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 3#1 to B
            0s    append handed 1, 3
            5s    append expired 2, 4
            5s    floor 0, lag 2, in flight 2, ready 0, waiting 0, parked 0
            5s    A: parked
            5s    append parked 1 by Nack
            5s    B: acked
            5s    append acked 3
            5s    job 1 matches 1
            5s    deliver 1#1 to A
            5s    append job 1 started
            5s    append replayed 1 by job 1
            5s    append handed 1
            5s    append job 1 done
            5s    append opened 2
            5s    floor 4, lag 1, in flight 0, ready 1, waiting 0, parked 0
            5s    deliver 1#2 to C
            5s    append handed 1
        "#]],
    );
    check(
        "set strategy pinned / set limit 3 drop / publish a b a / publish b / A joins 9 / figures \
         / purge / publish a / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    append dropped 1
            0s    deliver 2#1 to A
            0s    deliver 3#1 to A
            0s    deliver 4#1 to A
            0s    append handed 2-4
            0s    floor 1, lag 3, in flight 3, ready 0, waiting 0, parked 0
            0s    purged 3
            0s    append purged through 4
            0s    append released before 5
            0s    deliver 5#1 to A
            0s    append handed 5
            0s    floor 4, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn fair_messages_expire_are_dropped_parked_and_replayed() {
    check_both_ways(
        "set fair / publish a a-5s b b-5s / A joins 1 / wait 5s / figures / A parks 1 / replay all \
         / A acks 3 / A acks 1 / crash / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            5s    append expired 2, 4
            5s    floor 0, lag 2, in flight 1, ready 1, waiting 0, parked 0
            5s    A: parked
            5s    deliver 3#1 to A
            5s    append parked 1 by Nack
            5s    append handed 3
            5s    job 1 matches 1
            5s    append job 1 started
            5s    append replayed 1 by job 1
            5s    append job 1 done
            5s    A: acked
            5s    deliver 1#1 to A
            5s    append acked 3
            5s    append handed 1
            5s    A: acked
            5s    append acked 1
            5s    append opened 2
            5s    floor 4, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "set fair / set limit 3 drop / publish a b a / publish b / A joins 1 / figures / purge \
         / publish a / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    append dropped 1
            0s    deliver 3#1 to A
            0s    append handed 3
            0s    floor 1, lag 3, in flight 1, ready 2, waiting 0, parked 0
            0s    purged 3
            0s    append purged through 4
            0s    append released before 5
            0s    deliver 5#1 to A
            0s    append handed 5
            0s    floor 4, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn an_ordered_message_that_waits_is_dropped_or_expires() {
    check(
        "set strategy ordered / set limit 2 drop / publish a a / A joins 9 / A nacks 1 in 10s \
         / publish a / figures / A acks 2 / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    append failed 1 until 10s
            0s    deliver 2#1 to A
            0s    append dropped 1
            0s    append handed 2
            0s    floor 1, lag 2, in flight 1, ready 0, waiting 0, parked 0
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 2
            0s    append handed 3
            0s    floor 2, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "set strategy ordered / publish a-5s a / A joins 9 / A nacks 1 in 10s / wait 5s / A acks 2 \
         / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    append failed 1 until 10s
            5s    deliver 2#1 to A
            5s    append expired 1
            5s    append handed 2
            5s    A: acked
            5s    append acked 2
            5s    floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "set strategy ordered / publish a+10s-5s a / A joins 9 / wait 5s / A acks 2 / wait 5s \
         / figures",
        expect![[r#"
            5s    deliver 2#1 to A
            5s    append expired 1
            5s    append handed 2
            5s    A: acked
            5s    append acked 2
            9s    checkpoint 2
            10s   floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_delayed_message_of_an_ordered_group_is_purged() {
    check(
        "set strategy ordered / publish a+10s a / A joins 9 / purge / publish a / wait 10s \
         / A acks 3 / figures",
        expect![[r#"
            0s    purged 2
            0s    append purged through 2
            0s    append released before 3
            0s    deliver 3#1 to A
            0s    append handed 3
            10s   A: acked
            10s   append acked 3
            10s   floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn an_old_message_of_an_ordered_group_waits_and_is_too_old() {
    check(
        "set strategy ordered / set age 10s / publish a a / A joins 9 / A nacks 1 in 20s / +5s \
         / publish a / wait 6s / figures / A acks 3 / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    append failed 1 until 20s
            10.000001s deliver 3#1 to A
            10.000001s append expired 1-2
            10.000001s append handed 3
            11s   floor 2, lag 1, in flight 1, ready 0, waiting 0, parked 0
            11s   A: acked
            11s   append acked 3
            11s   floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_full_scan_goes_on_after_a_crash() {
    check_both_ways(
        "limit scan 900 / set strategy ordered / publish a a a a a a / publish b / A joins 9 \
         / A nacks 1 in 5s / crash / status / B joins 9 / wait 5s / B acks 1 / B acks 2 / publish c \
         / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 7#1 to A
            0s    append handed 1, 7
            0s    A: retrying
            0s    append failed 1 until 5s
            0s    append opened 2
            0s    KeyScanFull
            0s    deliver 7#2 to B
            0s    append handed 7
            5s    deliver 1#2 to B
            5s    append handed 1
            5s    B: acked
            5s    deliver 2#1 to B
            5s    append acked 1
            5s    append handed 2
            5s    B: acked
            5s    deliver 3#1 to B
            5s    append acked 2
            5s    append handed 3
            5s    deliver 8#1 to B
            5s    append handed 8
            5s    floor 2, lag 6, in flight 3, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn bytes_and_keys() {
    check(
        "set strategy ordered / publish a a b c / A joins 9 / publish a / B joins 9 of 150B \
         / A acks 1 / members",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 3-4#1 to A
            0s    append handed 1, 3-4
            0s    A: acked
            0s    deliver 2#1 to B
            0s    append acked 1
            0s    append handed 2
            0s    A holds 2 of 9, acked 1, failed 0
            0s    B holds 1 of 9, acked 0, failed 0
        "#]],
    );
    check(
        "set strategy ordered / set batch 3 / publish a a a / A joins 9 of 250B / A acks 1-2 \
         / members",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    append handed 1-2
            0s    A: acked, acked
            0s    deliver 3#1 to A
            0s    append acked 1-2
            0s    append handed 3
            0s    A holds 1 of 9, acked 2, failed 0
        "#]],
    );
}

#[test]
fn a_single_consumer_that_is_full_of_bytes_makes_way() {
    check(
        "set strategy single / A joins 9 of 150B / B joins 9 / publish 3 / members",
        expect![[r#"
        0s    deliver 1#1 to A
        0s    deliver 2-3#1 to B
        0s    append handed 1-3
        0s    A holds 1 of 9, acked 0, failed 0
        0s    B holds 2 of 9, acked 0, failed 0
    "#]],
    );
}

#[test]
fn a_poller_takes_what_has_priority_and_stays_within_its_poll() {
    check(
        "publish . .!9 .!5 . / P polls 2 / P polls 1 / P acks 2-3 / figures",
        expect![[r#"
        0s    deliver 2#1 to P when durable
        0s    deliver 3#1 to P when durable
        0s    append leased 2, 3 for 30s
        0s    deliver 1#1 to P when durable
        0s    append leased 1 for 30s
        0s    P: acked, acked
        0s    append acked 2-3
        0s    floor 0, lag 2, in flight 1, ready 1, waiting 0, parked 0
    "#]],
    );
}

#[test]
fn a_late_ack_is_not_for_a_moved_parked_or_skipped_message() {
    check(
        "publish 3 / P polls 3 for 5s / P moves 1 / P parks 2 / P skips 3 / wait 6s \
         / P acks late 1-3 / figures",
        expect![[r#"
            0s    deliver 1-3#1 to P when durable
            0s    append leased 1-3 for 5s
            0s    P: moving
            0s    append moving 1 to elsewhere
            0s    move 1 to elsewhere as 1
            0s    append stream elsewhere created
            0s    append moved 1
            0s    append published 1 and 0 more in stream 2
            0s    P: parked
            0s    append parked 2 by Nack
            0s    P: skipped
            0s    append skipped 3
            4s    checkpoint 3
            6s    P: not yours (gone), not yours (gone), not yours (gone)
            6s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 1
        "#]],
    );
}

#[test]
fn a_late_ack_of_one_in_a_run() {
    check(
        "publish 3 / P polls 3 for 5s / wait 5s / P acks late 2 / figures / wait 1s / P acks late 1 \
         / P acks late 3 / figures",
        expect![[r#"
            0s    deliver 1-3#1 to P when durable
            0s    append leased 1-3 for 5s
            5s    append failed 1 until 5.1s, 2 until 5.1s, 3 until 5.1s
            5s    P: acked
            5s    append acked 2
            5s    floor 0, lag 2, in flight 0, ready 0, waiting 2, parked 0
            6s    P: acked
            6s    append acked 1
            6s    P: acked
            6s    append acked 3
            6s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "set strategy ordered / set batch 3 / publish a a a / P polls 3 for 5s / wait 6s \
         / P acks late 2 / Q polls 9 / P acks late 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    deliver 2#1 to P when durable
            0s    deliver 3#1 to P when durable
            0s    append leased 1, 2, 3 for 5s
            5s    append failed 1 until 5.1s, 2 until 5.1s, 3 until 5.1s
            6s    P: acked
            6s    append acked 2
            6s    deliver 1#2 to Q when durable
            6s    deliver 3#2 to Q when durable
            6s    append leased 1, 3 for 30s
            6s    P: not yours (superseded)
            6s    floor 0, lag 2, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_pause_holds_back_jobs_and_moves_no_longer_than_need_be() {
    check(
        "publish 2 / A joins 2 / A parks 1 / pause / replay all / A moves 2 / figures / resume \
         / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: parked
            0s    append parked 1 by Nack
            0s    append paused
            0s    job 1 matches 1
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append job 1 done
            0s    A: moving
            0s    append moving 2 to elsewhere
            0s    move 2 to elsewhere as 1
            0s    append stream elsewhere created
            0s    append moved 2
            0s    append published 1 and 0 more in stream 2
            0s    floor 2, lag 1, in flight 0, ready 1, waiting 0, parked 0
            0s    deliver 1#1 to A
            0s    append resumed
            0s    append handed 1
            0s    floor 2, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn delay_priority_and_expiry_in_one_stream_across_restarts() {
    check_both_ways(
        "publish .!5 .+5s .-20s . / A joins 2 / A acks 1 / crash / wait 5s / B joins 9 / crash \
         / wait 20s / C joins 9 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1, 3
            0s    A: acked
            0s    deliver 4#1 to A
            0s    append acked 1
            0s    append handed 4
            0s    append opened 2
            5s    deliver 2#1 to B
            5s    deliver 3#2 to B
            5s    deliver 4#2 to B
            5s    append handed 2-4
            5s    append opened 3
            20s   append expired 3
            24s   checkpoint 1
            25s   deliver 2#2 to C
            25s   deliver 4#3 to C
            25s   append handed 2, 4
            25s   floor 1, lag 2, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_retry_that_is_due_while_the_group_is_full_of_messages_in_flight() {
    check(
        "in flight 2 / publish 4 / A joins 4 / A nacks 1 / wait 200ms / figures / A acks 2 / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: retrying
            0s    deliver 3#1 to A
            0s    append failed 1 until 0.1s
            0s    append handed 3
            0.2s  floor 0, lag 4, in flight 2, ready 2, waiting 0, parked 0
            0.2s  A: acked
            0.2s  deliver 1#2 to A
            0.2s  append acked 2
            0.2s  append handed 1
            0.2s  floor 0, lag 3, in flight 2, ready 1, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn group_limits_with_several_pollers() {
    check(
        "in flight 3 / publish 9 / P polls 2 / Q polls 2 / R polls 2 / P acks 1-2 / figures \
         / Q polls 2",
        expect![[r#"
            0s    deliver 1-2#1 to P when durable
            0s    append leased 1-2 for 30s
            0s    deliver 3#1 to Q when durable
            0s    append leased 3 for 30s
            0s    P: acked, acked
            0s    deliver 4-5#1 to R when durable
            0s    append acked 1-2
            0s    append leased 4-5 for 30s
            0s    floor 2, lag 7, in flight 3, ready 4, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn the_last_consumer_leaves_and_the_next_finds_everything_as_it_was() {
    check(
        "publish a b / set strategy pinned / A joins 9 / A nacks 1 / A goodbye / wait 10s \
         / publish a / figures / B joins 9",
        expect![[r#"
            0s    append group changed
            0s    read 1-2
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    append handed 1-2
            0s    A: retrying
            0s    append failed 1 until 0.1s
            0s    append returned 2
            10s   floor 0, lag 3, in flight 0, ready 3, waiting 0, parked 0
            10s   deliver 1#2 to B
            10s   deliver 2#1 to B
            10s   deliver 3#1 to B
            10s   append handed 1-3
        "#]],
    );
}

#[test]
fn two_kinds_of_lease_in_one_group() {
    check_both_ways(
        "publish 4 / A joins 2 / P polls 2 / A lost / crash / figures / B joins 9 / P acks 3 \
         / wait 30s / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    deliver 3-4#1 to P when durable
            0s    append leased 3-4 for 30s
            0s    append opened 2
            0s    floor 0, lag 4, in flight 2, ready 2, waiting 0, parked 0
            0s    deliver 1-2#2 to B
            0s    append handed 1-2
            0s    P: acked
            0s    append acked 3
            4s    checkpoint 0
            30s   append failed 4 until 30.1s, 1 until 30.2s, 2 until 30.2s
            30s   floor 0, lag 3, in flight 0, ready 0, waiting 3, parked 0
        "#]],
    );
}

#[test]
fn a_message_with_a_priority_that_is_beyond_the_log_leaves_every_kind_of_offer() {
    check(
        "set fair / set log 3 / publish a!5 b b / publish b b b / A joins 1 / figures",
        expect![[r#"
        0s    append opened 1
        0s    append stream jobs created
        0s    append stream changed
        0s    append released before 4
        0s    append expired 1-3
        0s    deliver 4#1 to A
        0s    append handed 4
        0s    floor 3, lag 3, in flight 1, ready 2, waiting 0, parked 0
    "#]],
    );
    check(
        "set strategy pinned / set log 3 / publish a!5 b b / publish b b b / A joins 1 / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    append released before 4
            0s    append expired 1-3
            0s    deliver 4#1 to A
            0s    append handed 4
            0s    floor 3, lag 3, in flight 1, ready 2, waiting 0, parked 0
        "#]],
    );
    check(
        "set strategy ordered / set fair / set log 3 / publish a!5 b b / publish b b b / A joins 1 \
         / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    append released before 4
            0s    append expired 1-3
            0s    deliver 4#1 to A
            0s    append handed 4
            0s    floor 3, lag 3, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}
