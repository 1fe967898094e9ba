//! The option `--device`.

use clap::{Args, ValueEnum};
use dipaco_path::{DeviceChoice, TrainDevice};

use crate::error::CliError;

/// The device to train on. It is no key of the configuration, because the machines of a run may differ.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DeviceOptions {
    /// Device to train on. A GPU needs a program that was built with --features cuda.
    #[arg(long, env = "DIPACO_DEVICE", value_enum, default_value_t, value_name = "DEVICE")]
    device: DeviceOption,
}

/// The values of `--device`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum DeviceOption {
    /// The first NVIDIA GPU, or the CPU where there is none.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The first NVIDIA GPU.
    Cuda,
}

impl DeviceOptions {
    /// The chosen device.
    pub(crate) fn choice(self) -> DeviceChoice {
        match self.device {
            DeviceOption::Auto => DeviceChoice::Auto,
            DeviceOption::Cpu => DeviceChoice::Cpu,
            DeviceOption::Cuda => DeviceChoice::Cuda,
        }
    }

    /// Opens the device, for a command that computes in this process.
    pub(crate) fn open(self) -> Result<TrainDevice, CliError> {
        Ok(dipaco_pipeline::device::open(self.choice())?)
    }
}
