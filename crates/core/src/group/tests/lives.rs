//! What a group tells of one message.

use super::*;

#[test]
fn a_message_is_followed_from_its_first_delivery_to_its_end() {
    check(
        "publish 2 / life 1 / A joins 1 / life 1 / A nacks 1 because bad / life 1 / A acks 2 / life 2 / +2s / life 1 \
         / A parks 1 because worse / life 1 / replay all / life 1 / A acks 1 / life 1",
        expect![[r#"
            0s    1: untouched, 0 attempts, failed []
            0s    deliver 1#1 to A
            0s    append handed 1
            0s    1: leased to A from 0ns to 30s by Connection, 1 attempts, failed []
            0s    A: retrying
            0s    deliver 2#1 to A
            0s    append failed 1 until 0.1s
            0s    append handed 2
            0s    1: waiting until 100ms, 1 attempts, failed [#1 A bad]
            0s    A: acked
            0s    append acked 2
            0s    2: settled, 0 attempts, failed []
            2s    deliver 1#2 to A
            2s    append handed 1
            2s    1: leased to A from 2s to 32s by Connection, 2 attempts, failed [#1 A bad]
            2s    A: parked
            2s    append parked 1 by Nack
            2s    1: parked at 2s, 2 attempts, failed [#1 A bad; #2 A worse]
            2s    job 1 matches 1
            2s    deliver 1#1 to A
            2s    append job 1 started
            2s    append replayed 1 by job 1
            2s    append handed 1
            2s    append job 1 done
            2s    1: leased to A from 2s to 32s by Connection, 1 attempts, failed [#1 A bad; #2 A worse]
            2s    A: acked
            2s    append acked 1
            2s    1: settled, 0 attempts, failed []
        "#]],
    );
}

#[test]
fn the_holder_of_a_lease_is_forgotten_by_a_crash_and_the_lease_is_not() {
    check(
        "publish 1 / P polls 1 / life 1 / crash / life 1",
        expect![[r#"
        0s    deliver 1#1 to P when durable
        0s    append leased 1 for 30s
        0s    1: leased to P from 0ns to 30s by Clock, 1 attempts, failed []
        0s    append opened 2
        0s    1: leased to ? from 0ns to 30s by Clock, 1 attempts, failed []
    "#]],
    );
}
