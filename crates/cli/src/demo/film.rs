//! The demo as an animated picture, for pages: `demo --svg FILE`.
//!
//! A frame is the terminal's picture at a moment. A line that stays the same from frame to frame is written once, with
//! the times at which it is seen. Viewers that do not animate show the last frame.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

use crate::print::Colour;

/// Columns and rows of the picture.
pub(super) const SIZE: (usize, usize) = (92, 22);
/// For how long the last frame is seen.
const END: Duration = Duration::from_secs(6);
const COLUMN: f64 = 8.4;
const ROW: usize = 19;
const MARGIN: usize = 16;

type Line = (Colour, String);

pub(super) struct Film {
    path: PathBuf,
    /// How often a frame is taken.
    every: Duration,
    frames: Vec<(Duration, Vec<Line>)>,
}

/// A line of one row, and when it is seen: the numbers of frames, from and to.
struct Seen<'a> {
    row: usize,
    line: &'a Line,
    spans: Vec<(usize, usize)>,
}

impl Film {
    pub(super) fn new(path: &Path, every: Duration) -> Film {
        Film { path: path.to_owned(), every, frames: Vec::new() }
    }

    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.frames.last().is_none_or(|(at, _)| now >= *at + self.every)
    }

    pub(super) fn add(&mut self, now: Duration, lines: Vec<Line>) {
        self.frames.push((now, lines));
    }

    /// Adds the accounts as the last frame, and writes the file.
    pub(super) fn finish(mut self, now: Duration, lines: Vec<Line>) -> anyhow::Result<()> {
        self.add(now, lines);
        std::fs::write(&self.path, self.svg())
            .with_context(|| format!("cannot write the picture to {}", self.path.display()))
    }

    fn seen(&self) -> Vec<Seen<'_>> {
        let mut all: Vec<Seen<'_>> = Vec::new();
        for row in 0..SIZE.1 {
            let first = all.len();
            for (frame, (_, lines)) in self.frames.iter().enumerate() {
                let Some(line) = lines.get(row).filter(|(_, text)| !text.trim().is_empty()) else { continue };
                match all[first..].iter_mut().find(|seen| seen.line == line) {
                    Some(seen) => match seen.spans.last_mut() {
                        Some((_, to)) if *to == frame => *to = frame + 1,
                        _ => seen.spans.push((frame, frame + 1)),
                    },
                    None => all.push(Seen { row, line, spans: vec![(frame, frame + 1)] }),
                }
            }
        }
        all
    }

    fn svg(&self) -> String {
        let begin = self.frames.first().map_or(Duration::ZERO, |(at, _)| *at);
        let last = self.frames.last().map_or(Duration::ZERO, |(at, _)| *at);
        let whole = (last + END - begin).as_secs_f64();
        let share = |frame: usize| (self.frames[frame].0 - begin).as_secs_f64() / whole;
        let (width, height) = (SIZE.0 as f64 * COLUMN + 2.0 * MARGIN as f64, SIZE.1 * ROW + 2 * MARGIN);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height}\" role=\"img\" \
             aria-label=\"forebay demo in a terminal\">\n<style>\ntext {{ font: 14px ui-monospace, Menlo, Consolas, \
             'DejaVu Sans Mono', monospace; white-space: pre }}\n{STYLES}</style>\n\
             <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#16181d\"/>\n"
        );
        for Seen { row, line: (colour, text), spans } in self.seen() {
            let y = MARGIN + row * ROW + 14;
            let shown = text.trim_end();
            // Fonts differ in the width of a letter and of a block.
            let length = shown.chars().count() as f64 * COLUMN;
            let is_last = spans.last().is_some_and(|(_, to)| *to == self.frames.len());
            let hidden = if is_last { "" } else { " visibility=\"hidden\"" };
            let _ = write!(
                svg,
                "<text x=\"{MARGIN}\" y=\"{y}\" class=\"{}\" textLength=\"{length:.0}\" \
                 xml:space=\"preserve\"{hidden}>{}",
                class(*colour),
                escaped(shown),
            );
            svg.push_str(&animation(&spans, self.frames.len(), whole, share));
            svg.push_str("</text>\n");
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// When a line is seen, over and over. Nothing if it is always there.
fn animation(spans: &[(usize, usize)], frames: usize, whole: f64, share: impl Fn(usize) -> f64) -> String {
    let mut changes = Vec::new();
    for &(from, to) in spans {
        changes.push((share(from), "visible"));
        if to < frames {
            changes.push((share(to), "hidden"));
        }
    }
    if changes.first().is_some_and(|(at, _)| *at > 0.0) {
        changes.insert(0, (0.0, "hidden"));
    }
    if changes.len() == 1 {
        return String::new();
    }
    let values: Vec<&str> = changes.iter().map(|(_, value)| *value).collect();
    let times: Vec<String> = changes.iter().map(|(at, _)| format!("{at:.4}")).collect();
    format!(
        "<animate attributeName=\"visibility\" calcMode=\"discrete\" dur=\"{whole:.1}s\" \
         repeatCount=\"indefinite\" values=\"{}\" keyTimes=\"{}\"/>",
        values.join(";"),
        times.join(";")
    )
}

const STYLES: &str = "\
.plain { fill: #d8dee9 }
.bold { fill: #ffffff; font-weight: bold }
.dim { fill: #8b93a3 }
.green { fill: #8fce6a }
.yellow { fill: #e5c07b }
.red { fill: #ff7a7a }
";

fn class(colour: Colour) -> &'static str {
    match colour {
        Colour::Plain => "plain",
        Colour::Bold => "bold",
        Colour::Dim => "dim",
        Colour::Green => "green",
        Colour::Yellow => "yellow",
        Colour::Red => "red",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn film(frames: &[&[&str]]) -> Film {
        let mut film = Film::new(Path::new("-"), Duration::from_secs(1));
        for (second, lines) in frames.iter().enumerate() {
            let lines = lines.iter().map(|text| (Colour::Plain, (*text).to_owned())).collect();
            film.add(Duration::from_secs(second as u64), lines);
        }
        film
    }

    #[test]
    fn a_line_is_written_once_with_the_times_at_which_it_is_seen() {
        // Four frames, at 0 to 3 s, and the last one is seen until 9 s.
        let svg = film(&[&["a", "x"], &["b", "x"], &["a", "x"], &["c", "x"]]).svg();
        assert_eq!(svg.matches("<text ").count(), 4);
        let line = |text: &str| {
            let found = svg.lines().find(|line| line.contains(&format!(">{text}<"))).expect(text);
            let times = found.split_once("keyTimes=\"").map(|(_, rest)| rest.split('"').next());
            (found.contains("visibility=\"hidden\""), times.flatten().unwrap_or_default().to_owned())
        };
        assert_eq!(line("x"), (false, String::new()), "it is always there");
        assert_eq!(line("a"), (true, "0.0000;0.1111;0.2222;0.3333".to_owned()));
        assert_eq!(line("b"), (true, "0.0000;0.1111;0.2222".to_owned()));
        assert_eq!(line("c"), (false, "0.0000;0.3333".to_owned()), "the last frame stays");
    }

    #[test]
    fn a_frame_is_due_after_its_time_and_text_is_escaped() {
        let one = film(&[&["a<b> & c"]]);
        assert!(!one.is_due(Duration::from_millis(900)) && one.is_due(Duration::from_secs(1)));
        assert!(one.svg().contains(">a&lt;b&gt; &amp; c</text>"));
    }
}
