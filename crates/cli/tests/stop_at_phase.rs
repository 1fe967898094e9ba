//! `train --stop-at-phase`: why the training ended, and the settings that it left.
#![expect(clippy::unwrap_used, reason = "a test that can't run the binary has failed")]

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::time::{Duration, SystemTime};

mod support;

use support::{FIXTURES, dipaco, succeeds};

/// Asserts that a training is refused with these words, and leaves the run's settings.
fn refused(run: &str, words: &[&str], says: &str) {
    let saved = || fs::read_to_string(format!("{run}/config.toml")).unwrap();
    let before = saved();
    let (code, out, err) = dipaco(&[&["train", "--run", run, "--workers", "1"][..], words].concat());
    assert!(code == 1 && err.contains(says), "{words:?}: {out}{err}");
    assert_eq!(saved(), before, "{words:?}");
}

#[test]
fn a_training_says_why_it_stopped_and_a_refused_one_leaves_the_settings() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run").to_str().unwrap().to_owned();
    let (config, text) = (format!("{FIXTURES}/tiny.toml"), format!("{FIXTURES}/corpus"));
    // Overlapping shards give each path documents of so little text.
    let short = [
        "--set=train.rounds=2",
        "--set=routing.router_share=0.2",
        "--set=routing.overlap=3",
        "--set=routing.phases=[{ round = 1 }]",
    ];
    succeeds(&[&["prepare", "--config", &config, "--run", &run, &text][..], &short].concat());
    for step in [&["seed"][..], &["route", "fit"], &["route", "assign"]] {
        succeeds(&[step, &["--run", &run]].concat());
    }
    refused(&run, &["--set", "topology.levels.0.modules=3"], "4 shards");
    refused(&run, &["--set", "model.ffn_size=48"], "is not a module file of this model");

    // A training that can't listen has not begun, so the next one needs no `--resume`.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let joined = UdpSocket::bind("127.0.0.1:0").unwrap();
    refused(&run, &["--listen", &joined.local_addr().unwrap().to_string()], "choose another port");
    refused(&run, &["--http", &address], "nobody can watch this process");

    let train = ["train", "--run", &run, "--workers", "1", "--stop-at-phase"];
    let out = succeeds(&[&train[..], &["--set", "serve.slots=5"]].concat());
    let why = "\nstopped after round 1, where phase 1 of routing begins: run `dipaco route score` and `dipaco route refit`, \
               then continue with --resume\n";
    assert!(out.starts_with("trained 1 of 2 rounds") && out.ends_with(why), "{out}");
    let saved: toml::Table = fs::read_to_string(format!("{run}/config.toml")).unwrap().parse().unwrap();
    assert_eq!(saved["serve"]["slots"].as_integer(), Some(5));

    let slots = ["--set", "serve.slots=6"];
    refused(&run, &slots, "--resume");
    let watched = ["--resume", "--http", &address];
    refused(&run, &[&watched[..], &slots].concat(), "nobody can watch this process");

    // A process that was killed while it wrote scores.
    let left = folder.path().join("run/routing/scores/.path-000.f32a1B2c3.tmp");
    fs::create_dir_all(left.parent().unwrap()).unwrap();
    fs::write(&left, "half").unwrap();
    let two_hours = Duration::from_secs(2 * 3600);
    fs::File::open(&left).unwrap().set_modified(SystemTime::now() - two_hours).unwrap();
    for step in ["score", "refit"] {
        succeeds(&["route", step, "--run", &run]);
    }
    assert!(!left.exists(), "unfinished scores of a process that is gone");
    let out = succeeds(&[&train[..], &["--resume"]].concat());
    let why = "\nthe run is complete: --stop-at-phase found no boundary to stop at: the routers of all phases are fitted\n";
    assert!(out.starts_with("trained 2 of 2 rounds") && out.ends_with(why), "{out}");
}
