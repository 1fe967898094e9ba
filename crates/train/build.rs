//! Computes the build id: a hash of the sources on which the weights of a run depend.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};

/// The packages that this package is built of, and this package itself.
const PACKAGES: [&str; 20] = [
    "crates/codec",
    "crates/config",
    "crates/cuda",
    "crates/files",
    "crates/ledger",
    "crates/model",
    "crates/net",
    "crates/ops",
    "crates/optim",
    "crates/path",
    "crates/protocol",
    "crates/settings",
    "crates/store",
    "crates/sync",
    "crates/telemetry",
    "crates/tokens",
    "crates/topology",
    "crates/train",
    "routing",
    "shards",
];

fn main() -> io::Result<()> {
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let root = package.join("../..");
    let mut files = vec![root.join("Cargo.lock")];
    for name in PACKAGES {
        let sources = root.join(name).join("src");
        println!("cargo:rerun-if-changed={}", sources.display());
        collect(&sources, &mut files)?;
    }
    println!("cargo:rerun-if-changed={}", root.join("Cargo.lock").display());
    // A hash of contents only: the id is the same in every folder.
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        hasher.write(&fs::read(file)?);
    }
    println!("cargo:rustc-env=DIPACO_BUILD={:016x}", hasher.finish());
    Ok(())
}

/// Adds all files of a folder.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
