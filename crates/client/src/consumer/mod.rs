//! A plain consumer: messages as they come, and answers as the program likes.
//!
//! Most programs want a [worker](crate::worker) instead, which does all of this.

mod session;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use forebay_wire::v1;
use forebay_wire::v1::settlement::Action;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tonic::Status;

use crate::client::Client;
use crate::clock;
use crate::error::{Advice, CallError};
use crate::message::millis;

pub use session::Lease;
pub(crate) use session::{Arrived, Session, arrived, outcomes, runs};

/// What a consumer holds in bytes if nothing is said, so that no reply becomes larger than can be read.
const CREDIT_BYTES: u64 = 16 << 20;

/// What became of a lease that a consumer wanted to end or to prolong.
pub use forebay_wire::v1::outcome_run::Outcome;

impl Client {
    /// Begins to consume as one member of a group.
    ///
    /// ```
    /// # use forebay_test::TestServer;
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = TestServer::start().await?;
    /// # let client = forebay_client::Client::connect(server.url()).await?;
    /// use forebay_client::Message;
    ///
    /// client.create_group("emails", "senders", Default::default()).await?;
    /// client.publish("emails", Message::new("hello")).await?;
    ///
    /// let mut consumer = client.consumer("emails", "senders").credit(100).open().await?;
    /// let messages = consumer.next().await?.expect("the call is open");
    /// assert_eq!(messages[0].body(), "hello");
    /// consumer.ack(&messages).await?;
    /// consumer.goodbye().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn consumer(&self, stream: impl Into<String>, group: impl Into<String>) -> ConsumerBuilder {
        let open = v1::Open {
            stream: stream.into(),
            group: group.into(),
            consumer: "forebay-client".to_owned(),
            credit: 64,
        };
        ConsumerBuilder { client: self.clone(), open, credit_bytes: Some(CREDIT_BYTES) }
    }
}

/// Says how to consume.
#[derive(Debug, Clone)]
pub struct ConsumerBuilder {
    client: Client,
    open: v1::Open,
    credit_bytes: Option<u64>,
}

impl ConsumerBuilder {
    /// What the consumer is called in figures and failures.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> ConsumerBuilder {
        self.open.consumer = name.into();
        self
    }

    /// How many messages to hold at a time. 64 if not said.
    #[must_use]
    pub fn credit(mut self, messages: u32) -> ConsumerBuilder {
        self.open.credit = messages;
        self
    }

    /// How many bytes to hold at a time, beside the limit in messages. One message always fits. 16 MiB if not said.
    #[must_use]
    pub fn credit_bytes(mut self, bytes: u64) -> ConsumerBuilder {
        self.credit_bytes = Some(bytes);
        self
    }

    pub async fn open(self) -> Result<Consumer, CallError> {
        let session = Session::open(self.client.grpc(), self.open, self.credit_bytes).await?;
        let (deliveries, received) = mpsc::unbounded_channel();
        let (tickets, waiting) = mpsc::unbounded_channel();
        let requests = session.requests.clone();
        tokio::spawn(read(session, deliveries, waiting));
        Ok(Consumer { requests, tickets, received, ticket: 0, credit_bytes: self.credit_bytes })
    }
}

/// A message in the hands of a [`Consumer`].
#[derive(Debug)]
pub struct Delivery(Arrived);

impl Delivery {
    /// Its position in the stream.
    pub fn seq(&self) -> u64 {
        self.0.lease.seq
    }

    /// How often it has been handed out. The first time is 1.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    pub fn body(&self) -> &Bytes {
        &self.0.message.body
    }

    /// Everything else: id, key, type, headers, times.
    pub fn message(&self) -> &v1::Message {
        &self.0.message
    }

    /// When the lease lapses, unless it is extended.
    pub fn deadline(&self) -> Instant {
        self.0.deadline
    }

    pub fn lease(&self) -> Lease {
        self.0.lease
    }
}

/// How to end leases, or to prolong them.
#[derive(Debug, Clone, Default)]
pub struct Settlement {
    action: Action,
    delay: Option<Duration>,
    reason: String,
    move_to: String,
    rest: Option<Duration>,
}

impl Settlement {
    fn of(action: Action) -> Settlement {
        Settlement { action, ..Settlement::default() }
    }

    /// Done.
    pub fn ack() -> Settlement {
        Settlement::of(Action::Ack)
    }

    /// Offer it again, as the group's policy says.
    pub fn retry() -> Settlement {
        Settlement::of(Action::Retry)
    }

    /// Set it aside.
    pub fn park() -> Settlement {
        Settlement::of(Action::Park)
    }

    /// Never offer it again.
    pub fn skip() -> Settlement {
        Settlement::of(Action::Skip)
    }

    /// Give it back, as if it had never been handed out.
    pub fn give_back() -> Settlement {
        Settlement::of(Action::Return)
    }

    /// Settle it here and publish it to another stream.
    pub fn move_to(stream: impl Into<String>) -> Settlement {
        Settlement { move_to: stream.into(), ..Settlement::of(Action::Move) }
    }

    /// Not an end: the lease lasts for this long from now.
    pub fn extend(by: Duration) -> Settlement {
        Settlement { delay: Some(by), ..Settlement::of(Action::Extend) }
    }

    /// Offer it again after this long: for [`retry`](Settlement::retry) and [`give_back`](Settlement::give_back).
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Settlement {
        self.delay = Some(delay);
        self
    }

    /// Why, in words. Kept with the message's failures.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Settlement {
        self.reason = reason.into();
        self
    }

    /// The whole group hands out nothing for this long.
    #[must_use]
    pub fn rest(mut self, rest: Duration) -> Settlement {
        self.rest = Some(rest);
        self
    }

    /// In the words of the wire.
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

/// A member of a group, for as long as it lives.
///
/// Leases hang on the connection: when it breaks, or the consumer is dropped without a
/// [`goodbye`](Consumer::goodbye), what it held goes to others and counts as tried.
pub struct Consumer {
    requests: mpsc::UnboundedSender<v1::ConsumeRequest>,
    tickets: mpsc::UnboundedSender<(u64, Waiting)>,
    received: mpsc::UnboundedReceiver<Result<Vec<Delivery>, Status>>,
    ticket: u64,
    credit_bytes: Option<u64>,
}

type Waiting = oneshot::Sender<Result<Vec<Outcome>, CallError>>;

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}

impl Consumer {
    /// The messages that came together next. None once the call is over, which it is after a goodbye.
    pub async fn next(&mut self) -> Result<Option<Vec<Delivery>>, CallError> {
        self.received.recv().await.transpose().map_err(CallError::from)
    }

    /// From now on the consumer is willing to hold this many messages at a time. Zero takes a rest. A limit in bytes
    /// stays what it was.
    pub fn credit(&self, messages: u32) {
        let (credit, credit_bytes) = (Some(messages), self.credit_bytes);
        let _ = self.requests.send(v1::ConsumeRequest { credit, credit_bytes, ..Default::default() });
    }

    /// Acks messages; see [`settle`](Consumer::settle).
    pub fn ack(
        &mut self,
        of: &[Delivery],
    ) -> impl Future<Output = Result<Vec<Outcome>, CallError>> + Send + use<> {
        self.settle(of, Settlement::ack())
    }

    /// Ends leases, or prolongs them. It is on its way when this returns; the future has an outcome for each
    /// message, in their order. [`Outcome::NotYours`] means that the lease was over, and nothing was changed.
    pub fn settle(
        &mut self,
        of: &[Delivery],
        how: Settlement,
    ) -> impl Future<Output = Result<Vec<Outcome>, CallError>> + Send + use<> {
        let (tell, told) = oneshot::channel();
        self.ticket += 1;
        if of.is_empty() {
            let _ = tell.send(Ok(Vec::new()));
        } else {
            let settlement = how.into_wire(self.ticket, of.iter().map(|delivery| delivery.0.lease));
            let _ = self.tickets.send((self.ticket, tell));
            let request = v1::ConsumeRequest { settlements: vec![settlement], ..Default::default() };
            let _ = self.requests.send(request);
        }
        async { told.await.unwrap_or_else(|_| Err(over())) }
    }

    /// Leaves, and gives back what it still holds without costing it an attempt.
    pub async fn goodbye(mut self) -> Result<(), CallError> {
        let _ = self.requests.send(v1::ConsumeRequest { goodbye: true, ..Default::default() });
        while self.next().await?.is_some() {}
        Ok(())
    }
}

fn refused(problem: &v1::Problem) -> CallError {
    let advice = Advice::of(problem.retry());
    CallError::Refused { kind: None, detail: problem.detail.clone(), advice }
}

fn over() -> CallError {
    Status::unavailable("the call is over").into()
}

/// Reads until the call is over. Deliveries wait in a queue whose length the credit limits.
async fn read(
    mut session: Session,
    deliveries: mpsc::UnboundedSender<Result<Vec<Delivery>, Status>>,
    mut tickets: mpsc::UnboundedReceiver<(u64, Waiting)>,
) {
    let mut waiting: HashMap<u64, Waiting> = HashMap::new();
    let mut reply = std::mem::take(&mut session.first);
    let end = loop {
        if let Some(came) = reply.deliveries.take() {
            let _ = deliveries.send(Ok(arrived(clock::now(), came).map(Delivery).collect()));
        }
        for settled in &reply.settled {
            // A ticket is handed over before its request is.
            while !waiting.contains_key(&settled.ticket)
                && let Ok((ticket, tell)) = tickets.try_recv()
            {
                waiting.insert(ticket, tell);
            }
            let Some(tell) = waiting.remove(&settled.ticket) else { continue };
            let _ = tell.send(match &settled.problem {
                Some(problem) => Err(refused(problem)),
                None => Ok(outcomes(settled).collect()),
            });
        }
        reply = tokio::select! {
            reply = session.replies.message() => match reply {
                Ok(Some(reply)) => reply,
                Ok(None) => break None,
                Err(status) => break Some(status),
            },
            // The consumer was dropped, and nobody will ever answer.
            () = deliveries.closed() => break None,
        };
    };
    if let Some(status) = end {
        let _ = deliveries.send(Err(status));
    }
}
