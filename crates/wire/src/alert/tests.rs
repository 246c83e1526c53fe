use expect_test::{Expect, expect};

use super::*;

/// Looks at one group, as lines of `+SECONDS figure=value …`, and the alerts that begin and end.
#[track_caller]
fn check(rules: &str, hold: u64, script: &str, expected: Expect) {
    let mut watch = Watch::new(rules.parse().expect("they are sound"), Duration::from_secs(hold));
    let (mut now, mut told) = (0, String::new());
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (time, figures) = line.split_once(' ').expect("a time and figures");
        now += time.trim_start_matches('+').parse::<u64>().expect("seconds");
        let group = (figures != "gone").then(|| group(figures));
        for change in watch.observe(now * 1_000_000, &group) {
            told += &format!(
                "{now:>3}s {:?} since {}s: {}\n",
                change.event,
                change.since.0 / 1_000_000,
                change.text
            );
        }
    }
    told += &format!("active: {}\n", watch.firing().len());
    expected.assert_eq(&told);
}

fn group(figures: &str) -> GroupFacts {
    let mut of = GroupFacts {
        stream: "orders".to_owned(),
        group: "billing".to_owned(),
        status: GroupStatus::Live,
        due: 0,
        oldest_age: 0.0,
        in_flight: 0,
        consumers: 1,
        arrived: 0.0,
        settled: 0.0,
        delivered: 0.0,
        retried: 0.0,
        timed_out: 0.0,
        parking: 0.0,
        parked: 0,
        parked_max: 1_000,
        oldest_parked_age: 0.0,
        parked_reason: None,
        pace: None,
        window_max: 1_000,
        resting_for: None,
        stuck_key_messages: 0,
        catch_up_time: None,
    };
    for figure in figures.split_whitespace() {
        let (name, value) = figure.split_once('=').expect("a figure and its value");
        let number: u64 = value.parse().expect("a number");
        match name {
            "age" => of.oldest_age = number as f64,
            "lag" => of.due = number,
            "parked" => of.parked = number,
            "consumers" => of.consumers = number,
            "paused" => of.status = GroupStatus::Paused,
            other => panic!("no such figure: {other}"),
        }
    }
    of
}

#[test]
fn a_condition_that_lasts_fires_once_and_clears_once() {
    check(
        "*: lag 100",
        30,
        "
        +0  lag=99
        +10 lag=100
        +20 lag=500
        +10 lag=500
        +60 lag=400
        +10 lag=9
        +29 lag=9
        +1  lag=9
        +60 lag=9
        ",
        expect![[r#"
             40s Fired since 40s: has 500 messages waiting; the limit is 100
            140s Cleared since 40s: has 9 messages waiting again
            active: 0
        "#]],
    );
}

#[test]
fn a_short_peak_and_a_short_dip_change_nothing() {
    check(
        "*: lag 100",
        30,
        "+0 lag=100\n+29 lag=100\n+1 lag=99\n+1 lag=100\n+29 lag=100",
        expect!["active: 0\n"],
    );
    check(
        "*: lag 100",
        30,
        "+0 lag=100\n+30 lag=100\n+1 lag=1\n+29 lag=100\n+1 lag=1\n+29 lag=1",
        expect![[r#"
             30s Fired since 30s: has 100 messages waiting; the limit is 100
            active: 1
        "#]],
    );
}

#[test]
fn a_figure_just_below_the_threshold_does_not_clear() {
    check(
        "*: lag 100",
        0,
        "+0 lag=100\n+1 lag=99\n+1 lag=100\n+1 lag=80\n+1 lag=79\n+1 lag=99\n+1 lag=100",
        expect![[r#"
              0s Fired since 0s: has 100 messages waiting; the limit is 100
              4s Cleared since 0s: has 79 messages waiting again
              6s Fired since 6s: has 100 messages waiting; the limit is 100
            active: 1
        "#]],
    );
}

#[test]
fn each_condition_is_an_alert_of_its_own() {
    check(
        "*: age 10m, parked 1, no_consumers 1m",
        0,
        "
        +0  lag=5 age=59 consumers=0
        +1  lag=5 age=60 consumers=0
        +1  lag=5 age=600 consumers=0 parked=2
        +1  lag=5 age=700
        +1  lag=0 parked=2
        +1  lag=0
        ",
        expect![[r#"
              1s Fired since 1s: has no consumers: 5 messages wait, the oldest for 60 seconds
              2s Fired since 2s: is 10 minutes behind; the limit is 10 minutes
              2s Fired since 2s: has 2 messages parked
              3s Cleared since 2s: has 0 messages parked again
              3s Cleared since 1s: has 1 consumer again
              4s Cleared since 2s: is 0 seconds behind again
              4s Fired since 4s: has 2 messages parked
              5s Cleared since 4s: has 0 messages parked again
            active: 0
        "#]],
    );
}

#[test]
fn a_group_that_is_paused_or_idle_is_not_without_consumers() {
    let script = "+0 consumers=0 lag=9 age=900 paused=1\n+1 consumers=0";
    check("*: no_consumers 1m", 0, script, expect!["active: 0\n"]);
}

#[test]
fn the_alerts_of_a_deleted_group_end() {
    check(
        "*: lag 1",
        0,
        "+0 lag=1\n+1 gone\n+1 gone",
        expect![[r#"
              0s Fired since 0s: has 1 message waiting; the limit is 1
              1s Cleared since 0s: does not exist any more
            active: 0
        "#]],
    );
}

#[test]
fn groups_without_a_rule_have_no_alerts() {
    check("mail/*: lag 1", 0, "+0 lag=9 age=9000 parked=9 consumers=0", expect!["active: 0\n"]);
}

#[test]
fn a_watch_forgets_groups_that_are_well() {
    let mut watch = Watch::new("*: lag 1".parse().expect("it is sound"), Duration::ZERO);
    watch.observe(0, &[group("lag=5")]);
    assert_eq!((watch.states.len(), watch.firing().len()), (1, 1));
    watch.observe(1, &[group("lag=0")]);
    assert_eq!((watch.states.len(), watch.firing().len()), (0, 0));
}

#[test]
fn a_notification_is_bounded_and_its_names_are_text() {
    let hostile = |n: usize| GroupFacts { group: format!("<!channel>*{n:03}"), ..group("lag=5") };
    let groups: Vec<GroupFacts> = (0..120).map(hostile).collect();
    let mut watch = Watch::new("*: lag 1".parse().expect("it is sound"), Duration::ZERO);
    let changes = watch.observe(7_000_000, &groups);
    assert!(Notification::new("s", 7, 1, Vec::new()).is_none());
    let told = Notification::new("node & co", 7_000_000, 3, changes).expect("there are changes");
    assert_eq!((told.alerts.len(), told.more, &*told.id), (ALERTS_MAX, 20, "alert-7000000-3"));
    let json: serde_json::Value = serde_json::from_str(&told.json()).expect("JSON");
    let first = &json["alerts"][0];
    assert_eq!(
        (&first["event"], &first["alert"], &first["value"]),
        (&"fired".into(), &"lag".into(), &5.0.into())
    );
    assert_eq!((&first["stream"], &first["group"]), (&"orders".into(), &"<!channel>*000".into()));
    assert_eq!(json["at"], "1970-01-01T00:00:07.000000Z");
    let slack: serde_json::Value = serde_json::from_str(&told.slack()).expect("JSON");
    let text = slack["text"].as_str().expect("a text");
    assert!(text.starts_with(":red_circle: *orders/&lt;!channel&gt; 000* has 5 messages waiting"), "{text}");
    assert!(text.ends_with("\nand 105 more\n_node &amp; co_"), "{text}");
}
