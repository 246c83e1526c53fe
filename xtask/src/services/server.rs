//! One server: started as an unprivileged user, asked until it answers, stopped when dropped.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::install::output;

/// A port that is free when we look may be taken when the server comes to it.
const TRIES: u32 = 5;
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);
const STOPS_WITHIN: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A temporary folder for everything that the servers write, and the user they run as.
pub(super) struct Scratch {
    folder: PathBuf,
    /// An unprivileged user, if we are root: PostgreSQL refuses to be root, and Redis should not be.
    user: Option<User>,
}

#[derive(Clone, Copy)]
struct User {
    id: u32,
    group: u32,
}

impl Scratch {
    pub(super) fn new() -> Result<Scratch, String> {
        let folder = std::env::temp_dir().join(format!("forebay-services-{}", std::process::id()));
        // Others may pass through, to the folders that are theirs.
        let made = std::fs::DirBuilder::new().mode(0o711).create(&folder);
        made.map_err(|error| format!("cannot make the folder {}: {error}", folder.display()))?;
        let mut scratch = Scratch { folder, user: None };
        // What we make is ours, so the folder tells who we are.
        let owner = std::fs::metadata(&scratch.folder).map(|about| about.uid());
        if owner.map_err(|error| format!("cannot look at the temporary folder: {error}"))? == 0 {
            scratch.user = Some(User::without_rights()?);
        }
        Ok(scratch)
    }

    fn folder_for(&self, server: &str) -> Result<PathBuf, String> {
        let folder = self.own_folder_for(server)?;
        if let Some(user) = self.user {
            chown(&folder, Some(user.id), Some(user.group))
                .map_err(|error| format!("cannot give {} away: {error}", folder.display()))?;
        }
        Ok(folder)
    }

    fn own_folder_for(&self, server: &str) -> Result<PathBuf, String> {
        let folder = self.folder.join(server);
        let made = std::fs::DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| format!("cannot make the folder {}: {error}", folder.display()))?;
        Ok(folder)
    }

    /// A command that runs in this folder, as the user, in silence but for a log.
    fn command(&self, program: &Path, folder: &Path) -> Result<Command, String> {
        let mut command = self.own_command(program, folder)?;
        if let Some(user) = self.user {
            command.gid(user.group).uid(user.id);
        }
        Ok(command)
    }

    /// A command that runs as our own user: programs that we built may lie where no other user can reach
    /// them.
    fn own_command(&self, program: &Path, folder: &Path) -> Result<Command, String> {
        let log = std::fs::File::create(folder.with_extension("log"))
            .and_then(|log| Ok((log.try_clone()?, log)))
            .map_err(|error| format!("cannot write a log: {error}"))?;
        let mut command = match dies_with_us() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.current_dir(folder).env_remove("PGDATA").stdin(Stdio::null()).stdout(log.0).stderr(log.1);
        Ok(command)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            eprintln!("xtask: cannot remove {}: {error}", self.folder.display());
        }
    }
}

impl User {
    fn without_rights() -> Result<User, String> {
        let number = |flag, name| output("id", &[flag, name]).ok()?.trim().parse::<u32>().ok();
        let found = ["postgres", "redis", "nobody"]
            .into_iter()
            .find_map(|name| Some(User { id: number("-u", name)?, group: number("-g", name)? }))
            .filter(|user| user.id != 0);
        found.ok_or_else(|| "there is no user without rights to run the services as".to_owned())
    }
}

/// What to put before a command so that the kernel interrupts it should the keeper be killed, where that can be had.
fn dies_with_us() -> Option<(&'static str, [&'static str; 3])> {
    let words = ["--pdeathsig", "INT", "--"];
    let works = Command::new("setpriv").args(words).arg("true").stderr(Stdio::null()).status();
    works.is_ok_and(|status| status.success()).then_some(("setpriv", words))
}

/// A server that runs for as long as this value lives.
pub(super) struct Server {
    child: Child,
    port: u16,
}

impl Server {
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Starts a server on a free port and waits until it answers.
    fn start(
        name: &str,
        log: &Path,
        command: impl Fn(u16) -> Result<Command, String>,
        answers: impl Fn(&mut TcpStream) -> std::io::Result<bool>,
    ) -> Result<Server, String> {
        for _ in 0..TRIES {
            let port = free_port().map_err(|error| format!("there is no free port for {name}: {error}"))?;
            let child = command(port)?.spawn().map_err(|error| format!("cannot start {name}: {error}"))?;
            let mut server = Server { child, port };
            let since = Instant::now();
            while since.elapsed() < ANSWERS_WITHIN {
                if ask(port, &answers).unwrap_or(false) {
                    return Ok(server);
                }
                if !matches!(server.child.try_wait(), Ok(None)) {
                    break;
                }
                std::thread::sleep(LOOK_EVERY);
            }
        }
        let said = std::fs::read_to_string(log).unwrap_or_default();
        Err(format!("{name} does not start. It said:\n{}", said.trim()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // An interrupt lets the server tidy up what outlives a process, such as shared memory. The shell knows how
        // to send one, whatever else is installed.
        let _ = Command::new("sh").args(["-c", "kill -INT \"$0\"", &self.child.id().to_string()]).status();
        let since = Instant::now();
        while since.elapsed() < STOPS_WITHIN {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn postgres(programs: &Path, scratch: &Scratch) -> Result<Server, String> {
    let folder = scratch.folder_for("postgres")?;
    let data = folder.join("data");
    let log = folder.with_extension("log");
    let made = scratch
        .command(&programs.join("initdb"), &folder)?
        .args([
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "--pgdata",
        ])
        .arg(&data)
        .status();
    if !made.is_ok_and(|status| status.success()) {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        return Err(format!("PostgreSQL cannot make its data folder. It said:\n{}", said.trim()));
    }
    let command = |port: u16| {
        let mut command = scratch.command(&programs.join("postgres"), &folder)?;
        command.arg("-D").arg(&data).arg("-p").arg(port.to_string());
        // The data does not outlive the tests, so nothing is gained by waiting for a disk; what one transaction
        // sees of another does not depend on it.
        let settings = ["fsync=off", "full_page_writes=off", "synchronous_commit=off"];
        // Reached by loopback alone: a socket would need a folder that everybody finds.
        let listens = ["listen_addresses=127.0.0.1", "unix_socket_directories="];
        for setting in settings.into_iter().chain(listens).chain(["max_connections=200"]) {
            command.args(["-c", setting]);
        }
        Ok(command)
    };
    Server::start("PostgreSQL", &log, command, postgres_answers)
}

pub(super) fn redis(program: &Path, scratch: &Scratch) -> Result<Server, String> {
    let folder = scratch.folder_for("redis")?;
    let log = folder.with_extension("log");
    let command = |port: u16| {
        let mut command = scratch.command(program, &folder)?;
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"]);
        command.arg("--port").arg(port.to_string()).arg("--dir").arg(&folder);
        Ok(command)
    };
    Server::start("Redis", &log, command, redis_answers)
}

/// Our own server, with its SQS door open. The port is that of the door.
pub(super) fn forebay(
    program: &Path,
    name: &str,
    settings: &[OsString],
    scratch: &Scratch,
) -> Result<Server, String> {
    let folder = scratch.own_folder_for(name)?;
    let log = folder.with_extension("log");
    let command = |port: u16| {
        let mut command = scratch.own_command(program, &folder)?;
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--drain-timeout", "1s", "--data"])
            .arg(folder.join("data"));
        command.args(["--kurrent", "none", "--sqs"]).arg(format!("127.0.0.1:{port}")).args(settings);
        // A developer's own settings must not affect the tests.
        let ours = std::env::vars_os().map(|(variable, _)| variable);
        for variable in ours.filter(|variable| variable.to_string_lossy().starts_with("FOREBAY_")) {
            command.env_remove(variable);
        }
        Ok(command)
    };
    Server::start("forebay", &log, command, http_answers)
}

/// Any answer will do: without an action there is nothing to be told but that.
fn http_answers(stream: &mut TcpStream) -> std::io::Result<bool> {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
    let mut answer = [0; 9];
    stream.read_exact(&mut answer)?;
    Ok(answer == *b"HTTP/1.1 ")
}

/// Begins a session and sees whether it is let in. While it starts up, PostgreSQL answers with an error.
fn postgres_answers(stream: &mut TcpStream) -> std::io::Result<bool> {
    const VERSION_3: [u8; 4] = [0, 3, 0, 0];
    let terms = b"user\0postgres\0database\0postgres\0\0";
    let length = u32::try_from(4 + VERSION_3.len() + terms.len()).expect("a few words").to_be_bytes();
    stream.write_all(&[&length[..], &VERSION_3, terms].concat())?;
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    stream.write_all(b"X\0\0\0\x04")?;
    Ok(kind == *b"R")
}

fn redis_answers(stream: &mut TcpStream) -> std::io::Result<bool> {
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer)?;
    Ok(answer == *b"+PONG")
}

fn ask(port: u16, answers: impl Fn(&mut TcpStream) -> std::io::Result<bool>) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    answers(&mut stream)
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a server that gives one answer.
    fn told(answer: &'static [u8], answers: fn(&mut TcpStream) -> std::io::Result<bool>) -> bool {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let _ = stream.read(&mut [0; 64]);
            stream.write_all(answer).expect("the answer is taken");
        });
        let is_answer = ask(port, answers).unwrap_or(false);
        server.join().expect("the server ends");
        is_answer
    }

    #[test]
    fn a_server_that_is_starting_up_does_not_count_as_one_that_answers() {
        assert!(told(b"R\0\0\0\x08\0\0\0\0", postgres_answers));
        assert!(!told(b"E\0\0\0\x08....", postgres_answers));
        assert!(!told(b"", postgres_answers));
        assert!(told(b"+PONG\r\n", redis_answers));
        assert!(!told(b"-LOADING Redis is loading\r\n", redis_answers));
        assert!(told(b"HTTP/1.1 404 Not Found\r\n\r\n", http_answers));
        assert!(!told(b"", http_answers));
    }
}
