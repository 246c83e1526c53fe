//! Deadlines of calls: a client may say in `grpc-timeout` how long a call may take, all of its answers included.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response};
use bytes::Bytes;
use http_body::Frame;
use tokio::time::Sleep;
use tonic::{Code, Status};

/// A longer time is as good as none.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3_600);

/// The time that a call may take, if its client says so. A value that is not a time says nothing.
pub(super) fn of(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = (1..=8).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    let count: u64 = digits.parse().ok().filter(|_| is_number)?;
    let time = match unit {
        "H" => Duration::from_secs(count * 3_600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    };
    Some(time).filter(|time| *time < LONGEST)
}

/// Ends a call that takes longer than its client lets it.
pub(super) async fn within(
    limit: Option<Duration>,
    call: impl Future<Output = Response<Body>>,
) -> Response<Body> {
    let Some(limit) = limit else { return call.await };
    let mut sleep = Box::pin(tokio::time::sleep(limit));
    tokio::select! {
        biased;
        answer = call => answer.map(|body| Body::new(Until { body, sleep, is_over: false })),
        () = sleep.as_mut() => passed().into_http(),
    }
}

fn passed() -> Status {
    Status::deadline_exceeded("Deadline Exceeded")
}

/// Answers that end at a time.
struct Until {
    body: Body,
    sleep: Pin<Box<Sleep>>,
    is_over: bool,
}

impl http_body::Body for Until {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if this.is_over {
            return Poll::Ready(None);
        }
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        if polled.is_ready() || this.sleep.as_mut().poll(cx).is_pending() {
            return polled;
        }
        this.is_over = true;
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from(Code::DeadlineExceeded as i32));
        trailers.insert("grpc-message", HeaderValue::from_static("Deadline%20Exceeded"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use tokio_stream::StreamExt as _;

    use super::*;

    fn asked(text: &'static str) -> Option<Duration> {
        of(&HeaderMap::from_iter([("grpc-timeout".parse().expect("a name"), HeaderValue::from_static(text))]))
    }

    #[test]
    fn a_timeout_is_a_number_and_a_unit() {
        assert_eq!(asked("10S"), Some(Duration::from_secs(10)));
        assert_eq!(asked("250m"), Some(Duration::from_millis(250)));
        assert_eq!(asked("1H"), Some(Duration::from_secs(3_600)));
        for text in ["", "S", "10", "ten S", "-1S", "123456789S", "99999999H"] {
            assert_eq!(asked(text), None, "{text}");
        }
        assert_eq!(of(&HeaderMap::new()), None);
    }

    #[tokio::test]
    async fn a_call_that_does_not_answer_in_time_ends() {
        let limit = Some(Duration::from_millis(50));
        let never = std::future::pending::<Response<Body>>();
        let answer = within(limit, never).await;
        assert_eq!(answer.headers().get("grpc-status"), Some(&HeaderValue::from_static("4")));
        let first = tokio_stream::once(Ok::<_, std::convert::Infallible>(Bytes::from_static(b"x")));
        let body = Body::from_stream(first.chain(tokio_stream::pending()));
        let mut answer = within(limit, async { Response::new(body) }).await.into_body();
        let data = answer.frame().await.expect("a frame").expect("it came").into_data().expect("data");
        assert_eq!(&data[..], b"x");
        let trailers = answer.frame().await.expect("a frame").expect("it came").into_trailers();
        assert_eq!(trailers.expect("trailers").get("grpc-status"), Some(&HeaderValue::from_static("4")));
        assert!(answer.frame().await.is_none());
    }
}
