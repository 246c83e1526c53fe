//! Clocks, medians, memory, and the yardstick.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// How long something took: by the clock on the wall, and of this thread's time on a processor. The two
/// differ by the cause of the wait: the disk, or a neighbour.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Took {
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
}

impl Took {
    pub(crate) fn add(&mut self, other: Took) {
        self.wall += other.wall;
        self.cpu += other.cpu;
    }
}

pub(crate) struct Stopwatch {
    wall: Instant,
    cpu: Duration,
}

impl Stopwatch {
    pub(crate) fn start() -> Stopwatch {
        Stopwatch { cpu: thread_cpu(), wall: Instant::now() }
    }

    pub(crate) fn took(&self) -> Took {
        Took { wall: self.wall.elapsed(), cpu: thread_cpu() - self.cpu }
    }
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The middle one; of an even number, the lower of the two.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value that this share of all is below.
pub(crate) fn quantile(values: &mut [f64], share: f64) -> f64 {
    assert!(!values.is_empty(), "there is no median of nothing");
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}

/// A fixed piece of work of the same kind as a message makes: one yardstick is a key put into a map of
/// 1,024 ordered keys, the oldest taken out of it, and a hundred bytes copied to the next place in a
/// buffer of a mebibyte. It must never change: rates of different days are compared through it.
pub(crate) struct Yardstick {
    map: BTreeMap<u64, u64>,
    next: u64,
    buffer: Vec<u8>,
    at: usize,
}

const YARDSTICK_KEYS: u64 = 1_024;
const YARDSTICK_BYTES: usize = 100;
const YARDSTICK_BUFFER: usize = 1 << 20;

impl Yardstick {
    pub(crate) fn new() -> Yardstick {
        let map = (0..YARDSTICK_KEYS).map(|key| (key, key)).collect();
        Yardstick { map, next: YARDSTICK_KEYS, buffer: vec![0; YARDSTICK_BUFFER], at: 0 }
    }

    pub(crate) fn repeat(&mut self, times: u64) {
        let bytes = black_box([7; YARDSTICK_BYTES]);
        for _ in 0..times {
            self.map.insert(self.next, self.next);
            black_box(self.map.remove(&(self.next - YARDSTICK_KEYS)));
            self.next += 1;
            if self.at + YARDSTICK_BYTES > self.buffer.len() {
                self.at = 0;
            }
            self.buffer[self.at..self.at + YARDSTICK_BYTES].copy_from_slice(&bytes);
            self.at += YARDSTICK_BYTES;
        }
        black_box(&self.buffer);
    }
}

/// Memory of a process in KiB, as the kernel counts it: resident now, and at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) resident: u64,
    pub(crate) peak: u64,
}

impl Memory {
    pub(crate) fn now() -> std::io::Result<Memory> {
        Memory::of("self")
    }

    /// Of another process, by its number.
    pub(crate) fn of(process: &str) -> std::io::Result<Memory> {
        let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next()).and_then(|it| it.parse().ok());
            number.ok_or_else(|| std::io::Error::other(format!("the kernel does not say {name}")))
        };
        Ok(Memory { resident: field("VmRSS:")?, peak: field("VmHWM:")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_does_not_mind_the_order() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.0);
        let mut hundred: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(quantile(&mut hundred, 0.1), 10.0);
    }

    #[test]
    fn the_yardstick_keeps_its_size() {
        let mut yardstick = Yardstick::new();
        yardstick.repeat(20_000);
        assert_eq!(yardstick.map.len() as u64, YARDSTICK_KEYS);
        assert_eq!(yardstick.buffer.len(), YARDSTICK_BUFFER);
    }
}
