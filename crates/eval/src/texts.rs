//! The texts of an evaluation. The token files of shards are opened when they are read.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use dipaco_routing::ShardSet;
use dipaco_shards::TokenSet;
use dipaco_topology::PathId;

use crate::{EvalError, EvaluationConfig};

/// Most token files of shards that stay open. Each is a memory map, and a process may have 65,530 on Linux. A text of many
/// sections has thousands of files, because each section has a file for each path. A batch has sequences of many
/// shards, and opening a shard again means a look at all its documents.
const MOST_OPEN: usize = 1 << 14;

/// A text to score and the path of its documents.
#[derive(Clone, Copy)]
pub(crate) struct Text<'a> {
    files: Files<'a>,
    pub(crate) path: PathId,
    /// Number of documents to score, from the beginning of the text.
    pub(crate) documents: u64,
}

#[derive(Clone, Copy)]
enum Files<'a> {
    /// Open during the whole evaluation.
    Open(&'a TokenSet),
    /// The shard of the text's path.
    Shard(&'a OpenShards<'a>),
}

impl<'a> Text<'a> {
    /// The documents of an open token set that count.
    pub(crate) fn of(file: &'a TokenSet, path: PathId, config: &EvaluationConfig) -> Self {
        Self { files: Files::Open(file), path, documents: evaluated_documents(file.documents(), config) }
    }

    /// Its token set. The caller keeps it only while it reads, so that few are open at a time.
    pub(crate) fn open(&self) -> Result<OpenText<'a>, EvalError> {
        match self.files {
            Files::Open(file) => Ok(OpenText::Borrowed(file)),
            Files::Shard(shards) => Ok(OpenText::Shared(shards.open(self.path)?)),
        }
    }

    /// The name of its token set, for errors.
    pub(crate) fn name(&self) -> String {
        match self.files {
            Files::Open(file) => file.path().display().to_string(),
            Files::Shard(open) => open.shards.file(self.path).display().to_string(),
        }
    }
}

/// The number of documents that an evaluation reads of a token set with so many: the first `evaluation.max_documents`, or all.
#[must_use]
pub fn evaluated_documents(documents: u64, config: &EvaluationConfig) -> u64 {
    if config.max_documents == 0 { documents } else { documents.min(config.max_documents) }
}

/// An open token set.
pub(crate) enum OpenText<'a> {
    Borrowed(&'a TokenSet),
    Shared(Arc<TokenSet>),
}

impl Deref for OpenText<'_> {
    type Target = TokenSet;

    fn deref(&self) -> &TokenSet {
        match self {
            Self::Borrowed(file) => file,
            Self::Shared(file) => file,
        }
    }
}

/// Opens the shards of a run and keeps the last ones open. Several threads use it at the same time.
pub(crate) struct OpenShards<'a> {
    shards: &'a ShardSet,
    /// Most files that stay open. A shard of more files is open alone.
    most: usize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    sets: BTreeMap<PathId, KeptSet>,
    /// Number of calls that asked for a set.
    calls: u64,
}

struct KeptSet {
    set: Arc<TokenSet>,
    files: usize,
    /// The last call that asked for it.
    last: u64,
}

impl<'a> OpenShards<'a> {
    pub(crate) fn new(shards: &'a ShardSet) -> Self {
        Self::at_most(shards, MOST_OPEN)
    }

    /// The same with at most so many open files.
    pub(crate) fn at_most(shards: &'a ShardSet, most: usize) -> Self {
        Self { shards, most, kept: Mutex::default() }
    }

    /// The documents of the shards that count. Opens no shard.
    pub(crate) fn texts(&self, config: &EvaluationConfig) -> Vec<Text<'_>> {
        let text = |shard: &dipaco_routing::Shard| Text {
            files: Files::Shard(self),
            path: shard.path,
            documents: evaluated_documents(shard.documents, config),
        };
        self.shards.shards().iter().map(text).collect()
    }

    fn open(&self, path: PathId) -> Result<Arc<TokenSet>, EvalError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.calls += 1;
        let last = kept.calls;
        if let Some(known) = kept.sets.get_mut(&path) {
            known.last = last;
            return Ok(known.set.clone());
        }
        let set = self.shards.open_shard(path).map_err(|source| EvalError::Shard { path, source })?;
        let files = set.files().count();
        let set = Arc::new(set);
        kept.close_until(self.most.saturating_sub(files));
        kept.sets.insert(path, KeptSet { set: set.clone(), files, last });
        Ok(set)
    }
}

impl Kept {
    /// Closes the sets that nobody has read for the longest time, until at most so many files are open.
    fn close_until(&mut self, most: usize) {
        while self.sets.values().map(|kept| kept.files).sum::<usize>() > most {
            let oldest = self.sets.iter().min_by_key(|(_, kept)| kept.last);
            let Some(oldest) = oldest.map(|(&path, _)| path) else { return };
            self.sets.remove(&oldest);
        }
    }
}
