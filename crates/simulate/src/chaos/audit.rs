//! What must hold whatever happens, checked from outside on everything that reaches the disk.

use std::collections::{BTreeMap, BTreeSet};

use dipaco_sync::{Contribution, FragmentId, OuterStep, Scheme, fragment_ids, fragment_ids_of};
use dipaco_topology::PathId;

use super::case::Case;
use super::coordinator::Disk;
use super::toy::{Gradient, sends};

/// What was merged into the global weights, over the whole run.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    merged: BTreeMap<(FragmentId, PathId), Vec<(Contribution, Gradient)>>,
    known: BTreeSet<(FragmentId, PathId, u32)>,
}

impl Audit {
    /// Looks at a write: what the disk holds before and after, and the outer step that it writes down.
    ///
    /// # Errors
    /// What does not hold.
    pub(crate) fn written(
        &mut self,
        case: &Case,
        before: &Disk,
        after: &Disk,
        step: Option<&(OuterStep, Vec<Gradient>)>,
    ) -> Result<(), String> {
        for (fragment, &version) in &before.progress.versions {
            let next = after.progress.versions[fragment];
            let expected = version + u32::from(step.is_some_and(|(step, _)| step.fragment == *fragment));
            if next != expected {
                return Err(format!(
                    "unit {fragment} goes from version {version} to {next}, not to {expected}"
                ));
            }
        }
        for (index, (old, new)) in before.progress.paths.iter().zip(&after.progress.paths).enumerate() {
            let falls = old.steps > new.steps || old.sent.iter().zip(&new.sent).any(|(old, new)| old > new);
            if falls {
                return Err(format!("path {index} goes back from {old:?} to {new:?}"));
            }
        }
        let Some((step, gradients)) = step else { return Ok(()) };
        for (contribution, gradient) in step.contributions.iter().zip(gradients) {
            let Contribution { path, number, base, .. } = *contribution;
            let fragment = step.fragment;
            if !self.known.insert((fragment, path, number)) {
                return Err(format!("outer gradient {number} of path {path} to {fragment} counts twice"));
            }
            if gradient.seen != base {
                return Err(format!(
                    "outer gradient {number} of path {path} to {fragment} was made from version {}, and counts as from {base}",
                    gradient.seen
                ));
            }
            if case.scheme == Scheme::Synchronous && !case.schedule.drops().any() && base + 2 < step.version {
                return Err(format!(
                    "{fragment} steps to version {} with an outer gradient of version {base}",
                    step.version
                ));
            }
            self.merged.entry((fragment, path)).or_default().push((*contribution, gradient.clone()));
        }
        Ok(())
    }

    /// Looks at a run that has ended: every inner step of every path is in the weights of each of its units once.
    ///
    /// # Errors
    /// What does not hold.
    pub(crate) fn ended(mut self, case: &Case) -> Result<(), String> {
        let (fragments, total) = (case.schedule.fragments(), case.schedule.total());
        for path in case.topology.path_ids() {
            for fragment in fragment_ids_of(&case.topology, fragments, path) {
                let mut merged = self.merged.remove(&(fragment, path)).unwrap_or_default();
                merged.sort_by_key(|(contribution, _)| contribution.number);
                let mut trained = 0;
                let expected = sends(case, path, fragment.index);
                let in_turn = (1..=u32::try_from(merged.len()).unwrap_or(u32::MAX)).collect();
                let numbers: Vec<u32> = expected.clone().unwrap_or(in_turn);
                for (&number, (contribution, gradient)) in numbers.iter().zip(&merged) {
                    if contribution.number != number {
                        return Err(format!("outer gradient {number} of path {path} to {fragment} is lost"));
                    }
                    let steps = gradient.data.1 - gradient.data.0;
                    if gradient.data.0 != trained || contribution.steps != steps {
                        return Err(format!(
                            "outer gradient {number} of path {path} to {fragment} holds the steps after {} up to {}, counted as {}, where those after {trained} are next",
                            gradient.data.0, gradient.data.1, contribution.steps
                        ));
                    }
                    trained = gradient.data.1;
                }
                if trained != total || expected.is_some_and(|expected| expected.len() != merged.len()) {
                    return Err(format!(
                        "{fragment} has {trained} of {total} steps of path {path} in {} outer gradients",
                        merged.len()
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether the weights are those of the undisturbed run, bit for bit.
    ///
    /// # Errors
    /// Where they differ.
    pub(crate) fn same_weights(case: &Case, disk: &Disk, undisturbed: &Disk) -> Result<(), String> {
        for fragment in fragment_ids(&case.topology, case.schedule.fragments()) {
            let bits = |disk: &Disk| disk.weights[&fragment].map(f32::to_bits);
            if bits(disk) != bits(undisturbed) {
                return Err(format!(
                    "the weights of {fragment} are {:?}, those of the undisturbed run {:?}",
                    disk.weights[&fragment], undisturbed.weights[&fragment]
                ));
            }
        }
        Ok(())
    }
}
