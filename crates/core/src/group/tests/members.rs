//! Consumers: how they leave, how much they hold, and how long a poller is a member.

use super::{check, check_both_ways, expect};

#[test]
fn a_goodbye_against_the_timeout_in_one_turn() {
    check(
        "publish 1 / A joins 1 / +30s & A goodbye / B joins 1 / figures",
        expect![[r#"
        0s    deliver 1#1 to A
        0s    append handed 1
        30s   append returned 1
        30s   deliver 1#1 to B
        30s   append handed 1
        30s   floor 0, lag 1, in flight 1, ready 0, waiting 0, parked 0
    "#]],
    );
    check(
        "retries 0 / publish 1 / A joins 1 / A goodbye & +30s / B joins 1 / figures",
        expect![[r#"
        0s    deliver 1#1 to A
        0s    append handed 1
        30s   append returned 1
        30s   deliver 1#1 to B
        30s   append handed 1
        30s   floor 0, lag 1, in flight 1, ready 0, waiting 0, parked 0
    "#]],
    );
}

#[test]
fn a_lost_consumer_against_the_timeout_in_one_turn() {
    check(
        "publish 1 / A joins 1 / +30s & A lost / B joins 1 / figures",
        expect![[r#"
        0s    deliver 1#1 to A
        0s    append handed 1
        30s   deliver 1#2 to B
        30s   append handed 1
        30s   floor 0, lag 1, in flight 1, ready 0, waiting 0, parked 0
    "#]],
    );
}

#[test]
fn a_lost_consumer_with_retries_used_up_parks_what_it_held() {
    check(
        "retries 0 / publish 3 / A joins 2 / A lost / parked / figures",
        expect![[r#"
        0s    deliver 1-2#1 to A
        0s    append handed 1-2
        0s    append parked 1 by Lost, 2 by Lost
        0s    parked 1 after 1: #1 A (consumer lost)
        0s    parked 2 after 1: #1 A (consumer lost)
        0s    reasons: 2 (consumer lost)
        0s    floor 2, lag 1, in flight 0, ready 1, waiting 0, parked 2
    "#]],
    );
    check_both_ways(
        "retries 1 / publish 1 / A joins 1 / A nacks 1 because slow / wait 100ms / A lost / parked \
         / crash / parked",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    append failed 1 until 0.1s
            0.1s  deliver 1#2 to A
            0.1s  append handed 1
            0.1s  append parked 1 by Lost
            0.1s  parked 1 after 2: #1 A slow; #2 A (consumer lost)
            0.1s  reasons: 1 (consumer lost)
            0.1s  append opened 2
            0.1s  parked 1 after 2: #1 A slow; #2 A (consumer lost)
            0.1s  reasons: 1 (consumer lost)
        "#]],
    );
}

#[test]
fn a_consumer_that_leaves_keeps_its_leases_on_the_clock_unless_it_gives_them_back() {
    check(
        "publish 2 / P polls 1 / Q polls 1 / P lost / Q goodbye / R polls 2 / wait 30s",
        expect![[r#"
        0s    deliver 1#1 to P when durable
        0s    append leased 1 for 30s
        0s    deliver 2#1 to Q when durable
        0s    append leased 2 for 30s
        0s    append returned 2
        0s    deliver 2#1 to R when durable
        0s    append leased 2 for 30s
        30s   append failed 1 until 30.1s, 2 until 30.1s
    "#]],
    );
}

#[test]
fn an_ack_after_leaving_is_not_taken_from_whom_has_it_now() {
    check(
        "publish 1 / A joins 1 / A goodbye / A acks 1 / B joins 1 / A acks 1 / B acks 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    append returned 1
            0s    A: not yours (superseded)
            0s    deliver 1#1 to B
            0s    append handed 1
            0s    A: not yours (superseded)
            0s    B: acked
            0s    append acked 1
            0s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_receive_takes_as_many_bytes_as_its_answer_may_have() {
    check(
        "publish 5 / A polls 5 within 250B / A polls 5 within 50B / A polls 5 within 200B",
        expect![[r#"
            0s    deliver 1-2#1 to A when durable
            0s    append leased 1-2 for 30s
            0s    deliver 3#1 to A when durable
            0s    append leased 3 for 30s
            0s    deliver 4-5#1 to A when durable
            0s    append leased 4-5 for 30s
        "#]],
    );
    check(
        "publish .@1000 .@1000 / A polls 5 within 50B / B polls 1 within 50B",
        expect![[r#"
            0s    deliver 1#1 to A when durable
            0s    append leased 1 for 30s
            0s    deliver 2#1 to B when durable
            0s    append leased 2 for 30s
        "#]],
    );
    check(
        "set strategy ordered / publish a b c a / A polls 5 within 250B / B polls 5 within 100B",
        expect![[r#"
            0s    deliver 1-2#1 to A when durable
            0s    append leased 1-2 for 30s
            0s    deliver 3#1 to B when durable
            0s    append leased 3 for 30s
        "#]],
    );
}

#[test]
fn credit_by_bytes() {
    check(
        "publish 5 / A joins 5 of 250B / A acks 1 / A acks 2-3 / figures",
        expect![[r#"
        0s    deliver 1-2#1 to A
        0s    append handed 1-2
        0s    A: acked
        0s    deliver 3#1 to A
        0s    append acked 1
        0s    append handed 3
        0s    A: acked, acked
        0s    deliver 4-5#1 to A
        0s    append acked 2-3
        0s    append handed 4-5
        0s    floor 3, lag 2, in flight 2, ready 0, waiting 0, parked 0
    "#]],
    );
    check(
        "publish .@1000 .@1000 / A joins 5 of 50B / A acks 1",
        expect![[r#"
        0s    deliver 1#1 to A
        0s    append handed 1
        0s    A: acked
        0s    deliver 2#1 to A
        0s    append acked 1
        0s    append handed 2
    "#]],
    );
    check(
        "publish .@300 .@10 .@10 / A joins 5 of 50B / A acks 1",
        expect![[r#"
        0s    deliver 1#1 to A
        0s    append handed 1
        0s    A: acked
        0s    deliver 2#1 to A
        0s    append acked 1
        0s    append handed 2
    "#]],
    );
    check(
        "A joins 5 of 250B / B joins 5 of 150B / publish 6 / members",
        expect![[r#"
        0s    deliver 1-2#1 to A
        0s    deliver 3#1 to B
        0s    append handed 1-3
        0s    A holds 2 of 5, acked 0, failed 0
        0s    B holds 1 of 5, acked 0, failed 0
    "#]],
    );
}

#[test]
fn credit_that_is_lowered_takes_nothing_back() {
    check(
        "publish 5 / A joins 3 / A credit 1 / A acks 1-2 / A acks 3 / A credit 0 / A acks 4 \
         / members",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: acked, acked
            0s    append acked 1-2
            0s    A: acked
            0s    deliver 4#1 to A
            0s    append acked 3
            0s    append handed 4
            0s    A: acked
            0s    append acked 4
            0s    A holds 0 of 0, acked 4, failed 0
        "#]],
    );
}

#[test]
fn a_group_has_no_more_consumers_than_it_may_have() {
    check(
        "set consumers 2 / publish 1 / A joins 1 / B joins 1 / C joins 1 / A goodbye / C joins 1 \
         / members",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    C: the limit of consumers of a group is reached. limit=`2`
            0s    deliver 1#1 to B
            0s    append returned 1
            0s    append handed 1
            0s    B holds 1 of 1, acked 0, failed 0
            0s    C holds 0 of 1, acked 0, failed 0
        "#]],
    );
}

#[test]
fn a_poller_is_a_member_until_it_has_been_silent_and_without_leases_for_30_seconds() {
    check(
        "P polls 1 / publish 1 / +10s / P acks 1 / wait 29s / members / wait 1s / members",
        expect![[r#"
        0s    deliver 1#1 to P when durable
        0s    append leased 1 for 30s
        10s   P: acked
        10s   append acked 1
        14s   checkpoint 1
        39s   P holds 0 of 0, acked 1, failed 0
        40s   P is a member no longer
    "#]],
    );
    check(
        "P polls 1 / publish 1 / wait 30s / wait 29s / members / wait 1s / members",
        expect![[r#"
        0s    deliver 1#1 to P when durable
        0s    append leased 1 for 30s
        30s   append failed 1 until 30.1s
        59s   P holds 0 of 0, acked 0, failed 1
        60s   P is a member no longer
    "#]],
    );
}

#[test]
fn a_poller_that_is_still_asking_is_a_member() {
    check(
        "P polls 1 / wait 100s / members / publish 1 / wait 29s / P acks 1 / wait 30s / members",
        expect![[r#"
            100s  P holds 0 of 1, acked 0, failed 0
            100s  deliver 1#1 to P when durable
            100s  append leased 1 for 30s
            129s  P: acked
            129s  append acked 1
            133s  checkpoint 1
            159s  P is a member no longer
        "#]],
    );
}

#[test]
fn a_poller_with_a_long_lease_is_a_member_for_as_long() {
    check(
        "publish 1 / P polls 1 for 100s / wait 99s / members / P acks 1 / wait 30s / members",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 100s
            99s   P holds 1 of 0, acked 0, failed 0
            99s   P: acked
            99s   append acked 1
            103s  checkpoint 1
            129s  P is a member no longer
        "#]],
    );
}

#[test]
fn what_a_poller_held_may_be_answered_when_it_is_no_member_any_more() {
    check(
        "publish 1 / P polls 1 / P lost / P acks 1 / members / figures",
        expect![[r#"
        0s    deliver 1#1 to P when durable
        0s    append leased 1 for 30s
        0s    P: acked
        0s    append acked 1
        0s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
    "#]],
    );
}
