//! Updates of an open page, as server-sent events.
//!
//! The page is written again when there is a new snapshot, and the parts that differ from the ones that were sent
//! last are sent. On a server where nothing happens there are no new snapshots, so nothing is written and nothing
//! is sent but a sign of life.

use std::collections::{BTreeMap, HashMap};
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
    let mut sent = HashMap::new();
    loop {
        let text = match visit.write().await {
            Ok((_, view)) => {
                let changed = changes(&mut sent, view.into_fragments());
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
        if let Ok(Err(_)) = tokio::time::timeout(AT_LEAST_EVERY, latest.changed()).await {
            return;
        }
    }
}

/// The parts that differ from those that were sent. Of each, a hash is remembered.
fn changes(sent: &mut HashMap<String, u64>, parts: Vec<Fragment>) -> BTreeMap<String, String> {
    let is_new = |(id, content): &Fragment| {
        let hash = super::assets::hash(content.as_bytes());
        sent.insert(id.clone(), hash) != Some(hash)
    };
    parts.into_iter().filter(is_new).collect()
}

fn event(parts: &BTreeMap<String, String>) -> Bytes {
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
        let part = |id: &str, text: &str| (id.to_owned(), text.to_owned());
        let first = changes(&mut sent, vec![part("a", "1"), part("b", "2")]);
        assert_eq!(first.len(), 2);
        assert!(changes(&mut sent, vec![part("a", "1"), part("b", "2")]).is_empty());
        let then = changes(&mut sent, vec![part("a", "1"), part("b", "3")]);
        assert_eq!(then.into_iter().collect::<Vec<_>>(), [part("b", "3")]);
    }

    #[test]
    fn an_event_is_one_line_of_json() {
        let parts = BTreeMap::from([("a".to_owned(), "<b>\n\"x\"</b>".to_owned())]);
        let text = event(&parts);
        assert_eq!(&text[..], b"event: parts\ndata: {\"a\":\"<b>\\n\\\"x\\\"</b>\"}\n\n");
    }
}
