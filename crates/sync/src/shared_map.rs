//! An ordered map whose copies share their entries.

use std::mem;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// Most entries of a chunk.
const CHUNK: usize = 64;

/// An ordered map. A clone shares the entries with its original, and costs a pointer for each chunk of 64 entries. The
/// first change of either then copies the changed chunk. So a manifest is made of a copy of the records, while requests go
/// on changing them.
///
/// A value that takes long to copy belongs behind an [`Arc`].
#[derive(Clone, Debug)]
pub struct SharedMap<K, V> {
    /// The entries in order. No chunk is empty.
    chunks: Vec<Arc<Vec<(K, V)>>>,
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

impl<K, V> SharedMap<K, V> {
    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.len()).sum()
    }

    /// True if there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).map(|(key, value)| (key, value))
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// The values in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

impl<K: Ord, V> SharedMap<K, V> {
    /// The first chunk whose last key is not before `key`.
    fn chunk_of(&self, key: &K) -> usize {
        self.chunks.partition_point(|chunk| chunk.last().is_some_and(|(last, _)| last < key))
    }

    /// The chunk of a key, and its place there.
    fn place(&self, key: &K) -> Option<(usize, usize)> {
        let chunk = self.chunk_of(key);
        let place = self.chunks.get(chunk)?.binary_search_by(|(other, _)| other.cmp(key)).ok()?;
        Some((chunk, place))
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        let (chunk, place) = self.place(key)?;
        self.chunks.get(chunk)?.get(place).map(|(_, value)| value)
    }

    /// The entries from `key` on, in order.
    pub fn iter_from<'a>(&'a self, key: &K) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, K, V> {
        let chunk = self.chunk_of(key);
        let first =
            self.chunks.get(chunk).map_or(0, |entries| entries.partition_point(|(other, _)| other < key));
        let later = self.chunks.get(chunk..).unwrap_or_default();
        later.iter().flat_map(|chunk| chunk.iter()).skip(first).map(|(key, value)| (key, value))
    }
}

impl<K: Clone + Ord, V: Clone> SharedMap<K, V> {
    /// The value of a key, to change it. Copies its chunk if another map shares it.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (chunk, place) = self.place(key)?;
        Arc::make_mut(self.chunks.get_mut(chunk)?).get_mut(place).map(|(_, value)| value)
    }

    /// Sets the value of a key. Returns the value before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        // A key after all others belongs at the end of the last chunk.
        let chunk = self.chunk_of(&key).min(self.chunks.len().saturating_sub(1));
        let Some(shared) = self.chunks.get_mut(chunk) else {
            self.chunks.push(Arc::new(vec![(key, value)]));
            return None;
        };
        let entries = Arc::make_mut(shared);
        let place = match entries.binary_search_by(|(other, _)| other.cmp(&key)) {
            Ok(place) => return entries.get_mut(place).map(|(_, before)| mem::replace(before, value)),
            Err(place) => place,
        };
        entries.insert(place, (key, value));
        if entries.len() > CHUNK {
            // Keys that come in order leave full chunks behind.
            let later = entries.split_off(if place == CHUNK { CHUNK } else { CHUNK / 2 });
            self.chunks.insert(chunk + 1, Arc::new(later));
        }
        None
    }

    /// Takes the entry of a key out, and returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (chunk, place) = self.place(key)?;
        let entries = Arc::make_mut(self.chunks.get_mut(chunk)?);
        let (_, value) = entries.remove(place);
        if entries.is_empty() {
            self.chunks.remove(chunk);
        }
        Some(value)
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for SharedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<K: Eq, V: Eq> Eq for SharedMap<K, V> {}

impl<K: Clone + Ord, V: Clone> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::default();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

/// # Panics
/// Without an entry of the key, as the maps of the standard library.
impl<K: Ord, V> Index<&K> for SharedMap<K, V> {
    type Output = V;

    fn index(&self, key: &K) -> &V {
        let (chunk, place) = self.place(key).unwrap_or((self.chunks.len(), 0));
        &self.chunks[chunk][place].1
    }
}

/// # Panics
/// Without an entry of the key.
impl<K: Clone + Ord, V: Clone> IndexMut<&K> for SharedMap<K, V> {
    fn index_mut(&mut self, key: &K) -> &mut V {
        let (chunk, place) = self.place(key).unwrap_or((self.chunks.len(), 0));
        &mut Arc::make_mut(&mut self.chunks[chunk])[place].1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Keys from 0 to 999 in a fixed order that is neither rising nor falling.
    fn keys() -> impl Iterator<Item = u32> {
        (0..3000u32).map(|i| i * 7919 % 1000)
    }

    #[test]
    fn it_holds_what_a_map_of_the_standard_library_holds() {
        let (mut shared, mut map) = (SharedMap::default(), BTreeMap::new());
        for (i, key) in keys().enumerate() {
            if i % 3 == 2 {
                assert_eq!(shared.remove(&key), map.remove(&key), "{i}");
            } else {
                assert_eq!(shared.insert(key, i), map.insert(key, i), "{i}");
            }
            assert_eq!(shared.get(&(key / 2)), map.get(&(key / 2)));
            assert!(shared.chunks.iter().all(|chunk| (1..=CHUNK).contains(&chunk.len())));
        }
        assert!(shared.iter().eq(map.iter()) && map.len() > 5 * CHUNK);
        assert_eq!((shared.len(), shared.is_empty()), (map.len(), false));
        for from in 0..=1000 {
            assert!(shared.iter_from(&from).eq(map.range(from..)), "from {from}");
        }
        for key in 0..1000 {
            assert_eq!(shared.get_mut(&key), map.get_mut(&key));
            shared.remove(&key);
        }
        assert!(shared.is_empty() && shared.iter_from(&0).next().is_none());
        assert_eq!(shared, SharedMap::default());
    }

    #[test]
    fn entries_that_come_in_order_fill_their_chunks() {
        let map: SharedMap<_, _> = (0..10 * CHUNK).map(|key| (key, ())).collect();
        assert_eq!(map.chunks.len(), 10);
    }

    type Change = fn(&mut SharedMap<usize, Arc<usize>>);

    #[test]
    fn a_change_of_a_copy_leaves_its_original_and_copies_one_chunk() {
        let original: SharedMap<_, _> = (0..10 * CHUNK).map(|key| (key, Arc::new(key))).collect();
        let changes: [Change; 4] = [
            |map| map[&70] = Arc::new(0),
            |map| *map.get_mut(&70).unwrap() = Arc::new(0),
            |map| drop(map.insert(70, Arc::new(0))),
            |map| drop(map.remove(&70)),
        ];
        for change in changes {
            let mut copy = original.clone();
            assert_eq!(copy, original);
            change(&mut copy);
            assert_ne!(copy, original);
            assert!(original.iter().all(|(key, value)| *key == **value));
            let shared = |(a, b): (&Arc<Vec<_>>, &Arc<Vec<_>>)| Arc::ptr_eq(a, b);
            assert_eq!(copy.chunks.iter().zip(&original.chunks).filter(|&pair| shared(pair)).count(), 9);
            // Nobody shares the copied chunk, so another change copies nothing.
            let chunk = Arc::as_ptr(&copy.chunks[1]);
            copy[&71] = Arc::new(1);
            assert_eq!(Arc::as_ptr(&copy.chunks[1]), chunk);
        }
    }
}
