//! Path sampling: the rounds in which a path rests.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use dipaco_topology::PathId;

use crate::drops::hash;

/// Path sampling (arXiv:2403.10616 §2.6.2): in each round a random subset of the paths trains, and the others rest. The
/// subset is a function of the run's seed and the round, so every run of a seed trains the same paths.
#[derive(Clone, Debug, Default)]
pub struct Rests {
    seed: u64,
    /// The first path that trains at all.
    first: u32,
    /// Number of paths that train at all.
    paths: u32,
    /// Pairs of the rounds before a change and the number of paths that train in each round from then on.
    awake: Vec<(u64, u32)>,
    /// The place of the last path that trains in each round, counted from 0. Found when somebody first asks for the round,
    /// with a look at all paths.
    last: Arc<[OnceLock<(u64, u32)>]>,
}

impl PartialEq for Rests {
    fn eq(&self, other: &Self) -> bool {
        let Self { seed, first, paths, awake, last: _ } = self;
        (*seed, *first, *paths, awake) == (other.seed, other.first, other.paths, &other.awake)
    }
}

impl Eq for Rests {}

impl Rests {
    /// `awake` of the paths `trained` train in each round; all of them with 0.
    #[must_use]
    pub fn new(seed: u64, trained: Range<u32>, awake: u32) -> Self {
        Self::changing(seed, trained, vec![(0, awake)])
    }

    /// The number of paths that train changes (adaptive compute, arXiv:2311.08105 figure 7): `awake` has the rounds before each
    /// change in ascending order, and the number of paths in each round from then on; all of them with 0.
    #[must_use]
    pub fn changing(seed: u64, trained: Range<u32>, awake: Vec<(u64, u32)>) -> Self {
        let paths = trained.end.saturating_sub(trained.start);
        Self { seed, first: trained.start, paths, awake, last: Arc::default() }
    }

    /// The same for a run of this many rounds. It remembers which paths train in each of them, so that only the first question
    /// about a round looks at all paths.
    pub(crate) fn of_rounds(self, rounds: u64) -> Self {
        let rounds = if self.any() { rounds.saturating_add(1) } else { 0 };
        Self { last: (0..rounds).map(|_| OnceLock::new()).collect(), ..self }
    }

    /// True if any path rests in any round.
    #[must_use]
    pub fn any(&self) -> bool {
        self.awake.iter().any(|&(_, awake)| self.some(awake))
    }

    /// True if so many paths are some of the paths, and not all.
    fn some(&self, awake: u32) -> bool {
        awake > 0 && awake < self.paths
    }

    /// Number of paths that train in a round, counted from 1.
    fn awake(&self, round: u64) -> u32 {
        self.awake.iter().rev().find(|&&(before, _)| before < round).map_or(0, |&(_, awake)| awake)
    }

    /// Number of paths that train in a round, counted from 1; `None` if no path rests in it.
    pub(crate) fn awake_of_some(&self, round: u64) -> Option<usize> {
        let awake = self.awake(round);
        self.some(awake).then_some(awake as usize)
    }

    /// True if a path rests in a round, counted from 1: the paths that train are those with the lowest hashes of seed,
    /// round and number.
    #[must_use]
    pub(crate) fn rests(&self, path: PathId, round: u64) -> bool {
        let awake = self.awake(round);
        let Some(number) =
            path.0.checked_sub(self.first).filter(|&number| number < self.paths && self.some(awake))
        else {
            return false;
        };
        let remembered = usize::try_from(round).ok().and_then(|round| self.last.get(round));
        let find = || self.last_awake(round, awake);
        self.place(round, number) > remembered.map_or_else(find, |last| *last.get_or_init(find))
    }

    /// The place of a path in a round: the paths with the lowest places train. The number decides between equal hashes.
    fn place(&self, round: u64, number: u32) -> (u64, u32) {
        (hash([self.seed, round, u64::from(number)]), number)
    }

    /// The highest place among the first `awake` paths of a round. Looks at all paths.
    fn last_awake(&self, round: u64, awake: u32) -> (u64, u32) {
        let mut places: Vec<_> = (0..self.paths).map(|number| self.place(round, number)).collect();
        *places.select_nth_unstable(awake as usize - 1).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn awake(rests: &Rests, paths: Range<u32>, round: u64) -> Vec<u32> {
        paths.filter(|&path| !rests.rests(PathId(path), round)).collect()
    }

    #[test]
    fn as_many_paths_train_in_each_round_as_are_asked_for() {
        for (paths, of_round) in [(2, 1), (3, 2), (4, 1), (5, 3), (16, 4), (17, 16), (256, 40), (1000, 7)] {
            let rests = Rests::new(7, 0..paths, of_round);
            let remembers = rests.clone().of_rounds(40);
            assert_eq!(rests, remembers);
            for round in 1..=50 {
                let trained = awake(&rests, 0..paths, round);
                assert_eq!(trained.len(), of_round as usize, "{paths} {round}");
                assert_eq!(awake(&remembers, 0..paths, round), trained, "{paths} {round}");
            }
            assert!(remembers.last[1..].iter().all(|last| last.get().is_some()), "each round is found once");
        }
    }

    #[test]
    fn every_path_and_every_pair_of_paths_trains_equally_often() {
        let rests = Rests::new(3, 0..6, 3);
        let (mut single, mut pairs) = ([0u32; 6], [[0u32; 6]; 6]);
        for round in 1..=10_000 {
            let awake = awake(&rests, 0..6, round);
            for &a in &awake {
                single[a as usize] += 1;
                awake.iter().filter(|&&b| b > a).for_each(|&b| pairs[a as usize][b as usize] += 1);
            }
        }
        // Half of the rounds, and a fifth of them. Four standard deviations are 200 and 160.
        assert!(single.iter().all(|&rounds| rounds.abs_diff(5_000) < 200), "{single:?}");
        for (a, row) in pairs.iter().enumerate() {
            assert!(row[a + 1..].iter().all(|&rounds| rounds.abs_diff(2_000) < 160), "{pairs:?}");
        }
    }

    #[test]
    fn seed_and_round_choose_the_paths() {
        let of = |seed, round| awake(&Rests::new(seed, 0..64, 8), 0..64, round);
        assert_eq!(of(1, 5), of(1, 5));
        assert_ne!(of(1, 5), of(2, 5));
        assert_ne!(of(1, 5), of(1, 6));
    }

    #[test]
    fn the_number_of_paths_changes_after_the_given_rounds() {
        let rests = Rests::changing(1, 0..8, vec![(0, 4), (3, 8), (5, 2)]);
        let counts: Vec<usize> = (1..=7).map(|round| awake(&rests, 0..8, round).len()).collect();
        assert_eq!(counts, [4, 4, 4, 8, 8, 2, 2]);
        let told: Vec<_> = (1..=7).map(|round| rests.awake_of_some(round).unwrap_or(8)).collect();
        assert_eq!(told, counts);
        assert_eq!(awake(&rests, 0..8, 2), awake(&Rests::new(1, 0..8, 4), 0..8, 2));
        assert!(rests.any() && !Rests::changing(1, 0..8, vec![(0, 8), (3, 0)]).any());
    }

    #[test]
    fn kept_paths_are_not_counted_and_all_may_train() {
        let rests = Rests::new(1, 4..10, 2);
        assert_eq!(awake(&rests, 4..10, 1).len(), 2);
        assert_eq!(awake(&rests, 0..4, 1).len(), 4, "kept paths have no rounds in which to rest");
        for all in [0, 6, 7] {
            assert!(!Rests::new(1, 4..10, all).any());
        }
        assert!(!Rests::default().any());
    }
}
