//! The choice of text in the sources of crates.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::listing::list_inputs;
use crate::ShardsError;

/// A kind of text in the sources of crates.
struct Kind {
    extensions: &'static [&'static str],
    /// Share of the chosen bytes.
    share: f64,
}

/// Kinds of text in the sources of crates. The last is licences, which have no extension.
const KINDS: [Kind; 5] = [
    Kind { extensions: &["rs"], share: 0.40 },
    Kind { extensions: &["c", "h", "cc", "cpp"], share: 0.25 },
    Kind { extensions: &["md"], share: 0.20 },
    Kind { extensions: &["toml"], share: 0.075 },
    Kind { extensions: &[], share: 0.075 },
];

/// Largest chosen file: generated tables would crowd out text that people wrote.
const LARGEST_SOURCE_BYTES: u64 = 256 * 1024;

/// Text files of the crates (`name-version`) unpacked under `registries` (the folders in `$CARGO_HOME/registry/src`):
/// Rust, C, Markdown, TOML and licences, together about `max_bytes`.
///
/// The choice depends only on the names and sizes of the files, so all machines with the same lock file choose the same:
/// the files of each kind come in the order of a hash of `crate/path` until the kind's share is full. A kind with too
/// little text leaves the rest of its share to the others.
///
/// # Errors
/// A directory cannot be read.
pub fn crate_sources(
    registries: &[PathBuf],
    crates: &BTreeSet<String>,
    max_bytes: u64,
) -> Result<Vec<PathBuf>, ShardsError> {
    let mut roots = BTreeMap::new();
    for registry in registries {
        for name in crates {
            let root = registry.join(name);
            if root.is_dir() {
                roots.entry(name.clone()).or_insert(root);
            }
        }
    }
    let mut kinds: [BTreeMap<[u8; 32], (PathBuf, u64)>; KINDS.len()] = Default::default();
    for (name, root) in &roots {
        for file in list_inputs(std::slice::from_ref(root))?.files {
            let inside = file.path.strip_prefix(root).unwrap_or(&file.path);
            // Cargo writes this file when it unpacks, and its content depends on the version of cargo.
            let kind = if inside == Path::new("Cargo.toml.orig") { None } else { kind_of(inside) };
            if let Some(kind) = kind
                && (1..=LARGEST_SOURCE_BYTES).contains(&file.bytes)
            {
                let key = blake3::hash(format!("{name}/{}", inside.display()).as_bytes());
                kinds[kind].insert(*key.as_bytes(), (file.path, file.bytes));
            }
        }
    }
    let totals = kinds.each_ref().map(|files| files.values().map(|file| file.1).sum::<u64>());
    let budgets = budgets(&totals, max_bytes);
    let mut chosen = Vec::new();
    for (files, budget) in kinds.into_iter().zip(budgets) {
        let mut taken = 0;
        for (path, bytes) in files.into_values() {
            if taken + bytes <= budget {
                taken += bytes;
                chosen.push(path);
            }
        }
    }
    chosen.sort();
    Ok(chosen)
}

/// Bytes to choose of each kind: its share, plus its part of the bytes that other kinds lack, in proportion to the
/// shares.
fn budgets(totals: &[u64; KINDS.len()], max_bytes: u64) -> [u64; KINDS.len()] {
    let mut budgets = [0; KINDS.len()];
    let (mut left, mut open): (f64, BTreeSet<usize>) = (max_bytes as f64, (0..KINDS.len()).collect());
    loop {
        let shares: f64 = open.iter().map(|&kind| KINDS[kind].share).sum();
        let short =
            open.iter().copied().find(|&kind| (totals[kind] as f64) < left * KINDS[kind].share / shares);
        let Some(kind) = short else {
            open.iter().for_each(|&kind| budgets[kind] = (left * KINDS[kind].share / shares) as u64);
            return budgets;
        };
        budgets[kind] = totals[kind];
        left -= totals[kind] as f64;
        open.remove(&kind);
    }
}

fn kind_of(path: &Path) -> Option<usize> {
    let name = path.file_name()?.to_str()?;
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    if ["LICENSE", "LICENCE", "COPYING", "NOTICE"].iter().any(|start| name.to_uppercase().starts_with(start))
    {
        return Some(KINDS.len() - 1);
    }
    KINDS.iter().position(|kind| kind.extensions.contains(&extension))
}
