//! The actions and observations of the callers of a history, and the promises that follow from them. The model knows
//! nothing that a caller could not know: a message is held from the moment a caller has it until the first moment at
//! which the server may have taken it back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forebay_broker::api::{
    self, Bound, Delivered, GroupFigures, Lease, Outcome, Published, Verb, parse_content,
};
use forebay_core::types::{Epoch, Grant, GroupName, Ordinal, Seq, StreamName, Timestamp};

use crate::tale::tell;

/// How late the server may notice that a lease has lapsed, and begin its backoff only then.
const NOTICED: Duration = Duration::from_millis(150);

/// Names a message. Its body begins with the number.
pub(super) type Id = u64;

/// A group, as it was created.
#[derive(Debug, Clone)]
pub(super) struct GroupPlan {
    pub(super) stream: StreamName,
    pub(super) name: GroupName,
    pub(super) is_ordered: bool,
    pub(super) has_durable_acks: bool,
    pub(super) timeout: Duration,
    pub(super) retries: Option<u32>,
    pub(super) backoff: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Its caller went away before the call.
    Unsent,
    /// It may be stored or not.
    Sent,
    Confirmed(Seq),
    Refused,
}

#[derive(Debug)]
struct Message {
    stream: StreamName,
    key: Option<String>,
    kind: Option<&'static str>,
    bytes: usize,
    fate: Fate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    Open,
    /// A request to settle it was not answered, or its answer may not have survived a crash.
    Unsure,
    Settled,
    Parked,
}

#[derive(Debug)]
struct Held {
    lease: Lease,
    bound: Bound,
    attempt: u32,
    deadline: Timestamp,
    /// As it was when the message came. A crash may undo a change that was answered without waiting for the disk.
    first_deadline: Timestamp,
    /// The latest time at which it may end by itself, if a request to prolong it counted and was not answered.
    latest: Timestamp,
    /// From then on the server may have given the message to another consumer.
    ended: Option<Timestamp>,
    /// A request to end it was sent.
    was_asked: bool,
    /// When a request about it was last sent, no later lease of the message had come to any caller.
    was_newest: bool,
    /// The life of the server to which the request was sent.
    asked: Epoch,
}

#[derive(Debug)]
struct Standing {
    held: Vec<Held>,
    done: Done,
    /// The earliest time at which backoff cannot keep it back any more.
    free_from: Timestamp,
}

#[derive(Debug, Default)]
struct Group {
    messages: BTreeMap<Id, Standing>,
    /// Receives and connected consumers with credit that wait, and consumers that may have messages which they did not
    /// take out yet.
    waiting: u32,
    untaken: u32,
    /// When something last came out of the group or into its stream.
    moved: Timestamp,
    /// How long the leases of receives last whose messages were not all taken out, for each of these receives. If its
    /// server goes, nothing gives these messages back.
    receives: BTreeMap<u64, Duration>,
    /// Until then messages may be leased to receives whose server has gone.
    lost_until: Timestamp,
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) plans: Vec<GroupPlan>,
    groups: Vec<Group>,
    messages: BTreeMap<Id, Message>,
    /// Which message is where, since no position is given twice.
    places: BTreeMap<(StreamName, Seq), Id>,
    /// Where a message is in the log, as its producer was told.
    ordinals: BTreeMap<Id, Ordinal>,
    pub(super) deliveries: u64,
    pub(super) redeliveries: u64,
    /// The life of the server, as its leases tell it, and the last one that ended with a crash.
    epoch: Epoch,
    crashed: Option<Epoch>,
    next: Id,
    next_receive: u64,
}

impl Model {
    pub(super) fn new(plans: Vec<GroupPlan>) -> Model {
        let groups = plans.iter().map(|_| Group::default()).collect();
        let (messages, places) = (BTreeMap::new(), BTreeMap::new());
        Model {
            plans,
            groups,
            messages,
            places,
            ordinals: BTreeMap::new(),
            deliveries: 0,
            redeliveries: 0,
            epoch: Epoch(1),
            crashed: None,
            next: 1,
            next_receive: 0,
        }
    }

    /// A message that a caller is about to publish.
    pub(super) fn drafted(
        &mut self,
        stream: &StreamName,
        key: Option<String>,
        kind: Option<&'static str>,
        bytes: usize,
    ) -> Id {
        let id = self.next;
        self.next += 1;
        self.messages.insert(id, Message { stream: stream.clone(), key, kind, bytes, fate: Fate::Unsent });
        id
    }

    pub(super) fn sent(&mut self, ids: &[Id]) {
        for id in ids {
            self.messages.get_mut(id).expect("it was drafted").fate = Fate::Sent;
        }
    }

    pub(super) fn refused(&mut self, ids: &[Id]) {
        for id in ids {
            self.messages.get_mut(id).expect("it was drafted").fate = Fate::Refused;
        }
    }

    pub(super) fn confirmed(&mut self, now: Timestamp, ids: &[Id], published: &Published) {
        let seqs: Vec<Seq> = published.each().map(|(admission, _)| admission.seq).collect();
        assert_eq!(seqs.len(), ids.len(), "I1: a confirmation names each message");
        for (&id, (_, ordinal)) in ids.iter().zip(published.each()) {
            self.ordinals.extend(ordinal.map(|ordinal| (id, ordinal)));
        }
        for (&id, &seq) in ids.iter().zip(&seqs) {
            self.place(id, seq);
            self.messages.get_mut(&id).expect("it was drafted").fate = Fate::Confirmed(seq);
        }
        let stream = self.messages[&ids[0]].stream.clone();
        for (plan, group) in self.plans.iter().zip(&mut self.groups) {
            if plan.stream == stream {
                group.moved = now;
            }
        }
    }

    fn place(&mut self, id: Id, seq: Seq) {
        let stream = self.messages[&id].stream.clone();
        let there = *self.places.entry((stream, seq)).or_insert(id);
        assert_eq!(there, id, "I11: two messages are at position {seq}");
    }

    /// A caller has this message now.
    pub(super) fn delivered(&mut self, now: Timestamp, of: usize, bound: Bound, message: &Delivered) -> Id {
        let parsed = parse_content(&message.content).expect("I2: the content can be read");
        let id =
            parsed.body.first_chunk().map(|id| Id::from_le_bytes(*id)).expect("I2: the body has its number");
        let lease = message.lease;
        let sent = self.messages.get(&id).unwrap_or_else(|| panic!("I2: {id} was never published"));
        let name = &self.plans[of].name;
        assert!(
            matches!(sent.fate, Fate::Sent | Fate::Confirmed(_)),
            "I2: {id} came to {name:?} and is {:?}",
            sent.fate
        );
        assert_eq!(parsed.key, sent.key.as_deref().map(str::as_bytes), "I2: {id} has another key");
        assert_eq!(parsed.body.len(), sent.bytes, "I2: {id} has another body");
        assert!(sent.stream == self.plans[of].stream, "I2: {id} is of another stream");
        if let Fate::Confirmed(seq) = sent.fate {
            assert_eq!(lease.seq, seq, "I2: {id} is at another position than its producer was told");
        }
        let key = sent.key.clone();
        self.place(id, lease.seq);
        self.check_key(now, of, id, key.as_deref(), lease);
        let group = &mut self.groups[of];
        group.moved = now;
        self.deliveries += 1;
        let open = || Standing { held: Vec::new(), done: Done::Open, free_from: Timestamp::ZERO };
        let standing = group.messages.entry(id).or_insert_with(open);
        self.redeliveries += u64::from(!standing.held.is_empty());
        let attempt = message.attempt.0;
        let most = standing.held.iter().map(|held| held.attempt).max().unwrap_or(0);
        // Attempts whose messages no caller took out may have counted, if the consumer was lost.
        assert!(attempt >= 1, "I8: {id} comes in attempt {attempt} after {most}");
        // It lay in the queue of a consumer whose server is gone.
        let is_over = bound == Bound::Connection && lease.epoch < self.epoch;
        for held in &standing.held {
            assert_ne!(held.lease, lease, "I3: {id} came twice on one lease");
            if held.order() < (lease.epoch, lease.grant) {
                assert!(
                    held.has_ended(now),
                    "I3: {id} came at {} on {lease:?} and is held on {:?} until {}",
                    now.0,
                    held.lease,
                    held.deadline.0
                );
            } else {
                // It lay in a queue until it was taken from its consumer.
                assert!(
                    message.deadline <= now || is_over,
                    "I3: {id} was taken out on {lease:?} while it is held on {:?}",
                    held.lease
                );
            }
        }
        let is_newest = standing.held.iter().all(|held| held.order() < (lease.epoch, lease.grant));
        if is_newest && !is_over {
            let done = standing.done;
            assert!(
                !matches!(done, Done::Settled | Done::Parked),
                "I5: {id} came again on {lease:?} after its consumer was told that it is {done:?}"
            );
            standing.done = Done::Open;
        }
        let deadline = message.deadline;
        let ended = is_over.then_some(now);
        standing.held.push(Held {
            lease,
            bound,
            attempt,
            deadline,
            first_deadline: deadline,
            latest: deadline,
            ended,
            was_asked: false,
            was_newest: true,
            asked: self.epoch,
        });
        id
    }

    /// One message of a key at a time, in order.
    fn check_key(&self, now: Timestamp, of: usize, id: Id, key: Option<&str>, lease: Lease) {
        let Some(key) = key.filter(|_| self.plans[of].is_ordered) else { return };
        let group = &self.groups[of];
        for (&other, standing) in group.messages.iter().filter(|(other, _)| **other != id) {
            if self.messages[&other].key.as_deref() != Some(key) {
                continue;
            }
            let before = |held: &&Held| held.order() < (lease.epoch, lease.grant);
            for held in standing.held.iter().filter(before) {
                assert!(
                    held.has_ended(now),
                    "I6: {id} came at {} while {other} of its key is held until {}",
                    now.0,
                    held.deadline.0
                );
            }
            // Only a message that was seen can be said to be before this one and not done.
            let is_before = standing.held.first().is_some_and(|held| held.lease.seq < lease.seq);
            let newest = standing.held.iter().all(|held| before(&held));
            assert!(
                !(is_before && newest && standing.done == Done::Open && !self.may_park(of)),
                "I6: {id} came before {other} of its key was done"
            );
        }
    }

    /// Whether retries may be used up. Deliveries to a consumer that is lost before it takes them out count too, and no
    /// caller sees them.
    fn may_park(&self, of: usize) -> bool {
        self.plans[of].retries.is_some()
    }

    fn held(&mut self, of: usize, id: Id, lease: Lease) -> Option<(&mut Done, &mut Timestamp, &mut Held)> {
        let standing = self.groups[of].messages.get_mut(&id)?;
        let held = standing.held.iter_mut().find(|held| held.lease == lease)?;
        Some((&mut standing.done, &mut standing.free_from, held))
    }

    /// A caller sends a request about a lease.
    pub(super) fn asked(&mut self, now: Timestamp, of: usize, (id, lease): (Id, Lease), verb: &Verb) {
        let backoff = self.plans[of].backoff;
        let is_newest = self.is_newest(of, id, lease);
        let epoch = self.epoch;
        let Some((done, free_from, held)) = self.held(of, id, lease) else { return };
        (held.was_newest, held.asked) = (is_newest, epoch);
        if let Verb::Extend { by, .. } = verb {
            held.deadline = held.deadline.min(now + *by);
            held.latest = held.latest.max(now + *by);
            return;
        }
        held.ended.get_or_insert(now);
        held.was_asked = true;
        if is_newest {
            *free_from = (*free_from).max(now + backoff);
            if *done == Done::Open {
                *done = Done::Unsure;
            }
        }
    }

    fn is_newest(&self, of: usize, id: Id, lease: Lease) -> bool {
        let standing = self.groups[of].messages.get(&id);
        standing.is_none_or(|standing| {
            standing.held.iter().all(|held| held.order() <= (lease.epoch, lease.grant))
        })
    }

    /// The server's answer to a request that was sent at `asked`. `could_count`: no earlier request about the lease was
    /// on its way.
    pub(super) fn answered(
        &mut self,
        (asked, now): (Timestamp, Timestamp),
        of: usize,
        (id, lease): (Id, Lease),
        verb: &Verb,
        outcome: Outcome,
        could_count: bool,
    ) {
        let (backoff, is_sure) = (self.plans[of].backoff, self.plans[of].has_durable_acks);
        let is_newest = self.is_newest(of, id, lease);
        let crashed = self.crashed;
        let Some((done, free_from, held)) = self.held(of, id, lease) else { return };
        // The answer was sent by a server that has died since, and the change may not have been durable.
        let may_be_undone = !is_sure && crashed.is_some_and(|crashed| held.asked <= crashed);
        tell(|| format!("{id} on {lease:?}: {verb:?} is answered {outcome:?}"));
        let deadline = held.deadline;
        match outcome {
            _ if may_be_undone => return,
            Outcome::NotYours(_) => {
                let is_over = deadline <= now || !could_count;
                assert!(
                    is_over,
                    "I15: {verb:?} of {id}, held until {} at {}: {outcome:?}",
                    deadline.0, now.0
                );
                if is_newest && *done == Done::Unsure && !held.was_asked {
                    *done = Done::Open;
                }
                return;
            }
            Outcome::Extended => {
                if let Verb::Extend { by, .. } = verb {
                    held.deadline = asked + *by;
                }
                return;
            }
            _ => {}
        }
        let was_newest = held.was_newest;
        assert!(was_newest, "I15: {verb:?} of {id} on {lease:?} counted, and another consumer had it since");
        let now_is = match (verb, outcome) {
            (Verb::Ack, Outcome::Acked) | (Verb::Skip, Outcome::Skipped) => Done::Settled,
            (Verb::Park | Verb::Retry { .. }, Outcome::Parked) => Done::Parked,
            (Verb::Retry { .. }, Outcome::Retrying) | (Verb::Return { .. }, Outcome::Returned) => Done::Open,
            _ => panic!("I15: {outcome:?} is no answer to {verb:?} of {id}"),
        };
        if now_is == Done::Open {
            // It may have come to another consumer before the answer was taken.
            if is_newest {
                *done = Done::Open;
                *free_from = (*free_from).max(now + backoff);
            }
            return;
        }
        assert!(is_newest, "I5: {id} came again, and {verb:?} on {lease:?} was answered {outcome:?}");
        *done = now_is;
    }

    /// A caller has gone, or a consumer has left. Leases that hang on the connection may be over.
    pub(super) fn let_go(&mut self, now: Timestamp, of: usize, (id, lease): (Id, Lease)) {
        let backoff = self.plans[of].backoff;
        if let Some((_, free_from, held)) = self.held(of, id, lease)
            && held.bound == Bound::Connection
        {
            held.ended.get_or_insert(now);
            *free_from = (*free_from).max(now + backoff);
        }
    }

    /// The server is gone. After a clean stop everything that it decided is in the log.
    pub(super) fn server_gone(&mut self, now: Timestamp, is_clean: bool) {
        if !is_clean {
            self.crashed = Some(self.epoch);
        }
        self.epoch = Epoch(self.epoch.0 + 1);
        for (plan, group) in self.plans.iter().zip(&mut self.groups) {
            let lasts = std::mem::take(&mut group.receives).into_values().max();
            let until = lasts.map(|lasts| now + lasts + plan.backoff + NOTICED);
            group.lost_until = group.lost_until.max(until.unwrap_or_default());
            for standing in group.messages.values_mut() {
                for held in &mut standing.held {
                    if held.bound == Bound::Connection {
                        held.ended.get_or_insert(now);
                    }
                    if !is_clean && !plan.has_durable_acks {
                        held.deadline = held.deadline.min(held.first_deadline);
                    }
                }
                let is_done = matches!(standing.done, Done::Settled | Done::Parked);
                if is_done && !is_clean && !plan.has_durable_acks {
                    standing.done = Done::Unsure;
                }
            }
        }
    }

    /// Counts a caller that waits for messages of a group, or does not any more.
    pub(super) fn waits(&mut self, now: Timestamp, of: usize, more: bool) {
        let group = &mut self.groups[of];
        group.waiting = if more { group.waiting + 1 } else { group.waiting - 1 };
        group.moved = now;
    }

    /// A caller sends a receive, whose leases last this long if it says so. Returns the number of the receive.
    pub(super) fn receives(&mut self, of: usize, timeout: Option<Duration>) -> u64 {
        self.next_receive += 1;
        let lasts = timeout.unwrap_or(self.plans[of].timeout);
        self.groups[of].receives.insert(self.next_receive, lasts);
        self.next_receive
    }

    /// The caller has taken out all messages of the receive.
    pub(super) fn took_all(&mut self, of: usize, receive: u64) {
        self.groups[of].receives.remove(&receive);
    }

    /// Counts a caller that may have messages which it did not take out.
    pub(super) fn has_untaken(&mut self, of: usize, more: bool) {
        let untaken = &mut self.groups[of].untaken;
        *untaken = if more { *untaken + 1 } else { *untaken - 1 };
    }

    /// Groups with a waiting consumer in which nothing has moved for so long.
    pub(super) fn quiet(&self, now: Timestamp, quiet: Duration) -> Vec<usize> {
        let is_quiet = |group: &Group| group.waiting > 0 && now.since(group.moved) >= quiet;
        (0..self.groups.len()).filter(|&of| is_quiet(&self.groups[of])).collect()
    }

    /// The group is being looked at, and is not looked at again for a while.
    pub(super) fn looked_at(&mut self, now: Timestamp, of: usize) {
        self.groups[of].moved = now;
    }

    /// Of a group without keys in which a consumer with credit waits and nothing moves: nothing may be deliverable.
    /// `figures` are of a moment at which the server had nothing to do.
    pub(super) fn check_quiet(&self, of: usize, figures: &GroupFigures) {
        assert_eq!(
            figures.ready, 0,
            "I4: {:?} has messages to hand out and a consumer with credit, and waits",
            self.plans[of].name
        );
    }

    /// The same of an ordered group. Its figures do not tell which of its messages wait for others of their key.
    pub(super) fn check_quiet_keys(&self, now: Timestamp, of: usize) {
        let (plan, group) = (&self.plans[of], &self.groups[of]);
        // Which message of a key is next is known only if every caller has taken out its messages.
        if group.untaken > 0 || self.may_park(of) || now <= group.lost_until {
            return;
        }
        // A publish that was not answered may have stored a message before those that are known.
        let placed: BTreeSet<Id> = self.places.values().copied().collect();
        let unknown = self.messages.iter().filter(|(id, message)| {
            message.stream == plan.stream && message.fate == Fate::Sent && !placed.contains(id)
        });
        let mut seen: BTreeSet<&str> = unknown.filter_map(|(_, message)| message.key.as_deref()).collect();
        for ((stream, seq), id) in &self.places {
            if *stream != plan.stream {
                continue;
            }
            let message = &self.messages[id];
            let standing = group.messages.get(id);
            if standing.is_some_and(|standing| matches!(standing.done, Done::Settled | Done::Parked)) {
                continue;
            }
            if let Some(key) = &message.key
                && !seen.insert(key)
            {
                continue;
            }
            let is_free = standing.is_none_or(|standing| {
                standing.done == Done::Open
                    && standing.held.iter().all(|held| held.has_ended(now))
                    && standing
                        .held
                        .iter()
                        .all(|held| held.latest + plan.backoff + NOTICED < now || held.ended.is_some())
                    && standing.free_from + NOTICED < now
            });
            assert!(
                !is_free,
                "I4: {id} at {seq} of {:?} could go to a consumer that waits, and does not",
                plan.name
            );
        }
    }

    /// The positions of all messages that a stream has which keeps its messages.
    pub(super) fn check_kept(&self, stream: &StreamName, there: &BTreeSet<Seq>) {
        for (id, message) in self.messages.iter().filter(|(_, message)| message.stream == *stream) {
            if let Fate::Confirmed(seq) = message.fate {
                assert!(there.contains(&seq), "I1: {id} at {seq} of {stream} was confirmed and is gone");
            }
        }
    }

    /// A copy is what its message was. Returns where the message is in the log, if its producer was told.
    pub(super) fn check_copy(&self, stream: &str, seq: Seq, copy: &api::Message<'_>) -> Option<Ordinal> {
        let id = copy.body.first_chunk().map(|id| Id::from_le_bytes(*id));
        let id = id.expect("I2: the body has its number");
        let sent = self.messages.get(&id).unwrap_or_else(|| panic!("I2: {id} was never published"));
        let as_sent = (sent.stream.as_str(), sent.key.as_deref().map(str::as_bytes), sent.kind, sent.bytes);
        assert_eq!((stream, copy.key, copy.kind, copy.body.len()), as_sent, "I23: the copy of {id} differs");
        match sent.fate {
            Fate::Confirmed(at) => assert_eq!(seq, at, "I23: the copy of {id} names another position"),
            Fate::Sent => {}
            fate => panic!("I2: {id} was copied and is {fate:?}"),
        }
        self.ordinals.get(&id).copied()
    }

    /// Everything that could be received was received and acked. `parked` are the positions that the group names.
    pub(super) fn check_end(&self, of: usize, parked: &[Seq]) {
        let (plan, group) = (&self.plans[of], &self.groups[of]);
        for (id, message) in self.messages.iter().filter(|(_, message)| message.stream == plan.stream) {
            let standing = group.messages.get(id);
            let seq = match message.fate {
                Fate::Confirmed(seq) => Some(seq),
                _ => standing.and_then(|standing| standing.held.first()).map(|held| held.lease.seq),
            };
            let is_parked = seq.is_some_and(|seq| parked.contains(&seq));
            let done = standing.map_or(Done::Open, |standing| standing.done);
            match done {
                Done::Settled => assert!(!is_parked, "I5: {id} was acked and is parked"),
                Done::Parked => assert!(is_parked, "I5: {id} was parked and is not"),
                Done::Unsure => {}
                Done::Open => {
                    let is_stored = matches!(message.fate, Fate::Confirmed(_)) || standing.is_some();
                    assert!(
                        !is_stored || (is_parked && self.may_park(of)),
                        "I1: {id} ({:?}) of {:?} is gone: {standing:?}",
                        message.fate,
                        plan.name
                    );
                }
            }
        }
    }
}

impl Held {
    /// Leases of a message in the order in which they were given.
    fn order(&self) -> (Epoch, Grant) {
        (self.lease.epoch, self.lease.grant)
    }

    fn has_ended(&self, now: Timestamp) -> bool {
        self.ended.is_some() || self.deadline <= now
    }
}
