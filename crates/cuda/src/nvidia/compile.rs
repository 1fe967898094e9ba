//! Compilation of the kernels for a GPU.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use cudarc::nvrtc::{CompileError, CompileOptions, Ptx, compile_ptx_with_opts};

use crate::{CudaError, kernels};

/// PTX compiled in this process, by the options of the compiler. A process uses a few shapes and dtypes at most.
static COMPILED: Mutex<Option<HashMap<Vec<String>, Ptx>>> = Mutex::new(None);

/// Returns the PTX of the kernels for an architecture, such as `compute_90`, and these constants.
pub(super) fn compile(architecture: &str, defines: &[String]) -> Result<Ptx, CudaError> {
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
        CudaError::Compile { architecture: architecture.to_owned(), log }
    })?;
    compiled.insert(options, image.clone());
    Ok(image)
}

#[cfg(test)]
mod tests {
    use dipaco_model::{Dtype, ModelConfig};

    use super::compile;
    use crate::{CudaError, kernels};

    #[test]
    fn the_kernels_compile_where_nvrtc_is_installed() {
        // SAFETY: looks for a shared library and closes it.
        if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
            eprintln!("SKIPPED: libnvrtc was not found");
            return;
        }
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let config =
                ModelConfig { blocks: 2, vocab_size: 1000, context: 128, dtype, ..ModelConfig::default() };
            let defines = kernels::defines(&config);
            let image = compile("compute_90", &defines).unwrap().to_src();
            for kernel in kernels::NAMES {
                assert!(image.contains(&format!(".entry {kernel}(")), "{kernel} is missing");
            }
        }
        let error = compile("compute_90", &["-DWIDTH=0".to_owned()]).unwrap_err();
        assert!(matches!(&error, CudaError::Compile { log, .. } if log.contains("HEAD_DIM")), "{error}");
    }
}
