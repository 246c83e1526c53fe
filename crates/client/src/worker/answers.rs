//! Settlements that were sent to the server, and the answers that are still missing.

use std::collections::VecDeque;

use forebay_wire::v1;

use super::desk::Verdict;
use crate::consumer::{Lease, Settlement};

/// A settlement without an answer yet.
pub(super) struct Sent {
    ticket: u64,
    pub(super) leases: Vec<Lease>,
    pub(super) about: About,
}

pub(super) enum About {
    Acks,
    /// One message.
    Verdict {
        attempt: u32,
        verdict: Verdict,
    },
    Renewal,
}

#[derive(Default)]
pub(super) struct Answers {
    missing: VecDeque<Sent>,
    ticket: u64,
}

impl Answers {
    /// The settlement to send, whose answer is expected from now on.
    pub(super) fn expect(
        &mut self,
        settlement: Settlement,
        leases: Vec<Lease>,
        about: About,
    ) -> v1::Settlement {
        self.ticket += 1;
        let wire = settlement.into_wire(self.ticket, leases.iter().copied());
        self.missing.push_back(Sent { ticket: self.ticket, leases, about });
        wire
    }

    /// The settlement that an answer is for. Answers come in the order of the requests, except refusals, which come at
    /// once.
    pub(super) fn take(&mut self, ticket: u64) -> Option<Sent> {
        let at = self.missing.iter().position(|sent| sent.ticket == ticket)?;
        self.missing.remove(at)
    }

    /// No more answers will come. Says how many acks are left without one.
    pub(super) fn give_up(&mut self) -> u64 {
        let acks = self.missing.drain(..).filter(|sent| matches!(sent.about, About::Acks));
        acks.map(|sent| sent.leases.len() as u64).sum()
    }
}

/// How a verdict is told to the server. `None` for acks, which are sent together, for messages that are acked already,
/// and for a lost lease.
pub(super) fn settlement(verdict: &Verdict) -> Option<Settlement> {
    let after = |settlement: Settlement, after: &Option<_>| match after {
        Some(after) => settlement.after(*after),
        None => settlement,
    };
    Some(match verdict {
        Verdict::Ack | Verdict::Duplicate | Verdict::Finished | Verdict::Lost => return None,
        Verdict::Retry { after: wait, reason } => after(Settlement::retry(), wait).reason(reason),
        Verdict::Park { reason } => Settlement::park().reason(reason),
        Verdict::Skip { reason } => Settlement::skip().reason(reason),
        Verdict::Return { after: wait } => after(Settlement::give_back(), wait),
        Verdict::NoStore { after } => Settlement::give_back().after(*after),
        Verdict::Throttled { after, reason } => {
            Settlement::give_back().after(*after).reason(reason).rest(*after)
        }
    })
}
