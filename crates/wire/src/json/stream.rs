//! Streams: what may be chosen about them, and what they say.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Rate, Rates, Span, Time, nullable, some};

/// What may be chosen about a stream. What is left out keeps its value, or its default where the stream is new.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StreamSettings {
    /// How long messages are kept: `"work"` is until every group has settled them, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = Retention))]
    pub retention: Option<Retention>,
    /// How long a message id is remembered, so that a second publish with it stores nothing. Default `"10m"`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = Span))]
    pub dedupe_window: Option<Span>,
    /// How many ids are remembered at most. Default 1000000.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = u32))]
    pub dedupe_max: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = StreamLimits))]
    pub limits: Option<StreamLimits>,
    /// What producers may publish, over all of them. `null` is no limit, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Rate>))]
    pub ingress_rate: Option<Option<Rate>>,
}

/// What a stream may hold. `null` is no limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StreamLimits {
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub max_messages: Option<Option<u64>>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub max_bytes: Option<Option<u64>>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "nullable")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Span>))]
    pub max_age: Option<Option<Span>>,
    /// Default `"reject"`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some")]
    #[cfg_attr(feature = "openapi", schema(value_type = OnFull))]
    pub on_full: Option<OnFull>,
}

/// What happens to a message that a full stream has no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    Reject,
    /// The oldest that is neither leased nor parked makes room.
    DropOldest,
}

/// How long messages are kept: `"work"`, or limits.
#[derive(Debug, Clone, PartialEq)]
pub enum Retention {
    /// Until every group has settled them.
    Work,
    /// Whatever the groups did, within these limits.
    Kept(RetentionLimits),
}

/// What is left out, or `null`, is no limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct RetentionLimits {
    pub max_age: Option<Span>,
    pub max_bytes: Option<u64>,
    pub max_messages: Option<u64>,
}

impl Serialize for Retention {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Retention::Work => to.serialize_str("work"),
            Retention::Kept(limits) => limits.serialize(to),
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
                    _ => Err(E::invalid_value(de::Unexpected::Str(word), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Retention, A::Error> {
                RetentionLimits::deserialize(MapAccessDeserializer::new(map)).map(Retention::Kept)
            }
        }
        from.deserialize_any(WordOrLimits)
    }
}

/// A stream's settings and figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StreamReport {
    pub stream: String,
    pub settings: StreamSettings,
    pub created_at: Time,
    /// The oldest message that is kept. One more than `last_seq` if there is none.
    pub first_seq: u64,
    /// The newest message; 0 if there never was one.
    pub last_seq: u64,
    /// Messages and bytes that count against the limits.
    pub messages: u64,
    pub bytes: u64,
    /// Messages that are not due yet.
    pub delayed: u64,
    /// Seconds since the oldest message was published.
    pub oldest_age: Option<f64>,
    /// How many groups there are.
    pub groups: u64,
    pub group_names: Vec<String>,
    pub rates: StreamRates,
}

/// How often something happens in a stream, for each second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StreamRates {
    pub published: Rates,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StreamList {
    pub streams: Vec<StreamReport>,
    /// Goes on with `?after=`. `null` at the end.
    pub next: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct PurgeRequest {
    /// Parked messages too.
    pub parked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PurgeReply {
    /// How many messages were dropped.
    pub purged: u64,
}

#[cfg(feature = "openapi")]
mod schema {
    use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
    use utoipa::openapi::{RefOr, Schema};
    use utoipa::{PartialSchema, ToSchema};

    impl PartialSchema for super::Retention {
        fn schema() -> RefOr<Schema> {
            OneOfBuilder::new()
                .item(ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["work"])))
                .item(super::RetentionLimits::schema())
                .into()
        }
    }

    impl ToSchema for super::Retention {
        fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
            <super::RetentionLimits as ToSchema>::schemas(schemas);
            <super::Span as ToSchema>::schemas(schemas);
            schemas.push((super::Span::name().into_owned(), super::Span::schema()));
        }
    }
}
