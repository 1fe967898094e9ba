//! Devices that train paths: the CPU, and with the feature `cuda` an NVIDIA GPU.

use crate::PathError;

/// The device that the user asks for. It is a setting of a machine, not of a run: the workers of a run may choose
/// differently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeviceChoice {
    /// The first GPU, and the CPU where there is none.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The first GPU.
    Cuda,
}

impl DeviceChoice {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

/// A device that trains paths.
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

impl TrainDevice {
    /// Opens the device. [`DeviceChoice::Auto`] takes the CPU if the machine has no driver or no GPU, and logs the
    /// reason. A GPU that cannot be used is an error: otherwise it would idle unnoticed.
    ///
    /// # Errors
    /// When the user asks for a GPU and the machine has none, when this program was built without CUDA, or when a GPU
    /// can't be opened.
    #[cfg(feature = "cuda")]
    pub fn open(choice: DeviceChoice) -> Result<Self, PathError> {
        if choice == DeviceChoice::Cpu {
            return Ok(Self::Cpu);
        }
        match dipaco_cuda::Gpu::open(0).map_err(PathError::from) {
            Ok(gpu) => Ok(Self::Cuda(gpu)),
            Err(error) if choice == DeviceChoice::Auto && error.is_no_gpu() => {
                tracing::info!("training on the CPU: {error}");
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
            DeviceChoice::Auto | DeviceChoice::Cpu => Ok(Self::Cpu),
            DeviceChoice::Cuda => Err(PathError::BuiltWithoutCuda),
        }
    }

    /// True if this is the CPU.
    #[must_use]
    pub fn is_cpu(&self) -> bool {
        matches!(self, Self::Cpu)
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

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn without_the_feature_a_gpu_is_refused_and_the_rest_is_the_cpu() {
        let error = TrainDevice::open(DeviceChoice::Cuda).unwrap_err();
        assert!(error.to_string().contains("build it with --features cuda"), "{error}");
        assert!(TrainDevice::open(DeviceChoice::Auto).unwrap().is_cpu());
        assert!(TrainDevice::open(DeviceChoice::Cpu).unwrap().is_cpu());
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn without_a_gpu_one_that_is_asked_for_is_an_error_and_auto_is_the_cpu() {
        let auto = TrainDevice::open(DeviceChoice::Auto);
        match TrainDevice::open(DeviceChoice::Cuda) {
            Ok(gpu) => assert!(!gpu.is_cpu() && !auto.unwrap().is_cpu()),
            Err(error) if error.is_no_gpu() => {
                let message = error.to_string();
                assert!(
                    message.contains("libcuda was not found") || message.contains("no GPU number 0"),
                    "{error}"
                );
                assert!(auto.unwrap().is_cpu());
            }
            // A GPU that lacks a library: `auto` must not hide it.
            Err(error) => assert_eq!(auto.unwrap_err().to_string(), error.to_string()),
        }
        assert!(TrainDevice::open(DeviceChoice::Cpu).unwrap().is_cpu());
    }
}
