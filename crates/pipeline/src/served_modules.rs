//! The modules of a server in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use dipaco_config::RunConfig;
use dipaco_infer::{PathVersion, ServedPath};
use dipaco_model::{PackedModule, WeightFormat};
use dipaco_server::{KvType, WeightType};
use dipaco_store::ObjectRef;
use dipaco_topology::PathId;

use crate::error::PipelineError;
use crate::weights::{PathModule, Weights};

/// Loads paths for serving. A module is in memory once, however many paths and versions of the run use it, and until the last
/// of them is gone.
#[derive(Debug)]
pub(crate) struct ServedModules {
    format: WeightFormat,
    /// By the content.
    loaded: Mutex<BTreeMap<[u8; 32], Weak<PackedModule>>>,
}

impl ServedModules {
    pub(crate) fn new(format: WeightFormat) -> Self {
        Self { format, loaded: Mutex::default() }
    }

    /// A path. Its version is a hash over the objects of its modules. Blocks on the store.
    pub(crate) fn path(&self, weights: &Weights, path: PathId) -> Result<ServedPath, PipelineError> {
        let (mut modules, mut hasher) = (Vec::new(), blake3::Hasher::new());
        for PathModule { version, objects } in weights.modules_of(path)? {
            let content = content(&objects);
            hasher.update(&content);
            modules.push(self.module(weights, version.module.level, content, &objects)?);
        }
        Ok(ServedPath { modules, version: PathVersion(hasher.finalize().into()) })
    }

    fn module(
        &self,
        weights: &Weights,
        level: u16,
        content: [u8; 32],
        objects: &[&ObjectRef],
    ) -> Result<Arc<PackedModule>, PipelineError> {
        // The lock is held while loading: two paths that want the same module at the same time load it once.
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = loaded.get(&content).and_then(Weak::upgrade) {
            return Ok(module);
        }
        let (model, topology) = (weights.model(), weights.topology());
        let values = weights.assemble(level, objects)?;
        let module = Arc::new(PackedModule::new(model, topology, level.into(), &values, self.format)?);
        loaded.retain(|_, module| module.strong_count() > 0);
        loaded.insert(content, Arc::downgrade(&module));
        Ok(module)
    }
}

fn content(objects: &[&ObjectRef]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for object in objects {
        hasher.update(object.hash.as_bytes());
    }
    hasher.finalize().into()
}

/// Fingerprint of the served weights and of the program: the same fingerprint and seed give the same text.
///
/// # Errors
/// [`PipelineError::NotTrained`] when the paths have not been trained.
pub fn fingerprint(config: &RunConfig, weights: &Weights) -> Result<String, PipelineError> {
    let kv = match config.serve.kv_type {
        KvType::F32 => "",
        KvType::Bf16 => "-kv16",
    };
    let (format, version) = (format(config.serve.format), env!("CARGO_PKG_VERSION"));
    Ok(format!("fp_{}_{format}{kv}_{version}", &weights.served_hash()?[..12]))
}

/// The format of packed modules for a setting.
pub(crate) fn format(weights: WeightType) -> WeightFormat {
    match weights {
        WeightType::F32 => WeightFormat::F32,
        WeightType::Bf16 => WeightFormat::Bf16,
        WeightType::Q8_0 => WeightFormat::Q8_0,
        WeightType::Q4_0 => WeightFormat::Q4_0,
    }
}
