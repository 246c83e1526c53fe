//! KurrentDB clients: the part of the history that they write, and its promises.
//!
//! | Line | Says |
//! | --- | --- |
//! | `info log`, `subscription`, `reader` | A log, a persistent subscription, a reader that catches up |
//! | `append` | Events for a log, and where its writer expects it to end: `ok` has the revision of the last one |
//! | `ok saw` | An event that a reader saw |
//! | `join`, `leave` | A call of a consumer, and its end |
//! | `ok event` | An event that came on a call |
//! | `invoke answer` | An ack, or a nack with its action. The protocol has no answer to it |
//! | `invoke unpark` | Parked events are to be delivered again |
//! | `ok stood` | What a subscription said of itself when it should have been done |
//! | `ok kept`, `ok read` | In the end: each event of a log, and how many there were |
//!
//! `logs` is about appends and readers, `calls` about subscriptions.

mod calls;
mod logs;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::Report;
use super::record::{Number, Record, RunId, Wrong};
use crate::history::{Line, LineError, Phase, Time};

type Revision = u64;

/// The KurrentDB clients of a history.
#[derive(Debug, Default)]
pub(crate) struct Kurrent {
    logs: BTreeMap<String, Log>,
    appends: BTreeMap<u64, Append>,
    /// Events that were appended, by number.
    appended: BTreeMap<Number, Appended>,
    readers: BTreeMap<String, Reader>,
    subscriptions: BTreeMap<String, Subscription>,
    calls: BTreeMap<u64, Call>,
    deliveries: Vec<Delivery>,
    by_delivery: BTreeMap<u64, usize>,
    ended: Time,
}

#[derive(Debug, Default)]
struct Log {
    /// One writer, which knows each revision.
    is_exclusive: bool,
    /// All events, as they were read in the end.
    kept: BTreeMap<Revision, Kept>,
    was_read: bool,
}

#[derive(Debug, Clone, Copy)]
struct Kept {
    number: Number,
    content: u64,
    position: u64,
}

#[derive(Debug)]
struct Append {
    log: String,
    events: Vec<Number>,
    tries: Vec<Try>,
}

#[derive(Debug)]
struct Try {
    at: Time,
    expected: Expected,
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Any,
    NoStream,
    At(Revision),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Unknown,
    /// The revision of the last event, and when the answer came.
    Done(Revision, Time),
    Conflict,
    Refused,
}

#[derive(Debug)]
struct Appended {
    append: u64,
    content: u64,
}

#[derive(Debug)]
struct Reader {
    source: String,
    saw: Vec<Saw>,
}

#[derive(Debug)]
struct Saw {
    at: Time,
    log: String,
    revision: Revision,
    kept: Kept,
}

#[derive(Debug)]
struct Subscription {
    source: String,
    timeout: Time,
    retries: u32,
    unparked: Vec<Time>,
    /// Open and parked events in the end.
    stood: Option<(u64, u64)>,
}

#[derive(Debug)]
struct Call {
    subscription: String,
    buffer: usize,
    run: RunId,
    end: Option<CallEnd>,
    deliveries: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
struct CallEnd {
    /// From when on its events may be with others: when the client left, or when it last heard of the server.
    at: Time,
}

#[derive(Debug)]
struct Delivery {
    call: u64,
    at: Time,
    log: String,
    revision: Revision,
    number: Number,
    content: u64,
    retries: u32,
    answer: Option<(Action, Time)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Ack,
    Retry,
    Park,
    Skip,
}

/// Whether a subscription or a reader of this source is given the events of a log.
fn has(source: &str, log: &str) -> bool {
    source == log || source.starts_with('$')
}

impl Kurrent {
    /// False if the line is about something else.
    pub(super) fn take(&mut self, line: &Line) -> Result<bool, Wrong> {
        match line.operation.as_str() {
            "log" => {
                let is_exclusive = line.text("style")? == "exclusive";
                self.logs.insert(line.text("name")?.to_owned(), Log { is_exclusive, ..Log::default() });
            }
            "reader" => {
                let reader = Reader { source: line.text("source")?.to_owned(), saw: Vec::new() };
                self.readers.insert(line.text("name")?.to_owned(), reader);
            }
            "subscription" => {
                let subscription = Subscription {
                    source: line.text("source")?.to_owned(),
                    timeout: line.number::<Time>("timeout_ms")? * 1_000,
                    retries: line.number("retries")?,
                    unparked: Vec::new(),
                    stood: None,
                };
                self.subscriptions.insert(line.text("name")?.to_owned(), subscription);
            }
            "append" => self.on_append(line)?,
            "saw" => {
                let (at, log, revision) = (line.at, line.text("log")?.to_owned(), line.number("revision")?);
                let saw = Saw { at, log, revision, kept: kept(line)? };
                found(&mut self.readers, "reader", line.text("reader")?)?.saw.push(saw);
            }
            "join" | "leave" => self.on_call(line)?,
            "event" => self.on_event(line)?,
            "answer" => self.on_answer(line)?,
            "unpark" => self.subscription(line)?.unparked.push(line.at),
            "stood" => {
                let stood = (line.number("open")?, line.number("parked")?);
                self.subscription(line)?.stood = Some(stood);
            }
            "kept" => {
                let (revision, kept) = (line.number("revision")?, kept(line)?);
                found(&mut self.logs, "log", line.text("log")?)?.kept.insert(revision, kept);
            }
            "read" => found(&mut self.logs, "log", line.text("log")?)?.was_read = true,
            _ => return Ok(false),
        }
        self.ended = line.at;
        Ok(true)
    }

    fn subscription(&mut self, line: &Line) -> Result<&mut Subscription, Wrong> {
        found(&mut self.subscriptions, "subscription", line.text("subscription")?)
    }

    fn on_append(&mut self, line: &Line) -> Result<(), Wrong> {
        let number: u64 = line.number("append")?;
        if line.phase == Phase::Invoke {
            let expected = match line.text("expected")? {
                "any" => Expected::Any,
                "none" => Expected::NoStream,
                _ => Expected::At(line.number("expected")?),
            };
            if !self.appends.contains_key(&number) {
                let mut events = Vec::new();
                for event in line.text("events")?.split(',') {
                    let (event, content) = numbers(event)?;
                    self.appended.insert(event, Appended { append: number, content });
                    events.push(event);
                }
                let log = line.text("log")?.to_owned();
                self.appends.insert(number, Append { log, events, tries: Vec::new() });
            }
            let append = found(&mut self.appends, "append", &number)?;
            append.tries.push(Try { at: line.at, expected, outcome: Outcome::Unknown });
            return Ok(());
        }
        let last = found(&mut self.appends, "append", &number)?.tries.last_mut();
        let last = last.ok_or_else(|| Wrong::Unknown(format!("try of append {number}")))?;
        last.outcome = match line.phase {
            Phase::Ok => Outcome::Done(line.number("revision")?, line.at),
            Phase::Fail if line.get("why") == Some("conflict") => Outcome::Conflict,
            Phase::Fail => Outcome::Refused,
            Phase::Info | Phase::Invoke => Outcome::Unknown,
        };
        Ok(())
    }

    fn on_call(&mut self, line: &Line) -> Result<(), Wrong> {
        let id: u64 = line.number("call")?;
        if line.operation == "join" {
            let subscription = line.text("subscription")?.to_owned();
            found(&mut self.subscriptions, "subscription", subscription.as_str())?;
            let (buffer, run) = (line.number("buffer")?, line.number("run")?);
            self.calls.insert(id, Call { subscription, buffer, run, end: None, deliveries: Vec::new() });
            return Ok(());
        }
        let at = if line.text("why")? == "lost" { line.number("heard")? } else { line.at };
        found(&mut self.calls, "call", &id)?.end = Some(CallEnd { at });
        Ok(())
    }

    fn on_event(&mut self, line: &Line) -> Result<(), Wrong> {
        let delivery = Delivery {
            call: line.number("call")?,
            at: line.at,
            log: line.text("log")?.to_owned(),
            revision: line.number("revision")?,
            number: line.number("n")?,
            content: line.number("content")?,
            retries: line.number("retries")?,
            answer: None,
        };
        let index = self.deliveries.len();
        found(&mut self.calls, "call", &delivery.call)?.deliveries.push(index);
        self.by_delivery.insert(line.number("delivery")?, index);
        self.deliveries.push(delivery);
        Ok(())
    }

    fn on_answer(&mut self, line: &Line) -> Result<(), Wrong> {
        let action = match line.text("action")? {
            "ack" => Action::Ack,
            "retry" => Action::Retry,
            "park" => Action::Park,
            "skip" => Action::Skip,
            other => return Err(Wrong::Unknown(format!("action {other}"))),
        };
        let id: u64 = line.number("delivery")?;
        let index = *found(&mut self.by_delivery, "delivery", &id)?;
        self.deliveries[index].answer = Some((action, line.at));
        Ok(())
    }
}

fn kept(line: &Line) -> Result<Kept, LineError> {
    let position = line.optional("position")?.unwrap_or_default();
    Ok(Kept { number: line.number("n")?, content: line.number("content")?, position })
}

/// An event of an append: its number and its content.
fn numbers(text: &str) -> Result<(u64, u64), LineError> {
    let wrong = || LineError::Number { field: "events", value: text.to_owned() };
    let (number, content) = text.split_once(':').ok_or_else(wrong)?;
    Ok((number.parse().map_err(|_| wrong())?, content.parse().map_err(|_| wrong())?))
}

fn found<'a, K, Q, V>(map: &'a mut BTreeMap<K, V>, what: &str, key: &Q) -> Result<&'a mut V, Wrong>
where
    K: Ord + std::borrow::Borrow<Q>,
    Q: Ord + std::fmt::Display + ?Sized,
{
    map.get_mut(key).ok_or_else(|| Wrong::Unknown(format!("{what} {key}")))
}

pub(super) fn check(record: &Record, report: &mut Report) {
    logs::check(&record.kurrent, report);
    calls::check(record, report);
}
