//! The transformer router, which chooses a path again and again within a text.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use dipaco_path::DeviceChoice;
use dipaco_routing::{TransformerFittedOn, TransformerRouter};
use dipaco_shards::WorkPart;
use dipaco_telemetry::{Progress, ProgressUnit};
use dipaco_train::{RouterTraining, train_router};

use crate::error::PipelineError;
use crate::phases;
use crate::prepared::tokenizer;
use crate::run_directory::RunDirectory;
use crate::weights::Weights;

/// Fine-tunes the seed into a transformer router, on the scores that the current paths give the reserved documents. Paths
/// without scores score the documents first. A router of the same scores, seed and settings is left as it is. Returns
/// the router and true if it is new. Blocks on the store.
///
/// # Errors
/// When the run is not trained or has no reserved documents, when a file can't be written, or when `cancel` was set.
pub fn fit(
    run: &RunDirectory,
    weights: &Weights,
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<(TransformerRouter, bool), PipelineError> {
    // Before the comparison below: the hash of the scores is an input of the router. Scored paths cost nothing here.
    phases::score(run, weights, DeviceChoice::Cpu, WorkPart::WHOLE, progress, cancel)?;
    let routing = run.routing(weights.manifest().phase());
    let tokens = phases::reserved(run, &routing)?;
    let phases::ReservedScores { mut scores, hash: scores_hash } = phases::scores(run, weights, &tokens)?;
    let config = weights.config();
    let settings = (&config.transformer_router, &config.model, config.run.seed);
    let settings = serde_json::to_string(&settings).map_err(|error| PipelineError::Internal {
        what: "the settings of the transformer router can not be written as JSON",
        source: Some(error.into()),
    })?;
    let fitted_on = TransformerFittedOn {
        tokens_hash: tokens.content_hash().to_owned(),
        tokenizer_hash: tokens.tokenizer_hash().to_owned(),
        seed_hash: weights.seed_hash()?.to_owned(),
        modules_hash: weights.modules_hash()?,
        scores_hash,
        settings,
        documents: tokens.documents(),
        steps: 0,
        held_out_loss: None,
        blind_loss: None,
    };
    // A damaged router is fitted again.
    if let Ok(Some(known)) = TransformerRouter::open(routing.root())
        && known.fitted_on().has_inputs(&fitted_on)
    {
        return Ok((known, false));
    }
    let seed = weights.seed()?.weights()?;
    let task =
        progress.task("fit-transformer", Some(config.transformer_router.steps), ProgressUnit::Count("steps"));
    let training = RouterTraining {
        config: &config.transformer_router,
        model: &config.model,
        seed: &seed,
        tokens: &tokens,
        scores: &mut scores,
        order_seed: config.run.seed,
    };
    let trained = train_router(training, &mut |step| {
        task.note(format!("loss {:.3}", step.loss));
        task.set(step.step);
        if cancel.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    task.finish();
    let fitted_on = TransformerFittedOn {
        steps: trained.steps,
        held_out_loss: trained.held_out_loss,
        blind_loss: trained.blind_loss,
        ..fitted_on
    };
    let paths = weights.topology().paths();
    let router = TransformerRouter::save(routing.root(), &config.model, paths, &trained.weights, fitted_on)?;
    if let (Some(found), Some(blind)) = (trained.held_out_loss, trained.blind_loss)
        && found >= blind
    {
        tracing::warn!(
            held_out_loss = found,
            blind_loss = blind,
            "the transformer router knows no more than how often each path is best: reserve more documents \
             (routing.router_share), or give it more steps (transformer_router.steps)"
        );
    }
    Ok((router, true))
}

/// Opens the transformer router of the current phase of routing.
///
/// # Errors
/// [`PipelineError::NoTransformer`] when there is none, and [`PipelineError::Routing`] when it is damaged or of another run.
pub fn open(run: &RunDirectory, weights: &Weights) -> Result<TransformerRouter, PipelineError> {
    let routing = run.routing(weights.manifest().phase());
    let router = TransformerRouter::open(routing.root())?;
    let router = router.ok_or_else(|| PipelineError::NoTransformer { folder: routing.root().to_owned() })?;
    router.check(tokenizer(run)?.hash(), weights.seed_hash()?, weights.topology().paths())?;
    if router.fitted_on().modules_hash != weights.modules_hash()? {
        tracing::warn!(
            "the paths were trained further after the transformer router was fitted: run `dipaco route fit-transformer` \
             again"
        );
    }
    Ok(router)
}
