//! A server and the command, as a person and a script have them: nothing but processes.

use std::path::Path;

use serde_json::Value;

use crate::rig::{Process, Ran, run};

/// A running server. Killed if the test does not stop it.
pub(crate) struct Server {
    process: Process,
    pub(crate) address: String,
    /// The first line of its log.
    pub(crate) first: Value,
}

impl Server {
    /// With everything in memory.
    pub(crate) fn start() -> Server {
        Server::start_with(&["--memory"])
    }

    pub(crate) fn start_with(words: &[&str]) -> Server {
        let server = Server::start_first(&[&["--listen", "127.0.0.1:0"], words].concat());
        assert!(!server.address.is_empty(), "it does not listen: {}", server.first);
        server
    }

    /// Whatever it says first, apart from the limit of open files and details. Its log is in JSON, since it does not go
    /// to a terminal.
    pub(crate) fn start_first(words: &[&str]) -> Server {
        let is_first = |line: &Value| line.get("open_files").is_none() && line["level"] != "debug";
        let (process, first) = Process::serve(words, |line| Some(json(line)).filter(is_first));
        let address = first["address"].as_str().unwrap_or_default().to_owned();
        Server { process, address, first }
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        self.run_with(words, "")
    }

    pub(crate) fn run_with(&self, words: &[&str], input: &str) -> Ran {
        run(words, input, &[("FOREBAY_SERVER", &self.address)])
    }

    /// Stops it as an operator does, and answers what it had logged.
    pub(crate) fn stop(self) -> Vec<Value> {
        self.process.stop().lines().map(json).collect()
    }
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// Whether the file exists.
pub(crate) fn exists(path: &str) -> bool {
    Path::new(path).exists()
}
