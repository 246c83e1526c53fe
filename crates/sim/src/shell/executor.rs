//! An executor of one thread that leaves every choice to its caller: which of the woken tasks goes on, and which one is
//! dropped. Wakers only write down that a task may go on.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::dice::Dice;

pub(crate) type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Tasks are numbered as they come, and no number is given twice.
pub(crate) type TaskId = u32;

struct Task {
    name: String,
    future: LocalFuture,
    waker: Waker,
}

#[derive(Default)]
pub(crate) struct Executor {
    tasks: BTreeMap<TaskId, Task>,
    woken: Arc<Woken>,
    next: TaskId,
}

/// The tasks that may go on, in order, so that nothing depends on the order of the wakes.
#[derive(Default)]
struct Woken {
    ready: Mutex<BTreeSet<TaskId>>,
    /// Woken as well, while the executor waits.
    outer: Mutex<Option<Waker>>,
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

struct TaskWaker {
    task: TaskId,
    woken: Arc<Woken>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<TaskWaker>) {
        lock(&self.woken.ready).insert(self.task);
        if let Some(outer) = lock(&self.woken.outer).take() {
            outer.wake();
        }
    }
}

impl Executor {
    pub(crate) fn spawn(&mut self, name: String, future: LocalFuture) -> TaskId {
        let id = self.next;
        self.next += 1;
        let waker = Waker::from(Arc::new(TaskWaker { task: id, woken: self.woken.clone() }));
        self.tasks.insert(id, Task { name, future, waker });
        lock(&self.woken.ready).insert(id);
        id
    }

    /// The tasks that may go on, in the order of their numbers.
    pub(crate) fn ready(&self) -> Vec<TaskId> {
        let mut ready = lock(&self.woken.ready);
        ready.retain(|id| self.tasks.contains_key(id));
        ready.iter().copied().collect()
    }

    pub(crate) fn is_alive(&self, id: TaskId) -> bool {
        self.tasks.contains_key(&id)
    }

    pub(crate) fn name(&self, id: TaskId) -> &str {
        self.tasks.get(&id).map_or("-", |task| &task.name)
    }

    /// Lets a task go on until it waits or ends.
    pub(crate) fn poll(&mut self, id: TaskId) {
        lock(&self.woken.ready).remove(&id);
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let waker = task.waker.clone();
        if task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            self.tasks.remove(&id);
        }
    }

    /// Drops a task wherever it is.
    pub(crate) fn abandon(&mut self, id: TaskId) {
        self.tasks.remove(&id);
    }

    /// Waits until a task is woken, and no longer than this.
    pub(crate) async fn wait(&self, limit: Duration) {
        self.wait_for(limit, |_| true).await;
    }

    /// Waits until one of these tasks is woken, and no longer than this.
    pub(crate) async fn wait_for(&self, limit: Duration, is_meant: impl Fn(TaskId) -> bool) {
        let woken = poll_fn(|cx| {
            if lock(&self.woken.ready).iter().any(|id| is_meant(*id)) {
                Poll::Ready(())
            } else {
                *lock(&self.woken.outer) = Some(cx.waker().clone());
                Poll::Pending
            }
        });
        let _ = tokio::time::timeout(limit, woken).await;
    }
}

/// How long a caller waits for a future before it drops it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whim {
    Patient,
    /// Until it has been polled so often; not at all if never.
    Polls(u32),
    /// Until it is woken after so many polls: its answer may be there, and is not taken.
    Wakes(u32),
    Time(Duration),
}

impl Whim {
    /// One in `patience` futures is dropped.
    pub(crate) fn roll(dice: &mut Dice, patience: u64) -> Whim {
        if !dice.chance(1, patience) {
            return Whim::Patient;
        }
        match dice.roll(3) {
            0 => Whim::Polls(dice.roll(3) as u32),
            1 => Whim::Wakes(1 + dice.roll(2) as u32),
            _ => Whim::Time(Duration::from_micros(dice.roll(30_000))),
        }
    }
}

/// The value of a future, or `None` if it was dropped before it had one.
pub(crate) async fn at_whim<F: Future>(whim: Whim, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut polls = 0;
    match whim {
        Whim::Patient => Some(future.await),
        Whim::Polls(most) => {
            poll_fn(|cx| {
                if polls == most {
                    return Poll::Ready(None);
                }
                polls += 1;
                match future.as_mut().poll(cx) {
                    Poll::Pending if polls == most => Poll::Ready(None),
                    other => other.map(Some),
                }
            })
            .await
        }
        Whim::Wakes(most) => {
            poll_fn(|cx| {
                if polls == most {
                    return Poll::Ready(None);
                }
                polls += 1;
                future.as_mut().poll(cx).map(Some)
            })
            .await
        }
        Whim::Time(most) => tokio::time::timeout(most, future).await.ok(),
    }
}
