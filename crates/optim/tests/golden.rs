//! The optimizers against the numbers of PyTorch and of the papers.

#![allow(clippy::unwrap_used, reason = "the helpers of tests panic too")]

use dipaco_optim::*;
use serde_json::Value;

fn fixture() -> Value {
    serde_json::from_str(include_str!("fixtures/optimizers.json")).unwrap()
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// The outer optimizer of the papers, with which the fixtures were made.
fn papers() -> NesterovConfig {
    NesterovConfig { learning_rate: 0.7, momentum: 0.9 }
}

/// Compares each step of a run with the fixture, relative to the largest parameter of like size.
fn compare(name: &str, mut step: impl FnMut(&mut [f32], &[f32], u64)) {
    let fixture = fixture();
    let mut params = floats(&fixture["start"]);
    let gradients = fixture["gradients"].as_array().unwrap();
    for (i, (gradient, expected)) in gradients.iter().zip(fixture[name].as_array().unwrap()).enumerate() {
        step(&mut params, &floats(gradient), i as u64 + 1);
        for (p, e) in params.iter().zip(floats(expected)) {
            assert!((p - e).abs() <= 1e-6 * e.abs().max(1.0), "{name}, step {}: {p} is not {e}", i + 1);
        }
    }
}

fn adamw(name: &str, decay: bool, clip_norm: f64) {
    let config = AdamWConfig { learning_rate: 1e-2, clip_norm, ..AdamWConfig::default() };
    let (mut first, mut second) = (vec![0.0; 6], vec![0.0; 6]);
    compare(name, |params, gradient, step| {
        let scale = clip_scale(squared_norm(gradient), config.clip_norm);
        let moments = AdamWMoments { first: &mut first, second: &mut second };
        let step = AdamWStep { number: step, learning_rate: 1e-2, gradient_scale: scale, decay };
        adamw_step(params, gradient, moments, &step, &config);
    });
}

#[test]
fn adamw_is_pytorchs() {
    adamw("adamw", true, 0.0);
    adamw("adamw_no_decay", false, 0.0);
    adamw("adamw_clipped", true, 0.5);
}

#[test]
fn nesterov_is_pytorchs() {
    let mut momentum = vec![0.0; 6];
    compare("nesterov", |params, gradient, _| {
        nesterov_step(params, gradient, &mut momentum, &papers());
    });
}

/// arXiv:2401.09135 Equation 5: four steps with the same gradient.
#[test]
fn nesterov_in_sequence_moves_as_in_the_paper() {
    let (mut theta, mut momentum) = ([0.0], [0.37]);
    for _ in 0..4 {
        nesterov_step(
            &mut theta,
            &[1.3],
            &mut momentum,
            &NesterovConfig { learning_rate: 1.0, momentum: 0.9 },
        );
    }
    assert!(
        (theta[0] + 16.817_998).abs() < 1e-5 && (momentum[0] - 4.713_457).abs() < 1e-6,
        "{theta:?} {momentum:?}"
    );
}

#[test]
fn the_first_outer_step_overshoots_by_the_momentum() {
    let (mut theta, mut momentum) = ([0.0], [0.0]);
    nesterov_step(&mut theta, &[1.0], &mut momentum, &papers());
    assert!((theta[0] + 1.33).abs() < 1e-6);
}

/// arXiv:2401.09135 Algorithm 3 with N = 4: the numbers, and one Nesterov step on the mean of the window.
#[test]
fn delayed_nesterov_is_one_step_per_window() {
    let nesterov = NesterovConfig { learning_rate: 1.0, momentum: 0.9 };
    let config = DelayedNesterovConfig { nesterov: nesterov.clone(), delay: 4, share: 0.0 };
    let mut state = DelayedNesterov { momentum: vec![0.37], ..DelayedNesterov::new(1) };
    let mut theta = [0.0];
    for g in [0.3, -0.2, 0.9, 0.5] {
        delayed_nesterov_step(&mut theta, &[g], &mut state, &config);
    }
    assert!(
        (theta[0] + 1.0122).abs() < 1e-6 && (state.momentum[0] - 0.708).abs() < 1e-6,
        "{theta:?} {state:?}"
    );
    assert_eq!(state.buffer, [0.0]);

    let (mut once, mut momentum) = ([0.0], [0.37]);
    nesterov_step(&mut once, &[0.375], &mut momentum, &nesterov);
    assert!((once[0] - theta[0]).abs() < 1e-6);
}

#[test]
fn the_rate_warms_up_and_falls_to_its_last_value() {
    let config = ScheduleConfig { warmup_steps: 10, ..ScheduleConfig::default() };
    let rate = |step| learning_rate(step, 111, 4e-4, &config);
    assert!(
        (rate(0) - 4e-5).abs() < 1e-12 && (rate(9) - 4e-4).abs() < 1e-12 && (rate(10) - 4e-4).abs() < 1e-12
    );
    assert!((rate(60) - 2.2e-4).abs() < 1e-12, "halfway it is the mean of both ends");
    assert!((rate(110) - 4e-5).abs() < 1e-12 && (rate(10_000) - 4e-5).abs() < 1e-12);
    assert!((10..110).all(|step| rate(step) > rate(step + 1)));
    let short = ScheduleConfig { warmup_steps: 0, final_fraction: 0.0, decay_fraction: None };
    assert_eq!(learning_rate(0, 1, 1.0, &short), 1.0);
}

/// Golden numbers of `transformers.get_wsd_schedule`, whose step n + 1 is step n here. There the warm-up begins with the final
/// rate instead of 0, so the numbers count from its end on.
#[test]
fn a_stable_rate_decays_linearly_at_the_end() {
    let golden: Vec<f64> = serde_json::from_str(include_str!("fixtures/wsd.json")).unwrap();
    let config = ScheduleConfig { warmup_steps: 7, final_fraction: 0.1, decay_fraction: Some(0.25) };
    assert_eq!(golden.len(), 45);
    for (step, expected) in (0..).zip(golden).skip(6) {
        let rate = learning_rate(step, 40, 4e-4, &config);
        assert!((rate - expected).abs() < 1e-15, "step {step}: {rate} and {expected}");
    }
    // The decay of the whole run begins after the warm-up, and a run may be shorter than both.
    let whole = ScheduleConfig { decay_fraction: Some(1.0), ..config };
    assert_eq!(learning_rate(6, 40, 1.0, &whole), 1.0);
    assert!(learning_rate(7, 40, 1.0, &whole) < 1.0);
    assert!((learning_rate(7, 3, 1.0, &whole) - 0.1).abs() < 1e-15);
    // In binary, 0.07 · 100 is a little above 7.
    let seventh = ScheduleConfig { warmup_steps: 0, decay_fraction: Some(0.07), ..ScheduleConfig::default() };
    assert_eq!(learning_rate(92, 100, 1.0, &seventh), 1.0, "7 steps of decay, not 8");
    assert!(learning_rate(93, 100, 1.0, &seventh) < 1.0);
    for wrong in [0.0, -0.1, 1.1, f64::NAN] {
        assert!(ScheduleConfig { decay_fraction: Some(wrong), ..ScheduleConfig::default() }.check().is_err());
    }
}

#[test]
fn results_have_the_same_bits_for_any_number_of_threads() {
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let gradient: Vec<f32> = (0..50_001).map(|i| ((i * 7919) % 1000) as f32 / 777.0 - 0.6).collect();
            let mut params = gradient.iter().map(|g| g * 0.3).collect::<Vec<_>>();
            let (mut first, mut second) = (vec![0.0; params.len()], vec![0.0; params.len()]);
            let scale = clip_scale(squared_norm(&gradient), 1.0);
            for number in 1..4 {
                let moments = AdamWMoments { first: &mut first, second: &mut second };
                let step = AdamWStep { number, learning_rate: 4e-4, gradient_scale: scale, decay: true };
                adamw_step(&mut params, &gradient, moments, &step, &AdamWConfig::default());
            }
            nesterov_step(&mut params, &gradient, &mut first, &papers());
            (squared_norm(&gradient).to_bits(), params.iter().map(|p| p.to_bits()).collect::<Vec<_>>())
        })
    };
    assert!(run(1) == run(2) && run(1) == run(3));
}

#[test]
fn numbers_out_of_range_are_named() {
    let error = AdamWConfig { beta2: 1.0, ..AdamWConfig::default() }.check().unwrap_err();
    assert_eq!(error.to_string(), "beta2 is 1: it must be at least 0 and below 1");
    assert!(NesterovConfig { learning_rate: f64::NAN, momentum: 0.9 }.check().is_err());
    assert!(ScheduleConfig { final_fraction: 1.5, ..ScheduleConfig::default() }.check().is_err());
    assert!(DelayedNesterovConfig { share: 0.5, ..DelayedNesterovConfig::default() }.check().is_err());
    // 1e-46 is 0 in f32.
    for epsilon in [0.0, 1e-46, 1e-30, 9e-17, f64::NAN, f64::INFINITY] {
        let error = AdamWConfig { epsilon, ..AdamWConfig::default() }.check().unwrap_err();
        assert!(error.to_string().ends_with("it must be at least 1e-16"), "{error}");
    }
    assert!(AdamWConfig { epsilon: 1e-16, ..AdamWConfig::default() }.check().is_ok());
    assert!(AdamWConfig::default().check().is_ok() && DelayedNesterovConfig::default().check().is_ok());
}
