//! Transactions.

use axum::http::{HeaderMap, StatusCode};
use forebay_broker::api::each_outcome;
use forebay_wire::json;

use super::consume::{action, outcome};
use super::failure::Failure;
use super::live::Reply;
use super::message;
use super::request::{Entered, Messages, NoQuery};
use crate::native::problem::Refusal;
use crate::native::service::{Terms, Transaction, group_name, stream_name};

pub(super) async fn commit(
    Entered(service): Entered,
    _: NoQuery,
    headers: HeaderMap,
    Messages(request, _room): Messages<json::TransactionRequest>,
) -> Result<Reply<json::TransactionReply>, Failure> {
    let json::TransactionRequest { settle, publish } = request;
    let (moment, trace) = (service.broker().clock().moment(), message::trace(&headers));
    let mut transaction = Transaction::default();
    let mut leases = Vec::with_capacity(settle.len());
    for (n, part) in settle.into_iter().enumerate() {
        let at = |refusal: Refusal| refusal.within(format_args!("settle[{n}]"));
        let stream = stream_name(&part.stream).map_err(at)?;
        let group = group_name(&part.group).map_err(at)?;
        let (delay, rest) = (part.delay.map(|span| span.0), part.rest.map(|span| span.0));
        let terms = Terms { action: action(&part.action), delay, reason: part.reason, rest };
        transaction.settle(stream, group, part.leases.clone(), terms)?;
        leases.push(part.leases);
    }
    let mut messages = Vec::with_capacity(publish.len());
    for (n, part) in publish.into_iter().enumerate() {
        let at = |refusal: Refusal| refusal.within(format_args!("publish[{n}]"));
        let stream = stream_name(&part.stream).map_err(at)?;
        let batch = message::batch(moment, &part.messages, &trace).map_err(at)?;
        transaction.publish(stream, batch, part.expect_last_seq)?;
        messages.push(part.messages);
    }
    let committed = service.commit(transaction).await?;
    let settled = leases.into_iter().zip(&committed.outcomes).map(|(leases, outcomes)| {
        let result = |(lease, settled)| json::SettleResult { lease, outcome: outcome(settled) };
        json::SettleReply { results: leases.into_iter().zip(each_outcome(outcomes)).map(result).collect() }
    });
    let published = messages.into_iter().zip(&committed.published);
    let published = published
        .map(|(messages, published)| json::PublishReply { results: message::results(messages, published) });
    let reply = json::TransactionReply {
        settled: settled.collect(),
        published: published.collect(),
        already_committed: committed.again,
    };
    Ok(Reply(StatusCode::OK, reply))
}
