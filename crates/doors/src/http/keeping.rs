//! A body that keeps something until the last of it has left.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};

pub(crate) struct Keeping<T> {
    body: Body,
    _kept: T,
}

impl<T> Keeping<T> {
    pub(crate) fn new(body: Body, kept: T) -> Keeping<T> {
        Keeping { body, _kept: kept }
    }
}

impl<T: Unpin> http_body::Body for Keeping<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
