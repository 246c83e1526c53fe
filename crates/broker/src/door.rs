//! The doors that keep notes in the log, each with the number that stands for it there. This list is the only one:
//! a number that was given once is never given to another door.

use std::fmt;

/// Whose the broker's own notes are. The secret that seals receipts is among them, and a [`Door`] cannot name them.
pub(crate) const OWN_NOTES: u8 = 0;

/// Whose the notes with credentials are. A [`Door`] cannot name them either.
pub(crate) const CREDENTIALS: u8 = 9;

/// Every number in use, with the name of its owner.
const NUMBERS: [(u8, &str); 7] = [
    (OWN_NOTES, "server"),
    (Door::SQS.0, "sqs"),
    (Door::KURRENT.0, "kurrent"),
    (CREDENTIALS, "credentials"),
    (Door::LINKS.0, "links"),
    (Door::SOURCES.0, "sources"),
    (Door::HISTORY.0, "history"),
];

/// A door, as the log knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Door(u8);

impl Door {
    /// Queues of Amazon SQS.
    pub const SQS: Door = Door(1);
    /// Streams and persistent subscriptions of Kurrent clients.
    pub const KURRENT: Door = Door(2);
    /// Link streams of all doors: how far each is fed. Only the broker names it.
    pub(crate) const LINKS: Door = Door(10);
    /// Streams that are fed because of their setting `source`. Only the broker names it.
    pub(crate) const SOURCES: Door = Door(11);
    /// The history of figures that the dashboard shows.
    pub const HISTORY: Door = Door(16);
    /// For the broker's own tests.
    #[cfg(test)]
    pub(crate) const TEST: Door = Door(255);

    pub(crate) fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NUMBERS.iter().find(|(number, _)| *number == self.0) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_door_has_a_number_of_its_own() {
        let mut numbers = NUMBERS.map(|(number, _)| number).to_vec();
        numbers.sort_unstable();
        let count = numbers.len();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
    }
}
