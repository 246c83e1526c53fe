//! Between the words of the wire and those of the broker.

use std::time::Duration;

use bytes::Bytes;
use forebay_broker::batch::{Batch, BatchBuilder, Message, after, parse_content};
use forebay_broker::broker::{Action, Settlement, Settlements};
use forebay_broker::driver::{Delivered, Published};
use forebay_broker::error::Advice;
use forebay_broker::report::Found;
use forebay_core::group::{Lease, REST_MAX, Settled};
use forebay_core::producers::ProducerStamp;
use forebay_core::shard::PublishOptions;
use forebay_core::types::{Epoch, Grant, Limits, Seq, StreamName, Timestamp};
use forebay_model::limits::{PRIORITY_MAX, YEAR};
use forebay_wire::v1;
use tonic::Status;

use super::request::position;
use super::status;
use super::trace::Trace;

/// What a stored message has beside its body and its texts, by rough count, so that a batch is built without
/// growing.
const CONTENT_OVERHEAD: usize = 12;

/// A batch from its wire form. Hashing and copying happen here, on the connection's task, and not on the
/// shard's.
pub(super) fn batch(now: Timestamp, messages: &[v1::Message], trace: &Trace) -> Result<Batch, v1::Problem> {
    let overhead = CONTENT_OVERHEAD + trace.bytes();
    let bytes = messages.iter().map(|message| overhead + content_bytes(message)).sum();
    let mut batch = BatchBuilder::with_capacity(messages.len(), bytes);
    for message in messages {
        let terms = terms(now, message).map_err(invalid)?;
        batch.push(&Message {
            id: some_text(&message.id),
            key: some_text(&message.key),
            kind: some_text(&message.r#type),
            schema: message.schema,
            headers: message
                .headers
                .iter()
                .map(|header| (&header.name[..], &header.value[..]))
                .chain(trace.headers_for(message))
                .collect(),
            body: &message.body,
            ..terms
        });
    }
    Ok(batch.build())
}

fn content_bytes(message: &v1::Message) -> usize {
    let headers = message.headers.iter().map(|header| header.name.len() + header.value.len() + 4);
    message.body.len() + message.id.len() + message.key.len() + message.r#type.len() + headers.sum::<usize>()
}

/// Priority and times of a message. Times are reckoned from when the batch came in.
fn terms(now: Timestamp, message: &v1::Message) -> Result<Message<'static>, String> {
    let priority = u8::try_from(message.priority).ok().filter(|priority| *priority <= PRIORITY_MAX);
    let priority =
        priority.ok_or_else(|| format!("priority: 0 to {PRIORITY_MAX}. priority=`{}`", message.priority))?;
    if message.delay_ms > 0 && message.deliver_at_us > 0 {
        return Err("delay_ms and deliver_at_us: one of the two".to_owned());
    }
    let millis = |millis: u64| after(now, Some(Duration::from_millis(millis)));
    let deliver_at = Some(Timestamp(message.deliver_at_us)).filter(|at| *at > now);
    Ok(Message {
        priority,
        not_before: millis(message.delay_ms).or(deliver_at),
        expires: millis(message.ttl_ms),
        ..Message::default()
    })
}

/// What a batch asks for beside being stored.
pub(super) fn publish_options(request: &v1::PublishRequest) -> PublishOptions {
    let stamp =
        request.producer.map(|of| ProducerStamp { producer: of.id, epoch: of.epoch, number: of.counter });
    PublishOptions { expect_last: request.expect_last_seq.map(position), stamp }
}

pub(super) fn invalid(text: String) -> v1::Problem {
    status::problem(v1::problem::Code::Invalid, Advice::FixRequest, text)
}

fn some_text(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

pub(super) fn confirmation(ticket: u64, published: Published) -> v1::Confirmation {
    let mut confirmation = v1::Confirmation { ticket, ..v1::Confirmation::default() };
    match published {
        Published::Stored(range) => {
            confirmation.first_seq = range.first.0;
            confirmation.count = range.count() as u32;
        }
        Published::Mixed(admissions) => {
            for (admission, index) in admissions.iter().zip(0..) {
                if admission.duplicate {
                    confirmation.duplicates.push(v1::Duplicate { index, seq: admission.seq.0 });
                } else {
                    if confirmation.count == 0 {
                        confirmation.first_seq = admission.seq.0;
                    }
                    confirmation.count += 1;
                }
            }
        }
    }
    confirmation
}

/// Adds a delivered message. It joins the last run if it follows it in every respect.
pub(super) fn deliver(delivered: &Delivered, out: &mut v1::Deliveries) -> Result<(), Status> {
    let Lease { epoch, seq, grant } = delivered.lease;
    out.epoch = epoch.0;
    match out.runs.last_mut() {
        Some(run)
            if run.first_seq + u64::from(run.count) == seq.0
                && run.first_grant + u64::from(run.count) == grant.0
                && run.attempt == delivered.attempt.0
                && run.deadline_us == delivered.deadline.0 =>
        {
            run.count += 1;
        }
        _ => out.runs.push(v1::DeliveryRun {
            first_seq: seq.0,
            first_grant: grant.0,
            count: 1,
            attempt: delivered.attempt.0,
            deadline_us: delivered.deadline.0,
        }),
    }
    out.messages.push(self::delivered(delivered)?);
    Ok(())
}

pub(super) fn delivered(of: &Delivered) -> Result<v1::Message, Status> {
    message(&of.content, of.priority, of.published)
}

pub(super) fn found(of: &Found) -> Result<v1::Message, Status> {
    message(&of.content, of.extra.priority, of.published())
}

/// The body is not copied: it is a part of what the server keeps.
fn message(content: &Bytes, priority: u8, published: Timestamp) -> Result<v1::Message, Status> {
    let parsed = parse_content(content).map_err(|error| status::damaged(&error))?;
    let text = |text: Option<&str>| text.map(str::to_owned).unwrap_or_default();
    Ok(v1::Message {
        body: content.slice_ref(parsed.body),
        id: text(parsed.id),
        key: text(parsed.key),
        r#type: text(parsed.kind),
        schema: parsed.schema,
        headers: parsed
            .headers
            .iter()
            .map(|&(name, value)| v1::Header { name: name.to_owned(), value: value.to_owned() })
            .collect(),
        priority: priority.into(),
        published_at_us: published.0,
        ..v1::Message::default()
    })
}

/// What a consumer wants done with its leases, or why that cannot be.
pub(super) fn action(number: i32, delay_ms: Option<u64>, move_to: &str) -> Result<Action, String> {
    use v1::settlement::Action as Wire;
    let delay = delay_ms.map(Duration::from_millis);
    if delay.is_some_and(|delay| delay > YEAR) {
        return Err("delay_ms: at most a year".to_owned());
    }
    // Never taken for an ack, which is the number zero.
    let wire = Wire::try_from(number).map_err(|_| format!("action: no such action. action=`{number}`"))?;
    if wire != Wire::Move && !move_to.is_empty() {
        return Err("move_to: only for MOVE".to_owned());
    }
    Ok(match wire {
        Wire::Ack => Action::Ack,
        // What the group's policy says is what a retry comes to when it has no retries left.
        Wire::Retry | Wire::Auto => Action::Retry { delay },
        Wire::Park => Action::Park,
        Wire::Skip => Action::Skip,
        Wire::Return => Action::Return { delay },
        Wire::Move => Action::Move(StreamName::parse(move_to).map_err(|error| format!("move_to: {error}"))?),
        Wire::Extend => match delay.filter(|by| !by.is_zero()) {
            Some(by) => Action::Extend { by, total_max: None },
            None => return Err("delay_ms: EXTEND says for how long".to_owned()),
        },
    })
}

/// For how long the group should hand out nothing, or why that cannot be.
pub(super) fn rest(rest_ms: Option<u64>, action: &Action) -> Result<Option<Duration>, String> {
    let rest = rest_ms.map(Duration::from_millis);
    match rest {
        Some(_) if matches!(action, Action::Extend { .. }) => Err("rest_ms: not with EXTEND".to_owned()),
        Some(rest) if rest > REST_MAX => Err(format!("rest_ms: at most {}", REST_MAX.as_millis())),
        _ => Ok(rest),
    }
}

/// A settlement from its wire form, or why it cannot be one.
pub(super) fn settlement(wire: &v1::Settlement, limits: &Limits) -> Result<Settlement, v1::Problem> {
    use v1::problem::Code;
    let refuse = |code, text: String| Err(status::problem(code, Advice::FixRequest, text));
    let action = action(wire.action, wire.delay_ms, &wire.move_to).map_err(invalid)?;
    let rest = rest(wire.rest_ms, &action).map_err(invalid)?;
    // Looked at before anything is made as large as a client says.
    let count: u64 = wire.leases.iter().map(|run| u64::from(run.count.max(1))).sum();
    if count > u64::from(limits.credit_max) {
        let text =
            format!("more leases than a consumer may hold. leases=`{count}` limit=`{}`", limits.credit_max);
        return refuse(Code::TooLarge, text);
    }
    let mut leases = Vec::with_capacity(count as usize);
    for run in &wire.leases {
        let n = u64::from(run.count.max(1));
        if run.first_seq.checked_add(n).is_none() || run.first_grant.checked_add(n).is_none() {
            return refuse(Code::Invalid, "a run of leases has no end".to_owned());
        }
        leases.extend((0..n).map(|n| Lease {
            epoch: Epoch(wire.epoch),
            seq: Seq(run.first_seq + n),
            grant: Grant(run.first_grant + n),
        }));
    }
    let reason = some_text(&wire.reason).map(str::to_owned);
    Ok(Settlement { ticket: wire.ticket, leases, action, reason, rest })
}

pub(super) fn outcome(settled: Settled) -> v1::outcome_run::Outcome {
    use v1::outcome_run::Outcome;
    match settled {
        Settled::Acked => Outcome::Acked,
        Settled::Retrying => Outcome::Retrying,
        Settled::Parked => Outcome::Parked,
        Settled::Skipped => Outcome::Skipped,
        Settled::Returned => Outcome::Returned,
        Settled::Extended => Outcome::Extended,
        Settled::Moving => Outcome::Moving,
        Settled::Expired => Outcome::Expired,
        // Nobody says how long a lease may be altogether.
        Settled::NotYours(_) | Settled::TooLong => Outcome::NotYours,
    }
}

pub(super) fn settled(settlements: &Settlements) -> v1::Settled {
    let mut outcomes: Vec<v1::OutcomeRun> = Vec::new();
    let all: Vec<_> = settlements.results.iter().map(|settled| outcome(*settled)).collect();
    for alike in all.chunk_by(|a, b| a == b) {
        outcomes.push(v1::OutcomeRun { outcome: alike[0].into(), count: alike.len() as u32 });
    }
    v1::Settled { ticket: settlements.ticket, outcomes, problem: None }
}
