//! Scaling laws of DiLoCo for dense models: loss, inner learning rate and batch by parameters and replicas
//! (arXiv:2503.09799, tables 7 to 11).
//!
//! They were fitted to models of 35M to 2.4B parameters on 20 tokens of C4 per parameter, with sequences of 2,048 tokens
//! and H = 30. Two larger models of 4B and 10B parameters were trained to check them.

use serde::Serialize;
use thiserror::Error;

/// Smallest model to which the laws were fitted, in parameters.
pub const LEAST_PARAMETERS: f64 = 35e6;
/// Largest model to which the laws were fitted, in parameters.
pub const MOST_FITTED: f64 = 2.4e9;
/// Largest model against which the laws were checked, in parameters.
pub const MOST_PARAMETERS: f64 = 10e9;
/// Most replicas.
pub const MOST_REPLICAS: u32 = 8;
/// Training tokens per parameter of all models, over all replicas.
pub const TOKENS_PER_PARAMETER: f64 = 20.0;
/// Tokens of a sequence. Batches of the laws are numbers of sequences.
const SEQUENCE: f64 = 2048.0;
/// H of all runs to which the laws were fitted. The best outer learning rate grows with H (figure 8).
pub const INNER_STEPS: u64 = 30;

/// A model or a number of replicas for which the laws say nothing.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum OutOfRange {
    /// The number of parameters.
    #[error("the law was fitted to 35M to 2.4B parameters and checked up to 10B, and this path has {:.1}M", .0 / 1e6)]
    Parameters(f64),
    /// The number of replicas.
    #[error("the law holds for 1 to 8 replicas, and {0} paths go through a module")]
    Replicas(u32),
}

/// `factor · N^parameters · M^replicas`, for N parameters and M replicas.
#[derive(Clone, Copy, Debug)]
struct PowerLaw {
    factor: f64,
    parameters: f64,
    replicas: f64,
}

impl PowerLaw {
    fn at(self, parameters: f64, replicas: u32) -> f64 {
        self.factor * parameters.powf(self.parameters) * f64::from(replicas).powf(self.replicas)
    }
}

/// Laws of one way to train.
#[derive(Clone, Copy, Debug)]
struct Laws {
    loss: PowerLaw,
    learning_rate: PowerLaw,
    /// In sequences, over all replicas.
    batch: PowerLaw,
    /// Factor within which the best learning rate and batch lay at 2.4B parameters: e to the larger residual (table 11).
    within: f64,
}

const fn law(factor: f64, parameters: f64, replicas: f64) -> PowerLaw {
    PowerLaw { factor, parameters, replicas }
}

/// Table 10, the joint fit, which the authors recommend.
const JOINT: Laws = Laws {
    loss: law(19.226, -0.0985, 0.0116),
    learning_rate: law(22256.0, -0.8827, 0.2929),
    batch: law(0.00709, 0.4695, 0.3399),
    // e to 0.19.
    within: 1.21,
};

/// The first rows of tables 7 to 9.
const DATA_PARALLEL: Laws = Laws {
    loss: law(18.129, -0.0953, 0.0),
    learning_rate: law(16319.2, -0.819, 0.0),
    batch: law(0.22592, 0.281, 0.0),
    // e to 0.30, the residual of the learning rate by independent fits.
    within: 1.35,
};

/// The prediction of the laws for one model. The best learning rate and the best batch lie within a factor of `within`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Loss after 20 tokens per parameter, in nats per token of the authors' vocabulary of 32,768 on C4.
    pub loss: f64,
    /// Highest likely loss. The power law is too good: by 1.8 % at most within its data, and by 4.8 % at 10B parameters.
    pub loss_at_most: f64,
    /// Peak of the inner learning rate of AdamW.
    pub learning_rate: f64,
    /// Tokens of a step of all replicas together.
    pub batch_tokens: f64,
    /// Factor within which the best learning rate and the best batch lie.
    pub within: f64,
}

fn check_range(parameters: f64, replicas: u32) -> Result<(), OutOfRange> {
    if !(LEAST_PARAMETERS..=MOST_PARAMETERS).contains(&parameters) {
        return Err(OutOfRange::Parameters(parameters));
    }
    if !(1..=MOST_REPLICAS).contains(&replicas) {
        return Err(OutOfRange::Replicas(replicas));
    }
    Ok(())
}

fn predict(laws: Laws, parameters: f64, replicas: u32) -> Result<Prediction, OutOfRange> {
    check_range(parameters, replicas)?;
    let loss = laws.loss.at(parameters, replicas);
    Ok(Prediction {
        loss,
        loss_at_most: loss * if parameters <= MOST_FITTED { 1.02 } else { 1.05 },
        learning_rate: laws.learning_rate.at(parameters, replicas),
        batch_tokens: laws.batch.at(parameters, replicas) * SEQUENCE,
        within: laws.within,
    })
}

/// The prediction for DiLoCo with `replicas` replicas of a model.
///
/// # Errors
/// [`OutOfRange`] outside of the data of the law.
pub fn diloco(parameters: f64, replicas: u32) -> Result<Prediction, OutOfRange> {
    predict(JOINT, parameters, replicas)
}

/// The prediction for one model that is trained data-parallel, without outer steps.
///
/// # Errors
/// [`OutOfRange`] outside of the data of the law.
pub fn data_parallel(parameters: f64) -> Result<Prediction, OutOfRange> {
    predict(DATA_PARALLEL, parameters, 1)
}

/// The best outer learning rate for the mean of this many outer gradients, with Nesterov momentum 0.9 and H = 30. From 335M
/// parameters on it does not depend on the size of the model. Of smaller models some have the next value of the authors' grid, 0.2
/// more. A cube root through the authors' values 0.4, 0.6, 0.6 and 0.8 for 1, 2, 4 and 8 replicas (table under figure 7).
///
/// # Errors
/// [`OutOfRange`] outside of the data of the laws.
pub fn outer_learning_rate(parameters: f64, replicas: u32) -> Result<f64, OutOfRange> {
    check_range(parameters, replicas)?;
    Ok(0.4 * f64::from(replicas).cbrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64, digits: i32) {
        assert!((found - expected).abs() <= 0.5 * 10f64.powi(-digits) + 1e-9, "{found} is not {expected}");
    }

    #[test]
    fn data_parallel_losses_are_those_of_the_fit() {
        for (parameters, loss, measured) in
            [(35e6, 3.463, 3.485), (2.4e9, 2.314, 2.326), (4e9, 2.204, 2.224), (10e9, 2.020, 2.090)]
        {
            let found = data_parallel(parameters).unwrap();
            near(found.loss, loss, 3);
            assert!((found.loss..found.loss_at_most).contains(&measured), "{found:?} for {measured}");
        }
    }

    #[test]
    fn losses_of_eight_replicas_are_those_of_the_joint_fit() {
        for (parameters, loss, measured) in [(35e6, 3.559, 3.621), (2.4e9, 2.346, 2.351)] {
            let found = diloco(parameters, 8).unwrap();
            near(found.loss, loss, 3);
            assert!((found.loss..found.loss_at_most).contains(&measured), "{found:?} for {measured}");
        }
    }

    /// Parameters, the loss of data-parallel training, and the losses by number of replicas.
    type MeasuredLosses = (f64, f64, &'static [(u32, f64)]);

    /// Measured losses of tables 4 and 5.
    const MEASURED: [MeasuredLosses; 4] = [
        (35e6, 3.485, &[(1, 3.482), (2, 3.509), (4, 3.555), (8, 3.621)]),
        (2.4e9, 2.326, &[(1, 2.317), (2, 2.324), (4, 2.333), (8, 2.352)]),
        (4e9, 2.224, &[(1, 2.219), (2, 2.220), (4, 2.230)]),
        (10e9, 2.090, &[(1, 2.086), (2, 2.086), (4, 2.096)]),
    ];

    #[test]
    fn measured_losses_lie_within_the_error_bar() {
        let within = |found: Prediction, measured: f64, what: &str| {
            assert!(
                (found.loss..=found.loss_at_most).contains(&measured),
                "{what}: {found:?} for {measured}"
            );
        };
        for (parameters, data_parallel_loss, replicas) in MEASURED {
            within(data_parallel(parameters).unwrap(), data_parallel_loss, "data parallel");
            for &(replicas, measured) in replicas {
                let found = diloco(parameters, replicas).unwrap();
                within(found, measured, &format!("{replicas} replicas of {parameters}"));
            }
        }
    }

    #[test]
    fn the_joint_learning_rates_lie_near_those_of_each_number_of_replicas() {
        // Table 8: factor and exponent for 1, 2 and 4 replicas. Its row of 8 replicas is 3 to 8 times lower than the joint law.
        for (replicas, factor, exponent) in [(1, 74620.6, -0.945), (2, 3978.82, -0.780), (4, 4512.99, -0.789)]
        {
            for parameters in [35e6, 150e6, 550e6, 2.4e9] {
                let ratio = factor * f64::powf(parameters, exponent)
                    / diloco(parameters, replicas).unwrap().learning_rate;
                assert!((0.66..1.5).contains(&ratio), "{replicas} replicas of {parameters}: {ratio}");
            }
        }
        let data_parallel = |parameters| data_parallel(parameters).unwrap();
        near(data_parallel(2.4e9).learning_rate * 1e4, 3.4, 1);
        assert!(data_parallel(2.4e9).within > diloco(2.4e9, 1).unwrap().within);
    }

    #[test]
    fn the_joint_law_agrees_with_the_laws_of_each_number_of_replicas() {
        // Tables 7 and 9: factor and exponent of the loss, and of the batch in sequences.
        let tables = [
            (1, (18.363, -0.0961), (0.01361, 0.435)),
            (2, (18.768, -0.0969), (0.00769, 0.479)),
            (4, (19.762, -0.0992), (0.00535, 0.510)),
            (8, (21.051, -0.1018), (0.01859, 0.455)),
        ];
        for (replicas, loss, batch) in tables {
            for parameters in [35e6, 150e6, 550e6, 2.4e9] {
                let found = diloco(parameters, replicas).unwrap();
                let of = |(factor, exponent): (f64, f64)| factor * f64::powf(parameters, exponent);
                assert!((of(loss) / found.loss - 1.0).abs() < 0.01, "loss of {replicas}, {parameters}");
                let ratio = of(batch) * SEQUENCE / found.batch_tokens;
                assert!((ratio.ln()).abs() < found.within.ln(), "batch of {replicas}, {parameters}: {ratio}");
            }
        }
    }

    #[test]
    fn batches_are_counted_in_sequences_of_2048_tokens() {
        near(data_parallel(2.4e9).unwrap().batch_tokens / SEQUENCE, 97.7, 1);
        let found = diloco(150e6, 8).unwrap();
        near(found.batch_tokens / SEQUENCE, 99.0, 0);
        near(found.learning_rate * 1e3, 2.5, 1);
    }

    #[test]
    fn outer_rates_lie_near_the_tuned_ones() {
        for (replicas, tuned) in [(1, 0.4), (2, 0.6), (4, 0.6), (8, 0.8)] {
            // The next values of the authors' grid are 0.2 away.
            assert!((outer_learning_rate(335e6, replicas).unwrap() - tuned).abs() < 0.1, "{replicas}");
        }
        // The exceptions of smaller models (figure 7).
        for (parameters, replicas, tuned) in [(35e6, 8, 1.0), (35e6, 1, 0.6), (90e6, 4, 0.8), (180e6, 1, 0.6)]
        {
            let missed = tuned - outer_learning_rate(parameters, replicas).unwrap();
            assert!((0.0..=0.2 + 1e-9).contains(&missed), "{replicas} replicas of {parameters}: {missed}");
        }
    }

    #[test]
    fn nothing_is_said_outside_of_the_data() {
        assert_eq!(diloco(1.4e6, 4), Err(OutOfRange::Parameters(1.4e6)));
        assert_eq!(diloco(11e9, 4), Err(OutOfRange::Parameters(11e9)));
        assert_eq!(diloco(f64::NAN, 4).map_err(|error| error.to_string().contains("NaN")), Err(true));
        assert_eq!(diloco(150e6, 16), Err(OutOfRange::Replicas(16)));
        assert_eq!(diloco(150e6, 0), Err(OutOfRange::Replicas(0)));
        assert_eq!(outer_learning_rate(5.3e6, 2), Err(OutOfRange::Parameters(5.3e6)));
        assert_eq!(outer_learning_rate(150e6, 16), Err(OutOfRange::Replicas(16)));
    }
}
