//! `forebay config show`: each setting of the server, its value, and where that came from.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::print::{Output, Table, print};
use crate::settings::{self, Origin, Sources};

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
}

const CHECK_EXAMPLES: &str = "\
Takes the same flags as `forebay serve`. Exits with 2 if the server would not start with these settings, and prints
remarks on those that an operator should know of.

Examples:
  forebay config check
  forebay config check --config /etc/forebay/forebay.toml";

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
    };
    let given = settings::gather(&show.sources, |name| std::env::var(name).ok())?;
    settings::settle(&given)?;
    match output {
        Output::Text => {
            let mut table = Table::new(&["SETTING", "VALUE", "FROM"]);
            for one in &given {
                table.row([one.setting.name, &one.text, &one.origin.to_string()]);
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
                    let mut entry = json!({ "name": one.setting.name, "value": one.text, "from": from });
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
