//! The length of the sequences that cells are evaluated on.

use std::collections::BTreeMap;

use dipaco_config::RunConfig;

use super::Experiment;
use crate::cell::{Cell, CellEvaluation};
use crate::error::ExperimentError;

impl Experiment {
    /// Refuses cells that one evaluation would read in sequences of different lengths because none is set: short sequences
    /// raise the perplexity of every model, so these cells could not be compared.
    pub(super) fn check_lengths<'a>(
        &self,
        cells: impl IntoIterator<Item = &'a Cell>,
    ) -> Result<(), ExperimentError> {
        let mut firsts: BTreeMap<&str, (&Cell, &RunConfig)> = BTreeMap::new();
        for cell in cells {
            for CellEvaluation { name, config, .. } in &cell.evaluations {
                let (first, of_first) = *firsts.entry(name).or_insert((cell, config));
                let (one, other) = (length(of_first), length(config));
                let set = [of_first, config].iter().all(|config| config.evaluation.sequence_tokens > 0);
                if one != other && !set {
                    let problem = format!(
                        "{} would be evaluated in sequences of {one} tokens and {} in sequences of {other}, because \
                         evaluation.sequence_tokens = 0 takes the context of each model: set it in [configuration] to a \
                         length that all of them can read",
                        first.label(),
                        cell.label()
                    );
                    return Err(ExperimentError::Experiment { path: self.path.clone(), problem });
                }
            }
        }
        Ok(())
    }
}

/// Tokens of a sequence.
fn length(config: &RunConfig) -> usize {
    if config.evaluation.sequence_tokens == 0 {
        config.model.context
    } else {
        config.evaluation.sequence_tokens
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// An experiment with these lines for all runs, and with others after the last run.
    fn contexts(for_all: &str, last: &str) -> Experiment {
        let text = format!(
            r#"
name = "contexts"
[configuration]
{for_all}
[[runs]]
name = "short"
configuration.model.context = 256
[[runs]]
name = "long"
configuration.model.context = 512
{last}
"#
        );
        Experiment::parse(&text, Path::new("contexts.toml")).unwrap()
    }

    #[test]
    fn runs_of_different_contexts_need_a_length_of_sequences() {
        let message = contexts("", "").cells().unwrap_err().to_string();
        for says in ["short · seed 1", "256 tokens", "long · seed 1", "512", "evaluation.sequence_tokens"] {
            assert!(message.contains(says), "{message}");
        }
        assert_eq!(contexts("evaluation.sequence_tokens = 128", "").cells().unwrap().len(), 2);
        // One run has a length of its own: that of the other's context, or another one.
        let own =
            |length: usize| contexts("", &format!("configuration.evaluation.sequence_tokens = {length}"));
        assert_eq!(own(256).cells().unwrap().len(), 2);
        assert!(own(128).cells().is_err());
    }

    #[test]
    fn a_sweep_of_contexts_needs_a_length_of_sequences() {
        let sweep = "[[sweeps]]\nkey = \"model.context\"\nvalues = [256, 512]\nruns = [\"short\"]\n";
        assert!(matches!(contexts("", sweep).sweeps(), Err(ExperimentError::Experiment { .. })));
        assert_eq!(contexts("evaluation.sequence_tokens = 128", sweep).sweeps().unwrap().len(), 1);
    }
}
