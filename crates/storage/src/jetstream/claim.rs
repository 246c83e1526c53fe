//! Taking a log: the claim, and everything that a new owner reads.
//!
//! The claim is stored if the last claim is still the one that the claimant knows. Then the claimant reads the log
//! until it meets its own claim. Records that another owner gets in behind it are void.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use forebay_core::types::{Epoch, Position};

use crate::engine::{IndexRun, Run, SavedPart, StorageError};
use crate::jetstream::JetStreamConfig;
use crate::jetstream::images;
use crate::jetstream::index::{IndexBuilder, Known};
use crate::jetstream::keeper::WENT_BACK_AFTER;
use crate::jetstream::link::{CallError, Info, Link};
use crate::jetstream::record::{
    self, Claimant, Ending, HEADER_BYTES, Hash, Header, IndexBody, Kind, Manifest, Place,
};
use crate::jetstream::walk::{Step, Stored, Walk, damaged};

/// So often a claim is tried that another claim was faster than, or that a replica answered too early for.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(50);
/// How long it is tried to learn whether a claim is stored that was not acknowledged.
const STORED_WITHIN: Duration = Duration::from_secs(2);
/// Parts of a divided record lie so close before it, even with records of former owners between them.
const PARTS_WITHIN: u64 = 512;

/// A log that was claimed and read.
pub(crate) struct Claimed {
    pub(crate) epoch: Epoch,
    /// The sequence of the claim.
    pub(crate) sequence: u64,
    pub(crate) chain: Hash,
    pub(crate) ending: Ending,
    /// Whether the former owner stopped cleanly, or there was none.
    pub(crate) was_released: bool,
    /// The last record of the former owner.
    pub(crate) last_of_others: u64,
    /// From the last frame to the claim, by the clocks of the servers. Zero if it is not known.
    pub(crate) elapsed: Duration,
    pub(crate) known: Known,
    pub(crate) end: Position,
    pub(crate) last_frame: Position,
    pub(crate) index: IndexBuilder,
    pub(crate) runs: Vec<IndexRun>,
    pub(crate) image: Option<(Manifest, Vec<SavedPart>)>,
    pub(crate) remarks: Vec<String>,
}

/// The state of a log's ownership, as it can be seen without claiming it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) epoch: Epoch,
    pub(crate) owner: Option<Claimant>,
    /// The sequence of the last claim; 0 if it was let go.
    pub(crate) claim: u64,
    /// The sequence at which the owner stopped cleanly.
    pub(crate) released: Option<u64>,
}

/// Looks at the last claim and the last statement of an owner.
pub(crate) async fn look(link: &Link) -> Result<Seen, CallError> {
    let mut seen = Seen::default();
    if let Some(stored) = link.last_of(&link.log, &link.subject(Kind::Claim)).await?
        && let Some(header) = Header::decode(&stored.bytes)
    {
        let owner = Claimant::decode(&mut record::Input(&stored.bytes[HEADER_BYTES..]));
        seen = Seen { epoch: header.epoch, owner, claim: stored.sequence, released: None };
    }
    if let Some(stored) = link.last_of(&link.log, &link.subject(Kind::Term)).await?
        && let Some(header) = Header::decode(&stored.bytes)
        && header.epoch >= seen.epoch
    {
        seen.epoch = header.epoch;
        if header.kind == Kind::Released {
            seen.released = Some(stored.sequence);
        } else if let Some(term) = record::Term::decode(&stored.bytes[HEADER_BYTES..]) {
            seen.owner = Some(term.owner);
        }
    }
    Ok(seen)
}

/// Claims the log and reads it. `free` is the log as it was found to have no owner: a log that another node has claimed
/// since then is not claimed. Without it the log is taken from any owner.
pub(crate) async fn claim(
    link: &Link,
    config: &JetStreamConfig,
    free: Option<Seen>,
) -> Result<Claimed, StorageError> {
    let doing = "claim the log";
    let subject = link.subject(Kind::Claim);
    let mut epoch = Epoch(0);
    for _ in 0..TRIES {
        let seen = match &free {
            Some(seen) => seen.clone(),
            None => link.persist(doing, || look(link)).await?,
        };
        let floor = if seen.epoch.0 == 0 { config.epoch_floor.0 } else { 0 };
        epoch = Epoch(seen.epoch.0.max(floor) + 1);
        let (header, message) = record::claim(epoch, &config.claimant);
        let sequence = match link.claim(seen.claim, message.bytes.clone()).await {
            Ok(sequence) => sequence,
            Err(error) => {
                tracing::debug!(%error, "a claim was not acknowledged");
                tokio::time::sleep(PAUSE).await;
                // It may be stored all the same.
                let last = link.persist(doing, || link.last_of(&link.log, &subject));
                match tokio::time::timeout(STORED_WITHIN, last).await.unwrap_or(Ok(None))? {
                    Some(stored) if stored.bytes == message.bytes => stored.sequence,
                    Some(stored) if free.is_some() && stored.sequence > seen.claim => {
                        let by = Header::decode(&stored.bytes).map_or(epoch, |header| header.epoch);
                        return Err(StorageError::Fenced { epoch: by });
                    }
                    // The servers may be electing a leader, and then the log does not look free any more.
                    _ if free.is_some() => return Err(StorageError::TenureOver),
                    _ => continue,
                }
            }
        };
        match read_log(link, config, sequence, Some(&header)).await {
            Ok(Some(claimed)) => return Ok(claimed),
            Ok(None) => {}
            // What cannot be read may be what the next owner has let go.
            Err(error) => {
                let seen = link.persist(doing, || look(link)).await?;
                let by = seen.epoch;
                return Err(if by > epoch { StorageError::Fenced { epoch: by } } else { error });
            }
        }
    }
    Err(StorageError::Fenced { epoch })
}

/// Reads the log up to a record that is there: the own claim, or the last one if nothing is claimed. `None` if the
/// claim is void, because another one was faster.
pub(crate) async fn read_log(
    link: &Link,
    config: &JetStreamConfig,
    sequence: u64,
    own: Option<&Header>,
) -> Result<Option<Claimed>, StorageError> {
    let info = info_with(link, config, sequence).await?;
    let indexes = read_all(link, Kind::Index, sequence).await?;
    let bodies = indexes.iter().map(|(stored, body)| {
        IndexBody::decode(body)
            .ok_or_else(|| damaged(&link.log, stored.sequence, "an index cannot be understood"))
    });
    let bodies: Vec<IndexBody> = bodies.collect::<Result<_, _>>()?;
    let (start, mut at, mut runs, places) = join(&link.log, &info, &bodies)?;
    let mut walk = Walk::from(&link.log, &at);
    let mut known = Known::new(start, sequence, at.position);
    known.indexed = at.position;
    places.into_iter().for_each(|place| known.insert(place));
    let mut index = IndexBuilder::new(config.place_bytes, at.position);
    let mut ending = walk.ending();
    let (mut was_released, mut last_of_others) = (true, 0);
    let mut is_own = own.is_none();
    // Of the last record that the latest time in the log may come from: an image has a time of its own, which may be
    // later than that of the last frame.
    let (mut last_stamp, mut claim_stamp) = (None, None);
    let mut waiting: Option<(Place, Vec<Run>)> = None;
    let mut next = at.sequence;
    'log: while next <= sequence {
        let found = read_some(link, &link.all_log_subjects(), next, sequence).await?;
        for stored in &found {
            if let Some(own) = own.filter(|_| stored.sequence > next) {
                let info = link.persist("read the log", || link.info(&link.log)).await?;
                if info.first > next {
                    // Former owners let go of nothing behind the index, so the next owner has.
                    return Err(StorageError::Fenced { epoch: Epoch(own.epoch.0 + 1) });
                }
            }
            if stored.sequence > sequence {
                break 'log;
            }
            next = stored.sequence + 1;
            let before = (walk.ending(), walk.released);
            match walk.step(stored)? {
                Step::Frame(frame) => {
                    // The place behind a frame is where the next one begins.
                    add(waiting.replace((frame.place, frame.runs)), frame.place, &mut index, &mut known);
                    last_of_others = stored.sequence;
                    last_stamp = stored.stamp;
                    // In case it is the last one.
                    at = Place {
                        position: walk.end,
                        before: walk.last,
                        sequence: stored.sequence + 1,
                        epoch: walk.epoch,
                        number: walk.number,
                        chain: walk.chain,
                    };
                }
                Step::Claim if stored.sequence == sequence && own.is_some() => {
                    (ending, was_released) = before;
                    claim_stamp = stored.stamp;
                    was_released |= ending.epoch == Epoch(0);
                    is_own = true;
                }
                Step::Image => {
                    last_of_others = stored.sequence;
                    last_stamp = stored.stamp;
                }
                Step::Claim | Step::Record => last_of_others = stored.sequence,
                Step::Part | Step::Void => {}
            }
            if stored.sequence == sequence {
                break 'log;
            }
        }
    }
    if !is_own {
        return Ok(None);
    }
    add(waiting, at, &mut index, &mut known);
    known.end = walk.end;
    runs.extend_from_slice(index.runs());
    let mut remarks = Vec::new();
    if walk.void > 0 {
        remarks.push(format!(
            "{} records of former owners lie behind the claim of their successor and are void. stream=`{}`",
            walk.void, link.log
        ));
    }
    if last_stamp.is_none() {
        // All frames and images are before the end of the index, so none was read.
        let mut last = 0;
        for kind in [Kind::Frame, Kind::Image] {
            let subject = link.subject(kind);
            let found = link.persist("read the log", || link.last_of(&link.log, &subject)).await?;
            if let Some(found) = found.filter(|stored| (last..sequence).contains(&stored.sequence)) {
                (last, last_stamp) = (found.sequence, found.stamp);
            }
        }
    }
    let elapsed = claim_stamp.zip(last_stamp).map(|(claim, last)| claim.since(last)).unwrap_or_default();
    let image = find_image(link, config, (start.epoch, sequence), walk.end, &mut remarks).await?;
    Ok(Some(Claimed {
        epoch: walk.epoch,
        sequence,
        chain: walk.chain,
        ending,
        was_released,
        last_of_others,
        elapsed,
        end: walk.end,
        last_frame: walk.last,
        known,
        index,
        runs,
        image,
        remarks,
    }))
}

/// How the log stands, with this record in it. A leader that has just been elected, or that does not know yet that
/// another one was, may not have all of the log.
async fn info_with(link: &Link, config: &JetStreamConfig, sequence: u64) -> Result<Info, StorageError> {
    let began = (config.clock)();
    loop {
        let info = link.persist("read the log", || link.info(&link.log)).await?;
        if info.last >= sequence {
            return Ok(info);
        }
        if (config.clock)().since(began) > WENT_BACK_AFTER {
            return Err(StorageError::WentBack { known: Position(sequence), found: Position(info.last) });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Adds a frame, if there is one, that ends at this place.
fn add(frame: Option<(Place, Vec<Run>)>, until: Place, index: &mut IndexBuilder, known: &mut Known) {
    if let Some((place, runs)) = frame
        && index.add(place, &runs, until)
    {
        known.insert(place);
    }
}

type Joined = (Place, Place, Vec<IndexRun>, Vec<Place>);

/// Where the log begins, where to read on, and the runs and places of the index records between.
fn join(stream: &str, info: &Info, bodies: &[IndexBody]) -> Result<Joined, StorageError> {
    let beginning = Place {
        position: Position(1),
        before: Position::START,
        sequence: 1,
        epoch: Epoch(0),
        number: 0,
        chain: Hash::default(),
    };
    let mut start = beginning;
    if info.first > 1 {
        let places = bodies.iter().flat_map(|body| &body.places);
        let first = places.filter(|place| place.sequence >= info.first).min_by_key(|place| place.position);
        start = *first.ok_or_else(|| damaged(stream, info.first, "no index says where the log begins"))?;
    }
    let (mut at, mut runs, mut kept) = (start, Vec::new(), Vec::new());
    let mut is_first = true;
    loop {
        // The first one may reach back to frames that were let go.
        let follows = |body: &&IndexBody| {
            let until = body.until.map_or(body.from, |until| until.position);
            let begins = if is_first { body.from <= at.position } else { body.from == at.position };
            begins && at.position < until
        };
        let Some(body) = bodies.iter().find(follows) else { break };
        runs.extend(body.runs.iter().filter(|run| run.position >= start.position));
        kept.extend(body.places.iter().filter(|place| place.position >= start.position));
        at = body.until.expect("an index with an end has frames");
        is_first = false;
    }
    Ok((start, at, runs, kept))
}

/// Messages from a sequence on, at least one, up to another that is known to be there.
pub(crate) async fn read_some(
    link: &Link,
    subject: &str,
    from: u64,
    known: u64,
) -> Result<Vec<Stored>, StorageError> {
    for _ in 0..400 {
        let found = link.persist("read the log", || link.read(&link.log, subject, from)).await?;
        if !found.is_empty() {
            return Ok(found);
        }
        // The replica that answers has not got it yet.
        tokio::time::sleep(PAUSE).await;
    }
    let info = link.persist("read the log", || link.info(&link.log)).await?;
    Err(StorageError::WentBack { known: Position(known), found: Position(info.last) })
}

/// All records of a kind up to a sequence, each with its whole body.
async fn read_all(link: &Link, kind: Kind, until: u64) -> Result<Vec<(Stored, Bytes)>, StorageError> {
    let subject = link.subject(kind);
    let mut all = Vec::new();
    let mut next = 1;
    loop {
        let found = link.persist("read the log", || link.read(&link.log, &subject, next)).await?;
        let Some(last) = found.last() else { return Ok(all) };
        next = last.sequence + 1;
        for stored in found {
            if stored.sequence > until {
                return Ok(all);
            }
            let Some(header) = Header::decode(&stored.bytes).filter(|header| header.kind == kind) else {
                continue;
            };
            if let Some(body) = whole_body(link, &stored, &header).await? {
                all.push((stored, body));
            }
        }
    }
}

/// The body of a record, its parts included. `None` if a part is missing: the record is void.
async fn whole_body(link: &Link, stored: &Stored, header: &Header) -> Result<Option<Bytes>, StorageError> {
    let rest = stored.bytes.slice(HEADER_BYTES..);
    let mut body = BytesMut::new();
    if header.parts > 0 {
        let subject = link.subject(Kind::Part);
        let mut parts: Vec<Option<Bytes>> = vec![None; usize::from(header.parts)];
        let mut next = stored.sequence.saturating_sub(u64::from(header.parts) + PARTS_WITHIN).max(1);
        let mut tries = 0;
        while next < stored.sequence && tries < TRIES {
            let found = link.persist("read the log", || link.read(&link.log, &subject, next)).await?;
            if found.is_empty() {
                // The replica that answers may be behind.
                tries += 1;
                tokio::time::sleep(PAUSE).await;
            }
            for part in &found {
                next = part.sequence + 1;
                if let Some(of) = Header::decode(&part.bytes)
                    && part.sequence < stored.sequence
                    && (of.epoch, of.number) == (header.epoch, header.number)
                    && let Some(place) = parts.get_mut(usize::from(of.parts))
                {
                    *place = Some(part.bytes.slice(HEADER_BYTES..));
                }
            }
            if parts.iter().all(Option::is_some) {
                break;
            }
        }
        for part in parts {
            let Some(part) = part else { return Ok(None) };
            body.extend_from_slice(&part);
        }
    }
    body.extend_from_slice(&rest);
    if crc32c::crc32c(&body) != header.crc {
        return Err(damaged(&link.log, stored.sequence, "the checksum of a record is wrong"));
    }
    Ok(Some(body.freeze()))
}

/// The newest image up to a sequence that is valid and can be read. The log begins with this epoch: the claim of that
/// epoch may have been let go, and an image of an earlier one is void.
async fn find_image(
    link: &Link,
    config: &JetStreamConfig,
    (begins, until): (Epoch, u64),
    end: Position,
    remarks: &mut Vec<String>,
) -> Result<Option<(Manifest, Vec<SavedPart>)>, StorageError> {
    let claims = read_all(link, Kind::Claim, until).await?;
    let epoch_of = |stored: &Stored| Header::decode(&stored.bytes).map(|header| header.epoch);
    let is_void = |image: &Stored| {
        let newer = |claim: &Stored| epoch_of(claim) > epoch_of(image) && claim.sequence < image.sequence;
        epoch_of(image) < Some(begins) || claims.iter().any(|(claim, _)| newer(claim))
    };
    let mut images = read_all(link, Kind::Image, until).await?;
    images.retain(|(stored, _)| !is_void(stored));
    let mut failure = None;
    for (stored, body) in images.iter().rev().take(2) {
        let manifest = Manifest::decode(body);
        let manifest =
            manifest.ok_or_else(|| damaged(&link.log, stored.sequence, "a manifest cannot be understood"))?;
        if manifest.parts.iter().any(|part| part.through >= end) {
            return Err(StorageError::WentBack { known: manifest.through(), found: end });
        }
        match images::load(link, config.shard, &manifest).await {
            Ok(parts) => return Ok(Some((manifest, parts))),
            Err(error) => {
                remarks.push(format!("an image cannot be read, and the one before it is used: {error}"));
                failure = Some(error);
            }
        }
    }
    failure.map_or(Ok(None), Err)
}
