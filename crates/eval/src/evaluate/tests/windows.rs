//! Tests of choosing a path for each sequence.

use dipaco_shards::TokenRows;
use proptest::prelude::*;

use super::*;
use crate::WindowRouter;
use crate::sequences::Plan;

/// The path is the sum of the tokens that the router reads.
struct Sum;

impl WindowRouter for Sum {
    fn paths(&self) -> u32 {
        4
    }

    fn prefix_tokens(&self) -> usize {
        4
    }

    fn choose(&self, tokens: &TokenRows, lengths: &[usize]) -> Result<Vec<PathId>, BoxError> {
        let rows = tokens.ids().chunks_exact(4).zip(lengths);
        Ok(rows.map(|(row, &length)| PathId(row[..length].iter().sum::<u32>() % 4)).collect())
    }
}

fn chosen(file: &TokenSet, prefix: usize, batch: usize) -> Result<Vec<PathId>, EvalError> {
    let texts = [Text::of(file, PathId(1), &EvaluationConfig::default())];
    let mut plan = Plan::new(&texts, 16, prefix, usize::MAX)?;
    plan.route_windows(&Sum, batch, &mut |_| Ok(()))?;
    Ok(plan.sequences.iter().map(|sequence| plan.chunks(sequence)[0]).collect())
}

#[test]
fn a_sequence_is_routed_by_its_own_first_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let mut document: Vec<u32> = vec![1; 47];
    document[16..20].copy_from_slice(&[3, 0, 0, 0]);
    document[32..36].copy_from_slice(&[1, 1, 0, 0]);
    let file = reroute::file_of(folder.path(), &[document.into_iter().chain([0]).collect()]);
    assert_eq!(chosen(&file, 4, 1).unwrap(), [PathId(1), PathId(3), PathId(2)]);
    let error = chosen(&file, 3, 1).unwrap_err();
    assert!(matches!(error, EvalError::RouterPrefix { read: 4, uncounted: 3 }), "{error}");
}

proptest! {
    /// Replacing a token that counts, and all later tokens, changes no choice for its sequence or an earlier one.
    #[test]
    fn no_counted_token_influences_the_path_that_scores_it(
        window in 0usize..3, place in 4usize..16, seed in 1u32..1000, batch in 1usize..4,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let before = reroute::document(48, seed);
        let mut after = before.clone();
        let from = 16 * window + place;
        let other = reroute::document(48, seed + 1);
        after[from..47].copy_from_slice(&other[from..47]);
        let file = |name: &str, document: Vec<u32>| {
            let folder = folder.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            reroute::file_of(&folder, &[document])
        };
        let (before, after) = (file("before", before), file("after", after));
        let (one, two) = (chosen(&before, 4, batch).unwrap(), chosen(&after, 4, batch).unwrap());
        prop_assert_eq!(&one[..=window], &two[..=window]);
    }
}

#[test]
fn paths_of_windows_are_evaluated_like_those_of_documents() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &[200, 130, 60, 48]);
    let shards = shards(folder.path(), &file, 2);
    let config = EvaluationConfig { prefix_tokens: 4, sequence_tokens: 16, ..EvaluationConfig::default() };
    let by = |router: Option<&dyn WindowRouter>| {
        let mut source = Made::by(|_| Ok(tiny(3)));
        let choice = router.map_or(Choice::Document, Choice::Window);
        evaluate_routed(&shards, &mut source, choice, &plain(&config), &mut quiet)
    };
    let documents = by(None).unwrap();
    assert!(matches!(by(Some(&Sum)).unwrap_err(), EvalError::RouterPaths { router: 4, shards: 2 }));
    struct First;
    impl WindowRouter for First {
        fn paths(&self) -> u32 {
            2
        }
        fn prefix_tokens(&self) -> usize {
            4
        }
        fn choose(&self, _: &TokenRows, lengths: &[usize]) -> Result<Vec<PathId>, BoxError> {
            Ok(vec![PathId(0); lengths.len()])
        }
    }
    // All paths are the same model here, so only the counts of the paths change.
    let windows = by(Some(&First)).unwrap();
    assert_eq!(windows.tokens_counted, documents.tokens_counted);
    assert!((windows.nll_sum - documents.nll_sum).abs() < 1e-3);
    assert!(windows.per_path[0].tokens_counted > documents.per_path[0].tokens_counted);
}
