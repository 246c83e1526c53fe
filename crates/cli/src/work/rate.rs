//! How many a second, as people write it.

use std::str::FromStr;

/// A steady rate, and how many may go at once after a rest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PerSecond {
    pub(super) rate: f64,
    pub(super) burst: u32,
}

const EXPECTED: &str = "expected a number above zero, such as 10, 10/s, 100/m or 500/h";
/// So many at once that timers, which are not exact, do not slow a high rate down: what comes in this part of a second.
const BURST: f64 = 0.05;
const RATE_MAX: f64 = 1_000_000.0;

impl FromStr for PerSecond {
    type Err = String;

    fn from_str(text: &str) -> Result<PerSecond, String> {
        let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
        let seconds = match unit.trim() {
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3_600.0,
            _ => return Err(EXPECTED.to_owned()),
        };
        let number: f64 = number.trim().parse().map_err(|_| EXPECTED.to_owned())?;
        let rate = number / seconds;
        if !(rate > 0.0 && rate <= RATE_MAX) {
            return Err(EXPECTED.to_owned());
        }
        Ok(PerSecond { rate, burst: (rate * BURST).ceil() as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_read_as_people_write_it() {
        for (text, rate, burst) in
            [("10", 10.0, 1), ("10/s", 10.0, 1), ("90/m", 1.5, 1), ("0.5", 0.5, 1), ("1000/s", 1_000.0, 50)]
        {
            assert_eq!(text.parse(), Ok(PerSecond { rate, burst }), "{text}");
        }
        for wrong in ["", "0", "-1", "many", "10/day", "nan", "inf", "1e99", "/s"] {
            assert!(wrong.parse::<PerSecond>().is_err(), "{wrong}");
        }
    }
}
