//! Figures in the text format of Prometheus. By hand: it is a line for each figure.
//!
//! Every metric is one row of [`METRICS`], and `docs/reference/metrics.md` is written from the same rows. So is the
//! export over OTLP (`native/otlp.rs`), which is another [`Form`] of the same values.
//!
//! Labels are names of streams and groups, and of no more than the setting `metrics_series_max` of each: every label
//! costs the program that watches many servers. [`chosen`] decides which; `forebay_left_out` says how many are not
//! shown. Consumers and keys are never labels.

pub(super) mod chosen;

use std::fmt::{Display, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_broker::api::{
    BANDS, Bands, DoorStats, END_TO_END_BANDS, GroupReport, Histogram, IssuerFigures, MemoryFigures,
    Refusals, ServerReport, Stage, Status, StreamReport,
};

use super::Door;
use super::failure::Failure;
use crate::native::ProcessFigures;
use crate::native::otlp::Exports;
use crate::native::service::{Answer, Service};
use Source::{Door as OfDoor, Each, Group, GroupTimes, Limits, Listener, Requests, Server, Stream};
use chosen::Shown;

/// The reports that are shown, all of one moment.
pub(in crate::native) struct Scrape {
    server: ServerReport,
    stage: Stage,
    doors: Vec<Arc<DoorStats>>,
    connections_max: Option<usize>,
    memory: MemoryFigures,
    over_limit: Vec<Refusals>,
    issuer: Option<IssuerFigures>,
    process: ProcessFigures,
    exports: Option<(u64, u64)>,
    spans: Option<(u64, u64)>,
    shown: Shown,
}

pub(in crate::native) struct Metric {
    pub(in crate::native) name: &'static str,
    pub(in crate::native) kind: &'static str,
    pub(in crate::native) help: &'static str,
    source: Source,
}

/// Where the value of a metric comes from, and so which labels it has.
enum Source {
    Server(fn(&Scrape) -> Option<f64>),
    /// One value for each of these values of a label.
    Each(&'static str, fn(&Scrape) -> Vec<(&'static str, f64)>),
    Histogram(fn(&Scrape) -> &Histogram),
    /// Doors that listen. HTTP and gRPC share the connections of the native door.
    Listener(fn(&DoorStats) -> &AtomicU64),
    Door(fn(&DoorStats) -> &AtomicU64),
    /// One value for each call and problem of a door.
    Requests,
    /// One value for each line of limits, and limit, that refused a call.
    Limits,
    Stream(fn(&StreamReport) -> f64),
    Group(fn(&GroupReport) -> f64),
    /// Groups that keep times.
    GroupTimes(fn(&GroupReport) -> Option<Times>),
}

const fn gauge(name: &'static str, help: &'static str, source: Source) -> Metric {
    Metric { name, kind: "gauge", help, source }
}

const fn counter(name: &'static str, help: &'static str, source: Source) -> Metric {
    Metric { name, kind: "counter", help, source }
}

const METRICS: &[Metric] = &[
    gauge("forebay_ready", "1 while the server takes work.", Server(|of| flag(of.stage == Stage::Running))),
    gauge("forebay_streams", "Streams.", Server(|of| some(of.server.streams))),
    gauge("forebay_groups", "Groups.", Server(|of| some(of.server.groups))),
    gauge(
        "forebay_consumers",
        "Consumers with a connection, and consumers that poll.",
        Each("kind", |of| {
            vec![("connected", of.server.connected as f64), ("polling", of.server.polling as f64)]
        }),
    ),
    gauge(
        "forebay_receives_waiting",
        "Receives that wait for a message.",
        Server(|of| some(of.server.waiting)),
    ),
    gauge(
        "forebay_storage_full",
        "1 while publishing is refused because storage is full.",
        Server(|of| flag(of.server.storage_full)),
    ),
    gauge(
        "forebay_storage_scarce",
        "1 while nothing is delivered because the reserve is nearly used up, or because storage cannot write.",
        Server(|of| flag(of.server.storage_scarce)),
    ),
    gauge(
        "forebay_clock_ahead_seconds",
        "How far the server's clock is ahead of the machine's date; less than zero if it is behind.",
        Server(|of| Some(of.server.clock_ahead as f64 / 1e6)),
    ),
    gauge(
        "forebay_epoch",
        "How often the log has been opened; each start adds one.",
        Server(|of| Some(f64::from(of.server.epoch))),
    ),
    counter(
        "forebay_cluster_terms_total",
        "How often this node has become the owner of the cluster's log since it started. Missing without a cluster.",
        Server(|of| Some(of.server.engine.terms).filter(|terms| *terms > 0).and_then(count)),
    ),
    gauge(
        "forebay_cluster_tenure_seconds",
        "How long this node may still serve without another sign that it owns the log. Missing without a cluster.",
        Server(|of| of.server.engine.tenure_left.map(|left| left.as_secs_f64())),
    ),
    counter(
        "forebay_cluster_stalls_total",
        "How often deliveries had to wait in this term because another node might own the log. Missing without a \
         cluster.",
        Server(|of| of.server.engine.tenure_left.and(count(of.server.engine.stalls))),
    ),
    gauge(
        "process_resident_memory_bytes",
        "Memory of the process, where the system tells.",
        Server(|of| of.process.memory.and_then(count)),
    ),
    gauge(
        "process_open_fds",
        "File descriptors that the process has open, where the system tells.",
        Server(|of| of.process.open_files.and_then(count)),
    ),
    gauge(
        "process_max_fds",
        "File descriptors that the process may have open. The server raises the soft limit to the hard one.",
        Server(|of| of.process.open_files_max.and_then(count)),
    ),
    gauge(
        "forebay_left_out",
        "Streams and groups without figures of their own here, because there are more than `metrics_series_max`.",
        Each("what", |of| {
            vec![("streams", of.shown.streams_left_out as f64), ("groups", of.shown.groups_left_out as f64)]
        }),
    ),
    gauge(
        "forebay_left_out_messages",
        "Messages of the groups without figures of their own here, by whether they are not settled yet or parked.",
        Each("state", |of| {
            vec![("unsettled", of.shown.lag_left_out as f64), ("parked", of.shown.parked_left_out as f64)]
        }),
    ),
    counter(
        "forebay_otlp_exports_total",
        "Exports of metrics over OTLP, by whether the collector took them. Missing without `otlp_endpoint`.",
        Each("result", |of| {
            let Some((sent, dropped)) = of.exports else { return Vec::new() };
            vec![("sent", sent as f64), ("dropped", dropped as f64)]
        }),
    ),
    counter(
        "forebay_otlp_spans_total",
        "Spans of traced messages, by whether the collector took them. Missing without `otlp_traces`.",
        Each("result", |of| {
            let Some((sent, dropped)) = of.spans else { return Vec::new() };
            vec![("sent", sent as f64), ("dropped", dropped as f64)]
        }),
    ),
    Metric {
        name: "forebay_commit_seconds",
        kind: "histogram",
        help: "From the decision about a publish, an answer or a change until it was durable. Every confirmed publish \
               waited for as long.",
        source: Source::Histogram(|of| &of.server.commit_times),
    },
    // Storage.
    Metric {
        name: "forebay_storage_sync_seconds",
        kind: "histogram",
        help: "How long syncs of the log took. Every confirmed publish waited for one.",
        source: Source::Histogram(|of| &of.server.engine.sync_times),
    },
    counter("forebay_storage_syncs_total", "Syncs of the log.", Server(|of| count(of.server.engine.syncs))),
    counter(
        "forebay_storage_synced_bytes_total",
        "Bytes that syncs made durable, headers and padding included. Divided by the syncs: the batch size.",
        Server(|of| count(of.server.engine.synced_bytes)),
    ),
    counter(
        "forebay_storage_synced_frames_total",
        "Frames that syncs made durable.",
        Server(|of| count(of.server.engine.synced_frames)),
    ),
    gauge(
        "forebay_storage_frames_waiting",
        "Frames that wait to be written.",
        Server(|of| count(of.server.engine.frames_waiting)),
    ),
    gauge(
        "forebay_storage_segments",
        "Segment files of the log.",
        Server(|of| count(of.server.engine.segments)),
    ),
    counter(
        "forebay_storage_segments_deleted_total",
        "Segment files that were deleted because nothing in them is needed.",
        Server(|of| count(of.server.engine.segments_deleted)),
    ),
    counter(
        "forebay_storage_segment_retries_total",
        "Attempts to make a segment that commits waited for, which found no space, descriptor or memory.",
        Server(|of| count(of.server.engine.segment_retries)),
    ),
    gauge(
        "forebay_storage_free_bytes",
        "Space that the log may still take, beside its reserve.",
        Server(|of| of.server.engine.free_bytes.and_then(count)),
    ),
    counter("forebay_storage_reads_total", "Reads from the log.", Server(|of| count(of.server.engine.reads))),
    counter(
        "forebay_storage_damaged_places_total",
        "Places of the stored data that were found damaged or unreadable.",
        Server(|of| count(of.server.engine.damaged_places)),
    ),
    counter(
        "forebay_storage_read_bytes_total",
        "Bytes that reads from the log brought.",
        Server(|of| count(of.server.engine.read_bytes)),
    ),
    counter(
        "forebay_storage_images_total",
        "Images of the state that were saved.",
        Server(|of| count(of.server.engine.images)),
    ),
    counter(
        "forebay_storage_image_bytes_total",
        "Bytes that saving images wrote.",
        Server(|of| count(of.server.engine.image_bytes)),
    ),
    // The driver.
    counter(
        "forebay_frames_total",
        "Frames that became durable.",
        Server(|of| count(of.server.driver.frames)),
    ),
    counter(
        "forebay_frame_bytes_total",
        "Entries and contents in frames that became durable.",
        Server(|of| count(of.server.driver.frame_bytes)),
    ),
    gauge(
        "forebay_window_bytes",
        "Contents of messages in memory.",
        Server(|of| some(of.server.window_bytes)),
    ),
    counter(
        "forebay_window_hits_total",
        "Messages handed out whose contents were in memory.",
        Server(|of| count(of.server.driver.cache_hits)),
    ),
    counter(
        "forebay_window_misses_total",
        "Messages handed out whose contents had to be read from the log.",
        Server(|of| count(of.server.driver.cache_misses)),
    ),
    counter(
        "forebay_messages_damaged_total",
        "Messages that were parked because their contents cannot be read.",
        Server(|of| count(of.server.driver.damaged)),
    ),
    counter(
        "forebay_content_reads_total",
        "Reads of contents and keys that were begun.",
        Server(|of| count(of.server.driver.reads)),
    ),
    gauge(
        "forebay_content_reads_in_flight",
        "Reads of contents and keys that are on their way.",
        Server(|of| count(of.server.driver.reads_in_flight)),
    ),
    gauge(
        "forebay_content_reads_waiting",
        "Reads of contents and keys that wait for their turn.",
        Server(|of| count(of.server.driver.reads_waiting)),
    ),
    counter("forebay_images_total", "Images that were kept.", Server(|of| count(of.server.driver.images))),
    counter(
        "forebay_reclaimed_stretches_total",
        "Stretches of the log out of which everything needed was copied.",
        Server(|of| count(of.server.driver.reclaim.stretches)),
    ),
    counter(
        "forebay_reclaim_copies_total",
        "Messages that reclaim copied to the end of the log.",
        Server(|of| count(of.server.driver.reclaim.messages)),
    ),
    counter(
        "forebay_reclaim_copied_bytes_total",
        "Contents that reclaim copied to the end of the log.",
        Server(|of| count(of.server.driver.reclaim.bytes)),
    ),
    // Doors.
    gauge("forebay_connections", "Connections that are open.", Listener(|of| &of.open)),
    gauge(
        "forebay_connections_max",
        "Connections that all APIs together may have, so that descriptors are left for the data folder.",
        Server(|of| of.connections_max.and_then(some)),
    ),
    counter(
        "forebay_connections_accepted_total",
        "Connections that were accepted.",
        Listener(|of| &of.accepted),
    ),
    counter(
        "forebay_connections_refused_total",
        "Connections that were refused because as many were open as there may be.",
        Listener(|of| &of.refused),
    ),
    counter(
        "forebay_connections_stalled_total",
        "Connections that were closed because the client did not take a reply for 30 s.",
        Listener(|of| &of.stalled),
    ),
    counter(
        "forebay_unauthenticated_total",
        "Requests without a credential, or with a wrong, expired or revoked one, where one was needed.",
        Listener(|of| &of.unauthenticated),
    ),
    counter(
        "forebay_over_limit_total",
        "Calls that were refused because a client or streams are at a limit, by the line of `limits_file`, \
         or `id:` and the id of a credential with limits of its own.",
        Limits,
    ),
    gauge(
        "forebay_issuer_keys",
        "Keys of the issuer of tokens that are in force, if they are fetched.",
        Server(|of| some(of.issuer?.keys)),
    ),
    gauge(
        "forebay_issuer_keys_age_seconds",
        "How long ago the keys of the issuer were last fetched. It grows while the issuer does not answer.",
        Server(|of| Some(of.issuer?.age?.as_secs_f64())),
    ),
    counter(
        "forebay_issuer_fetches_total",
        "Attempts to fetch the keys of the issuer of tokens.",
        Server(|of| count(of.issuer?.fetches)),
    ),
    counter(
        "forebay_issuer_fetch_failures_total",
        "Attempts that brought no keys: the issuer did not answer, or what it sent cannot be used.",
        Server(|of| count(of.issuer?.failures)),
    ),
    gauge(
        "forebay_reply_bytes",
        "Replies with contents that are being encoded or that clients have not taken yet.",
        Server(|of| some(of.memory.replies)),
    ),
    gauge(
        "forebay_reply_bytes_max",
        "The setting `reply_bytes`. Small replies are sent beyond it.",
        Server(|of| some(of.memory.replies_max)),
    ),
    gauge(
        "forebay_handed_out_bytes",
        "Contents that were handed to consumers and are not encoded yet: queues of connected consumers, and receives.",
        Server(|of| some(of.memory.handed_out)),
    ),
    counter(
        "forebay_replies_refused_total",
        "Requests that were refused because there was no room for their reply.",
        Server(|of| count(of.memory.refused)),
    ),
    counter(
        "forebay_consumers_held_back_total",
        "How often a connected consumer was given nothing more until it had taken messages out of its queue.",
        Server(|of| count(of.memory.held_back)),
    ),
    counter("forebay_panics_total", "Handlers that panicked. Each is a bug.", OfDoor(|of| &of.panics)),
    counter(
        "forebay_requests_total",
        "Requests that were answered, by call and by the kind of the problem, `none` for none. A gRPC call that \
         streams counts when it begins.",
        Requests,
    ),
    // Streams.
    gauge(
        "forebay_stream_last_seq",
        "Position of the newest message.",
        Stream(|of| of.figures.last.0 as f64),
    ),
    gauge(
        "forebay_stream_first_seq",
        "Position of the oldest message that is kept.",
        Stream(|of| of.figures.first.0 as f64),
    ),
    gauge(
        "forebay_stream_messages",
        "Messages that count towards the stream's limit.",
        Stream(|of| of.figures.messages as f64),
    ),
    gauge(
        "forebay_stream_bytes",
        "Bytes that count towards the stream's limit.",
        Stream(|of| of.figures.bytes as f64),
    ),
    gauge("forebay_stream_delayed", "Messages that are not due yet.", Stream(|of| of.figures.delayed as f64)),
    gauge(
        "forebay_stream_published_per_second",
        "Messages published, averaged over a minute.",
        Stream(|of| of.published.minute),
    ),
    // Groups.
    gauge("forebay_group_lag", "Messages not yet settled.", Group(|of| of.figures.lag as f64)),
    gauge(
        "forebay_group_delayed",
        "Messages not yet settled that are not due yet.",
        Group(|of| of.figures.delayed as f64),
    ),
    gauge("forebay_group_ready", "Messages that can be handed out now.", Group(|of| of.figures.ready as f64)),
    gauge("forebay_group_waiting", "Messages that wait for a retry.", Group(|of| of.figures.waiting as f64)),
    gauge(
        "forebay_group_in_flight",
        "Messages that consumers hold.",
        Group(|of| of.figures.in_flight as f64),
    ),
    gauge("forebay_group_parked", "Parked messages.", Group(|of| of.figures.parked as f64)),
    gauge("forebay_group_consumers", "Consumers.", Group(|of| of.figures.consumers as f64)),
    gauge(
        "forebay_group_oldest_age_seconds",
        "Time since the oldest message that is not settled was published, or came due.",
        Group(|of| of.figures.oldest_age.map_or(0.0, |age| age.as_secs_f64())),
    ),
    gauge(
        "forebay_group_oldest_parked_age_seconds",
        "Age of the oldest parked message.",
        Group(|of| of.figures.oldest_parked_age.map_or(0.0, |age| age.as_secs_f64())),
    ),
    gauge(
        "forebay_group_checkpointed_seq",
        "Progress that the last checkpoint wrote down.",
        Group(|of| of.figures.checkpoint.0 as f64),
    ),
    gauge(
        "forebay_group_settled_per_second",
        "Messages settled, averaged over a minute.",
        Group(|of| of.throughput.settled.minute),
    ),
    gauge(
        "forebay_group_paused",
        "1 while the group is paused.",
        Group(|of| f64::from(u8::from(of.figures.status == Status::Paused))),
    ),
    counter(
        "forebay_group_delivered_total",
        "Messages handed out.",
        Group(|of| of.figures.counters.delivered as f64),
    ),
    counter("forebay_group_acked_total", "Messages acked.", Group(|of| of.figures.counters.acked as f64)),
    counter(
        "forebay_group_retried_total",
        "Messages that were to be tried again.",
        Group(|of| of.figures.counters.retried as f64),
    ),
    counter("forebay_group_parked_total", "Messages parked.", Group(|of| of.figures.counters.parked as f64)),
    counter(
        "forebay_group_timed_out_total",
        "Leases that ran out.",
        Group(|of| of.figures.counters.timed_out as f64),
    ),
    counter(
        "forebay_group_skipped_total",
        "Messages skipped.",
        Group(|of| of.figures.counters.skipped as f64),
    ),
    counter(
        "forebay_group_expired_total",
        "Messages that were not handed out before they expired.",
        Group(|of| of.figures.counters.expired as f64),
    ),
    counter(
        "forebay_group_moved_total",
        "Messages moved to another stream.",
        Group(|of| of.figures.counters.moved as f64),
    ),
    counter(
        "forebay_group_dropped_total",
        "Messages dropped to make room, or purged.",
        Group(|of| of.figures.counters.dropped as f64),
    ),
    counter(
        "forebay_group_returned_total",
        "Messages given back untried.",
        Group(|of| of.figures.counters.returned as f64),
    ),
    counter(
        "forebay_group_replayed_total",
        "Parked messages that were brought back.",
        Group(|of| of.figures.counters.replayed as f64),
    ),
    counter(
        "forebay_group_discarded_total",
        "Parked messages that were discarded.",
        Group(|of| of.figures.counters.discarded as f64),
    ),
    Metric {
        name: "forebay_group_processing_seconds",
        kind: "histogram",
        help: "From the delivery of a message to the answer of its consumer, for groups with `extra_statistics`.",
        source: GroupTimes(|of| Some(Times::of_bands(&of.processing_bands?, &BANDS))),
    },
    Metric {
        name: "forebay_group_end_to_end_seconds",
        kind: "histogram",
        help: "From the publish of a message to its ack, for groups with `extra_statistics`. Messages that are parked, \
               skipped, moved or expired are not counted.",
        source: GroupTimes(|of| Some(Times::of_bands(&of.end_to_end?, &END_TO_END_BANDS))),
    },
];

fn some(value: usize) -> Option<f64> {
    Some(value as f64)
}

fn count(value: u64) -> Option<f64> {
    Some(value as f64)
}

fn flag(is_so: bool) -> Option<f64> {
    Some(f64::from(u8::from(is_so)))
}

pub(super) async fn write(door: &Door, service: &Service) -> Result<String, Failure> {
    let mut out = Text::default();
    Scrape::take(door, service).await?.tell(&mut out);
    Ok(out.0)
}

/// A form in which metrics are written down.
pub(in crate::native) trait Form {
    /// The values that follow are of this metric.
    fn begin(&mut self, metric: &'static Metric);
    fn value(&mut self, labels: Labels<'_>, value: f64);
    fn histogram(&mut self, labels: Labels<'_>, times: &Times);
}

/// The times of a histogram.
pub(in crate::native) struct Times {
    /// Upper bounds of the buckets in seconds, with the number of times that were shorter.
    pub(in crate::native) buckets: Vec<(f64, u64)>,
    pub(in crate::native) count: u64,
    /// In seconds.
    pub(in crate::native) sum: f64,
}

impl Times {
    fn of(times: &Histogram) -> Times {
        let buckets = BANDS.iter().map(|power| (bound(*power), times.shorter_than(*power))).collect();
        Times { buckets, count: times.count(), sum: times.sum().as_secs_f64() }
    }

    fn of_bands<const N: usize>(bands: &Bands<N>, ends: &[u32]) -> Times {
        let buckets = ends.iter().zip(bands.shorter).map(|(power, count)| (bound(*power), count)).collect();
        Times { buckets, count: bands.shorter[N - 1], sum: bands.sum.as_secs_f64() }
    }
}

/// The end of a band in seconds.
fn bound(power: u32) -> f64 {
    (1_u64 << power) as f64 / 1e6
}

pub(in crate::native) type Labels<'a> = &'a [(&'static str, &'a str)];

impl Scrape {
    pub(in crate::native) async fn take(door: &Door, service: &Service) -> Answer<Scrape> {
        let server = service.server().await?;
        let shown = door.0.chosen.look(service, door.0.metrics_series_max).await?;
        let broker = door.broker();
        let mut over_limit = broker.tenants().refusals();
        over_limit.extend(broker.credentials().refusals());
        Ok(Scrape {
            server,
            stage: broker.stage(),
            doors: broker.doors().all(),
            connections_max: broker.doors().connections_max(),
            memory: broker.memory().figures(),
            over_limit,
            issuer: broker.credentials().issuer_figures(),
            process: (door.0.process)(),
            exports: door.0.exports.as_ref().map(Exports::counts),
            spans: door.0.exports.as_ref().and_then(Exports::span_counts),
            shown,
        })
    }

    /// Every metric with its values, in the order of the table.
    pub(in crate::native) fn tell(&self, out: &mut impl Form) {
        for metric in METRICS {
            out.begin(metric);
            let load = |value: &AtomicU64| value.load(Ordering::Relaxed) as f64;
            match &metric.source {
                Server(value) => {
                    if let Some(value) = value(self) {
                        out.value(&[], value);
                    }
                }
                Each(label, values) => {
                    for (of, value) in values(self) {
                        out.value(&[(*label, of)], value);
                    }
                }
                Source::Histogram(times) => out.histogram(&[], &Times::of(times(self))),
                Listener(value) => {
                    for door in self.doors.iter().filter(|door| door.listens.load(Ordering::Relaxed)) {
                        out.value(&[("door", door.name)], load(value(door)));
                    }
                }
                OfDoor(value) => {
                    for door in &self.doors {
                        out.value(&[("door", door.name)], load(value(door)));
                    }
                }
                Requests => {
                    for door in &self.doors {
                        for (call, problem, count) in door.requests() {
                            let labels = [("door", door.name), ("call", &*call), ("problem", &*problem)];
                            out.value(&labels, count as f64);
                        }
                    }
                }
                Limits => {
                    for (tenant, limit, count) in &self.over_limit {
                        out.value(&[("tenant", &**tenant), ("limit", limit.name())], *count as f64);
                    }
                }
                Stream(value) => {
                    for stream in &self.shown.streams {
                        out.value(&[("stream", stream.name.as_str())], value(stream));
                    }
                }
                Group(value) => {
                    for group in &self.shown.groups {
                        out.value(&labels(group), value(group));
                    }
                }
                GroupTimes(times) => {
                    for group in &self.shown.groups {
                        if let Some(times) = times(group) {
                            out.histogram(&labels(group), &times);
                        }
                    }
                }
            }
        }
    }
}

fn labels(group: &GroupReport) -> [(&'static str, &str); 2] {
    [("stream", group.stream.as_str()), ("group", group.name.as_str())]
}

/// The text format of Prometheus.
#[derive(Default)]
struct Text(String, &'static str);

impl Text {
    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(self.1);
        self.0.push_str(suffix);
        for (n, (label, text)) in labels.iter().enumerate() {
            self.0.push(if n == 0 { '{' } else { ',' });
            let _ = write!(self.0, "{label}=\"");
            for c in text.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    c => self.0.push(c),
                }
            }
            self.0.push('"');
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }
}

impl Form for Text {
    fn begin(&mut self, &Metric { name, kind, help, .. }: &'static Metric) {
        self.1 = name;
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn value(&mut self, labels: Labels<'_>, value: f64) {
        self.line("", labels, value);
    }

    fn histogram(&mut self, labels: Labels<'_>, times: &Times) {
        for (bound, count) in &times.buckets {
            self.line("_bucket", &[labels, &[("le", &bound.to_string())]].concat(), count);
        }
        self.line("_bucket", &[labels, &[("le", "+Inf")]].concat(), times.count);
        self.line("_sum", labels, times.sum);
        self.line("_count", labels, times.count);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::SocketAddr;
    use std::time::Duration;

    use forebay_broker::api::{Doors, Limit};
    use forebay_core::types::Timestamp;

    use super::*;

    #[test]
    fn a_name_cannot_break_out_of_its_label() {
        let mut text = Text(String::new(), "x");
        text.value(&[("stream", "a\"}\\\n"), ("group", "b")], 1.5);
        assert_eq!(text.0, "x{stream=\"a\\\"}\\\\\\n\",group=\"b\"} 1.5\n");
    }

    #[test]
    fn every_metric_has_a_name_of_its_own_and_a_sentence() {
        let names: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for Metric { name, help, .. } in METRICS {
            assert!(help.ends_with('.') && !help.contains('\n'), "{name}: {help}");
        }
    }

    #[test]
    fn figures_of_storage_and_doors_are_shown() {
        let doors = Doors::default();
        let native = doors.door("native");
        native.listens.store(true, Ordering::Relaxed);
        let _connected = native.connect(SocketAddr::from(([127, 0, 0, 1], 1)), Timestamp(0));
        doors.door("http").count("get_streams", Some("busy"));
        let mut server = ServerReport::default();
        server.engine.syncs = 2;
        server.engine.sync_times.record(Duration::from_micros(300));
        server.engine.sync_times.record(Duration::from_secs(60));
        server.engine.free_bytes = Some(7);
        server.driver.cache_misses = 3;
        let stage = Stage::Running;
        let (connections_max, process) = (doors.connections_max(), ProcessFigures::default());
        let (doors, memory) = (doors.all(), MemoryFigures::default());
        let over_limit = vec![("team-*".into(), Limit::Requests, 4)];
        let issuer = Some(IssuerFigures { keys: 2, fetches: 9, failures: 3, age: None });
        let mut text = Text::default();
        let scrape = Scrape {
            server,
            stage,
            doors,
            connections_max,
            memory,
            over_limit,
            issuer,
            process,
            exports: None,
            spans: None,
            shown: Shown { groups_left_out: 3, lag_left_out: 70, ..Shown::default() },
        };
        scrape.tell(&mut text);
        let text = text.0;
        for line in [
            "# TYPE forebay_storage_sync_seconds histogram",
            "forebay_storage_sync_seconds_bucket{le=\"0.000256\"} 0",
            "forebay_storage_sync_seconds_bucket{le=\"0.001024\"} 1",
            "forebay_storage_sync_seconds_bucket{le=\"+Inf\"} 2",
            "forebay_storage_sync_seconds_sum 60.0003",
            "forebay_storage_syncs_total 2",
            "forebay_left_out{what=\"groups\"} 3",
            "forebay_left_out_messages{state=\"unsettled\"} 70",
            "forebay_storage_free_bytes 7",
            "forebay_window_misses_total 3",
            "forebay_connections{door=\"native\"} 1",
            "forebay_issuer_keys 2",
            "forebay_issuer_fetch_failures_total 3",
            "forebay_over_limit_total{tenant=\"team-*\",limit=\"requests\"} 4",
            "forebay_requests_total{door=\"http\",call=\"get_streams\",problem=\"busy\"} 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
    }

    /// `UPDATE_EXPECT=1 cargo test -p forebay-doors --lib metrics` writes the page.
    #[test]
    fn the_page_of_the_reference_says_what_the_table_says() {
        let mut page = String::from(
            "# Metrics\n\n\
             `GET /metrics` on the native port answers in the text format of Prometheus. Counters begin at\n\
             zero when the server starts. Bounds of histograms are in seconds.\n\n\
             Up to 2,000 streams and as many groups have figures of their own; the setting `metrics_series_max`\n\
             changes the number. Of more, groups that need an operator come first, then those with the largest\n\
             backlog, and of streams those with the most messages. A series that was there at the last scrape is\n\
             given up only for a group in need or for more than twice its backlog. `forebay_left_out` counts the\n\
             others.\n\n\
             This page is written from the table in `crates/doors/src/native/http/metrics.rs`, by\n\
             `UPDATE_EXPECT=1 cargo test -p forebay-doors --lib metrics`. To add a metric, count it where it\n\
             happens and add a row to that table.\n\n\
             | Metric | Type | Labels | Meaning |\n| --- | --- | --- | --- |\n",
        );
        for Metric { name, kind, help, source } in METRICS {
            let labels = match source {
                Server(_) => "",
                Each(label, _) => label,
                Source::Histogram(_) => "`le`",
                OfDoor(_) | Listener(_) => "`door`",
                Requests => "`door`, `call`, `problem`",
                Limits => "`tenant`, `limit`",
                Stream(_) => "`stream`",
                Group(_) => "`stream`, `group`",
                GroupTimes(_) => "`stream`, `group`, `le`",
            };
            let labels = match source {
                Each(..) => format!("`{labels}`"),
                _ => labels.to_owned(),
            };
            let _ = writeln!(page, "| `{name}` | {kind} | {labels} | {help} |");
        }
        expect_test::expect_file!["../../../../../docs/reference/metrics.md"].assert_eq(&page);
    }
}
