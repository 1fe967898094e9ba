//! Checks a place for a run's store.

use std::fs;
use std::path::{Path, PathBuf};

use dipaco_store::{RunStore, StoreError};

use super::finding::{Finding, with_causes};
use crate::error::CliError;
use crate::runtime;

/// Checks that the store at `address` can hold a run. The folders that it makes for a local store do not stay.
pub(super) fn check(address: &str) -> Result<Finding, CliError> {
    let made = missing_folders(address);
    let opened = runtime::run(async { Ok(open(address).await) })?;
    for folder in made {
        // Another process may use it by now, and a store elsewhere has none.
        let _ = fs::remove_dir(folder);
    }
    Ok(match opened {
        Ok(store) => Finding::ok(
            "store",
            format!(
                "{} can be listed, read, written and deleted, and refuses to create an object twice",
                store.address()
            ),
        ),
        Err(error) => Finding::fail("store", with_causes(&error), "correct this, then check again"),
    })
}

/// The folders of a local store that do not exist, the innermost first.
fn missing_folders(address: &str) -> Vec<PathBuf> {
    let place = Path::new(address.strip_prefix("file://").unwrap_or(address));
    let missing = place.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    missing.map(Path::to_owned).collect()
}

async fn open(address: &str) -> Result<RunStore, StoreError> {
    let store = RunStore::create(address)?;
    store.check_writable().await?;
    Ok(store)
}
