//! The turns of the real shell, and the state in which it sleeps.
//!
//! The shard task ends a turn only after an event: a command, a receipt, a finished read, image or trim, or the
//! time that the driver asked for. If the driver leaves something undone and does not ask for a turn, the work waits
//! until an unrelated event. So in these histories no turn comes for free, and when nothing is under way and no time
//! is due, the server must have nothing left that it could do.

use std::convert::Infallible;
use std::time::Duration;

use forebay_core::group::{Bound, Credit};
use forebay_core::shard::Shard;
use forebay_core::types::{ConsumerId, Grant, GroupId};

use crate::server::Server;
use crate::situation::Situation;
use crate::tale::tell;
use crate::world::{JUMP_MAX, World};

/// Turns and pieces of disk work after which the server must have come to rest.
const ROUNDS_MAX: u32 = 20_000;

impl World {
    /// Whether the shell would end a turn now.
    fn is_turn_due(&mut self) -> bool {
        let now = self.now;
        self.due || self.server().driver.wake_at().is_some_and(|at| at <= now)
    }

    /// Ends a turn, in these histories only if the shell would.
    pub(super) fn end_turn(&mut self) {
        if !self.shell || self.is_turn_due() {
            self.finish_turn();
        }
    }

    /// After a step of the history: the turn ends now, or further commands come first.
    pub(super) fn maybe_end_turn(&mut self) {
        if self.dice.chance(7, 10) {
            self.end_turn();
        }
        if self.shell && self.dice.chance(1, 40) && self.come_to_rest() {
            self.check_rest();
        }
    }

    /// Lets the shell and the disk do all that there is to do at this time. False if a mishap came in between.
    pub(super) fn come_to_rest(&mut self) -> bool {
        let crashes = self.crashes;
        for _ in 0..ROUNDS_MAX {
            if self.is_turn_due() {
                self.finish_turn();
                continue;
            }
            let Some(work) = self.under_way() else {
                self.situations.reached(Situation::CameToRest);
                return true;
            };
            match work {
                Work::Save => self.save(),
                Work::Trim => self.trim(),
                Work::Commit => self.disk_work(Server::commit),
                Work::Read => self.disk_work(Server::read),
            }
            if self.crashes != crashes {
                return false;
            }
        }
        panic!("I4: the server does not come to rest: {}", self.left_over());
    }

    fn under_way(&mut self) -> Option<Work> {
        let server = self.server();
        let all = [
            (server.has_frames(), Work::Commit),
            (server.has_reads(), Work::Read),
            (server.has_image(), Work::Save),
            (server.has_trim(), Work::Trim),
        ];
        let there: Vec<Work> =
            all.into_iter().filter(|(is_there, _)| *is_there).map(|(_, work)| work).collect();
        (!there.is_empty()).then(|| *self.dice.pick(&there))
    }

    /// Nothing is under way and no time is due. Then no group waits for anything that does not come, and nothing that
    /// could go lies there while a consumer has room for it.
    pub(super) fn check_rest(&mut self) {
        tell(|| "at rest".to_owned());
        self.check_nothing_owed();
        self.note_full_logs();
        let grants = self.server().driver.shard().next_grant();
        // An unrelated turn finds nothing to do, unless it learns that the disk is full: then reclaim begins.
        let has_news = self.server().has_news_of_space();
        self.finish_turn();
        self.check_asleep(grants, has_news, "an unrelated turn");
        // Neither does a group that is looked at again because a consumer repeats itself.
        let consumers: Vec<ConsumerId> = self.consumers.keys().copied().collect();
        for id in consumers {
            self.repeat_credit(id);
        }
        self.finish_turn();
        self.check_asleep(grants, has_news, "a repeated credit");
        // Nor does any other group, with consumers or without.
        let look = |shard: &mut Shard| {
            shard.withhold(true);
            shard.withhold(false);
            Ok::<(), Infallible>(())
        };
        self.driver().decide(look).expect("it is not refused");
        self.finish_turn();
        self.check_asleep(grants, has_news, "a look at every group");
    }

    fn check_nothing_owed(&mut self) {
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        let driver = &self.server().driver;
        for id in groups {
            assert!(!driver.shard().is_reading(id), "I4: {id:?} waits for a read that was never issued");
            let owed = driver.undelivered(id).count();
            assert!(owed == 0, "I4: {owed} messages of {id:?} are leased and never leave");
        }
        for (&id, consumer) in self.consumers.iter().filter(|(_, consumer)| consumer.bound == Bound::Clock) {
            let driver = &self.server.as_ref().expect("the server is up between steps").driver;
            assert!(!driver.is_owed(id), "I4: a receive of {:?} is owed messages: {id:?}", consumer.group);
        }
    }

    fn check_asleep(&mut self, grants: Grant, may_reclaim: bool, woken_by: &str) {
        let after = self.server().driver.shard().next_grant();
        let given = after.0 - grants.0;
        assert!(given == 0, "I4: {given} messages could go, and only {woken_by} hands them out");
        let reads = self.server().has_reads_for_groups();
        assert!(!reads, "I4: a group could read a message, and only {woken_by} lets it");
        let reclaims = self.server().has_reads();
        assert!(!reclaims || may_reclaim, "I4: reclaim could begin, and only {woken_by} lets it");
    }

    /// A consumer says once more how much room it has.
    fn repeat_credit(&mut self, id: ConsumerId) {
        let consumer = &self.consumers[&id];
        let group = consumer.group;
        let credit = match consumer.bound {
            Bound::Connection => Credit::slots(consumer.credit),
            Bound::Clock => match consumer.asked {
                Some((messages, timeout)) => Credit::Once { messages, bytes: None, timeout },
                None => return,
            },
        };
        let now = self.now;
        self.driver().credit(now, group, id, credit).expect("a member");
    }

    /// Lets time pass until the driver asks for a turn. Something is left to do, so it has to ask.
    pub(super) fn sleep_until_due(&mut self) {
        let wake_at = self.server().driver.wake_at();
        let Some(at) = wake_at else {
            panic!("I4: messages are left over and no time is due: {}", self.left_over());
        };
        self.now = self.now.max(at.min(self.now + JUMP_MAX));
    }

    /// Waits a little where turns come for free.
    pub(super) fn wait_a_little(&mut self) {
        if self.server().driver.outbox().is_empty() && !self.server().has_reads() {
            let wake_at = self.server().driver.wake_at();
            self.now = wake_at
                .map_or(self.now + Duration::from_millis(5), |at| self.now.max(at.min(self.now + JUMP_MAX)));
        }
    }
}

/// Work of the disk that the shell waits for.
#[derive(Debug, Clone, Copy)]
enum Work {
    Commit,
    Read,
    Save,
    Trim,
}
