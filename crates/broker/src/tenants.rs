//! Limits of clients and of streams, so that one of them cannot take everything that the others need.
//!
//! A file says them, a name or a pattern and its limits on each line:
//!
//! ```text
//! # client or streams      limits
//! ci                       requests=100,bytes=1MiB
//! team-a-*                 connections=50,in_flight=200
//! stream:team-a-*          streams=100,stored_bytes=10GiB
//! ```
//!
//! All clients of a line share its limits, and so do all streams of a line: the line is a [`Tenant`]. A line with the
//! very name counts before one with a pattern, and the first pattern before later ones. The client without a
//! credential, who owns the server, has no limits of its own.
//!
//! A credential may have limits of its own too, which are stored with it. It is then a tenant by itself, beside the
//! line that its name may have, and a call must be within the limits of both.

mod bucket;
mod limits;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use forebay_core::types::{StreamName, Timestamp};

use crate::access::{Glob, Principal};
use crate::broker::Entrance;
use crate::error::CallError;
use bucket::Bucket;

pub use limits::{ClientLimits, Limit, LimitError, LimitsError, Subject};

/// Lines of the file with names, and with patterns.
pub const TENANTS_MAX: usize = 10_000;
pub const TENANT_PATTERNS_MAX: usize = 100;
/// How long a client waits that has as many connections or calls as it may, and for a new look at streams.
const LATER: Duration = Duration::from_secs(1);
/// Streams that are looked at together.
const PAGE: usize = 1_000;

/// A client, or streams, at a limit. Nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is reached. tenant=`{tenant}` limit=`{}={value}`", limit.sentence(), limit.name())]
pub struct OverLimit {
    pub limit: Limit,
    pub value: u64,
    /// The line of the limits, as it is written.
    pub tenant: Arc<str>,
    /// When it may be less, from now.
    pub retry_after: Duration,
}

/// How often calls were refused: the name of the tenant, the limit and the count.
pub type Refusals = (Arc<str>, Limit, u64);

/// One line: clients or streams that share limits. Or one credential.
#[derive(Debug)]
pub struct Tenant {
    name: Arc<str>,
    glob: Glob,
    /// Zero: none.
    limits: [AtomicU64; Limit::ALL.len()],
    refused: [AtomicU64; Limit::ALL.len()],
    requests: Bucket,
    bytes: Bucket,
    connections: AtomicU64,
    in_flight: AtomicU64,
    /// Locked for one question.
    streams: Mutex<Measured>,
}

/// The streams of a tenant, as of the last look, with additions since.
#[derive(Debug, Default)]
struct Measured {
    names: BTreeSet<StreamName>,
    bytes: u64,
}

/// A connection that counts for its tenant until it is dropped.
#[derive(Debug)]
pub struct Seat(Arc<Tenant>);

/// A call that counts for its tenant until it is dropped.
#[derive(Debug)]
pub struct Turn(Arc<Tenant>);

impl Tenant {
    fn new(line: &limits::Line) -> Tenant {
        let tenant = Tenant::named(&line.name, line.glob.clone());
        tenant.change(line);
        tenant
    }

    /// A credential with limits of its own.
    pub(crate) fn of_credential(id: &str, limits: ClientLimits) -> Tenant {
        let tenant = Tenant::named(&format!("id:{id}"), Glob::literal(id));
        tenant.set(limits.0);
        tenant
    }

    fn named(name: &str, glob: Glob) -> Tenant {
        Tenant {
            name: name.into(),
            glob,
            limits: Default::default(),
            refused: Default::default(),
            requests: Bucket::default(),
            bytes: Bucket::default(),
            connections: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            streams: Mutex::default(),
        }
    }

    fn change(&self, line: &limits::Line) {
        self.set(line.values);
    }

    fn set(&self, values: [Option<u64>; Limit::ALL.len()]) {
        for (limit, value) in self.limits.iter().zip(values) {
            limit.store(value.unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// How often it was refused, by limit.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = Refusals> {
        let one = |limit: Limit| {
            let count = self.refused[limit as usize].load(Ordering::Relaxed);
            (self.name.clone(), limit, count)
        };
        Limit::ALL.map(one).into_iter().filter(|(_, _, count)| *count > 0)
    }

    fn limit(&self, limit: Limit) -> Option<u64> {
        Some(self.limits[limit as usize].load(Ordering::Relaxed)).filter(|value| *value > 0)
    }

    /// The limits, as they are written.
    fn text(&self) -> String {
        limits::text(Limit::ALL.map(|limit| self.limit(limit)))
    }

    #[cold]
    fn over(&self, limit: Limit, value: u64, retry_after: Duration) -> OverLimit {
        self.refused[limit as usize].fetch_add(1, Ordering::Relaxed);
        OverLimit { limit, value, tenant: self.name.clone(), retry_after }
    }

    /// Takes one of a number, if there is one.
    fn occupy(&self, limit: Limit, count: &AtomicU64) -> Result<(), OverLimit> {
        let most = self.limit(limit);
        if count.fetch_add(1, Ordering::Relaxed) >= most.unwrap_or(u64::MAX) {
            count.fetch_sub(1, Ordering::Relaxed);
            return Err(self.over(limit, most.unwrap_or(0), LATER));
        }
        Ok(())
    }

    /// A connection of the tenant begins.
    pub fn connect(self: &Arc<Tenant>) -> Result<Seat, OverLimit> {
        self.occupy(Limit::Connections, &self.connections)?;
        Ok(Seat(self.clone()))
    }

    /// A call of the tenant begins.
    pub fn begin(self: &Arc<Tenant>, now: Timestamp) -> Result<Turn, OverLimit> {
        if let Some(rate) = self.limit(Limit::Bytes)
            && let Some(wait) = self.bytes.debt(now)
        {
            return Err(self.over(Limit::Bytes, rate, wait));
        }
        self.occupy(Limit::InFlight, &self.in_flight)?;
        let turn = Turn(self.clone());
        if let Some(rate) = self.limit(Limit::Requests)
            && let Err(wait) = self.requests.take(now, rate)
        {
            return Err(self.over(Limit::Requests, rate, wait));
        }
        Ok(turn)
    }

    fn may_grow(&self, stream: &StreamName, bytes: Option<u64>) -> Result<(), OverLimit> {
        let (streams_max, bytes_max) = (self.limit(Limit::Streams), self.limit(Limit::StoredBytes));
        let mut measured = self.measured();
        if let (Some(most), Some(bytes)) = (bytes_max, bytes) {
            if measured.bytes >= most {
                return Err(self.over(Limit::StoredBytes, most, LATER));
            }
            measured.bytes = measured.bytes.saturating_add(bytes);
        }
        if let Some(most) = streams_max
            && !measured.names.contains(stream)
        {
            if measured.names.len() as u64 >= most {
                return Err(self.over(Limit::Streams, most, LATER));
            }
            measured.names.insert(stream.clone());
        }
        Ok(())
    }

    fn measured(&self) -> MutexGuard<'_, Measured> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    pub fn is_of(&self, tenant: &Arc<Tenant>) -> bool {
        Arc::ptr_eq(&self.0, tenant)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Turn {
    pub fn tenant(&self) -> &Arc<Tenant> {
        &self.0
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Tenant {
    /// Bytes have come that the tenant sent. They count also where it may send no more for now.
    pub fn charge(&self, now: Timestamp, bytes: usize) {
        if let Some(rate) = self.limit(Limit::Bytes) {
            self.bytes.charge(now, rate, bytes as u64);
        }
    }

    /// How long the tenant may send nothing more.
    pub fn debt(&self, now: Timestamp) -> Option<Duration> {
        self.limit(Limit::Bytes).and_then(|_| self.bytes.debt(now))
    }
}

/// All tenants of a server.
#[derive(Debug, Default)]
pub struct Tenants {
    /// Whether there are any: looked at for each call, and for each batch.
    has_clients: AtomicBool,
    has_streams: AtomicBool,
    /// Replaced whole, and locked for a look-up only.
    lines: RwLock<Lines>,
}

#[derive(Debug, Default, Clone)]
struct Lines {
    names: HashMap<Arc<str>, Arc<Tenant>>,
    patterns: Vec<Arc<Tenant>>,
    streams: Vec<Arc<Tenant>>,
}

impl Lines {
    fn client(&self, name: &str) -> Option<&Arc<Tenant>> {
        self.names.get(name).or_else(|| self.patterns.iter().find(|tenant| tenant.glob.matches(name)))
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Tenant>> {
        self.names.values().chain(&self.patterns).chain(&self.streams)
    }
}

impl Tenants {
    /// From now on these limits count. Calls and connections of lines that stay go on counting.
    pub fn replace(&self, text: &str) -> Result<(), LimitsError> {
        let lines = limits::read(text)?;
        let before = self.lines().clone();
        let known: HashMap<&str, &Arc<Tenant>> = before.all().map(|tenant| (&*tenant.name, tenant)).collect();
        let mut after = Lines::default();
        for line in &lines {
            let tenant = match known.get(line.name.as_str()) {
                Some(tenant) => {
                    tenant.change(line);
                    (*tenant).clone()
                }
                None => Arc::new(Tenant::new(line)),
            };
            match (line.subject, tenant.glob.is_literal()) {
                (Subject::Streams, _) => after.streams.push(tenant),
                (Subject::Clients, true) => drop(after.names.insert(tenant.name.clone(), tenant)),
                (Subject::Clients, false) => after.patterns.push(tenant),
            }
        }
        let has_clients = !after.names.is_empty() || !after.patterns.is_empty();
        let has_streams = !after.streams.is_empty();
        *self.lines.write().unwrap_or_else(PoisonError::into_inner) = after;
        self.has_clients.store(has_clients, Ordering::Release);
        self.has_streams.store(has_streams, Ordering::Release);
        Ok(())
    }

    /// The tenants that a client belongs to: that of its credential, and that of its line.
    pub fn of(&self, who: &Principal) -> [Option<Arc<Tenant>>; 2] {
        [who.tenant().cloned(), self.line_of(who)]
    }

    /// The tenant of the line that a client's name has.
    pub fn line_of(&self, who: &Principal) -> Option<Arc<Tenant>> {
        if !self.has_clients.load(Ordering::Acquire) || who.is_owner() {
            return None;
        }
        self.lines().client(who.name()).cloned()
    }

    /// The limits of a client with this name, as they are written.
    pub(crate) fn limits_of(&self, name: &str) -> Option<String> {
        self.lines().client(name).map(|tenant| tenant.text())
    }

    /// Refuses a batch of so many bytes for a stream at a limit, or one for a new stream.
    pub(crate) fn may_publish(&self, stream: &StreamName, bytes: usize) -> Result<(), OverLimit> {
        self.may_grow(stream, Some(bytes as u64))
    }

    /// Refuses a new stream.
    pub(crate) fn may_create(&self, stream: &StreamName) -> Result<(), OverLimit> {
        self.may_grow(stream, None)
    }

    fn may_grow(&self, stream: &StreamName, bytes: Option<u64>) -> Result<(), OverLimit> {
        if !self.has_streams.load(Ordering::Acquire) {
            return Ok(());
        }
        let found = self.lines().streams.iter().find(|tenant| tenant.glob.matches(stream.as_str())).cloned();
        found.map_or(Ok(()), |tenant| tenant.may_grow(stream, bytes))
    }

    /// How often clients and streams were refused, by the line and its limit.
    pub fn refusals(&self) -> Vec<Refusals> {
        let mut all: Vec<_> = self.lines().all().flat_map(|tenant| tenant.refusals()).collect();
        all.sort();
        all
    }

    /// Looks at all streams, if there are limits for any. To be called about once a second.
    pub async fn measure(&self, broker: &Entrance) -> Result<(), CallError> {
        if !self.has_streams.load(Ordering::Acquire) {
            return Ok(());
        }
        let tenants = self.lines().streams.clone();
        let mut found: Vec<Measured> = tenants.iter().map(|_| Measured::default()).collect();
        let owner = broker.enter(Principal::owner(), None);
        let mut after = None;
        loop {
            let page = owner.streams(after.take(), PAGE).await?;
            for stream in page.items {
                let of = tenants.iter().position(|tenant| tenant.glob.matches(stream.name.as_str()));
                let Some(measured) = of.map(|at| &mut found[at]) else { continue };
                measured.bytes = measured.bytes.saturating_add(stream.figures.bytes);
                measured.names.insert(stream.name);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        for (tenant, measured) in tenants.iter().zip(found) {
            *tenant.measured() = measured;
        }
        Ok(())
    }

    fn lines(&self) -> std::sync::RwLockReadGuard<'_, Lines> {
        self.lines.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
