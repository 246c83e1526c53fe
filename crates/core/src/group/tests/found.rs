//! What the reference model has found, each as the shortest story that shows it.

use super::*;
use crate::types::IdHash;

#[test]
fn an_empty_stream_that_was_purged_can_be_opened_again() {
    check(
        "purge / crash / A joins 1 / publish 1",
        expect![[r#"
            0s    purged 0
            0s    append purged through 0
            0s    append opened 2
            0s    deliver 1#1 to A
            0s    append handed 1
        "#]],
    );
}

#[test]
fn what_has_expired_is_not_offered_after_a_reset() {
    check(
        "publish .-1s . / +2s / reset beginning / A joins 2 / figures",
        expect![[r#"
            2s    append expired 1
            2s    append reset to 0
            2s    append expired 1
            2s    read 1-2
            2s    deliver 2#1 to A
            2s    append handed 2
            2s    floor 1, lag 1, in flight 1, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_group_that_looks_at_keys_keeps_its_window() {
    check(
        "set strategy pinned / set window 2 / publish a b c d / A joins 9 / A nacks 1 in 5s / A acks 2 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    append handed 1-2
            0s    A: retrying
            0s    append failed 1 until 5s
            0s    A: acked
            0s    append acked 2
            0s    read 3-4
            0s    deliver 3#1 to A
            0s    append handed 3
            0s    floor 0, lag 3, in flight 1, ready 0, waiting 1, parked 0
        "#]],
    );
}

#[test]
fn what_is_parked_counts_for_the_stream_after_a_purge() {
    check(
        "set limit 2 reject / A joins 2 / publish 2 / A parks 1-2 / purge / publish 1",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: parked, parked
            0s    append parked 1 by Nack, 2 by Nack
            0s    purged 0
            0s    append purged through 2
            0s    refused: the stream is full. messages=`2` bytes=`200`
        "#]],
    );
}

#[test]
fn an_id_that_comes_twice_in_a_batch_takes_room_once() {
    let mut stage = Stage::new();
    stage.play("set limit 2 reject");
    let same = MessageMeta { id: Some(IdHash(7)), ..MessageMeta::plain(100) };
    let (batch, options) = ([same, MessageMeta::plain(100), same], PublishOptions::default());
    let stored = stage.shard.publish(stage.now, stage.stream, &batch, options, &mut Vec::new());
    assert_eq!(stored, Ok(Some(SeqRange::new(Seq(1), Seq(2)))));
}

#[test]
fn a_reset_takes_the_checkpoint_along() {
    let mut stage = Stage::new();
    for step in ["A joins 3", "publish 3", "A acks 1-3", "+2s", "+2s", "reset 2"] {
        stage.play(step);
    }
    let group = stage.group();
    let figures = stage.shard.figures(stage.now, group).expect("the group exists");
    assert_eq!((figures.floor, figures.checkpoint), (Seq(1), Seq(1)));
}

#[test]
fn a_failed_first_attempt_counts_after_a_crash_where_leases_are_not_written() {
    check(
        "set acks checkpoint / publish 2 / A joins 2 / A nacks 1 / A parks 2 / crash / parked / B joins 1 / +1s",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    A: retrying
            0s    append failed 1 until 0.1s
            0s    A: parked
            0s    append parked 2 by Nack
            0s    append opened 2
            0s    parked 2 after 1: #1 A (no reason given)
            0s    reasons: 1 (no reason given)
            1s    deliver 1#2 to B
            1s    append handed 1
        "#]],
    );
}

#[test]
fn a_new_message_of_a_high_priority_follows_one_that_is_offered_again() {
    check(
        "publish . .!9 / A joins 2 / A lost / publish .!9 / B joins 3",
        expect![[r#"
            0s    deliver 2#1 to A
            0s    deliver 1#1 to A
            0s    append handed 2, 1
            0s    deliver 2#2 to B
            0s    deliver 3#1 to B
            0s    deliver 1#2 to B
            0s    append handed 2-3, 1
        "#]],
    );
}

#[test]
fn a_full_window_is_offered_again_after_a_restart() {
    let mut stage = Stage::new();
    for step in ["set strategy pinned", "set window 2", "publish a b c", "A joins 2"] {
        stage.play(step);
    }
    // A restart after which the group asks for what it needs, rather than being told everything.
    let mut shard = Shard::new(Limits::DEFAULT);
    for (n, frame) in stage.log.iter().enumerate() {
        for entry in entries(frame) {
            shard.apply(Position(n as u64 + 1), &entry.expect("a good entry")).expect("entries fit");
        }
    }
    shard.open(stage.now, Epoch(2));
    stage.shard = shard;
    stage.trace.clear();
    stage.play("B joins 2");
    expect![[r#"
        0s    append opened 2
        0s    read 1-3
        0s    deliver 1#2 to B
        0s    deliver 2#2 to B
        0s    append handed 1-2
    "#]]
    .assert_eq(&stage.trace);
}

#[test]
fn what_was_purged_stays_gone_after_a_crash_beside_something_parked() {
    check(
        "A joins 1 / publish 3 / A parks 1 / A lost / purge / crash / reset beginning / B joins 9 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: parked
            0s    deliver 2#1 to A
            0s    append parked 1 by Nack
            0s    append handed 2
            0s    purged 2
            0s    append purged through 3
            0s    append opened 2
            0s    append reset to 3
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 1
        "#]],
    );
}

#[test]
fn what_expires_on_offer_is_taken_off_it_where_keys_take_turns() {
    check(
        "set strategy ordered / set fair / A joins 1 / publish a b-1s / +2s / A acks 1 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            2s    append expired 2
            2s    A: acked
            2s    append acked 1
            2s    floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn acks_that_were_kept_back_are_written_when_the_setting_changes() {
    check(
        "set acks checkpoint / publish 1 / A joins 1 / A acks 1 / set acks journal",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    A: acked
            0s    append acked 1
            0s    append group changed
        "#]],
    );
}

#[test]
fn what_is_too_old_does_not_count_for_a_stream_that_becomes_a_log() {
    let mut stage = Stage::new();
    for step in ["set age 2s", "publish 1", "+10s", "set log 20", "publish 1"] {
        stage.play(step);
    }
    let figures = stage.shard.stream_figures(stage.now, stage.stream).expect("the stream exists");
    assert_eq!(figures.messages, 1);
}

#[test]
fn the_window_holds_where_there_are_priorities() {
    check(
        "set window 2 / publish .!3 . . .!9 / A joins 9 / A nacks 4 in 1s / publish .!9 / A acks 1 / +1s",
        expect![[r#"
            0s    deliver 4#1 to A
            0s    deliver 1#1 to A
            0s    append handed 4, 1
            0s    A: retrying
            0s    append failed 4 until 1s
            0s    A: acked
            0s    deliver 5#1 to A
            0s    append acked 1
            0s    append handed 5
            1s    deliver 4#2 to A
            1s    append handed 4
        "#]],
    );
}

#[test]
fn notes_expire_by_themselves_after_a_restart() {
    let mut stage = Stage::new();
    let expires = Some(stage.now + Duration::from_secs(2));
    let any = crate::notes::Expected::Any;
    stage.shard.put_note(stage.now, 1, b"key", b"value", any, expires).expect("a good note");
    stage.play("publish 1");
    stage.play("crash");
    assert_eq!(stage.shard.wake_at(), expires);
}

#[test]
fn bytes_that_are_held_count_when_credit_begins_to_ask_for_them() {
    let mut stage = Stage::new();
    stage.play("publish 4");
    stage.play("A joins 2");
    let (group, now) = (stage.group(), stage.now);
    let credit = Credit::Slots { messages: 9, bytes: Some(200) };
    stage.shard.credit(now, group, ConsumerId('A'.into()), credit).expect("a member");
    stage.finish_turn();
    let figures = stage.shard.figures(now, group).expect("the group exists");
    assert_eq!(figures.in_flight, 2);
}

#[test]
fn messages_of_a_full_consumer_do_not_keep_a_pinned_group_from_reading_on() {
    check(
        "set strategy pinned / buffer 1 / A joins 1 / B joins 9 / publish a / publish a / publish a / publish . ",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    deliver 4#1 to B
            0s    append handed 4
        "#]],
    );
}

#[test]
fn what_a_log_has_let_go_of_is_not_offered_after_a_restart() {
    check(
        "set log 2 / A joins 1 / publish 1 / publish 2 / crash / B joins 1",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    append released before 2
            0s    append opened 2
            0s    append expired 1
            0s    deliver 2#1 to B
            0s    append handed 2
        "#]],
    );
}

#[test]
fn what_was_too_old_to_stay_parked_is_not_replayed_by_a_crash() {
    check(
        "set parked age 20s / A joins 1 / publish 2 / A parks 1 / replay all at 1 / A lost / +30s / crash / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: parked
            0s    deliver 2#1 to A
            0s    append parked 1 by Nack
            0s    append handed 2
            0s    job 1 matches 1
            0s    append job 1 started
            30s   append discarded 1 by job 0
            30s   append replayed 1 by job 1
            30s   append job 1 done
            30s   append opened 2
            30s   floor 1, lag 1, in flight 0, ready 1, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn what_is_parked_counts_for_a_stream_that_was_a_log() {
    let mut stage = Stage::new();
    for step in ["set log 1", "A joins 1", "publish 1", "A parks 1", "A lost", "publish 2", "purge"] {
        stage.play(step);
    }
    stage.stream_settings.retention = Retention::Work;
    let settings = stage.stream_settings.clone();
    stage.shard.change_stream(stage.now, stage.stream, &settings).expect("good settings");
    stage.finish_turn();
    let figures = stage.shard.stream_figures(stage.now, stage.stream).expect("the stream exists");
    assert_eq!(figures.messages, 1);
}

#[test]
fn a_replayed_message_waits_for_a_lease_of_its_key_from_before_a_restart() {
    let mut stage = Stage::new();
    for step in ["set strategy ordered", "publish a a", "P polls 1", "P parks 1", "P polls 1"] {
        stage.play(step);
    }
    let mut shard = Shard::new(Limits::DEFAULT);
    for (n, frame) in stage.log.iter().enumerate() {
        for entry in entries(frame) {
            shard.apply(Position(n as u64 + 1), &entry.expect("a good entry")).expect("entries fit");
        }
    }
    shard.open(stage.now, Epoch(2));
    stage.shard = shard;
    stage.trace.clear();
    stage.turn_goes_on = true;
    stage.play("A joins 2");
    stage.turn_goes_on = false;
    stage.play("replay all");
    stage.play("+30s");
    expect![[r#"
        0s    job 1 matches 1
        0s    append opened 2
        0s    append job 1 started
        0s    append replayed 1 by job 1
        0s    append job 1 done
        0s    read 2
        30s   deliver 1#1 to A
        30s   append failed 2 until 30.1s
        30s   append handed 1
    "#]]
    .assert_eq(&stage.trace);
}

#[test]
fn what_was_replayed_before_it_was_looked_at_again_is_not_passed_over() {
    let mut stage = Stage::new();
    for step in ["set strategy ordered", "buffer 1", "publish 4", "A joins 3", "A parks 3"] {
        stage.play(step);
    }
    let mut shard = Shard::new(Limits::DEFAULT);
    for (n, frame) in stage.log.iter().enumerate() {
        for entry in entries(frame) {
            shard.apply(Position(n as u64 + 1), &entry.expect("a good entry")).expect("entries fit");
        }
    }
    shard.open(stage.now, Epoch(2));
    stage.shard = shard;
    stage.play("replay all");
    stage.trace.clear();
    stage.play("B joins 9");
    expect![[r#"
        0s    read 1
        0s    read 2
        0s    read 3
        0s    read 4
        0s    deliver 1-2#2 to B
        0s    deliver 3#1 to B
        0s    deliver 4#2 to B
        0s    append handed 1-4
    "#]]
    .assert_eq(&stage.trace);
}

#[test]
fn making_room_in_a_log_does_not_bring_back_what_was_too_old() {
    let mut stage = Stage::new();
    for step in
        ["set age 2s", "publish 4", "+10s", "publish 2", "set log 20", "set limit 3 drop", "publish 2"]
    {
        stage.play(step);
    }
    let kept = stage.shard.readable(stage.stream);
    assert_eq!(kept, Some(SeqRange::new(Seq(6), Seq(8))));
}

#[test]
fn what_becomes_due_waits_while_the_window_is_full() {
    check(
        "set window 1 / A joins 3 / publish . .+1s . / +1s / A acks 1",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            1s    A: acked
            1s    deliver 2#1 to A
            1s    append acked 1
            1s    append handed 2
        "#]],
    );
}

#[test]
fn one_who_left_is_named_by_its_last_answer() {
    check(
        "publish 1 / A joins 1 / A lost & A parks 1 because bad / parked",
        expect![[r#"
        0s    deliver 1#1 to A
        0s    append handed 1
        0s    A: parked
        0s    append parked 1 by Nack
        0s    parked 1 after 1: #1 A bad
        0s    reasons: 1 bad
    "#]],
    );
}

#[test]
fn one_who_is_full_of_bytes_does_not_keep_a_pinned_group_from_reading_on() {
    check(
        "set strategy pinned / buffer 1 / A joins 4 and 150B / publish a / publish a / publish . / B joins 1",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    read 3
            0s    deliver 3#1 to B
            0s    append handed 3
        "#]],
    );
}

#[test]
fn a_small_message_of_a_higher_priority_reaches_one_for_whom_the_first_is_too_large() {
    check(
        "A joins 4 and 150B / publish .@100 .@100 / +1s / publish .!9@20",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            1s    deliver 3#1 to A
            1s    append handed 3
        "#]],
    );
}

#[test]
fn no_lower_priority_goes_while_there_is_more_of_a_higher_one_ahead() {
    let mut stage = Stage::new();
    let many = " .!4".repeat(300);
    for step in ["publish 300".to_owned(), format!("publish{many}"), "A joins 400".to_owned()] {
        stage.play(&step);
    }
    expect![[r#"
        0s    deliver 301-364#1 to A
        0s    deliver 365-428#1 to A
        0s    deliver 429-492#1 to A
        0s    deliver 493-556#1 to A
        0s    deliver 557-600#1 to A
        0s    deliver 1-20#1 to A
        0s    deliver 21-100#1 to A
        0s    append handed 301-600, 1-100
    "#]]
    .assert_eq(&stage.trace);
}

#[test]
fn what_a_log_lets_go_of_does_not_hide_what_has_its_priority() {
    check(
        "set log 3 / set timeout 400s / publish .!3 / A joins 1 / B joins 1 / publish . / A lost & pause \
         / publish . / publish .!3 / resume / publish . / +300s / B acks 2",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    deliver 2#1 to B
            0s    append handed 2
            0s    append paused
            0s    append released before 2
            0s    append expired 1
            0s    append resumed
            0s    append released before 3
            300s  B: acked
            300s  deliver 4#1 to B
            300s  append acked 2
            300s  append handed 4
        "#]],
    );
}

#[test]
fn a_late_ack_in_the_turn_of_the_nack_is_the_last_word() {
    check(
        "publish 1 / P polls 1 / P nacks 1 & P acks late 1 & +1s / crash / figures",
        expect![[r#"
            0s    deliver 1#1 to P when durable
            0s    append leased 1 for 30s
            0s    P: retrying
            0s    P: acked
            1s    append failed 1 until 0.1s
            1s    append acked 1
            1s    append opened 2
            1s    floor 1, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn what_fills_the_window_is_looked_for_after_a_restart_whatever_is_on_offer() {
    check(
        "set fair / set window 1 / buffer 1 / publish .+5s . / A joins 1 / +5s / crash / B joins 1",
        expect![[r#"
            0s    deliver 2#1 to A
            0s    append handed 2
            5s    read 1
            5s    append opened 2
            5s    deliver 2#2 to B
            5s    append handed 2
        "#]],
    );
}

#[test]
fn one_who_counts_bytes_is_served_when_the_pace_lets_more_go() {
    check(
        "set strategy ordered / set fair / set batch 4 / set rate 40 5 / publish . . . a . a a \
         / A joins 5 / B joins 1 and 50B / +200ms / +25ms",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    deliver 4#1 to A
            0s    deliver 6#1 to A
            0s    deliver 7#1 to A
            0s    deliver 2#1 to A
            0s    append handed 1, 4, 6-7, 2
            0.2s  deliver 3#1 to B
            0.2s  append handed 3
        "#]],
    );
}

#[test]
fn what_was_replayed_after_a_log_let_go_of_it_does_not_make_the_rest_young() {
    check(
        "set log 4 / set step 1s / publish 4 / A joins 1 / A parks 1 / A lost / +30s / publish . .!3 / replay all \
         / B joins 3",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: parked
            0s    deliver 2#1 to A
            0s    append parked 1 by Nack
            0s    append handed 2
            30s   append released before 3
            30s   append expired 2
            30s   job 1 matches 1
            30s   append job 1 started
            30s   append replayed 1 by job 1
            30s   append job 1 done
            30s   deliver 1#1 to B
            30s   deliver 3-4#1 to B
            30s   append handed 1, 3-4
        "#]],
    );
}

#[test]
fn what_makes_room_is_written_before_that_is_let_go() {
    check(
        "set limit 1 drop / publish .+60s / A joins 0 / publish . & release & +1s / crash / stream",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    append stream changed
            1s    append dropped 1
            1s    append released before 2
            1s    append opened 2
            1s    stream 2 to 2, holds 1 of 100 bytes, delayed 0
        "#]],
    );
}

#[test]
fn a_purge_does_not_count_what_the_one_before_it_took() {
    check(
        "publish 1 / A joins 1 / A parks 1 / replay all / purge & purge & +1s / stream",
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
        0s    purged 1
        0s    purged 0
        1s    append purged through 1
        1s    append released before 2
        1s    append purged through 1
        1s    stream 2 to 1, holds 0 of 0 bytes, delayed 0
    "#]],
    );
}

#[test]
fn a_job_leaves_alone_what_was_parked_again_since_it_began() {
    check(
        "publish 2 / A joins 2 / A parks 1-2 / replay all at 1 / +100ms / replay 2 / A parks 2 / +1s / +1s / jobs",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: parked, parked
            0s    append parked 1 by Nack, 2 by Nack
            0s    job 1 matches 2
            0s    append job 1 started
            0.1s  job 2 matches 1
            0.1s  deliver 2#1 to A
            0.1s  append job 2 started
            0.1s  append replayed 2 by job 2
            0.1s  append handed 2
            0.1s  append job 2 done
            0.1s  A: parked
            0.1s  append parked 2 by Nack
            1.1s  deliver 1#1 to A
            1.1s  append replayed 1 by job 1
            1.1s  append handed 1
            2.1s  append replayed 2 by job 1
            2.1s  append job 1 done
            2.1s  job 1: Replay 1 of 2, 1 failed, done
            2.1s  job 2: Replay 1 of 1, 0 failed, done
        "#]],
    );
}
