//! The HTTP API of the built binary, byte by byte.

mod backlog;
mod client;
mod consume;
mod full;
mod limits;
mod live;
mod operate;
mod parked;
mod rig;
mod streams;
mod wrong;
