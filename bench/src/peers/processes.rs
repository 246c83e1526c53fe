//! What the kernel says of a server's processes and of all that they started.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::server::cpu_seconds_of_all;

/// Files of a log stay for longer than this.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A server may be several processes, which share memory and work.
pub(crate) struct Processes(Vec<u32>);

impl Processes {
    /// These and their descendants, as they are now.
    pub(crate) fn of(roots: &[u32]) -> Processes {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        for process in entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            if let Some(parent) = parent(process) {
                children.entry(parent).or_default().push(process);
            }
        }
        let mut all = roots.to_vec();
        let mut at = 0;
        while at < all.len() {
            let of = children.remove(&all[at]).unwrap_or_default();
            all.extend(of.into_iter().filter(|child| !roots.contains(child)));
            at += 1;
        }
        Processes(all)
    }

    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.0.iter().map(|process| cpu_seconds_of_all(*process)).sum()
    }

    /// Bytes that they caused to be written to disks.
    pub(crate) fn written(&self) -> f64 {
        self.0.iter().filter_map(|process| field(*process, "io", "write_bytes:")).sum()
    }

    /// Resident memory in bytes. Of several processes each counts its part of what they share.
    pub(crate) fn memory(&self) -> f64 {
        match self.0.as_slice() {
            [one] => field(*one, "status", "VmRSS:").unwrap_or(0.0) * 1024.0,
            many => many.iter().filter_map(|one| field(*one, "smaps_rollup", "Pss:")).sum::<f64>() * 1024.0,
        }
    }
}

fn parent(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program is in parentheses and may hold anything; what follows is numbers.
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

fn field(process: u32, file: &str, name: &str) -> Option<f64> {
    let text = std::fs::read_to_string(Path::new("/proc").join(process.to_string()).join(file)).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// Bytes that any process wrote to the disk that a folder is on.
pub(crate) fn disk_written(folder: &Path) -> Option<f64> {
    let device = std::fs::metadata(folder).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    let sectors: f64 = text.split_whitespace().nth(6)?.parse().ok()?;
    Some(sectors * 512.0)
}

/// The files of a log that are filled with zeros before they are written to, and their sizes.
#[derive(Debug, Default)]
pub(crate) struct Segments(BTreeMap<u64, u64>);

impl Segments {
    pub(crate) fn read(folder: &Path) -> Segments {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let sizes = entries.filter_map(|entry| {
            let name = entry.file_name();
            let number = name.to_str()?.strip_prefix("segment-")?.get(..10)?.parse().ok()?;
            Some((number, entry.metadata().ok()?.len()))
        });
        Segments(sizes.collect())
    }

    /// Looks again and again, since files come and go: all files there were at any time, until it is asked to stop.
    pub(crate) async fn watch(folder: Option<PathBuf>, stop: Arc<AtomicBool>) -> Segments {
        let mut all = Segments::default();
        let Some(folder) = folder else { return all };
        loop {
            let is_last = stop.load(Ordering::Relaxed);
            for (number, size) in Segments::read(&folder).0 {
                let seen = all.0.entry(number).or_default();
                *seen = size.max(*seen);
            }
            if is_last {
                return all;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Bytes of those that were not there before.
    pub(crate) fn since(&self, before: &Segments) -> u64 {
        self.0.iter().filter(|(number, _)| !before.0.contains_key(number)).map(|(_, size)| size).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory_and_a_parent() {
        let own = std::process::id();
        assert!(parent(own).is_some());
        let all = Processes::of(&[own]);
        assert!(all.memory() > 100_000.0 && all.cpu_seconds() >= 0.0);
    }

    #[test]
    fn zeros_are_those_of_new_segments() {
        let before = Segments([(3, 64), (4, 64)].into());
        assert_eq!(Segments([(3, 64), (4, 64)].into()).since(&before), 0);
        assert_eq!(Segments([(4, 64), (6, 4), (7, 64)].into()).since(&before), 4 + 64);
    }
}
