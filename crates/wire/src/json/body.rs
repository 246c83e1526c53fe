//! The body of a message in JSON, in one of four fields: `body` for JSON, `body_text` for text, `body_base64` for
//! bytes, and `no_body` for a message without a body. The field follows from the content type; from the bytes only if
//! the producer did not give one. The server, and the commands that print and read messages, use these rules.

use std::borrow::Cow;
use std::fmt;

use base64::alphabet::STANDARD;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::{DecodeError, Engine as _};
use serde_json::value::RawValue;

/// With padding or without: either is unmistakable.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The content types that follow from the field.
const JSON: &str = "application/json";
const TEXT: &str = "text/plain";
const BYTES: &str = "application/octet-stream";

const CONTENT_TYPE_BYTES_MAX: usize = 255;

/// Types that are text and do not begin with `text/`.
const TEXT_TYPES: [&str; 4] =
    ["application/xml", "application/yaml", "application/x-ndjson", "application/x-www-form-urlencoded"];

/// The fields of a body.
#[derive(Debug, Clone, Default)]
pub struct Body {
    pub body: Option<Box<RawValue>>,
    pub body_text: Option<String>,
    pub body_base64: Option<String>,
    pub no_body: bool,
    /// Only if it does not follow from the field.
    pub content_type: Option<String>,
}

/// The same fields, as they were given.
#[derive(Debug, Clone, Copy, Default)]
pub struct Given<'a> {
    pub body: Option<&'a RawValue>,
    pub body_text: Option<&'a str>,
    pub body_base64: Option<&'a str>,
    pub no_body: bool,
    pub content_type: Option<&'a str>,
}

/// The bytes of a body and its content type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content<'a> {
    /// `None`: there is no body.
    pub bytes: Option<Cow<'a, [u8]>>,
    /// Empty if the producer did not say.
    pub content_type: &'a str,
}

/// A field of a message, and the rule that it breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadField {
    pub field: &'static str,
    pub rule: String,
}

impl BadField {
    fn new(field: &'static str, rule: impl fmt::Display) -> BadField {
        BadField { field, rule: rule.to_string() }
    }
}

impl fmt::Display for BadField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.rule)
    }
}

impl std::error::Error for BadField {}

impl Body {
    /// The fields for these bytes, `None` if there is no body. The content type is empty if the producer did not say:
    /// then a JSON object or array is `body`, other UTF-8 is `body_text`, and anything else `body_base64`.
    pub fn of(bytes: Option<&[u8]>, content_type: &str) -> Body {
        let said = |follows: &str| {
            (!content_type.is_empty() && content_type != follows).then(|| content_type.to_owned())
        };
        let Some(bytes) = bytes else {
            return Body { no_body: true, content_type: said(""), ..Body::default() };
        };
        if may_be_json(bytes, content_type)
            && let Ok(body) = serde_json::from_slice::<Box<RawValue>>(bytes)
        {
            return Body { body: Some(body), content_type: said(JSON), ..Body::default() };
        }
        let may_be_text = content_type.is_empty() || is_text(content_type);
        if may_be_text && let Ok(text) = std::str::from_utf8(bytes) {
            return Body { body_text: Some(text.to_owned()), content_type: said(TEXT), ..Body::default() };
        }
        Body { body_base64: Some(BASE64.encode(bytes)), content_type: said(BYTES), ..Body::default() }
    }
}

impl<'a> Given<'a> {
    /// The bytes that the fields stand for. `None` if none of them is given.
    pub fn read(self) -> Result<Option<Content<'a>>, BadField> {
        let given = [
            ("body", self.body.is_some()),
            ("body_text", self.body_text.is_some()),
            ("body_base64", self.body_base64.is_some()),
            ("no_body", self.no_body),
        ];
        let mut given = given.iter().filter(|(_, is_given)| *is_given).map(|(field, _)| *field);
        let Some(field) = given.next() else {
            return match self.content_type {
                Some(_) => Err(BadField::new("content_type", "must not be given without a body")),
                None => Ok(None),
            };
        };
        if let Some(second) = given.next() {
            return Err(BadField::new(second, format_args!("must not be given together with `{field}`")));
        }
        let content_type = self.content_type.filter(|name| !name.is_empty());
        check_content_type(content_type.unwrap_or_default())?;
        let (bytes, follows): (Cow<'a, [u8]>, _) = if let Some(body) = self.body {
            if !content_type.is_none_or(is_json) {
                return Err(BadField::new("content_type", "must be a type of JSON, because `body` is JSON"));
            }
            (body.get().as_bytes().into(), JSON)
        } else if let Some(text) = self.body_text {
            if !content_type.is_none_or(is_text) {
                let rule = "must be a type of text, such as text/plain, because `body_text` is text";
                return Err(BadField::new("content_type", rule));
            }
            (text.as_bytes().into(), TEXT)
        } else if let Some(text) = self.body_base64 {
            (from_base64("body_base64", text)?.into(), BYTES)
        } else {
            return Ok(Some(Content { bytes: None, content_type: content_type.unwrap_or_default() }));
        };
        Ok(Some(Content { bytes: Some(bytes), content_type: content_type.unwrap_or(follows) }))
    }
}

fn may_be_json(bytes: &[u8], content_type: &str) -> bool {
    match content_type {
        "" => bytes.trim_ascii_start().first().is_some_and(|first| matches!(first, b'{' | b'[')),
        _ => is_json(content_type),
    }
}

/// Whether a body is JSON: because its type says so or, if the producer did not give one, because it is a JSON object
/// or array.
pub fn is_json_body(bytes: &[u8], content_type: &str) -> bool {
    may_be_json(bytes, content_type)
        && (!content_type.is_empty() || serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok())
}

/// Whether a body of this type is JSON: `application/json`, or a type that ends in `+json`.
pub fn is_json(content_type: &str) -> bool {
    let essence = essence(content_type);
    essence == JSON || essence.ends_with("+json")
}

/// Whether a body of this type is text: a type that begins with `text/`, and some others such as `application/xml`.
pub fn is_text(content_type: &str) -> bool {
    let essence = essence(content_type);
    essence.starts_with("text/") || essence.ends_with("+xml") || TEXT_TYPES.contains(&&essence[..])
}

/// In small letters and without parameters such as `charset`.
fn essence(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// A content type is empty, or a media type.
pub fn check_content_type(text: &str) -> Result<(), BadField> {
    let is_printable = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let has_parts = text.split_once('/').is_some_and(|(kind, rest)| !kind.is_empty() && !rest.is_empty());
    if text.is_empty() || (is_printable && has_parts && text.len() <= CONTENT_TYPE_BYTES_MAX) {
        return Ok(());
    }
    let rule = format!(
        "must be a media type such as text/plain, in ASCII, of at most {CONTENT_TYPE_BYTES_MAX} bytes. \
         value=`{}`",
        text.escape_default().take(80).collect::<String>()
    );
    Err(BadField::new("content_type", rule))
}

/// The bytes of a field in base64, with padding or without.
pub fn from_base64(field: &'static str, text: &str) -> Result<Vec<u8>, BadField> {
    BASE64.decode(text).map_err(|error| {
        let rule = match error {
            DecodeError::InvalidByte(at, _) => format!("must be base64. offset=`{at}`"),
            _ => format!("must be base64 to its end. characters=`{}`", text.len()),
        };
        BadField::new(field, rule)
    })
}

pub fn to_base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// Bytes that are text if they can be, and base64 otherwise: a key, or the value of a header.
pub fn text_or_base64(bytes: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(to_base64(bytes))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(bytes: Option<&[u8]>, content_type: &str) -> String {
        let Body { body, body_text, body_base64, no_body, content_type } = Body::of(bytes, content_type);
        let field = match (body, body_text, body_base64, no_body) {
            (Some(body), None, None, false) => format!("body {}", body.get()),
            (None, Some(text), None, false) => format!("text {text}"),
            (None, None, Some(text), false) => format!("base64 {text}"),
            (None, None, None, true) => "none".to_owned(),
            more => panic!("a body has one field: {more:?}"),
        };
        content_type.map_or(field.clone(), |name| format!("{field}, {name}"))
    }

    #[test]
    fn the_field_follows_from_the_content_type() {
        for (bytes, content_type, field) in [
            (&b"{ }"[..], "application/json", "body { }"),
            (b"\"x\"", "application/json", "body \"x\""),
            (b"42", "Application/CloudEvents+JSON", "body 42, Application/CloudEvents+JSON"),
            (b"{", "application/json", "base64 ew==, application/json"),
            (b"{}", "text/plain", "text {}"),
            (b"a,b", "text/csv; header=absent", "text a,b, text/csv; header=absent"),
            (b"<a/>", "image/svg+xml", "text <a/>, image/svg+xml"),
            (b"\xff", "text/plain", "base64 /w==, text/plain"),
            (b"hello", "application/octet-stream", "base64 aGVsbG8="),
            (b"hello", "image/png", "base64 aGVsbG8=, image/png"),
        ] {
            assert_eq!(shown(Some(bytes), content_type), field);
        }
        assert_eq!(shown(None, ""), "none");
        assert_eq!(shown(None, "text/plain"), "none, text/plain");
    }

    #[test]
    fn without_a_content_type_objects_and_lists_are_json_and_other_text_is_text() {
        for (bytes, field) in [
            (&b"{\"a\":1}"[..], "body {\"a\":1}"),
            (b" [1, 2]", "body [1, 2]"),
            (b"hello", "text hello"),
            (b"42", "text 42"),
            (b"null", "text null"),
            (b"\"hello\"", "text \"hello\""),
            (b"{oops", "text {oops"),
            (b"", "text "),
            (b"\"\xff\"", "base64 Iv8i"),
        ] {
            assert_eq!(shown(Some(bytes), ""), field);
            assert_eq!(is_json_body(bytes, ""), field.starts_with("body "), "{field}");
        }
        assert!(is_json_body(b"42", JSON) && !is_json_body(b"{}", TEXT));
    }

    #[test]
    fn fields_are_read_as_they_are_shown() {
        for (bytes, content_type) in [
            (Some(&b"{ }"[..]), "application/json"),
            (Some(b"hello"), "text/plain"),
            (Some(b"a,b"), "text/csv"),
            (Some(b"hello"), "application/octet-stream"),
            (Some(b"\xff"), "text/plain"),
            (None, "image/png"),
            (None, ""),
        ] {
            let shown = Body::of(bytes, content_type);
            let given = Given {
                body: shown.body.as_deref(),
                body_text: shown.body_text.as_deref(),
                body_base64: shown.body_base64.as_deref(),
                no_body: shown.no_body,
                content_type: shown.content_type.as_deref(),
            };
            let read = given.read().expect("it is sound").expect("it is given");
            assert_eq!((read.bytes.as_deref(), read.content_type), (bytes, content_type));
        }
    }

    #[test]
    fn fields_that_contradict_each_other_are_refused_by_name() {
        let json = RawValue::from_string("1".to_owned()).expect("JSON");
        let (json, text) = (Some(&*json), Some("x"));
        let long = "text/x".repeat(99);
        let none = Given::default;
        for (body, field) in [
            (Given { body: json, body_base64: text, ..none() }, "body_base64"),
            (Given { body: json, body_text: text, ..none() }, "body_text"),
            (Given { body_text: text, no_body: true, ..none() }, "no_body"),
            (Given { body_base64: text, ..none() }, "body_base64"),
            (Given { content_type: Some("text/plain"), ..none() }, "content_type"),
            (Given { body: json, content_type: Some("text/plain"), ..none() }, "content_type"),
            (Given { body_text: text, content_type: Some("image/png"), ..none() }, "content_type"),
            (Given { body_text: text, content_type: Some("text/ü"), ..none() }, "content_type"),
            (Given { body_text: text, content_type: Some(&long), ..none() }, "content_type"),
            (Given { no_body: true, content_type: Some("text"), ..none() }, "content_type"),
        ] {
            assert_eq!(body.read().expect_err(field).field, field, "{body:?}");
        }
        assert_eq!(none().read(), Ok(None));
    }
}
