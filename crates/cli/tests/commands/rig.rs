//! A server and the command, as a person and a script have them: nothing but processes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A folder that goes when the test does.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let name = format!("commands-{name}-{}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder can be made");
        Folder(path)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("the folder's name is text").to_owned()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).expect("the file can be written");
        self.path(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a command printed and said, and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) printed: String,
    pub(crate) said: String,
}

impl Ran {
    /// What it printed, if it ended well.
    #[track_caller]
    pub(crate) fn good(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.printed
    }

    #[track_caller]
    pub(crate) fn json(self) -> Value {
        let printed = self.good();
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
    }

    /// It ended with this code and said all of this.
    #[track_caller]
    pub(crate) fn refused(self, code: i32, said: &[&str]) -> Ran {
        assert_eq!(self.code, code, "{self:?}");
        for text in said {
            assert!(self.said.contains(text), "{text} is not in {self:?}");
        }
        self
    }
}

/// Runs the command with nothing of the environment that it might listen to, but these.
pub(crate) fn run(words: &[&str], input: &str, environment: &[(&str, &str)]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FOREBAY_")) {
        command.env_remove(name);
    }
    let mut child = command
        .args(words)
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_owned();
    // It may end before it has read everything.
    let writing = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().expect("it ends");
    writing.join().expect("the input is written");
    Ran {
        code: output.status.code().unwrap_or(-1),
        printed: String::from_utf8(output.stdout).expect("it prints text"),
        said: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A running server. Killed if the test does not stop it.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    /// The first line of its log.
    pub(crate) first: Value,
    rest: Option<std::thread::JoinHandle<String>>,
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

    /// Whatever it says first. Its log is in JSON, since it does not go to a terminal.
    pub(crate) fn start_first(words: &[&str]) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_forebay"))
            .arg("serve")
            .args(words)
            // Tests run beside each other, and only one of them could have the usual port.
            .env("FOREBAY_SQS", "none")
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        said.read_line(&mut line).expect("it says something");
        let first: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let address = first["address"].as_str().unwrap_or_default().to_owned();
        let rest = std::thread::spawn(move || {
            let mut rest = String::new();
            let _ = said.read_to_string(&mut rest);
            rest
        });
        Server { child, address, first, rest: Some(rest) }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        self.run_with(words, "")
    }

    pub(crate) fn run_with(&self, words: &[&str], input: &str) -> Ran {
        run(words, input, &[("FOREBAY_SERVER", &self.address)])
    }

    /// Stops it as an operator does, and answers what it had logged.
    pub(crate) fn stop(mut self) -> Vec<Value> {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status().expect("there is a kill command");
        assert!(sent.success());
        let status = self.child.wait().expect("it ends");
        assert_eq!(status.code(), Some(0), "a server that is asked to stop ends well");
        let log = self.rest.take().expect("it is read once").join().expect("it is read");
        let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        log.lines().map(line).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether there is such a file.
pub(crate) fn exists(path: &str) -> bool {
    Path::new(path).exists()
}
