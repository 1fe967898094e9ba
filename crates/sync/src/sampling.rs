//! Drawing the next path for shards of different size.

use dipaco_topology::PathId;

use crate::deficits::{Deficits, TrainedShard};
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
    /// The paths that are open to every worker.
    open: Deficits,
}

/// The number of a draw. Each has random bits of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrawNumber {
    /// Number of the lease.
    pub(crate) lease: u64,
    /// Number of earlier draws for the lease.
    pub(crate) repetition: u64,
}

impl Sampling {
    /// Draws with this seed, from shards with these numbers of tokens.
    pub(crate) fn new(seed: u64, shards: Vec<u64>) -> Self {
        let tokens = shards.iter().sum();
        Self { seed, shards, tokens, open: Deficits::default() }
    }

    /// Notes that a path is open after so many inner steps, or that it is not open.
    pub(crate) fn set_open(&mut self, path: PathId, steps: Option<u64>) {
        match steps {
            Some(steps) => self.open.insert(self.trained_shard(path, steps)),
            None => self.open.remove(path),
        }
    }

    /// The open paths, in order.
    pub(crate) fn open(&self) -> impl Iterator<Item = PathId> + '_ {
        self.open.paths()
    }

    /// Draws an open path or one of `own`, which are other paths with their numbers of inner steps. All paths together have
    /// taken `taken` steps. If no path has a deficit, the probability is proportional to the size of the shard.
    pub(crate) fn draw(&self, own: &[(u64, PathId)], taken: u64, number: DrawNumber) -> Option<PathId> {
        self.draw_from(&self.open, own, taken, number)
    }

    /// Draws one of `candidates`, as [`Sampling::draw`] does. Looks at each of them.
    pub(crate) fn draw_among(
        &self,
        candidates: &[(u64, PathId)],
        taken: u64,
        number: DrawNumber,
    ) -> Option<PathId> {
        self.draw_from(&Deficits::default(), candidates, taken, number)
    }

    fn draw_from(
        &self,
        open: &Deficits,
        others: &[(u64, PathId)],
        taken: u64,
        DrawNumber { lease, repetition }: DrawNumber,
    ) -> Option<PathId> {
        let others: Vec<_> = others.iter().map(|&(steps, path)| self.trained_shard(path, steps)).collect();
        // 53 bits fit a f64: a number from 0 to 1.
        let random = (hash([self.seed, lease, repetition]) >> 11) as f64 / (1u64 << 53) as f64;
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let deficit = |tokens: u64, steps: u64| share(tokens, self.tokens) - share(steps, taken);
        let drawn = open.draw(random, &others, deficit);
        drawn.or_else(|| open.draw(random, &others, |tokens, _| tokens as f64))
    }

    fn trained_shard(&self, path: PathId, steps: u64) -> TrainedShard {
        let tokens = self.shards.get(path.index()).copied().unwrap_or(0).max(1);
        TrainedShard { path, steps, tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(lease: u64) -> DrawNumber {
        DrawNumber { lease, repetition: 0 }
    }

    fn drawn(shards: &[u64], steps: &[u64], candidates: &[u32]) -> Vec<usize> {
        let mut sampling = Sampling::new(3, shards.to_vec());
        let candidates: Vec<_> =
            candidates.iter().map(|&path| (steps[path as usize], PathId(path))).collect();
        let (own, open) = candidates.split_at(1);
        open.iter().for_each(|&(steps, path)| sampling.set_open(path, Some(steps)));
        let steps = steps.iter().sum();
        let mut counts = vec![0; shards.len()];
        for lease in 0..10_000 {
            counts[sampling.draw(own, steps, number(lease)).unwrap().index()] += 1;
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
        // In proportion to the shards.
        let counts = drawn(&[100, 300, 400], &[50, 150, 0], &[0, 1]);
        assert!(counts[0].abs_diff(2_500) < 130, "{counts:?}");
        assert_eq!(Sampling::default().draw(&[], 0, number(0)), None);
    }

    #[test]
    fn a_path_is_drawn_while_it_is_open() {
        let mut sampling = Sampling::new(3, vec![100, 100]);
        sampling.set_open(PathId(1), Some(0));
        assert_eq!(sampling.draw(&[], 0, number(1)), Some(PathId(1)));
        assert!(sampling.open().eq([PathId(1)]));
        sampling.set_open(PathId(1), None);
        assert_eq!(sampling.draw(&[], 0, number(1)), None);
        assert_eq!(sampling.draw_among(&[(0, PathId(0))], 0, number(1)), Some(PathId(0)));
    }
}
