//! Publishing: one message, a batch that is stored whole or not at all, or a steady flow.
//!
//! All messages go through a pipeline. It collects waiting messages into batches, keeps a few batches in flight, and
//! sends again after a broken connection, so that every message is stored once and in order.
//!
//! | Module | Has |
//! | --- | --- |
//! | `one`, `batch`, `producer` | the public API |
//! | `streams` | the pipelines that all users of a client share |
//! | `handle`, `window` | a pipeline from the outside |
//! | `pipeline` | the decisions: batches, numbers, retries, who is told what |
//! | `task`, `codec` | the task that carries them out |

mod batch;
mod codec;
mod handle;
mod one;
mod pipeline;
mod producer;
mod streams;
mod task;
mod window;

use handle::Terms;
use pipeline::{BatchMax, Rules};

pub use batch::PublishBatch;
pub use handle::{Confirmation, Confirming};
pub use one::{Publish, Publishing};
pub use producer::{Producer, ProducerBuilder};
pub(crate) use streams::Streams;

/// The limits of one batch. Large enough that a message costs hardly more than its bytes, small enough that the
/// first message does not wait for the last.
const BATCH_MAX: BatchMax = BatchMax { messages: 1_000, bytes: 1 << 20 };

/// The pipelines that all users of a client share.
const SHARED: Terms = Terms {
    window_messages: 16_384,
    window_bytes: 64 << 20,
    rules: Rules { batch_max: BATCH_MAX, stops_at_failure: false, stall_timeout: None },
    ends_when_idle: true,
};

/// The defaults of a producer.
const PRODUCER: Terms = Terms {
    window_messages: 1_024,
    window_bytes: 16 << 20,
    rules: Rules { batch_max: BATCH_MAX, stops_at_failure: false, stall_timeout: None },
    ends_when_idle: false,
};

/// A message that was stored. It is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// The message's position in its stream.
    pub seq: u64,
    /// Whether a message with this id was stored before, at that position, so that nothing was stored now. After a
    /// broken connection that may have been this very message.
    pub duplicate: bool,
    /// The message's id, if it has one.
    pub id: Option<String>,
    /// The message's position in the server's log, over all its streams. `None` if it was stored before.
    pub log_position: Option<u64>,
}
