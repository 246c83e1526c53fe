//! `forebay config`: each setting of the server, its value and where that came from; and a file to begin with.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use clap::{Args, Subcommand};
use serde_json::json;

use crate::exit::{Exit, say};
use crate::print::{Output, Table, print};
use crate::safe::printable;
use crate::settings::{self, Origin, SETTINGS, Sources};

#[derive(Debug, Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Show each setting of `forebay serve`, its value and where the value came from.
    #[command(after_help = EXAMPLES)]
    Show(Show),
    /// Check the settings of `forebay serve`, with the files that they name, and start nothing.
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Show),
    /// Write a settings file with every setting of `forebay serve`, its meaning and its default, commented out.
    #[command(after_help = INIT_EXAMPLES)]
    Init {
        /// The file to write. `-` is the standard output.
        #[arg(value_name = "FILE", default_value = "forebay.toml")]
        file: PathBuf,
    },
}

const CHECK_EXAMPLES: &str = "\
Takes the same flags as `forebay serve`. Exits with 2 if the server would not start with these settings, and prints
remarks on those that an operator should know of.

Examples:
  forebay config check
  forebay config check --config /etc/forebay/forebay.toml";

const INIT_EXAMPLES: &str = "\
An existing file is never replaced.

Examples:
  forebay config init
  forebay config init /etc/forebay/forebay.toml
  forebay serve --config forebay.toml";

const EXAMPLES: &str = "\
Takes the same flags as `forebay serve`, and starts nothing. A value comes from the first place that has one:
flag, environment, settings file, default.

Examples:
  forebay config show
  forebay config show --config forebay.toml
  FOREBAY_LISTEN=127.0.0.1:7171 forebay config show -o json";

#[derive(Debug, Args)]
struct Show {
    #[command(flatten)]
    sources: Sources,
}

pub(crate) fn run(config: &Config, output: Output) -> anyhow::Result<()> {
    let show = match &config.command {
        ConfigCommand::Show(show) => show,
        ConfigCommand::Check(check) => return self::check(check, output),
        ConfigCommand::Init { file } => return init(file),
    };
    let given = settings::gather(&show.sources, |name| std::env::var(name).ok())?;
    settings::settle(&given)?;
    match output {
        Output::Text => {
            let mut table = Table::new(&["SETTING", "VALUE", "FROM"]);
            for one in &given {
                table.row([one.setting.name, &one.setting.shown(&one.text), &one.origin.to_string()]);
            }
            table.print()
        }
        Output::Json => {
            let settings: Vec<_> = given
                .iter()
                .map(|one| {
                    let from = match &one.origin {
                        Origin::Flag(_) => "flag",
                        Origin::Environment(_) => "environment",
                        Origin::File { .. } => "file",
                        Origin::Default => "default",
                    };
                    let value = one.setting.shown(&one.text);
                    let mut entry = json!({ "name": one.setting.name, "value": value, "from": from });
                    match &one.origin {
                        Origin::Flag(name) | Origin::Environment(name) => entry["given_as"] = json!(name),
                        Origin::File { path, line } => {
                            entry["file"] = json!(path.display().to_string());
                            entry["line"] = json!(line);
                        }
                        Origin::Default => {}
                    }
                    entry
                })
                .collect();
            print(&format!("{}\n", json!({ "settings": settings })))
        }
    }
}

fn check(check: &Show, output: Output) -> anyhow::Result<()> {
    let given = settings::gather(&check.sources, |name| std::env::var(name).ok())?;
    let remarks = crate::serve::check(&settings::settle(&given)?)?;
    match output {
        Output::Text if remarks.is_empty() => print("the settings are good\n"),
        Output::Text => {
            let lines: String = remarks.iter().map(|remark| format!("{remark}\n")).collect();
            print(&lines)
        }
        Output::Json => print(&format!("{}\n", json!({ "remarks": remarks }))),
    }
}

fn init(file: &Path) -> anyhow::Result<()> {
    let text = sample();
    if file.as_os_str() == "-" {
        return print(&text);
    }
    let shown = printable(&file.display().to_string());
    let mut new = match std::fs::File::create_new(file) {
        Ok(new) => new,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            return Err(anyhow!(Exit::Conflict).context(format!("{shown} exists, and was not changed")));
        }
        Err(error) => return Err(error).with_context(|| format!("cannot write {shown}")),
    };
    new.write_all(text.as_bytes()).with_context(|| format!("cannot write {shown}"))?;
    say(&format!("wrote {shown}; `forebay serve --config {shown}` uses it"));
    Ok(())
}

/// Every setting with its default, as comments.
fn sample() -> String {
    let mut text =
        "# Settings of `forebay serve`. A flag or a FOREBAY_* variable counts before this file.\n".to_owned();
    for setting in SETTINGS {
        text.push_str(&format!("\n# {}.\n", setting.help.trim_end_matches('.')));
        let value = match setting.value {
            Some(_) => format!("\"{}\"", setting.default),
            None => setting.default.to_owned(),
        };
        text.push_str(&format!("# {} = {value}\n", setting.name));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_a_settings_file_and_names_every_setting() {
        let text = sample();
        for setting in SETTINGS {
            let line = text.lines().find(|line| line.starts_with(&format!("# {} = ", setting.name)));
            let line = line.unwrap_or_else(|| panic!("{} is missing", setting.name));
            let read = settings::read_text(line.trim_start_matches("# "));
            assert_eq!(read.expect("it is read"), 1, "{line}");
        }
        assert_eq!(settings::read_text(&text).expect("comments alone are a file"), 0);
    }
}
