//! The next write of the manifest: drafted with the ledger, finished without it.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_ledger::{
    LeaseCompletion, LeaseReport, LeaseResult, Ledger, LedgerPlan, NewCheckpoint, ObjectRef, OuterStepDone,
    OuterStepOrder, PendingWrite, Recording, RunManifest, StepRecording, StoredResult, TrainingRecord,
    WritePart, names,
};
use dipaco_sync::{Grant, Lease, ProcessId, Schedule, ScheduledSend};
use support::{FRAGMENT, NOW, ask, lease, object, start_of, take_over_from};

/// The store of a run, by the names of its objects.
struct Disk {
    names: BTreeSet<String>,
    checkpoints: BTreeMap<String, TrainingRecord>,
    manifest: RunManifest,
}

impl Disk {
    fn put(&mut self, name: String) -> ObjectRef {
        self.names.insert(name.clone());
        object(&name)
    }

    /// Carries a write out, as a coordinator does. After each part the store has every object that a checkpoint or the manifest
    /// needs.
    fn write(&mut self, write: PendingWrite, ledger: &Ledger) {
        for part in write {
            match part {
                WritePart::Checkpoint(NewCheckpoint { object, content }) => {
                    assert_eq!(ObjectRef::of(object.name.clone(), &content), object);
                    self.names.insert(object.name.clone());
                    self.checkpoints.insert(object.name, serde_json::from_slice(&content).unwrap());
                }
                WritePart::Manifest { manifest, .. } => self.manifest = *manifest,
                WritePart::Deletions(names) => {
                    for name in ledger.unused(names) {
                        assert!(self.names.remove(&name), "{name} is deleted, and is not there");
                    }
                }
            }
            assert!(self.needed().is_subset(&self.names), "{:?} {:?}", self.needed(), self.names);
        }
    }

    fn needed(&self) -> BTreeSet<String> {
        let checkpoints = || self.manifest.checkpoints.iter().map(|record| record.object.name.clone());
        let trainings = checkpoints().map(|name| &self.checkpoints[&name]).chain(&self.manifest.training);
        let objects = trainings.flat_map(TrainingRecord::objects).map(|object| object.name.clone());
        objects.chain(checkpoints()).collect()
    }
}

/// A run of three paths through a module that keeps this many checkpoints.
fn begin(checkpoints: usize) -> (Ledger, Disk) {
    begin_from(|plan| plan.checkpoints = checkpoints)
}

/// A run of three paths through a module with a plan that `change` changes.
fn begin_from(change: impl FnOnce(&mut LedgerPlan)) -> (Ledger, Disk) {
    let manifest = start_of(3, 1);
    let names = manifest.training.as_ref().unwrap().objects().map(|object| object.name.clone()).collect();
    let disk = Disk { names, checkpoints: BTreeMap::new(), manifest: manifest.clone() };
    (take_over_from(manifest, change), disk)
}

/// Makes the next write, and carries it out.
fn write_next(ledger: &mut Ledger, disk: &mut Disk) {
    let write = ledger.poll_write().unwrap().finish().unwrap();
    disk.write(write, ledger);
}

/// Uploads a result that a lease makes after `step` inner steps of its path.
fn upload(ledger: &mut Ledger, disk: &mut Disk, lease: &Lease, item: LeaseResult, step: u64) {
    let object = disk.put(item.object_name(lease.key(), step, "hash"));
    let stored = StoredResult { object, norm: 1.0 };
    let recording = ledger.check_and_record(&lease.claim(), item, step, stored).unwrap();
    assert!(matches!(recording, Recording::Recorded), "{recording:?}");
}

/// Uploads the outer gradients of a lease.
fn send(ledger: &mut Ledger, disk: &mut Disk, lease: &Lease) {
    for &ScheduledSend { fragment, number, step } in &lease.sends {
        upload(ledger, disk, lease, LeaseResult::OuterGradient { fragment, number, tokens: 1 }, step);
    }
}

fn complete(ledger: &mut Ledger, lease: &Lease) {
    let completed = ledger.complete_lease(NOW, &lease.claim(), &LeaseReport::default()).unwrap();
    assert!(matches!(completed, LeaseCompletion::Accepted { .. }), "{completed:?}");
}

/// Uploads all results of a lease, and completes it.
fn train(ledger: &mut Ledger, disk: &mut Disk, lease: &Lease) {
    send(ledger, disk, lease);
    if lease.from < lease.to {
        upload(ledger, disk, lease, LeaseResult::State, lease.to);
    }
    complete(ledger, lease);
}

/// Takes the outer steps that are due.
fn step(ledger: &mut Ledger, disk: &mut Disk) {
    let own = ledger.own_fence();
    for done in carry_out(ledger, disk, own) {
        assert!(matches!(ledger.record_step(&done).unwrap(), StepRecording::Counts { .. }));
    }
}

/// Puts the objects of the outer steps that are due to the process with this fencing number into the store.
fn carry_out(ledger: &mut Ledger, disk: &mut Disk, fence: u64) -> Vec<OuterStepDone> {
    let orders = ledger.orders(NOW, fence).unwrap().orders;
    let carry_out = |OuterStepOrder { fragment, version, fence, .. }| OuterStepDone {
        fragment,
        version,
        fence,
        weights: disk.put(names::weights(fragment.module, fragment.index, version, fence)),
        momentum: disk.put(names::momentum(fragment.module, fragment.index, version, fence)),
        change: None,
        norm: 1.0,
        cosine: None,
        seconds: 0.0,
    };
    orders.into_iter().filter(|order| order.due).map(carry_out).collect()
}

/// Trains all paths until an outer step is due.
fn train_all(ledger: &mut Ledger, disk: &mut Disk) {
    while let Grant::Lease(lease) = ask(ledger, "a") {
        train(ledger, disk, &lease);
    }
}

/// Trains a round of all paths.
fn round(ledger: &mut Ledger, disk: &mut Disk) {
    train_all(ledger, disk);
    step(ledger, disk);
}

#[test]
fn a_draft_that_is_finished_later_has_the_training_of_its_time() {
    let [at_once, later] = [true, false].map(|at_once| {
        let (mut ledger, mut disk) = begin(2);
        let first = lease(&mut ledger, "a");
        train(&mut ledger, &mut disk, &first);
        let draft = ledger.poll_write().unwrap();
        let (before, after) = if at_once { (Some(draft), None) } else { (None, Some(draft)) };
        let before = before.map(|draft| draft.finish().unwrap());
        round(&mut ledger, &mut disk);
        let written = before.or_else(|| after.map(|draft| draft.finish().unwrap())).unwrap();
        let next = ledger.poll_write().unwrap().finish().unwrap();
        [written, next].map(|write| write.collect::<Vec<_>>())
    });
    assert_eq!(at_once, later);
    let training = later.map(|parts| {
        let manifest = parts.into_iter().find_map(|part| match part {
            WritePart::Manifest { manifest, .. } => Some(manifest),
            WritePart::Checkpoint(_) | WritePart::Deletions(_) => None,
        });
        manifest.unwrap().training.unwrap()
    });
    let waiting =
        training.map(|training| training.paths.iter().map(|path| path.gradients.len()).sum::<usize>());
    assert_eq!(waiting, [1, 0], "the outer gradient of one path waits in the first manifest");
}

#[test]
fn objects_of_checkpoints_stay_until_the_checkpoint_is_dropped() {
    for keep in [0, 1, 2] {
        let (mut ledger, mut disk) = begin(keep);
        let mut rounds = Vec::new();
        let mut draft = ledger.poll_write().unwrap();
        while !ledger.state().finished() {
            // The ledger goes on before the draft is encoded.
            round(&mut ledger, &mut disk);
            disk.write(draft.finish().unwrap(), &ledger);
            rounds.push(disk.manifest.checkpoints.iter().map(|record| record.round).collect::<Vec<_>>());
            draft = ledger.poll_write().unwrap();
        }
        disk.write(draft.finish().unwrap(), &ledger);
        let expected = match keep {
            0 => [vec![], vec![], vec![]],
            1 => [vec![0], vec![1], vec![2]],
            _ => [vec![0], vec![0, 1], vec![1, 2]],
        };
        assert_eq!(rounds, expected);
        assert_eq!(disk.manifest.checkpoints, [], "a complete run keeps none");
        assert_eq!(disk.names, disk.needed(), "nothing is left behind");
    }
}

#[test]
fn a_module_that_comes_back_to_the_coordinator_keeps_the_weights_that_count() {
    for back in [true, false] {
        let (mut ledger, mut disk) = begin(0);
        write_next(&mut ledger, &mut disk);
        train_all(&mut ledger, &mut disk);
        let own = ledger.own_fence();
        let late = carry_out(&mut ledger, &mut disk, own);
        assert_eq!(late.len(), 1);
        // A synchronizer gets the order while the coordinator takes the same outer step.
        let synchronizer = ProcessId::local("synchronizer");
        let claimed = ledger.claim_modules(NOW, &synchronizer, "there:1", &[FRAGMENT.module]).unwrap();
        let theirs = carry_out(&mut ledger, &mut disk, claimed.fence);
        assert!(matches!(ledger.record_step(&late[0]).unwrap(), StepRecording::Rejected));
        let taken = if back {
            // It leaves. The coordinator makes objects of the same names.
            assert_eq!(ledger.release_modules(NOW, &synchronizer), 1);
            let again = carry_out(&mut ledger, &mut disk, own);
            assert!(matches!(ledger.record_step(&theirs[0]).unwrap(), StepRecording::Rejected));
            again
        } else {
            theirs
        };
        assert!(matches!(ledger.record_step(&taken[0]).unwrap(), StepRecording::Counts { .. }));
        write_next(&mut ledger, &mut disk);
        assert_eq!(disk.names, disk.needed(), "nothing is left behind");
    }
}

#[test]
fn outer_gradients_of_leases_under_way_stay_no_longer_than_something_needs_them() {
    let early = Schedule::new(3, 1, 1, vec![6]).unwrap();
    let (mut ledger, mut disk) = begin_from(|plan| plan.schedule = early);
    let write = |ledger: &mut Ledger, disk: &mut Disk, when: &str| {
        write_next(ledger, disk);
        assert_eq!(disk.names, disk.needed(), "{when}");
    };
    let lost = lease(&mut ledger, "a");
    assert!(lost.sends.iter().all(|send| send.step < lost.to));
    send(&mut ledger, &mut disk, &lost);
    write(&mut ledger, &mut disk, "an outer gradient counts before the end of its lease");
    ledger.expire(Duration::from_secs(9));
    let leases = ["b", "c", "d"].map(|worker| lease(&mut ledger, worker));
    assert_eq!((leases[0].path, &leases[0].sends), (lost.path, &lost.sends));
    for lease in &leases {
        send(&mut ledger, &mut disk, lease);
        write(&mut ledger, &mut disk, "the successor of the lost lease sends it again");
    }
    step(&mut ledger, &mut disk);
    write(&mut ledger, &mut disk, "the outer step is taken before the leases end");
    send(&mut ledger, &mut disk, &leases[1]);
    write(&mut ledger, &mut disk, "a worker that has lost the answer sends again what is merged");
    leases.iter().for_each(|lease| complete(&mut ledger, lease));
    write(&mut ledger, &mut disk, "the leases are complete");
}
