//! Who may do what. Every verb of a [`Caller`](crate::caller::Caller) asks [`authorize`] first, so a door
//! cannot forget to, and there is one place to read.
//!
//! A principal is the owner, who may do everything, or has [`Grants`]. Rights are asked for before anything is looked
//! up, so a principal without a right gets the same answer whether the thing exists or not.

mod grants;
mod standing;

use std::fmt;
use std::sync::Arc;

use forebay_core::types::{GroupName, StreamName, Timestamp};

use crate::clock::Clock;
use crate::door::Door;
use crate::tenants::Tenant;

pub(crate) use grants::Glob;
pub(crate) use standing::Standing;

pub use grants::{Action, GRANTS_BYTES_MAX, GRANTS_MAX, GrantError, Grants, ROLES};

const OWNER: &str = "owner";
/// The stream with the records of the audit. Only the server writes it, and only administrators read it.
pub const AUDIT_STREAM: &str = "$audit";

/// A client that a door has recognised.
#[derive(Debug, Clone)]
pub struct Principal {
    name: Arc<str>,
    /// None: everything.
    grants: Option<Grants>,
    /// Of a principal that was recognised by a credential, which may be revoked.
    standing: Option<Arc<Standing>>,
    /// Of a credential that has limits of its own.
    tenant: Option<Arc<Tenant>>,
    /// The server itself, which keeps the audit.
    is_server: bool,
}

impl Principal {
    /// A client with these rights.
    pub fn new(name: &str, grants: Grants) -> Principal {
        Principal { grants: Some(grants), ..Principal::owner_as(name) }
    }

    /// A client on the machine that the server runs on, or the server itself.
    pub fn owner() -> Principal {
        Principal { name: OWNER.into(), grants: None, standing: None, tenant: None, is_server: false }
    }

    /// The server itself, for the records of the audit.
    pub fn server() -> Principal {
        Principal { name: "server".into(), is_server: true, ..Principal::owner() }
    }

    /// As the owner, under another name.
    pub fn owner_as(name: &str) -> Principal {
        Principal { name: name.into(), ..Principal::owner() }
    }

    /// Whether it is the owner itself: the client that needs no credential.
    pub fn is_owner(&self) -> bool {
        self.grants.is_none() && &*self.name == OWNER
    }

    /// A client with these rights, until [`Principal::end`].
    pub fn revocable(name: &str, grants: Grants) -> Principal {
        Principal::with_standing(name, grants, Arc::new(Standing::new(None)))
    }

    /// A client with these rights, until [`Principal::end`] or this time.
    pub fn until(name: &str, grants: Grants, expires: Timestamp) -> Principal {
        Principal::with_standing(name, grants, Arc::new(Standing::new(Some(expires))))
    }

    /// Nothing is done in its name any more, by any clone of it.
    pub fn end(&self) {
        if let Some(standing) = &self.standing {
            standing.end();
        }
    }

    pub(crate) fn with_standing(name: &str, grants: Grants, standing: Arc<Standing>) -> Principal {
        Principal { standing: Some(standing), ..Principal::new(name, grants) }
    }

    pub(crate) fn with_tenant(self, tenant: Option<Arc<Tenant>>) -> Principal {
        Principal { tenant, ..self }
    }

    pub(crate) fn tenant(&self) -> Option<&Arc<Tenant>> {
        self.tenant.as_ref()
    }

    /// The rights that it has. None: everything.
    pub fn grants(&self) -> Option<&Grants> {
        self.grants.as_ref()
    }

    /// Whether its credential may be revoked or expire while it is served.
    pub fn may_end(&self) -> bool {
        self.standing.is_some()
    }

    /// Resolves when its credential is revoked or expires.
    pub fn ended(&self, clock: Clock) -> impl Future<Output = ()> + Send + use<> {
        let standing = self.standing.clone();
        async move {
            match standing {
                Some(standing) => standing.ended(clock).await,
                None => std::future::pending().await,
            }
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn name_shared(&self) -> Arc<str> {
        self.name.clone()
    }

    fn allows(&self, right: Right, what: Resource<'_>) -> bool {
        if what.is_audit() {
            return self.is_server || (right.only_looks() && self.administers());
        }
        let Some(grants) = &self.grants else { return true };
        self.is_in_force() && grants.allow(right, what)
    }

    fn administers(&self) -> bool {
        let administers = |grants: &Grants| grants.allow(Right::Administer, Resource::Server);
        self.grants.as_ref().is_none_or(|grants| self.is_in_force() && administers(grants))
    }

    /// Whether its credential was not revoked.
    pub(crate) fn is_in_force(&self) -> bool {
        self.standing.as_ref().is_none_or(|standing| !standing.has_ended())
    }

    /// Whether it may see anything in a list.
    fn sees_some(&self) -> bool {
        self.grants.as_ref().is_none_or(|grants| self.is_in_force() && grants.are_some())
    }

    /// Whether it sees everything, so that lists need not be looked through.
    pub(crate) fn sees_all(&self) -> bool {
        self.grants.is_none()
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
    /// See parked messages.
    Inspect,
    /// See settings and figures.
    Look,
    Create,
    Change,
    /// Pause, resume, reset, purge.
    Operate,
    /// Replay, discard, move and resubmit parked messages; move waiting messages to another stream.
    Triage,
    Delete,
    /// Manage credentials.
    Administer,
}

impl Right {
    fn only_looks(self) -> bool {
        matches!(self, Right::Read | Right::Inspect | Right::Look)
    }

    /// The action that a credential needs for it, as grants name it. Some rights come with further actions too.
    pub fn action(self) -> Action {
        match self {
            Right::Publish => Action::Publish,
            Right::Consume => Action::Consume,
            Right::Read | Right::Inspect => Action::Read,
            Right::Look => Action::View,
            Right::Create | Right::Change | Right::Delete => Action::Configure,
            Right::Operate => Action::Operate,
            Right::Triage => Action::Triage,
            Right::Administer => Action::Admin,
        }
    }

    pub const ALL: [Right; 11] = [
        Right::Publish,
        Right::Consume,
        Right::Read,
        Right::Inspect,
        Right::Look,
        Right::Create,
        Right::Change,
        Right::Operate,
        Right::Triage,
        Right::Delete,
        Right::Administer,
    ];
}

impl Right {
    pub fn word(self) -> &'static str {
        match self {
            Right::Publish => "publish",
            Right::Consume => "consume",
            Right::Read => "read",
            Right::Inspect => "inspect",
            Right::Look => "look",
            Right::Create => "create",
            Right::Change => "change",
            Right::Operate => "operate",
            Right::Triage => "triage",
            Right::Delete => "delete",
            Right::Administer => "administer",
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The object of a right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource<'a> {
    Server,
    Stream(&'a StreamName),
    Group(&'a StreamName, &'a GroupName),
    /// Every stream whose name begins with this, those of the system excepted.
    StreamsOf(&'a str),
    /// All notes of a door. A note beside a stream is a part of that stream.
    Notes(Door),
}

impl Resource<'_> {
    /// Whether it is the stream of the audit, or a group of it.
    fn is_audit(&self) -> bool {
        match self {
            Resource::Stream(stream) | Resource::Group(stream, _) => stream.as_str() == AUDIT_STREAM,
            Resource::Server | Resource::StreamsOf(_) | Resource::Notes(_) => false,
        }
    }
}

impl fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::Server => f.write_str("the server"),
            Resource::Stream(stream) => write!(f, "{stream}"),
            Resource::Group(stream, group) => write!(f, "{stream}/{group}"),
            Resource::StreamsOf(prefix) => write!(f, "{prefix}*"),
            Resource::Notes(door) => write!(f, "the notes of door {door}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not allowed: the right `{}` is missing. who=`{who}` action=`{action}` what=`{what}`", action.action().name())]
pub struct Denied {
    pub who: Arc<str>,
    pub action: Right,
    pub what: String,
}

/// Decides whether a principal has a right.
pub fn authorize(who: &Principal, action: Right, what: Resource<'_>) -> Result<(), Denied> {
    if who.allows(action, what) { Ok(()) } else { Err(denied(who, action, what)) }
}

/// Decides whether a principal may ask for a list, which then has only what it may see.
pub(crate) fn authorize_list(who: &Principal, what: Resource<'_>) -> Result<(), Denied> {
    if who.sees_some() { Ok(()) } else { Err(denied(who, Right::Look, what)) }
}

/// Whether a principal may know that a thing exists.
pub(crate) fn sees(who: &Principal, what: Resource<'_>) -> bool {
    who.allows(Right::Look, what)
}

#[cold]
fn denied(who: &Principal, action: Right, what: Resource<'_>) -> Denied {
    Denied { who: who.name.clone(), action, what: what.to_string() }
}
