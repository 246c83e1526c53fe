//! How a group comes to know of messages: as they arrive, or by reading them.

use crate::group::candidates::{Candidates, Wish};
use crate::group::decision::Decision;
use crate::group::offer::NO_KEY;
use crate::group::{Group, ReadAhead, Turn};
use crate::stream::Stream;
use crate::types::{KeyHash, Seq, SeqRange, Timestamp};

/// Messages that are looked at, one by one, as they come.
const LOOK: u64 = 512;

/// Keys of messages that follow each other; zero stands for no key.
#[derive(Debug, Clone, Copy)]
pub enum KeyRun<'a> {
    /// None of them has a key.
    Plain,
    Each(&'a [KeyHash]),
    /// As `Each`, but the keys of the messages in these ranges cannot be read.
    Partly {
        keys: &'a [KeyHash],
        unreadable: &'a [SeqRange],
    },
}

impl KeyRun<'_> {
    pub(super) fn key(&self, n: usize) -> KeyHash {
        match self {
            KeyRun::Plain => NO_KEY,
            KeyRun::Each(keys) | KeyRun::Partly { keys, .. } => keys.get(n).copied().unwrap_or(NO_KEY),
        }
    }

    pub(super) fn is_unreadable(&self, seq: Seq) -> bool {
        match self {
            KeyRun::Plain | KeyRun::Each(_) => false,
            KeyRun::Partly { unreadable, .. } => unreadable.iter().any(|range| range.contains(seq)),
        }
    }
}

impl Group {
    /// Begins to look for messages to offer from the floor on, as after a restart.
    pub(super) fn begin_anew(&mut self, stream: &Stream) {
        let (candidates, view) = self.candidates(stream);
        candidates.begin_anew(view);
        let floor = self.ledger.progress().floor();
        self.recheck = (!stream.expired.is_empty()).then(|| floor.next());
    }

    /// Messages have become durable. Says whether there is something to do.
    pub(crate) fn arrived(
        &mut self,
        stream: &Stream,
        range: SeqRange,
        keys: KeyRun<'_>,
        scan_max: usize,
    ) -> bool {
        // Messages that were dropped or expired before they were durable can go to another stream only now.
        let outgoing = self.ledger.outgoing().first_from(range.first);
        let sets_out = outgoing.is_some_and(|(seq, _)| seq <= range.last);
        self.take_in(stream, range, keys, scan_max) || sets_out
    }

    /// A group that has kept up takes messages as they come; one that has not will read them when it gets there. Says
    /// whether consumers have something to gain from a turn.
    fn take_in(&mut self, stream: &Stream, range: SeqRange, keys: KeyRun<'_>, scan_max: usize) -> bool {
        let (candidates, view) = self.candidates(stream);
        if candidates.arrived().next() != range.first || !candidates.takes_more(view, scan_max) {
            return self.members.any();
        }
        if let Candidates::Plain(plain) = candidates {
            plain.arrive(range.last);
            return self.members.any_with_room();
        }
        // The rest of a large batch is read when there is time, so that no turn is long.
        let some = SeqRange::starting(range.first, range.count().min(LOOK));
        self.look_at_all(stream, some, keys);
        if some == range { self.members.any_with_room() } else { self.members.any() }
    }

    /// The messages of a [`ReadAhead`] have been read, from `first` on. More may have been asked for.
    pub(crate) fn read_ahead(&mut self, stream: &Stream, range: SeqRange, keys: KeyRun<'_>) {
        self.reading = false;
        match &mut self.candidates {
            Candidates::Plain(plain) => plain.arrive(range.last),
            // It was asked for when the group did not look at keys, and says nothing about them.
            Candidates::Keyed(_) if matches!(keys, KeyRun::Plain) => {}
            Candidates::Keyed(_) => self.look_at_all(stream, range, keys),
        }
    }

    fn look_at_all(&mut self, stream: &Stream, range: SeqRange, keys: KeyRun<'_>) {
        let mut found = Vec::new();
        let (candidates, view) = self.candidates(stream);
        if let Candidates::Keyed(keyed) = candidates {
            keyed.look_at_all(view, range, keys, &mut found);
        }
        for (seq, key) in found {
            self.decide(Decision::KeyFound { seq, key });
        }
    }

    pub(crate) fn looked_at(&self) -> Seq {
        self.candidates.arrived()
    }

    pub(crate) fn read_nothing(&mut self) {
        self.reading = false;
    }

    /// Whether reading on has stopped because too much had to be read past.
    pub(super) fn is_key_scan_full(&self, scan_max: usize) -> bool {
        matches!(&self.candidates, Candidates::Keyed(keyed) if keyed.keys.bytes() >= scan_max)
    }

    /// The time of a message has come, which was `at`.
    pub(crate) fn came_due(&mut self, stream: &Stream, seq: Seq, at: Timestamp) {
        if self.ledger.is_settled(seq) || self.ledger.standing().run_at(seq).is_some() {
            return;
        }
        self.ages.came_due(&self.ledger, seq, at);
        let (candidates, view) = self.candidates(stream);
        candidates.came_due(view, seq);
    }

    /// Asks for more when what may be handed out runs low and there is a consumer to hand it to.
    pub(super) fn read_on(&mut self, turn: &mut Turn<'_>) {
        if self.reading || !self.members.any() || self.ledger.is_paused() {
            return;
        }
        let (candidates, view) = self.candidates(turn.stream);
        if let Some(wish) = candidates.wants_read(view, turn.key_scan_bytes_max) {
            let Wish { seqs, keys, contents } = wish;
            let (group, stream) = (self.id, self.stream);
            turn.effects.reads.push(ReadAhead { group, stream, seqs, keys, contents });
            self.reading = true;
        }
    }
}
