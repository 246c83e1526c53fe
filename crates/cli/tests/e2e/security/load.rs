//! Clients without a credential, and one with limits, beside a client that is measured.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::commands::rig::Server;
use crate::commands::tokens::{ADMIN, private, with};
use crate::rig::{Folder, sized};

/// How long one round of measuring takes, and how many there are with the load and without it, in turn.
fn rounds() -> (Duration, usize) {
    sized((Duration::from_millis(700), 2), (Duration::from_secs(4), 3))
}

/// Between two requests of the client that is measured.
const PACE: Duration = Duration::from_millis(2);

/// A server with credentials, whose messages are in memory: nothing but the requests is measured.
fn start(folder: &Folder) -> Server {
    let admin = private(folder, "admin.token", ADMIN);
    Server::start_with(&["--memory", "--require-auth", "--admin-token-file", &admin])
}

fn token(server: &Server, words: &[&str]) -> String {
    let create = [&["token", "create"][..], words].concat();
    with(server, ADMIN, &create).good().trim().to_owned()
}

fn publish(address: &str, authorization: &str) -> String {
    let body = r#"{"messages":[{"body":"x"}]}"#;
    format!(
        "POST /streams/work/messages HTTP/1.1\r\nhost: {address}\r\nauthorization: {authorization}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A connection over which a request is sent again and again.
struct Line {
    socket: TcpStream,
    request: Vec<u8>,
}

impl Line {
    fn open(address: &str, request: &str) -> Option<Line> {
        let socket = TcpStream::connect(address).ok()?;
        socket.set_nodelay(true).ok()?;
        socket.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
        Some(Line { socket, request: request.as_bytes().to_vec() })
    }

    /// The status of the answer. None: the connection has ended.
    fn ask(&mut self) -> Option<u16> {
        self.socket.write_all(&self.request).ok()?;
        let mut answer = Vec::new();
        loop {
            let mut bytes = [0; 4_096];
            let count = self.socket.read(&mut bytes).ok().filter(|count| *count > 0)?;
            answer.extend_from_slice(&bytes[..count]);
            let text = String::from_utf8_lossy(&answer);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if length.and_then(|length| length.parse().ok()).is_none_or(|length: usize| body.len() >= length)
            {
                return head.split(' ').nth(1)?.parse().ok();
            }
        }
    }
}

/// How long each publish of a client with a token takes.
fn measure(address: &str, token: &str, lasts: Duration, times: &mut Vec<Duration>) {
    let mut line = Line::open(address, &publish(address, &format!("Bearer {token}"))).expect("it listens");
    let begun = Instant::now();
    while begun.elapsed() < lasts {
        let asked = Instant::now();
        assert_eq!(line.ask(), Some(201), "a client that is known is served");
        times.push(asked.elapsed());
        std::thread::sleep(PACE);
    }
}

fn quantile(times: &mut [Duration], share: f64) -> Duration {
    times.sort();
    times[((times.len() - 1) as f64 * share) as usize]
}

/// Threads that load the server until they are told to end.
struct Load {
    is_over: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// So many threads that do this again and again.
    fn begin(threads: usize, step: impl Fn(usize) + Send + Sync + 'static) -> Load {
        let (is_over, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let step = Arc::new(step);
        let one = |n: usize| {
            let (is_over, asked, step) = (is_over.clone(), asked.clone(), step.clone());
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    step(n);
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let threads = (0..threads).map(one).collect();
        Load { is_over, asked, threads }
    }

    /// Ends it, and says how often its threads did what they do.
    fn end(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("the load is answered as it should be");
        }
        self.asked.load(Ordering::Relaxed)
    }
}

/// Measures with and without a load in turn, and sees that the load slows the client down by no more than `factor`,
/// and what a busy machine adds.
fn compare(what: &str, server: &Server, token: &str, factor: f64, load: impl Fn() -> Load) {
    let (lasts, rounds) = rounds();
    let (mut calm, mut loaded, mut asked) = (Vec::new(), Vec::new(), 0);
    measure(&server.address, token, lasts / 2, &mut Vec::new());
    for _ in 0..rounds {
        measure(&server.address, token, lasts, &mut calm);
        let load = load();
        // It takes a moment until all of it is there.
        std::thread::sleep(Duration::from_millis(200));
        measure(&server.address, token, lasts, &mut loaded);
        asked += load.end();
    }
    assert!(asked > 0, "{what}: there was no load");
    let [calm, loaded] = [&mut calm, &mut loaded].map(|times| {
        let (count, half) = (times.len(), quantile(times, 0.5));
        println!("{what}: {count} publishes, p50 {half:?}, p99 {:?}", quantile(times, 0.99));
        quantile(times, 0.99)
    });
    println!(
        "{what}: p99 {:.2} x, with {asked} steps of the load",
        loaded.as_secs_f64() / calm.as_secs_f64()
    );
    // Beside other tests a thread may wait for the processor for longer than all of this takes.
    let slack = sized(Duration::from_millis(500), Duration::from_millis(1));
    assert!(loaded <= calm.mul_f64(factor) + slack, "{what}: p99 was {calm:?} and is {loaded:?}");
}

/// A client that sends ten times what it may is refused, and another one does not feel it.
#[test]
fn a_noisy_client_does_not_slow_down_another() {
    let folder = Folder::made("noisy");
    let server = start(&folder);
    let quiet = token(&server, &["quiet", "--may", "publish:work"]);
    let noisy = token(&server, &["noisy", "--may", "publish:work", "--limit", "requests=100,in_flight=4"]);
    let address = server.address.clone();
    let request = publish(&address, &format!("Bearer {noisy}"));
    compare("a noisy client", &server, &quiet, 2.0, move || {
        let (address, request) = (address.clone(), request.clone());
        // Ten threads, each a hundred times a second.
        Load::begin(10, move |_| {
            let Some(mut line) = Line::open(&address, &request) else { return };
            for _ in 0..100 {
                let Some(status) = line.ask() else { return };
                assert!(status == 201 || status == 429, "{status}");
                std::thread::sleep(Duration::from_millis(10));
            }
        })
    });
}

/// Many connections that send a head byte by byte.
#[test]
fn slow_connections_do_not_slow_down_a_client_that_is_known() {
    let folder = Folder::made("slow-flood");
    let server = start(&folder);
    let known = token(&server, &["known", "--may", "publish:work"]);
    let address = server.address.clone();
    compare("400 slow connections", &server, &known, 2.0, move || {
        let address = address.clone();
        Load::begin(4, move |_| {
            let mut sockets: Vec<TcpStream> =
                (0..100).filter_map(|_| TcpStream::connect(&address).ok()).collect();
            for byte in b"GET /streams HTTP/1.1\r\nx: yyyyyyyyyyyy" {
                sockets.retain_mut(|socket| socket.write_all(&[*byte]).is_ok());
                std::thread::sleep(Duration::from_millis(50));
            }
        })
    });
}

/// Heads and bodies as large as they may be, and larger.
#[test]
fn large_requests_do_not_slow_down_a_client_that_is_known() {
    let folder = Folder::made("large-flood");
    let server = start(&folder);
    let known = token(&server, &["known", "--may", "publish:work"]);
    let address = server.address.clone();
    compare("large requests", &server, &known, 2.0, move || {
        let address = address.clone();
        Load::begin(4, move |n| {
            let Ok(mut socket) = TcpStream::connect(&address) else { return };
            let _ = socket.set_write_timeout(Some(Duration::from_secs(1)));
            let _ = socket.set_read_timeout(Some(Duration::from_secs(5)));
            let large = match n % 2 {
                0 => format!("GET /streams HTTP/1.1\r\nhost: {address}\r\nx: {}\r\n\r\n", "x".repeat(70_000)),
                _ => format!(
                    "POST /streams/work/messages HTTP/1.1\r\nhost: {address}\r\ncontent-length: 10000000\r\n\r\n{}",
                    "x".repeat(1_000_000)
                ),
            };
            let _ = socket.write_all(large.as_bytes());
            let _count = socket.read(&mut [0; 64]);
            std::thread::sleep(Duration::from_millis(5));
        })
    });
}

/// Connections that come and go, each with a wrong token, and with wrong passwords.
#[test]
fn wrong_credentials_do_not_slow_down_a_client_that_is_known() {
    let folder = Folder::made("guesses");
    let server = start(&folder);
    let known = token(&server, &["known", "--may", "publish:work"]);
    with(&server, ADMIN, &["user", "create", "alice", "--may", "publish:work"]).good();
    for what in ["wrong tokens", "wrong passwords"] {
        let address = server.address.clone();
        compare(what, &server, &known, 2.0, move || {
            let (address, guesses) = (address.clone(), AtomicU64::new(0));
            Load::begin(32, move |_| {
                let guess = guesses.fetch_add(1, Ordering::Relaxed);
                let authorization = match what {
                    "wrong tokens" => format!("Bearer fby_0123456789abcdef_{guess:043}"),
                    _ => format!("Basic {}", BASE64_STANDARD.encode(format!("alice:guess number {guess}"))),
                };
                let Some(mut line) = Line::open(&address, &publish(&address, &authorization)) else { return };
                let status = line.ask();
                assert!(matches!(status, Some(401 | 503) | None), "{status:?}");
                std::thread::sleep(Duration::from_millis(10));
            })
        });
    }
}
