//! The setting that differs, where something of the same name is there already.

use forebay_broker::api::{GroupSettings, StreamSettings};

use crate::native::http::settings::{difference, of_group, of_stream};

/// The first setting of a stream that is not as it is wanted.
pub(super) fn stream_difference(wanted: &StreamSettings, is: &StreamSettings) -> Option<String> {
    difference(&of_stream(wanted), &of_stream(is))
}

/// The first setting of a group that is not as it is wanted.
pub(super) fn group_difference(wanted: &GroupSettings, is: &GroupSettings) -> Option<String> {
    difference(&of_group(wanted), &of_group(is))
}
