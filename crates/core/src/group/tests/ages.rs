//! For how long messages have been due.

use super::*;

#[test]
fn a_delayed_message_is_no_backlog_and_ages_from_the_time_it_is_due() {
    check(
        "publish .+600s / wait 60s / ages / wait 540s / +5s / ages / A joins 1 / A acks 1 / ages",
        expect![[r#"
            60s   lag 1, delayed 1, none is due
            605s  lag 1, delayed 0, oldest 5s
            605s  deliver 1#1 to A
            605s  append handed 1
            605s  A: acked
            605s  append acked 1
            605s  lag 0, delayed 0, none is due
        "#]],
    );
}

#[test]
fn the_oldest_is_the_one_that_has_been_due_longest_whatever_its_position() {
    check(
        "publish .+100s .+10s . / +20s / ages / +85s / ages / A joins 9 / A acks 3 / ages / A acks 2 / ages \
         / A acks 1 / ages",
        expect![[r#"
            20s   lag 3, delayed 1, oldest 20s
            105s  lag 3, delayed 0, oldest 105s
            105s  deliver 1-3#1 to A
            105s  append handed 1-3
            105s  A: acked
            105s  append acked 3
            105s  lag 2, delayed 0, oldest 95s
            105s  A: acked
            105s  append acked 2
            105s  lag 1, delayed 0, oldest 5s
            105s  A: acked
            105s  append acked 1
            105s  lag 0, delayed 0, none is due
        "#]],
    );
}

#[test]
fn settled_and_delayed_messages_in_between_are_passed_over() {
    check(
        "publish .+100s . .+100s . .+100s . / A joins 9 / A acks 2 / A acks 4 / +20s / ages / A acks 6 / ages \
         / publish 1 / +3s / ages",
        expect![[r#"
            0s    deliver 2#1 to A
            0s    deliver 4#1 to A
            0s    deliver 6#1 to A
            0s    append handed 2, 4, 6
            0s    A: acked
            0s    append acked 2
            0s    A: acked
            0s    append acked 4
            20s   lag 4, delayed 3, oldest 20s
            20s   A: acked
            20s   append acked 6
            20s   lag 3, delayed 3, none is due
            20s   deliver 7#1 to A
            20s   append handed 7
            23s   lag 4, delayed 3, oldest 3s
        "#]],
    );
}

#[test]
fn a_second_group_counts_what_is_delayed_for_itself() {
    check(
        "start end / publish .+100s .+100s / A joins 1 / ages / publish .+100s / ages / reset 0 / ages / +200s / ages",
        expect![[r#"
            0s    append opened 1
            0s    append stream jobs created
            0s    lag 0, delayed 0, none is due
            0s    lag 1, delayed 1, none is due
            0s    append reset to 0
            0s    read 1-3
            0s    lag 3, delayed 3, none is due
            200s  deliver 1#1 to A
            200s  append handed 1
            200s  lag 3, delayed 0, oldest 100s
        "#]],
    );
}

#[test]
fn after_a_crash_what_came_due_before_is_as_old_as_its_publication_and_later_ones_are_not() {
    check(
        "publish .+100s .+300s / +110s / ages / crash after image / ages / A joins 1 / A acks 1 / +200s / ages",
        expect![[r#"
            110s  lag 2, delayed 1, oldest 10s
            110s  append opened 2
            110s  lag 2, delayed 1, oldest 110s
            110s  deliver 1#1 to A
            110s  append handed 1
            110s  A: acked
            110s  append acked 1
            310s  deliver 2#1 to A
            310s  append handed 2
            310s  lag 1, delayed 0, oldest 10s
        "#]],
    );
}

#[test]
fn with_more_overdue_messages_than_times_are_kept_some_stand_for_all() {
    let all =
        format!("publish {} / +30s / ages / A joins 9000 / A acks 1-8999 / ages", ".+10s ".repeat(9_000));
    let told = trace(&all);
    let ages: Vec<&str> = told.lines().filter(|line| line.contains("lag")).collect();
    assert!(ages[0].ends_with("lag 9000, delayed 0, oldest 20s"), "{ages:?}");
    assert!(ages[1].ends_with("lag 1, delayed 0, oldest 20s"), "{ages:?}");
}
