//! What many calls read out of their requests, and what keeps their replies within bounds. Whatever cannot
//! be is refused by the name of its field.

use forebay_broker::caller::Filter;
use forebay_broker::error::CallError;
use forebay_core::types::{GroupName, NAME_BYTES_MAX, Seq, StreamName};
use prost::Message;
use tonic::Status;

use super::status;

/// Items of a page, if nobody says how many, and at most.
const LIMIT: u32 = 100;
const LIMIT_MAX: u32 = 1_000;
/// What one reply may have. Clients take replies of up to 4 MiB unless they are told otherwise, and the
/// largest message still fits into what is left.
const REPLY_BYTES_MAX: usize = 5 << 19;

pub(super) fn stream_name(text: &str) -> Result<StreamName, Status> {
    StreamName::parse(text).map_err(|error| status::invalid_name(format!("stream: {error}")))
}

pub(super) fn group_name(text: &str) -> Result<GroupName, Status> {
    GroupName::parse(text).map_err(|error| status::invalid_name(format!("group: {error}")))
}

pub(super) fn names(stream: &str, group: &str) -> Result<(StreamName, GroupName), Status> {
    Ok((stream_name(stream)?, group_name(group)?))
}

/// What a consumer is called. Nothing will do as well.
pub(super) fn consumer_name(text: &str) -> Result<(), Status> {
    if text.len() > NAME_BYTES_MAX || text.chars().any(char::is_control) {
        let text = format!("consumer: at most {NAME_BYTES_MAX} bytes, without control characters");
        return Err(status::invalid(text));
    }
    Ok(())
}

pub(super) fn limit(limit: u32) -> Result<u32, Status> {
    match limit {
        0 => Ok(LIMIT),
        1..=LIMIT_MAX => Ok(limit),
        _ => Err(status::invalid(format!("limit: at most {LIMIT_MAX}. limit=`{limit}`"))),
    }
}

/// A position that somebody names. No stream comes near the last one, and what is reckoned from it fits.
pub(super) fn position(seq: u64) -> Seq {
    Seq::named(seq)
}

pub(super) fn text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

pub(super) fn filter(key: String, kind: String) -> Filter {
    Filter { key: text(key), kind: text(kind) }
}

/// Why the broker did not do it, in gRPC's words.
pub(super) fn refused(error: CallError) -> Status {
    status::of_call(&error)
}

/// What is left of a reply.
pub(super) struct Budget {
    left: usize,
    is_empty: bool,
}

impl Budget {
    pub(super) fn new() -> Budget {
        Budget { left: REPLY_BYTES_MAX, is_empty: true }
    }

    /// Whether the item still fits. The first one always does, so that whoever goes on from page to page
    /// comes to an end.
    pub(super) fn take(&mut self, item: &impl Message) -> bool {
        let bytes = item.encoded_len();
        let fits = self.is_empty || bytes <= self.left;
        self.left = self.left.saturating_sub(bytes);
        self.is_empty = false;
        fits
    }
}

/// How many bytes of content fit into a reply.
pub(super) const CONTENT_BYTES_MAX: usize = REPLY_BYTES_MAX;
