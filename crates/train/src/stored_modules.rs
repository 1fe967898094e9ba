//! Reading module files from the run store.

use std::sync::Arc;

use dipaco_model::{ModuleWeights, TensorSpec, WeightReader};
use dipaco_path::PathError;
use dipaco_store::{ObjectRef, RunStore};

use crate::TrainError;

/// Reads a module file from the store, piece by piece: the file is not in memory beside its values.
pub(crate) async fn read_module(
    store: &RunStore,
    object: &ObjectRef,
    specs: Arc<[TensorSpec]>,
) -> Result<ModuleWeights, TrainError> {
    let length = usize::try_from(object.bytes).unwrap_or(usize::MAX);
    let mut reader = WeightReader::new(specs, length);
    let read = store.parts(object).read(|part| reader.read(part)).await?;
    let module = read.and_then(|()| reader.finish());
    Ok(module.map_err(|source| PathError::ModuleFile { name: object.name.clone(), source })?)
}
