//! Warnings that the paths of a run have too little data each.

use std::ops::Range;

use dipaco_config::{RunConfig, TrainConfig};
use dipaco_store::{ShardRecord, TrainingRecord};
use dipaco_topology::PathId;

/// Repetitions of text up to which repeated text is about as good as new text (arXiv:2305.16264 §5; from about 40
/// repetitions on it is worthless).
const REPEATS: f64 = 4.0;
/// Rise of the held-out loss in nats, about 1 % of perplexity, that is more than noise.
const RISEN: f64 = 0.01;
/// Expected held-out documents of a path below which their loss says little about other text: in the quickstart ten
/// documents rose by 0.7 nats on a path whose validation text was as probable as its training text.
const ENOUGH: f64 = 30.0;
/// Rounds since the lowest held-out loss before it counts as risen.
const ROUNDS: u32 = 2;
/// Largest number of paths that a warning names.
const NAMED: usize = 4;

/// Number of times that a path sees its whole shard in `rounds` rounds in which it trains.
#[must_use]
pub fn shard_repeats(shard: &ShardRecord, train: &TrainConfig, rounds: f64) -> f64 {
    let steps = rounds * train.inner_steps as f64;
    let length = train.sequence_tokens as f64;
    let packed = shard.tokens as f64 / length;
    // Without packing a document is a sequence of its own, or several.
    let sequences = if train.packing { packed } else { packed.max(shard.documents as f64) };
    steps * train.batch as f64 / sequences.max(1.0)
}

/// Number of a run's `paths` that train: nobody trains on the text of kept paths.
fn trained_of(paths: usize, config: &RunConfig) -> usize {
    paths.saturating_sub(config.topology.kept_paths as usize)
}

/// The number of these rounds in which one of `trained` paths trains: the mean, because it rests in the others.
fn training_rounds(trained: usize, train: &TrainConfig, rounds: Range<u32>) -> f64 {
    let up_to = |round| train.paths_per_round.rounds_of_paths(trained as u64, round);
    up_to(rounds.end).saturating_sub(up_to(rounds.start)) as f64 / trained.max(1) as f64
}

/// A warning about paths that see their shard too often in these rounds to learn from more of them.
#[must_use]
pub fn small_shards(shards: &[ShardRecord], config: &RunConfig, rounds: Range<u32>) -> Option<String> {
    let trained = trained_of(shards.len(), config);
    let rounds = training_rounds(trained, &config.train, rounds);
    let repeats = |(path, shard): (u32, &ShardRecord)| {
        (shard_repeats(shard, &config.train, rounds), PathId(path), shard.documents)
    };
    let paths = (0u32..).zip(shards).skip(shards.len() - trained);
    let mut often: Vec<_> = paths.map(repeats).filter(|small| small.0 > REPEATS).collect();
    often.sort_by(|a, b| b.0.total_cmp(&a.0));
    let &(most, ..) = often.first()?;
    let named: Vec<_> = often
        .iter()
        .take(NAMED)
        .map(|(times, path, documents)| format!("path {path} with {documents} documents: {times:.0} times"))
        .collect();
    Some(format!(
        "data per path is small: {} of {trained} paths see their shard more than {REPEATS:.0} times, up to {most:.0} \
         times ({}{}); use more text or fewer paths, let shards overlap (routing.overlap = 2), train fewer rounds, or \
         evaluate with --early-stopping",
        often.len(),
        named.join(", "),
        if often.len() > NAMED { ", …" } else { "" }
    ))
}

/// A warning about paths that overfit: their loss on held-out documents has risen since its minimum in this phase. Paths
/// with few held-out documents are left out, and those that have not read their shard once: what they have read was new.
#[must_use]
pub fn rising_losses(training: &TrainingRecord, config: &RunConfig) -> Option<String> {
    let (train, trained) = (&config.train, trained_of(training.paths.len(), config));
    let risen = |record: &dipaco_store::PathRecord, shard: &ShardRecord| {
        let (best, last) = (record.best.as_ref()?, record.last.as_ref()?);
        let risen = last.loss > best.loss + RISEN && last.round >= best.round.saturating_add(ROUNDS);
        // The shards are those of this phase.
        let rounds = training_rounds(trained, train, training.phase_begin()..last.round);
        let repeated = shard_repeats(shard, train, rounds) > 1.0;
        (risen && repeated).then_some((last.loss - best.loss, best.round))
    };
    let enough = |shard: &ShardRecord| shard.documents as f64 * train.holdout_fraction >= ENOUGH;
    let mut paths: Vec<_> = (0u32..)
        .zip(&training.paths)
        .zip(&training.shards)
        .filter(|(_, shard)| enough(shard))
        .filter_map(|((path, record), shard)| {
            risen(record, shard).map(|(by, since)| (by, PathId(path), since))
        })
        .collect();
    paths.sort_by(|a, b| b.0.total_cmp(&a.0));
    let named: Vec<_> = paths
        .iter()
        .take(NAMED)
        .map(|(by, path, since)| format!("path {path} by {by:.3} nats since round {since}"))
        .collect();
    (!paths.is_empty()).then(|| {
        format!(
            "the loss on held-out documents has risen for {} of {trained} paths ({}{}): they overfit; evaluate with \
             --early-stopping, and train with more text, fewer paths, overlapping shards (routing.overlap = 2) or fewer \
             rounds",
            paths.len(),
            named.join(", "),
            if paths.len() > NAMED { ", …" } else { "" }
        )
    })
}

#[cfg(test)]
mod tests {
    use dipaco_config::PathsPerRound;
    use dipaco_store::{EarlyStoppingBest, PathRecord};

    use super::*;

    fn shard(documents: u64, tokens: u64) -> ShardRecord {
        ShardRecord { file: String::new(), hash: String::new(), documents, tokens }
    }

    /// A round has 300 steps of 8 sequences of 256 tokens.
    fn config() -> RunConfig {
        RunConfig::default()
    }

    #[test]
    fn small_shards_are_named_smallest_first() {
        let config = config();
        // 2,400 sequences: 600 documents are seen 4 times.
        let enough = shard(600, 600 * 100);
        assert!((shard_repeats(&enough, &config.train, 10.0) - 4.0).abs() < 1e-9);
        assert_eq!(small_shards(&[enough.clone(), enough.clone()], &config, 0..10), None);
        let warning = small_shards(&[shard(300, 300), enough, shard(100, 100)], &config, 0..10).unwrap();
        assert!(warning.contains("2 of 3 paths"), "{warning}");
        assert!(warning.contains("(path 2 with 100 documents: 24 times, path 0"), "{warning}");
        // Long documents are several sequences.
        assert!((shard_repeats(&shard(10, 256 * 600), &config.train, 10.0) - 4.0).abs() < 1e-9);
        let mut extended = config;
        extended.topology.kept_paths = 2;
        let small = shard(100, 100);
        let warning = small_shards(&[small.clone(), small.clone(), small], &extended, 0..10).unwrap();
        assert!(warning.contains("1 of 1 paths") && warning.contains("(path 2 with"), "{warning}");
    }

    #[test]
    fn the_shards_of_a_phase_are_measured_by_the_paths_that_train_in_it() {
        let mut config = config();
        config.train.paths_per_round = PathsPerRound::Changing(vec![(0, 1), (10, 2)]);
        // Ten rounds of a path that trains in all of them read 2,400 sequences: 4.8 times these. Before the change a path
        // trains in every other round.
        let shards = [shard(500, 0), shard(500, 0)];
        assert!(small_shards(&shards, &config, 10..20).is_some());
        assert_eq!(small_shards(&shards, &config, 0..10), None);
    }

    #[test]
    fn a_risen_held_out_loss_is_reported_and_noise_is_not() {
        let path = |best: (u32, f64), last: (u32, f64)| PathRecord {
            best: Some(EarlyStoppingBest { round: best.0, versions: vec![best.0], loss: best.1 }),
            last: Some(EarlyStoppingBest { round: last.0, versions: vec![last.0], loss: last.1 }),
            ..PathRecord::default()
        };
        let training = |paths, shards: &[ShardRecord]| TrainingRecord {
            origin: String::new(),
            rounds: 10,
            inner_steps: 300,
            boundaries: Vec::new(),
            phase: 0,
            shards: shards.to_vec(),
            modules: Vec::new(),
            paths,
            numerics: None,
            numerics_token: None,
        };
        let large = [shard(2_000, 0), shard(2_000, 0), shard(2_000, 0)];
        let mut config = config();
        config.train.holdout_fraction = 0.02;
        let fine = [path((10, 3.0), (10, 3.0)), path((9, 3.0), (10, 3.2)), path((4, 3.0), (10, 3.005))];
        assert_eq!(rising_losses(&training(fine.to_vec(), &large), &config), None);
        let risen = vec![path((4, 3.0), (10, 3.25)), fine[0].clone()];
        let warning = rising_losses(&training(risen.clone(), &large), &config).unwrap();
        assert!(warning.contains("1 of 2 paths (path 0 by 0.250 nats since round 4)"), "{warning}");
        // Ten documents say little about other text.
        let small = [shard(500, 0), shard(2_000, 0)];
        assert_eq!(rising_losses(&training(risen.clone(), &small), &config), None);
        // Ten rounds read 2,400 sequences. Nothing of a larger shard was read twice.
        let after = |begin: Option<u32>, config: &RunConfig, documents| {
            let found = training(risen.clone(), &[shard(documents, 0), shard(2_000, 0)]);
            let phase = u32::from(begin.is_some());
            rising_losses(&TrainingRecord { boundaries: begin.into_iter().collect(), phase, ..found }, config)
        };
        assert!(after(None, &config, 2_300).is_some() && after(None, &config, 2_500).is_none());
        // The eight rounds of a phase read 1,920 sequences of its shard.
        assert!(after(Some(2), &config, 1_900).is_some() && after(Some(2), &config, 2_000).is_none());
        // A path that rests in every other round reads 1,200.
        config.train.paths_per_round = PathsPerRound::Always(1);
        assert!(after(None, &config, 2_000).is_none());
        // What later rounds do says nothing about those so far.
        config.train.rounds = 100;
        config.train.paths_per_round = PathsPerRound::Changing(vec![(0, 1), (10, 2)]);
        assert!(after(None, &config, 2_000).is_none());
        config.train.paths_per_round = PathsPerRound::Changing(vec![(0, 2), (10, 1)]);
        assert!(after(None, &config, 2_000).is_some());
    }
}
