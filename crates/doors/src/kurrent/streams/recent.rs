//! Ids of events that were lately written without an expected revision. A client that repeats a write of this kind,
//! because it did not see the answer, is answered with the first one. After a restart, or many writes later, the ids
//! are forgotten.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use forebay_core::types::{Ordinal, Seq, StreamName};

use crate::kurrent::ids::EventId;

/// Ids that are remembered at most, of all streams together.
const IDS_MAX: usize = 65_536;

type Key = (u64, EventId);

#[derive(Debug, Default)]
pub(in crate::kurrent) struct Recent {
    hasher: RandomState,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    places: HashMap<Key, (Seq, Ordinal)>,
    /// The oldest first.
    order: VecDeque<Key>,
}

/// Whether the events of a write were written before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::kurrent) enum Known {
    Nothing,
    /// All of them were written, in this order. Where the last one is.
    All(Seq, Ordinal),
    /// Some were, or in another order.
    Some,
}

impl Recent {
    pub(in crate::kurrent) fn look(
        &self,
        stream: &StreamName,
        ids: impl ExactSizeIterator<Item = EventId>,
    ) -> Known {
        let of_stream = self.hasher.hash_one(stream);
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, mut found) = (ids.len(), 0);
        let mut last: Option<(Seq, Ordinal)> = None;
        let mut in_order = true;
        for id in ids {
            if let Some(&place) = table.places.get(&(of_stream, id)) {
                in_order &= last.is_none_or(|(seq, _)| seq.next() == place.0);
                found += 1;
                last = Some(place);
            }
        }
        match last {
            None => Known::Nothing,
            Some((seq, ordinal)) if found == count && in_order => Known::All(seq, ordinal),
            Some(_) => Known::Some,
        }
    }

    /// Events that were written one after the other.
    pub(in crate::kurrent) fn add(
        &self,
        stream: &StreamName,
        ids: impl Iterator<Item = EventId>,
        (first, ordinal): (Seq, Ordinal),
    ) {
        let of_stream = self.hasher.hash_one(stream);
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        for (n, id) in (0..).zip(ids) {
            let key = (of_stream, id);
            if table.places.insert(key, (first.plus(n), ordinal.plus(n))).is_none() {
                table.order.push_back(key);
            }
            if table.order.len() > IDS_MAX
                && let Some(oldest) = table.order.pop_front()
            {
                table.places.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(numbers: &[u8]) -> Vec<EventId> {
        numbers.iter().map(|&number| EventId([number; 16])).collect()
    }

    #[test]
    fn a_write_that_comes_again_is_known_and_a_part_of_it_with_others_is_not() {
        let recent = Recent::default();
        let stream = StreamName::parse("orders").expect("a name");
        let look = |stream: &StreamName, numbers: &[u8]| recent.look(stream, ids(numbers).into_iter());
        assert_eq!(look(&stream, &[1, 2]), Known::Nothing);
        recent.add(&stream, ids(&[1, 2]).into_iter(), (Seq(5), Ordinal(50)));
        assert_eq!(look(&stream, &[1, 2]), Known::All(Seq(6), Ordinal(51)));
        assert_eq!(look(&stream, &[1]), Known::All(Seq(5), Ordinal(50)));
        assert_eq!(look(&stream, &[2, 1]), Known::Some);
        assert_eq!(look(&stream, &[2, 3]), Known::Some);
        assert_eq!(look(&StreamName::parse("others").expect("a name"), &[1, 2]), Known::Nothing);
    }

    #[test]
    fn the_oldest_ids_are_forgotten() {
        let recent = Recent::default();
        let stream = StreamName::parse("orders").expect("a name");
        let many = (0..=IDS_MAX as u64).map(|number| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&number.to_be_bytes());
            EventId(bytes)
        });
        recent.add(&stream, many.clone(), (Seq(1), Ordinal(1)));
        assert_eq!(
            recent.look(&stream, many.clone().take(1).collect::<Vec<_>>().into_iter()),
            Known::Nothing
        );
        assert_ne!(
            recent.look(&stream, many.skip(1).take(1).collect::<Vec<_>>().into_iter()),
            Known::Nothing
        );
        assert_eq!(recent.table.lock().expect("a table").places.len(), IDS_MAX);
    }
}
