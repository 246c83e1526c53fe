//! RabbitMQ, with quorum queues and with classic durable queues.
//!
//! Messages are persistent and confirmed, consumers ack one by one. Both kinds of queue confirm a persistent
//! message after they synced it: a quorum queue its log, a classic queue its index or the message store, many
//! messages at a time.

mod amqp;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use tokio::net::TcpStream;

use super::contender::{About, Consumer, Contender, Failure, Message, Producer, Running, Shape, Step};
use super::process::{self, Process};
use amqp::{Connection, Event};

const PROGRAM: &str = "FOREBAY_PEER_RABBITMQ";
/// The folder of the data is named after the node, and a node that comes back has the same name.
const NODE: &str = "forebay@localhost";

#[derive(Debug, Clone, Copy)]
enum Kind {
    Quorum,
    Classic,
}

struct RabbitMq {
    kind: Kind,
    program: PathBuf,
    about: About,
}

pub(crate) fn contenders() -> Result<Vec<Box<dyn Contender>>, Failure> {
    let Some(program) = std::env::var_os(PROGRAM).map(PathBuf::from) else { return Ok(Vec::new()) };
    let version = version(&program)?;
    let contender = |kind: Kind| {
        let (id, name) = match kind {
            Kind::Quorum => ("rabbitmq-quorum", "RabbitMQ, quorum queue"),
            Kind::Classic => ("rabbitmq-classic", "RabbitMQ, classic durable queue"),
        };
        let about = About {
            id,
            name: name.to_owned(),
            version: version.clone(),
            settings:
                "one node, no plugins; persistent messages, publisher confirms, one ack for all that was \
                       received; several groups as queues of a fanout exchange"
                    .to_owned(),
            survives_power_loss: true,
            acks_each: true,
        };
        Box::new(RabbitMq { kind, program: program.clone(), about }) as Box<dyn Contender>
    };
    Ok(vec![contender(Kind::Quorum), contender(Kind::Classic)])
}

/// As the folder says that the program lies in; asking the program itself would take a node.
fn version(program: &Path) -> Result<String, Failure> {
    let path =
        program.canonicalize().map_err(|error| format!("cannot find {}: {error}", program.display()))?;
    let folders = path.iter().filter_map(|part| part.to_str());
    let mut versions = folders.filter_map(|folder| folder.strip_prefix("rabbitmq_server-"));
    Ok(versions.next().unwrap_or("of unknown version").to_owned())
}

impl Contender for RabbitMq {
    fn about(&self) -> &About {
        &self.about
    }

    fn lacks(&self, shape: &Shape) -> Option<&'static str> {
        shape.is_ordered.then_some("no order by key with several consumers on a queue")
    }

    fn start<'a>(&'a self, folder: &'a Path) -> Step<'a, Box<dyn Running>> {
        Box::pin(async move {
            // Each node wants a register of nodes, and would start one that outlives it.
            let register = |port: u16| {
                let mut command = process::command(Path::new("epmd"), &folder.join("epmd"))?;
                command.args(["-address", "127.0.0.1", "-port", &port.to_string()]);
                Ok(command)
            };
            let (register, register_port) = Process::start(&folder.join("epmd"), register, |port| {
                Box::pin(async move {
                    TcpStream::connect(("127.0.0.1", port)).await?;
                    Ok(())
                })
            })
            .await?;
            let data = folder.join("node");
            let node = |port| self.command(&data, port, register_port);
            let (process, port) = Process::start(&data, node, |port| {
                Box::pin(async move { Connection::open(port).await.map(drop) })
            })
            .await?;
            Ok(Box::new(Server { kind: self.kind, port, process, _register: register }) as Box<dyn Running>)
        })
    }
}

impl RabbitMq {
    fn command(&self, folder: &Path, port: u16, register_port: u16) -> Result<Command, Failure> {
        let mut command = process::command(&self.program, folder)?;
        let settings = [
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("ERL_EPMD_PORT", register_port.to_string()),
            ("RABBITMQ_DIST_PORT", process::free_port()?.to_string()),
            ("RABBITMQ_NODENAME", NODE.to_owned()),
            ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_NODE_PORT", port.to_string()),
        ];
        let files = [
            // Where the secret of the nodes is kept.
            ("HOME", "."),
            ("RABBITMQ_MNESIA_BASE", "data"),
            ("RABBITMQ_LOG_BASE", "log"),
            // None of these is there, so that settings of the machine are not used.
            ("RABBITMQ_CONF_ENV_FILE", "none"),
            ("RABBITMQ_CONFIG_FILE", "none"),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", "none"),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", "no-plugins"),
        ];
        command.envs(settings).envs(files.map(|(name, file)| (name, folder.join(file))));
        Ok(command)
    }
}

struct Server {
    kind: Kind,
    port: u16,
    process: Process,
    /// Gone after the node, which would miss it.
    _register: Process,
}

/// Where messages of a queue are published to, and the queues of its groups.
fn exchange(shape: &Shape) -> &str {
    if shape.groups > 1 { &shape.queue } else { "" }
}

fn queue(shape: &Shape, group: usize) -> String {
    if shape.groups > 1 { format!("{}-{group}", shape.queue) } else { shape.queue.clone() }
}

impl Running for Server {
    fn processes(&self) -> Vec<u32> {
        vec![self.process.id()]
    }

    fn prepare<'a>(&'a self, shape: &'a Shape) -> Step<'a, ()> {
        Box::pin(async move {
            let mut connection = Connection::open(self.port).await?;
            let kind = match self.kind {
                Kind::Quorum => "quorum",
                Kind::Classic => "classic",
            };
            if shape.groups > 1 {
                connection.declare_fanout(exchange(shape)).await?;
            }
            for group in 0..shape.groups {
                let queue = queue(shape, group);
                connection.declare_queue(&queue, kind).await?;
                if shape.groups > 1 {
                    connection.bind(&queue, exchange(shape)).await?;
                }
            }
            Ok(())
        })
    }

    fn producer<'a>(&'a self, shape: &'a Shape) -> Step<'a, Box<dyn Producer>> {
        Box::pin(async move {
            let mut connection = Connection::open(self.port).await?;
            connection.confirm().await?;
            let (exchange, routing_key) = (exchange(shape).to_owned(), shape.queue.clone());
            let (events, waiting) = (Vec::new(), Waiting::default());
            Ok(Box::new(Publisher { connection, exchange, routing_key, events, waiting })
                as Box<dyn Producer>)
        })
    }

    fn consumer<'a>(
        &'a self,
        shape: &'a Shape,
        group: usize,
        prefetch: usize,
    ) -> Step<'a, Box<dyn Consumer>> {
        Box::pin(async move {
            let mut connection = Connection::open(self.port).await?;
            let queue = queue(shape, group);
            connection.consume(&queue, u16::try_from(prefetch)?).await?;
            let mut events = Vec::new();
            connection.leftover(&mut events)?;
            Ok(Box::new(Subscriber { connection, queue, events, unacked: Vec::new() }) as Box<dyn Consumer>)
        })
    }
}

struct Publisher {
    connection: Connection,
    exchange: String,
    routing_key: String,
    events: Vec<Event>,
    waiting: Waiting,
}

impl Producer for Publisher {
    fn send<'a>(&'a mut self, messages: &'a [Message]) -> Step<'a, ()> {
        Box::pin(async move {
            for message in messages {
                self.connection.put_message(&self.exchange, &self.routing_key, &message.body);
            }
            self.waiting.add(messages.len());
            self.connection.flush().await
        })
    }

    fn confirmed(&mut self) -> Step<'_, usize> {
        Box::pin(async move {
            loop {
                let mut count = 0;
                for event in self.events.drain(..) {
                    match event {
                        Event::Confirmed { tag, and_before } => {
                            count += self.waiting.confirm(tag, and_before)?;
                        }
                        other => return Err(format!("the server says {other:?} to a producer").into()),
                    }
                }
                if count > 0 {
                    return Ok(count);
                }
                self.connection.events(&mut self.events).await?;
            }
        })
    }
}

/// Which of the published messages were confirmed: the server does it in any order, and some more than once.
#[derive(Debug, Default)]
struct Waiting {
    /// Of the first that is not confirmed. The server counts from 1.
    first: u64,
    confirmed: VecDeque<bool>,
}

impl Waiting {
    fn add(&mut self, count: usize) {
        self.first = self.first.max(1);
        self.confirmed.resize(self.confirmed.len() + count, false);
    }

    /// How many are confirmed now that were not.
    fn confirm(&mut self, tag: u64, and_before: bool) -> Result<usize, Failure> {
        let end = usize::try_from(tag.saturating_add(1).saturating_sub(self.first))?;
        if end > self.confirmed.len() {
            return Err(format!("the server confirms message {tag}, which was not sent").into());
        }
        let begin = if and_before { 0 } else { end.saturating_sub(1) };
        let mut count = 0;
        for is_confirmed in self.confirmed.range_mut(begin..end) {
            count += usize::from(!std::mem::replace(is_confirmed, true));
        }
        while self.confirmed.front() == Some(&true) {
            self.confirmed.pop_front();
            self.first += 1;
        }
        Ok(count)
    }
}

struct Subscriber {
    connection: Connection,
    queue: String,
    /// Events of the server that were not handled yet.
    events: Vec<Event>,
    unacked: Vec<u64>,
}

impl Consumer for Subscriber {
    fn receive(&mut self) -> Step<'_, Vec<Bytes>> {
        Box::pin(async move {
            while self.events.is_empty() {
                self.connection.events(&mut self.events).await?;
            }
            self.unacked.clear();
            let mut bodies = Vec::with_capacity(self.events.len());
            for event in self.events.drain(..) {
                match event {
                    Event::Delivery { tag, body } => {
                        self.unacked.push(tag);
                        bodies.push(body);
                    }
                    other => return Err(format!("the server says {other:?} to a consumer").into()),
                }
            }
            Ok(bodies)
        })
    }

    fn ack(&mut self) -> Step<'_, ()> {
        Box::pin(async move {
            // All up to the last one: that is all there is, and one ack instead of hundreds.
            if let Some(last) = self.unacked.drain(..).next_back() {
                self.connection.put_ack_through(last);
            }
            self.connection.flush().await
        })
    }

    fn settle(&mut self) -> Step<'_, ()> {
        Box::pin(async move {
            self.connection.look(&self.queue).await?;
            let is_look =
                |event: &Event| matches!(event, Event::Answer(method) if Connection::is_look(*method));
            loop {
                if let Some(at) = self.events.iter().position(is_look) {
                    self.events.remove(at);
                    return Ok(());
                }
                self.connection.events(&mut self.events).await?;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirmations_count_once_each_in_any_order() {
        let mut waiting = Waiting::default();
        waiting.add(10);
        let mut confirm = |tag, and_before| waiting.confirm(tag, and_before).expect("it was sent");
        assert_eq!(confirm(3, false), 1);
        assert_eq!(confirm(2, true), 2);
        assert_eq!(confirm(3, false), 0);
        assert_eq!(confirm(2, true), 0);
        assert_eq!(confirm(9, true), 6);
        assert_eq!(confirm(10, false), 1);
        assert!(waiting.confirm(11, false).is_err());
        waiting.add(1);
        assert_eq!(waiting.confirm(11, true).expect("it was sent"), 1);
    }

    #[tokio::test]
    async fn it_does_what_the_load_relies_on() {
        // A quorum queue that is younger than its node's habit of saving the list of them does not come back: it
        // is there, but never gets a leader.
        crate::peers::trial::all_with_rest(contenders(), PROGRAM, std::time::Duration::from_secs(5)).await;
    }
}
