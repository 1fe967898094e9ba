//! A reader of the store in a simulated run: the objects that it pins stay.

use std::collections::BTreeSet;

use dipaco_ledger::ObjectRef;

use super::object_store::ObjectStore;

/// The objects that the reader has pinned. Pins are in the store, so they outlive a coordinator.
#[derive(Debug, Default)]
pub(super) struct Pins(pub(super) Vec<ObjectRef>);

impl Pins {
    /// The names of the pinned objects.
    pub(super) fn names(&self) -> BTreeSet<String> {
        self.0.iter().map(|object| object.name.clone()).collect()
    }

    /// Checks that the store has every pinned object.
    ///
    /// # Errors
    /// The first object that is not there.
    pub(super) fn check(&self, store: &ObjectStore) -> Result<(), String> {
        let gone = |why| format!("a reader has pinned an object: {why}");
        self.0.iter().try_for_each(|object| store.get(object).map(drop).map_err(gone))
    }
}
