//! Which queues there are. The log knows; this is what the door remembers of it, so that a request finds its queue
//! without asking. Queues change one at a time.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock};

use forebay_broker::api::{Bundle, CallError, Caller, NOTE_VALUE_BYTES_MAX};
use tokio::sync::{Mutex, MutexGuard};

use super::failure;
use super::queue::{self, About, DOOR, Queue, QueueId};
use super::wire::error::{ErrorKind, SqsError};

const NOTES_PER_PAGE: usize = 1_000;

pub(super) struct Registry {
    /// The door itself: how the registry follows the log is not up to the rights of the client that asks.
    own: Caller,
    queues: RwLock<BTreeMap<QueueId, Arc<Queue>>>,
    changing: Mutex<()>,
}

/// Why the door cannot open.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error("the note of a queue cannot be read; was it written by a later release? note=`{key}`")]
    Unreadable { key: String },
    #[error(transparent)]
    Call(#[from] CallError),
}

/// The right to change queues.
pub(super) struct Changing<'a> {
    registry: &'a Registry,
    _guard: MutexGuard<'a, ()>,
}

impl Registry {
    /// Loads the queues from the log.
    pub(super) async fn load(own: Caller) -> Result<Registry, LoadError> {
        let mut queues = BTreeMap::new();
        let mut after = None;
        loop {
            let page = own.notes(DOOR, queue::notes_prefix(), after, NOTES_PER_PAGE).await?;
            for (key, note) in page.items {
                // A queue that cannot be understood is not one that is not there.
                let unreadable = || LoadError::Unreadable { key: String::from_utf8_lossy(&key).into_owned() };
                let (id, about) = About::read(&key, &note.value).ok_or_else(unreadable)?;
                if let Some(queue) = look_up(&own, &id, about).await? {
                    queues.insert(id, Arc::new(queue));
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(Registry { own, queues: RwLock::new(queues), changing: Mutex::new(()) });
            }
        }
    }

    /// The door itself, as a caller.
    pub(super) fn own(&self) -> &Caller {
        &self.own
    }

    pub(super) fn get(&self, id: &QueueId) -> Option<Arc<Queue>> {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// Queues of an account whose names begin so, in order of their names, after `after`: those that are wanted,
    /// and at most `limit` of them; and whether there are more.
    pub(super) fn list(
        &self,
        account: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        wanted: impl Fn(&Queue) -> bool,
    ) -> (Vec<QueueId>, bool) {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        let from = match after.filter(|after| *after >= prefix) {
            Some(after) => Bound::Excluded(QueueId::new(account, after)),
            None => Bound::Included(QueueId::new(account, prefix)),
        };
        let mut all = queues
            .range((from, Bound::Unbounded))
            .take_while(|(id, _)| id.account == account && id.name.starts_with(prefix))
            .filter(|(_, queue)| wanted(queue))
            .map(|(id, _)| id.clone());
        let page = all.by_ref().take(limit).collect();
        (page, all.next().is_some())
    }

    /// Whether any queue is so.
    pub(super) fn any(&self, is_so: impl Fn(&Queue) -> bool) -> bool {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).values().any(|queue| is_so(queue))
    }

    /// Keeps other requests from changing queues while the guard lives.
    pub(super) async fn change(&self) -> Changing<'_> {
        Changing { registry: self, _guard: self.changing.lock().await }
    }

    /// Forgets a queue whose stream or group was deleted through another door.
    pub(super) async fn forget(&self, queue: &Queue) {
        self.change().await.forget_if_gone(queue).await;
    }
}

/// A queue of which the log has a note. None if its stream or its group is gone.
async fn look_up(caller: &Caller, id: &QueueId, about: About) -> Result<Option<Queue>, CallError> {
    let Some(stream) = id.stream() else { return Ok(None) };
    match caller.stream(stream.clone()).await {
        Ok(report) if report.groups.contains(&queue::group()) => {
            Ok(Some(Queue { id: id.clone(), stream: Arc::new(stream), stream_id: report.id, about }))
        }
        Ok(_) | Err(CallError::NoSuchStream { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Changing<'_> {
    /// Creates a queue, or changes one, with whatever else has to change with it.
    pub(super) async fn put(
        &self,
        caller: &Caller,
        id: QueueId,
        about: About,
        bundle: Bundle,
    ) -> Result<Arc<Queue>, SqsError> {
        let note = about.note(&id);
        if note.value.as_ref().is_some_and(|value| value.len() > NOTE_VALUE_BYTES_MAX) {
            let message =
                format!("Attributes and tags of a queue have at most {NOTE_VALUE_BYTES_MAX} bytes together.");
            return Err(SqsError::new(ErrorKind::OverLimit, message));
        }
        caller.commit(bundle.note(note)).await.map_err(|error| failure::of_call(&error))?;
        let found =
            look_up(&self.registry.own, &id, about).await.map_err(|error| failure::of_call(&error))?;
        let queue = Arc::new(found.ok_or_else(SqsError::no_such_queue)?);
        let mut queues = self.registry.queues.write().unwrap_or_else(PoisonError::into_inner);
        queues.insert(id, queue.clone());
        Ok(queue)
    }

    /// Whether the stream or the group of a queue is gone. Then so is the queue.
    pub(super) async fn forget_if_gone(&self, queue: &Queue) -> bool {
        let own = &self.registry.own;
        // Thousands may have waited for messages of a queue that was deleted, and one of them has asked by now.
        if self.registry.get(&queue.id).is_none_or(|now| now.stream_id != queue.stream_id) {
            return true;
        }
        let is_gone = match own.stream(queue.stream()).await {
            // There may be another of that name by now.
            Ok(report) => report.id != queue.stream_id || !report.groups.contains(&queue.group()),
            Err(CallError::NoSuchStream { .. }) => true,
            Err(_) => false,
        };
        if is_gone {
            // If that cannot be written, the next start finds out again.
            let _ = own.commit(Bundle::beside(queue.stream()).note(queue.id.gone())).await;
            self.remove(&queue.id);
        }
        is_gone
    }

    pub(super) fn remove(&self, id: &QueueId) {
        self.registry.queues.write().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}
