//! Compiling the kernels for the GPU at hand.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use cudarc::nvrtc::{CompileError, CompileOptions, Ptx, compile_ptx_with_opts};

use crate::{CudaError, kernels};

/// What has been compiled in this process, by the compiler's options: a few shapes and precisions at most.
static COMPILED: Mutex<Option<HashMap<Vec<String>, Ptx>>> = Mutex::new(None);

/// The kernels' PTX for this compute capability and these constants.
pub(super) fn compile(capability: (i32, i32), defines: &[String]) -> Result<Ptx, CudaError> {
    let architecture = format!("compute_{}{}", capability.0, capability.1);
    let mut options = vec![format!("--gpu-architecture={architecture}"), "--std=c++17".to_owned()];
    options.extend_from_slice(defines);
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let compiled = compiled.get_or_insert_default();
    if let Some(image) = compiled.get(&options) {
        return Ok(image.clone());
    }
    let request =
        CompileOptions { options: options.clone(), name: Some("dipaco.cu".to_owned()), ..Default::default() };
    let image = compile_ptx_with_opts(kernels::source(), request).map_err(|error| {
        let log = match error {
            CompileError::CompileError { log, .. } => log.to_string_lossy().into_owned(),
            other => other.to_string(),
        };
        CudaError::Compile { architecture, log }
    })?;
    compiled.insert(options, image.clone());
    Ok(image)
}
