//! The crash sweep: stop the journal at every call it makes, and check the remaining files.
//!
//! A script is played once to count its calls, and then once for each of them, up to the call at which
//! the process dies. What it leaves is forked: one fork keeps the page cache, the others lose power, each
//! in its own way. Every fork is opened again and must show all that was acknowledged, byte for byte,
//! must show nothing that was never sent, and must not be refused. Some forks crash a second time, at
//! each call of the recovery itself.
//!
//! Then the same again with an error instead of a crash: the call fails, and a sync that fails has lost
//! what it should have written. The journal may stop or carry on, but it may not forget.

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_storage::journal::disk::Stage;

use super::witness::{Fallback, Outcome, Witness};
use super::workload::{Halt, Player, Step, script};
use crate::dice::Dice;
use crate::disk::{Count, SimDisk, Survival};

/// How much to try.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Scripts, each from a seed of its own, counted from `seed` on.
    pub scripts: u64,
    pub seed: u64,
    pub steps: usize,
    /// Losses of power by dice, beside those by name, for each crash.
    pub random_losses: u64,
    /// One in this many states crashes again, at each call of its recovery.
    pub again_one_in: u64,
    /// Whether the folder is encrypted.
    pub encrypted: bool,
}

impl Scale {
    /// For every run of the tests: a few thousand states.
    #[cfg(test)]
    const EVERYDAY: Scale = Scale { scripts: 1, ..Scale::REDUCED };
    /// For a change of the journal: some ten thousand states.
    pub const REDUCED: Scale =
        Scale { scripts: 3, seed: 1, steps: 12, random_losses: 2, again_one_in: 40, encrypted: false };
    /// For a release: a quarter of a million states.
    pub const FULL: Scale =
        Scale { scripts: 40, seed: 1, steps: 24, random_losses: 6, again_one_in: 60, encrypted: false };

    fn disk(self) -> SimDisk {
        if self.encrypted { SimDisk::encrypted() } else { SimDisk::new() }
    }
}

/// What happens at the chosen call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interruption {
    Crash,
    Error(ErrorKind),
}

/// What became of the process, and of what it had not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum After {
    Kill,
    PowerLoss(Survival),
}

/// What a sweep has tried and found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub scripts: u64,
    /// Calls at which the process was stopped.
    pub crashes: u64,
    /// Calls that were made to fail.
    pub errors: u64,
    /// Disks that were opened after a crash and checked.
    pub states: u64,
    pub states_by_stage: BTreeMap<Stage, u64>,
    /// Among them, disks that crashed a second time while they were being recovered.
    pub states_again: u64,
    /// Frames on their way at the crash that were there afterwards, and that were not.
    pub kept: u64,
    pub lost: u64,
    pub failures: u64,
    /// The first failures, each with what it takes to see it again.
    pub examples: Vec<String>,
}

/// More failures than this are only counted.
const EXAMPLES_MAX: usize = 10;

pub fn run(scale: Scale) -> Report {
    let mut report = Report::default();
    for seed in scale.seed..scale.seed + scale.scripts {
        Sweep::new(seed, scale).run(&mut report);
    }
    report
}

/// The sweep of one script.
struct Sweep {
    seed: u64,
    scale: Scale,
    script: Vec<Step>,
    dice: Dice,
}

impl Sweep {
    fn new(seed: u64, scale: Scale) -> Sweep {
        let mut dice = Dice::from(seed);
        Sweep { seed, scale, script: script(&mut dice, scale.steps), dice }
    }

    fn run(&mut self, report: &mut Report) {
        report.scripts += 1;
        let disk = self.scale.disk();
        if let Err(halt) = self.play(&disk).1 {
            report.fail(format!("seed {}, without a crash: {halt}", self.seed));
            return;
        }
        for call in 1..=disk.calls().changes {
            self.interrupt(call, Interruption::Crash, report);
            let kind = *self.dice.pick(&[ErrorKind::Other, ErrorKind::StorageFull]);
            self.interrupt(call, Interruption::Error(kind), report);
        }
    }

    /// Plays the script from the beginning, until it is through or the fuse of the disk blows.
    fn play(&self, disk: &SimDisk) -> (Witness, Result<(), Halt>) {
        let mut player = Player::new(disk.clone(), Witness::default(), self.seed);
        let played = player.open(Fallback::Never).and_then(|_| player.play(&self.script));
        let stopped = played.and_then(|()| Ok(player.stop()?));
        (player.witness, stopped)
    }

    fn interrupt(&mut self, call: u64, interruption: Interruption, report: &mut Report) {
        let disk = self.scale.disk();
        match interruption {
            Interruption::Crash => disk.crash_at(Count::Changes, call),
            Interruption::Error(kind) => disk.fail_at(Count::Changes, call, kind),
        }
        let (witness, played) = self.play(&disk);
        if let Err(Halt::Impossible(wrong)) = &played {
            report.fail(format!("seed {}, {interruption:?} at call {call}: {wrong}", self.seed));
        }
        let struck = match interruption {
            Interruption::Crash => disk.crashed(),
            Interruption::Error(_) => disk.failed(),
        };
        let Some(struck) = struck else {
            report.fail(format!("seed {}, call {call} was never made: {played:?}", self.seed));
            return;
        };
        match interruption {
            Interruption::Crash => report.crashes += 1,
            Interruption::Error(_) => report.errors += 1,
        }
        for after in self.afters(&disk) {
            let story = format!("seed {}, {interruption:?} at call {call} ({struck}), {after:?}", self.seed);
            let left = after.applied_to(&disk);
            report.states += 1;
            *report.states_by_stage.entry(struck.stage).or_default() += 1;
            match revive(&left.fork(), &witness).1 {
                Ok(outcome) => report.count(outcome),
                Err(halt) => report.fail(format!("{story}: {halt}")),
            }
            if self.dice.chance(1, self.scale.again_one_in) {
                self.crash_again(&left, &witness, &story, report);
            }
        }
    }

    /// All ways in which the process may end here. If nothing was unsynced they all leave the same.
    fn afters(&mut self, disk: &SimDisk) -> Vec<After> {
        let mut afters = vec![After::Kill];
        if !disk.is_settled() {
            afters.extend(Survival::SHAPES.map(After::PowerLoss));
            let seeds = (0..self.scale.random_losses).map(|_| self.dice.u64());
            afters.extend(seeds.map(|seed| After::PowerLoss(Survival::Random(seed))));
        }
        afters
    }

    /// Stops the recovery of a disk, and the work after it, at each call, and recovers what that leaves.
    fn crash_again(&mut self, left: &SimDisk, witness: &Witness, story: &str, report: &mut Report) {
        let counted = left.fork();
        let before = counted.calls().changes;
        // Only the calls count here; whether the recovery is right has been asked before.
        let _ = revive(&counted, witness);
        for call in 1..=counted.calls().changes - before {
            let disk = left.fork();
            disk.crash_at(Count::Changes, call);
            let (seen, _) = revive(&disk, witness);
            let Some(struck) = disk.crashed() else {
                report.fail(format!("{story}, again at {call}: that call was never made"));
                return;
            };
            let afters = self.afters(&disk);
            let after = *self.dice.pick(&afters);
            report.states += 1;
            report.states_again += 1;
            *report.states_by_stage.entry(struck.stage).or_default() += 1;
            match revive(&after.applied_to(&disk), &seen).1 {
                Ok(outcome) => report.count(outcome),
                Err(halt) => report.fail(format!("{story}, again at {call} ({struck}), {after:?}: {halt}")),
            }
        }
    }
}

impl After {
    fn applied_to(self, disk: &SimDisk) -> SimDisk {
        let mut left = disk.fork();
        if let After::PowerLoss(survival) = self {
            left.lose_power(survival);
        }
        left
    }
}

/// Opens what a crash left, checks it, commits one frame more, and dies and opens once again: a journal
/// that was recovered is one that can be worked with. Also returns the frames that the journal now owes.
fn revive(left: &SimDisk, witness: &Witness) -> (Witness, Result<Outcome, Halt>) {
    let mut player = Player::new(left.clone(), witness.clone(), 0);
    let revived = catch_unwind(AssertUnwindSafe(|| {
        let outcome = player.open(Fallback::Never)?;
        player.play(&[Step::Commit { frames: 1 }, Step::Die])?;
        Ok(outcome)
    }));
    let revived = revived.unwrap_or_else(|_| Err(Halt::Impossible("the journal panicked".to_string())));
    (player.witness, revived)
}

impl Report {
    fn count(&mut self, outcome: Outcome) {
        self.kept += outcome.kept;
        self.lost += outcome.lost;
    }

    fn fail(&mut self, story: String) {
        self.failures += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(story);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "crash sweep: {} states after {} crashes and {} errors in {} scripts, {} crashed again in recovery",
            self.states, self.crashes, self.errors, self.scripts, self.states_again
        )?;
        for (stage, states) in &self.states_by_stage {
            writeln!(f, "  {:<12} {states:>8} states", format!("{stage:?}"))?;
        }
        writeln!(f, "  frames on their way: {} kept, {} lost", self.kept, self.lost)?;
        writeln!(f, "  failures: {}", self.failures)?;
        self.examples.iter().try_for_each(|example| writeln!(f, "    {example}"))
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::fault::{self, Fault};

    use super::*;

    #[test]
    fn nothing_acknowledged_is_lost_wherever_the_journal_stops() {
        check(&run(Scale::EVERYDAY));
    }

    #[test]
    fn nothing_acknowledged_is_lost_where_the_folder_is_encrypted() {
        check(&run(Scale { encrypted: true, ..Scale::EVERYDAY }));
    }

    fn check(report: &Report) {
        assert_eq!(report.failures, 0, "{report}");
        assert!(report.states > 2_000, "{report}");
        assert!(report.states_again > 100, "{report}");
        assert!(report.kept > 0 && report.lost > 0, "{report}");
        let stages = [
            Stage::Recovering,
            Stage::Committing,
            Stage::Marking,
            Stage::Rotating,
            Stage::Sealing,
            Stage::Preparing,
            Stage::Saving,
            Stage::Trimming,
        ];
        for stage in stages {
            assert!(report.states_by_stage.contains_key(&stage), "no crash fell in {stage:?}\n{report}");
        }
    }

    /// Once found by the sweep: after a clean stop the next start took a segment header for good that was
    /// only in the page cache, because its sync had failed, and chained acknowledged frames to it.
    #[test]
    fn a_start_that_fails_after_a_clean_stop_leaves_nothing_to_build_on() {
        let mut player = Player::new(SimDisk::new(), Witness::default(), 1);
        player.open(Fallback::Never).expect("an empty folder opens");
        player.play(&[Step::Commit { frames: 2 }]).expect("nothing was planted");
        player.stop().expect("nothing was planted");
        for call in 1.. {
            let disk = player.disk.fork();
            disk.fail_at(Count::Changes, call, ErrorKind::Other);
            let (seen, _) = revive(&disk, &player.witness);
            if disk.failed().is_none() {
                assert!(call > 5, "a start changes something");
                break;
            }
            let (_, revived) = revive(&disk.fork(), &seen);
            revived.unwrap_or_else(|halt| panic!("call {call} ({:?}): {halt}", disk.failed()));
        }
    }

    #[test]
    fn a_journal_that_does_not_sync_is_caught() {
        fault::plant(Some(Fault::NoSync));
        let report = run(Scale::EVERYDAY);
        fault::plant(None);
        assert!(report.failures > 0, "{report}");
    }
}
