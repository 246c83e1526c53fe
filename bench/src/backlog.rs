//! A long backlog: what it takes to keep, to open after a crash, and to work through.
//!
//! One process builds the backlog through driver and journal and is killed. Others then open the folder,
//! each measured from its own start: memory beside that of an empty folder, the time to the first
//! delivery, and the cost of a cycle beside that with a short backlog. Parent and children speak in lines
//! of `name=value`.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_broker::driver::DriverConfig;
use forebay_core::types::Timestamp;

use crate::arguments::Arguments;
use crate::measure::{Memory, Stopwatch, median};
use crate::shell::{JournalLog, Shell, batch};

/// How a child process is told what it is.
pub(crate) const CHILD: &str = "backlog-child";

const BODY: [u8; 100] = [b'x'; 100];
/// Messages of one publish while the backlog is built.
const BUILD_BATCH: u64 = 1_000;
/// Messages of one cycle.
const CYCLE_BATCH: u64 = 64;
/// Messages that a round drains from the front of the backlog; the short one must have as many.
const DRAIN: u64 = 6_400;
/// Messages that a round then cycles through.
const CYCLE: u64 = 64 * 400;
/// Messages that are added before each crash, so that every opening finds a tail to look through.
const TAIL: u64 = 200_000;
/// Openings after a crash that are measured.
const CRASHES: usize = 5;
/// What the consumer may hold.
const SLOTS: u32 = 64;

const MEMORY_BAR_KIB: u64 = 50_000_000 / 1_024;
const FIRST_BAR: Duration = Duration::from_millis(500);
/// What still counts as the same cost.
const SAME: f64 = 1.10;

pub(crate) fn run(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let many = arguments.number("messages", 10_000_000)?;
    let few = arguments.number("few", 10_000)?;
    let rounds = arguments.number("rounds", 9)?;
    let folder = arguments.folder()?.join(format!("backlog-{}", std::process::id()));
    arguments.finish()?;
    if many < few || few < DRAIN {
        return Err(format!("--messages must be at least --few, and --few at least {DRAIN}").into());
    }
    let result = compare(&folder, many, few, rounds);
    std::fs::remove_dir_all(&folder)?;
    result
}

fn compare(folder: &Path, many: u64, few: u64, rounds: u64) -> Result<(), Box<dyn Error>> {
    let folders = ["many", "few", "none"].map(|name| folder.join(name));
    let [long, short, empty] = &folders;
    for (folder, messages) in folders.iter().zip([many, few, 0]) {
        let built = build(folder, messages)?;
        let grown = built.get::<u64>("resident")?.saturating_sub(built.get("before")?);
        println!(
            "build {messages:>9}: {:.1} s, then SIGKILL; its process grew by {grown} KiB  {}: under \
             {MEMORY_BAR_KIB} KiB",
            built.get::<f64>("seconds")?,
            verdict(grown < MEMORY_BAR_KIB),
        );
    }
    let nothing: u64 = child("open", empty)?.get("resident")?;
    for state in ["warm", "cold"] {
        let mut opened = Vec::new();
        for _ in 0..CRASHES {
            build(long, TAIL)?;
            if state == "cold" {
                forget_cached(long)?;
            }
            opened.push(child("open", long)?);
        }
        report_opened(&opened, state, nothing)?;
    }
    // From here on both are read from memory, whatever the openings above have let go of.
    for folder in [long, short] {
        read_all(folder)?;
    }
    let mut costs = [Costs::default(), Costs::default()];
    for _ in 0..rounds {
        for (costs, folder) in costs.iter_mut().zip([long, short]) {
            costs.add(&child("cycle", folder)?, &child("cycle-read-back", folder)?)?;
        }
    }
    let [mut many_costs, mut few_costs] = costs;
    for (what, many_took, few_took) in [
        ("drain after opening, CPU", &mut many_costs.drain_cpu, &mut few_costs.drain_cpu),
        ("drain after opening, wall", &mut many_costs.drain_wall, &mut few_costs.drain_wall),
        ("cycle, read back in both, CPU", &mut many_costs.read_back_cpu, &mut few_costs.read_back_cpu),
        ("cycle, read back in both, wall", &mut many_costs.read_back_wall, &mut few_costs.read_back_wall),
        ("cycle, CPU", &mut many_costs.cycle_cpu, &mut few_costs.cycle_cpu),
        ("cycle, wall", &mut many_costs.cycle_wall, &mut few_costs.cycle_wall),
    ] {
        let (many_took, few_took) = (median(many_took), median(few_took));
        let ratio = many_took / few_took;
        // A drain is only as long as the short backlog, and mostly made of what opening costs once.
        let judged = match verdict(ratio <= SAME) {
            _ if what.starts_with("drain") => String::new(),
            verdict => format!("  {verdict}: at most {SAME}"),
        };
        println!(
            "{what:30}: {many_took:7.0} ns a message with {many} waiting, {few_took:7.0} ns with {few}: \
             {ratio:.3}{judged}",
        );
    }
    Ok(())
}

fn report_opened(opened: &[Report], state: &str, nothing: u64) -> Result<(), Box<dyn Error>> {
    let all = |name: &str| opened.iter().map(|report| report.get::<f64>(name)).collect::<Result<Vec<_>, _>>();
    let first = median(&mut all("first")?);
    let worst = all("first")?.into_iter().fold(0.0, f64::max);
    let waiting = all("waiting")?.into_iter().fold(0.0, f64::max);
    println!(
        "open, {state}: up to {waiting} waiting, {} crashes: journal {:.1} ms, shard {:.1} ms, first delivery after \
         {:.1} ms (worst {:.1})  {}: under {FIRST_BAR:?}",
        opened.len(),
        median(&mut all("journal")?) / 1e3,
        median(&mut all("shard")?) / 1e3,
        first / 1e3,
        worst / 1e3,
        verdict(worst < FIRST_BAR.as_micros() as f64),
    );
    let peak = all("peak")?.into_iter().fold(0.0, f64::max) - nothing as f64;
    println!(
        "memory, {state}: {} KiB more than an empty folder ({nothing} KiB), {peak} KiB at most; {} places in the \
         index  {}: under {MEMORY_BAR_KIB} KiB",
        median(&mut all("resident")?) - nothing as f64,
        median(&mut all("places")?),
        verdict(peak < MEMORY_BAR_KIB as f64),
    );
    Ok(())
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

/// Nanoseconds a message.
#[derive(Debug, Default)]
struct Costs {
    drain_wall: Vec<f64>,
    drain_cpu: Vec<f64>,
    cycle_wall: Vec<f64>,
    cycle_cpu: Vec<f64>,
    read_back_wall: Vec<f64>,
    read_back_cpu: Vec<f64>,
}

impl Costs {
    fn add(&mut self, report: &Report, read_back: &Report) -> Result<(), Box<dyn Error>> {
        self.drain_wall.push(report.get("drain-wall")?);
        self.drain_cpu.push(report.get("drain-cpu")?);
        self.cycle_wall.push(report.get("cycle-wall")?);
        self.cycle_cpu.push(report.get("cycle-cpu")?);
        self.read_back_wall.push(read_back.get("cycle-wall")?);
        self.read_back_cpu.push(read_back.get("cycle-cpu")?);
        Ok(())
    }
}

/// What a child said.
struct Report(BTreeMap<String, String>);

impl Report {
    fn read(lines: impl BufRead) -> Result<Report, Box<dyn Error>> {
        let mut values = BTreeMap::new();
        for line in lines.lines() {
            let line = line?;
            if line == DONE {
                return Ok(Report(values));
            }
            let (name, value) = line.split_once('=').ok_or_else(|| format!("a child said `{line}`"))?;
            values.insert(name.to_owned(), value.to_owned());
        }
        Err("a child ended before it was done".into())
    }

    fn get<T: FromStr>(&self, name: &str) -> Result<T, Box<dyn Error>> {
        let value = self.0.get(name).and_then(|value| value.parse().ok());
        value.ok_or_else(|| format!("a child did not say {name}").into())
    }
}

/// The last line of a child. A builder then waits to be killed.
const DONE: &str = "done";

fn start(what: &str, folder: &Path, messages: u64) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args([CHILD, "--do", what, "--dir"])
        .arg(folder)
        .args(["--messages", &messages.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
}

/// Runs a child to its end.
fn child(what: &str, folder: &Path) -> Result<Report, Box<dyn Error>> {
    let mut child = start(what, folder, 0)?;
    let report = Report::read(BufReader::new(child.stdout.take().ok_or("a child has no output")?));
    drop(child.stdin.take());
    let status = child.wait()?;
    if status.success() { report } else { Err(format!("a child failed ({status})").into()) }
}

/// Lets a child build a backlog and kills it when all of it is acknowledged.
fn build(folder: &Path, messages: u64) -> Result<Report, Box<dyn Error>> {
    let mut child = start("build", folder, messages)?;
    let report = Report::read(BufReader::new(child.stdout.take().ok_or("a child has no output")?));
    // On this system this is SIGKILL: nothing in the child gets to run again.
    child.kill()?;
    child.wait()?;
    report
}

/// Makes the next reads of a folder come from the disk.
fn forget_cached(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let file = std::fs::File::open(entry?.path())?;
        // Only pages that are on the disk already are let go.
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

/// Brings a folder into the system's cache.
fn read_all(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let mut file = std::fs::File::open(entry?.path())?;
        std::io::copy(&mut file, &mut std::io::sink())?;
    }
    Ok(())
}

/// What a child process does.
pub(crate) fn run_child(mut arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let what: String = arguments.take("do")?.ok_or("a child is told what to do")?;
    let folder: PathBuf = arguments.take("dir")?.ok_or("a child is told where")?;
    let messages = arguments.take("messages")?.unwrap_or(0);
    arguments.finish()?;
    match what.as_str() {
        "build" => build_here(&folder, messages)?,
        "open" => open_here(&folder)?,
        "cycle" => cycle_here(&folder, DriverConfig::default())?,
        "cycle-read-back" => cycle_here(&folder, read_back())?,
        other => return Err(format!("a child does not know how to `{other}`").into()),
    }
    println!("{DONE}");
    // Ends when the parent closes the pipe, or never, when the parent kills first.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Keeps less in memory than the short backlog has, so that its messages too are read back from the log.
/// With the ordinary window they are handed out from memory, as those of a long backlog cannot be.
fn read_back() -> DriverConfig {
    DriverConfig { window_bytes_max: 768 << 10, read_bytes_max: 256 << 10, ..DriverConfig::default() }
}

fn open_shell(folder: &Path, config: DriverConfig) -> Result<Shell<JournalLog>, Box<dyn Error>> {
    let (log, claim) = JournalLog::open(folder)?;
    Shell::open(log, claim, now()?, config)
}

fn now() -> Result<Timestamp, Box<dyn Error>> {
    Ok(Timestamp(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros() as u64))
}

fn build_here(folder: &Path, messages: u64) -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    let mut shell = open_shell(folder, DriverConfig::default())?;
    let before = Memory::now()?;
    let mut left = messages;
    while left > 0 {
        let size = left.min(BUILD_BATCH);
        publish(&mut shell, size)?;
        shell.log.tidy()?;
        left -= size;
    }
    println!("seconds={}", begun.elapsed().as_secs_f64());
    println!("before={}", before.resident);
    println!("resident={}", Memory::now()?.resident);
    Ok(())
}

/// Publishes a batch; on return it is acknowledged.
fn publish(shell: &mut Shell<JournalLog>, size: u64) -> Result<(), Box<dyn Error>> {
    shell.publish(&batch(size, &BODY))?;
    shell.turn()?;
    assert_eq!(shell.take_answers(), 1, "a publish is answered once it is durable");
    Ok(())
}

fn open_here(folder: &Path) -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    let (log, claim) = JournalLog::open(folder)?;
    let journal = begun.elapsed();
    let mut shell = Shell::open(log, claim, now()?, DriverConfig::default())?;
    let shard = begun.elapsed();
    shell.join(1, SLOTS)?;
    shell.turn()?;
    let delivered: usize = shell.driver.outbox().deliveries.iter().map(|it| it.messages.len()).sum();
    let first = begun.elapsed();
    let waiting = shell.driver.shard().figures(now()?, shell.group).ok_or("the group is gone")?.lag;
    if waiting > 0 && delivered == 0 {
        return Err("messages are waiting and none was delivered".into());
    }
    let memory = Memory::now()?;
    println!("journal={}", journal.as_micros());
    println!("shard={}", (shard - journal).as_micros());
    println!("first={}", first.as_micros());
    println!("resident={}", memory.resident);
    println!("peak={}", memory.peak);
    println!("waiting={waiting}");
    println!("places={}", shell.driver.index().len());
    Ok(())
}

/// Drains a round from the front, refills it, and cycles through a round.
fn cycle_here(folder: &Path, config: DriverConfig) -> Result<(), Box<dyn Error>> {
    let mut shell = open_shell(folder, config)?;
    shell.log.tidy()?;
    shell.join(1, SLOTS)?;
    let watch = Stopwatch::start();
    let mut drained = 0;
    while drained < DRAIN {
        shell.turn()?;
        drained += shell.ack_delivered();
    }
    let drain = watch.took();
    publish(&mut shell, drained)?;
    shell.ack_delivered();

    let watch = Stopwatch::start();
    let mut cycled = 0;
    while cycled < CYCLE {
        shell.publish(&batch(CYCLE_BATCH, &BODY))?;
        shell.turn()?;
        shell.take_answers();
        cycled += shell.ack_delivered();
    }
    let cycle = watch.took();
    let each = |took: Duration, messages: u64| took.as_nanos() as f64 / messages as f64;
    println!("drain-wall={}", each(drain.wall, drained));
    println!("drain-cpu={}", each(drain.cpu, drained));
    println!("cycle-wall={}", each(cycle.wall, cycled));
    println!("cycle-cpu={}", each(cycle.cpu, cycled));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_counts_only_when_the_child_was_done() {
        let report = Report::read(&b"first=12\npeak=7\ndone\n"[..]).expect("a whole report");
        assert_eq!(report.get::<u64>("first").ok(), Some(12));
        assert!(report.get::<u64>("resident").is_err());
        assert!(Report::read(&b"first=12\n"[..]).is_err());
        assert!(Report::read(&b"panicked\ndone\n"[..]).is_err());
    }
}
