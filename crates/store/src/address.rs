//! Opens the object store at an address.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use url::Url;

use crate::StoreError;

/// Options for opening a run store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// True if a write to a directory returns only after its files are on the disk. Then a power failure loses no
    /// acknowledged write. Default true; false is faster and survives killed processes only.
    pub durable: bool,
    /// Settings of a cloud store as `(key, value)`, such as `("aws_region", "eu-west-1")`. The store ignores unknown
    /// keys, so a caller may pass the process environment with lower-case names. Default none. Only the feature
    /// `cloud` reads them.
    pub settings: Vec<(String, String)>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { durable: true, settings: Vec::new() }
    }
}

/// Treatment of a local address without a directory: an error, or a new directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Open {
    Existing,
    Create,
}

/// An opened object store.
pub(crate) struct Resolved {
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// Address for messages.
    pub(crate) address: String,
    /// The directory of a local store.
    pub(crate) folder: Option<PathBuf>,
}

pub(crate) fn resolve(address: &str, options: &StoreOptions, open: Open) -> Result<Resolved, StoreError> {
    let wrong = |reason: &str| StoreError::Address { address: address.to_owned(), reason: reason.to_owned() };
    if address.is_empty() {
        return Err(wrong("it is empty"));
    }
    if !address.contains("://") {
        return local(PathBuf::from(address), options, open);
    }
    let url = Url::parse(address).map_err(|error| wrong(&error.to_string()))?;
    match url.scheme() {
        "file" => {
            let path = url.to_file_path().map_err(|()| wrong("it is not a local path"))?;
            local(path, options, open)
        }
        "s3" | "s3a" | "gs" | "az" | "adl" | "azure" | "abfs" | "abfss" => cloud(address, &url, options),
        scheme => Err(wrong(&format!("the scheme {scheme}:// is unknown"))),
    }
}

fn local(path: PathBuf, options: &StoreOptions, open: Open) -> Result<Resolved, StoreError> {
    let address = path.display().to_string();
    let unusable =
        |error: io::Error| StoreError::Address { address: address.clone(), reason: error.to_string() };
    if open == Open::Create {
        std::fs::create_dir_all(&path).map_err(unusable)?;
    }
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => {
            return Err(StoreError::Address { address, reason: "it is a file, not a directory".to_owned() });
        }
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            return Err(StoreError::NoStore { address, source });
        }
        Err(source) => return Err(unusable(source)),
    }
    let store = LocalFileSystem::new_with_prefix(&path)
        .map_err(|error| StoreError::Address { address: address.clone(), reason: error.to_string() })?;
    // A folder goes with its last object: an outer step would leave a folder for each fragment.
    let store = store.with_fsync(options.durable).with_automatic_cleanup(true);
    Ok(Resolved { objects: Arc::new(store), address, folder: Some(path) })
}

#[cfg(feature = "cloud")]
fn cloud(address: &str, url: &Url, options: &StoreOptions) -> Result<Resolved, StoreError> {
    let settings = options.settings.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let (store, prefix) = object_store::parse_url_opts(url, settings)
        .map_err(|error| StoreError::Address { address: address.to_owned(), reason: error.to_string() })?;
    let objects = Arc::new(object_store::prefix::PrefixStore::new(store, prefix));
    Ok(Resolved { objects, address: address.to_owned(), folder: None })
}

#[cfg(not(feature = "cloud"))]
fn cloud(address: &str, url: &Url, _options: &StoreOptions) -> Result<Resolved, StoreError> {
    Err(StoreError::SchemeNotBuilt { address: address.to_owned(), scheme: url.scheme().to_owned() })
}
