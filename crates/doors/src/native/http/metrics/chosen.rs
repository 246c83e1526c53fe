//! The streams and groups that have series of their own in `/metrics`, if there are more than the setting
//! `metrics_series_max` allows.
//!
//! Groups that need an operator come first, then those with the largest backlog; of streams those with the most
//! messages. A series that comes and goes is of little use to a monitoring system, so one that was there at the last
//! look is given up only for a group in need, or for one with more than twice the backlog.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_broker::api::{GroupReport, StreamReport};
use forebay_core::types::{GroupName, StreamName};
use forebay_wire::attention::{ServerFacts, Severity, attention};

use crate::native::facts::group_facts;
use crate::native::service::{Answer, Service};

/// Reports that are asked for at a time: the shard makes them in one turn.
const STEP: usize = 125;
/// What a series that was there at the last look is ahead of others, in messages, beside twice its backlog.
const STAYS: u64 = 100;

/// The names that had series at the last look. Locked to read and to replace them, never across a wait.
#[derive(Default)]
pub(in crate::native::http) struct Chosen(Mutex<Names>);

#[derive(Default)]
struct Names {
    streams: HashSet<StreamName>,
    groups: HashSet<(StreamName, GroupName)>,
}

/// The reports of those that have series, by name, and the sums of the groups that have none.
#[derive(Default)]
pub(super) struct Shown {
    pub(super) streams: Vec<StreamReport>,
    pub(super) groups: Vec<GroupReport>,
    pub(super) streams_left_out: usize,
    pub(super) groups_left_out: usize,
    pub(super) lag_left_out: u64,
    pub(super) parked_left_out: u64,
}

impl Chosen {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at every stream and group, and keeps the reports of so many of each.
    pub(super) async fn look(&self, service: &Service, max: usize) -> Answer<Shown> {
        let mut shown = Shown::default();
        let (mut list, mut after) = (Shortlist::new(max), None);
        loop {
            let (streams, next) = service.page_of_streams(after, STEP).await?;
            let names = self.names();
            for stream in streams {
                let score = score(stream.figures.messages, names.streams.contains(&stream.name));
                list.push(((), Reverse(score)), stream);
            }
            drop(names);
            after = next;
            shown.streams_left_out += list.cut(|_| {});
            if after.is_none() {
                break;
            }
        }
        shown.streams_left_out += list.end(|_| {});
        shown.streams = list.items();
        let (mut list, mut after) = (Shortlist::new(max), None);
        loop {
            let (groups, next) = service.page_of_groups(after, STEP).await?;
            let names = self.names();
            for group in groups {
                let stays = names.groups.contains(&(group.stream.clone(), group.name.clone()));
                list.push((need(&group), Reverse(score(group.figures.lag, stays))), group);
            }
            drop(names);
            after = next;
            let (lag, parked) = (&mut shown.lag_left_out, &mut shown.parked_left_out);
            let mut leave_out = |group: &GroupReport| {
                *lag += group.figures.lag;
                *parked += group.figures.parked;
            };
            shown.groups_left_out += list.cut(&mut leave_out);
            if after.is_none() {
                shown.groups_left_out += list.end(&mut leave_out);
                break;
            }
        }
        shown.groups = list.items();
        let mut names = self.names();
        names.streams = shown.streams.iter().map(|stream| stream.name.clone()).collect();
        names.groups = shown.groups.iter().map(|group| (group.stream.clone(), group.name.clone())).collect();
        drop(names);
        Ok(shown)
    }
}

fn score(messages: u64, stays: bool) -> u64 {
    if stays { messages.saturating_mul(2).saturating_add(STAYS) } else { messages }
}

/// How urgently a group needs an operator.
fn need(group: &GroupReport) -> Severity {
    let found = attention(&ServerFacts::default(), [], [&group_facts(group, None)]);
    found.first().map_or(Severity::Notice, |one| one.severity)
}

/// The first `max` of many items by their rank, of which it holds twice as many at most. Items of equal rank stay in
/// the order in which they came.
struct Shortlist<R, T> {
    max: usize,
    count: usize,
    items: Vec<(R, usize, T)>,
}

impl<R: Ord + Copy, T> Shortlist<R, T> {
    fn new(max: usize) -> Shortlist<R, T> {
        Shortlist { max, count: 0, items: Vec::new() }
    }

    fn push(&mut self, rank: R, item: T) {
        self.items.push((rank, self.count, item));
        self.count += 1;
    }

    /// The same, if there are many of them.
    fn cut(&mut self, left_out: impl FnMut(&T)) -> usize {
        if self.items.len() < 2 * self.max + STEP { 0 } else { self.end(left_out) }
    }

    /// Drops the items that are not among the first. Returns how many they were.
    fn end(&mut self, mut left_out: impl FnMut(&T)) -> usize {
        if self.items.len() <= self.max {
            return 0;
        }
        self.items.sort_unstable_by_key(|(rank, n, _)| (*rank, *n));
        self.items.drain(self.max..).map(|(_, _, item)| left_out(&item)).count()
    }

    /// The items that are left, in the order in which they came.
    fn items(mut self) -> Vec<T> {
        self.items.sort_unstable_by_key(|(_, n, _)| *n);
        self.items.into_iter().map(|(_, _, item)| item).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_by_rank_are_kept_in_their_order() {
        let mut list = Shortlist::new(3);
        let mut dropped = Vec::new();
        for n in 0..1_000u64 {
            // Ranks fall and rise; the best are 500, 501 and 499, and the first of two equals goes before.
            list.push(n.abs_diff(500), n);
            list.cut(|n| dropped.push(*n));
            assert!(list.items.len() < 2 * 3 + STEP);
        }
        list.end(|n| dropped.push(*n));
        assert_eq!(dropped.len(), 997);
        assert_eq!(list.items(), [499, 500, 501]);
    }

    #[test]
    fn a_series_stays_until_another_has_twice_the_backlog() {
        assert!(score(0, true) > score(100, false) - 1, "a hundred messages are no reason");
        assert!(score(1_000, true) > score(2_000, false));
        assert!(score(1_000, true) < score(2_101, false));
        assert_eq!(score(u64::MAX, true), u64::MAX);
    }
}
