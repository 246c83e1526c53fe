//! The calls of programs that poll.

use std::time::Duration;

use forebay_broker::api::Hold;
use forebay_wire::v1;

use super::convert;
use super::request::{names, some};
use crate::native::limits::GRPC_REPLY_BYTES_MAX;
use crate::native::service::{Answer, Service, Wish};

pub(super) async fn receive(
    service: Service,
    request: v1::ReceiveRequest,
) -> Answer<(v1::ReceiveReply, Hold)> {
    let (stream, group) = names(&request.stream, &request.group)?;
    let wish = Wish {
        consumer: request.consumer,
        max: some(request.max),
        bytes: GRPC_REPLY_BYTES_MAX,
        wait: Duration::from_millis(request.wait_ms),
        timeout: request.timeout_ms.map(Duration::from_millis),
    };
    let (taken, hold) = service.receive(stream, group, wish).await?;
    let messages: Answer<Vec<v1::Received>> = taken
        .into_iter()
        .map(|(lease, delivered)| {
            Ok(v1::Received {
                lease,
                seq: delivered.lease.seq.0,
                attempt: delivered.attempt.0,
                deadline_us: delivered.deadline.0,
                message: Some(convert::delivered(&delivered)?),
                redelivered: delivered.redelivered,
            })
        })
        .collect();
    Ok((v1::ReceiveReply { messages: messages? }, hold))
}

pub(super) async fn settle(service: Service, request: v1::SettleRequest) -> Answer<v1::SettleReply> {
    let (stream, group) = names(&request.stream, &request.group)?;
    let v1::SettleRequest { leases, action, delay_ms, reason, move_to, rest_ms, .. } = request;
    let terms = convert::settle_terms(action, delay_ms, reason, &move_to, rest_ms)?;
    let settled = service.settle(stream, group, &leases, terms).await?;
    Ok(v1::SettleReply { outcomes: settled.iter().map(|one| convert::outcome(*one).into()).collect() })
}
