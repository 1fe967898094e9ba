//! Checks of the arguments of the tensor functions.

use candle_core::Tensor;

use crate::error::shape;
use crate::{GradientSlot, OpsError};

/// Checks that a flat group of weights has `length` elements from `at`.
pub(crate) fn check_weights(
    operation: &'static str,
    weights: &Tensor,
    at: usize,
    length: usize,
) -> Result<(), OpsError> {
    let elements = weights.elem_count();
    if weights.rank() == 1 && at.checked_add(length).is_some_and(|end| end <= elements) {
        return Ok(());
    }
    let problem = format!("weights {:?} do not hold {length} elements from {at}", weights.dims());
    Err(shape(operation, problem))
}

/// Checks that a slot, if there is one, holds the gradient of `length` parameters.
pub(crate) fn check_slot(
    operation: &'static str,
    slot: Option<&GradientSlot>,
    length: usize,
) -> Result<(), OpsError> {
    match slot.map(GradientSlot::parameters).filter(|&parameters| parameters != length) {
        Some(found) => Err(shape(operation, format!("a gradient has {found} elements instead of {length}"))),
        None => Ok(()),
    }
}

/// Checks that ids below `ids` index a table of `entries` rows.
pub(crate) fn check_vocabulary(operation: &'static str, ids: usize, entries: usize) -> Result<(), OpsError> {
    if ids > entries { Err(OpsError::Vocabulary { operation, ids, entries }) } else { Ok(()) }
}
