//! A server, and calls of its HTTP API.

use serde_json::Value;

use crate::http::client::{Connection, Reply};
use crate::rig::{Folder, Process, address_after};

/// A running server. Killed if the test does not stop it.
pub(crate) struct Server {
    process: Process,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(folder: &Folder) -> Server {
        Server::start_with(&["--data", folder.path()])
    }

    pub(crate) fn in_memory() -> Server {
        Server::start_with(&["--memory"])
    }

    /// With further words on its command line.
    pub(crate) fn start_as(folder: &Folder, words: &[&str]) -> Server {
        let data = ["--data", folder.path()];
        Server::start_with(&[&data[..], words].concat())
    }

    /// With a limit of open files, and an SQS API, whose address is the second value.
    pub(crate) fn start_within(files: u32, folder: &Folder, words: &[&str]) -> (Server, String) {
        let usual = ["--log", "text", "--listen", "127.0.0.1:0", "--sqs", "127.0.0.1:0", "--data"];
        let words = [&usual[..], &[folder.path()], words].concat();
        let (process, (address, sqs)) = Process::serve_within(files, &words, |line| {
            Some((address_after("listening on ", line)?, address_after("SQS on ", line)?))
        });
        (Server { process, address }, sqs)
    }

    pub(crate) fn start_with(words: &[&str]) -> Server {
        let words = [&["--log", "text", "--listen", "127.0.0.1:0"], words].concat();
        let (process, address) = Process::serve(&words, |line| address_after("listening on ", line));
        Server { process, address }
    }

    /// The most memory that the process has had, in MiB. Known on Linux only.
    pub(crate) fn memory_peak(&self) -> usize {
        self.memory("VmHWM:")
    }

    /// The memory that the process has, in MiB. Known on Linux only.
    pub(crate) fn memory_now(&self) -> usize {
        self.memory("VmRSS:")
    }

    fn memory(&self, which: &str) -> usize {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process_id())).expect("a process");
        let line = status.lines().find_map(|line| line.strip_prefix(which)).expect("a figure");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") >> 10
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

    pub(crate) fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// As a power failure ends it, as far as the process is concerned.
    pub(crate) fn kill(self) {
        self.process.kill();
    }

    /// Tells it to stop, as an operator does.
    pub(crate) fn tell_to_stop(&self) {
        self.process.terminate();
    }

    pub(crate) fn wait(self) {
        assert_eq!(self.process.ended(), Some(0), "a server that is asked to stop ends well");
    }

    pub(crate) fn stop(self) {
        self.process.stop();
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
