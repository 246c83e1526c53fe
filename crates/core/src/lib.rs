//! The decisions of Forebay. Facts and the time go in, effects come out.
//!
//! Nothing here waits, reads a clock, rolls dice, or touches a file or a socket, so a test or a simulator
//! can drive it through any history. Begin with [`shard`]; the heart is [`group`].

pub mod codec;
mod dedupe;
mod due;
pub mod entry;
pub mod fault;
pub mod group;
pub mod histogram;
mod lanes;
pub mod notes;
pub mod pace;
pub mod producers;
mod queue;
pub mod salvage;
pub mod seqset;
pub mod settings;
pub mod shard;
pub mod snapshot;
mod stream;
mod texts;
mod timeline;
pub mod types;
mod wanted;

pub use stream::Admission;
