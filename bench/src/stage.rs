//! A shard driven by hand: no frames, no contents, no disk. Time is whatever the bench says it is.

use std::error::Error;
use std::time::Duration;

use forebay_core::entry::MessageMeta;
use forebay_core::group::{Bound, Credit, Deliver, Effects, GroupFigures, Lease, Settled, Settlement};
use forebay_core::settings::{GroupSettings, StreamSettings};
use forebay_core::shard::{KeyRun, PublishOptions, Shard, Start};
use forebay_core::types::{
    ConsumerId, Epoch, GroupId, GroupName, KeyHash, Limits, Seq, StreamId, StreamName, Timestamp,
};

use crate::measure::{Stopwatch, Took};

const NOW: Timestamp = Timestamp(1_700_000_000_000_000);
/// Messages of one publish where nothing else is said.
const BATCH: u64 = 10_000;
/// What a message takes, envelope included.
pub(crate) const SIZE: u32 = 101;

pub(crate) struct Stage {
    pub(crate) shard: Shard,
    pub(crate) now: Timestamp,
    pub(crate) stream: StreamId,
    pub(crate) effects: Effects,
    /// Deliveries that were not settled.
    pub(crate) delivered: Vec<Deliver>,
    /// The longest of each kind of call.
    pub(crate) longest: Longest,
    pub(crate) reads: u64,
    pub(crate) turns: u64,
    /// Looking at the clock takes as long as some ten messages, so it is done only where it is asked for.
    pub(crate) times_publish: bool,
    /// What a message is, by its position. Keys are asked for again when a group reads.
    message: fn(Seq) -> MessageMeta,
    consumers: u64,
    metas: Vec<MessageMeta>,
    keys: Vec<KeyHash>,
    leases: Vec<Lease>,
    results: Vec<Settled>,
}

/// The longest single calls into the shard, in time on the wall and on a processor.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Longest {
    /// The call: a reset, a purge, a job.
    pub(crate) call: Took,
    /// The end of a turn.
    pub(crate) turn: Took,
    /// Taking in frames that were read.
    pub(crate) read: Took,
    /// Storing a batch, and telling the groups of it. Not counted with the others: only two cases are
    /// about it.
    pub(crate) publish: Took,
    pub(crate) arrived: Took,
}

impl Longest {
    /// The longest of all.
    pub(crate) fn any(&self) -> Took {
        longer(longer(self.call, self.turn), self.read)
    }

    /// Of several runs the best: what a neighbour took does not count against it.
    pub(crate) fn best(self, other: Longest) -> Longest {
        Longest {
            call: shorter(self.call, other.call),
            turn: shorter(self.turn, other.turn),
            read: shorter(self.read, other.read),
            publish: shorter(self.publish, other.publish),
            arrived: shorter(self.arrived, other.arrived),
        }
    }
}

fn longer(one: Took, other: Took) -> Took {
    Took { wall: one.wall.max(other.wall), cpu: one.cpu.max(other.cpu) }
}

fn shorter(one: Took, other: Took) -> Took {
    Took { wall: one.wall.min(other.wall), cpu: one.cpu.min(other.cpu) }
}

impl Stage {
    /// One stream, in which the messages are as `message` says.
    pub(crate) fn new(message: fn(Seq) -> MessageMeta) -> Result<Stage, Box<dyn Error>> {
        let mut shard = Shard::new(Limits::DEFAULT);
        shard.open(NOW, Epoch(1));
        let stream = shard.create_stream(NOW, &StreamName::parse("orders")?, &StreamSettings::default())?;
        Ok(Stage {
            shard,
            now: NOW,
            stream,
            effects: Effects::default(),
            delivered: Vec::new(),
            longest: Longest::default(),
            reads: 0,
            turns: 0,
            times_publish: false,
            message,
            consumers: 0,
            metas: Vec::new(),
            keys: Vec::new(),
            leases: Vec::new(),
            results: Vec::new(),
        })
    }

    pub(crate) fn group(&mut self, name: &str, settings: &GroupSettings) -> Result<GroupId, Box<dyn Error>> {
        let name = GroupName::parse(name)?;
        Ok(self.shard.create_group(self.now, self.stream, &name, settings, Start::Beginning)?)
    }

    pub(crate) fn join(&mut self, group: GroupId, slots: u32) -> Result<ConsumerId, Box<dyn Error>> {
        self.consumers += 1;
        let consumer = ConsumerId(self.consumers);
        self.shard.join(self.now, group, consumer, "worker", Bound::Connection)?;
        self.shard.credit(self.now, group, consumer, Credit::slots(slots))?;
        Ok(consumer)
    }

    pub(crate) fn last(&self) -> Seq {
        self.shard.last_seq(self.stream).unwrap_or(Seq::START)
    }

    /// Publishes so many messages in large batches, and hands out nothing.
    pub(crate) fn fill(&mut self, messages: u64) -> Result<(), Box<dyn Error>> {
        let mut left = messages;
        while left > 0 {
            let some = left.min(BATCH);
            self.publish(some)?;
            left -= some;
        }
        Ok(())
    }

    /// Publishes a batch, which is durable at once.
    pub(crate) fn publish(&mut self, messages: u64) -> Result<(), Box<dyn Error>> {
        let first = self.last().next();
        self.metas.clear();
        self.metas.extend((0..messages).map(|n| (self.message)(first.plus(n))));
        self.publish_these()
    }

    pub(crate) fn publish_one(&mut self, message: MessageMeta) -> Result<(), Box<dyn Error>> {
        self.metas.clear();
        self.metas.push(message);
        self.publish_these()
    }

    fn publish_these(&mut self) -> Result<(), Box<dyn Error>> {
        let mut admissions = Vec::new();
        let options = PublishOptions::default();
        let watch = self.times_publish.then(Stopwatch::start);
        let stored = self.shard.publish(self.now, self.stream, &self.metas, options, &mut admissions)?;
        if let Some(watch) = watch {
            self.longest.publish = longer(self.longest.publish, watch.took());
        }
        self.shard.entries().clear();
        let keyed = self.metas.iter().any(|message| message.key.is_some());
        self.keys.clear();
        if keyed {
            self.keys.extend(self.metas.iter().map(|message| message.key.unwrap_or(KeyHash(0))));
        }
        let keys = if keyed { KeyRun::Each(&self.keys) } else { KeyRun::Plain };
        let watch = self.times_publish.then(Stopwatch::start);
        self.shard.arrived(self.stream, stored.ok_or("nothing was stored")?, keys);
        if let Some(watch) = watch {
            self.longest.arrived = longer(self.longest.arrived, watch.took());
        }
        Ok(())
    }

    /// Asks for something, against time.
    pub(crate) fn call<T>(&mut self, ask: impl FnOnce(&mut Shard, Timestamp) -> T) -> T {
        let watch = Stopwatch::start();
        let answer = ask(&mut self.shard, self.now);
        self.longest.call = longer(self.longest.call, watch.took());
        answer
    }

    /// Ends a turn, and does the reads that it asks for.
    pub(crate) fn turn(&mut self) {
        self.shard.finish_turn(self.now, &mut self.effects);
        self.after_turn(false);
    }

    /// The same, against time.
    pub(crate) fn timed_turn(&mut self) {
        let watch = Stopwatch::start();
        self.shard.finish_turn(self.now, &mut self.effects);
        self.longest.turn = longer(self.longest.turn, watch.took());
        self.after_turn(true);
    }

    fn after_turn(&mut self, timed: bool) {
        self.turns += 1;
        self.shard.entries().clear();
        self.delivered.append(&mut self.effects.deliveries);
        self.effects.checkpoints.clear();
        self.effects.departed.clear();
        for read in std::mem::take(&mut self.effects.reads) {
            self.reads += 1;
            self.keys.clear();
            if read.keys {
                let message = self.message;
                self.keys.extend(read.seqs.seqs().map(|seq| message(seq).key.unwrap_or(KeyHash(0))));
            }
            let keys = if read.keys { KeyRun::Each(&self.keys) } else { KeyRun::Plain };
            let watch = timed.then(Stopwatch::start);
            self.shard.read_ahead(read.group, read.seqs, keys);
            if let Some(watch) = watch {
                self.longest.read = longer(self.longest.read, watch.took());
            }
        }
    }

    /// Whether a turn is owed now.
    pub(crate) fn is_busy(&self) -> bool {
        self.shard.wake_at().is_some_and(|at| at <= self.now)
    }

    /// Turns until nothing more happens by itself.
    pub(crate) fn settle_down(&mut self) {
        loop {
            self.timed_turn();
            if !self.is_busy() {
                return;
            }
        }
    }

    /// Answers everything that was handed out, alike. Returns how many messages that were.
    pub(crate) fn answer_all(&mut self, settlement: Settlement<'_>) -> u64 {
        self.answer(|_| true, settlement)
    }

    /// Answers those that are chosen. The others stay with their consumers for good.
    pub(crate) fn answer(&mut self, chosen: impl Fn(Seq) -> bool, settlement: Settlement<'_>) -> u64 {
        let epoch = self.shard.epoch();
        let mut count = 0;
        for deliver in self.delivered.drain(..) {
            self.leases.clear();
            let all = deliver.seqs.seqs().zip(0..).filter(|&(seq, _)| chosen(seq));
            self.leases.extend(all.map(|(seq, n)| Lease { epoch, seq, grant: deliver.grant.plus(n) }));
            self.results.clear();
            self.shard.settle(self.now, deliver.group, &self.leases, settlement, &mut self.results);
            let counts = |result: &&Settled| !matches!(result, Settled::NotYours(_));
            count += self.results.iter().filter(counts).count() as u64;
        }
        count
    }

    pub(crate) fn figures(&self, group: GroupId) -> Result<GroupFigures, Box<dyn Error>> {
        Ok(self.shard.figures(self.now, group).ok_or("the group is gone")?)
    }

    pub(crate) fn passes(&mut self, time: Duration) {
        self.now = self.now + time;
    }
}

pub(crate) fn plain(_: Seq) -> MessageMeta {
    MessageMeta::plain(SIZE)
}

/// One of a hundred thousand keys; those of a batch all differ.
pub(crate) fn many_keys(seq: Seq) -> MessageMeta {
    let number = seq.0.wrapping_mul(7_919) % 100_000;
    // Keys are hashes, and spread over all numbers.
    let key = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    MessageMeta { key: Some(KeyHash(key)), ..MessageMeta::plain(SIZE) }
}
