//! The topologies of simulated runs.

use dipaco_topology::{AddedPaths, LevelConfig, Modules, PathId, Topology, TopologyConfig, TopologyError};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A replicated model, a grid, or a grid with a level of path-specific modules.
pub(super) fn topology(random: &mut ChaCha8Rng) -> TopologyConfig {
    let level = |modules, blocks: &str, embedding, head| LevelConfig {
        modules,
        blocks: blocks.to_owned(),
        embedding,
        head,
        frozen: false,
    };
    let [kind, first, second] = [(); 3].map(|()| random.random_range(1..=3));
    match kind {
        1 => TopologyConfig::grid(
            random.random_range(1..=4),
            vec![level(Modules::Count(1), "0..3", true, true)],
        ),
        2 => TopologyConfig::grid(
            1,
            vec![
                level(Modules::Count(first), "0", true, false),
                level(Modules::Count(second), "1..3", false, true),
            ],
        ),
        _ => TopologyConfig::grid(
            1,
            vec![
                level(Modules::Count(first), "0", true, false),
                level(Modules::Count(second), "1", false, false),
                level(Modules::Paths, "2", false, true),
            ],
        ),
    }
}

/// In a quarter of the cases with several levels, the same topology with a frozen level. Drawn apart, so that the other
/// cases stay as they are.
pub(super) fn freeze(seed: u64, mut config: TopologyConfig) -> TopologyConfig {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(3);
    let frozen = random.random_range(0..config.levels.len());
    let chosen = random.random_bool(0.25) && config.levels.len() > 1;
    if let Some(level) = config.levels.get_mut(frozen) {
        level.frozen = chosen;
    }
    config
}

/// In an eighth of the cases with one phase, the topology of an extended run: one or two new paths train, and the others are
/// kept. Drawn apart, as in [`freeze`].
pub(super) fn extended(seed: u64, grid: &TopologyConfig, phases: usize) -> Result<Topology, TopologyError> {
    let topology = Topology::new(grid, 3)?;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(4);
    if phases > 1 || !random.random_bool(0.125) {
        return Ok(topology);
    }
    let mut like = || PathId(random.random_range(0..topology.paths()));
    let like = [like(), like()];
    let own = random.random_range(0..=topology.levels());
    let added = AddedPaths {
        like: like[..random.random_range(1..=2)].to_vec(),
        own_levels: (own < topology.levels()).then_some(own).into_iter().collect(),
        share: random.random_bool(0.5),
        train_all: false,
    };
    Topology::new(&topology.with_paths(grid, &added)?.config, 3)
}
