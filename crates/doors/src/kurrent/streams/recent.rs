//! Ids of events that were lately written without an expected revision. A client that repeats a write of this kind,
//! because it did not see the answer, is answered with the first one; if that is still being stored, once its outcome
//! is known. After a restart, or many writes later, the ids are forgotten.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::types::{Ordinal, Seq, StreamName};

use tokio::sync::watch;

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
    /// Ids of events that are being written. The channel closes when the outcome is known.
    coming: HashMap<Key, watch::Receiver<()>>,
    places: HashMap<Key, (Seq, Ordinal)>,
    /// The oldest first.
    order: VecDeque<Key>,
}

/// Whether the events of a write were written before.
#[derive(Debug)]
pub(in crate::kurrent) enum Known {
    /// None of them. They count as being written for as long as the claim lives.
    Nothing(Claim),
    /// At least one is being written. To be asked again when the channel closes.
    Coming(watch::Receiver<()>),
    /// All of them were written, in this order. Where the last one is.
    All(Seq, Ordinal),
    /// Some were, or in another order.
    Some,
}

/// Events that are being written.
#[derive(Debug)]
pub(in crate::kurrent) struct Claim {
    recent: Arc<Recent>,
    keys: Vec<Key>,
    /// Closes with the claim.
    _over: watch::Sender<()>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut table = self.recent.table();
        for key in &self.keys {
            table.coming.remove(key);
        }
    }
}

impl Recent {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for the events of a write, and claims them if there are none.
    pub(in crate::kurrent) fn look(
        self: &Arc<Recent>,
        stream: &StreamName,
        ids: impl ExactSizeIterator<Item = EventId>,
    ) -> Known {
        let of_stream = self.hasher.hash_one(stream);
        let keys: Vec<Key> = ids.map(|id| (of_stream, id)).collect();
        let mut table = self.table();
        if let Some(over) = keys.iter().find_map(|key| table.coming.get(key)) {
            return Known::Coming(over.clone());
        }
        let mut found = 0;
        let mut last: Option<(Seq, Ordinal)> = None;
        let mut in_order = true;
        for key in &keys {
            if let Some(&place) = table.places.get(key) {
                in_order &= last.is_none_or(|(seq, _)| seq.next() == place.0);
                found += 1;
                last = Some(place);
            }
        }
        match last {
            None => {
                let (tell, over) = watch::channel(());
                table.coming.extend(keys.iter().map(|key| (*key, over.clone())));
                drop(table);
                Known::Nothing(Claim { recent: self.clone(), keys, _over: tell })
            }
            Some((seq, ordinal)) if found == keys.len() && in_order => Known::All(seq, ordinal),
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
        let mut table = self.table();
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

    /// Where the last event is, if all are known.
    fn place(known: &Known) -> Option<(u64, u64)> {
        match known {
            Known::All(seq, ordinal) => Some((seq.0, ordinal.0)),
            Known::Nothing(_) | Known::Coming(_) | Known::Some => None,
        }
    }

    #[test]
    fn a_write_that_comes_again_is_known_and_a_part_of_it_with_others_is_not() {
        let recent = Arc::new(Recent::default());
        let stream = StreamName::parse("orders").expect("a name");
        let look = |stream: &StreamName, numbers: &[u8]| recent.look(stream, ids(numbers).into_iter());
        assert!(matches!(look(&stream, &[1, 2]), Known::Nothing(_)));
        recent.add(&stream, ids(&[1, 2]).into_iter(), (Seq(5), Ordinal(50)));
        assert_eq!(place(&look(&stream, &[1, 2])), Some((6, 51)));
        assert_eq!(place(&look(&stream, &[1])), Some((5, 50)));
        assert!(matches!(look(&stream, &[2, 1]), Known::Some));
        assert!(matches!(look(&stream, &[2, 3]), Known::Some));
        let others = StreamName::parse("others").expect("a name");
        assert!(matches!(look(&others, &[1, 2]), Known::Nothing(_)));
    }

    #[test]
    fn a_write_that_comes_again_while_the_first_is_stored_waits_for_it() {
        let recent = Arc::new(Recent::default());
        let stream = StreamName::parse("orders").expect("a name");
        let look = |numbers: &[u8]| recent.look(&stream, ids(numbers).into_iter());
        let Known::Nothing(claim) = look(&[1, 2]) else { panic!("nothing is known yet") };
        let Known::Coming(over) = look(&[2, 3]) else { panic!("one of them is being written") };
        assert!(over.has_changed().is_ok());
        drop(claim);
        assert!(over.has_changed().is_err(), "the outcome is known");
        // It was not stored, so the second write may be.
        assert!(matches!(look(&[2, 3]), Known::Nothing(_)));
        assert!(recent.table().coming.is_empty());
    }

    #[test]
    fn the_oldest_ids_are_forgotten() {
        let recent = Arc::new(Recent::default());
        let stream = StreamName::parse("orders").expect("a name");
        let many = (0..=IDS_MAX as u64).map(|number| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&number.to_be_bytes());
            EventId(bytes)
        });
        recent.add(&stream, many.clone(), (Seq(1), Ordinal(1)));
        let mut look = |id| recent.look(&stream, [id].into_iter());
        let mut many = many;
        assert!(matches!(many.next().map(&mut look), Some(Known::Nothing(_))));
        assert!(matches!(many.next().map(&mut look), Some(Known::All(..))));
        assert_eq!(recent.table.lock().expect("a table").places.len(), IDS_MAX);
    }
}
