//! Contributions that are merged before their outer step is due, within a bound of memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dipaco_store::ObjectRef;
use dipaco_sync::{Fold, FragmentId};
use dipaco_topology::PathId;

/// Values of all folds: 256 MiB. The fold of a longer fragment is kept alone, so the bound is this memory or the
/// longest fragment, whichever is more.
const ROOM: usize = 64 << 20;

/// The folds of this process whose outer steps are not due yet, by fragment.
///
/// The order of a due step names all its contributions. So a fold that is not kept costs reading them later, and changes no
/// bit.
pub(super) struct EarlyFolds {
    /// Number of values for which there is room.
    room: usize,
    places: Mutex<BTreeMap<FragmentId, Place>>,
}

/// The room of a fold.
struct Place {
    /// The version that the outer step makes.
    version: u32,
    /// Number of values of the fragment.
    values: usize,
    /// None while an early order is carried out.
    kept: Option<Folding>,
}

/// Room for the fold of an early order that is being carried out. A drop gives up the room without a kept fold.
pub(super) struct Room<'a> {
    folds: &'a EarlyFolds,
    fragment: FragmentId,
}

/// A fold of some contributions of an outer step.
pub(super) struct Folding {
    pub(super) version: u32,
    pub(super) fence: u64,
    /// Weight and reduction of each contribution, in the order of merging.
    pub(super) factors: Vec<(f32, f32)>,
    pub(super) fold: Fold,
    /// Announced outer gradients by their place in the order.
    pub(super) announced: BTreeMap<PathId, ObjectRef>,
}

impl Default for EarlyFolds {
    fn default() -> Self {
        Self::within(ROOM)
    }
}

impl EarlyFolds {
    pub(super) fn within(room: usize) -> Self {
        Self { room, places: Mutex::default() }
    }

    /// Takes the fold of a fragment for an early order, which has [made room](Self::make_room) for it.
    pub(super) fn take(&self, fragment: FragmentId) -> Option<Folding> {
        self.places().get_mut(&fragment)?.kept.take()
    }

    /// Takes the fold of a fragment and its room, for the order of a due step.
    pub(super) fn remove(&self, fragment: FragmentId) -> Option<Folding> {
        self.places().remove(&fragment)?.kept
    }

    /// Makes room for the fold of a fragment of so many values, for the step that makes `version`. None if there is
    /// none: an early order then merges nothing, because each one would begin with the first contribution again.
    pub(super) fn make_room(&self, fragment: FragmentId, version: u32, values: usize) -> Option<Room<'_>> {
        let mut places = self.places();
        loop {
            let others = || places.iter().filter(move |&(&other, _)| other != fragment);
            let held: usize = others().map(|(_, place)| place.values).sum();
            if held == 0 || held.saturating_add(values) <= self.room {
                break;
            }
            // Fragments that this process steps are mostly one version apart at most. One that is further behind may
            // have gone to another process, and would have the room for ever.
            let kept = others().filter(|(_, place)| place.kept.is_some());
            let oldest = kept.min_by_key(|(_, place)| place.version);
            let gone = oldest.filter(|(_, place)| place.version.saturating_add(1) < version);
            let gone = gone.map(|(&gone, _)| gone)?;
            places.remove(&gone);
        }
        let kept = places.remove(&fragment).and_then(|place| place.kept);
        places.insert(fragment, Place { version, values, kept });
        Some(Room { folds: self, fragment })
    }

    /// Number of values for which there are kept folds and early orders.
    #[cfg(test)]
    pub(super) fn values_held(&self) -> usize {
        self.places().values().map(|place| place.values).sum()
    }

    /// True if the fold of a fragment is kept.
    #[cfg(test)]
    pub(super) fn keeps(&self, fragment: FragmentId) -> bool {
        self.places().get(&fragment).is_some_and(|place| place.kept.is_some())
    }

    fn places(&self) -> MutexGuard<'_, BTreeMap<FragmentId, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room<'_> {
    /// Keeps the fold, if anything is merged.
    pub(super) fn keep(self, folding: Folding) {
        if let Some(place) = self.folds.places().get_mut(&self.fragment) {
            place.kept = Some(folding).filter(|folding| folding.fold.values_held() > 0);
        }
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let mut places = self.folds.places();
        if places.get(&self.fragment).is_some_and(|place| place.kept.is_none()) {
            places.remove(&self.fragment);
        }
    }
}
