//! What commands print: tables for people, the API's JSON for programs.

use std::io::{ErrorKind, IsTerminal as _, Write as _};

use anyhow::Context as _;

use crate::safe::printable;

/// How a command prints what it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    Plain,
    Bold,
    Dim,
    Green,
    Yellow,
    Red,
}

impl Colour {
    fn code(self) -> &'static str {
        match self {
            Colour::Plain => "0",
            Colour::Bold => "1",
            Colour::Dim => "2",
            Colour::Green => "32",
            Colour::Yellow => "33",
            Colour::Red => "31",
        }
    }

    pub(crate) fn paint(self, text: &str, colours: bool) -> String {
        if !colours || self == Colour::Plain {
            return text.to_owned();
        }
        format!("\x1b[{}m{text}\x1b[0m", self.code())
    }
}

/// Whether the standard output is a terminal that may be coloured.
pub(crate) fn colours() -> bool {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    std::io::stdout().is_terminal()
        && set("NO_COLOR").is_none()
        && set("TERM").is_none_or(|term| term != "dumb")
}

/// Prints text as it is. A closed pipe is not a failure.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    print_bytes(text.as_bytes())
}

pub(crate) fn print_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(PipeClosed.into()),
        printed => printed.context("cannot print"),
    }
}

/// The reader of the output has seen enough. The command ends as if it were done, and clears up behind it.
#[derive(Debug, thiserror::Error)]
#[error("the output is closed")]
pub(crate) struct PipeClosed;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// Rows under a heading, aligned.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    heading: Vec<(&'static str, Side)>,
    rows: Vec<Vec<(String, Colour)>>,
    gap: &'static str,
}

const GAP: &str = "  ";

impl Table {
    /// A column whose title begins with `>` is aligned on the right.
    pub(crate) fn new(titles: &[&'static str]) -> Table {
        let heading = titles
            .iter()
            .map(|title| match title.strip_prefix('>') {
                Some(title) => (title, Side::Right),
                None => (*title, Side::Left),
            })
            .collect();
        Table { heading, rows: Vec::new(), gap: GAP }
    }

    /// With one space between columns, where there is little room.
    pub(crate) fn tight(self) -> Table {
        Table { gap: " ", ..self }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<Cell>>) {
        let row: Vec<_> =
            cells.into_iter().map(Into::into).map(|Cell(text, colour)| (printable(&text), colour)).collect();
        assert_eq!(row.len(), self.heading.len(), "a row has a cell for each column");
        self.rows.push(row);
    }

    /// The lines, the heading first; each is cut at `width` characters.
    pub(crate) fn lines(&self, colours: bool, width: usize) -> Vec<String> {
        let mut widths: Vec<usize> = self.heading.iter().map(|(title, _)| title.chars().count()).collect();
        for row in &self.rows {
            for (width, (text, _)) in widths.iter_mut().zip(row) {
                *width = (*width).max(text.chars().count());
            }
        }
        let heading: Vec<_> =
            self.heading.iter().map(|(title, _)| ((*title).to_owned(), Colour::Bold)).collect();
        std::iter::once(&heading)
            .chain(&self.rows)
            .map(|row| self.line(row, &widths, colours, width))
            .collect()
    }

    fn line(&self, row: &[(String, Colour)], widths: &[usize], colours: bool, most: usize) -> String {
        let mut out = String::new();
        let mut used = 0;
        let last = row.len() - 1;
        for (index, (text, colour)) in row.iter().enumerate() {
            let room = widths[index] - text.chars().count();
            let (before, after) = match self.heading[index].1 {
                Side::Right => (room, 0),
                Side::Left => (0, if index == last { 0 } else { room }),
            };
            let cell = format!("{}{text}{}", " ".repeat(before), " ".repeat(after));
            let cell = if index == 0 { cell } else { format!("{}{cell}", self.gap) };
            let cut: String = cell.chars().take(most - used).collect();
            used += cut.chars().count();
            out.push_str(&colour.paint(&cut, colours));
        }
        if colours { out } else { out.trim_end().to_owned() }
    }

    pub(crate) fn print(&self) -> anyhow::Result<()> {
        let mut text = self.lines(colours(), usize::MAX).join("\n");
        text.push('\n');
        print(&text)
    }
}

/// Text in a table.
pub(crate) struct Cell(pub(crate) String, pub(crate) Colour);

impl Cell {
    pub(crate) fn painted(text: &str, colour: Colour, colours: bool) -> String {
        colour.paint(text, colours)
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell(text, Colour::Plain)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell(text.to_owned(), Colour::Plain)
    }
}

/// Names and what they stand for, one a line.
pub(crate) fn print_facts(facts: &[(String, String)]) -> anyhow::Result<()> {
    let widest = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let colours = colours();
    let mut out = String::new();
    for (name, value) in facts {
        let name = format!("{name:widest$}");
        out.push_str(&format!("{}{GAP}{}\n", Colour::Dim.paint(&name, colours), printable(value)));
    }
    print(&out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_nothing_in_them_acts_on_the_terminal() {
        let mut table = Table::new(&["NAME", ">LAG", "STATUS"]);
        table.row(["emails/senders", "12", "live"]);
        table.row(["a\u{1b}[2J", "1,234", "idle"]);
        let expected =
            ["NAME              LAG  STATUS", "emails/senders     12  live", "a\\x1b[2J        1,234  idle"];
        assert_eq!(table.lines(false, usize::MAX), expected);
        assert_eq!(table.lines(false, 8)[1], "emails/s");
        let mut painted = Table::new(&["A", "B"]);
        painted.row([Cell("x".into(), Colour::Red), "y".into()]);
        assert_eq!(painted.lines(true, 80)[1], "\x1b[31mx\x1b[0m  y");
    }
}
