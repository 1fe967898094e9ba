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
    let default: &[&str] = &[];
    for measures in [default, &["sync.overlap_steps=3"], &["sync.quorum=1", "sync.dynamic_steps=true"]] {
        assert_eq!(warning(measures), None, "{measures:?}");
    }
}
