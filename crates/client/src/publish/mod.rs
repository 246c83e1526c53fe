//! Publishing: one message, a batch that is stored whole or not at all, or a steady flow.
//!
//! Whatever is published goes through a pipeline, which puts what waits into batches, keeps a few of them on their
//! way, and sends again what got lost, so that nothing is stored twice, nothing is lost and nothing is reordered.
//!
//! | Module | Has |
//! | --- | --- |
//! | `one`, `batch`, `producer` | what users see |
//! | `streams` | the pipelines that all users of a client share |
//! | `handle`, `window` | a pipeline as its users see it |
//! | `pipeline` | what is decided: batches, numbers, retries, who is told what |
//! | `task`, `codec` | what is done about it |

mod batch;
mod codec;
mod handle;
mod one;
mod pipeline;
mod producer;
mod streams;
mod task;
mod window;

use forebay_wire::problem::Kind;
use forebay_wire::v1::problem::Code;

use handle::Terms;
use pipeline::BatchMax;

pub use batch::PublishBatch;
pub use handle::{Confirmation, Confirming};
pub use one::{Publish, Publishing};
pub use producer::{Producer, ProducerBuilder};
pub(crate) use streams::Streams;

/// What goes into one batch. Large enough that a message costs hardly more than its bytes, small enough that the
/// first of them does not wait for the last.
const BATCH_MAX: BatchMax = BatchMax { messages: 1_000, bytes: 1 << 20 };

/// The pipelines that everybody shares.
const SHARED: Terms =
    Terms { window_messages: 16_384, window_bytes: 64 << 20, batch_max: BATCH_MAX, ends_when_idle: true };

/// A producer that says nothing else.
const PRODUCER: Terms =
    Terms { window_messages: 1_024, window_bytes: 16 << 20, batch_max: BATCH_MAX, ends_when_idle: false };

/// What became of a message that was published. It is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// The message's position in its stream.
    pub seq: u64,
    /// A message of this id was there already, at that position, and nothing was stored. After a connection broke,
    /// that may have been this very message.
    pub duplicate: bool,
    /// The message's id, if it has one.
    pub id: Option<String>,
}

/// What a refused call is in the words of a refused batch.
fn code_of(kind: Option<Kind>) -> Code {
    match kind {
        Some(Kind::Denied) => Code::Denied,
        Some(Kind::NoSuchStream) => Code::NoSuchStream,
        Some(Kind::LimitReached) => Code::Limit,
        _ => Code::Invalid,
    }
}
