//! The final report: figures for people, or one JSON object. Times in the object are in seconds, as everywhere in the
//! API.

use std::time::Duration;

use forebay_core::histogram::{FineHistogram, Summary};
use serde_json::{Value, json};

use super::Mode;
use super::plan::Plan;
use super::stage::{Cost, End, Outcome, Throughput};
use super::tally::summary;
use super::warn;
use crate::print::{self, Output, Table, print_facts};
use crate::safe::printable;
use crate::units;

pub(super) fn print(plan: &Plan, outcome: &Outcome, output: Output) -> anyhow::Result<()> {
    if output == Output::Json {
        return print::print(&format!("{}\n", json_of(plan, outcome)));
    }
    print_facts(&facts(plan, outcome))?;
    let latencies = latencies(outcome);
    if !latencies.is_empty() {
        print::print("\n")?;
        table(&latencies).print()?;
    }
    warnings(plan, outcome).iter().for_each(|text| warn(text));
    Ok(())
}

fn facts(plan: &Plan, outcome: &Outcome) -> Vec<(String, String)> {
    let mut facts = vec![("load", load(plan))];
    let published = throughput(outcome.published, plan.size);
    if plan.mode == Mode::Drain {
        facts.push(("filled", published));
    } else {
        facts.push(("published", published));
    }
    if let Some(acked) = outcome.acked {
        facts.push(("acked", throughput(acked, plan.size)));
    }
    let server = outcome.server.as_ref().map(server);
    facts.push((
        "server",
        server.unwrap_or_else(|| "its CPU, writes and memory are told with --pid".to_owned()),
    ));
    if let Some(cost) = outcome.generator.filter(|cost| cost.messages > 0) {
        facts.push(("this side", format!("{}, {} of memory", cpu(&cost), units::bytes(cost.resident_max))));
    }
    facts.push(("checked", checked(outcome)));
    facts.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
}

fn load(plan: &Plan) -> String {
    let word = match plan.mode {
        Mode::Steady => "steady",
        Mode::Publish => "publish",
        Mode::Drain => "drain",
        Mode::Latency => "latency",
    };
    let mut parts = vec![format!("{word} over {} at {}", plan.place.name(), printable(plan.place.address()))];
    parts.push(format!(
        "{} with batches of {} and windows of {}",
        units::of(plan.producers.into(), "producer"),
        units::count(plan.batch),
        units::count(plan.window)
    ));
    if plan.consumers > 0 {
        let consumers = units::of(plan.consumers.into(), "consumer");
        parts.push(format!("{consumers} with credits of {}", units::count(plan.credit.into())));
    }
    parts.push(units::bytes(plan.size as u64));
    if plan.keys > 0 {
        parts.push(units::of(plan.keys, "key"));
    }
    parts.push(
        plan.rate.map_or("closed loop".to_owned(), |rate| format!("open loop at {}", units::rate(rate))),
    );
    parts.join(", ")
}

fn throughput(of: Throughput, size: usize) -> String {
    let rate = of.per_second();
    let bytes = units::bytes((rate * size as f64) as u64);
    let time = latency(Duration::from_secs_f64(of.seconds));
    format!("{}/s, {bytes}/s: {} in {time}", units::count(rate as u64), units::of(of.count, "message"))
}

fn server(cost: &Cost) -> String {
    let mut parts = Vec::new();
    if cost.messages > 0 {
        parts.push(cpu(cost));
        let written = cost.written.and_then(|written| written.checked_div(cost.messages));
        parts.push(match written {
            Some(bytes) => format!("{} written a message", units::bytes(bytes)),
            None => "bytes written unknown: this user may not trace the process".to_owned(),
        });
    }
    let (now, most) = (units::bytes(cost.resident), units::bytes(cost.resident_max));
    parts.push(format!("{now} of memory, {most} at most"));
    parts.join(", ")
}

fn cpu(cost: &Cost) -> String {
    let micros = cost.cpu_seconds * 1e6 / cost.messages as f64;
    format!("{micros:.2}µs of CPU a message ({:.2} cores)", cores(cost))
}

fn cores(cost: &Cost) -> f64 {
    if cost.seconds > 0.0 { cost.cpu_seconds / cost.seconds } else { 0.0 }
}

fn checked(outcome: &Outcome) -> String {
    let counts = &outcome.counts;
    let confirmed = units::of(counts.confirmed, "message");
    match outcome.lost {
        None => format!("{confirmed} confirmed; whether each came was not waited for"),
        Some(0) if counts.duplicates == 0 && counts.acked == counts.confirmed => {
            format!("{confirmed} confirmed, each delivered and acked once")
        }
        Some(lost) => format!(
            "{confirmed} confirmed, {} lost, {} delivered again, {} acked",
            units::count(lost),
            units::count(counts.duplicates),
            units::count(counts.acked)
        ),
    }
}

/// Remarks on anything that went otherwise than the user may expect.
fn warnings(plan: &Plan, outcome: &Outcome) -> Vec<String> {
    let counts = &outcome.counts;
    let mut warnings = Vec::new();
    let mut warn_of = |count: u64, text: &str| {
        if count > 0 {
            warnings.push(format!("{} {text}", units::of(count, "message")));
        }
    };
    warn_of(
        counts.unsent,
        "due before the end could not be sent in time: the server, or this side, is too slow for the rate",
    );
    let in_hand =
        u64::from(plan.producers) * plan.window + u64::from(plan.consumers) * u64::from(plan.credit);
    let is_behind = matches!(plan.mode, Mode::Steady | Mode::Latency) && outcome.backlog > in_hand;
    warn_of(
        if is_behind { outcome.backlog } else { 0 },
        "waited when the time was over: consumers are slower than producers",
    );
    warn_of(
        counts.refused,
        "refused by the server, which asked to try later; they are not part of the figures",
    );
    warn_of(counts.unknown, "with an unknown outcome");
    warn_of(counts.duplicates, "delivered again");
    warn_of(counts.not_acked, "whose ack came too late to change anything");
    warn_of(counts.foreign, "of another client came out of the stream");
    match outcome.end {
        End::Reached => {}
        End::Interrupted => warnings.push("stopped before the end".to_owned()),
        End::Stalled => warnings.push("nothing happened for a minute, so the run was given up".to_owned()),
        End::Behind => {
            warnings.push("consumers would have needed too long for the remaining messages".to_owned());
        }
    }
    warnings
}

fn latencies(outcome: &Outcome) -> Vec<(&'static str, Summary)> {
    let times = &outcome.times;
    let all: [(_, &FineHistogram); 3] =
        [("publish", &times.publish), ("end to end", &times.end_to_end), ("sent late", &times.delay)];
    all.into_iter().filter_map(|(name, histogram)| Some((name, summary(histogram)?))).collect()
}

fn table(latencies: &[(&'static str, Summary)]) -> Table {
    let mut table = Table::new(&["LATENCY", ">MEAN", ">P50", ">P90", ">P99", ">P99.9", ">MAX"]);
    for (name, it) in latencies {
        let times = [it.mean, it.p50, it.p90, it.p99, it.p999, it.max].map(latency);
        table.row(std::iter::once((*name).to_owned()).chain(times));
    }
    table
}

/// With three digits: `850µs`, `1.50ms`, `12.3ms`, `123ms`, `1.23s`.
pub(super) fn latency(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let (value, unit) = match time.as_micros() {
        micros @ 0..1_000 => return format!("{micros}µs"),
        1_000..1_000_000 => (seconds * 1e3, "ms"),
        1_000_000..100_000_000 => (seconds, "s"),
        _ => return units::age(seconds),
    };
    if value < 9.995 {
        format!("{value:.2}{unit}")
    } else if value < 99.95 {
        format!("{value:.1}{unit}")
    } else {
        format!("{value:.0}{unit}")
    }
}

fn json_of(plan: &Plan, outcome: &Outcome) -> Value {
    let counts = &outcome.counts;
    let times = &outcome.times;
    let per_second = |of: Throughput| of.per_second();
    json!({
        "mode": match plan.mode {
            Mode::Steady => "steady",
            Mode::Publish => "publish",
            Mode::Drain => "drain",
            Mode::Latency => "latency",
        },
        "door": plan.place.name(),
        "address": plan.place.address(),
        "stream": plan.stream,
        "producers": plan.producers,
        "window": plan.window,
        "batch": plan.batch,
        "consumers": plan.consumers,
        "credit": plan.credit,
        "size": plan.size,
        "keys": plan.keys,
        "rate": plan.rate,
        "group": plan.settings,
        "warmup": plan.warmup.as_secs_f64(),
        "published": outcome.published.count,
        "published_time": outcome.published.seconds,
        "published_per_second": outcome.published.per_second(),
        "acked": outcome.acked.map(|acked| acked.count),
        "acked_time": outcome.acked.map(|acked| acked.seconds),
        "acked_per_second": outcome.acked.map(per_second),
        "publish_latency": latency_json(&times.publish),
        "end_to_end_latency": latency_json(&times.end_to_end),
        "send_delay": latency_json(&times.delay),
        "backlog": outcome.acked.map(|_| outcome.backlog),
        "server": outcome.server.as_ref().map(cost),
        "generator": outcome.generator.as_ref().map(cost),
        "check": {
            "confirmed": counts.confirmed,
            "delivered": counts.delivered,
            "acked": counts.acked,
            "lost": outcome.lost,
            "duplicates": counts.duplicates,
            "refused": counts.refused,
            "unknown": counts.unknown,
            "unsent": counts.unsent,
            "not_acked": counts.not_acked,
            "foreign": counts.foreign,
        },
        "end": match outcome.end {
            End::Reached => "reached",
            End::Interrupted => "interrupted",
            End::Stalled => "stalled",
            End::Behind => "behind",
        },
    })
}

fn latency_json(histogram: &FineHistogram) -> Value {
    summary(histogram).map_or(Value::Null, |it| {
        json!({
            "count": it.count,
            "mean": it.mean.as_secs_f64(),
            "p50": it.p50.as_secs_f64(),
            "p90": it.p90.as_secs_f64(),
            "p99": it.p99.as_secs_f64(),
            "p999": it.p999.as_secs_f64(),
            "max": it.max.as_secs_f64(),
        })
    })
}

fn cost(cost: &Cost) -> Value {
    let per_message = |of: f64| (cost.messages > 0).then(|| of / cost.messages as f64);
    json!({
        "cpu_per_message": per_message(cost.cpu_seconds),
        "cores": cores(cost),
        "written_per_message": cost.written.and_then(|written| per_message(written as f64)),
        "resident_bytes": cost.resident,
        "resident_bytes_max": cost.resident_max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_have_three_digits() {
        let shown = |micros| latency(Duration::from_micros(micros));
        let times = [0, 850, 1_500, 9_999, 12_345, 123_456, 999_999, 1_234_567, 99_960_000, 200_000_000];
        let expected =
            ["0µs", "850µs", "1.50ms", "10.0ms", "12.3ms", "123ms", "1000ms", "1.23s", "100s", "3m 20s"];
        assert_eq!(times.map(shown), expected);
    }
}
