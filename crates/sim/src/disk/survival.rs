//! What a loss of power leaves of that which was not synced.
//!
//! Anything may be left, so a simulator rolls dice. A sweep that must be the same each time names its
//! cases instead, and some of them are shapes that dice seldom roll: the header of every write without
//! its body, or the body without the header.

use super::inode::Version;
use crate::dice::Dice;

/// Which of the unsynced changes are still there after the power came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Survival {
    KeepAll,
    KeepNone,
    /// Contents and sizes reached the platter, names did not.
    ContentsOnly,
    /// Names and sizes reached the platter, contents did not.
    NamesOnly,
    /// Of each write, only the first sector is missing.
    FirstSectorsLost,
    /// Of each write, only the last sector is missing.
    LastSectorsLost,
    /// Of each write, only the first sector is there.
    FirstSectorsOnly,
    /// Of each write, the sectors 0, 2, 4 and so on are there.
    EvenSectors,
    /// Of each write, the sectors 1, 3, 5 and so on are there.
    OddSectors,
    Random(u64),
}

impl Survival {
    /// Every case that is not left to chance.
    pub const SHAPES: [Survival; 9] = [
        Survival::KeepAll,
        Survival::KeepNone,
        Survival::ContentsOnly,
        Survival::NamesOnly,
        Survival::FirstSectorsLost,
        Survival::LastSectorsLost,
        Survival::FirstSectorsOnly,
        Survival::EvenSectors,
        Survival::OddSectors,
    ];
}

/// Takes the single decisions of one loss of power.
pub(super) struct Chooser {
    survival: Survival,
    dice: Dice,
    /// How likely a sector, or a name, is to survive, in eighths. Rolled once per loss, because a disk
    /// that lost nearly nothing or kept nearly nothing is as likely as one that kept about half, and
    /// fair coins per sector would only ever show the latter.
    sectors_kept: u64,
    names_kept: u64,
}

impl Chooser {
    pub(super) fn new(survival: Survival) -> Chooser {
        let mut dice = Dice::from(match survival {
            Survival::Random(seed) => seed,
            _ => 0,
        });
        let sectors_kept = *dice.pick(&[0, 1, 4, 7, 8]);
        let names_kept = *dice.pick(&[0, 1, 4, 7, 8]);
        Chooser { survival, dice, sectors_kept, names_kept }
    }

    /// How many of `count` changes of a file's size survive, oldest first.
    pub(super) fn sizes_kept(&mut self, count: usize) -> usize {
        match self.survival {
            Survival::KeepNone => 0,
            Survival::Random(_) => self.dice.roll(count as u64 + 1) as usize,
            _ => count,
        }
    }

    /// Which of the versions of a sector is on the platter; `None` for the one from before.
    pub(super) fn version<'v, 'a>(&mut self, versions: &'v [Version<'a>]) -> Option<&'v Version<'a>> {
        if let Survival::Random(_) = self.survival {
            return self.dice.chance(self.sectors_kept, 8).then(|| self.dice.pick(versions));
        }
        versions.iter().rev().find(|version| self.shape_keeps(version))
    }

    fn shape_keeps(&self, version: &Version<'_>) -> bool {
        match self.survival {
            Survival::KeepAll | Survival::ContentsOnly => true,
            Survival::KeepNone | Survival::NamesOnly => false,
            Survival::FirstSectorsLost => version.index > 0,
            Survival::LastSectorsLost => version.index + 1 < version.count,
            Survival::FirstSectorsOnly => version.index == 0,
            Survival::EvenSectors => version.index.is_multiple_of(2),
            Survival::OddSectors => !version.index.is_multiple_of(2),
            Survival::Random(_) => unreachable!("chance decides for random survival"),
        }
    }

    /// Whether a change of a name survives, given that those it builds on did.
    pub(super) fn name_kept(&mut self) -> bool {
        match self.survival {
            Survival::KeepNone | Survival::ContentsOnly => false,
            Survival::Random(_) => self.dice.chance(self.names_kept, 8),
            _ => true,
        }
    }
}
