//! What operators do, and what must be true of every lease whatever they did: order by key, pace, priority,
//! time.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_core::entry::{Selection, Work};
use forebay_core::group::{Bound, Lease, Status};
use forebay_core::pace::Rate;
use forebay_core::settings::{
    Acks, Backoff, Checkpoint, Fairness, GroupSettings, KeyLock, OnEnd, OnExhausted, OnParkedKey, Retries,
    Strategy,
};
use forebay_core::shard::{ChangeRefusal, DeleteIf, Purge, Start};
use forebay_core::types::{ConsumerId, GroupId, Seq, SeqRange, StreamId, StreamName, Timestamp};

use crate::situation::Situation;
use crate::tale::tell;
use crate::watch::Class;
use crate::world::{World, limits};

/// Where messages go that are moved.
pub(super) fn elsewhere() -> StreamName {
    StreamName::parse("elsewhere").expect("a good name")
}

impl World {
    /// Settings of a group that does everything.
    pub(super) fn wild_settings(&mut self) -> GroupSettings {
        let dice = &mut self.dice;
        let strategy = *dice.pick(&[
            Strategy::RoundRobin,
            Strategy::RoundRobin,
            Strategy::Ordered,
            Strategy::Ordered,
            Strategy::Single,
            Strategy::Pinned,
            Strategy::Sole,
        ]);
        let fair = strategy != Strategy::Pinned && dice.chance(1, 5);
        let hold = dice.chance(1, 6);
        GroupSettings {
            strategy,
            message_timeout: Duration::from_millis(200 + dice.roll(3_000)),
            max_retries: Retries::AtMost(dice.roll(4) as u32),
            on_expired: if dice.chance(1, 3) { OnEnd::Move(elsewhere()) } else { OnEnd::Discard },
            on_dropped: if dice.chance(1, 2) { OnEnd::Move(elsewhere()) } else { OnEnd::Discard },
            on_exhausted: match dice.roll(5) {
                0 => OnExhausted::Skip,
                1 => OnExhausted::Move(elsewhere()),
                _ => OnExhausted::Park,
            },
            backoff: Backoff {
                min: Duration::from_millis(dice.roll(50)),
                max: Duration::from_secs(2),
                factor: 2.0,
                jitter: 0.5,
            },
            key_lock: *dice.pick(&[KeyLock::Delivery, KeyLock::Position]),
            key_batch: if dice.chance(1, 4) { 3 } else { 1 },
            on_parked_key: if hold { OnParkedKey::Hold } else { OnParkedKey::Continue },
            fairness: if fair { Fairness::Key } else { Fairness::None },
            priority_age_step: Duration::from_millis(if dice.chance(1, 2) { 500 } else { 60_000 }),
            window_max: if dice.chance(1, 6) { 12 } else { 100_000 },
            parked_max: if dice.chance(1, 6) { 4 } else { 1_000_000 },
            max_in_flight: 4 + dice.roll(40) as u32,
            rate: dice
                .chance(1, 5)
                .then(|| Rate { per_second: 5.0 + dice.roll(200) as f64, burst: 1 + dice.roll(10) as u32 }),
            acks: if dice.chance(1, 5) { Acks::Checkpoint } else { Acks::Journal },
            checkpoint: Checkpoint {
                interval: Duration::from_millis(100 + dice.roll(2_000)),
                min: 2,
                max: 8,
            },
            buffer: 2 + dice.roll(30) as u32,
            ..GroupSettings::default()
        }
    }

    fn some_group(&mut self) -> GroupId {
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        *self.dice.pick(&groups)
    }

    /// An operator does something to a group.
    pub(super) fn operate(&mut self) {
        if !self.wild || self.groups.is_empty() {
            return;
        }
        let group = self.some_group();
        match self.dice.roll(12) {
            0 => {
                let paused = !self.groups[&group].paused;
                tell(|| format!("{group:?} paused: {paused}"));
                self.decide(|shard, now| shard.pause(now, group, paused));
                self.groups.get_mut(&group).expect("the group exists").paused = paused;
            }
            1 | 2 => self.change_settings(group),
            3 if self.dice.chance(1, 2) => self.reset(group),
            4 if self.dice.chance(1, 3) => self.purge(group),
            5..=9 => self.start_job(group),
            _ => {
                let running = self.server().driver.shard().jobs(group).find(|job| job.is_running());
                if let Some(job) = running.map(|job| job.id) {
                    tell(|| format!("{group:?} cancels {job:?}"));
                    self.decide(|shard, now| shard.cancel_job(now, group, job));
                }
            }
        }
    }

    /// Removes everything that holds a group up, so that the remaining messages can be worked through.
    pub(super) fn relax(&mut self, group: GroupId) {
        let settings = GroupSettings {
            rate: None,
            window_max: 100_000,
            parked_max: 1_000_000,
            on_parked_key: OnParkedKey::Continue,
            ..self.groups[&group].settings.clone()
        };
        self.decide(|shard, now| shard.change_group(now, group, &settings));
        self.decide(|shard, now| shard.pause(now, group, false));
        let following = self.groups.get_mut(&group).expect("the group exists");
        following.take_on(settings);
        following.paused = false;
    }

    fn change_settings(&mut self, group: GroupId) {
        let mut settings = self.wild_settings();
        if self.dice.chance(1, 2) {
            // Only a little: the order stays.
            let before = &self.groups[&group].settings;
            let (strategy, fairness, acks) = (before.strategy, before.fairness, before.acks);
            settings = GroupSettings { strategy, fairness, acks, ..settings };
            settings.on_parked_key = before.on_parked_key;
        }
        if self.groups[&group].model.held().next().is_some() {
            self.situations.reached(Situation::SettingsChangedWhileLeased);
        }
        tell(|| format!("{group:?} gets {settings:?}"));
        self.decide(|shard, now| shard.change_group(now, group, &settings));
        self.groups.get_mut(&group).expect("the group exists").take_on(settings);
    }

    fn reset(&mut self, group: GroupId) {
        let to = match self.dice.roll(4) {
            0 => Start::Beginning,
            1 => Start::End,
            _ => Start::Seq(Seq(1 + self.dice.roll(60))),
        };
        let parked = self.dice.chance(1, 3);
        tell(|| format!("{group:?} is reset to {to:?}, parked too: {parked}"));
        let now = self.now;
        // Decisions until now come before the reset.
        self.end_turn();
        match self.try_decide(|shard, now| shard.reset(now, group, to, parked)).0 {
            Ok(_) => {}
            Err(ChangeRefusal::Beyond { seq, last }) => {
                assert!(Start::Seq(seq) == to && seq > last.next(), "a reset to {to:?} is within {last}");
                return;
            }
            Err(other) => panic!("a reset to {to:?} is refused: {other}"),
        }
        let figures = self.server().driver.shard().figures(now, group).expect("the group exists");
        let following = self.groups.get_mut(&group).expect("the group exists");
        // It may begin before where it began when it was created.
        following.start = following.start.min(figures.floor);
        following.model.begin_at(following.start);
        following.seen = Seq::START;
        following.passed_over.clear();
        following.delivered.clear();
        following.watch.reasons.reset = true;
        self.bundles.iter_mut().for_each(|bundle| bundle.forget_inputs(group));
        following.watch.reasons.reset_parked |= parked;
        following.watch.upheaval();
        self.stale.extend(following.model.upset(Seq(u64::MAX)).into_iter().map(|lease| (group, lease)));
        self.end_turn();
    }

    fn purge(&mut self, group: GroupId) {
        let stream = self.groups[&group].stream;
        let parked = self.dice.chance(1, 3);
        self.end_turn();
        let last = self.server().driver.shard().last_given(stream).expect("the stream exists");
        let (through, parked) = match self.dice.roll(4) {
            0 => return self.purge_ready(stream, last),
            1 => (Seq(self.dice.roll(last.0 + 1)), false),
            _ => (last, parked),
        };
        tell(|| format!("{stream:?} is purged through {through}, parked too: {parked}"));
        if through < last {
            let (now, beyond) = (self.now, last.next().next());
            let refused = self.driver().decide(|shard| shard.truncate(now, stream, beyond));
            assert!(refused.is_err(), "there is nothing to cut beyond the end");
            self.decide(|shard, now| shard.truncate(now, stream, through.next()));
        } else {
            self.decide(|shard, now| shard.purge(now, stream, Purge { parked, ids: false }));
        }
        let model = self.streams.get_mut(&stream).expect("the stream exists");
        model.purged = model.purged.max(through);
        for (&id, following) in self.groups.iter_mut().filter(|(_, following)| following.stream == stream) {
            following.seen = Seq::START;
            following.watch.reasons.purged = Some(through);
            following.watch.reasons.purged_parked |= parked;
            following.watch.upheaval();
            self.stale.extend(following.model.upset(through).into_iter().map(|lease| (id, lease)));
        }
        self.end_turn();
    }

    /// Messages that no consumer holds go, and leased ones stay.
    fn purge_ready(&mut self, stream: StreamId, last: Seq) {
        tell(|| format!("what is ready in {stream:?} is purged"));
        let condition = DeleteIf { unused: false, empty: true };
        let now = self.now;
        let held = self.server().driver.shard().stream_figures(now, stream);
        if held.is_some_and(|figures| figures.messages > 0) {
            let refused = self.driver().delete_stream_if(stream, condition);
            assert!(refused.is_err(), "I4: a stream with messages is not deleted as an empty one");
        }
        for following in self.groups.values_mut().filter(|following| following.stream == stream) {
            let is_held = |seq: &Seq| following.model.is_leased(now, *seq);
            let free = SeqRange { first: Seq(1), last }.seqs().filter(|seq| !is_held(seq));
            following.watch.reasons.settled.extend(free.collect::<Vec<_>>());
        }
        self.decide(|shard, now| shard.purge_ready(now, stream));
        self.end_turn();
    }

    fn start_job(&mut self, group: GroupId) {
        // Messages that are parked at the end of this turn are not covered.
        self.end_turn();
        let shard = self.server().driver.shard();
        let all: Vec<Seq> = shard.parked_after(group, Seq::START).map(|(seq, _)| seq).collect();
        let reasons: Vec<_> = shard.parked_reasons(group).map(|(reason, _)| reason.clone()).collect();
        if all.is_empty() {
            return self.start_move(group);
        }
        let (selection, meant) = match self.dice.roll(3) {
            0 => (Selection::All, all),
            1 => {
                let reason = self.dice.pick(&reasons).clone();
                let shard = self.server().driver.shard();
                let of = shard.parked_after(group, Seq::START).filter(|(_, p)| p.reason() == &*reason);
                let meant = of.map(|(seq, _)| seq).collect();
                (Selection::Reason(reason), meant)
            }
            _ => {
                let one = *self.dice.pick(&all);
                (Selection::Seqs(vec![SeqRange::one(one)]), vec![one])
            }
        };
        let work = match self.dice.roll(8) {
            0..6 => Work::Replay,
            6 => Work::Discard,
            _ => Work::MoveParked { to: elsewhere() },
        };
        let rate =
            self.dice.chance(1, 2).then(|| Rate { per_second: 1.0 + self.dice.roll(20) as f64, burst: 1 });
        tell(|| format!("{group:?}: {work:?} {selection:?} at {rate:?}"));
        let (started, _) =
            self.try_decide(|shard, now| shard.start_job(now, group, work.clone(), selection, None, rate));
        if started.is_ok() {
            let watch = &mut self.groups.get_mut(&group).expect("the group exists").watch;
            match work {
                Work::Replay => watch.replayed.extend(meant),
                Work::Discard => watch.discarded.extend(meant),
                Work::Move { .. } | Work::MoveParked { .. } => {
                    watch.moved_parked.extend(meant);
                    self.situations.reached(Situation::ParkedMoved);
                }
            }
        }
    }

    /// What waits in the group goes to another stream, if there is one.
    fn start_move(&mut self, group: GroupId) {
        let rate =
            self.dice.chance(1, 2).then(|| Rate { per_second: 1.0 + self.dice.roll(50) as f64, burst: 1 });
        let work = Work::Move { to: Some(elsewhere()) };
        let selection = Selection::All;
        let (started, _) =
            self.try_decide(|shard, now| shard.start_job(now, group, work, selection, None, rate));
        tell(|| format!("{group:?}: what waits is moved at {rate:?}: {started:?}"));
        if started.is_ok() {
            let stream = self.groups[&group].stream;
            let last = self.server().driver.shard().last_seq(stream).expect("the stream exists");
            let following = self.groups.get_mut(&group).expect("the group exists");
            following.watch.moved.extend((following.start.0 + 1..=last.0).map(Seq));
            self.situations.reached(Situation::WaitingMoved);
        }
    }

    /// Replayed messages count their attempts anew, before the attempts are checked.
    pub(super) fn note_replays(&mut self) {
        let server = self.server.as_ref().expect("the server is up between steps");
        let shard = server.driver.shard();
        for (&id, following) in &mut self.groups {
            for &seq in &following.watch.replayed {
                let was_parked = following.watch.class(seq) == Class::Parked;
                if was_parked && shard.parked(id, seq).is_none() {
                    following.model.replayed(seq);
                    // An operator asked for it.
                    following.passed_over.remove(&seq);
                }
            }
        }
    }

    /// What every new lease of a turn must be, and where every message stands now.
    pub(super) fn check_turn(&mut self, new: &[(GroupId, ConsumerId, Lease)]) {
        let server = self.server.as_ref().expect("the server is up between steps");
        let shard = server.driver.shard();
        let now = self.now;
        for (&id, following) in &mut self.groups {
            assert_eq!(
                shard.group_settings(id),
                Some(&following.settings),
                "I16: the settings of {id:?} are its own"
            );
            let leases: Vec<(Seq, ConsumerId)> =
                new.iter().filter(|(group, ..)| *group == id).map(|&(_, c, lease)| (lease.seq, c)).collect();
            following.pace.check(now, leases.len() as u64);
            let consumers = &self.consumers;
            let members = || consumers.iter().filter(|(_, consumer)| consumer.group == id);
            for &(seq, consumer) in &leases {
                let strategy = following.settings.strategy;
                if strategy == Strategy::Sole {
                    let before = following.served.replace(consumer).filter(|&before| before != consumer);
                    let stays = before.is_some_and(|before| members().any(|(&other, _)| other == before));
                    assert!(!stays, "I14: {seq} goes to {consumer:?}, and {before:?} is still there");
                    if before.is_some() {
                        self.situations.reached(Situation::SoleSucceeded);
                    }
                } else if strategy != Strategy::Pinned
                    && let Some(of) = consumers.get(&consumer)
                {
                    let mut higher = members()
                        .filter(|(_, other)| other.rank > of.rank && other.bound == Bound::Connection);
                    let has_room =
                        higher.find(|(other, terms)| shard.held_by(id, **other) < u64::from(terms.credit));
                    assert!(
                        has_room.is_none(),
                        "I14: {seq} goes to {consumer:?}, and one of a higher rank has room"
                    );
                    if members().any(|(_, other)| other.rank > of.rank) {
                        self.situations.reached(Situation::LowerRankServed);
                    }
                }
            }
            let known = |seq: Seq| self.published.get(&(following.stream, seq));
            for &(seq, consumer) in &leases {
                let class = Class::of(shard, id, seq);
                // A lease for no time may be over by the end of the turn, and the last attempt with it.
                let of = self.consumers.get(&consumer);
                let fleeting = of.is_some_and(|of| of.lease_for == Some(Duration::ZERO));
                assert!(class == Class::Open || fleeting, "I5: {seq} is {class:?} in {id:?} and goes out");
                let Some(&(meta, _)) = known(seq) else { continue };
                // Its time may have come before the clock was set back.
                let delays = !self.streams[&following.stream].settings.delay.is_zero();
                let early = meta.not_before.is_some_and(|at| at > self.latest) && !delays;
                assert!(!early, "I12: {seq} goes before its time");
                let replayed = following.watch.replayed.contains(&seq);
                let expired = meta.expires.is_some_and(|at| at <= now);
                assert!(!expired || replayed, "{seq} goes after its time");
                if following.settings.strategy != Strategy::Ordered || meta.key.is_none() {
                    continue;
                }
                let hold = following.settings.on_parked_key == OnParkedKey::Hold;
                for earlier in (following.start.0 + 1..seq.0).map(Seq) {
                    if known(earlier).is_none_or(|(other, _)| other.key != meta.key) {
                        continue;
                    }
                    let parked = shard.parked(id, earlier).is_some();
                    let done = shard.is_settled(id, earlier) && !(hold && parked);
                    let along = leases.contains(&(earlier, consumer));
                    // If its key cannot be read, it holds up no others. It is parked, unless a consumer has it,
                    // and is not delivered any more.
                    if !done && !along && self.spoiled && parked {
                        continue;
                    }
                    if !done && !along && self.spoiled && shard.attempts(id, earlier).is_some() {
                        following.passed_over.insert(earlier);
                        continue;
                    }
                    assert!(
                        done || along,
                        "I6: {seq} goes to {consumer:?} before {earlier} of its key is done"
                    );
                }
            }
            // If the window is full, its messages go before any new one, however urgent.
            let plain = following.settings.strategy == Strategy::RoundRobin
                && following.settings.fairness == Fairness::None
                && following.settings.window_max > 1_000
                // When its messages come due may not be known.
                && self.streams[&following.stream].settings.delay.is_zero();
            if plain {
                check_priorities(
                    (now, following.seen.min(shard.looked_at(id).unwrap_or(Seq::START))),
                    id,
                    following.stream,
                    &leases,
                    shard,
                    &self.published,
                    &following.settings,
                );
            }
            following.seen = shard.looked_at(id).expect("the group exists");
            let last = shard.last_given(following.stream).expect("the stream exists");
            for seq in (following.start.0 + 1..=last.0).map(Seq) {
                let class = Class::of(shard, id, seq);
                let may_be_used_up = following.model.may_be_used_up(seq);
                let expired = known(seq).is_some_and(|(meta, _)| meta.expires.is_some_and(|at| at <= now));
                let used_up = |how: &OnExhausted| may_be_used_up && following.on_exhausted.contains(how);
                let of = &self.streams[&following.stream];
                // A leased message is not let go of to make room.
                let dropped = limits::drops_oldest(&of.settings) && !following.model.is_held(now, seq);
                let let_go = dropped || of.lets_go(shard, following.stream, seq);
                // If there is another reason for its end, it need not have gone elsewhere.
                let cut = of.lets_go(shard, following.stream, seq);
                let vanishes =
                    (expired || cut) && !following.sends_expired || dropped && !following.sends_dropped;
                let may_settle = vanishes || used_up(&OnExhausted::Skip);
                if (expired || let_go) && !vanishes {
                    following.watch.moved.insert(seq);
                    following.watch.ended.insert(seq);
                }
                if may_be_used_up && following.on_exhausted.contains(&OnExhausted::Move(elsewhere())) {
                    following.watch.moved.insert(seq);
                }
                let may_park = self.spoiled || used_up(&OnExhausted::Park);
                let before = following.watch.look(seq, class, may_settle, may_park);
                match (before, class) {
                    (Some(Class::Open), Class::Settled) if following.watch.replayed.contains(&seq) => {
                        self.situations.reached(Situation::ReplayedAndSettled);
                    }
                    _ => {}
                }
            }
            match shard.figures(now, id).expect("the group exists").status {
                Status::ParkedFull => self.situations.reached(Situation::ParkedFull),
                Status::KeyScanFull => self.situations.reached(Situation::KeyScanFull),
                Status::WindowFull => self.situations.reached(Situation::WindowFull),
                _ => {}
            }
        }
    }
}

/// A message that waited long goes before one that is more urgent by less than it has waited.
///
/// Up to `seen` the group had looked before the turn: what it reads in the middle of it comes too late.
fn check_priorities(
    (now, seen): (Timestamp, Seq),
    group: GroupId,
    stream: StreamId,
    leases: &[(Seq, ConsumerId)],
    shard: &forebay_core::shard::Shard,
    published: &BTreeMap<(StreamId, Seq), (forebay_core::entry::MessageMeta, Timestamp)>,
    settings: &GroupSettings,
) {
    let step = settings.priority_age_step.as_micros() as u64;
    // A message counts as published no earlier than the one before it, whatever the clock said.
    let mut times = BTreeMap::new();
    let mut latest = Timestamp::ZERO;
    for (&(_, seq), &(_, at)) in published.range((stream, Seq::START)..=(stream, Seq(u64::MAX))) {
        latest = latest.max(at);
        times.insert(seq, latest);
    }
    let rank = |seq: Seq, slack: u64| {
        let &(meta, _) = published.get(&(stream, seq))?;
        let at = times[&seq];
        let age = now.since(at).as_micros() as u64;
        Some((u64::from(meta.priority) + age.saturating_sub(slack) / step).min(9))
    };
    // Only messages that have never been handed out: others may be waiting for their time.
    let is_new = |seq: Seq| shard.attempts(group, seq).is_none() && !shard.is_settled(group, seq);
    let is_due = |seq: Seq| {
        published.get(&(stream, seq)).is_some_and(|(meta, _)| {
            meta.not_before.is_none_or(|at| at <= now) && meta.expires.is_none_or(|at| at > now)
        })
    };
    let passed_over = (1..=seen.0).map(Seq).filter(|&seq| is_new(seq) && is_due(seq));
    let ranked = passed_over.filter_map(|seq| Some((rank(seq, 200_000)?, seq)));
    let Some((best, first)) = ranked.max_by_key(|&(rank, seq)| (rank, std::cmp::Reverse(seq))) else {
        return;
    };
    for &(seq, _) in leases {
        if shard.attempts(group, seq) != Some(1) {
            continue;
        }
        let Some(rank) = rank(seq, 0) else { continue };
        assert!(
            rank >= best,
            "priority: {seq} of rank {rank} goes before {first} of rank {best} in {group:?}"
        );
    }
}

/// Deliveries in any window are no more than the rate allows, and the burst.
#[derive(Debug, Default)]
pub(super) struct PaceWatch {
    rate: Option<Rate>,
    given: Vec<(Timestamp, u64)>,
}

impl PaceWatch {
    pub(super) fn change(&mut self, rate: Option<Rate>) {
        if self.rate != rate {
            self.rate = rate;
            self.given.clear();
        }
    }

    pub(super) fn begin_anew(&mut self) {
        self.given.clear();
    }

    fn check(&mut self, now: Timestamp, count: u64) {
        let Some(rate) = self.rate.filter(|_| count > 0) else { return };
        self.given.push((now, count));
        let mut sum = 0;
        for &(at, count) in self.given.iter().rev() {
            sum += count;
            let allowed = rate.per_second * now.since(at).as_secs_f64() + f64::from(rate.burst);
            assert!(sum as f64 <= allowed + 0.001, "I13: {sum} went in {:?}", now.since(at));
        }
        let excess = self.given.len().saturating_sub(200);
        self.given.drain(..excess);
    }
}
