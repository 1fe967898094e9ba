//! The extent of an operation's backward pass.

/// The gradients that the backward pass of an operation computes. `S` holds the slots of the weights' gradients.
#[derive(Clone, Copy, Debug)]
pub enum Backward<S> {
    /// None. The operation keeps no graph.
    Nothing,
    /// The gradient of the input alone, because the weights are frozen.
    Input,
    /// The gradients of the input and of the weights. The weights' gradients are added to these slots.
    All(S),
}

impl<S> Backward<S> {
    /// True if there is a backward pass.
    pub(crate) fn exists(&self) -> bool {
        !matches!(self, Self::Nothing)
    }

    /// The slots of the weights' gradients, if these are computed.
    pub(crate) fn slots(&self) -> Option<&S> {
        match self {
            Self::All(slots) => Some(slots),
            Self::Nothing | Self::Input => None,
        }
    }
}
