//! Histories of two nodes on one log: the real engine on JetStream, the real shard task and its callers, on simulated
//! NATS servers and a simulated network.
//!
//! Each node is a process of its own: it can be killed, stopped cleanly, or stand still for longer than its tenure
//! and go on as if nothing had happened; it has a date and a clock of its own, and its connection to the servers
//! can be cut. Clients talk to whichever node claims to serve, perhaps to both. The seed decides which task goes on
//! next, how long each letter takes and which is lost, when servers elect another leader, and what befalls the
//! nodes.
//!
//! | Module | Is |
//! | --- | --- |
//! | `servers` | The NATS servers, and the network between them and the nodes |
//! | `node` | One node: it stands by, claims the log, serves, and stands by again |
//! | `clients` | Producers and consumers, which follow a change of owner |
//! | `model` | The actions and observations of the clients, and the promises that follow |
//! | `world` | One history: nodes, clients, mishaps, and the way to rest |
//!
//! A process that stands still does so between two steps of its tasks, never between the last look at its tenure and
//! the moment at which a message leaves.

mod clients;
mod model;
mod node;
mod servers;
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
    /// Seconds that the history lasted for its nodes and clients.
    pub seconds: u64,
    /// Terms of office in which a node served.
    pub terms: u64,
    pub pauses: u64,
    pub kills: u64,
    pub stops: u64,
    pub cuts: u64,
    pub elections: u64,
    /// Messages that were stored by an owner after the claim of its successor, or twice.
    pub void: u64,
    /// Messages that were stored without a look at the sequence that they expected.
    pub unchecked: u64,
    pub letters_lost: u64,
    pub proposals_dropped: u64,
    pub chunks: u64,
    pub purges: u64,
    pub confirmed: u64,
    /// Batches that were confirmed after they had been sent several times.
    pub sent_again: u64,
    pub deliveries: u64,
    pub redeliveries: u64,
    /// Leases on a connection that ended with their owner, and whose messages the next one handed out.
    pub leases_freed: u64,
    /// Leases on the clock that were settled with another owner than the one that gave them.
    pub leases_outlived: u64,
    /// Acks that were answered before they were durable, and came to nothing with their owner.
    pub acks_undone: u64,
}

impl Outcome {
    pub fn add(&mut self, other: &Outcome) {
        let Outcome { trace: _, steps, seconds, terms, pauses, kills, stops, cuts, elections, .. } = other;
        self.steps += steps;
        self.seconds += seconds;
        self.terms += terms;
        self.pauses += pauses;
        self.kills += kills;
        self.stops += stops;
        self.cuts += cuts;
        self.elections += elections;
        self.void += other.void;
        self.unchecked += other.unchecked;
        self.letters_lost += other.letters_lost;
        self.proposals_dropped += other.proposals_dropped;
        self.chunks += other.chunks;
        self.purges += other.purges;
        self.confirmed += other.confirmed;
        self.sent_again += other.sent_again;
        self.deliveries += other.deliveries;
        self.redeliveries += other.redeliveries;
        self.leases_freed += other.leases_freed;
        self.leases_outlived += other.leases_outlived;
        self.acks_undone += other.acks_undone;
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
