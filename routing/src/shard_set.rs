//! The shards of all paths: a token set for each, and a manifest with their hashes.

mod verify;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use dipaco_shards::TokenSet;
use dipaco_topology::PathId;
use serde::{Deserialize, Serialize};

use crate::{Router, RoutingError};

/// Name of the manifest in the folder of the shards.
const MANIFEST: &str = "shards.json";
const FORMAT: &str = "dipaco-shard-set";
/// Version of the shard set format that this program writes and reads.
pub const SHARD_SET_FORMAT_VERSION: u32 = 3;
/// Remedy for shards that the manifest does not describe.
const ASSIGN_AGAIN: &str = "run route assign again";
/// Largest manifest that is read, in bytes; 256 paths need 300 KB.
const LARGEST_MANIFEST: u64 = 256 << 20;

/// Name of the documents that are reserved for the router: of their folder, and with `.json` of their list.
pub(crate) const ROUTER_DOCUMENTS: &str = "router";

/// What the names of shards begin with.
const SHARD: &str = "path-";

/// The name of a path's shard: of its folder, and with `.json` of its list.
pub(crate) fn shard_name(path: PathId) -> String {
    format!("{SHARD}{:03}", path.0)
}

/// The file name of the list of a path's shard.
#[must_use]
pub fn shard_file_name(path: PathId) -> String {
    format!("{}.json", shard_name(path))
}

/// The manifest of a folder of shards: `shards.json`, written last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardManifest {
    /// Always `dipaco-shard-set`.
    pub format: String,
    /// Version of this format.
    pub version: u32,
    /// Hash of the router ([`Router::hash`]).
    pub router_hash: String,
    /// Hash of the seed model that the features come from.
    pub seed_hash: String,
    /// Content hash of the divided token set.
    pub tokens_hash: String,
    /// Hash of the tokenizer of all token sets.
    pub tokenizer_hash: String,
    /// Number of documents of the divided token set.
    pub source_documents: u64,
    /// Number of shards of a document.
    pub overlap: u32,
    /// Devices that computed the features, in the order of their names; none if these are the same on every device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// The documents that are reserved for the router and go to no shard, if there are any.
    pub reserved: Option<Reserved>,
    /// The shards in the order of the paths.
    pub shards: Vec<Shard>,
}

/// Documents that are reserved for the router, in the token set `router.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserved {
    /// Number of documents.
    pub documents: u64,
    /// Number of tokens, end-of-text tokens included.
    pub tokens: u64,
    /// Content hash of the token set.
    pub content_hash: String,
    /// The configured share of all documents.
    pub share: f64,
    /// The seed of the choice.
    pub seed: u64,
}

/// The shard of one path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// The path.
    pub path: PathId,
    /// Number of documents; may be 0.
    pub documents: u64,
    /// Number of tokens, end-of-text tokens included.
    pub tokens: u64,
    /// Length of its token files in bytes.
    pub bytes: u64,
    /// Content hash of the token set.
    pub content_hash: String,
    /// Sum of the path's scores of its documents ([`Router::ranked`]): for k-means the negative distances to the centroid.
    pub score: f64,
    /// The documents with the best scores, best first.
    pub nearest: Vec<Example>,
}

/// A document and its fit to its path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Example {
    /// Its number in the shard.
    pub document: u64,
    /// Its number in the divided token set.
    pub source_document: u64,
    /// The path's score of the document.
    pub score: f32,
}

/// A folder of shards with its checked manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardSet {
    folder: PathBuf,
    manifest: ShardManifest,
}

impl ShardSet {
    /// Reads the manifest of a folder that [`crate::assign()`] wrote. [`Self::open_shard`] opens the shards.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Io`] if there is no readable manifest, [`RoutingError::Manifest`] if it is damaged or of another
    /// version.
    pub fn open(folder: &Path) -> Result<Self, RoutingError> {
        let path = folder.join(MANIFEST);
        let io = |source| RoutingError::Io {
            action: "read the manifest of the shards; run route assign",
            path: path.clone(),
            source,
        };
        let problem = |problem: String| RoutingError::Manifest { path: path.clone(), problem };
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(LARGEST_MANIFEST + 1).read_to_end(&mut bytes))
            .map_err(io)?;
        if bytes.len() as u64 > LARGEST_MANIFEST {
            return Err(problem(format!(
                "it is longer than {LARGEST_MANIFEST} bytes, so it is no manifest of shards"
            )));
        }
        let manifest = decode(&bytes).map_err(problem)?;
        Ok(Self { folder: folder.to_owned(), manifest })
    }

    /// Publishes the manifest of finished shards.
    pub(crate) fn publish(folder: &Path, manifest: ShardManifest) -> Result<Self, RoutingError> {
        let path = folder.join(MANIFEST);
        let io = |source| RoutingError::Io { action: "write the manifest", path: path.clone(), source };
        let mut json = serde_json::to_vec_pretty(&manifest).map_err(|error| io(error.into()))?;
        json.push(b'\n');
        dipaco_files::publish(&path, &json)?;
        Ok(Self { folder: folder.to_owned(), manifest })
    }

    /// Removes the manifest, so that a folder does not look whole while its shards are replaced.
    pub(crate) fn retract(folder: &Path) -> Result<(), RoutingError> {
        let path = folder.join(MANIFEST);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(RoutingError::Io { action: "remove the old manifest", path, source })
            }
            _ => Ok(()),
        }
    }

    /// Removes files of shards and of reserved documents that are not in `kept`, which has their names in the folder.
    pub(crate) fn remove_others(folder: &Path, kept: &BTreeSet<String>) -> Result<(), RoutingError> {
        let io = |source| RoutingError::Io { action: "remove old shards", path: folder.to_owned(), source };
        let names = |folder: &Path| -> std::io::Result<Vec<String>> {
            let name =
                |entry: std::io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
            fs::read_dir(folder)?.map(name).collect()
        };
        for name in names(folder).map_err(io)? {
            if !name.starts_with(SHARD) && name.split('.').next() != Some(ROUTER_DOCUMENTS) {
                continue;
            }
            let place = folder.join(&name);
            if place.is_dir() {
                for file in names(&place).map_err(io)? {
                    if !kept.contains(&format!("{name}/{file}")) {
                        fs::remove_file(place.join(file)).map_err(io)?;
                    }
                }
                if names(&place).map_err(io)?.is_empty() {
                    fs::remove_dir(&place).map_err(io)?;
                }
            } else if !kept.contains(&name) {
                fs::remove_file(&place).map_err(io)?;
            }
        }
        Ok(())
    }

    /// The manifest.
    #[must_use]
    pub fn manifest(&self) -> &ShardManifest {
        &self.manifest
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// P, the number of paths.
    #[must_use]
    pub fn paths(&self) -> u32 {
        self.manifest.shards.len() as u32
    }

    /// The shards, in the order of the paths.
    #[must_use]
    pub fn shards(&self) -> &[Shard] {
        &self.manifest.shards
    }

    /// The list of the files of a path's shard.
    #[must_use]
    pub fn file(&self, path: PathId) -> PathBuf {
        self.folder.join(shard_file_name(path))
    }

    /// Opens the documents that are reserved for the router and checks them against the manifest; `None` if no
    /// documents are reserved.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Tokens`] if they can't be opened, [`RoutingError::Mismatch`] if they are others.
    pub fn open_router_documents(&self) -> Result<Option<TokenSet>, RoutingError> {
        let Some(reserved) = &self.manifest.reserved else { return Ok(None) };
        let list = self.folder.join(format!("{ROUTER_DOCUMENTS}.json"));
        let file = TokenSet::open(list).map_err(|source| RoutingError::Tokens {
            what: "could not open the documents that are reserved for the router".to_owned(),
            source,
        })?;
        self.check_file(&file, &reserved.content_hash)?;
        Ok(Some(file))
    }

    /// Opens a path's shard and checks it against the manifest.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Tokens`] if it can't be opened, [`RoutingError::Mismatch`] if it is another shard or there is no
    /// such path.
    pub fn open_shard(&self, path: PathId) -> Result<TokenSet, RoutingError> {
        let Some(shard) = self.manifest.shards.get(path.index()) else {
            let (expected, actual) = (format!("a path below {}", self.paths()), path.to_string());
            return Err(RoutingError::Mismatch {
                what: "the shards' number of paths",
                expected,
                actual,
                remedy: ASSIGN_AGAIN,
            });
        };
        let file = TokenSet::open(self.file(path)).map_err(|source| RoutingError::Tokens {
            what: format!("could not open the shard of path {path}"),
            source,
        })?;
        self.check_file(&file, &shard.content_hash)?;
        Ok(file)
    }

    fn check_file(&self, file: &TokenSet, content_hash: &str) -> Result<(), RoutingError> {
        for (what, expected, actual) in [
            ("the content hash of a shard", content_hash, file.content_hash()),
            ("the tokenizer of a shard", self.manifest.tokenizer_hash.as_str(), file.tokenizer_hash()),
        ] {
            if expected != actual {
                let (expected, actual) =
                    (expected.to_owned(), format!("{actual} in {}", file.path().display()));
                return Err(RoutingError::Mismatch { what, expected, actual, remedy: ASSIGN_AGAIN });
            }
        }
        Ok(())
    }

    /// Checks that the shards were made by `router`.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Mismatch`] if they were made by another router.
    pub fn check_router(&self, router: &Router) -> Result<(), RoutingError> {
        if self.manifest.router_hash == router.hash() {
            return Ok(());
        }
        Err(RoutingError::Mismatch {
            what: "the shards' router",
            expected: router.hash().to_owned(),
            actual: format!("{} in {}", self.manifest.router_hash, self.folder.display()),
            remedy: "run route assign again with this router",
        })
    }

    /// The paths without a document.
    pub fn empty_paths(&self) -> impl Iterator<Item = PathId> + '_ {
        self.manifest.shards.iter().filter(|shard| shard.documents == 0).map(|shard| shard.path)
    }

    /// Checks that every path for which `trains` is true has a document to train on.
    ///
    /// # Errors
    ///
    /// [`RoutingError::EmptyPaths`] with the paths without documents.
    pub fn check_trainable(&self, trains: impl Fn(PathId) -> bool) -> Result<(), RoutingError> {
        let paths: Vec<u32> = self.empty_paths().filter(|&path| trains(path)).map(|path| path.0).collect();
        if paths.is_empty() { Ok(()) } else { Err(RoutingError::EmptyPaths { paths, total: self.paths() }) }
    }
}

impl ShardManifest {
    pub(crate) fn new(
        router: &Router,
        file: &TokenSet,
        overlap: u32,
        shards: Vec<Shard>,
        reserved: Option<Reserved>,
    ) -> Self {
        Self {
            format: FORMAT.into(),
            version: SHARD_SET_FORMAT_VERSION,
            router_hash: router.hash().into(),
            seed_hash: router.fitted_on().seed_hash.clone(),
            tokens_hash: file.content_hash().into(),
            tokenizer_hash: file.tokenizer_hash().into(),
            source_documents: file.documents(),
            overlap,
            devices: Vec::new(),
            reserved,
            shards,
        }
    }
}

fn decode(bytes: &[u8]) -> Result<ShardManifest, String> {
    #[derive(Deserialize)]
    struct Version {
        format: String,
        version: u32,
    }
    let unreadable = |error| format!("it can't be read ({error}); run route assign again");
    let found: Version = serde_json::from_slice(bytes).map_err(unreadable)?;
    if found.format != FORMAT {
        return Err(format!("its format is {:?}, not {FORMAT:?}: this is no folder of shards", found.format));
    }
    if found.version != SHARD_SET_FORMAT_VERSION {
        let found = found.version;
        return Err(format!(
            "it is version {found}, this program reads version {SHARD_SET_FORMAT_VERSION}; run route assign again with this program"
        ));
    }
    let manifest: ShardManifest = serde_json::from_slice(bytes).map_err(unreadable)?;
    let ordered = (0u32..).zip(&manifest.shards).all(|(path, shard)| shard.path == PathId(path));
    if manifest.shards.is_empty() || !ordered {
        return Err("it does not list the paths from 0 up, each once; run route assign again".into());
    }
    let summable = |count: fn(&Shard) -> u64| {
        manifest.shards.iter().try_fold(0u64, |sum, s| sum.checked_add(count(s))).is_some()
    };
    let finite = manifest.shards.iter().all(|shard| shard.score.is_finite());
    if !finite
        || manifest.overlap == 0
        || !summable(|shard| shard.documents)
        || !summable(|shard| shard.tokens)
    {
        return Err("its counts are impossible; run route assign again".into());
    }
    Ok(manifest)
}

#[cfg(test)]
mod tests;
