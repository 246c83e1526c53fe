//! The server itself: journal, commit times, disk, memory, build, settings and the last lines of the log.

use forebay_broker::api::Stage;
use maud::{Markup, html};

use super::super::format;
use super::super::layout::{figure, heading};
use super::super::sampler::Snapshot;
use super::super::view::{Page, Section, View};
use super::parts::{ago, table};
use crate::native::node::{LogLine, NodeFacts, SettingRow};

/// Lines of the log on the page.
const LINES: usize = 100;

/// With settings and log for an operator of the whole server.
pub(super) fn write(view: &View, snapshot: &Snapshot, facts: Option<&NodeFacts>) -> Page {
    let content = html! {
        (heading(html! { "Node" }, html! { "Forebay " (env!("CARGO_PKG_VERSION")) }, html! {}))
        (view.live("figures", "", figures(snapshot)))
        div.columns {
            section aria-labelledby="commits-title" {
                h2 #commits-title { "Commit times" } (view.live("commits", "", commits(snapshot)))
            }
            section aria-labelledby="build-title" {
                h2 #build-title { "Server" } (view.live("build", "", build(view, snapshot, facts)))
            }
            section aria-labelledby="journal-title" {
                h2 #journal-title { "Journal" } (view.live("journal", "", journal(snapshot)))
            }
            section aria-labelledby="memory-title" {
                h2 #memory-title { "Memory and files" } (view.live("memory", "", memory(snapshot)))
            }
        }
        @if let Some(facts) = facts {
            @if let Some(log) = facts.log {
                section aria-labelledby="log-title" {
                    h2 #log-title { "Recent log" }
                    (view.live("log", "", lines(view, &log())))
                }
            }
            @if !facts.settings.is_empty() {
                section aria-labelledby="settings-title" {
                    h2 #settings-title { "Settings" } (settings(&facts.settings))
                }
            }
        }
        p.hint { "All figures for machines: " a href=(view.to("metrics")) { "/metrics" } "." }
    };
    Page { title: "Node".to_owned(), section: Section::Node, trail: Vec::new(), content }
}

fn figures(snapshot: &Snapshot) -> Markup {
    let (engine, process) = (&snapshot.server.engine, &snapshot.process);
    let times = engine.sync_times.summary();
    let commit = if times.count == 0 { "–".to_owned() } else { format::age(times.p50.as_secs_f64()) };
    let or_dash = |value: Option<u64>, write: fn(u64) -> String| value.map_or("–".to_owned(), write);
    let storage = if snapshot.server.storage_full {
        html! { span.status.critical { "full" } }
    } else if snapshot.server.storage_scarce {
        html! { span.status.warning { "nearly full" } }
    } else {
        html! { "free on the disk" }
    };
    html! {
        dl.figures {
            (figure("Disk", &or_dash(engine.free_bytes, format::bytes), "", storage))
            (figure("Commit", &commit, "", html! { "median of " (format::count_of(engine.syncs, "sync")) }))
            (figure("Memory", &or_dash(process.memory, format::bytes), "", html! {
                (format::bytes(snapshot.server.window_bytes as u64)) " of messages"
            }))
            (figure("Segments", &format::count(engine.segments), "", html! {
                (format::count(engine.segments_deleted)) " deleted"
            }))
            (figure("Open files", &or_dash(process.open_files, format::count), "", html! {
                "of " (or_dash(process.open_files_max, format::count))
            }))
        }
    }
}

fn row(name: &str, value: String) -> Markup {
    html! { div { dt { (name) } dd { (value) } } }
}

fn commits(snapshot: &Snapshot) -> Markup {
    let times = snapshot.server.engine.sync_times.summary();
    if times.count == 0 {
        return html! { p.hint { "Nothing was synced to a disk since the start." } };
    }
    let age = |time: std::time::Duration| format::age(time.as_secs_f64());
    html! {
        dl.facts {
            (row("Half of the syncs within", age(times.p50))) (row("90% within", age(times.p90)))
            (row("99% within", age(times.p99)))
            (row("99.9% within", age(times.p999))) (row("The slowest", age(times.max)))
            (row("On average", age(times.mean)))
        }
    }
}

fn journal(snapshot: &Snapshot) -> Markup {
    let (engine, driver) = (&snapshot.server.engine, &snapshot.server.driver);
    let reads = format!("{} in {}", format::bytes(engine.read_bytes), format::count_of(engine.reads, "read"));
    let per_sync = engine.synced_frames as f64 / engine.syncs.max(1) as f64;
    html! {
        dl.facts {
            (row("Syncs", format::count(engine.syncs))) (row("Frames for each sync", format!("{per_sync:.1}")))
            (row("Written", format::bytes(engine.synced_bytes)))
            (row("Frames waiting", format::count(engine.frames_waiting)))
            (row("Images of the state", format::count(engine.images)))
            (row("Size of the images", format::bytes(engine.image_bytes)))
            (row("Read back", reads))
            (row("Deliveries from memory", format::count(driver.cache_hits)))
            (row("Deliveries that were read", format::count(driver.cache_misses)))
            (row("Damaged places", format::count(engine.damaged_places)))
        }
    }
}

fn memory(snapshot: &Snapshot) -> Markup {
    let memory = &snapshot.memory;
    html! {
        dl.facts {
            (row("Messages in memory", format::bytes(snapshot.server.window_bytes as u64)))
            (row("Replies", format::bytes(memory.replies as u64)))
            (row("Replies at most", format::bytes(memory.replies_max as u64)))
            (row("Handed out", format::bytes(memory.handed_out as u64)))
            (row("Requests without room", format::count(memory.refused)))
            (row("Consumers held back", format::count(memory.held_back)))
        }
    }
}

fn build(view: &View, snapshot: &Snapshot, facts: Option<&NodeFacts>) -> Markup {
    let server = &snapshot.server;
    let stage = match snapshot.stage {
        Stage::Running => "running",
        Stage::Draining => "draining",
        Stage::Stopping => "stopping",
    };
    html! {
        dl.facts {
            (row("Version", env!("CARGO_PKG_VERSION").to_owned())) (row("Stage", stage.to_owned()))
            @if let Some(facts) = facts {
                @for (name, value) in &facts.build { (row(name, value.clone())) }
                @if let Some(started) = facts.started {
                    (row("Started", format!("{} ago", format::age(view.since(started)))))
                }
            }
            (row("Starts so far", format::count(server.epoch.into())))
            (row("Streams", format::count(server.streams as u64)))
            (row("Groups", format::count(server.groups as u64)))
            (row("Clock", format!("{} UTC", format::moment(snapshot.at.0 / 60_000_000 * 60_000_000))))
            (row("Clock ahead of the date", format::age(server.clock_ahead.max(0) as f64 / 1e6)))
            (row("Reading these figures takes", format!("{:.0}ms", snapshot.taken_in.as_secs_f64() * 1e3)))
        }
    }
}

/// The last lines, the newest first.
fn lines(view: &View, log: &[LogLine]) -> Markup {
    html! {
        @if log.is_empty() { p.hint { "The log has no lines yet." } } @else {
            (table("Recent log", "log", &["When", "Level", "Line"], html! {
                @for line in log.iter().rev().take(LINES) {
                    tr {
                        td.nowrap { (ago(view, line.at)) }
                        td { span class=(format!("status {}", colour(line.level))) { (line.level) } }
                        td.line { bdi { (line.text) } }
                    }
                }
            }))
        }
    }
}

fn colour(level: &str) -> &'static str {
    match level {
        "error" => "critical",
        "warn" => "warning",
        _ => "idle",
    }
}

fn settings(rows: &[SettingRow]) -> Markup {
    html! {
        (table("Settings", "server-settings", &["Setting", "Value", "From"], html! {
            @for row in rows {
                tr {
                    th scope="row" { span.name title=(row.help) { (row.name) } }
                    td.line { bdi { (row.value) } }
                    td.nowrap {
                        @if row.is_default { span.hint { "default" } } @else { bdi { (row.origin) } }
                    }
                }
            }
        }))
        p.hint { "The same on the command line: " code { "forebay config show" } ", with the flags of the server." }
    }
}
