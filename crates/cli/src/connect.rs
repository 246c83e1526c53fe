//! How commands reach a server.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use forebay_client::Client;

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

    /// Connects the SDK, for a command with this name.
    pub(crate) async fn client(&self, application: &str) -> anyhow::Result<Client> {
        let connecting = Client::builder(&self.server)
            .application(application)
            .connect_timeout(CONNECT_PATIENCE)
            .connect();
        connecting.await.map_err(|error| failure::from_connect(&error, self))
    }
}

pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")
}
