//! Memory of processes, where the system reports it, and the program's allocator.

use dipaco_pipeline::machine_memory::bytes_after;
#[cfg(unix)]
use tikv_jemalloc_ctl::{Access, AsName};

/// Returns freed memory to the system. A coordinator, a synchronizer and a server free many buffers of some megabytes,
/// which the allocator of glibc would keep.
#[cfg(unix)]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Times in milliseconds for which the arenas of the allocator, from now on, keep freed memory. The arena of large buffers begins
/// with the first of them.
#[cfg(unix)]
const DECAYS: [&str; 2] = ["arenas.dirty_decay_ms\0", "arenas.muzzy_decay_ms\0"];

/// Time in milliseconds over which the arenas give freed memory back, after [`keep_freed`]. A buffer goes back as a whole, so a
/// large one goes after the first of its 200 parts, a second and a half. A longer time, or none at all, keeps more: but then the
/// buffers of many sizes of a coordinator fill new memory with every outer step (`docs/results/speed.md`, "A lease").
const KEPT_MS: isize = 300_000;

/// Keeps the large buffers that this process frees for some time. To be called before it has any.
///
/// A worker frees the buffers of a lease and takes as many for the next, and so do a coordinator and a synchronizer for an outer
/// step. Without this the system would hand out and zero each page again, which took a lease seconds.
pub(crate) fn keep_freed() {
    #[cfg(unix)]
    for decay in DECAYS {
        if let Err(error) = decay.name().write(KEPT_MS) {
            tracing::debug!(%error, "the allocator gives freed memory back");
        }
    }
}

/// Gives the memory that this process has freed so far back to the system. Later frees are kept for as long as before.
pub(crate) fn give_freed_back() {
    #[cfg(unix)]
    {
        let arenas = b"arenas.narenas\0".name().read().unwrap_or(0_u32);
        for arena in 0..arenas {
            for kind in ["dirty", "muzzy"] {
                let key = format!("arena.{arena}.{kind}_decay_ms\0");
                // An arena that no thread has used has no times. A time of 0 gives everything back at once.
                let Ok(kept_for) = Access::<isize>::read(key.as_str().name()) else { continue };
                let given =
                    key.as_str().name().write(0_isize).and_then(|()| key.as_str().name().write(kept_for));
                if let Err(error) = given {
                    tracing::debug!(%error, "the allocator keeps freed memory");
                }
            }
        }
    }
}

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

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn freed_memory_is_kept_longer_once_asked_for() {
        let read = || DECAYS.map(|decay| Access::<isize>::read(decay.name()).unwrap());
        assert!(read().iter().all(|&milliseconds| milliseconds < KEPT_MS), "{:?}", read());
        keep_freed();
        assert_eq!(read(), [KEPT_MS; 2]);
    }

    #[test]
    fn freed_memory_goes_back_when_asked_for() {
        let resident = || of_process(std::process::id()).unwrap();
        let freed = vec![1_u8; 64 << 20];
        assert!(freed.iter().all(|&byte| byte == 1));
        let before = resident();
        drop(freed);
        give_freed_back();
        assert!(resident() + (60 << 20) < before, "{} of {before} bytes are left", resident());
    }
}
