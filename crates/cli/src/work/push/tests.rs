use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use forebay_client::Class;
use http_body_util::Full;
use hyper::Request;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::*;

/// A service that answers as the path of a request says, and remembers what came.
struct Service {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    connections: Arc<AtomicUsize>,
}

impl Service {
    async fn start() -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let (seen, connections) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (saw, connected) = (seen.clone(), connections.clone());
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                connected.fetch_add(1, Ordering::SeqCst);
                let saw = saw.clone();
                let answer = service_fn(move |request: Request<Incoming>| {
                    let saw = saw.clone();
                    async move { Ok::<_, Infallible>(answered(request, &saw).await) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(socket), answer));
            }
        });
        Service { address, seen, connections }
    }

    fn push(&self, path: &str) -> Push {
        self.push_with(path, &[], None)
    }

    fn push_with(&self, path: &str, headers: &[&str], timeout: Option<Duration>) -> Push {
        let headers: Vec<String> = headers.iter().map(|&header| header.to_owned()).collect();
        let target = target(&format!("http://{}{path}", self.address)).expect("an address");
        Push::new(target, Headers::read(&headers).expect("headers"), timeout)
    }

    fn last(&self) -> (HeaderMap, Bytes) {
        self.seen.lock().expect("nobody panicked").last().cloned().expect("a request came")
    }
}

/// `/STATUS/RETRY-AFTER?TEXT`; `hang` never answers.
async fn answered(request: Request<Incoming>, saw: &Mutex<Vec<(HeaderMap, Bytes)>>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("the body comes").to_bytes();
    saw.lock().expect("nobody panicked").push((head.headers, body));
    let mut parts = head.uri.path().trim_start_matches('/').splitn(2, '/');
    let status = parts.next().unwrap_or_default();
    if status == "hang" {
        std::future::pending::<()>().await;
    }
    let text = head.uri.query().unwrap_or_default().replace("%20", " ").replace("%0A", "\n");
    let text = if text == "long" { "x".repeat(1 << 20) } else { text };
    let mut answer = Response::builder().status(status.parse::<u16>().expect("a status"));
    if let Some(after) = parts.next() {
        answer = answer.header(RETRY_AFTER, after.replace("%20", " "));
    }
    if status.starts_with('3') {
        answer = answer.header(LOCATION, "https://elsewhere.example/");
    }
    answer.body(Full::new(text.into())).expect("an answer")
}

async fn run(push: &Push, task: &Task<'_>) -> Result<(), Fault> {
    push.run_task(task, std::future::pending()).await
}

#[tokio::test]
async fn the_status_says_what_becomes_of_a_message() {
    let service = Service::start().await;
    let body = Bytes::from_static(b"{\"to\": 1}");
    let task = Task::plain(&body);
    for path in ["/200", "/201?created", "/204", "/200?long"] {
        run(&service.push(path), &task).await.expect(path);
    }
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    for (path, class, reason) in [
        ("/429", Class::Throttled(None), "HTTP 429"),
        ("/429/7?slow%20down", Class::Throttled(seconds(7)), "HTTP 429: slow down"),
        ("/429/soon", Class::Throttled(None), "HTTP 429"),
        ("/503", Class::Transient, "HTTP 503"),
        ("/503/120?busy", Class::RetryAfter(Duration::from_secs(120)), "HTTP 503: busy"),
        ("/503/0", Class::Transient, "HTTP 503"),
        ("/503/99999999", Class::RetryAfter(RETRY_AFTER_MAX), "HTTP 503"),
        ("/408", Class::Transient, "HTTP 408"),
        ("/500?oops%0Aat%20line%207", Class::Transient, "HTTP 500: oops"),
        ("/502", Class::Transient, "HTTP 502"),
        ("/400?no%20such%20user", Class::Permanent, "HTTP 400: no such user"),
        ("/404", Class::Permanent, "HTTP 404"),
        ("/410", Class::Permanent, "HTTP 410"),
        (
            "/302",
            Class::Permanent,
            "HTTP 302: redirects are not followed. location=`https://elsewhere.example/`",
        ),
    ] {
        let fault = run(&service.push(path), &task).await.expect_err(path);
        assert_eq!((fault.class(), fault.reason()), (Some(class), reason), "{path}");
    }
    let fault = run(&service.push("/400?long"), &task).await.expect_err("refused");
    assert_eq!(fault.reason(), format!("HTTP 400: {}", "x".repeat(SHOWN_BYTES_MAX)));
}

#[test]
fn a_date_says_how_long_to_wait() {
    let clock = Clock::start();
    let after = |text: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, text.parse().expect("a value"));
        retry_after(&headers, clock)
    };
    let at = std::time::UNIX_EPOCH + Duration::from_micros(clock.now().0) + Duration::from_secs(100);
    let wait = after(&httpdate::fmt_http_date(at)).expect("it is in the future");
    assert!(wait > Duration::from_secs(60) && wait <= Duration::from_secs(101), "{wait:?}");
    assert_eq!(after("Wed, 21 Oct 2015 07:28:00 GMT"), None);
    assert_eq!(after("-5"), None);
    assert_eq!(after("99999999999999999999999"), None);
}

#[tokio::test]
async fn every_field_is_in_a_header_and_the_body_is_as_it_was() {
    let service = Service::start().await;
    let body = Bytes::from_static(b"{\"to\": 1}");
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let task = Task {
        id: Some("email-17"),
        key: Some("grüße"),
        kind: Some("email.send"),
        schema: Some(2),
        priority: 5,
        headers: vec![("tenant", "a"), ("traceparent", trace), ("no name", "x"), ("bad", "a\nb"), ("", "x")],
        ..Task::plain(&body)
    };
    let push = service.push_with("/200", &["Authorization: Bearer secret", "X-Two: 1", "X-Two: 2"], None);
    run(&push, &task).await.expect("acked");
    let (headers, came) = service.last();
    assert_eq!(came, body);
    let text =
        |name: &str| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    for (name, value) in [
        ("content-type", "application/json"),
        ("forebay-stream", "emails"),
        ("forebay-group", "senders"),
        ("forebay-seq", "12"),
        ("forebay-attempt", "1"),
        ("forebay-id", "email-17"),
        ("forebay-key", "grüße"),
        ("forebay-type", "email.send"),
        ("forebay-schema", "2"),
        ("forebay-priority", "5"),
        ("forebay-published-at", "2023-11-14T22:13:20.000000Z"),
        ("idempotency-key", "email-17"),
        ("forebay-header-tenant", "a"),
        ("traceparent", trace),
        ("authorization", "Bearer secret"),
        ("content-length", "9"),
    ] {
        assert_eq!(text(name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(headers.get_all("x-two").iter().count(), 2);
    assert_eq!(headers.keys().filter(|name| name.as_str().starts_with("forebay-header-")).count(), 2);

    let body = Bytes::from_static(b"hello");
    run(&service.push("/200"), &Task::plain(&body)).await.expect("acked");
    let (headers, _) = service.last();
    assert_eq!(headers["content-type"], "text/plain; charset=utf-8");
    assert_eq!(headers["idempotency-key"], "emails/senders/12");
    assert!(!headers.contains_key("forebay-id"));
    let csv = Task { headers: vec![("Content-Type", "text/csv")], id: Some("a\nb"), ..Task::plain(&body) };
    run(&service.push("/200"), &csv).await.expect("acked");
    let (headers, _) = service.last();
    assert_eq!(headers["content-type"], "text/csv");
    assert_eq!(headers["idempotency-key"], "emails/senders/12", "an id that is no header's value");
    let said = Task { content_type: Some("image/png"), ..csv.clone() };
    run(&service.push("/200"), &said).await.expect("acked");
    assert_eq!(service.last().0["content-type"], "image/png");
    let many: Vec<String> = (0..40_000).map(|n| format!("h{n}")).collect();
    let many = Task { headers: many.iter().map(|name| (&**name, "x")).collect(), ..Task::plain(&body) };
    assert!(
        service
            .push("/200")
            .headers
            .request(&"http://a/".parse().expect("an address"), &many)
            .headers()
            .len()
            < 1_100
    );
}

#[tokio::test]
async fn a_connection_is_used_again() {
    let service = Service::start().await;
    let body = Bytes::from_static(b"hello");
    let push = service.push("/200?thanks");
    for _ in 0..20 {
        run(&push, &Task::plain(&body)).await.expect("acked");
    }
    assert_eq!(service.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn what_cannot_be_reached_or_does_not_answer_is_tried_again() {
    let service = Service::start().await;
    let body = Bytes::new();
    let task = Task::plain(&body);
    let push = service.push_with("/hang", &[], Some(Duration::from_millis(50)));
    let fault = run(&push, &task).await.expect_err("it hangs");
    assert_eq!((fault.class(), fault.reason()), (Some(Class::Transient), "timed out after 50ms"));
    let fault = service.push("/hang").run_task(&task, async {}).await.expect_err("cancelled");
    assert_eq!(fault.reason(), "the lease was lost");

    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = closed.local_addr().expect("it has an address");
    drop(closed);
    let nobody =
        Push::new(target(&format!("http://{address}/")).expect("an address"), Headers::default(), None);
    let fault = run(&nobody, &task).await.expect_err("nobody listens");
    assert_eq!(fault.class(), Some(Class::Transient));
    assert!(fault.reason().starts_with("cannot connect: Connection refused"), "{}", fault.reason());

    // A service that does not speak TLS.
    let plain = format!("https://{}/200", service.address);
    let plain = Push::new(target(&plain).expect("an address"), Headers::default(), None);
    let fault = run(&plain, &task).await.expect_err("it is not understood");
    assert_eq!(fault.class(), Some(Class::Transient));
    assert!(fault.reason().starts_with("cannot connect: "), "{}", fault.reason());
    assert_eq!(service.seen.lock().expect("nobody panicked").len(), 1, "only the first one came through");
}

#[test]
fn what_is_no_address_or_no_header_is_refused() {
    for wrong in ["", "example.com/hook", "ftp://example.com", "/hook", "http://", "https://a:b@example.com/"]
    {
        assert!(target(wrong).is_err(), "{wrong}");
    }
    for good in ["http://127.0.0.1:8000", "https://example.com/hook?x=1", "http://[::1]:80/"] {
        assert!(target(good).is_ok(), "{good}");
    }
    let said = |header: &str| {
        let error = Headers::read(&[header.to_owned()]).expect_err(header);
        crate::exit::text(&error)
    };
    assert!(said("Authorization").contains("NAME: VALUE"));
    assert!(said("a b: c").contains("the name of a header is invalid"));
    assert!(said("Content-Length: 5").contains("belongs to the connection"));
    let secret = said("Authorization: se\u{1}cret");
    assert!(!secret.contains("cret") && secret.contains("authorization"), "{secret}");
    assert!(said("@/no/such/file").contains("cannot read"));

    let file = std::env::temp_dir().join(format!("forebay-headers-{}", std::process::id()));
    std::fs::write(&file, "Authorization: Bearer x\n\nX-A: 1\n").expect("it can be written");
    let headers = Headers::read(&[format!("@{}", file.display())]).expect("headers");
    assert_eq!(headers.0["authorization"], "Bearer x");
    assert_eq!(headers.0.len(), 2);
    std::fs::write(&file, "X-A: 1\nnonsense\n").expect("it can be written");
    assert!(said(&format!("@{}", file.display())).contains("line=`2`"));
    let _ = std::fs::remove_file(&file);
}
