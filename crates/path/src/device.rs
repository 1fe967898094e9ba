//! Devices that train and read paths: the CPU, and with the feature `cuda` an NVIDIA GPU.

use dipaco_model::{ModelError, OpsError, kernel_choice};

use crate::PathError;

/// The device that the user asks for. It is a setting of a machine, not of a run: the workers of a run may choose
/// differently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeviceChoice {
    /// The first GPU that is new enough, and the CPU where there is none.
    #[default]
    Auto,
    /// A GPU for the process with this number, from 0, of several on a machine: the processes take the GPUs that are
    /// new enough in turn. The CPU where there is none.
    InTurn(usize),
    /// The CPU.
    Cpu,
    /// The GPU with this number, from 0.
    Cuda(usize),
}

impl std::fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::InTurn(process) => write!(f, "auto:{process}"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(0) => f.write_str("cuda"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl std::str::FromStr for DeviceChoice {
    type Err = DeviceChoiceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let number = |prefix| text.strip_prefix(prefix).and_then(|number: &str| number.parse().ok());
                let choice = number("cuda:").map(Self::Cuda).or_else(|| number("auto:").map(Self::InTurn));
                choice.ok_or(DeviceChoiceError)
            }
        }
    }
}

/// A text that names no device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("give auto, cpu, cuda, cuda:N for the GPU with number N from 0, or auto:N for process N of several")]
pub struct DeviceChoiceError;

/// A device that trains and reads paths.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum TrainDevice {
    /// The CPU.
    #[default]
    Cpu,
    /// A GPU.
    #[cfg(feature = "cuda")]
    Cuda(dipaco_cuda::Gpu),
}

/// The model's shape for rows of at most `tokens` tokens. A GPU has memory for rows of the context, so the context is that of the
/// longest row. No number of a shorter row depends on it.
#[cfg(feature = "cuda")]
pub(crate) fn shape_for_rows(model: &dipaco_model::ModelConfig, tokens: usize) -> dipaco_model::ModelConfig {
    dipaco_model::ModelConfig { context: tokens.clamp(1, model.context), ..model.clone() }
}

/// The number of the GPU for a process: the processes take the usable GPUs in turn, those that are not too old. GPU 0
/// if there is none: the error of opening it says what to do.
///
/// A process must not take the CPU beside others on GPUs. Its arithmetic would have another fingerprint, and it would
/// wait for a lease for ever.
#[cfg(any(feature = "cuda", test))]
fn gpu_in_turn(process: usize, usable: &[usize]) -> usize {
    let turn = process.checked_rem(usable.len());
    turn.and_then(|turn| usable.get(turn)).copied().unwrap_or(0)
}

impl TrainDevice {
    /// Opens the device. [`DeviceChoice::Auto`] and [`DeviceChoice::InTurn`] take the CPU if the machine has no driver or no
    /// GPU that is new enough, and log the reason. A GPU that fails is an error: otherwise it would idle unnoticed.
    ///
    /// # Errors
    /// When the user asks for a GPU and the machine has none, when this program was built without CUDA, or when a GPU
    /// can't be opened.
    #[cfg(feature = "cuda")]
    pub fn open(choice: DeviceChoice) -> Result<Self, PathError> {
        use dipaco_cuda::Gpu;
        let in_turn = |process| Gpu::new_enough().and_then(|usable| Gpu::open(gpu_in_turn(process, &usable)));
        let opened = match choice {
            DeviceChoice::Cpu => return Ok(Self::Cpu),
            DeviceChoice::Cuda(number) => Gpu::open(number),
            DeviceChoice::InTurn(process) => in_turn(process),
            DeviceChoice::Auto => in_turn(0),
        };
        match opened.map_err(PathError::from) {
            Ok(gpu) => Ok(Self::Cuda(gpu)),
            Err(error) if !matches!(choice, DeviceChoice::Cuda(_)) && error.is_no_gpu() => {
                tracing::info!("computing on the CPU: {error}");
                Ok(Self::Cpu)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the device: the CPU, because this program was built without the feature `cuda`.
    ///
    /// # Errors
    /// When the user asks for a GPU.
    #[cfg(not(feature = "cuda"))]
    pub fn open(choice: DeviceChoice) -> Result<Self, PathError> {
        match choice {
            DeviceChoice::Auto | DeviceChoice::InTurn(_) | DeviceChoice::Cpu => Ok(Self::Cpu),
            DeviceChoice::Cuda(_) => Err(PathError::BuiltWithoutCuda),
        }
    }

    /// The number of GPUs of this machine that the program may use, with those that are too old.
    ///
    /// # Errors
    /// The driver or a library of CUDA is not installed, or the driver returns an error.
    #[cfg(feature = "cuda")]
    pub fn gpu_count() -> Result<usize, PathError> {
        Ok(dipaco_cuda::Gpu::count()?)
    }

    /// The number of GPUs of this machine.
    ///
    /// # Errors
    /// Always, because this program was built without the feature `cuda`.
    #[cfg(not(feature = "cuda"))]
    pub fn gpu_count() -> Result<usize, PathError> {
        Err(PathError::BuiltWithoutCuda)
    }

    /// True if this is the CPU.
    #[must_use]
    pub fn is_cpu(&self) -> bool {
        matches!(self, Self::Cpu)
    }

    /// Name for records of results, which other devices round differently: the set of kernels of a CPU, such as
    /// `cpu-avx512`, or the GPU's name and compute capability.
    ///
    /// # Errors
    /// A forced set of kernels can't run, or the GPU's driver refuses.
    pub fn name(&self) -> Result<String, PathError> {
        match self {
            Self::Cpu => {
                let choice = kernel_choice().map_err(OpsError::from).map_err(ModelError::from)?;
                Ok(format!("cpu-{}", choice.set))
            }
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => {
                let dipaco_cuda::GpuInfo { name, capability: (major, minor), .. } = gpu.info()?;
                Ok(format!("{name}, compute capability {major}.{minor}"))
            }
        }
    }

    /// Description for reports: `CPU`, or the GPU's name, compute capability and memory.
    ///
    /// # Errors
    /// When the GPU's driver refuses.
    pub fn describe(&self) -> Result<String, PathError> {
        match self {
            Self::Cpu => Ok("CPU".to_owned()),
            #[cfg(feature = "cuda")]
            Self::Cuda(gpu) => {
                let dipaco_cuda::GpuInfo { name, capability: (major, minor), free, total } = gpu.info()?;
                let [free, total] = [free, total].map(|bytes| bytes >> 20);
                Ok(format!("{name}, compute capability {major}.{minor}, {free} MiB free of {total}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_one_spelling() {
        for text in ["auto", "auto:0", "auto:3", "cpu", "cuda", "cuda:1", "cuda:12"] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap().to_string(), text);
        }
        assert_eq!("cuda:0".parse::<DeviceChoice>(), Ok(DeviceChoice::Cuda(0)));
        for text in ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:x", "cuda1", "auto:", "auto:x"] {
            assert_eq!(text.parse::<DeviceChoice>(), Err(DeviceChoiceError), "{text}");
        }
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn without_the_feature_a_gpu_is_refused_and_the_rest_is_the_cpu() {
        let error = TrainDevice::open(DeviceChoice::Cuda(0)).unwrap_err();
        assert!(error.to_string().contains("build it with --features cuda"), "{error}");
        assert!(TrainDevice::open(DeviceChoice::Auto).unwrap().is_cpu());
        assert!(TrainDevice::open(DeviceChoice::InTurn(1)).unwrap().is_cpu());
        assert!(TrainDevice::open(DeviceChoice::Cpu).unwrap().is_cpu());
        assert!(matches!(TrainDevice::gpu_count(), Err(PathError::BuiltWithoutCuda)));
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn a_gpu_that_is_too_old_is_none_and_a_gpu_that_fails_is_one() {
        let old = dipaco_cuda::CudaError::Capability { ordinal: 0, major: 7, minor: 5 };
        let old = PathError::from(old);
        assert!(old.is_no_gpu() && old.is_old_gpu());
        let log = "no such instruction".to_owned();
        let failed = dipaco_cuda::CudaError::Compile { architecture: "compute_90".to_owned(), log };
        let failed = PathError::from(failed);
        assert!(!failed.is_no_gpu() && !failed.is_old_gpu());
    }

    #[test]
    fn processes_are_spread_evenly_over_the_gpus_that_are_not_too_old() {
        let numbers = |usable: &[usize]| [0, 1, 2, 3].map(|process| gpu_in_turn(process, usable));
        assert_eq!(numbers(&[0, 1, 2]), [0, 1, 2, 0]);
        assert_eq!(numbers(&[1, 2]), [1, 2, 1, 2]);
        assert_eq!(numbers(&[0, 2]), [0, 2, 0, 2]);
        assert_eq!(numbers(&[2]), [2; 4]);
        assert_eq!(numbers(&[]), [0; 4]);
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn without_a_gpu_one_that_is_asked_for_is_an_error_and_auto_is_the_cpu() {
        let auto = TrainDevice::open(DeviceChoice::Auto);
        match TrainDevice::open(DeviceChoice::Cuda(0)) {
            Ok(gpu) => assert!(!gpu.is_cpu() && !auto.unwrap().is_cpu()),
            Err(error) if error.is_no_gpu() => {
                let message = error.to_string();
                let reasons = ["libcuda was not found", "no GPU number 0", "(Ampere) or newer"];
                assert!(reasons.iter().any(|reason| message.contains(reason)), "{error}");
                assert!(auto.unwrap().is_cpu());
                assert!(TrainDevice::open(DeviceChoice::InTurn(1)).unwrap().is_cpu());
            }
            // A GPU that lacks a library: `auto` must not hide it.
            Err(error) => assert_eq!(auto.unwrap_err().to_string(), error.to_string()),
        }
        assert!(TrainDevice::open(DeviceChoice::Cpu).unwrap().is_cpu());
    }
}
