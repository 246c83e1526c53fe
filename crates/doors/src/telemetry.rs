//! Counts and logs of the requests that the doors answered. Each codec leaves the name of the call and the kind
//! of the problem in its answer, and the place through which all answers of a door leave reads them.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::Response;
use forebay_broker::api::DoorStats;
use forebay_wire::problem::{Kind, Problem};

#[cfg(feature = "sqs")]
use crate::sqs::wire::error::{ErrorKind, SqsError};

/// The name of a call that the API does not have, or that was refused before its name was known.
pub(crate) const UNKNOWN: &str = "unknown";

/// The call that an HTTP answer is to. An extension of the answer.
#[derive(Debug, Clone)]
pub(crate) struct CallName(pub(crate) Arc<str>);

/// The problem that an HTTP answer is. An extension of the answer.
#[derive(Debug, Clone)]
pub(crate) struct Refused {
    kind: Option<Kind>,
    /// Why, where that is the server's own mistake.
    detail: Option<Arc<str>>,
}

impl From<&Problem> for Refused {
    fn from(problem: &Problem) -> Refused {
        let kind = problem.kind();
        let detail = problem.detail.as_str();
        Refused { kind, detail: (kind == Some(Kind::Internal)).then(|| detail.into()) }
    }
}

/// An answer over HTTP.
pub(crate) fn answered_http<B>(stats: &DoorStats, peer: SocketAddr, answer: &Response<B>) {
    let call = answer.extensions().get::<CallName>().map_or(UNKNOWN, |name| &name.0);
    let refused = answer.extensions().get::<Refused>();
    stats.count(call, refused.map(|refused| refused.kind.map_or(UNKNOWN, Kind::slug)));
    if let Some(detail) = refused.and_then(|refused| refused.detail.as_deref()) {
        say_internal(stats, call, peer, detail);
    }
}

/// An answer over gRPC. A call that streams counts when it begins: how it ends is in its trailers.
pub(crate) fn answered_grpc<B>(stats: &DoorStats, peer: SocketAddr, path: &str, answer: &Response<B>) {
    let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
    let status = header("grpc-status").filter(|status| *status != "0");
    // Kurrent clients are told of a refusal by its name, some of them with the status of an internal error.
    let refusal = header("forebay-problem").or_else(|| header("exception"));
    let problem = refusal.or(status.map(|_| UNKNOWN));
    // Paths are the client's words; those of no call are counted together.
    let call = if status == Some("12") { UNKNOWN } else { path.trim_start_matches('/') };
    stats.count(call, problem);
    if problem == Some(Kind::Internal.slug()) || status == Some("13") && refusal.is_none() {
        say_internal(stats, call, peer, header("grpc-message").unwrap_or_default());
    }
}

/// An answer over SQS.
#[cfg(feature = "sqs")]
pub(crate) fn answered_sqs(stats: &DoorStats, peer: SocketAddr, call: &str, error: Option<&SqsError>) {
    stats.count(call, error.map(SqsError::code));
    if let Some(error) = error.filter(|error| error.kind() == ErrorKind::InternalFailure) {
        say_internal(stats, call, peer, &error.to_string());
    }
}

fn say_internal(stats: &DoorStats, call: &str, peer: SocketAddr, detail: &str) {
    tracing::error!(door = stats.name, call, %peer, detail, "a request failed with an internal error");
}

/// Collects events in tests, as one line each.
#[cfg(test)]
pub(crate) mod capture {
    use std::fmt::{Debug, Write as _};
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::instrument::WithSubscriber as _;
    use tracing::{Event, Metadata, Subscriber, span};

    #[derive(Default)]
    struct Capture(Mutex<Vec<String>>);

    #[derive(Default)]
    struct Line {
        message: String,
        fields: String,
    }

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            let _ = match field.name() {
                "message" => write!(self.message, "{value:?}"),
                name => write!(self.fields, " {name}={value:?}"),
            };
        }

        fn record_str(&mut self, field: &Field, value: &str) {
            let _ = write!(self.fields, " {}={value}", field.name());
        }
    }

    impl Subscriber for Capture {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.is_event() && metadata.target().starts_with("forebay")
        }

        fn event(&self, event: &Event<'_>) {
            let mut line = Line::default();
            event.record(&mut line);
            let text = format!("{} {}{}", event.metadata().level(), line.message, line.fields);
            self.0.lock().expect("no test panics here").push(text);
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    /// Runs a future to its end, and says which events came meanwhile.
    pub(crate) async fn events_of<T>(future: impl Future<Output = T>) -> (T, Vec<String>) {
        let capture = Arc::new(Capture::default());
        let value = future.with_subscriber(capture.clone()).await;
        let events = std::mem::take(&mut *capture.0.lock().expect("no test panics here"));
        (value, events)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use forebay_broker::api::{Clock, Doors};
    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::capture::events_of;
    use super::*;
    use crate::http::accept;

    fn peer() -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 7).into()
    }

    fn rows(stats: &DoorStats) -> Vec<String> {
        let rows = stats.requests();
        rows.iter().map(|(call, problem, count)| format!("{call} {problem} {count}")).collect()
    }

    #[tokio::test]
    async fn a_refusal_of_kurrent_is_counted_by_its_name_and_leaves_no_event() {
        let doors = Doors::default();
        let kurrent = doors.door("kurrent");
        let answer = |exception: Option<&'static str>| {
            let mut answer = Response::new(());
            answer.headers_mut().insert("grpc-status", "13".parse().expect("a value"));
            if let Some(name) = exception {
                answer.headers_mut().insert("exception", name.parse().expect("a value"));
            }
            answer
        };
        let ((), events) = events_of(async {
            answered_grpc(&kurrent, peer(), "/p/Create", &answer(Some("persistent-subscription-failed")));
            answered_grpc(&kurrent, peer(), "/p/Create", &answer(None));
        })
        .await;
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(rows(&kurrent), ["p/Create persistent-subscription-failed 1", "p/Create unknown 1"]);
    }

    #[tokio::test]
    async fn an_internal_error_is_counted_and_leaves_an_event() {
        let doors = Doors::default();
        let http = doors.door("http");
        let refusal = |kind, detail| {
            let mut answer = Response::new(());
            answer.extensions_mut().insert(CallName("get_streams".into()));
            answer.extensions_mut().insert(Refused::from(&Problem::new(kind, detail)));
            answer
        };
        let ((), events) = events_of(async {
            answered_http(&http, peer(), &refusal(Kind::Internal, "it broke"));
            answered_http(&http, peer(), &refusal(Kind::Busy, "later"));
            answered_http(&http, peer(), &Response::new(()));
        })
        .await;
        let said =
            "ERROR a request failed with an internal error door=http call=get_streams peer=127.0.0.1:7";
        assert_eq!(events, [format!("{said} detail=it broke")]);
        assert_eq!(rows(&http), ["get_streams busy 1", "get_streams internal 1", "unknown none 1"]);

        let grpc = doors.door("grpc");
        let status = |code, problem: Option<&str>| {
            let answer = Response::builder().header("grpc-status", code).header("grpc-message", "why");
            let answer = match problem {
                Some(problem) => answer.header("forebay-problem", problem),
                None => answer,
            };
            answer.body(()).expect("an answer")
        };
        let ((), events) = events_of(async {
            answered_grpc(&grpc, peer(), "/forebay.v1.Groups/Get", &status("13", Some("internal")));
            answered_grpc(&grpc, peer(), "/forebay.v1.Groups/Get", &status("5", Some("no-such-group")));
            answered_grpc(&grpc, peer(), "/made/up", &status("12", None));
            answered_grpc(&grpc, peer(), "/forebay.v1.Groups/Get", &Response::new(()));
        })
        .await;
        assert_eq!(events.len(), 1, "{events:?}");
        assert!(events[0].contains("call=forebay.v1.Groups/Get") && events[0].ends_with("detail=why"));
        let of = |problem| format!("forebay.v1.Groups/Get {problem} 1");
        assert_eq!(
            rows(&grpc),
            [of("internal"), of("no-such-group"), of("none"), "unknown unknown 1".to_owned()]
        );

        let sqs = doors.door("sqs");
        let error = SqsError::new(ErrorKind::InternalFailure, "no");
        let ((), events) = events_of(async {
            answered_sqs(&sqs, peer(), "SendMessage", Some(&error));
            answered_sqs(&sqs, peer(), "SendMessage", None);
        })
        .await;
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(rows(&sqs), ["SendMessage InternalFailure 1", "SendMessage none 1"]);
    }

    #[tokio::test]
    async fn a_refused_connection_leaves_an_event() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let stats = Doors::default().door("native");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let served = accept::connections(
            listener,
            async move { drop(stopped.await) },
            accept::Limits::new(1, None),
            b"busy",
            (&stats, Clock::start()),
            |mut stream: TcpStream, _, _, _| async move { drop(stream.read(&mut [0]).await) },
        );
        let clients = async {
            let first = TcpStream::connect(address).await.expect("it is taken");
            let mut refused = Vec::new();
            for _ in 0..2 {
                let mut stream = TcpStream::connect(address).await.expect("it is taken and refused");
                let mut text = String::new();
                stream.read_to_string(&mut text).await.expect("the reply");
                refused.push(text);
            }
            drop(first);
            drop(stop);
            refused
        };
        let ((refused, ()), events) = events_of(async { tokio::join!(clients, served) }).await;
        assert_eq!(refused, ["busy", "busy"]);
        let said: Vec<&str> =
            events.iter().map(|event| event.split(" door=").next().unwrap_or_default()).collect();
        let first = "WARN connection refused: as many are open as there may be";
        assert_eq!(said[..3], ["DEBUG connection accepted", first, "DEBUG connection refused"]);
        let counted =
            [&stats.accepted, &stats.refused].map(|count| count.load(std::sync::atomic::Ordering::Relaxed));
        assert_eq!(counted, [1, 2]);
    }
}
