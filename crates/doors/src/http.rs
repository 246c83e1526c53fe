//! What every door that speaks HTTP needs.
//!
//! | Module | What it does |
//! | --- | --- |
//! | `accept` | Taking connections, no more than there may be, and letting them end. |
//! | `connection` | Bytes in and out, with deadlines for clients that are silent or slow. |
//! | `serve` | One connection, in the version of HTTP that its client speaks. |
//! | `body` | Reading bodies within limits. |
//! | `intake` | The same for messages of gRPC. |
//! | `outgoing` | Replies that clients have not taken yet. |
//! | `keeping` | A body that keeps something until it has left. |
//! | `hosts` | Which names the server answers to, and pages of which sites may ask. |

pub(crate) mod accept;
pub(crate) mod body;
pub(crate) mod connection;
pub(crate) mod hosts;
#[cfg(any(feature = "kurrent", feature = "native"))]
pub(crate) mod intake;
pub(crate) mod keeping;
pub(crate) mod outgoing;
#[cfg(any(feature = "kurrent", feature = "native"))]
pub(crate) mod serve;

use std::any::Any;
use std::fmt::Display;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::Poll;

use forebay_broker::api::DoorStats;

/// Runs a call. If it panics, there is no answer, the log says so, and no other call is affected.
pub(crate) async fn unharmed<T>(
    stats: &DoorStats,
    name: impl Display,
    call: impl Future<Output = T>,
) -> Option<T> {
    let mut call = Box::pin(call);
    let ended = std::future::poll_fn(move |cx| {
        match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut call).poll(cx))) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    });
    match ended.await {
        Ok(answer) => Some(answer),
        Err(panic) => {
            stats.panics.fetch_add(1, Ordering::Relaxed);
            tracing::error!(door = stats.name, call = %name, panic = panic_text(&*panic), "a handler panicked");
            None
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a text")
}
