//! Histories of the real shard task and its real callers, on an executor of one thread.
//!
//! The other histories run the driver alone and carry out its outbox themselves. Here the broker's own loop does that:
//! commands, receipts, timers, members, receives, the waiting answers and the budgets. The seed decides which task goes
//! on next, when the engine answers which call, how much time passes, and when a caller drops a future or is dropped as
//! a whole. Time is that of a paused `tokio` runtime, so a wait of an hour takes nothing.
//!
//! | Module | Is |
//! | --- | --- |
//! | `executor` | The tasks, and the whims by which futures are dropped |
//! | `engine` | An engine that answers when the seed says so |
//! | `clients` | Producers, consumers with and without a connection, onlookers |
//! | `feeds` | Streams that are fed with messages of others, and their operator |
//! | `model` | The actions and observations of the clients, and the promises that follow |
//! | `world` | One history: clients, mishaps, and the way to rest |

mod clients;
mod engine;
pub(crate) mod executor;
mod feeds;
mod model;
#[cfg(test)]
mod tests;
mod world;

use std::cell::Cell;

use forebay_core::fault::Fault;

use crate::history::{Failure, first_that_notices, run_tasks};
use world::World;

/// The figures of a history that kept every promise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The same for the same seed, always.
    pub trace: u64,
    pub steps: u64,
    pub deliveries: u64,
    pub redeliveries: u64,
    pub crashes: u64,
    /// Clean stops and drains, of a server with clients.
    pub stops: u64,
    /// Callers that were dropped as a whole.
    pub abandoned: u64,
    pub reads: u64,
    pub saves: u64,
    pub trims: u64,
    pub held_back: u64,
    /// Looks at a group in which a consumer waited and nothing moved.
    pub looks: u64,
    /// Copies in streams that are fed with messages of others.
    pub copies: u64,
}

impl Outcome {
    pub fn add(&mut self, other: &Outcome) {
        let Outcome { trace: _, steps, deliveries, redeliveries, crashes, stops, .. } = other;
        self.steps += steps;
        self.deliveries += deliveries;
        self.redeliveries += redeliveries;
        self.crashes += crashes;
        self.stops += stops;
        self.abandoned += other.abandoned;
        self.reads += other.reads;
        self.saves += other.saves;
        self.trims += other.trims;
        self.held_back += other.held_back;
        self.looks += other.looks;
        self.copies += other.copies;
    }
}

thread_local! {
    /// Steps of the present history, for the report of a panic.
    static STEP: Cell<u32> = const { Cell::new(0) };
}

/// Runs one history. A panic anywhere in it is a failure of its seed.
pub fn run(seed: u64) -> Result<Outcome, Failure> {
    run_tasks(seed, &STEP, || World::new(seed).live())
}

/// Runs histories with one promise broken until one of them notices, and says which.
pub fn find_fault(fault: Fault, seeds_max: u64) -> Option<Failure> {
    first_that_notices(fault, seeds_max, run)
}
