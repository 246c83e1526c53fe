//! The whole server over gRPC: publish, deliver, ack, with clients in this process and the server in
//! another.
//!
//! Two producers keep 1,024 messages unconfirmed each, in batches; four consumers ack everything they
//! get. Beside it, in the same run and with the same clients, stands a bare pass-through: the same
//! service without storage or leases, which hands what is published to the consumers through a channel.
//! The distance to it is what Forebay costs; the pass-through itself is what gRPC costs.

mod clients;
mod passthrough;

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::arguments::Arguments;
use clients::Workload;

/// The name under which this program runs as the pass-through.
pub(crate) const CHILD: &str = "e2e-passthrough";

/// The clock that `/proc` counts processor time by. Linux has used this value everywhere for decades.
const TICKS_PER_SECOND: f64 = 100.0;

pub(crate) fn run(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let seconds = arguments.seconds(3.0)?;
    let batches = arguments.take("batch")?.map_or(vec![1, 8, 64], |batch| vec![batch]);
    let sizes = arguments.take("body")?.map_or(vec![100, 1024], |size| vec![size]);
    let credits = arguments.take("credit")?.map_or(vec![256, 2048], |credit| vec![credit]);
    let program: Option<PathBuf> = arguments.take("program")?;
    let folder = arguments.folder()?;
    arguments.finish()?;
    let own = std::env::current_exe()?;
    let program = program.unwrap_or_else(|| own.with_file_name("forebay"));
    println!("messages a second through publish, deliver and ack; server CPU for each");
    println!(
        "{:>6} {:>6} {:>7} | {:>22} {:>22} {:>22} | {:>6}",
        "body", "batch", "credit", "journal", "memory", "pass-through", "ratio"
    );
    for &size in &sizes {
        for &credit in &credits {
            for &batch in &batches {
                let workload = Workload { size, batch, credit, lasts: Duration::from_secs_f64(seconds) };
                let _ = std::fs::remove_dir_all(&folder);
                let data = folder.to_str().ok_or("the folder's name is not text")?;
                let serve = ["serve", "--listen", "127.0.0.1:0"];
                let journal =
                    measure(Server::start(&program, &[&serve[..], &["--data", data]].concat())?, &workload)?;
                let memory =
                    measure(Server::start(&program, &[&serve[..], &["--memory"]].concat())?, &workload)?;
                let bare = measure(Server::start(&own, &[CHILD])?, &workload)?;
                println!(
                    "{size:>6} {batch:>6} {credit:>7} | {journal:>22} {memory:>22} {bare:>22} | {:>6.2}",
                    journal.rate / bare.rate
                );
            }
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}

pub(crate) fn run_child(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    arguments.finish()?;
    passthrough::serve()
}

/// What was measured of one server.
struct Figure {
    rate: f64,
    /// Processor time of the server for each message, in microseconds.
    cpu: f64,
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{:.0}/s {:.2} µs", self.rate, self.cpu))
    }
}

fn measure(server: Server, workload: &Workload) -> Result<Figure, Box<dyn Error>> {
    let id = server.child.id();
    let measured = clients::run(&server.address, workload, || cpu_seconds(id))?;
    Ok(Figure {
        rate: measured.acked as f64 / measured.took.as_secs_f64(),
        cpu: measured.cpu * 1e6 / measured.acked as f64,
    })
}

/// Processor time that a process has used so far, of all its threads.
fn cpu_seconds(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name of the program is in parentheses and may hold anything; what follows is numbers.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |n: usize| fields.get(n).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / TICKS_PER_SECOND
}

/// A server in a process of its own, ended when dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(program: &Path, words: &[&str]) -> Result<Server, Box<dyn Error>> {
        let mut child = Command::new(program)
            .args(words)
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot run {}: {error}", program.display()))?;
        let mut said = BufReader::new(child.stderr.take().ok_or("no pipe")?);
        let mut line = String::new();
        said.read_line(&mut line)?;
        let address = line.split_once("listening on ").and_then(|(_, rest)| rest.split([',', '\n']).next());
        let address = address.ok_or_else(|| format!("the server did not start: {line}"))?.to_owned();
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                eprintln!("server: {line}");
            }
        });
        Ok(Server { child, address })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
