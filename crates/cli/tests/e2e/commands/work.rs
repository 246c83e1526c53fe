//! `forebay work`, with real handlers.

mod exec;
mod push;
mod stop;
mod webhooks;

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::commands::rig::Server;
use crate::rig::Ran;

const PATIENCE: Duration = Duration::from_secs(60);

/// Asks again and again, for as long as a slow machine may need.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "it never came to this: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A running `forebay work`. Killed if the test does not end it.
pub(crate) struct Worker {
    child: Child,
    said: Arc<Mutex<String>>,
    reading: Option<std::thread::JoinHandle<()>>,
}

impl Worker {
    pub(crate) fn start(server: &Server, words: &[&str]) -> Worker {
        let mut child = Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(["work", "--create"])
            .args(words)
            .env("FOREBAY_SERVER", &server.address)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut stderr = child.stderr.take().expect("a pipe");
        let said = Arc::new(Mutex::new(String::new()));
        let hears = said.clone();
        let reading = std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(read @ 1..) = stderr.read(&mut chunk) {
                hears.lock().expect("nobody panicked").push_str(&String::from_utf8_lossy(&chunk[..read]));
            }
        });
        Worker { child, said, reading: Some(reading) }
    }

    pub(crate) fn said(&self) -> String {
        self.said.lock().expect("nobody panicked").clone()
    }

    #[track_caller]
    pub(crate) fn says(&self, text: &str) {
        until(text, || self.said().contains(text).then_some(()));
    }

    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().expect("there is a kill command");
        assert!(sent.success());
    }

    /// Waits until it has ended.
    pub(crate) fn ended(mut self) -> Ran {
        let status = self.child.wait().expect("it ends");
        let mut printed = String::new();
        self.child.stdout.take().expect("a pipe").read_to_string(&mut printed).expect("text");
        self.reading.take().expect("it is read once").join().expect("it is read");
        Ran { code: status.code().unwrap_or(-1), printed, said: self.said() }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Works until there is nothing more to do, and answers what became of everything.
pub(crate) fn work(server: &Server, words: &[&str]) -> Value {
    let all = [&["work", "--create"], words, &["--idle", "1s", "-o", "json"]].concat();
    server.run(&all).json()
}

pub(crate) fn publish(server: &Server, stream: &str, messages: &[Value]) {
    let lines: Vec<String> = messages.iter().map(ToString::to_string).collect();
    server.run_with(&["pub", stream, "--ndjson"], &lines.join("\n")).good();
}

pub(crate) fn group(server: &Server, group: &str) -> Value {
    server.run(&["group", "show", group, "-o", "json"]).json()
}

/// The parked messages: bodies, attempts and reasons, in order.
pub(crate) fn parked(server: &Server, group: &str) -> Vec<(String, u64, String)> {
    let list = server.run(&["parked", "list", group, "-o", "json"]).json();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    let one = |parked: &Value| {
        let body = &parked["message"]["body"];
        (text(body), parked["attempts"].as_u64().expect("a number"), text(&parked["reason"]))
    };
    list["parked"].as_array().expect("a list").iter().map(one).collect()
}

/// A group that tries twice again, soon.
pub(crate) fn impatient(server: &Server, group: &str) {
    let words = ["max_retries=2", "backoff.min=10ms", "backoff.max=20ms"];
    server.run(&[&["group", "create", group], &words[..]].concat()).good();
}

pub(crate) fn body(text: &str) -> Value {
    json!({ "body": text })
}
