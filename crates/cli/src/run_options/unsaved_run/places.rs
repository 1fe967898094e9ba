//! The folders and files that a configuration names. A saved name is found from every folder.

use std::io;
use std::path::{Path, PathBuf};

use dipaco_config::RunConfig;
use dipaco_pipeline::{PipelineError, RunDirectory};

/// The configuration with absolute names of the folders and files that it takes from elsewhere. A relative name is relative to the
/// folder in which the command runs.
///
/// The run's own files move with it: `run.data` and `run.store` are left out when they name its own folders, and the tokenizer of
/// an imported model or of an extended run has a name relative to its folder.
pub(super) fn with_lasting_names(
    run: &RunDirectory,
    mut config: RunConfig,
) -> Result<RunConfig, PipelineError> {
    let own = whole(&run.root().join("data"))?;
    config.run.data = config.run.data.as_deref().map(absolute).transpose()?.filter(|data| *data != own);
    config.run.store = match config.run.store.take() {
        Some(store) if is_folder(&store) => {
            let own = whole(&run.root().join("store"))?;
            let folder = absolute(Path::new(&store))?;
            if folder == own { None } else { Some(text(folder)?) }
        }
        store => store,
    };
    config.routing.labels = config.routing.labels.as_deref().map(absolute).transpose()?;
    if let Some(file) = config.prepare.tokenizer.clone() {
        config.prepare.tokenizer = Some(tokenizer(run, &config, file)?);
    }
    Ok(config)
}

/// The configuration of an extended run. Names that the finished run has stay as they are, and new ones become absolute.
pub(crate) fn with_lasting_changes(
    run: &RunDirectory,
    mut config: RunConfig,
    finished: &RunConfig,
) -> Result<RunConfig, PipelineError> {
    let lasting = with_lasting_names(run, config.clone())?;
    if config.run.data != finished.run.data {
        config.run.data = lasting.run.data;
    }
    if config.run.store != finished.run.store {
        config.run.store = lasting.run.store;
    }
    if config.routing.labels != finished.routing.labels {
        config.routing.labels = lasting.routing.labels;
    }
    Ok(config)
}

/// True for the address of a store in a folder. An empty address is none, and whoever opens the store says so.
fn is_folder(address: &str) -> bool {
    !address.is_empty() && !address.contains("://")
}

/// The lasting name of the given tokenizer.
fn tokenizer(run: &RunDirectory, config: &RunConfig, file: PathBuf) -> Result<PathBuf, PipelineError> {
    // The run finds its own files by names that are relative to its folder, and no others.
    let is_own = |name: &Path| {
        let mut prepare = config.prepare.clone();
        prepare.tokenizer = Some(name.to_owned());
        run.located(&prepare).tokenizer.as_deref() != Some(name)
    };
    if is_own(&file) {
        return Ok(file);
    }
    let (file, data) = (absolute(&file)?, whole(&run.root().join("data"))?);
    let name = data.parent().and_then(|root| file.strip_prefix(root).ok()).map(Path::to_owned);
    Ok(name.filter(|name| is_own(name)).unwrap_or(file))
}

/// The same path from every folder. An empty path stays, and whoever reads it says so.
fn absolute(path: &Path) -> Result<PathBuf, PipelineError> {
    if path.as_os_str().is_empty() {
        return Ok(path.to_owned());
    }
    // A configuration is UTF-8, and can hold no other name.
    text(whole(path)?).map(PathBuf::from)
}

/// [`absolute`] of a path that is not saved, so it may be of any bytes.
fn whole(path: &Path) -> Result<PathBuf, PipelineError> {
    let failed = |source| PipelineError::Io { action: "resolve", path: path.to_owned(), source };
    std::path::absolute(path).map_err(failed)
}

/// A path as text.
fn text(path: PathBuf) -> Result<String, PipelineError> {
    path.into_os_string().into_string().map_err(|name| PipelineError::Io {
        action: "save the name of",
        path: name.into(),
        source: io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_names_are_found_from_every_folder_and_those_of_the_run_move_with_it() {
        let here = std::env::current_dir().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("run");
        let run = RunDirectory::new(&root);
        let named = |data: &str, store: &str, tokenizer: &str| {
            let mut config = RunConfig::default();
            config.run.data = Some(data.into());
            config.run.store = Some(store.to_owned());
            config.prepare.tokenizer = Some(tokenizer.into());
            config.routing.labels = Some("labels.jsonl".into());
            let config = with_lasting_names(&run, config).unwrap();
            assert_eq!(config.routing.labels, Some(here.join("labels.jsonl")));
            assert_eq!(with_lasting_names(&run, config.clone()).unwrap(), config);
            (config.run.data, config.run.store, config.prepare.tokenizer.unwrap())
        };
        let whole = |name: &str| here.join(name).to_str().unwrap().to_owned();
        assert_eq!(
            named("r/data", "st", "tokenizer.json"),
            (Some(whole("r/data").into()), Some(whole("st")), whole("tokenizer.json").into())
        );
        for address in ["s3://bucket/run", "file:///runs/one", ""] {
            assert_eq!(named("/d", address, "/t").1.as_deref(), Some(address));
        }
        // The run's own folders, and a tokenizer that is not there yet.
        let own = |name: &str| root.join(name).to_str().unwrap().to_owned();
        let imported = own("imported/tokenizer.json");
        assert_eq!(named(&own("data"), &own("store"), &imported), (None, None, imported.clone().into()));
        std::fs::create_dir_all(root.join("imported")).unwrap();
        std::fs::write(&imported, "{}").unwrap();
        for name in ["imported/tokenizer.json", imported.as_str()] {
            assert_eq!(named("d", "s", name).2, Path::new("imported/tokenizer.json"), "{name}");
        }
    }
}
