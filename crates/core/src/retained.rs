//! Which messages are still wanted by a group or a reader, and which the stream still promises.
//!
//! A message is wanted while some group has not settled it, keeps it parked or has to bring it to another stream; a
//! stream that has no group keeps everything from its first message on. From that follows what reclaim has to copy,
//! and how far the log may be trimmed.
//!
//! What a stream keeps from `first` on, it keeps without a gap, because a group that is created later may
//! begin there. What lies before `first` is kept only for the groups that want it. So before a gap may
//! come about, `first` is moved past it: see [`Shard::let_go`].

use crate::codec::DecodeError;
use crate::entry::Entry;
use crate::fault::{Fault, planted};
use crate::group::ledger::Ledger;
use crate::settings::Retention;
use crate::shard::Shard;
use crate::shard::publish::held_with;
use crate::stream::Stream;
use crate::types::{Seq, SeqRange, StreamId};

impl Shard {
    /// Adds to `out` the durable messages of the range that are wanted, in order. Of a deleted stream no
    /// message is wanted.
    pub fn wanted(&self, stream: StreamId, range: SeqRange, out: &mut Vec<SeqRange>) {
        let Some(of) = self.streams.get(&stream) else { return };
        let Some(range) = whole(Seq(1), of.durable).and_then(|durable| durable.overlap(range)) else {
            return;
        };
        let mut found = Vec::new();
        let kept = self.kept_from(of).and_then(|first| whole(first, range.last));
        found.extend(kept.and_then(|kept| kept.overlap(range)));
        for (_, group) in &of.groups {
            self.groups[group].ledger.wanted(range, &mut found);
        }
        found.sort_unstable();
        let begin = out.len();
        for range in found {
            match out[begin..].last_mut() {
                Some(last) if range.first <= last.last.next() => last.last = last.last.max(range.last),
                _ => out.push(range),
            }
        }
    }

    /// The first durable message at `from` or after it that is wanted.
    pub fn first_wanted(&self, stream: StreamId, from: Seq) -> Option<Seq> {
        let of = self.streams.get(&stream)?;
        let groups = of.groups.iter().map(|(_, group)| self.groups[group].ledger.first_wanted(from));
        let first = groups.chain(self.kept_from(of).map(|first| from.max(first))).min()?;
        (first <= of.durable).then_some(first)
    }

    /// The first durable message at `from` or after it that can be read: it is wanted, or the stream has not
    /// released it.
    pub fn first_kept(&self, stream: StreamId, from: Seq) -> Option<Seq> {
        let of = self.streams.get(&stream)?;
        let kept = from.max(of.first).max(of.gone.next());
        let groups = of.groups.iter().map(|(_, group)| self.groups[group].ledger.first_wanted(from));
        let first = groups.fold(kept, Seq::min);
        (first <= of.durable).then_some(first)
    }

    /// How many messages of the stream are wanted, by a rough count: one that several groups want counts
    /// as often as that.
    pub fn wanted_count(&self, stream: StreamId) -> u64 {
        let Some(of) = self.streams.get(&stream) else { return 0 };
        let groups = of.groups.iter().map(|(_, group)| self.groups[group].wanted_count(of));
        let kept = self.kept_from(of).map(|first| (of.durable.0 + 1).saturating_sub(first.0));
        groups.chain(kept).sum()
    }

    /// How many bytes those messages have, by a rough count too.
    pub fn wanted_bytes(&self, stream: StreamId) -> u64 {
        let Some(of) = self.streams.get(&stream) else { return 0 };
        let groups = of.groups.iter().map(|(_, group)| {
            let group = &self.groups[group];
            held_with(of, group, group.ledger.outgoing().count()).1
        });
        let kept = self.kept_from(of).filter(|first| *first <= of.last);
        let kept = kept.map(|first| of.timeline.bytes(SeqRange::new(first, of.last)));
        groups.chain(kept).sum()
    }

    /// Everything from here on is wanted, whatever the groups have done: without groups no message is
    /// settled, a log keeps its messages by its own limits, and readers have not read the rest.
    fn kept_from(&self, stream: &Stream) -> Option<Seq> {
        if stream.groups.is_empty() || stream.settings.retention != Retention::Work {
            return Some(stream.first);
        }
        stream.readers.values().min().map(|seq| seq.next().max(stream.first))
    }

    /// What lies before `first` may have gaps from now on. Written down before the log is trimmed, so that
    /// no group that is created later begins where there is one.
    pub fn let_go(&mut self, stream: StreamId, first: Seq) {
        if self.streams.get(&stream).is_some_and(|of| first > of.first && first <= of.last.next()) {
            self.commit(&Entry::Released { stream, first });
        }
    }

    /// The first message from which on the stream keeps everything, and the last durable one.
    pub fn kept(&self, stream: StreamId) -> Option<(Seq, Seq)> {
        self.streams.get(&stream).map(|of| (of.first, of.durable))
    }

    pub fn stream_ids(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.streams.keys().copied()
    }

    /// A copy changes nothing but where its message is. Its stream may be gone by now, but was there once.
    pub(crate) fn check_copied(&self, stream: StreamId) -> Result<(), DecodeError> {
        if stream < self.next_stream { Ok(()) } else { Err(DecodeError::Contradiction("a stream exists")) }
    }
}

/// Both ends included; `None` if there is nothing between them.
fn whole(first: Seq, last: Seq) -> Option<SeqRange> {
    (first <= last).then(|| SeqRange::new(first, last))
}

impl Ledger {
    /// Adds the messages of the range that the group wants: first the unsettled ones, then the parked ones,
    /// then those that still have to be brought to another stream.
    fn wanted(&self, range: SeqRange, out: &mut Vec<SeqRange>) {
        let mut next = self.progress().unsettled_from(range.first);
        while next <= range.last {
            let settled = self.progress().above().run_from(next).map_or(range.last.next(), |run| run.first);
            let last = range.last.min(Seq(settled.0 - 1));
            out.push(SeqRange::new(next, last));
            next = self.progress().unsettled_from(last.next());
        }
        let mut next = range.first;
        while let Some(run) = self.parked().positions().run_from(next).and_then(|run| run.overlap(range)) {
            out.push(run);
            next = run.last.next();
        }
        out.extend(self.replayed().range(range.first..=range.last).map(|(&seq, _)| SeqRange::one(seq)));
        if !planted(Fault::SentForgotten) {
            let outgoing = self.outgoing().runs_from(range.first);
            out.extend(outgoing.filter_map(|run| run.overlap(range)));
        }
    }

    /// The first message at `from` or after it that the group wants, whether it has been published or not.
    fn first_wanted(&self, from: Seq) -> Seq {
        let unsettled = self.progress().unsettled_from(from);
        if planted(Fault::ReclaimForgetsWanted) {
            return unsettled;
        }
        let parked = self.parked().positions().first_from(from);
        let replayed = self.replayed().range(from..).next().map(|(&seq, _)| seq);
        let outgoing = self.outgoing().first_from(from).map(|(seq, _)| seq);
        let outgoing = outgoing.filter(|_| !planted(Fault::SentForgotten));
        [parked, replayed, outgoing].into_iter().flatten().fold(unsettled, Seq::min)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::entry::{Cause, Failure, MessageMeta, ParkedMessage};
    use crate::group::decision::Decision;
    use crate::settings::{GroupSettings, StreamSettings};
    use crate::shard::{KeyRun, PublishOptions, Start};
    use crate::types::{Epoch, GroupName, Limits, StreamName, Timestamp};

    const NOW: Timestamp = Timestamp(1_000);
    const MESSAGES: u64 = 60;

    /// A shard with one stream of durable messages and this many groups.
    fn shard(groups: usize) -> (Shard, StreamId) {
        let mut shard = Shard::new(Limits::DEFAULT);
        shard.open(NOW, Epoch(1));
        let name = StreamName::parse("jobs").expect("a good name");
        let stream = shard.create_stream(NOW, &name, &StreamSettings::default()).expect("a new stream");
        for n in 0..groups {
            let name = GroupName::parse(&format!("group-{n}")).expect("a good name");
            let settings = GroupSettings::default();
            shard.create_group(NOW, stream, &name, &settings, Start::Beginning).expect("a new group");
        }
        let messages = vec![MessageMeta::plain(1); MESSAGES as usize];
        let options = PublishOptions::default();
        let stored = shard.publish(NOW, stream, &messages, options, &mut Vec::new()).expect("a good batch");
        shard.arrived(stream, stored.expect("they are new"), KeyRun::Plain);
        (shard, stream)
    }

    proptest! {
        #[test]
        fn what_is_wanted_agrees_with_a_plain_set(
            groups in prop::collection::vec(
                prop::collection::vec((1u64..=MESSAGES, 0u64..6, any::<bool>()), 0..12), 0..3
            ),
            asked in (1u64..=MESSAGES, 0u64..80),
        ) {
            let (mut shard, stream) = shard(groups.len());
            let mut plain: BTreeSet<u64> = BTreeSet::new();
            if groups.is_empty() {
                plain = (1..=MESSAGES).collect();
            }
            let ids: Vec<_> = shard.groups.keys().copied().collect();
            for (id, settled) in ids.iter().zip(&groups) {
                let ledger = &mut shard.groups.get_mut(id).expect("it was listed").ledger;
                let mut unsettled: BTreeSet<u64> = (1..=MESSAGES).collect();
                let mut parked = BTreeSet::new();
                for &(first, more, park) in settled {
                    let last = (first + more).min(MESSAGES);
                    for seq in first..=last {
                        if unsettled.remove(&seq) && park {
                            let failure = Failure {
                                at: NOW,
                                attempt: 1,
                                cause: Cause::Nack,
                                reason: None,
                                consumer: None,
                            };
                            let message = ParkedMessage { seq: Seq(seq), key: None, failure };
                            ledger.apply(&Decision::Parked(message));
                            parked.insert(seq);
                        } else if !parked.contains(&seq) {
                            ledger.apply(&Decision::Acked(SeqRange::one(Seq(seq))));
                        }
                    }
                }
                plain.extend(unsettled);
                plain.extend(parked);
            }
            let (first, more) = asked;
            let mut found = Vec::new();
            shard.wanted(stream, SeqRange::new(Seq(first), Seq(first + more)), &mut found);
            prop_assert!(found.windows(2).all(|pair| pair[0].last.next() < pair[1].first));
            let found: Vec<u64> = found.iter().flat_map(SeqRange::seqs).map(|seq| seq.0).collect();
            let expected: Vec<u64> = plain.range(first..=first + more).copied().collect();
            prop_assert_eq!(found, expected);
            let next = plain.range(first..).next().map(|&seq| Seq(seq));
            prop_assert_eq!(shard.first_wanted(stream, Seq(first)), next);
        }
    }

    #[test]
    fn a_group_begins_after_the_last_gap() {
        let (mut shard, stream) = shard(1);
        shard.let_go(stream, Seq(41));
        shard.let_go(stream, Seq(20));
        assert_eq!(shard.kept(stream), Some((Seq(41), Seq(MESSAGES))));
        let name = GroupName::parse("late").expect("a good name");
        let settings = GroupSettings::default();
        let late = shard.create_group(NOW, stream, &name, &settings, Start::Beginning).expect("a new group");
        assert_eq!(shard.figures(NOW, late).map(|figures| figures.floor), Some(Seq(40)));
        let mut found = Vec::new();
        shard.wanted(stream, SeqRange::new(Seq(1), Seq(99)), &mut found);
        assert_eq!(found, [SeqRange::new(Seq(1), Seq(MESSAGES))], "the first group still wants all");
    }
}
