//! `forebay backup` and `forebay restore`: a consistent copy of a data folder, and a data folder made from
//! that copy.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use forebay_storage::journal::Keyring;
use forebay_storage::journal::disk::FolderDisk;
use forebay_storage::journal::inspect::{self, Copied, CopyError};
use serde::Serialize;

use crate::doctor::report::{Report, size};
use crate::doctor::{self, Progress, check_new, epoch_jump};
use crate::encryption::KeyFlags;
use crate::exit::Exit;
use crate::print::Output;
use crate::serve::open_error;
use crate::units;

pub(crate) const BACKUP_EXAMPLES: &str = "\
Examples:
  forebay backup --to /backup/monday     copy ./forebay-data; a server may be using it
  forebay backup --data /var/lib/forebay --to /backup/monday -o json

The backup contains everything that was confirmed before it began. The copy is verified before success is
reported. The backup of an encrypted folder is encrypted with the same keys. Without them the checksums of the
copy are verified, and not its contents.

Exit codes:
  0  the backup is complete and sound
  4  the data folder is damaged; the copy is not a backup
  1  anything else, such as a folder that is not empty";

pub(crate) const RESTORE_EXAMPLES: &str = "\
Examples:
  forebay restore --from /backup/monday --data /var/lib/forebay
  forebay serve --data /var/lib/forebay

The backup is not changed. The restored folder continues with a later epoch, so leases that were granted after
the backup are not mistaken for its own.

Exit codes:
  0  the folder is restored and sound
  3  the backup is in use by a server
  4  the backup is damaged
  1  anything else, such as a folder that is not empty";

#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// The folder to copy.
    #[arg(long, value_name = "DIR", default_value = "./forebay-data")]
    data: PathBuf,
    /// The target folder. It is created if it does not exist, and must be empty.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    #[command(flatten)]
    keys: KeyFlags,
}

#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The backup.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// The new data folder. It is created if it does not exist, and must be empty.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    #[command(flatten)]
    keys: KeyFlags,
}

#[derive(Debug, Serialize)]
struct CopyReport {
    bytes: u64,
    segments: u64,
    images: u64,
    /// Everything before this position is in the copy.
    position: u64,
    /// Whether a server used the folder meanwhile.
    online: bool,
    messages: u64,
    copy: Report,
}

pub(crate) fn back_up(options: &Backup, output: Output) -> anyhow::Result<()> {
    check_new(&options.to, &options.data)?;
    let keys = options.keys.read()?;
    let (from, to) = disks(&options.data, &options.to)?;
    let mut progress = Progress::new("copied", folder_bytes(&options.data));
    let copied = inspect::back_up(&from, &to, &mut |bytes| progress.passed(bytes))
        .map_err(|error| copy_error(error, &options.data))?;
    drop(progress);
    finish(copied, &options.to, keys.as_ref(), output, "Backed up")
}

pub(crate) fn restore(options: &Restore, output: Output) -> anyhow::Result<()> {
    check_new(&options.data, &options.from)?;
    let keys = options.keys.read()?;
    let (from, to) = disks(&options.from, &options.data)?;
    let mut progress = Progress::new("copied", folder_bytes(&options.from));
    let jump = epoch_jump()?;
    let copied = inspect::restore(&from, &to, jump, &mut |bytes| progress.passed(bytes))
        .map_err(|error| copy_error(error, &options.from))?;
    drop(progress);
    finish(copied, &options.data, keys.as_ref(), output, "Restored")
}

fn disks(from: &Path, to: &Path) -> anyhow::Result<(FolderDisk, FolderDisk)> {
    let source =
        FolderDisk::read_only(from).with_context(|| format!("cannot read the folder {}", from.display()))?;
    let target = FolderDisk::new(to).with_context(|| format!("cannot make the folder {}", to.display()))?;
    Ok((source, target))
}

/// About how much there is to copy.
fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let wanted = entries.filter(|entry| entry.file_name() != "RESERVE");
    wanted.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

fn copy_error(error: CopyError, from: &Path) -> anyhow::Error {
    let error = match error {
        CopyError::Open(error) => open_error(error),
        other => other.into(),
    };
    error.context(format!("cannot copy {}", from.display()))
}

/// Checks the whole copy as the doctor does, and prints the result.
fn finish(
    copied: Copied,
    to: &Path,
    keys: Option<&Keyring>,
    output: Output,
    done: &str,
) -> anyhow::Result<()> {
    let place = to.display().to_string();
    let found = doctor::diagnose(&doctor::inspect(to, keys)?, "verified");
    let copy = Report::of(&place, &found);
    let report = CopyReport {
        bytes: copied.bytes,
        segments: copied.segments,
        images: copied.images,
        position: copied.end.0,
        online: copied.online,
        messages: copy.messages,
        copy,
    };
    let is_locked = report.copy.locked.is_some() && report.copy.damage.is_empty();
    let sound = report.copy.sound || is_locked;
    doctor::print(output, &report, || {
        if is_locked {
            return format!(
                "{done} into {place}: {}, log up to position {}. The copy is encrypted. Its checksums were verified \
                 and are good; its contents were not read, because the key was not given.\n",
                size(report.bytes),
                report.position
            );
        }
        if !sound {
            return report.copy.text();
        }
        format!(
            "{done} into {place}: {}, {} kept, log up to position {}. The copy was verified and is sound.\n",
            size(report.bytes),
            units::of(report.messages, "message"),
            report.position
        )
    })?;
    if sound {
        return Ok(());
    }
    Err(anyhow::Error::new(Exit::DataRefused)
        .context(format!("the copy is damaged, so it is not a backup. folder=`{place}`")))
}
