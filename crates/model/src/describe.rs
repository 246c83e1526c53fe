//! What a table says about its settings, for `--help`, for the pages in `docs/reference` and for OpenAPI.

use std::fmt::{self, Write as _};

use crate::value::{Limit, join};

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// As JSON has it. In `forebay.v1` durations end in `_ms`.
    pub name: &'static str,
    pub kind: Kind,
    /// Whether `null` is a value, and means none.
    pub nullable: bool,
    /// As people write it. `None` for a group of settings, and for a part that must be given.
    pub default: fn() -> Option<String>,
    pub limit: Limit,
    pub help: &'static str,
}

/// What values a setting has.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Switch,
    Whole,
    Real,
    /// A duration, as in `30s`.
    Span,
    /// A moment, as in `2026-11-15T10:30:00Z`.
    Time,
    Text,
    /// One of these words.
    Words(&'static [&'static str]),
    /// Settings that belong together.
    Object(&'static [Field]),
    Either(&'static [Kind]),
}

impl Field {
    /// A part of a value that must be there.
    pub(crate) const fn part(name: &'static str, kind: Kind, limit: Limit, help: &'static str) -> Field {
        Field { name, kind, nullable: false, default: || None, limit, help }
    }

    pub fn is_required(&self) -> bool {
        (self.default)().is_none() && !matches!(self.kind, Kind::Object(_))
    }

    /// What it may be, in words.
    pub fn values(&self) -> String {
        let mut text = self.kind.to_string();
        if self.limit != Limit::None {
            let _ = write!(text, ", {}", self.limit);
        }
        if self.nullable {
            text.push_str(", or `null`");
        }
        text
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Switch => f.write_str("`true` or `false`"),
            Kind::Whole => f.write_str("a whole number"),
            Kind::Real => f.write_str("a number"),
            Kind::Span => f.write_str("a duration"),
            Kind::Time => f.write_str("a time"),
            Kind::Text => f.write_str("a text"),
            Kind::Words(words) => list(f, words, |f, word| write!(f, "`{word}`")),
            Kind::Object(fields) => {
                f.write_str("an object of ")?;
                for (index, field) in fields.iter().enumerate() {
                    write!(f, "{}`{}`", separator(index, fields.len(), "and"), field.name)?;
                }
                Ok(())
            }
            Kind::Either(kinds) => list(f, kinds, |f, kind| kind.fmt(f)),
        }
    }
}

fn list<T>(
    f: &mut fmt::Formatter<'_>,
    items: &[T],
    write: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        f.write_str(separator(index, items.len(), "or"))?;
        write(f, item)?;
    }
    Ok(())
}

fn separator(index: usize, count: usize, last: &'static str) -> &'static str {
    match (index, last) {
        (0, _) => "",
        (_, "or") if index + 1 == count => " or ",
        (_, "and") if index + 1 == count => " and ",
        _ => ", ",
    }
}

/// The first setting that has a default, with it: an example of the object.
pub fn example(fields: &[Field]) -> Option<(Field, String)> {
    let with_default = |field: &Field| Some((*field, (field.default)().filter(|text| text != "null")?));
    fields.iter().find_map(with_default)
}

/// A setting with its full name, as in `backoff.min`.
#[derive(Debug, Clone)]
pub struct Row {
    pub name: String,
    pub field: Field,
}

/// Every setting and every part of one, in the order of the table.
pub fn rows(fields: &[Field]) -> Vec<Row> {
    let mut rows = Vec::new();
    collect("", fields, &mut rows);
    rows
}

fn collect(outer: &str, fields: &[Field], rows: &mut Vec<Row>) {
    for field in fields {
        let name = join(outer, field.name);
        rows.push(Row { name: name.clone(), field: *field });
        parts(&name, field.kind, rows);
    }
}

fn parts(name: &str, kind: Kind, rows: &mut Vec<Row>) {
    match kind {
        Kind::Object(fields) => collect(name, fields, rows),
        Kind::Either(kinds) => kinds.iter().for_each(|kind| parts(name, *kind, rows)),
        _ => {}
    }
}

/// The field with that full name.
pub fn find(fields: &[Field], name: &str) -> Option<Field> {
    rows(fields).into_iter().find(|row| row.name == name).map(|row| row.field)
}

/// A table in Markdown, as the pages in `docs/reference` have it.
pub fn markdown(fields: &[Field]) -> String {
    let mut page = String::from("| Setting | Values | Default | Meaning |\n| --- | --- | --- | --- |\n");
    for Row { name, field } in rows(fields) {
        let default = (field.default)().map_or_else(String::new, |default| format!("`{default}`"));
        let _ = writeln!(page, "| `{name}` | {} | {default} | {} |", field.values(), field.help);
    }
    page
}
