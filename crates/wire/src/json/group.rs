//! Groups: what may be chosen about them, and what operators do to them.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Unexpected, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Rate, Span, Time, nullable, some};

/// What may be chosen about a group. What is left out keeps its value, or its default where the group is new.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct GroupSettings {
    /// Where a new group begins. Default `"beginning"`. It cannot be changed: a group that is there is moved with a
    /// reset.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = Start))]
    pub start: Option<Start>,
    /// Default `"round_robin"`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = Strategy))]
    pub strategy: Option<Strategy>,
    /// Lease length when the consumer asks for none. Default `"30s"`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = Span))]
    pub message_timeout: Option<Span>,
    /// Attempts after the first, or `"unlimited"`. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = Retries))]
    pub max_retries: Option<Retries>,
    /// What becomes of a message whose retries are used up. Default `"park"`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = OnExhausted))]
    pub on_exhausted: Option<OnExhausted>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = Backoff))]
    pub backoff: Option<Backoff>,
    /// Ordered: messages of one key that may go out together to one consumer. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = u32))]
    pub key_batch: Option<u32>,
    /// Ordered: what follows a parked message of the key. Default `"continue"`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = OnParkedKey))]
    pub on_parked_key: Option<OnParkedKey>,
    /// Default `"none"`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = Fairness))]
    pub fairness: Option<Fairness>,
    /// Waiting this long raises a message by one priority. Default `"60s"`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = Span))]
    pub priority_age_step: Option<Span>,
    /// Ready, waiting and leased together. Default 100000.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = u32))]
    pub window_max: Option<u32>,
    /// Default 1000000.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = u32))]
    pub parked_max: Option<u32>,
    /// How long a message stays parked. `null` is for ever, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Span>))]
    pub parked_max_age: Option<Option<Span>>,
    /// For the whole group. Default 10000.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = u32))]
    pub max_in_flight: Option<u32>,
    /// 0 is no limit, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = u32))]
    pub max_consumers: Option<u32>,
    /// The steady pace that whatever is behind the consumers can bear. `null` is none, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Rate>))]
    pub rate: Option<Option<Rate>>,
    /// Default `"journal"`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = Acks))]
    pub acks: Option<Acks>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = Checkpoint))]
    pub checkpoint: Option<Checkpoint>,
    /// Messages read ahead of dispatch. Default 500.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = u32))]
    pub buffer: Option<u32>,
    /// Keep the processing-time histogram. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = bool))]
    pub extra_statistics: Option<bool>,
}

/// Whom a message is offered to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnParkedKey {
    Continue,
    /// The rest of the key waits until the parked message is replayed or discarded.
    Hold,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Fairness {
    None,
    /// Keys take turns.
    Key,
}

/// When an ack is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Acks {
    /// With the next frame.
    Journal,
    /// With the next frame, and answered after the sync.
    Durable,
    /// When the checkpoint policy says so.
    Checkpoint,
}

/// The wait before a retry, after a nack or a timeout.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Backoff {
    /// Default `"100ms"`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = Span))]
    pub min: Option<Span>,
    /// Default `"30s"`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = Span))]
    pub max: Option<Span>,
    /// From 1 to 100. Default 2.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub factor: Option<f64>,
    /// From 0 to 1. Default 0.5.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub jitter: Option<f64>,
}

/// How often a group writes down its progress.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Default `"2s"`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = Span))]
    pub interval: Option<Span>,
    /// Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = u32))]
    pub min: Option<u32>,
    /// Default 1000.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = u32))]
    pub max: Option<u32>,
}

/// A number, or `"unlimited"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retries {
    AtMost(u32),
    Unlimited,
}

impl Serialize for Retries {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Retries::AtMost(retries) => to.serialize_u32(*retries),
            Retries::Unlimited => to.serialize_str("unlimited"),
        }
    }
}

impl<'de> Deserialize<'de> for Retries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Retries, D::Error> {
        struct NumberOrWord;
        impl Visitor<'_> for NumberOrWord {
            type Value = Retries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from 0 to {}, or \"unlimited\"", u32::MAX)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Retries, E> {
                let retries = u32::try_from(number);
                retries
                    .map(Retries::AtMost)
                    .map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Retries, E> {
                match word {
                    "unlimited" => Ok(Retries::Unlimited),
                    _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
                }
            }
        }
        from.deserialize_any(NumberOrWord)
    }
}

/// What becomes of a message whose retries are used up: `"park"`, `"skip"` or `{ "move": "other-stream" }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnExhausted {
    Park,
    Skip,
    /// Settled here and published there.
    Move(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum MoveTo {
    Move(String),
}

impl Serialize for OnExhausted {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            OnExhausted::Park => to.serialize_str("park"),
            OnExhausted::Skip => to.serialize_str("skip"),
            OnExhausted::Move(stream) => one_entry(to, "move", stream),
        }
    }
}

impl<'de> Deserialize<'de> for OnExhausted {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<OnExhausted, D::Error> {
        struct WordOrMove;
        impl<'de> Visitor<'de> for WordOrMove {
            type Value = OnExhausted;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"park\", \"skip\" or { \"move\": \"other-stream\" }")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<OnExhausted, E> {
                match word {
                    "park" => Ok(OnExhausted::Park),
                    "skip" => Ok(OnExhausted::Skip),
                    _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OnExhausted, A::Error> {
                let MoveTo::Move(stream) = MoveTo::deserialize(MapAccessDeserializer::new(map))?;
                Ok(OnExhausted::Move(stream))
            }
        }
        from.deserialize_any(WordOrMove)
    }
}

/// A place in a stream: `"beginning"`, `"end"`, `{ "seq": 100 }` or `{ "time": "…" }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Beginning,
    End,
    /// With this message.
    Seq(u64),
    /// With the first message that was published then or later.
    Time(Time),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum At {
    Seq(u64),
    Time(Time),
}

impl Serialize for Start {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Start::Beginning => to.serialize_str("beginning"),
            Start::End => to.serialize_str("end"),
            Start::Seq(seq) => one_entry(to, "seq", seq),
            Start::Time(time) => one_entry(to, "time", time),
        }
    }
}

impl<'de> Deserialize<'de> for Start {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Start, D::Error> {
        struct WordOrPlace;
        impl<'de> Visitor<'de> for WordOrPlace {
            type Value = Start;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "\"beginning\", \"end\", { \"seq\": 100 } or { \"time\": \"2026-11-15T10:30:00Z\" }",
                )
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Start, E> {
                match word {
                    "beginning" => Ok(Start::Beginning),
                    "end" => Ok(Start::End),
                    _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Start, A::Error> {
                Ok(match At::deserialize(MapAccessDeserializer::new(map))? {
                    At::Seq(seq) => Start::Seq(seq),
                    At::Time(time) => Start::Time(time),
                })
            }
        }
        from.deserialize_any(WordOrPlace)
    }
}

fn one_entry<S: Serializer, T: Serialize>(to: S, name: &str, value: &T) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(1))?;
    map.serialize_entry(name, value)?;
    map.end()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ResetRequest {
    pub to: Start,
    /// Default `"keep"`.
    #[serde(default)]
    pub parked: ParkedOnReset,
}

/// What a reset does to parked messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ParkedOnReset {
    #[default]
    Keep,
    Drop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResetReply {
    /// Everything up to here counts as settled now.
    pub settled_through: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PausedReply {
    pub paused: bool,
}

#[cfg(feature = "openapi")]
mod schema {
    use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
    use utoipa::openapi::{RefOr, Schema};
    use utoipa::{PartialSchema, ToSchema};

    fn words<const N: usize>(words: [&str; N]) -> ObjectBuilder {
        ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words))
    }

    fn object_with(name: &str, value: impl Into<RefOr<Schema>>) -> ObjectBuilder {
        ObjectBuilder::new().property(name, value).required(name)
    }

    fn number() -> ObjectBuilder {
        ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0))
    }

    impl PartialSchema for super::Retries {
        fn schema() -> RefOr<Schema> {
            OneOfBuilder::new().item(number()).item(words(["unlimited"])).into()
        }
    }

    impl ToSchema for super::Retries {}

    impl PartialSchema for super::OnExhausted {
        fn schema() -> RefOr<Schema> {
            let text = ObjectBuilder::new().schema_type(Type::String);
            OneOfBuilder::new().item(words(["park", "skip"])).item(object_with("move", text)).into()
        }
    }

    impl ToSchema for super::OnExhausted {}

    impl PartialSchema for super::Start {
        fn schema() -> RefOr<Schema> {
            OneOfBuilder::new()
                .item(words(["beginning", "end"]))
                .item(object_with("seq", number()))
                .item(object_with("time", super::Time::schema()))
                .into()
        }
    }

    impl ToSchema for super::Start {}
}
