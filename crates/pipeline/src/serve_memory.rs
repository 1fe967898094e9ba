//! The memory of a server, by formula, before anything is loaded.

use std::collections::BTreeSet;

use dipaco_config::RunConfig;
use dipaco_infer::{ModuleKey, PathModules, TokenSampler, most_route_bytes};
use dipaco_model::{ModelError, PackedModule, Stepper, level_specs, packing_bytes, parameters, path_specs};
use dipaco_server::{Preload, RerouteBy, body_bytes, engine_config};
use dipaco_shards::Tokenizer;
use dipaco_store::PARTS_IN_MEMORY;
use dipaco_telemetry::human;
use dipaco_topology::{Part, Topology};
use thiserror::Error;

use crate::machine_memory::MachineMemory;
use crate::served_format::format;

/// Bytes of an f32.
const F32: usize = size_of::<f32>();

/// Which models a server has besides its paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterModels {
    /// True if the router reads features of the seed.
    pub seed: bool,
    /// True if there is a transformer router.
    pub transformer: bool,
    /// Components of the router's token vectors; 0 for a router without them.
    pub vectors: usize,
}

/// The most memory of a server in bytes, part by part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeMemory {
    /// Modules: all of the run, twice with `serve.reload_seconds`, or as many as `serve.memory` allows.
    pub modules: usize,
    /// Pages of keys and values.
    pub pages: usize,
    /// The seed of the router, its token vectors, and the transformer router with its activations.
    pub routers: usize,
    /// The routes that the engine remembers.
    pub routes: usize,
    /// The tables of the tokenizer.
    pub tokenizer: usize,
    /// Parts of a module's file and its tensors in f32, while it is read and packed.
    pub loading: usize,
    /// Rows and logits of a step, and what its threads keep for choosing tokens.
    pub step: usize,
    /// Bodies of requests.
    pub bodies: usize,
}

/// A server needs more memory than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the server does not fit into the memory of {} that is available here. It needs {needed}. Limit serve.memory or \
     serve.kv_bytes, choose a serve.format of fewer bits, or start it all the same with serve.check_memory = false",
    human::bytes(*available)
)]
pub struct ServerTooLarge {
    /// The parts of the server's memory.
    pub needed: ServeMemory,
    /// Memory that is available, in bytes.
    pub available: u64,
}

impl ServeMemory {
    /// The memory of a server for paths with these modules. `tokenizer` is the length of the tokenizer's file in bytes.
    ///
    /// # Errors
    /// The configuration does not describe a model.
    pub fn new(
        config: &RunConfig,
        topology: &Topology,
        paths: &[PathModules],
        routers: RouterModels,
        tokenizer: u64,
    ) -> Result<Self, ModelError> {
        let (model, serve) = (&config.model, &config.serve);
        let sizes = module_sizes(config, topology)?;
        let distinct: BTreeSet<ModuleKey> = paths.iter().flat_map(|path| &path.modules).copied().collect();
        let all = total(distinct.iter().map(|key| size_of_key(&sizes, key)));
        // The weights of the next round are loaded beside those of one round that sequences use, and of no second one.
        let rounds = if serve.reload_seconds > 0.0 { 2 } else { 1 };
        let modules = all.saturating_mul(rounds).min(serve.memory().unwrap_or(usize::MAX));
        let stepper = Stepper::new(model, topology)?;
        let engine = engine_config(serve);
        let reroutes = routers.transformer || serve.reroute_by == RerouteBy::Features;
        let borders = if reroutes { stepper.border_bytes() } else { 0 };
        let page = stepper.page_bytes(engine.kv_type) + borders;
        let rows = engine.step_tokens.max(engine.places());
        let (width, ffn) = (model.hidden_size, model.ffn_size);
        // Queries, keys and values, the attention's output, gate and up, and the rows before and after the products.
        let row = 2 * (model.attention_size() + model.key_value_size()) + 2 * ffn + 4 * width;
        // The logits of all rows, and a copy for each sequence.
        let logits = 2 * model.head_size();
        // The engine has as many threads as rayon by default.
        let choices = rayon::current_num_threads() * TokenSampler::thread_bytes(model.head_size());
        let transformer = model.with_outputs(topology.paths() as usize);
        let router = |there: bool, model| if there { F32 * parameters(&path_specs(model)) } else { 0 };
        // The router's file and its features have them both.
        let vectors = 2 * F32 * routers.vectors * model.vocab_size;
        // A transformer router reads one text at a time, up to the whole context. Its workspace keeps the rows, the logarithms
        // of their attention's sums, and a packed block.
        let block = path_specs(model).into_iter().filter(|spec| spec.part == Part::Block(0));
        let block = parameters(&block.collect::<Vec<_>>());
        let read = model.context.saturating_mul(row + model.heads).saturating_add(block);
        let reading = if routers.transformer { read.saturating_mul(F32) } else { 0 };
        let models = [router(routers.seed, model), router(routers.transformer, &transformer), reading];
        let tokenizer = tokenizer.saturating_mul(Tokenizer::MEMORY_OF_A_BYTE);
        Ok(Self {
            modules,
            pages: engine.pages(model.context, page).saturating_mul(page),
            routers: total(models).saturating_add(vectors),
            routes: most_route_bytes(config.routing.prefix_tokens, topology.paths() as usize),
            tokenizer: usize::try_from(tokenizer).unwrap_or(usize::MAX),
            loading: loading(config, topology),
            step: rows.saturating_mul(F32 * (row + logits)).saturating_add(choices),
            bodies: body_bytes(serve),
        })
    }

    /// All parts together.
    #[must_use]
    pub fn total(&self) -> usize {
        let Self { modules, pages, routers, routes, tokenizer, loading, step, bodies } = *self;
        total([modules, pages, routers, routes, tokenizer, loading, step, bodies])
    }

    /// Refuses a server that needs more than the available memory of a machine.
    ///
    /// # Errors
    /// [`ServerTooLarge`] with all numbers.
    pub fn check(&self, machine: MachineMemory) -> Result<(), ServerTooLarge> {
        let available = machine.available;
        if self.total() as u64 <= available {
            Ok(())
        } else {
            Err(ServerTooLarge { needed: *self, available })
        }
    }
}

impl std::fmt::Display for ServeMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = |bytes: usize| human::bytes(bytes as u64);
        write!(
            f,
            "{}: modules {}, keys and values {}, routers {}, remembered routes {}, the tokenizer {}, \
             reading a module {}, a step {}, bodies of requests {}",
            bytes(self.total()),
            bytes(self.modules),
            bytes(self.pages),
            bytes(self.routers),
            bytes(self.routes),
            bytes(self.tokenizer),
            bytes(self.loading),
            bytes(self.step),
            bytes(self.bodies),
        )
    }
}

/// Number of modules that are loaded before the server answers.
pub(crate) fn modules_at_start(
    config: &RunConfig,
    topology: &Topology,
    paths: &[PathModules],
) -> Result<usize, ModelError> {
    let sizes = module_sizes(config, topology)?;
    let limit = config.serve.memory().unwrap_or(usize::MAX);
    let most = if config.serve.preload == Preload::All { paths.len() } else { 1 };
    let mut loaded: BTreeSet<ModuleKey> = BTreeSet::new();
    for path in &paths[..most.min(paths.len())] {
        let with: BTreeSet<ModuleKey> = loaded.iter().chain(&path.modules).copied().collect();
        if !loaded.is_empty() && total(with.iter().map(|key| size_of_key(&sizes, key))) > limit {
            break;
        }
        loaded = with;
    }
    Ok(loaded.len())
}

/// Most memory in bytes beside a packed module while it is read. One module is read at a time.
fn loading(config: &RunConfig, topology: &Topology) -> usize {
    let model = &config.model;
    // Fragments may cut between the tensors of a block.
    let apart = config.sync.fragments > 1;
    let most = |level| {
        let file = F32 * parameters(&level_specs(model, topology, level));
        file.min(PARTS_IN_MEMORY) + packing_bytes(model, topology, level, apart)
    };
    (0..topology.levels()).map(most).max().unwrap_or(0)
}

/// Bytes of a module of each level.
pub(crate) fn module_sizes(config: &RunConfig, topology: &Topology) -> Result<Vec<usize>, ModelError> {
    let format = format(config.serve.format);
    let size = |level| PackedModule::bytes_of(&config.model, topology, level, format);
    (0..topology.levels()).map(size).collect()
}

fn size_of_key(sizes: &[usize], key: &ModuleKey) -> usize {
    sizes.get(usize::from(key.level)).copied().unwrap_or(0)
}

fn total(parts: impl IntoIterator<Item = usize>) -> usize {
    parts.into_iter().fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipaco_infer::PathVersion;
    use dipaco_routing::TokenVectors;

    const SEED: RouterModels = RouterModels { seed: true, transformer: false, vectors: 0 };
    /// Length of a file of 32,000 tokens.
    const TOKENIZER: u64 = 2_200_000;

    /// A grid of 2 × 2 paths with modules of their own content.
    fn grid() -> (RunConfig, Topology, Vec<PathModules>) {
        let mut config = RunConfig::default();
        config.model.vocab_size = 512;
        let topology = Topology::new(&config.topology, config.model.blocks).unwrap();
        let paths = paths(&topology);
        (config, topology, paths)
    }

    fn paths(topology: &Topology) -> Vec<PathModules> {
        let key = |module: dipaco_topology::ModuleId| ModuleKey {
            level: module.level,
            content: [module.index as u8; 32],
        };
        let modules = |path| topology.modules_of(path).into_iter().map(key).collect();
        let path = |path| PathModules { version: PathVersion([0; 32]), modules: modules(path) };
        topology.path_ids().map(path).collect()
    }

    fn memory(change: impl FnOnce(&mut RunConfig), routers: RouterModels) -> ServeMemory {
        let (mut config, topology, paths) = grid();
        change(&mut config);
        ServeMemory::new(&config, &topology, &paths, routers, TOKENIZER).unwrap()
    }

    #[test]
    fn each_part_follows_from_the_settings() {
        let all = memory(|_| {}, SEED);
        let (config, topology, _) = grid();
        let path = F32 * parameters(&path_specs(&config.model));
        // Two modules of each level are two paths. Panels of 32 rows may be a little larger.
        assert_eq!(topology.paths(), 4);
        assert!((2 * path..2 * path + path / 8).contains(&all.modules), "{all} for paths of {path}");
        assert_eq!(all.routers, path);

        assert_eq!(memory(|config| config.serve.memory = 1000, SEED).modules, 1000);
        for (limit, expected) in [(0, 2 * all.modules), (1000, 1000), (usize::MAX, 2 * all.modules)] {
            let change = |config: &mut RunConfig| {
                (config.serve.memory, config.serve.reload_seconds) = (limit, 1.0);
            };
            assert_eq!(memory(change, SEED).modules, expected);
        }
        let rounded = memory(|config| config.serve.format = dipaco_server::WeightType::Q8_0, SEED);
        assert!(rounded.modules * 3 < all.modules, "{rounded}");
        let none = RouterModels { seed: false, ..SEED };
        assert_eq!(memory(|_| {}, none).routers, 0);
        let features = memory(|config| config.serve.reroute_by = RerouteBy::Features, SEED);
        assert!(
            features.routers == all.routers && features.pages > all.pages,
            "borders without a router more"
        );
        let both = memory(|_| {}, RouterModels { transformer: true, ..SEED });
        assert!(both.routers > all.routers && both.pages > all.pages, "borders take memory, too");
        let pages = memory(|config| config.serve.kv_bytes = 1 << 34, SEED).pages;
        assert!((1 << 33..=1 << 34).contains(&pages), "{pages}");
        let bodies = memory(|config| config.serve.body_limit *= 2, SEED).bodies;
        // 16 of the largest bodies with their prompts, and one that is decoded.
        assert_eq!(bodies - all.bodies, (16 * 3 + 1) * config.serve.body_limit);
        let held = [all.modules, all.pages, all.routers, all.routes, all.tokenizer];
        let used = [all.loading, all.step, all.bodies];
        assert_eq!(all.total(), held.iter().chain(&used).sum::<usize>());
        assert_eq!(all.routes, 4096 * 4 * (config.routing.prefix_tokens + 4));
        assert_eq!(all.tokenizer as u64, TOKENIZER * Tokenizer::MEMORY_OF_A_BYTE);
    }

    #[test]
    fn a_transformer_router_has_the_activations_of_a_text_as_long_as_the_context() {
        let routers = |tokens: usize, transformer| {
            let change = |config: &mut RunConfig| config.model.context += tokens;
            memory(change, RouterModels { transformer, ..SEED }).routers
        };
        let model = grid().0.model;
        // Gate and up alone.
        let least = 1000 * 2 * F32 * model.ffn_size;
        assert!(routers(1000, true) - routers(0, true) >= least);
        assert_eq!(routers(1000, false), routers(0, false));
    }

    #[test]
    fn token_vectors_count_in_the_router_and_in_its_features() {
        let (config, ..) = grid();
        let vectors = TokenVectors::new(24, vec![0.5; 24 * config.model.vocab_size]).unwrap();
        let lsa = RouterModels { seed: false, transformer: false, vectors: vectors.components() };
        assert_eq!(memory(|_| {}, lsa).routers, 2 * size_of_val(vectors.values()));
    }

    #[test]
    fn a_step_has_logits_twice_for_each_row_and_a_choice_for_each_thread() {
        let step = |vocabulary, slots| {
            let change = |config: &mut RunConfig| {
                (config.model.vocab_size, config.serve.slots) = (vocabulary, slots);
            };
            memory(change, SEED).step
        };
        for (slots, rows) in [(1, RunConfig::default().serve.step_tokens), (1024, 1024)] {
            let choices = rayon::current_num_threads() * TokenSampler::thread_bytes(1000);
            assert_eq!(step(1512, slots) - step(512, slots), rows * 2 * F32 * 1000 + choices);
        }
    }

    #[test]
    fn the_256_paths_of_the_paper_fit_into_4_gib() {
        let file =
            std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/paper/16x16.toml"));
        let mut config = RunConfig::from_toml(&std::fs::read_to_string(file).unwrap(), file).unwrap();
        let topology = Topology::new(&config.topology, config.model.blocks).unwrap();
        let paths = paths(&topology);
        assert_eq!(paths.len(), 256);
        // These settings are those of docs/serving.md.
        config.serve.format = dipaco_server::WeightType::Q8_0;
        config.serve.kv_bytes = 268_435_456;
        let memory = ServeMemory::new(&config, &topology, &paths, SEED, TOKENIZER).unwrap();
        memory.check(MachineMemory { total: 4 << 30, available: 4 << 30 }).unwrap();
        // All modules are in memory: what is read and packed takes a small part of one.
        let module = F32 * parameters(&level_specs(&config.model, &topology, 0));
        assert!(memory.modules > 2_500_000_000 && 2 * memory.loading < module, "{memory}");
        // By default keys and values take more.
        config.serve.kv_bytes = 0;
        let memory = ServeMemory::new(&config, &topology, &paths, SEED, TOKENIZER).unwrap();
        assert!(memory.total() > 4 << 30, "{memory}");
    }

    #[test]
    fn a_server_that_does_not_fit_is_refused_with_all_numbers() {
        let memory = memory(|_| {}, SEED);
        let available = |available| MachineMemory { total: u64::MAX, available };
        memory.check(available(memory.total() as u64)).unwrap();
        let error = memory.check(available(memory.total() as u64 - 1)).unwrap_err();
        assert!(crate::PipelineError::from(error).is_configuration());
        for part in ["modules", "keys and values", "serve.kv_bytes", "serve.check_memory = false"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn the_modules_of_the_start_are_those_that_are_preloaded() {
        let (mut config, topology, paths) = grid();
        let count = |config: &RunConfig| modules_at_start(config, &topology, &paths).unwrap();
        assert_eq!(count(&config), 4);
        config.serve.preload = Preload::None;
        assert_eq!(count(&config), 2);
        config.serve.preload = Preload::All;
        let sizes = module_sizes(&config, &topology).unwrap();
        // One path, and then one module more than it.
        config.serve.memory = sizes[0] + sizes[1];
        assert_eq!(count(&config), 2);
        config.serve.memory += sizes[0].max(sizes[1]);
        assert_eq!(count(&config), 3);
    }
}
