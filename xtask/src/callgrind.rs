//! Instructions per cycle, counted by valgrind.
//!
//! A rate depends on the machine and on its neighbours; a count of instructions does not. The bench runs
//! twice, for a short and for a long number of cycles, and the difference is divided by the cycles in
//! between, so that start-up and tear-down cancel out.

use std::path::PathBuf;

use crate::{cargo_command, finish};

pub(crate) const HELP: &str = "\
Usage: cargo xtask bench [cost|journal|backlog|deep|turns|e2e|restart|crowd|sdk|soak|sqs|polls] ...
       cargo xtask bench peers [--only NAME[,NAME]] ...
       cargo xtask bench python [--jobs N] [--singles N] [--rounds N]
       cargo xtask bench callgrind [--batch B] [--short N] [--long N]

Builds the benches in release mode and runs one. All arguments go to the bench as they are.

`peers` measures other servers too: Redis, RabbitMQ, PostgreSQL, NATS and Kafka. Those that are not here are installed
first, as root with apt-get, and by Python's and Java's package managers into the folder `forebay/peers` of the user's
cache. What cannot be had is said, and left out of the table. With `--only` nothing else is installed.

`python` lets workers of the package for Python process jobs, and workers of Celery with Redis, which is installed if it
is not here.

`callgrind` counts the instructions of one publish, deliver and ack: the cost bench runs under
valgrind for N short and N long cycles, and the difference is divided by the cycles in between.
Without `--batch` it counts batches of 64 and of 1.
";

/// What to count.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    batches: Vec<u64>,
    short: u64,
    long: u64,
}

impl Plan {
    pub(crate) fn parse(arguments: &[String]) -> Result<Plan, String> {
        // Multiples of the larger batch, so that both runs consist of whole batches.
        let mut plan = Plan { batches: vec![64, 1], short: 64 * 500, long: 64 * 2_500 };
        let mut rest = arguments.iter();
        while let Some(name) = rest.next() {
            if !["--batch", "--short", "--long"].contains(&name.as_str()) {
                return Err(format!("`bench callgrind` does not take this. argument=`{name}`"));
            }
            let value = rest.next().ok_or_else(|| format!("{name} needs a number"))?;
            let number = value
                .parse()
                .ok()
                .filter(|number| *number > 0)
                .ok_or_else(|| format!("{name} needs a number above zero. value=`{value}`"))?;
            match name.as_str() {
                "--batch" => plan.batches = vec![number],
                "--short" => plan.short = number,
                _ => plan.long = number,
            }
        }
        if plan.short >= plan.long {
            return Err(format!(
                "--short must be less than --long. short=`{}` long=`{}`",
                plan.short, plan.long
            ));
        }
        Ok(plan)
    }
}

pub(crate) fn run(plan: &Plan) -> Result<(), String> {
    if let Err(error) = std::process::Command::new("valgrind").arg("--version").output() {
        return Err(format!("callgrind is a part of valgrind, and valgrind cannot be run here: {error}"));
    }
    for &batch in &plan.batches {
        let short = count(plan.short, batch)?;
        let long = count(plan.long, batch)?;
        let each = per_cycle(plan, short, long)?;
        println!(
            "callgrind: {each:.1} instructions per cycle in batches of {batch} \
             ({short} for {} cycles, {long} for {})",
            plan.short, plan.long
        );
    }
    Ok(())
}

/// The instructions of one run of the cost bench.
fn count(cycles: u64, batch: u64) -> Result<u64, String> {
    let out = Scratch::new();
    let valgrind =
        ["valgrind", "--quiet", "--tool=callgrind", &format!("--callgrind-out-file={}", out.name())]
            .map(|word| format!("'{word}'"))
            .join(", ");
    // Cargo builds the bench and starts it under valgrind, so where it lies is cargo's business.
    let runner = format!("target.'cfg(all())'.runner = [{valgrind}]");
    let (cycles, batch) = (cycles.to_string(), batch.to_string());
    let bench = "forebay-bench";
    let line = [
        "run",
        "--release",
        "--quiet",
        "--config",
        &runner,
        "--package",
        bench,
        "--bin",
        bench,
        "--",
        "cost",
        "--count",
        &cycles,
        "--batch",
        &batch,
    ];
    finish(cargo_command(&line), &line)?;
    let report = std::fs::read_to_string(&out.0)
        .map_err(|error| format!("cannot read what callgrind wrote to {}: {error}", out.name()))?;
    total(&report).ok_or_else(|| "callgrind wrote no total".to_owned())
}

/// A file for one report, gone with this value.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        Scratch(std::env::temp_dir().join(format!("forebay-callgrind-{}.out", std::process::id())))
    }

    fn name(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It may never have been written, and a leftover in the temporary folder does no harm.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The instructions of the whole run. A report has one `totals:` line per program, and one `summary:`
/// line per part; a run that was not cut into parts has the same number in both.
fn total(report: &str) -> Option<u64> {
    let line = |name: &str| report.lines().find_map(|line| line.strip_prefix(name));
    line("totals:").or_else(|| line("summary:"))?.split_whitespace().next()?.parse().ok()
}

fn per_cycle(plan: &Plan, short: u64, long: u64) -> Result<f64, String> {
    let more = long.checked_sub(short).filter(|more| *more > 0).ok_or_else(|| {
        format!("the longer run took no more instructions than the shorter. short=`{short}` long=`{long}`")
    })?;
    Ok(more as f64 / (plan.long - plan.short) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Plan, String> {
        Plan::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_total_is_read_from_the_report() {
        let report = "version: 1\nevents: Ir\nsummary: 41\nfn=(1)\n0 7\n\ntotals: 1234\n";
        assert_eq!(total(report), Some(1234));
        assert_eq!(total("version: 1\nsummary: 41 3\n"), Some(41));
        assert_eq!(total("version: 1\n"), None);
    }

    #[test]
    fn start_up_cancels_out() {
        let plan = parse("--short 100 --long 300").expect("a good plan");
        assert_eq!(per_cycle(&plan, 5_000 + 100 * 7, 5_000 + 300 * 7), Ok(7.0));
        assert!(per_cycle(&plan, 700, 700).is_err());
    }

    #[test]
    fn a_plan_that_cannot_be_counted_is_refused() {
        assert!(parse("--short 10 --long 10").is_err());
        assert_eq!(parse("--batch"), Err("--batch needs a number".to_owned()));
        assert_eq!(parse("--batch 0"), Err("--batch needs a number above zero. value=`0`".to_owned()));
        assert_eq!(
            parse("--fast"),
            Err("`bench callgrind` does not take this. argument=`--fast`".to_owned())
        );
    }

    #[test]
    fn a_plan_of_one_batch_size_counts_only_that() {
        assert_eq!(parse("--batch 16").map(|plan| plan.batches), Ok(vec![16]));
        assert_eq!(parse("").map(|plan| plan.batches), Ok(vec![64, 1]));
    }
}
