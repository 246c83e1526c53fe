//! How commands reach a server.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use forebay_wire::v1::forebay_client::ForebayClient;
use tonic::transport::{Channel, Endpoint};

use crate::exit::Exit;
use crate::safe::printable;

pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:7070";
/// How long a server may take to accept a connection.
pub(crate) const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// What one reply may hold: as many messages as fit the largest credit.
const REPLY_BYTES_MAX: usize = 64 << 20;
/// What may be under way to this side, on a call and on all calls of a connection.
const STREAM_WINDOW: u32 = 1 << 20;
const WINDOW: u32 = 4 << 20;
/// The longest frame of HTTP/2 that may come.
const FRAME_MAX: u32 = 256 << 10;

#[derive(Debug, Clone, Args)]
pub(crate) struct Server {
    /// The server's address.
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_ADDRESS, env = "FOREBAY_SERVER")]
    pub(crate) server: String,
}

impl Server {
    /// Host and port, without the `http://` that people may write before them.
    pub(crate) fn authority(&self) -> &str {
        self.server.strip_prefix("http://").unwrap_or(&self.server).trim_end_matches('/')
    }

    /// What to say when nobody answers.
    pub(crate) fn unreachable(&self) -> String {
        let server = printable(&self.server);
        format!(
            "cannot connect; is the server running? --server or FOREBAY_SERVER takes another. server=`{server}`"
        )
    }
}

pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")
}

pub(crate) async fn grpc(server: &Server) -> anyhow::Result<ForebayClient<Channel>> {
    open(server, endpoint(server)?).await
}

/// For much at a time: nobody has to wait until the other side says that it has read.
pub(crate) async fn wide_grpc(server: &Server) -> anyhow::Result<ForebayClient<Channel>> {
    let endpoint = endpoint(server)?;
    let wide = endpoint
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(FRAME_MAX);
    open(server, wide).await
}

fn endpoint(server: &Server) -> anyhow::Result<Endpoint> {
    Channel::from_shared(format!("http://{}", server.authority())).context(Exit::NotUnderstood).with_context(
        || format!("that is no address; expected HOST:PORT. server=`{}`", printable(&server.server)),
    )
}

async fn open(server: &Server, endpoint: Endpoint) -> anyhow::Result<ForebayClient<Channel>> {
    let channel = endpoint
        .connect_timeout(CONNECT_PATIENCE)
        .connect()
        .await
        .context(Exit::Unreachable)
        .with_context(|| server.unreachable())?;
    Ok(ForebayClient::new(channel).max_decoding_message_size(REPLY_BYTES_MAX))
}
