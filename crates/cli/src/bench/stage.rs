//! A run from its beginning to its end: the stream is made, producers and consumers connect, the load begins, a
//! part of it is measured, messages still under way are waited for, and the stream is deleted.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinError, JoinSet};
use tokio::time::MissedTickBehavior;

use super::pace::{Feed, Metronome, Pace};
use super::plan::{Place, Plan};
use super::process::{Usage, usage};
use super::report::latency;
use super::tally::{Counts, Scope, Tally, Times, summary};
use super::{Mode, channel, native, sqs, warn};
use crate::clock::{Clock, Timestamp};
use crate::exit::{self, say};
use crate::safe::printable;
use crate::units;

/// How often it is looked whether a part of the run is over.
const LOOK: Duration = Duration::from_millis(10);
/// How often the person is told.
const TELL: Duration = Duration::from_secs(1);
/// A run without any progress for this long is given up. A lease that is not answered lapses sooner.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long consumers have for the remaining messages when the time is over, in addition to twice the length
/// of the run.
const FINISH_PATIENCE: Duration = Duration::from_secs(60);
/// How long deleting the stream may take.
const DELETE_PATIENCE: Duration = Duration::from_secs(20);

/// The results of a run.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Messages confirmed in the measured time; of a drain, the messages that were published before it.
    pub(super) published: Throughput,
    pub(super) acked: Option<Throughput>,
    pub(super) times: Times,
    /// Over the whole run.
    pub(super) counts: Counts,
    /// Messages that were confirmed and not acked at the end of the measured time.
    pub(super) backlog: u64,
    pub(super) server: Option<Cost>,
    pub(super) generator: Option<Cost>,
    /// Confirmed, and never delivered. Unknown if the run had no consumers or did not wait for the end.
    pub(super) lost: Option<u64>,
    pub(super) end: End,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Throughput {
    pub(super) count: u64,
    pub(super) seconds: f64,
}

impl Throughput {
    pub(super) fn per_second(self) -> f64 {
        if self.seconds > 0.0 { self.count as f64 / self.seconds } else { 0.0 }
    }
}

/// The resources that a process used in the measured time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) messages: u64,
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) written: Option<u64>,
    pub(super) resident: u64,
    pub(super) resident_max: u64,
}

/// Why a run, or a part of it, was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Reached,
    Interrupted,
    /// Nothing happened any more.
    Stalled,
    /// Consumers would have needed too long for the remaining messages.
    Behind,
}

/// A stream that is there for a run.
pub(super) struct Stage {
    plan: Plan,
    stop: Stop,
    /// Over SQS.
    queue: Option<sqs::Queue>,
}

impl Stage {
    pub(super) async fn set(plan: Plan) -> anyhow::Result<Stage> {
        // Before there is anything to delete.
        let stop = Stop::new()?;
        let queue = match &plan.place {
            Place::Native(server, _) => {
                let group = (plan.consumers > 0).then_some(&plan.settings);
                native::create(server, &plan.stream, group).await?;
                None
            }
            Place::Sqs(address) => Some(sqs::create(address, &plan.stream, &plan.settings).await?),
        };
        Ok(Stage { plan, stop, queue })
    }

    /// No outcome if it was stopped before anything was measured.
    pub(super) async fn play(mut self) -> anyhow::Result<(Plan, Option<Outcome>)> {
        let outcome = self.measure().await;
        if !self.plan.keep {
            self.clear().await;
        }
        Ok((self.plan, outcome?))
    }

    async fn clear(&self) {
        let deleting = async {
            match (&self.plan.place, &self.queue) {
                (Place::Native(server, _), _) => native::delete(server, &self.plan.stream).await,
                (Place::Sqs(address), Some(queue)) => sqs::delete(address, queue).await,
                (Place::Sqs(_), None) => Ok(()),
            }
        };
        let deleted = tokio::time::timeout(DELETE_PATIENCE, deleting).await;
        if let Err(error) = deleted.unwrap_or_else(|_| Err(anyhow!("the server did not answer in time"))) {
            let (stream, why) = (printable(&self.plan.stream), exit::text(&error));
            warn(&format!("the stream could not be deleted, and is still there: {why}. stream=`{stream}`"));
        }
    }

    async fn measure(&mut self) -> anyhow::Result<Option<Outcome>> {
        let (plan, queue) = (&self.plan, self.queue.as_ref());
        let consumers = match plan.mode {
            Mode::Drain => Vec::new(),
            _ => join(plan, queue).await?,
        };
        let producers = connect_producers(plan, queue).await?;
        let mut run = Run::begin(plan, &mut self.stop, producers)?;
        for consumer in consumers {
            run.consumers.spawn(consumer.run(run.tally.clone(), run.clock));
        }
        match plan.mode {
            Mode::Drain => run.drain(queue).await,
            _ => run.flow().await,
        }
    }
}

/// The producers and consumers of a run.
struct Run<'a> {
    plan: &'a Plan,
    stop: &'a mut Stop,
    clock: Clock,
    tally: Arc<Tally>,
    producers: JoinSet<anyhow::Result<()>>,
    consumers: JoinSet<anyhow::Result<()>>,
    /// Rings for as long as there is a run.
    _metronome: Metronome,
    /// Before anything was sent.
    start: Mark,
    from: Timestamp,
    to: Timestamp,
    times: Times,
    told: Told,
}

/// The progress that the user has been shown.
struct Told {
    on_terminal: bool,
    at: Timestamp,
    counts: Counts,
    /// The most memory that the server had whenever it was looked.
    resident_max: u64,
    own_resident_max: u64,
}

/// How things stand at some moment.
#[derive(Clone, Copy)]
struct Mark {
    at: Timestamp,
    counts: Counts,
    server: Option<Usage>,
    generator: Option<Usage>,
}

impl<'a> Run<'a> {
    fn begin(plan: &'a Plan, stop: &'a mut Stop, producers: Vec<Producer>) -> anyhow::Result<Run<'a>> {
        let clock = Clock::start();
        let began = clock.now();
        let from = began + plan.warmup;
        let to = plan.duration.map_or(Timestamp(u64::MAX), |duration| from + duration);
        let count = u64::from(plan.producers);
        let pace = plan.rate.map(|per_second| Pace { began, per_second, producers: count });
        let is_end_to_end = matches!(plan.mode, Mode::Steady | Mode::Latency);
        let scope = Scope { from, to, is_consumed: plan.consumers > 0, is_end_to_end };
        let mut told = Told {
            on_terminal: std::io::stderr().is_terminal(),
            at: began,
            counts: Counts::default(),
            resident_max: 0,
            own_resident_max: 0,
        };
        let start = told.mark(plan, began, Counts::default());
        let mut run = Run {
            plan,
            stop,
            clock,
            tally: Arc::new(Tally::new(count, scope)),
            producers: JoinSet::new(),
            consumers: JoinSet::new(),
            _metronome: Metronome::start(pace, count, clock, to)?,
            start,
            from,
            to,
            times: Times::default(),
            told,
        };
        for (index, producer) in (0..plan.producers).zip(producers) {
            let feed = Feed::new(index, plan.batch, plan.share(index), to, pace);
            let (bell, tally) = (run._metronome.bell(index), run.tally.clone());
            run.producers.spawn(producer.run(feed, bell, tally, clock));
        }
        Ok(run)
    }

    /// Producers, and consumers if there are any, at the same time.
    async fn flow(mut self) -> anyhow::Result<Option<Outcome>> {
        let mut end = self.until("warming up", |run| run.clock.now() >= run.from || run.is_through()).await?;
        if end != End::Reached {
            return Ok(None);
        }
        if self.clock.now() < self.from {
            bail!(
                "all messages were through before the warm-up was over; --messages takes more, --warmup less"
            );
        }
        let first = if self.plan.warmup.is_zero() { self.start } else { self.mark() };
        end = self.until("", |run| run.clock.now() >= run.to || run.is_through()).await?;
        let mut last = self.mark();
        let through = last.at < self.to;
        if end == End::Reached && !through {
            let patience = FINISH_PATIENCE + 2 * self.plan.duration.unwrap_or_default();
            let limit = last.at + patience;
            end = self.until("finishing", |run| run.is_through() || run.clock.now() >= limit).await?;
            if end == End::Reached && !self.is_through() {
                end = End::Behind;
            }
        }
        let mut published = first.throughput(&last, |counts| counts.confirmed);
        if end == End::Reached && through {
            // The end is the time of the last confirmation, not the time at which it was noticed.
            published.seconds = self.tally.last_confirmed().since(first.at).as_secs_f64();
            last.at = self.tally.last_confirmed().max(self.tally.last_acked());
        }
        let acked = (self.plan.consumers > 0).then(|| first.throughput(&last, |counts| counts.acked));
        Ok(Some(self.outcome(first, last, published, acked, end)))
    }

    /// Producers, and then consumers.
    async fn drain(mut self, queue: Option<&sqs::Queue>) -> anyhow::Result<Option<Outcome>> {
        if self.until("filling", |run| run.producers.is_empty()).await? != End::Reached {
            return Ok(None);
        }
        let published = Throughput {
            count: self.tally.counts().confirmed,
            seconds: self.tally.last_confirmed().since(self.start.at).as_secs_f64(),
        };
        let consumers = join(self.plan, queue).await?;
        let first = self.mark();
        for consumer in consumers {
            self.consumers.spawn(consumer.run(self.tally.clone(), self.clock));
        }
        let end = self.until("draining", Run::is_through).await?;
        let mut last = self.mark();
        if end == End::Reached {
            last.at = self.tally.last_acked();
        }
        let acked = first.throughput(&last, |counts| counts.acked);
        Ok(Some(self.outcome(first, last, published, Some(acked), end)))
    }

    /// Whether everything that was sent is answered, and everything that was confirmed came and was acked.
    fn is_through(&self) -> bool {
        if !self.producers.is_empty() {
            return false;
        }
        let counts = self.tally.counts();
        self.plan.consumers == 0 || (counts.acked >= counts.confirmed && self.tally.missing() == 0)
    }

    async fn until(&mut self, phase: &str, is_over: impl Fn(&Run<'a>) -> bool) -> anyhow::Result<End> {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut counts, mut changed) = (self.tally.counts(), self.clock.now());
        loop {
            if is_over(self) {
                return Ok(End::Reached);
            }
            let now = self.clock.now();
            if now.since(self.told.at) >= TELL {
                self.tell(phase, now);
            }
            let present = self.tally.counts();
            if present != counts {
                (counts, changed) = (present, now);
            } else if now.since(changed) > PATIENCE {
                return Ok(End::Stalled);
            }
            tokio::select! {
                ended = self.producers.join_next(), if !self.producers.is_empty() => {
                    ended.map_or(Ok(()), flat)?;
                }
                ended = self.consumers.join_next(), if !self.consumers.is_empty() => {
                    ended.map_or(Ok(()), flat)?;
                }
                _ = look.tick() => {}
                () = self.stop.wanted() => return Ok(End::Interrupted),
            }
        }
    }

    fn mark(&mut self) -> Mark {
        self.told.mark(self.plan, self.clock.now(), self.tally.counts())
    }

    fn tell(&mut self, phase: &str, now: Timestamp) {
        let mark = self.mark();
        let times = self.tally.take_times();
        if self.told.on_terminal {
            let seconds = now.since(self.told.at).as_secs_f64();
            say(&line(now.since(self.start.at), phase, &self.told.counts, &mark.counts, seconds, &times));
        }
        self.times.merge(&times);
        (self.told.at, self.told.counts) = (now, mark.counts);
    }

    fn outcome(
        mut self,
        first: Mark,
        last: Mark,
        published: Throughput,
        acked: Option<Throughput>,
        end: End,
    ) -> Outcome {
        self.times.merge(&self.tally.take_times());
        let messages = acked.unwrap_or(published).count;
        let cost = |of: fn(&Mark) -> Option<Usage>, resident_max: u64| {
            let (before, after) = (of(&first)?, of(&last)?);
            Some(Cost {
                messages,
                seconds: last.at.since(first.at).as_secs_f64(),
                cpu_seconds: after.cpu_seconds - before.cpu_seconds,
                written: after.written.zip(before.written).map(|(after, before)| after - before),
                resident: after.resident,
                resident_max,
            })
        };
        let is_known = self.plan.consumers > 0 && matches!(end, End::Reached | End::Stalled);
        Outcome {
            published,
            acked,
            backlog: last.counts.confirmed.saturating_sub(last.counts.acked),
            server: cost(|mark| mark.server, self.told.resident_max),
            generator: cost(|mark| mark.generator, self.told.own_resident_max),
            lost: is_known.then(|| self.tally.missing()),
            counts: self.tally.counts(),
            times: self.times,
            end,
        }
    }
}

impl Told {
    fn mark(&mut self, plan: &Plan, at: Timestamp, counts: Counts) -> Mark {
        let server = plan.pid.and_then(|pid| usage(Some(pid)).ok());
        let generator = usage(None).ok();
        self.resident_max = self.resident_max.max(server.map_or(0, |usage| usage.resident));
        self.own_resident_max = self.own_resident_max.max(generator.map_or(0, |usage| usage.resident));
        Mark { at, counts, server, generator }
    }
}

impl Mark {
    fn throughput(&self, last: &Mark, of: fn(&Counts) -> u64) -> Throughput {
        let count = of(&last.counts) - of(&self.counts);
        Throughput { count, seconds: last.at.since(self.at).as_secs_f64() }
    }
}

fn flat(ended: Result<anyhow::Result<()>, JoinError>) -> anyhow::Result<()> {
    ended.context("a task of the bench failed")?
}

/// How the last second went.
fn line(age: Duration, phase: &str, before: &Counts, now: &Counts, seconds: f64, times: &Times) -> String {
    let rate = |of: fn(&Counts) -> u64| units::rate((of(now) - of(before)) as f64 / seconds);
    let mut parts = vec![format!("{:>4}s", age.as_secs()), format!("published {}", rate(|it| it.confirmed))];
    if now.delivered > 0 {
        let waiting = now.confirmed.saturating_sub(now.acked);
        parts.push(format!("acked {}", rate(|it| it.acked)));
        parts.push(format!("waiting {}", units::short(waiting as f64)));
    }
    for (name, histogram) in [("publish", &times.publish), ("end to end", &times.end_to_end)] {
        if let Some(summary) = summary(histogram) {
            parts.push(format!("{name} p99 {}", latency(summary.p99)));
        }
    }
    if now.refused > before.refused {
        parts.push(format!("refused {}", rate(|it| it.refused)));
    }
    if !phase.is_empty() {
        parts.push(phase.to_owned());
    }
    parts.join("  ")
}

/// A producer that is connected.
enum Producer {
    Native(native::Producer),
    Sqs(sqs::Producer),
}

impl Producer {
    async fn run(
        self,
        feed: Feed,
        bell: Arc<tokio::sync::Notify>,
        tally: Arc<Tally>,
        clock: Clock,
    ) -> anyhow::Result<()> {
        match self {
            Producer::Native(producer) => producer.run(feed, bell, tally, clock).await,
            Producer::Sqs(producer) => producer.run(feed, bell, tally, clock).await,
        }
    }
}

async fn connect_producers(plan: &Plan, queue: Option<&sqs::Queue>) -> anyhow::Result<Vec<Producer>> {
    let mut producers = Vec::new();
    let (size, keys) = (plan.size, plan.keys);
    for _ in 0..plan.producers {
        producers.push(match (&plan.place, queue) {
            (Place::Sqs(address), Some(queue)) => {
                let connection = sqs::Connection::open(address).await?;
                Producer::Sqs(sqs::Producer { connection, queue: queue.clone(), size, keys })
            }
            (Place::Native(server, _), _) => {
                let client = channel::connect(server).await?;
                let (stream, window) = (plan.stream.clone(), plan.window);
                Producer::Native(native::Producer { client, stream, window, size, keys })
            }
            (Place::Sqs(_), None) => bail!("there is no queue"),
        });
    }
    Ok(producers)
}

/// A consumer that may begin.
enum Consumer {
    Native(native::Consumer),
    Sqs(sqs::Consumer),
}

impl Consumer {
    async fn run(self, tally: Arc<Tally>, clock: Clock) -> anyhow::Result<()> {
        match self {
            Consumer::Native(consumer) => consumer.run(tally, clock).await,
            Consumer::Sqs(consumer) => consumer.run(tally, clock).await,
        }
    }
}

async fn join(plan: &Plan, queue: Option<&sqs::Queue>) -> anyhow::Result<Vec<Consumer>> {
    let mut consumers = Vec::new();
    for index in 1..=plan.consumers {
        consumers.push(match (&plan.place, queue) {
            (Place::Sqs(address), Some(queue)) => {
                let connection = sqs::Connection::open(address).await?;
                Consumer::Sqs(sqs::Consumer { connection, queue: queue.clone(), credit: plan.credit })
            }
            (Place::Native(server, _), _) => {
                let name = format!("bench-{index}");
                Consumer::Native(native::Consumer::join(server, &plan.stream, name, plan.credit).await?)
            }
            (Place::Sqs(_), None) => bail!("there is no queue"),
        });
    }
    Ok(consumers)
}

/// Ends the run early.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    fn new() -> anyhow::Result<Stop> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Stop { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    async fn wanted(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_the_last_second_went() {
        let before = Counts { confirmed: 1_000, ..Counts::default() };
        let now =
            Counts { confirmed: 3_000, delivered: 2_500, acked: 2_000, refused: 10, ..Counts::default() };
        let mut times = Times::default();
        times.publish.record(Duration::from_micros(1_500));
        let told = line(Duration::from_millis(3_020), "warming up", &before, &now, 2.0, &times);
        let expected = "   3s  published 1.0 k/s  acked 1.0 k/s  waiting 1.0 k  publish p99 1.50ms  refused 5.0/s  \
                        warming up";
        assert_eq!(told, expected);
        let told = line(Duration::from_secs(1), "", &Counts::default(), &before, 1.0, &Times::default());
        assert_eq!(told, "   1s  published 1.0 k/s");
    }
}
