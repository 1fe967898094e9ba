//! Mistakes of users, full disks and broken files: each error names the thing, the place and the remedy, has its exit
//! code, and loses no data.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use dipaco_net::RunAuthority;
use dipaco_tests::fixtures::{TINY, corpus, fixture, pages, root};
use dipaco_tests::process::{Process, Signal, binary, clean, dipaco, output, short_of_space};
use dipaco_tests::run::{Run, routed, snapshot, trained};

/// Cuts the end of a file off.
fn cut(file: &Path, bytes: u64) {
    let length = fs::metadata(file).unwrap().len();
    File::options().write(true).open(file).unwrap().set_len(length - bytes).unwrap();
}

/// Writes over the middle of a file.
fn overwrite(file: &Path, at: u64, bytes: &[u8]) {
    let mut file = File::options().write(true).open(file).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(bytes).unwrap();
}

/// Writes an input file beside the run.
fn input(run: &Run, name: &str, bytes: &[u8]) -> PathBuf {
    let file = run.folder().join(name);
    fs::write(&file, bytes).unwrap();
    file
}

#[test]
fn inputs_without_a_document_are_refused_by_name() {
    let run = Run::new();
    for (name, bytes, says) in [
        ("empty.json.gz", &b""[..], "it is empty"),
        ("not.json.gz", b"{\"text\": \"no gzip\"}\n", "its content is not gzip"),
        ("cut.json.gz", &b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xabV*"[..], "cut off"),
        ("bad.jsonl", b"{\"text\": 5}\n{bad\n[1]\n\xff\xfe\n{\"text\": \"\"}\n", "invalid JSON, first at"),
        ("empty.jsonl.zst", b"", "it is empty"),
    ] {
        let file = input(&run, name, bytes);
        let _ = run.prepare([&file]).failed(1, &[name, says, "correct the input"]);
        assert!(!run.file("data/train.json").exists(), "{name}");
    }
    let nowhere = run.folder().join("nowhere.jsonl");
    let _ = run.prepare([&nowhere]).failed(1, &["nowhere.jsonl", "check that the path exists"]);
    let _ = run.dipaco("prepare").failed(2, &["PATH"]);
}

#[test]
fn a_run_inside_the_text_is_left_out() {
    let run = Run::new();
    fs::copy(pages(), run.folder().join("pages.txt.gz")).unwrap();
    let _ = run.prepare([run.folder()]).succeeded();
    fs::create_dir_all(run.file("secrets")).unwrap();
    fs::write(run.file("secrets/join.token"), "secret").unwrap();
    let again = run.prepare([run.folder()]).succeeded().says("nothing to do");
    assert!(again.stderr.contains("run is left out"), "{again:?}");
    let report = fs::read_to_string(run.file("data/report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let paths: Vec<_> = report["files"].as_array().unwrap().iter().map(|file| &file["path"]).collect();
    assert_eq!(paths, [&run.config(), &run.folder().join("pages.txt.gz")].map(|file| file.to_str().unwrap()));
}

#[test]
fn damage_among_good_documents_is_reported_with_its_place() {
    let run = Run::new();
    let bad = input(
        &run,
        "bad.jsonl",
        b"{\"text\": 5}\n{bad\n[1]\n\xff\xfe\n{\"text\": \"kept, and long enough\"}\n",
    );
    let empty = input(&run, "empty.json.gz", b"");
    let mut inputs = corpus();
    inputs.extend([bad, empty]);
    let _ = run.prepare(&inputs).succeeded();
    let report = fs::read_to_string(run.file("data/report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let refused = report["refused"].as_object().unwrap();
    assert_eq!(
        refused.values().map(|refused| refused["count"].as_u64().unwrap()).sum::<u64>(),
        4,
        "{refused:?}"
    );
    assert!(refused.values().all(|refused| refused.to_string().contains("bad.jsonl")), "{refused:?}");
    let files = report["files"].as_array().unwrap();
    let of = |name: &str| files.iter().find(|file| file["path"].as_str().unwrap().ends_with(name)).unwrap();
    assert_eq!(of("bad.jsonl")["documents"], 1);
    assert!(
        of("empty.json.gz")["damage"].as_str().is_some_and(|damage| damage.contains("empty")),
        "{report}"
    );
}

#[test]
fn the_dirty_corpus_gives_the_documents_of_its_readme() {
    let folder = root().join("../shared/corpus/dirty");
    if !folder.exists() {
        eprintln!("skipped: there is no {}", folder.display());
        return;
    }
    let run = Run::new();
    let mut command = run.command("prepare --json");
    command.arg(folder.join("dirty.json.gz"));
    let report = output(command).succeeded().json();
    let kept =
        report["train"]["documents"].as_u64().unwrap() + report["validation"]["documents"].as_u64().unwrap();
    assert!((85..=88).contains(&kept), "{kept} documents: {}", report["refused"]);

    let run = Run::new();
    let mut command = run.command("prepare --json");
    command.arg(folder.join("dirty-truncated.json.gz"));
    let report = output(command).succeeded().json();
    let file = &report["files"][0];
    assert!(file["documents"] == 65 && file["damage"].as_str().unwrap().contains("cut off"), "{file}");
}

#[test]
fn errors_in_a_configuration_name_the_key() {
    let check = |set: &str| dipaco(&format!("config check --set {set}"));
    for (set, says) in [
        ("model.head_dim=15", &["model.head_dim", "even"][..]),
        ("model.hidden_size=0", &["model.hidden_size", "from 1"]),
        ("model.heads=0", &["model.heads"]),
        ("model.blocks=5", &["topology.levels", "block 4"]),
        ("model.blocks=many", &["model.blocks", "expected a whole number"]),
        ("topology.levels=3", &["topology.levels"]),
        ("train.sequence_tokens=1000", &["train.sequence_tokens", "model.context"]),
        ("train.ronds=5", &["train.ronds", "did you mean `train.rounds`"]),
        ("serve.adress=x", &["serve.adress", "did you mean `serve.address`"]),
        ("rounds", &["rounds"]),
    ] {
        let _ = check(set).failed(2, says);
    }
    let run = Run::new();
    for (lines, says) in [
        ("[serve]\nport = 1", "serve.port"),
        ("[[topology.levels]]\nmodules = 0", "modules"),
        ("[[topology.levels]]\nmodules = 2\nblocks = \"0\"", "block 0"),
        ("[train", "e2e.toml"),
    ] {
        fs::write(run.config(), format!("{TINY}\n{lines}\n")).unwrap();
        let _ = run.prepare(corpus()).failed(2, &["e2e.toml", says]);
    }
    assert!(!run.directory().exists(), "an invalid configuration starts nothing");
    let _ = dipaco("config check --config nowhere.toml").failed(2, &["nowhere.toml"]);
    let _ = dipaco("trane").failed(2, &["trane"]);
}

#[test]
fn a_step_out_of_order_names_the_missing_step() {
    let run = Run::new();
    let _ = run.dipaco("seed").failed(2, &["there is no run in", "dipaco prepare"]);
    let _ = run.prepare(corpus()).succeeded();
    let _ = run.dipaco("route fit").failed(1, &["dipaco seed"]);
    let _ = run.dipaco("train").failed(1, &["dipaco route"]);
    let routed = routed().copy();
    let _ = routed.dipaco("serve --address 127.0.0.1:0").failed(1, &["not been trained", "dipaco train"]);
    let _ = routed.dipaco("export --path 0 --out x").failed(1, &["not been trained", "dipaco train"]);
}

#[test]
fn every_step_refuses_another_tokenizer() {
    // Both have as many tokens, so that only the hash differs.
    let other = Run::new();
    let _ = other.prepare([pages()]).succeeded();
    let run = trained().copy();
    fs::copy(other.file("data/tokenizer.json"), run.file("data/tokenizer.json")).unwrap();
    let out = run.folder().join("out");
    for step in ["seed", "route fit", "route assign"] {
        let _ = run.dipaco(step).failed(1, &["train.json was made with tokenizer", "prepare the text again"]);
    }
    let export = format!("export --path 0 --out {}", out.display());
    for step in ["route inspect", "train --resume", "evaluate", "serve --address 127.0.0.1:0", &export] {
        let _ = run.dipaco(step).failed(1, &["tokenizer.json", "routed with the tokenizer", "put that"]);
    }
    assert!(!out.exists());
    fs::write(run.file("data/tokenizer.json"), "{").unwrap();
    let _ = run.dipaco("serve --address 127.0.0.1:0").failed(1, &["tokenizer.json"]);
}

#[test]
fn damaged_shards_are_reported_before_training_and_route_assign_makes_them_again() {
    let other = Run::new();
    let _ = other.prepare([pages(), fixture("corpus/licence.txt.gz")]).succeeded();
    for step in ["seed", "route fit", "route assign"] {
        let _ = other.dipaco(step).succeeded();
    }
    let run = routed().copy();
    let shard = run.file("routing/train/path-001/00000.h5");
    let whole = fs::read(&shard).unwrap();
    cut(&shard, 1000);
    let _ = run.dipaco("train").failed(1, &["path-001/00000.h5", "damaged", "copy it again"]);
    fs::write(&shard, &whole).unwrap();
    overwrite(&shard, 100, b"garbage in the header");
    let _ = run.dipaco("train").failed(1, &["path-001/00000.h5"]);
    fs::write(&shard, b"no token file").unwrap();
    let _ = run.dipaco("train").failed(1, &["path-001/00000.h5"]);
    fs::copy(other.file("routing/train/path-001/00000.h5"), &shard).unwrap();
    let _ = run.dipaco("train").failed(1, &["path-001/00000.h5", "was made with tokenizer"]);
    fs::copy(run.file("routing/train/path-000/00000.h5"), &shard).unwrap();
    let _ = run.dipaco("train").failed(1, &["path-001/00000.h5", "its content hash is", "is listed"]);
    fs::remove_file(&shard).unwrap();
    let _ = run.dipaco("train").failed(1, &["path-001/00000.h5"]);
    assert!(!run.file("logs").exists(), "no worker was started");
    let _ = run.dipaco("route assign").succeeded();
    assert_eq!(fs::read(&shard).unwrap(), whole, "the same shard again");
}

#[test]
fn damaged_files_of_a_run_are_named() {
    let run = trained().copy();
    let tokens = run.file("data/pieces/00000-train.h5");
    cut(&tokens, 1000);
    let _ = run.dipaco("seed").failed(1, &["00000-train.h5", "damaged", "prepare it again"]);
    let _ = run.prepare(corpus()).succeeded();
    let _ = run.dipaco("seed").succeeded().says("was there already");

    let module = run.status()["training"]["modules"][0]["fragments"][0]["weights"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    let files = snapshot(&run.file("store"));
    let (file, _) = files.iter().find(|(file, _)| file.ends_with(&module)).unwrap();
    let whole = fs::read(file).unwrap();
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    for bytes in [&whole[..whole.len() - 100], &flipped, b""] {
        fs::write(file, bytes).unwrap();
        for step in ["evaluate", "serve --address 127.0.0.1:0", "export --path 0 --out x"] {
            let _ = run.dipaco(step).failed(1, &[&module, "restore it"]);
        }
    }
    fs::write(file, &whole).unwrap();
    fs::write(run.file("routing/router.bin"), "no router").unwrap();
    let _ = run.dipaco("serve --address 127.0.0.1:0").failed(1, &["router.bin", "dipaco route fit"]);
    fs::write(run.file("config.toml"), "[run\n").unwrap();
    let _ = run.dipaco("status").failed(2, &["config.toml"]);
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let _ = trained().dipaco(&format!("serve --address {address}")).failed(1, &[&address, "--address"]);
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let _ =
        routed().copy().dipaco(&format!("train --listen {address}")).failed(1, &[&address, "another port"]);
}

#[test]
fn workers_with_wrong_tokens_are_refused_and_the_run_goes_on() {
    let run = routed().copy();
    let mut coordinator = Process::start(run.command("coordinator --listen 127.0.0.1:0"));
    let token = run.file("secrets/join.token");
    coordinator.until("the token is written", || token.exists());
    let text = fs::read_to_string(&token).unwrap();
    let worker = |token: &str| dipaco(&format!("worker --patience 1 --join {token}"));

    let listed = worker(&format!("{} --cpus 2-1", token.display()));
    let _ = listed.failed(2, &["--cpus", "no list of processors"]);
    let missing = worker(&format!("{} --cpus 60000", token.display()));
    let _ = missing.failed(1, &["can't run on the processors 60000"]);
    let _ = worker("garbage").failed(1, &["can't read a join token from `garbage`", "join.token"]);
    // A private key on the command line is visible to everybody on the machine.
    let _ = worker(text.trim()).failed(2, &["--join takes a file", "DIPACO_TOKEN"]);
    let _ = worker("http://lead.example/join.token").failed(2, &["everybody on the way", "use https://"]);
    let signed = worker("https://lead.example/join.token?signature=hush-hush");
    assert!(!signed.stderr.contains("hush-hush"), "{signed:?}");
    let _ = signed.failed(2, &["other users of this machine", "DIPACO_JOIN"]);
    let half = input(&run, "half.token", &text.as_bytes()[..text.len() / 2]);
    let _ = worker(half.to_str().unwrap())
        .failed(1, &["no join token", "copy the whole file secrets/join.token"]);
    let mut changed = text.into_bytes();
    let middle = changed.len() / 2;
    changed[middle] = if changed[middle] == b'A' { b'B' } else { b'A' };
    let changed = input(&run, "changed.token", &changed);
    let _ = worker(changed.to_str().unwrap()).failed(1, &["no join token"]);

    // The right address with keys of another run.
    let parsed = dipaco_net::JoinToken::read_from(&token).unwrap();
    let now = SystemTime::now();
    let stranger = RunAuthority::create("another-run", now).unwrap();
    let stranger =
        stranger.issue("worker", "worker", parsed.addresses, now, Duration::from_secs(3600)).unwrap();
    let stranger = input(&run, "stranger.token", stranger.to_string().as_bytes());
    let _ = worker(stranger.to_str().unwrap()).failed(1, &["another-run"]);

    let cache = run.folder().join("cache");
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let place = format!("--join {} --cache {} --cpus {allowed}", token.display(), cache.display());
    let good = dipaco(&format!("worker {place} --json"));
    assert_eq!(good.succeeded().json()["leases"], 12, "four paths, three rounds");
    let _ = coordinator.finish().succeeded();
}

#[test]
fn a_token_needs_an_address_that_others_reach() {
    let run = routed().copy();
    for command in ["token issue a", "coordinator", "synchronizer --modules 0"] {
        for wrong in ["nohost", "host:99999"] {
            let _ = run.dipaco(&format!("{command} --advertise {wrong}")).failed(2, &[wrong, "HOST:PORT"]);
        }
    }
    let mut coordinator = Process::start(run.command("coordinator --listen 127.0.0.1:0"));
    let token = run.file("secrets/join.token");
    coordinator.until("the token is written", || token.exists());
    let issued = run.dipaco("token issue a").succeeded().says("dipaco1.");
    assert!(issued.stderr.contains("only this machine reaches"), "{issued:?}");
    let issued = run.dipaco("token issue a --advertise lead.example:7440").succeeded();
    assert!(!issued.stderr.contains("only this machine reaches"), "{issued:?}");
    coordinator.signal(Signal::INT);
    let _ = coordinator.finish().failed(130, &["interrupted"]);
}

#[test]
fn garbage_on_the_coordinators_port_changes_nothing() {
    let run = routed().copy();
    let mut training = Process::start(run.command("train --workers 2"));
    let token = run.file("secrets/join.token");
    training.until("the token is written", || token.exists());
    let address = dipaco_net::JoinToken::read_from(&token).unwrap().addresses[0].clone();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut state = 1_u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    for size in (0..1500).step_by(37).chain([9_000, 65_507]) {
        let mut datagram: Vec<u8> = (0..size).map(|_| random()).collect();
        let _ = socket.send_to(&datagram, &address);
        // The long header of QUIC version 1, and nonsense after it.
        let start = [0xc0, 0, 0, 0, 1, 8];
        let head = start.len().min(datagram.len());
        datagram[..head].copy_from_slice(&start[..head]);
        let _ = socket.send_to(&datagram, &address);
    }
    let _ = training.finish().succeeded();
    assert_eq!(run.weights(), trained().weights(), "the same weights as a run that was left in peace");
}

/// The files below a folder that `before` does not hold: each must be complete.
fn new_files(folder: &Path, before: &[(PathBuf, u64)]) -> Vec<PathBuf> {
    let old = |file: &PathBuf| before.iter().any(|(before, _)| before == file);
    snapshot(folder).into_iter().map(|(file, _)| file).filter(|file| !old(file)).collect()
}

#[test]
fn a_full_disk_is_reported_and_leaves_no_partial_file() {
    let run = Run::new();
    let mut prepare = run.command("prepare");
    prepare.args(corpus());
    let _ = output(short_of_space(&prepare, 50)).failed(1, &["-train.h5", "free disk space", "too large"]);
    // The tokenizer is complete and stays for the next attempt.
    let names: Vec<_> =
        new_files(&run.file("data"), &[]).iter().map(|file| file.file_name().unwrap().to_owned()).collect();
    assert_eq!(names, ["tokenizer-record.json", "tokenizer.json"]);

    let _ = run.prepare(corpus()).succeeded();
    let before = snapshot(&run.directory());
    let _ = output(short_of_space(&run.command("seed"), 50)).failed(1, &["seed/20", "free disk space"]);
    let left = new_files(&run.file("store"), &before);
    assert_eq!(left, Vec::<PathBuf>::new());
    let _ = run.dipaco("seed").succeeded();
    let _ = run.dipaco("route fit").succeeded();
    let _ = output(short_of_space(&run.command("route assign"), 50)).failed(1, &["routing/train"]);
    assert!(!run.file("routing/train/shards.json").exists());
    let _ = run.dipaco("route assign").succeeded();

    let train = run.command("train --workers 1");
    let _ = output(short_of_space(&train, 50)).failed(1, &["modules/", "free disk space"]);
    let _ = run.dipaco("train --resume").succeeded();
    assert_eq!(
        run.weights(),
        trained().weights(),
        "an interrupted run ends with the weights of an uninterrupted run"
    );
}

#[test]
fn a_full_file_system_is_reported() {
    let run = Run::new();
    let mount = run.folder().join("small");
    fs::create_dir(&mount).unwrap();
    let script = "mount -t tmpfs -o size=300k none \"$0\"";
    let unshared = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", script]).arg(&mount);
        command
    };
    let possible = unshared(script).output().is_ok_and(|output| output.status.success());
    if !possible {
        eprintln!("skipped: this machine allows no mounts");
        return;
    }
    let mut command = unshared(&format!("{script} && exec \"$@\""));
    command.arg(binary()).args(["prepare", "--run"]).arg(mount.join("run")).arg("--config").arg(run.config());
    let _ = output(clean(command, corpus())).failed(1, &["-train.h5", "free disk space", "No space left"]);
}
