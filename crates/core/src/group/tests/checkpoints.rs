//! Checkpoints, acks that wait for them, and the pace of a group.

use super::{check, check_both_ways, expect};

/// Interval 1 s, minimum 5, maximum 10; messages settled one after the other.
#[test]
fn a_checkpoint_is_written_at_five_on_the_interval_and_at_ten_at_once() {
    check(
        "set checkpoint 1s 5 10 / publish 30 / A joins 30 / A acks 1 / wait 250ms / A acks 2 \
         / wait 250ms / A acks 3 / wait 250ms / A acks 4 / wait 250ms / wait 250ms / A acks 5 \
         / wait 750ms / wait 100ms / A acks 6 / A acks 7 / A acks 8 / A acks 9 / A acks 10 \
         / A acks 11 / A acks 12 / A acks 13 / A acks 14 / A acks 15 / A acks 16 / figures",
        expect![[r#"
            0s    deliver 1-30#1 to A
            0s    append handed 1-30
            0s    A: acked
            0s    append acked 1
            0.25s A: acked
            0.25s append acked 2
            0.5s  A: acked
            0.5s  append acked 3
            0.75s A: acked
            0.75s append acked 4
            1.25s A: acked
            1.25s append acked 5
            2s    checkpoint 5
            2.1s  A: acked
            2.1s  append acked 6
            2.1s  A: acked
            2.1s  append acked 7
            2.1s  A: acked
            2.1s  append acked 8
            2.1s  A: acked
            2.1s  append acked 9
            2.1s  A: acked
            2.1s  append acked 10
            2.1s  A: acked
            2.1s  append acked 11
            2.1s  A: acked
            2.1s  append acked 12
            2.1s  A: acked
            2.1s  append acked 13
            2.1s  A: acked
            2.1s  append acked 14
            2.1s  A: acked
            2.1s  checkpoint 15
            2.1s  append acked 15
            2.1s  A: acked
            2.1s  append acked 16
            2.1s  floor 16, lag 14, in flight 14, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn three_or_four_are_not_enough_while_more_come() {
    check(
        "set checkpoint 1s 5 10 / publish 30 / A joins 30 / A acks 1 / wait 500ms / A acks 2 \
         / wait 500ms / A acks 3 / wait 500ms / A acks 4 / wait 500ms / A acks 5 / wait 500ms \
         / A acks 6 / wait 500ms / wait 1s",
        expect![[r#"
            0s    deliver 1-30#1 to A
            0s    append handed 1-30
            0s    A: acked
            0s    append acked 1
            0.5s  A: acked
            0.5s  append acked 2
            1s    A: acked
            1s    append acked 3
            1.5s  A: acked
            1.5s  append acked 4
            2s    A: acked
            2s    append acked 5
            2.5s  A: acked
            2.5s  append acked 6
            3s    checkpoint 6
        "#]],
    );
}

#[test]
fn an_idle_group_writes_what_is_left_after_an_interval() {
    check(
        "set checkpoint 1s 5 10 / publish 3 / A joins 3 / A acks 1-2 / wait 999ms / wait 1ms \
         / wait 1s / wait 10s",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: acked, acked
            0s    append acked 1-2
            2s    checkpoint 2
        "#]],
    );
}

#[test]
fn a_batch_of_more_than_the_maximum_is_one_checkpoint() {
    check(
        "set checkpoint 1s 5 10 / publish 30 / A joins 30 / A acks 1-12 / wait 5s",
        expect![[r#"
        0s    deliver 1-30#1 to A
        0s    append handed 1-30
        0s    A: acked, acked, acked, acked, acked, acked, acked, acked, acked, acked, acked, acked
        0s    checkpoint 12
        0s    append acked 1-12
    "#]],
    );
}

#[test]
fn a_checkpoint_is_the_position_below_which_all_is_settled() {
    check(
        "set checkpoint 1s 2 10 / publish 9 / A joins 9 / A acks 3-6 / wait 1s / A acks 1 / wait 2s \
         / A acks 2 / wait 2s",
        expect![[r#"
            0s    deliver 1-9#1 to A
            0s    append handed 1-9
            0s    A: acked, acked, acked, acked
            0s    append acked 3-6
            1s    checkpoint 0
            1s    A: acked
            1s    append acked 1
            3s    checkpoint 1
            3s    A: acked
            3s    append acked 2
            5s    checkpoint 6
        "#]],
    );
}

#[test]
fn parked_and_skipped_messages_count_for_the_checkpoint() {
    check(
        "set checkpoint 1s 3 10 / publish 3 / A joins 3 / A parks 1 / A skips 2 / A acks 3 / wait 1s",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked
            0s    append parked 1 by Nack
            0s    A: skipped
            0s    append skipped 2
            0s    A: acked
            0s    append acked 3
            1s    checkpoint 3
        "#]],
    );
}

#[test]
fn another_policy_holds_from_then_on() {
    check(
        "set checkpoint 10s 5 10 / publish 9 / A joins 9 / A acks 1-3 / set checkpoint 1s 2 3 \
         / wait 1s",
        expect![[r#"
            0s    deliver 1-9#1 to A
            0s    append handed 1-9
            0s    A: acked, acked, acked
            0s    append acked 1-3
            0s    checkpoint 3
            0s    append group changed
        "#]],
    );
}

#[test]
fn acks_that_wait_for_a_checkpoint_are_not_written_before_it() {
    check(
        "set acks checkpoint / set checkpoint 1s 5 10 / publish 12 / A joins 12 / A acks 1-3 \
         / figures / wait 999ms / wait 2s / A acks 4-12 / wait 5s",
        expect![[r#"
            0s    deliver 1-12#1 to A
            0s    A: acked, acked, acked
            0s    floor 3, lag 9, in flight 9, ready 0, waiting 0, parked 0
            2s    checkpoint 3
            2s    append acked 1-3
            2.999s A: acked, acked, acked, acked, acked, acked, acked, acked, acked
            3.999s checkpoint 12
            3.999s append acked 4-12
        "#]],
    );
}

#[test]
fn failures_are_written_though_first_leases_are_not() {
    check(
        "set acks checkpoint / publish 3 / A joins 3 / A nacks 1 / A parks 2 because bad \
         / wait 100ms / A lost / B joins 9",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    A: retrying
            0s    append failed 1 until 0.1s
            0s    A: parked
            0s    append parked 2 by Nack
            0.1s  deliver 1#2 to A
            0.1s  append handed 1
            0.1s  deliver 1#3 to B
            0.1s  deliver 3#2 to B
            0.1s  append handed 1, 3
        "#]],
    );
}

#[test]
fn a_crash_redelivers_what_was_acked_since_the_checkpoint() {
    check(
        "set acks checkpoint / set checkpoint 1s 5 10 / publish 12 / A joins 12 / A acks 1-10 \
         / A acks 11-12 / crash / figures / B joins 12 / B acks 11-12 / figures",
        expect![[r#"
            0s    deliver 1-12#1 to A
            0s    A: acked, acked, acked, acked, acked, acked, acked, acked, acked, acked
            0s    checkpoint 10
            0s    append acked 1-10
            0s    A: acked, acked
            0s    append opened 2
            0s    floor 10, lag 2, in flight 0, ready 2, waiting 0, parked 0
            0s    deliver 11-12#1 to B
            0s    B: acked, acked
            0s    floor 12, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_clean_stop_redelivers_nothing() {
    check(
        "set acks checkpoint / publish 4 / A joins 4 / A acks 1-3 / stop / figures / B joins 4 \
         / figures",
        expect![[r#"
            0s    deliver 1-4#1 to A
            0s    A: acked, acked, acked
            0s    append acked 1-3
            0s    append opened 2
            0s    floor 3, lag 1, in flight 0, ready 1, waiting 0, parked 0
            0s    deliver 4#1 to B
            0s    floor 3, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_failure_after_a_first_lease_that_was_not_written_counts() {
    check(
        "set acks checkpoint / retries 1 / publish 1 / A joins 1 / A nacks 1 because bad / crash \
         / B joins 1 / wait 100ms / B nacks 1 because worse / parked / crash / parked",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    A: retrying
            0s    append failed 1 until 0.1s
            0s    append opened 2
            0.1s  deliver 1#2 to B
            0.1s  append handed 1
            0.1s  B: parked
            0.1s  append parked 1 by Nack
            0.1s  parked 1 after 2: #1 A bad; #2 B worse
            0.1s  reasons: 1 worse
            0.1s  append opened 3
            0.1s  parked 1 after 2: #1 A bad; #2 B worse
            0.1s  reasons: 1 worse
        "#]],
    );
}

#[test]
fn a_message_of_an_unwritten_lease_that_is_parked_skipped_or_moved_stays_so() {
    check(
        "set acks checkpoint / publish 3 / A joins 3 / A parks 1 because bad / A skips 2 / A moves 3 \
         / crash / parked / figures",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    A: parked
            0s    append parked 1 by Nack
            0s    A: skipped
            0s    append skipped 2
            0s    A: moving
            0s    append moving 3 to elsewhere
            0s    move 3 to elsewhere as 1
            0s    append stream elsewhere created
            0s    append moved 3
            0s    append published 1 and 0 more in stream 2
            0s    append opened 2
            0s    parked 1 after 1: #1 A bad
            0s    reasons: 1 bad
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 1
        "#]],
    );
    check(
        "set acks checkpoint / publish 3 / A joins 3 / A parks 1 because bad / A skips 2 / A moves 3 \
         / crash after image / parked / figures",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    A: parked
            0s    append parked 1 by Nack
            0s    A: skipped
            0s    append skipped 2
            0s    A: moving
            0s    append moving 3 to elsewhere
            0s    move 3 to elsewhere as 1
            0s    append stream elsewhere created
            0s    append moved 3
            0s    append published 1 and 0 more in stream 2
            0s    append opened 2
            0s    parked 1 after 1: #1 A bad
            0s    reasons: 1 bad
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 1
        "#]],
    );
}

#[test]
fn leases_on_the_clock_are_written_whatever_the_acks() {
    check_both_ways(
        "set acks checkpoint / publish 1 / P polls 1 / crash / P acks 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 30s
            0s    append opened 2
            0s    P: acked
            0s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_reset_and_a_purge_write_what_is_kept_back() {
    check(
        "set acks checkpoint / publish 4 / A joins 4 / A acks 1-2 / reset 2 / crash / figures \
         / B joins 9",
        expect![[r#"
            0s    deliver 1-4#1 to A
            0s    A: acked, acked
            0s    append acked 1-2
            0s    append reset to 1
            0s    read 2-4
            0s    deliver 2-4#1 to A
            0s    append opened 2
            0s    floor 1, lag 3, in flight 0, ready 3, waiting 0, parked 0
            0s    deliver 2-4#1 to B
        "#]],
    );
    check(
        "set acks checkpoint / publish 4 / A joins 4 / A acks 1-2 / reset 2 / crash after image \
         / figures / B joins 9",
        expect![[r#"
            0s    deliver 1-4#1 to A
            0s    A: acked, acked
            0s    append acked 1-2
            0s    append reset to 1
            0s    read 2-4
            0s    deliver 2-4#1 to A
            0s    append opened 2
            0s    floor 1, lag 3, in flight 0, ready 3, waiting 0, parked 0
            0s    deliver 2-4#2 to B
            0s    append handed 2-4
        "#]],
    );
    check(
        "set acks checkpoint / publish 4 / A joins 4 / A acks 1-2 / purge / crash / figures",
        expect![[r#"
            0s    deliver 1-4#1 to A
            0s    A: acked, acked
            0s    purged 2
            0s    append acked 1-2
            0s    append purged through 4
            0s    append released before 5
            0s    append opened 2
            0s    floor 4, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "set acks checkpoint / publish 4 / A joins 4 / A acks 1-2 / purge / crash after image \
         / figures",
        expect![[r#"
            0s    deliver 1-4#1 to A
            0s    A: acked, acked
            0s    purged 2
            0s    append acked 1-2
            0s    append purged through 4
            0s    append released before 5
            0s    append opened 2
            0s    floor 4, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_goodbye_of_unwritten_leases() {
    check(
        "set acks checkpoint / publish 2 / A joins 2 / A goodbye / B joins 2 / crash / C joins 2",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append returned 1-2
            0s    deliver 1-2#1 to B
            0s    append opened 2
            0s    deliver 1-2#1 to C
        "#]],
    );
    check(
        "set acks checkpoint / publish 2 / A joins 2 / A goodbye / B joins 2 / crash after image \
         / C joins 2",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append returned 1-2
            0s    deliver 1-2#1 to B
            0s    append opened 2
            0s    deliver 1-2#2 to C
            0s    append handed 1-2
        "#]],
    );
}

#[test]
fn acks_that_were_kept_back_are_written_when_the_setting_changes() {
    check(
        "set acks checkpoint / publish 4 / A joins 4 / A acks 1-2 / set acks journal / A acks 3 \
         / crash / figures",
        expect![[r#"
            0s    deliver 1-4#1 to A
            0s    A: acked, acked
            0s    append acked 1-2
            0s    append group changed
            0s    A: acked
            0s    append acked 3
            0s    append opened 2
            0s    floor 3, lag 1, in flight 0, ready 1, waiting 0, parked 0
        "#]],
    );
    check(
        "set acks checkpoint / publish 4 / A joins 4 / A acks 1-2 / set acks journal / A acks 3 \
         / crash after image / figures",
        expect![[r#"
            0s    deliver 1-4#1 to A
            0s    A: acked, acked
            0s    append acked 1-2
            0s    append group changed
            0s    A: acked
            0s    append acked 3
            0s    append opened 2
            0s    floor 3, lag 1, in flight 0, ready 1, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn leases_that_were_not_written_when_the_setting_changes() {
    check(
        "set acks checkpoint / publish 4 / A joins 4 / set acks journal / A acks 1 / A nacks 2 \
         / crash / figures / B joins 9",
        expect![[r#"
            0s    deliver 1-4#1 to A
            0s    append group changed
            0s    A: acked
            0s    append acked 1
            0s    A: retrying
            0s    append failed 2 until 0.1s
            0s    append opened 2
            0s    floor 1, lag 3, in flight 0, ready 2, waiting 1, parked 0
            0s    deliver 3-4#1 to B
            0s    append handed 3-4
        "#]],
    );
    check(
        "set acks checkpoint / publish 4 / A joins 4 / set acks journal / A acks 1 / A nacks 2 \
         / crash after image / figures / B joins 9",
        expect![[r#"
            0s    deliver 1-4#1 to A
            0s    append group changed
            0s    A: acked
            0s    append acked 1
            0s    A: retrying
            0s    append failed 2 until 0.1s
            0s    append opened 2
            0s    floor 1, lag 3, in flight 0, ready 2, waiting 1, parked 0
            0s    deliver 3-4#2 to B
            0s    append handed 3-4
        "#]],
    );
}

#[test]
fn a_new_pace_begins_with_its_burst_and_keeps_to_its_rate() {
    check(
        "set rate 10 2 / publish 9 / A joins 9 / wait 99ms / wait 1ms / wait 400ms / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0.1s  deliver 3#1 to A
            0.1s  append handed 3
            0.2s  deliver 4#1 to A
            0.2s  append handed 4
            0.3s  deliver 5#1 to A
            0.3s  append handed 5
            0.4s  deliver 6#1 to A
            0.4s  append handed 6
            0.5s  deliver 7#1 to A
            0.5s  append handed 7
            0.5s  floor 0, lag 9, in flight 7, ready 2, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_pace_saves_no_more_than_its_burst() {
    check(
        "set rate 10 2 / A joins 9 / wait 10s / publish 9 / wait 100ms",
        expect![[r#"
        10s   deliver 1-2#1 to A
        10s   append handed 1-2
        10.1s deliver 3#1 to A
        10.1s append handed 3
    "#]],
    );
}

#[test]
fn a_pace_starts_empty_after_a_crash() {
    check_both_ways(
        "set rate 10 2 / publish 9 / A joins 9 / wait 300ms / crash / B joins 9 / wait 99ms \
         / wait 1ms / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0.1s  deliver 3#1 to A
            0.1s  append handed 3
            0.2s  deliver 4#1 to A
            0.2s  append handed 4
            0.3s  deliver 5#1 to A
            0.3s  append handed 5
            0.3s  append opened 2
            0.4s  deliver 1#2 to B
            0.4s  append handed 1
            0.4s  floor 0, lag 9, in flight 1, ready 8, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_pace_can_be_changed_while_it_goes_on() {
    check(
        "set rate 10 2 / publish 20 / A joins 20 / wait 200ms / set rate 1 1 / wait 999ms / wait 1ms \
         / set rate 100 5 / wait 30ms / set rate none / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0.1s  deliver 3#1 to A
            0.1s  append handed 3
            0.2s  deliver 4#1 to A
            0.2s  append handed 4
            0.2s  append group changed
            1.2s  deliver 5#1 to A
            1.2s  append handed 5
            1.2s  append group changed
            1.21s deliver 6#1 to A
            1.21s append handed 6
            1.22s deliver 7#1 to A
            1.22s append handed 7
            1.23s deliver 8#1 to A
            1.23s append handed 8
            1.23s deliver 9-20#1 to A
            1.23s append group changed
            1.23s append handed 9-20
            1.23s floor 0, lag 20, in flight 20, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_pace_holds_for_retries_and_pollers_too() {
    check(
        "set rate 1 1 / publish 3 / A joins 1 / wait 1s / A nacks 1 in 0s / wait 999ms / wait 1ms \
         / P polls 2 / wait 1s",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            1s    A: retrying
            1s    deliver 1#2 to A
            1s    append failed 1 until 1s
            1s    append handed 1
            2s    deliver 2#1 to P when durable
            2s    append leased 2 for 30s
        "#]],
    );
}

#[test]
fn a_paused_group_does_not_wake_for_its_pace() {
    check(
        "set rate 10 1 / publish 3 / A joins 3 / pause / wait 1s / resume / wait 100ms",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    append paused
            1s    deliver 2#1 to A
            1s    append resumed
            1s    append handed 2
            1.1s  deliver 3#1 to A
            1.1s  append handed 3
        "#]],
    );
}

#[test]
fn a_pace_in_an_ordered_group() {
    check(
        "set strategy ordered / set rate 1 2 / set batch 3 / publish a a a b / A joins 9 / wait 1s \
         / wait 2s / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    append handed 1-2
            1s    deliver 4#1 to A
            1s    append handed 4
            3s    floor 0, lag 4, in flight 3, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn what_is_let_go_of_was_written_before() {
    check(
        "set acks checkpoint / publish 4 / A joins 4 / A acks 1-3 / release / stream / crash \
         / figures / B joins 9",
        expect![[r#"
            0s    deliver 1-4#1 to A
            0s    A: acked, acked, acked
            0s    append acked 1-3
            0s    append released before 4
            0s    stream 4 to 4, holds 1 of 100 bytes, delayed 0
            0s    append opened 2
            0s    floor 3, lag 1, in flight 0, ready 1, waiting 0, parked 0
            0s    deliver 4#1 to B
        "#]],
    );
    check(
        "set acks checkpoint / publish 4 / A joins 4 / A acks 1-3 / release / stream \
         / crash after image / figures / B joins 9",
        expect![[r#"
            0s    deliver 1-4#1 to A
            0s    A: acked, acked, acked
            0s    append acked 1-3
            0s    append released before 4
            0s    stream 4 to 4, holds 1 of 100 bytes, delayed 0
            0s    append opened 2
            0s    floor 3, lag 1, in flight 0, ready 1, waiting 0, parked 0
            0s    deliver 4#2 to B
            0s    append handed 4
        "#]],
    );
}
