//! The decisions of Forebay. Facts and the time go in, effects come out.
//!
//! Nothing here waits, reads a clock, rolls dice, or touches a file or a socket, so a test or a simulator
//! can drive it through any history. Begin with [`shard`]; the heart is [`group`].

pub mod codec;
mod dedupe;
pub mod entry;
pub mod fault;
pub mod group;
pub mod seqset;
pub mod settings;
pub mod shard;
pub mod snapshot;
mod stream;
pub mod types;
mod wanted;

pub use stream::Admission;
