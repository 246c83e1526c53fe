//! Messages of ordered groups whose keys cannot be read.

use super::{check, check_both_ways, expect};

#[test]
fn a_message_whose_key_cannot_be_read_is_parked_before_later_ones_of_its_key_go() {
    check(
        "set strategy ordered / publish a a b a / unreadable 2 / crash / A joins 9 / parked / A acks 1 / unreadable \
         / A acks 3-4 / figures",
        expect![[r#"
            0s    append opened 2
            0s    append parked 2 by Damaged
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1, 3
            0s    parked 2 after 0: #0 ? (content damaged)
            0s    reasons: 1 (content damaged)
            0s    A: acked
            0s    deliver 4#1 to A
            0s    append acked 1
            0s    append handed 4
            0s    A: acked, acked
            0s    append acked 3-4
            0s    floor 4, lag 0, in flight 0, ready 0, waiting 0, parked 1
        "#]],
    );
}

#[test]
fn a_group_that_holds_parked_keys_goes_on_behind_a_key_that_cannot_be_read() {
    check_both_ways(
        "set hold / set strategy ordered / publish a a a / unreadable 1 / crash / A joins 9 / A acks 2 / unreadable \
         / crash / B joins 9 / figures / replay all / B acks 1 / B acks 3 / figures",
        expect![[r#"
            0s    append opened 2
            0s    append parked 1 by Damaged
            0s    read 1
            0s    deliver 2#1 to A
            0s    append handed 2
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 2
            0s    append handed 3
            0s    append opened 3
            0s    append found 1 is of a
            0s    floor 2, lag 1, in flight 0, ready 0, waiting 0, parked 1
            0s    job 1 matches 1
            0s    deliver 1#1 to B
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append handed 1
            0s    append job 1 done
            0s    B: acked
            0s    deliver 3#2 to B
            0s    append acked 1
            0s    append handed 3
            0s    B: acked
            0s    append acked 3
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_leased_message_whose_key_cannot_be_read_is_parked_when_its_lease_ends() {
    check(
        "set strategy ordered / set timeout 5s / set backoff 1s 1s / publish a a b / P polls 1 / unreadable 1 / crash \
         / A joins 9 / unreadable / A acks 2-3 / wait 10s / parked / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 5s
            0s    append opened 2
            0s    deliver 2-3#1 to A
            0s    append handed 2-3
            0s    A: acked, acked
            0s    append acked 2-3
            4s    checkpoint 0
            5s    append failed 1 until 6s
            6s    append parked 1 by Damaged
            10s   checkpoint 3
            10s   parked 1 after 1: #1 ? (timed out); #1 ? (content damaged)
            10s   reasons: 1 (content damaged)
            10s   floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 1
        "#]],
    );
}

#[test]
fn a_leased_message_whose_key_cannot_be_read_can_be_acked() {
    check(
        "set strategy ordered / publish a a / P polls 1 / unreadable 1 / crash / A joins 9 / P acks 1 / A acks 2 \
         / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 30s
            0s    append opened 2
            0s    deliver 2#1 to A
            0s    append handed 2
            0s    P: acked
            0s    append acked 1
            0s    A: acked
            0s    append acked 2
            0s    floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_change_of_settings_does_not_bring_back_a_message_whose_key_could_not_be_read() {
    check(
        "set strategy ordered / set timeout 5s / publish a a / P polls 1 / unreadable 1 / crash / A joins 9 \
         / unreadable / set lock position / wait 10s / A acks 2 / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 5s
            0s    append opened 2
            0s    deliver 2#1 to A
            0s    append handed 2
            0s    append group changed
            0s    read 1-2
            5s    append failed 1 until 5.1s, 2 until 5.1s
            5.1s  deliver 2#2 to A
            5.1s  append parked 1 by Damaged
            5.1s  append handed 2
            9.1s  checkpoint 1
            10s   A: acked
            10s   append acked 2
            10s   floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 1
        "#]],
    );
}

#[test]
fn after_a_reset_a_message_is_delivered_if_its_key_can_be_read_by_then() {
    check(
        "set strategy ordered / publish a a / unreadable 1 / crash / A joins 9 / unreadable / reset beginning parked \
         / figures",
        expect![[r#"
            0s    append opened 2
            0s    append parked 1 by Damaged
            0s    deliver 2#1 to A
            0s    append handed 2
            0s    append reset to 0
            0s    read 1-2
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    floor 0, lag 2, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_group_that_only_takes_turns_among_keys_does_not_park_what_it_knows_no_key_of() {
    check(
        "set fair / publish a a b / unreadable 1 / crash / A joins 9 / figures",
        expect![[r#"
            0s    append opened 2
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    deliver 2#1 to A
            0s    append handed 1, 3, 2
            0s    floor 0, lag 3, in flight 3, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_full_list_of_parked_messages_keeps_an_ordered_group_from_passing_by_a_key() {
    check(
        "set strategy ordered / set parked 1 / publish a a b b / unreadable 1 / unreadable 3 / crash / A joins 9 \
         / figures / discard all / figures",
        expect![[r#"
            0s    append opened 2
            0s    append parked 1 by Damaged
            0s    floor 1, lag 3, in flight 0, ready 2, waiting 0, parked 1
            0s    job 1 matches 1
            0s    append job 1 started
            0s    append discarded 1 by job 1
            0s    append parked 3 by Damaged
            0s    append job 1 done
            0s    floor 1, lag 2, in flight 0, ready 2, waiting 0, parked 1
        "#]],
    );
}
