//! Streams: appending to them, reading them, and deleting them.

use forebay_wire::kurrent::streams::streams_server::Streams;

use super::KurrentDoor;
use super::features::Method;

/// The calls that are advertised. A call that is not listed here is not used by clients.
pub(super) const METHODS: &[Method] = &[];

#[tonic::async_trait]
impl Streams for KurrentDoor {}
