//! Names of a run's objects. Each name describes its object.

use dipaco_sync::FragmentId;
use dipaco_topology::{ModuleId, PathId};

/// Prefix of module weights.
pub const MODULES: &str = "modules";
/// Prefix of the outer optimizer's momenta.
pub const MOMENTA: &str = "momenta";
/// Prefix of changes of module weights.
pub const CHANGES: &str = "changes";
/// Prefix of path states.
pub const PATHS: &str = "paths";
/// Prefix of outer gradients that wait for an outer step.
pub const OUTER_GRADIENTS: &str = "outer-gradients";

/// Prefix of checkpoints of the training.
pub const CHECKPOINTS: &str = "checkpoints";

/// Prefixes of all objects of the training.
pub const OF_TRAINING: [&str; 6] = [OUTER_GRADIENTS, MODULES, MOMENTA, CHANGES, PATHS, CHECKPOINTS];

/// Prefix of the pins of readers.
pub const READERS: &str = "readers";

/// The pin of a reader: `readers/<reader>`.
#[must_use]
pub fn reader(reader: &str) -> String {
    format!("{READERS}/{reader}")
}

/// A coordinator's checkpoint of the training after `round` rounds: `checkpoints/<round>-<incarnation>`.
#[must_use]
pub fn checkpoint(round: u32, incarnation: u32) -> String {
    format!("{CHECKPOINTS}/{round}-{incarnation}")
}

/// A fragment's weights after `version` outer steps: `modules/<level>/<index>/<fragment>/<version>-<fence>`.
///
/// `fence` is the fencing number of the synchronizer that took the step, so a synchronizer that has lost the module
/// cannot overwrite the weights of its successor; 0 for the weights before the first step.
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

/// The state of a path after `step` inner steps: `paths/<id>/<step>-<fence>`. In the store `-<hash>` follows, see
/// [`LeaseResult::object_name`](crate::LeaseResult::object_name).
///
/// `fence` is the fencing number of the lease that computed the state, so a worker without a current lease cannot
/// overwrite the state of its successor.
#[must_use]
pub fn path_state(path: PathId, step: u64, fence: u64) -> String {
    format!("{PATHS}/{path}/{step}-{fence}")
}

/// A path's outer gradient of a fragment: `outer-gradients/<level>/<index>/<fragment>/<number>/<path>-<fence>`. In the
/// store `-<hash>` follows, see [`LeaseResult::object_name`](crate::LeaseResult::object_name).
///
/// `number` is the sequence number of the path's contributions to the fragment.
#[must_use]
pub fn outer_gradient(module: ModuleId, fragment: u32, number: u32, path: PathId, fence: u64) -> String {
    format!("{OUTER_GRADIENTS}/{module}/{fragment}/{number}/{path}-{fence}")
}

/// The seed model's weights after `step` inner steps: `seed/<step>/weights-<hash>`.
///
/// `hash` is that of the content. Two processes that train the seed of one run on different processors have other weights
/// after the same step, and neither overwrites those of the other.
#[must_use]
pub fn seed_weights(step: u64, hash: &str) -> String {
    format!("seed/{step}/weights-{hash}")
}

/// The weights of an imported model, from which the seed model begins: `seed/imported-<hash>/weights`.
#[must_use]
pub fn imported_weights(hash: &str) -> String {
    format!("seed/imported-{hash:.16}/weights")
}

/// The state from which the seed model continues after `step` inner steps: `seed/<step>/state-<hash>`, with the hash of
/// the content as in [`seed_weights`].
#[must_use]
pub fn seed_state(step: u64, hash: &str) -> String {
    format!("seed/{step}/state-{hash}")
}

/// The router of a phase: `router/<phase>`.
#[must_use]
pub fn router(phase: u32) -> String {
    format!("router/{phase}")
}

/// The part of the training that an object belongs to, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A fragment: weights, momentum or a change of weights.
    Fragment(FragmentId),
    /// A path's outer gradient of a fragment, with its sequence number.
    OuterGradient(FragmentId, u32, PathId),
    /// A path: its state.
    Path(PathId),
}

/// The part of the training that the object of this name belongs to; `None` for names of other objects.
#[must_use]
pub fn owner(name: &str) -> Option<Owner> {
    let mut parts = name.split('/');
    let kind = parts.next()?;
    match kind {
        MODULES | MOMENTA | CHANGES | OUTER_GRADIENTS => {
            let module = ModuleId { level: parts.next()?.parse().ok()?, index: parts.next()?.parse().ok()? };
            let fragment = FragmentId { module, index: parts.next()?.parse().ok()? };
            if kind != OUTER_GRADIENTS {
                return Some(Owner::Fragment(fragment));
            }
            let number = parts.next()?.parse().ok()?;
            let path = PathId(parts.next()?.split('-').next()?.parse().ok()?);
            Some(Owner::OuterGradient(fragment, number, path))
        }
        PATHS => Some(Owner::Path(PathId(parts.next()?.parse().ok()?))),
        _ => None,
    }
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
        assert_eq!(seed_weights(20, "ab12"), "seed/20/weights-ab12");
        assert_eq!(seed_state(20, "ab12"), "seed/20/state-ab12");
    }

    #[test]
    fn a_name_says_what_the_object_belongs_to() {
        let module = ModuleId { level: 1, index: 15 };
        let of_fragment = Some(Owner::Fragment(FragmentId { module, index: 2 }));
        for name in [weights(module, 2, 42, 5), momentum(module, 2, 42, 5), change(module, 2, 42, 5)] {
            assert_eq!(owner(&name), of_fragment);
        }
        let gradient = format!("{}-{}", outer_gradient(module, 2, 7, PathId(255), 3), "ab".repeat(32));
        let of_gradient = Owner::OuterGradient(FragmentId { module, index: 2 }, 7, PathId(255));
        assert_eq!(owner(&gradient), Some(of_gradient));
        let state = format!("{}-{}", path_state(PathId(255), 70, 3), "ab".repeat(32));
        assert_eq!(owner(&state), Some(Owner::Path(PathId(255))));
        for name in ["", "modules/1/15", "modules/1/x/2/3-4", "paths", "paths/-1/0-0", "seed/1/state-ab"] {
            assert_eq!(owner(name), None, "{name}");
        }
        for name in ["outer-gradients/1/15/2", "outer-gradients/1/15/2/7", "outer-gradients/1/15/2/7/x-3"] {
            assert_eq!(owner(name), None, "{name}");
        }
    }
}
