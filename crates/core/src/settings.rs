//! What users may choose about a stream and a group, and how the log writes it down.
//!
//! On disk settings are a list of `field | length | value`, so that a field added later is simply
//! absent from what was written before, and then has its default.

use std::time::Duration;

use crate::codec::{Cursor, DecodeError, put_bytes, put_varint};
use crate::pace::Rate;
use crate::shard::Start;
use crate::types::{Attempt, Seq, StreamName, Timestamp, micros};

/// What users may choose about a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamSettings {
    pub retention: Retention,
    /// How long a message id is remembered, so that a second publish with it stores nothing.
    pub dedupe_window: Duration,
    /// How many ids are remembered at most; beyond, the window shortens.
    pub dedupe_max: u32,
    pub limits: StreamLimits,
    /// What producers may publish, over all of them.
    pub ingress: Option<Rate>,
    /// How long messages wait that do not say so themselves. A change moves everything that waits already by as much.
    pub delay: Duration,
}

impl Default for StreamSettings {
    fn default() -> StreamSettings {
        StreamSettings {
            retention: Retention::Work,
            dedupe_window: Duration::from_secs(600),
            dedupe_max: 1_000_000,
            limits: StreamLimits::default(),
            ingress: None,
            delay: Duration::ZERO,
        }
    }
}

/// How long messages are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retention {
    /// Until every group has settled them.
    Work,
    /// Whatever the groups did, so that a group can be created later or moved back in time.
    Log { age_max: Option<Duration>, bytes_max: Option<u64>, messages_max: Option<u64> },
}

/// What a stream may hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamLimits {
    pub messages_max: Option<u64>,
    pub bytes_max: Option<u64>,
    pub age_max: Option<Duration>,
    pub on_full: OnFull,
}

/// What happens to a message that a full stream has no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFull {
    #[default]
    Reject,
    /// The oldest that is neither leased nor parked goes. If there is none, the new one is refused.
    DropOldest,
}

/// What a stream may hold that nobody created in so many words, so that a typing mistake cannot fill the disk.
pub const UNASKED_BYTES_MAX: u64 = 10 << 30;

impl StreamSettings {
    /// For a stream that comes about with its first message: published to it, or moved there.
    pub fn unasked() -> StreamSettings {
        let limits = StreamLimits { bytes_max: Some(UNASKED_BYTES_MAX), ..StreamLimits::default() };
        StreamSettings { limits, ..StreamSettings::default() }
    }

    /// The age after which a message is gone, whatever asks for it.
    pub fn age_max(&self) -> Option<Duration> {
        let kept = match self.retention {
            Retention::Log { age_max, .. } => age_max,
            Retention::Work => None,
        };
        kept.into_iter().chain(self.limits.age_max).min()
    }

    /// Whether everything is within its range. Past this point nobody checks again.
    pub fn check(&self) -> Result<(), SettingsError> {
        let zero = |limit: Option<u64>| limit == Some(0);
        let (age, bytes, messages) = match self.retention {
            Retention::Log { age_max, bytes_max, messages_max } => (age_max, bytes_max, messages_max),
            Retention::Work => (None, None, None),
        };
        let ages = age.into_iter().chain(self.limits.age_max);
        match () {
            () if [bytes, messages, self.limits.bytes_max, self.limits.messages_max]
                .into_iter()
                .any(zero) =>
            {
                Err(SettingsError::NoRoom)
            }
            () if ages.clone().any(|age| micros(age) == 0) => Err(SettingsError::NoRoom),
            () if ages.clone().any(|age| age > AGE_MAX) => Err(SettingsError::TooOld),
            () if self.dedupe_window > YEAR || self.delay > YEAR => Err(SettingsError::TooLong),
            () => self.ingress.map_or(Ok(()), check_rate),
        }
    }
}

/// What users may choose about a group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupSettings {
    /// Where the group began. Counts when it is created, and is kept so that it can be told.
    pub start: Start,
    pub strategy: Strategy,
    /// Length of a lease when the consumer asks for none.
    pub message_timeout: Duration,
    /// Attempts after the first; `None` is unlimited.
    pub retries_max: Option<u32>,
    pub on_exhausted: OnExhausted,
    /// Counts where those whose retries are used up are moved.
    pub move_terms: MoveTerms,
    pub backoff: Backoff,
    /// Ordered: messages of one key that may go out together to one consumer.
    pub key_batch: u32,
    /// Ordered: what keeps the rest of a key waiting.
    pub key_lock: KeyLock,
    /// Ordered: what follows a parked message of the key.
    pub on_parked_key: OnParkedKey,
    pub fairness: Fairness,
    /// Waiting this long raises a message by one priority.
    pub priority_age_step: Duration,
    /// Ready, waiting and leased together.
    pub window_max: u32,
    pub parked_max: u32,
    pub parked_age_max: Option<Duration>,
    /// Leases that the whole group may hold at once.
    pub in_flight_max: u32,
    /// Zero is no limit but the server's.
    pub consumers_max: u32,
    /// The steady pace that whatever is behind the consumers can bear.
    pub rate: Option<Rate>,
    pub acks: Acks,
    pub checkpoint: CheckpointPolicy,
    /// Messages read ahead of dispatch.
    pub buffer: u32,
    /// Whether processing times are kept as a histogram.
    pub extra_statistics: bool,
}

impl Default for GroupSettings {
    fn default() -> GroupSettings {
        GroupSettings {
            start: Start::Beginning,
            strategy: Strategy::RoundRobin,
            message_timeout: Duration::from_secs(30),
            retries_max: Some(10),
            on_exhausted: OnExhausted::Park,
            move_terms: MoveTerms::default(),
            backoff: Backoff::default(),
            key_batch: 1,
            key_lock: KeyLock::Delivery,
            on_parked_key: OnParkedKey::Continue,
            fairness: Fairness::None,
            priority_age_step: Duration::from_secs(60),
            window_max: 100_000,
            parked_max: 1_000_000,
            parked_age_max: None,
            in_flight_max: 10_000,
            consumers_max: 0,
            rate: None,
            acks: Acks::Journal,
            checkpoint: CheckpointPolicy::default(),
            buffer: 500,
            extra_statistics: true,
        }
    }
}

/// Whom a message is offered to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Consumers take turns.
    RoundRobin = 0,
    /// One consumer gets everything until it has no room, then the next.
    Single = 1,
    /// A key stays with one consumer until that one leaves.
    Pinned = 2,
    /// One message of a key at a time, in order, with any number of consumers.
    Ordered = 3,
}

/// What becomes of a message whose retries are used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnExhausted {
    Park,
    Skip,
    /// Settled here and published there.
    Move(StreamName),
}

/// What keeps messages of a key waiting while others of it are with a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyLock {
    /// One delivery at a time: nothing of the key goes while any of it is leased.
    Delivery = 0,
    /// Whatever is leased keeps back only what comes after it. What comes before and was given back goes again.
    Position = 1,
}

/// How a message goes to another stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoveTerms {
    /// A stream that is not there is created. Otherwise the message stays in its group and is tried again, also if
    /// the stream is there and will never take it.
    pub create: bool,
    /// It gets as old there as if it had been published there in the first place. Otherwise its age counts from the
    /// move.
    pub keep_age: bool,
}

impl Default for MoveTerms {
    fn default() -> MoveTerms {
        MoveTerms { create: true, keep_age: false }
    }
}

/// Bits that say where terms are not the usual ones.
const NOT_CREATED: u8 = 1;
const AGE_KEPT: u8 = 2;

impl MoveTerms {
    /// Zero for the usual terms.
    pub(crate) fn bits(self) -> u8 {
        (if self.create { 0 } else { NOT_CREATED }) | (if self.keep_age { AGE_KEPT } else { 0 })
    }

    pub(crate) fn of_bits(bits: u64) -> Result<MoveTerms, DecodeError> {
        if bits > u64::from(NOT_CREATED | AGE_KEPT) {
            return Err(DecodeError::OutOfRange("terms of a move"));
        }
        let has = |bit: u8| bits & u64::from(bit) != 0;
        Ok(MoveTerms { create: !has(NOT_CREATED), keep_age: has(AGE_KEPT) })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnParkedKey {
    Continue = 0,
    /// The rest of the key waits until the parked message is replayed or discarded.
    Hold = 1,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fairness {
    None = 0,
    /// Keys take turns.
    Key = 1,
}

/// When an ack is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acks {
    /// With the next frame.
    Journal = 0,
    /// With the next frame, and answered after the sync.
    Durable = 1,
    /// When the checkpoint policy says so.
    Checkpoint = 2,
}

/// How often a group writes down its progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointPolicy {
    pub interval: Duration,
    pub messages_min: u32,
    pub messages_max: u32,
}

impl Default for CheckpointPolicy {
    fn default() -> CheckpointPolicy {
        CheckpointPolicy { interval: Duration::from_secs(2), messages_min: 10, messages_max: 1_000 }
    }
}

/// Why settings were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    #[error("the factor of a backoff is between 1 and 100")]
    Factor,
    #[error("the jitter of a backoff is between 0 and 1")]
    Jitter,
    #[error("a duration is longer than a year")]
    TooLong,
    #[error("messages are kept for no more than a hundred years")]
    TooOld,
    #[error("the least wait of a backoff is longer than the most")]
    DelayOrder,
    #[error("a lease lasts for some time")]
    NoTimeout,
    #[error("a limit leaves room for at least one")]
    NoRoom,
    #[error("a rate is between 0.001 and 10 million a second, with a burst of at least one")]
    Rate,
    #[error("a checkpoint's least number of messages is above its most, or its most is zero")]
    Checkpoint,
    #[error("keys that stay with one consumer cannot take turns as well")]
    PinnedFairness,
    #[error("a message cannot be moved to the stream it is in")]
    MoveToItself,
}

/// Nothing that is waited for takes longer.
pub(crate) const YEAR: Duration = Duration::from_secs(366 * 86_400);
/// But what is kept may be kept for long.
const AGE_MAX: Duration = Duration::from_secs(100 * 366 * 86_400);

impl GroupSettings {
    /// Whether everything is within its range. Past this point nobody checks again.
    pub fn check(&self) -> Result<(), SettingsError> {
        let backoff = &self.backoff;
        match () {
            () if !(1.0..=100.0).contains(&backoff.factor) => Err(SettingsError::Factor),
            () if !(0.0..=1.0).contains(&backoff.jitter) => Err(SettingsError::Jitter),
            () if backoff.delay_max > YEAR || self.message_timeout > YEAR => Err(SettingsError::TooLong),
            () if backoff.delay_min > backoff.delay_max => Err(SettingsError::DelayOrder),
            () if micros(self.message_timeout) == 0 => Err(SettingsError::NoTimeout),
            () if [self.window_max, self.parked_max, self.in_flight_max, self.buffer, self.key_batch]
                .contains(&0) =>
            {
                Err(SettingsError::NoRoom)
            }
            () if self.checkpoint.messages_min > self.checkpoint.messages_max
                || self.checkpoint.messages_max == 0 =>
            {
                Err(SettingsError::Checkpoint)
            }
            () if self.strategy == Strategy::Pinned && self.fairness == Fairness::Key => {
                Err(SettingsError::PinnedFairness)
            }
            () => self.rate.map_or(Ok(()), check_rate),
        }
    }

    /// Whether messages are looked at one by one, for their keys.
    pub fn is_keyed(&self) -> bool {
        matches!(self.strategy, Strategy::Ordered | Strategy::Pinned) || self.fairness == Fairness::Key
    }

    /// Whether a message that failed this attempt has used up its retries.
    pub fn is_exhausted(&self, attempt: Attempt) -> bool {
        self.retries_max.is_some_and(|retries| attempt.0 > retries)
    }
}

fn check_rate(rate: Rate) -> Result<(), SettingsError> {
    let fits = (0.001..=10_000_000.0).contains(&rate.per_second) && rate.burst > 0;
    if fits { Ok(()) } else { Err(SettingsError::Rate) }
}

/// How long to wait before a message that failed is offered again.
#[derive(Debug, Clone, PartialEq)]
pub struct Backoff {
    pub delay_min: Duration,
    pub delay_max: Duration,
    pub factor: f64,
    /// 0 is none; 1 spreads a retry over the whole wait.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff {
            delay_min: Duration::from_millis(100),
            delay_max: Duration::from_secs(30),
            factor: 2.0,
            jitter: 0.5,
        }
    }
}

impl Backoff {
    /// When a message that failed `attempt` at `now` may be offered again.
    ///
    /// The jitter is a function of the message and the attempt rather than of a random source, so that
    /// a re-run simulation arrives at the same schedule.
    pub fn ready_at(&self, now: Timestamp, seq: Seq, attempt: Attempt) -> Timestamp {
        let doublings = attempt.0.saturating_sub(1).min(64);
        let full = self.delay_min.as_secs_f64() * self.factor.powi(doublings as i32);
        let full = full.min(self.delay_max.as_secs_f64());
        let spread = 1.0 - self.jitter * unit_hash(seq, attempt);
        now + Duration::from_secs_f64(full * spread)
    }
}

/// A number in 0..1 that looks random and is always the same for the same message and attempt.
fn unit_hash(seq: Seq, attempt: Attempt) -> f64 {
    let mut x = seq.0 ^ (u64::from(attempt.0) << 48) ^ 0x9e37_79b9_7f4a_7c15;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Collects `field | length | value`.
struct Fields<'a>(&'a mut Vec<u8>);

impl Fields<'_> {
    fn number(&mut self, field: u64, value: u64) {
        let mut bytes = Vec::with_capacity(10);
        put_varint(&mut bytes, value);
        self.bytes(field, &bytes);
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        put_varint(self.0, field);
        put_bytes(self.0, value);
    }

    /// Left out where there is none, which is what a reader takes its absence for.
    fn some(&mut self, field: u64, value: Option<u64>) {
        if let Some(value) = value {
            self.number(field, value);
        }
    }

    fn duration(&mut self, field: u64, value: Duration) {
        self.number(field, micros(value));
    }

    fn float(&mut self, field: u64, value: f64) {
        self.number(field, value.to_bits());
    }

    /// Two fields in a row.
    fn rate(&mut self, field: u64, rate: Option<Rate>) {
        if let Some(rate) = rate {
            self.float(field, rate.per_second);
            self.number(field + 1, rate.burst.into());
        }
    }
}

/// The value of one field.
struct Value<'a>(&'a [u8]);

impl Value<'_> {
    fn number(&self) -> Result<u64, DecodeError> {
        Cursor::new(self.0).varint()
    }

    fn small(&self) -> Result<u32, DecodeError> {
        Ok(u32::try_from(self.number()?).unwrap_or(u32::MAX))
    }

    fn duration(&self) -> Result<Duration, DecodeError> {
        Ok(Duration::from_micros(self.number()?))
    }

    /// Ages had no limit once, and what was stored then has to be readable.
    fn age(&self) -> Result<Duration, DecodeError> {
        Ok(self.duration()?.min(AGE_MAX))
    }

    fn float(&self) -> Result<f64, DecodeError> {
        Ok(f64::from_bits(self.number()?))
    }

    fn stream(&self) -> Result<StreamName, DecodeError> {
        Ok(StreamName::stored(std::str::from_utf8(self.0).map_err(|_| DecodeError::NotText)?))
    }

    /// One of a closed set.
    fn choice<T: Copy>(&self, choices: &[T]) -> Result<T, DecodeError> {
        let number = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        choices.get(number).copied().ok_or(DecodeError::OutOfRange("choice in settings"))
    }
}

/// Reads `field | length | value` until the end and hands each value to `set`, which says whether it
/// knows the field.
fn read_fields(
    bytes: &[u8],
    mut set: impl FnMut(u64, Value<'_>) -> Result<bool, DecodeError>,
) -> Result<(), DecodeError> {
    let mut cursor = Cursor::new(bytes);
    while !cursor.is_at_end() {
        let field = cursor.varint()?;
        if !set(field, Value(cursor.bytes()?))? {
            return Err(DecodeError::UnknownField { field });
        }
    }
    Ok(())
}

impl StreamSettings {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut fields = Fields(out);
        fields.duration(1, self.dedupe_window);
        fields.number(2, self.dedupe_max.into());
        if let Retention::Log { age_max, bytes_max, messages_max } = self.retention {
            fields.number(3, 1);
            fields.some(4, age_max.map(micros));
            fields.some(5, bytes_max);
            fields.some(6, messages_max);
        }
        fields.some(7, self.limits.messages_max);
        fields.some(8, self.limits.bytes_max);
        fields.some(9, self.limits.age_max.map(micros));
        fields.number(10, self.limits.on_full as u64);
        fields.rate(11, self.ingress);
        fields.some(13, Some(micros(self.delay)).filter(|&delay| delay > 0));
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<StreamSettings, DecodeError> {
        let mut settings = StreamSettings::default();
        let (mut log, mut age, mut most_bytes, mut most_messages) = (false, None, None, None);
        let mut rate = NO_RATE;
        read_fields(bytes, |field, value| {
            match field {
                1 => settings.dedupe_window = value.duration()?,
                2 => settings.dedupe_max = value.small()?,
                3 => log = value.choice(&[false, true])?,
                4 => age = Some(value.age()?),
                5 => most_bytes = Some(value.number()?),
                6 => most_messages = Some(value.number()?),
                7 => settings.limits.messages_max = Some(value.number()?),
                8 => settings.limits.bytes_max = Some(value.number()?),
                9 => settings.limits.age_max = Some(value.age()?),
                10 => settings.limits.on_full = value.choice(&[OnFull::Reject, OnFull::DropOldest])?,
                11 => rate.per_second = value.float()?,
                12 => rate.burst = value.small()?,
                13 => settings.delay = value.duration()?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        if log {
            settings.retention =
                Retention::Log { age_max: age, bytes_max: most_bytes, messages_max: most_messages };
        }
        settings.ingress = (rate.burst > 0).then_some(rate);
        settings.check().map_err(|_| DecodeError::OutOfRange("settings of a stream"))?;
        Ok(settings)
    }
}

const NO_RATE: Rate = Rate { per_second: 0.0, burst: 0 };

impl GroupSettings {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut fields = Fields(out);
        fields.duration(1, self.message_timeout);
        // Zero is unlimited, so that the number itself is never special.
        fields.number(2, self.retries_max.map_or(0, |retries| u64::from(retries) + 1));
        fields.duration(3, self.backoff.delay_min);
        fields.duration(4, self.backoff.delay_max);
        fields.float(5, self.backoff.factor);
        fields.float(6, self.backoff.jitter);
        fields.number(7, self.in_flight_max.into());
        fields.number(8, self.buffer.into());
        fields.number(9, self.strategy as u64);
        match &self.on_exhausted {
            OnExhausted::Park => {}
            OnExhausted::Skip => fields.bytes(10, &[]),
            OnExhausted::Move(to) => fields.bytes(10, to.as_str().as_bytes()),
        }
        fields.number(11, self.key_batch.into());
        fields.number(12, self.on_parked_key as u64);
        fields.number(13, self.fairness as u64);
        fields.duration(14, self.priority_age_step);
        fields.number(15, self.window_max.into());
        fields.number(16, self.parked_max.into());
        fields.some(17, self.parked_age_max.map(micros));
        fields.number(18, self.consumers_max.into());
        fields.rate(19, self.rate);
        fields.number(21, self.acks as u64);
        fields.duration(22, self.checkpoint.interval);
        fields.number(23, self.checkpoint.messages_min.into());
        fields.number(24, self.checkpoint.messages_max.into());
        fields.number(25, self.extra_statistics.into());
        match self.start {
            Start::Beginning => {}
            Start::End => fields.bytes(26, &[]),
            Start::At(seq) => fields.number(27, seq.0),
            Start::Time(time) => fields.number(28, time.0),
        }
        // Written where it is asked for, so that an earlier release can read all others.
        if self.key_lock != KeyLock::Delivery {
            fields.number(30, self.key_lock as u64);
        }
        fields.some(40, Some(self.move_terms.bits().into()).filter(|&bits| bits > 0));
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<GroupSettings, DecodeError> {
        let mut settings = GroupSettings::default();
        let mut rate = NO_RATE;
        read_fields(bytes, |field, value| {
            match field {
                1 => settings.message_timeout = value.duration()?,
                2 => settings.retries_max = value.number()?.checked_sub(1).map(|n| n as u32),
                3 => settings.backoff.delay_min = value.duration()?,
                4 => settings.backoff.delay_max = value.duration()?,
                5 => settings.backoff.factor = value.float()?,
                6 => settings.backoff.jitter = value.float()?,
                7 => settings.in_flight_max = value.small()?,
                8 => settings.buffer = value.small()?,
                9 => settings.strategy = value.choice(&STRATEGIES)?,
                10 if value.0.is_empty() => settings.on_exhausted = OnExhausted::Skip,
                10 => settings.on_exhausted = OnExhausted::Move(value.stream()?),
                11 => settings.key_batch = value.small()?,
                12 => settings.on_parked_key = value.choice(&[OnParkedKey::Continue, OnParkedKey::Hold])?,
                13 => settings.fairness = value.choice(&[Fairness::None, Fairness::Key])?,
                14 => settings.priority_age_step = value.duration()?,
                15 => settings.window_max = value.small()?,
                16 => settings.parked_max = value.small()?,
                17 => settings.parked_age_max = Some(value.duration()?),
                18 => settings.consumers_max = value.small()?,
                19 => rate.per_second = value.float()?,
                20 => rate.burst = value.small()?,
                21 => settings.acks = value.choice(&[Acks::Journal, Acks::Durable, Acks::Checkpoint])?,
                22 => settings.checkpoint.interval = value.duration()?,
                23 => settings.checkpoint.messages_min = value.small()?,
                24 => settings.checkpoint.messages_max = value.small()?,
                25 => settings.extra_statistics = value.choice(&[false, true])?,
                26 => settings.start = Start::End,
                27 => settings.start = Start::At(Seq(value.number()?)),
                28 => settings.start = Start::Time(Timestamp(value.number()?)),
                30 => settings.key_lock = value.choice(&[KeyLock::Delivery, KeyLock::Position])?,
                40 => settings.move_terms = MoveTerms::of_bits(value.number()?)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        settings.rate = (rate.burst > 0).then_some(rate);
        settings.check().map_err(|_| DecodeError::OutOfRange("settings of a group"))?;
        Ok(settings)
    }
}

const STRATEGIES: [Strategy; 4] =
    [Strategy::RoundRobin, Strategy::Single, Strategy::Pinned, Strategy::Ordered];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_the_round_trip() {
        let group = GroupSettings {
            start: Start::Time(Timestamp(21)),
            strategy: Strategy::Ordered,
            message_timeout: Duration::from_millis(1_500),
            retries_max: None,
            on_exhausted: OnExhausted::Move(StreamName::stored("elsewhere")),
            move_terms: MoveTerms { create: false, keep_age: true },
            backoff: Backoff { jitter: 0.25, ..Backoff::default() },
            key_batch: 3,
            key_lock: KeyLock::Position,
            on_parked_key: OnParkedKey::Hold,
            fairness: Fairness::Key,
            priority_age_step: Duration::from_secs(9),
            window_max: 11,
            parked_max: 12,
            parked_age_max: Some(Duration::from_secs(13)),
            in_flight_max: 14,
            consumers_max: 15,
            rate: Some(Rate { per_second: 0.5, burst: 16 }),
            acks: Acks::Checkpoint,
            checkpoint: CheckpointPolicy {
                interval: Duration::from_secs(17),
                messages_min: 18,
                messages_max: 19,
            },
            buffer: 7,
            extra_statistics: false,
        };
        let mut bytes = Vec::new();
        group.encode(&mut bytes);
        assert_eq!(GroupSettings::decode(&bytes), Ok(group));

        let skip = GroupSettings { on_exhausted: OnExhausted::Skip, ..GroupSettings::default() };
        let mut bytes = Vec::new();
        skip.encode(&mut bytes);
        assert_eq!(GroupSettings::decode(&bytes), Ok(skip));

        let stream = StreamSettings {
            retention: Retention::Log {
                age_max: Some(Duration::from_secs(1)),
                bytes_max: None,
                messages_max: Some(2),
            },
            dedupe_window: Duration::from_secs(3),
            dedupe_max: 3,
            limits: StreamLimits {
                messages_max: Some(4),
                bytes_max: Some(5),
                age_max: Some(Duration::from_secs(6)),
                on_full: OnFull::DropOldest,
            },
            delay: Duration::from_secs(7),
            ingress: Some(Rate { per_second: 7.5, burst: 8 }),
        };
        let mut bytes = Vec::new();
        stream.encode(&mut bytes);
        assert_eq!(StreamSettings::decode(&bytes), Ok(stream));
    }

    #[test]
    fn a_field_of_a_later_release_is_named() {
        let mut bytes = Vec::new();
        Fields(&mut bytes).number(99, 1);
        assert_eq!(GroupSettings::decode(&bytes), Err(DecodeError::UnknownField { field: 99 }));
    }

    #[test]
    fn settings_that_cannot_be_are_refused() {
        let with = |backoff: Backoff| GroupSettings { backoff, ..GroupSettings::default() }.check();
        let default = Backoff::default;
        assert_eq!(with(default()), Ok(()));
        assert_eq!(with(Backoff { jitter: 1.5, ..default() }), Err(SettingsError::Jitter));
        assert_eq!(with(Backoff { jitter: f64::NAN, ..default() }), Err(SettingsError::Jitter));
        assert_eq!(with(Backoff { factor: -1.0, ..default() }), Err(SettingsError::Factor));
        assert_eq!(with(Backoff { delay_max: YEAR * 2, ..default() }), Err(SettingsError::TooLong));
        assert_eq!(with(Backoff { delay_min: YEAR, ..default() }), Err(SettingsError::DelayOrder));
        let none = GroupSettings { message_timeout: Duration::ZERO, ..GroupSettings::default() };
        assert_eq!(none.check(), Err(SettingsError::NoTimeout));
    }

    #[test]
    fn backoff_grows_to_its_cap_and_stays_within_its_jitter() {
        let backoff = Backoff::default();
        for (attempt, full_ms) in [(1, 100), (2, 200), (5, 1_600), (9, 25_600), (10, 30_000), (400, 30_000)] {
            for seq in 1..200 {
                let at = backoff.ready_at(Timestamp::ZERO, Seq(seq), Attempt(attempt)).0;
                assert!((full_ms * 500..=full_ms * 1_000).contains(&at), "attempt {attempt} waits {at} µs");
            }
        }
    }
}
