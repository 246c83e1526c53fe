//! Server-sent events, and following a stream with them.
//!
//! A listener has a task of its own and a short queue. The task reads on when the queue has room, so a slow
//! listener reads slowly and does not hold up the others. It ends when the listener goes, or when the
//! server drains.

use std::fmt::Write as _;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use forebay_broker::api::{Hold, Stage};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::{Door, message};
use crate::http::outgoing::{self, Counted};
use crate::native::service::{Answer, Following, FollowingLog};

/// Pieces of text that a listener may leave lying, beside the one that is being sent.
const QUEUE: usize = 1;
/// A comment is sent at least this often, so that proxies see that the connection lives.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(15);
pub(super) const HEARTBEAT_TEXT: &[u8] = b": still here\n\n";

/// An answer that goes on, and where to put what it says.
pub(super) fn begin() -> (mpsc::Sender<Bytes>, Response) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let body = ReceiverStream::new(receiver).map(Ok::<_, std::convert::Infallible>);
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.extensions_mut().insert(Counted);
    (sender, response)
}

/// Writes an event. A line break would end it: JSON has them only between its parts, where a space does as well.
pub(super) fn write_event(out: &mut String, name: &str, id: Option<u64>, data: &impl Serialize) {
    let data = serde_json::to_string(data).unwrap_or_default().replace(['\n', '\r'], " ");
    if let Some(id) = id {
        let _ = writeln!(out, "id: {id}");
    }
    let _ = write!(out, "event: {name}\ndata: {data}\n\n");
}

/// Messages that a listener follows.
pub(super) enum Followed {
    Stream(Following),
    Log(Box<FollowingLog>),
}

impl Followed {
    /// The next messages as events, with the room that was taken for them.
    async fn next(&mut self) -> Answer<(String, Hold)> {
        let mut text = String::new();
        let hold = match self {
            Followed::Stream(following) => {
                let (page, hold) = following.next().await?;
                text.reserve(hold.bytes());
                for found in &page.messages {
                    write_event(&mut text, "message", Some(found.seq.0), &message::stored(found));
                }
                hold
            }
            Followed::Log(following) => {
                let (page, hold) = following.next().await?;
                text.reserve(hold.bytes());
                for logged in &page.messages {
                    let id = logged.message.ordinal.0;
                    write_event(&mut text, "message", Some(id), &message::logged(logged));
                }
                hold
            }
        };
        Ok((text, hold))
    }
}

/// Messages as they come.
pub(super) fn follow(door: &Door, following: Followed) -> Response {
    let (sender, response) = begin();
    let ended = door.broker().reached(Stage::Draining);
    tokio::spawn(async move {
        tokio::select! {
            () = ended => {}
            () = sender.closed() => {}
            () = send_messages(following, &sender) => {}
        }
    });
    response
}

/// Ends when the stream is gone, or the listener.
async fn send_messages(mut following: Followed, sender: &mpsc::Sender<Bytes>) {
    // Something is said at once, so that the listener sees that it is heard.
    let mut text: Bytes = Bytes::from_static(b": from here on\n\n");
    loop {
        // Nothing is read before there is a place for it.
        let Ok(place) = sender.reserve().await else { return };
        place.send(text);
        let Ok(place) = sender.reserve().await else { return };
        text = match tokio::time::timeout(HEARTBEAT, following.next()).await {
            Err(_) => Bytes::from_static(HEARTBEAT_TEXT),
            Ok(Err(_)) => return place.send(Bytes::from_static(b"event: gone\ndata: {}\n\n")),
            Ok(Ok((text, hold))) => outgoing::held(text.into_bytes(), hold),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_in_one_piece_whatever_its_data() {
        let mut text = String::new();
        let raw = serde_json::value::RawValue::from_string("{\r\n \"a\":\n\"b\\n\" }".to_owned());
        write_event(&mut text, "message", Some(7), &raw.expect("JSON"));
        assert_eq!(text, "id: 7\nevent: message\ndata: {   \"a\": \"b\\n\" }\n\n");
    }
}
