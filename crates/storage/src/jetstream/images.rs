//! Images of a shard's state, in a stream of their own.
//!
//! One save writes the changed parts as one file: chunks of [`PART_BYTES`] under `<shard>.<epoch>.<number>`. Then a
//! manifest in the log says where every part is, in this file or in earlier ones; the manifest is a record like any
//! other, so that of a former owner is void. Files that neither of the two kept images needs are purged.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use forebay_core::types::{Epoch, Position, ShardId};
use futures_util::StreamExt as _;
use serde_json::json;

use crate::engine::{Image, ImagePart, SavedPart, StorageError};
use crate::jetstream::link::{CallError, Link};
use crate::jetstream::record::{FileId, Manifest, PART_BYTES, StoredPart};
use crate::jetstream::walk::damaged;

/// An image refers to so many files at most. Beyond that the parts of the oldest one are written again.
const FILES_MAX: usize = 16;
/// Chunks that are on their way at once.
const CHUNKS_ON_THEIR_WAY: usize = 8;

/// The images that are kept.
#[derive(Debug, Default)]
pub(crate) struct Images {
    pub(crate) newest: Option<Manifest>,
    /// The number of the last file of this epoch.
    pub(crate) number: u32,
    /// Files that may be there and are not needed.
    pub(crate) garbage: BTreeSet<FileId>,
}

impl Manifest {
    pub(crate) fn files(&self) -> BTreeSet<FileId> {
        self.parts.iter().map(|part| part.file).collect()
    }

    /// How far the log is covered.
    pub(crate) fn through(&self) -> Position {
        self.parts.iter().map(|part| part.through).min().unwrap_or(Position::START)
    }
}

/// A file to write, and the manifest that needs it.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) manifest: Manifest,
    pub(crate) file: FileId,
    pub(crate) bytes: Bytes,
}

impl Images {
    /// The oldest file, if another one would be too many: its parts have to be written again.
    pub(crate) fn file_to_renew(&self) -> Option<FileId> {
        let files = self.newest.as_ref()?.files();
        (files.len() >= FILES_MAX).then(|| files.first().copied()).flatten()
    }

    /// Decides what to write. `renewed` are the bytes of the file that has to be written again.
    pub(crate) fn plan(
        &self,
        epoch: Epoch,
        image: Image,
        renewed: Option<(FileId, Bytes)>,
    ) -> Result<Plan, StorageError> {
        let file = FileId { epoch, number: self.number + 1 };
        let empty = Manifest::default();
        let newest = self.newest.as_ref().unwrap_or(&empty);
        let before: BTreeMap<_, _> = newest.parts.iter().map(|part| (part.key, part)).collect();
        let mut bytes = BytesMut::new();
        let mut parts = Vec::with_capacity(image.parts.len());
        for ImagePart { key, through, bytes: changed } in image.parts {
            let contents = match changed {
                Some(changed) => changed,
                None => {
                    let part = **before.get(&key).ok_or(StorageError::NoSuchPart { key })?;
                    match &renewed {
                        Some((renewed, whole)) if *renewed == part.file => slice(whole, &part, "")?,
                        _ => {
                            parts.push(StoredPart { through, ..part });
                            continue;
                        }
                    }
                }
            };
            parts.push(StoredPart {
                key,
                through,
                file,
                offset: bytes.len() as u64,
                length: contents.len() as u64,
                crc: crc32c::crc32c(&contents),
            });
            bytes.extend_from_slice(&contents);
        }
        let (covered, before) = (newest.through(), newest.files().into_iter().collect());
        Ok(Plan { manifest: Manifest { parts, covered, before }, file, bytes: bytes.freeze() })
    }

    /// The manifest is durable. Returns the files that may go.
    pub(crate) fn keep(&mut self, plan: Plan) -> Vec<FileId> {
        let old = self.newest.replace(plan.manifest);
        self.number = plan.file.number;
        if let Some(old) = old {
            self.garbage.extend(old.before);
        }
        let newest = self.newest.as_ref().expect("it was just kept");
        let mut wanted = newest.files();
        wanted.extend(&newest.before);
        self.garbage.iter().filter(|file| !wanted.contains(file)).copied().collect()
    }
}

/// The bytes of one part.
fn slice(whole: &Bytes, part: &StoredPart, stream: &str) -> Result<Bytes, StorageError> {
    let until = part.offset.checked_add(part.length).filter(|until| *until <= whole.len() as u64);
    let bytes = until.map(|until| whole.slice(part.offset as usize..until as usize));
    let bytes = bytes.filter(|bytes| crc32c::crc32c(bytes) == part.crc);
    bytes.ok_or_else(|| damaged(stream, 0, "a part of an image is missing or its checksum is wrong"))
}

fn subject(link: &Link, shard: ShardId, file: FileId) -> String {
    format!("{}.{}.{}", link.image_subject(shard), file.epoch.0, file.number)
}

pub(crate) async fn write(
    link: &Link,
    shard: ShardId,
    file: FileId,
    bytes: &Bytes,
) -> Result<(), StorageError> {
    let prefix = subject(link, shard, file);
    let chunk = |index: usize| {
        let from = index * PART_BYTES;
        let (subject, chunk) =
            (format!("{prefix}.{index}"), bytes.slice(from..bytes.len().min(from + PART_BYTES)));
        async move { link.persist("write an image", || link.put_chunk(subject.clone(), chunk.clone())).await }
    };
    let chunks = (0..bytes.len().div_ceil(PART_BYTES)).map(chunk);
    let mut written = futures_util::stream::iter(chunks).buffer_unordered(CHUNKS_ON_THEIR_WAY);
    while let Some(done) = written.next().await {
        done?;
    }
    Ok(())
}

/// A whole file. A chunk that was sent twice counts once.
pub(crate) async fn read(
    link: &Link,
    shard: ShardId,
    file: FileId,
    length: u64,
) -> Result<Bytes, StorageError> {
    let prefix = subject(link, shard, file);
    let mut whole = BytesMut::new();
    let count = length.div_ceil(PART_BYTES as u64);
    for index in 0..count {
        let subject = format!("{prefix}.{index}");
        let mut chunk = None;
        // A replica may lag behind the one that acknowledged the chunk.
        for _ in 0..READ_TRIES {
            chunk = link.persist("read an image", || link.last_of(&link.images, &subject)).await?;
            if chunk.is_some() {
                break;
            }
            tokio::time::sleep(READ_PAUSE).await;
        }
        let chunk = chunk.ok_or_else(|| damaged(&link.images, 0, &format!("chunk {subject} is missing")))?;
        whole.extend_from_slice(&chunk.bytes);
    }
    Ok(whole.freeze())
}

const READ_TRIES: u32 = 20;
const READ_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

/// All parts of an image.
pub(crate) async fn load(
    link: &Link,
    shard: ShardId,
    manifest: &Manifest,
) -> Result<Vec<SavedPart>, StorageError> {
    let mut lengths: BTreeMap<FileId, u64> = BTreeMap::new();
    for part in &manifest.parts {
        let length = lengths.entry(part.file).or_default();
        *length = (*length).max(part.offset.saturating_add(part.length));
    }
    let mut files = BTreeMap::new();
    for (file, length) in lengths {
        files.insert(file, read(link, shard, file, length).await?);
    }
    let parts = manifest.parts.iter().map(|part| {
        let bytes = slice(&files[&part.file], part, &link.images)?;
        Ok(SavedPart { key: part.key, through: part.through, bytes })
    });
    parts.collect()
}

/// Lets go of a file.
pub(crate) async fn purge(link: &Link, shard: ShardId, file: FileId) -> Result<(), StorageError> {
    let what = json!({ "filter": format!("{}.>", subject(link, shard, file)) });
    link.persist("delete an old image", || link.purge(&link.images, &what)).await
}

/// The files of a shard that are there.
pub(crate) async fn list(link: &Link, shard: ShardId) -> Result<BTreeSet<FileId>, CallError> {
    let prefix = format!("{}.", link.image_subject(shard));
    let what = json!({ "subjects_filter": format!("{prefix}>") });
    let answer = link.api(&format!("STREAM.INFO.{}", link.images), &what).await?;
    let subjects = answer["state"]["subjects"].as_object().into_iter().flatten();
    let file = |subject: &str| {
        let mut tokens = subject.strip_prefix(&prefix)?.split('.');
        let (epoch, number) = (tokens.next()?.parse().ok()?, tokens.next()?.parse().ok()?);
        Some(FileId { epoch: Epoch(epoch), number })
    };
    Ok(subjects.filter_map(|(subject, _)| file(subject)).collect())
}

#[cfg(test)]
mod tests {
    use forebay_core::types::PartKey;

    use super::*;

    fn part(id: u32, bytes: Option<&'static str>) -> ImagePart {
        let bytes = bytes.map(|bytes| Bytes::from_static(bytes.as_bytes()));
        ImagePart { key: PartKey { kind: 1, id, sub: 0 }, through: Position(9), bytes }
    }

    #[test]
    fn an_image_never_refers_to_too_many_files() {
        let mut images = Images::default();
        let mut files: BTreeMap<FileId, Bytes> = BTreeMap::new();
        for round in 0..40u32 {
            let parts = (0..=round.min(20)).map(|id| part(id, (id == round % 21).then_some("changed")));
            let renewed = images.file_to_renew().map(|file| (file, files[&file].clone()));
            let plan =
                images.plan(Epoch(1), Image { parts: parts.collect() }, renewed).expect("it is planned");
            assert!(plan.manifest.files().len() <= FILES_MAX);
            files.insert(plan.file, plan.bytes.clone());
            for file in images.keep(plan) {
                files.remove(&file);
                images.garbage.remove(&file);
            }
            let newest = images.newest.as_ref().expect("there is an image");
            for part in &newest.parts {
                assert_eq!(slice(&files[&part.file], part, "").expect("the part is there"), "changed");
            }
            assert!(
                newest.before.iter().all(|file| files.contains_key(file)),
                "the image before is kept too"
            );
        }
        assert!(files.len() <= 2 * FILES_MAX);
    }
}
