//! The OpenAPI document: parameters with their types and limits, request bodies with examples, and the problems that
//! each call may answer with.
//!
//! Schemas come from the types of the wire. [`refined`] adds to them the limits and defaults that the service
//! enforces, from the constants that it enforces them with.

use forebay_core::types::NAME_BYTES_MAX;
use forebay_wire::json::Span;
use forebay_wire::problem::{Kind, MEDIA_TYPE, Retry};
use serde_json::{Map, Value, json};

use crate::native::limits::{
    LEASES_MAX, PAGE_DEFAULT, PAGE_MAX, PRIORITY_MAX, RECEIVE_MAX, SEQS_MAX, TARGET_CONSUMERS_MAX,
    TARGET_DRAIN,
};

/// A query parameter.
#[derive(Debug, Clone)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    what: &'static str,
    schema: Value,
}

impl Parameter {
    fn new(name: &'static str, what: &'static str, schema: Value) -> Parameter {
        Parameter { name, what, schema }
    }

    pub(super) fn text(name: &'static str, what: &'static str) -> Parameter {
        Parameter::new(name, what, json!({ "type": "string" }))
    }

    pub(super) fn flag(name: &'static str, what: &'static str) -> Parameter {
        Parameter::new(name, what, json!({ "type": "boolean", "default": false }))
    }

    pub(super) fn position(name: &'static str, what: &'static str) -> Parameter {
        Parameter::new(name, what, json!({ "type": "integer", "format": "int64", "minimum": 0 }))
    }

    pub(super) fn place(name: &'static str, what: &'static str) -> Parameter {
        let schema =
            json!({ "type": "string", "pattern": "^(beginning|end|[0-9]{1,19})?$", "default": "beginning" });
        Parameter::new(name, what, schema)
    }

    /// The number of items of a page.
    pub(super) fn limit() -> Parameter {
        let schema = json!({ "type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT });
        Parameter::new("limit", "Maximum number of items.", schema)
    }

    pub(super) fn consumers(name: &'static str, what: &'static str, default: u32) -> Parameter {
        let schema = json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX, "default": default });
        Parameter::new(name, what, schema)
    }

    pub(super) fn target_drain() -> Parameter {
        let what = "Time within which the backlog should be worked off.";
        let schema = json!({
            "type": "string", "pattern": "^([0-9]+(ns|us|ms|s|m|h|d))?$", "default": Span(TARGET_DRAIN).to_string(),
        });
        Parameter::new("target_drain", what, schema)
    }

    /// How far back a history goes.
    #[cfg(feature = "dashboard")]
    pub(super) fn span(what: &'static str) -> Parameter {
        let schema = json!({ "type": "string", "pattern": "^([0-9]+(ns|us|ms|s|m|h|d))?$", "default": "1h" });
        Parameter::new("span", what, schema)
    }

    #[cfg(feature = "dashboard")]
    pub(super) fn points() -> Parameter {
        let schema = json!({ "type": "integer", "minimum": 1, "maximum": 1_000, "default": 60 });
        Parameter::new("points", "Number of points, each of a second or more.", schema)
    }

    pub(super) fn consumers_max() -> Parameter {
        Parameter::consumers("max", "Maximum number of consumers to recommend.", TARGET_CONSUMERS_MAX)
    }

    pub(super) fn document(&self) -> Value {
        json!({ "name": self.name, "in": "query", "description": self.what, "schema": self.schema })
    }
}

/// Control characters, as a pattern excludes them.
const CONTROL: &str = "\\u0000-\\u001f\\u007f-\\u009f";

/// A variable of the path.
pub(super) fn path_variable(name: &str) -> Value {
    let (what, schema) = match name {
        "stream" | "group" => {
            let slash = if name == "group" { "/" } else { "" };
            let pattern = format!("^[^${slash}{CONTROL}][^{slash}{CONTROL}]*$");
            let what = format!(
                "Name of the {name}: 1 to {NAME_BYTES_MAX} bytes of UTF-8 without control characters, not beginning \
                 with `$`{}.",
                if name == "group" { ", without `/`" } else { "" }
            );
            let schema =
                json!({ "type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX, "pattern": pattern });
            (what, schema)
        }
        "seq" => (
            "Position of the message.".to_owned(),
            json!({ "type": "integer", "format": "int64", "minimum": 0 }),
        ),
        "job" => {
            ("Number of the job.".to_owned(), json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX }))
        }
        "kind" => {
            let kinds: Vec<&str> = Kind::ALL.iter().map(|kind| kind.slug()).collect();
            ("Name of the problem.".to_owned(), json!({ "type": "string", "enum": kinds }))
        }
        "id" => ("Id of the token or access key.".to_owned(), json!({ "type": "string", "minLength": 1 })),
        "connection" => ("Id of the connection.".to_owned(), json!({ "type": "string", "minLength": 1 })),
        other => unreachable!("a variable without a schema: {other}"),
    };
    json!({ "name": name, "in": "path", "required": true, "description": what, "schema": schema })
}

/// Limits and defaults of fields, which the types alone do not have: the schema, the field, and the part that is added.
fn refined() -> Vec<(&'static str, &'static str, Value)> {
    let leases = json!({ "minItems": 1, "maxItems": LEASES_MAX });
    vec![
        ("Message", "priority", json!({ "minimum": 0, "maximum": PRIORITY_MAX, "default": 0 })),
        ("Message", "body_base64", json!({ "contentEncoding": "base64" })),
        ("Message", "key_base64", json!({ "contentEncoding": "base64" })),
        ("TruncateRequest", "before", json!({ "minimum": 1 })),
        ("PublishRequest", "messages", json!({ "minItems": 1, "maxItems": 10_000 })),
        ("ReceiveRequest", "max", json!({ "minimum": 1, "maximum": RECEIVE_MAX, "default": 1 })),
        ("ReceiveRequest", "consumer", json!({ "maxLength": NAME_BYTES_MAX })),
        ("AckRequest", "leases", leases.clone()),
        ("NackRequest", "leases", leases.clone()),
        ("ExtendRequest", "leases", leases),
        ("SelectRequest", "seqs", json!({ "minItems": 1, "maxItems": SEQS_MAX })),
    ]
}

/// Rules about several fields of a request.
fn rules() -> Vec<(&'static str, Value)> {
    vec![
        (
            "Message",
            json!({ "not": { "anyOf": [
                { "required": ["body", "body_text"] }, { "required": ["body", "body_base64"] },
                { "required": ["body_text", "body_base64"] }, { "required": ["key", "key_base64"] },
                { "required": ["delay", "deliver_at"] },
            ] } }),
        ),
        (
            "SelectRequest",
            json!({ "anyOf": [
                { "required": ["seqs"] }, { "required": ["filter"] },
                { "required": ["all"], "properties": { "all": { "const": true } } },
            ] }),
        ),
    ]
}

/// Adds limits, defaults and rules to the schemas, and gives the one that has the name of a type of Rust a better one.
pub(super) fn refine(schemas: &mut Map<String, Value>) {
    for (name, field, more) in refined() {
        let Some(found) =
            schemas.get_mut(name).and_then(|schema| schema.pointer_mut(&format!("/properties/{field}")))
        else {
            unreachable!("{name} has no field {field}");
        };
        merge(found, &more);
    }
    for (name, more) in rules() {
        merge(schemas.get_mut(name).expect("a schema of a request"), &more);
    }
}

fn merge(into: &mut Value, more: &Value) {
    let (Value::Object(into), Value::Object(more)) = (into, more) else {
        unreachable!("schemas are objects")
    };
    into.extend(more.iter().map(|(name, value)| (name.clone(), value.clone())));
}

/// Renames a schema everywhere in the document.
pub(super) fn rename(document: &mut Value, from: &str, to: &str) {
    let (from_ref, to_ref) = (format!("#/components/schemas/{from}"), format!("#/components/schemas/{to}"));
    if let Some(Value::Object(schemas)) = document.pointer_mut("/components/schemas")
        && let Some(schema) = schemas.remove(from)
    {
        schemas.insert(to.to_owned(), schema);
    }
    replace(document, &from_ref, &to_ref);
}

fn replace(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::String(text) if text == from => *text = to.to_owned(),
        Value::Array(values) => values.iter_mut().for_each(|value| replace(value, from, to)),
        Value::Object(map) => map.values_mut().for_each(|value| replace(value, from, to)),
        _ => {}
    }
}

/// The problems with a status, as a response that calls refer to.
pub(super) fn problem_responses() -> Map<String, Value> {
    let mut responses = Map::new();
    for kind in Kind::ALL {
        let name = format!("Problem{}", kind.status());
        if responses.contains_key(&name) {
            continue;
        }
        let same: Vec<&Kind> = Kind::ALL.iter().filter(|other| other.status() == kind.status()).collect();
        let slugs: Vec<String> = same.iter().map(|kind| format!("`{}`", kind.slug())).collect();
        let example = json!({
            "type": kind.uri(), "title": kind.title(), "status": kind.status(), "detail": kind.help(),
            "retry": kind.retry(),
        });
        let mut response = json!({
            "description": format!("Refused: {}.", slugs.join(", ")),
            "content": {
                MEDIA_TYPE: { "schema": { "$ref": "#/components/schemas/Problem" }, "example": example }
            },
        });
        if same.iter().any(|kind| kind.retry() == Retry::Later) {
            response["headers"] = json!({ "Retry-After": {
                "description": "Seconds after which to try again.", "schema": { "type": "integer", "minimum": 0 },
            } });
        }
        responses.insert(name, response);
    }
    responses
}

pub(super) fn problem_reference(status: u16) -> Value {
    json!({ "$ref": format!("#/components/responses/Problem{status}") })
}

/// What the groups of calls are about.
pub(super) const TAGS: [(&str, &str); 7] = [
    ("streams", "Streams, and publishing and reading messages."),
    ("log", "The messages of all streams, in the order in which they were published."),
    ("groups", "Groups of competing consumers: settings, monitoring, pausing, resetting."),
    ("consumers", "Receiving messages, and settling their leases."),
    ("parked", "Parked messages, which other systems call dead letters, and jobs on them."),
    ("credentials", "Tokens of clients, access keys of SQS clients, and users with passwords."),
    ("server", "The server itself."),
];
