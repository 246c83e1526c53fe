//! What streams and groups can be told. Whatever is not set has its default, or is left as it is.

use std::time::{Duration, SystemTime};

/// Declares a struct of settings that may each be absent, with a method to set each. The parameter of one that says
/// `into` may be anything that becomes the setting.
macro_rules! settings {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty $(, into $from:ty)?;)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Default, PartialEq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$doc])* pub $field: Option<$type>,)*
        }

        impl $name {
            pub fn new() -> $name {
                $name::default()
            }

            $(settings!(@setter $(#[$doc])* $field: $type $(, into $from)?);)*
        }
    };
    (@setter $(#[$doc:meta])* $field:ident: $type:ty) => {
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = Some($field);
            self
        }
    };
    (@setter $(#[$doc:meta])* $field:ident: $type:ty, into $from:ty) => {
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: $from) -> Self {
            self.$field = Some($field.into());
            self
        }
    };
}

settings! {
    /// Settings of a stream.
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebay_client::admin::settings::{OnFull, Rate, Retention, StreamSettings};
    ///
    /// let settings = StreamSettings::new()
    ///     .retention(Retention::Work)
    ///     .max_messages(100_000)
    ///     .on_full(OnFull::Reject)
    ///     .dedupe_window(Duration::from_secs(3_600))
    ///     .ingress_rate(Rate::per_second(500.0).burst(50));
    /// ```
    StreamSettings {
        /// How long a message id is remembered.
        dedupe_window: Duration;
        /// How many ids are remembered at most.
        dedupe_max: u32;
        /// How long messages are kept.
        retention: Retention;
        /// The most messages that the stream holds.
        max_messages: u64;
        /// The most bytes that the stream holds.
        max_bytes: u64;
        /// How old a message may become.
        max_age: Duration;
        /// What becomes of a message for which there is no room.
        on_full: OnFull;
        /// What all producers together may publish.
        ingress_rate: Rate;
    }
}

settings! {
    /// Settings of a group.
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebay_client::admin::settings::{Backoff, GroupSettings, Rate, Retries, Start, Strategy};
    ///
    /// let settings = GroupSettings::new()
    ///     .start(Start::End)
    ///     .strategy(Strategy::Ordered)
    ///     .message_timeout(Duration::from_secs(60))
    ///     .max_retries(5)
    ///     .backoff(Backoff::new().min(Duration::from_secs(1)).max(Duration::from_secs(60)))
    ///     .rate(Rate::per_second(100.0).burst(20));
    /// assert_eq!(settings.max_retries, Some(Retries::AtMost(5)));
    /// ```
    GroupSettings {
        /// Where a new group begins. Only when it is created; a reset moves it later.
        start: Start;
        /// To whom messages go.
        strategy: Strategy;
        /// How long a lease lasts.
        message_timeout: Duration;
        /// Attempts after the first.
        max_retries: Retries, into impl Into<Retries>;
        /// What becomes of a message whose retries are used up.
        on_exhausted: OnExhausted;
        /// The wait before a retry.
        backoff: Backoff;
        /// Ordered: messages of one key that may go out together to one consumer.
        key_batch: u32;
        /// Ordered: what follows a parked message of the key.
        on_parked_key: OnParkedKey;
        /// Whether keys take turns.
        fairness: Fairness;
        /// Waiting this long raises a message by one priority. Zero: never.
        priority_age_step: Duration;
        /// Messages that are ready, waiting and leased together.
        window_max: u32;
        /// The most parked messages.
        parked_max: u32;
        /// How old a parked message may become.
        parked_max_age: Duration;
        /// Leases that the whole group may hold at once.
        max_in_flight: u32;
        /// Zero is no limit.
        max_consumers: u32;
        /// The steady pace at which messages go out.
        rate: Rate;
        /// When an ack is written down.
        acks: Acks;
        /// How often a group writes down its progress.
        checkpoint: Checkpoint;
        /// Messages read ahead of dispatch.
        buffer: u32;
        /// Whether processing times are kept.
        extra_statistics: bool;
    }
}

settings! {
    /// The wait before a retry: `min`, times `factor` for each attempt, up to `max`; then a value between that and
    /// that times one less `jitter`.
    Backoff {
        min: Duration;
        max: Duration;
        factor: f64;
        jitter: f64;
    }
}

settings! {
    /// How often a group writes down its progress.
    Checkpoint {
        interval: Duration;
        /// Messages since the last time, at least.
        min: u32;
        /// And at most.
        max: u32;
    }
}

/// How long messages are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retention {
    /// Until every group has settled them.
    Work,
    /// Whatever the groups did. What is absent is no limit.
    Log { max_age: Option<Duration>, max_bytes: Option<u64>, max_messages: Option<u64> },
}

/// What becomes of a message for which there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFull {
    Reject,
    /// The oldest that is neither leased nor parked goes.
    DropOldest,
}

/// A steady pace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub per_second: f64,
    /// How many at once after a rest. Zero means one.
    pub burst: u32,
}

impl Rate {
    pub fn per_second(per_second: f64) -> Rate {
        Rate { per_second, burst: 0 }
    }

    /// How many at once after a rest.
    #[must_use]
    pub fn burst(self, burst: u32) -> Rate {
        Rate { burst, ..self }
    }
}

/// Where a group begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// With the first message that is kept.
    Beginning,
    /// After the last message that is there now.
    End,
    /// With this message.
    Seq(u64),
    /// With the first message that was published then or later, or with one from shortly before.
    Time(SystemTime),
}

/// To whom messages go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// Consumers take turns.
    RoundRobin,
    /// One consumer gets everything until it has no room, then the next.
    Single,
    /// A key prefers one consumer.
    Pinned,
    /// One message of a key at a time, in order.
    Ordered,
}

/// Attempts after the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retries {
    AtMost(u32),
    Unlimited,
}

impl From<u32> for Retries {
    fn from(at_most: u32) -> Retries {
        Retries::AtMost(at_most)
    }
}

/// What becomes of a message whose retries are used up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnExhausted {
    Park,
    Skip,
    /// Settled here and published to this stream.
    Move(String),
}

/// Ordered: what follows a parked message of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnParkedKey {
    Continue,
    /// The rest of the key waits.
    Hold,
}

/// Whether keys take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fairness {
    None,
    Key,
}

/// When an ack is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acks {
    /// With the next write to the log.
    Journal,
    /// Likewise, and answered after the sync: nothing acked is ever delivered again.
    Durable,
    /// When the checkpoint policy says so.
    Checkpoint,
}
