//! Consumers that settle messages and publish others in one bundle, with a note. After a crash all of a bundle is
//! there, or nothing.

use forebay_broker::driver::{Bundle, Published, Ticket};
use forebay_core::group::{Lease, LeaseRun, Outcome, Settlement, Verb};
use forebay_core::notes::{Expected, NoteChange};
use forebay_core::shard::{BundleRefusal, PublishOptions, Settling, Target};
use forebay_core::types::{GroupId, Seq, StreamId};

use crate::model::Wanted;
use crate::situation::Situation;
use crate::tale::tell;
use crate::world::World;
use crate::world::side::DOOR;

/// The note of every bundle, which has the number of the newest.
const KEY: &[u8] = b"bundles";

/// A bundle of this epoch: the traces of it that can be looked for after a crash.
#[derive(Debug)]
pub(super) struct Recent {
    number: u64,
    /// Positions that were settled, unless the group is gone or has begun anew.
    inputs: Option<(GroupId, Vec<Seq>)>,
    /// The last position that was stored, if one was and the stream is there.
    output: Option<(StreamId, Seq)>,
}

impl Recent {
    pub(super) fn forget_inputs(&mut self, group: GroupId) {
        self.inputs.take_if(|(of, _)| *of == group);
    }
}

impl World {
    /// A consumer settles some of what it holds, and publishes what it made of that.
    pub(super) fn commit_bundle(&mut self) {
        let Some((group, mut holds)) = self.somebody_holding() else { return };
        let count = 1 + self.dice.roll(holds.len().min(4) as u64) as usize;
        holds.truncate(count);
        let mut leases: Vec<Lease> = holds.iter().map(|hold| hold.lease).collect();
        let stale = self.stale_lease(group).filter(|_| self.dice.chance(1, 6));
        leases.extend(stale);
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        let stream = *self.dice.pick(&streams);
        let (uids, batch) = self.write(stream, 3);
        let (now, ticket, number) = (self.now, Ticket(self.number()), self.number());
        let kept = self.count_kept(stream);
        let shard = self.server().driver.shard();
        let last = shard.last_given(stream);
        let current: Vec<bool> = leases.iter().map(|lease| shard.is_current(group, *lease)).collect();
        let (runs, settlement) = (LeaseRun::join(leases.iter().copied()), Settlement::from(Verb::Ack));
        let (key, value) = (KEY, number.to_le_bytes());
        let note =
            NoteChange { door: DOOR, key, value: Some(&value), expected: Expected::Any, expires: None };
        let bundle = Bundle::default()
            .publish(Target::Id(stream), &batch, PublishOptions::default())
            .settle(Settling { group, leases: &runs, settlement: &settlement })
            .note(note);
        let committed = self.driver().commit(now, &bundle);
        tell(|| format!("bundle {number}: {leases:?} of {group:?}, {uids:?} to {stream:?}: {committed:?}"));
        match committed {
            Ok(mut done) => {
                assert!(stale.is_none(), "I19: a bundle with a lease that is over is committed: {stale:?}");
                assert!(!done.again, "I19: a bundle that is new is taken for one that came before");
                assert_eq!(done.outcomes, [[(Outcome::Acked, leases.len() as u32)]], "I19: all is settled");
                let published = done.published.remove(0);
                let output = last_stored(&published).map(|seq| (stream, seq));
                let inputs = Some((group, leases.iter().map(|lease| lease.seq).collect()));
                self.bundles.push(Recent { number, inputs, output });
                self.driver().confirm(ticket);
                self.publishes.insert(ticket, (stream, uids, published));
                self.check_limit(stream, kept, None);
                self.answered(group, &leases, Wanted::Ack, &done.outcomes[0]);
                self.situations.reached(Situation::BundleCommitted);
            }
            Err(refusal) => {
                let shard = self.server().driver.shard();
                assert_eq!(shard.last_given(stream), last, "I19: a bundle that is refused stores nothing");
                let still: Vec<bool> = leases.iter().map(|lease| shard.is_current(group, *lease)).collect();
                assert_eq!(still, current, "I19: a bundle that is refused settles nothing: {refusal}");
                match refusal {
                    BundleRefusal::NotYours { lease, why, .. } => {
                        let is_current = shard.is_current(group, lease);
                        assert!(!is_current, "I19: a current lease is refused: {lease:?}");
                        self.situations.reached(Situation::BundleWithStaleLease);
                        if Some(lease) != stale {
                            self.answered(group, &[lease], Wanted::Ack, &[(Outcome::NotYours(why), 1)]);
                        }
                        let model = self.streams.get_mut(&stream).expect("the stream exists");
                        uids.into_iter().for_each(|uid| model.refused(uid));
                    }
                    BundleRefusal::Publish { refusal, .. } => {
                        self.publish_refused(stream, kept, uids, &refusal);
                    }
                    error => panic!("a good bundle was refused: {error}"),
                }
            }
        }
    }

    /// A lease of the group that is over.
    fn stale_lease(&mut self, group: GroupId) -> Option<Lease> {
        let shard = self.server.as_ref()?.driver.shard();
        let over = self.stale.iter().filter(|(of, lease)| *of == group && !shard.is_current(group, *lease));
        over.map(|(_, lease)| *lease).next_back()
    }

    pub(super) fn forget_inputs(&mut self, group: GroupId) {
        self.bundles.iter_mut().for_each(|bundle| bundle.forget_inputs(group));
    }

    pub(super) fn forget_outputs(&mut self, stream: StreamId) {
        for bundle in &mut self.bundles {
            bundle.output.take_if(|(of, _)| *of == stream);
        }
    }

    /// Whether the crash may have taken back a reset of the group. Then messages that a bundle settled after it may be
    /// settled without the bundle, by acks from before the reset.
    fn is_reset_in_doubt(&self, group: GroupId) -> bool {
        let following = self.groups.get(&group);
        following.is_some_and(|following| following.watch.is_in_upheaval(self.durable_at_crash))
    }

    /// The server is back: the inputs of a bundle are settled, its outputs are stored and its note is written, or none
    /// of that is so.
    pub(super) fn check_bundles_recovered(&mut self) {
        let shard = self.server.as_ref().expect("the server has just started").driver.shard();
        let noted = shard.note(self.now, DOOR, KEY).and_then(|note| note.value.as_slice().try_into().ok());
        let noted = noted.map_or(0, u64::from_le_bytes);
        let mut lost = false;
        for bundle in std::mem::take(&mut self.bundles) {
            let is_noted = bundle.number <= noted;
            let Recent { inputs, output, .. } = &bundle;
            if let Some((stream, seq)) = output
                && let Some(last) = shard.last_given(*stream)
            {
                assert_eq!(*seq <= last, is_noted, "I19: a bundle is torn, noted at {noted}: {bundle:?}");
            }
            if let Some((group, seqs)) = inputs
                && shard.stream_of(*group).is_some()
                && (is_noted || !self.is_reset_in_doubt(*group))
            {
                // A parked message was not acked: the crash has taken back a replay, and all that followed from it.
                let is_acked =
                    |seq: Seq| shard.is_settled(*group, seq) && shard.parked(*group, seq).is_none();
                let settled = seqs.iter().filter(|seq| is_acked(**seq)).count();
                let expected = if is_noted { seqs.len() } else { 0 };
                assert_eq!(settled, expected, "I19: a bundle is torn, noted at {noted}: {bundle:?}");
            }
            lost |= !is_noted;
        }
        if lost {
            self.situations.reached(Situation::BundleLostInCrash);
        }
    }
}

/// The last position that a batch was stored at. Duplicates are not stored.
fn last_stored(published: &Published) -> Option<Seq> {
    let stored = published.each().map(|(admission, _)| admission).filter(|admission| !admission.duplicate);
    stored.map(|admission| admission.seq).max()
}
