//! Transactions: leases that are settled and messages that are published, all of it or nothing. The streaming call of
//! gRPC takes its transactions through [`Transaction`] too.

use std::sync::Arc;

use forebay_broker::api::{
    Batch, Bundle, CallError, Committed, Consumer, LeaseRun, PublishOptions, Settlement, Verb,
};
use forebay_core::types::{GroupName, StreamName, Timestamp};

use super::{Answer, Service, Terms, position};
use crate::native::limits::{LEASES_MAX, TRANSACTION_PARTS_MAX};
use crate::native::problem::Refusal;

/// A transaction, part by part. Checks each part as it is added.
#[derive(Default)]
pub(in crate::native) struct Transaction {
    /// None before the first part.
    bundle: Option<Bundle>,
    streams: Vec<Arc<StreamName>>,
    settlements: usize,
    leases: usize,
}

/// The settlement of some terms, which has to end leases.
fn settlement(terms: Terms<'_>) -> Answer<Settlement> {
    let settlement = terms.settlement()?;
    match settlement.verb {
        Verb::Extend { .. } => {
            Err(Refusal::field("action", "must settle the leases: an extension settles nothing"))
        }
        _ => Ok(settlement),
    }
}

impl Transaction {
    /// Adds to the bundle, which is in the shard of the first stream that is named.
    fn add(&mut self, stream: &StreamName, add: impl FnOnce(Bundle) -> Bundle) {
        let bundle = self.bundle.take().unwrap_or_else(|| Bundle::beside(stream.clone()));
        self.bundle = Some(add(bundle));
    }

    /// Leases that were received, by their texts.
    pub(in crate::native) fn settle(
        &mut self,
        stream: StreamName,
        group: GroupName,
        leases: Vec<String>,
        terms: Terms<'_>,
    ) -> Answer<()> {
        let at = self.settlements;
        let settlement = settlement(terms).map_err(|refusal| refusal.within(format_args!("settle[{at}]")))?;
        self.count(leases.len())?;
        self.add(&stream.clone(), |bundle| bundle.settle(stream, group, leases, settlement));
        Ok(())
    }

    /// Leases of a connected consumer of this stream.
    pub(in crate::native) fn settle_held(
        &mut self,
        stream: &StreamName,
        consumer: &Consumer,
        leases: Vec<LeaseRun>,
        settlement: Settlement,
    ) -> Answer<()> {
        self.count(leases.iter().fold(0usize, |sum, run| sum.saturating_add(run.count as usize)))?;
        self.add(stream, |bundle| bundle.settle_held(consumer, leases, settlement));
        Ok(())
    }

    fn count(&mut self, leases: usize) -> Answer<()> {
        let at = self.settlements;
        let all = self.leases.saturating_add(leases);
        if leases == 0 || all > LEASES_MAX {
            let rule = format!("must have between 1 and {LEASES_MAX} entries in the whole transaction");
            return Err(Refusal::value(format!("settle[{at}].leases"), rule, all));
        }
        (self.settlements, self.leases) = (at + 1, all);
        if self.settlements > TRANSACTION_PARTS_MAX {
            let rule = format!("must have at most {TRANSACTION_PARTS_MAX} parts");
            return Err(Refusal::value("settle", rule, self.settlements));
        }
        Ok(())
    }

    pub(in crate::native) fn publish(
        &mut self,
        stream: StreamName,
        batch: Batch,
        expect_last: Option<u64>,
    ) -> Answer<()> {
        let at = self.streams.len();
        let stream = Arc::new(stream);
        if self.streams.contains(&stream) {
            let rule = "must not be given twice";
            return Err(Refusal::value(format!("publish[{at}].stream"), rule, &*stream));
        }
        self.streams.push(stream.clone());
        if self.streams.len() > TRANSACTION_PARTS_MAX {
            let rule = format!("must have at most {TRANSACTION_PARTS_MAX} parts");
            return Err(Refusal::value("publish", rule, self.streams.len()));
        }
        let options = PublishOptions { expect_last: expect_last.map(position), ..PublishOptions::default() };
        self.add(&stream.clone(), |bundle| bundle.publish(stream, batch, options));
        Ok(())
    }

    /// The bundle for the broker, and the names that its refusals are told with.
    pub(in crate::native) fn finish(self) -> Answer<(Bundle, Vec<Arc<StreamName>>)> {
        let Transaction { bundle, streams, .. } = self;
        let bundle = bundle.ok_or_else(|| Refusal::field("settle", "or publish must be given"))?;
        Ok((bundle, streams))
    }
}

/// Why a transaction was not done. `streams` are those that it publishes to.
pub(in crate::native) fn not_committed(
    now: Timestamp,
    error: &CallError,
    streams: &[Arc<StreamName>],
) -> Refusal {
    match error {
        CallError::NotStored { nth, error } => {
            let refusal = Refusal::of_publish(now, error);
            let refusal = match refusal.field {
                Some(_) => refusal.within(format_args!("publish[{nth}]")),
                None => refusal.with_field(format!("publish[{nth}]")),
            };
            match streams.get(*nth) {
                Some(stream) => refusal.with_fact("stream", stream),
                None => refusal,
            }
        }
        CallError::NotCurrent { nth, at, seq, .. } => {
            let refusal = Refusal::of_call(now, error).with_field(format!("settle[{nth}].leases[{at}]"));
            match seq {
                Some(seq) => refusal.with_fact("seq", seq),
                None => refusal,
            }
        }
        error => Refusal::of_call(now, error),
    }
}

impl Service {
    /// Does all of a transaction or nothing, and waits until it is durable.
    pub(in crate::native) async fn commit(&self, transaction: Transaction) -> Answer<Committed> {
        let (bundle, streams) = transaction.finish()?;
        let committed = self.caller().commit(bundle).await;
        committed.map_err(|error| not_committed(self.now(), &error, &streams))
    }
}
