//! What Forebay has promised to reach, and whether it did.

use std::fmt::Write as _;

use super::report::short;
use super::results::Results;

/// A goal of Forebay, and its measurement.
#[derive(Debug)]
struct Promise {
    text: String,
    /// The measurement, if there is one.
    figure: Option<f64>,
    /// What the figure must be: at least this, or at most.
    bar: Bar,
    unit: &'static str,
    /// How Forebay stands to the best log, where it is compared with peers.
    to_log: Option<String>,
}

#[derive(Debug, Clone, Copy)]
enum Bar {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

impl Bar {
    fn is_met(self, figure: f64) -> bool {
        match self {
            Bar::AtLeast(bar) => figure >= bar,
            Bar::AtMost(bar) => figure <= bar,
            Bar::Below(bar) => figure < bar,
        }
    }
}

impl std::fmt::Display for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bar::AtLeast(bar) => write!(f, "≥ {bar}"),
            Bar::AtMost(bar) => write!(f, "≤ {bar}"),
            Bar::Below(bar) => write!(f, "< {bar}"),
        }
    }
}

const ABOUT: &str = "\
    Kafka is a log and not a queue: a consumer commits the offset up to which it is done, so that one slow message \
    holds up or skips others, and order is by partition only. Promises are therefore held against the best peers \
    that ack each message, and the last column says how Forebay stands to Kafka: to Kafka with a sync before the \
    answer where syncing peers are meant, otherwise to the faster of its two settings.";

pub(super) fn write(out: &mut String, results: &Results) -> std::fmt::Result {
    writeln!(out, "## Promises\n\n{ABOUT}\n")?;
    writeln!(out, "| promise | bar | measured | | beside Kafka |\n| --- | --- | --- | --- | --- |")?;
    for Promise { text, figure, bar, unit, to_log } in all(results) {
        let (measured, verdict) = match figure {
            None => ("–".to_owned(), "not measured"),
            Some(figure) if bar.is_met(figure) => (format!("{}{unit}", short(figure)), "met"),
            Some(figure) => (format!("{}{unit}", short(figure)), "**not met**"),
        };
        let to_log = to_log.unwrap_or_default();
        writeln!(out, "| {text} | {bar}{unit} | {measured} | {verdict} | {to_log} |")?;
    }
    writeln!(out)
}

fn all(results: &Results) -> Vec<Promise> {
    let own = |workload: &str, figure: &str| results.median(workload, "forebay", figure);
    let to_floor = |workload: &str, figure: &str| {
        Some(own(workload, figure)? / results.median(workload, "floor", figure)?)
    };
    let promise =
        |text: &str, figure, bar, unit| Promise { text: text.to_owned(), figure, bar, unit, to_log: None };
    let to_log = |workload: &str, figure: &str, is_syncing, is_more_better| {
        let (log, best) = results.best_log(workload, figure, is_syncing, is_more_better)?;
        Some(format!("{}× ({})", short(own(workload, figure)? / best), log.name))
    };
    let beside = |text: &str, workload: &str, is_syncing, bar| {
        let best = results.best(workload, "rate", is_syncing, true);
        let which = if is_syncing { "the best syncing peer" } else { "the best peer that does not sync" };
        let who = best.map(|(about, _)| format!(" ({})", about.name)).unwrap_or_default();
        let figure = own(workload, "rate").zip(best).map(|(rate, (_, best))| rate / best);
        Promise {
            text: format!("{text}, beside {which}{who}"),
            figure,
            bar: Bar::AtLeast(bar),
            unit: "×",
            to_log: to_log(workload, "rate", is_syncing, true),
        }
    };
    let below_peers = |text: &str, figure: &str| {
        let best = results.best("latency", figure, true, false);
        let who = best.map(|(about, _)| format!(" ({})", about.name)).unwrap_or_default();
        Promise {
            text: format!("{text}, beside the best syncing peer{who}"),
            figure: own("latency", figure).zip(best).map(|(own, (_, best))| own / best),
            bar: Bar::Below(1.0),
            unit: "×",
            to_log: to_log("latency", figure, true, false),
        }
    };
    let ratio = |one: Option<f64>, other: Option<f64>| Some(one? / other?);
    vec![
        beside("steady, 100 bytes", "steady-100", true, 5.0),
        beside("steady, 100 bytes", "steady-100", false, 4.0),
        beside("steady, 1 KiB", "steady-1k", true, 6.0),
        beside("steady, 1 KiB", "steady-1k", false, 2.0),
        beside("publish only, window 1,024", "publish-1024", true, 3.0),
        beside("drain only", "drain", true, 3.0),
        promise(
            "publish only, window 64, beside the floor",
            to_floor("publish-64", "rate"),
            Bar::AtLeast(0.7),
            "×",
        ),
        promise(
            "server CPU for a message, steady, 100 bytes",
            own("steady-100", "cpu_us"),
            Bar::AtMost(2.0),
            " µs",
        ),
        promise("one at a time, beside the floor", to_floor("window-1", "us"), Bar::AtMost(1.3), "×"),
        promise(
            "latency at 5,000 a second, p50, beside the floor",
            to_floor("latency", "p50_ms"),
            Bar::AtMost(2.0),
            "×",
        ),
        promise(
            "latency at 5,000 a second, p99, beside the floor",
            to_floor("latency", "p99_ms"),
            Bar::AtMost(2.0),
            "×",
        ),
        below_peers("latency, p50", "p50_ms"),
        below_peers("latency, p99", "p99_ms"),
        promise(
            "drain with 5 million waiting, beside 10 thousand",
            ratio(own("backlog-5m", "rate"), own("backlog-10k", "rate")),
            Bar::AtLeast(0.9),
            "×",
        ),
        promise(
            "memory with 1 million of 1 KiB waiting",
            own("restart", "memory_mb"),
            Bar::Below(100.0),
            " MB",
        ),
        promise("first delivery after kill -9", own("restart", "first_ms"), Bar::Below(500.0), " ms"),
        promise(
            "ordered by 100,000 keys, beside unordered",
            ratio(own("ordered", "rate"), own("steady-100", "rate")),
            Bar::AtLeast(0.5),
            "×",
        ),
        promise(
            "bytes written for a message of 100 bytes, without zero-filling",
            own("steady-100", "bytes"),
            Bar::AtMost(200.0),
            "",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::results;
    use super::*;

    #[test]
    fn a_promise_is_met_not_met_or_not_measured() {
        let mut text = String::new();
        write(&mut text, &results::example()).expect("text");
        let has = |line: &str| assert!(text.contains(line), "{line}\n{text}");
        has(
            "| steady, 100 bytes, beside the best syncing peer (CAREFUL) | ≥ 5× | 10.0× | met | 2.50× (LOG-SYNC) |",
        );
        has("that does not sync (CARELESS) | ≥ 4× | 4.00× | met | 0.40× (LOG) |");
        has("| server CPU for a message, steady, 100 bytes | ≤ 2 µs | 1.50 µs | met |  |");
        has("| steady, 1 KiB, beside the best syncing peer | ≥ 6× | – | not measured |  |");
        let mut slow = results::example();
        slow.cell_mut("steady-100", "forebay").samples.iter_mut().for_each(|sample| {
            sample.insert("rate".to_owned(), 450.0);
        });
        text.clear();
        write(&mut text, &slow).expect("text");
        assert!(text.contains("| ≥ 5× | 4.50× | **not met** | 1.12× (LOG-SYNC) |"), "{text}");
    }
}
