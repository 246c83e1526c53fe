//! Statistics of a shard's traffic, beside the state that it must remember: how long things take, how many there
//! are a second, how long ago a lease was granted and its message published, and how many consumers would be right.
//!
//! Here are the plain structures behind those figures. They read no clock, know no channel and forget
//! everything at a restart. Each has a fixed size or a named limit: a few kilobytes for a group, made when the
//! group first needs them, so that a shard with a hundred thousand idle groups pays for none. That is why they
//! are written by hand. The histograms and registries one can get are made for a handful per process, cost
//! tens of kilobytes each or a lock for each value, and read the clock themselves.

pub mod connections;
pub mod doors;
pub mod grants;
pub mod publications;
pub mod rates;
pub mod scaling;

pub use forebay_core::histogram::{Histogram, Summary};
pub use grants::GrantClock;
pub use publications::Publications;
pub use rates::{Meter, Rates};
pub use scaling::{ScalingAdvice, ScalingInputs, ScalingTarget, advise};
