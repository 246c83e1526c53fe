//! What a group tells of one message.

use super::*;

#[test]
fn a_message_is_followed_from_its_first_delivery_to_its_end() {
    check(
        "publish 2 / life 1 / A joins 1 / life 1 / A nacks 1 because bad / life 1 / +2s / life 1 \
         / A parks 1 because worse / life 1 / life 2 / replay all / life 1 / A acks 2 / life 2",
        expect![[r#""#]],
    );
}

#[test]
fn the_holder_of_a_lease_is_forgotten_by_a_crash_and_the_lease_is_not() {
    check("publish 1 / P polls 1 / life 1 / crash / life 1", expect![[r#""#]]);
}
