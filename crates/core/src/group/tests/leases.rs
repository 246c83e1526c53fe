//! Leases of a client that has nothing but a receipt: why an answer does not count, when a message was first
//! received, leases that end at once, and how long one may be made.

use super::{check, check_both_ways, expect};

#[test]
fn one_who_answers_too_late_learns_why_it_does_not_count() {
    check_both_ways(
        "set backoff 0s 0s / publish 3 / P polls 3 for 5s / wait 5s / P acks 1-3 / Q polls 1 / P acks 1-3 / \
         Q acks 1 / P acks 1 / P extends 2 by 9s / crash / P acks 1-3 / P extends 1 by 9s / figures",
        expect![[r#"
            0s    deliver 1-3#1 to P when durable
            0s    append leased 1-3 for 5s
            5s    append failed 1 until 5s, 2 until 5s, 3 until 5s
            5s    P: not yours (lapsed), not yours (lapsed), not yours (lapsed)
            5s    deliver 1#2 to Q when durable
            5s    append leased 1 for 30s
            5s    P: not yours (superseded), not yours (lapsed), not yours (lapsed)
            5s    Q: acked
            5s    append acked 1
            5s    P: not yours (gone)
            5s    P: not yours (lapsed)
            5s    append opened 2
            5s    P: not yours (gone), not yours (lapsed), not yours (lapsed)
            5s    P: not yours (gone)
            5s    floor 1, lag 2, in flight 0, ready 2, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_lease_that_was_superseded_is_so_also_when_the_next_one_has_lapsed() {
    check_both_ways(
        "set backoff 0s 0s / publish 1 / P polls 1 for 5s / wait 5s / Q polls 1 for 5s / wait 5s / crash / \
         P acks late 1 / Q acks 1 / Q acks late 1 / P acks late 1",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 5s
            5s    append failed 1 until 5s
            5s    deliver 1#2 to Q when durable
            5s    append leased 1 for 5s
            10s   append failed 1 until 10s
            10s   append opened 2
            10s   P: not yours (superseded)
            10s   Q: not yours (lapsed)
            10s   Q: acked
            10s   append acked 1
            10s   P: not yours (gone)
        "#]],
    );
}

#[test]
fn what_is_parked_moved_purged_or_expired_is_gone() {
    check_both_ways(
        "publish 1 / publish .-5s / publish 3 / moves wait / P polls 5 / P parks 1 / P nacks 2 in 9s / wait 5s \
         / P moves 3 / P acks 1-3 / crash / P acks 1-2 / purge / P acks 3-5 / P extends 4 by 5s",
        expect![[r#"
            0s    deliver 1-5#1 to P when durable
            0s    append leased 1-5 for 30s
            0s    P: parked
            0s    append parked 1 by Nack
            0s    P: retrying
            0s    append failed 2 until 9s
            4s    checkpoint 1
            5s    append expired 2
            5s    P: moving
            5s    append moving 3 to elsewhere
            5s    asks for 3 to go to elsewhere
            5s    P: not yours (gone), not yours (gone), not yours (gone)
            5s    append opened 2
            5s    move 3 to elsewhere as 1
            5s    append stream elsewhere created
            5s    append moved 3
            5s    append published 1 and 0 more in stream 2
            5s    P: not yours (gone), not yours (gone)
            5s    purged 2
            5s    append purged through 5
            5s    P: not yours (gone), not yours (gone), not yours (gone)
            5s    P: not yours (gone)
        "#]],
    );
}

#[test]
fn what_begins_anew_was_leased_to_nobody() {
    check_both_ways(
        "publish 3 / P polls 2 / P parks 1 / P returns 2 / P acks 2 / replay all / P acks 1 / P polls 2 / \
         reset 2 / P acks 1 / P acks 2 / crash / P acks late 2",
        expect![[r#"
            0s    deliver 1-2#1 to P when durable
            0s    append leased 1-2 for 30s
            0s    P: parked
            0s    append parked 1 by Nack
            0s    P: returned
            0s    append returned 2
            0s    P: not yours (superseded)
            0s    job 1 matches 1
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append job 1 done
            0s    P: not yours (superseded)
            0s    deliver 1#1 to P when durable
            0s    deliver 2#1 to P when durable
            0s    append leased 1, 2 for 30s
            0s    append reset to 1
            0s    read 2-3
            0s    P: not yours (gone)
            0s    P: not yours (superseded)
            0s    append opened 2
            0s    P: not yours (superseded)
        "#]],
    );
}

#[test]
fn when_a_message_was_first_received_is_kept_however_often_it_comes_again() {
    check_both_ways(
        "set backoff 0s 0s / say first / publish 4 / +1s / P polls 2 for 5s / wait 5s / A joins 3 / +2s / A lost / \
         P polls 1 / crash / wait 30s / P polls 9",
        expect![[r#"
            1s    deliver 1-2#1 to P when durable, first at 1s
            1s    append leased 1-2 for 5s
            6s    append failed 1 until 6s, 2 until 6s
            6s    deliver 1#2 to A, first at 1s
            6s    deliver 2#2 to A, first at 1s
            6s    deliver 3#1 to A, first at 6s
            6s    append handed 1-3
            8s    deliver 1#3 to P when durable, first at 1s
            8s    append leased 1 for 30s
            8s    append opened 2
            38s   append failed 1 until 38s
            38s   deliver 1#4 to P when durable, first at 1s
            38s   deliver 2#3 to P when durable, first at 1s
            38s   deliver 3#2 to P when durable, first at 6s
            38s   deliver 4#1 to P when durable, first at 38s
            38s   append leased 1, 2, 3, 4 for 30s
        "#]],
    );
}

#[test]
fn a_receive_that_was_given_back_untouched_was_none() {
    check_both_ways(
        "set backoff 0s 0s / say first / publish 3 / +1s / P polls 3 / P returns 1 / P returns 2 for 1s / P nacks 3 \
         / crash / +1s / P polls 3 / P returns 1-3 / +1s / A joins 3 / A goodbye / +1s / P polls 3",
        expect![[r#"
            1s    deliver 1-3#1 to P when durable, first at 1s
            1s    append leased 1-3 for 30s
            1s    P: returned
            1s    append returned 1
            1s    P: returned
            1s    append snoozed 2 until 2s
            1s    P: retrying
            1s    append failed 3 until 1s
            1s    append opened 2
            2s    deliver 1#1 to P when durable, first at 2s
            2s    deliver 2#1 to P when durable, first at 2s
            2s    deliver 3#2 to P when durable, first at 1s
            2s    append leased 1, 2, 3 for 30s
            2s    P: returned, returned, returned
            2s    append returned 1-3
            3s    deliver 1#1 to A, first at 3s
            3s    deliver 2#1 to A, first at 3s
            3s    deliver 3#2 to A, first at 1s
            3s    append handed 1-3
            3s    append returned 1-3
            4s    deliver 1#1 to P when durable, first at 4s
            4s    deliver 2#1 to P when durable, first at 4s
            4s    deliver 3#2 to P when durable, first at 1s
            4s    append leased 1, 2, 3 for 30s
        "#]],
    );
}

#[test]
fn what_is_replayed_is_received_for_the_first_time_again() {
    check_both_ways(
        "say first / publish 1 / +1s / P polls 1 / P parks 1 / +1s / replay all / crash / P polls 1",
        expect![[r#"
            1s    deliver 1#1 to P when durable, first at 1s
            1s    append leased 1 for 30s
            1s    P: parked
            1s    append parked 1 by Nack
            2s    job 1 matches 1
            2s    append job 1 started
            2s    append replayed 1 by job 1
            2s    append job 1 done
            2s    append opened 2
            2s    deliver 1#1 to P when durable, first at 2s
            2s    append leased 1 for 30s
        "#]],
    );
}

#[test]
fn a_first_receive_that_was_never_written_is_dated_by_its_failure() {
    check(
        "set acks checkpoint / say first / publish 1 / +1s / A joins 1 / +1s / A nacks 1 / A lost / crash / +1s / \
         A joins 1",
        expect![[r#"
            1s    deliver 1#1 to A, first at 1s
            2s    A: retrying
            2s    append failed 1 until 2.1s
            2s    append opened 2
            3s    deliver 1#2 to A, first at 2s
            3s    append handed 1
        "#]],
    );
}

#[test]
fn what_is_leased_for_no_time_is_there_for_the_next_at_once_and_counts() {
    check_both_ways(
        "set backoff 0s 0s / say first / publish 3 / +1s / P polls 9 for 0s / P acks late 2 / Q polls 9 for 0s / \
         P acks late 1 / Q acks late 1 / crash / R polls 9 / Q acks late 3 / figures / wait 10s",
        expect![[r#"
            1s    deliver 1-3#1 to P when durable, first at 1s
            1s    append leased 1-3 for 0s
            1s    P: acked
            1s    append acked 2
            1s    append failed 1 until 1s, 3 until 1s
            1s    deliver 1#2 to Q when durable, first at 1s
            1s    deliver 3#2 to Q when durable, first at 1s
            1s    append leased 1, 3 for 0s
            1s    P: not yours (superseded)
            1s    append failed 1 until 1s, 3 until 1s
            1s    Q: acked
            1s    append acked 1
            1s    append opened 2
            1s    deliver 3#3 to R when durable, first at 1s
            1s    append leased 3 for 30s
            1s    Q: not yours (superseded)
            1s    floor 2, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn one_receive_does_not_get_what_was_leased_for_no_time_twice_however_long_it_waits() {
    check(
        "set backoff 0s 0s / P polls 9 for 0s & Q polls 9 for 0s & publish 1 / wait 5s / P polls 9 for 0s / wait 5s / \
         figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 0s
            0s    deliver 1#2 to Q when durable
            0s    append failed 1 until 0s
            0s    append leased 1 for 0s
            0s    append failed 1 until 0s
            5s    deliver 1#3 to P when durable
            5s    append leased 1 for 0s
            5s    append failed 1 until 5s
            10s   floor 0, lag 1, in flight 0, ready 1, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn leases_for_no_time_use_up_the_retries_like_all_others() {
    check(
        "set backoff 0s 0s / set retries 1 / publish 1 / P polls 1 for 0s / P polls 1 for 0s / P polls 1 for 0s / \
         wait 1s / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 0s
            0s    deliver 1#2 to P when durable
            0s    append failed 1 until 0s
            0s    append leased 1 for 0s
            0s    append parked 1 by Timeout
            1s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 1
        "#]],
    );
}

#[test]
fn a_lease_can_be_made_no_longer_than_it_may_be_altogether() {
    check_both_ways(
        "set backoff 0s 0s / publish 2 / P polls 2 / +20s / P extends 1-2 by 41s within 60s \
         / P extends 1 by 40s within 60s / crash / +30s / P extends 1 by 11s within 60s \
         / P extends 1 by 10s within 60s / wait 10s / P polls 2 / +20s / P extends 1 by 40s within 60s / figures",
        expect![[r#"
            0s    deliver 1-2#1 to P when durable
            0s    append leased 1-2 for 30s
            20s   P: toolong, toolong
            20s   P: extended
            20s   append extended 1 to 60s
            20s   append opened 2
            50s   append failed 2 until 50s
            50s   P: toolong
            50s   P: extended
            50s   append extended 1 to 60s
            60s   append failed 1 until 60s
            60s   deliver 1#2 to P when durable
            60s   deliver 2#2 to P when durable
            60s   append leased 1, 2 for 30s
            80s   P: extended
            80s   append extended 1 to 120s
            80s   floor 0, lag 2, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
}

/// A message that is too old stays with the consumer that holds it. An ack or an extension counts as ever; giving it
/// back, or a lapse, ends it.
#[test]
fn what_is_too_old_is_let_go_when_its_lease_ends() {
    check_both_ways(
        "set backoff 0s 0s / set age 5s / publish 4 / P polls 4 / wait 8s / crash / figures / P acks 1 \
         / P extends 2 by 40s \
         / P nacks 3 / wait 22s / P acks late 4 / P acks late 3 / wait 17s / P acks 2 / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    deliver 1-4#1 to P when durable
            0s    append leased 1-4 for 30s
            8s    append opened 2
            8s    floor 0, lag 4, in flight 4, ready 0, waiting 0, parked 0
            8s    P: acked
            8s    append acked 1
            8s    P: extended
            8s    append extended 2 to 48s
            8s    P: expired
            8s    append expired 3
            12s   checkpoint 1
            30s   append expired 4
            30s   P: not yours (gone)
            30s   P: not yours (gone)
            34s   checkpoint 1
            47s   P: acked
            47s   append acked 2
            47s   floor 4, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn after_a_reset_attempts_are_counted_anew() {
    check(
        "retries 1 / set backoff 0s 0s / publish 1 / A joins 1 / A nacks 1 / reset beginning / A nacks 1 / A nacks 1 \
         / parked",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    deliver 1#2 to A
            0s    append failed 1 until 0s
            0s    append handed 1
            0s    append reset to 0
            0s    read 1
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    deliver 1#2 to A
            0s    append failed 1 until 0s
            0s    append handed 1
            0s    A: parked
            0s    append parked 1 by Nack
            0s    parked 1 after 2: #1 A (no reason given); #2 A (no reason given)
            0s    reasons: 1 (no reason given)
        "#]],
    );
}

#[test]
fn a_message_that_was_given_back_says_that_it_was_handed_out_before() {
    check_both_ways(
        "say again / +1s / publish 1 / A joins 1 / A credit 0 & A returns 1 / crash / A joins 1 / A goodbye \
         / B joins 2 / B parks 1 / replay all / publish 1",
        expect![[r#"
            1s    append opened 1
            1s    append stream jobs created
            1s    deliver 1#1 to A
            1s    append handed 1
            1s    A: returned
            1s    append returned 1
            1s    append opened 2
            1s    deliver 1#1 again to A
            1s    append handed 1
            1s    append returned 1
            1s    deliver 1#1 again to B
            1s    append handed 1
            1s    B: parked
            1s    append parked 1 by Nack
            1s    job 1 matches 1
            1s    deliver 1#1 again to B
            1s    append job 1 started
            1s    append replayed 1 by job 1
            1s    append handed 1
            1s    append job 1 done
            1s    deliver 2#1 to B
            1s    append handed 2
        "#]],
    );
}

#[test]
fn a_message_that_waited_before_it_goes_again_says_so_too() {
    check_both_ways(
        "say again / +1s / publish 1 / A joins 1 / A returns 1 for 5s / crash / wait 6s / A joins 1 / publish 1",
        expect![[r#"
            1s    append opened 1
            1s    append stream jobs created
            1s    deliver 1#1 to A
            1s    append handed 1
            1s    A: returned
            1s    append snoozed 1 until 6s
            1s    append opened 2
            7s    deliver 1#1 again to A
            7s    append handed 1
        "#]],
    );
}

#[test]
fn a_message_that_no_consumer_has_seen_is_new_although_it_was_on_its_way_elsewhere() {
    check(
        "say again / +1s / elsewhere 9 / publish 2 / moves wait / move all to elsewhere / elsewhere delete / moves go \
         / A joins 2",
        expect![[r#"
            1s    append opened 1
            1s    append stream jobs created
            1s    append stream elsewhere created
            1s    job 1 matches 2
            1s    append job 1 started
            1s    append moving 1-2 to elsewhere by job 1
            1s    asks for 1 to go to elsewhere
            1s    asks for 2 to go to elsewhere
            1s    append StreamDeleted { stream: StreamId(2), last: Ordinal(0) }
            1s    cannot move 1: the stream cannot take the message, which stays
            1s    cannot move 2: the stream cannot take the message, which stays
            1s    append stayed 1
            1s    append job 1 failed(nodestination)
            1s    append stayed 2
            1s    deliver 1#1 to A
            1s    deliver 2#1 to A
            1s    append handed 1-2
        "#]],
    );
}

#[test]
fn a_connected_consumer_may_have_leases_of_its_own_length() {
    check(
        "set backoff 0s 0s / A joins 1 with lease 5s / B joins 1 / publish 2 / wait 6s / A lost / wait 25s / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to B
            0s    append handed 1-2
            5s    deliver 1#2 to A
            5s    append failed 1 until 5s
            5s    append handed 1
            30s   deliver 1#3 to B
            30s   append failed 2 until 30s
            30s   append handed 1
            31s   floor 0, lag 2, in flight 1, ready 1, waiting 0, parked 0
        "#]],
    );
}
