//! The table: the measurements, the machine, and Forebay compared with the others.

use std::fmt::Write as _;

use super::results::{About, Figure, Results};
use super::{plot, promises};

/// What stands in the report about a workload.
struct Section {
    workload: &'static str,
    title: &'static str,
    about: &'static str,
    /// The compared value.
    headline: Column,
    is_more_better: bool,
    others: &'static [Column],
}

#[derive(Clone, Copy)]
struct Column {
    figure: &'static str,
    title: &'static str,
    unit: Unit,
}

#[derive(Clone, Copy)]
enum Unit {
    /// Messages a second.
    Rate,
    /// Anything else, with three digits that count.
    Plain,
}

const RATE: Column = Column { figure: "rate", title: "messages a second", unit: Unit::Rate };
const CPU: [Column; 2] = [plain("cpu_us", "server CPU, µs"), plain("client_us", "client CPU, µs")];
const STEADY: [Column; 5] = [
    plain("cpu_us", "server CPU, µs"),
    plain("client_us", "client CPU, µs"),
    plain("bytes", "bytes written"),
    plain("bytes_with_zeros", "with zero-filling"),
    plain("disk_bytes", "bytes to the disk"),
];

const fn plain(figure: &'static str, title: &'static str) -> Column {
    Column { figure, title, unit: Unit::Plain }
}

const SECTIONS: [Section; 13] = [
    Section {
        workload: "steady-100",
        title: "Publish and consume, 100 bytes",
        about: "Two producers with a window of 1,024, four consumers with a prefetch of 256 that ack every message. \
                Counted are acks. Processor time and bytes are for each message. *Bytes written* are those that the \
                kernel counts for the server's processes, without and with files that are filled with zeros before \
                they are written to; *bytes to the disk* are those of the whole machine meanwhile. Zeros are taken \
                off for Forebay and the bare floor only, who fill whole files; PostgreSQL's log is zero-filled too, \
                which stays in its figure.",
        headline: RATE,
        is_more_better: true,
        others: &STEADY,
    },
    Section {
        workload: "steady-1k",
        title: "Publish and consume, 1 KiB",
        about: "Likewise.",
        headline: RATE,
        is_more_better: true,
        others: &STEADY,
    },
    Section {
        workload: "publish-64",
        title: "Publish only, window 64",
        about: "Two producers, 100 bytes, nobody consumes. Counted are confirmations.",
        headline: RATE,
        is_more_better: true,
        others: &CPU,
    },
    Section {
        workload: "publish-1024",
        title: "Publish only, window 1,024",
        about: "Likewise.",
        headline: RATE,
        is_more_better: true,
        others: &CPU,
    },
    Section {
        workload: "drain",
        title: "Drain only",
        about: "Four consumers take what the workload before has published, until all of it is acked, or for five \
                seconds. The clock starts when all of them have their first messages.",
        headline: RATE,
        is_more_better: true,
        others: &CPU,
    },
    Section {
        workload: "window-1",
        title: "One message at a time",
        about: "One producer that waits for each confirmation. Nobody consumes.",
        headline: plain("us", "µs for each"),
        is_more_better: false,
        others: &[plain("cpu_us", "server CPU, µs")],
    },
    Section {
        workload: "latency",
        title: "Latency at 5,000 messages a second",
        about: "Two producers send when messages are due, whatever becomes of those before (at most 1,024 each are \
                unconfirmed), and four consumers ack. All times are in milliseconds and count from when a message \
                was due: to its receipt, and to its confirmation.",
        headline: plain("p50_ms", "p50"),
        is_more_better: false,
        others: &[
            plain("p90_ms", "p90"),
            plain("p99_ms", "p99"),
            plain("max_ms", "max"),
            plain("confirm_p50_ms", "confirmed p50"),
            plain("confirm_p99_ms", "confirmed p99"),
        ],
    },
    Section {
        workload: "ordered",
        title: "Ordered by key",
        about: "Publish and consume, 100 bytes, with 100,000 keys in no order; messages of a key are handled one \
                after the other.",
        headline: RATE,
        is_more_better: true,
        others: &CPU,
    },
    Section {
        workload: "groups-10",
        title: "Ten groups",
        about: "Publish and consume, 100 bytes. Each of ten groups gets every message and has one consumer. Counted \
                are acks of all groups.",
        headline: RATE,
        is_more_better: true,
        others: &CPU,
    },
    Section {
        workload: "backlog-10k",
        title: "Drain with 10 thousand waiting",
        about: "Published before, then drained to the end; the middle one of up to fifteen times.",
        headline: RATE,
        is_more_better: true,
        others: &CPU,
    },
    Section {
        workload: "backlog-1m",
        title: "Drain with 1 million waiting",
        about: "Published before, then drained to the end, or for five seconds.",
        headline: RATE,
        is_more_better: true,
        others: &CPU,
    },
    Section {
        workload: "backlog-5m",
        title: "Drain with 5 million waiting",
        about: "Likewise.",
        headline: RATE,
        is_more_better: true,
        others: &CPU,
    },
    Section {
        workload: "restart",
        title: "Memory and restart with 1 million of 1 KiB waiting",
        about: "Memory in MB, resident; of several processes each counts its part of what they share. Then the server \
                has five seconds of rest and is killed (SIGKILL), and the time runs from the start of the new one to \
                the first message in a consumer's hands, for a minute at most.",
        headline: plain("first_ms", "first delivery, ms"),
        is_more_better: false,
        others: &[
            plain("start_ms", "answers after, ms"),
            plain("memory_mb", "memory, full"),
            plain("memory_after_mb", "memory after the restart"),
        ],
    },
];

pub(super) fn markdown(results: &Results) -> String {
    let mut out = String::new();
    write_all(&mut out, results).expect("text can always be written");
    out
}

fn write_all(out: &mut String, results: &Results) -> std::fmt::Result {
    let machine = &results.machine;
    writeln!(out, "# Forebay beside its peers, {}\n", results.date)?;
    writeln!(
        out,
        "{} cores of {}, {:.0} GB of memory, Linux {}, {}; {} syncs of one page a second. Servers and clients on the \
         same machine. Release build. Measured by `cargo xtask bench peers`.\n",
        machine.cores,
        machine.processor,
        machine.memory_gb,
        machine.kernel,
        machine.file_system,
        rate(machine.syncs_per_second)
    )?;
    writeln!(
        out,
        "A round takes one server after another, with a folder of its own on the same disk: it is started, warmed up, \
         and given every workload on a new queue, {} s each. Figures are medians of {} round{}, with the smallest and \
         the largest beside them; what takes long to fill is measured once where that took more than 20 s. All \
         servers get the same load from the same program: a producer sends again once a sixteenth of its window is \
         confirmed, and then all there is room for; a consumer acks everything it got before it takes more; while \
         there are consumers, producers wait when groups are 20,000 messages behind on average.\n",
        results.seconds,
        results.rounds,
        if results.rounds == 1 { "" } else { "s" }
    )?;
    servers(out, results)?;
    promises::write(out, results)?;
    for name in plot::names(results) {
        writeln!(out, "![{name}]({}-peers-{name}.svg)\n", results.date)?;
    }
    for section in SECTIONS.iter().filter(|section| results.has(section.workload)) {
        section.write(out, results)?;
    }
    Ok(())
}

fn servers(out: &mut String, results: &Results) -> std::fmt::Result {
    writeln!(out, "## The servers\n")?;
    writeln!(out, "| server | version | settings | a confirmed message survives a power cut | acks |")?;
    writeln!(out, "| --- | --- | --- | --- | --- |")?;
    for About { name, version, settings, survives_power_loss, acks_each, .. } in &results.contenders {
        let survives = if *survives_power_loss { "yes" } else { "no" };
        let acks = if *acks_each { "each message" } else { "log: commits an offset" };
        writeln!(out, "| {name} | {version} | {settings} | {survives} | {acks} |")?;
    }
    if !results.absent.is_empty() {
        writeln!(out, "\nNot measured, since not there: {}.", results.absent.join(", "))?;
    }
    writeln!(
        out,
        "\nThe *bare floor* is the least that a server must do that syncs before it answers; the *gRPC floor* is \
         Forebay's protocol without what it is for. *Syncing* peers are those that survive a power cut. \
         Ratios to the best peer are to the best of those that ack each message.\n"
    )
}

impl Section {
    fn write(&self, out: &mut String, results: &Results) -> std::fmt::Result {
        writeln!(out, "## {}\n\n{}\n", self.title, self.about)?;
        let best = |is_syncing| {
            let best = results.best(self.workload, self.headline.figure, is_syncing, self.is_more_better);
            best.map(|(_, figure)| figure)
        };
        let floor = results.median(self.workload, "floor", self.headline.figure);
        let against = [
            ("to the best syncing peer", best(true)),
            ("to the best other peer", best(false)),
            ("to the floor", floor),
        ];
        let titles = self.others.iter().map(|column| column.title).chain(against.map(|(title, _)| title));
        let titles: Vec<&str> = ["server", self.headline.title, "spread"].into_iter().chain(titles).collect();
        writeln!(out, "| {} |", titles.join(" | "))?;
        writeln!(out, "|{}", " --- |".repeat(titles.len()))?;
        let mut notes = Vec::new();
        for about in &results.contenders {
            let Some(cell) = results.cell(self.workload, &about.id) else { continue };
            if let Some(note) = &cell.note {
                notes.push(format!("{}: {note}.", about.name));
            }
            let Some(figure) = results.figure(self.workload, &about.id, self.headline.figure) else {
                writeln!(out, "| {} | – |{}", about.title(), " |".repeat(titles.len() - 2))?;
                continue;
            };
            let mut words =
                vec![about.title(), self.headline.show(figure.median), self.headline.spread(figure)];
            for column in self.others {
                let median = results.median(self.workload, &about.id, column.figure);
                words.push(median.map_or_else(|| "–".to_owned(), |median| column.show(median)));
            }
            let ratio =
                |of: Option<f64>| of.map_or_else(String::new, |of| format!("{}×", short(figure.median / of)));
            words.extend(against.map(|(_, of)| ratio(of)));
            writeln!(out, "| {} |", words.join(" | "))?;
        }
        if !notes.is_empty() {
            writeln!(out, "\n{}", notes.join(" "))?;
        }
        writeln!(out)
    }
}

impl Column {
    fn show(self, figure: f64) -> String {
        match self.unit {
            Unit::Rate => rate(figure),
            Unit::Plain => short(figure),
        }
    }

    fn spread(self, figure: Figure) -> String {
        format!("{} – {}", self.show(figure.min), self.show(figure.max))
    }
}

/// A rate as a whole number, with a comma before each thousand.
pub(super) fn rate(figure: f64) -> String {
    let digits = format!("{figure:.0}");
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Three digits that count, or all those before the point.
pub(super) fn short(figure: f64) -> String {
    match figure {
        _ if figure >= 1_000.0 => rate(figure),
        _ if figure >= 100.0 => format!("{figure:.0}"),
        _ if figure >= 10.0 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::results;
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([rate(7.0), rate(1_234.4), rate(2_300_000.0)], ["7", "1,234", "2,300,000"]);
        assert_eq!(
            [short(0.421), short(12.34), short(345.6), short(4_567.8)],
            ["0.42", "12.3", "346", "4,568"]
        );
    }

    #[test]
    fn the_table_has_medians_spreads_and_ratios() {
        let text = markdown(&results::example());
        let row = "| FOREBAY | 1,000 | 900 – 1,100 | 1.50 | – | – | – | – | 10.0× | 4.00× | 0.50× |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("| LOG (log: commits an offset) | 2,500 |"), "{text}");
        assert!(text.contains("Not measured, since not there: other: not there."));
    }

    #[test]
    fn every_workload_has_its_section() {
        for workload in super::super::workloads::ALL {
            assert!(SECTIONS.iter().any(|section| section.workload == workload), "{workload}");
        }
    }
}
