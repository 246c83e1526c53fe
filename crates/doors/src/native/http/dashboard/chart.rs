//! Charts as SVG, written by the server, so that the first frame is there without a script.
//!
//! The picture itself is stretched to the width of its place, and has no text in it; titles, scales and legends are
//! HTML around it, which stays readable at every width. Each chart says in words what it shows.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::format;

/// Units of the picture, which is stretched.
const WIDTH: f32 = 1_000.0;
const HEIGHT: f32 = 100.0;

/// One line of a chart.
pub(super) struct Series {
    pub(super) name: &'static str,
    /// The class of its colour.
    pub(super) class: &'static str,
    pub(super) points: Vec<f32>,
    /// Whether the area below is filled.
    pub(super) filled: bool,
}

/// A chart over time, up to now.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    /// The things that are counted, if the values do not say so.
    pub(super) of: &'a str,
    /// The seconds that it covers.
    pub(super) span: u64,
    pub(super) series: Vec<Series>,
    /// How a value is written.
    pub(super) write: fn(f64) -> String,
    /// What follows a value, as `/s`.
    pub(super) unit: &'a str,
    /// Values are seconds, and the scale ends at a round time.
    pub(super) is_time: bool,
}

/// The newest point is still being recorded, and a busy server may miss one more. A longer gap is shown as one.
const NOW_POINTS: usize = 3;

impl Series {
    /// The latest value, if it is of now.
    fn now(&self) -> f32 {
        let recent = self.points.iter().rev().take(NOW_POINTS);
        recent.copied().find(|point| !point.is_nan()).unwrap_or(f32::NAN)
    }
}

impl Chart<'_> {
    pub(super) fn render(&self) -> Markup {
        let largest = self.series.iter().flat_map(|series| &series.points).copied().fold(0.0, f32::max);
        let top = if self.is_time { round_time(largest) } else { round_up(largest) };
        let seen = self.series.iter().any(|series| series.points.iter().any(|point| !point.is_nan()));
        html! {
            figure.chart {
                figcaption {
                    span.chart-title {
                        (self.title) @if !self.of.is_empty() { span.chart-unit { (self.of) } }
                    }
                    span.legend {
                        @for series in &self.series {
                            span.key {
                                span class=(format!("swatch {}", series.class)) aria-hidden="true" {}
                                (series.name) " "
                                b { (self.value(series.now())) }
                            }
                        }
                    }
                }
                div.plot {
                    span.scale.top aria-hidden="true" { (self.value(top)) }
                    span.scale.bottom aria-hidden="true" { "0" }
                    svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" role="img"
                        aria-label=(self.words()) data-span=(self.span) data-unit=(self.unit) data-top=(top) {
                        line.grid x1="0" x2=(WIDTH) y1="0.5" y2="0.5" {}
                        line.grid x1="0" x2=(WIDTH) y1=(HEIGHT / 2.0) y2=(HEIGHT / 2.0) {}
                        line.grid.base x1="0" x2=(WIDTH) y1=(HEIGHT) y2=(HEIGHT) {}
                        @for series in &self.series {
                            @if series.filled {
                                path class=(format!("area {}", series.class)) d=(area(&series.points, top)) {}
                            }
                            path class=(format!("stroke {}", series.class)) d=(line(&series.points, top))
                                data-name=(series.name) {}
                        }
                    }
                    @if !seen { span.no-data { "Nothing recorded yet" } }
                }
                (times(self.span))
            }
        }
    }

    fn value(&self, value: f32) -> String {
        if value.is_nan() {
            "–".to_owned()
        } else {
            format!("{}{}", (self.write)(f64::from(value)), self.unit)
        }
    }

    /// The chart for a reader who cannot see it.
    fn words(&self) -> String {
        let mut text = format!("{}, the last {}.", self.title, format::age(self.span as f64));
        for series in &self.series {
            let now = series.now();
            let most = series.points.iter().copied().filter(|point| !point.is_nan()).fold(f32::NAN, f32::max);
            let _ = write!(text, " {}: {} now, {} at most.", series.name, self.value(now), self.value(most));
        }
        text
    }
}

/// The axis of the time, up to now.
fn times(span: u64) -> Markup {
    html! {
        div.times aria-hidden="true" { span { (back(span)) } span { (back(span / 2)) } span { "now" } }
    }
}

fn back(seconds: u64) -> String {
    format!("−{}", format::age(seconds as f64))
}

/// The next of 1, 2, 5 times a power of ten.
fn round_up(value: f32) -> f32 {
    if value.is_nan() || value <= 1.0 {
        return 1.0;
    }
    let power = 10_f32.powf(value.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| value <= step * power * 1.000_1);
    step.unwrap_or(10.0) * power
}

/// The next time that people would put on a scale, in seconds.
fn round_time(seconds: f32) -> f32 {
    const MINUTE: f32 = 60.0;
    const HOUR: f32 = 3_600.0;
    const DAY: f32 = 86_400.0;
    let minutes = [1.0, 2.0, 5.0, 10.0, 15.0, 30.0].map(|n| n * MINUTE);
    let hours = [1.0, 2.0, 6.0, 12.0].map(|n| n * HOUR);
    let mut steps = [5.0, 10.0, 30.0].into_iter().chain(minutes).chain(hours);
    if seconds <= 2.0 {
        return round_up(seconds);
    }
    steps.find(|step| seconds <= *step).unwrap_or_else(|| round_up(seconds / DAY) * DAY)
}

fn x(index: usize, points: usize) -> f32 {
    index as f32 * WIDTH / (points.max(2) - 1) as f32
}

fn y(value: f32, top: f32) -> f32 {
    HEIGHT - (value / top).clamp(0.0, 1.0) * (HEIGHT - 2.0)
}

/// Runs of points without a gap, with their places.
fn runs(points: &[f32], top: f32) -> Vec<Vec<(f32, f32)>> {
    let mut runs = vec![Vec::new()];
    for (index, value) in points.iter().enumerate() {
        if value.is_nan() {
            runs.push(Vec::new());
        } else if let Some(run) = runs.last_mut() {
            run.push((x(index, points.len()), y(*value, top)));
        }
    }
    runs.retain(|run| !run.is_empty());
    runs
}

/// Points on a straight line with their neighbours say nothing, and a quiet chart is a few bytes.
fn corners(run: &[(f32, f32)]) -> impl Iterator<Item = (f32, f32)> {
    let is_flat = |n: usize| {
        n > 0
            && n + 1 < run.len()
            && (run[n].1 - run[n - 1].1).abs() < 0.05
            && (run[n].1 - run[n + 1].1).abs() < 0.05
    };
    run.iter().enumerate().filter(move |(n, _)| !is_flat(*n)).map(|(_, point)| *point)
}

fn line(points: &[f32], top: f32) -> String {
    let mut path = String::new();
    for run in runs(points, top) {
        for (n, (x, y)) in corners(&run).enumerate() {
            let _ = write!(path, "{}{x:.0} {y:.1}", if n == 0 { "M" } else { "L" });
        }
        // A point alone is a line without a length, which is drawn as a dot.
        if let [(x, y)] = run[..] {
            let _ = write!(path, "L{:.0} {y:.1}", x + 1.0);
        }
    }
    path
}

fn area(points: &[f32], top: f32) -> String {
    let mut path = String::new();
    for run in runs(points, top) {
        let (first, last) = (run[0].0, run[run.len() - 1].0);
        let _ = write!(path, "M{first:.0} {HEIGHT}");
        for (x, y) in corners(&run) {
            let _ = write!(path, "L{x:.0} {y:.1}");
        }
        let _ = write!(path, "L{last:.0} {HEIGHT}Z");
    }
    path
}

/// A small line in a row of a table. Decoration: the figures stand beside it.
pub(super) fn spark(points: &[f32], class: &str) -> Markup {
    let largest = points.iter().copied().fold(0.0, f32::max);
    html! {
        svg.spark viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" aria-hidden="true" {
            path class=(format!("stroke {class}")) d=(line(points, round_up(largest))) {}
        }
    }
}

/// A part of a whole, between 0 and 1.
pub(super) fn bar(part: f64, class: &str, words: &str) -> Markup {
    let part = if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) };
    html! {
        svg.bar viewBox="0 0 100 4" preserveAspectRatio="none" role="img" aria-label=(words) {
            rect.track x="0" y="0" width="100" height="4" {}
            rect class=(format!("part {class}")) x="0" y="0" width=(format!("{:.2}", part * 100.0)) height="4" {}
        }
    }
}

/// A group on the axis of its stream's positions: done up to here, the last one that was processed, and the range
/// of the messages that are kept.
pub(super) fn positions(first: u64, last: u64, floor: u64, processed: u64, words: &str) -> Markup {
    let length = (last + 1).saturating_sub(first).max(1) as f64;
    let at = |seq: u64| ((seq + 1).saturating_sub(first) as f64 / length).clamp(0.0, 1.0) * WIDTH as f64;
    let (done, reached) = (at(floor), at(processed));
    html! {
        svg.positions viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label=(words) {
            rect.track x="0" y="2" width="1000" height="6" {}
            rect.done x="0" y="2" width=(format!("{done:.1}")) height="6" {}
            @if reached > done {
                rect.partly x=(format!("{done:.1}")) y="2" width=(format!("{:.1}", reached - done)) height="6" {}
            }
            rect.mark x=(format!("{:.1}", (done - 2.0).max(0.0))) y="0" width="4" height="10" {}
        }
    }
}

/// Counts over time (columns, the oldest first) and bands (the lowest first). One path for each shade: a picture of a
/// thousand cells is a few kilobytes.
pub(super) fn heat(columns: &[Vec<u64>], bands: &[&str], span: u64, words: &str) -> Markup {
    let largest = columns.iter().flatten().copied().max().unwrap_or(0);
    let (wide, high) = (columns.len().max(1), bands.len());
    let mut shades: [String; 5] = Default::default();
    for (x, column) in columns.iter().enumerate() {
        for (band, count) in column.iter().enumerate().filter(|(band, count)| **count > 0 && *band < high) {
            let _ = write!(shades[shade(*count, largest) - 1], "M{x} {}h1v1h-1z", high - 1 - band);
        }
    }
    html! {
        div.heat {
            div.bands aria-hidden="true" { @for band in bands.iter().rev() { span { (band) } } }
            svg viewBox=(format!("0 0 {wide} {high}")) preserveAspectRatio="none" role="img" aria-label=(words) {
                @for (n, path) in shades.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
                    path class=(format!("h{}", n + 1)) d=(path) {}
                }
            }
            (times(span))
        }
    }
}

/// 1 to 5, by the logarithm: a rare slow message must be seen beside many quick ones.
fn shade(count: u64, largest: u64) -> usize {
    let share = (count as f64 + 1.0).ln() / (largest as f64 + 1.0).ln();
    (share * 5.0).ceil().clamp(1.0, 5.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_round_numbers() {
        let ups = [0.0, 0.4, 1.0, 1.1, 3.0, 7.0, 10.0, 101.0, 499.0].map(round_up);
        assert_eq!(ups, [1.0, 1.0, 1.0, 2.0, 5.0, 10.0, 10.0, 200.0, 500.0]);
        let times = [0.2, 3.0, 42.0, 103.0, 700.0, 5_000.0, 50_000.0, 200_000.0].map(round_time);
        assert_eq!(times, [1.0, 5.0, 60.0, 120.0, 900.0, 7_200.0, 86_400.0, 432_000.0]);
    }

    #[test]
    fn a_gap_breaks_the_line_and_a_flat_line_is_short() {
        assert_eq!(line(&[1.0, f32::NAN, 1.0], 1.0), "M0 2.0L1 2.0M1000 2.0L1001 2.0");
        assert_eq!(line(&[0.0; 240], 1.0), "M0 100.0L1000 100.0");
        assert_eq!(area(&[0.0; 240], 1.0), "M0 100L0 100.0L1000 100.0L1000 100Z");
        assert_eq!(line(&[f32::NAN; 3], 1.0), "");
    }

    #[test]
    fn a_chart_says_in_words_what_it_shows() {
        let series = |name, points| Series { name, class: "c1", points, filled: true };
        let chart = Chart {
            title: "Rates",
            of: "",
            span: 3_600,
            series: vec![series("in", vec![1.0, 20.0]), series("out", vec![f32::NAN])],
            write: format::rate,
            unit: "/s",
            is_time: false,
        };
        assert_eq!(chart.words(), "Rates, the last 1h. in: 20/s now, 20/s at most. out: – now, – at most.");
        assert!(chart.render().0.contains(r#"role="img""#));
    }

    #[test]
    fn a_short_gap_at_the_end_still_has_a_value_of_now() {
        let now = |points| Series { name: "in", class: "c1", points, filled: false }.now();
        const GAP: f32 = f32::NAN;
        assert_eq!(now(vec![1.0, 2.0]), 2.0);
        assert_eq!(now(vec![1.0, 2.0, GAP, GAP]), 2.0);
        assert!(now(vec![2.0, GAP, GAP, GAP]).is_nan() && now(vec![]).is_nan());
    }

    #[test]
    fn rare_events_are_seen_beside_many() {
        assert_eq!([1, 10, 1_000, 100_000].map(|count| shade(count, 100_000)), [1, 2, 4, 5]);
        assert_eq!(shade(1, 1), 5);
    }

    #[test]
    fn positions_stay_on_their_axis() {
        for (first, last, floor, processed) in
            [(1, 0, 0, 0), (5, 10, 0, 0), (5, 10, 20, 30), (1, u64::MAX - 1, 7, 9)]
        {
            let drawn = positions(first, last, floor, processed, "x").0;
            assert!(!drawn.contains("NaN") && !drawn.contains("=\"-"), "{drawn}");
        }
    }
}
