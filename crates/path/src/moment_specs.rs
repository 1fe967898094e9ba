//! The tensors of which a path keeps moments.

use dipaco_model::{ModelConfig, TensorSpec, parameters, path_specs, trained_specs};
use dipaco_protocol::WorkerPlan;
use dipaco_topology::Topology;

use crate::PathError;

/// The tensors of which the optimizer keeps moments, in the order of [`path_specs`]. Tensors of frozen levels have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MomentSpecs {
    first: Vec<TensorSpec>,
    second: Vec<TensorSpec>,
}

impl MomentSpecs {
    /// The moments of a path over the levels of `topology`.
    #[must_use]
    pub fn new(model: &ModelConfig, topology: &Topology) -> Self {
        let first = trained_specs(model, topology);
        Self { second: first.clone(), first }
    }

    /// The moments of a path that trains all of its tensors, such as a seed.
    #[must_use]
    pub fn whole(model: &ModelConfig) -> Self {
        let first = path_specs(model);
        Self { second: first.clone(), first }
    }

    /// The moments of the paths of a worker's plan.
    ///
    /// # Errors
    /// When the levels do not fit the model.
    pub fn of_plan(plan: &WorkerPlan) -> Result<Self, PathError> {
        Ok(Self::new(&plan.model, &plan.topology()?))
    }

    /// The tensors with a first moment: all that train.
    #[must_use]
    pub fn first(&self) -> &[TensorSpec] {
        &self.first
    }

    /// The tensors with a second moment.
    #[must_use]
    pub fn second(&self) -> &[TensorSpec] {
        &self.second
    }

    /// Number of moments of both kinds.
    #[must_use]
    pub fn values(&self) -> usize {
        parameters(&self.first) + parameters(&self.second)
    }

    /// The tensors of a state's file that hold the moments.
    pub(crate) fn named(&self) -> Vec<TensorSpec> {
        let named = |prefix: &'static str, specs: &[TensorSpec]| -> Vec<TensorSpec> {
            let name =
                |spec: &TensorSpec| TensorSpec { name: format!("{prefix}/{}", spec.name), ..spec.clone() };
            specs.iter().map(name).collect()
        };
        [named("first", &self.first), named("second", &self.second)].concat()
    }
}
