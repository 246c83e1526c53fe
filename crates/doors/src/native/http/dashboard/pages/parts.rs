//! Parts that several pages have.

use forebay_wire::json::GroupStatus;
use maud::{Markup, html};

use super::super::format;
use super::super::layout::{empty, name};
use super::super::view::{View, encoded};
use super::{List, ROWS};

/// The status of a group as a word in its colour.
pub(super) fn status(status: GroupStatus) -> Markup {
    let (class, word) = match status {
        GroupStatus::Live => ("ok", "live"),
        GroupStatus::CatchingUp => ("busy", "catching up"),
        GroupStatus::Paused => ("warning", "paused"),
        GroupStatus::Idle => ("idle", "no consumers"),
        GroupStatus::WindowFull => ("critical", "window full"),
        GroupStatus::ParkedFull => ("critical", "parked full"),
        GroupStatus::KeyScanFull => ("critical", "stuck on a key"),
    };
    html! { span class=(format!("status {class}")) { (word) } }
}

/// A table that scrolls by itself on a narrow screen. A column with `>` before its name has numbers; the name of one
/// with `~` is only read aloud.
pub(super) fn table(label: &str, class: &str, columns: &[&str], rows: Markup) -> Markup {
    html! {
        div.table role="region" aria-label=(label) tabindex="0" {
            table class=[Some(class).filter(|class| !class.is_empty())] {
                thead {
                    tr {
                        @for name in columns {
                            @if let Some(name) = name.strip_prefix('>') { th.number scope="col" { (name) } }
                            @else if let Some(name) = name.strip_prefix('~') {
                                th scope="col" { span.hidden { (name) } }
                            } @else { th scope="col" { (name) } }
                        }
                    }
                }
                tbody { (rows) }
            }
        }
    }
}

/// A number in a cell, quiet if it is zero.
pub(super) fn number(value: u64) -> Markup {
    html! { td.number data-zero=[(value == 0).then_some("")] title=[(value > 9_999).then(|| format::count(value))] {
        (format::short(value as f64))
    } }
}

pub(super) fn rate(value: f64) -> Markup {
    html! { td.number data-zero=[(value < 0.005).then_some("")] { (format::rate(value)) span.unit { "/s" } } }
}

pub(super) fn age(seconds: f64) -> Markup {
    html! {
        td.number data-zero=[(seconds <= 0.0).then_some("")] {
            (if seconds <= 0.0 { "–".to_owned() } else { format::age(seconds) })
        }
    }
}

/// A search field, and how many rows there are. What they are is one word for one of them.
pub(super) fn search(view: &View, list: &List, what: &str, shown: usize, all: usize) -> Markup {
    let label = format!("Search {what}s");
    html! {
        form.search role="search" {
            input type="search" name="q" value=[list.text.as_deref()] placeholder=(label) aria-label=(label)
                spellcheck="false" autocomplete="off" data-search autofocus[list.text.is_some()];
            @if let Some(sort) = &list.sort { input type="hidden" name="sort" value=(sort); }
            (view.live("found", "hint", html! {
                @if shown != all { (format::count(shown as u64)) " of " }
                (format::count_of(all as u64, what))
            }))
        }
    }
}

/// A list in which nothing has the text that is searched for.
pub(super) fn no_match(list: &List, what: &str) -> Markup {
    let text = list.text.as_deref().unwrap_or_default();
    empty(&format!("No {what} matches “{text}”"), html! { a href="?" { "Show all " (what) "s" } })
}

/// A heading of a column that the rows can be sorted by.
pub(super) fn column(list: &List, default: &str, name: &str, title: &str, class: &str) -> Markup {
    let is_current = list.sort.as_deref().unwrap_or(default) == name;
    let order = if name == "name" { "ascending" } else { "descending" };
    let mut address = format!("?sort={name}");
    if let Some(text) = &list.text {
        address += &format!("&q={}", encoded(text));
    }
    html! {
        th scope="col" class=(class) aria-sort=[is_current.then_some(order)] {
            a href=(address) { (title) }
        }
    }
}

/// Links to the pages before and after.
pub(super) fn pager(list: &List, rows: usize) -> Markup {
    let pages = rows.div_ceil(ROWS).max(1);
    if pages == 1 {
        return html! {};
    }
    let to = |page: usize| {
        let mut address = format!("?page={page}");
        for (name, value) in [("q", &list.text), ("sort", &list.sort)] {
            if let Some(value) = value {
                address += &format!("&{name}={}", encoded(value));
            }
        }
        address
    };
    html! {
        nav.pager aria-label="Pages of this list" {
            @if list.page > 1 { a.button href=(to(list.page - 1)) rel="prev" { "Previous" } }
            span { "Page " (format::count(list.page.min(pages) as u64)) " of " (format::count(pages as u64)) }
            @if list.page < pages { a.button href=(to(list.page + 1)) rel="next" { "Next" } }
        }
    }
}

/// The rows of the page that is asked for.
pub(super) fn page_of<'a, T>(list: &List, rows: &'a [T]) -> &'a [T] {
    let from = ((list.page - 1) * ROWS).min(rows.len());
    &rows[from..(from + ROWS).min(rows.len())]
}

/// Whether a name has the text that is searched for.
pub(super) fn matches(list: &List, names: &[&str]) -> bool {
    let Some(text) = &list.text else { return true };
    let text = text.to_lowercase();
    names.join("/").to_lowercase().contains(&text)
}

/// A link to a stream, and to a group.
pub(super) fn stream_link(view: &View, stream: &str) -> Markup {
    html! { a.name href=(view.stream(stream)) { (name(stream)) } }
}

pub(super) fn group_link(view: &View, stream: &str, group: &str) -> Markup {
    html! { a.name href=(view.group(stream, group)) { span.of { (name(stream)) "/" } wbr; (name(group)) } }
}

/// A moment, with how long ago it was.
pub(super) fn ago(view: &View, micros: u64) -> Markup {
    html! {
        time datetime=(forebay_wire::json::Time(micros).to_string()) title=(format!("{} UTC", format::moment(micros))) {
            (format::age(view.since(micros))) " ago"
        }
    }
}
