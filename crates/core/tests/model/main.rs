//! The core against a plain reference model, through any history of commands.
//!
//! | module | holds |
//! | --- | --- |
//! | `book` | where every message of a group stands, in service and by the log |
//! | `plain` | the model: the allowed outcomes, and the invariants |
//! | `commands` | what may happen |
//! | `world` | a shard and its model, and how a command is done to both |
//! | `bundle` | leases that are settled and messages that are stored together |
//! | `jobs` | the same for jobs, and for messages that go to other streams |
//! | `check` | what the shard says about itself, against the model |

#![allow(clippy::print_stderr)]

mod book;
mod bundle;
mod check;
mod commands;
mod jobs;
mod plain;
mod world;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use commands::{Command, Setup};
use world::World;

/// Commands of one history.
const LENGTH: usize = 200;
/// Histories of the everyday run.
const HISTORIES: u32 = 256;

fn run(setup: &Setup, commands: &[(Command, bool)]) {
    let mut world = World::new(setup);
    for (command, goes_on) in commands {
        world.play(command, *goes_on);
    }
}

thread_local! {
    /// Where the last panic was.
    static LAST: std::cell::Cell<Option<String>> = const { std::cell::Cell::new(None) };
}

/// So many histories from one seed; a history that fails is shortened before it is shown.
fn run_many(seed: u64, cases: u32, length: impl Into<proptest::collection::SizeRange>) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let histories = (commands::setup(), prop::collection::vec(commands::command(), length));
    // While a history is shortened it fails hundreds of times, which would clutter the output.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|info| {
        LAST.set(info.location().map(|at| format!("{at}: ")));
    }));
    let outcome = runner.run(&histories, |(setup, commands)| {
        let result = std::panic::catch_unwind(|| run(&setup, &commands));
        result.map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            TestCaseError::fail(LAST.take().unwrap_or_default() + &text.unwrap_or_default())
        })
    });
    std::panic::set_hook(hook);
    match outcome {
        Ok(()) => {}
        Err(TestError::Abort(reason)) => panic!("seed {seed}: {reason}"),
        Err(TestError::Fail(reason, (setup, commands))) => {
            let commands: Vec<String> = commands.iter().map(|command| format!("  {command:?}\n")).collect();
            panic!("seed {seed}: {reason}\n{setup:?}\n{}", commands.concat());
        }
    }
}

#[test]
fn the_core_does_what_the_model_allows() {
    run_many(seed(1), HISTORIES, 1..=LENGTH);
}

/// `cargo xtask model --commands 1000000 --seed 7`, which sets the variables.
#[test]
#[ignore = "takes minutes"]
fn the_core_does_what_the_model_allows_for_long() {
    let commands: usize = variable("FOREBAY_MODEL_COMMANDS").unwrap_or(1_000_000);
    let histories = commands.div_ceil(LENGTH) as u32;
    let seed = seed(1);
    eprintln!("{histories} histories of {LENGTH} commands on average, from seed {seed}");
    run_many(seed, histories, 1..2 * LENGTH);
}

fn seed(otherwise: u64) -> u64 {
    variable("FOREBAY_MODEL_SEED").unwrap_or(otherwise)
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}
