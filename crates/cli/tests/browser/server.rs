//! The real server, and calls of its HTTP API.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(30);

/// A server on a free port, with its data in a folder of its own.
pub(crate) struct Server {
    process: Child,
    pub(crate) address: String,
    data: PathBuf,
}

impl Server {
    pub(crate) fn start() -> Server {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let data = std::env::temp_dir().join(format!("forebay-dashboard-{}-{number}", std::process::id()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FOREBAY_")) {
            command.env_remove(name);
        }
        let mut process = command
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--sqs",
                "none",
                "--kurrent",
                "none",
                "--log",
                "json",
                "--data",
            ])
            .arg(&data)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the server starts");
        let mut log = BufReader::new(process.stderr.take().expect("a pipe"));
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert!(log.read_line(&mut line).expect("a log") > 0, "the server ended before it listened");
            let said: Value = serde_json::from_str(&line).unwrap_or_default();
            if let Some(address) = said["address"].as_str() {
                break address.to_owned();
            }
        };
        // The rest of the log is read, so that the server is never held up by it.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Server { process, address, data }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The time that the server has spent on a processor since it started.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).expect("a process");
        // The name of the program ends with the last parenthesis. Times are in hundredths of a second, on every
        // Linux that there is.
        let after = stat.rsplit_once(')').expect("a name").1;
        let ticks = |n: usize| after.split_whitespace().nth(n).and_then(|text| text.parse::<f64>().ok());
        (ticks(11).expect("user time") + ticks(12).expect("system time")) / 100.0
    }

    pub(crate) fn client(&self) -> Client {
        Client { address: self.address.clone(), stream: None }
    }

    /// A call that succeeds.
    #[track_caller]
    pub(crate) fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, answer) = self.client().call(method, path, body).expect("an answer");
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        answer
    }

    /// Waits until a report is as it should be.
    #[track_caller]
    pub(crate) fn until(&self, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let report = self.call("GET", path, &Value::Null);
            if is_so(&report) {
                return report;
            }
            assert!(Instant::now() < until, "{path} never came to be: {report}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

/// A connection of a client.
pub(crate) struct Client {
    address: String,
    stream: Option<BufReader<TcpStream>>,
}

impl Client {
    /// Status and answer. `None` if the server is gone.
    pub(crate) fn call(&mut self, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        if self.stream.is_none() {
            self.stream = Some(BufReader::new(TcpStream::connect(&self.address).ok()?));
        }
        let stream = self.stream.as_mut()?;
        stream.get_mut().write_all(request.as_bytes()).ok()?;
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let status = line.split(' ').nth(1)?.parse().ok()?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.parse().ok()?;
            }
        }
        let mut answer = vec![0; length];
        stream.read_exact(&mut answer).ok()?;
        Some((status, serde_json::from_slice(&answer).unwrap_or(Value::Null)))
    }
}
