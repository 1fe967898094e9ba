//! Paths whose training fails: for one worker, for several workers, and for the only worker.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use dipaco_protocol::{LeaseResult, Request, Response};
use dipaco_telemetry::Events;
use dipaco_train::{LeaseObserver, WorkerError, WorkerOptions, work};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use support::{Puppet, Run, config};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_diverges_for_two_workers_is_left_out_of_the_run() {
    let run = Run::seeded(config()).await;
    let stop = CancellationToken::new();
    let (coordinator, token) = run.coordinator(Events::off(), stop.clone()).await;
    let (first, second) = (Puppet::welcome(&token, "first").await, Puppet::welcome(&token, "second").await);
    let (of_first, of_second) = (first.lease().await, second.lease().await);
    let diverged = |lease| Request::Diverged { lease, step: 0 };
    // The claim of another worker counts for nothing.
    let foreign = second.ask(&diverged(of_first.key()), None).await.unwrap().0;
    assert!(matches!(foreign, Response::Lost { .. }), "{foreign:?}");
    assert_eq!(first.ask(&diverged(of_first.key()), None).await.unwrap().0, Response::Done);
    assert_ne!(first.lease().await.path, of_first.path, "the path waits for another worker");
    second.ask(&Request::Release, None).await.unwrap();
    let again = second.lease().await;
    assert_eq!((of_first.path.0, again.path, of_second.path.0), (0, of_first.path, 1));
    assert_eq!(second.ask(&diverged(again.key()), None).await.unwrap().0, Response::Done);
    // A restart keeps the quarantine.
    stop.cancel();
    drop((first, second));
    coordinator.await.unwrap().unwrap();
    let record = run.manifest().await.training.unwrap().paths[0].quarantine.clone().unwrap();
    assert_eq!(record.workers, ["first", "second"]);
    assert_eq!(record.reason, "its training diverged after inner step 0");

    let (coordinator, token) = run.coordinator(run.events(), CancellationToken::new()).await;
    let worker = run.spawn_worker(&token, "honest");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
    let training = run.manifest().await.training.unwrap();
    assert_eq!(training.paths[0].quarantine, Some(record));
    let rounds: Vec<u64> = run.completed_rounds().into_iter().map(|(round, _)| round).collect();
    assert_eq!(rounds, [0, 1, 2], "no round waits for the path");
    for (path, record) in training.paths.iter().enumerate() {
        let expected = if path == 0 { 0 } else { 12 };
        assert!(record.counted.iter().all(|counted| counted.steps == expected), "path {path}: {record:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_outer_gradient_the_guard_refuses_goes_on_with_other_paths() {
    let mut config = config();
    config.outer.guard = 10.0;
    let run = Run::seeded(config).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let (first, second) = (Puppet::welcome(&token, "first").await, Puppet::welcome(&token, "second").await);
    // Two rounds of four paths: four outer gradients of each module, with which the guard compares.
    for _ in 0..4 {
        for puppet in [&first, &second] {
            let work = puppet.lease().await;
            puppet.carry_out(&run, &work, 0.5).await;
        }
    }
    let work = first.lease().await;
    let send = work.sends[0];
    let values = run.values_of(send.fragment);
    let item = LeaseResult::OuterGradient { fragment: send.fragment, number: send.number, tokens: 1 };
    let lost = first.submit_gradient(&work, item, (values, 500.0)).await;
    assert!(matches!(&lost, Response::Lost { reason } if reason.contains("outer.guard")), "{lost:?}");
    // The worker gets another path, and the other worker may try this one.
    assert_ne!(first.lease().await.path, work.path);
    assert_eq!(second.lease().await.path, work.path);
    for puppet in [first, second] {
        puppet.ask(&Request::Release, None).await.unwrap();
    }
    let worker = run.spawn_worker(&token, "honest");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_worker_ends_with_the_divergence() {
    let mut config = config();
    config.train.adamw.learning_rate = 1e30;
    let run = Run::seeded(config).await;
    let stop = CancellationToken::new();
    let (coordinator, token) = run.coordinator(Events::off(), stop.clone()).await;
    let ended = run.spawn_worker(&token, "alone").await.unwrap();
    assert!(matches!(ended, Err(WorkerError::Diverged { .. })), "{ended:?}");
    stop.cancel();
    coordinator.await.unwrap().unwrap();
    let training = run.manifest().await.training.unwrap();
    assert!(training.paths.iter().all(|path| path.quarantine.is_none()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_last_inner_step_leaves_no_numbers_reports_it_and_goes_on_with_other_paths() {
    let mut config = config();
    // Loss and gradient of the only step of a lease are finite, and each weight after it is not.
    config.train.inner_steps = 1;
    config.train.adamw.learning_rate = 1e45;
    let run = Run::seeded(config).await;
    let stop = CancellationToken::new();
    let (coordinator, token) = run.coordinator(Events::off(), stop.clone()).await;
    let other = Puppet::welcome(&token, "other").await;
    let kept = other.lease().await;
    let asked = Arc::new(Notify::new());
    let noted = asked.clone();
    let observer = Some(LeaseObserver::new(move |_| noted.notify_one()));
    let options = WorkerOptions { observer, ..run.worker(&token, "honest") };
    let worker = tokio::spawn(work(options, CancellationToken::new()));
    // From its first lease on the coordinator knows that there is another worker.
    asked.notified().await;
    // Each other path fails for both, in the order in which they get it.
    for _ in 0..3 {
        let work = other.lease().await;
        assert_ne!(work.path, kept.path);
        let diverged = Request::Diverged { lease: work.key(), step: work.from };
        assert_eq!(other.ask(&diverged, None).await.unwrap().0, Response::Done);
    }
    // The worker has one more path to try, and ends because every path has failed for everybody.
    let diverged = Request::Diverged { lease: kept.key(), step: kept.from };
    assert_eq!(other.ask(&diverged, None).await.unwrap().0, Response::Done);
    let ended = worker.await.unwrap();
    let is_reported = |error: &WorkerError| match error {
        WorkerError::Diverged { step, source, .. } => {
            *step == 0 && source.to_string().contains("of the outer gradient of fragment")
        }
        _ => false,
    };
    assert!(ended.as_ref().is_err_and(is_reported), "{ended:?}");
    stop.cancel();
    drop(other);
    coordinator.await.unwrap().unwrap();
    let training = run.manifest().await.training.unwrap();
    let failed = training.paths.iter().filter_map(|path| path.quarantine.as_ref());
    let of_both = failed.filter(|record| {
        let mut workers = record.workers.clone();
        workers.sort();
        workers == ["honest", "other"]
    });
    assert_eq!(of_both.count(), 3);
}
