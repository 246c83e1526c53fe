//! Figures as people read them: counts, rates, ages, sizes, times.

/// `1,234,567`
pub(crate) fn count(count: u64) -> String {
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

/// `950`, `1.2 k`, `34 M`: where columns are narrow.
pub(crate) fn short(count: f64) -> String {
    const STEPS: [&str; 5] = ["", " k", " M", " G", " T"];
    let mut value = count;
    let mut step = 0;
    while value >= 999.5 && step + 1 < STEPS.len() {
        value /= 1_000.0;
        step += 1;
    }
    let digits = if step == 0 || value >= 99.95 { format!("{value:.0}") } else { format!("{value:.1}") };
    format!("{digits}{}", STEPS[step])
}

/// `0`, `0.4/s`, `12/s`, `1.2 k/s`
pub(crate) fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate.is_nan() || rate < 0.005 => "0/s".to_owned(),
        rate if rate < 0.095 => format!("{rate:.2}/s"),
        rate if rate < 9.95 => format!("{rate:.1}/s"),
        rate => format!("{}/s", short(rate)),
    }
}

/// `0s`, `250µs`, `120ms`, `3.2s`, `3m 20s`, `2h 5m`, `3d 4h`
pub(crate) fn age(seconds: f64) -> String {
    if seconds.is_nan() || seconds < 0.000_000_5 {
        return "0s".to_owned();
    }
    if seconds < 0.000_999_5 {
        return format!("{:.0}µs", seconds * 1_000_000.0);
    }
    if seconds < 0.999_5 {
        return format!("{:.0}ms", seconds * 1_000.0);
    }
    if seconds < 9.95 {
        return format!("{seconds:.1}s");
    }
    let whole = seconds.round() as u64;
    let (days, hours, minutes, rest) = (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60, whole % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest}s"),
        (0, 0, _) => format!("{minutes}m {rest}s"),
        (0, ..) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

/// `512 B`, `1.5 KiB`, `10 GiB`
pub(crate) fn bytes(bytes: u64) -> String {
    const STEPS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut step = 0;
    while value >= 1_023.5 && step + 1 < STEPS.len() {
        value /= 1_024.0;
        step += 1;
    }
    let digits = if step == 0 || value >= 99.95 { format!("{value:.0}") } else { format!("{value:.1}") };
    format!("{} {}", digits.trim_end_matches(".0"), STEPS[step])
}

/// `1 message`, `2 messages`
pub(crate) fn of(count_of: u64, one: &str) -> String {
    format!("{} {one}{}", count(count_of), if count_of == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_as_a_person_would_say_them() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0.0, 999.4, 999.6, 1_234.0, 99_960.0, 5e12].map(short),
            ["0", "999", "1.0 k", "1.2 k", "100 k", "5.0 T"]
        );
        assert_eq!([0.0, 0.04, 0.4, 12.3, 1_234.0].map(rate), ["0/s", "0.04/s", "0.4/s", "12/s", "1.2 k/s"]);
        let ages = [0.0, 0.000_25, 0.12, 3.21, 12.3, 200.0, 7_500.0, 273_600.0].map(age);
        assert_eq!(ages, ["0s", "250µs", "120ms", "3.2s", "12s", "3m 20s", "2h 5m", "3d 4h"]);
        assert_eq!([0, 512, 1_536, 10 << 30].map(bytes), ["0 B", "512 B", "1.5 KiB", "10 GiB"]);
        assert_eq!((of(1, "message"), of(1_000, "message")), ("1 message".into(), "1,000 messages".into()));
    }
}
