//! A run of 2 × 2 paths. Module `level/index` is that level of a random model with the seed `index`.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)]

use std::sync::Arc;

use dipaco_infer::{
    BoxError, Engine, EngineConfig, ModuleKey, NoObserver, PathModules, PathVersion, PrefixRouter, Route,
    RoutedModel, RunModel, RunPaths,
};
use dipaco_model::{
    Device, ModelConfig, ModelError, Module, ModuleWeights, PackedModule, Path, TokenRows, WeightFormat,
    init, split,
};
use dipaco_topology::{ModuleId, PathId, Topology, TopologyConfig};

use crate::fake::{Bytes, Fake, VOCAB};

pub fn config() -> ModelConfig {
    ModelConfig {
        hidden_size: 16,
        blocks: 2,
        heads: 2,
        head_dim: 8,
        ffn_size: 32,
        vocab_size: VOCAB,
        context: 300,
        init_std: Some(0.5),
        ..ModelConfig::default()
    }
}

/// The levels of the grid.
pub fn levels() -> Topology {
    Fake::new(1).topology().clone()
}

/// The modules of the paths in a round.
pub fn keys(levels: &Topology, round: u32) -> Vec<PathModules> {
    let key =
        |module: ModuleId| ModuleKey { level: module.level, content: [(module.index + 2 * round) as u8; 32] };
    let modules = |path| levels.modules_of(path).into_iter().map(key).collect();
    let version = |path: PathId| PathVersion([(path.0 + 4 * round) as u8; 32]);
    levels.path_ids().map(|path| PathModules { version: version(path), modules: modules(path) }).collect()
}

pub fn packed(levels: &Topology, module: ModuleId, round: u32) -> PackedModule {
    let part = part(levels, module, round);
    PackedModule::new(&config(), levels, module.level.into(), &part, WeightFormat::F32).unwrap()
}

/// A model of these paths, with a router.
pub fn model(paths: RunPaths) -> Arc<RunModel> {
    let dense = Topology::new(&TopologyConfig::dense(2), 2).unwrap();
    let seed = Arc::new(Module::load(&init(&config(), 9).unwrap(), &Device::Cpu).unwrap());
    let seed = Path::compose(&config(), &dense, &[seed]).unwrap();
    // The signs of two components of the features give the path.
    let route = move |prefix: &&[u32]| -> Result<Route, BoxError> {
        let rows = TokenRows::new(*prefix, 1, VOCAB).map_err(ModelError::from)?;
        let features = seed.features(&rows, &[prefix.len()])?;
        let path = PathId(u32::from(features[0] > 0.0) * 2 + u32::from(features[1] > 0.0));
        Ok(Route::new(path, features[..4].to_vec()))
    };
    let all = move |prefixes: &[&[u32]]| prefixes.iter().map(&route).collect();
    let router = PrefixRouter { prefix_tokens: 32, route: Box::new(all) };
    Arc::new(RunModel::new(config(), levels(), Some(router), paths).unwrap())
}

pub fn part(levels: &Topology, module: ModuleId, round: u32) -> ModuleWeights {
    let whole = init(&config(), u64::from(module.index) + 100 * u64::from(round)).unwrap();
    split(&config(), levels, &whole).unwrap().swap_remove(usize::from(module.level))
}

pub fn engine(model: &Arc<RunModel>, slots: usize) -> Engine {
    let config = EngineConfig { slots, ..EngineConfig::default() };
    Engine::start(model.clone(), Arc::new(Bytes), Arc::new(NoObserver), &config).unwrap()
}
