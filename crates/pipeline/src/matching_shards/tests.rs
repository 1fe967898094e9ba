use std::fs;

use dipaco_routing::PhaseConfig;
use dipaco_telemetry::Progress;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::evaluate::validation_shards;
use crate::seed::SeedHow;
use crate::small_run::SmallRun;
use crate::store::open_store;
use crate::train::start;

/// Begins the training of a run, or goes on with it.
fn begin(small: &SmallRun, resume: bool) -> Result<(), PipelineError> {
    small.runtime.block_on(async {
        let store = open_store(&small.run).await?;
        let (progress, cancel) = (Progress::hidden(), CancellationToken::new());
        start(&small.run, &small.config, &store, resume, &progress, &cancel).await.map(drop)
    })
}

/// Asserts that shards are refused with these words.
fn refused(result: Result<(), PipelineError>, words: &[&str]) {
    let error = result.unwrap_err();
    assert!(matches!(error, PipelineError::StaleShards(_)), "{error:?}");
    let said = error.to_string();
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
}

#[test]
fn a_training_does_not_begin_with_shards_that_are_older_than_router_text_settings_or_seed() {
    let mut small = SmallRun::seeded();
    small.fit().unwrap();
    small.assign().unwrap();
    small.config.routing.seed = 1;
    small.fit().unwrap();
    refused(begin(&small, false), &["routing/train are older than the router in", "`dipaco route assign`"]);
    small.assign().unwrap();
    small.prepare("second", "first");
    refused(begin(&small, false), &["are older than the text in", "data/train.json"]);
    small.assign().unwrap();
    small.config.routing.overlap = 2;
    refused(begin(&small, false), &["are older than the setting routing.overlap", "with 1, and it is 2 now"]);
    small.config.routing.overlap = 1;
    small.config.run.seed += 1;
    small.seed(SeedHow { restart: true, ..SeedHow::default() });
    refused(begin(&small, false), &["are older than the seed model of the run", "`dipaco route fit` and"]);
    small.fit().unwrap();
    small.assign().unwrap();
    begin(&small, false).unwrap();
}

#[test]
fn settings_of_the_next_division_are_no_reason_to_divide_the_text_of_the_first_phase_again() {
    let mut small = SmallRun::seeded();
    small.config.routing.router_share = 0.2;
    small.config.routing.phases = vec![PhaseConfig { round: 1, ..PhaseConfig::default() }];
    small.fit().unwrap();
    small.assign().unwrap();
    small.config.routing.overlap = 3;
    begin(&small, false).unwrap();
}

#[test]
fn a_training_goes_on_with_the_shards_of_its_router_whatever_text_is_prepared() {
    let small = SmallRun::seeded();
    let (router, _) = small.fit().unwrap();
    small.assign().unwrap();
    begin(&small, false).unwrap();
    small.prepare("second", "second");
    begin(&small, true).unwrap();
    let file = small.run.routing(0).router();
    fs::remove_file(&file).unwrap();
    begin(&small, true).unwrap();
    // The router of a text that another run has.
    let mut other = SmallRun::seeded();
    other.config.routing.seed = 1;
    fs::write(&file, other.fit().unwrap().0.to_bytes()).unwrap();
    refused(begin(&small, true), &["older than the router in", "what the paths were trained with"]);
    fs::write(&file, router.to_bytes()).unwrap();
    begin(&small, true).unwrap();
}

#[test]
fn an_evaluation_needs_shards_of_the_validation_text_and_the_router_of_now() {
    let mut small = SmallRun::seeded();
    let shards = |small: &SmallRun| validation_shards(&small.run, &small.weights()).map(drop);
    small.fit().unwrap();
    small.assign().unwrap();
    shards(&small).unwrap();
    small.prepare("first", "second");
    refused(shards(&small), &["routing/validation are older than the text in", "`dipaco route assign`"]);
    small.assign().unwrap();
    shards(&small).unwrap();
    small.config.routing.seed = 1;
    small.fit().unwrap();
    refused(shards(&small), &["routing/validation are older than the router in"]);
    small.assign().unwrap();
    let (routing, evaluation) = (small.config.routing.prefix_tokens, small.config.evaluation.prefix_tokens);
    (small.config.routing.prefix_tokens, small.config.evaluation.prefix_tokens) = (routing - 1, routing - 1);
    let error = shards(&small).unwrap_err();
    // The tokens that choose the path must not count, whatever the settings say of a router that is there.
    assert!(
        matches!(&error, PipelineError::Eval(EvalError::RouterPrefix { read, uncounted }) if *read == uncounted + 1),
        "{error:?}"
    );
    (small.config.routing.prefix_tokens, small.config.evaluation.prefix_tokens) = (routing, evaluation);
    // A run that has lost its text keeps its shards.
    fs::remove_file(small.run.validation_tokens()).unwrap();
    shards(&small).unwrap();
}
