//! Pretraining the seed of a run.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dipaco_config::RunConfig;
use dipaco_path::TrainDevice;
use dipaco_shards::{TokenFile, Tokenizer};
use dipaco_store::RunStore;
use dipaco_telemetry::{Events, Progress};
use dipaco_train::{SeedOptions, SeedSummary, adopt_seed, open_run, train_seed};

use crate::run_directory::RunDirectory;
use crate::steps::error::StepError;
use crate::steps::train::open_store;

/// Reads the run's tokenizer.
pub(crate) fn tokenizer(run: &RunDirectory) -> Result<Tokenizer, StepError> {
    if !run.tokenizer().exists() {
        return Err(StepError::NotPrepared { folder: run.data() });
    }
    Ok(Tokenizer::from_file(&run.tokenizer(), None)?)
}

/// The configuration with the vocabulary of the run's tokenizer.
pub(crate) fn with_vocabulary(run: &RunDirectory, config: &RunConfig) -> Result<RunConfig, StepError> {
    let tokenizer = tokenizer(run)?;
    let model = config.model.with_vocabulary(tokenizer.vocab_size() as usize)?;
    Ok(RunConfig { model, ..config.clone() })
}

/// Opens a prepared token file and checks that it was made with the run's tokenizer.
pub(crate) fn token_file(run: &RunDirectory, file: &std::path::Path) -> Result<Arc<TokenFile>, StepError> {
    if !file.exists() {
        return Err(StepError::NotPrepared { folder: run.data() });
    }
    let opened = TokenFile::open(file)?;
    opened.check_tokenizer(&tokenizer(run)?)?;
    Ok(Arc::new(opened))
}

/// How the seed is pretrained.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeedHow {
    /// Start over when the run has a seed of another configuration or text.
    pub(crate) restart: bool,
    /// Where to compute.
    pub(crate) device: TrainDevice,
}

/// Pretrains the seed, or continues it; a finished one is left as it is. `config` has its vocabulary.
pub(crate) async fn seed(
    run: &RunDirectory,
    config: &RunConfig,
    how: SeedHow,
    progress: &Progress,
    cancel: Arc<AtomicBool>,
) -> Result<SeedSummary, StepError> {
    let train = token_file(run, &run.train_tokens())?;
    let validation = run.validation_tokens();
    let validation = if validation.exists() { Some(token_file(run, &validation)?) } else { None };
    let store = open_store(run)?;
    let started = open_run(&store, || run_id(&config.run.name)).await?;
    let events = Arc::new(Events::create(&run.events())?);
    let SeedHow { restart, device } = how;
    let options = SeedOptions { config: config.clone(), store, train, validation, restart, device };
    let (summary, _) = train_seed(options, started, events, progress, cancel).await?;
    Ok(summary)
}

/// A new run's identity: its name, and what no other run of that name has. It enters nothing that is computed.
fn run_id(name: &str) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&now.as_nanos().to_le_bytes()).update(&std::process::id().to_le_bytes());
    let clean: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).take(40).collect();
    format!("{clean}-{}", &hasher.finalize().to_hex()[..8])
}

/// Takes the finished seed of another run over: the same weights, so that the two runs can be compared.
pub(crate) async fn adopt(
    run: &RunDirectory,
    config: &RunConfig,
    from: &RunDirectory,
) -> Result<(), StepError> {
    let source = RunStore::open(&from.store().to_string_lossy())?;
    let store = open_store(run)?;
    let started = open_run(&store, || run_id(&config.run.name)).await?;
    Ok(adopt_seed(&store, started, &source, &config.model).await.map(|_| ())?)
}
