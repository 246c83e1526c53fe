//! `cargo xtask test`: every test that there is, with as little compiling and waiting as can be.
//!
//! Two builds of the workspace serve all parts. The tests' own build has the simulator and the torturer in it, since
//! tests of theirs run them. The product is built once and by itself, as it is released: the clients of `compat/` and
//! the torture use that one. Packages are fetched while the compiler works, and parts that mostly wait run together.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::services::Services;
use crate::{SERVER, browser, cargo, cargo_command, clients, finish, install};

pub(crate) const HELP: &str = "\
Usage: cargo xtask test

Compiles the tests and the product, fetches what the clients of compat/ need meanwhile, and runs:

  cargo test --workspace, which includes the tidy test
  the clients of compat/ against the product
  200 simulated histories
  two minutes of torture of the product, one of them with an encrypted data folder

It stops at the first step that fails. The last lines say how long each step took, and which tests were SKIPPED
because a server or a toolchain cannot be had; with CI set, that is an error.

Some tests need a PostgreSQL and a Redis server, which are started for them; see `cargo xtask services --help`. Those of
the dashboard need Chromium, which is installed if it can be; see `cargo xtask browser --help`. The
clients are of several languages; see `cargo xtask compat --help`.
";

/// How many histories are simulated.
const SEEDS: &str = "200";
/// How many minutes the server is tortured: runs of a minute each, and every other one with an encrypted folder.
const MINUTES: &str = "2";

/// What the builds, the fetched packages and the data of the tests take, in KiB. A server refuses messages on a full
/// disk, so tests would fail one by one and say little about why.
const SPACE_KIB: u64 = 8 << 20;

const TESTS: [&str; 3] = ["test", "--workspace", "--no-fail-fast"];

pub(crate) fn run() -> Result<(), String> {
    check_space()?;
    let times = Times::start();
    let passed = run_parts(&times);
    times.print();
    passed?;
    let skipped = install::skipped();
    for missing in &skipped {
        println!("SKIPPED: {missing}");
    }
    let but = if skipped.is_empty() { "" } else { ", but for what was SKIPPED" };
    println!(
        "xtask test: every test passed{but}, and so did the clients, {SEEDS} simulated histories and {MINUTES} \
         minutes of torture"
    );
    Ok(())
}

/// Refuses to begin on a disk that is so full that tests would fail. A tree that was built before needs no more space.
fn check_space() -> Result<(), String> {
    let target = crate::target()?;
    if target.join("release").join("forebay").exists() {
        return Ok(());
    }
    // Without `df`, the tests find out.
    let Ok(said) = Command::new("df").arg("-Pk").arg(target.parent().unwrap_or(&target)).output() else {
        return Ok(());
    };
    match free_kib(&String::from_utf8_lossy(&said.stdout)) {
        Some(free) if free < SPACE_KIB => Err(format!(
            "the tests need {} GiB of disk space, and {:.1} GiB are free: make room, for example with `cargo clean` \
             in other checkouts",
            SPACE_KIB >> 20,
            free as f64 / f64::from(1 << 20),
        )),
        _ => Ok(()),
    }
}

/// The free space in what `df -Pk` prints about one folder.
fn free_kib(said: &str) -> Option<u64> {
    said.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

fn run_parts(times: &Times) -> Result<(), String> {
    let plan = clients::Plan::everything();
    let (services, (chromium, axe), clients) = std::thread::scope(|scope| {
        // One after the other: installers do not like company.
        let fetching = scope.spawn(|| {
            times.part("fetch servers and clients", || {
                let services = Services::find()?;
                let (mut chromium, mut axe) = (None, None);
                install::take(browser::find(), &mut chromium)?;
                install::take(browser::axe(), &mut axe)?;
                Ok((services, (chromium, axe), clients::prepare(&plan)?))
            })
        });
        compile(times)?;
        fetching.join().expect("fetching does not panic")
    })?;

    let services = Services::keep(&services)?;
    let mut tests = cargo_command(&TESTS);
    tests.envs(services.variables());
    if let Some(chromium) = chromium {
        tests.env(browser::CHROMIUM, chromium);
    }
    if let Some(axe) = axe {
        tests.env(browser::AXE, axe);
    }
    times.part("run the workspace's tests", || finish(tests, &TESTS))?;
    drop(services);

    times.part("simulate", || output(beside_us("forebay-sim")?.args(["sim", "--seeds", SEEDS])))?;
    std::thread::scope(|scope| {
        let torture = scope.spawn(|| times.part("torture", torture));
        let clients = times.part("clients", || clients.play());
        let torture = torture.join().expect("waiting for the torture does not panic");
        both(clients, torture)
    })
}

fn compile(times: &Times) -> Result<(), String> {
    times.part("compile the tests", || cargo(&[&TESTS[..], &["--no-run"]].concat()))?;
    times.part("compile the product", || cargo(&SERVER))?;
    times.part("compile the client in Rust", clients::compile)
}

fn torture() -> Result<(), String> {
    let product = crate::target()?.join("release").join("forebay");
    output(
        beside_us("forebay-torture")?
            .args(["run", "--minutes", "1", "--runs", MINUTES, "--server"])
            .arg(product),
    )
}

/// A program of the build that we are of.
fn beside_us(name: &str) -> Result<Command, String> {
    let program: PathBuf = crate::target()?.join("debug").join(name);
    Ok(Command::new(program))
}

/// Runs a command and prints all that it says in one piece, so that parts that run together do not talk at once.
fn output(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let ran = command.stdin(Stdio::null()).output();
    let ran = ran.map_err(|error| format!("cannot run `{program}`: {error}"))?;
    let said = [&ran.stdout[..], &ran.stderr].concat();
    println!("{}", String::from_utf8_lossy(&said).trim_end());
    if ran.status.success() { Ok(()) } else { Err(format!("`{program}` failed ({})", ran.status)) }
}

/// Whether both went well, and all that did not.
fn both(one: Result<(), String>, other: Result<(), String>) -> Result<(), String> {
    match (one, other) {
        (Err(one), Err(other)) => Err(format!("{one}; {other}")),
        (one, other) => one.and(other),
    }
}

/// How long each part took, in the order in which they ended.
struct Times {
    began: Instant,
    parts: Mutex<Vec<(&'static str, Duration)>>,
}

impl Times {
    fn start() -> Times {
        Times { began: Instant::now(), parts: Mutex::new(Vec::new()) }
    }

    /// Does a part of the work and notes how long it took.
    fn part<T>(&self, name: &'static str, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let since = Instant::now();
        let done = work();
        self.parts.lock().expect("nothing panics with it").push((name, since.elapsed()));
        done
    }

    fn print(&self) {
        println!("\nhow long each part took; some ran together:");
        for (name, time) in self.parts.lock().expect("nothing panics with it").iter() {
            println!("{}  {name}", clock(*time));
        }
        println!("{}  in all\n", clock(self.began.elapsed()));
    }
}

/// Minutes and seconds, in a column.
fn clock(time: Duration) -> String {
    let seconds = clients::round(time);
    format!("{:>4}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_minutes_and_seconds() {
        assert_eq!(clock(Duration::from_millis(59_600)), "   1:00");
        assert_eq!(clock(Duration::from_secs(754)), "  12:34");
    }

    #[test]
    fn free_space_is_read_from_what_df_prints() {
        let said = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda 264 12 83886 13% /\n";
        assert_eq!(free_kib(said), Some(83_886));
        assert_eq!((free_kib(""), free_kib("Filesystem\nnothing here")), (None, None));
    }

    #[test]
    fn a_part_that_fails_is_named_and_so_is_another() {
        let wrong = |what: &str| Err(what.to_owned());
        assert_eq!(both(Ok(()), Ok(())), Ok(()));
        assert_eq!(both(Ok(()), wrong("b")), wrong("b"));
        assert_eq!(both(wrong("a"), Ok(())), wrong("a"));
        assert_eq!(both(wrong("a"), wrong("b")), wrong("a; b"));
    }

    #[test]
    fn a_program_that_fails_or_is_not_there_is_named() {
        assert_eq!(output(&mut Command::new("true")), Ok(()));
        assert!(output(&mut Command::new("false")).is_err_and(|error| error.contains("`false` failed")));
        let nowhere = output(&mut Command::new("no-such-program"));
        assert!(nowhere.is_err_and(|error| error.contains("cannot run `no-such-program`")));
    }

    #[test]
    fn parts_are_noted_whether_they_go_well_or_not() {
        let times = Times::start();
        assert_eq!(times.part("a", || Ok(7)), Ok(7));
        assert_eq!(times.part::<()>("b", || Err("no".to_owned())), Err("no".to_owned()));
        let names: Vec<&str> = times.parts.lock().expect("a list").iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
