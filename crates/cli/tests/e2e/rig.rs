//! What every test of the binary needs: a folder, a command that is run, and a server process.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use serde_json::Value;

/// A folder that goes when the test does. The server makes it, unless the test does.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        // Tests run beside each other in one process, and two of them may choose the same name.
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let n = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("{name}-{}-{n}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }

    /// A folder that is there already.
    pub(crate) fn made(name: &str) -> Folder {
        let folder = Folder::new(name);
        std::fs::create_dir_all(&folder.0).expect("a folder can be made");
        folder
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().expect("the folder's name is text")
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("the folder's name is text").to_owned()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).expect("the file can be written");
        self.file(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The built binary, with nothing of the environment that it might listen to.
pub(crate) fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FOREBAY_")) {
        command.env_remove(name);
    }
    // Not the contexts of the person who runs the tests.
    command.env("XDG_CONFIG_HOME", "/nonexistent");
    command
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

/// Runs the command with this input and, of the environment that it might listen to, these variables alone.
pub(crate) fn run(words: &[&str], input: &str, environment: &[(&str, &str)]) -> Ran {
    let mut child = binary()
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

/// The size of a story: usually as much as takes seconds, and all of it if `FOREBAY_WEAR` is `full`, as in
/// `cargo xtask wear`.
pub(crate) fn sized<T>(usual: T, full: T) -> T {
    if std::env::var("FOREBAY_WEAR").is_ok_and(|size| size == "full") { full } else { usual }
}

/// Runs the command with this input.
pub(crate) fn forebay(words: &[&str], input: &str) -> Ran {
    run(words, input, &[])
}

/// A server process. Killed if the test does not end it.
pub(crate) struct Process {
    child: Child,
    /// What it said after it had started.
    log: Option<JoinHandle<String>>,
}

impl Process {
    /// Starts a server with these words, and reads its log up to the first line in which `find` finds something.
    #[track_caller]
    pub(crate) fn serve<T>(words: &[&str], find: impl Fn(&str) -> Option<T>) -> (Process, T) {
        Process::start(binary().arg("serve").args(words), find)
    }

    /// As [`Process::serve`], with no more than so many open files.
    #[track_caller]
    pub(crate) fn serve_within<T>(
        files: u32,
        words: &[&str],
        find: impl Fn(&str) -> Option<T>,
    ) -> (Process, T) {
        let mut shell = Command::new("sh");
        let binary = binary();
        for (name, value) in binary.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.arg("-c").arg(format!("ulimit -n {files}; exec \"$@\"")).arg("sh");
        Process::start(shell.arg(binary.get_program()).arg("serve").args(words), find)
    }

    #[track_caller]
    fn start<T>(command: &mut Command, find: impl Fn(&str) -> Option<T>) -> (Process, T) {
        let mut child = command
            // Tests run beside each other, and only one of them could have the usual ports.
            .env("FOREBAY_SQS", "none")
            .env("FOREBAY_KURRENT", "none")
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
        // Remarks on anything unusual come first.
        let mut lines = String::new();
        let found = loop {
            let mut line = String::new();
            let count = said.read_line(&mut line).expect("it says something");
            assert!(count > 0, "the server did not start: {lines}");
            if let Some(found) = find(&line) {
                break found;
            }
            lines.push_str(&line);
        };
        // Whatever else it says must not fill the pipe.
        let log = std::thread::spawn(move || {
            let mut rest = String::new();
            let _ = said.read_to_string(&mut rest);
            rest
        });
        (Process { child, log: Some(log) }, found)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// As a power failure ends it, as far as the process is concerned.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    /// Asks it to stop, and does not wait until it has.
    pub(crate) fn terminate(&self) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status().expect("there is a kill command");
        assert!(sent.success());
    }

    /// Waits until it has ended, and says with which code.
    pub(crate) fn ended(mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }

    /// Stops it as an operator does, sees that it stopped cleanly, and answers what it had logged.
    pub(crate) fn stop(mut self) -> String {
        self.terminate();
        let status = self.child.wait().expect("it ends");
        assert_eq!(status.code(), Some(0), "a server that is asked to stop ends well");
        self.log.take().expect("it is read once").join().expect("it is read")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address in the line with which a server says that it listens, as text: the one after `mark`.
pub(crate) fn address_after(mark: &str, line: &str) -> Option<String> {
    Some(line.split_once(mark)?.1.split([',', ' ', '\n']).next()?.to_owned())
}
