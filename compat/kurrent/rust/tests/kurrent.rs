//! The official client of KurrentDB for Rust, against our own server. `FOREBAY_BIN` names the program.

#[path = "kurrent/persistent.rs"]
mod persistent;
#[path = "kurrent/server.rs"]
mod server;
#[path = "kurrent/streams.rs"]
mod streams;

use std::time::Duration;

use bytes::Bytes;
use kurrentdb::{AppendToStreamOptions, Client, EventData, StreamState};
use uuid::Uuid;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a test looks for an event that must not come.
const A_WHILE: Duration = Duration::from_millis(400);

/// Waits for it, but not for ever.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

/// Asks again and again until the answer fits.
async fn eventually<T, F: Future<Output = T>>(ask: impl Fn() -> F, fits: impl Fn(&T) -> bool) -> T {
    soon(async {
        loop {
            let answer = ask().await;
            if fits(&answer) {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

fn client_of(url: &str) -> Client {
    Client::new(url.parse().expect("a connection string")).expect("a client")
}

/// A name that no other test uses.
fn unique(stem: &str) -> String {
    format!("{stem}-{}", Uuid::new_v4().simple())
}

/// Events of a type, whose data are their numbers.
fn events(kind: &str, count: usize) -> Vec<EventData> {
    (0..count).map(|n| EventData::binary(kind, Bytes::from(n.to_string()))).collect()
}

async fn append(client: &Client, stream: &str, kind: &str, count: usize) {
    client
        .append_to_stream(stream, &AppendToStreamOptions::default(), events(kind, count))
        .await
        .expect("appended");
}

fn expecting(state: StreamState) -> AppendToStreamOptions {
    AppendToStreamOptions::default().stream_state(state)
}
