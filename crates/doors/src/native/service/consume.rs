//! Consuming: receiving on leases that last until their deadline, and settling leases. The streaming call of gRPC reads
//! its settlements with [`Terms::settlement`] too.

use std::time::Duration;

use forebay_broker::api::{CallError, Delivered, Hold, Outcome, REST_MAX, Receive, Settlement, Verb};
use forebay_core::types::{GroupName, StreamName};
use forebay_wire::json::Span;

use super::{
    Answer, Service, check_consumer, check_duration, check_some_duration, content_bytes, reply_bytes,
};
use crate::native::limits::{LEASES_MAX, RECEIVE_MAX, WAIT_MAX};
use crate::native::problem::Refusal;

/// A wish for messages.
#[derive(Debug, Clone, Default)]
pub(in crate::native) struct Wish {
    pub(in crate::native) consumer: String,
    pub(in crate::native) max: Option<u32>,
    /// How many bytes of content the codec can put into one answer.
    pub(in crate::native) bytes: usize,
    /// How long to wait for the first message.
    pub(in crate::native) wait: Duration,
    /// How long the leases last. None: as long as the group says.
    pub(in crate::native) timeout: Option<Duration>,
}

/// What a consumer wants done with its leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::native) enum Action<'a> {
    Ack,
    /// A retry, or what the group does when the retries are used up.
    Retry,
    Park,
    Skip,
    Return,
    /// To the stream of this name.
    Move(&'a str),
    /// A new deadline, `delay` from now.
    Extend,
}

/// An action, and its details.
#[derive(Debug, Clone)]
pub(in crate::native) struct Terms<'a> {
    pub(in crate::native) action: Action<'a>,
    pub(in crate::native) delay: Option<Duration>,
    /// Any length: the core keeps the beginning.
    pub(in crate::native) reason: Option<String>,
    /// For how long the whole group should hand out nothing.
    pub(in crate::native) rest: Option<Duration>,
}

impl Terms<'_> {
    pub(in crate::native) fn of(action: Action<'_>) -> Terms<'_> {
        Terms { action, delay: None, reason: None, rest: None }
    }

    /// The same as the broker takes it.
    pub(in crate::native) fn settlement(self) -> Answer<Settlement> {
        let Terms { action, delay, reason, rest } = self;
        let verb = match action {
            Action::Extend => {
                let by = check_some_duration("by", delay)?;
                let by = by.ok_or_else(|| Refusal::field("by", "must be given"))?;
                Verb::Extend { by, total_max: None }
            }
            Action::Retry => Verb::Retry { delay: check_duration("delay", delay)? },
            Action::Return => Verb::Return { delay: check_duration("delay", delay)? },
            _ if delay.is_some() => {
                let rule = "must not be given: only a retry and a return have a delay";
                return Err(Refusal::field("delay", rule));
            }
            Action::Ack => Verb::Ack,
            Action::Park => Verb::Park,
            Action::Skip => Verb::Skip,
            Action::Move(to) => {
                let to = StreamName::parse(to).map_err(|error| Refusal::field("action.move", error))?;
                Verb::Move(to)
            }
        };
        if let Some(rest) = rest {
            if matches!(verb, Verb::Extend { .. }) {
                return Err(Refusal::field("rest", "must not be given: an extension settles nothing"));
            }
            if rest > REST_MAX {
                let rule = format!("must be at most {}", Span(REST_MAX));
                return Err(Refusal::value("rest", rule, Span(rest)));
            }
        }
        Ok(Settlement { verb, reason: reason.filter(|reason| !reason.is_empty()), late: false, rest })
    }
}

impl Service {
    /// Takes messages with no more than so many bytes of content, and at least one, with the receipt of each and room
    /// for the reply. If there is no room for them, they go back to the group.
    pub(in crate::native) async fn receive(
        &self,
        stream: StreamName,
        group: GroupName,
        wish: Wish,
    ) -> Answer<(Vec<(String, Delivered)>, Hold)> {
        let Wish { consumer, max, bytes, wait, timeout } = wish;
        check_consumer(&consumer)?;
        let max = max.unwrap_or(1);
        if !(1..=RECEIVE_MAX).contains(&max) {
            return Err(Refusal::value("max", format!("must be between 1 and {RECEIVE_MAX}"), max));
        }
        if wait > WAIT_MAX {
            let rule = format!("must be at most {}", Span(WAIT_MAX));
            return Err(Refusal::value("wait", rule, Span(wait)));
        }
        let timeout = check_some_duration("timeout", timeout)?;
        let receive =
            Receive { consumer, max, bytes: Some(bytes as u64), wait, timeout, refuse_when_full: false };
        let received = self.answer(self.caller.receive(stream, group, receive).await)?;
        let size = |most: usize| reply_bytes(received.len(), received.bytes_within(most));
        let hold = match self.share.take(size(bytes)).await {
            Some(hold) => hold,
            // Some of them may find room still.
            None => self.share.take_up_to(size(bytes)),
        };
        let most = bytes.min(content_bytes(hold.bytes()));
        if size(most) > hold.bytes() && received.bytes_within(most) > most {
            return Err(self.refused(&CallError::TooManyBytes));
        }
        Ok((received.take_within(most), hold))
    }

    /// Ends leases, or prolongs them. Says of each, in order, what became of it.
    pub(in crate::native) async fn settle(
        &self,
        stream: StreamName,
        group: GroupName,
        leases: &[String],
        terms: Terms<'_>,
    ) -> Answer<Vec<Outcome>> {
        if leases.is_empty() || leases.len() > LEASES_MAX {
            let rule = format!("must have between 1 and {LEASES_MAX} entries");
            return Err(Refusal::value("leases", rule, leases.len()));
        }
        self.answer(self.caller.settle(stream, group, leases, terms.settlement()?).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_that_do_not_fit_their_verb_are_refused_by_name() {
        let (second, long) = (Some(Duration::from_secs(1)), Some(Duration::from_secs(367 * 86_400)));
        let of = Terms::of;
        for (terms, field) in [
            (Terms { delay: second, ..of(Action::Ack) }, "delay"),
            (Terms { delay: second, ..of(Action::Park) }, "delay"),
            (Terms { delay: long, ..of(Action::Retry) }, "delay"),
            (of(Action::Extend), "by"),
            (Terms { delay: Some(Duration::ZERO), ..of(Action::Extend) }, "by"),
            (Terms { delay: second, rest: second, ..of(Action::Extend) }, "rest"),
            (Terms { rest: Some(REST_MAX * 2), ..of(Action::Retry) }, "rest"),
            (of(Action::Move("$x")), "action.move"),
            (of(Action::Move("")), "action.move"),
        ] {
            assert_eq!(terms.settlement().expect_err(field).field.as_deref(), Some(field));
        }
        let long = Terms { reason: Some("x".repeat(10_000)), ..of(Action::Park) };
        assert!(long.settlement().is_ok(), "a long reason is cut and not refused");
    }
}
