//! Messages that the group is done with, and that still have to be brought to another stream: they have expired, or a
//! full stream has dropped them, and the settings of the group name a destination.
//!
//! They count as settled, like parked messages, so they take no place in the window, hold up no key and are not in the
//! way of the floor. Their contents are wanted until they have arrived. A million messages may expire at one instant,
//! so positions are kept as sets, one for each route, and there are few routes.

use std::collections::BTreeMap;

use crate::codec::{Cursor, DecodeError, put_bytes, put_varint};
use crate::entry::Route;
use crate::group::ledger::image::{put_map, put_run, take_map, take_run};
use crate::seqset::SeqSet;
use crate::types::{Seq, SeqRange};

#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    routes: Vec<(Route, SeqSet)>,
    /// How often messages were handed out that were handed out at all.
    attempts: BTreeMap<Seq, u32>,
}

impl Outgoing {
    pub(crate) fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    pub(crate) fn count(&self) -> u64 {
        self.sets().map(SeqSet::count).sum()
    }

    pub(crate) fn contains(&self, seq: Seq) -> bool {
        self.sets().any(|set| set.contains(seq))
    }

    /// The way of a message, and how often it was handed out before.
    pub(crate) fn get(&self, seq: Seq) -> Option<(&Route, u32)> {
        let (route, _) = self.routes.iter().find(|(_, set)| set.contains(seq))?;
        Some((route, self.attempts.get(&seq).copied().unwrap_or(0)))
    }

    /// The first message at `seq` or after it, with its way.
    pub(crate) fn first_from(&self, seq: Seq) -> Option<(Seq, &Route)> {
        let firsts = self.routes.iter().filter_map(|(route, set)| Some((set.first_from(seq)?, route)));
        firsts.min_by_key(|(seq, _)| *seq)
    }

    pub(crate) fn last(&self) -> Option<Seq> {
        self.sets().filter_map(|set| set.runs().last()).map(|run| run.last).max()
    }

    /// All runs from `seq` on, in order within each route.
    pub(crate) fn runs_from(&self, seq: Seq) -> impl Iterator<Item = SeqRange> + '_ {
        self.sets().flat_map(move |set| set.runs_from(seq))
    }

    /// These set out. They were handed out so often before.
    pub(super) fn insert(&mut self, seqs: SeqRange, route: &Route, attempts: u32) {
        // A log that was salvaged may say so twice.
        self.remove(seqs);
        match self.routes.iter_mut().find(|(same, _)| same == route) {
            Some((_, set)) => {
                set.insert(seqs);
            }
            None => {
                let mut set = SeqSet::new();
                set.insert(seqs);
                self.routes.push((route.clone(), set));
            }
        }
        if attempts > 0 {
            self.attempts.extend(seqs.seqs().map(|seq| (seq, attempts)));
        }
    }

    /// These have arrived, or do not go after all. Returns how many there were.
    pub(super) fn remove(&mut self, seqs: SeqRange) -> u64 {
        if self.routes.is_empty() {
            return 0;
        }
        let removed = self.routes.iter_mut().map(|(_, set)| set.remove(seqs)).sum();
        if removed > 0 {
            self.routes.retain(|(_, set)| !set.is_empty());
            super::forget_in(&mut self.attempts, seqs);
        }
        removed
    }

    fn sets(&self) -> impl Iterator<Item = &SeqSet> + '_ {
        self.routes.iter().map(|(_, set)| set)
    }

    /// `count of routes | name, terms, runs of each | attempts`.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.routes.len() as u64);
        for (route, set) in &self.routes {
            put_bytes(out, route.name());
            route.put_rest(out);
            put_varint(out, set.runs().count() as u64);
            let mut from = 0;
            for run in set.runs() {
                put_run(out, run, &mut from);
            }
        }
        put_map(out, &self.attempts, Seq::START, |out, attempts| put_varint(out, (*attempts).into()));
    }

    pub(super) fn decode(cursor: &mut Cursor<'_>) -> Result<Outgoing, DecodeError> {
        let mut outgoing = Outgoing::default();
        for _ in 0..cursor.count()? {
            let name = cursor.text()?.to_owned();
            let route = Route::take_rest(&name, cursor)?;
            let mut from = 0;
            for _ in 0..cursor.count()? {
                outgoing.insert(take_run(cursor, &mut from)?, &route, 0);
            }
        }
        outgoing.attempts = take_map(cursor, take_attempts)?;
        Ok(outgoing)
    }
}

fn take_attempts(cursor: &mut Cursor<'_>) -> Result<u32, DecodeError> {
    cursor.varint_u32()
}
