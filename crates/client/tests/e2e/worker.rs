//! Workers against the real server, whose clock these tests move.

mod failures;
mod flow;
mod idempotency;
mod leases;
mod order;
mod rig;
mod shutdown;
