//! Global weights of fragments that a worker has downloaded: in memory, and in unnamed files on its disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dipaco_model::little_endian;
use dipaco_store::ObjectRef;
use dipaco_sync::FragmentId;

use super::WorkerError;
use crate::blocking::blocking;
use crate::client::ContentFile;

/// Global weights of a fragment and the object that holds them.
#[derive(Clone)]
pub(super) struct CachedFragment {
    pub(super) object: ObjectRef,
    place: Place,
}

/// Where the values of a fragment lie.
#[derive(Clone)]
enum Place {
    /// In memory, and in a file if they came from there.
    Memory(Arc<Vec<f32>>, Option<Arc<ContentFile>>),
    /// In a file alone.
    Disk(Arc<ContentFile>),
}

impl CachedFragment {
    /// The values of an object, in memory.
    pub(super) fn new(object: ObjectRef, values: Vec<f32>) -> Self {
        Self { object, place: Place::Memory(Arc::new(values), None) }
    }

    /// The same values under another object, which has the same hash.
    pub(super) fn under(&self, object: ObjectRef) -> Self {
        Self { object, place: self.place.clone() }
    }

    /// The values, if they are in memory.
    pub(super) fn values(&self) -> Option<&Arc<Vec<f32>>> {
        match &self.place {
            Place::Memory(values, _) => Some(values),
            Place::Disk(_) => None,
        }
    }

    /// Brings the values into memory. Returns `None` with a warning if the disk does not give them back.
    pub(super) async fn load(self) -> Option<Self> {
        let Place::Disk(file) = self.place else { return Some(self) };
        let read = file.clone();
        let values = blocking(move || read.values()).await.map_err(WorkerError::from);
        match values.and_then(|values| Ok(values?)) {
            Ok(values) => Some(Self { place: Place::Memory(Arc::new(values), Some(file)), ..self }),
            Err(error) => {
                let name = self.object.name;
                tracing::warn!(%error, name, "weights on this worker's disk are lost; they are downloaded again");
                None
            }
        }
    }

    /// The values, from the memory or else from the disk; `None` as [`load`](Self::load).
    pub(super) async fn into_values(self) -> Option<Vec<f32>> {
        match self.load().await?.place {
            Place::Memory(values, _) => Some(Arc::unwrap_or_clone(values)),
            Place::Disk(_) => None,
        }
    }

    /// Moves the values to a file on the disk of `folder`. Returns `None` with a warning if the disk does not take them.
    async fn unload(self, folder: &Path) -> Option<Self> {
        let file = match self.place {
            Place::Disk(file) | Place::Memory(_, Some(file)) => file,
            Place::Memory(values, None) => {
                let folder = folder.to_owned();
                let written = blocking(move || ContentFile::write(&folder, [little_endian(&values)])).await;
                match written.map_err(WorkerError::from).and_then(|written| Ok(written?)) {
                    Ok(file) => Arc::new(file),
                    Err(error) => {
                        tracing::warn!(%error, "weights are dropped that the next leases of this worker may download again");
                        return None;
                    }
                }
            }
        };
        Some(Self { place: Place::Disk(file), ..self })
    }
}

/// Global weights by fragment.
pub(super) struct CachedFragments {
    /// The folder on whose disk the files lie.
    folder: PathBuf,
    /// Bytes of weights that stay in memory besides those of the next lease.
    room: usize,
    fragments: BTreeMap<FragmentId, CachedFragment>,
}

impl CachedFragments {
    /// No weights. `folder` need not exist.
    pub(super) fn new(folder: PathBuf, room: usize) -> Self {
        Self { folder, room, fragments: BTreeMap::new() }
    }

    /// The weights of a fragment.
    pub(super) fn get(&self, fragment: FragmentId) -> Option<&CachedFragment> {
        self.fragments.get(&fragment)
    }

    /// Weights with this hash, of any fragment: those in memory first.
    pub(super) fn with_hash(&self, hash: &str) -> Option<&CachedFragment> {
        let same = self.fragments.values().filter(|cached| cached.object.hash == hash);
        same.max_by_key(|cached| cached.values().is_some())
    }

    /// Puts weights in the place of the earlier ones of a fragment.
    pub(super) fn insert(&mut self, fragment: FragmentId, cached: CachedFragment) {
        self.fragments.insert(fragment, cached);
    }

    /// Takes the weights of a fragment out.
    pub(super) fn remove(&mut self, fragment: FragmentId) -> Option<CachedFragment> {
        self.fragments.remove(&fragment)
    }

    /// Keeps the weights of the needed fragments as they are, and those of `others`: in their order as many in memory as
    /// there is room for, and the rest on the disk. All else is dropped.
    pub(super) async fn keep(
        &mut self,
        needed: &BTreeSet<FragmentId>,
        others: impl Iterator<Item = FragmentId>,
    ) {
        let mut before = std::mem::take(&mut self.fragments);
        for fragment in needed {
            self.fragments.extend(before.remove_entry(fragment));
        }
        let mut room = Some(self.room);
        for fragment in others {
            let Some(cached) = before.remove(&fragment) else { continue };
            let bytes = cached.values().map(|values| size_of_val(values.as_slice()));
            room = room.and_then(|room| room.checked_sub(bytes.unwrap_or_default()));
            let kept = if room.is_some() { Some(cached) } else { cached.unload(&self.folder).await };
            self.fragments.extend(kept.map(|kept| (fragment, kept)));
        }
    }
}

#[cfg(test)]
mod tests {
    use dipaco_topology::ModuleId;

    use super::*;

    fn id(number: u32) -> FragmentId {
        FragmentId { module: ModuleId { level: 0, index: number }, index: 0 }
    }

    fn cached(number: u32) -> CachedFragment {
        let values = vec![number as f32 + 0.5; 4];
        CachedFragment::new(ObjectRef::of(format!("weights/{number}"), &[number as u8]), values)
    }

    fn filled(folder: &Path, room: usize) -> CachedFragments {
        let mut fragments = CachedFragments::new(folder.join("cache"), room);
        (0..6).for_each(|number| fragments.insert(id(number), cached(number)));
        fragments
    }

    /// The fragments that are kept, and those of them that are in memory.
    fn kept(fragments: &CachedFragments) -> (Vec<u32>, Vec<u32>) {
        let numbers = |in_memory: bool| {
            let kept = fragments.fragments.iter();
            let kept = kept.filter(|(_, cached)| !in_memory || cached.values().is_some());
            kept.map(|(id, _)| id.module.index).collect()
        };
        (numbers(false), numbers(true))
    }

    #[tokio::test]
    async fn what_has_no_room_in_memory_lies_on_the_disk_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        // Room for two fragments of 16 bytes, and a part of a third.
        let mut fragments = filled(folder.path(), 40);
        let others = [3, 0, 9, 5, 2, 3].map(id);
        fragments.keep(&[id(4), id(3)].into(), others.into_iter()).await;
        assert_eq!(kept(&fragments), (vec![0, 2, 3, 4, 5], vec![0, 3, 4, 5]));
        // A needed fragment stays as it is, and one that came back from the disk goes there again.
        fragments.keep(&[id(2)].into(), others.into_iter()).await;
        assert_eq!(kept(&fragments), (vec![0, 2, 3, 5], vec![0, 3]));
        for number in [0, 2, 3, 5] {
            let found = fragments.remove(id(number)).unwrap();
            assert_eq!(found.object, cached(number).object);
            let loaded = found.load().await.unwrap();
            assert_eq!(loaded.values(), cached(number).values());
            assert_eq!(loaded.into_values().await, Some(vec![number as f32 + 0.5; 4]));
        }
    }

    #[tokio::test]
    async fn weights_that_the_disk_does_not_take_are_dropped() {
        let mut fragments = filled(Path::new("/proc/nothing"), 16);
        fragments.keep(&[id(1)].into(), [2, 3].map(id).into_iter()).await;
        assert_eq!(kept(&fragments), (vec![1, 2], vec![1, 2]));
    }

    #[tokio::test]
    async fn the_same_weights_are_found_under_another_fragment_and_first_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let mut fragments = filled(folder.path(), 0);
        fragments.insert(id(8), cached(3));
        fragments.keep(&[id(8)].into(), (0..6).map(id)).await;
        let hash = |number| cached(number).object.hash;
        assert!(fragments.with_hash(&hash(3)).unwrap().values().is_some());
        assert!(fragments.with_hash(&hash(2)).unwrap().values().is_none());
        assert!(fragments.with_hash(&hash(7)).is_none());
    }
}
