//! Evaluations that would fail after the training.

use dipaco_config::RunConfig;
use dipaco_eval::{RerouteBy, RouteUnit};
use dipaco_experiment::{Cell, CellEvaluation, EvaluatedModel, Experiment, Selection, Sweep};
use dipaco_routing::RouterKind;

use crate::error::PipelineError;

/// Refuses an experiment whose selected cells have an evaluation that can only fail. `has_pretrained` is true if the command names a
/// pretrained model.
///
/// # Errors
/// [`PipelineError::Experiment`] for the first such cell, and as [`Selection::sweeps`].
pub fn check(
    experiment: &Experiment,
    selection: &Selection,
    has_pretrained: bool,
) -> Result<(), PipelineError> {
    let (sweeps, cells) = (selection.sweeps(experiment)?, selection.cells(experiment)?);
    check_evaluations(experiment, sweeps.iter().flat_map(Sweep::cells).chain(&cells), has_pretrained)
}

/// Refuses cells with an evaluation that can only fail. `has_pretrained` is true if the command names a pretrained model.
pub(super) fn check_evaluations<'a>(
    experiment: &Experiment,
    cells: impl IntoIterator<Item = &'a Cell>,
    has_pretrained: bool,
) -> Result<(), PipelineError> {
    for cell in cells {
        for evaluation in &cell.evaluations {
            if let Some(lacks) = lacking(evaluation, has_pretrained) {
                let problem = format!("{}: the evaluation `{}` {lacks}", cell.label(), evaluation.name);
                return Err(experiment.unusable(problem).into());
            }
        }
    }
    Ok(())
}

/// The lack of an evaluation, with the remedy.
fn lacking(evaluation: &CellEvaluation, has_pretrained: bool) -> Option<&'static str> {
    let config = &evaluation.config;
    let (tokens, by) = (config.evaluation.reroute_tokens, config.evaluation.reroute_by);
    match evaluation.model {
        EvaluatedModel::Imported if !has_pretrained => {
            Some("reads the imported model: name it with --import, or select other runs with --run")
        }
        EvaluatedModel::Routed if tokens > 0 && by == RerouteBy::Transformer => {
            (config.routing.router_share == 0.0).then_some(
                "needs reserved documents for its transformer router: set routing.router_share above 0",
            )
        }
        EvaluatedModel::Routed if tokens > 0 || config.evaluation.route == RouteUnit::Window => {
            of_text(config)
        }
        EvaluatedModel::Ensemble(_) => of_text(config),
        _ => None,
    }
}

/// The lack of a choice of paths by the beginning of a text.
fn of_text(config: &RunConfig) -> Option<&'static str> {
    let only_labels = config.routing.kind == RouterKind::Labels && config.routing.phases.is_empty();
    only_labels.then_some(
        "chooses paths by the tokens of a text, and shards by label have no such router: leave it out for this run",
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The refusal of a run of four paths with these settings and this evaluation.
    fn refusal(settings: &str, evaluation: &str) -> Option<String> {
        let text = format!(
            "name = \"checks\"\n[configuration]\n{settings}\n[[evaluations]]\nname = \"other\"\n{evaluation}\n\
             [[runs]]\nname = \"2x2\"\n"
        );
        let experiment = Experiment::parse(&text, Path::new("checks.toml")).unwrap();
        let cells = experiment.cells().unwrap();
        check_evaluations(&experiment, &cells, false).err().map(|error| error.to_string())
    }

    #[test]
    fn evaluations_that_can_only_fail_are_refused_before_the_training() {
        let labels = "routing = { kind = \"labels\", labels = \"labels.jsonl\" }";
        for (settings, evaluation, says) in [
            ("", "configuration.evaluation.reroute_tokens = 64", "set routing.router_share above 0"),
            ("", "model = \"imported\"", "--import"),
            (labels, "model = { ensemble = 2 }", "shards by label"),
            (labels, "configuration.evaluation.route = \"window\"", "shards by label"),
        ] {
            let message = refusal(settings, evaluation).unwrap();
            assert!(
                message.contains(says) && message.contains("2x2 · seed 1: the evaluation `other`"),
                "{message}"
            );
        }
        for (settings, evaluation) in [
            ("routing.router_share = 0.1", "configuration.evaluation.reroute_tokens = 64"),
            ("", "configuration.evaluation = { reroute_tokens = 64, reroute_by = \"features\" }"),
            ("", "model = { ensemble = 2 }"),
            (labels, "model = \"oracle\""),
        ] {
            assert_eq!(refusal(settings, evaluation), None, "{settings} {evaluation}");
        }
    }
}
