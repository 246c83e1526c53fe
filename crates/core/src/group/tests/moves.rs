//! Messages that go to another stream.

use super::*;

#[test]
fn a_message_that_may_go_only_where_a_stream_is_stays_while_there_is_none() {
    check_both_ways(
        "retries 1 / set backoff 0s 0s / set exhausted move existing / publish 1 / A joins 1 / A nacks 1 \
         / A nacks 1 / A nacks 1 / figures / crash / A joins 1 / elsewhere 9 / A nacks 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    deliver 1#2 to A
            0s    append failed 1 until 0s
            0s    append handed 1
            0s    A: moving
            0s    append moving 1 to elsewhere
            0s    cannot move 1: the stream cannot take the message, which stays
            0s    deliver 1#3 to A
            0s    append failed 1 until 0s
            0s    append handed 1
            0s    A: moving
            0s    append moving 1 to elsewhere
            0s    cannot move 1: the stream cannot take the message, which stays
            0s    deliver 1#4 to A
            0s    append failed 1 until 0s
            0s    append handed 1
            0s    floor 0, lag 1, in flight 1, ready 0, waiting 0, parked 0
            0s    append opened 2
            0s    deliver 1#5 to A
            0s    append handed 1
            0s    append stream elsewhere created
            0s    A: moving
            0s    append moving 1 to elsewhere
            0s    move 1 to elsewhere as 1
            0s    append moved 1
            0s    append published 1 and 0 more in stream 2
            0s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn one_that_stays_waits_as_its_backoff_says_and_is_not_tried_in_between() {
    check(
        "retries 0 / set backoff 10s 10s / set exhausted move existing / publish 1 / A joins 1 / A nacks 1 \
         / wait 9s / figures / wait 2s / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: moving
            0s    append moving 1 to elsewhere
            0s    cannot move 1: the stream cannot take the message, which stays
            0s    append failed 1 until 10s
            9s    floor 0, lag 1, in flight 0, ready 0, waiting 1, parked 0
            10s   deliver 1#2 to A
            10s   append handed 1
            11s   floor 0, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn one_that_stays_keeps_its_place_in_its_key() {
    check(
        "retries 0 / set strategy ordered / set backoff 0s 0s / set exhausted move existing \
         / publish a a b / A joins 2 / A nacks 1 / A acks 1 / A acks 2",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1, 3
            0s    A: moving
            0s    append moving 1 to elsewhere
            0s    cannot move 1: the stream cannot take the message, which stays
            0s    deliver 1#2 to A
            0s    append failed 1 until 0s
            0s    append handed 1
            0s    A: acked
            0s    deliver 2#1 to A
            0s    append acked 1
            0s    append handed 2
            0s    A: acked
            0s    append acked 2
        "#]],
    );
}

#[test]
fn one_that_is_too_old_meanwhile_does_not_come_back() {
    check(
        "retries 0 / set backoff 0s 0s / set exhausted move existing / publish .-10s . / A joins 1 \
         / moves wait / A nacks 1 / +11s / moves go / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: moving
            0s    deliver 2#1 to A
            0s    append moving 1 to elsewhere
            0s    append handed 2
            0s    asks for 1 to go to elsewhere
            11s   cannot move 1: the stream cannot take the message, which stays
            11s   append expired 1
            11s   floor 1, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_crash_between_leaves_it_on_its_way_on_the_same_terms() {
    check_both_ways(
        "retries 0 / set backoff 0s 0s / set exhausted move existing aged / publish 1 / A joins 1 / moves wait \
         / A nacks 1 / set exhausted skip / crash / figures / elsewhere aged:60s / +1s / figures / A joins 1",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: moving
            0s    append moving 1 to elsewhere
            0s    asks for 1 to go to elsewhere
            0s    append group changed
            0s    append opened 2
            0s    cannot move 1: the stream cannot take the message, which stays
            0s    append failed 1 until 0s
            0s    floor 0, lag 1, in flight 0, ready 1, waiting 0, parked 0
            0s    append stream elsewhere created
            1s    floor 0, lag 1, in flight 0, ready 1, waiting 0, parked 0
            1s    deliver 1#2 to A
            1s    append handed 1
        "#]],
    );
}

#[test]
fn a_move_keeps_the_age_where_that_is_asked_for() {
    check(
        "retries 0 / set exhausted move aged / elsewhere aged:60s / publish 1 / A joins 1 / +20s / A nacks 1",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    deliver 1#1 to A
            0s    append handed 1
            20s   A: moving
            20s   append moving 1 to elsewhere
            20s   move 1 to elsewhere as 1 until 60s
            20s   append moved 1
            20s   append published 1 and 0 more in stream 2
        "#]],
    );
    check(
        "retries 0 / set exhausted move / elsewhere aged:60s / publish 1 / A joins 1 / +20s / A nacks 1",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    deliver 1#1 to A
            0s    append handed 1
            20s   A: moving
            20s   append moving 1 to elsewhere
            20s   move 1 to elsewhere as 1
            20s   append moved 1
            20s   append published 1 and 0 more in stream 2
        "#]],
    );
}

#[test]
fn a_job_moves_what_waits_and_leaves_what_is_leased_delayed_or_to_be_tried_later() {
    check_both_ways(
        "elsewhere 99 / publish . . . .+60s . / A joins 2 / A nacks 1 in 60s / A credit 1 / move all to elsewhere \
         / jobs / figures / publish 1 / crash / jobs / figures / +60s",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: retrying
            0s    deliver 3#1 to A
            0s    append failed 1 until 60s
            0s    append handed 3
            0s    job 1 matches 5
            0s    append job 1 started
            0s    append job 1 passes 1-4
            0s    append moving 5 to elsewhere by job 1
            0s    move 5 to elsewhere as 1 anew
            0s    append moved 5
            0s    append published 1 and 0 more in stream 2
            0s    append job 1 done
            0s    job 1: Move to elsewhere 1 of 5, 4 failed, done
            0s    floor 0, lag 4, in flight 2, ready 0, waiting 1, parked 0
            0s    append opened 2
            0s    job 1: Move to elsewhere 1 of 5, 4 failed, done
            0s    floor 0, lag 5, in flight 0, ready 3, waiting 1, parked 0
        "#]],
    );
}

#[test]
fn what_is_on_offer_is_withdrawn_and_not_handed_out_as_well() {
    check(
        "elsewhere 99 / publish 3 / A joins 1 / A nacks 1 in 0s & pause / +1s / moves wait / move all to elsewhere \
         / resume / A acks 1 / figures / moves go / figures / jobs / publish 1",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    append failed 1 until 0s
            0s    append paused
            1s    job 1 matches 3
            1s    append job 1 started
            1s    append moving 1-3 to elsewhere by job 1
            1s    asks for 1 to go to elsewhere
            1s    asks for 2 to go to elsewhere
            1s    asks for 3 to go to elsewhere
            1s    append resumed
            1s    A: not yours (gone)
            1s    floor 0, lag 3, in flight 0, ready 0, waiting 0, parked 0
            1s    move 1 to elsewhere as 1 anew
            1s    move 2 to elsewhere as 2 anew
            1s    move 3 to elsewhere as 3 anew
            1s    append moved 1
            1s    append published 1 and 0 more in stream 2
            1s    append moved 2
            1s    append published 2 and 0 more in stream 2
            1s    append moved 3
            1s    append published 3 and 0 more in stream 2
            1s    append job 1 done
            1s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
            1s    job 1: Move to elsewhere 3 of 3, 0 failed, done
            1s    deliver 4#1 to A
            1s    append handed 4
        "#]],
    );
}

#[test]
fn a_job_goes_on_where_it_was_after_a_crash() {
    check_both_ways(
        "elsewhere 99 / publish 5 / moves wait / move all to elsewhere at 1 / +1s / figures / crash / jobs / +1s \
         / jobs / wait 9s / jobs / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    job 1 matches 5
            0s    append job 1 started
            1s    append moving 1 to elsewhere by job 1
            1s    asks for 1 to go to elsewhere
            1s    floor 0, lag 5, in flight 0, ready 4, waiting 0, parked 0
            1s    append opened 2
            1s    move 1 to elsewhere as 1 anew
            1s    append moved 1
            1s    append published 1 and 0 more in stream 2
            1s    job 1: Move to elsewhere 1 of 5, 0 failed, running
            2s    append moving 2 to elsewhere by job 1
            2s    move 2 to elsewhere as 2 anew
            2s    append moved 2
            2s    append published 2 and 0 more in stream 2
            2s    job 1: Move to elsewhere 2 of 5, 0 failed, running
            3s    append moving 3 to elsewhere by job 1
            3s    move 3 to elsewhere as 3 anew
            3s    append moved 3
            3s    append published 3 and 0 more in stream 2
            4s    append moving 4 to elsewhere by job 1
            4s    move 4 to elsewhere as 4 anew
            4s    append moved 4
            4s    append published 4 and 0 more in stream 2
            5s    append moving 5 to elsewhere by job 1
            5s    move 5 to elsewhere as 5 anew
            5s    append moved 5
            5s    append published 5 and 0 more in stream 2
            5s    append job 1 done
            9s    checkpoint 5
            11s   job 1: Move to elsewhere 5 of 5, 0 failed, done
            11s   floor 5, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_job_that_is_cancelled_leaves_the_rest_and_lets_arrive_what_is_on_its_way() {
    check_both_ways(
        "elsewhere 99 / publish 4 / move all to elsewhere at 1 / moves wait / +1s / cancel 1 / jobs / moves go \
         / crash / jobs / wait 9s / figures / A joins 9",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    job 1 matches 4
            0s    append job 1 started
            1s    append moving 1 to elsewhere by job 1
            1s    asks for 1 to go to elsewhere
            1s    append job 1 cancelled
            1s    job 1: Move to elsewhere 0 of 4, 0 failed, cancelled
            1s    move 1 to elsewhere as 1 anew
            1s    append moved 1
            1s    append published 1 and 0 more in stream 2
            1s    append opened 2
            1s    job 1: Move to elsewhere 1 of 4, 0 failed, cancelled
            10s   floor 1, lag 3, in flight 0, ready 3, waiting 0, parked 0
            10s   deliver 2-4#1 to A
            10s   append handed 2-4
        "#]],
    );
}

#[test]
fn a_job_whose_stream_goes_away_fails_and_what_is_left_stays() {
    check_both_ways(
        "elsewhere 99 / publish 4 / A joins 1 / A nacks 1 in 0s & pause / move all to elsewhere at 1 / moves wait \
         / +1s / elsewhere delete / moves go / jobs / figures / crash / jobs / resume / A joins 9",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    append failed 1 until 0s
            0s    append paused
            0s    job 1 matches 4
            0s    append job 1 started
            1s    append moving 1 to elsewhere by job 1
            1s    asks for 1 to go to elsewhere
            1s    append StreamDeleted { stream: StreamId(2), last: Ordinal(0) }
            1s    cannot move 1: the stream cannot take the message, which stays
            1s    append stayed 1
            1s    append job 1 failed(nodestination)
            1s    job 1: Move to elsewhere 0 of 4, 0 failed, nodestination
            1s    floor 0, lag 4, in flight 0, ready 4, waiting 0, parked 0
            1s    append opened 2
            1s    job 1: Move to elsewhere 0 of 4, 0 failed, nodestination
            1s    append resumed
            1s    deliver 1#2 to A
            1s    deliver 2-4#1 to A
            1s    append handed 1-4
        "#]],
    );
}

#[test]
fn messages_go_back_to_where_they_came_from() {
    check_both_ways(
        "source / publish a . / move all to origin / jobs / publish 2 / source delete / move all to origin / jobs \
         / crash / jobs / A joins 9",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream source created
            0s    job 1 matches 2
            0s    append job 1 started
            0s    append moving 1-2 to where it came from by job 1
            0s    move 1 to where it came from as 1 anew
            0s    move 2 to where it came from as 2 anew
            0s    append moved 1
            0s    append published 1 and 0 more in stream 2
            0s    append moved 2
            0s    append published 2 and 0 more in stream 2
            0s    append job 1 done
            0s    job 1: Move to where it came from 2 of 2, 0 failed, done
            0s    append StreamDeleted { stream: StreamId(2), last: Ordinal(4) }
            0s    job 2 matches 2
            0s    append job 2 started
            0s    append moving 3-4 to where it came from by job 2
            0s    cannot move 3: the stream cannot take the message, which stays
            0s    cannot move 4: the stream cannot take the message, which stays
            0s    append stayed 3
            0s    append job 2 failed(nodestination)
            0s    append stayed 4
            0s    job 1: Move to where it came from 2 of 2, 0 failed, done
            0s    job 2: Move to where it came from 0 of 2, 0 failed, nodestination
            0s    append opened 2
            0s    job 1: Move to where it came from 2 of 2, 0 failed, done
            0s    job 2: Move to where it came from 0 of 2, 0 failed, nodestination
            0s    deliver 3#1 to A
            0s    deliver 4#1 to A
            0s    append handed 3-4
        "#]],
    );
}

#[test]
fn one_that_was_not_moved_here_cannot_go_back() {
    check(
        "publish 2 / move all to origin / jobs / figures",
        expect![[r#"
            0s    job 1 matches 2
            0s    append job 1 started
            0s    append moving 1-2 to where it came from by job 1
            0s    cannot move 1: the stream cannot take the message, which stays
            0s    cannot move 2: the stream cannot take the message, which stays
            0s    append stayed 1
            0s    append job 1 failed(noorigin)
            0s    append stayed 2
            0s    job 1: Move to where it came from 0 of 2, 0 failed, noorigin
            0s    floor 0, lag 2, in flight 0, ready 2, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn in_an_ordered_group_the_next_sets_out_when_the_one_before_has_arrived() {
    check_both_ways(
        "set strategy ordered / elsewhere 99 / publish a a b a / A joins 1 / moves wait / move all to elsewhere \
         / moves go / moves go / jobs / crash / jobs / A joins 9 / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    job 1 matches 4
            0s    append job 1 started
            0s    append job 1 passes 1
            0s    append moving 2 to elsewhere by job 1
            0s    asks for 2 to go to elsewhere
            0s    move 2 to elsewhere as 1 anew
            0s    append moved 2
            0s    append published 1 and 0 more in stream 2
            0s    append moving 3 to elsewhere by job 1
            0s    move 3 to elsewhere as 2 anew
            0s    append moved 3
            0s    append published 2 and 0 more in stream 2
            0s    append moving 4 to elsewhere by job 1
            0s    move 4 to elsewhere as 3 anew
            0s    append moved 4
            0s    append published 3 and 0 more in stream 2
            0s    append job 1 done
            0s    job 1: Move to elsewhere 3 of 4, 1 failed, done
            0s    append opened 2
            0s    job 1: Move to elsewhere 3 of 4, 1 failed, done
            0s    deliver 1#2 to A
            0s    append handed 1
            0s    floor 0, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn what_comes_after_in_a_key_goes_on_when_the_job_has_taken_what_was_before() {
    check(
        "set strategy ordered / elsewhere 1 / publish a a / moves wait / move all to elsewhere / A joins 9 \
         / publish a / moves go / jobs / figures / wait 5s / figures / elsewhere purge / wait 5s / jobs / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    job 1 matches 2
            0s    append job 1 started
            0s    append moving 1 to elsewhere by job 1
            0s    asks for 1 to go to elsewhere
            0s    move 1 to elsewhere as 1 anew
            0s    append moved 1
            0s    append published 1 and 0 more in stream 2
            0s    append moving 2 to elsewhere by job 1
            0s    cannot move 2: the stream has no room just now
            0s    job 1: Move to elsewhere 1 of 2, 0 failed, running
            0s    floor 1, lag 2, in flight 0, ready 0, waiting 0, parked 0
            1s    cannot move 2: the stream has no room just now
            2s    cannot move 2: the stream has no room just now
            3s    cannot move 2: the stream has no room just now
            4s    checkpoint 1
            4s    cannot move 2: the stream has no room just now
            5s    cannot move 2: the stream has no room just now
            5s    floor 1, lag 2, in flight 0, ready 0, waiting 0, parked 0
            5s    append purged through 1
            5s    append released before 2
            6s    move 2 to elsewhere as 2 anew
            6s    deliver 3#1 to A
            6s    append moved 2
            6s    append published 2 and 0 more in stream 2
            6s    append handed 3
            6s    append job 1 done
            10s   checkpoint 2
            10s   job 1: Move to elsewhere 2 of 2, 0 failed, done
            10s   floor 2, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn one_job_moves_what_waits_at_a_time_and_only_to_a_stream_that_is_there() {
    check(
        "publish 3 / move all to elsewhere / elsewhere 99 / move all to elsewhere at 1 / move all to elsewhere \
         / cancel 1 / move all to elsewhere / jobs / move all to elsewhere / jobs",
        expect![[r#"
            0s    refused: there is no such stream to move messages to, or it is the one they are in
            0s    append stream elsewhere created
            0s    job 1 matches 3
            0s    append job 1 started
            0s    refused: another job moves messages of the group. job=`1`
            0s    append job 1 cancelled
            0s    job 2 matches 3
            0s    append job 2 started
            0s    append moving 1-3 to elsewhere by job 2
            0s    move 1 to elsewhere as 1 anew
            0s    move 2 to elsewhere as 2 anew
            0s    move 3 to elsewhere as 3 anew
            0s    append moved 1
            0s    append published 1 and 0 more in stream 2
            0s    append moved 2
            0s    append published 2 and 0 more in stream 2
            0s    append moved 3
            0s    append published 3 and 0 more in stream 2
            0s    append job 2 done
            0s    job 1: Move to elsewhere 0 of 3, 0 failed, cancelled
            0s    job 2: Move to elsewhere 3 of 3, 0 failed, done
            0s    job 3 matches 0
            0s    append job 3 started
            0s    append job 3 done
            0s    job 1: Move to elsewhere 0 of 3, 0 failed, cancelled
            0s    job 2: Move to elsewhere 3 of 3, 0 failed, done
            0s    job 3: Move to elsewhere 0 of 0, 0 failed, done
        "#]],
    );
}

#[test]
fn what_is_purged_or_settled_meanwhile_is_passed_over() {
    check_both_ways(
        "elsewhere 99 / publish 6 / moves wait / move all to elsewhere at 1 / +1s / A joins 1 / A acks 2 / purge \
         / wait 9s / jobs / crash / jobs / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    job 1 matches 6
            0s    append job 1 started
            1s    append moving 1 to elsewhere by job 1
            1s    asks for 1 to go to elsewhere
            1s    deliver 2#1 to A
            1s    append handed 2
            1s    A: acked
            1s    deliver 3#1 to A
            1s    append acked 2
            1s    append job 1 passes 2
            1s    append handed 3
            1s    purged 5
            1s    append purged through 6
            1s    append released before 7
            1s    append job 1 passes 3-6
            1s    append job 1 done
            10s   job 1: Move to elsewhere 0 of 6, 6 failed, done
            10s   append opened 2
            10s   job 1: Move to elsewhere 0 of 6, 6 failed, done
            10s   floor 6, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn what_was_replayed_is_moved_as_well() {
    check_both_ways(
        "elsewhere 99 / publish 3 / A joins 3 / A acks 2-3 / A parks 1 / A goodbye & replay all \
         / move all to elsewhere / jobs / crash / jobs / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: acked, acked
            0s    append acked 2-3
            0s    A: parked
            0s    append parked 1 by Nack
            0s    job 1 matches 1
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append job 1 done
            0s    job 2 matches 1
            0s    append job 2 started
            0s    append moving 1 to elsewhere by job 2
            0s    move 1 to elsewhere as 1 anew
            0s    append moved 1
            0s    append published 1 and 0 more in stream 2
            0s    append job 2 done
            0s    job 1: Replay 1 of 1, 0 failed, done
            0s    job 2: Move to elsewhere 1 of 1, 0 failed, done
            0s    append opened 2
            0s    job 1: Replay 1 of 1, 0 failed, done
            0s    job 2: Move to elsewhere 1 of 1, 0 failed, done
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_stream_that_is_full_holds_the_job_up_until_there_is_room() {
    check(
        "elsewhere 1 / publish 3 / move all to elsewhere / wait 3s / jobs / figures / elsewhere purge / wait 2s / jobs",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    job 1 matches 3
            0s    append job 1 started
            0s    append moving 1-3 to elsewhere by job 1
            0s    move 1 to elsewhere as 1 anew
            0s    cannot move 2: the stream has no room just now
            0s    cannot move 3: the stream has no room just now
            0s    append moved 1
            0s    append published 1 and 0 more in stream 2
            1s    cannot move 2: the stream has no room just now
            1s    cannot move 3: the stream has no room just now
            2s    cannot move 2: the stream has no room just now
            2s    cannot move 3: the stream has no room just now
            3s    cannot move 2: the stream has no room just now
            3s    cannot move 3: the stream has no room just now
            3s    job 1: Move to elsewhere 1 of 3, 0 failed, running
            3s    floor 1, lag 2, in flight 0, ready 0, waiting 0, parked 0
            3s    append purged through 1
            3s    append released before 2
            4s    checkpoint 1
            4s    move 2 to elsewhere as 2 anew
            4s    cannot move 3: the stream has no room just now
            4s    append moved 2
            4s    append published 2 and 0 more in stream 2
            5s    cannot move 3: the stream has no room just now
            5s    job 1: Move to elsewhere 2 of 3, 0 failed, running
        "#]],
    );
}

#[test]
fn a_group_that_keeps_acks_back_writes_them_before_a_job_starts() {
    check_both_ways(
        "set acks checkpoint / set checkpoint 60s 100 100 / elsewhere 99 / publish 4 / A joins 2 / A acks 1-2 \
         / A goodbye / move all to elsewhere / jobs / crash / jobs / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    deliver 1-2#1 to A
            0s    A: acked, acked
            0s    deliver 3-4#1 to A
            0s    append returned 3-4
            0s    job 1 matches 2
            0s    append acked 1-2
            0s    append job 1 started
            0s    append moving 3-4 to elsewhere by job 1
            0s    move 3 to elsewhere as 1 anew
            0s    move 4 to elsewhere as 2 anew
            0s    append moved 3
            0s    append published 1 and 0 more in stream 2
            0s    append moved 4
            0s    append published 2 and 0 more in stream 2
            0s    append job 1 done
            0s    job 1: Move to elsewhere 2 of 2, 0 failed, done
            0s    append opened 2
            0s    job 1: Move to elsewhere 2 of 2, 0 failed, done
            0s    floor 4, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn parked_messages_are_moved_by_a_job_and_leave_the_list_when_they_have_arrived() {
    check_both_ways(
        "elsewhere 99 / retries 0 / publish 1 2 3 / A joins 3 / A nacks 1 / A nacks 2 / A acks 3 / rescue all \
         / jobs / parked / figures / crash / jobs / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked
            0s    append parked 1 by Nack
            0s    A: parked
            0s    append parked 2 by Nack
            0s    A: acked
            0s    append acked 3
            0s    job 1 matches 2
            0s    append job 1 started
            0s    move 1 to elsewhere as 1 anew
            0s    move 2 to elsewhere as 2 anew
            0s    append discarded 1 by job 1
            0s    append published 1 and 0 more in stream 2
            0s    append discarded 2 by job 1
            0s    append published 2 and 0 more in stream 2
            0s    append job 1 done
            0s    job 1: Move parked to elsewhere 2 of 2, 0 failed, done
            0s    reasons: 
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
            0s    append opened 2
            0s    job 1: Move parked to elsewhere 2 of 2, 0 failed, done
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_parked_message_on_its_way_is_still_parked_after_a_crash_and_goes_then() {
    check_both_ways(
        "elsewhere 99 / retries 0 / publish 1 / A joins 1 / A nacks 1 / moves wait / rescue all / life 1 / crash \
         / jobs / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: parked
            0s    append parked 1 by Nack
            0s    job 1 matches 1
            0s    append job 1 started
            0s    asks for 1 to go to elsewhere
            0s    1: parked at 0ns, 1 attempts, failed [#1 A (no reason given)]
            0s    append opened 2
            0s    move 1 to elsewhere as 1 anew
            0s    append discarded 1 by job 1
            0s    append published 1 and 0 more in stream 2
            0s    append job 1 done
            0s    job 1: Move parked to elsewhere 1 of 1, 0 failed, done
            0s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_parked_message_that_is_replayed_on_its_way_is_not_moved() {
    check(
        "elsewhere 99 / retries 0 / publish 1 2 / A joins 2 / A nacks 1-2 / moves wait / rescue all / replay 1 \
         / moves go / jobs / figures",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: parked, parked
            0s    append parked 1 by Nack, 2 by Nack
            0s    job 1 matches 2
            0s    append job 1 started
            0s    asks for 1 to go to elsewhere
            0s    asks for 2 to go to elsewhere
            0s    job 2 matches 1
            0s    deliver 1#1 to A
            0s    append job 2 started
            0s    append replayed 1 by job 2
            0s    append handed 1
            0s    append job 2 done
            0s    cannot move 1: the message is not to be moved
            0s    move 2 to elsewhere as 1 anew
            0s    append discarded 2 by job 1
            0s    append published 1 and 0 more in stream 2
            0s    append job 1 passes 1
            0s    append job 1 done
            0s    job 1: Move parked to elsewhere 1 of 2, 1 failed, done
            0s    job 2: Replay 1 of 1, 0 failed, done
            0s    floor 2, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_job_that_moves_parked_messages_keeps_its_rate_and_can_be_cancelled() {
    check_both_ways(
        "elsewhere 99 / retries 0 / publish 1 2 3 / A joins 3 / A nacks 1-3 / rescue all at 1 / +1s / jobs / crash \
         / +1s / cancel 1 / +9s / jobs / parked",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked, parked, parked
            0s    append parked 1 by Nack, 2 by Nack, 3 by Nack
            0s    job 1 matches 3
            0s    append job 1 started
            1s    move 1 to elsewhere as 1 anew
            1s    append discarded 1 by job 1
            1s    append published 1 and 0 more in stream 2
            1s    job 1: Move parked to elsewhere 1 of 3, 0 failed, running
            1s    append opened 2
            2s    move 2 to elsewhere as 2 anew
            2s    append discarded 2 by job 1
            2s    append published 2 and 0 more in stream 2
            2s    append job 1 cancelled
            11s   job 1: Move parked to elsewhere 2 of 3, 0 failed, cancelled
            11s   parked 3 after 1: #1 A (no reason given)
            11s   reasons: 1 (no reason given)
        "#]],
    );
}

#[test]
fn parked_messages_stay_when_the_other_stream_has_no_room_or_is_gone() {
    check(
        "elsewhere 1 / retries 0 / publish 1 2 3 / A joins 3 / A nacks 1-3 / rescue all limit 2 / jobs / +3s / jobs \
         / elsewhere delete / +1s / jobs / parked",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked, parked, parked
            0s    append parked 1 by Nack, 2 by Nack, 3 by Nack
            0s    job 1 matches 2
            0s    append job 1 started
            0s    move 1 to elsewhere as 1 anew
            0s    cannot move 2: the stream has no room just now
            0s    append discarded 1 by job 1
            0s    append published 1 and 0 more in stream 2
            0s    job 1: Move parked to elsewhere 1 of 2, 0 failed, running
            3s    cannot move 2: the stream has no room just now
            3s    job 1: Move parked to elsewhere 1 of 2, 0 failed, running
            3s    append StreamDeleted { stream: StreamId(2), last: Ordinal(4) }
            4s    cannot move 2: the stream cannot take the message, which stays
            4s    append job 1 passes 2
            4s    append job 1 failed(nodestination)
            4s    job 1: Move parked to elsewhere 1 of 2, 1 failed, nodestination
            4s    parked 2 after 1: #1 A (no reason given)
            4s    parked 3 after 1: #1 A (no reason given)
            4s    reasons: 2 (no reason given)
        "#]],
    );
}

#[test]
fn a_key_is_free_when_its_parked_message_has_been_moved() {
    check(
        "elsewhere 99 / retries 0 / set strategy ordered / set hold / publish a a b b / A joins 4 / A nacks 1 \
         / A nacks 3 / rescue 1 / jobs",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    deliver 1#1 to A
            0s    deliver 3#1 to A
            0s    append handed 1, 3
            0s    A: parked
            0s    append parked 1 by Nack
            0s    A: parked
            0s    append parked 3 by Nack
            0s    job 1 matches 1
            0s    append job 1 started
            0s    move 1 to elsewhere as 1 anew
            0s    deliver 2#1 to A
            0s    append discarded 1 by job 1
            0s    append published 1 and 0 more in stream 2
            0s    append handed 2
            0s    append job 1 done
            0s    job 1: Move parked to elsewhere 1 of 1, 0 failed, done
        "#]],
    );
}

#[test]
fn a_group_moves_waiting_or_parked_messages_and_not_both_at_a_time() {
    check(
        "retries 0 / rescue all / elsewhere 99 / rescue all / publish 1 2 / A joins 2 / A nacks 1-2 / moves wait \
         / rescue 1 / rescue 2 / move all to elsewhere",
        expect![[r#"
            0s    refused: there is no such stream to move messages to, or it is the one they are in
            0s    append stream elsewhere created
            0s    refused: nothing is selected; expected `seqs`, `filter` or `all`
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: parked, parked
            0s    append parked 1 by Nack, 2 by Nack
            0s    job 1 matches 1
            0s    append job 1 started
            0s    asks for 1 to go to elsewhere
            0s    refused: another job moves messages of the group. job=`1`
            0s    refused: another job moves messages of the group. job=`1`
        "#]],
    );
}
