//! A plain consumer: a stream of deliveries, each of which the program settles itself.
//!
//! Most programs want a [worker](crate::worker) instead, which runs handlers, renews leases and reconnects.

mod delivery;
mod session;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use forebay_wire::v1;
use futures_util::Stream;
use tokio::sync::mpsc;

use crate::client::Client;
use crate::clock;
use crate::error::{Advice, CallError, kind_of_code};

use delivery::{Call, Waiting};
pub use delivery::{Delivery, Outcome, Settlement};
pub(crate) use session::{Lease, Session, arrived, outcomes};

/// The byte limit of a consumer that sets none, so that no reply becomes larger than can be read.
const CREDIT_BYTES: u64 = 16 << 20;
const CREDIT: u32 = 64;

impl Client {
    /// Consumes as one member of a group. The builder opens the consumer.
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
    /// while let Some(delivery) = consumer.next().await {
    ///     let delivery = delivery?;
    ///     assert_eq!(delivery.body(), "hello");
    ///     delivery.ack().await?;
    ///     # break;
    /// }
    /// consumer.close().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn consumer(&self, stream: impl Into<String>, group: impl Into<String>) -> ConsumerBuilder {
        let open = v1::Open {
            stream: stream.into(),
            group: group.into(),
            consumer: "forebay-client".to_owned(),
            credit: CREDIT,
            ..Default::default()
        };
        ConsumerBuilder { client: self.clone(), open, credit_bytes: Some(CREDIT_BYTES) }
    }
}

/// Settings of a [`Consumer`]. Made by [`Client::consumer`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `open` is called"]
pub struct ConsumerBuilder {
    client: Client,
    open: v1::Open,
    credit_bytes: Option<u64>,
}

impl ConsumerBuilder {
    /// Sets the name that statistics and failures show. The default is `forebay-client`.
    pub fn name(mut self, name: impl Into<String>) -> ConsumerBuilder {
        self.open.consumer = name.into();
        self
    }

    /// Sets how many messages the consumer holds at a time at most (its prefetch). The default is 64.
    pub fn credit(mut self, messages: u32) -> ConsumerBuilder {
        self.open.credit = messages;
        self
    }

    /// Sets how many bytes the consumer holds at a time at most; `None` is no limit. One message is always delivered,
    /// however large it is. The default is 16 MiB.
    pub fn credit_bytes(mut self, bytes: impl Into<Option<u64>>) -> ConsumerBuilder {
        self.credit_bytes = bytes.into();
        self
    }

    /// Sets how long the leases of this consumer last. The default is the group's `message_timeout`.
    pub fn lease(mut self, lease: std::time::Duration) -> ConsumerBuilder {
        self.open.lease_ms = Some(crate::message::millis(lease));
        self
    }

    /// Sets the rank of the consumer. Consumers of a higher rank are served first while they have credit; the others
    /// get the rest. Groups with the strategy `pinned` ignore it. The default is 0.
    pub fn rank(mut self, rank: i32) -> ConsumerBuilder {
        self.open.rank = rank;
        self
    }

    /// Joins the group. Fails if there is no such group, or if the server cannot be reached.
    pub async fn open(self) -> Result<Consumer, CallError> {
        let session = Session::open(self.client.grpc(), self.open, self.credit_bytes).await?;
        let (deliveries, received) = mpsc::unbounded_channel();
        let (tickets, waiting) = mpsc::unbounded_channel();
        let call = Arc::new(Call::new(session.requests.clone(), tickets));
        tokio::spawn(read(session, call.clone(), deliveries, waiting));
        let batch = Vec::new().into_iter();
        Ok(Consumer { call, received, batch, credit_bytes: self.credit_bytes })
    }
}

/// A member of a group, for as long as it lives.
///
/// A consumer is a [`Stream`] of single deliveries. [`next`](Consumer::next) is the same without a trait to import, and
/// [`next_batch`](Consumer::next_batch) has all messages that arrived together.
///
/// Leases belong to the connection. When it breaks, or when the consumer is dropped without [`close`](Consumer::close),
/// unsettled messages are delivered to other consumers and the delivery counts as an attempt. A consumer does not
/// reconnect; a [worker](crate::Worker) does.
pub struct Consumer {
    call: Arc<Call>,
    received: mpsc::UnboundedReceiver<Result<Vec<Delivery>, CallError>>,
    /// The rest of the messages that arrived together last.
    batch: std::vec::IntoIter<Delivery>,
    credit_bytes: Option<u64>,
}

impl Consumer {
    /// The next message. `None` once the server has ended the call.
    pub async fn next(&mut self) -> Option<Result<Delivery, CallError>> {
        std::future::poll_fn(|cx| self.poll_delivery(cx)).await
    }

    /// The next messages that arrived together, at least one. `None` once the server has ended the call.
    pub async fn next_batch(&mut self) -> Option<Result<Vec<Delivery>, CallError>> {
        if self.batch.len() > 0 {
            return Some(Ok(self.batch.by_ref().collect()));
        }
        self.received.recv().await
    }

    fn poll_delivery(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Delivery, CallError>>> {
        loop {
            if let Some(delivery) = self.batch.next() {
                return Poll::Ready(Some(Ok(delivery)));
            }
            match ready!(self.received.poll_recv(cx)) {
                Some(Ok(batch)) => self.batch = batch.into_iter(),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }

    /// Changes how many messages the consumer holds at a time at most. With zero nothing more is delivered. The limit
    /// in bytes stays as it is.
    pub fn set_credit(&self, messages: u32) {
        let (credit, credit_bytes) = (Some(messages), self.credit_bytes);
        self.call.send(v1::ConsumeRequest { credit, credit_bytes, ..Default::default() });
    }

    /// Acknowledges messages together, which is cheaper than one by one; see [`settle`](Consumer::settle).
    pub fn ack(
        &self,
        of: &[Delivery],
    ) -> impl Future<Output = Result<Vec<Outcome>, CallError>> + Send + use<> {
        self.settle(of, Settlement::ack())
    }

    /// Settles messages together, or extends their leases. Resolves to an outcome for each message, in their order.
    /// [`Outcome::NotYours`] means that the lease had run out and nothing was changed.
    ///
    /// Like every future it does nothing until it is awaited. It borrows nothing, so it can be spawned.
    pub fn settle(
        &self,
        of: &[Delivery],
        how: Settlement,
    ) -> impl Future<Output = Result<Vec<Outcome>, CallError>> + Send + use<> {
        let call = Arc::clone(&self.call);
        let leases: Vec<Lease> = of.iter().map(|delivery| delivery.lease).collect();
        async move { call.settle(leases, how).await }
    }

    /// Leaves the group. Unsettled messages are given back, and their delivery does not count as an attempt.
    pub async fn close(mut self) -> Result<(), CallError> {
        self.call.send(v1::ConsumeRequest { goodbye: true, ..Default::default() });
        while let Some(batch) = self.received.recv().await {
            batch?;
        }
        Ok(())
    }
}

impl Stream for Consumer {
    type Item = Result<Delivery, CallError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_delivery(cx)
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}

fn refused(problem: &v1::Problem) -> CallError {
    let (kind, advice) = (kind_of_code(problem.code()), Advice::from_wire(problem.retry()));
    CallError::Refused { kind, detail: problem.detail.clone(), advice }
}

/// Reads until the call is over. Deliveries wait in a queue whose length the credit limits.
async fn read(
    mut session: Session,
    call: Arc<Call>,
    deliveries: mpsc::UnboundedSender<Result<Vec<Delivery>, CallError>>,
    mut tickets: mpsc::UnboundedReceiver<(u64, Waiting)>,
) {
    let mut waiting: HashMap<u64, Waiting> = HashMap::new();
    let mut reply = std::mem::take(&mut session.first);
    let end = loop {
        if let Some(came) = reply.deliveries.take() {
            let batch = arrived(clock::now(), came).map(|of| Delivery::new(of, &call)).collect();
            let _ = deliveries.send(Ok(batch));
        }
        for settled in &reply.settled {
            // A ticket is handed over before its request is sent.
            while !waiting.contains_key(&settled.ticket)
                && let Ok((ticket, reply)) = tickets.try_recv()
            {
                waiting.insert(ticket, reply);
            }
            let Some(reply) = waiting.remove(&settled.ticket) else { continue };
            let _ = reply.send(match &settled.problem {
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
            // The consumer was dropped.
            () = deliveries.closed() => break None,
        };
    };
    if let Some(status) = end {
        let _ = deliveries.send(Err(status.into()));
    }
}
