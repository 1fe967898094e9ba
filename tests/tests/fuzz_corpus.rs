//! Each campaign of damaged inputs has inputs that every run plays first, in `tests/fixtures/fuzz`.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use dipaco_tests::fixtures::{fixture, root};

/// Most bytes of a kept input, so that the repository stays small.
const MOST_BYTES: u64 = 20_000;

/// Adds the names of the campaigns that the files of Rust below a folder play.
fn campaigns(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            campaigns(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let begins = text.split("Campaign::new(\"").skip(1);
            found.extend(begins.map(|rest| rest.split('"').next().unwrap().to_owned()));
        }
    }
}

#[test]
fn each_campaign_has_kept_inputs() {
    let mut expected = BTreeSet::new();
    for folder in ["crates", "routing", "shards"] {
        campaigns(&root().join(folder), &mut expected);
    }
    // The tests of campaigns play one without a corpus.
    assert!(expected.remove("none") && expected.len() >= 22, "{expected:?}");
    let mut found = BTreeSet::new();
    for folder in fs::read_dir(fixture("fuzz")).unwrap() {
        let folder = folder.unwrap();
        for file in fs::read_dir(folder.path()).unwrap() {
            let file = file.unwrap();
            let bytes = file.metadata().unwrap().len();
            assert!((1..=MOST_BYTES).contains(&bytes), "{}: {bytes} bytes", file.path().display());
            found.insert(folder.file_name().into_string().unwrap());
        }
    }
    assert_eq!(found, expected, "a campaign and its folder in tests/fixtures/fuzz have the same name");
}
