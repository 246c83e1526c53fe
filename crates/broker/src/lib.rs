//! Between the core, which decides, and the engine, which remembers.
//!
//! [`driver`] is synchronous and complete: the simulator runs this very code. What is asynchronous is a
//! thin loop around it.

pub mod batch;
pub mod broker;
pub mod clock;
pub mod driver;
pub mod index;
pub mod recovery;
mod shard_task;
pub mod window;
