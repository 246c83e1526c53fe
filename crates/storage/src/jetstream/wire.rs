//! The way to the servers: letters that are sent, answered and listened for. `Nats` is
//! the real one. The simulator has another, with servers that are part of its history.

use bytes::Bytes;

use crate::engine::BoxFuture;

/// The sequence that the stream must end with, or the letter is refused.
pub const EXPECTED_LAST: &str = "Nats-Expected-Last-Sequence";
/// The same for the last message of its subject.
pub const EXPECTED_LAST_OF_SUBJECT: &str = "Nats-Expected-Last-Subject-Sequence";
pub const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
/// Of a message that is stored: its sequence.
pub const SEQUENCE: &str = "Nats-Sequence";
/// When the leader of that moment stored the message, by its clock.
pub const STAMP: &str = "Nats-Time-Stamp";

/// A message to or from a server. It has the headers that are named above, and no others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Letter {
    pub subject: String,
    pub reply: Option<String>,
    pub headers: Vec<(&'static str, String)>,
    /// Of an answer that is no message: its status, and what the server says of it.
    pub status: Option<u16>,
    pub description: Option<String>,
    pub payload: Bytes,
}

impl Letter {
    pub fn new(subject: impl Into<String>, payload: impl Into<Bytes>) -> Letter {
        Letter { subject: subject.into(), payload: payload.into(), ..Letter::default() }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl ToString) -> Letter {
        self.headers.push((name, value.to_string()));
        self
    }
}

/// What a server says about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    pub name: String,
    pub version: String,
    pub has_jetstream: bool,
    /// The largest message that it takes.
    pub payload_max: usize,
}

/// A connection. One that is lost comes back by itself, and letters of the meantime may be sent late, or never.
pub trait Wire: Send + Sync + 'static {
    /// Sends a letter, in the order of the calls.
    fn send(&self, letter: Letter) -> BoxFuture<'_, Result<(), String>>;
    /// Sends a letter and waits for its answer, for a limited time.
    fn request(&self, letter: Letter) -> BoxFuture<'_, Result<Letter, String>>;
    /// Letters to a subject from now on.
    fn listen(&self, subject: String) -> BoxFuture<'_, Result<Box<dyn Letters>, String>>;
    /// A subject that no other connection listens to.
    fn inbox(&self) -> String;
    /// Resolves when all letters have left.
    fn flush(&self) -> BoxFuture<'_, ()>;
    /// Connects to another server, or to the same one again. A client finds out too late by itself that a server does
    /// not answer any more.
    fn change_server(&self) -> BoxFuture<'_, ()>;
    fn about(&self) -> About;
}

/// Letters that come in.
pub trait Letters: Send {
    /// The next one. `None`: there are no more. Nothing is lost if the future is dropped.
    fn next(&mut self) -> BoxFuture<'_, Option<Letter>>;
}
