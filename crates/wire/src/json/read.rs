//! Reads the JSON of a request, or says in plain words which field is wrong and what it must be.
//!
//! An object must be written as an object. Serde would also take a list for the fields of a struct in their order,
//! which would give a typing mistake a meaning; [`Strict`] refuses that at every depth.

mod strict;

use serde::de::DeserializeOwned;

use self::strict::Strict;
use crate::problem::{Kind, Problem};

/// How much of a wrong value is repeated.
const VALUE_CHARS_MAX: usize = 80;

/// Reads a request. Nothing at all is like `{}`.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Box<Problem>> {
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    let mut from = serde_json::Deserializer::from_slice(body);
    let read = T::deserialize(Strict(&mut from)).and_then(|read| from.end().map(|()| read));
    read.map_err(|_| Box::new(explain::<T>(body)))
}

/// Says which field of a body is wrong, and why. The body is read a second time for that, so that valid bodies cost
/// nothing.
fn explain<T: DeserializeOwned>(body: &[u8]) -> Problem {
    let mut from = serde_json::Deserializer::from_slice(body);
    let wrong = match serde_path_to_error::deserialize::<_, T>(Strict(&mut from)) {
        Err(wrong) => wrong,
        Ok(_) => return Problem::new(Kind::MalformedJson, "there is more text after the JSON value"),
    };
    let path = wrong.path().to_string();
    let path = if path == "." { "" } else { &path };
    let wrong = wrong.into_inner();
    let text = wrong.to_string();
    let place = format!(" at line {} column {}", wrong.line(), wrong.column());
    let text = text.strip_suffix(&place).unwrap_or(&text);
    if !wrong.is_data() {
        let detail = format!("it is not JSON: {text}. line=`{}` column=`{}`", wrong.line(), wrong.column());
        return Problem::new(Kind::MalformedJson, detail);
    }
    problem_of(path, text)
}

/// A part of serde's message that stands in backticks after `before`, and the rest.
fn quoted<'a>(text: &'a str, before: &str) -> Option<(&'a str, &'a str)> {
    text.strip_prefix(before)?.split_once('`')
}

/// The path of a field in the object at `path`. Some paths end with the field already.
fn field_in(path: &str, field: &str) -> String {
    match path {
        "" => field.to_owned(),
        _ if path == field || path.ends_with(&format!(".{field}")) => path.to_owned(),
        _ => format!("{path}.{field}"),
    }
}

/// The problem that a message of serde stands for.
fn problem_of(path: &str, text: &str) -> Problem {
    let invalid = |field: &str, rule: &str| match field {
        "" => Problem::new(Kind::InvalidField, format!("the JSON {rule}")),
        _ => Problem::new(Kind::InvalidField, format!("{field} {rule}")).with_field(field),
    };
    if let Some((unknown, rest)) = quoted(text, "unknown field `") {
        let field = field_in(path, unknown);
        let detail = match rest.strip_prefix(", expected ") {
            Some(known) => format!("unknown field `{field}`; expected {known}"),
            None => format!("unknown field `{field}`"),
        };
        return Problem::new(Kind::UnknownField, detail).with_field(field);
    }
    if let Some((missing, _)) = quoted(text, "missing field `") {
        return invalid(&field_in(path, missing), "must be given");
    }
    if let Some((twice, _)) = quoted(text, "duplicate field `") {
        return invalid(&field_in(path, twice), "must not be given twice");
    }
    if let Some((word, rest)) = quoted(text, "unknown variant `") {
        let known = rest.trim_start_matches(", expected ").trim_start_matches("one of ");
        return invalid(path, &format!("must be one of {known}. value=`{}`", short(word)));
    }
    for before in ["invalid type: ", "invalid value: ", "invalid length "] {
        let Some((found, expected)) =
            text.strip_prefix(before).and_then(|rest| rest.rsplit_once(", expected "))
        else {
            continue;
        };
        let expected = plain(expected);
        // A text in the place of a message is probably its content, which no error repeats.
        let is_content = expected == "an object" && found.starts_with("string ");
        return invalid(
            path,
            &match value(found).filter(|_| !is_content) {
                Some(value) => format!("must be {expected}. value=`{}`", short(value)),
                None => format!("must be {expected}, not {}", kind(found)),
            },
        );
    }
    match text.starts_with("must ") {
        true => invalid(path, text),
        false => invalid(path, &format!("is invalid: {text}")),
    }
}

/// The value, if serde's message has it.
fn value(found: &str) -> Option<&str> {
    if let Some(text) = found.strip_prefix("string \"") {
        return text.strip_suffix('"');
    }
    let (_, value) = found.split_once('`')?;
    value.strip_suffix('`')
}

/// The kind of value that was found, in words of JSON.
fn kind(found: &str) -> &str {
    match found {
        "sequence" => "a list",
        "map" => "an object",
        "unit value" => "null",
        found if found.starts_with("string ") => "text",
        found => found,
    }
}

/// The kind of value that was expected, without the names of Rust types.
fn plain(expected: &str) -> &str {
    match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "u128" | "usize" => "a whole number, 0 or greater",
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" | "a borrowed string" | "a character" => "text",
        "a sequence" => "a list",
        "a map" | "any valid JSON value" => "an object",
        _ if expected.starts_with("struct ") || expected.starts_with("internally tagged enum ") => {
            "an object"
        }
        _ if expected.starts_with("enum ") => "one of the words of this field",
        _ => expected,
    }
}

fn short(value: &str) -> String {
    match value.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{
        GroupSettings, NackRequest, PublishRequest, ReceiveRequest, SelectRequest, StreamSettings,
    };

    /// The problem of a body, as `slug field: detail`.
    fn wrong<T: DeserializeOwned>(body: &str) -> String {
        let Err(problem) = read::<T>(body.as_bytes()) else { panic!("{body} was taken") };
        let slug = problem.kind().expect("a kind").slug();
        format!("{slug} {}: {}", problem.field.as_deref().unwrap_or("-"), problem.detail)
    }

    #[test]
    fn a_wrong_field_is_named_with_its_value_and_its_rule() {
        let group = wrong::<GroupSettings>;
        let message =
            |message: &str| wrong::<PublishRequest>(&format!(r#"{{"messages":[{{"body":1}},{message}]}}"#));
        for (said, expected) in [
            (
                group(r#"{"backoff":{"mim":"1s"}}"#),
                "unknown-field backoff.mim: unknown field `backoff.mim`; expected",
            ),
            (
                group(r#"{"backoff":{"min":"1"}}"#),
                "invalid-field backoff.min: backoff.min must be a whole number with a unit",
            ),
            (
                group(r#"{"message_timeout":5}"#),
                "invalid-field message_timeout: message_timeout must be a duration",
            ),
            (
                group(r#"{"strategy":"random"}"#),
                "invalid-field strategy: strategy must be one of `round_robin`",
            ),
            (
                group(r#"{"backoff":"1s"}"#),
                r#"invalid-field backoff: backoff must be an object of settings, such as { "min": "100ms" }"#,
            ),
            (group(r#"{"rate":10}"#), "invalid-field rate: rate must be an object with per_second and burst"),
            (
                group(r#"{"buffer":-1}"#),
                "invalid-field buffer: buffer must be a whole number from 0 to 4294967295",
            ),
            (
                message(r#"{"delay":"1.5s"}"#),
                "invalid-field messages[1].delay: messages[1].delay must be a whole",
            ),
            (
                message(r#"{"prio":1}"#),
                "unknown-field messages[1].prio: unknown field `messages[1].prio`; expected",
            ),
            (
                message(r#"{"priority":300}"#),
                "invalid-field messages[1].priority: messages[1].priority must be a whole number from 0 to 255. \
                 value=`300`",
            ),
            (message(r#"{"id":7}"#), "invalid-field messages[1].id: messages[1].id must be text. value=`7`"),
            (message("5"), "invalid-field messages[1]: messages[1] must be an object. value=`5`"),
            (message(r#""secret""#), "invalid-field messages[1]: messages[1] must be an object, not text"),
            (wrong::<PublishRequest>("{}"), "invalid-field messages: messages must be given"),
            (
                wrong::<PublishRequest>(r#"{"messages":{}}"#),
                "invalid-field messages: messages must be a list, not an",
            ),
            (
                wrong::<ReceiveRequest>(r#"{"max":"many"}"#),
                "invalid-field max: max must be a whole number. value=`many`",
            ),
            (
                wrong::<ReceiveRequest>(r#"{"max":-1}"#),
                "invalid-field max: max must be between 1 and 1000. value=`-1`",
            ),
            (
                wrong::<SelectRequest>(r#"{"all":1}"#),
                "invalid-field all: all must be true or false. value=`1`",
            ),
            (
                wrong::<NackRequest>(r#"{"leases":[],"leases":[]}"#),
                "invalid-field leases: leases must not be given",
            ),
        ] {
            assert!(said.starts_with(expected), "{said}\nshould begin with\n{expected}");
            assert!(!said.contains("struct") && !said.contains("column"), "{said}");
        }
        let long = wrong::<GroupSettings>(&format!(r#"{{"strategy":"{}"}}"#, "x".repeat(5_000)));
        assert!(long.len() < 300, "a long value is cut: {long}");
    }

    #[test]
    fn a_list_is_not_taken_for_an_object() {
        for said in [
            wrong::<PublishRequest>(r#"[[],null]"#),
            wrong::<PublishRequest>(r#"{"messages":[["myid","mytype"],[]]}"#),
            wrong::<StreamSettings>(r#"{"limits":[5]}"#),
            wrong::<StreamSettings>(r#"{"retention":["1s"]}"#),
            wrong::<GroupSettings>(r#"{"rate":[5,1]}"#),
            wrong::<SelectRequest>(r#"{"filter":["reason"]}"#),
            wrong::<NackRequest>(r#"[["a"],"park"]"#),
        ] {
            assert!(said.starts_with("invalid-field") && said.contains(", not a list"), "{said}");
        }
        // Any JSON is a body, lists too.
        let kept: PublishRequest = read(br#"{"messages":[{"body":[1, {"a":[2]}]}]}"#).expect("a request");
        assert_eq!(kept.messages[0].body.as_ref().map(|body| body.get()), Some(r#"[1, {"a":[2]}]"#));
    }

    #[test]
    fn a_body_that_is_not_json_is_told_where() {
        assert!(wrong::<GroupSettings>("{").starts_with("malformed-json -: it is not JSON: "));
        assert!(wrong::<GroupSettings>("{} {}").starts_with("malformed-json -: there is more text"));
        let broken = wrong::<GroupSettings>("{\n \"buffer\": 1,\n}");
        assert!(broken.contains("line=`3` column=`1`"), "{broken}");
        assert!(read::<GroupSettings>(b" \n").is_ok(), "nothing is like an empty object");
    }
}
