//! The router of a run as the inference engine asks it, with the distances behind a choice.

use std::collections::BTreeMap;
use std::sync::Arc;

use dipaco_infer::{Measure, PrefixRouter, Route};
use dipaco_model::TokenRows;
use dipaco_routing::{DocumentRoute, TextRouter};
use dipaco_topology::Topology;

/// The paths of first tokens as the engine asks for them.
pub(crate) fn prefix_router(router: Arc<TextRouter>, topology: &Topology, vocabulary: usize) -> PrefixRouter {
    let parts = level_parts(router.router().clusters(), topology);
    let measure = if router.router().gives_probabilities() { Measure::Surprise } else { Measure::Euclidean };
    PrefixRouter {
        prefix_tokens: router.router().prefix_tokens(),
        route: Box::new(move |prefixes| {
            // Prefixes of one length make a pass. Others would have to be padded.
            let mut lengths: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for (number, prefix) in prefixes.iter().enumerate() {
                lengths.entry(prefix.len()).or_default().push(number);
            }
            let mut found = BTreeMap::new();
            for (length, numbers) in lengths {
                let ids: Vec<u32> = numbers.iter().flat_map(|&number| prefixes[number]).copied().collect();
                let tokens = TokenRows::new(ids, numbers.len(), vocabulary)?;
                let routes = router.route(&tokens, &vec![length; numbers.len()])?;
                found.extend(numbers.into_iter().zip(routes));
            }
            let route = |DocumentRoute { path, distances, parts: given }: DocumentRoute| {
                let of_level = |part: &Option<usize>| part.and_then(|part| given.get(part).copied());
                let level_distances = parts.iter().flatten().map(of_level).collect();
                Route { measure, level_distances, ..Route::new(path, distances) }
            };
            Ok(found.into_values().map(route).collect())
        }),
    }
}

/// The part of the features that chooses the module of each level (L), for a router with the numbers `clusters` of choices
/// of its parts. `None` unless the router's parts are levels: the number of every path has the path's modules as its digits.
fn level_parts(clusters: &[u32], topology: &Topology) -> Option<Vec<Option<usize>>> {
    // With several parts, a level of P modules is not chosen: it has a module for each path.
    let chosen = |&level: &usize| (2..topology.paths()).contains(&topology.modules_in(level));
    let chosen: Vec<usize> = (0..topology.levels()).filter(chosen).collect();
    let parts: Vec<usize> = (0..clusters.len()).filter(|&part| clusters[part] > 1).collect();
    let fits = parts.len() > 1
        && chosen.len() == parts.len()
        && chosen.iter().zip(&parts).all(|(&level, &part)| topology.modules_in(level) == clusters[part]);
    if !fits {
        return None;
    }
    for path in topology.path_ids() {
        let modules = topology.modules_of(path);
        let number = chosen.iter().fold(0, |number, &level| {
            number * u64::from(topology.modules_in(level)) + u64::from(modules[level].index)
        });
        if number != u64::from(path.0) {
            return None;
        }
    }
    let part = |level| chosen.iter().position(|&chosen| chosen == level).map(|place| parts[place]);
    Some((0..topology.levels()).map(part).collect())
}

#[cfg(test)]
mod tests {
    use dipaco_topology::{LevelConfig, Modules, TopologyConfig};

    use super::*;

    /// A topology of levels with these numbers of modules, one block each.
    fn levels(counts: &[u32]) -> TopologyConfig {
        let level = |(number, &count): (usize, &u32)| LevelConfig {
            modules: Modules::Count(count),
            blocks: number.to_string(),
            embedding: number == 0,
            head: number + 1 == counts.len(),
            frozen: false,
        };
        TopologyConfig::grid(1, counts.iter().enumerate().map(level).collect())
    }

    #[test]
    fn parts_are_levels_only_if_the_paths_are_their_products() {
        let of = |clusters: &[u32], config: &TopologyConfig, blocks: usize| {
            level_parts(clusters, &Topology::new(config, blocks).unwrap())
        };
        assert_eq!(of(&[2, 3], &levels(&[2, 3]), 2), Some(vec![Some(0), Some(1)]));
        assert_eq!(of(&[2, 3], &levels(&[2, 1, 3]), 3), Some(vec![Some(0), None, Some(1)]));
        let mut own = levels(&[2, 3, 1]);
        own.levels[2].modules = Modules::Paths;
        assert_eq!(
            of(&[2, 3], &own, 3),
            Some(vec![Some(0), Some(1), None]),
            "a level of path-specific modules"
        );
        assert_eq!(of(&[3, 2], &levels(&[2, 3]), 2), None, "another order");
        assert_eq!(of(&[6], &levels(&[2, 3]), 2), None, "paths as a whole");
        // Listed paths have the numbers of their places.
        let listed = |paths: &[[u32; 2]]| TopologyConfig {
            paths: paths.iter().map(|path| path.to_vec()).collect(),
            ..levels(&[2, 2])
        };
        assert_eq!(of(&[2, 2], &listed(&[[0, 0], [1, 0], [0, 1], [1, 1]]), 2), None);
        assert!(of(&[2, 2], &listed(&[[0, 0], [0, 1], [1, 0], [1, 1]]), 2).is_some());
    }
}
