//! How commands reach a server.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use forebay_client::Client;

use crate::exit::Exit;
use crate::failure;
use crate::safe::printable;

/// The variable with the token. It is no argument of its own: other users of the machine see those of a process.
const TOKEN: &str = "FOREBAY_TOKEN";
pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:7070";
/// How long a server may take to accept a connection.
pub(crate) const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Args)]
pub(crate) struct Server {
    /// The server's address.
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADDRESS, env = "FOREBAY_SERVER")]
    pub(crate) server: String,
    /// A file with the token that authenticates the command. FOREBAY_TOKEN has the token itself instead.
    #[arg(long, value_name = "FILE", env = "FOREBAY_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

impl Server {
    /// Host and port, without a leading `http://`.
    pub(crate) fn authority(&self) -> &str {
        self.server.strip_prefix("http://").unwrap_or(&self.server).trim_end_matches('/')
    }

    /// The message for a server that does not answer.
    pub(crate) fn unreachable(&self) -> String {
        let server = printable(&self.server);
        format!(
            "cannot connect; is the server running? --server or FOREBAY_SERVER takes another. server=`{server}`"
        )
    }

    /// The message for an address that cannot be used.
    pub(crate) fn invalid(&self) -> String {
        format!("the address must be HOST:PORT. server=`{}`", printable(&self.server))
    }

    /// The token that authenticates the command, if there is one.
    pub(crate) fn token(&self) -> anyhow::Result<Option<String>> {
        let text = match &self.token_file {
            Some(path) => {
                let shown = printable(&path.display().to_string());
                let text = std::fs::read_to_string(path).context(Exit::NotUnderstood);
                Some(text.with_context(|| format!("cannot read the token in {shown}"))?)
            }
            None => std::env::var(TOKEN).ok(),
        };
        let token = text.map(|text| text.trim().to_owned()).filter(|token| !token.is_empty());
        match token {
            Some(token) if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
                bail!(
                    anyhow::anyhow!(Exit::NotUnderstood)
                        .context("a token must have visible ASCII characters only, in one line")
                )
            }
            token => Ok(token),
        }
    }

    /// Connects the SDK, for a command with this name.
    pub(crate) async fn client(&self, application: &str) -> anyhow::Result<Client> {
        let mut builder =
            Client::builder(&self.server).application(application).connect_timeout(CONNECT_PATIENCE);
        if let Some(token) = self.token()? {
            builder = builder.token(token);
        }
        builder.connect().await.map_err(|error| failure::from_connect(&error, self))
    }
}

pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")
}
