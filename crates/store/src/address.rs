//! From an address to an object store.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use url::Url;

use crate::StoreError;

/// How a run store is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Whether a directory's files reach the disk before a write counts as done, so that a power failure loses
    /// nothing that was acknowledged. Default true; false is faster and survives killed processes only.
    pub durable: bool,
    /// Settings of a cloud store as `(key, value)`, such as `("aws_region", "eu-west-1")`; keys that the store does
    /// not know are ignored, so the process environment with lower-case names can be given. Default none.
    pub settings: Vec<(String, String)>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { durable: true, settings: Vec::new() }
    }
}

/// Whether the directory of a local address is made when it is not there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Open {
    Existing,
    Create,
}

/// The object store at `address`, and the address as messages show it.
pub(crate) fn resolve(
    address: &str,
    options: &StoreOptions,
    open: Open,
) -> Result<(Arc<dyn ObjectStore>, String), StoreError> {
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
            let path = url.to_file_path().map_err(|()| wrong("it names no file of this machine"))?;
            local(path, options, open)
        }
        "s3" | "s3a" | "gs" | "az" | "adl" | "azure" | "abfs" | "abfss" => cloud(address, &url, options),
        scheme => Err(wrong(&format!("the scheme {scheme}:// is not known"))),
    }
}

fn local(
    path: PathBuf,
    options: &StoreOptions,
    open: Open,
) -> Result<(Arc<dyn ObjectStore>, String), StoreError> {
    let address = path.display().to_string();
    let unusable =
        |error: io::Error| StoreError::Address { address: address.clone(), reason: error.to_string() };
    if open == Open::Create {
        create_directory(&path).map_err(unusable)?;
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
    Ok((Arc::new(store.with_fsync(options.durable)), address))
}

fn create_directory(path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(path)
}

#[cfg(feature = "cloud")]
fn cloud(
    address: &str,
    url: &Url,
    options: &StoreOptions,
) -> Result<(Arc<dyn ObjectStore>, String), StoreError> {
    let settings = options.settings.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let (store, prefix) = object_store::parse_url_opts(url, settings)
        .map_err(|error| StoreError::Address { address: address.to_owned(), reason: error.to_string() })?;
    Ok((Arc::new(object_store::prefix::PrefixStore::new(store, prefix)), address.to_owned()))
}

#[cfg(not(feature = "cloud"))]
fn cloud(
    address: &str,
    url: &Url,
    _options: &StoreOptions,
) -> Result<(Arc<dyn ObjectStore>, String), StoreError> {
    Err(StoreError::SchemeNotBuilt { address: address.to_owned(), scheme: url.scheme().to_owned() })
}
