//! Kills the real server again and again, through its real doors, and checks what its clients saw.
//!
//! Producers and consumers of many kinds work on a server that is killed, stopped, held still and started again,
//! and write down all that they do and see ([`history`]). When that is over everything is finished in peace, and
//! the checker ([`checker`]) looks whether the history breaks a promise.

// The report is what the program is for.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod checker;
mod clients;
mod cluster;
mod content;
mod crowd;
mod dice;
mod faults;
mod history;
mod http;
mod inspect;
mod plan;
mod run;
mod server;
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};

const HELP: &str = "\
Kills a Forebay server again and again and checks what its clients saw.

Usage: forebay-torture <command> [arguments]

Commands:
  run         Torture a server: ends with 1 if a promise is broken
  cluster     The same for three nodes on three NATS servers, whose connections are cut, hang and are slow
  check FILE  Check a recorded history once more
  faults      Break promises on purpose and show that this notices; needs a server that was built so

run, cluster and faults:
  --minutes N, --seconds N   How long the server is tortured, not counting the way back to rest (2 minutes;
                             faults: 25 seconds for each run, up to five)
  --runs N                   run: so many runs one after the other, each with the next seed, and the sum of them (1).
                             Without a time, each of several runs takes 20 seconds
  --seed S                   Who does what, and what is done to the server (the time of day)
  --server FILE              The server, if not beside this program
  --nats-server FILE         cluster: the program of the NATS servers, 2.14 or later (FOREBAY_TEST_NATS, or
                             `nats-server` in PATH)
  --http on|off              Whether clients come over HTTP as well (on)
  --sqs on|off               Whether clients of SQS queues take part as well (on)
  --kurrent on|off           Whether clients of KurrentDB take part as well (on)
  --power on|off             run: whether the machine loses power with each kill: the server writes down its calls on
                             the disk, and of those that no sync covers a random part is undone (on)
  --encryption on|off|half   run: whether the data folder is encrypted; half: of odd seeds (half)
  --dir D                    A folder for history and data (one in the system's folder for such things)
  --only NAME                faults: one of them
  -- WORDS                   Further words for `forebay serve`

History and data of a run are kept if it fails, and removed if it does not.
";

/// Length of a run by default.
const MINUTES: u64 = 2;
const FAULT_SECONDS: u64 = 25;
/// Length of each of several runs by default.
const SHORT_SECONDS: u64 = 20;
/// Whether clients use HTTP by default.
const WITH_HTTP: bool = true;
/// Whether clients use SQS queues by default.
const WITH_SQS: bool = true;
/// Whether clients of KurrentDB take part by default.
const WITH_KURRENT: bool = true;
/// Whether a kill takes the power too, by default.
const WITH_POWER_LOSS: bool = true;

/// Whether the data folder of a run is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encryption {
    On,
    Off,
    /// Of odd seeds, which are half of the runs.
    Half,
}

impl Encryption {
    fn parse(value: &str) -> anyhow::Result<Encryption> {
        match value {
            "on" => Ok(Encryption::On),
            "off" => Ok(Encryption::Off),
            "half" => Ok(Encryption::Half),
            _ => bail!("on, off or half. argument=`--encryption` value=`{value}`"),
        }
    }

    /// The master key of a run, which follows from its seed, so that the data of a failed run can be read.
    fn key(self, seed: u64) -> Option<String> {
        let is_on = match self {
            Encryption::On => true,
            Encryption::Off => false,
            Encryption::Half => seed % 2 == 1,
        };
        let mut dice = dice::Dice::from(seed);
        is_on.then(|| (0..4).map(|_| format!("{:016x}", dice.u64())).collect())
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h" || word == "help") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let ended = match words.split_first() {
        Some((command, rest)) if command == "run" => Arguments::parse(rest).and_then(|it| torture(&it)),
        Some((command, rest)) if command == "cluster" => {
            Arguments::parse(rest).and_then(|it| torture(&it.for_cluster()?))
        }
        Some((command, rest)) if command == "faults" => {
            Arguments::parse(rest).and_then(|it| faults::run(&it))
        }
        Some((command, [file])) if command == "check" => check(Path::new(file)),
        _ => {
            eprint!("error: no such command\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Arguments {
    lasts: Option<Duration>,
    runs: u64,
    seed: Option<u64>,
    server: Option<PathBuf>,
    nats_server: Option<PathBuf>,
    is_cluster: bool,
    with_http: bool,
    with_sqs: bool,
    with_kurrent: bool,
    with_power_loss: bool,
    encryption: Encryption,
    folder: Option<PathBuf>,
    only: Option<String>,
    words: Vec<String>,
}

impl Arguments {
    fn parse(words: &[String]) -> anyhow::Result<Arguments> {
        let mut arguments = Arguments {
            lasts: None,
            runs: 1,
            seed: None,
            server: None,
            nats_server: None,
            is_cluster: false,
            with_http: WITH_HTTP,
            with_sqs: WITH_SQS,
            with_kurrent: WITH_KURRENT,
            with_power_loss: WITH_POWER_LOSS,
            encryption: Encryption::Half,
            folder: None,
            only: None,
            words: Vec::new(),
        };
        let mut words = words.iter();
        while let Some(name) = words.next() {
            if name == "--" {
                arguments.words = words.cloned().collect();
                break;
            }
            let value = words.next().with_context(|| format!("needs a value. argument=`{name}`"))?;
            let number = || value.parse::<u64>().with_context(|| format!("not a number. argument=`{name}`"));
            match name.as_str() {
                "--minutes" => arguments.lasts = Some(Duration::from_secs(number()?.saturating_mul(60))),
                "--seconds" => arguments.lasts = Some(Duration::from_secs(number()?)),
                "--runs" => arguments.runs = number()?.max(1),
                "--seed" => arguments.seed = Some(number()?),
                "--server" => arguments.server = Some(value.into()),
                "--nats-server" => arguments.nats_server = Some(value.into()),
                "--dir" => arguments.folder = Some(value.into()),
                "--only" => arguments.only = Some(value.clone()),
                "--http" => arguments.with_http = switch(name, value)?,
                "--sqs" => arguments.with_sqs = switch(name, value)?,
                "--encryption" => arguments.encryption = Encryption::parse(value)?,
                "--kurrent" => arguments.with_kurrent = switch(name, value)?,
                "--power" => arguments.with_power_loss = switch(name, value)?,
                _ => bail!("no such argument. argument=`{name}`"),
            }
        }
        Ok(arguments)
    }

    /// The same for a cluster. The NATS servers keep the data, so no disk of ours loses power.
    fn for_cluster(self) -> anyhow::Result<Arguments> {
        let nats_server = Some(self.nats_server.clone().map_or_else(nats_server, Ok)?);
        let (with_power_loss, encryption) = (false, Encryption::Off);
        Ok(Arguments { nats_server, is_cluster: true, with_power_loss, encryption, ..self })
    }

    fn seed(&self) -> u64 {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.seed.unwrap_or_else(now)
    }

    fn options(&self, name: &str, lasts: Duration, seed: u64) -> anyhow::Result<run::Options> {
        let program = match &self.server {
            Some(program) => program.clone(),
            None => server::beside_us()?,
        };
        let parent = self.folder.clone().unwrap_or_else(std::env::temp_dir);
        let folder = parent.join(format!("forebay-torture-{name}-{}", std::process::id()));
        let Arguments { with_http, with_sqs, with_kurrent, with_power_loss, .. } = *self;
        let words = self.words.clone();
        let lasts = self.lasts.unwrap_or(lasts);
        let (key, fault) = (self.encryption.key(seed), None);
        let nats = self.nats_server.clone().filter(|_| self.is_cluster);
        let options = run::Options {
            program,
            lasts,
            seed,
            with_http,
            with_sqs,
            with_kurrent,
            with_power_loss,
            key,
            folder,
            fault,
            nats,
            words,
        };
        Ok(options)
    }
}

/// The program of the NATS servers, which the environment names or PATH has.
fn nats_server() -> anyhow::Result<PathBuf> {
    if let Some(program) = std::env::var_os("FOREBAY_TEST_NATS").filter(|program| !program.is_empty()) {
        return Ok(program.into());
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&folders).map(|folder| folder.join("nats-server"));
    found
        .find(|program| program.is_file())
        .context("no program `nats-server` is in PATH; name it with --nats-server")
}

fn switch(name: &str, value: &str) -> anyhow::Result<bool> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => bail!("on or off. argument=`{name}` value=`{value}`"),
    }
}

/// Tortures a server, or several in turn. True if all of them kept their promises.
fn torture(arguments: &Arguments) -> anyhow::Result<bool> {
    let seed = arguments.seed();
    if arguments.runs == 1 {
        let report = torture_once(arguments, seed, Duration::from_secs(MINUTES * 60))?;
        return Ok(report.violations.is_empty());
    }
    let mut all = checker::Report::default();
    let mut broken: Vec<u64> = Vec::new();
    for seed in seed..seed.saturating_add(arguments.runs) {
        // A run that cannot be made says nothing about the others, and all is not well.
        match torture_once(arguments, seed, Duration::from_secs(SHORT_SECONDS)) {
            Ok(report) => {
                broken.extend((!report.violations.is_empty()).then_some(seed));
                all.add_run(report);
            }
            Err(error) => {
                println!("torture: seed {seed}: {error:#}");
                broken.push(seed);
            }
        }
    }
    println!("\nall {} runs:\n{all}", arguments.runs);
    println!("torture: {} of {} runs broke no promise", arguments.runs - broken.len() as u64, arguments.runs);
    if !broken.is_empty() {
        println!("torture: these seeds failed: {broken:?}");
    }
    Ok(broken.is_empty())
}

fn torture_once(arguments: &Arguments, seed: u64, lasts: Duration) -> anyhow::Result<checker::Report> {
    let options = arguments.options(&seed.to_string(), lasts, seed)?;
    let others = [(options.with_http, "HTTP"), (options.with_sqs, "SQS"), (options.with_kurrent, "Kurrent")];
    let others = others.into_iter().filter_map(|(is_on, name)| is_on.then_some(name));
    let doors = ["gRPC"].into_iter().chain(others).collect::<Vec<_>>().join(", ");
    let power = if options.with_power_loss { ", with loss of power" } else { "" };
    let encrypted = if options.key.is_some() { ", encrypted" } else { "" };
    let cluster = if options.nats.is_some() { ", three nodes on three NATS servers" } else { "" };
    println!("torture: seed {seed}, {} s, {doors}{power}{encrypted}{cluster}", options.lasts.as_secs());
    let report = run::run(&options);
    match &report {
        Ok(report) if report.violations.is_empty() => {
            println!("{report}");
            let folder = &options.folder;
            std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
            println!("torture: seed {seed} broke no promise");
        }
        other => {
            if let Ok(report) = other {
                println!("{report}");
            }
            println!("torture: seed {seed} failed; history and data are in {}", options.folder.display());
            if let Some(key) = &options.key {
                println!("torture: the data is read with FOREBAY_ENCRYPTION_KEY={key}");
            }
        }
    }
    report
}

fn check(file: &Path) -> anyhow::Result<bool> {
    let report = run::check_file(file)?;
    println!("{report}");
    Ok(report.violations.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> anyhow::Result<Arguments> {
        Arguments::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_are_read() {
        let arguments = parse(
            "--minutes 3 --runs 5 --seed 7 --http on --sqs off --kurrent off --server s -- --log debug",
        )
        .expect("arguments");
        assert_eq!((arguments.lasts, arguments.runs), (Some(Duration::from_secs(180)), 5));
        assert_eq!((arguments.seed, arguments.with_http), (Some(7), true));
        assert_eq!((arguments.with_sqs, arguments.with_kurrent), (false, false));
        assert_eq!(arguments.server, Some(PathBuf::from("s")));
        assert_eq!(arguments.words, ["--log", "debug"]);
    }

    #[test]
    fn half_of_the_runs_are_encrypted_if_not_told() {
        let keys = |line: &str| {
            let encryption = parse(line).expect("arguments").encryption;
            [7, 8, 9].map(|seed| encryption.key(seed))
        };
        let [odd, even, next] = keys("");
        let (odd, next) = (odd.expect("a key"), next.expect("a key"));
        assert!(even.is_none() && odd != next && odd.len() == 64, "{odd} {next}");
        assert!(keys("--encryption on").iter().all(Option::is_some));
        assert!(keys("--encryption off").iter().all(Option::is_none));
    }

    #[test]
    fn a_cluster_has_nats_servers_and_no_data_folder() {
        let cluster = parse("--nats-server /opt/nats --encryption on").and_then(Arguments::for_cluster);
        let options = cluster.and_then(|it| it.options("1", Duration::from_secs(1), 1)).expect("options");
        assert_eq!(options.nats, Some(PathBuf::from("/opt/nats")));
        assert!(options.key.is_none() && !options.with_power_loss);
        let alone =
            parse("--nats-server /opt/nats").and_then(|it| it.options("1", Duration::from_secs(1), 1));
        assert_eq!(alone.expect("options").nats, None);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for line in [
            "--minutes",
            "--minutes many",
            "--http perhaps",
            "--sqs perhaps",
            "--kurrent perhaps",
            "--power perhaps",
            "--encryption perhaps",
            "--faster 3",
        ] {
            let error = parse(line).expect_err(line).to_string();
            assert!(error.contains(line.split(' ').next().unwrap_or(line)), "{error}");
        }
    }
}
