//! Whom messages go to, and which goes first: pinned, single, fair, by priority.

use super::{check, check_both_ways, expect};

#[test]
fn a_pinned_key_stays_with_its_consumer_and_waits_while_that_is_full() {
    check(
        "set strategy pinned / A joins 1 / B joins 9 / publish a b a b / publish a b / A acks 1 \
         / members / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to B
            0s    deliver 4#1 to B
            0s    append handed 1-2, 4
            0s    deliver 6#1 to B
            0s    append handed 6
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 1
            0s    append handed 3
            0s    A holds 1 of 1, acked 1, failed 0
            0s    B holds 3 of 9, acked 0, failed 0
            0s    floor 1, lag 5, in flight 4, ready 1, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_pinned_key_moves_when_its_consumer_leaves() {
    check(
        "set strategy pinned / A joins 9 / B joins 9 / publish a b a b / A goodbye / publish a b \
         / B acks 1-6 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    deliver 2#1 to B
            0s    deliver 4#1 to B
            0s    append handed 1, 3, 2, 4
            0s    deliver 1#1 to B
            0s    deliver 3#1 to B
            0s    append returned 1, 3
            0s    append handed 1, 3
            0s    deliver 5#1 to B
            0s    deliver 6#1 to B
            0s    append handed 5-6
            0s    B: acked, acked, acked, acked, acked, acked
            0s    append acked 1-6
            0s    floor 6, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_newcomer_takes_a_share_of_the_pinned_keys() {
    check(
        "set strategy pinned / A joins 9 / publish a b c d e f / A acks 1-6 / B joins 9 \
         / publish a b c d e f / members",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    deliver 3#1 to A
            0s    deliver 4#1 to A
            0s    deliver 5#1 to A
            0s    deliver 6#1 to A
            0s    append handed 1-6
            0s    A: acked, acked, acked, acked, acked, acked
            0s    append acked 1-6
            0s    deliver 10#1 to B
            0s    deliver 11#1 to B
            0s    deliver 12#1 to B
            0s    deliver 7#1 to A
            0s    deliver 8#1 to A
            0s    deliver 9#1 to A
            0s    append handed 10-12, 7-9
            0s    A holds 3 of 9, acked 6, failed 0
            0s    B holds 3 of 9, acked 0, failed 0
        "#]],
    );
}

#[test]
fn messages_without_a_key_go_to_anybody_in_a_pinned_group() {
    check(
        "set strategy pinned / A joins 2 / B joins 2 / publish . . . . / members",
        expect![[r#"
        0s    deliver 1#1 to A
        0s    deliver 2#1 to A
        0s    deliver 3#1 to B
        0s    deliver 4#1 to B
        0s    append handed 1-4
        0s    A holds 2 of 2, acked 0, failed 0
        0s    B holds 2 of 2, acked 0, failed 0
    "#]],
    );
}

#[test]
fn a_pinned_group_after_a_restart() {
    check_both_ways(
        "set strategy pinned / A joins 9 / publish a b a+5s / A nacks 1 / crash / B joins 9 \
         / C joins 9 / wait 5s / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    append handed 1-2
            0s    A: retrying
            0s    append failed 1 until 0.1s
            0s    append opened 2
            0s    deliver 2#2 to B
            0s    append handed 2
            0.1s  deliver 1#2 to C
            0.1s  append handed 1
            5s    read 3
            5s    deliver 3#1 to C
            5s    append handed 3
            5s    floor 0, lag 3, in flight 3, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_pinned_delayed_message_goes_to_its_keys_consumer() {
    check(
        "set strategy pinned / A joins 9 / B joins 9 / publish a b / publish a+5s b+5s / wait 5s \
         / members",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to B
            0s    append handed 1-2
            5s    read 3-4
            5s    deliver 3#1 to A
            5s    deliver 4#1 to B
            5s    append handed 3-4
            5s    A holds 2 of 9, acked 0, failed 0
            5s    B holds 2 of 9, acked 0, failed 0
        "#]],
    );
}

#[test]
fn a_single_consumer_gets_all_until_it_is_full_and_then_the_next() {
    check(
        "set strategy single / A joins 2 / B joins 2 / publish 1 / publish 2 / publish 2 / A acks 1 \
         / publish 1 / members",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    deliver 2#1 to A
            0s    deliver 3#1 to B
            0s    append handed 2-3
            0s    deliver 4#1 to B
            0s    append handed 4
            0s    A: acked
            0s    deliver 5#1 to A
            0s    append acked 1
            0s    append handed 5
            0s    A holds 2 of 2, acked 1, failed 0
            0s    B holds 2 of 2, acked 0, failed 0
        "#]],
    );
}

#[test]
fn a_single_consumer_that_leaves_is_replaced() {
    check(
        "set strategy single / A joins 9 / B joins 9 / publish 2 / A lost / publish 1 / members",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    deliver 1-2#2 to B
            0s    append handed 1-2
            0s    deliver 3#1 to B
            0s    append handed 3
            0s    B holds 3 of 9, acked 0, failed 0
        "#]],
    );
}

#[test]
fn keys_take_turns_where_the_group_is_fair() {
    check(
        "set fair / publish a a a a b c / A joins 1 / A acks 1 / A acks 5 / A acks 6 / A acks 2 \
         / publish b / A acks 3 / A acks 7 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: acked
            0s    deliver 5#1 to A
            0s    append acked 1
            0s    append handed 5
            0s    A: acked
            0s    deliver 6#1 to A
            0s    append acked 5
            0s    append handed 6
            0s    A: acked
            0s    deliver 2#1 to A
            0s    append acked 6
            0s    append handed 2
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 2
            0s    append handed 3
            0s    A: acked
            0s    deliver 7#1 to A
            0s    append acked 3
            0s    append handed 7
            0s    A: acked
            0s    deliver 4#1 to A
            0s    append acked 7
            0s    append handed 4
            0s    floor 3, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_fair_group_after_a_restart_and_with_retries() {
    check_both_ways(
        "set fair / publish a a b / A joins 1 / A nacks 1 / crash / B joins 1 / wait 1s / B acks 1 \
         / B acks 3 / B acks 2 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    deliver 3#1 to A
            0s    append failed 1 until 0.1s
            0s    append handed 3
            0s    append opened 2
            0s    deliver 2#1 to B
            0s    append handed 2
            1s    B: has no such lease
            1s    B: has no such lease
            1s    B: acked
            1s    deliver 3#2 to B
            1s    append acked 2
            1s    append handed 3
            1s    floor 0, lag 2, in flight 1, ready 1, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn fairness_within_a_priority() {
    check(
        "set fair / publish a a b a!5 b!5 a!5 / A joins 1 / A acks 4 / A acks 5 / A acks 6 \
         / A acks 1 / A acks 3",
        expect![[r#"
            0s    deliver 4#1 to A
            0s    append handed 4
            0s    A: acked
            0s    deliver 5#1 to A
            0s    append acked 4
            0s    append handed 5
            0s    A: acked
            0s    deliver 6#1 to A
            0s    append acked 5
            0s    append handed 6
            0s    A: acked
            0s    deliver 1#1 to A
            0s    append acked 6
            0s    append handed 1
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 1
            0s    append handed 3
            0s    A: acked
            0s    deliver 2#1 to A
            0s    append acked 3
            0s    append handed 2
        "#]],
    );
}

#[test]
fn ordered_and_fair_together() {
    check(
        "set strategy ordered / set fair / publish a a a b b / A joins 1 / A acks 1 / A acks 4 \
         / A acks 2 / A acks 5 / A acks 3 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: acked
            0s    deliver 4#1 to A
            0s    append acked 1
            0s    append handed 4
            0s    A: acked
            0s    deliver 2#1 to A
            0s    append acked 4
            0s    append handed 2
            0s    A: acked
            0s    deliver 5#1 to A
            0s    append acked 2
            0s    append handed 5
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 5
            0s    append handed 3
            0s    A: acked
            0s    append acked 3
            0s    floor 5, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn the_highest_priority_goes_first_however_deep_it_lies() {
    check(
        "buffer 10 / publish 400 / publish .!9 / publish .!5 / publish .!9 / A joins 1 / A acks 401 \
         / A acks 403 / A acks 402 / A acks 1",
        expect![[r#"
            0s    deliver 401#1 to A
            0s    append handed 401
            0s    A: acked
            0s    deliver 403#1 to A
            0s    append acked 401
            0s    append handed 403
            0s    A: acked
            0s    deliver 402#1 to A
            0s    append acked 403
            0s    append handed 402
            0s    A: acked
            0s    deliver 1#1 to A
            0s    append acked 402
            0s    append handed 1
            0s    A: acked
            0s    deliver 2#1 to A
            0s    append acked 1
            0s    append handed 2
        "#]],
    );
    check_both_ways(
        "buffer 10 / publish 400 / publish .!9 / crash / A joins 1 / A acks 401 / figures",
        expect![[r#"
            0s    append opened 2
            0s    deliver 401#1 to A
            0s    append handed 401
            0s    A: acked
            0s    deliver 1#1 to A
            0s    append acked 401
            0s    append handed 1
            0s    floor 0, lag 400, in flight 1, ready 399, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_priority_published_later_goes_before_what_is_ready() {
    check(
        "publish 3 / A joins 1 / publish .!1 / A acks 1 / A acks 4 / figures",
        expect![[r#"
        0s    deliver 1#1 to A
        0s    append handed 1
        0s    A: acked
        0s    deliver 4#1 to A
        0s    append acked 1
        0s    append handed 4
        0s    A: acked
        0s    deliver 2#1 to A
        0s    append acked 4
        0s    append handed 2
        0s    floor 1, lag 2, in flight 1, ready 1, waiting 0, parked 0
    "#]],
    );
}

#[test]
fn waiting_raises_a_priority_so_that_none_starves() {
    check(
        "set step 10s / publish . / +10s / publish .!1 / +10s / publish .!2 / A joins 1 / A acks 1 \
         / A acks 2",
        expect![[r#"
            20s   deliver 1#1 to A
            20s   append handed 1
            20s   A: acked
            20s   deliver 2#1 to A
            20s   append acked 1
            20s   append handed 2
            20s   A: acked
            20s   deliver 3#1 to A
            20s   append acked 2
            20s   append handed 3
        "#]],
    );
    check(
        "set step 10s / publish . / +5s / publish .!1 / A joins 1 / A acks 2",
        expect![[r#"
        5s    deliver 2#1 to A
        5s    append handed 2
        5s    A: acked
        5s    deliver 1#1 to A
        5s    append acked 2
        5s    append handed 1
    "#]],
    );
    check(
        "set step 10s / publish . / +95s / publish .!9 / A joins 1 / A acks 1",
        expect![[r#"
        95s   deliver 1#1 to A
        95s   append handed 1
        95s   A: acked
        95s   deliver 2#1 to A
        95s   append acked 1
        95s   append handed 2
    "#]],
    );
    check_both_ways(
        "set step 10s / publish . / +100s / publish .!9 / crash / A joins 1 / A acks 1",
        expect![[r#"
            100s  append opened 2
            100s  deliver 1#1 to A
            100s  append handed 1
            100s  A: acked
            100s  deliver 2#1 to A
            100s  append acked 1
            100s  append handed 2
        "#]],
    );
}

#[test]
fn what_is_retried_goes_before_newer_of_the_same_priority() {
    check(
        "publish .!5 .!5 .!9 . / A joins 1 / A acks 3 / A nacks 1 in 0s / A acks 1 / A acks 2 \
         / figures",
        expect![[r#"
            0s    deliver 3#1 to A
            0s    append handed 3
            0s    A: acked
            0s    deliver 1#1 to A
            0s    append acked 3
            0s    append handed 1
            0s    A: retrying
            0s    deliver 1#2 to A
            0s    append failed 1 until 0s
            0s    append handed 1
            0s    A: acked
            0s    deliver 2#1 to A
            0s    append acked 1
            0s    append handed 2
            0s    A: acked
            0s    deliver 4#1 to A
            0s    append acked 2
            0s    append handed 4
            0s    floor 3, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "publish .!5 . .!5 / A joins 1 / A nacks 1 in 1s / wait 1s / A acks 3 / A acks 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    deliver 3#1 to A
            0s    append failed 1 until 1s
            0s    append handed 3
            1s    A: acked
            1s    deliver 1#2 to A
            1s    append acked 3
            1s    append handed 1
            1s    A: acked
            1s    deliver 2#1 to A
            1s    append acked 1
            1s    append handed 2
            1s    floor 1, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_delayed_message_has_its_priority_when_it_is_due() {
    check(
        "publish .+5s .!9+5s . . / A joins 1 / wait 5s / A acks 3 / A acks 2 / A acks 1 / figures",
        expect![[r#"
            0s    deliver 3#1 to A
            0s    append handed 3
            5s    A: acked
            5s    deliver 2#1 to A
            5s    append acked 3
            5s    append handed 2
            5s    A: acked
            5s    deliver 1#1 to A
            5s    append acked 2
            5s    append handed 1
            5s    A: acked
            5s    deliver 4#1 to A
            5s    append acked 1
            5s    append handed 4
            5s    floor 3, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn priorities_in_an_ordered_group() {
    check(
        "set strategy ordered / publish a a!9 b b!5 . / A joins 1 / A acks 1 / A acks 2 / A acks 3 \
         / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: acked
            0s    deliver 2#1 to A
            0s    append acked 1
            0s    append handed 2
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 2
            0s    append handed 3
            0s    A: acked
            0s    deliver 4#1 to A
            0s    append acked 3
            0s    append handed 4
            0s    floor 3, lag 2, in flight 1, ready 1, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_consumer_of_a_higher_rank_is_served_first_and_the_others_get_what_is_left() {
    check(
        "A joins 9 / B joins 2 with rank 1 / C joins 2 with rank 1 / D joins 9 with rank -1 / publish 3 / publish 12 \
         / B acks 1 / B lost / members / publish 1",
        expect![[r#"
            0s    deliver 1-2#1 to B
            0s    deliver 3#1 to C
            0s    append handed 1-3
            0s    deliver 4#1 to C
            0s    deliver 5-13#1 to A
            0s    deliver 14-15#1 to D
            0s    append handed 4-15
            0s    B: acked
            0s    append acked 1
            0s    deliver 2#2 to D
            0s    append handed 2
            0s    A holds 9 of 9, acked 0, failed 0
            0s    C holds 2 of 2, acked 0, failed 0
            0s    D holds 3 of 9, acked 0, failed 0
            0s    deliver 16#1 to D
            0s    append handed 16
        "#]],
    );
}

#[test]
fn ranks_change_nothing_where_keys_belong_to_consumers() {
    check(
        "set strategy pinned / A joins 9 / B joins 9 with rank 5 / publish a b a b",
        expect![[r#"
        0s    deliver 2#1 to B
        0s    deliver 4#1 to B
        0s    deliver 1#1 to A
        0s    deliver 3#1 to A
        0s    append handed 2, 4, 1, 3
    "#]],
    );
}

#[test]
fn a_single_consumer_is_one_of_the_highest_rank() {
    check(
        "set strategy single / A joins 2 / publish 1 / B joins 2 with rank 1 / publish 3 / B acks 2 / publish 1",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    deliver 2-3#1 to B
            0s    deliver 4#1 to A
            0s    append handed 2-4
            0s    B: acked
            0s    append acked 2
            0s    deliver 5#1 to B
            0s    append handed 5
        "#]],
    );
}

#[test]
fn the_first_consumer_gets_everything_until_it_leaves() {
    check(
        "set strategy sole / A joins 2 / B joins 9 / C joins 9 with rank 1 / publish 4 / A acks 1 / A lost \
         / publish 1 / C goodbye / publish 1 / B lost / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 1
            0s    append handed 3
            0s    deliver 2#2 to C
            0s    deliver 3#2 to C
            0s    deliver 4#1 to C
            0s    append handed 2-4
            0s    deliver 5#1 to C
            0s    append handed 5
            0s    deliver 2#2 to B
            0s    deliver 3#2 to B
            0s    deliver 4#1 to B
            0s    deliver 5#1 to B
            0s    append returned 2-5
            0s    append handed 2-5
            0s    deliver 6#1 to B
            0s    append handed 6
            0s    floor 1, lag 5, in flight 0, ready 5, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_sole_consumer_without_credit_keeps_its_place() {
    check(
        "set strategy sole / A joins 0 / B joins 9 / publish 2 / figures / A credit 1 / A acks 1 / A credit 0 \
         / A acks 2 / publish 1 / figures",
        expect![[r#"
            0s    floor 0, lag 2, in flight 0, ready 2, waiting 0, parked 0
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: acked
            0s    deliver 2#1 to A
            0s    append acked 1
            0s    append handed 2
            0s    A: acked
            0s    append acked 2
            0s    floor 2, lag 1, in flight 0, ready 1, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn pollers_take_their_place_as_sole_consumers_too() {
    check(
        "set strategy sole / publish 2 / P polls 1 / Q polls 1 / P acks 1 / P polls 1 / P acks 2 / publish 1 \
         / wait 31s / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 30s
            0s    P: acked
            0s    append acked 1
            0s    deliver 2#1 to P when durable
            0s    append leased 2 for 30s
            0s    P: acked
            0s    append acked 2
            4s    checkpoint 2
            30s   deliver 3#1 to Q when durable
            30s   P is a member no longer
            30s   append leased 3 for 30s
            31s   floor 2, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_change_of_strategy_makes_the_first_consumer_the_sole_one() {
    check(
        "A joins 1 / B joins 1 / publish 4 / set strategy sole / A acks 1 & B acks 2 / figures \
         / set strategy round robin / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to B
            0s    append handed 1-2
            0s    append group changed
            0s    read 3-4
            0s    A: acked
            0s    B: acked
            0s    deliver 3#1 to A
            0s    append acked 1-2
            0s    append handed 3
            0s    floor 2, lag 2, in flight 1, ready 1, waiting 0, parked 0
            0s    append group changed
            0s    read 4
            0s    deliver 4#1 to B
            0s    append handed 4
            0s    floor 2, lag 2, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
}
