//! A run whose store is behind a network: a real server that speaks S3, and every fault that such a store can have.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use dipaco_store::{ObjectRef, RemoteCause, RunStore, StoreError};
use dipaco_tests::object_store::{BUCKET, Fault, FaultyProxy, ObjectStore, Seen, environment};
use dipaco_tests::process::{Process, Signal, command, output};
use dipaco_tests::run::{Run, snapshot};
use dipaco_tests::training::{undisturbed, untrained};
use support::{long_content, open, race_of_writers};

mod support;

/// Opens a run's store at a server or proxy, with more settings.
fn store(address: &str, more: &[(&str, &str)]) -> RunStore {
    let more = more.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    open(&format!("s3://{BUCKET}/run"), environment(address).into_iter().chain(more).collect())
}

/// Every manifest write loses its first reply.
fn manifests_lose_replies(fault: Fault) -> impl Fn(&Seen) -> Fault + Send + Sync {
    let lost = std::sync::Mutex::new(BTreeSet::new());
    move |seen| {
        let manifest = seen.is_conditional() && seen.line.contains("/manifest/");
        if manifest && lost.lock().unwrap().insert(seen.line.clone()) { fault } else { Fault::None }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_one_of_many_writers_wins_although_replies_are_lost() {
    let Some(server) = ObjectStore::start() else { return };
    for (fault, run) in [(Fault::None, "a"), (Fault::LoseReply, "b"), (Fault::CutReply, "c")] {
        let proxy = FaultyProxy::before(&server, manifests_lose_replies(fault));
        race_of_writers(&open(&format!("s3://{BUCKET}/{run}"), environment(&proxy.address))).await;
    }
}

#[tokio::test]
async fn large_objects_travel_in_parts_in_both_directions() {
    const PART: usize = 8 << 20;
    let Some(server) = ObjectStore::start() else { return };
    let proxy = FaultyProxy::before(&server, |_| Fault::None);
    let store = store(&proxy.address, &[]);
    let content = long_content();
    // Comes in a file, its end first.
    let scratch = tempfile::tempdir().unwrap();
    let reference = ObjectRef::of("paths/0/1", &content);
    let unfinished = Arc::new(store.begin(reference.clone(), scratch.path()).unwrap());
    for begin in [10_000_000, 0] {
        unfinished.write(begin as u64, &content[begin..content.len().min(begin + 11_000_000)]).unwrap();
    }
    unfinished.publish().await.unwrap().unwrap();
    for object in [
        reference,
        store.put_replacing("modules/a", [content.clone()]).await.unwrap(),
        store.put("modules/b", content.clone()).await.unwrap(),
    ] {
        assert!(store.get(&object).await.unwrap() == content);
        store.verify(&object).await.unwrap();
        let middle = store.get_range(&object, 5_000_000..19_000_000).await.unwrap();
        assert!(middle == content.slice(5_000_000..19_000_000));
        let end = store.get_range(&object, 19_999_999..30_000_000).await.unwrap();
        assert!(end == content.slice(19_999_999..));
    }
    let small = store.put("modules/c", Bytes::new()).await.unwrap();
    assert!(store.get(&small).await.unwrap().is_empty());
    let other = store.put("modules/b", content.slice(1..)).await.unwrap_err();
    assert!(matches!(other, StoreError::Exists { .. }), "{other}");
    let reference = ObjectRef { name: "modules/b".into(), ..ObjectRef::of("", &content.slice(1..)) };
    let other = store.put_referenced(&reference, [content.slice(1..)]).await.unwrap_err();
    assert!(matches!(other, StoreError::Exists { .. }), "{other}");
    let seen = proxy.seen();
    assert!(seen.iter().all(|seen| seen.sent <= PART && seen.received <= PART), "{seen:?}");
    assert!(seen.iter().any(|seen| seen.sent == PART) && seen.iter().any(|seen| seen.received == PART));
}

#[tokio::test]
async fn an_upload_that_fails_leaves_no_parts_behind() {
    let Some(server) = ObjectStore::start() else { return };
    let refuse =
        |seen: &Seen| if seen.line.contains("partNumber=2") { Fault::Refuse(403) } else { Fault::None };
    let proxy = FaultyProxy::before(&server, refuse);
    let store = store(&proxy.address, &[]);
    let error = store.put_replacing("modules/a", [vec![7; 20 << 20].into()]).await.unwrap_err();
    assert!(matches!(error, StoreError::Remote { cause: RemoteCause::Credentials, .. }), "{error}");
    assert!(
        proxy.seen().iter().any(|seen| seen.line.starts_with("DELETE ") && seen.line.contains("uploadId="))
    );
    assert!(store.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn errors_name_the_cause() {
    let Some(server) = ObjectStore::start() else { return };
    let stalls =
        FaultyProxy::before(
            &server,
            |seen| {
                if seen.line.starts_with("PUT ") { Fault::Stall } else { Fault::None }
            },
        );
    let refuses = FaultyProxy::before(&server, |_| Fault::Refuse(403));
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let impatient = [("aws_timeout", "200ms"), ("aws_connect_timeout", "200ms")];
    for (address, cause, text) in [
        (&stalls.address, RemoteCause::TimedOut, "exceeded its time limit"),
        (&refuses.address, RemoteCause::Credentials, "refuses the credentials"),
    ] {
        let error = store(address, &impatient).put("modules/a", "x".into()).await.unwrap_err();
        let StoreError::Remote { cause: found, .. } = &error else { panic!("{error:?}") };
        assert_eq!(*found, cause);
        assert!(error.to_string().contains(text) && !format!("{error:?}").contains("hush"), "{error:?}");
    }
    let away = store(&nobody, &impatient);
    let error = tokio::time::timeout(Duration::from_secs(300), away.put("modules/a", "x".into())).await;
    assert!(matches!(
        error.unwrap().unwrap_err(),
        StoreError::Remote { cause: RemoteCause::Unreachable, .. }
    ));
    let elsewhere = open("s3://no-such-bucket/run", environment(&server.address));
    let error = elsewhere.check_writable().await.unwrap_err();
    assert!(matches!(error, StoreError::Remote { cause: RemoteCause::NoBucket, .. }), "{error:?}");
}

#[tokio::test]
async fn readers_keep_their_objects_in_a_remote_store() {
    let Some(server) = ObjectStore::start() else { return };
    let store = store(&server.address, &[]);
    let now = SystemTime::now();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    store.pin("a", names(&["modules/1"]), now + Duration::from_secs(60)).await.unwrap();
    store.pin("b", names(&["modules/2"]), now + Duration::from_secs(10)).await.unwrap();
    assert_eq!(store.pinned(now).await.unwrap(), names(&["modules/1", "modules/2"]));
    assert_eq!(store.pinned(now + Duration::from_secs(30)).await.unwrap(), names(&["modules/1"]));
    store.unpin("a").await.unwrap();
    assert!(store.pinned(now).await.unwrap().is_empty());
    assert!(store.list("").await.unwrap().is_empty());
}

#[test]
fn a_store_that_ignores_conditions_is_refused_by_doctor_and_by_every_writer() {
    let Some(server) = ObjectStore::start() else { return };
    let doctor = |address: &str| {
        let mut doctor = command(["doctor", "--store", &format!("s3://{BUCKET}/run")]);
        doctor.envs(environment(address));
        output(doctor)
    };
    let _ = doctor(&server.address).succeeded().says("refuses to create an object twice");
    let ignores = FaultyProxy::before(&server, |_| Fault::Unconditional);
    let _ =
        doctor(&ignores.address).failed(1, &["1 of the checks failed"]).says("ignores conditional writes");
    let run = untrained().with_environment(environment(&ignores.address));
    let seed = run.dipaco(&format!("seed --set run.store=s3://{BUCKET}/run"));
    let _ = seed.failed(1, &["ignores conditional writes"]);
}

#[test]
fn an_address_with_a_secret_is_not_saved() {
    let run = untrained();
    let refused = run.dipaco(&format!("seed --set run.store=s3://key:hush@{BUCKET}/run"));
    let _ = refused.failed(2, &["run.store has a password"]);
    let saved = std::fs::read_to_string(run.file("config.toml")).unwrap();
    assert!(!saved.contains("hush"), "{saved}");
}

/// Every twentieth request fails, and every fiftieth takes effect without an answer.
fn unreliable(seen: &Seen) -> Fault {
    match seen.number {
        number if number % 50 == 0 => Fault::LoseReply,
        number if number % 20 == 7 => Fault::Refuse(503),
        _ => Fault::None,
    }
}

/// A run of its own whose seed lies at an address, for commands with this environment.
fn seeded_at(address: &str) -> Run {
    let run = untrained().with_environment(environment(address));
    // The folder of the store does not exist any more; everything must come from the address.
    std::fs::remove_dir_all(run.file("store")).unwrap();
    let _ = run.dipaco(&format!("seed --set run.store=s3://{BUCKET}/run")).succeeded();
    run
}

#[test]
fn a_run_in_an_unreliable_store_survives_its_coordinator_and_its_machine_with_the_same_bits() {
    let Some(server) = ObjectStore::start() else { return };
    let proxy = FaultyProxy::before(&server, unreliable);
    let run = seeded_at(&proxy.address);
    let mut train: Process = run.train("--workers 2");
    for _ in 0..6 {
        train.line_with(" committed ");
    }
    train.signal(Signal::KILL);
    let _ = train.finish().killed();
    let run = run.moved(&["config.toml", "data", "routing", "secrets"]);
    let _ = run.train("--workers 2 --resume").finish().succeeded();
    assert_eq!(run.bits(), undisturbed());
    let _ = run.dipaco("evaluate").succeeded();
    let _ =
        run.dipaco(&format!("export --path 1 --out {}", run.folder().join("path-1").display())).succeeded();
    assert!(!run.file("store").exists(), "the run has a local store");
    let replies = proxy.seen();
    let lost = replies.iter().filter(|seen| unreliable(seen) == Fault::LoseReply);
    assert!(lost.count() > 2, "the store was reliable: {} requests", replies.len());
    for file in ["config.toml", "metrics.jsonl", "logs/local-1.log"] {
        let text = std::fs::read_to_string(run.file(file)).unwrap();
        assert!(!text.contains("hush-hush"), "{file} holds a secret");
    }
}

#[test]
fn a_store_that_stands_still_for_longer_than_a_request_may_take_changes_no_bit() {
    let Some(server) = ObjectStore::start() else { return };
    let proxy = FaultyProxy::before(&server, |_| Fault::None);
    let mut variables = environment(&proxy.address);
    variables.push(("AWS_TIMEOUT".to_owned(), "2s".to_owned()));
    let run = seeded_at(&proxy.address).with_environment(variables);
    let mut train = run.train("--workers 2");
    for _ in 0..3 {
        train.line_with(" committed ");
    }
    server.stop();
    let before = proxy.seen().len();
    // The first attempt has exceeded its time, and so has the second.
    train.until("a request is tried for the third time", || {
        let seen = proxy.seen().split_off(before);
        let attempts = |line: &str| seen.iter().filter(|other| other.line == line).count();
        seen.iter().any(|seen| attempts(&seen.line) == 3)
    });
    server.go_on();
    let _ = train.finish().succeeded();
    assert_eq!(run.bits(), undisturbed());
}

#[test]
fn of_two_coordinators_of_a_run_in_an_object_store_the_older_one_ends_and_says_why() {
    let Some(server) = ObjectStore::start() else { return };
    let run = seeded_at(&server.address);
    let mut older = run.coordinator("--listen 127.0.0.1:0");
    older.line_with("listening for workers");
    let deceived = run.worker("deceived");
    older.line_with(" committed ");
    deceived.signal(Signal::STOP);
    // On another machine. The two share nothing but the store.
    let other = run.copy().with_environment(environment(&server.address));
    let mut newer = other.coordinator("--listen 127.0.0.1:0 --resume");
    newer.line_with("listening for workers");
    let worker = other.worker("worker");
    newer.line_with(" committed ");
    deceived.signal(Signal::CONT);
    let _ = older
        .finish()
        .failed(3, &["was replaced by another writer", "stop all coordinators of the run but one"]);
    let _ = newer.finish().succeeded();
    assert_eq!(other.bits(), undisturbed());
    drop((deceived, worker));
}

#[test]
fn a_synchronizer_needs_a_configuration_a_token_and_the_store_and_no_folder_of_its_coordinator() {
    let Some(server) = ObjectStore::start() else { return };
    let run = seeded_at(&server.address);
    let mut coordinator = run.coordinator("--listen 127.0.0.1:0");
    coordinator.line_with("listening for workers");

    let machine = tempfile::tempdir().unwrap();
    let (folder, token) = (machine.path().join("mine"), machine.path().join("synchronizer.token"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(run.file("config.toml"), folder.join("config.toml")).unwrap();
    std::fs::copy(run.file("secrets/synchronizer.token"), &token).unwrap();
    let synchronizer = |store: &str| {
        let mut synchronizer = command(["synchronizer", "-v", "--json", "--modules", "0", "--name", "apart"]);
        synchronizer.arg("--run").arg(&folder).arg("--join").arg(&token);
        synchronizer.arg("--set").arg(format!("run.store={store}"));
        synchronizer.envs(environment(&server.address)).current_dir(machine.path());
        synchronizer
    };
    let elsewhere = folder.join("store");
    for store in [elsewhere.to_str().unwrap(), &format!("s3://{BUCKET}/another")] {
        let _ = output(synchronizer(store)).failed(1, &["does not hold the run", "`run.store`"]);
    }
    assert!(!elsewhere.exists(), "a refused synchronizer has made a store");

    let synchronizer = Process::start(synchronizer(&format!("s3://{BUCKET}/run")));
    coordinator.line_with("takes the outer steps of these modules");
    let worker = run.worker("a");
    let _ = coordinator.finish().succeeded();
    assert_eq!(run.bits(), undisturbed());
    let summary = synchronizer.finish().succeeded().json();
    assert_eq!((&summary["outer_steps"], &summary["lost"]), (&(2 * 3).into(), &0.into()));
    drop(worker);
    let files = snapshot(machine.path()).into_iter().map(|(file, _)| file);
    assert_eq!(files.collect::<Vec<_>>(), [folder.join("config.toml"), token]);
}
