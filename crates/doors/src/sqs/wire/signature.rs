//! Signature version 4: who signed a request, and whether they did.
//!
//! A signature is in the `Authorization` header, or in the query of a URL that was signed beforehand. Both say the
//! same things, so both become one thing (`signed`) first.
//!
//! | Module | What it does |
//! | --- | --- |
//! | `signed` | What a request says about its signature, and the scope of its credential. |
//! | `canonical` | The one form of a request that both sides sign. |
//! | `moment` | Times, as they are written in signatures. |

mod canonical;
mod moment;
mod signed;

pub use signed::Scope;

use std::time::Duration;

use forebay_core::types::Timestamp;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

use super::digest::hex;
use super::error::{ErrorKind, SqsError};
use super::protocol::Head;
use moment::Moment;
use signed::{Place, Signed};

pub(super) const SERVICE: &str = "sqs";
pub(super) const TERMINATOR: &str = "aws4_request";
pub(super) const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// How far the clocks of client and server may be apart.
const SKEW_MAX: Duration = Duration::from_secs(15 * 60);
/// A URL is good for a week at most.
const EXPIRES_MAX: u32 = 604_800;

/// Who is believed.
pub enum Trust<'a> {
    /// Those whose secret this finds, by their access key, if it is theirs indeed.
    Verify(&'a dyn Fn(&str) -> Option<String>),
    /// Every client. Its credential is still read, for the account and the region.
    Anybody,
}

/// The access key that a request names, whether it is signed with it or not.
pub fn access_key(head: &Head<'_>) -> Option<String> {
    Signed::of(head).ok().flatten().map(|signed| signed.scope.access_key)
}

/// Checks everything about a signature that the head of a request shows: all but whether it fits the body. So a client
/// with no credentials, or with credentials that cannot be right, is refused before its body is read.
pub fn recognize(now: Timestamp, trust: &Trust<'_>, head: &Head<'_>) -> Result<(), SqsError> {
    let Trust::Verify(secret_of) = trust else { return Ok(()) };
    let signed = Signed::of(head)?.ok_or_else(missing)?;
    secret_of(&signed.scope.access_key).ok_or_else(unknown_key)?;
    check_head(now, &signed, head)
}

/// Who asks. `None` where they do not say so, and need not.
pub fn authenticate(
    now: Timestamp,
    trust: &Trust<'_>,
    head: &Head<'_>,
    body: &[u8],
) -> Result<Option<Scope>, SqsError> {
    let signed = Signed::of(head);
    match trust {
        Trust::Anybody => Ok(signed.ok().flatten().map(|signed| signed.scope)),
        Trust::Verify(secret_of) => {
            let signed = signed?.ok_or_else(missing)?;
            let secret = secret_of(&signed.scope.access_key).ok_or_else(unknown_key)?;
            verify(now, &signed, &secret, head, body)?;
            Ok(Some(signed.scope))
        }
    }
}

fn missing() -> SqsError {
    SqsError::new(ErrorKind::MissingAuthenticationToken, "Request is missing Authentication Token")
}

/// The answer to a key that the server does not know, or knows no more.
pub fn unknown_key() -> SqsError {
    let message = "The security token included in the request is invalid.";
    SqsError::new(ErrorKind::InvalidClientTokenId, message)
}

fn mismatch(message: impl Into<String>) -> SqsError {
    SqsError::new(ErrorKind::SignatureDoesNotMatch, message)
}

fn verify(
    now: Timestamp,
    signed: &Signed,
    secret: &str,
    head: &Head<'_>,
    body: &[u8],
) -> Result<(), SqsError> {
    check_head(now, signed, head)?;
    let payload = payload_hash(signed, head, body)?;
    let canonical = canonical::request(head, signed, &payload);
    let text = format!(
        "{ALGORITHM}\n{}\n{}\n{}",
        signed.date,
        signed.scope.path(),
        hex(&Sha256::digest(canonical.as_bytes()))
    );
    let key = signing_key(secret, &signed.scope);
    // Compared in constant time, so that a signature cannot be found digit by digit.
    let given = unhex(&signed.signature).unwrap_or_default();
    mac(&key).chain_update(text.as_bytes()).verify_slice(&given).map_err(|_| {
        mismatch(
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret \
             Access Key and signing method. Consult the service documentation for details.",
        )
    })
}

/// The `Authorization` header of a request with this key, as a client makes it.
#[cfg(test)]
pub(crate) fn sign(now: Timestamp, (key, secret): (&str, &str), head: &Head<'_>, body: &[u8]) -> String {
    let date = Moment::at(now);
    let day = date.to_string()[..8].to_owned();
    let names = ["host", "x-amz-date", "x-amz-target"].join(";");
    let scope = format!("{key}/{day}/us-east-1/{SERVICE}/{TERMINATOR}");
    let with = |signature: &str| {
        format!("{ALGORITHM} Credential={scope}, SignedHeaders={names}, Signature={signature}")
    };
    let mut headers = head.headers.clone();
    headers.insert(axum::http::header::AUTHORIZATION, with("00").parse().expect("a value"));
    let head = Head { headers: &headers, ..*head };
    let signed = Signed::of(&head).expect("it can be read").expect("it is there");
    let canonical = canonical::request(&head, &signed, &hex(&Sha256::digest(body)));
    let digest = hex(&Sha256::digest(canonical.as_bytes()));
    let text = format!("{ALGORITHM}\n{}\n{}\n{digest}", signed.date, signed.scope.path());
    let key = signing_key(secret, &signed.scope);
    with(&hex(&mac(&key).chain_update(text.as_bytes()).finalize().into_bytes()))
}

/// A time as it is written in a signature.
#[cfg(test)]
pub(crate) fn date_of(now: Timestamp) -> String {
    Moment::at(now).to_string()
}

fn check_head(now: Timestamp, signed: &Signed, head: &Head<'_>) -> Result<(), SqsError> {
    check_scope(signed)?;
    check_time(now, signed)?;
    check_headers(signed, head)?;
    if signed.place == Place::Header && head.header("x-amz-content-sha256") == Some(UNSIGNED) {
        return Err(mismatch("The payload must be signed: this endpoint does not use TLS."));
    }
    Ok(())
}

fn check_scope(signed: &Signed) -> Result<(), SqsError> {
    let scope = &signed.scope;
    if scope.service != SERVICE {
        return Err(mismatch(format!("Credential should be scoped to correct service: '{SERVICE}'.")));
    }
    if scope.terminator != TERMINATOR {
        return Err(mismatch(format!(
            "Credential should be scoped with a valid terminator: '{TERMINATOR}'."
        )));
    }
    let day = signed.date.day();
    if scope.date != day {
        let date = &scope.date;
        return Err(mismatch(format!(
            "Date in Credential scope does not match the date of the request: '{date}' != '{day}'."
        )));
    }
    Ok(())
}

fn check_time(now: Timestamp, signed: &Signed) -> Result<(), SqsError> {
    let (at, now_text) = (signed.date.timestamp(), Moment::at(now));
    let (lasts, slack) = match signed.place {
        Place::Header => (SKEW_MAX, "15 min."),
        Place::Url { expires } => {
            if !(1..=EXPIRES_MAX).contains(&expires) {
                let message = format!("X-Amz-Expires must be from 1 to {EXPIRES_MAX} seconds.");
                return Err(SqsError::new(ErrorKind::IncompleteSignature, message));
            }
            (Duration::from_secs(expires.into()), "X-Amz-Expires")
        }
    };
    let date = &signed.date;
    if at + lasts < now {
        let earliest = Moment::at(now - lasts);
        return Err(mismatch(format!(
            "Signature expired: {date} is now earlier than {earliest} ({now_text} - {slack})"
        )));
    }
    if now + SKEW_MAX < at {
        let latest = Moment::at(now + SKEW_MAX);
        return Err(mismatch(format!(
            "Signature not yet current: {date} is still later than {latest} ({now_text} + 15 min.)"
        )));
    }
    Ok(())
}

/// The host header, and every header that AWS gives a meaning to, must be signed: otherwise a proxy on the way
/// could change it.
fn check_headers(signed: &Signed, head: &Head<'_>) -> Result<(), SqsError> {
    let is_signed = |name: &str| signed.headers.iter().any(|other| other == name);
    if !is_signed("host") {
        return Err(mismatch("'Host' must be a signed header."));
    }
    let names = head.headers.keys().map(axum::http::HeaderName::as_str);
    match names.filter(|name| name.starts_with("x-amz-")).find(|name| !is_signed(name)) {
        Some(name) => Err(mismatch(format!("'{name}' must be a signed header."))),
        None => Ok(()),
    }
}

const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

fn payload_hash(signed: &Signed, head: &Head<'_>, body: &[u8]) -> Result<String, SqsError> {
    let stated = match signed.place {
        Place::Header => head.header("x-amz-content-sha256"),
        Place::Url { .. } => None,
    };
    let hash = hex(&Sha256::digest(body));
    match stated {
        Some(stated) if stated != hash => {
            Err(mismatch("The x-amz-content-sha256 of the request is not that of its body."))
        }
        _ => Ok(hash),
    }
}

fn signing_key(secret: &str, scope: &Scope) -> Vec<u8> {
    let mut key = format!("AWS4{secret}").into_bytes();
    for part in [&scope.date[..], &scope.region, SERVICE, TERMINATOR] {
        key = mac(&key).chain_update(part.as_bytes()).finalize().into_bytes().to_vec();
    }
    key
}

fn mac(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("a key of any length will do")
}

/// `None` where it is not hexadecimal.
fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pair = |pair: &[u8]| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8);
    text.as_bytes().chunks_exact(2).map(pair).collect()
}
