//! Lengths of time and moments as people write them.

mod span;
mod time;

pub use span::{BadSpan, Span};
pub use time::{BadTime, Time};
