//! The limits of clients, asked once for all doors: after a client is recognised, and before anything is done for it.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::http::Response;
use forebay_broker::api::{Clock, Entrance, OverLimit, Principal, Seat, Tenant, Turn};
use forebay_core::types::Timestamp;

use crate::http::keeping::Keeping;

/// Tenants whose clients may share one connection, as they do behind a proxy. The seat of a further one replaces the
/// oldest.
const SEATS_MAX: usize = 16;

/// The tenants that a connection counts for.
#[derive(Debug, Default)]
pub(crate) struct Seats(Mutex<Vec<Seat>>);

/// A call of a client that has limits. It counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Call {
    turn: Turn,
    clock: Clock,
}

/// Counts the bytes that a client sends.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    tenant: Arc<Tenant>,
    clock: Clock,
}

/// Begins a call of a client. None: it has no limits.
pub(crate) fn admit(broker: &Entrance, who: &Principal, seats: &Seats) -> Result<Option<Call>, OverLimit> {
    let Some(tenant) = broker.tenants().of(who) else { return Ok(None) };
    let mut taken = seats.0.lock().unwrap_or_else(PoisonError::into_inner);
    if !taken.iter().any(|seat| seat.is_of(&tenant)) {
        let seat = tenant.connect()?;
        if taken.len() == SEATS_MAX {
            taken.remove(0);
        }
        taken.push(seat);
    }
    drop(taken);
    let clock = broker.clock();
    Ok(Some(Call { turn: tenant.begin(clock.now())?, clock }))
}

impl Call {
    pub(crate) fn meter(&self) -> Meter {
        Meter { tenant: self.turn.tenant().clone(), clock: self.clock }
    }
}

impl Meter {
    #[cfg(test)]
    pub(crate) fn new(tenant: Arc<Tenant>, clock: Clock) -> Meter {
        Meter { tenant, clock }
    }

    /// Bytes have come.
    pub(crate) fn charge(&self, bytes: usize) {
        self.tenant.charge(self.clock.now(), bytes);
    }

    /// Until when the client is to send nothing more.
    pub(crate) fn debt(&self) -> Option<(Clock, Timestamp)> {
        let now = self.clock.now();
        self.tenant.debt(now).map(|wait| (self.clock, now + wait))
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
