//! Durations as people write them: a number and a unit.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A duration, as in `"250ms"`, `"30s"`, `"15m"`, `"12h"`, `"7d"`. Written with the largest unit that
/// is exact, so that reading it back gives the same span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(pub Duration);

/// Units with their length in nanoseconds, the longest first.
const UNITS: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Why a text is no duration. Reads after the name of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadSpan {
    NoNumber,
    NoUnit,
    Fraction,
    TooLong,
}

impl fmt::Display for BadSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadSpan::NoNumber | BadSpan::NoUnit => {
                "must be a whole number with a unit (us, ms, s, m, h or d), such as \"250ms\", \"30s\" or \"15m\""
            }
            BadSpan::Fraction => "must be a whole number with a unit; \"1500ms\" is one and a half seconds",
            BadSpan::TooLong => "must be a shorter time",
        })
    }
}

impl std::error::Error for BadSpan {}

impl FromStr for Span {
    type Err = BadSpan;

    fn from_str(text: &str) -> Result<Span, BadSpan> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        if number.is_empty() {
            return Err(BadSpan::NoNumber);
        }
        if unit.starts_with('.') {
            return Err(BadSpan::Fraction);
        }
        let length = UNITS.iter().find(|(name, _)| *name == unit).ok_or(BadSpan::NoUnit)?.1;
        let number: u128 = number.parse().map_err(|_| BadSpan::TooLong)?;
        let nanos = number.checked_mul(length.into()).ok_or(BadSpan::TooLong)?;
        let seconds = u64::try_from(nanos / 1_000_000_000).map_err(|_| BadSpan::TooLong)?;
        Ok(Span(Duration::new(seconds, (nanos % 1_000_000_000) as u32)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        if nanos == 0 {
            return f.write_str("0s");
        }
        let exact = UNITS.iter().find(|(_, length)| nanos.is_multiple_of(u128::from(*length)));
        let (unit, length) = exact.expect("a nanosecond tells every length");
        write!(f, "{}{unit}", nanos / u128::from(*length))
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Span {
        Span(duration)
    }
}

#[cfg(feature = "serde")]
mod json {
    use std::fmt;

    use serde::de::{self, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Span;

    impl Serialize for Span {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.collect_str(self)
        }
    }

    impl<'de> Deserialize<'de> for Span {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Span, D::Error> {
            struct Text;
            impl Visitor<'_> for Text {
                type Value = Span;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(
                        "a duration: text of a whole number and a unit, such as \"250ms\", \"30s\" or \"15m\"",
                    )
                }

                fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                    text.parse().map_err(|wrong| E::custom(format_args!("{wrong}. value=`{text:.80}`")))
                }
            }
            from.deserialize_str(Text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_time_is_a_number_and_a_unit() {
        let seconds = |text: &str| text.parse::<Span>().map(|span| span.0.as_secs_f64());
        assert_eq!(seconds("250ms"), Ok(0.25));
        assert_eq!(seconds("0s"), Ok(0.0));
        assert_eq!(seconds("15m"), Ok(900.0));
        assert_eq!(seconds("12h"), Ok(43_200.0));
        assert_eq!(seconds("7d"), Ok(604_800.0));
        for (wrong, why) in [
            ("", BadSpan::NoNumber),
            ("5", BadSpan::NoUnit),
            ("s", BadSpan::NoNumber),
            ("-5s", BadSpan::NoNumber),
            ("5 s", BadSpan::NoUnit),
            ("1.5h", BadSpan::Fraction),
            ("5S", BadSpan::NoUnit),
            ("٣s", BadSpan::NoNumber),
            ("9999999999999999999d", BadSpan::TooLong),
            ("99999999999999999999999999999999999999999999s", BadSpan::TooLong),
        ] {
            assert_eq!(wrong.parse::<Span>(), Err(why), "{wrong}");
        }
    }

    #[test]
    fn it_is_written_with_the_largest_unit_that_is_exact() {
        for text in ["0s", "250ms", "1s", "90s", "1m", "1500ms", "25h", "1d", "7d", "1us", "1ns"] {
            assert_eq!(text.parse::<Span>().expect("a time").to_string(), text);
        }
        assert_eq!(Span(Duration::from_secs(3_600)).to_string(), "1h");
    }

    proptest! {
        #[test]
        fn every_length_survives_the_round_trip(seconds: u64, nanos in 0u32..1_000_000_000) {
            let span = Span(Duration::new(seconds, nanos));
            prop_assert_eq!(span.to_string().parse::<Span>(), Ok(span));
        }
    }
}
