//! Pretraining the seed, the dense path that every path of a run starts from.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dipaco_config::RunConfig;
use dipaco_path::TrainDevice;
use dipaco_store::RunStore;
use dipaco_telemetry::{Events, Progress};
use dipaco_train::{SeedOptions, SeedSummary, adopt_seed, open_run, open_seed};

use crate::error::PipelineError;
use crate::imported_files::TOKENIZER;
use crate::prepared::token_file;
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
/// [`PipelineError::SeedTokenizer`] when the runs have different ones, and [`PipelineError::SeedTraining`] when `from` has no
/// finished seed or one of another model.
pub async fn adopt(run: &RunDirectory, config: &RunConfig, from: &RunDirectory) -> Result<(), PipelineError> {
    let source = RunStore::open(&from.store())?;
    check_tokenizers(run, from)?;
    let store = open_store(run).await?;
    let started = open_run(&store, || run_id(&config.run.name)).await?;
    adopt_seed(&store, started, &source, &config.model).await?;
    run.imported().copy_from(&from.imported())
}

/// Checks that the text of a run has the tokenizer of the seed of the run `from`. With another one of the same size the seed
/// would fit the run, and take each token for another one.
fn check_tokenizers(run: &RunDirectory, from: &RunDirectory) -> Result<(), PipelineError> {
    let missing = |run: &RunDirectory| PipelineError::NotPrepared { folder: run.data() };
    let file = Some(run.tokenizer()).filter(|file| file.exists()).ok_or_else(|| missing(run))?;
    let expected = seed_tokenizer(from).ok_or_else(|| missing(from))?;
    if dipaco_files::file_hash(&file)? == dipaco_files::file_hash(&expected)? {
        return Ok(());
    }
    Err(PipelineError::SeedTokenizer { file, expected })
}

/// The tokenizer's file of a run, before text is prepared that of its imported model or of the run that it extends.
fn seed_tokenizer(run: &RunDirectory) -> Option<PathBuf> {
    let files = [run.tokenizer(), run.imported().file(TOKENIZER), run.kept_tokenizer()];
    files.into_iter().find(|file| file.exists())
}
