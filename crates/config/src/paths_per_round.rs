//! Number of paths that train in each round.

use serde::{Deserialize, Serialize};

/// Key `train.paths_per_round`: how many paths train in each round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number of paths, or a list of [rounds before, paths]")]
pub enum PathsPerRound {
    /// So many paths in every round; all of them with 0.
    Always(u32),
    /// The number of paths changes: pairs of the rounds before a change and the number of paths from then on.
    Changing(Vec<(u32, u32)>),
}

impl Default for PathsPerRound {
    fn default() -> Self {
        Self::Always(0)
    }
}

impl PathsPerRound {
    /// True if all paths train in every round.
    #[must_use]
    pub fn all(&self) -> bool {
        *self == Self::default()
    }

    /// Pairs of the rounds before a change and the number of paths from then on; 0 stands for all paths.
    #[must_use]
    pub fn changes(&self) -> Vec<(u32, u32)> {
        match self {
            Self::Always(paths) => vec![(0, *paths)],
            Self::Changing(changes) => changes.clone(),
        }
    }

    /// The largest number of paths that train in a round, of `trained` paths.
    #[must_use]
    pub fn most(&self, trained: u64) -> u64 {
        self.changes().iter().map(|&(_, paths)| of(paths, trained)).max().unwrap_or(trained)
    }

    /// Number of rounds of paths in `rounds` rounds: the sum of the paths that train in each, of `trained` paths.
    #[must_use]
    pub fn rounds_of_paths(&self, trained: u64, rounds: u32) -> u64 {
        let changes = self.changes();
        let ends = changes.iter().skip(1).map(|&(before, _)| before.min(rounds)).chain([rounds]);
        let parts = changes.iter().zip(ends).map(|(&(before, paths), end)| {
            u64::from(end.saturating_sub(before)).saturating_mul(of(paths, trained))
        });
        parts.fold(0, u64::saturating_add)
    }
}

fn of(paths: u32, trained: u64) -> u64 {
    if paths == 0 { trained } else { trained.min(paths.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rounds_of_paths_follow_the_changes() {
        let changing = PathsPerRound::Changing(vec![(0, 4), (10, 0), (16, 2)]);
        assert_eq!(changing.rounds_of_paths(8, 20), 10 * 4 + 6 * 8 + 4 * 2);
        assert_eq!(changing.rounds_of_paths(8, 12), 10 * 4 + 2 * 8);
        assert_eq!((changing.most(8), PathsPerRound::Always(3).most(8)), (8, 3));
        assert_eq!(PathsPerRound::default().rounds_of_paths(8, 20), 160);
        assert_eq!(PathsPerRound::Always(3).rounds_of_paths(8, 20), 60);
    }
}
