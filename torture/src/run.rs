//! One run: a server, its clients, the attacks on the server, and the way back to rest.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use forebay_sim::replay::Twin;
use rustix::process::Signal;
use tokio::sync::watch;

use crate::checker::{Record, Report, check};
use crate::clients::kurrent;
use crate::cluster::Cluster;
use crate::crowd::Crowd;
use crate::dice::Dice;
use crate::history::{History, Phase};
use crate::inspect::{Inspector, Progress, Rest};
use crate::plan::Plan;
use crate::server::{Addresses, Launch, Process};
use crate::world::{Place, Server, Stage, World};

/// A start that takes longer is no start.
const START_WITHIN: Duration = Duration::from_secs(60);
const STOP_WITHIN: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How long is watched at the end that nothing comes back.
const WATCH_FOR: Duration = Duration::from_millis(1_500);
/// The process in the history that does things to the server.
pub(crate) const TORMENTOR: u32 = 0;

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
    /// The program of the NATS servers, if a cluster is tortured.
    pub(crate) nats: Option<PathBuf>,
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
    let (tell_place, place) = watch::channel(None);
    let (tell_stage, stage) = watch::channel(Stage::Chaos);
    let world = Arc::new(World::new(history, place, stage));
    let plan = Plan::new(options.with_http, options.with_sqs, options.with_kurrent);
    write_plan(&world, &plan);
    let mut dice = Dice::from(options.seed);
    let inspector = Inspector { world: world.clone(), plan, with_http: options.with_http };
    let play = Play { world: world.clone(), inspector, tell_stage };
    if let Some(nats) = &options.nats {
        let mut cluster = Cluster::new(options, nats, world, tell_place, dice.fork());
        return play.through(&mut cluster, options.lasts, &mut dice).await;
    }
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
    let mut tormentor =
        Tormentor { world, launch, dice: dice.fork(), tell_place, process: None, run: 0, twin: Twin::new() };
    play.through(&mut tormentor, options.lasts, &mut dice).await
}

fn write_plan(world: &World, plan: &Plan) {
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
}

/// The subject of the torture: one server, or a cluster.
pub(crate) trait Victim {
    /// Starts it, looks whether all is there, and lets the clients in.
    async fn start(&mut self, inspector: &Inspector) -> anyhow::Result<()>;

    /// Does things to it for so long. All of it serves again in the end.
    async fn suffer(&mut self, inspector: &Inspector, lasts: Duration) -> anyhow::Result<()>;

    /// Waits, and sees to it that every process is still there.
    async fn wait(&mut self, time: Duration) -> anyhow::Result<()>;

    /// A server that can be asked.
    async fn server(&mut self) -> anyhow::Result<Server>;

    /// Stops the server that serves, and waits until it, or another one, serves again.
    async fn change_cleanly(&mut self, inspector: &Inspector) -> anyhow::Result<()>;

    async fn stop(&mut self) -> anyhow::Result<()>;
}

/// One run, from the first start to the last stop.
struct Play {
    world: Arc<World>,
    inspector: Inspector,
    tell_stage: watch::Sender<Stage>,
}

impl Play {
    async fn through(
        &self,
        victim: &mut impl Victim,
        lasts: Duration,
        dice: &mut Dice,
    ) -> anyhow::Result<()> {
        victim.start(&self.inspector).await?;
        let mut crowd = Crowd::gather(&self.world, &self.inspector.plan, dice);
        // Whatever happens from here on, the history is kept: it says what went wrong.
        let ended = self.acts(victim, lasts, &mut crowd).await;
        if let Err(error) = &ended {
            self.world.trouble(TORMENTOR, format!("{error:#}"));
        }
        self.tell_stage.send_replace(Stage::Over);
        crowd.leave().await;
        // One that has to be told twice is told of once.
        if let (Ok(()), Err(error)) = (&ended, victim.stop().await) {
            self.world.trouble(TORMENTOR, format!("{error:#}"));
        }
        self.world.history.flush().context("cannot write the history")
    }

    async fn acts(&self, victim: &mut impl Victim, lasts: Duration, crowd: &mut Crowd) -> anyhow::Result<()> {
        let inspector = &self.inspector;
        victim.suffer(inspector, lasts).await?;
        self.stage(Stage::Calm);
        crowd.published().await?;
        self.rest(victim, Rest::ButParked).await?;
        inspector.write_figures(victim.server().await?).await?;
        if inspector.with_http {
            // Before anything is asked for again, every consumer must be ready to finish it.
            self.stage(Stage::Healed);
            inspector.replay(victim.server().await?).await?;
            self.rest(victim, Rest::Everything).await?;
            inspector.write_figures(victim.server().await?).await?;
        }
        // After a clean stop nothing comes back that was settled.
        victim.change_cleanly(inspector).await?;
        victim.wait(WATCH_FOR).await?;
        self.rest(victim, Rest::ButParked).await?;
        let server = victim.server().await?;
        inspector.write_figures(server).await?;
        inspector.read_logs(server).await
    }

    fn stage(&self, stage: Stage) {
        self.world.write(TORMENTOR, Phase::Info, "stage", &[("name", format!("{stage:?}"))]);
        self.tell_stage.send_replace(stage);
    }

    /// Waits until every group is done.
    async fn rest(&self, victim: &mut impl Victim, how: Rest) -> anyhow::Result<()> {
        let mut progress = Progress::new();
        while progress.goes_on(self.inspector.open(victim.server().await?, how).await?)? {
            victim.wait(LOOK_AGAIN).await?;
        }
        Ok(())
    }
}

/// Does things to the server.
struct Tormentor {
    world: Arc<World>,
    launch: Launch,
    dice: Dice,
    tell_place: watch::Sender<Option<Place>>,
    process: Option<Process>,
    run: u32,
    /// The data folder as a disk has it that may lose power, if the server writes down its calls.
    twin: Twin,
}

impl Tormentor {
    fn named(&self) -> [(&'static str, String); 1] {
        [("run", self.run.to_string())]
    }

    fn process(&mut self) -> anyhow::Result<&mut Process> {
        self.process.as_mut().context("there is no server")
    }

    async fn do_something(&mut self, inspector: &Inspector) -> anyhow::Result<()> {
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
        self.start(inspector).await
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        self.tell_place.send_replace(None);
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

    fn launch(&mut self) -> anyhow::Result<()> {
        self.run += 1;
        self.world.write(TORMENTOR, Phase::Invoke, "start", &self.named());
        self.process = Some(Process::start(&self.launch, self.run)?);
        Ok(())
    }
}

impl Victim for Tormentor {
    async fn start(&mut self, inspector: &Inspector) -> anyhow::Result<()> {
        self.launch()?;
        let run = self.run;
        let Addresses { native, sqs, kurrent } = self.process()?.listening(START_WITHIN).await?;
        self.world.write(TORMENTOR, Phase::Ok, "start", &self.named());
        let server = Server { run, address: native, sqs, kurrent, is_node: false };
        inspector.look_for_all(server).await.with_context(|| format!("run {run} does not answer"))?;
        self.tell_place.send_replace(Some(Place::One(server)));
        Ok(())
    }

    async fn suffer(&mut self, inspector: &Inspector, lasts: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + lasts;
        while Instant::now() < until {
            let pause = if self.dice.permille(120) {
                self.dice.between(20, 300)
            } else {
                self.dice.between(1_000, 8_000)
            };
            let pause = Duration::from_millis(pause).min(until.saturating_duration_since(Instant::now()));
            self.wait(pause).await?;
            self.do_something(inspector).await?;
        }
        Ok(())
    }

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

    async fn server(&mut self) -> anyhow::Result<Server> {
        match &*self.tell_place.borrow() {
            Some(Place::One(server)) => Ok(*server),
            _ => bail!("there is no server"),
        }
    }

    async fn change_cleanly(&mut self, inspector: &Inspector) -> anyhow::Result<()> {
        self.stop().await?;
        self.start(inspector).await
    }

    async fn stop(&mut self) -> anyhow::Result<()> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        self.tell_place.send_replace(None);
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
}
