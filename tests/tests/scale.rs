//! Preparing and routing in parts, and after a failure.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use dipaco_tests::fixtures::corpus;
use dipaco_tests::process::{output, short_of_space};
use dipaco_tests::run::{Run, routed, snapshot};

/// Every file below a folder of a run, with the hash of its content.
fn files(run: &Run, folder: &str) -> Vec<(PathBuf, u64)> {
    let root = run.directory();
    snapshot(&run.file(folder))
        .into_iter()
        .map(|(file, hash)| (file.strip_prefix(&root).unwrap().to_owned(), hash))
        .collect()
}

fn prepare(run: &Run, words: &str) -> Command {
    let mut command = run.command(&format!("prepare {words}"));
    command.args(corpus());
    command
}

#[test]
fn a_run_in_parts_equals_the_run_in_one_go() {
    let parts = Run::new();
    let _ = output(prepare(&parts, "--part 1/2")).failed(1, &["part 1/2", "--tokenizer-only"]);
    let _ = output(prepare(&parts, "--part 3/2")).failed(2, &["3/2"]);
    let _ = output(prepare(&parts, "--tokenizer-only")).succeeded();
    // The corpus is small: it is one piece, and the second part has nothing to do.
    let _ = output(prepare(&parts, "--part 2/2")).succeeded();
    let _ = output(prepare(&parts, "--part 1/2")).succeeded().says("without --part lists their files");
    let _ = output(prepare(&parts, "")).succeeded();
    let _ = output(prepare(&parts, "")).succeeded().says("nothing to do");
    let _ = parts.dipaco("seed").succeeded();
    let _ = parts.dipaco("route features --part 2/2").succeeded();
    let _ = parts.dipaco("route fit").failed(1, &["part 1/2", "dipaco route features --part 1/2"]);
    let _ = parts.dipaco("route features --part 1/2").succeeded();
    let _ = parts.dipaco("route fit").succeeded();
    // The text is one section, too, so one of the parts has work. Parts that are missing are the subject of the routing
    // package's tests.
    for part in ["1/3", "3/3", "3/3", "2/3"] {
        let _ = parts.dipaco(&format!("route assign --part {part}")).succeeded();
    }
    let _ = parts.dipaco("route assign").succeeded();
    assert_eq!(files(&parts, "routing"), files(routed(), "routing"));
}

#[test]
fn an_assignment_that_met_a_full_disk_continues_when_there_is_space() {
    let own = routed().copy();
    fs::remove_dir_all(own.file("routing/train")).unwrap();
    fs::remove_dir_all(own.file("routing/validation")).unwrap();
    // There is room for some decisions, then for all decisions and no shard, then for small shards only.
    for kilobytes in [1, 4, 20] {
        let _ = output(short_of_space(&own.command("route assign"), kilobytes)).failed(1, &["routing/train"]);
        assert!(!own.file("routing/train/shards.json").exists());
        assert!(own.file("routing/train/parts").exists());
    }
    let _ = own.dipaco("route assign").succeeded();
    assert_eq!(files(&own, "routing"), files(routed(), "routing"));
}
