//! Moments, as RFC 3339 writes them. By hand: the calendar is two short formulas, and a library for it would
//! bring time zones along.

use std::fmt;
use std::str::FromStr;

/// A moment, in microseconds since 1970. Written in UTC with microseconds, as in
/// `"2026-11-15T10:30:00.000000Z"`. Read with any offset and any fraction; digits beyond microseconds are
/// dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

/// A text is no moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadTime;

impl fmt::Display for BadTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be a time as in RFC 3339, from 1970 on, such as \"2026-11-15T10:30:00Z\"")
    }
}

impl std::error::Error for BadTime {}

const DAY: u64 = 86_400;
const MICROS: u64 = 1_000_000;

/// Days from 0000-03-01 until 1970-01-01. Years that begin in March have the leap day at their end.
const EPOCH_DAYS: i64 = 719_468;
const DAYS_IN_400_YEARS: i64 = 146_097;

fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * DAYS_IN_400_YEARS + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - EPOCH_DAYS
}

fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + EPOCH_DAYS;
    let (era, of_era) = (days.div_euclid(DAYS_IN_400_YEARS), days.rem_euclid(DAYS_IN_400_YEARS));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.0 / MICROS, self.0 % MICROS);
        let (year, month, day) = date_of((seconds / DAY) as i64);
        let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }
}

impl FromStr for Time {
    type Err = BadTime;

    fn from_str(text: &str) -> Result<Time, BadTime> {
        parse(text.as_bytes()).ok_or(BadTime)
    }
}

fn parse(text: &[u8]) -> Option<Time> {
    let number = |from: usize, to: usize| {
        let digits = text.get(from..to).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
        Some(digits.iter().fold(0i64, |number, digit| number * 10 + i64::from(digit - b'0')))
    };
    let is = |at: usize, wanted: &[u8]| text.get(at).is_some_and(|byte| wanted.contains(byte));
    let marks = is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":");
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let mut at = 19;
    let mut micros = 0;
    if is(at, b".") {
        let digits = text[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let kept = digits.min(6);
        micros = number(at + 1, at + 1 + kept)? * 10i64.pow(6 - kept as u32);
        at += 1 + digits;
        if digits == 0 {
            return None;
        }
    }
    let offset = if is(at, b"Zz") {
        at += 1;
        0
    } else {
        let sign = if is(at, b"+") { 1 } else { -1 };
        if !is(at, b"+-") || !is(at + 3, b":") {
            return None;
        }
        let (hours, minutes) = (number(at + 1, at + 3)?, number(at + 4, at + 6)?);
        if hours > 23 || minutes > 59 {
            return None;
        }
        at += 6;
        sign * (hours * 3_600 + minutes * 60)
    };
    // A leap second counts as the second after it.
    let days = days_since_1970(year, month, day);
    let is_date = (1..=12).contains(&month) && date_of(days) == (year, month, day);
    if !marks || !is_date || hour > 23 || minute > 59 || second > 60 || at != text.len() {
        return None;
    }
    let seconds = days * DAY as i64 + hour * 3_600 + minute * 60 + second - offset;
    u64::try_from(seconds).ok().map(|seconds| Time(seconds * MICROS + micros as u64))
}

#[cfg(feature = "serde")]
mod json {
    use std::fmt;

    use serde::de::{self, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Time;

    impl Serialize for Time {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.collect_str(self)
        }
    }

    impl<'de> Deserialize<'de> for Time {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
            struct Text;
            impl Visitor<'_> for Text {
                type Value = Time;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a time as in \"2026-11-15T10:30:00Z\"")
                }

                fn visit_str<E: de::Error>(self, text: &str) -> Result<Time, E> {
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
    fn moments_are_written_in_utc_with_microseconds() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_700_000_000_123_456, "2023-11-14T22:13:20.123456Z"),
            (4_107_542_399_999_999, "2100-02-28T23:59:59.999999Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(Time(micros).to_string(), text);
            assert_eq!(text.parse(), Ok(Time(micros)));
        }
    }

    #[test]
    fn other_ways_to_write_a_moment_are_read_and_wrong_ones_are_not() {
        let same = Ok(Time(1_700_000_000_000_000));
        for text in ["2023-11-14T22:13:20Z", "2023-11-14t22:13:20.0z", "2023-11-15T00:13:20+02:00"] {
            assert_eq!(text.parse(), same, "{text}");
        }
        assert_eq!("2023-11-14T22:13:20.1234567Z".parse(), Ok(Time(1_700_000_000_123_456)));
        for wrong in [
            "",
            "2023-11-14",
            "2023-11-14T22:13:20",
            "2023-11-14T22:13:20.Z",
            "2023-11-14T22:13:20Zx",
            "2023-02-29T00:00:00Z",
            "2023-13-01T00:00:00Z",
            "2023-00-01T00:00:00Z",
            "2023-11-00T00:00:00Z",
            "2023-11-14T24:00:00Z",
            "2023-11-14T22:13:20+2:00",
            "1969-12-31T23:59:59Z",
            "２０２３-11-14T22:13:20Z",
        ] {
            assert_eq!(wrong.parse::<Time>(), Err(BadTime), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn every_moment_until_the_year_9999_survives_the_round_trip(micros in 0u64..253_402_300_799_999_999) {
            prop_assert_eq!(Time(micros).to_string().parse(), Ok(Time(micros)));
        }

        #[test]
        fn arbitrary_text_is_refused_or_read_but_never_worse(text: String) {
            let _ = text.parse::<Time>();
        }
    }
}
