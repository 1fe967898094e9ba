//! The first manifest of a simulated run.

use dipaco_ledger::{
    CountRecord, FragmentRecord, ModuleRecord, PathRecord, RunManifest, TrainingRecord, names,
};
use dipaco_sync::FragmentId;

use super::case::Case;
use super::object_store::{Content, ObjectStore};
use super::toy::{ToyWeights, seed};

/// The first manifest of a run. Puts version 0 of every fragment into the store.
pub(crate) fn first_manifest(case: &Case, store: &mut ObjectStore) -> RunManifest {
    let fragments = case.schedule.fragments();
    let mut modules = Vec::new();
    for module in case.topology.module_ids() {
        let mut records = Vec::new();
        for index in 0..fragments {
            let content =
                Content::Weights(ToyWeights { version: 0, values: seed(FragmentId { module, index }) });
            let weights = content.under(names::weights(module, index, 0, 0));
            store.put(&weights, content);
            records.push(FragmentRecord::first(weights));
        }
        modules.push(ModuleRecord { module, fragments: records });
    }
    let slots = case.topology.levels() * fragments as usize;
    let path = PathRecord {
        sent: vec![0; slots],
        adopted: vec![0; slots],
        counted: vec![CountRecord::default(); slots],
        ..PathRecord::default()
    };
    let kept = PathRecord { steps: case.schedule.total(), measured: true, ..path.clone() };
    let of = |id| if case.topology.path_trains(id) { path.clone() } else { kept.clone() };
    let inner_steps = case.schedule.inner_steps();
    let rounds = |steps: u64| u32::try_from(steps / inner_steps).unwrap_or(u32::MAX);
    let phases = case.schedule.phase_at(case.schedule.total().saturating_sub(1));
    let training = TrainingRecord {
        origin: "chaos".to_owned(),
        rounds: rounds(case.schedule.total()),
        inner_steps,
        boundaries: (0..phases).map(|phase| rounds(case.schedule.end(phase))).collect(),
        phase: 0,
        shards: case.shards(0),
        modules,
        paths: case.topology.path_ids().map(of).collect(),
        numerics: None,
        numerics_token: None,
    };
    RunManifest { training: Some(training), ..RunManifest::new("chaos".to_owned()) }
}
