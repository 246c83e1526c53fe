//! The output of the demo: a picture on a terminal, a line a second elsewhere.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};

use super::ledger::Counts;
use super::worker::State;
use crate::print::Colour;
use crate::screen::cut;
use crate::units;

/// Points of a curve. Older ones go.
const POINTS_MAX: usize = 60;
/// The time that a rate is taken over.
const RATE_SPAN: Duration = Duration::from_secs(1);
/// Lines of the story that are always there.
const STORY_MIN: usize = 3;
const BAR: usize = 24;

/// How depth and rates went.
#[derive(Debug, Default)]
pub(super) struct Curves {
    waiting: VecDeque<f64>,
    arrived: VecDeque<f64>,
    done: VecDeque<f64>,
}

impl Curves {
    pub(super) fn add(&mut self, waiting: f64, arrived: f64, done: f64) {
        for (curve, value) in
            [(&mut self.waiting, waiting), (&mut self.arrived, arrived), (&mut self.done, done)]
        {
            if curve.len() == POINTS_MAX {
                curve.pop_front();
            }
            curve.push_back(value);
        }
    }
}

/// How many a second, of things that are counted.
#[derive(Debug, Default)]
pub(super) struct Meter(VecDeque<(Duration, u64)>);

impl Meter {
    pub(super) fn rate(&mut self, now: Duration, count: u64) -> f64 {
        self.0.push_back((now, count));
        while self.0.len() > 2 && self.0.get(1).is_some_and(|(at, _)| now - *at >= RATE_SPAN) {
            self.0.pop_front();
        }
        match self.0.front() {
            Some((at, before)) if now > *at => (count - before) as f64 / (now - *at).as_secs_f64(),
            _ => 0.0,
        }
    }
}

/// A worker, as it is shown.
#[derive(Debug, Clone)]
pub(super) struct WorkerFigures {
    pub(super) name: String,
    pub(super) state: State,
    pub(super) billed: u64,
    pub(super) rate: f64,
}

/// Everything that is shown at a moment.
pub(super) struct Picture<'a> {
    pub(super) elapsed: Duration,
    pub(super) address: &'a str,
    pub(super) server_is_up: bool,
    /// The server's last report.
    pub(super) waiting: u64,
    pub(super) oldest: Option<Duration>,
    pub(super) parked: u64,
    pub(super) arriving: f64,
    pub(super) leaving: f64,
    pub(super) pace: f64,
    pub(super) counts: Counts,
    pub(super) workers: &'a [WorkerFigures],
    pub(super) curves: &'a Curves,
    pub(super) story: &'a [(Duration, String)],
}

impl Picture<'_> {
    /// One picture, as lines that fit.
    pub(super) fn lines(&self, size: (usize, usize), colours: bool) -> Vec<String> {
        self.coloured(size).iter().map(|(colour, text)| colour.paint(text, colours)).collect()
    }

    /// The same, as texts with their colours.
    pub(super) fn coloured(&self, (width, height): (usize, usize)) -> Vec<(Colour, String)> {
        let paint = |colour: Colour, text: &str| (colour, cut(text, width));
        let empty = || (Colour::Plain, String::new());
        let title = format!("forebay demo  {}s", self.elapsed.as_secs());
        let server = format!("forebay top --server {}   shows it too; q leaves", self.address);
        let mut lines = vec![paint(Colour::Bold, &title), paint(Colour::Dim, &server), empty()];
        let room = width.saturating_sub(32);
        let rates_max = peak(&self.curves.arrived).max(peak(&self.curves.done));
        let waiting = units::count(self.waiting);
        let oldest =
            self.oldest.map_or(String::new(), |age| format!("oldest {}", units::age(age.as_secs_f64())));
        let curve = sparkline(&self.curves.waiting, peak(&self.curves.waiting), room);
        lines.push(paint(Colour::Yellow, &format!("waiting {waiting:>8}  {curve}  {oldest}")));
        let curve = sparkline(&self.curves.arrived, rates_max, room);
        lines.push(paint(Colour::Plain, &format!("in      {:>8}  {curve}", units::rate(self.arriving))));
        let curve = sparkline(&self.curves.done, rates_max, room);
        let pace = format!("pace {}", units::rate(self.pace));
        lines.push(paint(
            Colour::Green,
            &format!("out     {:>8}  {curve}  {pace}", units::rate(self.leaving)),
        ));
        lines.push(empty());
        lines.push(paint(Colour::Plain, &self.totals()));
        lines.push(empty());
        lines.push(match self.server_is_up {
            true => paint(Colour::Green, &format!("{:10} up", "server")),
            false => paint(Colour::Red, &format!("{:10} killed", "server")),
        });
        // At least a few lines of the story are seen, whatever else is not.
        let for_workers = height.saturating_sub(lines.len() + 1 + STORY_MIN);
        lines.extend(self.workers_lines(for_workers).iter().map(|(colour, line)| paint(*colour, line)));
        lines.push(empty());
        let left = height.saturating_sub(lines.len());
        for (at, text) in &self.story[self.story.len().saturating_sub(left)..] {
            lines.push(paint(Colour::Plain, &format!("{:>3}s  {text}", at.as_secs())));
        }
        lines.truncate(height);
        lines
    }

    fn totals(&self) -> String {
        let counts = &self.counts;
        let all = [
            ("published", counts.published),
            ("processed", counts.processed),
            ("again", counts.again),
            ("retried", counts.retried),
            ("parked", self.parked),
            ("copies", counts.copies),
        ];
        all.map(|(name, count)| format!("{name} {}", units::count(count))).join("  ")
    }

    /// Those at work first, each with its share.
    fn workers_lines(&self, most: usize) -> Vec<(Colour, String)> {
        let mut workers: Vec<&WorkerFigures> = self.workers.iter().collect();
        workers.sort_by_key(|worker| worker.state != State::AtWork);
        workers.truncate(most);
        let all: u64 = self.workers.iter().map(|worker| worker.billed).sum();
        let line = |worker: &WorkerFigures| {
            let share = if all > 0 { worker.billed as f64 / all as f64 } else { 0.0 };
            let filled = ((share * BAR as f64).round() as usize).min(BAR);
            let bar = format!("{}{}", "█".repeat(filled), " ".repeat(BAR - filled));
            let (colour, state) = match worker.state {
                State::AtWork => (Colour::Plain, units::rate(worker.rate)),
                State::Killed => (Colour::Red, "killed".to_owned()),
                State::Left => (Colour::Dim, "left".to_owned()),
            };
            let billed = units::count(worker.billed);
            (colour, format!("{:10} {bar} {:3.0} % {billed:>8}  {state}", worker.name, share * 100.0))
        };
        workers.into_iter().map(line).collect()
    }

    /// The same in a line.
    pub(super) fn line(&self) -> String {
        let server = if self.server_is_up { "" } else { "  the server is down" };
        let oldest = self.oldest.map_or("-".to_owned(), |age| units::age(age.as_secs_f64()));
        let Counts { processed, retried, .. } = self.counts;
        format!(
            "{:>3}s  waiting {:>6}  oldest {oldest:>5}  in {:>7}  out {:>7}  processed {:>6}  retried {:>3}  \
             parked {:>2}{server}",
            self.elapsed.as_secs(),
            units::count(self.waiting),
            units::rate(self.arriving),
            units::rate(self.leaving),
            units::count(processed),
            units::count(retried),
            units::count(self.parked),
        )
    }

    pub(super) fn json(&self) -> Value {
        let share = |worker: &WorkerFigures| {
            let state = match worker.state {
                State::AtWork => "at_work",
                State::Killed => "killed",
                State::Left => "left",
            };
            json!({"name": worker.name, "state": state, "processed": worker.billed})
        };
        json!({
            "elapsed": self.elapsed.as_secs_f64(),
            "server": if self.server_is_up { "up" } else { "killed" },
            "waiting": self.waiting,
            "oldest_age": self.oldest.map(|age| age.as_secs_f64()),
            "in": self.arriving,
            "out": self.leaving,
            "published": self.counts.published,
            "processed": self.counts.processed,
            "processed_again": self.counts.again,
            "retried": self.counts.retried,
            "parked": self.parked,
            "workers": self.workers.iter().map(share).collect::<Vec<_>>(),
        })
    }
}

fn peak(curve: &VecDeque<f64>) -> f64 {
    curve.iter().copied().fold(0.0, f64::max)
}

/// A curve of one line, its latest points, filled up so that what follows stands still.
fn sparkline(curve: &VecDeque<f64>, max: f64, width: usize) -> String {
    const STEPS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let width = width.min(POINTS_MAX);
    let point = |value: &f64| {
        // Whatever is there at all can be seen.
        let step = if max > 0.0 { (value / max * 8.0).round().max(1.0) } else { 1.0 };
        STEPS[if *value <= 0.0 { 0 } else { (step as usize).min(8) }]
    };
    let drawn: String = curve.iter().skip(curve.len().saturating_sub(width)).map(point).collect();
    format!("{drawn}{}", " ".repeat(width - drawn.chars().count()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(values: &[f64]) -> VecDeque<f64> {
        values.iter().copied().collect()
    }

    #[test]
    fn a_curve_shows_its_latest_points_and_keeps_its_width() {
        assert_eq!(sparkline(&curve(&[0.0, 1.0, 4.0, 8.0]), 8.0, 6), " ▁▄█  ");
        assert_eq!(sparkline(&curve(&[8.0, 0.001, 2.0]), 8.0, 2), "▁▂");
        assert_eq!(sparkline(&curve(&[]), 0.0, 3), "   ");
        assert_eq!(sparkline(&curve(&[1.0; 200]), 1.0, 500).chars().count(), POINTS_MAX);
    }

    #[test]
    fn a_rate_is_that_of_the_last_second() {
        let mut meter = Meter::default();
        let at = Duration::from_millis;
        assert_eq!(meter.rate(at(0), 0), 0.0);
        assert_eq!(meter.rate(at(500), 50), 100.0);
        assert_eq!(meter.rate(at(1_000), 100), 100.0);
        assert_eq!(meter.rate(at(2_000), 100), 0.0);
    }

    #[test]
    fn whatever_happened_it_fits_the_terminal() {
        let mut curves = Curves::default();
        (0..200).for_each(|n| curves.add(f64::from(n) * 50.0, 2_500.0, 600.0));
        let worker = |n: u64| WorkerFigures {
            name: format!("worker-{n}"),
            state: if n == 2 { State::Killed } else { State::AtWork },
            billed: n * 1_000,
            rate: 200.0,
        };
        let workers: Vec<WorkerFigures> = (1..=8).map(worker).collect();
        let story: Vec<_> = (0..12).map(|n| (Duration::from_secs(n), format!("act {n}"))).collect();
        let picture = Picture {
            elapsed: Duration::from_secs(12),
            address: "127.0.0.1:40123",
            server_is_up: true,
            waiting: 123_456,
            oldest: Some(Duration::from_secs(12)),
            parked: 41,
            arriving: 2_500.0,
            leaving: 600.0,
            pace: 600.0,
            counts: Counts { published: 10_000, copies: 200, again: 7, ..Counts::default() },
            workers: &workers,
            curves: &curves,
            story: &story,
        };
        for size in [(80, 24), (60, 12), (200, 60), (20, 5)] {
            let lines = picture.lines(size, false);
            assert!(lines.len() <= size.1, "{size:?}: {lines:#?}");
            assert!(lines.iter().all(|line| line.chars().count() <= size.0), "{size:?}: {lines:#?}");
        }
        let lines = picture.lines((80, 24), false);
        assert!(lines.last().is_some_and(|line| line.ends_with("act 11")), "{lines:#?}");
        assert!(
            lines.iter().any(|line| line.starts_with("worker-2") && line.ends_with("killed")),
            "{lines:#?}"
        );
        assert!(lines.iter().any(|line| line.contains("oldest 12s")), "{lines:#?}");
    }
}
