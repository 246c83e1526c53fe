//! What the clients of a history know, and what must therefore be true.
//!
//! The model sees what a client sees: what it published, what it was answered, what it was handed and
//! what it said. Beside that it is told which frames are durable, because some promises are about exactly
//! that. A broken promise is a panic with the invariant's name in it; the runner turns it into a seed.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use forebay_broker::driver::Delivered;
use forebay_core::Admission;
use forebay_core::entry::CopiedMessage;
use forebay_core::group::{Bound, Lease, Outcome};
use forebay_core::settings::StreamSettings;
use forebay_core::types::{ConsumerId, Epoch, Grant, Ordinal, Seq, Timestamp};

/// A change that is not in a frame yet.
const NOT_YET: u64 = u64::MAX;

/// A message, by the number the history gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Uid(pub(crate) u64);

#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) id: Option<u64>,
    pub(crate) body: Vec<u8>,
    /// When it was published: each time, if it was sent again.
    ats: Vec<Timestamp>,
    /// Its producer numbers it.
    numbered: bool,
    /// It was sent again, and may have been stored before.
    maybe: bool,
    /// The epoch in which it was published.
    epoch: Epoch,
    fate: Fate,
    /// Not to be handed out before, and the earliest that this ever was.
    due: Timestamp,
    due_least: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// On its way; nothing has been answered.
    Open,
    /// Answered: it is stored at this position.
    Stored(Seq),
    /// Answered: it was a duplicate and was not stored.
    Dropped,
    /// The server stopped before it answered.
    Unknown,
}

/// What the producers of one stream know.
#[derive(Debug)]
pub(crate) struct StreamModel {
    pub(crate) settings: StreamSettings,
    /// Everything up to here was purged.
    pub(crate) purged: Seq,
    /// The frame that the newest change of the delay is in.
    redelayed: Option<u64>,
    sent: BTreeMap<Uid, Sent>,
    /// Which message is at a position, as far as anybody has been told.
    at: BTreeMap<Seq, Uid>,
    /// Where the messages with an id are, as far as anybody has been told, and when each was published, if that is
    /// known.
    ids: BTreeMap<u64, BTreeMap<Seq, Option<Timestamp>>>,
    /// An id came again after its window.
    pub(crate) stored_again: bool,
    /// Positions in the shard, as the log has them.
    ordinals: BTreeMap<Seq, Ordinal>,
}

impl StreamModel {
    pub(crate) fn new(settings: StreamSettings) -> StreamModel {
        StreamModel {
            settings,
            purged: Seq::START,
            redelayed: None,
            sent: BTreeMap::new(),
            at: BTreeMap::new(),
            ids: BTreeMap::new(),
            stored_again: false,
            ordinals: BTreeMap::new(),
        }
    }

    pub(crate) fn sends(
        &mut self,
        uid: Uid,
        id: Option<u64>,
        body: Vec<u8>,
        at: Timestamp,
        epoch: Epoch,
        not_before: Option<Timestamp>,
    ) {
        let due = not_before.unwrap_or(at + self.settings.delay);
        let sent = Sent {
            id,
            body,
            ats: vec![at],
            numbered: false,
            maybe: false,
            epoch,
            fate: Fate::Open,
            due,
            due_least: due,
        };
        self.sent.insert(uid, sent);
    }

    pub(crate) fn sends_numbered(&mut self, uid: Uid, body: Vec<u8>, at: Timestamp, epoch: Epoch) {
        self.sends(uid, None, body, at, epoch, None);
        self.sent.get_mut(&uid).expect("it was sent just now").numbered = true;
    }

    /// A numbered message is sent once more. If it was not stored before, the delay of the stream is that of now.
    pub(crate) fn sends_again(&mut self, uid: Uid, at: Timestamp) {
        let due = at + self.settings.delay;
        let sent = self.sent.get_mut(&uid).expect("it was sent before");
        sent.ats.push(at);
        sent.due = sent.due.min(due);
        sent.due_least = sent.due_least.min(due);
        if sent.fate == Fate::Unknown {
            (sent.fate, sent.maybe) = (Fate::Open, true);
        }
    }

    /// A numbered message was refused for now.
    pub(crate) fn not_sent(&mut self, uid: Uid, again: bool) {
        match self.sent.get_mut(&uid) {
            Some(sent) if again && sent.fate == Fate::Open => sent.fate = Fate::Unknown,
            Some(_) if !again => self.refused(uid),
            _ => {}
        }
    }

    /// When a message may be handed out at the earliest.
    pub(crate) fn due(&self, uid: Uid) -> Timestamp {
        self.sent.get(&uid).map_or(Timestamp::ZERO, |sent| sent.due)
    }

    /// The stream has another delay, and messages that wait are moved along.
    pub(crate) fn redelay(&mut self, now: Timestamp, frame: u64, settings: StreamSettings) {
        for sent in self.sent.values_mut().filter(|sent| sent.due > now) {
            sent.due = sent.due - self.settings.delay + settings.delay;
            sent.due_least = sent.due_least.min(sent.due);
        }
        self.redelayed = Some(frame);
        self.settings = settings;
    }

    /// The message at a position, if a client was told.
    pub(crate) fn uid_at(&self, seq: Seq) -> Option<Uid> {
        self.at.get(&seq).copied()
    }

    /// What the log has at a position, as it was published or as a copy.
    pub(crate) fn stored_as(&mut self, uid: Uid, content: &[u8], message: &CopiedMessage) {
        let CopiedMessage { seq, ordinal, at, .. } = *message;
        let sent = self.sent.get(&uid).expect("I2: only what was published is stored");
        assert_eq!(content, sent.body, "I2: a message is stored as it was published");
        let ats = &sent.ats;
        assert!(ats.contains(&at), "I10: {seq} keeps the time of its publish, {ats:?}, and has {at:?}");
        if let Some(known) = self.at.get(&seq) {
            assert_eq!(*known, uid, "I2: one position holds one message");
        }
        self.is_at(seq, ordinal);
    }

    /// A client or the log says where in the shard's log a message is.
    pub(crate) fn is_at(&mut self, seq: Seq, ordinal: Ordinal) {
        let known = *self.ordinals.entry(seq).or_insert(ordinal);
        assert!(
            ordinal == known,
            "I10: {seq} keeps its position in the shard, {known:?}, and has {ordinal:?}"
        );
    }

    pub(crate) fn knows(&self, uid: Uid) -> bool {
        self.sent.contains_key(&uid)
    }

    /// What the log has of a message in a stream that it was moved to.
    pub(crate) fn moved_as(&self, uid: Uid, content: &[u8], message: &CopiedMessage) {
        let sent = &self.sent[&uid];
        assert_eq!(content, sent.body, "I2: a message is moved as it was published");
        let origin = message.meta.origin.expect("I10: a moved message says when it was published");
        assert!(sent.ats.contains(&origin.published), "I10: a moved message keeps the time of its publish");
        assert!(origin.trail.is_some(), "I10: a moved message says which stream it was published to");
    }

    /// Nothing was stored, and the producer was told so.
    pub(crate) fn refused(&mut self, uid: Uid) {
        self.sent.remove(&uid);
    }

    /// Whether a message with this id is on its way and not answered.
    pub(crate) fn is_open(&self, id: u64) -> bool {
        self.sent.values().any(|sent| sent.id == Some(id) && sent.fate == Fate::Open)
    }

    pub(crate) fn known_ids(&self) -> Vec<u64> {
        self.sent.values().filter_map(|sent| sent.id).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The server answered for one message. Returns whether it was a duplicate of one from before a crash.
    pub(crate) fn answered(&mut self, uid: Uid, admission: Admission, epoch: Epoch) -> bool {
        let Admission { seq, duplicate } = admission;
        let Sent { id, ref ats, .. } = self.sent[&uid];
        let at = ats[0];
        let mut across_crash = false;
        if self.sent[&uid].numbered {
            if let Fate::Stored(known) = self.sent[&uid].fate {
                assert_eq!(known, seq, "I11: a numbered message is stored once");
            }
            self.place(seq, uid);
            self.sent.get_mut(&uid).expect("the message was sent").fate = Fate::Stored(seq);
            return false;
        }
        if duplicate {
            let id = id.expect("I11: only a message with an id can be a duplicate");
            self.check_duplicate(id, seq, at);
            if let Some(first) = self.at.get(&seq) {
                assert_eq!(
                    self.sent[first].id,
                    Some(id),
                    "I11: a duplicate is of a message with the same id"
                );
                across_crash = self.sent[first].epoch < epoch;
            }
            self.sent.get_mut(&uid).expect("the message was sent").fate = Fate::Dropped;
        } else {
            if let Some(id) = id {
                self.identify(id, seq, at);
            }
            self.place(seq, uid);
            self.sent.get_mut(&uid).expect("the message was sent").fate = Fate::Stored(seq);
        }
        across_crash
    }

    /// The message with this id that was published then is at this position. Messages with the same id are at least
    /// a window apart.
    fn identify(&mut self, id: u64, seq: Seq, at: Timestamp) {
        let window = self.settings.dedupe_window;
        let lost = self.unanswered(id);
        let known = self.ids.entry(id).or_default();
        for (&other, &when) in known.iter().filter(|(other, _)| **other != seq) {
            let is_apart = |when: Timestamp| at.since(when).max(when.since(at)) >= window;
            let apart = when.map_or(lost.iter().copied().any(is_apart), is_apart);
            assert!(
                apart,
                "I11: one id stores one message in {window:?}: {other} at {when:?}, {seq} at {at:?}"
            );
            self.stored_again = true;
        }
        known.insert(seq, Some(at));
    }

    /// A message with this id that was published at this time is a duplicate of the message at this position.
    fn check_duplicate(&mut self, id: u64, seq: Seq, at: Timestamp) {
        let window = self.settings.dedupe_window;
        let lost = self.unanswered(id);
        let known = self.ids.entry(id).or_default();
        let newest = known.last_key_value().map(|(&newest, _)| newest);
        assert!(
            newest.is_none_or(|newest| newest <= seq),
            "I11: a duplicate is answered with the newest one's position, {newest:?} and not {seq}"
        );
        let when = *known.entry(seq).or_default();
        let within = |when: Timestamp| at.since(when) < window;
        let known = when.map_or(lost.iter().copied().any(within), within);
        assert!(
            known,
            "I11: {seq} was published at {when:?}, and its id is known at {at:?} after {window:?}"
        );
    }

    /// When messages with this id were published whose publish was not answered.
    fn unanswered(&self, id: u64) -> Vec<Timestamp> {
        let lost = self
            .sent
            .values()
            .filter(|sent| sent.id == Some(id) && matches!(sent.fate, Fate::Open | Fate::Unknown));
        lost.flat_map(|sent| sent.ats.iter().copied()).collect()
    }

    /// A client was told that this message is at this position.
    fn place(&mut self, seq: Seq, uid: Uid) {
        let before = self.at.insert(seq, uid);
        assert!(before.is_none_or(|before| before == uid), "I2: one position holds one message");
    }

    /// A message was delivered. Returns whether its publish had never been answered.
    pub(crate) fn delivered(&mut self, uid: Uid, message: &Delivered, epoch: Epoch) -> bool {
        let seq = message.lease.seq;
        let sent = self.sent.get(&uid).expect("I2: only what was published is delivered");
        assert_eq!(message.content, sent.body, "I2: a message is delivered as it was published");
        let (ats, at) = (&sent.ats, message.published);
        assert!(ats.contains(&at), "I10: {seq} keeps the time of its publish, {ats:?}, and has {at:?}");
        let id = sent.id;
        let kept = match sent.fate {
            Fate::Stored(known) => {
                assert_eq!(known, seq, "I2: a message is where its producer was told");
                false
            }
            Fate::Open if sent.maybe => true,
            Fate::Open => panic!("a message of this epoch is visible before it is durable: {seq}"),
            Fate::Dropped => panic!("I11: a duplicate was stored: {seq}"),
            Fate::Unknown => {
                assert!(sent.epoch < epoch, "only an earlier epoch leaves outcomes unknown");
                true
            }
        };
        if let Some(id) = id {
            self.identify(id, seq, at);
        }
        self.place(seq, uid);
        self.sent.get_mut(&uid).expect("the message was sent").fate = Fate::Stored(seq);
        kept
    }

    /// Whether a change of the delay may be forgotten: frames up to `durable` are durable.
    pub(crate) fn crashed(&mut self, durable: u64) -> bool {
        let is_moot = self.redelayed.take().is_some_and(|frame| frame > durable);
        for sent in self.sent.values_mut() {
            if is_moot {
                sent.due = sent.due_least;
            }
            if sent.fate == Fate::Open {
                sent.fate = Fate::Unknown;
            }
        }
        is_moot
    }

    /// Positions that producers were told of.
    pub(crate) fn stored(&self) -> impl Iterator<Item = Seq> + '_ {
        self.sent.values().filter_map(|sent| match sent.fate {
            Fate::Stored(seq) => Some(seq),
            _ => None,
        })
    }

    pub(crate) fn unknown(&self) -> usize {
        self.sent.values().filter(|sent| sent.fate == Fate::Unknown).count()
    }
}

/// What the consumers of one group know.
#[derive(Debug)]
pub(crate) struct GroupModel {
    pub(crate) retries_max: u32,
    /// The fewest and the most that there were ever, where settings change.
    retries_least: u32,
    retries_most: u32,
    pub(crate) in_flight_max: u32,
    /// Leases that came and went within a turn, for no time, and count all the same: of all groups together.
    pub(crate) unseen: u32,
    messages: BTreeMap<Seq, MessageModel>,
    held: BTreeMap<Seq, Hold>,
    start: Seq,
    floor: Seq,
    /// Messages with changes that are not in a frame yet.
    unstamped: Vec<Seq>,
    /// Leases that have been counted as attempts.
    counted: HashSet<Lease>,
    /// Leases on the clock that were answered in this epoch, with the frame that makes that durable. A
    /// crash may forget the answer, and then the lease goes on.
    answered: Vec<(u64, Hold)>,
    /// Those for which that may have happened.
    maybe_held: BTreeMap<Seq, Hold>,
    /// Leases may have been forgotten, and attempts be fewer than consumers were told.
    lenient: bool,
    /// Leases on the clock that the last reset or purge ended. If it is forgotten, they go on.
    ended: Vec<Hold>,
    /// Given back, and not to be handed out until then. A crash may forget that.
    snoozed: BTreeMap<Seq, Timestamp>,
}

#[derive(Debug, Clone, Default)]
struct MessageModel {
    /// Between what and what the count of attempts is.
    attempts: Bounds,
    /// What changed in this epoch and may be forgotten by a crash, with the frame that makes it durable.
    recent: Vec<(u64, Change)>,
    acked: bool,
    /// It was acked before a crash, and the ack was not durable then: it may come again or not.
    maybe_acked: bool,
    /// The ack is durable: the message must never come again.
    acked_for_good: bool,
    /// What `attempts` was when the epoch began.
    at_start: Bounds,
    /// How many server stops may have found it leased: a stop does not use up retries, and neither does a
    /// failure that was forgotten with it.
    stops: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bounds {
    min: u32,
    max: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Attempts(Bounds),
    Acked,
}

/// What a consumer wants for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Ack,
    Retry,
    Park,
    Skip,
    Move,
    /// Given back, until then.
    Return(Timestamp),
}

/// A message in a consumer's hands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hold {
    pub(crate) lease: Lease,
    pub(crate) consumer: ConsumerId,
    pub(crate) attempt: u32,
    pub(crate) deadline: Timestamp,
    pub(crate) bound: Bound,
}

impl GroupModel {
    /// `start` is where the group begins: what lies before was never its business.
    pub(crate) fn new(retries_max: u32, in_flight_max: u32, start: Seq) -> GroupModel {
        GroupModel {
            retries_max,
            retries_least: retries_max,
            retries_most: retries_max,
            in_flight_max,
            unseen: 0,
            messages: BTreeMap::new(),
            held: BTreeMap::new(),
            start,
            floor: start,
            unstamped: Vec::new(),
            counted: HashSet::new(),
            answered: Vec::new(),
            maybe_held: BTreeMap::new(),
            lenient: false,
            ended: Vec::new(),
            snoozed: BTreeMap::new(),
        }
    }

    /// The settings have changed. Leases beyond the new limit stay.
    pub(crate) fn change(&mut self, retries_max: u32, in_flight_max: u32) {
        self.retries_max = retries_max;
        self.retries_least = self.retries_least.min(retries_max);
        self.retries_most = self.retries_most.max(retries_max);
        self.in_flight_max = self.in_flight_max.max(in_flight_max);
    }

    /// Whether a lapse or a lost consumer may have ended the last attempt of a message.
    pub(crate) fn may_be_used_up(&self, seq: Seq) -> bool {
        self.messages.get(&seq).is_some_and(|message| message.attempts.max > self.retries_least)
    }

    /// A parked message is ready again, as if it had never been handed out.
    pub(crate) fn replayed(&mut self, seq: Seq) {
        let message = self.messages.entry(seq).or_default();
        message.attempts = Bounds::default();
        message.stops = 0;
        self.attempts_changed(seq);
    }

    /// Everything up to `through` begins anew, or is gone. Returns the leases that are over.
    pub(crate) fn upset(&mut self, through: Seq) -> Vec<Lease> {
        let over: Vec<Lease> =
            self.held.values().map(|hold| hold.lease).filter(|lease| lease.seq <= through).collect();
        let answered = self.answered.iter().map(|&(_, hold)| hold);
        let ended = self.held.values().chain(self.maybe_held.values()).copied().chain(answered);
        let ended = ended.filter(|hold| hold.bound == Bound::Clock && hold.lease.seq <= through);
        self.ended = ended.collect();
        self.held.retain(|&seq, _| seq > through);
        self.maybe_held.retain(|&seq, _| seq > through);
        self.snoozed.retain(|&seq, _| seq > through);
        self.answered.retain(|(_, hold)| hold.lease.seq > through);
        let seqs: Vec<Seq> = self.messages.range(..=through).map(|(&seq, _)| seq).collect();
        for seq in seqs {
            let message = self.messages.get_mut(&seq).expect("it was listed just now");
            let mut recent = std::mem::take(&mut message.recent);
            recent.retain(|(_, change)| *change != Change::Acked);
            let at_start = message.at_start;
            *message = MessageModel { recent, at_start, ..MessageModel::default() };
            self.attempts_changed(seq);
        }
        self.floor = self.start;
        over
    }

    pub(crate) fn begin_at(&mut self, start: Seq) {
        self.start = start;
    }

    /// A reset or a purge may have been forgotten by a crash: nothing is known of what it was about.
    pub(crate) fn know_nothing(&mut self) {
        for message in self.messages.values_mut() {
            message.attempts = Bounds { min: 0, max: u32::MAX / 2 };
            message.at_start = message.attempts;
            message.stops = u32::MAX / 2;
            message.maybe_acked = true;
            message.acked_for_good = false;
        }
        let held = std::mem::take(&mut self.held);
        self.maybe_held.extend(held);
        self.maybe_held.extend(self.ended.drain(..).map(|hold| (hold.lease.seq, hold)));
    }

    /// Leases and acks that were not written may be forgotten.
    pub(crate) fn forget_unwritten(&mut self) {
        self.lenient = true;
        for message in self.messages.values_mut() {
            message.attempts.min = 0;
            message.at_start.min = 0;
            message.maybe_acked |= message.acked_for_good;
            message.acked_for_good = false;
        }
    }

    pub(crate) fn held(&self) -> impl Iterator<Item = &Hold> {
        self.held.values()
    }

    /// Whether a consumer holds the message on a lease that goes on.
    pub(crate) fn is_leased(&self, now: Timestamp, seq: Seq) -> bool {
        self.held.get(&seq).is_some_and(|hold| hold.deadline > now)
    }

    pub(crate) fn held_by(&self, consumer: ConsumerId) -> impl Iterator<Item = &Hold> {
        self.held.values().filter(move |hold| hold.consumer == consumer)
    }

    /// A lease that was never seen may have been given back: its content could not be read, and its consumer said
    /// goodbye.
    pub(crate) fn may_be_fewer(&mut self, seq: Seq) {
        if let Some(message) = self.messages.get_mut(&seq) {
            message.attempts.min = 0;
        }
    }

    /// Whether a consumer has the message on a lease that is not over.
    pub(crate) fn is_held(&self, now: Timestamp, seq: Seq) -> bool {
        self.held.get(&seq).is_some_and(|hold| hold.deadline > now)
    }

    /// Whether the message was leased again after this lease.
    pub(crate) fn moved_on(&self, lease: Lease) -> bool {
        self.held.get(&lease.seq).is_some_and(|hold| hold.lease != lease)
    }

    /// A message was leased to a consumer, which may or may not get to see it. Told of the same lease
    /// again, does nothing.
    pub(crate) fn leased(&mut self, lease: Lease) {
        if self.counted.insert(lease) {
            let message = self.messages.entry(lease.seq).or_default();
            message.attempts.min += 1;
            message.attempts.max += 1;
            self.attempts_changed(lease.seq);
        }
    }

    pub(crate) fn delivered(
        &mut self,
        now: Timestamp,
        consumer: ConsumerId,
        bound: Bound,
        delivered: &Delivered,
    ) {
        let seq = delivered.lease.seq;
        assert!(seq > self.start, "a group is not handed what lies before its start: {seq}");
        self.leased(delivered.lease);
        if let Some(until) = self.snoozed.remove(&seq) {
            assert!(until <= now, "I12: {seq} was given back until {until:?} and comes at {now:?}");
        }
        if let Some(hold) = self.held.get(&seq) {
            assert!(
                hold.deadline <= now,
                "I3: {seq} is held by {:?} until {:?}",
                hold.consumer,
                hold.deadline
            );
        }
        let message = self.messages.entry(seq).or_default();
        assert!(!message.acked_for_good, "a message whose ack is durable came again: {seq}");
        assert!(!message.acked, "I5: a message that was acked came again: {seq}");
        let attempt = delivered.attempt.0;
        let Bounds { min, max } = message.attempts;
        assert!(
            (min..=max.saturating_add(self.unseen)).contains(&attempt),
            "I8: {seq} comes as attempt {attempt} and was leased {min} to {max} times"
        );
        let allowed = (self.retries_most + 1).saturating_add(message.stops);
        assert!(attempt <= allowed, "I8: {seq} comes as attempt {attempt}, and {allowed} are allowed");
        message.maybe_acked = false;
        message.attempts = Bounds { min: attempt, max: attempt };
        self.attempts_changed(seq);
        let hold = Hold { lease: delivered.lease, consumer, attempt, deadline: delivered.deadline, bound };
        let before = self.held.insert(seq, hold);
        // That it has lapsed may be forgotten by a crash, like an answer.
        let before = before.filter(|before| before.bound == Bound::Clock);
        self.answered.extend(before.map(|before| (NOT_YET, before)));
        let live = self.held.values().filter(|hold| hold.deadline > now).count();
        assert!(live <= self.in_flight_max as usize, "I7: the group holds {live} of {}", self.in_flight_max);
    }

    /// A consumer answered a lease, and was told what became of it.
    pub(crate) fn settled(&mut self, now: Timestamp, lease: Lease, wanted: Wanted, result: Outcome) {
        let is_this = |hold: &Hold| hold.lease == lease;
        let mut hold = self.held.get(&lease.seq).copied().filter(is_this);
        if hold.is_none() && !matches!(result, Outcome::NotYours(_)) {
            hold = self.maybe_held.remove(&lease.seq).filter(is_this);
        }
        match (hold, result) {
            (Some(hold), Outcome::NotYours(_)) => {
                assert!(hold.deadline <= now, "I15: the present holder of {} was refused", lease.seq);
                return;
            }
            (None, Outcome::NotYours(_)) => return,
            (None, _) => panic!("I15: an answer that is not the present holder's changed {}", lease.seq),
            (Some(hold), Outcome::Acked) => {
                assert!(wanted == Wanted::Ack, "{wanted:?} was taken for an ack: {hold:?}");
            }
            (Some(hold), Outcome::Retrying) => {
                assert!(
                    wanted == Wanted::Retry && (hold.attempt <= self.retries_max || self.lenient),
                    "I8: {} has retries left: {hold:?}",
                    lease.seq
                );
            }
            (Some(_), Outcome::Skipped) if wanted == Wanted::Skip => {}
            (Some(_), Outcome::Moving) if wanted == Wanted::Move => {}
            (Some(_), Outcome::Parked) if wanted == Wanted::Park => {}
            (Some(_), Outcome::Expired) if wanted == Wanted::Retry => {}
            (Some(_), Outcome::Returned) if matches!(wanted, Wanted::Return(_)) => {}
            (Some(hold), Outcome::Parked | Outcome::Skipped | Outcome::Moving) => {
                assert!(
                    wanted == Wanted::Retry && hold.attempt > self.retries_max,
                    "I8: {} is parked too early: {hold:?}",
                    lease.seq
                );
            }
            (Some(hold), other) => panic!("nobody asked for {other:?}: {hold:?}"),
        }
        self.held.remove(&lease.seq);
        self.answered.extend(hold.filter(|hold| hold.bound == Bound::Clock).map(|hold| (NOT_YET, hold)));
        if matches!(result, Outcome::Acked | Outcome::Skipped | Outcome::Expired) {
            let message = self.messages.get_mut(&lease.seq).expect("what is held was delivered");
            message.acked = true;
            message.recent.push((NOT_YET, Change::Acked));
            self.unstamped.push(lease.seq);
        }
        if let Wanted::Return(until) = wanted {
            self.give_back(lease.seq, true);
            self.snoozed.insert(lease.seq, until);
        }
    }

    /// A consumer left. Its leases over a connection have ended; so have leases of messages that it had not
    /// seen.
    pub(crate) fn left(&mut self, now: Timestamp, consumer: ConsumerId, goodbye: bool, unseen: &[Lease]) {
        let over: Vec<Hold> = self
            .held_by(consumer)
            .filter(|hold| goodbye || hold.bound == Bound::Connection)
            .copied()
            .collect();
        for hold in over {
            self.held.remove(&hold.lease.seq);
            if goodbye {
                self.give_back(hold.lease.seq, hold.deadline > now);
            }
        }
        for lease in unseen.iter().filter(|_| goodbye) {
            self.give_back(lease.seq, false);
        }
    }

    /// The attempt does not count. One that has lapsed was counted before it could be given back.
    fn give_back(&mut self, seq: Seq, certain: bool) {
        let message = self.messages.get_mut(&seq).expect("what is held was leased");
        message.attempts.min = message.attempts.min.saturating_sub(1);
        message.attempts.max = message.attempts.max.saturating_sub(u32::from(certain));
        self.attempts_changed(seq);
    }

    fn attempts_changed(&mut self, seq: Seq) {
        let message = self.messages.get_mut(&seq).expect("only a known message changes");
        message.recent.push((NOT_YET, Change::Attempts(message.attempts)));
        self.unstamped.push(seq);
    }

    /// Events since the last stamp are durable once this frame is.
    pub(crate) fn stamp(&mut self, frame: u64) {
        for (at, _) in self.answered.iter_mut().rev().take_while(|(at, _)| *at == NOT_YET) {
            *at = frame;
        }
        for seq in self.unstamped.drain(..) {
            let message = self.messages.get_mut(&seq).expect("only a known message changes");
            for (at, _) in message.recent.iter_mut().rev().take_while(|(at, _)| *at == NOT_YET) {
                *at = frame;
            }
        }
    }

    /// The server stopped when frames up to `durable` were durable. Later ones may or may not be.
    /// `lenient`: acks may have been kept back, and are then forgotten whatever is durable.
    pub(crate) fn crashed(&mut self, now: Timestamp, durable: u64, lenient: bool) {
        for message in self.messages.values_mut() {
            message.crashed(durable);
        }
        self.unstamped.clear();
        self.snoozed.clear();
        let forgotten = self.answered.drain(..).filter(|(frame, _)| lenient || *frame > durable);
        self.maybe_held.extend(forgotten.map(|(_, hold)| (hold.lease.seq, hold)));
        // So may a lapse: a lease that is over stands until the first turn finds it so again.
        let lapsed = self.held.values().filter(|hold| hold.bound == Bound::Clock && hold.deadline <= now);
        self.maybe_held.extend(lapsed.map(|hold| (hold.lease.seq, *hold)));
        self.held.retain(|_, hold| hold.bound == Bound::Clock && hold.deadline > now);
        self.floor = self.start;
    }

    /// Whether a consumer has acked the message and it may therefore be settled.
    pub(crate) fn may_be_acked(&self, seq: Seq) -> bool {
        self.messages.get(&seq).is_some_and(MessageModel::may_be_acked)
    }

    pub(crate) fn acked_for_good(&self) -> impl Iterator<Item = Seq> + '_ {
        self.messages.iter().filter(|(_, message)| message.acked_for_good).map(|(&seq, _)| seq)
    }

    /// The floor does not go back, whatever is settled above it.
    pub(crate) fn check_floor_only(&mut self, floor: Seq) {
        assert!(floor >= self.floor, "I9: the floor went back from {} to {floor}", self.floor);
        self.floor = floor;
    }

    /// Whether a lease has been counted as an attempt.
    pub(crate) fn is_counted(&self, lease: Lease) -> bool {
        self.counted.contains(&lease)
    }

    /// The server says that everything up to here is settled.
    pub(crate) fn check_floor(&mut self, floor: Seq, is_parked: impl Fn(Seq) -> bool) {
        assert!(floor >= self.floor, "I9: the floor went back from {} to {floor}", self.floor);
        for seq in (self.floor.0 + 1..=floor.0).map(Seq) {
            let settled = self.may_be_acked(seq) || is_parked(seq);
            assert!(settled, "I9: the floor is at {floor} and {seq} is not settled");
        }
        self.floor = floor;
    }
}

impl MessageModel {
    fn may_be_acked(&self) -> bool {
        self.acked || self.maybe_acked || self.acked_for_good
    }

    fn crashed(&mut self, durable: u64) {
        self.stops += 1;
        // Recovery arrives at the state after the last durable change or after a later one.
        let mut attempts = self.at_start;
        let mut possible = Vec::new();
        for &(frame, change) in &self.recent {
            if frame > durable {
                possible.push(attempts);
            }
            match change {
                Change::Attempts(after) => attempts = after,
                Change::Acked => self.acked_for_good |= frame <= durable,
            }
        }
        possible.push(attempts);
        self.attempts = Bounds {
            min: possible.iter().map(|bounds| bounds.min).min().unwrap_or_default(),
            max: possible.iter().map(|bounds| bounds.max).max().unwrap_or_default(),
        };
        self.maybe_acked |= self.acked;
        self.acked = false;
        self.recent.clear();
        self.at_start = self.attempts;
    }
}

/// Every lease there ever was, since no two may be alike.
#[derive(Debug, Default)]
pub(crate) struct Grants(HashSet<(Epoch, Grant)>);

impl Grants {
    pub(crate) fn granted(&mut self, lease: Lease) {
        assert!(self.0.insert((lease.epoch, lease.grant)), "a grant was used twice: {lease:?}");
    }
}
