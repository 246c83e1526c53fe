//! A history in order: publishes, leases with their holders and ends, events of the server.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::kurrent::Kurrent;
use super::queues::Queues;
use crate::history::{Line, LineError, Phase, Time};

/// Names a message: its producer gave it this number, and no number is given twice.
pub(crate) type Number = u64;
pub(crate) type Seq = u64;
/// Counts the starts of the server.
pub(crate) type RunId = u32;

/// What the server answers without waiting for the disk is in the log at most so long after. A sync takes
/// milliseconds; on a machine that is busy with other things it takes more.
const UNSYNCED_MAX: Time = 2_000_000;

/// A flaw of the history itself, before anything is said about the server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("line {line}: {error}")]
    Line { line: usize, error: LineError },
    #[error("line {line}: time goes back")]
    Order { line: usize },
    #[error("line {line}: no such operation. operation=`{phase:?} {operation}`")]
    Operation { line: usize, phase: Phase, operation: String },
    #[error("line {line}: speaks of something that was not told of before. what=`{what}`")]
    Unknown { line: usize, what: String },
}

#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) stream: String,
    pub(crate) is_ordered: bool,
    /// Whether an ack is answered after the sync.
    pub(crate) is_durable: bool,
    pub(crate) timeout: Time,
    /// Attempts after the first.
    pub(crate) retries: Option<u32>,
    pub(crate) rate: Option<Rate>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    pub(crate) per_second: f64,
    pub(crate) burst: f64,
}

/// One life of the server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Run {
    pub(crate) end: Option<RunEnd>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct RunEnd {
    /// When it was asked for. What hung on a connection may be over from then on.
    pub(crate) at: Time,
    pub(crate) how: Ending,
    /// A node that was held still, and may have written a last delivery to a socket when it went on.
    pub(crate) was_suspended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Killed,
    Stopped,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Publish {
    pub(crate) stream: String,
    /// A digest of all that consumers must see of it.
    pub(crate) content: u64,
    pub(crate) key: Option<String>,
    pub(crate) delay: Time,
    /// When it was first sent, and how often it was.
    pub(crate) sent: Time,
    pub(crate) tries: u32,
    /// Where the server said it is, each time it was asked.
    pub(crate) confirmed: Vec<Seq>,
    /// How often it was sent with an unknown outcome.
    pub(crate) unknown: u32,
    /// How often it was sent and certainly not stored.
    pub(crate) refused: u32,
    /// Why it will never be stored, if the server says so.
    pub(crate) hopeless: Option<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) group: Rc<str>,
    pub(crate) credit: usize,
    pub(crate) opened: Time,
    pub(crate) end: Option<SessionEnd>,
    pub(crate) deliveries: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionEnd {
    /// From when on its leases may be over: when the client left, or when it last heard of the server.
    pub(crate) at: Time,
    /// When the client knew.
    pub(crate) known: Time,
    pub(crate) how: Leaving,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    Goodbye,
    Dropped,
    /// The connection broke, or the server ended it.
    Lost,
}

#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    pub(crate) group: Rc<str>,
    pub(crate) seq: Seq,
    pub(crate) number: Number,
    pub(crate) content: u64,
    pub(crate) at: Time,
    pub(crate) attempt: u32,
    /// As the server gave it.
    pub(crate) deadline: Time,
    pub(crate) published: u64,
    pub(crate) run: RunId,
    /// `None`: the lease hangs on the clock.
    pub(crate) session: Option<u64>,
    pub(crate) settles: Vec<Settle>,
}

#[derive(Debug, Clone)]
pub(crate) struct Settle {
    pub(crate) action: Action,
    pub(crate) delay: Option<Time>,
    pub(crate) invoked: Time,
    /// The server it was sent to.
    pub(crate) run: RunId,
    pub(crate) answer: Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Ack,
    Retry,
    Park,
    Skip,
    Extend,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// None has come, and none will.
    Unknown,
    Is(Outcome, Time),
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Acked,
    Retrying,
    Parked,
    Skipped,
    Extended,
    NotYours,
    /// Nothing that any of our clients asks for.
    Other,
}

impl Settle {
    pub(crate) fn answered(&self, outcome: Outcome) -> Option<Time> {
        match self.answer {
            Answer::Is(is, at) if is == outcome => Some(at),
            _ => None,
        }
    }
}

/// A receive whose answer never came: it may have leased messages that no client saw.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LostReceive {
    pub(crate) invoked: Time,
    pub(crate) known: Time,
}

#[derive(Debug, Clone)]
pub(crate) struct Presence {
    pub(crate) at: Time,
    pub(crate) run: RunId,
    pub(crate) name: String,
    pub(crate) found: String,
    pub(crate) floor: Option<Seq>,
}

/// What a group said of itself when everything should have been over.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    pub(crate) at: Time,
    pub(crate) lag: u64,
    pub(crate) parked: u64,
    /// Which messages are parked, where the door tells.
    pub(crate) parked_seqs: Option<Vec<Seq>>,
}

/// A term of a cluster, and the fault that ended the one before it; `none` if there was no such fault.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) at: Time,
    pub(crate) run: RunId,
    pub(crate) cause: String,
}

#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) streams: Vec<String>,
    pub(crate) groups: BTreeMap<Rc<str>, Group>,
    pub(crate) runs: BTreeMap<RunId, Run>,
    pub(crate) publishes: BTreeMap<Number, Publish>,
    pub(crate) sessions: BTreeMap<u64, Session>,
    pub(crate) deliveries: Vec<Delivery>,
    /// By group and position, in the order of the server's lives and then of time.
    pub(crate) by_message: BTreeMap<(Rc<str>, Seq), Vec<usize>>,
    pub(crate) lost_receives: BTreeMap<Rc<str>, Vec<LostReceive>>,
    pub(crate) presences: Vec<Presence>,
    pub(crate) figures: BTreeMap<Rc<str>, Vec<Figures>>,
    /// When a replay of parked messages was requested, by group.
    pub(crate) replays: BTreeMap<Rc<str>, Vec<Time>>,
    pub(crate) queues: Queues,
    pub(crate) kurrent: Kurrent,
    /// What the run itself found wrong, such as a server that ended by itself.
    pub(crate) trouble: Vec<(Time, String)>,
    /// When the server was held still, and until when.
    pub(crate) pauses: Vec<(Time, Time)>,
    /// How often the disk lost its power with a kill.
    pub(crate) power_losses: u64,
    /// Faults of the processes of a cluster, by name, and its changes of owner.
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) changes: Vec<Change>,
    pub(crate) ended: Time,
    delivery_ids: BTreeMap<u64, usize>,
    receiving: BTreeMap<u32, Time>,
}

impl Record {
    pub(crate) fn read(lines: impl Iterator<Item = impl AsRef<str>>) -> Result<Record, RecordError> {
        let mut record = Record::default();
        for (number, text) in lines.enumerate() {
            let line = number + 1;
            let parsed = Line::parse(text.as_ref()).map_err(|error| RecordError::Line { line, error })?;
            record.take(line, &parsed)?;
        }
        record.in_order();
        Ok(record)
    }

    /// A delivery that lay in a socket while the server was killed may be read after those of the next one.
    fn in_order(&mut self) {
        for deliveries in self.by_message.values_mut() {
            deliveries.sort_by_key(|&index| (self.deliveries[index].run, self.deliveries[index].at));
        }
    }

    fn take(&mut self, number: usize, line: &Line) -> Result<(), RecordError> {
        if line.at < self.ended {
            return Err(RecordError::Order { line: number });
        }
        self.ended = line.at;
        let known = self.on_line(line).map_err(|error| match error {
            Wrong::Line(error) => RecordError::Line { line: number, error },
            Wrong::Unknown(what) => RecordError::Unknown { line: number, what },
        })?;
        if known {
            return Ok(());
        }
        let operation = line.operation.clone();
        Err(RecordError::Operation { line: number, phase: line.phase, operation })
    }

    fn on_line(&mut self, line: &Line) -> Result<bool, Wrong> {
        match line.operation.as_str() {
            "stream" | "group" => self.on_setting(line)?,
            "start" | "kill" | "stop" | "pause" | "resume" | "trouble" | "stage" => self.on_server(line)?,
            "fault" | "term" => self.on_cluster(line)?,
            "present" => {
                let presence = Presence {
                    at: line.at,
                    run: line.number("run")?,
                    name: line.text("name")?.to_owned(),
                    found: line.text("found")?.to_owned(),
                    floor: line.optional("floor")?,
                };
                self.presences.push(presence);
            }
            "publish" => self.on_publish(line)?,
            "open" | "close" => self.on_session(line)?,
            "receive" => self.on_receive(line)?,
            "deliver" => self.on_deliver(line)?,
            "settle" => self.on_settle(line)?,
            "figures" => self.on_figures(line)?,
            "replay" => {
                if line.phase == Phase::Invoke {
                    let group = self.group(line)?;
                    self.replays.entry(group).or_default().push(line.at);
                }
            }
            _ => return Ok(self.queues.take(line)? || self.kurrent.take(line)?),
        }
        Ok(true)
    }

    fn on_setting(&mut self, line: &Line) -> Result<(), Wrong> {
        let name = line.text("name")?.to_owned();
        if line.operation == "stream" {
            self.streams.push(name);
            return Ok(());
        }
        let rate = match line.optional("rate")? {
            Some(per_second) => Some(Rate { per_second, burst: line.number("burst")? }),
            None => None,
        };
        let group = Group {
            stream: line.text("stream")?.to_owned(),
            is_ordered: line.get("strategy") == Some("ordered"),
            is_durable: line.get("acks") == Some("durable"),
            timeout: millis(line.number("timeout_ms")?),
            retries: line.optional("retries")?,
            rate,
        };
        self.groups.insert(name.into(), group);
        Ok(())
    }

    fn on_server(&mut self, line: &Line) -> Result<(), Wrong> {
        match (line.operation.as_str(), line.phase) {
            ("start", Phase::Invoke) => {
                self.runs.insert(line.number("run")?, Run::default());
            }
            ("kill" | "stop", Phase::Invoke) => {
                let how = if line.operation == "kill" { Ending::Killed } else { Ending::Stopped };
                let run: RunId = line.number("run")?;
                let unknown = || Wrong::Unknown(format!("run {run}"));
                let end = &mut self.runs.get_mut(&run).ok_or_else(unknown)?.end;
                // One that does not stop when it is asked to is killed, and then it is as killed from the
                // first word on.
                let at = end.map_or(line.at, |end| end.at);
                let was_suspended = line.get("by") == Some("owner-suspended");
                *end = Some(RunEnd { at, how, was_suspended });
            }
            ("kill", Phase::Ok) => self.power_losses += u64::from(line.get("power").is_some()),
            ("pause", _) => self.pauses.push((line.at, Time::MAX)),
            ("resume", _) => {
                if let Some((_, until)) = self.pauses.last_mut() {
                    *until = line.at;
                }
            }
            ("trouble", _) => self.trouble.push((line.at, line.text("what")?.to_owned())),
            _ => {}
        }
        Ok(())
    }

    fn on_cluster(&mut self, line: &Line) -> Result<(), Wrong> {
        match (line.operation.as_str(), line.phase) {
            ("fault", Phase::Invoke) => {
                *self.faults.entry(line.text("fault")?.to_owned()).or_default() += 1;
            }
            ("term", _) => {
                let change =
                    Change { at: line.at, run: line.number("run")?, cause: line.text("cause")?.to_owned() };
                self.changes.push(change);
            }
            _ => {}
        }
        Ok(())
    }

    fn on_publish(&mut self, line: &Line) -> Result<(), Wrong> {
        let number: Number = line.number("n")?;
        if line.phase == Phase::Invoke {
            let fresh = Publish {
                stream: line.text("stream")?.to_owned(),
                content: line.number("content")?,
                key: line.get("key").map(str::to_owned),
                delay: line.optional("delay_ms")?.map_or(0, millis),
                sent: line.at,
                ..Publish::default()
            };
            self.publishes.entry(number).or_insert(fresh).tries += 1;
            return Ok(());
        }
        let unknown = || Wrong::Unknown(format!("message {number}"));
        let publish = self.publishes.get_mut(&number).ok_or_else(unknown)?;
        match line.phase {
            Phase::Ok => publish.confirmed.push(line.number("seq")?),
            Phase::Fail => {
                publish.refused += 1;
                if line.get("retry") == Some("never") {
                    publish.hopeless = Some(line.get("why").unwrap_or_default().to_owned());
                }
            }
            Phase::Info | Phase::Invoke => publish.unknown += 1,
        }
        Ok(())
    }

    fn on_session(&mut self, line: &Line) -> Result<(), Wrong> {
        let id: u64 = line.number("session")?;
        if line.operation == "open" {
            let session = Session {
                group: self.group(line)?,
                credit: line.number("credit")?,
                opened: line.at,
                end: None,
                deliveries: Vec::new(),
            };
            self.sessions.insert(id, session);
            return Ok(());
        }
        let unknown = || Wrong::Unknown(format!("session {id}"));
        let session = self.sessions.get_mut(&id).ok_or_else(unknown)?;
        let (how, at) = match line.text("why")? {
            "goodbye" => (Leaving::Goodbye, line.at),
            "dropped" => (Leaving::Dropped, line.at),
            _ => (Leaving::Lost, line.number("heard")?),
        };
        match &mut session.end {
            // After a goodbye the rest of the answers is waited for, and then the call ends.
            Some(end) => end.known = line.at,
            none => *none = Some(SessionEnd { at, known: line.at, how }),
        }
        Ok(())
    }

    fn on_receive(&mut self, line: &Line) -> Result<(), Wrong> {
        match line.phase {
            Phase::Invoke => {
                self.receiving.insert(line.process, line.at);
            }
            Phase::Info => {
                let invoked = self.receiving.remove(&line.process).unwrap_or(line.at);
                let lost = LostReceive { invoked, known: line.at };
                let group = self.group(line)?;
                self.lost_receives.entry(group).or_default().push(lost);
            }
            Phase::Ok | Phase::Fail => {
                self.receiving.remove(&line.process);
            }
        }
        Ok(())
    }

    fn on_deliver(&mut self, line: &Line) -> Result<(), Wrong> {
        let delivery = Delivery {
            group: self.group(line)?,
            seq: line.number("seq")?,
            number: line.number("n")?,
            content: line.number("content")?,
            at: line.at,
            attempt: line.number("attempt")?,
            deadline: line.number("deadline")?,
            published: line.number("published")?,
            run: line.number("run")?,
            session: line.optional("session")?,
            settles: Vec::new(),
        };
        let index = self.deliveries.len();
        if let Some(id) = delivery.session {
            let unknown = || Wrong::Unknown(format!("session {id}"));
            self.sessions.get_mut(&id).ok_or_else(unknown)?.deliveries.push(index);
        }
        self.by_message.entry((delivery.group.clone(), delivery.seq)).or_default().push(index);
        self.delivery_ids.insert(line.number("delivery")?, index);
        self.deliveries.push(delivery);
        Ok(())
    }

    fn on_settle(&mut self, line: &Line) -> Result<(), Wrong> {
        let id: u64 = line.number("delivery")?;
        let unknown = || Wrong::Unknown(format!("delivery {id}"));
        let index = *self.delivery_ids.get(&id).ok_or_else(unknown)?;
        let delivery = &mut self.deliveries[index];
        if line.phase == Phase::Invoke {
            let action = match line.text("action")? {
                "ack" => Action::Ack,
                "retry" => Action::Retry,
                "park" => Action::Park,
                "skip" => Action::Skip,
                "extend" => Action::Extend,
                other => return Err(Wrong::Unknown(format!("action {other}"))),
            };
            delivery.settles.push(Settle {
                action,
                delay: line.optional("delay_ms")?.map(millis),
                invoked: line.at,
                run: line.number("run")?,
                answer: Answer::Unknown,
            });
            return Ok(());
        }
        let answer = match line.phase {
            Phase::Ok => Answer::Is(outcome(line.text("outcome")?), line.at),
            Phase::Fail => Answer::Refused,
            Phase::Info | Phase::Invoke => Answer::Unknown,
        };
        let settle =
            delivery.settles.last_mut().ok_or_else(|| Wrong::Unknown(format!("settlement of {id}")))?;
        settle.answer = answer;
        Ok(())
    }

    fn on_figures(&mut self, line: &Line) -> Result<(), Wrong> {
        let parked_seqs = match line.get("seqs") {
            None => None,
            Some(list) => {
                let seqs = list.split(',').filter(|seq| !seq.is_empty()).map(str::parse);
                let seqs = seqs.collect::<Result<_, _>>();
                Some(seqs.map_err(|_| LineError::Number { field: "seqs", value: list.to_owned() })?)
            }
        };
        let (lag, parked) = (line.number("lag")?, line.number("parked")?);
        let figures = Figures { at: line.at, lag, parked, parked_seqs };
        let group = self.group(line)?;
        self.figures.entry(group).or_default().push(figures);
        Ok(())
    }

    pub(crate) fn run_end(&self, run: RunId) -> Option<RunEnd> {
        self.runs.get(&run).and_then(|run| run.end)
    }

    /// How long the server was at work between two times: not counting while it was held still.
    fn at_work(&self, from: Time, until: Time) -> Time {
        let still = |&(start, end): &(Time, Time)| end.min(until).saturating_sub(start.max(from));
        until.saturating_sub(from).saturating_sub(self.pauses.iter().map(still).sum())
    }

    /// Whether a kill may have undone what the server did at this time and had no need to wait for.
    pub(crate) fn may_be_forgotten(&self, run: RunId, at: Time) -> bool {
        self.run_end(run)
            .is_some_and(|end| end.how == Ending::Killed && self.at_work(at, end.at) <= UNSYNCED_MAX)
    }

    fn group(&self, line: &Line) -> Result<Rc<str>, Wrong> {
        let name = line.text("group")?;
        let known = self.groups.get_key_value(name).map(|(name, _)| name.clone());
        known.ok_or_else(|| Wrong::Unknown(format!("group {name}")))
    }
}

/// Why a line is no part of the history.
pub(super) enum Wrong {
    Line(LineError),
    Unknown(String),
}

impl From<LineError> for Wrong {
    fn from(error: LineError) -> Wrong {
        Wrong::Line(error)
    }
}

fn millis(millis: u64) -> Time {
    millis.saturating_mul(1_000)
}

fn outcome(text: &str) -> Outcome {
    match text {
        "acked" => Outcome::Acked,
        "retrying" => Outcome::Retrying,
        "parked" => Outcome::Parked,
        "skipped" => Outcome::Skipped,
        "extended" => Outcome::Extended,
        "not_yours" => Outcome::NotYours,
        _ => Outcome::Other,
    }
}
