//! Reading module files from the run store.

use std::sync::Arc;

use dipaco_model::{ModuleWeights, TensorSpec};
use dipaco_path::module_files;
use dipaco_store::{ObjectRef, RunStore};

use crate::TrainError;

/// Reads a module file from the store.
pub(crate) async fn read_module(
    store: &RunStore,
    object: &ObjectRef,
    specs: Arc<[TensorSpec]>,
) -> Result<ModuleWeights, TrainError> {
    let bytes = store.get(object).await?;
    Ok(module_files::decode(&object.name, &bytes, specs)?)
}
