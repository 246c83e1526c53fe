//! Jobs, and messages that go to other streams.

use std::collections::BTreeSet;

use forebay_core::entry::{Cause, JobEnd, MessageMeta, MoveTrail, Origin, Route, Selection, Work};
use forebay_core::group::JobRefusal;
use forebay_core::pace::Rate;
use forebay_core::settings::StreamSettings;
use forebay_core::shard::{MoveRefusal, Moved};
use forebay_core::types::{GroupId, JobId, Seq, SeqRange, StreamId, StreamName, Timestamp};

use crate::book::{How, State};
use crate::commands::{Triage, Which, stream_name};
use crate::plain::{Group, Job, SIZE, Stream, failure};
use crate::world::{FOREVER, REASONS, World, droppable};

impl World {
    pub(crate) fn start_job(
        &mut self,
        n: u8,
        work: Triage,
        which: Which,
        limit: Option<u64>,
        rate: Option<u32>,
    ) {
        let Some(id) = self.group(n) else { return };
        let rate = rate.map(|n| Rate { per_second: n.into(), burst: 1 });
        let now = self.now;
        let work = match work {
            Triage::Replay => Work::Replay,
            Triage::Discard => Work::Discard,
            Triage::Move => Work::MoveParked { to: stream_name(2) },
        };
        let selection = match which {
            Which::All => Selection::All,
            Which::Reason(n) => Selection::Reason(REASONS[usize::from(n)].into()),
            Which::Seqs(first, more) => Selection::Seqs(vec![SeqRange::new(Seq(first), Seq(first + more))]),
        };
        let meant = |seq: Seq, reason: &str| match which {
            Which::All => true,
            Which::Reason(n) => reason == REASONS[usize::from(n)],
            Which::Seqs(first, more) => (first..=first + more).contains(&seq.0),
        };
        let of = &self.groups[&id];
        let parked = of.book.items.iter().filter(|(seq, item)| {
            let reason = item.history.last().map(|f| f.reason.as_deref().unwrap_or(f.cause.as_str()));
            item.is_parked() && meant(**seq, reason.expect("it was parked for something"))
        });
        let left: BTreeSet<Seq> =
            parked.map(|(seq, _)| *seq).take(limit.unwrap_or(u64::MAX) as usize).collect();
        let running = || of.jobs.values().filter(|job| job.running);
        let own = &self.streams[&of.stream].name;
        let goes = work.to().is_none_or(|to| to != own && self.shard.stream_named(to).is_some());
        match self.shard.start_job(now, id, work.clone(), selection, limit, rate) {
            Err(JobRefusal::NoDestination) => assert!(!goes, "a stream that is there"),
            Err(JobRefusal::Empty) => assert!(left.is_empty(), "parked messages were meant"),
            Err(JobRefusal::Moving { job }) => {
                assert!(running().any(|other| other.id == job && other.work.moves() && work.moves()));
            }
            Err(JobRefusal::TooMany { limit }) => assert!(running().count() >= limit, "few jobs are running"),
            Err(other) => panic!("a good job was refused: {other}"),
            Ok((job, matched)) => {
                assert!(goes, "messages go where a stream is");
                assert_eq!(matched, left.len() as u64, "how many messages a job is about");
                let (rate, running) = (rate.map(|rate| rate.per_second), true);
                let job = Job { id: job, work, rate, left, matched, done: 0, failed: 0, running };
                self.of(id).jobs.insert(job.id, job);
            }
        }
    }

    pub(crate) fn start_move(&mut self, n: u8, back: bool, rate: Option<u32>) {
        let Some(id) = self.group(n) else { return };
        let rate = rate.map(|n| Rate { per_second: n.into(), burst: 1 });
        let to = (!back).then(|| stream_name(2));
        let exists = to.as_ref().is_none_or(|to| self.shard.stream_named(to).is_some());
        let of = &self.groups[&id];
        let own = to.as_ref().is_some_and(|to| *to == self.streams[&of.stream].name);
        let left: BTreeSet<Seq> =
            of.book.items.iter().filter(|(_, item)| !item.is_terminal()).map(|(&seq, _)| seq).collect();
        let running = || of.jobs.values().filter(|job| job.running);
        let work = Work::Move { to };
        match self.shard.start_job(self.now, id, work.clone(), Selection::All, None, rate) {
            Err(JobRefusal::NoDestination) => assert!(own || !exists, "a stream that is there"),
            Err(JobRefusal::Moving { job }) => {
                assert!(running().any(|other| other.id == job && other.work.moves()));
            }
            Err(JobRefusal::TooMany { limit }) => assert!(running().count() >= limit, "few jobs are running"),
            Err(other) => panic!("a good job was refused: {other}"),
            Ok((job, matched)) => {
                assert!(exists && !own, "messages go where a stream is");
                assert_eq!(matched, left.len() as u64, "how many messages a job is about");
                let (rate, running) = (rate.map(|rate| rate.per_second), true);
                let job = Job { id: job, work, rate, left, matched, done: 0, failed: 0, running };
                self.of(id).jobs.insert(job.id, job);
            }
        }
    }

    pub(crate) fn cancel(&mut self, n: u8, back: u8) {
        let Some(id) = self.group(n) else { return };
        let now = self.now;
        let of = self.groups.get_mut(&id).expect("the group exists");
        let Some(job) = of.jobs.values_mut().rev().nth(back.into()) else { return };
        let cancelled = self.shard.cancel_job(now, id, job.id);
        assert_eq!(cancelled.is_ok(), job.running, "a running job can be cancelled");
        job.running = false;
    }

    pub(crate) fn complete_move(&mut self, group: GroupId, stream: StreamId, seq: Seq) {
        let message = self.streams[&stream].messages[&seq].clone();
        let meta = MessageMeta {
            key: Some(message.key).filter(|key| key.0 != 0),
            priority: message.priority,
            expires: Some(message.expires).filter(|at| *at < FOREVER),
            origin: message.from.map(|(from, why)| Origin {
                published: message.published,
                receives: 9,
                trail: Some(MoveTrail { home: from, seq: Seq(1), from, why }),
            }),
            ..MessageMeta::plain(SIZE)
        };
        let route = self.route_of(group, seq);
        let is_parked = self.groups[&group].book.items[&seq].is_parked();
        let attempts = self.groups[&group].book.items[&seq].attempts;
        let target = match (&route, message.from) {
            (Route::Job { to: None, .. }, from) => from.map(|(from, _)| from),
            (route, _) => route.to().and_then(|to| self.shard.stream_named(to)),
        };
        let before: Vec<(GroupId, Vec<Seq>)> = self
            .groups
            .values()
            .filter(|group| Some(group.stream) == target)
            .map(|group| (group.id, droppable(group)))
            .collect();
        match self.shard.complete_move(self.now, group, seq, &meta, message.published) {
            Ok(Moved { stream: target, seq: first, meta: moved }) => {
                // A parked message leaves the list by the entry.
                if !is_parked {
                    self.of(group).book.item(seq).settle(How::Moved);
                }
                let receives = moved.origin.map(|origin| origin.receives);
                let why = moved.origin.and_then(|origin| origin.trail).map(|trail| trail.why);
                assert_eq!(why, Some(route.why()), "a moved message says why");
                let came = message.from.filter(|(from, why)| *from == target && why.is_end());
                let returns = came.is_some() && route.why().is_end() && attempts == 0;
                assert!(!returns, "a message does not go in circles without a consumer");
                if let Some(job) = route.job() {
                    assert_eq!(receives, Some(0), "what a job moves begins anew");
                    if let Some(job) = self.of(group).jobs.get_mut(&job).filter(|_| !is_parked) {
                        job.done += 1;
                    }
                }
                if route.job().is_none() {
                    let before = message.from.map_or(0, |_| 9);
                    assert_eq!(receives, Some(before + attempts), "a moved message keeps its count");
                }
                let new = || {
                    let to = route.to().expect("where a message goes back to is there");
                    Stream::new(target, to.clone(), StreamSettings::unasked())
                };
                self.streams.entry(target).or_insert_with(new);
                self.adopt_moved_drops(&before);
                // A moved message stays until a consumer of its new stream handles it.
                self.stored(target, first, &[moved]);
            }
            Err(MoveRefusal::Later) => {
                let limits = &self.streams[&target.expect("one that is full exists")].settings;
                let held_up = limits.limits.max_messages.is_some() || limits.ingress_rate.is_some();
                assert!(held_up, "only a full stream takes nothing");
            }
            Err(MoveRefusal::Kept) => {
                // The job may have failed because of another message, while there was no room for this one.
                let job = route.job().map(|job| self.shard.job(group, job));
                let is_over = job.is_some_and(|job| !job.is_some_and(forebay_core::group::Job::is_running));
                assert!(target.is_none() || is_over, "a message goes where it can");
                if is_parked {
                    return self.stays_parked(group, seq, &route);
                }
                let now = self.now;
                let (of, stream) = self.both(group);
                if !of.book.item(seq).replayed && stream.is_expired(now, seq) {
                    return of.let_go(seq, How::Expired);
                }
                let Route::Alone { to, terms, .. } = route else { return of.book.item(seq).stay() };
                assert!(!terms.create, "a stream that is not there is made");
                let why = format!("cannot be moved to {to}: no such stream");
                let attempt = of.book.item(seq).attempts;
                of.try_again(now, seq, None, failure(now, attempt, Cause::Nack, Some(&why), None));
            }
            Err(MoveRefusal::Parked) => {
                let returns = message.from.is_some_and(|(from, why)| why.is_end() && Some(from) == target);
                let ends = route.why().is_end() && attempts == 0;
                assert!(returns && ends, "only a message that would go in circles is parked");
                let to = route.to().expect("it has a destination");
                let why =
                    format!("cannot be moved to {to}: it came from there, and no consumer has had it since");
                let now = self.now;
                self.of(group).park(now, seq, Cause::Nack, Some(&why), None);
            }
            // The job has failed at a message before this one.
            Err(MoveRefusal::NotMoving) if is_parked => assert!(target.is_none(), "the job goes on"),
            Err(other) => panic!("a message that is to be moved was not: {other}"),
        }
    }

    /// The way of a message whose content was asked for. A parked one goes by the job that moves parked messages.
    fn route_of(&self, group: GroupId, seq: Seq) -> Route {
        let of = &self.groups[&group];
        match &of.book.items[&seq].state {
            State::Moving { route } | State::Sent { route } => route.clone(),
            State::Parked => {
                let moves = |job: &&Job| job.running && matches!(job.work, Work::MoveParked { .. });
                let job = of.jobs.values().find(moves).expect("a job moves parked messages");
                assert!(job.left.contains(&seq), "a job asks for what it was started for");
                Route::Job { job: job.id, to: job.work.to().cloned() }
            }
            state => panic!("{seq} is asked for, but it is {state:?}"),
        }
    }

    fn stays_parked(&mut self, group: GroupId, seq: Seq, route: &Route) {
        let job = route.job().and_then(|job| self.of(group).jobs.get_mut(&job)).expect("its job is known");
        assert!(job.left.remove(&seq), "a job does what it was started for, once");
        job.failed += 1;
    }

    fn adopt_moved_drops(&mut self, before: &[(GroupId, Vec<Seq>)]) {
        for (id, droppable) in before {
            let group = self.groups.get_mut(id).expect("it was there just now");
            for &seq in droppable.iter().filter(|&&seq| self.shard.is_settled(*id, seq)) {
                if !group.book.items[&seq].is_terminal() {
                    group.let_go(seq, How::Dropped);
                }
            }
        }
        self.adopt_gone(true);
    }
}

pub(crate) fn job_came_to(group: &mut Group, job: JobId, seq: Seq, replays: bool) {
    if job.0 == 0 {
        return;
    }
    let parked = group.book.is_meant(job, seq);
    let item = group.book.item(seq);
    match parked {
        true if replays => item.replay(),
        true => item.settle(How::Discarded),
        false => {}
    }
    let job = group.jobs.get_mut(&job).expect("a job that was started");
    assert!(job.left.remove(&seq), "a job does what it was started for, once");
    assert_eq!(job.work == Work::Replay, replays, "a job does what it was started for");
    job.done += u64::from(parked);
    job.failed += u64::from(!parked);
}

/// Whether a job that moves what waits may take a message.
fn is_movable(group: &mut Group, stream: &Stream, now: Timestamp, seq: Seq) -> bool {
    let item = group.book.item(seq);
    let (replayed, state) = (item.replayed, item.state.clone());
    let expired = !replayed && stream.is_expired(now, seq);
    match state {
        State::Ready => !expired,
        State::Untouched => !expired && stream.messages[&seq].not_before <= now,
        _ => false,
    }
}

/// A job has put a message on its way.
pub(crate) fn set_out(
    group: &mut Group,
    stream: &Stream,
    now: Timestamp,
    id: JobId,
    to: Option<&StreamName>,
    seq: Seq,
) {
    assert!(is_movable(group, stream, now, seq), "{seq} is not waiting: {:?}", group.book.items[&seq]);
    let job = group.jobs.get_mut(&id).expect("a job that was started");
    assert!(job.running && job.left.remove(&seq), "a job does what it was started for, once");
    assert_eq!(job.work, Work::Move { to: to.cloned() }, "a job does what it was started for");
    group.book.item(seq).set_out(Route::Job { job: id, to: to.cloned() });
}

/// A job leaves a message where it is.
pub(crate) fn passed(group: &mut Group, stream: &Stream, now: Timestamp, job: JobId, seq: Seq) {
    let meant = group.jobs.get_mut(&job).expect("a job that was started").left.remove(&seq);
    if meant {
        let could_go = match group.jobs[&job].work {
            Work::MoveParked { .. } => group.book.is_meant(job, seq),
            _ => is_movable(group, stream, now, seq),
        };
        assert!(!could_go, "{seq} could be moved: {:?}", group.book.items[&seq]);
        group.jobs.get_mut(&job).expect("it was there just now").failed += 1;
    }
}

pub(crate) fn ended(group: &mut Group, id: JobId, how: &JobEnd) {
    let on_way = group.book.count(|item| item.is_on_way_by(id));
    let job = group.jobs.get_mut(&id).expect("a job that was started");
    match how {
        JobEnd::Done => {
            assert!(job.left.is_empty() && on_way == 0, "a job ends when it is done");
            job.failed = job.matched - job.done;
        }
        JobEnd::Cancelled => assert!(!job.running, "somebody cancelled it"),
        JobEnd::Failed(_) => assert!(job.work.moves(), "others find what they look for"),
    }
    job.running = false;
}
