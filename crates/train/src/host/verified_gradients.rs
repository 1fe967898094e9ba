//! Decoded outer gradients, kept from their check to their fold.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dipaco_store::ObjectRef;

/// Memory for the values of all kept outer gradients, in bytes. The oldest gradient leaves first. A gradient that is
/// not here is read from the store again, so this bounds memory and never decides a result.
const CAPACITY_BYTES: usize = 256 << 20;

/// The outer gradients that this process has verified and not folded yet. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct VerifiedGradients(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    /// Gradients in the order of their arrival.
    gradients: VecDeque<(ObjectRef, Vec<f32>)>,
    /// Bytes of all values.
    bytes: usize,
}

impl VerifiedGradients {
    /// True if a gradient of so many values has room.
    pub(crate) fn fits(values: usize) -> bool {
        values <= CAPACITY_BYTES / size_of::<f32>()
    }

    /// Keeps the values of an outer gradient under the reference of its object in the store.
    pub(crate) fn insert(&self, object: ObjectRef, values: Vec<f32>) {
        if !Self::fits(values.len()) {
            return;
        }
        let mut kept = self.kept();
        kept.remove(&object);
        kept.bytes += size_of_val(&values[..]);
        kept.gradients.push_back((object, values));
        while kept.bytes > CAPACITY_BYTES
            && let Some((_, oldest)) = kept.gradients.pop_front()
        {
            kept.bytes -= size_of_val(&oldest[..]);
        }
    }

    /// Removes an outer gradient and returns its values. Each gradient is folded once.
    pub(crate) fn remove(&self, object: &ObjectRef) -> Option<Vec<f32>> {
        self.kept().remove(object)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
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
        assert_eq!(kept.clone().remove(&other), None);
        assert_eq!(kept.clone().remove(&object("a")), Some(vec![1.0, 2.0]));
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
        kept.insert(object("huge"), vec![0.0; 3 * third + 3]);
        assert_eq!(kept.kept().bytes, 0);
    }
}
