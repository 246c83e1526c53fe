//! The end of a turn: what time does to streams, and what groups do with the rest of it.

use crate::entry::{Entry, JobEnd};
use crate::fault::{Fault, planted};
use crate::group::{Budget, Effects, Turn};
use crate::settings::{Acks, Retention};
use crate::shard::{Owner, Shard};
use crate::types::{GroupId, Seq, SeqRange, StreamId, Timestamp};

/// Messages whose time has come that are seen to at a time.
const SLICE: usize = 64;

/// Each group of the stream looks at each message, so with many groups there are fewer at a time.
fn slice_of(groups: usize) -> usize {
    (SLICE / groups.max(1)).max(4)
}

/// What it takes to tell so many groups of so many messages, after sorting those that were not in order.
fn cost_of(messages: usize, sorted: usize, groups: usize) -> u64 {
    1 + (messages * (1 + groups) / 8 + sorted / 4) as u64
}

impl Shard {
    /// Expires and hands out, once, in every group that has something to do, as far as the budget of a turn
    /// goes. If it does not go far enough, [`Shard::wake_at`] asks to be called again at once.
    pub fn finish_turn(&mut self, now: Timestamp, effects: &mut Effects) {
        self.happened_at(now);
        self.wake_up(now);
        let mut budget = Budget::of_a_turn();
        self.tend_streams(now, &mut budget);
        let mut touched = std::mem::take(&mut self.touched);
        let mut seen = 0;
        for &id in &touched {
            if budget.is_spent() {
                break;
            }
            seen += 1;
            if self.groups.contains_key(&id) {
                self.finish_group(now, id, &mut budget, effects);
            }
        }
        // Those that were not seen to are first in the next turn, and those that were not done come last.
        touched.drain(..seen);
        touched.append(&mut self.touched);
        self.touched = touched;
        self.write_down_all(now);
        self.bury(&mut budget);
    }

    fn wake_up(&mut self, now: Timestamp) {
        while let Some(&(at, owner)) = self.wakeups.first().filter(|(at, _)| *at <= now) {
            self.wakeups.remove(&(at, owner));
            match owner {
                Owner::Group(group) => {
                    if let Some(of) = self.groups.get_mut(&group) {
                        of.scheduled = None;
                        self.touch(group);
                    }
                }
                Owner::Stream(stream) => {
                    if let Some(of) = self.streams.get_mut(&stream) {
                        of.scheduled = None;
                        self.touch_stream(stream);
                    }
                }
                Owner::Notes => {
                    self.notes_at = None;
                    self.forget_notes(now);
                }
            }
        }
    }

    fn forget_notes(&mut self, now: Timestamp) {
        for (door, key) in self.notes.expired(now, SLICE) {
            self.commit(&Entry::NoteRemoved { door, key: key.to_vec() });
        }
        self.schedule_notes();
    }

    pub(super) fn schedule_notes(&mut self) {
        let at = self.notes.next_expiry();
        if at != self.notes_at {
            if let Some(before) = self.notes_at {
                self.wakeups.remove(&(before, Owner::Notes));
            }
            self.wakeups.extend(at.map(|at| (at, Owner::Notes)));
            self.notes_at = at;
        }
    }

    fn tend_streams(&mut self, now: Timestamp, budget: &mut Budget) {
        if self.touched_streams.is_empty() {
            return;
        }
        let touched = std::mem::take(&mut self.touched_streams);
        let mut left = touched.iter();
        for &id in left.by_ref() {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.touched = false;
                self.tend_stream(now, id, budget);
            }
            if budget.is_spent() {
                break;
            }
        }
        for &id in left {
            if self.streams.contains_key(&id) {
                self.touched_streams.push(id);
            }
        }
    }

    /// Tells the groups of a stream which messages are due or have expired, and releases messages that are
    /// too old.
    fn tend_stream(&mut self, now: Timestamp, id: StreamId, budget: &mut Budget) {
        let mut times = Vec::new();
        let early = if planted(Fault::DeliveredEarly) { 2_000_000 } else { 0 };
        loop {
            times.clear();
            let stream = self.streams.get_mut(&id).expect("only a stream that exists is tended");
            if budget.is_spent() || stream.delayed.next_at().is_none_or(|at| at > now) && early == 0 {
                break;
            }
            let count = stream.delayed.count();
            let groups = stream.groups.len();
            let sorted = stream.delayed.take_due(Timestamp(now.0 + early), slice_of(groups), &mut times);
            budget.spend_each(cost_of(times.len(), sorted, groups));
            if times.is_empty() && (stream.delayed.next_at().is_none_or(|at| at > now) || count == 0) {
                break;
            }
            for &(_, seq) in &times {
                stream.undue.remove(SeqRange::one(seq));
            }
            stream.changed = true;
            self.each_group_of(id, |stream, group| {
                for &(at, seq) in &times {
                    group.came_due(stream, seq, at);
                }
            });
        }
        loop {
            times.clear();
            let stream = self.streams.get_mut(&id).expect("only a stream that exists is tended");
            if budget.is_spent() || stream.expiring.next_at().is_none_or(|at| at > now) {
                break;
            }
            let groups = stream.groups.len();
            let sorted = stream.expiring.take_due(now, slice_of(groups), &mut times);
            budget.spend_each(cost_of(times.len(), sorted, groups));
            for &(_, seq) in &times {
                stream.expired.insert(SeqRange::one(seq));
                stream.undue.remove(SeqRange::one(seq));
            }
            stream.changed = true;
            self.each_group_of(id, |stream, group| {
                for &(_, seq) in &times {
                    group.expire_one(now, stream, seq);
                }
            });
        }
        self.let_go_of_old(now, id);
        self.forget_ids(now, id, budget);
        self.schedule_stream(now, id);
    }

    /// Forgets ids that are out of their window: also of a stream that nothing is published to any more.
    fn forget_ids(&mut self, now: Timestamp, id: StreamId, budget: &mut Budget) {
        let stream = self.streams.get_mut(&id).expect("only a stream that exists is tended");
        if stream.ids_at.is_some_and(|at| at > now) {
            return;
        }
        loop {
            stream.ids_at = stream.dedupe.drop_at(&stream.settings);
            if budget.is_spent() || stream.ids_at.is_none_or(|at| at > now) {
                return;
            }
            // An image without these ids must say how late it is, or a clock that is set back would let them in again.
            stream.changed = true;
            budget.spend_each(stream.dedupe.drop_oldest() as u64 / 16 + 1);
        }
    }

    /// Does something with every group of a stream, and sees to them at the end of the turn.
    fn each_group_of(
        &mut self,
        id: StreamId,
        mut change: impl FnMut(&crate::stream::Stream, &mut crate::group::Group),
    ) {
        let stream = &self.streams[&id];
        for &(_, group) in &stream.groups {
            let of = self.groups.get_mut(&group).expect("a stream lists groups that exist");
            change(stream, of);
            if !of.touched {
                of.touched = true;
                self.touched.push(group);
            }
            if of.is_unwritten() && !std::mem::replace(&mut of.listed, true) {
                self.unwritten.push(group);
            }
        }
    }

    /// Releases messages that are too old, or more than the stream keeps.
    fn let_go_of_old(&mut self, now: Timestamp, id: StreamId) {
        let stream = self.streams.get_mut(&id).expect("only a stream that exists is tended");
        let beyond = stream.beyond(now);
        if beyond <= stream.gone {
            return;
        }
        stream.gone = beyond;
        stream.changed = true;
        // A message whose delay is longer than the stream keeps it does not count as waiting any more.
        stream.undue.remove(SeqRange::new(Seq::START, beyond));
        stream.delayed.forget_through(beyond);
        let keeps = stream.settings.retention == Retention::Work && !stream.groups.is_empty();
        if !keeps && beyond.next() > stream.first {
            self.commit(&Entry::Released { stream: id, first: beyond.next() });
        }
        self.each_group_of(id, |_, _| {});
    }

    pub(super) fn schedule_stream(&mut self, now: Timestamp, id: StreamId) {
        let stream = self.streams.get_mut(&id).expect("only a stream that exists is scheduled");
        let at = stream.next_at();
        if at.is_some_and(|at| at <= now) {
            self.touch_stream(id);
            return;
        }
        if at != stream.scheduled {
            if let Some(before) = stream.scheduled {
                self.wakeups.remove(&(before, Owner::Stream(id)));
            }
            if let Some(at) = at {
                self.wakeups.insert((at, Owner::Stream(id)));
            }
            stream.scheduled = at;
        }
    }

    fn finish_group(&mut self, now: Timestamp, id: GroupId, budget: &mut Budget, effects: &mut Effects) {
        let group = self.groups.get_mut(&id).expect("a group that is gone is not touched");
        let stream = self.streams.get(&group.stream).expect("a group's stream exists");
        group.finish_turn(Turn {
            now,
            epoch: self.epoch,
            withheld: self.withheld,
            grant: &mut self.next_grant,
            stream,
            key_scan_bytes_max: self.limits.key_scan_bytes_max,
            budget,
            entries: &mut self.entries,
            effects,
        });
        for job in group.finished_jobs() {
            self.end_job(now, id, job, JobEnd::Done);
        }
        let group = self.groups.get_mut(&id).expect("it was there just now");
        group.touched = budget.is_spent();
        if group.touched {
            self.touched.push(id);
        }
        let wake_at = group.wake_at(now);
        if wake_at != group.scheduled {
            if let Some(before) = group.scheduled {
                self.wakeups.remove(&(before, Owner::Group(id)));
            }
            if let Some(at) = wake_at {
                self.wakeups.insert((at, Owner::Group(id)));
            }
            group.scheduled = wake_at;
        }
    }

    /// Hands out nothing in any group, or goes on with it. Leases stay, and can be settled.
    pub fn withhold(&mut self, withheld: bool) {
        if std::mem::replace(&mut self.withheld, withheld) && !withheld {
            let groups: Vec<GroupId> = self.groups.keys().copied().collect();
            groups.into_iter().for_each(|group| self.touch(group));
        }
    }

    /// Whether nothing is handed out.
    pub fn is_withheld(&self) -> bool {
        self.withheld
    }

    /// Lets go of some of what deleted groups have left.
    fn bury(&mut self, budget: &mut Budget) {
        while !budget.is_spent()
            && let Some(dead) = self.dead.last_mut()
        {
            budget.spend_each(SLICE as u64);
            if !dead.decay(SLICE) {
                self.dead.pop();
            }
        }
    }

    /// When the shard next wants to be called, if nothing happens before.
    pub fn wake_at(&self) -> Option<Timestamp> {
        if self.is_touched() || !self.dead.is_empty() {
            return Some(Timestamp::ZERO);
        }
        self.wakeups.first().map(|&(at, _)| at)
    }

    /// Whether a turn is owed to some group.
    pub fn is_touched(&self) -> bool {
        !self.touched.is_empty() || !self.touched_streams.is_empty()
    }

    /// Releases messages that no group wants any more. The release is written before the log is trimmed, so
    /// that no group is promised messages that are gone: neither a group that is created meanwhile, nor one
    /// after a restart. For the time between two turns.
    pub fn release(&mut self) {
        // Settlements are written before the messages are released: otherwise a server that recovers from
        // an older image would want the messages again.
        for group in self.groups.values_mut() {
            if group.settings.acks == Acks::Checkpoint {
                group.make_checkpoint();
            }
            group.write_down(&mut self.entries);
        }
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        for stream in streams {
            let first = self.oldest_wanted(stream).expect("the stream was listed just now");
            if first > self.streams[&stream].first {
                self.commit(&Entry::Released { stream, first });
            }
        }
    }

    /// Writes down all acks that were kept back for a checkpoint, as a clean stop does.
    pub fn check_point_all(&mut self, now: Timestamp) {
        self.happened_at(now);
        for group in self.groups.values_mut() {
            group.make_checkpoint();
            group.write_down(&mut self.entries);
        }
    }
}
