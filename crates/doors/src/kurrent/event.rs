//! Between the events of Kurrent and the messages of the broker.
//!
//! | Event | Message |
//! | --- | --- |
//! | id | the id, as text; not used to find duplicates |
//! | `type` | the type |
//! | `content-type` | JSON or bytes |
//! | custom metadata | the door's own part, as it came |
//! | `$correlationId` in the custom metadata | the key |
//! | data | the body |
//!
//! A message of another door is an event too. It has an id that follows from its place unless its own is a UUID, the
//! type `message` unless it has one, and its headers as custom metadata. It is JSON where HTTP shows it as JSON, by its
//! content type or, without one, because it is a JSON object or array.

use bytes::Bytes;
use forebay_broker::api::{BatchBuilder, ContentType, Dedupe, Door, Found, Message, Own, parse_content};
use forebay_core::types::{Ordinal, Seq, StreamName, Timestamp};
use forebay_wire::json::body::is_json_body;
use forebay_wire::kurrent::client::{MetadataEntry, RecordedEvent, StreamIdentifier};
use forebay_wire::kurrent::streams::ProposedMessage;
use tonic::Status;

use super::ids::{EventId, Form};
use super::{places, status};

/// The type of a message that has none.
pub(super) const DEFAULT_TYPE: &str = "message";
/// The type of an event that leads to another one.
pub(super) const LINK_TYPE: &str = "$>";
const JSON: &str = "application/json";
const BINARY: &str = "application/octet-stream";
/// A member of custom metadata.
const CORRELATION: &str = "$correlationId";
/// Beside the data and metadata of an event: id, lengths, flags.
pub(super) const ENVELOPE_BYTES: usize = 64;

/// An event that a client wants to append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Proposed {
    pub(super) id: EventId,
    pub(super) kind: String,
    pub(super) is_json: bool,
    pub(super) metadata: Bytes,
    pub(super) data: Bytes,
}

impl Proposed {
    /// Takes an event from its request.
    pub(super) fn read(message: ProposedMessage) -> Result<Proposed, Status> {
        let ProposedMessage { id, metadata, custom_metadata, data } = message;
        let Some(id) = EventId::read(id.as_ref()) else {
            return Err(status::invalid("an event must have an id that is a UUID"));
        };
        let word = |name| MetadataEntry::find(&metadata, name).ok_or_else(|| status::missing_metadata(name));
        let (kind, is_json) = (word("type")?.to_owned(), word("content-type")? == JSON);
        Ok(Proposed { id, kind, is_json, metadata: custom_metadata, data })
    }

    /// The bytes that count against the limit of an event.
    pub(super) fn bytes(&self) -> usize {
        self.kind.len() + self.metadata.len() + self.data.len() + ENVELOPE_BYTES
    }

    pub(super) fn push(&self, builder: &mut BatchBuilder) {
        let id = self.id.to_string();
        let key = correlation(&self.metadata);
        builder.push(&Message {
            id: Some(&id),
            dedupe: Dedupe::No,
            key: key.as_deref().map(str::as_bytes),
            kind: Some(&self.kind),
            body: &self.data,
            content_type: if self.is_json { ContentType::Json } else { ContentType::Bytes },
            own: (!self.metadata.is_empty()).then(|| Own::new(Door::KURRENT, &self.metadata)),
            ..Message::default()
        });
    }
}

/// The correlation id in the metadata of an event. Groups that pin by correlation go by it.
fn correlation(metadata: &[u8]) -> Option<String> {
    // Nearly no event has one, and a search is cheaper than reading the JSON.
    let is_there = metadata.windows(CORRELATION.len()).any(|window| window == CORRELATION.as_bytes());
    let object: serde_json::Map<String, serde_json::Value> =
        is_there.then(|| serde_json::from_slice(metadata).ok()).flatten()?;
    object.get(CORRELATION)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// A stored message, and where it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stored<'a> {
    pub(super) stream: &'a StreamName,
    pub(super) seq: Seq,
    pub(super) ordinal: Ordinal,
    pub(super) published: Timestamp,
    pub(super) content: &'a Bytes,
}

impl<'a> Stored<'a> {
    pub(super) fn found(stream: &'a StreamName, found: &'a Found) -> Stored<'a> {
        Stored {
            stream,
            seq: found.seq,
            ordinal: found.ordinal,
            published: found.published(),
            content: &found.content,
        }
    }

    /// The message as a client sees it.
    pub(super) fn recorded(self, form: Form) -> Result<RecordedEvent, Status> {
        let message = self.message()?;
        let is_json = is_json(&message);
        let kind = message.kind.map(|kind| self.content.slice_ref(kind.as_bytes()));
        let commit = places::commit(self.ordinal);
        Ok(RecordedEvent {
            id: Some(form.write(self.id_of(&message))),
            stream_identifier: Some(identifier(self.stream)),
            stream_revision: places::revision(self.seq).unwrap_or_default(),
            prepare_position: commit,
            commit_position: commit,
            metadata: event_metadata(
                kind.unwrap_or(Bytes::from_static(DEFAULT_TYPE.as_bytes())),
                is_json,
                self.published,
            ),
            custom_metadata: self.custom_metadata(&message),
            data: self.content.slice_ref(message.body),
        })
    }

    pub(super) fn id(self) -> Result<EventId, Status> {
        Ok(self.id_of(&self.message()?))
    }

    /// The place that a link leads to: the revision and the name of a stream. `None` if this is not a link.
    pub(super) fn link(self) -> Option<(Seq, StreamName)> {
        let message = self.message().ok()?;
        if message.kind != Some(LINK_TYPE) {
            return None;
        }
        let (revision, stream) = std::str::from_utf8(message.body).ok()?.split_once('@')?;
        Some((places::seq(revision.parse().ok()?), StreamName::of_any(stream).ok()?))
    }

    /// The data of a link to this event.
    pub(super) fn link_to(self) -> String {
        format!("{}@{}", places::revision_text(self.seq), self.stream)
    }

    fn message(self) -> Result<Message<'a>, Status> {
        parse_content(self.content).map_err(|error| {
            let (stream, revision) = (self.stream, places::revision_text(self.seq));
            Status::unknown(format!(
                "the message cannot be read: {error}. stream=`{stream}` revision=`{revision}`"
            ))
        })
    }

    fn id_of(self, message: &Message<'_>) -> EventId {
        let own = message.id.and_then(EventId::parse);
        own.unwrap_or_else(|| EventId::of_place(self.stream, self.seq))
    }

    fn custom_metadata(self, message: &Message<'_>) -> Bytes {
        if let Some(own) = message.own.and_then(|own| own.of(Door::KURRENT)) {
            return self.content.slice_ref(own);
        }
        if message.headers.is_empty() {
            return Bytes::new();
        }
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let headers: serde_json::Map<_, _> = message
            .headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), serde_json::Value::String(text(value))))
            .collect();
        serde_json::to_vec(&headers).map(Bytes::from).unwrap_or_default()
    }
}

/// Whether clients see a message as JSON.
fn is_json(message: &Message<'_>) -> bool {
    match message.content_type {
        ContentType::Json => true,
        ContentType::Bytes | ContentType::Text => false,
        other => is_json_body(message.body, other.name().unwrap_or_default()),
    }
}

/// The facts about an event that are no fields of their own.
pub(super) fn event_metadata(kind: Bytes, is_json: bool, created: Timestamp) -> Vec<MetadataEntry> {
    vec![
        MetadataEntry::new("type", kind),
        MetadataEntry::new("content-type", if is_json { JSON } else { BINARY }),
        MetadataEntry::new("created", ticks(created).to_string()),
    ]
}

/// In units of 100 ns since 1970.
pub(super) fn ticks(time: Timestamp) -> u64 {
    time.0.saturating_mul(10)
}

pub(super) fn identifier(stream: &StreamName) -> StreamIdentifier {
    StreamIdentifier { stream_name: Bytes::copy_from_slice(stream.as_str().as_bytes()) }
}

/// The stream that a request names.
pub(super) fn stream_name(identifier: Option<&StreamIdentifier>) -> Result<StreamName, Status> {
    let Some(identifier) = identifier else { return Err(status::invalid("stream_identifier must be set")) };
    let Ok(text) = std::str::from_utf8(&identifier.stream_name) else {
        return Err(status::invalid("stream_name must be UTF-8"));
    };
    StreamName::of_any(text)
        .map_err(|error| status::invalid(format!("stream_name {error}. stream_name=`{text}`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposed(metadata: &'static str) -> Proposed {
        Proposed {
            id: EventId::parse("11111111-2222-3333-4444-555555555555").expect("a UUID"),
            kind: "OrderPlaced".to_owned(),
            is_json: true,
            metadata: Bytes::from_static(metadata.as_bytes()),
            data: Bytes::from_static(b"{}"),
        }
    }

    fn content(push: impl FnOnce(&mut BatchBuilder)) -> Bytes {
        let mut builder = BatchBuilder::default();
        push(&mut builder);
        builder.build().contents().clone()
    }

    fn recorded(content: &Bytes) -> RecordedEvent {
        let stream = StreamName::parse("orders").expect("a name");
        let (seq, ordinal, published) = (Seq(8), Ordinal(40), Timestamp(1_000));
        Stored { stream: &stream, seq, ordinal, published, content }.recorded(Form::Text).expect("an event")
    }

    #[test]
    fn an_event_comes_back_as_it_was_appended() {
        let event = recorded(&content(|builder| proposed("{\"a\":1}").push(builder)));
        assert_eq!((event.stream_revision, event.commit_position, event.prepare_position), (7, 40, 40));
        assert_eq!(MetadataEntry::find(&event.metadata, "type"), Some("OrderPlaced"));
        assert_eq!(MetadataEntry::find(&event.metadata, "content-type"), Some(JSON));
        assert_eq!(MetadataEntry::find(&event.metadata, "created"), Some("10000"));
        assert_eq!((&event.custom_metadata[..], &event.data[..]), (&b"{\"a\":1}"[..], &b"{}"[..]));
        assert_eq!(EventId::read(event.id.as_ref()), Some(proposed("").id));
    }

    #[test]
    fn a_message_of_another_door_is_an_event_too() {
        let plain = Message { body: b"hello", headers: vec![("tenant", b"a")], ..Message::default() };
        let event = recorded(&content(|builder| builder.push(&plain)));
        assert_eq!(MetadataEntry::find(&event.metadata, "type"), Some(DEFAULT_TYPE));
        assert_eq!(MetadataEntry::find(&event.metadata, "content-type"), Some(BINARY));
        assert_eq!(&event.custom_metadata[..], b"{\"tenant\":\"a\"}");
        let stream = StreamName::parse("orders").expect("a name");
        assert_eq!(EventId::read(event.id.as_ref()), Some(EventId::of_place(&stream, Seq(8))));
    }

    #[test]
    fn a_message_of_another_door_is_json_where_http_shows_json() {
        for (content_type, body, shown) in [
            ("", "{\"a\":1}", JSON),
            ("", " [1]", JSON),
            ("", "{oops", BINARY),
            ("", "42", BINARY),
            ("", "", BINARY),
            ("application/json", "42", JSON),
            ("application/cloudevents+json", "{}", JSON),
            ("text/plain", "{}", BINARY),
            ("application/octet-stream", "{}", BINARY),
            ("image/png", "{}", BINARY),
        ] {
            let content_type = ContentType::named(content_type);
            let message = Message { body: body.as_bytes(), content_type, ..Message::default() };
            let event = recorded(&content(|builder| builder.push(&message)));
            assert_eq!(MetadataEntry::find(&event.metadata, "content-type"), Some(shown), "{body}");
            assert_eq!(&event.data[..], body.as_bytes());
        }
    }

    #[test]
    fn the_correlation_id_is_the_key() {
        for (metadata, key) in [
            ("", None),
            ("{\"$correlationId\":\"c\"}", Some("c")),
            ("{\"$correlationId\":\"\"}", None),
            ("{\"$correlationId\":7}", None),
            ("$correlationId", None),
        ] {
            let content = content(|builder| proposed(metadata).push(builder));
            let message = parse_content(&content).expect("a content");
            assert_eq!(message.key, key.map(str::as_bytes), "{metadata}");
        }
    }

    #[test]
    fn an_event_without_a_type_is_refused() {
        let whole = || ProposedMessage {
            id: Some(Form::Text.write(proposed("").id)),
            metadata: [("type", "A"), ("content-type", JSON), ("other", "x")]
                .map(|(name, value)| MetadataEntry::new(name, value))
                .into(),
            ..ProposedMessage::default()
        };
        assert!(Proposed::read(whole()).is_ok());
        for name in ["type", "content-type"] {
            let mut one = whole();
            one.metadata.retain(|entry| entry.key != name);
            let refused = Proposed::read(one).expect_err("it is refused");
            assert_eq!(
                refused.metadata().get("exception").map(|value| value.as_bytes().to_vec()),
                Some(b"missing-required-metadata-property".to_vec())
            );
        }
        assert!(Proposed::read(ProposedMessage { id: None, ..whole() }).is_err());
    }

    #[test]
    fn a_link_names_a_revision_and_a_stream() {
        let stream = StreamName::of_system("$ce-order").expect("a name");
        let link = |kind, body| {
            let content = content(|builder| builder.push(&Message { kind, body, ..Message::default() }));
            let (seq, ordinal, published) = (Seq(1), Ordinal(1), Timestamp(1));
            Stored { stream: &stream, seq, ordinal, published, content: &content }.link()
        };
        let target = StreamName::parse("order@home").expect("a name");
        assert_eq!(link(Some(LINK_TYPE), b"4@order@home"), Some((Seq(5), target)));
        for (kind, body) in
            [(Some("other"), &b"4@order"[..]), (Some(LINK_TYPE), b"order"), (None, b"4@order")]
        {
            assert_eq!(link(kind, body), None);
        }
    }
}
