//! A receipt: the proof of a lease that a consumer without a connection holds. Opaque, authenticated, and good for
//! as long as the lease is, also after a restart.
//!
//! ```text
//! version (1) | shard (2) | group (4) | epoch (4) | seq (8) | grant (8) | keyed hash of these (12)
//! ```
//!
//! All of it is in base64 for URLs. Streams and groups are numbered by their shard, so the shard is part of every
//! receipt and of every message's name.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forebay_core::group::Lease;
use forebay_core::types::{Epoch, Grant, GroupId, Seq, ShardId, StreamId};

/// The version that is written, and the only one that is read.
const VERSION: u8 = 1;
const BODY: usize = 27;
/// Long enough that a valid seal cannot be found by trying, short enough for a header.
const SEAL: usize = 12;

/// Writes receipts, and tells those it wrote from those it did not.
#[derive(Clone)]
pub(crate) struct Receipts {
    shard: u16,
    secret: [u8; 32],
}

impl Receipts {
    /// Of one shard.
    pub(crate) fn new(shard: ShardId, secret: [u8; 32]) -> Receipts {
        let shard = u16::try_from(shard.0).expect("a server has no more than 65,536 shards");
        Receipts { shard, secret }
    }

    pub(crate) fn write(&self, group: GroupId, lease: Lease) -> String {
        let mut bytes = [0; BODY + SEAL];
        bytes[0] = VERSION;
        bytes[1..3].copy_from_slice(&self.shard.to_le_bytes());
        bytes[3..7].copy_from_slice(&group.0.to_le_bytes());
        bytes[7..11].copy_from_slice(&lease.epoch.0.to_le_bytes());
        bytes[11..19].copy_from_slice(&lease.seq.0.to_le_bytes());
        bytes[19..27].copy_from_slice(&lease.grant.0.to_le_bytes());
        let seal = self.seal(&bytes[..BODY]);
        bytes[BODY..].copy_from_slice(&seal);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// `None` for a text that this shard has not written.
    pub(crate) fn read(&self, text: &str) -> Option<(GroupId, Lease)> {
        let mut bytes = [0; BODY + SEAL];
        let length = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).ok()?;
        let (body, seal) = bytes.split_at(BODY);
        // In constant time, so that a seal cannot be found byte by byte.
        let differs = self.seal(body).iter().zip(seal).fold(0, |differs, (a, b)| differs | (a ^ b));
        if length != BODY + SEAL || differs != 0 {
            return None;
        }
        // The seal of another version, or of another shard with the same secret, does not make it one of ours.
        if body[0] != VERSION || body[1..3] != self.shard.to_le_bytes() {
            return None;
        }
        let small = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().expect("four bytes"));
        let large = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("eight bytes"));
        let lease = Lease { epoch: Epoch(small(7)), seq: Seq(large(11)), grant: Grant(large(19)) };
        Some((GroupId(small(3)), lease))
    }

    /// A name for a message that no other message has, here or on another server.
    pub(crate) fn name(&self, stream: StreamId, seq: Seq) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(b"message").update(&self.shard.to_le_bytes());
        hasher.update(&stream.0.to_le_bytes()).update(&seq.0.to_le_bytes());
        hasher.finalize().as_bytes()[..16].try_into().expect("a hash has 32 bytes")
    }

    fn seal(&self, body: &[u8]) -> [u8; SEAL] {
        let hash = blake3::keyed_hash(&self.secret, body);
        hash.as_bytes()[..SEAL].try_into().expect("a hash has 32 bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_begins_with_its_version_and_its_shard() {
        let receipts = Receipts::new(ShardId(0x0102), [7; 32]);
        let lease = Lease { epoch: Epoch(1), seq: Seq(1), grant: Grant(1) };
        let bytes = URL_SAFE_NO_PAD.decode(receipts.write(GroupId(9), lease)).expect("base64");
        assert_eq!(bytes.len(), BODY + SEAL);
        assert_eq!(bytes[..7], [VERSION, 2, 1, 9, 0, 0, 0]);
        // Sealed as it should be, but of a version that is not known.
        let mut later = bytes;
        later[0] = VERSION + 1;
        let seal = receipts.seal(&later[..BODY]);
        later[BODY..].copy_from_slice(&seal);
        assert_eq!(receipts.read(&URL_SAFE_NO_PAD.encode(later)), None);
    }

    #[test]
    fn a_message_has_another_name_in_another_shard() {
        let name =
            |shard, stream, seq| Receipts::new(ShardId(shard), [7; 32]).name(StreamId(stream), Seq(seq));
        assert_eq!(name(0, 1, 1), name(0, 1, 1));
        assert_ne!(name(0, 1, 1), name(1, 1, 1));
        assert_ne!(name(0, 1, 1), name(0, 2, 1));
        assert_ne!(name(0, 1, 1), name(0, 1, 2));
    }

    #[test]
    fn a_receipt_is_read_by_its_own_shard_and_cannot_be_altered() {
        let receipts = Receipts::new(ShardId(3), [7; 32]);
        let lease = Lease { epoch: Epoch(3), seq: Seq(1 << 40), grant: Grant(99) };
        let text = receipts.write(GroupId(5), lease);
        assert_eq!(receipts.read(&text), Some((GroupId(5), lease)));
        assert_eq!(Receipts::new(ShardId(3), [8; 32]).read(&text), None, "another server's");
        assert_eq!(Receipts::new(ShardId(4), [7; 32]).read(&text), None, "another shard's");
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(receipts.read(std::str::from_utf8(&bytes).expect("ascii")), None, "byte {at}");
        }
        for wrong in ["", "x", &text[1..], &format!("{text}A"), &format!("{text}{text}"), "ü€"] {
            assert_eq!(receipts.read(wrong), None, "{wrong}");
        }
    }
}
