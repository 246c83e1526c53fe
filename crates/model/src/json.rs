//! The JSON of patches and choices.
//!
//! A patch refuses fields that it does not know, so that a typing mistake never passes silently. Where `null` is a
//! value of a setting, it means none; elsewhere it is refused.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Unexpected, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::choices::{Choice, OnEnd, OnExhausted, Rate, Retention, Retries, Source, Start};
use crate::text::{Span, Time};
use crate::types::{Seq, StreamName, Timestamp};

/// How a setting looks in JSON. A trait of our own, since serde writes a `Duration` in another way.
pub(crate) trait Json: Sized {
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error>;
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error>;
}

/// Between our way and serde's.
pub(crate) struct AsJson<T>(pub(crate) T);

impl<T: Json> Serialize for AsJson<&T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.write(to)
    }
}

impl<'de, T: Json> Deserialize<'de> for AsJson<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<AsJson<T>, D::Error> {
        T::read(from).map(AsJson)
    }
}

/// Types that look in JSON as serde has them.
macro_rules! as_serde {
    ($($type:ty),+) => {
        $(impl crate::json::Json for $type {
            fn write<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                serde::Serialize::serialize(self, to)
            }

            fn read<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                serde::Deserialize::deserialize(from)
            }
        })+
    };
}
pub(crate) use as_serde;

as_serde!(bool, u32, u64, f64, Rate, Retries, Retention, Source, Start, OnExhausted, OnEnd);

impl Json for Duration {
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Span(*self).serialize(to)
    }

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        Span::deserialize(from).map(|span| span.0)
    }
}

impl<T: Json> Json for Option<T> {
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.as_ref().map(AsJson).serialize(to)
    }

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
        Ok(Option::<AsJson<T>>::deserialize(from)?.map(|value| value.0))
    }
}

/// A choice is its word.
macro_rules! choice {
    ($name:ident) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.word())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                crate::json::read_choice(from)
            }
        }

        crate::json::as_serde!($name);
    };
}
pub(crate) use choice;

pub(crate) fn read_choice<'de, C: Choice, D: Deserializer<'de>>(from: D) -> Result<C, D::Error> {
    struct Word<C>(PhantomData<C>);
    impl<C: Choice> Visitor<'_> for Word<C> {
        type Value = C;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "one of {}", C::WORDS.join(", "))
        }

        fn visit_str<E: de::Error>(self, word: &str) -> Result<C, E> {
            let at = C::WORDS.iter().position(|other| *other == word);
            at.map(|at| C::ALL[at]).ok_or_else(|| E::unknown_variant(word, C::WORDS))
        }
    }
    from.deserialize_str(Word(PhantomData))
}

fn one_entry<S: Serializer, T: Serialize + ?Sized>(to: S, name: &str, value: &T) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(1))?;
    map.serialize_entry(name, value)?;
    map.end()
}

/// Reads the value of a patch's field. A field that is there twice is refused.
pub(crate) fn put<'de, T: Json, A: MapAccess<'de>>(
    field: &mut Option<T>,
    name: &'static str,
    map: &mut A,
) -> Result<(), A::Error> {
    if field.is_some() {
        return Err(de::Error::duplicate_field(name));
    }
    *field = Some(map.next_value::<AsJson<T>>()?.0);
    Ok(())
}

/// Writes a patch's field, if it is set.
pub(crate) fn entry<T: Json, S: SerializeMap>(
    field: &Option<T>,
    name: &'static str,
    map: &mut S,
) -> Result<(), S::Error> {
    field.as_ref().map_or(Ok(()), |value| map.serialize_entry(name, &AsJson(value)))
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(2))?;
        map.serialize_entry("per_second", &self.per_second)?;
        map.serialize_entry("burst", &self.burst)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Rate, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            deny_unknown_fields,
            expecting = "an object with per_second and burst, such as { \"per_second\": 10 }"
        )]
        struct Parts {
            per_second: f64,
            #[serde(default = "one")]
            burst: u32,
        }
        fn one() -> u32 {
            1
        }
        Parts::deserialize(from).map(|Parts { per_second, burst }| Rate { per_second, burst })
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("prefix", &self.prefix)?;
        if let Some(kind) = &self.kind {
            map.serialize_entry("type", kind)?;
        }
        if let Some(header) = &self.header {
            map.serialize_entry("header", header)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Source, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            deny_unknown_fields,
            expecting = "an object with prefix, type and header, such as { \"prefix\": \"orders-\" }"
        )]
        struct Parts {
            #[serde(default)]
            prefix: String,
            #[serde(default, rename = "type")]
            kind: Option<String>,
            #[serde(default)]
            header: Option<String>,
        }
        Parts::deserialize(from).map(|Parts { prefix, kind, header }| Source { prefix, kind, header })
    }
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

/// A stream's name is checked as it is read.
struct Name(StreamName);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Name, D::Error> {
        let text = String::deserialize(from)?;
        StreamName::parse(&text).map(Name).map_err(de::Error::custom)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum MoveTo {
    Move(Name),
}

impl Serialize for OnExhausted {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            OnExhausted::Park => to.serialize_str("park"),
            OnExhausted::Skip => to.serialize_str("skip"),
            OnExhausted::Move(stream) => one_entry(to, "move", stream.as_str()),
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
                Ok(OnExhausted::Move(stream.0))
            }
        }
        from.deserialize_any(WordOrMove)
    }
}

impl Serialize for OnEnd {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            OnEnd::Discard => to.serialize_str("discard"),
            OnEnd::Move(stream) => one_entry(to, "move", stream.as_str()),
        }
    }
}

impl<'de> Deserialize<'de> for OnEnd {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<OnEnd, D::Error> {
        struct WordOrMove;
        impl<'de> Visitor<'de> for WordOrMove {
            type Value = OnEnd;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"discard\" or { \"move\": \"other-stream\" }")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<OnEnd, E> {
                match word {
                    "discard" => Ok(OnEnd::Discard),
                    _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OnEnd, A::Error> {
                let MoveTo::Move(stream) = MoveTo::deserialize(MapAccessDeserializer::new(map))?;
                Ok(OnEnd::Move(stream.0))
            }
        }
        from.deserialize_any(WordOrMove)
    }
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
            Start::Seq(seq) => one_entry(to, "seq", &seq.0),
            Start::Time(time) => one_entry(to, "time", &Time(time.0)),
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
                    At::Seq(seq) => Start::Seq(Seq::named(seq)),
                    At::Time(time) => Start::Time(Timestamp(time.0)),
                })
            }
        }
        from.deserialize_any(WordOrPlace)
    }
}

/// A field that is left out, or `null`, sets no limit.
#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct LogRetention {
    max_age: Option<Span>,
    max_bytes: Option<u64>,
    max_messages: Option<u64>,
}

impl Serialize for Retention {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match *self {
            Retention::Work => to.serialize_str("work"),
            Retention::Log { max_age, max_bytes, max_messages } => {
                LogRetention { max_age: max_age.map(Span), max_bytes, max_messages }.serialize(to)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Retention {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Retention, D::Error> {
        struct WordOrLimits;
        impl<'de> Visitor<'de> for WordOrLimits {
            type Value = Retention;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"work\" or an object with `max_age`, `max_bytes` and `max_messages`")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Retention, E> {
                match word {
                    "work" => Ok(Retention::Work),
                    _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Retention, A::Error> {
                let log = LogRetention::deserialize(MapAccessDeserializer::new(map))?;
                let max_age = log.max_age.map(|span| span.0);
                Ok(Retention::Log { max_age, max_bytes: log.max_bytes, max_messages: log.max_messages })
            }
        }
        from.deserialize_any(WordOrLimits)
    }
}
