//! `--name value` pairs, each taken by the code that knows it, and a few names that stand alone.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

/// Names that stand alone. Their value is `true`.
const ALONE: [&str; 1] = ["quick"];

/// The folder for files, wherever it is.
const DATA: &str = "forebay-bench-data";

#[derive(Debug, Default)]
pub(crate) struct Arguments(BTreeMap<String, String>);

impl Arguments {
    pub(crate) fn parse(words: &[String]) -> Result<Arguments, String> {
        let mut pairs = BTreeMap::new();
        let mut rest = words.iter();
        while let Some(name) = rest.next() {
            let bare = name.strip_prefix("--").ok_or_else(|| format!("not understood. argument=`{name}`"))?;
            let value =
                if ALONE.contains(&bare) { "true" } else { rest.next().ok_or_else(|| needs_value(name))? };
            if pairs.insert(bare.to_owned(), value.to_owned()).is_some() {
                return Err(format!("{name} is given twice"));
            }
        }
        Ok(Arguments(pairs))
    }

    /// The value of `--name`, if it was given. Asking takes it, so that options left at the end are unknown.
    pub(crate) fn take<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, String> {
        let Some(text) = self.0.remove(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| format!("--{name} cannot be this. value=`{text}`"))
    }

    /// A number above zero.
    pub(crate) fn number(&mut self, name: &str, default: u64) -> Result<u64, String> {
        match self.take(name)?.unwrap_or(default) {
            0 => Err(format!("--{name} must be above zero")),
            number => Ok(number),
        }
    }

    pub(crate) fn seconds(&mut self, default: f64) -> Result<f64, String> {
        let seconds = self.take("seconds")?.unwrap_or(default);
        if seconds > 0.0 { Ok(seconds) } else { Err("--seconds must be above zero".to_owned()) }
    }

    /// Where to put files: a folder in what `--dir` says, or beside the program itself, which is in the build
    /// folder. It has no other user, and is deleted at the end.
    pub(crate) fn folder(&mut self) -> Result<PathBuf, String> {
        if let Some(folder) = self.take::<PathBuf>("dir")? {
            return Ok(folder.join(DATA));
        }
        let program = std::env::current_exe().map_err(|error| format!("where is this program? {error}"))?;
        Ok(program.with_file_name(DATA))
    }

    pub(crate) fn finish(self) -> Result<(), String> {
        match self.0.into_keys().next() {
            None => Ok(()),
            Some(name) => Err(format!("this bench does not take that. argument=`--{name}`")),
        }
    }
}

fn needs_value(name: &str) -> String {
    format!("{name} needs a value")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        Arguments::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_not_asked_for_is_refused() {
        let mut arguments = parse("--batch 8 --fast 1").expect("pairs");
        assert_eq!(arguments.number("batch", 64), Ok(8));
        assert_eq!(arguments.number("count", 7), Ok(7));
        assert_eq!(arguments.finish(), Err("this bench does not take that. argument=`--fast`".to_owned()));
    }

    #[test]
    fn some_names_stand_alone() {
        let mut arguments = parse("--quick --batch 8").expect("a name and a pair");
        assert_eq!(arguments.take("quick"), Ok(Some(true)));
        assert_eq!(arguments.number("batch", 64), Ok(8));
        assert_eq!(arguments.finish(), Ok(()));
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(parse("batch 8").err(), Some("not understood. argument=`batch`".to_owned()));
        assert_eq!(parse("--batch").err(), Some("--batch needs a value".to_owned()));
        assert_eq!(parse("--batch 1 --batch 2").err(), Some("--batch is given twice".to_owned()));
        let mut arguments = parse("--batch few --count 0").expect("pairs");
        assert_eq!(arguments.number("batch", 1), Err("--batch cannot be this. value=`few`".to_owned()));
        assert_eq!(arguments.number("count", 1), Err("--count must be above zero".to_owned()));
    }
}
