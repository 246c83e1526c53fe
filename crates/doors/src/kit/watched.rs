//! Ends an answer when the credential of its request ends: a consumer whose token was revoked gets nothing more.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use bytes::Bytes;
use forebay_broker::api::{Clock, Principal};
use http_body::{Frame, SizeHint};

/// An answer that goes on for no longer than its credential.
pub(crate) fn watch(
    answer: Response<Body>,
    who: &Principal,
    clock: Clock,
    trailers: impl FnOnce() -> Option<HeaderMap>,
) -> Response<Body> {
    if !who.may_end() || http_body::Body::is_end_stream(answer.body()) {
        return answer;
    }
    // An answer whose length is known is there already.
    if http_body::Body::size_hint(answer.body()).exact().is_some() {
        return answer;
    }
    let ended: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(who.ended(clock));
    let trailers = trailers();
    answer.map(|body| Body::new(Watched { body, ended: Some(ended), trailers }))
}

struct Watched {
    body: Body,
    /// None once it has resolved.
    ended: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// How the answer ends then. None: it breaks off.
    trailers: Option<HeaderMap>,
}

/// The credential of a request has ended.
#[derive(Debug, thiserror::Error)]
#[error("the credential was revoked or has expired")]
struct Ended;

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(ended) = &mut self.ended
            && ended.as_mut().poll(cx).is_ready()
        {
            // With the body the consumer behind it goes.
            self.body = Body::empty();
            self.ended = None;
            let last = match self.trailers.take() {
                Some(trailers) => Ok(Frame::trailers(trailers)),
                None => Err(axum::Error::new(Ended)),
            };
            return Poll::Ready(Some(last));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
