//! What the evaluation of a model reads, looked at before the first one begins.

use std::sync::Arc;

use dipaco_eval::{EvalError, EvaluationConfig, RerouteBy, RouteUnit, check_ranking, evaluated_documents};
use dipaco_routing::TextRouter;

use super::{EvaluatedRun, Evaluator, Subject, validation_shards};
use crate::error::PipelineError;
use crate::prepared::token_file;
use crate::route::router;
use crate::run_directory::RunDirectory;
use crate::transformer_router;

/// Checks that the validation text of a run has a token to count, so that a command knows it before it trains.
///
/// # Errors
/// When the run is not prepared or has no validation text, when its token file is damaged, or when no document is longer than the
/// tokens that are read and not counted.
pub fn check_validation_text(run: &RunDirectory, evaluation: &EvaluationConfig) -> Result<(), PipelineError> {
    let text = token_file(run, &run.validation_tokens())?;
    let documents = evaluated_documents(text.documents(), evaluation);
    let prefix_tokens = evaluation.prefix_tokens;
    // The first token of a document has no context, so it is never counted.
    let uncounted = prefix_tokens.max(1) as u64;
    let counts = |document| {
        let range = text.document_range(document);
        range.end - range.start > uncounted
    };
    if (0..documents).any(counts) {
        return Ok(());
    }
    Err(EvalError::NothingToCount { documents, prefix_tokens }.into())
}

impl Evaluator<'_> {
    /// Checks that a model can be evaluated. A command that evaluates several models calls it for all of them first, so that
    /// what one of them lacks costs no results of the others. Reads no weights of the seed and of paths. The transformer
    /// router stays open. Blocks on the store.
    ///
    /// # Errors
    /// When the run is not prepared, trained or routed; when it has no such path, model or router; when a router or a shard is
    /// damaged, or belongs to another run; when the settings of the evaluation do not fit the model or the router.
    pub fn check(&mut self, subject: Subject) -> Result<(), PipelineError> {
        let EvaluatedRun { run, config, weights, .. } = self.evaluated;
        let (evaluation, context) = (&config.evaluation, weights.model().context);
        evaluation.sequence_for(context).map_err(EvalError::from)?;
        if evaluation.rank_candidates > 0 {
            check_ranking(evaluation, context)?;
        }
        match subject {
            Subject::Seed => {
                weights.seed_record()?;
                self.undivided_text()
            }
            Subject::Imported if !weights.has_imported() => Err(PipelineError::NotImported),
            Subject::Imported => self.undivided_text(),
            Subject::Path(path) => {
                weights.modules_of(path)?;
                self.undivided_text()
            }
            Subject::Soup => {
                self.all_paths()?;
                self.undivided_text()
            }
            Subject::Routed(RouteUnit::Document) | Subject::Oracle | Subject::RandomPath => {
                self.all_paths()?;
                self.divided_text().map(drop)
            }
            Subject::Routed(RouteUnit::Window)
            | Subject::Ensemble { .. }
            | Subject::Rerouted { by: RerouteBy::Features, .. } => self.text_router(),
            Subject::Rerouted { by: RerouteBy::Transformer, .. } => {
                self.all_paths()?;
                self.divided_text()?;
                if self.transformer.is_none() {
                    self.transformer = Some(Arc::new(transformer_router::open(run, weights)?));
                }
                Ok(())
            }
        }
    }

    fn all_paths(&self) -> Result<(), PipelineError> {
        let weights = self.evaluated.weights;
        weights.topology().path_ids().try_for_each(|path| weights.modules_of(path).map(drop))
    }

    fn undivided_text(&self) -> Result<(), PipelineError> {
        let run = self.evaluated.run;
        token_file(run, &run.validation_tokens()).map(drop)
    }

    /// Opens each validation shard, and closes it again. Returns their number.
    fn divided_text(&mut self) -> Result<u32, PipelineError> {
        if let Some(paths) = self.shards {
            return Ok(paths);
        }
        let (shards, _) = validation_shards(self.evaluated.run, self.evaluated.weights)?;
        for path in shards.shards().iter().map(|shard| shard.path) {
            shards.open_shard(path).map_err(|source| EvalError::Shard { path, source })?;
        }
        self.shards = Some(shards.paths());
        Ok(shards.paths())
    }

    /// Checks the router that chooses paths by tokens of a text, and all that belongs to its choices but the seed.
    fn text_router(&mut self) -> Result<(), PipelineError> {
        self.all_paths()?;
        let shards = self.divided_text()?;
        let EvaluatedRun { run, weights, .. } = self.evaluated;
        let router = router(&run.routing(weights.manifest().phase()))?;
        TextRouter::check(&router, weights.model(), weights.seed_hash()?)?;
        if router.paths() != shards {
            return Err(EvalError::RouterPaths { router: router.paths(), shards }.into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use dipaco_telemetry::Progress;

    use super::*;
    use crate::prepare::prepare;
    use crate::small_run::SmallRun;

    #[test]
    fn a_text_has_a_token_to_count_among_the_documents_that_an_evaluation_reads() {
        let small = SmallRun::seeded();
        let line = |text: &str| format!("{}\n", serde_json::json!({ "text": text }));
        let (training, validation) =
            (small.folder.path().join("training.jsonl"), small.folder.path().join("v.jsonl"));
        std::fs::write(
            &training,
            (0..20).map(|i| line(&format!("document {i} of the text"))).collect::<String>(),
        )
        .unwrap();
        std::fs::write(&validation, line("a short one") + &line(&"a long one, ".repeat(40))).unwrap();
        let (hidden, stop) = (Progress::hidden(), AtomicBool::new(false));
        prepare(&small.run, &small.config, &[training], &[validation], &hidden, &stop).unwrap();
        let of_most = |max_documents| {
            let evaluation = EvaluationConfig { max_documents, ..small.config.evaluation.clone() };
            check_validation_text(&small.run, &evaluation)
        };
        of_most(0).unwrap();
        of_most(2).unwrap();
        let error = of_most(1).unwrap_err();
        assert!(
            matches!(error, PipelineError::Eval(EvalError::NothingToCount { documents: 1, .. })),
            "{error:?}"
        );
    }
}
