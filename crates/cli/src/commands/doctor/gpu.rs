//! The check for a GPU to train on.

use dipaco_path::{DeviceChoice, PathError, TrainDevice};

use super::finding::Finding;

pub(super) fn check() -> Finding {
    match TrainDevice::open(DeviceChoice::Cuda(0)).and_then(|gpu| gpu.describe()) {
        Ok(gpu) => Finding::ok("GPU", gpu),
        Err(PathError::BuiltWithoutCuda) => {
            Finding::ok("GPU", "not looked for: built without --features cuda")
        }
        Err(error) if error.is_no_gpu() => Finding::ok("GPU", format!("none: {error}")),
        Err(error) => {
            let source = std::error::Error::source(&error).map(|source| format!(" ({source})"));
            let found = format!("it can't be used: {error}{}", source.unwrap_or_default());
            Finding::warn("GPU", found, "until then, give --device cpu")
        }
    }
}
