//! Scratch memory of a thread.

use std::cell::RefCell;

use crate::buffer::{Buffer, LINE};

thread_local! {
    /// Free scratch buffers of this thread. There are several because a task that waits for other tasks may run one of
    /// them meanwhile, with scratch memory of its own.
    static SCRATCH: RefCell<Vec<Buffer>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` with `length` f32 of scratch memory of this thread. Its contents are arbitrary.
pub(crate) fn with_scratch<R>(length: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut buffer = SCRATCH.with_borrow_mut(|free| free.pop().unwrap_or_default());
    buffer.resize(length);
    let result = f(&mut buffer);
    SCRATCH.with_borrow_mut(|free| free.push(buffer));
    result
}

/// The length of a part of scratch memory: whole cache lines, so that the next part begins on one.
pub(crate) fn whole_lines(length: usize) -> usize {
    length.next_multiple_of(LINE)
}

/// Splits the next part off scratch memory.
pub(crate) fn split_off<'a>(rest: &mut &'a mut [f32], length: usize) -> &'a mut [f32] {
    let (part, after) = std::mem::take(rest).split_at_mut(whole_lines(length));
    *rest = after;
    part
}
