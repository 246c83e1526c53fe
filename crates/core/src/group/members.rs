//! Who takes part in a group, with how much credit, and whose turn it is.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;
use std::time::Duration;

use crate::fault::{Fault, planted};
use crate::group::standing::{Bound, Standing, State};
use crate::group::{Budget, Departure};
use crate::seqset::SeqSet;
use crate::types::{ConsumerId, Seq, SeqRange, Timestamp};

/// A consumer without a connection is a member until this long after its last receive or its last lease.
pub const POLLER_IDLE_MAX: Duration = Duration::from_secs(30);

/// How many more messages a consumer is willing to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credit {
    /// Up to this many at any time, and up to this many bytes of content: a slot opens when a message is
    /// settled or lapses. One message always fits, however large.
    Slots { messages: u32, bytes: Option<u64> },
    /// Up to this many in the next delivery, and up to this many bytes of content, and then none until asked
    /// again. One message always fits, however large. `timeout` is the length of these leases, if not the
    /// group's.
    Once { messages: u32, bytes: Option<u64>, timeout: Option<Duration> },
}

impl Credit {
    pub fn slots(messages: u32) -> Credit {
        Credit::Slots { messages, bytes: None }
    }

    pub fn messages(&self) -> u32 {
        let (Credit::Slots { messages, .. } | Credit::Once { messages, .. }) = self;
        *messages
    }
}

/// What a consumer asks for when it joins, beside its credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConsumerTerms {
    /// The length of its leases, if not the group's.
    pub lease: Option<Duration>,
    /// Consumers of a higher rank are served first, while they have room.
    pub rank: i32,
}

/// Where a consumer stands among those with room: the highest rank first, and within a rank in the order in which they
/// came.
type Place = (Reverse<i32>, ConsumerId);

#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) name: Arc<str>,
    pub(crate) credit: Credit,
    pub(crate) bound: Bound,
    pub(crate) terms: ConsumerTerms,
    pub(crate) held: SeqSet,
    /// Bytes of what it holds, where its credit asks for it.
    pub(crate) held_bytes: u64,
    /// Whether a part of the delivery that `Credit::Once` is for has been made up.
    is_fed: bool,
    pub(crate) joined: Timestamp,
    /// Messages for its receive are on their way, whatever has become of their leases.
    is_owed: bool,
    /// When it last received or held something.
    seen: Timestamp,
    pub(crate) acked: u64,
    pub(crate) failed: u64,
}

impl Member {
    fn place(&self, consumer: ConsumerId) -> Place {
        (Reverse(self.terms.rank), consumer)
    }

    pub(crate) fn room(&self) -> u64 {
        match self.credit {
            Credit::Slots { messages, bytes } => {
                let full = bytes.is_some_and(|bytes| self.held_bytes >= bytes && !self.held.is_empty());
                if full { 0 } else { u64::from(messages).saturating_sub(self.held.count()) }
            }
            Credit::Once { bytes: Some(0), .. } if self.is_fed => 0,
            Credit::Once { messages, .. } => messages.into(),
        }
    }

    /// Bytes that still fit, if that matters.
    pub(crate) fn room_bytes(&self) -> Option<u64> {
        match self.credit {
            Credit::Slots { bytes, .. } => bytes.map(|bytes| bytes.saturating_sub(self.held_bytes)),
            Credit::Once { bytes, .. } => bytes,
        }
    }

    /// Whether it takes a message of any size.
    pub(crate) fn takes_any(&self) -> bool {
        match self.credit {
            Credit::Slots { bytes, .. } => bytes.is_none() || self.held.is_empty(),
            Credit::Once { bytes, .. } => bytes.is_none() || !self.is_fed,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Members {
    members: BTreeMap<ConsumerId, Member>,
    /// Those with room. Consumers are numbered as they come, so this is also the order of turns.
    hungry: BTreeSet<Place>,
    served: Option<Place>,
    /// Members with another rank than 0.
    ranked: usize,
    /// The one that gets everything in a group with the strategy `sole`: the first that came. When it leaves, the next
    /// one is the oldest of the highest rank.
    sole: Option<ConsumerId>,
    /// Consumers with room for messages, but not for the bytes of the next message on offer.
    sated: Vec<ConsumerId>,
    /// Consumers that are gone, with the leases they still held. By number, so that the oldest consumers
    /// are handled first.
    leaving: BTreeMap<ConsumerId, Leaving>,
    /// When to look whether a consumer without a connection is still there.
    idle: BTreeSet<(Timestamp, ConsumerId)>,
    /// Messages that members hold, or held when they left and have not given back yet.
    held: u64,
    /// Messages on leases that outlived their holder: it left, or it was there before a restart.
    orphaned: u64,
}

/// A consumer that is gone, and what it still held.
#[derive(Debug)]
struct Leaving {
    name: Arc<str>,
    departure: Departure,
    held: SeqSet,
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

    /// Also counts those for whom what there was to be had so far is too large.
    pub(crate) fn any_with_room(&self) -> bool {
        !self.hungry.is_empty() || !self.sated.is_empty()
    }

    /// How many have room.
    pub(crate) fn hungry(&self) -> u64 {
        self.hungry.len() as u64
    }

    /// How many with room share what comes next: those of the highest rank.
    pub(crate) fn takers(&self) -> u64 {
        match self.hungry.first() {
            Some(&(rank, _)) if self.is_ranked() => self.hungry.range(of_rank(rank)).count() as u64,
            _ => self.hungry.len() as u64,
        }
    }

    fn is_ranked(&self) -> bool {
        self.ranked > 0 && !planted(Fault::RankIgnored)
    }

    /// The consumer that gets everything, with the strategy `sole`.
    pub(crate) fn sole(&self) -> Option<ConsumerId> {
        self.sole
    }

    pub(crate) fn get(&self, consumer: ConsumerId) -> Option<&Member> {
        self.members.get(&consumer)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ConsumerId, &Member)> + '_ {
        self.members.iter().map(|(&consumer, member)| (consumer, member))
    }

    /// The name of a consumer, present or leaving.
    pub(crate) fn name(&self, consumer: ConsumerId) -> Option<Arc<str>> {
        let present = self.members.get(&consumer).map(|member| &member.name);
        present.or_else(|| self.leaving.get(&consumer).map(|leaving| &leaving.name)).cloned()
    }

    pub(crate) fn join(
        &mut self,
        now: Timestamp,
        consumer: ConsumerId,
        name: Arc<str>,
        bound: Bound,
        terms: ConsumerTerms,
    ) {
        let member = Member {
            name,
            credit: Credit::slots(0),
            bound,
            terms,
            held: SeqSet::new(),
            held_bytes: 0,
            is_fed: false,
            is_owed: false,
            joined: now,
            seen: now,
            acked: 0,
            failed: 0,
        };
        let before = self.members.insert(consumer, member);
        assert!(before.is_none(), "a consumer joins a group once");
        self.ranked += usize::from(terms.rank != 0);
        self.sole.get_or_insert(consumer);
        if bound == Bound::Clock {
            self.idle.insert((now + POLLER_IDLE_MAX, consumer));
        }
    }

    pub(crate) fn set_credit(&mut self, now: Timestamp, consumer: ConsumerId, credit: Credit) {
        if let Some(member) = self.members.get_mut(&consumer) {
            member.credit = credit;
            member.is_fed = false;
            member.seen = member.seen.max(now);
            self.weigh(consumer);
        }
    }

    pub(crate) fn set_held_bytes(&mut self, consumer: ConsumerId, bytes: u64) {
        if let Some(member) = self.members.get_mut(&consumer) {
            member.held_bytes = bytes;
        }
    }

    /// The member is gone at once; what it held is released in its own time, a slice a turn. Leases that
    /// hang on the clock are not released by leaving. False if it was not a member.
    pub(crate) fn leave(&mut self, consumer: ConsumerId, departure: Departure) -> bool {
        let Some(member) = self.members.remove(&consumer) else { return false };
        self.hungry.remove(&member.place(consumer));
        self.ranked -= usize::from(member.terms.rank != 0);
        if self.sole == Some(consumer) {
            self.sole = self.successor();
        }
        let released = member.bound == Bound::Connection || departure == Departure::Goodbye;
        if !released {
            self.held -= member.held.count();
            self.orphaned += member.held.count();
        } else if !member.held.is_empty() {
            let leaving = self.leaving.entry(consumer).or_insert(Leaving {
                name: member.name,
                departure,
                held: SeqSet::new(),
            });
            for run in member.held.runs() {
                leaving.held.insert(run);
            }
        }
        true
    }

    /// The oldest member of the highest rank.
    fn successor(&self) -> Option<ConsumerId> {
        if self.ranked == 0 {
            return self.members.keys().next().copied();
        }
        let places = self.members.iter().map(|(&consumer, member)| member.place(consumer));
        places.min().map(|(_, consumer)| consumer)
    }

    /// The next consumer without a connection that has been silent for too long. Thousands may have come at one
    /// instant, so it takes as many turns as the budget says to look at all of them.
    pub(crate) fn next_idle(&mut self, now: Timestamp, budget: &mut Budget) -> Option<ConsumerId> {
        while !budget.is_spent()
            && let Some(&(at, consumer)) = self.idle.first().filter(|(at, _)| *at <= now)
        {
            budget.spend_each(1);
            self.idle.remove(&(at, consumer));
            let Some(member) = self.members.get(&consumer) else { continue };
            let waits = member.credit.messages() > 0 || !member.held.is_empty() || member.is_owed;
            let seen = if waits { now } else { member.seen };
            if seen + POLLER_IDLE_MAX <= now {
                return Some(consumer);
            }
            self.idle.insert((seen + POLLER_IDLE_MAX, consumer));
        }
        None
    }

    pub(crate) fn idle_at(&self) -> Option<Timestamp> {
        self.idle.first().map(|&(at, _)| at)
    }

    pub(crate) fn are_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// The next messages of a consumer that has left, which are to be taken back.
    pub(crate) fn next_left_behind(&self, max: u64) -> Option<(Departure, Arc<str>, SeqRange)> {
        let (_, leaving) = self.leaving.first_key_value()?;
        let run = leaving.held.run_from(Seq::START).expect("a consumer that holds nothing is not leaving");
        let run = SeqRange::starting(run.first, run.count().min(max));
        Some((leaving.departure, leaving.name.clone(), run))
    }

    /// All with room.
    pub(crate) fn all_hungry(&self) -> impl Iterator<Item = ConsumerId> + '_ {
        self.hungry.iter().map(|&(_, consumer)| consumer)
    }

    /// Whose turn it is among those of the highest rank with room.
    pub(crate) fn next_hungry(&self) -> Option<ConsumerId> {
        if !self.is_ranked() {
            return self.next_of_any_rank();
        }
        let &first = self.hungry.first()?;
        let (_, last) = of_rank(first.0).into_inner();
        let served = self.served.filter(|served| served.0 == first.0);
        let next = served.and_then(|served| self.hungry.range((Excluded(served), Included(last))).next());
        Some(next.map_or(first.1, |&(_, consumer)| consumer))
    }

    /// Whose turn it is among all with room.
    pub(crate) fn next_of_any_rank(&self) -> Option<ConsumerId> {
        let after = self.served.map_or(Unbounded, Excluded);
        let next = self.hungry.range((after, Unbounded)).next().or_else(|| self.hungry.first());
        next.map(|&(_, consumer)| consumer)
    }

    /// The consumer that was served last while it has room, and then the next.
    pub(crate) fn same_hungry(&self) -> Option<ConsumerId> {
        let highest = self.hungry.first().map(|&(rank, _)| rank);
        let same = self.served.filter(|served| Some(served.0) == highest && self.hungry.contains(served));
        same.map(|(_, consumer)| consumer).or_else(|| self.next_hungry())
    }

    /// The messages on offer are too large for this consumer, for this turn.
    pub(crate) fn sate(&mut self, consumer: ConsumerId) {
        if let Some(member) = self.members.get(&consumer) {
            self.hungry.remove(&member.place(consumer));
        }
        self.sated.push(consumer);
    }

    /// The messages on offer now may be smaller.
    pub(crate) fn wake_sated(&mut self) {
        for consumer in std::mem::take(&mut self.sated) {
            self.weigh(consumer);
        }
    }

    /// It is the next consumer's turn, although this one was given nothing.
    pub(crate) fn passed_over(&mut self, consumer: ConsumerId) {
        if let Some(member) = self.members.get(&consumer) {
            self.served = Some(member.place(consumer));
        }
    }

    pub(crate) fn gave(&mut self, consumer: ConsumerId, seqs: SeqRange, bytes: u64) {
        let member = self.members.get_mut(&consumer).expect("only a member is given messages");
        self.served = Some(member.place(consumer));
        self.held += member.held.insert(seqs);
        member.is_owed = member.bound == Bound::Clock;
        match &mut member.credit {
            Credit::Slots { .. } => member.held_bytes += bytes,
            Credit::Once { messages, bytes: left, .. } => {
                *messages = u64::from(*messages).saturating_sub(seqs.count()) as u32;
                *left = left.map(|left| left.saturating_sub(bytes));
                member.is_fed = true;
            }
        }
        self.weigh(consumer);
    }

    /// Everything that was leased to a consumer without a connection has left the server, or never will.
    pub(crate) fn served(&mut self, now: Timestamp, consumer: ConsumerId) {
        if let Some(member) = self.members.get_mut(&consumer) {
            member.is_owed = false;
            member.seen = member.seen.max(now);
        }
    }

    /// The delivery that `Credit::Once` was for has been made up.
    pub(crate) fn end_credit_once(&mut self, consumer: ConsumerId) {
        if let Some(member) = self.members.get_mut(&consumer)
            && let Credit::Once { messages, .. } = &mut member.credit
        {
            *messages = 0;
            let place = member.place(consumer);
            self.hungry.remove(&place);
        }
    }

    /// Messages are not on a lease any more. `holder`: the consumer that they were leased to in this epoch.
    pub(crate) fn took_back(
        &mut self,
        now: Timestamp,
        holder: Option<ConsumerId>,
        seqs: SeqRange,
        bytes: u64,
    ) {
        let mut orphans = seqs.count();
        let Some(consumer) = holder else {
            self.orphaned -= orphans;
            return;
        };
        if let Some(member) = self.members.get_mut(&consumer) {
            let removed = member.held.remove(seqs);
            self.held -= removed;
            orphans -= removed;
            // Sizes are known by ranges, so the sum may be off by a little until nothing is held.
            member.held_bytes = member.held_bytes.saturating_sub(bytes);
            if member.held.is_empty() {
                member.held_bytes = 0;
            }
            member.seen = member.seen.max(now);
            self.weigh(consumer);
        }
        if let Some(leaving) = self.leaving.get_mut(&consumer).filter(|_| orphans > 0) {
            let removed = leaving.held.remove(seqs);
            self.held -= removed;
            orphans -= removed;
            if leaving.held.is_empty() {
                self.leaving.remove(&consumer);
            }
        }
        self.orphaned -= orphans;
    }

    /// Messages are leased to consumers that are not known: they were there before a restart.
    pub(crate) fn orphan(&mut self, messages: u64) {
        self.orphaned += messages;
    }

    /// Adds up what must agree.
    pub(crate) fn check(&self, leased: u64) {
        assert_eq!(self.held + self.orphaned, leased, "every lease has a holder, or outlived it");
    }

    /// As `check`, member by member.
    pub(crate) fn check_all(&self, standing: &Standing) {
        let members = self.members.iter().map(|(&consumer, member)| (consumer, &member.held));
        let leaving = self.leaving.iter().map(|(&consumer, leaving)| (consumer, &leaving.held));
        let mut held = 0;
        for (consumer, seqs) in members.chain(leaving) {
            held += seqs.count();
            for (_, state) in seqs.runs().flat_map(|run| standing.pieces(run)) {
                let is_holder = matches!(state, Some(State::Leased(lease)) if lease.holder == Some(consumer));
                assert!(is_holder, "a message that a consumer holds is leased to it");
            }
        }
        assert_eq!(self.held, held, "the messages held are those of all members and leavers");
        let ranked = self.members.values().filter(|member| member.terms.rank != 0).count();
        assert_eq!(self.ranked, ranked, "members with a rank are counted");
        let sole = self.sole.is_some_and(|sole| self.members.contains_key(&sole));
        assert_eq!(sole, self.any(), "one of the members would be the only one to be served");
        for (&consumer, member) in &self.members {
            let is_hungry = self.hungry.contains(&member.place(consumer)) || self.sated.contains(&consumer);
            assert!(member.room() == 0 || is_hungry, "a member with room is served");
        }
    }

    /// Whether the bytes that a consumer holds are counted.
    pub(crate) fn counts_bytes(&self, consumer: ConsumerId) -> bool {
        let counts = |member: &Member| matches!(member.credit, Credit::Slots { bytes: Some(_), .. });
        self.members.get(&consumer).is_some_and(counts)
    }

    /// Whether a message may be too large for a consumer with room.
    pub(crate) fn is_choosy(&self, consumer: ConsumerId) -> bool {
        self.members.get(&consumer).is_some_and(|member| !member.takes_any())
    }

    pub(crate) fn count_acked(&mut self, consumer: ConsumerId, count: u64) {
        if let Some(member) = self.members.get_mut(&consumer) {
            member.acked += count;
        }
    }

    pub(crate) fn count_failed(&mut self, consumer: ConsumerId, count: u64) {
        if let Some(member) = self.members.get_mut(&consumer) {
            member.failed += count;
        }
    }

    fn weigh(&mut self, consumer: ConsumerId) {
        let Some(member) = self.members.get(&consumer) else { return };
        let place = member.place(consumer);
        if member.room() > 0 {
            self.hungry.insert(place);
        } else {
            self.hungry.remove(&place);
        }
    }
}

/// All places of a rank.
fn of_rank(rank: Reverse<i32>) -> std::ops::RangeInclusive<Place> {
    (rank, ConsumerId(0))..=(rank, ConsumerId(u64::MAX))
}
