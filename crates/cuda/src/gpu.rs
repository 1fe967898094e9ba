//! Opening a GPU.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaContext, DriverError, result};

use crate::CudaError;

/// The GPUs that this process has opened, by their numbers. They stay open until it ends: cuBLASLt keeps what it has loaded onto
/// a GPU, and a GPU that is closed and opened again has lost it.
static OPENED: Mutex<BTreeMap<usize, Arc<CudaContext>>> = Mutex::new(BTreeMap::new());

/// An open GPU.
#[derive(Clone, Debug)]
pub struct Gpu {
    context: Arc<CudaContext>,
}

/// Properties of a GPU, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Name of the card.
    pub name: String,
    /// Compute capability: major and minor number, such as (9, 0).
    pub capability: (i32, i32),
    /// Free memory, in bytes.
    pub free: usize,
    /// Total memory, in bytes.
    pub total: usize,
}

/// Returns a function that adds the attempted action to an error of the driver.
pub(crate) fn driver(what: &'static str) -> impl FnOnce(DriverError) -> CudaError {
    move |source| CudaError::Driver { what, source }
}

/// The oldest compute capability with all instructions of the kernels: conversions to and from bf16 came with it.
const OLDEST_CAPABILITY: (i32, i32) = (8, 0);

/// Refuses a GPU that lacks instructions of the kernels. Later the driver would not load them, and name another cause.
fn check_capability(ordinal: usize, (major, minor): (i32, i32)) -> Result<(), CudaError> {
    if (major, minor) < OLDEST_CAPABILITY {
        return Err(CudaError::Capability { ordinal, major, minor });
    }
    Ok(())
}

/// Asks the driver for the compute capability of a GPU. That opens no GPU. [`Gpu::count`] must have started the driver.
fn capability(ordinal: usize) -> Result<(i32, i32), CudaError> {
    use cudarc::driver::sys::CUdevice_attribute as Attribute;
    let what = "asking for the capability";
    let device = result::device::get(ordinal as i32).map_err(driver(what))?;
    // SAFETY: the driver has just returned the device.
    let ask = |attribute| unsafe { result::device::get_attribute(device, attribute) }.map_err(driver(what));
    let major = ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    Ok((major, ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?))
}

/// The numbers of the GPUs that are not too old, from the driver's answer about each GPU. A GPU without an answer
/// stays: it fails when it is opened, and so it does not idle unnoticed.
fn new_enough(capabilities: impl Iterator<Item = Result<(i32, i32), CudaError>>) -> Vec<usize> {
    let numbered = capabilities.enumerate();
    let kept = numbered.filter(|(_, answer)| !matches!(answer, Ok(found) if *found < OLDEST_CAPABILITY));
    kept.map(|(number, _)| number).collect()
}

impl Gpu {
    /// Opens the GPU with number `ordinal`, from 0. It stays open until the process ends.
    ///
    /// # Errors
    /// The driver, NVRTC or cuBLASLt is not installed, the GPU does not exist or is too old, or the driver returns an error.
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        let count = Self::count()?;
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = opened.get(&ordinal) {
            return Ok(Self { context: context.clone() });
        }
        check_capability(ordinal, capability(ordinal)?)?;
        let context = CudaContext::new(ordinal).map_err(driver("opening the GPU"))?;
        opened.insert(ordinal, context.clone());
        Ok(Self { context })
    }

    /// The number of GPUs of this machine that the program may use.
    ///
    /// # Errors
    /// The driver, NVRTC or cuBLASLt is not installed, or the driver returns an error.
    pub fn count() -> Result<usize, CudaError> {
        let libraries = [
            // SAFETY: looks for a shared library and closes it; NVIDIA's libraries may be loaded from any thread.
            (
                unsafe { cudarc::driver::sys::is_culib_present() },
                "libcuda",
                "install NVIDIA's driver, or use the CPU",
            ),
            (
                // SAFETY: as above.
                unsafe { cudarc::nvrtc::sys::is_culib_present() },
                "libnvrtc",
                "install CUDA 13's NVRTC (or the wheel nvidia-cuda-nvrtc) and put its folder on LD_LIBRARY_PATH",
            ),
            (
                // SAFETY: as above.
                unsafe { cudarc::cublaslt::sys::is_culib_present() },
                "libcublasLt",
                "install CUDA 13's cuBLAS (or the wheel nvidia-cublas) and put its folder on LD_LIBRARY_PATH",
            ),
        ];
        if let Some(&(_, library, remedy)) = libraries.iter().find(|(present, ..)| !present) {
            return Err(CudaError::NoLibrary { library, remedy });
        }
        use cudarc::driver::sys::CUresult::{CUDA_ERROR_NO_DEVICE, CUDA_ERROR_STUB_LIBRARY};
        match result::init() {
            Err(DriverError(CUDA_ERROR_NO_DEVICE | CUDA_ERROR_STUB_LIBRARY)) => return Ok(0),
            started => started.map_err(driver("starting"))?,
        }
        let count = result::device::get_count().map_err(driver("counting the GPUs"))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The numbers of the GPUs of this machine that are new enough. It opens none of them.
    ///
    /// # Errors
    /// The driver, NVRTC or cuBLASLt is not installed, or the driver returns an error.
    pub fn new_enough() -> Result<Vec<usize>, CudaError> {
        Ok(new_enough((0..Self::count()?).map(capability)))
    }

    /// Returns the properties of the GPU and its free memory now.
    ///
    /// # Errors
    /// The driver returns an error.
    pub fn info(&self) -> Result<GpuInfo, CudaError> {
        let (free, total) = self.context.mem_get_info().map_err(driver("asking for the free memory"))?;
        Ok(GpuInfo {
            name: self.context.name().map_err(driver("asking for the card's name"))?,
            capability: self.context.compute_capability().map_err(driver("asking for the capability"))?,
            free,
            total,
        })
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }
}

#[cfg(test)]
mod tests {
    use super::{CudaError, check_capability, new_enough};

    #[test]
    fn a_gpu_older_than_the_kernels_is_refused_with_the_way_out() {
        assert_eq!(
            check_capability(0, (7, 5)).unwrap_err().to_string(),
            "GPU 0 has compute capability 7.5: use one with 8.0 (Ampere) or newer, or the CPU"
        );
        for capability in [(8, 0), (8, 9), (9, 0), (12, 0)] {
            assert!(check_capability(1, capability).is_ok(), "{capability:?}");
        }
    }

    #[test]
    fn a_gpu_that_is_too_old_is_left_out_and_a_gpu_without_an_answer_is_not() {
        let silent = Err(CudaError::NoDevice { ordinal: 2, count: 2 });
        let answers = [Ok((7, 5)), Ok((8, 0)), silent, Ok((6, 1)), Ok((12, 0))];
        assert_eq!(new_enough(answers.into_iter()), [1, 2, 4]);
        assert_eq!(new_enough([Ok((7, 5))].into_iter()), Vec::<usize>::new());
    }
}
