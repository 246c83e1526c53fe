//! What a consumer without a connection is given as proof of its lease: opaque, authenticated, and good for
//! as long as the lease is, also after a restart.
//!
//! ```text
//! group (4) | epoch (4) | seq (8) | grant (8) | keyed hash of these (12), in base64 for URLs
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forebay_core::group::Lease;
use forebay_core::types::{Epoch, Grant, GroupId, Seq, StreamId};

const BODY: usize = 24;
/// Long enough that nobody finds one by trying, short enough for a header.
const SEAL: usize = 12;

/// Writes receipts, and tells those it wrote from those it did not.
#[derive(Clone)]
pub(crate) struct Receipts {
    secret: [u8; 32],
}

impl Receipts {
    pub(crate) fn new(secret: [u8; 32]) -> Receipts {
        Receipts { secret }
    }

    pub(crate) fn write(&self, group: GroupId, lease: Lease) -> String {
        let mut bytes = [0; BODY + SEAL];
        bytes[..4].copy_from_slice(&group.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&lease.epoch.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&lease.seq.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&lease.grant.0.to_le_bytes());
        let seal = self.seal(&bytes[..BODY]);
        bytes[BODY..].copy_from_slice(&seal);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// `None` for what was not written here.
    pub(crate) fn read(&self, text: &str) -> Option<(GroupId, Lease)> {
        let mut bytes = [0; BODY + SEAL];
        let length = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).ok()?;
        let (body, seal) = bytes.split_at(BODY);
        // In constant time, so that a seal cannot be found byte by byte.
        let differs = self.seal(body).iter().zip(seal).fold(0, |differs, (a, b)| differs | (a ^ b));
        if length != BODY + SEAL || differs != 0 {
            return None;
        }
        let small = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().expect("four bytes"));
        let large = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("eight bytes"));
        let lease = Lease { epoch: Epoch(small(4)), seq: Seq(large(8)), grant: Grant(large(16)) };
        Some((GroupId(small(0)), lease))
    }

    /// A name for a message that no other message has, here or on another server.
    pub(crate) fn name(&self, stream: StreamId, seq: Seq) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(b"message").update(&stream.0.to_le_bytes()).update(&seq.0.to_le_bytes());
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
    fn a_receipt_is_read_by_whoever_wrote_it_and_cannot_be_altered() {
        let receipts = Receipts::new([7; 32]);
        let lease = Lease { epoch: Epoch(3), seq: Seq(1 << 40), grant: Grant(99) };
        let text = receipts.write(GroupId(5), lease);
        assert_eq!(receipts.read(&text), Some((GroupId(5), lease)));
        assert_eq!(Receipts::new([8; 32]).read(&text), None, "another server's");
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
