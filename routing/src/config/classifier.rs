//! The section `[routing.classifier]` of a run's configuration.

use serde::{Deserialize, Serialize};

use crate::RoutingError;

/// Section `[routing.classifier]`: fitting a discriminative router ([`crate::fit_discriminative`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClassifierConfig {
    /// Candidate strengths of the penalty on the squared weights. The strength that predicts a fifth of the documents best
    /// after fitting the others wins; a single number skips the comparison. Default 0.0001, 0.001, 0.01 and 0.1. A weak
    /// penalty lets the classifier learn few documents by heart; under a strong penalty it learns only the frequencies of
    /// the paths.
    pub penalties: Vec<f64>,
    /// Largest number of iterations of a fit; default 200. Too few leave the classifier unsettled.
    pub iterations: usize,
    /// A fit ends when two iterations in a row lower its loss by less than this share; default 0.000001.
    pub tolerance: f64,
}

impl Default for ClassifierConfig {
    fn default() -> Self {
        Self { penalties: vec![1e-4, 1e-3, 1e-2, 1e-1], iterations: 200, tolerance: 1e-6 }
    }
}

impl ClassifierConfig {
    /// Checks all values.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Config`] for the first unusable value.
    pub fn check(&self) -> Result<(), RoutingError> {
        let refuse = |key, value: String, problem| Err(RoutingError::Config { key, value, problem });
        if self.penalties.is_empty() || self.penalties.len() > 16 {
            let problem = "needs 1 to 16 numbers";
            return refuse("classifier.penalties", format!("{:?}", self.penalties), problem);
        }
        if let Some(bad) = self.penalties.iter().find(|penalty| !(1e-9..=1e3).contains(*penalty)) {
            let problem = "must be at least 0.000000001, so that the fit ends, and at most 1000";
            return refuse("classifier.penalties", bad.to_string(), problem);
        }
        if !(1..=1 << 20).contains(&self.iterations) {
            let problem = "must be at least 1 and at most 1048576";
            return refuse("classifier.iterations", self.iterations.to_string(), problem);
        }
        if !(0.0..1.0).contains(&self.tolerance) {
            let problem = "must be at least 0 and below 1";
            return refuse("classifier.tolerance", self.tolerance.to_string(), problem);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bad_value_is_named() {
        let default = ClassifierConfig::default;
        default().check().unwrap();
        for (config, named) in [
            (ClassifierConfig { penalties: vec![], ..default() }, "classifier.penalties = []"),
            (ClassifierConfig { penalties: vec![0.1, 0.0], ..default() }, "classifier.penalties = 0"),
            (ClassifierConfig { penalties: vec![f64::NAN], ..default() }, "classifier.penalties = NaN"),
            (ClassifierConfig { iterations: 0, ..default() }, "classifier.iterations = 0"),
            (ClassifierConfig { tolerance: 1.0, ..default() }, "classifier.tolerance = 1"),
        ] {
            let message = config.check().unwrap_err().to_string();
            assert!(message.contains(named), "{message}");
        }
    }
}
