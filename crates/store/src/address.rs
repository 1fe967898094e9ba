//! Opens the object store at an address.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::signer::Signer;
use url::Url;

use crate::folder::Folder;
use crate::remote::CloudClient;
use crate::{StoreError, remote};

/// Options for opening a run store.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// True if a write to a directory returns only after its files are on the disk. Then a power failure loses no
    /// acknowledged write. Default true; false is faster and survives killed processes only.
    pub durable: bool,
    /// Settings of a cloud store as `(key, value)`, such as `("aws_region", "eu-west-1")`. The keys are the names of the
    /// providers' environment variables in lower case. Default: the variables of the process that begin with `AWS_`,
    /// `AZURE_` or `GOOGLE_`. A directory has none.
    pub settings: Vec<(String, String)>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        let of_a_store =
            |name: &str| ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|start| name.starts_with(start));
        let text =
            |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
        let settings = std::env::vars_os().filter_map(text).filter(|(name, _)| of_a_store(name));
        Self { durable: true, settings: settings.map(|(name, value)| (name.to_lowercase(), value)).collect() }
    }
}

impl fmt::Debug for StoreOptions {
    /// Without the values of settings: some are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.settings.iter().map(|(key, _)| key).collect();
        f.debug_struct("StoreOptions").field("durable", &self.durable).field("settings", &keys).finish()
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
    /// Makes links; only cloud stores have it.
    pub(crate) signer: Option<Arc<dyn Signer>>,
    /// Address for messages.
    pub(crate) address: String,
    /// The directory of a local store.
    pub(crate) folder: Option<Folder>,
}

pub(crate) fn resolve(address: &str, options: &StoreOptions, open: Open) -> Result<Resolved, StoreError> {
    let wrong = |reason: &str| StoreError::Address { address: address.to_owned(), reason: reason.to_owned() };
    if address.is_empty() {
        return Err(wrong("it is empty"));
    }
    if may_hold_secret(address) {
        return Err(StoreError::SecretInAddress);
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
    let unusable = |source: io::Error| StoreError::Directory { address: address.clone(), source };
    // What exists may be a file, which the next step reports.
    if open == Open::Create && !path.exists() {
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
    let store = LocalFileSystem::new_with_prefix(&path).map_err(|error| unusable(io::Error::other(error)))?;
    // A folder goes with its last object: an outer step would leave a folder for each fragment.
    let store = store.with_fsync(options.durable).with_automatic_cleanup(true);
    Ok(Resolved {
        objects: Arc::new(store),
        signer: None,
        address,
        folder: Some(Folder { path, durable: options.durable }),
    })
}

fn cloud(address: &str, url: &Url, options: &StoreOptions) -> Result<Resolved, StoreError> {
    let wrong = |reason: String| StoreError::Address { address: address.to_owned(), reason };
    let CloudClient { objects, signer } =
        remote::client(url, &options.settings).map_err(|error| wrong(error.to_string()))?;
    Ok(Resolved { objects, signer: Some(signer), address: address.to_owned(), folder: None })
}

/// True if an address has room for a secret: a password, a query or a fragment. Such an address is refused, because
/// addresses stand in configurations and messages. Credentials come from the environment.
fn may_hold_secret(address: &str) -> bool {
    let Some((_, rest)) = address.split_once("://") else { return false };
    let authority = rest.split('/').next().unwrap_or(rest);
    let password = authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'));
    password || rest.contains(['?', '#'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunStore;

    #[test]
    fn a_directory_that_can_not_be_used_is_no_wrong_address() {
        let folder = tempfile::tempdir().unwrap();
        let a_file = folder.path().join("run");
        std::fs::write(&a_file, "x").unwrap();
        let below = a_file.join("store");
        for opened in [RunStore::open(below.to_str().unwrap()), RunStore::create(below.to_str().unwrap())] {
            let error = opened.unwrap_err();
            assert!(matches!(error, StoreError::Directory { .. }), "{error:?}");
            assert!(error.to_string().contains("check the directory and its permissions"), "{error}");
        }
        let error = RunStore::create(a_file.to_str().unwrap()).unwrap_err();
        assert!(error.to_string().contains("it is a file, not a directory"), "{error}");
    }
}
