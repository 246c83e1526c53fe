//! What a node says about its cluster. Times are numbers of seconds.

use serde::{Deserialize, Serialize};

/// What a node does in its cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum NodeRole {
    /// It has a log of its own, and there is no cluster.
    #[default]
    Single,
    /// It owns the log and serves clients.
    Owner,
    /// It passes clients on to the owner, and takes over when the owner stops.
    Standby,
}

/// A cluster, as one of its nodes sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterReport {
    /// The names of the cluster and of the node that answers. `null` on a server with a log of its own.
    pub cluster: Option<String>,
    pub node: Option<String>,
    pub role: NodeRole,
    /// The node that owns the log, and where clients reach it.
    pub owner: Option<String>,
    pub owner_address: Option<String>,
    /// Counts the owners of the log.
    pub term: u32,
    /// All nodes that answered.
    pub nodes: Vec<ClusterNode>,
    /// `null` if the log cannot be asked for now.
    pub log: Option<ClusterLog>,
    /// Why something is missing in this report.
    pub problem: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterNode {
    pub node: String,
    pub address: String,
    pub version: String,
    pub role: NodeRole,
    /// The last term in which it owned the log since it started; 0 if there was none.
    pub term: u32,
    /// How long the owner may still serve without another sign that it owns the log.
    pub tenure_left: Option<f64>,
    /// Records of the log that it has not seen yet.
    pub records_behind: u64,
}

/// The stream of NATS JetStream that is the log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClusterLog {
    pub stream: String,
    pub last_record: u64,
    pub bytes: u64,
    /// The size that it may have. `null`: limited by the servers only.
    pub max_bytes: Option<u64>,
    /// The NATS servers that keep it.
    pub servers: Vec<NatsServer>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NatsServer {
    pub name: String,
    pub leader: bool,
    pub online: bool,
    /// Whether it has everything that the leader has.
    pub current: bool,
    pub records_behind: u64,
    /// Since when the leader has not heard of it.
    pub silent_for: Option<f64>,
}
