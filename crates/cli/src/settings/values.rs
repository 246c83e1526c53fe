//! How values are written: durations, sizes, addresses, words. A function answers what it expected, if that
//! is not what it got.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use forebay_doors::kit::jwt::REFRESH;
use forebay_wire::alert::Rules;
use forebay_wire::json::Span;
use hyper::Uri;

use crate::log::{Format, Level};
use crate::serve::alerts::Webhook;
use crate::serve::otlp::METRICS_PATH;
use crate::settings::EngineKind;

/// The range of a segment's size: it must hold the largest block, and offsets in it must fit their field.
const SEGMENT_BYTES_MIN: u64 = 32 << 20;
const SEGMENT_BYTES_MAX: u64 = 1 << 31;
/// The range of a byte budget in memory: enough for one large batch, and no more than the broker can count.
const MEMORY_BYTES_MIN: u64 = 1 << 20;
const MEMORY_BYTES_MAX: u64 = 1 << 31;

/// Stores a value in `place`, or passes on the error.
pub(super) fn into<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

/// A length of time with its unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    text.parse::<Span>().map(|span| span.0).map_err(|wrong| wrong.to_string())
}

/// A length of time that is not zero.
pub(crate) fn some_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be greater than zero".to_owned()),
        duration => Ok(duration),
    }
}

/// A whole number within a range, for an argument. The parsers of clap speak of digits in strings and of `1..=9`.
pub(crate) fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text: &str| {
        let (min, max) = (range.start(), range.end());
        let number = text.parse::<u64>().ok().filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match *max {
            u64::MAX => format!("must be a whole number, {min} or greater"),
            max => format!("must be a whole number from {min} to {max}"),
        })
    }
}

/// The time between two exports. More than one a second would cost more than it shows.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        interval if interval < Duration::from_secs(1) => Err("must be at least 1s".to_owned()),
        interval => Ok(interval),
    }
}

/// The address of a collector, to which the paths of the protocol are added.
pub(super) fn endpoint(text: &str) -> Result<Uri, String> {
    let expected = || "expected an address such as http://127.0.0.1:4318".to_owned();
    let address = format!("{}{METRICS_PATH}", text.trim_end_matches('/'));
    let address: Uri = address.parse().map_err(|_| expected())?;
    let is_http = matches!(address.scheme_str(), Some("http" | "https")) && address.query().is_none();
    match address.authority().filter(|of| is_http && !of.host().is_empty()) {
        Some(authority) if authority.as_str().contains('@') => {
            Err("must not have a user or a password in its address".to_owned())
        }
        Some(_) => Ok(address),
        None => Err(expected()),
    }
}

/// A size in bytes, with or without a unit.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let bytes: u64 = match unit.trim_start() {
        "" | "B" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1 << 40,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return Err("a size is a number and a unit (B, KiB, MiB, GiB or TiB), such as 512MiB".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "a size begins with a number, such as 512MiB".to_owned())?;
    number.checked_mul(bytes).ok_or_else(|| "that is too large a size".to_owned())
}

pub(super) fn memory_size(text: &str) -> Result<u64, String> {
    between(size(text)?, MEMORY_BYTES_MIN, MEMORY_BYTES_MAX, "from 1MiB to 2GiB")
}

pub(super) fn segment_size(text: &str) -> Result<u64, String> {
    let bytes = between(size(text)?, SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX, "from 32MiB to 2GiB")?;
    if bytes.is_multiple_of(4096) { Ok(bytes) } else { Err("expected a multiple of 4KiB".to_owned()) }
}

fn between(bytes: u64, min: u64, max: u64, expected: &str) -> Result<u64, String> {
    if (min..=max).contains(&bytes) { Ok(bytes) } else { Err(format!("expected a size {expected}")) }
}

pub(crate) fn or_none<T>(
    text: &str,
    value: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    if text == "none" { Ok(None) } else { value(text).map(Some) }
}

pub(super) fn count(text: &str) -> Result<usize, String> {
    match text.parse::<u32>() {
        Ok(count) if count > 0 => Ok(count as usize),
        _ => Err("expected a number from 1 to 4294967295".to_owned()),
    }
}

/// Names with commas between them.
pub(super) fn names(text: &str) -> Result<Vec<String>, String> {
    if text == "none" {
        return Ok(Vec::new());
    }
    let is_name = |name: &&str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
    };
    let names: Vec<&str> = text.split(',').map(str::trim).collect();
    match names.iter().find(|name| !is_name(name)) {
        None => Ok(names.into_iter().map(str::to_ascii_lowercase).collect()),
        Some(_) => {
            Err("expected names with commas between them, such as forebay,forebay.example.com".to_owned())
        }
    }
}

/// The most webhooks that a server has.
const WEBHOOKS_MAX: usize = 16;

pub(super) fn webhooks(text: &str) -> Result<Vec<Webhook>, String> {
    let all = texts(text)?;
    if all.len() > WEBHOOKS_MAX {
        return Err(format!("expected at most {WEBHOOKS_MAX} addresses"));
    }
    all.iter().map(|one| Webhook::parse(one)).collect()
}

pub(super) fn alert_rules(text: &str) -> Result<Rules, String> {
    text.parse::<Rules>().map_err(|wrong| wrong.to_string())
}

pub(super) fn engine(text: &str) -> Result<EngineKind, String> {
    match text {
        "journal" => Ok(EngineKind::Journal),
        "jetstream" => Ok(EngineKind::JetStream),
        _ => Err("must be `journal` or `jetstream`".to_owned()),
    }
}

/// A command for a shell.
pub(super) fn command(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("must not be empty".to_owned()) } else { Ok(text.to_owned()) }
}

/// Texts that are separated by commas; `none` stands for none of them.
pub(super) fn texts(text: &str) -> Result<Vec<String>, String> {
    if text == "none" {
        return Ok(Vec::new());
    }
    text.split(',').map(|one| self::text(one.trim())).collect()
}

pub(super) fn text(text: &str) -> Result<String, String> {
    if text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("must not be empty or contain spaces".to_owned());
    }
    Ok(text.to_owned())
}

pub(super) fn replicas(text: &str) -> Result<usize, String> {
    match count(text) {
        Ok(count) if count <= 5 => Ok(count),
        _ => Err("must be between 1 and 5".to_owned()),
    }
}

/// How often keys of an issuer are fetched.
pub(super) fn refresh(text: &str) -> Result<Duration, String> {
    let every = duration(text)?;
    if REFRESH.contains(&every) { Ok(every) } else { Err("must be between 1s and 1d".to_owned()) }
}

/// Shorter than a pause of the machine it would change owners without need.
pub(super) fn tenure(text: &str) -> Result<Duration, String> {
    let tenure = duration(text)?;
    if (Duration::from_secs(1)..=Duration::from_secs(60)).contains(&tenure) {
        return Ok(tenure);
    }
    Err("must be between 1s and 60s".to_owned())
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "true" | "on" | "yes" | "1" => Ok(true),
        "false" | "off" | "no" | "0" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Err("expected a folder".to_owned()) } else { Ok(PathBuf::from(text)) }
}

/// `localhost` is this machine, and no address at all is every address, as in other servers.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let expected =
        || "expected an address and a port, such as 127.0.0.1:7070, [::1]:7070 or :7070".to_owned();
    let port = |port: &str| port.parse::<u16>().map_err(|_| expected());
    match text.rsplit_once(':') {
        Some(("localhost", rest)) => Ok(SocketAddr::from(([127, 0, 0, 1], port(rest)?))),
        Some(("", rest)) => Ok(SocketAddr::from(([0, 0, 0, 0], port(rest)?))),
        _ => text.parse().map_err(|_| expected()),
    }
}

/// The beginning of URLs, without what comes after the host.
pub(super) fn base_url(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")).unwrap_or_default();
    let host = host.strip_suffix('/').unwrap_or(host);
    let may_be = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    if host.is_empty() || !host.bytes().all(may_be) {
        return Err("expected the beginning of a URL, such as https://sqs.example.com".to_owned());
    }
    Ok(text.trim_end_matches('/').to_owned())
}

pub(super) fn log_format(text: &str) -> Result<Option<Format>, String> {
    match text {
        "auto" => Ok(None),
        "text" => Ok(Some(Format::Text)),
        "json" => Ok(Some(Format::Json)),
        _ => Err("expected auto, text or json".to_owned()),
    }
}

pub(super) fn log_level(text: &str) -> Result<Level, String> {
    match text {
        "error" => Ok(Level::Error),
        "warn" => Ok(Level::Warn),
        "info" => Ok(Level::Info),
        "debug" => Ok(Level::Debug),
        _ => Err("expected error, warn, info or debug".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_separated_by_commas() {
        assert_eq!(names("none"), Ok(vec![]));
        assert_eq!(names("a, b.Example.com"), Ok(vec!["a".to_owned(), "b.example.com".to_owned()]));
        for wrong in ["", "a,,b", "a b", "http://a", "a:7070"] {
            assert!(names(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_address_may_be_localhost_or_only_a_port() {
        let shown = |text| address(text).map(|address| address.to_string());
        assert_eq!(shown("localhost:7070").as_deref(), Ok("127.0.0.1:7070"));
        assert_eq!(shown(":7070").as_deref(), Ok("0.0.0.0:7070"));
        assert_eq!(shown("[::1]:80").as_deref(), Ok("[::1]:80"));
        for wrong in ["", ":", "7070", "localhost", "localhost:x", "example.com:80"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_size_has_a_number_and_perhaps_a_unit() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert_eq!(size("2G"), Ok(2 << 30));
        assert_eq!(size("10 GB"), Ok(10_000_000_000));
        for wrong in ["", "MiB", "-1", "1.5GiB", "1 parsec", "99999999999999999999", "99999999999TiB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
