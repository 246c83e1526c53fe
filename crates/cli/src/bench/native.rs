//! Producers and consumers of the native API, each on a connection of its own.
//!
//! They speak the gRPC calls without the SDK, so that the measurement is of the server: a batch is one allocation
//! of bodies, a delivery is answered with the runs that it came in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::{Bytes, BytesMut};
use forebay_wire::v1;
use forebay_wire::v1::outcome_run::Outcome;
use hyper::Method;
use serde_json::{Map, Value};
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;

use super::channel::{Grpc, connect};
use super::pace::{Feed, Next};
use super::stamp::{self, Stamp};
use super::tally::{Sent, Tally};
use crate::clock::Clock;
use crate::connect::Server;
use crate::exit::Exit;
use crate::failure::from_call;
use crate::http::{Http, encoded};
use crate::safe::printable;

/// The group whose consumers receive the published messages.
pub(super) const GROUP: &str = "bench";
/// How long a producer waits that was told to try later, if it was not told how long.
const REST: Duration = Duration::from_millis(10);

/// Makes the stream, which must be new, and its group if there are consumers.
pub(super) async fn create(
    server: &Server,
    stream: &str,
    group: Option<&Map<String, Value>>,
) -> anyhow::Result<()> {
    let mut http = Http::connect(server).await?;
    let path = format!("/streams/{}", encoded(stream));
    let made = http.send(Method::PUT, &path, &Map::new()).await?;
    if made.status != 201 {
        return Err(super::is_there_already(stream));
    }
    if let Some(settings) = group {
        let group = format!("/streams/{}/groups/{GROUP}", encoded(stream));
        if let Err(error) = http.send(Method::PUT, &group, settings).await {
            let _ = delete(server, stream).await;
            return Err(error);
        }
    }
    Ok(())
}

pub(super) async fn delete(server: &Server, stream: &str) -> anyhow::Result<()> {
    let path = format!("/streams/{}?force=true", encoded(stream));
    Http::connect(server).await?.call(Method::DELETE, &path, Bytes::new()).await.map(drop)
}

pub(super) struct Producer {
    pub(super) client: Grpc,
    pub(super) stream: String,
    pub(super) window: u64,
    pub(super) size: usize,
    pub(super) keys: u64,
}

impl Producer {
    pub(super) async fn run(
        mut self,
        mut feed: Feed,
        bell: Arc<Notify>,
        tally: Arc<Tally>,
        clock: Clock,
    ) -> anyhow::Result<()> {
        // As long as the window lets it become, which is told by the confirmations.
        let (requests, sent) = mpsc::unbounded_channel();
        let replies = self.client.publish(UnboundedReceiverStream::new(sent)).await;
        let mut replies = replies.map_err(|status| from_call(&status.into()))?.into_inner();
        let mut on_their_way: VecDeque<Sent> = VecDeque::new();
        let mut count_on_their_way = 0;
        let mut rest = None;
        loop {
            let now = clock.now();
            let next = match rest {
                Some(until) if now < until => Next::Wait,
                _ => feed.next(now, self.window - count_on_their_way),
            };
            if let Next::Send(count) = next {
                let batch = Sent { first: feed.take(count), count, at: now };
                tally.send(&feed, batch);
                on_their_way.push_back(batch);
                count_on_their_way += count;
                let request = self.request(&feed, batch);
                requests.send(request).map_err(|_| broke_off())?;
                continue;
            }
            if next == Next::Over && on_their_way.is_empty() {
                tally.finish(&feed);
                return Ok(());
            }
            let resting = rest.map_or(Duration::ZERO, |until| until.since(now));
            let reply = tokio::select! {
                reply = replies.message() => reply.map_err(|status| from_call(&status.into()))?.ok_or_else(broke_off)?,
                () = bell.notified(), if next == Next::Wait => continue,
                () = tokio::time::sleep(resting), if !resting.is_zero() => continue,
            };
            let now = clock.now();
            for confirmation in reply.confirmations {
                let batch =
                    on_their_way.pop_front().context("the server confirmed a batch that was not sent")?;
                count_on_their_way -= batch.count;
                match confirmation.problem {
                    None if confirmation.first_seq > 0 && u64::from(confirmation.count) == batch.count => {
                        tally.confirm(&feed, batch, now);
                    }
                    None => bail!("the server confirmed other messages than were sent"),
                    Some(problem) => match problem.retry() {
                        v1::Retry::Later => {
                            tally.refuse(&feed, batch);
                            rest = Some(now + problem.retry_after_ms.map_or(REST, Duration::from_millis));
                        }
                        v1::Retry::SameId => tally.lose_sight_of(batch),
                        _ => return Err(anyhow!(Exit::NotUnderstood).context(printable(&problem.detail))),
                    },
                }
            }
        }
    }

    fn request(&self, feed: &Feed, sent: Sent) -> v1::PublishRequest {
        let mut bodies = BytesMut::with_capacity(self.size * sent.count as usize);
        for number in sent.first..sent.first + sent.count {
            let stamp = Stamp { at: feed.since(number, sent.at), producer: feed.producer, number };
            bodies.extend_from_slice(&stamp.encode());
            bodies.resize(bodies.len() + self.size - stamp::BYTES, b'x');
        }
        let mut bodies = bodies.freeze();
        let message = |number| v1::Message {
            body: bodies.split_to(self.size),
            key: super::key(self.keys, feed.producer, number).unwrap_or_default(),
            ..v1::Message::default()
        };
        v1::PublishRequest {
            // The stream of the batch before it is meant where none is named.
            stream: if sent.first == 0 { self.stream.clone() } else { String::new() },
            messages: (sent.first..sent.first + sent.count).map(message).collect(),
            ..v1::PublishRequest::default()
        }
    }
}

fn broke_off() -> anyhow::Error {
    anyhow!(Exit::Unreachable).context("the server ended the call")
}

/// A consumer that is part of its group already.
pub(super) struct Consumer {
    requests: mpsc::UnboundedSender<v1::ConsumeRequest>,
    replies: Streaming<v1::ConsumeReply>,
}

impl Consumer {
    pub(super) async fn join(
        server: &Server,
        stream: &str,
        name: String,
        credit: u32,
    ) -> anyhow::Result<Consumer> {
        // No longer than the credit lets it become: nothing is answered that was not delivered.
        let (requests, sent) = mpsc::unbounded_channel();
        let open = v1::Open {
            stream: stream.to_owned(),
            group: GROUP.to_owned(),
            consumer: name,
            credit,
            ..Default::default()
        };
        let first = v1::ConsumeRequest { open: Some(open), ..Default::default() };
        requests.send(first).map_err(|_| broke_off())?;
        let mut client = connect(server).await?;
        let replies = client.consume(UnboundedReceiverStream::new(sent)).await;
        Ok(Consumer { requests, replies: replies.map_err(|status| from_call(&status.into()))?.into_inner() })
    }

    /// Acks everything, for as long as the call lasts.
    pub(super) async fn run(mut self, tally: Arc<Tally>, clock: Clock) -> anyhow::Result<()> {
        let mut stamps = Vec::new();
        loop {
            let reply = self.replies.message().await.map_err(|status| from_call(&status.into()))?;
            let reply = reply.ok_or_else(broke_off)?;
            let now = clock.now();
            if !reply.settled.is_empty() {
                let (acked, not_acked) = outcomes(&reply.settled)?;
                tally.ack(acked, not_acked, now);
            }
            let Some(deliveries) = reply.deliveries else { continue };
            stamps.clear();
            stamps.extend(deliveries.messages.iter().map(|message| Stamp::decode(&message.body)));
            tally.deliver(&stamps, now);
            let leases = deliveries.runs.iter().map(|run| v1::LeaseRun {
                first_seq: run.first_seq,
                first_grant: run.first_grant,
                count: run.count,
            });
            let settlement = v1::Settlement {
                action: v1::settlement::Action::Ack.into(),
                epoch: deliveries.epoch,
                leases: leases.collect(),
                ..Default::default()
            };
            let request = v1::ConsumeRequest { settlements: vec![settlement], ..Default::default() };
            self.requests.send(request).map_err(|_| broke_off())?;
        }
    }
}

/// How many were acked, and how many were not.
fn outcomes(settled: &[v1::Settled]) -> anyhow::Result<(u64, u64)> {
    let (mut acked, mut not_acked) = (0, 0);
    for settled in settled {
        if let Some(problem) = &settled.problem {
            bail!("the server did not understand an ack: {}", printable(&problem.detail));
        }
        for run in &settled.outcomes {
            let count = u64::from(run.count.max(1));
            match run.outcome() {
                Outcome::Acked => acked += count,
                _ => not_acked += count,
            }
        }
    }
    Ok((acked, not_acked))
}
