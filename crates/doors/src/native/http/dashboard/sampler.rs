//! One look at the whole server, for all pages that are open.
//!
//! A task takes a [`Snapshot`] once a second, however many pages are open, and adds it to the [`History`]. Pages
//! read the last snapshot. Looking may take [`SHARE`] of the time at most: on a server with very many groups the
//! snapshots come less often.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_broker::api::{
    CallError, Caller, GroupReport, MemoryFigures, Retention, ServerReport, Stage, StreamReport,
};
use forebay_core::types::{GroupName, StreamName, Timestamp};
use forebay_wire::attention::{Attention, GroupFacts, ServerFacts, StreamFacts, Subject, attention};

use super::Dashboard;
use super::history::{BANDS, Sample};
use crate::native::ProcessFigures;
use crate::native::facts::group_facts;
use crate::native::http::Door;
use crate::native::service::Service;

const EVERY: Duration = Duration::from_secs(1);
/// One part in so many of the time may go into looking.
const SHARE: u32 = 50;
/// Streams and groups that are asked for at a time: the shard makes their reports in one turn.
const STEP: usize = 125;
/// Streams, and groups, that a snapshot has. Of more, the first by name.
pub(super) const ITEMS_MAX: usize = 20_000;
/// Reasons of parked messages are asked for of so many groups, the ones with the most first, once in so many
/// snapshots.
const REASONS_GROUPS_MAX: usize = 10;
const REASONS_EVERY: u64 = 15;

/// A stream in a list.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StreamRow {
    pub(super) name: String,
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) delayed: u64,
    pub(super) groups: u64,
    /// It keeps messages until groups have settled them.
    pub(super) is_work: bool,
    /// It gets copies of the messages of streams whose names begin with this.
    pub(super) copies: Option<String>,
    pub(super) published: f64,
    pub(super) oldest_age: f64,
    /// Limits of its settings, where there are any.
    pub(super) messages_max: Option<u64>,
    pub(super) bytes_max: Option<u64>,
}

impl StreamRow {
    fn facts(&self) -> StreamFacts {
        let StreamRow { name, messages, groups, is_work, copies, .. } = self;
        StreamFacts {
            stream: name.clone(),
            messages: *messages,
            groups: *groups,
            is_work: *is_work,
            copies: copies.clone(),
        }
    }
}

/// A group in a list.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct GroupRow {
    pub(super) facts: GroupFacts,
    /// Rates over the last second.
    pub(super) arrived_now: f64,
    pub(super) settled_now: f64,
    pub(super) waiting: u64,
    bands: Option<[u64; BANDS]>,
}

impl GroupRow {
    /// None: the client must not know of the group. The reasons of parked messages need a right of their own.
    fn seen_by(&self, caller: &Caller) -> Option<GroupRow> {
        let stream = StreamName::of_any(&self.facts.stream).ok()?;
        let group = GroupName::parse(&self.facts.group).ok()?;
        if !caller.sees_group(&stream, &group) {
            return None;
        }
        let mut row = self.clone();
        row.facts.parked_reason = row.facts.parked_reason.filter(|_| caller.inspects(&stream, &group));
        Some(row)
    }
}

/// A consumer, of any group.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ConsumerRow {
    pub(super) stream: StreamName,
    pub(super) group: GroupName,
    pub(super) name: Arc<str>,
    pub(super) address: Option<String>,
    pub(super) is_connected: bool,
    pub(super) joined: u64,
    pub(super) in_flight: u64,
    pub(super) credit: u32,
    pub(super) acked: u64,
    pub(super) failed: u64,
}

/// Consumers that a snapshot lists.
pub(super) const CONSUMERS_MAX: usize = 2_000;

/// The sums over all groups and streams.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Totals {
    pub(super) published: f64,
    pub(super) settled: f64,
    pub(super) lag: u64,
    pub(super) in_flight: u64,
    pub(super) parked: u64,
    pub(super) delayed: u64,
    pub(super) oldest_age: f64,
    pub(super) consumers: u64,
    pub(super) bytes: u64,
}

/// The server at a moment.
pub(super) struct Snapshot {
    pub(super) at: Timestamp,
    pub(super) stage: Stage,
    pub(super) server: ServerReport,
    pub(super) process: ProcessFigures,
    pub(super) memory: MemoryFigures,
    pub(super) streams: Vec<StreamRow>,
    pub(super) groups: Vec<GroupRow>,
    pub(super) consumers: Vec<ConsumerRow>,
    pub(super) attention: Vec<Attention>,
    /// The groups in the order of the sentences; groups without one follow, the largest backlog first.
    pub(super) by_attention: Vec<u32>,
    pub(super) totals: Totals,
    facts: ServerFacts,
    /// How long it took to take.
    pub(super) taken_in: Duration,
}

impl Totals {
    fn add(&mut self, streams: &[StreamRow], groups: &[GroupRow]) {
        for StreamRow { published, delayed, bytes, .. } in streams {
            self.published += published;
            self.delayed += delayed;
            self.bytes += bytes;
        }
        for GroupRow { facts, settled_now, .. } in groups {
            self.settled += settled_now;
            self.lag += facts.due;
            self.in_flight += facts.in_flight;
            self.parked += facts.parked;
            self.oldest_age = self.oldest_age.max(facts.oldest_age);
        }
    }
}

impl Snapshot {
    /// The part of it that a client may see: its streams and groups, and figures that are made of these alone. A client
    /// with a right on the whole server sees the server's own figures too.
    pub(super) fn seen_by(self: Arc<Snapshot>, caller: &Caller) -> Arc<Snapshot> {
        if caller.sees_all() {
            return self;
        }
        let sees_server = caller.sees_server();
        let streams: Vec<StreamRow> = self
            .streams
            .iter()
            .filter(|row| StreamName::of_any(&row.name).is_ok_and(|name| caller.sees_stream(&name)))
            .cloned()
            .collect();
        let groups: Vec<GroupRow> = self.groups.iter().filter_map(|row| row.seen_by(caller)).collect();
        let consumers: Vec<ConsumerRow> =
            self.consumers.iter().filter(|row| caller.sees_group(&row.stream, &row.group)).cloned().collect();
        let connected = consumers.iter().filter(|row| row.is_connected).count();
        let server = match sees_server {
            true => self.server.clone(),
            false => ServerReport {
                streams: streams.len(),
                groups: groups.len(),
                connected,
                polling: consumers.len() - connected,
                ..ServerReport::default()
            },
        };
        let mut totals =
            Totals { consumers: (server.connected + server.polling) as u64, ..Totals::default() };
        totals.add(&streams, &groups);
        let facts = if sees_server { self.facts } else { ServerFacts::default() };
        let attention =
            attention(&facts, streams.iter().map(StreamRow::facts), groups.iter().map(|row| &row.facts));
        let by_attention = by_attention(&attention, &groups);
        let (at, stage, process, memory) = (self.at, self.stage, self.process, self.memory);
        let taken_in = self.taken_in;
        Arc::new(Snapshot {
            at,
            stage,
            server,
            process,
            memory,
            streams,
            groups,
            consumers,
            attention,
            by_attention,
            totals,
            facts,
            taken_in,
        })
    }

    /// Whether a page that shows nothing else looks the same.
    fn is_like(&self, other: &Snapshot) -> bool {
        self.stage == other.stage
            && self.totals == other.totals
            && self.streams == other.streams
            && self.groups == other.groups
            && self.consumers == other.consumers
    }
}

/// The most frequent reason of the parked messages of some groups.
#[derive(Default)]
struct Reasons(HashMap<(String, String), String>);

/// Takes snapshots until the server stops.
pub(super) async fn run(door: Door, service: Service) {
    let dashboard = door.dashboard();
    let mut reasons = Reasons::default();
    let (mut number, mut saved) = (0_u64, None);
    if dashboard.keeps_history {
        super::keep::load(dashboard, &service).await;
    }
    let stopped = door.broker().reached(Stage::Stopping);
    let mut stopped = std::pin::pin!(stopped);
    loop {
        let taken = tokio::select! {
            () = &mut stopped => return,
            taken = take(&door, &service, &reasons.0) => taken,
        };
        // A server that cannot be asked is mostly stopping; the last snapshot stays.
        let Ok(snapshot) = taken else {
            tokio::time::sleep(EVERY).await;
            continue;
        };
        let second = snapshot.at.0 / 1_000_000;
        remember(dashboard, second, &snapshot);
        if number.is_multiple_of(REASONS_EVERY) {
            reasons.ask(&service, &snapshot).await;
        }
        number += 1;
        let wait = EVERY.max(snapshot.taken_in * SHARE);
        dashboard.latest.send_if_modified(|latest| {
            let is_new = latest.as_ref().is_none_or(|before| !before.is_like(&snapshot));
            *latest = Some(Arc::new(snapshot));
            is_new
        });
        if dashboard.keeps_history {
            super::keep::save_if_due(dashboard, &service, second, &mut saved).await;
        }
        tokio::select! {
            () = &mut stopped => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

fn remember(dashboard: &Dashboard, second: u64, snapshot: &Snapshot) {
    let mut history = dashboard.history();
    let totals = &snapshot.totals;
    history.push(
        second,
        Sample {
            arrived: totals.published as f32,
            settled: totals.settled as f32,
            lag: totals.lag as f32,
            oldest: totals.oldest_age as f32,
            parked: totals.parked as f32,
            in_flight: totals.in_flight as f32,
        },
    );
    for GroupRow { facts, arrived_now, settled_now, bands, .. } in &snapshot.groups {
        let sample = Sample {
            arrived: *arrived_now as f32,
            settled: *settled_now as f32,
            lag: facts.due as f32,
            oldest: facts.oldest_age as f32,
            parked: facts.parked as f32,
            in_flight: facts.in_flight as f32,
        };
        history.push_group(second, &facts.stream, &facts.group, sample, *bands);
    }
    history.forget_before(second);
}

async fn take(
    door: &Door,
    service: &Service,
    reasons: &HashMap<(String, String), String>,
) -> Result<Snapshot, CallError> {
    let clock = door.broker().clock();
    let began = clock.now();
    let caller = service.caller();
    let server = caller.server().await?;
    let mut totals = Totals { consumers: (server.connected + server.polling) as u64, ..Totals::default() };
    let (mut streams, mut after) = (Vec::new(), None);
    while streams.len() < ITEMS_MAX {
        let page = caller.streams(after, STEP).await?;
        streams.extend(page.items.iter().map(stream_row));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let (mut groups, mut consumers, mut after) = (Vec::new(), Vec::new(), None);
    while groups.len() < ITEMS_MAX {
        let page = caller.groups(None, after, STEP).await?;
        for report in &page.items {
            groups.push(group_row(report, reasons));
            let left = CONSUMERS_MAX - consumers.len();
            consumers.extend(consumer_rows(report).take(left));
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    totals.add(&streams, &groups);
    groups.sort_by(|a, b| (&a.facts.stream, &a.facts.group).cmp(&(&b.facts.stream, &b.facts.group)));
    let process = (door.0.process)();
    let facts = server_facts(door, &server, &process);
    let attention =
        attention(&facts, streams.iter().map(StreamRow::facts), groups.iter().map(|row| &row.facts));
    let by_attention = by_attention(&attention, &groups);
    Ok(Snapshot {
        at: clock.now(),
        stage: door.broker().stage(),
        server,
        process,
        memory: door.broker().memory().figures(),
        streams,
        groups,
        consumers,
        attention,
        by_attention,
        totals,
        facts,
        taken_in: clock.now().since(began),
    })
}

/// The order of the groups, which are sorted by name. It is made once for all pages.
fn by_attention(attention: &[Attention], groups: &[GroupRow]) -> Vec<u32> {
    let mut ranks = vec![usize::MAX; groups.len()];
    for (rank, one) in attention.iter().enumerate() {
        let Subject::Group(stream, group) = &one.subject else { continue };
        let found = groups
            .binary_search_by(|row| (&*row.facts.stream, &*row.facts.group).cmp(&(&**stream, &**group)));
        if let Ok(found) = found {
            ranks[found] = ranks[found].min(rank);
        }
    }
    let mut order: Vec<u32> = (0..groups.len()).filter_map(|at| u32::try_from(at).ok()).collect();
    order.sort_by_key(|&at| (ranks[at as usize], std::cmp::Reverse(groups[at as usize].facts.due), at));
    order
}

fn server_facts(door: &Door, server: &ServerReport, process: &ProcessFigures) -> ServerFacts {
    let doors = door.broker().doors();
    let open =
        |door: &Arc<forebay_broker::api::DoorStats>| door.open.load(std::sync::atomic::Ordering::Relaxed);
    ServerFacts {
        is_stopping: door.broker().stage() != Stage::Running,
        storage_full: server.storage_full,
        free_bytes: server.engine.free_bytes,
        damaged_places: server.engine.damaged_places,
        connections: doors.all().iter().map(open).sum(),
        connections_max: doors.connections_max().map(|max| max as u64),
        open_files: process.open_files,
        open_files_max: process.open_files_max,
    }
}

fn stream_row(report: &StreamReport) -> StreamRow {
    let StreamReport { name, settings, figures, published, .. } = report;
    StreamRow {
        name: name.to_string(),
        first: figures.first.0,
        last: figures.last.0,
        messages: figures.messages,
        bytes: figures.bytes,
        delayed: figures.delayed,
        groups: figures.groups as u64,
        is_work: settings.retention == Retention::Work,
        copies: settings.source.as_ref().map(|source| source.prefix.clone()),
        published: published.second,
        oldest_age: figures.oldest_age.map_or(0.0, |age| age.as_secs_f64()),
        messages_max: settings.limits.max_messages,
        bytes_max: settings.limits.max_bytes,
    }
}

fn group_row(report: &GroupReport, reasons: &HashMap<(String, String), String>) -> GroupRow {
    let reason = match report.figures.parked {
        0 => None,
        _ => reasons.get(&(report.stream.to_string(), report.name.to_string())).cloned(),
    };
    GroupRow {
        facts: group_facts(report, reason),
        arrived_now: report.arrivals.second,
        settled_now: report.throughput.settled.second,
        waiting: report.figures.waiting,
        bands: report.processing_bands.map(|bands| bands.shorter),
    }
}

fn consumer_rows(report: &GroupReport) -> impl Iterator<Item = ConsumerRow> {
    report.consumers.iter().map(|consumer| ConsumerRow {
        stream: report.stream.clone(),
        group: report.name.clone(),
        name: consumer.name.clone(),
        address: consumer.address.map(|address| address.to_string()),
        is_connected: consumer.bound == forebay_broker::api::Bound::Connection,
        joined: consumer.joined.0,
        in_flight: consumer.in_flight,
        credit: consumer.credit,
        acked: consumer.acked,
        failed: consumer.failed,
    })
}

impl Reasons {
    /// Asks for the reasons of the groups with the most parked messages.
    async fn ask(&mut self, service: &Service, snapshot: &Snapshot) {
        let mut groups: Vec<&GroupRow> = snapshot.groups.iter().filter(|row| row.facts.parked > 0).collect();
        groups.sort_by_key(|row| std::cmp::Reverse(row.facts.parked));
        groups.truncate(REASONS_GROUPS_MAX);
        self.0.clear();
        for GroupRow { facts, .. } in groups {
            let (Ok(stream), Ok(group)) = (StreamName::parse(&facts.stream), GroupName::parse(&facts.group))
            else {
                continue;
            };
            let Ok(reasons) = service.parked_reasons(stream, group).await else { continue };
            if let Some((reason, _)) = reasons.first() {
                self.0.insert((facts.stream.clone(), facts.group.clone()), reason.to_string());
            }
        }
    }
}
