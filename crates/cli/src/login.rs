//! `forebay login`: keeps a server and a token for later commands.

use std::io::{IsTerminal as _, Read as _};

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::json;

use crate::connect::Server;
use crate::exit::{Exit, say};
use crate::http;
use crate::print::{Output, print};
use crate::profile::{self, Profile};
use crate::safe::printable;

pub(crate) const EXAMPLES: &str = "\
The token is read from --token-file, FOREBAY_TOKEN or the standard input. The profile is
~/.config/forebay/profile.toml, which only its owner can read; FOREBAY_PROFILE names another file. Flags and variables
count before the profile, and its token is sent to its own server only.

Examples:
  forebay login --server https://queue.example.com:7070 --token-file my.token
  forebay login --server https://localhost:7070 --ca cert.pem < my.token
  forebay login --forget";

#[derive(Debug, Args)]
pub(crate) struct Login {
    /// Forget the server and the token.
    #[arg(long)]
    forget: bool,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(login: &Login, output: Output) -> anyhow::Result<()> {
    if login.forget {
        let path = profile::save(&Profile::default())?;
        return told(output, "forgot", &path);
    }
    let token = match login.server.given_token()? {
        Some(token) => token,
        None => from_input()?,
    };
    let ca =
        login.server.ca.as_ref().map(std::path::absolute).transpose().context("cannot name the CA file")?;
    let server = Server { token: Some(token.clone()), ..login.server.clone() };
    // A token without any right is known too.
    http::with(&server, async |http| http.get("/openapi.json").await.map(drop))?;
    let profile = Profile { server: Some(server.server.clone()), token: Some(token), ca };
    told(output, "saved", &profile::save(&profile)?)
}

fn told(output: Output, what: &str, path: &std::path::Path) -> anyhow::Result<()> {
    let path = printable(&path.display().to_string());
    match output {
        Output::Text => {
            say(&format!("{what}: {path}"));
            Ok(())
        }
        Output::Json => print(&format!("{}\n", json!({ "profile": path }))),
    }
}

fn from_input() -> anyhow::Result<String> {
    if std::io::stdin().is_terminal() {
        say("paste the token, then Enter and Ctrl-D");
    }
    let mut text = String::new();
    std::io::stdin().take(4_096).read_to_string(&mut text).context("cannot read the token")?;
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        bail!(
            anyhow::anyhow!(Exit::NotUnderstood)
                .context("a token must have visible ASCII characters only, in one line")
        );
    }
    Ok(token.to_owned())
}
