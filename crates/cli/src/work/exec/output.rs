//! The output of a handler: passed on line by line, and its end kept.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::work::console::{Console, Origin};

const CHUNK: usize = 8 << 10;
/// A longer line is passed on in pieces.
const LINE_BYTES_MAX: usize = 4 << 10;
/// How many bytes of the end are kept: more than a reason may have, since some of them may not be text.
const TAIL_BYTES_MAX: usize = 2 << 10;

/// The end of an output. The lock protects bytes that one task adds and another reads at the end.
#[derive(Debug, Clone, Default)]
pub(super) struct Tail(Arc<Mutex<VecDeque<u8>>>);

impl Tail {
    fn add(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(&bytes[bytes.len().saturating_sub(TAIL_BYTES_MAX)..]);
        let over = kept.len().saturating_sub(TAIL_BYTES_MAX);
        kept.drain(..over);
    }

    /// As text; bytes that are none are replaced.
    pub(super) fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (front, back) = kept.as_slices();
        let bytes = [front, back].concat();
        // If the beginning is gone, it may have gone in the middle of a character.
        let whole = if bytes.len() < TAIL_BYTES_MAX { 0 } else { character_start(&bytes) };
        String::from_utf8_lossy(&bytes[whole..]).into_owned()
    }
}

/// Where the first whole character begins.
fn character_start(bytes: &[u8]) -> usize {
    const CHARACTER_BYTES_MAX: usize = 4;
    let goes_on = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
    bytes.iter().take(CHARACTER_BYTES_MAX - 1).take_while(goes_on).count()
}

/// Reads until all writers have closed the pipe, and passes every line on.
pub(super) async fn pump(
    mut from: impl AsyncRead + Unpin,
    tail: Option<Tail>,
    origin: Origin,
    console: Console,
) {
    let mut chunk = vec![0; CHUNK];
    let mut line = Vec::new();
    loop {
        let read = match from.read(&mut chunk).await {
            Ok(0) | Err(_) => break,
            Ok(read) => &chunk[..read],
        };
        if let Some(tail) = &tail {
            tail.add(read);
        }
        for piece in read.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(piece);
            if line.ends_with(b"\n") {
                line.pop();
                if line.ends_with(b"\r") {
                    line.pop();
                }
                console.handler_line(origin, &line).await;
                line.clear();
            }
            while line.len() >= LINE_BYTES_MAX {
                let rest = line.split_off(LINE_BYTES_MAX);
                console.handler_line(origin, &line).await;
                line = rest;
            }
        }
    }
    if !line.is_empty() {
        console.handler_line(origin, &line).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_kept_and_is_text() {
        let tail = Tail::default();
        tail.add(b"short\n");
        assert_eq!(tail.text(), "short\n");
        tail.add("ü".repeat(TAIL_BYTES_MAX).as_bytes());
        tail.add(b"x");
        let text = tail.text();
        assert!(text.len() < TAIL_BYTES_MAX && text.starts_with('ü') && text.ends_with("üx"), "{text}");
        tail.add(&[0xff; 10]);
        assert!(
            tail.text().ends_with(
                "x\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}"
            )
        );
        tail.add(&[0x80; TAIL_BYTES_MAX]);
        assert!(tail.text().chars().all(|c| c == '\u{fffd}'));
    }
}
