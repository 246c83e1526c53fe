//! Connections of producers and consumers, with or without TLS and a token.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::Context as _;
use forebay_wire::v1::forebay_client::ForebayClient;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::codegen::http::Uri;
use tonic::codegen::{InterceptedService, Service};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::connect::{CONNECT_PATIENCE, Server, Token, host_of, unreachable};
use crate::exit::Exit;

/// The largest reply.
const REPLY_BYTES_MAX: usize = 64 << 20;
/// Bytes that the server may send on one call, and on the connection, before they are read: as the SDK has it.
const CALL_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
const FRAME_MAX: u32 = 256 << 10;

pub(super) type Grpc = ForebayClient<InterceptedService<Channel, Bearer>>;

/// A connection with wide windows, so that a side seldom waits until the other has read.
pub(super) async fn connect(server: &Server) -> anyhow::Result<Grpc> {
    let (place, address) = (server.place()?, server.first()?);
    let endpoint = Channel::from_shared(format!("http://{}", address.authority))
        .context(Exit::NotUnderstood)?
        .initial_stream_window_size(CALL_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_MAX)
        .connect_timeout(CONNECT_PATIENCE);
    let channel = match place.tls(&address)? {
        None => endpoint.connect().await,
        Some(tls) => endpoint.connect_with_connector(Secure::new(&address.authority, &tls)?).await,
    };
    let channel = channel.map_err(|error| unreachable(&address.text(), &error))?;
    let token = match place.token {
        Some(Token(token)) => {
            let value = format!("Bearer {token}").parse::<MetadataValue<Ascii>>();
            Some(value.context(Exit::NotUnderstood)?)
        }
        None => None,
    };
    let client = ForebayClient::with_interceptor(channel, Bearer(token));
    Ok(client.max_decoding_message_size(REPLY_BYTES_MAX))
}

/// The token of each call, if there is one.
#[derive(Clone)]
pub(super) struct Bearer(Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// Opens connections over TLS.
#[derive(Clone)]
struct Secure {
    authority: String,
    name: ServerName<'static>,
    tls: TlsConnector,
}

impl Secure {
    fn new(authority: &str, tls: &ClientConfig) -> anyhow::Result<Secure> {
        let mut tls = tls.clone();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from(host_of(authority).to_owned()).context(Exit::NotUnderstood)?;
        Ok(Secure { authority: authority.to_owned(), name, tls: TlsConnector::from(Arc::new(tls)) })
    }

    async fn open(self) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
        let socket = TcpStream::connect(&self.authority).await?;
        socket.set_nodelay(true)?;
        Ok(TokioIo::new(self.tls.connect(self.name, socket).await?))
    }
}

impl Service<Uri> for Secure {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().open())
    }
}
