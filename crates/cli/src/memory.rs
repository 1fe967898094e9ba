//! Memory of the machine and of this process, where the system tells it, and the program's allocator.

/// Gives back to the system what a coordinator, a synchronizer or a server has freed: most of it are buffers of some
/// megabytes, which glibc keeps once it has seen one of their size (docs/results/2026-11-21-synchronisation.md).
#[cfg(unix)]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Memory of the machine in bytes, all of it and what programs can still have; `None` where the system does not say.
pub(crate) fn of_machine() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    bytes(&text, "MemTotal:").zip(bytes(&text, "MemAvailable:"))
}

/// The most memory that this process has held, in bytes.
pub(crate) fn peak() -> Option<u64> {
    bytes(&std::fs::read_to_string("/proc/self/status").unwrap_or_default(), "VmHWM:")
}

/// The memory that another process holds, in bytes.
pub(crate) fn of_process(id: u32) -> Option<u64> {
    bytes(&std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default(), "VmRSS:")
}

/// The value of a line `NAME  123 kB`.
fn bytes(text: &str, name: &str) -> Option<u64> {
    let kib: u64 =
        text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())?;
    Some(kib.saturating_mul(1024))
}
