//! Promises that are broken on purpose, in the real server: a check that cannot fail shows nothing.
//!
//! The server must be built with its feature `planted-faults`; it then breaks the promise that the environment
//! names.

use std::time::Duration;

use anyhow::bail;

use crate::checker::Promise;
use crate::{Arguments, FAULT_SECONDS, run};

/// A fault, and the promises by whose breach it may be noticed.
/// A log that lacks what MARK calls durable is refused at the start, so a missing sync may show as a server that does
/// not start.
const FAULTS: [(&str, &[Promise]); 10] = [
    (
        "NoSync",
        &[
            Promise::Server,
            Promise::Lost,
            Promise::StoredTwice,
            Promise::DurableAck,
            Promise::Present,
            Promise::LeaseForgotten,
        ],
    ),
    ("AnswerBeforeReceipt", &[Promise::Lost, Promise::StoredTwice, Promise::DurableAck]),
    ("LeaseTwice", &[Promise::Overlap]),
    ("KeyOrderBroken", &[Promise::KeyOrder]),
    ("KeyLockedTwice", &[Promise::KeyOrder]),
    ("StaleAckCounts", &[Promise::Stale]),
    ("DedupeForgotten", &[Promise::StoredTwice]),
    ("DeliveredEarly", &[Promise::Early]),
    ("PaceExceeded", &[Promise::Pace]),
    ("AttemptsForgotten", &[Promise::Attempts]),
];

/// Some faults show only if a kill comes at the right moment, so there is more than one try, each with a seed of its
/// own.
const TRIES: u64 = 5;

/// True if every fault was noticed.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let chosen = |name: &str| arguments.only.as_deref().is_none_or(|only| only == name);
    if !FAULTS.iter().any(|(name, _)| chosen(name)) {
        bail!("no such fault. fault=`{}`", arguments.only.as_deref().unwrap_or_default());
    }
    let seed = arguments.seed();
    let mut all = true;
    for (name, expected) in FAULTS.into_iter().filter(|(name, _)| chosen(name)) {
        let mut noticed = false;
        for (seed, number) in (seed..).zip(1..=TRIES) {
            let mut options = arguments.options(name, Duration::from_secs(FAULT_SECONDS), seed)?;
            options.fault = Some(name.to_owned());
            let report = run::run(&options)?;
            let _ = std::fs::remove_dir_all(&options.folder);
            let breach = report.violations.iter().find(|violation| expected.contains(&violation.promise));
            if let Some(violation) = breach {
                let count = report.violations.len();
                println!("{name}: noticed in run {number} (seed {seed}), {count} violations; {violation}");
                noticed = true;
                break;
            }
        }
        if !noticed {
            println!("{name}: NOT noticed in {TRIES} runs from seed {seed}");
        }
        all &= noticed;
    }
    Ok(all)
}
