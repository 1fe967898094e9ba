//! The arrows between packages are those of `docs/ARCHITECTURE.md`.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The table "may use" of the document.
fn allowed() -> BTreeMap<String, BTreeSet<String>> {
    let text = std::fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap();
    let table = text.split("| package | holds | may use |").nth(1).expect("the table of packages");
    let mut rows = BTreeMap::new();
    for line in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let uses = cells[2].split(',').map(str::trim).filter(|name| *name != "–");
        rows.insert(cells[0].to_owned(), uses.map(str::to_owned).collect());
    }
    rows
}

#[test]
fn every_package_uses_only_what_it_may() {
    let metadata = MetadataCommand::new().manifest_path(root().join("Cargo.toml")).no_deps().exec().unwrap();
    let allowed = allowed();
    let own = |name: &str| name.strip_prefix("dipaco-").map(str::to_owned);
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for package in metadata.workspace_packages() {
        let name = own(&package.name).expect("packages are named dipaco-…");
        let Some(may) = allowed.get(&name) else {
            wrong.push(format!("{name} is not in the table"));
            continue;
        };
        let uses =
            package.dependencies.iter().filter(|dependency| dependency.kind != DependencyKind::Development);
        let uses =
            if name == "tests" { package.dependencies.iter().collect() } else { uses.collect::<Vec<_>>() };
        for used in uses.iter().filter_map(|dependency| own(&dependency.name)) {
            if !may.contains(&used) {
                wrong.push(format!("{name} uses {used}"));
            }
        }
        seen.insert(name);
    }
    for name in allowed.keys().filter(|name| !seen.contains(*name)) {
        wrong.push(format!("{name} is in the table and not in the workspace"));
    }
    assert!(wrong.is_empty(), "docs/ARCHITECTURE.md does not allow it: {}", wrong.join("; "));
}

#[test]
fn the_core_knows_no_io_and_no_clock() {
    let forbidden = ["tokio", "quinn", "candle-core", "object_store", "hdf5-metno"];
    let metadata = MetadataCommand::new().manifest_path(root().join("Cargo.toml")).no_deps().exec().unwrap();
    let sync =
        metadata.workspace_packages().into_iter().find(|package| *package.name == "dipaco-sync").unwrap();
    let used: Vec<_> = sync.dependencies.iter().filter(|d| forbidden.contains(&d.name.as_str())).collect();
    assert!(used.is_empty(), "dipaco-sync depends on {used:?}");
    for file in rust_files(&root().join("crates/sync/src")) {
        let text = std::fs::read_to_string(&file).unwrap();
        for word in ["std::fs", "std::net", "std::thread", "SystemTime", "Instant::now"] {
            assert!(!text.contains(word), "{} uses {word}", file.display());
        }
    }
}

/// The files of Rust below `folder`.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
    found
}

/// Blocks of `unsafe` have one place, where they can be read together.
#[test]
fn unsafe_code_has_its_places() {
    let mut found = Vec::new();
    for file in ["crates", "routing"].iter().flat_map(|folder| rust_files(&root().join(folder))) {
        let text = std::fs::read_to_string(&file).unwrap();
        let mut code = text.lines().map(str::trim_start).filter(|line| !line.starts_with("//"));
        if code.any(|line| {
            line.contains("unsafe {") || line.contains("unsafe fn") || line.contains("unsafe impl")
        }) {
            found.push(file.display().to_string());
        }
    }
    found.retain(|file| !["crates/ops/", "crates/cuda/"].iter().any(|place| file.contains(place)));
    assert!(found.is_empty(), "unsafe code outside ops, cuda and shards: {found:?}");
}
