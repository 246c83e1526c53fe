//! The calls of programs that poll: taking messages on leases that last until their deadline, and answering
//! for them.

use std::time::Duration;

use forebay_broker::api::{Caller, Receive, Settlement};
use forebay_wire::v1;
use tonic::Status;

use super::request::{CONTENT_BYTES_MAX, consumer_name, names, refused, text};
use super::{convert, settings, status};

/// Messages that one receive takes, leases that one settlement is about, and how long a receive waits.
const MESSAGES_MAX: u32 = 1_000;
const LEASES_MAX: usize = 10_000;
const WAIT_MAX: Duration = Duration::from_secs(300);

pub(super) async fn receive(caller: Caller, request: v1::ReceiveRequest) -> Result<v1::ReceiveReply, Status> {
    let (stream, group) = names(&request.stream, &request.group)?;
    consumer_name(&request.consumer)?;
    if request.max > MESSAGES_MAX {
        return Err(status::invalid(format!("max: at most {MESSAGES_MAX}. max=`{}`", request.max)));
    }
    let wait = Duration::from_millis(request.wait_ms);
    if wait > WAIT_MAX {
        return Err(status::invalid(format!("wait_ms: at most {}", WAIT_MAX.as_millis())));
    }
    let receive = Receive {
        consumer: request.consumer,
        max: request.max.max(1),
        wait,
        timeout: settings::some_duration("timeout_ms", request.timeout_ms)?,
        refuse_when_full: false,
    };
    let receiving = caller.receive(stream, group, receive).await.map_err(refused)?;
    if receiving.is_empty() {
        return Ok(v1::ReceiveReply::default());
    }
    let taken = receiving.take_within(CONTENT_BYTES_MAX);
    let messages: Result<Vec<v1::Received>, Status> = taken
        .into_iter()
        .map(|(lease, delivered)| {
            Ok(v1::Received {
                lease,
                seq: delivered.lease.seq.0,
                attempt: delivered.attempt.0,
                deadline_us: delivered.deadline.0,
                message: Some(convert::delivered(&delivered)?),
            })
        })
        .collect();
    Ok(v1::ReceiveReply { messages: messages? })
}

pub(super) async fn settle(caller: Caller, request: v1::SettleRequest) -> Result<v1::SettleReply, Status> {
    let (stream, group) = names(&request.stream, &request.group)?;
    if request.leases.is_empty() || request.leases.len() > LEASES_MAX {
        let count = request.leases.len();
        return Err(status::invalid(format!("leases: 1 to {LEASES_MAX}. leases=`{count}`")));
    }
    let verb = convert::verb(request.action, request.delay_ms, &request.move_to).map_err(status::invalid)?;
    let rest = convert::rest(request.rest_ms, &verb).map_err(status::invalid)?;
    let settlement = Settlement { verb, reason: text(request.reason), late: false, rest };
    let settled = caller.settle(stream, group, &request.leases, settlement).await.map_err(refused)?;
    Ok(v1::SettleReply { outcomes: settled.iter().map(|one| convert::outcome(*one).into()).collect() })
}
