//! Bar charts, written by hand: no scripts, and colours that suit a light page and a dark one.

use std::fmt::Write as _;

use super::report::short;
use super::results::{About, Results};

/// One picture: bars for each server, one or two of a kind.
struct Chart {
    name: &'static str,
    title: &'static str,
    note: &'static str,
    is_log: bool,
    /// Workload, figure, and what the bar is called.
    bars: &'static [(&'static str, &'static str, &'static str)],
}

const CHARTS: [Chart; 5] = [
    Chart {
        name: "steady",
        title: "Publish and consume",
        note: "messages a second, more is better",
        is_log: false,
        bars: &[("steady-100", "rate", "100 bytes"), ("steady-1k", "rate", "1 KiB")],
    },
    Chart {
        name: "publish",
        title: "Publish only, 100 bytes",
        note: "messages a second, more is better",
        is_log: false,
        bars: &[("publish-64", "rate", "window 64"), ("publish-1024", "rate", "window 1,024")],
    },
    Chart {
        name: "drain",
        title: "Drain only, 100 bytes",
        note: "messages a second, more is better",
        is_log: false,
        bars: &[("drain", "rate", "")],
    },
    Chart {
        name: "latency",
        title: "Publish to receipt at 5,000 messages a second",
        note: "milliseconds, logarithmic, less is better",
        is_log: true,
        bars: &[("latency", "p50_ms", "p50"), ("latency", "p99_ms", "p99")],
    },
    Chart {
        name: "memory",
        title: "Memory with 1 million messages of 1 KiB waiting",
        note: "MB, logarithmic, less is better",
        is_log: true,
        bars: &[("restart", "memory_mb", "")],
    },
];

const WIDTH: f64 = 820.0;
const LEFT: f64 = 280.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 78.0;
const BAR: f64 = 15.0;
const GAP: f64 = 12.0;

/// As much as is said in place of a bar.
const NOTE_MAX: usize = 60;

/// A light picture and a dark one, each with its own background: a page may be light although its reader prefers
/// dark ones.
const STYLE: &str = "\
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .page { fill: #ffffff; }
  .title { font-size: 16px; font-weight: 600; }
  .note, .tick { font-size: 11px; fill: #57606a; }
  .tick { paint-order: stroke; stroke: #ffffff; stroke-width: 3px; }
  .grid { stroke: #d0d7de; stroke-width: 1; }
  .forebay { fill: #1f6feb; }
  .syncing { fill: #2da44e; }
  .careless { fill: #bf8700; }
  .floor { fill: #8c959f; }
  .second { opacity: 0.55; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .page { fill: #0d1117; }
    .note, .tick { fill: #9198a1; }
    .tick { stroke: #0d1117; }
    .grid { stroke: #3d444d; }
    .forebay { fill: #58a6ff; }
    .syncing { fill: #3fb950; }
    .careless { fill: #d29922; }
    .floor { fill: #6e7681; }
  }
";

/// The plots of the results, each with its name.
pub(super) fn all(results: &Results) -> Vec<(&'static str, String)> {
    let charts = CHARTS.iter().filter_map(|chart| Some((chart.name, chart.draw(results)?)));
    charts.collect()
}

/// Those that there are.
pub(super) fn names(results: &Results) -> Vec<&'static str> {
    all(results).into_iter().map(|(name, _)| name).collect()
}

struct Row<'a> {
    about: &'a About,
    figures: Vec<Option<f64>>,
    /// Why there are none.
    note: Option<&'a str>,
}

impl Chart {
    fn draw(&self, results: &Results) -> Option<String> {
        let mut rows = Vec::new();
        for about in &results.contenders {
            let of = |bar: &(&str, &str, &str)| results.median(bar.0, &about.id, bar.1);
            let figures: Vec<Option<f64>> = self.bars.iter().map(of).collect();
            let note = self.bars.iter().find_map(|bar| results.cell(bar.0, &about.id)?.note.as_deref());
            // A floor may lack what a server is for; of a peer it is said.
            if figures.iter().any(Option::is_some) || (about.is_peer() && note.is_some()) {
                rows.push(Row { about, figures, note });
            }
        }
        let scale =
            Scale::of(rows.iter().flat_map(|row| row.figures.iter().flatten().copied()), self.is_log)?;
        let mut out = String::new();
        self.write(&mut out, &rows, &scale).expect("text can always be written");
        Some(out)
    }

    fn write(&self, out: &mut String, rows: &[Row<'_>], scale: &Scale) -> std::fmt::Result {
        let each = BAR * self.bars.len() as f64 + GAP;
        let bottom = TOP + each * rows.len() as f64;
        let height = bottom + 46.0;
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" role=\"img\" aria-label=\"{}\">\n<style>\n{STYLE}</style>",
            self.title
        )?;
        writeln!(out, "<rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\"/>")?;
        writeln!(out, "<text class=\"title\" x=\"16\" y=\"26\">{}</text>", self.title)?;
        let names: Vec<&str> = self.bars.iter().map(|bar| bar.2).filter(|name| !name.is_empty()).collect();
        let order = if names.len() == 2 {
            format!("; {}, then {} (paler)", names[0], names[1])
        } else {
            String::new()
        };
        writeln!(out, "<text class=\"note\" x=\"16\" y=\"44\">{}{order}</text>", self.note)?;
        for tick in scale.ticks() {
            let x = scale.x(tick);
            writeln!(out, "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>")?;
            writeln!(
                out,
                "<text class=\"tick\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                TOP - 8.0,
                large(tick)
            )?;
        }
        for (n, row) in rows.iter().enumerate() {
            let y = TOP + GAP / 2.0 + each * n as f64;
            let middle = y + BAR * self.bars.len() as f64 / 2.0 + 4.5;
            let kind = if row.about.acks_each { "" } else { " (log)" };
            let name = escape(&row.about.name) + kind;
            writeln!(out, "<text x=\"{}\" y=\"{middle:.1}\" text-anchor=\"end\">{name}</text>", LEFT - 10.0)?;
            if row.figures.iter().all(Option::is_none) {
                let note: String = row.note.unwrap_or("–").chars().take(NOTE_MAX).collect();
                let (x, note) = (LEFT + 5.0, escape(&note));
                writeln!(out, "<text class=\"tick\" x=\"{x}\" y=\"{middle:.1}\">{note}</text>")?;
                continue;
            }
            for (n, figure) in row.figures.iter().enumerate() {
                let y = y + BAR * n as f64;
                let Some(figure) = *figure else {
                    writeln!(
                        out,
                        "<text class=\"tick\" x=\"{}\" y=\"{:.1}\">–</text>",
                        LEFT + 4.0,
                        y + 11.0
                    )?;
                    continue;
                };
                let width = (scale.x(figure) - LEFT).max(1.0);
                let class = format!("{}{}", colour(row.about), if n > 0 { " second" } else { "" });
                writeln!(
                    out,
                    "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" \
                     height=\"{}\" rx=\"2\"/>",
                    BAR - 2.0
                )?;
                let (x, y) = (LEFT + width + 5.0, y + 11.0);
                writeln!(out, "<text class=\"tick\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", short(figure))?;
            }
        }
        legend(out, bottom + 28.0)?;
        writeln!(out, "</svg>")
    }
}

fn legend(out: &mut String, y: f64) -> std::fmt::Result {
    let kinds = [
        ("forebay", "Forebay"),
        ("syncing", "syncs before it confirms"),
        ("careless", "a confirmed message may be lost with the power"),
        ("floor", "floor"),
    ];
    let mut x = 16.0;
    for (class, name) in kinds {
        writeln!(
            out,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{}\" width=\"11\" height=\"11\" rx=\"2\"/>",
            y - 10.0
        )?;
        writeln!(out, "<text class=\"note\" x=\"{}\" y=\"{y}\">{name}</text>", x + 16.0)?;
        x += 40.0 + 6.3 * name.len() as f64;
    }
    Ok(())
}

fn colour(about: &About) -> &'static str {
    match about.id.as_str() {
        "forebay" => "forebay",
        "floor" | "floor-grpc" => "floor",
        _ if about.survives_power_loss => "syncing",
        _ => "careless",
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// A tick in words as short as they can be: `2M`, `500k`, `0.1`.
fn large(figure: f64) -> String {
    match figure {
        _ if figure >= 1e6 => format!("{}M", figure / 1e6),
        _ if figure >= 1e3 => format!("{}k", figure / 1e3),
        _ => format!("{figure}"),
    }
}

struct Scale {
    min: f64,
    max: f64,
    is_log: bool,
}

impl Scale {
    fn of(figures: impl Iterator<Item = f64>, is_log: bool) -> Option<Scale> {
        let positive: Vec<f64> = figures.filter(|figure| *figure > 0.0).collect();
        let min = positive.iter().copied().reduce(f64::min)?;
        let max = positive.into_iter().reduce(f64::max)?;
        if !is_log {
            return Some(Scale { min: 0.0, max, is_log });
        }
        // From the power of ten below the smallest, so that even that has a bar.
        let decade = |of: f64| 10_f64.powi(of as i32);
        Some(Scale { min: decade((min / 1.5).log10().floor()), max: decade(max.log10().ceil()), is_log })
    }

    fn x(&self, figure: f64) -> f64 {
        let share = match self.is_log {
            true => (figure / self.min).log10() / (self.max / self.min).log10(),
            false => figure / self.max,
        };
        LEFT + (WIDTH - LEFT - RIGHT) * share.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            let decades = (self.max / self.min).log10().round() as i32;
            return (0..=decades)
                .map(|n| self.min * 10_f64.powi(n))
                .map(|tick| (tick * 1e6).round() / 1e6)
                .collect();
        }
        // The largest of 1, 2 and 5 times a power of ten of which at least three fit.
        let decade = 10_f64.powf((self.max / 3.0).log10().floor());
        let step = [5.0, 2.0, 1.0].map(|by| by * decade).into_iter().find(|step| self.max / step >= 3.0);
        let step = step.unwrap_or(decade);
        (0..=(self.max / step) as u32).map(|n| f64::from(n) * step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::results;
    use super::*;

    #[test]
    fn there_is_a_plot_of_what_was_measured_only() {
        let plots = all(&results::example());
        assert_eq!(plots.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["steady"]);
        let svg = &plots[0].1;
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<rect class=\"syncing\"").count(), 3, "two bars, and one in the legend");
        assert!(svg.contains(">LOG-SYNC (log)</text>"), "{svg}");
        assert!(!svg.contains("script") && !svg.contains("NaN"));
    }

    #[test]
    fn a_peer_without_a_figure_says_why() {
        let mut results = results::example();
        *results.cell_mut("steady-100", "careful") = results::Cell {
            workload: "steady-100".to_owned(),
            contender: "careful".to_owned(),
            note: Some("does not keep up".to_owned()),
            samples: Vec::new(),
        };
        let svg = &all(&results)[0].1;
        assert!(svg.contains(">CAREFUL</text>") && svg.contains(">does not keep up</text>"), "{svg}");
    }

    #[test]
    fn scales_have_round_ticks() {
        let linear = Scale::of([3.0, 2_300_000.0].into_iter(), false).expect("figures");
        assert_eq!(
            linear.ticks().iter().map(|tick| large(*tick)).collect::<Vec<_>>(),
            ["0", "500k", "1M", "1.5M", "2M"]
        );
        let log = Scale::of([0.5, 120.0].into_iter(), true).expect("figures");
        assert_eq!(log.ticks(), [0.1, 1.0, 10.0, 100.0, 1_000.0]);
        assert!(log.x(0.5) > LEFT && log.x(120.0) < WIDTH - RIGHT);
        assert!(Scale::of(std::iter::empty(), true).is_none());
    }
}
