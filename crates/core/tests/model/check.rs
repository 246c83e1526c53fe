//! What a shard says about itself, against what the model knows.

use forebay_core::entry::Work;
use forebay_core::group::JobState;
use forebay_core::types::{GroupName, Seq, Timestamp};

use crate::book::{Item, State};
use crate::plain::{Group, Stream, TIMES, held};
use crate::world::World;

impl World {
    /// After every turn, when nothing is left to do.
    pub(crate) fn check(&self) {
        for stream in self.streams.values() {
            self.check_stream(stream);
        }
        for group in self.groups.values() {
            let stream = &self.streams[&group.stream];
            self.check_figures(group);
            self.check_messages(group);
            self.check_parked(group);
            self.check_consumers(group);
            self.check_jobs(group);
            group.check_acks_written(self.now, self.shard.wake_at());
            group.check_progress(self.now, stream, self.shard.wake_at());
        }
        self.check_notes();
        self.check_wake_up();
    }

    fn check_stream(&self, stream: &Stream) {
        let figures = self.shard.stream_figures(self.now, stream.id).expect("the stream exists");
        let groups = || self.groups.values().filter(|group| group.stream == stream.id);
        assert_eq!(figures.last, stream.last(), "the last message of {}", stream.name);
        assert_eq!(figures.groups, groups().count(), "groups of {}", stream.name);
        assert_eq!(figures.messages, held(stream, groups()), "messages held by {}", stream.name);
        assert!(stream.gone >= stream.purged, "what was purged is gone from {}", stream.name);
        if let Some(age) = stream.settings.max_age() {
            let mut kept = stream.messages.iter().filter(|(seq, _)| **seq > stream.gone);
            let old = kept.find(|(_, message)| message.published + age + TIMES < self.now);
            assert!(old.is_none(), "{old:?} is too old and still there");
        }
        let delayed = stream.messages.iter().filter(|(seq, message)| {
            let kept = **seq > stream.purged.max(stream.gone) && **seq >= figures.first;
            kept && message.not_before > self.now && message.expires > self.now
        });
        assert_eq!(figures.delayed, delayed.count() as u64, "delayed messages of {}", stream.name);
        for name in ["r0", "r1"] {
            let reader = GroupName::parse(name).expect("a good name");
            let at = self.shard.reader(stream.id, &reader);
            assert_eq!(at, stream.readers.get(name).copied(), "how far reader {name} has come");
        }
    }

    fn check_figures(&self, group: &Group) {
        let figures = self.shard.figures(self.now, group.id).expect("the group exists");
        let book = &group.book;
        assert_eq!(figures.floor, book.floor(), "floor");
        assert_eq!(figures.lag, book.count(|item| !item.is_terminal()), "lag");
        assert_eq!(figures.in_flight, book.count(Item::is_leased), "in flight");
        let waiting = |item: &Item| matches!(item.state, State::Waiting { .. });
        assert_eq!(figures.waiting, book.count(waiting), "waiting");
        let moving = |item: &Item| matches!(item.state, State::Moving { .. } | State::Sent { .. });
        assert_eq!(figures.moving, book.count(moving), "moving");
        assert_eq!(figures.parked, book.count(Item::is_parked), "parked");
        assert_eq!(figures.consumers, group.members.len(), "consumers");
        assert!(figures.checkpoint <= figures.floor, "a checkpoint is below the floor");
        assert!(figures.checkpoint >= group.checkpoint, "a checkpoint never goes back");
    }

    fn check_messages(&self, group: &Group) {
        for (&seq, item) in &group.book.items {
            let settled = self.shard.is_settled(group.id, seq);
            assert_eq!(settled, item.is_terminal(), "whether {seq} is settled: {item:?}");
            let attempts = self.shard.attempts(group.id, seq);
            if item.is_terminal() {
                assert_eq!(attempts, None, "{seq} is in process no more");
            } else {
                assert_eq!(attempts.unwrap_or(0), item.attempts, "attempts of {seq}");
            }
            if let State::Leased { lease, .. } = item.state {
                assert!(self.shard.is_current(group.id, lease), "{lease:?} is held");
            }
        }
    }

    fn check_parked(&self, group: &Group) {
        let parked = group.book.items.iter().filter(|(_, item)| item.is_parked());
        let mut count = 0;
        for ((seq, parked), (known, item)) in self.shard.parked_after(group.id, Seq::START).zip(parked) {
            assert_eq!(seq, *known, "which messages are parked");
            assert_eq!(parked.attempts, item.attempts, "attempts of {seq}, which is parked");
            assert_eq!(&parked.failures[..], &item.history[..], "history of {seq}, which is parked");
            count += 1;
        }
        assert_eq!(count, group.book.count(Item::is_parked), "how many messages are parked");
        let reasons: u64 = self.shard.parked_reasons(group.id).map(|(_, count)| count).sum();
        assert_eq!(reasons, count, "every parked message has a reason");
    }

    fn check_consumers(&self, group: &Group) {
        for figures in self.shard.consumers(group.id) {
            let consumer = figures.consumer;
            let member = group.members.get(&consumer).expect("only members are members");
            assert_eq!(figures.in_flight, group.held(consumer), "what {consumer:?} holds");
            assert_eq!(figures.credit, member.credit.messages(), "credit of {consumer:?}");
        }
    }

    fn check_jobs(&self, group: &Group) {
        for job in self.shard.jobs(group.id) {
            let known = &group.jobs[&job.id];
            assert_eq!((job.matched, job.done, job.failed), (known.matched, known.done, known.failed));
            assert_eq!(job.state == JobState::Running, known.running, "whether a job is running");
            if known.running && matches!(known.work, Work::MoveParked { .. }) {
                // Messages that found no room are asked for once a second, and no rate is slower.
                let next = Timestamp(self.now.0 + 1_000_002);
                assert!(self.shard.wake_at().is_some_and(|at| at <= next), "a job goes on by itself");
                continue;
            }
            let on_way = group.book.count(|item| item.is_on_way_by(job.id)) > 0;
            assert!(!known.running || known.rate.is_some() || on_way, "a job without a rate is done at once");
            if let Some(rate) = known.rate.filter(|_| known.running && !on_way) {
                let next = Timestamp(self.now.0 + (1e6 / rate) as u64 + 2);
                assert!(self.shard.wake_at().is_some_and(|at| at <= next), "a job goes on by itself");
            }
        }
    }

    fn check_notes(&self) {
        for key in 0..3u8 {
            let note = self.shard.note(self.now, 1, &[key]).map(|note| (note.version, note.value.clone()));
            let known = self.notes.get(&key).map(|(version, value, _)| (*version, value.clone()));
            assert_eq!(note, known, "note {key}");
        }
    }

    /// The shard's wake-up time is not after anything that is to happen by itself.
    fn check_wake_up(&self) {
        let groups = self.groups.values();
        let due = groups.filter_map(|group| group.next_due(&self.streams[&group.stream], self.now)).min();
        let notes = self.notes.values().map(|(.., expires)| *expires).filter(|at| at.0 < u64::MAX).min();
        if let Some(due) = due.into_iter().chain(notes).min() {
            let wake_at = self.shard.wake_at();
            assert!(wake_at.is_some_and(|at| at <= due), "wakes up at {wake_at:?}, but {due:?} is due");
        }
    }
}
