//! Moments, as RFC 3339 writes them.

use std::fmt;
use std::str::FromStr;

use forebay_model::text;
pub use forebay_model::text::BadTime;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment, in microseconds since 1970. Written in UTC with microseconds, as in
/// `"2026-11-15T10:30:00.000000Z"`. Read with any offset and any fraction; digits beyond microseconds are
/// dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl FromStr for Time {
    type Err = BadTime;

    fn from_str(text: &str) -> Result<Time, BadTime> {
        text.parse::<text::Time>().map(|time| Time(time.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::Time(self.0).fmt(f)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        text::Time(self.0).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        text::Time::deserialize(from).map(|time| Time(time.0))
    }
}

#[cfg(feature = "openapi")]
mod schema {
    use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
    use utoipa::openapi::{RefOr, Schema};

    impl utoipa::PartialSchema for super::Time {
        fn schema() -> RefOr<Schema> {
            ObjectBuilder::new()
                .schema_type(Type::String)
                .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
                .examples(["2026-11-15T10:30:00.000000Z"])
                .into()
        }
    }

    impl utoipa::ToSchema for super::Time {}
}
