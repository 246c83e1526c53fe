//! The settings of a log on JetStream.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::types::{Epoch, ShardId, Timestamp};

use crate::engine::BoxFuture;
use crate::jetstream::record::Claimant;

/// Where the log is, and who uses it.
#[derive(Clone)]
pub struct JetStreamConfig {
    /// Addresses of NATS servers, such as `nats://10.0.0.1:4222`.
    pub servers: Vec<String>,
    pub user: Option<(String, String)>,
    /// A file with certificates of authorities, if connections are to use TLS.
    pub root_certificates: Option<PathBuf>,
    /// Addresses of the servers' monitoring ports, for the proof that they sync before they acknowledge.
    pub monitors: Vec<String>,
    /// Whether messages that were confirmed may be lost when power fails.
    pub accept_loss: bool,
    /// Names the streams. All nodes of a cluster have the same.
    pub cluster: String,
    pub shard: ShardId,
    pub claimant: Claimant,
    /// The first epoch of a new log lies above this one.
    pub epoch_floor: Epoch,
    /// The log is to become a copy of this one. Only a log that was made for the same copy is opened then.
    pub copy_of: Option<String>,
    /// How many servers keep each stream, when it is created.
    pub replicas: usize,
    /// The size of the log's stream, when it is created.
    pub bytes_max: Option<u64>,
    /// Publishing stops when less than this is left.
    pub reserve_bytes: u64,
    pub frame_bytes_max: usize,
    /// Places where reading may begin are so far apart, and space returns in units of as much.
    pub place_bytes: u64,
    /// How long an owner may serve after the last sign of its ownership. The next owner waits as long.
    pub tenure: Duration,
    /// How long an owner that has stopped to serve waits for a log that it cannot reach, before it gives it up. Longer
    /// than an election among the servers takes, so that none of them changes the owner.
    pub unreachable_max: Duration,
    /// How often this node has owned the log since it started, for its figures.
    pub terms_before: u64,
    /// A clock that never goes back.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Runs a task of the engine beside its caller.
    pub spawn: Arc<dyn Fn(BoxFuture<'static, ()>) + Send + Sync>,
    /// A planted fault: the writer's rule is switched off.
    #[cfg(test)]
    pub(crate) believes_every_answer: bool,
}

impl JetStreamConfig {
    /// The usual settings, for these servers.
    pub fn new(
        servers: Vec<String>,
        cluster: &str,
        claimant: Claimant,
        clock: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> JetStreamConfig {
        JetStreamConfig {
            servers,
            user: None,
            root_certificates: None,
            monitors: Vec::new(),
            accept_loss: false,
            cluster: cluster.to_owned(),
            shard: ShardId(0),
            claimant,
            epoch_floor: Epoch(0),
            copy_of: None,
            replicas: 3,
            bytes_max: None,
            reserve_bytes: 256 << 20,
            frame_bytes_max: 12 << 20,
            place_bytes: 1 << 20,
            tenure: Duration::from_secs(3),
            unreachable_max: Duration::from_secs(15),
            terms_before: 0,
            clock: Arc::new(clock),
            spawn: Arc::new(|task| drop(tokio::spawn(task))),
            #[cfg(test)]
            believes_every_answer: false,
        }
    }
}
