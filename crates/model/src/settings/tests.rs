use super::*;
use crate::describe::{find, markdown, rows};
use crate::types::{Seq, Timestamp};
use crate::value::Stored;

/// Settings that differ from the defaults.
fn other_group() -> GroupSettings {
    let mut group = GroupSettings {
        start: Start::Time(Timestamp(21)),
        strategy: Strategy::Ordered,
        message_timeout: Duration::from_millis(1_500),
        max_retries: Retries::Unlimited,
        on_exhausted: OnExhausted::Move(StreamName::stored("elsewhere")),
        on_expired: OnEnd::Move(StreamName::stored("late")),
        on_dropped: OnEnd::Move(StreamName::stored("overflow")),
        backoff: Backoff {
            min: Duration::from_millis(1),
            max: Duration::from_millis(2),
            factor: 3.0,
            jitter: 0.25,
        },
        key_batch: 3,
        on_parked_key: OnParkedKey::Hold,
        fairness: Fairness::Key,
        priority_age_step: Duration::from_secs(9),
        window_max: 11,
        parked_max: 12,
        parked_max_age: Some(Duration::from_secs(13)),
        max_in_flight: 14,
        max_consumers: 15,
        rate: Some(Rate { per_second: 0.5, burst: 16 }),
        acks: Acks::Checkpoint,
        checkpoint: Checkpoint { interval: Duration::from_secs(17), min: 18, max: 19 },
        buffer: 7,
        key_lock: KeyLock::Position,
        move_terms: MoveTerms { create: false, keep_age: true },
        ..GroupSettings::default()
    };
    group.extra_statistics = false;
    group
}

fn other_stream() -> StreamSettings {
    StreamSettings {
        retention: Retention::Log {
            max_age: Some(Duration::from_secs(1)),
            max_bytes: None,
            max_messages: Some(2),
        },
        dedupe_window: Duration::from_secs(3),
        dedupe_max: 3,
        limits: StreamLimits {
            max_messages: Some(4),
            max_bytes: Some(5),
            max_age: Some(Duration::from_secs(6)),
            on_full: OnFull::DropOldest,
        },
        ingress_rate: Some(Rate { per_second: 7.5, burst: 8 }),
        source: Some(Source::prefix("orders-").kind("Placed").header("region", "eu")),
        delay: Duration::from_secs(7),
    }
}

/// What the log would give back.
fn stored<T: Setting + Default>(settings: &T) -> T {
    let mut kept = Vec::new();
    settings.store(0, &mut |tag, value| {
        kept.push(match value {
            Stored::Number(number) => (tag, Some(number), Vec::new()),
            Stored::Bytes(bytes) => (tag, None, bytes.to_vec()),
        });
    });
    let mut tags: Vec<u64> = kept.iter().map(|(tag, ..)| *tag).collect();
    tags.sort_unstable();
    assert!(tags.windows(2).all(|pair| pair[0] < pair[1]), "a tag is used twice: {tags:?}");
    let mut read = T::default();
    for (tag, number, bytes) in &kept {
        assert_eq!(read.load(*tag, Raw { bytes, number: *number }), Ok(true));
    }
    read
}

#[test]
fn settings_survive_the_log() {
    assert_eq!(stored(&other_group()), other_group());
    assert_eq!(stored(&GroupSettings::default()), GroupSettings::default());
    for on_exhausted in [OnExhausted::Park, OnExhausted::Skip] {
        for start in [Start::Beginning, Start::End, Start::Seq(Seq(5))] {
            let group = GroupSettings { on_exhausted: on_exhausted.clone(), start, ..other_group() };
            assert_eq!(stored(&group), group);
        }
    }
    assert_eq!(stored(&other_stream()), other_stream());
    assert_eq!(stored(&StreamSettings::default()), StreamSettings::default());
}

/// A setting of an older release would be read as another one otherwise.
#[test]
fn tags_stay_what_they_were() {
    let tags = |settings: &dyn Fn(&mut Store<'_>)| {
        let mut tags = Vec::new();
        settings(&mut |tag, _| tags.push(tag));
        tags
    };
    let group = tags(&|out| other_group().store(0, out));
    let expected = [
        28, 9, 1, 2, 10, 31, 32, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16, 17, 7, 18, 19, 20, 21, 22, 23, 24, 8,
        25, 30, 40,
    ];
    assert_eq!(group.iter().copied().filter(|tag| expected.contains(tag)).collect::<Vec<_>>(), expected);
    let stream = tags(&|out| other_stream().store(0, out));
    assert_eq!(stream, [3, 4, 6, 1, 2, 7, 8, 9, 10, 11, 12, 14, 15, 16, 13]);
}

#[test]
fn a_tag_that_is_not_known_and_a_value_that_cannot_be_are_noticed() {
    let mut group = GroupSettings::default();
    let raw = |number| Raw { bytes: &[], number: Some(number) };
    assert_eq!(group.load(99, raw(1)), Ok(false));
    assert_eq!(group.load(9, raw(5)), Err(BadRaw));
    assert_eq!(group.load(25, raw(2)), Err(BadRaw));
    assert_eq!(group, GroupSettings::default());
}

#[test]
fn a_patch_makes_any_settings_equal_but_for_what_the_api_does_not_show() {
    let mut group = GroupSettings::default();
    let patch = GroupPatch::from(&other_group());
    assert_eq!(patch.difference(&group).as_deref(), Some("start"));
    patch.apply(&mut group);
    let internal = GroupSettings::default();
    let expected =
        GroupSettings { key_lock: internal.key_lock, move_terms: internal.move_terms, ..other_group() };
    assert_eq!(group, expected);
    assert_eq!(patch.difference(&group), None);

    let mut stream = StreamSettings::default();
    StreamPatch::from(&other_stream()).apply(&mut stream);
    assert_eq!(stream, StreamSettings { delay: Duration::ZERO, ..other_stream() });

    let before = group.clone();
    GroupPatch::new().apply(&mut group);
    assert_eq!(group, before);
}

#[test]
fn every_field_goes_back_to_its_default_by_name() {
    let (mut group, mut stream) = (other_group(), other_stream());
    for field in GroupSettings::FIELDS {
        assert!(group.reset(field.name), "{}", field.name);
    }
    for field in StreamSettings::FIELDS {
        assert!(stream.reset(field.name), "{}", field.name);
    }
    let (key_lock, move_terms) = (other_group().key_lock, other_group().move_terms);
    assert_eq!(group, GroupSettings { key_lock, move_terms, ..GroupSettings::default() });
    assert_eq!(stream, StreamSettings { delay: other_stream().delay, ..StreamSettings::default() });

    let mut group = other_group();
    assert!(group.reset("backoff.max") && group.reset("checkpoint.min"));
    assert_eq!((group.backoff.max, group.checkpoint.min), (Duration::from_secs(30), 10));
    assert_eq!(group.backoff.min, other_group().backoff.min);
    for wrong in ["", "limit", "key_lock", "backoff.", "backoff.most", "buffer.max", "rate.burst"] {
        assert!(!group.reset(wrong) || wrong == "backoff.", "{wrong}");
    }
}

#[test]
fn the_first_setting_that_differs_is_found() {
    let is = GroupSettings::default();
    let found = |patch: GroupPatch| patch.difference(&is);
    let same = GroupPatch::new().message_timeout(Duration::from_secs(30)).max_retries(10).rate(None);
    assert_eq!(found(same.clone().start(Start::Beginning)), None);
    assert_eq!(found(same.max_retries(9)).as_deref(), Some("max_retries"));
    let backoff = BackoffPatch::new().min(Duration::from_millis(100)).max(Duration::from_secs(5));
    assert_eq!(found(GroupPatch::new().backoff(backoff)).as_deref(), Some("backoff.max"));
    let rate = GroupPatch::new().rate(Rate::per_second(5.0));
    assert_eq!(found(rate.clone()).as_deref(), Some("rate"));
    let paced = GroupSettings { rate: Some(Rate { per_second: 5.0, burst: 2 }), ..is.clone() };
    assert_eq!(rate.difference(&paced).as_deref(), Some("rate.burst"));
    assert_eq!(found(GroupPatch::new().start(Start::End)).as_deref(), Some("start"));
}

#[test]
fn settings_that_become_none_are_named() {
    assert_eq!(GroupPatch::from(&other_group()).cleared(), [""; 0]);
    assert_eq!(GroupPatch::from(&GroupSettings::default()).cleared(), ["parked_max_age", "rate"]);
    let limits = StreamLimitsPatch::new().max_age(None).max_bytes(5);
    assert_eq!(StreamPatch::new().limits(limits).cleared(), ["limits.max_age"]);
}

#[test]
fn a_source_has_a_prefix_and_a_header_that_can_be() {
    let check = |source: Source| {
        let patch = StreamPatch::new().source(source);
        patch.check().map_err(|error| error.to_string())
    };
    assert_eq!(check(Source::prefix("")), Ok(()));
    assert_eq!(check(Source::prefix("orders-").header("a", "b=c")), Ok(()));
    assert_eq!(Source::default().header("a", "b=c").header_parts(), Some(("a", "b=c")));
    let text = "source.prefix must be the beginning of names that do not begin with $. value=`$audit`";
    assert_eq!(check(Source::prefix("$audit")), Err(text.to_owned()));
    let text = "source.header must be name=value. value=`=eu`";
    assert_eq!(check(Source::default().header("", "eu")), Err(text.to_owned()));
    assert!(check(Source::prefix("x".repeat(1_025))).is_err() && check(Source::prefix("a\nb")).is_err());
    let is = StreamSettings { source: Some(Source::prefix("orders-")), ..StreamSettings::default() };
    let differs = |source: Source| StreamPatch::new().source(source).difference(&is);
    assert_eq!(differs(Source::prefix("orders-")), None);
    assert_eq!(differs(Source::prefix("orders")).as_deref(), Some("source.prefix"));
    assert_eq!(differs(Source::prefix("orders-").kind("Placed")).as_deref(), Some("source.type"));
}

#[track_caller]
fn refused(patch: GroupPatch, text: &str) {
    let refused = patch.check().map_err(|error| error.to_string());
    assert_eq!(refused, Err(text.to_owned()));
    let mut settings = GroupSettings::default();
    patch.apply(&mut settings);
    assert_eq!(settings.check().map_err(|error| error.to_string()), refused);
}

#[test]
fn a_value_out_of_range_is_refused_by_field_rule_and_value() {
    let patch = GroupPatch::new;
    refused(
        patch().message_timeout(Duration::ZERO),
        "message_timeout must be between 1us and 366d. value=`0s`",
    );
    refused(patch().window_max(0), "window_max must be at least 1. value=`0`");
    refused(
        patch().backoff(BackoffPatch::new().jitter(f64::NAN)),
        "backoff.jitter must be between 0 and 1. value=`NaN`",
    );
    refused(
        patch().backoff(BackoffPatch::new().max(YEAR * 2)),
        "backoff.max must be at most 366d. value=`732d`",
    );
    refused(
        patch().rate(Rate::per_second(0.0)),
        "rate.per_second must be between 0.001 and 10000000. value=`0`",
    );
    refused(patch().rate(Rate::per_second(1.0).burst(0)), "rate.burst must be at least 1. value=`0`");
    refused(
        patch().checkpoint(CheckpointPatch::new().max(0)),
        "checkpoint.max must be at least 1. value=`0`",
    );
    let stream = StreamPatch::new().limits(StreamLimitsPatch::new().max_bytes(0));
    let text = stream.check().map_err(|error| error.to_string());
    assert_eq!(text, Err("limits.max_bytes must be at least 1. value=`0`".to_owned()));
    let kept = Retention::Log { max_age: Some(AGE_MAX * 2), max_bytes: None, max_messages: None };
    let error = StreamPatch::new().retention(kept).check().expect_err("that is too old");
    assert_eq!(error.field, "retention.max_age");
}

#[test]
fn settings_that_do_not_go_together_are_refused() {
    let text = |settings: GroupSettings| settings.check().map_err(|error| error.to_string());
    let backoff = Backoff { min: YEAR, ..Backoff::default() };
    assert_eq!(
        text(GroupSettings { backoff, ..GroupSettings::default() }),
        Err("backoff.min must be at most backoff.max (30s). value=`366d`".to_owned())
    );
    let checkpoint = Checkpoint { min: 2_000, ..Checkpoint::default() };
    assert_eq!(
        text(GroupSettings { checkpoint, ..GroupSettings::default() }),
        Err("checkpoint.min must be at most checkpoint.max (1000). value=`2000`".to_owned())
    );
    let (strategy, fairness) = (Strategy::Pinned, Fairness::Key);
    let error = GroupSettings { strategy, fairness, ..GroupSettings::default() }.check();
    assert_eq!(error.expect_err("keys cannot take turns").field, "fairness");
}

#[test]
fn defaults_are_within_their_ranges_and_help_is_a_sentence() {
    assert_eq!(GroupSettings::default().check(), Ok(()));
    assert_eq!(StreamSettings::default().check(), Ok(()));
    assert_eq!(StreamSettings::unasked().check(), Ok(()));
    for row in rows(GroupSettings::FIELDS).into_iter().chain(rows(StreamSettings::FIELDS)) {
        let help = row.field.help;
        assert!(help.ends_with('.') && !help.contains("  ") && !help.contains('|'), "{}: {help}", row.name);
    }
}

#[test]
fn a_table_describes_itself() {
    let field = |name: &str| find(GroupSettings::FIELDS, name).expect("there is such a field");
    let default = |name: &str| (field(name).default)();
    assert_eq!(default("message_timeout").as_deref(), Some("30s"));
    assert_eq!(default("rate").as_deref(), Some("null"));
    assert_eq!(default("backoff.factor").as_deref(), Some("2"));
    assert_eq!(default("backoff"), None);
    assert!(field("start.seq").is_required() && !field("rate.burst").is_required());
    assert_eq!(field("acks").values(), "`journal`, `durable` or `checkpoint`");
    assert_eq!(field("parked_max_age").values(), "a duration, between 1us and 366d, or `null`");
    assert_eq!(field("start").values(), "`beginning` or `end`, an object of `seq` or an object of `time`");
    assert!(find(GroupSettings::FIELDS, "key_lock").is_none());
}

/// The table of a page in the docs. `UPDATE_EXPECT=1 cargo test -p forebay-model` writes it anew.
#[track_caller]
fn page_agrees(name: &str, fields: &[Field]) {
    let path = format!("{}/../../docs/reference/{name}.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(&path).expect("the page is there");
    let intro = page.split_once("\n|").map_or(&page[..], |(intro, _)| intro);
    let expected = format!("{}\n\n{}", intro.trim_end(), markdown(fields));
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &expected).expect("the page is written");
    } else {
        assert_eq!(page, expected, "UPDATE_EXPECT=1 writes the page anew");
    }
}

#[test]
fn the_pages_in_the_docs_list_every_setting_as_it_is() {
    page_agrees("group-settings", GroupSettings::FIELDS);
    page_agrees("stream-settings", StreamSettings::FIELDS);
}
