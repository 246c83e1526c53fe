//! One history: producers, consumers, a server, a disk, and what befalls them.
//!
//! Everything is decided by dice from one seed. Steps are small (one command, one block written, some
//! time passing), so that any order of them can come about that real threads could bring about.

mod bundles;
mod clients;
mod limits;
mod log_readers;
mod mishaps;
mod numbered;
mod operators;
mod rest;
mod side;
mod whole_readers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use forebay_broker::driver::{Delivery, Driver, Published, Ticket};
use forebay_core::entry::MessageMeta;
use forebay_core::group::{Bound, Lease};
use forebay_core::settings::{Acks, Backoff, GroupSettings, OnEnd, OnExhausted, Retries};
use forebay_core::shard::{Shard, Start};
use forebay_core::types::{
    ConsumerId, Epoch, Grant, GroupId, GroupName, Seq, StreamId, StreamName, Timestamp,
};

use crate::dice::Dice;
use crate::disk::SimDisk;
use crate::model::{Grants, GroupModel, StreamModel, Uid};
use crate::server::{Down, Server};
use crate::situation::{Situation, Situations};
use crate::tale::tell;
use crate::watch::Watch;
use operators::PaceWatch;

/// How far the clock may go in one step.
const JUMP_MAX: Duration = Duration::from_secs(7_200);

pub(crate) struct World {
    dice: Dice,
    disk: SimDisk,
    now: Timestamp,
    /// Gone between a crash and the next start.
    server: Option<Server>,
    streams: BTreeMap<StreamId, StreamModel>,
    groups: BTreeMap<GroupId, Following>,
    consumers: BTreeMap<ConsumerId, Consumer>,
    publishes: BTreeMap<Ticket, (StreamId, Vec<Uid>, Published)>,
    creations: BTreeMap<Ticket, GroupId>,
    /// Tickets of decisions whose answers nothing here looks at.
    unwatched: BTreeSet<Ticket>,
    /// Producers that number their messages, one for each stream.
    numbered: BTreeMap<StreamId, numbered::Numbered>,
    side: side::Side,
    /// Bundles since the server started.
    bundles: Vec<bundles::Recent>,
    log_readers: log_readers::LogReaders,
    whole_readers: whole_readers::WholeReaders,
    grants: Grants,
    /// Leases that were answered or lost, to be answered again out of turn.
    stale: Vec<(GroupId, Lease)>,
    next: u64,
    /// An ack was taken in this turn, in this group.
    acked_this_turn: Vec<GroupId>,
    settled_since_commit: bool,
    mishaps: bool,
    /// How many of the kept images are whole, as far as the history has to do with it: two at most.
    whole_images: u32,
    /// The slot of MARK in which a bit was flipped, as it was then.
    damaged_mark: Option<(usize, Vec<u8>)>,
    /// One stream, one group, no message parked: settled messages are released, and the log is trimmed.
    /// With more of them, some message nearly always holds the log back.
    plain: bool,
    /// Everything there is: keys, delays, priorities, every verb, and operators.
    wild: bool,
    /// A turn ends only when the real shell would end it.
    shell: bool,
    /// Places of the disk may go bad.
    bad_places: bool,
    /// A read was given up, so messages may be parked that no consumer has seen.
    spoiled: bool,
    /// Something has happened since the last turn that the shell ends a turn for.
    due: bool,
    /// A poller has asked for leases for no time.
    is_fleeting: bool,
    /// Grants of leases that were over at the end of the turn in which they began.
    unseen: u32,
    /// Leases of this turn that have not left. A lease for no time may be among them, and be followed by another one
    /// of its message that leaves first.
    held_back: Vec<(GroupId, ConsumerId, Lease)>,
    /// What the log has of each message, as it was last published at its position.
    published: BTreeMap<(StreamId, Seq), (MessageMeta, Timestamp)>,
    /// Leases that were first seen in this turn.
    new_leases: Vec<(GroupId, ConsumerId, Lease)>,
    /// The newest frame that was durable when the server last stopped.
    durable_at_crash: u64,
    /// The latest time there ever was, whatever the clock says now.
    latest: Timestamp,
    pub(crate) situations: Situations,
    pub(crate) crashes: u32,
    trace: Trace,
}

/// A group, and the stream it follows.
struct Following {
    stream: StreamId,
    model: GroupModel,
    /// Everything up to here was settled when the group was created.
    start: Seq,
    /// Its creator was told that it exists.
    answered: bool,
    settings: GroupSettings,
    /// All values that the setting for exhausted retries ever had.
    on_exhausted: Vec<OnExhausted>,
    /// Messages that expire always went to another stream, and so did those that are dropped.
    sends_expired: bool,
    sends_dropped: bool,
    paused: bool,
    /// Acks may have been kept back at some time.
    lenient: bool,
    /// How far the group had looked at the end of the last turn.
    seen: Seq,
    watch: Watch,
    pace: PaceWatch,
    /// The consumer that was served last, since the settings changed.
    served: Option<ConsumerId>,
    /// Messages that were delivered since the server started, or the group was reset.
    delivered: BTreeSet<Seq>,
    /// Which message is at a position, for those that were delivered.
    uids: BTreeMap<Seq, Uid>,
    /// Messages in the hands of consumers that were passed over by later ones of their keys, since their keys could
    /// not be read.
    passed_over: BTreeSet<Seq>,
}

impl Following {
    /// The group has other settings from now on.
    fn take_on(&mut self, settings: GroupSettings) {
        self.model.change(settings.max_retries.at_most().unwrap_or(u32::MAX), settings.max_in_flight);
        if !self.on_exhausted.contains(&settings.on_exhausted) {
            self.on_exhausted.push(settings.on_exhausted.clone());
        }
        self.sends_expired &= settings.on_expired != OnEnd::Discard;
        self.sends_dropped &= settings.on_dropped != OnEnd::Discard;
        self.pace.change(settings.rate);
        // It may have begun to look anew.
        self.seen = Seq::START;
        self.served = None;
        self.lenient |= settings.acks == Acks::Checkpoint;
        self.settings = settings;
    }
}

struct Consumer {
    group: GroupId,
    bound: Bound,
    /// What it said it would take at most: slots, or messages in the next delivery.
    credit: u32,
    /// What it may be seen to hold: what it was leased before it lowered its credit may still come.
    allowed: u32,
    /// A poller that waits: what it asked for, and for how long it wants its leases.
    asked: Option<(u32, Option<Duration>)>,
    /// How long it wanted its last leases to be.
    lease_for: Option<Duration>,
    rank: i32,
}

/// What happened, reduced to a number: the same seed must give the same one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trace(u64);

impl Trace {
    fn add(&mut self, what: u64) {
        self.0 = (self.0 ^ what).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(5);
    }
}

impl World {
    /// `bad_places`: places of the disk may go bad.
    pub(crate) fn new(seed: u64, disk: SimDisk, bad_places: bool) -> World {
        let mut dice = Dice::from(seed);
        let now = Timestamp(1_000_000_000);
        let mut world = World {
            disk,
            now,
            server: None,
            streams: BTreeMap::new(),
            groups: BTreeMap::new(),
            consumers: BTreeMap::new(),
            publishes: BTreeMap::new(),
            creations: BTreeMap::new(),
            unwatched: BTreeSet::new(),
            numbered: BTreeMap::new(),
            side: side::Side::default(),
            bundles: Vec::new(),
            log_readers: log_readers::LogReaders::new(seed),
            whole_readers: whole_readers::WholeReaders::new(seed),
            grants: Grants::default(),
            stale: Vec::new(),
            next: dice.roll(1 << 20),
            acked_this_turn: Vec::new(),
            settled_since_commit: false,
            mishaps: false,
            whole_images: 0,
            damaged_mark: None,
            plain: false,
            wild: false,
            shell: false,
            spoiled: false,
            bad_places,
            due: true,
            is_fleeting: false,
            unseen: 0,
            held_back: Vec::new(),
            published: BTreeMap::new(),
            new_leases: Vec::new(),
            durable_at_crash: 0,
            latest: now,
            situations: Situations::default(),
            crashes: 0,
            trace: Trace(seed),
            dice,
        };
        world.start();
        world.set_up();
        world.mishaps = true;
        world
    }

    pub(crate) fn trace(&self) -> u64 {
        self.trace.0
    }

    fn server(&mut self) -> &mut Server {
        self.server.as_mut().expect("the server is up between steps")
    }

    /// The driver, for a command: the shell ends a turn after it.
    fn driver(&mut self) -> &mut Driver {
        self.due = true;
        &mut self.server().driver
    }

    fn epoch(&mut self) -> Epoch {
        self.server().driver.shard().epoch()
    }

    /// Lets the shard decide something, which must not be refused, and asks for an answer when it is durable.
    fn decide<T, E: std::fmt::Debug>(
        &mut self,
        decide: impl FnOnce(&mut Shard, Timestamp) -> Result<T, E>,
    ) -> (T, Ticket) {
        let (decided, ticket) = self.try_decide(decide);
        (decided.expect("it is not refused"), ticket)
    }

    fn try_decide<T, E>(
        &mut self,
        decide: impl FnOnce(&mut Shard, Timestamp) -> Result<T, E>,
    ) -> (Result<T, E>, Ticket) {
        let (now, ticket) = (self.now, Ticket(self.number()));
        let driver = self.driver();
        let decided = driver.decide(|shard| decide(shard, now));
        if decided.is_ok() {
            driver.confirm(ticket);
            self.unwatched.insert(ticket);
        }
        (decided, ticket)
    }

    /// Creates the streams and groups of this history, and waits until they are durable.
    fn set_up(&mut self) {
        self.wild = self.dice.chance(1, 2);
        self.shell = self.dice.chance(3, 5);
        self.plain = !self.wild && self.dice.chance(1, 2);
        let most = if self.plain { 1 } else { 2 };
        for stream in 0..1 + self.dice.roll(most) {
            let name = StreamName::parse(&format!("stream-{stream}")).expect("a good name");
            let settings = self.stream_settings();
            let (id, _) = self.decide(|shard, now| shard.create_stream(now, &name, &settings));
            tell(|| format!("{id:?} has {settings:?}"));
            self.streams.insert(id, StreamModel::new(settings));
            if self.wild && stream == 0 {
                let name = operators::elsewhere();
                self.decide(|shard, now| shard.create_stream(now, &name, &Default::default()));
            }
            for group in 0..1 + self.dice.roll(most) {
                self.create_group(id, &format!("group-{group}"));
            }
        }
        self.finish_turn();
        while self.server().has_frames() {
            self.server().commit().expect("nothing goes wrong yet");
            self.finish_turn();
        }
    }

    /// An operator creates a group late, when messages may have been settled and released already.
    fn create_late_group(&mut self) {
        if self.plain || self.groups.len() >= 5 {
            return;
        }
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        let stream = *self.dice.pick(&streams);
        let name = format!("late-{}", self.number());
        self.situations.reached(Situation::GroupCreatedLate);
        self.create_group(stream, &name);
    }

    fn create_group(&mut self, stream: StreamId, name: &str) {
        let settings = GroupSettings {
            message_timeout: Duration::from_millis(200 + self.dice.roll(3_000)),
            max_retries: Retries::AtMost(if self.plain { 1_000 } else { self.dice.roll(4) as u32 }),
            backoff: Backoff {
                min: Duration::from_millis(self.dice.roll(50)),
                max: Duration::from_secs(2),
                factor: 2.0,
                jitter: 0.5,
            },
            max_in_flight: 4 + self.dice.roll(40) as u32,
            buffer: 2 + self.dice.roll(30) as u32,
            ..GroupSettings::default()
        };
        let settings = if self.wild { self.wild_settings() } else { settings };
        let name = GroupName::parse(name).expect("a good name");
        let at = Start::Seq(Seq(self.dice.roll(100)));
        let start = if self.dice.chance(2, 3) { Start::Beginning } else { at };
        let (id, ticket) = self.decide(|shard, now| shard.create_group(now, stream, &name, &settings, start));
        let now = self.now;
        let figures = self.server().driver.shard().figures(now, id);
        let start = figures.expect("it was created just now").floor;
        tell(|| format!("{id:?} on {stream:?} begins after {start}"));
        let retries_max = settings.max_retries.at_most().unwrap_or(u32::MAX);
        let model = GroupModel::new(retries_max, settings.max_in_flight, start);
        let mut pace = PaceWatch::default();
        pace.change(settings.rate);
        let on_exhausted = vec![settings.on_exhausted.clone()];
        let following = Following {
            stream,
            model,
            start,
            answered: false,
            on_exhausted,
            sends_expired: settings.on_expired != OnEnd::Discard,
            sends_dropped: settings.on_dropped != OnEnd::Discard,
            paused: false,
            lenient: settings.acks == Acks::Checkpoint,
            settings,
            seen: Seq::START,
            watch: Watch::default(),
            pace,
            served: None,
            delivered: BTreeSet::new(),
            uids: BTreeMap::new(),
            passed_over: BTreeSet::new(),
        };
        self.groups.insert(id, following);
        self.unwatched.remove(&ticket);
        self.creations.insert(ticket, id);
    }

    /// A number that was not used before, for tickets, consumers and messages alike.
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// One step of the history.
    pub(crate) fn step(&mut self) {
        let step = self.dice.roll(1_000);
        self.trace.add(step);
        match step {
            0..140 => self.publish(),
            140..325 => self.answer_some(true),
            325..350 => self.commit_bundle(),
            350..395 => self.answer_some(false),
            395..425 => self.answer_stale(),
            425..475 => self.join(),
            475..505 => self.leave(),
            505..540 => self.change_credit(),
            540..590 => self.poll(),
            590..698 => self.disk_work(Server::commit),
            698..718 => self.disk_work(Server::commit_one),
            718..728 => self.change_something(),
            728..730 => self.spoil_reads(),
            730..800 => self.disk_work(Server::read),
            800..820 => self.disk_work(Server::tidy),
            820..870 => self.save(),
            870..900 => self.trim(),
            900..905 => self.disk_work(Server::sync_mark),
            905..915 => self.disk_work(Server::check_space),
            915..978 => self.pass_time(),
            978..986 => self.operate(),
            986..990 => self.create_late_group(),
            _ => self.mishap(),
        }
        self.maybe_end_turn();
        self.read_logs();
        self.read_whole_log();
    }

    /// Rare things that do not belong to a group.
    fn change_something(&mut self) {
        match self.dice.roll(8) {
            0..3 => self.change_note(),
            3..5 => self.move_reader(),
            5 if self.dice.chance(1, 2) => self.delete_something(),
            _ => self.change_delay(),
        }
    }

    /// Lets the server do one thing with the disk. If it cannot, the server is down.
    fn disk_work(&mut self, work: impl FnOnce(&mut Server) -> Result<(), Down>) {
        let (full, settling) = (self.server().space.is_full(), self.settled_since_commit);
        let done = self.server().done;
        let (_, before) = self.server().driver.frame_numbers();
        match work(self.server()) {
            Ok(()) => {
                self.due |= self.server().done > done;
                let (last, after) = self.server().driver.frame_numbers();
                tell(|| format!("disk work: durable {before} to {after}, last {last}"));
                if after > before {
                    if full && settling {
                        self.situations.reached(Situation::DiskFullWhileSettling);
                    }
                    self.settled_since_commit = false;
                }
                self.spoiled |= self.server().unreadable > 0;
                if std::mem::take(&mut self.server().waited) > 0 {
                    self.situations.reached(Situation::CommitWaited);
                }
                if std::mem::take(&mut self.server().tried_again) > 0 {
                    self.situations.reached(Situation::ReadTriedAgain);
                }
                if std::mem::take(&mut self.server().read_back) > 0 {
                    self.situations.reached(Situation::ReadBackFromDisk);
                }
                if std::mem::take(&mut self.server().read_from_copy) > 0 {
                    self.situations.reached(Situation::ReadBackFromCopy);
                }
                self.receive();
            }
            Err(down) => self.went_down(down),
        }
    }

    fn save(&mut self) {
        let (done, crashes) = (self.server().done, self.crashes);
        self.disk_work(Server::save);
        // A save that fails for a passing reason is tried again later.
        if crashes == self.crashes && self.server().done > done {
            self.whole_images = (self.whole_images + 1).min(2);
        }
    }

    fn trim(&mut self) {
        let trimmed = self.server().has_trim();
        let crashes = self.crashes;
        self.disk_work(Server::trim);
        if trimmed && crashes == self.crashes && self.dice.chance(1, 3) {
            self.check_log();
        }
    }

    fn pass_time(&mut self) {
        let wake_at = self.server().driver.wake_at();
        self.now = match (self.dice.roll(4), wake_at) {
            // A window of a month is not waited for: ids are remembered over a whole history.
            (0, Some(at)) => self.now.max(at.min(self.now + JUMP_MAX)),
            (1, _) if self.wild && self.dice.chance(1, 40) => {
                if self.groups.values().any(|following| following.model.held().next().is_some()) {
                    self.situations.reached(Situation::ClockJumpUnderLeases);
                }
                self.now + Duration::from_secs(self.dice.roll(JUMP_MAX.as_secs()))
            }
            (1, _) => self.now + Duration::from_millis(self.dice.roll(2_000)),
            _ => self.now + Duration::from_micros(self.dice.roll(30_000)),
        };
    }

    fn finish_turn(&mut self) {
        self.due = false;
        let now = self.now;
        let acked = std::mem::take(&mut self.acked_this_turn);
        for group in acked {
            let held = self.groups[&group].model.held();
            if held.into_iter().any(|hold| hold.deadline <= now) {
                self.situations.reached(Situation::ExpiryAndAckInOneTurn);
            }
        }
        self.latest = self.latest.max(now);
        tell(|| format!("turn at {}", now.0));
        let grants = self.server().driver.shard().next_grant();
        self.server().finish_turn(now);
        for (stream, seq, meta, at) in std::mem::take(&mut self.server().published) {
            self.published.insert((stream, seq), (meta, at));
        }
        self.new_leases.clear();
        if self.wild {
            self.note_replays();
        }
        self.note_grants(grants);
        self.receive();
        self.note_leases();
        self.held_back.clear();
        self.check_floors();
        self.check_logs(self.server.as_ref().expect("the server is up between steps").driver.shard());
        self.check_side();
        if self.wild {
            let new = std::mem::take(&mut self.new_leases);
            self.check_turn(&new);
        }
        let (frame, _) = self.server().driver.frame_numbers();
        for following in self.groups.values_mut() {
            following.watch.stamp(frame);
        }
    }

    /// Finds the leases that were granted in this turn. Those of which nothing is seen were for no time and lapsed at
    /// once; they count as attempts of a message that is delivered in the same turn, so this comes before deliveries.
    fn note_grants(&mut self, before: Grant) {
        let epoch = self.epoch();
        let is_new = |lease: &Lease| lease.epoch == epoch && lease.grant >= before;
        let driver = &mut self.server.as_mut().expect("the server is up between steps").driver;
        let granted = driver.shard().next_grant().0 - before.0;
        let deliveries = driver.outbox().deliveries.iter().filter(|delivery| is_new(&delivery.lease));
        let left: u64 = deliveries.map(|delivery| delivery.messages.len() as u64).sum();
        for &group in self.groups.keys() {
            let waiting = driver.undelivered(group).filter(|(_, lease)| is_new(lease));
            self.held_back.extend(waiting.map(|(consumer, lease)| (group, consumer, lease)));
        }
        let unseen = granted - left - self.held_back.len() as u64;
        assert!(unseen == 0 || self.is_fleeting, "{unseen} leases have come and gone within a turn");
        self.unseen += unseen as u32;
        for following in self.groups.values_mut() {
            following.model.unseen = self.unseen;
        }
    }

    /// Leases count when they are granted, seen or not; a change is durable once its frame is.
    fn note_leases(&mut self) {
        let server = self.server.as_ref().expect("the server is up between steps");
        let (frame, _) = server.driver.frame_numbers();
        let mut waiting = BTreeSet::new();
        for (&id, following) in &mut self.groups {
            for (consumer, lease) in server.driver.undelivered(id) {
                if !following.model.is_counted(lease) {
                    self.new_leases.push((id, consumer, lease));
                }
                following.model.leased(lease);
                waiting.insert(consumer);
            }
            following.model.stamp(frame);
        }
        for (id, consumer) in &mut self.consumers {
            let held = self.groups[&consumer.group].model.held_by(*id).count();
            if !waiting.contains(id) && held <= consumer.credit as usize {
                consumer.allowed = consumer.credit;
            }
        }
    }

    /// Takes what the server says to its clients.
    fn receive(&mut self) {
        let outbox = self.server().driver.outbox();
        let durable = std::mem::take(&mut outbox.durable);
        let deliveries = std::mem::take(&mut outbox.deliveries);
        let departed = std::mem::take(&mut outbox.departed);
        let served = std::mem::take(&mut outbox.served);
        for consumer in served {
            // The receive is answered, if only because its messages were taken back before they left.
            if let Some(consumer) = self.consumers.get_mut(&consumer) {
                consumer.asked = None;
            }
        }
        for (group, consumer) in departed {
            if !self.groups.contains_key(&group) {
                continue;
            }
            let gone = self.consumers.remove(&consumer).expect("only a member departs");
            assert!(gone.group == group && gone.bound == Bound::Clock, "only pollers are forgotten");
            assert!(
                gone.asked.is_none_or(|(messages, _)| messages == 0),
                "a poller that waits is not forgotten: {consumer:?}"
            );
        }
        for (ticket, _) in durable {
            if let Some(publish) = self.publishes.remove(&ticket) {
                self.published(publish);
            } else if let Some(group) = self.creations.remove(&ticket) {
                self.groups.get_mut(&group).expect("it was asked for").answered = true;
            } else {
                assert!(self.unwatched.remove(&ticket), "I17: each ticket comes back once");
            }
        }
        for delivery in deliveries {
            self.delivered(delivery);
        }
    }

    fn published(&mut self, (stream, uids, published): (StreamId, Vec<Uid>, Published)) {
        let epoch = self.epoch();
        assert_eq!(published.each().count(), uids.len(), "a batch is stored whole");
        for (&uid, (admission, ordinal)) in uids.iter().zip(published.each()) {
            self.trace.add(admission.seq.0 << 1 | u64::from(admission.duplicate));
            tell(|| format!("  {stream:?} {uid:?} is {admission:?}"));
            let model = self.streams.get_mut(&stream).expect("the stream exists");
            if let Some(ordinal) = ordinal {
                model.is_at(admission.seq, ordinal);
            }
            if model.answered(uid, admission, epoch) {
                self.situations.reached(Situation::DuplicateAfterCrash);
            }
            if std::mem::take(&mut model.stored_again) {
                self.situations.reached(Situation::IdStoredAgain);
            }
        }
        self.heard(stream, &uids);
    }

    fn delivered(&mut self, delivery: Delivery) {
        let epoch = self.epoch();
        // Messages that were leased before their group was deleted may still come.
        if !self.groups.contains_key(&delivery.group) {
            return;
        }
        let consumer = self.consumers.get_mut(&delivery.consumer).expect("only who is there gets messages");
        assert_eq!(consumer.group, delivery.group, "I16: messages of a group go to its own consumers");
        let bound = consumer.bound;
        let following = self.groups.get_mut(&delivery.group).expect("the group exists");
        for message in &delivery.clone().into_each().collect::<Vec<_>>() {
            let uid = clients::identify(&message.content);
            self.trace.add(message.lease.seq.0 ^ message.lease.grant.0 << 20);
            tell(|| {
                let Delivery { group, consumer, .. } = &delivery;
                format!(
                    "  {group:?} {consumer:?} gets {:?} {:?} until {}",
                    message.lease, message.attempt, message.deadline.0
                )
            });
            self.grants.granted(message.lease);
            if let Some(asked) = consumer.lease_for {
                let deadline = message.deadline;
                assert!(deadline <= self.now + asked, "a lease for {asked:?} lasts until {deadline:?}");
            }
            let seq = message.lease.seq;
            let is_fleeting = consumer.lease_for.is_some_and(|lease_for| lease_for.is_zero());
            // A lease for no time may leave after the next one of its message. A message whose content cannot be read
            // is parked, and forgets its deliveries.
            if !is_fleeting && !self.spoiled {
                let is_new = following.delivered.insert(seq);
                assert!(is_new || message.redelivered, "I8: {seq} was handed out before and does not say so");
                if message.redelivered && message.attempt.0 == 1 {
                    self.situations.reached(Situation::RedeliveredUncounted);
                }
            }
            let is_late = following.passed_over.contains(&seq);
            assert!(!is_late, "I6: {seq} was passed over by a later message of its key, and is delivered");
            let stream = self.streams.get_mut(&following.stream).expect("the stream exists");
            stream.is_at(message.lease.seq, message.ordinal);
            let due = stream.due(uid);
            assert!(due <= self.latest, "I12: {} of a delayed stream goes before {due:?}", message.lease.seq);
            if stream.delivered(uid, message, epoch) {
                self.situations.reached(Situation::UnknownPublishKept);
            }
            let is_before = |lease: &Lease| lease.seq == seq && lease.grant < message.lease.grant;
            let before = self.held_back.iter().filter(|(of, ..)| *of == delivery.group);
            for &(of, other, lease) in before.filter(|(.., lease)| is_before(lease)) {
                if !following.model.is_counted(lease) {
                    self.new_leases.push((of, other, lease));
                    following.model.leased(lease);
                }
            }
            if !following.model.is_counted(message.lease) {
                self.new_leases.push((delivery.group, delivery.consumer, message.lease));
            }
            following.uids.insert(message.lease.seq, uid);
            if self.spoiled {
                following.model.may_be_fewer(message.lease.seq);
            }
            if consumer.lease_for.is_some_and(|lease_for| lease_for.is_zero()) {
                // Its lease is over, and the message may have gone on to others.
                following.model.leased(message.lease);
            } else {
                following.model.delivered(self.now, delivery.consumer, bound, message);
            }
        }
        match bound {
            Bound::Connection => {
                let live = following
                    .model
                    .held_by(delivery.consumer)
                    .filter(|hold| hold.deadline > self.now)
                    .count();
                assert!(
                    live <= consumer.allowed as usize,
                    "I7: a consumer holds {live} of {}",
                    consumer.allowed
                );
            }
            Bound::Clock => {
                let got = delivery.messages.len();
                assert!(got <= consumer.credit as usize, "I7: a poller got {got} of {}", consumer.credit);
                // The rest may come in further pieces of the same delivery.
                consumer.credit -= got as u32;
                consumer.asked = None;
            }
        }
    }

    fn check_floors(&mut self) {
        let server = self.server.as_ref().expect("the server is up between steps");
        let shard = server.driver.shard();
        for (&id, following) in &mut self.groups {
            let figures = shard.figures(self.now, id).expect("the group exists");
            if self.wild {
                following.model.check_floor_only(figures.floor);
                continue;
            }
            following.model.check_floor(figures.floor, |seq| shard.parked(id, seq).is_some());
        }
    }

    /// No more mishaps: consumers do their work, and in bounded time every message is settled or parked.
    pub(crate) fn heal_and_drain(&mut self) {
        self.mishaps = false;
        self.heal();
        for round in 0.. {
            assert!(round < 4_000, "I4: messages are left over: {}", self.left_over());
            self.answer_all();
            if self.shell {
                assert!(self.come_to_rest(), "nothing goes wrong any more");
                self.disk_work(Server::tidy);
                if self.dice.chance(1, 4) {
                    self.check_rest();
                }
            } else {
                self.finish_turn();
                for work in [Server::commit, Server::read, Server::save, Server::trim, Server::tidy] {
                    self.disk_work(work);
                }
            }
            assert!(self.server.is_some(), "nothing goes wrong any more");
            let idle = self.groups.keys().copied().collect::<Vec<_>>().into_iter().all(|id| {
                let now = self.now;
                let figures = self.server().driver.shard().figures(now, id).expect("the group exists");
                figures.lag == 0 && figures.moving == 0
            });
            if idle && self.server().driver.is_settled() && self.publishes.is_empty() {
                break;
            }
            // What consumers hold they answer first, in the next round.
            let now = self.now;
            let holds = |following: &Following| following.model.held().any(|hold| hold.deadline > now);
            let held = self.groups.values().any(holds);
            match (self.shell, held) {
                (true, false) => self.sleep_until_due(),
                (true, true) => {}
                (false, _) => self.wait_a_little(),
            }
        }
        self.read_logs_to_the_end();
        self.read_whole_log_to_the_end();
        self.check_everything();
    }

    fn left_over(&mut self) -> String {
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        let now = self.now;
        let server = self.server();
        groups.iter().map(|id| format!("{id:?} {:?} ", server.driver.shard().figures(now, *id))).collect()
    }

    /// At the end: every message that a producer was told is stored has been finished in every group.
    fn check_everything(&mut self) {
        let server = self.server.as_ref().expect("the server is up at the end");
        let shard = server.driver.shard();
        for (&id, following) in &self.groups {
            let stream = &self.streams[&following.stream];
            for seq in stream.stored().filter(|&seq| seq > following.start) {
                let parked = shard.parked(id, seq).is_some();
                let acked = following.model.may_be_acked(seq) || self.wild;
                assert!(parked || acked, "I1: an acknowledged message was never seen by {id:?}: {seq}");
                assert!(shard.is_settled(id, seq), "I4: {seq} is not settled in {id:?}");
            }
            for (seq, parked) in shard.parked_after(id, Seq::START) {
                let retries = following.model.retries_max;
                assert!(
                    parked.attempts > retries || self.wild || self.spoiled,
                    "I8: {seq} was parked after {} attempts",
                    parked.attempts
                );
                self.situations.reached(Situation::ParkedByRetries);
            }
            let last = shard.last_seq(following.stream).expect("the stream exists");
            let unheard = stream.stored().filter(|&seq| seq > last).count();
            assert_eq!(unheard, 0, "I1: acknowledged messages lie beyond the end of the stream");
        }
        if self.streams.values().any(|stream| stream.unknown() > 0) {
            self.situations.reached(Situation::UnknownPublishGone);
        }
        self.check_log();
    }

    /// Everything in the log is as it was published, copies too, and every wanted message is there, at the
    /// place where the index finds it.
    fn check_log(&mut self) {
        let server = self.server.as_ref().expect("the server is up between steps");
        let stored = match server.stored() {
            Ok(stored) => stored,
            Err(down) => return self.went_down(down),
        };
        let elsewhere = server.driver.shard().stream_named(&operators::elsewhere());
        let mut moved = BTreeSet::new();
        for (&(stream, _), places) in &stored {
            if Some(stream) == elsewhere {
                for place in places {
                    let uid = clients::identify(&place.content);
                    let deleted = self.side.deleted.streams.values().map(|(_, model)| model);
                    let from = self.streams.values().chain(deleted).find(|model| model.knows(uid));
                    let from = from.expect("I2: only what was published is moved");
                    from.moved_as(uid, &place.content, &place.message);
                    moved.insert(uid);
                }
                continue;
            }
            if self.side.deleted.streams.contains_key(&stream) {
                continue;
            }
            let model = self.streams.get_mut(&stream).expect("I2: messages are of a known stream");
            for place in places {
                model.stored_as(clients::identify(&place.content), &place.content, &place.message);
            }
            let [first, copies @ ..] = &places[..] else { continue };
            let alike = copies.iter().all(|copy| copy.message == first.message);
            assert!(alike, "I10: a copy is what its message was: {places:?}");
        }
        let (shard, index) = (server.driver.shard(), server.driver.index());
        let all_durable = server.driver.is_settled();
        for &id in self
            .streams
            .iter()
            .filter(|(_, of)| limits::kept_by_log(&of.settings).is_some())
            .map(|(id, _)| id)
        {
            let kept = shard.readable(id).into_iter().flat_map(|kept| kept.first.0..=kept.last.0);
            let lost = kept.filter(|&seq| !stored.contains_key(&(id, Seq(seq)))).count();
            assert!(lost == 0, "I1: {lost} messages that a log keeps are not in it");
        }
        for &id in self.streams.keys() {
            let last = shard.last_seq(id).expect("the stream exists");
            let unread = self.kept_for_readers(id).map_or(last.next(), |keeps| keeps);
            let lost = (unread.0..=last.0).filter(|&seq| !stored.contains_key(&(id, Seq(seq)))).count();
            assert!(lost == 0, "I1: {lost} messages that a reader has not read are gone");
        }
        for (&id, following) in &self.groups {
            let stream = following.stream;
            let is_moving = |seq: Seq| {
                shard.life(id, seq).is_some_and(|life| life.state == forebay_core::group::LifeState::Moving)
            };
            let arrived = following.watch.gone_elsewhere().filter(|&seq| !is_moving(seq));
            for seq in arrived.filter(|_| all_durable) {
                self.situations.reached(Situation::MovedElsewhere);
                if following.watch.ended.contains(&seq) {
                    self.situations.reached(Situation::EndedElsewhere);
                }
                let placed = self.streams[&stream].uid_at(seq);
                let Some(uid) = following.uids.get(&seq).copied().or(placed) else { continue };
                assert!(moved.contains(&uid), "a moved message is lost: {seq} of {id:?}, {uid:?}");
            }
            let parked: BTreeSet<Seq> = shard.parked_after(id, Seq::START).map(|(seq, _)| seq).collect();
            let last = shard.last_seq(stream).expect("the stream exists");
            let unsettled = (1..=last.0).map(Seq).filter(|&seq| !shard.is_settled(id, seq));
            let model = &self.streams[&stream];
            let unsettled = unsettled.filter(|&seq| !model.lets_go(shard, stream, seq));
            let sent = (1..=last.0).map(Seq).filter(|&seq| shard.is_settled(id, seq) && is_moving(seq));
            for seq in unsettled.chain(sent).chain(parked.iter().copied()) {
                let places = stored.get(&(stream, seq)).map_or(&[][..], |places| places);
                let found = match index.moved(stream, seq) {
                    Some((_, at)) => places.iter().any(|place| place.copied && place.position == at),
                    None => index.find(stream, seq).is_some_and(|from| {
                        places.iter().any(|place| !place.copied && place.position >= from)
                    }),
                };
                assert!(found, "I1: {seq} of {stream:?} is wanted and cannot be found: {places:?}");
                if parked.contains(&seq) && places.iter().all(|place| place.copied) {
                    self.situations.reached(Situation::TrimmedPastParked);
                }
            }
        }
    }
}
