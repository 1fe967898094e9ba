//! The end of a lease leaves no uploads, and an impossible report spoils no sum.

use std::fs::{File, read_to_string};

use dipaco_config::RunConfig;
use dipaco_protocol::PIECE_BYTES;
use dipaco_telemetry::{Events, Progress, SystemClock, read_events};

use super::*;
use crate::coordinator::RunningCoordinator;
use crate::coordinator::requests::leases::StepsTaken;
use crate::coordinator::requests::test_support::{WAIT, granted, pass, record, two_paths, worker};
use crate::coordinator::run_progress::{RunProgress, RunReach, WorkerTime};

#[tokio::test]
async fn a_lease_that_diverges_before_it_is_current_leaves_no_upload_of_the_current_one() {
    let overlaps = |config: &mut RunConfig| (config.sync.quorum, config.sync.overlap_steps) = (2, 2);
    let RunningCoordinator { requests, writer: _writer, .. } = two_paths(1, overlaps).await;
    let [a, b] = ["a", "b"].map(worker);
    let current = granted(requests.lease(&a, &[], WAIT).await);
    granted(requests.lease(&b, &[], WAIT).await);
    let following = granted(requests.follow(&a, current.key(), WAIT).await);
    assert_eq!((following.path, following.from), (current.path, current.to));
    // The first piece of two.
    let digest = ContentDigest { bytes: PIECE_BYTES + 1, ..ContentDigest::of(&[]) };
    let claim = a.claim(current.key());
    let piece = UploadedPiece { claim, item: LeaseResult::State, digest, offset: 0 };
    let uploads = &requests.intake.uploads;
    let Err(key) = uploads.find(&piece) else { panic!("nobody has begun the upload") };
    uploads.begin(key, &piece, AdmittedUpload::default());
    let (answer, _) = requests.diverged(&a.claim(following.key()), following.from).await.unwrap();
    assert_eq!(answer, Response::Done);
    assert!(!requests.ledger().is_out(&piece.claim), "it ends with the lease that follows it");
    assert!(uploads.oldest_leases(1).is_empty());
}

#[tokio::test]
async fn impossible_times_and_losses_spoil_no_sum() {
    let folder = tempfile::tempdir().unwrap();
    let [file, display] = ["metrics.jsonl", "display"].map(|name| folder.path().join(name));
    let RunningCoordinator { mut requests, writer: _writer, .. } = two_paths(1, |_| ()).await;
    let (events, begin) = (Events::create(&file).unwrap(), RunReach { rounds: 0, steps: 0 });
    let steps = requests.intake.plan.train.inner_steps;
    let shown = Progress::plain(Box::new(File::create(&display).unwrap()), Arc::new(SystemClock::start()));
    let progress = RunProgress::new(&shown, events, steps, begin, 0, 2 * steps);
    Arc::get_mut(&mut requests).unwrap().progress = Arc::new(progress);
    pass(&mut requests, Duration::from_secs(100), true);
    let before = requests.now();
    for (peer, number) in ["liar", "truthful"].map(worker).iter().zip([1e308, 3.0]) {
        let lease = granted(requests.lease(peer, &[], WAIT).await);
        let taken = StepsTaken { step: 1, repeated: 0, loss: Some(number as f32) };
        assert_eq!(requests.heartbeat(&peer.claim(lease.key()), taken).0, Response::Done);
        record(&requests, peer, &lease).await;
        let report = LeaseReport {
            loss: Some(number),
            held_out_loss: Some(number),
            seconds: number,
            waited_seconds: number,
            ..LeaseReport::default()
        };
        let (completed, _) = requests.complete_lease(&peer.claim(lease.key()), report).await.unwrap();
        assert_eq!(completed, Response::Done);
    }
    let (now, WorkerTime { inner, waited }) = (requests.now(), requests.progress.worker_time());
    let since = (now - before).as_secs_f64();
    assert!((0.0..=2.0 * since).contains(&inner), "{inner} of {since}");
    // The honest worker has waited for its lease, and the liar no longer than the coordinator runs.
    assert!((103.0..=3.0 + now.as_secs_f64()).contains(&waited), "{waited}");
    let (mut rounds, mut held_out) = (Vec::new(), Vec::new());
    for record in read_events(&file).unwrap() {
        match record.unwrap().event {
            Event::RoundCompleted { loss, .. } => rounds.push(loss),
            Event::PathCompleted { heldout_loss, .. } => held_out.push(heldout_loss),
            _ => {}
        }
    }
    assert_eq!((rounds, held_out), (vec![3.0], vec![None, Some(3.0)]));
    requests.progress.finish();
    let shown = read_to_string(&display).unwrap();
    assert!(shown.contains("loss 3.000"), "{shown}");
}
