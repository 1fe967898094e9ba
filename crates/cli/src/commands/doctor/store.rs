//! Checks a place for a run's store.

use std::error::Error;

use dipaco_store::{RunStore, StoreError};

use super::finding::Finding;
use crate::error::CliError;
use crate::runtime;

/// Checks that the store at `address` can hold a run.
pub(super) fn check(address: &str) -> Result<Finding, CliError> {
    Ok(match runtime::run(async { Ok(open(address).await) })? {
        Ok(store) => Finding::ok(
            "store",
            format!(
                "{} can be listed, read, written and deleted, and refuses to create an object twice",
                store.address()
            ),
        ),
        Err(error) => {
            let because = |cause: &(dyn Error + 'static)| format!("; because: {cause}");
            let causes: String =
                std::iter::successors(error.source(), |&cause| cause.source()).map(because).collect();
            Finding::fail("store", format!("{error}{causes}"), "correct this, then check again")
        }
    })
}

async fn open(address: &str) -> Result<RunStore, StoreError> {
    let store = RunStore::create(address)?;
    store.check_writable().await?;
    Ok(store)
}
