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

#[cfg(test)]
mod tests {
    use super::compile;
    use crate::{CudaError, PathShape, Precision, kernels};

    #[test]
    fn the_kernels_compile_where_nvrtc_is_installed() {
        // SAFETY: looks for a shared library and closes it.
        if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
            eprintln!("SKIPPED: libnvrtc was not found");
            return;
        }
        let shape = PathShape {
            hidden_size: 256,
            blocks: 2,
            heads: 4,
            head_dim: 64,
            ffn_size: 704,
            vocab_size: 1000,
            context: 128,
            rope_theta: 10_000.0,
            rms_norm_eps: 1e-5,
            tie_embeddings: false,
        };
        for precision in [Precision::F32, Precision::Bf16] {
            let defines = kernels::defines(&shape, precision);
            let image = compile((9, 0), &defines).unwrap().to_src();
            for kernel in kernels::NAMES {
                assert!(image.contains(&format!(".entry {kernel}(")), "{kernel} is missing");
            }
        }
        let error = compile((9, 0), &["-DWIDTH=0".to_owned()]).unwrap_err();
        assert!(matches!(&error, CudaError::Compile { log, .. } if log.contains("HEAD_DIM")), "{error}");
    }
}
