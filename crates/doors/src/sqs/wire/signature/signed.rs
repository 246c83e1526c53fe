//! The parts of a request that describe its signature.

use axum::http::header;

use super::ALGORITHM;
use super::moment::Moment;
use crate::sqs::wire::error::{ErrorKind, SqsError};
use crate::sqs::wire::protocol::Head;
use crate::sqs::wire::request::form::Params;

/// The scope of a credential: `key/20261115/us-east-1/sqs/aws4_request`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    pub access_key: String,
    /// `20261115`.
    pub date: String,
    pub region: String,
    pub service: String,
    pub(super) terminator: String,
}

impl Scope {
    /// A key may have slashes in it, the rest may not.
    fn parse(text: &str) -> Option<Scope> {
        let mut parts = text.rsplitn(5, '/').map(str::to_owned);
        let (terminator, service, region, date) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let access_key = parts.next().filter(|key| !key.is_empty())?;
        Some(Scope { access_key, date, region, service, terminator })
    }

    /// Without the key, as it is signed.
    pub(super) fn path(&self) -> String {
        format!("{}/{}/{}/{}", self.date, self.region, self.service, self.terminator)
    }
}

/// Where the signature is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Header,
    /// In the query of a URL, which is good for so many seconds.
    Url {
        expires: u32,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Signed {
    pub(super) place: Place,
    pub(super) scope: Scope,
    pub(super) date: Moment,
    /// In lower case, in the order in which they were signed.
    pub(super) headers: Vec<String>,
    /// In hexadecimal.
    pub(super) signature: String,
}

impl Signed {
    /// `None` if the request does not say anything about a signature.
    pub(super) fn of(head: &Head<'_>) -> Result<Option<Signed>, SqsError> {
        if let Some(value) = head.headers.get(header::AUTHORIZATION) {
            let value = value.to_str().map_err(|_| incomplete("The Authorization header is not text."))?;
            return Signed::of_header(head, value).map(Some);
        }
        let params = Params::parse(head.query.as_bytes(), b"")?;
        let is_url = ["X-Amz-Algorithm", "X-Amz-Signature", "X-Amz-Credential"]
            .iter()
            .any(|name| params.get(name).is_some());
        if is_url { Signed::of_url(&params).map(Some) } else { Ok(None) }
    }

    fn of_header(head: &Head<'_>, value: &str) -> Result<Signed, SqsError> {
        let (algorithm, rest) = value.trim().split_once(' ').unwrap_or((value, ""));
        check_algorithm(algorithm)?;
        let part = |name: &str| {
            let parts = rest.split(',').filter_map(|part| part.trim().split_once('='));
            let mut found = parts.filter(|(other, _)| *other == name).map(|(_, value)| value.trim());
            let missing = || incomplete(&format!("Authorization header requires '{name}' parameter."));
            found.next().filter(|value| !value.is_empty()).ok_or_else(missing)
        };
        let (scope, headers) = (scope(part("Credential")?)?, part("SignedHeaders")?);
        let signature = part("Signature")?.to_owned();
        let date = match (head.header("x-amz-date"), head.header("date")) {
            (Some(text), _) => Moment::parse(text),
            (None, Some(text)) => Moment::parse(text).or_else(|| Moment::parse_http(text)),
            (None, None) => {
                let message =
                    "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header.";
                return Err(incomplete(message));
            }
        };
        let date = date.ok_or_else(bad_date)?;
        Ok(Signed { place: Place::Header, scope, date, headers: names(headers), signature })
    }

    fn of_url(params: &Params) -> Result<Signed, SqsError> {
        let part = |name: &str| {
            let missing = || incomplete(&format!("AWS query-string parameters must include '{name}'."));
            params.get(name).filter(|value| !value.is_empty()).ok_or_else(missing)
        };
        check_algorithm(part("X-Amz-Algorithm")?)?;
        let scope = scope(part("X-Amz-Credential")?)?;
        let headers = names(part("X-Amz-SignedHeaders")?);
        let signature = part("X-Amz-Signature")?.to_owned();
        let date = Moment::parse(part("X-Amz-Date")?).ok_or_else(bad_date)?;
        // A text that is not a number becomes 0, which is out of range.
        let expires = part("X-Amz-Expires")?.parse().unwrap_or(0);
        Ok(Signed { place: Place::Url { expires }, scope, date, headers, signature })
    }
}

fn incomplete(message: &str) -> SqsError {
    SqsError::new(ErrorKind::IncompleteSignature, message)
}

fn bad_date() -> SqsError {
    incomplete("Date must be in ISO-8601 'basic format', as in '20261115T103000Z'.")
}

fn check_algorithm(algorithm: &str) -> Result<(), SqsError> {
    if algorithm == ALGORITHM {
        return Ok(());
    }
    Err(incomplete(&format!("Unsupported AWS 'algorithm': '{algorithm}'. Only {ALGORITHM} is supported.")))
}

fn scope(text: &str) -> Result<Scope, SqsError> {
    let message = || {
        let form = "<access-key>/<yyyymmdd>/<region>/sqs/aws4_request";
        incomplete(&format!("Credential must have the form {form}, got '{text}'."))
    };
    Scope::parse(text).ok_or_else(message)
}

fn names(text: &str) -> Vec<String> {
    text.split(';').map(|name| name.trim().to_ascii_lowercase()).collect()
}
