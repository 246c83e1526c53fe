//! When a lease was granted, told from its grant number, in bounded memory.
//!
//! A lease carries its number anyway, and numbers are given in order. So it is enough to know which numbers
//! were given when: one entry for each turn that granted something, rather than a time for each of a million
//! leases. Entries grow old together. An age of an hour need not be known to the microsecond, so neighbours
//! are joined once the time between them is small beside their age. What remains is dense for the last
//! seconds and sparse for the last days: less than twenty kilobytes for a shard after ten million turns in a
//! month, and never more than a hundred. It is written by hand because what one can get forgets by count or
//! by time, and a lease may be kept alive for as long as its consumer likes.

use std::ops::Range;

use forebay_core::types::{Grant, Timestamp};

/// How far a short age may be off, in microseconds.
const ERROR_MIN: u64 = 100;
/// A longer age may be off by one part in so many.
const ERROR_PART: u64 = 50;
/// Not worth thinning below this.
const THIN_MIN: usize = 256;
/// Two neighbours that were not joined span more than a 25th of their age, so each pair takes the logarithm
/// of the age on by that much. From 5 ms, where that is as long as the least error allows, to the end of time
/// these are fewer than 1,000 pairs; below it are 25 more. Thinning happens when they are twice as many.
const ENTRIES_MAX: usize = 4_096;

#[derive(Debug, Clone, Default)]
pub struct GrantClock {
    /// Rising in grants and times, without gaps in the grants.
    entries: Vec<Entry>,
    /// How many were left by the last thinning.
    left: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// The first grant that is not part of it. It begins where the one before ends.
    end: Grant,
    first: Timestamp,
    last: Timestamp,
}

impl GrantClock {
    /// All grants below `next` that were not noted before were given at `now`.
    pub fn note(&mut self, next: Grant, now: Timestamp) {
        let noted = self.entries.last().map_or(Grant(0), |entry| entry.end);
        if next <= noted {
            return;
        }
        // After a clock that was set back, new grants count as given with the last ones until it has caught
        // up. Times that fall would make the list worthless.
        let now = self.entries.last().map_or(now, |entry| entry.last.max(now));
        let fresh = Entry { end: next, first: now, last: now };
        match self.entries.last_mut().and_then(|last| Some((last.joined(fresh, now)?, last))) {
            Some((joined, last)) => *last = joined,
            None => self.push(fresh, now),
        }
    }

    /// When a grant was given, if it was noted: off by at most 2 % of its age, or by 100 µs.
    pub fn at(&self, grant: Grant) -> Option<Timestamp> {
        let index = self.entries.partition_point(|entry| entry.end <= grant);
        self.entries.get(index).map(Entry::middle)
    }

    /// As [`GrantClock::at`], with the grants around it that were given at the same time.
    pub fn around(&self, grant: Grant) -> Option<(Timestamp, Range<Grant>)> {
        let index = self.entries.partition_point(|entry| entry.end <= grant);
        let entry = self.entries.get(index)?;
        let begin = index.checked_sub(1).map_or(Grant(0), |before| self.entries[before].end);
        Some((entry.middle(), begin..entry.end))
    }

    fn push(&mut self, entry: Entry, now: Timestamp) {
        // Thinning looks at all of them, which is paid for by those that came since: at least as many.
        if self.entries.len() >= (2 * self.left).max(THIN_MIN) {
            self.thin(now);
        }
        assert!(self.entries.len() < ENTRIES_MAX, "ages grow by a part of themselves from entry to entry");
        self.entries.push(entry);
    }

    fn thin(&mut self, now: Timestamp) {
        self.entries.dedup_by(|next, kept| match kept.joined(*next, now) {
            Some(joined) => {
                *kept = joined;
                true
            }
            None => false,
        });
        self.left = self.entries.len();
    }
}

impl Entry {
    /// Both as one, if the middle of it is near enough to all of its grants. It stays so, since ages only
    /// grow.
    fn joined(&self, next: Entry, now: Timestamp) -> Option<Entry> {
        let age = now.0.saturating_sub(next.last.0);
        let span = next.last.0 - self.first.0;
        (span / 2 <= (age / ERROR_PART).max(ERROR_MIN)).then_some(Entry { first: self.first, ..next })
    }

    fn middle(&self) -> Timestamp {
        Timestamp(self.first.0 + (self.last.0 - self.first.0) / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is_near(told: Timestamp, exact: Timestamp, now: Timestamp) -> bool {
        // Halves are rounded.
        told.0.abs_diff(exact.0) <= ((now.0 - exact.0) / ERROR_PART).max(ERROR_MIN) + 1
    }

    /// Distances from none to days, as numbers that are spread evenly over their lengths.
    fn distance() -> impl Strategy<Value = u64> {
        prop_oneof![
            4 => (0u32..12, any::<u64>()).prop_map(|(bits, any)| any % (1 << bits)),
            1 => (0u32..40, any::<u64>()).prop_map(|(bits, any)| any % (1 << bits)),
        ]
    }

    proptest! {
        #[test]
        fn ages_are_near_the_exact_ones_however_much_later_one_asks(
            turns in prop::collection::vec((distance(), 0u64..4), 1..3_000),
            later in prop::collection::vec(distance(), 1..4),
        ) {
            let mut clock = GrantClock::default();
            let mut exact = Vec::new();
            let mut now = Timestamp(1_700_000_000_000_000);
            for (turn, (distance, count)) in turns.into_iter().enumerate() {
                now.0 += distance;
                exact.resize(exact.len() + count as usize, now);
                clock.note(Grant(exact.len() as u64), now);
                if turn % 64 == 0 {
                    for (grant, &exact) in exact.iter().enumerate() {
                        let told = clock.at(Grant(grant as u64)).unwrap();
                        prop_assert!(is_near(told, exact, now), "{told:?} is not {exact:?} at {now:?}");
                    }
                }
            }
            for distance in later {
                now.0 += distance;
                for (grant, &exact) in exact.iter().enumerate() {
                    let told = clock.at(Grant(grant as u64)).unwrap();
                    prop_assert!(is_near(told, exact, now), "{told:?} is not {exact:?} at {now:?}");
                }
            }
            prop_assert_eq!(clock.at(Grant(exact.len() as u64)), None);
        }
    }

    #[test]
    fn ten_million_turns_leave_a_few_thousand_entries() {
        let mut clock = GrantClock::default();
        let mut samples = Vec::new();
        let mut dice = 0x9e37_79b9_7f4a_7c15u64;
        let mut now = Timestamp(1_700_000_000_000_000);
        let mut entries_most = 0;
        for turn in 1..=10_000_000u64 {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            // Mostly up to a second, and now and then up to a day.
            let bits = if dice >> 54 == 0 { 37 } else { 1 + (dice >> 20) % 20 };
            now.0 += (dice >> 25) % (1 << bits);
            clock.note(Grant(turn), now);
            entries_most = entries_most.max(clock.entries.len());
            if turn % 9_973 == 0 {
                samples.push((Grant(turn - 1), now));
            }
            if turn % 2_000_000 == 0 {
                for &(grant, exact) in &samples {
                    assert!(is_near(clock.at(grant).unwrap(), exact, now));
                }
            }
        }
        assert!(entries_most < ENTRIES_MAX, "{entries_most} entries");
    }

    #[test]
    fn no_choice_of_distances_gets_past_the_limit() {
        let mut clock = GrantClock::default();
        // Each turn is a little less old than the one before, from the age of the clock down to a
        // microsecond, so that there is something to keep at every distance.
        let end = Timestamp(u64::MAX);
        let mut age = u64::MAX as f64;
        let mut next = 0;
        while age > 1.0 {
            next += 1;
            clock.note(Grant(next), Timestamp(end.0 - age as u64));
            age *= 0.9999;
        }
        assert!(next > 100_000);
        clock.thin(end);
        assert!(clock.entries.len() < ENTRIES_MAX / 2, "{} entries", clock.entries.len());
    }

    #[test]
    fn what_was_never_noted_has_no_time() {
        let mut clock = GrantClock::default();
        assert_eq!(clock.at(Grant(0)), None);
        clock.note(Grant(0), Timestamp(7));
        assert_eq!(clock.at(Grant(0)), None);
        clock.note(Grant(3), Timestamp(1_000));
        clock.note(Grant(3), Timestamp(9_000));
        clock.note(Grant(2), Timestamp(9_000));
        assert_eq!(clock.at(Grant(2)), Some(Timestamp(1_000)));
        assert_eq!(clock.at(Grant(3)), None);
        clock.note(Grant(4), Timestamp(10_000));
        assert_eq!(clock.at(Grant(3)), Some(Timestamp(10_000)));
    }

    #[test]
    fn a_clock_that_was_set_back_does_no_harm() {
        let mut clock = GrantClock::default();
        clock.note(Grant(1), Timestamp(5_000_000));
        clock.note(Grant(2), Timestamp(1_000_000));
        clock.note(Grant(3), Timestamp(6_000_000));
        let times = [0, 1, 2].map(|grant| clock.at(Grant(grant)).unwrap().0);
        assert_eq!(times, [5_000_000, 5_000_000, 6_000_000]);
    }
}
