//! Persistent subscriptions: groups of a stream, as Kurrent clients create and consume them.

mod measure;
mod settings;

use forebay_wire::kurrent::persistent_subscriptions::persistent_subscriptions_server::PersistentSubscriptions;

use super::KurrentDoor;
use super::features::Method;

/// The calls that are advertised. A call that is not listed here is not used by clients.
pub(super) const METHODS: &[Method] = &[];

#[tonic::async_trait]
impl PersistentSubscriptions for KurrentDoor {}
