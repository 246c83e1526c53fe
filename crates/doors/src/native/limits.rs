//! The limits of the native API, each declared once, for both of its protocols.

use std::time::Duration;

use forebay_core::types::NAME_BYTES_MAX;
use forebay_model::limits::YEAR;
pub(super) use forebay_model::limits::{POSITION_MAX, PRIORITY_MAX};
pub(super) use forebay_wire::json::RECEIVE_MAX;

/// Items of a page if the request does not say, and at most.
pub(super) const PAGE_DEFAULT: usize = 100;
pub(super) const PAGE_MAX: usize = 1_000;
/// How long a receive may wait for its first message.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(600);
/// Leases that one call settles.
pub(super) const LEASES_MAX: usize = 10_000;
/// Settlements of one transaction, and streams that it publishes to.
pub(super) const TRANSACTION_PARTS_MAX: usize = 1_000;
/// Positions that one selection of parked messages names.
pub(super) const SEQS_MAX: usize = 10_000;
/// The name of a consumer, in bytes.
pub(super) const CONSUMER_BYTES_MAX: usize = NAME_BYTES_MAX;
/// The longest delay, time to live, lease and the like.
pub(super) const DURATION_MAX: Duration = YEAR;
/// Consumers that a group's report lists one by one.
pub(super) const CONSUMERS_LISTED_MAX: usize = 1_000;
/// The defaults of an autoscaler that does not name a drain time or a number of consumers.
pub(super) const TARGET_DRAIN: Duration = Duration::from_secs(300);
pub(super) const TARGET_CONSUMERS_MAX: u32 = 1_000;
/// Messages that following a stream reads at a time, and the size of what becomes of them. One message always fits.
pub(super) const FOLLOW_PAGE: u64 = 2_000;
pub(super) const FOLLOW_PAGE_BYTES: usize = 1 << 20;
/// The size of a page of messages. One message always fits.
pub(super) const PAGE_BYTES_MAX: usize = 6 << 20;
/// Streams, and groups, in `/events`. Of more, the first by name.
pub(super) const OVERVIEW_MAX: usize = 1_000;
/// Contents of the messages in one reply over HTTP. A receive gives back what would not fit.
pub(super) const HTTP_REPLY_BYTES_MAX: usize = 16 << 20;
/// The same for one reply over gRPC. Clients take replies of up to 4 MiB unless they are told otherwise, and the
/// largest message still fits into the rest.
pub(super) const GRPC_REPLY_BYTES_MAX: usize = 5 << 19;

const _: () = assert!(PAGE_DEFAULT <= PAGE_MAX);
