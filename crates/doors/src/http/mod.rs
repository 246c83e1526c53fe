//! What every door that speaks HTTP needs.
//!
//! | Module | What it does |
//! | --- | --- |
//! | `accept` | Taking connections, no more than there may be, and letting them end. |
//! | `connection` | Bytes in and out, with deadlines for those who are silent or slow. |
//! | `body` | Reading bodies within limits. |
//! | `hosts` | Which names the server answers to, and pages of which sites may ask. |

pub(crate) mod accept;
pub(crate) mod body;
pub(crate) mod connection;
pub(crate) mod hosts;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

/// Runs a call. If it panics, there is no answer, and nobody else notices.
pub(crate) async fn unharmed<T>(call: impl Future<Output = T>) -> Option<T> {
    let mut call = Box::pin(call);
    std::future::poll_fn(move |cx| match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut call).poll(cx))) {
        Ok(polled) => polled.map(Some),
        Err(_) => Poll::Ready(None),
    })
    .await
}
