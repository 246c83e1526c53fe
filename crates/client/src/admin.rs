//! Administration: creating and changing streams and groups, looking at them, and dealing with parked messages.
//!
//! The calls are methods of [`Client`](crate::Client). A call that fails has a [`CallError`](crate::CallError), which
//! says what can be done about it. Lists come item by item ([`Items`]), or page by page.

mod convert;
pub mod groups;
mod items;
pub mod log;
pub mod parked;
#[allow(missing_docs)] // The settings are documented at their declarations.
pub mod settings;
pub mod streams;

pub use items::Items;

/// A part of a list.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Page<T, C> {
    /// The items of this page.
    pub items: Vec<T>,
    /// Where the next page begins. `None` if this is the last one.
    pub next: Option<C>,
}

/// Whether a call created a stream or group, or found one with the same settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It was created.
    New,
    /// It existed already, with the same settings.
    AlreadyThere,
}

impl Created {
    fn from_wire(created: bool) -> Created {
        if created { Created::New } else { Created::AlreadyThere }
    }
}
