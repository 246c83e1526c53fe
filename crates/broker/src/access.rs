//! Who may do what. Every verb of a [`Caller`](crate::caller::Caller) asks [`authorize`] first, so a door
//! cannot forget to, and there is one place to read.
//!
//! For now every client that can connect is the owner, which is why a server without authentication listens
//! on addresses of its own machine only.

use std::fmt;
use std::sync::Arc;

use forebay_core::types::{GroupName, StreamName};

use crate::door::Door;

/// A client that a door has recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    name: Arc<str>,
    role: Role,
}

/// The rights of a principal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Owner,
    /// Nothing.
    Nobody,
}

impl Principal {
    pub fn new(name: &str, role: Role) -> Principal {
        Principal { name: name.into(), role }
    }

    /// A client on the machine that the server runs on.
    pub fn owner() -> Principal {
        Principal::new("owner", Role::Owner)
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A right that a verb needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    Publish,
    /// Take messages out of a group and settle them.
    Consume,
    /// See messages without taking them.
    Read,
    /// See settings and figures.
    Look,
    Create,
    Change,
    /// Pause, resume, reset, purge.
    Operate,
    /// Replay, discard and resubmit parked messages; move waiting messages to another stream.
    Triage,
    Delete,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Right::Publish => "publish",
            Right::Consume => "consume",
            Right::Read => "read",
            Right::Look => "look",
            Right::Create => "create",
            Right::Change => "change",
            Right::Operate => "operate",
            Right::Triage => "triage",
            Right::Delete => "delete",
        })
    }
}

/// The object of a right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource<'a> {
    Server,
    /// The messages of all streams, in their order.
    Log,
    Stream(&'a StreamName),
    Group(&'a StreamName, &'a GroupName),
    /// The notes of a door.
    Notes(Door),
}

impl fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::Server => f.write_str("the server"),
            Resource::Log => f.write_str("the log"),
            Resource::Stream(stream) => write!(f, "{stream}"),
            Resource::Group(stream, group) => write!(f, "{stream}/{group}"),
            Resource::Notes(door) => write!(f, "the notes of door {door}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not allowed. who=`{who}` action=`{action}` what=`{what}`")]
pub struct Denied {
    pub who: Arc<str>,
    pub action: Right,
    pub what: String,
}

pub fn authorize(who: &Principal, action: Right, what: Resource<'_>) -> Result<(), Denied> {
    match who.role {
        Role::Owner => Ok(()),
        Role::Nobody => Err(Denied { who: who.name.clone(), action, what: what.to_string() }),
    }
}
