//! The HTTP API of the built binary, byte by byte.

mod backlog;
pub(crate) mod client;
mod consume;
mod full;
mod h2;
mod limits;
mod live;
mod operate;
mod parked;
pub(crate) mod rig;
mod scarce;
mod sources;
mod streams;
mod wrong;
