//! One `Consume` call in the terms of the wire, shared by the plain consumer and the worker.

use std::time::Duration;

use forebay_wire::v1;
use forebay_wire::v1::forebay_client::ForebayClient;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

use super::Outcome;
use crate::channel::Channel;

/// Names a lease: one delivery of a message to one consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lease {
    pub(crate) epoch: u32,
    pub(crate) seq: u64,
    pub(crate) grant: u64,
}

/// An open call.
///
/// The queue of requests has no limit of its own. It holds answers for messages in hand, whose number the credit
/// limits, and extensions.
pub(crate) struct Session {
    pub(crate) requests: mpsc::UnboundedSender<v1::ConsumeRequest>,
    pub(crate) replies: Streaming<v1::ConsumeReply>,
    pub(crate) credit_max: u32,
    /// The first reply, which may have deliveries already.
    pub(crate) first: v1::ConsumeReply,
}

impl Session {
    pub(crate) async fn open(
        mut client: ForebayClient<Channel>,
        open: v1::Open,
        credit_bytes: Option<u64>,
    ) -> Result<Session, Status> {
        let (requests, sent) = mpsc::unbounded_channel();
        let request = v1::ConsumeRequest { open: Some(open), credit_bytes, ..Default::default() };
        let _ = requests.send(request);
        let mut replies = client.consume(UnboundedReceiverStream::new(sent)).await?.into_inner();
        let first = replies.message().await?.ok_or_else(|| Status::unavailable("the call ended at once"))?;
        let credit_max = first.opened.as_ref().map_or(u32::MAX, |opened| opened.credit_max);
        Ok(Session { requests, replies, credit_max, first })
    }
}

/// A message with its lease.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) lease: Lease,
    pub(crate) attempt: u32,
    pub(crate) redelivered: bool,
    /// When the lease runs out, by our own clock.
    pub(crate) deadline: Instant,
    /// The same by the server's clock.
    pub(crate) deadline_us: u64,
    pub(crate) message: v1::Message,
}

/// The messages of a reply, one by one.
pub(crate) fn arrived(now: Instant, deliveries: v1::Deliveries) -> impl Iterator<Item = Arrived> {
    let v1::Deliveries { epoch, runs, messages, now_us, .. } = deliveries;
    let mut messages = messages.into_iter();
    runs.into_iter().flat_map(move |run| {
        let count = usize::try_from(run.count.max(1)).unwrap_or(usize::MAX);
        let deadline = now + Duration::from_micros(run.deadline_us.saturating_sub(now_us));
        let of_run: Vec<v1::Message> = messages.by_ref().take(count).collect();
        of_run.into_iter().zip(0..).map(move |(message, n)| Arrived {
            lease: Lease { epoch, seq: run.first_seq + n, grant: run.first_grant + n },
            attempt: run.attempt,
            redelivered: run.redelivered,
            deadline,
            deadline_us: run.deadline_us,
            message,
        })
    })
}

/// Leases as the wire has them: those that follow each other are one run. All are of one epoch.
pub(crate) fn runs(leases: impl IntoIterator<Item = Lease>) -> Vec<v1::LeaseRun> {
    let mut runs: Vec<v1::LeaseRun> = Vec::new();
    for lease in leases {
        match runs.last_mut() {
            Some(run)
                if run.first_seq + u64::from(run.count) == lease.seq
                    && run.first_grant + u64::from(run.count) == lease.grant =>
            {
                run.count += 1;
            }
            _ => runs.push(v1::LeaseRun { first_seq: lease.seq, first_grant: lease.grant, count: 1 }),
        }
    }
    runs
}

/// The outcomes of an answer, one for each lease.
pub(crate) fn outcomes(settled: &v1::Settled) -> impl Iterator<Item = Outcome> {
    settled.outcomes.iter().flat_map(|run| (0..run.count.max(1)).map(|_| run.outcome().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(seq: u64, grant: u64) -> Lease {
        Lease { epoch: 1, seq, grant }
    }

    #[test]
    fn leases_that_follow_each_other_are_one_run() {
        let runs = runs([lease(5, 9), lease(6, 10), lease(7, 20), lease(9, 21), lease(10, 22)]);
        let told: Vec<_> = runs.iter().map(|run| (run.first_seq, run.first_grant, run.count)).collect();
        assert_eq!(told, [(5, 9, 2), (7, 20, 1), (9, 21, 2)]);
    }

    #[test]
    fn a_reply_is_taken_apart_into_messages() {
        let message = |body: &'static str| v1::Message { body: body.into(), ..Default::default() };
        let run = |first_seq, count, attempt| v1::DeliveryRun {
            first_seq,
            first_grant: first_seq + 100,
            count,
            attempt,
            deadline_us: 31_000_000,
            redelivered: attempt > 1,
        };
        let deliveries = v1::Deliveries {
            epoch: 3,
            runs: vec![run(5, 2, 1), run(9, 0, 4)],
            messages: vec![message("a"), message("b"), message("c")],
            now_us: 1_000_000,
            ..v1::Deliveries::default()
        };
        let now = Instant::now();
        let told: Vec<_> = arrived(now, deliveries)
            .map(|of| (of.lease.seq, of.redelivered, of.attempt, of.message.body, of.deadline - now))
            .collect();
        let lasts = Duration::from_secs(30);
        let expected: [(u64, bool, u32, bytes::Bytes, Duration); 3] = [
            (5, false, 1, "a".into(), lasts),
            (6, false, 1, "b".into(), lasts),
            (9, true, 4, "c".into(), lasts),
        ];
        assert_eq!(told, expected);
    }
}
