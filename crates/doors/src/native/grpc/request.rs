//! Fields that many calls read from their requests, and the limits of their replies.

use forebay_core::types::{GroupName, StreamName};
use prost::Message;

use crate::native::limits::GRPC_REPLY_BYTES_MAX;
use crate::native::problem::Refusal;
use crate::native::service::{Answer, group_name, stream_name};

pub(super) fn names(stream: &str, group: &str) -> Answer<(StreamName, GroupName)> {
    Ok((stream_name(stream)?, group_name(group)?))
}

/// A number that zero leaves out.
pub(super) fn some<T: Default + PartialEq>(number: T) -> Option<T> {
    (number != T::default()).then_some(number)
}

/// A number that must not be left out.
pub(super) fn given<T: Default + PartialEq>(field: &'static str, number: T) -> Answer<T> {
    some(number).ok_or_else(|| Refusal::field(field, "must be given"))
}

/// The room left in a reply.
pub(super) struct Budget {
    left: usize,
    is_empty: bool,
}

impl Budget {
    pub(super) fn new() -> Budget {
        Budget { left: GRPC_REPLY_BYTES_MAX, is_empty: true }
    }

    /// Whether the item still fits. The first one always does, so that reading page after page comes to an end.
    pub(super) fn take(&mut self, item: &impl Message) -> bool {
        self.take_bytes(item.encoded_len())
    }

    /// The same for an item of this length.
    pub(super) fn take_bytes(&mut self, bytes: usize) -> bool {
        let fits = self.is_empty || bytes <= self.left;
        self.left = self.left.saturating_sub(bytes);
        self.is_empty = false;
        fits
    }
}
