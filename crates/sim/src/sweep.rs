//! Sweeps: every crash and every damage that a small history can meet, one after the other.
//!
//! Where the simulator rolls dice, a sweep goes through all of it. [`crash`] stops the journal at each
//! call that it makes to the disk; [`corruption`] spoils the files that it left. Both ask the same
//! question: is everything that was acknowledged still there, or does the journal say that it is not?

pub mod corruption;
pub mod crash;
mod damage;
mod folders;
mod rig;
mod witness;
mod workload;

pub use damage::Kind;
