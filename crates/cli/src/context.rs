//! `forebay context`: names for servers, and which of them commands use.
//!
//! They are in `forebay/contexts.toml` in the user's configuration folder:
//!
//! ```toml
//! current = "staging"
//!
//! [servers]
//! local = "127.0.0.1:7070"
//! staging = "queue-1.example.com:7070,queue-2.example.com:7070"
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use toml::de::{DeTable, DeValue};

use crate::connect::{Addresses, addresses};
use crate::exit::{Exit, say};
use crate::print::{Output, Table, print};
use crate::safe::printable;

/// The longest name of a context.
const NAME_CHARS_MAX: usize = 64;

#[derive(Debug, Args)]
pub(crate) struct Context {
    #[command(subcommand)]
    command: ContextCommand,
}

#[derive(Debug, Subcommand)]
enum ContextCommand {
    /// List the contexts. A star marks the current one.
    #[command(visible_alias = "ls", after_help = LIST_EXAMPLES)]
    List,
    /// Add a context, or change its address.
    #[command(after_help = ADD_EXAMPLES)]
    Add {
        /// Letters, digits, `-`, `_` and `.`.
        name: String,
        /// HOST or HOST:PORT; several with commas.
        #[arg(value_parser = addresses)]
        address: Addresses,
    },
    /// Make a context the current one, which commands use without --server.
    #[command(after_help = USE_EXAMPLES)]
    Use {
        /// The context.
        name: String,
    },
    /// Remove a context. Nothing happens to its server.
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove {
        /// The context.
        name: String,
    },
}

const LIST_EXAMPLES: &str = "\
Examples:
  forebay context list";

const ADD_EXAMPLES: &str = "\
Examples:
  forebay context add staging queue.example.com
  forebay context add live queue-1.example.com,queue-2.example.com:7171";

const USE_EXAMPLES: &str = "\
Examples:
  forebay context use staging
  forebay --context live group list      for one command only";

const REMOVE_EXAMPLES: &str = "\
Examples:
  forebay context remove staging";

#[derive(Debug, Default, PartialEq)]
struct Contexts {
    current: Option<String>,
    servers: BTreeMap<String, Addresses>,
}

pub(crate) fn run(options: &Context, output: Output) -> anyhow::Result<()> {
    let path = path().context("there is no home folder to keep contexts in; set XDG_CONFIG_HOME")?;
    let mut contexts = Contexts::load(&path)?;
    let said = match &options.command {
        ContextCommand::List => return list(&contexts, output),
        ContextCommand::Add { name, address } => {
            check_name(name)?;
            let first = contexts.servers.is_empty();
            contexts.servers.insert(name.clone(), address.clone());
            if first {
                contexts.current = Some(name.clone());
            }
            format!("added the context {name} for {}", address.text())
        }
        ContextCommand::Use { name } => {
            contexts.server(name)?;
            contexts.current = Some(name.clone());
            format!("the current context is {name}")
        }
        ContextCommand::Remove { name } => {
            contexts.server(name)?;
            contexts.servers.remove(name);
            contexts.current = contexts.current.filter(|current| current != name);
            format!("removed the context {name}")
        }
    };
    contexts.store(&path)?;
    match output {
        Output::Json => print(&format!("{}\n", contexts.json())),
        Output::Text => {
            say(&said);
            Ok(())
        }
    }
}

fn list(contexts: &Contexts, output: Output) -> anyhow::Result<()> {
    if output == Output::Json {
        return print(&format!("{}\n", contexts.json()));
    }
    if contexts.servers.is_empty() {
        say("there are no contexts yet; `forebay context add NAME ADDRESS` adds one");
    }
    let mut table = Table::new(&["", "CONTEXT", "SERVER"]);
    for (name, addresses) in &contexts.servers {
        let mark = if contexts.current.as_ref() == Some(name) { "*" } else { "" };
        table.row([mark.to_owned(), name.clone(), addresses.text()]);
    }
    table.print()
}

/// The server of a context.
pub(crate) fn of(name: &str) -> anyhow::Result<Addresses> {
    let contexts = path().map(|path| Contexts::load(&path)).transpose()?.unwrap_or_default();
    contexts.server(name).cloned()
}

/// The server of the current context, if there is one.
pub(crate) fn current() -> anyhow::Result<Option<Addresses>> {
    let Some(path) = path() else { return Ok(None) };
    let contexts = Contexts::load(&path)?;
    contexts.current.as_deref().map(|name| contexts.server(name).cloned()).transpose()
}

fn path() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).filter(|text| !text.is_empty()).map(PathBuf::from);
    let config = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(config.join("forebay").join("contexts.toml"))
}

fn check_name(name: &str) -> anyhow::Result<()> {
    let may_be = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(may_be) {
        return Err(anyhow!(Exit::NotUnderstood).context(format!(
            "the name of a context must be 1 to {NAME_CHARS_MAX} letters, digits, `-`, `_` or `.`. name=`{}`",
            printable(name)
        )));
    }
    Ok(())
}

impl Contexts {
    fn load(path: &std::path::Path) -> anyhow::Result<Contexts> {
        let shown = printable(&path.display().to_string());
        match std::fs::read_to_string(path) {
            Ok(text) => Contexts::read(&text)
                .context(Exit::NotUnderstood)
                .with_context(|| format!("the file of contexts {shown} cannot be understood")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Contexts::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {shown}")),
        }
    }

    fn read(text: &str) -> anyhow::Result<Contexts> {
        let table = DeTable::parse(text).map_err(|error| anyhow!("{}", error.message()))?;
        let mut contexts = Contexts::default();
        for (key, value) in table.into_inner() {
            match (key.get_ref().as_ref(), value.into_inner()) {
                ("current", DeValue::String(name)) => contexts.current = Some(name.into_owned()),
                ("servers", DeValue::Table(servers)) => {
                    for (name, address) in servers {
                        let name = name.get_ref().to_string();
                        let DeValue::String(text) = address.into_inner() else {
                            bail!("the address must be text. context=`{}`", printable(&name));
                        };
                        let found = addresses(&text).map_err(|wrong| anyhow!("{wrong}"))?;
                        contexts.servers.insert(name, found);
                    }
                }
                (other, _) => bail!("expected `current` and `[servers]`. key=`{}`", printable(other)),
            }
        }
        Ok(contexts)
    }

    fn store(&self, path: &std::path::Path) -> anyhow::Result<()> {
        let shown = printable(&path.display().to_string());
        let written = || {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            let new = path.with_extension("toml.new");
            std::fs::write(&new, self.text())?;
            std::fs::rename(&new, path)
        };
        written().with_context(|| format!("cannot write {shown}"))
    }

    fn text(&self) -> String {
        let mut text = String::new();
        if let Some(current) = &self.current {
            text.push_str(&format!("current = \"{current}\"\n\n"));
        }
        text.push_str("[servers]\n");
        for (name, addresses) in &self.servers {
            text.push_str(&format!("\"{name}\" = \"{}\"\n", addresses.text()));
        }
        text
    }

    fn json(&self) -> serde_json::Value {
        let servers: BTreeMap<&String, String> =
            self.servers.iter().map(|(name, addresses)| (name, addresses.text())).collect();
        json!({ "current": self.current, "servers": servers })
    }

    fn server(&self, name: &str) -> anyhow::Result<&Addresses> {
        self.servers.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.servers.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            anyhow!(Exit::NotFound)
                .context(format!("there is no context {}. contexts=`{known}`", printable(name)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_survive_the_round_trip() {
        let mut contexts = Contexts { current: Some("live.eu".to_owned()), servers: BTreeMap::new() };
        contexts.servers.insert("live.eu".to_owned(), addresses("a,b:1").expect("addresses"));
        contexts.servers.insert("local".to_owned(), addresses("127.0.0.1").expect("an address"));
        let again = Contexts::read(&contexts.text()).expect("it is read");
        assert_eq!(again, contexts);
        assert!(contexts.server("other").is_err_and(|error| format!("{error:#}").contains("live.eu, local")));
        for (text, said) in [
            ("[servers]\na = 5", "context=`a`"),
            ("[servers]\na = \"https://b\"", "TLS"),
            ("color = \"red\"", "key=`color`"),
        ] {
            let wrong = Contexts::read(text).expect_err("it is wrong");
            assert!(format!("{wrong:#}").contains(said), "{wrong:#}");
        }
    }
}
