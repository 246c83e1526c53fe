//! Settings between `forebay.v1` and the patches of `forebay-model`, both ways: the one conversion of this crate,
//! so that neither doors nor clients have to write it.
//!
//! A new setting gets a line in one of the lists below. A test holds the lists to the tables of the model.

use std::time::Duration;

use forebay_model::types::{Seq, StreamName, Timestamp};
use forebay_model::value::SettingsError;
use forebay_model::{
    BackoffPatch, CheckpointPatch, Choice, GroupPatch, OnEnd, OnExhausted, Rate, Retention, Retries, Source,
    Start, StreamLimitsPatch, StreamPatch, describe,
};

use crate::v1;

/// Writes both directions of a message: `field of the patch = field of the message`.
macro_rules! message {
    ($patch:ident = $message:ident { $($field:ident = $wire:ident,)+ }) => {
        impl From<&$patch> for v1::$message {
            fn from(patch: &$patch) -> v1::$message {
                v1::$message { $($wire: OnWire::write(&patch.$field),)+ }
            }
        }

        impl Message for $patch {
            type Wire = v1::$message;
            #[cfg(test)]
            const FIELDS: &'static [(&'static str, &'static str)] =
                &[$((stringify!($field), stringify!($wire))),+];

            fn read(wire: &v1::$message, outer: &str, wrong: &mut Wrong) -> $patch {
                let mut patch = $patch::new();
                $(patch.$field = OnWire::read(&wire.$wire, &format!("{outer}{}", stringify!($field)), wrong);)+
                patch
            }
        }
    };
}

// Where a group begins is not one of its settings here, but a field of the request that creates it.
message! {
    GroupPatch = GroupSettings {
        strategy = strategy,
        message_timeout = message_timeout_ms,
        max_retries = max_retries,
        on_exhausted = on_exhausted,
        on_expired = on_expired,
        on_dropped = on_dropped,
        backoff = backoff,
        key_batch = key_batch,
        on_parked_key = on_parked_key,
        fairness = fairness,
        priority_age_step = priority_age_step_ms,
        window_max = window_max,
        parked_max = parked_max,
        parked_max_age = parked_max_age_ms,
        max_in_flight = max_in_flight,
        max_consumers = max_consumers,
        rate = rate,
        acks = acks,
        checkpoint = checkpoint,
        buffer = buffer,
        extra_statistics = extra_statistics,
    }
}

message! {
    BackoffPatch = Backoff { min = min_ms, max = max_ms, factor = factor, jitter = jitter, }
}

message! {
    CheckpointPatch = Checkpoint { interval = interval_ms, min = min, max = max, }
}

message! {
    StreamPatch = StreamSettings {
        retention = retention,
        dedupe_window = dedupe_window_ms,
        dedupe_max = dedupe_max,
        limits = limits,
        ingress_rate = ingress_rate,
        source = source,
    }
}

message! {
    StreamLimitsPatch = StreamLimits {
        max_messages = max_messages,
        max_bytes = max_bytes,
        max_age = max_age_ms,
        on_full = on_full,
    }
}

/// The first value that cannot be. Its field is left absent.
type Wrong = Option<SettingsError>;

/// A patch that is a message of its own.
pub trait Message: Sized {
    type Wire;
    #[cfg(test)]
    const FIELDS: &'static [(&'static str, &'static str)];

    #[doc(hidden)]
    fn read(wire: &Self::Wire, outer: &str, wrong: &mut Wrong) -> Self;
}

/// A patch as a client asks for it. A choice or a name that cannot be is refused; ranges are not looked at.
pub fn requested<P: Message>(wire: &P::Wire) -> Result<P, SettingsError> {
    let mut wrong = None;
    let patch = P::read(wire, "", &mut wrong);
    wrong.map_or(Ok(patch), Err)
}

/// A patch as a server reports it. A choice that this release does not know is absent.
pub fn reported<P: Message>(wire: &P::Wire) -> P {
    P::read(wire, "", &mut None)
}

/// The name in the model of a field that has this name in `forebay.v1`, as in `backoff.max` for `backoff.max_ms`.
pub fn model_name<'a>(fields: &[describe::Field], name: &'a str) -> &'a str {
    let span = |short: &&str| {
        describe::find(fields, short).is_some_and(|field| matches!(field.kind, describe::Kind::Span))
    };
    name.strip_suffix("_ms").filter(span).unwrap_or(name)
}

/// The text of a refusal. It begins with the name that the field has in `forebay.v1`, and a colon.
pub fn refusal(error: &SettingsError) -> String {
    let SettingsError { field, rule, value } = error;
    format!("{}: must be {rule}. value=`{value}`", wire_name(field))
}

/// The name in `forebay.v1` of a field of the model, as in `backoff.max_ms` for `backoff.max`.
pub fn wire_name(name: &str) -> String {
    let found =
        [GroupPatch::FIELDS, StreamPatch::FIELDS].iter().find_map(|fields| describe::find(fields, name));
    let unit = if found.is_some_and(|field| matches!(field.kind, describe::Kind::Span)) { "_ms" } else { "" };
    match name.strip_prefix("retention.") {
        Some(limit) => format!("retention.log.{limit}{unit}"),
        None if name.starts_with("on_") && name.ends_with(".move") => format!("{name}_to"),
        None => format!("{name}{unit}"),
    }
}

/// A field of a patch, and what it is in a message.
trait OnWire<W>: Sized {
    fn write(&self) -> W;
    fn read(wire: &W, field: &str, wrong: &mut Wrong) -> Self;
}

/// Fields that are the same on both sides.
macro_rules! plain {
    ($($type:ty),+) => {
        $(impl OnWire<Option<$type>> for Option<$type> {
            fn write(&self) -> Option<$type> {
                *self
            }

            fn read(wire: &Option<$type>, _: &str, _: &mut Wrong) -> Option<$type> {
                *wire
            }
        })+
    };
}

plain!(u32, f64, bool);

impl OnWire<Option<u64>> for Option<Duration> {
    fn write(&self) -> Option<u64> {
        self.map(millis)
    }

    fn read(wire: &Option<u64>, _: &str, _: &mut Wrong) -> Option<Duration> {
        wire.map(Duration::from_millis)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A setting that may be none. None itself cannot be said in a message.
impl<T, W> OnWire<Option<W>> for Option<Option<T>>
where
    Option<T>: OnWire<Option<W>>,
{
    fn write(&self) -> Option<W> {
        self.as_ref().and_then(OnWire::write)
    }

    fn read(wire: &Option<W>, field: &str, wrong: &mut Wrong) -> Option<Option<T>> {
        Some(<Option<T> as OnWire<Option<W>>>::read(wire, field, wrong)).filter(Option::is_some)
    }
}

impl OnWire<Option<u64>> for Option<u64> {
    fn write(&self) -> Option<u64> {
        *self
    }

    fn read(wire: &Option<u64>, _: &str, _: &mut Wrong) -> Option<u64> {
        *wire
    }
}

/// Zero is unspecified; the choices follow in their order.
impl<C: Choice> OnWire<i32> for Option<C> {
    fn write(&self) -> i32 {
        self.map_or(0, |choice| choice.number() as i32 + 1)
    }

    fn read(wire: &i32, field: &str, wrong: &mut Wrong) -> Option<C> {
        if *wire == 0 {
            return None;
        }
        let choice = usize::try_from(*wire - 1).ok().and_then(|at| C::ALL.get(at).copied());
        if choice.is_none() {
            let rule = format!("a number from 1 to {}", C::ALL.len());
            wrong.get_or_insert(SettingsError::new(field, rule, wire.to_string()));
        }
        choice
    }
}

impl<P: Message> OnWire<Option<P::Wire>> for Option<P>
where
    P::Wire: for<'a> From<&'a P>,
{
    fn write(&self) -> Option<P::Wire> {
        self.as_ref().map(P::Wire::from)
    }

    fn read(wire: &Option<P::Wire>, field: &str, wrong: &mut Wrong) -> Option<P> {
        wire.as_ref().map(|wire| P::read(wire, &format!("{field}."), wrong))
    }
}

impl From<Rate> for v1::Rate {
    fn from(rate: Rate) -> v1::Rate {
        v1::Rate { per_second: rate.per_second, burst: rate.burst }
    }
}

/// A burst of zero is an absent one, which means 1.
impl From<v1::Rate> for Rate {
    fn from(wire: v1::Rate) -> Rate {
        Rate { per_second: wire.per_second, burst: wire.burst.max(1) }
    }
}

impl OnWire<Option<v1::Rate>> for Option<Rate> {
    fn write(&self) -> Option<v1::Rate> {
        self.map(v1::Rate::from)
    }

    fn read(wire: &Option<v1::Rate>, _: &str, _: &mut Wrong) -> Option<Rate> {
        wire.map(Rate::from)
    }
}

impl OnWire<Option<v1::Source>> for Option<Source> {
    fn write(&self) -> Option<v1::Source> {
        let Source { prefix, kind, header, .. } = self.clone()?;
        Some(v1::Source { prefix, r#type: kind, header })
    }

    fn read(wire: &Option<v1::Source>, _: &str, _: &mut Wrong) -> Option<Source> {
        let v1::Source { prefix, r#type, header } = wire.clone()?;
        let mut source = Source::prefix(prefix);
        (source.kind, source.header) = (r#type, header);
        Some(source)
    }
}

impl OnWire<Option<v1::Retries>> for Option<Retries> {
    fn write(&self) -> Option<v1::Retries> {
        use v1::retries::Retries as Wire;
        self.map(|retries| {
            let retries = retries.at_most().map_or(Wire::Unlimited(true), Wire::AtMost);
            v1::Retries { retries: Some(retries) }
        })
    }

    fn read(wire: &Option<v1::Retries>, _: &str, _: &mut Wrong) -> Option<Retries> {
        use v1::retries::Retries as Wire;
        Some(match wire.as_ref()?.retries? {
            Wire::AtMost(retries) => Retries::AtMost(retries),
            Wire::Unlimited(_) => Retries::Unlimited,
        })
    }
}

impl OnWire<Option<v1::OnExhausted>> for Option<OnExhausted> {
    fn write(&self) -> Option<v1::OnExhausted> {
        use v1::on_exhausted::Then;
        let then = match self.as_ref()? {
            OnExhausted::Park => Then::Park(true),
            OnExhausted::Skip => Then::Skip(true),
            OnExhausted::Move(to) => Then::MoveTo(to.to_string()),
        };
        Some(v1::OnExhausted { then: Some(then) })
    }

    fn read(wire: &Option<v1::OnExhausted>, field: &str, wrong: &mut Wrong) -> Option<OnExhausted> {
        use v1::on_exhausted::Then;
        match wire.as_ref()?.then.as_ref()? {
            Then::Park(_) => Some(OnExhausted::Park),
            Then::Skip(_) => Some(OnExhausted::Skip),
            Then::MoveTo(stream) => destination(stream, field, wrong).map(OnExhausted::Move),
        }
    }
}

impl OnWire<Option<v1::OnEnd>> for Option<OnEnd> {
    fn write(&self) -> Option<v1::OnEnd> {
        use v1::on_end::Then;
        let then = match self.as_ref()? {
            OnEnd::Discard => Then::Discard(true),
            OnEnd::Move(to) => Then::MoveTo(to.to_string()),
        };
        Some(v1::OnEnd { then: Some(then) })
    }

    fn read(wire: &Option<v1::OnEnd>, field: &str, wrong: &mut Wrong) -> Option<OnEnd> {
        use v1::on_end::Then;
        match wire.as_ref()?.then.as_ref()? {
            Then::Discard(_) => Some(OnEnd::Discard),
            Then::MoveTo(stream) => destination(stream, field, wrong).map(OnEnd::Move),
        }
    }
}

/// The stream that messages are moved to.
fn destination(stream: &str, field: &str, wrong: &mut Wrong) -> Option<StreamName> {
    StreamName::parse(stream)
        .map_err(|error| {
            let rule = format!("the name of a stream: {error}");
            wrong.get_or_insert(SettingsError::new(&format!("{field}.move"), rule, stream));
        })
        .ok()
}

impl OnWire<Option<v1::Retention>> for Option<Retention> {
    fn write(&self) -> Option<v1::Retention> {
        use v1::retention::Kept;
        let kept = match (*self)? {
            Retention::Work => Kept::Work(true),
            Retention::Log { max_age, max_bytes, max_messages } => {
                Kept::Log(v1::LogRetention { max_age_ms: max_age.map(millis), max_bytes, max_messages })
            }
        };
        Some(v1::Retention { kept: Some(kept) })
    }

    fn read(wire: &Option<v1::Retention>, _: &str, _: &mut Wrong) -> Option<Retention> {
        use v1::retention::Kept;
        Some(match wire.as_ref()?.kept.as_ref()? {
            Kept::Work(_) => Retention::Work,
            Kept::Log(log) => Retention::Log {
                max_age: log.max_age_ms.map(Duration::from_millis),
                max_bytes: log.max_bytes,
                max_messages: log.max_messages,
            },
        })
    }
}

impl From<Start> for v1::Start {
    fn from(start: Start) -> v1::Start {
        use v1::start::At;
        let at = match start {
            Start::Beginning => At::Beginning(true),
            Start::End => At::End(true),
            Start::Seq(seq) => At::Seq(seq.0),
            Start::Time(at) => At::TimeUs(at.0),
        };
        v1::Start { at: Some(at) }
    }
}

/// A place in a stream, if the message names one.
pub fn start(wire: Option<&v1::Start>) -> Option<Start> {
    use v1::start::At;
    Some(match wire?.at? {
        At::Beginning(_) => Start::Beginning,
        At::End(_) => Start::End,
        At::Seq(seq) => Start::Seq(Seq::named(seq)),
        At::TimeUs(at) => Start::Time(Timestamp(at)),
    })
}

#[cfg(test)]
mod tests;
