//! A path that goes into quarantine goes back to a checkpoint before its last completed lease.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;

use dipaco_ledger::{
    CheckpointRecord, EarlyStoppingBest, FailureDecision, LeaseCompletion, LeaseReport, LeaseResult, Ledger,
    LedgerPlan, ModuleRecord, NewCheckpoint, ObjectRef, OuterStepDone, OuterStepOrder, QuarantineRecord,
    Recording, RunManifest, SavedCheckpoint, StepRecording, StoredResult, StoredRun, TrainingFailure,
    TrainingRecord, WritePart, names,
};
use dipaco_sync::{FragmentId, Lease, Schedule, ScheduledSend};
use dipaco_topology::{ModuleId, PathId};
use support::{FRAGMENT, NOW, ask_as, lease, object, start_of, take_over_stored};

const PATHS: u32 = 3;
const BAD: PathId = PathId(0);
/// The only fragment of the module that only path 0 trains.
const OWN: FragmentId = FragmentId { module: ModuleId { level: 1, index: 0 }, index: 0 };

/// Four rounds of four steps by three paths, which share a module of the first level. Each has its own of the second.
fn start() -> RunManifest {
    let mut manifest = start_of(PATHS, 2);
    let training = manifest.training.as_mut().unwrap();
    (training.rounds, training.inner_steps) = (4, 4);
    let first = training.modules[1].fragments.clone();
    training.modules.truncate(1);
    let own = |index| ModuleRecord { module: ModuleId { level: 1, index }, fragments: first.clone() };
    training.modules.extend((0..PATHS).map(own));
    for record in &mut training.modules {
        record.fragments[0].weights = object(&names::weights(record.module, 0, 0, 0));
    }
    manifest
}

/// A ledger, and the store that holds its objects.
struct Run {
    ledger: Ledger,
    overlap: u64,
    checkpoints: usize,
    store: BTreeSet<String>,
    saved: Vec<SavedCheckpoint>,
    manifest: RunManifest,
}

impl Run {
    /// Begins a run that keeps so many checkpoints, and writes its manifest.
    fn begin(overlap: u64, checkpoints: usize) -> Self {
        let manifest = start();
        let store = manifest.training.as_ref().unwrap().objects().map(|object| object.name.clone()).collect();
        let stored = StoredRun { manifest: manifest.clone(), checkpoints: Vec::new(), names: Vec::new() };
        let ledger = take_over_stored(stored, plan(overlap, checkpoints));
        let mut run = Self { ledger, overlap, checkpoints, store, saved: Vec::new(), manifest };
        run.write();
        run
    }

    /// Another coordinator takes the run over.
    fn restart(&mut self) {
        let kept = &self.manifest.checkpoints;
        self.saved.retain(|saved| kept.contains(&saved.record));
        let names = self.store.iter().cloned().collect();
        let stored = StoredRun { manifest: self.manifest.clone(), checkpoints: self.saved.clone(), names };
        self.ledger = take_over_stored(stored, plan(self.overlap, self.checkpoints));
        self.write();
    }

    fn put(&mut self, name: &str) -> ObjectRef {
        self.store.insert(name.to_owned());
        object(name)
    }

    /// Writes the manifest and deletes what is obsolete. Everything that the manifest and the checkpoints name stays.
    fn write(&mut self) -> &TrainingRecord {
        while let Some(draft) = self.ledger.poll_write() {
            for part in draft.finish().unwrap() {
                match part {
                    WritePart::Checkpoint(NewCheckpoint { object, content }) => {
                        self.store.insert(object.name.clone());
                        let training: TrainingRecord = serde_json::from_slice(&content).unwrap();
                        let record = CheckpointRecord { round: training.rounds_done(), object };
                        self.saved.push(SavedCheckpoint { record, training });
                    }
                    WritePart::Manifest { manifest, .. } => self.manifest = *manifest,
                    WritePart::Deletions(names) => {
                        for name in names {
                            assert!(self.store.remove(&name), "{name} was no object");
                        }
                    }
                }
            }
            let kept = self.saved.iter().filter(|saved| self.manifest.checkpoints.contains(&saved.record));
            let trainings = kept.map(|saved| &saved.training).chain(&self.manifest.training);
            for object in trainings.flat_map(TrainingRecord::objects) {
                assert!(self.store.contains(&object.name), "{} is named and deleted", object.name);
            }
        }
        self.manifest.training.as_ref().unwrap()
    }

    fn upload(&mut self, lease: &Lease, item: LeaseResult, step: u64) {
        let object = self.put(&item.object_name(lease.key(), step, "hash"));
        let stored = StoredResult { object, norm: 1.0 };
        let recording = self.ledger.check_and_record(&lease.claim(), item, step, stored).unwrap();
        assert!(matches!(recording, Recording::Recorded), "{recording:?}");
    }

    fn send(&mut self, lease: &Lease) {
        for &ScheduledSend { fragment, number, step } in &lease.sends {
            self.upload(lease, LeaseResult::OuterGradient { fragment, number, tokens: 1 }, step);
        }
    }

    /// A worker completes a lease of this path.
    fn train(&mut self, worker: &str, path: PathId) {
        let lease = lease(&mut self.ledger, worker);
        assert_eq!(lease.path, path);
        self.complete(&lease);
    }

    /// The worker of a lease uploads its results and completes it.
    fn complete(&mut self, lease: &Lease) {
        self.send(lease);
        self.upload(lease, LeaseResult::State, lease.to);
        // Each measurement is better than the one before it.
        let held_out_loss = Some(9.0 - lease.from as f64 / 10.0);
        let report = LeaseReport { held_out_loss, ..LeaseReport::default() };
        let completed = self.ledger.complete_lease(NOW, &lease.claim(), &report).unwrap();
        assert!(matches!(completed, LeaseCompletion::Accepted { .. }), "{completed:?}");
    }

    fn due(&mut self) -> Vec<OuterStepOrder> {
        let orders = self.ledger.orders(NOW, self.ledger.own_fence()).unwrap().orders;
        orders.into_iter().filter(|order| order.due).collect()
    }

    /// Takes an outer step.
    fn take(&mut self, order: &OuterStepOrder) {
        for input in [&order.weights].into_iter().chain(&order.momentum) {
            assert!(self.store.contains(&input.name), "the synchronizer reads {}", input.name);
        }
        let &OuterStepOrder { fragment, version, fence, .. } = order;
        let FragmentId { module, index } = fragment;
        let done = OuterStepDone {
            fragment,
            version,
            fence,
            weights: self.put(&names::weights(module, index, version, fence)),
            momentum: self.put(&names::momentum(module, index, version, fence)),
            change: None,
            norm: 1.0,
            cosine: None,
            seconds: 0.0,
        };
        let recorded = self.ledger.record_step(&done).unwrap();
        assert!(matches!(recorded, StepRecording::Counts { .. }), "{recorded:?}");
    }

    fn take_all(&mut self) {
        loop {
            let due = self.due();
            if due.is_empty() {
                break;
            }
            due.iter().for_each(|order| self.take(order));
        }
    }

    /// The worker "a" completes a round of these paths.
    fn round(&mut self, paths: impl Iterator<Item = u32>) {
        paths.for_each(|path| self.train("a", PathId(path)));
        self.take_all();
        self.write();
    }

    /// The bad path diverges for this worker.
    fn diverges(&mut self, worker: &str) -> FailureDecision {
        let lease = lease(&mut self.ledger, worker);
        assert_eq!(lease.path, BAD);
        let failure = TrainingFailure::Diverged { step: lease.from };
        self.ledger.training_failed(&lease.claim(), &failure).unwrap()
    }

    /// The bad path diverges for two workers.
    fn quarantine(&mut self) -> QuarantineRecord {
        let first = self.diverges("a");
        assert!(matches!(first, FailureDecision::Retried | FailureDecision::Alone), "{first:?}");
        let FailureDecision::Quarantined(record) = self.diverges("b") else { panic!("no quarantine") };
        record
    }
}

fn plan(overlap: u64, checkpoints: usize) -> impl FnOnce(&mut LedgerPlan) {
    move |plan| {
        plan.schedule = Schedule::new(4, 1, overlap, vec![16]).unwrap();
        (plan.state_every, plan.checkpoints) = (1, checkpoints);
    }
}

/// The last completed lease of the bad path in a record, and the token that completed it.
fn completed(training: &TrainingRecord) -> (Option<u64>, Option<String>) {
    let path = training.path(BAD).unwrap();
    (path.fence, path.completed_by.clone())
}

/// State and own weights of the bad path in a record.
fn of_bad(training: &TrainingRecord) -> (Option<ObjectRef>, ObjectRef, Option<ObjectRef>) {
    let own = training.fragment(OWN.module, OWN.index).unwrap();
    let path = training.path(BAD).unwrap();
    (path.state.clone(), own.weights.clone(), own.momentum.clone())
}

#[test]
fn the_path_and_its_own_module_go_back_to_before_its_last_completed_lease() {
    let mut run = Run::begin(0, 2);
    run.round(0..PATHS);
    let good = of_bad(run.write());
    run.round(0..PATHS);
    let bad = of_bad(run.write());
    let others = run.write().paths[1].clone();
    assert!(good.0.is_some() && good.0 != bad.0 && good.1 != bad.1 && good.2 != bad.2);
    let rounds: Vec<_> = run.manifest.checkpoints.iter().map(|checkpoint| checkpoint.round).collect();
    assert_eq!(rounds, [1, 2], "the newest checkpoint has the bad state too");

    let record = run.quarantine();
    assert_eq!((record.step, record.back_to), (8, Some(1)));
    assert_eq!(record.workers, ["a", "b"]);
    let training = run.write().clone();
    assert_eq!(of_bad(&training), good);
    assert_eq!(training.paths[1], others, "the other paths stay");
    let shared = training.fragment(FRAGMENT.module, FRAGMENT.index).unwrap();
    let own = training.fragment(OWN.module, OWN.index).unwrap();
    assert_eq!((shared.version, own.version), (2, 2));
    assert!(shared.weights.name.contains("/2-"), "other paths train this module: {}", shared.weights.name);

    // A restart keeps the state, and so do outer steps of the module and the end of the checkpoint.
    run.restart();
    assert_eq!(of_bad(run.write()), good);
    for _ in 0..2 {
        run.round(1..PATHS);
        let training = run.write();
        assert_eq!(of_bad(training), good);
        assert_eq!(training.path(BAD).unwrap().quarantine.as_ref(), Some(&record));
    }
    assert!(run.manifest.checkpoints.iter().all(|checkpoint| checkpoint.round > 1), "the checkpoint is gone");
    for gone in [bad.0.unwrap(), bad.1, bad.2.unwrap()] {
        assert!(!run.store.contains(&gone.name), "{} is left over", gone.name);
    }
    for path in [PathId(1), PathId(2)] {
        let last = lease(&mut run.ledger, "a");
        assert_eq!((last.path, last.from, last.to), (path, 16, 16));
        run.ledger.complete_lease(NOW, &last.claim(), &LeaseReport::default()).unwrap();
    }
    run.write();
    assert!(run.ledger.state().finished());
}

#[test]
fn the_record_of_a_path_that_goes_back_names_who_completed_the_lease_of_its_state() {
    let mut run = Run::begin(0, 2);
    run.round(0..PATHS);
    let good = completed(run.write());
    // A worker of another token completes the lease whose state the path loses again.
    let of_other = |run: &mut Run| ask_as(&mut run.ledger, "other", "b");
    let lease = of_other(&mut run);
    assert_eq!(lease.path, BAD);
    run.complete(&lease);
    (1..PATHS).for_each(|path| run.train("a", PathId(path)));
    run.take_all();
    let bad = completed(run.write());
    assert!(good.0 != bad.0 && good.1 != bad.1, "{good:?} {bad:?}");
    // Workers of one token would be one account, because the other token can try the path.
    assert_eq!(run.diverges("a"), FailureDecision::Retried);
    let lease = of_other(&mut run);
    let failure = TrainingFailure::Diverged { step: lease.from };
    let decided = run.ledger.training_failed(&lease.claim(), &failure).unwrap();
    assert!(matches!(decided, FailureDecision::Quarantined(_)), "{decided:?}");
    assert_eq!(completed(run.write()), good);
}

#[test]
fn without_an_earlier_state_the_path_keeps_its_last_one() {
    for (checkpoints, rounds) in [(0, 2), (1, 2), (2, 0)] {
        let mut run = Run::begin(0, checkpoints);
        for _ in 0..rounds {
            run.round(0..PATHS);
        }
        let before = of_bad(run.write());
        assert_eq!(run.quarantine().back_to, None, "{checkpoints} checkpoints");
        assert_eq!(of_bad(run.write()), before);
        run.take_all();
        assert_eq!(of_bad(run.write()).1, before.1, "nobody trains its own module");
    }
}

#[test]
fn an_ordered_outer_step_of_its_own_module_finds_its_inputs_and_changes_nothing() {
    // Paths send in the middle of a lease. The bad path completes one more lease than the others, so that no checkpoint has
    // the weights to which it contributes then.
    let mut run = Run::begin(2, 2);
    run.round(0..PATHS);
    let good = of_bad(run.write());
    run.train("a", BAD);
    for worker in ["c", "d"] {
        let lease = lease(&mut run.ledger, worker);
        run.send(&lease);
    }
    run.take_all();
    let sends = lease(&mut run.ledger, "a");
    assert_eq!((sends.path, sends.from), (BAD, 8));
    run.send(&sends);
    let due = run.due();
    let [order] = due.as_slice() else { panic!("{due:?}") };
    assert_eq!((order.fragment, order.version, order.shares.len()), (OWN, 3, 1));
    let failure = TrainingFailure::Diverged { step: 11 };
    assert_eq!(run.ledger.training_failed(&sends.claim(), &failure).unwrap(), FailureDecision::Retried);
    let FailureDecision::Quarantined(record) = run.diverges("b") else { panic!("no quarantine") };
    assert_eq!(record.back_to, Some(1));
    assert_eq!(of_bad(run.write()), good);
    run.take(order);
    let training = run.write().clone();
    assert_eq!(of_bad(&training), good);
    assert_eq!(training.fragment(OWN.module, OWN.index).unwrap().version, 3, "the step counts");
    assert!(training.path(BAD).unwrap().gradients.iter().all(|gradient| gradient.module != OWN.module));
    assert!(!run.store.contains(&order.weights.name), "nobody reads these weights after the step");
}

#[test]
fn a_measurement_of_replaced_weights_is_forgotten() {
    let mut run = Run::begin(0, 2);
    run.round(0..PATHS);
    run.round(0..PATHS);
    // The best weights are version 1 of both modules, and version 2 is the newest.
    let measured = |run: &mut Run| run.write().path(BAD).unwrap().best.clone();
    let best = measured(&mut run).unwrap();
    assert_eq!((best.round, best.versions.as_slice()), (1, &[1, 1][..]));
    run.quarantine();
    assert_eq!(measured(&mut run), Some(best), "these weights are kept");

    let mut run = Run::begin(0, 2);
    run.round(0..PATHS);
    run.round(0..PATHS);
    let mut manifest = run.manifest.clone();
    let newest = EarlyStoppingBest { round: 2, versions: vec![2, 2], loss: 1.0 };
    manifest.training.as_mut().unwrap().paths[BAD.index()].best = Some(newest);
    run.manifest = manifest;
    run.restart();
    run.quarantine();
    assert_eq!(measured(&mut run), None);
}
