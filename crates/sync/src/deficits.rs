//! The open paths in the order of the deficits of their shards.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use dipaco_topology::PathId;

/// Most paths of a chunk.
const CHUNK: usize = 64;

/// A path with its number of inner steps and the size of its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrainedShard {
    pub(crate) path: PathId,
    pub(crate) steps: u64,
    /// Number of tokens in the shard.
    pub(crate) tokens: u64,
}

impl Ord for TrainedShard {
    /// By inner steps for each token.
    fn cmp(&self, other: &Self) -> Ordering {
        let product = |steps: u64, tokens: u64| u128::from(steps) * u128::from(tokens.max(1));
        let [own, others] = [product(self.steps, other.tokens), product(other.steps, self.tokens)];
        own.cmp(&others).then(self.path.cmp(&other.path))
    }
}

impl PartialOrd for TrainedShard {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Neighbours in the order, with their sums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Chunk {
    /// Not empty.
    shards: Vec<TrainedShard>,
    steps: u64,
    tokens: u64,
}

impl Chunk {
    fn of(shards: Vec<TrainedShard>) -> Self {
        let steps = shards.iter().map(|shard| shard.steps).sum();
        let tokens = shards.iter().map(|shard| shard.tokens).sum();
        Self { shards, steps, tokens }
    }

    /// The sum of the positive weights of the shards.
    fn weight(&self, weight: impl Fn(u64, u64) -> f64) -> f64 {
        let of = |shard: &TrainedShard| weight(shard.tokens, shard.steps).max(0.0);
        match (self.shards.first().map(of), self.shards.last().map(of)) {
            (Some(first), Some(last)) if first > 0.0 && last > 0.0 => {
                weight(self.tokens, self.steps).max(0.0)
            }
            (Some(first), _) if first > 0.0 => self.shards.iter().map(of).sum(),
            _ => 0.0,
        }
    }
}

/// Paths in the order of their inner steps for each token of the shard. Whatever all paths together have trained, those with
/// a deficit come first. So the deficits of a whole chunk add up from its sums, and a draw looks at a number for each chunk of
/// 64 paths and at the paths of one or two chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deficits {
    chunks: Vec<Chunk>,
    at: BTreeMap<PathId, TrainedShard>,
}

impl Deficits {
    /// Adds a path, with the inner steps and the shard that it has now.
    pub(crate) fn insert(&mut self, shard: TrainedShard) {
        if self.at.get(&shard.path) == Some(&shard) {
            return;
        }
        self.remove(shard.path);
        self.at.insert(shard.path, shard);
        let number = self.chunk_of(&shard).min(self.chunks.len().saturating_sub(1));
        let Some(chunk) = self.chunks.get_mut(number) else {
            self.chunks.push(Chunk::of(vec![shard]));
            return;
        };
        let place = chunk.shards.partition_point(|other| *other < shard);
        chunk.shards.insert(place, shard);
        chunk.steps += shard.steps;
        chunk.tokens += shard.tokens;
        if chunk.shards.len() > CHUNK {
            let later = Chunk::of(chunk.shards.split_off(CHUNK / 2));
            chunk.steps -= later.steps;
            chunk.tokens -= later.tokens;
            self.chunks.insert(number + 1, later);
        }
    }

    /// Takes a path out, if it is there.
    pub(crate) fn remove(&mut self, path: PathId) {
        let Some(shard) = self.at.remove(&path) else { return };
        let number = self.chunk_of(&shard);
        let Some(chunk) = self.chunks.get_mut(number) else { return };
        let Ok(place) = chunk.shards.binary_search(&shard) else { return };
        chunk.shards.remove(place);
        chunk.steps -= shard.steps;
        chunk.tokens -= shard.tokens;
        if chunk.shards.is_empty() {
            self.chunks.remove(number);
        }
    }

    /// The first chunk whose last path is not before `shard`.
    fn chunk_of(&self, shard: &TrainedShard) -> usize {
        self.chunks.partition_point(|chunk| chunk.shards.last().is_some_and(|last| last < shard))
    }

    /// Draws one of these paths or of `others` in proportion to its weight: `share` is a random number from 0 to 1. Paths
    /// without a positive weight are not drawn; `None` if there is no other. `weight` is a linear function of the tokens and
    /// the steps, whose sign changes at most once in the order of the paths, to negative.
    pub(crate) fn draw(
        &self,
        share: f64,
        others: &[TrainedShard],
        weight: impl Fn(u64, u64) -> f64,
    ) -> Option<PathId> {
        let of_others = others.iter().map(|shard| (shard.path, weight(shard.tokens, shard.steps).max(0.0)));
        let weights: Vec<f64> = self.chunks.iter().map(|chunk| chunk.weight(&weight)).collect();
        let mut left =
            share * (of_others.clone().map(|(_, weight)| weight).sum::<f64>() + weights.iter().sum::<f64>());
        // Rounding may leave a little after the last path.
        let mut last = None;
        for (path, of_path) in of_others.filter(|(_, weight)| *weight > 0.0) {
            last = Some(path);
            if left < of_path {
                return last;
            }
            left -= of_path;
        }
        let mut drawn: &[TrainedShard] = &[];
        for (chunk, of_chunk) in self.chunks.iter().zip(weights) {
            if of_chunk <= 0.0 {
                break;
            }
            drawn = &chunk.shards;
            if left < of_chunk {
                break;
            }
            left -= of_chunk;
        }
        for shard in drawn {
            let of_shard = weight(shard.tokens, shard.steps);
            if of_shard <= 0.0 {
                break;
            }
            last = Some(shard.path);
            if left < of_shard {
                break;
            }
            left -= of_shard;
        }
        last
    }

    /// The paths, in order of their numbers.
    pub(crate) fn paths(&self) -> impl Iterator<Item = PathId> + '_ {
        self.at.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(path: u32) -> TrainedShard {
        let path64 = u64::from(path);
        TrainedShard { path: PathId(path), steps: path64 * 7919 % 1009, tokens: 1000 + path64 * 31 % 500 }
    }

    /// How often each path is drawn with these many shares between 0 and 1, a step apart.
    fn draws(deficits: &Deficits, others: &[TrainedShard], shares: u32, lacks: f64) -> BTreeMap<PathId, u32> {
        let weight = |tokens: u64, steps: u64| tokens as f64 * lacks - steps as f64;
        let mut counts = BTreeMap::new();
        for number in 0..shares {
            let share = f64::from(number) / f64::from(shares);
            *counts.entry(deficits.draw(share, others, weight).unwrap()).or_default() += 1;
        }
        counts
    }

    #[test]
    fn a_path_is_drawn_in_proportion_to_its_weight() {
        let mut deficits = Deficits::default();
        for path in 0..1000 {
            // Each path has another place before.
            deficits.insert(TrainedShard { steps: 1009 - shard(path).steps, ..shard(path) });
        }
        for path in 0..1000 {
            deficits.insert(shard(path));
        }
        for path in 900..1000 {
            deficits.remove(PathId(path));
        }
        assert!(deficits.paths().eq((0..900).map(PathId)));
        assert!(deficits.chunks.iter().all(|chunk| *chunk == Chunk::of(chunk.shards.clone())));
        let others: Vec<_> = (900..910).map(shard).collect();
        for lacks in [0.05, 0.3, 0.9] {
            let weight = |shard: TrainedShard| (shard.tokens as f64 * lacks - shard.steps as f64).max(0.0);
            let total: f64 = (0..910).map(|path| weight(shard(path))).sum();
            let counts = draws(&deficits, &others, 300_000, lacks);
            for path in 0..910 {
                let (found, weight) = (counts.get(&PathId(path)), weight(shard(path)));
                let expected = weight / total * 300_000.0;
                let off = f64::from(found.copied().unwrap_or(0)) - expected;
                assert!(off.abs() < 1.01, "{lacks} {path}: {found:?} {expected}");
                assert!(weight > 0.0 || found.is_none());
            }
        }
    }

    #[test]
    fn without_a_weight_nothing_is_drawn() {
        let mut deficits = Deficits::default();
        assert_eq!(deficits.draw(0.5, &[], |_, _| 1.0), None);
        deficits.insert(shard(1));
        assert_eq!(deficits.draw(0.5, &[], |_, _| -1.0), None);
        assert_eq!(deficits.draw(0.5, &[shard(2)], |_, _| 0.0), None);
        deficits.remove(PathId(1));
        deficits.remove(PathId(1));
        assert_eq!(deficits, Deficits::default());
    }
}
