//! The cost of a message that is published, delivered and acknowledged, without a disk or a network.
//!
//! One thread, one stream, one group, bodies of a hundred bytes. A cycle is: publish a batch; finish the
//! turn; make the frame durable in a log in memory and hand over the receipt; finish the turn, which
//! delivers the batch; acknowledge each message by the lease it came with; finish the turn. The next
//! frame carries the acknowledgements along, as it would in service.

use std::error::Error;
use std::time::Duration;

use forebay_broker::batch::Batch;
use forebay_broker::driver::DriverConfig;
use forebay_core::entry::MessageMeta;
use forebay_core::group::{Bound, Credit, Effects, Lease, LeaseRun, Outcome, OutcomeRun, Verb};
use forebay_core::settings::{GroupSettings, StreamSettings};
use forebay_core::shard::{KeyRun, PublishOptions, Shard, Start};
use forebay_core::types::{ConsumerId, Epoch, GroupId, GroupName, Limits, StreamId, StreamName, Timestamp};
use forebay_storage::memory::MemoryLog;

use crate::arguments::Arguments;
use crate::features;
use crate::measure::{Stopwatch, Took, Yardstick, median};
use crate::shell::{Shell, batch};

const BODY: [u8; 100] = [b'x'; 100];
const BATCHES: [u64; 4] = [1, 8, 64, 256];
pub(crate) const ROUNDS: u32 = 9;
const NOW: Timestamp = Timestamp(1_700_000_000_000_000);

/// Slots of all consumers together: enough for the largest batch, however it is shared out.
const SLOTS: u32 = 4_096;

const CONSUMERS_MAX: u64 = 64;

/// The goal for one core, in messages per second, by batch size.
const BARS: [(u64, f64); 2] = [(1, 300_000.0), (64, 2_500_000.0)];

/// An image of the state is made, and the log in memory cut, after this many bytes of bodies. Positions
/// in memory count frames, so the driver cannot go by them.
const LOG_BYTES: u64 = 1 << 20;

/// How much is done between two looks at the clock.
const CHUNK: u64 = 4_096;

pub(crate) fn run(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let layer: Option<String> = arguments.take("layer")?;
    let only: Option<u64> = arguments.take("batch")?;
    let count: Option<u64> = arguments.take("count")?;
    let consumers = arguments.number("consumers", 1)?;
    let seconds = arguments.seconds(2.0)?;
    arguments.finish()?;
    if consumers > CONSUMERS_MAX {
        return Err(format!("--consumers must be from 1 to {CONSUMERS_MAX}").into());
    }
    if only == Some(0) || only.is_some_and(|batch| batch > u64::from(SLOTS)) {
        return Err(format!("--batch must be from 1 to {SLOTS}").into());
    }
    let core_alone = match layer.as_deref() {
        None | Some("driver") => false,
        Some("core") => true,
        Some("features") => return features::compare(Duration::from_secs_f64(seconds)),
        Some(other) => {
            return Err(format!("--layer is `driver`, `core` or `features`. layer=`{other}`").into());
        }
    };
    let all = layer.is_none() && only.is_none();
    if let Some(count) = count {
        return run_counted(count, only.unwrap_or(64), consumers, core_alone);
    }
    let batches = only.map_or(BATCHES.to_vec(), |batch| vec![batch]);
    let mut subjects: Vec<Box<dyn Subject>> = Vec::new();
    for size in batches {
        if core_alone {
            subjects.push(Box::new(Core::new(size, consumers)?));
        } else {
            subjects.push(Box::new(Whole::new(size, consumers, Building::Timed)?));
            subjects.push(Box::new(Whole::new(size, consumers, Building::Apart)?));
            if consumers == 1 {
                subjects.push(Box::new(Whole::new(size, 4, Building::Timed)?));
            }
        }
    }
    compare(&mut subjects, Duration::from_secs_f64(seconds))?;
    if all {
        println!();
        features::compare(Duration::from_secs_f64(seconds))?;
    }
    Ok(())
}

/// Exactly so many cycles and nothing else, so that instructions can be counted.
fn run_counted(count: u64, size: u64, consumers: u64, core_alone: bool) -> Result<(), Box<dyn Error>> {
    let mut subject: Box<dyn Subject> = if core_alone {
        Box::new(Core::new(size, consumers)?)
    } else {
        Box::new(Whole::new(size, consumers, Building::Timed)?)
    };
    subject.prepare(count);
    subject.run(count)?;
    println!("{}: {count} cycles", subject.name());
    Ok(())
}

/// Something whose messages are counted against time.
pub(crate) trait Subject {
    fn name(&self) -> String;

    fn batch(&self) -> u64;

    /// Prepares the part of the next run that is not measured.
    fn prepare(&mut self, _messages: u64) {}

    /// Runs so many messages through, the last batch cut to fit. Reads no clock, which valgrind minds.
    fn run(&mut self, messages: u64) -> Result<(), Box<dyn Error>>;
}

/// Measures all of them in turns with the yardstick, and prints medians.
fn compare(subjects: &mut [Box<dyn Subject>], each: Duration) -> Result<(), Box<dyn Error>> {
    let mut yardstick = Yardstick::new();
    let slice = each / ROUNDS;
    let mut yardsticks = Vec::new();
    let mut rates = vec![Rates::default(); subjects.len()];
    // The first round warms up and does not count.
    for round in 0..=ROUNDS {
        for (subject, rates) in subjects.iter_mut().zip(&mut rates) {
            let standard = rate_of(slice / 2, &mut yardstick)?;
            let measured = rate_of(slice, &mut **subject)?;
            if round > 0 {
                yardsticks.push(standard.cpu);
                rates.wall.push(measured.wall);
                rates.cpu.push(measured.cpu);
                rates.yardsticks.push(standard.cpu / measured.cpu);
            }
        }
    }
    println!("yardstick: {:.2} million a second of CPU", median(&mut yardsticks) / 1e6);
    println!("{:44} {:>11} {:>11} {:>11}", "", "msg/s", "msg/CPU-s", "yardsticks");
    for (subject, rates) in subjects.iter().zip(&mut rates) {
        let wall = median(&mut rates.wall);
        let bar = BARS.iter().find(|(batch, _)| *batch == subject.batch());
        let verdict = match bar {
            Some((_, bar)) if wall >= *bar => format!("  met: at least {:.1} M", bar / 1e6),
            Some((_, bar)) => format!("  MISSED: at least {:.1} M", bar / 1e6),
            None => String::new(),
        };
        println!(
            "{:44} {:>9.3} M {:>9.3} M {:>11.2}{verdict}",
            subject.name(),
            wall / 1e6,
            median(&mut rates.cpu) / 1e6,
            median(&mut rates.yardsticks),
        );
    }
    Ok(())
}

fn number_of(consumers: u64) -> String {
    if consumers == 1 { "1 consumer".to_owned() } else { format!("{consumers} consumers") }
}

#[derive(Debug, Clone, Default)]
struct Rates {
    wall: Vec<f64>,
    cpu: Vec<f64>,
    yardsticks: Vec<f64>,
}

pub(crate) struct Rate {
    pub(crate) wall: f64,
    pub(crate) cpu: f64,
}

/// Repeats chunks of work until they have taken this long.
pub(crate) fn rate_of(long: Duration, subject: &mut dyn Subject) -> Result<Rate, Box<dyn Error>> {
    let mut took = Took::default();
    let mut done = 0;
    while took.wall < long {
        subject.prepare(CHUNK);
        let watch = Stopwatch::start();
        subject.run(CHUNK)?;
        took.add(watch.took());
        done += CHUNK;
    }
    Ok(Rate { wall: done as f64 / took.wall.as_secs_f64(), cpu: done as f64 / took.cpu.as_secs_f64() })
}

impl Subject for Yardstick {
    fn name(&self) -> String {
        "yardstick".to_owned()
    }

    fn batch(&self) -> u64 {
        1
    }

    fn run(&mut self, times: u64) -> Result<(), Box<dyn Error>> {
        self.repeat(times);
        Ok(())
    }
}

/// Whether building the batch, which is the door's part in service, belongs to the measured time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Building {
    Timed,
    Apart,
}

/// Core, driver, and a log in memory.
struct Whole {
    size: u64,
    consumers: u64,
    building: Building,
    shell: Shell<MemoryLog>,
    ready: Vec<Batch>,
}

impl Whole {
    fn new(size: u64, consumers: u64, building: Building) -> Result<Whole, Box<dyn Error>> {
        let mut log = MemoryLog::default();
        let claim = log.claim();
        let config =
            DriverConfig { image_frames: LOG_BYTES / (size * BODY.len() as u64), ..DriverConfig::default() };
        let mut shell = Shell::open(log, claim, NOW, config)?;
        shell.join(consumers, SLOTS / consumers as u32)?;
        shell.turn()?;
        Ok(Whole { size, consumers, building, shell, ready: Vec::new() })
    }

    fn cycle(&mut self, batch: &Batch) -> Result<(), Box<dyn Error>> {
        let shell = &mut self.shell;
        shell.publish(batch)?;
        shell.turn()?;
        let acked = shell.ack_delivered();
        shell.turn()?;
        let answers = shell.take_answers();
        assert_eq!((acked, answers), (batch.len() as u64, 1), "a cycle delivers what it published");
        Ok(())
    }
}

impl Subject for Whole {
    fn name(&self) -> String {
        let building = if self.building == Building::Timed { "" } else { ", batch built before" };
        format!("batches of {}, {}{building}", self.size, number_of(self.consumers))
    }

    fn batch(&self) -> u64 {
        self.size
    }

    fn prepare(&mut self, messages: u64) {
        self.ready.clear();
        if self.building == Building::Apart {
            self.ready.extend(sizes(messages, self.size).map(|size| batch(size, &BODY)));
        }
    }

    fn run(&mut self, messages: u64) -> Result<(), Box<dyn Error>> {
        match self.building {
            Building::Timed => {
                sizes(messages, self.size).try_for_each(|size| self.cycle(&batch(size, &BODY)))
            }
            Building::Apart => {
                let ready = std::mem::take(&mut self.ready);
                let done = ready.iter().try_for_each(|batch| self.cycle(batch));
                self.ready = ready;
                done
            }
        }
    }
}

/// The batches that so many messages make, by their size.
fn sizes(messages: u64, size: u64) -> impl Iterator<Item = u64> {
    (0..messages).step_by(size as usize).map(move |done| size.min(messages - done))
}

/// The shard alone: positions and entries, but no contents, frames or receipts.
struct Core {
    size: u64,
    consumers: u64,
    shard: Shard,
    now: Timestamp,
    stream: StreamId,
    group: GroupId,
    effects: Effects,
    leases: Vec<LeaseRun>,
    outcomes: Vec<OutcomeRun>,
}

impl Core {
    fn new(size: u64, consumers: u64) -> Result<Core, Box<dyn Error>> {
        let mut shard = Shard::new(Limits::DEFAULT);
        shard.open(NOW, Epoch(1));
        let stream = shard.create_stream(NOW, &StreamName::parse("orders")?, &StreamSettings::default())?;
        let settings = GroupSettings::default();
        let name = GroupName::parse("workers")?;
        let group = shard.create_group(NOW, stream, &name, &settings, Start::Beginning)?;
        for consumer in (1..=consumers).map(ConsumerId) {
            shard.join(NOW, group, consumer, "worker", Bound::Connection)?;
            shard.credit(NOW, group, consumer, Credit::slots(SLOTS / consumers as u32))?;
        }
        let effects = Effects::default();
        Ok(Core {
            size,
            consumers,
            shard,
            now: NOW,
            stream,
            group,
            effects,
            leases: Vec::new(),
            outcomes: Vec::new(),
        })
    }

    fn cycle(&mut self, metas: &[MessageMeta]) -> Result<(), Box<dyn Error>> {
        let Core { shard, effects, leases, outcomes, .. } = self;
        self.now.0 += 10;
        let mut admissions = Vec::new();
        let stored =
            shard.publish(self.now, self.stream, metas, PublishOptions::default(), &mut admissions)?;
        shard.finish_turn(self.now, effects);
        shard.entries().clear();
        shard.arrived(self.stream, stored.ok_or("nothing was stored")?, KeyRun::Plain);
        shard.finish_turn(self.now, effects);
        leases.clear();
        for deliver in effects.deliveries.drain(..) {
            let epoch = shard.epoch();
            let first = Lease { epoch, seq: deliver.seqs.first, grant: deliver.grant };
            leases.push(LeaseRun { first, count: deliver.seqs.count() as u32 });
        }
        outcomes.clear();
        shard.settle(self.now, self.group, leases, &Verb::Ack.into(), outcomes);
        shard.finish_turn(self.now, effects);
        let acked = outcomes.iter().filter(|(outcome, _)| *outcome == Outcome::Acked);
        let acked: u32 = acked.map(|(_, count)| count).sum();
        assert_eq!(acked as usize, metas.len(), "a cycle delivers what it published");
        Ok(())
    }
}

impl Subject for Core {
    fn name(&self) -> String {
        format!("core alone, batches of {}, {}", self.size, number_of(self.consumers))
    }

    fn batch(&self) -> u64 {
        self.size
    }

    fn run(&mut self, messages: u64) -> Result<(), Box<dyn Error>> {
        let metas = vec![MessageMeta::plain(BODY.len() as u32 + 1); self.size as usize];
        sizes(messages, self.size).try_for_each(|size| self.cycle(&metas[..size as usize]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cycle` itself asserts that everything comes back; the number of messages must not be a multiple
    /// of the batch, and enough to make images and cut the log.
    #[test]
    fn every_subject_runs_as_many_messages_as_it_is_told() -> Result<(), Box<dyn Error>> {
        for consumers in [1, 4] {
            for building in [Building::Timed, Building::Apart] {
                let mut whole = Whole::new(64, consumers, building)?;
                whole.prepare(30_001);
                whole.run(30_001)?;
                let figures = whole.shell.driver.shard().figures(NOW, whole.shell.group).ok_or("no group")?;
                assert_eq!((figures.floor.0, figures.lag), (30_001, 0));
                assert!(whole.shell.log.covered().0 > 0, "no image was made, so the log only grows");
            }
            let mut core = Core::new(64, consumers)?;
            core.run(30_001)?;
            let figures = core.shard.figures(NOW, core.group).ok_or("no group")?;
            assert_eq!((figures.floor.0, figures.lag), (30_001, 0));
        }
        Ok(())
    }

    #[test]
    fn the_last_batch_is_cut_to_fit() {
        assert_eq!(sizes(10, 4).collect::<Vec<_>>(), [4, 4, 2]);
        assert_eq!(sizes(8, 4).collect::<Vec<_>>(), [4, 4]);
    }
}
