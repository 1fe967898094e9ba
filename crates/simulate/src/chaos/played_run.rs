//! A simulated run that has ended.

use super::Chaos;
use super::coordinator::SimulatedDisk;
use super::object_store::ObjectStore;

/// A run that has ended.
pub(crate) struct PlayedRun {
    pub(super) disk: SimulatedDisk,
    pub(super) store: ObjectStore,
    pub(crate) summary: Chaos,
}

impl PlayedRun {
    /// Checks that the weights are equal to those of the undisturbed run, bit for bit.
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn same_weights(&self, undisturbed: &Self) -> Result<(), String> {
        let modules = self.disk.training()?.modules.iter().zip(&undisturbed.disk.training()?.modules);
        for (own, other) in modules {
            for (index, (own_fragment, other)) in own.fragments.iter().zip(&other.fragments).enumerate() {
                let found = self.store.weights(&own_fragment.weights)?.values;
                let expected = undisturbed.store.weights(&other.weights)?.values;
                if found.map(f32::to_bits) != expected.map(f32::to_bits) {
                    return Err(format!(
                        "the weights of {}.{index} are {found:?}, but {expected:?} in the undisturbed run",
                        own.module
                    ));
                }
            }
        }
        Ok(())
    }
}
