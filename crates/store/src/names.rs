//! The names of a run's objects: each says what the object is.

use dipaco_topology::{ModuleId, PathId};

/// Where module weights are.
pub const MODULES: &str = "modules";
/// Where the outer optimizer's momenta are.
pub const MOMENTA: &str = "momenta";
/// Where path states are.
pub const PATHS: &str = "paths";
/// Where outer gradients wait for the outer step of their module.
pub const OUTER_GRADIENTS: &str = "outer-gradients";

/// A module's weights after `version` outer steps: `modules/<level>/<index>/<version>`.
#[must_use]
pub fn module(module: ModuleId, version: u32) -> String {
    format!("{MODULES}/{module}/{version}")
}

/// The outer optimizer's momentum of a module after `version` outer steps: `momenta/<level>/<index>/<version>`.
#[must_use]
pub fn momentum(module: ModuleId, version: u32) -> String {
    format!("{MOMENTA}/{module}/{version}")
}

/// The state of a path at the end of a round: `paths/<id>/<round>-<fence>`.
///
/// `fence` is the fencing number of the lease under which it was computed, so that a worker that lost its lease can't
/// write over what its successor brings.
#[must_use]
pub fn path_state(path: PathId, round: u32, fence: u64) -> String {
    format!("{PATHS}/{path}/{round}-{fence}")
}

/// What one path contributes to one module in one round: `outer-gradients/<level>/<index>/<round>/<path>-<fence>`.
#[must_use]
pub fn outer_gradient(module: ModuleId, round: u32, path: PathId, fence: u64) -> String {
    format!("{OUTER_GRADIENTS}/{module}/{round}/{path}-{fence}")
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
        assert_eq!(module(id, 42), "modules/1/15/42");
        assert_eq!(momentum(id, 42), "momenta/1/15/42");
        assert_eq!(path_state(PathId(255), 7, 3), "paths/255/7-3");
        assert_eq!(outer_gradient(id, 7, PathId(255), 3), "outer-gradients/1/15/7/255-3");
        assert_eq!(router(2), "router/2");
    }
}
