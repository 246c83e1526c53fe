//! The spans of a shard: what became of messages that belong to a trace, told where it is decided.

use std::collections::BTreeMap;

use forebay_core::group::{LeaseRun, Outcome, OutcomeRun, with_outcomes};
use forebay_core::shard::Shard;
use forebay_core::types::{Grant, GroupId, GroupName, StreamId, StreamName, Timestamp};

use super::ShardTask;
use crate::batch::{Batch, parse_content};
use crate::driver::{Delivery, Driver, Published};
use crate::trace::{Operation, Span, TraceContext, Tracer};

/// Deliveries that wait for their answers. Of more, the oldest is not told of any more.
const LEASED_MAX: usize = 16_384;

/// Without a tracer it does nothing.
#[derive(Default)]
pub(super) struct Traces {
    tracer: Option<Tracer>,
    /// Messages of a trace that consumers have.
    leased: BTreeMap<Grant, Leased>,
}

/// Spans that end when what they tell of is durable.
pub(super) struct Told(Tracer, Vec<Span>);

struct Leased {
    /// The delivery is the parent of the answer.
    context: TraceContext,
    message: Option<String>,
    delivered: Timestamp,
}

impl Traces {
    /// Spans of the messages of a batch that were stored now. They end when the batch is durable.
    pub(super) fn published(
        &self,
        now: Timestamp,
        shard: &Shard,
        stream: StreamId,
        batch: &Batch,
        published: &Published,
    ) -> Option<Told> {
        let tracer = self.tracer.as_ref()?;
        let stream = shard.stream_name(stream)?;
        let (mut spans, mut from) = (Vec::new(), 0);
        for (meta, (admission, _)) in batch.metas.iter().zip(published.each()) {
            let content = &batch.contents[from..from + meta.size as usize];
            from += meta.size as usize;
            let Some(context) = tracer.find(content).filter(|_| !admission.duplicate) else { continue };
            spans.push(Span {
                context,
                id: tracer.name(&context.trace, now),
                operation: Operation::Publish,
                stream: stream.clone(),
                seq: admission.seq.0,
                message: id_of(content),
                start: now,
                end: now,
            });
        }
        (!spans.is_empty()).then(|| Told(tracer.clone(), spans))
    }

    /// Messages leave for their consumers.
    pub(super) fn delivered(&mut self, now: Timestamp, driver: &Driver) {
        if let Some(tracer) = self.tracer.clone() {
            driver.deliveries().iter().for_each(|one| self.deliver(&tracer, now, driver.shard(), one));
        }
    }

    fn deliver(&mut self, tracer: &Tracer, now: Timestamp, shard: &Shard, delivery: &Delivery) {
        for (message, lease) in delivery.messages.iter().zip(delivery.leases().leases()) {
            let Some(context) = tracer.find(&message.content) else { continue };
            let Some((stream, group)) = names(shard, delivery.group) else { return };
            let id = tracer.name(&context.trace, now);
            let own_id = id_of(&message.content);
            tracer.record(Span {
                context,
                id,
                operation: Operation::Deliver { group: group.clone(), attempt: delivery.attempt.0 },
                stream: stream.clone(),
                seq: lease.seq.0,
                message: own_id.clone(),
                start: message.published.min(now),
                end: now,
            });
            let context = TraceContext { parent: Some(id), ..context };
            self.leased.insert(lease.grant, Leased { context, message: own_id, delivered: now });
            if self.leased.len() > LEASED_MAX {
                self.leased.pop_first();
                tracer.ended(1, false);
            }
        }
    }

    /// Leases were answered.
    pub(super) fn settled(
        &mut self,
        now: Timestamp,
        shard: &Shard,
        group: GroupId,
        leases: &[LeaseRun],
        outcomes: &[OutcomeRun],
    ) {
        if self.leased.is_empty() {
            return;
        }
        let Traces { tracer: Some(tracer), leased } = self else { return };
        with_outcomes(leases, outcomes, |run, outcome| {
            let Some(outcome) = word(outcome).filter(|_| run.first.epoch == shard.epoch()) else { return };
            let (first, end) = (run.first.grant, run.first.grant.plus(run.count.into()));
            while let Some((&grant, _)) = leased.range(first..end).next()
                && let Some(Leased { context, message, delivered }) = leased.remove(&grant)
                && let Some((stream, group)) = names(shard, group)
            {
                tracer.record(Span {
                    context,
                    id: tracer.name(&context.trace, now),
                    operation: Operation::Settle { group: group.clone(), outcome },
                    stream: stream.clone(),
                    seq: run.nth(grant.0 - first.0).seq.0,
                    message,
                    start: delivered,
                    end: now,
                });
            }
        });
    }
}

impl ShardTask {
    /// From now on spans go to this tracer.
    pub(crate) fn trace(&mut self, tracer: Tracer) {
        self.traces.tracer = Some(tracer);
    }

    /// Tells of a batch that was stored, once it is durable.
    pub(super) fn trace_when_durable(&mut self, told: Option<Told>) {
        if let Some(Told(tracer, spans)) = told {
            let clock = self.clock;
            self.when_durable(move || {
                let end = clock.now();
                spans.into_iter().for_each(|span| tracer.record(Span { end, ..span }));
            });
        }
    }
}

fn names(shard: &Shard, group: GroupId) -> Option<(&StreamName, &GroupName)> {
    let stream = shard.stream_of(group)?;
    let (group, _) = shard.groups_of(stream).find(|(_, id)| *id == group)?;
    Some((shard.stream_name(stream)?, group))
}

fn id_of(content: &[u8]) -> Option<String> {
    parse_content(content).ok()?.id.map(str::to_owned)
}

/// What became of a message. None if its consumer still has it, or did not have it.
fn word(outcome: Outcome) -> Option<&'static str> {
    Some(match outcome {
        Outcome::Acked => "acked",
        Outcome::Retrying => "retrying",
        Outcome::Parked => "parked",
        Outcome::Skipped => "skipped",
        Outcome::Moving => "moving",
        Outcome::Expired => "expired",
        Outcome::Returned => "returned",
        Outcome::Extended | Outcome::TooLong | Outcome::NotYours(_) => return None,
    })
}
