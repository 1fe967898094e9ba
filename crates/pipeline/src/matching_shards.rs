//! Shards belong to the router, the tokenizer, the seed, the text and the settings that their run has now.

use std::path::Path;

use dipaco_config::RunConfig;
use dipaco_eval::EvalError;
use dipaco_routing::{Router, ShardManifest, ShardSet};
use dipaco_shards::TokenSetManifest;
use dipaco_store::RunManifest;

use crate::error::PipelineError;
use crate::route::router;
use crate::run_directory::RunDirectory;
use crate::stale_shards::StaleShards;
use crate::weights::Weights;

/// Checks that the training of the run with the manifest `saved` can use the training shards of a phase. The shards of a training
/// that goes on keep the text and the settings of its beginning. Later phases divide the text with settings that may differ.
///
/// # Errors
/// [`PipelineError::StaleShards`] when the shards are older than the router, the tokenizer, the seed, the text or the settings,
/// and the errors of reading these.
pub(crate) fn check_training_shards(
    run: &RunDirectory,
    phase: u32,
    config: &RunConfig,
    saved: Option<&RunManifest>,
) -> Result<(), PipelineError> {
    let shards = ShardSet::open(&run.routing(phase).train())?;
    let begun = saved.is_some_and(|saved| saved.training.is_some());
    let remedy = if begun { "put back what the paths were trained with".to_owned() } else { assign(phase) };
    let of_run = OfRun { run, phase, shards: &shards, remedy };
    of_run.check_router(None)?;
    of_run.check_tokenizer()?;
    if begun {
        return Ok(());
    }
    if let Some(seed) = saved.and_then(|saved| saved.seed.as_ref()) {
        of_run.check_seed(&seed.weights.hash)?;
    }
    of_run.check_text(&run.train_tokens())?;
    // With phases, settings that are given to the training are those of the next division.
    if config.routing.phases.is_empty() { of_run.check_settings(config) } else { Ok(()) }
}

/// Checks that an evaluation can use the validation shards of the current phase. Returns the router that they belong to, unless
/// the run has lost it.
///
/// # Errors
/// [`PipelineError::StaleShards`] when the shards are older than the router, the tokenizer or the validation text,
/// [`PipelineError::Routing`] when that router was fitted with another seed, [`PipelineError::Eval`] when it reads tokens that
/// count, and the errors of reading these.
pub(crate) fn check_validation_shards(
    run: &RunDirectory,
    weights: &Weights,
    shards: &ShardSet,
) -> Result<Option<Router>, PipelineError> {
    let phase = weights.manifest().phase();
    let of_run = OfRun { run, phase, shards, remedy: assign(phase) };
    let router = of_run.check_router(Some(weights.seed_hash()?))?;
    if let Some(router) = &router {
        let (read, uncounted) = (router.prefix_tokens(), weights.config().evaluation.prefix_tokens);
        if read > uncounted {
            return Err(EvalError::RouterPrefix { read, uncounted }.into());
        }
    }
    of_run.check_tokenizer()?;
    of_run.check_text(&run.validation_tokens())?;
    Ok(router)
}

/// The command that makes the shards of a phase anew.
fn assign(phase: u32) -> String {
    let phase = if phase == 0 { String::new() } else { format!(" --phase {phase}") };
    format!("run `dipaco route assign{phase}` with this run, or put back what the shards were made with")
}

/// Shards and the run that they may belong to. Files that the run has lost are not compared.
struct OfRun<'a> {
    run: &'a RunDirectory,
    phase: u32,
    shards: &'a ShardSet,
    remedy: String,
}

impl OfRun<'_> {
    fn manifest(&self) -> &ShardManifest {
        self.shards.manifest()
    }

    fn same(&self, newer: impl FnOnce() -> String, then: &str, now: &str) -> Result<(), PipelineError> {
        if then == now {
            return Ok(());
        }
        let (folder, newer, remedy) = (self.shards.folder().to_owned(), newer(), self.remedy.clone());
        let (then, now) = (then.to_owned(), now.to_owned());
        Err(StaleShards { folder, newer, then, now, remedy }.into())
    }

    /// Returns the router that the shards belong to, unless the run has lost it. A router that was fitted with another seed than
    /// `seed_hash` is named as such, because it can divide no text.
    fn check_router(&self, seed_hash: Option<&str>) -> Result<Option<Router>, PipelineError> {
        let routing = self.run.routing(self.phase);
        if !routing.router().exists() {
            return Ok(None);
        }
        let router = router(&routing)?;
        if let Some(seed_hash) = seed_hash.filter(|_| self.manifest().router_hash != router.hash()) {
            router.check_seed(router.dimension(), seed_hash)?;
        }
        let newer = || format!("the router in {}", routing.router().display());
        self.same(newer, &self.manifest().router_hash, router.hash())?;
        Ok(Some(router))
    }

    fn check_tokenizer(&self) -> Result<(), PipelineError> {
        let file = self.run.tokenizer();
        if !file.exists() {
            return Ok(());
        }
        let newer = || format!("the tokenizer in {}", file.display());
        // The hash of a tokenizer is that of its file, so nothing parses it here.
        self.same(newer, &self.manifest().tokenizer_hash, &dipaco_files::file_hash(&file)?)
    }

    /// Nothing serves or evaluates paths whose router was fitted with another seed, not even if its features read none.
    fn check_seed(&self, hash: &str) -> Result<(), PipelineError> {
        let remedy = "run `dipaco route fit` and `dipaco route assign` with this run".to_owned();
        let newer = || "the seed model of the run".to_owned();
        OfRun { remedy, ..*self }.same(newer, &self.manifest().seed_hash, hash)
    }

    /// Compares with the list of a text. The text itself is not read.
    fn check_text(&self, list: &Path) -> Result<(), PipelineError> {
        if !list.exists() {
            return Ok(());
        }
        let newer = || format!("the text in {}", list.display());
        self.same(newer, &self.manifest().tokens_hash, &TokenSetManifest::read(list)?.content_hash())
    }

    fn check_settings(&self, config: &RunConfig) -> Result<(), PipelineError> {
        let (manifest, routing) = (self.manifest(), &config.routing);
        let newer = |setting: &str| format!("the setting {setting}");
        let overlap = routing.overlap.clamp(1, self.shards.paths() as usize);
        self.same(|| newer("routing.overlap"), &manifest.overlap.to_string(), &overlap.to_string())?;
        let reserved = manifest.reserved.as_ref();
        let share = reserved.map_or(0.0, |reserved| reserved.share);
        self.same(
            || newer("routing.router_share"),
            &share.to_string(),
            &routing.router_share.max(0.0).to_string(),
        )?;
        match reserved {
            Some(reserved) => {
                self.same(|| newer("routing.seed"), &reserved.seed.to_string(), &routing.seed.to_string())
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
