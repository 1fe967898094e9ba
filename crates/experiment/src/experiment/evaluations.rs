//! Evaluations that a cell can't have.

use dipaco_topology::Topology;

use super::Experiment;
use crate::cell::{Cell, CellEvaluation, EvaluatedModel};
use crate::error::ExperimentError;

impl Experiment {
    /// Refuses a cell with early stopping and nothing to stop by: its line would be that of the last weights under another name.
    /// Refuses one with an ensemble of more paths than it has: its line would be named after paths that are not there.
    pub(super) fn check_evaluations(&self, cell: &Cell) -> Result<(), ExperimentError> {
        let (train, prefix) = (&cell.config.train, cell.config.evaluation.prefix_tokens);
        let stopping = cell.evaluations.iter().find(|evaluation| evaluation.early_stopping);
        if let Some(CellEvaluation { name, .. }) = stopping
            && (train.holdout_fraction == 0.0
                || train.holdout_sequences == 0
                || train.sequence_tokens < prefix)
        {
            let problem = format!(
                "{}: the evaluation `{name}` has early_stopping = true, and the run measures no held-out loss by which a path \
                 could stop: set train.holdout_fraction and train.holdout_sequences above 0, and train.sequence_tokens to at \
                 least evaluation.prefix_tokens, or name other evaluations for this run",
                cell.label()
            );
            return Err(ExperimentError::Experiment { path: self.path.clone(), problem });
        }
        for CellEvaluation { name, model, config, .. } in &cell.evaluations {
            let EvaluatedModel::Ensemble(most) = *model else { continue };
            // A configuration with an unusable topology is refused when it is read.
            let Ok(topology) = Topology::new(&config.topology, config.model.blocks) else { continue };
            let paths = topology.paths();
            if most.get() > paths {
                let problem = format!(
                    "{}: the evaluation `{name}` is an ensemble of {most} paths, and the run has {paths}: give at most \
                     {paths}, or name other evaluations for this run",
                    cell.label()
                );
                return Err(ExperimentError::Experiment { path: self.path.clone(), problem });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// An experiment with a run of four paths and a run of one, and with these further lines of the second.
    fn ensemble_of(paths: u32, dense: &str) -> Experiment {
        let text = format!(
            r#"
name = "ensembles"
[[evaluations]]
name = "routed"
[[evaluations]]
name = "several paths"
model = {{ ensemble = {paths} }}
[[runs]]
name = "2x2"
[[runs]]
name = "dense"
configuration.topology.levels = [{{ modules = 1, blocks = "0..4", embedding = true, head = true }}]
{dense}
"#
        );
        Experiment::parse(&text, Path::new("ensembles.toml")).unwrap()
    }

    #[test]
    fn an_ensemble_has_no_more_paths_than_its_run() {
        assert_eq!(ensemble_of(4, "").cells().unwrap().len(), 2, "a run of one path is only routed");
        let message = ensemble_of(9, "").cells().unwrap_err().to_string();
        for says in ["2x2 · seed 1", "`several paths`", "9 paths", "give at most 4"] {
            assert!(message.contains(says), "{message}");
        }
        let dense = ensemble_of(2, "evaluations = [\"several paths\"]");
        assert!(matches!(dense.cells(), Err(ExperimentError::Experiment { .. })));
    }

    #[test]
    fn early_stopping_needs_held_out_documents() {
        let text = |held_out: &str| {
            format!(
                "name = \"stopping\"\n[configuration]\n{held_out}\n[[evaluations]]\nname = \"best\"\nearly_stopping = true\n\
                 [[runs]]\nname = \"2x2\"\n"
            )
        };
        let cells =
            |held_out: &str| Experiment::parse(&text(held_out), Path::new("stopping.toml")).unwrap().cells();
        assert_eq!(cells("").unwrap().len(), 1);
        let message =
            cells("train = { holdout_fraction = 0.0, holdout_sequences = 0 }").unwrap_err().to_string();
        assert!(
            message.contains("`best` has early_stopping = true") && message.contains("holdout_fraction"),
            "{message}"
        );
        assert!(cells("train.sequence_tokens = 16\nevaluation.prefix_tokens = 32").is_err());
    }

    #[test]
    fn a_swept_topology_has_the_paths_of_every_ensemble() {
        let sweep = "[[sweeps]]\nkey = \"topology.replicas\"\nvalues = [1, 2]\nruns = [\"2x2\"]\n";
        assert!(matches!(ensemble_of(5, sweep).sweeps(), Err(ExperimentError::Experiment { .. })));
        assert_eq!(ensemble_of(4, sweep).sweeps().unwrap().len(), 1);
    }
}
