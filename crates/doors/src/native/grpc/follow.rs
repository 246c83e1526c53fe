//! One `FollowStream`: messages of a stream in order, and then new ones as they come.

use std::pin::Pin;
use std::task::{Context, Poll};

use forebay_broker::api::{Hold, ReadPage, Stage};
use forebay_core::types::Seq;
use forebay_wire::v1;
use tokio_stream::Stream;
use tonic::Status;

use super::status;
use super::streams::stored;
use crate::native::problem::Refusal;
use crate::native::service::{Answer, Following, From, Service, filter, stream_to_read};

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Page = (Following, Answer<(ReadPage, Hold)>);

pub(super) struct Follow {
    /// The next messages, as soon as there are some. `None` once the call has ended.
    page: Option<Later<Page>>,
    stopping: Later<()>,
}

impl Follow {
    pub(super) async fn open(service: Service, request: v1::FollowStreamRequest) -> Answer<Follow> {
        let stream = stream_to_read(&request.stream)?;
        let filter = filter(Some(request.key), Some(request.r#type));
        let from = match (request.new_only, request.from) {
            (true, 0) => From::End,
            (true, _) => return Err(Refusal::field("from", "must not be given together with new_only")),
            (false, from) => From::Seq(from),
        };
        let from = service.follow_from(stream.clone(), from).await?;
        let following = service.follow(stream, from, filter).await?;
        let stopping = Box::pin(service.broker().reached(Stage::Draining));
        Ok(Follow { page: Some(next_page(following)), stopping })
    }
}

fn next_page(mut following: Following) -> Later<Page> {
    Box::pin(async move {
        let page = following.next().await;
        (following, page)
    })
}

/// The reply, and where to go on.
fn reply(page: &ReadPage) -> Answer<v1::FollowStreamReply> {
    let (messages, next) = stored(page)?;
    Ok(v1::FollowStreamReply { messages, next: next.0 })
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
        let (mut following, page) = match page.as_mut().poll(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(page) => page,
        };
        // The reply is encoded, and counted, as soon as it is returned.
        let replied = page.and_then(|(page, _hold)| Ok((reply(&page)?, page.next)));
        call.page = replied.as_ref().ok().map(|(reply, next)| {
            // Messages that did not fit into the reply come with the next one.
            if reply.next != next.0 {
                following.seek(Seq(reply.next));
            }
            next_page(following)
        });
        let reply = replied.map(|(reply, _)| reply);
        Poll::Ready(Some(reply.map_err(|refusal| status::refused(&refusal))))
    }
}
