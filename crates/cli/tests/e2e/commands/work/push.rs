//! An HTTP service that gets each message.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{body, group, impatient, parked, publish, work};
use crate::commands::rig::Server;
use crate::rig::Folder;

/// A request as it came.
#[derive(Debug, Clone)]
struct Request {
    at: Instant,
    headers: String,
    body: String,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        let fits = |line: &&str| line.split(':').next().is_some_and(|of| of.eq_ignore_ascii_case(name));
        let line = self.headers.lines().find(fits)?;
        line.split_once(':').map(|(_, value)| value.trim())
    }
}

/// A small service, on real sockets.
struct Service {
    address: String,
    came: Arc<Mutex<Vec<Request>>>,
}

impl Service {
    /// Answers each request with what comes back: a status line with the headers below it, and a text.
    fn start(answer: impl Fn(&Request) -> (String, String) + Send + Sync + 'static) -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has an address").to_string();
        let came = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (came.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            while let Ok((socket, _)) = listener.accept() {
                let (seen, answer) = (seen.clone(), answer.clone());
                std::thread::spawn(move || serve(socket, &seen, &*answer));
            }
        });
        Service { address, came }
    }

    fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// Requests with this body.
    fn came(&self, body: &str) -> Vec<Request> {
        let came = self.came.lock().expect("nobody panicked");
        came.iter().filter(|request| request.body == body).cloned().collect()
    }
}

fn serve(socket: TcpStream, seen: &Mutex<Vec<Request>>, answer: &dyn Fn(&Request) -> (String, String)) {
    let mut reader = BufReader::new(socket.try_clone().expect("a socket"));
    let mut socket = socket;
    loop {
        let (mut headers, mut line) = (String::new(), String::new());
        while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
            headers.push_str(&line);
            line.clear();
        }
        if headers.is_empty() {
            return;
        }
        let mut request = Request { at: Instant::now(), headers, body: String::new() };
        let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        request.body = String::from_utf8(body).expect("text");
        let (status, text) = answer(&request);
        seen.lock().expect("nobody panicked").push(request);
        let length = text.len();
        let _ = write!(socket, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{text}");
    }
}

/// Answers with the status that a message asks for.
fn obedient(request: &Request) -> (String, String) {
    let wanted = request.body.trim_matches('"');
    (format!("{wanted} as asked"), format!("you asked for {wanted}\nand more"))
}

#[test]
fn the_status_of_the_answer_decides_what_becomes_of_a_message() {
    let server = Server::start();
    impatient(&server, "jobs/team");
    let statuses = ["200", "202", "204", "400", "404", "408", "422", "500", "502", "503", "301"];
    publish(&server, "jobs", &statuses.map(body));
    let service = Service::start(obedient);
    let became = work(&server, &["jobs/team", "--push", &service.url()]);
    let expected = json!({
        "stream": "jobs", "group": "team", "done": 3, "retried": 8, "parked": 8, "skipped": 0, "throttled": 0,
        "given_back": 0, "late": 0,
    });
    assert_eq!(became, expected);
    let mut found = parked(&server, "jobs/team");
    found.sort();
    let expected = [
        ("301", 1, "HTTP 301: redirects are not followed"),
        ("400", 1, "HTTP 400: you asked for 400"),
        ("404", 1, "HTTP 404: you asked for 404"),
        ("408", 3, "HTTP 408: you asked for 408"),
        ("422", 1, "HTTP 422: you asked for 422"),
        ("500", 3, "HTTP 500: you asked for 500"),
        ("502", 3, "HTTP 502: you asked for 502"),
        ("503", 3, "HTTP 503: you asked for 503"),
    ];
    assert_eq!(
        found,
        expected.map(|(body, attempts, reason)| (body.to_owned(), attempts, reason.to_owned()))
    );
    let tries: Vec<Option<String>> = service
        .came("\"500\"")
        .iter()
        .map(|request| request.header("forebay-attempt").map(str::to_owned))
        .collect();
    assert_eq!(tries, ["1", "2", "3"].map(|attempt| Some(attempt.to_owned())));
}

#[test]
fn a_service_that_asks_for_time_gets_it() {
    let server = Server::start();
    impatient(&server, "jobs/team");
    publish(&server, "jobs", &[body("busy")]);
    let times = Mutex::new(0);
    let service = Service::start(move |_| {
        let mut times = times.lock().expect("nobody panicked");
        *times += 1;
        match *times {
            1 => ("503 Busy\r\nRetry-After: 1".to_owned(), String::new()),
            _ => ("200 OK".to_owned(), String::new()),
        }
    });
    let words = ["work", "jobs/team", "--create", "--push", &service.url(), "--idle", "3s", "-o", "json"];
    let became = server.run(&words).json();
    assert_eq!((&became["done"], &became["retried"]), (&1.into(), &1.into()), "{became}");
    let came = service.came("\"busy\"");
    assert_eq!(came.len(), 2);
    assert!(came[1].at - came[0].at >= Duration::from_secs(1), "{:?}", came[1].at - came[0].at);
    assert_eq!(came[1].header("forebay-attempt"), Some("2"));
}

#[test]
fn one_that_is_overloaded_costs_no_attempt_and_lets_the_group_rest() {
    let server = Server::start();
    impatient(&server, "jobs/team");
    publish(&server, "jobs", &["first", "second"].map(body));
    let times = Mutex::new(0);
    let service = Service::start(move |_| {
        let mut times = times.lock().expect("nobody panicked");
        *times += 1;
        match *times {
            1 => ("429 Slow down\r\nRetry-After: 1".to_owned(), "slow down".to_owned()),
            _ => ("200 OK".to_owned(), String::new()),
        }
    });
    let words = [
        "work",
        "jobs/team",
        "--create",
        "--push",
        &service.url(),
        "--idle",
        "3s",
        "--concurrency",
        "1",
        "-o",
        "json",
    ];
    let became = server.run(&words).json();
    assert_eq!((&became["done"], &became["throttled"]), (&2.into(), &1.into()), "{became}");
    let first = service.came("\"first\"");
    assert_eq!(first.len(), 2);
    assert_eq!(first[1].header("forebay-attempt"), Some("1"));
    assert!(first[1].at - first[0].at >= Duration::from_secs(1));
    let second = service.came("\"second\"");
    assert!(second[0].at - first[0].at >= Duration::from_millis(900), "{:?}", second[0].at - first[0].at);
    assert_eq!(group(&server, "jobs/team")["lag"], 0);
}

#[test]
fn a_service_knows_everything_about_a_message() {
    let folder = Folder::made("work-push");
    let secret = folder.write("secret", "Authorization: Bearer 4711\n");
    let server = Server::start();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let full = json!({"id": "email-17", "type": "email.send", "key": "user-4",
                      "headers": {"tenant": "a", "traceparent": trace},
                      "body": {"to": "a@example.com"}, "priority": 5, "schema": 2});
    publish(&server, "emails", &[full]);
    let service = Service::start(|_| ("200 OK".to_owned(), String::new()));
    let header = format!("@{secret}");
    let became = work(&server, &["emails/senders", "--push", &service.url(), "--header", &header]);
    assert_eq!(became["done"], 1);
    let came = service.came(r#"{"to":"a@example.com"}"#);
    let request = &came[0];
    assert!(request.headers.starts_with("POST /hook HTTP/1.1\r\n"), "{}", request.headers);
    for (name, value) in [
        ("content-type", "application/json"),
        ("forebay-stream", "emails"),
        ("forebay-group", "senders"),
        ("forebay-seq", "1"),
        ("forebay-attempt", "1"),
        ("forebay-id", "email-17"),
        ("forebay-key", "user-4"),
        ("forebay-type", "email.send"),
        ("forebay-schema", "2"),
        ("idempotency-key", "email-17"),
        ("forebay-header-tenant", "a"),
        ("traceparent", trace),
        ("authorization", "Bearer 4711"),
    ] {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
}

#[test]
fn while_nobody_answers_messages_keep_their_retries() {
    let server = Server::start();
    impatient(&server, "jobs/team");
    let numbers: Vec<Value> = (0..200).map(|n| body(&n.to_string())).collect();
    publish(&server, "jobs", &numbers);
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("http://{}/", closed.local_addr().expect("it has an address"));
    drop(closed);
    let worker = super::Worker::start(&server, &["jobs/team", "--push", &url]);
    worker.says("nearly all messages fail");
    worker.signal("-TERM");
    let ran = worker.ended();
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.said.contains("refused"), "{ran:?}");
    // Those that were tried before it stopped, and no others.
    let shown = group(&server, "jobs/team");
    assert!(shown["parked"].as_u64() < Some(40), "{shown}");
}
