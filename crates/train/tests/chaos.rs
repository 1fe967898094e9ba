//! Disturbed runs over loopback: their results are those of an undisturbed run.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime};

use dipaco_codec::Compression;
use dipaco_protocol::{FetchSource, LeaseResult, Request, Response};
use dipaco_store::StoreError;
use dipaco_sync::Fence;
use dipaco_telemetry::Events;
use dipaco_train::client::{TokenPlace, TokenSource};
use dipaco_train::{
    CoordinatorError, LeaseMoment, LeaseObserver, LeaseStage, TrainError, WorkerOptions, coordinate,
    take_over, work,
};
use tokio_util::sync::CancellationToken;

use support::{Puppet, Run, config};

async fn undisturbed() -> Vec<String> {
    let run = Run::seeded(config()).await;
    run.train(1).await;
    run.bits().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_that_is_stopped_again_and_again_makes_the_same_bits() {
    let run = Run::seeded(config()).await;
    let (mut server, token) = run.server().await;
    let address = server.local_addr();
    let leave = CancellationToken::new();
    let workers = ["a", "b"].map(|name| tokio::spawn(work(run.worker(&token, name), leave.clone())));
    let mut stops = 0;
    loop {
        let started = run.start(true).await.unwrap();
        let stop = CancellationToken::new();
        // Both workers join, and the coordinator stops a few leases or outer steps later.
        let events = run.events_until(5 + stops % 3, &stop);
        if coordinate(run.options(started, events), server, stop).await.unwrap().finished {
            break;
        }
        stops += 1;
        (server, _) = run.server_at(address).await;
    }
    // A worker that was still connecting when the other finished the run would try until its patience ends.
    leave.cancel();
    for worker in workers {
        worker.await.unwrap().unwrap();
    }
    assert!(stops > 2, "stopped {stops} times");
    assert_eq!(run.bits().await, undisturbed().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_follows_its_coordinator_when_another_run_has_the_old_address() {
    let (run, other) = (Run::seeded(config()).await, Run::seeded(config()).await);
    let (server, token) = run.server().await;
    let address = server.local_addr();
    let place = run.folder.path().join("join.token");
    std::fs::write(&place, token.to_string()).unwrap();
    let source = TokenSource::Join(TokenPlace::named(&place).unwrap());
    let worker = WorkerOptions { source, ..run.worker(&token, "worker") };
    let worker = tokio::spawn(work(worker, CancellationToken::new()));
    let stop = CancellationToken::new();
    let (started, events) = (run.start(true).await.unwrap(), run.events_until(3, &stop));
    assert!(!coordinate(run.options(started, events), server, stop).await.unwrap().finished);

    // The worker meets another run, and only its token's place knows where the coordinator is.
    let (server, _) = other.server_at(address).await;
    let started = other.start(true).await.unwrap();
    let leave = CancellationToken::new();
    let foreign = tokio::spawn(coordinate(other.options(started, Events::off()), server, leave.clone()));
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    assert_ne!(token.addresses, [address.to_string()]);
    std::fs::write(&place, token.to_string()).unwrap();
    worker.await.unwrap().unwrap();
    assert!(coordinator.await.unwrap().unwrap().finished);
    leave.cancel();
    assert!(!foreign.await.unwrap().unwrap().finished);
    assert_eq!(run.bits().await, undisturbed().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_of_a_worker_that_vanished_is_repeated() {
    let mut config = config();
    config.train.lease_seconds = 1;
    let run = Run::seeded(config).await;
    let (third, never) = (CancellationToken::new(), CancellationToken::new());
    let (coordinator, token) = run.coordinator(run.events_until(3, &third), never).await;
    let vanishing = run.spawn_worker(&token, "vanishing");
    third.cancelled().await;
    vanishing.abort();
    let silent = Puppet::welcome(&token, "silent").await;
    let lease = silent.lease().await;
    let other = run.spawn_worker(&token, "other");
    other.await.unwrap().unwrap();
    drop(silent);
    assert!(coordinator.await.unwrap().unwrap().finished);
    let log = std::fs::read_to_string(run.folder.path().join("metrics.jsonl")).unwrap();
    let expired = format!(
        r#""path":{},"round":{},"worker":"silent""#,
        lease.path,
        lease.from / run.config.train.inner_steps
    );
    assert!(log.lines().any(|line| line.contains("lease_expired") && line.contains(&expired)), "{log}");
    assert_eq!(run.bits().await, undisturbed().await);
}

/// The stages that a worker's leases have reached.
#[derive(Default)]
struct Stages {
    reached: Mutex<Vec<(Fence, LeaseStage)>>,
    changed: Condvar,
}

/// How often the worker's lease with this number has reached a stage. A repetition also reaches those of a training.
fn times(reached: &[(Fence, LeaseStage)], number: usize, stage: LeaseStage) -> usize {
    let granted = reached.iter().filter(|(_, stage)| *stage == LeaseStage::Granted).nth(number);
    granted.map_or(0, |&(fence, _)| reached.iter().filter(|moment| **moment == (fence, stage)).count())
}

impl Stages {
    /// Lets the first lease end when the second one is prefetched, so that nothing waits for its upload. Lets the repetition
    /// of the second lease wait for the completion of the first.
    fn observe(&self, moment: LeaseMoment) {
        let mut reached = self.reached.lock().unwrap();
        reached.push((moment.lease.fence, moment.stage));
        self.changed.notify_all();
        let (number, stage) = match moment.stage {
            // The first time is that of a repetition.
            LeaseStage::Trained if times(&reached, 0, LeaseStage::Trained) == 2 => (1, LeaseStage::Fetched),
            LeaseStage::Loaded if times(&reached, 1, LeaseStage::Loaded) == 1 => (0, LeaseStage::Completed),
            _ => return,
        };
        let limit = Duration::from_secs(30);
        let waited =
            self.changed.wait_timeout_while(reached, limit, |it| times(it, number, stage) == 0).unwrap().1;
        assert!(!waited.timed_out(), "lease {number} has not reached the stage {stage:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_completed_while_its_worker_repeats_steps_of_another_path() {
    let mut config = config();
    (config.train.rounds, config.train.state_every, config.train.held_paths) = (2, 100, 4);
    let run = Run::seeded(config).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let vanishing = Puppet::welcome(&token, "worker").await;
    for _ in 0..4 {
        let lease = vanishing.lease().await;
        vanishing.carry_out(&run, &lease, 0.001).await;
    }
    drop(vanishing);
    let stages = Arc::new(Stages::default());
    let observing = stages.clone();
    let observer = Some(LeaseObserver::new(move |moment| observing.observe(moment)));
    // Under the same name: the coordinator waits no more for the states of the vanished worker.
    let options = WorkerOptions { observer, ..run.worker(&token, "worker") };
    let summary = work(options, CancellationToken::new()).await.unwrap();
    assert_eq!((summary.leases, summary.lost), (4, 0));
    assert!(coordinator.await.unwrap().unwrap().finished);
    let reached = stages.reached.lock().unwrap();
    assert_eq!([0, 1].map(|number| times(&reached, number, LeaseStage::Loaded)), [2, 2], "{reached:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_removes_the_unfinished_downloads_of_a_killed_worker() {
    let mut config = config();
    config.train.rounds = 1;
    let run = Run::seeded(config).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let options = run.worker(&token, "worker");
    let [unfinished, other] = [format!(".{}.h5a1B2c3.tmp", run.shards[0].hash), ".notes.tmp".to_owned()]
        .map(|name| options.cache.join(name));
    std::fs::create_dir_all(&options.cache).unwrap();
    for file in [&unfinished, &other] {
        let two_hours_ago = SystemTime::now() - Duration::from_secs(7200);
        std::fs::File::create(file).unwrap().set_modified(two_hours_ago).unwrap();
    }
    work(options, CancellationToken::new()).await.unwrap();
    assert!(coordinator.await.unwrap().unwrap().finished);
    assert_eq!([unfinished, other].map(|file| file.exists()), [false, true]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_frees_the_lease_of_its_predecessor() {
    let mut config = config();
    // Far longer than the test: the lease must not simply expire.
    config.train.lease_seconds = 3600;
    let run = Run::seeded(config).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let puppet = Puppet::welcome(&token, "same").await;
    let old = puppet.lease().await;
    drop(puppet);
    let worker = run.spawn_worker(&token, "same");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
    assert_eq!(old.from, 0);
    assert_eq!(run.bits().await, undisturbed().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_coordinator_fails_at_its_next_write() {
    let run = Run::seeded(config()).await;
    let (older, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    Puppet::welcome(&token, "first").await;
    let (newer, new_token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    Puppet::welcome(&new_token, "second").await;
    let stop = CancellationToken::new();
    let deceived = tokio::spawn(work(run.worker(&token, "deceived"), stop.clone()));
    let error = older.await.unwrap().unwrap_err();
    assert!(
        matches!(error, CoordinatorError::Core(TrainError::Store(StoreError::Conflict { .. }))),
        "{error}"
    );
    stop.cancel();
    deceived.await.unwrap().unwrap();
    let worker = run.spawn_worker(&new_token, "worker");
    assert!(newer.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
    assert_eq!(run.bits().await, undisturbed().await);
}

/// Its own manifest still names what the newer one has deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_coordinator_that_misses_an_object_tells_of_the_other_one() {
    let run = Run::seeded(config()).await;
    let (older, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let puppet = Puppet::welcome(&token, "puppet").await;
    let taken = take_over(&run.store, run.start(true).await.unwrap()).await.unwrap();
    let weights = taken.manifest.training.unwrap().modules[0].fragments[0].weights.clone();
    run.store.delete(&weights.name).await.unwrap();
    let fetch = Request::Fetch { source: FetchSource::Object(weights), offset: 0 };
    assert!(puppet.ask(&fetch, None).await.is_err(), "the coordinator ends without an answer");
    let error = older.await.unwrap().unwrap_err();
    assert!(
        matches!(error, CoordinatorError::Core(TrainError::Store(StoreError::Conflict { .. }))),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_coordinator_takes_the_run_over_although_the_older_one_has_written_meanwhile() {
    let run = Run::seeded(config()).await;
    let early = run.start(true).await.unwrap();
    let (older, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    // The older one has replaced the manifest before it answers.
    Puppet::welcome(&token, "first").await;
    let written = run.manifest().await;
    assert!(written.incarnation > early.manifest.incarnation);
    let taken = take_over(&run.store, early).await.unwrap();
    assert_eq!(taken.manifest, written);
    let stop = CancellationToken::new();
    let deceived = tokio::spawn(work(run.worker(&token, "deceived"), stop.clone()));
    let error = older.await.unwrap().unwrap_err();
    assert!(
        matches!(error, CoordinatorError::Core(TrainError::Store(StoreError::Conflict { .. }))),
        "{error}"
    );
    stop.cancel();
    deceived.await.unwrap().unwrap();
    let (server, token) = run.server().await;
    let options = run.options(taken, Events::off());
    let newer = tokio::spawn(coordinate(options, server, CancellationToken::new()));
    let worker = run.spawn_worker(&token, "worker");
    assert!(newer.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
    assert_eq!(run.bits().await, undisturbed().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_of_the_event_file_and_an_unreadable_list_of_revoked_tokens_end_no_training() {
    let run = Run::seeded(config()).await;
    let events = Events::create(Path::new("/dev/full")).unwrap();
    let (coordinator, token) = run.coordinator(events, CancellationToken::new()).await;
    // The list has been looked at for this answer.
    Puppet::welcome(&token, "first").await;
    let revoked = run.folder.path().join("revoked");
    // A link to itself can't be opened, also not by root, and it is not absent.
    std::os::unix::fs::symlink(&revoked, &revoked).unwrap();
    let worker = run.spawn_worker(&token, "worker");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
    assert_eq!(run.bits().await, undisturbed().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_lost_its_lease_is_told_so() {
    let run = Run::seeded(config()).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let puppet = Puppet::welcome(&token, "puppet").await;
    let work = puppet.lease().await;
    let item = LeaseResult::OuterGradient { fragment: work.weights[0].fragment, number: 1, tokens: 1 };
    let gradient = dipaco_codec::encode(&[0.5; 4], Compression::F32).unwrap();
    puppet.ask(&Request::Release, None).await.unwrap();

    let answer = puppet.submit(&work, item, gradient.into()).await.unwrap();
    assert!(matches!(answer, Response::Lost { .. }), "{answer:?}");
    let complete = Request::Complete { lease: work.key(), report: dipaco_protocol::LeaseReport::default() };
    let beat =
        Request::Heartbeat { lease: work.key(), step: u64::MAX, repeated: u64::MAX, loss: Some(f32::NAN) };
    for request in [complete, beat] {
        let answer = puppet.ask(&request, None).await.unwrap().0;
        assert!(matches!(answer, Response::Lost { .. }), "{request:?}: {answer:?}");
    }
    drop(puppet);
    let worker = run.spawn_worker(&token, "worker");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
    assert_eq!(run.bits().await, undisturbed().await);
}
