//! Several changes of one call, in one frame: all of them are there after a crash, or none.
//!
//! The core checks every part first ([`Shard::check_bundle`](forebay_core::shard::Shard::check_bundle)) and changes
//! nothing. Then the driver makes room for the whole bundle in one frame, and lets the core do one part after the
//! other.

use forebay_core::Admission;
use forebay_core::fault::{Fault, planted};
use forebay_core::group::{Outcome, OutcomeRun};
use forebay_core::notes::{NoteChange, NoteRefusal};
use forebay_core::shard::{
    self, Arrangement, BundleRefusal, Publication, PublishOptions, PublishRefusal, Replacement,
    ResubmitRefusal, Settling, Target,
};
use forebay_core::types::{GroupId, Ordinal, Seq, StreamId, StreamName, Timestamp};

use crate::batch::Batch;
use crate::driver::{Driver, Published};

/// Changes that are made together, with the contents of their messages.
#[derive(Debug, Clone, Default)]
pub struct Bundle<'a> {
    plan: shard::Bundle<'a>,
    /// Of the publications, in their order.
    batches: Vec<&'a Batch>,
    /// The copy that takes the place of a parked message.
    copy: Option<&'a Batch>,
}

impl<'a> Bundle<'a> {
    /// Nothing is done unless the stream ends here. One that is not there ends before its first message.
    pub fn expect_end(mut self, stream: &'a StreamName, last: Seq) -> Bundle<'a> {
        self.plan.ends.push((stream, last));
        self
    }

    /// Creates or changes a stream and groups of it.
    pub fn arrange(mut self, arrangement: Arrangement<'a>) -> Bundle<'a> {
        self.plan.arrangements.push(arrangement);
        self
    }

    pub fn publish(mut self, target: Target<'a>, batch: &'a Batch, options: PublishOptions) -> Bundle<'a> {
        self.plan.publications.push(Publication { target, messages: &batch.metas, options });
        self.batches.push(batch);
        self
    }

    /// Publishes an edited copy of a parked message and lets go of the message. The batch has one message. A bundle has
    /// one copy at most; a later one takes the place of an earlier one.
    pub fn resubmit(mut self, group: GroupId, seq: Seq, batch: &'a Batch) -> Bundle<'a> {
        self.plan.replacement = batch.metas.first().map(|message| Replacement { group, seq, message });
        self.copy = Some(batch);
        self
    }

    /// Ends leases. Each of them has to be current, or nothing is done.
    pub fn settle(mut self, settling: Settling<'a>) -> Bundle<'a> {
        self.plan.settlements.push(settling);
        self
    }

    /// Deletes a stream with its groups, even if they have consumers.
    pub fn delete(mut self, stream: StreamId) -> Bundle<'a> {
        self.plan.deletions.push(stream);
        self
    }

    pub fn note(mut self, note: NoteChange<'a>) -> Bundle<'a> {
        self.plan.notes.push(note);
        self
    }
}

/// The result of a bundle, part by part.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Committed {
    /// The streams that were arranged, and whether each of them is new.
    pub streams: Vec<(StreamId, bool)>,
    /// The messages of each batch, and of the copy of a parked message.
    pub published: Vec<Published>,
    /// The outcomes of each settlement.
    pub outcomes: Vec<Vec<OutcomeRun>>,
    /// Of each note; none of those that were removed.
    pub versions: Vec<Option<u64>>,
    /// The bundle had been done before, and came again.
    pub again: bool,
}

impl Committed {
    /// The answer to a bundle that came again.
    fn again(plan: &shard::Bundle<'_>, places: Vec<Vec<Seq>>) -> Committed {
        let known = |seq| Admission { seq, duplicate: true };
        let published = places.into_iter().map(|seqs| Published::Mixed {
            admissions: seqs.into_iter().map(known).collect(),
            // No message is new.
            ordinal: Ordinal(0),
        });
        let acked = |settling: &Settling<'_>| {
            vec![(Outcome::Acked, settling.leases.iter().map(|run| run.count).sum())]
        };
        Committed {
            published: published.collect(),
            outcomes: plan.settlements.iter().map(acked).collect(),
            again: true,
            ..Committed::default()
        }
    }
}

impl Driver {
    /// Makes changes together: all of them or, if one is refused, none; and they are in one frame, so that a crash
    /// leaves all of them or none as well.
    pub fn commit(&mut self, now: Timestamp, bundle: &Bundle<'_>) -> Result<Committed, BundleRefusal> {
        let Bundle { plan, batches, copy } = bundle;
        self.check_space(bundle)?;
        let bytes = match self.shard.check_bundle(now, plan) {
            Ok(bytes) => bytes,
            // Its client may not have heard that it was done.
            Err(refusal) => {
                let places = self.shard.find_committed(now, plan);
                return places.map(|places| Committed::again(plan, places)).ok_or(refusal);
            }
        };
        let limit = self.frames.frame_bytes_max();
        if bytes > limit {
            return Err(BundleRefusal::TooLarge { bytes, limit });
        }
        // Earlier decisions do not take the room.
        self.write_before(now, plan);
        self.frames.make_room(bytes, &mut self.outbox);
        let frame = self.frames.number();
        let mut done = Committed::default();
        for arrangement in &plan.arrangements {
            done.streams.push(self.shard.arrange(now, arrangement).expect("it was checked just now"));
        }
        for (publication, batch) in plan.publications.iter().zip(batches) {
            let stream = self.target(now, publication.target);
            let stored = self.store(now, stream, batch, publication.options);
            done.published.push(stored.expect("it was found admissible just now"));
        }
        if let (Some(Replacement { group, seq, message }), Some(batch)) = (plan.replacement, copy) {
            self.admissions.clear();
            let ordinal = self.shard.next_ordinal();
            let stored = self.shard.resubmit(now, group, seq, message, &mut self.admissions);
            let stream = self.shard.stream_of(group).expect("the group was there just now");
            let stored = stored.expect("it was checked just now");
            done.published.push(self.put_away(now, stream, batch, stored, ordinal));
        }
        self.frames.take_entries(self.shard.entries(), &mut self.outbox);
        if planted(Fault::BundleTorn) {
            self.frames.close(&mut self.outbox);
        }
        for settling in &plan.settlements {
            let mut outcomes = Vec::with_capacity(1);
            self.shard.settle_together(now, settling, &mut outcomes);
            done.outcomes.push(outcomes);
            if let Some(stream) = self.shard.stream_of(settling.group) {
                self.payloads.settled(stream);
            }
        }
        for &stream in &plan.deletions {
            self.shard.delete_stream(stream, true).expect("it was checked just now");
            self.payloads.drop_stream(stream);
        }
        for note in &plan.notes {
            done.versions.push(self.change_note(now, *note).expect("it was checked just now"));
        }
        self.frames.take_entries(self.shard.entries(), &mut self.outbox);
        let is_whole = self.frames.number() == frame || planted(Fault::BundleTorn);
        assert!(is_whole, "a bundle is in one frame");
        Ok(done)
    }

    /// While the disk is full, only settling and removing go on.
    fn check_space(&self, bundle: &Bundle<'_>) -> Result<(), BundleRefusal> {
        if bundle.copy.is_some() {
            let refusal = match bundle.plan.replacement {
                None => PublishRefusal::Empty,
                Some(_) if self.storage_full => PublishRefusal::StorageFull,
                Some(_) => return Ok(()),
            };
            return Err(ResubmitRefusal::Publish(refusal).into());
        }
        if !self.storage_full || !bundle.plan.needs_space() {
            return Ok(());
        }
        if bundle.plan.publications.is_empty() {
            return Err(NoteRefusal::Full.into());
        }
        Err(BundleRefusal::Publish { nth: 0, refusal: PublishRefusal::StorageFull })
    }

    /// Takes earlier entries, and those that groups have to write before they change, into frames. They need not be in
    /// the frame of the bundle.
    fn write_before(&mut self, now: Timestamp, plan: &shard::Bundle<'_>) {
        for Arrangement { stream: (name, _), groups } in &plan.arrangements {
            let Some(stream) = self.shard.stream_named(name) else { continue };
            for (group, _) in groups {
                if let Some(group) = self.shard.group_named(stream, group) {
                    self.shard.check_point(now, group);
                }
            }
        }
        for settling in &plan.settlements {
            self.shard.write_acks(now, settling.group);
        }
        if let Some(replacement) = plan.replacement {
            self.shard.write_down(now, replacement.group);
        }
        self.frames.take_entries(self.shard.entries(), &mut self.outbox);
    }

    /// The stream that messages are for, which is created if it is missing.
    fn target(&mut self, now: Timestamp, target: Target<'_>) -> StreamId {
        match target {
            Target::Id(stream) => stream,
            Target::Name(name, create) => self.shard.stream_named(name).unwrap_or_else(|| {
                let settings = create.expect("a missing stream comes with settings");
                self.shard.create_stream(now, name, settings).expect("it was checked just now")
            }),
        }
    }
}
