//! A message that a consumer holds, and the ways to settle it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_wire::v1;
use forebay_wire::v1::outcome_run::Outcome as WireOutcome;
use forebay_wire::v1::settlement::Action;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use super::session::{Arrived, Lease, runs};
use crate::error::CallError;
use crate::message::{StoredMessage, millis};

/// A message that a [`Consumer`](super::Consumer) holds until it is settled or its lease runs out.
///
/// Dereferences to the [`StoredMessage`], which has the body, the id, the key, the headers and so on.
///
/// To drop a delivery does not settle it: its lease runs out, and the message is delivered again.
pub struct Delivery {
    message: StoredMessage,
    attempt: u32,
    redelivered: bool,
    deadline: Instant,
    deadline_at: SystemTime,
    pub(super) lease: Lease,
    call: Arc<Call>,
}

impl Delivery {
    pub(super) fn new(arrived: Arrived, call: &Arc<Call>) -> Delivery {
        Delivery {
            message: StoredMessage::new(arrived.lease.seq, arrived.message),
            attempt: arrived.attempt,
            redelivered: arrived.redelivered,
            deadline: arrived.deadline.into_std(),
            deadline_at: UNIX_EPOCH + Duration::from_micros(arrived.deadline_us),
            lease: arrived.lease,
            call: Arc::clone(call),
        }
    }

    /// How often the message has been delivered. The first delivery is 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether the message was delivered before, to any consumer of the group, also if that does not count as an
    /// attempt, because the consumer gave it back. After a crash of the server, a delivery shortly before it may be
    /// forgotten.
    pub fn is_redelivered(&self) -> bool {
        self.redelivered
    }

    /// When the lease runs out, unless it is extended.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The same by the server's clock.
    pub fn deadline_at(&self) -> SystemTime {
        self.deadline_at
    }

    /// Acknowledges the message: it is done and will not be delivered again.
    pub async fn ack(&self) -> Result<Outcome, CallError> {
        self.settle(Settlement::ack()).await
    }

    /// Reports that processing failed. The message is delivered again by the group's retry policy; once its retries
    /// are used up it is parked, skipped or moved, as the group says. The reason is kept with the message.
    ///
    /// To set the delay yourself use [`settle`](Delivery::settle) with [`Settlement::retry`].
    pub async fn retry(&self, reason: impl Into<String>) -> Result<Outcome, CallError> {
        self.settle(Settlement::retry().reason(reason)).await
    }

    /// Parks the message: it is set aside with this reason until an operator replays or discards it.
    pub async fn park(&self, reason: impl Into<String>) -> Result<Outcome, CallError> {
        self.settle(Settlement::park().reason(reason)).await
    }

    /// Skips the message: it is settled without being done.
    pub async fn skip(&self) -> Result<Outcome, CallError> {
        self.settle(Settlement::skip()).await
    }

    /// Gives the message back. It is delivered again at once, and this delivery does not count as an attempt.
    pub async fn give_back(&self) -> Result<Outcome, CallError> {
        self.settle(Settlement::give_back()).await
    }

    /// Settles the message in this group and publishes it to another stream, in one step.
    pub async fn move_to(&self, stream: impl Into<String>) -> Result<Outcome, CallError> {
        self.settle(Settlement::move_to(stream)).await
    }

    /// Extends the lease: it runs out this long from now. The message stays with this consumer.
    pub async fn extend(&self, by: Duration) -> Result<Outcome, CallError> {
        self.settle(Settlement::extend(by)).await
    }

    /// Settles the message in any way.
    pub async fn settle(&self, how: Settlement) -> Result<Outcome, CallError> {
        let outcomes = self.call.settle(vec![self.lease], how).await?;
        Ok(outcomes.into_iter().next().unwrap_or(Outcome::Other))
    }
}

impl Deref for Delivery {
    type Target = StoredMessage;

    fn deref(&self) -> &StoredMessage {
        &self.message
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery").field("message", &self.message).field("attempt", &self.attempt).finish()
    }
}

/// The result of settling a message or extending its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The message is done.
    Acked,
    /// The message will be delivered again.
    Retrying,
    /// The message is parked: as asked, or because its retries are used up.
    Parked,
    /// The message is settled without being done.
    Skipped,
    /// The message was given back, and the delivery does not count as an attempt.
    Returned,
    /// The message is on its way to another stream.
    Moving,
    /// The message is not delivered again, because its time to live is over.
    Expired,
    /// The lease was extended.
    Extended,
    /// The lease had run out, or was lost with the connection. Nothing was changed, and the message may be with
    /// another consumer.
    NotYours,
    /// The server answered with an outcome that this version of the SDK does not know.
    Other,
}

impl From<WireOutcome> for Outcome {
    fn from(of: WireOutcome) -> Outcome {
        match of {
            WireOutcome::Acked => Outcome::Acked,
            WireOutcome::Retrying => Outcome::Retrying,
            WireOutcome::Parked => Outcome::Parked,
            WireOutcome::Skipped => Outcome::Skipped,
            WireOutcome::Returned => Outcome::Returned,
            WireOutcome::Moving => Outcome::Moving,
            WireOutcome::Expired => Outcome::Expired,
            WireOutcome::Extended => Outcome::Extended,
            WireOutcome::NotYours => Outcome::NotYours,
            WireOutcome::Unspecified => Outcome::Other,
        }
    }
}

/// How to settle messages, or how long to extend their leases.
///
/// ```
/// use std::time::Duration;
/// use forebay_client::consumer::Settlement;
///
/// let later = Settlement::retry().after(Duration::from_secs(60)).reason("the mail server is down");
/// # let _ = later;
/// ```
#[derive(Debug, Clone, Default)]
pub struct Settlement {
    action: Action,
    delay: Option<Duration>,
    reason: String,
    move_to: String,
    rest: Option<Duration>,
}

impl Settlement {
    fn new(action: Action) -> Settlement {
        Settlement { action, ..Settlement::default() }
    }

    /// The message is done.
    pub fn ack() -> Settlement {
        Settlement::new(Action::Ack)
    }

    /// Processing failed. The message is delivered again by the group's retry policy.
    pub fn retry() -> Settlement {
        Settlement::new(Action::Retry)
    }

    /// The message is set aside until an operator replays or discards it.
    pub fn park() -> Settlement {
        Settlement::new(Action::Park)
    }

    /// The message is settled without being done.
    pub fn skip() -> Settlement {
        Settlement::new(Action::Skip)
    }

    /// The message goes back to the group, and the delivery does not count as an attempt.
    pub fn give_back() -> Settlement {
        Settlement::new(Action::Return)
    }

    /// The message is settled here and published to another stream, in one step.
    pub fn move_to(stream: impl Into<String>) -> Settlement {
        Settlement { move_to: stream.into(), ..Settlement::new(Action::Move) }
    }

    /// The consumer keeps the message, and its lease runs out this long from now.
    pub fn extend(by: Duration) -> Settlement {
        Settlement { delay: Some(by), ..Settlement::new(Action::Extend) }
    }

    /// Delivers the message again after this long, for [`retry`](Settlement::retry) and
    /// [`give_back`](Settlement::give_back).
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Settlement {
        self.delay = Some(delay);
        self
    }

    /// Sets a reason for people. It is kept with the message's failures.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Settlement {
        self.reason = reason.into();
        self
    }

    /// Pauses the whole group: it delivers nothing to any consumer for this long.
    #[must_use]
    pub fn rest(mut self, rest: Duration) -> Settlement {
        self.rest = Some(rest);
        self
    }

    pub(crate) fn into_wire(self, ticket: u64, leases: impl IntoIterator<Item = Lease>) -> v1::Settlement {
        let mut epoch = 0;
        let leases = runs(leases.into_iter().inspect(|lease| epoch = lease.epoch));
        v1::Settlement {
            ticket,
            action: self.action.into(),
            epoch,
            leases,
            delay_ms: self.delay.map(millis),
            reason: self.reason,
            move_to: self.move_to,
            rest_ms: self.rest.map(millis),
        }
    }
}

pub(super) type Waiting = oneshot::Sender<Result<Vec<Outcome>, CallError>>;

/// The sending half of a consumer's call, shared with everything that the consumer delivered.
pub(super) struct Call {
    requests: mpsc::UnboundedSender<v1::ConsumeRequest>,
    tickets: mpsc::UnboundedSender<(u64, Waiting)>,
    ticket: AtomicU64,
}

impl Call {
    pub(super) fn new(
        requests: mpsc::UnboundedSender<v1::ConsumeRequest>,
        tickets: mpsc::UnboundedSender<(u64, Waiting)>,
    ) -> Call {
        Call { requests, tickets, ticket: AtomicU64::new(1) }
    }

    pub(super) fn send(&self, request: v1::ConsumeRequest) {
        // If the call is over, the caller that waits for its answers is told.
        let _ = self.requests.send(request);
    }

    pub(super) async fn settle(
        &self,
        leases: Vec<Lease>,
        how: Settlement,
    ) -> Result<Vec<Outcome>, CallError> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let (reply, answer) = oneshot::channel();
        let ticket = self.ticket.fetch_add(1, Ordering::Relaxed);
        // The ticket is handed over before the request, so that it is known when the answer comes.
        let _ = self.tickets.send((ticket, reply));
        let settlements = vec![how.into_wire(ticket, leases)];
        self.send(v1::ConsumeRequest { settlements, ..Default::default() });
        answer.await.unwrap_or_else(|_| Err(Status::unavailable("the consumer is closed").into()))
    }
}
