//! The pages. Each is a function that asks for reports and one that writes them down.

mod action;
mod alerts;
mod clients;
mod cluster;
mod delayed;
mod group;
mod groups;
mod message;
mod node;
mod overview;
mod parked;
mod parked_one;
mod parts;
mod settings;
mod stream;
mod streams;

use forebay_core::types::{GroupName, StreamName};
use forebay_wire::problem::{Kind, Problem};
use maud::html;
use percent_encoding::percent_decode_str;

use super::super::failure::Failure;
use super::super::request::{Query, bad_parameter};
use super::Visit;
use super::layout::{self, heading};
use super::view::{Page, Section, View};
use crate::native::service::{group_name, stream_name};
use alerts::Board;

/// Which page, of what.
pub(super) enum Route {
    Overview { span: Option<Span> },
    Streams(List),
    Stream(StreamName, stream::Browse),
    Message(StreamName, u64),
    Groups(List),
    Group(StreamName, GroupName),
    Parked(List),
    ParkedOfGroup(StreamName, GroupName, parked::Filter),
    ParkedOne(StreamName, GroupName, u64),
    Delayed(List),
    Clients(List),
    Cluster,
    Node,
}

/// A part of a list: the rows with a text in their names, in an order, from a page on.
#[derive(Debug, Clone, Default)]
pub(super) struct List {
    pub(super) text: Option<String>,
    pub(super) sort: Option<String>,
    pub(super) page: usize,
}

/// Rows on one page of a list.
const ROWS: usize = 50;

impl List {
    fn parse(query: &mut Query) -> Result<List, Failure> {
        let page: Option<usize> = query.number("page")?;
        Ok(List { text: query.text("q"), sort: query.text("sort"), page: page.unwrap_or(1).max(1) })
    }
}

/// How far back charts go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Span {
    Minutes5,
    Minutes15,
    Hour,
    Day,
    Week,
}

impl Span {
    const ALL: [(Span, &'static str, &'static str); 5] = [
        (Span::Minutes5, "5m", "5 min"),
        (Span::Minutes15, "15m", "15 min"),
        (Span::Hour, "1h", "1 hour"),
        (Span::Day, "1d", "1 day"),
        (Span::Week, "7d", "7 days"),
    ];

    fn parse(text: Option<String>) -> Result<Option<Span>, Failure> {
        let Some(text) = text else { return Ok(None) };
        let known = Span::ALL.iter().find(|(_, name, _)| *name == text);
        let rule = "must be 5m, 15m, 1h, 1d or 7d";
        known.map(|(span, ..)| Some(*span)).ok_or_else(|| bad_parameter("span", rule))
    }

    /// The last hour, or less if the recording began later: a chart with one corner filled shows nothing.
    pub(super) fn of_recording(seconds: u64) -> Span {
        match seconds {
            0..300 => Span::Minutes5,
            300..900 => Span::Minutes15,
            _ => Span::Hour,
        }
    }

    pub(super) fn seconds(self) -> u64 {
        match self {
            Span::Minutes5 => 300,
            Span::Minutes15 => 900,
            Span::Hour => super::history::HOUR,
            Span::Day => 86_400,
            Span::Week => super::history::WEEK,
        }
    }

    /// The seconds of one point of a chart.
    pub(super) fn step(self) -> u64 {
        match self {
            Span::Minutes5 => 2,
            Span::Minutes15 => 4,
            Span::Hour => 15,
            Span::Day => 360,
            Span::Week => 2_400,
        }
    }
}

impl Route {
    /// The page at this path. Names in it are percent-encoded.
    pub(super) fn parse(path: &str, mut query: Query) -> Result<Route, Failure> {
        let nowhere =
            || Failure::new(Kind::NoSuchPath, format!("there is no page at this path. path=`{path}`"));
        let decode = |part: &str| percent_decode_str(part).decode_utf8().map(std::borrow::Cow::into_owned);
        let parts: Result<Vec<String>, _> =
            path.split('/').filter(|part| !part.is_empty()).map(decode).collect();
        let parts =
            parts.map_err(|_| Failure::new(Kind::MalformedRequest, "a name in the path is not UTF-8"))?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let number = |text: &str| text.parse::<u64>().map_err(|_| nowhere());
        let route = match parts[..] {
            [] | ["ui"] => Route::Overview { span: Span::parse(query.text("span"))? },
            ["ui", "streams"] => Route::Streams(List::parse(&mut query)?),
            ["ui", "streams", stream] => {
                Route::Stream(stream_name(stream)?, stream::Browse::parse(&mut query)?)
            }
            ["ui", "streams", stream, "messages", seq] => Route::Message(stream_name(stream)?, number(seq)?),
            ["ui", "groups"] => Route::Groups(List::parse(&mut query)?),
            ["ui", "streams", stream, "groups", group] => {
                Route::Group(stream_name(stream)?, group_name(group)?)
            }
            ["ui", "parked"] => Route::Parked(List::parse(&mut query)?),
            ["ui", "streams", stream, "groups", group, "parked"] => {
                let filter = parked::Filter::parse(&mut query)?;
                Route::ParkedOfGroup(stream_name(stream)?, group_name(group)?, filter)
            }
            ["ui", "streams", stream, "groups", group, "parked", seq] => {
                Route::ParkedOne(stream_name(stream)?, group_name(group)?, number(seq)?)
            }
            ["ui", "delayed"] => Route::Delayed(List::parse(&mut query)?),
            ["ui", "clients"] => Route::Clients(List::parse(&mut query)?),
            ["ui", "cluster"] => Route::Cluster,
            ["ui", "node"] => Route::Node,
            _ => return Err(nowhere()),
        };
        query.end()?;
        Ok(route)
    }
}

/// Asks for what the page shows, and writes it.
pub(super) async fn write(visit: &Visit) -> Result<(Page, View), Failure> {
    let service = &visit.service;
    Ok(match &visit.route {
        Route::Overview { span } => {
            let snapshot = visit.snapshot().await?;
            // The history is that of the whole server.
            let charts = match service.caller().sees_server() {
                true => {
                    let history = visit.door.dashboard().history();
                    Some(overview::Charts::of(&history, *span, service.now().0))
                }
                false => None,
            };
            let board = visit.door.alerts().map(|alerts| Board::of(alerts, service.caller()));
            written(visit, |view| overview::write(view, &snapshot, board.as_ref(), charts.as_ref()))
        }
        Route::Streams(list) => {
            let snapshot = visit.snapshot().await?;
            written(visit, |view| streams::write(view, &snapshot, list))
        }
        Route::Stream(stream, browse) => {
            let facts = stream::load(service, stream, browse, visit.is_update).await?;
            written(visit, |view| stream::write(view, &facts, browse))
        }
        Route::Message(stream, seq) => {
            let facts = message::load(service, stream, *seq).await?;
            written(visit, |view| message::write(view, &facts))
        }
        Route::Groups(list) => {
            let snapshot = visit.snapshot().await?;
            let rows = groups::rows(&snapshot, list);
            let sparks = groups::Sparks::of(&visit.door.dashboard().history(), &rows, list, service.now().0);
            written(visit, |view| groups::write(view, list, &rows, snapshot.groups.len(), &sparks))
        }
        Route::Group(stream, group) => {
            // The sampler keeps the history of the group.
            visit.snapshot().await?;
            let facts = group::load(service, stream, group).await?;
            let charts = group::Charts::of(&visit.door.dashboard().history(), stream, group, service.now().0);
            written(visit, |view| group::write(view, &facts, &charts))
        }
        Route::Parked(list) => {
            let snapshot = visit.snapshot().await?;
            let reasons = parked::reasons(service, &snapshot, list).await;
            written(visit, |view| parked::write_all(view, &snapshot, list, &reasons))
        }
        Route::ParkedOfGroup(stream, group, filter) => {
            let facts = parked::load(service, stream, group, filter, visit.is_update).await?;
            let snapshot = visit.snapshot().await?;
            written(visit, |view| parked::write(view, &facts, &snapshot, filter))
        }
        Route::ParkedOne(stream, group, seq) => {
            let facts = parked_one::load(service, stream, group, *seq).await?;
            written(visit, |view| parked_one::write(view, &facts))
        }
        Route::Delayed(list) => {
            let snapshot = visit.snapshot().await?;
            written(visit, |view| delayed::write(view, &snapshot, list))
        }
        Route::Clients(list) => {
            let snapshot = visit.snapshot().await?;
            let facts = clients::Facts::of(visit.door.broker(), service.caller());
            written(visit, |view| clients::write(view, &snapshot, &facts, list))
        }
        Route::Cluster => {
            let epoch = service.server().await?.epoch;
            let report = visit.door.cluster_report(epoch).await;
            written(visit, |view| cluster::write(view, &report))
        }
        Route::Node => {
            visit.sees_server().await?;
            let snapshot = visit.snapshot().await?;
            let facts = service.caller().operates_server().then(|| visit.door.node());
            written(visit, |view| node::write(view, &snapshot, facts))
        }
    })
}

fn written(visit: &Visit, write: impl FnOnce(&View) -> Page) -> (Page, View) {
    let view = visit.view();
    (write(&view), view)
}

/// The page in place of one that cannot be shown.
pub(super) fn problem(view: &View, problem: &Problem) -> Page {
    let content = html! {
        (heading(html! { (problem.title) }, html! { "Status " (problem.status) }, html! {}))
        (layout::empty("There is nothing to show here", html! {
            (problem.detail) ". " a href=(view.to("")) { "Back to the overview" }
        }))
    };
    Page { title: problem.title.clone(), section: Section::Nowhere, trail: Vec::new(), content }
}
