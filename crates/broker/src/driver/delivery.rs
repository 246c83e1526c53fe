//! Messages on their way to a consumer: as runs, and one by one for doors that speak of single messages.

use bytes::Bytes;
use forebay_core::group::{Lease, LeaseRun};
use forebay_core::types::{Attempt, ConsumerId, GroupId, Ordinal, Seq, StreamId, StreamName, Timestamp};

/// Consecutive messages for one consumer, leased alike: a run, from the core to the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub group: GroupId,
    pub consumer: ConsumerId,
    /// Of the first message; the others follow.
    pub lease: Lease,
    pub attempt: Attempt,
    /// They were handed out before in this group, also if that does not count as an attempt.
    pub redelivered: bool,
    /// When they were first handed out in this group. Messages that were given back untouched do not count.
    pub first_received: Timestamp,
    pub deadline: Timestamp,
    pub messages: Vec<RunMessage>,
}

/// A message of a [`Delivery`], with what it does not share with the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunMessage {
    /// Its position in the shard's log.
    pub ordinal: Ordinal,
    /// When it was published, before it was moved here if it was.
    pub published: Timestamp,
    pub priority: u8,
    /// Boxed, since few messages were ever moved.
    pub past: Option<Box<Past>>,
    pub content: Bytes,
}

/// One message with its lease, for doors that speak of single messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    pub lease: Lease,
    /// Its position in the shard's log.
    pub ordinal: Ordinal,
    pub attempt: Attempt,
    pub redelivered: bool,
    pub first_received: Timestamp,
    pub deadline: Timestamp,
    pub published: Timestamp,
    pub priority: u8,
    pub past: Option<Box<Past>>,
    pub content: Bytes,
}

impl Delivery {
    /// The contents of all messages.
    pub fn bytes(&self) -> usize {
        self.messages.iter().map(|message| message.content.len()).sum()
    }

    pub fn leases(&self) -> LeaseRun {
        LeaseRun { first: self.lease, count: self.messages.len() as u32 }
    }

    /// Each message by itself, in order.
    pub fn into_each(self) -> impl Iterator<Item = Delivered> {
        let leases = self.leases();
        let Delivery { attempt, redelivered, first_received, deadline, .. } = self;
        self.messages.into_iter().zip(leases.leases()).map(move |(message, lease)| {
            let RunMessage { ordinal, published, priority, past, content } = message;
            Delivered {
                lease,
                ordinal,
                attempt,
                redelivered,
                first_received,
                deadline,
                published,
                priority,
                past,
                content,
            }
        })
    }

    /// Takes the first messages away.
    pub fn skip(&mut self, count: usize) {
        self.messages.drain(..count);
        self.lease = LeaseRun { first: self.lease, count: 1 }.nth(count as u64);
    }

    /// Only those messages whose leases are to be kept, in as many runs as they then are.
    pub(super) fn keep(mut self, mut keep: impl FnMut(Lease) -> bool, mut each: impl FnMut(Delivery)) {
        while !self.messages.is_empty() {
            let kept = self.leases().leases().take_while(|lease| keep(*lease)).count();
            if kept == self.messages.len() {
                return each(self);
            }
            if kept > 0 {
                let messages = self.messages[..kept].to_vec();
                each(Delivery { messages, ..self.clone_empty() });
            }
            self.skip(kept + 1);
        }
    }

    fn clone_empty(&self) -> Delivery {
        Delivery { messages: Vec::new(), ..*self }
    }
}

/// The history of a message before it was moved here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Past {
    /// How often it was handed out there.
    pub receives: u32,
    /// The stream that it was published to first, and its position there, if that was written down.
    pub home: Option<(StreamId, Seq)>,
    /// The stream that it was moved from last. None also if that is not there any more.
    pub from: Option<StreamName>,
}

impl Delivered {
    /// How often it was handed out before it was moved here.
    pub fn receives(&self) -> u32 {
        self.past.as_ref().map_or(0, |past| past.receives)
    }

    /// The stream that it was moved from last, if that is still there.
    pub fn from(&self) -> Option<&StreamName> {
        self.past.as_ref()?.from.as_ref()
    }

    /// The stream that it was published to first, and its position there. `stream` is the one that it is in.
    pub fn home(&self, stream: StreamId) -> (StreamId, Seq) {
        self.past.as_ref().and_then(|past| past.home).unwrap_or((stream, self.lease.seq))
    }
}
