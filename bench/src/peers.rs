//! Forebay beside the servers that one would pick instead, and beside the floors: the same load on each,
//! in turns.
//!
//! A round takes one server after another: starts it, runs every workload on it, each on a queue of its own,
//! and stops it. Figures are medians of the rounds, so that noise that lasts a while meets everyone and not
//! one. The clients are in this process and share the machine with the server, as everywhere here.

mod connection;
pub(crate) mod contender;
pub(crate) mod floor;
mod forebay;
mod kafka;
mod load;
mod machine;
mod nats;
mod plot;
mod postgres;
mod process;
mod processes;
mod promises;
mod rabbitmq;
mod redis;
mod report;
mod results;
#[cfg(test)]
mod trial;
mod workloads;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::arguments::Arguments;
use crate::server;
use contender::{Contender, Failure};
use results::{About, Results};
use workloads::{Bench, Outcome};

/// Servers that are measured if they can be had, and where the environment says what to run.
const PEERS: [(&str, &str); 5] = [
    ("Redis", "FOREBAY_PEER_REDIS"),
    ("NATS", "FOREBAY_PEER_NATS"),
    ("PostgreSQL", "FOREBAY_PEER_POSTGRES"),
    ("RabbitMQ", "FOREBAY_PEER_RABBITMQ"),
    ("Kafka", "FOREBAY_PEER_KAFKA"),
];

/// Everyone who can be had here.
fn everyone(program: &Path) -> Result<Vec<Box<dyn Contender>>, Failure> {
    let mut all = forebay::contenders(program)?;
    all.extend(floor::contenders()?);
    // Each of the peers says by itself whether it can be had.
    for peers in
        [redis::contenders, nats::contenders, postgres::contenders, rabbitmq::contenders, kafka::contenders]
    {
        all.extend(peers()?);
    }
    Ok(all)
}

/// What takes longer than this is measured in one round only, if it is one of the heavy ones.
const HEAVY_MAX: Duration = Duration::from_secs(20);
/// Nothing takes this long unless something hangs.
const WORKLOAD_MAX: Duration = Duration::from_secs(240);

struct Plan {
    only: Option<Vec<String>>,
    workloads: Vec<&'static str>,
    rounds: u64,
    lasts: Duration,
    folder: PathBuf,
}

pub(crate) fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    run_or_render(arguments).map_err(|error| -> Box<dyn Error> { error })
}

fn run_or_render(mut arguments: Arguments) -> Result<(), Failure> {
    let out: Option<PathBuf> = arguments.take("out")?;
    if let Some(file) = arguments.take::<PathBuf>("render")? {
        arguments.finish()?;
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let results: Results = serde_json::from_str(&text)?;
        let folder = out.unwrap_or_else(|| file.parent().unwrap_or(Path::new(".")).to_owned());
        return write(&results, &folder);
    }
    let is_quick = arguments.take::<bool>("quick")?.unwrap_or(false);
    let date = arguments.take("date")?.unwrap_or_else(machine::today);
    let (only, chosen) = (list(&mut arguments, "only")?, list(&mut arguments, "workloads")?);
    let is_whole = only.is_none() && chosen.is_none() && !is_quick;
    let plan = Plan {
        only,
        workloads: workloads_of(chosen, is_quick)?,
        rounds: arguments.number("rounds", if is_quick { 1 } else { 3 })?,
        lasts: Duration::from_secs_f64(arguments.seconds(if is_quick { 0.5 } else { 2.0 })?),
        folder: arguments.folder()?,
    };
    let program = server::program(&mut arguments).map_err(|error| error.to_string())?;
    arguments.finish()?;
    // Partial results are only printed, and kept only if a folder is given.
    let out = out.or_else(|| is_whole.then(|| PathBuf::from("bench/results")));
    let results = measure(&plan, &program, date, out.as_deref())?;
    if out.is_none() {
        print!("\n{}", report::markdown(&results));
    }
    Ok(())
}

fn list(arguments: &mut Arguments, name: &str) -> Result<Option<Vec<String>>, String> {
    let text = arguments.take::<String>(name)?;
    Ok(text.map(|text| text.split(',').map(|word| word.trim().to_owned()).collect()))
}

fn workloads_of(chosen: Option<Vec<String>>, is_quick: bool) -> Result<Vec<&'static str>, String> {
    let is_unknown = |name: &&String| !workloads::ALL.contains(&name.as_str());
    if let Some(unknown) = chosen.iter().flatten().find(is_unknown) {
        let all = workloads::ALL.join(", ");
        return Err(format!("no such workload: there are {all}. workload=`{unknown}`"));
    }
    let is_wanted = |name: &&str| match &chosen {
        Some(chosen) => chosen.iter().any(|of| of == name),
        None => !is_quick || !workloads::HEAVY.contains(name),
    };
    Ok(workloads::ALL.into_iter().filter(is_wanted).collect())
}

/// The results so far are written after every round, because all rounds take a while.
fn measure(plan: &Plan, program: &Path, date: String, out: Option<&Path>) -> Result<Results, Failure> {
    let mut all = everyone(program)?;
    if let Some(only) = &plan.only {
        let has = |id: &String| all.iter().any(|contender| contender.about().id == id);
        if let Some(unknown) = only.iter().find(|id| !has(id)) {
            let ids: Vec<&str> = all.iter().map(|contender| contender.about().id).collect();
            let ids = ids.join(", ");
            return Err(format!("cannot be measured here, unlike {ids}. contender=`{unknown}`").into());
        }
        all.retain(|contender| only.iter().any(|id| id == contender.about().id));
    }
    // Who was not asked for is not missed.
    let is_absent = |variable: &str| plan.only.is_none() && std::env::var_os(variable).is_none();
    let absent = PEERS.iter().filter(|(_, variable)| is_absent(variable));
    std::fs::create_dir_all(&plan.folder)?;
    let mut results = Results {
        date,
        rounds: plan.rounds,
        seconds: plan.lasts.as_secs_f64(),
        machine: machine::look(&plan.folder)?,
        contenders: all.iter().map(|contender| About::of(contender.about())).collect(),
        absent: absent.map(|(name, variable)| format!("{name} ({variable} is not set)")).collect(),
        cells: Vec::new(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut took = BTreeMap::new();
    for round in 1..=plan.rounds {
        // No server always comes first, or after the same one.
        let first = (round as usize - 1) * all.len() / plan.rounds as usize;
        let (before, after) = all.split_at(first);
        for contender in after.iter().chain(before) {
            let id = contender.about().id;
            let folder = plan.folder.join(id);
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder)?;
            println!("round {round}: {id}");
            let done = runtime.block_on(round_of(plan, contender.as_ref(), &folder, &mut took, &mut results));
            if let Err(error) = done {
                eprintln!("{id} does not start: {error}");
                for workload in &plan.workloads {
                    results.cell_mut(workload, id).note = Some(format!("did not start: {error}"));
                }
            }
            let _ = std::fs::remove_dir_all(&folder);
        }
        if let Some(out) = out {
            write(&results, out)?;
        }
    }
    let _ = std::fs::remove_dir_all(&plan.folder);
    Ok(results)
}

/// One server, from its start to its end.
async fn round_of(
    plan: &Plan,
    contender: &dyn Contender,
    folder: &Path,
    took: &mut BTreeMap<(&'static str, &'static str), Duration>,
    results: &mut Results,
) -> Result<(), Failure> {
    let id = contender.about().id;
    let mut bench = Bench::start(contender, folder, plan.lasts).await?;
    for &workload in &plan.workloads {
        let is_heavy = workloads::HEAVY.contains(&workload);
        if is_heavy && took.get(&(id, workload)).is_some_and(|took| *took > HEAVY_MAX) {
            continue;
        }
        let started = Instant::now();
        let outcome = tokio::time::timeout(WORKLOAD_MAX, bench.run(workload)).await;
        took.insert((id, workload), started.elapsed());
        let cell = results.cell_mut(workload, id);
        let Ok(outcome) = outcome else {
            eprintln!("  {workload:>13}: hangs");
            cell.note = Some("hangs".to_owned());
            return Ok(());
        };
        match outcome {
            Ok(Outcome::Measured(mut sample)) => {
                sample.values_mut().for_each(|value| *value = rounded(*value));
                let figures: Vec<String> =
                    sample.iter().map(|(name, value)| format!("{name} {value:.2}")).collect();
                println!("  {workload:>13}: {}", figures.join("  "));
                cell.samples.push(sample);
            }
            Ok(Outcome::Without(reason)) => cell.note = Some(reason),
            Err(error) => {
                eprintln!("  {workload:>13}: {error}");
                cell.note = Some(format!("failed: {error}"));
            }
        }
    }
    Ok(())
}

/// Six significant digits, so that a value is the same after it was written and read again.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// The table, the figures that it is made of, and the plots.
fn write(results: &Results, folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)?;
    let path = |end: &str| folder.join(format!("{}-peers{end}", results.date));
    std::fs::write(path(".json"), serde_json::to_string_pretty(results)? + "\n")?;
    std::fs::write(path(".md"), report::markdown(results))?;
    for (name, svg) in plot::all(results) {
        std::fs::write(path(&format!("-{name}.svg")), svg)?;
    }
    println!("written to {}", path(".md").display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_kept_as_they_are_read_again() {
        assert_eq!(
            [rounded(1_617_442.848), rounded(0.9117949999), rounded(0.0)],
            [1_617_440.0, 0.911795, 0.0]
        );
        let results = results::example();
        let text = serde_json::to_string(&results).expect("plain data");
        let again: Results = serde_json::from_str(&text).expect("as it was written");
        assert_eq!(serde_json::to_string(&again).expect("plain data"), text);
    }

    #[test]
    fn workloads_are_chosen_by_name_and_run_in_their_order() {
        let chosen = |names: &str| Some(names.split(',').map(str::to_owned).collect());
        assert_eq!(workloads_of(chosen("drain,publish-64"), false), Ok(vec!["publish-64", "drain"]));
        assert_eq!(workloads_of(None, false).map(|all| all.len()), Ok(workloads::ALL.len()));
        assert!(workloads_of(None, true).is_ok_and(|all| !all.contains(&"restart")));
        assert!(workloads_of(chosen("drian"), false).is_err());
    }
}
