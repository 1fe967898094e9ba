//! The checks of a GPU to train on.

use dipaco_path::{DeviceChoice, PathError, TrainDevice, numerics};

use super::finding::{Finding, with_causes};

/// The remedy for a GPU that fails.
const REMEDY: &str = "until then, give --device cpu";

pub(super) fn check() -> Vec<Finding> {
    let opened = TrainDevice::open(DeviceChoice::Cuda(0)).and_then(|gpu| Ok((gpu.describe()?, gpu)));
    match opened {
        Ok((found, gpu)) => vec![Finding::ok("GPU", found), arithmetic(numerics(&gpu))],
        Err(PathError::BuiltWithoutCuda) => {
            vec![Finding::ok("GPU", "not looked for: built without --features cuda")]
        }
        Err(error) if error.is_no_gpu() && !error.is_old_gpu() => {
            vec![Finding::ok("GPU", format!("none: {error}"))]
        }
        Err(error) => vec![unusable("GPU", &error)],
    }
}

/// The finding of small training steps on the GPU. They compile and run the kernels.
fn arithmetic(fingerprint: Result<String, PathError>) -> Finding {
    match fingerprint {
        Ok(fingerprint) => Finding::ok("GPU arithmetic", fingerprint),
        Err(error) => unusable("GPU arithmetic", &error),
    }
}

/// A GPU is there, and it fails or is too old.
fn unusable(check: &'static str, error: &PathError) -> Finding {
    Finding::warn(check, format!("the GPU can't be used: {}", with_causes(error)), REMEDY)
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingStatus;
    use super::*;

    #[test]
    fn a_gpu_that_computes_has_its_fingerprint() {
        let found = arithmetic(Ok("cuda-019f9291d31f02e0".to_owned()));
        assert_eq!((found.status, found.remedy), (FindingStatus::Ok, None));
        assert_eq!(found.found, "cuda-019f9291d31f02e0");
    }

    #[test]
    fn a_gpu_that_does_not_compute_is_a_warning_with_every_cause() {
        let cause = std::io::Error::other("the driver is too old");
        let found = arithmetic(Err(PathError::Unread(cause)));
        assert_eq!((found.check, found.status), ("GPU arithmetic", FindingStatus::Warn));
        assert_eq!(found.found, "the GPU can't be used: it can't be read; because: the driver is too old");
        assert!(found.remedy.is_some_and(|remedy| remedy.contains("--device cpu")));
    }
}
