//! The task around a pipeline. It passes messages in, batches out and confirmations back, and keeps the timer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use forebay_wire::v1;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Status, Streaming};

use super::codec::SharedCodec;
use super::pipeline::{Item, Pipeline};
use super::window::Window;
use crate::channel::Channel;
use crate::clock::{self, Instant};
use crate::error::{CallError, PublishError, Refusal, in_words};

/// Batches that may lie between the pipeline and its call. No more are ever in flight.
const REQUESTS_MAX: usize = 8;
/// Commands that are taken in at once.
const INTAKE_MAX: usize = 1_024;
/// An unused pipeline leaves its call after this long. A shared one then ends.
const IDLE_MAX: Duration = Duration::from_secs(30);

// Nearly all of them are messages, and a box for each would cost more than the room that it saves.
#[allow(clippy::large_enum_variant)]
pub(super) enum Command {
    Publish(Item),
    Flush(oneshot::Sender<Result<(), PublishError>>),
    /// Takes nothing more in.
    Close,
}

pub(super) struct Task {
    pub(super) pipeline: Pipeline,
    pub(super) channel: Channel,
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    pub(super) window: Arc<Window>,
    /// Ends when it was unused for a while, even if handles exist.
    pub(super) ends_when_idle: bool,
}

/// A `Publish` under way.
struct Call {
    requests: mpsc::Sender<Arc<v1::PublishRequest>>,
    replies: Replies,
}

enum Replies {
    Opening(Pin<Box<dyn Future<Output = Result<Streaming<v1::PublishReply>, Status>> + Send>>),
    Open(Box<Streaming<v1::PublishReply>>),
}

impl Call {
    fn open(channel: Channel) -> Call {
        let (requests, sent) = mpsc::channel(REQUESTS_MAX);
        let opening = async move {
            let mut grpc = Grpc::new(channel);
            let ready = grpc.ready().await;
            ready.map_err(|error| Status::from_error(Box::new(error)))?;
            let path = PathAndQuery::from_static("/forebay.v1.Forebay/Publish");
            let request = Request::new(ReceiverStream::new(sent));
            grpc.streaming(request, path, SharedCodec).await.map(tonic::Response::into_inner)
        };
        Call { requests, replies: Replies::Opening(Box::pin(opening)) }
    }

    /// The next reply. Nothing is lost if the future is dropped.
    async fn reply(&mut self) -> Result<v1::PublishReply, Status> {
        loop {
            match &mut self.replies {
                Replies::Opening(opening) => self.replies = Replies::Open(Box::new(opening.await?)),
                Replies::Open(replies) => {
                    return replies
                        .message()
                        .await?
                        .ok_or_else(|| Status::unavailable("the server ended the call"));
                }
            }
        }
    }
}

impl Task {
    pub(super) async fn run(mut self) {
        let mut call: Option<Call> = None;
        let mut timer = Timer { sleep: Box::pin(tokio::time::sleep(IDLE_MAX)), is_set: false };
        let mut intake = Vec::new();
        let (mut open, mut idle_since) = (true, None);
        loop {
            let now = clock::now();
            self.send(now, &mut call);
            self.window.give_back(self.pipeline.take_released());
            if self.pipeline.is_idle() {
                if !open {
                    return;
                }
                let leave_at = *idle_since.get_or_insert(now) + IDLE_MAX;
                timer.set(Some(leave_at).filter(|_| call.is_some() || self.ends_when_idle));
            } else {
                idle_since = None;
                timer.set(self.pipeline.wake_at());
            }
            tokio::select! {
                biased;
                reply = reply(&mut call) => self.on_reply(reply, &mut call),
                taken = self.commands.recv_many(&mut intake, INTAKE_MAX), if open => {
                    open = taken > 0;
                    // Tasks that were answered together publish again together. To let them run first costs a lone
                    // publish nothing, and halves the cost of each when ten do.
                    tokio::task::yield_now().await;
                    intake.drain(..).for_each(|command| self.on_command(command));
                    while let Ok(command) = self.commands.try_recv() {
                        self.on_command(command);
                    }
                }
                () = &mut timer.sleep, if timer.is_set => {
                    timer.is_set = false;
                    let now = clock::now();
                    match idle_since {
                        None => self.pipeline.on_time(now),
                        Some(since) if since + IDLE_MAX <= now => {
                            call = None;
                            self.pipeline.on_call_left();
                            if self.ends_when_idle {
                                self.commands.close();
                            }
                        }
                        Some(_) => {}
                    }
                }
            }
        }
    }

    /// Sends the batches that may be sent. Opens a call if there is no open one.
    fn send(&mut self, now: Instant, call: &mut Option<Call>) {
        if call.is_none() {
            if !self.pipeline.wants_call(now) {
                return;
            }
            *call = Some(Call::open(self.channel.clone()));
        }
        let Some(call) = call else { return };
        while let Some(request) = self.pipeline.next_request(now) {
            // If the call is broken, its reply will say so.
            let _ = call.requests.try_send(request);
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Publish(item) => self.pipeline.accept(item),
            Command::Flush(reply) => self.pipeline.flush(reply),
            Command::Close => self.commands.close(),
        }
    }

    fn on_reply(&mut self, reply: Result<v1::PublishReply, Status>, call: &mut Option<Call>) {
        let now = clock::now();
        let status = match reply {
            Ok(reply) => {
                let mut confirmations = reply.confirmations.into_iter();
                if confirmations.all(|it| self.pipeline.on_confirmation(now, it).is_ok()) {
                    return;
                }
                Status::internal("the server confirmed a batch that it was not sent")
            }
            Err(status) => status,
        };
        *call = None;
        let error = CallError::from(status);
        tracing::debug!(error = in_words(&error), "a call that publishes has ended");
        match error {
            error @ CallError::Unreachable(_) => self.pipeline.on_call_ended(now, false, in_words(&error)),
            CallError::Refused { kind, detail, advice: crate::Advice::FixRequest } => {
                let refusal = Refusal::from_kind(kind);
                self.pipeline.on_call_refused(&PublishError::Refused { refusal, detail });
            }
            error => self.pipeline.on_call_ended(now, true, in_words(&error)),
        }
    }
}

async fn reply(call: &mut Option<Call>) -> Result<v1::PublishReply, Status> {
    match call {
        Some(call) => call.reply().await,
        None => std::future::pending().await,
    }
}

/// One timer for everything. Its deadline mostly moves further away with each batch, so it is reset only when the
/// deadline comes nearer; otherwise it fires once too early, and is reset then.
struct Timer {
    sleep: Pin<Box<Sleep>>,
    is_set: bool,
}

impl Timer {
    fn set(&mut self, at: Option<Instant>) {
        let Some(at) = at else {
            self.is_set = false;
            return;
        };
        if !self.is_set || at < self.sleep.deadline() {
            self.sleep.as_mut().reset(at);
            self.is_set = true;
        }
    }
}
