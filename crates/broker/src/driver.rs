//! Carries out what the core decides: fills frames, attaches contents, and says which tickets are durable.
//!
//! Synchronous, and free of I/O: commands, receipts and read frames go in, and the [`Outbox`] holds the
//! work to do. A thread, a task or the simulator does it. The order of things is:
//!
//! 1. any number of commands and receipts,
//! 2. one [`Driver::finish_turn`], which hands out messages and closes the frame if a reply or a delivery
//!    waits for it,
//! 3. the shell empties the outbox: appends frames, sends answers and deliveries, reads.
//!
//! State is applied when decided and visible when durable. The driver says of a ticket that everything decided until
//! then is durable; the value that was decided is with the caller, who answers with it then.

mod admin;
mod bundle;
mod config;
mod deliveries;
mod delivery;
mod fetches;
mod frames;
mod images;
mod lines;
mod locate;
mod outbox;
mod payloads;
mod reads;
mod reclaim;

use std::collections::VecDeque;

use forebay_core::Admission;
use forebay_core::entry::{MessageMeta, published_bytes_max};
use forebay_core::fault::{Fault, planted};
use forebay_core::group::{
    Bound, ConsumerTerms, Credit, Departure, Effects, JobState, Lease, LeaseRun, OutcomeRun, Settlement, Verb,
};
use forebay_core::shard::{KeyRun, MemberRefusal, Moved, PublishOptions, PublishRefusal, Shard};
use forebay_core::types::{
    ConsumerId, GroupId, KeyHash, Ordinal, Position, SeqRange, ShardId, StreamId, Timestamp,
};
use forebay_storage::engine::{Damage, Durable, Saved, StoredFrame};

use crate::batch::Batch;
use crate::index::Index;
use crate::recovery::RecoveryError;
use crate::window::{Place, Window};
use frames::Frames;
use images::Images;
use payloads::Payloads;
use reclaim::Reclaim;

pub use bundle::{Bundle, Committed};
pub use config::{DriverConfig, DriverFigures};
pub use delivery::{Delivered, Delivery, Past, RunMessage};
pub use outbox::{Outbox, Published, Read, Ticket};
pub use reclaim::ReclaimFigures;

#[derive(Debug)]
pub struct Driver {
    config: DriverConfig,
    shard: Shard,
    index: Index,
    frames: Frames,
    payloads: Payloads,
    images: Images,
    reclaim: Reclaim,
    /// The driver's own counts. Its modules keep the others.
    figures: DriverFigures,
    storage_full: bool,
    /// The engine has little space left, beside what it needs to free some.
    is_scarce: bool,
    /// The engine does not write, and more waits for it than should.
    is_backed_up: bool,
    effects: Effects,
    admissions: Vec<Admission>,
    /// Tickets that wait for the end of the turn.
    confirmations: Vec<Ticket>,
    /// Streams that the frame which became durable last has messages of.
    grown: Vec<StreamId>,
    /// Frames that are not durable yet with messages that left a group for another stream, in their order.
    moved: VecDeque<(u64, GroupId)>,
    outbox: Outbox,
}

/// The facts about its log that a driver needs, from the claim.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogTerms {
    /// The position up to which the older image covers the log.
    pub(crate) covered: Position,
    /// How much log there is after the newest.
    pub(crate) since_image: u64,
    pub(crate) trim_unit: u64,
    pub(crate) frames_max: usize,
    pub(crate) frame_bytes_max: usize,
}

impl Driver {
    /// A driver around a recovered shard. Its first frame says that the shard has a new owner.
    pub(crate) fn new(config: DriverConfig, shard: Shard, index: Index, log: LogTerms) -> Driver {
        let mut driver = Driver {
            frames: Frames::new(config.shard, log.frames_max, log.frame_bytes_max),
            payloads: Payloads::new(Window::new(config.window_bytes_max)),
            images: Images::new(log.covered, log.since_image),
            reclaim: Reclaim::new(log.trim_unit),
            config,
            shard,
            index,
            figures: DriverFigures::default(),
            storage_full: false,
            is_scarce: false,
            is_backed_up: false,
            effects: Effects::default(),
            admissions: Vec::new(),
            confirmations: Vec::new(),
            grown: Vec::new(),
            moved: VecDeque::new(),
            outbox: Outbox::default(),
        };
        driver.index.opened(Ordinal(driver.shard.next_ordinal().0 - 1));
        driver.frames.take_entries(driver.shard.entries(), &mut driver.outbox);
        driver.frames.want();
        driver
    }

    /// The deliveries of the outbox.
    pub fn deliveries(&self) -> &[Delivery] {
        &self.outbox.deliveries
    }

    /// Deliveries to these consumers had to wait in the outbox. Some may have lapsed meanwhile, and their messages may
    /// be with others.
    pub fn drop_lapsed(&mut self, is_meant: impl Fn(ConsumerId) -> bool) {
        let (shard, deliveries) = (&self.shard, &mut self.outbox.deliveries);
        for delivery in std::mem::take(deliveries) {
            let (group, is_kept) = (delivery.group, !is_meant(delivery.consumer));
            delivery.keep(|lease| is_kept || shard.is_current(group, lease), |kept| deliveries.push(kept));
        }
    }

    /// The work that the shell has to do. Work that is taken from it counts as done.
    pub fn outbox(&mut self) -> &mut Outbox {
        self.payloads.take_served(&mut self.shard, &mut self.outbox.served);
        &mut self.outbox
    }

    /// Whether something is leased to a consumer without a connection that has not left yet.
    pub fn is_owed(&self, consumer: ConsumerId) -> bool {
        self.payloads.is_owed(consumer)
    }

    /// The shard whose log this is about.
    pub fn id(&self) -> ShardId {
        self.config.shard
    }

    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// The shell has seen the engine's gauge.
    pub fn set_storage_full(&mut self, full: bool) {
        if full && !self.storage_full {
            self.reclaim.look();
        }
        self.storage_full = full;
    }

    /// The shell has seen how much the engine may still take, its reserve included.
    ///
    /// A message that is handed out and comes back takes space and frees none. So while storage is full, messages are
    /// handed out only as long as reclaim has its part of the reserve and messages in flight can be settled, each by
    /// itself, within another segment. Otherwise nothing is handed out until space has been freed; settling goes on.
    pub fn set_space_left(&mut self, left: u64) {
        let was = self.is_scarce;
        self.is_scarce = self.storage_full && {
            let settling = self.shard.in_flight().saturating_mul(SETTLE_BYTES);
            left < self.reclaim.space_needed(settling, was)
        };
        match (was, self.is_scarce) {
            (false, true) => tracing::warn!(
                left,
                "the reserve is nearly used up: nothing is delivered until space has been freed; settling goes on"
            ),
            (true, false) => tracing::info!(left, "space has been freed: delivery goes on"),
            _ => {}
        }
        self.withhold_or_go_on();
    }

    /// A message that is handed out and comes back makes entries, as often as it does. While the engine cannot write,
    /// for example because the next segment finds no descriptor, they stay in memory.
    fn withhold_or_go_on(&mut self) {
        let (was, unwritten) = (self.is_backed_up, self.frames.unwritten());
        let most = self.config.unwritten_bytes_max;
        self.is_backed_up = unwritten > if was { most / 2 } else { most };
        match (was, self.is_backed_up) {
            (false, true) => tracing::warn!(
                unwritten,
                "storage does not write: nothing is delivered until it does; settling goes on"
            ),
            (true, false) => tracing::info!(unwritten, "storage writes again: delivery goes on"),
            _ => {}
        }
        let withheld = self.is_scarce || self.is_backed_up;
        if withheld != self.shard.is_withheld() {
            self.shard.withhold(withheld);
        }
    }

    /// Lets the shard decide something, and puts its entries into the frame being filled. The decision must not be
    /// told to anyone before it is durable: [`Driver::confirm`].
    pub fn decide<T, E>(&mut self, decide: impl FnOnce(&mut Shard) -> Result<T, E>) -> Result<T, E> {
        let decided = decide(&mut self.shard)?;
        self.frames.take_entries(self.shard.entries(), &mut self.outbox);
        Ok(decided)
    }

    /// Asks for the ticket to come back, with [`Outbox::durable`], once everything that was decided until the end of
    /// this turn is durable. Settlements become entries only there.
    pub fn confirm(&mut self, ticket: Ticket) {
        self.confirmations.push(ticket);
    }

    /// Stores a batch, whole or not at all, and says where. The ticket comes back when the batch is durable, which may
    /// be before the rest of the turn is. A batch that is refused has no ticket.
    pub fn publish(
        &mut self,
        now: Timestamp,
        stream: StreamId,
        batch: &Batch,
        options: PublishOptions,
        ticket: Ticket,
    ) -> Result<Published, PublishRefusal> {
        if self.storage_full {
            return Err(PublishRefusal::StorageFull);
        }
        let bytes = batch.contents.len() + published_bytes_max(&batch.metas);
        self.frames.make_room(bytes, &mut self.outbox);
        let published = self.store(now, stream, batch, options)?;
        self.frames.confirm(ticket, &mut self.outbox);
        Ok(published)
    }

    fn store(
        &mut self,
        now: Timestamp,
        stream: StreamId,
        batch: &Batch,
        options: PublishOptions,
    ) -> Result<Published, PublishRefusal> {
        self.admissions.clear();
        let ordinal = self.shard.next_ordinal();
        let stored = self.shard.publish(now, stream, &batch.metas, options, &mut self.admissions)?;
        Ok(self.put_away(now, stream, batch, stored, ordinal))
    }

    /// Puts the contents of the stored messages into the frame and the window. `ordinal` is the position in the shard's
    /// log that the first of them got.
    fn put_away(
        &mut self,
        now: Timestamp,
        stream: StreamId,
        batch: &Batch,
        stored: Option<SeqRange>,
        ordinal: Ordinal,
    ) -> Published {
        self.frames.take_entries(self.shard.entries(), &mut self.outbox);
        let all_new = stored.is_some_and(|range| range.count() == batch.metas.len() as u64);
        if let Some(range) = stored {
            let contents = if all_new {
                batch.contents.clone()
            } else {
                payloads::fresh_contents(batch, &self.admissions)
            };
            let admissions = &self.admissions;
            let fresh = batch.metas.iter().zip(admissions).filter(|(_, admission)| !admission.duplicate);
            let keys = keys_of(fresh.map(|(meta, _)| meta));
            self.frames.publish(stream, (range, ordinal), &contents, keys);
            let first = Place { seq: range.first, ordinal };
            if all_new {
                let metas = batch.metas.iter().copied();
                self.payloads.window.insert(stream, first, now, metas, contents);
            } else {
                let fresh = batch.metas.iter().zip(admissions).filter(|(_, admission)| !admission.duplicate);
                let fresh: Vec<_> = fresh.map(|(meta, _)| *meta).collect();
                self.payloads.window.insert(stream, first, now, fresh.into_iter(), contents);
            }
        }
        match stored {
            Some(seqs) if all_new => Published::Stored { seqs, ordinal },
            _ => Published::Mixed { admissions: self.admissions.clone(), ordinal },
        }
    }

    pub fn join(
        &mut self,
        now: Timestamp,
        group: GroupId,
        consumer: ConsumerId,
        name: &str,
        bound: Bound,
    ) -> Result<(), MemberRefusal> {
        self.join_on(now, group, consumer, name, bound, ConsumerTerms::default())
    }

    /// Joins on terms of its own.
    pub fn join_on(
        &mut self,
        now: Timestamp,
        group: GroupId,
        consumer: ConsumerId,
        name: &str,
        bound: Bound,
        terms: ConsumerTerms,
    ) -> Result<(), MemberRefusal> {
        self.shard.join_on(now, group, consumer, name, bound, terms)
    }

    pub fn credit(
        &mut self,
        now: Timestamp,
        group: GroupId,
        consumer: ConsumerId,
        credit: Credit,
    ) -> Result<(), MemberRefusal> {
        self.shard.credit(now, group, consumer, credit)
    }

    pub fn leave(&mut self, group: GroupId, consumer: ConsumerId, departure: Departure) {
        self.payloads.drop_consumer(group, consumer);
        self.shard.leave(group, consumer, departure);
    }

    /// Ends leases, or prolongs them, and says in their order what became of them. The entry goes with the next frame;
    /// where the group asks for durable acks, the answer waits for [`Driver::confirm`].
    pub fn settle(
        &mut self,
        now: Timestamp,
        group: GroupId,
        leases: &[LeaseRun],
        settlement: &Settlement,
        outcomes: &mut Vec<OutcomeRun>,
    ) {
        self.shard.settle(now, group, leases, settlement, outcomes);
        if matches!(settlement.verb, Verb::Extend { .. }) {
            return;
        }
        if let Some(stream) = self.shard.stream_of(group) {
            self.payloads.settled(stream);
        }
    }

    /// The oldest frame that was appended and not yet acknowledged is durable.
    pub fn on_durable(&mut self, position: Durable<Position>) {
        let frame = self.frames.durable(position, &mut self.outbox);
        self.index.frame(position.get(), &frame.runs);
        self.grown.clear();
        for (stream, range, keys) in &frame.published {
            if self.grown.last() != Some(stream) {
                self.grown.push(*stream);
            }
            let keys = keys.as_ref().map_or(KeyRun::Plain, |keys| KeyRun::Each(keys));
            self.shard.arrived(*stream, *range, keys);
        }
        while self.moved.pop_front_if(|(number, _)| *number <= frame.number).is_some() {}
        self.payloads.durable(frame.number, &self.shard, &mut self.outbox);
        self.images.durable(frame.number, position.get());
        self.images.log_grew(position.get(), frame.bytes);
        self.figures.frames += 1;
        self.figures.frame_bytes += frame.bytes;
        self.frames.recycle(frame);
    }

    /// Frames that were asked for with [`Read`]. An empty list means that there are none that far.
    pub fn on_read(&mut self, id: u64, frames: &[StoredFrame]) -> Result<(), RecoveryError> {
        self.on_read_around(id, frames, &[])
    }

    /// Frames that were asked for with [`Read`], and places between them that cannot be read. Messages in these places
    /// are parked when they should be delivered; all others go on.
    pub fn on_read_around(
        &mut self,
        id: u64,
        frames: &[StoredFrame],
        damage: &[Damage],
    ) -> Result<(), RecoveryError> {
        if id == reclaim::READ {
            if !damage.is_empty() {
                self.reclaim.unreadable();
                return Ok(());
            }
            return self.reclaim.read(frames, &self.shard, &self.index);
        }
        let mut around = around(&self.index, &self.config, &self.frames, &mut self.outbox);
        self.payloads.read(id, frames, damage, &mut self.shard, &mut around)
    }

    /// Nothing of a [`Read`] can be read. The messages are never delivered but parked, and a group that has to know the
    /// order of their keys stays where it is. Reclaim leaves the front of the log where it is, since unreadable
    /// messages must not be trimmed. Everything else goes on.
    pub fn on_unreadable(&mut self, id: u64) {
        if id == reclaim::READ {
            return self.reclaim.unreadable();
        }
        let mut around = around(&self.index, &self.config, &self.frames, &mut self.outbox);
        self.payloads.unreadable(id, &mut self.shard, &mut around);
    }

    /// The image is not kept, because a part that it shares with an earlier one is damaged. Another one is begun, with
    /// every part from memory.
    pub fn on_image_damaged(&mut self) {
        self.images.failed();
        self.shard.forget_taken();
    }

    /// The image is kept.
    pub fn on_saved(&mut self, saved: Saved) {
        if let Some(through) = self.images.saved(saved) {
            self.index.trim(through);
            self.outbox.trim = Some(through);
        }
        self.figures.images += 1;
        self.reclaim.image_saved();
    }

    /// Copies wanted messages out of the front of the log, if there is reason to.
    fn step_reclaim(&mut self, now: Timestamp) {
        let mut around = reclaim::Context {
            config: &self.config,
            shard: &mut self.shard,
            index: &mut self.index,
            frames: &mut self.frames,
            outbox: &mut self.outbox,
            covered: self.images.covered(),
            trimmed: self.images.trimmed(),
            storage_full: self.storage_full,
            is_scarce: self.is_scarce,
        };
        if self.reclaim.step(now, &mut around) {
            self.images.want();
        }
    }

    /// Begins an image. Messages that are not wanted any more are released first, and the release is written
    /// before the image.
    fn begin_image(&mut self) {
        self.shard.release();
        let pinned = self.reclaim.pin(&mut self.shard, &mut self.index);
        self.frames.take_entries(self.shard.entries(), &mut self.outbox);
        self.images.begin(&self.shard, pinned);
        self.reclaim.image_begun();
    }

    /// Brings messages over that are to be moved and whose contents are here.
    fn finish_moves(&mut self, now: Timestamp) {
        let (mut count, mut bytes) = (0, 0);
        while count < MOVES_MAX
            && bytes < MOVES_BYTES_MAX
            && let Some((moved, found)) = self.payloads.moves.pop_front()
        {
            count += 1;
            bytes += found.as_ref().map_or(0, |found| found.content.len());
            // A move publishes its message like any other, and the reserve is not for that.
            if self.storage_full {
                self.shard.put_off_move(now, moved.group, moved.seq);
                continue;
            }
            let Some(found) = found else {
                let why = "cannot be moved: its content cannot be read";
                self.shard.abandon_move(now, moved.group, moved.seq, why);
                continue;
            };
            // The end of the message here and its beginning there are in one frame, whatever else the turn has
            // changed.
            self.shard.write_down(now, moved.group);
            self.frames.take_entries(self.shard.entries(), &mut self.outbox);
            self.frames.make_room(found.content.len(), &mut self.outbox);
            let meta = found.meta();
            let ordinal = self.shard.next_ordinal();
            let done = self.shard.complete_move(now, moved.group, moved.seq, &meta, found.published);
            self.frames.take_entries(self.shard.entries(), &mut self.outbox);
            if let Ok(Moved { stream, seq, meta }) = done {
                let range = SeqRange::one(seq);
                let keys = keys_of([&meta].into_iter());
                self.frames.publish(stream, (range, ordinal), &found.content, keys);
                let first = Place { seq, ordinal };
                self.payloads.window.insert(stream, first, now, [meta].into_iter(), found.content);
                // Consumers of the group may wait for the end of the move, unless its message was not for them any
                // more.
                self.frames.want();
                let leaves = (self.frames.number(), moved.group);
                if !has_ended(&meta) && self.moved.back() != Some(&leaves) {
                    self.moved.push_back(leaves);
                }
            }
            self.payloads.settled(moved.stream);
        }
    }

    /// Whether messages of a group are on their way to another stream: they are not durable there yet. Messages that
    /// found no room there do not count.
    pub fn is_moving(&self, group: GroupId) -> bool {
        self.shard.is_moving(group) || self.moved.iter().any(|(_, of)| *of == group)
    }

    /// Asks to see messages of a stream; those that are kept and readable come with [`Outbox::fetched`].
    pub fn fetch(&mut self, stream: StreamId, ranges: &[SeqRange], ticket: Ticket) {
        let mut around = around(&self.index, &self.config, &self.frames, &mut self.outbox);
        self.payloads.fetch(stream, ranges, ticket, &self.shard, &mut around);
    }

    /// Lets the groups do what they can, and attaches contents to what they hand out.
    fn hand_out(&mut self, now: Timestamp) {
        self.shard.finish_turn(now, &mut self.effects);
        self.frames.take_entries(self.shard.entries(), &mut self.outbox);
        self.outbox.departed.append(&mut self.effects.departed);
        self.effects.checkpoints.clear();
        self.payloads.parked_damaged(std::mem::take(&mut self.effects.damaged));
        let frame = self.frames.last();
        for deliver in self.effects.deliveries.drain(..) {
            if deliver.bound == Bound::Clock {
                self.frames.want();
            }
            let frame =
                (deliver.bound == Bound::Clock && !planted(Fault::AnswerBeforeReceipt)).then_some(frame);
            let mut around = around(&self.index, &self.config, &self.frames, &mut self.outbox);
            self.payloads.deliver(&self.shard, deliver, frame, &mut around);
        }
    }

    /// Expires, hands out, and closes the frame if it is time to.
    pub fn finish_turn(&mut self, now: Timestamp) {
        self.withhold_or_go_on();
        self.hand_out(now);
        // The wanted messages may be in the window, and then the groups go on at once. Reads that they ask for in
        // the last round are begun by the next turn, which `wake_at` asks for.
        for _ in 1..ROUNDS_MAX {
            if self.effects.reads.is_empty() {
                break;
            }
            for read in self.effects.reads.drain(..) {
                let mut around = around(&self.index, &self.config, &self.frames, &mut self.outbox);
                self.payloads.read_ahead(read, &mut self.shard, &mut around);
            }
            if self.shard.is_touched() {
                self.hand_out(now);
            }
        }
        for moved in self.effects.moves.drain(..) {
            let mut around = around(&self.index, &self.config, &self.frames, &mut self.outbox);
            self.payloads.move_out(moved, &self.shard, &mut around);
        }
        let mut around_here = around(&self.index, &self.config, &self.frames, &mut self.outbox);
        self.payloads.give_up(&mut self.shard, &mut around_here);
        self.finish_moves(now);
        // A group may have to wait for a turn with budget for it. Its settlements do not wait.
        self.shard.write_down_all(now);
        self.frames.take_entries(self.shard.entries(), &mut self.outbox);
        for ticket in self.confirmations.drain(..) {
            self.frames.confirm(ticket, &mut self.outbox);
        }
        self.report_jobs();
        self.payloads.forget_settled(&self.shard);
        self.step_reclaim(now);
        if self.images.is_due(&self.config) {
            self.begin_image();
        }
        self.images.step(&self.config, &mut self.shard, &mut self.frames, &mut self.outbox);
        self.frames.close_if_due(now, &self.config, &mut self.outbox);
    }

    fn report_jobs(&mut self) {
        for (group, id) in self.shard.take_ended_jobs() {
            if let Some(job) = self.shard.job(group, id) {
                let (done, failed) = (job.done, job.failed);
                let group = group_label(&self.shard, group);
                match &job.state {
                    JobState::Failed { why, .. } => {
                        tracing::warn!(group, job = id.0, done, failed, %why, "job failed");
                    }
                    JobState::Cancelled { .. } => {
                        tracing::info!(group, job = id.0, done, failed, "job cancelled");
                    }
                    JobState::Done { .. } | JobState::Running => {
                        tracing::info!(group, job = id.0, done, failed, "job done");
                    }
                }
            }
        }
    }

    /// When the driver next wants to be called, if nothing happens before.
    pub fn wake_at(&self) -> Option<Timestamp> {
        let lazy = self.frames.lazy_deadline(&self.config);
        let image = self.images.has_parts_left().then_some(Timestamp::ZERO);
        let reclaim = self.reclaim.wake_at(&self.frames, self.storage_full);
        let moves = (!self.payloads.moves.is_empty()).then_some(Timestamp::ZERO);
        // The messages that a group was handed may have made it ask for the next ones.
        let is_left_over = !self.effects.reads.is_empty() && !planted(Fault::ReadLeftOver);
        let reads = is_left_over.then_some(Timestamp::ZERO);
        [self.shard.wake_at(), lazy, image, reclaim, moves, reads].into_iter().flatten().min()
    }

    /// Bytes of contents that are held in memory.
    pub fn memory(&self) -> usize {
        self.payloads.window.bytes()
    }

    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The counts of reclaim since the start.
    pub fn reclaimed(&self) -> ReclaimFigures {
        self.reclaim.figures
    }

    /// The counts of the driver since the start.
    pub fn figures(&self) -> DriverFigures {
        let counted = DriverFigures { reclaim: self.reclaim.figures, ..self.figures };
        self.payloads.add_figures(counted)
    }

    /// Whether reclaim has begun with a stretch of the log and is not done with it.
    pub fn is_reclaiming(&self) -> bool {
        self.reclaim.is_copying()
    }

    /// How many messages have been read back from a copy.
    pub fn copies_read(&self) -> u64 {
        self.payloads.copies_read
    }

    /// Number of the newest frame that has something in it, and of the newest that is durable. All
    /// decisions until now survive a crash once the former is durable.
    pub fn frame_numbers(&self) -> (u64, u64) {
        (self.frames.last(), self.frames.durable_number())
    }

    /// Messages that are leased to a consumer and have not left yet.
    pub fn undelivered(&self, group: GroupId) -> impl Iterator<Item = (ConsumerId, Lease)> + '_ {
        self.payloads.undelivered(group)
    }

    /// Whether every frame that was handed out has its receipt and none is being filled.
    pub fn is_settled(&self) -> bool {
        self.frames.is_idle()
    }

    /// Closes the frame being filled even if no reply waits for it, as a clean stop does.
    pub fn flush(&mut self, now: Timestamp) {
        self.shard.check_point_all(now);
        self.frames.take_entries(self.shard.entries(), &mut self.outbox);
        self.reclaim.halt();
        self.frames.want();
        self.frames.close_if_due(now, &self.config, &mut self.outbox);
    }
}

/// How often one turn lets the groups go on with messages that are in the window.
const ROUNDS_MAX: usize = 4;

/// A settlement by itself is a block of one page.
const SETTLE_BYTES: u64 = 4_096;

/// Messages, and bytes of them, that one turn brings to other streams.
const MOVES_MAX: usize = 32;
const MOVES_BYTES_MAX: usize = 1 << 20;

/// The keys of messages, if any of them has one.
fn keys_of<'a>(messages: impl Iterator<Item = &'a MessageMeta> + Clone) -> Option<Box<[KeyHash]>> {
    let any = messages.clone().any(|message| message.key.is_some());
    any.then(|| messages.map(|message| message.key.unwrap_or(KeyHash(0))).collect())
}

/// A group as people know it, for the log.
pub(crate) fn group_label(shard: &Shard, group: GroupId) -> String {
    let stream = shard.stream_of(group);
    let name = stream.and_then(|stream| shard.groups_of(stream).find(|(_, id)| *id == group));
    match (stream.and_then(|stream| shard.stream_name(stream)), name) {
        (Some(stream), Some((group, _))) => format!("{stream}/{group}"),
        _ => group.0.to_string(),
    }
}

/// The parts of a driver that attaching contents looks at, borrowed apart from those that it changes.
fn around<'a>(
    index: &'a Index,
    config: &DriverConfig,
    frames: &Frames,
    outbox: &'a mut Outbox,
) -> payloads::Context<'a> {
    let durable = frames.durable_number();
    payloads::Context { index, read_bytes_max: config.read_bytes_max, durable, outbox }
}

/// Whether a message was moved because it had expired or was dropped.
fn has_ended(moved: &MessageMeta) -> bool {
    let trail = moved.origin.and_then(|origin| origin.trail);
    trail.is_some_and(|trail| trail.why.is_end())
}

#[cfg(test)]
mod tests;
