//! What the tests share: a message, a handler that does as it is told, and a server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_client::admin::groups::GroupReport;
use forebay_client::worker::RunningWorker;
use forebay_client::{Client, Fault, Job, JobInfo, Payload, Worker, v1};
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
        Rig::with(v1::GroupSettings::default()).await
    }

    /// A server with a group like this.
    pub(crate) async fn with(settings: v1::GroupSettings) -> Rig {
        let server = TestServer::start().await.expect("the server starts");
        let request = v1::CreateGroupRequest {
            stream: STREAM.to_owned(),
            group: GROUP.to_owned(),
            settings: Some(settings),
            start: None,
        };
        let client = Client::connect(server.url()).await.expect("it answers");
        client.raw().create_group(request).await.expect("there was none");
        Rig { server, client, seen: Seen::default() }
    }

    pub(crate) fn worker(&self) -> Worker<Seen> {
        Worker::new(self.client.clone(), STREAM, GROUP, self.seen.clone()).concurrency(1)
    }

    /// A worker whose handler does what this says for a number and an attempt.
    pub(crate) async fn start(
        &self,
        handle: impl Fn(u32, u32) -> Result<(), Fault> + Clone + Send + Sync + 'static,
    ) -> RunningWorker {
        self.worker().on(does(handle)).start().await.expect("the group is there")
    }

    pub(crate) async fn publish(&self, numbers: impl IntoIterator<Item = u32>) {
        let message = |n| {
            let body = serde_json::to_vec(&Task { n }).expect("it is a number");
            v1::Message { body: body.into(), r#type: Task::TYPE.to_owned(), ..Default::default() }
        };
        self.publish_raw(numbers.into_iter().map(message).collect()).await;
    }

    pub(crate) async fn publish_keyed(&self, messages: impl IntoIterator<Item = (u32, String)>) {
        let message = |(n, key)| {
            let body = serde_json::to_vec(&Task { n }).expect("it is a number");
            v1::Message { body: body.into(), r#type: Task::TYPE.to_owned(), key, ..Default::default() }
        };
        self.publish_raw(messages.into_iter().map(message).collect()).await;
    }

    pub(crate) async fn publish_raw(&self, messages: Vec<v1::Message>) {
        let request = v1::PublishRequest { stream: STREAM.to_owned(), messages, ..Default::default() };
        let sent = tokio_stream::once(request);
        let mut replies = self.client.raw().publish(sent).await.expect("it is there").into_inner();
        while let Some(reply) = replies.message().await.expect("the call goes on") {
            for confirmation in reply.confirmations {
                assert_eq!(confirmation.problem, None);
            }
        }
    }

    pub(crate) async fn group(&self) -> GroupReport {
        self.client.group(STREAM, GROUP).await.expect("it is there")
    }

    pub(crate) async fn settled(&self) -> GroupReport {
        self.server.until_settled(STREAM, GROUP).await.expect("everything is settled");
        self.group().await
    }

    pub(crate) async fn parked(&self) -> Vec<v1::Parked> {
        let request = v1::ListParkedRequest {
            stream: STREAM.to_owned(),
            group: GROUP.to_owned(),
            ..Default::default()
        };
        self.client.raw().list_parked(request).await.expect("it is there").into_inner().parked
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

pub(crate) fn backoff(min: Duration, max: Duration) -> Option<v1::Backoff> {
    let ms = |of: Duration| Some(of.as_millis() as u64);
    Some(v1::Backoff { min_ms: ms(min), max_ms: ms(max), factor: Some(2.0), jitter: Some(0.0) })
}

pub(crate) fn retries(at_most: u32) -> Option<v1::Retries> {
    Some(v1::Retries { retries: Some(v1::retries::Retries::AtMost(at_most)) })
}

/// What is published under one name, but of another version.
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
