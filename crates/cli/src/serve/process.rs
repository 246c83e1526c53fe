//! The process of the server: how many files it may open, and how much it takes of the machine.

use forebay_doors::native::ProcessFigures;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::log::{self, Level};

/// Descriptors that connections leave to everything else: segments, images, reads, a backup, listeners, the runtime.
/// Of a small limit it is a quarter.
const RESERVE: u64 = 128;
/// With fewer the server has hardly any connections.
const FEW: u64 = 256;

/// Raises the soft limit of open files to the hard one. Answers how many connections that leaves to all doors
/// together, unless the system sets no limit.
pub(super) fn raise_open_files(max_connections: usize) -> Option<usize> {
    let before = getrlimit(Resource::Nofile);
    if before.current != before.maximum {
        let raised = Rlimit { current: before.maximum, maximum: before.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "the limit of open files cannot be raised");
        }
    }
    let limit = getrlimit(Resource::Nofile).current?;
    let connections = connections_within(limit);
    let text = format!(
        "open files are limited to {limit}, so all APIs together have {connections} connections at most"
    );
    let facts = [("open_files", limit.into()), ("connections", connections.into())];
    let is_tight = limit < FEW || connections < max_connections as u64 / 2;
    log::line(if is_tight { Level::Warn } else { Level::Debug }, &text, &facts);
    Some(usize::try_from(connections).unwrap_or(usize::MAX))
}

fn connections_within(limit: u64) -> u64 {
    (limit - RESERVE.min(limit.div_ceil(4))).max(1)
}

/// Figures of the process, where the system tells.
pub(super) fn figures() -> ProcessFigures {
    ProcessFigures {
        memory: resident_memory(),
        open_files: std::fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as u64),
        open_files_max: getrlimit(Resource::Nofile).current,
    }
}

fn resident_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_data_folder() {
        assert_eq!([64, 256, 1_024, 20_000].map(connections_within), [48, 192, 896, 19_872]);
        assert_eq!([0, 1].map(connections_within), [1, 1]);
    }
}
