//! When leased messages were published, told from the numbers of their leases, in bounded memory.
//!
//! A delivery brings the time of each message with it, and messages of one batch have the same. So a delivery is mostly
//! one entry here, and an answer finds it by the number of its lease. The last `RUNS_MAX` entries are kept; of leases
//! that are older the stream still knows the time to a tenth of a second.

use std::collections::VecDeque;

use forebay_core::types::{Grant, Timestamp};

/// Entries that are kept, of 24 bytes each.
const RUNS_MAX: usize = 65_536;

#[derive(Debug, Clone, Default)]
pub struct Publications {
    /// Rising in grants. There are gaps where leases were given up before their messages left.
    runs: VecDeque<Run>,
}

/// Grants that follow each other, of messages that were published at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    first: Grant,
    /// The first grant after them.
    end: Grant,
    published: Timestamp,
}

impl Publications {
    /// The next so many grants are of messages with these times. Deliveries come mostly in the order of their grants;
    /// one that had to wait for the disk comes later.
    pub fn note(&mut self, first: Grant, published: impl Iterator<Item = Timestamp>) {
        let mut next = first;
        let mut run: Option<Run> = None;
        for published in published {
            let end = next.plus(1);
            match &mut run {
                Some(run) if run.published == published => run.end = end,
                _ => {
                    if let Some(run) = run.replace(Run { first: next, end, published }) {
                        self.add(run);
                    }
                }
            }
            next = end;
        }
        if let Some(run) = run {
            self.add(run);
        }
    }

    fn add(&mut self, run: Run) {
        match self.runs.back_mut() {
            Some(last) if last.end == run.first && last.published == run.published => last.end = run.end,
            Some(last) if last.first > run.first => {
                let at = self.runs.partition_point(|other| other.first < run.first);
                self.runs.insert(at, run);
            }
            _ => self.runs.push_back(run),
        }
        if self.runs.len() > RUNS_MAX {
            self.runs.pop_front();
        }
    }

    /// When the message of a lease was published, and the first grant after it of which that need not be so.
    pub fn around(&self, grant: Grant) -> Option<(Timestamp, Grant)> {
        let after = self.runs.partition_point(|run| run.first <= grant);
        let run = self.runs.get(after.checked_sub(1)?)?;
        (grant < run.end).then_some((run.published, run.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(times: &mut Publications, first: u64, published: &[u64]) {
        times.note(Grant(first), published.iter().map(|at| Timestamp(*at)));
    }

    #[test]
    fn messages_of_one_batch_are_one_entry() {
        let mut times = Publications::default();
        note(&mut times, 10, &[7, 7, 7, 9]);
        note(&mut times, 14, &[9, 9]);
        assert_eq!(times.runs.len(), 2);
        assert_eq!(times.around(Grant(11)), Some((Timestamp(7), Grant(13))));
        assert_eq!(times.around(Grant(13)), Some((Timestamp(9), Grant(16))));
        assert_eq!((times.around(Grant(9)), times.around(Grant(16))), (None, None));
    }

    #[test]
    fn a_delivery_that_waited_for_the_disk_finds_its_place() {
        let mut times = Publications::default();
        note(&mut times, 20, &[5, 6]);
        note(&mut times, 10, &[1, 2]);
        note(&mut times, 15, &[]);
        let at = |grant| times.around(Grant(grant)).map(|(at, _)| at.0);
        assert_eq!([9, 10, 11, 12, 20, 21].map(at), [None, Some(1), Some(2), None, Some(5), Some(6)]);
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut times = Publications::default();
        for n in 0..RUNS_MAX as u64 + 3 {
            note(&mut times, n, &[n]);
        }
        assert_eq!((times.runs.len(), times.around(Grant(2))), (RUNS_MAX, None));
        assert_eq!(times.around(Grant(3)), Some((Timestamp(3), Grant(4))));
    }
}
