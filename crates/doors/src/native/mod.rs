//! The native door: `forebay.v1` over gRPC.
//!
//! Each `Publish` and `Consume` is one state machine that the connection polls: requests are read,
//! handed to the broker and answered in the same task. A second task would cost a hand-off in each
//! direction, and with small batches hand-offs are what a message costs.

mod consume;
mod convert;
mod publish;
mod settings;
mod status;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use forebay_broker::broker::Broker;
use forebay_core::settings::{GroupSettings, StreamSettings};
use forebay_core::types::{GroupName, StreamName};
use forebay_wire::v1;
use forebay_wire::v1::forebay_server::{Forebay, ForebayServer};
use tokio::net::TcpListener;
use tokio_stream::Stream;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// Bytes that a client may send on one call, and on one connection, before the server has read them.
const CALL_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// What a request may have beside the contents of a batch: fields, lengths, ids.
const REQUEST_OVERHEAD: usize = 4 << 20;
/// Calls that one connection may have at once.
const CALLS_MAX: u32 = 1_024;
/// A connection that says nothing is asked whether it is still there, and given up if it does not answer.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_ANSWER: Duration = Duration::from_secs(10);

/// Serves the native API on this socket until `stop` resolves and the calls have ended.
pub async fn serve(
    broker: Broker,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), tonic::transport::Error> {
    let request_bytes_max = broker.limits().batch_bytes_max as usize + REQUEST_OVERHEAD;
    let service = ForebayServer::new(NativeDoor { broker }).max_decoding_message_size(request_bytes_max);
    tonic::transport::Server::builder()
        .initial_stream_window_size(CALL_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(CALLS_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE_EVERY))
        .http2_keepalive_timeout(Some(KEEPALIVE_ANSWER))
        .add_service(service)
        .serve_with_incoming_shutdown(TcpIncoming::from(listener).with_nodelay(Some(true)), stop)
        .await
}

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

struct NativeDoor {
    broker: Broker,
}

#[tonic::async_trait]
impl Forebay for NativeDoor {
    type PublishStream = Replies<v1::PublishReply>;
    type ConsumeStream = Replies<v1::ConsumeReply>;

    async fn publish(
        &self,
        request: Request<Streaming<v1::PublishRequest>>,
    ) -> Result<Response<Self::PublishStream>, Status> {
        Ok(Response::new(Box::pin(publish::Publish::new(self.broker.clone(), request.into_inner()))))
    }

    async fn consume(
        &self,
        request: Request<Streaming<v1::ConsumeRequest>>,
    ) -> Result<Response<Self::ConsumeStream>, Status> {
        let call = consume::Consume::open(&self.broker, request.into_inner()).await?;
        Ok(Response::new(Box::pin(call)))
    }

    async fn create_stream(
        &self,
        request: Request<v1::CreateStreamRequest>,
    ) -> Result<Response<v1::CreateStreamReply>, Status> {
        let request = request.into_inner();
        let name = stream_name(&request.stream)?;
        let settings = request.settings.unwrap_or_default();
        settings::stream(&settings, &mut StreamSettings::default())?;
        // What was checked above cannot be refused: a stream that is there is only compared with it.
        let created = self
            .broker
            .create_stream(name, move |stream| drop(settings::stream(&settings, stream)))
            .await
            .map_err(|error| status::of_create(&error))?;
        Ok(Response::new(v1::CreateStreamReply { created: created.get().new }))
    }

    async fn create_group(
        &self,
        request: Request<v1::CreateGroupRequest>,
    ) -> Result<Response<v1::CreateGroupReply>, Status> {
        let request = request.into_inner();
        let stream = stream_name(&request.stream)?;
        let group = group_name(&request.group)?;
        let start = convert::start(request.start.as_ref());
        let settings = request.settings.unwrap_or_default();
        settings::group(&settings, &mut GroupSettings::default())?;
        let created = self
            .broker
            .create_group(stream, group, start, move |group| drop(settings::group(&settings, group)))
            .await
            .map_err(|error| status::of_create(&error))?;
        Ok(Response::new(v1::CreateGroupReply { created: created.get().new }))
    }

    async fn get_group(
        &self,
        request: Request<v1::GetGroupRequest>,
    ) -> Result<Response<v1::GetGroupReply>, Status> {
        let v1::GetGroupRequest { stream, group } = request.into_inner();
        let figures = self
            .broker
            .figures(stream_name(&stream)?, group_name(&group)?)
            .await
            .map_err(|error| status::of_group(&error))?;
        Ok(Response::new(convert::figures(stream, group, &figures.get())))
    }
}

fn stream_name(text: &str) -> Result<StreamName, Status> {
    StreamName::parse(text).map_err(|error| status::invalid(format!("the stream's name: {error}")))
}

fn group_name(text: &str) -> Result<GroupName, Status> {
    GroupName::parse(text).map_err(|error| status::invalid(format!("the group's name: {error}")))
}
