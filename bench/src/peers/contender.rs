//! What a server must be able to do to be measured: start, be killed, take messages, hand them out.
//!
//! Every contender is driven by the same load through these traits, and each speaks its server's own
//! protocol as sparingly as it can: a slow client would be counted against the server, since both share
//! the machine. Whatever may be batched without changing the promises is batched.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use bytes::Bytes;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// What a contender does for the load: boxed, for once in a batch it does not matter.
pub(crate) type Step<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// What the report says of a contender.
#[derive(Debug, Clone)]
pub(crate) struct About {
    /// Short and unique, without spaces: `redis-always`.
    pub(crate) id: &'static str,
    /// For the table: `Redis Streams, fsync always`.
    pub(crate) name: String,
    /// What the program itself says: `7.0.15`.
    pub(crate) version: String,
    /// Settings that are not the program's own defaults, and how the load uses it.
    pub(crate) settings: String,
    /// Whether a message whose publish was confirmed is there after the power was cut.
    pub(crate) survives_power_loss: bool,
    /// Whether a consumer acks messages one by one. A log knows only how far a consumer has come.
    pub(crate) acks_each: bool,
}

/// What a workload needs of the queue.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    /// Unique in a run, of lowercase letters, digits and `-`: a queue that was not used before.
    pub(crate) queue: String,
    /// Groups that each get every message.
    pub(crate) groups: usize,
    /// Messages of one key are to be handled in order, one at a time.
    pub(crate) is_ordered: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) key: Option<u32>,
    pub(crate) body: Bytes,
}

pub(crate) trait Contender: Send + Sync {
    fn about(&self) -> &About;

    /// Why it cannot do this, if it cannot. The report says so in the cell.
    fn lacks(&self, shape: &Shape) -> Option<&'static str>;

    /// Why it has no part in a workload, if it has none: for floors, which are not whole servers.
    fn skips(&self, _workload: &str) -> Option<&'static str> {
        None
    }

    /// Where it keeps files `segment-N` that it fills with zeros before it writes to them, if it does: what
    /// that costs is told apart from what messages cost.
    fn segments(&self, _folder: &Path) -> Option<PathBuf> {
        None
    }

    /// Runs the server on a port of its own. The folder may hold what an earlier run of the same contender
    /// left when it was killed; then it must serve that. Returns when the server answers.
    fn start<'a>(&'a self, folder: &'a Path) -> Step<'a, Box<dyn Running>>;
}

/// A server that runs. Dropping it kills it, and everything that it started.
pub(crate) trait Running: Send + Sync {
    /// The processes whose memory and processor time are the server's; their children are counted too.
    fn processes(&self) -> Vec<u32>;

    /// Creates the queue and its groups. Nothing to do if they are there.
    fn prepare<'a>(&'a self, shape: &'a Shape) -> Step<'a, ()>;

    fn producer<'a>(&'a self, shape: &'a Shape) -> Step<'a, Box<dyn Producer>>;

    /// One of the consumers of a group (numbered from 0), with at most `prefetch` messages unacked.
    fn consumer<'a>(&'a self, shape: &'a Shape, group: usize, prefetch: usize)
    -> Step<'a, Box<dyn Consumer>>;
}

/// One connection that publishes.
pub(crate) trait Producer: Send {
    /// Sends them all and does not wait for confirmations.
    fn send<'a>(&'a mut self, messages: &'a [Message]) -> Step<'a, ()>;

    /// Waits until the server confirmed more, and says how many. Nothing is lost when it is dropped early.
    fn confirmed(&mut self) -> Step<'_, usize>;
}

/// One connection that consumes.
pub(crate) trait Consumer: Send {
    /// Waits for messages, at least one, and gives their bodies. Nothing is lost when it is dropped early.
    fn receive(&mut self) -> Step<'_, Vec<Bytes>>;

    /// Acks all that [`receive`](Consumer::receive) gave last, each by itself as far as the server is
    /// concerned.
    fn ack(&mut self) -> Step<'_, ()>;

    /// Waits until all acks are known to have arrived, as far as the protocol can tell.
    fn settle(&mut self) -> Step<'_, ()>;
}
