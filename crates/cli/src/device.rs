//! The option `--device`.

use clap::{Args, ValueEnum};
use dipaco_path::{DeviceChoice, TrainDevice};

use crate::error::CliError;

/// Where to train. It is no key of the configuration: the machines of a run may differ.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DeviceOptions {
    /// Where to train: the first NVIDIA GPU (in a program built with --features cuda), or the CPU.
    #[arg(long, env = "DIPACO_DEVICE", value_enum, default_value_t, value_name = "DEVICE")]
    device: DeviceOption,
}

/// The values of `--device`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum DeviceOption {
    /// The GPU, or the CPU where there is none.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU.
    Cuda,
}

impl DeviceOptions {
    /// What is asked for.
    pub(crate) fn choice(self) -> DeviceChoice {
        match self.device {
            DeviceOption::Auto => DeviceChoice::Auto,
            DeviceOption::Cpu => DeviceChoice::Cpu,
            DeviceOption::Cuda => DeviceChoice::Cuda,
        }
    }

    /// Finds the device for a command that computes itself.
    pub(crate) fn open(self) -> Result<TrainDevice, CliError> {
        Ok(dipaco_pipeline::device::open(self.choice())?)
    }
}
