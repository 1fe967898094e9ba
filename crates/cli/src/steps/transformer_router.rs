//! The router that decides during a text.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use dipaco_config::RunConfig;
use dipaco_routing::{TransformerFittedOn, TransformerRouter};
use dipaco_shards::Part;
use dipaco_telemetry::{Progress, ProgressUnit};
use dipaco_train::{RouterTraining, train_router};

use crate::run_directory::RunDirectory;
use crate::steps::error::StepError;
use crate::steps::phases;
use crate::steps::seed::tokenizer;
use crate::steps::weights::Weights;

/// Fine-tunes the seed on what the paths, as they are now, make of the reserved documents; paths that have not scored them
/// yet do so first. A router that was made of the same scores, seed and settings is left as it is; returns it and whether
/// it was new. Blocks: call it from a thread that may.
pub(crate) fn fit(
    run: &RunDirectory,
    config: &RunConfig,
    weights: &Weights,
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<(TransformerRouter, bool), StepError> {
    phases::score(run, config, weights, Part::WHOLE, progress, cancel)?;
    let routing = run.routing(weights.manifest().phase());
    let tokens = phases::reserved(run, &routing)?;
    let (mut scores, scores_hash) = phases::scores(run, config, weights, &tokens)?;
    let settings = (&config.transformer_router, &config.model, config.run.seed);
    let settings = serde_json::to_string(&settings).map_err(|source| StepError::Settings { source })?;
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
    // One that can't be read is made anew.
    if let Ok(Some(known)) = TransformerRouter::open(routing.root()) {
        let found = known.fitted_on().clone();
        let outcome = (found.steps, found.held_out_loss, found.blind_loss);
        let (steps, held_out_loss, blind_loss) = outcome;
        if found == (TransformerFittedOn { steps, held_out_loss, blind_loss, ..fitted_on.clone() }) {
            return Ok((known, false));
        }
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

/// The transformer router of the phase that a run is in.
pub(crate) fn open(run: &RunDirectory, weights: &Weights) -> Result<TransformerRouter, StepError> {
    let routing = run.routing(weights.manifest().phase());
    let router = TransformerRouter::open(routing.root())?;
    let router = router.ok_or_else(|| StepError::NoTransformer { folder: routing.root().to_owned() })?;
    router.check(tokenizer(run)?.hash(), weights.seed_hash()?, weights.topology().paths())?;
    if router.fitted_on().modules_hash != weights.modules_hash()? {
        tracing::warn!(
            "the transformer router was fitted on what the paths were before they were trained on: run `dipaco route \
             fit-transformer` again"
        );
    }
    Ok(router)
}
