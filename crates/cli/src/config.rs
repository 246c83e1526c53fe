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
}

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
    let ConfigCommand::Show(show) = &config.command;
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
