//! Checks of processor, memory and limits of the operating system.

use dipaco_model::{KernelChoice, kernel_choice};
use dipaco_path::{TrainDevice, numerics};
use dipaco_pipeline::machine_memory::{MachineMemory, machine_memory};
use dipaco_pipeline::memory_nodes::memory_nodes;
use dipaco_telemetry::human;
use rustix::process::{Resource, getrlimit};

use super::finding::Finding;

/// Below this, the defaults do not fit beside an operating system.
const LITTLE_MEMORY: u64 = 2_000_000_000;
/// A coordinator keeps a file per path open, and a server a socket per client.
const FEW_FILES: u64 = 1024;

pub(super) fn check() -> Vec<Finding> {
    let machine = [cores(), nodes(), features(), kernels()].into_iter().chain(arithmetic());
    machine.chain([memory(), open_files()]).collect()
}

fn cores() -> Finding {
    match std::thread::available_parallelism() {
        Ok(cores) => Finding::ok("cores", cores.to_string()),
        Err(error) => Finding::warn("cores", error.to_string(), "set train.threads_per_worker by hand"),
    }
}

/// The memory nodes, and how workers use them.
fn nodes() -> Finding {
    let nodes = memory_nodes();
    match nodes.as_slice() {
        [] => Finding::ok("memory nodes", "not known on this system"),
        [_] => Finding::ok("memory nodes", "1"),
        several => {
            let lists: Vec<String> = several.iter().map(ToString::to_string).collect();
            let found = format!("{}, of the processors {}", several.len(), lists.join(" and "));
            Finding::ok("memory nodes", found)
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn features() -> Finding {
    let found: Vec<&str> = [
        ("AVX2", is_x86_feature_detected!("avx2")),
        ("FMA", is_x86_feature_detected!("fma")),
        ("AVX-512", is_x86_feature_detected!("avx512f")),
    ]
    .into_iter()
    .filter_map(|(name, there)| there.then_some(name))
    .collect();
    if found.contains(&"AVX2") && found.contains(&"FMA") {
        return Finding::ok("processor", format!("x86-64 with {}", found.join(", ")));
    }
    let remedy = "use a processor with AVX2 and FMA: without them training takes several times as long";
    Finding::warn("processor", "x86-64 without AVX2 and FMA", remedy)
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Finding {
    Finding::ok("processor", std::env::consts::ARCH)
}

/// The set of kernels that products use, and its kernels for the int8 of served weights.
fn kernels() -> Finding {
    match kernel_choice() {
        Ok(choice) if choice.has_problem => {
            let remedy = "start the program where the system permits AMX, or name a set with DIPACO_SIMD";
            Finding::warn("kernels", describe(choice), remedy)
        }
        Ok(choice) => Finding::ok("kernels", describe(choice)),
        Err(error) => Finding::fail("kernels", error.to_string(), "unset DIPACO_SIMD"),
    }
}

fn describe(choice: &KernelChoice) -> String {
    let KernelChoice { set, int8, reason, .. } = choice;
    format!("{set}: {}, int8 with {int8}; {reason}", set.description())
}

/// The fingerprint by which a coordinator tells devices that compute other bits; `None` without kernels, which is a finding of its
/// own.
fn arithmetic() -> Option<Finding> {
    let fingerprint = kernel_choice().is_ok().then(|| numerics(&TrainDevice::Cpu))?;
    Some(match fingerprint {
        Ok(fingerprint) => Finding::ok("arithmetic", fingerprint),
        Err(error) => Finding::fail("arithmetic", error.to_string(), "report this: it is a bug"),
    })
}

fn memory() -> Finding {
    let Some(MachineMemory { total, available: free }) = machine_memory() else {
        let remedy = "make sure of at least 2 GB by hand";
        return Finding::warn("memory", "its size is not known on this system", remedy);
    };
    let found = format!("{} free of {}", human::bytes(free), human::bytes(total));
    if free < LITTLE_MEMORY {
        return Finding::warn(
            "memory",
            found,
            "close other programs, or lower train.batch and model.hidden_size",
        );
    }
    Finding::ok("memory", found)
}

fn open_files() -> Finding {
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < FEW_FILES => {
            Finding::warn("open files", format!("limit {limit}"), format!("raise it: ulimit -n {FEW_FILES}"))
        }
        Some(limit) => Finding::ok("open files", format!("limit {}", human::integer(limit))),
        None => Finding::ok("open files", "no limit"),
    }
}
