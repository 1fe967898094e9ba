//! A projection by a matrix of the parameters, and its gradients, as products.

use dipaco_model::Dtype;

use crate::CudaError;
use crate::device::{Address, KernelDevice, Product};
use crate::engine::Engine;
use crate::operands::{Destination, Projection};

impl<D: KernelDevice> Engine<D> {
    /// Computes `y = x · Wᵀ (+ added)`.
    pub(crate) fn project(
        &mut self,
        projection: Projection,
        x: Address,
        y: Destination,
    ) -> Result<(), CudaError> {
        let factors = self.config.dtype;
        let Projection { weight, rows, inputs, outputs } = projection;
        self.device.multiply(&Product {
            rows,
            columns: outputs,
            inner: inputs,
            factors,
            left: x,
            right: self.arena.copy.plus(weight * factors.bytes()),
            left_transposed: false,
            right_transposed: true,
            result: y.address,
            result_type: y.number,
            added: y.added,
        })
    }

    /// Computes the gradient of x: `dx = dy · W` (rows, inputs), of the type `model.dtype`.
    pub(crate) fn project_back(
        &mut self,
        projection: Projection,
        dy: Address,
        dx: Address,
    ) -> Result<(), CudaError> {
        let factors = self.config.dtype;
        let Projection { weight, rows, inputs, outputs } = projection;
        self.device.multiply(&Product {
            rows,
            columns: inputs,
            inner: outputs,
            factors,
            left: dy,
            right: self.arena.copy.plus(weight * factors.bytes()),
            left_transposed: false,
            right_transposed: false,
            result: dx,
            result_type: factors,
            added: None,
        })
    }

    /// Computes the gradient of W: `dW = dyᵀ · x` (outputs, inputs), or adds it to `dW` if `accumulate` is true.
    pub(crate) fn weight_gradient(
        &mut self,
        projection: Projection,
        dy: Address,
        x: Address,
        accumulate: bool,
    ) -> Result<(), CudaError> {
        let Projection { weight, rows, inputs, outputs } = projection;
        let result = self.arena.gradient.plus(4 * weight);
        self.device.multiply(&Product {
            rows: outputs,
            columns: inputs,
            inner: rows,
            factors: self.config.dtype,
            left: dy,
            right: x,
            left_transposed: true,
            right_transposed: false,
            result,
            result_type: Dtype::F32,
            added: accumulate.then_some(result),
        })
    }
}
