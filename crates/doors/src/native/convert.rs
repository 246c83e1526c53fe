//! Between the words of the wire and those of the broker.

use std::time::Duration;

use forebay_broker::batch::{Batch, BatchBuilder, Message, after, parse_content};
use forebay_broker::broker::{Action, Advice, Settlement, Settlements};
use forebay_broker::driver::{Delivered, Published};
use forebay_core::group::{self, GroupFigures, Lease, Settled};
use forebay_core::producers::ProducerStamp;
use forebay_core::shard::{PublishOptions, Start};
use forebay_core::types::{Epoch, Grant, Limits, Seq, Timestamp};
use forebay_wire::v1;
use tonic::Status;

use super::settings::YEAR;
use super::status;

/// The highest priority there is.
const PRIORITY_MAX: u8 = 9;
/// What a stored message has beside its body, by rough count, so that a batch is built without growing.
const CONTENT_OVERHEAD: usize = 8;

/// A batch from its wire form. Hashing and copying happen here, on the connection's task, and not on the
/// shard's.
pub(super) fn batch(now: Timestamp, messages: &[v1::Message]) -> Result<Batch, v1::Problem> {
    let bytes = messages.iter().map(|message| message.body.len() + CONTENT_OVERHEAD).sum();
    let mut batch = BatchBuilder::with_capacity(messages.len(), bytes);
    for message in messages {
        let terms = terms(now, message).map_err(invalid)?;
        batch.push(&Message {
            id: some_text(&message.id),
            key: some_text(&message.key),
            kind: some_text(&message.r#type),
            schema: message.schema,
            headers: message.headers.iter().map(|header| (&header.name[..], &header.value[..])).collect(),
            body: &message.body,
            ..terms
        });
    }
    Ok(batch.build())
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
    PublishOptions { expect_last: request.expect_last_seq.map(Seq), stamp }
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
    out.messages.push(message(delivered)?);
    Ok(())
}

/// The body is not copied: it is a part of what the server keeps.
fn message(delivered: &Delivered) -> Result<v1::Message, Status> {
    let content = &delivered.content;
    let parsed = parse_content(content)
        .map_err(|error| Status::data_loss(format!("a stored message cannot be understood: {error}")))?;
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
        priority: delivered.priority.into(),
        published_at_us: delivered.published.0,
        ..v1::Message::default()
    })
}

/// A settlement from its wire form, or why it cannot be one.
pub(super) fn settlement(wire: &v1::Settlement, limits: &Limits) -> Result<Settlement, v1::Problem> {
    use v1::problem::Code;
    use v1::settlement::Action as Wire;
    let refuse = |code, text: String| Err(status::problem(code, Advice::FixRequest, text));
    let delay = wire.delay_ms.map(Duration::from_millis);
    if delay.is_some_and(|delay| delay > YEAR) {
        return refuse(Code::Invalid, "delay_ms: at most a year".to_owned());
    }
    let action = match Wire::try_from(wire.action) {
        Ok(Wire::Ack) => Action::Ack,
        // What the group's policy says is what a retry comes to when it has no retries left.
        Ok(Wire::Retry | Wire::Auto) => Action::Retry { delay },
        Ok(Wire::Park) => Action::Park,
        Ok(Wire::Skip) => Action::Skip,
        Ok(Wire::Extend) => match delay.filter(|by| !by.is_zero()) {
            Some(by) => Action::Extend { by },
            None => return refuse(Code::Invalid, "delay_ms: EXTEND says for how long".to_owned()),
        },
        // Never taken for an ack, which is the number zero.
        Err(_) => return refuse(Code::Invalid, format!("action: no such action. action=`{}`", wire.action)),
    };
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
    Ok(Settlement { ticket: wire.ticket, leases, action, reason })
}

pub(super) fn settled(settlements: &Settlements) -> v1::Settled {
    use v1::outcome_run::Outcome;
    let mut outcomes: Vec<v1::OutcomeRun> = Vec::new();
    for alike in settlements.results.chunk_by(|a, b| a == b) {
        let outcome = match alike[0] {
            Settled::Acked => Outcome::Acked,
            Settled::Retrying => Outcome::Retrying,
            Settled::Parked => Outcome::Parked,
            Settled::Skipped => Outcome::Skipped,
            Settled::Extended => Outcome::Extended,
            Settled::Moving => Outcome::Moving,
            Settled::Expired => Outcome::Expired,
            Settled::NotYours => Outcome::NotYours,
        };
        outcomes.push(v1::OutcomeRun { outcome: outcome.into(), count: alike.len() as u32 });
    }
    v1::Settled { ticket: settlements.ticket, outcomes, problem: None }
}

pub(super) fn start(start: Option<&v1::Start>) -> Start {
    use v1::start::At;
    match start.and_then(|start| start.at.as_ref()) {
        None | Some(At::Beginning(_)) => Start::Beginning,
        Some(At::End(_)) => Start::End,
        Some(At::Seq(seq)) => Start::At(Seq(*seq)),
        Some(At::TimeUs(time)) => Start::Time(Timestamp(*time)),
    }
}

pub(super) fn figures(stream: String, group: String, figures: &GroupFigures) -> v1::GetGroupReply {
    use v1::get_group_reply::Status;
    let status = match figures.status {
        group::Status::Live => Status::Live,
        group::Status::CatchingUp => Status::CatchingUp,
        group::Status::Paused => Status::Paused,
        group::Status::Idle => Status::Idle,
        group::Status::WindowFull => Status::WindowFull,
        group::Status::ParkedFull => Status::ParkedFull,
        group::Status::KeyScanFull => Status::KeyScanFull,
    };
    let of = &figures.counters;
    let counters = v1::Counters {
        delivered: of.delivered,
        acked: of.acked,
        retried: of.retried,
        parked: of.parked,
        timed_out: of.timed_out,
        skipped: of.skipped,
        expired: of.expired,
        moved: of.moved,
        dropped: of.dropped,
        returned: of.returned,
        replayed: of.replayed,
        discarded: of.discarded,
    };
    v1::GetGroupReply {
        stream,
        group,
        last_known_seq: figures.last_known.0,
        checkpoint_seq: figures.floor.0,
        lag: figures.lag,
        ready: figures.ready,
        waiting: figures.waiting,
        in_flight: figures.in_flight,
        parked: figures.parked,
        consumers: figures.consumers as u32,
        status: status.into(),
        last_processed_seq: of.last_processed.0,
        last_checkpointed_seq: figures.checkpoint.0,
        oldest_age_ms: figures.oldest_age.map(millis),
        moving: figures.moving,
        oldest_parked_age_ms: figures.oldest_parked_age.map(millis),
        counters: Some(counters),
        stuck_key_messages: figures.stuck_key.map_or(0, |(_, messages)| messages),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
