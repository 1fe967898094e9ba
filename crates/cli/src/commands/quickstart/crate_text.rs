//! The quickstart's own text: the sources of this program's dependencies, which every build puts on the disk.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::error::CliError;

/// The lock file of this program. Its crates are the text.
const LOCK: &str = include_str!("../../../../../Cargo.lock");
/// Size of the text in bytes.
const BYTES: u64 = 20_000_000;

/// About 20 MB of Rust, C, Markdown, TOML and licences, the same files on every machine that has built this program.
pub(crate) fn files() -> Result<Vec<PathBuf>, CliError> {
    let crates = built_everywhere()?;
    let source = cargo_home().join("registry").join("src");
    let entries = std::fs::read_dir(&source).map_err(|_| CliError::NoCrates { folder: source.clone() })?;
    let mut registries: Vec<_> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    registries.sort();
    let files = dipaco_shards::crate_sources(&registries, &crates, BYTES)?;
    if files.is_empty() { Err(CliError::NoCrates { folder: source }) } else { Ok(files) }
}

/// True for the Markdown among these files, about 4 MB of English.
pub(crate) fn is_english(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "md")
}

/// Cargo's folder of downloads.
fn cargo_home() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home).unwrap_or_else(|| PathBuf::from(".cargo"))
}

/// The locked crates, without the crates that only builds for other systems unpack.
fn built_everywhere() -> Result<BTreeSet<String>, CliError> {
    let lock: toml::Table =
        LOCK.parse().map_err(|source| CliError::OwnFile { file: "Cargo.lock", source: Box::new(source) })?;
    let other_systems =
        ["windows", "winapi", "wasm", "web-", "js-sys", "objc", "core-foundation", "android", "redox"];
    let packages = lock.get("package").and_then(toml::Value::as_array).into_iter().flatten();
    let text = |package: &toml::Value, key| package.get(key).and_then(toml::Value::as_str).map(str::to_owned);
    Ok(packages
        .filter(|package| package.get("source").is_some())
        .filter_map(|package| Some((text(package, "name")?, text(package, "version")?)))
        .filter(|(name, _)| !other_systems.iter().any(|system| name.starts_with(system)))
        .map(|(name, version)| format!("{name}-{version}"))
        .collect())
}
