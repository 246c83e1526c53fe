//! `forebay top`: streams and groups as they are now, once a second, until `q`.

use std::cmp::Ordering;
use std::io::IsTerminal as _;
use std::pin::Pin;
use std::time::Duration;

use clap::{Args, ValueEnum};
use forebay_wire::attention::{
    Attention, Concern, GroupFacts, ServerFacts, Severity, StreamFacts, attention,
};
use forebay_wire::json::{GroupReport, History, StreamReport};
use tokio::sync::mpsc;

use super::group::details;
use super::stream::oldest;
use super::{GroupPath, alarm, status};
use crate::clock::Clock;
use crate::connect::{Server, runtime};
use crate::exit;
use crate::http::{Http, List, Listing, Query, Refused};
use crate::print::{Cell, Colour, Output, Table, colours, print};
use crate::safe::printable;
use crate::screen::{Screen, cut, read_keys};
use crate::units;

pub(crate) const EXAMPLES: &str = "\
Keys: sort by l lag, o oldest, i in, u out, f in flight, p parked, n name; r reverses the order; Up and Down (or
k and j) select a group, Enter shows it, b goes back; / filters by name; q quits.
Lines of bars are the last 15 minutes, if the server shows its history to the client.
A group with a backlog and without consumers is red. Without a terminal, everything is printed once.

Examples:
  forebay top
  forebay top --sort parked
  forebay top --once -o json | jq '.groups[] | select(.lag > 1000) | .group'";

/// How often it looks.
const REFRESH: Duration = Duration::from_secs(1);
/// Streams and groups that are looked at.
const ITEMS_MAX: u64 = 1_000;
/// When figures count as old.
const STALE: Duration = Duration::from_secs(3);
/// How soon the bytes of one key follow each other.
const SEQUENCE_PAUSE: Duration = Duration::from_millis(30);
/// Lines of the tables that are neither streams nor groups: a gap, two headings, two for rows left out.
const LINES_BESIDE: usize = 6;
/// Sentences about groups that need an operator, on a screen with room for them.
const SENTENCES: usize = 3;
const SENTENCES_FROM_HEIGHT: usize = 20;
/// The least that a name gets.
const NAME_MIN: usize = 12;
/// The history that is shown, and its points.
const HISTORY_SPAN: &str = "15m";
const HISTORY_POINTS: usize = 60;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Sort order.
    #[arg(long, value_name = "COLUMN", default_value = "lag")]
    sort: Sort,
    /// Print everything once.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    Lag,
    Oldest,
    In,
    Out,
    Flight,
    Parked,
    Name,
}

impl Sort {
    fn of_key(key: u8) -> Option<Sort> {
        Some(match key {
            b'l' => Sort::Lag,
            b'o' => Sort::Oldest,
            b'i' => Sort::In,
            b'u' => Sort::Out,
            b'f' => Sort::Flight,
            b'p' => Sort::Parked,
            b'n' => Sort::Name,
            _ => return None,
        })
    }

    /// The largest first, and names in their order.
    fn groups(self, a: &GroupReport, b: &GroupReport) -> Ordering {
        let largest = match self {
            Sort::Lag => b.lag.cmp(&a.lag),
            Sort::Oldest => b.oldest_age.unwrap_or(0.0).total_cmp(&a.oldest_age.unwrap_or(0.0)),
            Sort::In => b.throughput.arrived.second.total_cmp(&a.throughput.arrived.second),
            Sort::Out => b.throughput.settled.second.total_cmp(&a.throughput.settled.second),
            Sort::Flight => b.in_flight.cmp(&a.in_flight),
            Sort::Parked => b.parked.cmp(&a.parked),
            Sort::Name => Ordering::Equal,
        };
        largest.then_with(|| (&a.stream, &a.group).cmp(&(&b.stream, &b.group)))
    }

    fn streams(self, a: &StreamReport, b: &StreamReport) -> Ordering {
        let largest = match self {
            Sort::Lag => b.messages.cmp(&a.messages),
            Sort::Oldest => b.oldest_age.unwrap_or(0.0).total_cmp(&a.oldest_age.unwrap_or(0.0)),
            Sort::In => b.rates.published.second.total_cmp(&a.rates.published.second),
            Sort::Out | Sort::Flight | Sort::Parked | Sort::Name => Ordering::Equal,
        };
        largest.then_with(|| a.stream.cmp(&b.stream))
    }
}

/// Streams and groups at a moment.
struct View {
    streams: Vec<StreamReport>,
    groups: Vec<GroupReport>,
    /// Of the server, and of the group whose page is shown. None if the server does not tell.
    history: Option<History>,
    group_history: Option<(GroupPath, History)>,
}

impl View {
    fn sort(&mut self, by: Sort, reverse: bool) {
        self.streams.sort_by(|a, b| by.streams(a, b));
        self.groups.sort_by(|a, b| by.groups(a, b));
        if reverse {
            self.streams.reverse();
            self.groups.reverse();
        }
    }
}

async fn look(http: &mut Http) -> anyhow::Result<(List, List)> {
    let listing = |path, field| {
        let (query, limit) = (Query::default(), Some(ITEMS_MAX));
        Listing { path, query, field, cursor: "after", from: None, limit }
    };
    let streams = http.list(&listing("/streams", "streams")).await?;
    let groups = http.list(&listing("/groups", "groups")).await?;
    Ok((streams, groups))
}

fn view(lists: &(List, List)) -> anyhow::Result<View> {
    let (history, group_history) = (None, None);
    Ok(View { streams: lists.0.read()?, groups: lists.1.read()?, history, group_history })
}

/// The history at a path. A client may not be allowed to see it, and a server may have none.
async fn history(http: &mut Http, path: &str) -> anyhow::Result<Option<History>> {
    match http.get(&format!("{path}/history?span={HISTORY_SPAN}&points={HISTORY_POINTS}")).await {
        Ok(reply) => Ok(Some(reply.read()?)),
        Err(error) if error.downcast_ref::<Refused>().is_some() => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn run(options: &Top, output: Output) -> anyhow::Result<()> {
    let interactive = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    runtime()?.block_on(async {
        let mut http = Http::connect(&options.server).await?;
        let lists = look(&mut http).await?;
        if output == Output::Json {
            let (streams, groups) = (lists.0.array(), lists.1.array());
            return print(&format!("{{\"streams\":{streams},\"groups\":{groups}}}\n"));
        }
        let mut view = view(&lists)?;
        if options.once || !interactive {
            view.sort(options.sort, false);
            let width = usize::MAX;
            let mut lines = streams_table(&view.streams, width).lines(colours(), width);
            lines.push(String::new());
            lines.extend(groups_table(&view.groups, width).lines(colours(), width));
            return print(&format!("{}\n", lines.join("\n")));
        }
        live(options, http, view).await
    })
}

/// How the screen looks, and which part of it.
struct Look {
    address: String,
    sort: Sort,
    reverse: bool,
    /// The group under the cursor, by its row among those that the filter lets through.
    selected: usize,
    /// Only streams and groups whose name has this in it.
    filter: String,
    /// Keys are letters of the filter.
    typing: bool,
    /// The page of one group, and the first of its lines.
    page: Option<(String, String)>,
    page_from: usize,
    trouble: Option<String>,
    /// Age of the figures.
    age: Duration,
}

/// A key, or the sequence that a special key sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Byte(u8),
    Up,
    Down,
    PageUp,
    PageDown,
    Escape,
}

impl Look {
    fn new(address: String, sort: Sort) -> Look {
        Look {
            address,
            sort,
            reverse: false,
            selected: 0,
            filter: String::new(),
            typing: false,
            page: None,
            page_from: 0,
            trouble: None,
            age: Duration::ZERO,
        }
    }

    /// The view that the filter leaves, in order.
    fn filtered(&self, view: &View) -> View {
        let has = |name: &str| name.to_lowercase().contains(&self.filter.to_lowercase());
        let of_group = |group: &&GroupReport| has(&format!("{}/{}", group.stream, group.group));
        let mut shown = View {
            streams: view.streams.iter().filter(|stream| has(&stream.stream)).cloned().collect(),
            groups: view.groups.iter().filter(of_group).cloned().collect(),
            history: view.history.clone(),
            group_history: None,
        };
        shown.sort(self.sort, self.reverse);
        shown
    }

    /// Does what a key means. False if it ends the command.
    fn on_key(&mut self, key: Key, view: &View) -> bool {
        let shown = self.filtered(view);
        let last = shown.groups.len().saturating_sub(1);
        match key {
            // ^C and ^D.
            Key::Byte(3 | 4) => return false,
            Key::Byte(byte) if self.typing => match byte {
                b'\r' | b'\n' => self.typing = false,
                127 | 8 => drop(self.filter.pop()),
                b' '..=b'~' => self.filter.push(char::from(byte)),
                _ => {}
            },
            Key::Escape if self.typing || self.page.is_none() => {
                self.filter.clear();
                self.typing = false;
            }
            Key::Escape | Key::Byte(b'b' | 127 | 8) => self.page = None,
            Key::Byte(b'q' | b'Q') => return false,
            Key::Up | Key::Byte(b'k') => self.step(-1, last),
            Key::Down | Key::Byte(b'j') => self.step(1, last),
            Key::PageUp => self.step(-10, last),
            Key::PageDown => self.step(10, last),
            Key::Byte(b'/') => self.typing = true,
            Key::Byte(b'r') => self.reverse = !self.reverse,
            Key::Byte(b'\r' | b'\n') => {
                let chosen = shown.groups.get(self.selected.min(last));
                self.page = chosen.map(|group| (group.stream.clone(), group.group.clone()));
                self.page_from = 0;
            }
            Key::Byte(byte) => {
                if let Some(chosen) = Sort::of_key(byte) {
                    (self.sort, self.reverse, self.selected) = (chosen, false, 0);
                }
            }
        }
        true
    }

    fn step(&mut self, by: isize, last: usize) {
        match self.page {
            Some(_) => self.page_from = self.page_from.saturating_add_signed(by),
            None => self.selected = self.selected.min(last).saturating_add_signed(by).min(last),
        }
    }
}

type Asking = Pin<Box<dyn Future<Output = (Option<Http>, anyhow::Result<View>)>>>;

async fn live(options: &Top, http: Http, view: View) -> anyhow::Result<()> {
    let screen = Screen::enter()?;
    let mut keys = read_keys();
    let mut view = view;
    let mut look = Look::new(http.address().to_owned(), options.sort);
    let mut http = Some(http);
    let clock = Clock::start();
    let mut fresh_at = clock.now();
    let mut asking: Option<Asking> = None;
    let mut every = tokio::time::interval(REFRESH);
    // The first tick is at once, and what it would bring is there already.
    every.tick().await;
    loop {
        look.age = clock.now().since(fresh_at);
        screen.draw(&frame(&view, &look, screen.size(), colours()))?;
        // A server that hangs must not keep keys from being read, nor its last figures from growing old.
        let answered = async {
            match &mut asking {
                Some(asking) => asking.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            key = next_key(&mut keys) => match key {
                Some(key) => if !look.on_key(key, &view) { return Ok(()) },
                None => return Ok(()),
            },
            (connected, refreshed) = answered => {
                (asking, http) = (None, connected);
                match refreshed {
                    Ok(fresh) => (view, look.trouble, fresh_at) = (fresh, None, clock.now()),
                    Err(error) => look.trouble = Some(exit::text(&error)),
                }
                if let Some(http) = &http {
                    http.address().clone_into(&mut look.address);
                }
            },
            _ = every.tick() => if asking.is_none() {
                asking = Some(Box::pin(refresh(options.server.clone(), http.take(), look.page.clone())));
            },
        }
    }
}

/// The next key. The bytes of a special key come together.
async fn next_key(keys: &mut mpsc::Receiver<u8>) -> Option<Key> {
    let first = keys.recv().await?;
    if first != 27 {
        return Some(Key::Byte(first));
    }
    let mut sequence = Vec::new();
    while let Ok(Some(byte)) = tokio::time::timeout(SEQUENCE_PAUSE, keys.recv()).await {
        sequence.push(byte);
        if byte == b'~' || (sequence.len() > 1 && byte.is_ascii_alphabetic()) {
            break;
        }
    }
    Some(match &sequence[..] {
        b"[A" | b"OA" => Key::Up,
        b"[B" | b"OB" => Key::Down,
        b"[5~" => Key::PageUp,
        b"[6~" => Key::PageDown,
        _ => Key::Escape,
    })
}

/// The present reports. A connection that broke is made anew the next time.
async fn refresh(
    server: Server,
    http: Option<Http>,
    page: Option<(String, String)>,
) -> (Option<Http>, anyhow::Result<View>) {
    let connected = match http {
        Some(connected) => Ok(connected),
        None => Http::connect(&server).await,
    };
    let mut connected = match connected {
        Ok(connected) => connected,
        Err(error) => return (None, Err(error)),
    };
    match refreshed(&mut connected, page).await {
        Ok(view) => (Some(connected), Ok(view)),
        Err(error) => (None, Err(error)),
    }
}

async fn refreshed(http: &mut Http, page: Option<(String, String)>) -> anyhow::Result<View> {
    let mut view = look(http).await.and_then(|lists| view(&lists))?;
    view.history = history(http, "").await?;
    if let Some((stream, group)) = page {
        let group = GroupPath { stream, group };
        view.group_history = history(http, &group.path()).await?.map(|history| (group, history));
    }
    Ok(view)
}

/// One picture, as lines that fit.
fn frame(view: &View, look: &Look, (width, height): (usize, usize), colours: bool) -> Vec<String> {
    let mut lines = vec![title(view, look, width, colours)];
    let body = height.saturating_sub(2);
    let chosen = look
        .page
        .as_ref()
        .and_then(|(stream, group)| view.groups.iter().find(|of| of.stream == *stream && of.group == *group));
    match (&look.page, chosen) {
        (Some(_), Some(group)) => {
            let is_of = |of: &&(GroupPath, History)| of.0.stream == group.stream && of.0.group == group.group;
            let history = view.group_history.as_ref().filter(is_of).map(|(_, history)| history);
            lines.extend(page(group, history, look.page_from, (width, body), colours));
        }
        (Some((stream, group)), None) => {
            let gone = format!("the group {}/{} is gone", printable(stream), printable(group));
            lines.push(cut(&gone, width));
        }
        (None, _) => lines.extend(tables(&look.filtered(view), look, (width, body), colours)),
    }
    lines.truncate(height.saturating_sub(1));
    lines.push(Colour::Dim.paint(&cut(&keys_of(look), width), colours));
    lines
}

/// The first line: trouble, old figures, or sums.
fn title(view: &View, look: &Look, width: usize, colours: bool) -> String {
    let age = units::age(look.age.as_secs_f64());
    if let Some(trouble) = &look.trouble {
        let text = format!("{} (figures are {age} old)", printable(trouble));
        return Colour::Red.paint(&cut(&text, width), colours);
    }
    if look.age >= STALE {
        let text = format!("{} does not answer; figures are {age} old", printable(&look.address));
        return Colour::Red.paint(&cut(&text, width), colours);
    }
    let sum = |of: fn(&GroupReport) -> f64| view.groups.iter().map(of).sum::<f64>();
    let published: f64 = view.streams.iter().map(|stream| stream.rates.published.second).sum();
    let title = format!(
        "{}  {}, {}  in {}  out {}  lag {}  parked {}",
        printable(&look.address),
        units::of(view.streams.len() as u64, "stream"),
        units::of(view.groups.len() as u64, "group"),
        units::rate(published),
        units::rate(sum(|group| group.throughput.settled.second)),
        units::short(sum(|group| group.lag as f64)),
        units::short(sum(|group| group.parked as f64)),
    );
    Colour::Bold.paint(&cut(&title, width), colours)
}

fn keys_of(look: &Look) -> String {
    if look.typing {
        return format!("filter: {}_   Enter keeps it, Esc clears it", look.filter);
    }
    if look.page.is_some() {
        return "Up Down scroll  b back  q quit".to_owned();
    }
    let filter = if look.filter.is_empty() { String::new() } else { format!("/{} ", look.filter) };
    let keys = "l lag o oldest i in u out f flight p parked n name r reverse / filter Enter group q quit";
    format!("{} first: {filter}{keys}", word_of(look.sort))
}

/// Streams and groups, as many as fit. Groups scroll, so that the selected one is in sight.
fn tables(shown: &View, look: &Look, (width, height): (usize, usize), colours: bool) -> Vec<String> {
    // Streams have a third of the room, and what groups do not need.
    let said = sentences(shown, if height < SENTENCES_FROM_HEIGHT { 0 } else { SENTENCES }, width, colours);
    let past = shown.history.as_ref().filter(|_| height >= SENTENCES_FROM_HEIGHT);
    let past = past.map(|history| Colour::Dim.paint(&overview_bars(history, width), colours));
    let room = height.saturating_sub(LINES_BESIDE + said.len() + usize::from(past.is_some())).max(2);
    let for_groups = shown.groups.len().min(room - (room / 3).min(shown.streams.len()));
    let for_streams = room - for_groups;
    let mut lines: Vec<String> = past.into_iter().chain(said).collect();
    lines.push(String::new());
    let some = &shown.streams[..shown.streams.len().min(for_streams)];
    lines.extend(streams_table(some, width).lines(colours, width));
    lines.push(left_out(shown.streams.len() - some.len(), 0, colours));
    let selected = look.selected.min(shown.groups.len().saturating_sub(1));
    let first = (selected + 1).saturating_sub(for_groups).min(shown.groups.len() - for_groups);
    let some = &shown.groups[first..first + for_groups];
    let rows = groups_table(some, width).lines(colours, width);
    let cursor = selected - first + 1;
    lines.extend(rows.into_iter().enumerate().map(|(n, row)| match n == cursor && colours {
        true => format!("\x1b[7m{row}\x1b[0m"),
        false => row,
    }));
    lines.push(left_out(shown.groups.len() - for_groups - first, first, colours));
    lines
}

/// Everything about one group.
fn page(
    group: &GroupReport,
    history: Option<&History>,
    from: usize,
    (width, height): (usize, usize),
    colours: bool,
) -> Vec<String> {
    let (facts, consumers) = details(group);
    let widest = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut lines: Vec<String> = facts
        .iter()
        .map(|(name, value)| {
            let line = cut(&format!("{name:widest$}  {}", printable(value)), width);
            if name == "status" { Cell::painted(&line, alarm(group), colours) } else { line }
        })
        .collect();
    if let Some(history) = history {
        lines.push(String::new());
        lines.extend(group_bars(history, widest, width).iter().map(|line| cut(line, width)));
    }
    if let Some(consumers) = consumers {
        lines.push(String::new());
        lines.extend(consumers.lines(colours, width));
    }
    let from = from.min(lines.len().saturating_sub(height));
    lines.split_off(from)
}

/// Values as a line of bars, the largest as high as the line; and the largest value. Points without a record are blank.
fn bars(values: &[Option<f64>], width: usize) -> (String, f64) {
    let max = values.iter().flatten().copied().fold(0.0, f64::max);
    let width = width.min(values.len());
    let bar = |n: usize| {
        // The largest of the values that share a bar.
        let some = &values[n * values.len() / width..(n + 1) * values.len() / width];
        let value = some.iter().flatten().copied().reduce(f64::max);
        let height = |value: f64| if max > 0.0 { (value / max * 7.0).round() as usize } else { 0 };
        value.map_or(' ', |value| BARS[height(value).min(7)])
    };
    ((0..width).map(bar).collect(), max)
}

/// The last minutes of the server in one line.
fn overview_bars(history: &History, width: usize) -> String {
    let labels = ["in", "out", "lag"];
    // Two spaces between the three, and each with its name and its largest value.
    let each = (width.saturating_sub(3 + 2 * 3) / 3).saturating_sub(4 + 8).clamp(6, HISTORY_POINTS);
    let lines = [&history.arrived, &history.settled, &history.lag].map(|values| bars(values, each));
    let largest = |n: usize, max: f64| if n == 2 { units::short(max) } else { units::rate(max) };
    let parts = labels.iter().zip(&lines).enumerate();
    let parts = parts.map(|(n, (label, (line, max)))| format!("{label} {line} {}", largest(n, *max)));
    cut(&format!("15m  {}", parts.collect::<Vec<_>>().join("  ")), width)
}

/// The last minutes of a group, with one line for each figure.
fn group_bars(history: &History, name: usize, width: usize) -> Vec<String> {
    let room = width.saturating_sub(name + 2 + 2 + 8);
    let line = |title: &str, values: &[Option<f64>], unit: fn(f64) -> String| {
        let (line, max) = bars(values, room);
        format!("{title:name$}  {line}  {}", unit(max))
    };
    vec![
        line("in, 15m", &history.arrived, units::rate),
        line("out", &history.settled, units::rate),
        line("lag", &history.lag, units::short),
        line("oldest", &history.oldest_age, units::age),
        line("parked", &history.parked, units::short),
    ]
}

/// The most urgent sentences about groups that need an operator, as the dashboard has them, and about streams without a
/// group.
fn sentences(view: &View, most: usize, width: usize, colours: bool) -> Vec<String> {
    let facts: Vec<GroupFacts> = view.groups.iter().map(GroupFacts::from).collect();
    let streams = view.streams.iter().map(StreamFacts::from);
    let found = attention(&ServerFacts::default(), streams, &facts);
    let told = |one: &&Attention| one.severity != Severity::Notice || one.concern == Concern::NoGroup;
    let line = |one: &Attention| {
        let text = cut(&printable(&format!("{} {}", one.subject_text(), one.text)), width);
        let colour = match one.severity {
            Severity::Critical => Colour::Red,
            Severity::Warning => Colour::Yellow,
            Severity::Notice => Colour::Dim,
        };
        colour.paint(&text, colours)
    };
    found.iter().filter(told).take(most).map(line).collect()
}

fn word_of(sort: Sort) -> &'static str {
    match sort {
        Sort::Lag => "lag",
        Sort::Oldest => "oldest",
        Sort::In => "in",
        Sort::Out => "out",
        Sort::Flight => "flight",
        Sort::Parked => "parked",
        Sort::Name => "name",
    }
}

/// How many rows are not in sight: below, and above.
fn left_out(below: usize, above: usize, colours: bool) -> String {
    let text = match (below, above) {
        (0, 0) => return String::new(),
        (below, 0) => format!("and {below} more"),
        (below, above) => format!("and {below} more, {above} above"),
    };
    Colour::Dim.paint(&text, colours)
}

fn streams_table(streams: &[StreamReport], width: usize) -> Table {
    let mut table = Table::new(&["STREAM", ">MESSAGES", ">SIZE", ">IN", ">OLDEST", ">GROUPS"]);
    // 8, 8, 7, 6 and 6 for the figures, and what lies between.
    let name_max = width.saturating_sub(8 + 8 + 7 + 6 + 6 + 5 * 2).max(NAME_MIN);
    for stream in streams {
        table.row([
            cut(&printable(&stream.stream), name_max),
            units::short(stream.messages as f64),
            units::bytes(stream.bytes),
            units::rate(stream.rates.published.second),
            oldest(stream),
            units::short(stream.groups as f64),
        ]);
    }
    table
}

fn groups_table(groups: &[GroupReport], width: usize) -> Table {
    let titles = ["GROUP", "STATUS", ">LAG", ">OLDEST", ">IN", ">OUT", ">FLIGHT", ">PARKED", ">CONS"];
    let mut table = Table::new(&titles).tight();
    let status_width = groups.iter().map(|group| status(group).0.len()).max().unwrap_or(6).max(6);
    // 5, 7, 7, 7, 6, 6 and 4 for the figures, and what lies between.
    let name_max = width.saturating_sub(status_width + 5 + 7 + 7 + 7 + 6 + 6 + 4 + 8).max(NAME_MIN);
    for group in groups {
        let name = printable(&format!("{}/{}", group.stream, group.group));
        table.row([
            cut(&name, name_max).into(),
            status(group),
            Cell(units::short(group.lag as f64), alarm(group)),
            group.oldest_age.map_or("-".to_owned(), units::age).into(),
            units::rate(group.throughput.arrived.second).into(),
            units::rate(group.throughput.settled.second).into(),
            units::short(group.in_flight as f64).into(),
            Cell(
                units::short(group.parked as f64),
                if group.parked > 0 { Colour::Red } else { Colour::Plain },
            ),
            units::count(group.consumers.len() as u64).into(),
        ] as [Cell; 9]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn view(streams: u64, groups: u64) -> View {
        let rates = json!({"1s": 1_234.5, "1m": 0.0, "15m": 0.0});
        let stream = |n: u64| {
            json!({"stream": format!("a-stream-with-a-long-name-{n:04}"), "settings": {},
                   "created_at": "2026-11-15T10:30:00Z",
                   "first_seq": 1, "last_seq": 9, "messages": n * 1_000, "bytes": 123_456_789, "delayed": 0,
                   "oldest_age": 200.0, "groups": 1, "group_names": [], "rates": {"published": rates}})
        };
        let group = |n: u64| {
            json!({"stream": "a-stream-with-a-long-name", "group": format!("g\u{1b}{n}"), "status": "key_scan_full",
                   "settings": {}, "last_known_seq": 9, "last_processed_seq": 9, "last_checkpointed_seq": 9,
                   "lag": n * 123_456, "oldest_age": 12_345.0, "in_flight": 12_345, "ready": 0, "waiting": 0,
                   "parked": 123_456, "oldest_parked_age": null, "moving": 0,
                   "throughput": {"arrived": rates, "settled": rates}, "catch_up_time": null,
                   "processing_time": null, "consumers": []})
        };
        let read = |value| serde_json::from_value(value).expect("as the API has it");
        View {
            streams: (1..=streams)
                .map(|n| serde_json::from_value(stream(n)).expect("as the API has it"))
                .collect(),
            groups: (1..=groups).map(|n| read(group(n))).collect(),
            history: None,
            group_history: None,
        }
    }

    fn drawn(view: &View, size: (usize, usize)) -> Vec<String> {
        frame(view, &look_of(), size, false)
    }

    fn look_of() -> Look {
        Look::new("127.0.0.1:7070".to_owned(), Sort::Lag)
    }

    #[test]
    fn whatever_there_is_fits_the_terminal() {
        for (streams, groups) in [(0, 0), (1, 1), (3, 200), (200, 3), (1_000, 1_000)] {
            let view = view(streams, groups);
            for size in [(80, 24), (60, 12), (200, 60), (20, 5)] {
                let lines = drawn(&view, size);
                assert!(lines.len() <= size.1, "{} lines on {size:?}: {lines:#?}", lines.len());
                assert!(lines.iter().all(|line| line.chars().count() <= size.0), "{size:?}: {lines:#?}");
                assert!(!lines.iter().any(|line| line.contains('\u{1b}')), "{lines:#?}");
                assert!(lines.last().is_some_and(|line| line.starts_with("lag first")), "{lines:#?}");
            }
        }
    }

    #[test]
    fn at_80_columns_every_figure_is_there_and_the_worst_comes_first() {
        let view = view(2, 40);
        let lines = drawn(&view, (80, 24));
        let at = lines.iter().position(|line| line.starts_with("GROUP")).expect("a heading");
        assert!(lines[at].ends_with("CONS"), "{lines:#?}");
        assert!(lines[at + 1].contains("4.9 M") && lines[at + 1].contains("3h 25m"), "{lines:#?}");
        assert!(lines.iter().any(|line| line.starts_with("and ")), "{lines:#?}");
        let reversed = Look { reverse: true, ..look_of() };
        assert!(frame(&view, &reversed, (80, 24), false)[at + 1].contains("123 k"));
    }

    #[test]
    fn keys_scroll_filter_and_open_a_group() {
        let view = view(2, 40);
        let mut look = look_of();
        let press = |look: &mut Look, keys: &str| {
            keys.bytes().for_each(|key| assert!(look.on_key(Key::Byte(key), &view), "it goes on"));
        };
        for _ in 0..39 {
            assert!(look.on_key(Key::Down, &view));
        }
        let lines = frame(&view, &look, (120, 24), false);
        assert!(lines.iter().any(|line| line.contains("/g\\x1b1 ")), "the last one is in sight: {lines:#?}");
        assert!(lines.iter().any(|line| line.contains(" above")), "{lines:#?}");
        press(&mut look, "/17");
        assert_eq!((look.typing, look.filtered(&view).groups.len()), (true, 1));
        press(&mut look, "\r\r");
        assert_eq!(look.page.as_ref().map(|(_, group)| group.as_str()), Some("g\u{1b}17"));
        let lines = frame(&view, &look, (80, 24), false);
        assert!(
            lines.iter().any(|line| line.starts_with("status") && line.contains("key_scan_full")),
            "{lines:#?}"
        );
        press(&mut look, "b");
        assert!(look.page.is_none());
        assert!(look.on_key(Key::Escape, &view) && look.filter.is_empty());
        assert!(!look.on_key(Key::Byte(b'q'), &view));
    }

    #[test]
    fn old_figures_and_groups_without_a_consumer_are_marked() {
        let mut view = view(1, 1);
        let old = Look { age: Duration::from_secs(17), ..look_of() };
        assert!(frame(&view, &old, (80, 24), false)[0].contains("figures are 17s old"));
        view.groups[0].status = forebay_wire::json::GroupStatus::Idle;
        let lines = frame(&view, &look_of(), (80, 24), true);
        assert!(lines.iter().any(|line| line.contains("\x1b[31m idle")), "{lines:#?}");
    }

    fn history() -> History {
        let points = |of: fn(usize) -> f64| -> Vec<Option<f64>> {
            (0..HISTORY_POINTS).map(|n| (n >= 30).then(|| of(n))).collect()
        };
        History {
            from: forebay_wire::json::Time(0),
            step: 15,
            arrived: points(|n| n as f64 * 100.0),
            settled: points(|_| 0.0),
            lag: points(|n| if n == 45 { 12_000.0 } else { 0.0 }),
            oldest_age: points(|_| 60.0),
            in_flight: points(|_| 1.0),
            parked: points(|_| 3.0),
        }
    }

    #[test]
    fn bars_show_the_last_minutes() {
        let (line, max) = bars(&history().arrived, 12);
        assert_eq!((&*line, max), ("      ▅▆▆▇▇█", 5_900.0), "nothing is known of the first half");
        assert_eq!(bars(&history().settled, 6), ("   ▁▁▁".to_owned(), 0.0));
        assert_eq!(bars(&history().lag, 60).0.chars().filter(|bar| *bar == '█').count(), 1);
        assert_eq!(bars(&[], 10), (String::new(), 0.0));
        let shown = View { history: Some(history()), ..view(1, 2) };
        for width in [40, 80, 200] {
            let lines = drawn(&shown, (width, 24));
            assert!(lines[1].starts_with("15m  in ") && lines[1].chars().count() <= width, "{lines:#?}");
        }
        assert!(drawn(&shown, (80, 24))[1].ends_with("12.0 k"), "{:?}", drawn(&shown, (80, 24))[1]);
        assert!(!drawn(&shown, (80, 12))[1].starts_with("15m"), "a small screen has no room for it");
    }

    #[test]
    fn the_page_of_a_group_has_its_own_history() {
        let of = |n: u64| GroupPath {
            stream: "a-stream-with-a-long-name".to_owned(),
            group: format!("g\u{1b}{n}"),
        };
        let page = Some(("a-stream-with-a-long-name".to_owned(), "g\u{1b}1".to_owned()));
        let look = Look { page, ..look_of() };
        let drawn = |n| {
            frame(&View { group_history: Some((of(n), history())), ..view(1, 2) }, &look, (100, 60), false)
        };
        let lag = |lines: &[String]| lines.iter().any(|line| line.starts_with("lag ") && line.contains('█'));
        assert!(lag(&drawn(1)), "{:#?}", drawn(1));
        assert!(!lag(&drawn(2)), "that of another group is not shown");
    }

    #[test]
    fn groups_that_need_an_operator_are_told_of_first() {
        let lines = drawn(&view(1, 2), (80, 24));
        assert!(lines[1].starts_with("a-stream-with-a-long-name/g"), "{lines:#?}");
        assert!(lines[1].contains("has stopped: 0 messages wait for one key"), "{lines:#?}");
        let small = drawn(&view(1, 2), (80, 12));
        assert!(!small.iter().any(|line| line.contains("has stopped")), "{small:#?}");
    }
}
