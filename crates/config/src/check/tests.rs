//! Tests of combinations that are refused, and of warnings.

use crate::{ConfigError, RunConfig, Sources};

/// The default configuration with these settings.
fn set(overrides: &[&str]) -> Result<RunConfig, ConfigError> {
    let overrides = overrides.iter().map(|&setting| setting.to_owned()).collect();
    RunConfig::load(&Sources { overrides, ..Sources::default() }).map(|resolved| resolved.config)
}

/// Asserts that settings that are sound without `against` are refused with it.
fn refused(sound: &[&str], against: &[&str], says: &str) {
    set(sound).unwrap();
    let error = set(&[sound, against].concat()).unwrap_err().to_string();
    assert!(error.contains(says), "{against:?}: {error}");
}

#[test]
fn nothing_else_makes_or_counts_the_gradients_of_synchronous_training() {
    let sound = ["outer.optimizer=adamw", "train.inner_steps=1"];
    for (against, says) in [
        (
            &["sync.blend=0.5"][..],
            "with sync.blend a path computes its gradient at weights that no module has",
        ),
        (
            &["sync.drop_rate=0.1"],
            "with sync.drop_rate a path drops a gradient and sends it with the next one",
        ),
        (&["sync.quorum=2"], "with sync.quorum a module takes other steps than its paths"),
        (&["sync.quorum=1", "sync.dynamic_steps=true"], "use sync.quorum = 0"),
        (
            &["train.paths_per_round=2"],
            "with train.paths_per_round a module whose paths all rest takes no step",
        ),
    ] {
        refused(&sound, against, says);
    }
}

#[test]
fn delayed_momentum_has_the_weights_and_the_order_of_all_contributions() {
    set(&["outer.delay=4", "sync.quorum=1", "sync.drop_rate=0.1"]).unwrap();
    let of_rests = "outer.delay applies contributions one by one, with the weights of all paths";
    refused(&["train.paths_per_round=2"], &["outer.delay=4"], of_rests);
    let eager = ["sync.eager=true", "sync.overlap_steps=30", "train.inner_steps=30"];
    refused(&eager, &["outer.delay=4"], "sync.eager can't be combined with outer.delay");
}

#[test]
fn paths_with_the_same_modules_have_no_phases_of_routing() {
    let phases = ["routing.router_share=0.1", "routing.phases=[{round=1}]"];
    refused(&phases, &["topology.replicas=2"], "path 4 has the same modules as path 0");
    let listed = "topology.paths=[[0,0],[0,1],[1,0],[1,1],[0,1]]";
    refused(&phases, &[listed], "path 4 has the same modules as path 1");
    for other in [listed, "topology.replicas=2"] {
        set(&[other]).unwrap();
    }
    // With a module of its own no path has the scores of another one.
    set(&[&phases[..], &["topology.replicas=2", "topology.levels[1].modules=paths"]].concat()).unwrap();
    // All modules of a frozen level have the weights of the seed.
    let frozen = "topology.levels[0].frozen=true";
    refused(&phases, &[frozen], "path 2 has the same modules as path 0 in all levels that train");
    set(&[&phases[..], &[frozen, "topology.levels[0].modules=1"]].concat()).unwrap();
}

#[test]
fn early_stopping_that_hardly_measures_is_told() {
    let warning = |overrides: &[&str]| set(overrides).unwrap().early_stopping_note();
    let eager = ["sync.eager=true", "sync.overlap_steps=30", "train.inner_steps=30"];
    for (settings, why) in [
        (&["sync.fragments=2"][..], "sync.fragments is 2"),
        (&["sync.overlap_steps=3", "sync.blend=0.5"], "sync.blend is 0.5"),
        (&eager, "sync.eager is true"),
    ] {
        let told = warning(settings).unwrap();
        assert!(told.contains(why) && told.contains("and at the end of the run"), "{told}");
        let without = ["train.holdout_fraction=0", "train.holdout_sequences=0"];
        assert_eq!(warning(&[settings, &without].concat()), None);
    }
    // No lease measures anything: the held-out sequences end within the prefix.
    let short = ["train.sequence_tokens=31", "sync.fragments=2"];
    let told = warning(&short).unwrap();
    assert!(told.contains("train.sequence_tokens is 31, and the first 32 tokens"), "{told}");
    assert_eq!(warning(&["train.sequence_tokens=31", "train.holdout_sequences=0"]), None);
    assert_eq!(warning(&["train.sequence_tokens=32"]), None, "it has a last target");
    let default: &[&str] = &[];
    for measures in [default, &["sync.overlap_steps=3"], &["sync.quorum=1", "sync.dynamic_steps=true"]] {
        assert_eq!(warning(measures), None, "{measures:?}");
    }
}

#[test]
fn modules_are_not_cut_into_more_fragments_than_they_have_parts() {
    // Level 0 has the embedding and two blocks, level 1 two blocks and the head.
    refused(
        &["sync.fragments=3"],
        &["sync.fragments=4"],
        "a module of 3 parts can't be cut into 4 fragments",
    );
    // Nine tensors of each block, and the embedding, or the final norm and the output projection.
    let balanced = ["sync.pattern=balanced", "sync.fragments=19"];
    refused(&balanced, &["sync.fragments=20"], "level 0: a module of 19 parts");
    refused(&balanced, &["sync.fragments=21"], "level 1: a module of 20 parts");
    let uneven =
        "topology.levels=[{modules=2,blocks=\"0..1\",embedding=true},{modules=2,blocks=\"1..4\",head=true}]";
    refused(&[uneven, "sync.fragments=2"], &["sync.fragments=3"], "level 0: a module of 2 parts");
}

#[test]
fn a_sequence_of_an_evaluation_is_at_most_one_token_longer_than_the_context() {
    let says =
        "evaluation.sequence_tokens is 258 but model.context is 256: use at most 257, or 0 for the context";
    refused(&["evaluation.sequence_tokens=257"], &["evaluation.sequence_tokens=258"], says);
}

#[test]
fn a_worker_does_not_start_threads_without_bound() {
    let says = "train.threads_per_worker is 1025: use 1 to 1024, or 0 to share the cores";
    refused(&["train.threads_per_worker=1024"], &["train.threads_per_worker=1025"], says);
}
