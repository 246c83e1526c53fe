//! The corruption sweep: damage one file of a finished folder, and see whether anyone notices.
//!
//! Several folders are made, as a clean stop, a killed process, a torn write, saved images and trimming
//! leave them. Each is damaged in one place at a time: bits flipped, sectors and pages zeroed, blocks
//! copied and swapped, files cut, deleted, doubled, swapped, put back as they once were, and added to. Then
//! the journal must either show all acknowledged frames, or report the damage. It must never go on and show
//! other frames, or fewer. It must start where a second copy is kept by design: of the state in another image, of
//! MARK in its other slot.
//!
//! One thing no journal of this form can notice, and it is left out here: MARK is synced when the journal
//! has been idle for a moment and not with every commit, so a loss of power may take the newest marks with
//! it. If the very blocks that they vouched for, the last few before the loss, are then damaged before the
//! journal is opened again, that looks like a block that was never finished. The folders that lost power
//! here had been idle for that moment.

use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::damage::{self, Damage, Kind};
use super::folders::{Folder, folders};
use super::witness::Fallback;
use super::workload::{Halt, Player};
use crate::dice::Dice;
use crate::disk::Count;

/// How much to try.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    pub seed: u64,
    /// Folders of each sort.
    pub folders: u64,
    /// Bytes outside headers are sampled, one in so many, and from 8 on the rest is sampled too.
    pub one_in: u64,
    /// Of the damages that follow from this, only one in so many is tried.
    pub thinned: u64,
    /// Whether the folders are encrypted.
    pub encrypted: bool,
}

impl Scale {
    /// For every run of the tests: a few thousand damages.
    #[cfg(test)]
    const EVERYDAY: Scale = Scale { thinned: 4, ..Scale::REDUCED };
    /// For a change of the journal: some ten thousand damages.
    pub const REDUCED: Scale = Scale { seed: 1, folders: 1, one_in: 200, thinned: 1, encrypted: false };
    /// For a release: more than a million damages.
    pub const FULL: Scale = Scale { seed: 1, folders: 10, one_in: 7, thinned: 1, encrypted: false };
}

/// What a damaged folder came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verdicts {
    /// All that was acknowledged is there.
    pub harmless: u64,
    /// All of it is there, from the older image.
    pub fell_back: u64,
    /// The journal reports the damage, when it is opened or when the damaged place is read.
    pub refused: u64,
    /// The journal goes on and shows what cannot be, or panics, or believes an absurd length.
    pub silent: u64,
}

/// What a sweep has tried and found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub folders: u64,
    /// Acknowledged frames that were at stake, over all folders.
    pub frames: u64,
    pub by_kind: BTreeMap<Kind, Verdicts>,
    /// The first silent ones, each with what it takes to see it again.
    pub examples: Vec<String>,
}

/// More than this are only counted.
const EXAMPLES_MAX: usize = 20;

/// No reader of these small folders has a reason to ask for more at once.
const READ_BYTES_MAX: usize = 1 << 20;

pub fn run(scale: Scale) -> Report {
    let mut report = Report::default();
    for folder in folders(scale.seed, scale.folders, scale.encrypted) {
        report.folders += 1;
        report.frames += folder.witness.owed() as u64;
        let mut dice = Dice::from(scale.seed);
        let mut thinning = Dice::from(scale.seed);
        damage::each(&folder, &mut dice, scale.one_in, &mut |damage| {
            if !thinning.chance(1, scale.thinned) {
                return;
            }
            report.count(damage.kind, judge(&folder, damage), || format!("{}, {damage}", folder.name));
        });
        for call in (1..=calls_to_read_all(&folder)).step_by(scale.thinned as usize) {
            let what = || format!("{}, call {call} fails", folder.name);
            report.count(Kind::Unreadable, judge_unreadable(&folder, call), what);
        }
    }
    report
}

enum Verdict {
    Harmless,
    FellBack,
    Refused,
    Silent(String),
}

/// Damages a copy of the folder, and opens it and reads everything, twice: what a first recovery did
/// about the damage must hold for the next one.
fn judge(folder: &Folder, damage: &Damage) -> Verdict {
    let disk = folder.disk.fork();
    damage.apply(&disk);
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let mut player = Player::new(disk.clone(), folder.witness.clone(), 0);
        let gone = damage.kind == Kind::Delete;
        let first = player.open(if gone { Fallback::Silently } else { Fallback::WithRemark })?;
        player.die();
        let second = player.open(Fallback::Silently)?;
        Ok(first.fell_back || second.fell_back)
    }));
    if disk.read_bytes_max() > READ_BYTES_MAX {
        return Verdict::Silent(format!("asked for {} bytes at once", disk.read_bytes_max()));
    }
    match opened {
        Ok(Ok(false)) => Verdict::Harmless,
        Ok(Ok(true)) => Verdict::FellBack,
        Ok(Err(Halt::Failed(trouble))) if damage.leaves_a_copy(folder) => {
            Verdict::Silent(format!("refused although a second copy is there: {trouble}"))
        }
        Ok(Err(Halt::Failed(trouble))) if trouble.names_the_place() => Verdict::Refused,
        Ok(Err(Halt::Failed(trouble))) => {
            Verdict::Silent(format!("refused without naming the place: {trouble}"))
        }
        Ok(Err(Halt::Impossible(wrong))) => Verdict::Silent(wrong),
        Err(_) => Verdict::Silent("the journal panicked".to_string()),
    }
}

/// How many calls it takes to open a folder and read everything in it.
fn calls_to_read_all(folder: &Folder) -> u64 {
    let disk = folder.disk.fork();
    let before = disk.calls().all;
    let opened = Player::new(disk.clone(), folder.witness.clone(), 0).open(Fallback::Never);
    opened.expect("a folder that was not damaged opens");
    disk.calls().all - before
}

/// Lets one call fail, once, while the folder is opened and read. Unreadable is never the same as absent:
/// the journal says so or manages without, and when it is opened again everything is there.
fn judge_unreadable(folder: &Folder, call: u64) -> Verdict {
    let disk = folder.disk.fork();
    disk.fail_at(Count::All, call, ErrorKind::Other);
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let mut player = Player::new(disk, folder.witness.clone(), 0);
        let first = player.open(Fallback::Never);
        player.die();
        (first, player.open(Fallback::Never))
    }));
    match opened {
        Ok((Ok(_), Ok(_))) => Verdict::Harmless,
        Ok((Err(Halt::Failed(_)), Ok(_))) => Verdict::Refused,
        Ok((Err(Halt::Impossible(wrong)), _)) => Verdict::Silent(wrong),
        Ok((_, Err(halt))) => Verdict::Silent(format!("when it can be read again: {halt}")),
        Err(_) => Verdict::Silent("the journal panicked".to_string()),
    }
}

impl Report {
    fn count(&mut self, kind: Kind, verdict: Verdict, what: impl FnOnce() -> String) {
        let verdicts = self.by_kind.entry(kind).or_default();
        match verdict {
            Verdict::Harmless => verdicts.harmless += 1,
            Verdict::FellBack => verdicts.fell_back += 1,
            Verdict::Refused => verdicts.refused += 1,
            Verdict::Silent(wrong) => {
                verdicts.silent += 1;
                if self.examples.len() < EXAMPLES_MAX {
                    self.examples.push(format!("{}: {wrong}", what()));
                }
            }
        }
    }

    /// All kinds together.
    pub fn total(&self) -> Verdicts {
        self.by_kind.values().fold(Verdicts::default(), |sum, next| Verdicts {
            harmless: sum.harmless + next.harmless,
            fell_back: sum.fell_back + next.fell_back,
            refused: sum.refused + next.refused,
            silent: sum.silent + next.silent,
        })
    }
}

impl Verdicts {
    pub fn states(&self) -> u64 {
        self.harmless + self.fell_back + self.refused + self.silent
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states = self.total().states();
        writeln!(
            f,
            "corruption sweep: {states} damages to {} folders with {} frames",
            self.folders, self.frames
        )?;
        writeln!(f, "  {:<16} {:>9} {:>9} {:>9} {:>9}", "", "harmless", "fell back", "refused", "silent")?;
        let kinds = self.by_kind.iter().map(|(kind, verdicts)| (format!("{kind:?}"), *verdicts));
        for (kind, verdicts) in kinds.chain([("all".to_string(), self.total())]) {
            writeln!(
                f,
                "  {kind:<16} {:>9} {:>9} {:>9} {:>9}",
                verdicts.harmless, verdicts.fell_back, verdicts.refused, verdicts.silent
            )?;
        }
        self.examples.iter().try_for_each(|example| writeln!(f, "    {example}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_damage_to_a_single_file_goes_unnoticed() {
        check(&run(Scale::EVERYDAY));
    }

    #[test]
    fn no_damage_to_a_single_encrypted_file_goes_unnoticed() {
        check(&run(Scale { encrypted: true, ..Scale::EVERYDAY }));
    }

    fn check(report: &Report) {
        let total = report.total();
        assert_eq!(total.silent, 0, "{report}");
        assert!(total.states() > 2_000 && report.frames > 100, "{report}");
        assert!(total.harmless > 0 && total.fell_back > 0 && total.refused > 0, "{report}");
        assert_eq!(report.by_kind.len(), 13, "every kind of damage was tried\n{report}");
    }
}
