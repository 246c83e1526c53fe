//! The leases of the messages in hand: until when each lasts, and which must be renewed now.
//!
//! It does no I/O and takes the time as an argument.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Instant;
use crate::consumer::Lease;
use crate::idempotency::Claim;
use crate::job::JobInfo;
use forebay_model::limits::YEAR;

/// How long a lease lasts if the group's settings do not say, and the range that is believed.
const DEFAULT: Duration = Duration::from_secs(30);
const MIN: Duration = Duration::from_millis(100);
/// Leases are renewed when a third of their time is over.
const RENEW_AFTER: u32 = 3;

pub(super) struct Leases {
    held: HashMap<Lease, Held>,
    /// How long a lease lasts from each renewal.
    lasts: Duration,
    /// The answer to the last renewal has not come yet. The next one waits for it.
    is_renewing: bool,
}

struct Held {
    info: JobInfo,
    deadline: Instant,
}

/// Leases to extend, in order, and the claims on their work.
pub(super) struct Renewal {
    pub(super) leases: Vec<Lease>,
    pub(super) claims: Vec<Claim>,
}

impl Leases {
    pub(super) fn new() -> Leases {
        Leases { held: HashMap::new(), lasts: DEFAULT, is_renewing: false }
    }

    /// Takes the duration from the group's settings.
    pub(super) fn set_duration(&mut self, message_timeout: Option<Duration>) {
        self.lasts = message_timeout.unwrap_or(DEFAULT).clamp(MIN, YEAR);
    }

    /// How long a lease lasts from each renewal.
    pub(super) fn duration(&self) -> Duration {
        self.lasts
    }

    pub(super) fn add(&mut self, now: Instant, lease: Lease, info: JobInfo, deadline: Instant) {
        // The group may have been given a longer timeout since it was asked.
        self.lasts = self.lasts.max(deadline - now);
        self.held.insert(lease, Held { info, deadline });
    }

    /// The message of a lease that ends. `None` if the lease was lost before.
    pub(super) fn remove(&mut self, lease: &Lease) -> Option<JobInfo> {
        self.held.remove(lease).map(|held| held.info)
    }

    /// Whether the lease is not known to have ended.
    pub(super) fn has(&self, lease: &Lease) -> bool {
        self.held.contains_key(lease)
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn messages(&self) -> impl Iterator<Item = &JobInfo> {
        self.held.values().map(|held| &held.info)
    }

    /// Every message in hand. The connection is gone, or the worker leaves.
    pub(super) fn take_all(&mut self) -> Vec<JobInfo> {
        self.is_renewing = false;
        self.held.drain().map(|(_, held)| held.info).collect()
    }

    /// The leases to renew now. The next renewal waits for [`Leases::renewed`].
    pub(super) fn renew(&mut self, now: Instant) -> Option<Renewal> {
        if self.is_renewing {
            return None;
        }
        let (enough, until) = (now + self.lasts - self.lasts / RENEW_AFTER, now + self.lasts);
        let mut renewal = Renewal { leases: Vec::new(), claims: Vec::new() };
        for (lease, held) in self.held.iter_mut().filter(|(_, held)| held.deadline < enough) {
            held.deadline = until;
            renewal.leases.push(*lease);
            renewal.claims.extend(held.info.claim().cloned());
        }
        if renewal.leases.is_empty() {
            return None;
        }
        renewal.leases.sort_unstable();
        self.is_renewing = true;
        Some(renewal)
    }

    /// The renewal was answered.
    pub(super) fn renewed(&mut self) {
        self.is_renewing = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_wire::v1;

    use super::*;
    use crate::clock;

    const SECOND: Duration = Duration::from_secs(1);

    fn add(leases: &mut Leases, now: Instant, seq: u64, lasts: Duration) {
        let info = JobInfo::new(Arc::from("s"), Arc::from("g"), seq, 1, v1::Message::default());
        leases.add(now, Lease { epoch: 1, seq, grant: seq }, info, now + lasts);
    }

    #[test]
    fn a_lease_is_renewed_after_a_third_of_its_time_and_one_renewal_at_a_time() {
        let now = clock::now();
        let mut leases = Leases::new();
        add(&mut leases, now, 2, 30 * SECOND);
        assert!(leases.renew(now + 9 * SECOND).is_none(), "it is too early");
        add(&mut leases, now, 1, 30 * SECOND);
        add(&mut leases, now + 10 * SECOND, 3, 30 * SECOND);
        let renewal = leases.renew(now + 11 * SECOND).expect("two are due");
        assert_eq!(renewal.leases.iter().map(|lease| lease.seq).collect::<Vec<_>>(), [1, 2]);
        assert!(leases.renew(now + 25 * SECOND).is_none(), "the first is not answered yet");
        leases.renewed();
        let renewal = leases.renew(now + 25 * SECOND).expect("all are due");
        assert_eq!(renewal.leases.len(), 3);
        assert_eq!(leases.take_all().len(), 3);
        assert_eq!(leases.len(), 0);
    }

    #[test]
    fn a_longer_timeout_of_the_group_is_noticed() {
        let now = clock::now();
        let mut leases = Leases::new();
        leases.set_duration(Some(Duration::ZERO));
        assert_eq!(leases.duration(), MIN);
        add(&mut leases, now, 1, 90 * SECOND);
        assert_eq!(leases.duration(), 90 * SECOND);
    }
}
