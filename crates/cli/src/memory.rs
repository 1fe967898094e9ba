//! Memory of processes, where the system reports it, and the program's allocator.

use dipaco_pipeline::machine_memory::bytes_after;

/// Returns freed memory to the system. A coordinator, a synchronizer and a server free many buffers of some megabytes,
/// which the allocator of glibc would keep.
#[cfg(unix)]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Peak resident memory of this process, in bytes.
pub(crate) fn peak() -> Option<u64> {
    bytes_after(&std::fs::read_to_string("/proc/self/status").unwrap_or_default(), "VmHWM:")
}

/// Makes the resident memory of this process its peak, where the system allows it (proc(5), `clear_refs`).
pub(crate) fn begin_peak() {
    // Without it the peak is that since the start of the process, which is an upper bound.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Resident memory of another process, in bytes.
pub(crate) fn of_process(id: u32) -> Option<u64> {
    bytes_after(&std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default(), "VmRSS:")
}
