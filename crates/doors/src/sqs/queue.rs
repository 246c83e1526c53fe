//! A queue: a stream with one group, and what SQS says of it beside.
//!
//! The name and the attributes of a queue are kept in a note of the log; the settings of its stream and its group
//! follow from those.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_broker::api::{
    Acks, Backoff, Door, Expected, Fairness, GroupSettings, KeyLock, MoveTerms, NoteWish, OnExhausted,
    Retention, Retries, Strategy, StreamSettings,
};
use forebay_core::types::{GroupName, StreamId, StreamName, Timestamp};
use serde::{Deserialize, Serialize};

use super::wire::address::{Arn, DEFAULT_ACCOUNT, is_account};
use super::wire::attributes::{DeduplicationScope, QueueSettings};

/// Whose notes these are.
pub(super) const DOOR: Door = Door::SQS;
/// The prefixes of the keys of notes: of queues, of names deleted a moment ago, and of queues purged a moment
/// ago.
const QUEUE_PREFIX: &str = "queue/";
const DELETED_PREFIX: &str = "deleted/";
const PURGED_PREFIX: &str = "purged/";

/// The group of all receivers of the queue.
const GROUP: &str = "queue";
/// How long deduplication ids are remembered.
const DEDUPE_WINDOW: Duration = Duration::from_secs(300);
/// How long a new scope of duplicates takes.
const SCOPE_CHANGE_SECONDS: u64 = 60;
/// At most so many, which is enough for 10,000 messages a second.
const DEDUPE_MAX: u32 = 3_000_000;
/// Messages that may be in flight, as on AWS, and those that the queue looks after at a time.
const IN_FLIGHT_MAX: u32 = 120_000;
const WINDOW_MAX: u32 = 250_000;
/// Messages of one message group that one receive may get.
const GROUP_BATCH: u32 = 10;
/// The shortest message timeout of a queue's group, also if the visibility timeout is shorter. A receive
/// names the time of its own leases.
const LEASE_MIN: Duration = Duration::from_secs(1);

/// Which queue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct QueueId {
    pub(super) account: String,
    pub(super) name: String,
}

impl QueueId {
    pub(super) fn new(account: &str, name: &str) -> QueueId {
        QueueId { account: account.to_owned(), name: name.to_owned() }
    }

    /// The stream's name: the queue's name if there are no accounts, otherwise the account and the queue's name. A
    /// queue's name has no dot but that of `.fifo`. `None` if that would be the stream of another account's queue, or
    /// is not a valid stream name; then the queue cannot exist.
    pub(super) fn stream(&self) -> Option<StreamName> {
        let name = if self.account == DEFAULT_ACCOUNT {
            let stem = self.name.split('.').next().unwrap_or_default();
            if is_account(stem) && stem != self.name {
                return None;
            }
            StreamName::parse(&self.name)
        } else {
            StreamName::parse(&format!("{}.{}", self.account, self.name))
        };
        name.ok()
    }

    /// The queue that a stream belongs to, if it belongs to one.
    pub(super) fn of_stream(stream: &str) -> QueueId {
        match stream.split_once('.') {
            Some((account, name)) if is_account(account) => QueueId::new(account, name),
            _ => QueueId::new(DEFAULT_ACCOUNT, stream),
        }
    }

    pub(super) fn arn(&self, region: &str) -> Arn {
        Arn::new(region, &self.account, &self.name)
    }

    fn key(&self, prefix: &str) -> Vec<u8> {
        format!("{prefix}{}/{}", self.account, self.name).into_bytes()
    }

    /// The name may not be used again before that time.
    pub(super) fn deleted(&self, until: Timestamp) -> NoteWish {
        note(self.deleted_key(), Some(Vec::new()), Some(until))
    }

    pub(super) fn deleted_key(&self) -> Vec<u8> {
        self.key(DELETED_PREFIX)
    }

    /// The queue may not be purged again before that time.
    pub(super) fn purged(&self, until: Timestamp) -> NoteWish {
        note(self.purged_key(), Some(Vec::new()), Some(until))
    }

    pub(super) fn purged_key(&self) -> Vec<u8> {
        self.key(PURGED_PREFIX)
    }

    /// Removes the queue's note.
    pub(super) fn gone(&self) -> NoteWish {
        note(self.key(QUEUE_PREFIX), None, None)
    }
}

fn note(key: Vec<u8>, value: Option<Vec<u8>>, expires: Option<Timestamp>) -> NoteWish {
    NoteWish { door: DOOR, key, value, expected: Expected::Any, expires }
}

/// The prefix of all notes about queues.
pub(super) fn notes_prefix() -> Vec<u8> {
    QUEUE_PREFIX.as_bytes().to_vec()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Queue {
    pub(super) id: QueueId,
    pub(super) stream: Arc<StreamName>,
    pub(super) stream_id: StreamId,
    pub(super) about: About,
}

/// The SQS properties of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct About {
    pub(super) settings: QueueSettings,
    pub(super) tags: BTreeMap<String, String>,
    /// Seconds since 1970.
    pub(super) created: u64,
    pub(super) modified: u64,
    /// Senders name groups on a standard queue, so these take turns.
    pub(super) is_fair: bool,
    /// The deduplication scope before a change, and until when it still counts.
    pub(super) scope_before: Option<(DeduplicationScope, u64)>,
}

/// [`About`], as a note has it.
#[derive(Serialize, Deserialize)]
struct Record {
    attributes: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    tags: BTreeMap<String, String>,
    created: u64,
    modified: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    fair: bool,
    /// Whether it was the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scope_before: Option<(bool, u64)>,
}

impl About {
    pub(super) fn note(&self, id: &QueueId) -> NoteWish {
        let record = Record {
            attributes: self.settings.texts(),
            tags: self.tags.clone(),
            created: self.created,
            modified: self.modified,
            fair: self.is_fair,
            scope_before: self
                .scope_before
                .map(|(scope, until)| (scope == DeduplicationScope::MessageGroup, until)),
        };
        let value = serde_json::to_vec(&record).expect("texts and numbers can be written");
        note(id.key(QUEUE_PREFIX), Some(value), None)
    }

    /// From a note, with the queue that it is about. `None` for what no queue was ever written as.
    pub(super) fn read(key: &[u8], value: &[u8]) -> Option<(QueueId, About)> {
        let key = std::str::from_utf8(key).ok()?.strip_prefix(QUEUE_PREFIX)?;
        let (account, name) = key.split_once('/')?;
        let record: Record = serde_json::from_slice(value).ok()?;
        let settings = QueueSettings::kept(name, &record.attributes).ok()?;
        let (created, modified) = (record.created, record.modified);
        let scope =
            |is_group| if is_group { DeduplicationScope::MessageGroup } else { DeduplicationScope::Queue };
        let about = About {
            settings,
            tags: record.tags,
            created,
            modified,
            is_fair: record.fair,
            scope_before: record.scope_before.map(|(is_group, until)| (scope(is_group), until)),
        };
        Some((QueueId::new(account, name), about))
    }

    /// Applies the queue's attributes to its stream's settings.
    pub(super) fn shape_stream(&self, stream: &mut StreamSettings) {
        stream.retention = Retention::Work;
        stream.limits.max_age = Some(self.retention());
        stream.delay = self.stream_delay();
        self.shape_deduplication(stream);
    }

    /// Messages of a standard queue have no ids but those that other doors give them.
    pub(super) fn shape_deduplication(&self, stream: &mut StreamSettings) {
        if self.settings.is_fifo {
            stream.dedupe_window = DEDUPE_WINDOW;
            stream.dedupe_max = DEDUPE_MAX;
        }
    }

    /// On a FIFO queue a change of the delay counts for messages that wait already, so it is the stream's. On a
    /// standard queue it does not, so each message has its own.
    pub(super) fn stream_delay(&self) -> Duration {
        let delay = Duration::from_secs(self.settings.delay.into());
        if self.settings.is_fifo { delay } else { Duration::ZERO }
    }

    /// The present deduplication scope. A change takes a minute, as it does on AWS.
    pub(super) fn scope(&self, now: Timestamp) -> DeduplicationScope {
        let before = self.scope_before.filter(|(_, until)| now.0 / 1_000_000 < *until);
        before.map_or(self.settings.deduplication_scope, |(scope, _)| scope)
    }

    /// With other settings.
    pub(super) fn set(&mut self, now: Timestamp, settings: QueueSettings) {
        if settings.deduplication_scope != self.settings.deduplication_scope {
            self.scope_before = Some((self.scope(now), now.0 / 1_000_000 + SCOPE_CHANGE_SECONDS));
        }
        self.settings = settings;
    }

    pub(super) fn retention(&self) -> Duration {
        Duration::from_secs(self.settings.retention.into())
    }

    /// Applies the queue's attributes to the settings of its group, whose stream is `own`.
    pub(super) fn shape_group(&self, own: &StreamName, group: &mut GroupSettings) {
        let settings = &self.settings;
        // The dead letters of a queue that names itself are where they belong already.
        let redrive = settings.redrive.as_ref().map(|policy| (policy, dead_letters(&policy.target)));
        let redrive = redrive.filter(|(_, to)| !matches!(to, OnExhausted::Move(to) if to == own));
        group.message_timeout = Duration::from_secs(settings.visibility_timeout.into()).max(LEASE_MIN);
        // A message that becomes visible again is offered at once, and without end unless there is a
        // dead-letter queue.
        group.backoff = Backoff { min: Duration::ZERO, max: Duration::ZERO, factor: 1.0, jitter: 0.0 };
        (group.max_retries, group.on_exhausted) = match redrive {
            Some((policy, to)) => (Retries::AtMost(policy.max_receive_count - 1), to),
            None => (Retries::Unlimited, OnExhausted::Park),
        };
        // A dead-letter queue that was deleted is not created again, and the messages for it stay. On a standard
        // queue a moved message keeps its age.
        group.move_terms = MoveTerms { create: false, keep_age: !settings.is_fifo };
        group.max_in_flight = IN_FLIGHT_MAX;
        group.window_max = WINDOW_MAX;
        // A message whose deletion was confirmed must not come back.
        group.acks = Acks::Durable;
        if settings.is_fifo {
            group.strategy = Strategy::Ordered;
            group.key_batch = GROUP_BATCH;
            group.key_lock = KeyLock::Position;
            group.fairness = Fairness::Key;
        } else {
            group.strategy = Strategy::RoundRobin;
            group.fairness = if self.is_fair { Fairness::Key } else { Fairness::None };
        }
    }
}

/// The fate of a message that was received too often.
fn dead_letters(target: &Arn) -> OnExhausted {
    match QueueId::new(&target.account, &target.queue).stream() {
        Some(to) => OnExhausted::Move(to),
        None => OnExhausted::Park,
    }
}

impl Queue {
    pub(super) fn group(&self) -> GroupName {
        group()
    }

    pub(super) fn stream(&self) -> StreamName {
        self.stream.as_ref().clone()
    }

    pub(super) fn is_fifo(&self) -> bool {
        self.about.settings.is_fifo
    }
}

/// The group of every queue.
pub(super) fn group() -> GroupName {
    GroupName::parse(GROUP).expect("it is a name")
}
