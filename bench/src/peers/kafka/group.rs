//! The consumers of a group: who reads which partition, and how far the group is.
//!
//! Members share the partitions evenly. That is agreed on here and not with the broker's help, since they all
//! live in this process; what they read and commit is the same. A partition changes hands when everything that
//! was handed out of it is committed: a member that should not have it delivers no more of it, and the member that
//! should takes it and continues from there.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::PARTITIONS;
use super::wire::{self, Client};
use crate::peers::contender::{Consumer, Failure, Step};

/// The broker's client asks for as much of a partition at a time.
const FETCH_BYTES_MAX: i32 = 1 << 20;
/// How long the broker may hold a request, and so how long a partition takes to change hands.
const FETCH_WAIT_MS: i32 = 100;
const LOOK_EVERY: Duration = Duration::from_millis(5);

pub(super) struct Group {
    pub(super) name: String,
    pub(super) topic: String,
    /// Read and written in a few steps at a time, and never held over an await.
    sharing: Mutex<Sharing>,
}

#[derive(Debug, Default)]
struct Sharing {
    members: Vec<u64>,
    joined: u64,
    partitions: [Shared; PARTITIONS],
}

#[derive(Debug, Default, Clone, Copy)]
struct Shared {
    owner: Option<u64>,
    /// If no member knows, the broker does.
    position: Option<Position>,
}

#[derive(Debug, Clone, Copy)]
struct Position {
    /// The next to be handed out.
    next: i64,
    committed: i64,
}

impl Shared {
    fn may_change_hands(&self) -> bool {
        self.owner.is_none() || self.position.is_none_or(|position| position.next == position.committed)
    }
}

impl Group {
    pub(super) fn new(topic: &str, group: usize) -> Group {
        let (name, topic) = (format!("{topic}-{group}"), topic.to_owned());
        Group { name, topic, sharing: Mutex::default() }
    }

    fn sharing(&self) -> MutexGuard<'_, Sharing> {
        self.sharing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sharing {
    fn join(&mut self) -> u64 {
        self.joined += 1;
        self.members.push(self.joined);
        self.joined
    }

    /// What it held is handed out again from where the group committed.
    fn leave(&mut self, member: u64) {
        self.members.retain(|other| *other != member);
        for shared in self.partitions.iter_mut().filter(|shared| shared.owner == Some(member)) {
            *shared = Shared::default();
        }
    }

    fn is_due(&self, partition: usize, member: u64) -> bool {
        self.members.get(partition % self.members.len().max(1)) == Some(&member)
    }
}

impl Client {
    /// Where the group goes on in a partition.
    pub(super) async fn offset(&mut self, group: &str, topic: &str, partition: i32) -> Result<i64, Failure> {
        let put = |out: &mut _| wire::put_offset_fetch(out, group, topic, partition);
        wire::offset_fetched(self.ask(wire::OFFSET_FETCH, put).await?)
    }
}

/// One member, with two connections: an answer to a fetch may take long, and nothing overtakes it.
pub(super) struct Subscriber {
    group: Arc<Group>,
    member: u64,
    port: u16,
    prefetch: usize,
    fetches: Client,
    is_fetching: bool,
    commits: Client,
    is_committing: bool,
    /// What the broker is told at the moment.
    committing: Vec<(i32, i64)>,
    partitions: [Partition; PARTITIONS],
    /// Fetched and not handed out: partition, offset and body.
    buffer: VecDeque<(usize, i64, Bytes)>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Partition {
    is_ours: bool,
    /// We should have it. If not, it is ours until everything that was handed out is committed.
    is_due: bool,
    /// The next to be fetched, once it is known.
    fetch: Option<i64>,
    /// From where on the broker is looking.
    asked: Option<i64>,
    /// The next to be handed out.
    next: i64,
    /// Before this everything is acked.
    acked: i64,
    /// The broker is not told yet.
    is_news: bool,
}

impl Subscriber {
    pub(super) async fn join(port: u16, group: Arc<Group>, prefetch: usize) -> Result<Subscriber, Failure> {
        let (fetches, commits) = (Client::open(port).await?, Client::open(port).await?);
        let member = group.sharing().join();
        Ok(Subscriber {
            group,
            member,
            port,
            prefetch,
            fetches,
            is_fetching: false,
            commits,
            is_committing: false,
            committing: Vec::new(),
            partitions: Default::default(),
            buffer: VecDeque::new(),
        })
    }

    /// Takes the partitions that we should have, and finds out where to go on in them.
    async fn share(&mut self) -> Result<(), Failure> {
        self.take_partitions();
        for number in 0..PARTITIONS {
            if !self.partitions[number].is_ours || self.partitions[number].fetch.is_some() {
                continue;
            }
            let mut client = Client::open(self.port).await?;
            let offset = client.offset(&self.group.name, &self.group.topic, i32::try_from(number)?).await?;
            let shared = &mut self.group.sharing().partitions[number];
            if shared.owner == Some(self.member) {
                shared.position = Some(Position { next: offset, committed: offset });
                let partition = &mut self.partitions[number];
                (partition.fetch, partition.next, partition.acked) = (Some(offset), offset, offset);
            }
        }
        Ok(())
    }

    fn take_partitions(&mut self) {
        let mut sharing = self.group.sharing();
        for (number, partition) in self.partitions.iter_mut().enumerate() {
            let is_due = sharing.is_due(number, self.member);
            let shared = &mut sharing.partitions[number];
            let is_ours = shared.owner == Some(self.member);
            partition.is_due = is_due;
            if is_due && !is_ours && shared.may_change_hands() {
                shared.owner = Some(self.member);
                let fetch = shared.position.map(|position| position.next);
                let (next, asked) = (fetch.unwrap_or(0), partition.asked);
                *partition =
                    Partition { is_ours: true, is_due, fetch, asked, next, acked: next, is_news: false };
                self.buffer.retain(|(other, _, _)| *other != number);
            } else if !is_ours && partition.is_ours {
                *partition = Partition { is_due, asked: partition.asked, ..Partition::default() };
                self.buffer.retain(|(other, _, _)| *other != number);
            }
        }
    }

    /// Delivers messages that are fetched and belong to this member.
    fn hand_out(&mut self) -> Vec<Bytes> {
        let mut bodies = Vec::with_capacity(self.buffer.len().min(self.prefetch));
        let mut sharing = self.group.sharing();
        while bodies.len() < self.prefetch
            && let Some((number, offset, body)) = self.buffer.pop_front()
        {
            let (partition, shared) = (&mut self.partitions[number], &mut sharing.partitions[number]);
            let Some(position) = shared.position.as_mut().filter(|_| shared.owner == Some(self.member))
            else {
                continue;
            };
            if partition.is_due {
                position.next = offset + 1;
                partition.next = offset + 1;
                bodies.push(body);
            } else {
                // Another will fetch it, or we do it again.
                partition.fetch = Some(position.next);
                self.buffer.retain(|(other, _, _)| *other != number);
            }
        }
        bodies
    }

    /// Asks for more, unless the broker is looking already, or there is enough.
    fn put_fetch(&mut self) {
        if self.is_fetching || self.buffer.len() > self.prefetch {
            return;
        }
        let mut from = Vec::with_capacity(PARTITIONS);
        for (number, partition) in (0_i32..).zip(&mut self.partitions) {
            partition.asked = partition.fetch.filter(|_| partition.is_ours && partition.is_due);
            from.extend(partition.asked.map(|offset| (number, offset)));
        }
        if from.is_empty() {
            return;
        }
        let topic = &self.group.topic;
        self.fetches.put(wire::FETCH, |out| {
            wire::put_fetch(out, topic, FETCH_WAIT_MS, FETCH_BYTES_MAX, &from);
        });
        self.is_fetching = true;
    }

    fn on_fetched(&mut self, answer: Bytes) -> Result<(), Failure> {
        self.is_fetching = false;
        for (number, records) in wire::fetched(answer)? {
            let number = usize::try_from(number)?;
            let partition = self.partitions.get_mut(number).ok_or("the broker sends an unknown partition")?;
            // The partition may have changed hands since, perhaps twice: then we go on from somewhere else.
            let wanted = partition.fetch.filter(|_| partition.is_ours);
            let Some(from) = partition.asked.take().filter(|asked| wanted == Some(*asked)) else { continue };
            let buffer = &mut self.buffer;
            let end = super::records::decode(&records, from, |offset, body| {
                buffer.push_back((number, offset, body));
            })?;
            partition.fetch = Some(end);
        }
        Ok(())
    }

    /// Tells the broker of all acks. While it works on a commit, later acks wait, and then go together: a commit
    /// is about everything before it.
    fn put_commit(&mut self) {
        if self.is_committing {
            return;
        }
        let news = (0_i32..).zip(&mut self.partitions).filter(|(_, partition)| partition.is_news);
        self.committing = news
            .map(|(number, partition)| {
                partition.is_news = false;
                (number, partition.acked)
            })
            .collect();
        if self.committing.is_empty() {
            return;
        }
        let (group, before) = (&self.group, &self.committing);
        self.commits.put(wire::OFFSET_COMMIT, |out| {
            wire::put_commit(out, &group.name, &group.topic, before);
        });
        self.is_committing = true;
    }

    fn on_committed(&mut self, answer: Bytes) -> Result<(), Failure> {
        self.is_committing = false;
        wire::committed(answer)?;
        {
            let mut sharing = self.group.sharing();
            for (number, before) in self.committing.drain(..) {
                let shared = &mut sharing.partitions[usize::try_from(number)?];
                if let Some(position) = shared.position.as_mut().filter(|_| shared.owner == Some(self.member))
                {
                    position.committed = before;
                }
            }
        }
        self.put_commit();
        Ok(())
    }

    /// Waits until the broker said something, or until it is time to look again at who has what.
    async fn progress(&mut self) -> Result<(), Failure> {
        tokio::select! {
            answer = self.fetches.answer(), if self.is_fetching => self.on_fetched(answer?),
            answer = self.commits.answer(), if self.is_committing => self.on_committed(answer?),
            () = tokio::time::sleep(LOOK_EVERY), if !self.is_fetching => Ok(()),
        }
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.group.sharing().leave(self.member);
    }
}

impl Consumer for Subscriber {
    fn receive(&mut self) -> Step<'_, Vec<Bytes>> {
        Box::pin(async move {
            loop {
                self.share().await?;
                self.put_fetch();
                self.fetches.flush().await?;
                self.commits.flush().await?;
                let bodies = self.hand_out();
                if !bodies.is_empty() {
                    return Ok(bodies);
                }
                self.progress().await?;
            }
        })
    }

    fn ack(&mut self) -> Step<'_, ()> {
        Box::pin(async move {
            for partition in self.partitions.iter_mut().filter(|partition| partition.acked < partition.next) {
                partition.acked = partition.next;
                partition.is_news = true;
            }
            self.put_commit();
            self.commits.flush().await
        })
    }

    fn settle(&mut self) -> Step<'_, ()> {
        Box::pin(async move {
            self.put_commit();
            while self.is_committing {
                self.commits.flush().await?;
                let answer = self.commits.answer().await?;
                self.on_committed(answer)?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_shared_evenly_however_many_there_are() {
        let mut sharing = Sharing::default();
        for members in 1..=6 {
            sharing.join();
            let owned = |member: &u64| (0..PARTITIONS).filter(|it| sharing.is_due(*it, *member)).count();
            let owned: Vec<usize> = sharing.members.iter().map(owned).collect();
            assert_eq!(owned.iter().sum::<usize>(), PARTITIONS);
            let most = PARTITIONS.div_ceil(members);
            assert!(owned.iter().all(|count| *count <= most), "{owned:?}");
        }
    }

    #[test]
    fn what_a_member_held_is_free_when_it_leaves() {
        let mut sharing = Sharing::default();
        let (first, second) = (sharing.join(), sharing.join());
        let position = Some(Position { next: 8, committed: 7 });
        sharing.partitions[0] = Shared { owner: Some(first), position };
        sharing.partitions[1] = Shared { owner: Some(second), position };
        assert!(!sharing.partitions[0].may_change_hands() && sharing.partitions[2].may_change_hands());
        sharing.leave(first);
        assert_eq!(sharing.partitions.map(|shared| shared.owner), [None, Some(second), None, None]);
        assert!(sharing.partitions[0].may_change_hands() && sharing.partitions[0].position.is_none());
        assert!((0..PARTITIONS).all(|partition| sharing.is_due(partition, second)));
    }
}
