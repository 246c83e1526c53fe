//! An engine whose calls are answered when the seed says so: frames in order, as the contract demands, and reads, saves
//! and trims in any order. A frame may be durable for a while before its owner is told, a read may see the log as it
//! was when it was asked for or as it is when it is answered, and reads and saves fail now and then with an error that
//! passes.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::types::{Position, ShardId};
use forebay_storage::engine::{
    Appended, BoxFuture, Claim, Durable, Engine, Frame, Image, ReadBudget, Readout, Saved, StorageError,
    StoredFrame,
};
use forebay_storage::memory::MemoryLog;
use tokio::sync::oneshot;

use crate::dice::Dice;

type Receipt = oneshot::Sender<Result<Durable<Position>, StorageError>>;

/// Failures in a row. A call that never succeeds is no matter of these histories.
const FAILURES_MAX: u32 = 2;
/// The error number of a process without free file descriptors, which passes.
const TOO_MANY_FILES: i32 = 24;

pub(super) struct ShellEngine {
    /// Held for the length of one call, during which nothing waits.
    state: Mutex<State>,
}

struct State {
    log: MemoryLog,
    dice: Dice,
    /// Whether calls fail now and then.
    fails: bool,
    failures: u32,
    /// Frames that are not durable yet.
    queue: VecDeque<(Frame, Receipt)>,
    /// Frames that are durable, and whose owner was not told.
    synced: VecDeque<(Durable<Position>, Receipt)>,
    calls: BTreeMap<u64, Call>,
    next: u64,
    counts: Counts,
}

/// The work that was done, to tell whether histories have any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) reads: u64,
    pub(super) saves: u64,
    pub(super) trims: u64,
    pub(super) failures: u64,
}

enum Call {
    Read {
        from: Position,
        budget: ReadBudget,
        /// Recovery does not try again, so its reads do not fail.
        may_fail: bool,
        /// The frames that the log had when the read was asked for, if it is answered with that.
        early: Option<Vec<StoredFrame>>,
        answer: oneshot::Sender<Result<Vec<StoredFrame>, StorageError>>,
    },
    Save {
        image: Image,
        answer: oneshot::Sender<Result<Saved, StorageError>>,
    },
    Trim {
        through: Position,
        answer: oneshot::Sender<Result<(), StorageError>>,
    },
}

impl ShellEngine {
    pub(super) fn new(mut dice: Dice) -> ShellEngine {
        let state = State {
            log: MemoryLog::new(ShardId(0), 12 << 20),
            fails: dice.chance(1, 3),
            dice,
            failures: 0,
            queue: VecDeque::new(),
            synced: VecDeque::new(),
            calls: BTreeMap::new(),
            next: 0,
            counts: Counts::default(),
        };
        ShellEngine { state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> Counts {
        self.state().counts
    }

    pub(super) fn has_work(&self) -> bool {
        let state = self.state();
        !(state.queue.is_empty() && state.synced.is_empty() && state.calls.is_empty())
    }

    /// Does one piece of work, in words.
    pub(super) fn work(&self) -> String {
        let mut state = self.state();
        let state = &mut *state;
        let mut kinds = Vec::new();
        if !state.queue.is_empty() {
            kinds.push(0);
        }
        if !state.synced.is_empty() {
            kinds.push(1);
        }
        if !state.calls.is_empty() {
            kinds.push(2);
        }
        match kinds[state.dice.roll(kinds.len() as u64) as usize] {
            0 => {
                let count = 1 + state.dice.roll(state.queue.len() as u64) as usize;
                state.sync(count);
                format!("the engine makes {count} frames durable")
            }
            1 => {
                let count = 1 + state.dice.roll(state.synced.len() as u64);
                for (position, receipt) in state.synced.drain(..count as usize) {
                    let _ = receipt.send(Ok(position));
                }
                format!("the engine answers for {count} frames")
            }
            _ => {
                let nth = state.dice.roll(state.calls.len() as u64) as usize;
                let id = *state.calls.keys().nth(nth).expect("there are as many");
                let call = state.calls.remove(&id).expect("it is there");
                state.answer(call)
            }
        }
    }

    async fn read_later(
        &self,
        from: Position,
        budget: ReadBudget,
        may_fail: bool,
    ) -> Result<Vec<StoredFrame>, StorageError> {
        let (answer, answered) = oneshot::channel();
        {
            let mut state = self.state();
            let is_early = state.dice.chance(1, 2);
            let early = is_early.then(|| state.log.read(from, budget));
            state.call(Call::Read { from, budget, may_fail, early, answer });
        }
        answered.await.unwrap_or(Err(StorageError::Stopped))
    }

    /// The server dies. Of the calls on their way, frames in order and the others at random have been carried out.
    pub(super) fn crash(&self) {
        let mut state = self.state();
        let waiting = state.queue.len() as u64;
        let kept = state.dice.roll(waiting + 1) as usize;
        state.sync(kept);
        state.queue.clear();
        state.synced.clear();
        for call in std::mem::take(&mut state.calls).into_values() {
            if state.dice.chance(1, 2) {
                state.answer(call);
            }
        }
    }
}

impl State {
    fn sync(&mut self, count: usize) {
        let (mut frames, receipts): (Vec<Frame>, Vec<Receipt>) = self.queue.drain(..count).unzip();
        let mut durable = Vec::new();
        self.log.commit(&mut frames, &mut durable).expect("the frames fit");
        self.synced.extend(durable.into_iter().zip(receipts));
    }

    fn fail(&mut self) -> Option<StorageError> {
        let fails = self.fails && self.failures < FAILURES_MAX && self.dice.chance(1, 8);
        self.failures = if fails { self.failures + 1 } else { 0 };
        self.counts.failures += u64::from(fails);
        fails.then(|| StorageError::Io {
            doing: "open a file".to_owned(),
            source: Arc::new(io::Error::from_raw_os_error(TOO_MANY_FILES)),
        })
    }

    fn answer(&mut self, call: Call) -> String {
        match call {
            Call::Read { from, budget, may_fail, early, answer } => {
                self.counts.reads += 1;
                let read = match may_fail.then(|| self.fail()).flatten() {
                    Some(error) => Err(error),
                    None => Ok(early.unwrap_or_else(|| self.log.read(from, budget))),
                };
                let told = match &read {
                    Ok(frames) => format!("a read from {} brings {} frames", from.0, frames.len()),
                    Err(error) => format!("a read from {} fails: {error}", from.0),
                };
                let _ = answer.send(read);
                told
            }
            Call::Save { image, answer } => {
                self.counts.saves += 1;
                let saved = match self.fail() {
                    Some(error) => Err(error),
                    None => self.log.save(image),
                };
                let told = format!("an image is kept: {}", saved.is_ok());
                let _ = answer.send(saved);
                told
            }
            Call::Trim { through, answer } => {
                self.counts.trims += 1;
                self.log.trim(through);
                let _ = answer.send(Ok(()));
                format!("the log is trimmed through {}", through.0)
            }
        }
    }

    fn call(&mut self, call: Call) {
        self.calls.insert(self.next, call);
        self.next += 1;
    }
}

impl Engine for ShellEngine {
    fn claim(&self, _shard: ShardId) -> BoxFuture<'_, Result<Claim, StorageError>> {
        Box::pin(async move { Ok(self.state().log.claim()) })
    }

    fn append(&self, frame: Frame) -> Appended {
        let (receipt, appended) = Appended::pending();
        self.state().queue.push_back((frame, receipt));
        appended
    }

    fn read(
        &self,
        _shard: ShardId,
        from: Position,
        budget: ReadBudget,
    ) -> BoxFuture<'_, Result<Vec<StoredFrame>, StorageError>> {
        Box::pin(self.read_later(from, budget, false))
    }

    fn read_around(
        &self,
        _shard: ShardId,
        from: Position,
        budget: ReadBudget,
    ) -> BoxFuture<'_, Result<Readout, StorageError>> {
        Box::pin(async move {
            let frames = self.read_later(from, budget, true).await?;
            Ok(Readout { frames, damage: Vec::new() })
        })
    }

    fn save(&self, _shard: ShardId, image: Image) -> BoxFuture<'_, Result<Saved, StorageError>> {
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            self.state().call(Call::Save { image, answer });
            answered.await.unwrap_or(Err(StorageError::Stopped))
        })
    }

    fn trim(&self, _shard: ShardId, through: Position) -> BoxFuture<'_, Result<(), StorageError>> {
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            self.state().call(Call::Trim { through, answer });
            answered.await.unwrap_or(Err(StorageError::Stopped))
        })
    }
}
