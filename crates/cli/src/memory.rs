//! Memory of processes, where the system reports it, and the program's allocator.

#[cfg(unix)]
use std::sync::atomic::{AtomicU32, Ordering};

use dipaco_pipeline::machine_memory::bytes_after;
#[cfg(unix)]
use tikv_jemalloc_ctl::{Access, AsName};

/// Returns freed memory to the system. A coordinator, a synchronizer and a server free many buffers of some megabytes,
/// which the allocator of glibc would keep.
#[cfg(unix)]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Bytes of a large buffer, at least: the allocator has an arena for these alone, after those of the threads.
#[cfg(unix)]
const LARGE: usize = 16 << 20;

/// Keeps the large buffers that this process frees. Small ones go back to the system as before.
///
/// A worker frees the buffers of a lease and takes as many for the next, and so do a coordinator and a synchronizer for an outer
/// step. Without this the system would hand out and zero each page again, which took a lease of 135M parameters seconds. The
/// buffers are few and of few sizes, so keeping them does not add up. No time limits it: the allocator's background thread
/// gives back all that was freed since a 200th part of such a time began.
pub(crate) fn keep_freed() {
    #[cfg(unix)]
    if let Err(error) = large_decay().and_then(|key| key.as_str().name().write(-1_isize)) {
        tracing::debug!(%error, "the allocator gives large buffers back");
    }
}

/// Name of the time for which large buffers are kept. Their arena begins with the first of them.
#[cfg(unix)]
fn large_decay() -> tikv_jemalloc_ctl::Result<String> {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(LARGE)));
    b"opt.narenas\0".name().read().map(decay)
}

/// Name of the time in milliseconds for which an arena keeps freed memory; -1 for ever.
#[cfg(unix)]
fn decay(arena: u32) -> String {
    format!("arena.{arena}.dirty_decay_ms\0")
}

/// Lets the calling thread, one of an event loop, take memory from one of two arenas.
///
/// Threads for blocking work come and go. With arenas of their own each would begin with fresh memory, beside what others have freed.
pub(crate) fn share_arena() {
    #[cfg(unix)]
    {
        const ARENAS: u32 = 2;
        static THREADS: AtomicU32 = AtomicU32::new(0);
        let arena = THREADS.fetch_add(1, Ordering::Relaxed) % ARENAS;
        if let Err(error) = b"thread.arena\0".name().write(arena) {
            tracing::debug!(%error, "a thread keeps its own arena");
        }
    }
}

/// Gives the memory that this process has freed so far back to the system. Later frees are kept for as long as before.
pub(crate) fn give_freed_back() {
    #[cfg(unix)]
    {
        let arenas = b"arenas.narenas\0".name().read().unwrap_or(0_u32);
        for arena in 0..arenas {
            let key = decay(arena);
            // An arena that no thread has used has no time. A time of 0 gives everything back at once.
            let Ok(kept_for) = Access::<isize>::read(key.as_str().name()) else { continue };
            let given = key.as_str().name().write(0_isize).and_then(|()| key.as_str().name().write(kept_for));
            if let Err(error) = given {
                tracing::debug!(%error, "the allocator keeps freed memory");
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

    /// Uses 256 MiB, and frees them. Returns the resident memory before that. Other tests of this process use far less meanwhile.
    fn use_and_free(resident: impl Fn() -> u64) -> u64 {
        let used = vec![1_u8; 256 << 20];
        assert!(used.iter().all(|&byte| byte == 1));
        resident()
    }

    // One test, because the times are those of the whole process.
    #[test]
    fn large_buffers_are_kept_and_go_back_when_asked_for() {
        let resident = || of_process(std::process::id()).unwrap();
        keep_freed();
        let key = large_decay().unwrap();
        let kept_for = || Access::<isize>::read(key.as_str().name()).unwrap();
        assert_eq!(kept_for(), -1);
        assert!(Access::<isize>::read(b"arenas.dirty_decay_ms\0".name()).unwrap() > 0);
        let before = use_and_free(resident);
        assert!(resident() + (64 << 20) > before);
        // It is the arena of large buffers: they go back when it keeps nothing.
        key.as_str().name().write(0_isize).unwrap();
        assert!(resident() + (192 << 20) < before, "{} of {before} bytes are left", resident());
        keep_freed();
        let before = use_and_free(resident);
        give_freed_back();
        assert!(resident() + (192 << 20) < before, "{} of {before} bytes are left", resident());
        assert_eq!(kept_for(), -1);
    }

    #[test]
    fn threads_share_two_arenas() {
        let arena = || {
            share_arena();
            b"thread.arena\0".name().read().unwrap()
        };
        let arenas: Vec<u32> = (0..6).map(|_| std::thread::spawn(arena).join().unwrap()).collect();
        assert!(arenas.iter().all(|arena| *arena < 2) && arenas[..2] != [arenas[0]; 2], "{arenas:?}");
    }
}
