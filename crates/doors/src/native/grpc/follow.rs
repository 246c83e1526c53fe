//! `FollowStream` and `FollowLog`: messages of a stream, or of all, in order, and then new ones as they come.

use std::pin::Pin;
use std::task::{Context, Poll};

use forebay_broker::api::Stage;
use forebay_wire::v1;
use tokio_stream::Stream;
use tonic::Status;

use super::status;
use super::streams::followed;
use crate::native::problem::Refusal;
use crate::native::service::{
    Answer, Following, FollowingLog, From, Service, filter, log_filter, stream_to_read,
};

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Next<S, R> = Later<(S, Answer<R>)>;

/// One call. `S` finds the messages, `R` is a reply with some of them.
pub(super) struct Follow<S, R> {
    /// The next messages, as soon as there are some. `None` once the call has ended.
    page: Option<Next<S, R>>,
    next: fn(S) -> Next<S, R>,
    stopping: Later<()>,
}

impl<S, R> Follow<S, R> {
    fn new(service: &Service, source: S, next: fn(S) -> Next<S, R>) -> Follow<S, R> {
        let stopping = Box::pin(service.broker().reached(Stage::Draining));
        Follow { page: Some(next(source)), next, stopping }
    }
}

fn from(new_only: bool, from: u64) -> Answer<From> {
    match (new_only, from) {
        (true, 0) => Ok(From::End),
        (true, _) => Err(Refusal::field("from", "must not be given together with new_only")),
        (false, from) => Ok(From::Seq(from)),
    }
}

pub(super) async fn follow_stream(
    service: Service,
    request: v1::FollowStreamRequest,
) -> Answer<Follow<Following, v1::FollowStreamReply>> {
    let stream = stream_to_read(&request.stream)?;
    let filter = filter(Some(request.key), Some(request.r#type));
    let from = service.follow_from(stream.clone(), from(request.new_only, request.from)?).await?;
    let following = service.follow(stream, from, filter).await?;
    Ok(Follow::new(&service, following, next_of_stream))
}

fn next_of_stream(mut following: Following) -> Next<Following, v1::FollowStreamReply> {
    Box::pin(async move {
        // The reply is encoded, and counted, as soon as it is returned.
        let reply = following.next().await.and_then(|(page, _hold)| {
            let (encoded, next) = followed(page.messages.iter().map(|found| ("", found)))?;
            let next = next.map_or(page.next, |found| found.seq);
            // Messages that did not fit into the reply come with the next one.
            if next != page.next {
                following.seek(next);
            }
            Ok(v1::FollowStreamReply { encoded, next: next.0, ..Default::default() })
        });
        (following, reply)
    })
}

pub(super) async fn follow_log(
    service: Service,
    request: v1::FollowLogRequest,
) -> Answer<Follow<FollowingLog, v1::FollowLogReply>> {
    let v1::FollowLogRequest { from: first, new_only, stream_prefix, type_prefix, key, r#type } = request;
    let filter = log_filter(Some(stream_prefix), Some(type_prefix), Some(key), Some(r#type));
    let following = service.follow_log(from(new_only, first)?, filter).await?;
    Ok(Follow::new(&service, following, next_of_log))
}

fn next_of_log(mut following: FollowingLog) -> Next<FollowingLog, v1::FollowLogReply> {
    Box::pin(async move {
        let reply = following.next().await.and_then(|(page, _hold)| {
            let messages = page.messages.iter().map(|of| (of.stream.as_str(), &of.message));
            let (encoded, next) = followed(messages)?;
            let next = next.map_or(page.next, |found| found.ordinal);
            if next != page.next {
                following.seek(next);
            }
            Ok(v1::FollowLogReply { encoded, next: next.0, ..Default::default() })
        });
        (following, reply)
    })
}

impl<S, R> Stream for Follow<S, R> {
    type Item = Result<R, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let call = self.get_mut();
        let Some(page) = &mut call.page else { return Poll::Ready(None) };
        // Looked at first, since a server that has gone looks like a stream that has.
        if call.stopping.as_mut().poll(cx).is_ready() {
            call.page = None;
            return Poll::Ready(Some(Err(status::stopping())));
        }
        let (source, reply) = match page.as_mut().poll(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(page) => page,
        };
        call.page = reply.is_ok().then(|| (call.next)(source));
        Poll::Ready(Some(reply.map_err(|refusal| status::refused(&refusal))))
    }
}
