//! The modules of a server: where they come from, and how they are packed.

use std::sync::Arc;

use dipaco_infer::{ModuleCache, ModuleKey, PathModules, PathVersion, RunPaths};
use dipaco_model::{PackedModule, WeightFormat};
use dipaco_server::LoadProgress;
use dipaco_store::ObjectRef;
use dipaco_topology::PathId;

use crate::error::PipelineError;
use crate::weights::{PathModule, Weights};

/// Loads modules for serving. A module is in memory once, however many paths and versions of the run use it.
#[derive(Debug)]
pub(crate) struct ServedModules {
    format: WeightFormat,
    cache: Arc<ModuleCache>,
    progress: LoadProgress,
}

impl ServedModules {
    /// `memory` is the largest number of bytes of modules. `progress` counts each module that is loaded.
    pub(crate) fn new(format: WeightFormat, memory: Option<usize>, progress: LoadProgress) -> Self {
        Self { format, cache: ModuleCache::new(memory), progress }
    }

    /// All paths with these weights, without loading them.
    pub(crate) fn paths(&self, weights: Weights, fingerprint: &str) -> Result<RunPaths, PipelineError> {
        let paths = all_paths(&weights)?;
        let (format, progress) = (self.format, self.progress.clone());
        let load = move |path, level| {
            let module = load(&weights, path, level, format)?;
            progress.loaded();
            Ok(module)
        };
        Ok(RunPaths::new(fingerprint, &self.cache, paths, Box::new(load)))
    }
}

/// The modules of all paths.
pub(crate) fn all_paths(weights: &Weights) -> Result<Vec<PathModules>, PipelineError> {
    weights.topology().path_ids().map(|path| path_modules(weights, path)).collect()
}

/// The modules of a path. Its version is a hash over their objects.
fn path_modules(weights: &Weights, path: PathId) -> Result<PathModules, PipelineError> {
    let (mut modules, mut hasher) = (Vec::new(), blake3::Hasher::new());
    for PathModule { version, objects } in weights.modules_of(path)? {
        let content = content(&objects);
        hasher.update(&content);
        modules.push(ModuleKey { level: version.module.level, content });
    }
    Ok(PathModules { version: PathVersion(hasher.finalize().into()), modules })
}

/// Reads, verifies and packs the module of a path on a level. Blocks on the store.
fn load(
    weights: &Weights,
    path: PathId,
    level: u16,
    format: WeightFormat,
) -> Result<PackedModule, PipelineError> {
    let mut modules = weights.modules_of(path)?.into_iter();
    let module = modules.find(|module| module.version.module.level == level);
    let module =
        module.ok_or(PipelineError::Internal { what: "a path has no module of a level", source: None })?;
    weights.pack(level, &module.objects, format)
}

fn content(objects: &[&ObjectRef]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for object in objects {
        hasher.update(object.hash.as_bytes());
    }
    hasher.finalize().into()
}
