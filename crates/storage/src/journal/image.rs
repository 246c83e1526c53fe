//! Images of the shard's state on disk.
//!
//! One save is one file: a manifest of every part, then the bytes of parts. Two images are kept, with
//! the older files that they still refer to; a file of which little is still wanted is emptied by
//! writing its last parts again.
//!
//! The two images share no bytes, so that one damaged place never costs both. A part that changed is written with the
//! image; one that did not is written a second time with the image after, and from then on the images refer to
//! its two copies in turn. A part thus costs two writes after its last change, and none from then on. After a
//! start the first image writes every part that did not change, because only the newest image was compared.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use bytes::Bytes;
use forebay_core::types::{PartKey, Position};

use crate::engine::{Image, ImagePart, SavedPart, StorageError};
use crate::journal::OpenError;
use crate::journal::block::{Flaw, JournalId, u32_at, u64_at, u128_at};
use crate::journal::chores::unreadable;
use crate::journal::crypt::{DataKey, KeyedFile, Keyring, WRAPPED, WrappedKey};
use crate::journal::disk::{Disk, DiskFile, Stage};
use crate::journal::format::Format;
use crate::journal::mark::Slot;
use crate::journal::shared::{is_passing, is_temporary, replace_file};
use crate::journal::space::Space;

/// A file of images that was reread, and the first damage in it with its offset.
pub(crate) type ScrubbedFile = (u64, Result<(), (String, u64)>);

const PREFIX: &str = "image-";
const MAGIC: u64 = u64::from_le_bytes(*b"FBYIMAGE");
const VERSION: u32 = 1;
const HEADER: usize = 64;
const ENTRY: usize = 48;
/// An image refers to no more older files than this.
const FILES_MAX: usize = 16;

pub(crate) fn name(number: u64) -> String {
    format!("{PREFIX}{number:010}")
}

pub(crate) fn number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?;
    (digits.len() == 10).then(|| digits.parse().ok())?
}

/// Where a part is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) key: PartKey,
    pub(crate) through: u64,
    pub(crate) file: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    crc: u32,
}

/// An image, by its manifest.
///
/// The file, little endian: magic "FBYIMAGE" (8), version (4), part count (4), journal id (16), number
/// (8), number of the image before, 0 if none (8), key id, 0 if it is not encrypted (4), zero (8), crc32c of this
/// and the manifest (4). Then, if it is encrypted, its wrapped data key (128). Then for each part: kind (1), zero
/// (3), id (4), sub (4), crc32c of the bytes (4), through (8), file (8), offset
/// (8), length (8). Then the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) number: u64,
    /// The image that was kept beside this one when it was saved; 0 if there was none. Other files with
    /// smaller numbers are only there for the parts that they hold.
    pub(crate) previous: u64,
    pub(crate) parts: Vec<Held>,
    /// The data key of this file, if it is encrypted.
    pub(crate) key: Option<WrappedKey>,
}

impl Manifest {
    /// The log up to here is not needed if this image is.
    pub(crate) fn covered(&self) -> u64 {
        self.parts.iter().map(|part| part.through).min().unwrap_or(0)
    }

    fn reached(&self) -> u64 {
        self.parts.iter().map(|part| part.through).max().unwrap_or(0)
    }

    fn encode(&self, id: JournalId) -> Vec<u8> {
        let mut out = vec![0; HEADER];
        out[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&(self.parts.len() as u32).to_le_bytes());
        out[16..32].copy_from_slice(&id.number.to_le_bytes());
        out[32..40].copy_from_slice(&self.number.to_le_bytes());
        out[40..48].copy_from_slice(&self.previous.to_le_bytes());
        if let Some(key) = &self.key {
            out[48..52].copy_from_slice(&key.id().0.to_le_bytes());
            out.extend_from_slice(key.bytes());
        }
        for part in &self.parts {
            out.extend_from_slice(&[part.key.kind, 0, 0, 0]);
            out.extend_from_slice(&part.key.id.to_le_bytes());
            out.extend_from_slice(&part.key.sub.to_le_bytes());
            out.extend_from_slice(&part.crc.to_le_bytes());
            out.extend_from_slice(&part.through.to_le_bytes());
            out.extend_from_slice(&part.file.to_le_bytes());
            out.extend_from_slice(&part.offset.to_le_bytes());
            out.extend_from_slice(&part.len.to_le_bytes());
        }
        let crc = manifest_crc(id, self.number, &out);
        out[60..64].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8], id: JournalId, number: u64) -> Result<Manifest, Flaw> {
        if bytes.len() < HEADER || u64_at(bytes, 0) != MAGIC || u32_at(bytes, 8) != VERSION {
            return Err("it is no image of a version that this release knows");
        }
        if manifest_crc(id, number, bytes) != u32_at(bytes, 60) {
            return Err("the manifest does not match its checksum");
        }
        if u128_at(bytes, 16) != id.number || u64_at(bytes, 32) != number {
            return Err("the manifest belongs to another image");
        }
        let (key, entries) = match u32_at(bytes, 48) {
            0 => (None, &bytes[HEADER..]),
            _ => (Some(wrapped_key(bytes)?), &bytes[HEADER + WRAPPED..]),
        };
        let parts = entries.chunks_exact(ENTRY).map(|entry| Held {
            key: PartKey { kind: entry[0], id: u32_at(entry, 4), sub: u32_at(entry, 8) },
            crc: u32_at(entry, 12),
            through: u64_at(entry, 16),
            file: u64_at(entry, 24),
            offset: u64_at(entry, 32),
            len: u64_at(entry, 40),
        });
        Ok(Manifest { number, previous: u64_at(bytes, 40), parts: parts.collect(), key })
    }

    pub(crate) fn read<D: Disk>(disk: &D, id: JournalId, number: u64) -> io::Result<Result<Manifest, Flaw>> {
        let file = disk.open(&name(number))?;
        let mut header = [0; HEADER];
        let len = file.read_at(&mut header, 0)?;
        let count = if len < HEADER { 0 } else { u64::from(u32_at(&header, 12)) };
        let key = if len < HEADER || u32_at(&header, 48) == 0 { 0 } else { WRAPPED as u64 };
        let len = HEADER as u64 + key + ENTRY as u64 * count;
        if file.size()? < len {
            return Ok(Err("the file ends within the manifest"));
        }
        let mut bytes = vec![0; len as usize];
        let read = file.read_at(&mut bytes, 0)?;
        Ok(Manifest::decode(&bytes[..read], id, number))
    }
}

fn manifest_crc(id: JournalId, number: u64, bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(id.seed_at(number), &bytes[..60]);
    crc32c::crc32c_append(crc, &bytes[HEADER..])
}

fn part_crc(id: JournalId, file: u64, offset: u64, bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(id.seed_at(file), &offset.to_le_bytes());
    crc32c::crc32c_append(crc, bytes)
}

/// The data key in the header of an encrypted image.
fn wrapped_key(header: &[u8]) -> Result<WrappedKey, Flaw> {
    let key = WrappedKey::decode(header.get(HEADER..HEADER + WRAPPED).unwrap_or(&[]))?;
    if key.id().0 != u32_at(header, 48) {
        return Err("the image names two keys");
    }
    Ok(key)
}

/// The data key in an image file; `None` where it is not encrypted.
pub(crate) fn key_of<F: DiskFile>(file: &F) -> io::Result<Result<Option<WrappedKey>, Flaw>> {
    let mut header = [0; HEADER + WRAPPED];
    let len = file.read_at(&mut header, 0)?;
    if len < HEADER || u64_at(&header, 0) != MAGIC {
        return Ok(Err("it is no image of a version that this release knows"));
    }
    Ok(if u32_at(&header, 48) == 0 { Ok(None) } else { wrapped_key(&header[..len]).map(Some) })
}

/// What the content of an encrypted part is bound to, beside its offset.
fn part_binding(id: JournalId, key: PartKey, file: u64) -> [u8; 33] {
    let mut out = [0; 33];
    out[..16].copy_from_slice(&id.number.to_le_bytes());
    out[16..24].copy_from_slice(&file.to_le_bytes());
    out[24] = key.kind;
    out[25..29].copy_from_slice(&key.id.to_le_bytes());
    out[29..].copy_from_slice(&key.sub.to_le_bytes());
    out
}

/// Reads parts of images, and decrypts them where the folder is encrypted.
pub(crate) struct Parts<'k> {
    pub(crate) keys: Option<&'k Keyring>,
    /// The key of the file that was read last.
    last: Option<(u64, DataKey)>,
}

impl<'k> Parts<'k> {
    pub(crate) fn new(keys: Option<&'k Keyring>) -> Parts<'k> {
        Parts { keys, last: None }
    }

    pub(crate) fn read<D: Disk>(
        &mut self,
        disk: &D,
        id: JournalId,
        part: &Held,
    ) -> io::Result<Result<Bytes, Flaw>> {
        let bytes = match read_stored(disk, id, part)? {
            Ok(bytes) => bytes,
            Err(flaw) => return Ok(Err(flaw)),
        };
        let Some(keys) = self.keys else { return Ok(Ok(bytes.into())) };
        if self.last.as_ref().is_none_or(|(file, _)| *file != part.file) {
            let key = key_of(&disk.open(&name(part.file))?)?.and_then(|wrapped| {
                let wrapped = wrapped.ok_or("the image is not encrypted, but the folder is")?;
                keys.unwrap(&wrapped, id, KeyedFile::Image(part.file))
            });
            match key {
                Ok(key) => self.last = Some((part.file, key)),
                Err(flaw) => return Ok(Err(flaw)),
            }
        }
        let (_, key) = self.last.as_ref().expect("the key was just found");
        Ok(key.open_part(part.offset, &part_binding(id, part.key, part.file), bytes))
    }
}

/// The bytes of a part as they are on disk, compared with their checksum.
pub(crate) fn read_stored<D: Disk>(
    disk: &D,
    id: JournalId,
    part: &Held,
) -> io::Result<Result<Vec<u8>, Flaw>> {
    let file = match disk.open(&name(part.file)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Err("a file that holds one of its parts is missing"));
        }
        other => other?,
    };
    let size = file.size()?;
    if part.offset.checked_add(part.len).is_none_or(|end| end > size) {
        return Ok(Err("a file that holds one of its parts is too short"));
    }
    let mut bytes = vec![0; part.len as usize];
    let read = file.read_at(&mut bytes, part.offset)?;
    if read < bytes.len() || part_crc(id, part.file, part.offset, &bytes) != part.crc {
        return Ok(Err("one of its parts does not match its checksum"));
    }
    Ok(Ok(bytes))
}

/// The images that are kept.
#[derive(Default)]
pub(crate) struct Catalog {
    newest: Option<Manifest>,
    older: Option<Manifest>,
    next: u64,
    /// Parts that are the same in both images.
    same: BTreeSet<PartKey>,
    /// Copies that were found damaged, by file and offset.
    damaged: BTreeSet<(u64, u64)>,
    /// Where the folder is encrypted.
    keys: Option<Keyring>,
}

/// The copies of a part: in the newest image, and in the older one if that has the same content.
#[derive(Debug, Clone, Copy)]
struct Copies {
    newest: Held,
    older: Option<Held>,
}

/// The findings about images when the journal was opened.
pub(crate) struct Loaded {
    pub(crate) catalog: Catalog,
    pub(crate) parts: Vec<SavedPart>,
    pub(crate) remarks: Vec<String>,
    /// Files that are set aside because they could not be used.
    pub(crate) unusable: Vec<String>,
}

impl Catalog {
    /// Takes the newest image that is good. The log before an image may be gone, so one that does not cover
    /// the trimmed part is useless.
    pub(crate) fn load<D: Disk>(
        disk: &D,
        format: &Format,
        names: &[String],
        mark: Slot,
        end: u64,
        keys: Option<&Keyring>,
    ) -> Result<Loaded, OpenError> {
        let mut loaded = Loaded {
            catalog: Catalog { next: 1, keys: keys.cloned(), ..Catalog::default() },
            parts: Vec::new(),
            remarks: Vec::new(),
            unusable: Vec::new(),
        };
        let mut numbers: Vec<u64> =
            names.iter().filter(|name| !is_temporary(name)).filter_map(|name| number(name)).collect();
        numbers.sort_unstable();
        // A number is not used again, not even that of an image that was set aside.
        let aside = names.iter().filter_map(|name| number(name.strip_prefix("quarantine-")?)).max();
        loaded.catalog.next = numbers.last().copied().max(aside).unwrap_or(0) + 1;
        let mut candidate = numbers.last().copied();
        for _ in 0..2 {
            let Some(number) = candidate else { break };
            let unreadable = |error: io::Error| OpenError::unreadable(&name(number), 0, &error);
            let manifest = Manifest::read(disk, format.id, number).map_err(unreadable)?;
            let manifest = manifest.and_then(|manifest| match (keys.is_some(), manifest.key.is_some()) {
                (true, false) => Err("the image is not encrypted, but the folder is"),
                (false, true) => Err("the image is encrypted, but the folder is not"),
                _ => Ok(manifest),
            });
            candidate = match &manifest {
                Ok(manifest) => Some(manifest.previous).filter(|previous| numbers.contains(previous)),
                // Which one was kept beside it is not known; it had the next smaller number.
                Err(_) => numbers.iter().copied().rfind(|&other| other < number),
            };
            if loaded.catalog.newest.is_some() {
                // The older one is only remembered. If it is no longer whole, it does not count.
                loaded.catalog.older = manifest.ok().filter(|older| {
                    older.covered() >= mark.trimmed
                        && older.parts.iter().all(|part| numbers.contains(&part.file))
                });
                break;
            }
            let whole = match manifest {
                Ok(manifest) => {
                    load_parts(disk, format.id, keys, manifest, mark.trimmed).map_err(unreadable)?
                }
                Err(flaw) => Err(flaw),
            };
            match whole {
                Ok((manifest, _)) if manifest.reached() >= end => {
                    let text = "the image goes further than the log, of which the end is missing";
                    return Err(OpenError::refused("R9", &name(number), 0, text));
                }
                Ok((manifest, parts)) => {
                    loaded.catalog.newest = Some(manifest);
                    loaded.parts = parts;
                }
                Err(flaw) => {
                    loaded.remarks.push(format!(
                        "an image of the state cannot be used and is set aside: {flaw}. file=`{}`",
                        name(number)
                    ));
                    loaded.unusable.push(name(number));
                }
            }
        }
        if loaded.unusable.is_empty() {
            loaded.remarks.extend(loaded.catalog.doubt(aside));
        }
        if loaded.catalog.newest.is_none() {
            if mark.first > 1 {
                let text = "no image of the state is good, and the beginning of the log was trimmed";
                return Err(OpenError::refused("image", &name(loaded.catalog.next - 1), 0, text));
            }
            // The log is replayed from its beginning. The unusable images are kept for inspection.
            loaded.unusable = numbers.iter().map(|&number| name(number)).collect();
        }
        Ok(loaded)
    }

    /// The remark for an operator if the image beside the newest one is missing. Two are always kept, so
    /// either that one was lost, or one that was newer than both, whose saving removed the missing one. If
    /// a newer image was set aside, another remark has said this already.
    fn doubt(&self, aside: Option<u64>) -> Option<String> {
        let newest = self.newest.as_ref().filter(|newest| newest.previous > 0 && self.older.is_none())?;
        (aside < Some(newest.number)).then(|| {
            format!(
                "an image of the state is missing: the one beside the newest that was found, or one that was \
                 newer. The log holds all that came after the one that is used. used=`{}` beside=`{}`",
                name(newest.number),
                name(newest.previous)
            )
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.newest.is_none()
    }

    /// The position up to which the older of the two images covers the log.
    pub(crate) fn covered(&self) -> Position {
        self.older.as_ref().map_or(Position::START, |older| Position(older.covered()))
    }

    /// Numbers of the files that are needed.
    fn needed(&self) -> impl Iterator<Item = u64> + '_ {
        let manifests = self.newest.iter().chain(&self.older);
        manifests.flat_map(|manifest| manifest.parts.iter().map(|part| part.file).chain([manifest.number]))
    }

    /// Writes an image and makes it durable.
    pub(crate) fn save<D: Disk>(
        &mut self,
        disk: &D,
        space: &Space<D>,
        id: JournalId,
        image: Image,
    ) -> Result<u64, SaveError> {
        disk.at(Stage::Saving);
        let number = self.next;
        let copies = self.copies();
        let worn = worn(disk, &image, &copies)?;
        let mut same = BTreeSet::new();
        let previous = self.newest.as_ref().map_or(0, |newest| newest.number);
        // A new key for each attempt: one that failed may have left a file that is encrypted with another one.
        let keys = match &self.keys {
            None => None,
            Some(keys) => Some(keys.make(id, KeyedFile::Image(number))?),
        };
        let wrapped = keys.as_ref().map(|(_, wrapped)| *wrapped);
        let parts = Vec::with_capacity(image.parts.len());
        let mut manifest = Manifest { number, previous, parts, key: wrapped };
        let mut contents: Vec<Bytes> = Vec::new();
        let key_bytes = if wrapped.is_some() { WRAPPED } else { 0 };
        let mut offset = (HEADER + key_bytes + ENTRY * image.parts.len()) as u64;
        for part in image.parts {
            let ImagePart { key, through, bytes } = part;
            let bytes = match (bytes, copies.get(&key)) {
                (Some(bytes), _) => bytes,
                (None, None) => return Err(SaveError::NoSuchPart(key)),
                // The image that is now the newest stays, and has the other copy.
                (None, Some(Copies { older: Some(held), .. })) if !worn.contains(&held.file) => {
                    manifest.parts.push(Held { through: through.0, ..*held });
                    same.insert(key);
                    continue;
                }
                (None, Some(held)) => {
                    let (bytes, is_newest) = self.read_copy(disk, id, held)?;
                    if is_newest {
                        same.insert(key);
                    }
                    bytes
                }
            };
            let bytes = match &keys {
                None => bytes,
                Some((data, _)) => data.seal_part(offset, &part_binding(id, key, number), &bytes),
            };
            let (crc, len) = (part_crc(id, number, offset, &bytes), bytes.len() as u64);
            manifest.parts.push(Held { key, through: through.0, file: number, offset, len, crc });
            offset += len;
            contents.push(bytes);
        }
        let encoded = manifest.encode(id);
        let mut pieces: Vec<&[u8]> = vec![&encoded];
        pieces.extend(contents.iter().map(|bytes| &**bytes));
        space.with_reserve(offset, || replace_file(disk, &name(number), &pieces))?;
        let (parts, written) = (manifest.parts.len(), contents.len());
        tracing::debug!(image = number, parts, written, bytes = offset, "image saved");
        self.older = self.newest.replace(manifest);
        self.same = same;
        self.next = number + 1;
        match self.clean(disk) {
            // The image is kept all the same, and the next one cleans up.
            Err(error) if is_passing(&error) => {}
            other => other?,
        }
        disk.at(Stage::Idle);
        Ok(offset)
    }

    /// The copies of each part of the newest image that are not known to be damaged.
    fn copies(&self) -> BTreeMap<PartKey, Copies> {
        let good = |held: &Held| !self.damaged.contains(&(held.file, held.offset));
        let older = self.older.iter().flat_map(|older| &older.parts);
        let older: BTreeMap<PartKey, Held> = older
            .filter(|held| self.same.contains(&held.key) && good(held))
            .map(|held| (held.key, *held))
            .collect();
        let newest = self.newest.iter().flat_map(|newest| &newest.parts);
        newest
            .map(|held| (held.key, Copies { newest: *held, older: older.get(&held.key).copied() }))
            .collect()
    }

    /// The bytes of a part from whichever copy is good, and whether that is the one of the newest image.
    fn read_copy<D: Disk>(
        &mut self,
        disk: &D,
        id: JournalId,
        copies: &Copies,
    ) -> Result<(Bytes, bool), SaveError> {
        let mut damaged = None;
        for (held, is_newest) in [Some(copies.newest), copies.older].into_iter().flatten().zip([true, false])
        {
            match Parts::new(self.keys.as_ref()).read(disk, id, &held) {
                Ok(Ok(bytes)) => return Ok((bytes, is_newest)),
                Ok(Err(flaw)) => damaged = Some((flaw.to_owned(), held)),
                Err(error) if is_passing(&error) => return Err(SaveError::Io(error)),
                Err(error) => damaged = Some((unreadable(&error), held)),
            }
            self.damaged.insert((held.file, held.offset));
        }
        let (what, held) = damaged.expect("a part has a copy");
        Err(SaveError::Damaged { what, file: held.file, offset: held.offset })
    }

    /// Reads the images' parts in the first file after `after` once more, and remembers those that are damaged, so that
    /// the next image does not rely on them. Returns the file, with the damage that was found first.
    pub(crate) fn scrub<D: Disk>(
        &mut self,
        disk: &D,
        id: JournalId,
        after: u64,
    ) -> io::Result<Option<ScrubbedFile>> {
        let Some(file) = self.needed().filter(|&file| file > after).min() else { return Ok(None) };
        let manifests = || self.newest.iter().chain(&self.older);
        let mut found = Ok(());
        if let Some(manifest) = manifests().find(|manifest| manifest.number == file) {
            let flaw = match Manifest::read(disk, id, file) {
                Ok(Ok(stored)) if stored == *manifest => None,
                Ok(Ok(_)) => Some("the manifest has changed since it was written".to_owned()),
                Ok(Err(flaw)) => Some(flaw.to_owned()),
                Err(error) if is_passing(&error) => return Err(error),
                Err(error) => Some(unreadable(&error)),
            };
            found = flaw.map_or(Ok(()), |flaw| Err((flaw, 0)));
        }
        let mut damaged = BTreeSet::new();
        for held in manifests().flat_map(|manifest| &manifest.parts).filter(|held| held.file == file) {
            let flaw = match read_stored(disk, id, held) {
                Ok(Ok(_)) => continue,
                Ok(Err(flaw)) => flaw.to_owned(),
                Err(error) if is_passing(&error) => return Err(error),
                Err(error) => unreadable(&error),
            };
            damaged.insert((held.file, held.offset));
            found = found.and(Err((flaw, held.offset)));
        }
        self.damaged.extend(damaged);
        Ok(Some((file, found)))
    }

    /// Deletes the files of images that are no longer kept.
    pub(crate) fn clean<D: Disk>(&self, disk: &D) -> io::Result<()> {
        let needed: Vec<u64> = self.needed().collect();
        let mut deleted = false;
        for file in disk.list()? {
            if number(&file).is_some_and(|number| number < self.next && !needed.contains(&number)) {
                disk.delete(&file)?;
                deleted = true;
            }
        }
        if deleted { disk.sync_folder() } else { Ok(()) }
    }
}

/// Files whose remaining parts are better written again: less than half is still wanted, or there
/// are too many of them.
fn worn<D: Disk>(disk: &D, image: &Image, copies: &BTreeMap<PartKey, Copies>) -> io::Result<Vec<u64>> {
    let mut wanted: BTreeMap<u64, u64> = BTreeMap::new();
    for part in image.parts.iter().filter(|part| part.bytes.is_none()) {
        if let Some(Copies { newest, older }) = copies.get(&part.key) {
            for held in [Some(*newest), *older].into_iter().flatten() {
                *wanted.entry(held.file).or_default() += held.len;
            }
        }
    }
    let surplus = wanted.len().saturating_sub(FILES_MAX);
    let mut worn: Vec<u64> = wanted.keys().copied().take(surplus).collect();
    for (&file, &live) in wanted.iter().skip(surplus) {
        let is_worn = match disk.open(&name(file)).and_then(|file| file.size()) {
            Ok(size) => live * 2 < size,
            Err(error) if is_passing(&error) => return Err(error),
            // Its parts are written again from their other copies.
            Err(_) => true,
        };
        if is_worn {
            worn.push(file);
        }
    }
    Ok(worn)
}

/// Reads all parts of an image.
fn load_parts<D: Disk>(
    disk: &D,
    id: JournalId,
    keys: Option<&Keyring>,
    manifest: Manifest,
    trimmed: u64,
) -> io::Result<Result<(Manifest, Vec<SavedPart>), Flaw>> {
    if manifest.covered() < trimmed {
        return Ok(Err("the log after it was trimmed"));
    }
    let mut reader = Parts::new(keys);
    let mut parts = Vec::with_capacity(manifest.parts.len());
    for part in &manifest.parts {
        match reader.read(disk, id, part)? {
            Ok(bytes) => parts.push(SavedPart { key: part.key, through: Position(part.through), bytes }),
            Err(flaw) => return Ok(Err(flaw)),
        }
    }
    Ok(Ok((manifest, parts)))
}

/// Why an image was not saved.
pub(crate) enum SaveError {
    NoSuchPart(PartKey),
    /// No copy of a part is good.
    Damaged {
        what: String,
        file: u64,
        offset: u64,
    },
    Io(io::Error),
}

impl From<io::Error> for SaveError {
    fn from(error: io::Error) -> SaveError {
        SaveError::Io(error)
    }
}

impl SaveError {
    /// The same in the words of the contract, where it is not the journal's end.
    pub(crate) fn into_storage_error(self, end: impl FnOnce(io::Error) -> StorageError) -> StorageError {
        match self {
            SaveError::NoSuchPart(key) => StorageError::NoSuchPart { key },
            SaveError::Damaged { what, file, offset } => {
                StorageError::Damaged { what, file: name(file), offset }
            }
            SaveError::Io(error) => end(error),
        }
    }
}
