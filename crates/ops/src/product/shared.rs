//! A slice that tasks write at the same time.

use std::ops::Range;

/// A pointer to a slice of which each task writes its own part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared<T> {
    start: *mut T,
    length: usize,
}

// SAFETY: the pointer comes from an exclusive borrow, and the methods' contracts give each thread parts of its own.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn new(slice: &mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), length: slice.len() }
    }

    /// Number of elements of the slice.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// The pointer to an element, or to the end of the slice.
    pub(super) fn at(&self, index: usize) -> *mut T {
        assert!(index <= self.length, "an element outside of the slice");
        self.start.wrapping_add(index)
    }

    /// Part of the slice.
    ///
    /// # Safety
    /// No two parts that exist at the same time may overlap, and the slice must still be borrowed.
    #[expect(clippy::mut_from_ref, reason = "the contract keeps parts disjoint")]
    #[inline(always)]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.length, "a part outside of the slice");
        // SAFETY: inside the slice by the assertion, disjoint by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// Part of the slice, to read.
    ///
    /// # Safety
    /// Nothing may write the part while it exists, and the slice must still be borrowed.
    #[inline(always)]
    pub(crate) unsafe fn read<'a>(&self, range: Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.length, "a part outside of the slice");
        // SAFETY: inside the slice by the assertion, not written by this function's contract.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }
}
