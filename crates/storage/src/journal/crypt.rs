//! Encryption of the folder's files.
//!
//! Every segment and every image has a random data key of its own, which is in its header, wrapped by a master key.
//! A master key is never in the folder; the header names the one that is needed by its id. Checksums are those of the
//! encrypted bytes, so recovery, sealing, scrubbing and backups work without any key.
//!
//! A data key encrypts each stretch of bytes under a nonce that is the stretch's own place: the position of its frame
//! and the number of its section, or the offset of its part in an image. No place of a file is encrypted twice, because
//! a file gets a new data key whenever it is begun, nothing goes on in a file that an earlier process began, and a
//! `Sealer` takes positions in ascending order only.

use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::engine::Frame;
use crate::journal::block::{CHUNK, Flaw, JournalId, encode_runs, frame_len, u32_at};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Bytes by which encryption lengthens a stretch.
pub(crate) const TAG: usize = 16;
/// Bytes of a wrapped data key in a header.
pub(crate) const WRAPPED: usize = 128;
/// How many of them are used before the checksum at their end.
const WRAPPED_USED: usize = WRAPPED - 4;
/// Bytes of payload in one chunk, which with its tag is one chunk of the payload's checksums.
pub(crate) const PLAIN_CHUNK: usize = CHUNK - TAG;
const ALGORITHM: u8 = 1;

/// Tells master keys apart. It follows from the key, and says nothing about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub(crate) u32);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// How many files of a folder need a master key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyUse {
    pub key: KeyId,
    pub segments: u64,
    pub images: u64,
}

/// A key that wraps data keys.
#[derive(Clone)]
pub struct MasterKey {
    id: KeyId,
    wrapping: [u8; KEY_BYTES],
}

impl MasterKey {
    pub fn new(key: &[u8; KEY_BYTES]) -> MasterKey {
        let id = u32_at(&blake3::derive_key("forebay 2026-11-16 id of a master key", key), 0);
        MasterKey {
            // 0 says that nothing is encrypted.
            id: KeyId(id.max(1)),
            wrapping: blake3::derive_key("forebay 2026-11-16 wrapping of data keys", key),
        }
    }

    pub fn id(&self) -> KeyId {
        self.id
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MasterKey").field(&self.id).finish()
    }
}

type Entropy = dyn Fn(&mut [u8]) -> io::Result<()> + Send + Sync;

/// The master keys of a folder, and the source of random numbers for data keys. New files use the first key.
#[derive(Clone)]
pub struct Keyring {
    keys: Arc<[MasterKey]>,
    entropy: Arc<Entropy>,
}

/// Why keys do not make a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyringError {
    #[error("there is no key")]
    Empty,
    #[error("a key is given twice. key=`{0}`")]
    Twice(KeyId),
}

impl Keyring {
    /// `entropy` fills bytes with random numbers that cannot be predicted.
    pub fn new(
        keys: Vec<MasterKey>,
        entropy: impl Fn(&mut [u8]) -> io::Result<()> + Send + Sync + 'static,
    ) -> Result<Keyring, KeyringError> {
        if keys.is_empty() {
            return Err(KeyringError::Empty);
        }
        for (index, key) in keys.iter().enumerate() {
            if keys[..index].iter().any(|other| other.id == key.id) {
                return Err(KeyringError::Twice(key.id));
            }
        }
        Ok(Keyring { keys: keys.into(), entropy: Arc::new(entropy) })
    }

    /// The ids of the keys, that of new files first.
    pub fn ids(&self) -> impl Iterator<Item = KeyId> + '_ {
        self.keys.iter().map(|key| key.id)
    }

    pub(crate) fn has(&self, id: KeyId) -> bool {
        self.ids().any(|other| other == id)
    }

    /// A new data key for a file, and the same for its header.
    pub(crate) fn make(&self, journal: JournalId, file: KeyedFile) -> io::Result<(DataKey, WrappedKey)> {
        let mut random = [0; KEY_BYTES + NONCE_LEN];
        (self.entropy)(&mut random)?;
        let (key, nonce) = random.split_at(KEY_BYTES);
        let master = &self.keys[0];
        let mut out = [0; WRAPPED];
        out[0] = ALGORITHM;
        out[4..8].copy_from_slice(&master.id.0.to_le_bytes());
        out[8..20].copy_from_slice(nonce);
        out[20..52].copy_from_slice(key);
        let nonce = Nonce::try_assume_unique_for_key(nonce).expect("a nonce has twelve bytes");
        let aad = Aad::from(file.binding(journal));
        let tag = cipher(&master.wrapping).seal_in_place_separate_tag(nonce, aad, &mut out[20..52]);
        out[52..68].copy_from_slice(tag.expect("a key is short").as_ref());
        let crc = crc32c::crc32c(&out[..WRAPPED_USED]);
        out[WRAPPED_USED..].copy_from_slice(&crc.to_le_bytes());
        Ok((DataKey { cipher: cipher(key) }, WrappedKey(out)))
    }

    /// The data key in the header of a file.
    pub(crate) fn unwrap(
        &self,
        wrapped: &WrappedKey,
        journal: JournalId,
        file: KeyedFile,
    ) -> Result<DataKey, Flaw> {
        let master = self.keys.iter().find(|key| key.id == wrapped.id());
        let master = master.ok_or("the key that it is encrypted with was not given")?;
        let bytes = &wrapped.0;
        let nonce = Nonce::try_assume_unique_for_key(&bytes[8..20]).expect("a nonce has twelve bytes");
        let mut key = [0; KEY_BYTES + TAG];
        key.copy_from_slice(&bytes[20..68]);
        let aad = Aad::from(file.binding(journal));
        let key = cipher(&master.wrapping).open_in_place(nonce, aad, &mut key);
        let key = key.map_err(|_| "the data key in the header is not as it was written")?;
        Ok(DataKey { cipher: cipher(key) })
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Keyring").field(&self.keys).finish()
    }
}

fn cipher(key: &[u8]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("a key has 32 bytes"))
}

/// A file that has a data key. The key is good for that file only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyedFile {
    Segment(u64),
    Image(u64),
}

impl KeyedFile {
    fn binding(self, journal: JournalId) -> [u8; 25] {
        let (kind, number) = match self {
            KeyedFile::Segment(number) => (b'S', number),
            KeyedFile::Image(number) => (b'I', number),
        };
        let mut out = [0; 25];
        out[..16].copy_from_slice(&journal.number.to_le_bytes());
        out[16] = kind;
        out[17..].copy_from_slice(&number.to_le_bytes());
        out
    }
}

/// A data key in a header, little endian:
///
/// ```text
///   0  algorithm (1: AES-256-GCM)  1    20  data key, wrapped  32
///   1  zero                        3    52  tag                16
///   4  id of the master key        4    68  zero               56
///   8  nonce of the wrapping      12   124  crc32c              4
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrappedKey([u8; WRAPPED]);

impl WrappedKey {
    pub(crate) fn bytes(&self) -> &[u8; WRAPPED] {
        &self.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<WrappedKey, Flaw> {
        let bytes: [u8; WRAPPED] = bytes.try_into().map_err(|_| "the file ends within its data key")?;
        if crc32c::crc32c(&bytes[..WRAPPED_USED]) != u32_at(&bytes, WRAPPED_USED) {
            return Err("the data key in the header does not match its checksum");
        }
        if bytes[0] != ALGORITHM || u32_at(&bytes, 4) == 0 {
            return Err("it is encrypted in a way that this release does not know");
        }
        Ok(WrappedKey(bytes))
    }

    pub(crate) fn id(&self) -> KeyId {
        KeyId(u32_at(&self.0, 4))
    }
}

impl fmt::Debug for WrappedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WrappedKey").field(&self.id()).finish()
    }
}

/// The key that the contents of one file are encrypted with.
pub(crate) struct DataKey {
    cipher: LessSafeKey,
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey")
    }
}

const NOT_AUTHENTIC: Flaw = "it does not decrypt with its key, although its checksum is good";

fn nonce(place: u64, section: u32) -> Nonce {
    let mut out = [0; NONCE_LEN];
    out[..8].copy_from_slice(&place.to_le_bytes());
    out[8..].copy_from_slice(&section.to_le_bytes());
    Nonce::assume_unique_for_key(out)
}

impl DataKey {
    /// Appends `plain` to `out`, encrypted.
    fn seal(&self, place: u64, section: u32, binding: &[u8], plain: &[u8], out: &mut BytesMut) {
        let start = out.len();
        out.extend_from_slice(plain);
        let aad = Aad::from(binding);
        let tag = self.cipher.seal_in_place_separate_tag(nonce(place, section), aad, &mut out[start..]);
        out.extend_from_slice(tag.expect("a stretch has a bounded length").as_ref());
    }

    /// Decrypts in place, and says how long the result is.
    fn open(&self, place: u64, section: u32, binding: &[u8], bytes: &mut [u8]) -> Result<usize, Flaw> {
        let opened = self.cipher.open_in_place(nonce(place, section), Aad::from(binding), bytes);
        opened.map(|plain| plain.len()).map_err(|_| NOT_AUTHENTIC)
    }

    /// A part of an image, which lies at `offset` of this key's file.
    pub(crate) fn seal_part(&self, offset: u64, binding: &[u8], plain: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(plain.len() + TAG);
        self.seal(offset, 0, binding, plain, &mut out);
        out.freeze()
    }

    pub(crate) fn open_part(&self, offset: u64, binding: &[u8], mut bytes: Vec<u8>) -> Result<Bytes, Flaw> {
        let len = self.open(offset, 0, binding, &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes.into())
    }

    /// The entries of a frame, from the bytes of its runs and of its entries on disk.
    pub(crate) fn open_entries(
        &self,
        place: &FramePlace,
        runs: &[u8],
        entries: &[u8],
    ) -> Result<Bytes, Flaw> {
        let mut bytes = entries.to_vec();
        let len = self.open(place.position, 0, &place.binding(runs), &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes.into())
    }

    /// Decrypts a payload where it is, except for chunks that `is_missing` names. Those, and those that do not decrypt,
    /// which are returned, are zeros.
    pub(crate) fn open_payload(
        &self,
        place: &FramePlace,
        payload: &mut Vec<u8>,
        is_missing: impl Fn(usize) -> bool,
    ) -> Vec<(usize, Flaw)> {
        let binding = place.binding(&[]);
        let mut flaws = Vec::new();
        let mut end = 0;
        for (index, start) in (0..payload.len()).step_by(CHUNK).enumerate() {
            let stored = start..payload.len().min(start + CHUNK);
            let len = stored.len().saturating_sub(TAG);
            let opened = match is_missing(index) {
                true => false,
                false => match self.open(place.position, 1 + index as u32, &binding, &mut payload[stored]) {
                    Ok(_) => true,
                    Err(flaw) => {
                        flaws.push((index, flaw));
                        false
                    }
                },
            };
            payload.copy_within(start..start + len, end);
            if !opened {
                payload[end..end + len].fill(0);
            }
            end += len;
        }
        payload.truncate(end);
        flaws
    }
}

/// The place of an encrypted frame and its lengths on disk, to which its contents are bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FramePlace {
    pub(crate) journal: JournalId,
    pub(crate) position: u64,
    pub(crate) shard: u32,
    pub(crate) entries_len: u32,
    pub(crate) payload_len: u32,
}

impl FramePlace {
    fn binding(&self, runs: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(36 + runs.len());
        self.bind(&mut out);
        out.extend_from_slice(runs);
        out
    }

    fn bind(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.journal.number.to_le_bytes());
        out.extend_from_slice(&self.position.to_le_bytes());
        out.extend_from_slice(&self.shard.to_le_bytes());
        out.extend_from_slice(&self.entries_len.to_le_bytes());
        out.extend_from_slice(&self.payload_len.to_le_bytes());
    }
}

/// The length on disk of a payload of `len` bytes.
fn sealed_len(len: usize) -> usize {
    len + TAG * len.div_ceil(PLAIN_CHUNK)
}

/// Bytes by which encryption lengthens a frame, its chunk table included.
pub(crate) fn frame_growth(frame: &Frame) -> u64 {
    let (plain, sealed) = (frame.payload.len(), sealed_len(frame.payload.len()));
    let table = 4 * (sealed.div_ceil(CHUNK) - plain.div_ceil(CHUNK));
    (TAG + sealed - plain + table) as u64
}

/// Encrypts the frames of one segment. Each position is taken once, in ascending order, so that no nonce is used
/// twice under the segment's key.
pub(crate) struct Sealer {
    key: Arc<DataKey>,
    /// Positions before this one are used up.
    next: u64,
    /// The frames of the last block, and the room that they are in. Both are used again and again.
    frames: Vec<Frame>,
    room: BytesMut,
    binding: Vec<u8>,
}

impl Sealer {
    /// `key` was made for this segment just now.
    pub(crate) fn new(key: Arc<DataKey>) -> Sealer {
        Sealer { key, next: 0, frames: Vec::new(), room: BytesMut::new(), binding: Vec::new() }
    }

    /// The frames of one block as they are written, one after the other, from `position` on.
    pub(crate) fn seal(&mut self, journal: JournalId, mut position: u64, frames: &[Frame]) -> &[Frame] {
        // The room can be used again once no section lies in it.
        for sealed in &mut self.frames {
            (sealed.entries, sealed.payload) = (Bytes::new(), Bytes::new());
        }
        self.frames.resize_with(frames.len(), Frame::default);
        let len = |frame: &Frame| frame.entries.len() + TAG + sealed_len(frame.payload.len());
        self.room.reserve(frames.iter().map(len).sum());
        for (index, frame) in frames.iter().enumerate() {
            self.seal_one(journal, position, frame, index);
            position += frame_len(&self.frames[index]);
        }
        &self.frames
    }

    fn seal_one(&mut self, journal: JournalId, position: u64, frame: &Frame, index: usize) {
        assert!(position >= self.next, "no position is encrypted twice under one key");
        self.next = position + 1;
        let place = FramePlace {
            journal,
            position,
            shard: frame.shard.0,
            entries_len: (frame.entries.len() + TAG) as u32,
            payload_len: sealed_len(frame.payload.len()) as u32,
        };
        self.binding.clear();
        place.bind(&mut self.binding);
        let (fixed, room) = (self.binding.len(), &mut self.room);
        encode_runs(&frame.runs, &mut self.binding);
        self.key.seal(position, 0, &self.binding, &frame.entries, room);
        let sealed = &mut self.frames[index];
        sealed.entries = room.split().freeze();
        for (index, chunk) in frame.payload.chunks(PLAIN_CHUNK).enumerate() {
            self.key.seal(position, 1 + index as u32, &self.binding[..fixed], chunk, room);
        }
        sealed.payload = room.split().freeze();
        sealed.shard = frame.shard;
        sealed.runs.clone_from(&frame.runs);
    }
}
