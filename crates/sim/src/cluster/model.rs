//! The actions and observations of the clients of a cluster, and the promises that follow from them. All times are true
//! ones, which no node knows.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_broker::api::{Bound, Delivered, Lease, Outcome, Published, Verb, parse_content};
use forebay_core::types::{Epoch, Grant, GroupName, Seq, StreamName, Timestamp};

use crate::tale::tell;

/// Answers to acks that a lost owner gave before they were durable lie within this time: an owner gives no more of them
/// when a frame has waited for half a second, by its clock.
const UNDURABLE_WITHIN: Duration = Duration::from_millis(700);

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
}

#[derive(Debug)]
struct Message {
    stream: StreamName,
    key: Option<String>,
    /// It has an id or a number, so that it is stored once however often it is sent.
    is_exact: bool,
    is_confirmed: bool,
    /// Where it is, as far as it was seen.
    seq: Option<Seq>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    Open,
    /// A request to settle it was not answered.
    Unsure,
    /// The owner of an epoch has said so, at this time.
    Settled(Epoch, Timestamp),
}

#[derive(Debug)]
struct Held {
    lease: Lease,
    bound: Bound,
    /// Until then the message is its consumer's, unless the consumer lets go of it.
    until: Timestamp,
    /// When its consumer last asked for another end, and for how long from then on. Requests count in their order, and
    /// an answer to one may come after the next was sent.
    extends: Option<(Timestamp, Duration)>,
    is_over: bool,
    done: Done,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) deliveries: u64,
    pub(super) redeliveries: u64,
    pub(super) confirmed: u64,
    pub(super) again: u64,
    /// Messages that the next owner delivered while the former one had leased them on a connection.
    pub(super) freed: u64,
    /// Acks that came to nothing with their owner.
    pub(super) undone: u64,
    /// Leases on the clock that outlived their owner and were settled with the next one.
    pub(super) outlived: u64,
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) plans: Vec<GroupPlan>,
    held: Vec<BTreeMap<Id, Vec<Held>>>,
    messages: BTreeMap<Id, Message>,
    /// Which message is where, since no position is given twice.
    places: BTreeMap<(StreamName, Seq), Id>,
    /// The last owner that has handed anything out.
    serves: Epoch,
    /// For each owner the first and the last answer to an ack that came to nothing with it.
    undone: BTreeMap<Epoch, (Timestamp, Timestamp)>,
    /// How early a lease on the clock may end after a change of owner.
    early: Duration,
    pub(super) counts: Counts,
    next: Id,
}

impl Model {
    pub(super) fn new(plans: Vec<GroupPlan>, early: Duration) -> Model {
        Model {
            held: plans.iter().map(|_| BTreeMap::new()).collect(),
            plans,
            messages: BTreeMap::new(),
            places: BTreeMap::new(),
            serves: Epoch(0),
            undone: BTreeMap::new(),
            early,
            counts: Counts::default(),
            next: 1,
        }
    }

    /// A message that a client publishes.
    pub(super) fn sent(&mut self, stream: &StreamName, key: Option<String>, is_exact: bool) -> Id {
        let id = self.next;
        self.next += 1;
        let stream = stream.clone();
        self.messages.insert(id, Message { stream, key, is_exact, is_confirmed: false, seq: None });
        id
    }

    pub(super) fn confirmed(&mut self, ids: &[Id], published: &Published, is_again: bool) {
        let seqs: Vec<Seq> = published.each().map(|(admission, _)| admission.seq).collect();
        assert_eq!(seqs.len(), ids.len(), "I1: a confirmation names each message");
        for (&id, &seq) in ids.iter().zip(&seqs) {
            self.place(id, seq);
            let message = self.messages.get_mut(&id).expect("it was sent");
            assert!(!message.is_confirmed, "I11: {id} is confirmed twice");
            message.is_confirmed = true;
            tell(|| format!("{id} is confirmed at {seq}"));
        }
        self.counts.confirmed += ids.len() as u64;
        self.counts.again += u64::from(is_again);
    }

    /// The message was seen here.
    fn place(&mut self, id: Id, seq: Seq) {
        let message = self.messages.get_mut(&id).unwrap_or_else(|| panic!("I2: {id} was never published"));
        let there = *self.places.entry((message.stream.clone(), seq)).or_insert(id);
        assert_eq!(there, id, "I11: two messages are at position {seq}");
        let known = *message.seq.get_or_insert(seq);
        let is_once = message.is_exact || message.is_confirmed;
        assert!(known == seq || !is_once, "I11: {id} is at {known} and at {seq}");
    }

    /// A client has this message from now on, by a lease that lasts for this long.
    pub(super) fn delivered(
        &mut self,
        now: Timestamp,
        of: usize,
        bound: Bound,
        lasts: Duration,
        message: &Delivered,
    ) -> Id {
        let parsed = parse_content(&message.content).expect("I2: the content can be read");
        let id = parsed.body.first_chunk().map(|id| Id::from_le_bytes(*id)).expect("I2: a body has a number");
        let lease = message.lease;
        self.place(id, lease.seq);
        assert!(
            lease.epoch >= self.serves,
            "I3: {id} is handed out by owner {} while owner {} serves",
            lease.epoch.0,
            self.serves.0
        );
        self.serves = lease.epoch;
        let sent = &self.messages[&id];
        assert!(sent.stream == self.plans[of].stream, "I2: {id} is of another stream");
        assert_eq!(parsed.key, sent.key.as_deref().map(str::as_bytes), "I2: {id} has another key");
        // A lease may have lapsed before its message left, and then no consumer holds it.
        let is_over = lasts.is_zero();
        if let Some(key) = sent.key.as_ref().filter(|_| self.plans[of].is_ordered && !is_over) {
            for (other, held) in &self.held[of] {
                if self.messages[other].key.as_ref() == Some(key) {
                    held.iter().for_each(|held| self.check_over(now, id, *other, held, lease));
                }
            }
        }
        if let Some(held) = self.held[of].get(&id).filter(|_| !is_over) {
            held.iter().for_each(|held| self.check_over(now, id, id, held, lease));
            self.check_undone(of, id, lease);
            self.counts.redeliveries += 1;
        }
        self.counts.deliveries += 1;
        let held = self.held[of].entry(id).or_default();
        let is_freed =
            |held: &Held| held.bound == Bound::Connection && !held.is_over && held.lease.epoch < lease.epoch;
        self.counts.freed += held.iter().filter(|held| is_freed(held)).count() as u64;
        held.push(Held { lease, bound, until: now + lasts, extends: None, is_over, done: Done::Open });
        tell(|| format!("group {of}: {id} is handed out on {lease:?}, {bound:?}, for {lasts:?}"));
        id
    }

    /// A message comes on a lease: this one must be over.
    fn check_over(&self, now: Timestamp, id: Id, other: Id, held: &Held, lease: Lease) {
        assert_ne!(held.lease, lease, "I3: {id} came twice on one lease");
        assert!(
            held.order() < (lease.epoch, lease.grant),
            "I3: {id} comes on {lease:?} after {:?}",
            held.lease
        );
        let is_other_owner = held.lease.epoch < lease.epoch;
        let is_over = match held.bound {
            _ if held.is_over => true,
            // It ends with the owner, which serves no more.
            Bound::Connection if is_other_owner => true,
            _ if is_other_owner => held.until <= now + self.early,
            _ => held.until <= now + Duration::from_millis(1),
        };
        assert!(
            is_over,
            "I3: {id} comes on {lease:?} at {}, and {other} is held on {:?} until {}",
            now.0, held.lease, held.until.0
        );
    }

    /// A message that was settled may come again only if its owner is lost and had not waited for its frame.
    fn check_undone(&mut self, of: usize, id: Id, lease: Lease) {
        let has_durable_acks = self.plans[of].has_durable_acks;
        for held in self.held[of].get(&id).into_iter().flatten() {
            let Done::Settled(owner, at) = held.done else { continue };
            assert!(
                !has_durable_acks && owner < lease.epoch,
                "I5: {id} comes again on {lease:?}, and was settled on {:?}",
                held.lease
            );
            let (first, last) = self.undone.entry(owner).or_insert((at, at));
            (*first, *last) = ((*first).min(at), (*last).max(at));
            assert!(
                last.since(*first) <= UNDURABLE_WITHIN,
                "I5: {id} comes again. Acks that owner {} answered within {:?} came to nothing",
                owner.0,
                last.since(*first)
            );
            self.counts.undone += 1;
        }
    }

    fn held(&mut self, of: usize, id: Id, lease: Lease) -> &mut Held {
        let held = self.held[of].get_mut(&id).expect("it was delivered");
        held.iter_mut().find(|held| held.lease == lease).expect("it was delivered")
    }

    /// A client sends a request about a lease.
    pub(super) fn asked(&mut self, now: Timestamp, of: usize, (id, lease): (Id, Lease), verb: &Verb) {
        tell(|| format!("group {of}: {verb:?} of {id} on {lease:?} is asked for"));
        let held = self.held(of, id, lease);
        if let Verb::Extend { by, .. } = verb {
            held.until = held.until.min(now + *by);
            // Of two requests at the same time the shorter one may be the last.
            let at_once = held.extends.filter(|(at, _)| *at == now);
            held.extends = Some((now, at_once.map_or(*by, |(_, other)| other.min(*by))));
            return;
        }
        held.is_over = true;
        if matches!(verb, Verb::Ack) && held.done == Done::Open {
            held.done = Done::Unsure;
        }
    }

    /// The answer to a request that was sent at `asked`, to the owner of an epoch.
    pub(super) fn answered(
        &mut self,
        (asked, now): (Timestamp, Timestamp),
        owner: Epoch,
        of: usize,
        (id, lease): (Id, Lease),
        verb: &Verb,
        outcome: Outcome,
    ) {
        tell(|| format!("group {of}: {verb:?} of {id} on {lease:?} is answered {outcome:?} by {}", owner.0));
        let is_durable = self.plans[of].has_durable_acks;
        let serves = self.serves;
        let is_newest = self.held[of][&id].iter().all(|held| held.order() <= (lease.epoch, lease.grant));
        let held = self.held(of, id, lease);
        match (verb, outcome) {
            (_, Outcome::NotYours(_)) => return,
            (Verb::Extend { .. }, Outcome::Extended) => {
                if let Some((at, by)) = held.extends.filter(|(at, _)| is_durable && *at == asked) {
                    held.until = held.until.max(at + by);
                }
                return;
            }
            (Verb::Ack, Outcome::Acked) => held.done = Done::Settled(owner, now),
            (Verb::Retry { .. }, Outcome::Retrying) => {}
            _ => panic!("I15: {outcome:?} is no answer to {verb:?} of {id}"),
        }
        assert!(
            is_durable || owner >= serves,
            "I5: owner {} answers {verb:?} of {id} without waiting, while owner {} serves",
            owner.0,
            serves.0
        );
        if held.done != Done::Open {
            assert!(is_newest, "I5: {id} came again, and {verb:?} on {lease:?} was answered {outcome:?}");
        }
        self.counts.outlived += u64::from(lease.epoch < owner);
    }

    /// A connected consumer has gone, and its leases with it.
    pub(super) fn let_go(&mut self, of: usize, (id, lease): (Id, Lease)) {
        self.held(of, id, lease).is_over = true;
    }

    /// Everything that could be received was received and acked.
    pub(super) fn check_end(&self, of: usize) {
        let plan = &self.plans[of];
        for (id, message) in self.messages.iter().filter(|(_, message)| message.stream == plan.stream) {
            let held = self.held[of].get(id);
            let is_stored = message.is_confirmed || message.seq.is_some();
            let is_done = held.is_some_and(|held| held.iter().any(|held| held.done != Done::Open));
            assert!(
                !is_stored || is_done,
                "I1: {id} is gone. It was {}confirmed, and group {of} had it on {held:?}",
                if message.is_confirmed { "" } else { "not " }
            );
        }
    }
}

impl Held {
    /// Leases of a message in the order in which they were given.
    fn order(&self) -> (Epoch, Grant) {
        (self.lease.epoch, self.lease.grant)
    }
}
