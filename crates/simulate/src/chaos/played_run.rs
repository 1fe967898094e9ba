//! A simulated run that has ended.

use dipaco_topology::PathId;

use super::Chaos;
use super::case::Case;
use super::disk::SimulatedDisk;
use super::object_store::ObjectStore;

/// A run that has ended.
pub(crate) struct PlayedRun {
    pub(super) disk: SimulatedDisk,
    pub(super) store: ObjectStore,
    pub(crate) summary: Chaos,
}

impl PlayedRun {
    /// Checks that the weights are equal to those of the undisturbed run, bit for bit. Modules that only a path in quarantine
    /// trains are at a checkpoint, and time decides which one a run keeps.
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn same_weights(&self, undisturbed: &Self, case: &Case) -> Result<(), String> {
        let training = self.disk.training()?;
        let at_rest = |path: PathId| training.path(path).is_some_and(|record| record.quarantine.is_some());
        let modules = training.modules.iter().zip(&undisturbed.disk.training()?.modules);
        let go_on = modules.filter(|(own, _)| !case.topology.paths_through(own.module).all(at_rest));
        for (own, other) in go_on {
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
