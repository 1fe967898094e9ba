//! The names of a run's objects: each says what the object is.

use dipaco_topology::{ModuleId, PathId};

/// Where module weights are.
pub const MODULES: &str = "modules";
/// Where the outer optimizer's momenta are.
pub const MOMENTA: &str = "momenta";
/// Where the changes of module weights are.
pub const CHANGES: &str = "changes";
/// Where path states are.
pub const PATHS: &str = "paths";
/// Where outer gradients wait for the outer step of their module.
pub const OUTER_GRADIENTS: &str = "outer-gradients";

/// Where checkpoints of the training are.
pub const CHECKPOINTS: &str = "checkpoints";

/// The checkpoint of the training that a coordinator took after `round` rounds: `checkpoints/<round>-<incarnation>`.
#[must_use]
pub fn checkpoint(round: u32, incarnation: u32) -> String {
    format!("{CHECKPOINTS}/{round}-{incarnation}")
}

/// A fragment's weights after `version` outer steps: `modules/<level>/<index>/<fragment>/<version>-<fence>`.
///
/// `fence` is the fencing number of the synchronizer that took the step, so that one that has lost the module can't write
/// over what its successor makes; 0 for the weights before the first step.
#[must_use]
pub fn weights(module: ModuleId, fragment: u32, version: u32, fence: u64) -> String {
    format!("{MODULES}/{module}/{fragment}/{version}-{fence}")
}

/// The outer optimizer's momentum of a fragment after `version` outer steps:
/// `momenta/<level>/<index>/<fragment>/<version>-<fence>`.
#[must_use]
pub fn momentum(module: ModuleId, fragment: u32, version: u32, fence: u64) -> String {
    format!("{MOMENTA}/{module}/{fragment}/{version}-{fence}")
}

/// The change of a fragment's weights to `version`: `changes/<level>/<index>/<fragment>/<version>-<fence>`.
#[must_use]
pub fn change(module: ModuleId, fragment: u32, version: u32, fence: u64) -> String {
    format!("{CHANGES}/{module}/{fragment}/{version}-{fence}")
}

/// The state of a path after `step` inner steps: `paths/<id>/<step>-<fence>`.
///
/// `fence` is the fencing number of the lease under which it was computed, so that a worker that lost its lease can't
/// write over what its successor brings.
#[must_use]
pub fn path_state(path: PathId, step: u64, fence: u64) -> String {
    format!("{PATHS}/{path}/{step}-{fence}")
}

/// A path's outer gradient of a fragment, the `number`-th of the path to it:
/// `outer-gradients/<level>/<index>/<fragment>/<number>/<path>-<fence>`.
#[must_use]
pub fn outer_gradient(module: ModuleId, fragment: u32, number: u32, path: PathId, fence: u64) -> String {
    format!("{OUTER_GRADIENTS}/{module}/{fragment}/{number}/{path}-{fence}")
}

/// The seed model's weights after `step` inner steps: `seed/<step>/weights`.
#[must_use]
pub fn seed_weights(step: u64) -> String {
    format!("seed/{step}/weights")
}

/// What the seed model needs to continue after `step` inner steps: `seed/<step>/state`.
#[must_use]
pub fn seed_state(step: u64) -> String {
    format!("seed/{step}/state")
}

/// The router of a phase: `router/<phase>`.
#[must_use]
pub fn router(phase: u32) -> String {
    format!("router/{phase}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_the_object_is() {
        let id = ModuleId { level: 1, index: 15 };
        assert_eq!(weights(id, 2, 42, 5), "modules/1/15/2/42-5");
        assert_eq!(momentum(id, 0, 42, 5), "momenta/1/15/0/42-5");
        assert_eq!(change(id, 0, 42, 5), "changes/1/15/0/42-5");
        assert_eq!(path_state(PathId(255), 70, 3), "paths/255/70-3");
        assert_eq!(outer_gradient(id, 2, 7, PathId(255), 3), "outer-gradients/1/15/2/7/255-3");
        assert_eq!(checkpoint(12, 3), "checkpoints/12-3");
        assert_eq!(router(2), "router/2");
    }
}
