use rustix::process::{Resource, getrlimit, setrlimit};

use super::*;
use crate::small_run::SmallRun;

#[test]
fn the_next_router_is_fitted_again_when_it_can_not_be_used() {
    let small = SmallRun::seeded();
    let (old, _) = small.fit().unwrap();
    let weights = small.weights();
    let tokens = token_file(&small.run, &small.run.train_tokens()).unwrap();
    let origin = origin_of(&tokens, weights.seed_hash().unwrap());
    let from = TargetsFrom { router_hash: old.hash().to_owned(), scores_hash: String::new() };
    let settings = router_settings(&weights).unwrap();
    let inputs = RefitInputs { tokens, settings, scores: Vec::new(), old, from, origin };
    let new = small.run.routing(1);
    files::write(&new.router(), b"no router").unwrap();
    assert_eq!(inputs.fitted(&new).unwrap(), None);
}

#[test]
fn the_scores_of_many_paths_may_be_open() {
    let small = SmallRun::seeded();
    let tokens = token_file(&small.run, &small.run.train_tokens()).unwrap();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum.map(|most| most - 1).or(Some(1 << 16));
    setrlimit(Resource::Nofile, limit).unwrap();
    let found = scores(&small.run, &small.weights(), &tokens);
    assert!(matches!(found.err(), Some(PipelineError::NotTrained)));
    assert_eq!(getrlimit(Resource::Nofile).current, limit.maximum);
}
