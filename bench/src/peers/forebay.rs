//! Forebay over gRPC, and the floor under that: the same service without storage or leases.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use forebay_wire::v1;
use forebay_wire::v1::forebay_client::ForebayClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use super::contender::{About, Consumer, Contender, Failure, Message, Producer, Running, Shape, Step};
use crate::e2e;
use crate::server::Server;

/// Messages that one request carries at most.
const REQUEST_MESSAGES: usize = 512;

enum What {
    /// `forebay serve`, with everything on disk.
    Journal(PathBuf),
    PassThrough,
}

struct Forebay {
    about: About,
    what: What,
}

pub(crate) fn contenders(program: &Path) -> Result<Vec<Box<dyn Contender>>, Failure> {
    let said = Command::new(program).arg("--version").output();
    let said = said.map_err(|error| format!("cannot run {}: {error}", program.display()))?.stdout;
    let version = String::from_utf8_lossy(&said).replace("forebay", "").trim().to_owned();
    let forebay = About {
        id: "forebay",
        name: "Forebay".to_owned(),
        version: version.clone(),
        settings: "defaults: a sync before every confirmation; native gRPC streams, up to 512 messages in a \
                   request, acks in runs"
            .to_owned(),
        survives_power_loss: true,
        acks_each: true,
    };
    let pass_through = About {
        id: "floor-grpc",
        name: "gRPC floor".to_owned(),
        version,
        settings: "Forebay's service and client without storage, leases or credit".to_owned(),
        survives_power_loss: false,
        acks_each: true,
    };
    Ok(vec![
        Box::new(Forebay { about: forebay, what: What::Journal(program.to_owned()) }),
        Box::new(Forebay { about: pass_through, what: What::PassThrough }),
    ])
}

impl Contender for Forebay {
    fn about(&self) -> &About {
        &self.about
    }

    fn lacks(&self, shape: &Shape) -> Option<&'static str> {
        match self.what {
            What::Journal(_) => None,
            What::PassThrough if shape.is_ordered => Some("knows no keys"),
            What::PassThrough => (shape.groups > 1).then_some("knows no groups"),
        }
    }

    fn skips(&self, workload: &str) -> Option<&'static str> {
        let stores = ["drain", "backlog-10k", "backlog-1m", "backlog-5m", "restart"].contains(&workload);
        (stores && matches!(self.what, What::PassThrough)).then_some("keeps nothing")
    }

    fn segments(&self, folder: &Path) -> Option<PathBuf> {
        matches!(self.what, What::Journal(_)).then(|| folder.to_owned())
    }

    fn start<'a>(&'a self, folder: &'a Path) -> Step<'a, Box<dyn Running>> {
        Box::pin(async move {
            let server = match &self.what {
                What::Journal(program) => Server::serve(program, folder),
                What::PassThrough => Server::start(&std::env::current_exe()?, &[e2e::CHILD]),
            };
            let server = server.map_err(|error| error.to_string())?;
            Ok(Box::new(Up { server }) as Box<dyn Running>)
        })
    }
}

struct Up {
    server: Server,
}

impl Up {
    async fn connect(&self) -> Result<ForebayClient<Channel>, Failure> {
        e2e::clients::connect(&self.server.address).await.map_err(|error| error.to_string().into())
    }
}

fn group_name(group: usize) -> String {
    format!("group-{group}")
}

impl Running for Up {
    fn processes(&self) -> Vec<u32> {
        vec![self.server.id()]
    }

    fn prepare<'a>(&'a self, shape: &'a Shape) -> Step<'a, ()> {
        Box::pin(async {
            let mut client = self.connect().await?;
            for group in 0..shape.groups {
                let mut settings = v1::GroupSettings::default();
                if shape.is_ordered {
                    settings.set_strategy(v1::group_settings::Strategy::Ordered);
                }
                let request = v1::CreateGroupRequest {
                    stream: shape.queue.clone(),
                    group: group_name(group),
                    settings: Some(settings),
                    ..Default::default()
                };
                client.create_group(request).await?;
            }
            Ok(())
        })
    }

    fn producer<'a>(&'a self, shape: &'a Shape) -> Step<'a, Box<dyn Producer>> {
        Box::pin(async {
            let (requests, sent) = mpsc::unbounded_channel();
            let mut client = self.connect().await?;
            let replies = client.publish(UnboundedReceiverStream::new(sent)).await?.into_inner();
            let stream = shape.queue.clone();
            Ok(Box::new(Publishing { requests, replies, stream, ticket: 0 }) as Box<dyn Producer>)
        })
    }

    fn consumer<'a>(
        &'a self,
        shape: &'a Shape,
        group: usize,
        prefetch: usize,
    ) -> Step<'a, Box<dyn Consumer>> {
        Box::pin(async move {
            let (requests, sent) = mpsc::unbounded_channel();
            let open = v1::Open {
                stream: shape.queue.clone(),
                group: group_name(group),
                consumer: "bench".to_owned(),
                credit: prefetch as u32,
                ..Default::default()
            };
            requests.send(v1::ConsumeRequest { open: Some(open), ..Default::default() })?;
            let mut client = self.connect().await?;
            let replies = client.consume(UnboundedReceiverStream::new(sent)).await?.into_inner();
            let consumer = Consuming {
                requests,
                replies,
                early: VecDeque::new(),
                received: v1::Settlement::default(),
                unsettled: 0,
            };
            Ok(Box::new(consumer) as Box<dyn Consumer>)
        })
    }
}

struct Publishing {
    requests: mpsc::UnboundedSender<v1::PublishRequest>,
    replies: Streaming<v1::PublishReply>,
    /// Said with the first batch; the others follow it.
    stream: String,
    ticket: u64,
}

impl Producer for Publishing {
    fn send<'a>(&'a mut self, messages: &'a [Message]) -> Step<'a, ()> {
        Box::pin(async move {
            for messages in messages.chunks(REQUEST_MESSAGES) {
                self.ticket += 1;
                let messages = messages.iter().map(|message| v1::Message {
                    body: message.body.clone(),
                    key: message.key.map(|key| key.to_string()).unwrap_or_default(),
                    ..Default::default()
                });
                self.requests.send(v1::PublishRequest {
                    stream: std::mem::take(&mut self.stream),
                    messages: messages.collect(),
                    ticket: self.ticket,
                    ..Default::default()
                })?;
            }
            Ok(())
        })
    }

    fn confirmed(&mut self) -> Step<'_, usize> {
        Box::pin(async {
            let reply = self.replies.message().await?.ok_or("the server ended the call")?;
            let mut count = 0;
            for confirmation in reply.confirmations {
                if let Some(problem) = confirmation.problem {
                    return Err(format!("refused: {}", problem.detail).into());
                }
                count += confirmation.count as usize;
            }
            Ok(count)
        })
    }
}

struct Consuming {
    requests: mpsc::UnboundedSender<v1::ConsumeRequest>,
    replies: Streaming<v1::ConsumeReply>,
    /// Came while something else was waited for.
    early: VecDeque<v1::Deliveries>,
    /// Acks the messages that were received last.
    received: v1::Settlement,
    /// Settlements that were sent and not yet answered.
    unsettled: usize,
}

impl Consuming {
    async fn read(&mut self) -> Result<(), Failure> {
        let reply = self.replies.message().await?.ok_or("the server ended the call")?;
        for settled in reply.settled {
            if let Some(problem) = settled.problem {
                return Err(format!("refused: {}", problem.detail).into());
            }
            if settled.outcomes.iter().any(|run| run.outcome() != v1::outcome_run::Outcome::Acked) {
                return Err("an ack came too late".into());
            }
            self.unsettled -= 1;
        }
        self.early.extend(reply.deliveries);
        Ok(())
    }
}

impl Consumer for Consuming {
    fn receive(&mut self) -> Step<'_, Vec<Bytes>> {
        Box::pin(async {
            let deliveries = loop {
                match self.early.pop_front() {
                    Some(deliveries) => break deliveries,
                    None => self.read().await?,
                }
            };
            self.received.epoch = deliveries.epoch;
            self.received.leases.extend(deliveries.runs.iter().map(|run| v1::LeaseRun {
                first_seq: run.first_seq,
                first_grant: run.first_grant,
                count: run.count,
            }));
            Ok(deliveries.messages.into_iter().map(|message| message.body).collect())
        })
    }

    fn ack(&mut self) -> Step<'_, ()> {
        Box::pin(async {
            let mut acks = std::mem::take(&mut self.received);
            acks.set_action(v1::settlement::Action::Ack);
            let settlements = vec![acks];
            self.unsettled += 1;
            self.requests.send(v1::ConsumeRequest { settlements, ..Default::default() })?;
            Ok(())
        })
    }

    fn settle(&mut self) -> Step<'_, ()> {
        Box::pin(async {
            while self.unsettled > 0 {
                self.read().await?;
            }
            Ok(())
        })
    }
}
