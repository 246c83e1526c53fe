//! Doors: the protocols through which clients enter. A door speaks its protocol and decides nothing; it
//! turns text into the words of the broker once, where it enters, and answers back into text.
//!
//! Doors do not know each other, and do not know the engine.

mod http;
pub mod native;
pub mod sqs;
mod telemetry;
