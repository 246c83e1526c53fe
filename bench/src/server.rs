//! The server in a process of its own, and what the kernel says of it.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::arguments::Arguments;
use crate::measure::Memory;

/// The clock that `/proc` counts processor time by. Linux has used this value everywhere for decades.
const TICKS_PER_SECOND: f64 = 100.0;

/// The program to measure: what `--program` says, or the one beside this program.
pub(crate) fn program(arguments: &mut Arguments) -> Result<PathBuf, Box<dyn Error>> {
    let own = std::env::current_exe()?;
    Ok(arguments.take("program")?.unwrap_or_else(|| own.with_file_name("forebay")))
}

/// A server, killed when dropped: it never gets a chance to say goodbye.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    /// Where it serves SQS, if it does.
    pub(crate) sqs: Option<String>,
    /// Where it serves KurrentDB clients, if it does.
    pub(crate) kurrent: Option<String>,
}

impl Server {
    /// Runs a program that says where it listens.
    pub(crate) fn start(program: &Path, words: &[&str]) -> Result<Server, Box<dyn Error>> {
        let mut child = Command::new(program)
            .args(words)
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot run {}: {error}", program.display()))?;
        let mut said = BufReader::new(child.stderr.take().ok_or("no pipe")?);
        // Warnings may come before the line that says where it listens.
        let mut told = String::new();
        let line = loop {
            let mut line = String::new();
            if said.read_line(&mut line)? == 0 {
                return Err(format!("the server did not start: {told}").into());
            }
            if line.contains("listening on ") {
                break line;
            }
            told.push_str(&line);
        };
        let after = |mark: &str| Some(line.split_once(mark)?.1.split([',', '\n']).next()?.to_owned());
        let address = after("listening on ").ok_or_else(|| format!("the server did not start: {line}"))?;
        let (sqs, kurrent) = (after("SQS on "), after("Kurrent on "));
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                eprintln!("server: {line}");
            }
        });
        Ok(Server { child, address, sqs, kurrent })
    }

    /// `forebay serve` on a port of its own.
    pub(crate) fn serve(program: &Path, data: &Path) -> Result<Server, Box<dyn Error>> {
        let data = data.to_str().ok_or("the folder's name is not text")?;
        Server::start(
            program,
            &["serve", "--listen", "127.0.0.1:0", "--sqs", "none", "--kurrent", "none", "--data", data],
        )
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Processor time used so far, of all its threads, in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.id())
    }

    pub(crate) fn memory(&self) -> std::io::Result<Memory> {
        Memory::of(&self.id().to_string())
    }

    pub(crate) fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.id())).map_or(0, Iterator::count)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn cpu_seconds(process: u32) -> f64 {
    let [user, system, ..] = times(process);
    user + system
}

/// As [`cpu_seconds`], with those of its children that have ended.
pub(crate) fn cpu_seconds_of_all(process: u32) -> f64 {
    times(process).iter().sum()
}

/// User and system time of a process, and of its children that have ended.
fn times(process: u32) -> [f64; 4] {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name of the program is in parentheses and may hold anything; what follows is numbers.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |n: usize| fields.get(n).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    [11, 12, 13, 14].map(|n| ticks(n) / TICKS_PER_SECOND)
}

/// Bytes that the files of a folder take on disk.
pub(crate) fn folder_bytes(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}
