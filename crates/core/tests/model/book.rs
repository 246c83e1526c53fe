//! Where every message of a group stands, one message at a time.
//!
//! The same book is kept three times: as the group goes on in service, as the log alone tells it, and as an
//! image and the log after it do. What a restart brings back is one of the latter two.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_core::entry::{Entry, Failure, Route};
use forebay_core::group::{Bound, Lease};
use forebay_core::types::{ConsumerId, Epoch, Grant, GroupId, JobId, Seq, SeqRange, Timestamp};

/// Failures of one message that are remembered.
const HISTORY_MAX: usize = 5;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum State {
    Untouched,
    Ready,
    Waiting {
        until: Timestamp,
    },
    Leased {
        consumer: Option<ConsumerId>,
        lease: Lease,
        granted: Timestamp,
        deadline: Timestamp,
        bound: Bound,
    },
    Parked,
    Moving {
        route: Route,
    },
    /// The group is done with it, and it still has to be brought to another stream.
    Sent {
        route: Route,
    },
    Settled(How),
}

/// Why a group is done with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// The group began after it.
    Before,
    Acked,
    Skipped,
    Expired,
    Dropped,
    Moved,
    Purged,
    Discarded,
}

#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) state: State,
    pub(crate) attempts: u32,
    /// When it was first handed out, if it was.
    pub(crate) first: Timestamp,
    /// It was handed out before, whether that counts or not.
    pub(crate) seen: bool,
    /// The lease that a late ack may still name.
    pub(crate) last: Option<Lease>,
    pub(crate) replayed: bool,
    pub(crate) history: Vec<Failure>,
}

impl Item {
    pub(crate) fn new(state: State) -> Item {
        Item {
            state,
            attempts: 0,
            first: Timestamp::ZERO,
            seen: false,
            last: None,
            replayed: false,
            history: Vec::new(),
        }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self.state, State::Parked | State::Sent { .. } | State::Settled(_))
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.state == State::Parked
    }

    pub(crate) fn is_sent(&self) -> bool {
        matches!(self.state, State::Sent { .. })
    }

    pub(crate) fn is_leased(&self) -> bool {
        matches!(self.state, State::Leased { .. })
    }

    pub(crate) fn is_on_way_by(&self, job: JobId) -> bool {
        matches!(&self.state, State::Moving { route } if route.job() == Some(job))
    }

    /// Counts against the window.
    pub(crate) fn is_in_process(&self) -> bool {
        !self.is_terminal() && self.state != State::Untouched
    }

    pub(crate) fn handed(&mut self, at: Timestamp) {
        if self.attempts == 0 {
            self.first = at;
        }
        self.seen = true;
        self.attempts += 1;
    }

    pub(crate) fn settle(&mut self, how: How) {
        *self = Item::new(State::Settled(how));
    }

    /// Its time is over, or the stream was full, and it goes to another stream.
    pub(crate) fn send(&mut self, route: Route) {
        *self = Item { attempts: self.attempts, ..Item::new(State::Sent { route }) };
    }

    pub(crate) fn remember(&mut self, failure: Failure) {
        self.history.push(failure);
        if self.history.len() > HISTORY_MAX {
            self.history.remove(0);
        }
    }

    pub(crate) fn park(&mut self, failure: Failure) {
        self.remember(failure);
        self.state = State::Parked;
        self.last = None;
        self.replayed = false;
    }

    /// On its way to another stream. Earlier leases of it do not count any more.
    pub(crate) fn set_out(&mut self, route: Route) {
        self.state = State::Moving { route };
    }

    /// Not on its way any more, and as it was before.
    pub(crate) fn stay(&mut self) {
        assert!(matches!(self.state, State::Moving { .. }), "only what is on its way comes back");
        self.state = State::Ready;
    }

    pub(crate) fn replay(&mut self) {
        self.state = State::Ready;
        self.attempts = 0;
        self.last = None;
        self.replayed = true;
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Book {
    pub(crate) items: BTreeMap<Seq, Item>,
    /// When jobs were started.
    pub(crate) jobs: BTreeMap<JobId, Timestamp>,
}

impl Book {
    pub(crate) fn starting_at(floor: Seq, last: Seq) -> Book {
        let mut book = Book::default();
        for seq in (1..=last.0).map(Seq) {
            let state = if seq <= floor { State::Settled(How::Before) } else { State::Untouched };
            book.items.insert(seq, Item::new(state));
        }
        book
    }

    pub(crate) fn item(&mut self, seq: Seq) -> &mut Item {
        self.items.get_mut(&seq).unwrap_or_else(|| panic!("message {seq} was never published"))
    }

    /// Whether a job covers this parked message. A message that was parked again after the job started is not
    /// covered.
    pub(crate) fn is_meant(&self, job: JobId, seq: Seq) -> bool {
        let item = &self.items[&seq];
        let parked = item.history.last().filter(|_| item.is_parked());
        parked.is_some_and(|failure| self.jobs.get(&job).is_none_or(|started| failure.at <= *started))
    }

    pub(crate) fn count(&self, is: impl Fn(&Item) -> bool) -> u64 {
        self.items.values().filter(|item| is(item)).count() as u64
    }

    pub(crate) fn count_through(&self, through: Seq, is: impl Fn(&Item) -> bool) -> u64 {
        self.items.range(..=through).filter(|(_, item)| is(item)).count() as u64
    }

    /// Everything up to here is settled or parked. Replayed messages count as settled.
    pub(crate) fn floor(&self) -> Seq {
        let open = self.items.iter().find(|(_, item)| !item.is_terminal() && !item.replayed);
        open.map_or(Seq(self.items.len() as u64), |(&seq, _)| Seq(seq.0 - 1))
    }

    pub(crate) fn reset(&mut self, floor: Seq, parked: bool) {
        for (&seq, item) in &mut self.items {
            if item.is_parked() && !parked || item.is_sent() {
                continue;
            }
            let state = if seq <= floor { State::Settled(How::Before) } else { State::Untouched };
            *item = Item::new(state);
        }
    }

    pub(crate) fn purge(&mut self, through: Seq, parked: bool) {
        for (_, item) in self.items.range_mut(..=through) {
            let stays = matches!(item.state, State::Settled(_)) || item.is_parked() && !parked;
            if !stays {
                item.settle(How::Purged);
            }
        }
    }

    /// After a restart: connections are gone, and with them their leases.
    pub(crate) fn recovered(&self) -> Book {
        let mut book = self.clone();
        for item in book.items.values_mut() {
            match &mut item.state {
                State::Leased { bound: Bound::Connection, .. } => {
                    item.state = State::Ready;
                    item.last = None;
                }
                State::Leased { consumer, .. } => *consumer = None,
                _ => {}
            }
        }
        book
    }

    /// What an entry of the log says about the messages of this group.
    pub(crate) fn apply(&mut self, epoch: Epoch, entry: &Entry) {
        let nobody = |seq| Lease { epoch, seq, grant: Grant(0) };
        match entry {
            Entry::Handed { at, ranges, .. } => each(ranges, |seq| {
                let item = self.item(seq);
                item.handed(*at);
                item.last = None;
                let deadline = Timestamp(u64::MAX);
                let (lease, bound) = (nobody(seq), Bound::Connection);
                item.state = State::Leased { consumer: None, lease, granted: *at, deadline, bound };
            }),
            Entry::Leased { at, duration, runs, .. } => {
                for run in runs {
                    for (n, seq) in run.range.seqs().enumerate() {
                        self.leased(epoch, seq, run.grant.plus(n as u64), *at, *duration);
                    }
                }
            }
            Entry::Acked { ranges, .. } => each(ranges, |seq| self.item(seq).settle(How::Acked)),
            Entry::Skipped { ranges, .. } => each(ranges, |seq| self.item(seq).settle(How::Skipped)),
            Entry::Returned { ranges, .. } => each(ranges, |seq| {
                let item = self.item(seq);
                item.attempts = item.attempts.saturating_sub(1);
                item.last = None;
                item.state = State::Ready;
            }),
            Entry::Snoozed { until, ranges, .. } => each(ranges, |seq| {
                let item = self.item(seq);
                item.attempts = item.attempts.saturating_sub(1);
                item.last = None;
                item.state = State::Waiting { until: *until };
            }),
            Entry::Failed { messages, .. } => {
                for message in messages {
                    let item = self.item(message.seq);
                    // The first lease may not have been written, but the failure says that there was one.
                    if item.attempts == 0 {
                        item.first = message.failure.at;
                    }
                    item.attempts = item.attempts.max(message.failure.attempt);
                    item.seen = true;
                    item.remember(message.failure.clone());
                    item.state = State::Waiting { until: message.until };
                }
            }
            Entry::Parked { messages, .. } => {
                for message in messages {
                    let item = self.item(message.seq);
                    item.attempts = item.attempts.max(message.failure.attempt);
                    item.seen |= item.attempts > 0;
                    item.park(message.failure.clone());
                }
            }
            Entry::Moving { route, seqs, .. } => each(seqs, |seq| {
                self.item(seq).set_out(route.clone());
            }),
            Entry::Sent { route, ranges, .. } => each(ranges, |seq| self.item(seq).send(route.clone())),
            Entry::Stayed { ranges, .. } => each(ranges, |seq| self.item(seq).stay()),
            Entry::JobStarted { job, at, .. } => {
                self.jobs.insert(*job, *at);
            }
            Entry::Replayed { job, ranges, .. } => each(ranges, |seq| {
                if self.is_meant(*job, seq) {
                    self.item(seq).replay();
                }
            }),
            Entry::Discarded { job, ranges, .. } => each(ranges, |seq| {
                if self.is_meant(*job, seq) {
                    self.item(seq).settle(How::Discarded);
                }
            }),
            Entry::Extended { deadline: until, ranges, .. } => each(ranges, |seq| {
                if let State::Leased { deadline, .. } = &mut self.item(seq).state {
                    *deadline = *until;
                }
            }),
            Entry::Reset { floor, parked, .. } => self.reset(*floor, *parked),
            Entry::Purged { through, parked, .. } => self.purge(*through, *parked),
            _ => {}
        }
    }

    fn leased(&mut self, epoch: Epoch, seq: Seq, grant: Grant, at: Timestamp, duration: Duration) {
        let lease = Lease { epoch, seq, grant };
        let item = self.item(seq);
        item.handed(at);
        item.last = Some(lease);
        let (granted, deadline) = (at, at + duration);
        item.state = State::Leased { consumer: None, lease, granted, deadline, bound: Bound::Clock };
    }
}

fn each(ranges: &[SeqRange], mut act: impl FnMut(Seq)) {
    for range in ranges {
        range.seqs().for_each(&mut act);
    }
}

/// The group whose messages an entry is about.
pub(crate) fn group_of(entry: &Entry) -> Option<GroupId> {
    match entry {
        Entry::Handed { group, .. }
        | Entry::Leased { group, .. }
        | Entry::Acked { group, .. }
        | Entry::Failed { group, .. }
        | Entry::Returned { group, .. }
        | Entry::Snoozed { group, .. }
        | Entry::Parked { group, .. }
        | Entry::Skipped { group, .. }
        | Entry::Moving { group, .. }
        | Entry::Replayed { group, .. }
        | Entry::Discarded { group, .. }
        | Entry::KeysFound { group, .. }
        | Entry::JobStarted { group, .. }
        | Entry::JobEnded { group, .. }
        | Entry::JobPassed { group, .. }
        | Entry::Stayed { group, .. }
        | Entry::Sent { group, .. }
        | Entry::Extended { group, .. }
        | Entry::Reset { group, .. } => Some(*group),
        _ => None,
    }
}
