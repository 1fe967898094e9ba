use super::*;
use crate::EvaluationConfig;
use crate::evaluate::tests::{LENGTHS, plain, quiet, token_file};

#[test]
fn the_paths_of_an_oracle_share_one_list_of_the_sequences() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS);
    let config = EvaluationConfig::default();
    let texts = [Text::of(&file, PathId(0), &config)];
    let plan = Plan::new(&texts, 48, config.prefix_tokens, usize::MAX).unwrap();
    let found = members(&plan, 9, Mixture::Oracle, &plain(&config), &mut Reporter(&mut quiet)).unwrap();
    assert_eq!(found.len(), 9);
    let first = &found[&PathId(0)];
    assert_eq!(first.len(), plan.sequences.len());
    assert!(found.values().all(|members| Arc::ptr_eq(members, first)));
}
