//! The inputs of a router: whether a fitted router already has them, and the form in which scores enter a fit.

use crate::{FitOrigin, FittedOn, RouterConfig, TargetsFrom, TransformerFittedOn};

impl FittedOn {
    /// Returns whether a fit on these inputs would give the same router again, up to the rounding of the device. `targets` is the source of a discriminative
    /// router's targets.
    pub fn has_inputs(
        &self,
        origin: &FitOrigin,
        config: &RouterConfig,
        targets: Option<&TargetsFrom>,
    ) -> bool {
        self.tokens_hash == origin.tokens_hash
            && self.seed_hash == origin.seed_hash
            && self.labels_hash == origin.labels_hash
            && self.config == *config
            && self.targets.as_ref() == targets
    }
}

impl TransformerFittedOn {
    /// Returns whether a fine-tuning on the inputs of `other` would give the same router again. The outcome of a
    /// fine-tuning, its steps and losses, is not compared.
    pub fn has_inputs(&self, other: &Self) -> bool {
        let outcome_of_self = Self {
            steps: self.steps,
            held_out_loss: self.held_out_loss,
            blind_loss: self.blind_loss,
            ..other.clone()
        };
        *self == outcome_of_self
    }
}

/// Log-likelihoods of sampled documents under all paths, document by document, (documents, paths), as
/// [`targets_of`](crate::targets_of) takes them.
#[derive(Clone, Debug)]
pub struct Likelihoods {
    values: Vec<f64>,
    documents: Vec<u64>,
    paths: usize,
}

impl Likelihoods {
    /// Zeros for a sample of a token file's documents, given by their numbers, and `paths` paths.
    pub fn new(documents: Vec<u64>, paths: u32) -> Self {
        let paths = paths as usize;
        Self { values: vec![0.0; documents.len() * paths], documents, paths }
    }

    /// Sets the column of a path. `of_file` holds its log-likelihood of each document of the token file.
    pub fn set_path(&mut self, path: usize, of_file: &[f64]) {
        for (&document, row) in self.documents.iter().zip(self.values.chunks_exact_mut(self.paths)) {
            row[path] = of_file[document as usize];
        }
    }

    /// The values, (documents, paths).
    pub fn values(&self) -> &[f64] {
        &self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likelihoods_are_those_of_the_sampled_documents() {
        let mut likelihoods = Likelihoods::new(vec![2, 0], 2);
        likelihoods.set_path(0, &[1.0, 2.0, 3.0]);
        likelihoods.set_path(1, &[4.0, 5.0, 6.0]);
        assert_eq!(likelihoods.values(), [3.0, 6.0, 1.0, 4.0]);
    }

    #[test]
    fn the_outcome_of_a_fine_tuning_is_no_input() {
        let fitted = TransformerFittedOn {
            tokens_hash: "t".into(),
            tokenizer_hash: "k".into(),
            seed_hash: "s".into(),
            modules_hash: "m".into(),
            scores_hash: "c".into(),
            settings: "{}".into(),
            documents: 3,
            steps: 10,
            held_out_loss: Some(1.0),
            blind_loss: Some(2.0),
        };
        let planned =
            TransformerFittedOn { steps: 0, held_out_loss: None, blind_loss: None, ..fitted.clone() };
        assert!(fitted.has_inputs(&planned));
        assert!(!fitted.has_inputs(&TransformerFittedOn { modules_hash: "n".into(), ..planned }));
    }
}
