//! `forebay top`: streams and groups as they are now, once a second, until `q`.

use std::cmp::Ordering;
use std::io::IsTerminal as _;
use std::time::Duration;

use clap::{Args, ValueEnum};
use forebay_wire::json::{GroupReport, StreamReport};

use super::{status_colour, word};
use crate::connect::{Server, runtime};
use crate::exit;
use crate::http::{Http, List, Listing, Query};
use crate::print::{Cell, Colour, Output, Table, colours, print};
use crate::safe::printable;
use crate::screen::{Screen, cut, read_keys};
use crate::units;

pub(crate) const EXAMPLES: &str = "\
Keys: sort by l lag, o oldest, i in, u out, f in flight, p parked, n name; r reverses the order; q quits.
Without a terminal, everything is printed once.

Examples:
  forebay top
  forebay top --sort parked
  forebay top --once -o json | jq '.subscriptions[] | select(.lag > 1000) | .group'";

/// How often it looks.
const REFRESH: Duration = Duration::from_secs(1);
/// Streams and groups that are looked at.
const ITEMS_MAX: u64 = 1_000;
/// Lines that are neither streams nor groups: the title, two headings, two gaps, two for rows left out, keys.
const LINES_BESIDE: usize = 8;
/// The least that a name gets.
const NAME_MIN: usize = 12;

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
    let groups = http.list(&listing("/subscriptions", "subscriptions")).await?;
    Ok((streams, groups))
}

fn view(lists: &(List, List)) -> anyhow::Result<View> {
    Ok(View { streams: lists.0.read()?, groups: lists.1.read()? })
}

pub(crate) fn run(options: &Top, output: Output) -> anyhow::Result<()> {
    let interactive = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    runtime()?.block_on(async {
        let mut http = Http::connect(&options.server).await?;
        let lists = look(&mut http).await?;
        if output == Output::Json {
            let (streams, groups) = (lists.0.array(), lists.1.array());
            return print(&format!("{{\"streams\":{streams},\"subscriptions\":{groups}}}\n"));
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

async fn live(options: &Top, http: Http, view: View) -> anyhow::Result<()> {
    let screen = Screen::enter()?;
    let mut keys = read_keys();
    let mut http = Some(http);
    let mut view = view;
    let (mut sort, mut reverse) = (options.sort, false);
    let mut trouble = None;
    let mut every = tokio::time::interval(REFRESH);
    // The first tick is at once, and what it would bring is there already.
    every.tick().await;
    loop {
        view.sort(sort, reverse);
        screen.draw(&frame(&view, &options.server, sort, trouble.as_deref(), screen.size(), colours()))?;
        tokio::select! {
            key = keys.recv() => match key {
                // Also ^C, ^D and the end of the input.
                Some(b'q' | b'Q' | 3 | 4) | None => return Ok(()),
                Some(b'r') => reverse = !reverse,
                Some(key) => {
                    if let Some(chosen) = Sort::of_key(key) {
                        (sort, reverse) = (chosen, false);
                    }
                }
            },
            _ = every.tick() => match refresh(&options.server, &mut http).await {
                Ok(fresh) => (view, trouble) = (fresh, None),
                Err(error) => trouble = Some(exit::text(&error)),
            },
        }
    }
}

/// The present reports. A connection that broke is made anew the next time.
async fn refresh(server: &Server, http: &mut Option<Http>) -> anyhow::Result<View> {
    let mut connected = match http.take() {
        Some(connected) => connected,
        None => Http::connect(server).await?,
    };
    let lists = look(&mut connected).await?;
    *http = Some(connected);
    view(&lists)
}

/// One picture, as lines that fit.
fn frame(
    view: &View,
    server: &Server,
    sort: Sort,
    trouble: Option<&str>,
    (width, height): (usize, usize),
    colours: bool,
) -> Vec<String> {
    let sum = |of: fn(&GroupReport) -> f64| view.groups.iter().map(of).sum::<f64>();
    let published: f64 = view.streams.iter().map(|stream| stream.rates.published.second).sum();
    let title = match trouble {
        Some(trouble) => Colour::Red.paint(&cut(&printable(trouble), width), colours),
        None => {
            let title = format!(
                "{}  {}, {}  in {}  out {}  lag {}  parked {}",
                printable(server.authority()),
                units::of(view.streams.len() as u64, "stream"),
                units::of(view.groups.len() as u64, "group"),
                units::rate(published),
                units::rate(sum(|group| group.throughput.settled.second)),
                units::short(sum(|group| group.lag as f64)),
                units::short(sum(|group| group.parked as f64)),
            );
            Colour::Bold.paint(&cut(&title, width), colours)
        }
    };
    // Streams have a third of the room, and what groups do not need.
    let room = height.saturating_sub(LINES_BESIDE).max(2);
    let for_groups = view.groups.len().min(room - (room / 3).min(view.streams.len()));
    let for_streams = room - for_groups;
    let mut lines = vec![title, String::new()];
    let some = &view.streams[..view.streams.len().min(for_streams)];
    lines.extend(streams_table(some, width).lines(colours, width));
    lines.push(left_out(view.streams.len() - some.len(), colours));
    let some = &view.groups[..for_groups];
    lines.extend(groups_table(some, width).lines(colours, width));
    lines.push(left_out(view.groups.len() - some.len(), colours));
    let keys = "l lag o oldest i in u out f flight p parked n name r turn q quit";
    let keys = format!("{} first: {keys}", word_of(sort));
    lines.truncate(height.saturating_sub(1));
    lines.push(Colour::Dim.paint(&cut(&keys, width), colours));
    lines
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

fn left_out(count: usize, colours: bool) -> String {
    if count == 0 { String::new() } else { Colour::Dim.paint(&format!("and {count} more"), colours) }
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
            stream.oldest_age.map_or("-".to_owned(), units::age),
            units::short(stream.groups as f64),
        ]);
    }
    table
}

fn groups_table(groups: &[GroupReport], width: usize) -> Table {
    let titles = ["GROUP", "STATUS", ">LAG", ">OLDEST", ">IN", ">OUT", ">FLIGHT", ">PARKED", ">CONS"];
    let mut table = Table::new(&titles).tight();
    let status_width = groups.iter().map(|group| word(&group.status).len()).max().unwrap_or(6).max(6);
    // 5, 7, 7, 7, 6, 6 and 4 for the figures, and what lies between.
    let name_max = width.saturating_sub(status_width + 5 + 7 + 7 + 7 + 6 + 6 + 4 + 8).max(NAME_MIN);
    for group in groups {
        let status = word(&group.status);
        let name = printable(&format!("{}/{}", group.stream, group.group));
        table.row([
            cut(&name, name_max).into(),
            Cell(status.clone(), status_colour(&status)),
            units::short(group.lag as f64).into(),
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
        }
    }

    fn drawn(view: &View, size: (usize, usize)) -> Vec<String> {
        let server = Server { server: "127.0.0.1:7070".to_owned(), token_file: None, ca: None, token: None };
        frame(view, &server, Sort::Lag, None, size, false)
    }

    #[test]
    fn whatever_there_is_fits_the_terminal() {
        for (streams, groups) in [(0, 0), (1, 1), (3, 200), (200, 3), (1_000, 1_000)] {
            let mut view = view(streams, groups);
            view.sort(Sort::Lag, false);
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
        let mut view = view(2, 40);
        view.sort(Sort::Lag, false);
        let lines = drawn(&view, (80, 24));
        let at = lines.iter().position(|line| line.starts_with("GROUP")).expect("a heading");
        assert!(lines[at].ends_with("CONS"), "{lines:#?}");
        assert!(lines[at + 1].contains("4.9 M") && lines[at + 1].contains("3h 25m"), "{lines:#?}");
        assert!(lines.iter().any(|line| line.starts_with("and ")), "{lines:#?}");
        view.sort(Sort::Lag, true);
        assert!(drawn(&view, (80, 24))[at + 1].contains("123 k"));
    }
}
