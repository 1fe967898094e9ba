//! Drawing the next path for shards of different size.

use dipaco_topology::PathId;

use crate::drops::hash;

/// Shard sampling (arXiv:2401.09135, equation 2): the probability of a path is proportional to the deficit of its
/// shard, `max(|D_i| / Σ |D| - n_i / Σ n, 0)`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sampling {
    seed: u64,
    /// Number of tokens of each path's shard.
    shards: Vec<u64>,
    /// Number of tokens of all shards.
    tokens: u64,
}

impl Sampling {
    /// Draws with this seed, from shards with these numbers of tokens.
    pub(crate) fn new(seed: u64, shards: Vec<u64>) -> Self {
        let tokens = shards.iter().sum();
        Self { seed, shards, tokens }
    }

    /// Draws one of `candidates`, which are paths with their numbers of inner steps. All paths together have taken `taken`
    /// steps, and `draw` is the number of the draw. If no candidate has a deficit, the probability is proportional to the
    /// size of the shard.
    ///
    /// Looks at all candidates: each step of any path changes the deficit of all others.
    pub(crate) fn draw(&self, candidates: &[(u64, PathId)], taken: u64, draw: u64) -> Option<PathId> {
        let size = |path: PathId| self.shards.get(path.index()).copied().unwrap_or(0);
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let tokens = self.tokens;
        let behind = |steps: u64, path: PathId| (share(size(path), tokens) - share(steps, taken)).max(0.0);
        let mut weights: Vec<f64> = candidates.iter().map(|&(steps, path)| behind(steps, path)).collect();
        if weights.iter().sum::<f64>() <= 0.0 {
            weights = candidates.iter().map(|&(_, path)| share(size(path).max(1), tokens.max(1))).collect();
        }
        // 53 bits fit a f64: a number from 0 to 1.
        let mut left =
            (hash([self.seed, draw]) >> 11) as f64 / (1u64 << 53) as f64 * weights.iter().sum::<f64>();
        for (&(_, path), weight) in candidates.iter().zip(&weights) {
            left -= weight;
            if left < 0.0 && *weight > 0.0 {
                return Some(path);
            }
        }
        candidates.last().map(|&(_, path)| path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(shards: &[u64], steps: &[u64], candidates: &[u32]) -> Vec<usize> {
        let sampling = Sampling::new(3, shards.to_vec());
        let candidates: Vec<_> =
            candidates.iter().map(|&path| (steps[path as usize], PathId(path))).collect();
        let steps = steps.iter().sum();
        let mut counts = vec![0; shards.len()];
        for draw in 0..10_000 {
            counts[sampling.draw(&candidates, steps, draw).unwrap().index()] += 1;
        }
        counts
    }

    #[test]
    fn shards_are_drawn_by_what_they_lack() {
        // Before any step: in proportion to the shards. Three standard deviations of 10,000 draws are 130.
        let counts = drawn(&[100, 300], &[0, 0], &[0, 1]);
        assert!(counts[0].abs_diff(2_500) < 130, "{counts:?}");
        // 1/4 - 1/2 is no deficit: only the other path is drawn.
        assert_eq!(drawn(&[100, 300], &[5, 5], &[0, 1]), [0, 10_000]);
        // 0.25 - 0.1, 0.25 - 0.2, 0.5 - 0.7: three to one.
        let counts = drawn(&[100, 100, 200], &[10, 20, 70], &[0, 1, 2]);
        assert!(counts[0].abs_diff(7_500) < 130 && counts[2] == 0, "{counts:?}");
    }

    #[test]
    fn someone_is_drawn_even_when_no_shard_is_behind() {
        assert_eq!(drawn(&[100, 300], &[5, 5], &[0]), [10_000, 0]);
        assert_eq!(Sampling::default().draw(&[], 0, 0), None);
    }
}
