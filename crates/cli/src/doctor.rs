//! `forebay doctor`: reports the contents of a data folder and its damage, and salvages the readable part.

#[cfg(feature = "jetstream")]
mod jetstream;
pub(crate) mod report;

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use forebay_broker::clock::Clock;
use forebay_broker::salvage::{self, Diagnosis};
use forebay_core::types::{Epoch, Limits};
use forebay_storage::journal::disk::FolderDisk;
use forebay_storage::journal::inspect::Inspection;
use forebay_storage::journal::{JournalConfig, Keyring, OpenError};
use serde::Serialize;

use self::report::{Loss, Report, size};
use crate::encryption::KeyFlags;
use crate::exit::{Exit, say};
use crate::print::Output;
use crate::serve::{open_error, random_id};

pub(crate) const EXAMPLES: &str = "\
Examples:
  forebay doctor                         verify ./forebay-data; no server may be using it
  forebay doctor --data /var/lib/forebay -o json
  forebay doctor --data damaged --salvage rescued
                                         write a new folder with everything that can be read
  forebay doctor --data plain --salvage sealed --encryption-key-file keys
                                         write an encrypted copy; also after a new key was put first in the file
  forebay doctor --engine jetstream --cluster orders --nats nats://n1:4222,nats://n2:4222,nats://n3:4222
                                         verify a log on NATS, also while nodes use it
  forebay doctor --config forebay.toml   the log of a node

The folder itself is never changed. The command reads everything that has a checksum, and restores the state
in memory as a server would. Of a log on NATS it reads every record and verifies the checksums, the chain of hashes
and the newest image; it changes nothing and does not restore the state.

Exit codes:
  0  the folder or the log is sound; with --salvage, the new folder is
  3  the folder is in use by a server
  4  the folder or the log is damaged, from a newer release, or encrypted with a key that was not given
  7  no NATS server answers
  1  anything else, such as a folder that does not exist";

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// The folder to verify.
    #[arg(long, value_name = "DIR", default_value = "./forebay-data")]
    data: PathBuf,
    /// Write everything that can be read into this new folder, and report the losses.
    #[arg(long, value_name = "NEWDIR")]
    salvage: Option<PathBuf>,
    #[command(flatten)]
    keys: KeyFlags,
    #[cfg(feature = "jetstream")]
    #[command(flatten)]
    log: jetstream::LogFlags,
}

/// The JSON report of a salvage.
#[derive(Debug, Serialize)]
struct SalvageReport {
    /// The old folder.
    found: Report,
    lost: Loss,
    /// The new one.
    salvaged: Report,
}

pub(crate) fn run(options: &Doctor, output: Output) -> anyhow::Result<()> {
    #[cfg(feature = "jetstream")]
    if let Some(settings) = options.log.settings()? {
        if options.salvage.is_some() {
            let error =
                "--salvage needs a data folder; `forebay copy --from nats` copies a log on NATS to one";
            return Err(anyhow::anyhow!(Exit::NotUnderstood).context(error));
        }
        return jetstream::run(&settings, output);
    }
    if let Some(to) = &options.salvage {
        check_new(to, &options.data)?;
    }
    let keys = options.keys.read()?;
    let inspection = inspect(&options.data, keys.as_ref())?;
    if let (Some(_), Some(locked)) = (&options.salvage, inspection.locked()) {
        return Err(open_error(locked).context("nothing can be salvaged without the key"));
    }
    let place = options.data.display().to_string();
    let found = diagnose(&inspection, "checked");
    let report = Report::of(&place, &found);
    let Some(to) = &options.salvage else {
        print(output, &report, || report.text())?;
        if report.sound {
            return Ok(());
        }
        let what = match report.locked {
            Some(_) if report.damage.is_empty() => "contents were not verified, because a key is missing",
            _ => "the data folder is damaged",
        };
        return Err(anyhow::Error::new(Exit::DataRefused).context(what));
    };
    if output == Output::Text {
        write_out(&report.text())?;
    }
    let (lost, salvaged) = salvage(&inspection, found, to, keys)?;
    let report = SalvageReport { found: report, lost: Loss::of(&lost), salvaged };
    print(output, &report, || {
        let mut text = format!("\nSalvaged into {}.\n", to.display());
        text.push_str("Lost:\n");
        report.lost.put(&mut text);
        text.push('\n');
        text.push_str(&report.salvaged.text());
        text
    })?;
    if report.salvaged.sound {
        return Ok(());
    }
    bail!("the salvaged folder is not sound, so do not use it. folder=`{}`", to.display())
}

/// Takes a folder to look at it.
pub(crate) fn inspect(folder: &Path, keys: Option<&Keyring>) -> anyhow::Result<Inspection<FolderDisk>> {
    let disk = FolderDisk::read_only(folder)
        .with_context(|| format!("cannot read the folder {}", folder.display()))?;
    Inspection::open_with(disk, keys).map_err(|error| match error {
        OpenError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            anyhow::anyhow!("there is no journal in {}", folder.display())
        }
        OpenError::InUse => anyhow::anyhow!(Exit::DataInUse).context(format!(
            "the data folder {} is in use by another process. Stop the server first, or make a backup, which is \
             verified in the same way",
            folder.display()
        )),
        error => open_error(error).context(format!("cannot look at {}", folder.display())),
    })
}

/// Looks at all of it.
pub(crate) fn diagnose(inspection: &Inspection<FolderDisk>, doing: &'static str) -> Diagnosis {
    let mut progress = Progress::new(doing, inspection.facts().bytes);
    salvage::diagnose(inspection, &Limits::DEFAULT, Clock::start(), &mut |bytes| progress.passed(bytes))
}

/// Writes the new folder, and looks at that one too.
fn salvage(
    inspection: &Inspection<FolderDisk>,
    found: Diagnosis,
    to: &Path,
    keys: Option<Keyring>,
) -> anyhow::Result<(salvage::Losses, Report)> {
    let clock = Clock::start();
    let limits = Limits::DEFAULT;
    let end = found.scanned.end;
    let rescued = match found.rescued {
        Some(rescued) => rescued,
        None => salvage::look_again(inspection, &found.images, &limits, clock, end, &mut |_| {}).1,
    };
    let losses = rescued.losses.clone();
    let epoch_floor = Epoch(rescued.shard.epoch().0.saturating_add(epoch_jump()?).min(u32::MAX >> 1));
    let config = JournalConfig {
        epoch_floor: epoch_floor.max(rescued.shard.epoch()),
        opened_at: clock.now(),
        keys: keys.clone(),
        ..inspection.config_like(random_id()?)
    };
    let disk = FolderDisk::new(to).with_context(|| format!("cannot make the folder {}", to.display()))?;
    let mut progress = Progress::new("salvaged", inspection.facts().bytes);
    salvage::write(inspection, rescued, disk, &config, &mut |bytes| progress.passed(bytes))
        .with_context(|| format!("cannot write {}", to.display()))?;
    drop(progress);
    let salvaged = inspect(to, keys.as_ref())?;
    let report = Report::of(&to.display().to_string(), &diagnose(&salvaged, "verified"));
    Ok((losses, report))
}

/// How far above all known epochs a folder goes on that was made from another one. The other one may have had
/// owners since, but not as many as this; and two folders made from one should not agree by chance.
pub(crate) fn epoch_jump() -> anyhow::Result<u32> {
    const OWNERS_MAX: u32 = 1 << 16;
    Ok(OWNERS_MAX + (random_id()? as u32) % OWNERS_MAX)
}

/// A folder that is to be written must not be there, or be empty, and not lie in the one that is read.
pub(crate) fn check_new(new: &Path, old: &Path) -> anyhow::Result<()> {
    match std::fs::read_dir(new) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                bail!("the folder is not empty, and nothing in it was touched. folder=`{}`", new.display());
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot use {}", new.display())),
    }
    let absolute = |path: &Path| std::path::absolute(path).map(|path| path.canonicalize().unwrap_or(path));
    let (new, old) = (absolute(new)?, absolute(old)?);
    let parent = new.parent().map(|parent| parent.canonicalize().unwrap_or(parent.to_owned()));
    if new.starts_with(&old) || parent.is_some_and(|parent| parent.starts_with(&old)) {
        bail!("the new folder must not lie within the old one. folder=`{}`", new.display());
    }
    Ok(())
}

/// Prints a report, once.
pub(crate) fn print(
    output: Output,
    report: &impl Serialize,
    text: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    match output {
        Output::Text => write_out(&text()),
        Output::Json => {
            let mut json = serde_json::to_string_pretty(report).context("cannot print the report")?;
            json.push('\n');
            write_out(&json)
        }
    }
}

fn write_out(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        // The reader of the pipe has closed it.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot print the report"),
    }
}

/// A progress line for a long job, shown if the output is a terminal.
pub(crate) struct Progress {
    doing: &'static str,
    done: u64,
    all: u64,
    shown: u64,
    visible: bool,
}

/// A line is worth showing once more after this many bytes, and at all if there are a few times as many.
const PROGRESS_BYTES: u64 = 64 << 20;

impl Progress {
    pub(crate) fn new(doing: &'static str, all: u64) -> Progress {
        let visible = std::io::stderr().is_terminal() && all >= 4 * PROGRESS_BYTES;
        Progress { doing, done: 0, all, shown: 0, visible }
    }

    pub(crate) fn passed(&mut self, bytes: u64) {
        self.done += bytes;
        if self.visible && self.done >= self.shown + PROGRESS_BYTES {
            self.shown = self.done;
            let line = format!("\r{} {} of {}  ", self.doing, size(self.done.min(self.all)), size(self.all));
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown > 0 {
            say("");
        }
    }
}
