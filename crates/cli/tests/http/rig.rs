//! A server process, and the folder that it keeps its data in.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::client::{Connection, Reply};

/// A folder that goes when the test does.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let name = format!("http-{name}-{}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running server. Killed if the test does not stop it.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(folder: &Folder) -> Server {
        Server::start_with(&["--data", folder.0.to_str().expect("the folder's name is text")])
    }

    pub(crate) fn in_memory() -> Server {
        Server::start_with(&["--memory"])
    }

    /// With further words on its command line.
    pub(crate) fn start_as(folder: &Folder, words: &[&str]) -> Server {
        let data = ["--data", folder.0.to_str().expect("the folder's name is text")];
        Server::start_with(&[&data[..], words].concat())
    }

    fn start_with(words: &[&str]) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(["serve", "--log", "text", "--listen", "127.0.0.1:0", "--sqs", "none"])
            .args(words)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut all = String::new();
        let address = loop {
            let mut line = String::new();
            let count = said.read_line(&mut line).expect("it says something");
            assert!(count > 0, "the server did not start: {all}");
            if let Some((_, rest)) = line.split_once("listening on ") {
                break rest.split([',', ' ', '\n']).next().expect("there is a first part").to_owned();
            }
            all.push_str(&line);
        };
        // Whatever else it says must not fill the pipe.
        std::thread::spawn(move || {
            let mut rest = String::new();
            let _ = said.read_to_string(&mut rest);
        });
        Server { child, address }
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection::open(&self.address)
    }

    /// One call on a connection of its own.
    pub(crate) fn call(&self, method: &str, path: &str, body: &str) -> Reply {
        self.connect().call(method, path, body)
    }

    /// A call that has to do what it says.
    #[track_caller]
    pub(crate) fn ok(&self, method: &str, path: &str, body: &str) -> Value {
        let reply = self.call(method, path, body);
        assert!(reply.status < 300, "{method} {path} {body}: {} {}", reply.status, reply.text());
        if reply.body.is_empty() { Value::Null } else { reply.json() }
    }

    /// A call that has to be refused. Says how, as `status slug field retry`.
    #[track_caller]
    pub(crate) fn refused(&self, method: &str, path: &str, body: &str) -> String {
        self.call(method, path, body).problem()
    }

    #[track_caller]
    pub(crate) fn publish(&self, stream: &str, bodies: std::ops::RangeInclusive<u32>) {
        let messages: Vec<String> = bodies.map(|n| format!(r#"{{"body":{n}}}"#)).collect();
        let body = format!(r#"{{"messages":[{}]}}"#, messages.join(","));
        self.ok("POST", &format!("/streams/{stream}/messages"), &body);
    }

    /// Messages of the group `work/team`.
    #[track_caller]
    pub(crate) fn receive(&self, wish: &str) -> Vec<Value> {
        let reply = self.ok("POST", "/subscriptions/work/team/receive", wish);
        reply["messages"].as_array().expect("a list").clone()
    }

    /// As a power failure ends it, as far as the process is concerned.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// Tells it to stop, as an operator does.
    pub(crate) fn tell_to_stop(&self) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status().expect("there is a kill command");
        assert!(sent.success());
    }

    pub(crate) fn wait(mut self) {
        let status = self.child.wait().expect("it ends");
        assert_eq!(status.code(), Some(0), "a server that is asked to stop ends well");
    }

    pub(crate) fn stop(self) {
        self.tell_to_stop();
        self.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The numbers of something in a list.
pub(crate) fn numbers(list: &[Value], name: &str) -> Vec<u64> {
    list.iter().map(|item| item[name].as_u64().unwrap_or_else(|| panic!("{item} has no {name}"))).collect()
}

/// Their leases, as a list in JSON.
pub(crate) fn leases(messages: &[Value]) -> String {
    let leases: Vec<&Value> = messages.iter().map(|message| &message["lease"]).collect();
    serde_json::to_string(&leases).expect("a list")
}
