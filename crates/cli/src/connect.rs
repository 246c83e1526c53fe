//! How commands reach a server.

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use forebay_client::Client;

use crate::exit::Exit;
use crate::failure;
use crate::safe::printable;

pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:7070";
/// How long a server may take to accept a connection.
pub(crate) const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Args)]
pub(crate) struct Server {
    /// The server's address.
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADDRESS, env = "FOREBAY_SERVER")]
    pub(crate) server: String,
}

impl Server {
    /// Host and port, without a leading `http://`.
    pub(crate) fn authority(&self) -> &str {
        self.server.strip_prefix("http://").unwrap_or(&self.server).trim_end_matches('/')
    }

    /// The error for a server that does not answer, with the reason of the network.
    pub(crate) fn unreachable(&self, cause: &(dyn std::error::Error + 'static)) -> anyhow::Error {
        let server = printable(self.authority());
        let why = printable(&why_unreachable(cause));
        anyhow!(Exit::Unreachable).context(format!(
            "cannot reach the server at {server}: {why}. Is it running? --server or FOREBAY_SERVER takes another"
        ))
    }

    /// The message for an address that cannot be used.
    pub(crate) fn invalid(&self) -> String {
        format!("the address must be HOST:PORT. server=`{}`", printable(&self.server))
    }

    /// Connects the SDK, for a command with this name.
    pub(crate) async fn client(&self, application: &str) -> anyhow::Result<Client> {
        let connecting = Client::builder(&self.server)
            .application(application)
            .connect_timeout(CONNECT_PATIENCE)
            .connect();
        connecting.await.map_err(|error| failure::from_connect(&error, self))
    }
}

/// The reason of the network, in a few words, from the depth of an error.
fn why_unreachable(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    loop {
        if let Some(io) = last.downcast_ref::<std::io::Error>() {
            match io.kind() {
                ErrorKind::ConnectionRefused => return "connection refused".to_owned(),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => return "connection closed".to_owned(),
                ErrorKind::TimedOut => return "no answer in time".to_owned(),
                ErrorKind::HostUnreachable => return "host unreachable".to_owned(),
                ErrorKind::NetworkUnreachable => return "network unreachable".to_owned(),
                _ if io.to_string().contains("lookup address") => return "unknown host name".to_owned(),
                _ => {}
            }
        }
        match last.source() {
            Some(source) => last = source,
            None => return last.to_string(),
        }
    }
}

pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")
}
