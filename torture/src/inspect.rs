//! Looks at a server from outside: whether streams and groups are there, how much is left to do, which events it keeps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use forebay_wire::v1;
use forebay_wire::v1::forebay_client::ForebayClient;
use serde_json::json;
use tonic::transport::Channel;

use crate::clients;
use crate::clients::kurrent::{self, Link as KurrentLink, Standing};
use crate::clients::queue::Link;
use crate::history::Phase;
use crate::http::{Connection, in_path};
use crate::plan::{GroupPlan, Plan, Source};
use crate::run::TORMENTOR;
use crate::world::{Server, World};

/// After the last fault the groups must come to rest, and must get on all the time.
pub(crate) const REST_WITHIN: Duration = Duration::from_secs(300);
const GET_ON_WITHIN: Duration = Duration::from_secs(45);
const PARKED_PAGE: u32 = 500;

/// Asks about everything that a plan has.
pub(crate) struct Inspector {
    pub(crate) world: Arc<World>,
    pub(crate) plan: Plan,
    pub(crate) with_http: bool,
}

impl Inspector {
    /// Asks to create every stream and group with its settings: a server that has it says so.
    pub(crate) async fn look_for_all(&self, server: Server) -> anyhow::Result<()> {
        let mut client = clients::connect(server).await?;
        for stream in &self.plan.streams {
            let request = v1::CreateStreamRequest { stream: stream.name.to_owned(), settings: None };
            let created = client.create_stream(request).await.map(|reply| reply.into_inner().created);
            self.found(server, stream.name.to_owned(), created, None)?;
        }
        for group in &self.plan.groups {
            let request = v1::CreateGroupRequest {
                stream: group.stream.to_owned(),
                group: group.group.to_owned(),
                settings: Some(group.settings()),
                start: None,
            };
            let created = client.create_group(request).await.map(|reply| reply.into_inner().created);
            let floor = self.figures(&mut client, group).await?.checkpoint_seq;
            self.found(server, group.name(), created, Some(floor))?;
            if self.with_http {
                self.look_over_http(server, group).await?;
            }
        }
        for queue in &self.plan.queues {
            let address = server.sqs.context("the server does not say where it serves SQS")?;
            let is_new = Link::create(address, queue).await?;
            self.found(server, queue.name.to_owned(), Ok(is_new), None)?;
        }
        self.look_for_subscriptions(server).await
    }

    async fn look_for_subscriptions(&self, server: Server) -> anyhow::Result<()> {
        if self.plan.kurrent.subscriptions.is_empty() {
            return Ok(());
        }
        let mut link = kurrent_link(server).await?;
        for subscription in &self.plan.kurrent.subscriptions {
            let found = link.look_for(subscription).await?;
            self.write_found(server, subscription.name(), found, None);
        }
        Ok(())
    }

    async fn look_over_http(&self, server: Server, group: &GroupPlan) -> anyhow::Result<()> {
        let mut connection = Connection::open(server.address).await?;
        let settings = group.json();
        let answer = connection.request("PUT", &path_of(group), Some(&settings)).await?;
        let created = match answer.status {
            201 => Ok(true),
            200 => Ok(false),
            409 => Err(tonic::Status::already_exists(answer.body.to_string())),
            status => bail!("{} was answered {status} {}", path_of(group), answer.body),
        };
        self.found(server, group.name(), created, None)
    }

    fn found(
        &self,
        server: Server,
        name: String,
        created: Result<bool, tonic::Status>,
        floor: Option<u64>,
    ) -> anyhow::Result<()> {
        let found = match created {
            Ok(true) => "new",
            Ok(false) => "same",
            Err(status) if status.code() == tonic::Code::AlreadyExists => "different",
            Err(status) => return Err(status).with_context(|| format!("cannot look for {name}")),
        };
        self.write_found(server, name, found, floor);
        Ok(())
    }

    fn write_found(&self, server: Server, name: String, found: &str, floor: Option<u64>) {
        let mut fields = vec![("name", name), ("run", server.run.to_string()), ("found", found.to_owned())];
        fields.extend(floor.map(|floor| ("floor", floor.to_string())));
        self.world.write(TORMENTOR, Phase::Ok, "present", &fields);
    }

    async fn figures(
        &self,
        client: &mut ForebayClient<Channel>,
        group: &GroupPlan,
    ) -> anyhow::Result<v1::GetGroupReply> {
        let (stream, name) = (group.stream.to_owned(), group.group.to_owned());
        let asked = client.get_group(v1::GetGroupRequest { stream, group: name });
        let reply = tokio::time::timeout(clients::ANSWER_WITHIN, asked).await;
        let reply = reply.context("no answer").and_then(|reply| reply.map_err(Into::into));
        Ok(reply.with_context(|| format!("{} says nothing about itself", group.name()))?.into_inner())
    }

    /// How many events of logs are not done with: by subscriptions, and by readers.
    async fn open_events(&self, server: Server, how: Rest) -> anyhow::Result<u64> {
        let kurrent = &self.plan.kurrent;
        if kurrent.logs.is_empty() {
            return Ok(0);
        }
        let mut link = kurrent_link(server).await?;
        let mut lengths = Vec::new();
        for log in &kurrent.logs {
            lengths.push((log.name, link.length(log.name).await?));
        }
        let events = |source: Source| -> u64 {
            lengths.iter().filter(|(log, _)| source.has(log)).map(|(_, length)| length).sum()
        };
        let mut open = 0;
        for subscription in &kurrent.subscriptions {
            let Standing { open: lag, parked } = link.standing(subscription).await?;
            let done = self.world.done_with(&subscription.name());
            // Parked events are not done with, and wait for their replay.
            let left = events(subscription.source).saturating_sub(done + parked);
            open += left.max(lag) + if how == Rest::Everything { parked } else { 0 };
        }
        for &source in &kurrent.readers {
            let seen = self.world.done_with(&kurrent::name_of_reader(source));
            open += events(source).saturating_sub(seen);
        }
        Ok(open)
    }

    /// Reads every log, from its first event to its last.
    pub(crate) async fn read_logs(&self, server: Server) -> anyhow::Result<()> {
        for log in &self.plan.kurrent.logs {
            let events = kurrent_link(server).await?.read_log(log.name).await?;
            for event in &events {
                let fields = [
                    ("log", log.name.to_owned()),
                    ("revision", event.revision.to_string()),
                    ("position", event.position.to_string()),
                    ("n", event.number.to_string()),
                    ("content", event.digest.to_string()),
                ];
                self.world.write(TORMENTOR, Phase::Ok, "kept", &fields);
            }
            let fields = [("log", log.name.to_owned()), ("count", events.len().to_string())];
            self.world.write(TORMENTOR, Phase::Ok, "read", &fields);
        }
        Ok(())
    }

    /// How many messages are not done with.
    pub(crate) async fn open(&self, server: Server, how: Rest) -> anyhow::Result<u64> {
        let mut client = clients::connect(server).await?;
        let mut open = 0;
        for group in &self.plan.groups {
            let figures = self.figures(&mut client, group).await?;
            open += figures.lag;
            if how == Rest::Everything {
                open += figures.parked;
            }
        }
        open += self.left_in_queues(server).await?.iter().map(|(_, left)| left).sum::<u64>();
        Ok(open + self.open_events(server, how).await?)
    }

    pub(crate) async fn write_figures(&self, server: Server) -> anyhow::Result<()> {
        let mut client = clients::connect(server).await?;
        for group in &self.plan.groups {
            let figures = self.figures(&mut client, group).await?;
            let mut fields = vec![
                ("group", group.name()),
                ("lag", figures.lag.to_string()),
                ("parked", figures.parked.to_string()),
            ];
            if self.with_http {
                let seqs: Vec<String> =
                    parked(server, group).await?.into_iter().map(|seq| seq.to_string()).collect();
                fields.push(("seqs", seqs.join(",")));
            }
            self.world.write(TORMENTOR, Phase::Ok, "figures", &fields);
        }
        for (queue, left) in self.left_in_queues(server).await? {
            let fields = [("queue", queue.to_owned()), ("count", left.to_string())];
            self.world.write(TORMENTOR, Phase::Ok, "left", &fields);
        }
        for subscription in &self.plan.kurrent.subscriptions {
            let Standing { open, parked } = kurrent_link(server).await?.standing(subscription).await?;
            let fields = [
                ("subscription", subscription.name()),
                ("open", open.to_string()),
                ("parked", parked.to_string()),
            ];
            self.world.write(TORMENTOR, Phase::Ok, "stood", &fields);
        }
        Ok(())
    }

    /// How many messages each queue has.
    async fn left_in_queues(&self, server: Server) -> anyhow::Result<Vec<(&'static str, u64)>> {
        let mut left = Vec::new();
        for queue in &self.plan.queues {
            let address = server.sqs.context("the server does not serve SQS")?;
            left.push((queue.name, Link::open(address, queue).await?.left().await?));
        }
        Ok(left)
    }

    /// Asks for everything that is parked to be tried again.
    pub(crate) async fn replay(&self, server: Server) -> anyhow::Result<()> {
        for group in &self.plan.groups {
            if parked(server, group).await?.is_empty() {
                continue;
            }
            let fields = [("group", group.name())];
            self.world.write(TORMENTOR, Phase::Invoke, "replay", &fields);
            let path = format!("{}/parked/replay", path_of(group));
            let answer = ask(server, "POST", &path, Some(&json!({ "all": true }))).await?;
            let matched = answer["matched"].as_u64().unwrap_or(0);
            let fields = [("group", group.name()), ("matched", matched.to_string())];
            self.world.write(TORMENTOR, Phase::Ok, "replay", &fields);
        }
        for subscription in &self.plan.kurrent.subscriptions {
            let fields = [("subscription", subscription.name())];
            self.world.write(TORMENTOR, Phase::Invoke, "unpark", &fields);
            kurrent_link(server).await?.replay_parked(subscription).await?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    ButParked,
    Everything,
}

/// Whether the groups get on, as time passes.
pub(crate) struct Progress {
    started: Instant,
    moved: Instant,
    least: u64,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress { started: Instant::now(), moved: Instant::now(), least: u64::MAX }
    }

    /// So many messages are open. False if none is, and an error if it takes too long.
    pub(crate) fn goes_on(&mut self, open: u64) -> anyhow::Result<bool> {
        if open < self.least {
            (self.least, self.moved) = (open, Instant::now());
        }
        if open > 0 && (self.moved.elapsed() > GET_ON_WITHIN || self.started.elapsed() > REST_WITHIN) {
            bail!("the groups do not come to rest: {open} messages are open");
        }
        Ok(open > 0)
    }
}

async fn kurrent_link(server: Server) -> anyhow::Result<KurrentLink> {
    KurrentLink::open(server.kurrent.context("the server does not say where it serves Kurrent")?).await
}

fn path_of(group: &GroupPlan) -> String {
    format!("/subscriptions/{}/{}", in_path(group.stream), in_path(group.group))
}

/// The positions of all that is parked.
async fn parked(server: Server, group: &GroupPlan) -> anyhow::Result<Vec<u64>> {
    let (mut seqs, mut after) = (Vec::new(), String::new());
    loop {
        let path = format!("{}/parked?limit={PARKED_PAGE}{after}", path_of(group));
        let answer = ask(server, "GET", &path, None).await?;
        let page = answer["parked"].as_array().context("a list of what is parked")?;
        seqs.extend(page.iter().filter_map(|parked| parked["seq"].as_u64()));
        let next = match &answer["next"] {
            serde_json::Value::String(next) if !page.is_empty() => next.clone(),
            serde_json::Value::Number(next) if !page.is_empty() => next.to_string(),
            _ => return Ok(seqs),
        };
        after = format!("&after={}", in_path(&next));
    }
}

async fn ask(
    server: Server,
    method: &str,
    path: &str,
    body: Option<&serde_json::Value>,
) -> anyhow::Result<serde_json::Value> {
    let mut connection = Connection::open(server.address).await?;
    let asked = tokio::time::timeout(clients::ANSWER_WITHIN, connection.request(method, path, body));
    let answer = asked.await.with_context(|| format!("{method} {path}: no answer"))??;
    if !(200..300).contains(&answer.status) {
        bail!("{method} {path} was answered {} {}", answer.status, answer.body);
    }
    Ok(answer.body)
}
