//! Link streams of this door: the events that a subscription to `$all` is given, those of a category (`$ce-…`) and
//! those of a type (`$et-…`). The broker feeds them from the log, with the links that this module makes.
//!
//! | Stream | Its links |
//! | --- | --- |
//! | `$all::<group>` | to events that pass the filter of the subscription `<group>`; removed when settled |
//! | `$ce-<category>` | to events of streams with `<category>` before the first `-` |
//! | `$et-<type>` | to events of this type |
//!
//! The first is created and deleted with its subscription, the others are created when they are first read or
//! subscribed to.

use std::sync::Arc;
use std::time::Duration;

use forebay_broker::api::{
    BatchBuilder, Bundle, CallError, Caller, Choice, Dedupe, Door, LinkFeed, LogFilter, LogMessage, Message,
    NoteRefusal, Own, StreamSettings, parse_content,
};
use forebay_core::types::{Ordinal, StreamName};
use forebay_wire::kurrent::client::FilterOptions;
use forebay_wire::kurrent::client::filter_options::{Expression, Filter as Wire};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tonic::Status;

use super::event::{DEFAULT_TYPE, LINK_TYPE, Stored};
use super::filter::{self, Filter};
use super::streams::{all, write};
use super::{places, status};

/// The streams of subscriptions to `$all`.
pub(super) const OF_ALL: &str = "$all::";
const OF_CATEGORY: &str = "$ce-";
const OF_TYPE: &str = "$et-";
/// How long a reader waits for links to events that are there already.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Regular expression and prefixes of a subscription's filter, in bytes.
const FILTER_BYTES_MAX: usize = 32 << 10;

/// A condition of a filter, as its client gave it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
struct Texts {
    regex: String,
    prefixes: Vec<String>,
}

/// Which events a subscription to `$all` is given, as the log keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct AllTerms {
    streams: Option<Texts>,
    kinds: Option<Texts>,
    /// Pinned consumers are chosen by the correlation id of an event, and else by its stream.
    pub(super) by_correlation: bool,
}

impl AllTerms {
    /// From the filter of a request.
    pub(super) fn read(options: Option<&FilterOptions>) -> Result<AllTerms, Status> {
        let mut terms = AllTerms::default();
        let Some(options) = options else { return Ok(terms) };
        Filter::read(options)?;
        let texts = |of: &Expression| {
            let bytes = of.regex.len() + of.prefix.iter().map(String::len).sum::<usize>();
            if bytes > FILTER_BYTES_MAX {
                return Err(status::invalid(format!(
                    "the filter of a subscription must have at most {FILTER_BYTES_MAX} bytes. bytes=`{bytes}`"
                )));
            }
            Ok(Some(Texts { regex: of.regex.clone(), prefixes: of.prefix.clone() }))
        };
        match &options.filter {
            Some(Wire::StreamIdentifier(of)) => terms.streams = texts(of)?,
            Some(Wire::EventType(of)) => terms.kinds = texts(of)?,
            None => {}
        }
        Ok(terms)
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts can be written")
    }

    fn filter(&self) -> Result<Filter, Status> {
        let expression = |of: &Texts| Expression { regex: of.regex.clone(), prefix: of.prefixes.clone() };
        let filter = match (&self.streams, &self.kinds) {
            (Some(of), _) => Wire::StreamIdentifier(expression(of)),
            (None, Some(of)) => Wire::EventType(expression(of)),
            (None, None) => return Ok(Filter::default()),
        };
        Filter::read(&FilterOptions { filter: Some(filter), ..FilterOptions::default() })
    }
}

/// The stream with the events of a subscription to `$all`. `None` if its name would be too long.
pub(super) fn stream_of_all(group: &str) -> Option<StreamName> {
    StreamName::of_system(&format!("{OF_ALL}{group}")).ok()
}

/// Whether a stream is written by the server alone.
pub(super) fn is_fed(stream: &StreamName) -> bool {
    stream.as_str().starts_with(OF_ALL) || is_named(stream)
}

/// Whether the name of a stream says which links it has.
pub(super) fn is_named(stream: &StreamName) -> bool {
    let of = |prefix| stream.as_str().strip_prefix(prefix).is_some_and(|rest| !rest.is_empty());
    of(OF_CATEGORY) || of(OF_TYPE)
}

/// What a link stream is fed with. `None` for other streams, and if its terms are of a later release.
fn feed_of(stream: &StreamName, terms: &[u8]) -> Option<LinkFeed> {
    let name = stream.as_str();
    if let Some(category) = name.strip_prefix(OF_CATEGORY) {
        let kinds = Choice::Test(Arc::new(|kind: &str| kind != LINK_TYPE));
        let streams = Choice::Category(category.to_owned());
        return Some(links(LogFilter { streams, kinds, ..LogFilter::default() }, false));
    }
    if let Some(wanted) = name.strip_prefix(OF_TYPE) {
        let wanted = wanted.to_owned();
        let is_wanted = move |kind: &str| {
            let kind = if kind.is_empty() { DEFAULT_TYPE } else { kind };
            kind == wanted && kind != LINK_TYPE
        };
        let streams = Choice::Test(Arc::new(|name: &str| !filter::is_hidden(name)));
        let kinds = Choice::Test(Arc::new(is_wanted));
        return Some(links(LogFilter { streams, kinds, ..LogFilter::default() }, false));
    }
    name.strip_prefix(OF_ALL)?;
    let terms: AllTerms = serde_json::from_slice(terms).ok()?;
    Some(links(all::log_filter(&terms.filter().ok()?), terms.by_correlation))
}

/// Writes links, for the broker.
fn links(filter: LogFilter, by_correlation: bool) -> LinkFeed {
    let write = move |of: &LogMessage, builder: &mut BatchBuilder| {
        link(Stored::found(&of.stream, &of.message), by_correlation, builder);
    };
    LinkFeed { filter, write: Arc::new(write) }
}

/// Adds the link to an event. Its key is what pinned consumers are chosen by.
fn link(stored: Stored<'_>, by_correlation: bool, builder: &mut BatchBuilder) {
    let correlation = match by_correlation {
        true => parse_content(stored.content).ok().and_then(|message| message.key),
        false => None,
    };
    let (stream, commit) = (stored.stream.as_str(), places::commit(stored.ordinal));
    let mut metadata = json!({ "$o": stream, "$c": commit, "$p": commit });
    if let Ok(id) = stored.id() {
        metadata["$causedBy"] = json!(id.to_string());
    }
    let (metadata, body) = (metadata.to_string(), stored.link_to());
    builder.push(&Message {
        dedupe: Dedupe::No,
        key: Some(correlation.unwrap_or(stream.as_bytes())),
        kind: Some(LINK_TYPE),
        body: body.as_bytes(),
        own: Some(Own::new(Door::KURRENT, metadata.as_bytes())),
        ..Message::default()
    });
}

/// The place of the event that a link was made for, as the link has it.
pub(super) fn place_of_target(content: &[u8]) -> Option<Ordinal> {
    let message = parse_content(content).ok()?;
    let own = message.own.and_then(|own| own.of(Door::KURRENT))?;
    let metadata: serde_json::Value = serde_json::from_slice(own).ok()?;
    metadata.get("$c")?.as_u64().map(places::ordinal)
}

/// Starts to feed the link streams that are in the log, and forgets those whose streams are gone.
pub(super) async fn start(own: &Caller) -> Result<(), CallError> {
    for links in own.link_streams(Door::KURRENT).await? {
        match own.stream(links.stream.clone()).await {
            Ok(_) => feed(own, &links.stream, &links.terms)?,
            Err(CallError::NoSuchStream { .. }) => {
                let bundle = Bundle::beside(links.stream.clone()).no_links(Door::KURRENT, &links.stream);
                own.commit(bundle).await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Feeds a link stream from now on.
pub(super) fn feed(own: &Caller, stream: &StreamName, terms: &[u8]) -> Result<(), CallError> {
    match feed_of(stream, terms) {
        Some(feed) => own.feed_links(Door::KURRENT, stream.clone(), feed),
        None => {
            tracing::warn!(%stream, "a link stream is not fed: its terms are not understood");
            Ok(())
        }
    }
}

/// Makes the stream of a category or a type if it is not there, and waits for links to the events that are there now.
/// Other streams are left alone.
pub(super) async fn ready(own: &Caller, stream: &StreamName) -> Result<(), CallError> {
    if !is_named(stream) {
        return Ok(());
    }
    let is_there = match own.stream(stream.clone()).await {
        Ok(_) => true,
        Err(CallError::NoSuchStream { .. }) => false,
        Err(error) => return Err(error),
    };
    let before = match is_there && own.links_fed(stream).is_some() {
        true => None,
        false => own.link_stream(Door::KURRENT, stream).await?,
    };
    if !is_there || (before.is_none() && own.links_fed(stream).is_none()) {
        let change = move |settings: &mut StreamSettings| {
            if !is_there {
                *settings = write::new_stream();
            }
        };
        let bundle = Bundle::beside(stream.clone()).stream(stream.clone(), change).links(
            Door::KURRENT,
            stream,
            Ordinal(0),
            b"",
            before.as_ref(),
        );
        match own.commit(bundle).await {
            // Another client has made it meanwhile.
            Ok(_) | Err(CallError::Note(NoteRefusal::Mismatch { .. })) => {}
            Err(error) => return Err(error),
        }
        // A stream that was deleted through another door may have a feeder that does not know of it.
        own.stop_links(stream).await?;
    }
    feed(own, stream, b"")?;
    let end = own.log_end().await?;
    // After that the links that are there are shown.
    let _ = tokio::time::timeout(WAIT_MAX, own.links_reach(stream, end)).await;
    Ok(())
}

/// Deletes a link stream with its groups and its feeder.
pub(super) fn deletion(stream: &StreamName) -> Bundle {
    Bundle::beside(stream.clone()).delete(stream.clone()).no_links(Door::KURRENT, stream)
}

#[cfg(test)]
mod tests {
    use forebay_core::types::{Seq, Timestamp};

    use super::*;

    fn name(text: &str) -> StreamName {
        StreamName::of_any(text).expect("a name")
    }

    fn passes(of: &str, stream: &str, kind: &str) -> bool {
        let feed = feed_of(&name(of), b"{}").expect("a link stream");
        feed.filter.streams.passes(stream) && feed.filter.kinds.passes(kind)
    }

    #[test]
    fn the_name_of_a_stream_says_which_events_it_leads_to() {
        for (of, stream, kind, expected) in [
            ("$ce-order", "order-1", "Placed", true),
            ("$ce-order", "order-1-2", "Placed", true),
            ("$ce-order", "orders-1", "Placed", false),
            ("$ce-order", "order", "Placed", false),
            ("$ce-order", "$ce-order", LINK_TYPE, false),
            ("$ce-order", "order-1", LINK_TYPE, false),
            ("$et-Placed", "order-1", "Placed", true),
            ("$et-Placed", "order-1", "PlacedTwice", false),
            ("$et-message", "order-1", "", true),
            ("$et-$>", "$ce-order", LINK_TYPE, false),
            ("$et-Placed", "$all::g", "Placed", false),
            ("$all::g", "order-1", "Placed", true),
            ("$all::g", "$ce-order", LINK_TYPE, true),
            ("$all::g", "$all::other", LINK_TYPE, false),
        ] {
            assert_eq!(passes(of, stream, kind), expected, "{of} {stream} {kind}");
        }
        assert!(feed_of(&name("order-1"), b"{}").is_none());
        assert!(is_fed(&name("$all::g")) && is_fed(&name("$ce-a")) && !is_fed(&name("$ce-")));
        assert!(!is_named(&name("$all::g")));
    }

    #[test]
    fn a_filter_is_kept_as_it_was_given() {
        let expression = Expression { regex: "^(?!\\$)".to_owned(), prefix: vec!["a".to_owned()] };
        let options = FilterOptions { filter: Some(Wire::EventType(expression)), ..FilterOptions::default() };
        let terms = AllTerms::read(Some(&options)).expect("it is valid");
        let kept: AllTerms = serde_json::from_slice(&terms.to_vec()).expect("it is read");
        assert_eq!(kept, terms);
        let filter = kept.filter().expect("it is valid");
        assert!(filter.passes_kind("Placed") && !filter.passes_kind("$metadata"));
        let wrong = Expression { regex: "(".to_owned(), prefix: Vec::new() };
        let options = FilterOptions { filter: Some(Wire::EventType(wrong)), ..FilterOptions::default() };
        assert!(AllTerms::read(Some(&options)).is_err());
        let long = Expression { regex: String::new(), prefix: vec!["a".repeat(FILTER_BYTES_MAX + 1)] };
        let options = FilterOptions { filter: Some(Wire::EventType(long)), ..FilterOptions::default() };
        assert!(AllTerms::read(Some(&options)).is_err());
    }

    #[test]
    fn a_link_leads_to_its_event_and_is_pinned_by_stream_or_correlation() {
        let mut builder = BatchBuilder::default();
        builder.push(&Message { key: Some(b"c"), kind: Some("Placed"), ..Message::default() });
        let content = builder.build().contents().clone();
        let stream = name("order-1");
        let (seq, ordinal, published) = (Seq(3), Ordinal(7), Timestamp(1));
        let of = Stored { stream: &stream, seq, ordinal, published, content: &content };
        for (by_correlation, key) in [(false, &b"order-1"[..]), (true, b"c")] {
            let mut builder = BatchBuilder::default();
            link(of, by_correlation, &mut builder);
            let content = builder.build().contents().clone();
            assert_eq!(parse_content(&content).expect("a content").key, Some(key));
            assert_eq!(place_of_target(&content), Some(Ordinal(7)));
            let links = name("$ce-order");
            let (seq, ordinal, published) = (Seq(1), Ordinal(8), Timestamp(1));
            let stored = Stored { stream: &links, seq, ordinal, published, content: &content };
            assert_eq!(stored.link(), Some((Seq(3), name("order-1"))));
        }
    }
}
