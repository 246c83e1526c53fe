//! Between the words of the wire and those of the broker.

use std::time::Duration;

use bytes::Bytes;
use forebay_broker::api::{
    Batch, BatchBuilder, ContentType, Delivered, Delivery, Found, Lease, LeaseRun, Message, Moment, Outcome,
    ProducerStamp, PublishOptions, Published, RunMessage, SettleRequest, Settled, parse_content,
};
use forebay_core::types::{Epoch, Grant, Limits, Seq, Timestamp};
use forebay_wire::json::body::check_content_type;
use forebay_wire::problem::Kind;
use forebay_wire::v1;

use super::encode::Shown;
use super::request::some;
use crate::native::problem::Refusal;
use crate::native::service::{Action, Answer, Edits, MessageTerms, NewBody, Terms, position};
use crate::native::trace::Trace;

/// What a stored message has beside its body and its texts, by rough count, so that a batch is built without
/// growing.
const CONTENT_OVERHEAD: usize = 12;
/// What a delivered message has beside its stored content, by rough count.
const WIRE_OVERHEAD: usize = 24;

/// A batch from its wire form. Hashing and copying happen here, on the connection's task, and not on the
/// shard's.
pub(super) fn batch(moment: Moment, messages: &[v1::Message], trace: &Trace) -> Answer<Batch> {
    let overhead = CONTENT_OVERHEAD + trace.bytes();
    let bytes = messages.iter().map(|message| overhead + content_bytes(message)).sum();
    let mut batch = BatchBuilder::with_capacity(messages.len(), bytes);
    for (n, message) in messages.iter().enumerate() {
        let terms = check(message).and_then(|()| terms(message).check(moment));
        let terms = terms.map_err(|refusal| refusal.within(format_args!("messages[{n}]")))?;
        let own = message.headers.iter().map(|header| &header.name[..]);
        batch.push(&Message {
            id: some_text(&message.id),
            key: key(message),
            kind: some_text(&message.r#type),
            schema: message.schema,
            headers: message
                .headers
                .iter()
                .map(|header| (&header.name[..], header_value(header)))
                .chain(trace.headers_beside(own).iter().map(|(name, value)| (*name, value.as_bytes())))
                .collect(),
            body: &message.body,
            no_body: message.no_body,
            content_type: ContentType::named(&message.content_type),
            priority: terms.priority,
            not_before: terms.not_before,
            expires: terms.expires,
            ..Message::default()
        });
    }
    Ok(batch.build())
}

/// Fields that contradict each other are refused.
fn check(message: &v1::Message) -> Answer<()> {
    if message.no_body && !message.body.is_empty() {
        return Err(Refusal::field("no_body", "must not be given together with `body`"));
    }
    if !message.key_bytes.is_empty() && !message.key.is_empty() {
        return Err(Refusal::field("key_base64", "must not be given together with `key`"));
    }
    if message.headers.iter().any(|header| !header.value_bytes.is_empty() && !header.value.is_empty()) {
        return Err(Refusal::field("headers", "must not have `value` and `value_bytes` in one header"));
    }
    if message.content_type.is_empty() {
        return Ok(());
    }
    check_content_type(&message.content_type).map_err(|bad| Refusal::field(bad.field, bad.rule))
}

fn key(message: &v1::Message) -> Option<&[u8]> {
    let key = if message.key_bytes.is_empty() { message.key.as_bytes() } else { &message.key_bytes };
    (!key.is_empty()).then_some(key)
}

fn header_value(header: &v1::Header) -> &[u8] {
    if header.value_bytes.is_empty() { header.value.as_bytes() } else { &header.value_bytes }
}

fn content_bytes(message: &v1::Message) -> usize {
    let headers = message
        .headers
        .iter()
        .map(|header| header.name.len() + header_value(header).len() + 4)
        .sum::<usize>();
    let texts = message.id.len() + message.r#type.len() + message.content_type.len();
    message.body.len() + texts + message.key.len() + message.key_bytes.len() + headers
}

/// Priority and times of a message.
fn terms(message: &v1::Message) -> MessageTerms {
    let millis = |millis: u64| (millis > 0).then(|| Duration::from_millis(millis));
    MessageTerms {
        priority: message.priority,
        delay: millis(message.delay_ms),
        deliver_at: some(message.deliver_at_us).map(Timestamp),
        ttl: millis(message.ttl_ms),
    }
}

/// The edits of a copy. A field that is left out or empty stays as it was, unless it is named in `clear`.
pub(super) fn edits(message: &v1::Message, clear: &[String]) -> Answer<Edits> {
    check(message)?;
    let MessageTerms { priority, delay, deliver_at, ttl } = terms(message);
    let has_body = !message.body.is_empty() || message.no_body;
    if !has_body && !message.content_type.is_empty() {
        return Err(Refusal::field("content_type", "must not be given without a body"));
    }
    let body = NewBody {
        bytes: (!message.no_body).then(|| message.body.clone()),
        content_type: message.content_type.clone(),
    };
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let mut edits = Edits {
        id: text(&message.id),
        key: key(message).map(<[u8]>::to_vec),
        kind: text(&message.r#type),
        schema: message.schema.map(Some),
        headers: (!message.headers.is_empty())
            .then(|| message.headers.iter().map(|of| (of.name.clone(), header_value(of).to_vec())).collect()),
        body: has_body.then_some(body),
        priority: some(priority),
        delay,
        deliver_at,
        ttl,
    };
    for field in clear {
        match &field[..] {
            "key" => clear_field(&mut edits.key),
            "type" => clear_field(&mut edits.kind),
            "schema" => clear_field(&mut edits.schema),
            "headers" => clear_field(&mut edits.headers),
            "body" => {
                let empty = NewBody { bytes: Some(Bytes::new()), ..NewBody::default() };
                edits.body.get_or_insert(empty);
            }
            "priority" => clear_field(&mut edits.priority),
            unknown => {
                let rule = "must name fields of a message that can be cleared";
                return Err(Refusal::value("clear", rule, unknown));
            }
        }
    }
    Ok(edits)
}

/// A field that is cleared has its empty value, unless it is supplied as well.
fn clear_field<T: Default>(edit: &mut Option<T>) {
    edit.get_or_insert_default();
}

/// The options of a publish request.
pub(super) fn publish_options(request: &v1::PublishRequest) -> PublishOptions {
    let stamp =
        request.producer.map(|of| ProducerStamp { producer: of.id, epoch: of.epoch, number: of.counter });
    PublishOptions { expect_last: request.expect_last_seq.map(position), stamp }
}

fn some_text(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

pub(super) fn confirmation(ticket: u64, published: Published) -> v1::Confirmation {
    let mut confirmation = v1::Confirmation { ticket, ..v1::Confirmation::default() };
    match published {
        Published::Stored { seqs, ordinal } => {
            confirmation.first_seq = seqs.first.0;
            confirmation.count = seqs.count() as u32;
            confirmation.first_log_position = ordinal.0;
        }
        Published::Mixed { admissions, ordinal } => {
            for (admission, index) in admissions.iter().zip(0..) {
                if admission.duplicate {
                    confirmation.duplicates.push(v1::Duplicate { index, seq: admission.seq.0 });
                } else {
                    if confirmation.count == 0 {
                        confirmation.first_seq = admission.seq.0;
                        confirmation.first_log_position = ordinal.0;
                    }
                    confirmation.count += 1;
                }
            }
        }
    }
    confirmation
}

/// Adds the first messages of a delivery: a run of its own, unless it follows the last one in every respect.
pub(super) fn deliver(delivery: &Delivery, count: usize, out: &mut v1::Deliveries) -> Answer<()> {
    let Lease { epoch, seq, grant } = delivery.lease;
    out.epoch = epoch.0;
    match out.runs.last_mut() {
        Some(run)
            if run.first_seq + u64::from(run.count) == seq.0
                && run.first_grant + u64::from(run.count) == grant.0
                && run.attempt == delivery.attempt.0
                && run.redelivered == delivery.redelivered
                && run.deadline_us == delivery.deadline.0 =>
        {
            run.count += count as u32;
        }
        _ => out.runs.push(v1::DeliveryRun {
            first_seq: seq.0,
            first_grant: grant.0,
            count: count as u32,
            attempt: delivery.attempt.0,
            deadline_us: delivery.deadline.0,
            redelivered: delivery.redelivered,
        }),
    }
    let messages = &delivery.messages[..count];
    out.encoded.reserve(messages.iter().map(|message| message.content.len() + WIRE_OVERHEAD).sum());
    for RunMessage { content, priority, published, .. } in messages {
        Shown::delivered(content, *priority, *published)?.put(v1::Deliveries::MESSAGES, &mut out.encoded);
    }
    Ok(())
}

pub(super) fn delivered(of: &Delivered) -> Answer<v1::Message> {
    message(&of.content, of.priority, of.published)
}

pub(super) fn found(of: &Found) -> Answer<v1::Message> {
    let message = message(&of.content, of.extra.priority, of.published())?;
    let expires_at_us = of.extra.expires.map_or(0, |at| at.0);
    Ok(v1::Message { expires_at_us, log_position: of.ordinal.0, ..message })
}

/// The body is not copied: it is a part of what the server keeps.
pub(super) fn message(content: &Bytes, priority: u8, published: Timestamp) -> Answer<v1::Message> {
    let parsed = parse_content(content).map_err(|error| Refusal::damaged(&error))?;
    let text = |text: Option<&str>| text.map(str::to_owned).unwrap_or_default();
    let (key, key_bytes) = parsed.key.map(|key| text_or_bytes(content, key)).unwrap_or_default();
    let header = |&(name, value): &(&str, &[u8])| {
        let (value, value_bytes) = text_or_bytes(content, value);
        v1::Header { name: name.to_owned(), value, value_bytes }
    };
    let (source_stream, source_seq) =
        parsed.copied_from.map(|from| (from.stream.to_owned(), from.seq.0)).unwrap_or_default();
    Ok(v1::Message {
        source_stream,
        source_seq,
        body: content.slice_ref(parsed.body),
        id: text(parsed.id),
        key,
        r#type: text(parsed.kind),
        schema: parsed.schema,
        headers: parsed.headers.iter().map(header).collect(),
        content_type: text(parsed.content_type.name()),
        no_body: parsed.no_body,
        key_bytes,
        priority: priority.into(),
        published_at_us: published.0,
        ..v1::Message::default()
    })
}

/// A part of a content, as text if it can be, and otherwise as bytes.
fn text_or_bytes(content: &Bytes, part: &[u8]) -> (String, Bytes) {
    match std::str::from_utf8(part) {
        Ok(text) => (text.to_owned(), Bytes::new()),
        Err(_) => (String::new(), content.slice_ref(part)),
    }
}

/// What a consumer wants done with its leases.
pub(super) fn settle_terms(
    number: i32,
    delay_ms: Option<u64>,
    reason: String,
    move_to: &str,
    rest_ms: Option<u64>,
) -> Answer<Terms<'_>> {
    use v1::settlement::Action as Wire;
    let unknown = |_| Refusal::value("action", "must be one of the actions of Settlement.Action", number);
    let wire = Wire::try_from(number).map_err(unknown)?;
    if wire != Wire::Move && !move_to.is_empty() {
        return Err(Refusal::field("action.move", "must not be given: the action is not MOVE"));
    }
    let action = match wire {
        Wire::Unspecified => {
            return Err(Refusal::field("action", "must be given: ACK, RETRY, PARK or another"));
        }
        Wire::Ack => Action::Ack,
        Wire::Retry | Wire::Auto => Action::Retry,
        Wire::Park => Action::Park,
        Wire::Skip => Action::Skip,
        Wire::Return => Action::Return,
        Wire::Move => Action::Move(move_to),
        Wire::Extend => Action::Extend,
    };
    let millis = |millis: Option<u64>| millis.map(Duration::from_millis);
    Ok(Terms { action, delay: millis(delay_ms), reason: Some(reason), rest: millis(rest_ms) })
}

/// A settlement from its wire form.
pub(super) fn settlement(wire: v1::Settlement, limits: &Limits) -> Answer<SettleRequest> {
    let terms = settle_terms(wire.action, wire.delay_ms, wire.reason, &wire.move_to, wire.rest_ms)?;
    let settlement = terms.settlement()?;
    // Looked at before anything is made as large as a client says.
    let count: u64 = wire.leases.iter().map(|run| u64::from(run.count.max(1))).sum();
    if count > u64::from(limits.credit_max) {
        let text =
            format!("more leases than a consumer may hold. leases=`{count}` limit=`{}`", limits.credit_max);
        return Err(Refusal::new(Kind::BatchTooLarge, text));
    }
    let mut leases = Vec::with_capacity(wire.leases.len());
    for run in &wire.leases {
        let n = u64::from(run.count.max(1));
        if run.first_seq.checked_add(n).is_none() || run.first_grant.checked_add(n).is_none() {
            return Err(Refusal::field("leases", "must be runs that end"));
        }
        let first =
            Lease { epoch: Epoch(wire.epoch), seq: Seq(run.first_seq), grant: Grant(run.first_grant) };
        leases.push(LeaseRun { first, count: run.count.max(1) });
    }
    Ok(SettleRequest { ticket: wire.ticket, leases, settlement })
}

pub(super) fn outcome(outcome: Outcome) -> v1::outcome_run::Outcome {
    use v1::outcome_run::Outcome as Wire;
    match outcome {
        Outcome::Acked => Wire::Acked,
        Outcome::Retrying => Wire::Retrying,
        Outcome::Parked => Wire::Parked,
        Outcome::Skipped => Wire::Skipped,
        Outcome::Returned => Wire::Returned,
        Outcome::Extended => Wire::Extended,
        Outcome::Moving => Wire::Moving,
        Outcome::Expired => Wire::Expired,
        // This door sets no limit on how long a lease may be altogether.
        Outcome::NotYours(_) | Outcome::TooLong => Wire::NotYours,
    }
}

pub(super) fn settled(settled: &Settled) -> v1::Settled {
    let mut outcomes: Vec<v1::OutcomeRun> = Vec::with_capacity(settled.outcomes.len());
    for &(of, count) in &settled.outcomes {
        let outcome = outcome(of).into();
        match outcomes.last_mut() {
            // The wire does not say why a lease is not the consumer's.
            Some(last) if last.outcome == outcome => last.count += count,
            _ => outcomes.push(v1::OutcomeRun { outcome, count }),
        }
    }
    v1::Settled { ticket: settled.ticket, outcomes, problem: None }
}
