//! Requests that a coordinator refuses. The run goes on after them.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::SystemTime;

use bytes::Bytes;
use dipaco_codec::{Compression, encode};
use dipaco_model::{level_specs, parameters};
use dipaco_net::{Client, Limits, NetError};
use dipaco_path::TrainDevice;
use dipaco_protocol::{
    ContentDigest, FetchSource, GrantedLease, LeaseReport, LeaseResult, Request, Response,
};
use dipaco_sync::{FragmentId, Numerics};
use dipaco_telemetry::{Event, Events, read_events};
use dipaco_topology::{ModuleId, PathId, Topology};
use dipaco_train::{Revocations, TrainError, WorkerError, coordinate, work};
use tokio_util::sync::CancellationToken;

use support::{Puppet, Run, config};

fn refusal(answer: Response) -> String {
    match answer {
        Response::Refused { reason } => reason,
        other => panic!("not refused but {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_of_another_version_or_without_a_hello_are_turned_away() {
    let run = Run::seeded(config()).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let reason = refusal(Puppet::silent(&token).await.hello("old", "0.0.0-other").await);
    assert!(reason.contains("0.0.0-other") && reason.contains(dipaco_train::BUILD), "{reason}");
    let reason = refusal(Puppet::silent(&token).await.hello("a\nb", dipaco_train::BUILD).await);
    assert!(reason.contains("--name"), "{reason}");
    let ask = Request::Lease { held: Vec::new(), wait_ms: 0 };
    let reason = refusal(Puppet::silent(&token).await.ask(&ask, None).await.unwrap().0);
    assert!(reason.contains("hello"), "{reason}");
    // Bytes that are not a request: first from an unknown peer, then from a worker, whose connection stays open.
    let garbage = [0xffu8; 100];
    assert!(Puppet::silent(&token).await.ask(&garbage.as_slice(), None).await.is_err());
    let puppet = Puppet::welcome(&token, "puppet").await;
    assert!(puppet.ask(&garbage.as_slice(), None).await.is_err());
    puppet.lease().await;
    puppet.ask(&Request::Release, None).await.unwrap();
    drop(puppet);

    let worker = run.spawn_worker(&token, "worker");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
}

/// Submits as the holder of a lease.
async fn submit(puppet: &Puppet, work: &GrantedLease, item: LeaseResult, payload: Bytes) -> Response {
    puppet.submit(work, item, payload).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_results_are_refused_and_the_run_goes_on() {
    let run = Run::seeded(config()).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let puppet = Puppet::welcome(&token, "puppet").await;
    let work = puppet.lease().await;
    let (fragment, object) = (work.weights[0].fragment, work.weights[0].object.clone());
    let module = fragment.module;
    let topology = Topology::new(&run.config.topology, run.config.model.blocks).unwrap();
    let values = parameters(&level_specs(&run.config.model, &topology, usize::from(module.level)));
    let encode = |values: usize| Bytes::from(encode(&vec![0.5; values], Compression::F32).unwrap());
    let gradient = encode(values);
    let of = |fragment, number| LeaseResult::OuterGradient { fragment, number, tokens: 1 };
    let item = of(fragment, 1);

    let mut nan = gradient.to_vec();
    let last = nan.len() - 4;
    nan[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(refusal(submit(&puppet, &work, item, nan.into()).await).contains("finite"));
    let fewer = refusal(submit(&puppet, &work, item, encode(values - 1)).await);
    assert!(fewer.contains(&format!("{} values for a module of {values}", values - 1)), "{fewer}");
    refusal(submit(&puppet, &work, LeaseResult::State, gradient.clone()).await);
    refusal(submit(&puppet, &work, item, Bytes::from_static(b"no outer gradient")).await);
    // Modules that the path does not go through, or that do not exist.
    for module in [ModuleId { level: 0, index: 1 - module.index }, ModuleId { level: 9, index: 0 }] {
        refusal(submit(&puppet, &work, of(FragmentId { module, index: 0 }, 1), gradient.clone()).await);
    }
    // Fragments that do not exist, and numbers that the lease does not ask for.
    refusal(submit(&puppet, &work, of(FragmentId { module, index: 1 }, 1), gradient.clone()).await);
    for number in [0, 2, u32::MAX] {
        let asked = refusal(submit(&puppet, &work, of(fragment, number), gradient.clone()).await);
        assert!(asked.contains("expects no outer gradient"), "{asked}");
    }
    let nowhere = GrantedLease { path: PathId(99), ..work.clone() };
    refusal(submit(&puppet, &nowhere, item, gradient.clone()).await);
    // A content with another hash, and offsets at which no piece begins.
    let whole = ContentDigest::of(&gradient);
    let other = ContentDigest { hash: "0".repeat(64), ..whole.clone() };
    for (whole, offset, why) in
        [(other, 0, "BLAKE3"), (whole.clone(), 1, "has no piece"), (whole, 2 << 20, "has no piece")]
    {
        let request = Request::Submit { lease: work.key(), item, digest: whole, offset };
        let answer = puppet.ask(&request, Some(gradient.clone())).await.unwrap().0;
        assert!(matches!(&answer, Response::Refused { reason } if reason.contains(why)), "{answer:?}");
    }
    // Larger than any module file: refused before it is read.
    let huge = Bytes::from(vec![0; 64 << 20]);
    assert!(refusal(submit(&puppet, &work, item, huge).await).contains("at most"));

    let complete = Request::Complete {
        lease: work.key(),
        report: LeaseReport { loss: Some(f64::NAN), held_out_loss: Some(f64::NAN), ..LeaseReport::default() },
    };
    assert!(refusal(puppet.ask(&complete, None).await.unwrap().0).contains("missing"));
    let object = dipaco_store::ObjectRef { name: "run/authority.pem".into(), ..object };
    for request in [
        Request::Fetch { source: FetchSource::Object(object.clone()), offset: 0 },
        Request::Link { object: object.clone() },
        Request::Check { object: object.clone() },
    ] {
        assert!(matches!(puppet.ask(&request, None).await.unwrap().0, Response::Lost { .. }));
    }
    // The store is a folder.
    let link = Request::Link { object: work.weights[0].object.clone() };
    assert_eq!(puppet.ask(&link, None).await.unwrap().0, Response::NoLink);
    let source = FetchSource::Shard { path: PathId(99), hash: String::new(), file: None };
    refusal(puppet.ask(&Request::Fetch { source, offset: 0 }, None).await.unwrap().0);
    // Not repeated as a failure of the disk would be.
    let source = FetchSource::Shard { path: work.path, hash: work.shard.hash.clone(), file: None };
    let beyond = puppet.ask(&Request::Fetch { source, offset: u64::MAX }, None).await.unwrap().0;
    assert!(refusal(beyond).contains("no piece"));
    let (lease, loss) = (work.key(), Some(f32::NAN));
    let beat = Request::Heartbeat { lease, step: u64::MAX, repeated: u64::MAX, loss };
    assert_eq!(puppet.ask(&beat, None).await.unwrap().0, Response::Done);
    puppet.ask(&Request::Release, None).await.unwrap();
    drop(puppet);

    let worker = run.spawn_worker(&token, "worker");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
    run.has_undisturbed_bits().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchanged_shard_is_refused_and_leaves_no_trace() {
    let run = Run::seeded(config()).await;
    let folder = run.folder.path();
    let swap = || {
        std::fs::rename(folder.join("path-000.h5"), folder.join("kept.h5")).unwrap();
        std::fs::rename(folder.join("path-001.h5"), folder.join("path-000.h5")).unwrap();
        std::fs::rename(folder.join("kept.h5"), folder.join("path-001.h5")).unwrap();
    };
    let started = run.start(false).await.unwrap();
    let (server, token) = run.server().await;
    let coordinator =
        tokio::spawn(coordinate(run.options(started, Events::off()), server, CancellationToken::new()));
    swap();
    let refused = async |shards| {
        let options = dipaco_train::WorkerOptions { shards, ..run.worker(&token, "worker") };
        work(options, CancellationToken::new()).await.unwrap_err()
    };
    let error = refused(Some(folder.to_owned())).await;
    assert!(
        matches!(error, WorkerError::Core(TrainError::Path(dipaco_path::PathError::WrongShard { .. }))),
        "{error}"
    );
    let error = refused(None).await.to_string();
    assert!(error.contains("the coordinator sent a file with the content hash"), "{error}");
    swap();
    let worker = run.spawn_worker(&token, "worker");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_token_loses_its_connection_and_its_lease() {
    let run = Run::seeded(config()).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let own = run.token_of("gpu-3", &token);
    // One holder asks nothing any more, the other asks at once.
    let (silent, asking) = (Puppet::welcome(&own, "silent").await, Puppet::welcome(&own, "asking").await);
    let (lease, _) = (silent.lease().await, asking.lease().await);
    Revocations::of(&run.folder.path().join("revoked")).revoke("gpu-3").unwrap();
    let beat = Request::Heartbeat { lease: lease.key(), step: 1, repeated: 0, loss: None };
    match asking.ask(&beat, None).await {
        Ok((answer, _)) => {
            let refused = refusal(answer);
            assert!(refused.contains("\"gpu-3\" has been revoked"), "{refused}");
        }
        Err(error) => assert!(matches!(error, NetError::Revoked { .. }), "{error}"),
    }
    for puppet in [silent, asking] {
        let ended = puppet.closed().await;
        assert!(matches!(ended, NetError::Revoked { .. }), "{ended}");
    }
    let again = Client::connect(&own, SystemTime::now(), Limits::default()).await.unwrap_err();
    assert!(matches!(again, NetError::Revoked { .. }), "{again}");
    // Its leases are free at once, and other tokens stay valid.
    let worker = run.spawn_worker(&token, "worker");
    assert!(coordinator.await.unwrap().unwrap().finished);
    assert_eq!(worker.await.unwrap().unwrap().leases, 4 * 3);
}

/// Fingerprint of a device that computes other bits.
const OTHER: &str = "cpu-0123456789abcdef";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_device_that_contributes_decides_and_not_the_first_that_joins() {
    let run = Run::seeded(config()).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let forger = Puppet::silent(&token).await.with_numerics(OTHER);
    let answer = forger.hello("forger", dipaco_train::BUILD).await;
    assert!(matches!(answer, Response::Welcome { .. }), "{answer:?}");
    let forged = forger.lease().await;
    let worker = run.spawn_worker(&token, "worker");
    // It asks for further leases until the worker has contributed. Until then it holds a path, so the run does not end.
    let reason = loop {
        match forger.ask(&Request::Lease { held: Vec::new(), wait_ms: 0 }, None).await.unwrap().0 {
            Response::Unfit { reason } => break reason,
            Response::Lease(_) | Response::Wait { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(reason.contains(OTHER) && reason.contains("train.numerics"), "{reason}");
    let item = LeaseResult::OuterGradient {
        fragment: forged.sends[0].fragment,
        number: forged.sends[0].number,
        tokens: 1,
    };
    let late = submit(&forger, &forged, item, encode(&[1.0], Compression::F32).unwrap().into()).await;
    assert!(matches!(late, Response::Lost { .. }), "{late:?}");
    let again = Puppet::silent(&token).await.with_numerics(OTHER);
    let answer = again.hello("again", dipaco_train::BUILD).await;
    assert!(matches!(answer, Response::Welcome { .. }), "{answer:?}");
    forger.ask(&Request::Release, None).await.unwrap();
    drop((forger, again));
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn honest_workers_wait_for_the_revocation_of_a_forged_fingerprint() {
    let run = Run::seeded(config()).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let forger = Puppet::silent(&run.token_of("forger", &token)).await.with_numerics(OTHER);
    forger.hello("forger", dipaco_train::BUILD).await;
    let forged = forger.lease().await;
    forger.carry_out(&run, &forged, 0.001).await;
    // An honest worker, and a puppet that hears what such a worker hears.
    let worker = run.spawn_worker(&token, "worker");
    let puppet = Puppet::welcome(&token, "puppet").await;
    let ask = Request::Lease { held: Vec::new(), wait_ms: 0 };
    let Response::Unfit { reason } = puppet.ask(&ask, None).await.unwrap().0 else { panic!("a lease") };
    for part in [OTHER, "train.numerics", "token \"forger\"", "dipaco token revoke"] {
        assert!(reason.contains(part), "{reason}");
    }
    assert!(!worker.is_finished());
    assert_eq!(run.manifest().await.training.unwrap().numerics_token.as_deref(), Some("forger"));
    Revocations::of(&run.folder.path().join("revoked")).revoke("forger").unwrap();
    // Whoever waits hears of the revocation. Were nothing forgotten, this would be the answer at the end of the wait.
    let ask = Request::Lease { held: Vec::new(), wait_ms: 15_000 };
    let answer = puppet.ask(&ask, None).await.unwrap().0;
    assert!(!matches!(answer, Response::Unfit { .. }), "{answer:?}");
    puppet.ask(&Request::Release, None).await.unwrap();
    drop(puppet);
    assert!(coordinator.await.unwrap().unwrap().finished);
    assert_eq!(worker.await.unwrap().unwrap().leases, 4 * 3 - 1);
    assert_eq!(run.manifest().await.training.unwrap().numerics_token.as_deref(), Some("test"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_compute_other_bits_are_refused_or_recorded() {
    let own = dipaco_path::numerics(&TrainDevice::Cpu).unwrap();
    for (numerics, joins) in [(Numerics::Only(own), false), (Numerics::Any, true)] {
        let mut config = config();
        config.train.numerics = numerics;
        let run = Run::seeded(config).await;
        let stop = CancellationToken::new();
        let file = run.folder.path().join("metrics.jsonl");
        let (coordinator, token) = run.coordinator(Events::create(&file).unwrap(), stop.clone()).await;
        let _first = Puppet::welcome(&token, "first").await;
        let other = Puppet::silent(&token).await.with_numerics(OTHER);
        match other.hello("other", dipaco_train::BUILD).await {
            Response::Refused { reason } => {
                assert!(!joins && reason.contains("train.numerics"), "{reason}");
            }
            answer => assert!(joins && matches!(answer, Response::Welcome { .. }), "{answer:?}"),
        }
        stop.cancel();
        coordinator.await.unwrap().unwrap();
        let events = std::fs::read_to_string(file).unwrap();
        assert_eq!(events.contains(OTHER), joins, "{events}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_lease_is_in_the_log_whatever_time_its_worker_reports() {
    let run = Run::seeded(config()).await;
    let stop = CancellationToken::new();
    let file = run.folder.path().join("metrics.jsonl");
    let (coordinator, token) = run.coordinator(Events::create(&file).unwrap(), stop.clone()).await;
    let puppet = Puppet::welcome(&token, "puppet").await;
    // A lease takes longer than a nanosecond.
    for seconds in [f64::INFINITY, f64::NAN, -1.0, 1e-9] {
        let report = LeaseReport { seconds, waited_seconds: seconds, ..LeaseReport::default() };
        let work = puppet.lease().await;
        puppet.carry_out_with(&run, &work, 0.5, report).await;
    }
    stop.cancel();
    drop(puppet);
    coordinator.await.unwrap().unwrap();
    let (steps, times): (Vec<_>, Vec<_>) = read_events(&file)
        .unwrap()
        .filter_map(|record| match record.unwrap().event {
            Event::PathCompleted { steps, seconds, waited_seconds, .. } => {
                Some((steps, (seconds, waited_seconds)))
            }
            _ => None,
        })
        .unzip();
    assert_eq!(steps, [Some(run.config.train.inner_steps); 4]);
    assert_eq!(times, [(0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (1e-9, 1e-9)]);
}
