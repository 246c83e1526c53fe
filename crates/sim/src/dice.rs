//! The simulator's only source of chance.
//!
//! One seed gives one sequence of rolls, on every machine and in every release, so that a failing
//! history is reported as a number and stays reproducible. The generator is splitmix64: a few lines,
//! good enough to choose what goes wrong next, and nothing that anyone should use for secrets.

/// Dice that fall the same way each time they are made from the same seed.
#[derive(Debug, Clone)]
pub struct Dice {
    state: u64,
}

impl Dice {
    pub fn from(seed: u64) -> Dice {
        Dice { state: seed }
    }

    /// The next 64 random bits.
    pub fn u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn u128(&mut self) -> u128 {
        u128::from(self.u64()) << 64 | u128::from(self.u64())
    }

    /// A number from 0 up to but not including `n`.
    ///
    /// The high half of a wide product rather than a remainder: it is as fast, and it does not favour
    /// small numbers when `n` is large.
    pub fn roll(&mut self, n: u64) -> u64 {
        assert!(n > 0, "a die has at least one side");
        ((u128::from(self.u64()) * u128::from(n)) >> 64) as u64
    }

    /// True `num` times out of `den`.
    pub fn chance(&mut self, num: u64, den: u64) -> bool {
        self.roll(den) < num
    }

    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.roll(choices.len() as u64) as usize]
    }

    /// Dice of their own for a part of the history, so that what the part rolls does not shift the
    /// rolls of the rest.
    pub fn fork(&mut self) -> Dice {
        Dice { state: self.u64() }
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(n + 8);
        while out.len() < n {
            out.extend_from_slice(&self.u64().to_le_bytes());
        }
        out.truncate(n);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_rolls_the_same() {
        let mut first = Dice::from(7);
        let mut second = Dice::from(7);
        assert_eq!(first.bytes(33), second.bytes(33));
        assert_eq!(first.fork().u128(), second.fork().u128());
        assert_ne!(Dice::from(7).u64(), Dice::from(8).u64());
    }

    #[test]
    fn the_sequence_of_a_seed_never_changes_between_releases() {
        let mut dice = Dice::from(0);
        assert_eq!(dice.u64(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(dice.u64(), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn every_side_comes_up_about_as_often() {
        let mut dice = Dice::from(1);
        let mut counts = [0_u32; 6];
        for _ in 0..6_000 {
            counts[dice.roll(6) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
    }
}
