//! The packages of other people in the program and in the Python module: their licences are allowed, and the program shows their notices.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use dipaco_tests::fixtures::root;

/// The targets of `about.toml` and `deny.toml`.
const TARGETS: [&str; 4] =
    ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "x86_64-apple-darwin", "aarch64-apple-darwin"];
/// HDF5's package names a file in place of an identifier.
const CLARIFIED: (&str, &str) = ("hdf5-metno-src", "BSD-3-Clause");

/// Names and versions of the packages of other people in the program and the Python module on all targets, with their licences. `cargo tree`
/// knows which optional packages are in use.
fn packages() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for target in TARGETS {
        let mut tree = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
        tree.args([
            "tree",
            "--locked",
            "-p",
            "dipaco-cli",
            "-p",
            "dipaco-python",
            "-e",
            "normal",
            "--prefix",
            "none",
        ]);
        let output = tree.args(["--target", target, "-f", "{p}|{l}"]).current_dir(root()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for line in String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with("dipaco-"))
        {
            let (package, licence) = line.split_once('|').unwrap();
            let mut words = package.split(' ');
            let (name, version) = (words.next().unwrap(), words.next().unwrap().trim_start_matches('v'));
            let licence = licence.trim_end_matches(" (*)");
            let licence = if name == CLARIFIED.0 { CLARIFIED.1 } else { licence };
            assert!(!licence.is_empty(), "{name} names no licence");
            found.insert(format!("{name} {version}"), licence.to_owned());
        }
    }
    assert!(found.len() > 200, "{} packages", found.len());
    found
}

/// The texts of a list of a TOML file.
fn list(file: &str, section: &str, key: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join(file)).unwrap();
    let table: toml::Table = text.parse().unwrap();
    let section = if section.is_empty() { &table } else { table[section].as_table().unwrap() };
    section[key].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_licence_is_allowed() {
    let allowed = list("deny.toml", "licenses", "allow");
    assert_eq!(allowed, list("about.toml", "", "accepted"), "deny.toml and about.toml allow the same");
    let mut wrong = Vec::new();
    for (package, licence) in packages() {
        let expression = spdx::Expression::parse_mode(&licence, spdx::ParseMode::LAX);
        let expression = expression.unwrap_or_else(|error| panic!("{package}: {error}"));
        // The identifier with its exception, as in the files.
        if !expression.evaluate(|requirement| allowed.contains(&requirement.to_string())) {
            wrong.push(format!("{package}: {licence}"));
        }
    }
    assert!(wrong.is_empty(), "not in the list of deny.toml: {wrong:?}");
}

#[test]
fn the_program_shows_the_notices_of_exactly_its_packages() {
    let notices = fs::read_to_string(root().join("crates/cli/third-party.txt")).unwrap();
    // Below the head of each licence stand its packages, until an empty line.
    let shown: BTreeSet<String> = notices
        .split("\n====")
        .skip(1)
        .flat_map(|licence| licence.lines().skip(2).take_while(|line| !line.is_empty()))
        .map(|line| line.trim().to_owned())
        .collect();
    let packages: BTreeSet<String> = packages().into_keys().collect();
    let missing: Vec<_> = packages.difference(&shown).collect();
    let gone: Vec<_> = shown.difference(&packages).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "crates/cli/third-party.txt lacks {missing:?} and has {gone:?}: make it anew as about.toml says"
    );
}

#[test]
fn the_program_shows_the_notices_of_the_c_libraries_in_its_packages() {
    let notices = fs::read_to_string(root().join("crates/cli/third-party.txt")).unwrap();
    // The packages around them have other authors. about.toml names their files.
    for (library, notice) in [
        ("jemalloc", "Copyright (C) 2002-present Jason Evans"),
        ("Oniguruma", "Copyright (c) 2002-2021  K.Kosako"),
        ("zlib", "(C) 1995-2026 Jean-loup Gailly and Mark Adler"),
        ("Zstandard", "Copyright (c) Meta Platforms, Inc. and affiliates"),
        ("HDF5", "by The HDF Group"),
    ] {
        assert!(
            notices.contains(notice),
            "no notice of {library}: make crates/cli/third-party.txt anew as about.toml says"
        );
    }
}
