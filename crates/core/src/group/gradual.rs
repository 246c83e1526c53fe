//! A hash table that never grows in one go.
//!
//! A table of a hundred thousand entries takes a millisecond or more to move when it grows, which is longer
//! than a turn may take. So there are many small ones, each of which grows by itself.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A million entries are some sixteen thousand in each.
const TABLES: usize = 64;
const _: () = assert!((0xffff + ((0xffff * 0xffff) >> 16)) >> 11 == TABLES - 1);

/// Hashes are hashes already, and positions follow each other; both need no more than to be spread.
#[derive(Debug, Default)]
struct Scatter(u64);

impl Hasher for Scatter {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("positions and keys are hashed as one number");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[derive(Debug)]
pub(crate) struct GradualMap<K, V> {
    /// None at all until there is something to put in, since most groups are idle.
    tables: Vec<HashMap<K, V, BuildHasherDefault<Scatter>>>,
    len: usize,
}

impl<K, V> Default for GradualMap<K, V> {
    fn default() -> GradualMap<K, V> {
        GradualMap { tables: Vec::new(), len: 0 }
    }
}

/// Which table a key belongs to: by bits that are hardly used within it.
///
/// The first table gets three times as many as the last. Positions are spread so evenly that tables of equal
/// shares would all grow at the same time.
fn number_of<K: Hash>(key: &K) -> usize {
    let mut hasher = Scatter::default();
    key.hash(&mut hasher);
    let place = (hasher.0 >> 32) as usize & 0xffff;
    (place + ((place * place) >> 16)) >> 11
}

impl<K: Hash + Eq, V> GradualMap<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// In no order that means anything.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> + '_ {
        self.tables.iter().flat_map(HashMap::keys)
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.tables.get(number_of(key))?.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.tables.get_mut(number_of(key))?.get_mut(key)
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.tables.is_empty() {
            self.tables.resize_with(TABLES, HashMap::default);
        }
        let before = self.tables[number_of(&key)].insert(key, value);
        self.len += usize::from(before.is_none());
    }

    /// The value of the key, which `new` makes if it is missing.
    pub(crate) fn get_or_insert_with(&mut self, key: K, new: impl FnOnce() -> V) -> &mut V {
        if self.tables.is_empty() {
            self.tables.resize_with(TABLES, HashMap::default);
        }
        match self.tables[number_of(&key)].entry(key) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(free) => {
                self.len += 1;
                free.insert(new())
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let removed = self.tables.get_mut(number_of(key))?.remove(key);
        self.len -= usize::from(removed.is_some());
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_agrees_with_one_table(steps in proptest::collection::vec((0u8..4, 0u64..50, 0u32..9), 0..200)) {
            let mut many = GradualMap::default();
            let mut one = std::collections::BTreeMap::new();
            for (step, key, value) in steps {
                match step {
                    0 => {
                        many.insert(key, value);
                        one.insert(key, value);
                    }
                    1 => prop_assert_eq!(many.remove(&key), one.remove(&key)),
                    2 => {
                        let there = *many.get_or_insert_with(key, || value);
                        prop_assert_eq!(there, *one.entry(key).or_insert(value));
                    }
                    _ => {
                        prop_assert_eq!(many.get_mut(&key).copied(), one.get(&key).copied());
                        prop_assert_eq!(many.contains_key(&key), one.contains_key(&key));
                    }
                }
                prop_assert_eq!(many.len(), one.len());
            }
        }
    }
}
