use super::*;

fn run(paths: u64, steps: u64, perplexity: f64) -> MeasuredRun {
    let size = RunSize { parameters: 1_377_408, paths, tokens: 512 * steps };
    MeasuredRun { size, loss: perplexity.ln() }
}

/// Paths, steps, and perplexities of `docs/results/raw/lengths-and-grids.json`, means of three seeds. The last column is the
/// error in per cent of the loss that the other sizes predict, as in the table of `docs/results/quality.md`.
const TABLE: [(u64, u64, f64, f64); 12] = [
    (1, 400, 168.26, -1.9),
    (4, 400, 123.56, -0.1),
    (16, 400, 88.36, 2.3),
    (64, 400, 78.41, -0.8),
    (256, 400, 66.50, -3.3),
    (1, 1600, 82.94, 0.9),
    (4, 1600, 67.93, 0.1),
    (16, 1600, 50.19, 2.6),
    (64, 1600, 43.88, 0.8),
    (1, 6400, 50.95, -1.0),
    (4, 6400, 43.26, -2.2),
    (16, 6400, 33.12, 0.7),
];

fn measured() -> Vec<MeasuredRun> {
    TABLE.into_iter().map(|(paths, steps, perplexity, _)| run(paths, steps, perplexity)).collect()
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
fn each_size_of_ours_is_predicted_by_the_others_with_the_error_of_the_table() {
    let mut refused = Vec::new();
    for (place, (paths, steps, _, error)) in TABLE.into_iter().enumerate() {
        let mut others = measured();
        let left_out = others.remove(place);
        let law = MeasuredLaw::fit(&others).unwrap();
        let predicted = law.coefficients.log_loss(left_out.size).exp();
        let found = 100.0 * (predicted / left_out.loss - 1.0);
        assert!((found - error).abs() < 0.06, "{paths} paths, {steps} steps: {found} is not {error}");
        if law.predict(left_out.size).is_err() {
            refused.push((paths, steps));
        }
    }
    assert_eq!(refused, [(1, 400), (256, 400), (64, 1600), (16, 6400)]);
}

#[test]
fn a_prediction_has_the_largest_error_as_its_range() {
    let law = MeasuredLaw::fit(&measured()).unwrap();
    assert!((law.error - 0.034).abs() < 0.0005, "{law:?}");
    assert_eq!(law.quantities[0].exponent, None);
    let prediction = law.predict(run(16, 800, 1.0).size).unwrap();
    assert!((prediction.loss - 4.279).abs() < 0.001, "{prediction:?}");
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
