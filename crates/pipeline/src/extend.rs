//! Extending a finished run: a new run that begins with its modules, with further paths or without some.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use dipaco_config::{PathsPerRound, RunConfig, keys};
use dipaco_routing::Router;
use dipaco_shards::Tokenizer;
use dipaco_telemetry::Progress;
use dipaco_topology::{AddedPaths, DerivedTopology, ModuleId, PathId, Topology};
use dipaco_train::{ExtensionOptions, check_finished, extend_run, open_run};
use serde::Serialize;

use crate::error::PipelineError;
use crate::extend_error::ExtendError;
use crate::run::{Run, read_config, save_config};
use crate::run_directory::RunDirectory;
use crate::seed::run_id;
use crate::store::{existing_store, open_store};
use crate::version::Version;
use crate::weights::Weights;
use crate::{files, prepared, route};

/// What changes from the finished run to the new run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// Further paths.
    Add(AddedPaths),
    /// These paths are gone.
    Remove(Vec<PathId>),
}

/// A path of the new run.
#[derive(Clone, Debug, Serialize)]
pub struct ExtendedPath {
    /// The path.
    pub path: PathId,
    /// The path of the finished run that it is a copy of.
    pub copy_of: PathId,
    /// Its modules, one per level.
    pub modules: Vec<String>,
    /// The modules that train.
    pub trained_modules: Vec<String>,
}

/// The new run.
#[derive(Clone, Debug, Serialize)]
pub struct Extended {
    /// True if this call made it.
    pub new: bool,
    /// All paths.
    pub paths: Vec<ExtendedPath>,
}

/// Makes a run in the folder `root` that begins with the seed, the modules, the router and the tokenizer of the finished run
/// in `from`. `config` is the configuration of the finished run with the user's changes; the topology and the places of the
/// new run are set here. A run that was made by the same call is left as it is.
///
/// # Errors
/// When the finished run is not complete or can't be read, `change` names a path or a level that does not exist, the router
/// has no centroid for each path, `config` has another model or does not fit the new topology, `root` holds another run or text
/// of another tokenizer, or a file can't be written. [`ExtendError::Kept`] when `root` holds this run, and the user changes
/// another setting than when it was made.
pub async fn extend(
    root: &Path,
    config: &RunConfig,
    from: &Path,
    change: &PathChange,
    progress: &Progress,
) -> Result<Extended, PipelineError> {
    let finished = Run::open(from)?;
    finished.directory.imported().check_whole()?;
    let weights = Weights::open(&finished.directory, &finished.config, Version::Current).await?;
    check_finished(weights.manifest())?;
    let router = route::router(&finished.directory.routing(weights.manifest().phase()))?;
    router.check_extendable()?;
    let tokenizer = prepared::tokenizer(&finished.directory)?;
    check_settings(config, &finished, tokenizer.vocab_size() as usize)?;
    let topology = weights.topology();
    let derived = match change {
        PathChange::Add(added) => topology.with_paths(&config.topology, added)?,
        PathChange::Remove(removed) => topology.without_paths(&config.topology, removed)?,
    };
    let mut config = new_config(config, &finished, &derived, change)?;
    let run = RunDirectory::new(root).with_places(&config.run);
    if same_place(run.root(), finished.directory.root()) || run.store() == finished.directory.store() {
        return Err(ExtendError::Itself { folder: root.to_owned() }.into());
    }
    check_tokenizer(&run, &finished, &tokenizer)?;
    config.prepare.tokenizer = Some(run.name_of(run.kept_tokenizer()));
    config.prepare.end_of_text = Some(tokenizer.end_of_text_text());
    // The finished run's settings may not fit the new topology. A refused change leaves nothing behind.
    config.check()?;
    let model = config.model.with_vocabulary(tokenizer.vocab_size() as usize)?;
    let source = existing_store(&finished.directory)?.ok_or(PipelineError::NotTrained)?;
    let options = ExtensionOptions {
        config: RunConfig { model, ..config.clone() },
        store: open_store(&run).await?,
        source,
        manifest: weights.manifest().clone(),
        modules: derived.modules.clone(),
    };
    let opened = open_run(&options.store, || run_id(&config.run.name)).await?;
    // First the store: the extension may be refused, and then nothing of the run has changed.
    let copied = extend_run(&options, opened, progress).await?;
    let saved = if copied { None } else { read_config(run.config())? };
    let made = match saved.filter(|saved| saved.topology == config.topology) {
        // Later steps may have changed the settings of the run. One without the configuration as made is of a program before.
        Some(saved) => read_config(run.extended_config())?.or(Some(saved)),
        None => None,
    };
    let new = made.is_none();
    if let Some(made) = made {
        let unchanged = new_config(&finished.config, &finished, &derived, change)?;
        refuse_changes(&run, &made, &config, unchanged)?;
    } else {
        prepared::keep_tokenizer(&run, &tokenizer)?;
        copy_files(&run, &finished.directory, &router, change)?;
        files::write(&run.lent_text(), text_of(&finished)?.to_string_lossy().as_bytes())?;
        files::write(&run.extended_config(), config.to_toml().as_bytes())?;
        // Last: a run without this topology, because its text was prepared before, is completed by the same call.
        save_config(&run, &config)?;
    }
    Ok(Extended { new, paths: paths(&config, &derived)? })
}

/// Checks that the user's changes leave what the weights depend on.
fn check_settings(config: &RunConfig, finished: &Run, vocabulary: usize) -> Result<(), PipelineError> {
    let theirs = &finished.config;
    let differs = [
        ("model", config.model.with_vocabulary(vocabulary)? != theirs.model),
        ("topology", config.topology != theirs.topology),
        ("sync.fragments", config.sync.fragments != theirs.sync.fragments),
        ("sync.pattern", config.sync.pattern != theirs.sync.pattern),
    ];
    match differs.into_iter().find(|(_, differs)| *differs) {
        Some((key, _)) => Err(ExtendError::Setting { key }.into()),
        None => Ok(()),
    }
}

/// Checks that prepared text of the new run has the tokenizer and the end-of-text token of the finished run.
fn check_tokenizer(run: &RunDirectory, finished: &Run, tokenizer: &Tokenizer) -> Result<(), PipelineError> {
    if !run.tokenizer().exists() {
        return Ok(());
    }
    let own = prepared::tokenizer(run)?;
    if (own.hash(), own.end_of_text()) == (tokenizer.hash(), tokenizer.end_of_text()) {
        return Ok(());
    }
    let expected = prepared::tokenizer_file(&finished.directory);
    let (file, expected) = (run.tokenizer(), expected.unwrap_or_else(|| finished.directory.tokenizer()));
    Err(ExtendError::Tokenizer { file, expected }.into())
}

/// Refuses changes of settings that the new run did not have when it was `made`. `given` is the configuration with the user's
/// changes, and `unchanged` the one without.
fn refuse_changes(
    run: &RunDirectory,
    made: &RunConfig,
    given: &RunConfig,
    unchanged: RunConfig,
) -> Result<(), PipelineError> {
    // The model and the tokenizer are those of the finished run, whatever the user gives.
    let mut unchanged = RunConfig { model: given.model.clone(), ..unchanged };
    unchanged.prepare.tokenizer.clone_from(&given.prepare.tokenizer);
    unchanged.prepare.end_of_text.clone_from(&given.prepare.end_of_text);
    for key in keys().map(|doc| doc.key) {
        let [given, unchanged, made] = [given, &unchanged, made].map(|config| config.value(key));
        if given != unchanged && given != made {
            let [given, made] = [given, made].map(|value| value.unwrap_or_else(|| "not set".to_owned()));
            return Err(ExtendError::Kept { folder: run.root().to_owned(), key, made, given }.into());
        }
    }
    Ok(())
}

/// The configuration of the new run, but for its tokenizer.
fn new_config(
    config: &RunConfig,
    finished: &Run,
    derived: &DerivedTopology,
    change: &PathChange,
) -> Result<RunConfig, PipelineError> {
    let mut config = config.clone();
    config.topology = derived.config.clone();
    // A new phase would divide the text of kept paths anew, and needs reserved documents.
    config.routing.phases.clear();
    config.routing.router_share = 0.0;
    if let PathChange::Remove(_) = change {
        // Nobody trains, and there are not more shards than paths.
        config.train.paths_per_round = PathsPerRound::default();
        config.routing.overlap = config.routing.overlap.min(derived.paths.len());
    }
    config.run.directory = None;
    if config.run.store == finished.config.run.store {
        config.run.store = None;
    }
    if config.run.data == finished.config.run.data {
        // Paths that were all trained on the finished run's text are measured on it, unless the user names another folder.
        let lent = matches!(change, PathChange::Remove(_));
        config.run.data = if lent { Some(text_of(finished)?) } else { None };
    }
    Ok(config)
}

/// The folder of the finished run's text.
fn text_of(finished: &Run) -> Result<PathBuf, PipelineError> {
    let path = finished.directory.data();
    let absolute = std::path::absolute(&path);
    absolute.map_err(|source| PipelineError::Io { action: "resolve", path, source })
}

/// True if a run shows the text of the finished run that it extends. Other text would replace that of the finished run.
pub(crate) fn shows_lent_text(run: &RunDirectory) -> Result<bool, PipelineError> {
    let file = run.lent_text();
    match std::fs::read_to_string(&file) {
        Ok(lent) => Ok(run.tokenizer().exists() && same_place(&run.data(), Path::new(&lent))),
        Err(source) if source.kind() == ErrorKind::NotFound => Ok(false),
        Err(source) => Err(PipelineError::Io { action: "read", path: file, source }),
    }
}

/// True if two names are one existing folder.
fn same_place(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| -> Option<PathBuf> { std::fs::canonicalize(path).ok() };
    real(one).is_some_and(|one| Some(one) == real(other))
}

/// Copies the router and the small files of an imported model.
fn copy_files(
    run: &RunDirectory,
    finished: &RunDirectory,
    router: &Router,
    change: &PathChange,
) -> Result<(), PipelineError> {
    run.imported().copy_from(&finished.imported())?;
    let PathChange::Remove(removed) = change else {
        return files::write(&run.kept_router(), router.to_bytes());
    };
    let router = router.without_paths(removed)?;
    files::write(&run.kept_router(), router.to_bytes())?;
    route::publish_router(&run.routing(0), &router)?;
    Ok(())
}

/// All paths of the new run.
fn paths(config: &RunConfig, derived: &DerivedTopology) -> Result<Vec<ExtendedPath>, PipelineError> {
    let topology = Topology::new(&config.topology, config.model.blocks)?;
    let path = |(path, &copy_of): (PathId, &PathId)| {
        let modules = topology.modules_of(path);
        let trains = |module: &&ModuleId| topology.path_trains(path) && topology.module_trains(**module);
        ExtendedPath {
            path,
            copy_of,
            modules: modules.iter().map(ToString::to_string).collect(),
            trained_modules: modules.iter().filter(trains).map(ToString::to_string).collect(),
        }
    };
    Ok(topology.path_ids().zip(&derived.paths).map(path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_extension_refuses_the_changes_that_the_run_does_not_have() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path());
        let unchanged = RunConfig::default();
        let mut made = unchanged.clone();
        made.train.rounds += 1;
        let first = made.clone();
        let refused = |given: &RunConfig| refuse_changes(&run, &first, given, unchanged.clone());
        refused(&made).unwrap();
        refused(&unchanged).unwrap();
        let mut other = made.clone();
        other.train.rounds += 1;
        let error = refused(&other).unwrap_err().to_string();
        let (first, given) = (made.train.rounds, other.train.rounds);
        assert!(error.contains(&format!("train.rounds = {first}")), "{error}");
        assert!(error.contains(&format!("--set train.rounds={given}")), "{error}");
        // A setting on which no weight depends is no exception.
        let mut other = made;
        other.serve.slots += 1;
        let error = refused(&other).unwrap_err().to_string();
        assert!(error.contains("serve.slots"), "{error}");
    }
}
