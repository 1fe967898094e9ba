//! Passes: sequences of launches that a device may record.

use crate::CudaError;
use crate::device::KernelDevice;
use crate::engine::{Engine, Rows};

/// A sequence of launches and products of one path. Two passes that are equal have the same arguments, because everything
/// else that changes from one to the next lies in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pass {
    pub(crate) rows: Rows,
    pub(crate) purpose: PassPurpose,
}

/// The use of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PassPurpose {
    /// The losses of a micro-batch.
    Losses,
    /// The gradients of a micro-batch.
    Gradients {
        /// True to add them to those of the micro-batches before it.
        accumulate: bool,
        /// True to take the step with them.
        update: bool,
    },
}

impl<D: KernelDevice> Engine<D> {
    /// Runs a pass: the device's record of it, or the calls.
    pub(crate) fn run_pass(
        &mut self,
        pass: Pass,
        calls: impl Fn(&mut Self) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        if self.device.begin_pass(pass)? {
            return Ok(());
        }
        let called = calls(self);
        if self.device.end_pass(pass, called.is_ok())? {
            return called;
        }
        // None of the recorded calls has run.
        calls(self)
    }
}
