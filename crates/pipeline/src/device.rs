//! The device that a step computes on.

pub use dipaco_path::{DeviceChoice, TrainDevice};

use crate::error::PipelineError;

/// Opens the device for a step that computes in this process. A GPU is named in the log.
///
/// # Errors
/// [`PipelineError::Path`] when the device does not exist or this program was built without it.
pub fn open(choice: DeviceChoice) -> Result<TrainDevice, PipelineError> {
    let device = TrainDevice::open(choice)?;
    if !device.is_cpu() {
        tracing::info!("computing on the GPU: {}", device.describe()?);
    }
    Ok(device)
}
