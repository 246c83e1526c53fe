//! What programs and their operators ask of a server beside messages: streams, groups, parked messages.
//!
//! Every call has one answer, and fails with a [`CallError`] that says what can be done about it. Lists come in
//! pages. What has no method here is reached through [`Client::raw`].
//!
//! [`CallError`]: crate::CallError
//! [`Client::raw`]: crate::Client::raw

mod convert;
pub mod groups;
pub mod parked;
pub mod settings;
pub mod streams;

/// A part of a list.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Page<T, C> {
    pub items: Vec<T>,
    /// Where the next page begins. None if there is none.
    pub next: Option<C>,
}

/// Whether something was made, or was there already as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    New,
    AlreadyThere,
}

impl Created {
    fn of(created: bool) -> Created {
        if created { Created::New } else { Created::AlreadyThere }
    }
}
