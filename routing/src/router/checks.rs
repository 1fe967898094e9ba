//! Checks that a router belongs to a model, a text and a topology.

use super::Router;
use crate::RoutingError;

impl Router {
    /// Checks that the router was made for a model with `dimension` features and weights with the hash `seed_hash`.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Mismatch`] if it was made for another model.
    pub fn check_seed(&self, dimension: usize, seed_hash: &str) -> Result<(), RoutingError> {
        let remedy = "use the seed model that the router was fitted with, or run route fit again";
        let fitted = self.fitted_on();
        if self.dimension() != dimension {
            let (expected, actual) = (self.dimension().to_string(), dimension.to_string());
            return Err(RoutingError::Mismatch {
                what: "the router's width and the model's",
                expected,
                actual,
                remedy,
            });
        }
        if fitted.seed_hash != seed_hash {
            let (expected, actual) = (fitted.seed_hash.clone(), seed_hash.to_owned());
            return Err(RoutingError::Mismatch { what: "the router's seed model", expected, actual, remedy });
        }
        Ok(())
    }

    /// Checks that the router was fitted with the tokenizer of a text.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Mismatch`] if it was another tokenizer.
    pub fn check_tokenizer(&self, tokenizer_hash: &str) -> Result<(), RoutingError> {
        if self.fitted_on().tokenizer_hash == tokenizer_hash {
            return Ok(());
        }
        Err(RoutingError::Mismatch {
            what: "the router's tokenizer",
            expected: self.fitted_on().tokenizer_hash.clone(),
            actual: tokenizer_hash.to_owned(),
            remedy: "prepare the text with the run's tokenizer, or run route fit again",
        })
    }

    /// Checks that the router has a path for each path of a topology.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Mismatch`] if the numbers differ.
    pub fn check_paths(&self, paths: u32) -> Result<(), RoutingError> {
        if self.paths() == paths {
            return Ok(());
        }
        Err(RoutingError::Mismatch {
            what: "the router's number of paths",
            expected: paths.to_string(),
            actual: self.paths().to_string(),
            remedy: "run route fit and route assign again for this topology",
        })
    }
}
