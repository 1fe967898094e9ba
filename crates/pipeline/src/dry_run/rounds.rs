//! The rounds of a training by the number of paths that train in them, and the sums over them.

use dipaco_config::{PathsPerRound, TrainConfig};
use serde::Serialize;

/// Successive rounds in which equally many paths train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RoundSpan {
    /// Number of rounds.
    pub rounds: u64,
    /// Number of paths that train in each of them.
    pub paths: u64,
}

/// Training tokens, padding included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TokenCounts {
    /// An inner step of a path.
    pub step: u64,
    /// A round of the most paths.
    pub round: u64,
    /// All rounds of all paths.
    pub all: u64,
}

/// The rounds of a training in their order. `trained` is the number of paths that train at all.
pub(super) fn rounds(train: &TrainConfig, trained: u64) -> Vec<RoundSpan> {
    let changes = train.paths_per_round.changes();
    let ends = changes.iter().skip(1).map(|&(before, _)| before.min(train.rounds)).chain([train.rounds]);
    let part = |(&(before, paths), end): (&(u32, u32), u32)| RoundSpan {
        rounds: end.saturating_sub(before).into(),
        paths: PathsPerRound::Always(paths).most(trained),
    };
    // A change behind the last round has no round.
    changes.iter().zip(ends).map(part).filter(|part| part.rounds > 0).collect()
}

/// The number of paths in the rounds of the most paths.
pub(super) fn most(rounds: &[RoundSpan]) -> u64 {
    rounds.iter().map(|part| part.paths).max().unwrap_or(0)
}

/// The sum over all rounds of a number that depends on the paths of a round.
pub(super) fn over_rounds(rounds: &[RoundSpan], of_paths: impl Fn(u64) -> u64) -> u64 {
    rounds.iter().map(|part| part.rounds.saturating_mul(of_paths(part.paths))).fold(0, u64::saturating_add)
}

/// The tokens of a training of these rounds.
pub(super) fn tokens(train: &TrainConfig, rounds: &[RoundSpan]) -> TokenCounts {
    let step = (train.batch as u64).saturating_mul(train.sequence_tokens as u64);
    let of_path = step.saturating_mul(train.inner_steps);
    TokenCounts {
        step,
        round: of_path.saturating_mul(most(rounds)),
        all: of_path.saturating_mul(over_rounds(rounds, |paths| paths)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rounds_follow_the_changes_and_end_with_the_training() {
        // Eight paths train at all.
        let of = |rounds, paths_per_round| -> Vec<(u64, u64)> {
            let train = TrainConfig { rounds, paths_per_round, ..TrainConfig::default() };
            super::rounds(&train, 8).iter().map(|part| (part.rounds, part.paths)).collect()
        };
        let changing = PathsPerRound::Changing(vec![(0, 4), (10, 0), (16, 2)]);
        assert_eq!(of(20, changing.clone()), [(10, 4), (6, 8), (4, 2)]);
        assert_eq!(of(12, changing), [(10, 4), (2, 8)]);
        assert_eq!(of(20, PathsPerRound::default()), [(20, 8)]);
        assert_eq!(of(20, PathsPerRound::Always(3)), [(20, 3)]);
    }
}
