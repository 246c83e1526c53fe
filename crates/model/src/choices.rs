//! The values of settings that are not plain numbers.

use std::time::Duration;

use crate::describe::{Field, Kind};
use crate::limits::{AGE_MAX, INSTANT, PER_SECOND_MAX, PER_SECOND_MIN};
use crate::types::{Seq, StreamName, Timestamp};
use crate::value::{
    BadRaw, Limit, Optional, Raw, Setting, SettingsError, Store, Stored, at_least, between, join, lasting,
};

/// One of a closed set of words.
pub trait Choice: Copy + PartialEq + 'static {
    /// In the order of their numbers: the first is 0 in the log and 1 in `forebay.v1`.
    const ALL: &'static [Self];
    const WORDS: &'static [&'static str];

    fn number(self) -> usize {
        Self::ALL.iter().position(|choice| *choice == self).expect("all choices are listed")
    }

    fn word(self) -> &'static str {
        Self::WORDS[self.number()]
    }
}

/// Declares a choice with its words. Numbers follow from the order, so a new choice goes to the end.
macro_rules! choice {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl Choice for $name {
            const ALL: &'static [$name] = &[$($name::$variant),+];
            const WORDS: &'static [&'static str] = &[$($word),+];
        }

        impl Setting for $name {
            const KIND: Kind = Kind::Words(<$name as Choice>::WORDS);

            fn text(&self) -> Option<String> {
                Some(self.word().to_owned())
            }

            fn store(&self, tag: u64, out: &mut Store<'_>) {
                out(tag, Stored::Number(self.number() as u64));
            }

            fn load(&mut self, _: u64, raw: Raw<'_>) -> Result<bool, BadRaw> {
                let number = usize::try_from(raw.number()?).map_err(|_| BadRaw)?;
                *self = <$name as Choice>::ALL.get(number).copied().ok_or(BadRaw)?;
                Ok(true)
            }
        }

        #[cfg(feature = "serde")]
        crate::json::choice!($name);
    };
}

choice! {
    /// To which consumer a message goes.
    Strategy {
        /// Consumers take turns.
        RoundRobin = "round_robin",
        /// One consumer gets everything until it has no room, then the next.
        Single = "single",
        /// A key stays with one consumer until that consumer leaves.
        Pinned = "pinned",
        /// One message of a key at a time, in order, with any number of consumers.
        Ordered = "ordered",
        /// The first consumer gets everything until it leaves; then the oldest one of the highest rank does.
        Sole = "sole",
    }
}

choice! {
    /// What happens to the messages that follow a parked one of their key.
    OnParkedKey {
        /// They are delivered.
        Continue = "continue",
        /// They wait until the parked message is replayed or discarded.
        Hold = "hold",
    }
}

choice! {
    /// Whether keys take turns.
    Fairness {
        None = "none",
        /// Keys take turns.
        Key = "key",
    }
}

choice! {
    /// When an ack is written to the log.
    Acks {
        /// With the next write.
        Journal = "journal",
        /// With the next write, and answered after the sync: an acked message is never delivered again.
        Durable = "durable",
        /// When the checkpoint policy says so.
        Checkpoint = "checkpoint",
    }
}

choice! {
    /// What happens to a message that a full stream has no room for.
    OnFull {
        /// It is refused.
        Reject = "reject",
        /// The oldest message that is neither leased nor parked is dropped. If all are leased or parked, the new one
        /// is refused.
        DropOldest = "drop_oldest",
    }
}

choice! {
    /// Which messages of a key wait while others of it are leased.
    KeyLock {
        /// One delivery at a time: nothing of the key goes out while any of it is leased.
        Delivery = "delivery",
        /// A leased message holds back only the messages after it. Earlier ones that were given back go out again.
        Position = "position",
    }
}

/// Attempts after the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retries {
    AtMost(u32),
    Unlimited,
}

impl From<u32> for Retries {
    fn from(at_most: u32) -> Retries {
        Retries::AtMost(at_most)
    }
}

impl Retries {
    /// `None` is unlimited.
    pub fn at_most(self) -> Option<u32> {
        match self {
            Retries::AtMost(retries) => Some(retries),
            Retries::Unlimited => None,
        }
    }
}

/// The log has zero for unlimited, and one more than the number otherwise.
impl Setting for Retries {
    const KIND: Kind = Kind::Either(&[Kind::Whole, Kind::Words(&["unlimited"])]);

    fn text(&self) -> Option<String> {
        Some(self.at_most().map_or("unlimited".to_owned(), |retries| retries.to_string()))
    }

    fn store(&self, tag: u64, out: &mut Store<'_>) {
        out(tag, Stored::Number(self.at_most().map_or(0, |retries| u64::from(retries) + 1)));
    }

    fn load(&mut self, _: u64, raw: Raw<'_>) -> Result<bool, BadRaw> {
        *self = match raw.number()?.checked_sub(1) {
            Some(retries) => Retries::AtMost(u32::try_from(retries).unwrap_or(u32::MAX)),
            None => Retries::Unlimited,
        };
        Ok(true)
    }
}

/// What happens to a message whose retries are used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnExhausted {
    Park,
    Skip,
    /// It is settled here and published to this stream.
    Move(StreamName),
}

impl OnExhausted {
    /// The stream that the message is published to.
    pub fn destination(&self) -> Option<&StreamName> {
        match self {
            OnExhausted::Park | OnExhausted::Skip => None,
            OnExhausted::Move(to) => Some(to),
        }
    }
}

/// The log has nothing for `Park`, no bytes for `Skip` and the name for `Move`.
impl Setting for OnExhausted {
    const KIND: Kind = Kind::Either(&[
        Kind::Words(&["park", "skip"]),
        Kind::Object(&[Field::part("move", Kind::Text, Limit::None, "The stream that it is published to.")]),
    ]);

    fn text(&self) -> Option<String> {
        Some(match self {
            OnExhausted::Park => "park".to_owned(),
            OnExhausted::Skip => "skip".to_owned(),
            OnExhausted::Move(to) => format!("move to {to}"),
        })
    }

    fn store(&self, tag: u64, out: &mut Store<'_>) {
        match self {
            OnExhausted::Park => {}
            OnExhausted::Skip => out(tag, Stored::Bytes(&[])),
            OnExhausted::Move(to) => out(tag, Stored::Bytes(to.as_str().as_bytes())),
        }
    }

    fn load(&mut self, _: u64, raw: Raw<'_>) -> Result<bool, BadRaw> {
        *self = match std::str::from_utf8(raw.bytes).map_err(|_| BadRaw)? {
            "" => OnExhausted::Skip,
            to => OnExhausted::Move(StreamName::stored(to)),
        };
        Ok(true)
    }
}

/// What happens to a message that ends without a consumer: it has expired, or a full stream has dropped it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum OnEnd {
    #[default]
    Discard,
    /// It is settled here and published to this stream.
    Move(StreamName),
}

impl OnEnd {
    /// The stream that the message is published to.
    pub fn destination(&self) -> Option<&StreamName> {
        match self {
            OnEnd::Discard => None,
            OnEnd::Move(to) => Some(to),
        }
    }
}

/// The log has nothing for `Discard`, and the name for `Move`.
impl Setting for OnEnd {
    const KIND: Kind = Kind::Either(&[
        Kind::Words(&["discard"]),
        Kind::Object(&[Field::part("move", Kind::Text, Limit::None, "The stream that it is published to.")]),
    ]);

    fn text(&self) -> Option<String> {
        Some(match self {
            OnEnd::Discard => "discard".to_owned(),
            OnEnd::Move(to) => format!("move to {to}"),
        })
    }

    fn store(&self, tag: u64, out: &mut Store<'_>) {
        if let OnEnd::Move(to) = self {
            out(tag, Stored::Bytes(to.as_str().as_bytes()));
        }
    }

    fn load(&mut self, _: u64, raw: Raw<'_>) -> Result<bool, BadRaw> {
        let to = std::str::from_utf8(raw.bytes).map_err(|_| BadRaw)?;
        if to.is_empty() {
            return Err(BadRaw);
        }
        *self = OnEnd::Move(StreamName::stored(to));
        Ok(true)
    }
}

/// How a message goes to another stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveTerms {
    /// Creates the stream if it is absent. Otherwise the message stays in its group and is tried again, also if
    /// the stream exists and will never take it.
    pub create: bool,
    /// The message's age counts from its publish. Otherwise it counts from the move.
    pub keep_age: bool,
}

impl Default for MoveTerms {
    fn default() -> MoveTerms {
        MoveTerms { create: true, keep_age: false }
    }
}

/// Bits that say in what terms differ from the default.
const NOT_CREATED: u8 = 1;
const AGE_KEPT: u8 = 2;

impl MoveTerms {
    /// Zero for the default terms.
    pub fn bits(self) -> u8 {
        (if self.create { 0 } else { NOT_CREATED }) | (if self.keep_age { AGE_KEPT } else { 0 })
    }

    pub fn from_bits(bits: u64) -> Option<MoveTerms> {
        let has = |bit: u8| bits & u64::from(bit) != 0;
        let known = bits <= u64::from(NOT_CREATED | AGE_KEPT);
        known.then(|| MoveTerms { create: !has(NOT_CREATED), keep_age: has(AGE_KEPT) })
    }
}

impl Setting for MoveTerms {
    const KIND: Kind = Kind::Whole;

    fn text(&self) -> Option<String> {
        None
    }

    fn store(&self, tag: u64, out: &mut Store<'_>) {
        out(tag, Stored::Number(self.bits().into()));
    }

    fn load(&mut self, _: u64, raw: Raw<'_>) -> Result<bool, BadRaw> {
        *self = MoveTerms::from_bits(raw.number()?).ok_or(BadRaw)?;
        Ok(true)
    }
}

/// A steady pace, and how many may go at once after a rest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub per_second: f64,
    pub burst: u32,
}

impl Rate {
    /// With a burst of 1.
    pub fn per_second(per_second: f64) -> Rate {
        Rate { per_second, burst: 1 }
    }

    /// How many may go at once after a rest.
    #[must_use]
    pub fn burst(self, burst: u32) -> Rate {
        Rate { burst, ..self }
    }

    /// Whether both numbers are within their ranges. `field` is the name of the whole.
    pub fn check(&self, field: &str) -> Result<(), SettingsError> {
        Setting::check(self, field, Limit::None)
    }

    pub(crate) const FIELDS: [Field; 2] = [
        Field::part("per_second", Kind::Real, PER_SECOND, "How many for each second, on average."),
        Field {
            name: "burst",
            kind: Kind::Whole,
            nullable: false,
            default: || Some("1".to_owned()),
            limit: BURST,
            help: "How many at once, when the rate is new and after a rest. A restart of the server does not refill \
                   it.",
        },
    ];
}

const PER_SECOND: Limit = between(PER_SECOND_MIN, PER_SECOND_MAX);
const BURST: Limit = at_least(1);

impl Setting for Rate {
    const KIND: Kind = Kind::Object(&Rate::FIELDS);
    const TAGS: u64 = 2;

    fn text(&self) -> Option<String> {
        Some(format!("{} per second, burst {}", self.per_second, self.burst))
    }

    fn check(&self, field: &str, _: Limit) -> Result<(), SettingsError> {
        Setting::check(&self.per_second, &join(field, "per_second"), PER_SECOND)?;
        Setting::check(&self.burst, &join(field, "burst"), BURST)
    }

    fn difference(&self, is: &Rate, field: &str) -> Option<String> {
        let rate = Setting::difference(&self.per_second, &is.per_second, &join(field, "per_second"));
        rate.or_else(|| Setting::difference(&self.burst, &is.burst, &join(field, "burst")))
    }

    fn store(&self, tag: u64, out: &mut Store<'_>) {
        self.per_second.store(tag, out);
        self.burst.store(tag + 1, out);
    }

    fn load(&mut self, at: u64, raw: Raw<'_>) -> Result<bool, BadRaw> {
        match at {
            0 => self.per_second.load(0, raw),
            _ => self.burst.load(0, raw),
        }
    }
}

impl Optional for Rate {
    const BLANK: Rate = Rate { per_second: 0.0, burst: 1 };
}

/// The messages of other streams that a stream is fed with. All conditions hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Source {
    /// Messages of streams whose names begin with this. Empty: of all streams but those of the system.
    pub prefix: String,
    /// Messages of this type.
    pub kind: Option<String>,
    /// Messages with this header, as `name=value`.
    pub header: Option<String>,
}

/// The longest part of a [`Source`].
const SOURCE_BYTES_MAX: usize = 1_024;

impl Source {
    /// Messages of streams whose names begin with this.
    pub fn prefix(prefix: impl Into<String>) -> Source {
        Source { prefix: prefix.into(), ..Source::default() }
    }

    /// Only messages of this type.
    #[must_use]
    pub fn kind(self, kind: impl Into<String>) -> Source {
        Source { kind: Some(kind.into()), ..self }
    }

    /// Only messages with this header.
    #[must_use]
    pub fn header(self, name: &str, value: &str) -> Source {
        Source { header: Some(format!("{name}={value}")), ..self }
    }

    /// The name and the value of the header that messages must have.
    pub fn header_parts(&self) -> Option<(&str, &str)> {
        self.header.as_deref().and_then(|header| header.split_once('='))
    }
}

const SOURCE_FIELDS: [Field; 3] = [
    Field {
        name: "prefix",
        kind: Kind::Text,
        nullable: false,
        default: || Some(String::new()),
        limit: Limit::None,
        help: "Messages of streams whose names begin with this. Empty: of all streams.",
    },
    Field {
        name: "type",
        kind: Kind::Text,
        nullable: true,
        default: || Some("null".to_owned()),
        limit: Limit::None,
        help: "Only messages of this type.",
    },
    Field {
        name: "header",
        kind: Kind::Text,
        nullable: true,
        default: || Some("null".to_owned()),
        limit: Limit::None,
        help: "Only messages with this header, as `name=value`.",
    },
];

/// The log has the prefix, which may be empty, and the others if they are given.
impl Setting for Source {
    const KIND: Kind = Kind::Object(&SOURCE_FIELDS);
    const TAGS: u64 = 3;

    fn text(&self) -> Option<String> {
        let mut text = format!("{}*", self.prefix);
        if let Some(kind) = &self.kind {
            text = format!("{text}, type {kind}");
        }
        if let Some(header) = &self.header {
            text = format!("{text}, header {header}");
        }
        Some(text)
    }

    fn check(&self, field: &str, _: Limit) -> Result<(), SettingsError> {
        let parts =
            [("prefix", Some(&self.prefix)), ("type", self.kind.as_ref()), ("header", self.header.as_ref())];
        for (part, text) in parts {
            let Some(text) = text else { continue };
            if text.len() > SOURCE_BYTES_MAX || text.chars().any(char::is_control) {
                let rule = format!("at most {SOURCE_BYTES_MAX} bytes without control characters");
                let shown: String = text.chars().filter(|char| !char.is_control()).take(64).collect();
                return Err(SettingsError::new(&join(field, part), rule, shown));
            }
        }
        if self.prefix.starts_with('$') {
            let rule = "the beginning of names that do not begin with $";
            return Err(SettingsError::new(&join(field, "prefix"), rule, self.prefix.clone()));
        }
        if let Some(header) = &self.header
            && self.header_parts().is_none_or(|(name, _)| name.is_empty())
        {
            return Err(SettingsError::new(&join(field, "header"), "name=value", header.clone()));
        }
        Ok(())
    }

    fn difference(&self, is: &Source, field: &str) -> Option<String> {
        let differs = |differs: bool, part: &str| differs.then(|| join(field, part));
        differs(self.prefix != is.prefix, "prefix")
            .or_else(|| differs(self.kind != is.kind, "type"))
            .or_else(|| differs(self.header != is.header, "header"))
    }

    fn store(&self, tag: u64, out: &mut Store<'_>) {
        out(tag, Stored::Bytes(self.prefix.as_bytes()));
        if let Some(kind) = &self.kind {
            out(tag + 1, Stored::Bytes(kind.as_bytes()));
        }
        if let Some(header) = &self.header {
            out(tag + 2, Stored::Bytes(header.as_bytes()));
        }
    }

    fn load(&mut self, at: u64, raw: Raw<'_>) -> Result<bool, BadRaw> {
        let text = std::str::from_utf8(raw.bytes).map_err(|_| BadRaw)?.to_owned();
        match at {
            0 => self.prefix = text,
            1 => self.kind = Some(text),
            _ => self.header = Some(text),
        }
        Ok(true)
    }
}

impl Optional for Source {
    const BLANK: Source = Source { prefix: String::new(), kind: None, header: None };
}

/// How long messages are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// Until every group has settled them.
    Work,
    /// Whether groups have settled them or not, so that a group can be created later or moved back in time. `None`
    /// is no limit.
    Log { max_age: Option<Duration>, max_bytes: Option<u64>, max_messages: Option<u64> },
}

const LOG_FIELDS: [Field; 3] = [
    Field {
        name: "max_age",
        kind: Kind::Span,
        nullable: true,
        default: || Some("null".to_owned()),
        limit: AGE,
        help: "Older messages are dropped.",
    },
    Field {
        name: "max_bytes",
        kind: Kind::Whole,
        nullable: true,
        default: || Some("null".to_owned()),
        limit: at_least(1),
        help: "Beyond it the oldest are dropped.",
    },
    Field {
        name: "max_messages",
        kind: Kind::Whole,
        nullable: true,
        default: || Some("null".to_owned()),
        limit: at_least(1),
        help: "Beyond it the oldest are dropped.",
    },
];

const AGE: Limit = lasting(INSTANT, AGE_MAX);

/// The log has a 1 for `Log`, then its three limits.
impl Setting for Retention {
    const KIND: Kind = Kind::Either(&[Kind::Words(&["work"]), Kind::Object(&LOG_FIELDS)]);
    const TAGS: u64 = 4;

    fn text(&self) -> Option<String> {
        Some(if *self == Retention::Work { "work" } else { "log" }.to_owned())
    }

    fn check(&self, field: &str, _: Limit) -> Result<(), SettingsError> {
        let Retention::Log { max_age, max_bytes, max_messages } = self else { return Ok(()) };
        max_age.check(&join(field, "max_age"), AGE)?;
        max_bytes.check(&join(field, "max_bytes"), at_least(1))?;
        max_messages.check(&join(field, "max_messages"), at_least(1))
    }

    fn difference(&self, is: &Retention, field: &str) -> Option<String> {
        match (self, is) {
            (
                Retention::Log { max_age, max_bytes, max_messages },
                Retention::Log { max_age: age, max_bytes: bytes, max_messages: messages },
            ) => max_age
                .difference(age, &join(field, "max_age"))
                .or_else(|| max_bytes.difference(bytes, &join(field, "max_bytes")))
                .or_else(|| max_messages.difference(messages, &join(field, "max_messages"))),
            _ => (self != is).then(|| field.to_owned()),
        }
    }

    fn store(&self, tag: u64, out: &mut Store<'_>) {
        if let Retention::Log { max_age, max_bytes, max_messages } = self {
            out(tag, Stored::Number(1));
            max_age.store(tag + 1, out);
            max_bytes.store(tag + 2, out);
            max_messages.store(tag + 3, out);
        }
    }

    fn load(&mut self, at: u64, raw: Raw<'_>) -> Result<bool, BadRaw> {
        match (at, self) {
            (0, retention) => {
                let log = Retention::Log { max_age: None, max_bytes: None, max_messages: None };
                *retention = if raw.number()? == 1 { log } else { Retention::Work };
                Ok(true)
            }
            (1, Retention::Log { max_age, .. }) => max_age.load(0, raw),
            (2, Retention::Log { max_bytes, .. }) => max_bytes.load(0, raw),
            (3, Retention::Log { max_messages, .. }) => max_messages.load(0, raw),
            _ => Err(BadRaw),
        }
    }
}

/// A place in a stream, where a group begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the first message that is kept.
    Beginning,
    /// After the last message that is there now.
    End,
    /// With this message.
    Seq(Seq),
    /// With the first message that was published then or later, and perhaps with some that were published
    /// shortly before.
    Time(Timestamp),
}

impl Start {
    /// With this message.
    pub fn seq(seq: impl Into<Seq>) -> Start {
        Start::Seq(seq.into())
    }

    /// With the first message that was published then or later.
    pub fn time(at: impl Into<Timestamp>) -> Start {
        Start::Time(at.into())
    }
}

/// The log has nothing for `Beginning` and one tag for each of the others.
impl Setting for Start {
    const KIND: Kind = Kind::Either(&[
        Kind::Words(&["beginning", "end"]),
        Kind::Object(&[Field::part("seq", Kind::Whole, Limit::None, "The position of the first message.")]),
        Kind::Object(&[Field::part("time", Kind::Time, Limit::None, "Messages published then or later.")]),
    ]);
    const TAGS: u64 = 3;

    fn text(&self) -> Option<String> {
        Some(match self {
            Start::Beginning => "beginning".to_owned(),
            Start::End => "end".to_owned(),
            Start::Seq(seq) => seq.to_string(),
            Start::Time(time) => crate::text::Time(time.0).to_string(),
        })
    }

    fn store(&self, tag: u64, out: &mut Store<'_>) {
        match self {
            Start::Beginning => {}
            Start::End => out(tag, Stored::Bytes(&[])),
            Start::Seq(seq) => out(tag + 1, Stored::Number(seq.0)),
            Start::Time(time) => out(tag + 2, Stored::Number(time.0)),
        }
    }

    fn load(&mut self, at: u64, raw: Raw<'_>) -> Result<bool, BadRaw> {
        *self = match at {
            0 => Start::End,
            1 => Start::Seq(Seq(raw.number()?)),
            _ => Start::Time(Timestamp(raw.number()?)),
        };
        Ok(true)
    }
}
