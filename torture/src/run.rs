//! One run: a server, its clients, the attacks on the server, and the way back to rest.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use forebay_sim::replay::Twin;
use forebay_wire::v1;
use forebay_wire::v1::forebay_client::ForebayClient;
use rustix::process::Signal;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::checker::{Record, Report, check};
use crate::clients;
use crate::clients::kurrent::{self, Link as KurrentLink, Standing};
use crate::clients::queue::Link;
use crate::dice::Dice;
use crate::history::{History, Phase};
use crate::http::{Connection, in_path};
use crate::plan::{Door, GroupPlan, Plan, Source};
use crate::server::{Addresses, Launch, Process};
use crate::world::{Server, Stage, World};

/// A start that takes longer is no start.
const START_WITHIN: Duration = Duration::from_secs(60);
const STOP_WITHIN: Duration = Duration::from_secs(20);
/// After the last fault the groups must come to rest, and must get on all the time.
const REST_WITHIN: Duration = Duration::from_secs(300);
const GET_ON_WITHIN: Duration = Duration::from_secs(45);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How long is watched at the end that nothing comes back.
const WATCH_FOR: Duration = Duration::from_millis(1_500);
/// The process in the history that does things to the server.
const TORMENTOR: u32 = 0;
const PARKED_PAGE: u32 = 500;

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) program: PathBuf,
    pub(crate) lasts: Duration,
    pub(crate) seed: u64,
    pub(crate) with_http: bool,
    /// Whether clients of SQS queues take part.
    pub(crate) with_sqs: bool,
    /// Whether clients of KurrentDB take part.
    pub(crate) with_kurrent: bool,
    /// Whether the machine loses power when the server is killed.
    pub(crate) with_power_loss: bool,
    /// The master key of the data folder. None: it is not encrypted.
    pub(crate) key: Option<String>,
    /// Where history and data go.
    pub(crate) folder: PathBuf,
    pub(crate) fault: Option<String>,
    pub(crate) words: Vec<String>,
}

pub(crate) fn history_in(folder: &Path) -> PathBuf {
    folder.join("history")
}

/// Runs, and says what the history shows.
pub(crate) fn run(options: &Options) -> anyhow::Result<Report> {
    std::fs::create_dir_all(&options.folder)
        .with_context(|| format!("cannot create {}", options.folder.display()))?;
    let path = history_in(&options.folder);
    let history = History::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(torment(options, history))?;
    // Tasks that still run must not write to a history that is being read.
    runtime.shutdown_timeout(Duration::from_secs(5));
    check_file(&path)
}

pub(crate) fn check_file(path: &Path) -> anyhow::Result<Report> {
    let cannot = || format!("cannot read {}", path.display());
    let mut lines = BufReader::new(File::open(path).with_context(cannot)?).lines();
    let mut broken = None;
    // Line by line: the record of a long run is smaller than its text.
    let text = std::iter::from_fn(|| match lines.next()? {
        Ok(line) => Some(line),
        Err(error) => {
            broken = Some(error);
            None
        }
    });
    let record = Record::read(text).with_context(|| format!("{} is no history", path.display()))?;
    match broken {
        Some(error) => Err(error).with_context(cannot),
        None => Ok(check(&record)),
    }
}

async fn torment(options: &Options, history: History) -> anyhow::Result<()> {
    let (tell_server, server) = watch::channel(None);
    let (tell_stage, stage) = watch::channel(Stage::Chaos);
    let world = Arc::new(World::new(history, server, stage));
    let plan = Plan::new(options.with_http, options.with_sqs, options.with_kurrent);
    for stream in &plan.streams {
        world.write(TORMENTOR, Phase::Info, "stream", &[("name", stream.name.to_owned())]);
    }
    for group in &plan.groups {
        world.write(TORMENTOR, Phase::Info, "group", &group.fields());
    }
    for queue in &plan.queues {
        world.write(TORMENTOR, Phase::Info, "queue", &queue.fields());
    }
    for log in &plan.kurrent.logs {
        world.write(TORMENTOR, Phase::Info, "log", &log.fields());
    }
    for subscription in &plan.kurrent.subscriptions {
        world.write(TORMENTOR, Phase::Info, "subscription", &subscription.fields());
    }
    for source in &plan.kurrent.readers {
        let fields = [("name", kurrent::name_of_reader(*source)), ("source", source.stream().to_owned())];
        world.write(TORMENTOR, Phase::Info, "reader", &fields);
    }
    let mut dice = Dice::from(options.seed);
    let launch = Launch {
        program: options.program.clone(),
        data: options.folder.join("data"),
        fault: options.fault.clone(),
        recording: options.with_power_loss.then(|| options.folder.join("calls")),
        with_sqs: options.with_sqs,
        key: options.key.clone(),
        with_kurrent: options.with_kurrent,
        words: options.words.clone(),
    };
    let mut tormentor = Tormentor {
        world: world.clone(),
        plan: plan.clone(),
        launch,
        dice: dice.fork(),
        tell_server,
        process: None,
        run: 0,
        with_http: options.with_http,
        twin: Twin::new(),
    };
    tormentor.start().await?;
    let mut crowd = Crowd::gather(&world, &plan, &mut dice);
    // Whatever happens from here on, the history is kept: it says what went wrong.
    let ended = tormentor.go_through(options.lasts, &tell_stage, &mut crowd).await;
    if let Err(error) = &ended {
        world.trouble(TORMENTOR, format!("{error:#}"));
    }
    tell_stage.send_replace(Stage::Over);
    crowd.leave().await;
    // One that has to be told twice is told of once.
    if let (Ok(()), Err(error)) = (&ended, tormentor.stop().await) {
        world.trouble(TORMENTOR, format!("{error:#}"));
    }
    world.history.flush().context("cannot write the history")
}

/// All clients.
struct Crowd {
    producers: JoinSet<()>,
    consumers: JoinSet<()>,
}

impl Crowd {
    fn gather(world: &Arc<World>, plan: &Plan, dice: &mut Dice) -> Crowd {
        let (mut producers, mut consumers) = (JoinSet::new(), JoinSet::new());
        let mut process = TORMENTOR;
        let mut next = || {
            process += 1;
            (world.clone(), process)
        };
        for stream in &plan.streams {
            for door in &stream.producers {
                let (world, process) = next();
                let (stream, dice) = (stream.clone(), dice.fork());
                match *door {
                    Door::Grpc(naming) => {
                        producers.spawn(clients::produce(world, process, stream, naming, dice))
                    }
                    Door::Http => producers.spawn(clients::push(world, process, stream, dice)),
                };
            }
        }
        for group in &plan.groups {
            for _ in 0..group.consumers {
                let (world, process) = next();
                consumers.spawn(clients::consume(world, process, group.clone(), dice.fork()));
            }
            for _ in 0..group.pullers {
                let (world, process) = next();
                consumers.spawn(clients::pull(world, process, group.clone(), dice.fork()));
            }
        }
        for queue in &plan.queues {
            for _ in 0..queue.senders {
                let (world, process) = next();
                producers.spawn(clients::queue::send(world, process, queue.clone(), dice.fork()));
            }
            for _ in 0..queue.consumers {
                let (world, process) = next();
                consumers.spawn(clients::queue::work_off(world, process, queue.clone(), dice.fork()));
            }
        }
        for log in &plan.kurrent.logs {
            for _ in 0..log.writers {
                let (world, process) = next();
                producers.spawn(kurrent::append(world, process, log.clone(), dice.fork()));
            }
        }
        for subscription in &plan.kurrent.subscriptions {
            for _ in 0..subscription.consumers {
                let (world, process) = next();
                consumers.spawn(kurrent::consume(world, process, subscription.clone(), dice.fork()));
            }
        }
        for source in &plan.kurrent.readers {
            let (world, process) = next();
            consumers.spawn(kurrent::follow(world, process, *source, dice.fork()));
        }
        Crowd { producers, consumers }
    }

    /// Waits until every producer has learnt what became of all that it sent.
    async fn published(&mut self) -> anyhow::Result<()> {
        let all = async {
            while let Some(ended) = self.producers.join_next().await {
                ended.context("a producer broke")?;
            }
            Ok(())
        };
        tokio::time::timeout(REST_WITHIN, all).await.context("the producers do not come to an end")?
    }

    async fn leave(&mut self) {
        let all = async { while self.consumers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(clients::ANSWER_WITHIN, all).await;
        self.consumers.shutdown().await;
        self.producers.shutdown().await;
    }
}

/// Does things to the server.
struct Tormentor {
    world: Arc<World>,
    plan: Plan,
    launch: Launch,
    dice: Dice,
    tell_server: watch::Sender<Option<Server>>,
    process: Option<Process>,
    run: u32,
    with_http: bool,
    /// The data folder as a disk has it that may lose power, if the server writes down its calls.
    twin: Twin,
}

impl Tormentor {
    async fn go_through(
        &mut self,
        lasts: Duration,
        tell_stage: &watch::Sender<Stage>,
        crowd: &mut Crowd,
    ) -> anyhow::Result<()> {
        let until = Instant::now() + lasts;
        while Instant::now() < until {
            let pause = if self.dice.permille(120) {
                self.dice.between(20, 300)
            } else {
                self.dice.between(1_000, 8_000)
            };
            let pause = Duration::from_millis(pause).min(until.saturating_duration_since(Instant::now()));
            self.wait(pause).await?;
            self.do_something().await?;
        }
        self.stage(tell_stage, Stage::Calm);
        crowd.published().await?;
        self.rest(Rest::ButParked).await?;
        self.write_figures().await?;
        if self.with_http {
            // Before anything is asked for again, every consumer must be ready to finish it.
            self.stage(tell_stage, Stage::Healed);
            self.replay().await?;
            self.rest(Rest::Everything).await?;
            self.write_figures().await?;
        }
        // After a clean stop nothing comes back that was settled.
        self.stop().await?;
        self.start().await?;
        self.wait(WATCH_FOR).await?;
        self.rest(Rest::ButParked).await?;
        self.write_figures().await?;
        self.read_logs().await
    }

    fn stage(&self, tell: &watch::Sender<Stage>, stage: Stage) {
        self.world.write(TORMENTOR, Phase::Info, "stage", &[("name", format!("{stage:?}"))]);
        tell.send_replace(stage);
    }

    fn named(&self) -> [(&'static str, String); 1] {
        [("run", self.run.to_string())]
    }

    fn process(&mut self) -> anyhow::Result<&mut Process> {
        self.process.as_mut().context("there is no server")
    }

    /// Waits, and sees to it that the server is still there.
    async fn wait(&mut self, time: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + time;
        loop {
            let process = self.process()?;
            if let Some(status) = process.ended() {
                bail!("the server ended by itself in run {} ({status}): {}", process.run, process.said());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            tokio::time::sleep(left.min(LOOK_AGAIN)).await;
        }
    }

    async fn do_something(&mut self) -> anyhow::Result<()> {
        match self.dice.between(0, 99) {
            0..55 => self.kill()?,
            // Again and again while it recovers.
            55..70 => {
                self.kill()?;
                for _ in 0..self.dice.between(1, 3) {
                    self.launch()?;
                    let moment = Duration::from_millis(self.dice.between(0, 80));
                    self.wait(moment).await?;
                    self.kill()?;
                }
            }
            70..83 => self.stop().await?,
            _ => {
                let still = Duration::from_millis(self.dice.between(100, 4_000));
                self.world.write(TORMENTOR, Phase::Info, "pause", &self.named());
                self.process()?.signal(Signal::STOP)?;
                tokio::time::sleep(still).await;
                if self.dice.permille(250) {
                    self.kill()?;
                    self.world.write(TORMENTOR, Phase::Info, "resume", &self.named());
                } else {
                    self.process()?.signal(Signal::CONT)?;
                    self.world.write(TORMENTOR, Phase::Info, "resume", &self.named());
                    return Ok(());
                }
            }
        }
        let down = if self.dice.permille(700) { 0 } else { self.dice.between(10, 1_500) };
        tokio::time::sleep(Duration::from_millis(down)).await;
        self.start().await
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        self.tell_server.send_replace(None);
        self.world.write(TORMENTOR, Phase::Invoke, "kill", &self.named());
        self.process()?.kill()?;
        self.process = None;
        let survival = tokio::task::block_in_place(|| self.lose_power())?;
        let mut fields = self.named().to_vec();
        fields.extend(survival.map(|survival| ("power", survival)));
        self.world.write(TORMENTOR, Phase::Ok, "kill", &fields);
        Ok(())
    }

    /// Takes from the folder of a server that was killed what a disk may lose with the power. Says how it was chosen.
    fn lose_power(&mut self) -> anyhow::Result<Option<String>> {
        if !self.take_in_calls()? {
            return Ok(None);
        }
        let survival = self.twin.lose_power(self.dice.between(0, u64::MAX - 1));
        self.twin.put_into(&self.launch.data).context("cannot write the folder after a loss of power")?;
        Ok(Some(format!("{survival:?}")))
    }

    /// False if calls are not recorded.
    fn take_in_calls(&mut self) -> anyhow::Result<bool> {
        let Some(recording) = &self.launch.recording else { return Ok(false) };
        // A server that was killed before it opened its folder has written down nothing.
        let calls = std::fs::read(recording).unwrap_or_default();
        self.twin.take_in(&calls).context("the recording of disk calls")?;
        let _ = std::fs::remove_file(recording);
        Ok(true)
    }

    /// Makes sure that the recording of a server that has stopped is whole.
    fn compare_with_calls(&mut self) -> anyhow::Result<()> {
        if self.take_in_calls()?
            && let Some(difference) = self.twin.difference(&self.launch.data)?
        {
            bail!("the recording of disk calls is not whole: {difference}");
        }
        Ok(())
    }

    async fn stop(&mut self) -> anyhow::Result<()> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        self.tell_server.send_replace(None);
        self.world.write(TORMENTOR, Phase::Invoke, "stop", &self.named());
        process.signal(Signal::TERM)?;
        match process.wait(STOP_WITHIN).await {
            Some(status) if status.success() => {
                self.world.write(TORMENTOR, Phase::Ok, "stop", &self.named());
                tokio::task::block_in_place(|| self.compare_with_calls())
            }
            Some(status) => bail!("a stop ended badly ({status}): {}", process.said()),
            None => {
                self.world.write(TORMENTOR, Phase::Invoke, "kill", &self.named());
                bail!("the server does not stop within {STOP_WITHIN:?}: {}", process.said());
            }
        }
    }

    fn launch(&mut self) -> anyhow::Result<()> {
        self.run += 1;
        self.world.write(TORMENTOR, Phase::Invoke, "start", &self.named());
        self.process = Some(Process::start(&self.launch, self.run)?);
        Ok(())
    }

    /// Starts the server, looks whether all is there, and lets the clients in.
    async fn start(&mut self) -> anyhow::Result<()> {
        self.launch()?;
        let run = self.run;
        let Addresses { native, sqs, kurrent } = self.process()?.listening(START_WITHIN).await?;
        self.world.write(TORMENTOR, Phase::Ok, "start", &self.named());
        let server = Server { run, address: native, sqs, kurrent };
        self.look_for_all(server).await.with_context(|| format!("run {run} does not answer"))?;
        self.tell_server.send_replace(Some(server));
        Ok(())
    }

    /// Asks to create every stream and group with its settings: a server that has it says so.
    async fn look_for_all(&self, server: Server) -> anyhow::Result<()> {
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
    async fn open_events(&self, how: Rest) -> anyhow::Result<u64> {
        let kurrent = &self.plan.kurrent;
        if kurrent.logs.is_empty() {
            return Ok(0);
        }
        let mut link = kurrent_link(self.server()?).await?;
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
    async fn read_logs(&self) -> anyhow::Result<()> {
        for log in &self.plan.kurrent.logs {
            let events = kurrent_link(self.server()?).await?.read_log(log.name).await?;
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

    fn server(&self) -> anyhow::Result<Server> {
        self.tell_server.borrow().context("there is no server")
    }

    /// Waits until every group is done.
    async fn rest(&mut self, how: Rest) -> anyhow::Result<()> {
        let mut client = clients::connect(self.server()?).await?;
        let (started, mut moved, mut least) = (Instant::now(), Instant::now(), u64::MAX);
        loop {
            let mut open = 0;
            for group in &self.plan.groups {
                let figures = self.figures(&mut client, group).await?;
                open += figures.lag;
                if how == Rest::Everything {
                    open += figures.parked;
                }
            }
            open += self.left_in_queues().await?.iter().map(|(_, left)| left).sum::<u64>();
            open += self.open_events(how).await?;
            if open == 0 {
                return Ok(());
            }
            if open < least {
                (least, moved) = (open, Instant::now());
            }
            if moved.elapsed() > GET_ON_WITHIN || started.elapsed() > REST_WITHIN {
                bail!("the groups do not come to rest: {open} messages are open");
            }
            self.wait(LOOK_AGAIN).await?;
        }
    }

    async fn write_figures(&mut self) -> anyhow::Result<()> {
        let server = self.server()?;
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
        for (queue, left) in self.left_in_queues().await? {
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
    async fn left_in_queues(&self) -> anyhow::Result<Vec<(&'static str, u64)>> {
        let mut left = Vec::new();
        for queue in &self.plan.queues {
            let address = self.server()?.sqs.context("the server does not serve SQS")?;
            left.push((queue.name, Link::open(address, queue).await?.left().await?));
        }
        Ok(left)
    }

    /// Asks for everything that is parked to be tried again.
    async fn replay(&mut self) -> anyhow::Result<()> {
        let server = self.server()?;
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
enum Rest {
    ButParked,
    Everything,
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
