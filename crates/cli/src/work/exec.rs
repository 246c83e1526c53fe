//! `--exec`: a process for each message, with the body on its standard input and the fields in its environment.
//! Its exit status decides the fate of the message.

mod environment;
mod output;
mod process_group;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use forebay_client::{Class, Fault, Job};
use forebay_wire::json::Span;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::output::{Tail, pump};
pub(super) use self::process_group::GRACE;
use self::process_group::ProcessGroup;
use super::console::{Console, Origin};
use super::reason::{REASON_BYTES_MAX, last, one_line};
use super::task::Task;
use crate::connect::Server;
use crate::exit::Exit;
use crate::log::Level;
use crate::safe::printable;

const RETRY: i32 = 75;
const PARK: i32 = 65;
const SKIP: i32 = 99;
/// A shell ends with this and the signal's number if what it ran was ended by one.
const SHELL_SIGNAL: i32 = 128;
/// Processes in the background may keep a handler's output open after it has ended. It is read for this long.
const OUTPUT_PATIENCE: Duration = Duration::from_millis(500);
/// The wait before the next try where no process could be started.
const NO_PROCESS_WAIT: Duration = Duration::from_secs(1);

pub(crate) struct Exec {
    command: String,
    timeout: Option<Duration>,
    /// Where handlers find the server if they publish.
    server: String,
    /// Variables of this process that could be taken for those of a message.
    misleading: Vec<OsString>,
    console: Console,
    /// Becomes true when running handlers have to end.
    hurry: watch::Receiver<bool>,
}

/// How a handler came to its end.
enum Ended {
    ByItself(std::io::Result<ExitStatus>),
    TimedOut(Duration),
    /// Asked to, because there is no more time; it may have finished all the same.
    Hurried(Option<ExitStatus>),
    /// The lease is lost.
    Cancelled,
}

impl Exec {
    /// Refuses a command that cannot be run at all, on which every message would fail.
    pub(super) fn new(
        command: &str,
        timeout: Option<Duration>,
        server: &Server,
        console: Console,
        hurry: watch::Receiver<bool>,
    ) -> anyhow::Result<Exec> {
        check(command)?;
        let is_misleading = |name: &OsString| name.to_str().is_some_and(environment::is_ours);
        Ok(Exec {
            command: command.to_owned(),
            timeout,
            server: server.first()?.text(),
            misleading: std::env::vars_os().map(|(name, _)| name).filter(is_misleading).collect(),
            console,
            hurry,
        })
    }

    pub(super) async fn run(&self, job: &Job<Bytes>) -> Result<(), Fault> {
        self.run_task(&Task::of(job), job.info.cancelled()).await
    }

    async fn run_task(&self, task: &Task<'_>, cancelled: impl Future<Output = ()>) -> Result<(), Fault> {
        let mut child = match self.start(task) {
            Ok(child) => child,
            // The message is not to blame, so the attempt does not count.
            Err(error) => {
                let reason = format!("no process could be started: {error}");
                return Err(Fault::new(Class::Snooze(NO_PROCESS_WAIT), reason));
            }
        };
        let mut group = ProcessGroup::led_by(&child);
        let tail = Tail::default();
        let mut pipes = self.connect(&mut child, task, &tail);
        let mut ended = tokio::select! {
            status = child.wait() => Ended::ByItself(status),
            timeout = passed(self.timeout) => Ended::TimedOut(timeout),
            () = cancelled => Ended::Cancelled,
            () = hurried(self.hurry.clone()) => Ended::Hurried(None),
        };
        match &mut ended {
            Ended::ByItself(_) => group.let_go(),
            Ended::Hurried(status) => *status = group.end(&mut child).await,
            Ended::TimedOut(_) => drop(group.end(&mut child).await),
            Ended::Cancelled => {
                let of = (task.seq, task.attempt);
                self.console.log_message(
                    Level::Warn,
                    of,
                    "ended, because its lease was lost",
                    &[("seq", task.seq.into())],
                );
                group.end(&mut child).await;
            }
        }
        let closed = async { while pipes.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(OUTPUT_PATIENCE, closed).await;
        verdict(ended, &tail.text())
    }

    fn start(&self, task: &Task<'_>) -> std::io::Result<Child> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(&self.command);
        for name in &self.misleading {
            command.env_remove(name);
        }
        command
            .env("FOREBAY_SERVER", &self.server)
            .envs(environment::variables(task))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    }

    /// Reads and writes at the same time, so that a handler that writes before it has read everything does not block.
    fn connect(&self, child: &mut Child, task: &Task<'_>, tail: &Tail) -> JoinSet<()> {
        let mut pipes = JoinSet::new();
        let origin = |output| Origin { seq: task.seq, attempt: task.attempt, output };
        if let Some(stdin) = child.stdin.take() {
            pipes.spawn(feed(stdin, task.body.clone()));
        }
        if let Some(stdout) = child.stdout.take() {
            pipes.spawn(pump(stdout, None, origin("stdout"), self.console.clone()));
        }
        if let Some(stderr) = child.stderr.take() {
            pipes.spawn(pump(stderr, Some(tail.clone()), origin("stderr"), self.console.clone()));
        }
        pipes
    }
}

async fn feed(mut stdin: ChildStdin, body: Bytes) {
    // A handler need not read what it does not want.
    let _ = stdin.write_all(&body).await;
    let _ = stdin.shutdown().await;
}

async fn passed(timeout: Option<Duration>) -> Duration {
    match timeout {
        Some(timeout) => {
            tokio::time::sleep(timeout).await;
            timeout
        }
        None => std::future::pending().await,
    }
}

async fn hurried(mut hurry: watch::Receiver<bool>) {
    if hurry.wait_for(|hurry| *hurry).await.is_err() {
        // The sender is gone, so the signal never comes.
        std::future::pending::<()>().await;
    }
}

/// The result of a handler that ended like this, with the end of its standard error.
fn verdict(ended: Ended, said: &str) -> Result<(), Fault> {
    let status = match ended {
        Ended::ByItself(Ok(status)) => status,
        Ended::ByItself(Err(error)) => {
            return Err(Fault::transient(format!("the exit code of the handler is unknown: {error}")));
        }
        Ended::TimedOut(after) => {
            return Err(Fault::transient(reason(&format!("timed out after {}", Span(after)), said)));
        }
        Ended::Cancelled => return Err(Fault::transient("the lease was lost")),
        // Any other status only says that it was asked to end.
        Ended::Hurried(status) => match status {
            Some(status) if [0, PARK, SKIP].map(Some).contains(&status.code()) => status,
            _ => return Err(Fault::new(Class::Snooze(Duration::ZERO), "there was no time to finish")),
        },
    };
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(RETRY), _) => Err(Fault::transient(own_words(RETRY, said))),
        (Some(PARK), _) => Err(Fault::permanent(own_words(PARK, said))),
        (Some(SKIP), _) => Err(Fault::skip(own_words(SKIP, said))),
        (Some(code), _) => Err(Fault::transient(reason(&code_words(code), said))),
        (None, Some(signal)) => {
            Err(Fault::transient(reason(&format!("ended by {}", signal_name(signal)), said)))
        }
        (None, None) => Err(Fault::transient(reason("ended for no known reason", said))),
    }
}

/// For an end that the handler has chosen: its own words say it best.
fn own_words(code: i32, said: &str) -> String {
    let said = one_line(said);
    if said.is_empty() { format!("exit code {code}") } else { last(&said, REASON_BYTES_MAX) }
}

fn reason(what: &str, said: &str) -> String {
    match one_line(said) {
        said if said.is_empty() => what.to_owned(),
        said => format!("{what}: {}", last(&said, REASON_BYTES_MAX - what.len() - 2)),
    }
}

fn code_words(code: i32) -> String {
    match code - SHELL_SIGNAL {
        signal if (1..=31).contains(&signal) => format!("exit code {code} ({})", signal_name(signal)),
        _ => format!("exit code {code}"),
    }
}

fn signal_name(signal: i32) -> String {
    use rustix::process::Signal;
    let known = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::TERM, "SIGTERM"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
    ];
    let known = known.iter().find(|(of, _)| of.as_raw() == signal);
    known.map_or_else(|| format!("signal {signal}"), |(_, name)| (*name).to_owned())
}

/// Checks a command before the first message.
fn check(command: &str) -> anyhow::Result<()> {
    let refused = |why: String| {
        let command = printable(command);
        anyhow!(Exit::NotUnderstood).context(format!("--exec cannot run this: {why}. command=`{command}`"))
    };
    if command.trim().is_empty() || command.contains('\0') {
        return Err(refused("it is not a command".to_owned()));
    }
    let parsed = std::process::Command::new("sh")
        .args(["-n", "-c", command])
        .stdin(Stdio::null())
        .output()
        .context("cannot run `sh`, which runs the command")?;
    if !parsed.status.success() {
        return Err(refused(printable(&one_line(&String::from_utf8_lossy(&parsed.stderr)))));
    }
    let Some(program) = program(command) else { return Ok(()) };
    if program.contains('/') {
        let file = match std::fs::metadata(program) {
            Ok(file) => file,
            Err(error) => return Err(refused(format!("`{program}`: {error}"))),
        };
        if !file.is_file() {
            return Err(refused(format!("`{program}` is not a file that can be run")));
        }
        if file.permissions().mode() & 0o111 == 0 {
            return Err(refused(format!("`{program}` is not executable; `chmod +x {program}` may help")));
        }
        return Ok(());
    }
    // The shell knows what it has itself, and where it looks for the rest.
    let known = std::process::Command::new("sh")
        .args(["-c", "command -v -- \"$1\" >/dev/null", "sh", program])
        .stdin(Stdio::null())
        .status()
        .context("cannot run `sh`, which runs the command")?;
    if known.success() { Ok(()) } else { Err(refused(format!("there is no command `{program}`"))) }
}

/// The first word of a command, if it is plain enough to be known before the shell has looked at it.
fn program(command: &str) -> Option<&str> {
    let word = command.split_whitespace().next()?;
    let plain = |c: char| c.is_alphanumeric() || "_-./+@%:,".contains(c);
    word.chars().all(plain).then_some(word)
}
