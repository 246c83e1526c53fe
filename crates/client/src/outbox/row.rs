//! A message as a row.

use forebay_wire::json::body::{from_base64, to_base64};
use forebay_wire::v1;
use serde::{Deserialize, Serialize};

use super::OutboxError;
use crate::message::Message;

/// The highest priority there is.
const PRIORITY_MAX: u32 = forebay_model::limits::PRIORITY_MAX as u32;
/// Bytes of bodies that are read at once, unless one row has more.
pub(super) const BYTES_AT_ONCE: i64 = 2 << 20;

/// The type of a row that is read: the columns in the order of [`COLUMNS`], then the row's age.
pub(super) type Columns =
    (i64, String, String, String, String, Option<i64>, String, i32, i64, i64, i64, Vec<u8>, i64);

/// The columns that a message has, after its position.
pub(super) const COLUMNS: &str =
    "id, stream, key, type, schema, headers, priority, delay_ms, deliver_at_us, ttl_ms, body";

/// A row that is to be published.
pub(super) struct Row {
    pub(super) position: i64,
    pub(super) stream: String,
    pub(super) message: v1::Message,
}

impl Row {
    pub(super) fn read(columns: Columns) -> Result<Row, sqlx::Error> {
        let (position, id, stream, key, kind, schema, headers, priority, delay, at, ttl, body, age) = columns;
        let wrong = |error: Box<dyn std::error::Error + Send + Sync>| sqlx::Error::Decode(error);
        let about: About = serde_json::from_str(&headers).map_err(|error| wrong(error.into()))?;
        let about = about.into_full();
        let mut headers = Vec::with_capacity(about.headers.len() + about.headers_base64.len());
        for (name, value) in about.headers {
            headers.push(v1::Header { name, value, ..Default::default() });
        }
        for (name, value) in about.headers_base64 {
            let value = from_base64("headers_base64", &value).map_err(|error| wrong(error.into()))?;
            headers.push(v1::Header { name, value_bytes: value.into(), ..Default::default() });
        }
        let key_bytes = from_base64("key_base64", &about.key_base64).map_err(|error| wrong(error.into()))?;
        let age = age.max(0).unsigned_abs();
        let message = v1::Message {
            body: body.into(),
            id,
            key,
            r#type: kind,
            schema: schema.map(i64::cast_unsigned),
            headers,
            priority: priority.unsigned_abs(),
            // Both began with the insert. A message that has expired on the way is sent all the same, and
            // expires in the server.
            delay_ms: delay.unsigned_abs().saturating_sub(age),
            ttl_ms: if ttl == 0 { 0 } else { ttl.unsigned_abs().saturating_sub(age).max(1) },
            deliver_at_us: at.unsigned_abs(),
            content_type: about.content_type,
            no_body: about.no_body,
            key_bytes: key_bytes.into(),
            // The rest is said by the server.
            ..v1::Message::default()
        };
        Ok(Row { position, stream, message })
    }
}

/// The column `headers`, in JSON: pairs of names and values. A message that says more of itself, or whose headers or
/// key are not text, has an object instead.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum About {
    Headers(Vec<(String, String)>),
    Full(FullAbout),
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct FullAbout {
    headers: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    headers_base64: Vec<(String, String)>,
    #[serde(skip_serializing_if = "String::is_empty")]
    key_base64: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    content_type: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    no_body: bool,
}

impl About {
    fn of(message: &v1::Message) -> About {
        let is_text = |header: &&v1::Header| header.value_bytes.is_empty();
        let (text, binary): (Vec<_>, Vec<_>) = message.headers.iter().partition(is_text);
        let headers = text.into_iter().map(|header| (header.name.clone(), header.value.clone())).collect();
        let is_plain = message.content_type.is_empty() && message.key_bytes.is_empty() && !message.no_body;
        if is_plain && binary.is_empty() {
            return About::Headers(headers);
        }
        let base64 = |header: &v1::Header| (header.name.clone(), to_base64(&header.value_bytes));
        About::Full(FullAbout {
            headers,
            headers_base64: binary.into_iter().map(base64).collect(),
            key_base64: to_base64(&message.key_bytes),
            content_type: message.content_type.clone(),
            no_body: message.no_body,
        })
    }

    fn into_full(self) -> FullAbout {
        match self {
            About::Headers(headers) => FullAbout { headers, ..FullAbout::default() },
            About::Full(full) => full,
        }
    }
}

/// A message that is to be inserted: checked, and with an id.
pub(super) struct NewRow {
    pub(super) message: v1::Message,
    pub(super) headers: String,
}

impl NewRow {
    pub(super) fn of(stream: &str, message: Message) -> Result<NewRow, OutboxError> {
        let mut message = message.0;
        let invalid = |what: String| Err(OutboxError::Invalid { what });
        if stream.is_empty() {
            return invalid("a stream has a name".to_owned());
        }
        if message.priority > PRIORITY_MAX {
            return invalid(format!("priority: 0 to {PRIORITY_MAX}. priority=`{}`", message.priority));
        }
        if [stream, &message.id, &message.key, &message.r#type].iter().any(|text| text.contains('\0')) {
            return invalid("a text has a zero in it, which databases do not keep".to_owned());
        }
        if message.id.is_empty() {
            message.id = new_id()?;
        }
        let headers = serde_json::to_string(&About::of(&message))?;
        Ok(NewRow { message, headers })
    }

    pub(super) fn priority(&self) -> i32 {
        i32::try_from(self.message.priority).expect("it was checked")
    }

    pub(super) fn schema(&self) -> Option<i64> {
        self.message.schema.map(u64::cast_signed)
    }
}

/// Times as the tables have them.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(feature = "sqlite")]
pub(super) fn signed_millis(duration: std::time::Duration) -> i64 {
    signed(crate::message::millis(duration))
}

pub(super) fn new_id() -> Result<String, OutboxError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| OutboxError::Failed(sqlx::Error::Io(std::io::Error::other(error.to_string()))))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}
