//! Figures in the text format of Prometheus. By hand: it is a line for each figure.
//!
//! Labels are names of streams and groups, and of no more than [`LABELLED_MAX`] of each: whoever watches many
//! servers pays for every label. Of more, the first by name are shown, and `forebay_left_out` says how many are
//! not. Consumers and keys are never labels.

use std::fmt::{Display, Write as _};

use forebay_broker::broker::Stage;
use forebay_broker::caller::Caller;
use forebay_broker::report::{GroupReport, StreamReport};
use forebay_core::group::{Counters, Status};

use super::Door;
use super::failure::Failure;

/// Streams, and groups, that have figures of their own.
const LABELLED_MAX: usize = 1_000;
const PAGE: usize = 250;

pub(super) async fn write(door: &Door, caller: &Caller) -> Result<String, Failure> {
    let server = caller.server().await?;
    let mut streams: Vec<StreamReport> = Vec::new();
    let mut after = None;
    while streams.len() < LABELLED_MAX {
        let page = caller.streams(after, PAGE).await?;
        streams.extend(page.items);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut groups: Vec<GroupReport> = Vec::new();
    let mut after = None;
    while groups.len() < LABELLED_MAX {
        let page = caller.groups(None, after, PAGE).await?;
        groups.extend(page.items);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    streams.truncate(LABELLED_MAX);
    groups.truncate(LABELLED_MAX);
    let mut out = Text::default();
    let stage = door.broker().stage();
    out.one("forebay_ready", "gauge", "1 while the server takes work.", u8::from(stage == Stage::Running));
    out.one("forebay_streams", "gauge", "Streams there are.", server.streams);
    out.one("forebay_groups", "gauge", "Groups there are.", server.groups);
    out.head("forebay_consumers", "gauge", "Consumers there are.");
    out.line("forebay_consumers", &[("kind", "connected")], server.connected);
    out.line("forebay_consumers", &[("kind", "polling")], server.polling);
    out.one("forebay_receives_waiting", "gauge", "Receives that wait for a message.", server.waiting);
    let full = u8::from(server.storage_full);
    out.one("forebay_storage_full", "gauge", "1 while storage has no room for messages.", full);
    out.one("forebay_window_bytes", "gauge", "Contents held in memory.", server.window_bytes);
    out.one("forebay_epoch", "counter", "How often the log was opened.", server.epoch);
    let open = door.broker().doors().door("native").open.load(std::sync::atomic::Ordering::Relaxed);
    out.one("forebay_connections", "gauge", "Connections to the native door.", open);
    if let Some(bytes) = (door.0.memory)() {
        out.one("process_resident_memory_bytes", "gauge", "Memory of the process.", bytes);
    }
    out.head("forebay_left_out", "gauge", "What is too many to have figures of its own here.");
    out.line("forebay_left_out", &[("what", "streams")], server.streams.saturating_sub(streams.len()));
    out.line("forebay_left_out", &[("what", "groups")], server.groups.saturating_sub(groups.len()));
    write_streams(&mut out, &streams);
    write_groups(&mut out, &groups);
    write_processing(&mut out, &groups);
    Ok(out.0)
}

type OfStream = fn(&StreamReport) -> f64;

fn write_streams(out: &mut Text, streams: &[StreamReport]) {
    let figures: [(&str, &str, &str, OfStream); 6] = [
        ("forebay_stream_last_seq", "counter", "The newest message.", |of| of.figures.last.0 as f64),
        ("forebay_stream_first_seq", "counter", "The oldest message kept.", |of| of.figures.first.0 as f64),
        ("forebay_stream_messages", "gauge", "Messages against its limit.", |of| of.figures.messages as f64),
        ("forebay_stream_bytes", "gauge", "Bytes against its limit.", |of| of.figures.bytes as f64),
        ("forebay_stream_delayed", "gauge", "Messages not due yet.", |of| of.figures.delayed as f64),
        ("forebay_stream_published_per_second", "gauge", "Over a minute.", |of| of.published.minute),
    ];
    for (name, kind, help, figure) in figures {
        out.head(name, kind, help);
        for stream in streams {
            out.line(name, &[("stream", stream.name.as_str())], figure(stream));
        }
    }
}

type OfGroup = fn(&GroupReport) -> f64;
type OfCounters = fn(&Counters) -> u64;

fn write_groups(out: &mut Text, groups: &[GroupReport]) {
    let figures: [(&str, &str, OfGroup); 11] = [
        ("forebay_group_lag", "Messages not yet settled.", |of| of.figures.lag as f64),
        ("forebay_group_ready", "Messages that could go out now.", |of| of.figures.ready as f64),
        ("forebay_group_waiting", "Messages waiting for a retry.", |of| of.figures.waiting as f64),
        ("forebay_group_in_flight", "Messages with consumers.", |of| of.figures.in_flight as f64),
        ("forebay_group_parked", "Messages set aside.", |of| of.figures.parked as f64),
        ("forebay_group_consumers", "Consumers.", |of| of.figures.consumers as f64),
        ("forebay_group_oldest_age_seconds", "Age of the oldest message not yet settled.", |of| {
            of.figures.oldest_age.map_or(0.0, |age| age.as_secs_f64())
        }),
        ("forebay_group_oldest_parked_age_seconds", "Age of the oldest parked message.", |of| {
            of.figures.oldest_parked_age.map_or(0.0, |age| age.as_secs_f64())
        }),
        ("forebay_group_checkpointed_seq", "Progress that is written down.", |of| {
            of.figures.checkpoint.0 as f64
        }),
        ("forebay_group_settled_per_second", "Over a minute.", |of| of.throughput.settled.minute),
        ("forebay_group_paused", "1 while it hands out nothing.", |of| {
            f64::from(u8::from(of.figures.status == Status::Paused))
        }),
    ];
    for (name, help, figure) in figures {
        out.head(name, "gauge", help);
        for group in groups {
            out.line(name, &labels(group), figure(group));
        }
    }
    let counters: [(&str, &str, OfCounters); 12] = [
        ("forebay_group_delivered_total", "Handed out.", |of| of.delivered),
        ("forebay_group_acked_total", "Acked.", |of| of.acked),
        ("forebay_group_retried_total", "To be tried again.", |of| of.retried),
        ("forebay_group_parked_total", "Set aside.", |of| of.parked),
        ("forebay_group_timed_out_total", "Leases that ran out.", |of| of.timed_out),
        ("forebay_group_skipped_total", "Skipped.", |of| of.skipped),
        ("forebay_group_expired_total", "Not handed out in their time.", |of| of.expired),
        ("forebay_group_moved_total", "Moved to another stream.", |of| of.moved),
        ("forebay_group_dropped_total", "Dropped to make room, or purged.", |of| of.dropped),
        ("forebay_group_returned_total", "Given back untried.", |of| of.returned),
        ("forebay_group_replayed_total", "Brought back from being parked.", |of| of.replayed),
        ("forebay_group_discarded_total", "Let go while parked.", |of| of.discarded),
    ];
    for (name, help, counter) in counters {
        out.head(name, "counter", help);
        for group in groups {
            out.line(name, &labels(group), counter(&group.figures.counters));
        }
    }
}

fn write_processing(out: &mut Text, groups: &[GroupReport]) {
    let name = "forebay_group_processing_seconds";
    out.head(name, "summary", "From the delivery to the answer.");
    for group in groups {
        let Some(times) = &group.processing else { continue };
        let [stream, of] = labels(group);
        for (quantile, time) in [
            ("0.5", times.p50),
            ("0.9", times.p90),
            ("0.95", times.p95),
            ("0.99", times.p99),
            ("0.999", times.p999),
        ] {
            out.line(name, &[stream, of, ("quantile", quantile)], time.as_secs_f64());
        }
        let sum = times.mean.as_secs_f64() * times.count as f64;
        out.line("forebay_group_processing_seconds_sum", &[stream, of], sum);
        out.line("forebay_group_processing_seconds_count", &[stream, of], times.count);
    }
}

fn labels(group: &GroupReport) -> [(&'static str, &str); 2] {
    [("stream", group.stream.as_str()), ("group", group.name.as_str())]
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.line(name, &[], value);
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_break_out_of_its_label() {
        let mut text = Text::default();
        text.line("x", &[("stream", "a\"}\\\n"), ("group", "b")], 1.5);
        text.one("y", "gauge", "Why.", 2);
        assert_eq!(
            text.0,
            "x{stream=\"a\\\"}\\\\\\n\",group=\"b\"} 1.5\n# HELP y Why.\n# TYPE y gauge\ny 2\n"
        );
    }
}
