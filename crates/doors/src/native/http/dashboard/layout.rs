//! The frame around every page: navigation, title, and the places for dialogs and short notices.

use forebay_broker::api::Stage;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::super::Door;
use super::assets;
use super::view::{Page, Section, View};

/// A whole page.
/// The person is named if they have signed in.
pub(super) fn whole(view: &View, page: &Page, door: &Door, who: Option<&str>) -> String {
    let stage = match door.broker().stage() {
        Stage::Running => ("ok", "running"),
        Stage::Draining => ("warning", "draining"),
        Stage::Stopping => ("critical", "stopping"),
    };
    let page = html! {
        (DOCTYPE)
        html lang="en" data-root=(view.root()) {
            (head(view, &page.title, true))
            body {
                a.skip href="#main" { "Skip to the content" }
                header.side {
                    a.brand href=(view.to("")) aria-label="Forebay, overview" {
                        (logo()) span { "Forebay" }
                    }
                    nav aria-label="Sections" {
                        ul {
                            @let of_cluster = door.is_in_cluster();
                            @let is_shown = |section| of_cluster || section != Section::Cluster;
                            @for (section, name, path) in Section::ALL.into_iter().filter(|(one, ..)| is_shown(*one)) {
                                li {
                                    a href=(view.to(path))
                                        aria-current=[(section == page.section).then_some("page")] {
                                        (icon(section)) span { (name) }
                                    }
                                }
                            }
                        }
                    }
                    div.side-foot {
                        p.server-state {
                            span class=(format!("dot {}", stage.0)) aria-hidden="true" {}
                            span { (stage.1) }
                            span.version { "v" (env!("CARGO_PKG_VERSION")) }
                        }
                        p.machines {
                            a href=(view.to("openapi.json")) { "API" } " · " a href=(view.to("metrics")) { "Metrics" }
                        }
                        @if let Some(who) = who {
                            form.signed-in method="post" action=(view.to("ui/sign-out")) {
                                span { "Signed in as " strong { (who) } }
                                button.quiet type="submit" { "Sign out" }
                            }
                        }
                        button.quiet.theme-toggle type="button" data-theme-toggle
                            aria-label="Change the colours: light, dark, or as the system" {
                            (glyph(SUN)) span data-theme-name { "System" }
                        }
                    }
                }
                main #main tabindex="-1" {
                    div.head {
                        @if !page.trail.is_empty() {
                            ol.trail aria-label="Where this page is" {
                                @for (text, address) in &page.trail { li { a href=(address) { (name(text)) } } }
                            }
                        }
                        p.connection data-connection role="status" {
                            span.dot aria-hidden="true" {} span data-connection-text { "Live" }
                        }
                    }
                    (page.content)
                }
                div.toasts data-toasts role="status" aria-live="polite" {}
                dialog.palette data-palette aria-label="Go to a stream or a group" {
                    form method="dialog" {
                        label for="palette-input" { "Go to" }
                        input #palette-input type="search" autocomplete="off" spellcheck="false"
                            placeholder="a stream or stream/group";
                    }
                    ul data-palette-list {}
                    p.hint { "Enter opens, Esc closes." }
                }
            }
        }
    };
    page.0
}

/// A page without the frame, for a person who is not known.
pub(super) fn bare(view: &View, title: &str, content: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" data-root=(view.root()) {
            (head(view, title, false))
            body.bare {
                main #main.sign-in tabindex="-1" {
                    p.brand { (logo()) span { "Forebay" } }
                    section { (content) }
                }
            }
        }
    };
    page.0
}

/// The script of the pages works on the frame, which a page may be without.
fn head(view: &View, title: &str, has_frame: bool) -> Markup {
    let asset = |name| view.to(&format!("ui/assets/{}", assets::address(name)));
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (title) " · Forebay" }
            link rel="icon" type="image/svg+xml" href=(asset("icon.svg"));
            link rel="stylesheet" href=(asset("app.css"));
            script src=(asset("theme.js")) {}
            @if has_frame { script type="module" src=(asset("app.js")) {} }
        }
    }
}

/// The heading of a page, with buttons at its side.
pub(super) fn heading(title: Markup, below: Markup, buttons: Markup) -> Markup {
    html! {
        div.heading {
            div.heading-text { h1 { (title) } div.below { (below) } }
            @if !buttons.0.is_empty() { div.buttons { (buttons) } }
        }
    }
}

/// A place without anything in it, and what to do about it.
pub(super) fn empty(title: &str, text: Markup) -> Markup {
    html! { div.empty { (glyph(WAVES)) h2 { (title) } p { (text) } } }
}

/// A list of which there is nothing on the server yet, and the commands to begin with.
pub(super) fn nothing(title: &str, text: Markup, commands: &[&str]) -> Markup {
    html! {
        div.empty.none {
            (glyph(WAVES)) h2 { (title) } p { (text) }
            @for text in commands { (command(text)) }
        }
    }
}

/// Characters of a name that a list shows whole, and of the end of a longer one that it always shows.
const NAME_CHARS: usize = 48;
const NAME_TAIL: usize = 14;

/// A name in a list. A long one keeps its ends, where names differ, and loses what there is no room for between them.
pub(super) fn name(text: &str) -> Markup {
    let chars = text.chars().count();
    if chars <= NAME_CHARS {
        return html! { (text) };
    }
    let cut = text.char_indices().nth(chars - NAME_TAIL).map_or(0, |(at, _)| at);
    let (head, tail) = text.split_at(cut);
    html! { span.long title=(text) { span.long-head { (head) } span.long-tail { (tail) } } }
}

/// The name of a group with its stream's, or of a stream, as a title: all of it, in small letters if it is long.
pub(super) fn title(of: Option<&str>, name: &str) -> Markup {
    let is_long = of.unwrap_or_default().chars().count() + name.chars().count() > NAME_CHARS * 3 / 2;
    html! { span.name.whole[is_long] { @if let Some(of) = of { span.of { (of) "/" } } (name) } }
}

/// One figure.
pub(super) fn figure(name: &str, value: &str, unit: &str, note: Markup) -> Markup {
    html! {
        div.figure {
            dt { (name) }
            dd {
                span.value { (value) }
                @if !unit.is_empty() { span.unit { (unit) } }
                @if !note.0.is_empty() { span.note { (note) } }
            }
        }
    }
}

/// An equivalent command, to be copied.
pub(super) fn command(text: &str) -> Markup {
    html! {
        div.command {
            code data-command=(text) { (text) }
            button.quiet type="button" data-copy aria-label="Copy the command" { "Copy" }
        }
    }
}

fn icon(section: Section) -> Markup {
    glyph(match section {
        Section::Overview => "M3 13h4l3-8 4 14 3-6h4",
        Section::Streams => "M3 7c3-3 6 3 9 0s6 3 9 0M3 12c3-3 6 3 9 0s6 3 9 0M3 17c3-3 6 3 9 0s6 3 9 0",
        Section::Groups => "M4 6h7v5H4zM13 13h7v5h-7zM7 11v5h6M11 8h5v5",
        Section::Parked => "M5 4h14v16H5zM10 16V8h3a2.5 2.5 0 0 1 0 5h-3",
        Section::Delayed => "M12 4a8 8 0 1 0 .01 0M12 8v4l3 2",
        Section::Clients => "M4 5h16v10H4zM9 19h6M12 15v4",
        Section::Cluster => "M12 4v5M12 9 6 15M12 9l6 6M9.5 2h5v4h-5zM3.5 15h5v5h-5zM15.5 15h5v5h-5z",
        Section::Node | Section::Nowhere => "M4 5h16v6H4zM4 13h16v6H4zM7.5 8h.01M7.5 16h.01",
    })
}

const SUN: &str = "M12 8a4 4 0 1 0 .01 0M12 3v2M12 19v2M3 12h2M19 12h2\
                   M5.6 5.6 7 7M17 17l1.4 1.4M5.6 18.4 7 17M17 7l1.4-1.4";
const WAVES: &str = "M3 7c3-3 6 3 9 0s6 3 9 0M3 12c3-3 6 3 9 0s6 3 9 0M3 17c3-3 6 3 9 0s6 3 9 0";

fn glyph(path: &str) -> Markup {
    html! {
        svg.glyph viewBox="0 0 24 24" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.7"
            stroke-linecap="round" stroke-linejoin="round" { path d=(path) {} }
    }
}

/// A forebay: the water before the gate.
fn logo() -> Markup {
    let svg = include_str!("assets/icon.svg");
    // It is a file of our own.
    html! { span.logo aria-hidden="true" { (PreEscaped(svg)) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_keeps_all_of_its_text_and_both_ends() {
        assert_eq!(name("orders").0, "orders");
        let long = format!("{}<é>-the-last-part", "ü".repeat(200));
        let shown = name(&long).0;
        assert!(shown.contains("class=\"long-tail\">-the-last-part<"), "{shown}");
        assert!(shown.contains("&lt;é&gt;</span>") && !shown.contains("<é>"), "{shown}");
        assert!(title(Some(&long), "a").0.contains("whole") && !title(Some("a"), "b").0.contains("whole"));
    }
}
