//! What operators do: pause, reset, purge; and the limits of a window.

use super::{check, check_both_ways, expect};

#[test]
fn a_paused_group_hands_out_nothing_and_takes_answers() {
    check(
        "publish 3 / A joins 1 / pause / status / A acks 1 / publish 1 / figures / resume / status \
         / A acks 2",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    append paused
            0s    Paused
            0s    A: acked
            0s    append acked 1
            0s    floor 1, lag 3, in flight 0, ready 3, waiting 0, parked 0
            0s    deliver 2#1 to A
            0s    append resumed
            0s    append handed 2
            0s    Live
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 2
            0s    append handed 3
        "#]],
    );
    check_both_ways(
        "publish 2 / A joins 1 / pause / A nacks 1 / wait 30s / crash / status / B joins 2 / resume",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    append paused
            0s    A: retrying
            0s    append failed 1 until 0.1s
            30s   append opened 2
            30s   Paused
            30s   deliver 1#2 to B
            30s   deliver 2#1 to B
            30s   append resumed
            30s   append handed 1-2
        "#]],
    );
}

#[test]
fn pausing_twice_is_pausing_once() {
    check(
        "publish 1 / pause / pause / A joins 1 / resume / resume",
        expect![[r#"
        0s    append paused
        0s    deliver 1#1 to A
        0s    append resumed
        0s    append handed 1
    "#]],
    );
}

#[test]
fn a_lease_lapses_while_the_group_is_paused() {
    check(
        "publish 1 / A joins 1 / pause / wait 31s / figures / resume",
        expect![[r#"
        0s    deliver 1#1 to A
        0s    append handed 1
        0s    append paused
        30s   append failed 1 until 30.1s
        31s   floor 0, lag 1, in flight 0, ready 1, waiting 0, parked 0
        31s   deliver 1#2 to A
        31s   append resumed
        31s   append handed 1
    "#]],
    );
}

#[test]
fn a_reset_to_the_beginning_offers_everything_again() {
    check(
        "publish 4 / A joins 2 / A acks 1 / A nacks 2 / reset beginning / members / A acks 3 \
         / figures / A acks 1-2 / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 1
            0s    append handed 3
            0s    A: retrying
            0s    deliver 4#1 to A
            0s    append failed 2 until 0.1s
            0s    append handed 4
            0s    append reset to 0
            0s    read 1-4
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A holds 2 of 2, acked 1, failed 1
            0s    A: not yours (superseded)
            0s    floor 0, lag 4, in flight 2, ready 2, waiting 0, parked 0
            0s    A: acked, acked
            0s    deliver 3-4#1 to A
            0s    append acked 1-2
            0s    append handed 3-4
            0s    floor 2, lag 2, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "publish 4 / A joins 2 / A acks 1 / A nacks 2 / reset beginning / crash / figures \
         / B joins 9 / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 1
            0s    append handed 3
            0s    A: retrying
            0s    deliver 4#1 to A
            0s    append failed 2 until 0.1s
            0s    append handed 4
            0s    append reset to 0
            0s    read 1-4
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    append opened 2
            0s    floor 0, lag 4, in flight 0, ready 4, waiting 0, parked 0
            0s    deliver 1-2#2 to B
            0s    deliver 3-4#1 to B
            0s    append handed 1-4
            0s    floor 0, lag 4, in flight 4, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_reset_beyond_the_end_is_refused_and_changes_nothing() {
    check(
        "publish 2 / A joins 1 / reset 4 / reset 99999999 / figures / reset 3 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    refused: the position lies beyond the end of the stream. position=`4` last=`2`
            0s    refused: the position lies beyond the end of the stream. position=`99999999` last=`2`
            0s    floor 0, lag 2, in flight 1, ready 1, waiting 0, parked 0
            0s    append reset to 2
            0s    floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_reset_to_the_end_skips_everything() {
    check(
        "publish 4 / A joins 2 / A acks 1 / reset end / members / A acks 2 / publish 1 / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: acked
            0s    deliver 3#1 to A
            0s    append acked 1
            0s    append handed 3
            0s    append reset to 4
            0s    A holds 0 of 2, acked 1, failed 0
            0s    A: not yours (gone)
            0s    deliver 5#1 to A
            0s    append handed 5
            0s    floor 4, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "publish 4 / A joins 2 / A nacks 1 / reset end / crash / B joins 9 / wait 10s / publish 1 \
         / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: retrying
            0s    deliver 3#1 to A
            0s    append failed 1 until 0.1s
            0s    append handed 3
            0s    append reset to 4
            0s    append opened 2
            10s   deliver 5#1 to B
            10s   append handed 5
            10s   floor 4, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_reset_to_a_position() {
    check(
        "publish 6 / A joins 9 / A acks 1-6 / reset 4 / figures / A acks 4 / reset 7 / figures \
         / publish 1",
        expect![[r#"
            0s    deliver 1-6#1 to A
            0s    append handed 1-6
            0s    A: acked, acked, acked, acked, acked, acked
            0s    append acked 1-6
            0s    append reset to 3
            0s    read 4-6
            0s    deliver 4-6#1 to A
            0s    append handed 4-6
            0s    floor 3, lag 3, in flight 3, ready 0, waiting 0, parked 0
            0s    A: acked
            0s    append acked 4
            0s    append reset to 6
            0s    floor 6, lag 0, in flight 0, ready 0, waiting 0, parked 0
            0s    deliver 7#1 to A
            0s    append handed 7
        "#]],
    );
    check_both_ways(
        "publish 6 / P polls 6 / reset 4 / crash / figures / P acks 5 / Q polls 9 / wait 100s \
         / figures",
        expect![[r#"
            0s    deliver 1-6#1 to P when durable
            0s    append leased 1-6 for 30s
            0s    append reset to 3
            0s    read 4-6
            0s    append opened 2
            0s    floor 3, lag 3, in flight 0, ready 3, waiting 0, parked 0
            0s    P: not yours (superseded)
            0s    deliver 4-6#1 to Q when durable
            0s    append leased 4-6 for 30s
            30s   append failed 4 until 30.1s, 5 until 30.1s, 6 until 30.1s
            60s   Q is a member no longer
            100s  floor 3, lag 3, in flight 0, ready 3, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn parked_messages_stay_where_a_reset_does_not_take_them() {
    check(
        "publish 3 / A joins 3 / A parks 2 because bad / A acks 1 / A acks 3 / reset beginning \
         / parked / figures / A acks 1 / A acks 3 / figures / replay all / figures",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked
            0s    append parked 2 by Nack
            0s    A: acked
            0s    append acked 1
            0s    A: acked
            0s    append acked 3
            0s    append reset to 0
            0s    read 1-3
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1, 3
            0s    parked 2 after 1: #1 A bad
            0s    reasons: 1 bad
            0s    floor 0, lag 2, in flight 2, ready 0, waiting 0, parked 1
            0s    A: acked
            0s    append acked 1
            0s    A: acked
            0s    append acked 3
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 1
            0s    job 1 matches 1
            0s    deliver 2#1 to A
            0s    append job 1 started
            0s    append replayed 2 by job 1
            0s    append handed 2
            0s    append job 1 done
            0s    floor 3, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "publish 3 / A joins 3 / A parks 2 because bad / reset beginning parked / parked / figures",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked
            0s    append parked 2 by Nack
            0s    append reset to 0
            0s    read 1-3
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    reasons: 
            0s    floor 0, lag 3, in flight 3, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "publish 3 / A joins 3 / A parks 2 because bad / A acks 1 / reset beginning / crash / parked \
         / figures / B joins 9",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked
            0s    append parked 2 by Nack
            0s    A: acked
            0s    append acked 1
            0s    append reset to 0
            0s    read 1-3
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1, 3
            0s    append opened 2
            0s    parked 2 after 1: #1 A bad
            0s    reasons: 1 bad
            0s    floor 0, lag 2, in flight 0, ready 2, waiting 0, parked 1
            0s    deliver 1#2 to B
            0s    deliver 3#2 to B
            0s    append handed 1, 3
        "#]],
    );
}

#[test]
fn what_was_replayed_is_over_after_a_reset() {
    check_both_ways(
        "publish 3 / A joins 3 / A parks 1 / A acks 2-3 / A credit 0 / replay all / figures \
         / reset end / figures / A credit 9 / crash / figures",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked
            0s    append parked 1 by Nack
            0s    A: acked, acked
            0s    append acked 2-3
            0s    job 1 matches 1
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append job 1 done
            0s    floor 3, lag 1, in flight 0, ready 1, waiting 0, parked 0
            0s    append reset to 3
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
            0s    append opened 2
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_reset_of_an_ordered_group_unlocks_its_keys() {
    check(
        "set strategy ordered / publish a a b / A joins 9 / reset beginning / A acks 1 / A acks 3 \
         / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1, 3
            0s    append reset to 0
            0s    read 1-3
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1, 3
            0s    A: acked
            0s    deliver 2#1 to A
            0s    append acked 1
            0s    append handed 2
            0s    A: acked
            0s    append acked 3
            0s    floor 1, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "set strategy ordered / set hold / publish a a b / A joins 9 / A parks 1 / reset beginning \
         / figures / discard all / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1, 3
            0s    A: parked
            0s    append parked 1 by Nack
            0s    append reset to 0
            0s    read 2-3
            0s    deliver 3#1 to A
            0s    append handed 3
            0s    floor 1, lag 2, in flight 1, ready 0, waiting 0, parked 1
            0s    job 1 matches 1
            0s    deliver 2#1 to A
            0s    append job 1 started
            0s    append discarded 1 by job 1
            0s    append handed 2
            0s    append job 1 done
            0s    floor 1, lag 2, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_purge_takes_what_is_ready_delayed_and_leased_and_leaves_what_is_parked() {
    check_both_ways(
        "publish 4 / publish .+10s / A joins 3 / A parks 1 because bad / A nacks 2 / purge \
         / A acks 3 / figures / parked / stream / wait 20s / publish 1 / crash / figures / B joins 9",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked
            0s    deliver 4#1 to A
            0s    append parked 1 by Nack
            0s    append handed 4
            0s    A: retrying
            0s    append failed 2 until 0.1s
            0s    purged 4
            0s    append purged through 5
            0s    A: not yours (gone)
            0s    floor 5, lag 0, in flight 0, ready 0, waiting 0, parked 1
            0s    parked 1 after 1: #1 A bad
            0s    reasons: 1 bad
            0s    stream 1 to 5, holds 1 of 100 bytes, delayed 0
            20s   deliver 6#1 to A
            20s   append handed 6
            20s   append opened 2
            20s   floor 5, lag 1, in flight 0, ready 1, waiting 0, parked 1
            20s   deliver 6#2 to B
            20s   append handed 6
        "#]],
    );
}

#[test]
fn a_purge_takes_what_is_parked_if_asked_to() {
    check_both_ways(
        "publish 4 / A joins 2 / A parks 1 because bad / purge parked / parked / figures / stream \
         / A acks 2 / publish 1 / crash / figures / parked",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: parked
            0s    deliver 3#1 to A
            0s    append parked 1 by Nack
            0s    append handed 3
            0s    purged 4
            0s    append purged through 4
            0s    append released before 5
            0s    reasons: 
            0s    floor 4, lag 0, in flight 0, ready 0, waiting 0, parked 0
            0s    stream 5 to 4, holds 0 of 0 bytes, delayed 0
            0s    A: not yours (gone)
            0s    deliver 5#1 to A
            0s    append handed 5
            0s    append opened 2
            0s    floor 4, lag 1, in flight 0, ready 1, waiting 0, parked 0
            0s    reasons: 
        "#]],
    );
}

#[test]
fn a_purge_forgets_ids_if_asked_to_and_they_stay_forgotten() {
    check_both_ways(
        "publish id:x id:y / purge / publish id:x / purge ids / publish id:x / publish id:x / crash \
         / publish id:x id:y / publish id:y",
        expect![[r#"
            0s    purged 2
            0s    append purged through 2
            0s    append released before 3
            0s    duplicate of 1
            0s    purged 0
            0s    append purged through 2 with ids
            0s    duplicate of 3
            0s    append opened 2
            0s    duplicate of 3
            0s    duplicate of 4
        "#]],
    );
}

#[test]
fn an_empty_stream_can_be_purged() {
    check_both_ways(
        "purge / publish 1 / A joins 1 / crash / figures",
        expect![[r#"
        0s    purged 0
        0s    append purged through 0
        0s    deliver 1#1 to A
        0s    append handed 1
        0s    append opened 2
        0s    floor 0, lag 1, in flight 0, ready 1, waiting 0, parked 0
    "#]],
    );
}

#[test]
fn a_purge_of_an_ordered_group_unlocks_its_keys() {
    check(
        "set strategy ordered / publish a a b / A joins 9 / purge / publish a b / A acks 1 \
         / A acks 4 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1, 3
            0s    purged 3
            0s    append purged through 3
            0s    append released before 4
            0s    deliver 4-5#1 to A
            0s    append handed 4-5
            0s    A: not yours (gone)
            0s    A: acked
            0s    append acked 4
            0s    floor 4, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_move_in_the_middle_of_a_purge_or_a_reset_is_over() {
    check(
        "publish 2 / A joins 2 / moves wait / A moves 1 / purge / moves go / figures",
        expect![[r#"
        0s    deliver 1-2#1 to A
        0s    append handed 1-2
        0s    A: moving
        0s    append moving 1 to elsewhere
        0s    asks for 1 to go to elsewhere
        0s    purged 2
        0s    append purged through 2
        0s    append released before 3
        0s    cannot move 1: the message is not to be moved
        0s    floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 0
    "#]],
    );
    check(
        "publish 2 / A joins 2 / moves wait / A moves 1 / reset beginning / moves go / figures \
         / A acks 1-2 / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: moving
            0s    append moving 1 to elsewhere
            0s    asks for 1 to go to elsewhere
            0s    append reset to 0
            0s    read 1-2
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    cannot move 1: the message is not to be moved
            0s    floor 0, lag 2, in flight 2, ready 0, waiting 0, parked 0
            0s    A: acked, acked
            0s    append acked 1-2
            0s    floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_full_window_takes_nothing_new_and_still_retries() {
    check(
        "set window 2 / publish 5 / A joins 9 / status / A nacks 1 / status / wait 100ms / A acks 1 \
         / status / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    WindowFull
            0s    A: retrying
            0s    append failed 1 until 0.1s
            0s    WindowFull
            0.1s  deliver 1#2 to A
            0.1s  append handed 1
            0.1s  A: acked
            0.1s  deliver 3#1 to A
            0.1s  append acked 1
            0.1s  append handed 3
            0.1s  WindowFull
            0.1s  floor 1, lag 4, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
    check_both_ways(
        "set window 2 / publish 5 / A joins 1 / A nacks 1 in 5s / A nacks 2 in 5s / status / figures \
         / crash / B joins 9 / status / wait 5s / B acks 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    deliver 2#1 to A
            0s    append failed 1 until 5s
            0s    append handed 2
            0s    A: retrying
            0s    append failed 2 until 5s
            0s    WindowFull
            0s    floor 0, lag 5, in flight 0, ready 0, waiting 2, parked 0
            0s    append opened 2
            0s    WindowFull
            5s    deliver 1#2 to B
            5s    deliver 2#2 to B
            5s    append handed 1-2
            5s    B: acked
            5s    deliver 3#1 to B
            5s    append acked 1
            5s    append handed 3
            5s    floor 1, lag 4, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_full_window_of_an_ordered_group() {
    check(
        "set strategy ordered / set window 2 / publish a b c d / A joins 9 / status / A nacks 1 \
         / A acks 2 / status / wait 100ms / A acks 1 / figures",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    WindowFull
            0s    A: retrying
            0s    append failed 1 until 0.1s
            0s    A: acked
            0s    append acked 2
            0s    read 3-4
            0s    deliver 3#1 to A
            0s    append handed 3
            0s    WindowFull
            0.1s  deliver 1#2 to A
            0.1s  append handed 1
            0.1s  A: acked
            0.1s  append acked 1
            0.1s  read 4
            0.1s  deliver 4#1 to A
            0.1s  append handed 4
            0.1s  floor 2, lag 2, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
    check(
        "set strategy ordered / set window 2 / set batch 3 / publish a a a b / A joins 9 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    append handed 1-2
            0s    floor 0, lag 4, in flight 2, ready 1, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_window_with_priorities() {
    check(
        "set window 2 / publish . . .!9 .!9 .!9 / A joins 9 / status / A acks 3 / figures",
        expect![[r#"
        0s    deliver 3-4#1 to A
        0s    append handed 3-4
        0s    WindowFull
        0s    A: acked
        0s    deliver 5#1 to A
        0s    append acked 3
        0s    append handed 5
        0s    floor 0, lag 4, in flight 2, ready 2, waiting 0, parked 0
    "#]],
    );
}

#[test]
fn two_groups_of_one_stream_do_not_know_of_each_other() {
    check(
        "publish 3 / A joins 9 / a joins 1 / A acks 1-3 / a parks 1 because bad / a nacks 2 \
         / reset beginning / figures / figures of others / pause / a acks 3 / wait 1s / a acks 2 \
         / figures / figures of others",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    read 1-3
            0s    deliver 1#1 to a
            0s    append others handed 1
            0s    A: acked, acked, acked
            0s    append acked 1-3
            0s    a: parked
            0s    deliver 2#1 to a
            0s    append others parked 1 by Nack
            0s    append others handed 2
            0s    a: retrying
            0s    deliver 3#1 to a
            0s    append others failed 2 until 0.1s
            0s    append others handed 3
            0s    append reset to 0
            0s    read 1-3
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    floor 0, lag 3, in flight 3, ready 0, waiting 0, parked 0
            0s    floor 1, lag 2, in flight 1, ready 0, waiting 1, parked 1
            0s    append paused
            0s    a: acked
            0s    append others acked 3
            0.1s  deliver 2#2 to a
            0.1s  append others handed 2
            1s    a: acked
            1s    append others acked 2
            1s    floor 0, lag 3, in flight 3, ready 0, waiting 0, parked 0
            1s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 1
        "#]],
    );
    check_both_ways(
        "publish 3 / A joins 9 / a joins 9 / A acks 1-3 / release / stream / a acks 1-2 / release \
         / stream / crash / figures / figures of others / b joins 9",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    read 1-3
            0s    deliver 1-3#1 to a
            0s    append others handed 1-3
            0s    A: acked, acked, acked
            0s    append acked 1-3
            0s    stream 1 to 3, holds 3 of 300 bytes, delayed 0
            0s    a: acked, acked
            0s    append others acked 1-2
            0s    append released before 3
            0s    stream 3 to 3, holds 1 of 100 bytes, delayed 0
            0s    append opened 2
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
            0s    floor 2, lag 1, in flight 0, ready 1, waiting 0, parked 0
            0s    deliver 3#2 to b
            0s    append others handed 3
        "#]],
    );
}

#[test]
fn a_group_keeps_the_stream_for_its_parked_messages() {
    check(
        "publish 3 / A joins 9 / A parks 1 / A acks 2-3 / release / stream / discard all / release \
         / stream",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked
            0s    append parked 1 by Nack
            0s    A: acked, acked
            0s    append acked 2-3
            0s    stream 1 to 3, holds 1 of 100 bytes, delayed 0
            0s    job 1 matches 1
            0s    append job 1 started
            0s    append discarded 1 by job 1
            0s    append job 1 done
            0s    append released before 4
            0s    stream 4 to 3, holds 0 of 0 bytes, delayed 0
        "#]],
    );
}

#[test]
fn a_group_that_is_created_after_a_purge_gets_nothing_of_what_was_purged() {
    check_both_ways(
        "publish 3 / A joins 3 / A parks 1 / purge / crash / a joins 9 / publish 1 \
         / figures of others / reset beginning / figures",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked
            0s    append parked 1 by Nack
            0s    purged 2
            0s    append purged through 3
            0s    append opened 2
            0s    deliver 4#1 to a
            0s    append others handed 4
            0s    floor 3, lag 1, in flight 1, ready 0, waiting 0, parked 0
            0s    append reset to 3
            0s    floor 3, lag 1, in flight 0, ready 0, waiting 0, parked 1
        "#]],
    );
}

#[test]
fn a_purge_reaches_every_group() {
    check_both_ways(
        "publish 3 / A joins 1 / a joins 2 / a parks 1 / purge / figures / figures of others / crash \
         / figures / figures of others / publish 1 / A joins 9 / b joins 9",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    read 1-3
            0s    deliver 1-2#1 to a
            0s    append others handed 1-2
            0s    a: parked
            0s    deliver 3#1 to a
            0s    append others parked 1 by Nack
            0s    append others handed 3
            0s    purged 2
            0s    append purged through 3
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 1
            0s    append opened 2
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 1
            0s    deliver 4#1 to A
            0s    append handed 4
            0s    deliver 4#1 to b
            0s    append others handed 4
        "#]],
    );
}

#[test]
fn a_reset_of_a_group_that_waits_for_a_read() {
    check(
        "buffer 2 / publish 2 / publish 2 / publish 2 / A joins 1 / reset 3 / A acks 3 / A acks 4 \
         / A acks 5 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    read 3-4
            0s    append reset to 2
            0s    read 3-4
            0s    deliver 3#1 to A
            0s    append handed 3
            0s    read 5-6
            0s    A: acked
            0s    deliver 4#1 to A
            0s    append acked 3
            0s    append handed 4
            0s    A: acked
            0s    deliver 5#1 to A
            0s    append acked 4
            0s    append handed 5
            0s    A: acked
            0s    deliver 6#1 to A
            0s    append acked 5
            0s    append handed 6
            0s    floor 5, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_stream_with_priorities_can_be_purged_reset_and_crash() {
    check_both_ways(
        "publish .!5 . .!9 / A joins 1 / A acks 3 / reset beginning / A acks 3 / crash / B joins 1 \
         / B acks 1 / purge / publish . .!2 / figures",
        expect![[r#"
            0s    deliver 3#1 to A
            0s    append handed 3
            0s    A: acked
            0s    deliver 1#1 to A
            0s    append acked 3
            0s    append handed 1
            0s    deliver 3#1 to A
            0s    append reset to 0
            0s    append handed 3
            0s    read 1-3
            0s    A: acked
            0s    deliver 1#1 to A
            0s    append acked 3
            0s    append handed 1
            0s    append opened 2
            0s    deliver 1#2 to B
            0s    append handed 1
            0s    B: acked
            0s    deliver 2#1 to B
            0s    append acked 1
            0s    append handed 2
            0s    purged 1
            0s    append purged through 3
            0s    append released before 4
            0s    deliver 5#1 to B
            0s    append handed 5
            0s    floor 3, lag 2, in flight 1, ready 1, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn replayed_messages_go_before_newer_ones_and_keep_their_priority() {
    check_both_ways(
        "publish .!5 . .!5 . / A joins 4 / A parks 1-2 / A credit 1 / publish . .!5 / A acks 3-4 \
         / replay all / A acks 6 / A acks 1 / A acks 2 / crash / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    deliver 2#1 to A
            0s    deliver 4#1 to A
            0s    append handed 1, 3, 2, 4
            0s    A: parked, parked
            0s    append parked 1 by Nack, 2 by Nack
            0s    A: acked, acked
            0s    deliver 6#1 to A
            0s    append acked 3-4
            0s    append handed 6
            0s    job 1 matches 2
            0s    append job 1 started
            0s    append replayed 1-2 by job 1
            0s    append job 1 done
            0s    A: acked
            0s    deliver 1#1 to A
            0s    append acked 6
            0s    append handed 1
            0s    A: acked
            0s    deliver 2#1 to A
            0s    append acked 1
            0s    append handed 2
            0s    A: acked
            0s    deliver 5#1 to A
            0s    append acked 2
            0s    append handed 5
            0s    append opened 2
            0s    floor 4, lag 1, in flight 0, ready 1, waiting 0, parked 0
        "#]],
    );
}
