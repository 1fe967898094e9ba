//! The option `--device`.

use clap::Args;
use dipaco_path::{DeviceChoice, TrainDevice};

use crate::error::CliError;

/// The device that computes. It is no key of the configuration, because the machines of a run may differ.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct DeviceOptions {
    /// Device that computes: auto is the first NVIDIA GPU, or the CPU where there is none; cpu; cuda is the first NVIDIA GPU,
    /// cuda:N the one with number N from 0; auto:N a GPU for process N of several on this machine, which take the GPUs in turn.
    /// A GPU needs a program that was built with --features cuda.
    #[arg(long, env = "DIPACO_DEVICE", default_value_t, value_name = "DEVICE")]
    device: DeviceChoice,
}

impl DeviceOptions {
    /// The chosen device.
    pub(crate) fn choice(self) -> DeviceChoice {
        self.device
    }

    /// Opens the device, for a command that computes in this process.
    pub(crate) fn open(self) -> Result<TrainDevice, CliError> {
        Ok(dipaco_pipeline::device::open(self.choice())?)
    }
}
