//! Messages that expire or are dropped, in groups that send them to another stream.

use super::*;

#[test]
fn a_message_that_expires_goes_to_another_stream() {
    check_both_ways(
        "set expired move / publish .-5s . / +5s / figures / crash / A joins 2",
        expect![[r#"
            5s    append expired 1, sent to elsewhere
            5s    move 1 to elsewhere as 1 anew
            5s    append stream elsewhere created
            5s    append moved 1
            5s    append published 1 and 0 more in stream 2
            5s    floor 1, lag 1, in flight 0, ready 1, waiting 0, parked 0
            5s    append opened 2
            5s    deliver 2#1 to A
            5s    append handed 2
        "#]],
    );
}

#[test]
fn an_expired_message_arrives_once_although_the_server_stops_on_the_way() {
    check_both_ways(
        "set expired move / publish .-5s .-5s . / moves wait / +5s / moving / life 1 / crash / figures / moving",
        expect![[r#"
            5s    append expired 1-2, sent to elsewhere
            5s    asks for 1 to go to elsewhere
            5s    asks for 2 to go to elsewhere
            5s    moving 2
            5s    1: moving, 0 attempts, failed []
            5s    append opened 2
            5s    move 1 to elsewhere as 1 anew
            5s    move 2 to elsewhere as 2 anew
            5s    append stream elsewhere created
            5s    append moved 1
            5s    append published 1 and 0 more in stream 2
            5s    append moved 2
            5s    append published 2 and 0 more in stream 2
            5s    floor 2, lag 1, in flight 0, ready 1, waiting 0, parked 0
            5s    moving 0
        "#]],
    );
}

#[test]
fn old_messages_end_in_one_stroke_and_some_of_them_are_asked_for_at_a_time() {
    let trace = trace("set expired move / set age 5s / publish 300 / moves wait / +6s / figures / moving");
    assert!(trace.contains("6s    append expired 1-300, sent to elsewhere\n"), "{trace}");
    assert!(trace.contains("6s    floor 300, lag 0, in flight 0, ready 0, waiting 0, parked 0\n"), "{trace}");
    assert!(trace.contains("6s    moving 300\n"), "{trace}");
    assert_eq!(trace.matches("asks for").count(), 256);
}

#[test]
fn messages_that_are_on_their_way_out_take_no_place_in_the_window_and_lock_no_key() {
    check(
        "set expired move / set window 2 / set strategy ordered / publish a-5s a-5s a / moves wait / A joins 5 \
         / A nacks 1 in 60s / +5s / figures / moving",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    append failed 1 until 60s
            5s    deliver 3#1 to A
            5s    append expired 1-2, sent to elsewhere
            5s    append handed 3
            5s    asks for 1 to go to elsewhere
            5s    floor 2, lag 1, in flight 1, ready 0, waiting 0, parked 0
            5s    moving 2
        "#]],
    );
}

#[test]
fn a_leased_message_goes_when_its_lease_is_over_and_keeps_its_count() {
    check(
        "set expired move / publish .-5s / A joins 1 / +6s / moving / A nacks 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            6s    moving 0
            6s    A: expired
            6s    append expired 1, sent to elsewhere
            6s    move 1 to elsewhere as 1
            6s    append stream elsewhere created
            6s    append moved 1
            6s    append published 1 and 0 more in stream 2
            6s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_full_stream_sends_what_it_drops_to_another() {
    check_both_ways(
        "set dropped move / set limit 3 drop / publish 3 / publish 2 / stream / figures / crash / stream",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    append dropped 1-2, sent to elsewhere
            0s    move 1 to elsewhere as 1 anew
            0s    move 2 to elsewhere as 2 anew
            0s    append stream elsewhere created
            0s    append moved 1
            0s    append published 1 and 0 more in stream 2
            0s    append moved 2
            0s    append published 2 and 0 more in stream 2
            0s    stream 1 to 5, holds 3 of 300 bytes, delayed 0
            0s    floor 2, lag 3, in flight 0, ready 3, waiting 0, parked 0
            0s    append opened 2
            0s    stream 1 to 5, holds 3 of 300 bytes, delayed 0
        "#]],
    );
}

#[test]
fn messages_that_are_dropped_before_they_are_durable_go_as_soon_as_they_are() {
    check(
        "set dropped move / set limit 3 drop / publish 3 unsynced / publish 2 unsynced / moving / sync / moving",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    append dropped 1-2, sent to elsewhere
            0s    moving 2
            0s    move 1 to elsewhere as 1 anew
            0s    move 2 to elsewhere as 2 anew
            0s    append stream elsewhere created
            0s    append moved 1
            0s    append published 1 and 0 more in stream 2
            0s    append moved 2
            0s    append published 2 and 0 more in stream 2
            0s    moving 0
        "#]],
    );
}

#[test]
fn messages_that_wait_to_be_moved_do_not_fill_the_stream() {
    check(
        "set dropped move / elsewhere 1 / set limit 2 drop / publish 2 / publish 2 / publish 2 / stream / moving \
         / elsewhere purge / wait 2s / moving / stream",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream elsewhere created
            0s    append stream changed
            0s    append dropped 1-2, sent to elsewhere
            0s    move 1 to elsewhere as 1 anew
            0s    cannot move 2: the stream has no room just now
            0s    append moved 1
            0s    append published 1 and 0 more in stream 2
            0s    append dropped 3-4, sent to elsewhere
            0s    cannot move 3: the stream has no room just now
            0s    cannot move 4: the stream has no room just now
            0s    stream 1 to 6, holds 2 of 200 bytes, delayed 0
            0s    moving 3
            0s    append purged through 1
            0s    append released before 2
            1s    move 2 to elsewhere as 2 anew
            1s    cannot move 3: the stream has no room just now
            1s    cannot move 4: the stream has no room just now
            1s    append moved 2
            1s    append published 2 and 0 more in stream 2
            2s    cannot move 3: the stream has no room just now
            2s    cannot move 4: the stream has no room just now
            2s    moving 2
            2s    stream 1 to 6, holds 2 of 200 bytes, delayed 0
        "#]],
    );
}

#[test]
fn what_an_operator_purges_goes_nowhere() {
    check(
        "set dropped move / set expired move / publish 2 / purge / publish .-5s / moves wait / +5s / moving / purge \
         / moving / moves go",
        expect![[r#"
            0s    purged 2
            0s    append purged through 2
            0s    append released before 3
            5s    append expired 3, sent to elsewhere
            5s    asks for 3 to go to elsewhere
            5s    moving 1
            5s    purged 0
            5s    append purged through 3
            5s    append released before 4
            5s    moving 0
            5s    cannot move 3: the message is not to be moved
        "#]],
    );
}

#[test]
fn a_reset_does_not_stop_what_is_on_its_way_out() {
    check_both_ways(
        "set expired move / publish .-5s . / moves wait / +5s / reset 1 / moving / A joins 5 / crash / figures",
        expect![[r#"
            5s    append expired 1, sent to elsewhere
            5s    asks for 1 to go to elsewhere
            5s    append reset to 0
            5s    asks for 1 to go to elsewhere
            5s    moving 1
            5s    read 2
            5s    deliver 2#1 to A
            5s    append handed 2
            5s    append opened 2
            5s    move 1 to elsewhere as 1 anew
            5s    append stream elsewhere created
            5s    append moved 1
            5s    append published 1 and 0 more in stream 2
            5s    floor 1, lag 1, in flight 0, ready 1, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_message_that_cannot_go_is_parked() {
    check(
        "limit streams 1 / set expired move / publish .-5s / +5s / parked / figures",
        expect![[r#"
        5s    append expired 1, sent to elsewhere
        5s    cannot move 1: the stream cannot take the message
        5s    append parked 1 by Nack
        5s    parked 1 after 0: #0 ? cannot be moved to elsewhere: too many streams or groups. limit=`1`
        5s    reasons: 1 cannot be moved to elsewhere: too many streams or groups. limit=`1`
        5s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 1
    "#]],
    );
}

#[test]
fn each_group_sends_its_own() {
    check(
        "set expired move / publish .-5s / A joins 1 / a joins 1 / A acks 1 / +6s / a nacks 1 / figures \
         / figures of others",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    read 1
            0s    deliver 1#1 to a
            0s    append others handed 1
            0s    A: acked
            0s    append acked 1
            6s    a: expired
            6s    append others expired 1, sent to elsewhere
            6s    move 1 to elsewhere as 1
            6s    append stream elsewhere created
            6s    append others moved 1
            6s    append published 1 and 0 more in stream 2
            6s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
            6s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}
