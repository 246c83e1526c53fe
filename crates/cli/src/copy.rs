//! `forebay copy`: moves a log from a data folder to NATS JetStream, or back.
//!
//! The copy has the same frames in the same order, at other positions, and the newest image of the state with positions
//! of its own. A target that is not finished says which source it is a copy of, and is opened by nothing else. A copy
//! that was interrupted compares the frames that are there with those of the source, and goes on behind them.

mod places;

use std::collections::VecDeque;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use forebay_broker::clock::Clock;
use forebay_core::entry::{Entry, entries};
use forebay_core::types::{Epoch, Position, ShardId, Timestamp};
use forebay_storage::engine::{
    Appended, Claim, Engine, Frame, Image, ImagePart, ReadBudget, SavedPart, StorageError, StoredFrame,
};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use self::places::{Place, Source, Target};
use crate::doctor;
use crate::doctor::report::size;
use crate::exit::Exit;
use crate::print::Output;
use crate::settings::{self, Sources};
use crate::units;

pub(crate) const EXAMPLES: &str = "\
Takes the settings of `forebay serve` for the log on NATS and for a new data folder. No server may use either of them.
The source is only read. If the command is interrupted, run it again: it goes on. The copy is read back and compared
with the source before success is reported.

Examples:
  forebay copy --from /var/lib/forebay --to nats --cluster orders --nats nats://n1:4222,nats://n2:4222,nats://n3:4222 \\
    --nats-monitors http://n1:8222,http://n2:8222,http://n3:8222
  forebay copy --from nats --to /var/lib/forebay --config forebay.toml
  forebay copy --from /var/lib/forebay --to nats://127.0.0.1:4222 --cluster try --nats-replicas 1 --nats-accept-loss

Exit codes:
  0  the copy is complete, and equal to the source
  3  the source or the target is in use
  4  the source is damaged, or the target is not empty and not an unfinished copy of the source
  7  no NATS server answers";

#[derive(Debug, Args)]
pub(crate) struct Copy {
    /// The log to copy: a data folder; `nats` for the log that the settings name; or the addresses of NATS servers.
    #[arg(long, value_name = "DIR|nats|URLS")]
    from: String,
    /// Where to copy it: a new data folder, `nats`, or the addresses of NATS servers.
    #[arg(long, value_name = "DIR|nats|URLS")]
    to: String,
    #[command(flatten)]
    sources: Sources,
}

/// A log, as the command line names it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Named {
    Folder(PathBuf),
    /// Servers, if they are not those of the settings.
    Nats(Vec<String>),
}

impl Named {
    fn parse(text: &str) -> Named {
        let schemes = ["nats://", "tls://", "ws://", "wss://"];
        if text == "nats" {
            return Named::Nats(Vec::new());
        }
        if schemes.iter().any(|scheme| text.starts_with(scheme)) {
            return Named::Nats(text.split(',').map(|server| server.trim().to_owned()).collect());
        }
        Named::Folder(PathBuf::from(text))
    }
}

/// The result, for programs.
#[derive(Debug, Serialize)]
struct CopyReport {
    from: String,
    to: String,
    frames: u64,
    bytes: u64,
    /// Frames that an earlier attempt had copied.
    frames_before: u64,
    image_parts: usize,
    /// SHA-256 over all frames, of the source and of the copy.
    hash: String,
    /// Every epoch of the copy is later than this one, which was the last of the source.
    source_epoch: u32,
}

pub(crate) fn run(options: &Copy, output: Output) -> anyhow::Result<()> {
    let given = settings::gather(&options.sources, |name| std::env::var(name).ok())?;
    let mut settings = settings::settle(&given)?;
    let (from, to) = (Named::parse(&options.from), Named::parse(&options.to));
    match (&from, &to) {
        (Named::Folder(_), Named::Folder(_)) => {
            let error = "one of --from and --to must be `nats` or addresses of NATS servers; `forebay backup` and \
                         `forebay restore` copy a folder to a folder";
            return Err(anyhow::anyhow!(Exit::NotUnderstood).context(error));
        }
        (Named::Nats(_), Named::Nats(_)) => {
            let error =
                "one of --from and --to must be a data folder. Copy to a folder first, and from there";
            return Err(anyhow::anyhow!(Exit::NotUnderstood).context(error));
        }
        (Named::Nats(servers), _) | (_, Named::Nats(servers)) if !servers.is_empty() => {
            settings.nats = servers.clone();
        }
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let report = runtime.context("cannot start the runtime")?.block_on(async {
        let place = |named: Named| match named {
            Named::Folder(folder) => Place::Folder(folder),
            Named::Nats(_) => Place::Nats,
        };
        copy(&settings, place(from), place(to)).await
    })?;
    doctor::print(output, &report, || {
        let before = match report.frames_before {
            0 => String::new(),
            n => format!(" ({} of them by an earlier attempt)", units::count(n)),
        };
        format!(
            "Copied {} to {}: {}{before}, {}, {} of the state. The copy was read back and is equal to the source.\n",
            report.from,
            report.to,
            units::of(report.frames, "frame"),
            size(report.bytes),
            units::of(report.image_parts as u64, "part"),
        )
    })
}

async fn copy(settings: &settings::Settings, from: Place, to: Place) -> anyhow::Result<CopyReport> {
    let clock = Clock::start();
    let mut source = Source::open(&from, settings, clock).await?;
    let target = Target::open(&to, settings, clock, &source).await?;
    let claim = target.engine().claim(ShardId(0)).await.map_err(|error| places::failed(&to, error))?;
    let mut copying = Copying::new(target.engine(), claim, source.parts());
    let all = copying.all(&mut source, &to).await?;
    copying.end(source.parts(), clock.now()).await.map_err(|error| places::failed(&to, error))?;
    let read_back = copying.read_back(all.frames).await.map_err(|error| places::failed(&to, error))?;
    let frames_before = copying.before;
    if read_back != all {
        bail!(different(&to, "its frames"));
    }
    source.check_unchanged(&from).await?;
    target.finish(&to).await?;
    // As a server would find it.
    let found = Source::open(&to, settings, clock).await?;
    let is_equal = |(a, b): (&SavedPart, &SavedPart)| a.key == b.key && a.bytes == b.bytes;
    let (wanted, parts) = (sorted(source.parts()), sorted(found.parts()));
    if wanted.len() != parts.len() || !wanted.into_iter().zip(parts).all(is_equal) {
        bail!(different(&to, "its image of the state"));
    }
    Ok(CopyReport {
        from: from.shown(settings),
        to: to.shown(settings),
        frames: all.frames,
        bytes: all.bytes,
        frames_before,
        image_parts: source.parts().len(),
        hash: all.hash.iter().map(|byte| format!("{byte:02x}")).collect(),
        source_epoch: source.epoch().0,
    })
}

fn sorted(parts: &[SavedPart]) -> Vec<&SavedPart> {
    let mut parts: Vec<&SavedPart> = parts.iter().collect();
    parts.sort_by_key(|part| part.key);
    parts
}

fn different(to: &Place, what: &str) -> anyhow::Error {
    let error =
        format!("the copy was read back and differs from the source in {what}, so do not use it. to=`{to}`");
    anyhow::Error::new(Exit::DataRefused).context(error)
}

/// Frames, counted and summed up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Sum {
    frames: u64,
    bytes: u64,
    hash: Vec<u8>,
}

#[derive(Default)]
struct Summing {
    frames: u64,
    bytes: u64,
    hash: Sha256,
}

impl Summing {
    fn add(&mut self, frame: &StoredFrame) {
        self.frames += 1;
        self.bytes += (frame.entries.len() + frame.payload.len()) as u64;
        let mut number = |number: u64| self.hash.update(number.to_le_bytes());
        for length in [frame.entries.len(), frame.payload.len(), frame.runs.len()] {
            number(length as u64);
        }
        for run in &frame.runs {
            number(run.stream.0.into());
            number(run.first.0);
            number(run.count.into());
            number(run.copied.into());
        }
        self.hash.update(&frame.entries);
        self.hash.update(&frame.payload);
    }

    fn sum(self) -> Sum {
        Sum { frames: self.frames, bytes: self.bytes, hash: self.hash.finalize().to_vec() }
    }
}

/// Which position of the copy stands for a position of the source.
#[derive(Debug, Default)]
struct Positions {
    /// Those that are asked for, in order, and their places in the copy as far as they are known.
    wanted: Vec<Position>,
    found: Vec<Position>,
    last: Position,
}

impl Positions {
    fn new(parts: &[SavedPart]) -> Positions {
        let mut wanted: Vec<Position> = parts.iter().map(|part| part.through).collect();
        wanted.sort_unstable();
        wanted.dedup();
        Positions { wanted, ..Positions::default() }
    }

    /// The next frame of the source is there in the copy.
    fn pair(&mut self, source: Position, copy: Position) {
        self.pass(|wanted| wanted < source);
        self.last = copy;
    }

    fn pass(&mut self, is_behind: impl Fn(Position) -> bool) {
        while self.wanted.get(self.found.len()).is_some_and(|wanted| is_behind(*wanted)) {
            self.found.push(self.last);
        }
    }

    /// The last frame of the copy that is not behind this position of the source.
    fn of(&mut self, source: Position) -> Position {
        self.pass(|_| true);
        let at = self.wanted.binary_search(&source).expect("it was asked for");
        self.found[at]
    }
}

/// Frames and bytes that are on their way to the target at once.
const FRAMES_MAX: usize = 32;
const BYTES_MAX: usize = 16 << 20;
const BUDGET: ReadBudget = ReadBudget { bytes_max: 4 << 20, frames_max: 1_000, payloads: true };
const SHARD: ShardId = ShardId(0);

/// A copy under way.
struct Copying<'a> {
    target: &'a dyn Engine,
    epoch: Epoch,
    start: Position,
    frame_bytes_max: usize,
    positions: Positions,
    /// Frames that the target had.
    before: u64,
    /// Whether the target has the frame behind all others already.
    is_ended: bool,
}

impl<'a> Copying<'a> {
    fn new(target: &'a dyn Engine, claim: Claim, parts: &[SavedPart]) -> Copying<'a> {
        let Claim { epoch, start, frame_bytes_max, .. } = claim;
        let positions = Positions::new(parts);
        Copying { target, epoch, start, frame_bytes_max, positions, before: 0, is_ended: false }
    }

    /// Copies all frames. Those that are there are compared.
    async fn all(&mut self, source: &mut Source, to: &Place) -> anyhow::Result<Sum> {
        let failed = |error| places::failed(to, error);
        let mut sum = Summing::default();
        let mut there = There { next: self.start, frames: VecDeque::new() };
        let mut on_their_way: VecDeque<(Position, usize, Appended)> = VecDeque::new();
        let mut bytes = 0;
        while let Some(frame) = source.next().await? {
            sum.add(&frame);
            if let Some(copy) = there.next(self.target).await.map_err(failed)? {
                if (&copy.entries, &copy.payload, &copy.runs) != (&frame.entries, &frame.payload, &frame.runs)
                {
                    let error = "the target has other frames than the source: it is an unfinished copy of an earlier \
                                 state of it. Delete the target, and run the command again";
                    return Err(anyhow::Error::new(Exit::DataRefused).context(format!("{error}. to=`{to}`")));
                }
                self.before += 1;
                self.positions.pair(frame.position, copy.position);
                continue;
            }
            let length = frame.entries.len() + frame.payload.len();
            if length > self.frame_bytes_max {
                return Err(failed(StorageError::FrameTooLarge {
                    bytes: length,
                    limit: self.frame_bytes_max,
                }));
            }
            while on_their_way.len() >= FRAMES_MAX || (bytes + length > BYTES_MAX && !on_their_way.is_empty())
            {
                bytes -= self.settle(&mut on_their_way).await.map_err(failed)?;
            }
            bytes += length;
            let StoredFrame { position, entries, payload, runs, .. } = frame;
            let appended = self.target.append(Frame { shard: SHARD, entries, payload, runs });
            on_their_way.push_back((position, length, appended));
        }
        while !on_their_way.is_empty() {
            self.settle(&mut on_their_way).await.map_err(failed)?;
        }
        while let Some(more) = there.next(self.target).await.map_err(failed)? {
            if !is_ending(&more) {
                let error =
                    "the target has more frames than the source: the source is an earlier state of it";
                return Err(anyhow::Error::new(Exit::DataRefused).context(format!("{error}. to=`{to}`")));
            }
            self.is_ended = true;
        }
        Ok(sum.sum())
    }

    /// Waits for the first of those that are on their way. Returns its bytes.
    async fn settle(
        &mut self,
        on_their_way: &mut VecDeque<(Position, usize, Appended)>,
    ) -> Result<usize, StorageError> {
        let Some((position, length, appended)) = on_their_way.pop_front() else { return Ok(0) };
        self.positions.pair(position, appended.await?.get());
        Ok(length)
    }

    /// Writes down the time and the epoch of the copy, from which its first owner goes on, and then the state.
    async fn end(&mut self, parts: &[SavedPart], now: Timestamp) -> Result<(), StorageError> {
        if !self.is_ended {
            let mut opened = Vec::new();
            Entry::Opened { epoch: self.epoch, at: now }.encode(&mut opened);
            self.target.append(Frame { shard: SHARD, entries: opened.into(), ..Frame::default() }).await?;
        }
        if parts.is_empty() {
            return Ok(());
        }
        let part = |part: &SavedPart| ImagePart {
            key: part.key,
            through: self.positions.of(part.through),
            bytes: Some(part.bytes.clone()),
        };
        let image = Image { parts: parts.iter().map(part).collect() };
        // Twice, so that there is an older one if the newer one is lost.
        for image in [image.clone(), image] {
            self.target.save(SHARD, image).await?;
        }
        Ok(())
    }

    /// Sums up the first frames of the target.
    async fn read_back(&self, frames: u64) -> Result<Sum, StorageError> {
        let mut there = There { next: self.start, frames: VecDeque::new() };
        let mut sum = Summing::default();
        while sum.frames < frames
            && let Some(frame) = there.next(self.target).await?
        {
            sum.add(&frame);
        }
        Ok(sum.sum())
    }
}

/// Whether a frame says nothing but that a copy was made.
fn is_ending(frame: &StoredFrame) -> bool {
    let mut found = entries(&frame.entries);
    matches!((found.next(), found.next()), (Some(Ok(Entry::Opened { .. })), None))
}

/// The frames of the target.
struct There {
    next: Position,
    frames: VecDeque<StoredFrame>,
}

impl There {
    async fn next(&mut self, target: &dyn Engine) -> Result<Option<StoredFrame>, StorageError> {
        if self.frames.is_empty() && self.next < Position(u64::MAX) {
            self.frames = target.read(SHARD, self.next, BUDGET).await?.into();
            // Where it ends once it ends: frames that are appended meanwhile are not read again.
            self.next = self.frames.back().map_or(Position(u64::MAX), |last| Position(last.position.0 + 1));
        }
        Ok(self.frames.pop_front())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use forebay_core::types::PartKey;

    use super::*;

    #[test]
    fn a_log_is_a_folder_or_on_nats() {
        assert_eq!(Named::parse("nats"), Named::Nats(Vec::new()));
        let both = vec!["nats://a:4222".to_owned(), "nats://b:4222".to_owned()];
        assert_eq!(Named::parse("nats://a:4222, nats://b:4222"), Named::Nats(both));
        for folder in ["./nats", "/var/lib/forebay", "data"] {
            assert_eq!(Named::parse(folder), Named::Folder(PathBuf::from(folder)));
        }
    }

    #[test]
    fn a_part_of_the_state_covers_the_same_frames_in_the_copy() {
        let part = |through| SavedPart {
            key: PartKey { kind: 1, id: 1, sub: 0 },
            through: Position(through),
            bytes: Bytes::new(),
        };
        let mut positions = Positions::new(&[part(250), part(90), part(100), part(900), part(250)]);
        for (source, copy) in [(100, 1), (200, 11), (300, 21)] {
            positions.pair(Position(source), Position(copy));
        }
        let found = [90, 100, 250, 900].map(|through| positions.of(Position(through)).0);
        assert_eq!(found, [0, 1, 11, 21], "frames that the source has let go are not in the copy");
    }
}
