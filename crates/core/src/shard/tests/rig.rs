//! A shard with one stream, for tests that need more messages, larger numbers or other turns than a story
//! can tell.

use super::*;
use crate::entry::entries;
use crate::group::{Deliver, Lease, LeaseRun, Outcome, Verb};

pub(super) const BEGIN: Timestamp = Timestamp(1_700_000_000_000_000);

pub(super) struct Rig {
    pub(super) shard: Shard,
    pub(super) stream: StreamId,
    pub(super) now: Timestamp,
    /// Every turn's entries.
    pub(super) log: Vec<u8>,
    pub(super) delivered: Vec<Deliver>,
    /// The keys that a read brings.
    pub(super) key: KeyHash,
}

impl Rig {
    pub(super) fn new(settings: StreamSettings) -> Rig {
        let mut shard = Shard::new(Limits::DEFAULT);
        shard.open(BEGIN, Epoch(1));
        let name = StreamName::parse("jobs").expect("a good name");
        let stream = shard.create_stream(BEGIN, &name, &settings).expect("a new stream");
        Rig { shard, stream, now: BEGIN, log: Vec::new(), delivered: Vec::new(), key: KeyHash(0) }
    }

    pub(super) fn group(&mut self, settings: GroupSettings) -> GroupId {
        let name = GroupName::parse("workers").expect("a good name");
        let group = self.shard.create_group(self.now, self.stream, &name, &settings, Start::Beginning);
        group.expect("a new group")
    }

    /// Stores messages, durable at once.
    pub(super) fn publish(&mut self, messages: &[MessageMeta]) -> Result<(), PublishRefusal> {
        let mut admissions = Vec::new();
        let options = PublishOptions::default();
        let stored = self.shard.publish(self.now, self.stream, messages, options, &mut admissions)?;
        if let Some(stored) = stored {
            let fresh = messages.iter().zip(&admissions).filter(|(_, admission)| !admission.duplicate);
            let keys: Vec<KeyHash> = fresh.map(|(meta, _)| meta.key.unwrap_or(KeyHash(0))).collect();
            self.shard.arrived(self.stream, stored, KeyRun::Each(&keys));
        }
        Ok(())
    }

    pub(super) fn publish_plain(&mut self, count: usize) {
        self.publish(&vec![MessageMeta::plain(1); count]).expect("a good batch");
    }

    /// One turn, with the reads that it asks for.
    pub(super) fn turn(&mut self) -> Effects {
        let mut effects = Effects::default();
        self.shard.finish_turn(self.now, &mut effects);
        self.shard.check();
        self.log.append(self.shard.entries());
        for deliver in &effects.deliveries {
            self.delivered.push(*deliver);
            self.shard.served(deliver.group, deliver.consumer);
        }
        for read in &effects.reads {
            let keys = vec![self.key; read.seqs.count() as usize];
            let keys = if read.keys { KeyRun::Each(&keys) } else { KeyRun::Plain };
            self.shard.read_ahead(read.group, read.seqs, keys);
        }
        effects
    }

    pub(super) fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.turn();
        }
    }

    pub(super) fn join(&mut self, group: GroupId, consumer: u64, slots: u32, bound: Bound) {
        let consumer = ConsumerId(consumer);
        self.shard.join(self.now, group, consumer, "worker", bound).expect("a new member");
        self.shard.credit(self.now, group, consumer, Credit::slots(slots)).expect("a member");
    }

    /// The lease that a message was handed out on last.
    pub(super) fn lease(&self, seq: u64) -> Lease {
        let holds = |deliver: &&Deliver| deliver.seqs.contains(Seq(seq));
        let deliver = self.delivered.iter().rfind(holds).expect("it was delivered");
        let grant = deliver.grant.plus(seq - deliver.seqs.first.0);
        Lease { epoch: Epoch(1), seq: Seq(seq), grant }
    }

    pub(super) fn settle(&mut self, group: GroupId, seqs: std::ops::RangeInclusive<u64>, verb: Verb) {
        let leases = LeaseRun::join(seqs.map(|seq| self.lease(seq)));
        let mut outcomes = Vec::new();
        self.shard.settle(self.now, group, &leases, &verb.into(), &mut outcomes);
        assert!(outcomes.iter().all(|(outcome, _)| !matches!(outcome, Outcome::NotYours(_))), "{outcomes:?}");
    }

    /// Everything that was written can be read.
    pub(super) fn check_log(&self) {
        for entry in entries(&self.log) {
            entry.expect("what was written can be read");
        }
    }

    /// The shard as recovered from the written entries.
    pub(super) fn recovered(&mut self) -> Shard {
        self.log.append(self.shard.entries());
        let mut shard = Shard::new(Limits::DEFAULT);
        for (n, entry) in entries(&self.log).enumerate() {
            let entry = entry.expect("what was written can be read");
            shard.apply(Position(n as u64 + 1), &entry).expect("entries fit each other");
        }
        shard.open(self.now, Epoch(self.shard.epoch().0 + 1));
        shard
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }
}
