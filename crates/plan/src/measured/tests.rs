use super::*;

fn run(paths: u64, steps: u64, perplexity: f64) -> MeasuredRun {
    let size = RunSize { parameters: 1_377_408, paths, tokens: 512 * steps };
    MeasuredRun { size, loss: perplexity.ln() }
}

/// Paths, steps, perplexities by seed, and the error in per cent of the loss that the other sizes predict.
type Row = (u64, u64, &'static [f64], f64);

/// `docs/results/raw/lengths-and-grids.json`: an outer momentum of 0.9. The errors are those of `docs/results/predicting.md`.
const MOMENTUM_OF_THE_PAPERS: [Row; 12] = [
    (1, 400, &[164.39, 173.00, 167.40], -2.3),
    (4, 400, &[122.91, 127.97, 119.80], -0.2),
    (16, 400, &[89.38, 85.11, 90.60], 2.5),
    (64, 400, &[77.60, 79.07, 78.55], -0.1),
    (256, 400, &[66.83, 67.04, 65.63], -1.7),
    (1, 1600, &[82.09, 83.39, 83.35], 0.5),
    (4, 1600, &[67.56, 69.28, 66.94], -1.5),
    (16, 1600, &[51.01, 48.66, 50.91], 1.4),
    (64, 1600, &[43.72, 43.92, 44.00], -0.9),
    (1, 6400, &[51.44, 51.42, 49.98], 1.8),
    (4, 6400, &[41.98, 43.31, 44.48], -1.7),
    (16, 6400, &[32.99, 33.96, 32.42], 2.6),
];

/// `docs/results/raw/defaults-lengths-and-grids.json`: the program's default outer step. The errors are those of
/// `docs/results/predicting.md`.
const DEFAULT_OUTER_STEP: [Row; 13] = [
    (1, 400, &[164.39, 173.00, 167.40], -2.3),
    (4, 400, &[110.65, 115.09, 108.11], 0.8),
    (16, 400, &[79.81, 75.52, 80.35], 2.9),
    (64, 400, &[71.98, 71.80, 70.72], -3.4),
    (1, 1600, &[79.35, 80.59, 80.85], -0.7),
    (4, 1600, &[59.14, 60.65, 59.31], -0.8),
    (16, 1600, &[44.11, 42.15, 43.98], 1.9),
    (64, 1600, &[39.13, 39.43, 39.31], -1.7),
    (1, 6400, &[48.29, 48.87, 48.76], -0.1),
    (4, 6400, &[37.85, 38.86, 37.85], -0.3),
    (16, 6400, &[30.93, 29.85, 31.14], 0.9),
    (1, 25600, &[34.68, 35.14], 0.4),
    (16, 25600, &[25.84, 24.62], -0.7),
];

fn runs_of(table: &[Row]) -> Vec<MeasuredRun> {
    let row = |&(paths, steps, perplexities, _): &Row| {
        perplexities.iter().map(move |&perplexity| run(paths, steps, perplexity))
    };
    table.iter().flat_map(row).collect()
}

fn measured() -> Vec<MeasuredRun> {
    runs_of(&MOMENTUM_OF_THE_PAPERS)
}

#[test]
fn a_law_is_found_again() {
    let law = |size: RunSize| {
        let [n, p, d] = size.values().map(|value| value as f64);
        19.0 * n.powf(-0.06) * p.powf(-0.04) * d.powf(-0.1)
    };
    let mut runs = Vec::new();
    for (parameters, paths, tokens) in
        [(10, 1, 100), (1000, 1, 100), (10, 16, 900), (50, 4, 100), (70, 64, 7000), (10, 1, 5000)]
    {
        let size = RunSize { parameters: 1000 * parameters, paths, tokens: 1000 * tokens };
        runs.push(MeasuredRun { size, loss: law(size) });
    }
    let fitted = MeasuredLaw::fit(&runs).unwrap();
    let exponents = fitted.quantities.clone().map(|quantity| quantity.exponent.unwrap());
    for (found, expected) in exponents.into_iter().zip([-0.06, -0.04, -0.1]) {
        assert!((found - expected).abs() < 1e-9, "{exponents:?}");
    }
    assert!(fitted.error < 1e-9);
    let size = RunSize { parameters: 20_000, paths: 8, tokens: 2_000_000 };
    assert!((fitted.predict(size).unwrap().loss - law(size)).abs() < 1e-9);
}

#[test]
fn a_floor_and_an_exponent_that_changes_are_found_again() {
    let law = |size: RunSize| {
        let [_, p, d] = size.values().map(|value| value as f64);
        2.7 + 40.0 * p.powf(-0.2 - 0.03 * (d / 1e6).ln()) * d.powf(-0.3)
    };
    let mut runs = Vec::new();
    for paths in [1, 4, 16, 64] {
        for tokens in [200_000, 800_000, 3_200_000] {
            let size = RunSize { parameters: 1_000_000, paths, tokens };
            runs.push(MeasuredRun { size, loss: law(size) });
        }
    }
    let fitted = MeasuredLaw::fit(&runs).unwrap();
    assert!((fitted.floor - 2.7).abs() < 1e-4, "{fitted:?}");
    assert!(fitted.error < 1e-5, "{fitted:?}");
    let size = RunSize { parameters: 1_000_000, paths: 8, tokens: 2_000_000 };
    assert!((fitted.predict(size).unwrap().loss - law(size)).abs() < 1e-4);
    // Without two of the sizes there is no room for a floor, and the error says so.
    let few: Vec<_> = runs.into_iter().filter(|run| run.size.paths < 16).collect();
    let plain = MeasuredLaw::fit(&few).unwrap();
    assert!(plain.floor == 0.0 && plain.error > 0.01, "{plain:?}");
}

#[test]
fn each_size_of_ours_is_predicted_by_the_others_with_the_error_of_the_table() {
    let outside = |table: &[Row]| {
        let mut refused = Vec::new();
        for &(paths, steps, perplexities, error) in table {
            let mut others = runs_of(table);
            let size = run(paths, steps, 1.0).size;
            others.retain(|run| run.size != size);
            let law = MeasuredLaw::fit(&others).unwrap();
            let losses = perplexities.iter().map(|perplexity| perplexity.ln());
            let mean = losses.sum::<f64>() / perplexities.len() as f64;
            let found = 100.0 * (law.fit.loss(size) / mean - 1.0);
            assert!((found - error).abs() < 0.06, "{paths} paths, {steps} steps: {found} is not {error}");
            if law.predict(size).is_err() {
                refused.push((paths, steps));
            }
        }
        refused
    };
    assert_eq!(outside(&MOMENTUM_OF_THE_PAPERS), [(1, 400), (256, 400), (64, 1600), (16, 6400)]);
    assert_eq!(outside(&DEFAULT_OUTER_STEP), [(1, 400), (64, 1600), (16, 25600)]);
}

/// These runs were in no fit: `steps-800.toml`, means of three seeds.
#[test]
fn runs_of_another_length_are_predicted_within_two_per_cent() {
    let law = MeasuredLaw::fit(&measured()).unwrap();
    for (paths, perplexities, error) in [
        (1, [110.14, 112.09, 111.79], 0.4),
        (4, [88.60, 90.79, 87.53], -0.5),
        (16, [66.92, 63.84, 68.10], 0.9),
    ] {
        let mean = perplexities.map(f64::ln).iter().sum::<f64>() / 3.0;
        let found = 100.0 * (law.predict(run(paths, 800, 1.0).size).unwrap().loss / mean - 1.0);
        assert!((found - error).abs() < 0.06, "{paths} paths: {found} is not {error}");
    }
}

#[test]
fn a_prediction_has_the_largest_error_as_its_range() {
    let law = MeasuredLaw::fit(&measured()).unwrap();
    assert!((law.error - 0.027).abs() < 0.001, "{law:?}");
    assert_eq!(law.quantities[0].exponent, None);
    let prediction = law.predict(run(16, 800, 1.0).size).unwrap();
    assert!((prediction.loss_at_most / prediction.loss - (1.0 + law.error)).abs() < 1e-9);
    assert!((prediction.loss / prediction.loss_at_least - (1.0 + law.error)).abs() < 1e-9);
}

#[test]
fn nothing_is_said_outside_of_the_runs() {
    let law = MeasuredLaw::fit(&measured()).unwrap();
    let size = |parameters, paths, tokens| law.predict(RunSize { parameters, paths, tokens });
    let error = size(1_377_408, 512, 512 * 1000).unwrap_err();
    assert_eq!(error.nearest[0], run(256, 400, 1.0).size);
    let error = error.to_string();
    let nearest = "The nearest have 256 paths of 1377408 parameters with 204800 training tokens each; ";
    assert!(error.contains("a run of 512 paths") && error.contains(nearest), "{error}");
    assert!(size(1_377_409, 4, 512 * 1000).is_err());
    assert!(size(1_377_407, 4, 512 * 1000).is_err());
    assert!(size(1_377_408, 4, 100).is_err());
    assert!(size(1_377_408, 4, 512 * 6401).is_err());
}

#[test]
fn the_most_paths_are_predicted_only_for_the_lengths_at_which_they_were_measured() {
    let law = MeasuredLaw::fit(&measured()).unwrap();
    let predict = |paths, steps| law.predict(run(paths, steps, 1.0).size);
    for (paths, steps) in [(256, 400), (65, 400), (64, 1600), (17, 1600), (16, 6400)] {
        assert!(predict(paths, steps).is_ok(), "{paths} paths, {steps} steps");
    }
    for (paths, steps) in [(256, 401), (65, 1600), (64, 1601), (17, 6400)] {
        assert!(predict(paths, steps).is_err(), "{paths} paths, {steps} steps");
    }
    let nearest = predict(256, 6400).unwrap_err().nearest;
    assert_eq!((nearest.len(), nearest[0]), (3, run(64, 1600, 1.0).size));
}

#[test]
fn too_few_runs_are_refused() {
    let few = [run(1, 400, 168.0), run(1, 400, 170.0), run(4, 400, 133.0), run(4, 400, 132.0)];
    let too_few = Err(FitError::TooFew { differing: 1, needed: 4, found: 2 });
    assert_eq!(MeasuredLaw::fit(&few), too_few);
    // More paths always with more steps.
    let grown = |power: u32| run(4u64.pow(power), 400 * 4u64.pow(power), 90.0 - f64::from(power));
    let together: Vec<_> = (0..6).map(grown).collect();
    assert_eq!(MeasuredLaw::fit(&together), Err(FitError::Together));
    // One size has more paths than the others: the exponent of the paths would rest on it, and no other size could show its error.
    let mut alone: Vec<_> = (1..5).map(|length| run(1, 400 * length, 100.0 - length as f64)).collect();
    alone.push(run(16, 400, 50.0));
    assert_eq!(MeasuredLaw::fit(&alone), Err(FitError::Alone(alone[4].size)));
    assert_eq!(MeasuredLaw::fit(&[run(1, 400, 1.0)]), Err(FitError::Loss(0.0)));
}
