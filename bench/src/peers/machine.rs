//! The machine that everything is measured on, and the date.

use std::io::{Seek as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use super::results::Machine;

const SYNCS_LAST: Duration = Duration::from_millis(500);
const PAGE: usize = 4 << 10;
const FILE_BYTES: usize = 1 << 20;

pub(super) fn look(folder: &Path) -> std::io::Result<Machine> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let after = |text: String, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned())).unwrap_or_default()
    };
    let memory = after(read("/proc/meminfo"), "MemTotal");
    let kilobytes = memory.split_whitespace().next().and_then(|text| text.parse::<f64>().ok());
    Ok(Machine {
        processor: after(read("/proc/cpuinfo"), "model name"),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory_gb: kilobytes.unwrap_or(0.0) * 1024.0 / 1e9,
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        file_system: file_system(folder, &read("/proc/mounts")),
        syncs_per_second: syncs(folder)?,
    })
}

/// The kind of the file system that the folder is on: that of the longest path in the list that leads to it.
fn file_system(folder: &Path, mounts: &str) -> String {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        Some((words.next()?, words.next()?))
    });
    let over = mounts.filter(|(path, _)| folder.starts_with(path));
    over.max_by_key(|(path, _)| path.len()).map_or_else(String::new, |(_, kind)| kind.to_owned())
}

fn syncs(folder: &Path) -> std::io::Result<f64> {
    let path = folder.join("syncs");
    let mut file = std::fs::File::create(&path)?;
    file.write_all(&vec![0; FILE_BYTES])?;
    file.sync_all()?;
    let started = Instant::now();
    let mut count = 0;
    while started.elapsed() < SYNCS_LAST {
        file.rewind()?;
        file.write_all(&[1; PAGE])?;
        file.sync_data()?;
        count += 1;
    }
    std::fs::remove_file(&path)?;
    Ok(f64::from(count) / started.elapsed().as_secs_f64())
}

/// The date in UTC, as `2026-01-31`.
pub(super) fn today() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    date(since.as_secs() / 86_400)
}

/// The date of a day, counted from the first of 1970.
fn date(mut day: u64) -> String {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    for days in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_their_dates() {
        assert_eq!([date(0), date(59), date(364)], ["1970-01-01", "1970-03-01", "1970-12-31"]);
        assert_eq!([date(11_016), date(19_782), date(20_772)], ["2000-02-29", "2024-02-29", "2026-11-15"]);
    }

    #[test]
    fn a_folder_is_on_the_nearest_file_system_above_it() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /surely tmpfs rw 0 0\nnone /surely/not xfs rw 0 0\n";
        assert_eq!(file_system(Path::new("/surely/nothing"), mounts), "tmpfs");
        assert_eq!(file_system(Path::new("/elsewhere"), mounts), "ext4");
    }
}
