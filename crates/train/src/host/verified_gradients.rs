//! Decoded outer gradients, kept from their check to their fold.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dipaco_store::ObjectRef;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Memory for the values of all kept outer gradients, in bytes. The oldest gradient leaves first. A longer gradient is kept
/// alone, so the bound is this memory or the longest gradient, whichever is more. The configuration sets the lengths of
/// gradients, and no peer does. A gradient that is not here is read from the store again, so this bounds memory and never
/// decides a result. The values that are not kept yet have as much again.
pub(super) const CAPACITY_BYTES: usize = 256 << 20;
/// Bytes of a permit for values that are not kept yet.
const PERMIT_BYTES: usize = 1 << 10;
/// Permits for all values that are not kept yet.
const PERMITS: usize = CAPACITY_BYTES / PERMIT_BYTES;

/// The outer gradients that this process has verified and not folded yet. Clones share them.
#[derive(Clone)]
pub(crate) struct VerifiedGradients {
    kept: Arc<Mutex<KeptGradients>>,
    /// Permits for values from their decoding until the store has their object.
    room: Arc<Semaphore>,
    /// A permit for the values of the outer gradient that is decoded while it arrives.
    arriving: Arc<Semaphore>,
}

impl Default for VerifiedGradients {
    fn default() -> Self {
        let permits = |permits| Arc::new(Semaphore::new(permits));
        Self { kept: Arc::default(), room: permits(PERMITS), arriving: permits(1) }
    }
}

#[derive(Default)]
struct KeptGradients {
    /// Gradients in the order of their arrival.
    gradients: VecDeque<(ObjectRef, Vec<f32>)>,
    /// Bytes of all values.
    bytes: usize,
}

impl VerifiedGradients {
    /// Room for so many decoded values until they are kept; `None` if there is none now. Values that are longer than all
    /// room have all of it. Nobody waits for room: without it the values are read from the store later.
    pub(crate) fn room(&self, values: usize) -> Option<OwnedSemaphorePermit> {
        let permits = values.checked_mul(size_of::<f32>())?.div_ceil(PERMIT_BYTES).min(PERMITS);
        self.room.clone().try_acquire_many_owned(u32::try_from(permits).ok()?).ok()
    }

    /// Room for the values of an outer gradient that is decoded while it arrives; `None` while another one is. A slow peer may
    /// hold this room for the time of its lease, so it is not that of [`Self::room`]. It has no limit in bytes: the
    /// configuration sets the lengths of gradients.
    pub(crate) fn room_on_arrival(&self) -> Option<OwnedSemaphorePermit> {
        self.arriving.clone().try_acquire_owned().ok()
    }

    /// Keeps the values of an outer gradient under the reference of its object in the store.
    pub(crate) fn insert(&self, object: ObjectRef, values: Vec<f32>) {
        let mut kept = self.kept();
        kept.remove(&object);
        kept.bytes += size_of_val(&values[..]);
        kept.gradients.push_back((object, values));
        while kept.bytes > CAPACITY_BYTES
            && kept.gradients.len() > 1
            && let Some((_, oldest)) = kept.gradients.pop_front()
        {
            kept.bytes -= size_of_val(&oldest[..]);
        }
    }

    /// Removes an outer gradient and returns its values. Each gradient is folded once.
    pub(crate) fn remove(&self, object: &ObjectRef) -> Option<Vec<f32>> {
        self.kept().remove(object)
    }

    fn kept(&self) -> MutexGuard<'_, KeptGradients> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptGradients {
    fn remove(&mut self, object: &ObjectRef) -> Option<Vec<f32>> {
        let place = self.gradients.iter().position(|(kept, _)| kept == object)?;
        let (_, values) = self.gradients.remove(place)?;
        self.bytes -= size_of_val(&values[..]);
        Some(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> ObjectRef {
        ObjectRef::of(name.to_owned(), name.as_bytes())
    }

    #[test]
    fn a_gradient_is_returned_once_and_only_for_the_same_content() {
        let kept = VerifiedGradients::default();
        kept.insert(object("a"), vec![1.0, 2.0]);
        let other = ObjectRef { hash: "0".repeat(64), ..object("a") };
        assert_eq!(kept.remove(&other), None);
        assert_eq!(kept.remove(&object("a")), Some(vec![1.0, 2.0]));
        assert_eq!(kept.remove(&object("a")), None);
        assert_eq!(kept.kept().bytes, 0);
    }

    #[test]
    fn the_oldest_gradients_leave_when_the_memory_is_full() {
        let kept = VerifiedGradients::default();
        let third = CAPACITY_BYTES / size_of::<f32>() / 3;
        for name in ["a", "b", "c", "c", "d"] {
            kept.insert(object(name), vec![0.0; third]);
        }
        assert_eq!(kept.kept().bytes, 3 * third * size_of::<f32>());
        let found = ["a", "b", "c", "d"].map(|name| kept.remove(&object(name)).is_some());
        assert_eq!(found, [false, true, true, true]);
    }

    #[test]
    fn a_gradient_longer_than_the_memory_is_kept_alone() {
        let kept = VerifiedGradients::default();
        let longer = CAPACITY_BYTES / size_of::<f32>() + 1;
        let insert = |name: &str, values| kept.insert(object(name), vec![0.0; values]);
        let found = |name: &str| kept.remove(&object(name)).map(|values| values.len());
        insert("small", 2);
        insert("long", longer);
        assert_eq!(["small", "long"].map(found), [None, Some(longer)]);
        insert("long", longer);
        insert("small", 2);
        assert_eq!(kept.kept().bytes, 2 * size_of::<f32>());
        assert_eq!(["long", "small"].map(found), [None, Some(2)]);
    }

    #[test]
    fn decoded_values_have_room_until_the_memory_is_full() {
        let gradients = VerifiedGradients::default();
        let all = CAPACITY_BYTES / size_of::<f32>();
        let mut rooms = [(); 4].map(|()| gradients.room(all / 4 + 1));
        assert_eq!(rooms.each_ref().map(Option::is_some), [true, true, true, false]);
        rooms[0] = None;
        assert!(gradients.room(all / 4 + 1).is_some());
        drop(rooms);
        let longer = gradients.room(2 * all);
        assert!(longer.is_some() && gradients.room(1).is_none(), "longer values have all room");
        drop(longer);
        let small = gradients.room(1);
        assert!(small.is_some() && gradients.room(2 * all).is_none() && gradients.room(usize::MAX).is_none());
        drop(small);
        assert!(gradients.room(all).is_some(), "the refused ones took nothing");
    }
}
