//! Figures as people read them.

use forebay_wire::json::Time;

/// `1,234`
pub(super) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 message`, `2 messages`
pub(super) fn count_of(n: u64, one: &str) -> String {
    format!("{} {one}{}", count(n), if n == 1 { "" } else { "s" })
}

/// `9,950`, `34.1k`, `1.2M`: where places are narrow.
pub(super) fn short(value: f64) -> String {
    const STEPS: [&str; 5] = ["", "k", "M", "G", "T"];
    if value.is_nan() {
        return "–".to_owned();
    }
    if value < 9_999.5 {
        return count(value.max(0.0).round() as u64);
    }
    let (mut value, mut step) = (value, 0);
    while value >= 999.5 && step + 1 < STEPS.len() {
        value /= 1_000.0;
        step += 1;
    }
    // A round number, such as a limit, is written as one.
    let is_whole = value >= 99.95 || value.fract() == 0.0;
    let digits = if is_whole { format!("{value:.0}") } else { format!("{value:.1}") };
    format!("{digits}{}", STEPS[step])
}

/// The number of a rate for each second: `0`, `0.4`, `12`, `1.2k`. A rate below one in 200 seconds is zero.
pub(super) fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate.is_nan() || rate < 0.005 => "0".to_owned(),
        rate if rate < 0.095 => format!("{rate:.2}"),
        rate if rate < 9.95 => format!("{rate:.1}"),
        rate => short(rate),
    }
}

/// `0s`, `250µs`, `120ms`, `3.2s`, `3m 20s`, `2h 5m`, `3d 4h`
pub(super) fn age(seconds: f64) -> String {
    match seconds {
        s if s.is_nan() || s < 0.000_000_5 => "0s".to_owned(),
        s if s < 0.000_999_5 => format!("{:.0}µs", s * 1e6),
        s if s < 0.999_5 => format!("{:.0}ms", s * 1e3),
        s if s < 9.95 => format!("{s:.1}s"),
        s if s < 59.5 => format!("{s:.0}s"),
        s => {
            let whole = s.round() as u64;
            let (large, small) = match whole {
                0..3_600 => ((whole / 60, "m"), (whole % 60, "s")),
                3_600..86_400 => ((whole / 3_600, "h"), (whole / 60 % 60, "m")),
                _ => ((whole / 86_400, "d"), (whole / 3_600 % 24, "h")),
            };
            match small.0 {
                0 => format!("{}{}", count(large.0), large.1),
                _ => format!("{}{} {}{}", count(large.0), large.1, small.0, small.1),
            }
        }
    }
}

/// `17 B`, `3.4 MiB`
pub(super) fn bytes(bytes: u64) -> String {
    const STEPS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut step) = (bytes as f64, 0);
    while value >= 1_023.5 && step + 1 < STEPS.len() {
        value /= 1_024.0;
        step += 1;
    }
    let digits = if step == 0 || value >= 99.95 { format!("{value:.0}") } else { format!("{value:.1}") };
    format!("{} {}", digits.trim_end_matches(".0"), STEPS[step])
}

/// `2026-11-15 10:30:00`: a moment to the second, in UTC.
pub(super) fn moment(micros: u64) -> String {
    let text = Time(micros).to_string();
    text.get(..19).unwrap_or(&text).replace('T', " ")
}

/// A word for the command line: in quotes where a shell would take it for more than one.
pub(super) fn shell(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_as_a_person_would_say_them() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 9_999.0, 12_345.0, 1e6, 2.5e9].map(short), ["0", "9,999", "12.3k", "1M", "2.5G"]);
        assert_eq!(
            [0.0, 0.004, 0.05, 2.0, 12.3, 43_210.0].map(rate),
            ["0", "0", "0.05", "2.0", "12", "43.2k"]
        );
        let ages = [0.0, 2e-4, 0.12, 3.21, 42.0, 200.0, 7_500.0, 273_600.0, 60.0].map(age);
        assert_eq!(ages, ["0s", "200µs", "120ms", "3.2s", "42s", "3m 20s", "2h 5m", "3d 4h", "1m"]);
        assert_eq!([0, 1_023, 1_024, 3_565_158].map(bytes), ["0 B", "1023 B", "1 KiB", "3.4 MiB"]);
        assert_eq!(moment(1_763_202_600_000_000), "2025-11-15 10:30:00");
    }

    #[test]
    fn a_command_can_be_pasted_into_a_shell() {
        assert_eq!(shell("orders/billing"), "orders/billing");
        assert_eq!(shell("a b"), "'a b'");
        assert_eq!(shell("$(rm -rf ~)'"), r"'$(rm -rf ~)'\'''");
        assert_eq!(shell("-x"), "'-x'");
        assert_eq!(shell(""), "''");
    }
}
