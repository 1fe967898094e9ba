//! Places of several holders, and which of them gives way to a newcomer.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Places by holder. A holder is a token or an address. Numbers tell which place was taken earlier.
#[derive(Debug)]
pub(crate) struct FairPlaces<H, T> {
    by_holder: BTreeMap<H, BTreeMap<u64, T>>,
    taken: usize,
}

impl<H, T> Default for FairPlaces<H, T> {
    fn default() -> Self {
        Self { by_holder: BTreeMap::new(), taken: 0 }
    }
}

impl<H: Ord + Clone, T> FairPlaces<H, T> {
    /// Number of places that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }

    /// Number of places that `holder` has.
    pub(crate) fn of(&self, holder: &H) -> usize {
        self.by_holder.get(holder).map_or(0, BTreeMap::len)
    }

    pub(crate) fn take(&mut self, holder: H, number: u64, occupant: T) {
        if self.by_holder.entry(holder).or_default().insert(number, occupant).is_none() {
            self.taken += 1;
        }
    }

    /// Frees a place, unless it has been given away.
    pub(crate) fn leave(&mut self, holder: &H, number: u64) -> Option<T> {
        let places = self.by_holder.get_mut(holder)?;
        let left = places.remove(&number)?;
        if places.is_empty() {
            self.by_holder.remove(holder);
        }
        self.taken -= 1;
        Some(left)
    }

    /// The holder with the most places. Of several, the one with the oldest place.
    pub(crate) fn largest(&self) -> Option<H> {
        let rank = |places: &BTreeMap<u64, T>| {
            (places.len(), places.first_key_value().map(|(number, _)| Reverse(*number)))
        };
        let largest = self.by_holder.iter().max_by_key(|(_, places)| rank(places));
        largest.map(|(holder, _)| holder.clone())
    }

    /// Frees the oldest place of the largest holder.
    pub(crate) fn end_oldest_of_largest(&mut self) -> Option<T> {
        let largest = self.largest()?;
        let number = *self.by_holder.get(&largest)?.first_key_value()?.0;
        self.leave(&largest, number)
    }

    /// Frees the newest place of the largest holder.
    pub(crate) fn end_newest_of_largest(&mut self) -> Option<T> {
        let largest = self.largest()?;
        let number = *self.by_holder.get(&largest)?.last_key_value()?.0;
        self.leave(&largest, number)
    }

    pub(crate) fn occupants(&self) -> impl Iterator<Item = &T> {
        self.by_holder.values().flat_map(BTreeMap::values)
    }
}

/// Returns whether a newcomer gets a place of the largest holder: with it, its own holder has at most half as many.
///
/// Each such move brings two holders nearer to each other, so moves come to an end. The peer that gives way does not get
/// its place back while nobody leaves.
pub(crate) fn far_fewer(own: usize, largest: usize) -> bool {
    own < largest / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(holders: &[u8]) -> FairPlaces<u8, usize> {
        let mut places = FairPlaces::default();
        for (number, holder) in holders.iter().enumerate() {
            places.take(*holder, number as u64, number);
        }
        places
    }

    #[test]
    fn a_flood_of_one_holder_ends_only_its_own_places() {
        assert_eq!(places(&[1, 2, 2, 3]).end_oldest_of_largest(), Some(1));
        assert_eq!(places(&[1, 2, 2, 3]).end_newest_of_largest(), Some(2));
        assert_eq!(places(&[2, 1, 2, 1]).end_oldest_of_largest(), Some(0));
        assert_eq!(places(&[]).end_oldest_of_largest(), None);
    }

    #[test]
    fn a_place_that_was_given_away_is_not_freed_again() {
        let mut places = places(&[1, 1, 2]);
        assert_eq!(places.end_newest_of_largest(), Some(1));
        assert_eq!((places.leave(&1, 1), places.taken()), (None, 2));
        assert_eq!((places.leave(&1, 0), places.of(&1), places.taken()), (Some(0), 0, 1));
    }

    #[test]
    fn moves_of_places_come_to_an_end() {
        for most in 0..40 {
            for own in 0..=most {
                let (mut most, mut own) = (most, own);
                while far_fewer(own, most) {
                    (most, own) = (most - 1, own + 1);
                    assert!(!far_fewer(most, own), "a place would go back: {own} and {most}");
                }
                assert!(own <= most && most <= 2 * own + 1, "{own} and {most}");
            }
        }
    }
}
