//! Promises that can be broken on purpose, so that the simulator can show that it would notice.
//!
//! Without the feature `planted-faults` the question is answered `false` when the program is compiled,
//! and nothing of this is left in the product.

/// A promise, and the way it is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The journal acknowledges a block that it has not synced.
    NoSync,
    /// A producer is answered when its frame is appended rather than when it is durable.
    AnswerBeforeReceipt,
    /// A leased message is offered to a second consumer.
    LeaseTwice,
    /// A grant is given to two leases.
    GrantReused,
    /// The floor moves past a message that is not settled.
    FloorPastUnsettled,
    /// Recovery takes a message that was handed out for one that never was.
    AttemptsForgotten,
    /// A snapshot leaves out what is settled above the floor.
    SettledForgotten,
    /// The log is trimmed to the newer image instead of the older.
    TrimPastOlderImage,
    /// The log is trimmed past a parked message that was not copied.
    ReclaimForgetsWanted,
    /// A copy says that its message was published when it was copied.
    CopyLosesTime,
}

impl Fault {
    pub const ALL: [Fault; 10] = [
        Fault::NoSync,
        Fault::AnswerBeforeReceipt,
        Fault::LeaseTwice,
        Fault::GrantReused,
        Fault::FloorPastUnsettled,
        Fault::AttemptsForgotten,
        Fault::SettledForgotten,
        Fault::TrimPastOlderImage,
        Fault::ReclaimForgetsWanted,
        Fault::CopyLosesTime,
    ];
}

#[cfg(feature = "planted-faults")]
mod switch {
    use super::Fault;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Breaks one promise, or none, for everything that this thread does from now on.
    pub fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }

    pub fn planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }
}

#[cfg(feature = "planted-faults")]
pub use switch::{plant, planted};

#[cfg(not(feature = "planted-faults"))]
pub const fn planted(_: Fault) -> bool {
    false
}
