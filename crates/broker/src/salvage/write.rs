//! A new folder with what could be brought back.
//!
//! The log is written anew, frame by frame, and then the state as an image that covers all of it: what the log
//! says about the state has holes, the image has none.

use bytes::Bytes;
use forebay_core::types::Position;
use forebay_storage::engine::{Durable, Frame, StorageError};
use forebay_storage::journal::disk::Disk;
use forebay_storage::journal::inspect::{Found, Inspection};
use forebay_storage::journal::{Chores, Journal, JournalConfig, OpenError, Opened, Writer};

use super::{Rescued, Rewriter};

/// Frames that are committed together, and their bytes.
const FRAMES_MAX: usize = 256;
const BYTES_MAX: usize = 4 << 20;

/// Why the new folder could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SalvageError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Storage(#[from] StorageError),
}

#[derive(Debug, Clone, Copy)]
pub struct Salvaged {
    pub frames: u64,
    pub bytes: u64,
}

/// Writes a new folder, which nothing opens before it is whole. `passed` is told how many bytes of the old one
/// have been read.
pub fn write<S: Disk, T: Disk>(
    from: &Inspection<S>,
    mut rescued: Rescued,
    to: T,
    config: &JournalConfig,
    passed: &mut dyn FnMut(u64),
) -> Result<Salvaged, SalvageError> {
    let Opened { writer, chores, .. } = Journal::begin(to.clone(), config)?;
    let mut out = Out {
        writer,
        chores,
        frames: Vec::new(),
        waiting: 0,
        positions: Vec::new(),
        last: Position::START,
        salvaged: Salvaged { frames: 0, bytes: 0 },
    };
    let mut rewriter = Rewriter::new(config.shard, std::mem::take(&mut rescued.lost));
    from.scan(&mut |found| match found {
        Found::Frame(frame) => rewriter.take(&frame, &mut |frame| out.push(frame)),
        Found::Damage(_) => Ok(()),
        Found::Passed(bytes) => {
            passed(bytes);
            Ok(())
        }
    })?;
    rewriter.finish(&mut |frame| out.push(frame))?;
    // An image covers the log up to some frame, so there has to be one.
    out.push(Frame { shard: config.shard, entries: Bytes::new(), ..Frame::default() })?;
    out.flush()?;
    let image = rescued.image(out.last);
    // Twice, so that there is an older one if the newer one is lost.
    for image in [image.clone(), image] {
        out.chores.save(image)?;
    }
    out.chores.tidy()?;
    out.chores.stop()?;
    Journal::finish(&to)?;
    Ok(out.salvaged)
}

struct Out<T: Disk> {
    writer: Writer<T>,
    chores: Chores<T>,
    frames: Vec<Frame>,
    /// Bytes in those.
    waiting: usize,
    positions: Vec<Durable<Position>>,
    last: Position,
    salvaged: Salvaged,
}

impl<T: Disk> Out<T> {
    fn push(&mut self, frame: Frame) -> Result<(), SalvageError> {
        self.waiting += frame.entries.len() + frame.payload.len();
        self.salvaged.frames += 1;
        self.salvaged.bytes += (frame.entries.len() + frame.payload.len()) as u64;
        self.frames.push(frame);
        if self.frames.len() >= FRAMES_MAX || self.waiting >= BYTES_MAX { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), SalvageError> {
        while !self.frames.is_empty() {
            self.writer.commit(&mut self.frames, &mut self.positions)?;
            if self.writer.take_rotated() {
                self.chores.tidy()?;
            }
        }
        self.waiting = 0;
        if let Some(last) = self.positions.drain(..).next_back() {
            self.last = last.get();
        }
        Ok(())
    }
}
