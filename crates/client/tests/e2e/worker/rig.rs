//! What the tests share: a message, a handler that does as it is told, and a server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_client::admin::groups::GroupReport;
use forebay_client::admin::parked::{Parked, ParkedFilter};
use forebay_client::worker::WorkerBuilder;
use forebay_client::{Backoff, Client, Fault, GroupSettings, Job, JobInfo, Message, Payload, Worker};
use forebay_test::TestServer;
use serde::{Deserialize, Serialize};

pub(crate) const STREAM: &str = "tasks";
pub(crate) const GROUP: &str = "pool";
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A message that says its own number.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) n: u32,
}

impl Payload for Task {
    const TYPE: &'static str = "task";
}

/// What handlers have seen: number and attempt, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<Vec<(u32, u32)>>>);

impl Seen {
    pub(crate) fn add(&self, job: &Job<Task>) {
        self.0.lock().expect("no test panics in here").push((job.n, job.info.attempt()));
    }

    pub(crate) fn all(&self) -> Vec<(u32, u32)> {
        self.0.lock().expect("no test panics in here").clone()
    }

    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.all().into_iter().map(|(n, _)| n).collect()
    }
}

pub(crate) struct Rig {
    pub(crate) server: TestServer,
    pub(crate) client: Client,
    pub(crate) seen: Seen,
}

impl Rig {
    pub(crate) async fn new() -> Rig {
        Rig::with(GroupSettings::new()).await
    }

    /// A server with a group like this.
    pub(crate) async fn with(settings: GroupSettings) -> Rig {
        let server = TestServer::start().await.expect("the server starts");
        let client = Client::connect(server.url()).await.expect("it answers");
        client.create_group(STREAM, GROUP, settings).await.expect("there was none");
        Rig { server, client, seen: Seen::default() }
    }

    pub(crate) fn worker(&self) -> WorkerBuilder<Seen> {
        Worker::builder(self.client.clone(), STREAM, GROUP, self.seen.clone()).concurrency(1)
    }

    /// A worker whose handler does what this says for a number and an attempt.
    pub(crate) async fn start(
        &self,
        handle: impl Fn(u32, u32) -> Result<(), Fault> + Clone + Send + Sync + 'static,
    ) -> Worker {
        self.worker().on(does(handle)).start().await.expect("the group is there")
    }

    pub(crate) async fn publish(&self, numbers: impl IntoIterator<Item = u32>) {
        let message = |n| {
            let body = serde_json::to_vec(&Task { n }).expect("it is a number");
            Message::new(body).kind(Task::TYPE)
        };
        self.publish_all(numbers.into_iter().map(message).collect()).await;
    }

    pub(crate) async fn publish_keyed(&self, messages: impl IntoIterator<Item = (u32, String)>) {
        let message = |(n, key)| {
            let body = serde_json::to_vec(&Task { n }).expect("it is a number");
            Message::new(body).kind(Task::TYPE).key(key)
        };
        self.publish_all(messages.into_iter().map(message).collect()).await;
    }

    pub(crate) async fn publish_all(&self, messages: Vec<Message>) {
        self.client.publish_batch(STREAM, messages).await.expect("they are stored");
    }

    pub(crate) async fn group(&self) -> GroupReport {
        self.client.group(STREAM, GROUP).await.expect("it is there")
    }

    pub(crate) async fn settled(&self) -> GroupReport {
        self.server.until_settled(STREAM, GROUP).await.expect("everything is settled");
        self.group().await
    }

    pub(crate) async fn parked(&self) -> Vec<Parked> {
        let page = self.client.parked_after(STREAM, GROUP, 0, ParkedFilter::default()).await;
        page.expect("it is there").items
    }

    /// Waits until the group looks like this.
    pub(crate) async fn until(&self, wanted: impl Fn(&GroupReport) -> bool) -> GroupReport {
        for _ in 0..20_000 {
            let group = self.group().await;
            if wanted(&group) {
                return group;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("it never came to that: {:?}", self.group().await);
    }
}

/// A handler that writes down what it sees and does what this says.
pub(crate) fn does(
    handle: impl Fn(u32, u32) -> Result<(), Fault> + Clone + Send + Sync + 'static,
) -> impl Fn(Seen, Job<Task>) -> std::future::Ready<Result<(), Fault>> + Send + Sync + 'static {
    move |seen, job| {
        seen.add(&job);
        std::future::ready(handle(job.n, job.info.attempt()))
    }
}

/// Waits until this is so.
pub(crate) async fn until(mut so: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("it never came to that");
}

pub(crate) fn backoff(min: Duration, max: Duration) -> Backoff {
    Backoff::new().min(min).max(max).factor(2.0).jitter(0.0)
}

/// A task of the same name, but of another version.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TaskV2 {
    pub(crate) number: u32,
}

impl Payload for TaskV2 {
    const TYPE: &'static str = "task";
    const SCHEMA: u64 = 2;
}

/// Nothing but the facts of a job.
pub(crate) fn facts(info: &JobInfo) -> (u64, u32) {
    (info.seq(), info.attempt())
}
