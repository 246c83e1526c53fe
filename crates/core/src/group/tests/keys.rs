//! Keys: what an ordered group hands out, and in which order.

use super::{check, check_both_ways, expect};

#[test]
fn an_ordered_group_hands_out_one_message_of_a_key_at_a_time() {
    check(
        "set strategy ordered / publish a a b a b c / A joins 9 / A acks 1 / A acks 3 / A acks 2 \
         / figures / A acks 4-6 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    deliver 6#1 to A
            0s    append handed 1, 3, 6
            0s    A: acked
            0s    deliver 2#1 to A
            0s    append acked 1
            0s    append handed 2
            0s    A: acked
            0s    deliver 5#1 to A
            0s    append acked 3
            0s    append handed 5
            0s    A: acked
            0s    deliver 4#1 to A
            0s    append acked 2
            0s    append handed 4
            0s    floor 3, lag 3, in flight 3, ready 0, waiting 0, parked 0
            0s    A: acked, acked, acked
            0s    append acked 4-6
            0s    floor 6, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn messages_of_one_key_go_one_by_one_whoever_takes_them() {
    check(
        "set strategy ordered / publish a a a / A joins 1 / B joins 1 / A acks 1 / B acks 2 \
         / A acks 3 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: acked
            0s    deliver 2#1 to B
            0s    append acked 1
            0s    append handed 2
            0s    B: acked
            0s    deliver 3#1 to A
            0s    append acked 2
            0s    append handed 3
            0s    A: acked
            0s    append acked 3
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn nothing_of_a_key_overtakes_what_was_given_back_for_a_while() {
    check_both_ways(
        "set strategy ordered / publish a a b / A joins 9 / A returns 1 for 10s / figures / wait 9s / figures / crash \
         / B joins 9 / wait 1s / B acks 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1, 3
            0s    A: returned
            0s    append snoozed 1 until 10s
            0s    floor 0, lag 3, in flight 1, ready 0, waiting 1, parked 0
            9s    floor 0, lag 3, in flight 1, ready 0, waiting 1, parked 0
            9s    append opened 2
            9s    deliver 3#2 to B
            9s    append handed 3
            10s   deliver 1#1 to B
            10s   append handed 1
            10s   B: acked
            10s   deliver 2#1 to B
            10s   append acked 1
            10s   append handed 2
            10s   floor 1, lag 2, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn messages_without_a_key_are_free_in_an_ordered_group() {
    check(
        "set strategy ordered / publish . . a . a . / A joins 9 / A nacks 1 / wait 100ms / figures",
        expect![[r#"
            0s    deliver 1-4#1 to A
            0s    deliver 6#1 to A
            0s    append handed 1-4, 6
            0s    A: retrying
            0s    append failed 1 until 0.1s
            0.1s  deliver 1#2 to A
            0.1s  append handed 1
            0.1s  floor 0, lag 6, in flight 5, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_failed_message_keeps_its_key_waiting() {
    check(
        "set strategy ordered / publish a a b a / A joins 9 / A nacks 1 / figures / wait 99ms \
         / wait 1ms / A acks 1 / A acks 2",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1, 3
            0s    A: retrying
            0s    append failed 1 until 0.1s
            0s    floor 0, lag 4, in flight 1, ready 0, waiting 1, parked 0
            0.1s  deliver 1#2 to A
            0.1s  append handed 1
            0.1s  A: acked
            0.1s  deliver 2#1 to A
            0.1s  append acked 1
            0.1s  append handed 2
            0.1s  A: acked
            0.1s  deliver 4#1 to A
            0.1s  append acked 2
            0.1s  append handed 4
        "#]],
    );
    check_both_ways(
        "set strategy ordered / publish a a b / A joins 9 / A nacks 1 in 10s / crash / B joins 9 \
         / wait 9s / wait 1s / B acks 1 / B acks 3 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1, 3
            0s    A: retrying
            0s    append failed 1 until 10s
            0s    append opened 2
            0s    deliver 3#2 to B
            0s    append handed 3
            10s   deliver 1#2 to B
            10s   append handed 1
            10s   B: acked
            10s   deliver 2#1 to B
            10s   append acked 1
            10s   append handed 2
            10s   B: acked
            10s   append acked 3
            10s   floor 1, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_lost_consumer_and_a_goodbye_unlock_keys_in_order() {
    check(
        "set strategy ordered / publish a a b b / A joins 9 / A lost / B joins 9 / B goodbye \
         / C joins 9 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1, 3
            0s    deliver 1#2 to B
            0s    deliver 3#2 to B
            0s    append handed 1, 3
            0s    append returned 1, 3
            0s    deliver 1#2 to C
            0s    deliver 3#2 to C
            0s    append handed 1, 3
            0s    floor 0, lag 4, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_batch_of_a_key_goes_together_and_locks_it_until_all_of_it_is_done() {
    check(
        "set strategy ordered / set batch 3 / publish a b a a a a / A joins 9 / B joins 9 / A acks 1 \
         / A acks 4 / A acks 3 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    deliver 4#1 to A
            0s    deliver 2#1 to A
            0s    append handed 1, 3-4, 2
            0s    A: acked
            0s    append acked 1
            0s    A: acked
            0s    append acked 4
            0s    A: acked
            0s    deliver 5#1 to B
            0s    deliver 6#1 to B
            0s    append acked 3
            0s    append handed 5-6
            0s    floor 1, lag 3, in flight 3, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "set strategy ordered / set batch 3 / publish a a a a / A joins 2 / A acks 1-2 / A acks 3-4 \
         / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    append handed 1-2
            0s    A: acked, acked
            0s    deliver 3#1 to A
            0s    deliver 4#1 to A
            0s    append acked 1-2
            0s    append handed 3-4
            0s    A: acked, acked
            0s    append acked 3-4
            0s    floor 4, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn two_failures_of_a_batch_with_different_delays_still_go_in_order() {
    check(
        "set strategy ordered / set batch 3 / publish a a a a / A joins 9 \
         / A nacks 1 in 10s & A nacks 2 in 1s & A acks 3 / wait 9s / figures / wait 1s / A acks 1-2 \
         / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1-3
            0s    A: retrying
            0s    A: retrying
            0s    A: acked
            0s    append failed 1 until 10s, 2 until 1s
            0s    append acked 3
            4s    checkpoint 0
            9s    floor 0, lag 3, in flight 0, ready 0, waiting 1, parked 0
            10s   deliver 1#2 to A
            10s   deliver 2#2 to A
            10s   deliver 4#1 to A
            10s   append handed 1-2, 4
            10s   A: acked, acked
            10s   append acked 1-2
            10s   floor 3, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "set strategy ordered / set batch 3 / publish a a a a / A joins 9 \
         / A nacks 1 in 1s & A nacks 2 in 10s & A acks 3 / wait 1s / A acks 1 / wait 9s / A acks 2 \
         / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1-3
            0s    A: retrying
            0s    A: retrying
            0s    A: acked
            0s    append failed 1 until 1s, 2 until 10s
            0s    append acked 3
            1s    deliver 1#2 to A
            1s    append handed 1
            1s    A: acked
            1s    append acked 1
            4s    checkpoint 1
            10s   deliver 2#2 to A
            10s   deliver 4#1 to A
            10s   append handed 2, 4
            10s   A: acked
            10s   append acked 2
            10s   floor 3, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "set strategy ordered / set batch 3 / publish a a a a / A joins 9 \
         / A nacks 1 in 10s & A nacks 2 in 1s & A acks 3 / crash / B joins 9 / wait 10s / B acks 1-2 \
         / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1-3
            0s    A: retrying
            0s    A: retrying
            0s    A: acked
            0s    append failed 1 until 10s, 2 until 1s
            0s    append acked 3
            0s    append opened 2
            10s   deliver 1#2 to B
            10s   deliver 2#2 to B
            10s   deliver 4#1 to B
            10s   append handed 1-2, 4
            10s   B: acked, acked
            10s   append acked 1-2
            10s   floor 3, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_batch_that_fails_in_the_middle_holds_back_what_follows() {
    check(
        "set strategy ordered / set batch 2 / publish a a a / A joins 9 / A nacks 1 / A acks 2 \
         / wait 100ms / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    append handed 1-2
            0s    A: retrying
            0s    append failed 1 until 0.1s
            0s    A: acked
            0s    append acked 2
            0.1s  deliver 1#2 to A
            0.1s  deliver 3#1 to A
            0.1s  append handed 1, 3
            0.1s  floor 0, lag 2, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_parked_message_lets_its_key_go_on() {
    check_both_ways(
        "set strategy ordered / publish a a a / A joins 1 / A parks 1 because bad / A acks 2 / crash \
         / B joins 9 / replay all / B acks 3 / B acks 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: parked
            0s    deliver 2#1 to A
            0s    append parked 1 by Nack
            0s    append handed 2
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 2
            0s    append handed 3
            0s    append opened 2
            0s    deliver 3#2 to B
            0s    append handed 3
            0s    job 1 matches 1
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append job 1 done
            0s    B: acked
            0s    deliver 1#1 to B
            0s    append acked 3
            0s    append handed 1
            0s    B: acked
            0s    append acked 1
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_parked_message_holds_its_key_until_it_is_replayed() {
    check_both_ways(
        "set strategy ordered / set hold / publish a a b / A joins 9 / A parks 1 because bad \
         / figures / crash / figures / B joins 9 / replay all / B acks 1 / B acks 2-3 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1, 3
            0s    A: parked
            0s    append parked 1 by Nack
            0s    floor 1, lag 2, in flight 1, ready 0, waiting 0, parked 1
            0s    append opened 2
            0s    floor 1, lag 2, in flight 0, ready 1, waiting 0, parked 1
            0s    deliver 3#2 to B
            0s    append handed 3
            0s    job 1 matches 1
            0s    deliver 1#1 to B
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append handed 1
            0s    append job 1 done
            0s    B: acked
            0s    deliver 2#1 to B
            0s    append acked 1
            0s    append handed 2
            0s    B: acked, acked
            0s    append acked 2-3
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_parked_message_holds_its_key_until_it_is_discarded() {
    check_both_ways(
        "set strategy ordered / set hold / publish a a b / A joins 9 / A parks 1 because bad / crash \
         / B joins 9 / discard 1 / B acks 2-3 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1, 3
            0s    A: parked
            0s    append parked 1 by Nack
            0s    append opened 2
            0s    deliver 3#2 to B
            0s    append handed 3
            0s    job 1 matches 1
            0s    deliver 2#1 to B
            0s    append job 1 started
            0s    append discarded 1 by job 1
            0s    append handed 2
            0s    append job 1 done
            0s    B: acked, acked
            0s    append acked 2-3
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn two_parked_messages_hold_their_key_twice() {
    check(
        "set strategy ordered / set hold / set batch 2 / publish a a a / A joins 9 \
         / A parks 1-2 because bad / discard 1 / figures / discard 2 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    append handed 1-2
            0s    A: parked, parked
            0s    append parked 1 by Nack, 2 by Nack
            0s    job 1 matches 1
            0s    append job 1 started
            0s    append discarded 1 by job 1
            0s    append job 1 done
            0s    floor 2, lag 1, in flight 0, ready 0, waiting 0, parked 1
            0s    job 2 matches 1
            0s    deliver 3#1 to A
            0s    append job 2 started
            0s    append discarded 2 by job 2
            0s    append handed 3
            0s    append job 2 done
            0s    floor 2, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_key_that_was_held_goes_on_when_the_group_no_longer_holds() {
    check(
        "set strategy ordered / set hold / publish a a / A joins 9 / A parks 1 because bad \
         / set continue / A acks 2 / set hold / publish a / figures / discard all",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: parked
            0s    append parked 1 by Nack
            0s    append group changed
            0s    read 2
            0s    deliver 2#1 to A
            0s    append handed 2
            0s    A: acked
            0s    append acked 2
            0s    append group changed
            0s    floor 2, lag 1, in flight 0, ready 0, waiting 0, parked 1
            0s    job 1 matches 1
            0s    deliver 3#1 to A
            0s    append job 1 started
            0s    append discarded 1 by job 1
            0s    append handed 3
            0s    append job 1 done
        "#]],
    );
}

#[test]
fn a_delayed_message_holds_its_key() {
    check(
        "set strategy ordered / publish a+10s a b / A joins 9 / figures / wait 9s / wait 1s \
         / A acks 1 / figures",
        expect![[r#"
            0s    deliver 3#1 to A
            0s    append handed 3
            0s    floor 0, lag 3, in flight 1, ready 0, waiting 0, parked 0
            10s   deliver 1#1 to A
            10s   append handed 1
            10s   A: acked
            10s   deliver 2#1 to A
            10s   append acked 1
            10s   append handed 2
            10s   floor 1, lag 2, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "set strategy ordered / publish a+10s a b / A joins 9 / crash / B joins 9 / wait 10s \
         / B acks 1 / figures",
        expect![[r#"
            0s    deliver 3#1 to A
            0s    append handed 3
            0s    append opened 2
            0s    deliver 3#2 to B
            0s    append handed 3
            10s   deliver 1#1 to B
            10s   append handed 1
            10s   B: acked
            10s   deliver 2#1 to B
            10s   append acked 1
            10s   append handed 2
            10s   floor 1, lag 2, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn an_expired_message_in_the_middle_of_a_key_does_not_stick() {
    check(
        "set strategy ordered / publish a a-5s a / A joins 9 / wait 5s / A acks 1 / A acks 3 \
         / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            5s    append expired 2
            5s    A: acked
            5s    deliver 3#1 to A
            5s    append acked 1
            5s    append handed 3
            5s    A: acked
            5s    append acked 3
            5s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "set strategy ordered / publish a a-5s a / A joins 9 / crash / wait 6s / B joins 9 \
         / B acks 1 / B acks 3 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    append opened 2
            5s    append expired 2
            6s    deliver 1#2 to B
            6s    append handed 1
            6s    B: acked
            6s    deliver 3#1 to B
            6s    append acked 1
            6s    append handed 3
            6s    B: acked
            6s    append acked 3
            6s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "set strategy ordered / publish a-5s a / A joins 9 / wait 30s / figures / A acks 2 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            30s   deliver 2#1 to A
            30s   append expired 1
            30s   append handed 2
            30s   floor 1, lag 1, in flight 1, ready 0, waiting 0, parked 0
            30s   A: acked
            30s   append acked 2
            30s   floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn an_expired_message_at_the_head_of_a_key_does_not_stick() {
    check(
        "set strategy ordered / publish a-5s a a-7s a / wait 6s / A joins 9 / wait 2s / A acks 2 \
         / A acks 4 / figures",
        expect![[r#"
            5s    append expired 1
            6s    deliver 2#1 to A
            6s    append handed 2
            7s    append expired 3
            8s    A: acked
            8s    deliver 4#1 to A
            8s    append acked 2
            8s    append handed 4
            8s    A: acked
            8s    append acked 4
            8s    floor 4, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_replayed_message_takes_the_lock_of_its_key() {
    check(
        "set strategy ordered / publish a a a / A joins 9 / A parks 1 / A acks 2 / replay 1 \
         / figures / A acks 3 / A acks 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: parked
            0s    deliver 2#1 to A
            0s    append parked 1 by Nack
            0s    append handed 2
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 2
            0s    append handed 3
            0s    job 1 matches 1
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append job 1 done
            0s    floor 2, lag 2, in flight 1, ready 0, waiting 0, parked 0
            0s    A: acked
            0s    deliver 1#1 to A
            0s    append acked 3
            0s    append handed 1
            0s    A: acked
            0s    append acked 1
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "set strategy ordered / publish a a a / A joins 9 / A parks 1 / replay 1 / A acks 2 / crash \
         / B joins 9 / figures / B acks 1 / B acks 3 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: parked
            0s    deliver 2#1 to A
            0s    append parked 1 by Nack
            0s    append handed 2
            0s    job 1 matches 1
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append job 1 done
            0s    A: acked
            0s    deliver 1#1 to A
            0s    append acked 2
            0s    append handed 1
            0s    append opened 2
            0s    deliver 1#2 to B
            0s    append handed 1
            0s    floor 2, lag 2, in flight 1, ready 0, waiting 0, parked 0
            0s    B: acked
            0s    deliver 3#1 to B
            0s    append acked 1
            0s    append handed 3
            0s    B: acked
            0s    append acked 3
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn leases_on_the_clock_keep_their_keys_locked_across_a_restart() {
    check_both_ways(
        "set strategy ordered / publish a a b / P polls 1 / crash / figures / Q polls 9 / P acks 1 \
         / Q polls 9 / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 30s
            0s    append opened 2
            0s    floor 0, lag 3, in flight 1, ready 1, waiting 0, parked 0
            0s    deliver 3#1 to Q when durable
            0s    append leased 3 for 30s
            0s    P: acked
            0s    append acked 1
            0s    deliver 2#1 to Q when durable
            0s    append leased 2 for 30s
            0s    floor 1, lag 2, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "set strategy ordered / publish a a b / P polls 1 / crash / B joins 9 / wait 30s \
         / wait 100ms / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 30s
            0s    append opened 2
            0s    deliver 3#1 to B
            0s    append handed 3
            30s   append failed 1 until 30.1s, 3 until 30.1s
            30.1s deliver 1#2 to B
            30.1s deliver 3#2 to B
            30.1s append handed 1, 3
            30.1s floor 0, lag 3, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "set strategy ordered / set batch 2 / publish a a a / P polls 9 / P acks 1 / crash \
         / B joins 9 / P nacks 2 in 1s / wait 1s / B acks 2 / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    deliver 2#1 to P when durable
            0s    append leased 1, 2 for 30s
            0s    P: acked
            0s    append acked 1
            0s    append opened 2
            0s    P: retrying
            0s    append failed 2 until 1s
            1s    deliver 2#2 to B
            1s    deliver 3#1 to B
            1s    append handed 2-3
            1s    B: acked
            1s    append acked 2
            1s    floor 2, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn skipping_and_moving_unlock_a_key() {
    check(
        "set strategy ordered / publish a a a / A joins 9 / A skips 1 / A moves 2 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: skipped
            0s    deliver 2#1 to A
            0s    append skipped 1
            0s    append handed 2
            0s    A: moving
            0s    append moving 2 to elsewhere
            0s    move 2 to elsewhere as 1
            0s    deliver 3#1 to A
            0s    append stream elsewhere created
            0s    append moved 2
            0s    append published 1 and 0 more in stream 2
            0s    append handed 3
            0s    floor 2, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "set strategy ordered / publish a a / A joins 9 / moves wait / A moves 1 / figures \
         / moves go",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: moving
            0s    append moving 1 to elsewhere
            0s    asks for 1 to go to elsewhere
            0s    floor 0, lag 2, in flight 0, ready 0, waiting 0, parked 0
            0s    move 1 to elsewhere as 1
            0s    deliver 2#1 to A
            0s    append stream elsewhere created
            0s    append moved 1
            0s    append published 1 and 0 more in stream 2
            0s    append handed 2
        "#]],
    );
}

#[test]
fn a_late_ack_unlocks_a_key() {
    check(
        "set strategy ordered / publish a a / P polls 1 for 5s / wait 5s / P acks late 1 / Q polls 1 \
         / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 5s
            5s    append failed 1 until 5.1s
            5s    P: acked
            5s    append acked 1
            5s    deliver 2#1 to Q when durable
            5s    append leased 2 for 30s
            5s    floor 1, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn reading_past_a_locked_key_has_a_limit() {
    check(
        "limit scan 900 / set strategy ordered / publish a a a a a a / publish b c d / A joins 2 \
         / status / publish e / figures / A acks 7 / A acks 8 / status / A acks 1 / A acks 2 \
         / A acks 9 / status / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 7#1 to A
            0s    append handed 1, 7
            0s    KeyScanFull
            0s    floor 0, lag 10, in flight 2, ready 2, waiting 0, parked 0
            0s    A: acked
            0s    deliver 8#1 to A
            0s    append acked 7
            0s    append handed 8
            0s    A: acked
            0s    deliver 9#1 to A
            0s    append acked 8
            0s    append handed 9
            0s    KeyScanFull
            0s    A: acked
            0s    deliver 2#1 to A
            0s    append acked 1
            0s    append handed 2
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 2
            0s    append handed 3
            0s    read 10
            0s    A: acked
            0s    deliver 10#1 to A
            0s    append acked 9
            0s    append handed 10
            0s    Live
            0s    floor 2, lag 5, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "limit scan 900 / set strategy ordered / publish a a a a a a / publish b / publish c \
         / A joins 9 / A nacks 1 in 60s / status / wait 60s / status / A acks 1 / A acks 7 \
         / A acks 2 / A acks 3 / status",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 7#1 to A
            0s    append handed 1, 7
            0s    A: retrying
            0s    append failed 1 until 60s
            0s    KeyScanFull
            30s   append failed 7 until 30.1s
            30.1s deliver 7#2 to A
            30.1s append handed 7
            60s   deliver 1#2 to A
            60s   append handed 1
            60s   KeyScanFull
            60s   A: acked
            60s   deliver 2#1 to A
            60s   append acked 1
            60s   append handed 2
            60s   A: acked
            60s   append acked 7
            60s   read 8
            60s   deliver 8#1 to A
            60s   append handed 8
            60s   A: acked
            60s   deliver 3#1 to A
            60s   append acked 2
            60s   append handed 3
            60s   A: acked
            60s   deliver 4#1 to A
            60s   append acked 3
            60s   append handed 4
            60s   Live
        "#]],
    );
}

#[test]
fn a_stuck_key_does_not_stop_the_others() {
    check(
        "set strategy ordered / buffer 4 / publish a a a a a a a a a a / publish b c / A joins 9 \
         / figures / A acks 11-12 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 11-12#1 to A
            0s    append handed 1, 11-12
            0s    floor 0, lag 12, in flight 3, ready 0, waiting 0, parked 0
            0s    A: acked, acked
            0s    append acked 11-12
            0s    floor 0, lag 10, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_key_without_members_behind_it_is_forgotten() {
    check(
        "set strategy ordered / publish a b c / A joins 9 / A acks 1-3 / publish a b c / A acks 4-6 \
         / figures",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: acked, acked, acked
            0s    append acked 1-3
            0s    deliver 4-6#1 to A
            0s    append handed 4-6
            0s    A: acked, acked, acked
            0s    append acked 4-6
            0s    floor 6, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn what_was_parked_by_a_plain_group_holds_up_its_key_once_the_group_is_ordered() {
    check_both_ways(
        "publish a . a a b / A joins 2 / A parks 1-2 / A goodbye / set hold / set strategy ordered \
         / B joins 9 / crash / C joins 9 / replay 1 / C acks 1 / discard all / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: parked, parked
            0s    deliver 3-4#1 to A
            0s    append parked 1 by Nack, 2 by Nack
            0s    append handed 3-4
            0s    append returned 3-4
            0s    append group changed
            0s    append group changed
            0s    read 1-2
            0s    append found 1 is of a, 2 is of .
            0s    read 3-5
            0s    deliver 5#1 to B
            0s    append handed 5
            0s    append opened 2
            0s    deliver 5#2 to C
            0s    append handed 5
            0s    job 1 matches 1
            0s    deliver 1#1 to C
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append handed 1
            0s    append job 1 done
            0s    C: acked
            0s    deliver 3#1 to C
            0s    append acked 1
            0s    append handed 3
            0s    job 2 matches 1
            0s    append job 2 started
            0s    append discarded 2 by job 2
            0s    append job 2 done
            0s    floor 2, lag 3, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
}
