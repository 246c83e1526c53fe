//! Between the words of the wire and those of the broker.

use std::time::Duration;

use bytes::Bytes;
use forebay_broker::batch::{Batch, BatchBuilder, Message, parse_content};
use forebay_broker::broker::{Advice, Settlement, Settlements};
use forebay_broker::driver::{Delivered, Published};
use forebay_core::group::{GroupFigures, Lease, Outcome, Settled};
use forebay_core::settings::{GroupSettings, StreamSettings};
use forebay_core::shard::Start;
use forebay_core::types::{Epoch, Grant, Limits, Seq};
use forebay_wire::v1;
use tonic::Status;

use super::status;

/// What a stored message has beside its body, by rough count, so that a batch is built without growing.
const CONTENT_OVERHEAD: usize = 8;

/// A batch from its wire form. Hashing and copying happen here, on the connection's task, and not on the
/// shard's.
pub(super) fn batch(messages: &[v1::Message]) -> Result<Batch, v1::Problem> {
    let bytes = messages.iter().map(|message| message.body.len() + CONTENT_OVERHEAD).sum();
    let mut batch = BatchBuilder::with_capacity(messages.len(), bytes);
    for message in messages {
        check_supported(message)?;
        batch.push(&Message {
            id: some_text(&message.id),
            key: some_text(&message.key),
            kind: some_text(&message.r#type),
            schema: message.schema,
            headers: message.headers.iter().map(|header| (&header.name[..], &header.value[..])).collect(),
            body: &message.body,
            ..Message::default()
        });
    }
    Ok(batch.build())
}

/// Taking a term and not keeping it would be a broken promise, so what this release cannot keep is
/// refused.
fn check_supported(message: &v1::Message) -> Result<(), v1::Problem> {
    let unsupported = [
        ("priority", message.priority != 0),
        ("delay_ms", message.delay_ms != 0),
        ("ttl_ms", message.ttl_ms != 0),
        ("deliver_at_us", message.deliver_at_us != 0),
    ];
    match unsupported.iter().find(|(_, is_set)| *is_set) {
        None => Ok(()),
        Some((field, _)) => Err(status::problem(
            v1::problem::Code::Unsupported,
            Advice::FixRequest,
            format!("this release does not know that term of a message yet. field=`{field}`"),
        )),
    }
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
    out.messages.push(message(&delivered.content, delivered.published.0)?);
    Ok(())
}

/// The body is not copied: it is a part of what the server keeps.
fn message(content: &Bytes, published_at_us: u64) -> Result<v1::Message, Status> {
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
        published_at_us,
        ..v1::Message::default()
    })
}

/// A settlement from its wire form, or why it cannot be one.
pub(super) fn settlement(wire: &v1::Settlement, limits: &Limits) -> Result<Settlement, v1::Problem> {
    use v1::settlement::Action;
    let refuse = |code, text: String| Err(status::problem(code, Advice::FixRequest, text));
    let outcome = match wire.action() {
        Action::Ack => Outcome::Ack,
        Action::Retry => Outcome::Retry { delay: wire.delay_ms.map(Duration::from_millis) },
        other => {
            let text =
                format!("this release does not know that action yet. action=`{}`", other.as_str_name());
            return refuse(v1::problem::Code::Unsupported, text);
        }
    };
    // Looked at before anything is made as large as a client says.
    let count: u64 = wire.leases.iter().map(|run| u64::from(run.count.max(1))).sum();
    if count > u64::from(limits.credit_max) {
        let text =
            format!("more leases than a consumer may hold. leases=`{count}` limit=`{}`", limits.credit_max);
        return refuse(v1::problem::Code::TooLarge, text);
    }
    let mut leases = Vec::with_capacity(count as usize);
    for run in &wire.leases {
        let n = u64::from(run.count.max(1));
        if run.first_seq.checked_add(n).is_none() || run.first_grant.checked_add(n).is_none() {
            return refuse(v1::problem::Code::Invalid, "a run of leases has no end".to_owned());
        }
        leases.extend((0..n).map(|n| Lease {
            epoch: Epoch(wire.epoch),
            seq: Seq(run.first_seq + n),
            grant: Grant(run.first_grant + n),
        }));
    }
    Ok(Settlement { ticket: wire.ticket, leases, outcome })
}

pub(super) fn settled(settlements: &Settlements) -> v1::Settled {
    use v1::outcome_run::Outcome;
    let mut outcomes: Vec<v1::OutcomeRun> = Vec::new();
    for alike in settlements.results.chunk_by(|a, b| a == b) {
        let outcome = match alike[0] {
            Settled::Acked => Outcome::Acked,
            Settled::Retrying => Outcome::Retrying,
            Settled::Parked => Outcome::Parked,
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
    }
}

pub(super) fn stream_settings(wire: &v1::StreamSettings, settings: &mut StreamSettings) {
    set(&mut settings.dedupe_window, wire.dedupe_window_ms.map(Duration::from_millis));
    set(&mut settings.dedupe_max, wire.dedupe_max);
}

pub(super) fn check_group_settings(wire: &v1::GroupSettings) -> Result<(), Status> {
    let backoff = wire.backoff.unwrap_or_default();
    if backoff.factor.is_some_and(|factor| !(1.0..=1_000.0).contains(&factor)) {
        return Err(status::invalid("the factor of a backoff is between 1 and 1000".to_owned()));
    }
    if backoff.jitter.is_some_and(|jitter| !(0.0..=1.0).contains(&jitter)) {
        return Err(status::invalid("the jitter of a backoff is between 0 and 1".to_owned()));
    }
    if wire.message_timeout_ms == Some(0) {
        return Err(status::invalid("a lease has a length".to_owned()));
    }
    Ok(())
}

pub(super) fn group_settings(wire: &v1::GroupSettings, settings: &mut GroupSettings) {
    use v1::retries::Retries;
    set(&mut settings.message_timeout, wire.message_timeout_ms.map(Duration::from_millis));
    match wire.max_retries.and_then(|retries| retries.retries) {
        Some(Retries::AtMost(retries)) => settings.retries_max = Some(retries),
        Some(Retries::Unlimited(_)) => settings.retries_max = None,
        None => {}
    }
    let backoff = wire.backoff.unwrap_or_default();
    set(&mut settings.backoff.delay_min, backoff.min_ms.map(Duration::from_millis));
    set(&mut settings.backoff.delay_max, backoff.max_ms.map(Duration::from_millis));
    set(&mut settings.backoff.factor, backoff.factor);
    set(&mut settings.backoff.jitter, backoff.jitter);
    set(&mut settings.in_flight_max, wire.max_in_flight);
    set(&mut settings.buffer, wire.buffer);
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

pub(super) fn figures(stream: String, group: String, figures: &GroupFigures) -> v1::GetGroupReply {
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
    }
}
