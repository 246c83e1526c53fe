//! `forebay login`: keeps a server and a token for later commands, as a context.

use std::io::{IsTerminal as _, Read as _};

use anyhow::{Context as _, anyhow};
use clap::Args;
use serde_json::json;

use crate::connect::{Server, Token};
use crate::context::{self, Known};
use crate::exit::{Exit, say};
use crate::http;
use crate::print::{Output, print};
use crate::safe::printable;

pub(crate) const EXAMPLES: &str = "\
The token is read from --token-file, FOREBAY_TOKEN or the standard input, and tried. Server, CA and token are kept as a
context, which becomes the current one, in forebay/contexts.toml in $XDG_CONFIG_HOME or ~/.config. Only its owner can
read the file. The token is sent to the addresses of its context only.

Examples:
  forebay login --server https://queue.example.com:7070 --token-file my.token
  forebay login lab --server https://localhost:7070 --ca cert.pem < my.token
  forebay login --context lab < new.token
  forebay login --forget";

/// The context of a server that was given without a name.
const DEFAULT_NAME: &str = "default";

#[derive(Debug, Args)]
pub(crate) struct Login {
    /// The context to keep them in. Default: the one that is used, or `default` for a server that --server names.
    name: Option<String>,
    /// Forget the token of the context.
    #[arg(long)]
    forget: bool,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(login: &Login, output: Output) -> anyhow::Result<()> {
    let name = name_of(login)?;
    if login.forget {
        return told(output, "forgot the token", &name, &context::forget_token(&name)?);
    }
    let token = match login.server.given_token()? {
        Some(token) => token,
        None => from_input()?,
    };
    let ca = login.server.ca.as_ref().map(std::path::absolute).transpose();
    let ca = ca.context("cannot name the file of the CA")?;
    let server = Server { token: Some(token.clone()), ..login.server.clone() };
    // A token without any right is known too.
    http::with(&server, async |http| http.get("/openapi.json").await.map(drop))?;
    let known = server.known()?;
    let known = Known { token: Some(token), ca: ca.or(known.ca), addresses: known.addresses };
    told(output, "saved", &name, &context::keep(&name, known)?)
}

/// The context that is meant.
fn name_of(login: &Login) -> anyhow::Result<String> {
    let of_server = || match login.server.server.is_some() || std::env::var_os("FOREBAY_SERVER").is_some() {
        true => Ok(None),
        false => context::current_name(),
    };
    match login.name.clone().or_else(|| login.server.context.clone()) {
        Some(name) => Ok(name),
        None => Ok(of_server()?.unwrap_or_else(|| DEFAULT_NAME.to_owned())),
    }
}

fn told(output: Output, what: &str, name: &str, path: &std::path::Path) -> anyhow::Result<()> {
    let path = printable(&path.display().to_string());
    match output {
        Output::Text => {
            say(&format!("{what}: context {name} in {path}"));
            Ok(())
        }
        Output::Json => print(&format!("{}\n", json!({ "context": name, "file": path }))),
    }
}

fn from_input() -> anyhow::Result<Token> {
    if std::io::stdin().is_terminal() {
        say("paste the token, then Enter and Ctrl-D");
    }
    let mut text = String::new();
    std::io::stdin().take(4_096).read_to_string(&mut text).context("cannot read the token")?;
    Token::parse(&text)?.ok_or_else(|| anyhow!(Exit::NotUnderstood).context(
        "the token is read from the standard input, and nothing was there; --token-file and FOREBAY_TOKEN name it too",
    ))
}
