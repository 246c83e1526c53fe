//! The settings file: TOML, one `name = value` a line. A name that no setting has is an error that says where
//! it stands, so that a typing mistake never passes in silence.

use anyhow::{anyhow, bail};
use toml::de::{DeTable, DeValue};

use super::{SETTINGS, Setting, similar};
use crate::safe::printable;

pub(super) struct Line {
    pub(super) name: &'static str,
    pub(super) text: String,
    pub(super) line: usize,
}

pub(super) fn read(text: &str) -> anyhow::Result<Vec<Line>> {
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        anyhow!("{}. line=`{line}`", error.message())
    })?;
    let mut lines = Vec::new();
    for (key, value) in table.into_inner() {
        let line = line_of(text, key.span().start);
        let Some(setting) = SETTINGS.iter().find(|setting| setting.name == key.get_ref().as_ref()) else {
            let name = printable(key.get_ref());
            let like = similar::setting_like(key.get_ref());
            let like = like.map(|like| format!("; the nearest is `{like}`")).unwrap_or_default();
            bail!(
                "there is no such setting{like}; `forebay config show` lists all. key=`{name}` line=`{line}`"
            );
        };
        let text = match value.into_inner() {
            DeValue::String(text) => text.into_owned(),
            DeValue::Boolean(value) => value.to_string(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().replace('_', ""),
            _ => bail!("{} key=`{}` line=`{line}`", expected(setting), setting.name),
        };
        if let Err(wrong) = setting.check(&text) {
            bail!(
                "{wrong}. key=`{}` value=`{}` line=`{line}`",
                setting.name,
                printable(&setting.shown(&text))
            );
        }
        lines.push(Line { name: setting.name, text, line });
    }
    Ok(lines)
}

fn expected(setting: &Setting) -> &'static str {
    match setting.value {
        Some(_) => "the value must be text or a whole number.",
        None => "the value must be true or false.",
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1
}
