//! The limits of clients, asked once for all doors: after a client is recognised, and before anything is done for it.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::http::Response;
use forebay_broker::api::{Clock, Entrance, OverLimit, Principal, Seat, Tenant, Turn};
use forebay_core::types::Timestamp;

use crate::http::keeping::Keeping;

/// Tenants whose clients may share one connection, as they do behind a proxy. The seat of a further one replaces the
/// oldest.
const SEATS_MAX: usize = 32;

/// The tenants that a connection counts for.
#[derive(Debug, Default)]
pub(crate) struct Seats(Mutex<Vec<Seat>>);

/// A call of a client that has limits. It counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Call {
    turns: Vec<Turn>,
    clock: Clock,
}

/// Counts the bytes that a client sends.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    tenants: Arc<[Arc<Tenant>]>,
    clock: Clock,
}

/// Begins a call of a client. None: it has no limits.
pub(crate) fn admit(broker: &Entrance, who: &Principal, seats: &Seats) -> Result<Option<Call>, OverLimit> {
    let of = broker.tenants().of(who);
    if of.iter().all(Option::is_none) {
        return Ok(None);
    }
    let clock = broker.clock();
    let (now, mut turns) = (clock.now(), Vec::with_capacity(of.len()));
    // Its own limits first: a client at them takes nothing of what it shares with others.
    for tenant in of.iter().flatten() {
        seats.take(tenant)?;
        turns.push(tenant.begin(now)?);
    }
    Ok(Some(Call { turns, clock }))
}

impl Seats {
    /// A connection counts once for each tenant, however many calls it has.
    fn take(&self, tenant: &Arc<Tenant>) -> Result<(), OverLimit> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !taken.iter().any(|seat| seat.is_of(tenant)) {
            let seat = tenant.connect()?;
            if taken.len() == SEATS_MAX {
                taken.remove(0);
            }
            taken.push(seat);
        }
        Ok(())
    }
}

impl Call {
    pub(crate) fn meter(&self) -> Meter {
        Meter { tenants: self.turns.iter().map(|turn| turn.tenant().clone()).collect(), clock: self.clock }
    }
}

impl Meter {
    #[cfg(test)]
    pub(crate) fn new(tenant: Arc<Tenant>, clock: Clock) -> Meter {
        Meter { tenants: Arc::new([tenant]), clock }
    }

    /// Bytes have come.
    pub(crate) fn charge(&self, bytes: usize) {
        let now = self.clock.now();
        self.tenants.iter().for_each(|tenant| tenant.charge(now, bytes));
    }

    /// Until when the client is to send nothing more.
    pub(crate) fn debt(&self) -> Option<(Clock, Timestamp)> {
        let now = self.clock.now();
        let longest = self.tenants.iter().filter_map(|tenant| tenant.debt(now)).max();
        longest.map(|wait| (self.clock, now + wait))
    }
}

/// An answer, with its call, which ends with it.
pub(crate) fn hold(answer: Response<Body>, call: Option<Call>) -> Response<Body> {
    match call {
        Some(call) if !http_body::Body::is_end_stream(answer.body()) => {
            answer.map(|body| Body::new(Keeping::new(body, call)))
        }
        _ => answer,
    }
}
