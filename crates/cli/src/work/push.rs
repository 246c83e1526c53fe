//! `--push`: an HTTP POST for each message, with the body as its body and the fields in headers. The status of the
//! answer says what becomes of the message.

mod request;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::{Buf as _, Bytes};
use forebay_client::{Fault, Job};
use forebay_wire::json::Span;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::header::{HeaderMap, LOCATION, RETRY_AFTER};
use hyper::{Response, Uri};

pub(super) use self::request::{Headers, target};
use super::reason::{REASON_BYTES_MAX, first, one_line};
use super::task::Task;
use crate::clock::Clock;
use crate::post::{Poster, cause, client};

/// How many bytes of a response are shown.
const SHOWN_BYTES_MAX: usize = 200;
/// How many bytes of a response are read, so that its connection can be used again or its first line be
/// shown.
const ANSWER_BYTES_MAX: usize = 64 << 10;
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// No answer can put a message off for longer, nor hold up a whole group for longer.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

pub(crate) struct Push {
    target: Uri,
    headers: Headers,
    timeout: Option<Duration>,
    client: Poster,
    clock: Clock,
}

impl Push {
    pub(super) fn new(target: Uri, headers: Headers, timeout: Option<Duration>) -> Push {
        Push { target, headers, timeout, client: client(), clock: Clock::start() }
    }

    pub(super) async fn run(&self, job: &Job<Bytes>) -> Result<(), Fault> {
        self.run_task(&Task::of(job), job.info.cancelled()).await
    }

    async fn run_task(&self, task: &Task<'_>, cancelled: impl Future<Output = ()>) -> Result<(), Fault> {
        let request = self.headers.request(&self.target, task);
        let timeout = self.timeout.unwrap_or(Duration::MAX);
        let answer = tokio::select! {
            answer = tokio::time::timeout(timeout, self.client.request(request)) => answer,
            () = cancelled => return Err(Fault::transient("the lease was lost")),
        };
        match answer {
            Err(_) => Err(Fault::transient(format!("timed out after {}", Span(timeout)))),
            Ok(Err(error)) if error.is_connect() => {
                Err(Fault::transient(shortened(&format!("cannot connect: {}", cause(&error)))))
            }
            Ok(Err(error)) => Err(Fault::transient(shortened(&format!("no answer: {}", cause(&error))))),
            Ok(Ok(answer)) => {
                let status = answer.status().as_u16();
                let headers = answer.headers().clone();
                let text = take(answer, (200..300).contains(&status)).await;
                self.verdict(status, &headers, &text)
            }
        }
    }

    /// What becomes of a message that was answered so.
    fn verdict(&self, status: u16, headers: &HeaderMap, text: &str) -> Result<(), Fault> {
        let shown = one_line(text.trim_start().lines().next().unwrap_or_default());
        let mut reason = match first(&shown, SHOWN_BYTES_MAX) {
            "" => format!("HTTP {status}"),
            shown => format!("HTTP {status}: {shown}"),
        };
        let after = retry_after(headers, self.clock);
        Err(match status {
            200..300 => return Ok(()),
            429 => Fault::throttled(after, reason),
            503 => match after {
                Some(after) => Fault::retry_after(after, reason),
                None => Fault::transient(reason),
            },
            300..400 => {
                let to = headers.get(LOCATION).map(|to| String::from_utf8_lossy(to.as_bytes()).into_owned());
                let to = to.map_or(String::new(), |to| format!(". location=`{to}`"));
                reason = format!("HTTP {status}: redirects are not followed{to}");
                Fault::permanent(shortened(&reason))
            }
            408 | 500.. => Fault::transient(reason),
            400..500 => Fault::permanent(reason),
            // Any other status is not a valid final response.
            _ => Fault::transient(reason),
        })
    }
}

/// The beginning of a response. A successful response is only read so that its connection can be used again.
async fn take(answer: Response<Incoming>, good: bool) -> String {
    let mut body = answer.into_body();
    let is_short = body.size_hint().upper().is_some_and(|bytes| bytes <= ANSWER_BYTES_MAX as u64);
    if good && !is_short {
        return String::new();
    }
    let mut text = Vec::new();
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else { continue };
            text.extend_from_slice(data.chunk());
            if text.len() >= ANSWER_BYTES_MAX {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(ANSWER_PATIENCE, reading).await;
    text.truncate(ANSWER_BYTES_MAX);
    String::from_utf8_lossy(&text).into_owned()
}

/// Seconds, or a date. A date that has passed is ignored.
fn retry_after(headers: &HeaderMap, clock: Clock) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let after = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let at = httpdate::parse_http_date(text).ok()?;
            let at = at.duration_since(std::time::UNIX_EPOCH).ok()?;
            at.checked_sub(Duration::from_micros(clock.now().0))?
        }
    };
    (!after.is_zero()).then_some(after.min(RETRY_AFTER_MAX))
}

fn shortened(text: &str) -> String {
    first(text, REASON_BYTES_MAX).to_owned()
}
