//! Queue names, queue URLs, ARNs, accounts and regions.
//!
//! A wrong host in a queue URL is what users of other servers complain of most: some clients send a call to the
//! URL's host, whatever endpoint they were given. URLs are therefore made from the host that the request itself
//! was sent to, and are understood whatever host they have.

use std::fmt;

use axum::http::HeaderMap;
use percent_encoding::percent_decode_str;

use super::error::SqsError;
use super::signature::Scope;

const NAME_CHARS_MAX: usize = 80;
const FIFO_SUFFIX: &str = ".fifo";
const ACCOUNT_DIGITS: usize = 12;

/// The account of a client whose access key does not name one.
pub const DEFAULT_ACCOUNT: &str = "000000000000";
/// The region of a client that does not name one.
pub const DEFAULT_REGION: &str = "us-east-1";

/// The name of a queue that can be created.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(String);

impl QueueName {
    /// Whether a queue is FIFO is said twice, by its name and by an attribute, and both must agree.
    pub fn new(text: &str, is_fifo: bool) -> Result<QueueName, SqsError> {
        let stem = if is_fifo { text.strip_suffix(FIFO_SUFFIX) } else { Some(text) };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let is_name =
            |stem: &&str| !stem.is_empty() && text.len() <= NAME_CHARS_MAX && stem.bytes().all(is_plain);
        if stem.filter(is_name).is_some() {
            return Ok(QueueName(text.to_owned()));
        }
        let reason = if is_fifo {
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end \
             with .fifo suffix and be 1 to 80 in length"
        } else {
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
        };
        Err(SqsError::value(text, "QueueName", reason))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_fifo(&self) -> bool {
        QueueName::is_fifo_name(&self.0)
    }

    /// Whether the queue of that name is FIFO. The name of no other ends so.
    pub fn is_fifo_name(name: &str) -> bool {
        name.ends_with(FIFO_SUFFIX)
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A queue, as a URL or a path names it. Whether it exists is another question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueAddress {
    /// The caller's own, if not said.
    pub account: Option<String>,
    pub name: String,
}

impl QueueAddress {
    /// Scheme, host and port mean nothing: a queue is known by its account and its name, and by its name alone
    /// where that is all there is. `None` where there is no name.
    pub fn parse(url: &str) -> Option<QueueAddress> {
        let path = match url.split_once("://") {
            Some((_, rest)) => rest.split_once('/').map_or("", |(_, path)| path),
            None => url,
        };
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let mut parts = path.split('/').filter(|part| !part.is_empty()).rev();
        let name = percent_decode_str(parts.next()?).decode_utf8().ok()?.into_owned();
        let account = parts.next().filter(|part| is_account(part)).map(str::to_owned);
        Some(QueueAddress { account, name })
    }

    /// As a path, which is also a queue URL.
    pub fn path(&self) -> String {
        match &self.account {
            Some(account) => format!("/{account}/{}", self.name),
            None => format!("/{}", self.name),
        }
    }
}

/// The queue that a request was sent to, where it was not sent to the root. A path has an account or `queue` before
/// the name; one like `/health` is no queue.
pub fn queue_in_path(path: &str) -> Option<QueueAddress> {
    let parts = path.split('/').filter(|part| !part.is_empty()).count();
    QueueAddress::parse(path).filter(|_| parts >= 2)
}

/// Whether it could be the number of an account.
pub fn is_account(text: &str) -> bool {
    text.len() == ACCOUNT_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The name of a queue over all accounts and regions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arn {
    pub partition: String,
    pub region: String,
    pub account: String,
    pub queue: String,
}

impl Arn {
    pub fn new(region: &str, account: &str, queue: &str) -> Arn {
        let partition = match region {
            _ if region.starts_with("cn-") => "aws-cn",
            _ if region.starts_with("us-gov-") => "aws-us-gov",
            _ => "aws",
        };
        let [partition, region, account, queue] = [partition, region, account, queue].map(str::to_owned);
        Arn { partition, region, account, queue }
    }

    pub fn parse(text: &str) -> Option<Arn> {
        let parts: Vec<&str> = text.split(':').collect();
        let ["arn", partition, "sqs", region, account, queue] = parts[..] else { return None };
        if !partition.starts_with("aws") || [region, account, queue].iter().any(|part| part.is_empty()) {
            return None;
        }
        let [partition, region, account, queue] = [partition, region, account, queue].map(str::to_owned);
        Some(Arn { partition, region, account, queue })
    }
}

impl fmt::Display for Arn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "arn:{}:sqs:{}:{}:{}", self.partition, self.region, self.account, self.queue)
    }
}

/// Who asks and from where, as the queue's namespace and ARNs need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locality {
    pub account: String,
    pub region: String,
}

impl Locality {
    /// Taken from the credential's scope, then from the host; parts that neither names have their defaults.
    /// `owner` is the account of the access key, where the server knows it; a key that is an account itself
    /// speaks for that account.
    pub fn of(scope: Option<&Scope>, host: Option<&str>, owner: Option<&str>) -> Locality {
        let key = scope.map(|scope| scope.access_key.as_str()).filter(|key| is_account(key));
        let region = scope.map(|scope| scope.region.as_str()).filter(|region| !region.is_empty());
        let region = region.or_else(|| host.and_then(region_of_host)).unwrap_or(DEFAULT_REGION);
        Locality { account: owner.or(key).unwrap_or(DEFAULT_ACCOUNT).to_owned(), region: region.to_owned() }
    }

    pub fn arn(&self, queue: &str) -> Arn {
        Arn::new(&self.region, &self.account, queue)
    }
}

/// `sqs.<region>.` and the older `<region>.queue.`, whatever follows.
fn region_of_host(host: &str) -> Option<&str> {
    let mut labels = host.split('.');
    let (first, second, third) = (labels.next()?, labels.next()?, labels.next());
    let region = match (first, second) {
        ("sqs", region) => region,
        (region, "queue") => region,
        _ => return None,
    };
    // `sqs.localhost` and `sqs.example.com` name no region.
    let looks_so = region.contains('-') && region.ends_with(|c: char| c.is_ascii_digit());
    (looks_so && third.is_some()).then_some(region)
}

/// How queue URLs begin.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UrlOptions {
    /// The base of all queue URLs, the same for every client, as in `https://sqs.example.com`.
    pub public_base: Option<String>,
    /// Believe `X-Forwarded-Proto` and `X-Forwarded-Host`, which only a proxy should be able to set.
    pub trust_forwarded: bool,
    /// The door itself speaks TLS.
    pub is_tls: bool,
}

/// The part of a queue URL before the account and the name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UrlBase(String);

impl UrlBase {
    /// `fallback` is the door's own address, for a request without a host.
    pub fn of(headers: &HeaderMap, options: &UrlOptions, fallback: &str) -> UrlBase {
        if let Some(base) = &options.public_base {
            return UrlBase(base.trim_end_matches('/').to_owned());
        }
        let forwarded = |name: &str| {
            let value = headers.get(name).filter(|_| options.trust_forwarded)?.to_str().ok()?;
            // The first is what the client itself said; the others were added on the way.
            value.split(',').next().map(str::trim).filter(|value| !value.is_empty())
        };
        let own = if options.is_tls { "https" } else { "http" };
        let scheme = forwarded("x-forwarded-proto").filter(|scheme| matches!(*scheme, "http" | "https"));
        let host = forwarded("x-forwarded-host").filter(|host| is_host(host));
        let own_host = || headers.get("host")?.to_str().ok().filter(|host| is_host(host));
        let host = host.or_else(own_host).unwrap_or(fallback);
        UrlBase(format!("{}://{host}", scheme.unwrap_or(own)))
    }

    pub fn queue_url(&self, account: &str, queue: &str) -> String {
        format!("{}/{account}/{queue}", self.0)
    }
}

/// Nothing that would make another URL of it.
fn is_host(text: &str) -> bool {
    let may_be = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]%".contains(&byte);
    !text.is_empty() && text.bytes().all(may_be)
}
