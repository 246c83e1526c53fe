//! The kernel's statistics of a process: processor time, bytes written, memory. On Linux alone.

use anyhow::Context as _;

/// The clock that `/proc` counts processor time by. Linux has used this value everywhere for decades.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Usage {
    pub(super) cpu_seconds: f64,
    /// Bytes that went to the disk. Known only if this user may trace the process.
    pub(super) written: Option<u64>,
    /// Bytes in memory.
    pub(super) resident: u64,
}

/// Of a process by its number, or of this one.
pub(super) fn usage(process: Option<u32>) -> anyhow::Result<Usage> {
    let process = process.map_or("self".to_owned(), |process| process.to_string());
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}"));
    let stat = read("stat").with_context(|| format!("/proc/{process} cannot be read"))?;
    let status = read("status").with_context(|| format!("/proc/{process} cannot be read"))?;
    let cpu_seconds = cpu_seconds(&stat).context("the process statistics of the kernel cannot be read")?;
    // A process that is ending has no memory any more.
    let resident = field(&status, "VmRSS:").unwrap_or(0) << 10;
    let written = read("io").ok().and_then(|io| field(&io, "write_bytes:"));
    Ok(Usage { cpu_seconds, written, resident })
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    // The name of the program is in parentheses and may hold anything; what follows is numbers.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS_PER_SECOND)
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_program_may_hold_anything() {
        let stat = "7 (a) 1 2 (b c) S 1 7 7 0 -1 4194560 95 0 0 0 150 50 0 0 20 0 1 0 9 8 7";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(cpu_seconds("7 (x) S 1"), None);
        assert_eq!(cpu_seconds(""), None);
        let status = "Name:\tx\nVmHWM:\t  900 kB\nVmRSS:\t  512 kB\n";
        assert_eq!((field(status, "VmRSS:"), field(status, "VmSwap:")), (Some(512), None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_used_something() {
        let usage = usage(None).expect("there is /proc");
        assert!(usage.resident > 100_000);
        assert!(super::usage(Some(u32::MAX)).is_err());
    }
}
