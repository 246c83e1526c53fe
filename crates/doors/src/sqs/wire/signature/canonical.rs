//! The one form of a request that both sides sign, however it was written on the way.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::signed::Signed;
use crate::sqs::wire::protocol::Head;

/// Everything but letters, digits and `-_.~`.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const PATH: &AsciiSet = &VALUE.remove(b'/');

pub(super) fn request(head: &Head<'_>, signed: &Signed, payload_hash: &str) -> String {
    let mut text = format!("{}\n{}\n{}\n", head.method, path(head.path), query(head.query));
    for name in &signed.headers {
        text.push_str(name);
        text.push(':');
        text.push_str(&header(head, name));
        text.push('\n');
    }
    text.push('\n');
    text.push_str(&signed.headers.join(";"));
    text.push('\n');
    text.push_str(payload_hash);
    text
}

/// The path came encoded, and is encoded once more.
fn path(raw: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in raw.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let ends = if raw.ends_with('/') && !parts.is_empty() { "/" } else { "" };
    utf8_percent_encode(&format!("/{}{ends}", parts.join("/")), PATH).to_string()
}

/// Each name and value in its canonical encoding, in order. A plus stands for a space.
fn query(raw: &str) -> String {
    let encode = |text: &str| {
        let text = text.replace('+', " ");
        let bytes: Vec<u8> = percent_decode_str(&text).collect();
        percent_encoding::percent_encode(&bytes, VALUE).to_string()
    };
    let mut pairs: Vec<(String, String)> = raw
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (encode(name), encode(value)))
        .filter(|(name, _)| name != "X-Amz-Signature")
        .collect();
    pairs.sort_unstable();
    let pairs: Vec<String> = pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join("&")
}

/// The values of a header, with single spaces. Bytes that are no text cannot have been signed as text.
fn header(head: &Head<'_>, name: &str) -> String {
    let values = head.headers.get_all(name).iter().map(|value| {
        let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
        text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    });
    values.collect::<Vec<_>>().join(",")
}
