//! Messages: a body with a type, an id, a key, headers and times, to publish or as the server stored it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use forebay_wire::v1;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A type of message: a serde struct with a name and a version.
///
/// The name and the version travel with every message, so that a worker can choose the handler, and so that two
/// shapes of the same type can be told apart. Bodies are JSON.
///
/// ```
/// use forebay_client::Payload;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Payload)]
/// #[payload(type = "email.send")]
/// struct SendEmail {
///     to: String,
/// }
///
/// // The second shape of the type, with a media type of its own.
/// #[derive(Serialize, Deserialize, Payload)]
/// #[payload(type = "email.send", schema = 2, content_type = "application/vnd.example.email+json")]
/// struct SendEmailToMany {
///     to: Vec<String>,
/// }
///
/// assert_eq!((SendEmail::TYPE, SendEmail::SCHEMA, SendEmail::CONTENT_TYPE), ("email.send", 1, None));
/// assert_eq!((SendEmailToMany::TYPE, SendEmailToMany::SCHEMA), ("email.send", 2));
/// assert_eq!(SendEmailToMany::CONTENT_TYPE, Some("application/vnd.example.email+json"));
/// ```
///
/// `#[derive(Payload)]` does no more than this, which can be written by hand, for generic types for example:
///
/// ```
/// # use forebay_client::Payload;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize)]
/// # struct SendEmail;
/// impl Payload for SendEmail {
///     const TYPE: &'static str = "email.send";
/// }
/// ```
///
/// A type without a name, an unknown argument, a version below 1 and a content type that is not JSON do not compile:
///
/// ```compile_fail
/// # use forebay_client::Payload;
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize, Payload)]
/// struct Nameless;
/// ```
///
/// ```compile_fail
/// # use forebay_client::Payload;
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize, Payload)]
/// #[payload(type = "a", version = 2)]
/// struct Unknown;
/// ```
///
/// ```compile_fail
/// # use forebay_client::Payload;
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize, Payload)]
/// #[payload(type = "a", schema = 0)]
/// struct Early;
/// ```
///
/// ```compile_fail
/// # use forebay_client::Payload;
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize, Payload)]
/// #[payload(type = "a", content_type = "text/plain")]
/// struct NotJson;
/// ```
pub trait Payload: Serialize + DeserializeOwned + Send + 'static {
    /// The name of the type, the same in every language.
    const TYPE: &'static str;
    /// The version of the type's shape. A message without a version has version 1.
    const SCHEMA: u64 = 1;
    /// The media type of the body, if it is a more special one than `application/json`.
    const CONTENT_TYPE: Option<&'static str> = None;
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
    /// A message with these bytes as its body, and no type. Without a [`content_type`](Message::content_type), other
    /// APIs show a JSON object or array as JSON, other UTF-8 as text, and anything else as bytes.
    pub fn new(body: impl Into<Bytes>) -> Message {
        Message(v1::Message { body: body.into(), ..Default::default() })
    }

    /// A message with this payload as its body, and the payload's type and version.
    pub fn of<T: Payload>(payload: &T) -> Result<Message, serde_json::Error> {
        let body = serde_json::to_vec(payload)?;
        // Of an object or a list everybody sees that it is JSON.
        let is_plain = !matches!(body.first(), Some(b'{' | b'['));
        let message = Message::new(body).kind(T::TYPE).schema(T::SCHEMA);
        Ok(match T::CONTENT_TYPE {
            Some(content_type) => message.content_type(content_type),
            None if is_plain => message.content_type("application/json"),
            None => message,
        })
    }

    /// A message with this text as its body. Other APIs show it as text, whatever it looks like.
    pub fn text(body: impl Into<String>) -> Message {
        Message::new(body.into()).content_type("text/plain")
    }

    /// A message without a body, which is not the same as an empty one.
    pub fn without_body() -> Message {
        Message(v1::Message { no_body: true, ..Default::default() })
    }

    /// Sets the media type of the body, such as `application/json` or `image/png`.
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<String>) -> Message {
        self.0.content_type = content_type.into();
        self
    }

    /// Sets the message id, which makes publishing idempotent: within the stream's dedupe window a second message with
    /// the same id is not stored.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Message {
        self.0.id = id.into();
        self
    }

    /// Sets the key. Groups can process messages with the same key in order, prefer one consumer for a key, or take
    /// turns between keys.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Message {
        self.0.key = key.into();
        self.0.key_bytes = Bytes::new();
        self
    }

    /// Sets a key of any bytes. Bytes that are UTF-8 are the same key as that text.
    #[must_use]
    pub fn key_bytes(mut self, key: impl Into<Bytes>) -> Message {
        self.0.key = String::new();
        self.0.key_bytes = key.into();
        self
    }

    /// Sets the name of the message's type. [`Message::of`] sets it from the payload.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Message {
        self.0.r#type = kind.into();
        self
    }

    /// Sets the version of the message's type. [`Message::of`] sets it from the payload.
    #[must_use]
    pub fn schema(mut self, version: u64) -> Message {
        self.0.schema = Some(version);
        self
    }

    /// Adds a header. A message can have several headers with the same name.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Message {
        self.0.headers.push(v1::Header { name: name.into(), value: value.into(), ..Default::default() });
        self
    }

    /// Adds a header whose value is any bytes.
    #[must_use]
    pub fn header_bytes(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Message {
        self.0.headers.push(v1::Header {
            name: name.into(),
            value_bytes: value.into(),
            ..Default::default()
        });
        self
    }

    /// Sets the priority, from 0 (the default) to 9. Higher priorities are delivered first.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Message {
        self.0.priority = priority.into();
        self
    }

    /// Delivers the message no earlier than this long after it was published. Replaces
    /// [`deliver_at`](Message::deliver_at).
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Message {
        self.0.delay_ms = millis(delay);
        self.0.deliver_at_us = 0;
        self
    }

    /// Delivers the message no earlier than at this time. Replaces [`delay`](Message::delay).
    #[must_use]
    pub fn deliver_at(mut self, at: SystemTime) -> Message {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0.deliver_at_us = u64::try_from(since.as_micros()).unwrap_or(u64::MAX).max(1);
        self.0.delay_ms = 0;
        self
    }

    /// Lets the message expire this long after it was published, at least 1 ms. An expired message is not delivered.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Message {
        // Zero would mean that it never expires.
        self.0.ttl_ms = millis(ttl).max(1);
        self
    }

    /// Replaces the body.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Bytes>) -> Message {
        self.0.body = body.into();
        self.0.no_body = false;
        self
    }

    /// The body.
    pub fn body(&self) -> &Bytes {
        &self.0.body
    }
}

/// Rounds up, so that a short time does not become zero.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Anything that can be published: a reference to a typed payload, or a [`Message`].
pub trait IntoMessage {
    /// The message to publish. Fails if the payload cannot be serialized.
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

/// A message as the server stored it. A [`Delivery`](crate::Delivery) and a [`JobInfo`](crate::JobInfo)
/// dereference to it.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredMessage {
    seq: u64,
    message: v1::Message,
}

impl StoredMessage {
    pub(crate) fn new(seq: u64, message: v1::Message) -> StoredMessage {
        StoredMessage { seq, message }
    }

    /// The message's position in its stream. The first message of a stream has position 1.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The message's position in the server's log, over all its streams, of a message that was read from a stream.
    /// Deliveries do not carry it.
    pub fn log_position(&self) -> Option<u64> {
        Some(self.message.log_position).filter(|position| *position > 0)
    }

    /// The stream that the message was published to and its position there, if it was copied from there because of the
    /// setting `source` of the stream that it is in.
    pub fn source(&self) -> Option<(&str, u64)> {
        given(&self.message.source_stream).map(|stream| (stream, self.message.source_seq))
    }

    /// The body, as it was published. Empty if the message has none.
    pub fn body(&self) -> &Bytes {
        &self.message.body
    }

    /// Whether the message has a body, even an empty one.
    pub fn has_body(&self) -> bool {
        !self.message.no_body
    }

    /// The media type of the body, if the producer gave one.
    pub fn content_type(&self) -> Option<&str> {
        given(&self.message.content_type)
    }

    /// The body as a payload.
    pub fn payload<T: Payload>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.message.body)
    }

    /// The message id, if it has one.
    pub fn id(&self) -> Option<&str> {
        given(&self.message.id)
    }

    /// The key, if it has one that is text.
    pub fn key(&self) -> Option<&str> {
        given(&self.message.key)
    }

    /// The key, if it has one, as bytes.
    pub fn key_bytes(&self) -> Option<&[u8]> {
        let of = &self.message;
        let key = if of.key_bytes.is_empty() { of.key.as_bytes() } else { &of.key_bytes };
        (!key.is_empty()).then_some(key)
    }

    /// The name of the message's type, if it has one.
    pub fn kind(&self) -> Option<&str> {
        given(&self.message.r#type)
    }

    /// The version of the message's type, if it has one.
    pub fn schema(&self) -> Option<u64> {
        self.message.schema
    }

    /// The priority, from 0 to 9.
    pub fn priority(&self) -> u8 {
        u8::try_from(self.message.priority).unwrap_or(u8::MAX)
    }

    /// The value of the first header with this name that is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers().find(|(of, _)| *of == name).map(|(_, value)| value)
    }

    /// All headers whose values are text, as names and values.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        let text = self.message.headers.iter().filter(|header| header.value_bytes.is_empty());
        text.map(|header| (&*header.name, &*header.value))
    }

    /// All headers, as names and values.
    pub fn headers_bytes(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.message.headers.iter().map(|header| {
            let is_text = header.value_bytes.is_empty();
            (&*header.name, if is_text { header.value.as_bytes() } else { &header.value_bytes })
        })
    }

    /// When the message was published, by the server's clock.
    pub fn published_at(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.message.published_at_us)
    }

    /// A message to publish with the same content, to be delivered at once.
    pub fn to_message(&self) -> Message {
        let message = self.message.clone();
        Message(v1::Message { published_at_us: 0, expires_at_us: 0, log_position: 0, ..message })
    }
}

impl From<v1::StoredMessage> for StoredMessage {
    fn from(of: v1::StoredMessage) -> StoredMessage {
        StoredMessage::new(of.seq, of.message.unwrap_or_default())
    }
}

fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}
