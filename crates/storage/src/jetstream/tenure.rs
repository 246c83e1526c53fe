//! How long an owner may serve, and how long its successor waits, as plain values.
//!
//! The owner counts from the moment it *sent* the newest message whose acknowledgement counts: that acknowledgement
//! shows that there was no newer claim when the message was sent. The successor counts from the moment it first *saw*
//! the last record of the owner, which is later, and waits for longer. So the owner has stopped serving when the
//! successor begins, as long as one clock does not run faster than the other by a quarter.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_core::fault::{Fault, planted};
use forebay_core::types::Timestamp;

/// When each message of an attempt was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct SentTimes(VecDeque<(u64, Timestamp)>);

impl SentTimes {
    pub(crate) fn sent(&mut self, nth: u64, now: Timestamp) {
        self.0.push_back((nth, now));
    }

    /// The answer to a message counts. Returns when the message was sent.
    pub(crate) fn counted(&mut self, nth: u64) -> Option<Timestamp> {
        let mut sent_at = None;
        while let Some((_, at)) = self.0.front().filter(|(sent, _)| *sent <= nth) {
            sent_at = Some(*at);
            self.0.pop_front();
        }
        sent_at
    }

    /// Since when the oldest message has been waiting for its answer.
    pub(crate) fn oldest(&self) -> Option<Timestamp> {
        self.0.front().map(|(_, at)| *at)
    }

    /// Answers to this attempt do not count any more.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The end of the log as a standby saw it, and since when.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Watched {
    pub(crate) last: u64,
    pub(crate) since: Option<Timestamp>,
}

impl Watched {
    /// The log ends with this record now. Returns for how long nothing was written.
    pub(crate) fn look(&mut self, now: Timestamp, last: u64) -> Duration {
        if self.last != last || self.since.is_none() {
            *self = Watched { last, since: Some(now) };
        }
        self.since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// How long a new owner still waits. It may have seen the last record of the former owner only in its claim.
    pub(crate) fn rest(&self, now: Timestamp, last_of_others: u64, tenure: Duration) -> Duration {
        let since = self.since.filter(|_| last_of_others <= self.last).unwrap_or(now);
        silence(tenure).saturating_sub(now.since(since))
    }
}

/// After so much silence the owner does not serve any more, whatever its clock does.
pub(crate) fn silence(tenure: Duration) -> Duration {
    if planted(Fault::TakesOverAtOnce) { Duration::ZERO } else { tenure + tenure / 4 }
}
