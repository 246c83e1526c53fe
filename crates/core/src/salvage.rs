//! Recovery of a shard from incomplete data: parts of an image without the rest, entries with a gap before
//! them, messages whose content is gone.
//!
//! Only for a shard that is put together from a damaged log and then written down anew as an image. One that
//! serves changes by entries alone.

use crate::codec::DecodeError;
use crate::entry::Ending;
use crate::group::decision::Decision;
use crate::image::{DEDUPE, GROUP, PARKED, REGISTRY, STREAM};
use crate::shard::Shard;
use crate::types::{GroupId, PartKey, Position, Seq, SeqRange, StreamId};

/// What becomes of a group when messages of its stream are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupLoss {
    pub group: GroupId,
    /// Messages that the group was not done with, and will not get.
    pub open: u64,
    /// Messages that it had parked.
    pub parked: u64,
}

impl Shard {
    /// The part that this one is about, itself included: those of one owner were taken at one moment and
    /// make sense together only.
    pub fn part_owner(key: PartKey) -> PartKey {
        let kind = match key.kind {
            DEDUPE => STREAM,
            PARKED => GROUP,
            kind => kind,
        };
        PartKey { kind, sub: 0, ..key }
    }

    /// Whether it is the part without which nothing is known of the others.
    pub fn is_registry(key: PartKey) -> bool {
        key.kind == REGISTRY
    }

    /// The stream of which only the name and the settings are known without this part.
    pub fn stream_in_the_dark(lost: PartKey) -> Option<StreamId> {
        (lost.kind == STREAM).then_some(StreamId(lost.id))
    }

    /// The group of which only the name and the settings are known without this part. Parked messages count
    /// as settled, so without the parked list the settled messages are unknown too.
    pub fn group_in_the_dark(lost: PartKey) -> Option<GroupId> {
        matches!(lost.kind, GROUP | PARKED).then_some(GroupId(lost.id))
    }

    /// Describes for the operator the state that is lost with a part, and the consequences.
    pub fn describe_loss(&self, key: PartKey) -> String {
        let stream = |id: u32| match self.stream_name(StreamId(id)) {
            Some(name) => format!("stream `{name}`"),
            None => format!("stream number {id}"),
        };
        let group = |id: u32| match self.groups.get(&GroupId(id)) {
            Some(group) => format!("group `{}` of {}", group.name, stream(group.stream.0)),
            None => format!("group number {id}"),
        };
        match key.kind {
            REGISTRY => "names and settings of all streams and groups".to_owned(),
            STREAM => format!(
                "priorities, delays, expiries and ids of {} that the log does not tell",
                stream(key.id)
            ),
            DEDUPE => format!("ids of {}; messages that are sent again may be stored twice", stream(key.id)),
            GROUP | PARKED => format!(
                "progress and parked list of {} before the start of the log; messages may come again",
                group(key.id)
            ),
            _ => "notes of protocols before the start of the log".to_owned(),
        }
    }

    /// Loads what there is of an image, and returns what could not be understood. A stream or a group whose
    /// part is in `lost` is there, but nothing is known of it beyond its name and its settings. To be called
    /// on a new shard, before any entry.
    pub fn load_what_is_left<'a>(
        &mut self,
        parts: impl IntoIterator<Item = (PartKey, Position, &'a [u8])>,
        lost: &[PartKey],
    ) -> Vec<(PartKey, DecodeError)> {
        let mut refused = Vec::new();
        let mut parts: Vec<_> = parts.into_iter().collect();
        parts.sort_by_key(|(key, ..)| *key);
        let mut known: Vec<PartKey> = lost.iter().map(|key| Shard::part_owner(*key)).collect();
        for (key, through, bytes) in parts {
            match self.load_part(key, through, bytes) {
                Ok(()) => {}
                Err(error) => refused.push((key, error)),
            }
            known.push(Shard::part_owner(key));
        }
        // Deleted while the image was made, as in an image that is whole.
        let has = |kind: u8, id: u32| known.contains(&PartKey { kind, id, sub: 0 });
        self.doomed_streams.extend(self.streams.keys().filter(|id| !has(STREAM, id.0)));
        self.doomed_groups.extend(self.groups.keys().filter(|id| !has(GROUP, id.0)));
        refused
    }

    /// The highest position of a stream that anything in its groups is about. Where the stream itself has
    /// forgotten how far it came, it came at least as far as this.
    pub fn highest_known(&self, stream: StreamId) -> Seq {
        let Some(of) = self.streams.get(&stream) else { return Seq::START };
        let mut highest = of.readers.values().copied().fold(of.last, Seq::max);
        for (_, id) in &of.groups {
            let ledger = &self.groups[id].ledger;
            let sets = [ledger.progress().above(), ledger.parked().positions()];
            let settled = sets.into_iter().filter_map(|set| set.runs().last()).map(|run| run.last);
            let standing = ledger.standing().runs().last().map(|(run, _)| run.last);
            let outgoing = ledger.outgoing().last();
            highest = settled
                .chain(standing)
                .chain(outgoing)
                .fold(highest.max(ledger.progress().floor()), Seq::max);
        }
        highest
    }

    /// The contents of these messages are gone for good. They count as expired, so that no group waits for
    /// them: groups are done with them, now and if they begin anew, and so are groups that are created
    /// later.
    pub fn lose(&mut self, stream: StreamId, range: SeqRange) -> Vec<GroupLoss> {
        let Some(of) = self.streams.get_mut(&stream) else { return Vec::new() };
        of.changed = true;
        of.expired.insert(range);
        of.undue.remove(range);
        of.lanes.remove_all(range);
        let mut losses = Vec::new();
        for (_, id) in &of.groups {
            let ledger = &mut self.groups.get_mut(id).expect("a stream's groups exist").ledger;
            let parked = ledger.lose_parked(range);
            let loss = GroupLoss { group: *id, open: open_in(ledger, range), parked };
            ledger.apply(&Decision::Ended { seqs: range, how: Ending::Expired });
            if loss.open + loss.parked > 0 {
                losses.push(loss);
            }
        }
        losses
    }
}

/// How many messages of the range a group is not done with, or has still to bring to another stream.
fn open_in(ledger: &crate::group::ledger::Ledger, range: SeqRange) -> u64 {
    let mut open = ledger.replayed().range(range.first..=range.last).count() as u64;
    let outgoing = ledger.outgoing().runs_from(range.first).filter_map(|run| run.overlap(range));
    open += outgoing.map(|run| run.count()).sum::<u64>();
    let mut next = ledger.progress().unsettled_from(range.first);
    while next <= range.last {
        let settled = ledger.progress().above().first_from(next).map_or(range.last.next(), |seq| seq);
        let last = range.last.min(Seq(settled.0 - 1));
        open += last.0 + 1 - next.0;
        next = ledger.progress().unsettled_from(last.next());
    }
    open
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Entry, Messages};
    use crate::settings::GroupSettings;
    use crate::shard::Start;
    use crate::types::{Epoch, GroupName, Limits, Ordinal, StreamName, Timestamp};

    const NOW: Timestamp = Timestamp(1_000_000);

    fn shard() -> (Shard, StreamId, GroupId) {
        let mut shard = Shard::new(Limits::DEFAULT);
        let stream = StreamId(1);
        let name = StreamName::parse("work").expect("a good name");
        let settings = Box::default();
        let created = Entry::StreamCreated { stream, name, settings, at: NOW };
        shard.apply(Position(1), &created).expect("a new stream");
        let messages = Messages::Uniform { count: 100, size: 10 };
        let published =
            Entry::Published { stream, first: Seq(1), ordinal: Ordinal(1), at: NOW, stamp: None, messages };
        shard.apply(Position(2), &published).expect("new messages");
        let group = GroupId(1);
        let created = Entry::GroupCreated {
            group,
            stream,
            name: GroupName::parse("team").expect("a good name"),
            settings: Box::default(),
            floor: Seq::START,
            at: NOW,
        };
        shard.apply(Position(3), &created).expect("a new group");
        shard.open(NOW, Epoch(1));
        (shard, stream, group)
    }

    #[test]
    fn nobody_waits_for_what_is_lost_and_nobody_who_comes_later_does() {
        let (mut shard, stream, group) = shard();
        let losses = shard.lose(stream, SeqRange::new(Seq(1), Seq(40)));
        assert_eq!(losses, [GroupLoss { group, open: 40, parked: 0 }]);
        shard.lose(stream, SeqRange::new(Seq(60), Seq(60)));
        let figures = shard.figures(NOW, group).expect("the group is there");
        assert_eq!((figures.floor, figures.lag), (Seq(40), 59));
        // It is in the image, so it holds after the next start.
        let mut parts = Vec::new();
        let keys: Vec<PartKey> = shard.parts();
        for key in keys {
            let mut bytes = Vec::new();
            shard.take_part(key, &mut bytes);
            parts.push((key, Position(9), bytes));
        }
        let mut again = Shard::new(Limits::DEFAULT);
        again.load(parts.iter().map(|(key, at, bytes)| (*key, *at, &bytes[..]))).expect("a good image");
        again.open(NOW, Epoch(2));
        assert_eq!(again.figures(NOW, group).map(|figures| figures.lag), Some(59));
        let name = GroupName::parse("late").expect("a good name");
        let late = again
            .create_group(NOW, stream, &name, &GroupSettings::default(), Start::Beginning)
            .expect("a new group");
        let mut effects = crate::group::Effects::default();
        again.finish_turn(NOW, &mut effects);
        assert_eq!(again.figures(NOW, late).map(|figures| figures.lag), Some(59));
    }

    #[test]
    fn a_stream_without_its_part_is_there_by_name() {
        let (mut shard, stream, group) = shard();
        let mut parts = Vec::new();
        for key in shard.parts() {
            let mut bytes = Vec::new();
            shard.take_part(key, &mut bytes);
            parts.push((key, Position(9), bytes));
        }
        let lost: Vec<PartKey> =
            parts.iter().map(|(key, ..)| *key).filter(|key| !Shard::is_registry(*key)).collect();
        let mut again = Shard::new(Limits::DEFAULT);
        let left = parts.iter().filter(|(key, ..)| Shard::is_registry(*key));
        let refused = again.load_what_is_left(left.map(|(key, at, bytes)| (*key, *at, &bytes[..])), &lost);
        assert!(refused.is_empty());
        assert_eq!(again.stream_name(stream).map(StreamName::as_str), Some("work"));
        assert_eq!(again.last_given(stream), Some(Seq::START));
        assert_eq!(again.stream_of(group), Some(stream));
        let messages = Messages::Uniform { count: 5, size: 10 };
        let published =
            Entry::Published { stream, first: Seq(1), ordinal: Ordinal(1), at: NOW, stamp: None, messages };
        again.apply(Position(10), &published).expect("what comes after is applied");
        assert_eq!(again.last_given(stream), Some(Seq(5)));
    }
}
