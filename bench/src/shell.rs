//! The smallest shell around a driver: does at once, on this thread, whatever the outbox asks for.

use std::error::Error;
use std::path::Path;

use forebay_broker::batch::{Batch, BatchBuilder, Message};
use forebay_broker::driver::{Driver, DriverConfig, Read, Ticket};
use forebay_broker::recovery::{Recovery, RecoveryError};
use forebay_core::group::{Bound, Credit, Outcome, OutcomeRun, Verb};
use forebay_core::settings::{GroupSettings, StreamSettings};
use forebay_core::shard::{PublishOptions, Start};
use forebay_core::types::{
    ConsumerId, GroupId, GroupName, Limits, Position, StreamId, StreamName, Timestamp,
};
use forebay_storage::engine::{Claim, Durable, Frame, Image, ReadBudget, Saved, StorageError, StoredFrame};
use forebay_storage::journal::disk::FolderDisk;
use forebay_storage::journal::{Chores, Journal, JournalConfig, Keyring, Reader, Writer};
use forebay_storage::memory::MemoryLog;

/// What a shell needs of an engine, without waiting for anything but the disk.
pub(crate) trait Log {
    /// Makes all frames durable.
    fn commit(
        &mut self,
        frames: &mut Vec<Frame>,
        receipts: &mut Vec<Durable<Position>>,
    ) -> Result<(), StorageError>;

    fn read(&mut self, from: Position, budget: ReadBudget) -> Result<Vec<StoredFrame>, StorageError>;

    fn save(&mut self, image: Image) -> Result<Saved, StorageError>;

    fn trim(&mut self, through: Position) -> Result<(), StorageError>;
}

impl Log for MemoryLog {
    fn commit(
        &mut self,
        frames: &mut Vec<Frame>,
        receipts: &mut Vec<Durable<Position>>,
    ) -> Result<(), StorageError> {
        while !frames.is_empty() {
            MemoryLog::commit(self, frames, receipts)?;
        }
        Ok(())
    }

    fn read(&mut self, from: Position, budget: ReadBudget) -> Result<Vec<StoredFrame>, StorageError> {
        Ok(MemoryLog::read(self, from, budget))
    }

    fn save(&mut self, image: Image) -> Result<Saved, StorageError> {
        MemoryLog::save(self, image)
    }

    fn trim(&mut self, through: Position) -> Result<(), StorageError> {
        MemoryLog::trim(self, through);
        Ok(())
    }
}

/// The embedded journal, with its chores done in between.
pub(crate) struct JournalLog {
    writer: Writer<FolderDisk>,
    chores: Chores<FolderDisk>,
    reader: Reader<FolderDisk>,
}

/// Any number would do, since the payloads of a bench imitate no block.
const JOURNAL_ID: u128 = 0x0bad_5eed_0bad_5eed_0bad_5eed_0bad_5eed;

impl JournalLog {
    pub(crate) fn open(folder: &Path) -> Result<(JournalLog, Claim), Box<dyn Error>> {
        JournalLog::open_with(folder, None)
    }

    /// Encrypted, if there are keys.
    pub(crate) fn open_with(
        folder: &Path,
        keys: Option<Keyring>,
    ) -> Result<(JournalLog, Claim), Box<dyn Error>> {
        let config = JournalConfig { keys, ..JournalConfig::new(JOURNAL_ID) };
        let opened = Journal::open(FolderDisk::new(folder)?, &config)?;
        let log = JournalLog { writer: opened.writer, chores: opened.chores, reader: opened.reader };
        Ok((log, opened.claim))
    }

    /// Does what a second thread would do by now: the next segment, the footers of finished ones.
    pub(crate) fn tidy(&mut self) -> Result<(), StorageError> {
        if self.writer.take_rotated() { self.chores.tidy() } else { Ok(()) }
    }
}

impl Log for JournalLog {
    fn commit(
        &mut self,
        frames: &mut Vec<Frame>,
        receipts: &mut Vec<Durable<Position>>,
    ) -> Result<(), StorageError> {
        while !frames.is_empty() {
            self.writer.commit(frames, receipts)?;
        }
        Ok(())
    }

    fn read(&mut self, from: Position, budget: ReadBudget) -> Result<Vec<StoredFrame>, StorageError> {
        self.reader.read(from, budget)
    }

    fn save(&mut self, image: Image) -> Result<Saved, StorageError> {
        self.chores.save(image)
    }

    fn trim(&mut self, through: Position) -> Result<(), StorageError> {
        self.chores.trim(through)
    }
}

/// A driver and its log, with one stream and one group.
pub(crate) struct Shell<L> {
    pub(crate) driver: Driver,
    pub(crate) log: L,
    /// The shell's clock. It moves by a fixed step each turn, so that every run decides the same.
    pub(crate) now: Timestamp,
    pub(crate) stream: StreamId,
    pub(crate) group: GroupId,
    receipts: Vec<Durable<Position>>,
    outcomes: Vec<OutcomeRun>,
}

/// How far the clock moves each turn, in microseconds. About what a turn of a batch of 64 takes.
const TURN_MICROS: u64 = 10;

impl<L: Log> Shell<L> {
    /// Brings the shard back from the log, and makes the stream and the group if there are none.
    pub(crate) fn open(
        mut log: L,
        mut claim: Claim,
        now: Timestamp,
        config: DriverConfig,
    ) -> Result<Shell<L>, Box<dyn Error>> {
        let mut recovery = Recovery::begin(&mut claim, Limits::DEFAULT)?;
        while let Some((from, budget)) = recovery.next_read() {
            recovery.feed(&log.read(from, budget)?)?;
        }
        let driver = recovery.finish(now, config);
        let mut shell = Shell {
            driver,
            log,
            now,
            stream: StreamId(0),
            group: GroupId(0),
            receipts: Vec::new(),
            outcomes: Vec::new(),
        };
        shell.turn()?;
        let (stream, group) = (StreamName::parse("orders")?, GroupName::parse("workers")?);
        shell.stream = match shell.driver.shard().stream_named(&stream) {
            Some(stream) => stream,
            None => {
                let settings = StreamSettings::default();
                let stream = shell.driver.decide(|shard| shard.create_stream(now, &stream, &settings))?;
                shell.confirm()?;
                stream
            }
        };
        shell.group = match shell.driver.shard().group_named(shell.stream, &group) {
            Some(group) => group,
            None => {
                let settings = GroupSettings::default();
                let start = Start::Beginning;
                let stream = shell.stream;
                let group =
                    shell.driver.decide(|shard| shard.create_group(now, stream, &group, &settings, start))?;
                shell.confirm()?;
                group
            }
        };
        Ok(shell)
    }

    /// Makes the last decisions durable.
    fn confirm(&mut self) -> Result<(), Box<dyn Error>> {
        self.driver.confirm(Ticket(0));
        self.turn()?;
        self.driver.outbox().durable.pop().ok_or("there was no answer")?;
        Ok(())
    }

    /// Lets in consumers whose connections last, each with this many slots.
    pub(crate) fn join(&mut self, consumers: u64, slots: u32) -> Result<(), Box<dyn Error>> {
        for consumer in (1..=consumers).map(ConsumerId) {
            self.driver.join(self.now, self.group, consumer, "worker", Bound::Connection)?;
            self.driver.credit(self.now, self.group, consumer, Credit::slots(slots))?;
        }
        Ok(())
    }

    pub(crate) fn publish(&mut self, batch: &Batch) -> Result<(), Box<dyn Error>> {
        self.driver.publish(self.now, self.stream, batch, PublishOptions::default(), Ticket(1))?;
        Ok(())
    }

    /// Ends a turn and does what it asks for, until nothing is left to do but to answer and deliver.
    pub(crate) fn turn(&mut self) -> Result<(), RecoveryError> {
        self.now.0 += TURN_MICROS;
        loop {
            self.driver.finish_turn(self.now);
            if !self.carry_out()? {
                return Ok(());
            }
        }
    }

    /// Does the work in the outbox. Returns whether the driver has learned anything by it.
    fn carry_out(&mut self) -> Result<bool, RecoveryError> {
        let mut learned = false;
        if !self.driver.outbox().frames.is_empty() {
            self.log.commit(&mut self.driver.outbox().frames, &mut self.receipts)?;
            for receipt in self.receipts.drain(..) {
                self.driver.on_durable(receipt);
            }
            learned = true;
        }
        while let Some(Read { id, from, budget }) = self.driver.outbox().reads.pop() {
            let frames = self.log.read(from, budget)?;
            self.driver.on_read(id, &frames)?;
            learned = true;
        }
        if let Some(image) = self.driver.outbox().image.take() {
            let saved = self.log.save(image)?;
            self.driver.on_saved(saved);
            learned = true;
        }
        if let Some(through) = self.driver.outbox().trim.take() {
            self.log.trim(through)?;
        }
        Ok(learned)
    }

    /// Acknowledges everything that was delivered, and returns how many messages that were.
    pub(crate) fn ack_delivered(&mut self) -> u64 {
        let mut count = 0;
        while let Some(delivery) = self.driver.outbox().deliveries.pop() {
            self.outcomes.clear();
            let (group, leases) = (delivery.group, [delivery.leases()]);
            self.driver.settle(self.now, group, &leases, &Verb::Ack.into(), &mut self.outcomes);
            let acked = self.outcomes.iter().filter(|(outcome, _)| *outcome == Outcome::Acked);
            count += acked.map(|(_, count)| u64::from(*count)).sum::<u64>();
        }
        count
    }

    /// Forgets answers, and returns how many there were.
    pub(crate) fn take_answers(&mut self) -> usize {
        self.driver.outbox().durable.drain(..).count()
    }
}

/// A batch of messages that have nothing but a body.
pub(crate) fn batch(messages: u64, body: &[u8]) -> Batch {
    // One byte before each body says that there is nothing else.
    let mut builder = BatchBuilder::with_capacity(messages as usize, messages as usize * (body.len() + 1));
    let message = Message { body, ..Message::default() };
    for _ in 0..messages {
        builder.push(&message);
    }
    builder.build()
}
