//! One page as it is being written: where it is, and which of its parts are live.
//!
//! A page is written by one function, for the first request and for each update. While it writes, it marks parts with
//! [`View::live`]; an update writes the page again and sends the parts that differ. So there is one description of
//! a page, and no script that knows how to draw it.

use std::cell::RefCell;

use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Everything but letters, digits and a few marks, so that a name is one part of a path and nothing else.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A text as a part of a path or as a value of a query.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, IN_PATH).to_string()
}

/// A live part: its id and its content.
pub(super) type Fragment = (String, String);

/// A page that is being written.
pub(super) struct View {
    /// From the page's folder to the server's, as `../../`: the pages work behind any prefix of a proxy.
    root: String,
    /// Microseconds since 1970.
    pub(super) now: u64,
    fragments: RefCell<Vec<Fragment>>,
}

impl View {
    /// Of the page at this path.
    pub(super) fn new(path: &str, now: u64) -> View {
        let depth = path.matches('/').count().saturating_sub(1);
        let root = if depth == 0 { "./".to_owned() } else { "../".repeat(depth) };
        View { root, now, fragments: RefCell::new(Vec::new()) }
    }

    pub(super) fn root(&self) -> &str {
        &self.root
    }

    /// The address of a path of the server.
    pub(super) fn to(&self, path: &str) -> String {
        format!("{}{path}", self.root)
    }

    pub(super) fn stream(&self, stream: &str) -> String {
        self.to(&format!("ui/streams/{}", encoded(stream)))
    }

    pub(super) fn group(&self, stream: &str, group: &str) -> String {
        self.to(&group_page(stream, group))
    }

    pub(super) fn parked(&self, stream: &str, group: &str) -> String {
        self.to(&format!("{}/parked", group_page(stream, group)))
    }

    pub(super) fn message(&self, stream: &str, seq: u64) -> String {
        self.to(&format!("ui/streams/{}/messages/{seq}", encoded(stream)))
    }

    /// The seconds from then to now.
    pub(super) fn since(&self, micros: u64) -> f64 {
        self.now.saturating_sub(micros) as f64 / 1e6
    }

    /// A part that changes while the page is open. The id is its own on the page.
    pub(super) fn live(&self, id: &str, class: &str, content: Markup) -> Markup {
        self.fragments.borrow_mut().push((id.to_owned(), content.0.clone()));
        html! { div id=(id) class=[(!class.is_empty()).then_some(class)] data-live { (content) } }
    }

    pub(super) fn into_fragments(self) -> Vec<Fragment> {
        self.fragments.into_inner()
    }
}

fn group_page(stream: &str, group: &str) -> String {
    format!("ui/streams/{}/groups/{}", encoded(stream), encoded(group))
}

/// A page that is written.
pub(super) struct Page {
    pub(super) title: String,
    /// The section of the navigation that it belongs to.
    pub(super) section: Section,
    /// The pages above, with their addresses.
    pub(super) trail: Vec<(String, String)>,
    pub(super) content: Markup,
}

/// The entries of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    Overview,
    Streams,
    Groups,
    Parked,
    Delayed,
    Clients,
    /// Only where the server is a node of a cluster.
    Cluster,
    Node,
    /// None of them, for a page that does not exist.
    Nowhere,
}

impl Section {
    pub(super) const ALL: [(Section, &'static str, &'static str); 8] = [
        (Section::Overview, "Overview", ""),
        (Section::Streams, "Streams", "ui/streams"),
        (Section::Groups, "Groups", "ui/groups"),
        (Section::Parked, "Parked", "ui/parked"),
        (Section::Delayed, "Delayed", "ui/delayed"),
        (Section::Clients, "Clients", "ui/clients"),
        (Section::Cluster, "Cluster", "ui/cluster"),
        (Section::Node, "Node", "ui/node"),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_relative_to_the_page() {
        for (page, root) in [("/", "./"), ("/ui/streams", "../"), ("/ui/streams/a/groups/b", "../../../../")]
        {
            let view = View::new(page, 0);
            assert_eq!(view.root(), root);
            assert_eq!(view.to("ui/groups"), format!("{root}ui/groups"));
        }
    }

    #[test]
    fn a_name_is_one_part_of_a_path() {
        let view = View::new("/", 0);
        assert_eq!(view.group("a/b?c#d", "<x>"), "./ui/streams/a%2Fb%3Fc%23d/groups/%3Cx%3E");
        assert_eq!(view.stream("ü"), "./ui/streams/%C3%BC");
    }

    #[test]
    fn live_parts_are_remembered_as_they_are_written() {
        let view = View::new("/", 0);
        let markup = view.live("x", "", html! { b { "<1>" } });
        assert_eq!(markup.0, r#"<div id="x" data-live><b>&lt;1&gt;</b></div>"#);
        assert_eq!(view.into_fragments(), [("x".to_owned(), "<b>&lt;1&gt;</b>".to_owned())]);
    }
}
