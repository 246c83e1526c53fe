//! The log on NATS JetStream: an engine whose data is kept by a cluster of servers, so that another node can take over.
//!
//! | Module | Purpose |
//! | --- | --- |
//! | `record` | the records of the log, to the byte |
//! | `pipeline` | the writer's rule: which acknowledgements count |
//! | `walk` | the reader's rule: which records are valid |
//! | `tenure` | how long an owner may serve, and how long its successor waits |
//! | `config` | settings |
//! | `index` | where frames are, and which messages they publish |
//! | `images` | images of the shard's state, in a stream of their own |
//! | `link` | the calls of the servers that the engine needs |
//! | `wire` | the connection that they go over; `nats` is the real one |
//! | `open` | checks of the servers, and the streams |
//! | `claim` | taking a log |
//! | `keeper` | the task that writes it |
//! | `inspect` | a log that is only read |
//! | `presence` | nodes that tell each other how they stand |
//! | `engine` | the [`Engine`](crate::engine::Engine) |
//!
//! The first four are plain values without input or output. Their tests drive them through two and more owners, lost
//! and late acknowledgements, and leaders that forget to check.
//!
//! A stream is the log of one shard. Its owner is the node whose claim is the last valid one. See `pipeline` for why an
//! owner that lost the log never reports a frame that the next owner does not find.

mod claim;
mod config;
mod engine;
mod images;
mod index;
mod inspect;
mod keeper;
mod link;
mod nats;
mod open;
mod pipeline;
mod presence;
mod record;
mod tenure;
mod walk;
pub mod wire;

#[cfg(test)]
mod tests;

pub use config::JetStreamConfig;
pub use engine::{JetStreamEngine, LogState, Ownership, Survey};
pub use inspect::{JetStreamLog, LogDiagnosis};
pub use link::Server;
pub use open::JetStreamError;
pub use presence::NodeState;
pub use record::{Claimant, PART_BYTES};
