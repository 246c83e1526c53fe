//! Doors: the protocols through which clients enter. A door speaks its protocol and decides nothing; it
//! turns text into the words of the broker once, where it enters, and answers back into text.
//!
//! Doors do not know each other, and do not know the engine. Each is a feature of this crate, and all are on unless a
//! program says otherwise.

#[cfg(any(feature = "kurrent", feature = "native", feature = "sqs"))]
#[cfg_attr(
    not(all(feature = "kurrent", feature = "native", feature = "sqs")),
    allow(dead_code, reason = "each door uses a part of it")
)]
mod http;
#[cfg(any(feature = "kurrent", feature = "native", feature = "sqs"))]
#[cfg_attr(
    not(all(feature = "dashboard", feature = "kurrent", feature = "native", feature = "sqs")),
    allow(dead_code, reason = "each door uses a part of it")
)]
pub mod kit;
#[cfg(feature = "kurrent")]
pub mod kurrent;
#[cfg(feature = "native")]
pub mod native;
#[cfg(feature = "sqs")]
pub mod sqs;
#[cfg(any(feature = "kurrent", feature = "native", feature = "sqs"))]
#[cfg_attr(
    not(all(feature = "kurrent", feature = "native", feature = "sqs")),
    allow(dead_code, reason = "each door uses a part of it")
)]
mod telemetry;

#[cfg(all(test, feature = "kurrent", feature = "native", feature = "sqs"))]
mod tests;
