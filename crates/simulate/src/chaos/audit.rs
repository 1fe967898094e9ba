//! Checks of the invariants on every write to the disk, independent of the core's code.

use std::collections::{BTreeMap, BTreeSet};

use dipaco_ledger::{ModuleRecord, TrainingRecord};
use dipaco_sync::{Contribution, FragmentId, Scheme, fragment_ids, fragment_ids_of};
use dipaco_topology::PathId;

use super::case::Case;
use super::disk::SimulatedDisk;
use super::object_store::ObjectStore;
use super::toy::{MergedStep, ToyGradient, sends};

/// All merged contributions of a run.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    merged: BTreeMap<(FragmentId, PathId), Vec<(Contribution, ToyGradient)>>,
    known: BTreeSet<(FragmentId, PathId, u32)>,
}

impl Audit {
    /// Checks a write: the record of the training before and after it, and the outer steps in it.
    ///
    /// # Errors
    /// The violated invariant.
    pub(crate) fn written(
        &mut self,
        case: &Case,
        before: &TrainingRecord,
        after: &TrainingRecord,
        merged: &[MergedStep],
    ) -> Result<(), String> {
        let fragments = |training: &TrainingRecord| -> BTreeMap<FragmentId, u32> {
            let of = |record: &ModuleRecord| {
                let module = record.module;
                let versions = (0..).zip(&record.fragments);
                versions.map(move |(index, record)| (FragmentId { module, index }, record.version)).collect()
            };
            training.modules.iter().flat_map(|record| -> Vec<_> { of(record) }).collect()
        };
        let new = fragments(after);
        for (fragment, version) in fragments(before) {
            let steps = merged.iter().filter(|step| step.fragment == fragment).map(|step| step.version);
            let next = new.get(&fragment).copied().unwrap_or(0);
            if !steps.eq(version + 1..=next) {
                return Err(format!(
                    "fragment {fragment} goes from version {version} to {next} without its outer steps"
                ));
            }
        }
        for (index, (old, new)) in before.paths.iter().zip(&after.paths).enumerate() {
            let falls = old.steps > new.steps || old.sent.iter().zip(&new.sent).any(|(old, new)| old > new);
            if falls {
                return Err(format!("path {index} goes back from step {} to {}", old.steps, new.steps));
            }
        }
        merged.iter().try_for_each(|step| self.stepped(case, step))
    }

    /// Checks an outer step.
    fn stepped(&mut self, case: &Case, step: &MergedStep) -> Result<(), String> {
        if step.asked != Some(step.fence) {
            return Err(format!(
                "outer step {} of {} counts under the lost fence {}: the last order has {:?}",
                step.version, step.fragment, step.fence, step.asked
            ));
        }
        let gradients = &step.gradients;
        for (contribution, gradient) in step.contributions.iter().zip(gradients) {
            let Contribution { path, number, base, .. } = *contribution;
            let fragment = step.fragment;
            if !self.known.insert((fragment, path, number)) {
                return Err(format!("outer gradient {number} of path {path} to {fragment} counts twice"));
            }
            if gradient.seen != base {
                return Err(format!(
                    "outer gradient {number} of path {path} to {fragment} was made from version {}, and counts with base {base}",
                    gradient.seen
                ));
            }
            // A path may be one version behind, because it trains while the previous outer step runs. A dropped outer
            // gradient leaves its path further behind.
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

    /// Checks a finished run: every inner step of every path is in the weights of each of its fragments exactly once, but
    /// for the rounds in which the path rests. A path that diverges for everybody is in quarantine, and no other path is. Its steps before are in the weights once.
    ///
    /// # Errors
    /// The violated invariant.
    pub(crate) fn ended(mut self, case: &Case, training: &TrainingRecord) -> Result<(), String> {
        let (fragments, total) = (case.schedule.fragments(), case.schedule.total());
        for (path, record) in case.topology.path_ids().zip(&training.paths) {
            let diverges = case.diverging.is_some_and(|diverging| diverging.path == path);
            if diverges != record.quarantine.is_some() {
                return Err(format!("path {path} is in quarantine: {}", record.quarantine.is_some()));
            }
            for fragment in fragment_ids_of(&case.topology, fragments, path) {
                let mut merged = self.merged.remove(&(fragment, path)).unwrap_or_default();
                if !case.trains(fragment) {
                    if merged.is_empty() {
                        continue;
                    }
                    return Err(format!("path {path} contributed to {fragment}, which is frozen"));
                }
                merged.sort_by_key(|(contribution, _)| contribution.number);
                let mut trained = 0;
                let expected = sends(case, path, fragment);
                let in_turn = (1..=u32::try_from(merged.len()).unwrap_or(u32::MAX)).collect();
                let numbers: Vec<u32> = expected.clone().unwrap_or(in_turn);
                for (&number, (contribution, gradient)) in numbers.iter().zip(&merged) {
                    if contribution.number != number {
                        return Err(format!("outer gradient {number} of path {path} to {fragment} is lost"));
                    }
                    let steps = gradient.steps.end - gradient.steps.start;
                    trained = case.schedule.rests_until(path, trained);
                    if gradient.steps.start != trained || contribution.steps != steps {
                        return Err(format!(
                            "outer gradient {number} of path {path} to {fragment} holds inner steps {} to {}, counted as {} steps, but step {trained} is next",
                            gradient.steps.start, gradient.steps.end, contribution.steps
                        ));
                    }
                    trained = gradient.steps.end;
                }
                if diverges {
                    continue;
                }
                trained = case.schedule.rests_until(path, trained);
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
}

/// Every object that the manifest refers to is in the store, with the right content.
///
/// # Errors
/// The first object that is not.
pub(crate) fn check_objects(case: &Case, disk: &SimulatedDisk, store: &ObjectStore) -> Result<(), String> {
    let training = disk.training()?;
    let count = fragment_ids(&case.topology, case.schedule.fragments()).count();
    let known = training.modules.iter().map(|module| module.fragments.len()).sum::<usize>();
    if known != count {
        return Err(format!("the manifest has {known} of {count} fragments"));
    }
    training.objects().try_for_each(|object| store.get(object).map(drop))?;
    disk.manifest.checkpoints.iter().try_for_each(|checkpoint| store.get(&checkpoint.object).map(drop))
}
