//! Operands of projections.

use dipaco_model::Dtype;

use crate::device::Address;

/// A projection `y = x · Wᵀ` with x (rows, inputs), W (outputs, inputs) and y (rows, outputs).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Projection {
    /// Number of the first element of W among the parameters.
    pub(crate) weight: usize,
    pub(crate) rows: usize,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
}

/// Place and type of the result of a projection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub(crate) address: Address,
    pub(crate) number: Dtype,
    /// A matrix of the same size and type that is added to the product.
    pub(crate) added: Option<Address>,
}
