//! The stamp in every message: the time from which its latency counts, and its number.
//!
//! The layout is `time | producer | number`, big endian: 8, 2 and 6 bytes. The time is in microseconds of this
//! process's clock, so producers and consumers must live in one process. Where a body has to be text, the same is
//! written in hexadecimal digits.

use crate::clock::Timestamp;

/// The bytes of a stamp.
pub(super) const BYTES: usize = 16;
pub(super) const TEXT_BYTES: usize = 2 * BYTES;

const NUMBER_BITS: u32 = 48;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    /// When it was due, or when it was sent where nothing is ever due.
    pub(super) at: Timestamp,
    pub(super) producer: u16,
    /// Counts the messages of the producer.
    pub(super) number: u64,
}

impl Stamp {
    pub(super) fn encode(self) -> [u8; BYTES] {
        let name = u64::from(self.producer) << NUMBER_BITS | (self.number & NUMBER_MASK);
        (u128::from(self.at.0) << 64 | u128::from(name)).to_be_bytes()
    }

    /// `None` for a body that is too short for a stamp.
    pub(super) fn decode(body: &[u8]) -> Option<Stamp> {
        Some(Stamp::of(u128::from_be_bytes(body.get(..BYTES)?.try_into().ok()?)))
    }

    pub(super) fn encode_text(self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.encode()))
    }

    pub(super) fn decode_text(body: &str) -> Option<Stamp> {
        let digits = body.get(..TEXT_BYTES).filter(|digits| digits.bytes().all(|c| c.is_ascii_hexdigit()))?;
        u128::from_str_radix(digits, 16).ok().map(Stamp::of)
    }

    fn of(stamp: u128) -> Stamp {
        let name = stamp as u64;
        Stamp {
            at: Timestamp((stamp >> 64) as u64),
            producer: (name >> NUMBER_BITS) as u16,
            number: name & NUMBER_MASK,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_as_it_was_written_and_nothing_else_is_one() {
        for (at, producer, number) in [(0, 0, 0), (1_790_000_000_000_000, 7, 12_345), (1, 999, NUMBER_MASK)] {
            let stamp = Stamp { at: Timestamp(at), producer, number };
            let body = [&stamp.encode()[..], b"xxxx"].concat();
            assert_eq!(Stamp::decode(&body), Some(stamp));
            assert_eq!(Stamp::decode_text(&format!("{}xxxx", stamp.encode_text())), Some(stamp));
        }
        assert_eq!(Stamp::decode(b"short"), None);
        assert_eq!(Stamp::decode_text("short"), None);
        assert_eq!(Stamp::decode_text(&"+".repeat(32)), None);
        assert_eq!(Stamp::decode_text(&"ü".repeat(32)), None);
    }
}
