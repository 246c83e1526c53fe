//! Kafka: one broker that is its own controller, and a topic of four partitions for each queue.
//!
//! A broker hands out partitions and not messages: of a group, at most as many consumers have work as there are
//! partitions, and an ack says that everything before an offset is done. So this is the same load with fewer
//! promises: no message can be retried, delayed or parked by itself.

mod group;
mod records;
mod wire;

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};

use super::contender::{About, Consumer, Contender, Failure, Message, Producer, Running, Shape, Step};
use super::process::{self, Process};
use group::{Group, Subscriber};
use wire::{Api, Client};

const JAVA: &str = "FOREBAY_PEER_JAVA";
const CLASS_PATH: &str = "FOREBAY_PEER_KAFKA";
const PARTITIONS: usize = 4;
const PARTITIONS_I32: i32 = PARTITIONS as i32;
/// Messages in a request at most: two of these fill the window, so that one is on its way while the broker works
/// on the other. Smaller ones cost the broker more than they gain.
const BATCH_MAX: usize = 512;
/// A broker takes no batch of more than 1 MiB.
const BATCH_BYTES_MAX: usize = 768 << 10;
/// Requests on their way at most, as with the broker's own client. Messages sent meanwhile go together: the
/// broker handles the requests of a connection one after the other.
const REQUESTS_MAX: usize = 5;
/// What the broker's own start script says, but for the memory.
const JAVA_SETTINGS: [&str; 7] = [
    "-Xmx1g",
    "-Xms1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
];
/// Any will do, as long as it is 16 bytes in base 64.
const CLUSTER: &str = "Zm9yZWJheS1wZWVycy1rYQ";
const SERVES_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(10);

struct Kafka {
    java: PathBuf,
    class_path: String,
    /// The broker syncs before it answers, and not when the kernel likes.
    is_synced: bool,
    about: About,
}

pub(crate) fn contenders() -> Result<Vec<Box<dyn Contender>>, Failure> {
    let (Some(java), Ok(class_path)) = (std::env::var_os(JAVA), std::env::var(CLASS_PATH)) else {
        return Ok(Vec::new());
    };
    let contender = |is_synced: bool| {
        let (id, name, sync) = if is_synced {
            ("kafka-sync", "Kafka, sync before the answer", "log.flush.interval.messages=1; ")
        } else {
            ("kafka", "Kafka, default", "")
        };
        let about = About {
            id,
            name: name.to_owned(),
            version: version(&class_path),
            settings: format!(
                "{sync}one broker, {PARTITIONS} partitions, acks=all, heap of 1 GiB; order by partition: \
                 {PARTITIONS} consumers of a group at most; acks are commits of an offset, one on its way at a \
                 time; a consumer takes up to 1 MiB at once, whatever the prefetch"
            ),
            survives_power_loss: is_synced,
            acks_each: false,
        };
        let (java, class_path) = (PathBuf::from(&java), class_path.clone());
        Box::new(Kafka { java, class_path, is_synced, about }) as Box<dyn Contender>
    };
    Ok(vec![contender(false), contender(true)])
}

/// As the name of the broker's archive says: `kafka_2.13-4.1.1.jar`.
fn version(class_path: &str) -> String {
    let names = class_path.split(':').filter_map(|path| path.rsplit('/').next());
    let mut versions =
        names.filter_map(|name| name.strip_prefix("kafka_")?.strip_suffix(".jar")?.split_once('-'));
    versions.next().map_or("of unknown version", |(_, version)| version).to_owned()
}

impl Contender for Kafka {
    fn about(&self) -> &About {
        &self.about
    }

    fn lacks(&self, _: &Shape) -> Option<&'static str> {
        None
    }

    fn start<'a>(&'a self, folder: &'a Path) -> Step<'a, Box<dyn Running>> {
        Box::pin(async move {
            if !folder.join("data").join("meta.properties").exists() {
                std::fs::create_dir_all(folder)?;
                let settings = self.write_settings(folder, process::free_port()?)?;
                let mut format = self.java(folder)?;
                format.args(["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c"]).arg(settings);
                process::run(format, folder)?;
            }
            let command = |port: u16| {
                let settings = self.write_settings(folder, port)?;
                let mut command = self.java(folder)?;
                command.arg("kafka.Kafka").arg(settings);
                Ok(command)
            };
            let (process, port) = Process::start(folder, command, |port| {
                Box::pin(
                    async move { Client::open(port).await?.ask(wire::API_VERSIONS, |_| {}).await.map(drop) },
                )
            })
            .await?;
            Ok(Box::new(Broker { port, process, groups: Mutex::default() }) as Box<dyn Running>)
        })
    }
}

impl Kafka {
    fn java(&self, folder: &Path) -> Result<Command, Failure> {
        let mut command = process::own_command(&self.java, folder)?;
        command.args(JAVA_SETTINGS).arg("-cp").arg(&self.class_path);
        Ok(command)
    }

    fn write_settings(&self, folder: &Path, port: u16) -> Result<PathBuf, Failure> {
        let controller = process::free_port()?;
        let data = folder.join("data");
        let data = data.to_str().ok_or("the folder's name is not text")?;
        let mut settings = format!(
            "process.roles=broker,controller\n\
             node.id=1\n\
             controller.quorum.voters=1@127.0.0.1:{controller}\n\
             controller.listener.names=CONTROLLER\n\
             listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
             log.dirs={data}\n\
             auto.create.topics.enable=false\n\
             offsets.topic.replication.factor=1\n\
             transaction.state.log.replication.factor=1\n\
             transaction.state.log.min.isr=1\n"
        );
        if self.is_synced {
            settings.push_str("log.flush.interval.messages=1\n");
        }
        let path = folder.join("server.properties");
        std::fs::write(&path, settings)?;
        Ok(path)
    }
}

struct Broker {
    port: u16,
    process: Process,
    /// What consumers of the same group agree on, by queue and group.
    groups: Mutex<HashMap<(String, usize), Arc<Group>>>,
}

impl Broker {
    /// Asks until the broker does not refuse: after a start it learns only by and by what it serves.
    async fn served<T>(
        &self,
        api: Api,
        put: impl Fn(&mut BytesMut),
        parse: impl Fn(Bytes) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let since = Instant::now();
        let mut client = Client::open(self.port).await?;
        loop {
            match parse(client.ask(api, &put).await?) {
                Err(failure) if since.elapsed() > SERVES_WITHIN => return Err(failure),
                Err(_) => tokio::time::sleep(LOOK_EVERY).await,
                served => return served,
            }
        }
    }

    async fn await_topic(&self, topic: &str) -> Result<(), Failure> {
        let put = |out: &mut BytesMut| wire::put_list_offsets(out, topic, PARTITIONS_I32);
        self.served(wire::LIST_OFFSETS, put, wire::listed).await
    }

    async fn await_group(&self, group: &Group) -> Result<(), Failure> {
        let put = |out: &mut BytesMut| wire::put_string(out, &group.name);
        self.served(wire::FIND_COORDINATOR, put, wire::coordinator_found).await?;
        // The coordinator is found before it knows the committed offsets.
        let put = |out: &mut BytesMut| wire::put_offset_fetch(out, &group.name, &group.topic, 0);
        self.served(wire::OFFSET_FETCH, put, wire::offset_fetched).await.map(drop)
    }
}

impl Running for Broker {
    fn processes(&self) -> Vec<u32> {
        vec![self.process.id()]
    }

    fn prepare<'a>(&'a self, shape: &'a Shape) -> Step<'a, ()> {
        Box::pin(async move {
            let put = |out: &mut BytesMut| wire::put_create_topic(out, &shape.queue, PARTITIONS_I32);
            self.served(wire::CREATE_TOPICS, put, wire::created).await?;
            self.await_topic(&shape.queue).await
        })
    }

    fn producer<'a>(&'a self, shape: &'a Shape) -> Step<'a, Box<dyn Producer>> {
        Box::pin(async move {
            self.await_topic(&shape.queue).await?;
            Ok(Box::new(Publisher {
                client: Client::open(self.port).await?,
                topic: shape.queue.clone(),
                is_ordered: shape.is_ordered,
                partition: 0,
                pending: VecDeque::new(),
                waiting: VecDeque::new(),
                confirmed: 0,
            }) as Box<dyn Producer>)
        })
    }

    fn consumer<'a>(
        &'a self,
        shape: &'a Shape,
        group: usize,
        prefetch: usize,
    ) -> Step<'a, Box<dyn Consumer>> {
        Box::pin(async move {
            self.await_topic(&shape.queue).await?;
            let group = {
                let mut groups = self.groups.lock().map_err(|_| "a consumer panicked")?;
                let new = || Arc::new(Group::new(&shape.queue, group));
                Arc::clone(groups.entry((shape.queue.clone(), group)).or_insert_with(new))
            };
            self.await_group(&group).await?;
            Ok(Box::new(Subscriber::join(self.port, group, prefetch).await?) as Box<dyn Consumer>)
        })
    }
}

struct Publisher {
    client: Client,
    topic: String,
    is_ordered: bool,
    /// The one that the next batch goes to.
    partition: usize,
    /// Not on their way yet.
    pending: VecDeque<Message>,
    /// How many messages each request has that was not answered yet.
    waiting: VecDeque<usize>,
    /// Confirmed, and not reported yet.
    confirmed: usize,
}

impl Publisher {
    /// Puts as many requests on their way as may be.
    fn put_requests(&mut self) {
        while !self.pending.is_empty() && self.waiting.len() < REQUESTS_MAX {
            if self.is_ordered {
                let mut batches: [Vec<Message>; PARTITIONS] = Default::default();
                for message in self.pending.drain(..) {
                    batches[partition_of(message.key)].push(message);
                }
                for (partition, messages) in batches.iter().enumerate() {
                    let mut rest = &messages[..];
                    while !rest.is_empty() {
                        let (batch, others) = rest.split_at(batch_length(rest.iter()));
                        self.put(partition, batch);
                        rest = others;
                    }
                }
            } else {
                let count = batch_length(self.pending.iter());
                let batch: Vec<Message> = self.pending.drain(..count).collect();
                self.put(self.partition, &batch);
                self.partition = (self.partition + 1) % PARTITIONS;
            }
        }
    }

    fn put(&mut self, partition: usize, messages: &[Message]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
        let partition = i32::try_from(partition).expect("partitions are few");
        self.waiting.push_back(messages.len());
        let records = messages.iter().map(|message| (message.key, &message.body[..]));
        let topic = &self.topic;
        self.client.put(wire::PRODUCE, |out| wire::put_produce(out, topic, partition, now_ms, records));
    }
}

impl Producer for Publisher {
    fn send<'a>(&'a mut self, messages: &'a [Message]) -> Step<'a, ()> {
        Box::pin(async move {
            self.pending.extend(messages.iter().cloned());
            self.put_requests();
            self.client.flush().await
        })
    }

    fn confirmed(&mut self) -> Step<'_, usize> {
        Box::pin(async move {
            loop {
                self.client.flush().await?;
                if self.confirmed > 0 {
                    return Ok(std::mem::take(&mut self.confirmed));
                }
                let mut answer = Some(self.client.answer().await?);
                while let Some(produced) = answer {
                    wire::produced(produced)?;
                    self.confirmed +=
                        self.waiting.pop_front().ok_or("the broker answers what nobody asked")?;
                    answer = self.client.arrived()?;
                }
                self.put_requests();
            }
        })
    }
}

/// How many of these, at least one, go into a request.
fn batch_length<'a>(messages: impl Iterator<Item = &'a Message>) -> usize {
    let mut bytes = 0;
    let fits = |message: &&Message| {
        bytes += message.body.len();
        bytes <= BATCH_BYTES_MAX
    };
    messages.take(BATCH_MAX).take_while(fits).count().max(1)
}

/// Keys that follow each other are spread evenly; messages without one need no order.
fn partition_of(key: Option<u32>) -> usize {
    (key.unwrap_or(0).wrapping_mul(0x9e37_79b9) >> 16) as usize % PARTITIONS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_spread_over_all_partitions() {
        let mut counts = [0; PARTITIONS];
        for key in 0..100_000 {
            counts[partition_of(Some(key))] += 1;
        }
        assert!(counts.iter().all(|count| (24_000..26_000).contains(count)), "{counts:?}");
    }

    #[test]
    fn batches_are_bounded_in_messages_and_in_bytes() {
        let length = |count, size| {
            let message = Message { key: None, body: vec![0; size].into() };
            batch_length(vec![message; count].iter())
        };
        assert_eq!(length(1_024, 100), BATCH_MAX);
        assert_eq!(length(3, 100), 3);
        assert_eq!(length(100, BATCH_BYTES_MAX / 10), 10);
        assert_eq!(length(2, BATCH_BYTES_MAX + 1), 1);
    }

    #[test]
    fn the_version_is_that_of_the_broker() {
        assert_eq!(version("/m/kafka-clients-4.0.0.jar:/m/kafka_2.13-4.1.1.jar:/m/x.jar"), "4.1.1");
        assert_eq!(version("/m/x.jar"), "of unknown version");
    }

    #[tokio::test]
    async fn it_does_what_the_load_relies_on() {
        crate::peers::trial::all(contenders(), CLASS_PATH).await;
    }
}
