//! A run with processes that are killed or stand still in the middle of a round, or with a store or shards that fail for
//! a while, ends with the same bits as an undisturbed run.
#![allow(clippy::unwrap_used)]

use dipaco_tests::file_server::FileServer;
use dipaco_tests::process::{Output, Process, Signal, command, dipaco, field};
use dipaco_tests::run::Run;
use dipaco_tests::training::{undisturbed, untrained};

/// Reads on until the run is in the middle of its second round, and returns the worker that has just got a lease.
fn middle_of_a_round(leader: &mut Process) -> String {
    for _ in 0..6 {
        leader.line_with(" committed ");
    }
    field(&leader.line_with(" lease "), "worker").to_owned()
}

/// The warning of a process whose store or shards fail.
const FAILS: &str = "an operation fails, and is repeated for up to five minutes";

/// Interrupts a worker that may be on its way back to a coordinator that has finished, and would go on trying.
fn dismiss(worker: Process) -> Output {
    worker.signal(Signal::INT);
    let output = worker.finish();
    assert!(matches!(output.status.code(), Some(0 | 130)), "{output:?}");
    output
}

/// Kills a process, and waits until it has ended.
fn kill(process: Process) {
    process.signal(Signal::KILL);
    let _ = process.finish().killed();
}

/// The address at which a coordinator waits for workers.
fn address(coordinator: &mut Process) -> String {
    field(&coordinator.line_with("listening for workers"), "address").to_owned()
}

/// Kills a coordinator, and completes its run with another one at another address than the `old` one.
fn comes_back_elsewhere(run: &Run, coordinator: Process, old: &str) {
    kill(coordinator);
    // Nobody else gets the old port meanwhile.
    let _taken = std::net::UdpSocket::bind(old).unwrap();
    let mut second = run.coordinator("--listen 127.0.0.1:0 --resume");
    assert_ne!(address(&mut second), old);
    let _ = second.finish().succeeded();
}

#[test]
fn four_worker_processes_give_the_bits_of_one() {
    let run = untrained();
    let _ = run.train("--workers 4").finish().succeeded();
    assert_eq!(run.bits(), undisturbed());
}

#[test]
fn a_killed_worker_changes_nothing() {
    let run = untrained();
    let mut train = run.train("--workers 2");
    let worker = middle_of_a_round(&mut train);
    train.kill_worker(&worker);
    train.line_with("a worker ended and is started again");
    let _ = train.finish().succeeded();
    assert_eq!(run.bits(), undisturbed());
}

#[test]
fn a_killed_coordinator_leaves_no_worker_and_resumes_to_the_same_bits() {
    let run = untrained();
    let mut train = run.train("--workers 2");
    middle_of_a_round(&mut train);
    kill(train);
    let _ = run.train("--workers 2").finish().failed(1, &["--resume"]);
    let _ = run.train("--workers 3 --resume").finish().succeeded();
    assert_eq!(run.bits(), undisturbed());
}

#[test]
fn an_interrupted_training_leaves_no_process_and_resumes_to_the_same_bits() {
    let run = untrained();
    let mut train = run.train("--workers 2");
    middle_of_a_round(&mut train);
    train.signal(Signal::INT);
    let _ = train.finish().failed(130, &[]);
    let _ = run.train("--workers 2 --resume").finish().succeeded();
    assert_eq!(run.bits(), undisturbed());
}

#[test]
fn workers_outlive_a_killed_coordinator() {
    let run = untrained();
    let mut first = run.coordinator("--listen 127.0.0.1:0");
    let old = address(&mut first);
    let workers = ["a", "b"].map(|name| run.worker(name));
    middle_of_a_round(&mut first);
    kill(first);
    let second = run.coordinator(&format!("--listen {old} --resume"));
    let _ = second.finish().succeeded();
    let _ = workers.map(dismiss);
    assert_eq!(run.bits(), undisturbed());
}

#[test]
fn workers_and_synchronizers_follow_a_coordinator_that_comes_back_elsewhere() {
    let run = untrained();
    let mut first = run.coordinator("--listen 127.0.0.1:0");
    let old = address(&mut first);
    let mut synchronizer = run.synchronizer("0");
    synchronizer.line_with("listening for workers");
    let workers = ["a", "b"].map(|name| run.worker(name));
    middle_of_a_round(&mut first);
    comes_back_elsewhere(&run, first, &old);
    workers.into_iter().chain([synchronizer]).for_each(|process| drop(dismiss(process)));
    assert_eq!(run.bits(), undisturbed());
}

/// A worker or synchronizer that has the address of its token, and a secret in it.
fn by_address(mut command: std::process::Command, server: &FileServer, file: &str) -> Process {
    command
        .env("DIPACO_JOIN", format!("http://user:hush-hush@{}/{file}?signature=hush-hush", server.address));
    Process::start(command)
}

#[test]
fn workers_and_synchronizers_read_the_address_of_their_token_again_when_the_coordinator_has_moved() {
    let run = untrained();
    let server = FileServer::start(run.file("secrets"));
    let mut first = run.coordinator("--listen 127.0.0.1:0");
    let old = address(&mut first);
    let words = "synchronizer -v --json --modules 0 --name 0";
    let mut synchronizer = by_address(run.command(words), &server, "synchronizer.token");
    synchronizer.line_with("listening for workers");
    let mut worker = command(["worker", "-v", "--threads", "1", "--name", "a", "--cache"]);
    worker.arg(run.folder().join("cache"));
    let worker = by_address(worker, &server, "join.token");
    middle_of_a_round(&mut first);
    let before = server.asked();
    comes_back_elsewhere(&run, first, &old);
    for (file, process) in [("join.token", worker), ("synchronizer.token", synchronizer)] {
        assert_eq!(before.iter().filter(|name| *name == file).count(), 1, "{before:?}");
        // A process notices a lost coordinator after its connection's time limit, which may be after the end of the run.
        server.wait_for(file, 2);
        let output = dismiss(process);
        for secret in ["dipaco1.", "dipaco-helper1.", "hush-hush"] {
            assert!(!output.stderr.contains(secret) && !output.stdout.contains(secret), "{output:?}");
        }
    }
    assert_eq!(run.bits(), undisturbed());
}

#[test]
fn a_worker_without_a_coordinator_asks_to_be_started_again_later() {
    let run = untrained();
    let mut coordinator = run.coordinator("--listen 127.0.0.1:0");
    coordinator.line_with("listening for workers");
    kill(coordinator);
    let join = format!("--join {} --patience 1", run.file("secrets/join.token").display());
    let _ = dipaco(&format!("worker {join}")).failed(75, &["could not be reached for 1 s", "again later"]);
    let join = format!("--join {} --patience 1", run.file("secrets/synchronizer.token").display());
    let synchronizer = run.dipaco(&format!("synchronizer --modules 0 {join}"));
    let _ = synchronizer.failed(75, &["could not be reached for 1 s"]);

    // A server that has no token yet, and then one that is not there.
    let server = FileServer::start(run.file("secrets"));
    let unknown = format!("--join http://{}/other.token", server.address);
    let _ =
        dipaco(&format!("worker {unknown}")).failed(75, &["/other.token answers with the HTTP status 404"]);
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let synchronizer = run.dipaco(&format!("synchronizer --modules 0 --join http://{closed}/s.token"));
    let _ = synchronizer.failed(75, &["/s.token can't be fetched"]);
}

#[test]
fn a_coordinator_that_cannot_take_the_run_over_leaves_the_tokens_as_they_are() {
    let run = untrained();
    let mut first = run.coordinator("--listen 127.0.0.1:0");
    first.line_with("listening for workers");
    kill(first);
    let tokens = || {
        ["join", "synchronizer"]
            .map(|name| std::fs::read_to_string(run.file(&format!("secrets/{name}.token"))).unwrap())
    };
    let before = tokens();
    // The name of the next manifest is taken, as if another coordinator were faster each time.
    let manifests = run.file("store/manifest");
    let names = std::fs::read_dir(&manifests).unwrap().map(|entry| entry.unwrap().file_name());
    let newest = names.filter_map(|name| name.to_str()?.strip_suffix(".json")?.parse::<u64>().ok()).max();
    std::fs::create_dir(manifests.join(format!("{:020}.json", newest.unwrap() + 1))).unwrap();
    let second = run.coordinator("--listen 127.0.0.1:0 --resume");
    let _ = second.finish().failed(3, &["was replaced by another writer"]);
    assert_eq!(tokens(), before);
}

#[test]
fn synchronizer_processes_may_be_killed_and_give_the_same_bits() {
    let run = untrained();
    let mut coordinator = run.coordinator("--listen 127.0.0.1:0");
    coordinator.line_with("listening for workers");
    let synchronizers = ["0", "1"].map(|level| run.synchronizer(level));
    for _ in &synchronizers {
        coordinator.line_with("takes the outer steps of these modules");
    }
    let workers = ["a", "b"].map(|name| run.worker(name));
    middle_of_a_round(&mut coordinator);
    let [first, second] = synchronizers;
    kill(second);
    coordinator.line_with("left; the coordinator takes its outer steps");
    let _ = coordinator.finish().succeeded();
    let summary = first.finish().succeeded().json();
    // Two modules take three steps each.
    assert_eq!(summary["outer_steps"], 6, "{summary}");
    assert!(summary["bytes_received"].as_u64() > Some(10_000), "{summary}");
    let _ = workers.map(dismiss);
    assert_eq!(run.bits(), undisturbed());
}

#[test]
fn a_synchronizer_that_stands_still_with_an_order_loses_its_modules_and_may_wake_up_later() {
    // This merge has one order for each outer step, when the step is due, and none before.
    let settings = "--set outer.merge=trimmed --set train.lease_seconds=3 --set train.standstill_seconds=3";
    let calm = untrained();
    let _ = calm.train(&format!("--workers 1 {settings}")).finish().succeeded();
    let run = untrained();
    let mut coordinator = run.coordinator(&format!("--listen 127.0.0.1:0 {settings}"));
    // The worker meets the coordinator at this address and turns to it at once. So nothing but the order waits for the
    // synchronizer.
    let elsewhere = address(&mut coordinator);
    let words = format!("synchronizer -v --json --modules 0 --name hung --advertise {elsewhere}");
    let hung = Process::start(run.command(&words));
    coordinator.line_with("takes the outer steps of these modules");
    let worker = run.worker("a");
    coordinator.line_with(" committed ");
    hung.signal(Signal::STOP);
    let left = coordinator.line_with("left; the coordinator takes its outer steps");
    // Its connection is open: the transport would notice later, and give another reason.
    assert!(left.contains("it has not taken an outer step in time"), "{left}");
    hung.signal(Signal::CONT);
    let _ = coordinator.finish().succeeded();
    [worker, hung].into_iter().for_each(|process| drop(dismiss(process)));
    assert_eq!(run.bits(), calm.bits());
}

#[test]
fn a_store_that_cannot_be_read_for_a_while_costs_no_worker_and_no_bit() {
    let run = untrained();
    let mut coordinator = run.coordinator("--listen 127.0.0.1:0");
    coordinator.line_with("listening for workers");
    let modules = run.status()["training"]["modules"].clone();
    let weights = modules[0]["fragments"][0]["weights"]["name"].as_str().unwrap().to_owned();
    let (file, kept) = (run.file("store").join(&weights), run.folder().join("kept"));
    std::fs::rename(&file, &kept).unwrap();
    // A link to itself can't be opened, also not by root, and it is not absent.
    std::os::unix::fs::symlink(&file, &file).unwrap();
    let worker = run.worker("a");
    let waits = coordinator.line_with(FAILS);
    assert!(waits.contains(&format!("can't read `{weights}`")), "{waits}");
    std::fs::rename(&kept, &file).unwrap();
    let _ = coordinator.finish().succeeded();
    let _ = dismiss(worker);
    assert_eq!(run.bits(), undisturbed());
}

#[test]
fn a_store_that_cannot_be_written_for_a_while_costs_no_process_and_no_bit() {
    let run = untrained();
    let mut coordinator = run.coordinator("--listen 127.0.0.1:0");
    coordinator.line_with("listening for workers");
    let mut synchronizer = run.synchronizer("0");
    // From here on the coordinator looks at no names, and nothing has a momentum before the first outer step.
    coordinator.line_with("takes the outer steps of these modules");
    let momenta = run.file("store/momenta");
    std::os::unix::fs::symlink(&momenta, &momenta).unwrap();
    let worker = run.worker("a");
    for process in [&mut coordinator, &mut synchronizer] {
        let waits = process.line_with(FAILS);
        assert!(waits.contains("can't write `momenta/"), "{waits}");
    }
    std::fs::remove_file(&momenta).unwrap();
    let _ = coordinator.finish().succeeded();
    [worker, synchronizer].into_iter().for_each(|process| drop(dismiss(process)));
    assert_eq!(run.bits(), undisturbed());
}

#[test]
fn a_shard_that_cannot_be_read_for_a_while_costs_no_worker_and_no_bit() {
    let run = untrained();
    let mut coordinator = run.coordinator("--listen 127.0.0.1:0");
    coordinator.line_with("listening for workers");
    let shards = run.status()["training"]["shards"].clone();
    let shard = run.file("routing").join(shards[0]["file"].as_str().unwrap());
    let kept = run.folder().join("kept");
    std::fs::rename(&shard, &kept).unwrap();
    std::os::unix::fs::symlink(&shard, &shard).unwrap();
    let worker = run.worker("a");
    let waits = coordinator.line_with(FAILS);
    assert!(waits.contains(&shard.display().to_string()), "{waits}");
    std::fs::rename(&kept, &shard).unwrap();
    let _ = coordinator.finish().succeeded();
    let _ = dismiss(worker);
    assert_eq!(run.bits(), undisturbed());
}

/// Fragments that are sent while training goes on, in four bits both ways; moments stay with the workers.
const STREAMING: &str = "--set sync.fragments=2 --set sync.overlap_steps=3 --set sync.blend=0.5 \
    --set outer.compression=e3m0 --set outer.broadcast=e3m0 --set train.state_every=3 --set train.held_paths=2";

#[test]
fn streaming_survives_killed_workers_and_coordinators_with_the_same_bits() {
    // The first fragment is sent after 3, 15, 27 and 36 steps. The second fragment is sent after 9, 21 and 36 steps: its
    // turn after 33 steps is so close to the end that it is sent at the end instead.
    let versions = [4, 3];
    let calm = untrained();
    let _ = calm.train(&format!("--workers 1 {STREAMING}")).finish().succeeded();
    let run = untrained();
    let mut train = run.train(&format!("--workers 2 {STREAMING}"));
    let worker = middle_of_a_round(&mut train);
    train.kill_worker(&worker);
    train.line_with("a worker ended and is started again");
    middle_of_a_round(&mut train);
    kill(train);
    let _ = run.train(&format!("--workers 3 --resume {STREAMING}")).finish().succeeded();
    assert_eq!(run.bits_at(&versions), calm.bits_at(&versions));
}
