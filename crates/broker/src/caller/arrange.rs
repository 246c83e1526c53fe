//! Several changes that are made together or not at all: a stream, a group of it, and what a door notes about them.

use forebay_core::notes::Expected;
use forebay_core::settings::{GroupSettings, StreamSettings};
use forebay_core::shard;
use forebay_core::types::{GroupName, StreamName, Timestamp};

use super::{Caller, Reply, may_move};
use crate::access::{Principal, Resource, Right};
use crate::door::Door;
use crate::driver::{Arranged, NoteChange};
use crate::error::CallError;
use crate::shard_task::ShardTask;

/// A change of settings: of the defaults if the stream or group is created, otherwise of its present
/// settings.
pub type Change<S> = Box<dyn FnOnce(&mut S) + Send>;

/// A note that is to be written or, without a value, removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteWish {
    pub door: Door,
    pub key: Vec<u8>,
    pub value: Option<Vec<u8>>,
    /// The state that the note has to have now.
    pub expected: Expected,
    /// From this time on the note is absent.
    pub expires: Option<Timestamp>,
}

impl NoteWish {
    fn change(&self) -> NoteChange<'_> {
        let NoteWish { door, key, value, expected, expires } = self;
        NoteChange {
            door: door.number(),
            key,
            value: value.as_deref(),
            expected: *expected,
            expires: *expires,
        }
    }
}

/// Changes that are made together, all of them in the shard of one stream.
pub struct Arrangement {
    beside: StreamName,
    stream: Option<Change<StreamSettings>>,
    group: Option<(GroupName, Change<GroupSettings>)>,
    notes: Vec<NoteWish>,
}

impl Arrangement {
    /// Of nothing so far. Notes are kept beside this stream, which need not exist for that.
    pub fn beside(stream: StreamName) -> Arrangement {
        Arrangement { beside: stream, stream: None, group: None, notes: Vec::new() }
    }

    /// The stream is created, or changed if it is there.
    pub fn stream(mut self, change: impl FnOnce(&mut StreamSettings) + Send + 'static) -> Arrangement {
        self.stream = Some(Box::new(change));
        self
    }

    /// A group of the stream is created, or changed if it is there. It goes with [`Arrangement::stream`]; without,
    /// nothing is arranged.
    pub fn group(
        mut self,
        name: GroupName,
        change: impl FnOnce(&mut GroupSettings) + Send + 'static,
    ) -> Arrangement {
        self.group = Some((name, Box::new(change)));
        self
    }

    pub fn note(mut self, note: NoteWish) -> Arrangement {
        self.notes.push(note);
        self
    }
}

impl Caller {
    /// Makes changes that belong together: all of them or, if one cannot be made, none. The answer comes when they
    /// are durable, and a crash leaves all of them or none as well.
    pub async fn arrange(&self, arrangement: Arrangement) -> Result<Arranged, CallError> {
        let Arrangement { beside, stream, group, notes } = arrangement;
        let record = self.record(Right::Change, Resource::Stream(&beside))?;
        if stream.is_some() {
            for action in [Right::Create, Right::Change] {
                self.may(action, Resource::Stream(&beside))?;
                if let Some((group, _)) = &group {
                    self.may_in(action, &beside, group)?;
                }
            }
        }
        self.may_note(&beside, &notes)?;
        if group.is_some() && stream.is_none() {
            return Err(CallError::NoSuchStream);
        }
        let shard = self.shard_of(&beside);
        let (stream, who) = (stream.map(|change| (beside, change)), self.principal.clone());
        record.close(shard.ask(move |task, reply| arrange(task, &who, stream, group, &notes, reply)).await)
    }

    /// Deletes a stream with its groups, even if they have consumers, and writes or removes notes with it: all of
    /// it or nothing.
    pub async fn dissolve(&self, stream: StreamName, notes: Vec<NoteWish>) -> Result<(), CallError> {
        let record = self.record(Right::Delete, Resource::Stream(&stream))?;
        self.may_note(&stream, &notes)?;
        let done = self
            .shard_of(&stream)
            .ask(move |task, reply| {
                let notes: Vec<NoteChange<'_>> = notes.iter().map(NoteWish::change).collect();
                task.delete_stream(&stream, reply, |driver, now, stream| {
                    Ok(driver.dissolve(now, stream, &notes).map(drop)?)
                });
            })
            .await;
        record.close(done)
    }

    /// Notes are a part of the stream that they are kept beside.
    fn may_note(&self, beside: &StreamName, notes: &[NoteWish]) -> Result<(), CallError> {
        if notes.is_empty() {
            return Ok(());
        }
        Ok(self.may(Right::Change, Resource::Stream(beside))?)
    }
}

fn arrange(
    task: &mut ShardTask,
    who: &Principal,
    stream: Option<(StreamName, Change<StreamSettings>)>,
    group: Option<(GroupName, Change<GroupSettings>)>,
    notes: &[NoteWish],
    reply: Reply<Arranged>,
) {
    let (shard, mut denied) = (task.shard(), None);
    let stream = stream.map(|(name, change)| {
        let id = shard.stream_named(&name);
        let mut settings = id.and_then(|id| shard.stream_settings(id)).cloned().unwrap_or_default();
        change(&mut settings);
        let group = group.map(|(name, change)| {
            let group = id.and_then(|id| shard.group_named(id, &name));
            let mut settings = group.and_then(|id| shard.group_settings(id)).cloned().unwrap_or_default();
            let before = group.and(Some(settings.on_exhausted.clone()));
            change(&mut settings);
            denied = may_move(who, before.as_ref(), &settings.on_exhausted).err();
            (name, settings)
        });
        (name, settings, group)
    });
    if let Some(denied) = denied {
        return drop(reply.send(Err(denied.into())));
    }
    let plan = stream.as_ref().map(|(name, settings, group)| shard::Arrangement {
        stream: (name, settings),
        group: group.as_ref().map(|(name, settings)| (name, settings)),
    });
    let notes: Vec<NoteChange<'_>> = notes.iter().map(NoteWish::change).collect();
    task.decide(reply, |driver, now| Ok(driver.arrange(now, plan, &notes)?));
}
