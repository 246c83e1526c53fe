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
//!
//! [servers.live]
//! address = "https://queue.example.com:7070"
//! ca = "/etc/forebay/ca.pem"
//! token = "fby_..."
//! ```
//!
//! Only its owner can read the file. The CA and the token of a context go with its own addresses only.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use toml::de::{DeTable, DeValue};

use crate::connect::{Addresses, Server, Token, addresses};
use crate::exit::{Exit, say};
use crate::print::{Output, Table, print};
use crate::safe::printable;

const NO_FOLDER: &str = "there is no home folder to keep contexts in; set XDG_CONFIG_HOME";
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
    /// Add a context, or change its address. --ca names the certificates of a server with an https address.
    #[command(after_help = ADD_EXAMPLES)]
    Add {
        /// Letters, digits, `-`, `_` and `.`.
        name: String,
        /// HOST, HOST:PORT or https://HOST:PORT; several with commas.
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
  forebay context add live queue-1.example.com,queue-2.example.com:7171
  forebay context add lab https://queue.lab.example.com --ca lab-ca.pem

`forebay login` adds a token.";

const USE_EXAMPLES: &str = "\
Examples:
  forebay context use staging
  forebay --context live group list      for one command only";

const REMOVE_EXAMPLES: &str = "\
Examples:
  forebay context remove staging";

/// A server that has a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) addresses: Addresses,
    /// The file with the certificates by which the server is recognised.
    pub(crate) ca: Option<PathBuf>,
    pub(crate) token: Option<Token>,
}

impl Known {
    /// A server of which only the addresses are known.
    pub(crate) fn at(addresses: Addresses) -> Known {
        Known { addresses, ca: None, token: None }
    }
}

#[derive(Debug, Default, PartialEq)]
struct Contexts {
    current: Option<String>,
    servers: BTreeMap<String, Known>,
}

pub(crate) fn run(options: &Context, server: &Server, output: Output) -> anyhow::Result<()> {
    let is_add = matches!(options.command, ContextCommand::Add { .. });
    if (Server { ca: None, ..server.clone() }).is_given() || (server.ca.is_some() && !is_add) {
        return Err(anyhow!(Exit::NotUnderstood)
            .context("of the flags about servers only --ca has a meaning here, for `context add`"));
    }
    let path = path().context(NO_FOLDER)?;
    let mut contexts = Contexts::load(&path)?;
    let said = match &options.command {
        ContextCommand::List => return list(&contexts, output),
        ContextCommand::Add { name, address } => {
            check_name(name)?;
            let ca = server.ca.as_ref().map(std::path::absolute).transpose();
            let ca = ca.context("cannot name the file of the CA")?;
            let before = contexts.servers.remove(name).filter(|known| known.addresses == *address);
            // A token is for the server that it was kept for.
            let (ca_before, token) = before.map_or((None, None), |known| (known.ca, known.token));
            let known = Known { addresses: address.clone(), ca: ca.or(ca_before), token };
            let first = contexts.servers.is_empty() && contexts.current.is_none();
            contexts.servers.insert(name.clone(), known);
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
    let mut table = Table::new(&["", "CONTEXT", "SERVER", "TOKEN"]);
    for (name, known) in &contexts.servers {
        let mark = if contexts.current.as_ref() == Some(name) { "*" } else { "" };
        let token = if known.token.is_some() { "yes" } else { "-" };
        table.row([mark.to_owned(), name.clone(), known.addresses.text(), token.to_owned()]);
    }
    table.print()
}

fn load() -> anyhow::Result<Contexts> {
    Ok(path().map(|path| Contexts::load(&path)).transpose()?.unwrap_or_default())
}

/// The server of a context.
pub(crate) fn of(name: &str) -> anyhow::Result<Known> {
    load()?.server(name).cloned()
}

/// The server of the current context, if there is one.
pub(crate) fn current() -> anyhow::Result<Option<Known>> {
    let contexts = load()?;
    contexts.current.as_deref().map(|name| contexts.server(name).cloned()).transpose()
}

/// The server at these addresses, with the rest of the context that has exactly these: of the current one before
/// others.
pub(crate) fn at(addresses: &Addresses) -> anyhow::Result<Known> {
    let contexts = load()?;
    let current = contexts.current.as_ref().and_then(|name| contexts.servers.get(name));
    let found = current.into_iter().chain(contexts.servers.values()).find(|one| one.addresses == *addresses);
    Ok(found.cloned().unwrap_or_else(|| Known::at(addresses.clone())))
}

/// The name of the current context, if this address is one of its addresses.
pub(crate) fn current_name_of(authority: &str) -> Option<String> {
    let contexts = load().ok()?;
    let name = contexts.current.clone()?;
    contexts.servers.get(&name)?.addresses.has(authority).then_some(name)
}

/// The name of the current context.
pub(crate) fn current_name() -> anyhow::Result<Option<String>> {
    Ok(load()?.current)
}

/// Keeps a server under a name, and makes it the current context. Returns the file that it is kept in.
pub(crate) fn keep(name: &str, known: Known) -> anyhow::Result<PathBuf> {
    check_name(name)?;
    let path = path().context(NO_FOLDER)?;
    let mut contexts = Contexts::load(&path)?;
    contexts.servers.insert(name.to_owned(), known);
    contexts.current = Some(name.to_owned());
    contexts.store(&path)?;
    Ok(path)
}

/// Forgets the token of a context. Returns the file that it was kept in.
pub(crate) fn forget_token(name: &str) -> anyhow::Result<PathBuf> {
    let path = path().context(NO_FOLDER)?;
    let mut contexts = Contexts::load(&path)?;
    let mut known = contexts.server(name)?.clone();
    known.token = None;
    contexts.servers.insert(name.to_owned(), known);
    contexts.store(&path)?;
    Ok(path)
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
    fn load(path: &Path) -> anyhow::Result<Contexts> {
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
                    for (name, value) in servers {
                        let name = name.get_ref().to_string();
                        let known = read_known(value.into_inner())
                            .with_context(|| format!("the context {} is wrong", printable(&name)))?;
                        contexts.servers.insert(name, known);
                    }
                }
                (other, _) => bail!("expected `current` and `[servers]`. key=`{}`", printable(other)),
            }
        }
        Ok(contexts)
    }

    fn store(&self, path: &Path) -> anyhow::Result<()> {
        let shown = printable(&path.display().to_string());
        let written = || {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            let new = path.with_extension("toml.new");
            let _ = std::fs::remove_file(&new);
            // It may have tokens.
            let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(self.text().as_bytes())?;
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
        // A text in JSON is a text in TOML.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let mut tables = String::new();
        for (name, Known { addresses, ca, token }) in &self.servers {
            let address = quoted(&addresses.text());
            if ca.is_none() && token.is_none() {
                text.push_str(&format!("\"{name}\" = {address}\n"));
                continue;
            }
            tables.push_str(&format!("\n[servers.\"{name}\"]\naddress = {address}\n"));
            if let Some(ca) = ca {
                tables.push_str(&format!("ca = {}\n", quoted(&ca.display().to_string())));
            }
            if let Some(Token(token)) = token {
                tables.push_str(&format!("token = {}\n", quoted(token)));
            }
        }
        text + &tables
    }

    fn json(&self) -> serde_json::Value {
        let servers: BTreeMap<&String, String> =
            self.servers.iter().map(|(name, known)| (name, known.addresses.text())).collect();
        json!({ "current": self.current, "servers": servers })
    }

    fn server(&self, name: &str) -> anyhow::Result<&Known> {
        self.servers.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.servers.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            anyhow!(Exit::NotFound).context(format!(
                "there is no context {}. `forebay context add NAME ADDRESS` adds one. contexts=`{known}`",
                printable(name)
            ))
        })
    }
}

/// The value of a context: an address, or a table.
fn read_known(value: DeValue<'_>) -> anyhow::Result<Known> {
    let parsed = |text: &str| addresses(text).map_err(|wrong| anyhow!("{wrong}"));
    let table = match value {
        DeValue::String(text) => return Ok(Known::at(parsed(&text)?)),
        DeValue::Table(table) => table,
        _ => bail!("expected an address, or a table with `address`, `ca` and `token`"),
    };
    let (mut found, mut ca, mut token) = (None, None, None);
    for (key, value) in table {
        let (key, DeValue::String(text)) = (key.get_ref().to_string(), value.into_inner()) else {
            bail!("`address`, `ca` and `token` must be text");
        };
        match &*key {
            "address" => found = Some(parsed(&text)?),
            "ca" => ca = Some(Path::new(&*text).to_owned()),
            "token" => token = Token::parse(&text)?,
            other => bail!("expected `address`, `ca` and `token`. key=`{}`", printable(other)),
        }
    }
    Ok(Known { addresses: found.context("`address` is missing")?, ca, token })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_survive_the_round_trip() {
        let mut contexts = Contexts { current: Some("live.eu".to_owned()), servers: BTreeMap::new() };
        let at = |text: &str| Known::at(addresses(text).expect("addresses"));
        contexts.servers.insert("live.eu".to_owned(), at("a,b:1"));
        contexts.servers.insert("local".to_owned(), at("127.0.0.1"));
        let token = Token::parse("fby_\"quoted\"").expect("a token");
        let safe = Known { ca: Some("/etc/a \"ca\".pem".into()), token, ..at("https://c") };
        contexts.servers.insert("safe".to_owned(), safe);
        let again = Contexts::read(&contexts.text()).expect("it is read");
        assert_eq!(again, contexts);
        assert!(
            contexts
                .server("other")
                .is_err_and(|error| format!("{error:#}").contains("live.eu, local, safe"))
        );
        for (text, said) in [
            ("[servers]\na = 5", "the context a is wrong"),
            ("[servers]\na = \"redis://b\"", "scheme=`redis`"),
            ("[servers.a]\nca = \"x\"", "`address` is missing"),
            ("[servers.a]\naddress = \"b\"\ncolor = \"red\"", "key=`color`"),
            ("color = \"red\"", "key=`color`"),
        ] {
            let wrong = Contexts::read(text).expect_err("it is wrong");
            assert!(format!("{wrong:#}").contains(said), "{wrong:#}");
        }
    }
}
