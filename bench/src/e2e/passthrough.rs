//! The service without its purpose: published messages go to the consumers in turn, through a channel, and acks
//! are answered without being examined.

use std::error::Error;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_wire::v1;
use forebay_wire::v1::forebay_server::{Forebay, ForebayServer};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// Batches that wait for a consumer.
const BATCHES_MAX: usize = 64;

pub(super) fn serve() -> Result<(), Box<dyn Error>> {
    tokio::runtime::Runtime::new()?.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        eprintln!("listening on {}", listener.local_addr()?);
        tonic::transport::Server::builder()
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .max_frame_size(Some(60 << 10))
            .add_service(ForebayServer::new(PassThrough::default()).max_decoding_message_size(64 << 20))
            .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)))
            .await?;
        Ok(())
    })
}

type Consumers = Vec<mpsc::Sender<Vec<v1::Message>>>;

#[derive(Default)]
struct PassThrough {
    consumers: Arc<Mutex<Consumers>>,
    next: Arc<AtomicUsize>,
}

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Forebay for PassThrough {
    async fn publish(
        &self,
        request: Request<Streaming<v1::PublishRequest>>,
    ) -> Result<Response<Replies<v1::PublishReply>>, Status> {
        let consumers = {
            let mut consumers = self.consumers.lock().unwrap_or_else(PoisonError::into_inner);
            consumers.retain(|consumer| !consumer.is_closed());
            consumers.clone()
        };
        let next = self.next.clone();
        let replies = request.into_inner().then(move |request| {
            // Without a consumer, messages go nowhere.
            let turn = next.fetch_add(1, Ordering::Relaxed).checked_rem(consumers.len());
            let consumer = turn.map(|turn| consumers[turn].clone());
            async move {
                let v1::PublishRequest { messages, ticket, .. } = request?;
                let count = messages.len() as u32;
                if let Some(consumer) = consumer {
                    let _ = consumer.send(messages).await;
                }
                let confirmation = v1::Confirmation { ticket, first_seq: 1, count, ..Default::default() };
                Ok(v1::PublishReply { confirmations: vec![confirmation] })
            }
        });
        Ok(Response::new(Box::pin(replies)))
    }

    async fn consume(
        &self,
        request: Request<Streaming<v1::ConsumeRequest>>,
    ) -> Result<Response<Replies<v1::ConsumeReply>>, Status> {
        let (sender, batches) = mpsc::channel(BATCHES_MAX);
        self.consumers.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        let deliveries = ReceiverStream::new(batches).map(|messages| {
            let run = v1::DeliveryRun { first_seq: 1, count: messages.len() as u32, ..Default::default() };
            let deliveries =
                v1::Deliveries { epoch: 1, runs: vec![run], messages, ..v1::Deliveries::default() };
            Ok(v1::ConsumeReply { deliveries: Some(deliveries), ..Default::default() })
        });
        let settled = request.into_inner().map(|request| {
            let settled = request?.settlements.iter().map(settle).collect();
            Ok(v1::ConsumeReply { settled, ..Default::default() })
        });
        Ok(Response::new(Box::pin(deliveries.merge(settled))))
    }

    async fn create_stream(
        &self,
        _: Request<v1::CreateStreamRequest>,
    ) -> Result<Response<v1::CreateStreamReply>, Status> {
        Ok(Response::new(v1::CreateStreamReply::default()))
    }

    async fn create_group(
        &self,
        _: Request<v1::CreateGroupRequest>,
    ) -> Result<Response<v1::CreateGroupReply>, Status> {
        Ok(Response::new(v1::CreateGroupReply::default()))
    }

    async fn get_group(
        &self,
        _: Request<v1::GetGroupRequest>,
    ) -> Result<Response<v1::GetGroupReply>, Status> {
        Ok(Response::new(v1::GetGroupReply::default()))
    }
}

fn settle(settlement: &v1::Settlement) -> v1::Settled {
    let count = settlement.leases.iter().map(|run| run.count.max(1)).sum();
    let outcome = v1::OutcomeRun { outcome: v1::outcome_run::Outcome::Acked.into(), count };
    v1::Settled { ticket: settlement.ticket, outcomes: vec![outcome], problem: None }
}
