//! Counts by key.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::RangeBounds;

/// How many there are of each key. A key of which there is none takes no room.
#[derive(Clone, Debug)]
pub(crate) struct Tally<K>(BTreeMap<K, usize>);

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Tally<K> {
    /// Adds one of a key.
    pub(crate) fn add(&mut self, key: K) {
        *self.0.entry(key).or_default() += 1;
    }

    /// Takes one of a key away, if there is one. Returns true if it was the last one.
    pub(crate) fn take<Q: Ord + ?Sized>(&mut self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let Some(count) = self.0.get_mut(key) else { return false };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        self.0.remove(key);
        true
    }

    /// How many there are of a key.
    pub(crate) fn count<Q: Ord + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        self.0.get(key).copied().unwrap_or(0)
    }

    /// The keys of which there is one or more, in order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }

    /// The keys in a range of which there is one or more, in order.
    pub(crate) fn range(&self, range: impl RangeBounds<K>) -> impl Iterator<Item = &K> {
        self.0.range(range).map(|(key, _)| key)
    }

    /// Number of these keys.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_there_until_its_last_one_is_taken_away() {
        let mut tally = Tally::default();
        for key in ["b", "a", "b"] {
            tally.add(key.to_owned());
        }
        assert!(tally.keys().eq(["a", "b"]));
        assert_eq!((tally.count("b"), tally.count("c")), (2, 0));
        assert_eq!((tally.take("b"), tally.take("b"), tally.take("b")), (false, true, false));
        assert!(tally.keys().eq(["a"]));
        assert_eq!(tally.len(), 1);
    }
}
