//! Updates of an open page, as server-sent events.
//!
//! The page is written again when there is a new snapshot, and the parts that differ from the ones that were sent
//! last are sent. On a server where nothing happens there are no new snapshots, so nothing is written and nothing
//! is sent but a sign of life.
//!
//! Pages at the same address that clients with every right have open are written once for all of them. A client whose
//! rights are limited, or may end, has its pages written for itself.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use forebay_broker::api::Stage;
use tokio::sync::mpsc;

use super::super::failure::Failure;
use super::super::sse::{HEARTBEAT_TEXT, begin, write_event};
use super::view::Fragment;
use super::{Dashboard, Visit};

/// How long a page waits for the first snapshot of a server that has just started.
pub(super) const FIRST_SNAPSHOT: Duration = Duration::from_secs(10);
/// A page is written at least this often: a chart moves on while nothing happens.
const AT_LEAST_EVERY: Duration = Duration::from_secs(15);

/// A page that was written this long ago is sent to other clients as it is, if nothing has happened since; in
/// microseconds.
const SHARED_FOR: u64 = 5_000_000;

/// The pages that are open now, by their address, for clients that see the same.
#[derive(Default)]
pub(super) struct Rooms(Mutex<HashMap<String, Weak<Room>>>);

/// One page, however many clients have it open.
#[derive(Default)]
struct Room {
    last: tokio::sync::Mutex<Option<Rendering>>,
}

/// The live parts of a page, each with its hash.
type Parts = Arc<[(Fragment, u64)]>;

/// A page as it was written at a moment, of a snapshot.
struct Rendering {
    /// The time when it was written and the time of the snapshot, in microseconds since 1970.
    at: u64,
    of: u64,
    parts: Parts,
}

impl Rooms {
    fn enter(&self, visit: &Visit) -> Arc<Room> {
        let who = visit.service.caller().principal();
        if who.grants().is_some() || who.may_end() {
            return Arc::default();
        }
        let mut rooms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = rooms.get(&visit.address).and_then(Weak::upgrade) {
            return room;
        }
        // Pages that no client has open any more are forgotten when the next one is opened.
        rooms.retain(|_, room| room.strong_count() > 0);
        let room = Arc::<Room>::default();
        rooms.insert(visit.address.clone(), Arc::downgrade(&room));
        room
    }
}

impl Room {
    /// The live parts of the page: those that were written for another client, or written now.
    async fn parts(&self, visit: &Visit, has_changed: bool) -> Result<Parts, Failure> {
        let mut last = self.last.lock().await;
        let (newest, now) = (visit.door.dashboard().newest(), visit.service.now().0);
        if let Some(last) = &*last {
            let is_fresh =
                if has_changed { last.of >= newest } else { now.saturating_sub(last.at) < SHARED_FOR };
            if is_fresh {
                return Ok(last.parts.clone());
            }
        }
        let (_, view) = visit.write().await?;
        let hashed = |part: Fragment| {
            let hash = super::assets::hash(part.1.as_bytes());
            (part, hash)
        };
        let parts: Parts = view.into_fragments().into_iter().map(hashed).collect();
        *last = Some(Rendering { at: now, of: newest, parts: parts.clone() });
        Ok(parts)
    }
}

/// The stream of updates of a page. The first one has every part.
pub(super) async fn stream(visit: Visit) -> Result<Response, Failure> {
    let visit = Visit { is_update: true, ..visit };
    // A page that cannot be written is refused here, and not left waiting.
    visit.write().await?;
    let (sender, response) = begin();
    tokio::spawn(async move {
        let ended = visit.door.broker().reached(Stage::Stopping);
        tokio::select! {
            () = ended => {}
            () = sender.closed() => {}
            () = send(&visit, &sender) => {}
        }
    });
    Ok(response)
}

async fn send(visit: &Visit, sender: &mpsc::Sender<Bytes>) {
    let mut latest = visit.door.dashboard().latest.subscribe();
    let room = visit.door.dashboard().rooms.enter(visit);
    let (mut sent, mut has_changed) = (HashMap::new(), true);
    loop {
        let text = match room.parts(visit, has_changed).await {
            Ok(parts) => {
                let changed = changes(&mut sent, &parts);
                if changed.is_empty() { Bytes::from_static(HEARTBEAT_TEXT) } else { event(&changed) }
            }
            Err(_) => {
                // The stream or the group is gone.
                let _ = sender.send(Bytes::from_static(b"event: gone\ndata: {}\n\n")).await;
                return;
            }
        };
        if sender.send(text).await.is_err() {
            return;
        }
        has_changed = match tokio::time::timeout(AT_LEAST_EVERY, latest.changed()).await {
            Ok(Ok(())) => true,
            Ok(Err(_)) => return,
            Err(_) => false,
        };
    }
}

/// The parts that differ from those that were sent. Of each, a hash is remembered.
fn changes<'a>(sent: &mut HashMap<String, u64>, parts: &'a [(Fragment, u64)]) -> BTreeMap<&'a str, &'a str> {
    let mut changed = BTreeMap::new();
    for ((id, content), hash) in parts {
        if sent.get(id) != Some(hash) {
            sent.insert(id.clone(), *hash);
            changed.insert(&**id, &**content);
        }
    }
    changed
}

fn event(parts: &BTreeMap<&str, &str>) -> Bytes {
    let mut text = String::new();
    write_event(&mut text, "parts", None, parts);
    text.into()
}

/// Refuses to compile if the dashboard cannot be shared between requests.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Dashboard>();
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_parts_that_changed_are_sent() {
        let mut sent = HashMap::new();
        let part = |id: &str, text: &str| {
            ((id.to_owned(), text.to_owned()), super::super::assets::hash(text.as_bytes()))
        };
        let (was, is) = ([part("a", "1"), part("b", "2")], [part("a", "1"), part("b", "3")]);
        assert_eq!(changes(&mut sent, &was).len(), 2);
        assert!(changes(&mut sent, &was).is_empty());
        assert_eq!(changes(&mut sent, &is).into_iter().collect::<Vec<_>>(), [("b", "3")]);
    }

    #[test]
    fn an_event_is_one_line_of_json() {
        let parts = BTreeMap::from([("a", "<b>\n\"x\"</b>")]);
        let text = event(&parts);
        assert_eq!(&text[..], b"event: parts\ndata: {\"a\":\"<b>\\n\\\"x\\\"</b>\"}\n\n");
    }
}
