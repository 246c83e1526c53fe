//! The task's statistics of its traffic, and the reports made of them.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use forebay_core::group::{
    Bound, Counters, GroupFigures, Lease, LeaseRun, Outcome, OutcomeRun, with_outcomes,
};
use forebay_core::settings::Source;
use forebay_core::shard::{Shard, StreamFigures};
use forebay_core::types::{Epoch, GroupId, GroupName, StreamId, StreamName, Timestamp};

use super::ShardTask;
use crate::broker::GroupCursor;
use crate::caller::FedStreams;
use crate::driver::Delivery;
use crate::error::CallError;
use crate::report::{
    BANDS, Bands, ConsumerReport, END_TO_END_BANDS, GroupReport, JobReport, Page, ScalingReport,
    ServerReport, StreamReport, Throughput,
};
use crate::stats::{GrantClock, Histogram, Meter, Publications, Rates, ScalingInputs, ScalingTarget, advise};

/// How often counters are looked at for rates.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Streams and groups that are looked at in one turn, more or less.
const SAMPLED_PER_TURN: usize = 256;
/// Consumers that a list of groups shows, beyond the last group that it begins with.
pub(crate) const CONSUMERS_PER_LIST: usize = 2_000;
/// Names of streams and groups that the task looks at in one turn for a list.
const NAMES_PER_TURN: usize = 2_000;

#[derive(Default)]
pub(super) struct Statistics {
    grants: GrantClock,
    publications: Publications,
    groups: HashMap<GroupId, Box<GroupStatistics>>,
    streams: HashMap<StreamId, Meter>,
    /// How far the present look at all counters has come.
    looked_at: Option<StreamName>,
    is_looking: bool,
    /// All of them have been looked at since the shard was opened.
    has_looked: bool,
    /// When the next one begins, and whether there is anything to be seen.
    next: Timestamp,
    is_lively: bool,
}

#[derive(Default)]
struct GroupStatistics {
    processing: Option<Box<Histogram>>,
    end_to_end: Option<Box<Histogram>>,
    meters: [Meter; 10],
    is_metered: bool,
}

/// The metered totals, in the order of the meters.
fn totals(counters: &Counters) -> [u64; 10] {
    [
        counters.delivered,
        counters.settled() + counters.parked,
        counters.acked,
        counters.retried,
        counters.parked,
        counters.timed_out,
        counters.skipped,
        counters.expired,
        counters.moved,
        counters.dropped,
    ]
}

impl GroupStatistics {
    fn throughput(&self) -> Throughput {
        let rates: [Rates; 10] = std::array::from_fn(|n| self.meters[n].rates());
        let [delivered, settled, acked, retried, parked, timed_out, skipped, expired, moved, dropped] = rates;
        Throughput { delivered, settled, acked, retried, parked, timed_out, skipped, expired, moved, dropped }
    }
}

impl Statistics {
    /// Messages leave for a consumer.
    pub(super) fn delivered(&mut self, delivery: &Delivery) {
        let published = delivery.messages.iter().map(|message| message.published);
        self.publications.note(delivery.lease.grant, published);
    }

    /// Leases were answered. Returns how long the consumer had their messages, each time with how many.
    pub(super) fn settled(
        &mut self,
        now: Timestamp,
        shard: &Shard,
        group: GroupId,
        leases: &[LeaseRun],
        outcomes: &[OutcomeRun],
    ) -> Vec<(Duration, u64)> {
        let times = self.times(now, shard.epoch(), leases, outcomes);
        let ages = self.ages(now, shard, group, leases, outcomes);
        if times.is_empty() && ages.is_empty() {
            return times;
        }
        let of = self.groups.entry(group).or_default();
        let processing = of.processing.get_or_insert_default();
        times.iter().for_each(|(time, count)| processing.record_n(*time, *count));
        if !ages.is_empty() {
            let end_to_end = of.end_to_end.get_or_insert_default();
            ages.iter().for_each(|(age, count)| end_to_end.record_n(*age, *count));
        }
        times
    }

    /// How long ago messages that were acked now were published, each time with how many.
    fn ages(
        &self,
        now: Timestamp,
        shard: &Shard,
        group: GroupId,
        leases: &[LeaseRun],
        outcomes: &[OutcomeRun],
    ) -> Vec<(Duration, u64)> {
        let mut ages: Vec<(Duration, u64)> = Vec::new();
        let stream = shard.stream_of(group);
        with_outcomes(leases, outcomes, |run, outcome| {
            if outcome != Outcome::Acked {
                return;
            }
            let is_of_now = run.first.epoch == shard.epoch();
            let mut n = 0;
            while n < u64::from(run.count) {
                let Lease { grant, seq, .. } = run.nth(n);
                let exact = self.publications.around(grant).filter(|_| is_of_now);
                let about = || shard.published_about(stream?, seq).map(|(at, end)| (at, end.0 - seq.0));
                let found = exact.map(|(at, end)| (at, end.0 - grant.0)).or_else(about);
                let count = found.map_or(1, |(_, count)| count).min(u64::from(run.count) - n);
                ages.extend(found.map(|(at, _)| (now.since(at), count)));
                n += count;
            }
        });
        ages
    }

    /// How long consumers had the messages that they answered for, each time with how many.
    fn times(
        &self,
        now: Timestamp,
        epoch: Epoch,
        leases: &[LeaseRun],
        outcomes: &[OutcomeRun],
    ) -> Vec<(Duration, u64)> {
        let mut times: Vec<(Duration, u64)> = Vec::new();
        with_outcomes(leases, outcomes, |run, outcome| {
            if matches!(outcome, Outcome::NotYours(_)) || run.first.epoch != epoch {
                return;
            }
            // Leases that are answered together were mostly granted together.
            let mut n = 0;
            while n < u64::from(run.count) {
                let grant = run.nth(n).grant;
                let Some((at, around)) = self.grants.around(grant) else {
                    n += 1;
                    continue;
                };
                let count = (around.end.0 - grant.0).min(u64::from(run.count) - n);
                times.push((now.since(at), count));
                n += count;
            }
        });
        times
    }

    pub(super) fn forget_group(&mut self, group: GroupId) {
        self.groups.remove(&group);
    }

    pub(super) fn forget_stream(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
    }

    /// Once a turn. Looks at the counters from time to time, some of them in each turn.
    pub(super) fn keep_up(&mut self, now: Timestamp, shard: &Shard) {
        self.grants.note(shard.next_grant(), now);
        if !self.is_looking {
            if now < self.next {
                return;
            }
            self.is_looking = true;
            self.is_lively = false;
            self.next = now + SAMPLE_EVERY;
        }
        let mut seen = 0;
        let mut last = None;
        let looked_at = self.looked_at.take();
        for (name, stream) in shard.streams_after(looked_at.as_ref()) {
            if seen >= SAMPLED_PER_TURN {
                self.looked_at = last;
                return;
            }
            seen += 1 + shard.groups_of(stream).count();
            self.is_lively |= sample_stream(&mut self.streams, now, shard, stream, !self.has_looked);
            for (_, group) in shard.groups_of(stream) {
                self.is_lively |= sample_group(&mut self.groups, now, shard, group);
            }
            last = Some(name.clone());
        }
        self.is_looking = false;
        self.has_looked = true;
    }

    /// When to look again. A server where nothing happens is left alone.
    pub(super) fn wake_at(&self) -> Option<Timestamp> {
        if self.is_looking { Some(Timestamp::ZERO) } else { self.is_lively.then_some(self.next) }
    }
}

/// The times of a histogram by bands that end at these powers of two.
fn bands<const N: usize>(times: &Histogram, ends: &[u32]) -> Bands<N> {
    let shorter =
        std::array::from_fn(|n| ends.get(n).map_or(times.count(), |power| times.shorter_than(*power)));
    Bands { shorter, sum: times.sum() }
}

/// Whether there is something to be seen.
fn sample_stream(
    streams: &mut HashMap<StreamId, Meter>,
    now: Timestamp,
    shard: &Shard,
    stream: StreamId,
    is_first: bool,
) -> bool {
    let published = shard.last_seq(stream).map_or(0, |last| last.0);
    if published == 0 {
        return false;
    }
    let meter = streams.entry(stream).or_insert_with(|| {
        let mut meter = Meter::default();
        // Messages that were there when the shard was opened do not count as arrivals; a new stream began
        // empty.
        meter.sample(now - SAMPLE_EVERY, if is_first { published } else { 0 });
        meter
    });
    meter.sample(now, published);
    !meter.is_quiet()
}

fn sample_group(
    groups: &mut HashMap<GroupId, Box<GroupStatistics>>,
    now: Timestamp,
    shard: &Shard,
    group: GroupId,
) -> bool {
    let Some(counters) = shard.counters(group) else { return false };
    let totals = totals(counters);
    if totals == [0; 10] {
        return false;
    }
    let statistics = groups.entry(group).or_default();
    if !statistics.is_metered {
        // Counters begin at zero.
        statistics.is_metered = true;
        statistics.meters.iter_mut().for_each(|meter| meter.sample(now - SAMPLE_EVERY, 0));
    }
    for (meter, total) in statistics.meters.iter_mut().zip(totals) {
        meter.sample(now, total);
    }
    statistics.meters.iter().any(|meter| !meter.is_quiet())
}

impl ShardTask {
    /// The time of this turn.
    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    pub(crate) fn shard(&self) -> &Shard {
        self.driver.shard()
    }

    pub(crate) fn report_stream(&self, stream: StreamId) -> StreamReport {
        let shard = self.driver.shard();
        StreamReport {
            id: stream,
            name: shard.stream_name(stream).expect("the stream was found").clone(),
            settings: shard.stream_settings(stream).expect("the stream was found").clone(),
            figures: shard.stream_figures(self.now, stream).expect("the stream was found"),
            published: self.statistics.streams.get(&stream).map(Meter::rates).unwrap_or_default(),
            groups: shard.groups_of(stream).map(|(name, _)| name.clone()).collect(),
        }
    }

    /// The setting `source` of a stream, if it is there and has one.
    pub(crate) fn source_of(&self, name: &StreamName) -> Option<&Source> {
        let shard = self.driver.shard();
        shard.stream_settings(shard.stream_named(name)?)?.source.as_ref()
    }

    /// The streams with a setting `source` among the next `count` after this one.
    pub(crate) fn fed_streams(&self, after: Option<&StreamName>, count: usize) -> FedStreams {
        let shard = self.driver.shard();
        let mut fed = FedStreams { streams: Vec::new(), next: None };
        for (n, (name, stream)) in shard.streams_after(after).enumerate() {
            if n == count {
                return fed;
            }
            fed.next = Some(name.clone());
            let source = shard.stream_settings(stream).and_then(|settings| settings.source.clone());
            fed.streams.extend(source.map(|source| (name.clone(), stream, source)));
        }
        FedStreams { next: None, ..fed }
    }

    /// Streams by name, after `after`, of those that are seen. `next` may be a stream that is not.
    pub(crate) fn report_streams(
        &self,
        after: Option<&StreamName>,
        limit: usize,
        is_seen: impl Fn(&StreamName) -> bool,
    ) -> Page<StreamReport, StreamName> {
        let mut page = Page { items: Vec::new(), next: None };
        for (n, (name, stream)) in self.driver.shard().streams_after(after).enumerate() {
            if n == NAMES_PER_TURN {
                return page;
            }
            if is_seen(name) {
                if page.items.len() == limit {
                    page.next = page.items.last().map(|last| last.name.clone());
                    return page;
                }
                page.items.push(self.report_stream(stream));
            }
            page.next = Some(name.clone());
        }
        Page { next: None, ..page }
    }

    pub(crate) fn figures(
        &self,
        stream: &StreamName,
        group: &GroupName,
    ) -> Result<(StreamFigures, GroupFigures), CallError> {
        let (stream, group) = (self.find_stream(stream)?, self.find_group(stream, group)?);
        let shard = self.driver.shard();
        let of_stream = shard.stream_figures(self.now, stream).ok_or(CallError::StreamGone)?;
        let of_group = shard.figures(self.now, group).ok_or(CallError::GroupGone)?;
        Ok((of_stream, of_group))
    }

    pub(crate) fn report_group(&self, group: GroupId) -> GroupReport {
        let shard = self.driver.shard();
        let stream = shard.stream_of(group).expect("the group was found");
        let figures = shard.figures(self.now, group).expect("the group was found");
        let statistics = self.statistics.groups.get(&group);
        let throughput = statistics.map(|of| of.throughput()).unwrap_or_default();
        let arrivals = self.statistics.streams.get(&stream).map(Meter::rates).unwrap_or_default();
        let gain = throughput.settled.minute - arrivals.minute;
        let catch_up = match figures.due() {
            0 => Some(0.0),
            due if gain > 0.0 => Some(due as f64 / gain),
            _ => None,
        };
        let settings = shard.group_settings(group).expect("the group was found").clone();
        let kept = statistics.filter(|_| settings.extra_statistics);
        let processing = kept.and_then(|of| of.processing.as_ref());
        let end_to_end = kept.and_then(|of| of.end_to_end.as_ref());
        let name =
            shard.groups_of(stream).find(|(_, id)| *id == group).expect("the group was found").0.clone();
        GroupReport {
            id: group,
            stream: shard.stream_name(stream).expect("a group's stream exists").clone(),
            name,
            figures,
            throughput,
            arrivals,
            catch_up,
            processing: processing.map(|times| times.summary()),
            processing_bands: processing.map(|times| bands(times, &BANDS)),
            end_to_end: end_to_end.map(|times| bands(times, &END_TO_END_BANDS)),
            consumers: self.report_consumers(group),
            settings,
        }
    }

    /// Members that poll under one name are one consumer.
    fn report_consumers(&self, group: GroupId) -> Vec<ConsumerReport> {
        let mut consumers: Vec<ConsumerReport> = Vec::new();
        let mut times: Vec<Histogram> = Vec::new();
        let mut polling = BTreeMap::new();
        for figures in self.driver.shard().consumers(group) {
            let (address, own) = match figures.bound {
                Bound::Connection => {
                    let member = self.members.get(&figures.consumer);
                    (member.and_then(|of| of.session.address), member.and_then(|of| of.processing.as_deref()))
                }
                Bound::Clock => {
                    let poller = self.pollers.get(figures.consumer);
                    (poller.and_then(|of| of.address), poller.and_then(|of| of.processing.as_deref()))
                }
            };
            let at = match figures.bound {
                Bound::Connection => consumers.len(),
                Bound::Clock => *polling.entry(figures.name.clone()).or_insert(consumers.len()),
            };
            if at == consumers.len() {
                times.push(Histogram::default());
                consumers.push(ConsumerReport {
                    id: figures.consumer,
                    name: figures.name,
                    address,
                    bound: figures.bound,
                    joined: figures.joined,
                    in_flight: figures.in_flight,
                    holds: figures.holds,
                    credit: figures.credit,
                    acked: figures.acked,
                    failed: figures.failed,
                    processing: None,
                });
            } else {
                let one = &mut consumers[at];
                one.joined = one.joined.min(figures.joined);
                one.in_flight += figures.in_flight;
                let held = one.holds.into_iter().chain(figures.holds);
                one.holds = held.min_by_key(|(_, since)| *since);
                one.credit += figures.credit;
                one.acked += figures.acked;
                one.failed += figures.failed;
            }
            if let Some(own) = own {
                times[at].merge(own);
            }
        }
        for (consumer, times) in consumers.iter_mut().zip(&times) {
            let summary = times.summary();
            consumer.processing = (summary.count > 0).then_some(summary);
        }
        consumers
    }

    /// Groups by stream and name, after `after`, of those that are seen. `next` may be a group that is not, or
    /// that does not exist.
    pub(crate) fn report_groups(
        &self,
        of: Option<&StreamName>,
        after: Option<&GroupCursor>,
        limit: usize,
        is_seen: impl Fn(&StreamName, &GroupName) -> bool,
    ) -> Result<Page<GroupReport, GroupCursor>, CallError> {
        let shard = self.driver.shard();
        let mut page = Page { items: Vec::new(), next: None };
        let mut consumers = 0;
        let mut add = |page: &mut Page<GroupReport, GroupCursor>, group: GroupId| {
            if page.items.len() == limit || consumers > CONSUMERS_PER_LIST {
                page.next = page.items.last().map(|last| (last.stream.clone(), last.name.clone()));
                return false;
            }
            let report = self.report_group(group);
            consumers += report.consumers.len();
            page.items.push(report);
            true
        };
        let is_after = |stream: &StreamName, group: &GroupName| {
            after.is_none_or(|(last, of)| last < stream || (last == stream && of < group))
        };
        let groups = |stream: StreamId| {
            let mut groups: Vec<(&GroupName, GroupId)> = shard.groups_of(stream).collect();
            groups.sort_unstable();
            groups
        };
        if let Some(name) = of {
            let some = groups(self.find_stream(name)?);
            let mut seen =
                some.into_iter().filter(|(group, _)| is_after(name, group) && is_seen(name, group));
            seen.all(|(_, id)| add(&mut page, id));
            return Ok(page);
        }
        let here = after.and_then(|(stream, _)| shard.stream_named(stream).map(|id| (stream, id)));
        let rest = shard.streams_after(after.map(|(stream, _)| stream));
        let mut looked_at = 0;
        for (name, stream) in here.into_iter().chain(rest) {
            let some = groups(stream);
            let last = some.last().map(|(group, _)| (*group).clone());
            looked_at += 1 + some.len();
            let mut seen =
                some.into_iter().filter(|(group, _)| is_after(name, group) && is_seen(name, group));
            if !seen.all(|(_, id)| add(&mut page, id)) {
                break;
            }
            if looked_at >= NAMES_PER_TURN {
                // A stream without groups is passed by any name of a group.
                let last = last.or_else(|| GroupName::parse("-").ok());
                page.next = last.map(|last| (name.clone(), last));
                break;
            }
        }
        Ok(page)
    }

    pub(crate) fn report_scaling(&self, group: GroupId, target: &ScalingTarget) -> ScalingReport {
        let report = self.report_group(group);
        let figures = &report.figures;
        let inputs = ScalingInputs {
            backlog: figures.due().saturating_sub(figures.in_flight),
            in_flight: figures.in_flight,
            consumers: report.consumers.len() as u64,
            oldest_age: figures.oldest_age.unwrap_or_default(),
            arrival_rate: report.arrivals.minute,
            service_rate: report.throughput.settled.minute,
            processing_mean: report.processing.map(|times| times.mean),
            rate_max: report.settings.rate.map(|rate| rate.per_second),
        };
        ScalingReport {
            backlog: inputs.backlog,
            oldest_age: inputs.oldest_age.as_secs_f64(),
            in_flight: inputs.in_flight,
            consumers: inputs.consumers,
            arrival_rate: inputs.arrival_rate,
            service_rate: inputs.service_rate,
            advice: advise(&inputs, target),
        }
    }

    pub(crate) fn report_server(&self) -> ServerReport {
        let shard = self.driver.shard();
        let (streams, groups) = shard.counts();
        ServerReport {
            streams,
            groups,
            connected: self.members.len(),
            polling: self.pollers.len(),
            waiting: self.pollers.waiting(),
            storage_full: self.space.is_full(),
            storage_scarce: shard.is_withheld(),
            clock_ahead: self.clock.ahead_of_date(),
            window_bytes: self.driver.memory(),
            epoch: shard.epoch().0,
            commit_times: self.commit_times.clone(),
            driver: self.driver.figures(),
            engine: self.engine.figures(),
        }
    }
}

impl From<&forebay_core::group::Job> for JobReport {
    fn from(job: &forebay_core::group::Job) -> JobReport {
        JobReport {
            id: job.id,
            work: job.work.clone(),
            started: job.started,
            rate: job.rate,
            matched: job.matched,
            done: job.done,
            failed: job.failed,
            state: job.state.clone(),
        }
    }
}
