//! Tests of combinations of paths.

use dipaco_shards::TokenRows;

use super::*;
use crate::{Mixture, MixtureRouter, evaluate_mixture};

const PATHS: u32 = 3;

fn path_model(path: PathId) -> Path {
    tiny(20 + u64::from(path.0))
}

/// Gives the first `most` paths these weights, whatever the text.
struct Weights(Vec<f64>);

impl MixtureRouter for Weights {
    fn paths(&self) -> u32 {
        PATHS
    }

    fn prefix_tokens(&self) -> usize {
        32
    }

    fn weights(
        &self,
        _: &TokenRows,
        lengths: &[usize],
        most: usize,
    ) -> Result<Vec<Vec<(PathId, f64)>>, BoxError> {
        let row: Vec<_> = (0..).map(PathId).zip(self.0.iter().map(|weight| weight.ln())).take(most).collect();
        Ok(vec![row; lengths.len()])
    }
}

fn mixed(shards: &ShardSet, mixture: Mixture<'_>, config: &EvaluationConfig) -> Evaluation {
    let mut source = Made::by(|path| Ok(path_model(path)));
    evaluate_mixture(shards, &mut source, mixture, &plain(config), &mut quiet).unwrap()
}

/// The loss of each document by each path, by the definition: one sequence at a time, without padding.
fn log_probs(file: &TokenSet, document: u64, path: PathId) -> Vec<f64> {
    let mut all = Vec::new();
    for sequence in file.document(document).to_vec().chunks(CONTEXT).filter(|one| one.len() > 32) {
        let (inputs, targets) = (&sequence[..sequence.len() - 1], &sequence[1..]);
        let batch = file.batch_of(inputs.to_vec(), targets.to_vec(), 1, targets.len()).unwrap();
        let found = Path::token_log_probs(&path_model(path), &batch).unwrap();
        all.extend(found.iter().skip(31).map(|&value| f64::from(value)));
    }
    all
}

#[test]
fn an_ensemble_is_the_weighted_mean_of_the_probabilities() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS);
    let shards = shards(folder.path(), &file, PATHS);
    let config = EvaluationConfig::default();
    let router = Weights(vec![0.25, 0.75]);
    let found = mixed(&shards, Mixture::Ensemble { router: &router, paths: 2 }, &config);
    let mut nll = 0.0;
    for document in 0..file.documents() {
        let [first, second] = [0, 1].map(|path| log_probs(&file, document, PathId(path)));
        nll -= first.iter().zip(second).map(|(a, b)| (0.25 * a.exp() + 0.75 * b.exp()).ln()).sum::<f64>();
    }
    assert!((found.nll_sum - nll).abs() < 1e-5 * nll, "{} and {nll}", found.nll_sum);
    assert_eq!((found.documents, found.tokens_counted), (12, run(&tiny(1), &file, &config).tokens_counted));
    assert!(found.per_path.is_empty());

    // One path of weight 1 is that path.
    let one = Weights(vec![1.0]);
    let alone = mixed(&shards, Mixture::Ensemble { router: &one, paths: 1 }, &config);
    let path = run(&path_model(PathId(0)), &file, &config);
    assert!((alone.nll_sum - path.nll_sum).abs() < 1e-9 * path.nll_sum);
}

#[test]
fn the_oracle_takes_the_best_path_of_each_document() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS);
    let shards = shards(folder.path(), &file, PATHS);
    let found = mixed(&shards, Mixture::Oracle, &EvaluationConfig::default());
    let (mut nll, mut chosen) = (0.0, vec![0; PATHS as usize]);
    for document in (0..file.documents()).filter(|&one| LENGTHS[one as usize] > 32) {
        let of_path = |path| -log_probs(&file, document, PathId(path)).iter().sum::<f64>();
        let losses: Vec<f64> = (0..PATHS).map(of_path).collect();
        let best = (0..losses.len()).min_by(|&a, &b| losses[a].total_cmp(&losses[b])).unwrap();
        nll += losses[best];
        chosen[best] += 1;
    }
    assert!((found.nll_sum - nll).abs() < 1e-5 * nll, "{} and {nll}", found.nll_sum);
    let mut documents = vec![0; PATHS as usize];
    found.per_path.iter().for_each(|row| documents[row.path.index()] = row.documents);
    assert_eq!(documents, chosen);
    assert!(chosen.iter().filter(|&&documents| documents > 0).count() > 1, "the paths are alike: {chosen:?}");
}

#[test]
fn a_random_path_reads_whole_documents_and_depends_on_the_seed_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS.repeat(3));
    let shards = shards(folder.path(), &file, PATHS);
    let config = EvaluationConfig::default();
    let drawn = |seed, threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| mixed(&shards, Mixture::Random { seed }, &config))
    };
    let first = drawn(1, 1);
    assert_eq!(first, drawn(1, 2));
    assert_ne!(first.nll_sum, drawn(2, 1).nll_sum);
    // 30 of the 36 documents have counted tokens.
    assert_eq!(first.per_path.iter().map(|row| row.documents).sum::<u64>(), 30);
    assert_eq!(first.per_path.len(), PATHS as usize);
    let whole = run(&tiny(1), &file, &config);
    assert_eq!((first.tokens_counted, first.sequences), (whole.tokens_counted, whole.sequences));
}

#[test]
fn a_router_of_other_paths_or_a_longer_prefix_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS);
    let config = EvaluationConfig { prefix_tokens: 31, ..EvaluationConfig::default() };
    let router = Weights(vec![1.0]);
    let ensemble = Mixture::Ensemble { router: &router, paths: 1 };
    let mut source = Made::by(|path| Ok(path_model(path)));
    let three = shards(folder.path(), &file, PATHS);
    let refused = evaluate_mixture(&three, &mut source, ensemble, &plain(&config), &mut quiet);
    assert!(matches!(refused, Err(EvalError::RouterPrefix { read: 32, uncounted: 31 })), "{refused:?}");
    let other = tempfile::tempdir().unwrap();
    let two = shards(other.path(), &file, 2);
    let refused = evaluate_mixture(&two, &mut source, ensemble, &plain(&config), &mut quiet);
    assert!(matches!(refused, Err(EvalError::RouterPaths { router: 3, shards: 2 })), "{refused:?}");
}
