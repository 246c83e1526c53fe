//! Settings of a persistent subscription, as its clients know them, and how they become settings of a group.
//!
//! The group has most of them. A note in the log keeps the settings as they were given, for those that a group does
//! not have (`live_buffer_size`, `read_batch_size`, `resolve_links`) and for values that a group would refuse (a
//! message timeout of zero). A group that was changed or created through another door is shown as it is: a value of
//! the note counts only as long as the group still has the value that followed from it.

use std::time::Duration;

use forebay_broker::api::{
    Backoff, Checkpoint, Door, Expected, GroupSettings, NoteWish, Retries, Start, Strategy,
};
use forebay_core::types::{GroupName, Seq, StreamName};
use serde::{Deserialize, Serialize};

use super::super::places;

/// All notes of this module begin with it.
pub(crate) const NOTE_PREFIX: u8 = b'p';
/// A message timeout of zero ends at the next look at the clock, which the clients' own server takes once a second.
const TIMEOUT_OF_ZERO: Duration = Duration::from_secs(1);
/// The interval of a checkpoint that no time is set for.
const NEVER: Duration = Duration::from_secs(366 * 86_400);
/// Leases that all consumers of a group may hold together. Clients limit themselves by their buffers.
const IN_FLIGHT_MAX: u32 = 100_000;
/// The highest revision that a subscription can begin at.
const REVISION_MAX: u64 = (u64::MAX >> 1) - 1;

/// Where a subscription begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StartFrom {
    Start,
    End,
    /// With this event.
    Revision(u64),
    /// With the event at this position. Of a subscription to `$all`.
    Position {
        commit: u64,
        prepare: u64,
    },
}

impl StartFrom {
    /// The form that clients read back: the number of an event, or -1 for the end.
    pub(crate) fn number(self) -> i64 {
        match self {
            StartFrom::Start => 0,
            StartFrom::End => -1,
            StartFrom::Revision(revision) | StartFrom::Position { commit: revision, .. } => {
                i64::try_from(revision).unwrap_or(i64::MAX)
            }
        }
    }

    /// The text that clients read back, of a subscription to `$all` or to a stream.
    pub(crate) fn text(self, is_all: bool) -> String {
        match self {
            StartFrom::Position { commit, prepare } => places::position_text(commit, prepare),
            StartFrom::Start if is_all => places::position_text(0, 0),
            StartFrom::End if is_all => "C:-1/P:-1".to_owned(),
            _ => self.number().to_string(),
        }
    }

    /// From an unsigned revision, in which the highest number is the end.
    pub(crate) fn of_unsigned(revision: u64) -> StartFrom {
        match revision {
            0 => StartFrom::Start,
            u64::MAX => StartFrom::End,
            revision => StartFrom::Revision(revision),
        }
    }

    /// From the number that [`StartFrom::number`] writes. None for other negative numbers.
    pub(crate) fn of_number(number: i64) -> Option<StartFrom> {
        match number {
            -1 => Some(StartFrom::End),
            number => u64::try_from(number).ok().map(StartFrom::of_unsigned),
        }
    }

    fn of_group(start: Start) -> StartFrom {
        match start {
            Start::End => StartFrom::End,
            Start::Seq(seq) if seq.0 > 1 => StartFrom::Revision(seq.0 - 1),
            Start::Beginning | Start::Seq(_) | Start::Time(_) => StartFrom::Start,
        }
    }

    pub(crate) fn to_group(self) -> Start {
        match self {
            // Links before the position of a subscription to `$all` are not made.
            StartFrom::Start | StartFrom::Revision(0) | StartFrom::Position { .. } => Start::Beginning,
            StartFrom::End => Start::End,
            StartFrom::Revision(revision) => Start::Seq(Seq(revision.saturating_add(1))),
        }
    }
}

/// To which consumer an event goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ConsumerStrategy {
    DispatchToSingle,
    RoundRobin,
    Pinned,
    PinnedByCorrelation,
}

impl ConsumerStrategy {
    /// The first three in the order of their numbers in the protocol.
    pub(crate) const ALL: [ConsumerStrategy; 4] = [
        ConsumerStrategy::DispatchToSingle,
        ConsumerStrategy::RoundRobin,
        ConsumerStrategy::Pinned,
        ConsumerStrategy::PinnedByCorrelation,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            ConsumerStrategy::DispatchToSingle => "DispatchToSingle",
            ConsumerStrategy::RoundRobin => "RoundRobin",
            ConsumerStrategy::Pinned => "Pinned",
            ConsumerStrategy::PinnedByCorrelation => "PinnedByCorrelation",
        }
    }

    pub(crate) fn named(name: &str) -> Result<ConsumerStrategy, Invalid> {
        let found = ConsumerStrategy::ALL.into_iter().find(|strategy| strategy.name() == name);
        found.ok_or_else(|| {
            let names = ConsumerStrategy::ALL.map(ConsumerStrategy::name).join(", ");
            Invalid(format!("consumer_strategy must be one of {names}. value=`{name}`"))
        })
    }

    /// By its number in the enumeration of the protocol.
    pub(crate) fn numbered(number: i32) -> Result<ConsumerStrategy, Invalid> {
        let found = usize::try_from(number).ok().and_then(|number| ConsumerStrategy::ALL[..3].get(number));
        found.copied().ok_or_else(|| {
            Invalid(format!("named_consumer_strategy must be between 0 and 2. value=`{number}`"))
        })
    }

    fn of_group(strategy: Strategy) -> ConsumerStrategy {
        match strategy {
            Strategy::RoundRobin => ConsumerStrategy::RoundRobin,
            Strategy::Single | Strategy::Sole => ConsumerStrategy::DispatchToSingle,
            // The closest there is: a key has one consumer at a time.
            Strategy::Pinned | Strategy::Ordered => ConsumerStrategy::Pinned,
        }
    }

    fn to_group(self) -> Strategy {
        match self {
            ConsumerStrategy::RoundRobin => Strategy::RoundRobin,
            ConsumerStrategy::DispatchToSingle => Strategy::Single,
            ConsumerStrategy::Pinned | ConsumerStrategy::PinnedByCorrelation => Strategy::Pinned,
        }
    }
}

/// Why settings are refused. Names the setting, the rule and the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Invalid(pub(crate) String);

/// The settings of a persistent subscription, under their names in the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Settings {
    pub(crate) start: StartFrom,
    pub(crate) resolve_links: bool,
    pub(crate) extra_statistics: bool,
    pub(crate) message_timeout_ms: i32,
    pub(crate) max_retry_count: i32,
    pub(crate) live_buffer_size: i32,
    pub(crate) history_buffer_size: i32,
    pub(crate) read_batch_size: i32,
    pub(crate) checkpoint_after_ms: i32,
    pub(crate) min_checkpoint_count: i32,
    pub(crate) max_checkpoint_count: i32,
    pub(crate) max_subscriber_count: i32,
    pub(crate) strategy: ConsumerStrategy,
}

/// Settings as a note keeps them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Noted {
    #[serde(flatten)]
    pub(crate) settings: Settings,
    /// Where the group began when it was created, which an update does not change. A group that began elsewhere is
    /// another one of the same name.
    pub(crate) begun: StartFrom,
}

/// The defaults of the HTTP API. Over gRPC each client sends its own.
impl Default for Settings {
    fn default() -> Settings {
        Settings {
            start: StartFrom::Start,
            resolve_links: false,
            extra_statistics: false,
            message_timeout_ms: 10_000,
            max_retry_count: 10,
            live_buffer_size: 500,
            history_buffer_size: 500,
            read_batch_size: 20,
            checkpoint_after_ms: 1_000,
            min_checkpoint_count: 10,
            max_checkpoint_count: 500,
            max_subscriber_count: 10,
            strategy: ConsumerStrategy::RoundRobin,
        }
    }
}

/// A time in units of 100 ns, as milliseconds.
pub(crate) fn ms_of_ticks(ticks: i64) -> i32 {
    let ms = ticks / 10_000;
    i32::try_from(ms).unwrap_or(if ms < 0 { i32::MIN } else { i32::MAX })
}

impl Settings {
    /// Whether every setting is within its range and goes with the others.
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        let numbers = [
            ("message_timeout_ms", self.message_timeout_ms),
            ("max_retry_count", self.max_retry_count),
            ("live_buffer_size", self.live_buffer_size),
            ("history_buffer_size", self.history_buffer_size),
            ("read_batch_size", self.read_batch_size),
            ("checkpoint_after_ms", self.checkpoint_after_ms),
            ("min_checkpoint_count", self.min_checkpoint_count),
            ("max_checkpoint_count", self.max_checkpoint_count),
            ("max_subscriber_count", self.max_subscriber_count),
        ];
        if let Some((name, value)) = numbers.into_iter().find(|(_, value)| *value < 0) {
            return Err(Invalid(format!("{name} must be at least 0. value=`{value}`")));
        }
        if self.read_batch_size >= self.history_buffer_size {
            return Err(Invalid(format!(
                "read_batch_size must be less than history_buffer_size ({}). value=`{}`",
                self.history_buffer_size, self.read_batch_size
            )));
        }
        match self.start {
            StartFrom::Revision(revision) if revision > REVISION_MAX => {
                Err(Invalid(format!("revision must be at most {REVISION_MAX}. value=`{revision}`")))
            }
            StartFrom::Position { commit, prepare } if prepare > commit => Err(Invalid(format!(
                "prepare_position must be at most commit_position ({commit}). value=`{prepare}`"
            ))),
            _ => Ok(()),
        }
    }

    /// Sets a new group up.
    pub(crate) fn shape(&self, group: &mut GroupSettings) {
        group.start = self.start.to_group();
        // A retry follows at once.
        group.backoff = Backoff { min: Duration::ZERO, max: Duration::ZERO, ..Backoff::default() };
        group.max_in_flight = IN_FLIGHT_MAX;
        self.shape_changeable(group);
    }

    fn shape_changeable(&self, group: &mut GroupSettings) {
        group.strategy = self.strategy.to_group();
        group.message_timeout = self.message_timeout();
        group.max_retries = Retries::AtMost(unsigned(self.max_retry_count));
        group.max_consumers = unsigned(self.max_subscriber_count);
        group.checkpoint = self.checkpoint();
        group.buffer = unsigned(self.history_buffer_size).max(1);
        group.extra_statistics = self.extra_statistics;
    }

    fn message_timeout(&self) -> Duration {
        let timeout = ms(self.message_timeout_ms);
        if timeout.is_zero() { TIMEOUT_OF_ZERO } else { timeout }
    }

    fn checkpoint(&self) -> Checkpoint {
        let after = ms(self.checkpoint_after_ms);
        let max = unsigned(self.max_checkpoint_count).max(1);
        Checkpoint {
            interval: if after.is_zero() { NEVER } else { after },
            min: unsigned(self.min_checkpoint_count).min(max),
            max,
        }
    }

    /// Changes a group that is there. A setting that is asked for as it is shown stays as the group has it, so that
    /// a client that reads all settings and sends them back with one change changes that one alone.
    pub(crate) fn change(&self, noted: Option<&Noted>, group: &mut GroupSettings) {
        let shown = Settings::shown(group, noted);
        let mut asked = group.clone();
        self.shape_changeable(&mut asked);
        if self.strategy != shown.strategy {
            group.strategy = asked.strategy;
        }
        if self.message_timeout_ms != shown.message_timeout_ms {
            group.message_timeout = asked.message_timeout;
        }
        if self.max_retry_count != shown.max_retry_count {
            group.max_retries = asked.max_retries;
        }
        if self.max_subscriber_count != shown.max_subscriber_count {
            group.max_consumers = asked.max_consumers;
        }
        let checkpoint =
            |of: &Settings| (of.checkpoint_after_ms, of.min_checkpoint_count, of.max_checkpoint_count);
        if checkpoint(self) != checkpoint(&shown) {
            group.checkpoint = asked.checkpoint;
        }
        if self.history_buffer_size != shown.history_buffer_size {
            group.buffer = asked.buffer;
        }
        group.extra_statistics = self.extra_statistics;
    }

    /// The settings that clients are shown: those of the note as far as the group has what follows from them.
    pub(crate) fn shown(group: &GroupSettings, noted: Option<&Noted>) -> Settings {
        let mut shown = Settings::of_group(group);
        let Some(Noted { settings: noted, begun }) = noted else { return shown };
        let mut follows = group.clone();
        noted.shape_changeable(&mut follows);
        shown.resolve_links = noted.resolve_links;
        shown.live_buffer_size = noted.live_buffer_size;
        if begun.to_group() == group.start {
            shown.start = noted.start;
        }
        if follows.strategy == group.strategy {
            shown.strategy = noted.strategy;
        }
        if follows.message_timeout == group.message_timeout {
            shown.message_timeout_ms = noted.message_timeout_ms;
        }
        if follows.max_retries == group.max_retries {
            shown.max_retry_count = noted.max_retry_count;
        }
        if follows.max_consumers == group.max_consumers {
            shown.max_subscriber_count = noted.max_subscriber_count;
        }
        if follows.checkpoint == group.checkpoint {
            shown.checkpoint_after_ms = noted.checkpoint_after_ms;
            shown.min_checkpoint_count = noted.min_checkpoint_count;
            shown.max_checkpoint_count = noted.max_checkpoint_count;
        }
        if follows.buffer == group.buffer {
            shown.history_buffer_size = noted.history_buffer_size;
            shown.read_batch_size = noted.read_batch_size;
        }
        shown
    }

    /// The settings of a group of which there is no note.
    fn of_group(group: &GroupSettings) -> Settings {
        let usual = Settings::default();
        let history_buffer_size = signed(group.buffer);
        let Checkpoint { interval, min, max } = group.checkpoint;
        Settings {
            start: StartFrom::of_group(group.start),
            extra_statistics: group.extra_statistics,
            message_timeout_ms: ms_of(group.message_timeout),
            max_retry_count: group.max_retries.at_most().map_or(i32::MAX, signed),
            history_buffer_size,
            // A client that sends it back must not be refused.
            read_batch_size: usual.read_batch_size.min(history_buffer_size - 1),
            checkpoint_after_ms: if interval == NEVER { 0 } else { ms_of(interval) },
            min_checkpoint_count: signed(min),
            max_checkpoint_count: signed(max),
            max_subscriber_count: signed(group.max_consumers),
            strategy: ConsumerStrategy::of_group(group.strategy),
            ..usual
        }
    }
}

impl Noted {
    /// Of a group that is created with these settings.
    pub(crate) fn new(settings: Settings) -> Noted {
        Noted { begun: settings.start, settings }
    }

    /// Of a group on the links of a subscription to `$all`, which begins with the first of them.
    pub(crate) fn of_all(settings: Settings) -> Noted {
        Noted { begun: StartFrom::Start, settings }
    }

    /// After an update of a group that has this note, or none.
    pub(crate) fn updated(settings: Settings, noted: Option<&Noted>, group: &GroupSettings) -> Noted {
        let begun = noted.map_or_else(|| StartFrom::of_group(group.start), |noted| noted.begun);
        Noted { settings, begun }
    }

    /// The note of this group.
    pub(crate) fn note(&self, stream: &StreamName, group: &GroupName) -> NoteWish {
        let value = serde_json::to_vec(self).expect("words and numbers can be written");
        wish(stream, group, Some(value))
    }

    /// From a note. None if it was written by a later release.
    pub(crate) fn read(value: &[u8]) -> Option<Noted> {
        serde_json::from_slice(value).ok()
    }
}

/// The key of a group's note. A name has no control characters, so it ends at the zero.
pub(crate) fn note_key(stream: &StreamName, group: &GroupName) -> Vec<u8> {
    let (stream, group) = (stream.as_str().as_bytes(), group.as_str().as_bytes());
    [&[NOTE_PREFIX], stream, &[0], group].concat()
}

/// The group that a note is about.
pub(crate) fn of_note_key(key: &[u8]) -> Option<(StreamName, GroupName)> {
    let text = std::str::from_utf8(key.strip_prefix(&[NOTE_PREFIX])?).ok()?;
    let (stream, group) = text.split_once('\0')?;
    Some((StreamName::stored(stream), GroupName::stored(group)))
}

/// Removes a group's note.
pub(crate) fn no_note(stream: &StreamName, group: &GroupName) -> NoteWish {
    wish(stream, group, None)
}

fn wish(stream: &StreamName, group: &GroupName, value: Option<Vec<u8>>) -> NoteWish {
    let key = note_key(stream, group);
    NoteWish { door: Door::KURRENT, key, value, expected: Expected::Any, expires: None }
}

fn unsigned(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn ms(number: i32) -> Duration {
    Duration::from_millis(unsigned(number).into())
}

/// Whole milliseconds, and at least one for a time that is not zero.
fn ms_of(time: Duration) -> i32 {
    i32::try_from(time.as_micros().div_ceil(1_000)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The defaults of the clients.
    fn rust() -> Settings {
        Settings {
            start: StartFrom::End,
            message_timeout_ms: 30_000,
            checkpoint_after_ms: 2_000,
            max_checkpoint_count: 1_000,
            max_subscriber_count: 0,
            ..Settings::default()
        }
    }

    fn created(settings: &Settings) -> GroupSettings {
        let mut group = GroupSettings::default();
        settings.shape(&mut group);
        group.check().expect("the engine takes them");
        group
    }

    #[test]
    fn the_defaults_of_every_client_are_accepted_and_shown_as_they_were_given() {
        let python = Settings {
            start: StartFrom::Start,
            read_batch_size: 200,
            max_subscriber_count: 5,
            strategy: ConsumerStrategy::DispatchToSingle,
            ..rust()
        };
        for settings in [rust(), python, Settings::default()] {
            settings.check().expect("defaults are valid");
            let group = created(&settings);
            let noted = Noted::new(settings.clone());
            assert_eq!(Settings::shown(&group, Some(&noted)), settings);
            let key = note_key(&StreamName::stored("s"), &GroupName::stored("g"));
            assert_eq!(of_note_key(&key), Some((StreamName::stored("s"), GroupName::stored("g"))));
            let note = noted.note(&StreamName::stored("s"), &GroupName::stored("g"));
            let value = note.value.expect("it has one");
            assert_eq!(Noted::read(&value), Some(noted));
        }
    }

    #[test]
    fn a_value_that_a_group_cannot_have_is_kept_and_its_closest_value_is_used() {
        let odd = Settings {
            message_timeout_ms: 0,
            max_retry_count: 0,
            checkpoint_after_ms: 0,
            min_checkpoint_count: 50,
            max_checkpoint_count: 0,
            history_buffer_size: 1,
            read_batch_size: 0,
            live_buffer_size: 0,
            ..rust()
        };
        odd.check().expect("accepted, as the clients' own server does");
        let group = created(&odd);
        assert_eq!(group.message_timeout, TIMEOUT_OF_ZERO);
        assert_eq!(group.max_retries, Retries::AtMost(0));
        assert_eq!(group.checkpoint, Checkpoint { interval: NEVER, min: 1, max: 1 });
        assert_eq!(group.backoff.max, Duration::ZERO, "a retry follows at once");
        assert_eq!(Settings::shown(&group, Some(&Noted::new(odd.clone()))), odd);
    }

    #[test]
    fn a_refusal_names_the_setting_the_rule_and_the_value() {
        let refused = |change: fn(&mut Settings)| {
            let mut settings = rust();
            change(&mut settings);
            settings.check().expect_err("refused").to_string()
        };
        let negative = refused(|settings| settings.max_retry_count = -1);
        assert_eq!(negative, "max_retry_count must be at least 0. value=`-1`");
        let batch = refused(|settings| settings.read_batch_size = 500);
        assert_eq!(batch, "read_batch_size must be less than history_buffer_size (500). value=`500`");
        let start = refused(|settings| settings.start = StartFrom::Revision(u64::MAX - 1));
        assert!(start.starts_with("revision must be at most "), "{start}");
        let unknown = ConsumerStrategy::named("roundrobin").expect_err("names are case sensitive");
        assert_eq!(
            unknown.to_string(),
            "consumer_strategy must be one of DispatchToSingle, RoundRobin, Pinned, PinnedByCorrelation. \
             value=`roundrobin`"
        );
        assert!(ConsumerStrategy::numbered(3).is_err(), "PinnedByCorrelation has no number");
        assert_eq!(ConsumerStrategy::numbered(1), Ok(ConsumerStrategy::RoundRobin));
    }

    #[test]
    fn a_group_of_another_door_is_shown_with_settings_that_can_be_sent_back() {
        let native = GroupSettings {
            strategy: Strategy::Ordered,
            max_retries: Retries::Unlimited,
            message_timeout: Duration::from_micros(1),
            buffer: 1,
            start: Start::Seq(Seq(8)),
            ..GroupSettings::default()
        };
        let shown = Settings::shown(&native, None);
        assert_eq!(shown.start, StartFrom::Revision(7));
        assert_eq!((shown.message_timeout_ms, shown.max_retry_count), (1, i32::MAX));
        assert_eq!((shown.history_buffer_size, shown.read_batch_size), (1, 0));
        shown.check().expect("shown settings can be sent back");
        let mut sent_back = native.clone();
        shown.change(None, &mut sent_back);
        assert_eq!(sent_back, native, "and changes nothing");
        let mut changed = native.clone();
        Settings { max_retry_count: 3, ..shown }.change(None, &mut changed);
        assert_eq!(changed, GroupSettings { max_retries: Retries::AtMost(3), ..native });
    }

    #[test]
    fn a_change_through_another_door_is_shown_instead_of_the_note() {
        let given =
            Settings { message_timeout_ms: 0, strategy: ConsumerStrategy::PinnedByCorrelation, ..rust() };
        let mut group = created(&given);
        let noted = Noted::new(given.clone());
        group.message_timeout = Duration::from_secs(7);
        let shown = Settings::shown(&group, Some(&noted));
        assert_eq!(shown, Settings { message_timeout_ms: 7_000, ..given });
        group.strategy = Strategy::Single;
        assert_eq!(Settings::shown(&group, Some(&noted)).strategy, ConsumerStrategy::DispatchToSingle);
    }

    #[test]
    fn a_change_leaves_alone_what_only_the_native_api_can_set() {
        let given = rust();
        let mut group = created(&given);
        let noted = Noted::new(given.clone());
        group.backoff = Backoff::default();
        group.window_max = 77;
        let before = group.clone();
        let asked =
            Settings { max_checkpoint_count: 5, min_checkpoint_count: 9, start: StartFrom::Start, ..given };
        asked.change(Some(&noted), &mut group);
        let checkpoint = Checkpoint { min: 5, max: 5, ..before.checkpoint.clone() };
        assert_eq!(group, GroupSettings { checkpoint, ..before });
        let noted = Noted::updated(asked.clone(), Some(&noted), &group);
        assert_eq!(Settings::shown(&group, Some(&noted)), asked);
        group.start = Start::Beginning;
        let shown = Settings::shown(&group, Some(&Noted { begun: StartFrom::Revision(3), ..noted }));
        assert_eq!(shown.start, StartFrom::Start, "another group of the same name");
    }

    #[test]
    fn starts_and_times_are_read_in_every_form() {
        for start in [StartFrom::Start, StartFrom::End, StartFrom::Revision(5)] {
            assert_eq!(StartFrom::of_number(start.number()), Some(start));
            assert_eq!(StartFrom::of_group(start.to_group()), start);
        }
        assert_eq!(StartFrom::of_number(-2), None);
        assert_eq!(StartFrom::of_unsigned(u64::MAX), StartFrom::End);
        assert_eq!(ms_of_ticks(300_000_000), 30_000);
        assert_eq!((ms_of_ticks(i64::MAX), ms_of_ticks(i64::MIN)), (i32::MAX, i32::MIN));
    }
}
