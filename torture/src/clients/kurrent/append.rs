//! A writer of a log. An append whose outcome is not known is repeated as it was, with the same ids of events and the
//! same expected revision, until it is known.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use forebay_wire::kurrent::client::wrong_expected_version::CurrentStreamRevisionOption;
use forebay_wire::kurrent::client::{Empty, MetadataEntry, WrongExpectedVersion};
use forebay_wire::kurrent::google::rpc;
use forebay_wire::kurrent::streams::append_req::Content;
use forebay_wire::kurrent::streams::append_resp::Result as Appended;
use forebay_wire::kurrent::streams::append_resp::wrong_expected_version::CurrentRevisionOption;
use forebay_wire::kurrent::streams::batch_append_resp::Result as BatchAppended;
use forebay_wire::kurrent::streams::success::CurrentRevisionOption as Current;
use forebay_wire::kurrent::streams::write_options::Expected as WireExpected;
use forebay_wire::kurrent::streams::{
    AppendReq, BatchAppendReq, BatchAppendResp, ProposedMessage, Success, WriteOptions,
};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::super::{AGAIN, ANSWER_WITHIN};
use super::{Link, digest, id_of, identifier, is_passing, number_of};
use crate::dice::Dice;
use crate::history::Phase;
use crate::plan::{LogPlan, Style};
use crate::world::{Server, Stage, World};

/// Appends of one writer that are under way together, if it need not know the outcome of one for the next.
const DEPTH_MAX: u64 = 3;
const JSON: &str = "application/json";
const BINARY: &str = "application/octet-stream";

/// Where a writer expects the log to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Any,
    NoStream,
    At(u64),
}

impl Expected {
    /// Where the log ends after this many events more.
    fn after(self, count: u64) -> Expected {
        match self {
            Expected::Any => Expected::Any,
            Expected::NoStream => Expected::At(count - 1),
            Expected::At(revision) => Expected::At(revision + count),
        }
    }

    fn ending(revision: Option<u64>) -> Expected {
        revision.map_or(Expected::NoStream, Expected::At)
    }

    fn text(self) -> String {
        match self {
            Expected::Any => "any".to_owned(),
            Expected::NoStream => "none".to_owned(),
            Expected::At(revision) => revision.to_string(),
        }
    }

    fn wire(self) -> WireExpected {
        match self {
            Expected::Any => WireExpected::Any(Empty {}),
            Expected::NoStream => WireExpected::NoStream(Empty {}),
            Expected::At(revision) => WireExpected::Revision(revision),
        }
    }
}

/// An append whose outcome is not known yet.
struct Append {
    /// Names it in the history, and in the protocol.
    number: u64,
    expected: Expected,
    events: Vec<ProposedMessage>,
    /// The numbers of the events, with their digests.
    content: String,
    /// The server that it was first sent to.
    run: u32,
}

/// The answer to an append.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    /// The revision of its last event.
    Done(u64),
    /// Where the log ends instead.
    Conflict(Option<u64>),
    Unknown,
    Refused(String),
}

pub(crate) async fn append(world: Arc<World>, process: u32, log: LogPlan, dice: Dice) {
    let end = if log.style == Style::Any { Expected::Any } else { Expected::NoStream };
    let mut writer = Writer { world, process, log, dice, end, open: VecDeque::new() };
    while let Some(server) = writer.world.listening().await {
        if let Some(address) = server.kurrent
            && let Ok(mut link) = Link::open(address).await
            && writer.world.is_still(server).await
        {
            writer.work(server, &mut link).await;
        }
        if writer.is_done() {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

struct Writer {
    world: Arc<World>,
    process: u32,
    log: LogPlan,
    dice: Dice,
    /// Where the log ends, as far as this writer knows.
    end: Expected,
    open: VecDeque<Append>,
}

/// A call on which many appends are sent.
struct BatchCall {
    requests: mpsc::Sender<BatchAppendReq>,
    replies: Streaming<BatchAppendResp>,
}

impl Writer {
    fn is_done(&self) -> bool {
        self.world.stage() > Stage::Chaos && self.open.is_empty()
    }

    async fn work(&mut self, server: Server, link: &mut Link) {
        if self.log.style == Style::Any {
            // A server that was started since does not know the events any more: they would be stored twice.
            self.open.retain(|append| append.run == server.run);
        }
        let mut batch = None;
        while !self.is_done() && self.world.stage() < Stage::Over {
            if self.open.is_empty() {
                tokio::time::sleep(Duration::from_millis(self.dice.between(1, self.log.gap_ms))).await;
                if self.world.stage() > Stage::Chaos {
                    continue;
                }
                self.compose(server.run);
            }
            self.write_invoked(server.run);
            let answers = if self.open.len() == 1 && self.dice.permille(400) {
                vec![self.append_one(link).await]
            } else {
                self.append_all(link, &mut batch).await
            };
            if !self.answered(answers) {
                return;
            }
        }
    }

    fn compose(&mut self, run: u32) {
        let depth = match self.log.style {
            Style::Contended => 1,
            Style::Exclusive | Style::Any if self.dice.permille(400) => self.dice.between(2, DEPTH_MAX),
            Style::Exclusive | Style::Any => 1,
        };
        let mut expected = self.end;
        for _ in 0..depth {
            let count = self.dice.between(1, self.log.batch_max);
            let events: Vec<ProposedMessage> = (0..count).map(|_| self.event()).collect();
            let content: Vec<String> = events.iter().filter_map(content_of).collect();
            let (number, content) = (self.world.number(), content.join(","));
            self.open.push_back(Append { number, expected, events, content, run });
            expected = expected.after(count);
        }
    }

    fn event(&mut self) -> ProposedMessage {
        let (number, dice) = (self.world.number(), &mut self.dice);
        let size = if dice.permille(100) { dice.between(2_000, 8_000) } else { dice.between(0, 300) };
        let is_json = dice.permille(600);
        let data: Vec<u8> = if is_json {
            let filling: String = (0..size).map(|_| char::from(b'a' + dice.between(0, 25) as u8)).collect();
            format!("{{ \"number\": {number}, \"filling\": \"{filling}\" }}").into_bytes()
        } else {
            (0..size).map(|_| dice.u64() as u8).collect()
        };
        let metadata = match dice.between(0, 2) {
            0 => String::new(),
            1 => format!("{{\"n\":{number}}}"),
            _ => format!("{{\"$correlationId\":\"c-{}\"}}", dice.between(1, 8)),
        };
        let content_type = if is_json { JSON } else { BINARY };
        ProposedMessage {
            id: Some(id_of(number)),
            metadata: vec![
                MetadataEntry::new("type", "work"),
                MetadataEntry::new("content-type", content_type),
            ],
            custom_metadata: metadata.into_bytes().into(),
            data: data.into(),
        }
    }

    fn write_invoked(&self, run: u32) {
        for append in &self.open {
            let fields = [
                ("append", append.number.to_string()),
                ("log", self.log.name.to_owned()),
                ("run", run.to_string()),
                ("expected", append.expected.text()),
                ("events", append.content.clone()),
            ];
            self.world.write(self.process, Phase::Invoke, "append", &fields);
        }
    }

    fn options(&self, append: &Append) -> WriteOptions {
        WriteOptions {
            stream_identifier: Some(identifier(self.log.name)),
            expected: Some(append.expected.wire()),
            deadline_option: None,
        }
    }

    /// Now and then a client goes away before it has its answer.
    fn patience(&mut self) -> Duration {
        if self.world.stage() == Stage::Chaos && self.dice.permille(30) {
            return Duration::from_millis(self.dice.between(0, 8));
        }
        ANSWER_WITHIN
    }

    /// The first append, as a call of its own.
    async fn append_one(&mut self, link: &mut Link) -> Answer {
        let patience = self.patience();
        let append = &self.open[0];
        let options = AppendReq { content: Some(Content::Options(self.options(append))) };
        let events = append.events.iter().cloned().map(Content::ProposedMessage);
        let events = events.map(|content| AppendReq { content: Some(content) });
        let requests: Vec<AppendReq> = std::iter::once(options).chain(events).collect();
        let asked = link.streams.append(tokio_stream::iter(requests));
        match tokio::time::timeout(patience, asked).await {
            Ok(Ok(reply)) => match reply.into_inner().result {
                Some(Appended::Success(success)) => done(&success),
                Some(Appended::WrongExpectedVersion(conflict)) => match conflict.current_revision_option {
                    Some(CurrentRevisionOption::CurrentRevision(last)) => Answer::Conflict(Some(last)),
                    Some(CurrentRevisionOption::CurrentNoStream(_)) => Answer::Conflict(None),
                    None => Answer::Refused("a conflict without a revision".to_owned()),
                },
                None => Answer::Refused("an answer without a result".to_owned()),
            },
            Ok(Err(status)) => failed(&status),
            Err(_) => Answer::Unknown,
        }
    }

    /// All appends, on a call that goes on.
    async fn append_all(&mut self, link: &mut Link, call: &mut Option<BatchCall>) -> Vec<Answer> {
        let patience = self.patience();
        let unknown = vec![Answer::Unknown; self.open.len()];
        if call.is_none() {
            let (requests, sent) = mpsc::channel(16);
            // The server answers a call when it is opened, also without a request.
            let asked = link.streams.batch_append(ReceiverStream::new(sent));
            match tokio::time::timeout(patience, asked).await {
                Ok(Ok(replies)) => *call = Some(BatchCall { requests, replies: replies.into_inner() }),
                Ok(Err(_)) | Err(_) => return unknown,
            }
        }
        let Some(open) = call.as_mut() else { return unknown };
        let requests: Vec<BatchAppendReq> =
            self.open.iter().flat_map(|append| self.requests(append)).collect();
        let asked = async {
            for request in requests {
                open.requests.send(request).await.map_err(|_| Status::unavailable("the call is over"))?;
            }
            let mut answers = BTreeMap::new();
            while answers.len() < self.open.len() {
                let reply = open.replies.message().await?;
                let reply = reply.ok_or_else(|| Status::unavailable("the call is over"))?;
                let number = reply.correlation_id.as_ref().and_then(number_of);
                answers.insert(number.unwrap_or_default(), batch_answer(reply));
            }
            Ok(answers)
        };
        let answered: Result<Result<BTreeMap<u64, Answer>, Status>, _> =
            tokio::time::timeout(patience, asked).await;
        match answered {
            Ok(Ok(mut answers)) => {
                let of = |append: &Append| answers.remove(&append.number).unwrap_or(Answer::Unknown);
                self.open.iter().map(of).collect()
            }
            Ok(Err(status)) if !is_passing(&status) => vec![failed(&status); self.open.len()],
            Ok(Err(_)) | Err(_) => unknown,
        }
    }

    /// One request, or two for some appends of several events.
    fn requests(&self, append: &Append) -> Vec<BatchAppendReq> {
        let whole = BatchAppendReq {
            correlation_id: Some(id_of(append.number)),
            options: Some(self.options(append)),
            proposed_messages: append.events.clone(),
            is_final: true,
        };
        if append.events.len() < 2 || !append.number.is_multiple_of(4) {
            return vec![whole];
        }
        let (first, rest) = append.events.split_at(1);
        let first = BatchAppendReq { proposed_messages: first.to_vec(), is_final: false, ..whole.clone() };
        vec![first, BatchAppendReq { options: None, proposed_messages: rest.to_vec(), ..whole }]
    }

    /// False if the connection is of no more use.
    fn answered(&mut self, answers: Vec<Answer>) -> bool {
        let mut is_good = true;
        let mut open = VecDeque::new();
        for (append, answer) in std::mem::take(&mut self.open).into_iter().zip(answers) {
            let number = ("append", append.number.to_string());
            match answer {
                Answer::Done(revision) => {
                    let fields = [number, ("revision", revision.to_string())];
                    self.world.write(self.process, Phase::Ok, "append", &fields);
                    if self.log.style != Style::Any {
                        self.end = Expected::At(revision);
                    }
                }
                Answer::Conflict(last) => {
                    let mut fields = vec![number, ("why", "conflict".to_owned())];
                    fields.extend(last.map(|last| ("last", last.to_string())));
                    self.world.write(self.process, Phase::Fail, "append", &fields);
                    // An append that expects nothing is given up. The others are tried again where the log ends.
                    if self.log.style != Style::Any {
                        self.end = Expected::ending(last);
                        open.push_back(append);
                    }
                }
                Answer::Unknown => {
                    self.world.write(self.process, Phase::Info, "append", &[number]);
                    open.push_back(append);
                    is_good = false;
                }
                Answer::Refused(why) => {
                    self.world.write(self.process, Phase::Fail, "append", &[number, ("why", why.clone())]);
                    let what = format!("an append to {} was refused: {why}", self.log.name);
                    self.world.trouble(self.process, what);
                }
            }
        }
        self.open = open;
        // After an unknown outcome an append is repeated as it was, or a conflict says nothing about the first try.
        if is_good && self.log.style != Style::Any {
            let mut expected = self.end;
            for append in &mut self.open {
                append.expected = expected;
                expected = expected.after(append.events.len() as u64);
            }
        }
        is_good
    }
}

/// An event as the history tells it.
fn content_of(event: &ProposedMessage) -> Option<String> {
    let word = |name: &str| MetadataEntry::find(&event.metadata, name).unwrap_or_default();
    let id = event.id.as_ref()?;
    let digest = digest(id, word("type"), word("content-type"), &event.custom_metadata, &event.data)?;
    Some(format!("{}:{digest}", number_of(id)?))
}

fn done(success: &Success) -> Answer {
    match success.current_revision_option {
        Some(Current::CurrentRevision(revision)) => Answer::Done(revision),
        Some(Current::NoStream(_)) | None => Answer::Refused("a success without a revision".to_owned()),
    }
}

fn failed(status: &Status) -> Answer {
    if is_passing(status) { Answer::Unknown } else { Answer::Refused(status.to_string()) }
}

fn batch_answer(reply: BatchAppendResp) -> Answer {
    match reply.result {
        Some(BatchAppended::Success(success)) => done(&success),
        Some(BatchAppended::Error(error)) if error.message == "WrongExpectedVersion" => conflict(&error),
        Some(BatchAppended::Error(error)) => failed(&Status::new(Code::from_i32(error.code), error.message)),
        None => Answer::Refused("an answer without a result".to_owned()),
    }
}

fn conflict(error: &rpc::Status) -> Answer {
    let detail = error.details.as_ref().and_then(|any| WrongExpectedVersion::decode(&any.value[..]).ok());
    match detail.and_then(|detail| detail.current_stream_revision_option) {
        Some(CurrentStreamRevisionOption::CurrentStreamRevision(last)) => Answer::Conflict(Some(last)),
        Some(CurrentStreamRevisionOption::CurrentNoStream(_)) => Answer::Conflict(None),
        None => Answer::Refused("a conflict without a revision".to_owned()),
    }
}
