//! The parked messages of a group, as the stream in which clients look for them. It is put together when it is read:
//! its entries are links to the events, numbered from the oldest position on.

use std::collections::VecDeque;

use forebay_broker::api::{CallError, Caller, Cause, Direction, Filter, GroupReport, ParkedReport};
use forebay_core::types::{Seq, StreamName};
use forebay_wire::kurrent::client::stream_options::RevisionOption;
use forebay_wire::kurrent::client::{RecordedEvent, StreamIdentifier, StreamOptions};
use forebay_wire::kurrent::streams::ReadResp;
use forebay_wire::kurrent::streams::read_resp::{Content, ReadEvent, StreamNotFound, read_event};
use serde_json::json;
use tonic::Status;

use super::super::event::{self, Stored};
use super::super::ids::{EventId, Form};
use super::super::{Replies, places, status};
use super::calls::Names;
use super::service::Refusal;
use super::{refused, text_of};

const PREFIX: &str = "$persistentsubscription-";
const SUFFIX: &str = "-parked";
/// Separates stream and group.
const SEPARATOR: &str = "::";
/// The type of a link.
pub(crate) const LINK: &str = "$>";
/// Entries that are looked at in one go.
const AT_A_TIME: usize = 256;
/// Bytes of events that are held at a time.
const PAGE_BYTES: usize = 8 << 20;

/// The name of the stream with the parked messages of a group.
pub(crate) fn name(stream: &str, group: &str) -> String {
    format!("{PREFIX}{stream}{SEPARATOR}{group}{SUFFIX}")
}

/// The groups that a stream of parked messages may belong to: names may have the separator in them.
pub(crate) fn candidates(name: &str) -> Vec<Names> {
    let Some(inner) = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX)) else {
        return Vec::new();
    };
    let names = |at: usize| Names::existing(&inner[..at], &inner[at + SEPARATOR.len()..]).ok();
    inner.match_indices(SEPARATOR).filter_map(|(at, _)| names(at)).collect()
}

/// Whether a request names a stream of parked messages.
pub(crate) fn is_parked(of: &StreamOptions) -> bool {
    is_name(text_of(of.stream_identifier.as_ref()))
}

fn is_name(name: &str) -> bool {
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

/// An entry of the stream.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Its number in the stream.
    pub(crate) revision: u64,
    pub(crate) report: ParkedReport,
    /// The stream of the event.
    pub(crate) stream: StreamName,
    /// `<revision>@<stream>` of the event.
    pub(crate) data: String,
    /// When it was parked, why, and the event's revision, as JSON.
    pub(crate) metadata: String,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.report.message.as_ref().map_or(0, |message| message.content.len())
    }
}

/// The parked messages of one group, to be read forwards.
pub(crate) struct ParkedStream {
    pub(crate) names: Names,
    caller: Caller,
    max_retries: Option<u32>,
    pub(crate) count: u64,
    /// Where to go on. `None` at the end.
    after: Option<Seq>,
    next: u64,
}

impl ParkedStream {
    /// Finds the group that a stream of this name belongs to. `None` without a group, or without parked messages.
    pub(crate) async fn open(caller: &Caller, name: &str) -> Result<Option<ParkedStream>, Refusal> {
        for names in candidates(name) {
            let found = caller.group(names.stream.clone(), names.group.clone()).await;
            match found.map_err(Refusal::from) {
                Ok(report) => return Ok(ParkedStream::of(caller, names, &report)),
                Err(Refusal::Missing) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(None)
    }

    fn of(caller: &Caller, names: Names, report: &GroupReport) -> Option<ParkedStream> {
        (report.figures.parked > 0).then(|| ParkedStream {
            names,
            caller: caller.clone(),
            max_retries: report.settings.max_retries.at_most(),
            count: report.figures.parked,
            after: Some(Seq::START),
            next: 0,
        })
    }

    /// The next entries, in order. None at the end.
    pub(crate) async fn page(&mut self) -> Result<Vec<Entry>, Refusal> {
        while let Some(after) = self.after {
            let Names { stream, group } = self.names.clone();
            let page = self.caller.parked(stream, group, after, AT_A_TIME, None, &Filter::default()).await?;
            self.after = page.next;
            if page.items.is_empty() {
                continue;
            }
            let first = self.next;
            self.next += page.items.len() as u64;
            let mut entries = Vec::with_capacity(page.items.len());
            for (report, revision) in page.items.into_iter().zip(first..) {
                entries.push(self.entry(report, revision).await?);
            }
            return Ok(entries);
        }
        Ok(Vec::new())
    }

    /// The entries from `from` on, in order: at most `count` of them, and no more than a page has bytes.
    pub(crate) async fn forwards(&mut self, from: u64, count: usize) -> Result<Vec<Entry>, Refusal> {
        let mut found: Vec<Entry> = Vec::new();
        while found.len() < count && found.iter().map(Entry::bytes).sum::<usize>() < PAGE_BYTES {
            let page = self.page().await?;
            if page.is_empty() {
                break;
            }
            let room = count - found.len();
            found.extend(page.into_iter().filter(|entry| entry.revision >= from).take(room));
        }
        Ok(found)
    }

    /// The entries from `from` on, back to the first: at most `count` of them, and no more than a page has bytes.
    pub(crate) async fn backwards(&mut self, from: u64, count: usize) -> Result<Vec<Entry>, Refusal> {
        let (mut kept, mut bytes): (VecDeque<Entry>, usize) = (VecDeque::new(), 0);
        'pages: loop {
            let page = self.page().await?;
            if page.is_empty() {
                break;
            }
            for entry in page {
                if entry.revision > from {
                    break 'pages;
                }
                bytes += entry.bytes();
                kept.push_back(entry);
                while kept.len() > count || (bytes > PAGE_BYTES && kept.len() > 1) {
                    bytes -= kept.pop_front().map_or(0, |first| first.bytes());
                }
            }
        }
        Ok(kept.into_iter().rev().collect())
    }

    /// Goes on with the first entry.
    fn rewind(&mut self) {
        (self.after, self.next) = (Some(Seq::START), 0);
    }

    async fn entry(&self, mut report: ParkedReport, revision: u64) -> Result<Entry, Refusal> {
        let own = &self.names.stream;
        let link = match &report.message {
            Some(found) if self.names.is_all() => Stored::found(own, found).link(),
            _ => None,
        };
        let event = places::revision_text(report.seq);
        let (stream, data) = match link {
            None => (own.clone(), format!("{event}@{own}")),
            // Of a subscription to `$all` the links are parked, and their events are shown.
            Some((seq, stream)) => {
                let data = format!("{}@{stream}", places::revision_text(seq));
                let page = match self.caller.read(stream.clone(), seq, 1).await {
                    Ok(page) => page.messages,
                    Err(CallError::NoSuchStream { .. } | CallError::StreamGone | CallError::Denied(_)) => {
                        Vec::new()
                    }
                    Err(error) => return Err(error.into()),
                };
                report.message = page.into_iter().next().filter(|found| found.seq == seq);
                (stream, data)
            }
        };
        let metadata = json!({
            "added": added(report.parked.at().0),
            "reason": reason(&report, self.max_retries),
            "subscriptionEventNumber": event,
        });
        Ok(Entry { revision, report, stream, data, metadata: metadata.to_string() })
    }
}

/// A read of a stream of parked messages, as a client asks for it.
pub(crate) struct ParkedRead {
    pub(crate) form: Form,
    pub(crate) resolve_links: bool,
    pub(crate) direction: Direction,
    pub(crate) of: StreamOptions,
    pub(crate) count: u64,
}

impl ParkedRead {
    /// The entries as a client reads them, with the events that they lead to if links are followed.
    pub(crate) async fn replies(self, caller: &Caller) -> Result<Replies<ReadResp>, Status> {
        let name = text_of(self.of.stream_identifier.as_ref());
        let opened = ParkedStream::open(caller, name).await.map_err(|refusal| refused(refusal, name, ""))?;
        let Some(stream) = opened else {
            let missing = StreamNotFound { stream_identifier: Some(identifier(name)) };
            let missing = ReadResp { content: Some(Content::StreamNotFound(missing)) };
            return Ok(Box::pin(tokio_stream::once(Ok(missing))));
        };
        let from = match self.of.revision_option {
            Some(RevisionOption::Revision(revision)) => revision,
            Some(RevisionOption::Start(_)) => 0,
            Some(RevisionOption::End(_)) => stream.count,
            None => return Err(status::invalid("revision, start or end must be set")),
        };
        let name = name.to_owned();
        let state = Reading { read: self, stream, name, from, ready: VecDeque::new(), is_over: false };
        Ok(Box::pin(futures_util::stream::unfold(state, |mut state| async move {
            let next = state.next().await?;
            Some((next, state))
        })))
    }
}

struct Reading {
    read: ParkedRead,
    stream: ParkedStream,
    name: String,
    /// The entry that comes next, or those before it.
    from: u64,
    ready: VecDeque<ReadResp>,
    is_over: bool,
}

impl Reading {
    async fn next(&mut self) -> Option<Result<ReadResp, Status>> {
        while self.ready.is_empty() && !self.is_over && self.read.count > 0 {
            let room = usize::try_from(self.read.count).unwrap_or(usize::MAX).min(AT_A_TIME);
            let found = match self.read.direction {
                Direction::Forwards => self.stream.page().await.map(|page| {
                    self.is_over = page.is_empty();
                    page.into_iter().filter(|entry| entry.revision >= self.from).take(room).collect()
                }),
                Direction::Backwards => {
                    self.stream.rewind();
                    self.stream.backwards(self.from, room).await.inspect(|found| {
                        let last = found.last().map_or(0, |entry| entry.revision);
                        self.is_over = last == 0;
                        self.from = last.saturating_sub(1);
                    })
                }
            };
            let found: Vec<Entry> = match found {
                Ok(found) => found,
                Err(refusal) => {
                    self.is_over = true;
                    return Some(Err(refused(refusal, &self.name, "")));
                }
            };
            self.read.count -= found.len() as u64;
            for entry in &found {
                match self.show(entry) {
                    Ok(shown) => self.ready.push_back(shown),
                    Err(status) => return Some(Err(status)),
                }
            }
        }
        self.ready.pop_front().map(Ok)
    }

    fn show(&self, entry: &Entry) -> Result<ReadResp, Status> {
        let message = entry.report.message.as_ref();
        let commit = message.map_or(0, |found| places::commit(found.ordinal));
        let own = EventId::of_place(&StreamName::stored(&self.name), entry.report.seq);
        let link = RecordedEvent {
            id: Some(self.read.form.write(own)),
            stream_identifier: Some(identifier(&self.name)),
            stream_revision: entry.revision,
            prepare_position: commit,
            commit_position: commit,
            metadata: event::event_metadata(LINK.into(), false, entry.report.parked.at()),
            custom_metadata: entry.metadata.clone().into(),
            data: entry.data.clone().into(),
        };
        let (event, link) = match self.read.resolve_links {
            false => (Some(link), None),
            true => {
                let target = message.map(|found| Stored::found(&entry.stream, found));
                (target.map(|stored| stored.recorded(self.read.form)).transpose()?, Some(link))
            }
        };
        let position = Some(read_event::Position::CommitPosition(commit));
        Ok(ReadResp { content: Some(Content::Event(ReadEvent { event, link, position })) })
    }
}

fn identifier(name: &str) -> StreamIdentifier {
    StreamIdentifier { stream_name: name.to_owned().into() }
}

/// The reason in the words that clients know.
fn reason(report: &ParkedReport, max_retries: Option<u32>) -> String {
    let failure = report.parked.failure();
    match max_retries {
        Some(retries) if failure.attempt > retries => format!("Reached retry count of {retries}"),
        _ if failure.cause == Cause::Nack => {
            format!("Client explicitly NAK'ed message.\n{}", failure.reason.as_deref().unwrap_or_default())
        }
        _ => report.parked.reason().to_owned(),
    }
}

/// A time in the form of RFC 3339, to the microsecond.
fn added(micros: u64) -> String {
    forebay_model::text::Time(micros).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_parked_stream_tells_its_group() {
        let name = name("orders", "mail");
        assert_eq!(name, "$persistentsubscription-orders::mail-parked");
        assert!(is_name(&name));
        let found = candidates(&name);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].stream.as_str(), found[0].group.as_str()), ("orders", "mail"));
    }

    #[test]
    fn names_with_the_separator_in_them_have_several_readings() {
        let found = candidates("$persistentsubscription-a::b::c-parked");
        let pairs: Vec<_> = found.iter().map(|names| (names.stream.as_str(), names.group.as_str())).collect();
        assert_eq!(pairs, [("a", "b::c"), ("a::b", "c")]);
    }

    #[test]
    fn other_names_belong_to_no_group() {
        for name in ["orders", "$persistentsubscription-a::b-checkpoint", "$persistentsubscription-ab-parked"]
        {
            assert!(candidates(name).is_empty(), "{name}");
        }
        assert!(candidates("$persistentsubscription-::b-parked").is_empty());
    }
}
