//! Who takes part in a group, with how much credit, and whose turn it is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use crate::group::Departure;
use crate::group::standing::Bound;
use crate::seqset::SeqSet;
use crate::types::{ConsumerId, SeqRange};

/// How many more messages a consumer is willing to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credit {
    /// Up to this many at any time: a slot opens when a message is settled or lapses.
    Slots(u32),
    /// Up to this many in the next delivery, and then none until asked again. `timeout` is the length of
    /// these leases, if not the group's.
    Once { messages: u32, timeout: Option<Duration> },
}

#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) credit: Credit,
    pub(crate) bound: Bound,
    pub(crate) held: SeqSet,
}

impl Member {
    pub(crate) fn room(&self) -> u64 {
        match self.credit {
            Credit::Slots(slots) => u64::from(slots).saturating_sub(self.held.count()),
            Credit::Once { messages, .. } => messages.into(),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Members {
    members: BTreeMap<ConsumerId, Member>,
    /// Those with room. Consumers are numbered as they come, so this is also the order of turns.
    hungry: BTreeSet<ConsumerId>,
    served: Option<ConsumerId>,
    /// Those that are gone, with what they still held. By number, so that those who came first are seen
    /// to first.
    leaving: BTreeMap<ConsumerId, Leaving>,
}

/// A consumer that is gone, and what it still held.
#[derive(Debug)]
pub(crate) struct Leaving {
    pub(crate) departure: Departure,
    pub(crate) held: SeqSet,
}

impl Members {
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn any(&self) -> bool {
        !self.members.is_empty()
    }

    pub(crate) fn any_hungry(&self) -> bool {
        !self.hungry.is_empty()
    }

    pub(crate) fn hungry(&self) -> u64 {
        self.hungry.len() as u64
    }

    pub(crate) fn get(&self, consumer: ConsumerId) -> Option<&Member> {
        self.members.get(&consumer)
    }

    pub(crate) fn join(&mut self, consumer: ConsumerId, bound: Bound) {
        let member = Member { credit: Credit::Slots(0), bound, held: SeqSet::new() };
        let before = self.members.insert(consumer, member);
        assert!(before.is_none(), "a consumer joins a group once");
    }

    pub(crate) fn set_credit(&mut self, consumer: ConsumerId, credit: Credit) {
        if let Some(member) = self.members.get_mut(&consumer) {
            member.credit = credit;
            self.weigh(consumer);
        }
    }

    /// The member is gone at once; what it held is released in its own time, a slice a turn. Leases that
    /// hang on the clock are not released by leaving.
    pub(crate) fn leave(&mut self, consumer: ConsumerId, departure: Departure) {
        self.hungry.remove(&consumer);
        if let Some(member) = self.members.remove(&consumer) {
            let released = member.bound == Bound::Connection || departure == Departure::Goodbye;
            if released && !member.held.is_empty() {
                self.leaving.insert(consumer, Leaving { departure, held: member.held });
            }
        }
    }

    pub(crate) fn are_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// The next messages of a consumer that has left.
    pub(crate) fn next_left_behind(&mut self, max: u64) -> Option<(Departure, SeqRange)> {
        let mut leaving = self.leaving.first_entry()?;
        let departure = leaving.get().departure;
        let run = leaving.get_mut().held.pop_run(max).expect("those who hold nothing are not kept");
        if leaving.get().held.is_empty() {
            leaving.remove();
        }
        Some((departure, run))
    }

    /// Whose turn it is among those with room.
    pub(crate) fn next_hungry(&self) -> Option<ConsumerId> {
        let after = self.served.map_or(Unbounded, Excluded);
        self.hungry.range((after, Unbounded)).next().or_else(|| self.hungry.first()).copied()
    }

    pub(crate) fn gave(&mut self, consumer: ConsumerId, seqs: SeqRange) {
        self.served = Some(consumer);
        let member = self.members.get_mut(&consumer).expect("only a member is given messages");
        member.held.insert(seqs);
        if let Credit::Once { messages, .. } = &mut member.credit {
            *messages = u64::from(*messages).saturating_sub(seqs.count()) as u32;
        }
        self.weigh(consumer);
    }

    /// The delivery that `Credit::Once` was for has been made up.
    pub(crate) fn end_credit_once(&mut self, consumer: ConsumerId) {
        if let Some(member) = self.members.get_mut(&consumer)
            && let Credit::Once { messages, .. } = &mut member.credit
        {
            *messages = 0;
            self.hungry.remove(&consumer);
        }
    }

    pub(crate) fn took_back(&mut self, consumer: ConsumerId, seqs: SeqRange) {
        if let Some(member) = self.members.get_mut(&consumer) {
            member.held.remove(seqs);
            self.weigh(consumer);
        } else if let Some(leaving) = self.leaving.get_mut(&consumer) {
            leaving.held.remove(seqs);
            if leaving.held.is_empty() {
                self.leaving.remove(&consumer);
            }
        }
    }

    fn weigh(&mut self, consumer: ConsumerId) {
        let has_room = self.members.get(&consumer).is_some_and(|member| member.room() > 0);
        if has_room {
            self.hungry.insert(consumer);
        } else {
            self.hungry.remove(&consumer);
        }
    }
}
