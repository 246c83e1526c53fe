//! Settings on the command line: `name=value`, with a dot for nested fields. They become the JSON object of
//! the API, and the server says which names and values there are.

use std::ffi::OsString;

use anyhow::{Context as _, bail};
use clap::Args;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use forebay_model::describe::{Field, Kind, Row, example, rows};
use forebay_model::{GroupPatch, StreamPatch};
use forebay_wire::json::Span;
use serde_json::{Map, Value};

use crate::exit::Exit;
use crate::safe::printable;
use crate::settings::values::size;

#[derive(Debug, Args)]
pub(crate) struct Pairs {
    /// Settings, as name=value. `null` takes a limit away. Sizes and rates may have units: 10MiB, 30/m.
    #[arg(value_name = "NAME=VALUE")]
    pairs: Vec<String>,
    /// Settings as a JSON object, as in the API.
    #[arg(long, value_name = "JSON", conflicts_with = "pairs")]
    json: Option<String>,
}

impl Pairs {
    pub(crate) fn object(&self) -> anyhow::Result<Map<String, Value>> {
        self.read().context(Exit::NotUnderstood)
    }

    fn read(&self) -> anyhow::Result<Map<String, Value>> {
        if let Some(text) = &self.json {
            return serde_json::from_str(text)
                .context("--json takes a JSON object, such as '{\"max_retries\": 3}'");
        }
        read(&self.pairs)
    }

    /// At least one, such as this.
    pub(crate) fn require(&self, example: &str) -> anyhow::Result<()> {
        if self.pairs.is_empty() && self.json.is_none() {
            return Err(anyhow::anyhow!(Exit::NotUnderstood)
                .context(format!("there is nothing to change; expected NAME=VALUE, such as {example}")));
        }
        Ok(())
    }
}

/// Columns of `--help`: where the meaning of a setting begins, and how long a line may become.
const MEANING: usize = 34;
const LINE: usize = 118;

/// The text after the help of a command that takes settings: every setting as it could be given, then examples.
pub(super) fn help(fields: &[Field], examples: &str) -> String {
    let mut text = "Settings, with their defaults:\n".to_owned();
    for Row { name, field } in rows(fields) {
        // Settings that belong together are given one by one.
        if matches!(field.kind, Kind::Object(_)) && !field.nullable {
            continue;
        }
        let default = (field.default)().unwrap_or("…".to_owned());
        let mut line = format!("  {:MEANING$}", format!("{name}={default}"));
        let mut values = field.values();
        values.retain(|char| char != '`');
        for word in format!("{} ({values})", field.help.trim_end_matches('.')).split(' ') {
            if line.chars().count() + word.chars().count() >= LINE {
                text.push_str(line.trim_end());
                text.push('\n');
                line = " ".repeat(MEANING + 2);
            }
            line.push_str(word);
            line.push(' ');
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.push('\n');
    text + examples
}

/// A setting that was given like a flag, as `--max-retries 3`: the error says how it is given.
pub(crate) fn as_pair(error: clap::Error, words: &[OsString]) -> clap::Error {
    let flag = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let Some(fields) = fields_of(&words).filter(|_| error.kind() == ErrorKind::UnknownArgument) else {
        return error;
    };
    let (name, same) = match flag.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (&*flag, None),
    };
    let place = words.iter().position(|word| word.split('=').next() == Some(name));
    let same = same.or_else(|| words.get(place?)?.split_once('=').map(|(_, value)| value));
    let next = place.and_then(|place| words.get(place + 1)).filter(|next| !next.starts_with('-'));
    let value = same.or(next.copied());
    let name = name.trim_start_matches('-').replace('-', "_");
    let pair = match value {
        Some(value) if rows(fields).iter().any(|row| row.name == name) => format!("{name}={value}"),
        Some(value) if value.contains('=') => value.to_owned(),
        None if rows(fields).iter().any(|row| row.name == name) => format!("{name}=VALUE"),
        _ => return error,
    };
    let mut error = error;
    let tip = format!("settings are given as {}", printable(&pair));
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

/// The settings that a command takes.
fn fields_of(words: &[&str]) -> Option<&'static [Field]> {
    let after = |noun: &str| {
        let at = words.iter().position(|word| *word == noun)?;
        words[at..].iter().find(|word| matches!(**word, "create" | "set"))
    };
    match (after("group"), after("stream")) {
        (Some(_), _) => Some(GroupPatch::FIELDS),
        (_, Some(_)) => Some(StreamPatch::FIELDS),
        _ => None,
    }
}

/// The object that pairs stand for.
pub(crate) fn read(pairs: &[String]) -> anyhow::Result<Map<String, Value>> {
    let mut object = Map::new();
    for pair in pairs {
        let Some((name, value)) = pair.split_once('=') else {
            bail!("a setting is given as name=value, such as max_retries=3. given=`{}`", printable(pair));
        };
        if let Err(wrong) = put(&mut object, name, value) {
            bail!("{wrong}. given=`{}`", printable(pair));
        }
    }
    Ok(object)
}

fn put(object: &mut Map<String, Value>, name: &str, value: &str) -> anyhow::Result<()> {
    match name.split_once('.') {
        Some((outer, inner)) => {
            let within = object.entry(outer).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(within) = within else { bail!("the setting is given both whole and in parts") };
            put(within, inner, value)
        }
        None if name.is_empty() => bail!("there is no name before the `=`"),
        None if object.contains_key(name) => bail!("the setting is given twice"),
        None => {
            let value = in_units(name, value)?;
            object.insert(name.to_owned(), value);
            Ok(())
        }
    }
}

/// A value as the API has it. Text that reads as a number, as true, false or null, or as a JSON object, is that. Sizes
/// and rates may have units, which the API does not know.
fn in_units(name: &str, text: &str) -> anyhow::Result<Value> {
    let parsed: Option<Value> = serde_json::from_str(text).ok();
    if name.ends_with("bytes") && parsed.is_none() {
        let bytes = size(text).map_err(|wrong| anyhow::anyhow!("{wrong}"))?;
        return Ok(Value::from(bytes));
    }
    let per_second = per_second(text);
    if matches!(name, "rate" | "ingress_rate") {
        return match (per_second, parsed) {
            (Some(per_second), _) => Ok(serde_json::json!({ "per_second": per_second })),
            (None, Some(value)) if value.is_object() || value.is_null() => Ok(value),
            _ => bail!(
                "a rate is a number of messages per second, such as {name}=10, or has a unit, such as {name}=30/m"
            ),
        };
    }
    if name == "per_second"
        && let Some(per_second) = per_second
    {
        return Ok(Value::from(per_second));
    }
    if let Some((part, default)) = part_of(name)
        && !parsed.as_ref().is_some_and(|value| value.is_object() || value.is_null())
    {
        let is_meant = matches!(part.kind, Kind::Span) && text.parse::<Span>().is_ok();
        let example = if is_meant { text } else { &default };
        bail!(
            "{name} has several settings, which are given such as {name}.{}={example}, in JSON {{\"{}\": {}}}",
            part.name,
            part.name,
            in_json(example)
        );
    }
    Ok(parsed.unwrap_or_else(|| Value::from(text)))
}

/// An example of the parts of a setting that consists of parts.
fn part_of(name: &str) -> Option<(Field, String)> {
    let mut all = GroupPatch::FIELDS.iter().chain(StreamPatch::FIELDS);
    match all.find(|field| field.name == name)?.kind {
        Kind::Object(fields) => example(fields),
        _ => None,
    }
}

/// A value as it stands in JSON.
fn in_json(text: &str) -> String {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    value.to_string()
}

/// `100`, `100/s`, `30/m` or `5/h`, as messages per second.
fn per_second(text: &str) -> Option<f64> {
    let (number, seconds) = match text.split_once('/') {
        None => (text, 1.0),
        Some((number, "s")) => (number, 1.0),
        Some((number, "m" | "min")) => (number, 60.0),
        Some((number, "h")) => (number, 3_600.0),
        Some(_) => return None,
    };
    number.trim().parse::<f64>().ok().filter(|number| number.is_finite()).map(|number| number / seconds)
}

/// An object as names and values, as they could be given again.
pub(crate) fn flat(value: &impl serde::Serialize) -> Vec<(String, String)> {
    let mut out = Vec::new();
    if let Ok(Value::Object(object)) = serde_json::to_value(value) {
        flatten("", &object, &mut out);
    }
    out
}

fn flatten(before: &str, object: &Map<String, Value>, out: &mut Vec<(String, String)>) {
    for (name, value) in object {
        let name = format!("{before}{name}");
        match value {
            Value::Object(within) => flatten(&format!("{name}."), within, out),
            Value::String(text) => out.push((name, text.clone())),
            value => out.push((name, value.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[&str]) -> Result<String, String> {
        let pairs = Pairs { pairs: pairs.iter().map(ToString::to_string).collect(), json: None };
        pairs.read().map(|object| Value::from(object).to_string()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn pairs_become_the_object_of_the_api() {
        let given = ["max_retries=3", "backoff.min=1s", "backoff.jitter=0", "rate=null", "strategy=ordered"];
        let expected =
            r#"{"backoff":{"jitter":0,"min":"1s"},"max_retries":3,"rate":null,"strategy":"ordered"}"#;
        assert_eq!(read(&given).as_deref(), Ok(expected));
        assert_eq!(read(&[r#"rate={"per_second":5}"#]).as_deref(), Ok(r#"{"rate":{"per_second":5}}"#));
        let given = ["limits.max_bytes=10MiB", "rate=30/m"];
        let expected = r#"{"limits":{"max_bytes":10485760},"rate":{"per_second":0.5}}"#;
        assert_eq!(read(&given).as_deref(), Ok(expected));
        let given = ["rate.per_second=30/m", "rate.burst=2", "backoff=null"];
        let expected = r#"{"backoff":null,"rate":{"burst":2,"per_second":0.5}}"#;
        assert_eq!(read(&given).as_deref(), Ok(expected));
    }

    #[test]
    fn what_is_no_pair_is_named() {
        for (pairs, text) in [
            (&["max_retries"][..], "name=value"),
            (&["=3"], "no name"),
            (&["a=1", "a=2"], "twice"),
            (&["rate=null", "rate.per_second=2"], "both whole and in parts"),
            (&["limits.max_bytes=10 apples"], "a size is a number"),
            (&["rate=nan"], "such as rate=10"),
            (&["rate=fast"], "such as rate=10, or has a unit, such as rate=30/m"),
            (&["backoff=1s"], r#"such as backoff.min=1s, in JSON {"min": "1s"}"#),
        ] {
            let wrong = read(pairs).expect_err("that is wrong");
            assert!(wrong.contains(text) && wrong.contains("given=`"), "{wrong}");
        }
    }
}
