//! Between the core, which decides, and the engine, which remembers.
//!
//! [`driver`] is synchronous and complete: the simulator runs this very code. The asynchronous part is a
//! thin loop around it.

pub mod access;
pub mod api;
pub mod audit;
pub mod batch;
pub mod broker;
pub mod caller;
pub mod clock;
pub mod credentials;
mod door;
pub mod driver;
pub mod error;
pub mod index;
pub mod memory;
pub mod reader;
mod receipt;
pub mod recovery;
pub mod report;
pub mod salvage;
mod shard_handle;
mod shard_task;
pub mod stats;
pub mod tenants;
pub mod trace;
pub mod window;
