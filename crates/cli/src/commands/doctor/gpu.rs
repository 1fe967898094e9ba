//! The checks of the GPUs to train on.

use dipaco_path::{DeviceChoice, PathError, TrainDevice, numerics};

use super::finding::{Finding, with_causes};

/// The remedy where no GPU can be used.
const NO_GPU: &str = "until then, give --device cpu";
/// The remedy for a GPU that fails beside another that can be used.
const ONE_FAILS: &str = "until then, leave it out of CUDA_VISIBLE_DEVICES";

/// A GPU as training finds it.
enum FoundGpu<G> {
    Usable {
        gpu: G,
        description: String,
    },
    /// Training passes over it, for this reason.
    TooOld(String),
    /// Training ends with this error when it takes the GPU.
    Failing(String),
}

pub(super) fn check() -> Vec<Finding> {
    match TrainDevice::gpu_count() {
        Ok(0) => {
            vec![Finding::ok("GPU", "none: the driver knows no GPU (CUDA_VISIBLE_DEVICES limits which)")]
        }
        Ok(count) => findings(&(0..count).map(find).collect::<Vec<_>>(), numerics),
        Err(PathError::BuiltWithoutCuda) => {
            vec![Finding::ok("GPU", "not looked for: built without --features cuda")]
        }
        Err(error) if error.is_no_gpu() => vec![Finding::ok("GPU", format!("none: {error}"))],
        Err(error) => vec![unusable("GPU", "the GPU", &with_causes(&error), NO_GPU)],
    }
}

/// Opens the GPU with this number.
fn find(number: usize) -> FoundGpu<TrainDevice> {
    let opened = TrainDevice::open(DeviceChoice::Cuda(number)).and_then(|gpu| Ok((gpu.describe()?, gpu)));
    match opened {
        Ok((description, gpu)) => FoundGpu::Usable { gpu, description },
        Err(error) if error.is_old_gpu() => FoundGpu::TooOld(with_causes(&error)),
        Err(error) => FoundGpu::Failing(with_causes(&error)),
    }
}

/// A finding for each GPU, and one of the arithmetic of the first that can be used.
fn findings<G>(gpus: &[FoundGpu<G>], numerics: impl FnOnce(&G) -> Result<String, PathError>) -> Vec<Finding> {
    let first = gpus.iter().enumerate().find_map(|(number, gpu)| match gpu {
        FoundGpu::Usable { gpu, .. } => Some((number, gpu)),
        FoundGpu::TooOld(_) | FoundGpu::Failing(_) => None,
    });
    let finding = |(number, gpu): (usize, &FoundGpu<G>)| match gpu {
        FoundGpu::Usable { description, .. } => {
            Finding::ok("GPU", format!("cuda:{number} can be used: {description}"))
        }
        FoundGpu::TooOld(reason) if first.is_some() => {
            Finding::ok("GPU", format!("cuda:{number} is passed over: {reason}"))
        }
        FoundGpu::TooOld(problem) | FoundGpu::Failing(problem) => {
            let remedy = if first.is_some() { ONE_FAILS } else { NO_GPU };
            unusable("GPU", &format!("cuda:{number}"), problem, remedy)
        }
    };
    let computed = first.map(|(number, gpu)| arithmetic(number, numerics(gpu)));
    gpus.iter().enumerate().map(finding).chain(computed).collect()
}

/// The finding of small training steps on a GPU. They compile and run the kernels.
fn arithmetic(number: usize, fingerprint: Result<String, PathError>) -> Finding {
    match fingerprint {
        Ok(fingerprint) => Finding::ok("GPU arithmetic", fingerprint),
        Err(error) => unusable("GPU arithmetic", &format!("cuda:{number}"), &with_causes(&error), NO_GPU),
    }
}

fn unusable(check: &'static str, gpu: &str, problem: &str, remedy: &'static str) -> Finding {
    Finding::warn(check, format!("{gpu} can't be used: {problem}"), remedy)
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingStatus;
    use super::*;

    fn usable(gpu: &'static str) -> FoundGpu<&'static str> {
        FoundGpu::Usable { gpu, description: format!("NVIDIA {gpu}") }
    }

    fn too_old() -> FoundGpu<&'static str> {
        FoundGpu::TooOld("its compute capability is 7.5".to_owned())
    }

    fn texts(findings: &[Finding]) -> Vec<(&str, FindingStatus, &str)> {
        findings.iter().map(|finding| (finding.check, finding.status, finding.found.as_str())).collect()
    }

    #[test]
    fn every_gpu_has_a_finding_and_the_first_that_can_be_used_computes() {
        let failing = FoundGpu::Failing("the driver failed".to_owned());
        let gpus = [too_old(), failing, usable("H200"), usable("A100")];
        let found = findings(&gpus, |gpu| Ok(format!("cuda-{gpu}")));
        assert_eq!(
            texts(&found),
            [
                ("GPU", FindingStatus::Ok, "cuda:0 is passed over: its compute capability is 7.5"),
                ("GPU", FindingStatus::Warn, "cuda:1 can't be used: the driver failed"),
                ("GPU", FindingStatus::Ok, "cuda:2 can be used: NVIDIA H200"),
                ("GPU", FindingStatus::Ok, "cuda:3 can be used: NVIDIA A100"),
                ("GPU arithmetic", FindingStatus::Ok, "cuda-H200"),
            ]
        );
        assert!(found[1].remedy.as_ref().is_some_and(|remedy| remedy.contains("CUDA_VISIBLE_DEVICES")));
    }

    #[test]
    fn without_a_gpu_that_can_be_used_one_that_is_too_old_is_a_warning_with_the_way_out() {
        let found = findings(&[too_old()], |_| panic!("no GPU computes"));
        let warning = "cuda:0 can't be used: its compute capability is 7.5";
        assert_eq!(texts(&found), [("GPU", FindingStatus::Warn, warning)]);
        assert!(found[0].remedy.as_ref().is_some_and(|remedy| remedy.contains("--device cpu")));
    }

    #[test]
    fn a_gpu_that_does_not_compute_is_a_warning_with_every_cause() {
        let cause = std::io::Error::other("the driver is too old");
        let found = findings(&[too_old(), usable("H200")], |_| Err(PathError::Unread(cause)));
        let problem = "cuda:1 can't be used: it can't be read; because: the driver is too old";
        assert_eq!(texts(&found).last(), Some(&("GPU arithmetic", FindingStatus::Warn, problem)));
        assert!(found[2].remedy.as_ref().is_some_and(|remedy| remedy.contains("--device cpu")));
    }
}
