//! How a job can fail, and what follows from it.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::error::in_words;

/// What a failure means for the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// It may go better next time: offered again by the group's retry policy.
    Transient,
    /// Likewise, after this long. Costs an attempt.
    RetryAfter(Duration),
    /// It will never go better: parked, for a person to look at.
    Permanent,
    /// Not wanted any more: settled without being done.
    Skip,
    /// Not yet: offered again after this long, and the attempt does not count.
    Snooze(Duration),
    /// Whoever does the work for us is overloaded. Offered again after this long, or after a second; the attempt does
    /// not count, and this worker and the whole group rest meanwhile, for five minutes at most.
    Throttled(Option<Duration>),
}

/// Why a job was not done.
///
/// Any error becomes a fault by `?`, and the worker's `classify` function then says what it means; without one it
/// is transient. A fault that a handler makes itself has said so already.
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
// It is no `Error` itself: otherwise not every error could become one.
pub struct Fault {
    class: Option<Class>,
    reason: String,
    error: Option<Box<dyn Error + Send + Sync>>,
}

impl Fault {
    pub fn new(class: Class, reason: impl fmt::Display) -> Fault {
        Fault { class: Some(class), reason: reason.to_string(), error: None }
    }

    /// It may go better next time.
    pub fn transient(reason: impl fmt::Display) -> Fault {
        Fault::new(Class::Transient, reason)
    }

    /// It may go better after this long.
    pub fn retry_after(after: Duration, reason: impl fmt::Display) -> Fault {
        Fault::new(Class::RetryAfter(after), reason)
    }

    /// It will never go better.
    pub fn permanent(reason: impl fmt::Display) -> Fault {
        Fault::new(Class::Permanent, reason)
    }

    /// It need not be done any more.
    pub fn skip(reason: impl fmt::Display) -> Fault {
        Fault::new(Class::Skip, reason)
    }

    /// It is too early.
    pub fn snooze(until: Duration) -> Fault {
        Fault::new(Class::Snooze(until), "snoozed")
    }

    /// Whoever does the work for us is overloaded, and said for how long if it did.
    pub fn throttled(after: Option<Duration>, reason: impl fmt::Display) -> Fault {
        Fault::new(Class::Throttled(after), reason)
    }

    /// From an error that `?` cannot take, because it is no `Error` itself: one of `anyhow` or `eyre`, or a boxed one.
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

    /// The error behind it, with a class of its own.
    #[must_use]
    pub fn with_class(mut self, class: Class) -> Fault {
        self.class = Some(class);
        self
    }

    /// The same once more, for another job that failed with this one.
    pub(crate) fn again(&self) -> Fault {
        Fault { class: self.class, reason: self.reason.clone(), error: None }
    }

    /// What the handler said it is; nothing if it came by `?` alone.
    pub fn class(&self) -> Option<Class> {
        self.class
    }

    /// The error that it came from.
    pub fn error(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        self.error.as_deref()
    }

    /// Why, in words: what is kept with the message's failures.
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
