//! Passes: sequences of launches that a device may record.

/// The rows of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rows {
    /// B, sequences.
    pub(crate) sequences: usize,
    /// T, tokens per sequence.
    pub(crate) time: usize,
}

impl Rows {
    /// B · T.
    pub(crate) fn count(self) -> usize {
        self.sequences * self.time
    }
}

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
