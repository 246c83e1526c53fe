use forebay_model::describe::{Field, Kind};
use forebay_model::{Acks, Fairness, GroupSettings, OnFull, OnParkedKey, Strategy, StreamSettings};
use v1::group_settings as wire;

use super::*;

/// The list has every field of the table in both, and lengths of time say that they are milliseconds.
#[track_caller]
fn agree<P: Message>(fields: &[Field], apart: &[&str]) {
    let expected: Vec<(&str, String)> = fields
        .iter()
        .filter(|field| !apart.contains(&field.name))
        .map(|field| {
            let unit = if matches!(field.kind, Kind::Span) { "_ms" } else { "" };
            (field.name, format!("{}{unit}", field.name))
        })
        .collect();
    let listed: Vec<(&str, String)> =
        P::FIELDS.iter().map(|(field, wire)| (*field, (*wire).to_owned())).collect();
    assert_eq!(listed, expected);
}

#[test]
fn every_setting_of_the_tables_is_in_the_messages() {
    agree::<GroupPatch>(GroupPatch::FIELDS, &["start"]);
    agree::<BackoffPatch>(BackoffPatch::FIELDS, &[]);
    agree::<CheckpointPatch>(CheckpointPatch::FIELDS, &[]);
    agree::<StreamPatch>(StreamPatch::FIELDS, &[]);
    agree::<StreamLimitsPatch>(StreamLimitsPatch::FIELDS, &[]);
}

/// The words are those of the messages, in the same order.
#[test]
fn choices_have_the_same_words_on_both_sides() {
    #[track_caller]
    fn same<C: Choice>(name: impl Fn(i32) -> Option<&'static str>) {
        for (number, word) in (1..).zip(C::WORDS) {
            assert_eq!(name(number).map(str::to_lowercase).as_deref(), Some(*word));
        }
        assert_eq!(name(C::WORDS.len() as i32 + 1), None);
    }
    same::<Strategy>(|number| wire::Strategy::try_from(number).ok().map(|choice| choice.as_str_name()));
    same::<OnParkedKey>(|number| wire::OnParkedKey::try_from(number).ok().map(|choice| choice.as_str_name()));
    same::<Fairness>(|number| wire::Fairness::try_from(number).ok().map(|choice| choice.as_str_name()));
    same::<Acks>(|number| wire::Acks::try_from(number).ok().map(|choice| choice.as_str_name()));
    same::<OnFull>(|number| {
        v1::stream_limits::OnFull::try_from(number).ok().map(|choice| choice.as_str_name())
    });
}

fn group() -> GroupPatch {
    let second = Duration::from_secs(1);
    GroupPatch::new()
        .strategy(Strategy::Pinned)
        .message_timeout(second)
        .max_retries(Retries::Unlimited)
        .on_exhausted(OnExhausted::Move(StreamName::stored("graveyard")))
        .on_expired(OnEnd::Move(StreamName::stored("late")))
        .on_dropped(OnEnd::Discard)
        .backoff(BackoffPatch::new().min(second).max(2 * second).factor(1.5).jitter(0.25))
        .key_batch(3)
        .on_parked_key(OnParkedKey::Hold)
        .fairness(Fairness::Key)
        .priority_age_step(Duration::ZERO)
        .window_max(4)
        .parked_max(5)
        .parked_max_age(6 * second)
        .max_in_flight(7)
        .max_consumers(8)
        .rate(Rate::per_second(9.0).burst(10))
        .acks(Acks::Durable)
        .checkpoint(CheckpointPatch::new().interval(second).min(11).max(12))
        .buffer(13)
        .extra_statistics(false)
}

#[test]
fn settings_of_a_group_survive_the_round_trip() {
    for patch in [group(), group().max_retries(7).on_exhausted(OnExhausted::Skip), GroupPatch::new()] {
        assert_eq!(requested::<GroupPatch>(&v1::GroupSettings::from(&patch)), Ok(patch.clone()));
    }
    assert_eq!(v1::GroupSettings::from(&GroupPatch::new()), v1::GroupSettings::default());
    // What a server reports makes the same settings.
    let settings = GroupSettings::default();
    let mut read = GroupSettings { buffer: 1, ..GroupSettings::default() };
    let report = v1::GroupSettings::from(&GroupPatch::from(&settings));
    reported::<GroupPatch>(&report).apply(&mut read);
    assert_eq!(read, settings);
}

#[test]
fn settings_of_a_stream_survive_the_round_trip() {
    let second = Duration::from_secs(1);
    let limits =
        StreamLimitsPatch::new().max_messages(4).max_bytes(5).max_age(6 * second).on_full(OnFull::DropOldest);
    let patch = StreamPatch::new()
        .dedupe_window(second)
        .dedupe_max(2)
        .retention(Retention::Log { max_age: Some(second), max_bytes: None, max_messages: Some(3) })
        .limits(limits)
        .ingress_rate(Rate::per_second(0.5))
        .source(Source::prefix("orders-").kind("Placed").header("region", "eu"));
    assert_eq!(requested::<StreamPatch>(&v1::StreamSettings::from(&patch)), Ok(patch));
    assert_eq!(v1::StreamSettings::from(&StreamPatch::new()), v1::StreamSettings::default());
    let patch = StreamPatch::from(&StreamSettings::default());
    let read = requested::<StreamPatch>(&v1::StreamSettings::from(&patch)).map(|patch| patch.retention);
    assert_eq!(read, Ok(Some(Retention::Work)));
}

#[test]
fn a_choice_that_is_not_known_is_refused_in_a_request_and_absent_in_a_report() {
    let wire = v1::GroupSettings { strategy: 9, buffer: Some(3), ..Default::default() };
    let refused = requested::<GroupPatch>(&wire).expect_err("there is no such strategy");
    assert_eq!(refused.to_string(), "strategy must be a number from 1 to 5. value=`9`");
    assert_eq!(reported::<GroupPatch>(&wire), GroupPatch::new().buffer(3));
    let limits = Some(v1::StreamLimits { on_full: -1, ..Default::default() });
    let wire = v1::StreamSettings { limits, ..Default::default() };
    assert_eq!(requested::<StreamPatch>(&wire).expect_err("there is none").field, "limits.on_full");
    let then = Some(v1::on_exhausted::Then::MoveTo("$x".to_owned()));
    let on_exhausted = Some(v1::OnExhausted { then });
    let wire = v1::GroupSettings { on_exhausted, ..Default::default() };
    assert_eq!(requested::<GroupPatch>(&wire).expect_err("that is no name").field, "on_exhausted.move");
}

#[test]
fn a_refusal_begins_with_the_name_in_the_message() {
    let text = |field| refusal(&SettingsError::new(field, "another", "this"));
    assert_eq!(text("backoff.max"), "backoff.max_ms: must be another. value=`this`");
    for (field, name) in [
        ("window_max", "window_max: "),
        ("retention.max_age", "retention.log.max_age_ms: "),
        ("limits.max_age", "limits.max_age_ms: "),
        ("on_exhausted.move", "on_exhausted.move_to: "),
        ("on_expired.move", "on_expired.move_to: "),
        ("rate.per_second", "rate.per_second: "),
        ("timeout_ms", "timeout_ms: "),
    ] {
        assert!(text(field).starts_with(name), "{field}");
    }
}

#[test]
fn names_of_messages_are_known() {
    let name = |name| model_name(GroupSettings::FIELDS, name);
    assert_eq!(name("backoff.max_ms"), "backoff.max");
    assert_eq!(name("message_timeout_ms"), "message_timeout");
    assert_eq!(name("rate"), "rate");
    assert_eq!(name("rate_ms"), "rate_ms");
    assert_eq!(name("nothing_ms"), "nothing_ms");
}
