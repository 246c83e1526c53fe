//! The damage in a folder, and its contents.
//!
//! One way over the log verifies everything that has a checksum and, in the same go, brings the shard back
//! in memory as a server would. Where that cannot be, or something is wrong, a second way takes what there is.

use bytes::Bytes;
use forebay_core::seqset::SeqSet;
use forebay_core::shard::Shard;
use forebay_core::types::{Epoch, Limits, Position, SeqRange, StreamId, Timestamp};
use forebay_storage::engine::StoredFrame;
use forebay_storage::journal::disk::Disk;
use forebay_storage::journal::inspect::{Damage, DamageKind, Facts, Found, ImageFound, Inspection, Scanned};

use super::{Losses, Rescue, Rescued, StreamLoss, Survivors, choose, name_of};
use crate::clock::Clock;
use crate::driver::DriverConfig;
use crate::recovery::Recovery;

/// Something that is wrong, and which messages it is about, where that can be told.
#[derive(Debug, Clone)]
pub struct Finding {
    pub damage: Damage,
    pub affected: Vec<(String, SeqRange)>,
}

#[derive(Debug, Clone)]
pub struct StreamFound {
    pub name: String,
    pub first: u64,
    pub last: u64,
    pub messages: u64,
    pub bytes: u64,
    pub groups: Vec<GroupFound>,
}

#[derive(Debug, Clone)]
pub struct GroupFound {
    pub name: String,
    /// Everything up to here is settled or parked.
    pub settled_through: u64,
    /// Messages that are not settled.
    pub lag: u64,
    pub parked: u64,
}

#[derive(Debug)]
pub struct Diagnosis {
    pub facts: Facts,
    pub scanned: Scanned,
    pub images: Vec<ImageFound>,
    pub findings: Vec<Finding>,
    /// Why contents cannot be read, if the folder is encrypted and a key is missing. Only checksums were compared then.
    pub locked: Option<String>,
    /// Why a server would not start.
    pub refusal: Option<String>,
    pub remarks: Vec<String>,
    /// The last epoch that the log tells of.
    pub epoch: Epoch,
    /// As a server would find them, or as far as they can be brought back.
    pub streams: Vec<StreamFound>,
    /// The data that cannot be recovered, if there is damage.
    pub losses: Option<Losses>,
    /// The data that can be recovered, if there is damage.
    pub rescued: Option<Rescued>,
}

impl Diagnosis {
    pub fn is_sound(&self) -> bool {
        let harmless = self.findings.iter().all(|finding| finding.damage.kind.is_harmless());
        self.refusal.is_none() && harmless && self.losses.is_none() && self.locked.is_none()
    }

    /// Messages that some group has not settled, or that a stream keeps.
    pub fn messages(&self) -> u64 {
        self.streams.iter().map(|stream| stream.messages).sum()
    }
}

/// Messages of a frame whose contents are damaged.
struct Affected {
    frame: Position,
    stream: StreamId,
    seqs: SeqRange,
}

/// The results of one pass over the log, beside the damage.
struct Look {
    damages: Vec<Damage>,
    affected: Vec<Affected>,
    survivors: Survivors,
    recovery: Result<Recovery, String>,
    /// Where recovery began to read.
    from: Position,
}

/// Looks at all of a folder. `passed` is told how many bytes have been read.
pub fn diagnose<D: Disk>(
    inspection: &Inspection<D>,
    limits: &Limits,
    clock: Clock,
    passed: &mut dyn FnMut(u64),
) -> Diagnosis {
    let facts = inspection.facts();
    let (images, image_damages) = inspection.images();
    let mut remarks = Vec::new();
    let claim = inspection.claim().map_err(|error| error.to_string());
    let recovery = claim.and_then(|mut claim| {
        remarks.extend(claim.remarks.iter().cloned());
        Recovery::begin(&mut claim, limits.clone()).map_err(|error| with_source(&error))
    });
    let from = recovery.as_ref().ok().and_then(Recovery::next_read).map(|(from, _)| from);
    let mut look = Look {
        damages: Vec::new(),
        affected: Vec::new(),
        survivors: Survivors::default(),
        recovery,
        from: from.unwrap_or(Position(u64::MAX)),
    };
    let scanned = inspection.scan::<std::convert::Infallible>(&mut |found| {
        look.take(found, passed);
        Ok(())
    });
    let Ok(scanned) = scanned;
    remarks.extend(scanned.remarks.iter().cloned());
    let mut damages: Vec<Damage> = inspection.flaws().to_vec();
    damages.extend(image_damages);
    damages.append(&mut look.damages);

    let Look { affected, survivors, recovery, .. } = look;
    let recovered = recovery.map(|mut recovery| {
        // Nothing more to read.
        let fed = recovery.feed(&[]);
        debug_assert!(fed.is_ok(), "nothing cannot be misunderstood");
        let now = clock.not_before(recovery.latest()).now();
        (now, recovery.finish(now, DriverConfig::default()))
    });
    let mut diagnosis = Diagnosis {
        epoch: inspection.last_epoch(),
        facts,
        scanned,
        images,
        findings: Vec::new(),
        locked: inspection.locked().map(|error| error.to_string()),
        refusal: None,
        remarks,
        streams: Vec::new(),
        losses: None,
        rescued: None,
    };
    if diagnosis.locked.is_some() {
        diagnosis.findings = findings(damages, &affected, None);
        return diagnosis;
    }
    let harmless = damages.iter().all(|damage| damage.kind.is_harmless());
    match &recovered {
        Ok((now, driver)) => {
            let shard = driver.shard();
            let missing = missing(shard, &survivors);
            if harmless && missing.is_empty() {
                diagnosis.streams = streams(*now, shard);
            } else if harmless {
                diagnosis.losses = Some(Losses { streams: missing, ..Losses::default() });
            }
        }
        Err(text) => diagnosis.refusal = Some(text.clone()),
    }
    let is_sound = harmless && recovered.is_ok() && diagnosis.losses.is_none();
    let rescued = (!is_sound).then(|| {
        // Bytes are counted once.
        look_again(inspection, &diagnosis.images, limits, clock, diagnosis.scanned.end, &mut |_| {})
    });
    let shard = match (&rescued, &recovered) {
        (Some((_, rescued)), _) => Some(&rescued.shard),
        (None, Ok((_, driver))) => Some(driver.shard()),
        (None, Err(_)) => None,
    };
    diagnosis.findings = findings(damages, &affected, shard);
    if let Some((now, rescued)) = rescued {
        diagnosis.streams = streams(now, &rescued.shard);
        diagnosis.losses = Some(rescued.losses.clone());
        diagnosis.rescued = Some(rescued);
    }
    diagnosis
}

impl Look {
    fn take(&mut self, found: Found<'_>, passed: &mut dyn FnMut(u64)) {
        match found {
            Found::Passed(bytes) => passed(bytes),
            Found::Damage(damage) => {
                self.check_state(&damage);
                self.damages.push(damage);
            }
            Found::Frame(frame) => {
                let damaged = self.survivors.take(&frame).into_iter();
                let frame_at = frame.position;
                self.affected.extend(damaged.map(|(stream, seqs)| Affected {
                    frame: frame_at,
                    stream,
                    seqs,
                }));
                let Ok(recovery) = &mut self.recovery else { return };
                if frame.position < self.from {
                    return;
                }
                let fed = recovery.feed(&[StoredFrame {
                    position: frame.position,
                    epoch: frame.epoch,
                    entries: Bytes::copy_from_slice(frame.entries),
                    payload: Bytes::new(),
                    runs: frame.runs,
                }]);
                if let Err(error) = fed {
                    self.recovery = Err(with_source(&error));
                }
            }
        }
    }

    /// A server that brings back its state reads entries, and stops where they cannot be read.
    fn check_state(&mut self, damage: &Damage) {
        let needed = matches!(
            damage.kind,
            DamageKind::Block | DamageKind::Entries | DamageKind::Chain | DamageKind::Missing
        );
        let behind = damage.position.is_none_or(|at| at.0 + damage.len > self.from.0);
        if self.recovery.is_ok() && needed && behind {
            self.recovery = Err(format!(
                "the state cannot be brought back: {}. file=`{}` offset=`{}`",
                damage.what, damage.file, damage.offset
            ));
        }
    }
}

/// Takes what there is. Also says at what time.
pub fn look_again<D: Disk>(
    inspection: &Inspection<D>,
    images: &[ImageFound],
    limits: &Limits,
    clock: Clock,
    end: Position,
    passed: &mut dyn FnMut(u64),
) -> (Timestamp, Rescued) {
    let mut rescue = Rescue::begin(choose(inspection, images), limits.clone());
    let scanned = inspection.scan::<std::convert::Infallible>(&mut |found| {
        match found {
            Found::Passed(bytes) => passed(bytes),
            Found::Damage(_) => {}
            Found::Frame(frame) => rescue.feed(&frame),
        }
        Ok(())
    });
    let Ok(_) = scanned;
    let now = clock.not_before(rescue.latest()).now();
    let mut rescued = rescue.finish(now, end, inspection.last_epoch());
    let durable_end = inspection.facts().mark.map(|mark| mark.durable_end);
    rescued.losses.end_bytes = durable_end.map_or(0, |durable| durable.0.saturating_sub(end.0));
    (now, rescued)
}

fn missing(shard: &Shard, survivors: &Survivors) -> Vec<StreamLoss> {
    let of = |stream: StreamId| (stream, survivors.missing(shard, stream));
    let missing = shard.stream_ids().map(of).filter(|(_, seqs)| !seqs.is_empty());
    missing
        .map(|(stream, seqs): (StreamId, SeqSet)| StreamLoss {
            stream: name_of(shard, stream),
            count: seqs.count(),
            seqs: seqs.runs().collect(),
        })
        .collect()
}

/// Puts each damage together with the messages that lie there.
fn findings(damages: Vec<Damage>, affected: &[Affected], shard: Option<&Shard>) -> Vec<Finding> {
    let name = |stream| match shard {
        Some(shard) => name_of(shard, stream),
        None => format!("(number {})", stream.0),
    };
    let of = |damage: &Damage| {
        let Some(at) = damage.position.filter(|_| damage.kind == DamageKind::Payload) else {
            return Vec::new();
        };
        // The frame that it lies in is the last one that begins before it.
        let frame = affected.iter().map(|affected| affected.frame).filter(|frame| *frame <= at).max();
        let here = affected.iter().filter(|affected| Some(affected.frame) == frame);
        here.map(|affected| (name(affected.stream), affected.seqs)).collect()
    };
    damages.into_iter().map(|damage| Finding { affected: of(&damage), damage }).collect()
}

fn streams(now: Timestamp, shard: &Shard) -> Vec<StreamFound> {
    let all = shard.streams_after(None);
    all.filter_map(|(name, id)| {
        let figures = shard.stream_figures(now, id)?;
        let groups = shard.groups_of(id).filter_map(|(name, id)| {
            let figures = shard.figures(now, id)?;
            Some(GroupFound {
                name: name.to_string(),
                settled_through: figures.floor.0,
                lag: figures.lag,
                parked: figures.parked,
            })
        });
        Some(StreamFound {
            name: name.to_string(),
            first: figures.first.0,
            last: figures.last.0,
            messages: figures.messages,
            bytes: figures.bytes,
            groups: groups.collect(),
        })
    })
    .collect()
}

fn with_source(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    text
}
