//! Keeps a few batches on their way, and sends again what broke off.

use std::collections::VecDeque;
use std::io::Read as _;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use forebay_broker::clock::Clock;
use forebay_core::types::Timestamp;
use forebay_wire::v1;
use forebay_wire::v1::forebay_client::ForebayClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::input::Batch;
use super::progress::{self, Progress};
use crate::connect::{self, Server};
use crate::exit::{self, Exit};
use crate::safe::printable;
use crate::units;

/// Batches on their way at a time. A server remembers as many of a producer, and not more: with more, one that
/// was stored could be refused when it is sent again.
const ON_THEIR_WAY_MAX: usize = 5;
/// The wait before something is tried again, unless the server says how long: twice as long each time.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

type Input = mpsc::Receiver<anyhow::Result<Batch>>;

/// What became of messages.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) stored: u64,
    /// Stored before, under the same id.
    pub(super) duplicates: u64,
}

struct OnItsWay {
    request: v1::PublishRequest,
    lines: (u64, u64),
    bytes: u64,
    /// It was sent before, so a server that knows it already may know it from then.
    again: bool,
}

pub(super) struct Pipeline<'a> {
    stream: &'a str,
    server: &'a Server,
    retry_for: Duration,
    progress: Progress,
    clock: Clock,
    /// When a batch was last stored.
    stored_at: Timestamp,
    producer: u64,
    /// Of the next message without an id.
    number: u64,
    ticket: u64,
    on_their_way: VecDeque<OnItsWay>,
    tally: Tally,
    /// Whether any batch was confirmed. Until then one goes at a time: a producer is known by its first batch,
    /// and if that were refused and the second one not, the first could never be stored.
    begun: bool,
    input_ended: bool,
    /// Why nothing more is sent; what is on its way is still waited for.
    failed: Option<anyhow::Error>,
}

/// How one call ended.
enum Call {
    Done,
    /// It may go better later; after this long, if the server said so.
    Again(anyhow::Error, Option<Duration>),
}

impl<'a> Pipeline<'a> {
    pub(super) fn new(
        stream: &'a str,
        server: &'a Server,
        retry_for: Duration,
        progress: Progress,
    ) -> anyhow::Result<Pipeline<'a>> {
        let clock = Clock::start();
        let mut producer = [0; 8];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut producer))
            .context("cannot read random numbers")?;
        Ok(Pipeline {
            stream,
            server,
            retry_for,
            progress,
            clock,
            stored_at: clock.now(),
            producer: u64::from_le_bytes(producer),
            number: 1,
            ticket: 0,
            on_their_way: VecDeque::new(),
            tally: Tally::default(),
            begun: false,
            input_ended: false,
            failed: None,
        })
    }

    pub(super) async fn run(
        mut self,
        client: ForebayClient<Channel>,
        mut input: Input,
    ) -> anyhow::Result<Tally> {
        let mut client = Some(client);
        let mut pause = PAUSE_MIN;
        loop {
            let stored_at = self.stored_at;
            let connected = match client.take() {
                Some(client) => Ok(client),
                None => connect::grpc(self.server).await,
            };
            let call = match connected {
                Ok(client) => self.call(client, &mut input).await,
                Err(error) => Call::Again(error, None),
            };
            let (why, after) = match call {
                Call::Done => {
                    self.progress.clear();
                    return match self.failed.take() {
                        None => Ok(self.tally),
                        Some(error) => Err(self.with_tally(&error)),
                    };
                }
                Call::Again(why, after) => (why, after),
            };
            if let Some(error) = self.failed.take() {
                // Nothing more would be sent, so there is nothing to try again for.
                self.progress.clear();
                return Err(self.with_tally(&error));
            }
            if self.stored_at > stored_at {
                pause = PAUSE_MIN;
            }
            if self.clock.now().since(self.stored_at) >= self.retry_for {
                self.progress.clear();
                let retry_for = units::age(self.retry_for.as_secs_f64());
                let gave_up = why.context(format!("gave up after {retry_for} without progress"));
                return Err(self.with_tally(&gave_up));
            }
            tokio::time::sleep(after.unwrap_or(pause).min(PAUSE_MAX)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// The mistake, and what is known of the rest, for whoever has to go on from here.
    fn with_tally(&self, error: &anyhow::Error) -> anyhow::Error {
        // Where the server said that it stored nothing, it refused what was numbered behind that as well.
        let refused = error.downcast_ref::<Exit>() == Some(&Exit::Later);
        let unknown = self.on_their_way.iter().filter(|batch| !refused || batch.request.producer.is_none());
        let unknown = match unknown.map(|batch| batch.request.messages.len() as u64).sum::<u64>() {
            0 => String::new(),
            count => format!("; the outcome of {} more is unknown", units::count(count)),
        };
        let stored = match self.tally.stored + self.tally.duplicates {
            0 => "Nothing was stored".to_owned(),
            1 => "The first message was stored".to_owned(),
            count => format!("The first {} were stored", units::of(count, "message")),
        };
        let text = format!("{}. {stored}{unknown}", exit::text(error));
        match error.downcast_ref::<Exit>() {
            Some(exit) => anyhow!(*exit).context(text),
            None => anyhow!(text),
        }
    }

    /// Sends on one call for as long as that goes well.
    async fn call(&mut self, mut client: ForebayClient<Channel>, input: &mut Input) -> Call {
        let (requests, sent) = mpsc::channel(ON_THEIR_WAY_MAX);
        for batch in &self.on_their_way {
            let _ = requests.try_send(batch.request.clone());
        }
        let mut requests = Some(requests);
        let mut replies = match client.publish(ReceiverStream::new(sent)).await {
            Ok(replies) => replies.into_inner(),
            Err(status) => return self.broken(&status),
        };
        let mut draw = tokio::time::interval(progress::REDRAW);
        loop {
            if self.input_ended && self.on_their_way.is_empty() {
                return Call::Done;
            }
            let room = if self.begun { ON_THEIR_WAY_MAX } else { 1 };
            tokio::select! {
                batch = input.recv(), if !self.input_ended && self.on_their_way.len() < room => match batch {
                    Some(Ok(batch)) => {
                        let batch = self.number(batch);
                        if let Some(requests) = &requests {
                            let _ = requests.try_send(batch.request.clone());
                        }
                        self.on_their_way.push_back(batch);
                    }
                    Some(Err(error)) => self.fail(error),
                    None => self.input_ended = true,
                },
                reply = replies.message() => {
                    let reply = match reply {
                        Ok(Some(reply)) => reply,
                        Ok(None) => return self.broken(&Status::unavailable("the call ended")),
                        Err(status) => return self.broken(&status),
                    };
                    for confirmation in reply.confirmations {
                        if let Some(again) = self.confirm(confirmation) {
                            return again;
                        }
                    }
                    if self.failed.is_some() {
                        requests = None;
                    }
                }
                _ = draw.tick() => self.progress.draw(self.tally.stored + self.tally.duplicates),
            }
        }
    }

    fn number(&mut self, batch: Batch) -> OnItsWay {
        self.ticket += 1;
        let numbered = batch.messages.first().is_some_and(|message| message.id.is_empty());
        let producer = numbered.then_some(v1::Producer { id: self.producer, epoch: 1, counter: self.number });
        if numbered {
            self.number += batch.messages.len() as u64;
        }
        let request = v1::PublishRequest {
            stream: self.stream.to_owned(),
            messages: batch.messages,
            ticket: self.ticket,
            producer,
            ..Default::default()
        };
        OnItsWay { request, lines: batch.lines, bytes: batch.bytes, again: false }
    }

    /// Confirmations come in the order of the batches. If one was not stored but may be later, the call is over:
    /// what was sent behind it must not pass it.
    fn confirm(&mut self, confirmation: v1::Confirmation) -> Option<Call> {
        let batch = self.on_their_way.front()?;
        if let Some(problem) = confirmation.problem {
            let detail = printable(&problem.detail);
            let exit = match problem.retry() {
                v1::Retry::Later => Exit::Later,
                v1::Retry::SameId => Exit::Unknown,
                _ => exit_of(problem.code()),
            };
            let error = anyhow!(exit).context(detail);
            if matches!(exit, Exit::Later | Exit::Unknown) {
                self.mark_sent();
                return Some(Call::Again(error, problem.retry_after_ms.map(Duration::from_millis)));
            }
            let lines = match batch.lines {
                (first, last) if first == last => format!("message {first} was not stored"),
                (first, last) => format!("messages {first} to {last} were not stored"),
            };
            self.on_their_way.pop_front();
            // Only the first mistake counts: what follows may be refused merely for following it.
            if self.failed.is_none() {
                self.fail(error.context(lines));
            }
            return None;
        }
        let count = batch.request.messages.len() as u64;
        // What is known already was stored by the first try, if there was one.
        let known = if batch.again { 0 } else { confirmation.duplicates.len() as u64 };
        self.tally.stored += count - known;
        self.tally.duplicates += known;
        self.progress.add(batch.bytes);
        self.stored_at = self.clock.now();
        self.begun = true;
        self.on_their_way.pop_front();
        None
    }

    /// Sends nothing more.
    fn fail(&mut self, error: anyhow::Error) {
        self.failed = Some(error);
        self.input_ended = true;
    }

    fn mark_sent(&mut self) {
        for batch in &mut self.on_their_way {
            batch.again = true;
        }
    }

    fn broken(&mut self, status: &Status) -> Call {
        self.mark_sent();
        let text = format!("the call broke off: {} ({:?})", printable(status.message()), status.code());
        let exit = match status.code() {
            Code::InvalidArgument | Code::Unimplemented => Exit::NotUnderstood,
            Code::PermissionDenied | Code::Unauthenticated => Exit::Denied,
            _ => return Call::Again(anyhow!(Exit::Unreachable).context(text), None),
        };
        self.fail(anyhow!(exit).context(text));
        Call::Done
    }
}

fn exit_of(code: v1::problem::Code) -> Exit {
    use v1::problem::Code;
    match code {
        Code::NoSuchStream | Code::NoSuchGroup => Exit::NotFound,
        Code::Denied => Exit::Denied,
        Code::Invalid | Code::TooLarge | Code::Unsupported => Exit::NotUnderstood,
        _ => Exit::Conflict,
    }
}
