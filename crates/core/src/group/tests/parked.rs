//! Parked messages: replaying, discarding, and how many there may be.

use std::collections::BTreeSet;

use super::*;
use crate::entry::Failure;

#[test]
fn everything_parked_is_replayed() {
    check_both_ways(
        "publish 3 / A joins 3 / A parks 1 because bad / A parks 2 because worse \
         / A parks 3 because bad / replay all / jobs / figures / crash / jobs / figures / B joins 9",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked
            0s    append parked 1 by Nack
            0s    A: parked
            0s    append parked 2 by Nack
            0s    A: parked
            0s    append parked 3 by Nack
            0s    job 1 matches 3
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    deliver 3#1 to A
            0s    append job 1 started
            0s    append replayed 1-3 by job 1
            0s    append handed 1-3
            0s    append job 1 done
            0s    job 1: Replay 3 of 3, 0 failed, done
            0s    floor 3, lag 3, in flight 3, ready 0, waiting 0, parked 0
            0s    append opened 2
            0s    job 1: Replay 3 of 3, 0 failed, done
            0s    floor 3, lag 3, in flight 0, ready 3, waiting 0, parked 0
            0s    deliver 1#2 to B
            0s    deliver 2#2 to B
            0s    deliver 3#2 to B
            0s    append handed 1-3
        "#]],
    );
}

#[test]
fn parked_messages_are_replayed_by_reason() {
    check(
        "publish 3 / A joins 3 / A parks 1 because bad / A parks 2 because worse \
         / A parks 3 because bad / A credit 0 / replay bad / jobs / parked / figures / replay bad",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked
            0s    append parked 1 by Nack
            0s    A: parked
            0s    append parked 2 by Nack
            0s    A: parked
            0s    append parked 3 by Nack
            0s    job 1 matches 2
            0s    append job 1 started
            0s    append replayed 1, 3 by job 1
            0s    append job 1 done
            0s    job 1: Replay 2 of 2, 0 failed, done
            0s    parked 2 after 1: #1 A worse
            0s    reasons: 1 worse
            0s    floor 3, lag 2, in flight 0, ready 2, waiting 0, parked 1
            0s    refused: nothing is selected; expected `seqs`, `filter` or `all`
        "#]],
    );
}

#[test]
fn parked_messages_are_replayed_by_position() {
    check(
        "publish 5 / A joins 5 / A parks 1-5 because bad / A credit 0 / replay 2-3 / parked \
         / replay 2-3 / replay 1-9 limit 2 / parked / figures",
        expect![[r#"
            0s    deliver 1-5#1 to A
            0s    append handed 1-5
            0s    A: parked, parked, parked, parked, parked
            0s    append parked 1 by Nack, 2 by Nack, 3 by Nack, 4 by Nack, 5 by Nack
            0s    job 1 matches 2
            0s    append job 1 started
            0s    append replayed 2-3 by job 1
            0s    append job 1 done
            0s    parked 1 after 1: #1 A bad
            0s    parked 4 after 1: #1 A bad
            0s    parked 5 after 1: #1 A bad
            0s    reasons: 3 bad
            0s    refused: nothing is selected; expected `seqs`, `filter` or `all`
            0s    job 2 matches 2
            0s    append job 2 started
            0s    append replayed 1, 4 by job 2
            0s    append job 2 done
            0s    parked 5 after 1: #1 A bad
            0s    reasons: 1 bad
            0s    floor 5, lag 4, in flight 0, ready 4, waiting 0, parked 1
        "#]],
    );
}

#[test]
fn a_replayed_message_counts_its_attempts_anew_and_keeps_its_history() {
    check(
        "retries 1 / publish 1 / A joins 1 / A nacks 1 because one / wait 1s / A nacks 1 because two \
         / replay all / A nacks 1 because three / wait 1s / A nacks 1 because four / parked",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: retrying
            0s    append failed 1 until 0.1s
            0.1s  deliver 1#2 to A
            0.1s  append handed 1
            1s    A: parked
            1s    append parked 1 by Nack
            1s    job 1 matches 1
            1s    deliver 1#1 to A
            1s    append job 1 started
            1s    append replayed 1 by job 1
            1s    append handed 1
            1s    append job 1 done
            1s    A: retrying
            1s    append failed 1 until 1.1s
            1.1s  deliver 1#2 to A
            1.1s  append handed 1
            2s    A: parked
            2s    append parked 1 by Nack
            2s    parked 1 after 2: #1 A one; #2 A two; #1 A three; #2 A four
            2s    reasons: 1 four
        "#]],
    );
}

#[test]
fn a_replay_at_a_rate_goes_on_after_a_crash() {
    check_both_ways(
        "publish 4 / A joins 4 / A parks 1-4 because bad / replay all at 1 / jobs / wait 1s / jobs \
         / crash / jobs / B joins 9 / wait 1s / wait 2s / jobs / figures",
        expect![[r#"
            0s    deliver 1-4#1 to A
            0s    append handed 1-4
            0s    A: parked, parked, parked, parked
            0s    append parked 1 by Nack, 2 by Nack, 3 by Nack, 4 by Nack
            0s    job 1 matches 4
            0s    append job 1 started
            0s    job 1: Replay 0 of 4, 0 failed, running
            1s    deliver 1#1 to A
            1s    append replayed 1 by job 1
            1s    append handed 1
            1s    job 1: Replay 1 of 4, 0 failed, running
            1s    append opened 2
            1s    job 1: Replay 1 of 4, 0 failed, running
            1s    deliver 1#2 to B
            1s    append handed 1
            2s    deliver 2#1 to B
            2s    append replayed 2 by job 1
            2s    append handed 2
            3s    deliver 3#1 to B
            3s    append replayed 3 by job 1
            3s    append handed 3
            4s    deliver 4#1 to B
            4s    append replayed 4 by job 1
            4s    append handed 4
            4s    append job 1 done
            4s    job 1: Replay 4 of 4, 0 failed, done
            4s    floor 4, lag 4, in flight 4, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn a_replay_can_be_cancelled() {
    check_both_ways(
        "publish 4 / A joins 4 / A parks 1-4 because bad / replay all at 1 / wait 2s / cancel 1 \
         / jobs / wait 5s / crash / jobs / figures / cancel 1 / cancel 9",
        expect![[r#"
            0s    deliver 1-4#1 to A
            0s    append handed 1-4
            0s    A: parked, parked, parked, parked
            0s    append parked 1 by Nack, 2 by Nack, 3 by Nack, 4 by Nack
            0s    job 1 matches 4
            0s    append job 1 started
            1s    deliver 1#1 to A
            1s    append replayed 1 by job 1
            1s    append handed 1
            2s    deliver 2#1 to A
            2s    append replayed 2 by job 1
            2s    append handed 2
            2s    append job 1 cancelled
            2s    job 1: Replay 2 of 4, 0 failed, cancelled
            4s    checkpoint 4
            7s    append opened 2
            7s    job 1: Replay 2 of 4, 0 failed, cancelled
            7s    floor 4, lag 2, in flight 0, ready 2, waiting 0, parked 2
            7s    refused: no such job, or it has ended. job=`1`
            7s    refused: no such job, or it has ended. job=`9`
        "#]],
    );
}

#[test]
fn a_job_is_about_what_was_parked_when_it_began() {
    check(
        "publish 3 / A joins 3 / A parks 1-2 because bad / replay all at 1 / A parks 3 because bad \
         / discard 2 / wait 5s / jobs / figures",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked, parked
            0s    append parked 1 by Nack, 2 by Nack
            0s    job 1 matches 2
            0s    append job 1 started
            0s    A: parked
            0s    append parked 3 by Nack
            0s    job 2 matches 1
            0s    append job 2 started
            0s    append discarded 2 by job 2
            0s    append job 2 done
            1s    deliver 1#1 to A
            1s    append replayed 1 by job 1
            1s    append handed 1
            2s    append replayed 2 by job 1
            2s    append job 1 done
            4s    checkpoint 3
            5s    job 1: Replay 1 of 2, 1 failed, done
            5s    job 2: Discard 1 of 1, 0 failed, done
            5s    floor 3, lag 1, in flight 1, ready 0, waiting 0, parked 1
        "#]],
    );
}

#[test]
fn a_replay_of_a_message_that_is_discarded_meanwhile_counts_it_as_failed() {
    check(
        "publish 3 / A joins 3 / A parks 1-3 because bad / replay all at 1 & discard 3 / wait 3s \
         / jobs / figures",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked, parked, parked
            0s    append parked 1 by Nack, 2 by Nack, 3 by Nack
            0s    job 1 matches 3
            0s    job 2 matches 1
            0s    append job 1 started
            0s    append job 2 started
            0s    append discarded 3 by job 2
            0s    append job 2 done
            1s    deliver 1#1 to A
            1s    append replayed 1 by job 1
            1s    append handed 1
            2s    deliver 2#1 to A
            2s    append replayed 2 by job 1
            2s    append handed 2
            3s    append replayed 3 by job 1
            3s    append job 1 done
            3s    job 1: Replay 2 of 3, 1 failed, done
            3s    job 2: Discard 1 of 1, 0 failed, done
            3s    floor 3, lag 2, in flight 2, ready 0, waiting 0, parked 0
        "#]],
    );
}

#[test]
fn discarded_messages_are_gone() {
    check_both_ways(
        "publish 3 / A joins 3 / A parks 1-3 because bad / discard 2 / parked / discard all / parked \
         / figures / crash / jobs / figures / stream",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked, parked, parked
            0s    append parked 1 by Nack, 2 by Nack, 3 by Nack
            0s    job 1 matches 1
            0s    append job 1 started
            0s    append discarded 2 by job 1
            0s    append job 1 done
            0s    parked 1 after 1: #1 A bad
            0s    parked 3 after 1: #1 A bad
            0s    reasons: 2 bad
            0s    job 2 matches 2
            0s    append job 2 started
            0s    append discarded 1, 3 by job 2
            0s    append job 2 done
            0s    reasons: 
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
            0s    append opened 2
            0s    job 1: Discard 1 of 1, 0 failed, done
            0s    job 2: Discard 2 of 2, 0 failed, done
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 0
            0s    stream 1 to 3, holds 0 of 0 bytes, delayed 0
        "#]],
    );
}

#[test]
fn an_empty_selection_is_refused() {
    check(
        "publish 3 / A joins 3 / replay all / replay bad / discard 1-3 / A parks 1 because bad \
         / replay worse / replay 2-3 / jobs",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    refused: nothing is selected; expected `seqs`, `filter` or `all`
            0s    refused: nothing is selected; expected `seqs`, `filter` or `all`
            0s    refused: nothing is selected; expected `seqs`, `filter` or `all`
            0s    A: parked
            0s    append parked 1 by Nack
            0s    refused: nothing is selected; expected `seqs`, `filter` or `all`
            0s    refused: nothing is selected; expected `seqs`, `filter` or `all`
        "#]],
    );
}

#[test]
fn a_job_of_no_messages_is_refused() {
    check(
        "publish 1 / A joins 1 / A parks 1 because bad / replay all limit 0 / jobs",
        expect![[r#"
        0s    deliver 1#1 to A
        0s    append handed 1
        0s    A: parked
        0s    append parked 1 by Nack
        0s    refused: nothing is selected; expected `seqs`, `filter` or `all`
    "#]],
    );
}

#[test]
fn a_group_with_as_many_parked_messages_as_it_may_have_hands_out_nothing() {
    check(
        "set parked 2 / publish 5 / A joins 1 / A parks 1 / A parks 2 / status / publish 1 / figures \
         / discard 1 / status / A acks 3 / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: parked
            0s    deliver 2#1 to A
            0s    append parked 1 by Nack
            0s    append handed 2
            0s    A: parked
            0s    append parked 2 by Nack
            0s    ParkedFull
            0s    floor 2, lag 4, in flight 0, ready 4, waiting 0, parked 2
            0s    job 1 matches 1
            0s    deliver 3#1 to A
            0s    append job 1 started
            0s    append discarded 1 by job 1
            0s    append handed 3
            0s    append job 1 done
            0s    Live
            0s    A: acked
            0s    deliver 4#1 to A
            0s    append acked 3
            0s    append handed 4
            0s    floor 3, lag 3, in flight 1, ready 2, waiting 0, parked 1
        "#]],
    );
    check(
        "set parked 2 / publish 5 / A joins 2 / A parks 1 / A parks 2 / A parks 3 / status / figures \
         / replay 1 / status / replay 2 / status",
        expect![[r#"
            0s    deliver 1-2#1 to A
            0s    append handed 1-2
            0s    A: parked
            0s    deliver 3#1 to A
            0s    append parked 1 by Nack
            0s    append handed 3
            0s    A: parked
            0s    append parked 2 by Nack
            0s    A: parked
            0s    append parked 3 by Nack
            0s    ParkedFull
            0s    floor 3, lag 2, in flight 0, ready 2, waiting 0, parked 3
            0s    job 1 matches 1
            0s    append job 1 started
            0s    append replayed 1 by job 1
            0s    append job 1 done
            0s    ParkedFull
            0s    job 2 matches 1
            0s    deliver 1#1 to A
            0s    deliver 2#1 to A
            0s    append job 2 started
            0s    append replayed 2 by job 2
            0s    append handed 1-2
            0s    append job 2 done
            0s    Live
        "#]],
    );
}

#[test]
fn what_is_in_flight_may_still_be_parked_when_parked_is_full() {
    check_both_ways(
        "set parked 1 / publish 3 / A joins 3 / A parks 1-3 / status / figures / crash / status \
         / B joins 1 / discard 1-3",
        expect![[r#"
            0s    deliver 1-3#1 to A
            0s    append handed 1-3
            0s    A: parked, parked, parked
            0s    append parked 1 by Nack, 2 by Nack, 3 by Nack
            0s    ParkedFull
            0s    floor 3, lag 0, in flight 0, ready 0, waiting 0, parked 3
            0s    append opened 2
            0s    ParkedFull
            0s    job 1 matches 3
            0s    append job 1 started
            0s    append discarded 1-3 by job 1
            0s    append job 1 done
        "#]],
    );
}

#[test]
fn parked_messages_that_are_too_old_go() {
    check_both_ways(
        "set parked age 10s / publish 2 / A joins 1 / A parks 1 because bad / wait 5s \
         / A parks 2 because bad / wait 5s / parked / crash / wait 5s / parked / figures",
        expect![[r#"
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    A: parked
            0s    deliver 2#1 to A
            0s    append parked 1 by Nack
            0s    append handed 2
            4s    checkpoint 1
            5s    A: parked
            5s    append parked 2 by Nack
            9s    checkpoint 2
            10s   append discarded 1 by job 0
            10s   parked 2 after 1: #1 A bad
            10s   reasons: 1 bad
            10s   append opened 2
            15s   append discarded 2 by job 0
            15s   reasons: 
            15s   floor 2, lag 0, in flight 0, ready 0, waiting 0, parked 0
        "#]],
    );
}

/// The records of all failures that a group remembers, of parked and of waiting messages.
fn failures(stage: &Stage) -> Vec<Failure> {
    let ledger = &stage.shard.groups[&stage.group.expect("there is a group")].ledger;
    let parked = ledger.parked().iter_after(Seq::START).flat_map(|(_, parked)| parked.failures.iter());
    parked.chain(ledger.failures().values().flatten()).cloned().collect()
}

#[test]
fn texts_are_kept_once_after_a_restart_too() {
    let restarts: [&[&str]; 4] =
        [&[], &["crash"], &["crash after image"], &["crash after image", "crash", "crash after image"]];
    for restarts in restarts {
        let mut stage = Stage::new();
        for line in ["set retries 1", "publish 300", "A joins 300", "A nacks 1-300 because out of paper"] {
            stage.play(line);
        }
        for line in ["wait 5s", "A nacks 1-200 because still out of paper"].iter().chain(restarts) {
            stage.play(line);
        }
        let failures = failures(&stage);
        assert_eq!(failures.len(), 500, "after {restarts:?}");
        let texts = failures.iter().flat_map(|failure| [&failure.reason, &failure.consumer]).flatten();
        let places: BTreeSet<*const u8> = texts.map(|text| text.as_ptr()).collect();
        assert_eq!(places.len(), 3, "two reasons and one name after {restarts:?}");
    }
}

#[test]
fn a_consumer_without_a_name_is_told_alike_by_the_image_and_by_the_log() {
    let parked = |restart: &str| {
        let mut stage = Stage::new();
        for line in ["set retries 0", "publish 2"] {
            stage.play(line);
        }
        let (group, consumer) = (stage.group.expect("there is a group"), ConsumerId(7));
        stage.shard.join(stage.now, group, consumer, "", Bound::Connection).expect("a new member");
        stage.shard.credit(stage.now, group, consumer, Credit::slots(2)).expect("a member");
        stage.play("wait 1s");
        stage.shard.leave(group, consumer, Departure::Lost);
        stage.play("wait 1s");
        if !restart.is_empty() {
            stage.play(restart);
        }
        failures(&stage)
    };
    let before = parked("");
    assert_eq!(before.iter().map(|failure| failure.consumer.as_deref()).collect::<Vec<_>>(), [None, None]);
    assert_eq!(parked("crash"), before);
    assert_eq!(parked("crash after image"), before);
}
