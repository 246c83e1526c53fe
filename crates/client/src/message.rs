//! What is published: a body and its terms, typed or not.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use forebay_wire::v1;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A type of message: a serde struct with a name and a version.
///
/// The name and the version travel with every message, so that a worker finds the handler for it, and so that
/// a struct that changes its shape can be told from what it was. Bodies are JSON.
///
/// ```
/// use forebay_client::Payload;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendEmail {
///     to: String,
/// }
///
/// impl Payload for SendEmail {
///     const TYPE: &'static str = "email.send";
/// }
/// ```
pub trait Payload: Serialize + DeserializeOwned + Send + 'static {
    /// What messages of this type are called, in every language.
    const TYPE: &'static str;
    /// Version of the type's shape. A message that says none is of version 1.
    const SCHEMA: u64 = 1;
}

/// A message to publish.
///
/// ```
/// use std::time::Duration;
/// use forebay_client::Message;
///
/// let message = Message::new("hello").id("greeting-1").key("user-4").delay(Duration::from_secs(5));
/// assert_eq!(message.body(), "hello");
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message(pub(crate) v1::Message);

impl Message {
    /// A message with these bytes as its body, and no type.
    pub fn new(body: impl Into<Bytes>) -> Message {
        Message(v1::Message { body: body.into(), ..Default::default() })
    }

    /// A message of a type of its own.
    pub fn of<T: Payload>(payload: &T) -> Result<Message, serde_json::Error> {
        let mut message = Message::new(serde_json::to_vec(payload)?).kind(T::TYPE);
        message.0.schema = Some(T::SCHEMA);
        Ok(message)
    }

    /// The idempotency key: within the stream's dedupe window, a second message of this id is not stored.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Message {
        self.0.id = id.into();
        self
    }

    /// Messages of one key belong together, where a group orders or spreads by key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Message {
        self.0.key = key.into();
        self
    }

    /// What the message is called, if [`Message::of`] has not said it.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Message {
        self.0.r#type = kind.into();
        self
    }

    /// Adds a header. One name may come several times.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Message {
        self.0.headers.push(v1::Header { name: name.into(), value: value.into() });
        self
    }

    /// 0 to 9; higher goes first.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Message {
        self.0.priority = priority.into();
        self
    }

    /// Not offered before this long has passed.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Message {
        self.0.delay_ms = millis(delay);
        self.0.deliver_at_us = 0;
        self
    }

    /// Not offered before this time.
    #[must_use]
    pub fn deliver_at(mut self, at: SystemTime) -> Message {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0.deliver_at_us = u64::try_from(since.as_micros()).unwrap_or(u64::MAX).max(1);
        self.0.delay_ms = 0;
        self
    }

    /// Not offered any more after this long.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Message {
        self.0.ttl_ms = millis(ttl);
        self
    }

    pub fn body(&self) -> &Bytes {
        &self.0.body
    }
}

/// Rounds up, so that something short does not become nothing.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// What can be published: a typed payload, or a [`Message`].
pub trait IntoMessage {
    fn into_message(self) -> Result<Message, serde_json::Error>;
}

impl<T: Payload> IntoMessage for &T {
    fn into_message(self) -> Result<Message, serde_json::Error> {
        Message::of(self)
    }
}

impl IntoMessage for &Message {
    fn into_message(self) -> Result<Message, serde_json::Error> {
        Ok(self.clone())
    }
}

impl IntoMessage for Message {
    fn into_message(self) -> Result<Message, serde_json::Error> {
        Ok(self)
    }
}
