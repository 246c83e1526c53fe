//! Lengths of time as people write them: a number and a unit.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use forebay_model::text;
pub use forebay_model::text::BadSpan;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration, as in `"250ms"`, `"30s"`, `"15m"`, `"12h"`, `"7d"`. Written with the largest unit that
/// is exact, so that reading it back gives the same span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = BadSpan;

    fn from_str(text: &str) -> Result<Span, BadSpan> {
        text.parse::<text::Span>().map(|span| Span(span.0))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::Span(self.0).fmt(f)
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Span {
        Span(duration)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        text::Span(self.0).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Span, D::Error> {
        text::Span::deserialize(from).map(|span| Span(span.0))
    }
}

#[cfg(feature = "openapi")]
mod schema {
    use utoipa::openapi::schema::{ObjectBuilder, Type};
    use utoipa::openapi::{RefOr, Schema};

    impl utoipa::PartialSchema for super::Span {
        fn schema() -> RefOr<Schema> {
            ObjectBuilder::new()
                .schema_type(Type::String)
                .description(Some("A duration: a whole number and a unit."))
                .pattern(Some("^[0-9]+(ns|us|ms|s|m|h|d)$"))
                .examples(["250ms", "30s", "15m", "12h", "7d"])
                .into()
        }
    }

    impl utoipa::ToSchema for super::Span {}
}
