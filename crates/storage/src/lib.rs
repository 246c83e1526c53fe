//! Where Forebay remembers: the contract of an engine, the embedded journal, and an engine in memory.
//!
//! Start with [`engine`]: it says what any place that keeps logs has to promise. [`journal`] keeps the
//! promise on a disk; `jetstream`, a feature, on a cluster of NATS servers; [`memory`] is the shortest reading
//! of it; [`conformance`] is the promise as tests.

pub mod conformance;
pub mod engine;
#[cfg(feature = "jetstream")]
pub mod jetstream;
pub mod journal;
pub mod memory;
