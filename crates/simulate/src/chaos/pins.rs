//! A reader of the store in a simulated run: the objects that it pins stay.

use std::collections::BTreeSet;
use std::time::Duration;

use dipaco_ledger::ObjectRef;

use super::events::ChaosEvent;
use super::object_store::ObjectStore;
use super::world::ChaosWorld;

/// Longest time for which the reader pins the objects of one manifest.
const LONGEST_PIN: Duration = Duration::from_millis(1_500);

/// The objects that the reader has pinned. Pins are in the store, so they outlive a coordinator.
#[derive(Debug, Default)]
pub(super) struct Pins(Vec<ObjectRef>);

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

impl ChaosWorld<'_> {
    /// The reader pins the objects of the manifest on the disk, in place of those that it has pinned before.
    pub(super) fn reader_pins(&mut self) -> Result<(), String> {
        self.pins = Pins(self.disk.training()?.objects().cloned().collect());
        let pause = self.between(1_000, LONGEST_PIN);
        self.after(pause, ChaosEvent::ReaderPins);
        Ok(())
    }
}
