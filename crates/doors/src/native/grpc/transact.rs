//! Transactions.

use forebay_broker::api::{Committed, Consumer, Moment, each_outcome};
use forebay_core::types::{Limits, StreamName};
use forebay_wire::v1;

use super::convert;
use super::request::names;
use crate::native::problem::Refusal;
use crate::native::service::{Answer, Service, Transaction, stream_name};
use crate::native::trace::Trace;

pub(super) async fn commit(
    service: Service,
    request: v1::CommitRequest,
    trace: Trace,
) -> Answer<v1::CommitReply> {
    let v1::CommitRequest { settle, publish } = request;
    let moment = service.broker().clock().moment();
    let mut transaction = Transaction::default();
    for (n, part) in settle.into_iter().enumerate() {
        let at = |refusal: Refusal| refusal.within(format_args!("settle[{n}]"));
        let (stream, group) = names(&part.stream, &part.group).map_err(at)?;
        let v1::SettleRequest { leases, action, delay_ms, reason, move_to, rest_ms, .. } = part;
        let terms = convert::settle_terms(action, delay_ms, reason, &move_to, rest_ms).map_err(at)?;
        transaction.settle(stream, group, leases, terms)?;
    }
    add(&mut transaction, moment, &publish, &trace)?;
    let committed = service.commit(transaction).await?;
    let settled = committed.outcomes.iter().map(|outcomes| v1::SettleReply {
        outcomes: each_outcome(outcomes).map(|one| convert::outcome(one).into()).collect(),
    });
    let settled = settled.collect();
    let already_committed = committed.again;
    Ok(v1::CommitReply { settled, published: published(committed), already_committed })
}

/// Adds messages for each of the streams.
fn add(
    transaction: &mut Transaction,
    moment: Moment,
    publish: &[v1::Publication],
    trace: &Trace,
) -> Answer<()> {
    for (n, part) in publish.iter().enumerate() {
        let at = |refusal: Refusal| refusal.within(format_args!("publish[{n}]"));
        let stream = stream_name(&part.stream).map_err(at)?;
        let batch = convert::batch(moment, &part.messages, trace).map_err(at)?;
        transaction.publish(stream, batch, part.expect_last_seq)?;
    }
    Ok(())
}

/// A transaction of a connected consumer, from its wire form.
pub(super) fn of_consumer(
    request: v1::Commit,
    stream: &StreamName,
    consumer: &Consumer,
    limits: &Limits,
    moment: Moment,
    trace: &Trace,
) -> Answer<Transaction> {
    let v1::Commit { settle, publish, .. } = request;
    let mut transaction = Transaction::default();
    for (n, wire) in settle.into_iter().enumerate() {
        let at = |refusal: Refusal| refusal.within(format_args!("settle[{n}]"));
        if wire.action == i32::from(v1::settlement::Action::Extend) {
            let rule = "must settle the leases: an extension settles nothing";
            return Err(at(Refusal::field("action", rule)));
        }
        let read = convert::settlement(wire, limits).map_err(at)?;
        transaction.settle_held(stream, consumer, read.leases, read.settlement)?;
    }
    add(&mut transaction, moment, &publish, trace)?;
    Ok(transaction)
}

/// Where the messages of each batch are.
pub(super) fn published(committed: Committed) -> Vec<v1::Confirmation> {
    committed.published.into_iter().map(|published| convert::confirmation(0, published)).collect()
}
