//! Aligned memory that is reused from step to step.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::{Pod, Zeroable};

/// One cache line, the unit of a buffer. Vector loads of packed operands then never cross a line.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

/// f32 elements of a cache line.
pub(crate) const LINE: usize = 16;

/// A slice of f32 that starts on a cache line. It keeps the contents that its last user left.
#[derive(Default)]
pub(crate) struct Buffer {
    lines: Vec<Line>,
    length: usize,
}

impl Buffer {
    /// Zeros.
    fn new(length: usize) -> Self {
        Self { lines: vec![Line::zeroed(); length.div_ceil(LINE)], length }
    }

    fn capacity(&self) -> usize {
        self.lines.len() * LINE
    }

    /// Changes the length. Reserves new memory, which is zero, when there is too little.
    pub(crate) fn resize(&mut self, length: usize) {
        if length > self.capacity() {
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
        &bytemuck::cast_slice(&self.lines)[..self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.length]
    }
}

/// Free buffers between two uses. Every training step takes buffers of the same sizes, so after the first step none is
/// allocated and no page is touched for the first time, which would cost more than the arithmetic on it.
///
/// Clones share the buffers. The gradients of a path and its saved activations come from one workspace: the gradient of a
/// block takes the memory that the activations of the block above it no longer need. The tensors between a step's
/// operations (B, T, D) come from candle and are allocated in each step.
#[derive(Clone, Debug, Default)]
pub struct Workspace(Arc<Mutex<Vec<Buffer>>>);

impl Workspace {
    /// The smallest free buffer that is large enough, else a new one; its contents are arbitrary.
    pub(crate) fn take(&self, length: usize) -> Buffer {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = free.iter().enumerate().filter(|(_, buffer)| buffer.capacity() >= length);
        // A buffer of more than twice the length stays free for a larger request.
        let best = fitting
            .min_by_key(|(_, buffer)| buffer.capacity())
            .filter(|(_, buffer)| buffer.capacity() <= 2 * length + 1024)
            .map(|(index, _)| index);
        let mut buffer = best.map_or_else(Buffer::default, |index| free.swap_remove(index));
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
