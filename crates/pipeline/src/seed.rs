//! Pretraining the seed, the dense path that every path of a run starts from.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dipaco_config::RunConfig;
use dipaco_path::TrainDevice;
use dipaco_shards::{ShardsError, Tokenizer};
use dipaco_store::RunStore;
use dipaco_telemetry::{Events, Progress};
use dipaco_train::{SeedOptions, SeedSummary, adopt_seed, open_run, open_seed};

use crate::error::PipelineError;
use crate::imported_files::TOKENIZER;
use crate::prepared::{self, token_file, tokenizer_file};
use crate::run::read_config;
use crate::run_directory::RunDirectory;
use crate::store::{open_store, open_store_of_long_work};

/// Settings of the pretraining that do not change its weights.
#[derive(Clone, Debug, Default)]
pub struct SeedHow {
    /// Start over when the run has a seed of another configuration or text.
    pub restart: bool,
    /// Device to compute on.
    pub device: TrainDevice,
}

/// Pretrains the seed or continues its pretraining. A finished seed is left as it is. `config` has its vocabulary. `begins` is called
/// before the first step of all, when nothing refuses the settings any more: the first snapshot has them.
///
/// # Errors
/// [`PipelineError::NotPrepared`] without prepared text; [`PipelineError::Pretrained`] after an import that was broken off;
/// [`PipelineError::Train`] when the run has a seed of another configuration or text and `how.restart` is false, or when the
/// store can't be written; the error of `begins`.
pub async fn seed(
    run: &RunDirectory,
    config: &RunConfig,
    how: SeedHow,
    progress: &Progress,
    cancel: Arc<AtomicBool>,
    begins: impl FnOnce() -> Result<(), PipelineError>,
) -> Result<SeedSummary, PipelineError> {
    run.imported().check_whole()?;
    let train = token_file(run, &run.train_tokens())?;
    let validation = run.validation_tokens();
    let validation = if validation.exists() { Some(token_file(run, &validation)?) } else { None };
    let stop = cancel.clone();
    let store = open_store_of_long_work(run, move || stop.load(Ordering::Relaxed)).await?;
    let started = open_run(&store, || run_id(&config.run.name)).await?;
    let events = Arc::new(Events::create(&run.events())?);
    let SeedHow { restart, device } = how;
    let options = SeedOptions { config: config.clone(), store, train, validation, restart, device };
    let opened = open_seed(options, started, events, progress, cancel).await?;
    if opened.begins() {
        begins()?;
    }
    let (summary, _) = opened.train().await?;
    Ok(summary)
}

/// The identity of a new run: its name, and a suffix that no other run of that name has. Nothing computed depends on it.
pub(crate) fn run_id(name: &str) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&now.as_nanos().to_le_bytes()).update(&std::process::id().to_le_bytes());
    let clean: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).take(40).collect();
    format!("{clean}-{}", &hasher.finalize().to_hex()[..8])
}

/// Takes over the finished seed of the run `from`, and what came with its imported model. Both runs then start from the same
/// weights and can be compared.
///
/// # Errors
/// [`PipelineError::Store`] when either store can't be used, [`PipelineError::NotPrepared`] when a run has no tokenizer,
/// [`PipelineError::SeedTokenizer`] when the runs have different ones, [`PipelineError::Shards`] when their documents end with
/// different tokens, [`PipelineError::Pretrained`] when an import into `from` was broken off, and [`PipelineError::SeedTraining`]
/// when `from` has no finished seed or one of another model.
pub async fn adopt(run: &RunDirectory, config: &RunConfig, from: &RunDirectory) -> Result<(), PipelineError> {
    let source = RunStore::open(&from.store())?;
    check_tokenizers(run, from)?;
    let (imported, theirs) = (run.imported(), from.imported());
    theirs.check_whole()?;
    let store = open_store(run).await?;
    let started = open_run(&store, || run_id(&config.run.name)).await?;
    // From the new seed to the last of its files the run has parts of two models.
    let begins = started.manifest.seed.is_none() && theirs.root().exists();
    if begins {
        imported.begin()?;
    }
    let adopted = adopt_seed(&store, started, &source, &config.model).await;
    if adopted.is_err() && begins {
        imported.withdraw();
    }
    adopted?;
    imported.copy_from(&theirs)
}

/// Checks that the text of a run has the tokenizer and the end-of-text token of the seed of the run `from`. With another tokenizer
/// of the same size the seed would fit the run, and take each token for another one.
fn check_tokenizers(run: &RunDirectory, from: &RunDirectory) -> Result<(), PipelineError> {
    let file = run.tokenizer();
    if !file.exists() {
        return Err(PipelineError::NotPrepared { folder: run.data() });
    }
    let (own, (expected, theirs)) = (prepared::tokenizer(run)?, seed_tokenizer(from)?);
    if own.hash() != theirs.hash() {
        return Err(PipelineError::SeedTokenizer { file, expected });
    }
    if own.end_of_text() != theirs.end_of_text() {
        let (kept, found) = (theirs.end_of_text_text(), own.end_of_text_text());
        return Err(ShardsError::EndOfTextInUse { kept, found }.into());
    }
    Ok(())
}

/// The tokenizer of a run with its file, before text is prepared that of its imported model or of the run that it extends.
fn seed_tokenizer(run: &RunDirectory) -> Result<(PathBuf, Tokenizer), PipelineError> {
    if let Some(file) = tokenizer_file(run) {
        return Ok((file, prepared::tokenizer(run)?));
    }
    let file = run.imported().file(TOKENIZER);
    if !file.exists() {
        return Err(PipelineError::NotPrepared { folder: run.data() });
    }
    let config = read_config(run.config())?;
    let end_of_text = config.and_then(|config| config.prepare.end_of_text);
    let tokenizer = Tokenizer::from_file(&file, end_of_text.as_deref())?;
    Ok((file, tokenizer))
}
