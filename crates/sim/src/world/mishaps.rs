//! What goes wrong: crashes at any call, power loss, failed writes, a full disk, a damaged image or mark.

use std::io::ErrorKind;
use std::time::Duration;

use forebay_core::group::Bound;
use forebay_core::types::{ConsumerId, GroupId, Seq};

use crate::disk::Count;
use crate::server::{Down, Server};
use crate::situation::Situation;
use crate::tale::tell;
use crate::watch::Class;
use crate::world::World;

/// MARK has two slots, each in a page of its own.
const SLOT: usize = 4_096;

impl World {
    pub(super) fn mishap(&mut self) {
        match self.dice.roll(10) {
            // The fuse burns while the history goes on, and blows in the middle of some later call.
            0..6 => {
                let calls = 1 + self.dice.roll(40);
                self.disk.crash_at(Count::Changes, calls);
            }
            6 if self.dice.chance(1, 2) => self.crash(None),
            6 => self.stop_cleanly(),
            7 => {
                let calls = 1 + self.dice.roll(30);
                self.disk.fail_at(Count::Changes, calls, ErrorKind::Other);
            }
            _ => self.fill_or_free_disk(),
        }
    }

    /// New files find no descriptor, or reads in service fail: for lack of a descriptor, and where the history asks for
    /// it once or for ever at a place.
    pub(super) fn spoil_reads(&mut self) {
        if self.dice.chance(1, 3) {
            let files = 1 + self.dice.roll(4) as u32;
            return self.disk.exhaust_files(files);
        }
        if !self.bad_places || self.dice.chance(1, 2) {
            let calls = 1 + self.dice.roll(6) as u32;
            return self.disk.exhaust_descriptors(calls);
        }
        if self.dice.chance(1, 2) {
            return self.disk.fail_read_once();
        }
        let files = self.disk.files().into_iter().filter(|name| name.starts_with("segment-"));
        let files: Vec<String> = files.collect();
        if !files.is_empty() {
            let (name, page) = (self.dice.pick(&files).clone(), self.dice.roll(8));
            tell(|| format!("page {page} of {name} is spoiled"));
            self.disk.spoil_page(&name, page);
        }
    }

    /// An operator stops the server as it should be stopped, and starts it again.
    fn stop_cleanly(&mut self) {
        let now = self.now;
        // Commands that have not been through a turn are not decided yet.
        self.end_turn();
        let Ok(()) = self.server().stop(now) else {
            return self.went_down(Down("while stopping".to_owned()));
        };
        self.receive();
        self.situations.reached(Situation::CleanStop);
        self.tell_clients();
        self.server = None;
        self.disk.kill();
        self.start();
        self.check_recovered();
    }

    fn fill_or_free_disk(&mut self) {
        if self.server().space.is_full() || self.dice.chance(1, 3) {
            self.disk.set_capacity(u64::MAX);
        } else {
            let used = self.disk.used();
            self.disk.set_capacity(used + self.dice.roll(100 << 10));
        }
        self.disk_work(Server::check_space);
    }

    /// The server could not go on.
    pub(super) fn went_down(&mut self, down: Down) {
        let struck = self.disk.crashed();
        if struck.is_none() && self.disk.failed().is_none() {
            panic!("the server stopped for no reason: {}", down.0);
        }
        self.crash(struck.map(|struck| Situation::of_crash(struck.stage)));
    }

    /// The process dies, and perhaps the machine with it; then it starts again.
    fn crash(&mut self, situation: Option<Situation>) {
        let failed = self.disk.failed().is_some();
        self.situations.reached(situation.unwrap_or(match failed {
            true => Situation::WriteFailed,
            false => Situation::CrashBetweenCalls,
        }));
        tell(|| format!("crash: {situation:?}, {:?}", self.disk.crashed()));
        self.crashes += 1;
        if self.server().driver.is_reclaiming() {
            self.situations.reached(Situation::CrashInReclaim);
        }
        self.tell_clients();
        self.server = None;
        self.lose();
        self.start();
        self.check_recovered();
    }

    /// What the disk has lost by the time the machine is back.
    fn lose(&mut self) {
        if self.dice.chance(1, 2) {
            self.situations.reached(Situation::PowerLost);
            let mut dice = self.dice.fork();
            self.disk.power_loss(&mut dice);
        } else {
            self.disk.kill();
        }
        self.disk.defuse();
        self.disk.set_capacity(u64::MAX);
        if self.dice.chance(1, 4) {
            self.damage_a_copy();
        }
    }

    /// Flips a bit where a second copy exists by design, so that the server must start: in a slot of MARK, or in a file
    /// of the images, if there are two of them, which share no bytes. The newest file holds the newest image, or parts
    /// of it.
    fn damage_a_copy(&mut self) {
        if self.dice.chance(1, 4) {
            return self.damage_mark();
        }
        let images: Vec<String> = self.disk.files().into_iter().filter(|name| is_image(name)).collect();
        let [.., _, newest] = &images[..] else { return };
        if self.whole_images < 2 {
            return;
        }
        let is_newest = self.dice.chance(1, 2);
        let name = if is_newest { newest.clone() } else { self.dice.pick(&images).clone() };
        self.flip_a_bit(&name);
        self.whole_images -= 1;
        if is_newest {
            self.situations.reached(Situation::NewestImageDamaged);
        }
    }

    /// Flips a bit of MARK, unless the slot that was damaged last has not been written anew since: a start that crashes
    /// may not come to that.
    fn damage_mark(&mut self) {
        let slot = |bytes: &[u8], at: usize| bytes.chunks(SLOT).nth(at).map(<[u8]>::to_vec);
        let before = self.disk.contents("MARK").unwrap_or_default();
        if let Some((at, damaged)) = &self.damaged_mark
            && slot(&before, *at).as_ref() == Some(damaged)
        {
            return;
        }
        self.situations.reached(Situation::MarkDamaged);
        self.flip_a_bit("MARK");
        let after = self.disk.contents("MARK").unwrap_or_default();
        let changed = before.iter().zip(&after).position(|(before, after)| before != after);
        self.damaged_mark = changed.and_then(|at| Some((at / SLOT, slot(&after, at / SLOT)?)));
    }

    fn flip_a_bit(&mut self, name: &str) {
        let Some(mut bytes) = self.disk.contents(name).filter(|bytes| !bytes.is_empty()) else { return };
        let at = self.dice.roll(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << self.dice.roll(8);
        tell(|| format!("a bit of {name} is flipped at {at}"));
        self.disk.replace(name, &bytes);
    }

    /// Connections break; the outcome of unanswered calls stays unknown.
    fn tell_clients(&mut self) {
        let now = self.now;
        let server = self.server.as_ref().expect("the server was up until now");
        let (_, durable) = server.driver.frame_numbers();
        self.durable_at_crash = durable;
        self.doubt_deletions(durable);
        self.send_all_again();
        let server = self.server.as_ref().expect("the server was up until now");
        for (&id, following) in &mut self.groups {
            let shard = server.driver.shard();
            if shard.jobs(id).any(|job| job.is_running() && job.done > 0) {
                self.situations.reached(Situation::CrashInReplayJob);
            }
            if shard.figures(now, id).is_some_and(|figures| figures.moving > 0) {
                self.situations.reached(Situation::CrashInMove);
            }
            following.model.crashed(now, durable, following.lenient);
            // The next server may be able to read their keys, and those of later messages that it has to deliver again.
            following.passed_over.clear();
            if following.watch.is_in_upheaval(durable) {
                self.situations.reached(Situation::CrashInReset);
                following.model.know_nothing();
            }
            if following.lenient {
                following.model.forget_unwritten();
            }
            if following.model.held().any(|hold| hold.bound == Bound::Clock) {
                self.situations.reached(Situation::ClockLeaseAcrossCrash);
            }
        }
        let (latest, mut moot) = (self.latest, Vec::new());
        for (&id, stream) in &mut self.streams {
            if stream.crashed(durable) {
                moot.push(id);
            }
        }
        // When these come due is not known any more.
        for (&(id, _), (meta, _)) in &mut self.published {
            if moot.contains(&id) {
                meta.not_before = meta.not_before.filter(|at| *at <= latest);
            }
        }
        self.publishes.clear();
        self.creations.clear();
        self.unwatched.clear();
        self.consumers.clear();
        self.acked_this_turn.clear();
        self.settled_since_commit = false;
    }

    /// Starts the server, however often it takes.
    pub(super) fn start(&mut self) {
        if self.mishaps && self.dice.chance(1, 5) {
            self.situations.reached(Situation::ClockSetBack);
            self.now = self.now - Duration::from_millis(self.dice.roll(20_000));
            // What went out before cannot be held against a clock that says it was later.
            self.groups.values_mut().for_each(|following| following.pace.begin_anew());
        }
        loop {
            if self.mishaps && self.dice.chance(1, 8) {
                let calls = 1 + self.dice.roll(30);
                self.disk.crash_at(Count::Changes, calls);
            }
            let new_id = self.dice.u128();
            match Server::open(&self.disk, new_id, self.now) {
                Ok(server) => {
                    tell(|| {
                        let (epoch, at) = (server.driver.shard().epoch(), server.started.0);
                        format!("started at {at}, epoch {epoch:?}: {:?}", server.remarks)
                    });
                    self.now = server.started;
                    self.server = Some(server);
                    // The shell begins with a turn.
                    self.due = true;
                    break;
                }
                Err(down) => {
                    match (self.disk.crashed(), self.disk.failed()) {
                        (Some(struck), _) => self.situations.reached(Situation::of_crash(struck.stage)),
                        (None, Some(_)) => self.situations.reached(Situation::WriteFailed),
                        (None, None) => panic!("the server does not start: {}", down.0),
                    }
                    self.lose();
                }
            }
        }
    }

    /// Durably settled messages are settled, and no message is settled without a settlement.
    fn check_recovered(&mut self) {
        let server = self.server.as_ref().expect("the server has just started");
        let shard = server.driver.shard();
        // A group whose creation was not answered may be there or not.
        self.groups.retain(|&id, following| {
            let kept = shard.figures(self.now, id).is_some();
            assert!(kept || !following.answered, "I1: a group that was created is gone: {id:?}");
            following.answered |= kept;
            kept
        });
        self.stale.retain(|(group, _)| self.groups.contains_key(group));
        self.check_side_recovered();
        self.check_bundles_recovered();
        let server = self.server.as_ref().expect("the server has just started");
        let shard = server.driver.shard();
        // Deliveries shortly before the stop may be forgotten.
        self.groups.values_mut().for_each(|following| following.delivered.clear());
        for (&id, following) in self.groups.iter_mut().filter(|_| self.wild) {
            // A change of settings that was not durable may be forgotten, and so may a pause.
            let settings = shard.group_settings(id).expect("the group exists").clone();
            following.take_on(settings);
            let figures = shard.figures(self.now, id).expect("the group exists");
            following.paused = figures.status == forebay_core::group::Status::Paused;
            let last = shard.last_given(following.stream).expect("the stream exists");
            following.seen = Seq::START;
            let (durable, lenient) = (self.durable_at_crash, following.lenient);
            following
                .watch
                .recovered(durable, (following.start, last), lenient, |seq| Class::of(shard, id, seq));
        }
        for (&id, model) in &mut self.streams {
            if let Some(settings) = shard.stream_settings(id) {
                model.settings = settings.clone();
            }
        }
        self.published.retain(|&(stream, seq), _| shard.last_given(stream).is_some_and(|last| seq <= last));
        for (&id, following) in &self.groups {
            for seq in following.model.acked_for_good() {
                assert!(shard.is_settled(id, seq), "exact resume: the durable ack of {seq} is forgotten");
            }
            let last = shard.last_seq(following.stream).expect("I1: the stream is still there");
            for seq in self.streams[&following.stream].stored().filter(|&seq| seq > following.start) {
                assert!(seq <= last, "I1: acknowledged message {seq} is gone, the stream ends at {last}");
                let parked = shard.parked(id, seq).is_some();
                let settled = shard.is_settled(id, seq);
                assert!(
                    !settled || parked || self.wild || following.model.may_be_acked(seq),
                    "I1: {seq} counts as settled in {id:?} and nobody settled it"
                );
            }
        }
        self.check_log();
    }

    pub(super) fn heal(&mut self) {
        self.disk.defuse();
        self.disk.set_capacity(u64::MAX);
        self.disk_work(Server::check_space);
        // A key may belong to a consumer that takes nothing, and then waits for it.
        let connected = self.consumers.iter().filter(|(_, consumer)| consumer.bound == Bound::Connection);
        let connected: Vec<ConsumerId> = connected.map(|(&id, _)| id).collect();
        connected.into_iter().for_each(|id| self.set_slots(id));
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        for group in groups {
            self.join_group(group);
            if self.wild {
                self.relax(group);
            }
        }
    }
}

fn is_image(name: &str) -> bool {
    name.strip_prefix("image-").is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}
