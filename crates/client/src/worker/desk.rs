//! The messages that a worker has in hand, and the decision which may begin now.
//!
//! The desk does no I/O: the pump adds messages, runners take work and bring back verdicts, and verdicts lie in `done`
//! until the pump fetches them. The time is an argument, so everything here is tested without waiting.
//!
//! A message lies in one of these places, and in one only:
//!
//! | Place | Why it is there |
//! | --- | --- |
//! | `ready` | It may begin as soon as there is room. |
//! | a key's followers | An earlier message of its key is in hand, and the group keeps keys in order. |
//! | a bulkhead's queue | Its turn came while its bulkhead was full. |
//! | a route's gathering | It waits for others, to go in one batch. |
//! | with a runner | It is being worked on. |
//! | `done` | It has a verdict. |

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use tokio::time::Instant;

use super::breaker::{Breaker, BreakerState, Gate};
use super::pace::Pace;
use crate::consumer::Lease;
use crate::job::JobInfo;

/// A message in hand.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) lease: Lease,
    pub(super) route: usize,
    pub(super) info: JobInfo,
}

/// The work of a runner: one message, or several of a route that takes batches.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) route: usize,
    pub(super) parcels: Vec<Parcel>,
}

/// The decision about a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Ack,
    /// Done before. Acked too.
    Duplicate,
    /// The handler has acked the message itself, with messages that it published.
    Finished,
    Retry {
        after: Option<Duration>,
        reason: String,
    },
    Park {
        reason: String,
    },
    Skip {
        reason: String,
    },
    /// Given back: the attempt does not count. Delivered again after a delay, if there is one.
    Return {
        after: Option<Duration>,
    },
    /// Given back, and the whole group pauses for as long.
    Throttled {
        after: Duration,
        reason: String,
    },
    /// Given back because the idempotency store does not answer. It would not for the next message either.
    NoStore {
        after: Duration,
    },
    /// The lease was lost before the handler ran.
    Lost,
}

impl Verdict {
    /// Whether it counts for the breaker as a failure, as a success, or not at all.
    fn is_failure(&self) -> Option<bool> {
        match self {
            Verdict::Retry { .. } | Verdict::Throttled { .. } => Some(true),
            Verdict::Ack | Verdict::Finished | Verdict::Park { .. } | Verdict::Skip { .. } => Some(false),
            Verdict::Duplicate | Verdict::Return { .. } | Verdict::NoStore { .. } | Verdict::Lost => None,
        }
    }

    /// Whether the next message of its key may go.
    fn is_terminal(&self) -> bool {
        matches!(self, Verdict::Ack | Verdict::Duplicate | Verdict::Finished | Verdict::Skip { .. })
    }
}

/// A message with its verdict.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) lease: Lease,
    pub(super) verdict: Verdict,
}

/// The answer to a runner that asks for work.
#[derive(Debug)]
pub(super) enum Taken {
    Work(Work),
    /// No work before this time, unless something changes.
    Later(Option<Instant>),
}

/// The settings of a route, as far as the desk needs them.
#[derive(Debug, Clone)]
pub(super) struct RouteTerms {
    pub(super) bulkhead: Option<usize>,
    /// How many messages a batch has at most, and how long the first of them waits for the others.
    pub(super) batch: Option<(usize, Duration)>,
}

#[derive(Debug)]
struct Bulkhead {
    limit: usize,
    running: usize,
    queue: VecDeque<Parcel>,
}

#[derive(Debug, Default)]
struct Gathering {
    parcels: VecDeque<Parcel>,
    /// When the first of them came.
    since: Option<Instant>,
}

/// The largest batch that is waited for with messages in hand.
const TOGETHER_MAX: usize = 1_000;
/// The part of a new measurement in the mean.
const MEAN_WEIGHT: f64 = 0.05;

#[derive(Debug)]
pub(super) struct Desk {
    routes: Vec<RouteTerms>,
    gathering: Vec<Gathering>,
    bulkheads: Vec<Bulkhead>,
    ready: VecDeque<Parcel>,
    /// Keys of messages in hand, with the messages that wait for them. `None`: the order of keys does not matter.
    keys: Option<HashMap<u64, VecDeque<Parcel>>>,
    hasher: RandomState,
    /// Jobs that run, and how many may.
    running: usize,
    limit: usize,
    /// Messages that runners work on.
    with_runners: usize,
    /// How many jobs may run after a service was overloaded. Grows with every success.
    throttled_to: Option<f64>,
    paused_until: Option<Instant>,
    pace: Option<Pace>,
    breaker: Option<Breaker>,
    /// Nothing more begins.
    closed: bool,
    job_mean: Option<f64>,
    done: Vec<Done>,
}

impl Desk {
    pub(super) fn new(routes: Vec<RouteTerms>, bulkheads: Vec<usize>, limit: usize) -> Desk {
        let bulkhead = |limit| Bulkhead { limit, running: 0, queue: VecDeque::new() };
        Desk {
            gathering: routes.iter().map(|_| Gathering::default()).collect(),
            routes,
            bulkheads: bulkheads.into_iter().map(bulkhead).collect(),
            ready: VecDeque::new(),
            keys: None,
            hasher: RandomState::new(),
            running: 0,
            limit,
            with_runners: 0,
            throttled_to: None,
            paused_until: None,
            pace: None,
            breaker: None,
            closed: false,
            job_mean: None,
            done: Vec::new(),
        }
    }

    pub(super) fn set_pace(&mut self, pace: Pace) {
        self.pace = Some(pace);
    }

    pub(super) fn set_breaker(&mut self, breaker: Breaker) {
        self.breaker = Some(breaker);
    }

    /// Whether messages of one key go one after the other. Called while no message is in hand.
    pub(super) fn keep_keys_in_order(&mut self, yes: bool) {
        self.keys = match (yes, self.keys.take()) {
            (true, Some(keys)) => Some(keys),
            (true, None) => Some(HashMap::new()),
            (false, _) => None,
        };
    }

    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// How many jobs may run now.
    pub(super) fn limit(&self) -> usize {
        match self.throttled_to {
            Some(to) => self.limit.min(to as usize).max(1),
            None => self.limit,
        }
    }

    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// Messages that no runner has yet.
    pub(super) fn waiting(&self) -> usize {
        let followers = self.keys.iter().flatten().map(|(_, followers)| followers.len()).sum::<usize>();
        let queued = self.bulkheads.iter().map(|of| of.queue.len()).sum::<usize>();
        let gathered = self.gathering.iter().map(|of| of.parcels.len()).sum::<usize>();
        self.ready.len() + followers + queued + gathered
    }

    /// Messages that could begin, if there were enough runners.
    pub(super) fn runnable(&self) -> usize {
        let gathered = self.gathering.iter().map(|of| of.parcels.len()).sum::<usize>();
        self.ready.len() + gathered + self.bulkheads.iter().map(|of| of.queue.len()).sum::<usize>()
    }

    /// How many messages one job may take at most.
    pub(super) fn together(&self) -> usize {
        let most = self.routes.iter().filter_map(|route| route.batch).map(|(max, _)| max).max();
        most.unwrap_or(1).min(TOGETHER_MAX)
    }

    /// Whether nothing begins because a service was overloaded.
    pub(super) fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| until > now)
    }

    /// Messages that wait for their bulkhead.
    pub(super) fn shut_in(&self) -> usize {
        self.bulkheads.iter().map(|of| of.queue.len()).sum()
    }

    /// Messages that runners work on.
    pub(super) fn with_runners(&self) -> usize {
        self.with_runners
    }

    /// How long a job takes, lately.
    pub(super) fn job_mean(&self) -> Option<Duration> {
        self.job_mean.map(Duration::from_secs_f64)
    }

    pub(super) fn breaker_state(&self) -> BreakerState {
        self.breaker.as_ref().map(Breaker::state).unwrap_or_default()
    }

    /// How many messages the breaker and a pause allow at most.
    pub(super) fn credit_max(&mut self, now: Instant) -> usize {
        if self.is_paused(now) {
            return 0;
        }
        match self.breaker.as_mut().map(|breaker| breaker.gate(now)) {
            Some(Gate::Nothing { .. }) => 0,
            Some(Gate::Probes(more)) => self.with_runners + self.waiting() + more as usize,
            Some(Gate::Any) | None => usize::MAX,
        }
    }

    /// Adds a message.
    pub(super) fn arrive(&mut self, now: Instant, parcel: Parcel) {
        let key = self.key_of(&parcel);
        if let (Some(keys), Some(key)) = (&mut self.keys, key) {
            match keys.entry(key) {
                Entry::Occupied(mut before) => {
                    before.get_mut().push_back(parcel);
                    return;
                }
                Entry::Vacant(first) => drop(first.insert(VecDeque::new())),
            }
        }
        self.put_ready(now, parcel, false);
    }

    fn key_of(&self, parcel: &Parcel) -> Option<u64> {
        self.keys.as_ref()?;
        parcel.info.key_bytes().map(|key| self.hasher.hash_one(key))
    }

    /// A message that waited for its key goes before messages that came later.
    fn put_ready(&mut self, now: Instant, parcel: Parcel, first: bool) {
        if self.routes[parcel.route].batch.is_some() {
            let gathering = &mut self.gathering[parcel.route];
            gathering.since.get_or_insert(now);
            gathering.parcels.push_back(parcel);
        } else if first {
            self.ready.push_front(parcel);
        } else {
            self.ready.push_back(parcel);
        }
    }

    /// The work that a runner may begin now.
    pub(super) fn take(&mut self, now: Instant) -> Taken {
        if self.closed || self.running >= self.limit() {
            return Taken::Later(None);
        }
        if let Some(until) = self.paused_until.filter(|until| *until > now) {
            return Taken::Later(Some(until));
        }
        self.paused_until = None;
        match self.breaker.as_mut().map(|breaker| breaker.gate(now)) {
            Some(Gate::Nothing { until }) => return Taken::Later(Some(until)),
            Some(Gate::Probes(0)) => return Taken::Later(None),
            Some(Gate::Probes(_) | Gate::Any) | None => {}
        }
        if let Some(at) = self.pace.as_mut().map(|pace| pace.next_at(now)).filter(|at| *at > now) {
            // Without work there is nothing to wake up for.
            return Taken::Later((self.waiting() > 0).then_some(at));
        }
        let (work, later) = self.choose(now);
        let Some(work) = work else { return Taken::Later(later) };
        self.running += 1;
        self.with_runners += work.parcels.len();
        if let Some(bulkhead) = self.routes[work.route].bulkhead {
            self.bulkheads[bulkhead].running += 1;
        }
        if let Some(pace) = &mut self.pace {
            pace.spend(work.parcels.len());
        }
        if let Some(breaker) = &mut self.breaker {
            breaker.began();
        }
        Taken::Work(work)
    }

    fn has_room(&self, route: usize) -> bool {
        let bulkhead = self.routes[route].bulkhead.map(|of| &self.bulkheads[of]);
        bulkhead.is_none_or(|of| of.running < of.limit)
    }

    fn choose(&mut self, now: Instant) -> (Option<Work>, Option<Instant>) {
        // Messages whose turn came before.
        for bulkhead in &mut self.bulkheads {
            if bulkhead.running < bulkhead.limit
                && let Some(parcel) = bulkhead.queue.pop_front()
            {
                return (Some(Work { route: parcel.route, parcels: vec![parcel] }), None);
            }
        }
        let mut later: Option<Instant> = None;
        for route in 0..self.routes.len() {
            let Some((max, linger)) = self.routes[route].batch else { continue };
            if !self.has_room(route) {
                continue;
            }
            let gathering = &mut self.gathering[route];
            let Some(due) = gathering.since.map(|since| since + linger) else { continue };
            if gathering.parcels.len() >= max || due <= now {
                let count = gathering.parcels.len().min(max);
                let parcels = gathering.parcels.drain(..count).collect();
                gathering.since = (!gathering.parcels.is_empty()).then_some(now);
                return (Some(Work { route, parcels }), None);
            }
            later = Some(later.map_or(due, |at| at.min(due)));
        }
        while let Some(parcel) = self.ready.pop_front() {
            if self.has_room(parcel.route) {
                return (Some(Work { route: parcel.route, parcels: vec![parcel] }), None);
            }
            let bulkhead = self.routes[parcel.route].bulkhead.expect("without a bulkhead there is room");
            self.bulkheads[bulkhead].queue.push_back(parcel);
        }
        (None, later)
    }

    /// Whether a runner that asks now would get work.
    pub(super) fn may_take(&self) -> bool {
        !self.closed
            && self.running < self.limit()
            && (!self.ready.is_empty()
                || self.gathering.iter().any(|of| !of.parcels.is_empty())
                || self.bulkheads.iter().any(|of| of.running < of.limit && !of.queue.is_empty()))
    }

    /// A runner brings back work, with a verdict on each message.
    pub(super) fn finish(&mut self, now: Instant, work: Work, verdicts: Vec<Verdict>, took: Duration) {
        self.running -= 1;
        self.with_runners -= work.parcels.len();
        if let Some(bulkhead) = self.routes[work.route].bulkhead {
            self.bulkheads[bulkhead].running -= 1;
        }
        self.measure(took, &verdicts);
        if let Some(breaker) = &mut self.breaker {
            breaker.ended(now, verdicts.iter().map(Verdict::is_failure));
        }
        for (parcel, verdict) in work.parcels.into_iter().zip(verdicts) {
            match &verdict {
                Verdict::Throttled { after, .. } => self.throttle(now, *after),
                Verdict::NoStore { after } => self.pause_until(now + *after),
                Verdict::Ack | Verdict::Finished => self.recover(),
                _ => {}
            }
            self.release_key(now, &parcel, verdict.is_terminal());
            self.done.push(Done { lease: parcel.lease, verdict });
        }
    }

    /// Messages that were not worked on do not count.
    fn measure(&mut self, took: Duration, verdicts: &[Verdict]) {
        let is_idle =
            |of: &Verdict| matches!(of, Verdict::Duplicate | Verdict::Lost | Verdict::NoStore { .. });
        if verdicts.iter().all(is_idle) {
            return;
        }
        let took = took.as_secs_f64() / verdicts.len() as f64;
        self.job_mean = Some(match self.job_mean {
            Some(mean) => mean + (took - mean) * MEAN_WEIGHT,
            None => took,
        });
    }

    fn throttle(&mut self, now: Instant, after: Duration) {
        // Of several at once, only the first halves the limit.
        if self.paused_until.is_none_or(|paused| paused <= now) {
            self.throttled_to = Some((self.limit() as f64 / 2.0).max(1.0));
        }
        self.pause_until(now + after);
    }

    fn pause_until(&mut self, until: Instant) {
        self.paused_until = Some(self.paused_until.map_or(until, |paused| paused.max(until)));
    }

    /// Raises the limit by one for every round of successes.
    fn recover(&mut self) {
        let Some(to) = self.throttled_to else { return };
        let to = to + 1.0 / to;
        self.throttled_to = Some(to).filter(|to| (*to as usize) < self.limit);
    }

    /// The next message of the key may go; or all of them go back, because the one before them will be delivered again.
    fn release_key(&mut self, now: Instant, parcel: &Parcel, goes_on: bool) {
        let Some(key) = self.key_of(parcel) else { return };
        let Some(keys) = &mut self.keys else { return };
        let Entry::Occupied(mut followers) = keys.entry(key) else { return };
        if !goes_on {
            let back = followers.remove();
            self.done.extend(back.into_iter().map(give_back));
            return;
        }
        match followers.get_mut().pop_front() {
            Some(next) => self.put_ready(now, next, true),
            None => drop(followers.remove()),
        }
    }

    /// Moves the messages with a verdict out, for the pump.
    pub(super) fn take_done(&mut self, into: &mut Vec<Done>) {
        into.append(&mut self.done);
    }

    pub(super) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Nothing more begins, and messages that have not begun are given back.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.give_back_waiting();
    }

    /// Gives back messages that have not begun.
    pub(super) fn give_back_waiting(&mut self) {
        let waiting = self.drain_waiting();
        self.done.extend(waiting.into_iter().map(give_back));
    }

    /// The connection is gone, and with it every lease. Messages that have not begun will be delivered again.
    pub(super) fn forget_waiting(&mut self) {
        drop(self.drain_waiting());
        self.done.clear();
    }

    fn drain_waiting(&mut self) -> Vec<Parcel> {
        let mut waiting: Vec<Parcel> = Vec::new();
        let with_key: Vec<u64> = {
            waiting.extend(self.ready.drain(..));
            for bulkhead in &mut self.bulkheads {
                waiting.extend(bulkhead.queue.drain(..));
            }
            for gathering in &mut self.gathering {
                waiting.extend(gathering.parcels.drain(..));
                gathering.since = None;
            }
            waiting.iter().filter_map(|parcel| self.key_of(parcel)).collect()
        };
        if let Some(keys) = &mut self.keys {
            // The key of a message that a runner works on stays known, so that a redelivery waits for it.
            for followers in keys.values_mut() {
                waiting.extend(followers.drain(..));
            }
            for key in with_key {
                keys.remove(&key);
            }
        }
        waiting
    }
}

fn give_back(parcel: Parcel) -> Done {
    Done { lease: parcel.lease, verdict: Verdict::Return { after: None } }
}

#[cfg(test)]
mod tests;
