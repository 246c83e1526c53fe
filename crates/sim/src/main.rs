//! `forebay-sim`: runs histories, sweeps and planted faults from the command line. `cargo xtask sim`,
//! `cargo xtask sweep` and `cargo xtask faults` come here.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command speaks to the one who called it")]

use std::fmt::Debug;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use forebay_core::fault::Fault;
use forebay_sim::history::{self, Failure, STEPS};
use forebay_sim::situation::{Situation, Situations};
use forebay_sim::{cluster, disk, shell, sweep, tale};

const HELP: &str = "\
Runs simulated histories of Forebay.

Usage:
  forebay-sim sim [--seeds N] [--from S] [--steps N]   histories from seed S on (default 200 from 0)
  forebay-sim tell SEED [--steps N]                    replays one history and tells what happened in it
  forebay-sim faults [--only NAME] [--seeds N]         each planted fault must be noticed within N seeds (500)
  forebay-sim shell [--seeds N] [--from S]             histories of the shard task and its callers (200 from 0)
  forebay-sim shell tell SEED                          replays one of them and tells what happened in it
  forebay-sim shell faults [--only NAME] [--seeds N]   each of its planted faults must be noticed within N seeds
  forebay-sim cluster [--seeds N] [--from S]           histories of two nodes on one log (200 from 0)
  forebay-sim cluster tell SEED                        replays one of them and tells what happened in it
  forebay-sim cluster faults [--only NAME] [--seeds N] each of its planted faults must be noticed within N seeds
  forebay-sim sweep [crash|corruption] [--full]        crash and corruption sweeps of the journal

With --bad-places, places of the disk go bad in every history: a read fails once or for ever.
With --encrypted, every data folder is encrypted.

Examples:
  forebay-sim sim --seeds 20000
  forebay-sim sim --from 4711 --seeds 1                replays one history
";

/// Seeds over which it is counted by what a planted fault is noticed.
const FAULT_SEEDS: u64 = 200;

/// Runs of at least this many seeds must have reached every rare situation.
const LONG_RUN: u64 = 2_000;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let Some(at) = words.iter().position(|word| *word == "--bad-places") {
        words.remove(at);
        history::let_reads_fail();
    }
    if let Some(at) = words.iter().position(|word| *word == "--encrypted") {
        words.remove(at);
        disk::encrypt_all();
    }
    let passed = match words[..] {
        ["sim", ref options @ ..] => parse(options, &["--seeds", "--from", "--steps"]).map(|given| {
            simulate(
                given[1].unwrap_or(0),
                given[0].unwrap_or(200),
                given[2].map_or(STEPS, |steps| steps as u32),
            )
        }),
        ["faults", "--only", name, ref options @ ..] => {
            parse(options, &["--seeds"]).map(|given| faults(Some(name), given[0].unwrap_or(500)))
        }
        ["faults", ref options @ ..] => {
            parse(options, &["--seeds"]).map(|given| faults(None, given[0].unwrap_or(500)))
        }
        ["tell", seed, ref options @ ..] => parse(options, &["--steps"]).and_then(|given| {
            let seed = seed.parse().map_err(|_| format!("not a seed: {seed}"))?;
            Ok(tell(seed, given[0].map_or(STEPS, |steps| steps as u32)))
        }),
        ["shell", ref rest @ ..] => SHELL.obey(rest),
        ["cluster", ref rest @ ..] => CLUSTER.obey(rest),
        ["sweep", ref options @ ..] => sweeps(options),
        ["help" | "--help" | "-h"] | [] => {
            print!("{HELP}");
            Ok(true)
        }
        [other, ..] => Err(format!("no such command: {other}")),
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("forebay-sim: {text}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}

/// Reads `--name number` pairs into the order of `names`.
fn parse(options: &[&str], names: &[&str]) -> Result<Vec<Option<u64>>, String> {
    let mut given = vec![None; names.len()];
    for pair in options.chunks(2) {
        let at =
            names.iter().position(|name| *name == pair[0]).ok_or(format!("no such option: {}", pair[0]))?;
        let value = pair.get(1).ok_or(format!("{} needs a number", pair[0]))?;
        given[at] = Some(value.parse().map_err(|_| format!("{} needs a number, not {value}", pair[0]))?);
    }
    Ok(given)
}

#[derive(Default)]
struct Tally {
    situations: Situations,
    crashes: u64,
    failures: Vec<Failure>,
}

fn simulate(from: u64, seeds: u64, steps: u32) -> bool {
    let started = Instant::now();
    let next = AtomicU64::new(from);
    let tally = Mutex::new(Tally::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for n in 0..threads {
            let work = || run_until(&next, from + seeds, steps, &tally);
            std::thread::Builder::new()
                .name(format!("history-{n}"))
                .spawn_scoped(scope, work)
                .expect("a thread");
        }
    });
    let mut tally = tally.into_inner().expect("a history does not break the tally");
    tally.failures.sort_by_key(|failure| failure.seed);
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{seeds} histories of {steps} steps from seed {from}, {:.0} a second, {:.2} crashes each",
        seeds as f64 / seconds,
        tally.crashes as f64 / seeds as f64
    );
    let mut missed = 0;
    for situation in Situation::ALL {
        let count = tally.situations.count(situation);
        missed += u64::from(count == 0);
        println!("{count:>10}  {situation}");
    }
    for failure in tally.failures.iter().take(10) {
        println!("\nseed {} breaks a promise at step {}: {}", failure.seed, failure.step, failure.text);
        println!("    replay: cargo xtask sim --from {} --seeds 1 --steps {steps}", failure.seed);
        println!("    in words: cargo xtask tell {} --steps {steps}", failure.seed);
    }
    if seeds >= LONG_RUN && missed > 0 {
        println!("\n{missed} situations were never reached, and in a long run each must be");
    }
    let failed = tally.failures.len() as u64;
    println!("\nsim: {} passed, {failed} failed", seeds - failed);
    failed == 0 && (seeds < LONG_RUN || missed == 0)
}

fn run_until(next: &AtomicU64, end: u64, steps: u32, tally: &Mutex<Tally>) {
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            break;
        }
        let outcome = history::run(seed, steps);
        let mut tally = tally.lock().expect("a history does not break the tally");
        match outcome {
            Ok(outcome) => {
                tally.crashes += u64::from(outcome.crashes);
                tally.situations.add(&outcome.situations);
            }
            Err(failure) => tally.failures.push(failure),
        }
    }
}

fn tell(seed: u64, steps: u32) -> bool {
    tale::begin();
    let outcome = history::run(seed, steps);
    for line in tale::end() {
        println!("{line}");
    }
    match &outcome {
        Ok(outcome) => println!("\nseed {seed} keeps every promise, with {} crashes", outcome.crashes),
        Err(failure) => println!("\nseed {seed} breaks a promise at step {}: {}", failure.step, failure.text),
    }
    outcome.is_ok()
}

/// Runs the work of all threads until the seeds are used up.
fn on_all_threads(work: impl Fn() + Sync) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for n in 0..threads {
            std::thread::Builder::new()
                .name(format!("history-{n}"))
                .spawn_scoped(scope, &work)
                .expect("a thread");
        }
    });
}

/// Histories that are run as a whole.
struct Kind<O> {
    /// The word of the command.
    name: &'static str,
    of: &'static str,
    run: fn(u64) -> Result<O, Failure>,
    add: fn(&mut O, &O),
    faults: &'static [Fault],
    find_fault: fn(Fault, u64) -> Option<Failure>,
}

const SHELL: Kind<shell::Outcome> = Kind {
    name: "shell",
    of: "the shell",
    run: shell::run,
    add: shell::Outcome::add,
    faults: &Fault::SHELL,
    find_fault: shell::find_fault,
};

const CLUSTER: Kind<cluster::Outcome> = Kind {
    name: "cluster",
    of: "two nodes",
    run: cluster::run,
    add: cluster::Outcome::add,
    faults: &Fault::CLUSTER,
    find_fault: cluster::find_fault,
};

impl<O: Default + Debug + Send> Kind<O> {
    fn obey(&self, words: &[&str]) -> Result<bool, String> {
        match words {
            ["tell", seed] => {
                seed.parse().map_err(|_| format!("not a seed: {seed}")).map(|seed| self.tell(seed))
            }
            ["faults", "--only", name, options @ ..] => {
                parse(options, &["--seeds"]).map(|given| self.faults(Some(name), given[0].unwrap_or(500)))
            }
            ["faults", options @ ..] => {
                parse(options, &["--seeds"]).map(|given| self.faults(None, given[0].unwrap_or(500)))
            }
            options => parse(options, &["--seeds", "--from"])
                .map(|given| self.simulate(given[1].unwrap_or(0), given[0].unwrap_or(200))),
        }
    }

    fn simulate(&self, from: u64, seeds: u64) -> bool {
        let started = Instant::now();
        let next = AtomicU64::new(from);
        let tally = Mutex::new((O::default(), Vec::new()));
        on_all_threads(|| {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= from + seeds {
                    break;
                }
                let outcome = (self.run)(seed);
                let mut tally = tally.lock().expect("a history does not break the tally");
                match outcome {
                    Ok(outcome) => (self.add)(&mut tally.0, &outcome),
                    Err(failure) => tally.1.push(failure),
                }
            }
        });
        let (outcome, mut failures) = tally.into_inner().expect("a history does not break the tally");
        failures.sort_by_key(|failure: &Failure| failure.seed);
        let rate = seeds as f64 / started.elapsed().as_secs_f64();
        println!("{seeds} histories of {} from seed {from}, {rate:.0} a second", self.of);
        println!("{outcome:#?}");
        for failure in failures.iter().take(10) {
            println!("\nseed {} breaks a promise at step {}: {}", failure.seed, failure.step, failure.text);
            println!("    in words: cargo xtask {} tell {}", self.name, failure.seed);
        }
        let passed = seeds - failures.len() as u64;
        println!("\n{}: {passed} passed, {} failed", self.name, failures.len());
        failures.is_empty()
    }

    fn tell(&self, seed: u64) -> bool {
        tale::begin();
        let outcome = (self.run)(seed);
        for line in tale::end() {
            println!("{line}");
        }
        match &outcome {
            Ok(outcome) => println!("\nseed {seed} keeps every promise: {outcome:?}"),
            Err(failure) => {
                println!("\nseed {seed} breaks a promise at step {}: {}", failure.step, failure.text);
            }
        }
        outcome.is_ok()
    }

    fn faults(&self, only: Option<&str>, seeds: u64) -> bool {
        let mut all = true;
        let is_meant = |fault: &Fault| only.is_none_or(|only| format!("{fault:?}").contains(only));
        for fault in self.faults.iter().copied().filter(is_meant) {
            let found = (self.find_fault)(fault, seeds);
            all &= found.is_some();
            match found {
                Some(failure) => println!("{fault:?}: noticed by seed {}: {}", failure.seed, failure.text),
                None => println!("{fault:?}: NOT noticed in {seeds} seeds"),
            }
        }
        all
    }
}

fn faults(only: Option<&str>, seeds: u64) -> bool {
    let mut all = true;
    let is_meant = |fault: &Fault| only.is_none_or(|only| format!("{fault:?}").contains(only));
    for fault in Fault::ALL.into_iter().filter(is_meant) {
        match history::find_fault(fault, seeds, STEPS) {
            Some(failure) => {
                println!("{fault:?}: noticed by seed {}: {}", failure.seed, failure.text);
                for (what, count) in history::count_fault(fault, seeds.min(FAULT_SEEDS), STEPS) {
                    println!("{count:>10}  {what}");
                }
            }
            None => {
                all = false;
                println!("{fault:?}: NOT noticed in {seeds} seeds");
            }
        }
    }
    all
}

fn sweeps(options: &[&str]) -> Result<bool, String> {
    let full = options.contains(&"--full");
    let which: Vec<&str> = options.iter().copied().filter(|option| *option != "--full").collect();
    let (crash, corruption) = match which[..] {
        [] => (true, true),
        ["crash"] => (true, false),
        ["corruption"] => (false, true),
        _ => return Err(format!("no such sweep: {}", which.join(" "))),
    };
    let mut passed = true;
    if crash {
        let report =
            sweep::crash::run(if full { sweep::crash::Scale::FULL } else { sweep::crash::Scale::REDUCED });
        println!("{report}");
        passed &= report.failures == 0;
    }
    if corruption {
        use sweep::corruption::Scale;
        let report = sweep::corruption::run(if full { Scale::FULL } else { Scale::REDUCED });
        println!("{report}");
        passed &= report.total().silent == 0;
    }
    Ok(passed)
}
