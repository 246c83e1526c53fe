//! One `FollowStream`: messages of a stream in order, and then new ones as they come.

use std::pin::Pin;
use std::task::{Context, Poll};

use forebay_broker::api::CallError;
use forebay_broker::api::ReadPage;
use forebay_broker::api::Stage;
use forebay_broker::api::{Caller, Filter};
use forebay_core::types::{Seq, StreamName};
use forebay_wire::v1;
use tokio_stream::Stream;
use tonic::Status;

use super::request::{filter, position, refused, stream_name};
use super::status;
use super::streams::stored;

/// Messages that are asked for at a time.
const AT_A_TIME: u64 = 1_000;

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

pub(super) struct Follow {
    caller: Caller,
    stream: StreamName,
    filter: Filter,
    /// The next messages, as soon as there are some. `None` once the call has ended.
    page: Option<Later<Result<ReadPage, CallError>>>,
    stopping: Later<()>,
}

impl Follow {
    pub(super) async fn open(caller: Caller, request: v1::FollowStreamRequest) -> Result<Follow, Status> {
        let stream = stream_name(&request.stream)?;
        let filter = filter(request.key, request.r#type);
        if request.new_only && request.from > 0 {
            return Err(status::invalid("from and new_only: one of the two".to_owned()));
        }
        // Also if the position is known: whoever follows a stream that is not there learns it at once.
        let report = caller.stream(stream.clone()).await.map_err(refused)?;
        let from = if request.new_only { report.figures.last.next() } else { position(request.from) };
        let page = Box::pin(next_page(caller.clone(), stream.clone(), from, filter.clone()));
        let stopping = Box::pin(caller.broker().reached(Stage::Draining));
        Ok(Follow { caller, stream, filter, page: Some(page), stopping })
    }

    /// The reply, and where to go on.
    fn reply(&self, page: &ReadPage) -> Result<v1::FollowStreamReply, Status> {
        let (messages, next) = stored(page)?;
        Ok(v1::FollowStreamReply { messages, next: next.0 })
    }
}

/// Waits until there is something to be seen.
async fn next_page(
    caller: Caller,
    stream: StreamName,
    mut from: Seq,
    filter: Filter,
) -> Result<ReadPage, CallError> {
    loop {
        let page = caller.browse(stream.clone(), from, AT_A_TIME, &filter).await?;
        if !page.messages.is_empty() {
            return Ok(page);
        }
        from = page.next;
        if from > page.last {
            caller.grown(stream.clone(), Seq(from.0.saturating_sub(1))).await?;
        }
    }
}

impl Stream for Follow {
    type Item = Result<v1::FollowStreamReply, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let call = self.get_mut();
        let Some(page) = &mut call.page else { return Poll::Ready(None) };
        // Looked at first, since a server that has gone looks like a stream that has.
        if call.stopping.as_mut().poll(cx).is_ready() {
            call.page = None;
            return Poll::Ready(Some(Err(status::stopping())));
        }
        let page = match page.as_mut().poll(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(page) => page,
        };
        let reply = page.map_err(refused).and_then(|page| call.reply(&page));
        call.page = reply.as_ref().ok().map(|reply| -> Later<_> {
            let (caller, stream) = (call.caller.clone(), call.stream.clone());
            Box::pin(next_page(caller, stream, Seq(reply.next), call.filter.clone()))
        });
        Poll::Ready(Some(reply))
    }
}
