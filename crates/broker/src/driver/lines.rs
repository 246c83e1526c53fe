//! Deliveries that leave in the order in which they were decided.
//!
//! A group that hands out several messages of a key at a time leases them to one consumer, perhaps in several
//! deliveries. One whose contents are in memory would overtake an earlier one that has to be read, and break the
//! order of the key. So the deliveries of these groups to one connection stand in line, from the first one that has to
//! be read on. Receives need no line: they are answered once, with everything in order.

use std::collections::{BTreeMap, VecDeque};

use forebay_core::group::Deliver;
use forebay_core::types::{ConsumerId, Grant, GroupId};

use crate::driver::deliveries::PendingDelivery;

#[derive(Debug, Default)]
pub(super) struct Lines(BTreeMap<(GroupId, ConsumerId), VecDeque<Place>>);

/// A delivery in line.
#[derive(Debug)]
struct Place {
    /// The grants of its messages, by which its parts are known.
    first: Grant,
    last: Grant,
    /// Some of its messages have to be read.
    is_open: bool,
    /// The parts that have their contents.
    ready: Vec<PendingDelivery>,
}

impl Place {
    fn new(deliver: &Deliver, is_open: bool) -> Place {
        let last = deliver.grant.plus(deliver.seqs.count() - 1);
        Place { first: deliver.grant, last, is_open, ready: Vec::new() }
    }
}

impl Lines {
    /// A delivery has to be read. Later ones stand in line behind it.
    pub(super) fn open(&mut self, deliver: &Deliver) {
        self.0.entry((deliver.group, deliver.consumer)).or_default().push_back(Place::new(deliver, true));
    }

    /// A delivery has its contents. Given back if it may leave.
    pub(super) fn stand_in_line(&mut self, pending: PendingDelivery) -> Option<PendingDelivery> {
        let Some(line) = self.0.get_mut(&(pending.deliver.group, pending.deliver.consumer)) else {
            return Some(pending);
        };
        let mut place = Place::new(&pending.deliver, false);
        place.ready.push(pending);
        line.push_back(place);
        None
    }

    /// A part of a delivery that had to be read has its contents. Given back if it stands in no line.
    pub(super) fn ready(&mut self, pending: PendingDelivery) -> Option<PendingDelivery> {
        match self.place(&pending.deliver) {
            Some(place) => place.ready.push(pending),
            None => return Some(pending),
        }
        None
    }

    /// Nothing more of a delivery has to be read: `part` is any part of it.
    pub(super) fn close(&mut self, part: &Deliver) {
        if let Some(place) = self.place(part) {
            place.is_open = false;
        }
    }

    /// The next part that may leave, of any line.
    pub(super) fn next(&mut self) -> Option<PendingDelivery> {
        let mut found = None;
        self.0.retain(|_, line| {
            while let Some(place) = line.front_mut().filter(|_| found.is_none()) {
                if !place.ready.is_empty() {
                    found = Some(place.ready.remove(0));
                } else if place.is_open {
                    break;
                } else {
                    line.pop_front();
                }
            }
            !line.is_empty()
        });
        found
    }

    /// Nothing is delivered to a group any more, or to one consumer of it.
    pub(super) fn drop(&mut self, group: GroupId, consumer: Option<ConsumerId>) {
        self.0.retain(|(of, to), _| *of != group || consumer.is_some_and(|consumer| *to != consumer));
    }

    /// The parts that have their contents and have not left.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &PendingDelivery> + '_ {
        self.0.values().flatten().flat_map(|place| &place.ready)
    }

    fn place(&mut self, part: &Deliver) -> Option<&mut Place> {
        let line = self.0.get_mut(&(part.group, part.consumer))?;
        line.iter_mut().find(|place| place.first <= part.grant && part.grant <= place.last)
    }
}
