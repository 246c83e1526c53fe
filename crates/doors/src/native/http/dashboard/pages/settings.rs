//! Settings of a stream or a group, with meaning, default and limits from the table of the model, to be changed in
//! place.

use forebay_model::describe::{Field, Kind};
use maud::{Markup, html};
use serde_json::Value;

use super::super::layout::command;

/// The settings of one stream or group.
pub(super) struct Settings<'a> {
    pub(super) fields: &'a [Field],
    /// The present values, as the API gives them.
    pub(super) values: Value,
    /// The call that changes them, relative to the page.
    pub(super) address: String,
    /// The command that changes them, without the settings.
    pub(super) command: String,
}

/// One line: a setting, or a part of one.
struct Line {
    /// As in `backoff.min`.
    name: String,
    field: Field,
    value: Value,
}

impl Settings<'_> {
    pub(super) fn render(&self) -> Markup {
        let mut lines = Vec::new();
        collect("", self.fields, &self.values, &mut lines);
        html! {
            form.settings data-settings data-address=(self.address) data-head=(self.command) autocomplete="off" {
                div.table role="region" aria-label="Settings" tabindex="0" {
                    table {
                        thead {
                            tr {
                                th scope="col" { "Setting" } th scope="col" { "Value" } th scope="col" { "Default" }
                                th scope="col" { "Meaning and limits" }
                            }
                        }
                        tbody { @for line in &lines { (row(line)) } }
                    }
                }
                section.preview data-preview hidden aria-live="polite" {
                    h3 { "Changes" }
                    ul data-changes {}
                    (command(&self.command))
                    p.error role="alert" data-error hidden {}
                    div.buttons {
                        button.quiet type="reset" { "Undo" }
                        button.primary type="submit" { "Apply" }
                    }
                }
            }
        }
    }
}

/// Settings that belong together are shown part by part. Choices with values are one line in JSON.
fn collect(outer: &str, fields: &[Field], values: &Value, lines: &mut Vec<Line>) {
    for field in fields {
        let name = if outer.is_empty() { field.name.to_owned() } else { format!("{outer}.{}", field.name) };
        let value = values.get(field.name).cloned().unwrap_or(Value::Null);
        match field.kind {
            Kind::Object(parts) if !field.nullable => collect(&name, parts, &value, lines),
            _ => lines.push(Line { name, field: *field, value }),
        }
    }
}

/// A value as people write it: text without its quotes.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn row(line: &Line) -> Markup {
    let Line { name, field, value } = line;
    let (id, now) = (format!("set-{}", name.replace('.', "-")), text(value));
    let default = (field.default)().unwrap_or_default();
    let is_equal =
        |a: &str, b: &str| a == b || matches!((a.parse::<f64>(), b.parse::<f64>()), (Ok(a), Ok(b)) if a == b);
    let is_default =
        is_equal(&now, &default) || (value.is_null() && (default.is_empty() || default == "null"));
    let words = match field.kind {
        Kind::Words(words) => words,
        Kind::Switch => &["true", "false"],
        _ => &[],
    };
    // A group keeps the start that it was created with.
    let is_fixed = name == "start";
    html! {
        tr data-changed=[(!is_default).then_some("")] {
            th scope="row" { label for=(id) { code { (name) } } }
            td {
                @if words.is_empty() {
                    input id=(id) name=(name) type="text" value=(now) data-original=(now) data-kind=(kind(field.kind))
                        placeholder=[field.nullable.then_some("none")] spellcheck="false" disabled[is_fixed];
                } @else {
                    select id=(id) name=(name) data-original=(now) data-kind=(kind(field.kind)) disabled[is_fixed] {
                        @for word in words { option value=(word) selected[*word == now] { (word) } }
                    }
                }
            }
            td.default {
                @if default.is_empty() || default == "null" { span.hint { "none" } } @else { code { (default) } }
            }
            td.meaning { (field.help.replace('`', "")) span.hint { (field.values().replace('`', "")) } }
        }
    }
}

/// How the script reads a value.
fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Switch => "switch",
        Kind::Whole | Kind::Real => "number",
        Kind::Span | Kind::Time | Kind::Text | Kind::Words(_) => "text",
        // A word or a number or an object.
        Kind::Object(_) | Kind::Either(_) => "any",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_broker::api::GroupSettings;

    #[test]
    fn every_setting_is_a_line_and_hostile_values_are_text() {
        let values = serde_json::json!({
            "on_exhausted": { "move": "<script>alert(1)</script>" }, "backoff": { "min": "100ms" }, "rate": null,
        });
        let settings = Settings {
            fields: GroupSettings::FIELDS,
            values,
            address: "x".into(),
            command: "forebay".into(),
        };
        let page = settings.render().0;
        for name in [
            "start",
            "max_retries",
            "backoff.min",
            "backoff.jitter",
            "checkpoint.max",
            "rate",
            "extra_statistics",
        ] {
            assert!(page.contains(&format!("name=\"{name}\"")), "{name}");
        }
        assert!(!page.contains("<script>"));
        assert!(page.contains("&lt;script&gt;"));
    }
}
