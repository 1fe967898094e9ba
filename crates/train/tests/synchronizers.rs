//! Synchronizers in processes of their own.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use dipaco_codec::Compression;
use dipaco_net::{Client, JoinToken, Limits, NetError, Service};
use dipaco_protocol::{
    ContentDigest, FetchSource, FragmentWeights, GrantedLease, LeaseReport, LeaseResult, MOST_LEASES,
    OuterStepDone, Request, Response, SYNCHRONIZER,
};
use dipaco_store::{ObjectRef, names};
use dipaco_sync::{Fence, FragmentId, LeaseClaim, Merge, ProcessId, SyncConfig};
use dipaco_telemetry::Events;
use dipaco_topology::{ModuleId, PathId, TopologyConfig};
use dipaco_train::{Revocations, SynchronizerError};
use tokio_util::sync::CancellationToken;

use support::{Puppet, Run, config, encoded_state};

const FIRST: ModuleId = ModuleId { level: 0, index: 0 };
const OTHER: ModuleId = ModuleId { level: 1, index: 1 };

/// Asks for leases until one is `wanted`, and returns that lease.
async fn until(token: &JoinToken, wanted: impl Fn(&GrantedLease) -> bool) -> (Puppet, GrantedLease) {
    let puppet = Puppet::welcome(token, "first").await;
    loop {
        let work = puppet.lease().await;
        if wanted(&work) {
            return (puppet, work);
        }
        puppet.ask(&Request::Release, None).await.unwrap();
    }
}

/// Asks for leases until one names the synchronizer of the first module, and returns that lease.
async fn until_it_has_the_first_module(token: &JoinToken) -> (Puppet, GrantedLease) {
    let first = |weights: &FragmentWeights| weights.fragment.module == FIRST && weights.at.is_some();
    until(token, |work| work.weights.iter().any(first)).await
}

fn refusal(answer: Response) -> String {
    match answer {
        Response::Refused { reason } => reason,
        other => panic!("not refused but {other:?}"),
    }
}

/// The reason why a synchronizer sends a worker to the coordinator.
fn elsewhere(answer: Response) -> String {
    match answer {
        Response::Elsewhere { reason } => reason,
        other => panic!("not sent to the coordinator but {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronizer_does_not_change_the_bits_of_a_run() {
    let mut streaming = config();
    streaming.sync = SyncConfig { fragments: 2, overlap_steps: 1, blend: 0.5, ..SyncConfig::default() };
    (streaming.outer.compression, streaming.outer.broadcast) = (Compression::E3m0, Compression::Int8);
    let robust = [Merge::Clipped, Merge::Trimmed].map(|merge| {
        let mut config = config();
        config.outer.merge = merge;
        config.topology = TopologyConfig { replicas: 4, ..TopologyConfig::dense(config.model.blocks) };
        config
    });
    for config in [config(), streaming].into_iter().chain(robust) {
        let (alone, split) = (Run::seeded(config.clone()).await, Run::seeded(config.clone()).await);
        alone.train(1).await;
        let (coordinator, token) = split.coordinator(Events::off(), CancellationToken::new()).await;
        let synchronizer = split.spawn_synchronizer(&token, &[FIRST]).await;
        let (puppet, _) = until_it_has_the_first_module(&token).await;
        puppet.ask(&Request::Release, None).await.unwrap();
        drop(puppet);
        let workers = ["a", "b"].map(|name| split.spawn_worker(&token, name));
        assert!(coordinator.await.unwrap().unwrap().finished);
        for worker in workers {
            worker.await.unwrap().unwrap();
        }
        let summary = synchronizer.await.unwrap().unwrap();
        let training = split.manifest().await.training.unwrap();
        let steps = training.modules[0].fragments.iter().map(|fragment| u64::from(fragment.version)).sum();
        assert_eq!((summary.outer_steps, summary.lost), (steps, 0));
        assert_eq!(split.bits().await, alone.bits().await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_to_the_wrong_process_are_refused_with_the_reason() {
    let run = Run::seeded(config()).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let orders = |modules: &[ModuleId]| Request::Orders {
        modules: modules.to_vec(),
        address: "127.0.0.1:1".to_owned(),
        revoked: 0,
        uploads: Vec::new(),
        wait_ms: 0,
    };
    let version = dipaco_train::BUILD;

    // A worker's token takes no outer steps, and a synchronizer's token gets no lease.
    let worker = Puppet::welcome(&token, "worker").await;
    let reason = refusal(worker.ask(&orders(&[FIRST]), None).await.unwrap().0);
    assert!(reason.contains("have their own"), "{reason}");
    let of_a_synchronizer = run.token_as(SYNCHRONIZER, &token);
    let other = Puppet::silent(&of_a_synchronizer).await;
    assert!(matches!(other.hello("other", version).await, Response::Welcome { .. }));
    let lease = Request::Lease { held: Vec::new(), wait_ms: 0 };
    assert!(refusal(other.ask(&lease, None).await.unwrap().0).contains("have their own"));
    let none = Puppet::silent(&run.token_as("visitor", &token)).await.hello("v", version).await;
    assert!(refusal(none).contains("nobody joins as \"visitor\""));

    // Modules that do not exist, no module, and modules of another synchronizer.
    let synchronizer = run.spawn_synchronizer(&token, &[FIRST]).await;
    let (puppet, work) = until_it_has_the_first_module(&token).await;
    let nowhere = ModuleId { level: 7, index: 0 };
    for (modules, why) in
        [(&[nowhere][..], "no module 7/0"), (&[], "has modules"), (&[FIRST], "has a synchronizer, \"test\"")]
    {
        let reason = refusal(other.ask(&orders(modules), None).await.unwrap().0);
        assert!(reason.contains(why), "{reason}");
    }
    let uploads = vec![(PathId(0), Fence(1)); MOST_LEASES + 1];
    let (modules, address) = (vec![OTHER], "127.0.0.1:1".to_owned());
    let too_many = Request::Orders { modules, address, revoked: 0, uploads, wait_ms: 0 };
    assert!(refusal(other.ask(&too_many, None).await.unwrap().0).contains("names 10001"));
    drop(other);

    // Requests of workers for objects of other modules, and for a lease that is over.
    let weights = work.weights.iter().find(|weights| weights.fragment.module == FIRST).unwrap();
    let mut there = token.clone();
    there.addresses = vec![weights.at.clone().unwrap()];
    // A synchronizer can't pose as the coordinator.
    let posing = Client::connect(&there, SystemTime::now(), Limits::default()).await.unwrap_err();
    assert!(matches!(posing, NetError::WrongToken { .. }), "{posing}");
    let there = Puppet::welcome_at_synchronizer(&there, "first").await;
    let fetch = |object: ObjectRef| Request::Fetch { source: FetchSource::Object(object), offset: 0 };
    let piece = there.ask(&fetch(weights.object.clone()), None).await.unwrap();
    assert!(matches!(piece.0, Response::Piece { total } if total == weights.object.bytes));
    let foreign = work.weights.iter().find(|weights| weights.fragment.module != FIRST).unwrap();
    let authority = ObjectRef { name: "modules/0/0/../../../authority.pem".into(), ..foreign.object.clone() };
    let of_another = elsewhere(there.ask(&fetch(foreign.object.clone()), None).await.unwrap().0);
    assert!(of_another.contains("not of the modules of this synchronizer"), "{of_another}");
    let link = |object: &ObjectRef| Request::Link { object: object.clone() };
    let of_another = elsewhere(there.ask(&link(&foreign.object), None).await.unwrap().0);
    assert!(of_another.contains("not of the modules of this synchronizer"), "{of_another}");
    for object in [&weights.object, &authority] {
        assert_eq!(there.ask(&link(object), None).await.unwrap().0, Response::NoLink);
    }
    assert!(matches!(there.ask(&fetch(authority), None).await.unwrap().0, Response::Elsewhere { .. }));
    assert!(matches!(there.ask(&lease, None).await.unwrap().0, Response::Elsewhere { .. }));
    let item = |module| LeaseResult::OuterGradient {
        fragment: FragmentId { module, index: 0 },
        number: 1,
        tokens: 1,
    };
    let nothing = Bytes::from_static(b"nothing");
    let of_another = GrantedLease { path: PathId(3), ..work.clone() };
    for (work, item) in [(&work, item(OTHER)), (&of_another, LeaseResult::State)] {
        let reason = elsewhere(there.submit(work, item, nothing.clone()).await.unwrap());
        assert!(reason.contains("not of the modules"), "{reason}");
    }
    let over = GrantedLease { fence: Fence(1), ..work.clone() };
    let answer = there.submit(&over, item(FIRST), nothing.clone()).await.unwrap();
    assert!(matches!(answer, Response::Lost { .. }), "{answer:?}");
    let reason = refusal(there.submit(&work, item(FIRST), nothing).await.unwrap());
    assert!(reason.contains(&format!("of path {}", PathId(work.path.0))), "{reason}");
    puppet.ask(&Request::Release, None).await.unwrap();
    drop((worker, puppet, there));

    let worker = run.spawn_worker(&token, "worker");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
    synchronizer.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_goes_on_when_another_synchronizer_has_the_address_of_a_module() {
    let undisturbed = Run::trained(config(), 1).await;
    let mut config = config();
    config.train.standstill_seconds = 1;
    let run = Run::seeded(config).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let synchronizer = run.spawn_synchronizer(&token, &[FIRST]).await;
    let (puppet, work) = until_it_has_the_first_module(&token).await;
    let address = work.weights.iter().find_map(|weights| weights.at.clone()).unwrap();
    puppet.ask(&Request::Release, None).await.unwrap();
    drop(puppet);
    // The other modules seem to have a synchronizer at this address. The one that listens there has none of them.
    let gone = Puppet::silent(&run.token_as(SYNCHRONIZER, &token)).await;
    gone.hello("gone", dipaco_train::BUILD).await;
    let orders =
        Request::Orders { modules: vec![OTHER], address, revoked: 0, wait_ms: 0, uploads: Vec::new() };
    gone.ask(&orders, None).await.unwrap();
    let worker = run.spawn_worker(&token, "worker");
    worker.await.unwrap().unwrap();
    drop(gone);
    assert!(coordinator.await.unwrap().unwrap().finished);
    synchronizer.await.unwrap().unwrap();
    assert_eq!(run.weights().await, undisturbed.weights().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_of_paths_go_to_the_synchronizers_of_their_modules_only() {
    let run = Run::seeded(config()).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let mut synchronizers = Vec::new();
    for level in [0, 1] {
        let modules = [0, 1].map(|index| ModuleId { level, index });
        synchronizers.push(run.spawn_synchronizer_as(&format!("level {level}"), &token, &modules).await);
    }
    let (puppet, work) = until(&token, |work| work.weights.iter().all(|weights| weights.at.is_some())).await;
    let state = encoded_state(&run, &work, work.to).len() as u64;
    puppet.ask(&Request::Release, None).await.unwrap();
    drop(puppet);
    run.spawn_worker(&token, "worker").await.unwrap().unwrap();
    for synchronizer in synchronizers {
        // Well before the coordinator's farewell ends by itself.
        let ended = tokio::time::timeout(Duration::from_secs(5), synchronizer).await.unwrap();
        // Each takes the states of two of the four paths three times. The outer gradients of its level have the length of
        // three states: a state has two moments of the parameters of both levels.
        let received = ended.unwrap().unwrap().bytes_received;
        assert!(received > 7 * state, "{received} of {state}");
    }
    assert!(coordinator.await.unwrap().unwrap().finished);
    run.has_undisturbed_bits().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronizer_checks_states_and_the_coordinator_checks_their_steps() {
    let run = Run::seeded(config()).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let synchronizer = run.spawn_synchronizer(&token, &[FIRST]).await;
    let (puppet, work) = until_it_has_the_first_module(&token).await;
    let at = work.weights.iter().find_map(|weights| weights.at.clone()).unwrap();
    let there = JoinToken { addresses: vec![at], ..token.clone() };
    let there = Puppet::welcome_at_synchronizer(&there, "first").await;
    let wrong = encoded_state(&run, &work, work.to + 1);
    let reason = refusal(there.submit(&work, LeaseResult::State, wrong.clone()).await.unwrap());
    assert!(reason.contains("step"), "{reason}");

    // A synchronizer that says it checked the state as one of another step.
    let worker = ProcessId { token: "test".to_owned(), name: "first".to_owned(), instance: 1 };
    let stored = Request::Stored {
        claim: LeaseClaim { key: work.key(), worker },
        item: LeaseResult::State,
        to: work.to + 1,
        digest: ContentDigest::of(&wrong),
        norm: 0.0,
    };
    let other = Puppet::silent(&run.token_as(SYNCHRONIZER, &token)).await;
    other.hello("other", dipaco_train::BUILD).await;
    let reason = refusal(other.ask(&stored, None).await.unwrap().0);
    assert!(reason.contains(&format!("makes it at step {}", work.to)), "{reason}");
    drop(other);

    let right = encoded_state(&run, &work, work.to);
    let digest = ContentDigest::of(&right);
    assert_eq!(there.submit(&work, LeaseResult::State, right).await.unwrap(), Response::Done);
    puppet.submit_gradients(&run, &work, 0.1).await;
    assert_eq!(puppet.complete(&work, LeaseReport::default()).await, Response::Done);
    let training = run.manifest().await.training.unwrap();
    let counted = training.objects().find(|object| object.hash == digest.hash).unwrap();
    assert!(counted.name.starts_with("paths/"), "{}", counted.name);
    run.store.get(counted).await.unwrap();
    drop((puppet, there));
    let worker = run.spawn_worker(&token, "worker");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
    synchronizer.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_token_loses_its_connection_to_a_synchronizer_that_sees_no_file_of_the_run() {
    let run = Run::seeded(config()).await;
    let stop = CancellationToken::new();
    let (coordinator, token) = run.coordinator(Events::off(), stop.clone()).await;
    let synchronizer = run.spawn_synchronizer(&token, &[FIRST]).await;
    let (_puppet, work) = until_it_has_the_first_module(&token).await;
    let at = work.weights.iter().find_map(|weights| weights.at.clone()).unwrap();
    let at_synchronizer = |token: &JoinToken| JoinToken { addresses: vec![at.clone()], ..token.clone() };
    let (own, other) = (at_synchronizer(&run.token_of("gpu-3", &token)), at_synchronizer(&token));
    let silent = Puppet::welcome_at_synchronizer(&own, "silent").await;
    Revocations::of(&run.folder.path().join("revoked")).revoke("gpu-3").unwrap();
    // Well before the synchronizer's wait for orders ends by itself.
    let ended = tokio::time::timeout(Duration::from_secs(10), silent.closed()).await.unwrap();
    assert!(matches!(ended, NetError::Revoked { .. }), "{ended}");
    let again =
        Client::connect_to(Service::Helper, &own, SystemTime::now(), Limits::default()).await.unwrap_err();
    assert!(matches!(again, NetError::Revoked { .. }), "{again}");
    let _ = Puppet::welcome_at_synchronizer(&other, "other").await;
    stop.cancel();
    assert!(!coordinator.await.unwrap().unwrap().finished);
    synchronizer.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_synchronizer_of_a_module_ends_with_the_reason() {
    let run = Run::seeded(config()).await;
    let stop = CancellationToken::new();
    let (coordinator, token) = run.coordinator(Events::off(), stop.clone()).await;
    let first = run.spawn_synchronizer(&token, &[FIRST]).await;
    until_it_has_the_first_module(&token).await;
    let error =
        run.spawn_synchronizer_as("second", &token, &[OTHER, FIRST]).await.await.unwrap().unwrap_err();
    assert!(
        matches!(&error, SynchronizerError::Refused { reason } if reason.contains("\"test\"")),
        "{error}"
    );
    stop.cancel();
    assert!(!coordinator.await.unwrap().unwrap().finished);
    first.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_count_stay_when_their_outer_step_is_reported_again() {
    let run = Run::seeded(config()).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let puppet = Puppet::silent(&run.token_as(SYNCHRONIZER, &token)).await;
    puppet.hello("puppet", dipaco_train::BUILD).await;
    let worker = run.spawn_worker(&token, "worker");
    let (modules, address) = (vec![FIRST], "127.0.0.1:1".to_owned());
    // It also asks about a lease that no coordinator has granted.
    let uploads = vec![(PathId(0), Fence(1))];
    let orders = Request::Orders { modules, address, revoked: 0, uploads, wait_ms: 15_000 };
    let order = loop {
        let Response::Orders { over, orders, .. } = puppet.ask(&orders, None).await.unwrap().0 else {
            panic!("no orders")
        };
        assert_eq!(over, [Fence(1)].into());
        if let Some(order) = orders.into_iter().find(|order| order.due) {
            break order;
        }
    };
    // An outer step that changes nothing. Momentum has the same form as weights.
    let content = run.store.get(&order.weights).await.unwrap();
    let (fragment, version, fence) = (order.fragment, order.version, order.fence);
    let weights = names::weights(fragment.module, fragment.index, version, fence);
    let momentum = names::momentum(fragment.module, fragment.index, version, fence);
    let weights = run.store.put(&weights, content.clone()).await.unwrap();
    let momentum = run.store.put(&momentum, content).await.unwrap();
    let done = OuterStepDone {
        fragment,
        version,
        fence,
        weights,
        momentum,
        change: None,
        norm: 0.0,
        cosine: None,
        seconds: 0.0,
    };
    let stepped = |done: &OuterStepDone| Request::Stepped(Box::new(done.clone()));
    for _ in 0..2 {
        assert_eq!(puppet.ask(&stepped(&done), None).await.unwrap().0, Response::Done);
    }
    // Another outcome under the same names does not count, and deletes no object that counts.
    let mut other = done.clone();
    other.weights.hash = "0".repeat(64);
    let answer = puppet.ask(&stepped(&other), None).await.unwrap().0;
    assert!(matches!(answer, Response::Lost { .. }), "{answer:?}");
    for object in [&done.weights, &done.momentum] {
        run.store.get(object).await.unwrap();
    }
    drop(puppet);
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronizer_that_asks_for_no_orders_loses_its_modules() {
    let undisturbed = Run::trained(config(), 1).await;
    let mut config = config();
    config.train.standstill_seconds = 1;
    let run = Run::seeded(config).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let puppet = Puppet::silent(&run.token_as(SYNCHRONIZER, &token)).await;
    puppet.hello("puppet", dipaco_train::BUILD).await;
    // It claims a module, and then only keeps its connection.
    let address = token.addresses[0].clone();
    let orders =
        Request::Orders { modules: vec![FIRST], address, revoked: 0, uploads: Vec::new(), wait_ms: 0 };
    puppet.ask(&orders, None).await.unwrap();
    let worker = run.spawn_worker(&token, "worker");
    let worked = tokio::time::timeout(Duration::from_secs(60), worker).await;
    worked.expect("without an end of the claim the run stands still for ever").unwrap().unwrap();
    drop(puppet);
    assert!(coordinator.await.unwrap().unwrap().finished);
    assert_eq!(run.weights().await, undisturbed.weights().await);
}
