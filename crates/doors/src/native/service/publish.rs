//! Publishing: what a message may be, and what became of a batch.

use std::sync::Arc;
use std::time::Duration;

use forebay_broker::api::{Admission, Batch, Moment, PublishOptions, Published, after};
use forebay_core::types::{StreamName, Timestamp};
use forebay_wire::json::Span;

use super::{Answer, Service, check_duration, check_some_duration};
use crate::native::limits::{DURATION_MAX, PRIORITY_MAX};
use crate::native::problem::Refusal;

/// The options that a producer gives with the content of a message.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::native) struct MessageTerms {
    pub(in crate::native) priority: u32,
    pub(in crate::native) delay: Option<Duration>,
    pub(in crate::native) deliver_at: Option<Timestamp>,
    pub(in crate::native) ttl: Option<Duration>,
}

/// The same, as the broker takes it.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::native) struct Stored {
    pub(in crate::native) priority: u8,
    pub(in crate::native) not_before: Option<Timestamp>,
    pub(in crate::native) expires: Option<Timestamp>,
}

impl MessageTerms {
    /// Times count from `moment`, and a date is translated to the server's clock.
    pub(in crate::native) fn check(&self, moment: Moment) -> Answer<Stored> {
        let now = moment.now;
        let priority = u8::try_from(self.priority).ok().filter(|priority| *priority <= PRIORITY_MAX);
        let Some(priority) = priority else {
            let rule = format!("must be between 0 and {PRIORITY_MAX}");
            return Err(Refusal::value("priority", rule, self.priority));
        };
        if self.delay.is_some() && self.deliver_at.is_some() {
            return Err(Refusal::field("deliver_at", "must not be given together with a delay"));
        }
        check_duration("delay", self.delay)?;
        check_some_duration("ttl", self.ttl)?;
        let deliver_at = self.deliver_at.map(|date| moment.of_date(date));
        if deliver_at.is_some_and(|at| at.since(now) > DURATION_MAX) {
            let rule = format!("must be at most {} from now", Span(DURATION_MAX));
            return Err(Refusal::field("deliver_at", rule));
        }
        // It would be stored, and expire before any consumer could have it.
        let wait = self.delay.or(deliver_at.map(|at| at.since(now)));
        if let (Some(wait), Some(ttl)) = (wait, self.ttl)
            && wait >= ttl
        {
            let rule = format!("must be longer than the delay, which is {}", Span(wait));
            return Err(Refusal::value("ttl", rule, Span(ttl)));
        }
        Ok(Stored {
            priority,
            not_before: after(now, self.delay).or(deliver_at.filter(|at| *at > now)),
            expires: after(now, self.ttl),
        })
    }
}

impl Service {
    /// Stores a batch, whole or not at all, and waits until it is durable.
    pub(in crate::native) async fn publish(
        &self,
        stream: StreamName,
        batch: Batch,
        options: PublishOptions,
    ) -> Answer<Published> {
        let room = self.broker().room(&stream, &batch).await;
        let stream = Arc::new(stream);
        match self.caller.publish(room, stream.clone(), batch, options).await {
            Ok(published) => Ok(published.get()),
            Err(error) => Err(Refusal::of_publish(self.now(), &error).in_stream(&stream)),
        }
    }
}

/// Where a message of a batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::native) struct Placed {
    pub(in crate::native) seq: u64,
    /// It was there before.
    pub(in crate::native) duplicate: bool,
    /// Its position in the server's log, unless it was there before.
    pub(in crate::native) log_position: Option<u64>,
}

/// Where each message of a batch is, in their order.
pub(in crate::native) fn placed(published: &Published) -> impl Iterator<Item = Placed> + '_ {
    published.each().map(|(Admission { seq, duplicate }, ordinal)| Placed {
        seq: seq.0,
        duplicate,
        log_position: ordinal.map(|ordinal| ordinal.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_that_cannot_be_are_refused_by_name() {
        let now = Timestamp(1_000_000);
        let year = DURATION_MAX + Duration::from_millis(1);
        let ok = MessageTerms::default();
        for (terms, field) in [
            (MessageTerms { priority: 10, ..ok }, "priority"),
            (MessageTerms { priority: 256, ..ok }, "priority"),
            (MessageTerms { delay: Some(year), ..ok }, "delay"),
            (MessageTerms { ttl: Some(year), ..ok }, "ttl"),
            (MessageTerms { ttl: Some(Duration::ZERO), ..ok }, "ttl"),
            (MessageTerms { deliver_at: Some(now + year), ..ok }, "deliver_at"),
            (MessageTerms { ttl: Some(year / 2), delay: Some(year / 2), ..ok }, "ttl"),
            (MessageTerms { ttl: Some(year / 3), deliver_at: Some(now + year / 2), ..ok }, "ttl"),
            (MessageTerms { delay: Some(Duration::ZERO), deliver_at: Some(now), ..ok }, "deliver_at"),
        ] {
            assert_eq!(terms.check(Moment::plain(now)).expect_err(field).field.as_deref(), Some(field));
        }
        let in_time = MessageTerms { ttl: Some(year / 2), delay: Some(year / 3), ..ok };
        assert!(in_time.check(Moment::plain(now)).is_ok());
        let past = MessageTerms { priority: 9, deliver_at: Some(Timestamp(1)), ..ok };
        let stored = past.check(Moment::plain(now)).expect("a time that has passed is now");
        assert_eq!((stored.priority, stored.not_before), (9, None));
    }
}
