//! Aligned memory that is reused from step to step.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// f32 elements of a cache line, the unit of a buffer.
pub(crate) const LINE: usize = 16;

/// A slice of f32 that starts on a cache line, so that vector loads of packed operands never cross a line. It keeps the
/// contents that its last user left.
#[derive(Default)]
pub(crate) struct Buffer {
    /// A line longer than the capacity.
    memory: Vec<f32>,
    /// The first element on a line.
    start: usize,
    length: usize,
}

impl Buffer {
    /// Zeros. Large memory comes from the system as zeros, so no page is touched here. A vector of aligned lines would be
    /// written, which costs as much as a step of arithmetic on it.
    fn new(length: usize) -> Self {
        let memory = vec![0f32; length.next_multiple_of(LINE) + LINE];
        // Elements until the next line: fewer than a line has. An address that can't be aligned costs speed only.
        let start = memory.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        Self { memory, start, length }
    }

    fn capacity(&self) -> usize {
        self.memory.len().saturating_sub(LINE)
    }

    /// Changes the length. Reserves new memory, which is zero, when there is too little.
    pub(crate) fn resize(&mut self, length: usize) {
        if length > self.capacity() {
            // The two memories never exist together.
            drop(std::mem::take(self));
            *self = Self::new(length);
        }
        self.length = length;
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer").field("length", &self.length).finish_non_exhaustive()
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory[self.start..self.start + self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

/// Free buffers between two uses. Every training step takes buffers of the same sizes, so after the first steps none is
/// allocated and no page is touched for the first time, which would cost more than the arithmetic on it. Where lengths rise
/// from use to use, a new buffer replaces a smaller one, so the workspace keeps about what one use takes.
///
/// Clones share the buffers. The gradients of a path and its saved activations come from one workspace: the gradient of a
/// block takes the memory that the activations of the block above it no longer need. The tensors between a step's
/// operations (B, T, D) come from candle and are allocated in each step.
#[derive(Clone, Debug, Default)]
pub struct Workspace(Arc<Mutex<Vec<Buffer>>>);

impl Workspace {
    /// The smallest free buffer that is large enough. Else a new one, and the largest free buffer below the length goes. The
    /// contents are arbitrary.
    pub(crate) fn take(&self, length: usize) -> Buffer {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let buffers = || free.iter().enumerate().map(|(index, buffer)| (buffer.capacity(), index));
        // A buffer of more than twice the length stays free for a larger request.
        let fitting =
            buffers().filter(|&(capacity, _)| (length..=2 * length + 1024).contains(&capacity)).min();
        let small = || buffers().filter(|&(capacity, _)| capacity < length).max();
        let index = fitting.or_else(small).map(|(_, index)| index);
        let mut buffer = index.map_or_else(Buffer::default, |index| free.swap_remove(index));
        drop(free);
        buffer.resize(length);
        buffer
    }

    /// Takes a buffer back.
    pub(crate) fn give(&self, buffer: Buffer) {
        if buffer.capacity() > 0 {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes and gives back a buffer of each length, one after the other, and returns the capacities that are free then.
    fn free_after(workspace: &Workspace, lengths: impl IntoIterator<Item = usize>) -> Vec<usize> {
        for length in lengths {
            let buffer = workspace.take(length);
            assert_eq!(buffer.len(), length);
            workspace.give(buffer);
        }
        workspace.0.lock().unwrap().iter().map(Buffer::capacity).collect()
    }

    #[test]
    fn rising_lengths_leave_little_more_than_the_largest_buffer() {
        let free = free_after(&Workspace::default(), (1..=200).map(|n| n * 4096));
        assert!(free.iter().sum::<usize>() <= 3 * 200 * 4096, "{free:?}");
    }

    #[test]
    fn lengths_that_come_again_find_their_buffers() {
        let (workspace, lengths) = (Workspace::default(), [1_000, 100_000, 5_000, 40_000]);
        for _ in 0..4 {
            free_after(&workspace, lengths);
        }
        let sorted = |mut free: Vec<usize>| {
            free.sort_unstable();
            free
        };
        // Each length has a buffer, so no later round allocates one.
        let free = sorted(free_after(&workspace, lengths));
        assert_eq!(free, [1_008, 5_008, 40_000, 100_000]);
        assert_eq!(sorted(free_after(&workspace, lengths)), free);
    }
}
