//! The customer's side of a webhook: it accepts each event once, or answers why not.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;

/// Called with a customer and an event.
type Take = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// All customers together. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Receiver {
    /// The idempotency keys of the events that arrived, by customer.
    seen: Arc<Mutex<HashSet<(String, String)>>>,
    /// Called with a customer and an event that is new to it.
    take: Take,
}

impl Receiver {
    pub(crate) fn new(take: impl Fn(&str, &str) + Send + Sync + 'static) -> Receiver {
        Receiver { seen: Arc::default(), take: Arc::new(take) }
    }

    pub(crate) fn router(self) -> Router {
        Router::new().route("/{customer}", post(receive)).with_state(self)
    }

    /// Whether the event is new. An event that is sent again after its answer was lost has the same key.
    fn is_new(&self, customer: &str, key: &str) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.insert((customer.to_owned(), key.to_owned()))
    }
}

async fn receive(
    State(receiver): State<Receiver>,
    Path(customer): Path<String>,
    headers: HeaderMap,
    event: String,
) -> Response {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let attempt: u32 = header("forebay-attempt").parse().unwrap_or(1);
    match customer.as_str() {
        // Fails whenever an event arrives for the first time.
        "shaky" if attempt == 1 => (StatusCode::SERVICE_UNAVAILABLE, "down, as so often").into_response(),
        "closed" => (StatusCode::GONE, "we are out of business").into_response(),
        customer => {
            if receiver.is_new(customer, header("idempotency-key")) {
                (receiver.take)(customer, &event);
            }
            StatusCode::NO_CONTENT.into_response()
        }
    }
}
