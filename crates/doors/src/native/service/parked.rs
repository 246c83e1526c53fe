//! Parked messages: listing, replaying, discarding, moving, resubmitting; and the jobs that do so.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_broker::api::{
    Batch, BatchBuilder, ContentType, Dedupe, Filter, Found, Hold, JobReport, JobTerms, Message, Moment,
    Page, ParkedReport, Select, Selected, Work, parse_content,
};
use forebay_core::types::{GroupName, JobId, Seq, StreamName, Timestamp};
use forebay_wire::problem::Kind;

use super::publish::{MessageTerms, Placed, placed};
use super::{Answer, Service, content_bytes, page, position, reply_bytes, text};
use crate::native::limits::{PAGE_BYTES_MAX, SEQS_MAX};
use crate::native::problem::Refusal;
use crate::native::trace::Trace;

/// Which parked messages a job is about. One of the three must be given, and must not be empty.
#[derive(Debug, Clone, Default)]
pub(in crate::native) struct Selection {
    pub(in crate::native) seqs: Option<Vec<u64>>,
    pub(in crate::native) filter: Option<ParkedFilter>,
    pub(in crate::native) all: bool,
}

/// What a job does with the parked messages that are selected for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::native) enum Triage {
    Replay,
    Discard,
    Move,
}

impl Triage {
    /// A move needs the stream that messages go to, and the others have none.
    fn work(self, to: Option<String>) -> Answer<Work> {
        match (self, text(to)) {
            (Triage::Replay, None) => Ok(Work::Replay),
            (Triage::Discard, None) => Ok(Work::Discard),
            (Triage::Move, Some(to)) => {
                let to = StreamName::parse(&to).map_err(|error| Refusal::name("to", &error))?;
                Ok(Work::MoveParked { to })
            }
            (Triage::Move, None) => Err(Refusal::field("to", "must be given")),
            (_, Some(_)) => Err(Refusal::field("to", "must not be given: only a move has a destination")),
        }
    }
}

/// Which parked messages are wanted. An empty text is as good as none.
#[derive(Debug, Clone, Default)]
pub(in crate::native) struct ParkedFilter {
    pub(in crate::native) reason: Option<String>,
    pub(in crate::native) key: Option<String>,
    pub(in crate::native) kind: Option<String>,
}

impl ParkedFilter {
    fn parts(self) -> (Option<String>, Filter) {
        (text(self.reason), super::filter(self.key, self.kind))
    }
}

impl Selection {
    fn select(self) -> Answer<Select> {
        let empty = || {
            let text = "no message is selected: give `seqs` or `filter`, or `all` for all of them";
            Err(Refusal::new(Kind::EmptySelection, text))
        };
        match (self.seqs, self.filter, self.all) {
            (None, None, true) => Ok(Select::All),
            (None, None, false) => empty(),
            (Some(seqs), None, false) if seqs.is_empty() => empty(),
            (Some(seqs), None, false) if seqs.len() > SEQS_MAX => {
                Err(Refusal::value("seqs", format!("must be at most {SEQS_MAX}"), seqs.len()))
            }
            (Some(seqs), None, false) => Ok(Select::Seqs(seqs.into_iter().map(position).collect())),
            (None, Some(filter), false) => match filter.parts() {
                (None, filter) if filter.is_empty() => empty(),
                (reason, filter) => Ok(Select::Filter { reason, filter }),
            },
            _ => Err(Refusal::field("all", "must not be given together with `seqs` or `filter`")),
        }
    }
}

/// An edited copy of a parked message. A field that is `None` stays as it was; an empty text removes a field.
#[derive(Debug, Clone, Default)]
pub(in crate::native) struct Edits {
    /// The copy has no id unless it is given: with its old one it would be taken for the message itself.
    pub(in crate::native) id: Option<String>,
    pub(in crate::native) key: Option<Vec<u8>>,
    pub(in crate::native) kind: Option<String>,
    pub(in crate::native) schema: Option<Option<u64>>,
    pub(in crate::native) headers: Option<Vec<(String, Vec<u8>)>>,
    pub(in crate::native) body: Option<NewBody>,
    pub(in crate::native) priority: Option<u32>,
    pub(in crate::native) delay: Option<Duration>,
    pub(in crate::native) deliver_at: Option<Timestamp>,
    pub(in crate::native) ttl: Option<Duration>,
}

/// The body of an edited copy, with its own content type.
#[derive(Debug, Clone, Default)]
pub(in crate::native) struct NewBody {
    /// `None`: the copy has no body.
    pub(in crate::native) bytes: Option<Bytes>,
    pub(in crate::native) content_type: String,
}

impl Edits {
    /// The copy, as a batch of one.
    fn batch(&self, moment: Moment, parked: Option<&Found>, trace: &Trace) -> Answer<Batch> {
        let terms = MessageTerms {
            priority: self.priority.unwrap_or_else(|| parked.map_or(0, |found| found.extra.priority.into())),
            delay: self.delay,
            deliver_at: self.deliver_at,
            ttl: self.ttl,
        };
        let terms = terms.check(moment)?;
        let content = parked.map(|found| &found.content[..]);
        let was = content.map(parse_content).transpose().map_err(|error| Refusal::damaged(&error));
        let (body, content_type, was) = match (&self.body, was) {
            (Some(NewBody { bytes, content_type }), was) => {
                let was = was.ok().flatten().unwrap_or_default();
                (bytes.as_deref(), ContentType::named(content_type), was)
            }
            (None, was) => {
                let rule = "must be given: the content of the parked message cannot be read";
                let was = was.ok().flatten().ok_or_else(|| Refusal::field("body", rule))?;
                ((!was.no_body).then_some(was.body), was.content_type, was)
            }
        };
        let mut headers: Vec<(&str, &[u8])> = match &self.headers {
            Some(headers) => headers.iter().map(|(name, value)| (&name[..], &value[..])).collect(),
            None => was.headers,
        };
        let own: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let traced = trace.headers_beside(own.into_iter());
        headers.extend(traced.iter().map(|(name, value)| (*name, value.as_bytes())));
        let mut batch = BatchBuilder::with_capacity(1, body.map_or(0, <[u8]>::len));
        batch.push(&Message {
            id: self.id.as_deref().filter(|id| !id.is_empty()),
            dedupe: Dedupe::ById,
            key: self.key.as_deref().or(was.key).filter(|key| !key.is_empty()),
            kind: self.kind.as_deref().or(was.kind).filter(|kind| !kind.is_empty()),
            schema: self.schema.unwrap_or(was.schema),
            headers,
            body: body.unwrap_or_default(),
            no_body: body.is_none(),
            content_type,
            sent: was.sent,
            own: was.own,
            copied_from: was.copied_from,
            priority: terms.priority,
            not_before: terms.not_before,
            expires: terms.expires,
        });
        Ok(batch.build())
    }
}

impl Service {
    /// Parked messages by position, after this one.
    pub(in crate::native) async fn parked(
        &self,
        stream: StreamName,
        group: GroupName,
        after: u64,
        limit: Option<u64>,
        filter: ParkedFilter,
    ) -> Answer<(Page<ParkedReport, Seq>, Hold)> {
        let (limit, (reason, filter)) = (page(limit)?, filter.parts());
        let mut hold = self.room(0, content_bytes(PAGE_BYTES_MAX)).await?;
        let parked = self.caller.parked(stream, group, position(after), limit, reason, &filter).await;
        let page = self.answer(parked)?;
        let contents = page.items.iter().filter_map(|parked| parked.message.as_ref());
        hold.set(reply_bytes(page.items.len(), contents.map(|message| message.content.len()).sum()));
        Ok((page, hold))
    }

    pub(in crate::native) async fn parked_one(
        &self,
        stream: StreamName,
        group: GroupName,
        seq: u64,
    ) -> Answer<ParkedReport> {
        self.answer(self.caller.parked_one(stream, group, position(seq)).await)
    }

    /// How many messages are parked for each reason, the most frequent first.
    pub(in crate::native) async fn parked_reasons(
        &self,
        stream: StreamName,
        group: GroupName,
    ) -> Answer<Vec<(Arc<str>, u64)>> {
        let mut reasons = self.answer(self.caller.parked_reasons(stream, group).await)?;
        reasons
            .sort_unstable_by(|(a, a_count), (b, b_count)| (Reverse(a_count), a).cmp(&(Reverse(b_count), b)));
        Ok(reasons)
    }

    /// Replays, discards or moves parked messages.
    pub(in crate::native) async fn start_job(
        &self,
        stream: StreamName,
        group: GroupName,
        (triage, to): (Triage, Option<String>),
        selection: Selection,
        terms: JobTerms,
    ) -> Answer<Selected> {
        let (work, select) = (triage.work(to)?, selection.select()?);
        self.answer(self.caller.start_job(stream, group, work, select, terms).await)
    }

    /// Publishes an edited copy of a parked message and settles the message, in one step. Answers where the copy is.
    pub(in crate::native) async fn resubmit(
        &self,
        stream: StreamName,
        group: GroupName,
        seq: u64,
        edits: &Edits,
        trace: &Trace,
    ) -> Answer<Placed> {
        let parked = self.parked_one(stream.clone(), group.clone(), seq).await?;
        let batch = edits.batch(self.broker().clock().moment(), parked.message.as_ref(), trace)?;
        let published = self.answer(self.caller.resubmit(stream, group, position(seq), batch).await)?;
        Ok(placed(&published).next().expect("a batch of one has one answer"))
    }

    pub(in crate::native) async fn jobs(
        &self,
        stream: StreamName,
        group: GroupName,
    ) -> Answer<Vec<JobReport>> {
        self.answer(self.caller.jobs(stream, group).await)
    }

    pub(in crate::native) async fn job(
        &self,
        stream: StreamName,
        group: GroupName,
        job: u32,
    ) -> Answer<JobReport> {
        self.answer(self.caller.job(stream, group, JobId(job)).await)
    }

    pub(in crate::native) async fn cancel_job(
        &self,
        stream: StreamName,
        group: GroupName,
        job: u32,
    ) -> Answer<()> {
        self.answer(self.caller.cancel_job(stream, group, JobId(job)).await)
    }
}
