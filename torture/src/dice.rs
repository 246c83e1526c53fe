//! The only source of chance of a run. One seed gives one sequence of rolls; when things happen still
//! depends on the machine, so a seed repeats the plan of a run and not every step of it.

/// Dice that fall the same way each time they are made from the same seed (xorshift64*).
#[derive(Debug, Clone)]
pub(crate) struct Dice {
    state: u64,
}

impl Dice {
    pub(crate) fn from(seed: u64) -> Dice {
        // The generator cannot leave zero, and small seeds must not begin alike.
        Dice { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1 }
    }

    pub(crate) fn u64(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number from `low` up to and including `high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "a range has at least one number");
        low + (self.u64() >> 8) % (high - low + 1)
    }

    /// True so many times out of a thousand.
    pub(crate) fn permille(&mut self, times: u64) -> bool {
        self.between(0, 999) < times
    }

    /// Dice of their own for one client, so that what it rolls does not shift the rolls of the others.
    pub(crate) fn fork(&mut self) -> Dice {
        Dice::from(self.u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_rolls_and_another_seed_gives_others() {
        let rolls = |seed| (0..8).scan(Dice::from(seed), |dice, _| Some(dice.u64())).collect::<Vec<_>>();
        assert_eq!(rolls(7), rolls(7));
        assert_ne!(rolls(7), rolls(8));
    }

    #[test]
    fn a_roll_stays_within_its_range_and_reaches_both_ends() {
        let mut dice = Dice::from(1);
        let rolls: Vec<u64> = (0..1_000).map(|_| dice.between(3, 6)).collect();
        assert_eq!((rolls.iter().min(), rolls.iter().max()), (Some(&3), Some(&6)));
    }
}
