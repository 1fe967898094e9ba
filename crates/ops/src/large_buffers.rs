//! An allocator whose large buffers lie in huge pages.

use std::alloc::{GlobalAlloc, Layout};

use crate::huge_pages;

/// Bytes of a large buffer, at least. The buffers of small models keep ordinary pages: they would gain nothing, and huge pages that
/// are half in use would cost a small worker some percent of its memory.
const LARGE: usize = 64 << 20;

/// The allocator `A`, with large buffers in huge pages from their first use, where the system has such pages on request.
///
/// A first lease of 135M parameters touches 1.5 million pages of 4 KiB. The system clears each in a fault of its own, which took
/// most of the lease's time (`docs/results/speed.md`, "A lease").
#[derive(Clone, Copy, Debug, Default)]
pub struct LargeInHugePages<A>(pub A);

// SAFETY: every buffer is that of `A`, and the advice about its pages changes neither contents nor rights.
unsafe impl<A: GlobalAlloc> GlobalAlloc for LargeInHugePages<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        advised(unsafe { self.0.alloc(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, buffer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`, and the buffer is that of `A`.
        unsafe { self.0.dealloc(buffer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc_zeroed`.
        advised(unsafe { self.0.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, buffer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`, and the buffer is that of `A`.
        advised(unsafe { self.0.realloc(buffer, layout, size) }, size)
    }
}

/// Asks for huge pages if a buffer is large, and returns it. Fresh memory has no pages yet.
fn advised(buffer: *mut u8, size: usize) -> *mut u8 {
    if size >= LARGE && !buffer.is_null() {
        huge_pages::prefer(buffer, size);
    }
    buffer
}

#[cfg(test)]
#[cfg(all(target_os = "linux", not(miri)))]
mod tests {
    use std::alloc::System;

    use super::*;
    use crate::huge_pages::tests::is_marked;

    #[test]
    fn large_buffers_alone_are_marked() {
        let system = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        let allocator = LargeInHugePages(System);
        let layout = |size| Layout::from_size_align(size, 64).unwrap();
        for (size, marked) in [(LARGE / 4, false), (2 * LARGE, system)] {
            // SAFETY: both layouts have a size, and each buffer goes back with its own layout.
            unsafe {
                let filled = allocator.alloc(layout(size));
                let zeroed = allocator.alloc_zeroed(layout(size));
                assert_eq!([filled, zeroed].map(|buffer| is_marked(buffer.addr() + size / 2)), [marked; 2]);
                assert!(std::slice::from_raw_parts(zeroed, size).iter().all(|&byte| byte == 0));
                filled.write_bytes(7, size);
                let grown = allocator.realloc(filled, layout(size), 2 * size + 2 * LARGE);
                assert_eq!(is_marked(grown.addr() + size), system, "grown to {} bytes", 2 * size + 2 * LARGE);
                assert!(std::slice::from_raw_parts(grown, size).iter().all(|&byte| byte == 7));
                allocator.dealloc(grown, layout(2 * size + 2 * LARGE));
                allocator.dealloc(zeroed, layout(size));
            }
        }
    }
}
