//! `cargo xtask`: the commands that people and the build machine run, each under one name.
//!
//! Nothing is decided here. A command is one or more runs of `cargo`, whose output goes straight to the
//! terminal, and a last line that says how it went. Only `tidy`, the counting of instructions, and the servers and
//! clients that tests need have code of their own.

// A command-line tool talks to its user.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod book;
mod browser;
mod callgrind;
mod clients;
mod deny;
mod dist;
mod everything;
mod features;
mod install;
mod peers;
mod services;
mod tidy;
mod workers;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const HELP: &str = "\
The commands of the Forebay workspace.

Usage: cargo xtask <command> [arguments]

Commands:
  test    Run every test of the workspace, then `compat`, then 200 simulated histories, then `torture`
  compat  Run the clients that people use against the server: [python|celery|js|java|rust|all] [--endpoint URL]
  browser Run the tests of the dashboard in Chromium: [NAME]
  screenshots Make pictures of every page of the dashboard: [--after SECONDS] [--readme]
  services Run a command with a PostgreSQL and a Redis server of its own: -- COMMAND
  model   Run the core against a plain model of it: [--commands N] [--seed S]
  sim     Run simulated histories: [--seeds N] [--from S] [--steps N] ...
  tell    Replay one history and tell what happened in it: SEED [--steps N]
  shell   Run simulated histories of the shard task and its callers: [--seeds N] [--from S], tell SEED, faults
  cluster Run simulated histories of two nodes on one log: [--seeds N] [--from S], tell SEED, faults
  sweep   Try every crash, or every damage to a file: [crash|corruption] [--full]
  faults  Break each promise on purpose and show that the simulator notices
  torture Kill the real server again and again: [cluster] [--minutes N] [--runs N] [--seed S], or faults
  full    Fill the disk again and again: [--cycles N]
  wear    Run the tests of scarce memory, descriptors, floods and noisy clients with their full counts
  bench   Measure a workload of bench/README.md: [cost|journal|e2e|sdk|sqs|kurrent|peers|callgrind|...] ...
  fuzz    Try changed inputs on every decoder that runs before a client is known: [--minutes N]
  proto   Generate the code of the protocol anew, after a change to proto/
  tidy    Check the project's own rules over the source tree
  dist    Build everything that is released into target/dist: [x86_64|aarch64] [--try]
  book    Make a site of README and docs in target/book/site
  deny    Check the licences of all packages, and that none is there twice
  features Check each crate with each of its features alone
  ci      Formatting, lints, documentation, `features`, then `test`
  help    Print this

`cargo xtask <command> --help` says more about one command.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match Task::parse(&arguments) {
        Ok(task) => task.run(),
        Err(problem) => {
            eprintln!("error: {problem}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// What the user asked for.
#[derive(Debug, PartialEq, Eq)]
enum Task {
    Help(&'static str),
    Test,
    /// For so many seconds each.
    Fuzz(u64),
    Proto,
    Tidy,
    Deny,
    Dist(dist::Plan),
    Book,
    Features,
    Ci,
    /// The dashboard's tests with this in their names, in a browser.
    Browser {
        name: Option<String>,
    },
    /// Pictures of the dashboard, after a server has worked for so many seconds.
    Screenshots {
        after: u32,
        for_readme: bool,
    },
    /// Clients of other makers.
    Compat(clients::Plan),
    /// A command that has servers to talk to.
    Services {
        command: Vec<String>,
    },
    /// Our other half, which starts and stops those servers.
    KeepServices(services::KeeperPlan),
    /// A run of one of the workspace's own binaries, which reads the arguments itself.
    Tool {
        package: &'static str,
        arguments: Vec<String>,
    },
    Callgrind(callgrind::Plan),
    /// A bench with other servers, which are found or installed for it.
    Peers {
        arguments: Vec<String>,
    },
    /// Workers in Python beside Celery, with a server that is found or installed for it.
    Workers {
        arguments: Vec<String>,
    },
    /// The real server, killed again and again.
    Torture {
        command: &'static str,
        arguments: Vec<String>,
    },
    /// Many cycles of a full disk.
    Full {
        cycles: String,
    },
    /// The end-to-end tests of scarce resources, with their full counts.
    Wear,
    /// The long run of the core against its reference model.
    Model {
        commands: String,
        seed: String,
    },
}

impl Task {
    fn parse(arguments: &[String]) -> Result<Task, String> {
        let Some((command, rest)) = arguments.split_first() else {
            return Err("no command given".to_owned());
        };
        // Arguments after two dashes are for another program.
        let mut ours = rest.iter().take_while(|argument| *argument != "--");
        if ours.any(|argument| argument == "--help" || argument == "-h") {
            return help(command)
                .map(Task::Help)
                .ok_or_else(|| format!("no such command. command=`{command}`"));
        }
        let alone = |task: Task| match rest.first() {
            None => Ok(task),
            Some(extra) => Err(format!("`{command}` takes no arguments. argument=`{extra}`")),
        };
        let tool = |package| Task::Tool {
            package,
            arguments: std::iter::once(command).chain(rest).cloned().collect(),
        };
        match command.as_str() {
            "help" | "--help" | "-h" => alone(Task::Help(HELP)),
            "test" => alone(Task::Test),
            "proto" => alone(Task::Proto),
            "tidy" => alone(Task::Tidy),
            "deny" => alone(Task::Deny),
            "dist" => dist::Plan::parse(rest).map(Task::Dist),
            "book" => alone(Task::Book),
            "features" => alone(Task::Features),
            "ci" => alone(Task::Ci),
            "browser" => match rest {
                [] => Ok(Task::Browser { name: None }),
                [name] => Ok(Task::Browser { name: Some(name.clone()) }),
                _ => Err("`browser` takes one name".to_owned()),
            },
            "screenshots" => screenshots_of(rest),
            "compat" => clients::Plan::parse(rest).map(Task::Compat),
            "services" => services_of(rest),
            services::KEEPER => services::KeeperPlan::parse(rest).map(Task::KeepServices),
            "sim" | "tell" | "shell" | "cluster" | "sweep" | "faults" => Ok(tool("forebay-sim")),
            "torture" => Ok(torture_of(rest)),
            "model" => model_of(rest),
            "fuzz" => fuzz_of(rest),
            "full" => full_of(rest),
            "wear" if rest.is_empty() => Ok(Task::Wear),
            "wear" => Err(format!("`wear` does not take this. argument=`{}`", rest.join(" "))),
            "bench" => match rest.split_first() {
                Some((which, plan)) if which == "callgrind" => {
                    callgrind::Plan::parse(plan).map(Task::Callgrind)
                }
                Some((which, arguments)) if which == "peers" => {
                    Ok(Task::Peers { arguments: arguments.to_vec() })
                }
                Some((which, arguments)) if which == "python" => {
                    Ok(Task::Workers { arguments: arguments.to_vec() })
                }
                _ => Ok(Task::Tool { package: "forebay-bench", arguments: rest.to_vec() }),
            },
            _ => Err(format!("no such command. command=`{command}`")),
        }
    }

    fn run(&self) -> Result<(), String> {
        match self {
            Task::Help(text) => {
                print!("{text}");
                Ok(())
            }
            Task::Test => everything::run(),
            Task::Fuzz(seconds) => fuzz(*seconds),
            Task::Proto => proto(),
            Task::Tidy => tidy_tree(),
            Task::Deny => deny::run(),
            Task::Dist(plan) => dist::run(plan),
            Task::Book => book::run(),
            Task::Features => features::run(),
            Task::Ci => ci(),
            Task::Browser { name } => browser::run(name.as_deref()),
            Task::Screenshots { after, for_readme } => browser::screenshots(*after, *for_readme),
            Task::Compat(plan) => clients::run(plan),
            Task::Services { command } => services::run(command),
            Task::KeepServices(plan) => services::keep(plan),
            Task::Full { cycles } => full(cycles),
            Task::Wear => wear(),
            Task::Tool { package, arguments } => {
                if *package == "forebay-bench" && arguments.first().is_some_and(|which| needs_server(which)) {
                    cargo(&SERVER)?;
                }
                tool(package, arguments)
            }
            Task::Callgrind(plan) => callgrind::run(plan),
            Task::Peers { arguments } => peers::run(arguments),
            Task::Workers { arguments } => workers::run(arguments),
            Task::Torture { command, arguments } => torture(command, arguments),
            Task::Model { commands, seed } => model(commands, seed),
        }
    }
}

/// The long text about one command.
fn help(command: &str) -> Option<&'static str> {
    Some(match command {
        "help" | "--help" | "-h" => HELP,
        "test" => everything::HELP,
        "deny" => deny::HELP,
        "dist" => dist::HELP,
        "book" => book::HELP,
        "features" => features::HELP,
        "browser" | "screenshots" => browser::HELP,
        "compat" => clients::HELP,
        "services" => services::HELP,
        "model" => {
            "\
Usage: cargo xtask model [--commands N] [--seed S]

Plays N commands, a million if not told, to the core and to a plain model of it, and compares the two
after every turn. What fails is shortened and printed with its seed.
"
        }
        "sim" => {
            "\
Usage: cargo xtask sim [--seeds N] [--from S] [--steps N] ...

Builds the simulator in release mode and runs histories, one per seed, beginning with seed S.
All arguments go to the simulator as they are.

  cargo xtask sim --seeds 20000 --from 1000000
"
        }
        "sweep" => {
            "\
Usage: cargo xtask sweep [crash|corruption] [--full]

Opens the journal after a crash at every I/O call, or after damage to one file at a time.
All arguments go to the simulator as they are.
"
        }
        "tell" => {
            "\
Usage: cargo xtask tell SEED [--steps N]

Replays the history of one seed and tells what happened in it, step by step: what to read when a seed
fails.
"
        }
        "shell" => {
            "\
Usage: cargo xtask shell [--seeds N] [--from S]
       cargo xtask shell tell SEED
       cargo xtask shell faults [--only NAME] [--seeds N]

Runs histories of the real shard task and its callers on an executor of one thread, one per seed: the seed decides
which task goes on, when the engine answers, how much time passes, and which futures are dropped.
All arguments go to the simulator as they are.
"
        }
        "cluster" => {
            "\
Usage: cargo xtask cluster [--seeds N] [--from S]
       cargo xtask cluster tell SEED
       cargo xtask cluster faults [--only NAME] [--seeds N]

Runs histories of two nodes with their clients, on simulated NATS servers, one per seed: nodes are killed, stopped and
stand still, their clocks and dates differ, connections are cut, letters are lost and late, and servers elect leaders.
All arguments go to the simulator as they are.
"
        }
        "faults" => {
            "\
Usage: cargo xtask faults

Plants each fault in turn. Each must be caught within 500 seeds.
All arguments go to the simulator as they are.
"
        }
        "torture" => {
            "\
Usage: cargo xtask torture [--minutes N] [--runs N] [--seed S] ...
       cargo xtask torture cluster [--minutes N] [--runs N] [--seed S] ...
       cargo xtask torture faults [--only NAME] ...

Builds the server in release mode and kills it again and again, for two minutes if not told, while producers and
consumers work on it and write down what they see. Then everything is finished in peace, and the history is
checked. History and data of a run that fails are kept. The data folder is encrypted in the runs of odd seeds, or as
`--encryption on|off|half` says.

`cluster` does the same to three nodes on three NATS servers. Owners are killed, stopped, suspended and cut off from
NATS, and NATS servers are killed, suspended, slowed and cut off. The owner may change only by a fault of the owner. The
program of NATS comes from a package of Python's.

`faults` builds a server that breaks promises on purpose, and shows that each breach is noticed.
All arguments go to `forebay-torture` as they are; its own --help lists them.

  cargo xtask torture --minutes 30
  cargo xtask torture --runs 100
  cargo xtask torture --runs 20 --encryption on
  cargo xtask torture cluster --minutes 10
"
        }
        "full" => {
            "\
Usage: cargo xtask full [--cycles N]

Fills a small data folder until publishing is refused, works through everything, and sees that publishing goes on
by itself and that nothing is lost; fifty times if not told, with a kill now and then. A few cycles of it are part
of the everyday tests.
"
        }
        "wear" => {
            "\
Usage: cargo xtask wear

Runs the end-to-end tests of scarce memory and descriptors in release mode, one after the other, with their full counts:
1,000 followers, 50 connections of HTTP/2 and 200 consumers of gRPC that read nothing, 1,100 announced bodies, a minute
at 256 descriptors, a FIFO queue of 100,000 messages after a kill; floods of slow, large and unknown requests and a
noisy client beside one that is measured, and a certificate that is replaced under load. Limits of memory and time are
checked too, so nothing else should run beside it. The same tests with small counts are part of the everyday tests.
"
        }
        "bench" => callgrind::HELP,
        "fuzz" => {
            "\
Usage: cargo xtask fuzz [--minutes N]

Tries inputs on each decoder that runs before a client is known (credentials in headers, tokens, tokens of an issuer,
SCRAM, signatures and requests of SQS), for N minutes each, one after the other; 10 if it is left out. The inputs are
those of a kept corpus, changed at random. A failure prints its input; add it to the corpus. The everyday tests try
3,000 inputs for each.
"
        }
        "proto" => {
            "\
Usage: cargo xtask proto

Writes crates/wire/src/generated anew: the code of the protocol in proto/, and its description for clients that ask a
server for its services. Both lie in the tree, so that building the product takes no compiler of protocols; a test
says when they are out of date.
"
        }
        "tidy" => {
            "\
Usage: cargo xtask tidy

Checks the project's own rules over the source tree and prints what breaks them, as
`file:line: rule: what`. The same check is a test, and so a part of `cargo test`.
"
        }
        "ci" => {
            "\
Usage: cargo xtask ci

Runs what the build machine runs: `cargo fmt --check`, clippy with warnings as errors, the
documentation with warnings as errors, `cargo xtask features`, then `cargo xtask test`.
"
        }
        _ => return None,
    })
}

fn tidy_tree() -> Result<(), String> {
    let tree = tidy::Tree::read(&root())?;
    let findings = tidy::check(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("xtask tidy: {} files follow the rules", tree.files.len());
            Ok(())
        }
        count => Err(format!("the tree breaks its own rules. findings=`{count}`")),
    }
}

fn ci() -> Result<(), String> {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    let documentation = ["doc", "--no-deps", "--workspace"];
    let mut command = cargo_command(&documentation);
    command.env("RUSTDOCFLAGS", "-D warnings");
    finish(command, &documentation)?;
    features::run()?;
    everything::run()?;
    println!("xtask ci: formatting, lints, documentation, features and tests are in order");
    Ok(())
}

fn proto() -> Result<(), String> {
    let line = ["test", "--quiet", "--package", "forebay-wire", "--test", "generated"];
    let mut command = cargo_command(&line);
    command.env("FOREBAY_KEEP_GENERATED", "1");
    finish(command, &line)?;
    println!("xtask proto: crates/wire/src/generated is what proto/ says");
    Ok(())
}

fn fuzz_of(arguments: &[String]) -> Result<Task, String> {
    match arguments {
        [] => Ok(Task::Fuzz(600)),
        [name, value] if name == "--minutes" => match value.parse::<u64>() {
            Ok(minutes @ 1..=1_440) => Ok(Task::Fuzz(60 * minutes)),
            _ => Err(format!("minutes must be between 1 and 1440. value=`{value}`")),
        },
        other => Err(format!("`fuzz` does not take this. argument=`{}`", other.join(" "))),
    }
}

fn fuzz(seconds: u64) -> Result<(), String> {
    // The name of the runner's module, and the one target beside the decoder of SQS.
    let line = [
        "test",
        "--package",
        "forebay-doors",
        "--lib",
        "--",
        "--nocapture",
        "--test-threads=1",
        "kit::tests::fuzz::",
        "a_signed_request_is_read",
    ];
    let mut command = cargo_command(&line);
    command.env("FOREBAY_FUZZ_SECONDS", seconds.to_string());
    finish(command, &line)?;
    println!("xtask fuzz: no input broke a decoder in {seconds} seconds for each");
    Ok(())
}

fn model_of(arguments: &[String]) -> Result<Task, String> {
    let (mut commands, mut seed) = ("1000000".to_owned(), "1".to_owned());
    for pair in arguments.chunks(2) {
        match pair {
            [name, value] if value.parse::<u64>().is_err() => {
                return Err(format!("not a number. argument=`{name}` value=`{value}`"));
            }
            [name, value] if name == "--commands" => value.clone_into(&mut commands),
            [name, value] if name == "--seed" => value.clone_into(&mut seed),
            other => return Err(format!("`model` does not take this. argument=`{}`", other.join(" "))),
        }
    }
    Ok(Task::Model { commands, seed })
}

fn model(commands: &str, seed: &str) -> Result<(), String> {
    let line = [
        "test",
        "--release",
        "--package",
        "forebay-core",
        "--test",
        "model",
        "--",
        "--ignored",
        "--nocapture",
    ];
    let mut command = cargo_command(&line);
    command.env("FOREBAY_MODEL_COMMANDS", commands).env("FOREBAY_MODEL_SEED", seed);
    finish(command, &line)?;
    println!("xtask model: the core and its model agree after {commands} commands, seed {seed}");
    Ok(())
}

fn screenshots_of(arguments: &[String]) -> Result<Task, String> {
    let (mut after, mut for_readme) = (240, false);
    let mut rest = arguments.iter();
    while let Some(name) = rest.next() {
        match name.as_str() {
            "--readme" => for_readme = true,
            "--after" => {
                let seconds = rest.next().map_or("", String::as_str);
                after = seconds.parse().map_err(|_| format!("--after takes seconds. value=`{seconds}`"))?;
            }
            other => return Err(format!("`screenshots` does not take this. argument=`{other}`")),
        }
    }
    Ok(Task::Screenshots { after, for_readme })
}

fn services_of(arguments: &[String]) -> Result<Task, String> {
    match arguments.split_first() {
        Some((dashes, command)) if dashes == "--" && !command.is_empty() => {
            Ok(Task::Services { command: command.to_vec() })
        }
        _ => Err("`services` takes two dashes and a command".to_owned()),
    }
}

fn full_of(arguments: &[String]) -> Result<Task, String> {
    match arguments {
        [] => Ok(Task::Full { cycles: "50".to_owned() }),
        [name, cycles] if name == "--cycles" && cycles.parse::<u32>().is_ok() => {
            Ok(Task::Full { cycles: cycles.clone() })
        }
        other => Err(format!("`full` does not take this. argument=`{}`", other.join(" "))),
    }
}

fn full(cycles: &str) -> Result<(), String> {
    let line = ["test", "--release", "--package", "forebay", "--test", "e2e", "--", "http::full::"];
    let mut command = cargo_command(&line);
    command.env("FOREBAY_FULL_CYCLES", cycles);
    finish(command, &line)?;
    println!("xtask full: {cycles} times a full disk, and nothing lost");
    Ok(())
}

fn wear() -> Result<(), String> {
    // The clients of a test are in one process and need more descriptors than the usual 1,024.
    let line = ["test", "--release", "--package", "forebay", "--test", "e2e", "--", "--test-threads", "1"];
    let line = [
        &line[..],
        &[
            "--nocapture",
            "http::scarce::",
            "http::backlog::",
            "sqs::restart::a_long_fifo_queue",
            "security::",
        ],
    ]
    .concat();
    let cargo = cargo_command(&line);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 8192 && exec \"$0\" \"$@\""]).arg(cargo.get_program()).args(&line);
    command.current_dir(root()).env("FOREBAY_WEAR", "full");
    finish(command, &line)?;
    println!("xtask wear: the server stays within its limits");
    Ok(())
}

/// Whether a bench measures the real server, which it expects beside itself.
fn needs_server(bench: &str) -> bool {
    ["e2e", "restart", "crowd", "sdk", "soak", "sqs", "kurrent", "polls", "peers"].contains(&bench)
}

fn torture_of(arguments: &[String]) -> Task {
    match arguments.split_first() {
        Some((first, rest)) if first == "faults" => {
            Task::Torture { command: "faults", arguments: rest.to_vec() }
        }
        Some((first, rest)) if first == "cluster" => {
            Task::Torture { command: "cluster", arguments: rest.to_vec() }
        }
        _ => Task::Torture { command: "run", arguments: arguments.to_vec() },
    }
}

/// The server is built by itself, so that it is the product, and lies beside the program that uses it.
const SERVER: [&str; 5] = ["build", "--release", "--quiet", "--package", "forebay"];

fn torture(command: &str, arguments: &[String]) -> Result<(), String> {
    let all: Vec<String> =
        std::iter::once(command).map(str::to_owned).chain(arguments.iter().cloned()).collect();
    if command != "faults" {
        cargo(&SERVER)?;
        let nats = if command == "cluster" { Some(peers::nats()?) } else { None };
        let variables: Vec<_> =
            nats.map(|nats| (services::NATS, nats.into_os_string())).into_iter().collect();
        return tool_with("forebay-torture", &all, &variables);
    }
    cargo(&[&SERVER[..], &["--features", "planted-faults"]].concat())?;
    let noticed = tool("forebay-torture", &all);
    // A server with planted faults must not be left where the product lies.
    cargo(&SERVER)?;
    noticed
}

/// Builds one of the workspace's own binaries in release mode and runs it.
fn tool(package: &str, arguments: &[String]) -> Result<(), String> {
    tool_with(package, arguments, &[])
}

/// The same with these variables in its environment.
fn tool_with(
    package: &str,
    arguments: &[String],
    variables: &[(&'static str, OsString)],
) -> Result<(), String> {
    let mut line = vec!["run", "--release", "--quiet", "--package", package, "--bin", package, "--"];
    line.extend(arguments.iter().map(String::as_str));
    let mut command = cargo_command(&line);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    finish(command, &line)
}

fn cargo(arguments: &[&str]) -> Result<(), String> {
    finish(cargo_command(arguments), arguments)
}

/// A run of the cargo that runs us, at the root of the workspace.
fn cargo_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    leave_out_package(&mut command);
    command
}

/// Leaves out the variables that cargo sets for the package it runs, which is this one. Build scripts of packages ask
/// for variables of these names, so with them `cargo xtask test` would compile anew what `cargo test` had compiled.
fn leave_out_package(command: &mut Command) {
    let of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(of_package) {
            command.env_remove(name);
        }
    }
}

fn finish(mut command: Command, arguments: &[&str]) -> Result<(), String> {
    let said = format!("cargo {}", arguments.join(" "));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{said}` failed ({status})")),
        Err(error) => Err(format!("cannot run `{said}`: {error}")),
    }
}

/// Where cargo builds. We lie in `debug` or `release` of that folder.
fn target() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find myself: {error}"))?;
    let target = program.ancestors().nth(2).ok_or("the build folder cannot be told")?;
    Ok(target.to_owned())
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("this crate lies in a folder of the workspace").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Task, String> {
        Task::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    fn tool(package: &'static str, arguments: &str) -> Result<Task, String> {
        Ok(Task::Tool { package, arguments: arguments.split_whitespace().map(str::to_owned).collect() })
    }

    #[test]
    fn arguments_of_the_simulator_are_passed_on_with_the_name_of_the_command() {
        assert_eq!(parse("sim --seeds 7 --from 3"), tool("forebay-sim", "sim --seeds 7 --from 3"));
        assert_eq!(parse("sweep crash --full"), tool("forebay-sim", "sweep crash --full"));
        assert_eq!(parse("faults"), tool("forebay-sim", "faults"));
        assert_eq!(parse("tell 4711"), tool("forebay-sim", "tell 4711"));
        assert_eq!(parse("shell tell 4711"), tool("forebay-sim", "shell tell 4711"));
        assert_eq!(parse("cluster faults"), tool("forebay-sim", "cluster faults"));
    }

    #[test]
    fn arguments_of_the_benches_are_passed_on_without_it() {
        assert_eq!(parse("bench cost --batch 64"), tool("forebay-bench", "cost --batch 64"));
        assert_eq!(parse("bench"), tool("forebay-bench", ""));
        assert!(matches!(parse("bench callgrind"), Ok(Task::Callgrind(_))));
        assert!(matches!(parse("bench python --jobs 100"), Ok(Task::Workers { .. })));
        let arguments = vec!["--only".to_owned(), "redis".to_owned()];
        assert_eq!(parse("bench peers --only redis"), Ok(Task::Peers { arguments }));
    }

    #[test]
    fn torture_is_a_run_of_one_server_unless_it_is_told_otherwise() {
        let task = |command, line: &str| Task::Torture {
            command,
            arguments: line.split_whitespace().map(str::to_owned).collect(),
        };
        assert_eq!(parse("torture"), Ok(task("run", "")));
        assert_eq!(parse("torture --minutes 30 --seed 7"), Ok(task("run", "--minutes 30 --seed 7")));
        assert_eq!(parse("torture faults --only LeaseTwice"), Ok(task("faults", "--only LeaseTwice")));
        assert_eq!(parse("torture cluster --minutes 10"), Ok(task("cluster", "--minutes 10")));
    }

    #[test]
    fn wear_takes_no_arguments() {
        assert_eq!(parse("wear"), Ok(Task::Wear));
        assert!(parse("wear --full").is_err());
    }

    #[test]
    fn a_full_disk_takes_how_many_cycles() {
        assert_eq!(parse("full"), Ok(Task::Full { cycles: "50".to_owned() }));
        assert_eq!(parse("full --cycles 7"), Ok(Task::Full { cycles: "7".to_owned() }));
        assert!(parse("full --cycles many").is_err() && parse("full 7").is_err());
    }

    #[test]
    fn what_follows_two_dashes_is_the_command_that_gets_services() {
        let command = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        assert_eq!(parse("services -- env"), Ok(Task::Services { command: command("env") }));
        assert_eq!(
            parse("services -- cargo test --help"),
            Ok(Task::Services { command: command("cargo test --help") })
        );
        assert!(matches!(parse("services --help"), Ok(Task::Help(_))));
        assert!(
            parse("services").is_err() && parse("services env").is_err() && parse("services --").is_err()
        );
    }

    #[test]
    fn the_model_takes_how_many_commands_and_a_seed() {
        let task = Task::Model { commands: "500".to_owned(), seed: "7".to_owned() };
        assert_eq!(parse("model --seed 7 --commands 500"), Ok(task));
        assert!(parse("model --commands many").is_err() && parse("model --seed").is_err());
    }

    #[test]
    fn the_fuzzer_takes_how_many_minutes() {
        assert_eq!(parse("fuzz"), Ok(Task::Fuzz(600)));
        assert_eq!(parse("fuzz --minutes 2"), Ok(Task::Fuzz(120)));
        for wrong in ["fuzz --minutes", "fuzz --minutes 0", "fuzz --minutes long", "fuzz 3"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        assert_eq!(parse("sweeep"), Err("no such command. command=`sweeep`".to_owned()));
        assert_eq!(parse("sweeep --help"), Err("no such command. command=`sweeep`".to_owned()));
        assert_eq!(parse("test --fast"), Err("`test` takes no arguments. argument=`--fast`".to_owned()));
        assert_eq!(parse(""), Err("no command given".to_owned()));
    }

    #[test]
    fn every_command_that_the_help_lists_has_help_of_its_own() {
        let listed = HELP
            .lines()
            .filter_map(|line| line.strip_prefix("  "))
            .filter_map(|line| line.split_whitespace().next());
        let mut count = 0;
        for command in listed {
            assert!(matches!(parse(&format!("{command} --help")), Ok(Task::Help(_))), "{command}");
            count += 1;
        }
        assert_eq!(count, 25);
    }
}
