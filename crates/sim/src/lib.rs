//! The simulator: the real core, driver and journal on a disk that tears writes and loses unsynced data,
//! with simulated clients and a simulated clock, in one thread.
//!
//! Everything here is decided by a seed, so a failure is a number that anyone can run again.

pub mod cluster;
pub mod dice;
pub mod disk;
pub mod history;
mod model;
pub mod replay;
mod server;
pub mod shell;
pub mod situation;
pub mod sweep;
pub mod tale;
mod watch;
mod world;
