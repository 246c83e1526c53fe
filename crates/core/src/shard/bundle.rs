//! Changes that are made together: all of them or, if one is refused, none.
//!
//! [`Shard::check_bundle`] looks at every part and changes nothing. If it finds nothing wrong, the verbs of the parts
//! succeed one after the other, in the order in which the fields of [`Bundle`] are listed. This holds because no part
//! changes anything that another part was checked against: a stream is changed, deleted or written to, not two of
//! these; messages are stored before leases are settled, since settling changes how full a stream is, and storing
//! never ends a lease.

use std::collections::{BTreeMap, BTreeSet};

use crate::entry::{MessageMeta, note_bytes_max, published_bytes_max};
use crate::group::{Lease, LeaseRun, NotYours, OutcomeRun, Settlement, Verb};
use crate::notes::{NoteChange, NoteRefusal};
use crate::settings::{Acks, GroupSettings, StreamSettings};
use crate::shard::admin::check_group;
use crate::shard::{ChangeRefusal, CreateRefusal, PublishOptions, PublishRefusal, ResubmitRefusal, Shard};
use crate::stream::Stream;
use crate::types::{GroupId, GroupName, Seq, StreamId, StreamName, Timestamp};

/// Parts of one kind that a bundle has at most.
pub const BUNDLE_PARTS_MAX: usize = 1_000;
/// Leases that a bundle settles at most.
pub const BUNDLE_LEASES_MAX: usize = 10_000;

/// More than the entries of a stream or a group take: names, settings, and the name of another stream in them.
const SETTINGS_BYTES_MAX: usize = 4 << 10;
/// The same for a message that is settled, without texts: its position, or the two ends of a run.
const SETTLED_BYTES_MAX: usize = 32;
/// A time that a message gets from its stream.
const TIME_BYTES_MAX: usize = 10;
/// Numbers and texts of a message that failed: the reason, and the name of its consumer or of a stream.
const FAILED_BYTES_MAX: usize = 96 + 2 * crate::texts::TEXT_BYTES_MAX;

/// What a stream and groups of it should be like: each is created, or changed if it is there.
#[derive(Debug, Clone)]
pub struct Arrangement<'a> {
    pub stream: (&'a StreamName, &'a StreamSettings),
    pub groups: Vec<(&'a GroupName, &'a GroupSettings)>,
}

/// The stream that messages are for.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    Id(StreamId),
    /// With the settings that it is created with if it is missing. Without, it must exist.
    Name(&'a StreamName, Option<&'a StreamSettings>),
}

/// A batch for one stream.
#[derive(Debug, Clone, Copy)]
pub struct Publication<'a> {
    pub target: Target<'a>,
    pub messages: &'a [MessageMeta],
    pub options: PublishOptions,
}

/// An edited copy that takes the place of a parked message.
#[derive(Debug, Clone, Copy)]
pub struct Replacement<'a> {
    pub group: GroupId,
    pub seq: Seq,
    pub message: &'a MessageMeta,
}

/// Leases that are settled alike. Each of them has to be current.
#[derive(Debug, Clone, Copy)]
pub struct Settling<'a> {
    pub group: GroupId,
    pub leases: &'a [LeaseRun],
    pub settlement: &'a Settlement,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Bundle<'a> {
    /// Streams that have to end here. One that is not there ends before its first message.
    pub ends: Vec<(&'a StreamName, Seq)>,
    pub arrangements: Vec<Arrangement<'a>>,
    pub publications: Vec<Publication<'a>>,
    pub replacement: Option<Replacement<'a>>,
    pub settlements: Vec<Settling<'a>>,
    /// Streams, with their groups and even if these have consumers.
    pub deletions: Vec<StreamId>,
    pub notes: Vec<NoteChange<'a>>,
}

/// Why a bundle was refused. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BundleRefusal {
    #[error("must have at least one part")]
    Empty,
    #[error("the stream does not end where it is expected to. stream=`{stream}` last=`{last}`")]
    WrongEnd { stream: StreamName, last: Seq },
    #[error(transparent)]
    Create(#[from] CreateRefusal),
    #[error(transparent)]
    Change(#[from] ChangeRefusal),
    /// The n-th batch, counted from zero.
    #[error("{refusal}")]
    Publish { nth: usize, refusal: PublishRefusal },
    #[error(transparent)]
    Resubmit(#[from] ResubmitRefusal),
    /// The n-th settlement, counted from zero, has a lease that is over.
    #[error("a lease is not current. seq=`{}`", lease.seq)]
    NotYours { nth: usize, lease: Lease, why: NotYours },
    #[error("an extension settles nothing")]
    Extends,
    #[error(transparent)]
    Note(#[from] NoteRefusal),
    #[error("{what} is given twice")]
    Twice { what: &'static str },
    #[error("a stream that is changed or deleted cannot be used by another part")]
    Mixed,
    #[error("too many {what}. count=`{count}` limit=`{limit}`")]
    TooMany { what: &'static str, count: usize, limit: usize },
    /// Everything that is done together has to fit into one frame of the log.
    #[error("all parts together are too large. bytes=`{bytes}` limit=`{limit}`")]
    TooLarge { bytes: usize, limit: usize },
}

impl Bundle<'_> {
    pub fn is_empty(&self) -> bool {
        // An expectation changes nothing.
        let Bundle { ends: _, arrangements, publications, replacement, settlements, deletions, notes } = self;
        arrangements.is_empty()
            && publications.is_empty()
            && replacement.is_none()
            && settlements.is_empty()
            && deletions.is_empty()
            && notes.is_empty()
    }

    /// The messages that the bundle would store.
    fn messages(&self) -> impl Iterator<Item = &MessageMeta> {
        let published = self.publications.iter().flat_map(|publication| publication.messages);
        published.chain(self.replacement.map(|replacement| replacement.message))
    }

    /// Whether the bundle stores messages or values, for which the disk must have room.
    pub fn needs_space(&self) -> bool {
        self.messages().next().is_some() || self.notes.iter().any(|note| note.value.is_some())
    }
}

impl Shard {
    /// Whether every part of the bundle would succeed. Changes nothing. Returns how many bytes the contents and the
    /// entries take at most.
    pub fn check_bundle(&self, now: Timestamp, bundle: &Bundle<'_>) -> Result<usize, BundleRefusal> {
        check_counts(bundle)?;
        self.check_ends(&bundle.ends)?;
        let contents: usize = bundle.messages().map(|message| message.size as usize).sum();
        let limit = self.limits.batch_bytes_max as usize;
        if contents > limit {
            return Err(BundleRefusal::TooLarge { bytes: contents, limit });
        }
        let mut entries = 0;
        let mut uses = Uses::default();
        let mut created = BTreeMap::new();
        for arrangement in &bundle.arrangements {
            entries += self.check_arranged(arrangement, &mut uses, &mut created)?;
        }
        for &id in &bundle.deletions {
            self.streams.get(&id).ok_or(ChangeRefusal::NoSuchStream)?;
            uses.change(Some(id))?;
            entries += SETTLED_BYTES_MAX;
        }
        let mut dropped = BTreeMap::new();
        for (nth, publication) in bundle.publications.iter().enumerate() {
            let (stretches, times) = self
                .check_publication(now, publication, &mut uses, &mut created)
                .map_err(|problem| problem.at(nth))?;
            entries += published_bytes_max(publication.messages) + times + SETTINGS_BYTES_MAX;
            if let (Some(id), 1..) = (self.stream_of_target(publication.target), stretches) {
                dropped.insert(id, stretches);
            }
        }
        if let Some(Replacement { group, seq, message }) = bundle.replacement {
            let stream = self.check_resubmit(now, group, seq, message)?;
            uses.store(stream)?;
            entries += published_bytes_max(&[*message]) + SETTLED_BYTES_MAX;
        }
        let streams = self.streams.len() + created.len();
        if !created.is_empty() && streams > self.limits.streams_max as usize {
            return Err(CreateRefusal::TooMany { limit: self.limits.streams_max }.into());
        }
        entries += self.check_settlements(bundle, &mut uses, &dropped)?;
        let keys: BTreeSet<(u8, &[u8])> = bundle.notes.iter().map(|note| (note.door, note.key)).collect();
        // Each note is checked by itself, so no two of them may have the same key.
        if keys.len() < bundle.notes.len() {
            return Err(BundleRefusal::Twice { what: "a note" });
        }
        self.notes.check_all(now, bundle.notes.iter().map(NoteChange::as_checked))?;
        entries += bundle.notes.iter().map(|note| note_bytes_max(note.key, note.value)).sum::<usize>();
        Ok(contents + entries)
    }

    fn check_ends(&self, ends: &[(&StreamName, Seq)]) -> Result<(), BundleRefusal> {
        for &(name, expected) in ends {
            let last = self.stream_named(name).and_then(|id| self.last_given(id)).unwrap_or(Seq::START);
            if last != expected {
                return Err(BundleRefusal::WrongEnd { stream: name.clone(), last });
            }
        }
        Ok(())
    }

    fn stream_of_target(&self, target: Target<'_>) -> Option<StreamId> {
        match target {
            Target::Id(id) => Some(id),
            Target::Name(name, _) => self.stream_named(name),
        }
    }

    fn check_arranged<'a>(
        &self,
        arrangement: &Arrangement<'a>,
        uses: &mut Uses,
        created: &mut BTreeMap<&'a StreamName, &'a StreamSettings>,
    ) -> Result<usize, BundleRefusal> {
        let (name, settings) = arrangement.stream;
        settings.check().map_err(CreateRefusal::Settings)?;
        let stream = self.stream_named(name);
        uses.change(stream)?;
        if stream.is_none() && created.insert(name, settings).is_some() {
            return Err(BundleRefusal::Twice { what: "a stream" });
        }
        let mut names = BTreeSet::new();
        for &(group, settings) in &arrangement.groups {
            check_group(name, settings).map_err(CreateRefusal::Settings)?;
            if !names.insert(group) {
                return Err(BundleRefusal::Twice { what: "a group" });
            }
        }
        let is_new = |group: &&&GroupName| stream.is_none_or(|of| self.group_named(of, group).is_none());
        let new = names.iter().filter(is_new).count();
        let groups = stream.map_or(0, |stream| self.streams[&stream].groups.len());
        if new > 0 && groups + new > self.limits.groups_per_stream_max as usize {
            return Err(CreateRefusal::TooMany { limit: self.limits.groups_per_stream_max }.into());
        }
        Ok(SETTINGS_BYTES_MAX * (1 + arrangement.groups.len()))
    }

    /// Returns how many stretches of older messages the stream drops to make room, and the bytes of the times that it
    /// adds to messages because it has a delay.
    fn check_publication<'a>(
        &self,
        now: Timestamp,
        publication: &Publication<'a>,
        uses: &mut Uses,
        created: &mut BTreeMap<&'a StreamName, &'a StreamSettings>,
    ) -> Result<(usize, usize), Problem> {
        let Publication { target, messages, options } = *publication;
        let times = |settings: &StreamSettings| {
            if settings.delay.is_zero() { 0 } else { TIME_BYTES_MAX * messages.len() }
        };
        if let Some(stream) = self.stream_of_target(target) {
            uses.store(stream)?;
            let stretches = self.check_admissible(now, stream, messages, options)?;
            return Ok((stretches, self.stream_settings(stream).map_or(0, times)));
        }
        let Target::Name(name, create) = target else { return Err(PublishRefusal::NoSuchStream.into()) };
        let settings = match (created.get(name), create) {
            (Some(settings), _) => *settings,
            (None, Some(settings)) => {
                settings.check().map_err(|error| BundleRefusal::from(CreateRefusal::Settings(error)))?;
                created.insert(name, settings);
                settings
            }
            (None, None) => return Err(PublishRefusal::NoSuchStream.into()),
        };
        if !uses.new.insert(name.clone()) {
            return Err(BundleRefusal::Twice { what: "a stream" }.into());
        }
        // It is checked against a stream as it will be created.
        let mut fresh = Stream::new(self.next_stream, name.clone(), settings.clone(), now);
        fresh.created(now);
        Ok((self.check_admissible_to(now, &fresh, messages, options)?, times(settings)))
    }

    fn check_settlements(
        &self,
        bundle: &Bundle<'_>,
        uses: &mut Uses,
        dropped: &BTreeMap<StreamId, usize>,
    ) -> Result<usize, BundleRefusal> {
        let mut bytes = 0;
        let mut seqs: BTreeSet<(GroupId, Seq)> = BTreeSet::new();
        let mut groups = BTreeSet::new();
        for (nth, settling) in bundle.settlements.iter().enumerate() {
            let Settling { group, leases, settlement } = *settling;
            let each = match settlement.verb {
                Verb::Extend { .. } => return Err(BundleRefusal::Extends),
                Verb::Ack | Verb::Skip | Verb::Return { .. } => SETTLED_BYTES_MAX,
                Verb::Retry { .. } | Verb::Park | Verb::Move(_) => FAILED_BYTES_MAX,
            };
            let of = self.groups.get(&group);
            if let Some(of) = of {
                uses.settle(of.stream)?;
            }
            for lease in leases.iter().flat_map(|run| run.leases()) {
                match of {
                    None => return Err(BundleRefusal::NotYours { nth, lease, why: NotYours::Unknown }),
                    Some(of) if !of.is_current(lease) => {
                        let why = of.why_not(&self.streams[&of.stream], lease);
                        return Err(BundleRefusal::NotYours { nth, lease, why });
                    }
                    Some(_) => bytes += each,
                }
                if !seqs.insert((group, lease.seq)) {
                    return Err(BundleRefusal::Twice { what: "a lease" });
                }
            }
            if let Some(of) = of.filter(|_| groups.insert(group)) {
                // Messages that a full stream drops are written with the other changes of the group.
                bytes += SETTLED_BYTES_MAX * (2 + dropped.get(&of.stream).copied().unwrap_or(0));
            }
        }
        Ok(bytes)
    }

    /// Whether a bundle that acks and publishes was done before: its messages are known by their ids, and the group is
    /// done with the messages of its leases. Then a client sends it again that has not heard the answer, and is told
    /// the positions of its messages.
    pub fn find_committed(&self, now: Timestamp, bundle: &Bundle<'_>) -> Option<Vec<Vec<Seq>>> {
        let Bundle { ends, arrangements, publications, replacement, settlements, deletions, notes } = bundle;
        let is_plain =
            ends.is_empty() && arrangements.is_empty() && replacement.is_none() && deletions.is_empty();
        if !is_plain || !notes.is_empty() || settlements.is_empty() || publications.is_empty() {
            return None;
        }
        for Settling { group, leases, settlement } in settlements {
            let of = self.groups.get(group)?;
            let stream = &self.streams[&of.stream];
            let is_done = |lease: Lease| !of.is_current(lease) && of.why_not(stream, lease) == NotYours::Gone;
            if settlement.verb != Verb::Ack || !leases.iter().flat_map(|run| run.leases()).all(is_done) {
                return None;
            }
        }
        let places = publications.iter().map(|publication| {
            let stream = self.streams.get(&self.stream_of_target(publication.target)?)?;
            let place = |message: &MessageMeta| stream.dedupe.find(now, message.id?, &stream.settings);
            publication.messages.iter().map(place).collect()
        });
        places.collect()
    }

    /// Creates the stream and the groups, or changes their settings, by entries that follow each other.
    /// Settings that are already as wished are left alone. Returns the stream, and whether it is new.
    pub fn arrange(
        &mut self,
        now: Timestamp,
        arrangement: &Arrangement<'_>,
    ) -> Result<(StreamId, bool), BundleRefusal> {
        self.check_arranged(arrangement, &mut Uses::default(), &mut BTreeMap::new())?;
        let (name, settings) = arrangement.stream;
        let known = self.stream_named(name);
        let stream = match known {
            None => self.create_stream(now, name, settings)?,
            Some(stream) => {
                if self.stream_settings(stream) != Some(settings) {
                    self.change_stream(now, stream, settings).expect("it was checked just now");
                }
                stream
            }
        };
        for &(group, settings) in &arrangement.groups {
            match self.group_named(stream, group) {
                None => drop(self.create_group(now, stream, group, settings, settings.start)?),
                Some(group) if self.group_settings(group) != Some(settings) => {
                    self.change_group(now, group, settings).expect("it was checked just now");
                }
                Some(_) => {}
            }
        }
        Ok((stream, known.is_none()))
    }

    /// Writes down the changes of a group so far, with acks that wait for a checkpoint.
    pub fn write_acks(&mut self, now: Timestamp, group: GroupId) {
        self.happened_at(now);
        if let Some(of) = self.groups.get_mut(&group) {
            if of.settings.acks == Acks::Checkpoint {
                of.make_checkpoint();
            }
            of.write_down(&mut self.entries);
        }
    }

    /// As [`Shard::settle`], and the entries are written at once, so that the shell can put them into one frame with
    /// others.
    pub fn settle_together(
        &mut self,
        now: Timestamp,
        settling: &Settling<'_>,
        outcomes: &mut Vec<OutcomeRun>,
    ) {
        let Settling { group, leases, settlement } = *settling;
        self.settle(now, group, leases, settlement, outcomes);
        self.write_acks(now, group);
    }
}

/// The streams that parts of a bundle have to do with.
#[derive(Default)]
struct Uses {
    changed: BTreeSet<StreamId>,
    stored: BTreeSet<StreamId>,
    settled: BTreeSet<StreamId>,
    /// Streams that are created for messages.
    new: BTreeSet<StreamName>,
}

impl Uses {
    fn change(&mut self, stream: Option<StreamId>) -> Result<(), BundleRefusal> {
        match stream {
            Some(stream) if !self.changed.insert(stream) => Err(BundleRefusal::Twice { what: "a stream" }),
            _ => Ok(()),
        }
    }

    fn store(&mut self, stream: StreamId) -> Result<(), BundleRefusal> {
        match () {
            () if self.changed.contains(&stream) => Err(BundleRefusal::Mixed),
            () if !self.stored.insert(stream) => Err(BundleRefusal::Twice { what: "a stream" }),
            () => Ok(()),
        }
    }

    fn settle(&mut self, stream: StreamId) -> Result<(), BundleRefusal> {
        if self.changed.contains(&stream) {
            return Err(BundleRefusal::Mixed);
        }
        self.settled.insert(stream);
        Ok(())
    }
}

/// A batch is refused, or the bundle because of it.
enum Problem {
    Publish(PublishRefusal),
    Bundle(BundleRefusal),
}

impl Problem {
    fn at(self, nth: usize) -> BundleRefusal {
        match self {
            Problem::Publish(refusal) => BundleRefusal::Publish { nth, refusal },
            Problem::Bundle(refusal) => refusal,
        }
    }
}

impl From<PublishRefusal> for Problem {
    fn from(refusal: PublishRefusal) -> Problem {
        Problem::Publish(refusal)
    }
}

impl From<BundleRefusal> for Problem {
    fn from(refusal: BundleRefusal) -> Problem {
        Problem::Bundle(refusal)
    }
}

/// Nothing is looked at one by one before it is known to be few.
fn check_counts(bundle: &Bundle<'_>) -> Result<(), BundleRefusal> {
    if bundle.is_empty() {
        return Err(BundleRefusal::Empty);
    }
    let leases = bundle.settlements.iter().flat_map(|settling| settling.leases);
    let leases = leases.fold(0usize, |sum, run| sum.saturating_add(run.count as usize));
    for (what, count, limit) in [
        ("expected ends", bundle.ends.len(), BUNDLE_PARTS_MAX),
        ("streams", bundle.arrangements.len(), BUNDLE_PARTS_MAX),
        ("batches", bundle.publications.len(), BUNDLE_PARTS_MAX),
        ("settlements", bundle.settlements.len(), BUNDLE_PARTS_MAX),
        ("streams to delete", bundle.deletions.len(), BUNDLE_PARTS_MAX),
        ("notes", bundle.notes.len(), BUNDLE_PARTS_MAX),
        ("leases", leases, BUNDLE_LEASES_MAX),
    ] {
        if count > limit {
            return Err(BundleRefusal::TooMany { what, count, limit });
        }
    }
    Ok(())
}
