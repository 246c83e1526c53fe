//! The reference model: what the documents promise, one message at a time, with no regard for speed.
//!
//! It does not say which message goes to whom. It is told what the core did, checks that this was allowed,
//! and knows what must be true then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::entry::{Cause, Failure, MessageMeta, MoveReason, Route, Work};
use forebay_core::group::{
    Bound, ConsumerTerms, Credit, Deliver, Departure, Lease, NotYours, Outcome, Settlement, Verb,
};
use forebay_core::producers::ProducerStamp;
use forebay_core::settings::{
    Acks, GroupSettings, KeyLock, MoveTerms, OnExhausted, OnParkedKey, Retention, Strategy, StreamSettings,
};
use forebay_core::types::{
    ConsumerId, Epoch, Grant, GroupId, IdHash, JobId, KeyHash, Seq, SeqRange, StreamId, StreamName, Timestamp,
};

use crate::book::{Book, How, Item, State};

/// Every message has this size, so that bytes can be told exactly.
pub(crate) const SIZE: u32 = 100;
/// Publish times are known to this precision.
pub(crate) const TIMES: Duration = Duration::from_millis(101);

#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) key: KeyHash,
    pub(crate) priority: u8,
    pub(crate) not_before: Timestamp,
    pub(crate) expires: Timestamp,
    pub(crate) published: Timestamp,
    /// The stream that it was moved from, and why.
    pub(crate) from: Option<(StreamId, MoveReason)>,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) name: StreamName,
    pub(crate) settings: StreamSettings,
    pub(crate) messages: BTreeMap<Seq, Message>,
    /// Everything up to here is kept no longer, as far as the core has said.
    pub(crate) gone: Seq,
    /// Everything up to here was purged.
    pub(crate) purged: Seq,
    pub(crate) readers: BTreeMap<String, Seq>,
    pub(crate) ids: BTreeMap<IdHash, (Seq, Timestamp)>,
    /// Ids whose window was over before a longer one was set. The core may have forgotten them or not.
    pub(crate) doubtful: BTreeSet<IdHash>,
    pub(crate) producers: BTreeMap<u64, (u32, Vec<Numbered>)>,
    /// The admitted messages and their times, since the rate last changed.
    pub(crate) taken: Vec<(Timestamp, u64)>,
}

impl Stream {
    pub(crate) fn new(id: StreamId, name: StreamName, settings: StreamSettings) -> Stream {
        Stream {
            id,
            name,
            settings,
            messages: BTreeMap::new(),
            gone: Seq::START,
            purged: Seq::START,
            readers: BTreeMap::new(),
            ids: BTreeMap::new(),
            doubtful: BTreeSet::new(),
            producers: BTreeMap::new(),
            taken: Vec::new(),
        }
    }

    pub(crate) fn last(&self) -> Seq {
        Seq(self.messages.len() as u64)
    }

    pub(crate) fn is_expired(&self, now: Timestamp, seq: Seq) -> bool {
        seq <= self.gone || self.messages[&seq].expires <= now
    }

    pub(crate) fn duplicate(&self, now: Timestamp, id: IdHash) -> Option<Seq> {
        let &(seq, at) = self.ids.get(&id)?;
        (now.since(at) < self.settings.dedupe_window).then_some(seq)
    }

    pub(crate) fn change(&mut self, now: Timestamp, settings: &StreamSettings) {
        if self.settings.ingress_rate != settings.ingress_rate {
            self.taken.clear();
        }
        let window = self.settings.dedupe_window;
        let over = self.ids.iter().filter(|(_, (_, at))| now.since(*at) >= window);
        self.doubtful.extend(over.map(|(id, _)| *id));
        self.settings = settings.clone();
    }

    /// The messages of a batch that are new, and the answer to each message: its position, and whether it is a
    /// duplicate. Where the core may have forgotten an id, its answer in `given` decides.
    pub(crate) fn admissions(
        &self,
        now: Timestamp,
        metas: &[MessageMeta],
        given: &[(Seq, bool)],
    ) -> (Vec<MessageMeta>, Vec<(Seq, bool)>) {
        let mut fresh: Vec<MessageMeta> = Vec::new();
        let mut expected = Vec::new();
        for (n, meta) in metas.iter().enumerate() {
            let again = meta.id.and_then(|id| fresh.iter().position(|other| other.id == Some(id)));
            let again = again.map(|at| self.last().plus(at as u64 + 1));
            let known = meta.id.and_then(|id| {
                let known = self.duplicate(now, id)?;
                let kept = !self.doubtful.contains(&id) || given.get(n) == Some(&(known, true));
                kept.then_some(known)
            });
            // Once it is stored again, the id is the new message's.
            let known = again.or(known);
            expected.push((known.unwrap_or(self.last().plus(fresh.len() as u64 + 1)), known.is_some()));
            if known.is_none() {
                fresh.push(*meta);
            }
        }
        (fresh, expected)
    }

    /// `Err` is a refusal, `Ok(Some(..))` a batch that came before.
    pub(crate) fn verdict(&self, stamp: ProducerStamp, count: u64) -> Result<Option<Numbered>, ()> {
        let Some((epoch, batches)) = self.producers.get(&stamp.producer) else { return Ok(None) };
        let last = batches.last().expect("a producer is known by a batch");
        match () {
            () if stamp.epoch < *epoch => Err(()),
            () if stamp.epoch > *epoch || stamp.number == last.number + last.count => Ok(None),
            () => {
                let same = |batch: &&Numbered| batch.number == stamp.number && batch.count == count;
                batches.iter().rev().take(5).find(same).map(|batch| Some(*batch)).ok_or(())
            }
        }
    }

    pub(crate) fn stamped(&mut self, stamp: ProducerStamp, count: u64, seqs: Option<SeqRange>) {
        let of = self.producers.entry(stamp.producer).or_default();
        if stamp.epoch > of.0 {
            *of = (stamp.epoch, Vec::new());
        }
        of.1.push(Numbered { number: stamp.number, count, seqs });
    }
}

/// A producer's batch: its number, how many messages it had, and where those are that were new.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbered {
    pub(crate) number: u64,
    pub(crate) count: u64,
    pub(crate) seqs: Option<SeqRange>,
}

#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) bound: Bound,
    pub(crate) credit: Credit,
    pub(crate) terms: ConsumerTerms,
    /// Whether it was given something since it asked.
    pub(crate) fed: bool,
    pub(crate) seen: Timestamp,
}

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) work: Work,
    pub(crate) rate: Option<f64>,
    pub(crate) left: BTreeSet<Seq>,
    pub(crate) matched: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) running: bool,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) stream: StreamId,
    pub(crate) settings: GroupSettings,
    pub(crate) book: Book,
    /// As the log alone tells it.
    pub(crate) log: Book,
    /// As the image being made, or made last, and the log after it do.
    pub(crate) taking: Option<Book>,
    pub(crate) image: Option<Book>,
    pub(crate) paused: bool,
    pub(crate) rest_until: Timestamp,
    pub(crate) members: BTreeMap<ConsumerId, Member>,
    pub(crate) leaving: BTreeMap<ConsumerId, (String, Departure)>,
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) checkpoint: Seq,
    /// Acks that no entry has told of yet.
    pub(crate) unwritten: BTreeMap<Seq, Timestamp>,
    /// There may be more in process than fits by now.
    pub(crate) window_changed: bool,
    /// Who was last given messages of a key, since members last changed.
    pub(crate) pins: BTreeMap<KeyHash, ConsumerId>,
    pub(crate) served: Option<ConsumerId>,
    /// The one that gets everything, if the strategy is that.
    pub(crate) sole: Option<ConsumerId>,
    /// The messages handed out and their times, since the rate last changed.
    pub(crate) paced: Vec<(Timestamp, u64)>,
}

impl Group {
    pub(crate) fn new(id: GroupId, stream: &Stream, settings: GroupSettings, floor: Seq) -> Group {
        let book = Book::starting_at(floor, stream.last());
        Group {
            id,
            stream: stream.id,
            settings,
            log: book.clone(),
            checkpoint: book.floor(),
            book,
            taking: None,
            image: None,
            paused: false,
            rest_until: Timestamp::ZERO,
            members: BTreeMap::new(),
            leaving: BTreeMap::new(),
            jobs: BTreeMap::new(),
            unwritten: BTreeMap::new(),
            window_changed: false,
            pins: BTreeMap::new(),
            served: None,
            sole: None,
            paced: Vec::new(),
        }
    }

    pub(crate) fn books(&mut self) -> impl Iterator<Item = &mut Book> {
        [Some(&mut self.log), self.taking.as_mut(), self.image.as_mut()].into_iter().flatten()
    }

    pub(crate) fn held(&self, who: ConsumerId) -> u64 {
        let holds =
            |item: &Item| matches!(item.state, State::Leased { consumer, .. } if consumer == Some(who));
        self.book.count(holds)
    }

    pub(crate) fn room(&self, consumer: ConsumerId) -> u64 {
        let held = self.held(consumer);
        match self.members[&consumer].credit {
            Credit::Slots { bytes: Some(bytes), .. } if held > 0 && (held + 1) * u64::from(SIZE) > bytes => 0,
            Credit::Slots { messages, .. } => u64::from(messages).saturating_sub(held),
            Credit::Once { bytes: Some(bytes), .. }
                if self.members[&consumer].fed && u64::from(SIZE) > bytes =>
            {
                0
            }
            Credit::Once { messages, .. } => messages.into(),
        }
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.book.count(Item::is_leased)
    }

    pub(crate) fn is_parked_full(&self) -> bool {
        self.book.count(Item::is_parked) >= u64::from(self.settings.parked_max)
    }

    fn window_is_full(&self) -> bool {
        self.book.count(Item::is_in_process) >= u64::from(self.settings.window_max)
    }

    pub(crate) fn is_ordered(&self) -> bool {
        self.settings.strategy == Strategy::Ordered
    }

    /// Its key, where the group cares for order.
    fn order_key(&self, stream: &Stream, seq: Seq) -> Option<KeyHash> {
        let key = stream.messages[&seq].key;
        (self.is_ordered() && key != KeyHash(0)).then_some(key)
    }

    /// Whether it may go, its key and the group's limits aside.
    fn is_due(&self, now: Timestamp, stream: &Stream, seq: Seq, item: &Item) -> bool {
        let state = match item.state {
            State::Ready => true,
            State::Untouched => !self.window_is_full(),
            _ => false,
        };
        state && stream.messages[&seq].not_before <= now && (item.replayed || !stream.is_expired(now, seq))
    }

    /// All messages that may go now, if a consumer has room.
    pub(crate) fn candidates(&self, now: Timestamp, stream: &Stream) -> Vec<Seq> {
        let key_of = |seq: Seq| Some(stream.messages[&seq].key).filter(|key| key.0 != 0 && self.is_ordered());
        let mut locked: BTreeSet<KeyHash> = BTreeSet::new();
        for (&seq, item) in self.book.items.iter().filter(|_| self.is_ordered()) {
            let holds = item.is_parked() && self.settings.on_parked_key == OnParkedKey::Hold;
            if item.is_leased() && self.settings.key_lock == KeyLock::Delivery || holds {
                locked.extend(key_of(seq));
            }
        }
        let mut candidates = Vec::new();
        for (&seq, item) in &self.book.items {
            let key = key_of(seq);
            let free = item.is_terminal() || key.is_none_or(|key| locked.insert(key));
            if free && !item.is_terminal() && self.is_due(now, stream, seq, item) {
                candidates.push(seq);
            }
        }
        candidates
    }

    /// What time does by itself, in the order in which it counts.
    pub(crate) fn time_passed(&mut self, now: Timestamp, stream: &Stream) {
        for (who, (name, departure)) in std::mem::take(&mut self.leaving) {
            let holds =
                |item: &Item| matches!(item.state, State::Leased { consumer, .. } if consumer == Some(who));
            for seq in self.all(holds) {
                self.left_behind(now, stream, seq, &name, departure);
            }
        }
        for seq in self.all(|item| matches!(item.state, State::Leased { deadline, .. } if deadline <= now)) {
            let State::Leased { consumer, .. } = self.book.item(seq).state else { unreachable!() };
            let name = consumer.and_then(|consumer| self.members.get(&consumer)).map(|m| m.name.clone());
            if let Some(member) = consumer.and_then(|consumer| self.members.get_mut(&consumer)) {
                member.seen = now;
            }
            self.fail(now, stream, seq, None, Cause::Timeout, None, name.as_deref());
        }
        let open =
            |item: &Item| matches!(item.state, State::Untouched | State::Ready | State::Waiting { .. });
        for seq in self.all(|item| open(item) && !item.replayed) {
            if stream.is_expired(now, seq) {
                self.let_go(seq, How::Expired);
            }
        }
        if let Some(age) = self.settings.parked_max_age {
            let old =
                |item: &Item| item.is_parked() && item.history.last().is_some_and(|f| f.at + age <= now);
            for seq in self.all(old) {
                self.book.item(seq).settle(How::Discarded);
            }
        }
        for seq in self.all(|item| matches!(item.state, State::Waiting { until } if until <= now)) {
            self.book.item(seq).state = State::Ready;
        }
    }

    fn all(&self, is: impl Fn(&Item) -> bool) -> Vec<Seq> {
        self.book.items.iter().filter(|(_, item)| is(item)).map(|(&seq, _)| seq).collect()
    }

    /// The time of a message is over, or the stream was full.
    pub(crate) fn let_go(&mut self, seq: Seq, how: How) {
        let (then, why) = match how {
            How::Dropped => (&self.settings.on_dropped, MoveReason::Dropped),
            _ => (&self.settings.on_expired, MoveReason::Expired),
        };
        match then.destination().cloned() {
            Some(to) => {
                let route = Route::Alone { to, terms: MoveTerms::default(), why };
                self.book.item(seq).send(route);
            }
            None => self.book.item(seq).settle(how),
        }
    }

    fn left_behind(&mut self, now: Timestamp, stream: &Stream, seq: Seq, name: &str, departure: Departure) {
        let attempts = self.book.item(seq).attempts;
        let exhausted = self.settings.max_retries.at_most().is_some_and(|retries| attempts > retries);
        if departure == Departure::Lost && exhausted {
            self.fail(now, stream, seq, None, Cause::Lost, None, Some(name));
            return;
        }
        let item = self.book.item(seq);
        item.state = State::Ready;
        if departure == Departure::Goodbye {
            item.attempts -= 1;
            item.last = None;
        }
    }

    #[expect(clippy::too_many_arguments)]
    fn fail(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        seq: Seq,
        delay: Option<Duration>,
        cause: Cause,
        reason: Option<&str>,
        consumer: Option<&str>,
    ) -> Outcome {
        let attempt = self.book.item(seq).attempts;
        if !self.book.item(seq).replayed && stream.is_expired(now, seq) {
            self.let_go(seq, How::Expired);
            return Outcome::Expired;
        }
        if self.settings.max_retries.at_most().is_some_and(|retries| attempt > retries) {
            return match self.settings.on_exhausted.clone() {
                OnExhausted::Park => self.park(now, seq, cause, reason, consumer),
                OnExhausted::Skip => {
                    self.book.item(seq).settle(How::Skipped);
                    Outcome::Skipped
                }
                OnExhausted::Move(to) => {
                    let (terms, why) = (self.settings.move_terms, MoveReason::Exhausted);
                    let route = Route::Alone { to, terms, why };
                    self.book.item(seq).set_out(route);
                    Outcome::Moving
                }
            };
        }
        self.try_again(now, seq, delay, failure(now, attempt, cause, reason, consumer));
        Outcome::Retrying
    }

    /// It waits for as long as it is told to, or as the backoff says.
    pub(crate) fn try_again(&mut self, now: Timestamp, seq: Seq, delay: Option<Duration>, failure: Failure) {
        let attempt = failure.attempt;
        let backoff = &self.settings.backoff;
        let until = match delay {
            Some(delay) => now + delay,
            None if backoff.jitter == 0.0 => {
                let doublings = 1u32 << (attempt - 1).min(20);
                now + backoff.max.min(backoff.min * doublings)
            }
            None => {
                forebay_core::settings::ready_at(backoff, now, seq, forebay_core::types::Attempt(attempt))
            }
        };
        let item = self.book.item(seq);
        item.remember(failure);
        item.state = State::Waiting { until };
    }

    pub(crate) fn park(
        &mut self,
        now: Timestamp,
        seq: Seq,
        cause: Cause,
        reason: Option<&str>,
        consumer: Option<&str>,
    ) -> Outcome {
        let item = self.book.item(seq);
        let failure = failure(now, item.attempts, cause, reason, consumer);
        item.park(failure);
        Outcome::Parked
    }

    /// The expected outcome of settling a lease.
    pub(crate) fn settle(
        &mut self,
        now: Timestamp,
        stream: &Stream,
        lease: Lease,
        settlement: &Settlement,
    ) -> Outcome {
        let Some(item) = self.book.items.get(&lease.seq) else {
            return Outcome::NotYours(NotYours::Unknown);
        };
        let consumer = match &item.state {
            State::Leased { lease: held, consumer, .. } if *held == lease => *consumer,
            State::Ready | State::Waiting { .. }
                if settlement.late && settlement.verb == Verb::Ack && item.last == Some(lease) =>
            {
                self.ack(now, lease.seq);
                return Outcome::Acked;
            }
            _ => return Outcome::NotYours(why_not(item, lease)),
        };
        if let Some(rest) = settlement.rest {
            self.rest_until = self.rest_until.max(now + rest);
        }
        let name = consumer.and_then(|consumer| self.name(consumer));
        if let Some(member) = consumer.and_then(|consumer| self.members.get_mut(&consumer)) {
            member.seen = now;
        }
        let reason = settlement.reason.as_deref();
        match &settlement.verb {
            Verb::Ack => {
                self.ack(now, lease.seq);
                Outcome::Acked
            }
            Verb::Retry { delay } => {
                self.fail(now, stream, lease.seq, *delay, Cause::Nack, reason, name.as_deref())
            }
            Verb::Park => self.park(now, lease.seq, Cause::Nack, reason, name.as_deref()),
            Verb::Skip => {
                self.book.item(lease.seq).settle(How::Skipped);
                Outcome::Skipped
            }
            Verb::Return { delay } => {
                let item = self.book.item(lease.seq);
                item.state = delay.map_or(State::Ready, |delay| State::Waiting { until: now + delay });
                item.attempts -= 1;
                item.last = None;
                if !item.replayed && stream.is_expired(now, lease.seq) {
                    self.let_go(lease.seq, How::Expired);
                }
                Outcome::Returned
            }
            Verb::Move(to) => {
                let (to, terms) = (to.clone(), MoveTerms::default());
                let route = Route::Alone { to, terms, why: MoveReason::Asked };
                self.book.item(lease.seq).set_out(route);
                Outcome::Moving
            }
            Verb::Extend { .. } => unreachable!("it settles nothing"),
        }
    }

    /// A consumer that has left is known until the turn is over.
    fn name(&self, consumer: ConsumerId) -> Option<String> {
        let member = self.members.get(&consumer).map(|member| member.name.clone());
        member.or_else(|| self.leaving.get(&consumer).map(|(name, _)| name.clone()))
    }

    fn ack(&mut self, now: Timestamp, seq: Seq) {
        self.book.item(seq).settle(How::Acked);
        self.unwritten.insert(seq, now);
    }

    pub(crate) fn extend(
        &mut self,
        now: Timestamp,
        lease: Lease,
        by: Duration,
        total_max: Option<Duration>,
    ) -> Outcome {
        let until = now + by;
        let item = self.book.item(lease.seq);
        match &mut item.state {
            State::Leased { lease: held, granted, deadline, .. } if *held == lease => {
                if total_max.is_some_and(|most| until > *granted + most) {
                    return Outcome::TooLong;
                }
                *deadline = until;
                Outcome::Extended
            }
            _ => Outcome::NotYours(why_not(item, lease)),
        }
    }

    /// A delivery was made: checks that it was allowed.
    pub(crate) fn deliver(&mut self, now: Timestamp, stream: &Stream, epoch: Epoch, deliver: &Deliver) {
        let Deliver { consumer, seqs, .. } = *deliver;
        assert_eq!(deliver.stream, self.stream, "a delivery is of the group's stream");
        assert!(!self.paused, "a paused group hands out nothing");
        assert!(self.rest_until <= now, "a group that rests hands out nothing");
        assert!(!self.is_parked_full(), "a group with too much parked hands out nothing");
        let member = self.members.get(&consumer).expect("only a member is given messages").clone();
        assert_eq!(deliver.bound, member.bound, "a lease is bound as its consumer is");
        let timeout = match member.credit {
            Credit::Once { timeout: Some(timeout), .. } => timeout,
            _ => member.terms.lease.unwrap_or(self.settings.message_timeout),
        };
        assert_eq!(deliver.deadline, now + timeout, "a lease lasts as long as was asked for");
        self.check_choice(now, stream, seqs.first, consumer);
        for (n, seq) in seqs.seqs().enumerate() {
            self.check_delivered(now, stream, seq, deliver);
            let grant = Grant(deliver.grant.0 + n as u64);
            let lease = Lease { epoch, seq, grant };
            let item = self.book.item(seq);
            item.handed(now);
            assert_eq!(deliver.first_received, item.first, "when {seq} was first handed out");
            // A late answer over a connection never counts.
            item.last = Some(lease).filter(|_| deliver.bound == Bound::Clock);
            item.state = State::Leased {
                consumer: Some(consumer),
                lease,
                granted: now,
                deadline: deliver.deadline,
                bound: deliver.bound,
            };
            let member = self.members.get_mut(&consumer).expect("it was there just now");
            member.seen = now;
            member.fed = true;
            if let Credit::Once { messages, bytes, .. } = &mut member.credit {
                *messages -= 1;
                *bytes = bytes.map(|bytes| bytes.saturating_sub(u64::from(SIZE)));
            }
        }
        self.check_pace(now, seqs.count());
    }

    fn check_delivered(&self, now: Timestamp, stream: &Stream, seq: Seq, deliver: &Deliver) {
        let who = deliver.consumer;
        let message = stream.messages.get(&seq).expect("what is handed out was published");
        let item = &self.book.items[&seq];
        let free = matches!(item.state, State::Ready | State::Untouched);
        assert!(free, "{seq} was handed out, but it is {:?}", item.state);
        assert!(message.not_before <= now, "{seq} was handed out before its time");
        assert!(item.replayed || !stream.is_expired(now, seq), "{seq} was handed out after its time");
        assert_eq!(deliver.attempt.0, item.attempts + 1, "attempt of {seq}");
        assert_eq!(deliver.redelivered, item.seen, "whether {seq} was handed out before");
        // How large a message is is forgotten with what the stream does not keep.
        let (Credit::Slots { bytes, .. } | Credit::Once { bytes, .. }) = self.members[&who].credit;
        let bytes = bytes.is_some();
        let unsure = bytes && stream.gone > Seq::START;
        assert!(self.room(who) > 0 || unsure, "{seq} was handed to one without room");
        let open = self.in_flight() < u64::from(self.settings.max_in_flight);
        assert!(open, "{seq} was handed out above the group's limit");
        // Messages that were replayed or have become due did not ask for room, and no other message loses its
        // place for them.
        let of_keys = |message: &&Message| self.settings.is_keyed() && message.not_before > Timestamp::ZERO;
        let delayed = stream.messages.values().filter(of_keys).count() as u64;
        let taken = self.book.count(|item| item.is_in_process() && !item.replayed);
        let fits = taken < u64::from(self.settings.window_max) + delayed;
        assert!(
            fits || item.state == State::Ready || self.window_changed,
            "{seq} was taken in although the window is full"
        );
        if let Some(key) = self.order_key(stream, seq) {
            self.check_order(now, stream, seq, key, deliver);
        }
    }

    fn check_order(&self, now: Timestamp, stream: &Stream, seq: Seq, key: KeyHash, deliver: &Deliver) {
        let mut together = 0;
        for (&other, item) in &self.book.items {
            if self.order_key(stream, other) != Some(key) || other == seq {
                continue;
            }
            let same = matches!(item.state, State::Leased { consumer, deadline, lease, .. }
                if consumer == Some(deliver.consumer)
                    && deadline == deliver.deadline
                    && lease.grant < deliver.grant
                    && other < seq
                    && now + Duration::ZERO <= deadline);
            together += u32::from(same);
            let hold = item.is_parked() && self.settings.on_parked_key == OnParkedKey::Hold;
            assert!(!hold || other > seq, "{seq} was handed out while {other} of its key holds it up");
            let locks = other < seq || self.settings.key_lock == KeyLock::Delivery;
            let locked = item.is_leased() && !same && locks;
            assert!(!locked, "{seq} was handed out while {other} of its key is leased");
            let before = other < seq && !item.is_terminal() && !same;
            assert!(!before, "{seq} was handed out before {other} of its key, which is {:?}", item.state);
        }
        assert!(together < self.settings.key_batch, "{seq} goes together with too many of its key");
    }

    /// A consumer is gone. The next one that gets everything is the oldest of the highest rank.
    pub(crate) fn gone(&mut self, consumer: ConsumerId) -> Option<Member> {
        let member = self.members.remove(&consumer);
        if self.sole == Some(consumer) {
            let places =
                self.members.iter().map(|(&who, member)| (std::cmp::Reverse(member.terms.rank), who));
            self.sole = places.min().map(|(_, who)| who);
        }
        member
    }

    /// Whether a consumer has no say in who is served: the sizes of what it holds are not known exactly.
    fn is_unsure(&self, stream: &Stream, who: ConsumerId) -> bool {
        let (Credit::Slots { bytes, .. } | Credit::Once { bytes, .. }) = self.members[&who].credit;
        bytes.is_some() && stream.gone > Seq::START
    }

    /// Whether the right one was chosen of those that could go, and the right consumer for it.
    fn check_choice(&mut self, now: Timestamp, stream: &Stream, seq: Seq, consumer: ConsumerId) {
        let strategy = self.settings.strategy;
        if strategy == Strategy::Sole {
            assert_eq!(Some(consumer), self.sole, "one consumer gets everything");
        } else if strategy != Strategy::Pinned {
            let rank = self.members[&consumer].terms.rank;
            let higher =
                self.members.iter().filter(|(_, member)| member.terms.rank > rank).map(|(&who, _)| who);
            for who in higher.filter(|&who| !self.is_unsure(stream, who)) {
                assert_eq!(
                    self.room(who),
                    0,
                    "{consumer:?} was served although {who:?} of a higher rank has room"
                );
            }
        }
        if self.settings.strategy == Strategy::Single
            && let Some(served) = self.served.filter(|served| *served != consumer)
            && self.members.contains_key(&served)
            && self.members[&served].terms.rank >= self.members[&consumer].terms.rank
        {
            let bytes = matches!(self.members[&served].credit, Credit::Slots { bytes: Some(_), .. });
            let unsure = bytes && stream.gone > Seq::START;
            assert!(self.room(served) == 0 || unsure, "another was served although {served:?} has room");
        }
        self.served = Some(consumer);
        let key = stream.messages[&seq].key;
        let has_key = key != KeyHash(0);
        if self.settings.strategy == Strategy::Pinned && has_key {
            let pinned = *self.pins.entry(key).or_insert(consumer);
            assert_eq!(pinned, consumer, "{seq} of a pinned key went to another consumer");
        }
        if self.settings.is_keyed() {
            return;
        }
        let rank = |seq: Seq, slack: Duration| {
            let message = &stream.messages[&seq];
            let step = self.settings.priority_age_step.as_micros();
            let waited = now.since(message.published + slack).as_micros();
            (u128::from(message.priority) + waited.checked_div(step).unwrap_or(0)).min(9)
        };
        let one_lane = stream.messages.values().all(|message| message.priority == 0);
        for other in self.candidates(now, stream) {
            // A message without a priority that was never looked at may not have been read yet.
            let known = self.book.items[&other].state == State::Ready || stream.messages[&other].priority > 0;
            // When it was published is forgotten with what the stream does not keep.
            let known = known && other > stream.gone;
            let higher = known && rank(other, TIMES) > rank(seq, Duration::ZERO);
            assert!(!higher, "{seq} was handed out before {other}, which has a higher priority");
            let before = known && one_lane && other < seq;
            assert!(!before, "{seq} was handed out before {other}");
        }
    }

    fn check_pace(&mut self, now: Timestamp, count: u64) {
        let Some(rate) = self.settings.rate else { return };
        self.paced.push((now, count));
        check_rate(&self.paced, rate.per_second, f64::from(rate.burst));
    }

    /// Nothing that can go is left, unless something stops it.
    pub(crate) fn check_progress(&self, now: Timestamp, stream: &Stream, wake_at: Option<Timestamp>) {
        let open = self.in_flight() < u64::from(self.settings.max_in_flight);
        if self.paused || self.is_parked_full() || !open {
            return;
        }
        if self.rest_until > now {
            let until = self.rest_until;
            assert!(wake_at.is_some_and(|at| at <= until), "nobody sees the end of the rest");
            return;
        }
        // Sizes of what the stream does not keep are forgotten, and bytes are off until nothing is held.
        let is_sure = |who: ConsumerId| {
            let (Credit::Slots { bytes, .. } | Credit::Once { bytes, .. }) = self.members[&who].credit;
            let bytes = bytes.is_some();
            !bytes || stream.gone == Seq::START || self.held(who) == 0
        };
        let is_served = |who: ConsumerId| self.settings.strategy != Strategy::Sole || self.sole == Some(who);
        let has_room = |who: ConsumerId| self.room(who) > 0 && is_sure(who) && is_served(who);
        let takers = self.members.keys().filter(|&&who| has_room(who)).count();
        if takers == 0 {
            return;
        }
        let mut candidates = self.candidates(now, stream);
        if self.settings.strategy == Strategy::Pinned && takers < self.members.len() {
            // It may belong to a consumer that has no room, and messages that wait for that consumer take up
            // the window.
            let taken = self.book.count(Item::is_in_process) + candidates.len() as u64;
            if taken >= u64::from(self.settings.window_max) {
                return;
            }
            candidates.retain(|seq| stream.messages[seq].key == KeyHash(0));
        }
        let Some(first) = candidates.first() else { return };
        match self.settings.rate {
            Some(rate) => {
                let next = Timestamp(now.0 + (1e6 / rate.per_second) as u64 + 2);
                assert!(wake_at.is_some_and(|at| at <= next), "{first} waits for a pace that nobody keeps");
            }
            None => {
                let states = self.book.items.iter().map(|(seq, item)| {
                    format!("{seq} of {:?} is {:?}", stream.messages[seq].key, item.state)
                });
                let states: Vec<String> = states.collect();
                panic!("{first} can go, and somebody has room for it: {}", states.join(", "));
            }
        }
    }

    /// When something next happens by itself.
    pub(crate) fn next_due(&self, stream: &Stream, now: Timestamp) -> Option<Timestamp> {
        let mut times = Vec::new();
        for (seq, item) in &self.book.items {
            let message = &stream.messages[seq];
            match &item.state {
                State::Leased { deadline, .. } => times.push(*deadline),
                State::Waiting { until } => times.push(*until),
                State::Parked => times.extend(
                    self.settings
                        .parked_max_age
                        .map(|age| item.history.last().expect("it was parked for something").at + age),
                ),
                State::Untouched => times.push(message.not_before),
                _ => {}
            }
            let expires = *seq > stream.gone && message.expires < Timestamp(u64::MAX);
            if !item.is_terminal() && !item.replayed && expires {
                times.push(message.expires);
            }
        }
        times.into_iter().filter(|at| *at > now).min()
    }

    /// Acks are written at once, or at the end of an interval, for which a wake-up is set.
    pub(crate) fn check_acks_written(&self, now: Timestamp, wake_at: Option<Timestamp>) {
        if self.settings.acks != Acks::Checkpoint {
            assert!(self.unwritten.is_empty(), "acks are written with the turn: {:?}", self.unwritten);
        } else if !self.unwritten.is_empty() {
            // The interval may have been another when it began.
            let next = now + self.settings.checkpoint.interval.max(Duration::from_secs(2));
            assert!(wake_at.is_some_and(|at| at <= next), "acks are kept back for ever");
            let most = u64::from(self.settings.checkpoint.max);
            assert!((self.unwritten.len() as u64) < most, "too many acks are kept back");
        }
    }

    /// What counts against the limits of the stream.
    pub(crate) fn held_messages(&self) -> u64 {
        self.book.count(|item| !matches!(item.state, State::Settled(_) | State::Sent { .. }))
    }

    pub(crate) fn crashed(&mut self, from_image: bool) {
        let book = if from_image { self.image.as_ref() } else { None };
        self.book = book.unwrap_or(&self.log).recovered();
        self.rest_until = Timestamp::ZERO;
        self.members.clear();
        self.leaving.clear();
        self.unwritten.clear();
        self.pins.clear();
        self.served = None;
        self.sole = None;
        // What lies between that which was in process has to be looked at along with it.
        self.window_changed = true;
        self.taking = None;
    }
}

fn why_not(item: &Item, lease: Lease) -> NotYours {
    match item.state {
        State::Parked | State::Settled(_) | State::Sent { .. } | State::Moving { .. } => NotYours::Gone,
        State::Ready | State::Waiting { .. } if item.last == Some(lease) => NotYours::Lapsed,
        _ => NotYours::Superseded,
    }
}

pub(crate) fn check_rate(spent: &[(Timestamp, u64)], per_second: f64, burst: f64) {
    let Some(&(now, _)) = spent.last() else { return };
    let mut sum = 0;
    for &(at, count) in spent.iter().rev() {
        sum += count;
        let window = now.since(at).as_secs_f64();
        assert!(sum as f64 <= per_second * window + burst + 1e-6, "{sum} within {window} s is too fast");
    }
}

pub(crate) fn failure(
    now: Timestamp,
    attempt: u32,
    cause: Cause,
    reason: Option<&str>,
    who: Option<&str>,
) -> Failure {
    Failure { at: now, attempt, cause, reason: reason.map(Arc::from), consumer: who.map(Arc::from) }
}

/// How many messages a stream holds, by its limits.
pub(crate) fn held<'a>(stream: &Stream, groups: impl Iterator<Item = &'a Group>) -> u64 {
    let kept = stream.last().0 - stream.gone.0;
    match groups.map(Group::held_messages).max() {
        Some(held) if stream.settings.retention == Retention::Work => held,
        _ => kept,
    }
}
