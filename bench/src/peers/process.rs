//! A server of another project in its own process: started as a user without rights, asked until it answers, and
//! killed with everything that it started when it is dropped.

use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getuid, kill_process, kill_process_group};

use super::contender::{Failure, Step};

/// A port that is free when we look may be taken when the server comes to it.
const TRIES: u32 = 3;
const ANSWERS_WITHIN: Duration = Duration::from_secs(120);
const DIES_WITHIN: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// What the server says, in its folder.
const LOG: &str = "server.log";

/// A command that runs in this folder, which is made if need be and given to the user that the command runs
/// as: a user without rights where we are root. This user must be able to pass through the folders above.
pub(crate) fn command(program: &Path, folder: &Path) -> Result<Command, Failure> {
    let mut command = own_command(program, folder)?;
    if getuid().is_root() {
        let (user, group) = without_rights()?;
        chown(folder, Some(user), Some(group))?;
        command.uid(user).gid(group);
    }
    Ok(command)
}

/// The same as the current user: only this user can reach programs that were installed into its cache.
pub(crate) fn own_command(program: &Path, folder: &Path) -> Result<Command, Failure> {
    std::fs::create_dir_all(folder)?;
    let log = std::fs::File::options().create(true).append(true).open(folder.join(LOG))?;
    let mut command = Command::new("setpriv");
    if dies_with_us(&mut command) {
        command.arg(program);
    } else {
        command = Command::new(program);
    }
    command.current_dir(folder).process_group(0).stdin(Stdio::null());
    command.stdout(log.try_clone()?).stderr(log);
    Ok(command)
}

/// What a program prints, such as its version.
pub(crate) fn output(program: &Path, words: &[&str]) -> Result<String, Failure> {
    let run = Command::new(program).args(words).stdin(Stdio::null()).output();
    let run = run.map_err(|error| format!("cannot run {}: {error}", program.display()))?;
    if !run.status.success() {
        return Err(format!("{} {words:?} failed: {}", program.display(), run.status).into());
    }
    Ok(String::from_utf8_lossy(&run.stdout).trim().to_owned())
}

/// Runs a command of [`command`] to its end, and fails if it does.
pub(crate) fn run(mut command: Command, folder: &Path) -> Result<(), Failure> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("{status}. {}", said(folder)).into()) }
}

/// A server that runs for as long as this value lives.
pub(crate) struct Process {
    id: Pid,
    /// Waits for the process to end. It started it as well: the kernel kills the process when the thread that
    /// started it ends.
    keeper: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts a server on a free port and waits until it answers without a failure.
    pub(crate) async fn start(
        folder: &Path,
        command: impl Fn(u16) -> Result<Command, Failure>,
        answers: impl Fn(u16) -> Step<'static, ()>,
    ) -> Result<(Process, u16), Failure> {
        let mut last = String::new();
        for _ in 0..TRIES {
            let port = free_port()?;
            let process = Process::spawn(command(port)?)?;
            let since = Instant::now();
            while !process.is_gone() && since.elapsed() < ANSWERS_WITHIN {
                match tokio::time::timeout(Duration::from_secs(5), answers(port)).await {
                    Ok(Ok(())) => return Ok((process, port)),
                    Ok(Err(failure)) => last = failure.to_string(),
                    Err(_) => last = "no answer".to_owned(),
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        Err(format!("the server does not start: {last}. {}", said(folder)).into())
    }

    pub(crate) fn spawn(mut command: Command) -> Result<Process, Failure> {
        let (tell, told) = mpsc::channel();
        let keeper = std::thread::spawn(move || match command.spawn() {
            Ok(mut child) => {
                let _ = tell.send(Ok(Pid::from_child(&child)));
                let _ = child.wait();
            }
            Err(error) => {
                let _ = tell.send(Err(error));
            }
        });
        let id = told.recv()?.map_err(|error| format!("cannot run the server: {error}"))?;
        Ok(Process { id, keeper: Some(keeper) })
    }

    pub(crate) fn id(&self) -> u32 {
        self.id.as_raw_nonzero().get().unsigned_abs()
    }

    fn is_gone(&self) -> bool {
        self.keeper.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Some servers put what they start into groups of their own, so the group alone is not enough.
        let family = descendants(self.id());
        if !self.is_gone() {
            let _ = kill_process_group(self.id, Signal::KILL);
        }
        for &id in &family {
            if let Some(id) = i32::try_from(id).ok().and_then(Pid::from_raw) {
                let _ = kill_process(id, Signal::KILL);
            }
        }
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
        let since = Instant::now();
        while family.iter().any(|&id| is_alive(id)) && since.elapsed() < DIES_WITHIN {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// All that this process started, and what they started.
pub(crate) fn descendants(process: u32) -> Vec<u32> {
    let ids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = ids.filter_map(|id| Some((id, stat(id)?.1))).collect();
    let mut family = vec![process];
    let mut seen = 0;
    while seen < family.len() {
        let parent = family[seen];
        family.extend(parents.iter().filter(|it| it.1 == parent).map(|it| it.0));
        seen += 1;
    }
    family.split_off(1)
}

fn is_alive(process: u32) -> bool {
    stat(process).is_some_and(|(state, _)| state != 'Z')
}

/// The state of a process, and who started it.
fn stat(process: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program is in parentheses and may hold anything.
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Lets the kernel kill the command should we be killed, where that can be had.
fn dies_with_us(command: &mut Command) -> bool {
    let words = ["--pdeathsig", "KILL", "--"];
    let works = Command::new("setpriv").args(words).arg("true").stderr(Stdio::null()).status();
    command.args(words);
    works.is_ok_and(|status| status.success())
}

fn without_rights() -> Result<(u32, u32), Failure> {
    let users = std::fs::read_to_string("/etc/passwd")?;
    let number = |wanted: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(wanted))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    let found = ["postgres", "redis", "nobody"].into_iter().find_map(number);
    Ok(found.filter(|&(user, _)| user != 0).ok_or("there is no user without rights to run a server as")?)
}

/// The end of what the server said.
fn said(folder: &Path) -> String {
    let said = std::fs::read(folder.join(LOG)).unwrap_or_default();
    let said = String::from_utf8_lossy(&said[said.len().saturating_sub(2_000)..]).into_owned();
    format!("It said: {}", said.trim())
}

pub(crate) fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_started_dies_with_it() {
        let folder = std::env::temp_dir().join(format!("forebay-peers-process-{}", std::process::id()));
        let mut command = command(Path::new("/bin/sh"), &folder).expect("a command");
        command.args(["-c", "setsid sleep 1000 & sleep 1000 & wait"]);
        let process = Process::spawn(command).expect("a shell");
        let since = Instant::now();
        let mut family = Vec::new();
        while family.len() < 2 && since.elapsed() < DIES_WITHIN {
            family = descendants(process.id());
        }
        assert_eq!(family.len(), 2);
        drop(process);
        assert!(!family.iter().any(|&id| is_alive(id)));
        std::fs::remove_dir_all(&folder).expect("the folder goes");
    }
}
