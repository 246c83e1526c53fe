//! How a job can fail, and what happens to its message.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::error::in_words;

/// What happens to the message of a failed job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// The next attempt may succeed: the message is delivered again by the group's retry policy.
    Transient,
    /// The next attempt may succeed after this long. It counts as an attempt.
    RetryAfter(Duration),
    /// No attempt will succeed: the message is parked.
    Permanent,
    /// The work is no longer needed: the message is settled without being done.
    Skip,
    /// It is too early: the message is delivered again after this long, and the attempt does not count.
    Snooze(Duration),
    /// A service that the job needs is overloaded. The message is delivered again after this long, or after one second;
    /// the attempt does not count. Until then this worker and the whole group pause, for five minutes at most.
    Throttled(Option<Duration>),
}

/// Why a job failed.
///
/// Any error becomes a fault by `?`. The worker's [`classify`](crate::worker::WorkerBuilder::classify) function then
/// decides its class; without one it is transient. A fault that a handler makes itself has its class already.
///
/// ```
/// use forebay_client::{Class, Fault};
///
/// fn parse(text: &str) -> Result<u32, Fault> {
///     let number = text.parse()?;
///     if number > 100 {
///         return Err(Fault::permanent("more than a hundred"));
///     }
///     Ok(number)
/// }
///
/// assert_eq!(parse("7").unwrap(), 7);
/// assert_eq!(parse("x").unwrap_err().class(), None);
/// assert_eq!(parse("101").unwrap_err().class(), Some(Class::Permanent));
/// ```
// It does not implement `Error`, because then not every error could be converted into it.
pub struct Fault {
    class: Option<Class>,
    reason: String,
    error: Option<Box<dyn Error + Send + Sync>>,
}

impl Fault {
    /// A fault with this class and reason.
    pub fn new(class: Class, reason: impl fmt::Display) -> Fault {
        Fault { class: Some(class), reason: reason.to_string(), error: None }
    }

    /// The next attempt may succeed: see [`Class::Transient`].
    pub fn transient(reason: impl fmt::Display) -> Fault {
        Fault::new(Class::Transient, reason)
    }

    /// The next attempt may succeed after this long: see [`Class::RetryAfter`].
    pub fn retry_after(after: Duration, reason: impl fmt::Display) -> Fault {
        Fault::new(Class::RetryAfter(after), reason)
    }

    /// No attempt will succeed: see [`Class::Permanent`].
    pub fn permanent(reason: impl fmt::Display) -> Fault {
        Fault::new(Class::Permanent, reason)
    }

    /// The work is no longer needed: see [`Class::Skip`].
    pub fn skip(reason: impl fmt::Display) -> Fault {
        Fault::new(Class::Skip, reason)
    }

    /// It is too early: see [`Class::Snooze`].
    pub fn snooze(until: Duration) -> Fault {
        Fault::new(Class::Snooze(until), "snoozed")
    }

    /// A service that the job needs is overloaded, for this long if it said so: see [`Class::Throttled`].
    pub fn throttled(after: Option<Duration>, reason: impl fmt::Display) -> Fault {
        Fault::new(Class::Throttled(after), reason)
    }

    /// Converts an error that does not implement `Error` itself, which `?` cannot: an `anyhow` or `eyre` error, or a
    /// boxed one.
    ///
    /// ```
    /// use forebay_client::Fault;
    ///
    /// fn open() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    ///     Err("locked".into())
    /// }
    ///
    /// fn handle() -> Result<(), Fault> {
    ///     open().map_err(Fault::from_boxed)
    /// }
    ///
    /// assert_eq!(handle().unwrap_err().reason(), "locked");
    /// ```
    pub fn from_boxed(error: impl Into<Box<dyn Error + Send + Sync>>) -> Fault {
        let error = error.into();
        Fault { class: None, reason: in_words(&*error), error: Some(error) }
    }

    /// The same fault with another class.
    #[must_use]
    pub fn with_class(mut self, class: Class) -> Fault {
        self.class = Some(class);
        self
    }

    /// A copy without the error, for another job of the same batch.
    pub(crate) fn again(&self) -> Fault {
        Fault { class: self.class, reason: self.reason.clone(), error: None }
    }

    /// The class, if the handler has chosen one. A fault made by `?` has none.
    pub fn class(&self) -> Option<Class> {
        self.class
    }

    /// The error that it was made from, if any.
    pub fn error(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        self.error.as_deref()
    }

    /// The reason as text. It is kept with the message's failures.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for Fault {
    fn from(error: E) -> Fault {
        Fault { class: None, reason: in_words(&error), error: Some(Box::new(error)) }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fault").field("class", &self.class).field("reason", &self.reason).finish()
    }
}
