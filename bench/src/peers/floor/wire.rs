//! What the floor's client and server say to each other.
//!
//! A frame is `length of what follows: u32 | kind: u8 | number: u32 | rest`, little endian. Messages are the
//! rest of a frame, each as `length: u32 | body`, and `number` counts them.

/// Bytes of a frame before its rest.
pub(super) const FRAME: usize = 9;
/// A frame is never larger than this, so that a stray client is noticed.
const FRAME_MAX: usize = 64 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Creates a queue with `number` groups, named by the rest. Answered by `Done`, like the next two.
    Prepare = 1,
    Produce = 2,
    /// Consumes for group `number`. The rest is the credit, four bytes, and the name of the queue.
    Consume = 3,
    Publish = 4,
    /// The next `number` messages are done with, in the order in which they came.
    Ack = 5,
    /// Asks for `Done` once all acks before it are durable.
    Settle = 6,
    Done = 7,
    /// The next `number` messages are durable.
    Confirm = 8,
    Deliver = 9,
}

impl Kind {
    fn from(byte: u8) -> Option<Kind> {
        use Kind::{Ack, Confirm, Consume, Deliver, Done, Prepare, Produce, Publish, Settle};
        let all = [Prepare, Produce, Consume, Publish, Ack, Settle, Done, Confirm, Deliver];
        all.into_iter().nth(usize::from(byte).checked_sub(1)?)
    }
}

pub(super) fn write_frame(out: &mut Vec<u8>, kind: Kind, number: u32, rest: &[u8]) {
    write_head(out, kind, number, rest.len());
    out.extend_from_slice(rest);
}

/// The beginning of a frame whose rest has `len` bytes.
pub(super) fn write_head(out: &mut Vec<u8>, kind: Kind, number: u32, len: usize) {
    out.extend_from_slice(&((FRAME - 4 + len) as u32).to_le_bytes());
    out.push(kind as u8);
    out.extend_from_slice(&number.to_le_bytes());
}

/// Kind, number, rest.
type Frame<'a> = (Kind, u32, &'a [u8]);

/// The first frame, if it is there as a whole.
pub(super) fn frame(bytes: &[u8]) -> Result<Option<Frame<'_>>, &'static str> {
    let Some((head, rest)) = bytes.split_first_chunk::<FRAME>() else { return Ok(None) };
    let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    if !(FRAME - 4..=FRAME_MAX).contains(&len) {
        return Err("a frame of an impossible length");
    }
    let kind = Kind::from(head[4]).ok_or("a frame of an unknown kind")?;
    let number = u32::from_le_bytes([head[5], head[6], head[7], head[8]]);
    Ok(rest.get(..len - (FRAME - 4)).map(|rest| (kind, number, rest)))
}

/// The length of the first message's body.
pub(super) fn body_len(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk().map(|len| u32::from_le_bytes(*len) as usize)
}

/// How many bytes the first `count` messages take.
pub(super) fn span(bytes: &[u8], count: u32) -> usize {
    let mut at = 0;
    for _ in 0..count {
        at += 4 + bytes.get(at..).and_then(body_len).unwrap_or(0);
    }
    at.min(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_once_it_is_whole() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, Kind::Publish, 2, b"rest");
        write_frame(&mut bytes, Kind::Settle, 0, &[]);
        assert_eq!(frame(&bytes[..12]), Ok(None));
        assert_eq!(frame(&bytes), Ok(Some((Kind::Publish, 2, &b"rest"[..]))));
        assert_eq!(frame(&bytes[13..]), Ok(Some((Kind::Settle, 0, &[][..]))));
        assert!(frame(&[5, 0, 0, 0, 77, 0, 0, 0, 0]).is_err());
        assert!(frame(&[255; 9]).is_err());
    }

    #[test]
    fn messages_are_counted_by_their_lengths() {
        let bytes = [3, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 9];
        assert_eq!([span(&bytes, 0), span(&bytes, 1), span(&bytes, 2), span(&bytes, 3)], [0, 7, 11, 16]);
    }
}
