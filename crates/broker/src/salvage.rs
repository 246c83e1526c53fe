//! Salvages a shard from a damaged log: as much of the state as can be known, the list of lost messages,
//! and the frames of a new log without the damage.
//!
//! [`diagnose`] examines a folder and reports its findings. [`Rescue`] is recovery for a log with holes. It
//! uses the same `apply` as recovery does, and supplies the entries that must have been in a hole so that
//! the later ones fit: messages that were published there, a stream that was created there. [`Rewriter`]
//! then writes the log anew, with a placeholder for each lost message that a group would otherwise wait
//! for.
//!
//! | module | holds |
//! | --- | --- |
//! | `diagnosis` | the damage in a folder, and its contents |
//! | `survivors` | which messages are in the log with good contents |
//! | `rewrite` | the frames of the new log |
//! | `write` | the new folder |

mod diagnosis;
mod rewrite;
mod survivors;
mod write;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use forebay_core::entry::{Ending, Entry, Messages, Selection, entries};
use forebay_core::image::Taking;
use forebay_core::salvage::GroupLoss;
use forebay_core::seqset::SeqSet;
use forebay_core::shard::Shard;
use forebay_core::types::{
    Epoch, GroupId, Limits, Ordinal, PartKey, Position, Seq, SeqRange, StreamId, StreamName, Timestamp,
};
use forebay_storage::engine::{Image, ImagePart, SavedPart};
use forebay_storage::journal::disk::Disk;
use forebay_storage::journal::inspect::{ImageFound, Inspection, ScannedFrame};

pub use diagnosis::{Diagnosis, Finding, GroupFound, StreamFound, diagnose, look_again};
pub use rewrite::Rewriter;
pub use survivors::Survivors;
pub use write::{SalvageError, Salvaged, write};

/// The parts of the state that can be read, from all images together.
#[derive(Debug, Default)]
pub struct Chosen {
    parts: Vec<SavedPart>,
    /// Parts that were there and cannot be read.
    lost: Vec<PartKey>,
}

/// Takes the newest image that says which streams there are. Parts of it that cannot be read are taken from
/// another image, whole owner by whole owner: the log since that one is kept as well.
pub fn choose<D: Disk>(inspection: &Inspection<D>, images: &[ImageFound]) -> Chosen {
    let has_registry =
        |image: &ImageFound| image.parts.iter().any(|part| part.is_good && Shard::is_registry(part.key));
    let Some(base) = images.iter().position(has_registry) else {
        return Chosen { parts: Vec::new(), lost: Vec::new() };
    };
    let owners_of = |image: &ImageFound| {
        let mut owners: BTreeMap<PartKey, Vec<usize>> = BTreeMap::new();
        for (index, part) in image.parts.iter().enumerate() {
            owners.entry(Shard::part_owner(part.key)).or_default().push(index);
        }
        owners
    };
    let mut chosen = Chosen::default();
    for (owner, own) in owners_of(&images[base]) {
        let whole = |image: &ImageFound, own: &[usize]| own.iter().all(|&index| image.parts[index].is_good);
        let elsewhere = images[base + 1..].iter().find_map(|image| {
            let own = owners_of(image).remove(&owner)?;
            whole(image, &own).then_some((image, own))
        });
        let (image, own) = match elsewhere {
            _ if whole(&images[base], &own) => (&images[base], own),
            Some(found) => found,
            None => (&images[base], own),
        };
        // What belongs to an owner says nothing without what the owner cannot be known without.
        let headless = own.iter().map(|&index| &image.parts[index]).any(|part| {
            let needed = part.key == owner || Shard::group_in_the_dark(part.key).is_some();
            needed && !part.is_good
        });
        for index in own {
            let part = &image.parts[index];
            match inspection.image_part(part).filter(|_| !headless) {
                Some(bytes) => {
                    chosen.parts.push(SavedPart { key: part.key, through: part.through, bytes });
                }
                None => chosen.lost.push(part.key),
            }
        }
    }
    chosen
}

/// Messages of one stream that are lost.
#[derive(Debug, Clone)]
pub struct StreamLoss {
    pub stream: String,
    pub seqs: Vec<SeqRange>,
    pub count: u64,
}

/// The messages that a group has lost.
#[derive(Debug, Clone)]
pub struct GroupLossFound {
    pub stream: String,
    pub group: String,
    pub open: u64,
    pub parked: u64,
}

/// The data that could not be recovered.
#[derive(Debug, Clone, Default)]
pub struct Losses {
    /// Only messages that are still wanted. A message that every group was done with is no loss.
    pub streams: Vec<StreamLoss>,
    pub groups: Vec<GroupLossFound>,
    /// Parts of the state of which no image has a good copy, in words.
    pub parts: Vec<String>,
    /// Names of streams whose own name is lost.
    pub renamed: Vec<String>,
    /// Entries that are about something that is lost.
    pub entries: u64,
    /// Bytes at the end of the log that were durable and cannot be read. Nothing after them says how many messages
    /// were in them.
    pub end_bytes: u64,
}

impl Losses {
    pub fn messages(&self) -> u64 {
        self.streams.iter().map(|loss| loss.count).sum()
    }
}

/// Recovery for a log with holes.
pub struct Rescue {
    shard: Shard,
    loaded: BTreeMap<PartKey, Bytes>,
    /// The list of streams and groups is known up to here, if it is known at all.
    registry: Option<Position>,
    /// Entries before this are in the loaded image.
    from: Position,
    /// The same for notes, whose entries do not say whether they are.
    notes_from: Position,
    /// Streams of whose past nothing is known.
    dark: BTreeSet<StreamId>,
    /// Groups of which nothing is known but what the log tells.
    dark_groups: BTreeSet<GroupId>,
    next_ordinal: u64,
    survivors: Survivors,
    losses: Losses,
}

/// A shard that was brought back, as far as it could be.
#[derive(Debug)]
pub struct Rescued {
    pub shard: Shard,
    pub losses: Losses,
    /// Messages that are still wanted and are not in the log.
    pub lost: BTreeMap<StreamId, SeqSet>,
    loaded: BTreeMap<PartKey, Bytes>,
}

impl Rescue {
    pub fn begin(chosen: Chosen, limits: Limits) -> Rescue {
        let Chosen { parts, lost } = chosen;
        let mut shard = Shard::new(limits);
        let listed = parts.iter().map(|part| (part.key, part.through, &part.bytes[..]));
        let refused = shard.load_what_is_left(listed, &lost);
        let mut losses = Losses::default();
        let gone = || lost.iter().copied().chain(refused.iter().map(|(key, _)| *key));
        losses.parts.extend(gone().map(|key| shard.describe_loss(key)));
        losses.parts.dedup();
        let dark = gone().filter_map(Shard::stream_in_the_dark).collect();
        let dark_groups = gone().filter_map(Shard::group_in_the_dark).collect();
        let covered = parts.iter().map(|part| Position(part.through.0 + 1)).min();
        let whole = lost.is_empty() && refused.is_empty();
        Rescue {
            registry: parts.iter().find(|part| Shard::is_registry(part.key)).map(|part| part.through),
            from: covered.filter(|_| whole).unwrap_or(Position::START),
            notes_from: covered.unwrap_or(Position::START),
            dark,
            dark_groups,
            next_ordinal: 1,
            survivors: Survivors::default(),
            losses,
            loaded: parts.into_iter().map(|part| (part.key, part.bytes)).collect(),
            shard,
        }
    }

    /// Takes in the next frame that could be read.
    pub fn feed(&mut self, frame: &ScannedFrame<'_>) {
        self.survivors.take(frame);
        for entry in entries(frame.entries) {
            match entry {
                Ok(entry) => self.entry(frame.position, &entry),
                Err(_) => self.losses.entries += 1,
            }
        }
    }

    fn entry(&mut self, position: Position, entry: &Entry) {
        if let Entry::Published { ordinal, messages, .. } = entry {
            self.next_ordinal = self.next_ordinal.max(ordinal.0.saturating_add(messages.count()));
        }
        let is_note = matches!(entry, Entry::NotePut { .. } | Entry::NoteRemoved { .. });
        if position < self.from || (is_note && position < self.notes_from) {
            return;
        }
        self.prepare(position, entry);
        let applied = self.shard.apply(position, entry).is_ok()
            || (self.repair(position, entry) && self.shard.apply(position, entry).is_ok());
        // Copies of messages of a stream that is not known would change nothing.
        if !applied && !matches!(entry, Entry::Copied { .. }) {
            self.losses.entries += 1;
        }
    }

    /// Makes up for what must have been in a hole before this entry.
    fn prepare(&mut self, position: Position, entry: &Entry) {
        match entry {
            Entry::Published { stream, first, at, .. } => {
                self.make_stream(position, *stream, *at);
                let dark = self.dark.remove(stream);
                let before = Seq(first.0.saturating_sub(1));
                self.fill(position, *stream, before, *at);
                if dark {
                    // Earlier messages may have been released, so they count as released.
                    let _ = self.shard.apply(position, &Entry::Released { stream: *stream, first: *first });
                }
            }
            Entry::GroupCreated { stream, floor, at, .. } => {
                self.make_stream(position, *stream, *at);
                self.fill(position, *stream, *floor, *at);
            }
            Entry::Released { stream, first } => {
                self.fill(position, *stream, Seq(first.0.saturating_sub(1)), self.shard.latest());
            }
            Entry::Purged { stream, through, .. } => {
                self.fill(position, *stream, *through, self.shard.latest());
            }
            of_group => {
                if let Some((group, reach)) = reach(of_group)
                    && let Some(stream) = self.shard.stream_of(group)
                {
                    self.fill(position, stream, reach, self.shard.latest());
                }
            }
        }
    }

    /// An entry does not fit because something was deleted in a hole.
    fn repair(&mut self, position: Position, entry: &Entry) -> bool {
        let in_the_way = match entry {
            Entry::StreamCreated { stream, name, .. } => self
                .shard
                .stream_named(name)
                .filter(|other| other != stream)
                .map(|stream| Entry::StreamDeleted { stream, last: Ordinal(0) }),
            Entry::GroupCreated { group, stream, name, .. } => self
                .shard
                .group_named(*stream, name)
                .filter(|other| other != group)
                .map(|group| Entry::GroupDeleted { group }),
            _ => None,
        };
        in_the_way.is_some_and(|deleted| self.shard.apply(position, &deleted).is_ok())
    }

    /// A stream that was created in a hole. Its name is lost, its messages are not.
    fn make_stream(&mut self, position: Position, stream: StreamId, at: Timestamp) {
        let was_deleted = self.registry.is_some_and(|registry| position <= registry);
        if self.shard.stream_name(stream).is_some() || was_deleted {
            return;
        }
        let name = (0..).map(|n| match n {
            0 => format!("salvaged-{}", stream.0),
            n => format!("salvaged-{}-{n}", stream.0),
        });
        let mut names = name.filter_map(|name| StreamName::parse(&name).ok());
        let name = names.find(|name| self.shard.stream_named(name).is_none());
        let name = name.expect("there are more names than streams");
        let settings = Box::default();
        let created = Entry::StreamCreated { stream, name: name.clone(), settings, at };
        if self.shard.apply(position, &created).is_ok() {
            self.losses.renamed.push(name.to_string());
            self.dark.insert(stream);
        }
    }

    /// Messages up to `through` must have been published. Those that were not seen were in a hole.
    fn fill(&mut self, position: Position, stream: StreamId, through: Seq, at: Timestamp) {
        while let Some(last) = self.shard.last_given(stream).filter(|last| *last < through) {
            let count = u32::try_from(through.0 - last.0).unwrap_or(u32::MAX);
            let messages = Messages::Uniform { count, size: 0 };
            let ordinal = Ordinal(self.next_ordinal);
            self.next_ordinal = self.next_ordinal.saturating_add(u64::from(count));
            let first = last.next();
            let published = Entry::Published { stream, first, ordinal, at, stamp: None, messages };
            if self.shard.apply(position, &published).is_err() || self.shard.last_given(stream) == Some(last)
            {
                return;
            }
        }
    }

    /// A group whose progress is unknown wants all messages that are there, since it may not have settled
    /// them. Messages that its stream does not keep any more it may have settled, so they are not reported
    /// as lost.
    fn settle_in_the_dark(&mut self, end: Position) {
        for group in std::mem::take(&mut self.dark_groups) {
            let Some(stream) = self.shard.stream_of(group) else { continue };
            let Some((first, _)) = self.shard.kept(stream).filter(|(first, _)| *first > Seq(1)) else {
                continue;
            };
            let gone = self.survivors.gaps(stream, SeqRange::new(Seq(1), Seq(first.0 - 1)));
            let ranges: Vec<SeqRange> = gone.runs().collect();
            let _ = self.shard.apply(end, &Entry::Skipped { group, how: Ending::Dropped, ranges });
        }
    }

    /// The latest time that the log tells of. [`Rescue::finish`] is told one that is no earlier.
    pub fn latest(&self) -> Timestamp {
        self.shard.latest()
    }

    /// The whole log has been fed. Decides which messages are lost. `end` is where the log ends, and
    /// `epoch` the last one in it.
    pub fn finish(mut self, now: Timestamp, end: Position, epoch: Epoch) -> Rescued {
        let streams: Vec<StreamId> = self.shard.stream_ids().collect();
        for &stream in &streams {
            let known = self.shard.highest_known(stream);
            self.fill(end, stream, known, self.shard.latest());
            if self.dark.contains(&stream) {
                let first = known.next();
                let _ = self.shard.apply(end, &Entry::Released { stream, first });
            }
        }
        self.settle_in_the_dark(end);
        let epoch = Epoch(self.shard.epoch().max(epoch).0 + 1);
        self.shard.open(now, epoch);
        let mut lost = BTreeMap::new();
        for stream in streams {
            let missing = self.survivors.missing(&self.shard, stream);
            if missing.is_empty() {
                continue;
            }
            let mut groups: BTreeMap<GroupId, (u64, u64)> = BTreeMap::new();
            for run in missing.runs() {
                for GroupLoss { group, open, parked } in self.shard.lose(stream, run) {
                    let sum = groups.entry(group).or_default();
                    *sum = (sum.0 + open, sum.1 + parked);
                }
            }
            let name = name_of(&self.shard, stream);
            let by_group = groups.into_iter().map(|(id, (open, parked))| GroupLossFound {
                stream: name.clone(),
                group: group_name(&self.shard, stream, id),
                open,
                parked,
            });
            self.losses.groups.extend(by_group);
            let seqs = missing.runs().collect();
            self.losses.streams.push(StreamLoss { stream: name, seqs, count: missing.count() });
            lost.insert(stream, missing);
        }
        Rescued { shard: self.shard, losses: self.losses, lost, loaded: self.loaded }
    }
}

impl Rescued {
    /// The state as an image that covers the log up to `through`. To be called once.
    pub fn image(&mut self, through: Position) -> Image {
        let mut left: Vec<PartKey> = self.shard.parts().into_iter().rev().collect();
        let mut parts = Vec::new();
        while let Some(key) = left.pop() {
            let mut out = Vec::new();
            let bytes = match self.shard.take_part(key, &mut out) {
                Taking::Gone => continue,
                Taking::Taken => Bytes::from(out),
                Taking::Unchanged => self.loaded.get(&key).cloned().expect("an unchanged part was loaded"),
            };
            left.extend(self.shard.parts_of(key));
            parts.push(ImagePart { key, through, bytes: Some(bytes) });
        }
        Image { parts }
    }
}

/// The last message that an entry about a group says was published.
fn reach(entry: &Entry) -> Option<(GroupId, Seq)> {
    let last = |ranges: &[SeqRange]| ranges.iter().map(|range| range.last).max();
    let (group, reach) = match entry {
        Entry::Handed { group, ranges, .. }
        | Entry::Acked { group, ranges }
        | Entry::Returned { group, ranges }
        | Entry::Snoozed { group, ranges, .. }
        | Entry::Skipped { group, ranges, .. }
        | Entry::Replayed { group, ranges, .. }
        | Entry::Discarded { group, ranges, .. }
        | Entry::Extended { group, ranges, .. }
        | Entry::JobPassed { group, ranges, .. }
        | Entry::Stayed { group, ranges }
        | Entry::Sent { group, ranges, .. }
        | Entry::Moving { group, seqs: ranges, .. } => (*group, last(ranges)),
        Entry::Leased { group, runs, .. } => (*group, runs.iter().map(|run| run.range.last).max()),
        Entry::Failed { group, messages, .. } => (*group, messages.iter().map(|message| message.seq).max()),
        Entry::Parked { group, messages, .. } => (*group, messages.iter().map(|message| message.seq).max()),
        Entry::JobStarted { group, selection: Selection::Seqs(ranges), .. } => (*group, last(ranges)),
        Entry::Reset { group, floor, .. } => (*group, Some(*floor)),
        Entry::JobStarted { selection: Selection::All | Selection::Reason(_), .. }
        | Entry::Opened { .. }
        | Entry::StreamCreated { .. }
        | Entry::GroupCreated { .. }
        | Entry::Published { .. }
        | Entry::Numbered { .. }
        | Entry::KeysFound { .. }
        | Entry::Released { .. }
        | Entry::Copied { .. }
        | Entry::JobEnded { .. }
        | Entry::GroupChanged { .. }
        | Entry::StreamChanged { .. }
        | Entry::GroupPaused { .. }
        | Entry::Purged { .. }
        | Entry::GroupDeleted { .. }
        | Entry::StreamDeleted { .. }
        | Entry::NotePut { .. }
        | Entry::NoteRemoved { .. }
        | Entry::Redelayed { .. }
        | Entry::ReaderMoved { .. } => return None,
    };
    reach.map(|reach| (group, reach))
}

pub(crate) fn name_of(shard: &Shard, stream: StreamId) -> String {
    shard.stream_name(stream).map_or_else(|| format!("(number {})", stream.0), ToString::to_string)
}

fn group_name(shard: &Shard, stream: StreamId, group: GroupId) -> String {
    let named = shard.groups_of(stream).find(|(_, id)| *id == group);
    named.map_or_else(|| format!("(number {})", group.0), |(name, _)| name.to_string())
}
