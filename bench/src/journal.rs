//! The journal's commit beside the least that could be done instead: one write of as many bytes into a
//! file of zeros, and one sync.
//!
//! The two take turns, commit by commit, on the same file system, so that whatever else the disk is
//! doing hits both. Making the next segment and sealing the last is another thread's work in service, and
//! is done here between the measured calls.

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_core::types::{Seq, ShardId, StreamId};
use forebay_storage::engine::{Frame, Run};
use forebay_storage::journal::crypt::{Keyring, MasterKey};

use crate::arguments::Arguments;
use crate::measure::{Stopwatch, median, quantile};
use crate::shell::{JournalLog, Log};

/// What one commit is made of.
#[derive(Debug, Clone, Copy)]
struct Shape {
    frames: u32,
    /// Messages of each frame.
    messages: u32,
    body: u32,
    /// Into the first segment of a new folder, which had to be made in a hurry. All later ones are filled
    /// with zeros ahead of time, as the bare loop's file is.
    first_segment: bool,
}

const SHAPES: [Shape; 10] = [
    Shape { frames: 1, messages: 1, body: 100, first_segment: false },
    Shape { frames: 1, messages: 8, body: 100, first_segment: false },
    Shape { frames: 1, messages: 64, body: 100, first_segment: false },
    Shape { frames: 1, messages: 256, body: 100, first_segment: false },
    Shape { frames: 1, messages: 1_024, body: 100, first_segment: false },
    Shape { frames: 1, messages: 64, body: 1 << 10, first_segment: false },
    Shape { frames: 1, messages: 1_024, body: 1 << 10, first_segment: false },
    // Producers that send one message at a time, and a disk that makes them wait for each other.
    Shape { frames: 64, messages: 1, body: 100, first_segment: false },
    Shape { frames: 512, messages: 1, body: 100, first_segment: false },
    Shape { frames: 1, messages: 64, body: 100, first_segment: true },
];

/// How much more than the bare loop the journal may take.
const BAR: f64 = 1.20;
/// How much of the throughput of a plain journal an encrypted one has at least.
const ENCRYPTED_BAR: f64 = 0.80;

/// A size is measured until its time is up, or this much is written.
const BYTES_MAX: u64 = 512 << 20;
const COMMITS_MIN: usize = 50;

/// What the journal takes in one block.
const FRAMES_MAX: u32 = 1_024;
const COMMIT_BYTES_MAX: u64 = 7 << 20;

const PAGE: u64 = 4_096;
const BARE_FILE_BYTES: u64 = 64 << 20;
/// The system may keep bytes that were written in one piece in one piece of its cache, and later searches all of it
/// for changes: a file that was filled a mebibyte at a time takes 7 % longer to commit to.
const FILL_BYTES: u64 = 64 << 10;

pub(crate) fn run(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let seconds = arguments.seconds(4.0)?;
    let folder = arguments.folder()?;
    let given = [arguments.take("frames")?, arguments.take("messages")?, arguments.take("body")?];
    arguments.finish()?;
    let (shapes, encrypted_shapes) = match given {
        [None, None, None] => (SHAPES.to_vec(), vec![SHAPES[0], SHAPES[2], SHAPES[6], SHAPES[8]]),
        [frames, messages, body] => {
            let shape = Shape::new(frames, messages, body)?;
            (vec![shape], vec![shape])
        }
    };
    // The lower decile is for shared machines: it has the runs that were seldom interrupted.
    println!(
        "{:30} {:>8} {:>7} | {:>9} {:>9} {:>6} | {:>9} {:>9} {:>6} | {:>8} {:>8}",
        "one commit, times in µs",
        "bytes",
        "commits",
        "journal",
        "bare",
        "ratio",
        "decile",
        "bare",
        "ratio",
        "CPU",
        "bare"
    );
    for shape in shapes {
        let folder = folder.join(format!("journal-{}", std::process::id()));
        let result = measure(shape, &folder, Duration::from_secs_f64(seconds));
        std::fs::remove_dir_all(&folder)?;
        let mut result = result?;
        let Measured { block, journal, bare } = &mut result;
        let middle = (median(&mut journal.wall), median(&mut bare.wall));
        let low = (quantile(&mut journal.wall, 0.1), quantile(&mut bare.wall, 0.1));
        let ratio = middle.0 / middle.1;
        println!(
            "{:30} {block:>8} {:>7} | {:>9.1} {:>9.1} {ratio:>6.3} | {:>9.1} {:>9.1} {:>6.3} | {:>8.1} {:>8.1}  \
             {}: at most {BAR}",
            shape.name(),
            journal.wall.len(),
            middle.0 * 1e6,
            middle.1 * 1e6,
            low.0 * 1e6,
            low.1 * 1e6,
            low.0 / low.1,
            median(&mut journal.cpu) * 1e6,
            median(&mut bare.cpu) * 1e6,
            if ratio <= BAR { "met" } else { "MISSED" },
        );
    }
    println!();
    println!(
        "{:30} {:>8} {:>7} | {:>9} {:>9} {:>10} | {:>8} {:>8}",
        "encrypted beside plain, in µs",
        "bytes",
        "commits",
        "plain",
        "encrypted",
        "throughput",
        "CPU",
        "encrypted"
    );
    for shape in encrypted_shapes {
        let folder = folder.join(format!("journal-{}", std::process::id()));
        let result = measure_encrypted(shape, &folder, Duration::from_secs_f64(seconds));
        std::fs::remove_dir_all(&folder)?;
        let Encrypted { block, mut plain, mut encrypted } = result?;
        let middle = (median(&mut plain.wall), median(&mut encrypted.wall));
        let ratio = middle.0 / middle.1;
        println!(
            "{:30} {block:>8} {:>7} | {:>9.1} {:>9.1} {ratio:>10.3} | {:>8.1} {:>8.1}  {}: at least {ENCRYPTED_BAR}",
            shape.name(),
            plain.wall.len(),
            middle.0 * 1e6,
            middle.1 * 1e6,
            median(&mut plain.cpu) * 1e6,
            median(&mut encrypted.cpu) * 1e6,
            if ratio >= ENCRYPTED_BAR { "met" } else { "MISSED" },
        );
    }
    Ok(())
}

impl Shape {
    fn new(frames: Option<u32>, messages: Option<u32>, body: Option<u32>) -> Result<Shape, String> {
        let (frames, messages) = (frames.unwrap_or(1), messages.unwrap_or(1));
        let shape = Shape { frames, messages, body: body.unwrap_or(100), first_segment: false };
        let bytes = u64::from(shape.frames) * u64::from(shape.messages) * u64::from(shape.body + 1);
        let fits =
            (1..=FRAMES_MAX).contains(&shape.frames) && shape.messages > 0 && bytes <= COMMIT_BYTES_MAX;
        fits.then_some(shape).ok_or_else(|| {
            format!("a commit has 1 to {FRAMES_MAX} frames and at most {COMMIT_BYTES_MAX} bytes")
        })
    }

    fn name(&self) -> String {
        let Shape { frames, messages, body, first_segment } = self;
        let several = if *frames == 1 { "" } else { "s" };
        let new = if *first_segment { ", new" } else { "" };
        format!("{frames} frame{several} of {messages} x {body} B{new}")
    }

    /// Frames as the driver makes them: a few dozen bytes of entries and the contents of a batch.
    fn frames(&self) -> Vec<Frame> {
        let frame = |n: u32| Frame {
            shard: ShardId(0),
            entries: Bytes::from(vec![0xe5; 32]),
            payload: Bytes::from(vec![b'x'; self.messages as usize * (self.body as usize + 1)]),
            runs: vec![Run {
                stream: StreamId(1),
                first: Seq(1 + u64::from(n * self.messages)),
                count: self.messages,
                copied: false,
            }],
        };
        (0..self.frames).map(frame).collect()
    }
}

#[derive(Debug, Default)]
struct Times {
    wall: Vec<f64>,
    cpu: Vec<f64>,
}

impl Times {
    fn measure<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let watch = Stopwatch::start();
        let done = work();
        let took = watch.took();
        self.wall.push(took.wall.as_secs_f64());
        self.cpu.push(took.cpu.as_secs_f64());
        done
    }
}

struct Measured {
    block: u64,
    journal: Times,
    bare: Times,
}

fn measure(shape: Shape, folder: &Path, long: Duration) -> Result<Measured, Box<dyn Error>> {
    let journal = folder.join("journal");
    let (mut log, _) = JournalLog::open(&journal)?;
    log.tidy()?;
    if !shape.first_segment {
        // Opened again, it goes on in the segment that was made ready.
        drop(log);
        log = JournalLog::open(&journal)?.0;
        log.tidy()?;
    }
    let frames = shape.frames();
    let mut receipts = Vec::new();
    // Two commits in one segment tell how long a block is; they also warm up.
    for _ in 0..2 {
        log.commit(&mut frames.clone(), &mut receipts)?;
    }
    let block = receipts[frames.len()].get().0 - receipts[0].get().0;
    let mut bare = BareLoop::new(&folder.join("bare"), block)?;
    bare.commit()?;
    let mut measured = Measured { block, journal: Times::default(), bare: Times::default() };
    let begun = Instant::now();
    let mut written = 0;
    while measured.bare.wall.len() < COMMITS_MIN || (begun.elapsed() < long && written < BYTES_MAX) {
        // Who goes first alternates too.
        if measured.bare.wall.len().is_multiple_of(2) {
            measured.bare.measure(|| bare.commit())?;
        }
        let mut waiting = frames.clone();
        receipts.clear();
        measured.journal.measure(|| log.commit(&mut waiting, &mut receipts))?;
        if measured.bare.wall.len() < measured.journal.wall.len() {
            measured.bare.measure(|| bare.commit())?;
        }
        log.tidy()?;
        written += block;
    }
    Ok(measured)
}

struct Encrypted {
    block: u64,
    plain: Times,
    encrypted: Times,
}

/// A journal beside one that is encrypted, commit by commit in turns.
fn measure_encrypted(shape: Shape, folder: &Path, long: Duration) -> Result<Encrypted, Box<dyn Error>> {
    // Any random numbers would do; they cost nothing here, since each segment takes them once.
    let mut next: u8 = 0;
    let mut keys = || {
        next += 1;
        let seed = next;
        let fill = move |bytes: &mut [u8]| {
            bytes.fill(seed);
            Ok(())
        };
        Keyring::new(vec![MasterKey::new(&[7; 32])], fill)
    };
    let mut logs = [None, Some(())].map(|encrypted| (encrypted, Vec::new()));
    let mut open = Vec::new();
    for (name, (encrypted, _)) in ["plain", "encrypted"].into_iter().zip(&logs) {
        let path = folder.join(name);
        // Opened again, it goes on in the segment that was made ready.
        JournalLog::open_with(&path, encrypted.map(|()| keys()).transpose()?)?.0.tidy()?;
        let mut log = JournalLog::open_with(&path, encrypted.map(|()| keys()).transpose()?)?.0;
        log.tidy()?;
        open.push(log);
    }
    let frames = shape.frames();
    for (log, (_, receipts)) in open.iter_mut().zip(&mut logs) {
        for _ in 0..2 {
            log.commit(&mut frames.clone(), receipts)?;
        }
    }
    let block = logs[1].1[frames.len()].get().0 - logs[1].1[0].get().0;
    let mut times = [Times::default(), Times::default()];
    let (begun, mut written) = (Instant::now(), 0);
    while times[1].wall.len() < COMMITS_MIN || (begun.elapsed() < long && written < BYTES_MAX) {
        let first = times[0].wall.len() % 2;
        for which in [first, 1 - first] {
            let mut waiting = frames.clone();
            let receipts = &mut logs[which].1;
            receipts.clear();
            times[which].measure(|| open[which].commit(&mut waiting, receipts))?;
            open[which].tidy()?;
        }
        written += block;
    }
    let [plain, encrypted] = times;
    Ok(Encrypted { block, plain, encrypted })
}

/// Writes into a file that was filled with zeros, from front to back and then again from the front.
struct BareLoop {
    file: File,
    block: Vec<u8>,
    at: u64,
}

impl BareLoop {
    fn new(path: &Path, block: u64) -> std::io::Result<BareLoop> {
        assert_eq!(block % PAGE, 0, "a block is whole pages");
        let file = File::create_new(path)?;
        for piece in 0..BARE_FILE_BYTES / FILL_BYTES {
            file.write_all_at(&[0; FILL_BYTES as usize], piece * FILL_BYTES)?;
        }
        file.sync_all()?;
        Ok(BareLoop { file, block: vec![b'x'; block as usize], at: 0 })
    }

    fn commit(&mut self) -> std::io::Result<()> {
        let len = self.block.len() as u64;
        if self.at + len > BARE_FILE_BYTES {
            self.at = 0;
        }
        self.file.write_all_at(&self.block, self.at)?;
        self.file.sync_data()?;
        self.at += len;
        Ok(())
    }
}
