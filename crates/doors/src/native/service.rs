//! The native API itself: every call with its checks, its limits and its pages, once for both protocols.
//!
//! It takes names and numbers, and answers with the reports of the broker or with a [`Refusal`]. It knows neither HTTP
//! nor gRPC: `http` and `grpc` translate requests and replies and decide nothing.
//!
//! | Module | Has |
//! | --- | --- |
//! | `publish` | what a message may be, and publishing |
//! | `consume` | receiving, settling, extending |
//! | `transact` | settling and publishing in one transaction |
//! | `streams`, `groups` | creating, changing, listing, and the calls of operators |
//! | `parked` | parked messages and jobs |
//! | `connections` | connections of clients |
//! | `credentials` | tokens and access keys |
//! | `read` | reading a stream, and following it |
//! | `log` | the same for all streams together |
//! | `reports` | reports as the API shows them |
//!
//! The streaming calls of gRPC publish and consume by way of [`Service::caller`]: a message there costs no step more
//! than the broker asks for. Their checks are the functions of `publish` and `consume`.

mod connections;
mod consume;
mod credentials;
mod groups;
mod log;
mod parked;
mod publish;
mod read;
mod reports;
mod streams;
mod transact;

use std::time::Duration;

use forebay_broker::api::{CallError, Caller, Entrance, Filter, Hold, Rate, Share};
use forebay_core::types::{GroupName, Seq, StreamName, Timestamp};
use forebay_model::describe::{Field, find};
use forebay_wire::json::Span;

use super::limits::{CONSUMER_BYTES_MAX, DURATION_MAX, PAGE_DEFAULT, PAGE_MAX, POSITION_MAX};
use super::problem::Refusal;
pub(super) use consume::{Action, Terms, Wish};
pub(super) use credentials::NewTerms;
pub(super) use log::{FollowingLog, log_filter};
pub(super) use parked::{Edits, NewBody, ParkedFilter, Selection, Triage};
pub(super) use publish::{MessageTerms, Placed, placed};
pub(super) use read::{Following, From};
pub(super) use reports::Overview;
pub(super) use transact::{Transaction, not_committed};

/// The native API, in the name of one caller.
#[derive(Clone)]
pub(super) struct Service {
    caller: Caller,
    /// Room for the replies of the caller's connection.
    share: Share,
}

pub(super) type Answer<T> = Result<T, Refusal>;

impl Service {
    pub(super) fn new(caller: Caller, share: Share) -> Service {
        Service { caller, share }
    }

    pub(super) fn share(&self) -> &Share {
        &self.share
    }

    /// Room for a reply with so many bytes of content in so many messages.
    async fn room(&self, messages: usize, bytes: usize) -> Answer<Hold> {
        let room = self.share.take(reply_bytes(messages, bytes)).await;
        room.ok_or_else(|| self.refused(&CallError::TooManyBytes))
    }

    pub(super) fn caller(&self) -> &Caller {
        &self.caller
    }

    pub(super) fn broker(&self) -> &Entrance {
        self.caller.broker()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.broker().clock().now()
    }

    fn refused(&self, error: &CallError) -> Refusal {
        Refusal::of_call(self.now(), error)
    }

    /// The broker's answer, or its refusal in the words of the API.
    fn answer<T>(&self, answer: Result<T, CallError>) -> Answer<T> {
        answer.map_err(|error| self.refused(&error))
    }
}

/// The size of a message in a reply beside its content, by rough count.
const MESSAGE_BYTES: usize = 512;

/// The size of a reply, by rough count: contents may be encoded in base64.
pub(super) fn reply_bytes(messages: usize, content: usize) -> usize {
    content + content / 3 + messages * MESSAGE_BYTES
}

/// The bytes of content that fit into a reply of this size, by the same count.
fn content_bytes(reply: usize) -> usize {
    reply / 4 * 3
}

pub(super) fn stream_name(text: &str) -> Answer<StreamName> {
    StreamName::parse(text).map_err(|error| Refusal::name("stream", &error))
}

/// The name of a stream that a call only looks at. It may be one of the system.
pub(super) fn stream_to_read(text: &str) -> Answer<StreamName> {
    StreamName::of_any(text).map_err(|error| Refusal::name("stream", &error))
}

pub(super) fn group_name(text: &str) -> Answer<GroupName> {
    GroupName::parse(text).map_err(|error| Refusal::name("group", &error))
}

/// The name of a consumer. It may be empty.
pub(super) fn check_consumer(name: &str) -> Answer<()> {
    if name.len() > CONSUMER_BYTES_MAX {
        let rule = format!("must have at most {CONSUMER_BYTES_MAX} bytes");
        return Err(Refusal::value("consumer", rule, name.len()));
    }
    if name.chars().any(char::is_control) {
        return Err(Refusal::field("consumer", "must not have control characters"));
    }
    Ok(())
}

/// A position in a request.
pub(super) fn position(number: u64) -> Seq {
    Seq(number.min(POSITION_MAX))
}

/// How many items a page has.
fn page(limit: Option<u64>) -> Answer<usize> {
    match limit {
        None => Ok(PAGE_DEFAULT),
        Some(limit) => match usize::try_from(limit) {
            Ok(limit @ 1..=PAGE_MAX) => Ok(limit),
            _ => Err(Refusal::value("limit", format!("must be between 1 and {PAGE_MAX}"), limit)),
        },
    }
}

/// A duration of a request, which may be zero.
fn check_duration(field: &'static str, duration: Option<Duration>) -> Answer<Option<Duration>> {
    match duration {
        Some(duration) if duration > DURATION_MAX => {
            let rule = format!("must be at most {}", Span(DURATION_MAX));
            Err(Refusal::value(field, rule, Span(duration)))
        }
        duration => Ok(duration),
    }
}

/// A duration of a request that cannot be zero.
pub(super) fn check_some_duration(
    field: &'static str,
    duration: Option<Duration>,
) -> Answer<Option<Duration>> {
    if duration.is_some_and(|duration| duration.is_zero()) {
        return Err(Refusal::value(field, "must be greater than zero", Span(Duration::ZERO)));
    }
    check_duration(field, duration)
}

/// Names of settings that go back to their defaults. The start of a group cannot be changed.
fn fields(names: Vec<String>, known: &[Field]) -> Answer<Vec<String>> {
    for name in &names {
        if name == "start" || find(known, name).is_none() {
            return Err(Refusal::value("clear", "must name settings that can be changed", name));
        }
    }
    Ok(names)
}

/// The rate of a job.
pub(super) fn check_rate(rate: Option<Rate>) -> Answer<Option<Rate>> {
    if let Some(rate) = rate {
        rate.check("rate").map_err(|error| Refusal::of_settings(&error))?;
    }
    Ok(rate)
}

/// Which messages are wanted. An empty text is as good as none.
pub(super) fn filter(key: Option<String>, kind: Option<String>) -> Filter {
    Filter { key: text(key), kind: text(kind) }
}

fn text(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_durations_and_names_have_limits() {
        assert_eq!((page(None), page(Some(1)), page(Some(1_000))), (Ok(100), Ok(1), Ok(1_000)));
        for wrong in [0, 1_001, u64::MAX] {
            let refusal = page(Some(wrong)).expect_err("it is refused");
            let text = format!("limit must be between 1 and 1000. value=`{wrong}`");
            assert_eq!(refusal.sentence(Some("limit")), text);
        }
        let refusal = check_duration("delay", Some(DURATION_MAX + Duration::from_millis(1)));
        let text = "delay must be at most 366d. value=`31622400001ms`";
        assert_eq!(refusal.expect_err("it is refused").sentence(Some("delay")), text);
        assert!(check_some_duration("timeout", Some(Duration::ZERO)).is_err());
        assert!(check_duration("delay", Some(Duration::ZERO)).is_ok());
        assert!(check_consumer("").is_ok() && check_consumer(&"x".repeat(255)).is_ok());
        assert!(check_consumer("a\nb").is_err() && check_consumer(&"x".repeat(256)).is_err());
    }
}
