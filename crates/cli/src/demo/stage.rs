//! Plays the story: starts and kills the processes that the plan names, and watches.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use forebay_client::admin::groups::GroupReport;
use forebay_client::admin::parked::ParkedFilter;
use forebay_client::admin::settings::{Backoff, Rate};
use forebay_client::{Client, GroupSettings};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::film::{self, Film};
use super::ledger::{Accounts, Ledger};
use super::plan::{Act, Plan};
use super::producer::{PRODUCERS, produce};
use super::server::ServerProcess;
use super::view::{Curves, Meter, Picture, WorkerFigures};
use super::worker::{State, WorkerProcess};
use super::{GROUP, STREAM, order_of};
use crate::clock::{Clock, Timestamp};
use crate::print::{Colour, Output, colours, print};
use crate::screen::Screen;
use crate::units;

/// How often the plan is looked at and the picture is drawn.
const TICK: Duration = Duration::from_millis(100);
/// How often the server is asked how its group does, and how long it may take to say.
const ASK: Duration = Duration::from_millis(200);
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How often a line is printed where there is no picture.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Nothing is expected any more if nothing has happened for so long.
const STUCK: Duration = Duration::from_secs(30);
/// How long the last queries to the server may take at the end.
const CLOSE_MAX: Duration = Duration::from_secs(30);

pub(super) struct Stage {
    plan: Plan,
    output: Output,
    /// There is a picture, so nothing is printed beside it.
    draws: bool,
    folder: PathBuf,
    server: ServerProcess,
    address: String,
    client: Client,
    ledger: Ledger,
    workers: Vec<WorkerProcess>,
    meters: Vec<Meter>,
    clock: Clock,
    began: Timestamp,
    story: Vec<(Duration, String)>,
    peaks: Peaks,
    film: Option<Film>,
}

/// The most there was of each.
#[derive(Debug, Clone, Copy, Default)]
struct Peaks {
    waiting: u64,
    arriving: f64,
}

impl Stage {
    /// Starts the server, creates the group, and starts the first workers.
    pub(super) async fn set(
        plan: Plan,
        folder: &Path,
        output: Output,
        draws: bool,
        svg: Option<&Path>,
    ) -> anyhow::Result<Stage> {
        let (server, client) = ServerProcess::start(folder).await?;
        let settings = GroupSettings::new()
            .rate(Rate::per_second(plan.pace).burst((plan.pace / 10.0) as u32))
            .backoff(Backoff::new().min(Duration::from_millis(200)).max(Duration::from_secs(1)));
        client.create_group(STREAM, GROUP, settings).await.context("cannot create the group")?;
        let clock = Clock::start();
        let mut stage = Stage {
            address: server.address.to_string(),
            output,
            draws,
            folder: folder.to_owned(),
            server,
            client,
            ledger: Ledger::default(),
            workers: Vec::new(),
            meters: Vec::new(),
            began: clock.now(),
            clock,
            story: Vec::new(),
            peaks: Peaks::default(),
            film: svg.map(|path| Film::new(path, plan.sample * 2)),
            plan,
        };
        for _ in 0..stage.plan.workers {
            stage.join()?;
        }
        Ok(stage)
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn story(&self) -> &[(Duration, String)] {
        &self.story
    }

    /// Ends the picture that was asked for with these lines, and writes it.
    pub(super) fn finish_film(&mut self, lines: Vec<(Colour, String)>) -> anyhow::Result<()> {
        let now = self.elapsed();
        self.film.take().map_or(Ok(()), |film| film.finish(now, lines))
    }

    /// A line that explains leveling.
    pub(super) fn moral(&self) -> String {
        let Peaks { waiting, arriving } = self.peaks;
        let (waiting, arriving, pace) =
            (units::count(waiting), units::rate(arriving), units::rate(self.plan.pace));
        format!(
            "Up to {arriving} came in, the group was held to {pace}, and up to {waiting} waited in between."
        )
    }

    fn elapsed(&self) -> Duration {
        self.clock.now().since(self.began)
    }

    /// From the first order to the accounts.
    pub(super) async fn play(&mut self, screen: Option<&Screen>) -> anyhow::Result<Accounts> {
        self.began = self.clock.now();
        let (workers, pace) = (self.workers.len(), units::rate(self.plan.pace));
        self.tell(format!("{workers} workers share one group, which is held to a pace of {pace}"))?;
        let mut producers = JoinSet::new();
        for _ in 0..PRODUCERS {
            let (client, plan, ledger) = (self.client.clone(), self.plan.clone(), self.ledger.clone());
            producers.spawn(produce(client, plan, ledger, self.clock, self.began));
        }
        // Ends with the stage.
        let mut asking = JoinSet::new();
        let (tell, report) = watch::channel(None);
        asking.spawn(ask(self.client.clone(), tell));
        let mut watched = Watched::default();
        let mut acts: VecDeque<(Duration, Act)> = self.plan.acts.clone().into();
        let mut tick = tokio::time::interval(TICK);
        loop {
            tick.tick().await;
            while producers.try_join_next().is_some() {}
            while let Some((_, act)) = acts.pop_front_if(|(at, _)| *at <= self.elapsed()) {
                self.perform(act).await?;
            }
            let now = report.borrow().clone();
            self.narrate(&mut watched)?;
            self.show(&mut watched, now.as_ref(), screen)?;
            let is_over = producers.is_empty() && acts.is_empty();
            if is_over && now.is_some_and(|report: GroupReport| report.lag == 0) && self.is_done().await {
                break;
            }
            if is_over && watched.quiet(self.elapsed(), &self.ledger) > STUCK {
                break;
            }
        }
        self.close().await
    }

    /// Asked once more, since the last answer may be older than the last order.
    async fn is_done(&self) -> bool {
        let answer = tokio::time::timeout(ANSWER_MAX, self.client.group(STREAM, GROUP)).await;
        matches!(answer, Ok(Ok(report)) if report.lag == 0)
    }

    async fn perform(&mut self, act: Act) -> anyhow::Result<()> {
        match act {
            Act::KillWorker => {
                // The last one, so that the others stay where they are in the picture.
                if let Some(worker) =
                    self.workers.iter_mut().rev().find(|worker| worker.state == State::AtWork)
                {
                    worker.kill().await;
                    let name = worker.name.clone();
                    self.tell(format!("{name} is killed with kill -9; its messages go to the others"))?;
                }
            }
            Act::WorkerJoins => {
                let name = self.join()?;
                self.tell(format!("{name} joins; the pace stays the same"))?;
            }
            Act::WorkerLeaves => {
                if let Some(worker) = self.workers.iter_mut().find(|worker| worker.state == State::AtWork) {
                    worker.leave();
                    let name = worker.name.clone();
                    self.tell(format!(
                        "{name} is told to stop: it finishes its running jobs, and gives back the rest"
                    ))?;
                }
            }
            Act::KillServer => {
                self.server.kill().await;
                self.tell("the server itself is killed with kill -9".to_owned())?;
            }
            Act::StartServer => {
                self.server.spawn()?;
                self.tell(
                    "the server is started again; producers and workers reconnect by themselves".to_owned(),
                )?;
            }
        }
        Ok(())
    }

    fn join(&mut self) -> anyhow::Result<String> {
        let name = format!("worker-{}", self.workers.len() + 1);
        let worker = WorkerProcess::start(name.clone(), &self.address, &self.folder, self.ledger.clone())?;
        self.workers.push(worker);
        self.meters.push(Meter::default());
        Ok(name)
    }

    /// Tells of events that depend on time and not on acts of the plan.
    fn narrate(&mut self, watched: &mut Watched) -> anyhow::Result<()> {
        let elapsed = self.elapsed();
        if elapsed >= self.plan.burst_from && !std::mem::replace(&mut watched.burst_told, true) {
            let (burst, times) = (units::rate(self.plan.burst), self.plan.burst / self.plan.pace);
            self.tell(format!("a burst: {burst} come in, {times:.1} times as many as may go out"))?;
        }
        if elapsed >= self.plan.burst_until && !std::mem::replace(&mut watched.calm_told, true) {
            self.tell("the burst is over; the backlog is worked off at the same pace as before".to_owned())?;
        }
        if elapsed >= self.plan.orders_end && !std::mem::replace(&mut watched.end_told, true) {
            self.tell("the last order has been placed".to_owned())?;
        }
        Ok(())
    }

    /// A line of the story. Where there is no picture it is printed at once.
    fn tell(&mut self, text: String) -> anyhow::Result<()> {
        let at = self.elapsed();
        if self.output == Output::Json {
            let line = serde_json::json!({ "elapsed": at.as_secs_f64(), "story": text });
            print(&format!("{line}\n"))?;
        } else if !self.draws {
            print(&format!("{:>3}s  {text}\n", at.as_secs()))?;
        }
        self.story.push((at, text));
        Ok(())
    }

    fn show(
        &mut self,
        watched: &mut Watched,
        report: Option<&GroupReport>,
        screen: Option<&Screen>,
    ) -> anyhow::Result<()> {
        let elapsed = self.elapsed();
        let counts = self.ledger.counts();
        if let Some(report) = report {
            watched.waiting = report.lag;
            watched.oldest = report.oldest_age;
            watched.parked = report.parked;
        }
        let arriving = watched.arriving.rate(elapsed, counts.published + counts.copies);
        let leaving = watched.leaving.rate(elapsed, counts.processed + counts.again);
        self.peaks = Peaks {
            waiting: self.peaks.waiting.max(watched.waiting),
            arriving: self.peaks.arriving.max(arriving),
        };
        if elapsed >= watched.sample_at {
            watched.sample_at = elapsed + self.plan.sample;
            watched.curves.add(watched.waiting as f64, arriving, leaving);
        }
        let workers: Vec<WorkerFigures> = self
            .workers
            .iter()
            .zip(&mut self.meters)
            .map(|(worker, meter)| WorkerFigures {
                name: worker.name.clone(),
                state: worker.state,
                billed: worker.billed(),
                rate: meter.rate(elapsed, worker.billed()),
            })
            .collect();
        let picture = Picture {
            elapsed,
            address: &self.address,
            server_is_up: self.server.is_up(),
            waiting: watched.waiting,
            oldest: watched.oldest,
            parked: watched.parked,
            arriving,
            leaving,
            pace: self.plan.pace,
            counts,
            workers: &workers,
            curves: &watched.curves,
            story: &self.story,
        };
        if let Some(film) = self.film.as_mut().filter(|film| film.is_due(elapsed)) {
            film.add(elapsed, picture.coloured(film::SIZE));
        }
        if let Some(screen) = screen {
            return screen.draw(&picture.lines(screen.size(), colours()));
        }
        if elapsed >= watched.line_at {
            watched.line_at = elapsed + LINE_EVERY;
            return match self.output {
                Output::Json => print(&format!("{}\n", picture.json())),
                Output::Text => print(&format!("{}\n", picture.line())),
            };
        }
        Ok(())
    }

    /// Producers and workers stop, and the server is asked for its figures.
    async fn close(&mut self) -> anyhow::Result<Accounts> {
        for worker in &mut self.workers {
            worker.gone().await?;
        }
        let asked = async {
            let report = self.client.group(STREAM, GROUP).await?;
            let stream = self.client.stream(STREAM).await?;
            let parked = parked(&self.client).await?;
            anyhow::Ok(self.ledger.close(stream.last_seq, report.lag, &parked))
        };
        tokio::time::timeout(CLOSE_MAX, asked)
            .await
            .map_err(|_| anyhow!("the server does not answer any more"))?
            .context("the server did not report its state")
    }
}

/// The numbers of all orders that are parked.
async fn parked(client: &Client) -> anyhow::Result<BTreeSet<u64>> {
    let mut orders = BTreeSet::new();
    let mut after = Some(0);
    while let Some(from) = after {
        let page = client.parked_after(STREAM, GROUP, from, ParkedFilter::default()).await?;
        for parked in &page.items {
            let id = parked.message.as_ref().and_then(|message| message.id()).unwrap_or_default();
            orders.insert(order_of(id).with_context(|| format!("that is no order of ours. id=`{id}`"))?);
        }
        after = page.next;
    }
    Ok(orders)
}

/// Asks the server again and again how its group does. None while it does not answer.
async fn ask(client: Client, tell: watch::Sender<Option<GroupReport>>) {
    let mut every = tokio::time::interval(ASK);
    loop {
        every.tick().await;
        let answer = tokio::time::timeout(ANSWER_MAX, client.group(STREAM, GROUP)).await;
        let _ = tell.send(answer.ok().and_then(Result::ok));
    }
}

/// The observations so far.
#[derive(Default)]
struct Watched {
    waiting: u64,
    oldest: Option<Duration>,
    parked: u64,
    curves: Curves,
    arriving: Meter,
    leaving: Meter,
    sample_at: Duration,
    line_at: Duration,
    burst_told: bool,
    calm_told: bool,
    end_told: bool,
    /// When anything was last done, and how much had been done by then.
    progress: (Duration, u64),
}

impl Watched {
    /// For how long nothing has happened.
    fn quiet(&mut self, now: Duration, ledger: &Ledger) -> Duration {
        let counts = ledger.counts();
        let done = counts.processed + counts.again + counts.retried + counts.refused;
        if done != self.progress.1 {
            self.progress = (now, done);
        }
        now - self.progress.0
    }
}
